"""Kafka's own tools read a bucket through ``tiered serve`` and see what this project's reader sees."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka_artifacts import Kafka
from kafka_security import PASSWORDS, SASL, TLS, Place, secured
from served_bucket import TOPICS, filled_store, serving

from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.bucket_source import BucketSource

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
    done = subprocess.run(kafka.command(tool, *words), capture_output=True, timeout=120)
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


@pytest.mark.parametrize("password", [PASSWORDS["alice"], "wrong"])
def test_the_console_consumer_reads_with_scram_over_tls(
    kafka: Kafka, bucket: RemoteLog, tmp_path: Path, password: str
) -> None:
    place = Place.new(tmp_path / "secured")
    place.write(SASL, TLS, '[[acl]]\nprincipal = "User:alice"\noperations = "Read"\ntopic = "newest"')
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="alice" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place.authority.file),
    }
    client = tmp_path / "client.properties"
    client.write_text("\n".join(f"{name}={value}" for name, value in settings.items()))
    records = list(bucket.reader().records(TopicPartition("newest", 0), 0))
    expected = [b"%s" % each.value for each in records]
    with closing(BucketSource(bucket, lambda: 0.0)) as source, secured(place, source) as server:
        words = ["--bootstrap-server", f"localhost:{server.address[1]}", "--consumer.config", str(client)]
        words += ["--topic", "newest", "--partition", "0", "--offset", "earliest", "--max-messages", str(len(records))]
        found = _java(kafka, CONSUMER, *words).splitlines()
    if password == PASSWORDS["alice"]:
        assert found == expected
    else:  # the consumer prints the reason, and ends without an exit code
        assert b"authentication failed" in b" ".join(found).lower()
        assert not set(found) & set(expected)
