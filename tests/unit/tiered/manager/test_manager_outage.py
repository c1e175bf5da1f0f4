"""The bucket is unavailable when a manager opens: no decision needs unknown remote state."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from disk_model import ModelDisk
from manager_world import DAY, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import InvalidRequest, RemoteLost, Unavailable
from local.format.record import Record
from local.log.log_removal import LogRemoval
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager

KEEP_SOME = {**TIERED, "local.retention.ms": "-2", "local.retention.bytes": "2500"}


@pytest.fixture
def world() -> World:
    """The topic ``t`` has 300 records, the first of them only in the bucket."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, KEEP_SOME, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    return world


@pytest.fixture
def store(world: World) -> SwitchableStore:
    return SwitchableStore(world.store)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "read",
    [
        lambda manager: values(manager.reader()),
        lambda manager: values(manager.reader(), 0, 1),
        lambda manager: manager.reader().offset_for_timestamp(NAME, 0),
        lambda manager: manager.reader().offsets(NAME),
    ],
    ids=["all", "the first", "time", "offsets"],
)
def test_records_only_in_the_bucket_are_unavailable_until_the_bucket_is_back(
    world: World, store: SwitchableStore, read: Callable[[LogManager], object], read_only: bool
) -> None:
    with world.open() as manager:
        expected = read(manager)
    with world.open(store=store, read_only=read_only) as manager:
        assert isinstance(manager.problems[NAME], Unavailable)
        for _ in range(2):
            with pytest.raises(Unavailable):
                read(manager)
        store.is_down = False
        assert read(manager) == expected


def test_local_records_are_read_and_appended_without_the_bucket(world: World, store: SwitchableStore) -> None:
    with world.open(store=store) as manager:
        start = manager.snapshots(NOW)[0].segments[0].base_offset
        assert start > 0
        assert [at for at, _ in values(manager.reader(), start)] == list(range(start, 300))
        send(manager, 10, start=300)
        assert [at for at, _ in values(manager.reader(), 299)] == list(range(299, 310))
        assert values(manager.reader(), 310) == []
        assert manager.plan(NOW).is_empty, "nothing may be planned without the remote state"
        assert not manager.tick(NOW)
        store.is_down = False
        settle(manager)
        assert [at for at, _ in values(manager.reader())] == list(range(310))


def test_problem_is_removed_when_the_bucket_is_back(world: World, store: SwitchableStore) -> None:
    with world.open(store=store) as manager:
        assert NAME in manager.problems
        store.is_down = False
        manager.tick(NOW)
        assert manager.problems == {}


def _without_its_log(world: World) -> ModelDisk:
    return world.other_disk()


def _without_its_segments(world: World) -> ModelDisk:
    """Deletes the files of the log but not the checkpoints of the directory.
    The log starts empty at its log start offset."""
    with world.open() as manager:
        manager.topics.alter("t", {"retention.ms": "1d"}, now_ms=NOW)
        settle(manager, NOW + DAY // 2)
    for name in [name for name in world.disk.names if "/t-0/0" in name]:
        world.disk.unlink(name)
    return world.disk


@pytest.mark.parametrize("lose", [_without_its_log, _without_its_segments])
def test_log_without_records_refuses_appends_until_the_bucket_was_read(
    world: World, store: SwitchableStore, lose: Callable[[World], ModelDisk]
) -> None:
    with world.open(store=store, disk=lose(world)) as manager:
        for _ in range(2):
            with pytest.raises(Unavailable):
                send(manager, 1)
            with pytest.raises(Unavailable):
                values(manager.reader())
            manager.tick(NOW)
        store.is_down = False
        manager.tick(NOW)
        assert manager.problems == {}
        end = manager.reader().offsets(NAME)[1]
        seen = manager.snapshots(NOW)[0]
        assert end == max(seen.remote_next_offset or 0, seen.log_start_offset) >= 240
        send(manager, 1)
        assert manager.reader().offsets(NAME)[1] == end + 1


def test_log_below_the_bucket_refuses_appends_until_it_is_reconciled(world: World, store: SwitchableStore) -> None:
    """The manifest is readable, but the acquire fails.
    So the log has not started over at the end of the bucket."""
    store.is_readable = True
    with world.open(store=store, disk=world.other_disk()) as manager:
        assert isinstance(manager.problems[NAME], Unavailable)
        with pytest.raises(Unavailable, match="the log ends before the end of the bucket"):
            send(manager, 1)


def test_append_just_after_a_log_started_over_has_the_new_leader_epoch(
    world: World, store: SwitchableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of the disk, and the bucket has all its records.
    1. The append is admitted before the end of the bucket is read.
    2. The log starts over at that end.
    3. The record is appended. In an older epoch it would look like a record of another writer at the next start."""
    with world.open() as manager:
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    older = world.disk.crash(random.Random(0))
    with world.open() as manager:
        send(manager, 100, start=300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    restart_at = LogRemoval.restart_at

    def restart(log: LogRemoval, *given: object, **more: object) -> None:
        restart_at(log, *given, **more)  # type: ignore[arg-type]
        held.log.append([Record(b"k", b"late", NOW)], now_ms=NOW)

    with world.open(disk=older, store=store) as manager:
        held = manager.partitions.find(NAME)
        held.check_appendable()
        monkeypatch.setattr(held.log, "restart_at", partial(restart, held.log._removal))
        store.is_down = False
        settle(manager)
        manifest = held.manifest()
        assert manifest is not None
        assert held.log.epochs.epoch_at(400) == manifest.epoch
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(disk=older) as manager:
        assert manager.problems == {}
        assert values(manager.reader(), 400) == [(400, b"late")]


def test_bucket_without_a_manifest_is_reported_as_lost(world: World) -> None:
    with (
        world.open(store=MemoryStore("memory://another"), read_only=True) as manager,
        pytest.raises(RemoteLost),
    ):
        values(manager.reader())


def test_missing_store_configuration_of_a_tiered_topic_is_an_error(world: World) -> None:
    from dataclasses import replace

    with LogManager.open(replace(world.config, remote_url=None), now_ms=NOW, storage=world.disk) as manager:
        assert "no store" in str(manager.problems[NAME])
        for read in (lambda: values(manager.reader()), lambda: manager.reader().offset_for_timestamp(NAME, 0)):
            with pytest.raises(InvalidRequest, match="no store"):
                read()
        assert manager.plan(NOW + 99 * DAY).is_empty
        assert not manager.tick(NOW + 99 * DAY)


def test_store_is_closed_after_close_abandon_and_a_failed_open(world: World, store: SwitchableStore) -> None:
    store.is_down = False
    world.open(store=store).close()
    assert store.closed == 1
    world.open(store=store).abandon()
    assert store.closed == 2
    world.disk.names["./data/topics.json"].data[:] = b"rubbish"
    with pytest.raises(Exception, match="topics"):
        world.open(store=store)
    assert store.closed == 3


def test_log_without_records_refuses_appends_until_it_is_the_writer() -> None:
    """Otherwise two machines could append records in the same leader epoch.
    Such records cannot be distinguished later."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    store = SwitchableStore(world.store)
    store.is_readable = True
    for disk in (world.disk, world.other_disk()):
        with world.open(disk=disk, store=store) as manager:
            assert manager.partitions.all()[0].manifest() is not None
            with pytest.raises(
                Unavailable, match="the log has no records and this process is not the writer in the bucket"
            ):
                send(manager, 1)
    store.is_down = False
    with world.open(store=store) as manager:
        send(manager, 1)
