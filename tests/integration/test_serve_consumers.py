"""Independent Kafka clients consume a bucket through ``tiered serve`` and see what this project's reader sees."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import aiokafka
import pytest
from bucket_samples import SampleBucket, batch_at
from served_bucket import TOPICS, filled_store, serving

from local.format.record import StoredRecord
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import OffsetSpec
from remote.store.memory_store import MemoryStore
from tiered.read.bucket_reader import RemoteLog

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
TIMEOUT_MS = 20_000
POLL_MS = 50  # a poll without records ends after this time, also if its position advanced
Seen = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture(scope="module")
def bucket() -> Iterator[RemoteLog]:
    with RemoteLog(filled_store()) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def address(bucket: RemoteLog) -> Iterator[str]:
    with serving(bucket) as server:
        yield "{}:{}".format(*server.address)


def _expected(bucket: RemoteLog, name: TopicPartition, start: int, isolation: Isolation) -> list[Seen]:
    return [_stored(each) for each in bucket.reader(isolation).records(name, start)]


def _stored(record: StoredRecord) -> Seen:
    return record.offset, record.key, record.value, record.timestamp_ms, tuple(record.headers)


def _partitions(bucket: RemoteLog) -> list[TopicPartition]:
    return [name for topic in TOPICS for name in bucket.partitions(topic)]


def _by_kafka_python(address: str, name: TopicPartition, start: int, isolation: Isolation) -> list[Seen]:
    here = kafka.TopicPartition(name.topic, name.partition)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, isolation_level=isolation.value, fetch_max_wait_ms=50, max_partition_fetch_bytes=3000
    )
    try:
        consumer.assign([here])
        consumer.seek(here, start)
        (end,) = consumer.end_offsets([here]).values()
        found: list[Seen] = []
        while consumer.position(here) < end:
            for record in consumer.poll(timeout_ms=POLL_MS).get(here, []):
                found.append((record.offset, record.key, record.value, record.timestamp, tuple(record.headers)))
        return found
    finally:
        consumer.close()


async def _by_aiokafka(address: str, name: TopicPartition, start: int, isolation: Isolation) -> list[Seen]:
    here = aiokafka.TopicPartition(name.topic, name.partition)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level=isolation.value, fetch_max_wait_ms=50, max_partition_fetch_bytes=3000
    )
    await consumer.start()
    try:
        consumer.assign([here])
        consumer.seek(here, start)
        end = (await consumer.end_offsets([here]))[here]
        found: list[Seen] = []
        while await consumer.position(here) < end:
            for record in (await consumer.getmany(here, timeout_ms=POLL_MS)).get(here, []):
                found.append((record.offset, record.key, record.value, record.timestamp, tuple(record.headers)))
        return found
    finally:
        await consumer.stop()


@pytest.mark.parametrize("isolation", list(Isolation))
def test_kafka_python_sees_the_records_of_the_bucket(bucket: RemoteLog, address: str, isolation: Isolation) -> None:
    for name in _partitions(bucket):
        expected = _expected(bucket, name, 0, isolation)
        assert expected, f"{name}: the bucket must have records"
        assert _by_kafka_python(address, name, 0, isolation) == expected, name


@pytest.mark.parametrize("isolation", list(Isolation))
def test_aiokafka_sees_the_records_of_the_bucket(bucket: RemoteLog, address: str, isolation: Isolation) -> None:
    for name in _partitions(bucket):
        expected = _expected(bucket, name, 0, isolation)
        assert asyncio.run(_by_aiokafka(address, name, 0, isolation)) == expected, name


def test_a_consumer_crosses_offsets_that_compaction_removed(bucket: RemoteLog, address: str) -> None:
    name = TopicPartition("newest", 0)
    everything = _expected(bucket, name, 0, Isolation.READ_UNCOMMITTED)
    start, end = bucket.reader().offsets(name)
    offsets = [offset for offset, *_ in everything]
    removed = sorted(set(range(start, end)) - set(offsets))
    assert removed, "compaction must have removed records"
    for at in (removed[0], removed[len(removed) // 2], removed[-1]):
        expected = [each for each in everything if each[0] >= at]
        assert _by_kafka_python(address, name, at, Isolation.READ_UNCOMMITTED) == expected, at
        assert asyncio.run(_by_aiokafka(address, name, at, Isolation.READ_UNCOMMITTED)) == expected, at


def test_a_consumer_reaches_the_end_of_a_log_that_ends_without_records() -> None:
    sample = SampleBucket(MemoryStore("memory://ends"))
    sample.add("t", 0, [batch_at(0, 10)], next_offset=25)
    sample.add("t", 0, [batch_at(30, 5)], base_offset=25, next_offset=50)
    name = TopicPartition("t", 0)
    with RemoteLog(sample.store) as bucket, serving(bucket) as server:
        here = "{}:{}".format(*server.address)
        assert bucket.reader().offsets(name) == (0, 50)
        for isolation in Isolation:
            expected = _expected(bucket, name, 0, isolation)
            assert [offset for offset, *_ in expected] == [*range(10), *range(30, 35)]
            assert _by_kafka_python(here, name, 0, isolation) == expected
            assert asyncio.run(_by_aiokafka(here, name, 0, isolation)) == expected
            assert _by_kafka_python(here, name, 40, isolation) == []


def test_clients_find_offsets_by_time_and_at_both_ends(bucket: RemoteLog, address: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    try:
        assert consumer.topics() == set(TOPICS)
        for name in _partitions(bucket):
            here = kafka.TopicPartition(name.topic, name.partition)
            start, end = bucket.reader().offsets(name)
            assert consumer.beginning_offsets([here]) == {here: start}
            assert consumer.end_offsets([here]) == {here: end}
            records = _expected(bucket, name, start, Isolation.READ_UNCOMMITTED)
            for _, _, _, timestamp_ms, _ in records[:: len(records) // 5]:
                found = consumer.offsets_for_times({here: timestamp_ms})[here]
                expected = next(each for each in records if each[3] >= timestamp_ms)
                assert (found.offset, found.timestamp) == (expected[0], expected[3])
            assert consumer.offsets_for_times({here: records[-1][3] + 1}) == {here: None}
            newest = bucket.list_offsets({name: OffsetSpec.MAX_TIMESTAMP})[name]
            assert newest is not None
            assert newest.timestamp_ms == max(each[3] for each in records)
    finally:
        consumer.close()


def test_an_offset_out_of_range_is_reset_or_reported(bucket: RemoteLog, address: str) -> None:
    here = kafka.TopicPartition("plain", 0)
    _, end = bucket.reader().offsets(TopicPartition("plain", 0))
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    try:
        consumer.assign([here])
        consumer.seek(here, end + 100)
        assert consumer.poll(timeout_ms=TIMEOUT_MS)[here][0].offset == 0
    finally:
        consumer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="none")
    try:
        consumer.assign([here])
        consumer.seek(here, end + 100)
        with pytest.raises(kafka.errors.OffsetOutOfRangeError):
            consumer.poll(timeout_ms=TIMEOUT_MS)
    finally:
        consumer.close()
