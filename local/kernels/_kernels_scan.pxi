# Scan batch headers: the compiled form of `pure_kernels.scan_batches`.
# Included by `_kernels.pyx`.

cdef struct TableArrays:
    int64_t *positions
    int32_t *sizes
    int64_t *base_offsets
    int64_t *last_offsets
    int32_t *leader_epochs
    int16_t *attributes
    int64_t *base_timestamps
    int64_t *max_timestamps
    int64_t *producer_ids
    int16_t *producer_epochs
    int32_t *base_sequences
    int32_t *record_counts
    uint32_t *crcs


cdef TableArrays table_arrays(dict arrays):
    """Pointers into writable arrays of the right types. Raises ValueError for other types."""
    cdef TableArrays out
    cdef int64_t[::1] longs
    cdef int32_t[::1] ints
    cdef int16_t[::1] shorts
    cdef uint32_t[::1] words
    longs = arrays["positions"]; out.positions = &longs[0]
    longs = arrays["base_offsets"]; out.base_offsets = &longs[0]
    longs = arrays["last_offsets"]; out.last_offsets = &longs[0]
    longs = arrays["base_timestamps"]; out.base_timestamps = &longs[0]
    longs = arrays["max_timestamps"]; out.max_timestamps = &longs[0]
    longs = arrays["producer_ids"]; out.producer_ids = &longs[0]
    ints = arrays["sizes"]; out.sizes = &ints[0]
    ints = arrays["leader_epochs"]; out.leader_epochs = &ints[0]
    ints = arrays["base_sequences"]; out.base_sequences = &ints[0]
    ints = arrays["record_counts"]; out.record_counts = &ints[0]
    shorts = arrays["attributes"]; out.attributes = &shorts[0]
    shorts = arrays["producer_epochs"]; out.producer_epochs = &shorts[0]
    words = arrays["crcs"]; out.crcs = &words[0]
    return out


def scan_batches(data, *, bint verify=True, Py_ssize_t position=0):
    """See `pure_kernels.scan_batches`."""
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef Py_ssize_t length = view.shape[0], at = position, row = 0, rows
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef int64_t last_offset = -1
    cdef int problem = SCAN_FULL
    cdef TableArrays out
    if not 0 <= position <= length:
        raise InvalidRequest("cannot scan batches, the position is outside the data", position=position, bytes=length)
    rows = 16 + (length - position) // 16384  # producers write batches of 16 KiB by default
    arrays = empty_table_arrays(rows)
    while True:
        out = table_arrays(arrays)
        with nogil:
            problem = scan_into(bytes_, length, &at, &row, rows, &last_offset, verify, &out)
        if problem != SCAN_FULL:
            break
        rows *= 2
        larger = empty_table_arrays(rows)
        for name, array in larger.items():
            array[:row] = arrays[name]
        arrays = larger
    # A copy frees the unused part: a table lives much longer than its scan.
    trimmed = {name: array[:row].copy() for name, array in arrays.items()}
    trimmed["magics"] = np.full(row, 2, np.int8)  # `dispatch` reads batches of other formats
    told = f"magic {<int8_t>bytes_[at + MAGIC_END - 1] & 0xFF}" if problem == SCAN_MAGIC else PROBLEMS[problem]
    return BatchTable(valid_bytes=at, problem=told, **trimmed)


cdef int scan_into(
    const uint8_t *data, Py_ssize_t length, Py_ssize_t *at, Py_ssize_t *row, Py_ssize_t rows, int64_t *last_offset,
    bint verify, TableArrays *out,
) noexcept nogil:
    """Fill rows until the bytes end, the arrays are full (SCAN_FULL) or a batch is invalid (its code)."""
    cdef const uint8_t *batch
    cdef Py_ssize_t size, i
    cdef int64_t base, delta, count, left
    cdef int16_t bits
    cdef uint32_t crc
    while at[0] < length:
        left = length - at[0]
        batch = data + at[0]
        if left < MAGIC_END:
            return SCAN_TORN
        if batch[MAGIC_END - 1] != 2:
            return SCAN_MAGIC
        size = <int32_t>load32(batch + 8)
        if size < LENGTH_MIN:
            return 3
        if size > INT_MAX - LENGTH_OVERHEAD:
            return 4
        size += LENGTH_OVERHEAD
        if size > left:
            return SCAN_TORN
        if row[0] == rows:
            return SCAN_FULL
        crc = load32(batch + 17)
        if verify and crc32c_update(0, batch + CRC_START, size - CRC_START) != crc:
            return 5
        base = load64(batch)
        if base < 0 or base > BASE_OFFSET_MAX:
            return 6
        delta = <int32_t>load32(batch + 23)
        if delta < 0:
            return 7
        if base <= last_offset[0]:
            return 8
        count = <int32_t>load32(batch + 57)
        if count < 0 or count > delta + 1:
            return 9
        bits = <int16_t>(<uint32_t>batch[21] << 8 | batch[22])
        if bits & CODEC_BITS > ZSTD:
            return 10
        if bits & CODEC_BITS == 0 and count * RECORD_BYTES_MIN > size - HEADER_BYTES:
            return 11
        i = row[0]
        out.positions[i] = at[0]
        out.sizes[i] = <int32_t>size
        out.base_offsets[i] = base
        out.last_offsets[i] = base + delta
        out.leader_epochs[i] = <int32_t>load32(batch + 12)
        out.attributes[i] = bits
        out.base_timestamps[i] = load64(batch + 27)
        out.max_timestamps[i] = load64(batch + 35)
        out.producer_ids[i] = load64(batch + 43)
        out.producer_epochs[i] = <int16_t>(<uint32_t>batch[51] << 8 | batch[52])
        out.base_sequences[i] = <int32_t>load32(batch + 53)
        out.record_counts[i] = <int32_t>count
        out.crcs[i] = crc
        last_offset[0] = base + delta
        at[0] += size
        row[0] = i + 1
    return SCAN_END
