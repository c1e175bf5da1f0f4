"""Maintenance of a fleet as one job: clean and tier → deletion → retention → compaction → merge.

| stage | a unit | coordination |
|---|---|---|
| clean and tier | a node: a directory with a ``tiered.toml``, on shared storage | takes the node's lock |
| deletion | a partition that an ingest filled and no manager serves | takeover (`tiered.jobs.bucket_deletion`) |
| retention | a partition in the bucket | co-writer (`tiered.jobs.bucket_retention`) |
| compaction | a partition, or groups of a large one's segment entries | co-writer (`tiered.jobs.bucket_compaction`) |
| merge | groups of entries of small segments | co-writer (`tiered.jobs.rewriting`) |

Opening a node takes over the epochs of its partitions. So the job opens a node only if both conditions hold:

1. No other process holds the lock of the directory.
2. The last writer of its partitions in the bucket is this node (`tiered.node.writer_ids`). Otherwise the job would
   fence a live manager that took over from another directory.

The bucket's stages fence no running writer. Deletion comes before the stages that unlink: their manifests would end the
silence which shows that an ingest is finished. Each stage reads the current state again: a repeated run does the rest.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from local.errors import Conflict, Fenced, LogError, NotFound, Unavailable
from local.storage import DiskStorage
from policies.compaction import is_dirty_enough
from policies.formatting import counted
from policies.snapshot import PartitionSnapshot
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import PageEntry
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.view import clean_upto
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from tiered.config.config import FILE, Config
from tiered.jobs.bucket_compaction import compact_partitions
from tiered.jobs.bucket_deletion import DeletionPlan, Freed, delete_pending, plan_deletion
from tiered.jobs.bucket_retention import commit_retention, plan_retention, rules_of
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.rewriting import TARGET_BYTES, RewriteOutcome, RewritePlan, cost_of, plan_merge
from tiered.jobs.runner import Executor, Here
from tiered.manager.manager import LogManager
from tiered.node.writer_ids import is_of_node, node_mark
from tiered.stores.object_encoding import EncodingChoice

R = TypeVar("R")

SMALL_BYTES = 256 << 20  # a partition that one task compacts whole, keys in memory, without a shuffle


class Stage(StrEnum):
    CLEAN_AND_TIER = "clean and tier"
    DELETION = "deletion"
    RETENTION = "retention"
    COMPACTION = "compaction"
    MERGE = "merge"


class State(StrEnum):
    DUE = "due"
    DONE = "done"
    NOTHING = "nothing to do"
    LEFT_ALONE = "left alone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Plan or result for a node's directory or a partition's prefix; rows are segments."""

    stage: Stage
    unit: str
    topic: str | None = None
    partition: int | None = None
    state: State
    why: str = ""
    rows_before: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    size_bytes: int = 0
    dollars: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The nodes, the bucket and the settings of a pipeline. It can be pickled and has no secrets.

    `nodes` are directories. Empty `topics`: all. Without `config` only `overrides` and the topics' own settings are
    known. `takes_over` opens nodes whose partitions other writers have written since. `takes_epochs` deletes due
    objects under any writer, and fences this writer.
    """

    bucket: Bucket
    nodes: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    config: Config | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    takes_over: bool = False
    takes_epochs: bool = False
    target_bytes: int = TARGET_BYTES

    def settings_of(self, topic: str, own: Mapping[str, str]) -> dict[str, str]:
        """Return the known settings of a topic. Raises InvalidRequest for an unknown own setting."""
        if self.config is not None:
            return self.config.topic_properties(topic, own)
        return {**own, **self.overrides}


def plan_units_of_partition(fleet: Fleet, store: ObjectStore, name: RemotePartitionName, *, now_ms: int) -> list[Unit]:
    """Return a unit for each of the bucket's stages. Raises Unavailable; other errors are failed units."""
    return [
        failed_on_error(Stage.DELETION, lambda *each: _deletion(*each)[1], fleet, store, name, now_ms),
        failed_on_error(Stage.RETENTION, retain, fleet, store, name, now_ms, State.DUE),
        failed_on_error(Stage.COMPACTION, plan_unit_of_compaction, fleet, store, name),
        failed_on_error(Stage.MERGE, _plan_merging, fleet, store, name, now_ms),
    ]


def failed_on_error(
    stage: Stage, do: Callable[..., R], fleet: Fleet, store: ObjectStore, name: RemotePartitionName, *more: object
) -> R | Unit:
    """Return the result of `do`; a NOTHING unit for a deleted topic, a FAILED one for an error. Raises Unavailable."""
    try:
        if MetadataLog(store, name.prefix).refresh().deleted_ms is not None:
            return _of(stage, name, State.NOTHING)
        return do(fleet, store, name, *more)
    except Unavailable:
        raise
    except LogError as error:
        return _of(stage, name, State.FAILED, why=str(error))


def delete_due(fleet: Fleet, store: ObjectStore, name: RemotePartitionName, now_ms: int) -> Unit:
    """Delete the due objects of one partition without a writer; return its unit. Raises LogError."""
    plan, unit = _deletion(fleet, store, name, now_ms)
    if unit.state is not State.DUE:
        return unit
    try:
        freed = delete_pending(store, plan, now_ms=now_ms)
    except (Conflict, Fenced) as error:
        return _of(Stage.DELETION, name, State.LEFT_ALONE, why=str(error))
    return _deletion_unit(name, State.DONE, freed)


def _deletion(fleet: Fleet, store: ObjectStore, name: RemotePartitionName, now_ms: int) -> tuple[DeletionPlan, Unit]:
    plan = plan_deletion(store, name, _known(fleet, store, name), now_ms=now_ms, takes_over=fleet.takes_epochs)
    if plan.skip_reason:
        why, size = plan.skip_reason, plan.size_bytes
        return plan, _of(Stage.DELETION, name, State.LEFT_ALONE, why=why, bytes_before=size)
    return plan, _deletion_unit(name, State.DUE, plan) if plan.is_due else _of(Stage.DELETION, name, State.NOTHING)


def _deletion_unit(name: RemotePartitionName, state: State, each: DeletionPlan | Freed) -> Unit:
    counts = ((each.objects, "objects"), (each.manifests, "old manifests"))
    why = ", ".join(f"{count} {what}" for count, what in counts if count) or "nothing"
    return _of(Stage.DELETION, name, state, why=why, bytes_before=each.size_bytes, size_bytes=each.size_bytes)


def retain(fleet: Fleet, store: ObjectStore, name: RemotePartitionName, now_ms: int, state: State = State.DONE) -> Unit:
    """Run retention for one partition, or only plan it for `state` DUE; return its unit. Raises LogError."""
    plan = plan_retention(store, name, _known(fleet, store, name), now_ms=now_ms)
    if plan.skip_reason:
        return _of(Stage.RETENTION, plan.name, State.LEFT_ALONE, why=plan.skip_reason)
    if not plan.log_start_offset:
        return _of(Stage.RETENTION, plan.name, State.NOTHING)
    if state is State.DONE:
        commit_retention(store, plan, now_ms=now_ms)
    figures = {"rows_before": plan.entries, "bytes_before": plan.size_bytes, "size_bytes": plan.size_bytes}
    if plan.leaving:
        why = f"{counted(plan.entries, 'segment')} expired; the newest: {plan.leaving[-1].reason}"
    else:
        why = f"log start offset rises to {plan.log_start_offset}; too many pending deletes to unlink more"
    return _of(Stage.RETENTION, plan.name, state, why=why, **figures)


def plan_unit_of_compaction(fleet: Fleet, store: ObjectStore, name: RemotePartitionName) -> Unit:
    """Return a unit, due if a compacted partition is dirty enough in the bucket (`min.cleanable.dirty.ratio`)."""
    log = MetadataLog(store, name.prefix)
    manifest = log.join()
    rules = rules_of(fleet.settings_of(name.topic, manifest.properties))
    if not rules.cleanup_compact:
        return _of(Stage.COMPACTION, name, State.NOTHING)
    parts = log.ask(manifest, parts_around_clean_end)
    size, dirty = sum(part.size_bytes for part in parts), dirty_bytes(parts)
    is_due = is_dirty_enough(dirty, size - dirty, rules.min_cleanable_dirty_ratio)
    why = f"{dirty / size:.0%} dirty" if size else ""
    counts = (part.segment_count if isinstance(part, PageEntry) else 1 for part in parts)
    figures = {"rows_before": sum(counts), "bytes_before": size, "size_bytes": size}
    cost, start = 0.0, parts[0].base_offset if parts else 0
    if is_due:
        cost = log.ask(manifest, lambda index: cost_of(index.entries(start), EncodingChoice()).dollars)
    return _of(Stage.COMPACTION, name, State.DUE if is_due else State.NOTHING, why=why, dollars=cost, **figures)


def parts_around_clean_end(index: MetadataIndex) -> list[PageEntry | SegmentEntry]:
    """Return the readable entries; pages stand for entries that are all clean or all above the clean prefix."""
    parts, start = list(index.parts()), index.manifest.min_readable_offset

    def open_page(offset: int) -> None:
        for at, part in enumerate(parts):
            if isinstance(part, PageEntry) and part.base_offset <= offset < part.next_offset:
                parts[at : at + 1] = index.entries(part.base_offset, part.next_offset)

    open_page(start)
    parts = [part for part in parts if part.base_offset >= start]
    while isinstance(lowest := min(parts, key=lambda part: clean_upto((part,)) or 0, default=None), PageEntry):
        open_page(lowest.base_offset)
    open_page(clean_upto(parts) or 0)
    return parts


def dirty_bytes(parts: Sequence[PageEntry | SegmentEntry]) -> int:
    """Return the bytes of entries that have not been compared with the clean entries below them."""
    clean = clean_upto(parts) or 0
    return sum(part.size_bytes for part in parts if part.base_offset >= clean)


def compact_whole(
    fleet: Fleet, store: ObjectStore, name: RemotePartitionName, job_id: str, now_ms: int, by: Executor | None = None
) -> Unit:
    """Compact one partition, in this process or `by` an executor; return its unit. Raises LogError."""
    settings, executor = _known(fleet, store, name), by or Here()
    (outcome,) = compact_partitions(executor, fleet.bucket, [name], now_ms=now_ms, job_id=job_id, settings=settings)
    removed = counted(outcome.records_before - outcome.records_after, "record")
    why = "by an earlier run" if outcome.was_done else f"{removed} removed"
    if outcome.given_up:
        groups = counted(outcome.given_up, "group")
        why = f"{removed} removed; {groups} not compacted: another writer or job replaced the segments"
    state = State.DUE if outcome.given_up else State.DONE
    figures = {each: getattr(outcome, each) for each in ("rows_before", "rows_after", "bytes_before", "bytes_after")}
    return _of(Stage.COMPACTION, outcome.name, state, why=why, **figures)


def plan_merging(fleet: Fleet, store: ObjectStore, name: RemotePartitionName, now_ms: int) -> RewritePlan:
    return plan_merge(store, name, now_ms=now_ms, target_bytes=fleet.target_bytes, settings=fleet.settings_of)


def _plan_merging(fleet: Fleet, store: ObjectStore, name: RemotePartitionName, now_ms: int) -> Unit:
    plan = plan_merging(fleet, store, name, now_ms)
    entries, size = sum(len(group.entries) for group in plan.groups), sum(group.size_bytes for group in plan.groups)
    if not plan.groups:
        return _of(Stage.MERGE, name, State.NOTHING)
    figures = {"rows_before": entries, "rows_after": len(plan.groups), "bytes_before": size, "size_bytes": size}
    why = f"{counted(entries, 'small segment')} become {len(plan.groups)}"
    return _of(Stage.MERGE, name, State.DUE, why=why, dollars=plan.cost.dollars, **figures)


def merged_unit(plan: RewritePlan, outcome: RewriteOutcome, error: LogError | None) -> Unit:
    why = f"{counted(outcome.rows_before, 'small segment')} became {outcome.rows_after}"
    if outcome.given_up:
        groups = counted(outcome.given_up, "group")
        why += f"; {groups} not merged: another writer or job replaced the segments"
    if not outcome.is_complete:
        groups = counted(len(plan.groups) - outcome.groups, "group")
        why += f"; {groups} not merged yet: interrupted, or too many pending deletes"
    is_done = outcome.is_complete and not outcome.given_up
    state = State.FAILED if error is not None else State.DONE if is_done else State.DUE
    why = why if error is None else str(error)
    rows = {"rows_before": outcome.rows_before, "rows_after": outcome.rows_after}
    sizes = {"bytes_before": outcome.stored_before, "bytes_after": outcome.stored_after}
    return _of(Stage.MERGE, plan.name, state, why=why, **rows, **sizes)


def _known(fleet: Fleet, store: ObjectStore, name: RemotePartitionName) -> dict[str, str]:
    return fleet.settings_of(name.topic, MetadataLog(store, name.prefix).join().properties)


def _of(stage: Stage, name: RemotePartitionName, state: State, **more: object) -> Unit:
    return Unit(stage=stage, unit=name.prefix, topic=name.topic, partition=name.partition, state=state, **more)  # type: ignore[arg-type]


def plan_unit_of_node(fleet: Fleet, directory: str, *, now_ms: int) -> Unit:
    """Plan cleaning and tiering of a node. Changes nothing. Raises Unavailable."""
    from tiered.manager.manager import LogManager

    try:
        config = _node_config(fleet, directory)
        with LogManager.open(config, now_ms=now_ms, read_only=True) as manager:
            why = _skip_reason(fleet, config, manager)
            snapshots = manager.snapshots(now_ms, fleet.topics or None)
            planned = manager.plan(now_ms, fleet.topics or None)
            problems = dict(manager.problems)
    except Unavailable:
        raise
    except LogError as error:
        return _of_node(directory, State.FAILED, str(error))
    totals = planned.totals()
    count = sum(each.count for each in totals.values())
    words = [f"{name} {each.count}" for name, each in sorted(totals.items())]
    words += [f"{name}: {error}" for name, error in sorted(problems.items())]
    state = State.LEFT_ALONE if why else State.DUE if count or problems else State.NOTHING
    before, size = _segments(snapshots), sum(each.size_bytes for each in totals.values())
    figures = {"rows_before": before[0], "bytes_before": before[1], "size_bytes": size}
    return _of_node(directory, state, why or ", ".join(words), **figures)


def work_node(fleet: Fleet, directory: str, *, now_ms: int) -> Unit:
    """Open a node, do all due work, close it; return its unit. A crash is like its manager's. Raises Unavailable."""
    from tiered.manager.manager import LogManager

    planned = plan_unit_of_node(fleet, directory, now_ms=now_ms)
    if planned.state is not State.DUE:
        return planned
    try:
        manager = LogManager.open(_node_config(fleet, directory), now_ms=now_ms)
    except Conflict as error:
        return _of_node(directory, State.LEFT_ALONE, str(error))
    except Unavailable:
        raise
    except LogError as error:
        return _of_node(directory, State.FAILED, str(error))
    with manager:
        done = Counter[str]()
        while True:
            applied = manager.apply(manager.plan(now_ms, fleet.topics or None)).values()
            decisions = [type(each).__name__ for one in applied for each in one.done]
            done.update(decisions)
            if not decisions:
                break
        after = _segments(manager.snapshots(now_ms, fleet.topics or None))
        problems = dict(manager.problems)
    words = [f"{name} {count}" for name, count in sorted(done.items())]
    words += [f"{name}: {error}" for name, error in sorted(problems.items())]
    state = State.FAILED if problems else State.DONE
    return replace(planned, state=state, why=", ".join(words), rows_after=after[0], bytes_after=after[1], size_bytes=0)


def _segments(snapshots: Sequence[PartitionSnapshot]) -> tuple[int, int]:
    sizes = [segment.size_bytes for each in snapshots for segment in each.segments]
    return len(sizes), sum(sizes)


def _of_node(directory: str, state: State, why: str, **figures: int) -> Unit:
    return Unit(stage=Stage.CLEAN_AND_TIER, unit=directory, state=state, why=why, **figures)  # type: ignore[arg-type]


def _node_config(fleet: Fleet, directory: str) -> Config:
    path = os.path.join(directory, FILE)
    if not os.path.exists(path):
        raise NotFound(f"cannot open the node, it has no {FILE}", directory=directory)
    return Config.load(path, fleet.overrides, os.environ)


def _skip_reason(fleet: Fleet, config: Config, manager: LogManager) -> str:
    if (config.remote_url or "").rstrip("/") != fleet.bucket.url.rstrip("/"):
        return f"it uses another bucket: {config.remote_url}"
    if fleet.takes_over:
        return ""
    mark = node_mark(DiskStorage(), config.data_dirs)
    for held in manager.partitions.all():
        manifest = held.manifest()
        if manifest is not None and not is_of_node(manifest.writer_id, mark):
            return f"{held.name} was last written by another node: {manifest.writer_id}"
    return ""
