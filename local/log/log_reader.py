"""Reads, streams and lookups of a log, without its lock.

A reader takes the current immutable `LogView`. If a segment of it was dropped or replaced (NotFound), the reader takes
the next view and repeats the same offset. It never sees a hole and never waits for a writer's disk. Offsets that the
log no longer has raise OffsetOutOfRange with the remaining range.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from local import names
from local.errors import Corrupt, DiskFailed, NotFound
from local.format.batch_header import TRANSACTIONAL
from local.format.record import StoredRecord
from local.index import txn_index
from local.index.txn_index import AbortedTransaction
from local.log.log_state import LogState
from local.log.log_view import LogView
from local.log.producer_files import ProducerFiles
from local.log.producer_snapshot import ProducerEntry
from local.records.isolation import Isolation, without_aborted
from local.records.offset_spec import FoundOffset, OffsetSpec, parse_spec
from local.segment.segment import Segment, WrongTransactionIndex
from local.segment.segment_info import SegmentInfo
from local.segment.segment_reading import BatchRun, ReadLimits

if TYPE_CHECKING:
    from local.format.columns import Columns

READ_BYTES = 1 << 20
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class _Stretch(NamedTuple):
    """Consecutive batches for a reader at `offset`. The first batch may begin below `offset`."""

    offset: int
    run: BatchRun
    aborted: list[AbortedTransaction]


class LogReader:
    """The reads of one log, see the module. Thread safe; an iterator belongs to one thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    # -- segments and transactions -------------------------------------------------------------------------------

    def segments(self, *, first_times_from: int | None = None, with_times: bool = True) -> tuple[SegmentInfo, ...]:
        """Return the facts of every local segment, ascending; the last is the active one.

        - `first_times_from`: also return `first_timestamp_ms` of closed segments that reach above that offset. The
          first call reads 61 bytes of each.
        - Without `with_times` no time is read, and largest timestamps are None.

        Raises DiskFailed.
        """
        cleaner_offset = self._state.cleaner_offset
        return self._retrying(lambda view: view.infos(cleaner_offset, first_times_from, with_times=with_times))

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
            return self._state.producers.entries()

    def producer_snapshot(self, offset: int) -> bytes:
        """Return a ``.snapshot`` of the producers before `offset`, a segment's base or the log end.

        A missing one is computed again. No append waits for that. Raises NotFound above the log end, Corrupt as
        reading the log does.
        """
        state = self._state

        def encoded(view: LogView) -> bytes:
            if offset > view.next_offset:
                attempt = "cannot write a producer snapshot, its offset is above the log end offset"
                raise NotFound(attempt, partition=state.partition, offset=offset)
            return ProducerFiles(state.storage, state.directory, is_onlooker=True).encoded(offset, view.bases)

        while True:
            cuts = state.cuts
            snapshot = self._retrying(encoded)
            with state.lock:  # a concurrent truncation, and appends after it, may be partly in the result
                if cuts == state.cuts:
                    return snapshot

    def decided_view(self) -> LogView:
        """Return the view with its open transactions. A read-only open reads them from the disk at the first call."""
        state, source = self._state, self._state.source
        if source is not None and not source.has_read_producers:
            with state.lock:
                if not source.has_read_producers:
                    state.producers = source.producers()
                    state.view = replace(state.view, unstable_offset=state.producers.first_unstable_offset)
                    source.has_read_producers = True
        return state.view

    def closed_stable_offset(self) -> int:
        """Return the last stable offset, as far as the closed segments determine it.

        If no transaction is open at the base of the active segment, the result is that base. A read-only open then
        need not read the active segment.
        """
        source = self._state.source
        is_unread = source is not None and not source.has_read_producers
        if source is not None and is_unread and source.closed_producers().first_unstable_offset is None:
            return self._state.view.segments[-1].base_offset
        return self.decided_view().last_stable_offset

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions for a read of ``[from_offset, upper_offset)``, by marker offset.

        `upper_offset` must not exceed the last stable offset, because records above it are undecided. An entry exists
        before its marker is readable. Source: kafka `LocalLog.collectAbortedTransactions`.
        """

        def found(view: LogView) -> list[AbortedTransaction]:
            return view.aborted_transactions(from_offset, upper_offset, self._open_transactions(view, from_offset))

        return self._retrying(found)

    def aborted_again(self, base_offset: int, problem: str) -> bytes:
        """Rebuild the ``.txnindex`` of a segment because of `problem`; return its bytes. Raises Corrupt, NotFound."""
        self._mend_transactions(self._state.view, base_offset, problem)
        return txn_index.encode(self.segment(base_offset).aborted())

    # -- reads ---------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        bytes_max: int = READ_BYTES,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        min_one: bool = True,
    ) -> memoryview:
        """Return whole batches, the first one holding or following `offset`; no bytes at the end.

        - At most `bytes_max` bytes, but at least one batch. Without `min_one`, no bytes if the first batch alone is
          larger.
        - READ_COMMITTED ends at the last stable offset. Batches of aborted transactions are included;
          `aborted_transactions` names them.
        - The caller skips records before `offset` in the first batch.

        Raises OffsetOutOfRange outside ``[local_log_start_offset, next_offset]``.
        """
        limits = ReadLimits(bytes_max, min_one, self._upper(isolation))
        return self._retrying(lambda view: self._run(view, offset, limits, isolation)).data

    def batches(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[memoryview]:
        """Yield runs of whole batches from the one that holds `start` to the current end.

        Each run has about READ_BYTES. The first item raises the errors of `read`. Later items raise OffsetOutOfRange
        if the log start overtakes the reader.
        """
        for stretch in self._runs(start, isolation):
            yield stretch.run.data

    def columns(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[Columns]:
        """Yield the records from `start` to the current end, decoded and checked, in steps of bounded memory.

        Transaction markers are left out, and under READ_COMMITTED also the records of aborted transactions. Raises as
        `batches` does, and Corrupt with the partition and the offset.
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

    def offset_for(
        self, spec: OffsetSpec | int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> FoundOffset | None:
        """Return the offset for a name or a timestamp in ms, in the local tier only.

        None means that no record is late enough, or none has a time. Under READ_COMMITTED `LATEST` is the last stable
        offset, and a record at or above it is not found. Raises InvalidRequest for a negative number that is no spec.
        """
        view, epochs = self._state.view, self._state.epochs
        match parse_spec(spec):
            case OffsetSpec.LATEST:
                upper = self._upper(isolation)
                return FoundOffset(self._state.view.next_offset if upper is None else upper, None, epochs.latest)
            case OffsetSpec.EARLIEST:
                return FoundOffset(view.log_start_offset, None, epochs.epoch_at(view.log_start_offset))
            case OffsetSpec.EARLIEST_LOCAL:
                return FoundOffset(view.local_log_start_offset, None, epochs.epoch_at(view.local_log_start_offset))
            case OffsetSpec.MAX_TIMESTAMP:
                found = self._retrying(lambda view: view.newest())
            case timestamp_ms:
                found = self._retrying(lambda view: view.search(timestamp_ms))
        upper = self._upper(isolation)
        return None if found is None or (upper is not None and found.offset >= upper) else found

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first local record at or after `timestamp_ms` and the log start, or None."""
        found = self._retrying(lambda view: view.search(timestamp_ms))
        return found.offset if found is not None else None

    # -- private -------------------------------------------------------------------------------------------------

    def _runs(self, start: int, isolation: Isolation) -> Iterator[_Stretch]:
        """Yield runs to the current end; under READ_COMMITTED with the aborted transactions of each."""
        upper = self._upper(isolation)
        limits = ReadLimits(READ_BYTES, upper_offset=self._state.view.next_offset if upper is None else upper)
        offset = start
        while not (stretch := self._stretch(offset, limits, isolation)).run.is_empty:
            yield stretch
            offset = stretch.run.next_offset

    def _stretch(self, offset: int, limits: ReadLimits, isolation: Isolation) -> _Stretch:
        def read(view: LogView) -> _Stretch:
            run = self._run(view, offset, limits, isolation)
            if isolation is Isolation.READ_UNCOMMITTED or not _has_transactions(run):
                return _Stretch(offset, run, [])
            # From the same view: the entry of an aborted transaction is deleted with the segment that holds its
            # marker.
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
        """Return the end for READ_COMMITTED; None for other reads."""
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
        """Return producer and first offset of the transactions open at the base of the segment of `offset`."""
        at = max(bisect.bisect_right(view.bases, offset) - 1, 0)
        onlooker = ProducerFiles(self._state.storage, self._state.directory, is_onlooker=True)
        entries = onlooker.state_at(view.bases[at], view.bases[:at], may_vanish=True).entries()
        return {e.producer_id: e.transaction_first_offset for e in entries if e.transaction_first_offset >= 0}

    def _mend_transactions(self, view: LogView, base_offset: int, problem: str) -> None:
        """Rebuild a transaction index, in memory if the disk is not ours to write or is full."""
        from local.log.recovery import entries_again

        state, segment = self._state, view.segment(base_offset)
        if segment is None:
            raise NotFound("cannot rebuild a transaction index, the segment does not exist", base_offset=base_offset)
        with state.lock:
            if segment.is_retired:
                return  # the next view has its replacement
            before = [each for each in view.bases if each < base_offset]
            entries = entries_again(state.storage, state.directory, segment, before)
            _log.warning("a transaction index is wrong: path=%s cause=%s", segment.path(names.TXN_INDEX), problem)
            if not state.has_failed and not state.is_closed:
                try:
                    segment.replace_aborted(entries, on_disk=True)
                except DiskFailed as error:
                    _log.warning("cannot rebuild a transaction index: cause=%s", error)
                else:
                    return
            segment.replace_aborted(entries, on_disk=False)


def _has_transactions(run: BatchRun) -> bool:
    return not run.is_empty and bool((run.scan.attributes[run.rows] & TRANSACTIONAL).any())


def _is_same(found: LogView, before: LogView) -> bool:
    """Return whether a new read-only open found the same closed segments.

    A segment cleaned alone has the same base, so sizes are compared too. The last segment may have grown; a smaller
    one was truncated by the writer.
    """
    if found.bases != before.bases or found.segments[-1].size_bytes < before.segments[-1].size_bytes:
        return False
    sizes = ([segment.size_bytes for segment in view.segments[:-1]] for view in (found, before))
    return next(sizes) == next(sizes)
