"""Appends acknowledged by the bucket: only after a commit contains them, and never twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from manager_world import NAME, NOW, TIERED, SwitchableStore, World, send, values

from local.errors import Conflict, Fenced, InvalidRequest, LogError, Unavailable
from local.format.record import Record
from local.names import TopicPartition
from policies.decisions import Decision
from policies.snapshot import PartitionSnapshot
from tiered.manager import remote_acks
from tiered.manager.manager import LogManager
from tiered.manager.remote_acks import check_remote_acks, held_upto, wait_for_bucket
from tiered.node.upload_pause import pause_uploads

SETTINGS = {**TIERED, "local.retention.ms": "-2", "segment.ms": "30d", "remote.copy.lag.ms": "1h"}


@pytest.fixture
def world() -> World:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, SETTINGS, now_ms=NOW)
    return world


class Clock:
    """A clock that moves when its caller pauses."""

    def __init__(self) -> None:
        self.now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms

    def pause(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


def wait(manager: LogManager, end: int, clock: Clock | None = None, **more: object) -> object:
    clock = clock or Clock()
    return wait_for_bucket(manager, {NAME: end}, clock=clock, pause=clock.pause, **more)  # type: ignore[arg-type]


def held_remotely(world: World) -> list[bytes | None]:
    """The records that another machine reads from the bucket alone."""
    with world.open(disk=world.other_disk(), read_only=True) as other:
        return [value for _, value in values(other.reader())]


def test_acknowledged_records_are_in_the_bucket_before_roll_and_copy_lag_are_due(world: World) -> None:
    with world.open() as manager:
        check_remote_acks(manager, [NAME], now_ms=NOW)
        send(manager, 70)
        manager.tick(NOW)
        assert held_upto(manager, NAME) == 0, "nothing is due without the wait"
        acked = wait(manager, 70)
        assert acked is not None
        assert acked.held_upto == {NAME: 70}  # type: ignore[attr-defined]
        assert acked.tries == 1  # type: ignore[attr-defined]
        assert held_remotely(world) == [b"value %d" % at for at in range(70)]
        sequence = manager.partitions.find(NAME).manifest().sequence
        assert wait(manager, 70) is not None
        assert manager.partitions.find(NAME).manifest().sequence == sequence, (
            "records in the bucket must not be sent again"
        )
        send(manager, 50, start=70)
        manager.partitions.roll("t", now_ms=NOW)
        send(manager, 3, start=120)
        assert wait(manager, 120) is not None
        assert held_upto(manager, NAME) == 120, "records beyond the requested offset are not copied"


def test_remote_ack_rolls_only_the_requested_partitions(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("u", 2, SETTINGS, now_ms=NOW)
        first, second = TopicPartition("u", 0), TopicPartition("u", 1)
        for name in (first, second):
            manager.append("u", [Record(b"k", b"v", NOW)], name.partition, now_ms=NOW)
        clock = Clock()
        assert wait_for_bucket(manager, {first: 1}, clock=clock, pause=clock.pause) is not None
        assert (held_upto(manager, first), held_upto(manager, second)) == (1, 0)
        assert [len(each.closed) for each in manager.snapshots(NOW, ["u"])] == [1, 0]


def test_remote_ack_is_no_problem_of_a_partition_that_maintenance_copies_at_the_same_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, overtakes = remote_acks.copies, iter([True])

    def decide_slowly(snapshot: PartitionSnapshot) -> Sequence[Decision]:
        found = decide(snapshot)
        if next(overtakes, False):
            manager.tick(NOW + 7_200_000)
        return found

    noted: list[LogError] = []
    with world.open() as manager:
        monkeypatch.setattr(manager.partitions, "note", lambda name, error: noted.append(error))
        monkeypatch.setattr(remote_acks, "copies", decide_slowly)
        send(manager, 70)
        assert wait(manager, 70) is not None
        assert held_upto(manager, NAME) == 70
    assert noted == []


def test_remote_ack_retries_until_its_timeout_and_loses_or_doubles_no_record(
    world: World,
) -> None:
    store, clock = SwitchableStore(world.store, is_down=False), Clock()
    told: list[LogError | None] = []
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        send(manager, 70)
        store.is_down = True
        with pytest.raises(Unavailable, match="cannot wait for the remote tier") as error:
            wait(manager, 70, clock, timeout_ms=10_000, waiting=lambda names, problem: told.append(problem))
        assert error.value.facts["waiting"] == "t/0"
        assert 10_000 <= clock.now_ms - NOW < 12_000
        assert len(told) == 10
        assert [value for _, value in values(manager.reader())] == [b"value %d" % at for at in range(70)]
        store.is_down = False
        assert wait(manager, 70, clock) is not None
    assert held_remotely(world) == [b"value %d" % at for at in range(70)]


def test_remote_ack_succeeds_when_the_bucket_is_back_after_several_tries(world: World) -> None:
    store, clock = SwitchableStore(world.store, is_down=False), Clock()

    def back(names: object, problem: LogError | None) -> None:
        store.is_down = len(tries) < 2
        tries.append(problem)

    tries: list[LogError | None] = []
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        send(manager, 20)
        store.is_down = True
        acked = wait(manager, 20, clock, waiting=back)
    assert acked is not None
    assert acked.tries == 4  # type: ignore[attr-defined]
    assert held_remotely(world) == [b"value %d" % at for at in range(20)]


def test_remote_ack_ends_when_cancelled_or_after_a_takeover(world: World) -> None:
    with world.open() as manager:
        send(manager, 20)
        assert wait(manager, 20, should_stop=lambda: True) is None
        with world.open(disk=world.other_disk()) as other:
            assert other.partitions.find(NAME).is_writer
        with pytest.raises(Conflict):
            wait(manager, 20)
        with pytest.raises(Conflict):
            check_remote_acks(manager, [NAME], now_ms=NOW)


def test_remote_ack_is_not_given_for_the_records_of_another_writer(world: World) -> None:
    """A reader or a task may load the manifest of the other writer first.
    That manifest covers the offsets of this log."""
    with world.open() as manager:
        send(manager, 20)
        with world.open(disk=world.other_disk()) as other:
            other.append("t", [Record(b"k", b"theirs", NOW)] * 30, 0, now_ms=NOW)
            assert wait(other, 30) is not None
        metadata = manager.partitions.find(NAME).metadata
        assert metadata is not None
        with pytest.raises(Fenced):
            metadata.refresh(exact=True)
        with pytest.raises(Fenced):
            wait(manager, 20)
        assert held_remotely(world) == [b"theirs"] * 30


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"remote.storage.enable": "false"}, "remote.storage.enable"),
        ({**SETTINGS, "remote.log.copy.disable": "true"}, "not copied"),
        ({**SETTINGS, "cleanup.policy": "compact"}, "a compacted topic is copied after it is cleaned"),
    ],
)
def test_remote_ack_of_a_topic_that_is_not_copied_is_refused_before_the_append(
    world: World, settings: dict[str, str], told: str
) -> None:
    with world.open() as manager:
        manager.topics.create("u", 1, settings, now_ms=NOW)
        with pytest.raises(InvalidRequest, match=told):
            check_remote_acks(manager, [TopicPartition("u", 0)], now_ms=NOW)


def test_pause_refuses_remote_acks_and_ends_a_running_wait_at_its_timeout(world: World) -> None:
    with world.open() as manager:
        places = manager.directories.places()
        send(manager, 20)
        pause_uploads(places, ["t"], now_ms=NOW, reason="net")
        with pytest.raises(Unavailable, match="paused"):
            wait(manager, 20, timeout_ms=3_000)
        with pytest.raises(InvalidRequest, match="tiered resume"):
            check_remote_acks(manager, [NAME], now_ms=NOW)


def test_remote_ack_with_an_unavailable_bucket_is_refused_before_the_append(world: World) -> None:
    store = SwitchableStore(world.store)
    with world.open(store=store) as manager, pytest.raises(Unavailable):  # type: ignore[arg-type]
        check_remote_acks(manager, [NAME], now_ms=NOW)
