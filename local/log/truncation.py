"""Taking records away at the end of a log: where the cut lies, and the cut itself.

A batch is the smallest thing that is truncated: the one that holds the offset is truncated whole. The log ends at the
offset all the same, as Kafka's does. Where the last batch that stays ends below it, an empty segment is made that has
the offset for its name: a start finds the same end.

| step | effect | a crash after it, and what start-up makes of it |
|---|---|---|
| 1 | recovery point and cleaner offset lowered to the new end, checkpoints written | nothing is gone; more is checked |
| 2 | later segments removed, newest first, each durably | a shorter log without a hole; the rest may come back |
| 3 | the log file cut and synced | that is its end; its indexes are made again |
| 4 | its indexes and its transaction index cut to match, synced | as after 3 |
| 5 | where the last batch ends below the offset: a segment made there; one that is empty removed | as after 3 or 4 |
| 6 | producer snapshots above the new end removed, durably | as after 3: start-up removes them too |
| 7 | the epochs that began there taken out of their checkpoint | done |

Step 1 comes first because a recovery point vouches: were it left above the cut, records appended there later and torn
by a power cut would pass for damage of what was durable once. Step 6 comes before the next append because a snapshot of
the old history, at an offset that the new one reaches, could not be told from a right one.
Source: kafka `LocalLog.truncateTo`, `LogSegment.truncateTo`, `UnifiedLog.truncateTo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from local import kernels
from local.errors import Corrupt, DiskFailed
from local.format.columns import BatchTable
from local.index import txn_index
from local.log import loading, recovery
from local.names import LOG
from local.segment.segment import Segment
from local.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`segment` is the last to stay, with its first `position` bytes: the batches of `kept`."""

    segment: Segment
    doomed: Sequence[Segment]
    position: int
    next_offset: int
    kept: BatchTable


def find(storage: Storage, segments: Sequence[Segment], offset: int) -> Cut | None:
    """Where all records at or above `offset` end; None when no segment begins at or below it. Changes nothing.

    Raises Corrupt when the batches cannot be told apart up to there.
    """
    staying = [segment for segment in segments if segment.base_offset <= offset]
    if not staying:
        return None
    segment = staying[-1]
    data = storage.map(segment.path(LOG))
    try:
        table = kernels.scan_batches(data[: segment.size_bytes], verify=False)
    finally:
        data.release()
    rows = int((table.last_offsets < offset).sum())
    if rows == len(table) and table.problem is not None:
        raise Corrupt(f"truncating a log, {table.problem}", path=segment.path(LOG), at=table.valid_bytes)
    return Cut(
        segment=segment,
        doomed=segments[len(staying) :],
        position=int(table.positions[rows]) if rows < len(table) else table.valid_bytes,
        next_offset=int(table.last_offsets[rows - 1]) + 1 if rows else segment.base_offset,
        kept=table.select(slice(0, rows)),
    )


def make(storage: Storage, directory: str, cut: Cut, *, interval_bytes: int) -> Segment:
    """Steps 2 to 4; the segment that stays, as it is now. The old object answers NotFound from the first cut on."""
    loading.discard(storage, directory, cut.doomed)
    segment = cut.segment
    aborted = txn_index.truncate(segment.txn_index(), cut.next_offset)
    segment.retire()
    if segment.has_failed_sync:
        # One that was under way: what stays of the file may be lost, whatever the next sync says.
        raise DiskFailed("truncating a log, a sync of it failed", path=segment.path(LOG))
    recovery.cut_segment(storage, directory, segment.base_offset, cut.position, cut.kept, aborted, interval_bytes)
    return Segment.load(storage, directory, segment.base_offset, interval_bytes=interval_bytes)


def end_at(storage: Storage, directory: str, segment: Segment, cut: Cut, offset: int, *, now_ms: int) -> list[Segment]:
    """Step 5: the segment that stays, and behind it one that begins at `offset` where the log would end below it."""
    if cut.next_offset == offset or segment.base_offset == offset:
        return [segment]
    fresh = Segment.create(storage, directory, offset, created_ms=now_ms)
    if segment.size_bytes:
        return [segment, fresh]
    loading.discard(storage, directory, [segment])
    return [fresh]
