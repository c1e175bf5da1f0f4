"""Freeing what was unlinked in partitions that are nobody's: filled by ingests alone, with no manager at work.

Jobs beside a manager only unlink (`tiered.jobs.bucket_retention`, compaction, merging): the bytes go with the next
round of the writer. Where that was an ingest there is no next round. An ingest takes the epoch, and is over once its
note is in the head; so whoever takes the epoch after it stops nobody, and may delete as any writer does
(`remote.gc.delayed_delete`). Old heads are collected along with them, when so many are there that a manager would
(`policies.manifest_collection`).

| state of a partition | told by its newest head | here |
|---|---|---|
| a writer's | signed by a manager, a restore, a copy | not looked at: deleting is that one's |
| an ingest's that may be at work | signed by an ingest, not committed, or lately | left alone, and told |
| nobody's | signed by an ingest that committed and has been silent since, or by this very work | taken, worked off |
| deleted, or its tier given up | says so | not looked at: another work is under way |

| a crash, or an error, after | leaves | what becomes of it |
|---|---|---|
| the look, with the pins | nothing; where pins hold all that is due, and no heads are, no epoch is taken | |
| the epoch was taken | a partition without a writer, signed by this work | the next run, or any writer, goes on |
| the pins, the proof of the epoch | the same | the same |
| some deletes | a list that names what is gone | deleting again is no error |
| the head without them | all of it but old heads | the next run collects them |
| the boundary, some of the heads | as in `remote.gc.old_manifests` | the next collection goes on |

| who comes at the same time | |
|---|---|
| an ingest, a manager, before our epoch | the head that ours would follow is theirs: left alone |
| the same, after it | we are fenced, at the latest when we would forget; what went was on their list |
| an ingest that planned before, and uploads | it has not committed: left alone |
| a stream between two of its batches | silent for less than QUIET_MS: left alone; else fenced, begins anew |
| a guest (compaction, retention, merging) | fenced, as by any new writer (decision 0014); its work is done again |
| another run of this | one of the two is fenced or left alone |
| a reader with a pin, a fork | unharmed: asked before every deletion |

Silence is courtesy, as is every clock here but the grace time: whoever is fenced loses work, and no record.
`takes_over` is for whoever knows better: the epoch is taken from anybody, a manager at work included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from local.errors import Conflict
from policies.decisions import DeletePage, DeleteUnlinked
from policies.formatting import counted, format_ms
from policies.manifest_collection import collectable_upto
from policies.remote_retention import deletions
from policies.rules import PartitionRules
from remote.gc.delayed_delete import delete_due_objects, delete_due_pages, free_of_pins
from remote.gc.old_manifests import collect_heads
from remote.gc.pin_watch import PinWatch
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.conditional_takeover import HeirLog
from remote.manifest.job_changes import find_job
from remote.manifest.manifest import Head
from remote.store import ObjectStore
from tiered.jobs.bucket_retention import rules_of, snapshot_of_bucket
from tiered.node.writer_ids import AFTER_INGEST, DELETION, INGEST

QUIET_MS = 6 * 3_600_000  # after its last commit an ingest that may be a stream is taken for over
_GRACE = "remote.log.delete.grace.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    """What is due of one partition. `size_bytes` are those of `objects`, with pages all that they hold; `heads` are old
    ones, pinned ones included; `left_alone` is why it stays. Where it is not `is_due` there is nothing, or it is for a
    writer at work to do."""

    name: RemotePartitionName
    epoch: int
    rules: PartitionRules
    objects: int = 0
    size_bytes: int = 0
    heads: int = 0
    left_alone: str | None = None
    takes_over: bool = False

    @property
    def is_due(self) -> bool:
        return self.left_alone is None and (self.objects > 0 or self.heads > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What went for good. `size_bytes` are those of the objects."""

    objects: int = 0
    size_bytes: int = 0
    heads: int = 0


def plan_deletion(
    store: ObjectStore, name: RemotePartitionName, known: Mapping[str, str], *, now_ms: int, takes_over: bool = False
) -> DeletionPlan:
    """What may be deleted by the settings `known`. Changes nothing. Raises NotFound without a head."""
    log = MetadataLog(store, name.prefix)
    head = log.refresh(exact=True)
    bare = DeletionPlan(name=name, epoch=head.epoch, rules=rules_of(known), takes_over=takes_over)
    is_ingests = head.writer_id.startswith(INGEST)
    if head.deleted_ms is not None or head.given_up or not (is_ingests or takes_over):
        return bare
    due = {each.key: each for each in _due(head, bare, now_ms)}
    upto = collectable_upto(head.sequence, log.void_upto)
    if not due and not upto:
        return bare
    free = free_of_pins(log, PinWatch(store, name.prefix), list(due), now_ms)
    pages = {page.spill.key: page.spill.segment_count for page in head.unlinked_pages}
    plan = replace(
        bare,
        objects=sum(2 * pages[key] + 1 if key in pages else 1 for key in free),
        size_bytes=sum(due[key].size_bytes for key in free),
        heads=max(0, upto - log.void_upto),
    )
    if not plan.is_due:
        return replace(bare, left_alone=f"{counted(len(due), 'object')} due, and a reader's pin holds them")
    if not is_ingests and _GRACE not in known:
        return replace(bare, left_alone=f"its {_GRACE} is not known here")
    return replace(plan, left_alone=None if takes_over else at_work(head, now_ms))


def delete_unlinked(store: ObjectStore, plan: DeletionPlan, *, now_ms: int) -> Freed:
    """Take the epoch, delete what is due then, and collect old heads. May be repeated.

    Raises Conflict where somebody came since the plan, Fenced where somebody comes meanwhile, Unavailable, and Corrupt
    for a pin or a fork's head that cannot be read.
    """
    if not plan.is_due:
        return Freed()
    prefix, log = plan.name.prefix, HeirLog(store, plan.name.prefix)
    found = log.refresh(exact=True)
    mark = AFTER_INGEST if found.writer_id.startswith(INGEST) else DELETION
    head = log.inherit(mark + new_ulid(now_ms), now_ms, judge=_judge(plan, now_ms))
    freed = _delete_due(store, log, head, plan, now_ms)
    upto = collectable_upto((log.cached or head).sequence, log.void_upto)
    if not upto:
        return freed
    return replace(freed, heads=collect_heads(store, prefix, log, upto, now_ms=now_ms).heads)


def _delete_due(store: ObjectStore, log: MetadataLog, head: Head, plan: DeletionPlan, now_ms: int) -> Freed:
    prefix = plan.name.prefix
    pins, freed = PinWatch(store, prefix), Freed()
    while True:
        due = _due(head, plan, now_ms)
        sizes = {each.key: each.size_bytes for each in due}
        pages = {page.spill.key: page.spill.segment_count for page in head.unlinked_pages}
        objects = [each.key for each in due if isinstance(each, DeleteUnlinked)]
        gone = delete_due_objects(store, prefix, log, pins, objects, now_ms)
        whole = [each.key for each in due if isinstance(each, DeletePage)]
        gone |= delete_due_pages(store, prefix, log, pins, whole, now_ms)
        if not gone:
            return freed
        count = sum(2 * pages[key] + 1 if key in pages else 1 for key in gone)
        freed = Freed(objects=freed.objects + count, size_bytes=freed.size_bytes + sum(sizes[key] for key in gone))
        head = log.refresh(exact=True)


def at_work(head: Head, now_ms: int) -> str | None:
    """Why a partition may be an ingest's that is at work; None where it is nobody's."""
    if head.writer_id.startswith(AFTER_INGEST):
        return None
    job = head.writer_id.removeprefix(INGEST)
    if find_job(head, job) is None:
        return f"the ingest {job} has begun it and not committed: it may be at work"
    silent_ms = now_ms - head.committed_ms
    if silent_ms < QUIET_MS:
        told = f"last commit {format_ms(max(0, silent_ms))} ago, taken for over after {format_ms(QUIET_MS)}"
        return f"the ingest {job} may be a stream at work: {told}"
    return None


def _judge(plan: DeletionPlan, now_ms: int) -> Callable[[Head], None]:
    def judge(head: Head) -> None:
        facts = {"partition": plan.name.topic_partition, "writer": head.writer_id, "epoch": head.epoch}
        if head.epoch != plan.epoch:
            raise Conflict("freeing a partition's bytes, another writer came", planned=plan.epoch, **facts)
        why = None if plan.takes_over else at_work(head, now_ms)
        if why:
            raise Conflict(f"freeing a partition's bytes, {why}", **facts)

    return judge


def _due(head: Head, plan: DeletionPlan, now_ms: int) -> list[DeleteUnlinked | DeletePage]:
    """What a manager's round would delete."""
    return deletions(snapshot_of_bucket(head, plan.name, plan.rules, now_ms))
