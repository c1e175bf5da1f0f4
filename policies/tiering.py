"""Which closed segments are copied to the store, and when the active one is closed.

Source: KIP-405 (`RemoteLogManager.candidateLogSegments`), KIP-1241 (copy lag), `UnifiedLog.deletableSegments` for the
roll of an idle active segment.
"""

from __future__ import annotations

from collections.abc import Iterable

from local.segment_info import SegmentInfo
from policies.decisions import CopySegment, RollActive
from policies.local_retention import local_limits
from policies.snapshot import PartitionSnapshot
from policies.words import format_ms

COMMIT_SEGMENTS_MAX = 100  # copies that share a commit: what a crash makes us upload again, at most
COMMIT_BYTES = 64 << 20  # or as many as hold this much: about a second of a fast link


def completes_commit(segments: int, size_bytes: int) -> bool:
    """Whether uploads of so many segments, and of so much in all, are committed before the next one goes up."""
    return segments >= COMMIT_SEGMENTS_MAX or size_bytes >= COMMIT_BYTES


def commits_of(sizes: Iterable[int]) -> int:
    """How many commits copies of segments of these sizes take, in bytes and in this order, if none is waited for."""
    commits = segments = held = 0
    for size_bytes in sizes:
        segments, held = segments + 1, held + size_bytes
        if completes_commit(segments, held):
            commits, segments, held = commits + 1, 0, 0
    return commits + bool(segments)


def rolls(snapshot: PartitionSnapshot, going_count: int) -> list[RollActive]:
    """At most one roll of the active segment; an empty one never rolls.

    `going_count` is how many closed segments retention lets go of in the same plan.

    It rolls when its newest record is older than `segment.ms` (appends roll by the oldest one, which the log itself
    sees), and when retention reaches it: everything before it is going and it breaches too. It goes in a later round.
    """
    active = snapshot.active
    if active is None or active.is_empty:
        return []
    reason = _idle(snapshot, active) or _breached(snapshot, active, going_count)
    return [RollActive(base_offset=active.base_offset, size_bytes=active.size_bytes, reason=reason)] if reason else []


def copies(snapshot: PartitionSnapshot) -> list[CopySegment]:
    """The closed segments to copy, oldest first; none may be committed before the one ahead of it is.

    Candidates hold an offset at or above max(highest committed, log start) and lie wholly below the stable offset. The
    first segment that may not go ends the scan, as does one already being copied: order of commits is order of offsets.
    So the copies follow one another from the store's end up, and no local record at or above the log start is left out
    in between.

    A compacted topic copies what lies wholly below the cleaner's checkpoint (I6), all of it or nothing, and commits it
    at once: were the bucket to end in the middle, it would hold neither the older records that went nor the newer ones
    they went for. The copy lag is that of the oldest; the others come along. While uploads are paused nothing is.
    """
    if not snapshot.is_copying_on or snapshot.paused is not None:
        return []
    start = max(snapshot.remote_next_offset or 0, snapshot.log_start_offset)
    chosen: list[CopySegment] = []
    newer_bytes = sum(segment.size_bytes for segment in snapshot.segments)
    for segment in snapshot.closed:
        newer_bytes -= segment.size_bytes
        if segment.next_offset <= start or segment.is_empty:
            continue
        comes_along = bool(chosen) and snapshot.rules.cleanup_compact
        reason = _copy_reason(snapshot, segment, None if comes_along else newer_bytes)
        if reason is None:
            if snapshot.rules.cleanup_compact and segment.next_offset <= snapshot.clean_cut:
                return []
            break
        chosen.append(
            CopySegment(
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size_bytes=segment.size_bytes,
                reason=reason,
                is_indivisible=snapshot.rules.cleanup_compact,
            )
        )
    return chosen


def _copy_reason(snapshot: PartitionSnapshot, segment: SegmentInfo, newer_bytes: int | None) -> str | None:
    """Why `segment` goes now, or None if it may not. Without `newer_bytes` no copy lag is waited for."""
    if segment.next_offset > snapshot.stable_offset or segment.base_offset in snapshot.copying:
        return None
    if snapshot.remote_next_offset is not None and segment.base_offset < snapshot.remote_next_offset:
        return None  # straddles what is committed: two rows would claim the same offsets
    if snapshot.rules.cleanup_compact and segment.next_offset > snapshot.clean_cut:
        return None
    due = "with those before it" if newer_bytes is None else _due(snapshot, segment, newer_bytes)
    if due is None:
        return None
    return f"closed and cleaned, {due}" if snapshot.rules.cleanup_compact else f"closed, {due}"


def _due(snapshot: PartitionSnapshot, segment: SegmentInfo, newer_bytes: int) -> str | None:
    """Whether the copy lag has passed (KIP-1241): by age, or by how many bytes of the log are newer."""
    lag_ms, lag_bytes = snapshot.rules.copy_lag_ms, snapshot.rules.copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return "not yet in the store"
    age_ms = snapshot.now_ms - segment.age_timestamp_ms
    if lag_ms is not None and (age_ms < 0 or age_ms >= lag_ms):  # a future timestamp does not hold a copy up
        return f"copy lag of {format_ms(lag_ms)} passed"
    if lag_bytes is not None and newer_bytes >= lag_bytes:
        return f"copy lag of {lag_bytes} bytes passed"
    return None


def _idle(snapshot: PartitionSnapshot, active: SegmentInfo) -> str | None:
    idle_ms = snapshot.now_ms - active.age_timestamp_ms
    limit = snapshot.rules.segment_ms
    return f"newest record {format_ms(idle_ms)} old, segment.ms={format_ms(limit)}" if idle_ms > limit else None


def _breached(snapshot: PartitionSnapshot, active: SegmentInfo, going_count: int) -> str | None:
    """Kafka rolls only when the scan reaches the active segment, so an outage does not shred the log into crumbs."""
    if going_count < len(snapshot.closed):
        return None
    limits = local_limits(snapshot)
    age_ms = snapshot.now_ms - active.age_timestamp_ms
    if limits.ms is not None and age_ms > limits.ms:
        return f"newest record {format_ms(age_ms)} old, retention {format_ms(limits.ms)}"
    if limits.bytes == 0:
        return "retention of 0 bytes"
    return None
