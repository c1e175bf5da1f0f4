"""The state that the components of a log share, and the group commit that makes it durable.

**Group commit.** Threads that wait for durable appends share one fsync. A thread appends under the log's lock, releases
the lock and waits for its **position**: a number that grows with every written byte and never falls. One waiting thread
leads and syncs for all. A sync covers all bytes written before it began. There is no timer.

| state | event | next state, and the effect on waiting threads |
|---|---|---|
| idle | `wait_for`, position covered | idle; returns |
| idle | `wait_for`, position not covered | syncing; the caller leads |
| syncing | `wait_for`, position not covered | syncing; waits |
| syncing | the sync ends and covers up to p | idle; threads up to p return, one of the others leads |
| syncing | the sync fails, or is interrupted | failed; the leader gets its error, all not covered get DiskFailed |
| idle, syncing | `cover(p)`: a closed or recovered segment is durable up to p | unchanged; threads up to p return |
| idle, syncing | `fail` | failed; all not covered get DiskFailed |
| failed | any | failed; only positions covered before return, and nothing more is covered |

A failed sync is never retried: the kernel may have dropped the pages and cleared the error, and a second fsync would
succeed. `failed` is therefore final, and a sync that ends well after it covers nothing.

Order of effects: write, sync, cover, return to the caller. A crash before the cover loses only unacknowledged records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from local import names
from local.errors import DiskFailed, InvalidRequest
from local.lock_ranks import LockRank, ranked_lock
from local.log import checkpoints
from local.log.leader_epochs import LeaderEpochs
from local.log.log_reader import LargestTimes, LogView
from local.log.producer_state import ProducerFiles, ProducerState
from local.log.read_only_open import ReadOnlySource
from local.names import TopicPartition
from local.segment.segment import Segment
from local.settings import LogSettings
from local.storage import SegmentFiles, Storage, join


class State(Enum):
    """The cleaning state of one log. *paused* counts its pauses."""

    NONE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A state with its number of pauses, 0 except for *paused*."""

    state: State = State.NONE
    pauses: int = 0

    def __str__(self) -> str:
        return f"{self.state.value}({self.pauses})" if self.pauses else self.state.value


class CleaningGate:
    """The cleaning state of one log. Thread safe; hold no lock of the log while pausing.

    | state | start | end | pause | resume |
    |---|---|---|---|---|
    | none | in progress | | paused(1) | |
    | in progress | | none | aborted | |
    | aborted | | paused(1) | | |
    | paused(n) | | | paused(n + 1) | paused(n - 1), or none |

    A blank is a mistake of the caller. A log never has two passes at once. A change of
    something that the cleaner relies on **pauses** the log first: a truncation, a move to another disk, another cleanup
    policy, a deletion.

    1. The pause turns a pass under way into *aborted*.
    2. The cleaner checks for this between two steps and ends the pass.
    3. The log becomes *paused*, and the pausing thread continues.

    Pauses nest: the cleaner may start again after the last resume. A second pause of an *aborted* log waits for
    *paused* and adds one. The cleaner checkpoint is written only if the pass ends from *in progress*. Groups that an
    aborted pass has swapped in are sound and are cleaned again. Source: kafka `LogCleanerManager`, `LogCleaningState`.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._changed = threading.Condition()
        self._now = Cleaning()
        self._cleaner: int | None = None

    @property
    def now(self) -> Cleaning:
        return self._now

    def try_start(self) -> bool:
        """Start a pass; False during another pass or a pause. The caller must call `end`."""
        with self._changed:
            if self._now.state is not State.NONE:
                return False
            self._cleaner = threading.get_ident()
            self._become(State.IN_PROGRESS)
            return True

    @property
    def is_aborted(self) -> bool:
        """Whether the pass under way must end."""
        return self._now.state is State.ABORTED

    def end(self, undo: Callable[[], None] = lambda: None) -> bool:
        """End the pass; return False if it was aborted. Then `undo` runs before any pausing thread continues."""
        with self._changed:
            assert self._cleaner is not None, "the caller has started a pass"
            is_aborted, self._cleaner = self.is_aborted, None
            try:
                if is_aborted:
                    undo()
            finally:
                self._become(*((State.PAUSED, 1) if is_aborted else (State.NONE, 0)))
            return not is_aborted

    def abort_and_pause(self) -> None:
        """Pause until `resume`; wait for the end of a pass. Raises InvalidRequest in the cleaning thread."""
        with self._changed:
            if self._cleaner == threading.get_ident():
                raise InvalidRequest("the cleaner cannot pause its own cleaning", partition=self._partition)
            self._changed.wait_for(lambda: self._now.state is not State.ABORTED)
            if self._now.state is State.IN_PROGRESS:
                self._become(State.ABORTED)
                self._changed.wait_for(lambda: self._now.state is State.PAUSED)
            else:
                self._become(State.PAUSED, self._now.pauses + 1)

    def resume(self) -> None:
        """End one pause. Raises InvalidRequest for a log that is not paused."""
        with self._changed:
            if self._now.state is not State.PAUSED:
                attempt = "cannot change the cleaning state, the transition is not allowed"
                raise InvalidRequest(attempt, state=self._now, event="resume")
            pauses = self._now.pauses - 1
            self._become(State.PAUSED if pauses else State.NONE, pauses)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the log inside the context."""
        self.abort_and_pause()
        try:
            yield
        finally:
            self.resume()

    def _become(self, state: State, pauses: int = 0) -> None:
        self._now = Cleaning(state, pauses)
        self._changed.notify_all()


class GroupCommit:
    """The group commit. Thread safe. One thread at a time calls `sync`, without this class's lock.

    `sync` makes at least all bytes durable that were written before its call, and returns the position it reached.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._changed = threading.Condition()
        self._covered = 0
        self._is_syncing = False
        self._failure: BaseException | None = None

    def wait_for(self, position: int) -> None:
        """Return once all up to `position` is durable. The caller must not hold a lock that `sync` needs.

        Raises DiskFailed after a failure; the leader raises the error of `sync` itself.
        """
        while True:
            leads = False
            try:
                with self._changed:
                    while self._is_syncing and self._covered < position and self._failure is None:
                        self._changed.wait()
                    if self._covered >= position:
                        return
                    if self._failure is not None:
                        raise DiskFailed("an fsync failed; reopen the log", cause=self._failure)
                    leads = self._is_syncing = True
                reached = self._sync()
            except BaseException as error:
                if leads:
                    self._end(failure=error)
                raise
            self._end(reached=reached)

    def cover(self, position: int) -> None:
        """Record that everything up to `position` became durable without this class's `sync`."""
        with self._changed:
            if self._failure is None:
                self._covered = max(self._covered, position)
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Stop covering positions for good. The first error stays."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _end(self, *, reached: int = 0, failure: BaseException | None = None) -> None:
        with self._changed:
            self._is_syncing = False
            if failure is not None:
                self.fail(failure)
            self.cover(reached)
            self._changed.notify_all()


class LogState:
    """The state of one log. `lock` guards every change; readers take the immutable `view` without it."""

    def __init__(self, storage: Storage, directory: str, partition: TopicPartition, settings: LogSettings) -> None:
        self.storage, self.directory = storage, directory  # a move changes both
        self.partition, self.settings = partition, settings
        self.lock = ranked_lock(LockRank.LOG)
        self.view = LogView((), (), 0, 0)
        self.epochs = LeaderEpochs()
        self.producer_state = ProducerState()  # after the last batch; a read-only open reads it at the first use
        self.snapshots = ProducerFiles(storage, directory)
        self.source: ReadOnlySource | None = None
        self.cleaning = CleaningGate(partition)
        self.cleaner_offset: int | None = None
        self.cleaner_reach = 0  # below it the cleaner may have removed records for newer ones
        self.recovery_point = 0
        self.written_bytes = 0  # since the open: the position for the group commit
        self.cuts = 0  # how often the log end fell
        self.leader_epoch = 0
        self.unflushed_since_ms: int | None = None
        self.commit = GroupCommit(self._sync_written)
        self.has_failed = self.is_closed = False
        # Called after the offsets trusted at start-up were lowered.
        self.write_checkpoints: Callable[[], None] = lambda: None
        # Called with (offset, time) before the log end is lowered to an offset: files that describe records from there
        # on must not outlive the records (`tiered.read.view_places`).
        self.before_cut: Callable[[int, int], None] = lambda offset, now_ms: None
        # Called under the lock after each change of the view: it must not wait, nor take a lock of the log.
        self.on_publish: Callable[[], None] = lambda: None

    def set_cleaner_offset(self, offset: int | None) -> None:
        """Set the end of the cleaned section; None: the log was never cleaned. A checkpoint makes it durable."""
        self.cleaner_offset = offset

    def set_cleaner_reach(self, offset: int) -> None:
        self.cleaner_reach = offset

    def use_checkpoints(self, write: Callable[[], None]) -> None:
        """Set the function that writes the checkpoints of the log's directory."""
        self.write_checkpoints = write

    def before_each_cut(self, act: Callable[[int, int], None]) -> None:
        self.before_cut = act

    def change_settings(self, settings: LogSettings) -> None:
        self.settings = settings

    def path(self, name: str) -> str:
        return join(self.directory, name)

    def files(self, base_offset: int) -> SegmentFiles:
        return SegmentFiles(self.storage, self.directory, base_offset)

    def publish(
        self, segments: list[Segment] | None, *, log_start_offset: int | None = None, next_offset: int | None = None
    ) -> None:
        """Replace the view; None leaves the segments or an offset as it is."""
        old = self.view
        selected = old.segments if segments is None else tuple(segments)
        bases = old.bases if segments is None else _bases(old, selected)
        start = old.log_start_offset if log_start_offset is None else log_start_offset
        self.cuts += next_offset is not None and next_offset < old.next_offset
        end = old.next_offset if next_offset is None else next_offset
        unstable, tail = self.producer_state.first_unstable_offset, selected[-1]
        times = old.times if segments is None else LargestTimes(selected[:-1])
        self.view = LogView(selected, bases, start, end, times, unstable, tail.size_bytes, tail.is_active)
        self.on_publish()

    # -- leader epochs -------------------------------------------------------------------------------------------

    def save_epochs(self, epochs: LeaderEpochs) -> None:
        # In memory only after the write: if the write fails, the next append tries again.
        checkpoints.write_epochs(self.storage, self.path(names.LEADER_EPOCHS), epochs.entries)
        self.epochs = epochs

    def read_epochs(self) -> LeaderEpochs:
        return LeaderEpochs(tuple(checkpoints.read_epochs(self.storage, self.path(names.LEADER_EPOCHS))))

    def correct_epochs(self, written: LeaderEpochs, epochs: LeaderEpochs, *, was_clean: bool) -> None:
        """At start-up, set the epochs that fit the log's ends.

        They are written if the file differs, and after an unclean shutdown if it exists: its name may not be synced.
        After a clean shutdown an unchanged file is not written: a full disk does not prevent the open.
        """
        fitting = epochs.truncate_from_start(self.view.first_known_offset)
        if fitting != written or not (was_clean or not self.storage.exists(self.path(names.LEADER_EPOCHS))):
            self.save_epochs(fitting)
        else:
            self.epochs = fitting

    def forget_old_epochs(self) -> None:
        """Start the epochs where the records start, in memory: extra epochs in the file do no harm."""
        self.epochs = self.epochs.truncate_from_start(self.view.first_known_offset)

    # -- durability and failure ----------------------------------------------------------------------------------

    def all_durable(self) -> None:
        """Record, under the lock, that all written bytes are durable; waiting threads return."""
        self.recovery_point = self.view.next_offset
        self.unflushed_since_ms = None
        self.commit.cover(self.written_bytes)

    @contextmanager
    def failing(self, *, unless_full: bool = False) -> Iterator[None]:
        """Make the log unusable after any error inside the context. `unless_full`: a lack of room is no failure."""
        try:
            yield
        except BaseException as error:
            if not (unless_full and isinstance(error, DiskFailed) and error.lacks_room):
                self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        self.has_failed = True
        self.commit.fail(error)

    def check_usable(self) -> None:
        if self.has_failed:
            raise DiskFailed("the disk of the log failed; reopen the log to recover it", partition=self.partition)

    def check_may_change(self) -> None:
        self.check_usable()
        if self.is_closed:
            raise DiskFailed("cannot change the log, it was closed; reopen it", partition=self.partition)

    def _sync_written(self) -> int:
        """Sync for the group commit, without the lock. Return the position up to which everything is durable.

        A truncation during the sync (`cuts`) may be followed by other, unsynced records: the recovery point then stays.
        """
        with self.lock:
            self.check_usable()
            active, written = self.view.segments[-1], self.written_bytes
            next_offset, cuts = self.view.next_offset, self.cuts
            self.unflushed_since_ms = None
        with self.failing():
            active.sync(names.LOG)
        with self.lock:
            self.check_usable()
            if cuts == self.cuts:
                self.recovery_point = max(self.recovery_point, next_offset)
        return written


def _bases(old: LogView, segments: tuple[Segment, ...]) -> tuple[int, ...]:
    if segments and segments[:-1] == old.segments:
        return (*old.bases, segments[-1].base_offset)
    return tuple(segment.base_offset for segment in segments)
