"""Kafka's own tools read a bucket through ``tiered serve`` and see what this project's reader sees."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from kafka_artifacts import Kafka
from served_bucket import TOPICS, filled_store, serving

from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.read.bucket_reader import RemoteLog

pytestmark = pytest.mark.kafka
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
FORMAT = [f"--property=print.{name}=true" for name in ("offset", "timestamp", "key")]


@pytest.fixture(scope="module")
def bucket() -> Iterator[RemoteLog]:
    with RemoteLog(filled_store()) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def address(bucket: RemoteLog) -> Iterator[str]:
    with serving(bucket) as server:
        yield "{}:{}".format(*server.address)


def _java(kafka: Kafka, tool: str, *words: str) -> bytes:
    command = [kafka.java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", kafka.class_path, tool, *words]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


@pytest.mark.parametrize(
    ("topic", "isolation"), [("banking", Isolation.READ_COMMITTED), ("newest", Isolation.READ_UNCOMMITTED)]
)
def test_the_console_consumer_sees_the_records_of_the_bucket(
    kafka: Kafka, bucket: RemoteLog, address: str, topic: str, isolation: Isolation
) -> None:
    records = list(bucket.reader(isolation).records(TopicPartition(topic, 0), 0))
    expected = [
        b"CreateTime:%d\tOffset:%d\t%s\t%s" % (each.timestamp_ms, each.offset, each.key, each.value) for each in records
    ]
    words = ["--bootstrap-server", address, "--topic", topic, "--partition", "0", "--offset", "earliest", *FORMAT]
    words += ["--isolation-level", isolation.value, "--max-messages", str(len(records))]
    assert _java(kafka, CONSUMER, *words).splitlines() == expected


@pytest.mark.parametrize("spec", ["-1", "-3"])
def test_get_offsets_finds_the_offsets_of_the_bucket(kafka: Kafka, bucket: RemoteLog, address: str, spec: str) -> None:
    names = [name for topic in sorted(TOPICS) for name in bucket.partitions(topic)]
    found = bucket.list_offsets(dict.fromkeys(names, int(spec)))
    printed = _java(kafka, OFFSETS, "--bootstrap-server", address, "--time", spec).decode().split()
    offsets = {name: each.offset for name, each in found.items() if each is not None}
    assert printed == [f"{name.topic}:{name.partition}:{offset}" for name, offset in offsets.items()]
