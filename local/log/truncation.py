"""Truncate a log: find the cut, and make it.

Truncation removes whole batches: the batch that holds the offset is removed. The log still ends at the offset, as
Kafka's does. If the last remaining batch ends below the offset, an empty segment with the offset as its name is
created. A start then finds the same end.

| step | effect | after a crash, start-up finds |
|---|---|---|
| 1 | recovery point and cleaner offset lowered to the new end, checkpoints written | all records; it checks more |
| 2 | later segments removed, newest first, each durably | a shorter log without a hole; the rest may come back |
| 3 | the log file cut and synced | the new end; it rebuilds the indexes |
| 4 | its indexes and its transaction index cut to match, synced | as after 3 |
| 5 | if the last batch ends below the offset: a segment created there, an empty one removed | as after 3 or 4 |
| 6 | producer snapshots above the new end removed, durably | as after 3: start-up removes them too |
| 7 | the epochs that began there removed from their checkpoint | the truncated log |

- Step 1 is first because start-up trusts all bytes below the recovery point. With a recovery point above the cut, new
  records that a power cut has torn would count as damage of durable bytes.
- Step 6 comes before the next append. A snapshot of the truncated history would otherwise look valid once new records
  reach its offset.

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
    """The cut of a log: `segment` is the last remaining one.

    Its first `position` bytes remain: the batches of `kept`.
    """

    segment: Segment
    doomed: Sequence[Segment]
    position: int
    next_offset: int
    kept: BatchTable


def find(storage: Storage, segments: Sequence[Segment], offset: int) -> Cut | None:
    """Return the cut before all records at or above `offset`. Changes nothing.

    Returns None if no segment begins at or below `offset`. Raises Corrupt if the headers are unsound up to there.
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
        raise Corrupt(f"cannot truncate the log, {table.problem}", path=segment.path(LOG), at=table.valid_bytes)
    return Cut(
        segment=segment,
        doomed=segments[len(staying) :],
        position=int(table.positions[rows]) if rows < len(table) else table.valid_bytes,
        next_offset=int(table.last_offsets[rows - 1]) + 1 if rows else segment.base_offset,
        kept=table.select(slice(0, rows)),
    )


def make(storage: Storage, directory: str, cut: Cut, *, interval_bytes: int) -> Segment:
    """Do steps 2 to 4 and return the remaining segment.

    The old object raises NotFound from the first cut on.
    """
    loading.discard(storage, directory, cut.doomed)
    segment = cut.segment
    aborted = txn_index.truncate(segment.txn_index(), cut.next_offset)
    segment.retire()
    if segment.has_failed_sync:
        # A sync under way failed: the remaining bytes may be lost even if the next sync succeeds.
        raise DiskFailed("cannot truncate the log, an fsync of it failed", path=segment.path(LOG))
    recovery.cut_segment(storage, directory, segment.base_offset, cut.position, cut.kept, aborted, interval_bytes)
    return Segment.load(storage, directory, segment.base_offset, interval_bytes=interval_bytes)


def end_at(storage: Storage, directory: str, segment: Segment, cut: Cut, offset: int, *, now_ms: int) -> list[Segment]:
    """Do step 5.

    Return the remaining segment and, if the log would end below `offset`, one that begins there.
    """
    if cut.next_offset == offset or segment.base_offset == offset:
        return [segment]
    fresh = Segment.create(storage, directory, offset, created_ms=now_ms)
    if segment.size_bytes:
        return [segment, fresh]
    loading.discard(storage, directory, [segment])
    return [fresh]
