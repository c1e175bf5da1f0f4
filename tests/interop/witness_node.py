"""A node on a real disk, with topics of every kind over both tiers, and runs of Java programs as its clients."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_artifacts import Kafka
from manager_world import COMPACTED, HOUR, NOW, TIERED, send, settle
from served_bucket import TOPICS, fill, serving

from local.format.record import StoredRecord
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.store.file_store import FileStore
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.node.endpoint import serving_node

# Two more topics, for clients that do not read transactions or null values of headers.
SIMPLE = {"simple": TIERED, "simple-newest": {**COMPACTED, "min.compaction.lag.ms": "0"}}
_DEFAULTS = {
    "index.interval.bytes": "200",
    "append.batch.bytes": "300",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
}
_PROGRAM_SECONDS_MAX = 200


def clock_ms() -> int:
    """The time of the node stands still: nothing expires, and no transaction times out."""
    return NOW + 2 * HOUR


@dataclass(frozen=True, slots=True)
class Node:
    """A running node, its bucket, and the addresses at which Kafka clients read both."""

    manager: LogManager
    address: str
    bucket: RemoteLog
    bucket_address: str

    def create(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self.manager.topics.create(topic, partitions, settings or {}, now_ms=NOW)

    def records(
        self, topic: str, partition: int = 0, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[StoredRecord]:
        """All records of both tiers, by the reader of this project."""
        reader, name = self.manager.reader(isolation), TopicPartition(topic, partition)
        return list(reader.records(name, reader.offsets(name)[0]))

    def in_bucket(
        self, topic: str, partition: int = 0, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[StoredRecord]:
        """All records of the bucket, by the reader of this project."""
        reader, name = self.bucket.reader(isolation), TopicPartition(topic, partition)
        return list(reader.records(name, reader.offsets(name)[0]))


@contextmanager
def witness_node(home: Path) -> Iterator[Node]:
    """`TOPICS` and `SIMPLE`: all older records are in the bucket only, sixty newer ones in the local tier only."""
    (home / "bucket").mkdir(parents=True)
    config = home / "tiered.toml"
    lines = [f'[local]\ndir = "{home}/node"', f'[remote]\nurl = "file://{home}/bucket"', "[defaults]"]
    lines += [f'"{name}" = "{value}"' for name, value in _DEFAULTS.items()]
    lines += [f'[topics."{topic}"]\n"segment.bytes" = 2000' for topic in (*TOPICS, *SIMPLE)]
    config.write_text("\n".join(lines))
    with LogManager.open(Config.load(str(config), {}, {}), now_ms=NOW) as manager:
        fill(manager)
        for topic, settings in SIMPLE.items():
            manager.topics.create(topic, 1, settings, now_ms=NOW)
            send(manager, 300, topic=topic)
        settle(manager, NOW + HOUR)
        for topic in (*TOPICS, *SIMPLE):
            send(manager, 60, topic=topic, start=1000)
        with (
            serving_node(manager, "127.0.0.1", 0, now_ms=clock_ms) as server,
            RemoteLog(FileStore(str(home / "bucket"))) as bucket,
            serving(bucket) as replica,
        ):
            yield Node(manager, "{}:{}".format(*server.address), bucket, "{}:{}".format(*replica.address))


def run_java(kafka: Kafka, program: str, *words: str, stdin: bytes = b"") -> bytes:
    """The stdout of a class, or of a source file, with Kafka on its class path. Fails the test if it fails."""
    command = kafka.command("-Xmx256m", program, *words)
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=_PROGRAM_SECONDS_MAX)
    assert done.returncode == 0, (done.stderr + done.stdout).decode(errors="replace")[-6000:]
    return done.stdout
