# Batches without the records that the cleaner drops: the twin of `pure_kernels.rebuild_batches`.
# Part of `_kernels.pyx`, which includes it.

def rebuild_batches(data, table, actions, keep, keep_starts, int64_t horizon_ms=0):
    """See `pure_kernels.rebuild_batches`."""
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t length = view.shape[0], row, bound = 0
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef _Table rows = _Table(table)
    cdef const uint8_t[::1] actions_ = actions, keep_ = np.asarray(keep).view(np.uint8)
    cdef const int64_t[::1] starts_ = keep_starts
    cdef const uint8_t *flags
    cdef int reason = SOUND
    cdef uint8_t *at
    cdef uint8_t *begin
    cdef Batch batch
    if actions_.shape[0] != rows.rows or starts_.shape[0] != rows.rows:
        raise InvalidRequest("rebuilding batches, not one action per batch", actions=len(actions), rows=rows.rows)
    for row in range(rows.rows):
        batch = rows.row(row)
        if starts_[row] < 0 or batch.count < 0 or starts_[row] > keep_.shape[0] - batch.count:
            raise InvalidRequest("rebuilding batches, not one flag per record", row=row)
        bound += 0 if actions_[row] == DROP else batch.size
        bound += <Py_ssize_t>batch.count * REBUILT_GROWTH_MAX if actions_[row] in (REBUILD, REBASE) else 0
    # A scratch and one copy: shrinking bytes of megabytes would fault in fresh pages call after call (twice as slow).
    cdef uint8_t[::1] scratch = np.empty(bound, np.uint8)
    begin = at = &scratch[0] if bound else NULL
    with nogil:
        for row in range(rows.rows):
            batch = rows.row(row)
            reason = check_crc(bytes_, length, &batch)
            if reason:
                break
            if actions_[row] == DROP:
                continue
            if actions_[row] == VERBATIM:
                memcpy(at, bytes_ + batch.position, batch.size)
                at += batch.size
            elif actions_[row] == REBUILD or actions_[row] == REBASE:
                flags = &keep_[0] + starts_[row]
                reason = rebuild_section(bytes_, length, &batch, flags, actions_[row] == REBASE, horizon_ms, &at)
                if reason:
                    break
            else:
                at = put_emptied(at, bytes_ + batch.position)
    if reason == TOO_LARGE:
        raise InvalidRequest("sealing a batch, larger than 2^31 bytes", row=row)
    if reason:
        raise _wrong(table, row, reason, data, True)
    return PyBytes_FromStringAndSize(<char *>begin, at - begin) if bound else b""


cdef int rebuild_section(
    const uint8_t *data, Py_ssize_t length, Batch *batch, const uint8_t *flags, bint is_rebased, int64_t horizon_ms,
    uint8_t **out,
) noexcept nogil:
    """The batch with its flagged records (one at least) at `out`, which moves behind it."""
    cdef PlainRecord record
    cdef uint8_t *header = out[0]
    cdef uint8_t *to = header + HEADER_BYTES
    cdef Py_ssize_t at = batch.position + HEADER_BYTES, end = batch.position + batch.size, run = -1, ahead = at, limit
    cdef int64_t base_ms = batch.base_ms, largest_ms = 0, timestamp, delta, last_delta = -1
    cdef bint is_append_time = batch.bits & LOG_APPEND_TIME, is_same = False
    cdef bint prefetch = batch.size > <int64_t>batch.count * PREFETCH_RECORD_BYTES
    cdef int32_t index, kept = 0
    if <int64_t>batch.count * RECORD_BYTES_MIN > end - at:
        return WRONG_COUNT
    for index in range(batch.count):
        if prefetch:
            limit = min(at + PREFETCH_BYTES, length - 64)
            while ahead < limit:
                TIERED_PREFETCH(data + ahead)
                ahead += 64
        if read_record(data, at, end, &record):
            return WRONG_RECORD
        if record.offset_delta <= last_delta or record.offset_delta > batch.last_delta:
            return WRONG_ORDER
        last_delta = record.offset_delta
        at = record.end
        if not flags[index]:
            if run >= 0:
                memcpy(to, data + run, record.start - run)
                to += record.start - run
                run = -1
            continue
        timestamp = batch.max_ms if is_append_time else wrapping_sum(batch.base_ms, record.time_delta)
        if kept == 0:
            if is_rebased:
                base_ms = horizon_ms
            elif not batch.bits & DELETE_HORIZON:
                base_ms = timestamp
            is_same = base_ms == batch.base_ms and not is_append_time
            largest_ms = timestamp
        elif timestamp > largest_ms:
            largest_ms = timestamp
        kept += 1
        if is_same:  # neighbours that stay go over in one copy
            if run < 0:
                run = record.start
            continue
        delta = wrapping_difference(timestamp, base_ms)
        to = put_varint(to, 1 + varint_bytes(delta) + record.end - record.rest)
        to[0] = 0
        to = put_varint(to + 1, delta)
        memcpy(to, data + record.rest, record.end - record.rest)
        to += record.end - record.rest
    if at != end:
        return LEFT_OVER
    if run >= 0:
        memcpy(to, data + run, end - run)
        to += end - run
    if to - header > INT_MAX:
        return TOO_LARGE
    memcpy(header, data + batch.position, HEADER_BYTES)
    store32(header + 8, <uint32_t>(to - header - LENGTH_OVERHEAD))
    if is_rebased:
        header[22] |= DELETE_HORIZON
    store64(header + 27, base_ms)
    store64(header + 35, largest_ms)
    store32(header + 57, <uint32_t>kept)
    store32(header + 17, crc32c_update(0, header + CRC_START, to - header - CRC_START))
    out[0] = to
    return SOUND


def kept_bytes(data, table, keep, keep_starts):
    """See `pure_kernels.kept_bytes`."""
    cdef const uint8_t[::1] view = data
    cdef const uint8_t *bytes_ = &view[0] if view.shape[0] else NULL
    cdef _Table rows = _Table(table)
    cdef const uint8_t[::1] keep_ = np.asarray(keep).view(np.uint8)
    cdef const int64_t[::1] starts_ = keep_starts
    cdef Py_ssize_t row
    cdef Batch batch
    if starts_.shape[0] != rows.rows:
        raise InvalidRequest("measuring records, not one start per batch", rows=rows.rows)
    for row in range(rows.rows):
        batch = rows.row(row)
        if batch.position < 0 or batch.size < HEADER_BYTES or batch.position > view.shape[0] - batch.size:
            raise InvalidRequest("measuring records, the table is of other data", row=row)
        if starts_[row] < 0 or batch.count < 0 or starts_[row] > keep_.shape[0] - batch.count:
            raise InvalidRequest("measuring records, not one flag per record", row=row)
    sizes = np.zeros(rows.rows, np.int64)
    cdef int64_t[::1] sizes_ = sizes
    with nogil:
        for row in range(rows.rows):
            batch = rows.row(row)
            if batch.count:
                sizes_[row] = kept_section_bytes(bytes_, &batch, &keep_[0] + starts_[row])
    return sizes


cdef int64_t kept_section_bytes(const uint8_t *data, Batch *batch, const uint8_t *flags) noexcept nogil:
    cdef Py_ssize_t start, at = batch.position + HEADER_BYTES, end = batch.position + batch.size
    cdef int64_t kept = 0
    cdef int32_t index, length
    for index in range(batch.count):
        start = at
        at = read_int(data, at, end, &length)
        if at < 0 or length < 0 or length > end - at:
            return batch.size - HEADER_BYTES
        at += length
        if flags[index]:
            kept += at - start
    return kept


cdef uint8_t *put_emptied(uint8_t *at, const uint8_t *header) noexcept nogil:
    """See `pure_kernels.emptied`."""
    memcpy(at, header, HEADER_BYTES)
    store32(at + 8, LENGTH_MIN)
    at[21] = 0
    at[22] &= LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
    store64(at + 27, -1)
    store32(at + 57, 0)
    store32(at + 17, crc32c_update(0, at + CRC_START, HEADER_BYTES - CRC_START))
    return at + HEADER_BYTES
