# Batches without the records that the cleaner removes: the compiled form of `pure_kernels.rebuild_batches`.
# Included by `_kernels.pyx`.

def rebuild_batches(
    data, table, actions, keep, keep_starts, int64_t horizon_ms, out, Py_ssize_t first_row, Py_ssize_t stop_row
):
    """See `pure_kernels.rebuild_batches`."""
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t length = view.shape[0], row = first_row
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef _Table rows = _Table(table)
    cdef const uint8_t[::1] actions_ = actions, keep_ = keep
    cdef const int64_t[::1] starts_ = keep_starts
    cdef uint8_t[::1] out_ = out
    cdef int reason = SOUND
    cdef uint8_t *begin = &out_[0] if out_.shape[0] else NULL
    cdef uint8_t *at = begin
    cdef int64_t room = out_.shape[0]
    cdef Codecs codecs
    if actions_.shape[0] != rows.rows or starts_.shape[0] != rows.rows or not 0 <= first_row <= stop_row <= rows.rows:
        raise InvalidRequest("cannot rebuild batches, actions and batches differ in number", actions=len(actions), rows=rows.rows)
    codecs = taken()
    with nogil:
        while row < stop_row:
            reason = rebuild_batch(
                codecs, bytes_, length, rows.row(row), actions_[row], keep_, starts_[row], horizon_ms, &at,
                room - (at - begin),
            )
            if reason:
                break
            row += 1
    given_back(codecs)
    if reason == TOO_LARGE:
        raise InvalidRequest("sealing a batch, larger than 2^31 bytes", row=row)
    if reason == FEW_FLAGS:
        raise InvalidRequest("cannot rebuild batches, flags and records differ in number", row=row)
    if reason and reason != NO_ROOM and reason != LEFT_ALONE:
        raise _wrong(table, row, reason, data, True)
    return row, at - begin


cdef inline int rebuild_batch(
    Codecs codecs, const uint8_t *data, Py_ssize_t length, Batch batch, uint8_t action, const uint8_t[::1] keep, int64_t keep_start,
    int64_t horizon_ms, uint8_t **out, int64_t room,
) noexcept nogil:
    """Write one batch to `out`, and move `out` behind it.

    NO_ROOM without any effect if it might exceed `room`, LEFT_ALONE as `rebuild_packed`.
    """
    cdef int reason
    cdef bint is_rebuilt = action == REBUILD or action == REBASE
    if keep_start < 0 or batch.count < 0 or keep_start > <int64_t>keep.shape[0] * 8 - batch.count:
        return FEW_FLAGS
    if action != DROP and batch.size + (<int64_t>batch.count * REBUILT_GROWTH_MAX if is_rebuilt else 0) > room:
        return NO_ROOM
    reason = check_crc(data, length, &batch)
    if reason or action == DROP:
        return reason
    if action == VERBATIM:
        memcpy(out[0], data + batch.position, batch.size)
        out[0] += batch.size
    elif is_rebuilt and batch.bits & CODEC_BITS:
        return rebuild_packed(codecs, data, &batch, &keep[0], keep_start, action == REBASE, horizon_ms, out, room)
    elif is_rebuilt:
        return rebuild_section(data, &batch, &keep[0], keep_start, action == REBASE, horizon_ms, out)
    else:
        out[0] = put_emptied(out[0], data + batch.position)
    return SOUND


cdef inline bint has_bit(const uint8_t *bits, int64_t at) noexcept nogil:
    return bits[at >> 3] >> (at & 7) & 1


cdef inline Py_ssize_t record_end(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *body) noexcept nogil:
    """The position after the record at `at`, -1 if it exceeds its batch.

    `body` becomes the position after its length.
    """
    cdef int32_t length
    at = read_int(data, at, end, &length)
    if at < 0 or length <= 0 or length > end - at:
        return -1
    body[0] = at
    return at + length


cdef int rebuild_section(
    const uint8_t *data, Batch *batch, const uint8_t *keep, int64_t flag, bint is_rebased, int64_t horizon_ms,
    uint8_t **out,
) noexcept nogil:
    """Write the batch with its flagged records to `out`, and move `out` behind it.

    Of other records only the length is read.
    """
    cdef uint8_t *header = out[0]
    cdef uint8_t *to = header + HEADER_BYTES
    cdef Py_ssize_t at = batch.position + HEADER_BYTES, end = batch.position + batch.size, run = -1
    cdef Py_ssize_t start, rest, body = 0
    cdef int64_t base_ms = batch.base_ms, largest_ms = 0, timestamp, delta
    cdef bint is_append_time = batch.bits & LOG_APPEND_TIME, is_same = False
    cdef int32_t index, kept = 0
    if <int64_t>batch.count * RECORD_BYTES_MIN > end - at:
        return WRONG_COUNT
    for index in range(batch.count):
        start = at
        at = record_end(data, at, end, &body)
        if at < 0:
            return WRONG_RECORD
        if not has_bit(keep, flag + index):
            if run >= 0:
                to = put_run(to, data + run, start - run)
                run = -1
            continue
        rest = read_long(data, body + 1, at, &delta)
        if rest < 0:
            return WRONG_RECORD
        timestamp = batch.max_ms if is_append_time else wrapping_sum(batch.base_ms, delta)
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
        if is_same:  # adjacent flagged records are copied together
            if run < 0:
                run = start
            continue
        delta = wrapping_difference(timestamp, base_ms)
        to = put_varint(to, 1 + varint_bytes(delta) + at - rest)
        to[0] = 0
        to = put_run(put_varint(to + 1, delta), data + rest, at - rest)
    if at != end:
        return LEFT_OVER
    if run >= 0:
        to = put_run(to, data + run, end - run)
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


cdef inline uint8_t *put_run(uint8_t *to, const uint8_t *data, Py_ssize_t length) noexcept nogil:
    memcpy(to, data, length)
    return to + length


def kept_bytes(data, table, keep, keep_starts):
    """See `pure_kernels.kept_bytes`."""
    cdef const uint8_t[::1] view = data
    cdef const uint8_t *bytes_ = &view[0] if view.shape[0] else NULL
    cdef _Table rows = _Table(table)
    cdef const uint8_t[::1] keep_ = keep
    cdef const int64_t[::1] starts_ = keep_starts
    cdef Py_ssize_t row
    cdef Batch batch
    if starts_.shape[0] != rows.rows:
        raise InvalidRequest("measuring records, not one start per batch", rows=rows.rows)
    for row in range(rows.rows):
        batch = rows.row(row)
        if batch.position < 0 or batch.size < HEADER_BYTES or batch.position > view.shape[0] - batch.size:
            raise InvalidRequest("measuring records, the table is of other data", row=row)
        if starts_[row] < 0 or batch.count < 0 or starts_[row] > <int64_t>keep_.shape[0] * 8 - batch.count:
            raise InvalidRequest("measuring records, not one flag per record", row=row)
    sizes = np.zeros(rows.rows, np.int64)
    cdef int64_t[::1] sizes_ = sizes
    with nogil:
        for row in range(rows.rows):
            batch = rows.row(row)
            if batch.count:
                sizes_[row] = kept_section_bytes(bytes_, &batch, &keep_[0], starts_[row])
    return sizes


cdef int64_t kept_section_bytes(const uint8_t *data, Batch *batch, const uint8_t *keep, int64_t flag) noexcept nogil:
    cdef Py_ssize_t start, at = batch.position + HEADER_BYTES, end = batch.position + batch.size, body
    cdef int64_t kept = 0
    cdef int32_t index
    for index in range(batch.count):
        start = at
        at = record_end(data, at, end, &body)
        if at < 0:
            return batch.size - HEADER_BYTES
        if has_bit(keep, flag + index):
            kept += at - start
    return kept


def count_bits(bits, starts, counts):
    """See `pure_kernels.count_bits`."""
    cdef const uint8_t[::1] bits_ = bits
    cdef const int64_t[::1] starts_ = starts
    cdef const int32_t[::1] counts_ = counts
    cdef Py_ssize_t row
    if starts_.shape[0] != counts_.shape[0]:
        raise InvalidRequest("cannot count bits, starts and counts differ in number", starts=len(starts), counts=len(counts))
    for row in range(starts_.shape[0]):
        if starts_[row] < 0 or counts_[row] < 0 or starts_[row] > <int64_t>bits_.shape[0] * 8 - counts_[row]:
            raise InvalidRequest("cannot count bits, a range is outside the bits", row=row)
    found = np.zeros(starts_.shape[0], np.int64)
    cdef int64_t[::1] found_ = found
    with nogil:
        for row in range(starts_.shape[0]):
            if counts_[row]:
                found_[row] = set_bits(&bits_[0], starts_[row], starts_[row] + counts_[row])
    return found


cdef int64_t set_bits(const uint8_t *bits, int64_t at, int64_t stop) noexcept nogil:
    cdef int64_t found = 0
    while at < stop and at & 7:
        found += has_bit(bits, at)
        at += 1
    while at + 8 <= stop:
        found += TIERED_SET_BITS(bits[at >> 3])
        at += 8
    while at < stop:
        found += has_bit(bits, at)
        at += 1
    return found


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
