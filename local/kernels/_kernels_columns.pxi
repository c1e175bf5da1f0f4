# Columns to batches, and the hash of keys: the compiled form of `local.kernels.pure_kernels`.
# Included by `_kernels.pyx`.

cdef enum:
    OUTSIDE_DATA = 1
    WRONG_TIME = 2
    WRONG_HEADERS = 3
    LARGE_BATCH = 4
    CHANGED = 5


cdef struct Source:
    const uint8_t *keys
    Py_ssize_t key_bytes
    const int64_t *key_starts
    const int32_t *key_lengths
    const uint8_t *values
    Py_ssize_t value_bytes
    const int64_t *value_starts
    const int32_t *value_lengths
    const int64_t *timestamps
    const uint8_t *headers
    Py_ssize_t header_bytes
    const int64_t *header_starts
    const int32_t *header_counts


# One checked row: `read_row` fills it.
cdef struct Row:
    int64_t timestamp
    int64_t key_at
    int64_t value_at
    int32_t key_length
    int32_t value_length
    Py_ssize_t header_start
    Py_ssize_t header_bytes


cdef class _Source:
    """The arrays of `RecordColumns`. The object must live as long as `at` points into them."""
    cdef const uint8_t[::1] keys, values, headers
    cdef const int64_t[::1] key_starts, value_starts, timestamps, header_starts
    cdef const int32_t[::1] key_lengths, value_lengths, header_counts
    cdef Source at
    cdef Py_ssize_t rows

    def __cinit__(self, key_data, key_starts, key_lengths, value_data, value_starts, value_lengths, timestamps,
                  header_data, header_starts, header_counts):
        self.keys, self.values, self.headers = key_data, value_data, header_data
        self.key_starts, self.value_starts, self.header_starts = key_starts, value_starts, header_starts
        self.key_lengths, self.value_lengths, self.header_counts = key_lengths, value_lengths, header_counts
        self.timestamps = timestamps
        self.rows = self.timestamps.shape[0]
        for column in (key_starts, key_lengths, value_starts, value_lengths, header_starts, header_counts):
            is_optional = column is header_starts or column is header_counts
            if len(column) != self.rows and not (is_optional and len(header_starts) == len(header_counts) == 0):
                raise InvalidRequest("cannot encode columns, they differ in length", rows=self.rows, found=len(column))
        self.at.key_bytes, self.at.value_bytes = self.keys.shape[0], self.values.shape[0]
        self.at.header_bytes = self.headers.shape[0]
        self.at.keys = &self.keys[0] if self.at.key_bytes else NULL
        self.at.values = &self.values[0] if self.at.value_bytes else NULL
        self.at.headers = &self.headers[0] if self.at.header_bytes else NULL
        if self.rows:
            self.at.key_starts, self.at.key_lengths = &self.key_starts[0], &self.key_lengths[0]
            self.at.value_starts, self.at.value_lengths = &self.value_starts[0], &self.value_lengths[0]
            self.at.timestamps = &self.timestamps[0]
        if self.rows and self.header_counts.shape[0]:
            self.at.header_starts, self.at.header_counts = &self.header_starts[0], &self.header_counts[0]
        else:
            self.at.header_starts, self.at.header_counts = NULL, NULL


def cut_columns(columns, int64_t batch_bytes):
    """See `pure_kernels.cut_columns`."""
    cdef _Source source = _Source(*columns)
    cdef Py_ssize_t row = 0, batches = 0, room = 64
    cdef int64_t size = 0
    cdef int reason = SOUND
    cdef int64_t[::1] ends_, sizes_
    ends, sizes = np.empty(room, np.int64), np.empty(room, np.int64)
    ends_, sizes_ = ends, sizes
    while row < source.rows:
        if batches == room:
            room *= 2
            ends, sizes = np.resize(ends, room), np.resize(sizes, room)
            ends_, sizes_ = ends, sizes
        with nogil:
            while row < source.rows and batches < room:
                reason = measure_batch(&source.at, &row, source.rows, batch_bytes, &size)
                if reason:
                    break
                ends_[batches], sizes_[batches] = row, size
                batches += 1
        if reason:
            raise pure_kernels.wrong_column(reason, row, columns[6])
    return ends[:batches].copy(), sizes[:batches].copy()


cdef int measure_batch(
    const Source *source, Py_ssize_t *next_row, Py_ssize_t rows, int64_t batch_bytes, int64_t *size
) noexcept nogil:
    """Read rows from `next_row` on, at least one, that make a batch of at most `batch_bytes`."""
    cdef Py_ssize_t first = next_row[0], row = first
    cdef int64_t base_ms = source.timestamps[first], body, total = HEADER_BYTES
    cdef Row found
    cdef int reason
    while row < rows:
        next_row[0] = row
        reason = read_row(source, row, &found)
        if reason:
            return reason
        body = body_bytes(&found, base_ms, row - first)
        body += varint_bytes(body)
        if row > first and total + body > batch_bytes:
            break
        total += body
        if total > INT_MAX:
            return LARGE_BATCH
        row += 1
    next_row[0] = row
    size[0] = total
    return SOUND


cdef inline int read_row(const Source *source, Py_ssize_t row, Row *out) noexcept nogil:
    cdef Py_ssize_t end
    cdef int32_t headers
    out.key_length, out.key_at = source.key_lengths[row], source.key_starts[row]
    if out.key_length > 0 and (out.key_at < 0 or out.key_at > source.key_bytes - out.key_length):
        return OUTSIDE_DATA
    out.value_length, out.value_at = source.value_lengths[row], source.value_starts[row]
    if out.value_length > 0 and (out.value_at < 0 or out.value_at > source.value_bytes - out.value_length):
        return OUTSIDE_DATA
    out.timestamp = source.timestamps[row]
    if out.timestamp < -1:
        return WRONG_TIME
    out.header_bytes = 0
    headers = source.header_counts[row] if source.header_counts != NULL else 0
    if headers > 0:
        out.header_start = source.header_starts[row]
        end = headers_end(source, out.header_start, headers)
        if end < 0:
            return WRONG_HEADERS
        out.header_bytes = end - out.header_start
    return SOUND


cdef Py_ssize_t headers_end(const Source *source, Py_ssize_t at, int32_t count) noexcept nogil:
    """The position after the headers whose count varint is at `at`; -1 if they are invalid."""
    cdef int32_t told
    if at < 0 or at >= source.header_bytes:
        return -1
    at = read_int(source.headers, at, source.header_bytes, &told)
    if at < 0 or told != count or count > (source.header_bytes - at) // 2:
        return -1
    return skip_headers(source.headers, at, source.header_bytes, count)


cdef inline int64_t body_bytes(const Row *row, int64_t base_ms, int64_t offset_delta) noexcept nogil:
    """The bytes of the record without the varint of its length."""
    cdef int64_t size = 1 + varint_bytes(wrapping_difference(row.timestamp, base_ms)) + varint_bytes(offset_delta)
    size += 1 if row.key_length < 0 else varint_bytes(row.key_length) + row.key_length
    size += 1 if row.value_length < 0 else varint_bytes(row.value_length) + row.value_length
    return size + (row.header_bytes if row.header_bytes else 1)


def encode_columns(
    columns, Py_ssize_t first_row, batch_ends, Py_ssize_t size_bytes, int16_t attributes, int64_t append_time_ms
):
    """See `pure_kernels.encode_columns`."""
    cdef _Source source = _Source(*columns)
    cdef const int64_t[::1] stops = batch_ends
    cdef Py_ssize_t batches = stops.shape[0], row = first_row, index
    cdef int reason = SOUND
    cdef uint8_t *at
    cdef uint8_t *limit
    cdef uint8_t[::1] made_
    for index in range(batches):
        if not 0 <= row < stops[index] <= source.rows:
            attempt = "cannot encode columns, the batch ends do not ascend within the rows"
            raise InvalidRequest(attempt, batch=index, rows=source.rows)
        row = stops[index]
    if not batches or size_bytes <= 0:
        raise InvalidRequest("cannot encode columns, there are no batches", batches=batches, size_bytes=size_bytes)
    made = np.empty(size_bytes, np.uint8)
    made_ = made
    at, limit = &made_[0], &made_[0] + size_bytes
    row = first_row
    with nogil:
        for index in range(batches):
            # Rows are read and checked again, because another thread may have changed the columns since.
            reason = put_column_batch(&source.at, &row, min(stops[index], source.rows), attributes, append_time_ms, &at, limit)
            if reason:
                break
    if reason:
        raise pure_kernels.wrong_column(reason, row, columns[6])
    if at != limit:
        raise pure_kernels.wrong_column(CHANGED, row, columns[6])
    return made


cdef int put_column_batch(
    const Source *source, Py_ssize_t *next_row, Py_ssize_t stop, int16_t attributes, int64_t append_time_ms,
    uint8_t **out, const uint8_t *limit,
) noexcept nogil:
    """Write one batch of the rows up to `stop`. `next_row` becomes the faulty row, or the next row."""
    cdef Py_ssize_t row = next_row[0], first = row
    cdef int64_t base_ms = source.timestamps[row], max_ms = base_ms, body
    cdef uint8_t *header = out[0]
    cdef uint8_t *to = header + HEADER_BYTES
    cdef Row found
    cdef int reason
    if limit - header < HEADER_BYTES:
        return CHANGED
    while row < stop:
        next_row[0] = row
        reason = read_row(source, row, &found)
        if reason:
            return reason
        max_ms = max(max_ms, found.timestamp)
        body = body_bytes(&found, base_ms, row - first)
        if body + varint_bytes(body) > limit - to:
            return CHANGED
        to = put_varint(to, body)
        to[0] = 0
        to = put_varint(to + 1, wrapping_difference(found.timestamp, base_ms))
        to = put_varint(to, row - first)
        to = put_bytes(to, source.keys, found.key_at, found.key_length)
        to = put_bytes(to, source.values, found.value_at, found.value_length)
        if found.header_bytes:
            memcpy(to, source.headers + found.header_start, found.header_bytes)
            to += found.header_bytes
        else:
            to[0] = 0
            to += 1
        row += 1
    if to - header > INT_MAX:
        return LARGE_BATCH
    next_row[0] = row
    put_header(
        header, to - header, first, 0, attributes, <int32_t>(stop - first), base_ms,
        append_time_ms if attributes & LOG_APPEND_TIME else max_ms, -1, -1, -1,
    )
    out[0] = to
    return SOUND


cdef inline uint8_t *put_bytes(uint8_t *to, const uint8_t *data, int64_t at, int32_t length) noexcept nogil:
    if length < 0:
        to[0] = 1  # zigzag of -1
        return to + 1
    to = put_varint(to, length)
    if length:
        memcpy(to, data + at, length)
    return to + length


def hash_keys(data, starts, lengths):
    """See `pure_kernels.hash_keys`."""
    cdef const uint8_t[::1] view = data
    cdef const int64_t[::1] starts_ = starts
    cdef const int32_t[::1] lengths_ = lengths
    cdef Py_ssize_t length = view.shape[0], rows = starts_.shape[0], row, wrong = -1
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef int32_t size
    cdef int64_t at
    if rows != lengths_.shape[0]:
        raise InvalidRequest("hashing keys, starts and lengths differ", starts=rows, lengths=len(lengths))
    hashes = np.empty(rows, np.uint32)
    cdef uint32_t[::1] hashes_ = hashes
    with nogil:
        for row in range(rows):
            size, at = lengths_[row], starts_[row]
            if size > 0 and (at < 0 or at > length - size):
                wrong = row
                break
            hashes_[row] = murmur2(bytes_ + at, size if size > 0 else 0)
    if wrong >= 0:
        raise InvalidRequest("cannot hash keys, a range is outside the data", start=starts_[wrong], length=lengths_[wrong])
    return hashes


cdef inline uint32_t murmur2(const uint8_t *data, int32_t length) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995u, h = 0x9747B28Cu ^ <uint32_t>length, k
    cdef int32_t at = 0
    while at + 4 <= length:
        k = <uint32_t>data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        k *= m
        k = (k ^ k >> 24) * m
        h = h * m ^ k
        at += 4
    if at < length:
        k = 0
        while length > at:
            length -= 1
            k = k << 8 | data[length]
        h = (h ^ k) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15
