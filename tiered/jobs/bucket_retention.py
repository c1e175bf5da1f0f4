"""Retention of what is in a bucket, by a job beside the managers: rows that have expired leave the index.

The policies are those of a manager (`policies.remote_retention`), asked about the bucket alone: nothing on any disk is
known, so retention by size counts too little rather than too much. The job commits as a guest of the epoch
(`remote.manifest.co_writer`): rows out of the head, their objects on its list, the log start up. The objects go after
the grace time, with the next round of whoever is the writer; where that is nobody, by `tiered.jobs.bucket_deletion`.

**What the bucket does not know.** A head has the settings that a topic was created with, not the defaults of the
machines that serve it. So nothing is taken for granted: a limit that is not said is none, and a topic whose
``cleanup.policy`` is not said keeps everything.

| a crash after | leaves |
|---|---|
| plan | nothing |
| the log start | rows below it, which nobody reads: the next retention takes them out |
| rows and pages out | all of it |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from policies.compacted_view import held_back
from policies.decisions import ExpirePage, ExpireRemote
from policies.remote_retention import expirations, leaving, page_to_know
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.co_writer import GuestLog
from remote.manifest.manifest import Head
from remote.manifest.manifest_changes import expire_pages, expire_segments
from remote.store import ObjectStore
from tiered.config.properties import DEFAULTS
from tiered.config.topic_settings import resolve_rules

PAGES_MAX = 16  # pages of old rows that one plan looks into
_POLICY, _VIEWS = "cleanup.policy", "compaction.view.threshold"
_NOT_SAID = {"retention.ms": "-1", "retention.bytes": "-1", "local.retention.ms": "-2", "local.retention.bytes": "-2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """What leaves one partition's index. `rows` and `size_bytes` count pages with all that they hold; `left_alone` is
    why nothing was looked at."""

    name: RemotePartitionName
    epoch: int
    log_start_offset: int = 0
    leaving: tuple[ExpirePage | ExpireRemote, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    left_alone: str | None = None


def rules_of(known: Mapping[str, str]) -> PartitionRules:
    """The rules by what is known of a topic's settings; limits that are not said are none. Raises InvalidRequest."""
    return resolve_rules({**DEFAULTS, **_NOT_SAID, **known})


def plan_retention(
    store: ObjectStore, name: RemotePartitionName, known: Mapping[str, str], *, now_ms: int
) -> RetentionPlan:
    """What has expired by the settings `known`. Raises NotFound without a head, Conflict for a deleted topic."""
    log = GuestLog(store, name.prefix)
    head = log.join()
    bare = RetentionPlan(name=name, epoch=head.epoch)
    if head.given_up:
        return replace(bare, left_alone="its tier is being given up")
    if _POLICY not in known:
        return replace(bare, left_alone=f"its {_POLICY} is not known here")
    if head.views and _VIEWS not in known:
        return replace(bare, left_alone=f"it has compacted views, and {_VIEWS} is not known here")
    snapshot = _with_oldest_rows(snapshot_of_bucket(head, name, rules_of(known), now_ms), log, head)
    expired = held_back(snapshot, expirations(snapshot), [])
    start = max((each.next_offset for each in expired), default=0)
    gone = leaving(snapshot, expired)
    counts = {spill.key: spill.segment_count for spill in head.spills}
    return replace(
        bare,
        log_start_offset=max(start, head.log_start_offset) if gone or start > head.log_start_offset else 0,
        leaving=tuple(gone),
        rows=sum(counts[each.key] if isinstance(each, ExpirePage) else 1 for each in gone),
        size_bytes=sum(each.size_bytes for each in gone),
    )


def commit_retention(store: ObjectStore, plan: RetentionPlan, *, now_ms: int) -> None:
    """Raise the log start, then take rows and pages out. May be repeated. Raises Fenced when another writer came since
    the plan, Conflict when the topic was deleted."""
    if not plan.log_start_offset:
        return
    log = GuestLog(store, plan.name.prefix)
    log.join(epoch=plan.epoch)
    head = log.commit(expire_segments([], now_ms=now_ms, log_start_offset=plan.log_start_offset), now_ms)
    pages = [each.key for each in plan.leaving if isinstance(each, ExpirePage)]
    if pages:
        head = log.commit(expire_pages(pages, now_ms=now_ms), now_ms)
    rows = [each for each in plan.leaving if isinstance(each, ExpireRemote)]
    due = _still_there(log, head, rows)
    if due:
        touches = (due[0].base_offset, due[-1].next_offset)
        log.commit(expire_segments([each.ulid for each in due], now_ms=now_ms), now_ms, touches=touches)


def _still_there(log: GuestLog, head: Head, rows: Sequence[ExpireRemote]) -> list[ExpireRemote]:
    """Those that others have not taken out or replaced meanwhile, and that lie below the log start."""
    if not rows:
        return []
    start, end = rows[0].base_offset, rows[-1].next_offset
    named = {row.ulid for row in log.ask(head, lambda index: list(index.rows_with_dead(start, end)))}
    return [each for each in rows if each.ulid in named and each.next_offset <= head.readable_from]


def snapshot_of_bucket(head: Head, name: RemotePartitionName, rules: PartitionRules, now_ms: int) -> PartitionSnapshot:
    """A partition of which nothing but the bucket is known."""
    return PartitionSnapshot(
        partition=name.topic_partition,
        rules=rules,
        now_ms=now_ms,
        log_start_offset=head.log_start_offset,
        next_offset=head.next_offset,
        stable_offset=head.next_offset,
        segments=(),
        is_tiered=True,
        remote=head.segments,
        spills=head.spills,
        unlinked=head.unlinked,
        unlinked_pages=head.unlinked_pages,
        views=head.views,
        head_sequence=head.sequence,
    )


def _with_oldest_rows(snapshot: PartitionSnapshot, log: GuestLog, head: Head) -> PartitionSnapshot:
    """With the rows of the oldest pages, as far as some of them may have expired."""
    index = log.index(head)
    for _ in range(PAGES_MAX):
        spill = page_to_know(snapshot)
        if spill is None:
            break
        rows, at = index.page(spill), len(snapshot.known_oldest())
        snapshot = replace(
            snapshot,
            remote=(*snapshot.remote[:at], *rows, *snapshot.remote[at:]),
            spills=tuple(each for each in snapshot.spills if each is not spill),
            known_pages=(*snapshot.known_pages, spill),
        )
    return snapshot
