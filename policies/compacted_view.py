"""When maintenance builds a compacted view: at Pulsar's threshold, and always before retention.

A topic with `compaction.view.threshold` builds its view when more bytes than the threshold are beyond the view's
horizon, or when the same plan would expire records that the view has not read.

| event | effect |
|---|---|
| the plan builds the view | the build precedes the rise of the log start |
| the build fails | the plan ends, so retention expires nothing that the view lacks |
| less than `RETRY_MS` since the failure | no build; retention waits too (`held_back`) |
| the view can never be built | the oldest records stay, and the view's status says so |
| a gap exists (records deleted by hand, threshold set later) | nothing waits; an operator has to decide |

A view built by hand, in a topic without a threshold, does not delay retention. Records that expire beyond its horizon
before the next run are a gap, which `tiered view status`, the next run and readers report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from policies.copy_lag import are_uploads_held
from policies.decisions import BuildView, DropLocal, ExpireRemote
from policies.snapshot import PartitionSnapshot
from remote.manifest.view import DEFAULT_VIEW, find_view

Ending = TypeVar("Ending", ExpireRemote, DropLocal)

RETRY_MS = 600_000  # the value of log.cleaner.uncleanable.retry.ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBacklog:
    """The range that a run would read. `gap`: lost offsets below it. `size_bytes` counts whole parts."""

    is_built: bool
    from_offset: int
    upto_offset: int
    size_bytes: int
    gap: tuple[int, int] | None

    @property
    def is_empty(self) -> bool:
        return self.from_offset >= self.upto_offset


def view_backlog(snapshot: PartitionSnapshot, name: str = DEFAULT_VIEW) -> ViewBacklog:
    view = find_view(snapshot.all_views, name)
    start = snapshot.log_start_offset
    is_built = view is not None and view.is_built
    gap = view.gap(start) if view is not None and is_built else None
    begin = max(view.horizon_offset, start) if view is not None and is_built else start
    if snapshot.keeps_views_on_disk:
        end, active = max(begin, snapshot.stable_offset), snapshot.active
        size_bytes = sum(each.size_bytes for each in snapshot.closed if each.next_offset > begin)
        # The active segment counts wholly or not at all: it grows.
        size_bytes += active.size_bytes if active is not None and begin <= active.base_offset else 0
    else:
        end = max(begin, min(snapshot.remote_next_offset or 0, snapshot.stable_offset))
        size_bytes = sum(page.size_bytes for page in snapshot.pages if page.next_offset > begin)
        size_bytes += sum(entry.size_bytes for entry in snapshot.committed if entry.next_offset > begin)
    return ViewBacklog(is_built=is_built, from_offset=begin, upto_offset=end, size_bytes=size_bytes, gap=gap)


def view_builds(snapshot: PartitionSnapshot, expired: Sequence[ExpireRemote | DropLocal]) -> list[BuildView]:
    """Return at most one run, of the view with the threshold. `expired` are the expiries of the same plan."""
    threshold = snapshot.rules.view_threshold_bytes
    if threshold is None or not _may_build(snapshot):
        return []
    backlog = view_backlog(snapshot)
    if backlog.is_empty or backlog.gap is not None:
        return []
    if backlog.size_bytes > threshold:
        reason = f"{backlog.size_bytes} bytes above the end of the view, compaction.view.threshold={threshold}"
    elif any(one.next_offset > backlog.from_offset for one in expired):
        reason = f"retention would expire records that the view has not included, from offset {backlog.from_offset}"
    else:
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
    """Return the parts of `expired` up to the limit of `held_from`, oldest first; all without a limit."""
    reach = held_from(snapshot, builds)
    if reach is None:
        return list(expired)
    return [one for one in expired if one.next_offset <= max(reach, snapshot.log_start_offset)]


def held_from(snapshot: PartitionSnapshot, builds: Sequence[BuildView] = ()) -> int | None:
    """Return the offset at which the log start has to wait for the view; None without a limit."""
    if snapshot.rules.view_threshold_bytes is None or not snapshot.builds_views:
        return None
    backlog = view_backlog(snapshot)
    if backlog.gap is not None:
        return None
    return max((one.upto_offset for one in builds), default=backlog.from_offset)


def _may_build(snapshot: PartitionSnapshot) -> bool:
    view = find_view(snapshot.all_views, DEFAULT_VIEW)
    failure = view.failure if view is not None else None
    is_waiting = failure is not None and 0 <= snapshot.now_ms - failure.failed_ms < RETRY_MS
    if is_waiting or are_uploads_held(snapshot):
        return False
    is_ending = snapshot.rules.gives_up_remote or snapshot.tier_disabled
    return snapshot.keeps_views_on_disk or (snapshot.is_tiered and not is_ending)
