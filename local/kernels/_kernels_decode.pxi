# Records to columns: the compiled form of `pure_kernels.decode_batches`.
# Included by `_kernels.pyx`.

cdef struct PlainRecord:
    Py_ssize_t start
    Py_ssize_t rest
    Py_ssize_t end
    int64_t time_delta
    int32_t offset_delta
    Py_ssize_t key_place
    Py_ssize_t key_start
    int32_t key_length
    Py_ssize_t value_start
    int32_t value_length
    Py_ssize_t header_start
    int32_t header_count


cdef struct ColumnArrays:
    int64_t *offsets
    int64_t *timestamps
    int64_t *key_starts
    int64_t *value_starts
    int64_t *header_starts
    int32_t *key_lengths
    int32_t *value_lengths
    int32_t *header_counts
    int32_t *batch_ordinals


# One row of the table.
cdef struct Batch:
    Py_ssize_t position
    Py_ssize_t size
    int64_t base_offset
    int64_t last_delta
    int64_t base_ms
    int64_t max_ms
    int32_t count
    int16_t bits
    uint32_t crc


cdef class _Table:
    """Read-only typed views of a `BatchTable`."""
    cdef const int64_t[::1] positions, base_offsets, last_offsets, base_timestamps, max_timestamps
    cdef const int32_t[::1] sizes, record_counts
    cdef const int16_t[::1] attributes
    cdef const uint32_t[::1] crcs
    cdef Py_ssize_t rows

    def __cinit__(self, table):
        self.positions, self.sizes = table.positions, table.sizes
        self.base_offsets, self.last_offsets = table.base_offsets, table.last_offsets
        self.base_timestamps, self.max_timestamps = table.base_timestamps, table.max_timestamps
        self.record_counts, self.attributes, self.crcs = table.record_counts, table.attributes, table.crcs
        self.rows = self.positions.shape[0]
        for name in ("sizes", "base_offsets", "last_offsets", "base_timestamps", "max_timestamps", "record_counts",
                     "attributes", "crcs"):
            if len(getattr(table, name)) != self.rows:
                raise InvalidRequest("cannot decode batches, the columns of the table differ in length", column=name)

    cdef inline Batch row(self, Py_ssize_t row) noexcept nogil:
        cdef Batch out
        out.position = self.positions[row]
        out.size = self.sizes[row]
        out.base_offset = self.base_offsets[row]
        out.last_delta = self.last_offsets[row] - out.base_offset
        out.base_ms = self.base_timestamps[row]
        out.max_ms = self.max_timestamps[row]
        out.count = self.record_counts[row]
        out.bits = self.attributes[row]
        out.crc = self.crcs[row]
        return out


def decode_batches(data, table, starts, ends, *, bint verify, bint include_control):
    """See `pure_kernels.decode_batches`."""
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t length = view.shape[0], row, total = 0, at = 0
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef _Table rows = _Table(table)
    cdef const int64_t[::1] starts_ = starts, ends_ = ends
    cdef int reason = SOUND
    cdef ColumnArrays out
    cdef Batch batch
    if starts_.shape[0] != rows.rows or ends_.shape[0] != rows.rows:
        raise InvalidRequest("cannot decode batches, sections and batches differ in number", sections=len(starts), rows=rows.rows)
    # Record counts are checked against the bytes before they determine an allocation.
    for row in range(rows.rows):
        batch = rows.row(row)
        if batch.bits & CONTROL and not include_control:
            continue
        if not 0 <= starts_[row] <= ends_[row] <= length:
            reason = OUTSIDE
        elif batch.count < 0 or <int64_t>batch.count * RECORD_BYTES_MIN > ends_[row] - starts_[row]:
            reason = WRONG_COUNT
        if reason:
            # As in `pure_kernels`, a wrong checksum is reported before any other fault.
            raise _wrong(table, row, reason, data, verify)
        total += batch.count
    columns = empty_columns(total)
    out = column_arrays(columns)
    with nogil:
        for row in range(rows.rows):
            batch = rows.row(row)
            if verify:
                reason = check_crc(bytes_, length, &batch)
                if reason:
                    break
            if batch.bits & CONTROL and not include_control:
                continue
            reason = decode_section(bytes_, length, starts_[row], ends_[row], &batch, <int32_t>row, at, &out)
            if reason:
                break
            at += batch.count
    if reason:
        raise _wrong(table, row, reason, data, verify)
    return Columns(data=data, table=table, **columns)


def _wrong(table, Py_ssize_t row, int reason, data, bint verify):
    """The error for a batch; the checksum's error if the checksum is wrong."""
    header, position = table.row(row), int(table.positions[row])
    if verify:
        pure_kernels.check_crc(data, header, position)
    return pure_kernels.wrong_batch(REASONS[reason], header, position)


cdef ColumnArrays column_arrays(dict columns):
    cdef ColumnArrays out
    cdef int64_t[::1] longs
    cdef int32_t[::1] ints
    longs = columns["offsets"]; out.offsets = &longs[0]
    longs = columns["timestamps"]; out.timestamps = &longs[0]
    longs = columns["key_starts"]; out.key_starts = &longs[0]
    longs = columns["value_starts"]; out.value_starts = &longs[0]
    longs = columns["header_starts"]; out.header_starts = &longs[0]
    ints = columns["key_lengths"]; out.key_lengths = &ints[0]
    ints = columns["value_lengths"]; out.value_lengths = &ints[0]
    ints = columns["header_counts"]; out.header_counts = &ints[0]
    ints = columns["batch_ordinals"]; out.batch_ordinals = &ints[0]
    return out


cdef inline int check_crc(const uint8_t *data, Py_ssize_t length, Batch *batch) noexcept nogil:
    if batch.position < 0 or batch.size < HEADER_BYTES or batch.size > length - batch.position:
        return OUTSIDE
    if crc32c_update(0, data + batch.position + CRC_START, batch.size - CRC_START) != batch.crc:
        return WRONG_CRC
    return SOUND


cdef int decode_section(
    const uint8_t *data, Py_ssize_t length, Py_ssize_t at, Py_ssize_t end, Batch *batch, int32_t ordinal,
    Py_ssize_t row, ColumnArrays *out,
) noexcept nogil:
    """Decode `batch.count` rows from `row` on. The caller has checked the count against ``end - at``."""
    cdef PlainRecord record
    cdef int64_t last_delta = -1
    cdef Py_ssize_t ahead = at, limit
    cdef bint prefetch = end - at > <int64_t>batch.count * PREFETCH_RECORD_BYTES
    cdef bint is_append_time = batch.bits & LOG_APPEND_TIME
    cdef Py_ssize_t stop = row + batch.count
    for row in range(row, stop):
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
        out.offsets[row] = batch.base_offset + record.offset_delta
        out.timestamps[row] = batch.max_ms if is_append_time else wrapping_sum(batch.base_ms, record.time_delta)
        out.key_starts[row] = record.key_start
        out.key_lengths[row] = record.key_length
        out.value_starts[row] = record.value_start
        out.value_lengths[row] = record.value_length
        out.header_starts[row] = record.header_start
        out.header_counts[row] = record.header_count
        out.batch_ordinals[row] = ordinal
        at = record.end
    return SOUND if at == end else LEFT_OVER


cdef inline int64_t wrapping_sum(int64_t one, int64_t other) noexcept nogil:
    return <int64_t>(<uint64_t>one + <uint64_t>other)


cdef inline int64_t wrapping_difference(int64_t one, int64_t other) noexcept nogil:
    return <int64_t>(<uint64_t>one - <uint64_t>other)


cdef inline int read_record(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, PlainRecord *out) noexcept nogil:
    """0, or 1 if any part exceeds the part that contains it."""
    cdef int32_t length
    out.start = at
    at = read_int(data, at, end, &length)
    if at < 0 or length <= 0 or length > end - at:
        return 1
    end = at + length
    out.end = end
    at = read_long(data, at + 1, end, &out.time_delta)
    if at < 0:
        return 1
    out.rest = at
    at = read_int(data, at, end, &out.offset_delta)
    if at < 0:
        return 1
    out.key_place = at
    at = read_int(data, at, end, &out.key_length)
    if at < 0 or out.key_length < -1 or out.key_length > end - at:
        return 1
    out.key_start = at
    if out.key_length > 0:
        at += out.key_length
    at = read_int(data, at, end, &out.value_length)
    if at < 0 or out.value_length < -1 or out.value_length > end - at:
        return 1
    out.value_start = at
    if out.value_length > 0:
        at += out.value_length
    out.header_start = at
    at = read_int(data, at, end, &out.header_count)
    if at < 0 or out.header_count < 0 or out.header_count > (end - at) // 2:
        return 1
    if out.header_count:
        at = skip_headers(data, at, end, out.header_count)
    return at != end


cdef Py_ssize_t skip_headers(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int32_t count) noexcept nogil:
    """The position after `count` headers; -1 if one is invalid."""
    cdef int32_t length
    for _ in range(count):
        at = read_int(data, at, end, &length)
        if at < 0 or length < 0 or length > end - at:
            return -1
        at = read_int(data, at + length, end, &length)
        if at < 0 or length < -1 or length > end - at:
            return -1
        if length > 0:
            at += length
    return at
