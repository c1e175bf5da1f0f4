"""One of two disks is full from some effect on: work on the other disk is done and acknowledged.

The sweep fills disk B at each effect in turn. Appends to disk A are acknowledged, and rounds and the close raise no
error. Once there is space, a manager that opens again reads every acknowledged record.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from filling_disk import FillingDisk
from log_world import SMALL, open_log, read_all
from run_profile import CALL_STRIDE, each_call

from local.errors import DiskFailed, LogError
from local.format.record import Record
from local.log import Durability
from local.names import CLEAN_SHUTDOWN, RECOVERY_POINTS, TopicPartition
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.node.topic_registry import TopicRegistry

NOW = 1_800_000_000_000
A, B = "./a", "./b"
SETTINGS = {"num.recovery.threads.per.data.dir": "1", "segment.bytes": "2000", "log.dir.free.bytes.min": "0"}


class TwoDisks(FillingDisk):
    """Only disk B becomes full."""

    def _needs_room(self, what: str) -> bool:
        return any(word.startswith(B) for word in what.split()) and super()._needs_room(what)


class NoCheckpoints(TwoDisks):
    """Disk B has space for all files except its checkpoints."""

    def _needs_room(self, what: str) -> bool:
        return "-checkpoint" in what and "epoch" not in what and super()._needs_room(what)


def open_manager(disk: TwoDisks) -> LogManager:
    loaded = Config.load(None, SETTINGS, {}, local_dir="data")
    config = replace(loaded, data_dir=A, more_data_dirs=(B,))
    return LogManager.open(config, now_ms=NOW, storage=disk)


def begun() -> TwoDisks:
    disk = TwoDisks()
    with open_manager(disk) as manager:
        manager.topics.create("t", 4, now_ms=NOW)
    return disk


def is_taken(act: Callable[[], object]) -> bool:
    """Whether there was space for `act`; any other error fails the test."""
    try:
        act()
    except DiskFailed as error:
        if not error.lacks_room:
            raise
        return False
    return True


def appended(manager: LogManager, name: TopicPartition) -> bool:
    def act() -> None:
        manager.append("t", [Record(b"k", b"v" * 300, NOW)] * 5, name.partition, now_ms=NOW)
        manager.partitions.find(name).log.flush()

    return is_taken(act)


def work(disk: TwoDisks) -> dict[TopicPartition, int]:
    """Appends, rounds and a new topic; return the end offset of each partition's acknowledged records."""
    acked: dict[TopicPartition, int] = {}
    with open_manager(disk) as manager:
        for turn in range(3):
            for number in range(4):
                name = TopicPartition("t", number)
                if appended(manager, name):
                    acked[name] = manager.partitions.find(name).log.next_offset
                else:
                    assert name not in manager.directories.partitions_of(A), (
                        "an append to disk A failed, although it has space"
                    )
            manager.tick(NOW + turn)
        is_taken(lambda: manager.topics.create("new", 2, now_ms=NOW))
        assert "new" in {each.name for each in manager.topics.all()}
    return acked


def test_manager_with_one_full_disk_continues_on_the_other_and_loses_nothing() -> None:
    met = 0
    rehearsal = begun()
    first = rehearsal.effects
    work(rehearsal)
    for full_from in each_call(range(first, rehearsal.effects)):
        disk = begun()
        disk.full_from = full_from
        acked = work(disk)
        met += disk.refused > 0
        assert {TopicPartition("t", number) for number in range(4)} >= acked.keys()
        disk.full_from = None
        with open_manager(disk) as manager:
            assert not manager.problems, full_from
            for name, end in acked.items():
                found = [record.offset for record in manager.reader().records(name, 0)]
                assert found[:end] == list(range(end)), (full_from, name)
            manager.append("new", [Record(b"k", b"v", NOW)], 0, now_ms=NOW)
            manager.append("new", [Record(b"k", b"v", NOW)], 1, now_ms=NOW)
        assert disk.exists(f"{A}/{CLEAN_SHUTDOWN}")
        assert disk.exists(f"{B}/{CLEAN_SHUTDOWN}")
    assert met > 30 // CALL_STRIDE


def test_manager_close_on_a_full_disk_omits_only_its_clean_shutdown_marker() -> None:
    disk = begun()
    manager = open_manager(disk)
    disk.full_from = 0
    manager.close()
    assert disk.exists(f"{A}/{CLEAN_SHUTDOWN}")
    assert not disk.exists(f"{B}/{CLEAN_SHUTDOWN}")


def test_manager_refused_checkpoints_are_written_in_the_first_round_with_space() -> None:
    disk = begun()
    with open_manager(disk) as manager:
        manager.append("t", [Record(b"k", b"v", NOW)], 0, now_ms=NOW)
        manager.append("t", [Record(b"k", b"v", NOW)], 1, now_ms=NOW)
        manager.flush()
        disk.full_from = 0
        manager.tick(NOW)
        assert manager.maintenance.refused is not None
        before = disk.read(f"{B}/{RECOVERY_POINTS}")
        manager.topics.create("new", 1, now_ms=NOW)
        disk.full_from = None
        manager.tick(NOW + 1)
        assert manager.maintenance.refused is None
        assert disk.read(f"{B}/{RECOVERY_POINTS}") != before
        assert {each.name for each in TopicRegistry([(disk, B)]).all()} == {"t", "new"}, (
            "the disk's copy of the topic registry is old"
        )


def test_manager_move_and_delete_are_durable_without_checkpoints_on_a_full_disk() -> None:
    disk = NoCheckpoints()
    with open_manager(disk) as manager:
        manager.topics.create("t", 4, now_ms=NOW)
        manager.topics.create("gone", 2, now_ms=NOW)
        (moved, *_) = [name for name in manager.directories.partitions_of(B) if name.topic == "t"]
        disk.full_from = 0
        manager.maintenance.move(moved, A, now_ms=NOW)
        assert moved in manager.directories.partitions_of(A)
        manager.topics.delete("gone", now_ms=NOW)
        manager.tick(NOW)
        assert disk.refused >= 2
    with open_manager(disk) as manager:
        assert {each.name for each in manager.topics.all()} == {"t"}
        assert not manager.problems
        assert moved in manager.directories.partitions_of(A)


@pytest.mark.parametrize("seed", range(20))
def test_log_close_without_space_for_an_index_entry_leaves_its_records_durable(seed: int) -> None:
    disk = FillingDisk()
    log = open_log(disk, SMALL)
    log.append([Record(b"k", b"v", 5000)], now_ms=1000, durability=Durability.MEMORY)
    disk.full_from = disk.effects
    assert not log.close(), "expected an unclean close: an index lacks its last entry"
    assert not log.has_unwritten
    after = disk.crash(random.Random(seed))
    again = open_log(after, SMALL)
    assert [each.value for each in read_all(again, 0)] == [b"v"]
    again.close()


def test_log_close_reports_that_records_may_be_missing() -> None:
    class Unsynced(FillingDisk):
        def _effect(self, what, act) -> None:  # type: ignore[no-untyped-def]
            if self.full_from is not None and what.startswith("sync"):
                raise DiskFailed("syncing", what=what, cause="eio")
            super()._effect(what, act)

    disk = Unsynced()
    log = open_log(disk, SMALL)
    log.append([Record(b"k", b"v", 5000)], now_ms=1000, durability=Durability.MEMORY)
    disk.full_from = 1 << 60
    assert not log.close()
    assert log.has_unwritten


def test_manager_close_with_records_that_are_not_durable_raises() -> None:
    class Unsynced(TwoDisks):
        def _effect(self, what, act) -> None:  # type: ignore[no-untyped-def]
            if self.full_from is not None and what.startswith("sync") and what.endswith(".log"):
                raise DiskFailed("syncing", what=what, cause="enospc")
            super()._effect(what, act)

    disk = Unsynced()
    manager = open_manager(disk)
    manager.topics.create("t", 1, now_ms=NOW)
    manager.append("t", [Record(b"k", b"v", NOW)], 0, now_ms=NOW)
    disk.full_from = 1 << 60
    with pytest.raises(LogError, match="cannot close the logs durably"):
        manager.close()
