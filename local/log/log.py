"""One partition's log on a disk: append, roll, read, drop, recover. Kafka's format and guarantees.

**Concurrency.** One lock serialises writers. Readers take an immutable `LogView` and never wait. Offsets:
``log_start_offset <= local_log_start_offset <= next_offset``; the last is Kafka's log end offset.

**Durability.** Records appended with `Durability.MEMORY` (Kafka's default) are lost at a power cut. Records appended
with `Durability.FLUSHED`, in a closed segment, or below `recovery_point` are on the disk. Threads wait for the disk
without the lock and share their fsyncs. A reader may see a record before its append returns, and a power cut may remove
this record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from local import names
from local.errors import DiskFailed, NotFound
from local.log.log_appender import AppendResult, Durability, LogAppender
from local.log.log_reader import LogReader
from local.log.log_removal import LogRemoval
from local.log.log_state import LogState
from local.log.producer_state import ProducerFiles
from local.log.read_only_open import ReadOnlySource
from local.names import TopicPartition
from local.segment.segment import Segment
from local.settings import LogSettings
from local.storage import Storage, replace_file

__all__ = ["AppendResult", "Durability", "Log"]


class LogNotes:
    """Notes of a log about the remote tier, in its directory. Each is durable on return."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    @property
    def unconfirmed_from(self) -> int | None:
        """The log end before the first unconfirmed record, None without one; 0 if the file lacks the offset."""
        body = self._read(names.UNCONFIRMED_APPENDS)
        if body is None:
            return None
        return int(body) if body.isascii() and body.isdigit() and len(body) < 20 else 0

    def mark_unconfirmed(self, from_offset: int | None = None, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Note that records from `from_offset` (None: the log end) on are appended without the remote tier.

        Another log may hold other records at these offsets in the same leader epoch: the next open compares the
        records. The first note stays. `unless` is called under the log's lock; nothing is written if it returns true.
        """
        state = self._state
        with state.lock:
            if not unless():
                first = state.view.next_offset if from_offset is None else from_offset
                self._write(names.UNCONFIRMED_APPENDS, str(first))

    def confirm_appends(self) -> None:
        """Remove the note, durably. Call it before the records are copied: the note would contradict them."""
        self._remove(names.UNCONFIRMED_APPENDS)

    @property
    def fenced_by(self) -> str | None:
        """The writer that fenced this log, "unknown" if the note is empty; None without a note."""
        body = self._read(names.FENCED_BY)
        return None if body is None else body or "unknown"

    def mark_fenced(self, by: str) -> None:
        """Note that another writer took over. The first note stays until `clear_fenced`."""
        self._write(names.FENCED_BY, by)

    def clear_fenced(self) -> None:
        """Remove the note: this log is the writer again. Idempotent."""
        self._remove(names.FENCED_BY)

    def _read(self, name: str) -> str | None:
        try:
            return self._state.storage.read(self._state.path(name)).decode("utf-8", "replace").strip()
        except NotFound:
            return None

    def _write(self, name: str, text: str) -> None:
        state = self._state
        with state.lock:
            state.check_may_change()
            if not state.storage.exists(state.path(name)):
                replace_file(state.storage, state.path(name), f"{text}\n".encode())

    def _remove(self, name: str) -> None:
        state = self._state
        with state.lock:
            if state.storage.exists(state.path(name)):
                state.storage.unlink(state.path(name))
                state.storage.sync_directory(state.directory)


class Log(LogState):
    """One partition's log: its state with the operations of its components. Open it with `Log.open`."""

    def __init__(self, storage: Storage, directory: str, partition: TopicPartition, settings: LogSettings) -> None:
        super().__init__(storage, directory, partition, settings)
        reader = self._reader = LogReader(self)
        appender = self._appender = LogAppender(self)
        removal = self._removal = LogRemoval(self)
        self.notes = LogNotes(self)
        self.recovered_segments = 0
        self.read, self.columns, self.records = reader.read, reader.columns, reader.records
        self.segments, self.segment = reader.segments, reader.segment
        self.newest, self.offset_for_timestamp = reader.newest, reader.offset_for_timestamp
        self.aborted_transactions, self.aborted_again = reader.aborted_transactions, reader.aborted_again
        self.producers, self.producer_snapshot = reader.producers, reader.producer_snapshot
        self.reload_files = reader.reload_files
        self.append, self.append_columns = appender.append, appender.append_columns
        self.append_marker, self.append_encoded = appender.append_marker, appender.append_encoded
        self.encode, self.encode_columns, self.roll = appender.encode, appender.encode_columns, appender.roll
        self.flush, self.flush_if_due = appender.flush, appender.flush_if_due
        self.begin_epoch, self.expire_producers = appender.begin_epoch, appender.expire_producers
        self.raise_log_start, self.drop_before = removal.raise_log_start, removal.drop_before
        self.remove_deleted, self.swap_in = removal.remove_deleted, removal.swap_in
        self.truncate_to, self.restart_at = removal.truncate_to, removal.restart_at

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
    ) -> Log:
        """Open a log: load its files, recover as needed, activate the last segment. All is durable on return.

        - `log_start_offset` is the checkpointed one, used unchanged with `is_tiered`. Otherwise the first local
          segment's base is its lower bound.
        - `read_only`: nothing is written, a torn tail is left out, and the log refuses every change.
        """
        log, start = cls(storage, directory, partition, settings), log_start_offset or 0
        if read_only:
            log.has_failed = True  # every change is refused
            log.source = ReadOnlySource(storage, directory, start, is_tiered=is_tiered)
            log.reload_files()
            return log
        from local.log import loading

        storage.make_directory(directory)
        written = log.read_epochs()
        trusted = None if was_clean else recovery_point
        loaded = loading.load(storage, directory, settings, written, log.snapshots, recovery_point=trusted)
        segments, next_offset = loaded.segments, loaded.next_offset
        log.recovered_segments = loaded.recovered_count
        if segments and not is_tiered:
            start = max(start, segments[0].base_offset)
        if not segments or next_offset < start:
            log.producer_state = loading.producers_of_empty_log(log.snapshots, loaded, start)
            loading.discard(segments)
            next_offset = start
            segments = [Segment.create(log.files(next_offset), created_ms=now_ms)]
            log.snapshots.keep([next_offset], next_offset)
        else:
            segments[-1].activate(is_durable=was_clean)
            log.producer_state = loaded.producers
        log.publish(segments, log_start_offset=start, next_offset=next_offset)
        log.recovery_point = next_offset
        log.correct_epochs(written, loaded.epochs.truncate_from_end(next_offset), was_clean=was_clean)
        log.begin_epoch(log.epochs.latest or 0)
        return log

    def close(self) -> bool:
        """Make everything durable and close the files. Return False if the next start must recover the log."""
        with self.lock:
            is_whole = not self.has_failed
            if is_whole and self.view.segments[-1].is_active:
                is_whole = self._appender.seal_at_close()
            self.is_closed = True
            for segment in self.view.segments:
                segment.close()
            return is_whole

    def release(self) -> None:
        """Close the files without writing. The log must be reopened."""
        with self.lock:
            # Threads that wait for a sync get the error before the files are closed.
            self.fail(DiskFailed("the log was closed; reopen it", partition=self.partition))
            for segment in self.view.segments:
                segment.close()

    def cover_epochs(self) -> None:
        """Write epoch 0 for the records before the first known epoch, such as those of old formats."""
        with self.lock:
            self.save_epochs(self.epochs.covering(self.local_log_start_offset))

    def relocate(
        self, storage: Storage, directory: str, prepare: Callable[[Sequence[Segment]], None], switch: Callable[[], None]
    ) -> None:
        """Continue in another directory: steps 2 to 5 of `local.logdirs.log_moves`, under the log's lock.

        1. Close the active segment. `prepare` copies the missing bytes of the segments, which are all closed here. If
           it fails, the log continues in its old directory.
        2. `switch` renames the directories. If it fails, the log is unusable until it is reopened.
        3. Publish the segments of the new directory. Readers of the old segments get the new view and restart.
        """
        with self.lock:
            self.check_usable()
            old = self.view.segments
            self._appender.seal(old[-1])
            try:
                prepare(old)
            except BaseException:
                with self.failing():
                    old[-1].activate()
                raise
            with self.failing():
                for segment in old:
                    segment.retire()
                switch()
                self.storage, self.directory = storage, directory
                self.snapshots = ProducerFiles(storage, directory)
                self._removal.forget_deleted()
                moved = []
                for before in old:
                    files, interval_bytes = self.files(before.base_offset), self.settings.index_interval_bytes
                    moved.append(Segment.load(files, interval_bytes=interval_bytes))
                    moved[-1].created_ms = before.created_ms
                moved[-1].activate()
                self.publish(moved)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[Storage, str]:
        """The storage and the directory of the log now; a move changes both."""
        return self.storage, self.directory

    @property
    def is_read_only(self) -> bool:
        return self.source is not None

    @property
    def log_start_offset(self) -> int:
        return self.view.log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        return self.view.local_log_start_offset

    @property
    def first_known_offset(self) -> int:
        """The start of the leader epochs: the log start, or the first segment's base if that is lower."""
        return self.view.first_known_offset

    @property
    def next_offset(self) -> int:
        return self.view.next_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided: the earliest open one, or the log end."""
        return self._reader.decided_view().last_stable_offset

    @property
    def closed_stable_offset(self) -> int:
        """The last stable offset, as far as the closed segments determine it."""
        return self._reader.closed_stable_offset()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.view.segments)

    @property
    def has_unwritten(self) -> bool:
        """Whether the log has records that are not known to be durable."""
        return self.recovery_point < self.next_offset
