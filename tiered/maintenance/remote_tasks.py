"""What waits for the store, partition by partition, in threads of its own: Kafka's copier and expiration pools.

A round (`tiered.maintenance.maintenance`) that does not wait leaves to a task whatever sends a request. There are two
kinds of threads, so that neither a store that hangs on uploads holds up deletions, nor the other way round:

| threads | what their tasks do |
|---|---|
| copiers | all: copies, replaced rows, views, and after them what the others do |
| expirers | takes partitions up; log start, expiry, deletions, old heads; what is left of deleted topics |

A task decides on a snapshot of its own, as a round would. A copier does one commit's worth of copies, then the rest,
also where they failed, and lets go of what the disk no longer needs for them (I2 as ever: `policies` say what,
`tiered.maintenance.apply` looks once more). A backlog goes on in its next turn (`tiered.maintenance.task_pool`: the
threads, the states, who is next). One that finds another at its partition has its turn when that is through. How much
goes up at once, and how fast, is bounded by the store (`remote.store.part_uploads`,
`remote.store.middleware.throttled_store`), however many tasks there are.

A task holds the partition's `tier_lock` from beginning to end; `lock` only for what it does on the disk, never while it
uploads. What it copies is marked (`Partition.copying`): nobody drops it, and nobody cleans the log meanwhile, nor until
it is known what became of a commit that had no answer.

| meanwhile, or a crash at any moment | what happens | what is left |
|---|---|---|
| a round of the same partition | flushes, rolls, drops what is committed and not marked; cleans later | |
| a second task of it | impossible: `Copiers` has one turn for a key, `tier_lock` for all others | |
| delete-records past what goes up | the commit lists its objects for deletion (`add_segments`) | |
| the topic is deleted | the task stops; what is in no head goes at once | orphans, where the removal was faster |
| another machine takes the partition over | the commit is Fenced, the partition stops | orphans of a passed epoch |
| its disk goes offline | what is up is committed (it is whole), nothing is dropped | |
| copying is switched off, settings change | this commit's worth is committed, nothing ends by the old ones | |
| the tier is given up | by a task too: never beside a copy | |
| it moves to another disk | reads go on, drops wait for the move | |
| truncation | never of a partition that is ours: only taking one up starts a log over | |
| the store hangs | its watchdog ends the call; what hangs on uploads holds the copiers, not the expirers | |
| the manager closes | the upload under way is committed, then no more; cut at the deadline | orphans, once cut |
| the process dies | | objects that no head names: orphans |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from local.errors import LogError
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from policies.decisions import (
    CleanLog,
    CollectHeads,
    CopySegment,
    Decision,
    DeletePage,
    DeleteUnlinked,
    DropLocal,
    RaiseCleaned,
    ReplaceRemote,
    RollActive,
)
from policies.plan import plan_partition
from policies.remote_retention import page_to_know
from policies.snapshot import PartitionSnapshot
from policies.tiering import completes_commit
from remote.store import ObjectStore
from tiered.maintenance.apply import SENDING, apply_in_task
from tiered.maintenance.cleaning import Cleaning
from tiered.maintenance.task_pool import Copiers, Load, State
from tiered.maintenance.upload_and_commit import Clock
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener
from tiered.topics.topic_deletion import TopicDeletion

_log = logging.getLogger(__name__)

ON_DISK = (RollActive, CleanLog, DropLocal)
_OVER = (DeleteUnlinked, DeletePage, CollectHeads)  # what left the index long ago: nothing in a plan comes before it
_Key = TopicPartition | None  # None: what is left of deleted topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What rounds and tasks have of their manager.

    `find` raises NotFound, and the reason for a partition that is not open; `take_up` owns partitions and tells what
    was in the way; `note` and `forget` keep `problems`; `heal_topics` writes missing copies of the list of topics.
    """

    directories: LogDirectories
    store: ObjectStore | None
    opener: Opener
    cleaning: Callable[[], Cleaning]
    deletion: TopicDeletion
    held: Callable[[], list[Partition]]
    find: Callable[[TopicPartition], Partition]
    take_up: Callable[[Sequence[Partition], int], list[LogError]]
    note: Callable[[TopicPartition, LogError], None]
    forget: Callable[[TopicPartition], None]
    heal_topics: Callable[[], None]


class TierTasks:
    """See the module text. Thread safe."""

    def __init__(self, hands: Hands, threads: int, expirers: int = 1, *, clock: Clock = time.monotonic) -> None:
        self._hands = hands
        self._clock = clock
        self._now_ms = 0
        self._troubled: set[TopicPartition] = set()
        # Whose copier, or expirer, may have found `tier_lock` taken: noted before it is tried, struck off when it is
        # ours, looked for when it is free again, so none is overlooked.
        self._wants_copier: set[TopicPartition] = set()
        self._wants_expirer: set[TopicPartition] = set()
        self.copiers: Copiers[TopicPartition] = Copiers(threads, self._copy, clock=clock)
        self.expirers: Copiers[_Key] = Copiers(expirers, self._expire, name="remote-log-expiration", clock=clock)

    def submit(self, name: TopicPartition, due: Due) -> None:
        """A turn for a partition, by those threads that do what is due; none is asked for twice."""
        if due.copies:
            self.copiers.submit(name)
        if due.rest:
            self.expirers.submit(name)

    def submit_deletions(self) -> None:
        self.expirers.submit(None)

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Until no thread is at work; False when the time is over before."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self.states:
            for pool in (self.expirers, self.copiers):  # an expirer may ask for a copier
                left_s = None if until is None else max(0.0, until - time.monotonic())
                if not pool.wait_idle(left_s):
                    return False
        return True

    @property
    def states(self) -> dict[_Key, State]:
        """Of every key that is not idle, by the one or the other."""
        return {**self.expirers.states, **dict[_Key, State](self.copiers.states.items())}

    @property
    def loads(self) -> dict[str, Load]:
        """How busy the two kinds of threads are."""
        return {"copier": self.copiers.load, "expirer": self.expirers.load}

    def is_in_trouble(self, name: TopicPartition) -> bool:
        """Whether the last task of a partition failed: what goes well on its disk says nothing of that."""
        return name in self._troubled

    def has_nothing_due(self, name: TopicPartition) -> None:
        """What was in the way of a task is no trouble once no task is wanted."""
        if name in self._troubled:
            self._forget(name)

    def tell_time(self, now_ms: int) -> None:
        """The time of the newest round: slices that begin from now on go by it."""
        self._now_ms = now_ms

    def stop(self, deadline_s: float) -> bool:
        """Begin nothing more and wait for what is under way, so long at most; whether nothing is left."""
        for pool in (self.copiers, self.expirers):
            pool.stop(0.0)
        return self.wait_idle(deadline_s)

    def _copy(self, name: TopicPartition) -> bool:
        try:
            return self._work(name, self._wants_copier, self._copier_slice)
        finally:
            if name in self._wants_expirer:
                self.expirers.submit(name)

    def _expire(self, key: _Key) -> bool:
        if key is None:
            return self._hands.deletion.step(self._now_ms)
        try:
            return self._work(key, self._wants_expirer, self._expirer_slice)
        finally:
            if key in self._wants_copier:
                self.copiers.submit(key)

    def _work(self, key: TopicPartition, wants: set[TopicPartition], work_on: Callable[[Partition], bool]) -> bool:
        """One slice; whether there is more."""
        wants.add(key)
        try:
            held = self._hands.find(key)
        except LogError:
            self._troubled.discard(key)
            wants.discard(key)
            return False  # deleted, or its disk is gone, since it was asked for
        if not held.tier_lock.acquire(blocking=False):
            return False  # another task, or somebody applies a plan; that one, or the next round, asks again
        wants.discard(key)
        try:
            return work_on(held)
        except LogError as error:
            self._note(held, error)
            return False
        except Exception as error:
            # An error of ours. A caller of rounds would have heard of it; here nobody is, so all who ask are told.
            self._note(held, LogError("working on a partition, a task broke off", partition=key, cause=repr(error)))
            raise
        finally:
            held.tier_lock.release()

    def _note(self, held: Partition, error: LogError) -> None:
        if not held.is_deleted and self._hands.directories.is_online(held.name):
            self._troubled.add(held.name)
            self._hands.note(held.name, error)

    def _forget(self, name: TopicPartition) -> None:
        self._troubled.discard(name)
        self._hands.forget(name)

    def _copier_slice(self, held: Partition) -> bool:
        return self._slice(held, next_slice)

    def _expirer_slice(self, held: Partition) -> bool:
        return self._slice(held, lambda planned: Slice(decisions=tuple(beside_copies(planned)), leaves=sends(planned)))

    def _slice(self, held: Partition, choose: Callable[[Sequence[Decision]], Slice]) -> bool:
        hands, now_ms = self._hands, self._now_ms
        if hands.opener.is_waiting(held) and hands.take_up([held], now_ms):
            self._troubled.add(held.name)
            return False
        if not held.is_owned:
            return False
        hands.opener.pauses.refresh()
        hands.opener.check_store(now_ms)
        looks: list[tuple[Slice, Sequence[Decision]]] = []

        def decide(snapshot: PartitionSnapshot) -> Sequence[Decision]:
            planned = plan_partition(snapshot)
            looks.append((choose(planned), planned))
            return looks[-1][0].decisions

        applied = apply_in_task(
            held,
            decide,
            where=lambda: hands.directories.of(held.name),
            store=hands.store,
            now_ms=now_ms,
            should_stop=lambda: self._must_stop(held),
            clock=self._clock,
        )
        if applied is None:
            return False
        held.check_not_fenced()
        chosen, planned = looks[-1]
        if chosen.leaves:
            self._wants_copier.add(held.name)  # whose trouble, if it has one, is its own
        elif chosen.decisions or not any(isinstance(each, CleanLog) for each in planned):
            # Also where nothing was left to do: what was in the way went by itself. A log to be cleaned copies later.
            self._forget(held.name)
        return chosen.has_more and bool(applied.done)

    def _must_stop(self, held: Partition) -> bool:
        is_online = self._hands.directories.is_online(held.name)
        return self.copiers.is_stopping or held.is_deleted or not is_online


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One turn's worth of decisions; `has_more`: copies are left for the next one, `leaves`: all are for a copier."""

    decisions: tuple[Decision, ...]
    has_more: bool = False
    leaves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Which tasks a partition needs: for what goes up, for what else sends requests."""

    copies: bool
    rest: bool


def on_disk(planned: Sequence[Decision]) -> list[Decision]:
    """The part of a tiered partition's plan that sends no request, and waits for no part that does.

    Segments that are to replace rows stay until they have; what goes with the log start waits for that.
    """
    if any(isinstance(each, ReplaceRemote | RaiseCleaned) for each in planned):
        return [each for each in planned if isinstance(each, RollActive | CleanLog)]
    found: list[Decision] = []
    for each in planned:
        if not isinstance(each, (*ON_DISK, CopySegment)):
            break
        if isinstance(each, ON_DISK):
            found.append(each)
    return found


def due_tasks(snapshot: PartitionSnapshot, planned: Sequence[Decision], *, is_waiting: bool) -> Due:
    """Who is to see to a partition of which this is planned. One that is waiting to be taken up has its copies then; of
    one whose older rows are not known, or that is copying, it may be more than is planned."""
    rest = is_waiting or page_to_know(snapshot) is not None or bool(beside_copies(planned))
    return Due(copies=(sends(planned) or bool(snapshot.copying)) and not is_waiting, rest=rest)


def sends(planned: Sequence[Decision]) -> bool:
    """Whether something goes up."""
    return any(isinstance(each, SENDING) for each in planned)


def beside_copies(planned: Sequence[Decision]) -> list[Decision]:
    """The part of a plan that sends requests and waits for nothing that goes up.

    Where rows are to be replaced, or a view is to take up what expires, that is what left the index long ago.
    """
    if any(isinstance(each, SENDING) and not isinstance(each, CopySegment) for each in planned):
        return [each for each in planned if isinstance(each, _OVER)]
    return [each for each in planned if not isinstance(each, (*ON_DISK, *SENDING))]


def next_slice(planned: Sequence[Decision]) -> Slice:
    """What a task does of a plan: without rolls and cleanings, and one commit's worth of copies.

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
    return Slice(decisions=tuple(taken), has_more=left > 0)
