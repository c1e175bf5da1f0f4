"""Kafka's own tools produce to a node, and this project's reader sees their records once and in order."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest
from kafka_artifacts import Kafka

from local import kernels
from local.format.batch_header import CODEC_BITS
from local.format.compression import Codec
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.node.endpoint import serving_node

pytestmark = pytest.mark.kafka
CONSOLE = "org.apache.kafka.tools.ConsoleProducer"
VERIFIABLE = "org.apache.kafka.tools.VerifiableProducer"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
TOPICS = (*CODECS, "verified", "measured")


def now_ms() -> int:
    return time.time_ns() // 10**6


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LogManager, str]]:
    config = Config.load(None, {}, {}, local_dir=str(tmp_path_factory.mktemp("node")))
    with LogManager.open(config, now_ms=now_ms()) as manager:
        for name in TOPICS:
            manager.topics.create(name, 1, {}, now_ms=now_ms())
        with serving_node(manager, "127.0.0.1", 0, now_ms=now_ms) as server:
            yield manager, "{}:{}".format(*server.address)


def java(kafka: Kafka, tool: str, *words: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(kafka.command(tool, *words), input=stdin, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def stored(manager: LogManager, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(each.key, each.value) for each in manager.reader().records(TopicPartition(topic, 0), 0)]


@pytest.mark.parametrize("codec", CODECS)
def test_the_console_producer_writes_with_every_codec(kafka: Kafka, node: tuple[LogManager, str], codec: str) -> None:
    manager, address = node
    sent = [(b"k%d" % at, b"value %d" % at * 20) for at in range(200)]
    words = ["--bootstrap-server", address, "--topic", codec, "--compression-codec", codec]
    words += ["--property", "parse.key=true", "--property", "key.separator=:"]
    java(kafka, CONSOLE, *words, stdin=b"".join(b"%s:%s\n" % each for each in sent))
    assert stored(manager, codec) == sent
    log = manager.partitions.find(TopicPartition(codec, 0)).log
    table = kernels.scan_batches(log.read(0, 1 << 20))
    assert {int(each) & CODEC_BITS for each in table.attributes} == {CODECS[codec]}
    assert (table.producer_ids >= 0).all(), "a Java producer is idempotent by default"
    assert log.recovery_point == len(sent)


def test_the_verifiable_producer_gets_the_offsets_of_its_records(kafka: Kafka, node: tuple[LogManager, str]) -> None:
    manager, address = node
    words = ["--bootstrap-server", address, "--topic", "verified", "--max-messages", "500", "--acks", "-1"]
    events = [json.loads(line) for line in java(kafka, VERIFIABLE, *words).splitlines()]
    offsets = [each["offset"] for each in events if each["name"] == "producer_send_success"]
    assert sorted(offsets) == list(range(500))
    assert [value for _, value in stored(manager, "verified")] == [b"%d" % at for at in range(500)]


def test_the_performance_tool_writes_all_its_records(kafka: Kafka, node: tuple[LogManager, str]) -> None:
    manager, address = node
    words = ["--topic", "measured", "--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    printed = java(kafka, PERFORMANCE, *words, "--producer-props", f"bootstrap.servers={address}", "acks=all")
    assert b"20000 records sent" in printed
    assert len(stored(manager, "measured")) == 20_000
