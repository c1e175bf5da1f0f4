"""The rules of producers, groups and administrators in front of handlers that record what they were asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fake_source import CALL, IDS, FakeSource
from kafka_security import Clock

from local.errors import InvalidRequest
from tiered.serve.authorization.rules import RULES
from tiered.serve.handlers.service import Service
from tiered.serve.messages import (
    configs,
    consumer_groups,
    group_offsets,
    groups,
    log_dirs,
    produce,
    reassignments,
    topics,
    transactions,
)
from tiered.serve.messages.base import Api, Error, OwnApi
from tiered.serve.read_pool import ReadPool
from tiered.serve.security.principals import LOCAL, Principal
from tiered.serve.security.security import Security

ALICE = replace(CALL, version=3, principal=Principal("alice"), client_host="10.0.0.1")
TOPIC, GROUP = Error.TOPIC_AUTHORIZATION_FAILED, Error.GROUP_AUTHORIZATION_FAILED
CLUSTER, ID = Error.CLUSTER_AUTHORIZATION_FAILED, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@dataclass
class Asked:
    """A handler with a fixed response."""

    response: Any
    requests: list[Any] = field(default_factory=list)

    async def __call__(self, service: Service, request: Any, call: Any) -> Any:
        self.requests.append(request)
        return self.response


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    def asked(api: int, request: object, handler: Asked, *rules: tuple[str, str], call: Any = ALICE) -> Any:
        path = tmp_path / "security.toml"
        tables = [f'[[acl]]\nprincipal = "User:alice"\noperations = "{each}"\n{on}' for each, on in rules]
        path.write_text("\n".join(["super.users = []", *tables]))
        security = Security(str(path), Clock(), Clock())
        service = Service(source=FakeSource(orders=1), pool=ReadPool(), security=security)
        try:
            return asyncio.run(RULES[api](service, request, call, handler))  # type: ignore[arg-type]
        finally:
            service.close()

    return asked


# A request whose group decides, its response, and the operation on the group.
MEMBERS = [
    (
        Api.JOIN_GROUP,
        groups.JoinGroupRequest(group_id="g", session_timeout_ms=1, protocol_type="consumer", protocols=()),
        groups.JoinGroupResponse(),
        "Read",
    ),
    (
        Api.SYNC_GROUP,
        groups.SyncGroupRequest(group_id="g", generation_id=1, member_id="m"),
        groups.SyncGroupResponse(),
        "Read",
    ),
    (
        Api.HEARTBEAT,
        groups.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
        groups.HeartbeatResponse(),
        "Read",
    ),
    (Api.LEAVE_GROUP, groups.LeaveGroupRequest(group_id="g"), groups.LeaveGroupResponse(), "Read"),
    (
        Api.CONSUMER_GROUP_HEARTBEAT,
        consumer_groups.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1),
        consumer_groups.ConsumerGroupHeartbeatResponse(),
        "Read",
    ),
    (Api.FIND_COORDINATOR, groups.FindCoordinatorRequest(key="g"), groups.FindCoordinatorResponse(), "Describe"),
    (
        Api.OFFSET_DELETE,
        group_offsets.OffsetDeleteRequest(group_id="g"),
        group_offsets.OffsetDeleteResponse(),
        "Delete",
    ),
    (
        Api.OFFSET_FETCH,
        group_offsets.OffsetFetchRequest(group_id="g"),
        group_offsets.OffsetFetchResponse(),
        "Describe",
    ),
]


@pytest.mark.parametrize(("api", "request_", "response", "operation"), MEMBERS)
def test_a_request_of_a_group_needs_its_operation(
    ask: Any, api: Api, request_: Any, response: Any, operation: str
) -> None:
    handler = Asked(response)
    assert ask(api, request_, handler, (operation, 'group = "other"')).error_code == GROUP
    assert not handler.requests
    assert ask(api, request_, handler, (operation, 'group_prefix = "g"')).error_code is Error.NONE
    assert handler.requests


def test_coordinators_of_several_keys_are_refused_one_by_one(ask: Any) -> None:
    handler = Asked(groups.FindCoordinatorResponse())
    request = groups.FindCoordinatorRequest(key_type=1, coordinator_keys=("a", "b"))
    call = replace(ALICE, version=6)
    found = ask(Api.FIND_COORDINATOR, request, handler, ("Write", 'transactional_id = "a"'), call=call)
    assert [(each.key, each.error_code) for each in found.coordinators] == [("b", ID)]
    assert handler.requests[0].coordinator_keys == ("a",)


def test_groups_are_listed_described_and_deleted_by_permission(ask: Any) -> None:
    listed = Asked(groups.ListGroupsResponse(groups=tuple(groups.ListedGroup(group_id=each) for each in "ab")))
    found = ask(Api.LIST_GROUPS, groups.ListGroupsRequest(), listed, ("Read", 'group = "a"'))
    assert [each.group_id for each in found.groups] == ["a"]
    found = ask(Api.LIST_GROUPS, groups.ListGroupsRequest(), listed, ("Describe", "cluster = true"))
    assert len(found.groups) == 2
    described = Asked(
        groups.DescribeGroupsResponse(groups=(groups.DescribedGroup(group_id="a", authorized_operations=0x148),))
    )
    request = groups.DescribeGroupsRequest(groups=("a", "b"))
    found = ask(Api.DESCRIBE_GROUPS, request, described, ("Read", 'group = "a"'))
    first, second = found.groups
    assert (first.error_code, first.authorized_operations, second.error_code) == (Error.NONE, 0x108, GROUP)
    deleted = Asked(groups.DeleteGroupsResponse())
    found = ask(Api.DELETE_GROUPS, groups.DeleteGroupsRequest(groups_names=("a", "b")), deleted)
    assert [each.error_code for each in found.results] == [GROUP, GROUP]


def test_offsets_need_the_group_and_each_topic(ask: Any) -> None:
    parts = (group_offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1),)
    named = tuple(group_offsets.OffsetCommitRequestTopic(name=each, partitions=parts) for each in ("orders", "slow"))
    request = group_offsets.OffsetCommitRequest(group_id="g", topics=named)
    handler = Asked(group_offsets.OffsetCommitResponse())
    found = ask(Api.OFFSET_COMMIT, request, handler, ("Read", 'topic = "orders"'))
    assert [each.partitions[0].error_code for each in found.topics] == [GROUP, GROUP]
    found = ask(Api.OFFSET_COMMIT, request, handler, ("Read", 'topic = "orders"\ngroup = "g"'))
    assert [(each.name, each.partitions[0].error_code) for each in found.topics] == [("slow", TOPIC)]
    assert [each.name for each in handler.requests[0].topics] == ["orders"]


def test_a_commit_of_many_topics_compares_no_topics(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison would make the time of the event loop grow with the square of the count."""

    def refuse(self: object, other: object) -> bool:
        raise AssertionError("two topics were compared")

    monkeypatch.setattr(group_offsets.OffsetCommitRequestTopic, "__eq__", refuse)
    topics = tuple(group_offsets.OffsetCommitRequestTopic(name=each, partitions=()) for each in ("a", "b", "orders"))
    handler = Asked(group_offsets.OffsetCommitResponse())
    request = group_offsets.OffsetCommitRequest(group_id="g", topics=topics)
    found = ask(Api.OFFSET_COMMIT, request, handler, ("Read", 'topic = "orders"\ngroup = "g"'))
    assert [each.name for each in found.topics] == ["a", "b"]
    assert [each.name for each in handler.requests[0].topics] == ["orders"]


def test_fetched_offsets_lack_topics_without_describe(ask: Any) -> None:
    part = (group_offsets.OffsetFetchResponsePartition(partition_index=0, committed_offset=5),)
    all_of_them = tuple(
        group_offsets.OffsetFetchResponseTopic(name=each, partitions=part) for each in ("orders", "slow")
    )
    handler = Asked(
        group_offsets.OffsetFetchResponse(
            groups=(group_offsets.OffsetFetchResponseGroup(group_id="g", topics=all_of_them),)
        )
    )
    request = group_offsets.OffsetFetchRequest(
        groups=(
            group_offsets.OffsetFetchRequestGroup(group_id="g"),
            group_offsets.OffsetFetchRequestGroup(group_id="x"),
        )
    )
    found = ask(Api.OFFSET_FETCH, request, handler, ("Describe", 'topic = "orders"\ngroup = "g"'))
    assert [(each.group_id, each.error_code, [t.name for t in each.topics]) for each in found.groups] == [
        ("g", Error.NONE, ["orders"]),
        ("x", GROUP, []),
    ]


def test_offsets_of_an_unknown_id_are_refused_before_the_handler(ask: Any) -> None:
    """The handler may read a newer list, with a topic of that id, which no rule has permitted."""
    rule = ("Read", 'topic = "*"\ngroup = "g"')
    part = (group_offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1),)
    commit = group_offsets.OffsetCommitRequest(
        group_id="g",
        topics=tuple(group_offsets.OffsetCommitRequestTopic(topic_id=each, partitions=part) for each in IDS.values()),
    )
    committing, call = Asked(group_offsets.OffsetCommitResponse()), replace(ALICE, version=10)
    done = ask(Api.OFFSET_COMMIT, commit, committing, rule, call=call)
    assert [each.topic_id for each in committing.requests[0].topics] == [IDS["orders"]]
    assert [(each.topic_id, each.partitions[0].error_code) for each in done.topics] == [
        (IDS["slow"], Error.UNKNOWN_TOPIC_ID)
    ]
    group = group_offsets.OffsetFetchRequestGroup(
        group_id="g",
        topics=tuple(
            group_offsets.OffsetFetchRequestTopics(topic_id=each, partition_indexes=(0,)) for each in IDS.values()
        ),
    )
    none = group_offsets.OffsetFetchResponse(groups=(group_offsets.OffsetFetchResponseGroup(group_id="g"),))
    fetching = Asked(none)
    found = ask(Api.OFFSET_FETCH, group_offsets.OffsetFetchRequest(groups=(group,)), fetching, rule, call=call)
    assert [each.topic_id for each in fetching.requests[0].groups[0].topics] == [IDS["orders"]]
    assert [(each.topic_id, each.partitions[0].error_code) for each in found.groups[0].topics] == [
        (IDS["slow"], Error.UNKNOWN_TOPIC_ID)
    ]


@pytest.mark.parametrize(("version", "error", "partitions"), [(1, Error.NONE, [GROUP]), (2, GROUP, []), (7, GROUP, [])])
def test_a_refused_group_has_its_error_in_the_field_of_the_version(
    ask: Any, version: int, error: Error, partitions: list[Error]
) -> None:
    topic = group_offsets.OffsetFetchRequestTopic(name="orders", partition_indexes=(0,))
    request = group_offsets.OffsetFetchRequest(group_id="g", topics=(topic,))
    handler = Asked(group_offsets.OffsetFetchResponse())
    found = ask(Api.OFFSET_FETCH, request, handler, call=replace(ALICE, version=version))
    assert found.error_code == error
    assert [each.error_code for topic in found.topics for each in topic.partitions] == partitions


def test_a_missing_topic_is_unknown_to_a_caller_with_describe(ask: Any) -> None:
    """The handler gets neither: it must not delete a topic that is created in between."""
    wanted = tuple(topics.DeleteTopicState(name=each) for each in ("orders", "none"))
    handler = Asked(topics.DeleteTopicsResponse())
    request = topics.DeleteTopicsRequest(topics=wanted, timeout_ms=1)
    found = ask(Api.DELETE_TOPICS, request, handler, ("Describe", 'topic = "*"'))
    errors = [(each.name, each.error_code) for each in found.responses]
    assert errors == [("orders", TOPIC), ("none", Error.UNKNOWN_TOPIC_OR_PARTITION)]
    found = ask(Api.DELETE_TOPICS, request, handler)
    assert [each.error_code for each in found.responses] == [TOPIC, TOPIC]
    assert all(each.topics == () for each in handler.requests)


def test_a_refused_reassignment_has_the_error_of_each_partition(ask: Any) -> None:
    partition = reassignments.ReassignablePartition(partition_index=3, replicas=None)
    topic = reassignments.ReassignableTopic(name="orders", partitions=(partition,))
    request = reassignments.AlterPartitionReassignmentsRequest(topics=(topic,))
    found = ask(Api.ALTER_PARTITION_REASSIGNMENTS, request, Asked(None))
    (refused,) = found.responses
    assert (found.error_code, refused.partitions[0].partition_index, refused.partitions[0].error_code) == (
        CLUSTER,
        3,
        CLUSTER,
    )


def batch(attributes: int) -> memoryview:
    return memoryview(bytes(21) + attributes.to_bytes(2) + bytes(40))


def produce_of(*names: str, acks: int = -1, attributes: int = 0, transactional_id: str | None = None) -> Any:
    data = (produce.PartitionProduceData(index=0, records=(batch(attributes),)),)
    topics_ = tuple(produce.TopicProduceData(name=each, partition_data=data) for each in names)
    return produce.ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1, topic_data=topics_)


def test_produce_needs_write_of_each_topic_and_of_the_transactional_id(ask: Any) -> None:
    handler = Asked(produce.ProduceResponse(responses=()))
    write = ("Write", 'topic = "orders"')
    found = ask(Api.PRODUCE, produce_of("orders", "slow"), handler, write)
    assert [(each.name, each.partition_responses[0].error_code) for each in found.responses] == [("slow", TOPIC)]
    assert [each.name for each in handler.requests[-1].topic_data] == ["orders"]
    request = produce_of("orders", attributes=0x10, transactional_id="id")
    assert ask(Api.PRODUCE, request, handler, write).responses[0].partition_responses[0].error_code == ID
    assert not ask(Api.PRODUCE, request, handler, write, ("Write", 'transactional_id = "id"')).responses
    with pytest.raises(InvalidRequest, match="TOPIC_AUTHORIZATION_FAILED"):
        ask(Api.PRODUCE, produce_of("slow", acks=0), handler, write)


def test_records_for_an_unknown_id_are_refused_before_the_handler(ask: Any) -> None:
    """The handler may read a newer list, with a topic of that id, which no rule has permitted."""
    handler = Asked(produce.ProduceResponse(responses=()))
    request = produce_of("orders", "slow")
    topics = tuple(replace(each, name=None, topic_id=IDS[str(each.name)]) for each in request.topic_data)
    found = ask(Api.PRODUCE, replace(request, topic_data=topics), handler, ("Write", 'topic = "*"'))
    assert [(each.topic_id, each.partition_responses[0].error_code) for each in found.responses] == [
        (IDS["slow"], Error.UNKNOWN_TOPIC_ID)
    ]
    assert [each.topic_id for each in handler.requests[-1].topic_data] == [IDS["orders"]]


@pytest.mark.parametrize(
    ("rules", "transactional_id", "error"),
    [
        ([], None, CLUSTER),
        ([("Write", 'topic = "any"')], None, Error.NONE),
        ([("IdempotentWrite", "cluster = true")], None, Error.NONE),
        ([("Write", 'topic = "any"')], "id", ID),
        ([("Write", 'transactional_id = "id"')], "id", Error.NONE),
    ],
)
def test_a_producer_id_needs_a_permission_to_write(
    ask: Any, rules: list[tuple[str, str]], transactional_id: str | None, error: Error
) -> None:
    request = produce.InitProducerIdRequest(transactional_id=transactional_id)
    assert ask(Api.INIT_PRODUCER_ID, request, Asked(produce.InitProducerIdResponse()), *rules).error_code == error


def test_partitions_are_added_to_a_transaction_together_or_not(ask: Any) -> None:
    named = tuple(transactions.AddPartitionsToTxnTopic(name=each, partitions=(0,)) for each in ("orders", "slow"))
    request = transactions.AddPartitionsToTxnRequest(v3_and_below_transactional_id="id", v3_and_below_topics=named)
    handler = Asked(transactions.AddPartitionsToTxnResponse())
    rules = ("Write", 'topic = "orders"\ntransactional_id = "id"')
    found = ask(Api.ADD_PARTITIONS_TO_TXN, request, handler, rules)
    errors = [each.results_by_partition[0].partition_error_code for each in found.results_by_topic_v3_and_below]
    assert errors == [Error.OPERATION_NOT_ATTEMPTED, TOPIC]
    assert not handler.requests
    found = ask(Api.ADD_PARTITIONS_TO_TXN, request, handler, call=replace(ALICE, version=5))
    assert found.error_code == CLUSTER


def test_administration_needs_the_topic_or_the_cluster(ask: Any) -> None:
    created = Asked(topics.CreateTopicsResponse())
    request = topics.CreateTopicsRequest(topics=tuple(topics.CreatableTopic(name=each) for each in ("orders", "slow")))
    found = ask(Api.CREATE_TOPICS, request, created, ("Create", 'topic = "orders"'))
    assert [(each.name, each.error_code) for each in found.topics] == [("slow", TOPIC)]
    assert not ask(Api.CREATE_TOPICS, request, created, ("Create", "cluster = true")).topics
    deleted = Asked(topics.DeleteTopicsResponse())
    request = topics.DeleteTopicsRequest(topic_names=("orders", "slow"), timeout_ms=1)
    found = ask(Api.DELETE_TOPICS, request, deleted, ("Delete", 'topic = "orders"'))
    assert [(each.name, each.error_code) for each in found.responses] == [("slow", TOPIC)]
    described = Asked(configs.DescribeConfigsResponse())
    resources = tuple(
        configs.DescribeConfigsResource(resource_type=each, resource_name=name)
        for each, name in ((2, "orders"), (4, "0"))
    )
    found = ask(Api.DESCRIBE_CONFIGS, configs.DescribeConfigsRequest(resources=resources), described)
    assert [each.error_code for each in found.results] == [TOPIC, CLUSTER]
    dirs = Asked(log_dirs.DescribeLogDirsResponse())
    assert ask(Api.DESCRIBE_LOG_DIRS, log_dirs.DescribeLogDirsRequest(), dirs).error_code == CLUSTER
    assert not dirs.requests


@pytest.mark.parametrize("api", [Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS])
def test_settings_are_altered_of_permitted_resources_alone(ask: Any, api: Api) -> None:
    altered = Asked(configs.AlterConfigsResponse())
    resources = tuple(
        configs.AlterConfigsResource(resource_type=each, resource_name=name)
        for each, name in ((2, "orders"), (2, "slow"), (4, "0"))
    )
    request = configs.AlterConfigsRequest(resources=resources)
    found = ask(api, request, altered, ("AlterConfigs", 'topic = "orders"'))
    assert [each.resources for each in altered.requests] == [resources[:1]]
    refused = [(each.resource_type, each.resource_name, each.error_code) for each in found.responses]
    assert refused == [(2, "slow", TOPIC), (4, "0", CLUSTER)]
    assert all(each.error_message for each in found.responses)


@pytest.mark.parametrize("api", OwnApi)
def test_own_requests_are_for_the_unix_socket(ask: Any, api: OwnApi) -> None:
    handler = Asked("response")
    with pytest.raises(InvalidRequest, match="Unix socket"):
        ask(api, object(), handler)
    assert ask(api, object(), handler, call=replace(ALICE, principal=LOCAL)) == "response"


def test_members_subscribe_only_to_topics_that_they_may_describe(ask: Any) -> None:
    def joining(*names: str) -> consumer_groups.ConsumerGroupHeartbeatRequest:
        return consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=names
        )

    rules = (("Read", 'group = "g"'), ("Describe", 'topic = "orders"'))
    handler = Asked(consumer_groups.ConsumerGroupHeartbeatResponse())
    assert ask(Api.CONSUMER_GROUP_HEARTBEAT, joining("orders", "orders"), handler, *rules).error_code is Error.NONE
    assert ask(Api.CONSUMER_GROUP_HEARTBEAT, joining("orders", "pay"), handler, *rules).error_code is TOPIC
    assert len(handler.requests) == 1


def test_a_group_with_topics_that_the_caller_may_not_describe_is_not_shown(ask: Any) -> None:
    def described(name: str, topic: str) -> consumer_groups.DescribedConsumerGroup:
        member = consumer_groups.DescribedConsumer(member_id="m", subscribed_topic_names=(topic,))
        return consumer_groups.DescribedConsumerGroup(group_id=name, members=(member,))

    response = consumer_groups.ConsumerGroupDescribeResponse(groups=(described("a", "orders"), described("b", "pay")))
    handler = Asked(response)
    rules = (("Describe", 'group = "a"'), ("Describe", 'group = "b"'), ("Describe", 'topic = "orders"'))
    request = consumer_groups.ConsumerGroupDescribeRequest(group_ids=("a", "b", "c"))
    found = ask(Api.CONSUMER_GROUP_DESCRIBE, request, handler, *rules)
    assert [(each.group_id, each.error_code, len(each.members)) for each in found.groups] == [
        ("a", Error.NONE, 1),
        ("b", TOPIC, 0),
        ("c", GROUP, 0),
    ]
    assert handler.requests[0].group_ids == ("a", "b")
