"""Which closed segments are copied, which are put off, and when the active segment is rolled.

Source: KIP-405 (`RemoteLogManager.candidateLogSegments`), KIP-1241 (copy lag), `UnifiedLog.deletableSegments` for the
roll of an idle active segment.
"""

from __future__ import annotations

from collections.abc import Iterable

from local.facts import SegmentInfo
from policies.copy_lag import NEVER, due_reason, segment_due_ms, uncopied, uncopied_with_newer, wait_reason
from policies.decisions import Action, Code, CopySegment, Deferral, RollActive, put_off
from policies.formatting import format_ms
from policies.retention import local_limits
from policies.rules import local_expiry_ms
from policies.snapshot import PartitionFigures, PartitionSnapshot

COMMIT_SEGMENTS_MAX = 100  # copies that share a commit: the most uploads that a crash can make us repeat
COMMIT_BYTES = 64 << 20  # or copies of this many bytes: about a second of a fast link


def completes_commit(segments: int, size_bytes: int) -> bool:
    """Whether this many uploaded segments and bytes are committed before the next upload."""
    return segments >= COMMIT_SEGMENTS_MAX or size_bytes >= COMMIT_BYTES


def commits_of(sizes: Iterable[int]) -> int:
    """Return the number of commits for copies of segments of these sizes, in copy order."""
    commits = segments = uncommitted_bytes = 0
    for size_bytes in sizes:
        segments, uncommitted_bytes = segments + 1, uncommitted_bytes + size_bytes
        if completes_commit(segments, uncommitted_bytes):
            commits, segments, uncommitted_bytes = commits + 1, 0, 0
    return commits + bool(segments)


def rolls(snapshot: PartitionSnapshot, going_count: int) -> list[RollActive]:
    """Return at most one roll of the active segment; none if the segment is empty.

    A roll is due if the newest record is older than `segment.ms`, or if this plan removes all closed segments
    (`going_count`) and the active segment breaches a limit of the retention.
    """
    active = snapshot.active
    if active is None or active.is_empty:
        return []
    idle_ms, limit_ms = snapshot.now_ms - active.age_timestamp_ms, snapshot.rules.segment_ms
    if snapshot.now_ms >= idle_roll_ms(snapshot, active):
        reason: str | None = f"newest record {format_ms(idle_ms)} old, segment.ms={format_ms(limit_ms)}"
    else:
        reason = _breached(snapshot, active, going_count)
    return [RollActive(base_offset=active.base_offset, size_bytes=active.size_bytes, reason=reason)] if reason else []


def copies(snapshot: PartitionSnapshot) -> list[CopySegment]:
    """Return the closed segments to copy, oldest first; none while uploads are paused.

    Candidates hold an offset at or above max(highest committed, log start) and are wholly below the stable offset. The
    scan ends at the first segment that is put off or already being copied, because commits follow offset order. So the
    copies are contiguous from the store's end, and skip no retained record.

    A compacted topic copies all segments wholly below the cleaner's checkpoint (I6), or none, in one commit. A bucket
    that ended in between could hold no record of a key. The copy lag of the oldest segment decides for all of them.
    """
    if not snapshot.is_copying_on or snapshot.paused is not None:
        return []
    is_compacted = snapshot.rules.cleanup_compact
    found: list[CopySegment] = []
    for segment, newer_bytes in uncopied_with_newer(snapshot):
        comes_along = bool(found) and is_compacted
        if _hindrance(snapshot, segment, None if comes_along else newer_bytes) is not None:
            if is_compacted and segment.next_offset <= snapshot.clean_cut:
                return []
            break
        due = "with the earlier segments" if comes_along else due_reason(snapshot, segment)
        reason = f"closed and cleaned, {due}" if is_compacted else f"closed, {due}"
        found.append(CopySegment.of(segment, reason, is_indivisible=is_compacted))
    return found


def copy_deferrals(
    snapshot: PartitionSnapshot, *, is_cleaning: bool = False, is_rolling: bool = False
) -> list[Deferral]:
    """Return a deferral for each segment, also the active one, that the tier and `copies` lack; oldest first."""
    if not snapshot.is_tiered:
        return []
    planned = {each.base_offset for each in copies(snapshot)}
    found: list[Deferral] = []
    for segment, newer_bytes in uncopied_with_newer(snapshot):
        if segment.base_offset not in planned:
            in_order = Code.ORDER, "segments are copied in the order of their offsets, and an earlier segment waits"
            code, why = _partition_hindrance(snapshot) or _hindrance(snapshot, segment, newer_bytes) or in_order
            due = segment_due_ms(snapshot, segment, newer_bytes) if code is Code.COPY_LAG else NEVER
            found.append(put_off(Action.COPY, segment, code, why, int(due) if due < NEVER else None))
        elif is_cleaning:
            found.append(put_off(Action.COPY, segment, Code.CLEANING, "the log must be cleaned first"))
    active = snapshot.active
    if active is not None and not active.is_empty and active.next_offset > snapshot.log_start_offset:
        found.append(_active_deferral(snapshot, active, is_rolling=is_rolling))
    return found


def _hindrance(snapshot: PartitionSnapshot, segment: SegmentInfo, newer_bytes: int | None) -> tuple[Code, str] | None:
    """Return why `segment` is not copied now; None: it is. `newer_bytes` None ignores the copy lag."""
    if segment.base_offset in snapshot.copying:
        return Code.COPYING, "a copy is in progress"
    if segment.next_offset > snapshot.stable_offset:
        return Code.OPEN_TRANSACTION, f"a transaction is open from offset {snapshot.stable_offset}"
    if snapshot.remote_next_offset is not None and segment.base_offset < snapshot.remote_next_offset:
        # Two entries would claim the same offsets.
        return Code.OVERLAP, f"the remote tier ends inside this segment, at offset {snapshot.remote_next_offset}"
    if snapshot.rules.cleanup_compact and segment.next_offset > snapshot.clean_cut:
        return Code.NOT_CLEANED, "a segment of a compacted topic is cleaned before it is copied"
    if newer_bytes is not None and segment_due_ms(snapshot, segment, newer_bytes) > snapshot.now_ms:
        return Code.COPY_LAG, wait_reason(snapshot.rules)
    return None


def _partition_hindrance(snapshot: PartitionSnapshot) -> tuple[Code, str] | None:
    if snapshot.tier_disabled or snapshot.rules.gives_up_remote:
        return Code.GIVING_UP, "the remote tier was disabled, and its data is being deleted"
    if snapshot.rules.copy_disabled:
        return Code.COPY_DISABLED, "copying is disabled: remote.log.copy.disable=true"
    pause = snapshot.paused
    if pause is None:
        return None
    return Code.PAUSED, "uploads are paused" + (f": {pause.reason}" if pause.reason else "")


def remote_unknown_deferrals(snapshot: PartitionFigures, why: str) -> list[Deferral]:
    return [put_off(Action.COPY, each, Code.REMOTE_UNKNOWN, why) for each in uncopied(snapshot)]


def _active_deferral(snapshot: PartitionSnapshot, active: SegmentInfo, *, is_rolling: bool) -> Deferral:
    if is_rolling:
        return put_off(Action.COPY, active, Code.ACTIVE, "this plan rolls the active segment, a later plan copies it")
    limit = snapshot.rules.segment_ms
    words = f"the active segment rolls when it is full, or idle for segment.ms={format_ms(limit)}"
    return put_off(Action.COPY, active, Code.ACTIVE, words, idle_roll_ms(snapshot, active))


def idle_roll_ms(snapshot: PartitionSnapshot, active: SegmentInfo) -> int:
    """The first ms at which the active segment is closed without another append."""
    return local_expiry_ms(active.age_timestamp_ms, snapshot.rules.segment_ms)


def _breached(snapshot: PartitionSnapshot, active: SegmentInfo, going_count: int) -> str | None:
    """The breached limit; None without one, or while a closed segment stays, as in an outage (Kafka)."""
    if going_count < len(snapshot.closed):
        return None
    limits = local_limits(snapshot)
    age_ms = snapshot.now_ms - active.age_timestamp_ms
    if limits.ms is not None and snapshot.now_ms >= local_expiry_ms(active.age_timestamp_ms, limits.ms):
        return f"newest record {format_ms(age_ms)} old, retention {format_ms(limits.ms)}"
    if limits.bytes == 0:
        return "retention of 0 bytes"
    return None
