"""AlterPartitionReassignments and ListPartitionReassignments, for ``kafka-reassign-partitions``.

That tool moves partitions between log directories, and asks for reassignments on its way. There is one broker, so no
reassignment ever runs: one to this broker is done at once, any other is refused. Source: kafka
`ReplicationControlManager.alterPartitionReassignments`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.serve.admin import Refused
from tiered.serve.handlers.service import Call, Service, served_partition
from tiered.serve.handlers.topics import check_replicas
from tiered.serve.messages.base import Error
from tiered.serve.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tiered.serve.record_source import ServedTopic


async def alter_partition_reassignments(
    service: Service, request: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    known = await service.topics()
    return AlterPartitionReassignmentsResponse(
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(_altered(service, known, topic.name, each) for each in topic.partitions),
            )
            for topic in request.topics
        )
    )


async def list_partition_reassignments(
    service: Service, request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse()


def _altered(
    service: Service, known: Mapping[str, ServedTopic], topic: str, partition: ReassignablePartition
) -> ReassignablePartitionResponse:
    number = partition.partition_index
    try:
        if served_partition(known, topic, number) is None:
            raise Refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        if partition.replicas is None:
            raise Refused(Error.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        check_replicas(partition.replicas, service.broker_id)
    except Refused as refused:
        return ReassignablePartitionResponse(
            partition_index=number, error_code=refused.error, error_message=refused.message
        )
    return ReassignablePartitionResponse(partition_index=number)
