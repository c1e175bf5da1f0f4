"""Placement of partitions and replicas: worked examples, and the properties of every assignment."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.errors import DiskFailed, InvalidRequest
from local.facts import LogDirFacts
from policies.placement import Broker, alternate_racks, assign_replicas, choose_log_dir

GIB = 1 << 30


def dir_(
    path: str, partitions: int, free_gib: float | None = 100, total_gib: float = 1000, **more: bool
) -> LogDirFacts:
    free = None if free_gib is None else int(free_gib * GIB)
    return LogDirFacts(path=path, partition_count=partitions, free_bytes=free, total_bytes=int(total_gib * GIB), **more)


def fleet(text: str) -> list[Broker]:
    """``"0:a 1:b 2"``"""
    parted = (each.partition(":") for each in text.split())
    return [Broker(broker_id=int(number), rack=rack or None) for number, _, rack in parted]


@pytest.mark.parametrize(
    ("dirs", "chosen"),
    [
        ([dir_("a", 3), dir_("b", 2), dir_("c", 4)], "b"),
        ([dir_("a", 3), dir_("new", 0)], "new"),
        ([dir_("a", 2, 50), dir_("b", 2, 60)], "b"),
        ([dir_("a", 2), dir_("b", 2)], "a"),
        ([dir_("a", 2, None), dir_("b", 2, None)], "a"),
        ([dir_("a", 2, None), dir_("b", 2, 9)], "b"),
        ([dir_("a", 0, is_offline=True), dir_("b", 9)], "b"),
        ([dir_("a", 0, is_cordoned=True), dir_("b", 9)], "b"),
        ([dir_("a", 0, 0.5), dir_("b", 9)], "b"),
        ([dir_("a", 0, 1, 100), dir_("b", 9)], "a"),
        ([dir_("a", 0, 4, 1000), dir_("b", 9)], "b"),
        ([dir_("a", 0, 5, 1000), dir_("b", 9)], "a"),
    ],
    ids=[
        "fewest partitions",
        "a new disk takes them",
        "a tie goes to the most free",
        "then to the first",
        "unknown room is no reason against",
        "but loses a tie",
        "never offline",
        "never cordoned",
        "never below the bytes",
        "the bytes are a lower bound that is in",
        "never below the share",
        "the share is a lower bound that is in",
    ],
)
def test_a_new_partition_is_placed_in_the_directory_with_the_fewest_partitions(
    dirs: list[LogDirFacts], chosen: str
) -> None:
    assert choose_log_dir(dirs, free_bytes_min=GIB, free_share_min=0.005).path == chosen


def test_a_refused_placement_names_the_reason_of_each_directory() -> None:
    dirs = [dir_("a", 0, is_offline=True), dir_("b", 0, is_cordoned=True), dir_("c", 0, 0.5), dir_("d", 0, 4)]
    with pytest.raises(DiskFailed) as refusal:
        choose_log_dir(dirs, free_bytes_min=GIB, free_share_min=0.005)
    told = refusal.value.facts["directories"]
    assert told == (
        "a: offline; b: cordoned; c: 536870912 bytes free, fewer than 1073741824; d: 0.4% free, less than 0.5%"
    )
    with pytest.raises(DiskFailed, match="none"):
        choose_log_dir([])


def test_leaders_rotate_and_followers_shift_as_in_kafkas_example() -> None:
    """Six brokers, ten partitions, three replicas, start index 4; the second round shifts the followers."""
    found = assign_replicas(fleet("0 1 2 3 4 5"), partitions=10, replication_factor=3, start_index=4, shift=0)
    assert found == {
        0: (4, 5, 0),
        1: (5, 0, 1),
        2: (0, 1, 2),
        3: (1, 2, 3),
        4: (2, 3, 4),
        5: (3, 4, 5),
        6: (4, 0, 1),
        7: (5, 1, 2),
        8: (0, 2, 3),
        9: (1, 3, 4),
    }
    shares = Counter(broker for replicas in found.values() for broker in replicas)
    assert (min(shares.values()), max(shares.values())) == (4, 6), (
        "brokers must have between 4 and 6 replicas, 5 on average"
    )


def test_five_brokers_and_ten_partitions_are_assigned_as_kafka_documents() -> None:
    found = assign_replicas(fleet("0 1 2 3 4"), partitions=10, replication_factor=3, start_index=0, shift=0)
    assert [found[at] for at in range(10)] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_racks_alternate_and_the_assignment_is_kafkas_documented_example() -> None:
    brokers = fleet("0:rack1 1:rack3 2:rack3 3:rack2 4:rack2 5:rack1")
    assert [each.broker_id for each in alternate_racks(brokers)] == [0, 3, 1, 5, 4, 2]
    found = assign_replicas(brokers, partitions=12, replication_factor=3, start_index=0, shift=0)
    assert [found[at] for at in range(12)] == [
        (0, 3, 1),
        (3, 1, 5),
        (1, 5, 4),
        (5, 4, 2),
        (4, 2, 0),
        (2, 0, 3),
        (0, 4, 2),
        (3, 2, 0),
        (1, 0, 3),
        (5, 3, 1),
        (4, 1, 5),
        (2, 5, 4),
    ]


def test_a_rack_without_remaining_brokers_is_skipped() -> None:
    assert [each.broker_id for each in alternate_racks(fleet("0:a 1:a 2:a 3:b"))] == [0, 3, 1, 2]
    assert [each.broker_id for each in alternate_racks(fleet("7 3 5"))] == [3, 5, 7]


def test_one_broker_gets_all_partitions_of_an_unreplicated_topic() -> None:
    assert assign_replicas(fleet("9"), partitions=3, replication_factor=1, start_index=5, shift=2) == {
        0: (9,),
        1: (9,),
        2: (9,),
    }


@pytest.mark.parametrize(
    ("brokers", "numbers", "said"),
    [
        ("0 1", {"replication_factor": 3}, "fewer brokers than replicas"),
        ("", {}, "fewer brokers than replicas"),
        ("0 1", {"replication_factor": 0}, "at least one replica"),
        ("0 1", {"partitions": 0}, "at least one partition"),
        ("0 0 1", {}, "repeated"),
        ("0:a 1", {}, "some brokers have no rack"),
        ("0 1", {"start_index": -1}, "negative"),
        ("0 1", {"partitions": 10**9}, "too many"),
    ],
)
def test_assignments_that_kafka_refuses_are_refused(brokers: str, numbers: dict[str, int], said: str) -> None:
    asked = {"partitions": 1, "replication_factor": 1, "start_index": 0, "shift": 0, **numbers}
    with pytest.raises(InvalidRequest, match=said):
        assign_replicas(fleet(brokers), **asked)


@st.composite
def fleets(draw: st.DrawFn) -> list[Broker]:
    ids = draw(st.lists(st.integers(0, 999), min_size=1, max_size=12, unique=True))
    racks = draw(st.lists(st.sampled_from("abcd"), min_size=len(ids), max_size=len(ids)) | st.none())
    return [Broker(broker_id=each, rack=racks[at] if racks else None) for at, each in enumerate(ids)]


@given(fleets(), st.integers(1, 40), st.integers(1, 12), st.integers(0, 30), st.integers(0, 30))
def test_every_assignment_is_even_and_spread_over_brokers_and_racks(
    brokers: list[Broker], partitions: int, replicas: int, start: int, shift: int
) -> None:
    replicas = min(replicas, len(brokers))
    found = assign_replicas(brokers, partitions=partitions, replication_factor=replicas, start_index=start, shift=shift)
    rack = {each.broker_id: each.rack for each in brokers}
    leaders = Counter(dict.fromkeys(rack, 0))
    for placed in found.values():
        leaders[placed[0]] += 1
        assert len(set(placed)) == replicas, "replicas of a partition must be on different brokers"
        if None not in rack.values():
            assert len({rack[each] for each in placed}) == min(replicas, len(set(rack.values())))
    assert list(found) == list(range(partitions))
    assert max(leaders.values()) - min(leaders.values()) <= 1


@given(fleets(), st.integers(1, 30), st.integers(0, 9), st.integers(0, 9))
def test_without_racks_whole_rounds_give_every_broker_the_same_number_of_replicas(
    brokers: list[Broker], rounds: int, start: int, shift: int
) -> None:
    bare = [Broker(broker_id=each.broker_id) for each in brokers]
    factor = min(3, len(bare))
    found = assign_replicas(
        bare, partitions=rounds * len(bare), replication_factor=factor, start_index=start, shift=shift
    )
    assert set(Counter(each for placed in found.values() for each in placed).values()) == {rounds * factor}
