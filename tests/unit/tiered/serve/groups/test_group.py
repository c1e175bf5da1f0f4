"""One group: joins, syncs, sessions, rebalances, static members, limits."""

from __future__ import annotations

import pytest
from group_world import DELAY_MS, REBALANCE_MS, SESSION_MS, SETTINGS, WALL_MS, GroupWorld, protocols, subscription

from tiered.serve.groups.group import NEW_MEMBER_JOIN_MS, Group
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import TRANSITIONS, GroupState, Moment
from tiered.serve.groups.offsets_records import GroupValue, MemberValue
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import MemberIdentity

E, S = Error, GroupState


def world_in(state: GroupState) -> tuple[GroupWorld, str]:
    """A group in the state, with the id of its member ("nobody" without one)."""
    world = GroupWorld()
    if state is S.EMPTY:
        return world, "nobody"
    if state is S.DEAD:
        world.group.die()
        return world, "nobody"
    if state is S.COMPLETING_REBALANCE:
        member = world.member()
        world.join(member)
        world.advance(DELAY_MS)
        return world, member
    member, other = world.stable(2)
    if state is S.PREPARING_REBALANCE:
        world.join(member, protocols=protocols("range", metadata=subscription("more")))
        member = other
    assert world.group.state is state
    return world, member


@pytest.mark.parametrize(
    ("state", "beat", "sync", "commit", "simple_commit"),
    [
        (S.EMPTY, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.NONE),
        (S.PREPARING_REBALANCE, E.REBALANCE_IN_PROGRESS, E.REBALANCE_IN_PROGRESS, E.NONE, E.UNKNOWN_MEMBER_ID),
        (S.COMPLETING_REBALANCE, E.NONE, None, E.REBALANCE_IN_PROGRESS, E.UNKNOWN_MEMBER_ID),
        (S.STABLE, E.NONE, E.NONE, E.NONE, E.UNKNOWN_MEMBER_ID),
        (S.DEAD, *[E.COORDINATOR_NOT_AVAILABLE] * 4),
    ],
)
def test_each_state_answers_members_by_the_table(
    state: GroupState, beat: Error, sync: Error | None, commit: Error, simple_commit: Error
) -> None:
    world, member = world_in(state)
    assert world.beat(member) is beat
    assert world.group.check_commit(world.group.generation, member, None) is commit
    assert world.group.check_commit(-1, "", None) is simple_commit
    world.holds = True
    waiter = world.sync(member)
    assert (world.sync_answer(waiter).error_code if sync is not None else None) is sync
    assert (waiter in world.answers) is (sync is not None)


@pytest.mark.parametrize("state", list(TRANSITIONS))
@pytest.mark.parametrize("target", list(S))
def test_only_transitions_of_the_table_are_made(state: GroupState, target: GroupState) -> None:
    world, _ = world_in(state)
    if target in TRANSITIONS[state]:
        world.group._transition(target, WALL_MS)
        assert world.group.state is target
    else:
        with pytest.raises(AssertionError):
            world.group._transition(target, WALL_MS)


@pytest.mark.parametrize("version", [0, 3])
def test_an_old_client_joins_without_a_member_id(version: int) -> None:
    world = GroupWorld()
    waiter = world.join(version=version)
    world.advance(DELAY_MS)
    found = world.join_answer(waiter)
    assert (found.error_code, found.generation_id, found.leader) == (E.NONE, 1, found.member_id)
    assert [each.member_id for each in found.members] == [found.member_id]


def test_a_new_client_joins_with_the_member_id_that_it_gets() -> None:
    world = GroupWorld()
    member = world.member()
    assert world.group.state is S.EMPTY
    waiter = world.join(member)
    world.advance(DELAY_MS)
    assert world.join_answer(waiter).member_id == member


def test_a_member_id_that_is_not_used_expires() -> None:
    world = GroupWorld()
    member = world.member()
    assert not world.group.is_idle
    world.advance(SESSION_MS)
    assert world.group.is_idle
    assert world.joined(member).error_code is E.UNKNOWN_MEMBER_ID


def test_the_first_rebalance_waits_for_members_up_to_the_rebalance_timeout() -> None:
    world = GroupWorld()
    waiters = [world.join(version=3)]
    for at in range(3):
        world.advance(DELAY_MS - 1)
        waiters.append(world.join(version=3))
        world.advance(1)
        assert not world.answers, at
    world.advance(DELAY_MS)
    assert {world.join_answer(each).generation_id for each in waiters} == {1}
    world = GroupWorld()
    early = world.join(version=3, rebalance_timeout_ms=2 * DELAY_MS)
    world.advance(DELAY_MS - 1)
    world.join(version=3, rebalance_timeout_ms=2 * DELAY_MS)
    world.advance(DELAY_MS)
    world.join(version=3, rebalance_timeout_ms=2 * DELAY_MS)
    world.advance(1)
    assert world.join_answer(early).generation_id == 1, "the delay has a limit"


def test_the_assignment_of_the_leader_reaches_members_after_it_is_durable() -> None:
    world = GroupWorld()
    ids = [world.member() for _ in range(2)]
    waiters = [world.join(each) for each in ids]
    world.advance(3 * DELAY_MS)
    leader = world.join_answer(waiters[0]).leader
    (follower,) = set(ids) - {leader}
    assert [len(world.join_answer(each).members) for each in waiters] == [2 if i == leader else 0 for i in ids]
    world.holds = True
    first, second = world.sync(follower), world.sync(leader, {leader: b"a", follower: b"b"})
    assert not {first, second} & world.answers.keys()
    (store,) = world.stores
    assert {each.member_id: each.assignment for each in store.value.members} == {leader: b"a", follower: b"b"}
    world.store()
    assert world.group.state is S.STABLE
    assert (world.sync_answer(first).assignment, world.sync_answer(second).assignment) == (b"b", b"a")


def test_an_assignment_that_cannot_be_stored_begins_a_rebalance() -> None:
    world, leader = world_in(S.COMPLETING_REBALANCE)
    world.holds = True
    waiter = world.sync(leader, {leader: b"a"})
    world.store(E.NOT_COORDINATOR)
    assert world.sync_answer(waiter).error_code is E.NOT_COORDINATOR
    assert world.group.state is S.PREPARING_REBALANCE
    again = world.join(leader)
    assert world.join_answer(again).generation_id == 2


def test_a_second_sync_of_the_leader_does_not_store_another_assignment() -> None:
    world, leader = world_in(S.COMPLETING_REBALANCE)
    world.holds = True
    first = world.sync(leader, {leader: b"a"})
    second = world.sync(leader, {leader: b"b"})
    assert len(world.stores) == 1
    world.store()
    assert world.sync_answer(first).error_code is E.REBALANCE_IN_PROGRESS
    assert world.sync_answer(second).assignment == b"a"


def test_members_that_do_not_join_a_rebalance_in_time_are_removed() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    waiter = world.join(leader)
    for _ in range(REBALANCE_MS // SESSION_MS + 1):
        assert waiter not in world.answers
        assert world.beat(follower) is E.REBALANCE_IN_PROGRESS
        world.advance(SESSION_MS - 1)
    assert world.join_answer(waiter).generation_id == 2
    assert list(world.group.members) == [leader]


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    world.advance(SESSION_MS - 1)
    assert world.beat(follower) is E.NONE
    world.advance(1)
    assert world.group.state is S.PREPARING_REBALANCE
    assert world.beat(leader) is E.UNKNOWN_MEMBER_ID
    waiter = world.join(follower)
    assert world.join_answer(waiter).leader == follower


def test_a_commit_keeps_a_member_alive() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    for _ in range(5):
        world.advance(SESSION_MS - 1)
        world.group.committed(member, world.now)
    assert world.group.state is S.STABLE


def test_a_new_member_that_never_returns_is_removed_in_the_end() -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    lost = world.join(version=3)
    for _ in range(NEW_MEMBER_JOIN_MS // SESSION_MS + 1):
        world.beat(leader)
        if world.group.state is S.PREPARING_REBALANCE:
            world.join(leader)
        world.advance(SESSION_MS)
    assert lost in world.answers


def test_members_that_fetch_no_assignment_are_removed() -> None:
    world, leader = world_in(S.COMPLETING_REBALANCE)
    for _ in range(REBALANCE_MS // SESSION_MS):
        world.beat(leader)
        world.advance(SESSION_MS)
    assert world.group.state is S.EMPTY
    assert not world.group.members
    assert world.values[-1].value == GroupValue(
        protocol_type="consumer", generation=2, state_ms=world.group.state_ms, members=()
    )


def test_a_member_that_waits_for_the_leader_is_alive() -> None:
    world = GroupWorld()
    ids = [world.member() for _ in range(2)]
    waiters = [world.join(each) for each in ids]
    world.advance(3 * DELAY_MS)
    leader = world.join_answer(waiters[0]).leader
    (follower,) = set(ids) - {leader}
    waiter = world.sync(follower)
    for _ in range(3):
        world.beat(leader)
        world.advance(SESSION_MS - 1)
    assert follower in world.group.members
    world.sync(leader, {follower: b"b"})
    assert world.sync_answer(waiter).assignment == b"b"
    world.advance(SESSION_MS)
    assert follower not in world.group.members, "its session began with the answer"


@pytest.mark.parametrize(
    ("request_fields", "error"),
    [
        ({"protocols": protocols("own")}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "group_instance_id": "one"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_does_not_fit_is_refused(request_fields: dict[str, object], error: Error) -> None:
    world = GroupWorld()
    world.stable()
    assert world.joined(**request_fields).error_code is error
    assert world.group.state is S.STABLE


def test_the_protocol_with_the_most_votes_is_selected() -> None:
    world = GroupWorld()
    for names in (("range", "sticky"), ("sticky", "range"), ("sticky", "other", "range")):
        world.join(version=3, protocols=protocols(*names))
    world.advance(DELAY_MS * 4)
    assert world.group.protocol == "sticky"


def test_a_full_group_takes_no_more_members() -> None:
    world = GroupWorld()
    members = world.stable(SETTINGS.max_size)
    assert world.joined().error_code is E.GROUP_MAX_SIZE_REACHED
    assert world.joined(version=3).error_code is E.GROUP_MAX_SIZE_REACHED
    assert world.joined(members[1]).error_code is E.NONE


def test_clients_that_only_fetch_member_ids_are_bounded() -> None:
    world = GroupWorld()
    for _ in range(SETTINGS.max_size):
        world.member()
    assert world.joined().error_code is E.GROUP_MAX_SIZE_REACHED
    world.advance(SESSION_MS)
    world.member()


def test_a_static_member_restarts_without_a_rebalance() -> None:
    world = GroupWorld()
    first = world.join(group_instance_id="one")
    world.advance(DELAY_MS)
    former = world.join_answer(first).member_id
    world.sync(former, {former: b"a"}, group_instance_id="one")
    found = world.joined(group_instance_id="one")
    assert (found.error_code, found.generation_id, found.skip_assignment) == (E.NONE, 1, True)
    assert found.leader == found.member_id != former
    assert world.group.state is S.STABLE
    assert world.beat(former, group_instance_id="one") is E.FENCED_INSTANCE_ID
    assert world.group.check_commit(1, former, "one") is E.FENCED_INSTANCE_ID
    assert world.beat(found.member_id, group_instance_id="one") is E.NONE
    waiter = world.sync(found.member_id, group_instance_id="one")
    assert world.sync_answer(waiter).assignment == b"a"
    older = world.joined(version=8, group_instance_id="one")
    assert older.leader == found.member_id != older.member_id, "an old client must not learn that it leads"


def test_a_restart_that_cannot_be_stored_leaves_the_former_member() -> None:
    world = GroupWorld()
    first = world.join(group_instance_id="one")
    world.advance(DELAY_MS)
    former = world.join_answer(first).member_id
    world.sync(former, {former: b"a"})
    world.holds = True
    waiter = world.join(group_instance_id="one")
    world.store(E.NOT_COORDINATOR)
    assert world.join_answer(waiter).error_code is E.NOT_COORDINATOR
    assert world.beat(former, group_instance_id="one") is E.NONE


def test_a_static_member_that_is_absent_stays_until_its_session_ends() -> None:
    world = GroupWorld()
    for name in ("one", "two"):
        world.join(group_instance_id=name)
    world.advance(3 * DELAY_MS)
    one, two = (world.group.roster.static[each] for each in ("one", "two"))
    world.sync(one, {one: b"a", two: b"b"})
    world.sync(two)
    waiter = world.join(one, group_instance_id="one")
    assert waiter not in world.answers
    world.advance(SESSION_MS)
    assert world.join_answer(waiter).generation_id == 2
    assert list(world.group.members) == [one]


def test_an_administrator_removes_members_by_instance() -> None:
    world = GroupWorld()
    world.join(group_instance_id="one")
    world.advance(DELAY_MS)
    found = world.leave(MemberIdentity(member_id="", group_instance_id="one"), "nobody", "")
    assert [each.error_code for each in found.members] == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
    assert world.group.state is S.EMPTY


def test_a_group_of_a_record_is_stable_and_its_sessions_begin_anew() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    value = world.group.value()
    again = GroupWorld()
    again.group = Group.stored("g", value, SETTINGS, lambda prefix: prefix, Moment(0, WALL_MS))
    assert again.group.state is S.STABLE
    assert again.group.value() == value
    assert again.group.described() == world.group.described()
    assert again.beat(leader) is E.NONE
    again.advance(SESSION_MS - 1)
    assert again.beat(leader) is E.NONE
    again.advance(1)
    assert follower not in again.group.members


def test_a_stored_group_above_the_limit_rebalances() -> None:
    world = GroupWorld()
    world.stable(3)
    small = GroupSettings(max_size=2)
    group = Group.stored("g", world.group.value(), small, lambda prefix: prefix, Moment(0, WALL_MS))
    assert group.state is S.PREPARING_REBALANCE


@pytest.mark.parametrize(
    ("world_state", "topic", "expected"),
    [
        (S.EMPTY, "orders", "state"),
        (S.STABLE, "orders", None),
        (S.STABLE, "other", "commit"),
        (S.PREPARING_REBALANCE, "other", None),
    ],
)
def test_the_retention_of_an_offset_begins_by_the_state(world_state: S, topic: str, expected: str | None) -> None:
    world, member = world_in(S.STABLE)
    if world_state is S.EMPTY:
        world.leave(*list(world.group.members))
    elif world_state is S.PREPARING_REBALANCE:
        world.leave(member)
    bases = {"state": world.group.state_ms, "commit": 5, None: None}
    assert world.group.expiry_base_ms(5, topic) == bases[expected]
    assert GroupWorld().group.expiry_base_ms(5, topic) == 5, "a group without members has no protocol"


def test_a_subscription_that_cannot_be_read_protects_every_topic() -> None:
    world = GroupWorld()
    world.stable(protocols=protocols("range", metadata=b"\0\0\0\0\0\x09"))
    assert world.group.is_subscribed("any")
    assert world.group.expiry_base_ms(5, "any") is None


def test_members_of_a_record_without_rebalance_timeout_have_that_of_the_session() -> None:
    member = MemberValue(member_id="m", rebalance_timeout_ms=7, session_timeout_ms=7)
    value = GroupValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=(member,))
    group = Group.stored("g", value, SETTINGS, lambda prefix: prefix, Moment(0, WALL_MS))
    assert group.roster.rebalance_timeout_ms == 7
    assert group.described().members[0].client_id == ""
