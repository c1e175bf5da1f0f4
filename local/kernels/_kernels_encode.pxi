# Tuples to batches: the compiled form of `pure_kernels.encode_batch`.
# Included by `_kernels.pyx`.

def encode_records(records):
    """See `pure_kernels.encode_records`."""
    cdef int64_t base_ms, max_ms
    section = encoded(records, 0, &base_ms, &max_ms)
    return section, base_ms, max_ms


def encode_batch(
    records, int64_t base_offset, int32_t leader_epoch, int16_t attributes, int64_t append_time_ms,
    int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
):
    """See `pure_kernels.encode_batch`."""
    cdef int64_t base_ms, max_ms
    cdef bytes batch = encoded(records, HEADER_BYTES, &base_ms, &max_ms)
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(batch)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(batch)
    cdef int32_t count = <int32_t>len(records)
    if attributes & LOG_APPEND_TIME:
        max_ms = append_time_ms
    with nogil:
        put_header(
            at, size, base_offset, leader_epoch, attributes, count, base_ms, max_ms,
            producer_id, producer_epoch, base_sequence,
        )
    return batch


cdef void put_header(
    uint8_t *at, Py_ssize_t size, int64_t base_offset, int32_t leader_epoch, int16_t attributes, int32_t count,
    int64_t base_ms, int64_t max_ms, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
) noexcept nogil:
    """Write the header of the batch at `at`. `size` includes the records, which are already written."""
    store64(at, base_offset)
    store32(at + 8, <uint32_t>(size - LENGTH_OVERHEAD))
    store32(at + 12, <uint32_t>leader_epoch)
    at[16] = 2
    at[21], at[22] = <uint8_t>(attributes >> 8 & 0xFF), <uint8_t>(attributes & 0xFF)
    store32(at + 23, <uint32_t>(count - 1))
    store64(at + 27, base_ms)
    store64(at + 35, max_ms)
    store64(at + 43, producer_id)
    at[51], at[52] = <uint8_t>(producer_epoch >> 8 & 0xFF), <uint8_t>(producer_epoch & 0xFF)
    store32(at + 53, <uint32_t>base_sequence)
    store32(at + 57, <uint32_t>count)
    store32(at + 17, crc32c_update(0, at + CRC_START, size - CRC_START))


cdef bytes encoded(records, Py_ssize_t reserve, int64_t *base_ms, int64_t *max_ms):
    """`reserve` bytes for a header, then the record section."""
    cdef list items = list(records)  # a private copy; its tuples own the bytes we point to
    cdef Py_ssize_t bound
    cdef PyObject *out
    cdef uint8_t *begin
    cdef uint8_t *end
    if not items:
        raise InvalidRequest("cannot encode a batch, it has no records")
    bound = reserve + section_bound(items)
    if bound > INT_MAX:
        # Near the limit the exact size decides; `pure_kernels` computes it.
        section, base_ms[0], max_ms[0] = pure_kernels.encode_records(items)
        return bytes(reserve) + section
    buffer = PyBytes_FromStringAndSize(NULL, bound)
    begin = <uint8_t *>PyBytes_AS_STRING(buffer)
    end = put_records(items, begin + reserve, base_ms, max_ms)
    assert end - begin <= bound
    out = <PyObject *>buffer
    Py_INCREF(buffer)
    buffer = None  # _PyBytes_Resize requires the only reference
    _PyBytes_Resize(&out, end - begin)
    result = <bytes>out
    Py_DECREF(result)
    return result


cdef Py_ssize_t section_bound(list items) except -1:
    """An upper bound of the section's size.

    Records of other types than the plainest are replaced by their normal form.
    """
    cdef Py_ssize_t bound = 0, index, fields, headers
    for index in range(PyList_GET_SIZE(items)):
        record = items[index]
        if type(record) is tuple or type(record) is Record:
            fields = PyTuple_GET_SIZE(record)
            headers = headers_bound(<object>PyTuple_GET_ITEM(record, 3)) if fields == 4 else 0
            if 3 <= fields <= 4 and headers >= 0 and is_plain(record):
                bound += field_bytes(<object>PyTuple_GET_ITEM(record, 0))
                bound += field_bytes(<object>PyTuple_GET_ITEM(record, 1)) + RECORD_OVERHEAD_MAX + headers
                continue
        record = pure_kernels.normal_record(record)
        items[index] = record
        bound += field_bytes(record[0]) + field_bytes(record[1]) + RECORD_OVERHEAD_MAX
        for header_key, header_value in record[3]:
            bound += field_bytes(header_key) + field_bytes(header_value) + 10
    return bound


cdef inline Py_ssize_t headers_bound(object headers) except -2:
    """An upper bound of the headers' size; -1 unless all are plain (str, bytes or None) tuples in a tuple."""
    cdef Py_ssize_t bound = 0, length
    if not PyTuple_CheckExact(headers):
        return -1
    for index in range(PyTuple_GET_SIZE(headers)):
        header = <object>PyTuple_GET_ITEM(headers, index)
        if not PyTuple_CheckExact(header) or PyTuple_GET_SIZE(header) != 2:
            return -1
        key, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
        if not PyUnicode_CheckExact(key) or not (PyBytes_CheckExact(value) or value is None):
            return -1
        try:
            PyUnicode_AsUTF8AndSize(key, &length)
        except UnicodeEncodeError:
            return -1
        bound += length + field_bytes(value) + 10
    return bound


cdef inline int is_plain(object record) except -1:
    """Whether key and value are exactly bytes or None, and the timestamp is exactly an int in range."""
    cdef int overflow = 0
    cdef object key = <object>PyTuple_GET_ITEM(record, 0)
    cdef object value = <object>PyTuple_GET_ITEM(record, 1)
    cdef object timestamp = <object>PyTuple_GET_ITEM(record, 2)
    if not (PyBytes_CheckExact(key) or key is None) or not (PyBytes_CheckExact(value) or value is None):
        return False
    if not PyLong_CheckExact(timestamp):
        return False
    return PyLong_AsLongLongAndOverflow(timestamp, &overflow) >= -1 and not overflow


cdef inline Py_ssize_t field_bytes(object field):
    return 0 if field is None else PyBytes_GET_SIZE(field)


cdef uint8_t *put_records(list items, uint8_t *at, int64_t *base_ms, int64_t *max_ms) except NULL:
    cdef Py_ssize_t index, body
    cdef int64_t timestamp, delta
    cdef int overflow = 0
    cdef object record, key, value
    for index in range(PyList_GET_SIZE(items)):
        record = <object>PyList_GET_ITEM(items, index)
        key, value = <object>PyTuple_GET_ITEM(record, 0), <object>PyTuple_GET_ITEM(record, 1)
        timestamp = PyLong_AsLongLongAndOverflow(<object>PyTuple_GET_ITEM(record, 2), &overflow)
        if index == 0:
            base_ms[0] = max_ms[0] = timestamp
        elif timestamp > max_ms[0]:
            max_ms[0] = timestamp
        delta = wrapping_difference(timestamp, base_ms[0])
        body = 1 + varint_bytes(delta) + varint_bytes(index) + field_size(key) + field_size(value)
        if PyTuple_GET_SIZE(record) == 4:
            body += headers_size(<object>PyTuple_GET_ITEM(record, 3))
        else:
            body += 1
        at = put_varint(at, body)
        at[0] = 0
        at = put_varint(at + 1, delta)
        at = put_varint(at, index)
        at = put_field(put_field(at, key), value)
        if PyTuple_GET_SIZE(record) == 4:
            at = put_headers(at, <object>PyTuple_GET_ITEM(record, 3))
        else:
            at[0] = 0
            at += 1
    return at


cdef inline Py_ssize_t field_size(object field):
    return 1 if field is None else varint_bytes(PyBytes_GET_SIZE(field)) + PyBytes_GET_SIZE(field)


cdef Py_ssize_t headers_size(object headers) except -1:
    """The size of a tuple of (str, bytes or None), or of `normal_record`'s list of (bytes, bytes or None)."""
    cdef Py_ssize_t size = varint_bytes(len(headers)), length
    for header in headers:
        key, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
        if PyUnicode_CheckExact(key):
            PyUnicode_AsUTF8AndSize(key, &length)
            size += varint_bytes(length) + length
        else:
            size += field_size(key)
        size += field_size(value)
    return size


cdef uint8_t *put_headers(uint8_t *at, object headers) except NULL:
    cdef const char *text
    cdef Py_ssize_t length
    at = put_varint(at, len(headers))
    for header in headers:
        key, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
        if PyUnicode_CheckExact(key):
            text = PyUnicode_AsUTF8AndSize(key, &length)
            at = put_varint(at, length)
            memcpy(at, text, length)
            at = put_field(at + length, value)
        else:
            at = put_field(put_field(at, key), value)
    return at


cdef inline uint8_t *put_field(uint8_t *at, object field):
    cdef Py_ssize_t length
    if field is None:
        at[0] = 1  # zigzag of -1
        return at + 1
    length = PyBytes_GET_SIZE(field)
    at = put_varint(at, length)
    memcpy(at, PyBytes_AS_STRING(field), length)
    return at + length
