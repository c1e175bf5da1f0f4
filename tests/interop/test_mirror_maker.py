"""MirrorMaker 2 copies topics of a node into a real broker: their records, and the settings that a broker accepts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import kafka_clients as clients
import pytest
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_requests import KafkaSocket
from manager_world import NOW
from witness_node import Node

from local.format.record import StoredRecord
from local.records.isolation import Isolation
from tiered.serve.messages.base import Api

pytestmark = [pytest.mark.kafka, pytest.mark.deep("MirrorMaker 2 and a broker")]
COMMITTED = Isolation.READ_COMMITTED
TOPICS = ("packed", "newest", "banking")
LIMIT_S = 120
LOGGING = """\
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
"""
# A broker refuses all settings of a topic, at its creation too, if it refuses one of them: names of this project, those
# of a tier that the broker does not have, and here the small segments.
EXCLUDED = r"remote\..*, local\.retention\..*, append\..*, segment\.bytes"
SETTINGS = """\
clusters=node, cluster
node.bootstrap.servers={node}
cluster.bootstrap.servers={cluster}
node->cluster.enabled=true
node->cluster.topics={topics}
replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy
offset-syncs.topic.location=target
replication.factor=1
offset-syncs.topic.replication.factor=1
heartbeats.topic.replication.factor=1
cluster.config.storage.replication.factor=1
cluster.offset.storage.replication.factor=1
cluster.status.storage.replication.factor=1
cluster.offset.storage.partitions=1
cluster.status.storage.partitions=1
node.consumer.isolation.level=read_committed
sync.topic.configs.interval.seconds=1
config.properties.exclude={excluded}
sync.topic.acls.enabled=false
emit.checkpoints.enabled=false
emit.heartbeats.enabled=false
"""


@contextmanager
def mirroring(mirror_maker: Kafka, home: Path, node: Node, broker: KafkaBroker) -> Iterator[Path]:
    """A running MirrorMaker, and the file of its output."""
    file, log, said = home / "mirror.properties", home / "log4j2.properties", home / "mirror.log"
    topics = "|".join(TOPICS)
    escaped = EXCLUDED.replace("\\", "\\\\")  # in a file of properties
    file.write_text(SETTINGS.format(node=node.address, cluster=broker.address, topics=topics, excluded=escaped))
    log.write_text(LOGGING)
    words = ["org.apache.kafka.connect.mirror.MirrorMaker", str(file), "--clusters", "cluster"]
    words = mirror_maker.command("-Xmx400m", f"-Dlog4j2.configurationFile={log}", *words)
    with said.open("wb") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=home)
    try:
        yield said
    finally:
        process.kill()
        process.wait()


def content(record: StoredRecord) -> tuple[object, ...]:
    return record.timestamp_ms, record.key, record.value, record.headers


def settings_of(broker: KafkaBroker, topic: str) -> Mapping[str, str]:
    """The settings of a topic itself; none if there is no such topic."""
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    with closing(KafkaSocket(broker.address)) as server:
        (found,) = server.ask(Api.DESCRIBE_CONFIGS, 4, {"resources": [resource]})["results"]
    return {each["name"]: each["value"] for each in found["configs"] if each["config_source"] == 1}


def ends(broker: KafkaBroker) -> Mapping[str, int]:
    """The log end offsets of the topics that the broker has."""
    with closing(KafkaSocket(broker.address)) as server:
        topics = server.ask(Api.METADATA, 12, {"topics": None})["topics"]
    known = [each["name"] for each in topics if each["name"] in TOPICS and each["partitions"][0]["leader_id"] >= 0]
    return {topic: end for topic, (_, end) in clients.bounds(broker.address, known).items()} if known else {}


def test_a_broker_gets_every_record_and_the_settings_of_the_topics(
    kafka: Kafka, mirror_maker: Kafka, node: Node, tmp_path: Path
) -> None:
    broker = KafkaBroker(kafka, tmp_path / "kafka")
    broker.format()
    broker.start()
    try:
        expected = {topic: node.records(topic, 0, COMMITTED) for topic in TOPICS}
        counts = {topic: len(records) for topic, records in expected.items()}
        with mirroring(mirror_maker, tmp_path, node, broker) as said:
            clients.wait_until(lambda: ends(broker) == counts, f"all records, see {said}", LIMIT_S)
            for topic, records in clients.read(broker.address, TOPICS).items():
                assert list(map(content, records)) == list(map(content, expected[topic])), topic
            assert settings_of(broker, "packed") == {"compression.type": "gzip", "retention.ms": "-1"}
            compacted = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "retention.ms": "-1"}
            assert settings_of(broker, "newest") == compacted
            node.manager.topics.alter("newest", {"max.message.bytes": "70000"}, now_ms=NOW)
            altered = {**compacted, "max.message.bytes": "70000"}
            clients.wait_until(lambda: settings_of(broker, "newest") == altered, f"a setting, see {said}", LIMIT_S)
    finally:
        broker.stop()
