"""Where every partition stands: what each tier holds, what waits, and what exists on this disk only."""

from __future__ import annotations

from dataclasses import dataclass

from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Bytes are of ``.log`` data. `lag_*` is closed and yet to be copied, zero
    while copying is switched off (KIP-950); `at_risk_bytes` is all that only this disk has.

    For a topic that is not tiered the remote figures are zero and `remote_next_offset` is None.
    """

    partition: TopicPartition
    is_tiered: bool
    log_start_offset: int
    local_start_offset: int
    next_offset: int
    remote_next_offset: int | None
    local_segments: int
    local_bytes: int
    remote_segments: int
    remote_bytes: int
    lag_segments: int
    lag_bytes: int
    at_risk_bytes: int
    unlinked_bytes: int
    cleaner_offset: int | None
    problem: str | None = None


def partition_status(snapshot: PartitionSnapshot, problem: str | None = None) -> PartitionStatus:
    """The figures of one snapshot."""
    copied_to = snapshot.remote_next_offset or 0
    is_copied = snapshot.is_tiered and not snapshot.rules.copy_disabled
    begin = max(copied_to, snapshot.log_start_offset)
    waiting = [each for each in snapshot.closed if is_copied and each.next_offset > begin and not each.is_empty]
    only_here = [each for each in snapshot.segments if each.next_offset > copied_to]
    return PartitionStatus(
        partition=snapshot.partition,
        is_tiered=snapshot.is_tiered,
        log_start_offset=snapshot.log_start_offset,
        local_start_offset=max(snapshot.log_start_offset, snapshot.segments[0].base_offset),
        next_offset=snapshot.next_offset,
        remote_next_offset=snapshot.remote_next_offset if snapshot.is_tiered else None,
        local_segments=len(snapshot.segments),
        local_bytes=sum(each.size_bytes for each in snapshot.segments),
        remote_segments=snapshot.committed_count,
        remote_bytes=snapshot.committed_bytes,
        lag_segments=len(waiting),
        lag_bytes=sum(each.size_bytes for each in waiting),
        at_risk_bytes=sum(each.size_bytes for each in only_here),
        unlinked_bytes=snapshot.unlinked_bytes,
        cleaner_offset=snapshot.cleaner_offset,
        problem=problem,
    )
