"""Kafka's own command-line tools administer a node: what they print, and what they changed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka_artifacts import Kafka
from served_bucket import filled_store, serving

from local.format.record import Record
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.node.endpoint import serving_node

pytestmark = pytest.mark.kafka
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
SECONDS_MAX = 60


class Tools:
    """Runs a tool against a node."""

    def __init__(self, kafka: Kafka, address: str) -> None:
        self._kafka = kafka
        self._address = address

    def run(self, tool: str, *words: str) -> str:
        done = self._done(tool, *words)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def fail(self, tool: str, *words: str) -> str:
        """What a tool prints that must fail."""
        done = self._done(tool, *words)
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    def _done(self, tool: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = self._kafka.command(tool, "--bootstrap-server", self._address, *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Node(NamedTuple):
    manager: LogManager
    tools: Tools
    first: Path
    second: Path


@pytest.fixture(scope="module")
def node(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = tmp_path_factory.mktemp("node")
    first, second = home / "first", home / "second"
    config = replace(Config.load(None, {}, {}, local_dir=str(first)), more_data_dirs=(str(second),))
    with (
        LogManager.open(config, now_ms=_now_ms()) as manager,
        serving_node(manager, "127.0.0.1", 0, now_ms=_now_ms) as server,
    ):
        yield Node(manager, Tools(kafka, "{}:{}".format(*server.address)), first, second)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_kafka_topics_creates_describes_grows_and_deletes(node: Node) -> None:
    manager, tools = node.manager, node.tools
    settings = ("--config", "retention.ms=86400000", "--config", "cleanup.policy=compact")
    tools.run(TOPICS, "--create", "--topic", "orders", "--partitions", "2", "--replication-factor", "1", *settings)
    assert manager.topics.get("orders").properties == {"retention.ms": "86400000", "cleanup.policy": "compact"}
    assert "already exists" in tools.fail(TOPICS, "--create", "--topic", "orders")
    tools.run(TOPICS, "--create", "--if-not-exists", "--topic", "orders")
    too_many = tools.fail(TOPICS, "--create", "--topic", "more", "--replication-factor", "3")
    assert "only 1 broker(s) are registered" in too_many
    tools.run(TOPICS, "--alter", "--topic", "orders", "--partitions", "3")
    assert "2 would not be an increase" in tools.fail(TOPICS, "--alter", "--topic", "orders", "--partitions", "2")
    described = tools.run(TOPICS, "--describe", "--topic", "orders").splitlines()
    topic_id = manager.topics.get("orders").topic_id
    assert described[0].split("\t") == [
        "Topic: orders",
        f"TopicId: {topic_id}",
        "PartitionCount: 3",
        "ReplicationFactor: 1",
        "Configs: cleanup.policy=compact,retention.ms=86400000",
    ]
    assert [each.split("\t")[2:6] for each in described[1:]] == [
        [f"Partition: {number}", "Leader: 1", "Replicas: 1", "Isr: 1"] for number in range(3)
    ]
    assert "orders" in tools.run(TOPICS, "--list").split()
    tools.run(TOPICS, "--delete", "--topic", "orders")
    assert "does not exist" in tools.fail(TOPICS, "--describe", "--topic", "orders")
    assert [each.name for each in manager.topics.all() if each.name == "orders"] == []


def test_kafka_leader_election_finds_the_leaders_elected(node: Node) -> None:
    node.manager.topics.create("led", 2, {}, now_ms=_now_ms())
    printed = node.tools.run(ELECT, "--election-type", "preferred", "--topic", "led", "--partition", "1")
    assert "Valid replica already elected for partitions led-1" in printed
    node.tools.run(ELECT, "--election-type", "unclean", "--all-topic-partitions")
    missing = node.tools.fail(ELECT, "--election-type", "preferred", "--topic", "led", "--partition", "7")
    assert "No such partition as led-7" in missing
    node.manager.topics.delete("led", now_ms=_now_ms())


def test_kafka_configs_describes_and_alters(node: Node) -> None:
    manager, tools = node.manager, node.tools
    manager.topics.create("set", 1, {"segment.ms": "60000"}, now_ms=_now_ms())
    here = ("--entity-type", "topics", "--entity-name", "set")
    changes = ("--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]", "--delete-config", "segment.ms")
    tools.run(CONFIGS, "--alter", *here, *changes)
    assert manager.topics.get("set").properties == {"retention.ms": "5000", "cleanup.policy": "compact,delete"}
    described = tools.run(CONFIGS, "--describe", *here).splitlines()[1:]
    assert sorted(each.strip() for each in described) == [
        "cleanup.policy=delete,compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=delete,compact, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000, "
        "DEFAULT_CONFIG:log.retention.ms=604800000}",
    ]
    whole = tools.run(CONFIGS, "--describe", "--all", *here)
    assert "  remote.storage.enable=false sensitive=false" in whole
    assert "did_you_mean=retention.ms" in tools.fail(CONFIGS, "--alter", *here, "--add-config", "retenton.ms=1")
    assert "'x'" in tools.fail(CONFIGS, "--alter", *here, "--add-config", "retention.ms=x")


def test_kafka_configs_shows_the_node_and_cannot_change_it(node: Node) -> None:
    here = ("--entity-type", "brokers", "--entity-name", "1")
    described = node.tools.run(CONFIGS, "--describe", "--all", *here)
    assert f"  log.dirs={node.first},{node.second} sensitive=false" in described
    assert "  auto.create.topics.enable=false" in described
    assert "tiered.toml" in node.tools.fail(CONFIGS, "--alter", *here, "--add-config", "log.retention.ms=5")


def test_kafka_delete_records_raises_the_log_start(node: Node, tmp_path: Path) -> None:
    manager, tools = node.manager, node.tools
    manager.topics.create("numbers", 2, now_ms=_now_ms())
    for number in (0, 1):
        manager.append("numbers", [Record(None, b"v", _now_ms())] * 20, number, now_ms=_now_ms())
    wanted = [{"topic": "numbers", "partition": 0, "offset": 7}, {"topic": "numbers", "partition": 1, "offset": -1}]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": wanted, "version": 1}))
    printed = tools.run(RECORDS, "--offset-json-file", str(file))
    assert "partition: numbers-0\tlow_watermark: 7" in printed
    assert "partition: numbers-1\tlow_watermark: 20" in printed
    offsets = tools.run(OFFSETS, "--topic", "numbers", "--time", "earliest").split()
    assert offsets == ["numbers:0:7", "numbers:1:20"]
    wanted[0]["offset"] = 21
    file.write_text(json.dumps({"partitions": wanted[:1], "version": 1}))
    assert "OffsetOutOfRange" in tools.run(RECORDS, "--offset-json-file", str(file))


def test_kafkas_tools_move_a_partition_between_log_directories(node: Node, tmp_path: Path) -> None:
    manager, tools = node.manager, node.tools
    manager.topics.create("moving", 1, now_ms=_now_ms())
    name = TopicPartition("moving", 0)
    manager.append("moving", [Record(None, b"v" * 100, _now_ms())] * 50, 0, now_ms=_now_ms())
    source = manager.directories.of(name).root
    target = str(node.second) if source == str(node.first) else str(node.first)
    plan = {"topic": "moving", "partition": 0, "replicas": [1], "log_dirs": [target]}
    file = tmp_path / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": [plan]}))
    printed = tools.run(REASSIGN, "--reassignment-json-file", str(file), "--execute")
    assert f"Successfully started moving log directory to {target}" in printed
    due = time.monotonic() + SECONDS_MAX
    while manager.directories.of(name).root != target:
        assert time.monotonic() < due, "the partition was not moved"
        time.sleep(0.05)
    printed = tools.run(REASSIGN, "--reassignment-json-file", str(file), "--verify")
    assert "Reassignment of replica moving-0-1 completed successfully" in printed
    listed = json.loads(tools.run(LOG_DIRS, "--describe", "--topic-list", "moving").splitlines()[-1])
    (broker,) = listed["brokers"]
    size_bytes = manager.partitions.find(name).log.size_bytes
    replica = {"partition": "moving-0", "size": size_bytes, "offsetLag": 0, "isFuture": False}
    assert {each["logDir"]: each["partitions"] for each in broker["logDirs"]} == {source: [], target: [replica]}


def test_kafka_topics_describes_a_bucket(kafka: Kafka) -> None:
    with RemoteLog(filled_store()) as bucket, serving(bucket) as server:
        tools = Tools(kafka, "{}:{}".format(*server.address))
        described = tools.run(TOPICS, "--describe", "--topic", "plain").splitlines()
    assert described[0].split("\t")[2:4] == ["PartitionCount: 2", "ReplicationFactor: 1"]
    assert "segment.bytes=20000" in described[0]
    assert len(described) == 3
