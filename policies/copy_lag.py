"""When a closed segment is due for its copy (KIP-1241), for the plan, the status and the simulation.

The copy lag of a segment ends when its newest record is `copy_lag_ms` old, or `copy_lag_bytes` of the log are newer: at
once with zero in either field, never with None in both. From then on it is due in each `copy_window`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from local.facts import SegmentInfo
from policies.formatting import format_ms
from policies.rules import ALL_DAY, PartitionRules
from policies.snapshot import PartitionFigures, PartitionSnapshot

NEVER = inf


def copy_due_ms(
    rules: PartitionRules, *, closed_ms: float, newest_ms: float, reached_ms: Callable[[int], float]
) -> float:
    """Return the first ms at which a segment is due. `reached_ms(n)`: when n bytes are newer. `NEVER`: unknown."""
    lag_ms, lag_bytes = rules.copy_lag_ms, rules.copy_lag_bytes
    by_age = NEVER if lag_ms is None else newest_ms + lag_ms
    by_size = NEVER if lag_bytes is None else reached_ms(lag_bytes)
    is_at_once = lag_ms == 0 or lag_bytes == 0
    lag_end_ms = closed_ms if is_at_once else max(closed_ms, min(by_age, by_size))
    return lag_end_ms if lag_end_ms == NEVER else rules.copy_window.next_open_ms(int(lag_end_ms))


def copy_due_since_ms(snapshot: PartitionFigures) -> int | None:
    """Return the time since which the oldest uncopied segment is due, also while copies are held.

    None while no segment is due, and for one that is due only by `remote.copy.lag.bytes`. Of a compacted topic only
    cleaned segments are due.
    """
    if not snapshot.is_tiered or snapshot.rules.copy_disabled:
        return None
    for segment, _ in uncopied_with_newer(snapshot):
        if snapshot.rules.cleanup_compact and segment.next_offset > snapshot.clean_cut:
            return None
        since = _due_ms(snapshot, segment, newer_bytes=0)
        return int(since) if since <= snapshot.now_ms else None
    return None


def uncopied(snapshot: PartitionFigures) -> list[SegmentInfo]:
    """Return the closed segments with retained records above the remote tier's end, oldest first."""
    return [segment for segment, _ in uncopied_with_newer(snapshot)]


def uncopied_with_newer(snapshot: PartitionFigures) -> Iterator[tuple[SegmentInfo, int]]:
    """Yield the segments of `uncopied`, each with the bytes of the log that are newer than it."""
    start = max(snapshot.remote_next_offset or 0, snapshot.log_start_offset)
    newer_bytes = sum(segment.size_bytes for segment in snapshot.segments)
    for segment in snapshot.closed:
        newer_bytes -= segment.size_bytes
        if segment.next_offset > start and not segment.is_empty:
            yield segment, newer_bytes


def segment_due_ms(snapshot: PartitionFigures, segment: SegmentInfo, newer_bytes: int) -> float:
    """Return the first ms at which a local segment may be copied, in the copy window."""
    due_ms, open_ms = _due_ms(snapshot, segment, newer_bytes), snapshot.rules.copy_window.next_open_ms(snapshot.now_ms)
    return due_ms if open_ms == snapshot.now_ms else max(due_ms, open_ms)


def _due_ms(snapshot: PartitionFigures, segment: SegmentInfo, newer_bytes: int) -> float:
    """Return `copy_due_ms` of a local segment. A timestamp or file time in the future does not delay the copy."""
    now_ms = snapshot.now_ms
    newest_ms = -NEVER if segment.age_timestamp_ms > now_ms else segment.age_timestamp_ms
    return copy_due_ms(
        snapshot.rules,
        closed_ms=min(segment.modified_ms, now_ms),
        newest_ms=newest_ms,
        reached_ms=lambda lag_bytes: now_ms if newer_bytes >= lag_bytes else NEVER,
    )


def are_uploads_held(snapshot: PartitionFigures) -> bool:
    """Return whether copies, replacements and views all wait now, regardless of their own rules."""
    is_outside = snapshot.is_tiered and snapshot.rules.copy_window.next_open_ms(snapshot.now_ms) > snapshot.now_ms
    return is_outside or snapshot.paused is not None


def without_copy_lag(snapshot: PartitionSnapshot) -> PartitionSnapshot:
    """Return the snapshot with rules that copy closed segments at once, for a producer that waits."""
    return replace(snapshot, rules=replace(snapshot.rules, copy_lag_ms=0, copy_window=ALL_DAY))


def due_reason(snapshot: PartitionFigures, segment: SegmentInfo) -> str:
    rules = snapshot.rules
    if rules.copy_lag_ms == 0 or rules.copy_lag_bytes == 0:
        return "not in the store yet"
    is_by_age = segment_due_ms(snapshot, segment, newer_bytes=0) <= snapshot.now_ms
    lag = format_ms(rules.copy_lag_ms or 0) if is_by_age else f"{rules.copy_lag_bytes} bytes"
    return f"a copy lag of {lag} has passed"


def wait_reason(rules: PartitionRules) -> str:
    used = [] if rules.copy_lag_ms is None else [f"remote.copy.lag.ms={format_ms(rules.copy_lag_ms)}"]
    used += [] if rules.copy_lag_bytes is None else [f"remote.copy.lag.bytes={rules.copy_lag_bytes}"]
    lag = " or ".join(used) or "remote.copy.lag.ms and remote.copy.lag.bytes are unlimited"
    waits = [] if rules.copy_lag_ms == 0 or rules.copy_lag_bytes == 0 else [f"a copy lag of {lag} has not passed"]
    if rules.copy_window != ALL_DAY:
        waits.append(f"uploads begin in remote.copy.window={rules.copy_window} UTC")
    return ", and ".join(waits)
