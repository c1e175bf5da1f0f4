"""One partition's log on a disk: append, roll, read, drop, recover. Kafka's format, Kafka's promises.

Concurrency: one lock serialises writers; readers take a frozen `LogView` (the segment list and the offsets) and never
wait. A reader whose segment is dropped or replaced under it gets the next view and starts over, so it never sees a
hole. Offsets: ``log_start_offset <= local_log_start_offset <= next_offset``; the last is Kafka's log end offset.

Durability: an append with `Durability.MEMORY` is where Kafka's own default leaves it (in the page cache, lost with
the power); with `Durability.FLUSHED` it is on the platter. A sealed segment always is. Those who wait for the platter
wait without the lock and share their fsyncs (`local.log.group_commit`). A record is readable as soon as it is written,
so a reader may see one whose append has not returned yet and, after a power cut, never will; `recovery_point` is what
has reached the platter for certain.

This module is longer than its neighbours because it is everything that happens under the log's one lock; what needs no
lock lies beside it (`log_reading`, `log_view`, `loading`, `encoding`).

A write that fails leaves the active segment in an unknown state. For want of room it is cut back to what it was, and
the log takes records again as soon as there is room; after another failure it is recovered in place from its own bytes;
if that fails too, the log refuses everything until it is reopened.
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
    """See the module text; reads and lookups are in `local.log.log_reading`. Build one with `Log.open`."""

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
        """Load what is there, recover what needs it, and end with an active segment; all durable on return.

        `log_start_offset` is the checkpointed one. With `is_tiered` it is taken as it is, although the local files
        may begin later; without, the first local segment's base is its lower bound. With `read_only` nothing is
        written: a torn tail is left alone and not shown, and the log refuses every change. `draw` is chance for the
        jitter of rolling.
        """
        log = cls(storage, directory, partition, settings, draw)
        if read_only:
            log._look(log_start_offset or 0, is_tiered=is_tiered)
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
            log._producers = loading.settle_producers(log._snapshots, loaded, start)
            loading.discard(storage, directory, segments)
            next_offset = start
            segments = [Segment.create(storage, directory, next_offset, created_ms=now_ms)]
            log._snapshots.keep([next_offset], next_offset)
        else:
            segments[-1].activate(is_durable=was_clean)
            log._producers = loaded.producers
        log._publish(segments, log_start_offset=start, next_offset=next_offset)
        log.recovery_point = next_offset
        log._settle_epochs(written, epochs.truncate_from_end(next_offset), was_clean=was_clean)
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
        """Encode `records` into as many batches as `batch_bytes` asks for and add them in order.

        With a `producer` they are one batch, and the same call may be repeated: it is answered as a duplicate.

        Raises InvalidRequest (nothing was added) for an empty call and for records that are too large, lack the key
        that a compacted topic asks for, or have times that the topic does not allow; DiskFailed when the disk refuses
        (some of the records may have been added, none was acknowledged); with a producer also as `append_batch`.
        """
        batches = self.encode(records, now_ms=now_ms, producer=producer)
        return self.append_encoded(batches, now_ms=now_ms, durability=durability)

    def encode(self, records: Sequence[Record], *, now_ms: int, producer: Producer | None = None) -> list[bytearray]:
        """The records as batches for `append_encoded`, with everything checked; adds nothing. Raises as `append`."""
        from local.log.encoding import encode_batches

        return encode_batches(records, self.settings, partition=self.partition, now_ms=now_ms, producer=producer)

    def append_columns(
        self, columns: object, *, now_ms: int, durability: Durability = Durability.MEMORY
    ) -> AppendResult:
        """Add records that are columns already: `Columns` of another log, or Arrow: key, value[, timestamp, headers].

        No record becomes a Python object (`local.records.record_columns`). Raises as `append`, and InvalidRequest for a
        table that holds no records.
        """
        return self.append_encoded(self.encode_columns(columns, now_ms=now_ms), now_ms=now_ms, durability=durability)

    def encode_columns(self, columns: object, *, now_ms: int) -> Iterable[memoryview]:
        """The same as batches for `append_encoded`, once, all checked; adds nothing. Raises as `append_columns`."""
        from local.log.column_encoding import encode_column_batches
        from local.records.record_columns import record_columns

        chunks = record_columns(columns, now_ms=now_ms)
        return encode_column_batches(chunks, self.settings, partition=self.partition, now_ms=now_ms)

    def append_encoded(
        self, batches: Iterable[bytearray | memoryview], *, now_ms: int, durability: Durability = Durability.MEMORY
    ) -> AppendResult:
        """Add what `encode` made, once: the batches are given their offsets in place. Raises DiskFailed."""
        with self._lock:
            result, position = self._append_all(batches, now_ms, durability)
        self._commit.wait_for(position)
        return result

    def append_batch(self, batch: bytes, *, now_ms: int, durability: Durability = Durability.MEMORY) -> AppendResult:
        """Add one ready-made v2 batch: checked whole, given its offsets and, where they are the log's, its times.

        A batch of a producer that was added before is answered with the offsets it has. Raises Corrupt for what a
        recovery or a reader would refuse, InvalidRequest for what does not belong here (`local.log.append_validation`;
        control batches are `append_marker`'s), OutOfOrderSequence and ProducerFenced as `local.log.producer_state`
        tells.
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
        """End the producer's transaction here: the only way in for a control batch, and the coordinator's to call. With
        `first_offset` only the one that began there: who has looked at it does not end the next (NotFound).

        Legal without an open transaction (Kafka's coordinator may repeat itself). Order of effects: the marker, then,
        for an abort, the entry of the transaction index; a crash in between leaves the marker, and recovery makes the
        entry from it. Raises ProducerFenced for an old epoch of either, DiskFailed.
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
        """Everything appended before the call is durable when this returns, and below the recovery point."""
        with self._lock:
            self._check_usable()
            written = self._written_bytes
        self._commit.wait_for(written)

    @property
    def is_read_only(self) -> bool:
        return self._look_again is not None

    def look_again(self) -> None:
        """A read-only log: see the directory as it is now (another process writes, drops and cleans there)."""
        if self._look_again is not None:
            self._look_again()

    def flush_if_due(self, now_ms: int) -> bool:
        """Flush when the oldest record that no sync has taken up has waited for `flush_ms`; True when it did.

        Kafka counts from the last flush instead: the same bound on what a power cut takes, with more fsyncs.
        """
        since, limit = self._unflushed_since_ms, self.settings.flush_ms
        if limit is None or since is None or 0 <= now_ms - since < limit:  # a clock that was set back delays nothing
            return False
        self.flush()
        return True

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that were silent for too long; looks every ten minutes and is free to call in between."""
        with self._lock:
            if now_ms >= self._expire_producers_at_ms:
                self._producers.expire(now_ms, self.settings.producer_id_expiration_ms)
                self._expire_producers_at_ms = now_ms + EXPIRATION_INTERVAL_MS

    def roll(self, *, now_ms: int) -> bool:
        """Seal the active segment and begin a new one; False when it is empty (an empty one is never sealed).

        The snapshot of the producers at the new base comes last and is not synced: it can be made again.
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
        """A ``.snapshot`` of the producers before `offset`, a segment's base or the log end; made again if it is gone.

        Nobody waits for it. Raises NotFound above the log end, Corrupt as reading the log does.
        """

        def made(view: LogView) -> bytes:
            if offset > view.next_offset:
                raise NotFound("making a producer snapshot, above the log end", partition=self.partition, offset=offset)
            return ProducerFiles(self._storage, self.directory, is_onlooker=True).encoded(offset, view.bases)

        while True:
            cuts = self._cuts
            snapshot = self._retrying(made)
            with self._lock:  # a truncation under way, and what was appended after it, may be half in it
                if cuts == self._cuts:
                    return snapshot

    def begin_epoch(self, epoch: int) -> None:
        """Batches appended from now on carry `epoch`; its start is written down with the first of them."""
        with self._lock:
            self.leader_epoch = max(epoch, self.leader_epoch)

    def cover_epochs(self) -> None:
        """Write down that records before the first known leader epoch are of epoch 0; such are those of old formats."""
        with self._lock:
            self._save_epochs(self.epochs.covering(self.local_log_start_offset))

    def close(self) -> bool:
        """Make everything durable and close the files; False when the next start has to recover the log.

        `has_unwritten` says then whether records may be missing, or only what a clean shutdown vouches for.
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
        """Whether records were appended that are not known to be durable."""
        return self.recovery_point < self.next_offset

    def release(self) -> None:
        """Let go of the files without writing anything; the log has to be reopened."""
        with self._lock:
            # Whoever still waits for a sync is told before the files go.
            self._fail(DiskFailed("using a log that was let go of, reopen it", partition=self.partition))
            for segment in self._view.segments:
                segment.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _look(self, log_start_offset: int, *, is_tiered: bool) -> None:
        """What is on the disk at this moment; every change is refused from here on."""
        if self._look_again is not None and self.size_bytes and not self._storage.exists(self.directory):
            raise NotFound("looking at a log again, it was moved or deleted", path=self.directory)
        self._failed = True
        self._look_again = partial(self._look, log_start_offset, is_tiered=is_tiered)
        with self._lock:
            loaded = read_only_open.look(self._storage, self.directory, log_start_offset)
            if not is_tiered:
                log_start_offset = max(log_start_offset, loaded.segments[0].base_offset)
            if loaded.next_offset < log_start_offset:  # the next start discards it
                loaded = read_only_open.nothing(self._storage, self.directory, log_start_offset)
            self.epochs = LeaderEpochs(tuple(checkpoints.read_epochs(self._storage, self._path(names.LEADER_EPOCHS))))
            bases = [segment.base_offset for segment in loaded.segments]
            onlooker = ProducerFiles(self._storage, self.directory, is_onlooker=True)
            # Before the view that they are asked about.
            self._find_producers = partial(onlooker.state_at, loaded.next_offset, bases, may_vanish=True)
            self._find_closed_producers = partial(onlooker.state_at, bases[-1], bases, may_vanish=True)
            self._publish(loaded.segments, log_start_offset=log_start_offset, next_offset=loaded.next_offset)
            self.recovery_point = loaded.next_offset

    def _append_all(
        self, batches: Iterable[bytearray | memoryview], now_ms: int, durability: Durability
    ) -> tuple[AppendResult, int]:
        """The answer, and the position to wait for, without the lock, before it may be told."""
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
        """What has to be durable before `given` is told; 0 for nothing. A retry may ask for more than its first try.

        Kafka's `flush.messages` counts the records past the recovery point; the append that reaches it waits.
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
        except BaseException as error:  # interrupted: nobody knows what of it is in the files
            self._fail(error)
            raise
        active.modified_ms = now_ms
        self._written_bytes += len(batch)
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        self._publish(None, next_offset=last_offset + 1)
        return last_offset + 1

    def _take_back(self, active: Segment, mark: Mark, error: LogError, *, has_producer: bool) -> None:
        """After a write that failed half way. Where only room was lacking the segment is cut back to what it was, which
        needs none, and the log goes on; after anything else it is recovered."""
        if isinstance(error, DiskFailed) and error.lacks_room:
            with suppress(LogError):
                active.cut_back(mark)
                self._cuts += 1  # whoever copies the segment may have seen what is gone
                if has_producer:
                    self._producers = self._snapshots.state_at(self.next_offset, self._view.bases)
                return
        self._recover_active()

    def _known_batch(self, header: BatchHeader, now_ms: int) -> RememberedBatch | None:
        """The batch that `header` repeats; None for one to be added. Raises for one that may not be."""
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
        """Where the disk has no room for the last entry of an index, the segment stays as it was, and active."""
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
        """A fresh active segment; when it cannot be made the sealed one is opened again, and the log goes on."""
        try:
            return Segment.create(self._storage, self.directory, view.next_offset, created_ms=now_ms)
        except LogError:
            with self._failing():
                view.segments[-1].activate()
            raise

    def _recover_active(self) -> None:
        """After a write that failed half way: rebuild the active segment from its own bytes, all durable afterwards.

        Every batch that was written whole is found again; when the disk gives back less, or had failed to sync them,
        somebody may be waiting for what is lost, and the log is unusable.
        """
        from local.log import recovery

        *sealed, broken = self._view.segments
        with self._failing():
            broken.retire()
            if broken.has_failed_sync:
                raise DiskFailed("recovering a segment, a sync of it failed before", partition=self.partition)
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
                raise DiskFailed("recovering a segment, written batches are gone", partition=self.partition, **lost)
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
        """Where there is no room for an index entry or a snapshot the records are durable all the same."""
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
        """What a clean shutdown vouches for is durable; of no producers there is nothing to lose."""
        if self.next_offset > self._view.bases[0]:
            with self._failing():
                self._snapshots.write(self.next_offset, self._producers, is_durable=len(self._producers) > 0)
