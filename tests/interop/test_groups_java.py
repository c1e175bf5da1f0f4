"""Kafka's own tools consume a node in a group, show, reset and delete it, and read its records."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_artifacts import Kafka

from local.format.record import Record
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.node.endpoint import serving_node

pytestmark = pytest.mark.kafka
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DUMP = "kafka.tools.DumpLogSegments"
PARTITIONS, COUNT, GROUP = 3, 40, "readers"


def now_ms() -> int:
    return time.time_ns() // 10**6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def manager(home: Path) -> Iterator[LogManager]:
    config = Config.load(None, {"group.initial.rebalance.delay.ms": "0"}, {}, local_dir=str(home))
    with LogManager.open(config, now_ms=now_ms()) as manager:
        manager.topics.create("t", PARTITIONS, {}, now_ms=now_ms())
        for partition in range(PARTITIONS):
            records = [Record(None, b"%d of %d" % (at, partition), now_ms()) for at in range(COUNT)]
            manager.append("t", records, partition, now_ms=now_ms())
        yield manager


@pytest.fixture(scope="module")
def address(manager: LogManager) -> Iterator[str]:
    with serving_node(manager, "127.0.0.1", 0, now_ms=now_ms) as server:
        yield "{}:{}".format(*server.address)


def java(kafka: Kafka, tool: str, *words: str) -> str:
    done = subprocess.run(kafka.command(tool, *words), capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    return done.stdout.decode()


def described(kafka: Kafka, address: str) -> dict[int, tuple[int, int, int]]:
    """Committed offset, log end and lag of each partition, as the tool prints them."""
    printed = java(kafka, GROUPS, "--bootstrap-server", address, "--describe", "--group", GROUP)
    rows = [line.split() for line in printed.splitlines() if line.startswith(GROUP)]
    return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}


def test_kafkas_tools_consume_describe_reset_and_delete_a_group(
    kafka: Kafka, home: Path, manager: LogManager, address: str
) -> None:
    server = ("--bootstrap-server", address)
    total = PARTITIONS * COUNT
    words = (*server, "--topic", "t", "--group", GROUP, "--from-beginning", "--max-messages", str(total))
    seen = java(kafka, CONSUMER, *words).splitlines()
    assert set(seen) == {f"{at} of {partition}" for partition in range(PARTITIONS) for at in range(COUNT)}
    assert described(kafka, address) == dict.fromkeys(range(PARTITIONS), (COUNT, COUNT, 0))
    check_dump(kafka, home, manager)
    words = (*server, "--group", GROUP, "--topic", "t", "--reset-offsets", "--to-earliest", "--execute")
    assert java(kafka, GROUPS, *words).count(GROUP) == PARTITIONS
    assert described(kafka, address) == dict.fromkeys(range(PARTITIONS), (0, COUNT, COUNT))
    listed = java(kafka, GROUPS, *server, "--list", "--state").split()
    assert GROUP in listed
    assert "Empty" in listed
    java(kafka, GROUPS, *server, "--delete", "--group", GROUP)
    assert GROUP not in java(kafka, GROUPS, *server, "--list").split()


def check_dump(kafka: Kafka, home: Path, manager: LogManager) -> None:
    """Kafka's decoder of ``__consumer_offsets`` reads the group and its offsets from the files."""
    topic = manager.partitions.registry.find("__consumer_offsets")
    assert topic is not None
    (used,) = [each for each in topic.partitions() if manager.partitions.find(each).log.next_offset]
    folder = home / f"{used.topic}-{used.partition}"
    files = ",".join(str(each) for each in sorted(folder.glob("*.log")))
    printed = java(kafka, DUMP, "--offsets-decoder", "--files", files)
    records = [line for line in printed.splitlines() if " payload: " in line]
    offsets: dict[TopicPartition, int] = {}
    generations = []
    for line in records:
        key = json.loads(line.partition(" key: ")[2].partition(" payload: ")[0])
        value = json.loads(line.partition(" payload: ")[2])["data"]
        if "topic" in key["data"]:
            offsets[TopicPartition(key["data"]["topic"], key["data"]["partition"])] = value["offset"]
        else:
            generations.append((value["generation"], len(value["members"])))
    assert offsets == {TopicPartition("t", at): COUNT for at in range(PARTITIONS)}
    assert generations[0] == (1, 1)
