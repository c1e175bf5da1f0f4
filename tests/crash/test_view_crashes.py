"""A view build with a fault at every store and disk call: the old or the new view, complete."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from checked_bucket import check_bucket, damage
from disk_model import PowerCut
from fault_store import Fault, FaultStore, Killed
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, settle
from run_profile import each_call

from local.errors import Fenced, LogError
from local.format.record import Record
from remote.keys import parse_view_key
from remote.manifest.view import ViewState, find_view
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

KEYS = 120


def prepared() -> World:
    """A view of the first half; the second half of the log has new values, a deletion, a new key."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        write(manager, [Record(b"k%d" % at, b"old value %d" % at, NOW) for at in range(KEYS)])
        build(manager)
        write(manager, [Record(b"k%d" % at, None if at == 3 else b"new value %d" % at, NOW) for at in range(10)])
        write(manager, [Record(b"another", b"key", NOW)])
    return world


def write(manager: LogManager, records: list[Record]) -> None:
    manager.append("t", records, 0, now_ms=NOW)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)


def build(manager: LogManager, now_ms: int = NOW) -> None:
    build_views(manager, plan_views(manager, "t", now_ms=now_ms))


def read(world: World) -> list[tuple[int, bytes | None]]:
    """The records that a reader of the bucket alone finds below the horizon."""
    with RemoteLog(world.store) as bucket:
        reader = bucket.reader(read_compacted=True)
        view = find_view(bucket.manifest(NAME).views, "compacted")
        assert view is not None
        return [(each.offset, each.value) for each in reader.records(NAME, 0, view.horizon_offset)]


OLD = [(at, b"old value %d" % at) for at in range(KEYS)]
NEW = [
    *OLD[10:],
    *((KEYS + at, b"new value %d" % at) for at in range(10) if at != 3),
    (KEYS + 10, b"key"),
]


def test_building_a_view_reuses_one_part_and_writes_two() -> None:
    """One part of the old view is reused, one is rewritten, and one is added."""
    world = prepared()
    assert read(world) == OLD
    with world.open() as manager:
        before = {entry.ulid for entry in manager.partitions.all()[0].manifest().view_entries}
        build(manager)
        after = {entry.ulid for entry in manager.partitions.all()[0].manifest().view_entries}
    assert read(world) == NEW
    assert before & after
    assert before - after
    assert CALLS.count("upload") > 1


def run_with(world: World, at: int, fault: Fault | None) -> FaultStore:
    """Build with `fault` at call `at`; the manager ends as in a crash."""
    store = FaultStore(world.store)
    manager = world.open(store=store)
    store._at, store._fault = len(store.calls) + at if fault is not None else -1, fault
    begun = len(store.calls)
    with suppress(Killed):
        build(manager)
    store.deliver(len(store.calls) + 10)  # delayed requests arrive now
    store.calls = store.calls[begun:]
    with suppress(Killed):
        manager.abandon()
    return store


CALLS = run_with(prepared(), 0, None).calls


@pytest.mark.parametrize("fault", list(Fault))
def test_a_build_with_a_store_fault_at_any_call_leaves_the_old_or_the_new_view(fault: Fault) -> None:
    seen = set()
    for at in each_call(range(len(CALLS)), fault):
        world = prepared()
        run_with(world, at, fault)
        found = read(world)
        assert found in (OLD, NEW), f"call {at} {CALLS[at]}"
        seen.add(found == NEW)
        assert damage(check_bucket(world.store)) == []
        with world.open() as manager:
            manifest = manager.partitions.all()[0].manifest()
            state = find_view(manifest.views, "compacted").state(manifest.epoch)
            assert state is ViewState.SUCCESS or found == OLD, f"call {at}: {state}"
            build(manager)
            assert manager.problems == {}
            assert read(world) == NEW
            settle(manager, NOW + DAY + HOUR)
            assert read(world) == NEW
        assert damage(check_bucket(world.store)) == []
    assert seen == {True, False} or fault in (Fault.OUTAGE, Fault.BEFORE, Fault.KILL_BEFORE)


def test_an_error_before_the_commit_leaves_no_object_and_its_reason_in_the_manifest() -> None:
    for at, verb in enumerate(CALLS):
        if verb != "upload":
            continue
        world = prepared()
        before = {each.key for each in world.store.list("") if "/view/" in each.key}
        run_with(world, at, Fault.BEFORE)
        assert {each.key for each in world.store.list("") if "/view/" in each.key} == before
        with RemoteLog(world.store) as bucket:
            manifest = bucket.manifest(NAME)
        view = find_view(manifest.views, "compacted")
        assert view.state(manifest.epoch) is ViewState.ERROR
        assert "injected fault" in view.failure.error


def test_a_build_interrupted_by_a_crash_differs_from_a_running_one() -> None:
    world = prepared()
    run_with(world, CALLS.index("upload"), Fault.KILL_BEFORE)
    with RemoteLog(world.store) as bucket:
        manifest = bucket.manifest(NAME)
    view = find_view(manifest.views, "compacted")
    assert view.state(manifest.epoch) is ViewState.RUNNING
    with world.open() as manager:
        assert view.state(manager.partitions.all()[0].manifest().epoch) is ViewState.INTERRUPTED


def test_a_writer_fenced_during_a_build_changes_nothing_that_readers_see() -> None:
    for at in range(len(CALLS)):
        world = prepared()
        store = FaultStore(world.store)
        late = world.open(store=store)
        begun = len(store.calls)
        taken = []

        def take_over(number: int, world=world, begun=begun, at=at, taken=taken) -> None:
            if number == begun + at and not taken:
                taken.append(world.open(disk=world.other_disk()))

        store._before_call = take_over
        build(late)
        manifest = taken[0].partitions.all()[0].manifest()
        with RemoteLog(world.store) as bucket:
            newest = bucket.manifest(NAME)
        if newest.epoch == manifest.epoch and newest.sequence == manifest.sequence:
            assert read(world) in (OLD, NEW)
            assert isinstance(late.problems.get(NAME), Fenced) or read(world) == NEW, f"call {at}"
        named = {entry.data_key for view in newest.views for entry in view.entries}
        assert all(parse_view_key(key) is not None for key in named)
        build(taken[0])
        assert read(world) == NEW
        late.abandon()
        taken[0].abandon()
        assert damage(check_bucket(world.store)) == []


def disk_effects() -> int:
    """The number of disk effects of a build."""
    world = prepared()
    manager = world.open()
    begun = world.disk.effects
    build(manager)
    return world.disk.effects - begun


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("is_power_cut", [True, False])
def test_a_build_with_a_disk_fault_at_any_call_leaves_the_log_and_the_view_whole(
    is_power_cut: bool, before: bool
) -> None:
    """The part on the disk means nothing to the next open."""
    for at in each_call(range(1, disk_effects() + 1), is_power_cut, before):
        world = prepared()
        manager = world.open()
        log = list(manager.reader().records(NAME, 0))
        world.disk.cut_before = before
        if is_power_cut:
            world.disk.cut_at = world.disk.effects + at
        else:
            world.disk.fail_at = world.disk.effects + at
        with suppress(PowerCut, LogError):
            build(manager)
        with suppress(PowerCut, LogError):
            manager.abandon()
        assert read(world) in (OLD, NEW)
        world.disk = world.disk.crash(random.Random(at))
        with world.open() as again:
            assert list(again.reader().records(NAME, 0)) == log
            assert not [name for name in world.disk.list("./data/t-0") if name.endswith(".cleaned")]
            build(again)
            assert again.problems == {}
        assert read(world) == NEW
        assert damage(check_bucket(world.store)) == []
