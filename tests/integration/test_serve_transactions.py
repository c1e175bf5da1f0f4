"""Independent transactional clients consume, transform and produce exactly once, although the node is killed."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest
from real_daemon import FOR_EVER, NOW, Daemon, Node

from local.format.record import Record
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.manager.manager import LogManager

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
COUNT, PARTITIONS, STEP, LIMIT_S = 40, 2, 10, 60.0
GROUP, NAME = "transformers", "transformer"
STAGES = ("produced", "offsets sent", "committing")
Hook = Callable[[str], None]


class Served:
    """A node in a process of its own, at one address for its whole life."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.node = Node(home, None)
        with self.node.manager() as manager:
            fill(manager)
        self._start("127.0.0.1:0")
        self.address = self._address()

    def kill(self) -> None:
        """SIGKILL, and a new process at the same address."""
        self.daemon.end(signal.SIGKILL)
        self.daemon.__exit__()
        self._start(self.address)
        assert self._address() == self.address

    def stop(self) -> None:
        self.daemon.end()

    def _start(self, address: str) -> None:
        self.daemon = Daemon(self.node, (*FOR_EVER, "--kafka", address))

    def _address(self) -> str:
        def said() -> str | None:
            found = re.search(r"serving Kafka clients at (\S+:\d+)", self.daemon.words)
            return found[1] if found else None

        return self.daemon.wait_for(said, "it serves Kafka clients")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "node")
    try:
        yield made
    finally:
        made.daemon.__exit__()


def fill(manager: LogManager) -> None:
    for name in ("in", "out"):
        manager.topics.create(name, PARTITIONS, {"retention.ms": "-1"}, now_ms=NOW)
    for partition in range(PARTITIONS):
        records = [Record(None, b"%d of %d" % (at, partition), NOW) for at in range(COUNT)]
        manager.append("in", records, partition, now_ms=NOW)


def values(manager: LogManager, topic: str, isolation: Isolation) -> list[list[bytes | None]]:
    reader = manager.reader(isolation)
    return [[each.value for each in reader.records(TopicPartition(topic, number), 0)] for number in range(PARTITIONS)]


def expected() -> list[list[bytes]]:
    return [[b"%d of %d, transformed" % (at, number) for at in range(COUNT)] for number in range(PARTITIONS)]


class Killer:
    """Kills the node at the first transaction after `after`, at a stage of it."""

    def __init__(self, served: Served, stage: str, after: int = 1) -> None:
        self._served, self._stage, self._after = served, stage, after
        self._thread: threading.Thread | None = None
        self._transactions = 0

    def __call__(self, stage: str) -> None:
        self._transactions += stage == STAGES[0]
        if stage != self._stage or self._transactions <= self._after or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._served.kill)
        self._thread.start()
        if stage != "committing":
            self._thread.join()

    def join(self) -> None:
        assert self._thread is not None, "the node must have been killed"
        self._thread.join()


def transform(address: str, hook: Hook) -> None:
    """Consume, transform and produce until all input is transformed; after an error begin again as a new instance."""
    while True:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": NAME,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                # librdkafka 2.16 keeps the group coordinator that it forgets on a new bootstrap, and never ends then.
                "metadata.recovery.strategy": "none",
            }
        )
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        try:
            producer.init_transactions(LIMIT_S)
            if transformed(producer, consumer, hook):
                return
        except confluent_kafka.KafkaException:
            continue
        finally:
            consumer.close()
            producer.purge()


def transformed(producer: confluent_kafka.Producer, consumer: confluent_kafka.Consumer, hook: Hook) -> bool:
    names = [confluent_kafka.TopicPartition("in", number) for number in range(PARTITIONS)]
    committed = consumer.committed(names, LIMIT_S)
    assert all(each.error is None for each in committed)
    at = {each.partition: max(each.offset, 0) for each in committed}
    consumer.assign([confluent_kafka.TopicPartition("in", number, offset) for number, offset in at.items()])
    while min(at.values()) < COUNT:
        messages = consumer.consume(STEP, LIMIT_S)
        assert messages, "records are left"
        producer.begin_transaction()
        for message in messages:
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            producer.produce("out", message.value() + b", transformed", partition=message.partition())
            at[message.partition()] = message.offset() + 1
        producer.flush(LIMIT_S)
        hook("produced")
        positions = [confluent_kafka.TopicPartition("in", number, offset) for number, offset in at.items()]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), LIMIT_S)
        hook("offsets sent")
        hook("committing")
        producer.commit_transaction(LIMIT_S)
    return True


async def transform_by_aiokafka(address: str, hook: Hook) -> None:
    while True:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id=NAME, retry_backoff_ms=20)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, group_id=GROUP, enable_auto_commit=False, isolation_level="read_committed"
        )
        try:
            await producer.start()
            await consumer.start()
            names = [aiokafka.TopicPartition("in", number) for number in range(PARTITIONS)]
            consumer.assign(names)
            at = {name: await consumer.committed(name) or 0 for name in names}
            for name, offset in at.items():
                consumer.seek(name, offset)
            while min(at.values()) < COUNT:
                async with producer.transaction():
                    found = await consumer.getmany(timeout_ms=int(LIMIT_S * 1000), max_records=STEP)
                    for name, messages in found.items():
                        for each in messages:
                            await producer.send("out", each.value + b", transformed", partition=name.partition)
                            at[name] = each.offset + 1
                    await producer.flush()
                    await asyncio.to_thread(hook, "produced")
                    await producer.send_offsets_to_transaction(at, GROUP)
                    await asyncio.to_thread(hook, "offsets sent")
                    await asyncio.to_thread(hook, "committing")
            return
        except aiokafka.errors.KafkaError:
            continue
        finally:
            await consumer.stop()
            with suppress(aiokafka.errors.KafkaError):
                await producer.stop()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])
def test_a_killed_node_transforms_every_record_once(served: Served, client: str, stage: str) -> None:
    killer = Killer(served, stage)
    if client == "librdkafka":
        transform(served.address, killer)
    else:
        asyncio.run(transform_by_aiokafka(served.address, killer))
    killer.join()
    served.stop()
    with served.node.manager() as manager:
        assert values(manager, "out", Isolation.READ_COMMITTED) == expected()
        for number in range(PARTITIONS):
            log = manager.partitions.find(TopicPartition("out", number)).log
            assert log.view.last_stable_offset == log.next_offset, "no transaction is open"
