"""What an administrator may do: the rules of topics, configs, log directories and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from tiered.serve.authorization.permissions import DENIED, DENIED_MESSAGE, may_cluster, operations, split
from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tiered.serve.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tiered.serve.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from tiered.serve.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from tiered.serve.security.acl import CLUSTER_NAME, Kind, Operation

_CLUSTER_DENIED = Error.CLUSTER_AUTHORIZATION_FAILED
_CLUSTER_MESSAGE = "Cluster authorization failed."


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=_Resource)
# Kafka's `ConfigResource.Type`: topics, groups; all other types belong to the cluster.
_KINDS: Mapping[int, Kind] = {2: Kind.TOPIC, 32: Kind.GROUP}
_CONFIG_ERRORS: Mapping[Kind, tuple[Error, str]] = {
    Kind.TOPIC: (DENIED, DENIED_MESSAGE),
    Kind.GROUP: (Error.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    Kind.CLUSTER: (_CLUSTER_DENIED, _CLUSTER_MESSAGE),
}


async def create_topics(
    service: Service, request: CreateTopicsRequest, call: Call, handler: Handler
) -> CreateTopicsResponse:
    """CREATE of the cluster or of each topic. Without DESCRIBE_CONFIGS the response lacks the settings."""
    topics, refused = request.topics, request.topics[:0]
    if not may_cluster(service, call, Operation.CREATE, logs=False):
        topics, refused = split(service, call, Operation.CREATE, Kind.TOPIC, topics, lambda each: each.name)
    response = await handler(service, replace(request, topics=topics), call)
    assert isinstance(response, CreateTopicsResponse)
    shown = [
        each
        if service.may(call, Operation.DESCRIBE_CONFIGS, Kind.TOPIC, each.name, logs=False)
        else replace(each, configs=(), num_partitions=-1, replication_factor=-1)
        for each in response.topics
    ]
    added = [CreatableTopicResult(name=each.name, error_code=DENIED, error_message=DENIED_MESSAGE) for each in refused]
    return replace(response, topics=(*shown, *added))


async def delete_topics(
    service: Service, request: DeleteTopicsRequest, call: Call, handler: Handler
) -> DeleteTopicsResponse:
    """DELETE of the cluster or of each topic.

    The refusal of an id names the topic only with DESCRIBE, and a caller with DESCRIBE learns that there is no topic.
    """
    if may_cluster(service, call, Operation.DELETE, logs=False):
        response = await handler(service, request, call)
        assert isinstance(response, DeleteTopicsResponse)
        return response
    known = await service.topics()  # and the names of ids

    def is_known_missing(name: str) -> bool:
        return name not in known and service.may(call, Operation.DESCRIBE, Kind.TOPIC, name, logs=False)

    topics: list[DeleteTopicState] = []
    refused: list[DeletableTopicResult] = []
    for each in request.topics:
        named = each.name
        if named is None and each.topic_id is not None:
            named = service.names_by_id.get(each.topic_id)
        if named is None or service.may(call, Operation.DELETE, Kind.TOPIC, named):
            topics.append(each)
            continue
        shows_name = each.name is not None or service.may(call, Operation.DESCRIBE, Kind.TOPIC, named, logs=False)
        error = Error.UNKNOWN_TOPIC_OR_PARTITION if is_known_missing(named) else DENIED
        refused.append(_not_deleted(named if shows_name else None, each, error))
    names, others = split(service, call, Operation.DELETE, Kind.TOPIC, request.topic_names, str)
    for name in others:
        error = Error.UNKNOWN_TOPIC_OR_PARTITION if is_known_missing(name) else DENIED
        refused.append(_not_deleted(name, DeleteTopicState(), error))
    response = await handler(service, replace(request, topics=tuple(topics), topic_names=names), call)
    assert isinstance(response, DeleteTopicsResponse)
    return replace(response, responses=(*response.responses, *refused))


def _not_deleted(name: str | None, topic: DeleteTopicState, error: Error) -> DeletableTopicResult:
    message = DENIED_MESSAGE if error is DENIED else "This server does not host this topic-partition."
    return DeletableTopicResult(name=name, topic_id=topic.topic_id, error_code=error, error_message=message)


async def create_partitions(
    service: Service, request: CreatePartitionsRequest, call: Call, handler: Handler
) -> CreatePartitionsResponse:
    topics, refused = split(service, call, Operation.ALTER, Kind.TOPIC, request.topics, lambda each: each.name)
    response = await handler(service, replace(request, topics=topics), call)
    assert isinstance(response, CreatePartitionsResponse)
    added = [
        CreatePartitionsTopicResult(name=each.name, error_code=DENIED, error_message=DENIED_MESSAGE) for each in refused
    ]
    return replace(response, results=(*response.results, *added))


async def describe_topic_partitions(
    service: Service, request: DescribeTopicPartitionsRequest, call: Call, handler: Handler
) -> DescribeTopicPartitionsResponse:
    """Topics without DESCRIBE are left out of a list of all, and refused by name."""
    topics, refused = split(service, call, Operation.DESCRIBE, Kind.TOPIC, request.topics, lambda each: each.name)
    response = DescribeTopicPartitionsResponse()
    if topics or not request.topics:
        found = await handler(service, replace(request, topics=topics), call)
        assert isinstance(found, DescribeTopicPartitionsResponse)
        response = found
    shown = [
        replace(
            each,
            topic_authorized_operations=operations(
                service, call, Kind.TOPIC, each.name or "", each.topic_authorized_operations
            ),
        )
        for each in response.topics
        if service.may(call, Operation.DESCRIBE, Kind.TOPIC, each.name or "", logs=False)
    ]
    added = [DescribeTopicPartitionsResponseTopic(name=each.name, error_code=DENIED) for each in refused]
    cursor = response.next_cursor
    if cursor is not None and not service.may(call, Operation.DESCRIBE, Kind.TOPIC, cursor.topic_name, logs=False):
        cursor = None if not shown else cursor
    return replace(response, topics=(*shown, *added), next_cursor=cursor)


async def describe_configs(
    service: Service, request: DescribeConfigsRequest, call: Call, handler: Handler
) -> DescribeConfigsResponse:
    resources, refused = _split_resources(service, call, Operation.DESCRIBE_CONFIGS, request.resources)
    response = await handler(service, replace(request, resources=resources), call)
    assert isinstance(response, DescribeConfigsResponse)
    added = [DescribeConfigsResult(**_refusal(each)) for each in refused]
    return replace(response, results=(*response.results, *added))


async def alter_configs(
    service: Service, request: AlterConfigsRequest, call: Call, handler: Handler
) -> AlterConfigsResponse:
    resources, refused = _split_resources(service, call, Operation.ALTER_CONFIGS, request.resources)
    response = await handler(service, replace(request, resources=resources), call)
    assert isinstance(response, AlterConfigsResponse)
    added = [AlterConfigsResourceResponse(**_refusal(each)) for each in refused]
    return replace(response, responses=(*response.responses, *added))


def _split_resources(
    service: Service, call: Call, operation: Operation, resources: Iterable[R]
) -> tuple[tuple[R, ...], list[R]]:
    """(permitted, refused) resources of a request about settings, each in its order."""
    permitted: list[R] = []
    refused: list[R] = []
    for each in resources:
        kind = _KINDS.get(each.resource_type, Kind.CLUSTER)
        name = CLUSTER_NAME if kind is Kind.CLUSTER else each.resource_name
        (permitted if service.may(call, operation, kind, name) else refused).append(each)
    return tuple(permitted), refused


def _refusal(resource: _Resource) -> dict[str, Any]:
    """The fields of the result of a refused resource."""
    error, message = _CONFIG_ERRORS[_KINDS.get(resource.resource_type, Kind.CLUSTER)]
    return {
        "error_code": error,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


async def delete_records(
    service: Service, request: DeleteRecordsRequest, call: Call, handler: Handler
) -> DeleteRecordsResponse:
    topics, refused = split(service, call, Operation.DELETE, Kind.TOPIC, request.topics, lambda each: each.name)
    response = await handler(service, replace(request, topics=topics), call)
    assert isinstance(response, DeleteRecordsResponse)
    added = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=tuple(
                DeleteRecordsPartitionResult(partition_index=each.partition_index, error_code=DENIED)
                for each in topic.partitions
            ),
        )
        for topic in refused
    ]
    return replace(response, topics=(*response.topics, *added))


async def describe_log_dirs(
    service: Service, request: DescribeLogDirsRequest, call: Call, handler: Handler
) -> DescribeLogDirsResponse:
    if not may_cluster(service, call, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=_CLUSTER_DENIED)
    response = await handler(service, request, call)
    assert isinstance(response, DescribeLogDirsResponse)
    return response


async def alter_replica_log_dirs(
    service: Service, request: AlterReplicaLogDirsRequest, call: Call, handler: Handler
) -> AlterReplicaLogDirsResponse:
    if may_cluster(service, call, Operation.ALTER):
        response = await handler(service, request, call)
        assert isinstance(response, AlterReplicaLogDirsResponse)
        return response
    partitions: dict[str, dict[int, None]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            partitions.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
    results = [
        AlterReplicaLogDirTopicResult(
            topic_name=name,
            partitions=tuple(
                AlterReplicaLogDirPartitionResult(partition_index=each, error_code=_CLUSTER_DENIED) for each in numbers
            ),
        )
        for name, numbers in partitions.items()
    ]
    return AlterReplicaLogDirsResponse(results=tuple(results))


async def alter_partition_reassignments(
    service: Service, request: AlterPartitionReassignmentsRequest, call: Call, handler: Handler
) -> AlterPartitionReassignmentsResponse:
    if not may_cluster(service, call, Operation.ALTER):
        refusal: dict[str, Any] = {"error_code": _CLUSTER_DENIED, "error_message": _CLUSTER_MESSAGE}
        return AlterPartitionReassignmentsResponse(
            **refusal,
            responses=tuple(
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ReassignablePartitionResponse(partition_index=each.partition_index, **refusal)
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )
    response = await handler(service, request, call)
    assert isinstance(response, AlterPartitionReassignmentsResponse)
    return response


async def list_partition_reassignments(
    service: Service, request: ListPartitionReassignmentsRequest, call: Call, handler: Handler
) -> ListPartitionReassignmentsResponse:
    if not may_cluster(service, call, Operation.DESCRIBE):
        return ListPartitionReassignmentsResponse(error_code=_CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE)
    response = await handler(service, request, call)
    assert isinstance(response, ListPartitionReassignmentsResponse)
    return response


async def elect_leaders(
    service: Service, request: ElectLeadersRequest, call: Call, handler: Handler
) -> ElectLeadersResponse:
    if may_cluster(service, call, Operation.ALTER):
        response = await handler(service, request, call)
        assert isinstance(response, ElectLeadersResponse)
        return response
    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=tuple(
                PartitionResult(partition_id=each, error_code=_CLUSTER_DENIED, error_message=_CLUSTER_MESSAGE)
                for each in topic.partitions
            ),
        )
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=_CLUSTER_DENIED, replica_election_results=tuple(results))
