"""A `RecordSource` in memory, whose reads a test can hold back and whose log a test can extend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from uuid import UUID

from local.errors import LogError, OffsetOutOfRange
from local.index.txn_index import AbortedTransaction
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset
from tiered.serve.handlers.service import Call, Endpoint, Service
from tiered.serve.read_pool import ReadPool
from tiered.serve.record_source import Bounds, Leader, ReadBatches, ServedTopic

T = TypeVar("T")
ORDERS, SLOW = TopicPartition("orders", 0), TopicPartition("slow", 0)
IDS = {"orders": UUID(int=1), "slow": UUID(int=2)}
CALL = Call(version=18, endpoint=Endpoint(host="broker", port=9092))  # of a newest client
BATCH = 100  # bytes of each batch; each has one record


class FakeSource:
    """Logs of one-record batches of BATCH bytes. `gates` hold reads of a partition back until they are set."""

    cluster_id = "fake-cluster"

    def __init__(self, **counts: int) -> None:
        self.counts = {TopicPartition(name, 0): count for name, count in counts.items()}
        self.stable: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.gates: dict[TopicPartition, threading.Event] = {}
        self.errors: dict[TopicPartition, LogError] = {}
        self.aborted: list[AbortedTransaction] = []
        self.found: FoundOffset | None = None
        self.topics_error: LogError | None = None
        self.led: dict[str, Leader] = {}
        self.reads: list[tuple[TopicPartition, int, int]] = []
        self.watched: list[tuple[Collection[TopicPartition], Callable[[TopicPartition], None]]] = []
        self.on_watch: Callable[[], None] = lambda: None

    def topics(self) -> Mapping[str, ServedTopic]:
        if self.topics_error is not None:
            raise self.topics_error
        return {
            name.topic: ServedTopic(name=name.topic, topic_id=IDS.get(name.topic), partitions=(0,))
            for name in self.counts
        }

    def leaders(self, topic: ServedTopic) -> Mapping[int, Leader]:
        return {0: self.led[topic.name]} if topic.name in self.led else {}

    def bounds(self, partition: TopicPartition) -> Bounds:
        end = self.counts[partition]
        start, stable = self.starts.get(partition, 0), self.stable.get(partition, end)
        return Bounds(log_start_offset=start, high_watermark=end, last_stable_offset=stable, leader_epoch=5)

    def read(self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int) -> ReadBatches:
        self.reads.append((partition, offset, bytes_max))
        if partition in self.gates:
            assert self.gates[partition].wait(60), "the test must open the gate"
        if partition in self.errors:
            raise self.errors[partition]
        bounds = self.bounds(partition)
        if not bounds.log_start_offset <= offset <= bounds.high_watermark:
            raise OffsetOutOfRange("cannot read", offset=offset)
        is_committed = isolation is Isolation.READ_COMMITTED
        end = bounds.last_stable_offset if is_committed else bounds.high_watermark
        count = min(max(1, bytes_max // BATCH), end - offset)
        runs = [memoryview(b"%0*d" % (BATCH, at)) for at in range(offset, offset + count)]
        return ReadBatches(bounds=bounds, runs=runs, aborted=self.aborted if is_committed else None)

    def find_offset(self, partition: TopicPartition, spec: int, isolation: Isolation) -> FoundOffset | None:
        if partition in self.errors:
            raise self.errors[partition]
        return self.found

    def epochs(self, partition: TopicPartition) -> Sequence[tuple[int, int]]:
        return (2, 0), (5, 40)

    @contextmanager
    def watch(self, partitions: Collection[TopicPartition], notify: Callable[[TopicPartition], None]) -> Iterator[None]:
        self.watched.append((partitions, notify))
        self.on_watch()
        try:
            yield
        finally:
            self.watched.remove((partitions, notify))

    def extend(self, partition: TopicPartition, count: int) -> None:
        self.counts[partition] += count
        for partitions, notify in self.watched:
            if partition in partitions:
                notify(partition)


def run(source: FakeSource, work: Callable[[Service], Coroutine[object, object, T]]) -> T:
    """The result of a handler that gets a service of its own."""
    pool = ReadPool()
    try:
        return asyncio.run(work(Service(source=source, pool=pool)))
    finally:
        for gate in source.gates.values():
            gate.set()
        pool.close()
