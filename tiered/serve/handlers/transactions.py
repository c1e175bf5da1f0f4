"""The requests of transactional producers: InitProducerId with an id, AddPartitionsToTxn, EndTxn.

Every call may wait for the disk, so it runs in a pool. Several calls for one id do not wait for each other: all but one
get CONCURRENT_TRANSACTIONS (`tiered.serve.transactions.coordinator`).

Older clients do not know PRODUCER_FENCED and get INVALID_PRODUCER_EPOCH. Source: kafka `KafkaApis`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from local.errors import LogError
from local.names import TopicPartition
from tiered.serve.handlers.service import Call, Service, error_of, served_partition
from tiered.serve.messages.base import Error
from tiered.serve.messages.produce import NO_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse
from tiered.serve.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)
from tiered.serve.transactions.coordinator import TransactionCoordinator
from tiered.serve.transactions.transaction import VERSION_0, VERSION_2, ProducerOf

BATCHED_SINCE = 4  # AddPartitionsToTxn: several transactions, for brokers
VERSION_2_SINCE = 5  # EndTxn and AddPartitionsToTxn of clients with transaction version 2
KNOWS_FENCED_SINCE = 2  # AddPartitionsToTxn, AddOffsetsToTxn and EndTxn
INIT_KNOWS_FENCED_SINCE = 4  # InitProducerId
T = TypeVar("T")


async def add_partitions_to_txn(
    service: Service, request: AddPartitionsToTxnRequest, call: Call
) -> AddPartitionsToTxnResponse:
    if call.version < BATCHED_SINCE:
        only = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _added(service, only, call))
    results = [
        AddPartitionsToTxnResult(
            transactional_id=each.transactional_id, topic_results=await _added(service, each, call)
        )
        for each in request.transactions
    ]
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))


async def init_transactional_producer(
    service: Service, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse:
    """InitProducerId with a transactional id. The two-phase commit of KIP-939 is not offered."""
    name = request.transactional_id
    if service.transactions is None or name is None or (name and request.enable2_pc):
        return InitProducerIdResponse(error_code=Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if name and request.keep_prepared_txn:
        return InitProducerIdResponse(error_code=Error.UNSUPPORTED_VERSION)
    continued = (request.producer_id, request.producer_epoch) if request.producer_id != NO_PRODUCER_ID else None
    init = partial(service.transactions.init_producer_id, name, request.transaction_timeout_ms, continued)
    found = await in_pool(service, name, init)
    return InitProducerIdResponse(
        error_code=known_error(found.error, call.version, INIT_KNOWS_FENCED_SINCE),
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
    )


async def end_txn(service: Service, request: EndTxnRequest, call: Call) -> EndTxnResponse:
    producer = ProducerOf(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    version = VERSION_2 if call.version >= VERSION_2_SINCE else VERSION_0
    end = partial(coordinator(service).end, producer, commit=request.committed, client_version=version)
    found = await in_pool(service, request.transactional_id, end)
    return EndTxnResponse(
        error_code=known_error(found.error, call.version),
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
    )


def coordinator(service: Service) -> TransactionCoordinator:
    assert service.transactions is not None, "offered with a coordinator only"
    return service.transactions


async def in_pool(service: Service, transactional_id: str, work: Callable[[], T]) -> T:
    """Run a call of the coordinator. It ends even if the client's connection does."""
    return await asyncio.shield(service.transaction_calls.run(transactional_id, object(), work))


def known_error(error: Error, version: int, since: int = KNOWS_FENCED_SINCE) -> Error:
    """The error as a client of that version knows it."""
    return Error.INVALID_PRODUCER_EPOCH if error is Error.PRODUCER_FENCED and version < since else error


async def _added(
    service: Service, transaction: AddPartitionsToTxnTransaction, call: Call
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    """The results of one transaction. If one partition does not exist, none is added."""
    try:
        topics = await service.topics()
    except LogError as error:
        error_of(error, "all")
        return _results(transaction.topics, lambda topic, number: Error.COORDINATOR_NOT_AVAILABLE)
    named = {(topic.name, number) for topic in transaction.topics for number in topic.partitions}
    found = {each: served_partition(topics, *each) for each in named}
    if None in found.values():

        def missing(topic: str, number: int) -> Error:
            is_there = found[topic, number] is not None
            return Error.OPERATION_NOT_ATTEMPTED if is_there else Error.UNKNOWN_TOPIC_OR_PARTITION

        return _results(transaction.topics, missing)
    producer = ProducerOf(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
    )
    partitions = [each for each in found.values() if each is not None]
    if transaction.verify_only:
        verdicts = coordinator(service).verify_partitions(producer, partitions)
        return _results(transaction.topics, lambda topic, number: verdicts[TopicPartition(topic, number)])
    version = VERSION_2 if call.version >= VERSION_2_SINCE else VERSION_0
    add = partial(coordinator(service).add_partitions, producer, partitions, client_version=version)
    outcome = known_error(await in_pool(service, transaction.transactional_id, add), call.version)
    return _results(transaction.topics, lambda topic, number: outcome)


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], error: Callable[[str, int], Error]
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=error(topic.name, number)
                )
                for number in topic.partitions
            ),
        )
        for topic in topics
    )
