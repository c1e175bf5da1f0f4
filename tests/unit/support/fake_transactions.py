"""The storage of a transaction coordinator in memory, which ends with a crash or an error at a chosen effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from local.errors import DiskFailed, LogError, NotFound, ProducerFenced
from local.log.producer_state import ProducerEntry
from local.names import TopicPartition
from tiered.serve.transactions.coordinator import EndMarker, TransactionCoordinator, TransactionSettings
from tiered.serve.transactions.transaction import ProducerOf

P, Q, OFFSETS = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("__consumer_offsets", 0)
ID = "payments"


class Crash(BaseException):
    """The end of the process."""


class FakeTransactionLog:
    """`records` in order, of which the first `durable` survive a crash. `markers` by partition are durable once
    flushed.

    `cut_after` is the number of effects before a `Crash`. `failures` are the errors of partitions, `append_error` is
    that of all records. `open_batches` of a partition are (producer id, name of the batch); `outcomes` are the names of
    ended ones, with True for committed.
    """

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.durable = 0
        self.markers: dict[TopicPartition, list[EndMarker]] = {P: [], Q: [], OFFSETS: []}
        self.open_batches: dict[TopicPartition, list[tuple[int, str]]] = {P: [], Q: [], OFFSETS: []}
        self.outcomes: dict[TopicPartition, dict[str, bool]] = {P: {}, Q: {}, OFFSETS: {}}
        self.epochs: dict[tuple[TopicPartition, int], int] = {}
        self.unflushed: list[tuple[TopicPartition, EndMarker]] = []
        self.failures: dict[TopicPartition, LogError] = {}
        self.append_error: LogError | None = None
        self.read_error: LogError | None = None
        self.cut_after: int | None = None
        self.on_append: Callable[[], None] = lambda: None

    def crash(self) -> None:
        """Lose what is not durable."""
        del self.records[self.durable :]
        self.unflushed.clear()
        self.cut_after = None

    def read_all(self) -> Iterable[tuple[bytes, bytes | None]]:
        if self.read_error is not None:
            raise self.read_error
        return list(self.records)

    def append(self, transactional_id: str, key: bytes, value: bytes | None, *, is_durable: bool) -> None:
        self.on_append()
        if self.append_error is not None:
            raise self.append_error
        self.records.append((key, value))
        if is_durable:
            self.durable = len(self.records)
        self._effect()

    def write_marker(self, partition: TopicPartition, marker: EndMarker) -> None:
        if partition not in self.markers:
            raise NotFound("no partition", partition=partition)
        if partition in self.failures:
            raise self.failures[partition]
        self._check_epoch(partition, marker.producer_id, marker.producer_epoch)
        self.unflushed.append((partition, marker))
        self._effect()

    def flush(self, partition: TopicPartition) -> None:
        for each in [each for each in self.unflushed if each[0] == partition]:
            self.unflushed.remove(each)
            self._end(*each)
        self._effect()

    def _end(self, partition: TopicPartition, marker: EndMarker) -> None:
        self.markers[partition].append(marker)
        for each in list(self.open_batches[partition]):
            if each[0] == marker.producer_id:
                self.open_batches[partition].remove(each)
                self.outcomes[partition][each[1]] = marker.is_commit

    def producers(self, partition: TopicPartition) -> Sequence[ProducerEntry]:
        if partition in self.failures:
            raise self.failures[partition]
        return [ProducerEntry(7, 1, 4, 10, 0, 1000, 3, 9)]

    def coordinator_epoch(self, transactional_id: str) -> int:
        return 3

    def append_batch(self, partition: TopicPartition, producer: ProducerOf, name: str) -> None:
        """A transactional batch, as the log accepts it: the epoch is not below the newest one. Durable."""
        self._check_epoch(partition, producer.producer_id, producer.producer_epoch)
        self.open_batches[partition].append((producer.producer_id, name))

    def _check_epoch(self, partition: TopicPartition, producer_id: int, epoch: int) -> None:
        newest = self.epochs.get((partition, producer_id), -1)
        if epoch < newest:
            raise ProducerFenced("old epoch", partition=partition, epoch=epoch, newest=newest)
        self.epochs[partition, producer_id] = epoch

    def _effect(self) -> None:
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                raise Crash


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class World:
    """A log, a clock and the coordinator over them; `restart` is a crash and a new process."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.log, self.clock, self.settings = FakeTransactionLog(), Clock(), settings
        self.on_marker: Callable[[TopicPartition, EndMarker], None] = lambda partition, marker: None
        self._next_id = 1000
        self.coordinator = self._start()

    def restart(self) -> None:
        self.log.crash()
        self.coordinator = self._start()

    def producer(self, timeout_ms: int = 60_000, transactional_id: str = ID) -> ProducerOf:
        found = self.coordinator.init_producer_id(transactional_id, timeout_ms)
        return ProducerOf(
            transactional_id=transactional_id, producer_id=found.producer_id, producer_epoch=found.producer_epoch
        )

    def new_producer_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _start(self) -> TransactionCoordinator:
        made = TransactionCoordinator(
            self.log,
            new_producer_id=self.new_producer_id,
            clock_ms=self.clock,
            settings=self.settings,
            on_marker=lambda partition, marker: self.on_marker(partition, marker),
        )
        made.load()
        return made


DISK_FULL = DiskFailed("no space", cause="enospc")
