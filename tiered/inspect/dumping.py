"""Content of a segment, damaged or not, as typed rows: the library of ``tiered dump``.

Rows have the names and the order of Kafka's `DumpLogSegments`. Memory is one run of batches. Unreadable content is
reported at the end (`LogDump.problem`). A batch with a wrong checksum has `isvalid` false and is not decoded.

A decoder never loses bytes: unreadable ones become ``{"base64": "..."}``, as for `tiered append --jsonl`; no null.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import CODEC_BITS
from local.format.columns import BatchTable, Columns
from local.format.compression import Codec
from local.log.producer_state import sequence_after
from local.names import TopicPartition
from local.records.batch_runs import DISORDER, BatchRuns, Run
from tiered.inspect.dump_sources import FileSource, StoredSegment
from tiered.inspect.hex_fields import HexField, batch_fields

NOWHERE = TopicPartition("-", 0)
PAIRS_MAX = 10
_CONTROL_TYPES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)

Decoder = Callable[[bytes], object]  # returns a value that msgspec can write as JSON
DecodeRecord = Callable[[bytes | None, bytes | None], tuple[object, object]]  # of key and value


def utf8(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return undecoded(data)


def undecoded(data: bytes) -> dict[str, str]:
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


def encode(text: str, encoding: str) -> bytes:
    """Encode `text`, which is ``hex``, ``base64`` or ``utf8``. Raises InvalidRequest."""
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


def decode_with(key: Decoder, value: Decoder) -> DecodeRecord:
    def decode(raw_key: bytes | None, raw_value: bytes | None) -> tuple[object, object]:
        return None if raw_key is None else key(raw_key), None if raw_value is None else value(raw_value)

    return decode


as_text = decode_with(utf8, utf8)


def decode_coordinator(read: DecodeRecord) -> DecodeRecord:
    """Return a decoder by `tiered.serve.groups.coordinator_records`, of other records as text."""

    def decode(key: bytes | None, value: bytes | None) -> tuple[object, object]:
        try:
            return read(key, value)
        except Corrupt:
            return as_text(key, value)

    return decode


def sequence_of(base_sequence: int, delta: int) -> int:
    """Return a record's sequence number; -1 without a producer. After 2^31-1 comes 0."""
    return -1 if base_sequence < 0 else sequence_after(base_sequence, delta)


def _batch_row(table: BatchTable, row: int, position: int | None, *, is_valid: bool = True) -> BatchRow:
    header = table.row(row)
    codec = header.attributes & CODEC_BITS
    return BatchRow(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        count=header.record_count,
        base_sequence=header.base_sequence,
        last_sequence=sequence_of(header.base_sequence, header.last_offset_delta),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        partition_leader_epoch=header.leader_epoch,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        delete_horizon_ms=header.base_timestamp_ms if header.has_delete_horizon else None,
        position=None if position is None else position + int(table.positions[row]),
        timestamp_type="LogAppendTime" if header.timestamp_type else "CreateTime",
        max_timestamp=header.max_timestamp_ms,
        size=header.size_bytes,
        magic=header.magic,
        compresscodec=Codec(codec).name.lower() if codec <= Codec.ZSTD else f"unknown({codec})",
        crc=header.crc,
        isvalid=is_valid,
    )


def _control(key: bytes | None, value: bytes | None) -> ControlRow:
    kind = int.from_bytes(key[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
    name = _CONTROL_TYPES[kind] if 0 <= kind < len(_CONTROL_TYPES) else f"UNKNOWN({kind})"
    is_marker = kind in (0, 1) and value is not None and len(value) >= 6
    return ControlRow(name, int.from_bytes(value[2:6], "big", signed=True) if is_marker and value else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Offsets in ``[from_offset, to_offset)``, timestamps in ``[since_ms, until_ms)``, and the key or its prefix."""

    from_offset: int | None = None
    to_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: bytes | None = None
    is_key_prefix: bool = False

    @property
    def needs_records(self) -> bool:
        return self.key is not None or self.since_ms is not None or self.until_ms is not None

    def batches(self, table: BatchTable) -> NDArray[np.bool_]:
        in_range = _within(table.last_offsets, self.from_offset, None) & _within(
            table.base_offsets, None, self.to_offset
        )
        return in_range & _within(table.max_timestamps, self.since_ms, None)

    def records(self, columns: Columns) -> NDArray[np.bool_]:
        mask = _within(columns.offsets, self.from_offset, self.to_offset)
        mask &= _within(columns.timestamps, self.since_ms, self.until_ms)
        return mask if self.key is None else mask & _has_key(columns, mask, self.key, self.is_key_prefix)


def _within(values: NDArray[np.int64], start: int | None, end: int | None) -> NDArray[np.bool_]:
    mask = np.ones(len(values), np.bool_)
    if start is not None:
        mask &= values >= start
    if end is not None:
        mask &= values < end
    return mask


EVERYTHING = Filter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoders:
    record: DecodeRecord = as_text
    header: Decoder = utf8


class _Step(NamedTuple):
    """`rows` of a run to show, their matching records, and the record count of each (None: not decoded or damaged)."""

    run: Run
    rows: list[int]
    columns: Columns | None = None
    counts: list[int] | None = None


class LogDump:
    """The batches and records of a segment, or of a partition. Iterate once, then read the attributes.

    `problem` is the first problem, at byte `at`, or None. `is_torn`: the bytes end inside a batch, without other
    damage. `invalid_bytes` follow the last valid batch. Only without a filter, `gaps` counts records that do not follow
    the record before them, as after compaction, and `first_gaps` has the first few as (offset, next offset).
    """

    def __init__(
        self,
        walks: Iterable[BatchRuns],
        partition: TopicPartition | None = None,
        selection: Filter = EVERYTHING,
        decoders: Decoders | None = None,
        *,
        with_position: bool = True,
    ) -> None:
        """`walks` are the pieces of the log in order; positions are relative to the current piece."""
        self.partition = partition or NOWHERE
        self.problem: str | None = None
        self.is_torn = False
        self.at = self.invalid_bytes = self.gaps = 0
        self.first_gaps: list[tuple[int, int]] = []
        self._walks, self._selection, self._decoders = walks, selection, decoders or Decoders()
        self._with_position = with_position
        self._last_offset: int | None = None

    @classmethod
    def of_file(
        cls, source: FileSource | StoredSegment, selection: Filter = EVERYTHING, decoders: Decoders | None = None
    ) -> LogDump:
        """Dump a segment; positions are bytes of the segment, which for a compressed object are not of the object."""
        return cls(source.walks(), source.partition, selection, decoders)

    @classmethod
    def of_batches(
        cls, runs: Iterable[memoryview], partition: TopicPartition, selection: Filter, decoders: Decoders
    ) -> LogDump:
        walks = (BatchRuns(lambda start, length, run=run: run[start : start + length], len(run)) for run in runs)  # type: ignore[misc]
        return cls(walks, partition, selection, decoders, with_position=False)

    def batches(self) -> Iterator[BatchRow]:
        for step in self._steps(decodes=self._selection.needs_records):
            yield from (self._row(step.run, row) for row in step.rows)

    def hex_batches(self, *, with_records: bool = True) -> Iterator[tuple[BatchRow, Iterator[HexField]]]:
        """Yield each batch and its bytes, field by field, up to a damage, which `problem` describes."""
        for step in self._steps(decodes=self._selection.needs_records):
            yield from ((self._row(step.run, row), self._fields(step.run, row, with_records)) for row in step.rows)

    def records(self, *, with_control: bool = True) -> Iterator[RecordRow]:
        for step in self._steps(decodes=True, with_control=with_control):
            yield from self._records(step)

    def batches_and_records(self) -> Iterator[BatchRow | RecordRow]:
        for step in self._steps(decodes=True):
            records = self._records(step)
            for row, count in zip(step.rows, step.counts or [0] * len(step.rows), strict=True):
                yield self._row(step.run, row)
                yield from islice(records, count)

    def _steps(self, *, decodes: bool, with_control: bool = True) -> Iterator[_Step]:
        for run in self._runs():
            mask = self._selection.batches(run.table)
            if not decodes or not run.is_readable or not mask.any():
                yield _Step(run, np.flatnonzero(mask).tolist())
                continue
            for first, columns in self._decoded(run, with_control=with_control):
                if columns is None:
                    yield _Step(run, [first] if mask[first] else [])
                    continue
                if self._selection == EVERYTHING:
                    self._count_gaps(columns)
                    matching = columns
                else:
                    matching = columns.select(self._selection.records(columns))
                counts = np.bincount(matching.batch_ordinals, minlength=len(columns.table))
                may_match = mask[first : first + len(counts)] & (not self._selection.needs_records)
                shown = np.flatnonzero((counts > 0) | may_match)
                yield _Step(run, (first + shown).tolist(), matching, counts[shown].tolist())

    def _row(self, run: Run, row: int) -> BatchRow:
        is_valid = run.damage in (None, DISORDER)
        return _batch_row(run.table, row, run.position if self._with_position else None, is_valid=is_valid)

    def _fields(self, run: Run, row: int, with_records: bool) -> Iterator[HexField]:
        at, size = int(run.table.positions[row]), int(run.table.sizes[row])
        position = run.position + at
        try:
            batch = run.data[at : at + size]
            yield from batch_fields(batch, position if self._with_position else 0, with_records=with_records)
        except Corrupt as error:
            self._note(error.attempt, position)

    def _runs(self) -> Iterator[Run]:
        for walk in self._walks:
            for run in walk:
                if run.damage is not None:
                    self._note(run.damage, run.position)
                yield run
            self.invalid_bytes = walk.size_bytes - walk.position
            self.is_torn = walk.is_torn and self.problem is None
            if walk.problem is not None:
                self._note(walk.problem, walk.position)
                return

    def _decoded(self, run: Run, *, with_control: bool) -> Iterator[tuple[int, Columns | None]]:
        """Yield decoded steps of the run as (first row, columns); None as columns for a batch with a problem."""
        done = 0
        try:
            for columns in kernels.decode_in_steps(
                run.data, verify=False, include_control=with_control, table=run.table
            ):
                yield done, columns
                done += len(columns.table)
        except Corrupt:
            for row in range(done, len(run.table)):
                yield row, self._one(run, row, with_control=with_control)

    def _one(self, run: Run, row: int, *, with_control: bool) -> Columns | None:
        table = run.table.select(slice(row, row + 1))
        try:
            return kernels.decode_columns(run.data, verify=False, include_control=with_control, table=table)
        except Corrupt as error:
            self._note(error.attempt, run.position + int(table.positions[0]))
            return None

    def _records(self, step: _Step) -> Iterator[RecordRow]:
        if (columns := step.columns) is None:
            return
        position = step.run.position if self._with_position else None
        topic, partition, decoders = self.partition.topic, self.partition.partition, self._decoders
        batches: dict[int, BatchRow] = {}
        ordinals = columns.batch_ordinals.tolist()
        for (offset, timestamp, kind, key, value, fields), row in zip(columns.records(), ordinals, strict=True):
            if (batch := batches.get(row)) is None:
                batch = batches[row] = _batch_row(columns.table, row, position)
            shown_key, shown_value = decoders.record(key, value)
            headers = [HeaderRow(name, None if body is None else decoders.header(body)) for name, body in fields]
            yield RecordRow(
                topic,
                partition,
                offset,
                timestamp,
                int(kind),
                shown_key,
                shown_value,
                headers,
                -1 if key is None else len(key),
                -1 if value is None else len(value),
                sequence_of(batch.base_sequence, offset - batch.base_offset),
                batch,
                _control(key, value) if batch.is_control else None,
            )

    def _count_gaps(self, columns: Columns) -> None:
        if not len(columns):
            return
        before = columns.offsets[0] - 1 if self._last_offset is None else self._last_offset
        offsets = np.concatenate(([before], columns.offsets))
        gaps = np.flatnonzero(np.diff(offsets) != 1)
        self.gaps += len(gaps)
        for at in gaps[: PAIRS_MAX - len(self.first_gaps)].tolist():
            self.first_gaps.append((int(offsets[at]), int(offsets[at + 1])))
        self._last_offset = int(offsets[-1])

    def _note(self, problem: str, at: int) -> None:
        if self.problem is None:
            self.problem, self.at = problem, at


def _has_key(columns: Columns, mask: NDArray[np.bool_], key: bytes, is_prefix: bool) -> NDArray[np.bool_]:
    lengths = columns.key_lengths
    mask = mask & ((lengths >= len(key)) if is_prefix else (lengths == len(key)))
    wanted = np.frombuffer(key, np.uint8)
    data = np.frombuffer(columns.data, np.uint8)
    places = np.flatnonzero(mask)
    for at, byte in enumerate(wanted.tolist()):
        # Byte by byte, so that the first bytes leave few records for the others.
        places = places[data[columns.key_starts[places] + at] == byte]
    found = np.zeros(len(columns), np.bool_)
    found[places] = True
    return found
