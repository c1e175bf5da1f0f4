"""A Kafka endpoint in front of a manager of this process, and clients that read it to its end."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import aiokafka

from local.format.record import StoredRecord
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.manager.manager import LogManager
from tiered.serve.endpoint import serving
from tiered.serve.handlers.service import Service
from tiered.serve.node.node_source import NodeSource, Notify

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

Seen = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
POLL_MS = 50  # a poll without records ends after this time, also if its position advanced
UNCOMMITTED = Isolation.READ_UNCOMMITTED


class WatchedSource(NodeSource):
    """`is_watched` is set while a client waits for news."""

    def __init__(self, manager: LogManager) -> None:
        super().__init__(manager)
        self.is_watched = threading.Event()

    def watch(self, partitions: Collection[TopicPartition], notify: Notify) -> AbstractContextManager[None]:
        self.is_watched.set()
        return super().watch(partitions, notify)


@contextmanager
def serving_node(manager: LogManager) -> Iterator[tuple[str, WatchedSource]]:
    """The address of a running endpoint on a free port, and its source."""
    with closing(WatchedSource(manager)) as source:
        service = Service(source=source, broker_id=source.broker_id)
        with serving(service, "127.0.0.1", 0) as server:
            yield "{}:{}".format(*server.address), source


class KafkaPython:
    """A consumer of one partition that stays connected and reads on."""

    def __init__(
        self, address: str, name: TopicPartition, isolation: Isolation = UNCOMMITTED, **settings: object
    ) -> None:
        self._here = kafka.TopicPartition(name.topic, name.partition)
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=address,
            isolation_level=isolation.value,
            **{"fetch_max_wait_ms": 50, "max_partition_fetch_bytes": 3000, "auto_offset_reset": "none", **settings},
        )
        self.consumer.assign([self._here])

    def seek(self, offset: int) -> None:
        self.consumer.seek(self._here, offset)

    def read_to_end(self) -> list[Seen]:
        (end,) = self.consumer.end_offsets([self._here]).values()
        return self.read_to(end)

    def read_to(self, end: int) -> list[Seen]:
        found: list[Seen] = []
        while self.consumer.position(self._here) < end:
            for record in self.consumer.poll(timeout_ms=POLL_MS).get(self._here, []):
                found.append((record.offset, record.key, record.value, record.timestamp, tuple(record.headers)))
        return found

    def close(self) -> None:
        self.consumer.close()


class Aiokafka:
    """As `KafkaPython`, with aiokafka in an event loop of its own."""

    def __init__(
        self, address: str, name: TopicPartition, isolation: Isolation = UNCOMMITTED, **settings: object
    ) -> None:
        self._here = aiokafka.TopicPartition(name.topic, name.partition)
        self._runner = asyncio.Runner()
        self._consumer = self._runner.run(self._started(address, isolation, settings))

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._here, offset)

    def read_to_end(self) -> list[Seen]:
        return self._runner.run(self._read(None))

    def read_to(self, end: int) -> list[Seen]:
        return self._runner.run(self._read(end))

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()

    async def _started(
        self, address: str, isolation: Isolation, settings: dict[str, object]
    ) -> aiokafka.AIOKafkaConsumer:
        limits = {"fetch_max_wait_ms": 50, "max_partition_fetch_bytes": 3000, "auto_offset_reset": "none", **settings}
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, isolation_level=isolation.value, **limits)
        await consumer.start()
        consumer.assign([self._here])
        return consumer

    async def _read(self, end: int | None) -> list[Seen]:
        consumer, here = self._consumer, self._here
        stop = (await consumer.end_offsets([here]))[here] if end is None else end
        found: list[Seen] = []
        while await consumer.position(here) < stop:
            for record in (await consumer.getmany(here, timeout_ms=POLL_MS)).get(here, []):
                found.append((record.offset, record.key, record.value, record.timestamp, tuple(record.headers)))
        return found


Client = type[KafkaPython] | type[Aiokafka]
CLIENTS: tuple[Client, ...] = (KafkaPython, Aiokafka)


def stored(record: StoredRecord) -> Seen:
    return record.offset, record.key, record.value, record.timestamp_ms, tuple(record.headers)


def read_here(manager: LogManager, name: TopicPartition, start: int, isolation: Isolation = UNCOMMITTED) -> list[Seen]:
    """What the project's own reader sees."""
    return [stored(each) for each in manager.reader(isolation).records(name, start)]
