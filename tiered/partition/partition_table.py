"""The open partitions of one manager, those that could not be opened, and their problems.

In a read-only open all partitions are loaded in parallel. WAIT_MAX_S after the start, each remaining partition gets
Unavailable once a request found the store unavailable.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from local.errors import Conflict, DiskFailed, InvalidRequest, LogError, NotFound, Unavailable, forget_locals
from local.lock_ranks import LockRank, ranked_lock
from local.log import Log
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.storage.storage import offline
from tiered.node.problems import is_same_problem
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener
from tiered.read.partition_source import PartitionSource
from tiered.stores.parallel import side_by_side

if TYPE_CHECKING:
    from concurrent.futures import Future

    from policies.snapshot import PartitionFigures, PartitionSnapshot
    from tiered.read.reader import TieredReader

_log = logging.getLogger(__name__)
T = TypeVar("T")

OPENERS = 8
LOOKERS = 16
DISK_LOOKERS = 1  # a directory as bucket: no latency to hide, and two threads contend for the interpreter
WAIT_MAX_S = 20.0
SYNCS_AT_ONCE = 8  # syncs of different files wait for the same journal, so more parallel syncs gain little

Acquire = Callable[[Partition], LogError | None]


class PartitionTable:
    """Opens, finds and acquires partitions, and records their problems. Thread safe.

    `lock` guards the topics, never during a store request; `maintenance_lock` lets a single maintenance run work.
    `problems` is replaced whole at every change, so an iteration sees one state.
    """

    def __init__(self, directories: LogDirectories, opener: Opener) -> None:
        self.directories, self.opener = directories, opener
        self.registry = TopicRegistry(directories.places())
        self.lock = ranked_lock(LockRank.TOPICS)
        self.maintenance_lock = ranked_lock(LockRank.MAINTENANCE)
        self.problems: dict[TopicPartition, LogError] = {}
        self._partitions: dict[TopicPartition, Partition] = {}
        self._unopened: dict[TopicPartition, LogError] = {}
        self._unread: set[TopicPartition] = set()
        self._problems_lock = threading.Lock()

    def load(self, now_ms: int, *, threads: int, progress: OnProgress) -> None:
        self.directories.on_offline = self._note_offline
        topics = [topic for topic in map(self._as_tiered, self.registry.all()) if topic is not None]
        jobs: dict[str, list[TopicPartition]] = {}
        homeless = []
        for name in (name for topic in topics for name in topic.partitions()):
            try:
                root = self.directories.root_of(name)
            except LogError as error:
                self._leave_unopened([name], error)
                continue
            if root is None:
                # Each placement depends on the one before, so these are opened one after the other.
                homeless.append(name)
            else:
                jobs.setdefault(root, []).append(name)

        open_log = partial(self._open_log, now_ms)
        loaded = load_logs(jobs, open_log, threads_per_directory=threads, progress=progress)
        partitions = self.add(loaded | load_logs({"": homeless}, open_log, threads_per_directory=1))
        partitions.sort(key=lambda each: each.name)
        if self.directories.read_only:
            self.acquire(partitions, now_ms)
            return
        for _, of_topic in groupby(partitions, key=lambda each: each.name.topic):
            self.acquire(list(of_topic), now_ms)

    def open_late(self, now_ms: int) -> None:
        """Retry the logs that wait for room, and note the new errors. Acquiring the partitions comes later."""
        if not any(_lacks_room(each) for each in list(self._unopened.values())):
            return

        with self.lock:
            names = [name for name, error in self._unopened.items() if _lacks_room(error)]
            for each in self.add(load_logs({"": names}, partial(self._open_log, now_ms), threads_per_directory=1)):
                self._unopened.pop(each.name, None)
                self.forget(each.name)
                _log.info("a log was opened after the disk had space again: partition=%s", each.name)

    def add(self, loaded: Loaded) -> list[Partition]:
        """Add the logs that could be opened, and return them; errors of the others are noted."""
        opened = []
        for name, found in loaded.items():
            if isinstance(found, LogError):
                self._leave_unopened([name], found)
            else:
                opened.append(found)
        self._partitions.update({each.name: each for each in opened})
        return opened

    def remove(self, topic: Topic) -> None:
        for name in topic.partitions():
            self._partitions.pop(name, None)
            self._unopened.pop(name, None)
            self.forget(name)

    def acquire(self, partitions: Sequence[Partition], now_ms: int) -> list[LogError]:
        """Acquire tiered partitions that lack the writer role, commit altered settings. Notes and returns errors."""
        waiting = [each for each in partitions if self.opener.is_waiting(each)]
        acquire = partial(self.opener.acquire, now_ms=now_ms)
        if self.directories.read_only:
            found = open_read_only_all(acquire, waiting, store.url if (store := self.opener.store) is not None else "")
        else:
            found = side_by_side(acquire, waiting, threads=OPENERS, name="take-up")
        for each, error in zip(waiting, found, strict=True):
            if error is not None:
                self.note(each.name, error)
            else:
                self.forget(each.name)
        return [error for error in found if error is not None]

    def retry(self, names: Iterable[TopicPartition], *, now_ms: int) -> None:
        raise_first(self.acquire([self.find(name) for name in names], now_ms))

    def _open_log(self, now_ms: int, name: TopicPartition) -> Partition:
        return self.opener.open_log(name, self.registry.get(name.topic), now_ms)

    def _as_tiered(self, topic: Topic) -> Topic | None:
        try:
            begins = not self.directories.read_only and self.opener.begins_tiering(topic)
        except InvalidRequest as error:
            self._leave_unopened(topic.partitions(), error)
            return None
        return self.registry.alter(topic.name, topic.properties, is_tiered=True) if begins else topic

    def _leave_unopened(self, names: Iterable[TopicPartition], error: LogError) -> None:
        for name in names:
            self._unopened[name] = error
            self.note(name, error)

    def find(self, name: TopicPartition) -> Partition:
        """The partition. Raises NotFound, or the reason if it could not be opened or its disk is offline."""
        self.directories.check_online(name)
        found = self._partitions.get(name)
        if found is None:
            if name in self._unopened:
                raise self._unopened[name]
            count = self.registry.get(name.topic).partition_count
            raise NotFound("partition not found", partition=name, partition_count=count)
        return found

    def source(self, name: TopicPartition) -> PartitionSource:
        return self.find(name).source()

    def opened(self, names: Iterable[TopicPartition]) -> list[Partition]:
        """The open ones among these partitions; their disk may be offline."""
        return [self._partitions[name] for name in names if name in self._partitions]

    def all(self, topics: Iterable[str] | None = None) -> list[Partition]:
        """The open partitions with an online disk, in order; a copy, as others may be added concurrently."""
        wanted = None if topics is None else set(topics)
        found = [each for each in list(self._partitions.items()) if self.directories.is_online(each[0])]
        return [each for name, each in sorted(found) if wanted is None or name.topic in wanted]

    def known(self, topics: Iterable[str] | None = None) -> list[Partition]:
        """As `all`, without tiered partitions whose manifest is unknown or not true of this disk."""
        return [each for each in self.all(topics) if not each.is_tiered or each.reconciled_manifest() is not None]

    def unopened(self) -> list[TopicPartition]:
        return list(self._unopened)

    def snapshots(
        self,
        now_ms: int,
        partitions: Iterable[Partition],
        *,
        may_ask: bool = True,
        uncleanable: Collection[TopicPartition] = (),
        records_problems: bool = True,
    ) -> list[PartitionSnapshot]:
        """The facts of both tiers, without unreadable partitions. `uncleanable` and paused logs are not cleaned."""

        def read(partition: Partition) -> PartitionSnapshot:
            may_clean = partition.name not in uncleanable and partition.log.cleaning.now.pauses == 0
            return partition.snapshot(now_ms, may_clean=may_clean, may_ask=may_ask)

        return self._read(partitions, read, records_problems=records_problems)

    def figures(
        self, now_ms: int, partitions: Iterable[Partition], *, records_problems: bool = True
    ) -> list[PartitionFigures]:
        return self._read(partitions, lambda each: each.figures(now_ms), records_problems=records_problems)

    def _read(
        self, partitions: Iterable[Partition], read: Callable[[Partition], T], *, records_problems: bool
    ) -> list[T]:
        found = []
        for each in partitions:
            try:
                found.append(read(each))
            except LogError as error:
                if records_problems:
                    self._unread.add(each.name)
                    self.note(each.name, error)
            else:
                if records_problems and each.name in self._unread:
                    self._unread.discard(each.name)
                    self.forget(each.name)
        return found

    def flush(self) -> None:
        raise_first(flush_all([each.log for each in list(self._partitions.values())]))

    def roll(self, topic: str, *, now_ms: int) -> int:
        """Close the active segment of every partition of a topic unless it is empty. Returns the number closed."""
        self.directories.check_writable()
        return sum(self.find(name).log.roll(now_ms=now_ms) for name in self.registry.get(topic).partitions())

    def local_reader(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> TieredReader:
        """A reader of this disk alone, even if the tiers diverged: for records that only this disk holds."""
        from tiered.read.reader import TieredReader

        def source(name: TopicPartition) -> PartitionSource:
            return PartitionSource(name, self.find(name).log, is_disk_alone=True)

        return TieredReader(source, isolation)

    def note(self, name: TopicPartition, error: LogError) -> None:
        """Record the problem of a partition. A conflict with the bucket stops the partition's remote tier."""
        if isinstance(error, Conflict) and (partition := self._partitions.get(name)) is not None:
            partition.tier.stop(error)
            self.opener.remember_fencing(partition, error)
        with self._problems_lock:
            if name not in self._partitions and name not in self._unopened:
                return  # its topic was deleted
            known, others = self.problems.get(name), self.problems
            self.problems = {**others, name: forget_locals(error)}
            if not is_same_problem(known, error):  # facts change every time
                # One line for one cause, however many partitions have it (`tiered.service.worker` counts them).
                is_repeated = any(is_same_problem(each, error) for each in others.values())
                level = logging.DEBUG if is_repeated else logging.ERROR
                _log.log(level, "a partition has a problem: partition=%s error=%s", name, error)

    def forget(self, name: TopicPartition) -> None:
        """Remove the problem of a partition, unless its disk is offline."""
        with self._problems_lock:
            if name in self.problems and self.directories.is_online(name):
                self.problems = {each: error for each, error in self.problems.items() if each != name}

    def _note_offline(self, root: str, error: LogError) -> None:
        """Note that a log directory went offline. Called at any failure of its disk, so it only takes notes."""
        for name in [name for name in self.directories.partitions_of(root) if name in self._partitions]:
            self.note(name, offline(root, error, partition=name))


def open_read_only_all(acquire: Acquire, waiting: Sequence[Partition], store_url: str) -> list[LogError | None]:
    """Acquire the partitions of a read-only open in parallel. The error of each, in order; None on success."""
    start_s = time.monotonic()
    unavailable: list[Unavailable] = []

    def look_up(partition: Partition) -> LogError | None:
        if unavailable and time.monotonic() - start_s >= WAIT_MAX_S:
            facts = {"partition": partition.name, "cause": unavailable[0].attempt}
            return Unavailable("cannot open the partition, the store did not reply for other partitions", **facts)
        error = acquire(partition)
        if isinstance(error, Unavailable):
            unavailable.append(error)
        return error

    if store_url.startswith("memory:"):
        return [look_up(each) for each in waiting]
    threads = DISK_LOOKERS if store_url.startswith("file:") else LOOKERS
    return side_by_side(look_up, waiting, threads=threads, name="look-up")


def _lacks_room(error: LogError) -> bool:
    return isinstance(error, DiskFailed) and error.lacks_room


def flush_all(logs: Sequence[Log]) -> list[LogError | None]:
    return side_by_side(lambda log: _attempt(log.flush), logs, threads=SYNCS_AT_ONCE, name="flush")


def raise_first(failures: Sequence[LogError | None]) -> None:
    for error in failures:
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """Progress of one directory; reported at the start (`done` 0) and after every log."""

    directory: str
    done: int
    total: int
    recovered_segments: int


OnProgress = Callable[[LoadProgress], None]


Loaded = dict[TopicPartition, "Partition | LogError"]


def load_logs(
    jobs: Mapping[str, Sequence[TopicPartition]],
    open_log: Callable[[TopicPartition], Partition],
    *,
    threads_per_directory: int,
    progress: OnProgress = lambda progress: None,
) -> Loaded:
    """Open all logs of `jobs` (by directory); for each the partition or its error, in the order of `jobs`.

    `open_log` is called from many threads, `progress` from the calling thread. An exception other than LogError ends
    the call: jobs not yet started are cancelled, running jobs are waited for.
    """
    state: dict[str, LoadProgress] = {}
    for root, names in jobs.items():
        state[root] = LoadProgress(directory=root, done=0, total=len(names), recovered_segments=0)
        progress(state[root])
    found: Loaded = {}
    for root, name, result in _results(jobs, open_log, threads_per_directory):
        found[name] = result
        recovered = 0 if isinstance(result, LogError) else result.log.recovered_segments
        before = state[root]
        recovered += before.recovered_segments
        state[root] = replace(before, done=before.done + 1, recovered_segments=recovered)
        progress(state[root])
    return {name: found[name] for names in jobs.values() for name in names}


def _results(
    jobs: Mapping[str, Sequence[TopicPartition]], open_log: Callable[[TopicPartition], Partition], threads: int
) -> Iterator[tuple[str, TopicPartition, Partition | LogError]]:
    if threads == 1 and len(jobs) == 1:
        for root, names in jobs.items():
            for name in names:
                yield root, name, _attempt(partial(open_log, name))
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    with ExitStack() as pools:
        waiting: dict[Future[Partition | LogError], tuple[str, TopicPartition]] = {}
        try:
            for root, names in jobs.items():
                pool = pools.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="load"))
                waiting |= {pool.submit(_attempt, partial(open_log, name)): (root, name) for name in names}
            for done in as_completed(waiting):
                yield (*waiting[done], done.result())
        finally:
            for each in waiting:
                each.cancel()


def _attempt(work: Callable[[], T]) -> T | LogError:
    try:
        return work()
    except LogError as error:
        return error
