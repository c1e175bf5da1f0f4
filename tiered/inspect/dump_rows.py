"""Batches and records as typed rows, with the names and the order of Kafka's `DumpLogSegments`.

A decoder of keys, values and headers never loses bytes. Bytes that it cannot read (no UTF-8, a number of another width,
invalid JSON) become ``{"base64": "..."}``, which `tiered append --jsonl` accepts. The caller handles null.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import CODEC_BITS, BatchHeader
from local.format.columns import Columns
from local.format.compression import Codec
from local.names import TopicPartition
from local.records.batch_runs import DISORDER, Run

SEQUENCE_MAX = 2**31 - 1
_CONTROL_TYPES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)

# (key, value) of a record in the form to show
DecodeRecord = Callable[[bytes | None, bytes | None], tuple[object, object]]
# Returns a value that msgspec can write as JSON.
Decoder = Callable[[bytes], object]


def utf8(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return undecoded(data)


def undecoded(data: bytes) -> dict[str, str]:
    """Return the form of bytes that a decoder cannot read."""
    return {"base64": base64.b64encode(data).decode()}


def _json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)  # encoded again, because the original may have line breaks
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return undecoded(data)


def _number(form: str) -> Decoder:
    packed = struct.Struct(form)

    def decode(data: bytes) -> object:
        number = packed.unpack(data)[0] if len(data) == packed.size else math.inf
        return number if math.isfinite(number) else undecoded(data)  # JSON has no infinity

    return decode


# Kafka's own decoders and serializers by their plain names; numbers are big-endian.
DECODERS: dict[str, Decoder] = {
    "utf8": utf8,
    "base64": lambda data: base64.b64encode(data).decode(),
    "hex": bytes.hex,
    "json": _json,
    "short": _number(">h"),
    "integer": _number(">i"),
    "long": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
}
ENCODINGS = ("utf8", "base64", "hex")


def encode(text: str, encoding: str) -> bytes:
    """Encode `text` by one of ENCODINGS. Raises InvalidRequest."""
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
        return text.encode("utf-8", "surrogateescape")
    except (ValueError, binascii.Error):
        raise InvalidRequest(
            "cannot decode the key, it is not in this encoding", text=repr(text), encoding=encoding
        ) from None


class BatchRow(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One batch. `position` is None if the bytes come from more than one file."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    partition_leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    position: int | None
    timestamp_type: str
    max_timestamp: int
    size: int
    magic: int
    compresscodec: str
    crc: int
    isvalid: bool


class HeaderRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One header of a record; `value` is the value decoder's result."""

    key: str
    value: Any


class ControlRow(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Content of a control record. `coordinator_epoch` is None if it does not end a transaction."""

    type: str
    coordinator_epoch: int | None


class RecordRow(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One record. Sizes are -1 for null; `control` is None for a user's record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: list[HeaderRow]
    key_size: int
    value_size: int
    sequence: int
    batch: BatchRow
    control: ControlRow | None


def batch_row(run: Run, row: int, *, with_position: bool = True) -> BatchRow:
    """Return one batch of a run."""
    position = run.position + int(run.table.positions[row]) if with_position else None
    return _batch_row(run.table.row(row), position, is_valid=run.damage in (None, DISORDER))


def record_rows(
    columns: Columns,
    partition: TopicPartition,
    decode: DecodeRecord,
    headers: Decoder = utf8,
    *,
    position: int | None = None,
) -> Iterator[RecordRow]:
    """Yield the records of decoded batches; `position` is the file position of `columns.table`."""
    topic, number = partition.topic, partition.partition
    batches: dict[int, tuple[BatchRow, int]] = {}
    ordinals = columns.batch_ordinals.tolist()
    for (offset, timestamp, kind, key, value, fields), row in zip(columns.records(), ordinals, strict=True):
        known = batches.get(row)
        if known is None:
            header = columns.table.row(row)
            at = None if position is None else position + int(columns.table.positions[row])
            known = batches[row] = (_batch_row(header, at, is_valid=True), header.base_offset)
        batch, base_offset = known
        shown_key, shown_value = decode(key, value)
        yield RecordRow(
            topic,
            number,
            offset,
            timestamp,
            int(kind),
            shown_key,
            shown_value,
            [HeaderRow(name, None if body is None else headers(body)) for name, body in fields] if fields else [],
            -1 if key is None else len(key),
            -1 if value is None else len(value),
            sequence_of(batch.base_sequence, offset - base_offset),
            batch,
            _control(key, value) if batch.is_control else None,
        )


def decode_with(key: Decoder, value: Decoder) -> DecodeRecord:
    """Return a decoder of key and value separately; null stays null."""

    def decode(raw_key: bytes | None, raw_value: bytes | None) -> tuple[object, object]:
        return None if raw_key is None else key(raw_key), None if raw_value is None else value(raw_value)

    return decode


def decode_coordinator(
    read: Callable[[bytes | None, bytes | None], tuple[object, object]],
) -> DecodeRecord:
    """Return a decoder by `local.records.coordinator_records`, of other records as text."""

    def decode(key: bytes | None, value: bytes | None) -> tuple[object, object]:
        try:
            return read(key, value)
        except Corrupt:
            return as_text(key, value)

    return decode


def sequence_of(base_sequence: int, delta: int) -> int:
    """Return a record's sequence number; -1 without a producer. After 2^31-1 comes 0."""
    if base_sequence < 0:
        return -1
    return (base_sequence + delta) % (SEQUENCE_MAX + 1)


def _batch_row(header: BatchHeader, position: int | None, *, is_valid: bool) -> BatchRow:
    codec = header.attributes & CODEC_BITS
    return BatchRow(
        header.base_offset,
        header.last_offset,
        header.record_count,
        header.base_sequence,
        sequence_of(header.base_sequence, header.last_offset_delta),
        header.producer_id,
        header.producer_epoch,
        header.leader_epoch,
        header.is_transactional,
        header.is_control,
        header.base_timestamp_ms if header.has_delete_horizon else None,
        position,
        "LogAppendTime" if header.timestamp_type else "CreateTime",
        header.max_timestamp_ms,
        header.size_bytes,
        header.magic,
        Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown({codec})",
        header.crc,
        is_valid,
    )


def _control(key: bytes | None, value: bytes | None) -> ControlRow:
    kind = int.from_bytes(key[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
    name = _CONTROL_TYPES[kind] if 0 <= kind < len(_CONTROL_TYPES) else f"UNKNOWN({kind})"
    is_marker = kind in (0, 1) and value is not None and len(value) >= 6
    return ControlRow(name, int.from_bytes(value[2:6], "big", signed=True) if is_marker and value else None)


as_text = decode_with(utf8, utf8)


class FlatRecord(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A record and the facts of its batch side by side."""

    offset: int
    timestamp: int
    timestamp_type: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: str
    key: str | int | float | bool | None
    value: str | int | float | bool | None
    headers: list[HeaderRow]
    end_txn_marker: str | None
    coordinator_epoch: int | None
    base_offset: int
    position: int | None
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool
    compresscodec: str


def write_jsonl(rows: Iterable[RecordRow]) -> None:
    """Write each record as a line on stdout when it arrives, with its batch in ``batch``."""
    encode = msgspec.json.Encoder().encode
    sys.stdout.flush()
    write = sys.stdout.buffer.write
    for row in rows:
        write(encode(row) + b"\n")


def flat(rows: Iterable[RecordRow]) -> Iterator[FlatRecord]:
    """Yield records with their batch's facts; objects become JSON, undecoded bytes ``base64:...``."""
    for row in rows:
        batch, control = row.batch, row.control
        yield FlatRecord(
            row.offset,
            row.timestamp,
            row.timestamp_type,
            row.key_size,
            row.value_size,
            row.sequence,
            ",".join(each.key for each in row.headers),
            _plain(row.key),
            _plain(row.value),
            row.headers,
            control.type if control is not None else None,
            control.coordinator_epoch if control is not None else None,
            batch.base_offset,
            batch.position,
            batch.partition_leader_epoch,
            batch.producer_id,
            batch.producer_epoch,
            batch.is_transactional,
            batch.is_control,
            batch.compresscodec,
        )


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict) and set(value) == set(undecoded(b"")):
        return f"base64:{value['base64']}"
    return msgspec.json.encode(value).decode()
