"""One maintenance run: due work on the disks, a plan, its application, the checkpoints.

| | waiting run | non-waiting run |
|---|---|---|
| for | `tiered run --once`, cron, tests: all is done on return | the daemon |
| disks: flush, expire producers, delete removed files; checkpoints | first; last | first; last |
| rolls, cleanings, drops, topics on one tier | in the plan's order | the same, separate from the rest |
| store requests | in the plan's order, in the caller's thread | in tasks (`maintenance.remote_tasks`) |

A non-waiting run never waits for the store, nor for a partition that another thread changes; the next run handles that
partition. A waiting run waits for tasks too. Cleanings run in parallel to each other and to other work, unless there is
one thread or one log to clean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from local.errors import DiskFailed, Fenced, LogError, Unavailable
from local.logdirs.log_moves import Progress
from local.names import TopicPartition
from policies.decisions import CleanLog, Decision, DropLocal, Plan
from policies.plan import plan as plan_snapshots
from policies.plan import plan_partition
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from tiered.maintenance.apply import Decide, apply_on_disk, apply_partition
from tiered.maintenance.cleaning import Cleaning, reset_misplaced
from tiered.maintenance.delete_records import DeletedRecords, delete_records
from tiered.maintenance.remote_tasks import Due, RemoteTasks, due_tasks, on_disk
from tiered.maintenance.upload_and_commit import Application, Applied, Clean
from tiered.partition.partition import Partition
from tiered.partition.partition_table import PartitionTable
from tiered.read.view_places import maintain_views
from tiered.topics.topic_admin import TopicDeletion

CHECKPOINT_INTERVAL_MS = 60_000
POLL_S = 0.5  # how often a waiting run checks `should_stop`

ApplyOne = Callable[[TopicPartition, Sequence[Decision]], Applied | None]
ApplyProgress = Callable[[TopicPartition, Decision], None]
ShouldStop = Callable[[], bool]


class Maintenance:
    """The maintenance of one manager, one run at a time."""

    def __init__(self, table: PartitionTable, deletion: TopicDeletion, cleaning: Cleaning) -> None:
        self.cleaning = cleaning
        self.tasks = RemoteTasks(table, deletion)
        self.refused: DiskFailed | None = None  # why checkpoints wait for room; each run tries again
        self._lock = table.maintenance_lock
        self._table, self._directories, self._opener = table, table.directories, table.opener
        self._deletion = deletion
        self._checkpointed_ms = 0

    def round(self, now_ms: int, *, should_stop: ShouldStop, waits: bool) -> bool:
        """One maintenance run; True if more work is due (tasks requeue their own)."""
        with self._lock:
            self._opener.pauses.refresh()
            self._check_disks(now_ms)
            self.tasks.pass_time(now_ms)
            self._note_fenced()
            work = self._work_off if waits else self._hand_out
            more = work(now_ms, should_stop)
            self._opener.keep_counts(now_ms)
            if not 0 <= now_ms - self._checkpointed_ms < CHECKPOINT_INTERVAL_MS:  # the clock may be set back
                was_refused, self.refused = self.refused, self._directories.try_checkpoints()
                if self.refused is None:
                    self._checkpointed_ms = now_ms
                    if was_refused is not None:  # the same disk may have refused its copy of the topics
                        self._table.registry.heal()
        return more

    def apply(
        self,
        plan: Plan,
        *,
        progress: ApplyProgress = lambda partition, decision: None,
        should_stop: ShouldStop,
        drops_copied: bool = False,
        rules: Mapping[TopicPartition, PartitionRules] | None = None,
        decide: Decide | None = None,
    ) -> dict[TopicPartition, Applied]:
        """Apply a plan and return the effects; `decide` as in `apply_partition`.

        Partitions whose rules differ from `rules` neither expire nor delete.
        """
        done: dict[TopicPartition, Applied] = {}
        self._opener.pauses.refresh()
        while True:
            busy: list[TopicPartition] = []
            with self._lock:
                done |= self._apply_idle(plan, busy.append, progress, should_stop, drops_copied, rules or {}, decide)
            plan = replace(plan, decisions={name: plan.decisions[name] for name in busy})
            if not busy or not self._wait_for_task(busy[0], should_stop):
                return done

    def _wait_for_task(self, name: TopicPartition, should_stop: ShouldStop) -> bool:
        held = self._find(name)
        while held is not None and not held.tier_lock.acquire(timeout=POLL_S):
            if should_stop():
                return False
        if held is not None:
            held.tier_lock.release()
        return not should_stop()

    def _apply_idle(
        self,
        plan: Plan,
        busy: Callable[[TopicPartition], None],
        progress: ApplyProgress,
        should_stop: ShouldStop,
        drops_copied: bool,
        rules: Mapping[TopicPartition, PartitionRules],
        decide: Decide | None,
    ) -> dict[TopicPartition, Applied]:
        """Apply a plan to the partitions without a running task; call `busy` with each partition that has one."""
        is_store_down = threading.Event()

        def apply_one(name: TopicPartition, decisions: Sequence[Decision]) -> Applied | None:
            must_let_go = self._letting_go(name, should_stop)
            if must_let_go():
                return None
            held = self._find(name)
            if held is None or (held.is_tiered and (is_store_down.is_set() or not held.is_writer)):
                return None
            if not held.tier_lock.acquire(blocking=False):
                busy(name)
                return None
            try:
                state = Application(
                    partition=held,
                    now_ms=plan.now_ms,
                    where=lambda: self._directories.of(name),
                    should_stop=should_stop,
                    clean=partial(self.cleaning.clean, now_ms=plan.now_ms, should_stop=must_let_go),
                    rules=rules.get(name),
                )
                tell = partial(progress, name)
                applied = apply_partition(state, decisions, decide=decide, progress=tell, drops_copied=drops_copied)
                self._table.forget(name)
            except LogError as error:
                if isinstance(error, Unavailable):
                    is_store_down.set()
                self._table.note(name, error)
                return None
            finally:
                held.tier_lock.release()
            return applied

        return apply_plan(plan, apply_one, threads=self.cleaning.settings.threads)

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, now_ms: int
    ) -> dict[TopicPartition, DeletedRecords]:
        """As `tiered.maintenance.delete_records`: delete the records below each offset (-1: all)."""
        partitions = {self._table.find(name): offset for name, offset in offsets.items()}
        return delete_records(partitions, self._directories, now_ms=now_ms, maintenance_lock=self._lock)

    def move(
        self, partition: TopicPartition, directory: str, *, now_ms: int, progress: Progress = lambda done, all_: None
    ) -> None:
        """Move a partition to another log directory during writes and reads; maintenance waits.

        Its old files are deleted ``file.delete.delay.ms`` later. Raises InvalidRequest, NotFound, and DiskFailed (no
        room, a failing disk): then the partition is in its old place, or the next start ends the move.
        """
        # A pass over this log is cancelled first, because the maintenance run around it is waited for next.
        with self._table.find(partition).log.cleaning.paused(), self._lock:
            held = self._table.find(partition)
            with held.lock:
                unconfirmed_from = held.log.notes.unconfirmed_from
                self._directories.move(
                    partition, directory, now_ms=now_ms, delay_ms=held.rules.file_delete_delay_ms, progress=progress
                )
                if unconfirmed_from is not None:
                    held.log.notes.mark_unconfirmed(unconfirmed_from)
            self._directories.remove_deleted(now_ms)

    def drop_early(self, plan: Plan) -> dict[TopicPartition, Applied]:
        """Apply a plan of drops to the segments still present and return the effects. Never waits for tasks."""
        with self._lock:
            done = {
                name: self._on_disk(name, partial(_still_there, drops), plan.now_ms)
                for name, drops in plan.decisions.items()
            }
        return {name: applied for name, applied in done.items() if applied is not None}

    def _check_disks(self, now_ms: int) -> None:
        for held in self._table.all():
            try:
                held.log.flush_if_due(now_ms)
                held.log.expire_producers(now_ms)
                held.log.remove_deleted(now_ms)
                maintain_views(held, now_ms)
                reset_misplaced(held, self._directories.of(held.name))
            except LogError as error:
                self._table.note(held.name, error)
        self._directories.remove_deleted(now_ms)

    def _note_fenced(self) -> None:
        """Stop the partitions for which a reader of this process saw the manifest of a newer writer."""
        for held in self._table.all():
            try:
                held.check_not_fenced()
            except Fenced as error:
                self._table.note(held.name, error)

    def _work_off(self, now_ms: int, should_stop: ShouldStop) -> bool:
        while not self.tasks.wait_idle(POLL_S) and not should_stop():
            pass  # a running task would invalidate the plan
        for held in self._table.all():
            if should_stop() or any(isinstance(error, Unavailable) for error in self._table.acquire([held], now_ms)):
                break
        self._opener.check_store(now_ms)
        rules = {held.name: held.rules for held in self._table.all()}
        snapshots = self._table.snapshots(now_ms, self._table.known(), uncleanable=self.cleaning.waiting(now_ms))
        planned = self.cleaning.take_turns(plan_snapshots(snapshots, now_ms), partial(self._snapshots, now_ms))
        applied = self.apply(planned, should_stop=should_stop, drops_copied=True, rules=rules)
        return self._deletion.step(now_ms) or any(result.done for result in applied.values())

    def _hand_out(self, now_ms: int, should_stop: ShouldStop) -> bool:
        due: list[tuple[TopicPartition, Due]] = []
        decisions: dict[TopicPartition, list[Decision]] = {}
        for snapshot in self._snapshots(now_ms):
            name = snapshot.partition
            held, planned = self._find(name), plan_partition(snapshot)
            if held is None:
                continue
            is_waiting = self._opener.is_waiting(held)
            wanted = due_tasks(snapshot, planned, is_waiting=is_waiting)
            if snapshot.is_tiered and (is_waiting or (held.is_writer and (wanted.copies or wanted.rest))):
                due.append((name, wanted))
            elif not planned:  # a copy may become due only after a planned cleaning
                self.tasks.has_nothing_due(name)
            mine = on_disk(planned) if snapshot.is_tiered else planned
            if mine and (held.is_writer or not snapshot.is_tiered):
                decisions[name] = list(mine)
        plan = self.cleaning.take_turns(Plan(now_ms=now_ms, decisions=decisions), partial(self._snapshots, now_ms))
        with self._lock:
            apply_one = partial(self._apply_on_disk, now_ms, should_stop)
            applied = apply_plan(plan, apply_one, threads=self.cleaning.settings.threads)
        if not should_stop():
            for name, wanted in due:
                self.tasks.submit(name, wanted)
            if not self._deletion.is_done:
                self.tasks.expirer_pool.submit(None)
        return any(result.done for result in applied.values())

    def _snapshots(self, now_ms: int) -> list[PartitionSnapshot]:
        uncleanable = self.cleaning.waiting(now_ms)
        return self._table.snapshots(now_ms, self._table.all(), may_ask=False, uncleanable=uncleanable)

    def _find(self, name: TopicPartition) -> Partition | None:
        try:
            return self._table.find(name)
        except DiskFailed as error:
            self._table.note(name, error)
            return None

    def _apply_on_disk(
        self, now_ms: int, should_stop: ShouldStop, name: TopicPartition, decisions: Sequence[Decision]
    ) -> Applied | None:
        must_let_go = self._letting_go(name, should_stop)
        if must_let_go():
            return None
        applied = self._on_disk(
            name,
            partial(_still_due, may_clean=any(isinstance(each, CleanLog) for each in decisions)),
            now_ms,
            clean=partial(self.cleaning.clean, now_ms=now_ms, should_stop=must_let_go),
            should_stop=should_stop,
        )
        if applied is not None and not self.tasks.has_failed(name):
            self._table.forget(name)
        return applied

    def _on_disk(
        self,
        name: TopicPartition,
        decide: Decide,
        now_ms: int,
        *,
        clean: Clean = lambda partition, directory, decision: None,
        should_stop: ShouldStop = lambda: False,
    ) -> Applied | None:
        try:
            state = Application(
                partition=self._table.find(name),
                now_ms=now_ms,
                where=lambda: self._directories.of(name),
                should_stop=should_stop,
                clean=clean,
            )
            return apply_on_disk(state, decide)
        except LogError as error:
            self._table.note(name, error)
            return None

    def _letting_go(self, name: TopicPartition, should_stop: ShouldStop) -> ShouldStop:
        return lambda: should_stop() or not self._directories.is_online(name)


def _still_there(drops: Sequence[Decision], snapshot: PartitionSnapshot) -> list[Decision]:
    there = {(info.base_offset, info.next_offset) for info in snapshot.closed}
    return [each for each in drops if isinstance(each, DropLocal) and (each.base_offset, each.next_offset) in there]


def _still_due(snapshot: PartitionSnapshot, *, may_clean: bool) -> list[Decision]:
    planned = plan_partition(snapshot)
    due = on_disk(planned) if snapshot.is_tiered else planned
    return [each for each in due if may_clean or not isinstance(each, CleanLog)]


def apply_plan(plan: Plan, apply_one: ApplyOne, *, threads: int) -> dict[TopicPartition, Applied]:
    cleaning = [name for name, due in plan.decisions.items() if any(isinstance(each, CleanLog) for each in due)]
    if threads == 1 or len(cleaning) < 2:
        found = {name: apply_one(name, decisions) for name, decisions in plan.decisions.items()}
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="log-cleaner") as pool:
            passes = {name: pool.submit(apply_one, name, plan.decisions[name]) for name in cleaning}
            others = (each for each in plan.decisions.items() if each[0] not in passes)
            found = {name: apply_one(name, decisions) for name, decisions in others}
            found |= {name: under_way.result() for name, under_way in passes.items()}
    return {name: applied for name, applied in found.items() if applied is not None}
