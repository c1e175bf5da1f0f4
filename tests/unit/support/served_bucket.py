"""A bucket with topics of every kind, written by a manager, and a Kafka endpoint in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from manager_world import COMPACTED, DAY, NOW, TIERED, World, settle

from local.format.record import Record
from local.log import Log
from local.log.producer_state import Producer
from local.names import TopicPartition
from remote.store import ObjectStore
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.admin.bucket_configs import BucketConfigs
from tiered.serve.bucket_source import BucketSource
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.handlers.service import Service
from tiered.serve.server import KafkaServer

HISTORY = {**TIERED, "segment.bytes": "20000"}
TOPICS = {
    "plain": HISTORY,
    "packed": {**HISTORY, "compression.type": "gzip", "remote.compression": "zstd"},
    "newest": {**COMPACTED, "min.compaction.lag.ms": "0"},
    "banking": HISTORY,
}


def fill(manager: LogManager) -> None:
    """Two partitions of `plain`, one of each other topic; all records in the bucket and in no local log."""
    for name, settings in TOPICS.items():
        manager.topics.create(name, 2 if name == "plain" else 1, settings, now_ms=NOW)
    for partition in (0, 1):
        _append(manager, "plain", 400, partition)
    _append(manager, "packed", 400)
    _append(manager, "newest", 600, keys=23)
    _append_transactions(log_of(manager, "banking"))
    for name in TOPICS:
        manager.partitions.roll(name, now_ms=NOW)
    settle(manager)
    settle(manager)


def log_of(manager: LogManager, topic: str) -> Log:
    log = manager.reader().source(TopicPartition(topic, 0)).log
    assert log is not None
    return log


def filled_store() -> ObjectStore:
    world = World()
    with world.open() as manager:
        fill(manager)
    return world.store


@contextmanager
def serving(bucket: RemoteLog, *, groups: GroupCoordinator | None = None, **settings: object) -> Iterator[KafkaServer]:
    """A running endpoint on a free port. Its clock stands still, so it never looks for newer manifests."""
    source = BucketSource(bucket, lambda: 0.0)
    service = Service(source=source, prompt=source, configs=BucketConfigs(source), groups=groups)
    server = KafkaServer("127.0.0.1", 0, service, **settings)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.close()
        source.close()


def _append(manager: LogManager, topic: str, count: int, partition: int = 0, *, keys: int = 50) -> None:
    for start in range(0, count, 20):
        records = [
            Record(
                None if at % 7 == 3 and keys == 50 else b"key %d" % (at % keys),
                None if at % 11 == 5 and keys == 50 else b"value %d of %s" % (at, topic.encode()),
                NOW - DAY + at * 1000,
                (("source", b"\x00\xff"), ("źródło", None)) if at % 5 == 1 else (),
            )
            for at in range(start, start + 20)
        ]
        manager.append(topic, records, partition, now_ms=NOW)


def _append_transactions(log: Log) -> None:
    """Committed and aborted transactions that overlap, and records without a transaction."""
    for number in range(0, 60, 2):
        for each in (number, number + 1):
            producer = Producer(producer_id=each, producer_epoch=0, base_sequence=0, is_transactional=True)
            word = b"kept" if each % 3 else b"aborted"
            log.append([Record(b"k%d" % each, word, NOW)] * 3, now_ms=NOW, producer=producer)
        log.append([Record(b"plain", b"kept", NOW)], now_ms=NOW)
        for each in (number, number + 1):
            log.append_marker(each, 0, commit=bool(each % 3), coordinator_epoch=0, now_ms=NOW)
