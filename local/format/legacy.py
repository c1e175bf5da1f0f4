"""Message formats 0 and 1, read only: brokers before 0.11 wrote them, current brokers still read them.

| off | size | field      | note                                                                                       |
|-----|------|------------|--------------------------------------------------------------------------------------------|
| 0   | 8    | offset     | of the message; of the last inner one where the message wraps a compressed set             |
| 8   | 4    | size       | bytes after this field, never below 14 (format 0) or 22 (format 1)                         |
| 12  | 4    | crc        | CRC-32 (IEEE, not Castagnoli) of byte 16 to the end                                        |
| 16  | 1    | magic      | 0 or 1, where a batch of format 2 has it                                                   |
| 17  | 1    | attributes | bits 0-2 codec (no zstd), bit 3 log append time (format 1)                                 |
| 18  | 8    | timestamp  | format 1 only; -1 none                                                                     |
|     | 4    | key length | -1 null; the key follows                                                                   |
|     | 4    | value length | -1 null; the value follows and ends the message                                          |

With a codec the message is a wrapper: its value holds inner messages of the same format, compressed together once.

- Offsets of inner messages: format 0 stores the records' own offsets. Format 1 stores offsets relative to the start of
  the set; the wrapper's offset is the offset of the last inner message.
- Timestamps of inner messages are their own. If the wrapper has log append time, its timestamp applies to all.
- An lz4 frame of format 0 has a header checksum that was computed over the wrong bytes. It is not checked.

A rewritten message becomes a batch of format 2 (`kernels`). Sources: kafka `LegacyRecord`, `AbstractLegacyRecordBatch`,
`Lz4BlockInputStream`; KIP-31, KIP-32.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from local.errors import Corrupt
from local.format.compression import Codec, decompress, mended_lz4
from local.format.record import append_record

MAGICS = (0, 1)
MAGIC_AT = 16
_HEAD = struct.Struct(">qiIbB")
_LENGTH_OVERHEAD = 12
_LENGTHS_MIN = (14, 22)  # index is the magic
_BYTES_MAX = 2**31 - 1
_CODEC_BITS = 0x07
_LOG_APPEND_TIME = 0x08
_INT_MAX = 2**31 - 1


class Message(NamedTuple):
    """The fields of one message. Positions are in the buffer it was read from; a length of -1 is null."""

    offset: int
    attributes: int
    timestamp_ms: int
    key_at: int
    key_length: int
    value_at: int
    value_length: int
    end: int


def header_fields(view: memoryview, at: int) -> tuple[int, ...] | None:
    """The `BatchHeader` fields of a message; None if incomplete. Raises Corrupt if its size is too small."""
    if len(view) - at < _HEAD.size:
        return None
    offset, length, crc, magic, attributes = _HEAD.unpack_from(view, at)
    if length < _LENGTHS_MIN[magic]:
        attempt = f"cannot read a message of format {magic}, its length is below {_LENGTHS_MIN[magic]}"
        raise Corrupt(attempt, at=at, length=length)
    if len(view) - at < _LENGTH_OVERHEAD + _LENGTHS_MIN[magic]:
        return None
    timestamp = struct.unpack_from(">q", view, at + _HEAD.size)[0] if magic else -1
    attributes &= _CODEC_BITS | (_LOG_APPEND_TIME if magic else 0)
    return offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1


def size_problem(view: memoryview, at: int) -> str | None:
    """The fault of the declared size of the message at `at`, or None. The magic must be present."""
    length, magic = int.from_bytes(view[at + 8 : at + _LENGTH_OVERHEAD], "big", signed=True), view[at + MAGIC_AT]
    if length < _LENGTHS_MIN[magic]:
        return f"length below {_LENGTHS_MIN[magic]}"
    return "length above 2^31-13" if length > _BYTES_MAX - _LENGTH_OVERHEAD else None


def crc_of(entry: memoryview) -> int:
    """The checksum computed from a whole message."""
    return zlib.crc32(entry[MAGIC_AT:])


def inner_range(entry: memoryview, limit: int) -> tuple[int, int]:
    """(first offset, number of records) of a whole message. Raises Corrupt, also above `limit` decompressed bytes."""
    message = _read(entry, 0, is_inner=False)
    if not message.attributes & _CODEC_BITS:
        return message.offset, 1
    count, first, last = 0, 0, -1
    for inner in _messages(_inflated(entry, message, limit), entry[MAGIC_AT], verify=False):
        first = inner.offset if not count else first
        count, last = count + 1, inner.offset
    return (message.offset - (last - first) if entry[MAGIC_AT] else first), count


def records_of(entry: memoryview, base_ms: int, limit: int, *, verify: bool) -> bytearray:
    """Convert a whole message to a plain section of format 2 records. Raises as `inner_range`.

    Timestamps are relative to `base_ms`. `verify` also checks the checksums of the inner messages.
    """
    message = _read(entry, 0, is_inner=False)
    section = bytearray()
    if not message.attributes & _CODEC_BITS:
        _put_record(section, entry, message, message.timestamp_ms - base_ms, 0)
        return section
    first: int | None = None
    inner_data = _inflated(entry, message, limit)
    for inner in _messages(inner_data, entry[MAGIC_AT], verify=verify):
        first = inner.offset if first is None else first
        if not 0 <= inner.offset - first <= _INT_MAX:
            raise _wrong("offsets do not ascend within the set", offset=inner.offset)
        _put_record(section, inner_data, inner, inner.timestamp_ms - base_ms, inner.offset - first)
    return section


def _inflated(entry: memoryview, wrapper: Message, limit: int) -> memoryview:
    codec = wrapper.attributes & _CODEC_BITS
    if codec > Codec.LZ4:
        raise _wrong("no such codec", attributes=wrapper.attributes)
    if wrapper.value_length < 0:
        raise _wrong("the compressed message set has no value")
    value = entry[wrapper.value_at : wrapper.value_at + wrapper.value_length]
    if codec == Codec.LZ4 and entry[MAGIC_AT] == 0:
        value = mended_lz4(value)
    return decompress(Codec(codec), value, limit)


def _messages(data: memoryview, magic: int, *, verify: bool) -> Iterator[Message]:
    at = 0
    while at < len(data) or not at:
        if len(data) - at < _LENGTH_OVERHEAD + _LENGTHS_MIN[magic]:
            raise _wrong("the message set ends inside a message" if at or len(data) else "an empty set", at=at)
        if data[at + MAGIC_AT] != magic:
            raise _wrong("formats mixed within a set", at=at)
        message = _read(data, at, is_inner=True)
        if verify and crc_of(data[at : message.end]) != int.from_bytes(data[at + 12 : at + 16], "big"):
            raise _wrong("crc of an inner message differs", at=at)
        if message.attributes & _CODEC_BITS:
            raise _wrong("a set within a set", at=at)
        yield message
        at = message.end


def _read(data: memoryview, start: int, *, is_inner: bool) -> Message:
    """The message at byte `start`; `data` must have the minimum bytes of its format from there. Raises Corrupt."""
    offset, length, _crc, magic, attributes = _HEAD.unpack_from(data, start)
    end = start + _LENGTH_OVERHEAD + length
    if length < _LENGTHS_MIN[magic] or end > len(data) or (end != len(data) and not is_inner):
        raise _wrong(
            "its length exceeds the message set" if is_inner else "its length differs from its bytes", at=start
        )
    at = start + _HEAD.size
    timestamp = -1
    if magic:
        (timestamp,) = struct.unpack_from(">q", data, at)
        at += 8
    key_at, key_length, at = _field(data, at, end)
    value_at, value_length, at = _field(data, at, end)
    if at != end:
        raise _wrong("bytes left over", at=start)
    return Message(offset, attributes, timestamp, key_at, key_length, value_at, value_length, end)


def _field(data: memoryview, at: int, end: int) -> tuple[int, int, int]:
    if end - at < 4:
        raise _wrong("a field leaves the message", at=at)
    length = int.from_bytes(data[at : at + 4], "big", signed=True)
    at += 4
    if not -1 <= length <= end - at:
        raise _wrong("a field leaves the message", at=at, length=length)
    return at, length, at + max(length, 0)


def _put_record(section: bytearray, data: memoryview, message: Message, time_delta: int, offset_delta: int) -> None:
    ranges = (message.key_at, message.key_length), (message.value_at, message.value_length)
    key, value = (data[at : at + length] if length >= 0 else None for at, length in ranges)
    append_record(section, time_delta, offset_delta, key, value)


def _wrong(found: str, **facts: object) -> Corrupt:
    return Corrupt(f"cannot read a message of format 0 or 1, {found}", **facts)
