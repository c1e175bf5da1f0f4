"""When a compacted log is worth cleaning, and which part of it.

Source: `LogCleanerManager.grabFilthiestCompactedLog`, `cleanableOffsets`. Cleaning comes before copying: only what lies
wholly below the checkpoint that a pass leaves is ever uploaded (`policies.tiering`). In this version a pass never drops
a tombstone, since older values of its key may sit in the store and would rise again (I5).
"""

from __future__ import annotations

from policies.decisions import CleanLog
from policies.snapshot import PartitionSnapshot


def cleanings(snapshot: PartitionSnapshot) -> list[CleanLog]:
    """At most one pass, over ``[first dirty, first uncleanable)``, when the dirty share exceeds the ratio (strict).

    The active segment and what lies above the stable offset are never cleaned; nor is anything while a copy of this
    partition is under way, which reads the files that a pass would replace.
    """
    if not snapshot.rules.cleanup_compact or snapshot.copying:
        return []
    dirty_from = first_dirty_offset(snapshot)
    upto = first_uncleanable_offset(snapshot)
    clean = sum(segment.size_bytes for segment in snapshot.closed if segment.next_offset <= dirty_from)
    dirty = sum(
        segment.size_bytes
        for segment in snapshot.closed
        if dirty_from < segment.next_offset and segment.next_offset <= upto
    )
    share, limit = dirty / max(1, clean + dirty), snapshot.rules.min_cleanable_dirty_ratio
    if share <= limit:
        return []
    reason = f"dirty share {share:.2f}, min.cleanable.dirty.ratio={limit}"
    return [CleanLog(first_dirty_offset=dirty_from, upto_offset=upto, size_bytes=dirty, reason=reason)]


def first_dirty_offset(snapshot: PartitionSnapshot) -> int:
    """The cleaner's checkpoint; the log start where there is none or where it lies outside the log (Kafka)."""
    start = snapshot.log_start_offset
    if snapshot.cleaner_offset is None or not start <= snapshot.cleaner_offset <= snapshot.next_offset:
        return start
    return snapshot.cleaner_offset


def first_uncleanable_offset(snapshot: PartitionSnapshot) -> int:
    """Where a pass must stop: a segment's base, never above the stable offset or the active segment's base.

    The first dirty segment with a record younger than `min.compaction.lag.ms` ends it as well.
    """
    dirty_from = first_dirty_offset(snapshot)
    upto = dirty_from
    for segment in snapshot.closed:
        if segment.next_offset <= dirty_from:
            continue
        too_young = segment.age_timestamp_ms > snapshot.now_ms - snapshot.rules.min_compaction_lag_ms
        if segment.next_offset > snapshot.stable_offset or (snapshot.rules.min_compaction_lag_ms > 0 and too_young):
            break
        upto = segment.next_offset
    return upto
