"""One partition's log on a disk: append, roll, read, drop, recover. Kafka's format and guarantees.

**Concurrency.** One lock serialises writers. Readers take an immutable `LogView` (the segment list and the offsets)
and never wait. If a segment is dropped or replaced during a read, the reader repeats it with the next view and never
sees a hole. Offsets: ``log_start_offset <= local_log_start_offset <= next_offset``; the last is Kafka's log end
offset.

**Durability.**

| records | are |
|---|---|
| appended with `Durability.MEMORY` (Kafka's default) | in the page cache, lost at a power cut |
| appended with `Durability.FLUSHED` | on the disk |
| in a closed segment, or below `recovery_point` | on the disk |

Threads wait for the disk without the lock and share their fsyncs (`local.log.group_commit`). A record is readable once
it is written. A reader may therefore see a record before its append returns, and a power cut may remove this record.

**Failures.** A failed write leaves the active segment in an unknown state:

1. If the disk is full, the segment is cut back to its earlier state. The log accepts records again once there is room.
2. After another failure the segment is recovered in place from its own bytes.
3. If this fails too, the log refuses everything until it is reopened.

This module is long because it holds everything that happens under the log's one lock. Code that needs no lock is in
`log_reading`, `log_view`, `loading` and `encoding`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from local import names
from local.errors import DiskFailed, LogError, NotFound
from local.format.record import Record
from local.log import checkpoints, read_only_open
from local.log.append_result import AppendResult, Durability
from local.log.leader_epochs import LeaderEpochs
from local.log.log_deletion import ShrinkableLog
from local.log.log_view import LogView
from local.log.producer_files import ProducerFiles
from local.log.producer_state import EXPIRATION_INTERVAL_MS, Producer, RememberedBatch
from local.log.rolling import Draw, Rolling
from local.names import TopicPartition
from local.records.batch import BatchHeader, assign_offset, encode_marker, read_header, read_marker
from local.segment.segment import Mark, Segment
from local.settings import LogSettings
from local.storage import Storage

__all__ = ["AppendResult", "Durability", "Log"]


class Log(ShrinkableLog):
    """One partition's log, see the module. Open it with `Log.open`. `local.log.log_reading` has the reads."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        partition: TopicPartition,
        settings: LogSettings,
        draw: Draw = random.randrange,
    ) -> None:
        super().__init__(storage, directory, partition, settings)
        self.leader_epoch = 0
        self.recovered_segments = 0
        self._expire_producers_at_ms = 0
        self._rolling = Rolling(draw)

    @classmethod
    def open(
        cls,
        storage: Storage,
        directory: str,
        partition: TopicPartition,
        settings: LogSettings,
        *,
        now_ms: int,
        was_clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        is_tiered: bool = False,
        read_only: bool = False,
        draw: Draw = random.randrange,
    ) -> Log:
        """Open a log: load its files, recover as needed, activate the last segment. All is durable on return.

        - `log_start_offset` is the checkpointed one. With `is_tiered` it is used unchanged, although the local files
          may begin later. Otherwise the first local segment's base is its lower bound.
        - `read_only`: nothing is written, a torn tail is left out, and the log refuses every change.
        - `draw` is the random source for the jitter of rolling.
        """
        log = cls(storage, directory, partition, settings, draw)
        if read_only:
            log._load_read_only(log_start_offset or 0, is_tiered=is_tiered)
            return log
        from local.log import loading

        storage.make_directory(directory)
        written = LeaderEpochs(tuple(checkpoints.read_epochs(storage, log._path(names.LEADER_EPOCHS))))
        trusted = None if was_clean else recovery_point
        loaded = loading.load(storage, directory, settings, written, log._snapshots, recovery_point=trusted)
        segments, next_offset, epochs = loaded.segments, loaded.next_offset, loaded.epochs
        log.recovered_segments = loaded.recovered_count
        start = log_start_offset or 0
        if segments and not is_tiered:
            start = max(start, segments[0].base_offset)
        if not segments or next_offset < start:
            log._producers = loading.producers_of_empty_log(log._snapshots, loaded, start)
            loading.discard(storage, directory, segments)
            next_offset = start
            segments = [Segment.create(storage, directory, next_offset, created_ms=now_ms)]
            log._snapshots.keep([next_offset], next_offset)
        else:
            segments[-1].activate(is_durable=was_clean)
            log._producers = loaded.producers
        log._publish(segments, log_start_offset=start, next_offset=next_offset)
        log.recovery_point = next_offset
        log._correct_epochs(written, epochs.truncate_from_end(next_offset), was_clean=was_clean)
        log.leader_epoch = log.epochs.latest or 0
        return log

    # -- append --------------------------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[Record],
        *,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
        producer: Producer | None = None,
    ) -> AppendResult:
        """Encode `records` into batches of about `batch_bytes` and append them in order.

        With a `producer` they are one batch, and a repeated call returns the same offsets as a duplicate. Raises:

        - InvalidRequest, with nothing appended: no records, a record that is too large, a missing key in a compacted
          topic, or a time that the topic does not allow;
        - DiskFailed for a disk error: some records may be in the log, none was acknowledged;
        - with a producer also the errors of `append_batch`.
        """
        batches = self.encode(records, now_ms=now_ms, producer=producer)
        return self.append_encoded(batches, now_ms=now_ms, durability=durability)

    def encode(self, records: Sequence[Record], *, now_ms: int, producer: Producer | None = None) -> list[bytearray]:
        """Check and encode records as batches for `append_encoded`; append nothing. Raises as `append`."""
        from local.log.encoding import encode_batches

        return encode_batches(records, self.settings, partition=self.partition, now_ms=now_ms, producer=producer)

    def append_columns(
        self, columns: object, *, now_ms: int, durability: Durability = Durability.MEMORY
    ) -> AppendResult:
        """Append columns: `Columns` of another log, or Arrow with key, value[, timestamp, headers].

        No record becomes a Python object (`local.records.record_columns`). Raises as `append`, and InvalidRequest for
        a table that holds no records.
        """
        return self.append_encoded(self.encode_columns(columns, now_ms=now_ms), now_ms=now_ms, durability=durability)

    def encode_columns(self, columns: object, *, now_ms: int) -> Iterable[memoryview]:
        """Check and encode columns for `append_encoded`, to iterate once; append nothing.

        Raises as `append_columns`.
        """
        from local.log.column_encoding import encode_column_batches
        from local.records.record_columns import record_columns

        chunks = record_columns(columns, now_ms=now_ms)
        return encode_column_batches(chunks, self.settings, partition=self.partition, now_ms=now_ms)

    def append_encoded(
        self, batches: Iterable[bytearray | memoryview], *, now_ms: int, durability: Durability = Durability.MEMORY
    ) -> AppendResult:
        """Append the batches of `encode`, which get their offsets in place: use them once. Raises DiskFailed."""
        with self._lock:
            result, position = self._append_all(batches, now_ms, durability)
        self._commit.wait_for(position)
        return result

    def append_batch(self, batch: bytes, *, now_ms: int, durability: Durability = Durability.MEMORY) -> AppendResult:
        """Append one ready-made v2 batch after a whole check.

        It gets its offsets and, under LogAppendTime, its times. A repeated batch of a producer returns its first
        offsets. Raises:

        - Corrupt for bytes that a recovery or a reader would refuse;
        - InvalidRequest for a batch that does not belong here (`local.log.append_validation`), such as a control
          batch, which `append_marker` writes;
        - OutOfOrderSequence and ProducerFenced as in `local.log.producer_state`.
        """
        from local.log.append_validation import validate_batch

        accepted = validate_batch(batch, self.settings, partition=self.partition, now_ms=now_ms)
        return self.append_encoded([accepted], now_ms=now_ms, durability=durability)

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

        No other method appends a control batch. With `first_offset` only the transaction that began there is ended.
        If it has ended already, NotFound is raised and the next transaction stays open. Without `first_offset` an open
        transaction is not required, because Kafka's coordinator may repeat the call.

        Order of effects: the marker, then, for an abort, the entry of the transaction index. A crash in between leaves
        the marker, and recovery builds the entry from it. Raises ProducerFenced for an old producer or coordinator
        epoch, DiskFailed.
        """
        marker = encode_marker(
            base_offset=0,
            is_commit=commit,
            timestamp_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )
        with self._lock:
            self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch, first_offset)
            result, position = self._append_all([bytearray(marker)], now_ms, durability)
        self._commit.wait_for(position)
        return result

    def flush(self) -> None:
        """Make everything appended before the call durable, and below the recovery point."""
        with self._lock:
            self._check_usable()
            written = self._written_bytes
        self._commit.wait_for(written)

    @property
    def is_read_only(self) -> bool:
        return self._look_again is not None

    def reload_files(self) -> None:
        """Load the directory of a read-only log again: another process writes, drops and cleans there."""
        if self._look_again is not None:
            self._look_again()

    def flush_if_due(self, now_ms: int) -> bool:
        """Flush if the oldest unsynced record has waited for `flush_ms`. Return whether it flushed.

        Kafka counts from the last flush: the same bound on the loss at a power cut, with more fsyncs.
        """
        since, limit = self._unflushed_since_ms, self.settings.flush_ms
        if limit is None or since is None or 0 <= now_ms - since < limit:  # a clock that was set back delays nothing
            return False
        self.flush()
        return True

    def expire_producers(self, now_ms: int) -> None:
        """Remove producers that were silent for too long. Checks every ten minutes; other calls cost nothing."""
        with self._lock:
            if now_ms >= self._expire_producers_at_ms:
                self._producers.expire(now_ms, self.settings.producer_id_expiration_ms)
                self._expire_producers_at_ms = now_ms + EXPIRATION_INTERVAL_MS

    def roll(self, *, now_ms: int) -> bool:
        """Close the active segment and create a new one. Return False if the active one is empty and stays.

        The producer snapshot at the new base is written last and not synced, because it can be computed again.
        """
        with self._lock:
            self._check_may_change()
            view = self._view
            if view.segments[-1].size_bytes == 0:
                return False
            self._seal(view.segments[-1])
            self._publish([*view.segments, self._next_segment(view, now_ms)])
            self._snapshots.write(view.next_offset, self._producers)
            return True

    def producer_snapshot(self, offset: int) -> bytes:
        """Return a ``.snapshot`` of the producers before `offset`, a segment's base or the log end.

        A missing one is computed again. No append waits for that. Raises NotFound above the log end, Corrupt as
        reading the log does.
        """

        def made(view: LogView) -> bytes:
            if offset > view.next_offset:
                raise NotFound(
                    "cannot write a producer snapshot, its offset is above the log end offset",
                    partition=self.partition,
                    offset=offset,
                )
            return ProducerFiles(self._storage, self.directory, is_onlooker=True).encoded(offset, view.bases)

        while True:
            cuts = self._cuts
            snapshot = self._retrying(made)
            with self._lock:  # a concurrent truncation, and appends after it, may be partly in the result
                if cuts == self._cuts:
                    return snapshot

    def begin_epoch(self, epoch: int) -> None:
        """Use `epoch` for batches from now on. Its start is written down with the first of them."""
        with self._lock:
            self.leader_epoch = max(epoch, self.leader_epoch)

    def cover_epochs(self) -> None:
        """Write epoch 0 for the records before the first known epoch, such as those of old formats."""
        with self._lock:
            self._save_epochs(self.epochs.covering(self.local_log_start_offset))

    def close(self) -> bool:
        """Make everything durable and close the files. Return False if the next start must recover the log.

        `has_unwritten` then says whether records may be missing, or only an index entry or producer snapshot.
        """
        with self._lock:
            is_whole = not self._failed
            if is_whole and self._view.segments[-1].is_active:
                is_whole = self._sealed_at_close(self._view.segments[-1])
            self._is_closed = True
            for segment in self._view.segments:
                segment.close()
            return is_whole

    @property
    def has_unwritten(self) -> bool:
        """Whether the log has records that are not known to be durable."""
        return self.recovery_point < self.next_offset

    def release(self) -> None:
        """Close the files without writing. The log must be reopened."""
        with self._lock:
            # Threads that wait for a sync get the error before the files are closed.
            self._fail(DiskFailed("the log was closed; reopen it", partition=self.partition))
            for segment in self._view.segments:
                segment.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _load_read_only(self, log_start_offset: int, *, is_tiered: bool) -> None:
        """Load the current files for a read-only open; every change is refused from here on."""
        if self._look_again is not None and self.size_bytes and not self._storage.exists(self.directory):
            raise NotFound("cannot refresh the log, it was moved or deleted", path=self.directory)
        self._failed = True
        self._look_again = partial(self._load_read_only, log_start_offset, is_tiered=is_tiered)
        with self._lock:
            loaded = read_only_open.load_read_only(self._storage, self.directory, log_start_offset)
            if not is_tiered:
                log_start_offset = max(log_start_offset, loaded.segments[0].base_offset)
            if loaded.next_offset < log_start_offset:  # the next start discards it
                loaded = read_only_open.nothing(self._storage, self.directory, log_start_offset)
            self.epochs = LeaderEpochs(tuple(checkpoints.read_epochs(self._storage, self._path(names.LEADER_EPOCHS))))
            bases = [segment.base_offset for segment in loaded.segments]
            onlooker = ProducerFiles(self._storage, self.directory, is_onlooker=True)
            # Set before the view, because readers of the view call these functions.
            self._find_producers = partial(onlooker.state_at, loaded.next_offset, bases, may_vanish=True)
            self._find_closed_producers = partial(onlooker.state_at, bases[-1], bases, may_vanish=True)
            self._publish(loaded.segments, log_start_offset=log_start_offset, next_offset=loaded.next_offset)
            self.recovery_point = loaded.next_offset

    def _append_all(
        self, batches: Iterable[bytearray | memoryview], now_ms: int, durability: Durability
    ) -> tuple[AppendResult, int]:
        """Append under the lock. Return the result, and the position to wait for before acknowledging it."""
        self._check_may_change()
        base_offset = next_offset = self.next_offset
        for batch in batches:
            header = read_header(batch)
            assert header is not None, "encoded or checked before"
            if header.producer_id >= 0 and (known := self._known_batch(header, now_ms)) is not None:
                given = AppendResult(known.base_offset, known.next_offset, is_duplicate=True)
                return given, self._position_for(given, durability)
            self._roll_if_due(len(batch), header, now_ms)
            self._assign_epoch(next_offset)
            assign_offset(batch, next_offset, self.leader_epoch)
            next_offset = self._write(batch, header, next_offset, now_ms)
        given = AppendResult(base_offset, next_offset)
        return given, self._position_for(given, durability)

    def _position_for(self, given: AppendResult, durability: Durability) -> int:
        """Return the position that must be durable before `given` is acknowledged; 0 for none.

        A retry may ask for more than its first try. Kafka's `flush.messages` counts the records past the recovery
        point; the append that reaches it waits.
        """
        limit = self.settings.flush_messages
        is_due = limit is not None and self.next_offset - self.recovery_point >= limit
        waits = durability is Durability.FLUSHED and given.next_offset > self.recovery_point
        return self._written_bytes if waits or is_due else 0

    def _write(self, batch: bytearray | memoryview, header: BatchHeader, base_offset: int, now_ms: int) -> int:
        last_offset = base_offset + header.last_offset_delta
        active = self._view.segments[-1]
        mark = active.mark()
        try:
            active.append(
                batch,
                last_offset=last_offset,
                max_timestamp_ms=header.max_timestamp_ms,
                interval_bytes=self.settings.index_interval_bytes,
            )
            if header.producer_id >= 0:
                self._account(active, batch, header, base_offset)
        except LogError as error:
            self._take_back(active, mark, error, has_producer=header.producer_id >= 0)
            raise
        except BaseException as error:  # interrupted: it is unknown which bytes are in the files
            self._fail(error)
            raise
        active.modified_ms = now_ms
        self._written_bytes += len(batch)
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        self._publish(None, next_offset=last_offset + 1)
        return last_offset + 1

    def _take_back(self, active: Segment, mark: Mark, error: LogError, *, has_producer: bool) -> None:
        """Undo a failed write.

        If the disk is full, the segment is cut back to its earlier state, which needs no room, and the log continues.
        After another failure the segment is recovered.
        """
        if isinstance(error, DiskFailed) and error.lacks_room:
            with suppress(LogError):
                active.cut_back(mark)
                self._cuts += 1  # a copy of the segment may include the removed bytes
                if has_producer:
                    self._producers = self._snapshots.state_at(self.next_offset, self._view.bases)
                return
        self._recover_active()

    def _known_batch(self, header: BatchHeader, now_ms: int) -> RememberedBatch | None:
        """Return the batch that `header` repeats, None for a new one. Raises for a batch that is refused."""
        self.expire_producers(now_ms)
        return None if header.is_control else self._producers.check(header)

    def _account(self, active: Segment, batch: bytearray | memoryview, header: BatchHeader, base_offset: int) -> None:
        marker = read_marker(batch) if header.is_control else None
        aborted = self._producers.update(header, base_offset, marker)
        if aborted is not None:
            active.append_aborted(aborted)

    def _roll_if_due(self, size: int, header: BatchHeader, now_ms: int) -> None:
        facts = {"base_offset": self.next_offset, "now_ms": now_ms}
        if self._rolling.is_due(self._view.segments[-1], self.settings, size, header, **facts):
            self.roll(now_ms=now_ms)

    def _assign_epoch(self, offset: int) -> None:
        if self.epochs.latest != self.leader_epoch:
            self._save_epochs(self.epochs.assign(self.leader_epoch, offset))

    def _seal(self, active: Segment) -> None:
        """Close the active segment. Without room for the last index entry it stays unchanged and active."""
        mark = active.mark()
        try:
            active.write_last_entry()
        except LogError as error:
            self._take_back(active, mark, error, has_producer=False)
            raise
        with self._failing():
            active.seal()
        self._all_durable()

    def _next_segment(self, view: LogView, now_ms: int) -> Segment:
        """Create an active segment. If this fails, the closed one is activated again and the log continues."""
        try:
            return Segment.create(self._storage, self.directory, view.next_offset, created_ms=now_ms)
        except LogError:
            with self._failing():
                view.segments[-1].activate()
            raise

    def _recover_active(self) -> None:
        """Recover the active segment from its own bytes after a failed write; all is durable afterwards.

        Every whole batch is found again. If the disk returns less, or a sync of the segment failed before, the log is
        unusable: a thread may be waiting for the lost records.
        """
        from local.log import recovery

        *sealed, broken = self._view.segments
        with self._failing():
            broken.retire()
            if broken.has_failed_sync:
                raise DiskFailed("cannot recover a segment, an earlier fsync of it failed", partition=self.partition)
            producers = self._snapshots.state_at(broken.base_offset, [segment.base_offset for segment in sealed])
            found = recovery.recover_segment(
                self._storage,
                self.directory,
                broken.base_offset,
                producers,
                interval_bytes=self.settings.index_interval_bytes,
                trusted_to=self.recovery_point,
            )
            if found.next_offset < self.next_offset:
                lost = {"next_offset": found.next_offset, "written": self.next_offset}
                raise DiskFailed(
                    "cannot recover a segment, written batches are missing", partition=self.partition, **lost
                )
            active = Segment.load(
                self._storage,
                self.directory,
                broken.base_offset,
                interval_bytes=self.settings.index_interval_bytes,
            )
            active.activate()
            self._producers = producers
            self._publish([*sealed, active], next_offset=found.next_offset)
        self._all_durable()

    def _sealed_at_close(self, active: Segment) -> bool:
        """Close the active segment.

        Without room for an index entry or a snapshot, records are still made durable.
        """
        try:
            self._seal(active)
            self._snapshot_at_close()
        except LogError:
            if active.is_active and not self._failed:
                with suppress(LogError), self._failing():
                    active.sync()
                    self._all_durable()
            return False
        return True

    def _snapshot_at_close(self) -> None:
        """Write the producer snapshot of a clean shutdown, durably unless there are no producers."""
        if self.next_offset > self._view.bases[0]:
            with self._failing():
                self._snapshots.write(self.next_offset, self._producers, is_durable=len(self._producers) > 0)
