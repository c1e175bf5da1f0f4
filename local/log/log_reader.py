"""The view, reads, streams and lookups of a log, without its lock.

A reader takes the current immutable `LogView`. If a segment of it was dropped or replaced (NotFound), the reader
repeats the offset with the next view. It never sees a hole and never waits for a writer's disk.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from local import names
from local.errors import Corrupt, DiskFailed, NotFound, OffsetOutOfRange
from local.facts import SegmentInfo
from local.format.batch_header import TRANSACTIONAL
from local.format.record import StoredRecord
from local.index import txn_index
from local.index.txn_index import AbortedTransaction, CarriedTransactions
from local.log.producer_state import ProducerEntry, ProducerFiles, encode_snapshot
from local.names import TopicPartition
from local.records.isolation import Isolation, without_aborted
from local.records.offset_spec import FoundOffset
from local.segment.segment import Segment, WrongTransactionIndex
from local.segment.segment_reading import BatchRun, ReadLimits, no_run, read_segment

if TYPE_CHECKING:
    from local.format.columns import BatchTable, Columns
    from local.log.log_state import LogState

READ_BYTES = 1 << 20
_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_TIME_SEARCH = ReadLimits(1 << 20)


class LargestTimes:
    """The running maximum of the timestamps of closed segments, for a binary search. Views of one list share it."""

    def __init__(self, sealed: tuple[Segment, ...] = ()) -> None:
        self._sealed = sealed
        self._running: list[int] | None = None  # computed at the first search

    def first_reaching(self, timestamp_ms: int) -> int:
        """Return the number of segments before the first with a record at or after `timestamp_ms`. Raises NotFound."""
        if self._running is None:
            known = (-1 if each.max_timestamp_ms is None else each.max_timestamp_ms for each in self._sealed)
            self._running = list(accumulate(known, max))
        return bisect.bisect_left(self._running, timestamp_ms)


@dataclass(frozen=True, slots=True)
class LogView:
    """An immutable view of a log: its segments and offsets at one moment."""

    segments: tuple[Segment, ...]  # ascending
    bases: tuple[int, ...]  # their base offsets
    log_start_offset: int
    next_offset: int  # the log end
    times: LargestTimes = field(default_factory=LargestTimes)  # of all segments but the last
    # The start of the earliest open transaction. It is published together with the log end, after an aborted
    # transaction's entry is written.
    unstable_offset: int | None = None
    tail_bytes: int = 0  # of the last segment at this moment: it may grow or be closed later
    is_tail_active: bool = False

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided: the earliest open one, or the log end."""
        if self.unstable_offset is None:
            return self.next_offset
        return min(max(self.unstable_offset, self.log_start_offset), self.next_offset)

    @property
    def local_log_start_offset(self) -> int:
        return max(self.log_start_offset, self.bases[0])

    @property
    def first_known_offset(self) -> int:
        """The start of the leader epochs: the lowest of log start, first base and last offset."""
        return max(0, min(self.log_start_offset, self.bases[0], self.next_offset - 1))

    def infos(
        self, cleaner_offset: int | None, first_times_from: int | None = None, *, with_times: bool = True
    ) -> tuple[SegmentInfo, ...]:
        """Return the facts of every segment; the last is the active one. Raises NotFound."""
        ends = (*self.bases[1:], self.next_offset)
        last, found = len(ends) - 1, []
        for at, (segment, end) in enumerate(zip(self.segments, ends, strict=True)):
            is_active = at == last and self.is_tail_active
            needs_first = first_times_from is not None and end > first_times_from and not is_active
            info = SegmentInfo(
                base_offset=segment.base_offset,
                next_offset=end,
                size_bytes=self.tail_bytes if at == last else segment.size_bytes,
                max_timestamp_ms=segment.max_timestamp_ms if with_times else None,
                is_active=is_active,
                is_clean=cleaner_offset is not None and end <= cleaner_offset,
                modified_ms=segment.modified_ms,
                first_timestamp_ms=segment.first_timestamp_ms() if needs_first else None,
            )
            found.append(info)
        return tuple(found)

    def segment(self, base_offset: int) -> Segment | None:
        """Return the segment with exactly this base, or None."""
        at = bisect.bisect_left(self.bases, base_offset)
        return self.segments[at] if at < len(self.bases) and self.bases[at] == base_offset else None

    def sealed_below(self, offset: int) -> list[Segment]:
        """Return the closed segments wholly below `offset`, oldest first."""
        return [each for each, end in zip(self.segments, self.bases[1:], strict=False) if end <= offset]

    def check_inside(self, partition: TopicPartition, offset: int) -> None:
        """Raise OffsetOutOfRange, with the valid range, outside ``[local_log_start_offset, next_offset]``."""
        first = self.local_log_start_offset
        if not first <= offset <= self.next_offset:
            facts = {"offset": offset, "first_offset": first, "next_offset": self.next_offset}
            raise OffsetOutOfRange("cannot read the local log", partition=partition, **facts)

    def read(self, offset: int, limits: ReadLimits) -> BatchRun:
        """Return whole batches from `offset` on; empty if the limits admit none. Raises NotFound, Corrupt."""
        if limits.upper_offset is not None and offset >= limits.upper_offset:
            return no_run()  # the batch that holds `offset` may begin below the limit (delete-records cuts inside one)
        for at in range(max(bisect.bisect_right(self.bases, offset) - 1, 0), len(self.segments)):
            found = read_segment(self.segments[at], offset, limits)
            if found is not None:
                return found
        return no_run()

    def aborted_transactions(
        self, from_offset: int, upper_offset: int, open_before: Mapping[int, int] | None = None
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that concern ``[from_offset, upper_offset)``. Their markers may be above.

        `open_before` maps producer to first offset, for transactions open at the base of the segment that holds
        `from_offset`. Every index is compared with its segment. The search continues until each transaction with
        records below `upper_offset` has reached its marker. Raises NotFound, Corrupt, WrongTransactionIndex.
        """
        found: list[AbortedTransaction] = []
        carried = CarriedTransactions({p: first for p, first in (open_before or {}).items() if first < upper_offset})
        at = max(bisect.bisect_right(self.bases, from_offset) - 1, 0)
        for segment, end in zip(self.segments[at:], (*self.bases[at + 1 :], self.next_offset), strict=True):
            is_last = segment is self.segments[-1]
            entries, scanned = segment.checked_aborted(self.tail_bytes if is_last else segment.size_bytes)
            problem = carried.problem(entries, scanned)
            if problem is not None:
                raise WrongTransactionIndex(segment.base_offset, problem)
            found += [each for each in entries if each.last_offset >= from_offset and each.first_offset < upper_offset]
            carried.add(scanned, upper_offset)
            if end >= upper_offset and not carried.open_from:
                break
        return found

    def search(self, timestamp_ms: int) -> FoundOffset | None:
        """Return the first record at or after both `timestamp_ms` and the log start. Raises NotFound, Corrupt."""
        start = self.local_log_start_offset
        for segment in self.segments[self.times.first_reaching(timestamp_ms) :]:
            if segment.max_timestamp_ms is not None and segment.max_timestamp_ms >= timestamp_ms:
                found = first_at_or_after(segment, timestamp_ms, start)
                if found is not None:
                    return found
        return None

    def newest(self) -> FoundOffset | None:
        """Return the first of the records with the largest timestamp. Raises NotFound, Corrupt."""
        start = self.local_log_start_offset
        segments = self.segments[max(bisect.bisect_right(self.bases, start) - 1, 0) :]
        known = [-1 if each.max_timestamp_ms is None else each.max_timestamp_ms for each in segments]
        scanned: set[int] = set()
        while (largest := max(known)) >= 0:
            at = known.index(largest)
            found = first_at_or_after(segments[at], largest, start)
            if found is not None:
                return found
            # The time was of a record below the start, or is of a batch being written: the readable batches decide.
            largest_read = None if at in scanned else largest_timestamp(segments[at], start)
            known[at] = -1 if largest_read is None else largest_read
            scanned.add(at)
        return None


# Find records by time inside one segment, exactly, with the time index and the batches' headers.
#
# The search starts at the entry before the last one below the target, so one wrong entry hides no record. A batch that
# contradicts the last entry proves that the index is wrong. As in Kafka every record counts, transaction markers
# included. Under log append time a record has the time of its batch. Source: kafka `LogSegment.findOffsetByTimestamp`,
# `FileRecords.searchForTimestamp`.


def first_at_or_after(segment: Segment, timestamp_ms: int, start: int) -> FoundOffset | None:
    """Return the first record from `start` on at or after `timestamp_ms`. Raises NotFound, Corrupt."""
    import numpy as np

    offset, claimed = segment.time_start(timestamp_ms)
    offset = max(offset, start)
    while run := read_segment(segment, offset, _TIME_SEARCH):
        table = run.table()
        if ((table.max_timestamps >= timestamp_ms) & (table.last_offsets < claimed)).any():
            _report_skipped(segment, timestamp_ms, claimed)
        for row in np.flatnonzero(table.max_timestamps >= timestamp_ms).tolist():
            found = _first_in_batch(run.data, table.select(slice(row, row + 1)), timestamp_ms, start)
            if found is not None:
                return found
        offset = run.next_offset
    return None


def _report_skipped(segment: Segment, timestamp_ms: int, claimed: int) -> None:
    """Rebuild the indexes: a batch below `claimed` reaches `timestamp_ms`."""
    problem = f"a time index entry skips records: timestamp_ms={timestamp_ms} offset={claimed}"
    with suppress(Corrupt):
        segment.rebuild_indexes(problem, lambda: segment.time_start(timestamp_ms).claimed_offset == claimed)


def largest_timestamp(segment: Segment, start: int) -> int | None:
    """Return the largest timestamp from `start` on, None without one. Reads all batches from there."""
    largest = -1
    offset = start
    while run := read_segment(segment, offset, _TIME_SEARCH):
        table = run.table()
        # A batch that the cleaner retained empty keeps its largest timestamp, but has no record.
        whole = table.max_timestamps[(table.base_offsets >= start) & (table.record_counts > 0)]
        largest = max(largest, int(whole.max(initial=-1)))
        if table.base_offsets[0] < start:
            columns = _decoded(run.data, table.select(slice(1)))
            largest = max(largest, int(columns.timestamps[columns.offsets >= start].max(initial=-1)))
        offset = run.next_offset
    return largest if largest >= 0 else None


def _first_in_batch(data: memoryview, batch: BatchTable, timestamp_ms: int, start: int) -> FoundOffset | None:
    columns = _decoded(data, batch)
    hits = (columns.timestamps >= timestamp_ms) & (columns.offsets >= start)
    if not hits.any():
        return None
    at, epoch = int(hits.argmax()), int(batch.leader_epochs[0])
    return FoundOffset(int(columns.offsets[at]), int(columns.timestamps[at]), epoch if epoch >= 0 else None)


def _decoded(data: memoryview, batch: BatchTable) -> Columns:
    from local import kernels

    return kernels.decode_columns(data, include_control=True, table=batch)


class _Stretch(NamedTuple):
    """Consecutive batches for a reader at `offset`. The first batch may begin below `offset`."""

    offset: int
    run: BatchRun
    aborted: list[AbortedTransaction]


class LogReader:
    """The reads of one log. Thread safe; an iterator belongs to one thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._infos: tuple[LogView, object, tuple[SegmentInfo, ...]] | None = None  # of the last call of `segments`

    # -- segments and transactions -------------------------------------------------------------------------------

    def segments(self, *, first_times_from: int | None = None, with_times: bool = True) -> tuple[SegmentInfo, ...]:
        """Return the facts of every local segment, ascending; the last is the active one. Raises DiskFailed.

        `first_times_from`: also return `first_timestamp_ms` of closed segments that reach above that offset; the first
        call reads 61 bytes of each. Without `with_times` no time is read, and largest timestamps are None.
        """
        cleaner_offset = self._state.cleaner_offset

        def read(view: LogView) -> tuple[SegmentInfo, ...]:
            known, key = self._infos, (cleaner_offset, first_times_from, with_times)
            if known is not None and known[0] is view and known[1] == key:
                return known[2]  # most logs are idle: no append, roll or removal has replaced the view
            infos = view.infos(cleaner_offset, first_times_from, with_times=with_times)
            self._infos = view, key, infos
            return infos

        return self._retrying(read)

    def segment(self, base_offset: int) -> Segment:
        """Return the segment with exactly this base. Raises NotFound."""
        found = self._state.view.segment(base_offset)
        if found is None:
            raise NotFound("cannot find a local segment", partition=self._state.partition, base_offset=base_offset)
        return found

    def producers(self) -> list[ProducerEntry]:
        """Return the current state of each producer, by producer id."""
        with self._state.lock:
            self.decided_view()
            return self._state.producer_state.entries()

    def producer_snapshot(self, offset: int) -> bytes:
        """Return a ``.snapshot`` of the producers before `offset`, a segment's base or the log end.

        A missing one is computed again; no append waits for that. Raises NotFound above the log end, Corrupt.
        """
        state = self._state

        def encoded(view: LogView) -> bytes:
            if offset > view.next_offset:
                attempt = "cannot write a producer snapshot, its offset is above the log end offset"
                raise NotFound(attempt, partition=state.partition, offset=offset)
            files = ProducerFiles(state.storage, state.directory, is_onlooker=True)
            return encode_snapshot(files.state_at(offset, view.bases).entries())

        while True:
            cuts = state.cuts
            snapshot = self._retrying(encoded)
            with state.lock:  # a concurrent truncation, and appends after it, may be partly in the result
                if cuts == state.cuts:
                    return snapshot

    def decided_view(self) -> LogView:
        """Return the view with its open transactions; a read-only open reads them once from the disk."""
        state, source = self._state, self._state.source
        if source is not None and not source.has_read_producers:
            with state.lock:
                if not source.has_read_producers:
                    state.producer_state = source.producers_at(state.view.next_offset)
                    state.view = replace(state.view, unstable_offset=state.producer_state.first_unstable_offset)
                    source.has_read_producers = True
        return state.view

    def closed_stable_offset(self) -> int:
        """Return the last stable offset as far as the closed segments determine it: at most the active base."""
        source, base_offset = self._state.source, self._state.view.segments[-1].base_offset
        if (
            source is None
            or source.has_read_producers
            or source.producers_at(base_offset).first_unstable_offset is not None
        ):
            return self.decided_view().last_stable_offset
        return base_offset

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions for a read of ``[from_offset, upper_offset)``, by marker offset.

        `upper_offset` must not exceed the last stable offset. Source: kafka `LocalLog.collectAbortedTransactions`.
        """

        def found(view: LogView) -> list[AbortedTransaction]:
            return view.aborted_transactions(from_offset, upper_offset, self._open_transactions(view, from_offset))

        return self._retrying(found)

    def aborted_again(self, base_offset: int, problem: str) -> bytes:
        """Rebuild the ``.txnindex`` of a segment; return its bytes. Raises Corrupt, NotFound."""
        self._mend_transactions(self._state.view, base_offset, problem)
        return txn_index.encode(self.segment(base_offset).aborted())

    # -- reads ---------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, bytes_max: int = READ_BYTES, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> memoryview:
        """Return whole batches, the first one holding or following `offset`; no bytes at the end.

        - At most `bytes_max` bytes, but at least one batch.
        - READ_COMMITTED ends at the last stable offset. Batches of aborted transactions are included.
        - The first batch may hold records before `offset`.

        Raises OffsetOutOfRange outside ``[local_log_start_offset, next_offset]``.
        """
        limits = ReadLimits(bytes_max, self._upper(isolation))
        return self._retrying(lambda view: self._run(view, offset, limits, isolation)).data

    def columns(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[Columns]:
        """Yield the records from `start` to the current end, decoded and checked, in steps of bounded memory.

        Leaves out markers and, under READ_COMMITTED, aborted records. Raises as `read`, later also if the log start
        overtakes the reader, and Corrupt.
        """
        from local.records.batch_runs import decode_up_to_damage

        for offset, run, aborted in self._runs(start, isolation):
            try:
                for columns in decode_up_to_damage(run.data, table=run.table()):
                    committed = without_aborted(columns, aborted)
                    # Not only in the first run: after a truncation a batch that holds `offset` may begin below it.
                    is_split = run.base_offset < offset
                    yield committed.select(committed.offsets >= offset) if is_split else committed
            except Corrupt as error:
                raise Corrupt(error.attempt, partition=self._state.partition, **error.facts) from error

    def records(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[StoredRecord]:
        """Yield the records of `columns` one by one."""
        for columns in self.columns(start, isolation=isolation):
            yield from columns.records()

    # -- lookups -------------------------------------------------------------------------------------------------

    def newest(self) -> FoundOffset | None:
        """Return the first of the local records with the largest timestamp, None without one."""
        return self._retrying(lambda view: view.newest())

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first local record at or after `timestamp_ms` and the log start, or None."""
        found = self._retrying(lambda view: view.search(timestamp_ms))
        return found.offset if found is not None else None

    def _runs(self, start: int, isolation: Isolation) -> Iterator[_Stretch]:
        upper = self._upper(isolation)
        limits = ReadLimits(READ_BYTES, self._state.view.next_offset if upper is None else upper)
        offset = start
        while not (stretch := self._stretch(offset, limits, isolation)).run.is_empty:
            yield stretch
            offset = stretch.run.next_offset

    def _stretch(self, offset: int, limits: ReadLimits, isolation: Isolation) -> _Stretch:
        def read(view: LogView) -> _Stretch:
            run = self._run(view, offset, limits, isolation)
            if isolation is Isolation.READ_UNCOMMITTED or not _has_transactions(run):
                return _Stretch(offset, run, [])
            # From the same view: the entry of an aborted transaction is deleted with the segment of its marker.
            return _Stretch(offset, run, view.aborted_transactions(run.base_offset, run.next_offset))

        return self._retrying(read)

    def _run(self, view: LogView, offset: int, limits: ReadLimits, isolation: Isolation) -> BatchRun:
        view.check_inside(self._state.partition, offset)
        # The segment may hold a batch that is still being written, and that is removed again if the disk is full.
        # Since the limits were computed, a truncation may have put an open transaction where all was decided.
        end = view.last_stable_offset if isolation is Isolation.READ_COMMITTED else view.next_offset
        upper = end if limits.upper_offset is None else min(limits.upper_offset, end)
        return view.read(offset, limits._replace(upper_offset=upper))

    def _upper(self, isolation: Isolation) -> int | None:
        return self.decided_view().last_stable_offset if isolation is Isolation.READ_COMMITTED else None

    def _retrying(self, read: Callable[[LogView], _T]) -> _T:
        """Call `read` with the newest view, again if a segment of it was replaced or dropped by any process."""
        state, mended = self._state, set[tuple[int, str]]()
        while True:
            view = state.view
            try:
                return read(view)
            except WrongTransactionIndex as error:
                place = error.base_offset, error.problem
                if place in mended:
                    facts = {"partition": state.partition, "base_offset": error.base_offset}
                    raise Corrupt(f"cannot read committed records, {error.problem}", **facts) from error
                mended.add(place)
                self._mend_transactions(view, *place)
            except NotFound:
                with state.lock:  # the thread that replaced it holds the lock until the new view is published
                    if state.view is view:
                        if state.source is None:
                            raise
                        self.reload_files()
                        if _is_same(state.view, view):
                            raise

    def reload_files(self) -> None:
        """Load the directory of a read-only log again: another process writes, drops and cleans there."""
        state = self._state
        if state.source is None:
            return
        with state.lock:
            epochs = state.read_epochs()  # first: if it fails, source and view stay those of one moment
            loaded, log_start_offset = state.source.load()
            state.epochs = epochs
            state.publish(loaded.segments, log_start_offset=log_start_offset, next_offset=loaded.next_offset)
            state.recovery_point = loaded.next_offset

    def _open_transactions(self, view: LogView, offset: int) -> dict[int, int]:
        at = max(bisect.bisect_right(view.bases, offset) - 1, 0)
        onlooker = ProducerFiles(self._state.storage, self._state.directory, is_onlooker=True)
        entries = onlooker.state_at(view.bases[at], view.bases[:at], may_vanish=True).entries()
        return {e.producer_id: e.transaction_first_offset for e in entries if e.transaction_first_offset >= 0}

    def _mend_transactions(self, view: LogView, base_offset: int, problem: str) -> None:
        """Rebuild a transaction index, in memory if the disk is full or another process writes it."""
        from local.log.recovery import entries_again

        state, segment = self._state, view.segment(base_offset)
        if segment is None:
            raise NotFound("cannot rebuild a transaction index, the segment does not exist", base_offset=base_offset)
        with state.lock:
            if segment.is_retired:
                return  # the next view has its replacement
            entries = entries_again(segment, [each for each in view.bases if each < base_offset])
            _log.warning("a transaction index is wrong: path=%s cause=%s", segment.path(names.TXN_INDEX), problem)
            if not state.has_failed and not state.is_closed:
                try:
                    segment.replace_aborted(entries, on_disk=True)
                    return
                except DiskFailed as error:
                    _log.warning("cannot rebuild a transaction index: cause=%s", error)
            segment.replace_aborted(entries, on_disk=False)


def _has_transactions(run: BatchRun) -> bool:
    return not run.is_empty and bool((run.scan.attributes[run.rows] & TRANSACTIONAL).any())


def _is_same(found: LogView, before: LogView) -> bool:
    """Whether a new read-only open found segments of the same bases and sizes; the last may have grown."""
    if found.bases != before.bases or found.segments[-1].size_bytes < before.segments[-1].size_bytes:
        return False
    sizes = ([segment.size_bytes for segment in view.segments[:-1]] for view in (found, before))
    return next(sizes) == next(sizes)
