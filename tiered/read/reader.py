"""One stream over both tiers: whole batches, columns or records from any retained offset.

A reader advances by a batch's last offset + 1 and by a segment entry's next offset, so it crosses the gaps of
compaction. It skips offsets below the local tier only if a manifest shows that they hold no record. If an offset is on
both tiers, the local tier answers without a request. If one tier drops or expires a segment during a read, the reader
loads the newest manifest once, and continues or reports the remaining offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np

from local import kernels
from local.errors import Corrupt, NotFound, OffsetOutOfRange
from local.format.batch_header import HEADER_BYTES, read_header
from local.format.columns import Columns
from local.format.record import StoredRecord
from local.index.txn_index import AbortedTransaction
from local.log import Log
from local.names import TopicPartition
from local.records.batch_runs import decode_up_to_damage
from local.records.isolation import Isolation, without_aborted
from remote.fetch.range_reader import RemotePartition
from remote.fetch.read_ahead import SequentialReader
from remote.manifest.view import CompactedView, find_view
from remote.segment_entry import SegmentEntry
from tiered.read.partition_source import PartitionSource

FETCH_BYTES = 1 << 20
MISSING_TRIES = 3  # reads of an entry with missing objects (404) while the newest manifest names it
RUN_BYTES = 8 << 20
ReadRange = Callable[..., memoryview]  # `RemotePartition.read`, or `SequentialReader.read`, which reads ahead
_log = logging.getLogger(__name__)


class TieredReader:
    """Reads any partition that `source_of` knows. Thread safe; an iterator belongs to one thread.

    A stream ends at the log end offset as of its start, under READ_COMMITTED at the last stable offset; then records
    and columns omit aborted ones (`tiered.read.partition_source`). Batches come whole; `aborted_transactions` gives
    the batches to leave out.
    """

    def __init__(
        self, source_of: Callable[[TopicPartition], PartitionSource], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> None:
        self.source, self._isolation = source_of, isolation

    def offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """The retained offsets ``[start, next)`` over both tiers. Raises Unavailable."""
        source = self.source(partition)
        return source.start_offset(), self._end_of(source)

    def next_offset(self, partition: TopicPartition) -> int:
        """The end of `offsets`. A disk with records answers alone. Raises Unavailable."""
        return self._end_of(self.source(partition))

    def batches(self, partition: TopicPartition, start: int, end: int | None = None) -> Generator[memoryview]:
        """Whole batches from the one that holds `start` up to `end` (None: the log end as of now).

        Each item is a run of consecutive batches. The first may hold records below `start`, the last some above `end`.
        Raises OffsetOutOfRange for a start outside the log, Corrupt (naming the object) for damaged bytes, and
        Unavailable if the bucket is needed and unavailable.
        """
        source = self.source(partition)
        source.check_start(start)
        decided = self._end_of(source)
        stop = decided if end is None else min(end, decided)
        offset = start
        with closing(_Stream(source, stop)) as stream:
            while offset < stop:
                before = offset
                for data, offset in stream.read_on(offset, self._isolation):  # noqa: B020 - it moves on
                    if data:
                        yield data if offset <= decided else _batches_below(data, decided)
                    if offset >= stop:
                        return
                if offset == before:
                    return

    def columns(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[Columns]:
        """As `batches`, decoded and checked, without records outside ``[start, end)``."""
        source = self.source(partition)
        stop = self._end_of(source) if end is None else end
        if self._isolation is Isolation.READ_COMMITTED:
            source.check_start(start)
            stop = min(stop, self._end_of(source))
            with closing(_Stream(source, stop)) as stream:
                yield from stream.committed_columns(start, stop)
            return
        for data in self.batches(partition, start, end):
            for columns in decoded(data, partition):
                yield within(columns, start, stop)

    def records(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[StoredRecord]:
        for columns in self.columns(partition, start, end):
            yield from columns.records()

    def aborted_transactions(self, partition: TopicPartition, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in ``[start, end)``, by their marker's offset.

        `end` is at most that of `offsets`. `local.records.isolation.aborted_batches` derives the batches to leave out.
        """
        source = self.source(partition)
        source.check_start(start)
        return source.aborted_transactions(start, end)

    def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Offset of the first retained record at or after `timestamp_ms`; None if there is none."""
        source = self.source(partition)
        log = source.log
        if log is None:
            return self._search_remote(source, None, timestamp_ms)
        if source.known_manifest() is None and source.has_whole_log():
            return log.offset_for_timestamp(timestamp_ms)
        while True:
            # In this order: a segment missing on the disk in the first step is in the manifest of the second (I2).
            local_start = log.local_log_start_offset
            found = self._search_remote(source, local_start, timestamp_ms)
            if found is not None:
                return found
            try:
                found = log.offset_for_timestamp(timestamp_ms)
            except OffsetOutOfRange:
                if log.local_log_start_offset == local_start:
                    raise
            if log.local_log_start_offset == local_start:
                return found

    def _end_of(self, source: PartitionSource) -> int:
        return source.stable_end() if self._isolation is Isolation.READ_COMMITTED else source.next_offset()

    def _search_remote(self, source: PartitionSource, local_start: int | None, timestamp_ms: int) -> int | None:
        manifest = source.manifest_below(local_start)
        log = source.log
        if manifest is None and log is not None and log.log_start_offset < log.local_log_start_offset:
            raise source.unknown(log.log_start_offset)
        start = 0
        while manifest is not None:
            entry = source.ask_of(
                manifest,
                lambda index, start=start: index.find_by_timestamp(timestamp_ms, start, local_start),  # type: ignore[misc]
            )
            if entry is None or (local_start is not None and entry.base_offset >= local_start):
                return None
            try:
                found = self._search_entry(source, entry, timestamp_ms)
            except NotFound as error:
                why = source.why_missing(entry, entry.next_offset)
                if isinstance(why, Corrupt):
                    raise why from error
                manifest = source.known_manifest()  # a newer one, without the entry
                continue
            if found is not None:
                return found
            start = entry.next_offset
        return None

    def _search_entry(self, source: PartitionSource, entry: SegmentEntry, timestamp_ms: int) -> int | None:
        assert source.remote is not None
        start = source.start_offset()
        offset, position = source.remote.place_of_timestamp(entry, timestamp_ms)
        with closing(_Stream(source, entry.next_offset)) as stream:
            runs = stream.runs(entry, offset, position)
            steps = (columns for data, _ in runs for columns in decoded(data, source.partition))
            return first_at_or_after(steps, timestamp_ms, start)


class _Stream:
    """One reader's pass over a partition up to the offset `stop`, with one sequential reader. Close it."""

    def __init__(self, source: PartitionSource, stop: int) -> None:
        self.source, self._stop = source, stop
        self._sequential: SequentialReader | None = None

    def runs(self, entry: SegmentEntry, offset: int, position: int | None = None) -> Iterator[tuple[memoryview, int]]:
        remote = self.source.remote
        assert remote is not None, "a manifest comes with its objects"
        position = remote.position_of_offset(entry, offset) if position is None else position
        if self._sequential is None:
            self._sequential = SequentialReader(remote, self._following)
        reader, verify = self._sequential, not remote.is_checked
        yield from segment_runs(
            reader.read, entry, offset, position, step_bytes=lambda: reader.step_bytes, verify=verify
        )

    def read_on(self, offset: int, isolation: Isolation) -> Iterator[tuple[memoryview, int]]:
        source, log = self.source, self.source.log
        if log is not None and offset >= log.local_log_start_offset:
            data = _read_local(source, log, offset, isolation)
            if data is not None:
                yield data, int(kernels.scan_batches(data, verify=False).last_offsets[-1]) + 1 if data else offset
                return
        entry, at = source.entry_at(offset)
        if entry is None:
            # The manifest shows that no record is between this offset and the local log start offset.
            yield memoryview(b""), at
            return
        yield from self.read_entry(entry, at)

    def read_entry(
        self, entry: SegmentEntry, offset: int, *, is_replacement: bool = False, tries: int = 1
    ) -> Iterator[tuple[memoryview, int]]:
        """The entry from the batch that holds `offset` to its end. After a 404 the newest manifest decides.

        | the newest manifest | effect |
        |---|---|
        | still names the entry | read again, at most MISSING_TRIES times: a 404 may come from one node of the store |
        | names a replacement | continue in it, once (`is_replacement`), up to the end of the old entry |
        """
        reached = offset
        try:
            for data, reached in self.runs(entry, offset):
                yield data, reached
            yield memoryview(b""), entry.next_offset
            return
        except NotFound as error:
            why = self.source.why_missing(entry, reached)
            is_named = isinstance(why, Corrupt)
            if not isinstance(why, NotFound | Corrupt) or (tries >= MISSING_TRIES if is_named else is_replacement):
                raise why from error
        if is_named:
            yield from self.read_entry(entry, reached, is_replacement=is_replacement, tries=tries + 1)
            return
        instead, at = self.source.entry_at(reached)
        if instead is None or instead.base_offset >= entry.next_offset:
            yield memoryview(b""), min(at, entry.next_offset)
            return
        for data, reached in self.read_entry(instead, at, is_replacement=True):
            if reached >= entry.next_offset:
                yield _batches_below(data, entry.next_offset), entry.next_offset
                return
            yield data, reached

    def committed_columns(self, start: int, stop: int) -> Iterator[Columns]:
        """The committed records. The local log filters its own, because it reads records and index in one state."""
        offset, source = start, self.source
        while offset < stop:
            log = source.log
            if log is None or offset < log.local_log_start_offset:
                entry, offset, aborted = source.entry_with_aborted(offset, stop)
                first = offset
                runs = () if entry is None else self.read_entry(entry, first)
                for data, offset in runs:  # noqa: B007 - the position moves on
                    for columns in decoded(data, source.partition):
                        yield within(without_aborted(columns, aborted), first, stop)
                continue
            try:
                for columns in log.columns(offset, isolation=Isolation.READ_COMMITTED):
                    yield within(columns, 0, stop)
                    offset = columns.next_offset
                    if offset >= stop:
                        return
                return
            except OffsetOutOfRange:
                # The disk dropped or expired the next records: they are in the bucket (I2) or expired.
                source.check_start(offset)
                if offset >= log.local_log_start_offset:
                    raise

    def _following(self, entry: SegmentEntry) -> SegmentEntry | None:
        log = self.source.log
        stop = self._stop if log is None else min(self._stop, log.local_log_start_offset)
        found = self.source.ask(lambda index: index.find_by_offset(entry.next_offset))
        return found if found is not None and found.base_offset < stop else None

    def close(self) -> None:
        if self._sequential is not None:
            self._sequential.close()


def _read_local(source: PartitionSource, log: Log, offset: int, isolation: Isolation) -> memoryview | None:
    """The batches of one local read; None for a segment dropped since the check: the newest manifest has it (I2)."""
    try:
        return log.read(offset, FETCH_BYTES, isolation=isolation)
    except OffsetOutOfRange:
        if offset < log.local_log_start_offset:
            return None
        raise
    except (NotFound, Corrupt):
        if not log.is_read_only:
            raise
    # Another process dropped or cleaned the segment: reload the directory and the manifest once.
    log.reload_files()
    if source.metadata is not None:
        source.metadata.load(exact=True)
    return log.read(offset, FETCH_BYTES, isolation=isolation) if offset >= log.local_log_start_offset else None


def _batches_below(data: memoryview, end: int) -> memoryview:
    at = 0
    while (header := read_header(data, at)) and header.base_offset < end:
        at += header.size_bytes
    return data[:at]


def segment_runs(
    read: ReadRange,
    entry: SegmentEntry,
    offset: int,
    position: int = 0,
    *,
    step_bytes: Callable[[], int] = lambda: RUN_BYTES,
    verify: bool = False,
) -> Iterator[tuple[memoryview, int]]:
    """Yield (whole batches, next offset) from byte `position` to the segment's end, none below `offset`.

    Bounded memory. An offset index is a hint: if the promised batch is not at its position, the segment is read from
    its start, and the error is logged. `verify` checks the CRC of each batch: for a store without checksums of its own.
    Raises Corrupt, naming the object, for damaged bytes, NotFound, Unavailable.
    """
    batch_bytes = 0  # size of a batch that did not fit into one step
    start = position
    while position < entry.size_bytes:
        length = min(batch_bytes or step_bytes(), entry.size_bytes - position)
        data = read(entry, position, length, in_one_piece=batch_bytes == 0)
        if position == start > 0 and index_is_wrong(entry, data, offset, position):
            position = start = batch_bytes = 0
            continue
        table = kernels.scan_batches(data, verify=verify)
        if len(table) == 0:
            if table.is_corrupt:
                raise Corrupt(f"cannot read batches, {table.problem}", object=entry.data_key, position=position)
            if position + len(data) >= entry.size_bytes:
                wrong = "cannot read a remote segment, it ends inside a batch"
                raise Corrupt(wrong, object=entry.data_key, at=position)
            header = read_header(data)
            batch_bytes = HEADER_BYTES if header is None else header.size_bytes
            continue
        position, batch_bytes = position + table.valid_bytes, 0
        first = int(np.searchsorted(table.last_offsets, offset))
        if first < len(table):
            yield data[int(table.positions[first]) : table.valid_bytes], int(table.last_offsets[-1]) + 1


def index_is_wrong(entry: SegmentEntry, data: memoryview, offset: int, position: int) -> bool:
    """Whether the remote offset index is wrong (then logged): no batch begins at `position`, or one above `offset`."""
    header = None
    with suppress(Corrupt):
        header = read_header(data)
    if header is not None and header.base_offset <= offset:
        return False
    report_wrong_index(entry, offset, position)
    return True


def report_wrong_index(entry: SegmentEntry, offset: int, position: int) -> None:
    facts = (entry.indexes_key, offset, position)
    _log.warning("the offset index of a remote segment is wrong: object=%s offset=%d position=%d", *facts)


def decoded(data: memoryview, partition: TopicPartition) -> Iterator[Columns]:
    """The records of a run, in steps of bounded memory. Raises Corrupt, naming the partition."""
    try:
        yield from decode_up_to_damage(data)
    except Corrupt as error:
        facts = {"topic": partition.topic, "partition": partition.partition, **error.facts}
        if "base_offset" not in facts and (header := read_header(data)) is not None:
            facts["from_offset"] = header.base_offset
        raise Corrupt(error.attempt, **facts) from error


def within(columns: Columns, start: int, end: int | None) -> Columns:
    if not len(columns) or (columns.offsets[0] >= start and (end is None or columns.offsets[-1] < end)):
        return columns
    inside = columns.offsets >= start
    return columns.select(inside if end is None else inside & (columns.offsets < end))


def first_at_or_after(steps: Iterable[Columns], timestamp_ms: int, start: int = 0) -> int | None:
    for columns in steps:
        hits = (columns.timestamps >= timestamp_ms) & (columns.offsets >= start)
        if hits.any():
            return int(columns.offsets[hits.argmax()])
    return None


class CompactedReader(TieredReader):
    """As `TieredReader`, with a compacted view: the view below its horizon, then the full log, as one stream.

    A read below the horizon does not need the log, which may have expired there. Every method raises NotFound if the
    partition has no such view, and OffsetOutOfRange if the log no longer holds the records that follow it. Isolation
    concerns the log only: a view holds committed records only.

    A stream stays with the view of its start while that view's objects exist (the grace period). If an object is
    deleted before the first batch was returned, the stream starts over with the newest view. Later it is an error: the
    stream would miss the records that the newer view merged, above all deletions. A stream that restarts below the
    horizon of a newer view misses deletions too: start such a read at the beginning.
    """

    def __init__(self, source_of: Callable[[TopicPartition], PartitionSource], isolation: Isolation, view: str) -> None:
        super().__init__(source_of, isolation)
        self._log = TieredReader(source_of, isolation)
        self._name = view

    def view(self, partition: TopicPartition) -> CompactedView:
        """The view in the manifest seen last; if missing there, the newest manifest is loaded."""
        return _found_in(self.source(partition), self._name).view

    def offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """``[start, next)``: from the view's first offset, which may be below the log start offset."""
        return self.view(partition).start_offset, self._log.offsets(partition)[1]

    def batches(self, partition: TopicPartition, start: int, end: int | None = None) -> Generator[memoryview]:
        below = _Below(self.source(partition), self._name, start, end)
        yield from below.runs()
        if below.crosses():
            yield from self._log.batches(partition, max(start, below.horizon), end)

    def columns(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[Columns]:
        below = _Below(self.source(partition), self._name, start, end)
        for data in below.runs():
            for columns in decoded(data, partition):
                yield within(columns, start, end)
        if below.crosses():
            yield from self._log.columns(partition, max(start, below.horizon), end)

    def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Offset of the first record at or after `timestamp_ms` that a read returns; None if there is none."""
        source = self.source(partition)
        place = _found_in(source, self._name)
        view = place.view
        _check_gap(source, view)
        for entry in view.entries:
            if entry.max_timestamp_ms is not None and entry.max_timestamp_ms >= timestamp_ms:
                runs = segment_runs(place.parts.read, entry, *place.parts.place_of_timestamp(entry, timestamp_ms))
                steps = (columns for data, _ in runs for columns in decoded(data, partition))
                if (found := first_at_or_after(steps, timestamp_ms)) is not None:
                    return found
        found = self._log.offset_for_timestamp(partition, timestamp_ms)
        if found is None or found >= view.horizon_offset:
            return found
        # The view lacks this record, which is below the horizon: search the log from the horizon on.
        return first_at_or_after(self._log.columns(partition, view.horizon_offset), timestamp_ms)


@dataclass(frozen=True, slots=True)
class _Found:
    view: CompactedView
    parts: RemotePartition


class _Below:
    """The part of one stream that the view serves: ``[start, horizon)``, limited by `end`."""

    def __init__(self, source: PartitionSource, name: str, start: int, end: int | None) -> None:
        self._source, self._name, self._start, self._end = source, name, start, end
        self._found = self._checked(_found_in(source, name))

    @property
    def horizon(self) -> int:
        return self._found.view.horizon_offset

    def runs(self) -> Iterator[memoryview]:
        given = False
        try:
            for data in self._runs_of(self._found):
                given = True
                yield data
            return
        except NotFound as error:
            newer = _found_in(self._source, self._name, is_newest=True)
            if newer.view.entries == self._found.view.entries:
                facts = {"partition": self._source.partition, "view": self._name, **error.facts}
                raise Corrupt("cannot read the compacted view, an object of it is missing", **facts) from error
            if given:
                raise _replaced(self._source, self._found.view) from error
            self._found = self._checked(newer)
        try:
            yield from self._runs_of(self._found)
        except NotFound as error:
            raise _replaced(self._source, self._found.view) from error

    def crosses(self) -> bool:
        """Whether the stream continues in the log. Raises OffsetOutOfRange if the log lost the next records."""
        if self._end is not None and self._end <= self.horizon:
            return False
        if self._start < self._source.start_offset() and self._found.view.gap(self._source.start_offset()) is not None:
            if _found_in(self._source, self._name, is_newest=True).view.horizon_offset > self.horizon:
                raise _replaced(self._source, self._found.view)
            _check_gap(self._source, self._found.view)
        return True

    def _checked(self, found: _Found) -> _Found:
        view = found.view
        if self._start < view.start_offset:
            facts = {"offset": self._start, "first_offset": view.start_offset}
            wrong = "cannot read the compacted view, the offset is out of range"
            raise OffsetOutOfRange(wrong, partition=self._source.partition, **facts)
        is_within = self._end is not None and self._end <= view.horizon_offset
        if not is_within and self._start < self._source.start_offset():
            _check_gap(self._source, view)
        return found

    def _runs_of(self, found: _Found) -> Iterator[memoryview]:
        for entry in found.view.entries:
            if entry.next_offset <= self._start or (self._end is not None and entry.base_offset >= self._end):
                continue
            offset = max(self._start, entry.base_offset)
            position = found.parts.position_of_offset(entry, offset)
            yield from (data for data, _ in segment_runs(found.parts.read, entry, offset, position))


def _found_in(source: PartitionSource, name: str, *, is_newest: bool = False) -> _Found:
    for is_exact in (True,) if is_newest else (False, True):
        # `exact`: a missing object is damage only if no newer manifest unlinked it.
        manifest = source.metadata.load(exact=True) if is_exact and source.metadata is not None else source.manifest()
        view = find_view(manifest.views, name) if manifest is not None else None
        if view is not None and view.is_built:
            assert source.remote is not None, "a head comes with its objects"
            return _Found(view, source.remote)
        local = source.local_views
        view = find_view(local.catalog(is_newest=is_exact).views, name) if local is not None else None
        if local is not None and view is not None and view.is_built:
            return _Found(view, local.parts)
    raise no_view(source.partition, name)


def no_view(partition: TopicPartition, name: str) -> NotFound:
    wrong = f"the topic has no compacted view: build it with 'tiered view build {partition.topic}'"
    return NotFound(wrong, partition=partition, view=name)


def _check_gap(source: PartitionSource, view: CompactedView) -> None:
    gap = view.gap(source.start_offset())
    if gap is not None:
        raise lost_behind(source.partition, view, gap)


def lost_behind(partition: TopicPartition, view: CompactedView, gap: tuple[int, int]) -> OffsetOutOfRange:
    wrong = "cannot read the compacted view, the log no longer holds the records that follow it"
    lost = f"[{gap[0]}, {gap[1]})"
    hint = "see 'tiered view build --accept-loss'"
    return OffsetOutOfRange(f"{wrong}: {hint}", partition=partition, view=view.name, lost=lost)


def _replaced(source: PartitionSource, view: CompactedView) -> NotFound:
    attempt = "cannot read the compacted view, it was replaced while it was read; begin again at its start"
    return NotFound(attempt, partition=source.partition, view=view.name, start_offset=view.start_offset)
