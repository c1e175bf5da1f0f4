"""Topics and partitions created with a crash after every effect: all of a call exist, or none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from disk_model import ModelDisk
from manager_world import NOW, TIERED, World, send
from run_profile import CREATION_STATES

from local.errors import InvalidRequest
from local.format.record import Record
from local.names import TopicPartition
from tiered.topics.topic_creation import AskedTopic

NAMES = ("a", "b")
ASKED = [AskedTopic(name=name, partitions=2) for name in NAMES]


def begun(roots: int = 1) -> World:
    """One or two log directories with an older topic that holds records."""
    world = World()
    world.config = replace(world.config, more_data_dirs=tuple(f"./more{at}" for at in range(1, roots)))
    with world.open() as manager:
        manager.topics.create("t", 1, now_ms=NOW)
        send(manager, 20)
        manager.partitions.find(TopicPartition("t", 0)).log.flush()
    return world


def goes_on(world: World, disk: ModelDisk, *, is_acknowledged: bool) -> bool:
    """Whether the topics exist after a crash; checks all invariants and that appends still work."""
    for _ in range(2):  # the second time opens the result of the recovery
        with world.open(disk=disk) as manager:
            there = {each.name for each in manager.topics.all()}
            assert there in ({"t"}, {"t", *NAMES}), "some of the topics exist, others do not"
            assert "a" in there or not is_acknowledged, "an acknowledged topic was lost"
            assert manager.problems == {}
            assert manager.partitions.find(TopicPartition("t", 0)).log.next_offset >= 20
            if "a" not in there:
                manager.topics.create_all(ASKED, now_ms=NOW)
            for name in NAMES:
                assert len(manager.partitions.all([name])) == 2
                send(manager, 10, topic=name)
            lengths = {each.name: each.log.next_offset for each in manager.partitions.all()}
    with world.open(disk=disk) as manager:
        assert {each.name: each.log.next_offset for each in manager.partitions.all()} == lengths
        assert lengths[TopicPartition("b", 0)] == 20
    return "a" in there


@pytest.mark.parametrize("roots", [1, 2])
def test_a_crash_at_any_moment_of_a_creation_leaves_all_topics_or_none(roots):
    world, rng = begun(roots), random.Random(roots)
    found: list[bool] = []
    with world.open() as manager:
        disk = world.disk

        def look() -> None:
            disk.watch = None
            for _ in range(CREATION_STATES):
                found.append(goes_on(world, disk.crash(rng), is_acknowledged=False))
            disk.watch = look

        disk.watch = look
        manager.topics.create_all(ASKED, now_ms=NOW)
        disk.watch = None
        for _ in range(16 * CREATION_STATES):
            goes_on(world, disk.crash(rng), is_acknowledged=True)
    assert len(found) > 26 * CREATION_STATES


@pytest.mark.parametrize("roots", [1, 2])
def test_acknowledged_records_of_a_new_topic_survive_a_crash(roots):
    """Records are accepted only when every name above them is durable."""
    world, rng = begun(roots), random.Random(roots)
    manager = world.open()
    manager.topics.create_all(ASKED, now_ms=NOW)
    for name in NAMES:
        send(manager, 10, topic=name)
        for number in (0, 1):
            manager.partitions.find(TopicPartition(name, number)).log.flush()
    for _ in range(20 * CREATION_STATES):
        with world.open(disk=world.disk.crash(rng)) as again:
            assert [again.partitions.find(TopicPartition(name, 0)).log.next_offset for name in NAMES] == [10] * 2
    manager.abandon()


def syncs(disk: ModelDisk, since: int) -> int:
    return sum(each.startswith("sync ") for each in disk.journal[since:])


@pytest.mark.parametrize(("topics", "partitions"), [(1, 1), (1, 300), (50, 1), (20, 7)])
def test_creating_topics_costs_three_syncs_and_two_for_each_partition(topics, partitions):
    world = begun()
    with world.open() as manager:
        before = len(world.disk.journal)
        asked = [AskedTopic(name=f"n{at}", partitions=partitions) for at in range(topics)]
        manager.topics.create_all(asked, now_ms=NOW)
        assert syncs(world.disk, before) == 3 + 2 * topics * partitions


def test_partitions_without_records_are_opened_and_closed_without_a_sync():
    world = begun()
    with world.open() as manager:
        manager.topics.create_all([AskedTopic(name="n", partitions=50)], now_ms=NOW)
    before = len(world.disk.journal)
    with world.open():
        pass
    assert not [each for each in world.disk.journal[before:] if each.startswith("sync ./data/n-")]


@pytest.mark.parametrize(
    "asked",
    [
        [AskedTopic(name="a"), AskedTopic(name="t")],
        [AskedTopic(name="a"), AskedTopic(name="a")],
        [AskedTopic(name="a"), AskedTopic(name="b", partitions=0)],
        [AskedTopic(name="a"), AskedTopic(name="b", properties={"retention.ms": "x"})],
        [AskedTopic(name="a"), AskedTopic(name="../b")],
    ],
)
def test_a_refused_topic_prevents_the_creation_of_all_topics_of_the_call(asked):
    world = begun()
    with world.open() as manager:
        before = len(world.disk.journal)
        with pytest.raises(InvalidRequest):
            manager.topics.create_all(asked, now_ms=NOW)
        assert [each.name for each in manager.topics.all()] == ["t"]
        assert len(world.disk.journal) == before


def test_a_creation_stopped_by_a_disk_error_raises_and_the_next_open_finishes_it():
    for at in range(1, 200):
        world = begun()
        manager = world.open()
        world.disk.fail_at, is_told = world.disk.effects + at, False
        try:
            manager.topics.create_all(ASKED, now_ms=NOW)
        except Exception:  # noqa: BLE001 - any error: nothing was acknowledged
            is_told = True
        reached = world.disk.effects >= world.disk.fail_at
        assert is_told == reached, at
        world.disk.fail_at = None
        manager.abandon()
        goes_on(world, world.disk, is_acknowledged=not is_told)
        if not reached:
            break
    else:
        raise AssertionError("the end was never reached")


def grows_on(world: World, disk: ModelDisk, *, is_acknowledged: bool) -> bool:
    """Whether topic `t` has its new partitions after a crash; checks that appends to every partition still work."""
    for _ in range(2):  # the second time opens the result of the recovery
        with world.open(disk=disk) as manager:
            count = manager.topics.get("t").partition_count
            assert count in (1, 4), "some of the partitions exist, others do not"
            assert count == 4 or not is_acknowledged, "acknowledged partitions were lost"
            assert manager.problems == {}
            names = manager.topics.get("t").partitions()
            assert [each.name for each in manager.partitions.all(["t"])] == names
            assert manager.partitions.find(names[0]).log.next_offset >= 20
            for name in names:
                manager.append("t", [Record(b"k", b"v", NOW)], name.partition, now_ms=NOW)
    return count == 4


@pytest.mark.parametrize(("roots", "settings"), [(1, {}), (2, {}), (1, TIERED)])
def test_a_crash_at_any_moment_of_an_addition_leaves_all_partitions_or_none(roots, settings):
    world, rng = begun(roots), random.Random(roots)
    found: set[bool] = set()
    with world.open() as manager:
        if settings:
            manager.topics.alter("t", settings, now_ms=NOW)
        disk = world.disk

        def look() -> None:
            disk.watch = None
            for _ in range(CREATION_STATES):
                copied = replace_store(world)
                found.add(grows_on(copied, disk.crash(rng), is_acknowledged=False))
            disk.watch = look

        disk.watch = look
        manager.topics.add_partitions("t", 4, now_ms=NOW)
        disk.watch = None
        for _ in range(8 * CREATION_STATES):
            grows_on(replace_store(world), disk.crash(rng), is_acknowledged=True)
    assert found == {False, True}


def replace_store(world: World) -> World:
    """The same configuration over a copy of the bucket: a recovery takes over its writer role there."""
    copied = World()
    copied.config = world.config
    for each in world.store.list(""):
        copied.store.put_if_absent(each.key, world.store.get(each.key))
    return copied


def test_an_addition_stopped_by_a_disk_error_raises_and_the_next_open_finishes_it():
    for at in range(1, 200):
        world = begun()
        manager = world.open()
        world.disk.fail_at, is_told = world.disk.effects + at, False
        try:
            manager.topics.add_partitions("t", 4, now_ms=NOW)
        except Exception:  # noqa: BLE001 - any error: nothing was acknowledged
            is_told = True
        reached = world.disk.effects >= world.disk.fail_at
        assert is_told == reached, at
        world.disk.fail_at = None
        manager.abandon()
        grows_on(world, world.disk, is_acknowledged=not is_told)
        if not reached:
            break
    else:
        raise AssertionError("the end was never reached")
