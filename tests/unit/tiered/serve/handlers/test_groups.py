"""Group requests: what depends on their version, filters, and topics that are not served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from consumer_world import joining as consumer_joining
from fake_offsets_log import FakeOffsetsLog
from fake_source import CALL, IDS, FakeSource
from group_world import joining

from local.errors import DiskFailed, Unavailable
from local.names import TopicPartition
from tiered.serve.authorization.rules import answer
from tiered.serve.groups.commits import Committer, NewOffset
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.members import Client
from tiered.serve.handlers import group_offsets
from tiered.serve.handlers import groups as groups_handler
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import NO_OPERATIONS, Api, Error
from tiered.serve.messages.consumer_groups import ConsumerGroupDescribeRequest
from tiered.serve.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tiered.serve.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from tiered.serve.protocol import SERVED
from tiered.serve.record_source import ServedTopic

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
P0 = TopicPartition("orders", 0)


def run(work: Callable[[Service], Awaitable[None]], log: FakeOffsetsLog | None = None, *, loads: bool = True) -> None:
    async def all_of_it() -> None:
        groups = GroupCoordinator(log or FakeOffsetsLog(), SETTINGS)
        service = Service(source=FakeSource(orders=5, slow=5), groups=groups)
        try:
            assert not loads or await groups.load()
            await work(service)
        finally:
            groups.close()
            service.pool.close()

    asyncio.run(all_of_it())


async def ask(service: Service, api: Api, request: object, version: int = 99) -> Any:
    newest = min(version, SERVED[api].max_version)
    return await answer(
        service, api, request, replace(CALL, version=newest, client_id="tester", client_host="10.0.0.1")
    )


def commit(version: int = 10, **fields: Any) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="note")
    topic = OffsetCommitRequestTopic(
        name="orders", topic_id=IDS["orders"] if version >= 10 else None, partitions=(partition,)
    )
    return OffsetCommitRequest(**{"group_id": "g", "topics": (topic,), **fields})


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_every_group_is_this_server(version: int) -> None:
    async def work(service: Service) -> None:
        request = FindCoordinatorRequest(key="a", coordinator_keys=("a", "b"))
        found = await ask(service, Api.FIND_COORDINATOR, request, version)
        for each in found.coordinators if version >= 4 else [found]:
            assert (each.error_code, each.node_id, each.host, each.port) == (Error.NONE, 0, "broker", 9092)
        assert [each.key for each in found.coordinators] == (["a", "b"] if version >= 4 else [])
        assert service.coordinator.partition_of("a").topic == "__consumer_offsets"

    run(work)
    run(work, loads=False)


def test_coordinators_of_unknown_types_and_without_a_topic_are_refused() -> None:
    async def work(service: Service) -> None:
        found = await ask(service, Api.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=("a",), key_type=1))
        assert found.coordinators[0].error_code is Error.INVALID_REQUEST, "no transactions are served"
        found = await ask(service, Api.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=("a",)))
        assert found.coordinators[0].error_code is Error.COORDINATOR_NOT_AVAILABLE
        assert found.coordinators[0].node_id == -1

    log = FakeOffsetsLog()
    log.error = DiskFailed("full")
    run(work, log)


def test_a_sync_without_protocol_is_refused_from_version_5_on() -> None:
    async def work(service: Service) -> None:
        request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
        found = [(await ask(service, Api.SYNC_GROUP, request, version)).error_code for version in (4, 5)]
        assert found == [Error.UNKNOWN_MEMBER_ID, Error.INCONSISTENT_GROUP_PROTOCOL]

    run(work)


def test_old_clients_leave_alone() -> None:
    async def work(service: Service) -> None:
        request = LeaveGroupRequest(group_id="g", member_id="m", members=(MemberIdentity(member_id="m"),))
        old, new = [await ask(service, Api.LEAVE_GROUP, request, version) for version in (2, 3)]
        assert (old.error_code, old.members) == (Error.UNKNOWN_MEMBER_ID, ())
        assert (new.error_code, [each.error_code for each in new.members]) == (Error.NONE, [Error.UNKNOWN_MEMBER_ID])

    run(work)


@pytest.mark.parametrize("version", [2, 9, 10])
def test_committed_offsets_are_fetched(version: int) -> None:
    async def work(service: Service) -> None:
        await service.topics()
        found = await ask(service, Api.OFFSET_COMMIT, commit(version), version)
        ((one,),) = [each.partitions for each in found.topics]
        assert one.error_code is Error.NONE
        named = {"topic_id": IDS["orders"]} if version >= 10 else {"name": "orders"}
        topics = (OffsetFetchRequestTopics(**named, partition_indexes=(0, 9)),)
        for wanted in (topics, None):
            groups = (OffsetFetchRequestGroup(group_id="g", topics=wanted), OffsetFetchRequestGroup(group_id="none"))
            group, none = (
                await ask(service, Api.OFFSET_FETCH, OffsetFetchRequest(groups=groups), max(version, 8))
            ).groups
            assert (group.topics[0].partitions[0].committed_offset, group.topics[0].partitions[0].metadata) == (
                7,
                "note",
            )
            assert none.topics == ()
        old = OffsetFetchRequest(group_id="g", topics=(OffsetFetchRequestTopic(name="orders", partition_indexes=(0,)),))
        found = await ask(service, Api.OFFSET_FETCH, old, 7)
        assert found.topics[0].partitions[0].committed_offset == 7

    run(work)


def test_partitions_and_topics_that_are_not_served_have_their_own_error() -> None:
    async def work(service: Service) -> None:
        await service.topics()
        known = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        other = OffsetCommitRequestPartition(partition_index=4, committed_offset=1)
        topics = (
            OffsetCommitRequestTopic(name="orders", partitions=(other, known)),
            OffsetCommitRequestTopic(name="none", partitions=(known,)),
        )
        found = await ask(service, Api.OFFSET_COMMIT, OffsetCommitRequest(group_id="g", topics=topics), 9)
        missing = Error.UNKNOWN_TOPIC_OR_PARTITION
        assert [[it.error_code for it in each.partitions] for each in found.topics] == [
            [missing, Error.NONE],
            [missing],
        ]
        by_id = (OffsetCommitRequestTopic(topic_id=UUID(int=99), partitions=(known,)),)
        found = await ask(service, Api.OFFSET_COMMIT, OffsetCommitRequest(group_id="g", topics=by_id), 10)
        assert found.topics[0].partitions[0].error_code is Error.UNKNOWN_TOPIC_ID
        wanted = (OffsetFetchRequestTopics(topic_id=UUID(int=99), partition_indexes=(0,)),)
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=wanted),))
        found = await ask(service, Api.OFFSET_FETCH, request, 10)
        assert found.groups[0].topics[0].partitions[0].error_code is Error.UNKNOWN_TOPIC_ID

    run(work)


def test_topics_that_cannot_be_listed_leave_the_commit_to_a_retry() -> None:
    async def work(service: Service) -> None:
        assert isinstance(service.source, FakeSource)
        service.source.topics_error = Unavailable("down")
        found = await ask(service, Api.OFFSET_COMMIT, commit(9), 9)
        assert found.topics[0].partitions[0].error_code is Error.COORDINATOR_NOT_AVAILABLE

    run(work)


def test_an_open_transaction_makes_a_stable_fetch_wait() -> None:
    async def work(service: Service) -> None:
        committer = Committer(group_id="g")
        await service.coordinator.commit(committer, [NewOffset(partition=P0, offset=1)])
        await service.coordinator.prepare()
        where = service.coordinator.partition_of("g")
        await service.coordinator.commit_transactional(
            committer, 5, 0, [NewOffset(partition=P0, offset=2)], partition=where
        )
        topics = (OffsetFetchRequestTopics(name="orders", partition_indexes=(0,)),)
        group = OffsetFetchRequestGroup(group_id="g", topics=topics)
        for is_stable, expected in ((True, (Error.UNSTABLE_OFFSET_COMMIT, -1)), (False, (Error.NONE, 1))):
            request = OffsetFetchRequest(groups=(group,), require_stable=is_stable)
            found = (await ask(service, Api.OFFSET_FETCH, request, 8)).groups[0].topics[0].partitions[0]
            assert (found.error_code, found.committed_offset) == expected

    run(work)


def test_groups_are_listed_by_state_and_type_and_described() -> None:
    async def work(service: Service) -> None:
        await ask(service, Api.OFFSET_COMMIT, commit())
        joined = await ask(service, Api.JOIN_GROUP, joining(group_id="h"), 3)
        for states, types, expected in (
            ((), (), ["g", "h"]),
            (("empty",), (), ["g"]),
            (("CompletingRebalance", "unknown"), ("Classic",), ["h"]),
            ((), ("consumer",), []),
        ):
            request = ListGroupsRequest(states_filter=states, types_filter=types)
            found = await ask(service, Api.LIST_GROUPS, request)
            assert [each.group_id for each in found.groups] == expected
        found = await ask(service, Api.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=("h", "none")))
        one, none = found.groups
        assert (one.members[0].member_id, one.members[0].client_host) == (joined.member_id, "/10.0.0.1")
        assert (one.members[0].client_id, one.authorized_operations) == ("tester", NO_OPERATIONS)
        assert (none.error_code, none.group_state) == (Error.GROUP_ID_NOT_FOUND, "Dead")
        old = await ask(service, Api.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=("none",)), 5)
        assert (old.groups[0].error_code, old.groups[0].group_state) == (Error.NONE, "Dead")

    asyncio.run(_with_background(work))


def test_the_names_of_topics_are_collected_once_for_all_consumer_groups_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(dict[str, ServedTopic]):
        passes = 0

        def values(self) -> Any:
            Counted.passes += 1
            return super().values()

    async def work(service: Service) -> None:
        topics = Counted(service.source.topics())
        monkeypatch.setattr(service.source, "topics", lambda: topics)
        names = [f"g{number}" for number in range(3)]
        for name in names:
            request = consumer_joining("one", "orders", group_id=name)
            assert not (await ask(service, Api.CONSUMER_GROUP_HEARTBEAT, request)).error_code
        Counted.passes, service.known_topics = 0, None
        request = ConsumerGroupDescribeRequest(group_ids=tuple(names))
        found = await ask(service, Api.CONSUMER_GROUP_DESCRIBE, request)
        for each in found.groups:
            (assigned,) = each.members[0].assignment.topic_partitions
            assert (assigned.topic_name, assigned.partitions) == ("orders", (0,))
        assert Counted.passes == 1

    run(work)


async def _with_background(work: Callable[[Service], Awaitable[None]]) -> None:
    """With the deadlines of the coordinator, which end the first rebalance."""
    service = Service(source=FakeSource(orders=5), groups=GroupCoordinator(FakeOffsetsLog(), SETTINGS))
    tasks = [asyncio.ensure_future(each) for each in service.background()]
    try:
        async with asyncio.timeout(60):
            while service.coordinator.loading():
                await asyncio.sleep(0.001)
            await work(service)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        service.pool.close()


def test_offsets_and_groups_are_deleted() -> None:
    async def work(service: Service) -> None:
        await ask(service, Api.OFFSET_COMMIT, commit())
        partitions = (OffsetDeleteRequestPartition(partition_index=0), OffsetDeleteRequestPartition(partition_index=9))
        topics = (OffsetDeleteRequestTopic(name="orders", partitions=partitions),)
        found = await ask(service, Api.OFFSET_DELETE, OffsetDeleteRequest(group_id="g", topics=topics))
        errors = [each.error_code for each in found.topics[0].partitions]
        assert errors == [Error.NONE, Error.UNKNOWN_TOPIC_OR_PARTITION]
        assert not service.coordinator.offsets_of("g")
        found = await ask(service, Api.OFFSET_DELETE, OffsetDeleteRequest(group_id="none", topics=topics))
        assert (found.error_code, found.topics) == (Error.GROUP_ID_NOT_FOUND, ())
        found = await ask(service, Api.DELETE_GROUPS, DeleteGroupsRequest(groups_names=("g", "g", "none")))
        assert [(each.group_id, each.error_code) for each in found.results] == [
            ("g", Error.NONE),
            ("none", Error.GROUP_ID_NOT_FOUND),
        ]

    run(work)


def test_requests_before_the_load_are_told_to_wait() -> None:
    async def work(service: Service) -> None:
        loading = Error.COORDINATOR_LOAD_IN_PROGRESS
        assert (await ask(service, Api.LIST_GROUPS, ListGroupsRequest())).error_code is loading
        described = await ask(service, Api.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=("g",)))
        assert described.groups[0].error_code is loading
        fetched = await ask(
            service, Api.OFFSET_FETCH, OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g"),))
        )
        assert fetched.groups[0].error_code is loading
        topic = OffsetFetchRequestTopic(name="orders", partition_indexes=(0,))
        old = await ask(service, Api.OFFSET_FETCH, OffsetFetchRequest(group_id="g", topics=(topic,)), 1)
        assert old.topics[0].partitions[0].error_code is loading
        beat = await ask(service, Api.HEARTBEAT, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
        assert beat.error_code is Error.NONE

    run(work, loads=False)


def test_a_server_without_groups_does_not_offer_their_apis() -> None:
    assert not Service(source=FakeSource()).apis.keys() & {Api.JOIN_GROUP, Api.OFFSET_FETCH, Api.FIND_COORDINATOR}


def test_a_group_that_a_request_repeats_is_answered_once_and_a_response_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(service: Service) -> None:
        for name in ("g", "h"):
            await ask(service, Api.OFFSET_COMMIT, commit(group_id=name))
        groups = (OffsetFetchRequestGroup(group_id="g"),) * 1000 + (OffsetFetchRequestGroup(group_id="h"),)
        response = await ask(service, Api.OFFSET_FETCH, OffsetFetchRequest(groups=groups))
        assert [each.group_id for each in response.groups] == ["g", "h"]
        names = DescribeGroupsRequest(groups=("g",) * 1000 + ("h",))
        assert [each.group_id for each in (await ask(service, Api.DESCRIBE_GROUPS, names)).groups] == ["g", "h"]

        monkeypatch.setattr(group_offsets, "RESPONSE_BYTES_MAX", 60)
        response = await ask(service, Api.OFFSET_FETCH, OffsetFetchRequest(groups=groups))
        assert [each.error_code for each in response.groups] == [Error.NONE, Error.POLICY_VIOLATION]
        await service.coordinator.join(joining(), Client(client_id="c", host="h"), 9)
        monkeypatch.setattr(groups_handler, "RESPONSE_BYTES_MAX", 60)
        found = (await ask(service, Api.DESCRIBE_GROUPS, names)).groups
        assert [each.error_code for each in found] == [Error.POLICY_VIOLATION] * 2

    run(work)
