"""A deleted topic is gone at once, its files after a delay, its objects after the grace time, whatever fails."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest
from disk_model import ModelDisk, PowerCut
from fault_store import Fault, FaultStore, Killed
from manager_world import HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import Conflict, DiskFailed, LogError, NotFound
from local.format.record import Record
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from remote.check.partition_check import ObjectKind
from remote.keys import HEADS
from remote.manifest.manifest import decode_head
from remote.store.memory_store import MemoryStore
from tiered.health.bucket_check import check_bucket
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

LIMIT_S = 60.0  # nothing takes so long; a test that would hang fails instead
LEFT = {ObjectKind.HEAD, ObjectKind.BOUNDARY}  # of a deleted partition
GRACE = {**TIERED, "remote.log.delete.grace.ms": "2h"}


@pytest.fixture
def world() -> World:
    return World()


def _filled(world: World, properties: dict[str, str] = GRACE, **settings: str) -> LogManager:
    manager = world.open(**settings)
    manager.create_topic("t", 1, properties, now_ms=NOW)
    send(manager, 300)
    settle(manager)
    send(manager, 20, start=300)
    return manager


def _kinds(store: MemoryStore) -> set[ObjectKind]:
    return {kind for report in check_bucket(store) for kind in report.counts()}


def _directories(disk: ModelDisk) -> list[str]:
    return sorted(name.rsplit("/", 1)[-1] for name in disk.directories if "/t-0" in name)


def test_it_is_gone_at_once_and_its_bytes_follow(world: World) -> None:
    with _filled(world, file_delete_delay_ms="1m") as manager:
        before = len(list(world.store.list("")))
        manager.delete_topic("t", now_ms=NOW)
        assert manager.topics() == []
        for use in (
            lambda: manager.append("t", [Record(b"k", b"v", NOW)], 0, now_ms=NOW),
            lambda: manager.reader().offsets(NAME),
            lambda: manager.topic("t"),
        ):
            with pytest.raises(NotFound):
                use()
        (renamed,) = _directories(world.disk)
        assert renamed.startswith("t-0.")
        assert renamed.endswith("-delete")
        settle(manager, NOW + 1000)
        assert _directories(world.disk) == [renamed]
        assert len(list(world.store.list(""))) > before, "a head says that it was deleted"
        settle(manager, NOW + 61_000)
        assert _directories(world.disk) == []
        settle(manager, NOW + 2 * HOUR - 1)
        assert ObjectKind.SEGMENT in _kinds(world.store), "readers have their grace time"
        settle(manager, NOW + 2 * HOUR)
        assert _kinds(world.store) == LEFT
        assert manager._registry.deleted() == ()
    assert b"deleted" in world.disk.read("./data/topics.json")


def test_a_reader_with_an_older_head_reads_on_until_the_grace_time_is_over(world: World) -> None:
    with _filled(world) as manager:
        view = RemoteLog(world.store)
        start, end = view.reader().offsets(NAME)
        manager.delete_topic("t", now_ms=NOW)
        settle(manager, NOW + HOUR)
        assert len(values(view.reader(), start, end)) == end
        with pytest.raises(NotFound, match="its topic was deleted"):
            RemoteLog(world.store).reader().offsets(NAME)


def test_a_topic_of_the_same_name_shares_nothing_with_it(world: World) -> None:
    with _filled(world) as manager:
        old_id = manager.topic("t").topic_id
        manager.delete_topic("t", now_ms=NOW)
        new = manager.create_topic("t", 1, GRACE, now_ms=NOW)
        assert new.topic_id != old_id
        assert manager.reader().offsets(NAME) == (0, 0)
        send(manager, 200, start=1000)
        settle(manager, NOW + 3 * HOUR)
        assert [value for _, value in values(manager.reader())] == [b"value %d" % at for at in range(1000, 1200)]
        reports = {report.prefix.split("/")[0]: report for report in check_bucket(world.store)}
        assert set(reports[f"t-{old_id}"].counts()) == LEFT
        assert ObjectKind.SEGMENT in reports[f"t-{new.topic_id}"].counts()
    with world.open() as manager:
        assert len(values(manager.reader())) == 200


class _Told:
    """A lock that says when somebody has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock, self._waits = threading.Lock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *rest: object) -> None:
        self._lock.release()


def test_who_was_about_to_remove_a_deleted_topics_log_does_not_take_the_new_one_of_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round looks after what is left of deleted topics: it finds the log that the deletion itself is about to remove,
    and has not done it when that is through and a topic of the same name has records."""
    looked, may_go_on = threading.Event(), threading.Event()
    with _filled(world, {}) as manager:
        round_ = threading.Thread(target=manager._deletion.step, args=(NOW,))
        registry_delete, topic_id = manager._registry.delete, LogDirectories.topic_id

        def delete(name: str, *, now_ms: int) -> object:
            gone = registry_delete(name, now_ms=now_ms)
            round_.start()
            assert looked.wait(LIMIT_S)
            return gone

        def look(directories: LogDirectories, name: TopicPartition) -> str | None:
            found = topic_id(directories, name)
            if threading.current_thread() is round_ and not looked.is_set():
                looked.set()
                assert may_go_on.wait(LIMIT_S)
            return found

        monkeypatch.setattr(manager._deletion, "_looking", _Told(may_go_on), raising=False)
        monkeypatch.setattr(manager._registry, "delete", delete)
        monkeypatch.setattr(LogDirectories, "topic_id", look)
        manager.delete_topic("t", now_ms=NOW)
        manager.create_topic("t", 1, {}, now_ms=NOW)
        send(manager, 200, start=1000)
        may_go_on.set()
        round_.join(LIMIT_S)
        assert [value for _, value in values(manager.reader())] == [b"value %d" % at for at in range(1000, 1200)]
        send(manager, 10, start=1200)
    with world.open() as manager:
        assert len(values(manager.reader())) == 210


def test_what_the_disk_refuses_to_remove_is_tried_again_and_the_topic_not_forgotten_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    unlink = world.disk.unlink

    def unlink_later(path: str) -> None:
        if "-delete/" in path and path.endswith(".log") and not refused:
            refused.append(path)
            raise DiskFailed("injected", path=path)
        unlink(path)

    monkeypatch.setattr(world.disk, "unlink", unlink_later)
    with _filled(world, {}) as manager:
        manager.delete_topic("t", now_ms=NOW)
        settle(manager, NOW)
        assert len(refused) == len(_directories(world.disk)) == 1
        assert manager._registry.deleted(), "forgotten, and its records lie there for good"
        settle(manager, NOW + HOUR)
        assert _directories(world.disk) == []
        assert manager._registry.deleted() == ()


def test_a_machine_that_still_knows_the_topic_is_refused_and_keeps_its_files(world: World) -> None:
    with _filled(world):
        pass
    other = world.other_disk()
    with world.open(disk=other) as second:
        second.delete_topic("t", now_ms=NOW)
        settle(second, NOW + 3 * HOUR)
    held = {name for name in world.disk.names if "/t-0/" in name and name.endswith(".log")}
    with world.open() as first:
        assert isinstance(first.problems[NAME], Conflict)
        assert "the topic was deleted" in str(first.problems[NAME])
        first.tick(NOW)
    assert held <= set(world.disk.names)
    assert _kinds(world.store) == LEFT


def test_a_writer_whose_topic_is_deleted_by_another_machine_is_fenced(world: World) -> None:
    with _filled(world) as first:
        with world.open(disk=world.other_disk()) as second:
            second.delete_topic("t", now_ms=NOW)
            settle(second, NOW + 3 * HOUR)
        send(first, 200, start=320)
        first.tick(NOW)
        assert isinstance(first.problems[NAME], Conflict)
    assert ObjectKind.SEGMENT not in _kinds(world.store)


def test_a_topic_that_was_never_tiered_goes_without_the_store(world: World) -> None:
    with _filled(world, {}) as manager:
        manager.delete_topic("t", now_ms=NOW)
        settle(manager, NOW)
        assert _directories(world.disk) == []
        assert manager._registry.deleted() == ()
    assert list(world.store.list("")) == []


def test_a_bucket_that_is_away_holds_up_only_its_own_part(world: World) -> None:
    with _filled(world):
        pass
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        store.is_down = True
        manager.delete_topic("t", now_ms=NOW)
        manager.tick(NOW + HOUR)
        assert _directories(world.disk) == []
        store.is_down = False
        settle(manager, NOW + HOUR)
        settle(manager, NOW + 4 * HOUR)
    assert _kinds(world.store) == LEFT


def test_the_cleaner_lets_go_and_comes_to_no_deleted_log(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, {**GRACE, "cleanup.policy": "compact"}, now_ms=NOW)
        send(manager, 200)
        log = manager.partitions()[0].log
        manager.delete_topic("t", now_ms=NOW)
        assert not log.cleaning.try_start()
        settle(manager, NOW + 3 * HOUR)
        assert _kinds(world.store) <= LEFT


def test_an_unknown_topic_is_named(world: World) -> None:
    with world.open() as manager, pytest.raises(NotFound, match="nobody"):
        manager.delete_topic("nobody", now_ms=NOW)


# --- every effect and every call is the last one ----------------------------------------------------------------------


def _delete_all(world: World, store: object) -> None:
    manager = world.open(store=store)  # type: ignore[arg-type]
    manager.delete_topic("t", now_ms=NOW)
    for hours in (0, 1, 3):
        for _ in range(8):
            manager.tick(NOW + hours * HOUR)
    manager.close()


def _check_after(world: World) -> None:
    """The next start knows the topic whole, or finishes what was begun."""
    world.disk.locks.clear()
    with world.open() as manager:
        if manager.topics():
            assert len(values(manager.reader())) == 320
            manager.delete_topic("t", now_ms=NOW)
        for hours in (5, 9):
            settle(manager, NOW + hours * HOUR)
        assert manager._registry.deleted() == ()
    assert _directories(world.disk) == []
    assert _kinds(world.store) <= {*LEFT, ObjectKind.PROBE, ObjectKind.ORPHAN}
    heads = [info.key for info in world.store.list("") if HEADS in info.key]
    assert len(heads) <= 1, "the last one says that it was deleted"


def _prepared() -> World:
    world = World()
    _filled(world).close()
    return world


def test_a_power_cut_at_any_effect_leaves_what_the_next_start_finishes() -> None:
    whole = _prepared()
    first = whole.disk.effects
    _delete_all(whole, whole.store)
    effects = whole.disk.effects - first
    assert effects > 15
    for at in range(1, effects + 1):
        world = _prepared()
        world.disk.cut_at, world.disk.cut_before = world.disk.effects + at, at % 2 == 0
        with suppress(PowerCut):
            _delete_all(world, world.store)
        world.disk = world.disk.crash(random.Random(at))
        _check_after(world)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE_3, Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_any_call_to_the_store_may_fail(fault: Fault) -> None:
    whole = _prepared()
    rehearsal = FaultStore(whole.store)
    _delete_all(whole, rehearsal)
    for at in range(len(rehearsal.calls)):
        world = _prepared()
        store = FaultStore(world.store, at, fault)
        with suppress(Killed, LogError):
            _delete_all(world, store)
        store.deliver(1 << 60)
        _check_after(world)


# --- two machines delete it -------------------------------------------------------------------------------------------


def _epoch(world: World) -> int:
    (newest,) = sorted(info.key for info in world.store.list("") if HEADS in info.key)[-1:]
    return decode_head(world.store.get(newest)).epoch


def test_two_machines_that_delete_one_topic_do_not_fence_each_other_round_after_round(world: World) -> None:
    _filled(world).close()
    with world.open(disk=world.other_disk()) as second, world.open(takes_over=True) as first:
        first.delete_topic("t", now_ms=NOW)
        second.delete_topic("t", now_ms=NOW)
        before = _epoch(world)
        for minutes in range(0, 240, 5):
            first.tick(NOW + minutes * 60_000)
            second.tick(NOW + minutes * 60_000)
        assert _epoch(world) == before, "whoever was fenced gives way"
        assert _kinds(world.store) == LEFT
        assert first._registry.deleted() == second._registry.deleted() == ()


def test_a_removal_that_gave_way_goes_on_when_the_other_machine_has_died(world: World) -> None:
    _filled(world).close()
    with world.open() as first:
        with world.open(disk=world.other_disk()) as second:
            first.delete_topic("t", now_ms=NOW)
            second.delete_topic("t", now_ms=NOW)
            first.tick(NOW)
        settle(first, NOW + 2 * HOUR)
        settle(first, NOW + 3 * HOUR - 1)
        assert ObjectKind.SEGMENT in _kinds(world.store), "the other one may still be at work"
        settle(first, NOW + 3 * HOUR)
        assert _kinds(world.store) == LEFT
        assert first._registry.deleted() == ()
