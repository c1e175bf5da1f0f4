"""Tiered topics, restored from the bucket only into the log directory of a broker, which serves them."""

from __future__ import annotations

from pathlib import Path

import kafka_clients as clients
import pytest
from kafka_broker import KafkaBroker
from written_by_kafka import T0, sample_records

from local.format.record import Record
from local.log.producer_state import Producer
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.storage import DiskStorage
from remote.manifest.catalog import list_partitions
from remote.store.file_store import FileStore
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.migrate.restore_plan import RestoreWish, plan_restore
from tiered.migrate.restore_running import run_restore
from tiered.read.bucket_reader import RemoteLog

pytestmark = [pytest.mark.kafka, pytest.mark.deep("a broker starts on restored directories")]

NOW = T0 + 1_000_000
TOPICS = {"plain": {}, "compacted": {"cleanup.policy": "compact"}, "transactions": {}, "cut": {}}
SMALL = {"segment.bytes": "12000", "index.interval.bytes": "700", "append.batch.bytes": "2000"}
CUT = 137


def _tiered(home: Path) -> FileStore:
    """A bucket with all appended records. The local disk is deleted."""
    (home / "bucket").mkdir(parents=True)
    overrides = {**SMALL, "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "0"}
    path = home / "tiered.toml"
    path.write_text(f'[local]\ndir = "{home}/ours"\n[remote]\nurl = "file://{home}/bucket"\n')
    with LogManager.open(Config.load(str(path), overrides, {}), now_ms=NOW) as manager:
        for topic, settings in TOPICS.items():
            tiered = {"remote.storage.enable": "true", "local.retention.ms": "1", "retention.ms": "-1"}
            manager.topics.create(topic, 1, {**tiered, **settings}, now_ms=NOW)
            for at in range(0, 600, 30):
                manager.append(topic, sample_records(30, keyed=True, start=at), 0, now_ms=NOW)
        _add_transactions(manager)
        for topic in TOPICS:
            manager.partitions.roll(topic, now_ms=NOW)
        while manager.tick(NOW):
            pass
        assert manager.problems == {}
    return FileStore(str(home / "bucket"))


def _add_transactions(manager: LogManager) -> None:
    log = manager.partitions.find(TopicPartition("transactions", 0)).log
    for turn in range(6):
        producer = Producer(producer_id=900_010, producer_epoch=1, base_sequence=turn * 10, is_transactional=True)
        log.append(sample_records(10, start=turn * 10), now_ms=NOW, producer=producer)
        log.append_marker(900_010, 1, commit=turn % 2 == 0, coordinator_epoch=4, now_ms=NOW)


@pytest.fixture(scope="module")
def served(kafka, tmp_path_factory):
    """(records in the bucket, records of Kafka's clients at the broker, the same after an append, warnings)."""
    home = tmp_path_factory.mktemp("restored-for-kafka")
    store = _tiered(home)
    broker = KafkaBroker(kafka, home / "broker")
    broker.format()
    broker.start()
    try:
        clients.create_topics(broker.address, TOPICS)
    finally:
        broker.stop()
    root = str(broker.log_dirs[0])
    for topic in TOPICS:
        names = [name for name in list_partitions(store) if name.topic == topic]
        wish = RestoreWish(to_offset=CUT if topic == "cut" else None)
        plan = plan_restore(store, names, wish, now_ms=NOW)
        run_restore(store, plan, DiskStorage(), root, now_ms=lambda: NOW)
    ours = {}
    for isolation in Isolation:
        reader = RemoteLog(store).reader(isolation=isolation)
        starts = {topic: reader.offsets(TopicPartition(topic, 0))[0] for topic in TOPICS}
        ours[isolation] = {t: list(reader.records(TopicPartition(t, 0), start)) for t, start in starts.items()}
    broker.log_path.unlink(missing_ok=True)
    broker.start()
    try:
        clients.wait_for_leaders(broker.address, TOPICS)
        theirs = {
            Isolation.READ_UNCOMMITTED: clients.read(broker.address, list(TOPICS)),
            Isolation.READ_COMMITTED: clients.read(broker.address, list(TOPICS), committed=True),
        }
        warnings = broker.warnings()
        for topic in TOPICS:
            clients.produce(broker.address, topic, [Record(b"new", b"by kafka", NOW)])
        after = clients.read(broker.address, list(TOPICS))
    finally:
        broker.stop()
    return ours, theirs, after, warnings


@pytest.mark.parametrize("isolation", Isolation)
def test_kafka_consumer_reads_every_restored_record(served, isolation):
    ours, theirs, _, _ = served
    for topic in TOPICS:
        expected = [each for each in ours[isolation][topic] if topic != "cut" or each.offset < CUT]
        assert theirs[isolation][topic] == expected, topic
    assert len(theirs[isolation]["plain"]) == 600
    if isolation is Isolation.READ_COMMITTED:
        assert len(theirs[isolation]["transactions"]) == 630


def test_broker_appends_after_the_last_offset_of_the_bucket(served):
    _, theirs, after, _ = served
    for topic in TOPICS:
        found = after[topic][len(theirs[Isolation.READ_UNCOMMITTED][topic]) :]
        assert [each.value for each in found] == [b"by kafka"], topic
    assert after["cut"][-1].offset == CUT


def test_broker_logs_no_warning_about_restored_topics(served):
    warnings = served[-1]
    allowed = ("Non-monotonic update of high watermark",)
    about = [line for line in warnings if any(f"{topic}-0" in line for topic in TOPICS)]
    assert [line for line in about if not any(word in line for word in allowed)] == []
