"""Tools of Kafka 3 and 4 consume and fill a node, and consume its bucket: they see what this project's reader sees."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from kafka_artifacts import Kafka
from witness_node import Node, run_java

from local import kernels
from local.format.batch_header import CODEC_BITS
from local.format.compression import Codec
from local.format.record import StoredRecord
from local.names import TopicPartition
from local.records.isolation import Isolation

pytestmark = [pytest.mark.kafka, pytest.mark.deep("the tools of Kafka 3 and more of Kafka 4, a JVM each")]
TOOLS = "org.apache.kafka.tools"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
FORMAT = [f"--property=print.{name}=true" for name in ("offset", "timestamp", "key", "headers")]


def printed(records: Iterable[StoredRecord]) -> list[str]:
    """The lines of the console consumer."""
    return ["\t".join(_fields(each)) for each in records]


def _fields(record: StoredRecord) -> Iterable[str]:
    yield f"CreateTime:{record.timestamp_ms}"
    yield f"Offset:{record.offset}"
    yield ",".join(f"{name}:{_text(value)}" for name, value in record.headers) or "NO_HEADERS"
    yield _text(record.key)
    yield _text(record.value)


def _text(data: bytes | None) -> str:
    return "null" if data is None else data.decode(errors="replace")


@pytest.mark.parametrize("place", ["node", "bucket"])
@pytest.mark.parametrize(
    ("topic", "isolation"),
    [
        ("plain", Isolation.READ_UNCOMMITTED),
        ("newest", Isolation.READ_COMMITTED),
        ("banking", Isolation.READ_COMMITTED),
    ],
)
def test_the_console_consumer_of_kafka_3_sees_every_record(
    kafka_3: Kafka, node: Node, place: str, topic: str, isolation: Isolation
) -> None:
    at_node = place == "node"
    records = node.records(topic, 0, isolation) if at_node else node.in_bucket(topic, 0, isolation)
    words = ["--bootstrap-server", node.address if at_node else node.bucket_address, "--topic", topic]
    words += ["--partition", "0", "--offset", "earliest", "--isolation-level", isolation.value]
    found = run_java(kafka_3, CONSUMER, *words, "--max-messages", str(len(records)), *FORMAT)
    assert found.decode(errors="replace").splitlines() == printed(records)
    assert len(records) > 20


def test_the_console_producer_of_kafka_3_writes_records_once_and_in_order(kafka_3: Kafka, node: Node) -> None:
    node.create("three")
    sent = [(b"k%d" % at, b"value %d" % at * 20) for at in range(300)]
    words = ["--bootstrap-server", node.address, "--topic", "three", "--compression-codec", "zstd"]
    words += ["--property", "parse.key=true", "--property", "key.separator=:"]
    run_java(kafka_3, "kafka.tools.ConsoleProducer", *words, stdin=b"".join(b"%s:%s\n" % each for each in sent))
    assert [(each.key, each.value) for each in node.records("three")] == sent
    table = kernels.scan_batches(node.manager.partitions.find(TopicPartition("three", 0)).log.read(0, 1 << 20))
    assert {int(each) & CODEC_BITS for each in table.attributes} == {Codec.ZSTD}
    assert (table.producer_ids >= 0).all(), "the producer must be idempotent"


@pytest.mark.parametrize("major", ["3", "4"])
def test_a_verifiable_consumer_in_a_group_sees_every_record(
    kafka: Kafka, kafka_3: Kafka, node: Node, tmp_path: Path, major: str
) -> None:
    """Heartbeats are frequent, so that the tool sends some."""
    settings = tmp_path / "client.properties"
    settings.write_text("heartbeat.interval.ms=1\nmax.poll.records=20\nmax.partition.fetch.bytes=2000\n")
    expected = {partition: node.records("plain", partition) for partition in (0, 1)}
    total = sum(map(len, expected.values()))
    words = ["--bootstrap-server", node.address, "--topic", "plain", "--group-id", f"verifying-{major}"]
    words += ["--max-messages", str(total), "--reset-policy", "earliest", "--verbose"]
    tool = f"{TOOLS}.VerifiableConsumer"
    found = run_java(kafka_3 if major == "3" else kafka, tool, *words, "--consumer.config", str(settings))
    events = [json.loads(line) for line in found.splitlines()]
    seen = [each for each in events if each["name"] == "record_data"]
    for partition, records in expected.items():
        here = [(each["offset"], each["key"], each["value"]) for each in seen if each["partition"] == partition]
        assert here == [(each.offset, *(data and data.decode() for data in (each.key, each.value))) for each in records]
    commits = [each for each in events if each["name"] == "offsets_committed"]
    assert all(each["success"] for each in commits)
    committed = {each["partition"]: each["offset"] for event in commits for each in event["offsets"]}
    assert committed == {partition: records[-1].offset + 1 for partition, records in expected.items()}


@pytest.mark.parametrize("major", ["3", "4"])
def test_the_performance_consumer_reads_every_record_of_both_tiers(
    kafka: Kafka, kafka_3: Kafka, node: Node, major: str
) -> None:
    count = sum(len(node.records("plain", partition)) for partition in (0, 1))
    words = ["--bootstrap-server", node.address, "--topic", "plain", "--messages", str(count), "--timeout", "60000"]
    found = run_java(kafka_3 if major == "3" else kafka, f"{TOOLS}.ConsumerPerformance", *words).decode()
    names, values = (line.split(", ") for line in found.splitlines()[-2:])
    assert int(dict(zip(names, values, strict=True))["data.consumed.in.nMsg"]) == count


def test_the_tools_of_kafka_3_administer_a_node(kafka_3: Kafka, node: Node, tmp_path: Path) -> None:
    server = ("--bootstrap-server", node.address)
    words = ["--create", "--topic", "managed", "--partitions", "2", "--replication-factor", "1"]
    run_java(kafka_3, f"{TOOLS}.TopicCommand", *server, *words, "--config", "retention.ms=86400000")
    topic = node.manager.partitions.registry.find("managed")
    assert topic is not None
    assert len(list(topic.partitions())) == 2
    run_java(kafka_3, f"{TOOLS}.TopicCommand", *server, "--alter", "--topic", "managed", "--partitions", "3")
    words = ["--alter", "--entity-type", "topics", "--entity-name", "managed", "--add-config", "retention.ms=-1"]
    run_java(kafka_3, "kafka.admin.ConfigCommand", *server, *words)
    shown = run_java(kafka_3, f"{TOOLS}.TopicCommand", *server, "--describe", "--topic", "managed").decode()
    assert "PartitionCount: 3" in shown
    assert "retention.ms=-1" in shown
    lines = b"".join(b"%d\n" % at for at in range(90))
    run_java(kafka_3, "kafka.tools.ConsoleProducer", *server, "--topic", "managed", stdin=lines)
    found = run_java(kafka_3, f"{TOOLS}.GetOffsetShell", *server, "--topic", "managed").decode().split()
    ends = {int(line.split(":")[1]): int(line.split(":")[2]) for line in found}
    assert sum(ends.values()) == 90
    before = {partition: end // 2 for partition, end in ends.items()}
    wanted = [{"topic": "managed", "partition": each, "offset": offset} for each, offset in before.items()]
    file = tmp_path / "before.json"
    file.write_text(json.dumps({"version": 1, "partitions": wanted}))
    run_java(kafka_3, f"{TOOLS}.DeleteRecordsCommand", *server, "--offset-json-file", str(file))
    starts = {each: node.manager.reader().offsets(TopicPartition("managed", each))[0] for each in ends}
    assert starts == before
    run_java(kafka_3, f"{TOOLS}.TopicCommand", *server, "--delete", "--topic", "managed")
    assert node.manager.partitions.registry.find("managed") is None


def test_kafkas_command_deletes_offsets_of_a_group(kafka: Kafka, node: Node) -> None:
    server, group = ("--bootstrap-server", node.address), "deleting"
    ends = {each: node.manager.reader().offsets(TopicPartition("plain", each))[1] for each in (0, 1)}
    words = ["--group", group, "--topic", "plain", "--reset-offsets", "--to-latest", "--execute"]
    run_java(kafka, GROUPS, *server, *words)
    assert _committed(kafka, node, group) == {("plain", each): offset for each, offset in ends.items()}
    run_java(kafka, GROUPS, *server, "--delete-offsets", "--group", group, "--topic", "plain:1")
    assert _committed(kafka, node, group) == {("plain", 0): ends[0]}


def _committed(kafka: Kafka, node: Node, group: str) -> dict[tuple[str, int], int]:
    shown = run_java(kafka, GROUPS, "--bootstrap-server", node.address, "--describe", "--group", group).decode()
    rows = [line.split() for line in shown.splitlines() if line.startswith(group)]
    return {(row[1], int(row[2])): int(row[3]) for row in rows if row[3] != "-"}
