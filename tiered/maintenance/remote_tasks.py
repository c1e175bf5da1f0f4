"""Tasks that wait for the store, one per partition, in two thread pools.

The pools are Kafka's copier and expiration pools.

A non-waiting maintenance run (`tiered.maintenance.maintenance`) leaves every store request to a task. There are two
pools, so that a store that hangs on uploads does not block deletions, and the other way round:

| threads | work of their tasks |
|---|---|
| copiers | all: copies, replaced entries, views, then the work of the expirers |
| expirers | acquire partitions; log start, expiry, deletions, old manifests; remains of deleted topics |

A task decides on its own snapshot, as maintenance does. A copier does one commit's worth of copies. Then it does the
rest, even after a failed copy, and drops the local segments that the copies made droppable (I2: `policies` decide,
`tiered.maintenance.apply` checks again). A backlog continues in the next turn (`tiered.maintenance.task_pool` has the
threads, the states and the order). A task that finds another task at its partition gets its turn after it. The store
limits the parallel uploads and their rate for all tasks together (`remote.store.s3_store`,
`remote.store.middleware.throttled_store`).

A task holds the partition's `tier_lock` from start to end. It holds `lock` only for its effects on the disk, never
during an upload. Its segments are marked (`Uploads.copying`): they are not dropped. The log is not cleaned during the
copy, nor while a commit is in doubt.

| concurrent event, or a crash at any moment | effect | remains |
|---|---|---|
| maintenance of the same partition | flushes, rolls, drops committed and unmarked segments; cleans later | |
| a second task of it | impossible: `TaskPool` has one turn for a key, `tier_lock` for all others | |
| delete-records past the copy | the commit unlinks its objects (`add_segments`) | |
| the topic is deleted | the task stops; objects in no manifest are deleted | orphans, if the removal was faster |
| another machine takes the partition over | the commit is Fenced, the partition stops | orphans of a passed epoch |
| its disk goes offline | complete uploads are committed, nothing is dropped | |
| copying is disabled, settings change | this commit's worth is committed; old settings expire nothing | |
| the tier is disabled | by a task too: never parallel to a copy | |
| it moves to another disk | reads continue, drops wait for the move | |
| truncation | never with the writer role: only an acquisition starts a log over | |
| the store hangs | its watchdog ends the call; hanging uploads block the copiers, not the expirers | |
| the manager closes | the running upload is committed, then no more; cut at the deadline | orphans, once cut |
| the process dies | | objects that no manifest names: orphans |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from local.errors import LogError
from local.names import TopicPartition
from policies.decisions import (
    AdvanceCleanedOffset,
    CleanLog,
    CollectManifests,
    CopySegment,
    Decision,
    DeletePage,
    DeletePending,
    DropLocal,
    ReplaceRemote,
    RollActive,
)
from policies.plan import plan_partition
from policies.remote_retention import page_to_know
from policies.snapshot import PartitionSnapshot
from policies.tiering import completes_commit
from tiered.maintenance.apply import SENDING, apply_in_task
from tiered.maintenance.task_pool import Load, State, TaskPool
from tiered.maintenance.upload_and_commit import Clock
from tiered.partition.partition import Partition
from tiered.partition.partition_table import PartitionTable
from tiered.topics.topic_deletion import TopicDeletion

_log = logging.getLogger(__name__)

ON_DISK = (RollActive, CleanLog, DropLocal)
_ON_UNLINKED = (
    DeletePending,
    DeletePage,
    CollectManifests,
)  # long unlinked: no other decision of a plan has to come first
_Key = TopicPartition | None  # None: the remains of deleted topics


class RemoteTasks:
    """The two task pools of a manager. Thread safe."""

    def __init__(self, table: PartitionTable, deletion: TopicDeletion, *, clock: Clock = time.monotonic) -> None:
        copiers, expirers = table.opener.config.tier_threads
        self._table = table
        self._directories = table.directories
        self._opener = table.opener
        self._deletion = deletion
        self._clock = clock
        self._now_ms = 0
        self._failed: set[TopicPartition] = set()
        # The keys whose copier or expirer may have found `tier_lock` taken. A key is added before the attempt, removed
        # after the lock was acquired, and checked when the lock is released. So no key is missed.
        self._wants_copier: set[TopicPartition] = set()
        self._wants_expirer: set[TopicPartition] = set()
        self.copier_pool: TaskPool[TopicPartition] = TaskPool(copiers, self._copy, clock=clock)
        self.expirer_pool: TaskPool[_Key] = TaskPool(expirers, self._expire, name="remote-log-expiration", clock=clock)

    def submit(self, name: TopicPartition, due: Due) -> None:
        """Queue a partition in the pools that do its due work; a queued key is not queued twice."""
        if due.copies:
            self.copier_pool.submit(name)
        if due.rest:
            self.expirer_pool.submit(name)

    def submit_deletions(self) -> None:
        self.expirer_pool.submit(None)

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until no thread is working; False if the timeout ends first."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self.states:
            for pool in (self.expirer_pool, self.copier_pool):  # an expirer may queue a copier
                left_s = None if until is None else max(0.0, until - time.monotonic())
                if not pool.wait_idle(left_s):
                    return False
        return True

    @property
    def states(self) -> dict[_Key, State]:
        """The state in either pool of every key that is not idle."""
        return {**self.expirer_pool.states, **dict[_Key, State](self.copier_pool.states.items())}

    @property
    def loads(self) -> dict[str, Load]:
        """The load of the two pools."""
        return {"copier": self.copier_pool.load, "expirer": self.expirer_pool.load}

    def has_failed(self, name: TopicPartition) -> bool:
        """Whether the last task of a partition failed. Success on its disk does not clear this."""
        return name in self._failed

    def has_nothing_due(self, name: TopicPartition) -> None:
        """Clear the problem of the last task once no task is due."""
        if name in self._failed:
            self._forget(name)

    def pass_time(self, now_ms: int) -> None:
        """Set the time of the newest maintenance run, which later slices use."""
        self._now_ms = now_ms

    def stop(self, deadline_s: float) -> bool:
        """Start nothing more and wait at most `deadline_s` for running tasks; whether all have ended."""
        for pool in (self.copier_pool, self.expirer_pool):
            pool.stop(0.0)
        return self.wait_idle(deadline_s)

    def _copy(self, name: TopicPartition) -> bool:
        try:
            return self._work(name, self._wants_copier, next_copier_turn)
        finally:
            if name in self._wants_expirer:
                self.expirer_pool.submit(name)

    def _expire(self, key: _Key) -> bool:
        if key is None:
            return self._deletion.step(self._now_ms)
        try:
            return self._work(key, self._wants_expirer, next_expirer_turn)
        finally:
            if key in self._wants_copier:
                self.copier_pool.submit(key)

    def _work(self, key: TopicPartition, wants: set[TopicPartition], choose: ChooseTurn) -> bool:
        """Run one slice; whether there is more."""
        wants.add(key)
        try:
            held = self._table.find(key)
        except LogError:
            self._failed.discard(key)
            wants.discard(key)
            return False  # deleted, or its disk went offline, since it was queued
        if not held.tier_lock.acquire(blocking=False):
            return False  # another task or a plan has it; that task, or the next maintenance, queues it again
        wants.discard(key)
        try:
            return self._run_turn(held, choose)
        except LogError as error:
            self._note(held, error)
            return False
        except Exception as error:
            # A defect of this program. A caller of maintenance would get it; a task has no caller, so it becomes a
            # problem.
            self._note(held, LogError("a task of the partition failed", partition=key, cause=repr(error)))
            raise
        finally:
            held.tier_lock.release()

    def _note(self, held: Partition, error: LogError) -> None:
        if not held.is_deleted and self._directories.is_online(held.name):
            self._failed.add(held.name)
            self._table.note(held.name, error)

    def _forget(self, name: TopicPartition) -> None:
        self._failed.discard(name)
        self._table.forget(name)

    def _run_turn(self, held: Partition, choose: ChooseTurn) -> bool:
        now_ms = self._now_ms
        if self._opener.is_waiting(held) and self._table.acquire([held], now_ms):
            self._failed.add(held.name)
            return False
        if not held.is_writer:
            return False
        self._opener.pauses.refresh()
        self._opener.check_store(now_ms)
        turns: list[tuple[TurnPlan, Sequence[Decision]]] = []

        def decide(snapshot: PartitionSnapshot) -> Sequence[Decision]:
            planned = plan_partition(snapshot)
            turns.append((choose(planned), planned))
            return turns[-1][0].decisions

        applied = apply_in_task(
            held,
            decide,
            where=lambda: self._directories.of(held.name),
            store=self._opener.store,
            now_ms=now_ms,
            should_stop=lambda: self._must_stop(held),
            clock=self._clock,
        )
        if applied is None:
            return False
        held.check_not_fenced()
        chosen, planned = turns[-1]
        if chosen.leaves_uploads:
            self._wants_copier.add(held.name)  # a copier reports its own problem
        elif chosen.decisions or not any(isinstance(each, CleanLog) for each in planned):
            # Also if nothing was left to do: the cause has passed. A log to be cleaned copies later.
            self._forget(held.name)
        return chosen.has_more and bool(applied.done)

    def _must_stop(self, held: Partition) -> bool:
        is_online = self._directories.is_online(held.name)
        return self.copier_pool.is_stopping or held.is_deleted or not is_online


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """The decisions of one turn. `has_more`: copies are left for the next one.

    `leaves_uploads`: all are a copier's.
    """

    decisions: tuple[Decision, ...]
    has_more: bool = False
    leaves_uploads: bool = False


ChooseTurn = Callable[[Sequence[Decision]], TurnPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The tasks that a partition needs: for uploads, and for other store requests."""

    copies: bool
    rest: bool


def on_disk(planned: Sequence[Decision]) -> list[Decision]:
    """The decisions of a tiered partition that send no request and wait for none.

    Segments that replace entries stay until the replacement; decisions after a raised log start wait for it.
    """
    if any(isinstance(each, ReplaceRemote | AdvanceCleanedOffset) for each in planned):
        return [each for each in planned if isinstance(each, RollActive | CleanLog)]
    found: list[Decision] = []
    for each in planned:
        if not isinstance(each, (*ON_DISK, CopySegment)):
            break
        if isinstance(each, ON_DISK):
            found.append(each)
    return found


def due_tasks(snapshot: PartitionSnapshot, planned: Sequence[Decision], *, is_waiting: bool) -> Due:
    """The pools for a partition with this plan.

    A partition that waits for its acquisition copies afterwards. If its older entries are unknown, or it is copying,
    more may be due than is planned.
    """
    rest = is_waiting or page_to_know(snapshot) is not None or bool(decisions_without_uploads(planned))
    return Due(copies=(has_upload(planned) or bool(snapshot.copying)) and not is_waiting, rest=rest)


def has_upload(planned: Sequence[Decision]) -> bool:
    """Whether the plan has an upload."""
    return any(isinstance(each, SENDING) for each in planned)


def decisions_without_uploads(planned: Sequence[Decision]) -> list[Decision]:
    """The decisions that send requests and wait for no upload.

    If entries are to be replaced, or a view is to merge expiring records, only long-unlinked objects are left.
    """
    if any(isinstance(each, SENDING) and not isinstance(each, CopySegment) for each in planned):
        return [each for each in planned if isinstance(each, _ON_UNLINKED)]
    return [each for each in planned if not isinstance(each, (*ON_DISK, *SENDING))]


def next_expirer_turn(planned: Sequence[Decision]) -> TurnPlan:
    """The part of a plan for one task that uploads nothing."""
    return TurnPlan(decisions=tuple(decisions_without_uploads(planned)), leaves_uploads=has_upload(planned))


def next_copier_turn(planned: Sequence[Decision]) -> TurnPlan:
    """The part of a plan for one task: without rolls and cleanings, and one commit's worth of copies.

    Indivisible copies are one commit, however many they are (`policies.tiering`).
    """
    taken: list[Decision] = []
    segments = size_bytes = left = 0
    for each in planned:
        if isinstance(each, RollActive | CleanLog):
            continue
        if isinstance(each, CopySegment):
            if not each.is_indivisible and completes_commit(segments, size_bytes):
                left += 1
                continue
            segments, size_bytes = segments + 1, size_bytes + each.size_bytes
        taken.append(each)
    return TurnPlan(decisions=tuple(taken), has_more=left > 0)
