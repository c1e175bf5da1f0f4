"""When a compacted view is built by itself: Pulsar's threshold, and never too late for retention.

A view takes up what the bucket holds. Without a remote tier it lies beside the log and takes up what the disk holds.
It is due when more bytes than ``compaction.view.threshold`` are there beyond its horizon, or when this very plan
lets go of records that it has not taken up. The plan builds it **before** the log start moves, and an error there ends
the plan, so retention takes nothing that the view would miss. After an error it waits `RETRY_MS`; until then retention
waits too (`held_back`). So a view that cannot be built holds the oldest records fast, and says so in its status.

All that is for topics with a threshold. A view that somebody builds by hand has no hold on retention: what expires
beyond its horizon before the next run is a gap, told by `tiered view status`, by the next run and by readers. Where a
gap is there already (records were deleted by hand, or the threshold was set later), nothing is held any more: there is
nothing left to keep, and somebody has to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from policies.decisions import BuildView, DropLocal, ExpireRemote
from policies.snapshot import PartitionSnapshot
from remote.manifest.view import DEFAULT_VIEW, find_view

Ending = TypeVar("Ending", ExpireRemote, DropLocal)

RETRY_MS = 600_000  # as log.cleaner.uncleanable.retry.ms has it


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBacklog:
    """What a run would take up: ``[from_offset, upto_offset)``, its bytes whole segments, or pages of them.

    In a bucket that is what the bucket holds beyond the view. Beside the log it reaches to the last stable offset; the
    active segment's bytes count while the view holds nothing of it. `gap` is what the log has lost meanwhile, half
    open, None if nothing. A view that was never built begins at the log start.
    """

    is_built: bool
    from_offset: int
    upto_offset: int
    size_bytes: int
    gap: tuple[int, int] | None

    @property
    def is_empty(self) -> bool:
        return self.from_offset >= self.upto_offset


def view_backlog(snapshot: PartitionSnapshot, name: str = DEFAULT_VIEW) -> ViewBacklog:
    """What a run would take up now."""
    view = find_view(snapshot.all_views, name)
    start = snapshot.log_start_offset
    is_built = view is not None and view.is_built
    gap = view.gap(start) if view is not None and is_built else None
    begin = max(view.horizon_offset, start) if view is not None and is_built else start
    if snapshot.keeps_views_on_disk:
        end, size_bytes = max(begin, snapshot.stable_offset), _local_bytes(snapshot, begin)
    else:
        end = max(begin, min(snapshot.remote_next_offset or 0, snapshot.stable_offset))
        size_bytes = sum(spill.size_bytes for spill in snapshot.spills if spill.next_offset > begin)
        size_bytes += sum(row.size_bytes for row in snapshot.committed if row.next_offset > begin)
    return ViewBacklog(is_built=is_built, from_offset=begin, upto_offset=end, size_bytes=size_bytes, gap=gap)


def _local_bytes(snapshot: PartitionSnapshot, begin: int) -> int:
    """Of the active segment all or nothing: it grows, and each run would find the same bytes beyond the view again."""
    active = snapshot.active
    size_bytes = sum(each.size_bytes for each in snapshot.closed if each.next_offset > begin)
    return size_bytes + (active.size_bytes if active is not None and begin <= active.base_offset else 0)


def view_builds(snapshot: PartitionSnapshot, expired: Sequence[ExpireRemote | DropLocal]) -> list[BuildView]:
    """At most one run of the view that the threshold is for; `expired` is what retention ends in the same plan."""
    threshold = snapshot.rules.view_threshold_bytes
    if threshold is None or not _may_build(snapshot) or _is_waiting(snapshot):
        return []
    backlog = view_backlog(snapshot)
    if backlog.is_empty or backlog.gap is not None:
        return []
    reason = None
    if backlog.size_bytes > threshold:
        reason = f"{backlog.size_bytes} bytes beyond the view, compaction.view.threshold={threshold}"
    elif any(one.next_offset > backlog.from_offset for one in expired):
        reason = f"retention reaches what the view has not taken up, from offset {backlog.from_offset}"
    if reason is None:
        return []
    return [
        BuildView(
            view=DEFAULT_VIEW,
            from_offset=backlog.from_offset,
            upto_offset=backlog.upto_offset,
            size_bytes=backlog.size_bytes,
            reason=reason,
        )
    ]


def held_back(snapshot: PartitionSnapshot, expired: Sequence[Ending], builds: Sequence[BuildView]) -> list[Ending]:
    """`expired` without what the view has not taken up, nor will in this plan; oldest first as before."""
    reach = held_from(snapshot, builds)
    if reach is None:
        return list(expired)
    return [one for one in expired if one.next_offset <= max(reach, snapshot.log_start_offset)]


def held_from(snapshot: PartitionSnapshot, builds: Sequence[BuildView] = ()) -> int | None:
    """The offset from which the log start has to wait for the view; None where it need not."""
    if snapshot.rules.view_threshold_bytes is None or not snapshot.builds_views:
        return None
    backlog = view_backlog(snapshot)
    if backlog.gap is not None:
        return None
    return max((one.upto_offset for one in builds), default=backlog.from_offset)


def _may_build(snapshot: PartitionSnapshot) -> bool:
    if snapshot.paused is not None:
        return False
    is_ending = snapshot.rules.gives_up_remote or snapshot.given_up
    return snapshot.keeps_views_on_disk or (snapshot.is_tiered and not is_ending)


def _is_waiting(snapshot: PartitionSnapshot) -> bool:
    """The last run failed a short while ago."""
    view = find_view(snapshot.all_views, DEFAULT_VIEW)
    failure = view.failure if view is not None else None
    return failure is not None and 0 <= snapshot.now_ms - failure.failed_ms < RETRY_MS
