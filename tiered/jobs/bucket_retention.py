"""Retention in a bucket by a co-writer: expired segment entries leave the manifest.

The policies are a manager's (`policies.retention`). Local tiers are not seen: retention by size counts too few bytes
rather than too many. The writer, or `tiered.jobs.bucket_deletion`, deletes the objects after the grace period.

**Unknown settings.** A manifest has the settings with which a topic was created, not the defaults of its machines. So
an unknown limit is no limit, and a topic with an unknown ``cleanup.policy`` expires nothing.

| a crash after | leaves |
|---|---|
| plan | nothing |
| the log start offset | entries below it, which no reader reads: the next retention takes them out |
| entries and pages are out | a finished job |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from policies.compacted_view import held_back
from policies.decisions import ExpirePage, ExpireRemote
from policies.retention import expirations, leaving, with_oldest_entries
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import expire_pages, expire_segments
from remote.store import ObjectStore
from tiered.config.config import resolve_rules
from tiered.config.properties import DEFAULTS

PAGES_MAX = 16  # pages of old entries that one plan reads
_POLICY, _VIEWS = "cleanup.policy", "compaction.view.threshold"
_NOT_SAID = {"retention.ms": "-1", "retention.bytes": "-1", "local.retention.ms": "-2", "local.retention.bytes": "-2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """The entries and pages that expire in one partition; a page counts as all its entries."""

    name: RemotePartitionName
    epoch: int
    log_start_offset: int = 0
    leaving: tuple[ExpirePage | ExpireRemote, ...] = ()
    entries: int = 0
    size_bytes: int = 0
    skip_reason: str | None = None


def rules_of(known: Mapping[str, str]) -> PartitionRules:
    """Resolve rules from a topic's known settings; an unknown limit is none. Raises InvalidRequest."""
    return resolve_rules({**DEFAULTS, **_NOT_SAID, **known})


def plan_retention(
    store: ObjectStore, name: RemotePartitionName, known: Mapping[str, str], *, now_ms: int
) -> RetentionPlan:
    """Plan by the settings `known`. Raises NotFound if there is no manifest, Conflict for a deleted topic."""
    log = MetadataLog(store, name.prefix)
    manifest = log.join()
    bare = RetentionPlan(name=name, epoch=manifest.epoch)
    if manifest.tier_disabled:
        return replace(bare, skip_reason="its remote tier is being disabled")
    if _POLICY not in known:
        return replace(bare, skip_reason=f"its {_POLICY} is unknown")
    if manifest.views and _VIEWS not in known:
        return replace(bare, skip_reason=f"it has compacted views, and {_VIEWS} is unknown")
    snapshot = snapshot_of_bucket(manifest, name, rules_of(known), now_ms)
    snapshot = with_oldest_entries(snapshot, log.index(manifest).page, PAGES_MAX)
    expired = held_back(snapshot, expirations(snapshot), [])
    start = max((each.next_offset for each in expired), default=0)
    expiring = leaving(snapshot, expired)
    counts = {page.key: page.segment_count for page in manifest.pages}
    return replace(
        bare,
        log_start_offset=max(start, manifest.log_start_offset) if expiring or start > manifest.log_start_offset else 0,
        leaving=tuple(expiring),
        entries=sum(counts[each.key] if isinstance(each, ExpirePage) else 1 for each in expiring),
        size_bytes=sum(each.size_bytes for each in expiring),
    )


def commit_retention(store: ObjectStore, plan: RetentionPlan, *, now_ms: int) -> None:
    """Raise the log start offset, then take entries and pages out. May be repeated. Raises Fenced, Conflict."""
    if not plan.log_start_offset:
        return
    log = MetadataLog(store, plan.name.prefix)
    log.join(epoch=plan.epoch)
    manifest = log.commit(expire_segments([], now_ms=now_ms, log_start_offset=plan.log_start_offset), now_ms)
    pages = [each.key for each in plan.leaving if isinstance(each, ExpirePage)]
    if pages:
        manifest = log.commit(expire_pages(pages, now_ms=now_ms), now_ms)
    entries = [each for each in plan.leaving if isinstance(each, ExpireRemote)]
    if not entries:
        return
    start, end = entries[0].base_offset, entries[-1].next_offset
    named = {entry.ulid for entry in log.ask(manifest, lambda index: list(index.entries_with_dead(start, end)))}
    due = [each for each in entries if each.ulid in named and each.next_offset <= manifest.min_readable_offset]
    if due:
        touches = due[0].base_offset, due[-1].next_offset
        log.commit(expire_segments([each.ulid for each in due], now_ms=now_ms), now_ms, touches=touches)


def snapshot_of_bucket(
    manifest: Manifest, name: RemotePartitionName, rules: PartitionRules, now_ms: int
) -> PartitionSnapshot:
    return PartitionSnapshot(
        partition=name.topic_partition,
        rules=rules,
        now_ms=now_ms,
        log_start_offset=manifest.log_start_offset,
        next_offset=manifest.next_offset,
        stable_offset=manifest.next_offset,
        segments=(),
        is_tiered=True,
        remote=manifest.segments,
        pages=manifest.pages,
        pending_deletes=manifest.pending_deletes,
        pending_page_deletes=manifest.pending_page_deletes,
        views=manifest.views,
        head_sequence=manifest.sequence,
    )
