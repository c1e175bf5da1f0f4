"""What a producer may do: the rules of Produce, InitProducerId and transactions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from local.errors import InvalidRequest
from tiered.serve.authorization.permissions import DENIED, may_cluster, split
from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tiered.serve.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribedTransaction,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tiered.serve.security.acl import Kind, Operation

_ID_DENIED = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_ATTRIBUTES = slice(21, 23)  # of a batch of format 2
_IS_TRANSACTIONAL = 0x10
_BROKERS_SINCE = 4  # AddPartitionsToTxn: newer versions come from brokers


async def produce(service: Service, request: ProduceRequest, call: Call, handler: Handler) -> ProduceResponse | None:
    """WRITE of the transactional id, and of each topic. Raises InvalidRequest for a refusal without a response.

    An unknown id is refused here: the handler may know it from a newer list.
    """
    if _has_transaction(request) and not _may_id(service, call, request.transactional_id):
        return _unproduced(request, request.topic_data, _ID_DENIED)
    if any(each.name is None for each in request.topic_data):
        await service.latest_topics()  # the names of ids
    topics: list[TopicProduceData] = []
    refused: dict[Error, list[TopicProduceData]] = {DENIED: [], Error.UNKNOWN_TOPIC_ID: []}
    for each in request.topic_data:
        name = each.name
        if name is None and each.topic_id is not None:
            name = service.names_by_id.get(each.topic_id)
            if name is None:
                refused[Error.UNKNOWN_TOPIC_ID].append(each)
                continue
        may = name is None or service.may(call, Operation.WRITE, Kind.TOPIC, name)
        (topics if may else refused[DENIED]).append(each)
    if len(topics) == len(request.topic_data):
        response = await handler(service, request, call)
        assert response is None or isinstance(response, ProduceResponse)
        return response
    added = [
        response
        for error, of_error in refused.items()
        if of_error
        for response in _unproduced(request, of_error, error).responses
    ]
    found = await handler(service, replace(request, topic_data=tuple(topics)), call)
    assert isinstance(found, ProduceResponse)
    return replace(found, responses=(*found.responses, *added))


def _has_transaction(request: ProduceRequest) -> bool:
    """Whether the first batch of a partition is transactional. Source: kafka `RequestUtils.hasTransactionalRecords`."""
    pieces = (
        piece for topic in request.topic_data for each in topic.partition_data for piece in (each.records or ())[:1]
    )
    return any(int.from_bytes(piece[_ATTRIBUTES], "big") & _IS_TRANSACTIONAL for piece in pieces)


def _unproduced(request: ProduceRequest, topics: Iterable[TopicProduceData], error: Error) -> ProduceResponse:
    if request.acks == 0:
        raise InvalidRequest("a request without a response was refused", error=error.name)
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    PartitionProduceResponse(index=each.index, error_code=error) for each in topic.partition_data
                ),
            )
            for topic in topics
        )
    )


def _may_id(service: Service, call: Call, transactional_id: str | None, operation: Operation = Operation.WRITE) -> bool:
    return transactional_id is not None and service.may(call, operation, Kind.TRANSACTIONAL_ID, transactional_id)


async def init_producer_id(
    service: Service, request: InitProducerIdRequest, call: Call, handler: Handler
) -> InitProducerIdResponse:
    """WRITE of the transactional id; without one IDEMPOTENT_WRITE of the cluster, or WRITE of some topic (KIP-679)."""
    if request.transactional_id is not None:
        if not _may_id(service, call, request.transactional_id):
            return InitProducerIdResponse(error_code=_ID_DENIED)
    elif not (
        may_cluster(service, call, Operation.IDEMPOTENT_WRITE, logs=False)
        or service.may_some(call, Operation.WRITE, Kind.TOPIC)
    ):
        return InitProducerIdResponse(error_code=Error.CLUSTER_AUTHORIZATION_FAILED)
    response = await handler(service, request, call)
    assert isinstance(response, InitProducerIdResponse)
    return response


async def add_partitions_to_txn(
    service: Service, request: AddPartitionsToTxnRequest, call: Call, handler: Handler
) -> AddPartitionsToTxnResponse:
    """A client: WRITE of the id and of all topics, or nothing is added. A broker: CLUSTER_ACTION."""
    if call.version >= _BROKERS_SINCE:
        if not may_cluster(service, call, Operation.CLUSTER_ACTION):
            return AddPartitionsToTxnResponse(error_code=Error.CLUSTER_AUTHORIZATION_FAILED)
    else:
        topics = request.v3_and_below_topics
        if not _may_id(service, call, request.v3_and_below_transactional_id):
            errors = dict.fromkeys((each.name for each in topics), _ID_DENIED)
        else:
            _, refused = split(service, call, Operation.WRITE, Kind.TOPIC, topics, lambda each: each.name)
            errors = {each.name: DENIED for each in refused}
        if errors:
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=tuple(
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            AddPartitionsToTxnPartitionResult(
                                partition_index=each,
                                partition_error_code=errors.get(topic.name, Error.OPERATION_NOT_ATTEMPTED),
                            )
                            for each in topic.partitions
                        ),
                    )
                    for topic in topics
                )
            )
    response = await handler(service, request, call)
    assert isinstance(response, AddPartitionsToTxnResponse)
    return response


async def add_offsets_to_txn(
    service: Service, request: AddOffsetsToTxnRequest, call: Call, handler: Handler
) -> AddOffsetsToTxnResponse:
    if not _may_id(service, call, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=_ID_DENIED)
    if not service.may(call, Operation.READ, Kind.GROUP, request.group_id):
        return AddOffsetsToTxnResponse(error_code=Error.GROUP_AUTHORIZATION_FAILED)
    response = await handler(service, request, call)
    assert isinstance(response, AddOffsetsToTxnResponse)
    return response


async def txn_offset_commit(
    service: Service, request: TxnOffsetCommitRequest, call: Call, handler: Handler
) -> TxnOffsetCommitResponse:
    if not _may_id(service, call, request.transactional_id):
        return TxnOffsetCommitResponse(topics=_uncommitted(request.topics, _ID_DENIED))
    if not service.may(call, Operation.READ, Kind.GROUP, request.group_id):
        return TxnOffsetCommitResponse(topics=_uncommitted(request.topics, Error.GROUP_AUTHORIZATION_FAILED))
    topics, refused = split(service, call, Operation.READ, Kind.TOPIC, request.topics, lambda each: each.name)
    response = TxnOffsetCommitResponse(topics=())
    if topics or not refused:
        found = await handler(service, replace(request, topics=topics), call)
        assert isinstance(found, TxnOffsetCommitResponse)
        response = found
    return replace(response, topics=(*response.topics, *_uncommitted(refused, DENIED)))


def _uncommitted(
    topics: Iterable[TxnOffsetCommitRequestTopic], error: Error
) -> tuple[TxnOffsetCommitResponseTopic, ...]:
    return tuple(
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=tuple(
                TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ),
        )
        for topic in topics
    )


async def end_txn(service: Service, request: EndTxnRequest, call: Call, handler: Handler) -> EndTxnResponse:
    if not _may_id(service, call, request.transactional_id):
        return EndTxnResponse(error_code=_ID_DENIED)
    response = await handler(service, request, call)
    assert isinstance(response, EndTxnResponse)
    return response


async def write_txn_markers(
    service: Service, request: WriteTxnMarkersRequest, call: Call, handler: Handler
) -> WriteTxnMarkersResponse:
    """ALTER of the cluster, for an administrator, or CLUSTER_ACTION, for a broker."""
    may_alter = may_cluster(service, call, Operation.ALTER, logs=False)
    if may_alter or may_cluster(service, call, Operation.CLUSTER_ACTION):
        response = await handler(service, request, call)
        assert isinstance(response, WriteTxnMarkersResponse)
        return response
    error = Error.CLUSTER_AUTHORIZATION_FAILED
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(partition_index=each, error_code=error)
                            for each in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
    )


async def describe_producers(
    service: Service, request: DescribeProducersRequest, call: Call, handler: Handler
) -> DescribeProducersResponse:
    topics, refused = split(service, call, Operation.READ, Kind.TOPIC, request.topics, lambda each: each.name)
    response = await handler(service, replace(request, topics=topics), call)
    assert isinstance(response, DescribeProducersResponse)
    added = [
        DescribeProducersTopicResponse(
            name=topic.name,
            partitions=tuple(
                DescribeProducersPartition(partition_index=each, error_code=DENIED) for each in topic.partition_indexes
            ),
        )
        for topic in refused
    ]
    return replace(response, topics=(*response.topics, *added))


async def describe_transactions(
    service: Service, request: DescribeTransactionsRequest, call: Call, handler: Handler
) -> DescribeTransactionsResponse:
    kind, ids = Kind.TRANSACTIONAL_ID, request.transactional_ids
    permitted, refused = split(service, call, Operation.DESCRIBE, kind, ids, str)
    response = await handler(service, replace(request, transactional_ids=permitted), call)
    assert isinstance(response, DescribeTransactionsResponse)
    added = [DescribedTransaction(transactional_id=each, error_code=_ID_DENIED) for each in refused]
    return replace(response, transaction_states=(*response.transaction_states, *added))


async def list_transactions(
    service: Service, request: ListTransactionsRequest, call: Call, handler: Handler
) -> ListTransactionsResponse:
    """Transactions without DESCRIBE are left out."""
    response = await handler(service, request, call)
    assert isinstance(response, ListTransactionsResponse)
    shown = [
        each
        for each in response.transaction_states
        if service.may(call, Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, each.transactional_id, logs=False)
    ]
    return replace(response, transaction_states=tuple(shown))
