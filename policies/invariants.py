"""Checks that a plan breaks no invariant, by walking its decisions in order, in about linear time.

`apply` asserts them. The module does not use the policies, on purpose: it knows the invariants of the design (I2, I4 to
I6, I10), not retention.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from local.facts import SegmentInfo
from policies.decisions import (
    AdvanceCleanedOffset,
    AdvanceLogStart,
    BuildView,
    CleanLog,
    CollectManifests,
    CopySegment,
    Decision,
    DeletePage,
    DeletePending,
    DisableTier,
    DropLocal,
    ExpirePage,
    ExpireRemote,
    ReplaceRemote,
    RollActive,
    place_of,
)
from policies.snapshot import Coverage, PartitionSnapshot
from remote.manifest.view import DEFAULT_VIEW
from remote.segment_entry import SegmentEntry, SegmentState

MANIFESTS_RETAINED_MIN = 100  # manifests below the newest, for readers that are about to read one


class _World:
    """The snapshot after the decisions so far. Planned copies may fail, so they are no remote copies."""

    def __init__(self, snapshot: PartitionSnapshot) -> None:
        entries = [entry for entry in snapshot.remote if entry.state is SegmentState.COPY_FINISHED]
        self.snapshot, self.log_start_offset = snapshot, snapshot.log_start_offset
        self.entries = OrderedDict((entry.ulid, entry) for entry in entries)  # remaining ones, as `local`, oldest first
        # Offset ranges of entries that only a page holds, ascending; no single one of them may expire.
        self.unknown = [each for page in snapshot.pages for each in page.ranges()]
        self.local = OrderedDict((segment.base_offset, segment) for segment in snapshot.segments)
        self.closed = {segment.base_offset: segment for segment in snapshot.closed}
        self.copyable = [segment for segment in snapshot.closed if not segment.is_empty]
        self.copied_upto = max((following for _, following in (*_ranges(entries), *self.unknown)), default=0)
        self.unlinked_ms = {each.key: each.unlinked_ms for each in snapshot.pending_deletes}
        self.unlinked_ms |= {each.key: each.unlinked_ms for each in snapshot.pending_page_deletes}
        self.named_keys = snapshot.named_keys & self.unlinked_ms.keys()  # pending deletes that an entry still names
        self.coverage: Coverage | None = None  # of `entries` and `unknown`; may include those of expired entries
        self.is_cleaned = False
        self.replaced: set[str] = set()
        # Bound of the log start: above it, the view kept by a threshold would lose records.
        self.view_reaches = _view_reaches(snapshot)

    def holds(self, base_offset: int, next_offset: int) -> bool:
        if self.coverage is None:
            self.coverage = Coverage.of((*_ranges(self.entries.values()), *self.unknown))
        return self.coverage.holds(max(base_offset, self.log_start_offset), next_offset)

    def next_to_copy(self) -> SegmentInfo | None:
        reached = max(self.copied_upto, self.log_start_offset)
        at = bisect_right(self.copyable, reached, key=attrgetter("next_offset"))
        return self.copyable[at] if at < len(self.copyable) else None

    def closed_segment(self, base_offset: int, next_offset: int) -> SegmentInfo | None:
        segment = self.closed.get(base_offset)
        return segment if segment is not None and segment.next_offset == next_offset else None


def violations(snapshot: PartitionSnapshot, decisions: Sequence[Decision]) -> list[str]:
    """Return one sentence per broken invariant, in the plan's order; empty for a sound plan."""
    world = _World(snapshot)
    found: list[str] = []
    for decision in decisions:
        found += [f"{type(decision).__name__} {place_of(decision)}: {broken}" for broken in _check(world, decision)]
    return [*found, *_check_copies(world, [one for one in decisions if isinstance(one, CopySegment)])]


def _ranges(entries: Iterable[SegmentEntry]) -> Iterable[tuple[int, int]]:
    return ((entry.base_offset, entry.next_offset) for entry in entries)


def _view_reaches(snapshot: PartitionSnapshot) -> int | None:
    """The bound that a view sets to the log start; None if no view is configured, or the view has a gap."""
    if snapshot.rules.view_threshold_bytes is None or not snapshot.builds_views:
        return None
    horizons = [view.horizon_offset for view in snapshot.all_views if view.name == DEFAULT_VIEW and view.is_built]
    horizon = horizons[0] if horizons else snapshot.log_start_offset
    return horizon if horizon >= snapshot.log_start_offset else None


def _check(world: _World, decision: Decision) -> Iterator[str]:
    """Return the rules that the next decision breaks, and apply the decision to `world`."""
    match decision:
        case RollActive():
            return _check_roll(world.snapshot, decision)
        case CleanLog():
            return _check_clean(world, decision)
        case CopySegment():
            return _check_copy(world, decision)
        case ReplaceRemote() | AdvanceCleanedOffset():
            return _check_replace(world, decision)
        case DropLocal():
            return _check_drop(world, decision)
        case BuildView():
            return _check_view(world, decision)
        case AdvanceLogStart():
            return _check_advance(world, decision)
        case DisableTier():
            return _check_give_up(world, decision)
        case ExpireRemote() | ExpirePage() if _was_tier_disabled(world.snapshot, decision):
            return iter(())
        case ExpireRemote():
            return _check_expire(world, decision)
        case ExpirePage():
            return _check_expire_page(world, decision)
        case DeletePending() | DeletePage():
            return _check_delete(world, decision)
        case CollectManifests():
            return _check_collect(world.snapshot, decision)


def _check_roll(snapshot: PartitionSnapshot, decision: RollActive) -> Iterator[str]:
    active = snapshot.active
    if active is None or active.base_offset != decision.base_offset:
        yield "not the active segment"
        return
    if active.is_empty:
        yield "the active segment is empty"


def _check_clean(world: _World, decision: CleanLog) -> Iterator[str]:
    snapshot = world.snapshot
    if not snapshot.rules.cleanup_compact:
        yield "the topic is not compacted"
    if decision.upto_offset > snapshot.stable_offset:
        yield f"ends above the stable offset {snapshot.stable_offset}"
    if snapshot.active is not None and decision.upto_offset > snapshot.active.base_offset:
        yield "ends in the active segment"
    if decision.upto_offset <= decision.first_dirty_offset:
        yield "has nothing to clean"
    world.is_cleaned = True


def _check_copy(world: _World, decision: CopySegment) -> Iterator[str]:
    snapshot = world.snapshot
    if not snapshot.is_copying_on:
        yield "copying is disabled for this topic"
    if world.is_cleaned:
        yield "follows a cleaning that may replace the segment"
    if world.closed_segment(decision.base_offset, decision.next_offset) is None:
        yield "not a closed local segment"
    if decision.next_offset > snapshot.stable_offset:
        yield f"ends above the stable offset {snapshot.stable_offset}"
    if snapshot.rules.cleanup_compact and decision.next_offset > snapshot.clean_cut:
        yield f"not entirely below the cleaner checkpoint {snapshot.clean_cut} (I6)"
    if decision.base_offset < world.copied_upto:
        yield f"overlaps the offsets that are copied up to {world.copied_upto}"
    due = world.next_to_copy()
    if due is not None and due.base_offset < decision.base_offset:
        yield f"leaves a gap, [{due.base_offset}, {due.next_offset}) is neither copied nor empty"
    world.copied_upto = max(world.copied_upto, decision.next_offset)


def _check_copies(world: _World, copies: Sequence[CopySegment]) -> Iterator[str]:
    uncopied, snapshot = world.next_to_copy(), world.snapshot
    if not copies or not snapshot.rules.cleanup_compact or uncopied is None:
        return
    if uncopied.next_offset > snapshot.clean_cut:
        return
    place = f"[{uncopied.base_offset}, {uncopied.next_offset})"
    yield f"CopySegment {place_of(copies[-1])}: does not include {place}, which is also clean (I4)"


def _check_replace(world: _World, decision: ReplaceRemote | AdvanceCleanedOffset) -> Iterator[str]:
    snapshot, cut = world.snapshot, world.snapshot.clean_cut
    if not snapshot.rules.cleanup_compact or not snapshot.is_copying_on:
        yield "the topic is not compacted, or copying is disabled"
    if world.is_cleaned:
        yield "follows a cleaning that may replace the segment"
    if world.closed_segment(decision.base_offset, decision.next_offset) is None:
        yield "not a closed local segment"
    if decision.next_offset > cut or (isinstance(decision, AdvanceCleanedOffset) and decision.cleaned_through > cut):
        yield f"not entirely below the cleaner checkpoint {cut} (I5)"
    if any(not world.holds(each.base_offset, each.next_offset) for each in world.copyable if each.next_offset <= cut):
        yield "the store lacks a part of the clean prefix (I4)"
    entries = [world.entries[ulid] for ulid in decision.ulids if ulid in world.entries and ulid not in world.replaced]
    bounds = [decision.base_offset, *(entry.next_offset for entry in entries)]
    tiles = [entry.base_offset for entry in entries] == bounds[:-1] and bounds[-1] == decision.next_offset
    if len(entries) < len(decision.ulids) or not tiles:
        yield "its segment entries do not cover the segment exactly"
    if any(entry.is_redacted for entry in entries):
        yield "replaces or verifies a segment entry from which a job erased records that the disk may still have"
    if isinstance(decision, ReplaceRemote):
        world.replaced.update(decision.ulids)
    elif any(entry.made_by is not None for entry in entries):
        yield "verifies a segment entry of a job by the record count of a local segment that is no copy of it"


def _check_drop(world: _World, decision: DropLocal) -> Iterator[str]:
    segment = world.closed_segment(decision.base_offset, decision.next_offset)
    if segment is None:
        yield "not a closed local segment"
        return
    if next(iter(world.local), None) != decision.base_offset:
        yield "not the oldest local segment"
    if not segment.is_empty and not world.holds(decision.base_offset, decision.next_offset):
        yield "the only copy of retained records (I2)"
    world.local.pop(decision.base_offset, None)


def _check_view(world: _World, decision: BuildView) -> Iterator[str]:
    is_local = world.snapshot.keeps_views_on_disk
    if not world.snapshot.is_tiered and not is_local:
        yield "the topic has no remote tier"
    if decision.upto_offset > world.snapshot.stable_offset:
        yield f"ends above the stable offset {world.snapshot.stable_offset}"
    copied_upto = max(world.snapshot.remote_next_offset or 0, world.snapshot.log_start_offset)
    if not is_local and decision.upto_offset > copied_upto:
        yield "ends above the offsets that the bucket holds"
    if world.view_reaches is not None and decision.view == DEFAULT_VIEW:
        world.view_reaches = max(world.view_reaches, decision.upto_offset)


def _check_advance(world: _World, decision: AdvanceLogStart) -> Iterator[str]:
    if decision.offset <= world.log_start_offset:
        yield f"not above the log start {world.log_start_offset}"
    if decision.offset > world.snapshot.next_offset:
        yield f"above the log end offset {world.snapshot.next_offset}"
    if not world.snapshot.rules.cleanup_delete:
        yield "the topic has no delete policy"
    if world.view_reaches is not None and decision.offset > world.view_reaches:
        yield f"passes the offsets that the compacted view includes, {world.view_reaches}"
    world.log_start_offset = max(world.log_start_offset, decision.offset)


def _check_give_up(world: _World, decision: DisableTier) -> Iterator[str]:
    snapshot = world.snapshot
    if not snapshot.rules.gives_up_remote:
        yield "the remote tier is not disabled"
    first = next(iter(world.local), None)
    if first is None or decision.offset < first:
        yield f"the local log starts later, at {first} (I2)"
    if not snapshot.log_start_offset <= decision.offset <= snapshot.next_offset:
        yield f"outside the log [{snapshot.log_start_offset}, {snapshot.next_offset}]"
    world.log_start_offset = max(world.log_start_offset, decision.offset)
    world.entries.clear()
    world.unknown, world.coverage = [], None


def _was_tier_disabled(snapshot: PartitionSnapshot, decision: ExpireRemote | ExpirePage) -> bool:
    name = decision.ulid if isinstance(decision, ExpireRemote) else decision.key
    return any(name == (part.ulid if isinstance(part, SegmentEntry) else part.key) for part in snapshot.tier_disabled)


def _check_expire(world: _World, decision: ExpireRemote) -> Iterator[str]:
    if decision.ulid not in world.entries:
        yield "not a committed segment entry"
        return
    is_below_unknown = not world.unknown or decision.base_offset < world.unknown[0][0]
    if next(iter(world.entries)) != decision.ulid or not is_below_unknown:
        yield "not the oldest segment entry"
    if decision.ulid in world.replaced:
        yield "replaced by this plan"
    entry = world.entries.pop(decision.ulid)
    if entry.next_offset > world.log_start_offset:
        yield f"holds records at or above the log start {world.log_start_offset}"
        world.coverage = None


def _check_expire_page(world: _World, decision: ExpirePage) -> Iterator[str]:
    snapshot = world.snapshot
    page = next((each for each in (*snapshot.known_pages, *snapshot.pages) if each.key == decision.key), None)
    if page is None or (page.base_offset, page.next_offset) != (decision.base_offset, decision.next_offset):
        yield "not a manifest page of the index"
        return
    held = {entry.ulid for entry in world.entries.values() if entry.base_offset < page.next_offset}
    if any(entry.base_offset < page.base_offset for entry in world.entries.values()):
        yield "not the oldest"
    if page.next_offset > world.log_start_offset:
        yield f"holds records at or above the log start {world.log_start_offset}"
        world.coverage = None
    for ulid in held:
        del world.entries[ulid]
    world.unknown = [each for each in world.unknown if each[0] >= page.next_offset]


def _check_delete(world: _World, decision: DeletePending | DeletePage) -> Iterator[str]:
    snapshot = world.snapshot
    unlinked_ms = world.unlinked_ms.get(decision.key)
    if unlinked_ms is None:
        yield "not a pending delete (I10)"
        return
    if snapshot.now_ms - unlinked_ms < snapshot.rules.delete_grace_ms:
        yield "within the grace period"
    if decision.key in world.named_keys:
        yield "a segment entry still names it"


def _check_collect(snapshot: PartitionSnapshot, decision: CollectManifests) -> Iterator[str]:
    if snapshot.head_sequence - decision.upto_sequence < MANIFESTS_RETAINED_MIN:
        yield f"leaves fewer than {MANIFESTS_RETAINED_MIN} manifests below the newest"
