"""Groups of the consumer protocol of a node: durable before the response, taken back on failure, conversions, loads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from consumer_world import CLIENT, SESSION_MS, id_of, joining, topics
from fake_offsets_log import FakeOffsetsLog
from group_world import joining as classic_joining

from local.errors import DiskFailed
from local.names import TopicPartition
from tiered.serve.groups import offsets_writer, room
from tiered.serve.groups.commits import Committer, NewOffset
from tiered.serve.groups.consumer.group import ConsumerGroup
from tiered.serve.groups.consumer.records import ConsumerKey, Kind, encode_consumer_key
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group import Group
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import GroupState, Moment
from tiered.serve.messages.base import Error
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tiered.serve.messages.groups import (
    HeartbeatRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
)

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
P0 = TopicPartition("six", 0)


class World:
    def __init__(self, log: FakeOffsetsLog | None = None) -> None:
        self.ms, self.log, self.topics = 0, log or FakeOffsetsLog(), topics(six=6, two=2)
        self.groups = GroupCoordinator(
            self.log, SETTINGS, topics=lambda: self.topics, now=lambda: Moment(self.ms, 10**12 + self.ms)
        )
        self.later: list[World] = []

    def close(self) -> None:
        self.log.gate.set()
        self.groups.close()
        for each in self.later:
            each.close()

    async def beat(self, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> ConsumerGroupHeartbeatResponse:
        return await self.groups.consumers.heartbeat(request, CLIENT, version, self.topics, lambda name: name != "two")

    async def commit(self, epoch: int = -1, member_id: str = "", offset: int = 5) -> list[Error]:
        committer = Committer(group_id="g", generation=epoch, member_id=member_id)
        return await self.groups.commit(committer, [NewOffset(partition=P0, offset=offset)], is_id_known=True)

    def group(self) -> ConsumerGroup:
        found = self.groups.groups()["g"]
        assert isinstance(found, ConsumerGroup)
        return found

    async def restarted(self) -> World:
        again = World(self.log)
        again.ms = self.ms
        self.later.append(again)
        assert await again.groups.load()
        return again

    async def leave(self, *members: MemberIdentity) -> LeaveGroupResponse:
        return await self.groups.leave(LeaveGroupRequest(group_id="g", members=members))


def run(work: Callable[[World], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        world = World()
        try:
            assert await world.groups.load()
            await work(world)
        finally:
            world.close()

    asyncio.run(all_of_it())


def beating(member_id: str, epoch: int, **fields: object) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)  # type: ignore[arg-type]


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not claim():
            await asyncio.sleep(0.001)


def test_a_heartbeat_is_answered_after_its_changes_are_durable() -> None:
    async def work(world: World) -> None:
        await world.groups.prepare()
        world.log.gate.clear()
        first = asyncio.ensure_future(world.beat(joining("one", "six")))
        second = asyncio.ensure_future(world.beat(joining("two", "six")))
        await until(world.log.waiting.is_set)
        assert not first.done()
        assert not second.done()
        world.log.gate.set()
        assert ((await first).member_epoch, (await second).member_epoch) == (1, 2)
        again = await world.restarted()
        assert again.group().members.keys() == {"one", "two"}
        assert again.group().targets == world.group().targets
        found = await again.beat(beating("two", 2))
        assert (found.error_code, found.member_epoch) == (Error.NONE, 2)

    run(work)


def test_changes_that_cannot_be_stored_are_taken_back() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        world.log.error = DiskFailed("full")
        world.log.gate.clear()
        joins = [asyncio.ensure_future(world.beat(joining(name, "six"))) for name in ("two", "three")]
        await until(lambda: len(world.group().members) == 3)
        world.log.gate.set()
        assert {(await each).error_code for each in joins} == {Error.NOT_COORDINATOR}
        assert (world.group().members.keys(), world.group().epoch) == ({"one"}, 1)
        world.log.error = None
        found = await world.beat(joining("two", "six"))
        assert (found.error_code, found.member_epoch) == (Error.NONE, 2)
        assert (await world.restarted()).group().members.keys() == {"one", "two"}

    run(work)


def test_a_join_that_failed_after_its_write_has_no_ghost_after_the_next_append() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "two"))
        world.log.error, world.log.is_error_late = DiskFailed("flush"), True
        assert (await world.beat(joining("ghost", "two"))).error_code is Error.NOT_COORDINATOR
        assert (await world.restarted()).group().members.keys() == {"one", "ghost"}
        world.log.error = None
        assert (await world.beat(beating("one", 1))).error_code is Error.NONE
        again = (await world.restarted()).group()
        assert again.members.keys() == again.targets.keys() == {"one"}
        assert (again.epoch, again.assignment_epoch) == (1, 1)

    run(work)


def test_a_leave_that_failed_after_its_write_leaves_a_whole_member() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "two"))
        world.log.error, world.log.is_error_late = DiskFailed("flush"), True
        assert (await world.beat(beating("one", -1))).error_code is Error.NOT_COORDINATOR
        world.log.error = None
        world.topics = topics(six=6, two=3)
        assert (await world.beat(beating("one", 1))).member_epoch == 2
        again = await world.restarted()
        assert again.group().members.keys() == {"one"}
        assert again.group().current("one").assigned == {id_of("two"): frozenset(range(3))}

    run(work)


def test_a_group_that_never_existed_leaves_no_record_of_its_failed_append() -> None:
    async def work(world: World) -> None:
        await world.groups.prepare()
        world.log.error, world.log.is_error_late = DiskFailed("flush"), True
        assert (await world.beat(joining("ghost", "two"))).error_code is Error.NOT_COORDINATOR
        world.log.error = None
        await world.beat(joining("one", "two"))
        again = (await world.restarted()).group()
        assert again.members.keys() == again.targets.keys() == {"one"}

    run(work)


def test_an_assignment_without_its_member_is_dropped_by_a_load() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "two"))
        member = encode_consumer_key(ConsumerKey(Kind.MEMBER, "g", "one"))
        world.log.append(world.groups.partition_of("g").partition, [(member, None)], now_ms=0)
        again = await world.restarted()
        assert not again.group().members
        found = await again.beat(joining("other", "two"))
        assert found.assignment is not None
        assert found.assignment.topic_partitions == (TopicPartitions(topic_id=id_of("two"), partitions=(0, 1)),)
        keys = {each.key for each in world.log.records() if each.value is None}
        assert encode_consumer_key(ConsumerKey(Kind.CURRENT, "g", "one")) in keys

    run(work)


def test_a_large_write_of_one_group_does_not_fail_the_writes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_writer, "RECORD_BYTES_MAX", 2000)

    async def work(world: World) -> None:
        await world.groups.prepare()
        world.log.gate.clear()
        large = [f"n{number}" + "x" * 200 for number in range(20)]
        joins = [joining("one", "two"), replace(joining("evil", *large), group_id="evil")]
        answers = [asyncio.ensure_future(world.beat(each)) for each in joins]
        await asyncio.wait(answers[1:])
        world.log.gate.set()
        assert [(await each).error_code for each in answers] == [Error.NONE, Error.UNKNOWN_SERVER_ERROR]
        assert (await world.restarted()).groups.groups().keys() == {"g"}

    run(work)


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250])
def test_invalid_topic_names_are_refused(name: str) -> None:
    async def work(world: World) -> None:
        assert (await world.beat(joining("one", name))).error_code is Error.INVALID_REQUEST

    run(work)


def test_writes_in_the_durable_batches_of_a_failed_append_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_writer, "BATCH_BYTES_MAX", 200)

    async def work(world: World) -> None:
        await world.commit()
        world.log.gate.clear()
        world.log.waiting.clear()
        first = asyncio.ensure_future(world.commit(offset=6))
        await until(world.log.waiting.is_set)
        later = [asyncio.ensure_future(world.commit(offset=each)) for each in (7, 8)]
        await asyncio.sleep(0)  # both are submitted
        world.log.error, world.log.error_after = DiskFailed("full"), 2
        world.log.gate.set()
        assert await first == [Error.NONE]
        assert [await each for each in later] == [[Error.NONE], [Error.NOT_COORDINATOR]]
        world.log.error = None
        assert world.groups.offsets_of("g")[P0].value.offset == 7

    run(work)


def test_a_removal_that_cannot_be_stored_is_tried_again() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        world.log.error, world.ms = DiskFailed("full"), SESSION_MS
        world.groups.advance()
        await until(lambda: not world.groups.consumers.is_busy(world.group()))
        assert world.group().members.keys() == {"one"}
        world.log.error, world.ms = None, 2 * SESSION_MS
        world.groups.advance()
        await until(lambda: not world.groups.consumers.is_busy(world.group()))
        assert not world.group().members

    run(work)


def test_a_group_whose_first_member_cannot_be_stored_does_not_exist() -> None:
    async def work(world: World) -> None:
        await world.groups.prepare()
        world.log.error = DiskFailed("full")
        assert (await world.beat(joining("one", "six"))).error_code is Error.NOT_COORDINATOR
        assert not world.groups.groups()
        long = replace(joining("one", "six"), member_id="x" * 40_000)
        assert (await world.beat(long)).error_code is Error.UNKNOWN_SERVER_ERROR
        assert not world.groups.groups()

    run(work)


def test_an_empty_classic_group_becomes_a_consumer_group_with_its_offsets() -> None:
    async def work(world: World) -> None:
        assert await world.commit() == [Error.NONE]
        assert isinstance(world.groups.groups()["g"], Group)
        world.log.error = DiskFailed("full")
        assert (await world.beat(joining("one", "six"))).error_code is Error.NOT_COORDINATOR
        assert isinstance(world.groups.groups()["g"], Group), "the conversion failed"
        world.log.error = None
        assert not (await world.beat(joining("one", "six"))).error_code
        again = await world.restarted()
        for each in (world, again):
            assert isinstance(each.groups.groups()["g"], ConsumerGroup)
            assert each.groups.offsets_of("g")[P0].value.offset == 5

    run(work)


def test_a_classic_group_with_members_refuses_members_of_the_other_protocol() -> None:
    async def work(world: World) -> None:
        await world.groups.prepare()
        joined = asyncio.ensure_future(world.groups.join(classic_joining(), CLIENT, 3))
        await asyncio.sleep(0)
        world.ms += 1
        world.groups.advance()
        await joined
        found = await world.beat(joining("one", "six"))
        assert (found.error_code, found.error_message) == (
            Error.GROUP_ID_NOT_FOUND,
            "Cannot upgrade classic group g to consumer group because online upgrade is disabled.",
        )
        assert (await world.beat(beating("one", 1))).error_message == "Group g is not a consumer group."

    run(work)


def test_a_consumer_group_becomes_a_classic_one_when_it_is_empty() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        assert await world.commit(1, "one") == [Error.NONE]
        refused = await world.groups.join(classic_joining(), CLIENT, 9)
        assert refused.error_code is Error.INCONSISTENT_GROUP_PROTOCOL
        await world.beat(beating("one", -1))
        found = await world.groups.join(classic_joining(), CLIENT, 9)
        assert found.error_code is Error.MEMBER_ID_REQUIRED
        assert isinstance(world.groups.groups()["g"], Group)
        assert await world.commit(offset=6) == [Error.NONE]  # after the tombstones
        again = await world.restarted()
        assert isinstance(again.groups.groups()["g"], Group)
        assert again.groups.offsets_of("g")[P0].value.offset == 6

    run(work)


def test_tombstones_of_a_conversion_that_failed_are_written_when_the_group_is_deleted() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        await world.beat(beating("one", -1))
        world.log.error = DiskFailed("full")
        await world.groups.join(classic_joining(), CLIENT, 9)
        await world.commit()  # fails after the tombstones
        world.log.error = None
        assert await world.groups.delete_groups(["g"]) == [Error.NONE]
        assert not (await world.restarted()).groups.groups()

    run(work)


def test_members_are_unknown_to_the_classic_protocol_but_an_administrator_removes_them() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        await world.beat(joining("two", "six", instance_id="i"))
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="one")
        assert world.groups.heartbeat(beat) is Error.UNKNOWN_MEMBER_ID
        sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="one")
        assert (await world.groups.sync(sync)).error_code is Error.UNKNOWN_MEMBER_ID
        left = await world.leave(
            MemberIdentity(member_id="nobody"),
            MemberIdentity(member_id="", group_instance_id="j"),
            MemberIdentity(member_id="one", group_instance_id="i"),
            MemberIdentity(member_id="", group_instance_id="i"),
            MemberIdentity(member_id="one"),
        )
        assert [each.error_code for each in left.members] == [
            Error.UNKNOWN_MEMBER_ID,
            Error.UNKNOWN_MEMBER_ID,
            Error.FENCED_INSTANCE_ID,
            Error.NONE,
            Error.NONE,
        ]
        assert (await world.restarted()).group().is_idle

    run(work)


def test_commits_and_reads_need_the_epoch() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        assert await world.commit(1, "one") == [Error.NONE]
        assert await world.commit(2, "one") == [Error.STALE_MEMBER_EPOCH]
        assert await world.commit() == [Error.UNKNOWN_MEMBER_ID]
        assert world.groups.check_fetch("g", "one", 1) is Error.NONE
        assert world.groups.check_fetch("g", "one", 2) is Error.STALE_MEMBER_EPOCH
        assert world.groups.check_fetch("none", "one", 2) is Error.NONE

    run(work)


def test_a_commit_in_a_transaction_needs_the_epoch_if_it_names_a_member() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        where = world.groups.partition_of("g")

        async def commit(epoch: int, member_id: str) -> list[Error]:
            committer = Committer(group_id="g", generation=epoch, member_id=member_id)
            offsets = [NewOffset(partition=P0, offset=7)]
            return await world.groups.commit_transactional(committer, 9, 0, offsets, partition=where)

        assert await commit(2, "one") == [Error.ILLEGAL_GENERATION]
        assert await commit(1, "two") == [Error.UNKNOWN_MEMBER_ID]
        assert await commit(1, "one") == [Error.NONE]
        assert await commit(-1, "") == [Error.NONE]
        assert world.groups.is_unstable("g", P0)

    run(work)


def test_sessions_end_and_an_empty_group_is_deleted_with_its_records() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        assert await world.groups.delete_groups(["g"]) == [Error.NON_EMPTY_GROUP]
        world.ms += SESSION_MS
        world.groups.advance()
        await until(lambda: not world.groups.consumers.is_busy(world.group()))
        assert world.group().state is GroupState.EMPTY
        assert (await world.restarted()).group().is_idle
        assert await world.groups.delete_groups(["g"]) == [Error.NONE]
        assert not world.groups.groups()
        assert not (await world.restarted()).groups.groups()

    run(work)


def test_an_empty_group_without_offsets_expires() -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        assert await world.commit(1, "one") == [Error.NONE]
        await world.beat(beating("one", -1))
        world.ms += SETTINGS.offsets_retention_ms - 1
        world.groups.expire()
        await asyncio.sleep(0.01)
        assert "g" in world.groups.groups()
        world.ms += 1
        world.groups.expire()
        await until(lambda: "g" not in world.groups.groups())
        assert not (await world.restarted()).groups.groups()

    run(work)


def test_expressions_match_only_what_the_client_may_see() -> None:
    async def work(world: World) -> None:
        request = joining("one", subscribed_topic_names=None, subscribed_topic_regex="...")
        found = await world.beat(request)
        assert (found.member_epoch, found.assignment and found.assignment.topic_partitions) == (1, ())
        await until(lambda: world.group().epoch == 2 and not world.groups.consumers.is_busy(world.group()))
        found = await world.beat(beating("one", 1))
        assert found.assignment is not None
        assert [each.topic_id for each in found.assignment.topic_partitions] == [id_of("six")]
        assert (await world.restarted()).group().regexes == world.group().regexes
        await world.beat(beating("one", -1))
        assert not (await world.restarted()).group().regexes

    run(work)


def test_the_node_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        monkeypatch.setattr(room, "GROUPS_MAX", 1)
        assert not (await world.beat(joining("one", "six"))).error_code
        other = replace(joining("one", "six"), group_id="other")
        assert (await world.beat(other)).error_code is Error.GROUP_MAX_SIZE_REACHED
        monkeypatch.setattr(room, "MEMBER_BYTES_MAX", 5000)
        assert (await world.beat(joining("two", "six"))).error_code is Error.GROUP_MAX_SIZE_REACHED
        assert not (await world.beat(beating("one", 1))).error_code

    run(work)


def full(world: World, monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Leave room for `free_bytes` of members."""
    monkeypatch.setattr(room, "MEMBER_BYTES_MAX", world.groups._room._total + free_bytes)


def is_within_its_limit(world: World) -> bool:
    return world.groups._room._total <= room.MEMBER_BYTES_MAX


@pytest.mark.parametrize("name", ["subscribed_topic_regex", "instance_id", "rack_id", "member_id"])
def test_the_texts_of_a_member_count_before_it_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        full(world, monkeypatch, 6000)
        request = replace(joining("two", "six"), **{name: "x" * 1900})
        assert not (await world.beat(request)).error_code
        await world.beat(beating("two" if name != "member_id" else "x" * 1900, -1, instance_id=request.instance_id))
        full(world, monkeypatch, 3500)
        found = await world.beat(request)
        assert found.error_code is Error.GROUP_MAX_SIZE_REACHED
        assert world.group().members.keys() == {"one"}
        assert not (await world.beat(beating("one", 1))).error_code
        assert is_within_its_limit(world)

    run(work)


def test_a_member_that_asks_for_more_partitions_than_the_node_has_room_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        world.topics = topics(six=6, two=2, large=1000)
        await world.beat(joining("one", "six"))
        full(world, monkeypatch, 100_000)
        before = world.group().size_bytes
        for request in (joining("two", "large"), beating("one", 1, subscribed_topic_names=("large",))):
            found = await world.beat(request)
            assert found.error_code is Error.GROUP_MAX_SIZE_REACHED
            assert found.error_message == "The node has no room for more members and partitions."
        found = await world.beat(replace(joining("two", "large"), group_id="new"))
        assert found.error_code is Error.GROUP_MAX_SIZE_REACHED
        assert (world.group().members.keys(), world.group().epoch, world.group().size_bytes) == ({"one"}, 1, before)
        assert world.groups.groups().keys() == {"g"}
        assert not (await world.beat(beating("one", 1))).error_code
        full(world, monkeypatch, 1_000_000)
        assert not (await world.beat(joining("two", "large"))).error_code
        assert len(world.group().targets["two"][id_of("large")]) == 1000
        assert is_within_its_limit(world)
        assert (await world.restarted()).group().targets == world.group().targets

    run(work)


def test_partitions_that_were_created_without_room_are_assigned_once_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        await world.beat(joining("one", "six"))
        await world.beat(joining("two", "six"))
        full(world, monkeypatch, 2000)
        world.topics = topics(six=1000, two=2)
        for _ in range(3):
            for name in ("one", "two"):
                found = await world.beat(beating(name, world.group().current(name).epoch, topic_partitions=()))
                assert not found.error_code
        assert sum(len(each[id_of("six")]) for each in world.group().targets.values()) == 6
        assert world.group().reservation.is_short
        assert is_within_its_limit(world)
        await world.beat(beating("two", -1))
        await world.beat(beating("one", world.group().current("one").epoch, topic_partitions=()))
        assert world.group().targets["one"] == {id_of("six"): frozenset(range(6))}, "the others are assigned anew"
        monkeypatch.setattr(room, "MEMBER_BYTES_MAX", 64 << 20)
        await world.beat(beating("one", world.group().current("one").epoch, topic_partitions=()))
        assert len(world.group().targets["one"][id_of("six")]) == 1000
        assert not world.group().reservation.is_short

    run(work)


def test_the_names_that_an_expression_matches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        world.topics = topics(six=6, two=2)
        await world.beat(joining("one", "six"))
        world.topics = topics(six=6, two=2, **{f"n{number}": 1 for number in range(500)})
        full(world, monkeypatch, 20_000)
        request = joining("two", subscribed_topic_names=None, subscribed_topic_regex="n.*")
        assert not (await world.beat(request)).error_code
        await until(lambda: not world.group().is_resolving)
        await until(lambda: not world.groups.consumers.is_busy(world.group()))
        found = await world.beat(beating("two", world.group().current("two").epoch))
        assert found.error_code is Error.GROUP_MAX_SIZE_REACHED
        assert found.error_message == "The node has no room for the topics that SubscribedTopicRegex `n.*` matches."
        assert not world.group().regexes
        assert is_within_its_limit(world)
        assert not (await world.beat(beating("one", 1, topic_partitions=()))).error_code
        assert not world.group().is_resolving, "not with each heartbeat again"
        monkeypatch.setattr(room, "MEMBER_BYTES_MAX", 64 << 20)
        world.ms += 10_000
        assert not (await world.beat(beating("two", world.group().current("two").epoch))).error_code
        await until(lambda: bool(world.group().regexes))
        assert len(world.group().regexes["n.*"].topics) == 500

    run(work)


def test_an_expression_that_matches_more_names_than_there_is_room_for_retains_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        request = joining("one", subscribed_topic_names=None, subscribed_topic_regex="...|n.*")
        await world.beat(request)
        await until(lambda: bool(world.group().regexes))
        await until(lambda: not world.groups.consumers.is_busy(world.group()))
        await world.beat(beating("one", 1, topic_partitions=()))
        full(world, monkeypatch, 20_000)
        world.topics = topics(six=6, two=2, **{f"n{number}": 1 for number in range(500)})
        world.ms += 10_000
        for _ in range(3):
            found = await world.beat(beating("one", world.group().current("one").epoch, topic_partitions=()))
            assert not found.error_code
            await until(lambda: not world.group().is_resolving)
        assert world.group().regexes["...|n.*"].topics == ("six",)
        assert world.group().current("one").assigned == {id_of("six"): frozenset(range(6))}
        assert is_within_its_limit(world)

    run(work)


def test_the_names_of_groups_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        await world.groups.prepare()
        monkeypatch.setattr(room, "MEMBER_BYTES_MAX", 50_000)
        names = [f"{number}" + "x" * 20_000 for number in range(3)]
        codes = []
        for name in names:
            committer = Committer(group_id=name)
            codes += await world.groups.commit(committer, [NewOffset(partition=P0, offset=5)])
        assert codes == [Error.NONE, Error.NONE, Error.INVALID_COMMIT_OFFSET_SIZE]
        found = await world.beat(replace(joining("one", "six"), group_id=names[2]))
        assert found.error_code is Error.GROUP_MAX_SIZE_REACHED

    run(work)


def test_members_that_are_removed_together_have_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        for number in range(20):
            await world.beat(joining(f"m{number}", "six"))
        epoch, appends = world.group().epoch, len(world.log.records())
        left = await world.leave(*(MemberIdentity(member_id=f"m{number}") for number in (0, 1, 2, 1, 99)))
        codes = [each.error_code for each in left.members]
        assert codes == [Error.NONE] * 3 + [Error.UNKNOWN_MEMBER_ID] * 2
        assert world.group().epoch == epoch + 1
        world.ms += SESSION_MS
        world.groups.advance()
        await until(lambda: not world.groups.consumers.is_busy(world.group()))
        assert (world.group().state, world.group().epoch) == (GroupState.EMPTY, epoch + 2)
        assert len(world.log.records()) - appends == 20 * 3 + 2, "the tombstones and two epochs"
        assert (await world.restarted()).group().is_idle

    run(work)


def test_old_clients_get_a_member_id() -> None:
    async def work(world: World) -> None:
        found = await world.beat(joining("", "six"), version=0)
        assert len(found.member_id or "") == 22
        assert (await world.beat(joining("", "six"), version=1)).error_code is Error.INVALID_REQUEST
        assert (await world.beat(joining(" ", "six"), version=1)).error_message == "MemberId can't be empty."

    run(work)


def test_nothing_is_answered_before_the_load() -> None:
    async def work() -> None:
        world = World()
        try:
            assert (await world.beat(joining("one", "six"))).error_code is Error.COORDINATOR_LOAD_IN_PROGRESS
        finally:
            world.close()

    asyncio.run(work())


@pytest.mark.parametrize("is_new", [True, False])
def test_a_member_that_could_not_be_stored_takes_no_room(is_new: bool) -> None:
    async def work(world: World) -> None:
        world.topics = topics(six=6, big=10_000)
        if is_new:
            await world.commit()  # a classic group, which the failed write leaves
        else:
            await world.beat(joining("one", "six"))
        before = world.groups._room._total
        world.log.error = DiskFailed("the disk is full")
        assert (await world.beat(joining("two", "big"))).error_code
        assert world.groups._room._total == before

    run(work)


def test_a_description_counts_the_bytes_of_a_response_and_not_those_of_memory() -> None:
    async def work(world: World) -> None:
        world.topics = topics(big=10_000)
        await world.beat(joining("one", "big"))
        group, of_partitions = world.group(), 2 * 10_000 * 4  # in the assignment and in the target
        assert of_partitions < group.described_bytes < group.size_bytes / 2

    run(work)
