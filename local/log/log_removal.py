"""Remove or replace records of a log: drop, truncate, restart, swap in cleaned segments.

All changes happen under the log's one lock. A method that lowers the log end pauses the cleaner before it takes the
lock.

**Truncation** removes whole batches: the batch that holds the offset is removed. The log still ends at the offset, as
Kafka's does: if the last remaining batch ends below it, an empty segment is created at the offset.

| step | effect | after a crash, start-up finds |
|---|---|---|
| 1 | recovery point and cleaner offset lowered to the new end, checkpoints written | all records; it checks more |
| 2 | later segments removed, newest first, each durably | a shorter log without a hole; the rest may come back |
| 3 | the log file cut and synced | the new end; it rebuilds the indexes |
| 4 | its indexes and its transaction index cut to match, synced | as after 3 |
| 5 | if the last batch ends below the offset: a segment created there, an empty one removed | as after 3 or 4 |
| 6 | producer snapshots above the new end removed, durably | as after 3: start-up removes them too |
| 7 | the epochs that began at or above the offset removed from their checkpoint | the truncated log |

- Step 1 is first because start-up trusts all bytes below the recovery point. With a recovery point above the cut, new
  records that a power cut has torn would count as damage of durable bytes.
- Step 6 comes before the next append. A snapshot of the truncated history would otherwise look valid once new records
  reach its offset.

Source: kafka `LocalLog.truncateTo`, `LogSegment.truncateTo`, `UnifiedLog.truncateTo`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from local import names
from local.errors import Conflict, Corrupt, DiskFailed, OffsetOutOfRange
from local.index import txn_index
from local.log.leader_epochs import LeaderEpochs
from local.log.log_state import LogState
from local.log.producer_state import ProducerState
from local.segment import swap
from local.segment.segment import Segment

if TYPE_CHECKING:
    from local.format.columns import BatchTable


class _Deleted(NamedTuple):
    since_ms: int
    delay_ms: int
    path: str


class LogRemoval:
    """The removing side of one log."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._deleted: list[_Deleted] = []

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start: readers no longer see records below. Raises OffsetOutOfRange above the log end."""
        state = self._state
        with state.lock:
            state.check_may_change()
            view = state.view
            if offset > view.next_offset:
                facts = {"offset": offset, "first_offset": view.log_start_offset, "next_offset": view.next_offset}
                raise OffsetOutOfRange("cannot raise the log start offset", partition=state.partition, **facts)
            if offset > view.log_start_offset:
                state.publish(list(view.segments), log_start_offset=offset)
                state.forget_old_epochs()

    def drop_before(self, offset: int, *, now_ms: int, delay_ms: int, raises_log_start: bool) -> int:
        """Drop closed segments wholly below `offset` and return their number. Order of effects:

        1. The producer snapshot after each of these segments becomes durable. Without room the log is unchanged.
        2. The start offset and the segment list are published: no new reader uses these segments.
        3. The files of each segment are renamed to ``.deleted``, durably, then its producer snapshot; the oldest
           segment first.
        4. `delay_ms` later, `remove_deleted` deletes the files.

        A crash after any step leaves segments that the next maintenance drops. If the directory has no room for a new
        name, the file is deleted at once. After another failed rename the log is unusable until it is reopened:
        continuing would leave a hole for the next start.
        """
        state = self._state
        with state.lock:
            state.check_may_change()
            view = state.view
            dropped = view.sealed_below(offset)
            if not dropped:
                return 0
            remaining = view.segments[len(dropped) :]
            with state.failing(unless_full=True):
                for at in range(1, len(dropped) + 1):
                    state.snapshots.write_snapshot(view.bases[at], view.bases[:at])
            start = max(view.log_start_offset, remaining[0].base_offset) if raises_log_start else view.log_start_offset
            with state.failing():
                state.publish(list(remaining), log_start_offset=start)
                state.forget_old_epochs()
                for segment in dropped:
                    # Oldest first, each durable before the next: a crash leaves a shorter tail, never a hole.
                    self._mark_deleted(segment, now_ms, delay_ms)
                    state.storage.sync_directory(state.directory)
                    # Its snapshot comes later: a segment that reappears after a crash needs the state at its base.
                    self._mark_snapshot_deleted(segment.base_offset, now_ms, delay_ms)
            return len(dropped)

    def remove_deleted(self, now_ms: int) -> int:
        """Delete the ``.deleted`` files that are due; return their number. A rename in the future counts from now."""
        with self._state.lock:
            self._deleted = [each._replace(since_ms=min(each.since_ms, now_ms)) for each in self._deleted]
            due = [each for each in self._deleted if now_ms - each.since_ms >= each.delay_ms]
            for each in due:
                self._state.storage.unlink(each.path)
                self._deleted.remove(each)
            return len(due)

    def forget_deleted(self) -> None:
        """Forget the ``.deleted`` files: the directory that holds them is deleted as a whole."""
        self._deleted = []

    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Truncate the log to `offset`: remove the records from there on and their effects.

        Returns the log end, at most `offset`. Offsets below `offset` are never assigned again. If `offset` is below the
        first local record, the log start is lowered with the end. The caller must know the content of the remote tier.
        Raises DiskFailed; after step 1 of the module's table the log is then unusable.
        """
        state = self._state
        with state.cleaning.paused(), state.lock:
            state.check_may_change()
            if offset >= state.view.next_offset:
                return state.view.next_offset
            state.before_cut(offset, now_ms)
            cut = find_cut(state.view.segments, offset)
            start = state.view.log_start_offset
            if cut is None or cut.next_offset < start:
                self.restart_at(offset, state.epochs.truncate_from_end(offset), now_ms=now_ms)
                return offset
            self._certify_no_further_than(cut.next_offset)
            with state.failing():
                last = self._cut_segments(cut)
                ends = self._end_at(last, cut, offset, now_ms=now_ms)
                active = ends[-1]
                state.snapshots.remove_above(cut.next_offset)
                state.save_epochs(state.epochs.truncate_from_end(offset))
                sealed = [*state.view.sealed_below(cut.segment.base_offset), *ends[:-1]]
                bases = [each.base_offset for each in (*sealed, active)]
                state.producer_state = state.snapshots.state_at(offset, bases)
                if not active.is_active:
                    active.activate()
            # With no local record below `offset`, the next start finds the log start in the name of the segment.
            is_empty = not sealed and active.base_offset == offset and start >= cut.segment.base_offset
            state.publish([*sealed, active], next_offset=offset, log_start_offset=offset if is_empty else start)
            state.all_durable()
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

        For a log whose records below `offset` are all in the remote tier, which also knows its `producers`: sequences,
        and transactions that are open at `offset`. Order of effects:

        1. The recovery point and cleaner offset are lowered, and checkpoints written.
        2. The segments and producer snapshots are deleted.
        3. The snapshot of `producers` is written and synced, because it is the only source for them.
        4. The empty segment is created, then the epochs are written.
        5. A log start above `offset` is lowered. A crash before this leaves an empty log, which restarts at the old log
           start.

        Raises DiskFailed; from step 2 on the log is then unusable. Raises Conflict, with nothing done, if the log does
        not end at `ends_at`.
        """
        from local.log import loading

        state = self._state
        with state.cleaning.paused(), state.lock:
            state.check_may_change()
            if ends_at is not None and state.view.next_offset != ends_at:
                facts = {"partition": state.partition, "expected": ends_at, "found": state.view.next_offset}
                raise Conflict("cannot restart the log at another offset, records were appended to it", **facts)
            start = state.view.log_start_offset
            state.before_cut(offset, now_ms)
            self._certify_no_further_than(offset)
            with state.failing():
                loading.discard(state.view.segments)
                state.snapshots.remove_above(-1)
                state.producer_state = producers if producers is not None else ProducerState()
                if len(state.producer_state):
                    state.snapshots.write(offset, state.producer_state, is_durable=True)
                fresh = Segment.create(state.files(offset), created_ms=now_ms)
                state.publish([fresh], next_offset=offset, log_start_offset=min(start, offset))
                state.save_epochs(epochs)
            state.all_durable()
            if offset < start:
                state.write_checkpoints()

    def swap_in(self, old: Sequence[Segment], base_offset: int, *, now_ms: int, delay_ms: int) -> None:
        """Do steps 2 to 6 of `local.segment.swap`: replace the neighbouring closed `old` by the cleaned one.

        | event | result |
        |---|---|
        | one of `old` was dropped or truncated since it was read | Conflict; the cleaned segment is deleted |
        | the directory has no room for a name | DiskFailed; the cleaned segment is deleted, `old` stays |
        | the disk fails otherwise | DiskFailed; unusable until reopened, which finishes or undoes the swap |
        """
        state = self._state
        files = state.files(base_offset)
        with state.lock:
            state.check_may_change()
            if not set(old) <= set(state.view.segments[:-1]):
                swap.discard(files)
                facts = {"partition": state.partition, "base_offset": base_offset}
                raise Conflict(
                    "cannot swap in a cleaned segment, the segments that it replaces no longer exist", **facts
                )
            with state.failing(unless_full=True):
                swap.announce(files)
            with state.failing():
                state.storage.sync_directory(state.directory)
                for segment in old:
                    self._mark_deleted(segment, now_ms, delay_ms)
                state.storage.sync_directory(state.directory)
                swap.put_in_place(files)
                fresh = Segment.load(files, interval_bytes=state.settings.index_interval_bytes)
                segments = [segment for segment in state.view.segments if segment not in old]
                bisect.insort(segments, fresh, key=lambda segment: segment.base_offset)
                state.publish(segments)
                for segment in old:
                    if segment.base_offset != base_offset:
                        self._mark_snapshot_deleted(segment.base_offset, now_ms, delay_ms)

    # -- private -------------------------------------------------------------------------------------------------

    def _certify_no_further_than(self, offset: int) -> None:
        """Lower the checkpointed offsets to the new end, in memory and on disk; on failure restore the memory."""
        state = self._state
        before = state.recovery_point, state.cleaner_offset, state.cleaner_reach
        state.cleaner_reach = min(state.cleaner_reach, offset)
        state.recovery_point = min(state.recovery_point, offset)
        if state.cleaner_offset is not None:
            state.cleaner_offset = min(state.cleaner_offset, offset)
        if before != (state.recovery_point, state.cleaner_offset, state.cleaner_reach):
            try:
                state.write_checkpoints()
            except BaseException:
                state.recovery_point, state.cleaner_offset, state.cleaner_reach = before
                raise

    def _cut_segments(self, cut: Cut) -> Segment:
        from local.log import loading, recovery

        segment, interval_bytes = cut.segment, self._state.settings.index_interval_bytes
        loading.discard(cut.later)
        aborted = txn_index.truncate(segment.txn_index(), cut.next_offset)
        segment.retire()
        if segment.has_failed_sync:
            # A sync under way failed: the remaining bytes may be lost even if the next sync succeeds.
            raise DiskFailed("cannot truncate the log, an fsync of it failed", path=segment.path(names.LOG))
        recovery.cut_segment(segment.files, cut.position, cut.remaining, aborted, interval_bytes)
        return Segment.load(segment.files, interval_bytes=interval_bytes)

    def _end_at(self, segment: Segment, cut: Cut, offset: int, *, now_ms: int) -> list[Segment]:
        """Do step 5 of a truncation; return the remaining segment and any that begins at `offset`."""
        from local.log import loading

        if offset in (cut.next_offset, segment.base_offset):
            return [segment]
        fresh = Segment.create(self._state.files(offset), created_ms=now_ms)
        if segment.size_bytes:
            return [segment, fresh]
        loading.discard([segment])
        return [fresh]

    def _mark_deleted(self, segment: Segment, now_ms: int, delay_ms: int) -> None:
        suffixes = segment.existing_suffixes()
        segment.retire()
        for suffix in suffixes:
            self._mark(segment.path(suffix), now_ms, delay_ms)

    def _mark_snapshot_deleted(self, offset: int, now_ms: int, delay_ms: int) -> None:
        if (path := self._state.snapshots.take_out(offset)) is not None:
            self._mark(path, now_ms, delay_ms)

    def _mark(self, path: str, now_ms: int, delay_ms: int) -> None:
        """Rename a file to ``.deleted``; delete it at once if a full disk has no room for the name."""
        try:
            self._state.storage.rename(path, path + names.DELETED)
        except DiskFailed as error:
            if not error.lacks_room:
                raise
            self._state.storage.unlink(path)
        else:
            self._deleted.append(_Deleted(now_ms, delay_ms, path + names.DELETED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The cut in `segment`: its first `position` bytes remain (`remaining`); `later` segments are removed."""

    segment: Segment
    later: Sequence[Segment]
    position: int
    next_offset: int
    remaining: BatchTable


def find_cut(segments: Sequence[Segment], offset: int) -> Cut | None:
    """Return the cut before all records from `offset` on; None if no segment begins below. Raises Corrupt."""
    from local import kernels

    staying = [segment for segment in segments if segment.base_offset <= offset]
    if not staying:
        return None
    segment = staying[-1]
    with segment.files.mapped(names.LOG) as data:
        table = kernels.scan_batches(data[: segment.size_bytes], verify=False)
    rows = int((table.last_offsets < offset).sum())
    if rows == len(table) and table.problem is not None:
        raise Corrupt(f"cannot truncate the log, {table.problem}", path=segment.path(names.LOG), at=table.valid_bytes)
    return Cut(
        segment=segment,
        later=segments[len(staying) :],
        position=int(table.positions[rows]) if rows < len(table) else table.valid_bytes,
        next_offset=int(table.last_offsets[rows - 1]) + 1 if rows else segment.base_offset,
        remaining=table.select(slice(0, rows)),
    )
