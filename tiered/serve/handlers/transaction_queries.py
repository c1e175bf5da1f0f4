"""The requests of ``kafka-transactions.sh``: describe and list transactions and producers, and write single markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from local.errors import InvalidRequest, LogError
from tiered.serve.handlers.service import Call, Service, error_of, served_partition
from tiered.serve.handlers.transactions import coordinator, in_pool
from tiered.serve.messages.base import Error
from tiered.serve.messages.transactions import (
    DescribedProducer,
    DescribedTransaction,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tiered.serve.record_source import ServedTopic
from tiered.serve.transactions.coordinator import EndMarker
from tiered.serve.transactions.transaction import State, Transaction

_STATES = {each.label: each for each in State}
PATTERN_LENGTH_MAX = 1000
_NOT_HERE = "This server does not host this topic-partition."  # Kafka's words


async def describe_transactions(
    service: Service, request: DescribeTransactionsRequest, call: Call
) -> DescribeTransactionsResponse:
    # Repeated ids share one object. The limit of a response bounds its bytes.
    found = {each: _described(each, coordinator(service).describe(each)) for each in set(request.transactional_ids)}
    return DescribeTransactionsResponse(transaction_states=tuple(found[each] for each in request.transactional_ids))


async def list_transactions(service: Service, request: ListTransactionsRequest, call: Call) -> ListTransactionsResponse:
    """Source: kafka `TransactionStateManager.listTransactionStates`."""
    known = coordinator(service).transactions()
    if isinstance(known, Error):
        return ListTransactionsResponse(error_code=known)
    unknown = tuple(each for each in request.state_filters if each not in _STATES)
    try:
        matches = _matcher([each.transactional_id for each in known], request.transactional_id_pattern)
    except InvalidRequest:
        return ListTransactionsResponse(error_code=Error.INVALID_REGULAR_EXPRESSION)
    began_before_ms = coordinator(service).now_ms() - request.duration_filter
    listed = [
        ListedTransaction(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state.label
        )
        for each, is_match in zip(known, matches, strict=True)
        if is_match
        and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
        and (not request.state_filters or each.state.label in request.state_filters)
        and (request.duration_filter < 0 or each.start_ms < began_before_ms)
    ]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=tuple(listed))


async def write_txn_markers(service: Service, request: WriteTxnMarkersRequest, call: Call) -> WriteTxnMarkersResponse:
    """End transactions in single partitions, as an operator asks; the coordinator's own markers take no request."""
    topics = await _topics(service)
    return WriteTxnMarkersResponse(markers=tuple([await _written(service, topics, each) for each in request.markers]))


async def describe_producers(
    service: Service, request: DescribeProducersRequest, call: Call
) -> DescribeProducersResponse:
    topics = await _topics(service)
    places = [(topic.name, each) for topic in request.topics for each in topic.partition_indexes]
    # Repeated partitions share one object. The limit of a response bounds its bytes.
    partitions = {place: await _producers(service, topics, *place) for place in dict.fromkeys(places)}
    found = [
        DescribeProducersTopicResponse(
            name=topic.name, partitions=tuple(partitions[topic.name, each] for each in topic.partition_indexes)
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=tuple(found))


def _described(name: str, found: Transaction | Error) -> DescribedTransaction:
    if isinstance(found, Error):
        return DescribedTransaction(transactional_id=name, error_code=found)
    topics = groupby(sorted(found.partitions), attrgetter("topic"))
    return DescribedTransaction(
        transactional_id=name,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(
            TopicData(topic=topic, partitions=tuple(each.partition for each in of_topic)) for topic, of_topic in topics
        ),
    )


def _matcher(names: Sequence[str], pattern: str | None) -> Sequence[bool]:
    """Whether each name as a whole matches. RE2 takes linear time for any pattern. Raises InvalidRequest."""
    if not pattern:
        return [True] * len(names)
    import pyarrow as pa
    import pyarrow.compute as pc

    wrong = "invalid regular expression"
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidRequest(wrong, length=len(pattern), limit=PATTERN_LENGTH_MAX)
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
        found = pc.match_substring_regex(pa.array(names, pa.string()), f"^(?:{pattern})$").to_pylist()
    except pa.ArrowInvalid:
        raise InvalidRequest(wrong, pattern=pattern) from None
    return [each is True for each in found]


async def _written(
    service: Service, topics: Mapping[str, ServedTopic], marker: WritableTxnMarker
) -> WritableTxnMarkerResult:
    end = EndMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        is_commit=marker.transaction_result,
    )
    results = []
    for topic in marker.topics:
        errors = []
        for number in topic.partition_indexes:
            partition = served_partition(topics, topic.name, number)
            error = Error.UNKNOWN_TOPIC_OR_PARTITION
            if partition is not None:
                error = await in_pool(
                    service, topic.name, partial(coordinator(service).end_in_partition, partition, end)
                )
            errors.append(WritableTxnMarkerPartitionResult(partition_index=number, error_code=error))
        results.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=tuple(errors)))
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=tuple(results))


async def _producers(
    service: Service, topics: Mapping[str, ServedTopic], topic: str, number: int
) -> DescribeProducersPartition:
    partition = served_partition(topics, topic, number)
    if partition is None:
        return DescribeProducersPartition(
            partition_index=number,
            error_code=Error.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=_NOT_HERE if topic not in topics else None,
        )
    try:
        found = await in_pool(service, topic, partial(coordinator(service).producers, partition))
    except Exception as error:  # noqa: BLE001 - one partition must not fail the others
        return DescribeProducersPartition(partition_index=number, error_code=error_of(error, partition))
    return DescribeProducersPartition(
        partition_index=number,
        active_producers=tuple(
            DescribedProducer(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_first_offset,
            )
            for each in found
        ),
    )


async def _topics(service: Service) -> Mapping[str, ServedTopic]:
    try:
        return await service.topics()
    except LogError as error:
        error_of(error, "all")
        return {}
