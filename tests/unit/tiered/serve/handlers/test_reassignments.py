"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders of the only broker."""

from __future__ import annotations

from fake_admin import FakeAdmin, run
from fake_source import CALL

from tiered.serve.handlers.log_dirs import (
    alter_partition_reassignments,
    elect_leaders,
    list_partition_reassignments,
)
from tiered.serve.messages.base import Error
from tiered.serve.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)


def test_a_reassignment_to_this_broker_is_done_and_any_other_is_refused() -> None:
    replicas = [(0,), (7,), (0, 7), (), None]
    partitions = [ReassignablePartition(partition_index=at, replicas=each) for at, each in enumerate(replicas)]
    unknown = ReassignablePartition(partition_index=9, replicas=(0,))
    request = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name="orders", partitions=(*partitions, unknown)),)
    )
    found = run(FakeAdmin(orders=5), lambda service: alter_partition_reassignments(service, request, CALL))
    (topic,) = found.responses
    wrong = Error.INVALID_REPLICA_ASSIGNMENT
    missing = Error.UNKNOWN_TOPIC_OR_PARTITION
    codes = [Error.NONE, wrong, wrong, wrong, Error.NO_REASSIGNMENT_IN_PROGRESS, missing]
    assert [each.error_code for each in topic.partitions] == codes
    assert [bool(each.error_message) for each in topic.partitions] == [False] + [True] * 5


def test_no_reassignment_runs() -> None:
    request = ListPartitionReassignmentsRequest()
    found = run(FakeAdmin(), lambda service: list_partition_reassignments(service, request, CALL))
    assert found == ListPartitionReassignmentsResponse()


def test_no_election_is_needed_and_unknown_partitions_are_refused() -> None:
    topics = (
        TopicPartitions(topic="orders", partitions=(0, 4, 5, -1)),
        TopicPartitions(topic="nope", partitions=(0,)),
        TopicPartitions(topic="orders", partitions=()),
    )
    for kind in (0, 1):
        request = ElectLeadersRequest(election_type=kind, topic_partitions=topics)
        found = run(FakeAdmin(orders=5), lambda service, request=request: elect_leaders(service, request, CALL))
        needless, unknown = Error.ELECTION_NOT_NEEDED, Error.UNKNOWN_TOPIC_OR_PARTITION
        assert found.error_code is Error.NONE
        assert [
            (topic.topic, [(each.partition_id, each.error_code) for each in topic.partition_result])
            for topic in found.replica_election_results
        ] == [
            ("orders", [(0, needless), (4, needless), (5, unknown), (-1, unknown)]),
            ("nope", [(0, unknown)]),
            ("orders", []),
        ]


def test_an_election_of_all_partitions_lists_none_of_them() -> None:
    request = ElectLeadersRequest(topic_partitions=None)
    found = run(FakeAdmin(orders=5), lambda service: elect_leaders(service, request, CALL))
    assert [(each.topic, each.partition_result) for each in found.replica_election_results] == [("orders", ())]


def test_an_unknown_kind_of_election_is_refused_for_each_partition() -> None:
    topics = (TopicPartitions(topic="orders", partitions=(0,)),)
    request = ElectLeadersRequest(election_type=9, topic_partitions=topics)
    found = run(FakeAdmin(orders=5), lambda service: elect_leaders(service, request, CALL))
    assert found.error_code is Error.INVALID_REQUEST
    assert found.replica_election_results[0].partition_result[0].error_code is Error.INVALID_REQUEST
