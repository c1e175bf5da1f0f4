"""Sample partitions for the policies: segments, entries and snapshots with an age instead of a timestamp."""

from __future__ import annotations

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.decisions import Decision
from policies.invariants import violations
from policies.plan import plan_partition
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PendingDelete
from remote.manifest.view import CompactedView
from remote.segment_entry import SegmentEntry, SegmentState

NOW = 1_000_000
KEEP = PartitionRules(retention_ms=None, local_retention_ms=None)


def local(
    base: int, following: int, *, size: int = 100, age: int | None = 100, active: bool = False, modified_age: int = 0
) -> SegmentInfo:
    return SegmentInfo(
        base_offset=base,
        next_offset=following,
        size_bytes=size,
        max_timestamp_ms=None if age is None else NOW - age,
        is_active=active,
        modified_ms=NOW - modified_age,
    )


def entry(
    base: int,
    following: int,
    *,
    size: int = 100,
    age: int | None = 100,
    state: SegmentState = SegmentState.COPY_FINISHED,
    ulid: str = "",
    committed_age: int = 0,
) -> SegmentEntry:
    return SegmentEntry(
        ulid=ulid or f"u{base}",
        base_offset=base,
        next_offset=following,
        size_bytes=size,
        stored_bytes=1,
        record_count=following - base,
        max_timestamp_ms=None if age is None else NOW - age,
        min_timestamp_ms=None,
        epochs=((0, base),),
        data_crc32c=0,
        data_key=f"data/{base}.log",
        indexes_key=f"data/{base}.indexes",
        indexes_bytes=10,
        indexes={},
        committed_ms=NOW - committed_age,
        state=state,
    )


def snapshot(
    *segments: SegmentInfo,
    remote: tuple[SegmentEntry, ...] = (),
    rules: PartitionRules = KEEP,
    start: int = 0,
    copying: frozenset[int] = frozenset(),
    pending_deletes: tuple[PendingDelete, ...] = (),
    views: tuple[CompactedView, ...] = (),
    is_tiered: bool = True,
    cleaner: int | None = None,
) -> PartitionSnapshot:
    end = segments[-1].next_offset
    return PartitionSnapshot(
        partition=TopicPartition("orders", 0),
        rules=rules,
        now_ms=NOW,
        log_start_offset=start,
        next_offset=end,
        stable_offset=end,
        segments=segments,
        is_tiered=is_tiered,
        remote=remote,
        pending_deletes=pending_deletes,
        views=views,
        cleaner_offset=cleaner,
        copying=copying,
    )


def planned(taken: PartitionSnapshot) -> list[Decision]:
    """The plan, checked for violations."""
    decided = plan_partition(taken)
    assert violations(taken, decided) == []
    return decided


LOCAL = (local(0, 2), local(2, 4), local(4, 5, active=True))
REMOTE = (entry(0, 2), entry(2, 4))
