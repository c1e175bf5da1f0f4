"""When a closed segment is due for its copy (KIP-1241): the one rule, asked by the plan, status and the simulation.

A segment is due when its newest record is `copy_lag_ms` old, or when `copy_lag_bytes` of the log are newer: whichever
comes first. Zero in either makes it due once it is closed; None in both never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from local.segment.segment_info import SegmentInfo
from policies.formatting import format_ms
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot

NEVER = inf


def copy_due_ms(
    rules: PartitionRules, *, closed_ms: float, newest_ms: float, reached_ms: Callable[[int], float]
) -> float:
    """The time in ms from which a segment is due; `NEVER` where no time can be told.

    The segment was closed at `closed_ms` and its newest record is of `newest_ms`. `reached_ms` says when the bytes that
    are newer than the segment reach a number; `NEVER` while they do not.
    """
    lag_ms, lag_bytes = rules.copy_lag_ms, rules.copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return closed_ms
    by_age = NEVER if lag_ms is None else newest_ms + lag_ms
    by_size = NEVER if lag_bytes is None else reached_ms(lag_bytes)
    return max(closed_ms, min(by_age, by_size))


def copy_due_since_ms(snapshot: PartitionSnapshot) -> int | None:
    """Since when the oldest segment that waits for its copy is due; None while none is due, or no time can be told.

    A pause does not count, nor do copies under way: the segment is due all the same. Of a compacted topic only what
    was cleaned is due. A segment that is due by `remote.copy.lag.bytes` alone has no time.
    """
    if not snapshot.is_tiered or snapshot.rules.copy_disabled:
        return None
    for segment, _ in uncopied_with_newer(snapshot):
        if snapshot.rules.cleanup_compact and segment.next_offset > snapshot.clean_cut:
            return None
        since = segment_due_ms(snapshot, segment, newer_bytes=0)
        return int(since) if since <= snapshot.now_ms else None
    return None


def uncopied(snapshot: PartitionSnapshot) -> list[SegmentInfo]:
    """The closed segments with records at or above the log start that the remote tier does not reach, oldest first."""
    return [segment for segment, _ in uncopied_with_newer(snapshot)]


def uncopied_with_newer(snapshot: PartitionSnapshot) -> Iterator[tuple[SegmentInfo, int]]:
    """`uncopied`, each with the bytes of the log that are newer than it."""
    start = max(snapshot.remote_next_offset or 0, snapshot.log_start_offset)
    newer_bytes = sum(segment.size_bytes for segment in snapshot.segments)
    for segment in snapshot.closed:
        newer_bytes -= segment.size_bytes
        if segment.next_offset > start and not segment.is_empty:
            yield segment, newer_bytes


def segment_due_ms(snapshot: PartitionSnapshot, segment: SegmentInfo, newer_bytes: int) -> float:
    """`copy_due_ms` of a local segment. A timestamp or a file of a time to come does not put a copy off."""
    now_ms = snapshot.now_ms
    newest_ms = -NEVER if segment.age_timestamp_ms > now_ms else segment.age_timestamp_ms
    return copy_due_ms(
        snapshot.rules,
        closed_ms=min(segment.modified_ms, now_ms),
        newest_ms=newest_ms,
        reached_ms=lambda lag_bytes: now_ms if newer_bytes >= lag_bytes else NEVER,
    )


def lag_in_words(rules: PartitionRules) -> str:
    """The settings that the rule goes by: ``remote.copy.lag.ms=1h``, with ``or`` between two of them."""
    told = [] if rules.copy_lag_ms is None else [f"remote.copy.lag.ms={format_ms(rules.copy_lag_ms)}"]
    told += [] if rules.copy_lag_bytes is None else [f"remote.copy.lag.bytes={rules.copy_lag_bytes}"]
    return " or ".join(told) or "remote.copy.lag.ms and remote.copy.lag.bytes are unlimited"
