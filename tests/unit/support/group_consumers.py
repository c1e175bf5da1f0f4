"""Consumers of the topic t in one group, by three clients, for `polled_group`.

Each member is polled by a thread of its own. A call of one member may wait for a rebalance, and that ends when all
other members have polled: one thread for all of them waits for itself.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from polled_group import LIMIT_S, PARTITIONS, Polled, commit_consumed

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka
    import kafka.errors

GROUP = "readers"
POLL_S = 0.05  # of a member without records
T = TypeVar("T")


class Consumer(Polled, Protocol):
    def commit(self) -> None: ...

    def close(self) -> None: ...


class KafkaPython:
    def __init__(self, address: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            "t", bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
        )

    def poll(self) -> list[bytes]:
        found = self._consumer.poll(timeout_ms=100)
        return [each.value for records in found.values() for each in records]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    def __init__(self, address: str, *, is_member: bool = True, **settings: object) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range,roundrobin",
                **settings,
            }
        )
        if is_member:
            self._consumer.subscribe(["t"])

    def poll(self) -> list[bytes]:
        found = self._consumer.consume(100, 0.1)
        assert not [each.error() for each in found if each.error()]
        return [each.value() for each in found]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        commit_consumed(self._consumer)

    def committed(self) -> dict[int, int]:
        wanted = [confluent_kafka.TopicPartition("t", at) for at in range(PARTITIONS)]
        return {each.partition: each.offset for each in self._consumer.committed(wanted, LIMIT_S) if each.offset >= 0}

    def close(self) -> None:
        self._consumer.close()


class AioKafka:
    """An event loop of its own, in a thread: its heartbeats continue between polls."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                "t",
                bootstrap_servers=address,
                group_id=GROUP,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                # Two strategies would be two joins with other metadata each: 0.14 rebalances the group twice.
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            await consumer.start()
            return consumer

        self._consumer = self._run(start())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def poll(self) -> list[bytes]:
        found = self._run(self._consumer.getmany(timeout_ms=100))
        return [each.value for records in found.values() for each in records]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self) -> None:
        self._run(self._consumer.commit())

    def knows(self, ports: Collection[int]) -> bool:
        """Whether its metadata, which it asks for again, names brokers of these ports."""
        client = self._consumer._client

        async def refresh() -> None:
            await client.force_metadata_update()

        self._run(refresh())
        return {each.port for each in client.cluster.brokers()} == set(ports)

    def close(self) -> None:
        self._run(self._consumer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Member:
    """A consumer that a thread opens, polls and closes. Other calls of it are made between two polls."""

    def __init__(self, client: Callable[[str], Any], address: str) -> None:
        self.client = client
        self._records: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._assignment: set[int] = set()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(address,), daemon=True)
        self._thread.start()

    def poll(self) -> list[bytes]:
        """The records of polls that have ended."""
        if self._failure is not None:
            raise self._failure
        try:
            found = self._records.get(timeout=POLL_S)
        except queue.Empty:
            return []
        return found + self.drained()

    def drained(self) -> list[bytes]:
        """The same, without a wait."""
        found: list[bytes] = []
        while not self._records.empty():
            found += self._records.get()
        return found

    def assignment(self) -> set[int]:
        return self._assignment

    def commit(self) -> None:
        """Commit, for which a rebalance may have to end. `poll` returns all records of the commit."""
        self.call(lambda consumer: consumer.commit())

    def call(self, work: Callable[[Any], T]) -> T:
        """The result of `work`, which gets the consumer of `client`."""
        done: Future[T] = Future()
        self._calls.put((work, done))
        return done.result(LIMIT_S)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "a consumer does not close"
        if self._failure is not None:
            raise self._failure

    def _run(self, address: str) -> None:
        try:
            consumer = self.client(address)
            try:
                self._poll_until_closed(consumer)
            finally:
                consumer.close()
        except BaseException as error:  # noqa: BLE001 - for the test's thread
            self._failure = error

    def _poll_until_closed(self, consumer: Any) -> None:
        while True:
            while not self._calls.empty():
                if (call := self._calls.get()) is None:
                    return
                work, done = call
                try:
                    done.set_result(work(consumer))
                except BaseException as error:  # noqa: BLE001 - for the test's thread
                    done.set_exception(error)
            if found := consumer.poll():
                self._records.put(found)
            self._assignment = consumer.assignment()


CONSUMERS: list[Callable[[str], Member]] = [partial(Member, each) for each in (KafkaPython, AioKafka, Confluent)]


def have_committed(members: Sequence[Consumer], reader: Confluent, offset: int) -> bool:
    """Whether the group has committed this offset of each partition, after a commit of each member."""
    for each in members:
        try:
            each.commit()
        except (confluent_kafka.KafkaException, kafka.errors.KafkaError, RuntimeError):
            return False  # directly after a fault or a rebalance; clients tell the caller to try again
    try:
        return reader.committed() == dict.fromkeys(range(PARTITIONS), offset)
    except confluent_kafka.KafkaException:
        return False
