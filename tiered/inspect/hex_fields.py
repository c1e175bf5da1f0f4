"""Bytes of a batch, field by field, with Kafka's names: the library of ``tiered dump --hex``."""

from __future__ import annotations

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
from tiered.config.units import rfc3339

Show = Callable[[int], str]


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
    """Yield the fields of one whole batch, of any format. Before Corrupt, a field ``damaged`` has the rest."""
    cursor = _Cursor(batch, position)
    if batch[legacy.MAGIC_AT] != MAGIC:
        yield from _to_its_end(cursor, _message(cursor, batch))
        return
    header: dict[str, int] = {}
    crc_text = partial(_checked, crc32c(batch[CRC_START:]))
    for name, size, show in _HEADER:
        field, header[name] = cursor.number(name, size, crc_text if name == "crc" else show)
        yield field
    if not with_records:
        return
    codec = header["attributes"] & CODEC_BITS
    if codec:
        yield cursor.bytes("records", cursor.remaining, value=f"{_codec_name(codec)}, {cursor.remaining} bytes")
        if codec > Codec.ZSTD:
            raise Corrupt("cannot read a batch, the codec is unknown", at=position, codec=codec)
        cursor = _Cursor(decompress(Codec(codec), batch[HEADER_BYTES:], INFLATED_BYTES_MAX), 0, is_inflated=True)
    yield from _to_its_end(cursor, (field for _ in range(header["recordsCount"]) for field in _record(cursor, header)))


class _Cursor:
    def __init__(self, data: memoryview, position: int, *, is_inflated: bool = False) -> None:
        self._data, self._position, self._is_inflated = data, position, is_inflated
        self.at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self.at

    def bytes(self, name: str, size: int, depth: int = 0, *, value: str | None = None) -> HexField:
        """Read the next `size` bytes. Raises Corrupt if there are fewer, or `size` is below zero."""
        if not 0 <= size <= self.remaining:
            raise Corrupt(f"cannot read a batch, {name} exceeds its end", at=self._position + self.at, bytes=size)
        data = bytes(self._data[self.at : self.at + size])
        shown = text_of(data) if value is None else value
        field = HexField(self._position + self.at, data, name, shown, depth, self._is_inflated)
        self.at += size
        return field

    def number(self, name: str, size: int, show: Show = str, depth: int = 0) -> tuple[HexField, int]:
        """Read the next number of `size` bytes; return its field and the number. Raises Corrupt."""
        number = int.from_bytes(self._data[self.at : self.at + size], "big", signed=True)
        return self.bytes(name, size, depth, value=show(number)), number

    def varint(self, name: str, depth: int, show: Show = str, *, is_long: bool = False) -> tuple[HexField, int]:
        number, end = (read_varlong if is_long else read_varint)(self._data, self.at, len(self._data))
        return self.bytes(name, end - self.at, depth, value=show(number)), number


def _to_its_end(cursor: _Cursor, fields: Iterator[HexField]) -> Iterator[HexField]:
    """Yield the fields, then the remaining bytes as one field. Raises Corrupt for damage and for remaining bytes."""
    try:
        yield from fields
        if cursor.remaining:
            raise Corrupt("cannot read a batch, bytes follow its last field", bytes=cursor.remaining)
    except Corrupt:
        if cursor.remaining:
            yield cursor.bytes("damaged", cursor.remaining)
        raise


def _record(cursor: _Cursor, header: dict[str, int]) -> Iterator[HexField]:
    base_ms, base_offset = header["baseTimestamp"], header["baseOffset"]
    field, length = cursor.varint("length", 1)
    yield field
    if not 0 <= length <= cursor.remaining:
        raise Corrupt("cannot read a record, its length exceeds its batch", at=field.at, length=length)
    end = cursor.at + length
    yield cursor.number("attributes", 1, depth=1)[0]
    yield cursor.varint("timestampDelta", 1, lambda delta: f"{delta}: {rfc3339(base_ms + delta)}", is_long=True)[0]
    yield cursor.varint("offsetDelta", 1, lambda delta: f"{delta}: offset {base_offset + delta}")[0]
    for name in ("key", "value"):
        yield from _sized(cursor, name, 1)
    field, count = cursor.varint("headersCount", 1)
    yield field
    if count < 0:
        raise Corrupt("cannot read a record, its header count is negative", at=field.at, count=count)
    for _ in range(count):
        for name in ("headerKey", "headerValue"):
            yield from _sized(cursor, name, 2)
    if cursor.at != end:
        raise Corrupt(
            "cannot read a record, it does not end at its declared length", at=field.at, bytes=end - cursor.at
        )


def _sized(cursor: _Cursor, name: str, depth: int) -> Iterator[HexField]:
    field, size = cursor.varint(f"{name}Length", depth, _or_null)
    yield field
    if size > 0:
        yield cursor.bytes(name, size, depth)


def _message(cursor: _Cursor, batch: memoryview) -> Iterator[HexField]:
    for name, size, show in (
        ("offset", 8, str),
        ("messageSize", 4, str),
        ("crc", 4, partial(_checked, legacy.crc_of(batch))),
        ("magic", 1, str),
        ("attributes", 1, _attributes),
        ("timestamp", 8, lambda at: f"{at}: {rfc3339(at)}"),
    ):
        if name != "timestamp" or batch[legacy.MAGIC_AT]:
            yield cursor.number(name, size, show)[0]
    for name in ("key", "value"):
        field, size = cursor.number(f"{name}Length", 4, _or_null)
        yield field
        if size > 0:
            yield cursor.bytes(name, size)


def text_of(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def _or_null(size: int) -> str:
    return f"{size}: null" if size == -1 else str(size)


def _timestamp(timestamp_ms: int) -> str:
    return f"{timestamp_ms}: {rfc3339(timestamp_ms) if timestamp_ms >= 0 else 'none'}"


def _codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown codec {codec}"


def _attributes(flags: int) -> str:
    kind = "LogAppendTime" if flags & LOG_APPEND_TIME else "CreateTime"
    named = ((TRANSACTIONAL, "isTransactional"), (CONTROL, "isControl"), (DELETE_HORIZON, "hasDeleteHorizonMs"))
    words = [_codec_name(flags & CODEC_BITS), kind, *(name for bit, name in named if flags & bit)]
    return f"{flags}: {' '.join(words)}"


def _checked(computed: int, stored: int) -> str:
    crc = stored & 0xFFFFFFFF
    return f"{crc}: valid" if crc == computed else f"{crc}: wrong, computed {computed}"


_HEADER: tuple[tuple[str, int, Show], ...] = (
    ("baseOffset", 8, str),
    ("batchLength", 4, str),
    ("partitionLeaderEpoch", 4, str),
    ("magic", 1, str),
    ("crc", 4, str),
    ("attributes", 2, _attributes),
    ("lastOffsetDelta", 4, str),
    ("baseTimestamp", 8, _timestamp),
    ("maxTimestamp", 8, _timestamp),
    ("producerId", 8, str),
    ("producerEpoch", 2, str),
    ("baseSequence", 4, str),
    ("recordsCount", 4, str),
)
assert sum(size for _, size, _ in _HEADER) == HEADER_BYTES
