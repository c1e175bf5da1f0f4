"""Batches and records byte by byte: each field with position, bytes, Kafka's name and value.

Positions of a batch's own bytes are positions in the file (in the batch if there is no file). The records of a
compressed batch are shown after decompression, with positions in the decompressed bytes. Of a compressed message of
format 0 or 1, which wraps a set of messages, the wrapper is shown.

Bytes that contradict the format end their batch: its remaining bytes become a field ``damaged``, then Corrupt is
raised.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from local.errors import Corrupt
from local.format import legacy
from local.format.batch_header import (
    CODEC_BITS,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
)
from local.format.compression import INFLATED_BYTES_MAX, Codec, decompress
from local.format.crc32c import crc32c
from local.format.record import read_varint, read_varlong

Say = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class HexField:
    """A field: `data` at byte `at` of the file or, if `is_inflated`, of the decompressed records.

    `depth` is 0 for a field of a batch, 1 of a record, 2 of a record's header.
    """

    at: int
    data: bytes
    name: str
    value: str
    depth: int = 0
    is_inflated: bool = False


def batch_fields(batch: memoryview, position: int, *, with_records: bool = True) -> Iterator[HexField]:
    """Yield the fields of one whole batch, of any format. Raises Corrupt, see the module text."""
    cursor = _Cursor(batch, 0, len(batch), position)
    if batch[legacy.MAGIC_AT] != MAGIC:
        yield from _to_its_end(cursor, _legacy_fields(cursor, batch))
        return
    found = {}
    for name, size, say in _HEADER:
        field = cursor.take(name, size, partial(say, batch) if say is _crc else say)
        found[name] = int.from_bytes(field.data, "big", signed=True)
        yield field
    if with_records:
        yield from _record_section(batch, found, position)


class _Cursor:
    """Reads field after field of some bytes, from `at` to `end`; `shift` is added to positions."""

    def __init__(self, data: memoryview, at: int, end: int, shift: int, *, is_inflated: bool = False) -> None:
        self._data, self.at, self._end, self._shift = data, at, end, shift
        self._is_inflated = is_inflated

    @property
    def left(self) -> int:
        return self._end - self.at

    def bytes(self, name: str, size: int, depth: int, value: str | None = None) -> HexField:
        """Read the next `size` bytes. Raises Corrupt if there are fewer, or `size` is below zero."""
        if not 0 <= size <= self.left:
            raise Corrupt(f"cannot read a batch, {name} exceeds its end", at=self._shift + self.at, bytes=size)
        data = bytes(self._data[self.at : self.at + size])
        field = HexField(
            self._shift + self.at, data, name, text_of(data) if value is None else value, depth, self._is_inflated
        )
        self.at += size
        return field

    def take(self, name: str, size: int, say: Say = str, depth: int = 0) -> HexField:
        """Read the next number of `size` bytes."""
        field = self.bytes(name, size, depth, "")
        return HexField(
            field.at, field.data, name, say(int.from_bytes(field.data, "big", signed=True)), depth, self._is_inflated
        )

    def varint(self, name: str, depth: int, say: Say = str, *, is_long: bool = False) -> tuple[HexField, int]:
        """Read the next varint; return its field and the number. Raises Corrupt."""
        number, end = (read_varlong if is_long else read_varint)(self._data, self.at, self._end)
        return self.bytes(name, end - self.at, depth, say(number)), number

    def rest(self) -> HexField:
        return self.bytes("damaged", self.left, 0)


def _record_section(batch: memoryview, header: dict[str, int], position: int) -> Iterator[HexField]:
    codec = header["attributes"] & CODEC_BITS
    cursor = _Cursor(batch, HEADER_BYTES, len(batch), position)
    if codec:
        section = batch[HEADER_BYTES:]
        name = Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown codec {codec}"
        yield cursor.bytes("records", len(section), 0, f"{name}, {len(section)} bytes")
        if codec > Codec.ZSTD:
            raise Corrupt("cannot read a batch, the codec is unknown", at=position, codec=codec)
        inflated = decompress(Codec(codec), section, INFLATED_BYTES_MAX)
        cursor = _Cursor(inflated, 0, len(inflated), 0, is_inflated=True)
    yield from _to_its_end(cursor, (field for _ in range(header["recordsCount"]) for field in _record(cursor, header)))


def _to_its_end(cursor: _Cursor, fields: Iterator[HexField]) -> Iterator[HexField]:
    """Yield the fields, then the bytes left after them or after damage as one more field.

    Raises Corrupt if bytes are left.
    """
    try:
        yield from fields
        if cursor.left:
            raise Corrupt("cannot read a batch, bytes follow its last field", bytes=cursor.left)
    except Corrupt:
        if cursor.left:
            yield cursor.rest()
        raise


def _record(cursor: _Cursor, header: dict[str, int]) -> Iterator[HexField]:
    base_ms, base_offset = header["baseTimestamp"], header["baseOffset"]
    field, length = cursor.varint("length", 1)
    yield field
    if not 0 <= length <= cursor.left:
        raise Corrupt("cannot read a record, its length exceeds its batch", at=field.at, length=length)
    end = cursor.at + length
    yield cursor.take("attributes", 1, depth=1)
    yield cursor.varint("timestampDelta", 1, lambda delta: f"{delta}: {_time(base_ms + delta)}", is_long=True)[0]
    yield cursor.varint("offsetDelta", 1, lambda delta: f"{delta}: offset {base_offset + delta}")[0]
    yield from _sized(cursor, "keyLength", "key", 1)
    yield from _sized(cursor, "valueLength", "value", 1)
    field, count = cursor.varint("headersCount", 1)
    yield field
    if count < 0:
        raise Corrupt("cannot read a record, its header count is negative", at=field.at, count=count)
    for _ in range(count):
        yield from _sized(cursor, "headerKeyLength", "headerKey", 2)
        yield from _sized(cursor, "headerValueLength", "headerValue", 2)
    if cursor.at != end:
        raise Corrupt(
            "cannot read a record, it does not end at its declared length", at=field.at, bytes=end - cursor.at
        )


def _sized(cursor: _Cursor, length_name: str, name: str, depth: int) -> Iterator[HexField]:
    field, size = cursor.varint(length_name, depth, _or_null)
    yield field
    if size > 0:
        yield cursor.bytes(name, size, depth)


def _legacy_fields(cursor: _Cursor, batch: memoryview) -> Iterator[HexField]:
    """Yield the fields of one message of format 0 or 1."""
    yield cursor.take("offset", 8)
    yield cursor.take("messageSize", 4)
    yield cursor.take("crc", 4, lambda crc: _checked(crc, legacy.crc_of(batch)))
    magic = batch[legacy.MAGIC_AT]
    yield cursor.take("magic", 1)
    yield cursor.take("attributes", 1, _attributes)
    if magic:
        yield cursor.take("timestamp", 8, lambda at: f"{at}: {_time(at)}")
    for name in ("key", "value"):
        field = cursor.take(f"{name}Length", 4, _or_null)
        yield field
        size = int.from_bytes(field.data, "big", signed=True)
        if size > 0:
            yield cursor.bytes(name, size, 0)


def text_of(data: bytes) -> str:
    """Return printable ASCII unchanged, a dot for every other byte."""
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def _or_null(size: int) -> str:
    return f"{size}: null" if size == -1 else str(size)


def _time(timestamp_ms: int) -> str:
    """Format as RFC 3339; the plain number outside the calendar's years."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stamp(timestamp_ms: int) -> str:
    return f"{timestamp_ms}: {_time(timestamp_ms)}" if timestamp_ms >= 0 else f"{timestamp_ms}: none"


def _attributes(flags: int) -> str:
    codec = flags & CODEC_BITS
    words = [Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown codec {codec}"]
    words.append("LogAppendTime" if flags & LOG_APPEND_TIME else "CreateTime")
    named = ((TRANSACTIONAL, "isTransactional"), (CONTROL, "isControl"), (DELETE_HORIZON, "hasDeleteHorizonMs"))
    words += [name for bit, name in named if flags & bit]
    return f"{flags}: {' '.join(words)}"


def _crc(batch: memoryview, found: int) -> str:
    return _checked(found, crc32c(batch[CRC_START:]))


def _checked(found: int, computed: int) -> str:
    says = found & 0xFFFFFFFF
    return f"{says}: valid" if says == computed else f"{says}: wrong, computed {computed}"


_HEADER: tuple[tuple[str, int, Callable[..., str]], ...] = (
    ("baseOffset", 8, str),
    ("batchLength", 4, str),
    ("partitionLeaderEpoch", 4, str),
    ("magic", 1, str),
    ("crc", 4, _crc),
    ("attributes", 2, _attributes),
    ("lastOffsetDelta", 4, str),
    ("baseTimestamp", 8, _stamp),
    ("maxTimestamp", 8, _stamp),
    ("producerId", 8, str),
    ("producerEpoch", 2, str),
    ("baseSequence", 4, str),
    ("recordsCount", 4, str),
)
assert sum(size for _, size, _ in _HEADER) == HEADER_BYTES == struct.calcsize(">qiibIhiqqqhii")
