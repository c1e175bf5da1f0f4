"""Records as named tuples, cheap enough for a million of them, and their varints."""

from __future__ import annotations

from collections.abc import Sequence
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


def append_field(out: bytearray, value: bytes | memoryview | None) -> None:
    """Append the length and the bytes of a key or value; -1 for None."""
    append_varint(out, -1 if value is None else len(value))
    out += value or b""


def header_bytes(headers: Sequence[tuple[bytes, bytes | None]]) -> bytearray:
    """The headers of a record: their number, then the keys and values."""
    out = bytearray()
    append_varint(out, len(headers))
    for key, value in headers:
        append_field(out, key)
        append_field(out, value)
    return out


def append_record(
    out: bytearray,
    time_delta: int,
    offset_delta: int,
    key: bytes | memoryview | None,
    value: bytes | memoryview | None,
    headers: bytes | bytearray = b"\0",
) -> None:
    """Append a record (`local.records.batch`); `headers` as in `header_bytes`. The time delta wraps at 64 bits."""
    body = bytearray(b"\0")
    append_varint(body, wrapped(time_delta))
    append_varint(body, offset_delta)
    append_field(body, key)
    append_field(body, value)
    body += headers
    append_varint(out, len(body))
    out += body


def wrapped(number: int) -> int:
    """The number reduced to signed 64 bits, as in a Java sum."""
    return (number + 2**63) % 2**64 - 2**63


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
