"""Requests of the tests to a broker through aiokafka: create topics, produce, read.

Each call opens a client, does one thing and closes it. Every topic has one partition. Records are returned as
`StoredRecord` of this project, so that they can be compared with `==`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest

from local.format.record import Record, StoredRecord, TimestampType

READ_SECONDS_MAX = 60
T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(work)


def create_topics(address: str, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Create topics of one partition with their settings. Every topic must be new."""
    run(_create_topics(address, topics))


def wait_for_leaders(address: str, topics: Iterable[str]) -> None:
    """Wait until partition 0 of every topic has a leader. A broker accepts connections before that."""
    run(_wait_for_leaders(address, list(topics)))


def delete_records(address: str, before: Mapping[str, int]) -> None:
    """Raise the log start offset of partition 0 of topics."""
    run(_delete_records(address, before))


def produce(address: str, topic: str, records: Iterable[Record], **settings: object) -> None:
    """Plain or idempotent (`enable_idempotence`) sends, in order, one batch for each `max_batch_size`."""
    run(_produce(address, topic, records, settings))


@dataclass(frozen=True, slots=True)
class Step:
    """The next action of one transactional producer. `verb` is begin, send, commit or abort."""

    producer: str
    verb: str
    topic: str = ""
    records: Sequence[Record] = ()


def transactions(address: str, steps: Sequence[Step], **settings: object) -> None:
    """Run `steps` in order, with one producer for each name (its transactional id).

    A transaction without an end stays open, like after a crash of its producer.
    """
    run(_transactions(address, steps, settings))


def send_batch(address: str, topic: str, batch: bytes) -> tuple[int, int]:
    """Send one encoded batch unchanged, with any producer fields. Returns the broker's (error code, base offset)."""
    return run(_send_batch(address, topic, batch))


def read(address: str, topics: Sequence[str], *, committed: bool = False) -> dict[str, list[StoredRecord]]:
    """All records of partition 0 of each topic, up to the end (with `committed`, up to the last stable offset)."""
    return run(_read(address, topics, committed))


def bounds(address: str, topics: Sequence[str], *, committed: bool = False) -> dict[str, tuple[int, int]]:
    """Log start and log end offset (with `committed`, last stable offset) of partition 0 of each topic."""
    return run(_bounds(address, topics, committed))


def wait_until(claim: Callable[[], bool], what: str, seconds_max: float = 60) -> None:
    """Wait for a background action of the broker."""
    due = time.monotonic() + seconds_max
    while not claim():
        assert time.monotonic() < due, f"not reached within {seconds_max} s: {what}"
        time.sleep(0.05)


async def _create_topics(address: str, topics: Mapping[str, Mapping[str, str]]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        wanted = [NewTopic(name, 1, 1, topic_configs=dict(settings)) for name, settings in topics.items()]
        answer = await admin.create_topics(wanted)
        failed = [error for error in answer.topic_errors if error[1]]
        assert not failed, failed
    finally:
        await admin.close()
    await _wait_for_leaders(address, list(topics))


async def _wait_for_leaders(address: str, topics: list[str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        due = time.monotonic() + READ_SECONDS_MAX
        while leaderless := [t["topic"] for t in await admin.describe_topics(topics) if not _is_led(t)]:
            assert time.monotonic() < due, f"no leader: {leaderless}"
            await asyncio.sleep(0.05)
    finally:
        await admin.close()
    await _bounds(address, topics, False)  # retried until the broker itself knows its leadership


def _is_led(topic: Mapping[str, Any]) -> bool:
    return bool(topic["partitions"]) and all(each["leader"] >= 0 for each in topic["partitions"])


async def _delete_records(address: str, before: Mapping[str, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.delete_records(
            {TopicPartition(t, 0): RecordsToDelete(before_offset=at) for t, at in before.items()}
        )
    finally:
        await admin.close()


async def _produce(address: str, topic: str, records: Iterable[Record], settings: Mapping[str, object]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address, **{"linger_ms": 20, **settings})
    await producer.start()
    try:
        await _send_all(producer, topic, records)
    finally:
        await producer.stop()


async def _send_all(producer: AIOKafkaProducer, topic: str, records: Iterable[Record]) -> None:
    sent = [await _send(producer, topic, record) for record in records]
    await producer.flush()
    await asyncio.gather(*sent)


async def _send(producer: AIOKafkaProducer, topic: str, record: Record) -> asyncio.Future:
    return await producer.send(
        topic,
        record.value,
        record.key,
        partition=0,
        timestamp_ms=record.timestamp_ms,
        headers=list(record.headers),
    )


async def _transactions(address: str, steps: Sequence[Step], settings: Mapping[str, object]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        producers = {}
        for name in dict.fromkeys(step.producer for step in steps):
            producers[name] = AIOKafkaProducer(bootstrap_servers=address, transactional_id=name, **settings)
            await producers[name].start()
            stack.push_async_callback(producers[name].stop)
        for step in steps:
            await _take(producers[step.producer], step)


async def _take(producer: AIOKafkaProducer, step: Step) -> None:
    match step.verb:
        case "begin":
            await producer.begin_transaction()
        case "send":
            await _send_all(producer, step.topic, step.records)
        case "commit":
            await producer.commit_transaction()
        case "abort":
            await producer.abort_transaction()


async def _send_batch(address: str, topic: str, batch: bytes) -> tuple[int, int]:
    client = AIOKafkaClient(bootstrap_servers=address)
    await client.bootstrap()
    try:
        (node,) = (broker.nodeId for broker in client.cluster.brokers())
        request = ProduceRequest(
            transactional_id=None, required_acks=-1, timeout=10_000, topics=[(topic, [(0, batch)])]
        )
        answer = await client.send(node, request)
        ((_, ((_, error, offset, *_),)),) = answer.topics
        return error, offset
    finally:
        await client.close()


async def _read(address: str, topics: Sequence[str], committed: bool) -> dict[str, list[StoredRecord]]:
    consumer = _consumer(address, committed)
    await consumer.start()
    try:
        names = {TopicPartition(topic, 0): topic for topic in topics}
        consumer.assign(list(names))
        await consumer.seek_to_beginning(*names)
        ends = await consumer.end_offsets(list(names))
        found: dict[str, list[StoredRecord]] = {topic: [] for topic in topics}
        due = time.monotonic() + READ_SECONDS_MAX
        while behind := {p: e for p, e in ends.items() if await consumer.position(p) < e}:
            assert time.monotonic() < due, f"not read to the end: {behind}"
            for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                found[names[partition]] += map(_stored, records)
        return found
    finally:
        await consumer.stop()


async def _bounds(address: str, topics: Sequence[str], committed: bool) -> dict[str, tuple[int, int]]:
    consumer = _consumer(address, committed)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, 0) for topic in topics]
        consumer.assign(partitions)
        starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        return {each.topic: (starts[each], ends[each]) for each in partitions}
    finally:
        await consumer.stop()


def _consumer(address: str, committed: bool) -> AIOKafkaConsumer:
    isolation = "read_committed" if committed else "read_uncommitted"
    return AIOKafkaConsumer(bootstrap_servers=address, isolation_level=isolation, enable_auto_commit=False)


def _stored(record) -> StoredRecord:
    headers = tuple((key, value) for key, value in record.headers)
    kind = TimestampType(record.timestamp_type)
    return StoredRecord(record.offset, record.timestamp, kind, record.key, record.value, headers)
