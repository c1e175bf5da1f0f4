"""Cancelled maintenance, stores that do not answer, wrong buckets, and appends that fail in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from disk_model import ModelDisk
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle, values

from local.errors import AccessDenied, Conflict, DiskFailed, Fenced, InvalidRequest, RemoteLost, Unavailable
from local.format.record import Record
from local.log.producer_state import Producer
from local.names import TopicPartition
from policies.decisions import DeletePending, Plan
from remote.store.memory_store import MemoryStore
from tiered.maintenance import apply
from tiered.manager.manager import LogManager
from tiered.service.worker import Worker


@pytest.fixture
def world() -> World:
    return World()


def test_cancelled_maintenance_stops_between_two_decisions(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        asked = iter([False] * 6 + [True] * 100)
        manager.tick(NOW, should_stop=lambda: next(asked))
        some = len(manager.snapshots(NOW)[0].remote)
        assert 0 < some < len(manager.plan(NOW).decisions[NAME]) + some
        settle(manager)
        assert len(values(manager.reader())) == 300


def test_unavailable_store_is_asked_for_one_partition_per_maintenance(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 4, TIERED, now_ms=NOW)
        for number in range(4):
            manager.append("t", [Record(b"k", b"v" * 100, NOW)] * 60, number, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        asked: list[str] = []

        def refuse(key: str, *rest: object) -> None:
            asked.append(key)
            raise Unavailable("no reply", key=key)

        world.store.upload = refuse  # type: ignore[method-assign]
        manager.tick(NOW)
        assert len(asked) == 1
        del world.store.upload
        settle(manager)
        assert sum(len(each.remote) for each in manager.snapshots(NOW)) >= 4


def test_wrong_bucket_is_refused_and_gets_no_manifest(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    mine, world.store = world.store, MemoryStore("memory://another")
    with world.open() as manager:
        assert isinstance(manager.problems[NAME], Conflict)
        assert "the bucket is lost or wrong" in str(manager.problems[NAME])
        with pytest.raises(Conflict):
            send(manager, 1)
        assert list(world.store.list("")) == []
    with world.open(read_only=True) as manager, pytest.raises(RemoteLost):
        values(manager.reader())
    world.store = mine
    with world.open() as manager:
        assert len(values(manager.reader())) == 300


def test_append_with_an_invalid_record_is_refused_before_any_partition_is_written(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 4, {}, now_ms=NOW)
        records = [Record(b"k%d" % at, b"v", NOW) for at in range(50)] + [Record(b"big", b"x" * (3 << 20), NOW)]
        with pytest.raises(InvalidRequest, match=r"max\.message\.bytes"):
            manager.append("t", records, now_ms=NOW)
        assert all(manager.reader().offsets(each)[1] == 0 for each in manager.topics.get("t").partitions())


def test_append_that_fails_in_part_names_the_appended_offsets(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 3, {}, now_ms=NOW)
        real = ModelDisk._effect

        def fail(disk: ModelDisk, what: str, act: object) -> None:
            if what.startswith("append ./data/t-2/"):
                raise DiskFailed("cannot write to a file", path="t-2", cause="enospc")
            real(disk, what, act)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ModelDisk, "_effect", fail)
            with pytest.raises(DiskFailed, match=r"appended=t/0:0-\d+,t/1:0-\d+"):
                manager.append("t", [Record(b"k%d" % at, b"v", NOW) for at in range(60)], now_ms=NOW)
        assert manager.reader().offsets(TopicPartition("t", 0))[1] > 0


def test_read_only_reader_continues_while_a_manager_drops_segments(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        sent = send(manager, 300)
        settle(manager)
        with world.open(read_only=True) as seen:
            stream = seen.reader().records(NAME, 0)
            first = [next(stream) for _ in range(5)]
            manager.topics.alter("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
            settle(manager)
            rest = [*first, *stream]
            assert [record.offset for record in rest] == list(range(300))
            assert [record.value for record in rest] == [record.value for record in sent]


def test_timestamp_lookup_continues_while_a_manager_drops_segments(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        times = [record.timestamp_ms for record in manager.reader().records(NAME, 0)]
        settle(manager)
        with world.open(read_only=True) as seen:
            reader = seen.reader()
            assert reader.offset_for_timestamp(NAME, times[0]) == 0
            manager.topics.alter("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
            wanted = [times.index(each) for each in times]
            assert [reader.offset_for_timestamp(NAME, each) for each in times] == wanted


def _expired(world: World) -> tuple[LogManager, int]:
    """A manager with expired objects in its bucket, and the time at which their deletion is due."""
    manager = world.open()
    manager.topics.create("t", 1, {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
    send(manager, 300)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    settle(manager, NOW + 2 * DAY)
    return manager, NOW + 2 * DAY + HOUR


def _data(world: World) -> list[str]:
    return [info.key for info in world.store.list("") if "/data/" in info.key]


def test_fenced_manager_deletes_nothing(world: World) -> None:
    manager, due_ms = _expired(world)
    plan = manager.plan(due_ms)
    assert any(isinstance(decision, DeletePending) for decision in plan.decisions[NAME])
    objects = _data(world)
    with world.open(disk=world.other_disk()):
        manager.apply(plan)
    assert isinstance(manager.problems[NAME], Fenced)
    assert _data(world) == objects


def test_object_that_is_no_pending_delete_is_never_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, due_ms = _expired(world)
    stranger = _data(world)[0].rpartition("/data/")[0] + "/data/stranger.log"
    world.store.put(stranger, b"nobody's")
    decision = DeletePending(key="data/stranger.log", size_bytes=8, reason="a mistake")
    with pytest.raises(InvalidRequest, match="not a pending delete"):
        raise_problem(manager, Plan(now_ms=due_ms, decisions={NAME: [decision]}))
    monkeypatch.setattr(apply, "violations", lambda snapshot, decisions: [])
    manager.apply(Plan(now_ms=due_ms, decisions={NAME: [decision]}))
    assert stranger in _data(world)


def raise_problem(manager: LogManager, plan: Plan) -> None:
    manager.apply(plan)
    raise manager.problems[NAME]


class OverwritingStore(MemoryStore):
    """A store whose conditional create overwrites an existing object, as some servers do."""

    def put_if_absent(self, key: str, body: bytes) -> None:
        self.put(key, body)


def test_store_that_overwrites_is_refused_unless_a_single_writer_is_declared(world: World) -> None:
    world.store = OverwritingStore("memory://careless")
    refused = pytest.raises(InvalidRequest, match=r"remote\.single\.writer=true: store=memory://careless")
    with world.open() as manager, refused:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    assert [info.key for info in world.store.list("") if "/head/" in info.key] == []
    with world.open(remote_single_writer="true") as manager:
        settle(manager)
        send(manager, 100)


def test_store_is_probed_once_per_directory(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    with world.open() as manager:
        counts = manager.store.counts()
        assert counts is not None
        assert counts.deletes == 0


def test_dropped_files_wait_for_the_delay_of_their_topic_or_the_next_start(world: World) -> None:
    def waiting(topic: str) -> bool:
        return any(f"/{topic}-0/" in name and name.endswith(".deleted") for name in world.disk.names)

    # Overrides outrank the settings of a topic.
    overrides = {key: value for key, value in world.config.overrides.items() if key != "file.delete.delay.ms"}
    world.config = replace(world.config, overrides=overrides)
    with world.open() as manager:
        for topic, delay in (("soon", "1s"), ("late", "1h")):
            manager.topics.create(topic, 1, {"retention.ms": "1d", "file.delete.delay.ms": delay}, now_ms=NOW)
            manager.append(topic, [Record(b"k", b"v" * 100, NOW)] * 60, 0, now_ms=NOW)
        manager.partitions.roll("soon", now_ms=NOW)
        manager.partitions.roll("late", now_ms=NOW)
        later = NOW + DAY + 1
        manager.tick(later)
        assert (waiting("soon"), waiting("late")) == (True, True)
        manager.tick(later + 999)
        assert (waiting("soon"), waiting("late")) == (True, True)
        manager.tick(later + 1000)
        assert (waiting("soon"), waiting("late")) == (False, True)
        manager.topics.alter("late", {"file.delete.delay.ms": "0"}, now_ms=later)
        manager.tick(later + 1001)
        assert waiting("late"), "the delay at the time of the drop counts"
    with world.open():
        assert not waiting("late")


def test_expired_producers_are_removed_by_maintenance_without_an_append(world: World) -> None:
    producer = Producer(producer_id=7, producer_epoch=0, base_sequence=0)
    with world.open() as manager:
        manager.topics.create("t", 1, {"retention.ms": "-1"}, now_ms=NOW)
        log = manager.partitions.find(NAME).log
        log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer)
        manager.tick(NOW + DAY - 1)
        assert log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer).is_duplicate
        manager.tick(NOW + DAY + 10 * 60_000)
        assert not log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer).is_duplicate


class Unreadable:
    """A disk that refuses to read some files."""

    def __init__(self, disk: ModelDisk) -> None:
        self.disk = disk
        self.beginning = "nothing"

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def call(path: str, *rest: object, **more: object) -> object:
            if path.startswith(self.beginning) and path.endswith(".timeindex"):
                raise AccessDenied("cannot read a file", path=path, cause="eacces")
            return getattr(self.disk, verb)(path, *rest, **more)

        return call


def test_unreadable_partition_does_not_delay_other_partitions(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, {"retention.ms": "1d"}, now_ms=NOW)
        send(manager, 200)
        for _ in range(20):
            manager.append("t", [Record(b"k", b"v" * 100, NOW - DAY)] * 3, 1, now_ms=NOW)
    disk = Unreadable(world.disk)
    with world.open(disk=disk) as manager:  # type: ignore[arg-type]
        disk.beginning = "./data/t-0/"
        manager.tick(NOW + 2 * DAY)
        assert isinstance(manager.problems[NAME], AccessDenied)
        (seen,) = manager.snapshots(NOW + 2 * DAY)
        assert seen.partition.partition == 1
        assert seen.log_start_offset > 0, "retention must continue for the other partition"
        disk.beginning = "nothing"
        manager.tick(NOW + 2 * DAY)
        assert manager.problems == {}
        assert all(each.log_start_offset > 0 for each in manager.snapshots(NOW + 2 * DAY))


def test_read_only_open_shows_missing_partitions_as_empty(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, now_ms=NOW)
        send(manager, 200)
    with world.open(disk=world.other_disk(), read_only=True) as manager:
        assert [each.next_offset for each in manager.snapshots(NOW)] == [0, 0]
        assert manager.problems == {}


def test_failed_checkpoint_write_is_reported_and_maintenance_continues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        send(manager, 200)

        def refuse() -> None:
            raise AccessDenied("creating a file", path="./data/recovery-point-offset-checkpoint.tmp", cause="eacces")

        with monkeypatch.context() as patch:
            patch.setattr(manager.directories, "try_checkpoints", refuse)
            for at in (0, 1):
                worker.round(NOW + at * HOUR)
                assert isinstance(worker.round_error, AccessDenied)
            assert worker.problem_lines() == [f"node: {worker.round_error}"]
            assert [each.kind for each in worker.report.troubles] == ["AccessDenied"]
        while worker.round(NOW + 2 * HOUR):
            pass
        assert (worker.round_error, worker.problem_lines(), worker.failures) == (None, [], 2)
        manifest = manager.partitions.find(NAME).manifest()
        assert manifest is not None
        assert manifest.has_entries, "uploads must continue"
