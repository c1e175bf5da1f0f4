"""Compacted views of a topic, in the bucket or on the local disk: build on request, show, drop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from local.errors import NotFound
from local.names import TopicPartition
from policies.compacted_view import ViewBacklog, view_backlog
from policies.decisions import BuildView, Decision, Plan
from policies.snapshot import PartitionSnapshot
from remote.keys import check_view
from remote.manifest.view import DEFAULT_VIEW, CompactedView, ViewFailure, ViewState, find_view
from remote.manifest.view_changes import drop_view as drop_from_manifest
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStatus:
    """A view of one partition; `is_local`: on the local disk."""

    partition: TopicPartition
    view: CompactedView
    state: ViewState
    backlog: ViewBacklog
    is_local: bool = False

    @property
    def gap(self) -> tuple[int, int] | None:
        return self.backlog.gap

    @property
    def is_healthy(self) -> bool:
        return self.state is not ViewState.ERROR and self.gap is None


def plan_views(
    manager: LogManager, topic: str, *, name: str = DEFAULT_VIEW, accepts_loss: bool = False, now_ms: int
) -> Plan:
    """Plan to build the view where it is due. Raises NotFound for an unknown topic, InvalidRequest for a wrong name."""
    check_view(name)
    manager.topics.get(topic)
    decisions = {}
    for snapshot in manager.snapshots(now_ms, [topic]):
        backlog = view_backlog(snapshot, name)
        if not backlog.is_empty or backlog.gap is not None or not backlog.is_built:
            decisions[snapshot.partition] = [
                BuildView(
                    view=name,
                    from_offset=backlog.from_offset,
                    upto_offset=backlog.upto_offset,
                    size_bytes=backlog.size_bytes,
                    reason="requested",
                    accepts_loss=accepts_loss,
                )
            ]
    return Plan(now_ms=now_ms, decisions=decisions)


def build_views(
    manager: LogManager,
    plan: Plan,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[TopicPartition, Decision], None] = lambda partition, decision: None,
) -> Plan:
    """Carry out the plan; return the part that was done. Errors are in `LogManager.problems`."""
    applied = manager.apply(plan, should_stop=should_stop, progress=progress)
    return Plan(now_ms=plan.now_ms, decisions={name: each.done for name, each in applied.items() if each.done})


def view_status(
    manager: LogManager, now_ms: int, topics: Iterable[str] | None = None, *, name: str | None = None
) -> list[ViewStatus]:
    """Return every view of every partition, by partition and name; with `name` also unbuilt ones.

    Without `name` and `topics` a partition without a remote tier is listed only if it has, or wants, a view.
    """
    found: list[ViewStatus] = []
    held = {each.name: each for each in manager.partitions.all(topics)}
    for snapshot in manager.snapshots(now_ms, topics):
        partition = held[snapshot.partition]
        if partition.manifest() is None and not snapshot.keeps_views_on_disk:
            continue
        local = partition.local_views
        is_wanted = snapshot.is_tiered or topics is not None or snapshot.rules.view_threshold_bytes is not None
        is_wanted = is_wanted or (local is not None and local.damage is not None)
        known = {view.name for view in snapshot.all_views} | ({DEFAULT_VIEW} if is_wanted else set())
        found += [_status(partition, snapshot, each) for each in ([name] if name is not None else sorted(known))]
    return found


def _status(held: Partition, snapshot: PartitionSnapshot, name: str) -> ViewStatus:
    view, manifest, local = find_view(snapshot.all_views, name), held.manifest(), held.local_views
    is_local = view in snapshot.local_views if view is not None else snapshot.keeps_views_on_disk
    epoch = local.epoch if is_local and local is not None else manifest.epoch if manifest is not None else 0
    view, backlog = view or CompactedView(name=name), view_backlog(snapshot, name)
    if is_local and local is not None and local.damage is not None:
        view = replace(view, failure=ViewFailure(failed_ms=snapshot.now_ms, error=str(local.damage)))
    return ViewStatus(
        partition=snapshot.partition, view=view, state=view.state(epoch), backlog=backlog, is_local=is_local
    )


def views_to_drop(manager: LogManager, topic: str, *, name: str = DEFAULT_VIEW, now_ms: int) -> list[ViewStatus]:
    """Return the views that `drop_views` would drop. Changes nothing. Raises NotFound as it does."""
    held = {each.name for each in _with_view(manager, topic, name)}
    return [each for each in view_status(manager, now_ms, [topic], name=name) if each.partition in held]


def drop_views(manager: LogManager, topic: str, *, name: str = DEFAULT_VIEW, now_ms: int) -> list[TopicPartition]:
    """Drop a view from all partitions of a topic; return the partitions that had it. Readers then get an error.

    Its objects are deleted after the grace period, local ones after `file.delete.delay.ms`. A damaged local catalog is
    replaced by an empty one. Raises NotFound, before any change, if no partition has the view.
    """
    held = _with_view(manager, topic, name)
    for each in held:
        # The store may hang here: under the partition's lock all changes of its disk would wait.
        if each.tier.error is not None:
            raise each.tier.error
        if each.metadata is not None and _has_in_bucket(each, name):
            each.metadata.commit(drop_from_manifest(name, now_ms=now_ms), now_ms)
        with each.lock:  # a move copies the catalog
            local = each.local_views
            if local is not None and not each.is_deleted and not local.forget_damage():
                local.commit(drop_from_manifest(name, now_ms=now_ms))
    return [each.name for each in held]


def _with_view(manager: LogManager, topic: str, name: str) -> list[Partition]:
    manager.topics.get(topic)
    found = []
    for held in manager.partitions.all([topic]):
        local = held.local_views
        is_local = local is not None and (local.damage is not None or find_view(local.known(), name) is not None)
        if is_local or _has_in_bucket(held, name):
            found.append(held)
    if not found:
        raise NotFound("cannot drop the view, the topic has no view of this name", topic=topic, view=name)
    return found


def _has_in_bucket(held: Partition, name: str) -> bool:
    manifest = held.manifest()
    return manifest is not None and find_view(manifest.views, name) is not None
