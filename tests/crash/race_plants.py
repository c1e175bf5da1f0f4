"""Planted bugs: rules broken by hand. The races must detect every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from race_scenes import BASE, EXPIRES, KEEPS, SceneOfRace, plain_scene
from race_stage import HOUR, GatedStore

from local.log.leader_epochs import EpochRange, LeaderEpochs
from local.segment import swap
from local.storage import SegmentFiles
from policies import compaction, tier_relation
from policies.tier_relation import LocalTier, Relation, TierVerdict
from remote.gc import delayed_delete, object_deletion, orphan_search, partition_removal, pins
from remote.keys import full_key, manifest_key, new_ulid
from remote.manifest import commit_protocol, page_out
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import Change
from remote.manifest.manifest_page import encode_page
from remote.manifest.writer_roles import CO_WRITER, WriterState
from tiered.jobs import bucket_deletion
from tiered.maintenance import apply, view_building
from tiered.migrate import fork as forking
from tiered.node import upload_pause
from tiered.partition import partition, partition_opening, reconciliation

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Plant:
    """A way to break a rule, and the scenes in which the bug shows soon (None: it cannot show).

    `since` is the first seed to try, to save time.
    """

    breaks: Callable[[Patch], None]
    scene: Callable[[SceneOfRace], SceneOfRace | None] = lambda scene: scene
    since: int = 0


# --- leadership, histories -------------------------------------------------------------------------------------------


def _epoch_is_ignored(patch: Patch) -> None:
    """A writer accepts any manifest as its own."""

    def adopt(self: MetadataLog, found: Manifest) -> None:
        self._manifest = found
        if self._state is WriterState.WRITER:
            self._epoch = found.epoch

    patch.setattr(MetadataLog, "_adopt", adopt)


def _heads_are_overwritten(patch: Patch) -> None:
    def put_if_absent(self: GatedStore, key: str, body: bytes) -> None:
        self.put(key, body)

    patch.setattr(GatedStore, "put_if_absent", put_if_absent)


def _histories_are_compared_from_one_side(patch: Patch) -> None:
    def first_contradiction(local: LocalTier, history: Sequence[EpochRange]) -> int | None:
        known = dict(local.epochs.entries)
        starts = (each for each in history if each.epoch not in known or known[each.epoch] > each.base_offset)
        found = next((each.base_offset for each in starts), None)
        return found if found is not None and found < local.next_offset else None

    patch.setattr(tier_relation, "first_contradiction", first_contradiction)
    patch.setattr(reconciliation, "_is_other_writer", lambda log, manifest, mark: False)
    patch.setattr(
        partition_opening, "check_same_records", lambda *held, **more: None
    )  # detects most contradictions too


def _histories_are_not_compared(patch: Patch) -> None:
    agrees = TierVerdict(relation=Relation.BEHIND)
    patch.setattr(reconciliation, "tier_relation", lambda local, remote: agrees)


def _the_bucket_is_not_agreed_with(patch: Patch) -> None:
    patch.setattr(partition_opening, "reconcile", lambda log, manifest, **more: None)


def _records_have_no_epoch(patch: Patch) -> None:
    patch.setattr(LeaderEpochs, "assign", lambda self, epoch, start_offset: LeaderEpochs(((1, 0),)))


# --- deletions in the bucket -----------------------------------------------------------------------------------------


def _unlinked_objects_are_deleted_before_the_commit(patch: Patch) -> None:
    def expire(state: apply.Application, run: Sequence[apply.ExpireRemote]) -> list[apply.ExpireRemote]:
        assert state.partition.metadata is not None
        state.partition.metadata.store.delete([state.partition.prefix + each.data_key for each in run])
        change = apply.expire_segments([each.ulid for each in run], now_ms=state.now_ms)
        state.partition.metadata.commit(change, state.now_ms)
        return list(run)

    patch.setitem(apply._EFFECTS, apply.ExpireRemote, (apply.TierAction.EXPIRE, apply._in_one_step(expire)))


def _a_deleted_topic_waits_for_nobody(patch: Patch) -> None:
    real = partition_removal.PartitionRemoval.step
    patch.setattr(
        partition_removal.PartitionRemoval, "step", lambda self, now_ms, grace_ms: real(self, now_ms, grace_ms=0)
    )


def _a_deleted_partition_takes_writers(patch: Patch) -> None:
    real = MetadataLog.become_writer
    patch.setattr(
        MetadataLog, "become_writer", lambda self, *given, **more: real(self, *given, **more | {"removes": True})
    )


# --- pins ------------------------------------------------------------------------------------------------------------


def _who_deletes_looks_for_no_pins(patch: Patch) -> None:
    patch.setattr(pins, "list_pins", lambda store, prefix: [])


def _a_look_at_the_pins_is_good_for_what_leaves_later(patch: Patch) -> None:
    patch.setattr(pins.PinWatch, "_is_covered", lambda self, one: self._listed_ms is not None)


def _a_pin_that_was_seen_counts_for_what_left_before_it_alone(patch: Patch) -> None:
    patch.setattr(pins.PinWatch, "_stands", lambda self, pin, now_ms: False)


def _pinned_heads_are_collected(patch: Patch) -> None:
    patch.setattr(delayed_delete, "list_pins", lambda store, prefix: [])


# --- garbage collection of manifests ---------------------------------------------------------------------------------


def _who_created_a_head_does_not_look_at_the_boundary(patch: Patch) -> None:
    patch.setattr(MetadataLog, "_was_collected", lambda self, manifest: False)


def _heads_are_deleted_before_they_are_void(patch: Patch) -> None:
    real = MetadataLog.set_gc_boundary

    def set_gc_boundary(self: MetadataLog, upto: int) -> None:
        self.store.delete([self.prefix + manifest_key(sequence) for sequence in range(1, upto)])
        real(self, upto)

    patch.setattr(MetadataLog, "set_gc_boundary", set_gc_boundary)


# --- pages -----------------------------------------------------------------------------------------------------------


def _a_page_is_named_and_not_written(patch: Patch) -> None:
    def write_page(self: MetadataLog, entries: Any, now_ms: int, seal_key_id: str | None) -> Any:
        assert seal_key_id is None, "the topics of the races are not encrypted"
        page, _ = encode_page(entries, self._epoch, new_ulid(now_ms))
        self._pages.keep(page, entries)
        return page

    patch.setattr(MetadataLog, "_write_page", write_page)


def _a_page_that_was_opened_goes_at_once(patch: Patch) -> None:
    real = MetadataLog.commit

    def commit(self: MetadataLog, change: Change, now_ms: int, **more: Any) -> Manifest:
        before = self.cached
        manifest = real(self, change, now_ms, **more)
        known = {each.key for each in before.pending_deletes} if before else set()
        new = [
            each.key
            for each in manifest.pending_deletes
            if each.key not in known and each.key.startswith("meta/spill/")
        ]
        if new:
            self.store.delete([self.prefix + key for key in new])
        return manifest

    patch.setattr(MetadataLog, "commit", commit)


# --- views, compaction -----------------------------------------------------------------------------------------------


def _a_view_passes_over_what_the_log_lost(patch: Patch) -> None:
    def check_gap(self: Any) -> None:
        self._start = max(self._start, self._basis.log_start_offset)

    patch.setattr(view_building._Run, "_check_gap", check_gap)


def _the_objects_of_an_old_view_go_at_once(patch: Patch) -> None:
    real = view_building.build_view

    def build_view(held: Any, work: Any) -> Any:
        old = {each.key for each in held.manifest().pending_deletes}
        built = real(held, work)
        gone = [each.key for each in held.manifest().pending_deletes if each.key not in old]
        if gone:
            held.metadata.store.delete([held.prefix + key for key in gone])
        return built

    patch.setattr(apply, "build_view", build_view)


def _tombstones_go_when_their_time_is_over(patch: Patch) -> None:
    patch.setattr(compaction, "tombstones_below", lambda snapshot, is_bucket_known: None)


def _old_segments_go_before_the_new_one_is_announced(patch: Patch) -> None:
    """Shows only when a process ends between the two steps."""
    announce, put_in_place = swap.announce, swap.put_in_place

    def later(files: SegmentFiles) -> None:
        announce(files)
        put_in_place(files)

    patch.setattr(swap, "announce", lambda files: None)
    patch.setattr(swap, "put_in_place", later)


# --- orphans, jobs ---------------------------------------------------------------------------------------------------


def _objects_with_other_names_are_orphans(patch: Patch) -> None:
    real = orphan_search.parse_epoch
    patch.setattr(orphan_search, "parse_epoch", lambda key: 0 if real(key) is None else real(key))
    _deletions_of_orphans_are_not_checked(patch)


def _new_uploads_of_the_writer_are_orphans(patch: Patch) -> None:
    real = orphan_search.unreferenced_objects
    patch.setattr(
        orphan_search, "unreferenced_objects", lambda listed, epoch, named: real(listed, epoch=epoch + 1, named=named)
    )
    _deletions_of_orphans_are_not_checked(patch)


def _deletions_of_orphans_are_not_checked(patch: Patch) -> None:
    """Without this the deletion refuses the objects that a wrong search finds."""
    patch.setitem(object_deletion._CHECKS, object_deletion.DeleteReason.ORPHAN, lambda evidence: lambda key: True)


def _pending_deletes_are_orphans(patch: Patch) -> None:
    patch.setattr(orphan_search, "named_by", page_out.named_keys)


def _rows_in_pages_name_nothing(patch: Patch) -> None:
    real = orphan_search.named_by
    patch.setattr(orphan_search, "named_by", lambda manifest, entries_of: real(manifest, lambda page: ()))


def _a_job_carries_its_uploads_into_the_next_epoch(patch: Patch) -> None:
    real = MetadataLog._adopt

    def adopt(self: MetadataLog, found: Manifest) -> None:
        if self._role is not CO_WRITER:
            real(self, found)
            return
        self._epoch = found.epoch
        self._set(found)

    patch.setattr(MetadataLog, "_adopt", adopt)
    patch.setattr(commit_protocol, "names_older_objects", lambda draft, changed: None)


def _an_epoch_is_taken_from_anybody(patch: Patch) -> None:
    patch.setattr(bucket_deletion, "_check_newest", lambda plan, now_ms, manifest: None)


# --- forks, pauses ---------------------------------------------------------------------------------------------------


def _who_deletes_asks_no_fork(patch: Patch) -> None:
    def delete_unlinked(store: Any, prefix: str, keys: Any, *given: Any, **more: Any) -> None:
        store.delete([prefix + key for key in keys if not key.startswith("/")])

    for module in (delayed_delete, partition_removal):
        patch.setattr(module, "delete_unlinked", delete_unlinked)


def _who_collects_asks_no_fork(patch: Patch) -> None:
    patch.setattr(orphan_search, "named_by_forks", lambda store, prefix: frozenset())


def _a_fork_deletes_what_it_let_go_of(patch: Patch) -> None:
    def delete_unlinked(store: Any, prefix: str, keys: Any, *given: Any, **more: Any) -> None:
        store.delete([full_key(prefix, key) for key in keys])

    for module in (delayed_delete, partition_removal):
        patch.setattr(module, "delete_unlinked", delete_unlinked)


def _a_fork_is_not_announced(patch: Patch) -> None:
    real = forking.pin_newest
    patch.setattr(forking, "pin_newest", lambda *given, **more: real(*given, **more | {"fork": None}))


def _a_fork_is_told_of_without_a_look(patch: Patch) -> None:
    patch.setattr(forking, "_is_in_time", lambda *given: True)


def _announcements_go_when_their_pins_end(patch: Patch) -> None:
    patch.setattr(delayed_delete, "is_over", lambda store, fork: True)


def _a_look_without_forks_is_good_for_ever(patch: Patch) -> None:
    has_none = property(lambda self: False, lambda self, found: None)
    patch.setattr(pins.PinWatch, "has_forks", has_none, raising=False)


def _a_pause_stops_nothing(patch: Patch) -> None:
    patch.setattr(partition.Partition, "is_paused_now", lambda self: False)
    patch.setattr(partition.Partition, "pause", property(lambda self: None))


def _a_pause_ends_with_its_process(patch: Patch) -> None:
    """The state on the disk is ignored by the next process."""
    patch.setattr(
        upload_pause,
        "_read",
        lambda places: upload_pause.Copies(newest=None, damaged=[], unavailable=[]),
    )


def _in(trait: Callable[[SceneOfRace], object]) -> Callable[[SceneOfRace], SceneOfRace | None]:
    return lambda scene: scene if trait(scene) else None


def _long_plain(scene: SceneOfRace) -> SceneOfRace:
    """Machines that return after a rest, with records of an older leader epoch."""
    return replace(plain_scene(), steps=600, rest_max=60)


def _slow_time(scene: SceneOfRace) -> SceneOfRace | None:
    """Entries expire early, and many steps fit into a grace period."""
    if scene.kind not in ("log", "view"):
        return None
    topic = {**BASE, **EXPIRES, "retention.ms": "2h"}
    long = replace(scene, steps=800, deeds_max=80, rest_max=150, kills=0.0, deletes_topic=False)
    return replace(long, topic=topic, jumps=0.015, sleeps=0.0)


def _one_long_writer(scene: SceneOfRace) -> SceneOfRace | None:
    """One process stays the writer for many grace periods: the others rest once they are fenced."""
    slow = _slow_time(scene)
    if slow is None:
        return None
    alone = replace(slow, has_guest=False, has_freer=False, has_fork=False, pauses=False)
    return replace(alone, steps=1500, deeds_max=2000, rest_max=6000, jumps=0.03)


def _views_fall_behind(scene: SceneOfRace) -> SceneOfRace | None:
    """Hours pass between two builds of a view, and the log start offset passes the view's horizon."""
    if scene.is_compacted or not scene.has_views:
        return None
    topic = {**BASE, **EXPIRES, "retention.ms": "2h", "compaction.view.threshold": "900"}
    long = replace(scene, topic=topic, steps=800, deeds_max=80, rest_max=150, kills=0.0, jumps=0.1, sleeps=0.0, keys=12)
    return replace(long, deletes_topic=False, has_guest=False, has_freer=False, has_fork=False, pauses=False)


def _long_compacted(scene: SceneOfRace) -> SceneOfRace | None:
    """A race long enough for expired tombstones, with managers and readers alone."""
    if not scene.kind.startswith("compact") or "delete" in scene.kind:
        return None
    long = replace(scene, steps=800, deeds_max=80, rest_max=150, kills=0.0, jumps=0.1, sleeps=0.0, keys=12, rule=None)
    return replace(long, deletes_topic=False, has_guest=False, has_freer=False, has_fork=False, pauses=False)


def forker_sleeps_long(scene: SceneOfRace) -> SceneOfRace:
    """Hours pass between the announcement of a fork and its manifest; the source expires entries."""
    return _danger_for_forks(scene, retention_ms=2 * HOUR, jumps=0.08, kept_heads=None, forker_sleeps=200)


def fork_outlives(scene: SceneOfRace) -> SceneOfRace:
    """The fork keeps all that its source expires, and the source's old manifests are deleted all the time."""
    return _danger_for_forks(scene, retention_ms=6 * HOUR, jumps=0.03, kept_heads=2, fork_topic=KEEPS)


def _danger_for_forks(scene: SceneOfRace, *, retention_ms: int, **more: Any) -> SceneOfRace:
    """Entries expire early, no process is killed, and only the forking process sleeps."""
    topic = {**BASE, **EXPIRES, "retention.ms": str(retention_ms)}
    busy = replace(scene, kind="log", topic=topic, steps=1000, deeds_max=80, rest_max=1, kills=0.0, sleeps=0.0)
    lonely = replace(busy, deletes_topic=False, has_guest=False, pauses=False, has_freer=False)
    return replace(lonely, has_fork=True, forker_weight=40, **more)


_HAS_PAGES = _in(lambda scene: scene.rule is not None)
_COLLECTS_HEADS = _in(lambda scene: scene.kept_heads is not None and not scene.is_plain)
_IS_COMPACTED = _in(lambda scene: scene.is_compacted)
_HAS_VIEWS = _in(lambda scene: scene.has_views)
_HAS_FORK = _in(lambda scene: scene.has_fork)
_PAUSES = _in(lambda scene: scene.pauses)
_DELETES_TOPIC = _in(lambda scene: scene.deletes_topic)

PLANTED = [
    Plant(_epoch_is_ignored),
    Plant(_heads_are_overwritten),
    Plant(_histories_are_compared_from_one_side, _long_plain, since=71),
    Plant(_histories_are_not_compared, since=213),
    Plant(_the_bucket_is_not_agreed_with),
    Plant(_records_have_no_epoch),
    Plant(_unlinked_objects_are_deleted_before_the_commit),
    Plant(_a_deleted_topic_waits_for_nobody, _DELETES_TOPIC, since=531),
    Plant(_a_deleted_partition_takes_writers, _DELETES_TOPIC),
    Plant(_who_deletes_looks_for_no_pins, since=51),
    Plant(_a_look_at_the_pins_is_good_for_what_leaves_later, _one_long_writer, since=62),
    Plant(_a_pin_that_was_seen_counts_for_what_left_before_it_alone, since=251),
    Plant(_pinned_heads_are_collected, _COLLECTS_HEADS),
    Plant(_who_created_a_head_does_not_look_at_the_boundary, _COLLECTS_HEADS, since=65),
    Plant(_heads_are_deleted_before_they_are_void, _COLLECTS_HEADS),
    Plant(_a_page_is_named_and_not_written, _HAS_PAGES, since=46),
    Plant(_a_page_that_was_opened_goes_at_once, _HAS_PAGES),
    Plant(_a_view_passes_over_what_the_log_lost, _views_fall_behind, since=100),
    Plant(_the_objects_of_an_old_view_go_at_once, _HAS_VIEWS),
    Plant(_tombstones_go_when_their_time_is_over, _long_compacted, since=425),
    Plant(
        _old_segments_go_before_the_new_one_is_announced,
        _in(lambda scene: scene.is_compacted and scene.kills > 0),
        since=39,
    ),
    Plant(_objects_with_other_names_are_orphans),
    Plant(_new_uploads_of_the_writer_are_orphans, _slow_time, since=520),
    Plant(_pending_deletes_are_orphans, _slow_time, since=43),
    Plant(_rows_in_pages_name_nothing, _HAS_PAGES, since=55),
    Plant(_a_job_carries_its_uploads_into_the_next_epoch, _in(lambda scene: scene.has_guest), since=122),
    Plant(_an_epoch_is_taken_from_anybody, _in(lambda scene: scene.has_freer)),
    Plant(_who_deletes_asks_no_fork, fork_outlives, since=13),
    Plant(_who_collects_asks_no_fork, fork_outlives, since=92),
    Plant(_a_fork_deletes_what_it_let_go_of, _HAS_FORK),
    Plant(_a_fork_is_not_announced, _HAS_FORK, since=380),
    Plant(_a_fork_is_told_of_without_a_look, forker_sleeps_long, since=23),
    Plant(_announcements_go_when_their_pins_end, fork_outlives, since=11),
    Plant(_a_look_without_forks_is_good_for_ever, fork_outlives, since=13),
    Plant(_a_pause_stops_nothing, _PAUSES),
    Plant(_a_pause_ends_with_its_process, _PAUSES),
]
