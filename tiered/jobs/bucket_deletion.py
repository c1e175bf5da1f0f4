"""Deletion of pending deletes in partitions without a writer: filled by ingests, served by no manager.

A partition that only ingests wrote has no manager, whose maintenance would delete the bytes. An ingest is finished once
its note is in the manifest: a takeover then stops no work, and the new writer may delete as any writer does
(`remote.gc.delayed_delete`). The job also deletes old manifests, as many as a manager would (`policies.retention`).

| state of a partition | how the newest manifest shows it | action |
|---|---|---|
| has a writer | committed by a manager, a restore or a copy | none: this writer deletes |
| an ingest may be running | committed by an ingest without its note, or recently | left alone, and reported |
| has no writer | committed by an ingest with its note and silent since, or by this job | takeover and deletion |
| deleted, or its tier is being given up | has the mark | none: another job is at work |

| a crash or an error after | leaves | outcome |
|---|---|---|
| reading manifest and pins | nothing; if pins hold all due objects and no manifest is due: no takeover | |
| the takeover | a partition without a writer, committed by this job | the next run or any writer continues |
| the check of pins and epoch | the same | the same |
| some deletes | pending deletes of objects that no longer exist | repeated deletes are no error |
| the manifest without these pending deletes | old manifests | the next run deletes them |
| the GC boundary, some of the manifests | as in `remote.gc.delayed_delete` | the next GC continues |

| concurrent event | outcome |
|---|---|
| an ingest or a manager takes over before this job does | the conditional takeover finds its manifest: left alone |
| the same, after the takeover | this job is fenced, at the latest at its commit; it deleted only pending deletes |
| an ingest planned before and still uploads | it has not committed: left alone |
| a stream is between two batches | silent for less than QUIET_MS: left alone; else fenced, and it starts again |
| a co-writer (compaction, retention, merging) | fenced, as by any new writer (decision 0014); it repeats its work |
| another run of this job | one of the two is fenced or left alone |
| a reader with a pin, a fork | unharmed: pins and forks are read before every deletion |

The silence is a courtesy: a fenced writer loses work, but no record. Safety needs no clock but the grace period's.
`takes_over` skips these checks: the job then takes over from any writer, a running manager included.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from local.errors import Conflict
from policies.decisions import DeletePage, DeletePending
from policies.formatting import counted, format_ms
from policies.retention import collectable_upto, deletions
from policies.rules import PartitionRules
from remote.gc.delayed_delete import collect_manifests, delete_due_objects, delete_due_pages, unpinned
from remote.gc.pins import PinWatch
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import find_job
from remote.store import ObjectStore
from tiered.jobs.bucket_retention import rules_of, snapshot_of_bucket
from tiered.node.writer_ids import AFTER_INGEST, DELETION, INGEST

QUIET_MS = 6 * 3_600_000  # an ingest that may be a stream counts as finished this long after its last commit
_GRACE = "remote.log.delete.grace.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """Counts of deleted objects and manifests; a page counts with all objects that it names."""

    objects: int = 0
    size_bytes: int = 0
    manifests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan(Freed):
    name: RemotePartitionName
    epoch: int
    rules: PartitionRules
    skip_reason: str | None = None
    takes_over: bool = False

    @property
    def is_due(self) -> bool:
        return self.skip_reason is None and (self.objects > 0 or self.manifests > 0)


def plan_deletion(
    store: ObjectStore, name: RemotePartitionName, known: Mapping[str, str], *, now_ms: int, takes_over: bool = False
) -> DeletionPlan:
    """Plan the deletion by the settings `known`. Changes nothing. Raises NotFound if there is no manifest."""
    log = MetadataLog(store, name.prefix)
    manifest = log.refresh(exact=True)
    bare = DeletionPlan(name=name, epoch=manifest.epoch, rules=rules_of(known), takes_over=takes_over)
    is_ingests = manifest.writer_id.startswith(INGEST)
    if manifest.deleted_ms is not None or manifest.tier_disabled or not (is_ingests or takes_over):
        return bare
    due = _due(manifest, bare, now_ms)
    upto = collectable_upto(manifest.sequence, log.gc_boundary)
    if not due and not upto:
        return bare
    free = unpinned(log, PinWatch(store, name.prefix), [each.key for each in due], now_ms)
    objects, size = _counted(manifest, due, free)
    plan = replace(bare, objects=objects, size_bytes=size, manifests=max(0, upto - log.gc_boundary))
    if not plan.is_due:
        why = f"{counted(len(due), 'object')} due, and the pin of a reader delays the deletion"
        return replace(bare, skip_reason=why)
    if not is_ingests and _GRACE not in known:
        return replace(bare, skip_reason=f"its {_GRACE} is unknown")
    return replace(plan, skip_reason=None if takes_over else at_work(manifest, now_ms))


def delete_pending(store: ObjectStore, plan: DeletionPlan, *, now_ms: int) -> Freed:
    """Take over, delete the objects that are due, then old manifests; return the counts. May be repeated.

    Raises Conflict if another writer came since the plan, Fenced if one comes during the work, Unavailable, and Corrupt
    for a pin or a fork's manifest that cannot be read.
    """
    if not plan.is_due:
        return Freed()
    prefix, log = plan.name.prefix, MetadataLog(store, plan.name.prefix)
    mark = AFTER_INGEST if log.refresh(exact=True).writer_id.startswith(INGEST) else DELETION
    manifest = log.take_over_if(mark + new_ulid(now_ms), now_ms, check_newest=partial(_check_newest, plan, now_ms))
    freed = _delete_due(store, log, manifest, plan, now_ms)
    upto = collectable_upto((log.cached or manifest).sequence, log.gc_boundary)
    if not upto:
        return freed
    return replace(freed, manifests=collect_manifests(store, prefix, log, upto, now_ms=now_ms).manifests)


def _delete_due(store: ObjectStore, log: MetadataLog, manifest: Manifest, plan: DeletionPlan, now_ms: int) -> Freed:
    prefix = plan.name.prefix
    pins, freed = PinWatch(store, prefix), Freed()
    while True:
        due = _due(manifest, plan, now_ms)
        objects = [each.key for each in due if isinstance(each, DeletePending)]
        deleted = delete_due_objects(store, prefix, log, pins, objects, now_ms)
        page_keys = [each.key for each in due if isinstance(each, DeletePage)]
        deleted |= delete_due_pages(store, prefix, log, pins, page_keys, now_ms)
        if not deleted:
            return freed
        count, size = _counted(manifest, due, deleted)
        freed = Freed(objects=freed.objects + count, size_bytes=freed.size_bytes + size)
        manifest = log.refresh(exact=True)


def _counted(manifest: Manifest, due: Sequence[DeletePending | DeletePage], keys: Collection[str]) -> tuple[int, int]:
    """Return the number of objects that `keys` of `due` stand for, and their bytes."""
    pages = {page.page.key: page.page.segment_count for page in manifest.pending_page_deletes}
    count = sum(2 * pages[key] + 1 if key in pages else 1 for key in keys)
    return count, sum(each.size_bytes for each in due if each.key in keys)


def at_work(manifest: Manifest, now_ms: int) -> str | None:
    """Return why an ingest may still be writing the partition; None if it has no writer."""
    if manifest.writer_id.startswith(AFTER_INGEST):
        return None
    job = manifest.writer_id.removeprefix(INGEST)
    if find_job(manifest, job) is None:
        return f"the ingest {job} has taken over the partition and not committed: it may be running"
    silent_ms = now_ms - manifest.committed_ms
    if silent_ms < QUIET_MS:
        silence = f"last commit {format_ms(max(0, silent_ms))} ago, considered inactive after {format_ms(QUIET_MS)}"
        return f"the ingest {job} may be a running stream: {silence}"
    return None


def _check_newest(plan: DeletionPlan, now_ms: int, manifest: Manifest) -> None:
    facts = {"partition": plan.name.topic_partition, "writer": manifest.writer_id, "epoch": manifest.epoch}
    if manifest.epoch != plan.epoch:
        raise Conflict("cannot delete objects of the partition, another writer took over", planned=plan.epoch, **facts)
    why = None if plan.takes_over else at_work(manifest, now_ms)
    if why:
        raise Conflict(f"cannot delete objects of the partition, {why}", **facts)


def _due(manifest: Manifest, plan: DeletionPlan, now_ms: int) -> list[DeletePending | DeletePage]:
    return deletions(snapshot_of_bucket(manifest, plan.name, plan.rules, now_ms))
