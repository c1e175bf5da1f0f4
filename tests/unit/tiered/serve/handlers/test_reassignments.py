"""AlterPartitionReassignments and ListPartitionReassignments of the only broker."""

from __future__ import annotations

from fake_admin import FakeAdmin, run
from fake_source import CALL

from tiered.serve.handlers.log_dirs import alter_partition_reassignments, list_partition_reassignments
from tiered.serve.messages.base import Error
from tiered.serve.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
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
