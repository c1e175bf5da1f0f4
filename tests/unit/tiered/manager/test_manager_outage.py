"""The bucket is out of reach when a manager opens: nothing is concluded about what only the bucket knows."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from disk_model import ModelDisk
from manager_world import DAY, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import InvalidRequest, RemoteLost, Unavailable
from local.format.record import Record
from local.log import Log
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager

KEEP_SOME = {**TIERED, "local.retention.ms": "-2", "local.retention.bytes": "2500"}


@pytest.fixture
def world() -> World:
    """Its topic ``t`` has 300 records, the first of them in the bucket only."""
    world = World()
    with world.open() as manager:
        manager.create_topic("t", 1, KEEP_SOME, now_ms=NOW)
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
def test_what_only_the_bucket_knows_is_unavailable_and_there_again_with_the_bucket(
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


def test_what_is_on_the_disk_is_read_and_written_without_the_bucket(world: World, store: SwitchableStore) -> None:
    with world.open(store=store) as manager:
        start = manager.snapshots(NOW)[0].segments[0].base_offset
        assert start > 0
        assert [at for at, _ in values(manager.reader(), start)] == list(range(start, 300))
        send(manager, 10, start=300)
        assert [at for at, _ in values(manager.reader(), 299)] == list(range(299, 310))
        assert values(manager.reader(), 310) == []
        assert manager.plan(NOW).is_empty, "planned without knowing the remote tier"
        assert not manager.tick(NOW)
        store.is_down = False
        settle(manager)
        assert [at for at, _ in values(manager.reader())] == list(range(310))


def test_a_problem_is_gone_once_the_bucket_is_back(world: World, store: SwitchableStore) -> None:
    with world.open(store=store) as manager:
        assert NAME in manager.problems
        store.is_down = False
        manager.tick(NOW)
        assert manager.problems == {}


def _without_its_log(world: World) -> ModelDisk:
    return world.other_disk()


def _without_its_segments(world: World) -> ModelDisk:
    """The files of the log are lost, the directory's checkpoints are not: the log begins again at its log start."""
    with world.open() as manager:
        manager.alter_topic("t", {"retention.ms": "1d"}, now_ms=NOW)
        settle(manager, NOW + DAY // 2)
    for name in [name for name in world.disk.names if "/t-0/0" in name]:
        world.disk.unlink(name)
    return world.disk


@pytest.mark.parametrize("lose", [_without_its_log, _without_its_segments])
def test_a_log_without_any_record_takes_none_before_the_bucket_was_seen(
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


def test_a_log_below_the_bucket_takes_no_record_before_it_was_reconciled(world: World, store: SwitchableStore) -> None:
    """The head is seen, but it cannot be ours yet, so the log has not started over at its end."""
    store.is_readable = True
    with world.open(store=store, disk=world.other_disk()) as manager:
        assert isinstance(manager.problems[NAME], Unavailable)
        with pytest.raises(Unavailable, match="before the bucket's end"):
            send(manager, 1)


def test_a_record_that_comes_when_a_log_has_just_started_over_at_the_buckets_end_is_of_the_new_epoch(
    world: World, store: SwitchableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of the disk, of which the bucket holds every record. Who appends has asked whether he may before
    the bucket's end was seen. Of an older epoch his record would look like another writer's, at the next start."""
    with world.open() as manager:
        manager.roll("t", now_ms=NOW)
        settle(manager)
    older = world.disk.crash(random.Random(0))
    with world.open() as manager:
        send(manager, 100, start=300)
        manager.roll("t", now_ms=NOW)
        settle(manager)
    restart_at = Log.restart_at

    def restart(log: Log, *given: object, **more: object) -> None:
        restart_at(log, *given, **more)  # type: ignore[arg-type]
        log.append([Record(b"k", b"late", NOW)], now_ms=NOW)

    with world.open(disk=older, store=store) as manager:
        held = manager.partition(NAME)
        held.check_appendable()
        monkeypatch.setattr(Log, "restart_at", restart)
        store.is_down = False
        settle(manager)
        head = held.head()
        assert head is not None
        assert held.log.epochs.epoch_at(400) == head.epoch
        manager.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(disk=older) as manager:
        assert manager.problems == {}
        assert values(manager.reader(), 400) == [(400, b"late")]


def test_a_bucket_without_a_head_is_no_reason_to_skip_records(world: World) -> None:
    with (
        world.open(store=MemoryStore("memory://another"), read_only=True) as manager,
        pytest.raises(RemoteLost),
    ):
        values(manager.reader())


def test_a_store_that_is_no_longer_configured_is_asked_for(world: World) -> None:
    from dataclasses import replace

    with LogManager.open(replace(world.config, remote_url=None), now_ms=NOW, storage=world.disk) as manager:
        assert "no store" in str(manager.problems[NAME])
        for read in (lambda: values(manager.reader()), lambda: manager.reader().offset_for_timestamp(NAME, 0)):
            with pytest.raises(InvalidRequest, match="no store"):
                read()
        assert manager.plan(NOW + 99 * DAY).is_empty
        assert not manager.tick(NOW + 99 * DAY)


def test_a_store_is_let_go_of_however_a_manager_ends(world: World, store: SwitchableStore) -> None:
    store.is_down = False
    world.open(store=store).close()
    assert store.closed == 1
    world.open(store=store).abandon()
    assert store.closed == 2
    world.disk.names["./data/topics.json"].data[:] = b"rubbish"
    with pytest.raises(Exception, match="topics"):
        world.open(store=store)
    assert store.closed == 3


def test_a_log_without_records_takes_none_before_it_is_ours_in_the_bucket() -> None:
    """Two machines that both wrote to it would have records of the same leader epoch, which nobody can tell apart."""
    world = World()
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
    store = SwitchableStore(world.store)
    store.is_readable = True
    for disk in (world.disk, world.other_disk()):
        with world.open(disk=disk, store=store) as manager:
            assert manager.partitions()[0].head() is not None
            with pytest.raises(Unavailable, match="it is not ours in the bucket"):
                send(manager, 1)
    store.is_down = False
    with world.open(store=store) as manager:
        send(manager, 1)
