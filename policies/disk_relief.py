"""Which segments a disk that fills up drops early: only segments in the remote tier, oldest first."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from local.names import TopicPartition
from local.segment.segment_info import SegmentInfo
from policies.decisions import DropLocal
from policies.snapshot import PartitionSnapshot


def disk_relief(snapshots: Iterable[PartitionSnapshot], wanted_bytes: int) -> dict[TopicPartition, list[DropLocal]]:
    """Return drops of at least `wanted_bytes`, or as many as there are.

    The drops of each partition begin at its oldest segment. These segments, and all segments after one of them, stay:

    - the active segment;
    - a segment that is being copied;
    - a segment with retained records that are not committed (I2).
    """
    found: dict[TopicPartition, list[DropLocal]] = {}
    droppable = {each.partition: _prefix(each) for each in snapshots}
    queue = [(segments[0].age_timestamp_ms, name, 0) for name, segments in droppable.items() if segments]
    heapify(queue)
    freed = 0
    while queue and freed < wanted_bytes:
        _, name, at = heappop(queue)
        segment = droppable[name][at]
        found.setdefault(name, []).append(
            DropLocal(
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
                reason="the disk is nearly full, and the store has a copy",
            )
        )
        freed += segment.size_bytes
        if at + 1 < len(droppable[name]):
            heappush(queue, (droppable[name][at + 1].age_timestamp_ms, name, at + 1))
    return found


def _prefix(snapshot: PartitionSnapshot) -> list[SegmentInfo]:
    """Return the oldest closed segments that the disk may lose."""
    safe = []
    for segment in snapshot.closed if snapshot.is_tiered else ():
        if segment.base_offset in snapshot.copying or not snapshot.has_safe_copy(segment):
            break
        safe.append(segment)
    return safe
