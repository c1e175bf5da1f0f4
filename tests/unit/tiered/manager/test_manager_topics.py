"""Topics, their settings and partitioning; retention and compaction in one tier."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from disk_model import ModelDisk
from manager_world import HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import DiskFailed, InvalidRequest, LogError, NotFound, Unavailable
from local.format.record import Record
from local.log import Durability
from local.log.checkpoints import read_offsets
from local.log.log_removal import LogRemoval
from local.storage import StorageFile
from policies.decisions import DropLocal
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectInfo
from remote.store.memory_store import MemoryStore
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition
from tiered.partition.partition_status import partition_status
from tiered.topics.topic_creation import AskedTopic


@pytest.fixture
def world() -> World:
    return World()


def test_records_are_partitioned_by_their_key(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 4, {}, now_ms=NOW)
        manager.append("t", [Record(b"k%d" % at, b"v", 0) for at in range(100)], now_ms=NOW)
        manager.append("t", [Record(b"k%d" % at, b"w", 0) for at in range(100)], now_ms=NOW)
        for partition in manager.topics.get("t").partitions():
            found = list(manager.reader().records(partition, 0))
            keys = [record.key for record in found]
            assert sorted(keys[: len(keys) // 2]) == sorted(keys[len(keys) // 2 :])


def test_untiered_topic_expires_local_segments(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {"retention.ms": "12h"}, now_ms=NOW)
        send(manager, 300)
        assert any(isinstance(decision, DropLocal) for decision in manager.plan(NOW).decisions[NAME])
        settle(manager)
        start, end = manager.reader().offsets(NAME)
        assert end == 300
        assert start > 0
        assert list(world.store.list("")) == []


@pytest.mark.parametrize("name", ["a/b", "..", "", "x" * 250])
def test_invalid_topic_name_is_refused_and_writes_nothing(world: World, name: str) -> None:
    with world.open() as manager:
        effects = world.disk.effects
        with pytest.raises(InvalidRequest, match="invalid topic name"):
            manager.topics.create(name, now_ms=NOW)
        assert world.disk.effects == effects


def test_existing_topic_cannot_be_created_again(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", now_ms=NOW)
        with pytest.raises(InvalidRequest, match=r"it already exists: .*topic=t"):
            manager.topics.create("t", now_ms=NOW)


def test_contradictory_settings_are_refused_before_any_write(world: World) -> None:
    with world.open() as manager:
        with pytest.raises(InvalidRequest, match=r"local\.retention\.ms"):
            manager.topics.create("t", 1, {**TIERED, "retention.ms": "1d", "local.retention.ms": "2d"}, now_ms=NOW)
        assert manager.topics.all() == []


def test_altered_settings_apply_at_once_and_after_a_restart(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        send(manager, 100)
        assert partition_status(manager.snapshots(NOW)[0]).is_tiered is False
        manager.topics.alter("t", TIERED, now_ms=NOW)
        settle(manager)
        assert partition_status(manager.snapshots(NOW)[0]).remote_segments > 0
    with world.open() as manager:
        assert manager.topics.get("t").properties == TIERED
        assert len(values(manager.reader())) == 100


def test_unknown_topic_or_partition_is_named(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, {}, now_ms=NOW)
        with pytest.raises(NotFound, match="topic=u there_are=t"):
            manager.append("u", [Record(None, b"v", 0)], now_ms=NOW)
        with pytest.raises(NotFound, match="partition=t/7 partition_count=2"):
            manager.append("t", [Record(None, b"v", 0)], 7, now_ms=NOW, durability=Durability.FLUSHED)


def test_records_younger_than_the_compaction_lag_are_not_removed(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {"cleanup.policy": "compact", "min.compaction.lag.ms": "1h"}, now_ms=NOW)
        for turn, age_ms in enumerate((3 * HOUR, 2 * HOUR, HOUR // 2, 0)):
            manager.append("t", [Record(b"k", b"%d" % turn, NOW - age_ms)], 0, now_ms=NOW)
            manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert values(manager.reader()) == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_many_segments_are_read_without_one_file_descriptor_each(tmp_path: Path) -> None:
    small = {"segment.bytes": "1024", "append.batch.bytes": "1024"}
    with LogManager.open(Config.load(None, small, {}, local_dir=str(tmp_path)), now_ms=NOW) as manager:
        manager.topics.create("t", now_ms=NOW)
        for _ in range(200):
            manager.append("t", [Record(b"k", b"v" * 900, NOW)], 0, now_ms=NOW)
        before = len(os.listdir("/proc/self/fd"))
        assert len(values(manager.reader())) == 200
        assert len(os.listdir("/proc/self/fd")) <= before


def test_tiered_topic_cannot_be_untiered_without_deletion(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        for off in ({"remote.storage.enable": "false"}, {"remote.storage.enable": ""}):
            with pytest.raises(InvalidRequest, match=r"remote\.log\.copy\.disable=true"):
                manager.topics.alter("t", off, now_ms=NOW)
        assert manager.topics.get("t").properties == TIERED
        manager.topics.alter("t", {"remote.log.copy.disable": "true", "local.retention.ms": ""}, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        assert partition_status(manager.snapshots(NOW)[0]).remote_segments == 0
    with world.open(remote_storage_enable="false") as manager:
        with pytest.raises(InvalidRequest, match=r"remote\.log\.copy\.disable=true"):
            manager.topics.alter("t", {"remote.storage.enable": "false"}, now_ms=NOW)
        manager.topics.alter("t", {"segment.bytes": "3000"}, now_ms=NOW)


class _FullDisk(ModelDisk):
    is_full = False

    def create(self, path: str) -> StorageFile:
        if self.is_full and "topics.json" in path:
            raise DiskFailed("cannot open a file", path=path, cause="no space left")
        return super().create(path)


def test_topic_change_that_cannot_be_written_has_no_effect(world: World) -> None:
    world.disk = _FullDisk()
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        world.disk.is_full = True
        with pytest.raises(DiskFailed):
            manager.topics.create("u", 1, {}, now_ms=NOW)
        with pytest.raises(DiskFailed):
            manager.topics.alter("t", {"segment.bytes": "3000"}, now_ms=NOW)
        assert [topic.name for topic in manager.topics.all()] == ["t"]
        assert manager.topics.get("t").properties == {}
        world.disk.is_full = False
        manager.topics.create("u", 1, {}, now_ms=NOW)
        send(manager, 1, topic="u")


def test_log_start_offset_is_durable_before_readers_see_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def raise_log_start(log: LogRemoval, offset: int) -> None:
        told.append((offset, read_offsets(world.disk, "./data/log-start-offset-checkpoint").get(NAME, 0)))
        real(log, offset)

    real = LogRemoval.raise_log_start
    monkeypatch.setattr(LogRemoval, "raise_log_start", raise_log_start)
    with world.open() as manager:
        manager.topics.create("t", 1, {"retention.ms": "12h"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    assert told
    assert [offset for offset, _ in told] == [written for _, written in told]


def test_topics_are_created_while_threads_append_read_status_and_run_maintenance(world: World, tmp_path: Path) -> None:
    """Several threads use one manager. No record is lost, and no dictionary changes during an iteration."""
    failures: list[BaseException] = []
    config = replace(world.config, data_dir=str(tmp_path))
    with LogManager.open(config, now_ms=NOW, store=world.store) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)

        def work(step: Callable[[int], object]) -> None:
            try:
                for at in range(40):
                    step(at)
            except Exception as error:  # noqa: BLE001 - asserted below
                failures.append(error)

        steps: list[Callable[[int], object]] = [
            lambda at: manager.topics.create(f"a{at}", 1, TIERED, now_ms=NOW),
            lambda at: manager.topics.create(f"b{at}", 1, TIERED, now_ms=NOW),
            lambda at: manager.tick(NOW),
            lambda at: manager.tick(NOW),
            lambda at: manager.snapshots(NOW),
            lambda at: manager.flush(),
            lambda at: manager.append("t", [Record(b"k", b"%d" % at, NOW)] * 5, 0, now_ms=NOW),
            lambda at: manager.topics.alter("t", {"segment.bytes": str(2000 + at)}, now_ms=NOW),
            lambda at: list(manager.problems.values()),
        ]
        threads = [threading.Thread(target=work, args=(step,)) for step in steps]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert failures == []
        assert manager.problems == {}
        assert len(manager.topics.all()) == 81
        assert manager.reader().offsets(NAME) == (0, 200)
    with LogManager.open(config, now_ms=NOW, store=world.store) as manager:
        assert len(manager.topics.all()) == 81
        assert len(values(manager.reader())) == 200


def test_altered_setting_is_in_the_manifest_after_the_next_maintenance(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        (other, _) = [MetadataLog(world.store, held.prefix) for held in manager.partitions.all()]
        assert other.refresh().properties == TIERED
        manager.topics.alter("t", {"retention.ms": "1h"}, now_ms=NOW)
        settle(manager)
        for held in manager.partitions.all():
            assert MetadataLog(world.store, held.prefix).refresh().properties["retention.ms"] == "1h"
        manifest = other.refresh()
        assert manifest.properties == {**TIERED, "retention.ms": "1h"}, (
            "a reader with the previous manifest must see the change"
        )
        settle(manager, NOW + HOUR)
        assert other.refresh() == manifest, "the change must be committed once"
        manager.topics.alter("t", {"retention.ms": "2h"}, now_ms=NOW)
    with world.open():
        assert other.refresh().properties["retention.ms"] == "2h"


def test_altered_setting_is_committed_when_an_unavailable_bucket_is_back(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        store.is_down = True
        manager.topics.alter("t", {"retention.ms": "1h"}, now_ms=NOW)
        manager.tick(NOW)
        assert isinstance(manager.problems[NAME], Unavailable)
        store.is_down = False
        settle(manager)
        assert (
            MetadataLog(world.store, manager.partitions.find(NAME).prefix).refresh().properties["retention.ms"] == "1h"
        )


def test_new_topics_are_checked_in_the_bucket_in_parallel(world: World) -> None:
    """Eight requests at once. With fewer, the barrier would time out."""
    met = threading.Barrier(8)

    class Meeting(MemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
            if threading.current_thread().name.startswith("new-topic"):
                met.wait(60)
            return super().list(prefix, start_after=start_after)

    with world.open(store=Meeting("memory://b")) as manager:
        made = manager.topics.create_all([AskedTopic(name=f"n{at}", properties=TIERED) for at in range(16)], now_ms=NOW)
        assert [each.name for each in made] == [f"n{at}" for at in range(16)]
        assert manager.problems == {}


def test_added_partitions_take_records_and_survive_a_restart(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 40)
        grown = manager.topics.add_partitions("t", 3, now_ms=NOW)
        assert grown.partition_count == manager.topics.get("t").partition_count == 3
        assert {each.topic.partition_count for each in manager.partitions.all(["t"])} == {3}
        appended = manager.append("t", [Record(b"k%d" % at, b"v", NOW) for at in range(50)], now_ms=NOW)
        assert {name.partition for name in appended} == {0, 1, 2}
        assert all(each.is_writer for each in manager.partitions.all(["t"]))
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(disk=world.other_disk()) as manager:
        assert manager.reader().offsets(NAME)[1] > 40
        assert [manager.reader().offsets(name)[1] > 0 for name in manager.topics.get("t").partitions()] == [True] * 3
        manager.topics.delete("t", now_ms=NOW)
        assert manager.topics.all() == []


@pytest.mark.parametrize(
    ("topic", "count", "wrong"),
    [
        ("t", 2, "not in 3..10000"),
        ("t", 1, "not in 3..10000"),
        ("t", -1, "not in 3..10000"),
        ("t", 10_001, "not in 3..10000"),
        ("__consumer_offsets", 60, "groups and transactions"),
    ],
)
def test_an_addition_of_partitions_is_refused_and_writes_nothing(
    world: World, topic: str, count: int, wrong: str
) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, now_ms=NOW)
        manager.topics.create("__consumer_offsets", 50, now_ms=NOW)
        before = len(world.disk.journal)
        for verb in (manager.topics.dry_run.grown_topic, partial(manager.topics.add_partitions, now_ms=NOW)):
            with pytest.raises(InvalidRequest, match=wrong):
                verb(topic, count)
        with pytest.raises(NotFound):
            manager.topics.add_partitions("nope", 3, now_ms=NOW)
        assert len(world.disk.journal) == before


def test_partitions_are_not_added_to_a_tiered_topic_while_the_bucket_is_unavailable(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        store.is_down = True
        with pytest.raises(Unavailable):
            manager.topics.add_partitions("t", 2, now_ms=NOW)
        assert manager.topics.get("t").partition_count == 1
        store.is_down = False


def test_appends_by_key_see_no_partition_before_it_takes_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        records = [Record(b"k%d" % at, b"v", NOW) for at in range(20)]
        acquire, during = manager.partitions.acquire, list[int]()

        def acquire_under_load(partitions: Sequence[Partition], now_ms: int) -> list[LogError]:
            during.append(len(manager.append("t", records, now_ms=now_ms)))
            return acquire(partitions, now_ms)

        monkeypatch.setattr(manager.partitions, "acquire", acquire_under_load)
        manager.topics.add_partitions("t", 3, now_ms=NOW)
        assert during == [1]
        assert len(manager.append("t", records, now_ms=NOW)) == 3
