"""Transactions of a node beside those of a real broker: the same fields, the same records, and Java clients."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import transaction_calls
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_clients import create_topics, read, wait_for_leaders
from transaction_calls import TOPIC

from local.format.record import Record
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.groups.coordinator_records import decode_transaction_record
from tiered.serve.node.endpoint import serving_node

pytestmark = pytest.mark.kafka
STATE = "__transaction_state"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
SETTINGS = {"offsets.topic.num.partitions": "1"}
COUNT = 100


def now_ms() -> int:
    return time.time_ns() // 10**6


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[LogManager, str]]:
    config = Config.load(None, SETTINGS, {}, local_dir=str(tmp_path / "node"))
    with LogManager.open(config, now_ms=now_ms()) as manager:
        manager.topics.create(TOPIC, 2, {}, now_ms=now_ms())
        with serving_node(manager, "127.0.0.1", 0, now_ms=now_ms) as server:
            yield manager, "{}:{}".format(*server.address)


def states(address: str) -> list[tuple[Any, Any]]:
    """The records of transactions, with producer ids by their position and without times."""
    ids: dict[int, int] = {}
    found = []
    for record in read(address, [STATE])[STATE]:
        key, value = decode_transaction_record(record.key, record.value)
        data = value["data"] if value is not None else None
        if isinstance(data, dict):
            data["producerId"] = ids.setdefault(data["producerId"], len(ids))
            for topic in data["transactionPartitions"] or ():
                topic["partitionIds"].sort()
            for name in list(data):
                if "Timestamp" in name:
                    data[name] = data[name] > 0
        found.append((key, value))
    return found


def test_a_script_of_requests_gets_the_responses_of_a_broker(
    kafka: Kafka, tmp_path: Path, node: tuple[LogManager, str]
) -> None:
    broker = KafkaBroker(kafka, tmp_path / "kafka")
    broker.format()
    broker.start()
    try:
        create_topics(broker.address, {"first": {}})
        with closing(transaction_calls.Requests(broker.address)) as requests:
            transaction_calls.create_topic(requests)
        wait_for_leaders(broker.address, [TOPIC])
        theirs, their_states = transaction_calls.run(broker.address), states(broker.address)
    finally:
        broker.stop()
    _, address = node
    ours, our_states = transaction_calls.run(address), states(address)
    assert [label for label, _ in ours] == [label for label, _ in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other
    assert our_states == their_states
    assert len(ours) > 200


def java(kafka: Kafka, tool: str, *words: str) -> str:
    done = subprocess.run(kafka.command(tool, *words), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    return done.stdout.decode()


def test_kafkas_copier_copies_every_record_once_in_transactions_of_version_2(
    kafka: Kafka, node: tuple[LogManager, str]
) -> None:
    manager, address = node
    manager.topics.create("in", 1, {}, now_ms=now_ms())
    manager.topics.create("out", 1, {}, now_ms=now_ms())
    records = [Record(None, b"%d" % at, now_ms()) for at in range(COUNT)]
    manager.append("in", records, 0, now_ms=now_ms())
    words = ["--input-topic", "in", "--input-partition", "0", "--output-topic", "out", "--broker-list", address]
    words += ["--max-messages", str(COUNT), "--transaction-size", "7", "--consumer-group", "copiers"]
    java(kafka, COPIER, *words, "--transactional-id", "copier", "--use-group-metadata", "--enable-random-aborts")
    copied = manager.reader(Isolation.READ_COMMITTED).records(TopicPartition("out", 0), 0)
    assert [each.value for each in copied] == [each.value for each in records]
    versions = {value["data"].get("clientTransactionVersion", 0) for _, value in states(address) if value is not None}
    assert versions == {0, 2}, "the state before the first transaction has none"


def test_kafkas_command_finds_and_aborts_transactions(kafka: Kafka, node: tuple[LogManager, str]) -> None:
    manager, address = node
    script = transaction_calls.Script(address)
    try:
        script.find_coordinators()
        producer = script.init("init", "hanging", 5)
        script.produce("produce", producer, 0, 12)
        listed = java(kafka, TRANSACTIONS, "--bootstrap-server", address, "list")
        assert ["hanging", "1", str(producer.producer_id), "Ongoing"] in [each.split() for each in listed.splitlines()]
        words = ["--bootstrap-server", address, "describe", "--transactional-id", "hanging"]
        assert f"{TOPIC}-0" in java(kafka, TRANSACTIONS, *words)
        words = ["--bootstrap-server", address, "describe-producers", "--topic", TOPIC, "--partition", "0"]
        assert str(producer.producer_id) in java(kafka, TRANSACTIONS, *words)
        words = ["--bootstrap-server", address, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0"]
        java(kafka, TRANSACTIONS, *words)
        log = manager.partitions.find(TopicPartition(TOPIC, 0)).log
        assert log.view.last_stable_offset == log.next_offset == 2
    finally:
        script.close()
