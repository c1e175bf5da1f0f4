"""Clients of a race that are not ours: idempotent producers, members of groups, transactional pipelines, watchers.

A record's value begins with its number in its partition. A topic has one producer and, without transactions, no
markers: the number of a record is its offset.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from serve_world import LIMIT_S, PARTITIONS, Process, Race, now_ms

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka
    import kafka.errors

IN_FLIGHT = 100
GROUP = "readers"
PAD = 150
ABORTED = b"aborted"
WAIT_S = 60.0
# aiokafka's `stop` raises the cancellation of its own tasks.
_ENDS = (aiokafka.errors.KafkaError, TimeoutError, asyncio.CancelledError)
Place = tuple[str, str, int]  # group, topic, partition
for _name in ("aiokafka", "kafka"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # each kill is hundreds of lines


def value(number: int) -> bytes:
    return (b"%d " % number).ljust(PAD, b".")


def number_of(data: bytes | None) -> int:
    return int((data or b"").split()[0])


@dataclass
class Sent:
    """What one producer sent to its topic, by partition: acknowledged in order."""

    race: Race
    topic: str
    rate: float
    keys: int = 0
    sent: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    acked: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    sent_ms: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def records(self) -> Iterator[tuple[int, bytes | None, bytes]]:
        """Partition, key and value of the next record, at the rate, until the race ends."""
        begun_s, count = time.monotonic(), 0
        while not self.race.stop.is_set():
            partition = count // 10 % PARTITIONS
            number = self.sent[partition]
            self.sent_ms[partition].append(now_ms())
            self.sent[partition] += 1
            yield partition, b"k%d" % (number % self.keys) if self.keys else None, value(number)
            count += 1
            if count % 10 == 0 and (ahead_s := count / self.rate - (time.monotonic() - begun_s)) > 0:
                self.race.pause(ahead_s)

    def ack(self, partition: int) -> None:
        self.acked[partition] += 1
        self.race.count("records acknowledged")


def by_librdkafka(sent: Sent, address: str) -> None:
    def reported(error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            sent.race.broken(f"{sent.topic}: a record of an idempotent producer is refused: {error}")
        sent.ack(message.partition())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "message.timeout.ms": int(LIMIT_S * 1000),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "retry.backoff.ms": 50,
            "linger.ms": 2,
            "compression.type": "lz4",
        }
    )
    for partition, key, data in sent.records():
        producer.produce(sent.topic, data, key, partition=partition, on_delivery=reported)
        producer.poll(0)
        while sum(sent.sent) - sum(sent.acked) > IN_FLIGHT:
            producer.poll(0.05)
    left = producer.flush(LIMIT_S)
    assert not left, f"{left} records without an answer"


def by_kafka_python(sent: Sent, address: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=200,
        retry_backoff_ms=50,
        request_timeout_ms=20_000,
        delivery_timeout_ms=int(LIMIT_S * 1000),
        max_block_ms=int(LIMIT_S * 1000),
        linger_ms=2,
    )
    waiting: list[tuple[int, Any]] = []

    def settle(count_max: int) -> None:
        while len(waiting) > count_max:
            partition, future = waiting.pop(0)
            future.get(LIMIT_S)
            sent.ack(partition)

    for partition, key, data in sent.records():
        waiting.append((partition, producer.send(sent.topic, data, key, partition=partition)))
        settle(IN_FLIGHT)
    settle(0)
    producer.close()


def by_aiokafka(sent: Sent, address: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, retry_backoff_ms=50, request_timeout_ms=20_000
        )
        await producer.start()
        waiting: list[tuple[int, Any]] = []
        for partition, key, data in sent.records():
            waiting.append((partition, await producer.send(sent.topic, data, key, partition=partition)))
            while waiting and (len(waiting) > IN_FLIGHT or waiting[0][1].done()):
                at, future = waiting.pop(0)
                await asyncio.wait_for(future, LIMIT_S)
                sent.ack(at)
            await asyncio.sleep(0)
        for at, future in waiting:
            await asyncio.wait_for(future, LIMIT_S)
            sent.ack(at)
        await producer.stop()

    asyncio.run(produce())


PRODUCERS: Mapping[str, Callable[[Sent, str], None]] = {
    "librdkafka": by_librdkafka,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


class Groups:
    """What members of groups received, and the offsets whose commits were acknowledged."""

    def __init__(self, race: Race) -> None:
        self.race = race
        self.committed: dict[Place, int] = {}
        self.received: dict[Place, set[int]] = defaultdict(set)

    def receive(self, group: str, topic: str, partition: int, offset: int, data: bytes | None) -> None:
        if number_of(data) != offset:
            self.race.broken(f"{group} read record {number_of(data)} at offset {offset} of {topic}-{partition}")
        self.received[group, topic, partition].add(offset)
        self.race.count("records consumed in groups")

    def receive_all(self, group: str, found: Mapping[Any, Sequence[Any]]) -> None:
        """The records of aiokafka or kafka-python by partition."""
        for name, records in found.items():
            for each in records:
                self.receive(group, name.topic, name.partition, each.offset, each.value)

    def commit(self, place: Place, offset: int) -> None:
        with self.race.lock:
            self.committed[place] = max(offset, self.committed.get(place, -1))
            self.race.counts["offsets committed"] += 1

    def failed(self, client: str, error: object) -> None:
        """A member may fail at any time: its group rebalances, or the node ends."""
        name = error.args[0].name() if isinstance(error, confluent_kafka.KafkaException) else type(error).__name__
        self.race.count(f"{client}: {name}")


def member_by_librdkafka(groups: Groups, topics: list[str], address: str, life_s: float) -> None:
    race, due_s = groups.race, time.monotonic() + life_s
    batch: list[confluent_kafka.Message] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "range,roundrobin",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe(topics, on_revoke=lambda *_: batch.clear(), on_lost=lambda *_: batch.clear())
    try:
        while not race.stop.is_set() and time.monotonic() < due_s:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                batch.append(message)
            if batch and (message is None or len(batch) >= 50):
                ends = {(each.topic(), each.partition()): each.offset() + 1 for each in batch}
                for each in batch:
                    groups.receive(GROUP, each.topic(), each.partition(), each.offset(), each.value())
                batch.clear()
                offsets = [confluent_kafka.TopicPartition(*place, offset) for place, offset in ends.items()]
                for done in consumer.commit(offsets=offsets, asynchronous=False):
                    if done.error is None:
                        groups.commit((GROUP, done.topic, done.partition), done.offset)
    except confluent_kafka.KafkaException as error:
        groups.failed("librdkafka", error)
    finally:
        consumer.close()


def member_by_kafka_python(groups: Groups, topics: list[str], address: str, life_s: float) -> None:
    race, due_s = groups.race, time.monotonic() + life_s
    consumer = kafka.KafkaConsumer(
        *topics,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        reconnect_backoff_max_ms=200,
        bootstrap_timeout_ms=int(WAIT_S * 1000),
    )
    try:
        while not race.stop.is_set() and time.monotonic() < due_s:
            found = consumer.poll(timeout_ms=200, max_records=100)
            if not found:
                continue
            groups.receive_all(GROUP, found)
            ends = {name: kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1) for name, records in found.items()}
            consumer.commit(ends, timeout_ms=20_000)
            for name, end in ends.items():
                groups.commit((GROUP, name.topic, name.partition), end.offset)
    except kafka.errors.KafkaError as error:
        groups.failed("kafka-python", error)
    finally:
        with suppress(kafka.errors.KafkaError):
            consumer.close(autocommit=False, timeout_ms=5000)


def member_by_aiokafka(groups: Groups, topics: list[str], address: str, life_s: float) -> None:
    async def consume() -> None:
        race, due_s = groups.race, time.monotonic() + life_s
        consumer = aiokafka.AIOKafkaConsumer(
            *topics,
            bootstrap_servers=address,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            retry_backoff_ms=50,
            partition_assignment_strategy=[RangePartitionAssignor, RoundRobinPartitionAssignor],
        )
        try:
            await asyncio.wait_for(consumer.start(), WAIT_S)
            while not race.stop.is_set() and time.monotonic() < due_s:
                found = await consumer.getmany(timeout_ms=200, max_records=100)
                if not found:
                    continue
                groups.receive_all(GROUP, found)
                ends = {name: records[-1].offset + 1 for name, records in found.items()}
                await asyncio.wait_for(consumer.commit(ends), WAIT_S)
                for name, offset in ends.items():
                    groups.commit((GROUP, name.topic, name.partition), offset)
        except (aiokafka.errors.KafkaError, TimeoutError) as error:
            groups.failed("aiokafka", error)
        finally:
            with suppress(*_ENDS):
                await asyncio.wait_for(consumer.stop(), WAIT_S)

    asyncio.run(consume())


MEMBERS: Mapping[str, Callable[[Groups, list[str], str, float], None]] = {
    "librdkafka": member_by_librdkafka,
    "kafka-python": member_by_kafka_python,
    "aiokafka": member_by_aiokafka,
}


def keep_joining(
    groups: Groups, client: str, number: int, topics: list[str], address: str, life_s: tuple[float, float] = (4, 20)
) -> None:
    """A member that joins, reads, commits and leaves, again and again: each time the group rebalances."""
    rng = groups.race.random(f"{client} {number}")
    while groups.race.pause(rng.uniform(0, 1)):
        groups.race.count("members joined")
        MEMBERS[client](groups, topics, address, rng.uniform(*life_s))


@dataclass
class Pipeline:
    """Consumes `source` and produces each record to `target` in transactions, with the consumed offsets."""

    race: Race
    client: str
    source: str
    known: dict[int, int] = field(default_factory=dict)  # committed offsets by partition

    @property
    def target(self) -> str:
        return f"out-{self.client}"

    @property
    def group(self) -> str:
        return f"pipeline-{self.client}"

    def work(self, address: str) -> None:
        rng = self.race.random(self.client)
        while not self.race.stop.is_set():
            try:
                if self.client == "librdkafka":
                    self._by_librdkafka(address, rng.random)
                else:
                    asyncio.run(self._by_aiokafka(address, rng.random))
            except confluent_kafka.KafkaException as error:
                self.race.count(f"transactions by librdkafka: {error.args[0].name()}")
            except (aiokafka.errors.KafkaError, TimeoutError) as error:
                self.race.count(f"transactions by aiokafka: {type(error).__name__}")
            self.race.pause(0.1)

    def _by_librdkafka(self, address: str, draw: Callable[[], float]) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": self.group,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                # librdkafka 2.16 keeps the group coordinator that it forgets on a new bootstrap, and never ends then.
                "metadata.recovery.strategy": "none",
            }
        )
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": self.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        try:
            producer.init_transactions(WAIT_S)
            while not self.race.stop.is_set():
                names = [confluent_kafka.TopicPartition(self.source, number) for number in range(PARTITIONS)]
                at = {each.partition: max(each.offset, 0) for each in consumer.committed(names, WAIT_S)}
                consumer.assign([confluent_kafka.TopicPartition(self.source, *each) for each in at.items()])
                is_committed = True
                while is_committed and not self.race.stop.is_set():
                    is_committed = self._step(producer, consumer, at, draw() >= 0.15)
        finally:
            consumer.close()
            producer.purge()

    def _step(
        self, producer: confluent_kafka.Producer, consumer: confluent_kafka.Consumer, at: dict[int, int], commits: bool
    ) -> bool:
        """One transaction, if there are records. False after an abort: the positions are of committed records."""
        messages = consumer.consume(50, 0.5)
        if not messages:
            return True
        producer.begin_transaction()
        for message in messages:
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            data = message.value() if commits else ABORTED
            producer.produce(self.target, data, partition=message.partition())
            at[message.partition()] = message.offset() + 1
        producer.flush(WAIT_S)
        positions = [confluent_kafka.TopicPartition(self.source, *each) for each in at.items()]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
        if commits:
            producer.commit_transaction(WAIT_S)
            self._done(len(messages))
        else:
            producer.abort_transaction(WAIT_S)
            self.race.count("transactions aborted")
        return commits

    def _done(self, count: int) -> None:
        self.race.count("transactions committed")
        self.race.count("records in transactions", count)

    async def _by_aiokafka(self, address: str, draw: Callable[[], float]) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, transactional_id=self.group, retry_backoff_ms=20, request_timeout_ms=20_000
        )
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, group_id=self.group, enable_auto_commit=False, isolation_level="read_committed"
        )
        try:
            await asyncio.wait_for(producer.start(), WAIT_S)
            await asyncio.wait_for(consumer.start(), WAIT_S)
            names = [aiokafka.TopicPartition(self.source, number) for number in range(PARTITIONS)]
            consumer.assign(names)
            at = {name: await asyncio.wait_for(consumer.committed(name), WAIT_S) or 0 for name in names}
            if any(at[name] < self.known.get(name.partition, 0) for name in names):
                # aiokafka 0.14 takes COORDINATOR_LOAD_IN_PROGRESS, the error of the whole response, for "no offset".
                self.race.count("transactions by aiokafka: an error taken for no offset")
                return
            for name, offset in at.items():
                consumer.seek(name, offset)
            while not self.race.stop.is_set():
                found = await consumer.getmany(timeout_ms=500, max_records=50)
                if not found:
                    continue
                commits = draw() >= 0.15
                await producer.begin_transaction()
                for name, messages in found.items():
                    for each in messages:
                        data = each.value if commits else ABORTED
                        await producer.send(self.target, data, partition=name.partition)
                        at[name] = each.offset + 1
                await asyncio.wait_for(producer.flush(), WAIT_S)
                await asyncio.wait_for(producer.send_offsets_to_transaction(at, self.group), WAIT_S)
                if not commits:
                    await asyncio.wait_for(producer.abort_transaction(), WAIT_S)
                    self.race.count("transactions aborted")
                    return  # and begin at the committed offsets
                await asyncio.wait_for(producer.commit_transaction(), WAIT_S)
                self._done(sum(map(len, found.values())))
                self.known = {name.partition: offset for name, offset in at.items()}
        finally:
            with suppress(*_ENDS):
                await asyncio.wait_for(consumer.stop(), WAIT_S)
            with suppress(*_ENDS):
                await asyncio.wait_for(producer.stop(), WAIT_S)


def watch(groups: Groups, sent: list[Sent], address: str, places: list[Place]) -> None:
    """Look at committed offsets and at the ends of logs: neither may fall below what was acknowledged."""
    race = groups.race
    by_group = {place[0]: [each for each in places if each[0] == place[0]] for place in places}
    clients = {
        group: confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": group, "reconnect.backoff.max.ms": 200, "log_level": 0}
        )
        for group in by_group
    }
    seen: dict[object, int] = {}
    try:
        while race.pause(0.3):
            for group, own in by_group.items():
                with race.lock:
                    floors = {each: groups.committed.get(each, -1) for each in own}
                wanted = [confluent_kafka.TopicPartition(topic, partition) for _, topic, partition in own]
                with suppress(confluent_kafka.KafkaException):
                    for each in clients[group].committed(wanted, 20):
                        if each.error is not None:
                            continue
                        place = group, each.topic, each.partition
                        floor, offset = max(floors[place], seen.get(place, -1)), max(each.offset, -1)
                        race.count("looks at committed offsets")
                        if offset < floor:
                            race.broken(f"the committed offset of {place} fell from {floor} to {offset}")
                        seen[place] = max(offset, floor)
            client = next(iter(clients.values()))
            for each in sent:
                for partition in range(PARTITIONS):
                    acked = each.acked[partition]
                    with suppress(confluent_kafka.KafkaException):
                        low, high = client.get_watermark_offsets(
                            confluent_kafka.TopicPartition(each.topic, partition), 20, cached=False
                        )
                        if high < acked or low < seen.get((each.topic, partition), 0):
                            race.broken(f"{each.topic}-{partition} is {low}..{high}, {acked} records are acknowledged")
                        seen[each.topic, partition] = low
    finally:
        for each in clients.values():
            each.close()


@dataclass
class ReplicaReader:
    """Reads a topic from replicas that are killed: each record at its offset, none left out."""

    race: Race
    topic: str
    replicas: list[Process]
    at: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    def work(self) -> None:
        while not self.race.stop.is_set():
            self.read(lambda: self.race.stop.is_set())

    def read(self, is_enough: Callable[[], bool]) -> None:
        """Read on, with a new client at each replica after an error."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": ",".join(each.address for each in self.replicas),
                "group.id": "none",
                "enable.auto.commit": False,  # a replica coordinates no group
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        due_s = time.monotonic() + 10
        try:
            consumer.assign([confluent_kafka.TopicPartition(self.topic, *each) for each in enumerate(self.at)])
            while not is_enough() and time.monotonic() < due_s:
                for message in consumer.consume(100, 0.2):
                    if message.error() is not None:
                        self.race.count(f"replica: {message.error().name()}")
                        return
                    at = self.at[message.partition()]
                    if not message.offset() == number_of(message.value()) == at:
                        self.race.broken(f"a replica gave {message.offset()} of {self.topic}, the next one is {at}")
                    self.at[message.partition()] = message.offset() + 1
                    self.race.count("records read from replicas")
        finally:
            consumer.close()
