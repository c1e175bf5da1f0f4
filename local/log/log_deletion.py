"""The removing side of a log, and the state that all changes share.

`local.log.log.Log` adds the appends. All changes happen under the log's one lock. Each method states its order of
effects and the result of a crash. A method that lowers the log end first pauses the cleaner
(`local.log.cleaning_state`), before it takes the lock.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from local import names
from local.errors import Conflict, DiskFailed, NotFound, OffsetOutOfRange
from local.index import txn_index
from local.log import checkpoints
from local.log.cleaning_state import CleaningGate
from local.log.group_commit import GroupCommit
from local.log.leader_epochs import LeaderEpochs
from local.log.log_reading import ReadableLog
from local.log.log_view import LargestTimes, LogView
from local.log.producer_files import ProducerFiles
from local.log.producer_state import ProducerState
from local.names import TopicPartition
from local.segment import swap
from local.segment.segment import Segment
from local.settings import LogSettings
from local.storage import Storage, join, replace_file

_log = logging.getLogger(__name__)


class _Deleted(NamedTuple):
    """A file to delete `delay_ms` after `since_ms`."""

    since_ms: int
    delay_ms: int
    path: str


class ShrinkableLog(ReadableLog):
    """The removing side of a log, see the module."""

    def __init__(self, storage: Storage, directory: str, partition: TopicPartition, settings: LogSettings) -> None:
        super().__init__(partition)
        self.settings = settings
        self.directory = directory
        self._open_before, self._mend_transactions = self._open_transactions, self._mend_index
        self.recovery_point = 0
        self.write_checkpoints: Callable[[], None] = lambda: None  # set by the owner of this log's checkpoints
        # Called with (offset, time) before the log end is lowered to an offset. Files next to the log that describe
        # records from there on must not outlive the records (`tiered.read.local_views`).
        self.before_cut: Callable[[int, int], None] = lambda offset, now_ms: None
        self.cleaning = CleaningGate(partition)
        self._storage = storage
        self._snapshots = ProducerFiles(storage, directory)
        self._deleted: list[_Deleted] = []
        # Positions for the group commit: bytes written since the log was opened. Cuts: how often the log end was
        # lowered.
        self._written_bytes = 0
        self._cuts = 0
        self._commit = GroupCommit(self._sync_written)
        self._unflushed_since_ms: int | None = None
        self._failed = False
        self._is_closed = False

    @property
    def place(self) -> tuple[Storage, str]:
        """The storage and the directory of the log now; a move changes both."""
        return self._storage, self.directory

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start: readers no longer see records below `offset`.

        Raises OffsetOutOfRange above the log end.
        """
        with self._lock:
            self._check_may_change()
            if offset > self.next_offset:
                facts = {"offset": offset, "first_offset": self.log_start_offset, "next_offset": self.next_offset}
                raise OffsetOutOfRange("cannot raise the log start offset", partition=self.partition, **facts)
            if offset > self.log_start_offset:
                self._publish(list(self._view.segments), log_start_offset=offset)
                self._forget_old_epochs()

    def drop_before(self, offset: int, *, now_ms: int, delay_ms: int, raises_log_start: bool) -> int:
        """Drop closed segments wholly below `offset` and return their number.

        Files are deleted `delay_ms` later. Order of effects:

        1. The producer snapshot after each of these segments becomes durable.
        2. The start offset and the segment list are published: no new reader uses these segments.
        3. The files of each segment are renamed to ``.deleted``, durably, then its producer snapshot; the oldest
           segment first.
        4. Later, `remove_deleted` deletes the files.

        A crash after any step leaves segments that the next maintenance drops. If the directory has no room for a new
        name, the file is deleted at once. If a rename fails otherwise, the log is unusable until it is reopened:
        continuing after the failed segment would leave a hole for the next start.
        """
        with self._lock:
            self._check_may_change()
            view = self._view
            doomed = view.sealed_below(offset)
            if not doomed:
                return 0
            kept = view.segments[len(doomed) :]
            for at in range(1, len(doomed) + 1):
                self._write_snapshot(view.bases[at], view.bases[:at])
            start = max(view.log_start_offset, kept[0].base_offset) if raises_log_start else view.log_start_offset
            with self._failing():
                self._publish(list(kept), log_start_offset=start)
                self._forget_old_epochs()
                for segment in doomed:
                    # Oldest first, each durable before the next: a crash leaves a shorter tail, never a hole.
                    self._mark_deleted(segment, now_ms, delay_ms)
                    self._storage.sync_directory(self.directory)
                    # Its snapshot comes later: a segment that reappears after a crash needs the state at its base.
                    self._mark_snapshot_deleted(segment.base_offset, now_ms, delay_ms)
            return len(doomed)

    def remove_deleted(self, now_ms: int) -> int:
        """Delete the ``.deleted`` files that are due; return their number.

        A file with a mark in the future waits its delay from now on: the clock was wrong at the mark.
        """
        with self._lock:
            self._deleted = [each._replace(since_ms=min(each.since_ms, now_ms)) for each in self._deleted]
            due = [each for each in self._deleted if now_ms - each.since_ms >= each.delay_ms]
            for each in due:
                self._storage.unlink(each.path)
                self._deleted.remove(each)
            return len(due)

    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Truncate the log to `offset`: remove the records at or above it.

        Their effects on producers and leader epochs are removed with them.

        - The log then ends at `offset`, as Kafka's does, even if the last remaining batch ends below. Offsets below
          `offset` are never assigned again.
        - The batch that holds `offset` is removed whole.
        - If `offset` is below the first local record, no local record is left, and the log start is lowered with the
          end.
        - The caller must know what the remote tier holds.

        Returns the log end: `offset`, or lower if it was lower before. Order of effects and crashes:
        `local.log.truncation`. Raises DiskFailed; after step 1 the log is then unusable.
        """
        from local.log import truncation

        with self.cleaning.paused(), self._lock:
            self._check_may_change()
            if offset >= self.next_offset:
                return self.next_offset
            self.before_cut(offset, now_ms)
            cut = truncation.find(self._storage, self._view.segments, offset)
            if cut is None or cut.next_offset < self.log_start_offset:
                self.restart_at(offset, self.epochs.truncate_from_end(offset), now_ms=now_ms)
                return offset
            self._certify_no_further_than(cut.next_offset)
            with self._failing():
                interval_bytes = self.settings.index_interval_bytes
                last = truncation.make(self._storage, self.directory, cut, interval_bytes=interval_bytes)
                made = truncation.end_at(self._storage, self.directory, last, cut, offset, now_ms=now_ms)
                active = made[-1]
                self._snapshots.remove_above(cut.next_offset)
                self._save_epochs(self.epochs.truncate_from_end(offset))
                sealed = [*self._view.sealed_below(cut.segment.base_offset), *made[:-1]]
                bases = [each.base_offset for each in (*sealed, active)]
                self._producers = self._snapshots.state_at(offset, bases)
                if not active.is_active:
                    active.activate()
            # With no local record left below `offset`, the next start finds the same log start in the name of the
            # segment.
            start = self.log_start_offset
            is_empty = not sealed and active.base_offset == offset and start >= cut.segment.base_offset
            self._publish([*sealed, active], next_offset=offset, log_start_offset=offset if is_empty else start)
            self._all_durable()
            return offset

    def restart_at(
        self,
        offset: int,
        epochs: LeaderEpochs,
        *,
        now_ms: int,
        producers: ProducerState | None = None,
        ends_at: int | None = None,
    ) -> None:
        """Remove every local record and continue at `offset`, with the leader epochs `epochs` below it.

        For a log whose records below `offset` are all in the remote tier. The remote tier also knows its `producers`:
        sequences, and transactions that are open at `offset`. Without them no producer is known.

        Order of effects:

        1. The recovery point and cleaner offset are lowered, and checkpoints written.
        2. The segments and producer snapshots are deleted.
        3. The snapshot of `producers` is written and synced, because it is the only source for them.
        4. The empty segment is created, then the epochs are written.
        5. A log start above `offset` is lowered. A crash before this leaves an empty log, which restarts at the old
           log start.

        Raises DiskFailed; from step 2 on the log is then unusable. Raises Conflict, with nothing done, if the log does
        not end at `ends_at`: it has records that the caller does not know.
        """
        from local.log import loading

        with self.cleaning.paused(), self._lock:
            self._check_may_change()
            if ends_at is not None and self.next_offset != ends_at:
                facts = {"partition": self.partition, "expected": ends_at, "found": self.next_offset}
                raise Conflict("cannot restart the log at another offset, records were appended to it", **facts)
            start = self.log_start_offset
            self.before_cut(offset, now_ms)
            self._certify_no_further_than(offset)
            with self._failing():
                loading.discard(self._storage, self.directory, self._view.segments)
                self._snapshots.remove_all()
                self._producers = producers if producers is not None else ProducerState()
                if len(self._producers):
                    self._snapshots.write(offset, self._producers, is_durable=True)
                fresh = Segment.create(self._storage, self.directory, offset, created_ms=now_ms)
                self._publish([fresh], next_offset=offset, log_start_offset=min(start, offset))
                self._save_epochs(epochs)
            self._all_durable()
            if offset < start:
                self.write_checkpoints()

    def swap_in(self, old: Sequence[Segment], base_offset: int, *, now_ms: int, delay_ms: int) -> None:
        """Do steps 2 to 6 of `local.segment.swap`: replace the neighbouring closed `old` by the cleaned one.

        | event | result |
        |---|---|
        | one of `old` was dropped or truncated since it was read | Conflict; the cleaned segment is deleted |
        | the directory has no room for a name | DiskFailed; the cleaned segment is deleted, `old` stays |
        | the disk fails otherwise | DiskFailed; unusable until reopened, which finishes or undoes the swap |
        """
        with self._lock:
            self._check_may_change()
            if not set(old) <= set(self._view.segments[:-1]):
                swap.discard(self._storage, self.directory, base_offset)
                facts = {"partition": self.partition, "base_offset": base_offset}
                raise Conflict(
                    "cannot swap in a cleaned segment, the segments that it replaces no longer exist", **facts
                )
            with self._failing_unless_full():
                swap.announce(self._storage, self.directory, base_offset)
            with self._failing():
                self._storage.sync_directory(self.directory)
                for segment in old:
                    self._mark_deleted(segment, now_ms, delay_ms)
                self._storage.sync_directory(self.directory)
                swap.put_in_place(self._storage, self.directory, base_offset)
                fresh = Segment.load(
                    self._storage, self.directory, base_offset, interval_bytes=self.settings.index_interval_bytes
                )
                kept = [segment for segment in self._view.segments if segment not in old]
                bisect.insort(kept, fresh, key=lambda segment: segment.base_offset)
                self._publish(kept)
                for segment in old:
                    if segment.base_offset != base_offset:
                        self._mark_snapshot_deleted(segment.base_offset, now_ms, delay_ms)

    # -- transactions ---------------------------------------------------------------------------------------------

    def aborted_again(self, base_offset: int, problem: str) -> bytes:
        """Rebuild the ``.txnindex`` of a segment, on disk too, and return its bytes.

        `problem` is the reason. Raises Corrupt, NotFound.
        """
        view = self._view
        self._mend_index(view, base_offset, problem)
        return txn_index.encode(self.segment(base_offset).aborted())

    def _open_transactions(self, view: LogView, offset: int) -> dict[int, int]:
        at = max(bisect.bisect_right(view.bases, offset) - 1, 0)
        onlooker = ProducerFiles(self._storage, self.directory, is_onlooker=True)
        entries = onlooker.state_at(view.bases[at], view.bases[:at], may_vanish=True).entries()
        return {e.producer_id: e.transaction_first_offset for e in entries if e.transaction_first_offset >= 0}

    def _mend_index(self, view: LogView, base_offset: int, problem: str) -> None:
        """Rebuild the index, on disk if this process writes the log, else in memory.

        A full disk does not fail a read.
        """
        from local.log.txn_repair import entries_again

        segment = view.segment(base_offset)
        if segment is None:
            raise NotFound("cannot rebuild a transaction index, the segment does not exist", base_offset=base_offset)
        with self._lock:
            if segment.is_retired:
                return  # the next view has its replacement
            before = [each for each in view.bases if each < base_offset]
            entries = entries_again(self._storage, self.directory, segment, before)
            _log.warning("a transaction index is wrong: path=%s cause=%s", segment.path(names.TXN_INDEX), problem)
            if not self._failed and not self._is_closed:
                try:
                    segment.replace_aborted(entries, on_disk=True)
                except DiskFailed as error:
                    _log.warning("cannot rebuild a transaction index: cause=%s", error)
                else:
                    return
            segment.replace_aborted(entries, on_disk=False)

    @property
    def has_unconfirmed_appends(self) -> bool:
        """Whether records were appended without contact to the remote tier and not compared with it since."""
        return self._storage.exists(self._path(names.UNCONFIRMED_APPENDS))

    @property
    def unconfirmed_from(self) -> int | None:
        """The log end before the first unconfirmed record, None without one; 0 if the file does not say it."""
        if not self.has_unconfirmed_appends:
            return None
        body = self._storage.read(self._path(names.UNCONFIRMED_APPENDS)).strip()
        return int(body) if body.isdigit() and len(body) < 20 else 0

    def mark_unconfirmed(self, from_offset: int | None = None) -> None:
        """Note, durably, that records are appended without contact to the remote tier.

        Another log may hold other records at these offsets in the same leader epoch. The next open therefore compares
        the records themselves. The first note stays until the records are confirmed. `from_offset` None: the log end.
        """
        with self._lock:
            self._check_may_change()
            if not self.has_unconfirmed_appends:
                first = self.next_offset if from_offset is None else from_offset
                replace_file(self._storage, self._path(names.UNCONFIRMED_APPENDS), b"%d\n" % first)

    def confirm_appends(self) -> None:
        """Remove the note after the records were compared with the remote tier. Durable on return. Idempotent.

        A note that reappeared after the records were copied would contradict them.
        """
        with self._lock:
            if self.has_unconfirmed_appends:
                self._storage.unlink(self._path(names.UNCONFIRMED_APPENDS))
                self._storage.sync_directory(self.directory)

    @property
    def fenced_by(self) -> str | None:
        """The writer that fenced this log, "unknown" if the note is empty; None without a note."""
        try:
            noted = self._storage.read(self._path(names.FENCED_BY))
        except NotFound:
            return None
        return noted.decode("utf-8", "replace").strip() or "unknown"

    def mark_fenced(self, by: str) -> None:
        """Note, durably, that another writer took over. The first note stays until `clear_fenced`."""
        with self._lock:
            self._check_may_change()
            if not self._storage.exists(self._path(names.FENCED_BY)):
                replace_file(self._storage, self._path(names.FENCED_BY), f"{by}\n".encode())

    def clear_fenced(self) -> None:
        """Remove the note: this log is the writer again. Durable on return. Idempotent."""
        with self._lock:
            if self._storage.exists(self._path(names.FENCED_BY)):
                self._storage.unlink(self._path(names.FENCED_BY))
                self._storage.sync_directory(self.directory)

    # -- inside --------------------------------------------------------------------------------------------------

    def _write_snapshot(self, offset: int, bases: Sequence[int]) -> None:
        """Make the producer snapshot at `offset` durable. Without room on the disk the log is unchanged."""
        with self._failing_unless_full():
            self._snapshots.write_snapshot(offset, bases)

    def _sync_written(self) -> int:
        """Sync for the group commit, without the lock. Return the position up to which everything is durable.

        - Only the active segment needs a sync; closed ones are durable. If the segment is closed or recovered during
          the sync, that made the same bytes durable.
        - A truncation during the sync (`_cuts`) may have been followed by other records at the same offsets, which
          this sync does not cover. The recovery point then stays.
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

    def _certify_no_further_than(self, offset: int) -> None:
        """Lower the offsets trusted at start-up, in memory and in the checkpoints, before records are removed.

        If the checkpoints cannot be written, the values in memory are restored, so that the next try writes them.
        """
        told = self.recovery_point, self.cleaner_offset, self.cleaner_reach
        self.cleaner_reach = min(self.cleaner_reach, offset)
        self.recovery_point = min(self.recovery_point, offset)
        if self.cleaner_offset is not None:
            self.cleaner_offset = min(self.cleaner_offset, offset)
        if told != (self.recovery_point, self.cleaner_offset, self.cleaner_reach):
            try:
                self.write_checkpoints()
            except BaseException:
                self.recovery_point, self.cleaner_offset, self.cleaner_reach = told
                raise

    def _path(self, name: str) -> str:
        return join(self.directory, name)

    def _save_epochs(self, epochs: LeaderEpochs) -> None:
        # In memory only after the write: if the write fails, the next append tries again.
        checkpoints.write_epochs(self._storage, self._path(names.LEADER_EPOCHS), epochs.entries)
        self.epochs = epochs

    def _correct_epochs(self, written: LeaderEpochs, epochs: LeaderEpochs, *, was_clean: bool) -> None:
        """At start-up, set the epochs that fit the log's ends, and write them if needed.

        They are written if the file differs, and after an unclean shutdown if the file exists: the process that wrote
        it may have been killed before it synced the name. A missing file means no epochs, as for a new log. After a
        clean shutdown an unchanged file is not written, so that a full disk does not prevent the open.
        """
        kept = epochs.truncate_from_start(self.first_known_offset)
        if kept != written or not (was_clean or not self._storage.exists(self._path(names.LEADER_EPOCHS))):
            self._save_epochs(kept)
        else:
            self.epochs = kept

    def _forget_old_epochs(self) -> None:
        """Start the epochs where the records start, as `LeaderEpochFileCache.truncateFromStart` does.

        The file is written with the next epoch and at every start; until then extra epochs in it do no harm.
        """
        self.epochs = self.epochs.truncate_from_start(self.first_known_offset)

    def _all_durable(self) -> None:
        """Record, under the lock, that all written bytes are durable; waiting threads return."""
        self.recovery_point = self.next_offset
        self._unflushed_since_ms = None
        self._commit.cover(self._written_bytes)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Make the log unusable after any error inside the context, until it is reopened and recovered.

        A failed fsync is never retried, because the kernel may have dropped the pages and cleared the error. The log
        then confirms nothing more. An interrupted fsync counts as failed.
        """
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    @contextmanager
    def _failing_unless_full(self) -> Iterator[None]:
        """Do `_failing`, except for a lack of room. The code inside must then leave everything unchanged."""
        try:
            yield
        except BaseException as error:
            if not (isinstance(error, DiskFailed) and error.lacks_room):
                self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._commit.fail(error)

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed("the disk of the log failed; reopen the log to recover it", partition=self.partition)

    def _check_may_change(self) -> None:
        self._check_usable()
        if self._is_closed:
            raise DiskFailed("cannot change the log, it was closed; reopen it", partition=self.partition)

    def _publish(
        self, segments: list[Segment] | None, *, log_start_offset: int | None = None, next_offset: int | None = None
    ) -> None:
        old = self._view
        chosen = old.segments if segments is None else tuple(segments)
        bases = old.bases if segments is None else _bases(old, chosen)
        start = old.log_start_offset if log_start_offset is None else log_start_offset
        self._cuts += next_offset is not None and next_offset < old.next_offset
        times = old.times if segments is None else LargestTimes(chosen[:-1])
        end = old.next_offset if next_offset is None else next_offset
        unstable, tail = self._producers.first_unstable_offset, chosen[-1]
        self._view = LogView(chosen, bases, start, end, times, unstable, tail.size_bytes, tail.is_active)

    def _mark_deleted(self, segment: Segment, now_ms: int, delay_ms: int) -> None:
        suffixes = segment.existing_suffixes()
        segment.retire()
        for suffix in suffixes:
            self._mark(segment.path(suffix), now_ms, delay_ms)

    def _mark_snapshot_deleted(self, offset: int, now_ms: int, delay_ms: int) -> None:
        if (path := self._snapshots.let_go(offset)) is not None:
            self._mark(path, now_ms, delay_ms)

    def _mark(self, path: str, now_ms: int, delay_ms: int) -> None:
        """Rename a file to ``.deleted``. If a full disk has no room for the name, delete the file at once.

        A full disk needs the deletion most. Open descriptors stay valid; other readers see the same as with a delay of
        0.
        """
        try:
            self._storage.rename(path, path + names.DELETED)
        except DiskFailed as error:
            if not error.lacks_room:
                raise
            self._storage.unlink(path)
        else:
            self._deleted.append(_Deleted(now_ms, delay_ms, path + names.DELETED))


def _bases(old: LogView, chosen: tuple[Segment, ...]) -> tuple[int, ...]:
    """Return the base offsets of `chosen`. A roll adds one segment, and the old bases are reused."""
    if chosen and chosen[:-1] == old.segments:
        return (*old.bases, chosen[-1].base_offset)
    return tuple(segment.base_offset for segment in chosen)
