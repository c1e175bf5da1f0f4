"""The remote tier and the log directory of a real broker, read record by record without the broker."""

from __future__ import annotations

import shutil

import pytest
import tiered_by_kafka as tiering
from bucket_truth import assert_sound
from kafka_artifacts import KafkaMissing, find_tiered_kafka

from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.external.external_formats import external_format
from remote.external.external_layout import LayoutOptions
from remote.store.memory_store import MemoryStore
from remote.store.open_store import open_store
from tiered.migrate.import_bucket import plan_import, run_import
from tiered.read.bucket_reader import RemoteLog
from tiered.tables.remote_tables import open_remote

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def tiered_by_kafka(tmp_path_factory):
    try:
        kafka = find_tiered_kafka()
    except KafkaMissing as error:
        pytest.skip(str(error))
    return tiering.tier(kafka, tmp_path_factory.mktemp("kafka-tiered"))


def test_every_record_tiered_by_a_broker_is_read(tiered_by_kafka) -> None:
    written = tiered_by_kafka
    with open_remote(written.remote.as_uri(), layout="auto") as bucket:
        assert bucket.topics() == sorted(tiering.TOPICS)
        for topic in tiering.TOPICS:
            name, end = TopicPartition(topic, 0), written.ends[topic]
            assert end > 0, topic
            assert bucket.reader().offsets(name) == (0, end), topic
            expected = [record for record in written.records[topic] if record.offset < end]
            assert list(bucket.reader().records(name, 0)) == expected, topic
            assert bucket.gaps(name) == [], topic
            for record in expected[:: max(1, len(expected) // 7)]:
                first = next(each.offset for each in expected if each.timestamp_ms >= record.timestamp_ms)
                assert bucket.reader().offset_for_timestamp(name, record.timestamp_ms) == first, topic


def test_transactions_tiered_by_a_broker_are_read_committed(tiered_by_kafka) -> None:
    written, name = tiered_by_kafka, TopicPartition("transactions", 0)
    with open_remote(written.remote.as_uri(), layout="local-tiered-storage") as bucket:
        reader = bucket.reader(Isolation.READ_COMMITTED)
        _, end = reader.offsets(name)
        assert end > written.ends["transactions"] // 2
        found = list(reader.records(name, 0))
    assert found == [record for record in written.committed["transactions"] if record.offset < end]
    assert len(found) < sum(record.offset < end for record in written.records["transactions"])


def test_bucket_tiered_by_a_broker_is_imported_and_sound(tiered_by_kafka) -> None:
    written, target = tiered_by_kafka, MemoryStore("memory://ours")
    source = open_store(written.remote.as_uri())
    layout = external_format(source, LayoutOptions(layout="auto"))
    assert layout is not None
    for name in layout.partitions(source):
        plan = plan_import(source, layout, name, target, topic_id=name.topic_id, now_ms=1)
        run_import(source, layout, target, plan, now_ms=lambda: 2)
    assert_sound(target)
    with RemoteLog(target) as ours, open_remote(written.remote.as_uri(), layout="auto") as theirs:
        for topic, end in written.ends.items():
            name = TopicPartition(topic, 0)
            expected = [record for record in written.records[topic] if record.offset < end]
            assert list(ours.reader().records(name, 0)) == expected, topic
            for_committed = [bucket.reader(Isolation.READ_COMMITTED) for bucket in (ours, theirs)]
            assert len({reader.offsets(name) for reader in for_committed}) == 1, topic
            assert len({tuple(reader.records(name, 0)) for reader in for_committed}) == 1, topic


def test_log_directory_of_a_broker_is_read_without_the_broker(written_by_kafka, tmp_path) -> None:
    """Three states: stopped cleanly, killed with preallocated indexes padded by zeros, and with the log files only."""
    clean, crashed = written_by_kafka.clean, written_by_kafka.crashed
    for number, (found, strip) in enumerate(((clean, False), (crashed, False), (crashed, True))):
        root = tmp_path / str(number)
        ignore = shutil.ignore_patterns("*.index", "*.timeindex", "*.txnindex", "*.snapshot") if strip else None
        shutil.copytree(found.root, root, ignore=ignore)
        with open_remote(root.as_uri(), layout="logs") as bucket:
            for topic, records in found.records.items():
                name = TopicPartition(topic, 0)
                if not records:
                    continue
                start, end = found.bounds[topic]
                reader = bucket.reader()
                assert [
                    each for each in reader.records(name, reader.offsets(name)[0]) if each.offset >= start
                ] == records
                committed = bucket.reader(Isolation.READ_COMMITTED)
                if topic == "transactions":
                    assert committed.offsets(name)[1] == found.stable[topic]
                    told = list(committed.records(name, committed.offsets(name)[0]))
                    assert told == found.committed[topic]
                assert reader.offsets(name)[1] <= end
