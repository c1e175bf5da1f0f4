"""Status of every partition: size of each tier, copy lag, and bytes on this disk only."""

from __future__ import annotations

from dataclasses import dataclass

from local.names import TopicPartition
from policies.copy_lag import copy_due_since_ms, uncopied
from policies.rules import Pause, deletion_due_ms
from policies.snapshot import PartitionFigures
from remote.manifest.manifest import PendingDelete, PendingPageDelete


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Sizes and lags of one partition, in bytes of ``.log`` data. Without a tier `remote_next_offset` is None."""

    partition: TopicPartition
    is_tiered: bool
    log_start_offset: int
    local_start_offset: int
    next_offset: int
    remote_next_offset: int | None
    local_segments: int
    local_bytes: int
    remote_segments: int
    remote_bytes: int  # the billed bytes are in `tiered.status.status_report`
    lag_segments: int  # closed and not yet copied; zero while copying is disabled (KIP-950)
    lag_bytes: int
    at_risk_bytes: int  # segments with retained records of which the bucket lacks some
    unlinked_bytes: int
    cleaner_offset: int | None
    lag_since_ms: int | None = None  # since when a copy is due; None if none is due, or only by size
    overdue_bytes: int = 0  # pending deletes older than the grace period
    overdue_since_ms: int | None = None
    paused: Pause | None = None

    @property
    def paused_since_ms(self) -> int | None:
        return self.paused.since_ms if self.paused is not None else None


def partition_status(snapshot: PartitionFigures) -> PartitionStatus:
    waiting = uncopied(snapshot) if snapshot.is_tiered and not snapshot.rules.copy_disabled else []
    only_here = [each for each in snapshot.segments if not snapshot.has_safe_copy(each)]
    pending: tuple[PendingDelete | PendingPageDelete, ...] = (*snapshot.pending_deletes, *snapshot.pending_page_deletes)
    due = [(deletion_due_ms(each.unlinked_ms, snapshot.rules), each.size_bytes) for each in pending]
    overdue = [(since, size) for since, size in due if since <= snapshot.now_ms]
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
        lag_since_ms=copy_due_since_ms(snapshot),
        overdue_bytes=sum(size for _, size in overdue),
        overdue_since_ms=min((since for since, _ in overdue), default=None),
        paused=snapshot.paused,
    )
