"""Content of a segment, damaged or not, as typed rows or byte by byte: the library of ``tiered dump``.

Memory is one run of batches. Unreadable content is reported at the end (`problem`), after all readable rows. A batch
with a wrong checksum has `isvalid` false and is not decoded; the rows after it follow.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from local import kernels
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
from local.format.columns import BatchTable, Columns
from local.format.compression import INFLATED_BYTES_MAX, Codec, decompress
from local.format.crc32c import crc32c
from local.format.record import read_varint, read_varlong
from local.names import TopicPartition
from local.records.batch_runs import BatchRuns, Run
from tiered.inspect.dump_rows import (
    BatchRow,
    Decoder,
    DecodeRecord,
    RecordRow,
    as_text,
    batch_row,
    record_rows,
    utf8,
)
from tiered.inspect.dump_sources import FileSource, StoredSegment

NOWHERE = TopicPartition("-", 0)
PAIRS_MAX = 10
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
    """Yield the fields of one whole batch, of any format; a field ``damaged`` has the rest before Corrupt."""
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
    def remaining(self) -> int:
        return self._end - self.at

    def bytes(self, name: str, size: int, depth: int, value: str | None = None) -> HexField:
        """Read the next `size` bytes. Raises Corrupt if there are fewer, or `size` is below zero."""
        if not 0 <= size <= self.remaining:
            raise Corrupt(f"cannot read a batch, {name} exceeds its end", at=self._shift + self.at, bytes=size)
        data = bytes(self._data[self.at : self.at + size])
        field = HexField(
            self._shift + self.at, data, name, text_of(data) if value is None else value, depth, self._is_inflated
        )
        self.at += size
        return field

    def take(self, name: str, size: int, say: Say = str, depth: int = 0) -> HexField:
        field = self.bytes(name, size, depth, "")
        return HexField(
            field.at, field.data, name, say(int.from_bytes(field.data, "big", signed=True)), depth, self._is_inflated
        )

    def varint(self, name: str, depth: int, say: Say = str, *, is_long: bool = False) -> tuple[HexField, int]:
        """Read the next varint; return its field and the number. Raises Corrupt."""
        number, end = (read_varlong if is_long else read_varint)(self._data, self.at, self._end)
        return self.bytes(name, end - self.at, depth, say(number)), number

    def rest(self) -> HexField:
        return self.bytes("damaged", self.remaining, 0)


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
    """Yield the fields, then the bytes left, also after damage, as one field. Raises Corrupt if any are."""
    try:
        yield from fields
        if cursor.remaining:
            raise Corrupt("cannot read a batch, bytes follow its last field", bytes=cursor.remaining)
    except Corrupt:
        if cursor.remaining:
            yield cursor.rest()
        raise


def _record(cursor: _Cursor, header: dict[str, int]) -> Iterator[HexField]:
    base_ms, base_offset = header["baseTimestamp"], header["baseOffset"]
    field, length = cursor.varint("length", 1)
    yield field
    if not 0 <= length <= cursor.remaining:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Offsets in ``[from_offset, to_offset)``, timestamps in ``[since_ms, until_ms)``, bytes of the key."""

    from_offset: int | None = None
    to_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: bytes | None = None
    is_key_prefix: bool = False

    @property
    def needs_records(self) -> bool:
        """Whether a batch's header is not sufficient to decide."""
        return self.key is not None or self.since_ms is not None or self.until_ms is not None

    def batches(self, table: BatchTable) -> NDArray[np.bool_]:
        """Return a mask of the batches that may have a matching record, by their headers."""
        mask = np.ones(len(table), np.bool_)
        if self.from_offset is not None:
            mask &= table.last_offsets >= self.from_offset
        if self.to_offset is not None:
            mask &= table.base_offsets < self.to_offset
        if self.since_ms is not None:
            mask &= table.max_timestamps >= self.since_ms
        return mask

    def records(self, columns: Columns) -> NDArray[np.bool_]:
        mask = np.ones(len(columns), np.bool_)
        if self.from_offset is not None:
            mask &= columns.offsets >= self.from_offset
        if self.to_offset is not None:
            mask &= columns.offsets < self.to_offset
        if self.since_ms is not None:
            mask &= columns.timestamps >= self.since_ms
        if self.until_ms is not None:
            mask &= columns.timestamps < self.until_ms
        return mask if self.key is None else mask & _has_key(columns, mask, self.key, self.is_key_prefix)


EVERYTHING = Filter()


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
        *,
        with_position: bool = True,
    ) -> None:
        """`walks` are the pieces of the log in order; positions are relative to the current piece."""
        self.partition = partition or NOWHERE
        self.problem: str | None = None
        self.at = 0
        self.is_torn = False
        self.invalid_bytes = 0
        self.gaps = 0
        self.first_gaps: list[tuple[int, int]] = []
        self._walks = walks
        self._selection = selection
        self._with_position = with_position
        self._last_offset: int | None = None

    @classmethod
    def of_file(cls, source: FileSource, selection: Filter = EVERYTHING) -> LogDump:
        """Dump a segment; positions are bytes of the file."""
        return cls([BatchRuns(source.read, source.size_bytes)], source.partition, selection)

    @classmethod
    def of_stored(cls, stored: StoredSegment, source: FileSource, selection: Filter = EVERYTHING) -> LogDump:
        """Dump a compressed or encrypted segment; positions are bytes of the segment, not of the object."""
        return cls(stored.walks(), source.partition, selection)

    @classmethod
    def of_batches(
        cls, runs: Iterable[memoryview], partition: TopicPartition, selection: Filter = EVERYTHING
    ) -> LogDump:
        """Dump whole batches, such as `TieredReader.batches` yields, without positions."""
        walks = (BatchRuns(lambda start, length, run=run: run[start : start + length], len(run)) for run in runs)  # type: ignore[misc]
        return cls(walks, partition, selection, with_position=False)

    def batches(self) -> Iterator[BatchRow]:
        for run in self._walk():
            yield from self._rows(run, self._mask(run))

    def hex_batches(self, *, with_records: bool = True) -> Iterator[tuple[BatchRow, Iterator[HexField]]]:
        """Yield each batch and its bytes, field by field, up to a damage, which `problem` describes."""
        for run in self._walk():
            for row in np.flatnonzero(self._mask(run)).tolist():
                at, size = int(run.table.positions[row]), int(run.table.sizes[row])
                fields = self._fields(run, run.data[at : at + size], at, with_records=with_records)
                yield self._row(run, row), fields

    def records(
        self, decode: DecodeRecord | None = None, *, headers: Decoder = utf8, with_control: bool = True
    ) -> Iterator[RecordRow]:
        """Yield every matching record."""
        for run in self._walk():
            if run.is_readable and self._selection.batches(run.table).any():
                for _, columns in self._steps(run, with_control=with_control):
                    if columns is not None:
                        yield from self._rows_of(run, self._matching(columns), decode, headers)

    def batches_and_records(
        self, decode: DecodeRecord | None = None, *, headers: Decoder = utf8
    ) -> Iterator[BatchRow | RecordRow]:
        """Yield each batch and then its matching records, as Kafka's deep iteration prints them."""
        for run in self._walk():
            mask = self._selection.batches(run.table)
            if not run.is_readable or not mask.any():
                yield from self._rows(run, mask)
                continue
            for first, columns in self._steps(run, with_control=True):
                if columns is None:
                    if mask[first]:
                        yield self._row(run, first)
                    continue
                matching = self._matching(columns)
                counts = np.bincount(matching.batch_ordinals, minlength=len(columns.table)).tolist()
                rows = self._rows_of(run, matching, decode, headers)
                for row, count in enumerate(counts, start=first):
                    if count or (mask[row] and not self._selection.needs_records):
                        yield self._row(run, row)
                        yield from islice(rows, count)

    def _row(self, run: Run, row: int) -> BatchRow:
        return batch_row(run, row, with_position=self._with_position)

    def _rows(self, run: Run, mask: NDArray[np.bool_]) -> Iterator[BatchRow]:
        return (self._row(run, row) for row in np.flatnonzero(mask).tolist())

    def _fields(self, run: Run, batch: memoryview, at: int, *, with_records: bool) -> Iterator[HexField]:
        position = run.position + at
        try:
            yield from batch_fields(batch, position if self._with_position else 0, with_records=with_records)
        except Corrupt as error:
            self._note(error.attempt, position)

    def _walk(self) -> Iterator[Run]:
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

    def _mask(self, run: Run) -> NDArray[np.bool_]:
        """Return a mask of the batches to show, by their headers or, if needed, by their records."""
        mask = self._selection.batches(run.table)
        if not self._selection.needs_records or not mask.any() or not run.is_readable:
            return mask
        held = np.zeros(len(run.table), np.bool_)
        for first, columns in self._steps(run, with_control=True):
            if columns is not None:
                held[first + self._matching(columns).batch_ordinals] = True
        return mask & held

    def _steps(self, run: Run, *, with_control: bool) -> Iterator[tuple[int, Columns | None]]:
        """Yield decoded steps of the run, each with its first row; None for a batch with a problem."""
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

    def _matching(self, columns: Columns) -> Columns:
        if self._selection == EVERYTHING:
            self._look_for_gaps(columns)
            return columns
        return columns.select(self._selection.records(columns))

    def _rows_of(
        self, run: Run, columns: Columns, decode: DecodeRecord | None, headers: Decoder
    ) -> Iterator[RecordRow]:
        position = run.position if self._with_position else None
        return record_rows(columns, self.partition, decode or as_text, headers, position=position)

    def _look_for_gaps(self, columns: Columns) -> None:
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
