"""A `RecordSink` in memory, whose appends and flushes a test can hold back or fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from local.errors import LogError
from local.format.batch_header import read_header
from local.log.producer_state import ProducerEntry
from local.names import TopicPartition
from tiered.serve.record_sink import Appended


class FakeSink:
    """Logs that count their records. `gates` hold flushes of a partition back until they are set."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self.durable: dict[TopicPartition, int] = {}
        self.gates: dict[TopicPartition, threading.Event] = {}
        self.append_gates: dict[TopicPartition, threading.Event] = {}
        self.errors: dict[TopicPartition, Exception] = {}
        self.flush_errors: dict[TopicPartition, LogError] = {}
        self.appends: list[tuple[TopicPartition, int]] = []
        self.markers: list[tuple[TopicPartition, int, bool]] = []
        self.flushes: list[TopicPartition] = []
        self.has_flush = threading.Event()
        self.bucket: dict[TopicPartition, list[tuple[int, Callable[[Exception | None], None]]]] = {}
        self.acks_errors: dict[TopicPartition, Exception] = {}
        self.has_bucket_wait = threading.Event()
        self.cancelled: list[TopicPartition] = []
        self.next_producer_id = 0
        self.changed = threading.Condition()  # notified after each append

    def append(
        self, partition: TopicPartition, batches: memoryview, *, topic_id: UUID | None = None, is_client: bool = True
    ) -> Appended:
        if partition in self.append_gates:
            assert self.append_gates[partition].wait(60), "the test must open the gate"
        if partition in self.errors:
            raise self.errors[partition]
        header = read_header(batches)
        assert header is not None
        with self.changed:
            base_offset = self.ends.get(partition, 0)
            next_offset = self.ends[partition] = base_offset + header.record_count
            self.appends.append((partition, base_offset))
            self.changed.notify_all()
        return Appended(base_offset=base_offset, next_offset=next_offset, log_start_offset=0)

    def append_marker(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> Appended:
        with self.changed:
            self.markers.append((partition, producer_id, is_commit))
            base_offset = self.ends.get(partition, 0)
            self.ends[partition] = base_offset + 1
        return Appended(base_offset=base_offset, next_offset=base_offset + 1, log_start_offset=0)

    def flush(self, partition: TopicPartition) -> int:
        with self.changed:
            end = self.ends.get(partition, 0)
            self.flushes.append(partition)
        self.has_flush.set()
        if partition in self.gates:
            assert self.gates[partition].wait(60), "the test must open the gate"
        if partition in self.flush_errors:
            raise self.flush_errors[partition]
        self.durable[partition] = end
        return end

    def producers(self, partition: TopicPartition) -> Sequence[ProducerEntry]:
        return ()

    def is_acked_by_bucket(self, partition: TopicPartition) -> bool:
        return partition in self.bucket

    def check_acks(self, partition: TopicPartition) -> None:
        if partition in self.acks_errors:
            raise self.acks_errors[partition]

    def when_in_bucket(
        self, partition: TopicPartition, next_offset: int, notify: Callable[[Exception | None], None]
    ) -> Callable[[], None]:
        self.bucket[partition].append((next_offset, notify))
        self.has_bucket_wait.set()
        return lambda: self.cancelled.append(partition)

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1
