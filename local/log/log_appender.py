"""Append to a log, roll its active segment, make it durable.

**Failures.** A failed write leaves the active segment in an unknown state:

1. If the disk is full, the segment is cut back to its earlier state. The log accepts records again once there is room.
2. After another failure the segment is recovered in place from its own bytes.
3. If this fails too, the log refuses everything until it is reopened.

**Rolling.** Kafka's conditions, checked before each append of a batch:

| condition | detail |
|---|---|
| size | the segment's bytes > `segment_bytes` - the batch's bytes |
| time | waited > `segment_ms` - jitter; see below |
| offset index | floor(`segment_index_bytes` / 8) entries are there |
| time index | floor(`segment_index_bytes` / 12) - 1 entries are there; the last slot is for the final entry |
| range | last offset of the batch - base offset > 2^31 - 1 |

- **Waited** is the batch's largest timestamp minus that of the first batch of the segment that has one. Without such a
  batch it is the clock minus the segment's creation.
- An empty segment is never closed. Only an append checks the conditions: a log without traffic does not roll by itself.
- **Jitter** is drawn once for each segment, evenly from [0, min(`segment_jitter_ms`, `segment_ms`)).
- A compacted log's segment also rolls at `max_compaction_lag_ms`. If this is less than `segment_ms`, it bounds the
  jitter too, unlike in Kafka.

Source: kafka `LogSegment.shouldRoll`, `LogConfig.maxSegmentMs`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from local.errors import DiskFailed, LogError
from local.format.batch_header import BatchHeader, read_header
from local.format.record import Record
from local.log.log_reader import LogView
from local.log.log_state import LogState
from local.log.producer_state import EXPIRATION_INTERVAL_MS, Producer, RememberedBatch
from local.records.batch import assign_offset, encode_marker, read_marker
from local.segment.segment import RELATIVE_OFFSET_MAX, Mark, Segment
from local.settings import LogSettings

Batch = bytearray | memoryview


class Durability(Enum):
    """How durable an append is when it returns."""

    MEMORY = "memory"
    FLUSHED = "flushed"


class AppendResult(NamedTuple):
    """The appended offsets ``[base_offset, next_offset)``; with `is_duplicate` those of the first append."""

    base_offset: int
    next_offset: int
    is_duplicate: bool = False


class Rolling:
    """The conditions for a roll, and the jitter drawn for the segment checked last. The log's lock guards it."""

    def __init__(self, draw: Callable[[int], int] = random.randrange) -> None:
        """`draw(n)` returns an evenly distributed number from [0, n)."""
        self._draw = draw
        self._jittered: tuple[int, int, int] | None = None

    def is_due(
        self, active: Segment, settings: LogSettings, size: int, header: BatchHeader, *, base_offset: int, now_ms: int
    ) -> bool:
        """Return whether `active` must be closed before a batch of `size` bytes is added at `base_offset`."""
        if active.size_bytes == 0:
            return False
        began = active.roll_base_ms
        waited = now_ms - active.created_ms if began is None else header.max_timestamp_ms - began
        return (
            active.size_bytes > settings.segment_bytes - size
            or waited > settings.roll_ms - self._jitter_ms(active, settings)
            or active.is_index_full(settings.segment_index_bytes)
            or base_offset + header.last_offset_delta - active.base_offset > RELATIVE_OFFSET_MAX
        )

    def _jitter_ms(self, active: Segment, settings: LogSettings) -> int:
        below = min(settings.segment_jitter_ms, settings.roll_ms)
        if self._jittered is None or self._jittered[:2] != (active.base_offset, below):
            self._jittered = active.base_offset, below, self._draw(below) if below > 0 else 0
        return self._jittered[2]


class LogAppender:
    """The writing end of one log."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._rolling = Rolling()
        self._expire_producers_at_ms = 0

    def append(
        self,
        records: Sequence[Record],
        *,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
        producer: Producer | None = None,
    ) -> AppendResult:
        """Encode `records` into batches of about `batch_bytes` and append them in order.

        With a `producer` they are one batch, and a repeated call returns the same offsets as a duplicate. Raises as
        `local.log.encoding` and `local.log.producer_state`, with nothing appended, and DiskFailed: some records may
        then be in the log, none was acknowledged.
        """
        batches = self.encode(records, now_ms=now_ms, producer=producer)
        return self.append_encoded(batches, now_ms=now_ms, durability=durability)

    def encode(self, records: Sequence[Record], *, now_ms: int, producer: Producer | None = None) -> list[bytearray]:
        """Check and encode records as batches for `append_encoded`; append nothing. Raises as `append`."""
        from local.log.encoding import encode_batches

        state = self._state
        return encode_batches(records, state.settings, partition=state.partition, now_ms=now_ms, producer=producer)

    def append_columns(
        self, columns: object, *, now_ms: int, durability: Durability = Durability.MEMORY
    ) -> AppendResult:
        """Append `Columns` of another log, or Arrow with key, value[, timestamp, headers]. Raises as `append`."""
        return self.append_encoded(self.encode_columns(columns, now_ms=now_ms), now_ms=now_ms, durability=durability)

    def encode_columns(self, columns: object, *, now_ms: int) -> Iterable[memoryview]:
        """Check and encode columns for `append_encoded`, to iterate once. Raises as `append_columns`."""
        from local.log.encoding import encode_column_batches
        from local.records.record_columns import record_columns

        chunks = record_columns(columns, now_ms=now_ms)
        return encode_column_batches(chunks, self._state.settings, partition=self._state.partition, now_ms=now_ms)

    def append_encoded(
        self, batches: Iterable[Batch], *, now_ms: int, durability: Durability = Durability.MEMORY
    ) -> AppendResult:
        """Append the batches of `encode`, which get their offsets in place: use them once. Raises DiskFailed."""
        with self._state.lock:
            result, position = self._append_all(batches, now_ms, durability)
        self._state.commit.wait_for(position)
        return result

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        first_offset: int | None = None,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
    ) -> AppendResult:
        """End the producer's transaction with a marker, for the transaction coordinator.

        With `first_offset` only the transaction that began there is ended, else NotFound is raised. Without it an open
        transaction is not required, because Kafka's coordinator may repeat the call.

        Order of effects: the marker, then, for an abort, the entry of the transaction index. After a crash in between,
        recovery builds the entry. Raises ProducerFenced for an old producer or coordinator epoch, DiskFailed.
        """
        state = self._state
        marker = encode_marker(
            base_offset=0,
            is_commit=commit,
            timestamp_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )
        with state.lock:
            state.producer_state.check_marker(producer_id, producer_epoch, coordinator_epoch, first_offset)
            result, position = self._append_all([bytearray(marker)], now_ms, durability)
        state.commit.wait_for(position)
        return result

    def flush(self) -> None:
        """Make everything appended before the call durable, and below the recovery point."""
        with self._state.lock:
            self._state.check_usable()
            written = self._state.written_bytes
        self._state.commit.wait_for(written)

    def flush_if_due(self, now_ms: int) -> bool:
        """Flush if the oldest unsynced record is `flush_ms` old (Kafka: the last flush); return whether it was due."""
        since, limit = self._state.unflushed_since_ms, self._state.settings.flush_ms
        if limit is None or since is None or 0 <= now_ms - since < limit:  # a clock that was set back delays nothing
            return False
        self.flush()
        return True

    def expire_producers(self, now_ms: int) -> None:
        """Remove producers that were silent for too long. Checks every ten minutes; other calls cost nothing."""
        state = self._state
        with state.lock:
            if now_ms >= self._expire_producers_at_ms:
                state.producer_state.expire(now_ms, state.settings.producer_id_expiration_ms)
                self._expire_producers_at_ms = now_ms + EXPIRATION_INTERVAL_MS

    def begin_epoch(self, epoch: int) -> None:
        """Use `epoch` for batches from now on. Its start offset is saved with the first of these batches."""
        with self._state.lock:
            self._state.leader_epoch = max(epoch, self._state.leader_epoch)

    def roll(self, *, now_ms: int) -> bool:
        """Close the active segment and create a new one. Return False if the active one is empty and stays.

        The producer snapshot at the new base is written last and not synced.
        """
        state = self._state
        with state.lock:
            state.check_may_change()
            view = state.view
            if view.segments[-1].size_bytes == 0:
                return False
            self.seal(view.segments[-1])
            state.publish([*view.segments, self._next_segment(view, now_ms)])
            state.snapshots.write(view.next_offset, state.producer_state)
            return True

    def seal(self, active: Segment) -> None:
        """Close the active segment. Without room for the last index entry it stays unchanged and active."""
        mark = active.mark()
        try:
            active.write_time_entry()
        except LogError as error:
            self._take_back(active, mark, error, has_producer=False)
            raise
        with self._state.failing():
            active.seal()
        self._state.all_durable()

    def seal_at_close(self) -> bool:
        """Close the active segment for good and write the producer snapshot; return whether all was written."""
        state = self._state
        active = state.view.segments[-1]
        try:
            self.seal(active)
            if state.view.next_offset > state.view.bases[0]:
                with state.failing():
                    is_durable = len(state.producer_state) > 0
                    state.snapshots.write(state.view.next_offset, state.producer_state, is_durable=is_durable)
        except LogError:
            if active.is_active and not state.has_failed:
                with suppress(LogError), state.failing():
                    active.sync()
                    state.all_durable()
            return False
        return True

    def _append_all(self, batches: Iterable[Batch], now_ms: int, durability: Durability) -> tuple[AppendResult, int]:
        """Append under the lock. Return the result, and the position to wait for before acknowledging it."""
        state = self._state
        state.check_may_change()
        base_offset = next_offset = state.view.next_offset
        for batch in batches:
            header = read_header(batch)
            assert header is not None, "encoded or checked before"
            if header.producer_id >= 0 and (known := self._known_batch(header, now_ms)) is not None:
                appended = AppendResult(known.base_offset, known.next_offset, is_duplicate=True)
                return appended, self._position_for(appended, durability)
            facts = {"base_offset": next_offset, "now_ms": now_ms}
            if self._rolling.is_due(state.view.segments[-1], state.settings, len(batch), header, **facts):
                self.roll(now_ms=now_ms)
            if state.epochs.latest != state.leader_epoch:
                state.save_epochs(state.epochs.assign(state.leader_epoch, next_offset))
            assign_offset(batch, next_offset, state.leader_epoch)
            next_offset = self._write(batch, header, next_offset, now_ms)
        appended = AppendResult(base_offset, next_offset)
        return appended, self._position_for(appended, durability)

    def _position_for(self, appended: AppendResult, durability: Durability) -> int:
        """Return the position that must be durable before `appended` is acknowledged; 0 for none.

        A retry may ask for more than its first try. Kafka's `flush.messages` counts past the recovery point.
        """
        state = self._state
        limit = state.settings.flush_messages
        is_due = limit is not None and state.view.next_offset - state.recovery_point >= limit
        waits = durability is Durability.FLUSHED and appended.next_offset > state.recovery_point
        return state.written_bytes if waits or is_due else 0

    def _known_batch(self, header: BatchHeader, now_ms: int) -> RememberedBatch | None:
        self.expire_producers(now_ms)
        return None if header.is_control else self._state.producer_state.check(header)

    def _write(self, batch: Batch, header: BatchHeader, base_offset: int, now_ms: int) -> int:
        state = self._state
        last_offset = base_offset + header.last_offset_delta
        active = state.view.segments[-1]
        mark = active.mark()
        try:
            active.append(
                batch,
                last_offset=last_offset,
                max_timestamp_ms=header.max_timestamp_ms,
                interval_bytes=state.settings.index_interval_bytes,
            )
            if header.producer_id >= 0:
                marker = read_marker(batch) if header.is_control else None
                aborted = state.producer_state.update(header, base_offset, marker)
                if aborted is not None:
                    active.append_aborted(aborted)
        except LogError as error:
            self._take_back(active, mark, error, has_producer=header.producer_id >= 0)
            raise
        except BaseException as error:  # interrupted: it is unknown which bytes are in the files
            state.fail(error)
            raise
        active.modified_ms = now_ms
        state.written_bytes += len(batch)
        if state.unflushed_since_ms is None:
            state.unflushed_since_ms = now_ms
        state.publish(None, next_offset=last_offset + 1)
        return last_offset + 1

    def _take_back(self, active: Segment, mark: Mark, error: LogError, *, has_producer: bool) -> None:
        state = self._state
        if isinstance(error, DiskFailed) and error.lacks_room:
            with suppress(LogError):
                active.cut_back(mark)
                state.cuts += 1  # a copy of the segment may include the removed bytes
                if has_producer:
                    state.producer_state = state.snapshots.state_at(state.view.next_offset, state.view.bases)
                return
        self._recover_active()

    def _recover_active(self) -> None:
        """Recover the active segment from its own bytes after a failed write; all is durable afterwards.

        Missing batches or an earlier failed sync make the log unusable: a thread may wait for the lost records.
        """
        from local.log import recovery

        state = self._state
        *sealed, broken = state.view.segments
        interval_bytes = state.settings.index_interval_bytes
        with state.failing():
            broken.retire()
            if broken.has_failed_sync:
                raise DiskFailed("cannot recover a segment, an earlier fsync of it failed", partition=state.partition)
            producers = state.snapshots.state_at(broken.base_offset, [segment.base_offset for segment in sealed])
            found = recovery.recover_segment(
                broken.files, producers, interval_bytes=interval_bytes, trusted_to=state.recovery_point
            )
            if found.next_offset < state.view.next_offset:
                facts = {"next_offset": found.next_offset, "written": state.view.next_offset}
                attempt = "cannot recover a segment, written batches are missing"
                raise DiskFailed(attempt, partition=state.partition, **facts)
            active = Segment.load(broken.files, interval_bytes=interval_bytes)
            active.activate()
            state.producer_state = producers
            state.publish([*sealed, active], next_offset=found.next_offset)
        state.all_durable()

    def _next_segment(self, view: LogView, now_ms: int) -> Segment:
        state = self._state
        try:
            return Segment.create(state.files(view.next_offset), created_ms=now_ms)
        except LogError:
            with state.failing():
                view.segments[-1].activate()
            raise
