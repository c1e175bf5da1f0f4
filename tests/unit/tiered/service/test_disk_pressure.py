"""Disk that fills: appends are refused in time, copied segments are dropped early, and no other record is deleted."""

from __future__ import annotations

import random

import pytest
from disk_model import ModelDisk
from manager_world import HOUR, NAME, NOW, SwitchableStore, World, send, settle, values
from policy_samples import KEEP, entry, local
from policy_samples import NOW as THEN

from local.errors import DiskFailed
from local.names import TopicPartition
from local.storage import Space
from policies.disk_relief import disk_relief
from policies.invariants import violations
from policies.snapshot import PartitionSnapshot
from tiered.manager.manager import LogManager
from tiered.service.worker import Worker

MIB = 1 << 20
KEPT = {"remote.storage.enable": "true", "retention.ms": "-1"}
TOTAL = 1000 * MIB


class SmallDisk(ModelDisk):
    """A disk that reports its free bytes."""

    free = TOTAL

    def space(self, path: str) -> Space:
        return Space(self.free, TOTAL)


@pytest.fixture
def world() -> World:
    found = World()
    found.disk = SmallDisk()
    return found


def bases(manager: LogManager) -> list[int]:
    return [each.base_offset for each in manager.partition(NAME).log.segments()]


def test_appends_are_refused_below_the_free_space_limit_and_accepted_above(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, KEPT, now_ms=NOW)
        send(manager, 10)
        world.disk.free = 32 * MIB - 1
        with pytest.raises(DiskFailed, match="nearly full") as caught:
            send(manager, 10, start=10)
        assert (caught.value.facts["cause"], caught.value.facts["free_bytes"]) == ("enospc", 32 * MIB - 1)
        assert manager.partition(NAME).log.next_offset == 10
        world.disk.free = 32 * MIB
        send(manager, 10, start=10)
        assert manager.partition(NAME).log.next_offset == 20
        assert manager.problems == {}


def test_copied_segments_are_dropped_early_oldest_first_and_only_as_needed(world: World) -> None:
    with world.open(file_delete_delay_ms="60000") as manager:
        manager.create_topic("t", 1, KEPT, now_ms=NOW)
        records = send(manager, 600)
        settle(manager)
        before = bases(manager)
        assert len(before) > 4
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        sizes = [each.size_bytes for each in manager.partition(NAME).log.segments()]
        world.disk.free = 128 * MIB - sizes[0] - 1  # more than the first segment frees, less than the first two free
        worker.round(NOW)
        assert bases(manager) == before[2:]
        worker.round(NOW + 1000)
        assert bases(manager) == before[2:], "bytes of segments whose deletion is scheduled must count as free"
        worker.round(NOW + 2 * 60_000)
        assert len(bases(manager)) < len(before) - 2, (
            "more segments must be dropped, because the disk is as full as before"
        )
        assert [value for _, value in values(manager.reader())] == [each.value for each in records]


def test_full_disk_drops_no_segment_without_a_remote_copy(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        manager.create_topic("t", 1, KEPT, now_ms=NOW)
        manager.create_topic("untiered", 1, {}, now_ms=NOW)
        send(manager, 200)
        send(manager, 200, topic="untiered")
        store.is_down = True
        world.disk.free = 0
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        before = bases(manager)
        for at in range(3):
            worker.round(NOW + at * HOUR)
        assert bases(manager) == before
        assert manager.partition(TopicPartition("untiered", 0)).log.log_start_offset == 0
        store.is_down = False
        while worker.round(NOW + 4 * HOUR):
            pass
        assert len(bases(manager)) == 1, "the segment must be dropped after its upload"


def test_disk_with_free_space_or_limit_zero_drops_nothing_early(world: World) -> None:
    for free, limit in ((128 * MIB, "128MiB"), (0, "0")):
        fresh = World()
        fresh.disk = SmallDisk()
        with fresh.open(log_dir_relief_free_bytes_min=limit) as manager:
            manager.create_topic("t", 1, KEPT, now_ms=NOW)
            send(manager, 200)
            settle(manager)
            before = bases(manager)
            fresh.disk.free = free
            Worker(manager, now_ms=NOW, interval_ms=30_000).round(NOW)
            assert bases(manager) == before


def snapshot(name: TopicPartition, rows: list[tuple[int, int]], ages: list[int]) -> PartitionSnapshot:
    """Segments of ten records with the given ages in milliseconds. The last segment is active."""
    last = len(ages) - 1
    return PartitionSnapshot(
        partition=name,
        rules=KEEP,
        now_ms=THEN,
        log_start_offset=0,
        next_offset=10 * len(ages),
        stable_offset=10 * len(ages),
        segments=tuple(local(10 * at, 10 * at + 10, age=age, active=at == last) for at, age in enumerate(ages)),
        is_tiered=True,
        remote=tuple(entry(*each) for each in rows),
    )


def chosen(wanted: int, *snapshots: PartitionSnapshot) -> list[tuple[str, int]]:
    return [(str(name), each.base_offset) for name, drops in disk_relief(snapshots, wanted).items() for each in drops]


def test_policy_drops_the_oldest_of_all_partitions_up_to_the_first_uncopied() -> None:
    one, two = TopicPartition("a", 0), TopicPartition("b", 0)
    all_rows = [(0, 10), (10, 20), (20, 30), (30, 40)]
    first = snapshot(one, all_rows, [900, 700, 500, 0])
    assert chosen(0, first) == []
    assert chosen(1, first) == [("a/0", 0)]
    assert chosen(101, first) == [("a/0", 0), ("a/0", 10)]
    assert chosen(10**6, first) == [("a/0", 0), ("a/0", 10), ("a/0", 20)], "the active segment must never be dropped"
    assert chosen(10**6, snapshot(one, [(0, 10), (20, 30)], [900, 700, 500, 0])) == [("a/0", 0)], (
        "no segment after a gap may be dropped"
    )
    assert chosen(10**6, snapshot(one, [(10, 20)], [900, 700, 500, 0])) == []
    second = snapshot(two, all_rows, [800, 600, 400, 0])
    assert chosen(300, first, second) == [("a/0", 0), ("a/0", 10), ("b/0", 0)]


@pytest.mark.parametrize("seed", range(20))
def test_early_drops_violate_no_invariant(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        count = rng.randrange(1, 8)
        rows = [(10 * at, 10 * at + 10) for at in range(count) if rng.random() < 0.8]
        one = snapshot(NAME, rows, sorted((rng.randrange(1000) for _ in range(count)), reverse=True))
        for drops in disk_relief([one], rng.randrange(1000)).values():
            assert violations(one, drops) == []
