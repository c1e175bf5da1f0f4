"""All groups of a node: loading, durable commits, transactions, deletion, expiry, limits, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest
from fake_offsets_log import FakeOffsetsLog
from group_world import CLIENT, SESSION_MS, joining, protocols, syncing

from local.errors import Corrupt, DiskFailed, InvalidRequest, NotFound, Unavailable
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.serve.groups import coordinator as coordinators
from tiered.serve.groups import room
from tiered.serve.groups.commits import Committer, NewOffset
from tiered.serve.groups.committed import CommittedOffsets
from tiered.serve.groups.consumer.membership import AnyGroup
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import GroupState, Moment
from tiered.serve.groups.offsets_records import GroupKey, OffsetKey, decode_key
from tiered.serve.messages.base import Error
from tiered.serve.messages.groups import HeartbeatRequest, LeaveGroupRequest, MemberIdentity
from tiered.serve.record_source import ServedTopic

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, offset_metadata_max_bytes=10, max_size=3)
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
DAY_MS = 24 * 3_600_000
SIMPLE = Committer(group_id="g")


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> Moment:
        return Moment(self.ms, 10**12 + self.ms)


class World:
    def __init__(self, log: FakeOffsetsLog | None = None, settings: GroupSettings = SETTINGS) -> None:
        self.clock, self.log = Clock(), log or FakeOffsetsLog()
        self.topics: dict[str, ServedTopic] | None = None
        self.groups = GroupCoordinator(self.log, settings, topics=lambda: self.topics, now=self.clock)
        self.later: list[World] = []

    def close(self) -> None:
        self.groups.close()
        for each in self.later:
            each.close()

    def advance(self, ms: int) -> None:
        self.clock.ms += ms
        self.groups.advance()

    async def restarted(self, topics: dict[str, ServedTopic] | None = None) -> World:
        """Another coordinator over the same log, as after a crash."""
        again = World(self.log, self.groups.settings)
        self.later.append(again)
        again.clock.ms, again.topics = self.clock.ms, topics
        assert await again.groups.load()
        return again

    async def member(self, group_id: str = "g", **fields: object) -> str:
        """The only member of a stable group."""
        request = joining(group_id=group_id, **fields)
        found = await self.groups.join(request, CLIENT, 9)
        again = asyncio.ensure_future(self.groups.join(replace(request, member_id=found.member_id), CLIENT, 9))
        await asyncio.sleep(0)
        self.advance(0)
        joined = await again
        assert not joined.error_code
        request = syncing(joined.member_id, joined.generation_id, {joined.member_id: b"a"})
        assert not (await self.groups.sync(replace(request, group_id=group_id))).error_code
        return joined.member_id

    async def commit_in_transaction(self, committer: Committer, offsets: list[NewOffset]) -> list[Error]:
        await self.groups.prepare()
        where = self.groups.partition_of(committer.group_id)
        return await self.groups.commit_transactional(committer, 9, 0, offsets, partition=where)

    def offsets(self, group_id: str = "g") -> dict[TopicPartition, int]:
        return {where: each.value.offset for where, each in self.groups.offsets_of(group_id).items()}


def topic(name: str, number: int) -> dict[str, ServedTopic]:
    return {name: ServedTopic(name=name, topic_id=UUID(int=number), partitions=(0, 1))}


def run(work: Callable[[World], Awaitable[None]], log: FakeOffsetsLog | None = None, **settings: object) -> None:
    async def all_of_it() -> None:
        world = World(log, replace(SETTINGS, **settings))  # type: ignore[arg-type]
        try:
            assert await world.groups.load()
            await work(world)
        finally:
            world.close()

    asyncio.run(all_of_it())


def new(offset: int, partition: TopicPartition = P0, **fields: object) -> NewOffset:
    return NewOffset(partition=partition, offset=offset, **fields)  # type: ignore[arg-type]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not claim():
            await asyncio.sleep(0.001)


def test_a_commit_is_in_memory_and_answered_after_it_is_durable() -> None:
    async def work(world: World) -> None:
        world.log.gate.clear()
        commit = asyncio.ensure_future(world.groups.commit(SIMPLE, [new(5)]))
        await turns()
        assert not commit.done()
        assert not world.offsets()
        world.log.gate.set()
        assert await commit == [Error.NONE]
        assert world.offsets() == {P0: 5} == (await world.restarted()).offsets()

    run(work)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DiskFailed("full"), Error.NOT_COORDINATOR),
        (NotFound("topic"), Error.COORDINATOR_NOT_AVAILABLE),
        (InvalidRequest("too large"), Error.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
def test_a_commit_that_fails_changes_nothing(error: Exception, code: Error) -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(5)])
        world.log.error = error  # type: ignore[assignment]
        assert await world.groups.commit(SIMPLE, [new(6), new(7, P1)]) == [code, code]
        assert world.offsets() == {P0: 5}
        world.log.error = None
        assert await world.groups.commit(SIMPLE, [new(8)]) == [Error.NONE]

    run(work)


def test_waiting_commits_share_the_next_append_in_their_order() -> None:
    async def work(world: World) -> None:
        world.log.gate.clear()
        commits = [asyncio.ensure_future(world.groups.commit(SIMPLE, [new(at)])) for at in range(50)]
        await turns()
        world.log.gate.set()
        await asyncio.gather(*commits)
        assert [count for _, count in world.log.appends] == [1, 49]
        assert world.offsets() == {P0: 49}

    run(work)


def test_each_offset_of_a_commit_has_its_own_error() -> None:
    async def work(world: World) -> None:
        found = await world.groups.commit(SIMPLE, [new(1, metadata="x" * 11), new(2, P1, metadata="é" * 5)])
        assert found == [Error.OFFSET_METADATA_TOO_LARGE, Error.NONE]
        assert world.offsets() == {P1: 2}

    run(work)


def test_a_restart_has_groups_members_and_offsets() -> None:
    async def work(world: World) -> None:
        member = await world.member()
        committer = Committer(group_id="g", generation=1, member_id=member)
        assert await world.groups.commit(committer, [new(5, leader_epoch=3, metadata="note")]) == [Error.NONE]
        again = await world.restarted()
        assert again.offsets() == {P0: 5}
        assert again.groups.described("g") == world.groups.described("g")
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        assert again.groups.heartbeat(beat) is Error.NONE
        again.advance(SESSION_MS)
        group = again.groups.groups()["g"]
        assert (group.state, group.generation) == (GroupState.EMPTY, 2)
        await until(lambda: len(again.log.records()) == 3)
        assert (await again.restarted()).groups.groups()["g"].generation == 2

    run(work)


def test_requests_before_the_load_are_told_to_wait() -> None:
    async def work() -> None:
        world = World()
        assert (await world.groups.join(joining(), CLIENT, 9)).error_code is Error.COORDINATOR_LOAD_IN_PROGRESS
        assert await world.groups.commit(SIMPLE, [new(1)]) == [Error.COORDINATOR_LOAD_IN_PROGRESS]
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert world.groups.heartbeat(beat) is Error.NONE, "a member must not lose its place"

    asyncio.run(work())


@pytest.mark.parametrize("error", [Unavailable("bucket"), Corrupt("record"), RuntimeError("bug")])
def test_a_load_that_fails_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinators, "LOAD_RETRY_S", 0)
    failures = [error]

    class Log(FakeOffsetsLog):
        def partition_count(self) -> int | None:
            if failures:
                raise failures.pop()
            return super().partition_count()

    async def work() -> None:
        world = World(Log())
        task = asyncio.ensure_future(world.groups.run())
        await until(lambda: not world.groups.loading())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())
    assert "cannot load" in caplog.text


def test_deadlines_are_met_while_it_runs() -> None:
    async def work() -> None:
        groups = GroupCoordinator(FakeOffsetsLog(), replace(SETTINGS, min_session_timeout_ms=1))
        task = asyncio.ensure_future(groups.run())
        await until(lambda: not groups.loading())
        joined = await groups.join(joining(session_timeout_ms=20), CLIENT, 3)
        assert not joined.error_code, "the rebalance ended by its deadline"
        await until(lambda: groups.groups()["g"].state is GroupState.EMPTY)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())


@pytest.mark.parametrize(("is_commit", "expected"), [(True, {P0: 7}), (False, {P0: 1})])
def test_offsets_of_a_transaction_are_visible_with_its_marker(
    is_commit: bool, expected: dict[TopicPartition, int]
) -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        assert await world.commit_in_transaction(SIMPLE, [new(7)]) == [Error.NONE]
        assert (world.offsets(), world.groups.is_unstable("g", P0)) == ({P0: 1}, True)
        open_at_restart = await world.restarted()
        assert (open_at_restart.offsets(), open_at_restart.groups.is_unstable("g", P0)) == ({P0: 1}, True)
        number = world.groups.partition_of("g").partition
        world.log.append_marker(number, 9, is_commit=is_commit)
        for each in (world, open_at_restart):
            each.groups.transaction_ended(number, 9, is_commit=is_commit)
            await turns()
            assert (each.offsets(), each.groups.is_unstable("g", P0)) == (expected, False)
        assert (await world.restarted()).offsets() == expected

    run(work)


def test_a_transaction_that_ends_during_the_load_is_not_lost() -> None:
    async def work(world: World) -> None:
        await world.commit_in_transaction(SIMPLE, [new(7)])
        number = world.groups.partition_of("g").partition
        again = World(world.log)
        again.groups.transaction_ended(number, 9, is_commit=True)  # its marker is behind what the load reads
        assert await again.groups.load()
        assert (again.offsets(), again.groups.is_unstable("g", P0)) == ({P0: 7}, False)
        again.close()

    run(work)


def test_a_transactional_commit_of_a_member_is_fenced_by_its_generation() -> None:
    async def work(world: World) -> None:
        member = await world.member()
        wrong = Committer(group_id="g", generation=9, member_id=member)
        assert await world.commit_in_transaction(wrong, [new(7)]) == [Error.ILLEGAL_GENERATION]
        anonymous = Committer(group_id="g")
        assert await world.commit_in_transaction(anonymous, [new(7)]) == [Error.NONE]

    run(work)


def test_a_deleted_group_is_absent_after_a_restart_too() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1), new(2, P1)])
        await world.commit_in_transaction(SIMPLE, [new(7, TopicPartition("orders", 2))])
        assert await world.groups.delete_groups(["g", "none", "g"]) == [
            Error.NONE,
            Error.GROUP_ID_NOT_FOUND,
            Error.NONE,
        ]
        again = await world.restarted()
        for each in (world, again):
            assert (each.offsets(), list(each.groups.groups())) == ({}, [])

    run(work)


def test_a_commit_that_waits_when_its_group_is_deleted_comes_first_or_after() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        world.log.gate.clear()
        before = asyncio.ensure_future(world.groups.commit(SIMPLE, [new(2, P1)]))
        await turns()
        deletion = asyncio.ensure_future(world.groups.delete_groups(["g"]))
        await turns()
        after = asyncio.ensure_future(world.groups.commit(SIMPLE, [new(3)]))
        await turns()
        world.log.gate.set()
        assert [await before, await deletion, await after] == [[Error.NONE]] * 3
        assert world.offsets() == {P0: 3} == (await world.restarted()).offsets()
        assert list(world.groups.groups()) == ["g"]

    run(work)


def test_a_group_with_members_is_not_deleted() -> None:
    async def work(world: World) -> None:
        member = await world.member()
        assert await world.groups.delete_groups(["g"]) == [Error.NON_EMPTY_GROUP]
        left = await world.groups.leave(LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=member),)))
        assert not left.error_code
        assert await world.groups.delete_groups(["g"]) == [Error.NONE]
        assert not (await world.restarted()).groups.groups()

    run(work)


def test_the_last_member_has_left_when_its_leave_is_answered() -> None:
    async def work(world: World) -> None:
        member = await world.member()
        world.log.gate.clear()
        request = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=member),))
        leave = asyncio.ensure_future(world.groups.leave(request))
        await turns()
        assert not leave.done(), "a node that ends now has the member after its next start"
        world.log.gate.set()
        assert not (await leave).error_code
        again = await world.restarted()
        assert again.groups.groups()["g"].members == {}

    run(work)


def test_a_leave_that_is_not_stored_is_an_error() -> None:
    async def work(world: World) -> None:
        member = await world.member()
        world.log.error = DiskFailed("cannot append")
        request = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id=member),))
        assert (await world.groups.leave(request)).error_code is Error.NOT_COORDINATOR

    run(work)


def test_a_group_that_gets_a_member_while_it_is_deleted_stays() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        world.log.gate.clear()
        blocker = asyncio.ensure_future(world.groups.commit(SIMPLE, [new(2, P1)]))
        await turns()
        deletion = asyncio.ensure_future(world.groups.delete_groups(["g"]))
        await turns()
        join = asyncio.ensure_future(world.groups.join(joining(), CLIENT, 3))
        await turns()
        world.log.gate.set()
        assert [await blocker, await deletion] == [[Error.NONE], [Error.NON_EMPTY_GROUP]]
        assert world.offsets() == {P0: 1, P1: 2}
        world.advance(0)
        assert not (await join).error_code

    run(work)


def test_offsets_are_deleted_but_those_of_subscribed_topics() -> None:
    async def work(world: World) -> None:
        other = TopicPartition("other", 0)
        member = await world.member()
        committer = Committer(group_id="g", generation=1, member_id=member)
        await world.groups.commit(committer, [new(1), new(2, other)])
        found = await world.groups.delete_offsets("g", [P0, other])
        assert found == {P0: Error.GROUP_SUBSCRIBED_TO_TOPIC, other: Error.NONE}
        assert world.offsets() == {P0: 1} == (await world.restarted()).offsets()
        assert await world.groups.delete_offsets("none", [P0]) is Error.GROUP_ID_NOT_FOUND

    run(work)


def test_expired_offsets_are_removed_and_their_group_with_the_last_one() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        world.advance(4 * DAY_MS)
        await world.groups.commit(SIMPLE, [new(2, P1)])
        await world.groups.commit(Committer(group_id="old"), [new(3, expire_after_ms=DAY_MS)])
        world.advance(3 * DAY_MS)
        await until(lambda: world.offsets() == {P1: 2} and "old" not in world.groups.groups())
        assert (await world.restarted()).offsets() == {P1: 2}
        world.advance(4 * DAY_MS)
        await until(lambda: not world.groups.groups())
        assert not (await world.restarted()).groups.groups()

    run(work)


def test_offsets_of_a_group_with_members_do_not_expire() -> None:
    async def work(world: World) -> None:
        member = await world.member(session_timeout_ms=1_800_000)
        committer = Committer(group_id="g", generation=1, member_id=member)
        await world.groups.commit(committer, [new(1)])
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        for _ in range(8 * 48 + 1):
            world.advance(1_799_999)
            assert not world.groups.heartbeat(beat)
        world.groups.expire()
        await world.groups.commit(Committer(group_id="other"), [new(1)])
        assert world.offsets() == {P0: 1}

    run(work)


def test_the_expired_offsets_of_a_group_are_looked_for_once_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    look = coordinators.expired

    def counted(offsets: CommittedOffsets, group: AnyGroup | None, *facts: int) -> list[TopicPartition]:
        assert group is not None
        asked.append(group.group_id)
        return look(offsets, group, *facts)

    monkeypatch.setattr(coordinators, "expired", counted)

    async def work(world: World) -> None:
        await world.member("busy")
        for name in ("due", "other"):
            await world.groups.commit(Committer(group_id=name), [new(1)])
            world.clock.ms += 4 * DAY_MS
        world.groups.expire()
        await until(lambda: not world.offsets("due"))
        assert world.offsets("other")
        assert sorted(asked) == ["due", "other"], "a group with members and without offsets has nothing to expire"

    run(work)


def test_an_open_transaction_protects_its_offset_from_expiry() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        await world.commit_in_transaction(SIMPLE, [new(7)])
        world.advance(30 * DAY_MS)
        await world.groups.commit(SIMPLE, [new(2, P1)])
        assert world.offsets() == {P0: 1, P1: 2}

    run(work)


def test_the_offsets_of_deleted_topics_are_removed() -> None:
    async def work(world: World) -> None:
        other = TopicPartition("other", 0)
        await world.groups.commit(SIMPLE, [new(1), new(2, other)])
        world.groups.topic_deleted("orders")
        await until(lambda: world.offsets() == {other: 2})
        assert (await world.restarted()).offsets() == {other: 2}

    run(work)


def test_an_offset_of_a_recreated_topic_is_absent_before_its_tombstone_too() -> None:
    async def work(world: World) -> None:
        world.topics = topic("orders", 1)
        assert await world.groups.commit(SIMPLE, [new(1000)]) == [Error.NONE]
        assert world.offsets() == {P0: 1000}
        world.topics = topic("orders", 2)
        assert world.offsets() == {}
        assert (await world.restarted(topic("orders", 1))).offsets() == {P0: 1000}
        restarted = await world.restarted(topic("orders", 2))
        await until(lambda: len(world.log.records()) == 2)
        assert restarted.offsets() == {}
        assert (await world.restarted()).offsets() == {}  # the load appended its tombstone

    run(work)


def test_the_load_removes_offsets_without_an_id_of_topics_that_do_not_exist() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        world.topics = topic("other", 7)
        await world.groups.commit(SIMPLE, [new(2, TopicPartition("other", 0))])
        await world.restarted({})
        await until(lambda: len(world.log.records()) == 3)
        assert (await world.restarted()).offsets() == {TopicPartition("other", 0): 2}  # it may be restored later

    run(work)


def test_a_new_commit_to_a_recreated_topic_outlives_the_removal() -> None:
    async def work(world: World) -> None:
        world.topics = topic("orders", 1)
        await world.groups.commit(SIMPLE, [new(1000), new(1001, P1)])
        world.topics = topic("orders", 2)
        await world.groups.commit(SIMPLE, [new(3)])
        world.groups.topic_deleted("orders")
        await until(lambda: len(world.log.records()) == 4)
        assert (await world.restarted()).offsets() == {P0: 3}

    run(work)


def test_a_topic_that_is_deleted_before_the_load_is_removed_by_the_load() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        again = World(world.log)
        world.later.append(again)
        again.groups.topic_deleted("orders")
        assert await again.groups.load()
        await until(lambda: again.offsets() == {})

    run(work)


def test_the_topic_of_offsets_is_created_again_after_it_disappeared() -> None:
    async def work(world: World) -> None:
        await world.groups.commit(SIMPLE, [new(1)])
        world.log.error, world.log.partitions = NotFound("topic not found"), None
        assert await world.groups.commit(SIMPLE, [new(2)]) == [Error.COORDINATOR_NOT_AVAILABLE]
        world.log.error = None
        assert await world.groups.commit(SIMPLE, [new(3)]) == [Error.NONE]
        assert world.log.partitions == SETTINGS.offsets_partitions

    run(work)


def test_a_deadline_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(world: World) -> None:
        await world.member("first")
        await world.member("second")
        groups = world.groups.groups()
        monkeypatch.setattr(groups["first"], "advance", lambda now: 1 // 0)
        world.advance(SESSION_MS)
        assert (len(groups["first"].members), len(groups["second"].members)) == (1, 0)
        assert "cannot act on a deadline of a group: group='first'" in caplog.text

    run(work)


def test_groups_members_and_offsets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        monkeypatch.setattr(room, "GROUPS_MAX", 2)
        monkeypatch.setattr(coordinators, "OFFSETS_MAX", 3)
        await world.groups.commit(SIMPLE, [new(1), new(2, P1)])
        assert (
            await world.groups.commit(Committer(group_id="h"), [new(1), new(2, P1)])
            == [Error.INVALID_COMMIT_OFFSET_SIZE] * 2
        )
        assert (await world.groups.join(joining(group_id="i"), CLIENT, 9)).error_code is Error.GROUP_MAX_SIZE_REACHED
        assert await world.groups.commit(Committer(group_id="i"), [new(1)]) == [Error.INVALID_COMMIT_OFFSET_SIZE]
        await world.groups.delete_groups(["h"])
        await world.member("i")
        monkeypatch.setattr(room, "MEMBER_BYTES_MAX", 100)
        found = await world.groups.join(joining(group_id="i"), CLIENT, 9)
        assert found.error_code is Error.GROUP_MAX_SIZE_REACHED

    run(work)


def test_member_ids_that_are_not_used_yet_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        monkeypatch.setattr(room, "MEMBER_BYTES_MAX", 50_000)
        client = replace(CLIENT, client_id="c" * 32_000)
        found = await world.groups.join(joining(group_id="g0"), client, 9)
        assert len(found.member_id) <= 64 + 37  # a dash and a UUID
        count = 0
        while found.error_code is Error.MEMBER_ID_REQUIRED:
            count += 1
            found = await world.groups.join(joining(group_id=f"g{count}"), CLIENT, 9)
        assert found.error_code is Error.GROUP_MAX_SIZE_REACHED
        assert 40 <= count <= 50

    run(work)


def test_a_member_has_a_limited_number_of_protocols() -> None:
    async def work(world: World) -> None:
        most = protocols(*map(str, range(100)))
        assert (await world.groups.join(joining(protocols=most), CLIENT, 9)).error_code is Error.MEMBER_ID_REQUIRED
        more = protocols(*map(str, range(101)))
        found = await world.groups.join(joining(protocols=more), CLIENT, 9)
        assert found.error_code is Error.INCONSISTENT_GROUP_PROTOCOL

    run(work)


def test_the_bytes_of_offsets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        monkeypatch.setattr(coordinators, "OFFSET_BYTES_MAX", 650)
        assert await world.groups.commit(SIMPLE, [new(1, metadata="x" * 10), new(2, P1)]) == [Error.NONE] * 2
        other = Committer(group_id="h")
        assert await world.groups.commit(other, [new(1)]) == [Error.INVALID_COMMIT_OFFSET_SIZE]
        await world.groups.delete_groups(["g"])
        assert await world.groups.commit(other, [new(1)]) == [Error.NONE]

    run(work)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, Error.INVALID_GROUP_ID),
        ({"group_id": "x" * 40_000}, Error.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, Error.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, Error.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, Error.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_with_wrong_fields_is_refused(fields: dict[str, object], error: Error) -> None:
    async def work(world: World) -> None:
        assert (await world.groups.join(joining(**fields), CLIENT, 9)).error_code is error
        assert not world.groups.groups()

    run(work)


def test_names_that_no_record_can_hold_do_not_stop_a_group() -> None:
    async def work(world: World) -> None:
        assert not await world.groups.prepare()
        request = joining(group_instance_id="x" * 40_000)
        join = asyncio.ensure_future(world.groups.join(request, CLIENT, 9))
        await turns()
        world.advance(0)
        joined = await join
        synced = await world.groups.sync(syncing(joined.member_id, joined.generation_id, {joined.member_id: b"a"}))
        assert synced.error_code is Error.UNKNOWN_SERVER_ERROR

    run(work)


def test_the_topic_is_created_on_first_use_and_a_failure_is_reported() -> None:
    async def work(world: World) -> None:
        world.log.error = DiskFailed("full")
        assert await world.groups.prepare() is Error.COORDINATOR_NOT_AVAILABLE
        world.log.error = None
        assert await world.groups.prepare() is Error.NONE
        assert world.log.partitions == SETTINGS.offsets_partitions
        assert (await world.restarted()).groups.partition_of("g") == world.groups.partition_of("g")

    run(work)
    run(_uses_its_partitions, FakeOffsetsLog(partitions=50))


async def _uses_its_partitions(world: World) -> None:
    assert world.groups.partition_of("g1") == TopicPartition("__consumer_offsets", 42)


def test_tombstones_of_many_offsets_are_several_appends_and_the_group_is_the_last_record() -> None:
    async def work(world: World) -> None:
        count = 12_000
        many = [new(at, TopicPartition("orders", at)) for at in range(count)]
        assert set(await world.groups.commit(SIMPLE, many)) == {Error.NONE}
        appends = len(world.log.appends)
        assert appends > 1
        assert await world.groups.delete_groups(["g"]) == [Error.NONE]
        assert len(world.log.appends) > appends + 1
        keys = [decode_key(each.key) for each in world.log.records()]
        assert keys[-1] == GroupKey("g")
        assert all(isinstance(each, OffsetKey) for each in keys[:-1])
        assert not (await world.restarted()).groups.groups()

    run(work)


def test_settings_are_those_of_the_node() -> None:
    def config(**options: str) -> Config:
        named = {name.replace("_", "."): each for name, each in options.items()}
        return Config.load(None, named, {}, local_dir="/nowhere")

    assert GroupSettings.of(config().int_of) == GroupSettings()
    found = GroupSettings.of(config(offsets_retention_minutes="2", group_max_size="7").int_of)
    assert (found.offsets_retention_ms, found.max_size) == (120_000, 7)
    with pytest.raises(InvalidRequest, match="above the maximum"):
        GroupSettings.of(config(group_min_session_timeout_ms="1h").int_of)
