"""The plan: the decisions of all policies for one partition, in an order whose every prefix is safe.

Order of effects; after a crash between any two of them the next plan continues:

1. Roll, clean, copy: these only add. A plan that cleans copies nothing, because cleaning merges and replaces the
   segments that the copies would name. A skipped copy before a completed one would be a permanent hole in the bucket.
2. Replace entries while the disk still holds the replacement. The new object is uploaded first, and one commit swaps
   its entry for the old ones.
3. Drop local segments, judged by the commits **before** this plan.
4. Build compacted views from the bucket, or from the disk of an untiered topic, before any of the records expire.
5. Advance the log start.
6. Expire local segments and entries without another copy. All of them are below the new log start. Entries of a
   disabled tier follow.
7. Delete the bytes of objects unlinked a grace period ago, then old manifests.

Order of effects for a disabled remote tier (KIP-950, `remote.log.delete.on.disable`):

1. One decision, alone in its plan: the log start rises to the start of the local log, and no entry counts any more.
2. From then on all other policies see a partition with an empty bucket.
3. Later plans unlink the old pages whole, and the old entries as far as there is room. Nothing is copied until this
   step is complete (`PartitionSnapshot.is_copying_on`), so a tier that is enabled again begins without entries.
4. The bytes are deleted a grace period later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from local.names import TopicPartition
from policies.compacted_view import held_back, view_builds
from policies.compaction import cleaning_deferrals, cleanings, replacements
from policies.copy_lag import are_uploads_held
from policies.decisions import (
    Action,
    AdvanceLogStart,
    CleanLog,
    Code,
    Decision,
    Deferral,
    DisableTier,
    DropLocal,
    ExpirePage,
    ExpireRemote,
    Plan,
    ReplaceRemote,
    RollActive,
    put_off,
)
from policies.retention import (
    deletions,
    drop_deferrals,
    expirations,
    expire_entry,
    expire_page,
    leaving,
    local_drops,
    local_expirations,
    manifest_collections,
    room_for_entries,
)
from policies.snapshot import PartitionSnapshot
from policies.tiering import copies, copy_deferrals, rolls
from remote.segment_entry import SegmentEntry

_DISABLED_REASON = "the remote tier is disabled"


def plan_partition(snapshot: PartitionSnapshot) -> list[Decision]:
    """Return the decisions for one partition, in order. Pure: equal snapshots give equal lists."""
    if tier_disabled := disablings(snapshot):
        return [*tier_disabled]
    dropped, wanted = local_drops(snapshot), expirations(snapshot)
    ended = local_expirations(snapshot, dropped, wanted)
    built = view_builds(snapshot, [*wanted, *ended])
    expired = held_back(snapshot, wanted, built)
    if len(expired) < len(wanted):
        ended = local_expirations(snapshot, dropped, expired)
    ended = held_back(snapshot, ended, built)
    cleaned = cleanings(snapshot)
    replaced = [] if cleaned else replacements(snapshot, going={one.ulid for one in expired})
    if are_uploads_held(snapshot):
        # The replacements wait, and so do the drops from the first replaced segment on.
        first = min((each.base_offset for each in replaced if isinstance(each, ReplaceRemote)), default=None)
        replaced = [each for each in replaced if not isinstance(each, ReplaceRemote)]
        dropped = [each for each in dropped if first is None or each.next_offset <= first]
    return [
        *rolls(snapshot, going_count=len(dropped) + len(ended)),
        *cleaned,
        *([] if cleaned else copies(snapshot)),
        *replaced,
        *dropped,
        *built,
        *_advance(snapshot, expired, ended),
        *ended,
        *leaving(snapshot, expired),
        *leaving_for_good(snapshot),
        *deletions(snapshot),
        *manifest_collections(snapshot),
    ]


def deferrals(snapshot: PartitionSnapshot, planned: Sequence[Decision]) -> list[Deferral]:
    """Return the copies, cleanings and local drops that `planned` puts off."""
    is_cleaning, is_rolling = (any(isinstance(each, kind) for each in planned) for kind in (CleanLog, RollActive))
    dropping = {each.base_offset for each in planned if isinstance(each, DropLocal)}
    held = {each.base_offset for each in local_drops(snapshot)} - dropping
    reason = Code.REPLACEMENT, "it replaces remote segments when uploads resume"
    if snapshot.tier_disabled or snapshot.rules.gives_up_remote:
        reason = Code.GIVING_UP, "the remote tier must be disabled first"
    return [
        *copy_deferrals(snapshot, is_cleaning=is_cleaning, is_rolling=is_rolling),
        *cleaning_deferrals(snapshot),
        *(put_off(Action.DROP, each, *reason) for each in snapshot.closed if each.base_offset in held),
        *drop_deferrals(snapshot),
    ]


def plan(snapshots: Iterable[PartitionSnapshot], now_ms: int) -> Plan:
    decided: dict[TopicPartition, list[Decision]] = {}
    waiting: dict[TopicPartition, list[Deferral]] = {}
    for snapshot in snapshots:
        if decisions := plan_partition(snapshot):
            decided[snapshot.partition] = decisions
        if put_off_now := deferrals(snapshot, decisions):
            waiting[snapshot.partition] = put_off_now
    return Plan(now_ms=now_ms, decisions=decided, deferrals=waiting)


def _advance(snapshot: PartitionSnapshot, expired: list[ExpireRemote], ended: list[DropLocal]) -> list[AdvanceLogStart]:
    ending: list[ExpireRemote | DropLocal] = [*expired, *ended]
    passed = [one for one in ending if one.next_offset > snapshot.log_start_offset]
    if not passed:
        return []
    last = max(passed, key=lambda one: one.next_offset)
    return [AdvanceLogStart(offset=last.next_offset, reason=f"retention, {last.reason}")]


def disablings(snapshot: PartitionSnapshot) -> list[DisableTier]:
    """Return a decision if the bucket has entries or views that count, or the log start is not on the disk."""
    if not (snapshot.is_tiered and snapshot.rules.gives_up_remote and snapshot.segments):
        return []
    starts_at = snapshot.segments[0].base_offset
    holds_something = bool(snapshot.committed_parts or snapshot.views)
    if not holds_something and snapshot.log_start_offset >= starts_at:
        return []
    return [
        DisableTier(
            offset=max(starts_at, snapshot.log_start_offset),
            size_bytes=snapshot.committed_bytes,
            reason="remote.storage.enable=false, remote.log.delete.on.disable=true",
        )
    ]


def leaving_for_good(snapshot: PartitionSnapshot) -> list[ExpirePage | ExpireRemote]:
    """Return the parts of a disabled tier to unlink now: all pages, then entries as far as there is room."""
    entries = [part for part in snapshot.tier_disabled if isinstance(part, SegmentEntry)]
    pages = [part for part in snapshot.tier_disabled if not isinstance(part, SegmentEntry)]
    return [
        *(expire_page(page, _DISABLED_REASON) for page in pages),
        *(expire_entry(entry, _DISABLED_REASON) for entry in entries[: room_for_entries(snapshot)]),
    ]
