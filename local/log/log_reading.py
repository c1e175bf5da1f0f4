"""The side of a log that needs no lock: facts, reads, streams, lookups. `local.log.log.Log` adds everything that
changes.

A reader takes the frozen `LogView` of the moment and works on it. When a segment was dropped or replaced under it
(NotFound), it takes the next view and starts over with the same offset: never a hole, never a wait for a writer's
disk. What is gone for good is an offset out of range, with the range that is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from local.errors import Corrupt, NotFound
from local.format.record import StoredRecord
from local.index.txn_index import AbortedTransaction
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
    """What a reader finds at `offset`; the first batch may begin below it."""

    offset: int
    run: BatchRun
    aborted: list[AbortedTransaction]


class ReadableLog:
    """See the module text. Thread safe; an iterator belongs to one thread."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.cleaner_offset: int | None = None
        self.cleaner_reach = 0  # below it records may have gone for the sake of newer ones
        self.epochs = LeaderEpochs()
        self._lock = threading.RLock()
        self._view = LogView((), (), 0, 0)
        self._producers = ProducerState()
        # The transactions that are open where the segment of an offset begins, as (producer, first offset); and making
        # the transaction index of a segment, told by its base, again for a problem. Both know the directory.
        self._open_before: Callable[[LogView, int], Mapping[int, int]] = lambda view, offset: {}
        self._mend_transactions: Callable[[LogView, int, str], None] = lambda view, base_offset, problem: None
        # Of a log that is only looked at, beside the process that writes it.
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
        """Where the lineage begins: at the log start, or at the first segment where that lies below it.

        An empty log remembers the epoch of the last record there was, as no later one has begun.
        """
        view = self._view
        return max(0, min(view.log_start_offset, view.bases[0], view.next_offset - 1))

    @property
    def next_offset(self) -> int:
        return self._view.next_offset

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: where the earliest open one began, else the log end."""
        return self._decided_view().last_stable_offset

    @property
    def closed_stable_offset(self) -> int:
        """The last stable offset, as far as closed segments are concerned.

        Where no transaction is open at the base of the active segment, that base will do, and a log that another
        process writes needs no read of its active segment.
        """
        find = self._find_closed_producers
        if self._find_producers is not None and find is not None and find().first_unstable_offset is None:
            return self._view.segments[-1].base_offset
        return self.last_stable_offset

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Those that concern a read of ``[from_offset, upper_offset)``, by their marker's offset.

        `upper_offset` is at most the last stable offset; what lies above is not decided. An entry is there before its
        marker can be read. Source: kafka `LocalLog.collectAbortedTransactions`.
        """

        def look(view: LogView) -> list[AbortedTransaction]:
            return view.aborted_transactions(from_offset, upper_offset, self._open_before(view, from_offset))

        return self._retrying(look)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._view.segments)

    def sources(self) -> tuple[Segment, ...]:
        """The segments themselves, ascending, for whoever copies their bytes; the last one goes on growing."""
        return self._view.segments

    def segments(self, *, first_times_from: int | None = None, with_times: bool = True) -> tuple[SegmentInfo, ...]:
        """Facts about every local segment, ascending; the last is the active one.

        With `first_times_from` also the `first_timestamp_ms` of sealed segments that reach above that offset: a read of
        61 bytes each, the first time. Without `with_times` no time is read: largest timestamps are None. Raises
        DiskFailed.
        """
        return self._retrying(lambda view: view.infos(self.cleaner_offset, first_times_from, with_times=with_times))

    def segment(self, base_offset: int) -> Segment:
        """The segment with exactly this base. Raises NotFound."""
        found = self._view.segment(base_offset)
        if found is None:
            raise NotFound("finding a local segment", partition=self.partition, base_offset=base_offset)
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
        """Whole batches, the first of them holding `offset` or being the next one after it; empty at the end.

        At most `bytes_max` bytes, but at least one batch, however large; with `min_one` False nothing where the first
        batch alone is larger. Under READ_COMMITTED the end is the last stable offset, and batches of aborted
        transactions are among those given (`aborted_transactions` names them). Records before `offset` in the first
        batch are the caller's to skip. Raises OffsetOutOfRange outside ``[local_log_start_offset, next_offset]``.
        """
        limits = ReadLimits(bytes_max, min_one, self._upper(isolation))
        return self._retrying(lambda view: self._run(view, offset, limits, isolation)).data

    def batches(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[memoryview]:
        """Runs of whole batches from the one that holds `start` up to the end as it is now, each about READ_BYTES.

        Raises, with the first item, what `read` does; OffsetOutOfRange later when the log start overtakes the reader.
        """
        for stretch in self._runs(start, isolation):
            yield stretch.run.data

    def columns(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[Columns]:
        """The records at or above `start` up to the end as it is now, decoded and checked, in steps of bounded memory.

        Without transaction markers, and under READ_COMMITTED without the records of aborted transactions.
        Raises as `batches` does, and Corrupt naming the partition and the offset.
        """
        for offset, run, aborted in self._runs(start, isolation):
            for columns in self._decoded(run):
                kept = without_aborted(columns, aborted)
                # Not the first run alone: after a truncation a batch may hold `offset` that begins below it.
                yield kept.select(kept.offsets >= offset) if run.base_offset < offset else kept

    def records(self, start: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Iterator[StoredRecord]:
        """As `columns`, record by record."""
        for columns in self.columns(start, isolation=isolation):
            yield from columns.records()

    # -- lookups -------------------------------------------------------------------------------------------------

    def offset_for(
        self, spec: OffsetSpec | int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> FoundOffset | None:
        """The offset that a name or a timestamp in ms means; None when no record is late enough, or none has a time.

        Under READ_COMMITTED `LATEST` is the last stable offset, and a record at or above it is not found. Looks at the
        local tier alone. Raises InvalidRequest for a negative number that is no spec.
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
        """Offset of the first local record at or after `timestamp_ms` (and the log start); None when there is none."""
        found = self._retrying(lambda view: view.search(timestamp_ms))
        return found.offset if found is not None else None

    # -- inside --------------------------------------------------------------------------------------------------

    def producers(self) -> list[ProducerEntry]:
        """What the log knows of each producer at this moment, by producer id."""
        with self._lock:
            self._decided_view()
            return self._producers.entries()

    def _decided_view(self) -> LogView:
        """The view with its open transactions: a mere onlooker looks for them on the disk only when somebody asks."""
        if self._find_producers is not None:
            with self._lock:
                if self._find_producers is not None:
                    self._producers = self._find_producers()
                    self._view = replace(self._view, unstable_offset=self._producers.first_unstable_offset)
                    self._find_producers = None
        return self._view

    def _runs(self, start: int, isolation: Isolation) -> Iterator[_Stretch]:
        """Up to the end as it is now; under READ_COMMITTED with the aborted transactions of each run."""
        upper = self._upper(isolation)
        limits = ReadLimits(READ_BYTES, upper_offset=self.next_offset if upper is None else upper)
        offset = start
        while not (stretch := self._stretch(offset, limits, isolation)).run.is_empty:
            yield stretch
            offset = stretch.run.next_offset

    def _run(self, view: LogView, offset: int, limits: ReadLimits, isolation: Isolation) -> BatchRun:
        view.check_inside(self.partition, offset)
        # The segment may hold a batch that is still being written, and goes again where there is no room for all of it.
        # A truncation may have put an open transaction where all was decided when the limits were drawn.
        end = view.last_stable_offset if isolation is Isolation.READ_COMMITTED else view.next_offset
        upper = end if limits.upper_offset is None else min(limits.upper_offset, end)
        return view.read(offset, limits._replace(upper_offset=upper))

    def _stretch(self, offset: int, limits: ReadLimits, isolation: Isolation) -> _Stretch:
        def read(view: LogView) -> _Stretch:
            run = self._run(view, offset, limits, isolation)
            if isolation is Isolation.READ_UNCOMMITTED or not _has_transactions(run):
                return _Stretch(offset, run, [])
            # Of the same view: what tells of aborted records goes with the segment that holds their marker.
            return _Stretch(offset, run, view.aborted_transactions(run.base_offset, run.next_offset))

        return self._retrying(read)

    def _decoded(self, run: BatchRun) -> Iterator[Columns]:
        from local.records.decoding import decode_up_to_damage

        try:
            yield from decode_up_to_damage(run.data, table=run.table())
        except Corrupt as error:
            raise Corrupt(error.attempt, partition=self.partition, **error.facts) from error

    def _upper(self, isolation: Isolation) -> int | None:
        """Where READ_COMMITTED ends; None without that end."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else None

    def _retrying(self, look: Callable[[LogView], _Answer]) -> _Answer:
        """What `look` finds in the newest view; again when a segment of it was replaced or dropped meanwhile.

        Where another process did that, the newest view is what the disk holds now.
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
                    raise Corrupt(f"reading committed records, {error.problem}", **facts) from error
                mended.add(place)
                self._mend_transactions(view, *place)
            except NotFound:
                with self._lock:  # whoever did it holds the lock until the new view is out
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
    """Whether another look has found no other sealed segments: one that was cleaned by itself has the same base. The
    last one may grow with every look; where it is shorter, its owner cut it."""
    if found.bases != before.bases or found.segments[-1].size_bytes < before.segments[-1].size_bytes:
        return False
    sizes = ([segment.size_bytes for segment in view.segments[:-1]] for view in (found, before))
    return next(sizes) == next(sizes)
