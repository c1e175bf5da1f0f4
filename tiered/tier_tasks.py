"""What waits for the store, partition by partition, in threads of its own: Kafka's copier and expiration pools in one.

A round (`tiered.rounds`) that does not wait leaves to a task whatever sends a request: taking a partition up, copies,
replaced rows, views, the log start, expiry, deletions, old heads, what is left of deleted topics. A task decides on a
snapshot of its own, as a round would, does one commit's worth of copies and the rest, and lets go of what the disk no
longer needs for it (I2 as ever: `policies` say what, `tiered.apply` looks once more). A backlog goes on in its next
turn (`tiered.copiers`: the threads, the states, who is next). How much goes up at once, and how fast, is bounded by the
store (`remote.part_sending`, `remote.throttled_store`), however many tasks there are.

A task holds the partition's `tier_lock` from beginning to end; `lock` only for what it does on the disk, never while it
uploads. What it copies is marked (`Partition.copying`): nobody drops it, and nobody cleans the log meanwhile.

| meanwhile, or a crash at any moment | what happens | what is left |
|---|---|---|
| a round of the same partition | flushes, rolls, drops what is committed and not marked; cleans later | |
| a second task of it | impossible: `Copiers` has one turn for a key, `tier_lock` for other callers | |
| delete-records past what goes up | the commit lists its objects for deletion (`add_segments`) | |
| the topic is deleted | the task stops; what is in no head goes at once | orphans, where the removal was faster |
| another machine takes the partition over | the commit is Fenced, the partition stops | orphans of a passed epoch |
| its disk goes offline | what is up is committed (it is whole), nothing is dropped | |
| copying is switched off, settings change | this commit's worth is committed, the next turn goes by the new ones | |
| the tier is given up | by a task too: never beside a copy | |
| it moves to another disk | reads go on, drops wait for the move | |
| truncation | never of a partition that is ours: only taking one up starts a log over | |
| the store hangs | its watchdog ends the call; other partitions have the other threads, and turns | |
| the manager closes | the upload under way is committed, then no more; cut at the deadline | orphans, once cut |
| the process dies | | objects that no head names: orphans |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from local.errors import LogError
from local.log_dir_set import LogDirectories
from local.names import TopicPartition
from policies.decisions import CleanLog, CopySegment, Decision, DropLocal, RaiseCleaned, ReplaceRemote, RollActive
from policies.plan import plan_partition
from policies.remote_retention import page_to_know
from policies.snapshot import PartitionSnapshot
from policies.tiering import completes_commit
from remote.store import ObjectStore
from tiered.apply import apply_in_task
from tiered.cleaning import Cleaning
from tiered.committing import Clock
from tiered.copiers import Copiers
from tiered.opening import Opener
from tiered.partition import Partition
from tiered.topic_deletion import TopicDeletion

_log = logging.getLogger(__name__)

ON_DISK = (RollActive, CleanLog, DropLocal)
_Key = TopicPartition | None  # None: what is left of deleted topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What rounds and tasks have of their manager.

    `find` raises NotFound, and the reason for a partition that is not open; `take_up` owns partitions and tells what
    was in the way; `note` and `forget` keep `problems`.
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


class TierTasks:
    """See the module text. Thread safe."""

    def __init__(self, hands: Hands, threads: int, *, clock: Clock = time.monotonic) -> None:
        self._hands = hands
        self._clock = clock
        self._now_ms = 0
        self._troubled: set[TopicPartition] = set()
        self.copiers: Copiers[_Key] = Copiers(threads, self._work, clock=clock)

    def submit(self, name: TopicPartition) -> None:
        self.copiers.submit(name)

    def submit_deletions(self) -> None:
        self.copiers.submit(None)

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
        return self.copiers.stop(deadline_s)

    def _work(self, key: _Key) -> bool:
        """One slice; whether there is more."""
        if key is None:
            return self._hands.deletion.step(self._now_ms)
        try:
            held = self._hands.find(key)
        except LogError:
            self._troubled.discard(key)
            return False  # deleted, or its disk is gone, since it was asked for
        if not held.tier_lock.acquire(blocking=False):
            return False  # somebody applies a plan; the next round asks again
        try:
            return self._work_on(held)
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

    def _work_on(self, held: Partition) -> bool:
        hands, now_ms = self._hands, self._now_ms
        if hands.opener.is_waiting(held) and hands.take_up([held], now_ms):
            self._troubled.add(held.name)
            return False
        if not held.is_owned:
            return False
        hands.opener.pauses.refresh()
        hands.opener.check_store(now_ms)
        slices: list[Slice] = []

        def decide(snapshot: PartitionSnapshot) -> Sequence[Decision]:
            slices.append(next_slice(plan_partition(snapshot)))
            return slices[-1].decisions

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
        self._forget(held.name)  # also where nothing was left to do: what was in the way went by itself
        return slices[-1].has_more and bool(applied.done)

    def _must_stop(self, held: Partition) -> bool:
        is_online = self._hands.directories.is_online(held.name)
        return self.copiers.is_stopping or held.is_deleted or not is_online


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One turn's worth of decisions; `has_more`: copies are left for the next one."""

    decisions: tuple[Decision, ...]
    has_more: bool


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


def needs_task(snapshot: PartitionSnapshot, planned: Sequence[Decision]) -> bool:
    """Whether something of the plan sends requests, or may once older rows are known."""
    return page_to_know(snapshot) is not None or any(not isinstance(each, ON_DISK) for each in planned)


def next_slice(planned: Sequence[Decision]) -> Slice:
    """What a task does of a plan: without rolls and cleanings, and one commit's worth of copies.

    A compacted topic's copies are one commit, however many they are (`policies.tiering`).
    """
    taken: list[Decision] = []
    segments = size_bytes = left = 0
    is_together = any(isinstance(each, CopySegment) and "cleaned" in each.reason for each in planned)
    for each in planned:
        if isinstance(each, RollActive | CleanLog):
            continue
        if isinstance(each, CopySegment):
            if not is_together and completes_commit(segments, size_bytes):
                left += 1
                continue
            segments, size_bytes = segments + 1, size_bytes + each.size_bytes
        taken.append(each)
    return Slice(decisions=tuple(taken), has_more=left > 0)
