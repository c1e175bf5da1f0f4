"""Which local segments are dropped or expired. The kinds differ in their order of effects.

| function | segments | order |
|---|---|---|
| `local_drops` | committed in the store, or below the log start | safe at once |
| `local_expirations` | the only copy of records that retention ends | the log start passes them first |
| `disk_relief` | committed in the store, when a disk fills up: before their limits | safe at once |

Source: `UnifiedLog.deleteOldSegments`: log start, then size, then time (strict). Each scan ends at the first segment it
must keep. The active segment is never dropped here; it is rolled first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.decisions import DropLocal, ExpireRemote
from policies.deferrals import Action, Code, Deferral, put_off
from policies.formatting import format_ms
from policies.remote_retention import log_bytes
from policies.rules import Limits, local_expiry_ms
from policies.snapshot import PartitionSnapshot

MayGo = Callable[[SegmentInfo], bool]


def local_limits(snapshot: PartitionSnapshot) -> Limits:
    """Return `local.retention.*` while segments are copied, else `retention.*` (KIP-405, KIP-950)."""
    return snapshot.rules.local_limits if snapshot.is_copying_on else snapshot.rules.log_limits


def local_drops(snapshot: PartitionSnapshot) -> list[DropLocal]:
    """Return the local segments to drop now, oldest first: never the only copy of a retained record.

    Segments that the same plan copies do not count as copied.
    """

    def may_go(segment: SegmentInfo) -> bool:
        return segment.base_offset not in snapshot.copying and snapshot.has_safe_copy(segment)

    return _unwanted(snapshot, may_go)


def drop_deferrals(snapshot: PartitionSnapshot) -> list[Deferral]:
    """Return a deferral for each unwanted local segment that `local_drops` omits; oldest first."""
    if not snapshot.is_copying_on:
        return []
    dropped = len(local_drops(snapshot))
    wanted = {each.base_offset for each in _unwanted(snapshot, lambda segment: True)}
    return [_drop_deferral(snapshot, each) for each in snapshot.closed[dropped:] if each.base_offset in wanted]


def _drop_deferral(snapshot: PartitionSnapshot, segment: SegmentInfo) -> Deferral:
    if segment.base_offset in snapshot.copying:
        return put_off(Action.DROP, segment, Code.COPYING, "a copy is in progress")
    if not snapshot.has_safe_copy(segment):
        return put_off(Action.DROP, segment, Code.NOT_COPIED, "only the local disk has some of its records")
    return put_off(Action.DROP, segment, Code.ORDER, "an earlier segment waits")


def _unwanted(snapshot: PartitionSnapshot, may_go: MayGo) -> list[DropLocal]:
    """Return the segments below the log start or beyond the local limits, up to the first not `may_go`."""
    limits = local_limits(snapshot)
    dropped = _by_log_start(snapshot.closed, snapshot.log_start_offset, may_go)
    kept_bytes = sum(segment.size_bytes for segment in snapshot.segments[len(dropped) :])
    dropped += _by_size(snapshot.closed[len(dropped) :], kept_bytes, limits.bytes, may_go)
    return dropped + _by_time(snapshot.closed[len(dropped) :], snapshot.now_ms, limits.ms, may_go)


def local_expirations(
    snapshot: PartitionSnapshot, dropped: Sequence[DropLocal], expired: Sequence[ExpireRemote]
) -> list[DropLocal]:
    """Return the local segments that retention expires, oldest first.

    `dropped` and `expired` are the results of `local_drops` and `expirations` for the same snapshot. Empty while
    segments are being copied, or if an older entry stays.
    """
    expired_count = len(expired) + sum(page.segment_count for page in snapshot.dead_pages)
    if snapshot.is_copying_on or expired_count < snapshot.committed_count:
        return []

    def may_go(segment: SegmentInfo) -> bool:
        return segment.base_offset not in snapshot.copying

    limits = snapshot.rules.log_limits
    rest = snapshot.closed[len(dropped) :]
    going_bytes = sum(entry.size_bytes for entry in expired if entry.next_offset > snapshot.log_start_offset)
    kept_bytes = log_bytes(snapshot) - going_bytes
    ended = _by_size(rest, kept_bytes, limits.bytes, may_go)
    return ended + _by_time(rest[len(ended) :], snapshot.now_ms, limits.ms, may_go)


def disk_relief(snapshots: Iterable[PartitionSnapshot], wanted_bytes: int) -> dict[TopicPartition, list[DropLocal]]:
    """Return drops of at least `wanted_bytes`, or as many as there are, from the oldest segment on.

    A segment that is active, is being copied, or has uncommitted retained records (I2) stays, and all after it.
    """
    found: dict[TopicPartition, list[DropLocal]] = {}
    droppable = {each.partition: _droppable_prefix(each) for each in snapshots}
    queue = [(segments[0].age_timestamp_ms, name, 0) for name, segments in droppable.items() if segments]
    heapify(queue)
    freed = 0
    while queue and freed < wanted_bytes:
        _, name, at = heappop(queue)
        segment = droppable[name][at]
        found.setdefault(name, []).append(_drop(segment, "the disk is nearly full, and the store has a copy"))
        freed += segment.size_bytes
        if at + 1 < len(droppable[name]):
            heappush(queue, (droppable[name][at + 1].age_timestamp_ms, name, at + 1))
    return found


def _droppable_prefix(snapshot: PartitionSnapshot) -> list[SegmentInfo]:
    safe = []
    for segment in snapshot.closed if snapshot.is_tiered else ():
        if segment.base_offset in snapshot.copying or not snapshot.has_safe_copy(segment):
            break
        safe.append(segment)
    return safe


def _by_log_start(segments: Sequence[SegmentInfo], log_start_offset: int, may_go: MayGo) -> list[DropLocal]:
    dropped: list[DropLocal] = []
    for segment in segments:
        if segment.next_offset > log_start_offset or not may_go(segment):
            break
        dropped.append(_drop(segment, f"below the log start {log_start_offset}"))
    return dropped


def _by_size(segments: Sequence[SegmentInfo], kept_bytes: int, limit: int | None, may_go: MayGo) -> list[DropLocal]:
    dropped: list[DropLocal] = []
    for segment in segments:
        if limit is None or kept_bytes - segment.size_bytes < limit or not may_go(segment):
            break
        dropped.append(_drop(segment, f"{kept_bytes} bytes kept, limit {limit}"))
        kept_bytes -= segment.size_bytes
    return dropped


def _by_time(segments: Sequence[SegmentInfo], now_ms: int, limit: int | None, may_go: MayGo) -> list[DropLocal]:
    dropped: list[DropLocal] = []
    for segment in segments:
        newest_ms = segment.age_timestamp_ms
        if limit is None or now_ms < local_expiry_ms(newest_ms, limit) or not may_go(segment):
            break
        dropped.append(_drop(segment, f"newest record {format_ms(now_ms - newest_ms)} old, limit {format_ms(limit)}"))
    return dropped


def _drop(segment: SegmentInfo, reason: str) -> DropLocal:
    return DropLocal(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
        reason=reason,
    )
