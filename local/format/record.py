"""Records as named tuples, cheap enough for a million of them, and their varints."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from local.errors import Corrupt

Header = tuple[str, bytes | None]
INT_BYTES_MAX = 5
LONG_BYTES_MAX = 10


class TimestampType(IntEnum):
    """Bit 3 of a batch's attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """A record to append. A key of None means no key, a value of None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...] = ()


class StoredRecord(NamedTuple):
    """A record read from a log, with its offset."""

    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


# Zigzag varints of records: 7 bits per byte, low bits first; the high bit marks a continuation. ``zigzag(n) = (n << 1)
# ^ (n >> 63)``: 32 bits take at most 5 bytes, 64 bits at most 10. Bits beyond the width are dropped, as in Kafka's
# `ByteUtils`.


def append_varint(out: bytearray, number: int) -> None:
    """Append a signed number of at most 64 bits."""
    rest = (number << 1) ^ (number >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def varint_bytes(number: int) -> int:
    """The number of bytes that `append_varint` appends."""
    return max(1, (((number << 1) ^ (number >> 63)).bit_length() + 6) // 7)


def read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """(a 32-bit number, the position after it). Raises Corrupt if it exceeds `end` or five bytes."""
    return _read(data, at, end, INT_BYTES_MAX, 0xFFFFFFFF)


def read_varlong(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """(a 64-bit number, the position after it). Raises Corrupt if it exceeds `end` or ten bytes."""
    return _read(data, at, end, LONG_BYTES_MAX, 0xFFFFFFFFFFFFFFFF)


def _read(data: memoryview, at: int, end: int, bytes_max: int, mask: int) -> tuple[int, int]:
    raw = 0
    for index in range(min(bytes_max, end - at)):
        byte = data[at + index]
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            raw &= mask
            return raw >> 1 ^ -(raw & 1), at + index + 1
    raise Corrupt("cannot read a varint, it is longer than its field", at=at)
