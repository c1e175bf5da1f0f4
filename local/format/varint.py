"""Zigzag varints, as records use them: 7 bits a byte, low group first, the high bit tells that more follow.

``zigzag(n) = (n << 1) ^ (n >> 63)``. At most 5 bytes hold 32 bits and 10 bytes hold 64; bits beyond the width are
dropped, as Kafka's `ByteUtils` drops them.
"""

from __future__ import annotations

from local.errors import Corrupt

INT_BYTES_MAX = 5
LONG_BYTES_MAX = 10


def append_varint(out: bytearray, number: int) -> None:
    """Append a signed number of at most 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def varint_bytes(number: int) -> int:
    """How many bytes `append_varint` would append."""
    return max(1, (((number << 1) ^ (number >> 63)).bit_length() + 6) // 7)


def read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """(a 32-bit number, the position behind it). Raises Corrupt when it runs past `end` or over five bytes."""
    return _read(data, at, end, INT_BYTES_MAX, 0xFFFFFFFF)


def read_varlong(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """(a 64-bit number, the position behind it). Raises Corrupt when it runs past `end` or over ten bytes."""
    return _read(data, at, end, LONG_BYTES_MAX, 0xFFFFFFFFFFFFFFFF)


def _read(data: memoryview, at: int, end: int, bytes_max: int, mask: int) -> tuple[int, int]:
    raw = 0
    for index in range(min(bytes_max, end - at)):
        byte = data[at + index]
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            raw &= mask
            return raw >> 1 ^ -(raw & 1), at + index + 1
    raise Corrupt("reading a varint, it runs past its end", at=at)
