"""Tasks that wait for the store, one per partition, in two thread pools.

Two pools, as in Kafka, so that a store that hangs on uploads does not block deletions, and the other way round:

| threads | work of their tasks |
|---|---|
| copiers | all: copies, replaced entries, views, then the work of the expirers |
| expirers | acquire partitions; log start, expiry, deletions, old manifests; remains of deleted topics |

A task decides on its own snapshot, as maintenance does. A copier does one commit's worth of copies, then the rest, even
after a failed copy. Last it drops the local segments that the copies made droppable (I2: `policies` decide,
`tiered.maintenance.apply` checks again). A backlog continues in the next turn (`TaskPool`). The store limits the
parallel uploads and their rate for all tasks together (`remote.store.s3_store`,
`remote.store.middleware.store_wrapper`).

A task holds the partition's `tier_lock` from start to end, and `lock` only for its effects on the disk, never during an
upload. Its segments are marked (`Uploads.copying`): they are not dropped. The log is not cleaned during the copy, nor
while a commit is in doubt.

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
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from local.errors import LogError
from local.names import TopicPartition
from policies.decisions import AdvanceCleanedOffset, CleanLog, CopySegment, Decision, ReplaceRemote, RollActive
from policies.plan import plan_partition
from policies.retention import page_to_know
from policies.snapshot import PartitionSnapshot
from policies.tiering import completes_commit
from tiered.maintenance.apply import ON_DISK, ON_UNLINKED, SENDING, apply_in_task
from tiered.maintenance.upload_and_commit import Application
from tiered.partition.partition import Partition
from tiered.partition.partition_table import PartitionTable
from tiered.topics.topic_admin import TopicDeletion

_log = logging.getLogger(__name__)

_Key = TopicPartition | None  # None: the remains of deleted topics
K = TypeVar("K", bound=Hashable)


class RemoteTasks:
    """The two task pools of a manager. Thread safe."""

    def __init__(self, table: PartitionTable, deletion: TopicDeletion) -> None:
        pools = (f"remote.log.manager.{kind}.thread.pool.size" for kind in ("copier", "expiration"))
        copiers, expirers = map(table.opener.config.int_of, pools)
        self._table, self._directories, self._opener = table, table.directories, table.opener
        self._deletion = deletion
        self._now_ms = 0
        self._failed: set[TopicPartition] = set()
        # Keys whose task may have found `tier_lock` taken. A key is added before the attempt, removed after the lock
        # was acquired, and checked when the lock is released. So no key is missed.
        self._wants_copier: set[TopicPartition] = set()
        self._wants_expirer: set[TopicPartition] = set()
        self.copier_pool: TaskPool[TopicPartition] = TaskPool(copiers, self._copy)
        self.expirer_pool: TaskPool[_Key] = TaskPool(expirers, self._expire, name="remote-log-expiration")

    def submit(self, name: TopicPartition, due: Due) -> None:
        if due.copies:
            self.copier_pool.submit(name)
        if due.rest:
            self.expirer_pool.submit(name)

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
        return {**self.expirer_pool.states, **dict[_Key, State](self.copier_pool.states.items())}

    @property
    def loads(self) -> dict[str, Load]:
        return {"copier": self.copier_pool.load, "expirer": self.expirer_pool.load}

    def has_failed(self, name: TopicPartition) -> bool:
        """Whether the last task of a partition failed. Successful maintenance of its disk does not clear this."""
        return name in self._failed

    def has_nothing_due(self, name: TopicPartition) -> None:
        """Clear the problem of the partition's last task; called when no task is due."""
        if name in self._failed:
            self._forget(name)

    def pass_time(self, now_ms: int) -> None:
        """Set the time of the newest maintenance run; tasks that start later use it."""
        self._now_ms = now_ms

    def stop(self, deadline_s: float) -> bool:
        """Start nothing more and wait at most `deadline_s` for running tasks; whether all have ended."""
        self.copier_pool.stop()
        self.expirer_pool.stop()
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
            # A defect of this program. A task has no caller that gets the error, so it becomes a problem.
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

        state = Application(
            partition=held,
            now_ms=now_ms,
            where=lambda: self._directories.of(held.name),
            should_stop=lambda: (
                self.copier_pool.is_stopping or held.is_deleted or not self._directories.is_online(held.name)
            ),
            clock=time.monotonic,
        )
        applied = apply_in_task(state, decide)
        if applied is None:
            return False
        held.check_not_fenced()
        turn, planned = turns[-1]
        if turn.leaves_uploads:
            self._wants_copier.add(held.name)  # a copier reports its own problem
        elif turn.decisions or not any(isinstance(each, CleanLog) for each in planned):
            # Also if no decision was left: the cause has passed. After a planned cleaning the copy is tried again.
            self._forget(held.name)
        return turn.has_more and bool(applied.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """The decisions of one turn. `has_more`: copies are left. `leaves_uploads`: a copier has to do the uploads."""

    decisions: tuple[Decision, ...]
    has_more: bool = False
    leaves_uploads: bool = False


ChooseTurn = Callable[[Sequence[Decision]], TurnPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    copies: bool
    rest: bool


def on_disk(planned: Sequence[Decision]) -> list[Decision]:
    """The decisions of a tiered partition that send no request and wait for none."""
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
    """The pools for a partition with this plan; unknown older entries and running copies count as due."""
    rest = is_waiting or page_to_know(snapshot) is not None or bool(decisions_without_uploads(planned))
    return Due(copies=(has_upload(planned) or bool(snapshot.copying)) and not is_waiting, rest=rest)


def has_upload(planned: Sequence[Decision]) -> bool:
    return any(isinstance(each, SENDING) for each in planned)


def decisions_without_uploads(planned: Sequence[Decision]) -> list[Decision]:
    """The decisions that send requests and wait for no upload."""
    if any(isinstance(each, SENDING) and not isinstance(each, CopySegment) for each in planned):
        return [each for each in planned if isinstance(each, ON_UNLINKED)]
    return [each for each in planned if not isinstance(each, (*ON_DISK, *SENDING))]


def next_expirer_turn(planned: Sequence[Decision]) -> TurnPlan:
    return TurnPlan(decisions=tuple(decisions_without_uploads(planned)), leaves_uploads=has_upload(planned))


def next_copier_turn(planned: Sequence[Decision]) -> TurnPlan:
    """The part of a plan for one task: without rolls and cleanings, and one commit's worth of copies."""
    taken: list[Decision] = []
    segments = size_bytes = remaining = 0
    for each in planned:
        if isinstance(each, RollActive | CleanLog):
            continue
        if isinstance(each, CopySegment):
            if not each.is_indivisible and completes_commit(segments, size_bytes):
                remaining += 1
                continue
            segments, size_bytes = segments + 1, size_bytes + each.size_bytes
        taken.append(each)
    return TurnPlan(decisions=tuple(taken), has_more=remaining > 0)


class State(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    RERUN = "again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Keys waiting and running, and the seconds that the oldest of each has waited or run."""

    threads: int
    queued: int
    running: int
    oldest_wait_s: float
    oldest_turn_s: float

    @property
    def idle_share(self) -> float:
        """The share of unused turns, 0..1."""
        return max(0.0, 1 - self.running / self.threads)


class TaskPool(Generic[K]):
    """Bounded threads for work that waits for the store: one task per partition at a time. Thread safe.

    A task (``work(key)``) does a slice of the due work of its key and returns whether there is more. A key with more
    work is queued again at the end, so a long backlog does not starve other keys.

    | state of a key | submitted | its turn | slice over, more | slice over | stopping |
    |---|---|---|---|---|---|
    | idle | queued | | | | idle |
    | queued | queued | running | | | idle |
    | running | again | | queued | idle | running |
    | again (running, and submitted once more) | again | | queued | queued | running |

    Two tasks for one key are impossible: only *queued* gets a turn. After `stop` no turn starts; a running task sees
    its own `should_stop`, and is not waited for after a deadline. Threads are daemons, started for work and ended
    without work: a thread that hangs in the store does not block the end of the process. `work` handles its own errors;
    an escaped one ends the slice and is logged.
    """

    def __init__(
        self,
        threads: int,
        work: Callable[[K], bool],
        *,
        name: str = "remote-log-copier",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.threads, self._work, self._name, self._clock = threads, work, name, clock
        self._changed = threading.Condition()
        self._states: dict[K, State] = {}
        self._turns: dict[K, float] = {}  # start of the turn of each running key
        self._queue: deque[tuple[K, float]] = deque()  # each key and the start of its wait
        self._running = 0
        self.is_stopping = False

    @property
    def states(self) -> dict[K, State]:
        with self._changed:
            return dict(self._states)

    @property
    def load(self) -> Load:
        with self._changed:
            now_s = self._clock()
            return Load(
                threads=self.threads,
                queued=len(self._queue),
                running=len(self._turns),
                oldest_wait_s=now_s - self._queue[0][1] if self._queue else 0.0,
                oldest_turn_s=now_s - min(self._turns.values(), default=now_s),
            )

    def submit(self, key: K) -> bool:
        """Queue `key`; False if it is queued already, or the pool is stopping."""
        with self._changed:
            if self.is_stopping:
                return False
            if self._states.get(key) in (State.QUEUED, State.RERUN):
                self._hire()  # in case the last attempt got no thread
                return False
            if key in self._states:
                self._states[key] = State.RERUN
                return True
            self._enqueue(key)
            self._hire()
            return True

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._states, timeout_s)

    def stop(self) -> None:
        with self._changed:
            self.is_stopping = True
            for key, _ in self._queue:
                del self._states[key]
            self._queue.clear()
            self._changed.notify_all()

    def _hire(self) -> None:
        """Start one more thread if there is room and a key waits; the next `submit` retries a failed start."""
        if not self._queue or self._running >= self.threads:
            return
        name = f"{self._name}-{self._running + 1}"
        try:
            threading.Thread(target=self._take_turns, name=name, daemon=True).start()
        except RuntimeError as error:
            what = "cannot start a thread for waiting tasks: waiting=%d running=%d cause=%s"
            _log.warning(what, len(self._queue), self._running, error)
        else:
            self._running += 1

    def _enqueue(self, key: K) -> None:
        self._states[key] = State.QUEUED
        self._queue.append((key, self._clock()))

    def _take_turns(self) -> None:
        is_out_of_work = False
        try:
            while not (is_out_of_work := (turn := self._next_turn()) is None):
                assert turn is not None
                self._take_turn(turn[0])
        finally:
            if not is_out_of_work:
                with self._changed:
                    self._running -= 1

    def _take_turn(self, key: K) -> None:
        has_more = False
        try:
            has_more = self._work(key)
        except Exception:  # noqa: BLE001 - whatever it is, the others have their turns
            _log.exception("a task failed: key=%s", key)
        finally:
            self._end_turn(key, has_more)

    def _next_turn(self) -> tuple[K] | None:
        with self._changed:
            if not self._queue:
                self._running -= 1
                return None
            key, _ = self._queue.popleft()
            self._states[key], self._turns[key] = State.RUNNING, self._clock()
            return (key,)

    def _end_turn(self, key: K, has_more: bool) -> None:
        with self._changed:
            is_due = has_more or self._states[key] is State.RERUN
            del self._states[key], self._turns[key]
            if is_due and not self.is_stopping:
                self._enqueue(key)
            self._changed.notify_all()
