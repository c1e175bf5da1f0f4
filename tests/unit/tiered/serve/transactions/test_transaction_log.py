"""The coordinator's storage over the logs of a manager: the topic, its records, markers, and a restart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from manager_world import NOW
from manager_world import World as Managers

from local.errors import NotFound
from local.format.record import Record
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.isolation import Isolation
from tiered.manager.manager import LogManager
from tiered.serve.messages.base import Error
from tiered.serve.node.endpoint import transaction_coordinator
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.node.node_source import NodeSource
from tiered.serve.transactions.coordinator import EndMarker, TransactionCoordinator, TransactionSettings
from tiered.serve.transactions.transaction import ProducerOf, Transaction
from tiered.serve.transactions.transaction_log import TRANSACTION_TOPIC, TopicTransactionLog

ORDERS = TopicPartition("orders", 0)
STATE = TopicPartition(TRANSACTION_TOPIC, 0)


@pytest.fixture
def managers() -> Managers:
    made = Managers()
    with made.open() as manager:
        manager.topics.create("orders", 1, {}, now_ms=NOW)
    return made


@pytest.fixture
def manager(managers: Managers) -> Iterator[LogManager]:
    with managers.open() as manager:
        yield manager


def coordinator(manager: LogManager) -> TransactionCoordinator:
    made = transaction_coordinator(manager, NodeSource(manager), NodeSink(manager, lambda: NOW), lambda: NOW)
    assert made.load()
    return made


def storage(manager: LogManager) -> TopicTransactionLog:
    def create(name: str, partitions: int, settings: object) -> None:
        raise AssertionError(f"{name} is there")

    return TopicTransactionLog(NodeSource(manager), NodeSink(manager, lambda: NOW), create, lambda: NOW)


def producer(made: TransactionCoordinator, name: str = "payments") -> ProducerOf:
    found = made.init_producer_id(name, 60_000)
    assert found.error is Error.NONE
    return ProducerOf(transactional_id=name, producer_id=found.producer_id, producer_epoch=found.producer_epoch)


def append(manager: LogManager, of: ProducerOf, value: bytes, sequence: int = 0) -> None:
    batch = encode_batch(
        [Record(b"k", value, NOW)],
        producer_id=of.producer_id,
        producer_epoch=of.producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    NodeSink(manager, lambda: NOW).append(ORDERS, memoryview(bytearray(batch)))


def committed(manager: LogManager) -> list[bytes | None]:
    return [each.value for each in manager.reader(Isolation.READ_COMMITTED).records(ORDERS, 0)]


def test_the_topic_is_created_on_first_use_with_kafkas_settings(manager: LogManager) -> None:
    made = coordinator(manager)
    assert TRANSACTION_TOPIC not in {each.name for each in manager.topics.all()}
    producer(made)
    (topic,) = (each for each in manager.topics.all() if each.name == TRANSACTION_TOPIC)
    expected = {"cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": str(100 << 20)}
    assert (topic.partition_count, dict(topic.properties)) == (1, expected)
    assert manager.partitions.find(STATE).log.next_offset == 1


def test_a_transaction_ends_in_the_log(manager: LogManager) -> None:
    made = coordinator(manager)
    first = producer(made)
    made.add_partitions(first, [ORDERS])
    append(manager, first, b"aborted")
    assert committed(manager) == []
    second = made.end(first, commit=False, client_version=2)
    assert (second.error, second.producer_epoch) == (Error.NONE, 1)
    assert committed(manager) == []
    now = ProducerOf(transactional_id="payments", producer_id=second.producer_id, producer_epoch=1)
    made.add_partitions(now, [ORDERS])
    append(manager, now, b"committed")
    made.end(now, commit=True, client_version=2)
    assert committed(manager) == [b"committed"]
    (entry,) = made.producers(ORDERS)
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.transaction_first_offset) == (2, 0, -1)


def test_a_new_process_finishes_a_prepared_transaction(managers: Managers) -> None:
    with managers.open() as manager:
        made = coordinator(manager)
        of = producer(made)
        made.add_partitions(of, [ORDERS])
        append(manager, of, b"committed")
        log = storage(manager)
        records = list(log.read_all())
        # As if the process had ended after effect 3: the value of a record with another state.
        key, value = records[-1]
        assert value is not None
        prepared = value[:16] + b"\2" + value[17:]
        log.append("payments", key, prepared, is_durable=True)
        assert committed(manager) == []
    with managers.open() as manager:
        made = coordinator(manager)
        assert committed(manager) == [b"committed"]
        found = made.describe("payments")
        assert isinstance(found, Transaction)
        assert found.state.label == "CompleteCommit"


def test_records_survive_a_restart_and_tombstones_remove_ids(managers: Managers) -> None:
    with managers.open() as manager:
        made = coordinator(manager)
        names = [f"id {at}" for at in range(20)]
        made_producers = [producer(made, name) for name in names]
        log = storage(manager)
        key = next(key for key, _ in log.read_all())
        log.append(names[0], key, None, is_durable=True)
    with managers.open() as manager:
        made = coordinator(manager)
        assert made.describe(names[0]) is Error.TRANSACTIONAL_ID_NOT_FOUND
        found = [made.describe(name) for name in names[1:]]
        assert [each.producer_id for each in found if isinstance(each, Transaction)] == [
            each.producer_id for each in made_producers[1:]
        ]


def test_the_settings_have_the_defaults_of_the_coordinator(manager: LogManager) -> None:
    assert TransactionSettings.of(manager.config.int_of) == TransactionSettings()


def test_a_marker_of_a_deleted_partition_is_not_found(manager: LogManager) -> None:
    producer(coordinator(manager))
    log = storage(manager)
    marker = EndMarker(producer_id=1, producer_epoch=0, coordinator_epoch=0, is_commit=True)
    with pytest.raises(NotFound):
        log.write_marker(TopicPartition("deleted", 0), marker)
    with pytest.raises(NotFound):
        log.flush(TopicPartition("deleted", 0))


def test_an_id_of_a_transactional_producer_without_a_batch_is_not_given_again(managers: Managers) -> None:
    with managers.open() as manager:
        sink = NodeSink(manager, lambda: NOW)
        made = transaction_coordinator(manager, NodeSource(manager), sink, lambda: NOW)
        assert made.load()
        assert made.init_producer_id("idle", 60_000).producer_id == 0
    managers.disk.unlink("data/producer-ids.json")
    with managers.open() as manager:
        sink = NodeSink(manager, lambda: NOW)
        made = transaction_coordinator(manager, NodeSource(manager), sink, lambda: NOW)
        assert sink.new_producer_id() > 0
