"""A manager with several disks: a lost disk stops only its partitions and never loses the topic list."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from broken_disk import BrokenDisk
from disk_model import ModelDisk

from local.errors import DiskFailed
from local.format.record import Record
from local.names import TopicPartition
from local.storage import Space
from remote.store.memory_store import MemoryStore
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.node.topic_registry import TopicRegistry

NOW = 1_800_000_000_000
A, B = "./a", "./b"


class Disks:
    """A manager's two disks and its bucket."""

    def __init__(self) -> None:
        self.disk = BrokenDisk()
        self.store = MemoryStore("memory://bucket")

    def open(self, *, read_only: bool = False, **settings: str) -> LogManager:
        asked = {"num.recovery.threads.per.data.dir": "1"}
        asked |= {key.replace("_", "."): value for key, value in settings.items()}
        loaded = Config.load(None, asked, {}, local_dir="data")
        config = replace(loaded, data_dir=A, more_data_dirs=(B,), remote_url="memory://b")
        return LogManager.open(config, now_ms=NOW, read_only=read_only, storage=self.disk, store=self.store)


@pytest.fixture
def disks() -> Disks:
    disks = Disks()
    with disks.open() as manager:
        manager.topics.create("t", 4, now_ms=NOW)
        for number in range(4):
            manager.append("t", [Record(b"k", b"v", NOW)] * 5, number, now_ms=NOW)
    return disks


def on(manager: LogManager, root: str) -> list[TopicPartition]:
    return manager.directories.partitions_of(root)


def test_partitions_are_placed_on_both_disks_and_found_after_a_restart(disks: Disks) -> None:
    with disks.open() as manager:
        assert (len(on(manager, A)), len(on(manager, B))) == (2, 2)
        assert [manager.reader().offsets(TopicPartition("t", at)) for at in range(4)] == [(0, 5)] * 4
        assert manager.problems == {}


def test_failed_disk_stops_only_its_partitions(disks: Disks) -> None:
    manager = disks.open()
    lost, good = on(manager, A), on(manager, B)
    for name in lost:
        manager.append("t", [Record(b"k", b"v", NOW)], name.partition, now_ms=NOW)
    disks.disk.broken[A] = "eio"
    manager.tick(NOW)
    for name in lost:
        with pytest.raises(DiskFailed):
            manager.append("t", [Record(b"k", b"v", NOW)], name.partition, now_ms=NOW)
    assert set(manager.problems) == set(lost)
    assert list(manager.directories.offline) == [A]
    for name in lost:
        assert "./a" in str(manager.problems[name])
        with pytest.raises(DiskFailed, match=r"offline.*\./a"):
            list(manager.reader().records(name, 0))
        with pytest.raises(DiskFailed, match=r"offline.*\./a"):
            manager.append("t", [Record(b"k", b"v", NOW)], name.partition, now_ms=NOW)
    for name in good:
        manager.append("t", [Record(b"k", b"v", NOW)], name.partition, now_ms=NOW)
        assert len(list(manager.reader().records(name, 0))) == 6
    manager.tick(NOW + 60_000)
    assert [each.partition for each in manager.snapshots(NOW)] == good
    manager.topics.create("new", 2, now_ms=NOW)
    manager.topics.alter("t", {"retention.ms": "1d"}, now_ms=NOW)
    assert on(manager, A) == lost
    with pytest.raises(DiskFailed):
        manager.flush()
    manager.close()
    disks.disk.broken.clear()
    with disks.open() as manager:
        assert manager.problems == {}
        assert manager.topics.get("t").properties == {"retention.ms": "1d"}
        assert [manager.reader().offsets(name)[1] for name in (*lost, *good)] == [6, 6, 6, 6]


def test_partitions_of_a_disk_that_is_missing_at_start_have_a_problem(disks: Disks) -> None:
    with disks.open() as manager:
        lost = on(manager, A)
    disks.disk.broken[A] = "eio"
    for read_only in (True, False):
        with disks.open(read_only=read_only) as manager:
            assert list(manager.directories.offline) == [A]
            assert set(manager.problems) == set(lost)
            assert on(manager, A) == []
    disks.disk.broken.clear()
    with disks.open() as manager:
        assert manager.problems == {}


@pytest.mark.parametrize("lost", [A, B])
def test_topic_list_survives_the_loss_of_one_disk(disks: Disks, lost: str) -> None:
    with disks.open() as manager:
        manager.topics.create("late", now_ms=NOW)
    disks.disk.broken[lost] = "eio"
    with disks.open() as manager:
        assert [topic.name for topic in manager.topics.all()] == ["late", "t"]
        manager.topics.create("later", now_ms=NOW)
    disks.disk.broken.clear()
    with disks.open() as manager:
        assert [topic.name for topic in manager.topics.all()] == ["late", "later", "t"]
    bodies = [json.loads(disks.disk.inner.read(f"{root}/topics.json")) for root in (A, B)]
    assert bodies[0] == bodies[1]


def test_unreadable_topic_list_is_an_error_and_not_an_empty_list() -> None:
    disk = BrokenDisk()
    disk.inner.make_directory(A)
    disk.inner.make_directory(B)
    disk.broken[A] = "eio"
    with pytest.raises(DiskFailed):
        TopicRegistry([(disk, A), (disk, B)])
    disk.broken.clear()
    assert TopicRegistry([(disk, A), (disk, B)]).all() == []


def test_incomplete_topic_change_is_overruled_by_a_later_change(disks: Disks) -> None:
    """A crash leaves a topic change on disk A only.
    Disk A is offline during a later change, and then returns."""
    disk = disks.disk
    before = {root: disk.inner.read(f"{root}/topics.json") for root in (A, B)}
    with disks.open() as manager:
        manager.topics.create("unheard", now_ms=NOW)
    disk.inner.create(f"{B}/topics.json").append(before[B])
    disk.broken[A] = "eio"
    with disks.open() as manager:
        manager.topics.create("told", now_ms=NOW)
    disk.broken.clear()
    with disks.open() as manager:
        assert [topic.name for topic in manager.topics.all()] == ["t", "told"]


def test_partitions_lost_with_a_replaced_disk_are_named_in_the_log(disks: Disks, caplog) -> None:
    with disks.open() as manager:
        lost = on(manager, B)
        assert "created it empty" not in caplog.text
    for name in [*disks.disk.inner.names]:
        if name.startswith(f"{B}/"):
            del disks.disk.inner.names[name]
    disks.disk.inner.directories = {
        path: each for path, each in disks.disk.inner.directories.items() if not path.startswith(f"{B}/")
    }
    with disks.open() as manager:
        told = [record.getMessage() for record in caplog.records if "created it empty" in record.getMessage()]
        assert [f"partition={name} directory={B}" in line for name, line in zip(lost, told, strict=True)] == [
            True,
            True,
        ]


def test_new_disk_gets_a_copy_of_the_topic_list_at_the_next_start() -> None:
    disk = ModelDisk()
    loaded = Config.load(None, {}, {}, local_dir="data")
    with LogManager.open(replace(loaded, data_dir=A), now_ms=NOW, storage=disk) as manager:
        manager.topics.create("t", now_ms=NOW)
    disk.make_directory(B)
    LogManager.open(replace(loaded, data_dir=A, more_data_dirs=(B,)), now_ms=NOW, storage=disk).close()
    assert disk.read(f"{B}/topics.json") == disk.read(f"{A}/topics.json")


def test_topic_creation_without_free_space_is_refused_before_any_write(disks: Disks) -> None:
    disks.disk.spaces = {A: Space(10, 100), B: Space(20, 100)}
    with disks.open(log_dir_free_bytes_min="30") as manager:
        with pytest.raises(DiskFailed, match=r"\./a: 10 bytes free, fewer than 30; \./b: 20 bytes"):
            manager.topics.create("new", now_ms=NOW)
        assert [topic.name for topic in manager.topics.all()] == ["t"]


def test_only_the_directory_of_an_unopened_partition_is_not_marked_clean(disks: Disks) -> None:
    with disks.open() as manager:
        damaged = on(manager, A)[0]
    disks.disk.inner.create(f"{A}/{damaged.directory}/partition.metadata").append(b"rubbish")
    with disks.open() as manager:
        assert set(manager.problems) == {damaged}
    assert not disks.disk.inner.exists(f"{A}/.kafka_cleanshutdown")
    assert disks.disk.inner.exists(f"{B}/.kafka_cleanshutdown")


def test_status_command_reports_an_offline_directory(tmp_path: Path, capfd) -> None:
    (tmp_path / "tiered.toml").write_text('[local]\ndirs = ["one", "two"]\n')
    at = ["-C", str(tmp_path)]
    assert invoke([*at, "topic", "create", "t", "-p", "2"]) == 0
    assert {path.name for path in tmp_path.glob("*/t-*")} == {"t-0", "t-1"}
    assert invoke([*at, "status", "--check"]) == 0
    (tmp_path / "two").rename(tmp_path / "away")
    capfd.readouterr()
    assert invoke([*at, "status", "--check"]) == 10
    assert f"! {tmp_path}/two: log directory offline: the log directory does not exist" in capfd.readouterr().err
    assert invoke([*at, "topic", "list"]) == 0


def test_partition_moves_between_disks_and_maintenance_continues_there(disks: Disks) -> None:
    with disks.open(file_delete_delay_ms="1000", local_retention_ms="1ms", retention_ms="-1") as manager:
        manager.topics.create("tiered", properties={"remote.storage.enable": "true"}, now_ms=NOW)
        name = TopicPartition("tiered", 0)
        root = manager.directories.root_of(name)
        other = B if root == A else A
        reader = manager.reader().records(name, 0)
        for _ in range(3):
            manager.append("tiered", [Record(b"k", b"v", NOW - 10_000)] * 5, 0, now_ms=NOW)
            manager.partitions.roll("tiered", now_ms=NOW)
        manager.maintenance.move(name, other, now_ms=NOW)
        manager.append("tiered", [Record(b"k", b"v", NOW)] * 5, 0, now_ms=NOW)
        assert len(list(manager.reader().records(name, 0))) == 20
        while manager.tick(NOW):
            pass
        assert manager.problems == {}
        assert manager.snapshots(NOW, ["tiered"])[0].segments[0].base_offset == 15, (
            "the segments must be copied and dropped on the new disk"
        )
        assert len(list(manager.reader().records(name, 0))) == 20
        assert [each for each in disks.disk.list(root) if each.endswith("-delete")]
        manager.tick(NOW + 1000)
        assert not [each for each in disks.disk.list(root) if each.endswith("-delete")]
        del reader
    with disks.open() as manager:
        assert manager.directories.root_of(name) == other
        assert len(list(manager.reader().records(name, 0))) == 20
