"""Which segments leave a disk that fills before their time: only what the bucket holds, the oldest first."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from local.names import TopicPartition
from local.segment.segment_info import SegmentInfo
from policies.decisions import DropLocal
from policies.snapshot import PartitionSnapshot


def disk_relief(snapshots: Iterable[PartitionSnapshot], wanted_bytes: int) -> dict[TopicPartition, list[DropLocal]]:
    """Drops of at least `wanted_bytes` where there are so many; each partition's from its oldest segment on.

    Never the active segment, never one that is being copied or whose retained records are not all committed (I2), and
    none behind such a one.
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
                reason="the disk fills, and the store has it",
            )
        )
        freed += segment.size_bytes
        if at + 1 < len(droppable[name]):
            heappush(queue, (droppable[name][at + 1].age_timestamp_ms, name, at + 1))
    return found


def _prefix(snapshot: PartitionSnapshot) -> list[SegmentInfo]:
    """The oldest closed segments that the disk may lose."""
    safe = []
    for segment in snapshot.closed if snapshot.is_tiered else ():
        if segment.base_offset in snapshot.copying or not snapshot.has_safe_copy(segment):
            break
        safe.append(segment)
    return safe
