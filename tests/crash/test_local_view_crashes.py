"""A local view with a fault at every disk call: the old or the new view is there, complete.

`tiered.read.view_places` lists the steps and the state after a crash at each of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from checked_bucket import check_bucket, damage
from disk_model import ModelDisk, PowerCut
from fault_store import Fault, FaultStore, Killed
from manager_world import NAME, NOW, World, settle
from run_profile import each_call

from local.errors import LogError, NotFound
from local.format.record import Record
from local.logdirs.log_moves import view_files
from local.verify.findings import Severity
from tiered.health.bucket_verifying import verify_views
from tiered.jobs.view_jobs import build_views, drop_views, plan_views
from tiered.manager.manager import LogManager
from tiered.read import view_places
from tiered.read.bucket_reader import RemoteLog

KEYS = 120
STATES = 3  # crash states that are checked for every power cut
Found = list[tuple[int, bytes | None]]
OLD: Found = [(at, b"old value %d" % at) for at in range(KEYS)]
NEW: Found = [
    *OLD[10:],
    *((KEYS + at, b"new value %d" % at) for at in range(10) if at != 3),
    (KEYS + 10, b"key"),
]


def prepared() -> World:
    """A view of the first half; the second half of the log has new values, a deletion, a new key."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {"retention.ms": "-1"}, now_ms=NOW)
        write(manager, [Record(b"k%d" % at, b"old value %d" % at, NOW) for at in range(KEYS)])
        build(manager)
        write(manager, [Record(b"k%d" % at, None if at == 3 else b"new value %d" % at, NOW) for at in range(10)])
        write(manager, [Record(b"another", b"key", NOW)])
    return world


def write(manager: LogManager, records: list[Record]) -> None:
    manager.append("t", records, 0, now_ms=NOW)


def build(manager: LogManager) -> None:
    build_views(manager, plan_views(manager, "t", now_ms=NOW))


def refresh(manager: LogManager) -> None:
    """A build, and the round that deletes the parts of the old view."""
    build(manager)
    manager.tick(NOW)


def read(manager: LogManager) -> Found:
    reader = manager.reader(read_compacted=True)
    horizon = reader.view(NAME).horizon_offset
    return [(each.offset, each.value) for each in reader.records(NAME, 0, horizon)]


def effects_of(act: Callable[[LogManager], None]) -> list[str]:
    """The calls to the disk that have an effect, in order."""
    world = prepared()
    manager = world.open()
    begun = len(world.disk.journal)
    act(manager)
    return world.disk.journal[begun:]


def cut(world: World, act: Callable[[LogManager], None], at: int, *, before: bool, fails: bool = False) -> None:
    """Run `act` in a fresh process; its effect `at` is the last one or fails.

    The process ends as in a crash.
    """
    manager = world.open()
    world.disk.cut_before = before
    if fails:
        world.disk.fail_at = world.disk.effects + at
    else:
        world.disk.cut_at = world.disk.effects + at
    with suppress(PowerCut, LogError):
        act(manager)
    with suppress(PowerCut, LogError):
        manager.abandon()
    world.disk.cut_at = world.disk.fail_at = None
    world.disk.locks.clear()


def check(world: World, expected: tuple[Found, ...], where: str) -> Found:
    """Check the view after an open; then the next build includes the whole log, and no file is left over."""
    with world.open() as manager:
        assert len(list(manager.reader().records(NAME, 0))) == KEYS + 11, where
        found = read(manager)
        assert found in expected, where
        check_files(world, where)
        build(manager)
        assert manager.problems == {}, where
        assert read(manager) == NEW, where
        manager.tick(NOW)
        assert read(manager) == NEW, where
    check_files(world, where)
    assert (
        not view_files(world.disk, "./data/t-0").keys() - manager.partitions.all()[0].local_views.catalog().named_keys
    )
    return found


def check_files(world: World, where: str) -> None:
    found = verify_views(world.disk, "./data")
    assert not [each for each in found if each.severity is not Severity.INFO], (where, found)


EFFECTS = effects_of(refresh)
SWITCHED = max(at for at, what in enumerate(effects_of(build)) if "view-catalog" in what or what == "sync ./data/t-0/")


def test_a_view_build_renames_parts_then_the_catalog_then_deletes_old_parts() -> None:
    """A part is written and renamed, the catalog is replaced, the old part is deleted."""
    parts = [at for at, what in enumerate(EFFECTS) if what.startswith("rename ./data/t-0/view/~aside")]
    catalogs = [at for at, what in enumerate(EFFECTS) if what.startswith("rename ./data/t-0/view-catalog.tmp")]
    deleted = [at for at, what in enumerate(EFFECTS) if what.startswith("unlink ./data/t-0/view/compacted")]
    assert len(catalogs) == 3
    assert catalogs[0] < min(parts) <= max(parts) < catalogs[1] < min(deleted) <= max(deleted) < catalogs[2]
    world = prepared()
    with world.open() as manager:
        assert read(manager) == OLD
        refresh(manager)
        assert read(manager) == NEW


@pytest.mark.parametrize("before", [True, False])
def test_a_power_cut_during_a_view_build_leaves_the_old_or_the_new_view_complete(before: bool) -> None:
    seen = set()
    for at in each_call(range(1, len(EFFECTS) + 1)):
        for state in range(STATES):
            world = prepared()
            cut(world, refresh, at, before=before)
            world.disk = world.disk.crash(random.Random(1000 * at + state))
            is_done = at > SWITCHED + 1
            where = f"effect {at} of {len(EFFECTS)}: {EFFECTS[at - 1]}, state {state}"
            seen.add(check(world, (NEW,) if is_done else (OLD, NEW), where) == NEW)
    assert seen == {True, False}


@pytest.mark.parametrize("before", [True, False])
def test_a_disk_error_during_a_view_build_leaves_the_old_or_the_new_view(before: bool) -> None:
    """In the manager that continues, and after the next open."""
    for at in each_call(range(1, len(EFFECTS) + 1), before):
        world = prepared()
        cut(world, refresh, at, before=before, fails=True)
        world.disk = world.disk.crash(random.Random(at))
        check(world, (OLD, NEW), f"effect {at}: {EFFECTS[at - 1]}")


def test_a_view_catalog_that_may_not_be_durable_permits_no_deletion() -> None:
    """A process dies between rename and directory sync; the next one deletes; the power fails."""
    renamed = [at for at, what in enumerate(EFFECTS) if what.startswith("rename ./data/t-0/view-catalog.tmp")][1] + 1

    def start_and_round(world: World) -> None:
        manager = world.open()
        manager.tick(NOW)
        manager.abandon()

    counted = prepared()
    cut(counted, refresh, renamed, before=False)
    begun = counted.disk.effects
    start_and_round(counted)
    for at in each_call(range(1, counted.disk.effects - begun + 1)):
        for state in range(STATES):
            world = prepared()
            cut(world, refresh, renamed, before=False)
            world.disk.cut_before, world.disk.cut_at = False, world.disk.effects + at
            with suppress(PowerCut):
                start_and_round(world)
            world.disk = world.disk.crash(random.Random(100 * at + state))
            check(world, (OLD, NEW), f"effect {at} of the second process, state {state}")


@pytest.mark.parametrize("before", [True, False])
def test_a_dropped_view_with_a_power_cut_is_complete_or_absent(before: bool) -> None:
    def drop(manager: LogManager) -> None:
        drop_views(manager, "t", now_ms=NOW)
        manager.tick(NOW)

    effects = effects_of(drop)
    for at in each_call(range(1, len(effects) + 1), before):
        world = prepared()
        cut(world, drop, at, before=before)
        world.disk = world.disk.crash(random.Random(at))
        with world.open() as manager:
            with suppress(NotFound):
                assert read(manager) == OLD, f"effect {at}: {effects[at - 1]}"
            check_files(world, effects[at - 1])
            build(manager)
            assert read(manager) == NEW


@pytest.mark.parametrize("before", [True, False])
def test_a_view_never_has_records_that_a_truncation_removed_from_its_log(before: bool) -> None:
    def truncate(manager: LogManager) -> None:
        manager.partitions.all()[0].log.truncate_to(60, now_ms=NOW)
        write(manager, [Record(b"other", b"%d" % at, NOW) for at in range(100)])
        manager.flush()

    effects = effects_of(truncate)
    for at in each_call(range(1, len(effects) + 1), before):
        world = prepared()
        cut(world, truncate, at, before=before)
        world.disk = world.disk.crash(random.Random(at))
        with world.open() as manager:
            log = {each.offset: each.value for each in manager.reader().records(NAME, 0)}
            with suppress(NotFound):
                assert all(log[offset] == value for offset, value in read(manager)), f"effect {at}: {effects[at - 1]}"
            build(manager)
            assert manager.problems == {}
            assert all(log[offset] == value for offset, value in read(manager))


# -- a topic gets a remote tier: its view moves from the disk to the bucket


def enabled() -> World:
    """As `prepared`, with a remote tier that was enabled later and holds the whole log."""
    world = prepared()
    with world.open() as manager:
        manager.topics.alter("t", {"remote.storage.enable": "true"}, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    return world


def check_carried(world: World, where: str) -> Found:
    """An open finds one of the two views; at the end the view is in the bucket alone."""
    with world.open() as manager:
        found = read(manager)
        assert found in (OLD, NEW), where
        build(manager)
        assert manager.problems == {}, where
        assert read(manager) == NEW, where
        settle(manager)
        assert view_files(world.disk, "./data/t-0") == {}, where
        assert manager.partitions.all()[0].local_views.known() == (), where
    with RemoteLog(world.store) as bucket:
        reader = bucket.reader(read_compacted=True)
        assert [(each.offset, each.value) for each in reader.records(NAME, 0, KEYS + 11)] == NEW, where
    assert damage(check_bucket(world.store)) == []
    return found


@pytest.mark.parametrize("before", [True, False])
def test_a_power_cut_while_a_view_moves_to_the_bucket_loses_none_of_it(before: bool) -> None:
    world = enabled()
    manager = world.open()
    begun = len(world.disk.journal)
    refresh(manager)
    effects = world.disk.journal[begun:]
    assert any("view-catalog" in what for what in effects)
    for at in each_call(range(1, len(effects) + 1), before):
        world = enabled()
        cut(world, refresh, at, before=before)
        world.disk = world.disk.crash(random.Random(at))
        check_carried(world, f"effect {at}: {effects[at - 1]}")


@pytest.mark.parametrize("fault", list(Fault))
def test_a_store_fault_while_a_view_moves_to_the_bucket_loses_none_of_it(fault: Fault) -> None:
    calls = carry_with(enabled(), 0, None).calls
    assert calls.count("upload") > 1
    seen = set()
    for at in each_call(range(len(calls)), fault):
        world = enabled()
        carry_with(world, at, fault)
        seen.add(check_carried(world, f"call {at} {calls[at]}") == NEW)
    assert seen == {True, False} or fault in (Fault.OUTAGE, Fault.BEFORE, Fault.KILL_BEFORE)


def carry_with(world: World, at: int, fault: Fault | None) -> FaultStore:
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


# -- planted bugs: each of them must be detected


def _no_sync_of_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = view_places.replace_file
    monkeypatch.setattr(view_places, "replace_file", lambda *given: kept(*given, syncs_name=False))


def _no_sync_before_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ModelDisk.sync_directory

    def sync(disk: ModelDisk, path: str) -> None:
        if path != "./data/t-0" or "rename ./data/t-0/view-catalog.tmp" in disk.journal[-1]:
            kept(disk, path)

    monkeypatch.setattr(ModelDisk, "sync_directory", sync)


def _no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_places.LocalViews, "cut", lambda views, offset, now_ms: None)


@pytest.mark.deep("planted bugs of local views")
@pytest.mark.usefixtures("every_call")
@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (
            _no_sync_of_the_directory,
            lambda: test_a_power_cut_during_a_view_build_leaves_the_old_or_the_new_view_complete(False),
        ),
        (_no_sync_before_a_deletion, test_a_view_catalog_that_may_not_be_durable_permits_no_deletion),
        (_no_cut, lambda: test_a_view_never_has_records_that_a_truncation_removed_from_its_log(False)),
    ],
)
def test_a_planted_bug_is_detected(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, LogError, KeyError)):
        test()
