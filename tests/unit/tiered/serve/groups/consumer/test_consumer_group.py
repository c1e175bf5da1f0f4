"""One group of the consumer protocol: joins, revocation before assignment, fencing, static members, expressions."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from consumer_world import CLIENT, REBALANCE_MS, SESSION_MS, SETTINGS, ConsumerWorld, Peer, id_of, joining, topics

from tiered.serve.groups.consumer import group as groups
from tiered.serve.groups.consumer import regexes, sizes
from tiered.serve.groups.consumer.fencing import Refused
from tiered.serve.groups.consumer.records import Assignment, ConsumerKey, Current, Kind, MemberState, Target
from tiered.serve.groups.group_states import GroupState
from tiered.serve.messages.base import Error
from tiered.serve.messages.consumer_groups import ConsumerGroupHeartbeatRequest

SIX = {(id_of("six"), number) for number in range(6)}


def test_the_first_member_gets_all_partitions_at_once() -> None:
    world = ConsumerWorld()
    one = Peer(world, "one", "six")
    assert not one.beat()
    assert (one.epoch, one.owned, world.group.state) == (1, SIX, GroupState.STABLE)
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="one", member_epoch=1)
    assert world.request(request).response.assignment is None, "it has not changed"


def test_a_second_member_gets_partitions_after_the_first_has_revoked_them() -> None:
    world = ConsumerWorld()
    one, two = Peer(world, "one", "six"), Peer(world, "two", "six")
    one.beat()
    two.beat()
    assert (two.epoch, two.owned) == (2, set())
    one.beat(is_slow=True)
    two.beat()
    assert (one.epoch, len(one.assigned), two.owned) == (1, 3, set())
    assert world.group.state is GroupState.RECONCILING
    one.beat()
    two.beat()
    assert (one.epoch, two.epoch, world.group.state) == (2, 2, GroupState.STABLE)
    assert one.owned | two.owned == SIX
    assert len(one.owned) == len(two.owned) == 3


def test_a_member_that_does_not_revoke_is_removed_after_its_rebalance_timeout() -> None:
    world = ConsumerWorld(replace(SETTINGS, consumer_session_timeout_ms=10 * REBALANCE_MS))
    one, two = Peer(world, "one", "six"), Peer(world, "two", "six")
    one.beat()
    two.beat()
    one.beat(is_slow=True)
    for _ in range(3):
        world.advance(REBALANCE_MS // 4)
        one.beat(is_slow=True)
    world.advance(REBALANCE_MS // 4)
    assert one.beat(is_slow=True) is Error.UNKNOWN_MEMBER_ID
    two.beat()
    assert two.owned == SIX


def test_a_member_that_revoked_in_time_stays() -> None:
    world = ConsumerWorld(replace(SETTINGS, consumer_session_timeout_ms=10 * REBALANCE_MS))
    one, two = Peer(world, "one", "six"), Peer(world, "two", "six")
    one.beat()
    two.beat()
    one.beat(is_slow=True)
    one.beat()
    world.advance(REBALANCE_MS)
    assert not one.beat()


def test_a_member_without_heartbeats_is_removed_after_the_session_timeout() -> None:
    world = ConsumerWorld()
    one = Peer(world, "one", "six")
    one.beat()
    world.advance(SESSION_MS - 1)
    assert not one.beat()
    world.advance(SESSION_MS)
    assert (world.group.state, world.group.epoch, world.group.is_idle) == (GroupState.EMPTY, 2, True)
    assert {key.kind.name for key in world.stored} == {"GROUP", "TARGET_EPOCH"}


def test_a_lost_response_is_repeated_and_a_stale_member_is_fenced() -> None:
    world = ConsumerWorld(six=6, two=2)
    one = Peer(world, "one", "six")
    one.beat(is_lost=True)
    assert not one.beat()
    assert one.owned == SIX
    one.names = ("six", "two")
    one.beat(is_lost=True)
    assert not one.beat()
    assert (one.epoch, len(one.owned)) == (2, 8)
    stale = ConsumerGroupHeartbeatRequest(group_id="g", member_id="one", member_epoch=1)
    assert world.error(stale) is Error.FENCED_MEMBER_EPOCH, "without its partitions"
    assert world.error(replace(stale, member_epoch=0, topic_partitions=())) is Error.FENCED_MEMBER_EPOCH
    assert world.error(replace(stale, member_epoch=3)) is Error.FENCED_MEMBER_EPOCH
    assert world.error(replace(stale, member_id="other")) is Error.UNKNOWN_MEMBER_ID


def test_new_partitions_and_deleted_topics_give_a_new_assignment() -> None:
    world = ConsumerWorld(six=6)
    one = Peer(world, "one", "six", "two")
    one.beat()
    world.topics = topics(six=7, two=2)
    one.beat()
    assert (one.epoch, len(one.owned)) == (2, 9)
    world.topics = topics(two=2)
    one.beat()
    one.beat()
    assert (one.epoch, len(one.owned)) == (3, 2)


def test_a_static_member_that_left_for_now_has_a_successor_without_a_rebalance() -> None:
    world = ConsumerWorld()
    one, two = Peer(world, "one", "six", instance_id="i"), Peer(world, "two", "six", instance_id="j")
    for _ in range(3):
        one.beat()
        two.beat()
    owned, epoch = set(one.owned), world.group.epoch
    later = Peer(world, "later", "six", instance_id="i")
    assert later.beat() is Error.UNRELEASED_INSTANCE_ID
    assert not one.leave(-2)
    two.beat()
    assert not later.beat()
    assert (later.owned, later.epoch, world.group.epoch) == (owned, epoch, epoch)
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="one", member_epoch=epoch, instance_id="i")
    assert world.error(request) is Error.FENCED_INSTANCE_ID
    assert world.error(replace(request, instance_id="k")) is Error.UNKNOWN_MEMBER_ID
    assert world.error(replace(request, member_epoch=-1)) is Error.FENCED_INSTANCE_ID


def test_a_static_member_whose_successor_cannot_be_stored_is_removed_after_its_session() -> None:
    world = ConsumerWorld()
    one = Peer(world, "one", "six", instance_id="i")
    one.beat()
    one.leave(-2)
    world.request(joining("later", "six", instance_id="i"), fails=True)
    assert world.group.members.keys() == {"one"}
    world.advance(SESSION_MS)
    assert not world.group.members


def test_a_member_whose_revocation_cannot_be_stored_is_removed_after_its_rebalance_timeout() -> None:
    world = ConsumerWorld(replace(SETTINGS, consumer_session_timeout_ms=10 * REBALANCE_MS))
    one, two = Peer(world, "one", "six"), Peer(world, "two", "six")
    one.beat()
    two.beat()
    one.beat(is_slow=True)
    one.beat(fails=True)
    assert world.group.current("one").state is MemberState.UNREVOKED_PARTITIONS
    world.advance(REBALANCE_MS)
    assert world.group.members.keys() == {"two"}


def test_two_owners_of_a_partition_in_the_log_become_one() -> None:
    world = ConsumerWorld(two=2)
    one, two = Peer(world, "one", "two"), Peer(world, "two", "two")
    for _ in range(3):
        one.beat()
        two.beat()
    every = {id_of("two"): frozenset({0, 1})}
    for each in (one, two):
        current = Current(epoch=each.epoch, previous_epoch=each.epoch, assigned=every)
        world.stored[ConsumerKey(Kind.CURRENT, "g", each.member_id)] = current
        world.stored[ConsumerKey(Kind.TARGET, "g", each.member_id)] = Target(every)
        each.owned = each.assigned = {(id_of("two"), number) for number in (0, 1)}
    world.group = world.loaded()
    assert not two.leave()
    assert world.group._is_owned(id_of("two"), 0), "the other member has it"
    two = Peer(world, "two", "two")
    for _ in range(3):
        one.beat()
        two.beat()
    assert (len(one.owned), len(two.owned), one.owned & two.owned) == (1, 1, set())


def test_the_partitions_of_a_static_member_are_free_after_its_session() -> None:
    world = ConsumerWorld()
    one, two = Peer(world, "one", "six", instance_id="i"), Peer(world, "two", "six")
    one.beat()
    two.beat()
    one.leave(-2)
    two.beat()
    assert not two.owned
    world.advance(SESSION_MS - 1)
    two.beat()
    world.advance(1)
    two.beat()
    assert two.owned == SIX


def test_a_full_group_refuses_another_member() -> None:
    world = ConsumerWorld(replace(SETTINGS, consumer_max_size=1))
    one = Peer(world, "one", "six")
    one.beat()
    assert world.error(joining("two", "six")) is Error.GROUP_MAX_SIZE_REACHED
    assert not one.beat()


def test_regular_expressions_match_whole_names_and_follow_new_topics() -> None:
    world = ConsumerWorld(six=6, sixty=1, two=2)
    one = Peer(world, "one", subscribed_topic_regex="six|t.o")
    one.beat()
    assert (one.epoch, one.owned) == (1, set())
    one.beat()
    assert (one.epoch, len(one.owned)) == (2, 8)
    two = Peer(world, "two", subscribed_topic_regex="six|t.o")
    two.beat()
    assert len(two.assigned) == 0, "the expression is known; its partitions have an owner"
    one.beat()
    one.beat()
    two.beat()
    assert len(one.owned) == len(two.owned) == 4
    world.topics = topics(six=6, two=2, too=1)
    one.beat()
    assert len(world.group.regexes) == 1
    world.advance(10_000)
    one.beat()
    assert set(world.group.regexes["six|t.o"].topics) == {"six", "two", "too"}
    one.leave()
    two.leave()
    assert not world.group.regexes


@pytest.mark.parametrize("pattern", ["(", "[a", "a**", "(?<=a)b", "x" * 5000, "(" * 2000 + ")" * 2000 + "{1000}{1000}"])
def test_invalid_and_large_expressions_are_refused(pattern: str) -> None:
    assert ConsumerWorld().error(joining("one", subscribed_topic_regex=pattern)) is Error.INVALID_REGULAR_EXPRESSION


def test_an_expression_that_backtracking_engines_cannot_end_is_matched() -> None:
    world = ConsumerWorld(**{"a" * 200 + "b": 1})
    one = Peer(world, "one", subscribed_topic_regex="(a*)*c|(a|aa)+d")
    assert not one.beat()
    assert not one.beat()


def test_the_number_of_expressions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REGEXES_MAX", 1)
    world = ConsumerWorld()
    Peer(world, "one", subscribed_topic_regex="a").beat()
    assert world.error(joining("two", subscribed_topic_regex="b")) is Error.GROUP_MAX_SIZE_REACHED
    assert not world.error(joining("two", subscribed_topic_regex="a"))


def test_most_members_choose_the_assignor() -> None:
    world = ConsumerWorld()
    assert world.group.assignor() == "uniform"
    Peer(world, "b", "six", server_assignor="range").beat()
    Peer(world, "a", "six", server_assignor="range").beat()
    Peer(world, "c", "six", server_assignor="uniform").beat()
    assert world.group.assignor() == "range"
    assert world.group.targets["a"] == {id_of("six"): frozenset({0, 1})}


def test_commits_and_fetches_need_the_epoch_of_the_member() -> None:
    world = ConsumerWorld()
    commit = lambda epoch, name, instance=None, **kind: world.group.check_commit(  # noqa: E731
        epoch, name, instance, **{"is_transactional": False, "knows_epochs": True, **kind}
    )
    assert commit(-1, "") is Error.NONE, "no members"
    one = Peer(world, "one", "six")
    one.beat()
    assert commit(-1, "") is Error.UNKNOWN_MEMBER_ID
    assert commit(1, "one") is Error.NONE
    assert commit(1, "one", knows_epochs=False) is Error.UNSUPPORTED_VERSION
    assert commit(0, "one") is Error.STALE_MEMBER_EPOCH
    assert commit(0, "one", is_transactional=True, knows_epochs=False) is Error.ILLEGAL_GENERATION
    assert commit(-1, "", is_transactional=True, knows_epochs=False) is Error.NONE
    assert world.group.check_fetch(None, -1) is Error.NONE
    assert world.group.check_fetch("one", 1) is Error.NONE
    assert world.group.check_fetch("one", 2) is Error.STALE_MEMBER_EPOCH
    assert world.group.check_fetch("two", 1) is Error.UNKNOWN_MEMBER_ID
    assert world.group.check_fetch(None, 1) is Error.UNKNOWN_MEMBER_ID


def test_a_loaded_group_continues() -> None:
    world = ConsumerWorld()
    one, two = Peer(world, "one", "six"), Peer(world, "two", "six")
    one.beat()
    two.beat()
    one.beat(is_slow=True)
    world.group = world.loaded()
    assert not one.beat()
    assert not two.beat()
    assert one.owned | two.owned == SIX
    world.advance(SESSION_MS)
    assert world.group.is_idle, "sessions began anew at the load"


def test_a_group_is_described_as_it_is_sized() -> None:
    world = ConsumerWorld()
    assert world.group.size_bytes == 0
    one = Peer(world, "one", "six")
    one.beat()
    assert world.group.size_bytes > sizes.MEMBER_BYTES
    one.leave()
    assert world.group.size_bytes == 0


def test_a_static_member_that_leaves_for_now_has_its_session_not_its_rebalance_timeout() -> None:
    world = ConsumerWorld(replace(SETTINGS, consumer_session_timeout_ms=10 * REBALANCE_MS))
    one, two = Peer(world, "one", "six", instance_id="i"), Peer(world, "two", "six")
    one.beat()
    two.beat()
    one.beat(is_slow=True)
    leaves = ConsumerGroupHeartbeatRequest(group_id="g", member_id="one", member_epoch=-2, instance_id="i")
    assert not world.error(leaves)
    world.advance(REBALANCE_MS)
    assert "one" in world.group.members
    world.advance(10 * REBALANCE_MS)
    assert "one" not in world.group.members


@pytest.mark.parametrize("other", ["", "nothing"])
def test_a_member_without_topics_after_a_change_of_its_expression_loses_its_partitions(other: str) -> None:
    world = ConsumerWorld()
    one, two = Peer(world, "one", subscribed_topic_regex="six"), Peer(world, "two", subscribed_topic_regex="six")
    for _ in range(4):
        one.beat()
        two.beat()
    assert one.owned
    changed = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="one", member_epoch=one.epoch, subscribed_topic_regex=other
    )
    assert not world.error(changed)
    for _ in range(4):
        world.advance(SESSION_MS // 2)
        one.beat()
        two.beat()
    assert not one.owned
    assert two.owned == SIX


def test_an_expression_without_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    request = joining("one", subscribed_topic_regex="six.*")
    with pytest.raises(Refused, match="extra `kafka`") as refused:
        ConsumerWorld().request(request)
    assert refused.value.code is Error.INVALID_REGULAR_EXPRESSION


def test_a_costly_expression_is_refused_and_a_resolution_has_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert regexes.regex_error("(.?){1000}(.?){1000}(.?){1000}z") is not None
    monkeypatch.setattr(regexes, "STEP_COST_MAX", 100)
    resolution = regexes.Resolution(
        ["a.*", "b.*", "("], [f"{letter}{number}" for letter in "ab" for number in range(50)]
    )
    steps = 1
    while (found := resolution.step()) is None:
        steps += 1
    assert steps > 10
    assert {pattern: len(names) for pattern, names in found.items()} == {"a.*": 50, "b.*": 50, "(": 0}


def test_the_subscribed_topics_are_computed_once_for_all_offsets() -> None:
    world = ConsumerWorld()
    Peer(world, "one", "six").beat()
    assert world.group._subscribed() is world.group._subscribed()
    assert world.group.is_subscribed("six")
    Peer(world, "two", "two").beat()
    assert world.group.is_subscribed("two"), "a new member changes them"


class CountedAssignments:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compute = groups.computed_targets

        def counted(*facts: Any) -> dict[str, Assignment]:
            self.count += 1
            return compute(*facts)

        monkeypatch.setattr(groups, "computed_targets", counted)


def test_sessions_that_end_one_after_the_other_have_few_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ms one session of a large group ends, and one survivor has a heartbeat."""
    world = ConsumerWorld(replace(SETTINGS, consumer_max_size=200), many=2000)
    peers = [Peer(world, f"m{number:03}", "many") for number in range(200)]
    for each in peers:
        each.beat()
    world.advance(SESSION_MS // 2)
    for each in peers[100:]:
        each.beat()
    for each in peers[:100]:
        world.now_ms += 1
        each.beat()
    world.advance(SESSION_MS - 100)
    for each in peers[100:]:
        each.beat()
    counted, survivors = CountedAssignments(monkeypatch), iter(peers[100:])
    epoch = world.group.epoch
    for _ in range(100):
        world.advance(1)
        next(survivors).beat()
    world.advance(100)
    assert len(world.group.members) == 100
    assert world.group.epoch - epoch >= 50, "the sessions ended at many times"
    assert counted.count <= 3
    world.advance(1000)
    for _ in range(3):
        for each in peers[100:]:
            each.beat()
    assert world.group.state is GroupState.STABLE
    owned = [each for peer in peers[100:] for each in peer.owned]
    assert len(owned) == len(set(owned)) == 2000


def test_many_joins_of_a_large_group_have_few_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ConsumerWorld(replace(SETTINGS, consumer_max_size=200), many=2000)
    counted = CountedAssignments(monkeypatch)
    peers = [Peer(world, f"m{number:03}", "many") for number in range(200)]
    for each in peers:
        each.beat()
        world.advance(1)
    assert counted.count <= 2
    world.advance(1000)
    for _ in range(3):
        for each in peers:
            each.beat()
    assert {len(each.owned) for each in peers} == {10}
    assert world.group.state is GroupState.STABLE


def test_a_small_group_has_an_assignment_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    world, counted = ConsumerWorld(), CountedAssignments(monkeypatch)
    for number in range(3):
        Peer(world, f"m{number}", "six").beat()
    assert (counted.count, world.group.epoch, world.group.assignment_epoch) == (3, 3, 3)


def test_a_change_of_members_with_the_same_topics_computes_no_metadata_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ConsumerWorld(six=6, two=2)
    Peer(world, "one", "six", "two").beat()
    monkeypatch.setattr(groups, "hash_of", lambda topics: pytest.fail("it was computed"))
    two = Peer(world, "two", "six")
    two.beat()
    two.leave()


def short_world() -> tuple[ConsumerWorld, Peer]:
    """Two of eight partitions have no room."""
    world = ConsumerWorld(six=6)
    one = Peer(world, "one", "six")
    one.beat()
    world.is_full, world.topics = True, topics(six=8)
    for _ in range(2):
        one.beat()
    assert len(one.owned) == 6
    world.is_full = False
    return world, one


@pytest.mark.parametrize("event", ["none", "a restart", "a failed write"])
def test_partitions_without_room_are_assigned_once_there_is_room(event: str) -> None:
    world, one = short_world()
    if event == "a restart":
        world.group = world.loaded()
    one.beat(fails=event == "a failed write")
    for _ in range(3):
        one.beat()
    assert len(one.owned) == 8


def test_a_restart_of_a_complete_group_raises_no_epoch() -> None:
    world = ConsumerWorld(six=6)
    one = Peer(world, "one", "six")
    one.beat()
    world.group, epoch = world.loaded(), world.group.epoch
    one.beat()
    assert world.group.epoch == epoch


def crash_after(world: ConsumerWorld, stored: int) -> None:
    """The log has only the first changes."""
    for key, value, _ in world.group.take_changes()[:stored]:
        assert isinstance(key, ConsumerKey)
        if value is None:
            world.stored.pop(key, None)
        else:
            world.stored[key] = value
    world.group = world.loaded()


@pytest.mark.parametrize("stored", range(8))
def test_a_crash_in_the_removal_of_members_leaves_no_partition_without_owner(stored: int) -> None:
    world = ConsumerWorld(six=6)
    peers = [Peer(world, name, "six") for name in ("one", "two", "three")]
    for _ in range(4):
        for each in peers:
            each.beat()
    world.group.remove(["two", "three"], world.topics)
    crash_after(world, stored)
    alive = [each for each in peers if each.member_id in world.group.members]
    for _ in range(4):
        for each in alive:
            each.beat()
    assert sum(len(each.owned) for each in alive) == 6


@pytest.mark.parametrize("stored", range(6))
def test_a_crash_in_the_join_of_a_member_leaves_none_without_its_share(stored: int) -> None:
    world = ConsumerWorld(six=6)
    one, two = Peer(world, "one", "six"), Peer(world, "two", "six")
    one.beat()
    world.group.heartbeat(joining("two", "six"), CLIENT, world.topics, world.now)
    crash_after(world, stored)
    for _ in range(5):
        one.beat()
        two.beat()
    assert (len(one.owned), len(two.owned)) == (3, 3)
