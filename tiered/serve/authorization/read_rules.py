"""What a reader may do: the rules of Metadata, DescribeCluster, ListOffsets, OffsetForLeaderEpoch and Fetch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiered.serve.authorization.permissions import DENIED, cluster_operations, may_cluster, operations, split
from tiered.serve.handlers.fetch import throttled_fetch
from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tiered.serve.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tiered.serve.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tiered.serve.security.acl import Kind, Operation
from tiered.serve.security.quotas import Rate

_NO_SESSION, _FINAL_EPOCH = 0, -1


async def metadata(service: Service, request: MetadataRequest, call: Call, handler: Handler) -> MetadataResponse:
    """Topics without DESCRIBE are left out of a list of all, and refused without their id, or without their name."""
    requested, refused = request.topics, list[MetadataResponseTopic]()
    wants_all = requested is None or (call.version == 0 and not requested)
    inner = call
    if not wants_all:
        named: list[MetadataRequestTopic] = []
        for each in requested or ():
            if each.name is None or service.may(call, Operation.DESCRIBE, Kind.TOPIC, each.name):
                named.append(each)
            else:
                refused.append(MetadataResponseTopic(error_code=DENIED, name=each.name))
        request = replace(request, topics=tuple(named))
        inner = replace(call, version=max(1, call.version))  # an empty list is no list of all
    response = await handler(service, request, inner)
    assert isinstance(response, MetadataResponse)
    by_id = {each.topic_id for each in requested or () if each.name is None}
    topics = []
    for topic in response.topics:
        if topic.name is None or service.may(call, Operation.DESCRIBE, Kind.TOPIC, topic.name, logs=not wants_all):
            allowed = operations(service, call, Kind.TOPIC, topic.name or "", topic.topic_authorized_operations)
            topics.append(replace(topic, topic_authorized_operations=allowed))
        elif topic.topic_id in by_id:
            refused.append(MetadataResponseTopic(error_code=DENIED, topic_id=topic.topic_id))
    cluster = cluster_operations(service, call, response.cluster_authorized_operations)
    return replace(response, topics=(*topics, *refused), cluster_authorized_operations=cluster)


async def describe_cluster(
    service: Service, request: DescribeClusterRequest, call: Call, handler: Handler
) -> DescribeClusterResponse:
    response = await handler(service, request, call)
    assert isinstance(response, DescribeClusterResponse)
    cluster = cluster_operations(service, call, response.cluster_authorized_operations)
    return replace(response, cluster_authorized_operations=cluster)


async def list_offsets(
    service: Service, request: ListOffsetsRequest, call: Call, handler: Handler
) -> ListOffsetsResponse:
    topics, refused = split(service, call, Operation.DESCRIBE, Kind.TOPIC, request.topics, lambda each: each.name)
    response = await handler(service, replace(request, topics=topics), call)
    assert isinstance(response, ListOffsetsResponse)
    added = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=tuple(
                ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=DENIED)
                for each in topic.partitions
            ),
        )
        for topic in refused
    ]
    return replace(response, topics=(*response.topics, *added))


async def offset_for_leader_epoch(
    service: Service, request: OffsetForLeaderEpochRequest, call: Call, handler: Handler
) -> OffsetForLeaderEpochResponse:
    topics, refused = request.topics, request.topics[:0]
    if not may_cluster(service, call, Operation.CLUSTER_ACTION, logs=False):
        topics, refused = split(service, call, Operation.DESCRIBE, Kind.TOPIC, topics, lambda each: each.topic)
    response = await handler(service, replace(request, topics=topics), call)
    assert isinstance(response, OffsetForLeaderEpochResponse)
    added = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=tuple(EpochEndOffset(partition=each.partition, error_code=DENIED) for each in topic.partitions),
        )
        for topic in refused
    ]
    return replace(response, topics=(*response.topics, *added))


async def fetch(service: Service, request: FetchRequest, call: Call, handler: Handler) -> FetchResponse:
    """READ of every topic. A refused topic is in no fetch session; one that a session has loses its records.

    A principal with a debt of bytes gets an empty response. A response is no larger than its quota allows at once.
    """
    if request.topics and any(each.topic is None for each in request.topics):
        await service.latest_topics()  # the names of ids; `_readable` checks those of a newer list
    permitted: list[FetchTopic] = []
    refused: list[FetchTopic] = []
    for topic in request.topics:
        name = _name(service, topic)
        is_permitted = name is None or service.may(call, Operation.READ, Kind.TOPIC, name)
        (permitted if is_permitted else refused).append(topic)
    if refused and request.session_id != _NO_SESSION:
        return FetchResponse(error_code=Error.FETCH_SESSION_ID_NOT_FOUND)
    if refused:
        request = replace(request, topics=tuple(permitted), session_epoch=_FINAL_EPOCH)
    quotas = service.security.quotas if service.security is not None else None
    if quotas is not None:
        if quotas.record(call.principal, Rate.FETCH, 0) > 0:
            return throttled_fetch(service, request, call)
        burst = quotas.burst(call.principal, Rate.FETCH)
        request = request if burst is None else replace(request, max_bytes=min(request.max_bytes, burst))
    response = await handler(service, request, call)
    assert isinstance(response, FetchResponse)
    responses = [_readable(service, call, each) for each in response.responses]
    return replace(response, responses=(*responses, *map(_refused_fetch, refused)))


def _name(service: Service, topic: FetchTopic | FetchableTopicResponse) -> str | None:
    if topic.topic is not None:
        return topic.topic
    return service.names_by_id.get(topic.topic_id) if topic.topic_id is not None else None


def _readable(service: Service, call: Call, topic: FetchableTopicResponse) -> FetchableTopicResponse:
    """The response of a topic, without records if the caller lost its permission during a fetch session."""
    name = _name(service, topic)
    if name is None or service.may(call, Operation.READ, Kind.TOPIC, name):
        return topic
    numbers = [each.partition_index for each in topic.partitions]
    return replace(topic, partitions=_refused_partitions(numbers))


def _refused_fetch(topic: FetchTopic) -> FetchableTopicResponse:
    numbers = [each.partition for each in topic.partitions]
    return FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=_refused_partitions(numbers))


def _refused_partitions(numbers: Sequence[int]) -> tuple[PartitionData, ...]:
    return tuple(PartitionData(partition_index=each, error_code=DENIED) for each in numbers)
