"""DeleteRecords, DescribeLogDirs and AlterReplicaLogDirs.

A move begins after the response, as in Kafka: DescribeLogDirs shows a future replica until its end. Source: kafka
`ReplicaManager.deleteRecords`, `describeLogDirs`, `alterReplicaLogDirs`.

``kafka-reassign-partitions`` moves partitions between log directories, and asks for reassignments on its way. There is
one broker, so no reassignment ever runs: one to this broker is done at once, any other is refused. Source: kafka
`ReplicationControlManager.alterPartitionReassignments`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial

from local.errors import LogError
from local.names import TopicPartition
from tiered.serve.admin import Admin, LogDir, Refused, Replica
from tiered.serve.handlers.changes import admin_of, failure_of, run_changes
from tiered.serve.handlers.service import Call, Service, served_partition
from tiered.serve.handlers.topics import check_replicas
from tiered.serve.messages.base import Error
from tiered.serve.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tiered.serve.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from tiered.serve.record_source import ServedTopic

_UNKNOWN = -1  # kafka `DescribeLogDirsResponse.UNKNOWN_VOLUME_BYTES`, `INVALID_OFFSET_LAG`
_log = logging.getLogger(__name__)


async def delete_records(service: Service, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    topics, admin = await service.topics(), admin_of(service)
    found: dict[tuple[int, int], DeleteRecordsPartitionResult] = {}
    checked: dict[tuple[int, int], TopicPartition] = {}
    calls = []
    for at, topic in enumerate(request.topics):
        for number, each in enumerate(topic.partitions):
            partition = served_partition(topics, topic.name, each.partition_index)
            if partition is None:
                found[at, number] = DeleteRecordsPartitionResult(
                    partition_index=each.partition_index, error_code=Error.UNKNOWN_TOPIC_OR_PARTITION
                )
            else:
                checked[at, number] = partition
                calls.append(partial(admin.delete_records, partition, each.offset))
    outcomes = await run_changes(service, calls, request.timeout_ms)
    for (place, partition), outcome in zip(checked.items(), outcomes, strict=True):
        found[place] = _deleted(partition, outcome)
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name, partitions=tuple(found[at, number] for number in range(len(topic.partitions)))
            )
            for at, topic in enumerate(request.topics)
        )
    )


async def describe_log_dirs(service: Service, request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    admin = admin_of(service)
    try:
        dirs = await service.call("log-dirs", "log-dirs", admin.log_dirs)
    except Exception as error:  # noqa: BLE001 - answered with its code
        return DescribeLogDirsResponse(error_code=failure_of(error, "log directories")[0])
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    return DescribeLogDirsResponse(results=tuple(_described(each, wanted) for each in dirs))


async def alter_replica_log_dirs(
    service: Service, request: AlterReplicaLogDirsRequest, call: Call
) -> AlterReplicaLogDirsResponse:
    topics, admin = await service.topics(), admin_of(service)
    found: dict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for directory in request.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                partition = served_partition(topics, topic.name, number)
                error = Error.UNKNOWN_TOPIC_OR_PARTITION
                if partition is not None:
                    error = await _begin_move(service, admin, partition, directory.path)
                found[topic.name].append(AlterReplicaLogDirPartitionResult(partition_index=number, error_code=error))
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(partitions))
            for name, partitions in found.items()
        )
    )


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


async def elect_leaders(service: Service, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    """The only broker leads each partition: no election is needed. With all partitions asked for, none is listed.

    Source: kafka `ReplicationControlManager.electLeaders`.
    """
    if request.election_type not in (0, 1):
        return _no_election(request)
    known = await service.topics()
    if request.topic_partitions is None:
        return ElectLeadersResponse(
            replica_election_results=tuple(ReplicaElectionResult(topic=each, partition_result=()) for each in known)
        )
    results = [
        ReplicaElectionResult(
            topic=topic.topic, partition_result=tuple(_elected(known, topic.topic, each) for each in topic.partitions)
        )
        for topic in request.topic_partitions
    ]
    return ElectLeadersResponse(replica_election_results=tuple(results))


def _no_election(request: ElectLeadersRequest) -> ElectLeadersResponse:
    wrong = f"Unknown election type {request.election_type}"
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=tuple(
                PartitionResult(partition_id=each, error_code=Error.INVALID_REQUEST, error_message=wrong)
                for each in topic.partitions
            ),
        )
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=Error.INVALID_REQUEST, replica_election_results=tuple(results))


def _elected(known: Mapping[str, ServedTopic], topic: str, partition: int) -> PartitionResult:
    error, message = Error.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if topic not in known:
        error, message = Error.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    elif served_partition(known, topic, partition) is None:
        error, message = Error.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{partition}"
    return PartitionResult(partition_id=partition, error_code=error, error_message=message)


def _deleted(partition: TopicPartition, outcome: int | Exception) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, Exception):
        error, message = failure_of(outcome, partition)
        # The response has no message.
        _log.info("records not deleted: partition=%s error=%s cause=%s", partition, error.name, message)
        return DeleteRecordsPartitionResult(partition_index=partition.partition, error_code=error)
    return DeleteRecordsPartitionResult(partition_index=partition.partition, low_watermark=outcome)


async def _begin_move(service: Service, admin: Admin, partition: TopicPartition, directory: str) -> Error:
    try:
        check = partial(admin.check_move, partition, directory)
        if await service.call("log-dirs", ("check", partition, directory), check):
            # Not awaited: the client polls DescribeLogDirs. The same move, asked for twice, is one move.
            service.changes.run("moves", ("move", partition, directory), partial(_move, admin, partition, directory))
    except Exception as error:  # noqa: BLE001 - one partition must not fail the others
        code, message = failure_of(error, partition)
        _log.info("partition not moved: partition=%s to=%s error=%s cause=%s", partition, directory, code.name, message)
        return code
    return Error.NONE


def _move(admin: Admin, partition: TopicPartition, directory: str) -> None:
    try:
        admin.move(partition, directory)
    except LogError as error:
        _log.warning("the move of a partition ended: partition=%s to=%s error=%s", partition, directory, error)
    except Exception:  # noqa: BLE001 - the thread serves on
        _log.exception("the move of a partition failed: partition=%s to=%s", partition, directory)


def _described(directory: LogDir, wanted: Collection[tuple[str, int]] | None) -> DescribeLogDirsResult:
    topics: Mapping[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for each in directory.replicas:
        if wanted is None or (each.partition.topic, each.partition.partition) in wanted:
            topics[each.partition.topic].append(_replica(each))
    return DescribeLogDirsResult(
        error_code=Error.KAFKA_STORAGE_ERROR if directory.is_offline else Error.NONE,
        log_dir=directory.path,
        topics=tuple(DescribeLogDirsTopic(name=name, partitions=tuple(each)) for name, each in topics.items()),
        total_bytes=_UNKNOWN if directory.total_bytes is None else directory.total_bytes,
        usable_bytes=_UNKNOWN if directory.free_bytes is None else directory.free_bytes,
        is_cordoned=directory.is_cordoned,
    )


def _replica(replica: Replica) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=replica.partition.partition,
        partition_size=replica.size_bytes,
        offset_lag=_UNKNOWN if replica.is_future else 0,
        is_future_key=replica.is_future,
    )


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
