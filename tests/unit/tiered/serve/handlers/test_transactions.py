"""The requests of transactions over a coordinator in memory; the errors and their order are Kafka's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TypeVar

import pytest
from fake_source import CALL, FakeSource, run
from fake_transactions import DISK_FULL, ID, P, World

from local.errors import ProducerFenced, Unavailable
from tiered.serve.handlers.service import Service
from tiered.serve.handlers.transaction_queries import (
    describe_producers,
    describe_transactions,
    list_transactions,
    write_txn_markers,
)
from tiered.serve.handlers.transactions import add_partitions_to_txn, end_txn
from tiered.serve.messages.base import Error
from tiered.serve.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribedProducer,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TopicData,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tiered.serve.transactions.transaction import ProducerOf

T = TypeVar("T")
ORDERS = AddPartitionsToTxnTopic(name="orders", partitions=(0,))


def served(
    world: World, work: Callable[[Service], Coroutine[object, object, T]], source: FakeSource | None = None
) -> T:
    async def with_coordinator(service: Service) -> T:
        service.transactions = world.coordinator
        return await work(service)

    return run(source or FakeSource(orders=10), with_coordinator)


def add(world: World, producer: ProducerOf, *topics: AddPartitionsToTxnTopic, version: int = 3) -> list[int]:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=topics,
    )
    call = replace(CALL, version=version)
    return errors(served(world, lambda service: add_partitions_to_txn(service, request, call)))


def errors(response: AddPartitionsToTxnResponse) -> list[int]:
    topics = [*response.results_by_topic_v3_and_below]
    topics += [topic for each in response.results_by_transaction for topic in each.topic_results]
    return [each.partition_error_code for topic in topics for each in topic.results_by_partition]


def end(world: World, producer: ProducerOf, *, version: int, commit: bool = True) -> tuple[Error, int, int]:
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=commit,
    )
    found = served(world, lambda service: end_txn(service, request, replace(CALL, version=version)))
    return found.error_code, found.producer_id, found.producer_epoch


def test_add_and_end_by_an_older_client() -> None:
    world = World()
    producer = world.producer()
    assert add(world, producer, ORDERS) == [Error.NONE]
    assert end(world, producer, version=3) == (Error.NONE, -1, -1)
    assert [each.is_commit for each in world.log.markers[P]] == [True]


def test_the_end_of_version_5_returns_the_next_epoch() -> None:
    world = World()
    producer = world.producer()
    add(world, producer, ORDERS)
    assert end(world, producer, version=5) == (Error.NONE, producer.producer_id, 1)
    assert end(world, replace(producer, producer_epoch=1), version=5) == (Error.INVALID_TXN_STATE, -1, -1)


def test_a_missing_partition_fails_all_partitions() -> None:
    world = World()
    both = replace(ORDERS, partitions=(0, 1))
    missing = [Error.OPERATION_NOT_ATTEMPTED, Error.UNKNOWN_TOPIC_OR_PARTITION]
    assert add(world, world.producer(), both) == missing
    described = served(
        world,
        lambda service: describe_transactions(service, DescribeTransactionsRequest(transactional_ids=(ID,)), CALL),
    )
    assert described.transaction_states[0].transaction_state == "Empty"


@pytest.mark.parametrize(("version", "error"), [(1, Error.INVALID_PRODUCER_EPOCH), (2, Error.PRODUCER_FENCED)])
def test_older_clients_get_the_error_that_they_know(version: int, error: Error) -> None:
    world = World()
    old = world.producer()
    world.producer()
    assert add(world, old, ORDERS, version=version) == [error]
    assert end(world, old, version=version)[0] is error


def test_brokers_add_and_verify_several_transactions() -> None:
    world = World()
    producer = world.producer()

    def one(**changes: object) -> AddPartitionsToTxnTransaction:
        facts = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "topics": (ORDERS,)}
        return AddPartitionsToTxnTransaction(transactional_id=ID, **{**facts, **changes})

    def asked(version: int, *transactions: AddPartitionsToTxnTransaction) -> list[int]:
        request = AddPartitionsToTxnRequest(transactions=transactions)
        call = replace(CALL, version=version)
        return errors(served(world, lambda service: add_partitions_to_txn(service, request, call)))

    assert asked(4, one(verify_only=True)) == [Error.TRANSACTION_ABORTABLE]
    assert asked(5, one(), one(verify_only=True), one(producer_id=1)) == [
        Error.NONE,
        Error.NONE,
        Error.INVALID_PRODUCER_ID_MAPPING,
    ]


def test_unlisted_topics_are_a_reason_to_try_again() -> None:
    world = World()
    source = FakeSource(orders=10)
    source.topics_error = Unavailable("no disk")
    producer = world.producer()
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id=ID, v3_and_below_topics=(ORDERS,))
    call = replace(CALL, version=3)
    found = served(world, lambda service: add_partitions_to_txn(service, request, call), source)
    assert errors(found) == [Error.COORDINATOR_NOT_AVAILABLE]
    assert add(world, producer, ORDERS) == [Error.NONE]


def test_describe_transactions() -> None:
    world = World()
    producer = world.producer(timeout_ms=7000)
    add(world, producer, ORDERS)
    request = DescribeTransactionsRequest(transactional_ids=(ID, "unknown", "", ID))
    found = served(world, lambda service: describe_transactions(service, request, CALL)).transaction_states
    assert [(each.transactional_id, each.error_code) for each in found] == [
        (ID, Error.NONE),
        ("unknown", Error.TRANSACTIONAL_ID_NOT_FOUND),
        ("", Error.INVALID_REQUEST),
        (ID, Error.NONE),
    ]
    assert (found[0].transaction_state, found[0].transaction_timeout_ms) == ("Ongoing", 7000)
    assert (found[0].transaction_start_time, found[0].topics) == (
        1_000_000,
        (TopicData(topic="orders", partitions=(0,)),),
    )


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, [ID, "idle"]),
        ({"state_filters": ("Ongoing", "Open")}, [ID]),
        ({"state_filters": ("Open",)}, []),
        ({"producer_id_filters": (1002,)}, ["idle"]),
        ({"duration_filter": 4999}, [ID, "idle"]),
        ({"duration_filter": 5000}, ["idle"]),  # without a start, as in Kafka
        ({"transactional_id_pattern": "id.*"}, ["idle"]),
        ({"transactional_id_pattern": "dle"}, []),
        ({"transactional_id_pattern": "pay.*|idle"}, [ID, "idle"]),
        ({"transactional_id_pattern": ""}, [ID, "idle"]),
    ],
)
def test_list_transactions(filters: dict[str, object], names: list[str]) -> None:
    world = World()
    producer = world.producer()
    world.producer(transactional_id="idle")
    add(world, producer, ORDERS)
    world.clock.now_ms += 5000
    request = ListTransactionsRequest(**filters)
    found = served(world, lambda service: list_transactions(service, request, CALL))
    assert sorted(each.transactional_id for each in found.transaction_states) == sorted(names)
    assert found.unknown_state_filters == (("Open",) if "Open" in request.state_filters else ())


@pytest.mark.parametrize("pattern", ["(", "a)(b", "[", "x" * 1001])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    request = ListTransactionsRequest(transactional_id_pattern=pattern)
    found = served(World(), lambda service: list_transactions(service, request, CALL))
    assert found.error_code is Error.INVALID_REGULAR_EXPRESSION


def test_a_coordinator_without_its_records_lists_nothing() -> None:
    world = World()
    world.log.read_error = DISK_FULL
    world.coordinator = type(world.coordinator)(world.log, new_producer_id=lambda: 1, clock_ms=world.clock)
    found = served(world, lambda service: list_transactions(service, ListTransactionsRequest(), CALL))
    assert found.error_code is Error.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (None, Error.NONE),
        (DISK_FULL, Error.KAFKA_STORAGE_ERROR),
        (ProducerFenced("old", producer_epoch=1), Error.INVALID_PRODUCER_EPOCH),
        (ProducerFenced("old", coordinator_epoch=1), Error.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_write_txn_markers(failure: ProducerFenced | None, error: Error) -> None:
    world = World()
    if failure is not None:
        world.log.failures[P] = failure
    marker = WritableTxnMarker(
        producer_id=5,
        producer_epoch=6,
        coordinator_epoch=7,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name="orders", partition_indexes=(0, 9)),),
    )
    request = WriteTxnMarkersRequest(markers=(marker,))
    (found,) = served(world, lambda service: write_txn_markers(service, request, CALL)).markers
    assert found.producer_id == 5
    results = [each.error_code for topic in found.topics for each in topic.partitions]
    assert results == [error, Error.UNKNOWN_TOPIC_OR_PARTITION]
    assert len(world.log.markers[P]) == (failure is None)


def test_describe_producers() -> None:
    world = World()
    request = DescribeProducersRequest(topics=(DescribeProducersTopic(name="orders", partition_indexes=(0, 5)),))
    (topic,) = served(world, lambda service: describe_producers(service, request, CALL)).topics
    known, unknown = topic.partitions
    assert unknown.error_code is Error.UNKNOWN_TOPIC_OR_PARTITION
    assert known.active_producers == (
        DescribedProducer(
            producer_id=7,
            producer_epoch=1,
            last_sequence=4,
            last_timestamp=1000,
            coordinator_epoch=3,
            current_txn_start_offset=9,
        ),
    )
    world.log.failures[P] = DISK_FULL
    (topic,) = served(world, lambda service: describe_producers(service, request, CALL)).topics
    assert topic.partitions[0].error_code is Error.KAFKA_STORAGE_ERROR
