"""Forks: the same records without copied objects.
Neither topic deletes an object that the other needs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from checked_bucket import check_bucket, damage
from disk_model import ModelDisk
from manager_world import COMPACTED, DAY, HOUR, NAME, NOW, TIERED, World, send, settle

from local.errors import Conflict, InvalidRequest, LogError, NotFound
from local.format.record import StoredRecord
from local.names import TopicPartition
from remote.gc import fork_references
from remote.gc.fork_references import forks_of, is_over, named_by_forks
from remote.gc.orphan_search import find_orphans
from remote.gc.pins import Pin, list_pins, pin_newest, release
from remote.keys import parse_data_key
from remote.manifest import commit_protocol
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.page_out import PageRule
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.cost.topic_cost import cost_report
from tiered.jobs.orphan_deletion import delete_garbage, list_garbage
from tiered.manager.manager import LogManager
from tiered.migrate.fork import PIN_MS, ForkPlan, plan_fork, run_fork
from tiered.migrate.restore_plan import LocalSegments, RestoreWish, plan_restore
from tiered.migrate.restore_running import run_restore
from tiered.read.bucket_reader import RemoteLog

LATER = NOW + 3 * DAY  # after every grace period, and after the expiry of a fork's pin
FORK = TopicPartition("f", 0)
SMALL_PAGES = PageRule(manifest_bytes_max=900, page_rows_max=4, page_rows_min=1, kept_entries_min=2)


def _world(count: int = 300, settings: dict[str, str] = TIERED) -> World:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, settings, now_ms=NOW)
        send(manager, count)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    return world


def _names(store: ObjectStore, topic: str) -> list[RemotePartitionName]:
    return [name for name in list_partitions(store) if name.topic == topic]


def _plan(store: ObjectStore, source: str = "t", fork: str = "f", upto: int | None = None) -> ForkPlan:
    return plan_fork(store, _names(store, source), fork, known=_names(store, fork), upto_offset=upto)


def _fork(store: ObjectStore, source: str = "t", fork: str = "f", upto: int | None = None) -> None:
    assert len(run_fork(store, _plan(store, source, fork, upto), now_ms=lambda: NOW)) == 1


def _read(store: ObjectStore, partition: TopicPartition) -> list[StoredRecord]:
    bucket = RemoteLog(store)
    start, _ = bucket.reader().offsets(partition)
    return list(bucket.reader().records(partition, start))


def _data(store: MemoryStore) -> set[str]:
    return {key for key in store._objects if key.endswith((".log", ".indexes"))}


def _empty_the_topic(world: World, now_ms: int = LATER) -> None:
    """Expires all records and deletes every object that may be deleted."""
    with world.open(now_ms=now_ms) as manager:
        if manager.topics.all():
            manager.maintenance.delete_records({NAME: -1}, now_ms=now_ms)
            for at in range(6):
                settle(manager, now_ms + at * 2 * DAY)


def _delete_the_topic(world: World) -> None:
    with world.open(now_ms=LATER) as manager:
        manager.topics.delete("t", now_ms=LATER)
        for at in range(6):
            settle(manager, LATER + at * 2 * DAY)
        assert manager.partitions.registry.deleted() == ()


def _manager_of_the_fork(world: World) -> LogManager:
    disk = ModelDisk()
    plan = plan_restore(
        world.store, _names(world.store, "f"), RestoreWish(kept=LocalSegments.NONE, takes_over=True), now_ms=LATER
    )
    run_restore(world.store, plan, disk, "./other", now_ms=lambda: LATER)
    return LogManager.open(replace(world.config, data_dir="./other"), now_ms=LATER, storage=disk, store=world.store)


def test_fork_takes_the_topic_that_is_not_deleted_or_asks_for_a_topic_id() -> None:
    world = _world()
    with world.open() as manager:
        manager.topics.delete("t", now_ms=NOW)
        settle(manager)
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        living = manager.topics.get("t").topic_id
        send(manager, 40)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    assert [each.source.topic_id for each in _plan(world.store).partitions] == [living]
    foreign = RemotePartitionName("t", "AAAAAAAAAAAAAAAAAAAAAA", 0)
    MetadataLog(world.store, foreign.prefix).become_writer("w", NOW, topic="t", topic_id=foreign.topic_id, partition=0)
    with pytest.raises(InvalidRequest, match="choose one by its id") as caught:
        _plan(world.store)
    assert all(topic_id in str(caught.value) for topic_id in (foreign.topic_id, living))


@pytest.mark.parametrize("settings", [TIERED, COMPACTED])
def test_fork_has_the_same_records_and_no_object_of_its_own(settings: dict[str, str]) -> None:
    world = _world(settings=settings)
    truth, before = _read(world.store, NAME), _data(world.store)
    _fork(world.store)
    assert _read(world.store, FORK) == truth
    assert _data(world.store) == before
    assert damage(check_bucket(world.store)) == []


@pytest.mark.parametrize("goes", [_empty_the_topic, _delete_the_topic])
def test_objects_unlinked_by_the_source_are_kept_for_the_fork(goes: Callable[[World], None]) -> None:
    world = _world()
    truth, before = _read(world.store, NAME), _data(world.store)
    _fork(world.store)
    goes(world)
    assert _read(world.store, FORK) == truth
    assert _data(world.store) == before
    source = _names(world.store, "t")
    for name in source:
        manifest = MetadataLog(world.store, name.prefix).refresh(exact=True)
        assert not manifest.has_entries
        assert not manifest.pending_deletes
        assert not manifest.pending_page_deletes
        assert find_orphans(world.store, name.prefix, MetadataLog(world.store, name.prefix), now_ms=LATER) == []
    assert list_garbage(world.store, source, now_ms=LATER + 90 * DAY).entries == []
    assert damage(check_bucket(world.store)) == []


def test_deleted_fork_leaves_the_objects_of_its_source() -> None:
    world = _world()
    _fork(world.store)
    truth, before = _read(world.store, NAME), _data(world.store)
    with _manager_of_the_fork(world) as manager:
        manager.topics.delete("f", now_ms=LATER)
        for at in range(6):
            settle(manager, LATER + at * 2 * DAY)
    assert _read(world.store, NAME) == truth
    assert _data(world.store) == before
    _empty_the_topic(world)
    assert _data(world.store) == set()


def test_objects_that_only_a_deleted_fork_needed_become_orphans() -> None:
    world = _world()
    _fork(world.store)
    _empty_the_topic(world)
    with _manager_of_the_fork(world) as manager:
        manager.topics.delete("f", now_ms=LATER)
        for at in range(6):
            settle(manager, LATER + at * 2 * DAY)
    left = _data(world.store)
    assert left
    with world.open(now_ms=LATER):  # begins a writer epoch: objects it does not name are orphans
        pass
    far = LATER + 90 * DAY
    listed = list_garbage(world.store, _names(world.store, "t"), now_ms=far)
    assert {each.name.prefix + each.key for each in listed.entries} == left
    delete_garbage(world.store, listed, now_ms=far)
    assert _data(world.store) == set()


def test_objects_unlinked_by_a_fork_are_kept_for_its_grace_period() -> None:
    """The source deletes its own pending deletes in between."""
    world = _world()
    _fork(world.store)
    before = _data(world.store)
    with world.open(now_ms=LATER - 23 * HOUR) as manager:
        manager.maintenance.delete_records({NAME: -1}, now_ms=LATER - 23 * HOUR)
        settle(manager, LATER - 23 * HOUR)
    with _manager_of_the_fork(world) as manager:
        manager.maintenance.delete_records({FORK: -1}, now_ms=LATER)
        settle(manager, LATER)
        manifest = manager.partitions.find(FORK).manifest()
        assert manifest is not None
        assert not manifest.has_entries
        assert manifest.pending_deletes
    with world.open(now_ms=LATER + 2 * HOUR) as manager:
        settle(manager, LATER + 2 * HOUR)
        home = manager.partitions.find(NAME).manifest()
        assert home is not None
        assert not home.pending_deletes, "the objects must not be pending deletes of the source any more"
    assert _data(world.store) == before


def test_appends_to_a_fork_and_its_source_are_separate() -> None:
    world = _world()
    truth = _read(world.store, NAME)
    _fork(world.store)
    with _manager_of_the_fork(world) as manager, world.open(now_ms=LATER) as source:
        assert manager.problems == {} == source.problems
        send(manager, 40, topic="f", start=5_000)
        send(source, 40, start=9_000)
        for each, topic in ((manager, "f"), (source, "t")):
            each.partitions.roll(topic, now_ms=LATER)
            settle(each, LATER)
    values = {name: [record.value for record in _read(world.store, name)] for name in (NAME, FORK)}
    old = [record.value for record in truth]
    assert values[FORK] == old + [b"value %d" % at for at in range(5_000, 5_040)]
    assert values[NAME] == old + [b"value %d" % at for at in range(9_000, 9_040)]
    assert damage(check_bucket(world.store)) == []


def test_fork_of_a_fork_is_readable_after_both_are_deleted() -> None:
    world = _world()
    truth = _read(world.store, NAME)
    _fork(world.store)
    _fork(world.store, "f", "g")
    _empty_the_topic(world)
    with _manager_of_the_fork(world) as manager:
        manager.topics.delete("f", now_ms=LATER)
        for at in range(6):
            settle(manager, LATER + at * 2 * DAY)
    assert _read(world.store, TopicPartition("g", 0)) == truth
    assert list_garbage(world.store, list_partitions(world.store), now_ms=LATER + 90 * DAY).entries == []


def test_fork_up_to_an_offset_ends_at_the_last_segment_below_it() -> None:
    world = _world()
    truth = _read(world.store, NAME)
    ends = [
        entry.next_offset for entry in MetadataLog(world.store, _names(world.store, "t")[0].prefix).refresh().segments
    ]
    _fork(world.store, upto=ends[1] + 3)
    assert _read(world.store, FORK) == truth[: ends[1]]
    cleaned = _world(settings=COMPACTED)
    with cleaned.open() as manager:
        send(manager, 300, start=300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with pytest.raises(InvalidRequest, match="would be missing"):
        _plan(cleaned.store, upto=250)


def test_fork_under_the_name_of_another_topic_is_refused() -> None:
    world = _world()
    with world.open() as manager:
        manager.topics.create("f", 1, TIERED, now_ms=NOW)
        settle(manager)
    with pytest.raises(InvalidRequest, match="another topic of that name"):
        _plan(world.store)


class Cut(BaseException):
    """The forking process ends at this point."""


class Stepping:
    """A store that calls `deed` before or after the call number `at`."""

    def __init__(self, inner: MemoryStore, at: int, deed: Callable[[], None], *, is_after: bool) -> None:
        self.inner, self.count = inner, 0
        self._at, self._deed, self._is_after = at, deed, is_after

    def __getattr__(self, verb: str) -> object:
        real = getattr(self.inner, verb)
        if not callable(real):
            return real

        def call(*args: object, **more: object) -> object:
            self.count += 1
            is_due = self.count == self._at
            if is_due and not self._is_after:
                self._deed()
            try:
                answer = real(*args, **more)
                answer = list(answer) if verb == "list" else answer
            finally:
                if is_due and self._is_after:
                    self._deed()
            return answer

        return call


def _copied(world: World) -> World:
    """A copy of the disk and the bucket."""
    other = World()
    other.disk = world.disk.crash(random.Random(1))
    other.store._objects = dict(world.store._objects)
    return other


def _calls(world: World) -> int:
    stepping = Stepping(_copied(world).store, -1, lambda: None, is_after=False)
    run_fork(stepping, _plan(stepping), now_ms=lambda: NOW)  # type: ignore[arg-type]
    return stepping.count


@pytest.mark.parametrize("is_after", [False, True])
def test_fork_interrupted_at_any_call_is_completed_by_a_second_run(is_after: bool) -> None:
    world = _world(150)
    # A log start offset inside a segment: the records below it are deleted and must stay deleted.
    with world.open() as manager:
        manager.maintenance.delete_records({NAME: 37}, now_ms=NOW)
        settle(manager)
    truth = _read(world.store, NAME)
    assert truth[0].offset == 37

    def cut() -> None:
        raise Cut("cut")

    for at in range(1, _calls(world) + 1):
        other = _copied(world)
        stepping = Stepping(other.store, at, cut, is_after=is_after)
        with pytest.raises(Cut):
            run_fork(stepping, _plan(stepping), now_ms=lambda: NOW)  # type: ignore[arg-type]
        _fork(other.store)
        _empty_the_topic(other)
        _fork(other.store)  # a further run must not change a complete fork
        assert _read(other.store, FORK) == truth, at
        assert damage(check_bucket(other.store)) == [], at


def _plan_calls(world: World) -> int:
    stepping = Stepping(_copied(world).store, -1, lambda: None, is_after=False)
    _plan(stepping)  # type: ignore[arg-type]
    return stepping.count


@pytest.mark.parametrize("is_after", [False, True])
def test_removal_of_a_late_fork_interrupted_at_any_call_is_finished_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    """A fork that was not made in time is removed again. Without the next run:
    1. The objects that it names would stay for ever.
    2. Its name could not be used if it was interrupted before it was marked as deleted."""
    monkeypatch.setattr("remote.manifest.commit_protocol.PAGE_RULE", SMALL_PAGES)
    world, seen = _world(150), 0
    truth = _read(world.store, NAME)

    def cut() -> None:
        raise Cut("cut")

    for at in range(_plan_calls(world) + 1, 400):
        other = _copied(world)
        stepping = Stepping(other.store, at, cut, is_after=is_after)
        plan = _plan(stepping)  # type: ignore[arg-type]
        with monkeypatch.context() as late:
            late.setattr("tiered.migrate.fork._is_in_time", lambda *given: False)
            with pytest.raises((Cut, Conflict)) as ended:
                run_fork(stepping, plan, now_ms=lambda: NOW)  # type: ignore[arg-type]
        _fork(other.store)
        manifests = [MetadataLog(other.store, name.prefix).refresh(exact=True) for name in _names(other.store, "f")]
        living = [manifest for manifest in manifests if manifest.deleted_ms is None]
        assert len(living) == 1, at
        gone = [name.prefix for name in _names(other.store, "f") if name.topic_id != living[0].topic_id]
        assert all(is_over(other.store, prefix) for prefix in gone), at
        bucket = RemoteLog(other.store, topic_ids={"f": living[0].topic_id}).reader()
        assert list(bucket.records(FORK, bucket.offsets(FORK)[0])) == truth, at
        seen += bool(gone) and ended.type is Cut
        if ended.type is Conflict:
            break
    assert ended.type is Conflict
    assert seen > 10


def _race(world: World, at: int, *, passes_ms: int, deed: Callable[[World, int], None]) -> tuple[World, bool]:
    """Runs `deed` and advances the time between two calls of a fork.
    The second value is whether the fork was made."""
    other, clock = _copied(world), [NOW]

    def act() -> None:
        clock[0] += passes_ms
        deed(other, clock[0])

    stepping = Stepping(other.store, at, act, is_after=False)
    try:
        run_fork(stepping, _plan(stepping), now_ms=lambda: clock[0])  # type: ignore[arg-type]
    except (Conflict, LogError):
        return other, False
    return other, True


def _empties(world: World, now_ms: int) -> None:
    """Retention of the source expires everything: unlinked now, deleted later."""
    with world.open(now_ms=now_ms) as manager:
        manager.maintenance.delete_records({NAME: -1}, now_ms=now_ms)
        for step in range(4):
            settle(manager, now_ms + step * 30 * HOUR)


def test_fork_is_complete_or_absent_when_the_source_deletes_between_any_two_calls() -> None:
    """A fork that reports success keeps every record for ever.
    A fork that reports a failure leaves nothing."""
    world = _world(150)
    truth = _read(world.store, NAME)
    made = 0
    for passes_ms in (0, 2 * PIN_MS):
        for at in range(1, _calls(world) + 1):
            other, is_made = _race(world, at, passes_ms=passes_ms, deed=_empties)
            _empty_the_topic(other, LATER + 30 * DAY)
            made += is_made
            if is_made and _names(other.store, "f"):
                found = _read(other.store, FORK)
                assert found in (truth, []), at  # all records, or none if the source was empty before the fork
            else:
                assert not any(
                    manifest.has_entries
                    for name in _names(other.store, "f")
                    if (manifest := MetadataLog(other.store, name.prefix).load(exact=True)) is not None
                ), at
            assert damage(check_bucket(other.store)) == [], at
    assert made > 8


def test_late_release_of_a_lapsed_pin_leaves_every_fork_known_to_its_source() -> None:
    """The forking process sleeps. The collector finds its pin lapsed and no fork yet.
    It releases the pin after the fork has reported success."""
    world, judged = _world(150), 0
    for at in range(1, _calls(world) + 1):
        lapsed: list[Pin] = []

        def look(other: World, now_ms: int, lapsed: list[Pin] = lapsed) -> None:
            prefix = _names(other.store, "t")[0].prefix
            pins = [pin for pin in list_pins(other.store, prefix) if pin.expires_ms <= now_ms]
            lapsed += [pin for pin in pins if pin.fork is not None and is_over(other.store, pin.fork)]

        other, is_made = _race(world, at, passes_ms=2 * PIN_MS, deed=look)
        source = _names(other.store, "t")[0].prefix
        release(other.store, source, lapsed)
        judged += bool(lapsed)
        if is_made:
            assert forks_of(list_pins(other.store, source)), f"the source must know the fork after call {at}"
        assert damage(check_bucket(other.store)) == [], at
    assert judged > 2


def _begun(count: int) -> World:
    """A bucket in which a fork has a manifest but no entries, because its process was interrupted."""
    world = _world(count)

    def cut() -> None:
        raise Cut("cut")

    for at in range(1, _calls(world) + 1):
        other = _copied(world)
        stepping = Stepping(other.store, at, cut, is_after=True)
        with pytest.raises(Cut):
            run_fork(stepping, _plan(stepping), now_ms=lambda: NOW)  # type: ignore[arg-type]
        if _names(other.store, "f"):
            return other
    raise AssertionError("no interrupted fork has a manifest")


def test_two_concurrent_forks_of_one_name_keep_every_record_of_a_successful_one() -> None:
    """A second run begins and ends between any two calls of the first one.
    Then the source expires everything.
    Both runs continue a fork that was begun, so they make the same fork."""
    world = _begun(100)
    truth = _read(world.store, NAME)
    told = []
    for at, is_late in product(range(1, _calls(world) + 12), (False, True)):
        other, made = _copied(world), []

        def fork_too(other: World = other, made: list[str] = made) -> None:
            run_fork(other.store, _plan(other.store), now_ms=lambda: NOW)
            made.append("second")
            _empties(other, NOW)  # the entries that the first run is about to name leave the manifest

        stepping = Stepping(other.store, at, fork_too, is_after=False)
        clock = iter([NOW + 9 * DAY])  # a late run: hours pass after its first read of the clock
        late_ms = NOW + 9 * DAY + (2 * PIN_MS if is_late else 0)
        try:
            run_fork(stepping, _plan(stepping), now_ms=lambda: next(clock, late_ms))  # type: ignore[arg-type]  # noqa: B023
            made.append("first")
        except LogError:
            pass
        if stepping.count < at:
            continue
        assert made, at
        _empty_the_topic(other, LATER + 30 * DAY)
        manifests = [MetadataLog(other.store, name.prefix).refresh(exact=True) for name in _names(other.store, "f")]
        living = [
            RemotePartitionName(manifest.topic, manifest.topic_id, 0)
            for manifest in manifests
            if manifest.deleted_ms is None
        ]
        ids = [name.topic_id for name in living]
        assert ids, (at, made)
        reads = [RemoteLog(other.store, topic_ids={"f": each}).reader() for each in ids]
        found = [list(each.records(FORK, each.offsets(FORK)[0])) for each in reads]
        assert truth in found, (at, made)
        assert damage(check_bucket(other.store)) == [], at
        told += made
    assert told.count("second") > 8


def test_lookup_of_forks_sees_a_fork_made_during_the_lookup() -> None:
    """Between the listing and the read of the first fork's manifest:
    1. A second fork is made of the first one.
    2. The first fork is deleted."""
    world = _world(150)
    _fork(world.store)
    home = _names(world.store, "t")[0].prefix
    fork = _names(world.store, "f")[0].prefix
    real, is_due = fork_references.named_by_fork, [True]

    def named(store: ObjectStore, prefix: str) -> set[str]:
        if prefix == fork and is_due.pop() if is_due else False:
            _fork(world.store, "f", "g")
            with _manager_of_the_fork(world) as manager:
                manager.topics.delete("f", now_ms=LATER)
                for at in range(6):
                    settle(manager, LATER + at * 2 * DAY)
        return real(store, prefix)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_references, "named_by_fork", named)
        kept = named_by_forks(world.store, home)
    assert {home + key for key in kept} == _data(world.store)


def test_lapsed_pin_of_a_fork_with_a_deleted_page_blocks_no_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader ended without releasing its pin.
    GC removes pins only together with old manifests, and here it removes none."""
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", SMALL_PAGES)
    world = _world()
    _fork(world.store)
    home, fork = _names(world.store, "t")[0].prefix, _names(world.store, "f")[0].prefix
    log = MetadataLog(world.store, fork)
    _, pinned = pin_newest(world.store, fork, log, now_ms=LATER, expires_ms=LATER + HOUR, holder="reader")
    assert pinned.pages
    with _manager_of_the_fork(world) as manager:
        manager.maintenance.delete_records({FORK: -1}, now_ms=LATER)
        for at in range(3):
            settle(manager, LATER + at * 2 * DAY)
    assert ManifestChain(world.store, fork).read(pinned.sequence) == pinned
    assert not any(fork + page.key in world.store._objects for page in pinned.pages)
    paged_upto = max(page.next_offset for page in pinned.pages)
    kept = [parse_data_key(key) for key in named_by_forks(world.store, home)]
    assert all(each is not None and each.base_offset >= paged_upto for each in kept)
    _empty_the_topic(world, LATER + 7 * DAY)
    left = [parse_data_key(key.removeprefix(home)) for key in _data(world.store)]
    assert {each.base_offset for each in left if each is not None} == {each.base_offset for each in kept if each}


def test_lost_page_of_a_pinned_manifest_of_a_fork_prevents_deletions_by_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program deleted the page while the fork lists it as a pending delete.
    Its entries are unknown."""
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", SMALL_PAGES)
    world = _world()
    _fork(world.store)
    home, fork = _names(world.store, "t")[0].prefix, _names(world.store, "f")[0].prefix
    log = MetadataLog(world.store, fork)
    _, pinned = pin_newest(world.store, fork, log, now_ms=LATER, expires_ms=LATER + 9 * DAY, holder="reader")
    with _manager_of_the_fork(world) as manager:
        manager.maintenance.delete_records({FORK: -1}, now_ms=LATER)
        settle(manager, LATER)
    named_by_forks(world.store, home)
    world.store.delete([fork + pinned.pages[0].key])
    with pytest.raises(NotFound):
        named_by_forks(world.store, home)


def test_appends_to_a_fork_have_leader_epochs_above_those_of_its_source() -> None:
    world = _world(60)
    for at in range(4):
        with world.open() as manager:
            send(manager, 60, start=60 + at * 60)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
    truth = _read(world.store, NAME)
    _fork(world.store)
    with _manager_of_the_fork(world) as manager:
        send(manager, 40, topic="f", start=5_000)
        manager.partitions.roll("f", now_ms=LATER)
        settle(manager, LATER)
        epochs = manager.partitions.find(FORK).log.epochs.entries
    assert [record.value for record in _read(world.store, FORK)][: len(truth)] == [record.value for record in truth]
    lineage = [epoch for epoch, _ in MetadataLog(world.store, _names(world.store, "f")[0].prefix).refresh().lineage]
    assert lineage == sorted(lineage)
    assert epochs[-1][0] == lineage[-1] > 5


def test_cost_report_of_a_fork_shows_the_bytes_it_shares_with_its_source() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        (source,) = cost_report(manager, NOW).bills
    _fork(world.store)
    with _manager_of_the_fork(world) as manager:
        (fork,) = cost_report(manager, NOW).bills
    assert (source.shared_bytes, fork.shared_bytes) == (0, source.data_bytes)
    assert fork.data_bytes == source.data_bytes > 0
