# Big-endian integers, varints and zigzag. Reads check bounds; writes do not, the caller reserves the space.
# Included by `_kernels.pyx`.

cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline int64_t load64(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t>load32(at) << 32 | load32(at + 4))


cdef inline void store32(uint8_t *at, uint32_t number) noexcept nogil:
    at[0], at[1], at[2], at[3] = number >> 24, number >> 16 & 0xFF, number >> 8 & 0xFF, number & 0xFF


cdef inline void store64(uint8_t *at, int64_t number) noexcept nogil:
    store32(at, <uint32_t>(<uint64_t>number >> 32))
    store32(at + 4, <uint32_t>(<uint64_t>number & 0xFFFFFFFFu))


cdef inline Py_ssize_t read_int(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int32_t *out) noexcept nogil:
    """The position after a 32-bit varint; -1 if it exceeds `end` or five bytes."""
    cdef uint64_t raw
    if at < end and data[at] < 0x80:
        raw = data[at]
        out[0] = <int32_t>(raw >> 1) ^ -<int32_t>(raw & 1)
        return at + 1
    at = read_raw(data, at, end, 5, &raw)
    raw &= 0xFFFFFFFFu
    out[0] = <int32_t>(<uint32_t>(raw >> 1) ^ (0 - <uint32_t>(raw & 1)))
    return at


cdef inline Py_ssize_t read_long(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int64_t *out) noexcept nogil:
    """The position after a 64-bit varint; -1 if it exceeds `end` or ten bytes."""
    cdef uint64_t raw
    if at < end and data[at] < 0x80:
        raw = data[at]
        at += 1
    else:
        at = read_raw(data, at, end, 10, &raw)
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return at


cdef Py_ssize_t read_raw(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t end, int bytes_max, uint64_t *out
) noexcept nogil:
    cdef int index
    cdef uint8_t byte
    out[0] = 0
    for index in range(bytes_max):
        if at >= end:
            return -1
        byte = data[at]
        at += 1
        out[0] |= <uint64_t>(byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return at
    return -1


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline int varint_bytes(int64_t number) noexcept nogil:
    return (TIERED_BITS(zigzag(number)) + 6) // 7


cdef inline uint8_t *put_varint(uint8_t *at, int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    while rest > 0x7F:
        at[0] = <uint8_t>(rest | 0x80)
        at += 1
        rest >>= 7
    at[0] = <uint8_t>rest
    return at + 1
