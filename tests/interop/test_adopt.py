"""A sidecar next to a broker that rolls, deletes and compacts under load, compared with consumers of that broker."""

from __future__ import annotations

import threading

import kafka_clients as clients
import pytest
from checked_bucket import check_bucket, damage
from kafka_broker import KafkaBroker
from written_by_kafka import T0

from local.format.record import Record
from local.names import TopicPartition
from local.storage import DiskStorage
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from tiered.migrate.adopt import Adopter
from tiered.migrate.broker import AdoptSettings
from tiered.read.bucket_reader import RemoteLog

pytestmark = pytest.mark.kafka

NOW = T0 + 1_000_000
ROLLING = {"segment.bytes": "1048576", "file.delete.delay.ms": "500"}
AT_WORK = """\
log.retention.check.interval.ms=500
log.initial.task.delay.ms=100
replica.high.watermark.checkpoint.interval.ms=300
"""
TOPICS = {
    "plain": {**ROLLING, "retention.bytes": "3000000"},
    "compacted": {
        **ROLLING,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
        "delete.retention.ms": "86400000",
    },
}


class _Storage(DiskStorage):
    """A disk that allows only reads below the broker's directory."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __getattribute__(self, name):
        real = super().__getattribute__(name)
        if name in ("create", "open", "rename", "unlink", "remove_directory", "set_modified_ms", "lock"):

            def call(path, *more):
                assert not path.startswith(self.root), f"{name} of the broker's {path}"
                return real(path, *more)

            return call
        return real


def _records(topic: str, start: int, count: int) -> list[Record]:
    def value(at: int) -> bytes | None:
        return None if topic == "compacted" and at % 41 == 7 else b"value %d " % at + b"x" * 4000

    return [Record(b"key-%d" % (at % 97), value(at), T0 + at) for at in range(start, start + count)]


@pytest.fixture(scope="module")
def adopted(kafka, tmp_path_factory):
    """(store, sent records, records of a consumer, its bounds, every pass of the sidecar, settings from the broker's
    files)."""
    home = tmp_path_factory.mktemp("adopt")
    broker = KafkaBroker(kafka, home / "broker", settings=AT_WORK)
    broker.format()
    broker.start()
    root = str(broker.log_dirs[0])
    store = MemoryStore("memory://adopted", now_ms=lambda: NOW)
    told = AdoptSettings(_Storage(root), root, {})
    assert told.has_broker
    adopter = Adopter(store, _Storage(root), root, str(home / "work"), properties=told.of, topics=[*TOPICS])
    sent: dict[str, list[Record]] = {topic: [] for topic in TOPICS}
    rounds, ended = [], threading.Event()

    def beside() -> None:
        while not ended.wait(0.2):
            told.refresh()
            rounds.append(adopter.tick(NOW))

    try:
        clients.create_topics(broker.address, TOPICS)
        thread = threading.Thread(target=beside)
        thread.start()
        for turn in range(25):
            for topic in TOPICS:
                batch = _records(topic, turn * 120, 120)
                clients.produce(broker.address, topic, batch, max_batch_size=30000)
                sent[topic] += batch
            # A sidecar without enough processor time loses records deleted by the broker, and reports it. Another test
            # covers this.
            clients.wait_until(lambda: _behind(rounds, len(sent["plain"])) < 500, "the sidecar keeps up", 90)
        for topic in TOPICS:  # records appended later close the active segment
            clients.produce(broker.address, topic, _records(topic, 90_000, 300), max_batch_size=30000)
        clients.wait_until(
            lambda: (
                rounds
                and all(each.problem is None and each.tiered_upto >= 3000 for each in rounds[-1])
                and len(rounds[-1]) == len(TOPICS)
            ),
            "everything is in the bucket",
            90,
        )
        ended.set()
        thread.join()
        last = adopter.tick(NOW)
        at_broker = clients.read(broker.address, list(TOPICS))
        bounds = clients.bounds(broker.address, list(TOPICS))
    finally:
        ended.set()
        broker.stop()
    return store, sent, at_broker, bounds, [*rounds, last], {topic: told.of(topic) for topic in TOPICS}


def _behind(rounds, sent: int) -> int:
    """Number of records of "plain" missing in the bucket. The broker retains at least the last 750."""
    upto = [each.tiered_upto for each in rounds[-1] if each.partition.topic == "plain"] if rounds else []
    return sent - max(upto, default=0)


def _in_bucket(store, topic):
    reader = RemoteLog(store).reader()
    name = TopicPartition(topic, 0)
    return list(reader.records(name, reader.offsets(name)[0]))


def test_bucket_of_an_adopted_broker_is_sound(adopted):
    store, *_, rounds, _ = adopted
    assert damage(check_bucket(store)) == []
    assert all(each.lost == () for found in rounds for each in found)


def test_every_sent_record_is_in_the_bucket_even_if_the_broker_deleted_it(adopted):
    store, sent, at_broker, bounds, *_ = adopted
    found = _in_bucket(store, "plain")
    told = [(record.key, record.value, record.timestamp_ms) for record in found][:3000]
    assert told == [(each.key, each.value, each.timestamp_ms) for each in sent["plain"]]
    assert bounds["plain"][0] > 0, "the broker must have deleted records"
    known = {record.offset: record for record in found}
    both = [record for record in at_broker["plain"] if record.offset in known]
    assert both
    assert all(known[record.offset] == record for record in both)


def test_bucket_has_the_newest_record_of_every_key_of_a_compacted_topic(adopted):
    store, sent, at_broker, *_ = adopted
    found = _in_bucket(store, "compacted")
    assert len(found) < 3000, "the bucket must have been compacted"
    assert len(at_broker["compacted"]) < 3000, "the broker must have compacted its log"
    end = found[-1].offset + 1
    newest = {record.key: record for record in found}
    expected = {each.key: each.value for each in sent["compacted"]}
    there = [record for record in at_broker["compacted"] if record.offset < end]
    expected |= {record.key: record.value for record in there if record.offset >= 3000}
    assert {key: record.value for key, record in newest.items()} == expected
    known = {record.offset: record for record in found}
    assert all(known[record.offset] == record for record in there if record.offset in known)


def test_topic_settings_equal_those_of_the_broker(adopted):
    store, *_, settings = adopted
    assert settings == {topic: {**given} for topic, given in TOPICS.items()}
    for topic, given in TOPICS.items():
        (name,) = (each for each in list_partitions(store) if each.topic == topic)
        assert MetadataLog(store, name.prefix).refresh().properties == given


def test_lag_and_bytes_at_risk_are_reported(adopted):
    *_, rounds, _ = adopted
    for each in rounds[-1]:
        assert each.at_risk_bytes > 0
        assert each.tiered_upto <= each.log_end


@pytest.mark.parametrize(
    "is_adopted_before", [False, pytest.param(True, marks=pytest.mark.deep("the case True: a second broker"))]
)
def test_only_records_deleted_at_the_broker_are_deleted_in_the_bucket(kafka, tmp_path, is_adopted_before) -> None:
    """DeleteRecords sets the log start offset inside a segment, and truncates the broker's epoch checkpoint there."""
    settings = AT_WORK + "log.flush.start.offset.checkpoint.interval.ms=300\n"
    broker = KafkaBroker(kafka, tmp_path / "broker", settings=settings)
    broker.format()
    broker.start()
    root, name = str(broker.log_dirs[0]), TopicPartition("deleted", 0)
    store = MemoryStore("memory://adopted", now_ms=lambda: NOW)
    told = AdoptSettings(_Storage(root), root, {})
    ways = {"properties": told.of, "retention": told.retention, "topics": ["deleted"]}
    adopter = Adopter(store, _Storage(root), root, str(tmp_path / "work"), **ways)
    try:
        clients.create_topics(broker.address, {"deleted": {**ROLLING, "retention.ms": "-1"}})
        clients.produce(broker.address, "deleted", _records("plain", 0, 400), max_batch_size=30000)
        if is_adopted_before:
            clients.wait_until(lambda: (_ticked(told, adopter).tiered_upto or 0) > 0, "a segment is in the bucket", 60)
        reached = 0
        for turn in range(1, 5):
            start = turn * 330
            clients.produce(broker.address, "deleted", _records("plain", turn * 400, 400), max_batch_size=30000)
            clients.delete_records(broker.address, {"deleted": start})
            clients.wait_until(
                lambda start=start: _ticked(told, adopter).problem is None and _log_start(store, name) == start,
                "the deletion is in the bucket",
                60,
            )
            reached = max(reached, _ticked(told, adopter).tiered_upto or 0)
        assert told.retention(name).replicas == 1
        clients.wait_until(lambda: (_ticked(told, adopter).tiered_upto or 0) > 1600, "what is closed is there", 60)
        bounds = clients.bounds(broker.address, ["deleted"])
        at_broker = clients.read(broker.address, ["deleted"])["deleted"]
    finally:
        broker.stop()
    found = _in_bucket(store, "deleted")
    assert found[0].offset == _log_start(store, name) == bounds["deleted"][0] == 1320
    assert found == at_broker[: len(found)]
    assert damage(check_bucket(store)) == []


def _ticked(told: AdoptSettings, adopter: Adopter):
    told.refresh()
    (found,) = adopter.tick(NOW)
    assert found.lost == ()
    return found


def _log_start(store, name: TopicPartition) -> int:
    return RemoteLog(store).manifest(name).log_start_offset
