"""Appends to the logs of a running node, as a `RecordSink`.

Order of effects of an append: checks of the partition → checks of the batches → the note of an append without the
writer role → the write. A crash before the write leaves at most the note. A crash after it leaves the batches if they
reached the disk; they are acknowledged after `flush` only.

| state of the partition | an append |
|---|---|
| fenced, diverged, its bucket is lost, deleted, offline directory | raises its error (`Partition.check_appendable`) |
| the disk has no room | DiskFailed, and the log stays usable |
| not reconciled with the bucket | as for `LogManager.append`: allowed if the offsets cannot collide |

`append_now` runs in the event loop, so it leaves every append to `append` that may take long:

| append | because of |
|---|---|
| above PROMPT_BYTES_MAX, or compressed, or of a topic that compresses | the check of its records, and the codec |
| its producer id is above those of the logs | the read of all producers, and a lock that precedes those of logs |
| idempotent, in a topic with LogAppendTime | the read of the batch that it may repeat |
| another thread holds the lock of the log, for example for a roll | the wait for it |
| it may roll, or begin a leader epoch | the sync of a segment, or of a file |
| ``flush.messages`` or ``append.acks=remote``, or no writer role yet | the sync of the log, or of a note |
| its sequence does not follow | the search for a repeated batch in the log |
| within SLOW_PAUSE_S after an append that took longer than SLOW_S | a disk that makes its writers wait |
| within FAILED_PAUSE_S after an append that failed | the repair of the segment |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from local.errors import DiskFailed, LogError, NotFound, OutOfOrderSequence
from local.format.batch_header import CODEC_BITS, BatchHeader, read_header
from local.format.compression import Codec
from local.format.record import TimestampType
from local.log import AppendResult, Log
from local.log.log_appender import Rolling
from local.log.producer_state import ProducerEntry
from local.names import TopicPartition, encode_uuid
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition
from tiered.serve.messages.base import Error
from tiered.serve.node.batch_validation import checked_batches
from tiered.serve.node.bucket_acks import BucketAcks
from tiered.serve.node.producer_ids import FOREIGN_END, IGNORED_FROM, ProducerIds
from tiered.serve.node.repeated_batches import find_repeated
from tiered.serve.record_sink import Appended, RefusedBatch

PROMPT_BYTES_MAX = 512 << 10
SLOW_S, SLOW_PAUSE_S = 0.05, 0.5
FAILED_PAUSE_S = 10.0
_NO_TIME = -1


class NodeSink:
    """Thread safe. `clock` gives ms, `monotonic` seconds that never fall. Close it before the manager."""

    def __init__(
        self, manager: LogManager, clock: Callable[[], int], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = manager.partitions
        self._clock, self._monotonic = clock, monotonic
        self._earliest_roll = Rolling(lambda below: below - 1)  # with the largest jitter
        self._slow_until_s = float("-inf")
        self._bucket_acks = BucketAcks(manager, clock)
        # The highest id that is in no producer state: the coordinator's. Raises LogError if it cannot be read.
        self.highest_coordinated_id: Callable[[], int] = lambda: -1
        self._producer_ids = ProducerIds(manager.directories.places(), self._highest_producer_id)

    def append(
        self, partition: TopicPartition, batches: memoryview, *, topic_id: UUID | None = None, is_client: bool = True
    ) -> Appended:
        held = self._appendable(partition, topic_id)
        try:
            return self._append(held, batches, is_client=is_client)
        except OutOfOrderSequence:
            header = read_header(batches)
            found = find_repeated(held.log, header) if header is not None else None
            if found is None or header is None:
                raise
            return _appended(held.log, found, self._clock(), header.max_timestamp_ms)

    def append_now(
        self, partition: TopicPartition, batches: memoryview, *, topic_id: UUID | None = None, waits: bool = False
    ) -> Appended | None:
        header, began_s = read_header(batches), self._monotonic()
        if header is None or len(batches) > PROMPT_BYTES_MAX or header.attributes & CODEC_BITS:
            return None
        if header.producer_id >= FOREIGN_END:
            return None
        if began_s < self._slow_until_s:
            return None
        held = self._appendable(partition, topic_id)
        log = held.log
        if not log.lock.acquire(blocking=False):
            return None
        try:
            if self._may_take_long(held, header, len(batches), waits=waits):
                return None
            return self._append(held, batches)
        except OutOfOrderSequence:
            return None
        except DiskFailed:  # the log may have to repair itself after the next failure
            self._slow_until_s = began_s + FAILED_PAUSE_S
            raise
        finally:
            log.lock.release()
            ended_s = self._monotonic()
            if ended_s - began_s > SLOW_S:
                self._slow_until_s = max(self._slow_until_s, ended_s + SLOW_PAUSE_S)

    def _may_take_long(self, held: Partition, header: BatchHeader, size_bytes: int, *, waits: bool) -> bool:
        """Whether an append may wait for a disk. The caller holds the lock of the log."""
        log = held.log
        settings, active = log.settings, log.view.segments[-1]
        if (held.is_tiered and not held.is_writer) or log.epochs.latest != log.leader_epoch:
            return True
        if settings.flush_messages is not None or (waits and settings.append_acks == "remote"):
            return True
        is_stamped = settings.timestamp_type is TimestampType.LOG_APPEND_TIME
        if (settings.recompresses and settings.compression is not Codec.NONE) or (
            is_stamped and header.producer_id >= 0
        ):
            return True
        facts = {"base_offset": log.view.next_offset, "now_ms": self._clock()}
        header = header._replace(max_timestamp_ms=facts["now_ms"]) if is_stamped else header
        return self._earliest_roll.is_due(active, settings, size_bytes, header, **facts)

    def _append(self, held: Partition, batches: memoryview, *, is_client: bool = True) -> Appended:
        log, now_ms, partition = held.log, self._clock(), held.name
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
        """-1 only without records: a log forgets a producer that sends nothing for long, and its client may go on."""
        logs = [each.log for each in self._table.all()]
        in_logs = (entry.producer_id for log in logs for entry in log.producers())
        has_records = any(log.next_offset for log in logs)
        known = (*in_logs, self.highest_coordinated_id(), 0 if has_records else -1)
        return max(each for each in known if each < IGNORED_FROM)


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
