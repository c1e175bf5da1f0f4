"""CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions: Kafka's errors, each topic apart."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import UUID

import pytest
from fake_admin import FakeAdmin, refusing, run
from fake_source import CALL

from local.errors import Diverged, Unavailable
from tiered.serve.admin import Refused
from tiered.serve.handlers.service import Service
from tiered.serve.handlers.topics import (
    PARTITIONS_MAX,
    create_partitions,
    create_topics,
    delete_topics,
    describe_topic_partitions,
)
from tiered.serve.messages.base import Error
from tiered.serve.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    Cursor,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)

NEVER_MS = 60_000


def created(admin: FakeAdmin, *topics: CreatableTopic, is_dry: bool = False, timeout_ms: int = NEVER_MS) -> Any:
    request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=is_dry)
    return run(admin, lambda service: create_topics(service, request, CALL)).topics


def deleted(admin: FakeAdmin, *topics: DeleteTopicState, names: tuple[str, ...] = ()) -> Any:
    request = DeleteTopicsRequest(topics=topics, topic_names=names, timeout_ms=NEVER_MS)
    return run(admin, lambda service: delete_topics(service, request, CALL)).responses


def grown(admin: FakeAdmin, *topics: CreatePartitionsTopic, is_dry: bool = False) -> Any:
    request = CreatePartitionsRequest(topics=topics, validate_only=is_dry)
    return run(admin, lambda service: create_partitions(service, request, CALL)).results


def described(admin: FakeAdmin, *names: str, limit: int = 2000, cursor: Cursor | None = None) -> Any:
    topics = tuple(TopicRequest(name=name) for name in names)
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)
    return run(admin, lambda service: describe_topic_partitions(service, request, CALL))


def codes(results: Any) -> dict[str, Error]:
    return {each.name: each.error_code for each in results}


def assigned(*brokers: tuple[int, ...], first: int = 0) -> tuple[CreatableReplicaAssignment, ...]:
    return tuple(
        CreatableReplicaAssignment(partition_index=at, broker_ids=each) for at, each in enumerate(brokers, first)
    )


def test_created_topics_have_their_id_partitions_and_settings() -> None:
    admin = FakeAdmin(orders=1)
    settings = (CreatableTopicConfig(name="retention.ms", value="5"),)
    wanted = [CreatableTopic(name="a"), CreatableTopic(name="b", num_partitions=3, configs=settings)]
    first, second = created(admin, *wanted, CreatableTopic(name="c", assignments=assigned((0,), (0,))))[:2]
    assert admin.calls == [("create", [("a", None, {}), ("b", 3, {"retention.ms": "5"}), ("c", 2, {})], False)]
    assert (first.error_code, first.num_partitions, first.replication_factor) == (Error.NONE, 1, 1)
    assert (second.topic_id, second.num_partitions) == (admin.id_of("b"), 3)
    assert [(each.name, each.value, each.config_source) for each in second.configs] == [("retention.ms", "5", 1)]
    created(admin, CreatableTopic(name="a"), is_dry=True)
    assert admin.calls[-1] == ("create", [("a", None, {})], True)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (CreatableTopic(name="orders"), Error.TOPIC_ALREADY_EXISTS),
        (CreatableTopic(name="bad name"), Error.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic(name=""), Error.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic(name="../orders"), Error.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic(name="x" * 250), Error.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic(name="__cluster_metadata"), Error.INVALID_REQUEST),
        (CreatableTopic(name="x", num_partitions=0), Error.INVALID_PARTITIONS),
        (CreatableTopic(name="x", num_partitions=-2), Error.INVALID_PARTITIONS),
        (CreatableTopic(name="x", replication_factor=0), Error.INVALID_REPLICATION_FACTOR),
        (CreatableTopic(name="x", replication_factor=2), Error.INVALID_REPLICATION_FACTOR),
        (CreatableTopic(name="x", configs=(CreatableTopicConfig(name="retention.ms"),)), Error.INVALID_CONFIG),
        (CreatableTopic(name="x", num_partitions=1, assignments=assigned((0,))), Error.INVALID_REQUEST),
        (CreatableTopic(name="x", replication_factor=1, assignments=assigned((0,))), Error.INVALID_REQUEST),
        (CreatableTopic(name="x", assignments=assigned((0,), first=1)), Error.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic(name="x", assignments=assigned((0,)) * 2), Error.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic(name="x", assignments=assigned((7,))), Error.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic(name="x", assignments=assigned((0, 0))), Error.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic(name="x", assignments=assigned(())), Error.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_refused_topic_is_explained_and_the_others_are_created(topic: CreatableTopic, error: Error) -> None:
    admin = FakeAdmin(orders=1)
    refused, other = created(admin, topic, CreatableTopic(name="fine"))
    assert (refused.name, refused.error_code, other.error_code) == (topic.name, error, Error.NONE)
    assert refused.error_message
    assert refused.topic_id is None
    assert admin.calls == [("create", [("fine", None, {})], False)]


def test_errors_of_the_node_are_those_of_their_topics() -> None:
    errors = {
        "config": (Refused(Error.INVALID_CONFIG, "wrong value"), Error.INVALID_CONFIG),
        "bucket": (Unavailable("no reply"), Error.KAFKA_STORAGE_ERROR),
        "bug": (ZeroDivisionError("secret"), Error.UNKNOWN_SERVER_ERROR),
    }
    admin = FakeAdmin()
    admin.errors_of = {name: error for name, (error, _) in errors.items()}
    found = created(admin, *(CreatableTopic(name=name) for name in (*errors, "fine")))
    assert codes(found) == {**{name: code for name, (_, code) in errors.items()}, "fine": Error.NONE}
    assert [each.error_message for each in found[:2]] == ["wrong value", "no reply"]
    assert "secret" not in found[2].error_message


def test_a_repeated_name_is_refused_once_and_not_created() -> None:
    admin = FakeAdmin()
    found = created(admin, *(CreatableTopic(name=name) for name in ("a", "b", "a")))
    assert codes(found) == {"a": Error.INVALID_REQUEST, "b": Error.NONE}
    assert len(found) == 2


@pytest.mark.parametrize(
    "topics",
    [
        [CreatableTopic(name=f"t{at}") for at in range(10_001)],
        [CreatableTopic(name="a", num_partitions=6000), CreatableTopic(name="b", num_partitions=4001)],
        [CreatableTopic(name="a", num_partitions=1_000_000)],
        [CreatableTopic(name="a", assignments=assigned(*[(0,)] * 10_001))],
    ],
)
def test_a_request_for_more_than_10000_partitions_is_refused_as_a_whole(topics: list[CreatableTopic]) -> None:
    admin = FakeAdmin()
    assert set(codes(created(admin, *topics)).values()) == {Error.POLICY_VIOLATION}
    assert admin.calls == []


def test_a_change_that_has_not_begun_in_time_is_not_made() -> None:
    admin = FakeAdmin()
    (late,) = created(admin, CreatableTopic(name="a"), timeout_ms=0)
    assert late.error_code == Error.REQUEST_TIMED_OUT
    assert "nothing was changed" in late.error_message
    assert admin.calls == []


def test_changes_run_one_at_a_time_and_a_late_one_continues() -> None:
    admin = FakeAdmin(orders=1)
    admin.gate = threading.Event()

    async def work(service: Service) -> tuple[Any, Any, Any]:
        slow = CreateTopicsRequest(topics=(CreatableTopic(name="a"),), timeout_ms=NEVER_MS)
        first = asyncio.create_task(create_topics(service, slow, CALL))
        await asyncio.to_thread(admin.has_begun.wait, 60)
        request = DeleteTopicsRequest(topics=(DeleteTopicState(name="orders"),), timeout_ms=1)
        second = (await delete_topics(service, request, CALL)).responses[0]  # while the first one runs
        reads = await describe_topic_partitions(service, DescribeTopicPartitionsRequest(), CALL)
        assert admin.gate is not None
        admin.gate.set()
        return (await first).topics[0], second, reads

    try:
        first, second, reads = run(admin, work)
    finally:
        admin.gate.set()
    assert first.error_code == Error.NONE
    assert second.error_code == Error.REQUEST_TIMED_OUT
    assert [each.name for each in reads.topics] == ["orders"]
    assert admin.calls == [("create", [("a", None, {})], False)], "the deletion had not begun"


def test_topics_are_deleted_by_name_and_by_id() -> None:
    admin = FakeAdmin(a=1, b=1, c=1)
    found = deleted(admin, DeleteTopicState(name="a"), DeleteTopicState(topic_id=admin.id_of("b")))
    assert [(each.name, each.topic_id) for each in found] == [("a", admin.id_of("a")), ("b", admin.id_of("b"))]
    assert codes(deleted(admin, names=("c", "nope"))) == {"c": Error.NONE, "nope": Error.UNKNOWN_TOPIC_OR_PARTITION}
    assert admin.calls == [("delete", "a", None), ("delete", "b", admin.id_of("b")), ("delete", "c", None)]


@pytest.mark.parametrize(
    ("topics", "error"),
    [
        ([DeleteTopicState()], Error.INVALID_REQUEST),
        ([DeleteTopicState(name="a", topic_id=FakeAdmin.id_of("a"))], Error.INVALID_REQUEST),
        ([DeleteTopicState(name="a"), DeleteTopicState(name="a")], Error.INVALID_REQUEST),
        ([DeleteTopicState(topic_id=FakeAdmin.id_of("a"))] * 2, Error.INVALID_REQUEST),
        ([DeleteTopicState(name="a"), DeleteTopicState(topic_id=FakeAdmin.id_of("a"))], Error.INVALID_REQUEST),
        ([DeleteTopicState(topic_id=UUID(int=9))], Error.UNKNOWN_TOPIC_ID),
        ([DeleteTopicState(name="bad name")], Error.UNKNOWN_TOPIC_OR_PARTITION),
        ([DeleteTopicState(name="__consumer_offsets")], Error.POLICY_VIOLATION),
    ],
)
def test_a_deletion_is_refused_and_explained(topics: list[DeleteTopicState], error: Error) -> None:
    admin = FakeAdmin(a=1, __consumer_offsets=1)
    found = deleted(admin, *topics)
    assert {each.error_code for each in found} == {error}
    assert all(each.error_message for each in found)
    assert admin.calls == []


def test_a_log_that_only_this_disk_holds_is_not_deleted() -> None:
    (found,) = deleted(refusing("a", Diverged("only this disk holds records"), a=1), DeleteTopicState(name="a"))
    assert (found.error_code, found.error_message) == (Error.POLICY_VIOLATION, "only this disk holds records")


def test_partitions_are_added_up_to_the_new_total() -> None:
    admin = FakeAdmin(a=1, b=2)
    here = (CreatePartitionsAssignment(broker_ids=(0,)),)
    wanted = [CreatePartitionsTopic(name="a", count=4), CreatePartitionsTopic(name="b", count=3, assignments=here)]
    assert codes(grown(admin, *wanted, is_dry=True)) == {"a": Error.NONE, "b": Error.NONE}
    assert admin.calls == [("add", "a", 4, True), ("add", "b", 3, True)]


@pytest.mark.parametrize(
    ("topics", "error"),
    [
        ([CreatePartitionsTopic(name="a", count=2)], Error.INVALID_PARTITIONS),
        ([CreatePartitionsTopic(name="a", count=1)], Error.INVALID_PARTITIONS),
        ([CreatePartitionsTopic(name="a", count=-2)], Error.INVALID_PARTITIONS),
        ([CreatePartitionsTopic(name="nope", count=2)], Error.UNKNOWN_TOPIC_OR_PARTITION),
        ([CreatePartitionsTopic(name="a", count=3), CreatePartitionsTopic(name="a", count=4)], Error.INVALID_REQUEST),
        ([CreatePartitionsTopic(name="a", count=1_000_000)], Error.POLICY_VIOLATION),
        ([CreatePartitionsTopic(name="a", count=3, assignments=())], Error.INVALID_REPLICA_ASSIGNMENT),
        (
            [CreatePartitionsTopic(name="a", count=3, assignments=(CreatePartitionsAssignment(broker_ids=(7,)),))],
            Error.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_an_addition_is_refused_and_explained(topics: list[CreatePartitionsTopic], error: Error) -> None:
    admin = FakeAdmin(a=2)
    found = grown(admin, *topics)
    assert [each.error_code for each in found] == [error]
    assert all(each.error_message for each in found)
    assert admin.calls == []


def pages(admin: FakeAdmin, limit: int) -> list[tuple[str, int]]:
    """All partitions, read page by page as a client does."""
    found: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    while True:
        page = described(admin, limit=limit, cursor=cursor)
        assert sum(len(each.partitions) for each in page.topics) <= limit
        found += [(each.name, one.partition_index) for each in page.topics for one in each.partitions]
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7])
def test_pages_of_partitions_hold_each_partition_once(limit: int) -> None:
    admin = FakeAdmin(b=3, a=2, c=1)
    assert pages(admin, limit) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


def test_described_partitions_are_bounded_and_unknown_topics_have_their_error() -> None:
    admin = FakeAdmin(a=PARTITIONS_MAX + 1)
    page = described(admin, "a", "a", limit=1_000_000)
    assert len(page.topics[0].partitions) == PARTITIONS_MAX
    assert page.next_cursor == Cursor(topic_name="a", partition_index=PARTITIONS_MAX)
    found = described(FakeAdmin(a=1), "nope", "a", "bad name", limit=0)
    assert codes(found.topics) == {"a": Error.NONE}
    assert found.next_cursor == Cursor(topic_name="bad name", partition_index=0)
    rest = described(FakeAdmin(a=1), "nope", "a", "bad name", cursor=found.next_cursor)
    assert codes(rest.topics) == {
        "bad name": Error.INVALID_TOPIC_EXCEPTION,
        "nope": Error.UNKNOWN_TOPIC_OR_PARTITION,
    }
    negative = described(FakeAdmin(a=1), "a", cursor=Cursor(topic_name="a", partition_index=-1))
    assert codes(negative.topics) == {"a": Error.INVALID_REQUEST}


def test_topics_that_cannot_be_listed_have_an_error() -> None:
    class Broken(FakeAdmin):
        def topics(self) -> Any:
            raise Unavailable("no reply")

    assert codes(described(Broken(), "a").topics) == {"a": Error.KAFKA_STORAGE_ERROR}
