"""Topic deletion: the topic is hidden at once, files after a delay, objects after the grace period, at any failure."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest
from checked_bucket import check_bucket
from disk_model import ModelDisk, PowerCut
from fault_store import Fault, FaultStore, Killed
from manager_world import HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values
from run_profile import each_call

from local.errors import Conflict, DiskFailed, InvalidRequest, LogError, NotFound
from local.format.record import Record
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from remote.check.partition_check import ObjectKind
from remote.keys import MANIFESTS
from remote.manifest.manifest import decode_manifest
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

LIMIT_S = 60.0  # no operation takes this long, so a hanging test fails
LEFT = {ObjectKind.MANIFEST, ObjectKind.BOUNDARY}  # objects that remain of a deleted partition
GRACE = {**TIERED, "remote.log.delete.grace.ms": "2h"}


@pytest.fixture
def world() -> World:
    return World()


def _filled(world: World, properties: dict[str, str] = GRACE, **settings: str) -> LogManager:
    manager = world.open(**settings)
    manager.topics.create("t", 1, properties, now_ms=NOW)
    send(manager, 300)
    settle(manager)
    send(manager, 20, start=300)
    return manager


def _kinds(store: MemoryStore) -> set[ObjectKind]:
    return {kind for report in check_bucket(store) for kind in report.counts()}


def _directories(disk: ModelDisk) -> list[str]:
    return sorted(name.rsplit("/", 1)[-1] for name in disk.directories if "/t-0" in name)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_the_topics_of_coordinators_are_not_deleted(world: World, name: str) -> None:
    with world.open() as manager:
        manager.topics.create(name, 1, now_ms=NOW)
        deleted: list[str] = []
        manager.topics.on_deleted = deleted.append
        with pytest.raises(InvalidRequest, match="holds the state of groups or transactions"):
            manager.topics.delete(name, now_ms=NOW)
        with pytest.raises(InvalidRequest, match="holds the state of groups or transactions"):
            manager.topics.dry_run.deleted_topic(name, now_ms=NOW)
        manager.topics.create("t", 1, now_ms=NOW)
        manager.topics.delete("t", now_ms=NOW)
        assert [each.name for each in manager.topics.all()] == [name]
        assert deleted == ["t"]


def test_deleted_topic_is_hidden_at_once_and_its_bytes_are_deleted_later(world: World) -> None:
    with _filled(world, file_delete_delay_ms="1m") as manager:
        before = len(list(world.store.list("")))
        manager.topics.delete("t", now_ms=NOW)
        assert manager.topics.all() == []
        for use in (
            lambda: manager.append("t", [Record(b"k", b"v", NOW)], 0, now_ms=NOW),
            lambda: manager.reader().offsets(NAME),
            lambda: manager.topics.get("t"),
        ):
            with pytest.raises(NotFound):
                use()
        (renamed,) = _directories(world.disk)
        assert renamed.startswith("t-0.")
        assert renamed.endswith("-delete")
        settle(manager, NOW + 1000)
        assert _directories(world.disk) == [renamed]
        assert len(list(world.store.list(""))) > before, "a manifest that marks the deletion must be committed"
        settle(manager, NOW + 61_000)
        assert _directories(world.disk) == []
        settle(manager, NOW + 2 * HOUR - 1)
        assert ObjectKind.SEGMENT in _kinds(world.store), (
            "the objects must stay for readers until the grace period ends"
        )
        settle(manager, NOW + 2 * HOUR)
        assert _kinds(world.store) == LEFT
        assert manager.partitions.registry.deleted() == ()
    assert b"deleted" in world.disk.read("./data/topics.json")


def test_reader_with_an_older_manifest_reads_on_until_the_grace_period_ends(world: World) -> None:
    with _filled(world) as manager:
        view = RemoteLog(world.store)
        start, end = view.reader().offsets(NAME)
        manager.topics.delete("t", now_ms=NOW)
        settle(manager, NOW + HOUR)
        assert len(values(view.reader(), start, end)) == end
        with pytest.raises(NotFound, match="its topic was deleted"):
            RemoteLog(world.store).reader().offsets(NAME)


def test_new_topic_of_the_same_name_shares_no_data_with_the_deleted_one(world: World) -> None:
    with _filled(world) as manager:
        old_id = manager.topics.get("t").topic_id
        manager.topics.delete("t", now_ms=NOW)
        new = manager.topics.create("t", 1, GRACE, now_ms=NOW)
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
    """A lock that sets an event when a thread has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock, self._waits = threading.Lock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *rest: object) -> None:
        self._lock.release()


def test_pending_removal_of_a_deleted_log_spares_a_new_topic_of_the_same_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance and the deletion race for one log:

    1. Maintenance finds the log of a deleted topic, which the deletion itself is about to remove.
    2. The deletion completes, and a new topic of the same name has records.
    3. Maintenance continues, and must not remove the log of the new topic.
    """
    looked, may_go_on = threading.Event(), threading.Event()
    with _filled(world, {}) as manager:
        round_ = threading.Thread(target=manager.topics.deletion.step, args=(NOW,))
        registry_delete, topic_id = manager.partitions.registry.delete, LogDirectories.topic_id

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

        monkeypatch.setattr(manager.topics.deletion, "_looking", _Told(may_go_on), raising=False)
        monkeypatch.setattr(manager.partitions.registry, "delete", delete)
        monkeypatch.setattr(LogDirectories, "topic_id", look)
        manager.topics.delete("t", now_ms=NOW)
        manager.topics.create("t", 1, {}, now_ms=NOW)
        send(manager, 200, start=1000)
        may_go_on.set()
        round_.join(LIMIT_S)
        assert [value for _, value in values(manager.reader())] == [b"value %d" % at for at in range(1000, 1200)]
        send(manager, 10, start=1200)
    with world.open() as manager:
        assert len(values(manager.reader())) == 210


def test_failed_removal_of_files_is_retried_and_the_topic_stays_registered(
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
        manager.topics.delete("t", now_ms=NOW)
        settle(manager, NOW)
        assert len(refused) == len(_directories(world.disk)) == 1
        assert manager.partitions.registry.deleted(), "the topic must stay registered as deleted while its files exist"
        settle(manager, NOW + HOUR)
        assert _directories(world.disk) == []
        assert manager.partitions.registry.deleted() == ()


def test_node_that_still_has_a_deleted_topic_is_refused_and_keeps_its_files(world: World) -> None:
    with _filled(world):
        pass
    other = world.other_disk()
    with world.open(disk=other) as second:
        second.topics.delete("t", now_ms=NOW)
        settle(second, NOW + 3 * HOUR)
    held = {name for name in world.disk.names if "/t-0/" in name and name.endswith(".log")}
    with world.open() as first:
        assert isinstance(first.problems[NAME], Conflict)
        assert "the topic was deleted" in str(first.problems[NAME])
        first.tick(NOW)
    assert held <= set(world.disk.names)
    assert _kinds(world.store) == LEFT


def test_writer_of_a_topic_deleted_by_another_node_is_fenced(world: World) -> None:
    with _filled(world) as first:
        with world.open(disk=world.other_disk()) as second:
            second.topics.delete("t", now_ms=NOW)
            settle(second, NOW + 3 * HOUR)
        send(first, 200, start=320)
        first.tick(NOW)
        assert isinstance(first.problems[NAME], Conflict)
    assert ObjectKind.SEGMENT not in _kinds(world.store)


def test_untiered_topic_is_deleted_without_a_store_request(world: World) -> None:
    with _filled(world, {}) as manager:
        manager.topics.delete("t", now_ms=NOW)
        settle(manager, NOW)
        assert _directories(world.disk) == []
        assert manager.partitions.registry.deleted() == ()
    assert list(world.store.list("")) == []


def test_unreachable_bucket_delays_only_the_remote_part_of_a_deletion(world: World) -> None:
    with _filled(world):
        pass
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        store.is_down = True
        manager.topics.delete("t", now_ms=NOW)
        manager.tick(NOW + HOUR)
        assert _directories(world.disk) == []
        store.is_down = False
        settle(manager, NOW + HOUR)
        settle(manager, NOW + 4 * HOUR)
    assert _kinds(world.store) == LEFT


def test_cleaner_does_not_start_on_a_deleted_log(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**GRACE, "cleanup.policy": "compact"}, now_ms=NOW)
        send(manager, 200)
        log = manager.partitions.all()[0].log
        manager.topics.delete("t", now_ms=NOW)
        assert not log.cleaning.try_start()
        settle(manager, NOW + 3 * HOUR)
        assert _kinds(world.store) <= LEFT


def test_deleting_an_unknown_topic_names_it_in_the_error(world: World) -> None:
    with world.open() as manager, pytest.raises(NotFound, match="nobody"):
        manager.topics.delete("nobody", now_ms=NOW)


# --- failures at every disk effect and every store call -------------------------------------------------------------


def _delete_all(world: World, store: object) -> None:
    manager = world.open(store=store)  # type: ignore[arg-type]
    manager.topics.delete("t", now_ms=NOW)
    for hours in (0, 1, 3):
        for _ in range(8):
            manager.tick(NOW + hours * HOUR)
    manager.close()


def _check_after(world: World) -> None:
    """Check that the next start knows the whole topic, or completes the deletion."""
    world.disk.locks.clear()
    with world.open() as manager:
        if manager.topics.all():
            assert len(values(manager.reader())) == 320
            manager.topics.delete("t", now_ms=NOW)
        for hours in (5, 9):
            settle(manager, NOW + hours * HOUR)
        assert manager.partitions.registry.deleted() == ()
    assert _directories(world.disk) == []
    assert _kinds(world.store) <= {*LEFT, ObjectKind.PROBE, ObjectKind.ORPHAN}
    manifests = [info.key for info in world.store.list("") if MANIFESTS in info.key]
    assert len(manifests) <= 1, "only the manifest that marks the deletion may remain"


def _prepared() -> World:
    world = World()
    _filled(world).close()
    return world


def test_power_cut_during_a_deletion_is_completed_by_the_next_start() -> None:
    whole = _prepared()
    first = whole.disk.effects
    _delete_all(whole, whole.store)
    effects = whole.disk.effects - first
    assert effects > 15
    for at in each_call(range(1, effects + 1)):
        world = _prepared()
        world.disk.cut_at, world.disk.cut_before = world.disk.effects + at, at % 2 == 0
        with suppress(PowerCut):
            _delete_all(world, world.store)
        world.disk = world.disk.crash(random.Random(at))
        _check_after(world)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE_3, Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_deletion_survives_a_failure_of_any_store_call(fault: Fault) -> None:
    whole = _prepared()
    rehearsal = FaultStore(whole.store)
    _delete_all(whole, rehearsal)
    for at in each_call(range(len(rehearsal.calls)), fault):
        world = _prepared()
        store = FaultStore(world.store, at, fault)
        with suppress(Killed, LogError):
            _delete_all(world, store)
        store.deliver(1 << 60)
        _check_after(world)


# --- two nodes delete the same topic --------------------------------------------------------------------------------


def _epoch(world: World) -> int:
    (newest,) = sorted(info.key for info in world.store.list("") if MANIFESTS in info.key)[-1:]
    return decode_manifest(world.store.get(newest)).epoch


def test_two_nodes_deleting_one_topic_do_not_fence_each_other_repeatedly(world: World) -> None:
    _filled(world).close()
    with world.open(disk=world.other_disk()) as second, world.open(takes_over=True) as first:
        first.topics.delete("t", now_ms=NOW)
        second.topics.delete("t", now_ms=NOW)
        before = _epoch(world)
        for minutes in range(0, 240, 5):
            first.tick(NOW + minutes * 60_000)
            second.tick(NOW + minutes * 60_000)
        assert _epoch(world) == before, "a fenced node must not take over again"
        assert _kinds(world.store) == LEFT
        assert first.partitions.registry.deleted() == second.partitions.registry.deleted() == ()


def test_fenced_deletion_resumes_after_the_other_node_died(world: World) -> None:
    _filled(world).close()
    with world.open() as first:
        with world.open(disk=world.other_disk()) as second:
            first.topics.delete("t", now_ms=NOW)
            second.topics.delete("t", now_ms=NOW)
            first.tick(NOW)
        settle(first, NOW + 2 * HOUR)
        settle(first, NOW + 3 * HOUR - 1)
        assert ObjectKind.SEGMENT in _kinds(world.store), (
            "the other node may still be working, so the objects must stay"
        )
        settle(first, NOW + 3 * HOUR)
        assert _kinds(world.store) == LEFT
        assert first.partitions.registry.deleted() == ()
