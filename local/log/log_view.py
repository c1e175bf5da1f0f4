"""An immutable view of a log for readers: its segments and offsets at one moment.

Every change replaces it. Readers never wait. They work on a view. If one of its segments was replaced or dropped
(NotFound), they ask the log for the next view.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from local.errors import Corrupt, OffsetOutOfRange
from local.index.txn_index import AbortedTransaction
from local.names import TopicPartition
from local.records.offset_spec import FoundOffset
from local.segment.segment import Segment, WrongTransactionIndex
from local.segment.segment_info import SegmentInfo
from local.segment.segment_reading import BatchRun, ReadLimits, no_run, read_segment

if TYPE_CHECKING:
    from local.format.columns import BatchTable, Columns


_TIME_SEARCH = ReadLimits(bytes_max=1 << 20)


class LargestTimes:
    """The running maximum of the timestamps of a list of closed segments, computed at the first request.

    Timestamps need not ascend, but their running maximum does. A binary search therefore finds the first segment that
    is late enough. Views with the same list share the object.
    """

    def __init__(self, sealed: tuple[Segment, ...] = ()) -> None:
        self._sealed = sealed
        self._running: list[int] | None = None

    def first_reaching(self, timestamp_ms: int) -> int:
        """Return the index of the first segment that is late enough; their number without one. Raises NotFound."""
        if self._running is None:
            known = (-1 if each.max_timestamp_ms is None else each.max_timestamp_ms for each in self._sealed)
            self._running = list(accumulate(known, max))
        return bisect.bisect_left(self._running, timestamp_ms)


@dataclass(frozen=True, slots=True)
class LogView:
    """One view of a log. Segments ascend, `bases` are their base offsets, `next_offset` is the log end.

    - `times` covers the closed segments.
    - `unstable_offset` is the start of the earliest open transaction, None without one. It is published together with
      the log end: a marker takes effect only once it is readable, and an aborted transaction's entry is written by
      then.
    - `tail_bytes` and `is_tail_active` describe the last segment at this moment. The segment may grow or be closed
      while the view is in use. With the current state and the view's log end, it would look like a segment that ends
      there.
    """

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    log_start_offset: int
    next_offset: int
    times: LargestTimes = field(default_factory=LargestTimes)
    unstable_offset: int | None = None
    tail_bytes: int = 0
    is_tail_active: bool = False

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided: the start of the earliest open one, or the log end."""
        if self.unstable_offset is None:
            return self.next_offset
        return min(max(self.unstable_offset, self.log_start_offset), self.next_offset)

    @property
    def local_log_start_offset(self) -> int:
        return max(self.log_start_offset, self.bases[0])

    @property
    def first_known_offset(self) -> int:
        """The start of the leader epochs: the log start, or the first segment's base if that is lower.

        An empty log keeps the epoch of its last record, because no later epoch has begun.
        """
        return max(0, min(self.log_start_offset, self.bases[0], self.next_offset - 1))

    def infos(
        self, cleaner_offset: int | None, first_times_from: int | None = None, *, with_times: bool = True
    ) -> tuple[SegmentInfo, ...]:
        """Return the facts of every segment; the last is the active one.

        Reading times raises NotFound if a segment was replaced or deleted since.
        """
        ends = (*self.bases[1:], self.next_offset)
        last, found = len(ends) - 1, []
        for at, (segment, end) in enumerate(zip(self.segments, ends, strict=True)):
            is_active = at == last and self.is_tail_active
            is_asked = first_times_from is not None and end > first_times_from and not is_active
            info = segment.info(
                segment.max_timestamp_ms if with_times else None,
                next_offset=end,
                size_bytes=self.tail_bytes if at == last else segment.size_bytes,
                is_active=is_active,
                is_clean=cleaner_offset is not None and end <= cleaner_offset,
                first_timestamp_ms=segment.first_timestamp_ms() if is_asked else None,
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
        """Return whole batches, the first one holding or following `offset`; empty if the limits admit none.

        Raises NotFound if a segment was replaced, Corrupt.
        """
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
        """Return the aborted transactions that concern ``[from_offset, upper_offset)``.

        Markers may be above it. `open_before` maps producer to first offset, for transactions open at the base of the
        segment that holds `from_offset`. It is not needed for records at or above `from_offset`. Every index is
        compared with the batches of its segment. The search continues after `upper_offset` until each transaction with
        records below it has reached its marker. Raises NotFound, Corrupt, and WrongTransactionIndex for an index that
        contradicts the log.
        """
        from local.index.txn_index import carried_problem

        found: list[AbortedTransaction] = []
        undecided = {producer: first for producer, first in (open_before or {}).items() if first < upper_offset}
        ended: dict[int, int] = {}  # the last marker of each producer so far
        at = max(bisect.bisect_right(self.bases, from_offset) - 1, 0)
        for segment, end in zip(self.segments[at:], (*self.bases[at + 1 :], self.next_offset), strict=True):
            is_last = segment is self.segments[-1]
            entries, said = segment.checked_aborted(self.tail_bytes if is_last else segment.size_bytes)
            problem = carried_problem(entries, said, undecided, ended)
            if problem is not None:
                raise WrongTransactionIndex(segment.base_offset, problem)
            found += [each for each in entries if each.last_offset >= from_offset and each.first_offset < upper_offset]
            for producer in said.first_ended:
                undecided.pop(producer, None)
            for producer, first in said.open_from.items():
                if first < upper_offset:
                    undecided.setdefault(producer, first)
            ended.update(said.last_ended)
            if end >= upper_offset and not undecided:
                break
        return found

    def search(self, timestamp_ms: int) -> FoundOffset | None:
        """Return the first record at or after `timestamp_ms` and the local log start. Raises NotFound, Corrupt."""
        start = self.local_log_start_offset
        for at in range(self.times.first_reaching(timestamp_ms), len(self.segments)):
            segment = self.segments[at]
            if segment.max_timestamp_ms is not None and segment.max_timestamp_ms >= timestamp_ms:
                found = first_at_or_after(segment, timestamp_ms, start)
                if found is not None:
                    return found
        return None

    def newest(self) -> FoundOffset | None:
        """Return the first of the records with the largest timestamp. Raises NotFound, Corrupt."""
        start = self.local_log_start_offset
        segments = self._reaching(start)
        known = [-1 if each.max_timestamp_ms is None else each.max_timestamp_ms for each in segments]
        scanned: set[int] = set()
        while (largest := max(known)) >= 0:
            at = known.index(largest)
            found = first_at_or_after(segments[at], largest, start)
            if found is not None:
                return found
            # The time was of a record below the start, or is of a batch being written: the readable batches decide.
            reread = None if at in scanned else largest_timestamp(segments[at], start)
            known[at] = -1 if reread is None else reread
            scanned.add(at)
        return None

    def _reaching(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments that may hold records at or above `offset`."""
        return self.segments[max(bisect.bisect_right(self.bases, offset) - 1, 0) :]


# Find records by time inside one segment, exactly, with the time index and the batches' headers.
#
# A time index entry ``(t, o)`` states that no record before the batch that ends at `o` is newer than `t`. The search
# starts at the entry before the last one below the target, so one wrong entry hides no record. A batch that contradicts
# the last entry proves that the index is wrong.
#
# Only batches with a late enough largest timestamp are decoded. As in Kafka every record counts, transaction markers
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
    """Rebuild the indexes, because a late batch is below `claimed`, the offset at which the time index starts."""
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
