"""Facts, reads, streams and lookups of a log, without a lock. `local.log.log.Log` adds the changes.

A reader takes the current immutable `LogView`. If a segment of it was dropped or replaced (NotFound), the reader takes
the next view and repeats the same offset. It never sees a hole and never waits for a writer's disk. Offsets that the
log no longer has raise OffsetOutOfRange with the remaining range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from local.errors import Corrupt, NotFound
from local.format.record import StoredRecord
from local.index.txn_index import AbortedTransaction
from local.lock_ranks import LockRank, ranked_lock
from local.log.leader_epochs import LeaderEpochs
from local.log.log_view import LogView
from local.log.producer_snapshot import ProducerEntry
from local.log.producer_state import ProducerState
from local.names import TopicPartition
from local.records.isolation import Isolation, without_aborted
from local.records.offset_spec import FoundOffset, OffsetSpec, parse_spec
from local.segment.segment import Segment, WrongTransactionIndex
from local.segment.segment_info import SegmentInfo
from local.segment.segment_reading import BatchRun, ReadLimits

if TYPE_CHECKING:
    from local.format.columns import Columns

READ_BYTES = 1 << 20
_Answer = TypeVar("_Answer")


class _Stretch(NamedTuple):
    """The batches for a reader at `offset`. The first batch may begin below it."""

    offset: int
    run: BatchRun
    aborted: list[AbortedTransaction]


class ReadableLog:
    """The reads of a log, see the module. Thread safe; an iterator belongs to one thread."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.cleaner_offset: int | None = None
        self.cleaner_reach = 0  # below it the cleaner may have removed records for newer ones
        self.epochs = LeaderEpochs()
        self._lock = ranked_lock(LockRank.LOG)
        self._view = LogView((), (), 0, 0)
        self._producers = ProducerState()
        # Both functions know the directory. The first returns the transactions open at the base of the segment that
        # holds an offset, as (producer, first offset). The second rebuilds the transaction index of the segment at a
        # base offset.
        self._open_before: Callable[[LogView, int], Mapping[int, int]] = lambda view, offset: {}
        self._mend_transactions: Callable[[LogView, int, str], None] = lambda view, base_offset, problem: None
        # In a read-only open, while another process writes the log.
        self._find_producers: Callable[[], ProducerState] | None = None
        self._find_closed_producers: Callable[[], ProducerState] | None = None  # at the active segment's base
        self._look_again: Callable[[], None] | None = None

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._view.log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        return self._view.local_log_start_offset

    @property
    def first_known_offset(self) -> int:
        """The start of the leader epochs: the log start, or the first segment's base if that is lower.

        An empty log keeps the epoch of its last record, because no later epoch has begun.
        """
        view = self._view
        return max(0, min(view.log_start_offset, view.bases[0], view.next_offset - 1))

    @property
    def next_offset(self) -> int:
        return self._view.next_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided.

        It is the start of the earliest open transaction, or the log end.
        """
        return self._decided_view().last_stable_offset

    @property
    def closed_stable_offset(self) -> int:
        """The last stable offset, as far as the closed segments determine it.

        If no transaction is open at the base of the active segment, the result is that base. A read-only open then
        need not read the active segment.
        """
        find = self._find_closed_producers
        if self._find_producers is not None and find is not None and find().first_unstable_offset is None:
            return self._view.segments[-1].base_offset
        return self.last_stable_offset

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions for a read of ``[from_offset, upper_offset)``, by marker offset.

        `upper_offset` must not exceed the last stable offset, because records above it are undecided. An entry exists
        before its marker is readable. Source: kafka `LocalLog.collectAbortedTransactions`.
        """

        def look(view: LogView) -> list[AbortedTransaction]:
            return view.aborted_transactions(from_offset, upper_offset, self._open_before(view, from_offset))

        return self._retrying(look)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._view.segments)

    def sources(self) -> tuple[Segment, ...]:
        """Return the segments themselves, ascending, for copying their bytes. The last one keeps growing."""
        return self._view.segments

    def segments(self, *, first_times_from: int | None = None, with_times: bool = True) -> tuple[SegmentInfo, ...]:
        """Return the facts of every local segment, ascending; the last is the active one.

        - `first_times_from`: also return `first_timestamp_ms` of closed segments that reach above that offset. The
          first call reads 61 bytes of each.
        - Without `with_times` no time is read, and largest timestamps are None.

        Raises DiskFailed.
        """
        return self._retrying(lambda view: view.infos(self.cleaner_offset, first_times_from, with_times=with_times))

    def segment(self, base_offset: int) -> Segment:
        """Return the segment with exactly this base. Raises NotFound."""
        found = self._view.segment(base_offset)
        if found is None:
            raise NotFound("cannot find a local segment", partition=self.partition, base_offset=base_offset)
        return found

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

        Each run has about READ_BYTES.

        The first item raises the errors of `read`. Later items raise OffsetOutOfRange if the log start overtakes the
        reader.
        """
        for stretch in self._runs(start, isolation):
            yield stretch.run.data

    def columns(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[Columns]:
        """Yield the records from `start` to the current end, decoded and checked, in steps of bounded memory.

        Transaction markers are left out, and under READ_COMMITTED also the records of aborted transactions. Raises as
        `batches` does, and Corrupt with the partition and the offset.
        """
        for offset, run, aborted in self._runs(start, isolation):
            for columns in self._decoded(run):
                kept = without_aborted(columns, aborted)
                # Not only in the first run: after a truncation a batch that holds `offset` may begin below it.
                yield kept.select(kept.offsets >= offset) if run.base_offset < offset else kept

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
        match parse_spec(spec):
            case OffsetSpec.LATEST:
                upper = self._upper(isolation)
                return FoundOffset(self.next_offset if upper is None else upper, None, self.epochs.latest)
            case OffsetSpec.EARLIEST:
                start = self.log_start_offset
                return FoundOffset(start, None, self.epochs.epoch_at(start))
            case OffsetSpec.EARLIEST_LOCAL:
                start = self.local_log_start_offset
                return FoundOffset(start, None, self.epochs.epoch_at(start))
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

    # -- inside --------------------------------------------------------------------------------------------------

    def producers(self) -> list[ProducerEntry]:
        """Return the current state of each producer, by producer id."""
        with self._lock:
            self._decided_view()
            return self._producers.entries()

    def _decided_view(self) -> LogView:
        """Return the view with its open transactions.

        A read-only open reads them from the disk at the first call.
        """
        if self._find_producers is not None:
            with self._lock:
                if self._find_producers is not None:
                    self._producers = self._find_producers()
                    self._view = replace(self._view, unstable_offset=self._producers.first_unstable_offset)
                    self._find_producers = None
        return self._view

    def _runs(self, start: int, isolation: Isolation) -> Iterator[_Stretch]:
        """Yield runs to the current end; under READ_COMMITTED with the aborted transactions of each."""
        upper = self._upper(isolation)
        limits = ReadLimits(READ_BYTES, upper_offset=self.next_offset if upper is None else upper)
        offset = start
        while not (stretch := self._stretch(offset, limits, isolation)).run.is_empty:
            yield stretch
            offset = stretch.run.next_offset

    def _run(self, view: LogView, offset: int, limits: ReadLimits, isolation: Isolation) -> BatchRun:
        view.check_inside(self.partition, offset)
        # The segment may hold a batch that is still being written, and that is removed again if the disk is full.
        # Since the limits were computed, a truncation may have put an open transaction where all was decided.
        end = view.last_stable_offset if isolation is Isolation.READ_COMMITTED else view.next_offset
        upper = end if limits.upper_offset is None else min(limits.upper_offset, end)
        return view.read(offset, limits._replace(upper_offset=upper))

    def _stretch(self, offset: int, limits: ReadLimits, isolation: Isolation) -> _Stretch:
        def read(view: LogView) -> _Stretch:
            run = self._run(view, offset, limits, isolation)
            if isolation is Isolation.READ_UNCOMMITTED or not _has_transactions(run):
                return _Stretch(offset, run, [])
            # From the same view: the entry of an aborted transaction is deleted with the segment that holds its
            # marker.
            return _Stretch(offset, run, view.aborted_transactions(run.base_offset, run.next_offset))

        return self._retrying(read)

    def _decoded(self, run: BatchRun) -> Iterator[Columns]:
        from local.records.decoding import decode_up_to_damage

        try:
            yield from decode_up_to_damage(run.data, table=run.table())
        except Corrupt as error:
            raise Corrupt(error.attempt, partition=self.partition, **error.facts) from error

    def _upper(self, isolation: Isolation) -> int | None:
        """Return the end for READ_COMMITTED; None for other reads."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else None

    def _retrying(self, look: Callable[[LogView], _Answer]) -> _Answer:
        """Call `look` with the newest view, again if a segment of the view was replaced or dropped.

        If another process did that, the newest view comes from the disk.
        """
        mended: set[tuple[int, str]] = set()
        while True:
            view = self._view
            try:
                return look(view)
            except WrongTransactionIndex as error:
                place = error.base_offset, error.problem
                if place in mended:
                    facts = {"partition": self.partition, "base_offset": error.base_offset}
                    raise Corrupt(f"cannot read committed records, {error.problem}", **facts) from error
                mended.add(place)
                self._mend_transactions(view, *place)
            except NotFound:
                with self._lock:  # the thread that replaced it holds the lock until the new view is published
                    if self._view is view and self._look_again is not None:
                        self._look_again()
                        if _is_same(self._view, view):
                            raise
                    elif self._view is view:
                        raise


def _has_transactions(run: BatchRun) -> bool:
    from local.format.batch_header import TRANSACTIONAL

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
