"""A small fleet: nodes with a directory and a configuration each, one bucket, and the expected records of readers."""

from __future__ import annotations

from pathlib import Path

from local.format.record import Record
from local.names import TopicPartition
from remote.manifest.catalog import list_partitions
from remote.store.open_store import open_store
from tiered.config.config import Config
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.pipeline import Fleet
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

NOW = 1_800_000_000_000
DAY = 86_400_000
SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "3000",
    "index.interval.bytes": "300",
    "append.batch.bytes": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "local.retention.ms": "1",
    "remote.log.delete.grace.ms": "1h",
}
EVENTS = {"cleanup.policy": "delete", "retention.ms": str(10 * DAY), "retention.bytes": "-1"}
PRICES = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "min.cleanable.dirty.ratio": "0.01"}


class FleetWorld:
    """`sent` is every record by topic, partition and offset."""

    def __init__(self, home: Path, nodes: int = 2, url: str | None = None) -> None:
        self.home = home
        self.sent: dict[TopicPartition, list[Record]] = {}
        if url is None:
            (home / "bucket").mkdir(parents=True)
        self.url = url or f"file://{home}/bucket"
        self.nodes = tuple(str(home / f"node-{number}") for number in range(nodes))
        entries = "".join(f'"{name}" = "{value}"\n' for name, value in SETTINGS.items())
        for node in self.nodes:
            Path(node).mkdir(parents=True)
            (Path(node) / "tiered.toml").write_text(
                f'[local]\ndir = "data"\n[remote]\nurl = "{self.url}"\n[defaults]\n{entries}'
            )
        for number in range(nodes):
            with self.manager(number) as manager:
                manager.topics.create(f"events-{number}", 2, EVENTS, now_ms=NOW - 20 * DAY)
                manager.topics.create(f"prices-{number}", 1, PRICES, now_ms=NOW - 20 * DAY)

    def manager(self, number: int, now_ms: int = NOW - 20 * DAY) -> LogManager:
        return LogManager.open(Config.load(str(Path(self.nodes[number]) / "tiered.toml")), now_ms=now_ms)

    def fill(self, number: int, rounds: int = 4, per: int = 60) -> None:
        """Append records of the last twenty days in `rounds` shares. No segment is cleaned or copied."""
        with self.manager(number) as manager:
            for round_number in range(rounds):
                at_ms = NOW - 20 * DAY + round_number * 20 * DAY // max(1, rounds - 1)
                for topic, partition in ((f"events-{number}", 0), (f"events-{number}", 1), (f"prices-{number}", 0)):
                    self.append(manager, topic, partition, per, at_ms)

    def append(self, manager: LogManager, topic: str, partition: int, count: int, at_ms: int) -> None:
        known = self.sent.setdefault(TopicPartition(topic, partition), [])
        records = [
            Record(b"key-%d" % (at % 17), b"value %d of %s" % (at, topic.encode()) * 2, at_ms)
            for at in range(len(known), len(known) + count)
        ]
        manager.append(topic, records, partition, now_ms=at_ms)
        manager.partitions.roll(topic, now_ms=at_ms)
        known += records

    def fleet(self, **more: object) -> Fleet:
        return Fleet(**{"bucket": Bucket(url=self.url), "nodes": self.nodes, **more})  # type: ignore[arg-type]

    def records(self) -> dict[TopicPartition, dict[int, Record]]:
        """The records that a reader of the bucket finds, by offset."""
        store = open_store(self.url)
        try:
            return records_of(store)
        finally:
            store.close()

    def check(self) -> None:
        """Check the records in the bucket: of events those within retention, of prices the newest of each key."""
        found = self.records()
        for name, sent in self.sent.items():
            there = found[name]
            newest = {record.key: at for at, record in enumerate(sent)}
            if name.topic.startswith("prices"):
                assert set(there) == set(newest.values()), name
            else:
                young = {at for at, record in enumerate(sent) if record.timestamp_ms > NOW - 10 * DAY}
                assert young, "some records must be within retention"
                assert young <= set(there), name
                assert len(there) < len(sent), f"{name}: nothing expired"
            for at, record in there.items():
                assert (record.key, record.value) == (sent[at].key, sent[at].value)


def records_of(store: object) -> dict[TopicPartition, dict[int, Record]]:
    found = {}
    log = RemoteLog(store)  # type: ignore[arg-type]
    reader = log.reader()
    for name in list_partitions(store):  # type: ignore[arg-type]
        start, end = reader.offsets(name.topic_partition)
        entries = reader.records(name.topic_partition, start) if start < end else ()
        found[name.topic_partition] = {each.offset: each for each in entries}
    return found
