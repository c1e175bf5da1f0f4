"""Content of a segment, damaged or not, as typed rows: the library of ``tiered dump``.

    with closing(open_file("data/orders-0/00000000000000000000.log")) as source:
        dump = LogDump.of_file(source)
        for row in dump.batches():
            ...
        print(dump.problem, dump.invalid_bytes)

Memory is one run of batches, for any size of the segment. Unreadable content is reported at the end (`problem`), after
all readable rows. A batch with a wrong checksum has `isvalid` false and is not decoded; the rows after it follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.errors import Corrupt
from local.format.columns import BatchTable, Columns
from local.names import TopicPartition
from local.records.batch_runs import BatchRuns, Run
from tiered.inspect.dump_rows import (
    BatchRow,
    Decoder,
    DecodeRecord,
    RecordRow,
    as_text,
    batch_row,
    batch_rows,
    record_rows,
    utf8,
)
from tiered.inspect.dump_sources import FileSource
from tiered.inspect.hex_dump import HexField, batch_fields
from tiered.inspect.stored_segments import StoredSegment

NOWHERE = TopicPartition("-", 0)
PAIRS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Filter of records by offset, timestamp and key.

    Offsets are in ``[from_offset, to_offset)``, timestamps in ``[since_ms, until_ms)``. `key` is the key's bytes.
    """

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
        chosen = np.ones(len(table), np.bool_)
        if self.from_offset is not None:
            chosen &= table.last_offsets >= self.from_offset
        if self.to_offset is not None:
            chosen &= table.base_offsets < self.to_offset
        if self.since_ms is not None:
            chosen &= table.max_timestamps >= self.since_ms
        return chosen

    def records(self, columns: Columns) -> NDArray[np.bool_]:
        chosen = np.ones(len(columns), np.bool_)
        if self.from_offset is not None:
            chosen &= columns.offsets >= self.from_offset
        if self.to_offset is not None:
            chosen &= columns.offsets < self.to_offset
        if self.since_ms is not None:
            chosen &= columns.timestamps >= self.since_ms
        if self.until_ms is not None:
            chosen &= columns.timestamps < self.until_ms
        return chosen if self.key is None else chosen & _has_key(columns, chosen, self.key, self.is_key_prefix)


EVERYTHING = Filter()


class LogDump:
    """The batches and records of a segment, or of a partition. Iterate once, then read the attributes.

    `problem` is the first problem, at byte `at`, or None. `is_torn`: the bytes end inside a batch, without other
    damage. `invalid_bytes` follow the last valid batch. `gaps` counts records that do not follow the record before them
    (compaction leaves gaps). `first_gaps` are the first few, as (offset, next offset). Both are counted without a
    filter only.
    """

    def __init__(
        self,
        walks: Iterable[BatchRuns],
        partition: TopicPartition | None = None,
        chosen: Filter = EVERYTHING,
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
        self._chosen = chosen
        self._with_position = with_position
        self._last_offset: int | None = None

    @classmethod
    def of_file(cls, source: FileSource, chosen: Filter = EVERYTHING) -> LogDump:
        """Dump a segment; positions are bytes of the file."""
        return cls([BatchRuns(source.read, source.size_bytes)], source.partition, chosen)

    @classmethod
    def of_stored(cls, stored: StoredSegment, source: FileSource, chosen: Filter = EVERYTHING) -> LogDump:
        """Dump a compressed or encrypted segment; positions are bytes of the segment, not of the object."""
        return cls(stored.walks(), source.partition, chosen)

    @classmethod
    def of_batches(cls, runs: Iterable[memoryview], partition: TopicPartition, chosen: Filter = EVERYTHING) -> LogDump:
        """Dump whole batches, such as `TieredReader.batches` yields; they have no position."""
        walks = (BatchRuns(lambda start, length, run=run: run[start : start + length], len(run)) for run in runs)  # type: ignore[misc]
        return cls(walks, partition, chosen, with_position=False)

    def batches(self) -> Iterator[BatchRow]:
        for run in self._walk():
            yield from batch_rows(run, self._kept(run), with_position=self._with_position)

    def hex_batches(self, *, with_records: bool = True) -> Iterator[tuple[BatchRow, Iterator[HexField]]]:
        """Yield each batch and its bytes, field by field.

        The fields of a damaged batch end at the damage; `problem` describes it.
        """
        for run in self._walk():
            for row in np.flatnonzero(self._kept(run)).tolist():
                at, size = int(run.table.positions[row]), int(run.table.sizes[row])
                fields = self._fields(run, run.data[at : at + size], at, with_records=with_records)
                yield batch_row(run, row, with_position=self._with_position), fields

    def records(
        self, decode: DecodeRecord | None = None, *, headers: Decoder = utf8, with_control: bool = True
    ) -> Iterator[RecordRow]:
        """Yield every matching record."""
        for run in self._walk():
            if run.is_readable and self._chosen.batches(run.table).any():
                for _, columns in self._steps(run, with_control=with_control):
                    if columns is not None:
                        yield from self._rows_of(run, self._matching(columns), decode, headers)

    def batches_and_records(
        self, decode: DecodeRecord | None = None, *, headers: Decoder = utf8
    ) -> Iterator[BatchRow | RecordRow]:
        """Yield each batch and then its matching records, as Kafka's deep iteration prints them."""
        for run in self._walk():
            kept = self._chosen.batches(run.table)
            if not run.is_readable or not kept.any():
                yield from batch_rows(run, kept, with_position=self._with_position)
                continue
            for first, columns in self._steps(run, with_control=True):
                if columns is None:
                    if kept[first]:
                        yield batch_row(run, first, with_position=self._with_position)
                    continue
                matching = self._matching(columns)
                counts = np.bincount(matching.batch_ordinals, minlength=len(columns.table)).tolist()
                rows = self._rows_of(run, matching, decode, headers)
                for row, count in enumerate(counts, start=first):
                    if count or (kept[row] and not self._chosen.needs_records):
                        yield batch_row(run, row, with_position=self._with_position)
                        yield from islice(rows, count)

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

    def _kept(self, run: Run) -> NDArray[np.bool_]:
        """Return a mask of the batches to show, by their headers or, if needed, by their records."""
        kept = self._chosen.batches(run.table)
        if not self._chosen.needs_records or not kept.any() or not run.is_readable:
            return kept
        held = np.zeros(len(run.table), np.bool_)
        for first, columns in self._steps(run, with_control=True):
            if columns is not None:
                held[first + self._matching(columns).batch_ordinals] = True
        return kept & held

    def _steps(self, run: Run, *, with_control: bool) -> Iterator[tuple[int, Columns | None]]:
        """Yield decoded steps of the run, each with its first row.

        The columns are None for a batch that cannot be decoded; the problem is noted.
        """
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
        if self._chosen == EVERYTHING:
            self._look_for_gaps(columns)
            return columns
        return columns.select(self._chosen.records(columns))

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


def _has_key(columns: Columns, chosen: NDArray[np.bool_], key: bytes, is_prefix: bool) -> NDArray[np.bool_]:
    """Return the mask of chosen records with `key` as key or key prefix."""
    lengths = columns.key_lengths
    chosen = chosen & ((lengths >= len(key)) if is_prefix else (lengths == len(key)))
    wanted = np.frombuffer(key, np.uint8)
    data = np.frombuffer(columns.data, np.uint8)
    places = np.flatnonzero(chosen)
    for at, byte in enumerate(wanted.tolist()):
        # Byte by byte, so that the first bytes leave few records for the others.
        places = places[data[columns.key_starts[places] + at] == byte]
    found = np.zeros(len(columns), np.bool_)
    found[places] = True
    return found
