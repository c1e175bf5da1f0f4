"""Results of ``tiered dump`` as JSON, as the lines of Kafka's own tool, and byte by byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from tiered.cli.render import Result, Struct, print_result, write_lines
from tiered.inspect.dump_files import (
    AbortedTransaction,
    CheckpointEntry,
    ChunkEntry,
    EpochEntry,
    OffsetEntry,
    Pair,
    ProducerEntry,
    TimeEntry,
)
from tiered.inspect.dump_rows import BatchRow, FlatRecord

if TYPE_CHECKING:
    from local.names import TopicPartition
    from tiered.inspect.dump_rows import RecordRow
    from tiered.inspect.dumping import HexField


_BYTES = 8  # in a line, so that it fits in 80 columns
_MOMENTS = {"baseTimestamp", "maxTimestamp", "timestamp", "timestampDelta"}
_LINES_MAX = 16  # of one field in the table; other forms have every byte
Batches = Iterable["tuple[BatchRow, Iterable[HexField]]"]
_OPTIONAL = ("currentTxnFirstOffset", "deleteHorizonMs")
MAGIC = 2  # as in `local.format.batch_header`, whose import loads numpy


class DumpedField(Struct, rename="camel"):
    """A field of a batch, byte by byte; `at` is a position in the file or, if `isInflated`, in the inflated bytes."""

    base_offset: int
    position: int | None
    at: int
    is_inflated: bool
    depth: int
    field: str
    bytes: str
    value: str


class _OfLog(Result):
    """Topic and partition are set for a partition, not for a file."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET


class DumpedBatches(_OfLog, kw_only=True):
    """``tiered dump``, ``tiered dump --batches``."""

    batches: list[BatchRow]


class DumpedRecords(_OfLog, kw_only=True):
    """``tiered dump --deep-iteration``."""

    records: list[FlatRecord]


class DumpedBytes(_OfLog, kw_only=True):
    """``tiered dump --hex``."""

    fields: list[DumpedField]


class _OfFile(Result):
    path: str


class DumpedOffsets(_OfFile):
    """``tiered dump`` of an ``.index``."""

    entries: list[OffsetEntry]


class DumpedTimes(_OfFile):
    """``tiered dump`` of a ``.timeindex``."""

    entries: list[TimeEntry]


class DumpedEpochs(_OfFile):
    """``tiered dump`` of a ``leader-epoch-checkpoint``."""

    entries: list[EpochEntry]


class DumpedCheckpoint(_OfFile):
    """``tiered dump`` of a checkpoint of a log directory."""

    entries: list[CheckpointEntry]


class DumpedAborted(_OfFile):
    """``tiered dump`` of a ``.txnindex``."""

    transactions: list[AbortedTransaction]


class DumpedProducers(_OfFile):
    """``tiered dump`` of a ``.snapshot``."""

    producers: list[ProducerEntry]


class DumpedPairs(_OfFile):
    """``tiered dump`` of ``partition.metadata``, ``meta.properties``, ``.kafka_cleanshutdown``."""

    fields: list[Pair]


class DumpedBundle(_OfFile):
    """``tiered dump`` of an ``.indexes`` object; with ``--section`` that one alone."""

    time: list[TimeEntry] | UnsetType = UNSET
    txn: list[AbortedTransaction] | UnsetType = UNSET
    producers: list[ProducerEntry] | UnsetType = UNSET
    epochs: list[EpochEntry] | UnsetType = UNSET
    chunks: list[ChunkEntry] | UnsetType = UNSET
    offset: list[OffsetEntry] | UnsetType = UNSET


class ManifestSegmentSection(msgspec.Struct):
    """A segment's entry, with every other field that it has in the manifest."""

    base_offset: int
    next_offset: int
    size_bytes: int
    data_key: str


class ManifestPendingSection(msgspec.Struct):
    """A pending delete, with every other field that it has in the manifest."""

    key: str
    size_bytes: int
    unlinked_ms: int


class ManifestPageSection(msgspec.Struct):
    """A page of older entries, with every other field that it has in the manifest."""

    base_offset: int
    next_offset: int
    segment_count: int
    key: str


class DumpedManifest(_OfFile, forbid_unknown_fields=False):
    """``tiered dump`` of a manifest, with every other field of docs/reference/formats.md."""

    segments: list[ManifestSegmentSection]
    pending_deletes: list[ManifestPendingSection] | UnsetType = msgspec.field(name="unlinked", default=UNSET)
    pending_page_deletes: list[ManifestPageSection] | UnsetType = msgspec.field(name="unlinked_pages", default=UNSET)
    pages: list[ManifestPageSection] | UnsetType = msgspec.field(name="spills", default=UNSET)


class DumpedManifestSection(_OfFile):
    """``tiered dump --section`` of a manifest, except its segments."""

    pending_deletes: list[ManifestPendingSection] | UnsetType = msgspec.field(name="unlinked", default=UNSET)
    pending_page_deletes: list[ManifestPageSection] | UnsetType = msgspec.field(name="unlinked_pages", default=UNSET)
    pages: list[ManifestPageSection] | UnsetType = msgspec.field(name="spills", default=UNSET)


def print_hex(batches: Batches, title: list[str], output: str, where: Sequence[TopicPartition]) -> None:
    """Print `title` and the fields as a table; other formats have `where` and a row for each field."""
    if output in ("table", "text"):
        write_lines(title)
        write_lines(_lines(batches))
        return
    print_result(DumpedBytes.of(*where, fields=[]), output, rows=_rows(batches))


def _lines(batches: Batches) -> Iterator[str]:
    for row, fields in batches:
        where = "" if row.position is None else f" at {row.position}"
        yield f"batch{where}: offsets {row.base_offset}..{row.last_offset}, {row.size} bytes"
        for field in fields:
            yield from _field_lines(field)


def _field_lines(field: HexField) -> Iterator[str]:
    from tiered.inspect.dumping import text_of

    place = "+" if field.is_inflated else " "
    is_text = field.value == text_of(field.data) and len(field.data) > _BYTES
    for number, at in enumerate(range(0, max(1, len(field.data)), _BYTES)):
        data = field.data[at : at + _BYTES]
        if number == _LINES_MAX:
            yield f"{'':34}{'  ' * field.depth}... {len(field.data) - at} bytes more"
            return
        name = field.name if number == 0 else ""
        value = text_of(data) if is_text else _short(field) if number == 0 else ""
        words = f"{'  ' * field.depth}{name:<{20 - 2 * field.depth}} {value}".rstrip()
        yield f"{place}{field.at + at:08x}  {data.hex(' '):<23} {words}"


def _short(field: HexField) -> str:
    """Format a moment without the number, which the bytes show."""
    return field.value.rpartition(": ")[2] if field.name in _MOMENTS else field.value


def _rows(batches: Batches) -> Iterator[DumpedField]:
    for row, fields in batches:
        for field in fields:
            yield DumpedField.of(row, field, field=field.name, bytes=field.data.hex())


def batch_line(row: BatchRow) -> str:
    """Format a batch; a message of format 0 or 1 has an offset in place of the producer's fields."""
    fields = msgspec.to_builtins(row)
    fields = {row.timestamp_type if name == "maxTimestamp" else name: value for name, value in fields.items()}
    del fields["timestampType"]
    if row.magic < MAGIC:
        names = list(fields)
        fields = {"offset": row.last_offset, **{name: fields[name] for name in names[names.index("position") :]}}
    return entry_line(fields)


def record_line(row: RecordRow, *, with_data: bool) -> str:
    """Format a record; key and payload if requested, and never for a control record."""
    line = (
        f"| offset: {row.offset} {row.batch.timestamp_type}: {row.timestamp} keySize: {row.key_size}"
        f" valueSize: {row.value_size}"
    )
    if row.batch.magic >= MAGIC:
        line += f" sequence: {row.sequence} headerKeys: [{','.join(each.key for each in row.headers)}]"
    if row.control is not None:
        if row.control.coordinator_epoch is None:
            return f"{line} controlType: {row.control.type}"
        return f"{line} endTxnMarker: {row.control.type} coordinatorEpoch: {row.control.coordinator_epoch}"
    if with_data:
        line += "" if row.key is None else f" key: {shown(row.key)}"
        line += "" if row.value is None else f" payload: {shown(row.value)}"
    return line


def lines_of(rows: Iterable[BatchRow | RecordRow], *, with_data: bool) -> Iterator[str]:
    for row in rows:
        yield batch_line(row) if isinstance(row, BatchRow) else record_line(row, with_data=with_data)


def entry_line(row: Mapping[str, object]) -> str:
    """``offset: 5 position: 4096``"""
    texts = {name: _optional(value) if name in _OPTIONAL else value for name, value in row.items()}
    return " ".join(f"{name}: {shown(value)}" for name, value in texts.items() if value is not None)


def shown(value: object) -> str:
    """Format a decoded value on a line; an undecodable one as ``base64:...``."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"base64"}:
        return f"base64:{value['base64']}"
    return msgspec.json.encode(value).decode()


def _optional(value: object) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
