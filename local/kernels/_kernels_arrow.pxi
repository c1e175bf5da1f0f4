# Batches to the buffers of Arrow arrays in one pass: checksum, decode, copy. Included by `_kernels.pyx`.
# The twin is `decode_batches` with `gather` (`tiered.spark.source.task.record_batches`), which also raises the errors.

cdef extern from * nogil:
    """
    #include <stdlib.h>
    #if defined(__GLIBC__)
    #include <malloc.h>
    /* Setting a threshold ends its automatic growth. 32 MiB is the largest threshold for mmap that glibc accepts. */
    static int tiered_keep_freed(int bytes) {
        return mallopt(M_MMAP_THRESHOLD, 32 << 20) && mallopt(M_TRIM_THRESHOLD, bytes) && mallopt(M_ARENA_MAX, 1);
    }
    #else
    static int tiered_keep_freed(int bytes) { return 0; }
    #endif
    """
    int tiered_keep_freed(int bytes)


def keep_freed_memory(int size_bytes):
    """Let this process reuse freed memory, up to about `size_bytes`; False where the C library cannot.

    Buffers of megabytes, freed and allocated for every window, else return to the kernel: each reuse is a page fault
    for every 4 KiB, which costs more than checksum, decoding and copy of these bytes.
    """
    return bool(tiered_keep_freed(size_bytes))


cdef enum:
    WANT_KEYS = 1
    WANT_VALUES = 2
    WANT_OFFSETS = 4
    WANT_TIMES = 8
    WANT_TYPES = 16
    WANT_HEADERS = 32
    SLACK_BYTES = 16  # behind keys and values: a short one is copied as 16 bytes

cdef int64_t MS_MAX = 9223372036854775807 // 1000  # of a timestamp in microseconds


# One Arrow binary array: `used` bytes, validity bits that are set at first.
cdef struct Binary:
    int32_t *ends
    uint8_t *data
    uint8_t *valid
    int32_t used
    int32_t nulls


# The buffers to fill; a column that is not wanted has NULL.
cdef struct Arrow:
    Py_ssize_t rows
    Binary keys
    Binary values
    int64_t *offsets
    int64_t *times
    Binary types  # its `ends` are the types
    Binary lists
    Py_ssize_t pairs
    Py_ssize_t pairs_max
    Binary header_keys
    Binary header_values


cdef inline void append_binary(Binary *out, Py_ssize_t row, const uint8_t *at, Py_ssize_t room, int32_t length) noexcept nogil:
    """Append ``at[:length]``, or null for -1. `room` bytes can be read at `at`."""
    if length < 0:
        out.valid[row >> 3] &= ~(<uint8_t>1 << (row & 7))
        out.nulls += 1
    elif length <= SLACK_BYTES and room >= SLACK_BYTES:
        memcpy(out.data + out.used, at, SLACK_BYTES)
        out.used += length
    else:
        memcpy(out.data + out.used, at, length)
        out.used += length
    out.ends[row + 1] = out.used


def arrow_buffers(
    data, table, starts, ends, skipped, Py_ssize_t row, int64_t first_offset, int64_t next_offset, int wanted,
    Py_ssize_t rows_max, int64_t bytes_max, *, bint verify,
):
    """The records of the batches from `row` on, as buffers of Arrow arrays: (next row, records, buffers), or None.

    It takes at least one batch, and further ones up to `rows_max` records or `bytes_max` bytes together. Records outside
    ``[first_offset, next_offset)`` and of batches with a flag in `skipped` are left out; their checksums are compared.
    `buffers` has an entry for each bit of `wanted`, else None: (validity or None, ends, bytes) of keys, the same of
    values, (None, numbers) of offsets, of timestamps in µs and of timestamp types, (validity or None, ends, (number,
    keys, values)) of headers. None: a batch is wrong or above 1 GiB, a time is beyond 2^63 µs, or a header key is not
    ASCII; the twin decodes or raises. Raises InvalidRequest for arrays that do not fit.
    """
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t length = view.shape[0], first_row = row, stop, count = 0, at = 0, end, number
    cdef const uint8_t *bytes_ = &view[0] if length else NULL
    cdef _Table rows = _Table(table)
    cdef const int64_t[::1] starts_ = starts, ends_ = ends
    cdef const uint8_t[::1] skipped_ = skipped
    cdef int64_t total = 0, size, taken = 0
    cdef Arrow out
    cdef Batch batch
    cdef bint is_wrong = False
    if not (starts_.shape[0] == ends_.shape[0] == skipped_.shape[0] == rows.rows) or not 0 <= row < rows.rows:
        raise InvalidRequest("cannot decode batches, sections and batches differ in number", sections=len(starts), rows=rows.rows)
    stop = row
    while stop < rows.rows:
        batch = rows.row(stop)
        size = ends_[stop] - starts_[stop]
        if not 0 <= starts_[stop] <= ends_[stop] <= length or batch.count < 0 or <int64_t>batch.count * RECORD_BYTES_MIN > size:
            return None
        if stop == row:
            if size > INT_MAX // 2:
                return None
        elif count + batch.count > rows_max or total + size > bytes_max:
            break
        count += batch.count
        total += size
        stop += 1
    memset(&out, 0, sizeof(Arrow))
    made = [None] * 9
    if wanted & WANT_KEYS:
        made[0] = new_binary(count, total, &out.keys)
    if wanted & WANT_VALUES:
        made[1] = new_binary(count, total, &out.values)
    if wanted & WANT_OFFSETS:
        made[2] = new_longs(count, &out.offsets)
    if wanted & WANT_TIMES:
        made[3] = new_longs(count, &out.times)
    if wanted & WANT_TYPES:
        made[4] = new_binary(count, 0, &out.types)
    if wanted & WANT_HEADERS:
        out.pairs_max = total // 2  # of two bytes at least
        made[5], made[6] = new_binary(count, 0, &out.lists), new_binary(out.pairs_max, total, &out.header_keys)
        made[7] = new_binary(out.pairs_max, total, &out.header_values)
    with nogil:
        for row in range(first_row, stop):
            batch = rows.row(row)
            if verify and check_crc(bytes_, length, &batch):
                is_wrong = True
                break
            if skipped_[row]:
                continue
            # Read again, and checked again: another thread may have changed the arrays since they gave the sizes.
            number, end = starts_[row], ends_[row]
            if not 0 <= number <= end <= length or batch.count < 0 or batch.count > count - at or end - number > total - taken:
                is_wrong = True
                break
            taken += end - number
            is_wrong = decode_into(bytes_, length, number, end, &batch, first_offset, next_offset, &out)
            if is_wrong:
                break
            at = out.rows
    if is_wrong:
        return None
    buffers = [None] * 6
    if wanted & WANT_KEYS:
        buffers[0] = cut_binary(made[0], &out.keys, at)
    if wanted & WANT_VALUES:
        buffers[1] = cut_binary(made[1], &out.values, at)
    if wanted & WANT_OFFSETS:
        buffers[2] = None, made[2][:at]
    if wanted & WANT_TIMES:
        buffers[3] = None, made[3][:at]
    if wanted & WANT_TYPES:
        buffers[4] = None, made[4][1][:at]
    if wanted & WANT_HEADERS:
        headers = cut_binary(made[6], &out.header_keys, out.pairs), cut_binary(made[7], &out.header_values, out.pairs)
        buffers[5] = *cut_binary(made[5], &out.lists, at)[:2], (out.pairs, *headers)
    return stop, at, buffers


cdef bint decode_into(
    const uint8_t *data, Py_ssize_t length, Py_ssize_t position, Py_ssize_t end, Batch *batch, int64_t first_offset,
    int64_t next_offset, Arrow *out,
) noexcept nogil:
    """Append one batch's records to the buffers, which have room for them; whether the batch is wrong."""
    cdef PlainRecord record
    cdef Py_ssize_t row = out.rows
    cdef int64_t last_delta = -1, offset, time_ms
    cdef bint is_append_time = (batch.bits & LOG_APPEND_TIME) != 0
    cdef int32_t i
    for i in range(batch.count):
        if read_record(data, position, end, &record):
            return True
        if record.offset_delta <= last_delta or record.offset_delta > batch.last_delta:
            return True
        position, last_delta = record.end, record.offset_delta
        offset = batch.base_offset + record.offset_delta
        if offset < first_offset or offset >= next_offset:
            continue
        if out.keys.ends != NULL:
            append_binary(&out.keys, row, data + record.key_start, length - record.key_start, record.key_length)
        if out.values.ends != NULL:
            append_binary(&out.values, row, data + record.value_start, length - record.value_start, record.value_length)
        if out.offsets != NULL:
            out.offsets[row] = offset
        if out.times != NULL:
            time_ms = batch.max_ms if is_append_time else wrapping_sum(batch.base_ms, record.time_delta)
            if time_ms > MS_MAX or time_ms < -MS_MAX:
                return True
            out.times[row] = time_ms * 1000
        if out.types.ends != NULL:
            out.types.ends[row] = is_append_time
        if out.lists.ends != NULL and append_headers(out, row, data, record.header_start, record.end, record.header_count):
            return True
        row += 1
    out.rows = row
    return position != end


cdef bint append_headers(
    Arrow *out, Py_ssize_t row, const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int32_t count
) noexcept nogil:
    """Append a record's headers, whose `count` is read at `at`; whether they are wrong or a key is not ASCII."""
    cdef int32_t length, told, i
    cdef Py_ssize_t start
    at = read_int(data, at, end, &told)
    if at < 0 or told != count or count > out.pairs_max - out.pairs:
        return True
    if not count:
        out.lists.valid[row >> 3] &= ~(<uint8_t>1 << (row & 7))
        out.lists.nulls += 1
    for i in range(count):
        at = read_int(data, at, end, &length)
        if at < 0 or length < 0 or length > end - at:
            return True
        for start in range(at, at + length):
            if data[start] & 0x80:
                return True
        append_binary(&out.header_keys, out.pairs, data + at, end - at, length)
        at = read_int(data, at + length, end, &length)
        if at < 0 or length < -1 or length > end - at:
            return True
        append_binary(&out.header_values, out.pairs, data + at, end - at, length)
        at += max(length, 0)
        out.pairs += 1
    out.lists.ends[row + 1] = <int32_t>out.pairs
    return False


cdef tuple new_binary(Py_ssize_t rows, int64_t size_bytes, Binary *out):
    cdef uint8_t[::1] valid_, data_
    cdef int32_t[::1] ends_
    valid, ends = np.empty((rows + 7) // 8 + 1, np.uint8), np.empty(rows + 1, np.int32)
    data = np.empty(size_bytes + SLACK_BYTES, np.uint8)
    valid_, ends_, data_ = valid, ends, data
    out.valid, out.ends, out.data = &valid_[0], &ends_[0], &data_[0]
    memset(out.valid, 255, (rows + 7) // 8 + 1)
    out.used = out.nulls = out.ends[0] = 0
    return valid, ends, data


cdef tuple cut_binary(tuple made, Binary *out, Py_ssize_t rows):
    valid, ends, data = made
    return valid[: (rows + 7) // 8] if out.nulls else None, ends[: rows + 1], data[: out.used]


cdef object new_longs(Py_ssize_t rows, int64_t **out):
    cdef int64_t[::1] longs
    made = np.empty(max(rows, 1), np.int64)
    longs = made
    out[0] = &longs[0]
    return made


ARROW_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")  # in the order of the bits


def arrow_batch(
    data, table, starts, ends, skipped, row, first_offset, next_offset, fields, constants, rows_max, bytes_max, *, verify
):
    """(next row, the records of `arrow_buffers` in `pyarrow.RecordBatch`es), or None as there.

    `fields` has the Arrow types of the columns by name: ARROW_COLUMNS, or columns of one value from `constants`.
    """
    import pyarrow as pa
    wanted = sum(1 << ARROW_COLUMNS.index(name) for name in fields if name not in constants)
    made = arrow_buffers(
        data, table, starts, ends, skipped, row, first_offset, next_offset, wanted, rows_max, bytes_max, verify=verify
    )
    if made is None:
        return None
    row, count, buffers = made
    arrays = {
        name: arrow_array(kind, count, buffers[ARROW_COLUMNS.index(name)])
        for name, kind in fields.items()
        if name not in constants
    }
    size = sum(each.nbytes for each in arrays.values())
    pieces = max(-(-count // rows_max), size // (2 * bytes_max), 1)  # more than one of a batch above a limit
    rows, schema = max(-(-count // pieces), 1), pa.schema(fields)
    batches = []
    for at in range(0, count, rows):
        length = min(rows, count - at)  # at most `rows_max`: constants for all of a huge batch would be gigabytes
        columns = [
            arrays[name].slice(at, length)
            if name in arrays
            else constant_array(kind, constants[name], 1 << length.bit_length()).slice(0, length)
            for name, kind in fields.items()
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return row, batches


@lru_cache(8)
def constant_array(kind, value, int count):
    """`value`, text or a number, `count` times; `pyarrow.scalar` would import pandas into every worker (0.25 s)."""
    if not isinstance(value, str):
        return arrow_array(kind, count, (None, np.full(count, value, np.int32)))
    word = value.encode()
    return arrow_array(kind, count, (None, np.arange(count + 1, dtype=np.int32) * np.int32(len(word)), word * count))


def arrow_array(kind, count, parts):
    """An array on the memory of `parts`, without a copy; of headers the last part has the number, keys and values."""
    import pyarrow as pa
    children = None
    if pa.types.is_list(kind):
        *parts, (pairs, keys, values) = parts
        of = kind.value_type
        flat = [arrow_array(of.field(0).type, pairs, keys), arrow_array(of.field(1).type, pairs, values)]
        children = [pa.StructArray.from_arrays(flat, fields=list(of))]
    buffers = [None if part is None else pa.py_buffer(memoryview(part)) for part in parts]
    return pa.Array.from_buffers(kind, count, buffers, children=children)
