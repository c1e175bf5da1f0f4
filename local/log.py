"""One partition's log on a disk: append, roll, read, drop, recover. Kafka's format, Kafka's promises.

Concurrency: one lock serialises writers; readers take a frozen `LogView` (the segment list and the offsets) and never
wait. A reader whose segment is dropped or replaced under it gets the next view and starts over, so it never sees a
hole. Offsets: ``log_start_offset <= local_log_start_offset <= next_offset``; the last is Kafka's log end offset.

Durability: an append with `Durability.MEMORY` is where Kafka's own default leaves it (in the page cache, lost with
the power); with `Durability.FLUSHED` it is on the platter. A sealed segment always is. Those who wait for the platter
wait without the lock and share their fsyncs (`local.group_commit`). A record is readable as soon as it is written, so a
reader may see one whose append has not returned yet and, after a power cut, never will; `recovery_point` is what has
reached the platter for certain.

This module is longer than its neighbours because it is everything that happens under the log's one lock; what needs no
lock lies beside it (`log_reading`, `log_view`, `loading`, `encoding`).

A write that fails leaves the active segment in an unknown state: it is recovered in place from its own bytes; if that
fails too, the log refuses everything until it is reopened.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from local import checkpoints, loading, names, recovery, swap
from local.append_result import AppendResult, Durability
from local.append_validation import validate_batch
from local.batch import BatchHeader, assign_offset, encode_marker, read_header, read_marker
from local.column_encoding import encode_column_batches
from local.encoding import encode_batches
from local.epochs import LeaderEpochs
from local.errors import DiskFailed, LogError, OffsetOutOfRange
from local.group_commit import GroupCommit
from local.log_reading import ReadableLog
from local.log_view import LargestTimes, LogView
from local.names import TopicPartition
from local.producer_files import ProducerFiles
from local.producer_state import EXPIRATION_INTERVAL_MS, Producer, ProducerState, RememberedBatch
from local.record import Record
from local.record_columns import record_columns
from local.rolling import Draw, Rolling
from local.segment import Segment
from local.settings import LogSettings
from local.storage import Storage, join

__all__ = ["AppendResult", "Durability", "Log"]


class Log(ReadableLog):
    """See the module text; reads and lookups are in `local.log_reading`. Build one with `Log.open`."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        partition: TopicPartition,
        settings: LogSettings,
        draw: Draw = random.randrange,
    ) -> None:
        super().__init__(partition)
        self.settings = settings
        self.directory = directory
        self.leader_epoch = 0
        self.recovery_point = 0
        self.recovered_segments = 0
        self._storage = storage
        self._deleted: list[tuple[int, str]] = []
        # Positions for the group commit: bytes written since the log was opened. Cuts: how often its end was lowered.
        self._written_bytes = 0
        self._cuts = 0
        self._commit = GroupCommit(self._sync_written)
        self._unflushed_since_ms: int | None = None
        self._failed = False
        self._look_again: Callable[[], None] | None = None
        self._snapshots = ProducerFiles(storage, directory)
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
            loading.discard(storage, directory, segments)
            log._snapshots.remove_all()
            next_offset = start
            segments = [Segment.create(storage, directory, next_offset, created_ms=now_ms)]
        else:
            segments[-1].activate()
            log._producers = loaded.producers
        log._publish(segments, log_start_offset=start, next_offset=next_offset)
        log.recovery_point = next_offset
        log._save_epochs(epochs.truncate_from_end(next_offset))
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
        return encode_batches(records, self.settings, partition=self.partition, now_ms=now_ms, producer=producer)

    def append_columns(
        self, columns: object, *, now_ms: int, durability: Durability = Durability.MEMORY
    ) -> AppendResult:
        """Add records that are columns already: `Columns` of another log, or Arrow: key, value[, timestamp, headers].

        No record becomes a Python object (`local.record_columns`). Raises as `append`, and InvalidRequest for a table
        that holds no records.
        """
        return self.append_encoded(self.encode_columns(columns, now_ms=now_ms), now_ms=now_ms, durability=durability)

    def encode_columns(self, columns: object, *, now_ms: int) -> Iterable[memoryview]:
        """The same as batches for `append_encoded`, once, all checked; adds nothing. Raises as `append_columns`."""
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
        recovery or a reader would refuse, InvalidRequest for what does not belong here (`local.append_validation`;
        control batches are `append_marker`'s), OutOfOrderSequence and ProducerFenced as `local.producer_state` tells.
        """
        accepted = validate_batch(batch, self.settings, partition=self.partition, now_ms=now_ms)
        return self.append_encoded([accepted], now_ms=now_ms, durability=durability)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
    ) -> AppendResult:
        """End the producer's transaction here: the only way in for a control batch, and the coordinator's to call.

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
            self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
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
        if limit is None or since is None or now_ms - since < limit:
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
            self._check_usable()
            view = self._view
            if view.segments[-1].size_bytes == 0:
                return False
            self._seal(view.segments[-1])
            self._publish([*view.segments, self._next_segment(view, now_ms)])
            self._snapshots.write(view.next_offset, self._producers)
            return True

    # -- shrink --------------------------------------------------------------------------------------------------

    def raise_log_start(self, offset: int) -> None:
        """Records below `offset` are gone for readers. Raises OffsetOutOfRange above the log end."""
        with self._lock:
            if offset > self.next_offset:
                facts = {"offset": offset, "first_offset": self.log_start_offset, "next_offset": self.next_offset}
                raise OffsetOutOfRange("raising the log start", partition=self.partition, **facts)
            if offset > self.log_start_offset:
                self._publish(list(self._view.segments), log_start_offset=offset)

    def drop_before(self, offset: int, *, now_ms: int, delay_ms: int, raises_log_start: bool) -> int:
        """Drop sealed segments wholly below `offset`; returns how many. Their files go `delay_ms` later.

        Order of effects: the producers' snapshot behind each doomed segment becomes durable, the start offset and the
        segment list are published (no new reader enters), then the names become ``.deleted``, then, later, the files
        go. A crash after any step leaves segments that the next round drops.
        """
        with self._lock:
            view = self._view
            doomed = view.sealed_below(offset)
            if not doomed:
                return 0
            kept = view.segments[len(doomed) :]
            with self._failing():
                for at in range(1, len(doomed) + 1):
                    self._snapshots.settle(view.bases[at], view.bases[:at])
            start = max(view.log_start_offset, kept[0].base_offset) if raises_log_start else view.log_start_offset
            self._publish(list(kept), log_start_offset=start)
            for segment in doomed:
                # Oldest first, each durable before the next: a crash leaves a shorter tail, never a hole.
                self._mark_deleted(segment, now_ms + delay_ms)
                self._mark_snapshot_deleted(segment.base_offset, now_ms + delay_ms)
                self._storage.sync_directory(self.directory)
            return len(doomed)

    def remove_deleted(self, now_ms: int) -> int:
        """Unlink the ``.deleted`` files that are due; returns how many."""
        with self._lock:
            due = [entry for entry in self._deleted if entry[0] <= now_ms]
            for entry in due:
                self._storage.unlink(entry[1])
                self._deleted.remove(entry)
            return len(due)

    def restart_at(self, offset: int, epochs: LeaderEpochs, *, now_ms: int) -> None:
        """Forget every local record and go on at `offset`, with the lineage `epochs` of what lies below.

        For a log whose records below `offset` are all in the remote tier. Order of effects: the files go first, the
        lineage after, so a crash in between leaves an empty log, which restarts the same way.
        """
        with self._lock:
            loading.discard(self._storage, self.directory, self._view.segments)
            self._snapshots.remove_all()
            self._producers = ProducerState()
            fresh = Segment.create(self._storage, self.directory, offset, created_ms=now_ms)
            self._publish([fresh], next_offset=offset)
            self._save_epochs(epochs)
            self._all_durable()

    def swap_in(self, old: Sequence[Segment], base_offset: int, *, now_ms: int, delay_ms: int) -> None:
        """Steps 3 to 6 of `local.swap`: the announced segment takes the place of neighbouring sealed `old` ones.

        When the disk fails in between, the log is unusable until it is reopened, which finishes the swap.
        """
        with self._lock, self._failing():
            for segment in old:
                self._mark_deleted(segment, now_ms + delay_ms)
            self._storage.sync_directory(self.directory)
            swap.put_in_place(self._storage, self.directory, base_offset)
            fresh = Segment.load(self._storage, self.directory, base_offset)
            kept = [segment for segment in self._view.segments if segment not in old]
            bisect.insort(kept, fresh, key=lambda segment: segment.base_offset)
            self._publish(kept)
            for segment in old:
                if segment.base_offset != base_offset:
                    self._mark_snapshot_deleted(segment.base_offset, now_ms + delay_ms)

    def producer_snapshot(self, offset: int) -> bytes:
        """A ``.snapshot`` of the producers before `offset`, a segment's base or the log end; made again if it is gone.

        Nobody waits for it. Raises Corrupt as reading the log does.
        """
        return self._retrying(
            lambda view: ProducerFiles(self._storage, self.directory, is_onlooker=True).encoded(offset, view.bases)
        )

    def begin_epoch(self, epoch: int) -> None:
        """Batches appended from now on carry `epoch`; its start is written down with the first of them."""
        with self._lock:
            self.leader_epoch = max(epoch, self.leader_epoch)

    def close(self) -> bool:
        """Make everything durable and let go of the files; False when that could not be done (recover at the start)."""
        with self._lock:
            active = self._view.segments[-1]
            if active.is_active and not self._failed:
                with suppress(LogError):
                    self._seal(active)
                    self._snapshot_at_close()
            for segment in self._view.segments:
                segment.close()
            return not self._failed

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
        self._failed = True
        self._look_again = partial(self._look, log_start_offset, is_tiered=is_tiered)
        loaded = loading.look(self._storage, self.directory, log_start_offset)
        if loaded.next_offset > loaded.segments[0].base_offset and not is_tiered:
            log_start_offset = max(log_start_offset, loaded.segments[0].base_offset)
        self.epochs = LeaderEpochs(tuple(checkpoints.read_epochs(self._storage, self._path(names.LEADER_EPOCHS))))
        self._publish(loaded.segments, log_start_offset=log_start_offset, next_offset=loaded.next_offset)
        self.recovery_point = loaded.next_offset
        bases = [segment.base_offset for segment in loaded.segments]
        onlooker = ProducerFiles(self._storage, self.directory, is_onlooker=True)
        self._find_producers = partial(onlooker.state_at, loaded.next_offset, bases, may_vanish=True)

    def _path(self, name: str) -> str:
        return join(self.directory, name)

    def _append_all(
        self, batches: Iterable[bytearray | memoryview], now_ms: int, durability: Durability
    ) -> tuple[AppendResult, int]:
        """The answer, and the position to wait for, without the lock, before it may be told."""
        self._check_usable()
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
        try:
            active.append(
                batch,
                last_offset=last_offset,
                max_timestamp_ms=header.max_timestamp_ms,
                interval_bytes=self.settings.index_interval_bytes,
            )
            if header.producer_id >= 0:
                self._account(active, batch, header, base_offset)
        except LogError:
            self._recover_active()
            raise
        active.modified_ms = now_ms
        self._written_bytes += len(batch)
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        self._publish(None, next_offset=last_offset + 1)
        return last_offset + 1

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

    def _save_epochs(self, epochs: LeaderEpochs) -> None:
        # Known only once it is written: after a write that failed the next append has to try again.
        checkpoints.write_epochs(self._storage, self._path(names.LEADER_EPOCHS), epochs.entries)
        self.epochs = epochs

    def _sync_written(self) -> int:
        """The group commit's sync, without the lock: the position up to which everything is durable now.

        Only the active segment needs it, as a sealed one is durable. When the segment is sealed or recovered meanwhile,
        that made the same bytes durable. A cut meanwhile (`_cuts`) may have been followed by other records at the same
        offsets, which this sync has not seen: then the recovery point stays.
        """
        with self._lock:
            self._check_usable()
            active, written = self._view.segments[-1], self._written_bytes
            next_offset, cuts = self.next_offset, self._cuts
            self._unflushed_since_ms = None
        with self._failing():
            active.sync_log()
        with self._lock:
            self._check_usable()
            if cuts == self._cuts:
                self.recovery_point = max(self.recovery_point, next_offset)
        return written

    def _seal(self, active: Segment) -> None:
        with self._failing():
            active.seal()
        self._all_durable()

    def _all_durable(self) -> None:
        """Under the lock: everything that was written is durable, and whoever waits for it may go on."""
        self.recovery_point = self.next_offset
        self._unflushed_since_ms = None
        self._commit.cover(self._written_bytes)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An fsync that failed is never tried again (the kernel may have dropped the pages and forgotten): the log is
        unusable, and vouches for nothing more, until it is reopened and recovered. An interrupted one counts as failed.
        """
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._commit.fail(error)

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
            active = Segment.load(self._storage, self.directory, broken.base_offset)
            active.activate()
            self._producers = producers
            self._publish([*sealed, active], next_offset=found.next_offset)
        self._all_durable()

    def _snapshot_at_close(self) -> None:
        """What a clean shutdown vouches for is durable; of no producers there is nothing to lose."""
        if self.next_offset > self._view.bases[0]:
            with self._failing():
                self._snapshots.write(self.next_offset, self._producers, is_durable=len(self._producers) > 0)

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed("using a log whose disk failed, reopen it to recover", partition=self.partition)

    def _publish(
        self, segments: list[Segment] | None, *, log_start_offset: int | None = None, next_offset: int | None = None
    ) -> None:
        old = self._view
        chosen = old.segments if segments is None else tuple(segments)
        bases = old.bases if segments is None else tuple(s.base_offset for s in chosen)
        start = old.log_start_offset if log_start_offset is None else log_start_offset
        self._cuts += next_offset is not None and next_offset < old.next_offset
        times = old.times if segments is None else LargestTimes(chosen[:-1])
        self._view = LogView(chosen, bases, start, old.next_offset if next_offset is None else next_offset, times)

    def _mark_deleted(self, segment: Segment, due_ms: int) -> None:
        suffixes = segment.existing_suffixes()
        segment.retire()
        for suffix in suffixes:
            path = segment.path(suffix)
            self._storage.rename(path, path + names.DELETED)
            self._deleted.append((due_ms, path + names.DELETED))

    def _mark_snapshot_deleted(self, offset: int, due_ms: int) -> None:
        if offset in self._snapshots.offsets():
            path = self._snapshots.path(offset)
            self._storage.rename(path, path + names.DELETED)
            self._snapshots.forget(offset)
            self._deleted.append((due_ms, path + names.DELETED))
