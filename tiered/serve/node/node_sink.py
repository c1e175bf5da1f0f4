"""Appends to the logs of a running node, as a `RecordSink`.

Order of effects of an append: checks of the partition → checks of the batches → the note of an append without the
writer role → the write. A crash before the write leaves at most the note. A crash after it leaves the batches if they
reached the disk; they are acknowledged after `flush` only.

| state of the partition | an append |
|---|---|
| fenced, diverged, its bucket is lost, deleted, offline directory | raises its error (`Partition.check_appendable`) |
| the disk has no room | DiskFailed, and the log stays usable |
| not reconciled with the bucket | as for `LogManager.append`: allowed if the offsets cannot collide |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from local.errors import LogError, NotFound
from local.format.batch_header import read_header
from local.format.record import TimestampType
from local.log import AppendResult, Log
from local.log.producer_state import ProducerEntry
from local.names import TopicPartition, encode_uuid
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition
from tiered.serve.messages.base import Error
from tiered.serve.node.batch_validation import checked_batches
from tiered.serve.node.bucket_acks import BucketAcks
from tiered.serve.node.producer_ids import IGNORED_FROM, ProducerIds
from tiered.serve.record_sink import Appended, RefusedBatch

_NO_TIME = -1


class NodeSink:
    """Thread safe. `clock` gives ms. Close it before the manager."""

    def __init__(self, manager: LogManager, clock: Callable[[], int]) -> None:
        self._table = manager.partitions
        self._clock = clock
        self._bucket_acks = BucketAcks(manager, clock)
        # The highest id that is in no producer state: the coordinator's. Raises LogError if it cannot be read.
        self.highest_coordinated_id: Callable[[], int] = lambda: -1
        self._producer_ids = ProducerIds(manager.directories.places(), self._highest_producer_id)

    def append(
        self, partition: TopicPartition, batches: memoryview, *, topic_id: UUID | None = None, is_client: bool = True
    ) -> Appended:
        held = self._appendable(partition, topic_id)
        log, now_ms = held.log, self._clock()
        checked = checked_batches(batches, log.settings, partition=partition, now_ms=now_ms, is_client=is_client)
        header = read_header(checked[0])
        assert header is not None, "checked"
        self._check_producer_id(header.producer_id, partition)
        held.note_append()
        result = log.append_encoded(checked, now_ms=now_ms)
        return _appended(log, result, now_ms, header.max_timestamp_ms)

    def append_marker(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> Appended:
        held, now_ms = self._appendable(partition), self._clock()
        self._check_producer_id(producer_id, partition)
        held.note_append()
        result = held.log.append_marker(
            producer_id, producer_epoch, commit=is_commit, coordinator_epoch=coordinator_epoch, now_ms=now_ms
        )
        return _appended(held.log, result, now_ms, now_ms)

    def flush(self, partition: TopicPartition) -> int:
        log = self._table.find(partition).log
        end = log.next_offset
        log.flush()
        return end

    def is_acked_by_bucket(self, partition: TopicPartition) -> bool:
        return self._table.find(partition).log.settings.append_acks == "remote"

    def check_acks(self, partition: TopicPartition) -> None:
        if self.is_acked_by_bucket(partition):
            self._bucket_acks.check(self._table.find(partition))

    def when_in_bucket(
        self, partition: TopicPartition, next_offset: int, notify: Callable[[Exception | None], None]
    ) -> Callable[[], None]:
        return self._bucket_acks.when_held(partition, next_offset, notify)

    def close(self) -> None:
        self._bucket_acks.close()

    def producers(self, partition: TopicPartition) -> Sequence[ProducerEntry]:
        return self._table.find(partition).log.producers()

    def new_producer_id(self) -> int:
        return self._producer_ids.take()

    def _appendable(self, partition: TopicPartition, topic_id: UUID | None = None) -> Partition:
        held = self._table.find(partition)
        if topic_id is not None and held.topic.topic_id != encode_uuid(topic_id):
            raise NotFound("cannot append, the topic has another id", partition=partition, topic_id=topic_id)
        held.check_appendable()
        return held

    def _check_producer_id(self, producer_id: int, partition: TopicPartition) -> None:
        if not self._producer_ids.is_possible(producer_id):
            error = Error.INVALID_PRODUCER_ID_MAPPING  # clients do not repeat the batch
            attempt = "cannot append, no producer has this id"
            raise RefusedBatch(attempt, error=error, partition=partition, producer_id=producer_id)

    def _highest_producer_id(self) -> int:
        in_logs = (entry.producer_id for each in self._table.all() for entry in each.log.producers())
        known = (*in_logs, self.highest_coordinated_id())
        return max((each for each in known if each < IGNORED_FROM), default=-1)


def _appended(log: Log, result: AppendResult, now_ms: int, time_ms: int) -> Appended:
    is_by_log = log.settings.timestamp_type is TimestampType.LOG_APPEND_TIME
    append_ms = now_ms if is_by_log else _NO_TIME
    if result.is_duplicate:
        append_ms = _time_of(log, result.base_offset) if is_by_log else time_ms
    return Appended(
        base_offset=result.base_offset,
        next_offset=result.next_offset,
        log_start_offset=log.log_start_offset,
        log_append_time_ms=append_ms,
        is_duplicate=result.is_duplicate,
    )


def _time_of(log: Log, offset: int) -> int:
    """The largest time of the batch at `offset`; -1 if the disk does not have it any more."""
    with suppress(LogError):
        header = read_header(log.read(offset, 1))
        if header is not None and header.base_offset == offset:
            return header.max_timestamp_ms
    return _NO_TIME
