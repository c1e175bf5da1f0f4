"""ApiVersions, Metadata and DescribeCluster: this server is the only broker and the leader of every partition.

Replicas with peers (`tiered.serve.peers`) name all live replicas as brokers, each the leader of its partitions.

Metadata of a replica states no leader epoch (-1). Replicas of one bucket know manifests of different ages, so an epoch
of one would make another refuse the client's next request (UNKNOWN_LEADER_EPOCH). Clients then skip the check of
epochs. A node states its own; a partition that it cannot serve has no leader, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from local.errors import InvalidRequest, LogError
from local.names import TopicPartition, check_topic
from tiered.serve.handlers.service import Call, Service, error_of
from tiered.serve.messages.base import NO_OPERATIONS, Api, Error
from tiered.serve.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from tiered.serve.peers import Member
from tiered.serve.protocol import supported
from tiered.serve.record_source import INTERNAL_TOPICS, Leader, ServedTopic
from tiered.serve.transactions.transaction import VERSION_2

# Bits of kafka's `AclOperation`
# The bits of `Operation` that a topic and the cluster offer. Source: kafka `AclEntry.supportedOperations`.
_TOPIC_OPERATIONS = sum(1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS = sum(1 << each for each in (5, 7, 8, 9, 10, 11, 12))
_READ, _DESCRIBE = 1 << 3, 1 << 8  # what a bucket offers
_BROKERS = 1  # the endpoint type
_NO_LEADER = -1
_UNKNOWN = Leader()
_TRANSACTION_VERSION, _GROUP_VERSION = "transaction.version", "group.version"
_IMPLICIT_SINCE = 12  # Produce: adds its partitions to the transaction, as version 2 of the feature needs
_FROM_0_SINCE = 4  # ApiVersions: older clients refuse a feature whose oldest version is 0


async def api_versions(service: Service, request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    versions = supported(service.apis)
    produce = service.apis.get(Api.PRODUCE)
    newest = {_GROUP_VERSION: 1} if Api.CONSUMER_GROUP_HEARTBEAT in service.apis else {}
    if service.transactions is not None and produce is not None and produce.max_version >= _IMPLICIT_SINCE:
        newest[_TRANSACTION_VERSION] = VERSION_2
    if not newest:
        return versions
    features = [SupportedFeatureKey(name=name, min_version=0, max_version=each) for name, each in newest.items()]
    final = [
        FinalizedFeatureKey(name=name, min_version_level=each, max_version_level=each) for name, each in newest.items()
    ]
    return replace(
        versions,
        supported_features=tuple(features) if call.version >= _FROM_0_SINCE else (),
        finalized_features_epoch=0,
        finalized_features=tuple(final),
    )


async def metadata(service: Service, request: MetadataRequest, call: Call) -> MetadataResponse:
    wants_all = request.topics is None or (call.version == 0 and not request.topics)
    failure: Error = Error.NONE
    known: Mapping[str, ServedTopic] = {}
    if wants_all or request.topics:
        try:
            known = await service.topics()
        except LogError as error:
            failure = error_of(error, "all")
    # A repeated topic has one description, as in Kafka: it would multiply the response.
    requested = {each.topic_id if each.name is None else each.name: each for each in request.topics or ()}.values()
    operations = topic_operations(service) if request.include_topic_authorized_operations else NO_OPERATIONS
    if wants_all:
        topics = [described_topic(service, topic, operations) for topic in known.values()]
    elif failure is not Error.NONE:
        topics = [_failed(each, Error.KAFKA_STORAGE_ERROR) for each in requested]
    else:
        topics = [_named(service, known, each, operations) for each in requested]
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=each.broker_id, host=each.endpoint.host, port=each.endpoint.port)
            for each in _brokers(service, call)
        ),
        cluster_id=service.source.cluster_id,
        controller_id=service.broker_id,
        topics=tuple(topics),
        cluster_authorized_operations=(
            _cluster_operations(service) if request.include_cluster_authorized_operations else NO_OPERATIONS
        ),
        error_code=failure,
    )


async def describe_cluster(service: Service, request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        message = f"endpoint type {request.endpoint_type} is not served; only brokers (1) are"
        return DescribeClusterResponse(
            error_code=Error.INVALID_REQUEST, error_message=message, endpoint_type=request.endpoint_type
        )
    return DescribeClusterResponse(
        cluster_id=service.source.cluster_id,
        controller_id=service.broker_id,
        brokers=tuple(
            DescribeClusterBroker(broker_id=each.broker_id, host=each.endpoint.host, port=each.endpoint.port)
            for each in _brokers(service, call)
        ),
        cluster_authorized_operations=(
            _cluster_operations(service) if request.include_cluster_authorized_operations else NO_OPERATIONS
        ),
    )


def topic_operations(service: Service) -> int:
    """The operations that topics have here, as bits."""
    return _READ | _DESCRIBE if service.admin is None else _TOPIC_OPERATIONS


def _cluster_operations(service: Service) -> int:
    return _DESCRIBE if service.admin is None else _CLUSTER_OPERATIONS


def _brokers(service: Service, call: Call) -> Sequence[Member]:
    if service.peers is not None:
        return service.peers.alive
    return (Member(broker_id=service.broker_id, endpoint=call.endpoint),)


def _named(
    service: Service, known: Mapping[str, ServedTopic], requested: MetadataRequestTopic, operations: int
) -> MetadataResponseTopic:
    name, topic_id = requested.name, requested.topic_id
    if name is None and topic_id is not None:
        name = service.names_by_id.get(topic_id)
    topic = known.get(name) if name is not None else None
    if topic is not None:
        return described_topic(service, topic, operations)
    if requested.name is None:
        return _failed(requested, Error.UNKNOWN_TOPIC_ID)
    return replace(_failed(requested, missing_topic(requested.name)), topic_authorized_operations=operations)


def missing_topic(name: str) -> Error:
    try:
        check_topic(name)
    except InvalidRequest:
        return Error.INVALID_TOPIC_EXCEPTION
    return Error.UNKNOWN_TOPIC_OR_PARTITION


def _failed(requested: MetadataRequestTopic, error: Error) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=requested.name, topic_id=requested.topic_id)


def described_topic(service: Service, topic: ServedTopic, operations: int) -> MetadataResponseTopic:
    leaders = service.source.leaders(topic)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            _led(service, topic.name, number, leaders.get(number, _UNKNOWN)) for number in topic.partitions
        ),
        topic_authorized_operations=operations,
    )


def _led(service: Service, topic: str, number: int, leader: Leader) -> MetadataResponsePartition:
    peers, broker_id = service.peers, service.broker_id
    if peers is not None:
        broker_id = peers.leader_of(TopicPartition(topic, number)).broker_id
    here = (broker_id,)
    return MetadataResponsePartition(
        error_code=Error.NONE if leader.error is None else Error.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=broker_id if leader.error is None else _NO_LEADER,
        leader_epoch=-1 if leader.epoch is None else leader.epoch,
        replica_nodes=here,
        isr_nodes=here,
        offline_replicas=here if leader.is_offline else (),
    )
