"""The log manager: every topic of one directory, both tiers, one process.

It holds things together and decides nothing: `policies` decide on snapshots, `tiered.maintenance.apply` does what they
say, and only the caller knows the time (`tick(now_ms)`). Partitions do not depend on each other: an error of one (its
store out of reach, its bytes damaged, another writer) is kept in `problems` and the others go on, at open as later. A
damaged or contested partition raises its error to whoever reads or writes it; what concerns the whole directory or the
whole bucket (the lock, the checkpoints, no such bucket, no access) is raised by whatever meets it.

Threads: every method may be called from any thread. Topics are created and altered one at a time, rounds (`tick`,
`apply`) run one at a time, and both beside each other; appends, reads, `snapshots` and `plan` wait for neither. A
`progress` callable must not create or alter topics. `close` and `abandon` come last, with nothing else under way.
Somewhat longer than its neighbours: it is the one public face, and most of it is docstrings of that face.

A manager opened with ``read_only=True`` takes no lock, writes nothing anywhere and sees the directory and the bucket as
they were when it was opened; it may run beside a writing one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from local.errors import Conflict, DiskFailed, Diverged, InvalidRequest, LogError, NotFound, forget_locals
from local.format.record import Record
from local.log import AppendResult, Durability, Log
from local.logdirs.log_dirs import LogDirectories
from local.logdirs.log_moves import Progress
from local.logdirs.offline_detection import offline
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset, OffsetSpec
from local.storage import DiskStorage, Storage
from remote.manifest.manifest_memory_cache import KnownHeads
from remote.store import ObjectStore
from tiered.config.config import Config
from tiered.maintenance.cleaning import CleanerSettings, Cleaning
from tiered.maintenance.snapshots import Snapshots
from tiered.manager.deferred_open import LateOpening
from tiered.manager.directories import OverDirectories
from tiered.manager.reloading import Reloadable
from tiered.node.problem_groups import is_alike
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.node.upload_pause import Pausable
from tiered.partition.acquisition import look_up_all, take_up_all
from tiered.partition.appending import append_shares, flush_all, raise_first
from tiered.partition.log_loading import Loaded, OnProgress, load_logs
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener, with_key_ring
from tiered.read.partition_source import PartitionSource
from tiered.read.reader_factory import Readable
from tiered.stores.configured_store import configured_store, let_go
from tiered.stores.persistent_meter import KeptMeter, Metered, kept_meter
from tiered.topics.deleted_topic_usage import KnowsDeleted
from tiered.topics.partitioner import Partitioner
from tiered.topics.topic_creation import CreatesTopics
from tiered.topics.topic_deletion import TopicDeletion
from tiered.topics.topic_dry_run import Foreseeable

if TYPE_CHECKING:
    from policies.decisions import Plan
    from tiered.maintenance.apply import Applied
    from tiered.maintenance.delete_records import DeletedRecords
    from tiered.maintenance.maintenance import ApplyProgress, Rounds, ShouldStop
    from tiered.maintenance.task_pool import Load
    from tiered.read.reader import TieredReader

_log = logging.getLogger(__name__)

DRAIN_S = 10.0  # for what is under way when a manager closes, as Kafka's pools have


class LogManager(
    Snapshots,
    Readable,
    Metered,
    OverDirectories,
    Reloadable,
    Pausable,
    CreatesTopics,
    KnowsDeleted,
    Foreseeable,
    LateOpening,
):
    """See the module text. Open with `LogManager.open`; a context manager that closes cleanly. Thread safe."""

    def __init__(
        self,
        config: Config,
        directory: LogDirectories,
        store: KeptMeter | None,
        storage: Storage,
        known: KnownHeads | None = None,
        *,
        takes_over: bool = False,
        may_be_refused: bool = False,
    ) -> None:
        self.config = config
        # Replaced whole on every change, so whoever goes through it sees one moment.
        self.problems: dict[TopicPartition, LogError] = {}
        self._directory = directory
        self._store = store
        asked = {"takes_over": takes_over, "may_be_refused": may_be_refused}
        self._opener = Opener(config, directory, store, storage, known, **asked)
        self._registry = TopicRegistry(directory.places())
        self._partitions: dict[TopicPartition, Partition] = {}
        self._unopened: dict[TopicPartition, LogError] = {}
        self._unseen: set[TopicPartition] = set()
        self._partitioner = Partitioner()
        self._deletion = TopicDeletion(self._registry, directory, store, self._opener)
        self.cleaning = Cleaning(CleanerSettings.of(config))
        # One guards the topics and what is held of them, one lets a single round run. Nobody takes the first one while
        # holding the second or a partition's own lock, and nobody waits for the store while holding the first one.
        self._topics_lock = threading.RLock()
        self._own_rounds = None if directory.read_only else self._new_rounds()
        self._problems_lock = threading.Lock()

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        now_ms: int,
        read_only: bool = False,
        storage: Storage | None = None,
        store: ObjectStore | None = None,
        progress: OnProgress = lambda told: None,
        known: KnownHeads | None = None,
        takes_over: bool = False,
        may_be_refused: bool = False,
    ) -> LogManager:
        """Open every topic of the directory, recover what needs it, and own its partitions in the bucket.

        `store` overrides the one that the configuration names; it is closed with the manager. Raises Conflict when
        another manager has the directory open, and, unless it is `read_only`, AccessDenied and NotFound when the bucket
        is not ours or not there. What is wrong with partitions is in `problems` then. `progress` hears of the loading.

        Pass the same `known` to repeated read-only opens: then only newer manifests are fetched. `takes_over`: a person
        asked for the writer role of partitions that another writer fenced (docs/explanation/diverged-logs.md). With
        `may_be_refused` a bucket that refuses as a whole is a problem of each partition: the disk serves on.
        """
        disk = storage or DiskStorage()
        directory = LogDirectories(disk, config.data_dirs, read_only=read_only, cordoned=config.cordoned_dirs)
        try:
            store = store if store is not None else configured_store(config)
            store = with_key_ring(store, config) if store is not None else None
            meter = kept_meter(store, directory, now_ms)
            asked = {"takes_over": takes_over, "may_be_refused": may_be_refused}
            manager = cls(config, directory, meter, disk, known if read_only else None, **asked)
        except BaseException:
            let_go(directory, store)
            raise
        try:
            manager._open_all(now_ms, progress)
        except BaseException:
            manager.abandon()
            raise
        return manager

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        return self._registry.all()

    def topic(self, name: str) -> Topic:
        """Raises NotFound, naming the topics there are."""
        return self._registry.get(name)

    def alter_topic(self, name: str, properties: dict[str, str], *, now_ms: int) -> Topic:
        """Change a topic's own settings (an empty value takes one back); effective at once.

        Raises InvalidRequest, and Unavailable for a topic that is to be tiered while the bucket is out of reach.
        """
        self._check_writable()
        altered, is_new = self._opener.altered(self._registry.get(name), properties)
        if is_new:
            self._opener.check_reachable(altered)
        with self._topics_lock:
            altered, is_new = self._opener.altered(self._registry.get(name), properties)
            altered = self._registry.alter(name, altered.properties, is_tiered=is_new)
            held = [self._partitions[each] for each in altered.partitions() if each in self._partitions]
            for each in held:
                self._opener.apply_settings(each, altered)
                self._forget(each.name)  # what kept a round from its plan says nothing of the next one's
        new = [each for each in held if self._directory.is_online(each.name) and not each.is_owned]
        failures = self._take_up(new, now_ms)  # of those that are ours the next round tells the bucket
        raise_first(failures if is_new else [])
        return altered

    def delete_topic(self, name: str, *, now_ms: int) -> None:
        """Gone for everybody on return; files and objects follow (`tiered.topics.topic_deletion`).

        Raises NotFound, and Diverged for a log with records that only this disk holds: they stay, and so does the topic
        in the bucket.
        """
        self._check_writable()
        with self._topics_lock:
            raise_first([each.stopped for each in self._held([name]) if isinstance(each.stopped, Diverged)])
            gone = self._deletion.delete(name, self._partitions, self._rounds.lock, now_ms=now_ms)
            for each in gone.partitions():
                self._unopened.pop(each, None)
                self._forget(each)
        self._deletion.step(now_ms)  # where the bucket can be reached its grace time counts from now

    # -- records -------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        records: Sequence[Record],
        partition: int | None = None,
        *,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
    ) -> dict[TopicPartition, AppendResult]:
        """Append records, to one partition or split by key as Kafka does; the offsets given, by partition.

        Each partition's share is acknowledged on its own; there is no atomicity over partitions. Raises Fenced or
        Conflict for a partition that another writer has taken over: what came now would contradict that one's records.
        Raises Unavailable for an empty log whose end only the bucket knows, while that is out of reach. Wrong records
        are refused before any is appended; when the disk fails half way, the error's facts say what was appended.
        """
        self._check_writable()
        chosen: Mapping[TopicPartition, Sequence[Record]]
        chosen = self.split(topic, records) if partition is None else {TopicPartition(topic, partition): records}
        encoded: dict[TopicPartition, tuple[Log, Iterable[bytearray | memoryview]]] = {}
        for name, share in chosen.items():
            # Everything that can be refused is refused before anything is appended.
            held = self._partition(name)
            held.check_appendable()
            encoded[name] = (held.log, held.log.encode(share, now_ms=now_ms))
        for name in encoded:
            self._partition(name).note_append()
        return append_shares(encoded, now_ms, durability)

    def append_columns(
        self,
        topic: str,
        columns: object,
        partition: int | None = None,
        *,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
    ) -> dict[TopicPartition, AppendResult]:
        """Append records that are columns already: an Arrow table or record batch, or `Columns` read from a log.

        An Arrow table has the columns key and value (binary or string of any kind), and may have timestamp
        (an Arrow timestamp, or milliseconds; `now_ms` without it) and headers (a list of structs key, value). Goes
        where `append` would send the same records. Raises as `append`, and InvalidRequest for other columns.
        """
        from local.records.record_columns import record_columns

        self._check_writable()
        chunks = record_columns(columns, now_ms=now_ms)
        count = self._registry.get(topic).partition_count
        shares = self._partitioner.split_columns(chunks, count) if partition is None else {partition: chunks}
        encoded: dict[TopicPartition, tuple[Log, Iterable[bytearray | memoryview]]] = {}
        for number, share in sorted(shares.items()):
            held = self._partition(TopicPartition(topic, number))
            held.check_appendable()
            encoded[held.name] = (held.log, held.log.encode_columns(share, now_ms=now_ms))
        for name in encoded:
            self._partition(name).note_append()
        return append_shares(encoded, now_ms, durability)

    def split(self, topic: str, records: Sequence[Record]) -> dict[TopicPartition, list[Record]]:
        """Where records would go by their keys, as Kafka's default partitioner has it; nothing is appended."""
        shares = self._partitioner.split(records, self._registry.get(topic).partition_count)
        return {TopicPartition(topic, number): share for number, share in sorted(shares.items())}

    def flush(self) -> None:
        """Everything appended so far is on the disk when this returns. Raises the first error, after trying all."""
        found = flush_all([held.log for held in list(self._partitions.values())])
        raise_first([error for error in found if error is not None])

    def roll(self, topic: str, *, now_ms: int) -> int:
        """Close the active segment of every partition of a topic; how many were closed (empty ones never are)."""
        self._check_writable()
        return sum(self._partition(p).log.roll(now_ms=now_ms) for p in self._registry.get(topic).partitions())

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, now_ms: int
    ) -> dict[TopicPartition, DeletedRecords]:
        """Records below each offset (-1: all there are) are gone for readers; their files go with the next rounds.

        Raises, before anything is deleted, OffsetOutOfRange above a log's end, InvalidRequest for a topic that only
        compacts, and what keeps us from writing to a partition. See `tiered.maintenance.delete_records` for order and
        crashes.
        """
        from tiered.maintenance.delete_records import delete_records

        self._check_writable()
        held = {self._partition(name): offset for name, offset in offsets.items()}
        return delete_records(held, self._directory.of, now_ms=now_ms, rounds=self._rounds.lock)

    def plan_deletion(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
        """What `delete_records` would do, which it refuses alike; changes nothing."""
        from tiered.maintenance.delete_records import plan_deletion

        return {name: plan_deletion(self._partition(name), offset) for name, offset in offsets.items()}

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec | int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, FoundOffset | None]:
        """What each spec (a name, or a timestamp in ms) means over both tiers; None when there is no such offset.

        `tiered.read.offset_listing` has the names. Raises as reading a partition does.
        """
        from tiered.read.offset_listing import find_offset

        reader = self.reader()
        return {name: find_offset(self._source(name), reader, spec, isolation) for name, spec in specs.items()}

    def move(
        self, partition: TopicPartition, directory: str, *, now_ms: int, progress: Progress = lambda done, all_: None
    ) -> None:
        """Move a partition to another log directory while it is written to and read; rounds wait.

        Its old files go ``file.delete.delay.ms`` later. Raises InvalidRequest, NotFound, and DiskFailed (no room, a
        disk that fails): then it is where it was, or the next start finishes the move.
        """
        self._check_writable()
        # A pass over this log is called off first: the round that it is part of is waited for next.
        with self._partition(partition).log.cleaning.paused(), self._rounds.lock:
            held = self._partition(partition)
            with held.lock:
                unconfirmed_from = held.log.unconfirmed_from
                self._directory.move(
                    partition, directory, now_ms=now_ms, delay_ms=held.rules.file_delete_delay_ms, progress=progress
                )
                if unconfirmed_from is not None:
                    held.log.mark_unconfirmed(unconfirmed_from)
            self._directory.remove_deleted(now_ms)

    # -- background work -----------------------------------------------------------------------------------------

    def partition(self, name: TopicPartition) -> Partition:
        """Raises NotFound, and the reason for a partition that could not be opened or whose disk is gone."""
        return self._partition(name)

    def plan(self, now_ms: int, topics: Iterable[str] | None = None) -> Plan:
        """What the policies would do now. Changes nothing. A remote tier that was never seen is not planned for."""
        from policies.plan import plan as plan_snapshots

        known = [held for held in self._held(topics) if held.agreed_head() is not None or not held.is_tiered]
        return plan_snapshots(self._looked_at(known, now_ms), now_ms)

    def apply(
        self,
        plan: Plan,
        *,
        progress: ApplyProgress = lambda partition, decision: None,
        should_stop: ShouldStop = lambda: False,
    ) -> dict[TopicPartition, Applied]:
        """Do what a plan says. A partition's error ends its part of the plan and is kept in `problems`.

        `should_stop` is asked before each decision and during a cleaning; any prefix of a plan is safe. Once the store
        did not answer for one partition, the other tiered ones are left for the next round: each would wait for it as
        long. With several cleaner threads both callables are called from all of them.
        """
        self._check_writable()
        return self._rounds.apply(plan, progress=progress, should_stop=should_stop)

    def tick(self, now_ms: int, *, should_stop: ShouldStop = lambda: False, waits: bool = True) -> bool:
        """One round of background work: flush and forget what is due, plan, apply, checkpoint. True when more waits.

        Raises only what concerns the whole directory; a partition's trouble is in `problems`. What concerns the disk
        alone comes first. One that `waits` has done it all when it returns, in order, by the caller's thread; another
        leaves what waits for the store to threads that go on beside the caller (`tiered.maintenance.maintenance`).
        """
        self._check_writable()
        self._open_late(now_ms)
        return self._rounds.round(now_ms, should_stop=should_stop, waits=waits)

    def wait_for_tasks(self, timeout_s: float | None = None) -> bool:
        """Until no thread is at work for rounds that did not wait; False when the time is over before."""
        return self._own_rounds is None or self._own_rounds.tasks.wait_idle(timeout_s)

    def task_loads(self) -> dict[str, Load]:
        """How busy the threads are that wait for the store, by kind; nothing for a manager that only looks."""
        return self._own_rounds.tasks.loads if self._own_rounds is not None else {}

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Seal and checkpoint the logs, mark the directory clean, let go of the store.

        Uploads under way have `drain_s` to end and be committed; what is cut then is an orphan. A partition that could
        not be opened was not recovered either, so its directory is not marked clean then.
        """
        try:
            tasks = self._own_rounds.tasks if self._own_rounds is not None else None
            if tasks is not None and not tasks.stop(drain_s):
                _log.warning("closing before the store has answered: tasks=%d", len(tasks.states))
        finally:
            self._opener.keep_counts()
            try:
                self._directory.close(unrecovered=list(self._unopened))
            finally:
                self._opener.close()

    @property
    def refused_checkpoints(self) -> DiskFailed | None:
        """Why the checkpoints of a directory wait for room; None while none do."""
        return self._own_rounds.refused if self._own_rounds is not None else None

    def abandon(self) -> None:
        """Let go of everything without writing, as after a crash."""
        if self._own_rounds is not None:
            self._own_rounds.tasks.stop(0.0)
        self._opener.close()
        let_go(self._directory, self._store)

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        is_cut = kind is not None and not issubclass(kind, Exception)  # told a second time to end
        self.close(drain_s=0.0 if is_cut else DRAIN_S)

    # -- inside --------------------------------------------------------------------------------------------------

    def _new_rounds(self) -> Rounds:
        from tiered.maintenance.maintenance import Rounds
        from tiered.maintenance.remote_tasks import Hands

        hands = Hands(
            directories=self._directory,
            store=self._store,
            opener=self._opener,
            cleaning=lambda: self.cleaning,
            deletion=self._deletion,
            held=self._held,
            find=self._partition,
            take_up=self._take_up,
            note=self._note,
            forget=self._forget,
            heal_topics=self._registry.heal,
        )
        look = partial(self._looked_at, may_ask=False)
        return Rounds(hands, threads=self.config.tier_threads, look=lambda at: look(self._held(), at), plan=self.plan)

    def _open_all(self, now_ms: int, progress: OnProgress) -> None:
        """Every log, then their heads side by side (they wait for the net)."""
        self._directory.on_offline = self._lose
        if not self._directory.read_only:
            self._registry.heal()
            self._deletion.resume(now_ms)
        for directory in self._directory.online:
            self.cleaning.load(directory)
        topics = {topic.name: topic for topic in map(self._as_tiered, self._registry.all()) if topic is not None}
        jobs: dict[str, list[TopicPartition]] = {}
        homeless = []
        for name in (name for topic in topics.values() for name in topic.partitions()):
            try:
                root = self._directory.root_of(name)
            except LogError as error:
                self._leave_unopened([name], error)
                continue
            if root is None:
                # Where it is put depends on where the one before it went, so these come one after the other.
                homeless.append(name)
            else:
                jobs.setdefault(root, []).append(name)

        def open_log(name: TopicPartition) -> Partition:
            return self._opener.open_log(name, topics[name.topic], now_ms)

        # Who looks recovers nothing: a short read here and there, and threads take the interpreter from each other.
        threads = 1 if self._directory.read_only else self.config.recovery_threads_per_dir
        loaded = load_logs(jobs, open_log, threads_per_directory=threads, progress=progress)
        held = self._keep(loaded | load_logs({"": homeless}, open_log, threads_per_directory=1))
        held.sort(key=lambda each: each.name)
        if self._directory.read_only:
            self._take_up(held, now_ms)
            return
        for _, of_topic in groupby(held, key=lambda each: each.name.topic):
            self._take_up(list(of_topic), now_ms)

    def _as_tiered(self, topic: Topic) -> Topic | None:
        """The topic, written down as tiered if it is from now on; None for one whose settings are wrong."""
        try:
            begins = not self._directory.read_only and self._opener.begins_tiering(topic)
        except InvalidRequest as error:
            self._leave_unopened(topic.partitions(), error)
            return None
        return self._registry.alter(topic.name, topic.properties, is_tiered=True) if begins else topic

    def _keep(self, loaded: Loaded) -> list[Partition]:
        """Those that could be opened; the others are noted."""
        held = []
        for name, found in loaded.items():
            if isinstance(found, LogError):
                self._leave_unopened([name], found)
            else:
                held.append(found)
        self._partitions.update({each.name: each for each in held})
        return held

    def _take_up(self, held: Sequence[Partition], now_ms: int) -> list[LogError]:
        """Own the tiered ones that are not ours yet, and tell of altered ones; what is in the way is noted and told."""
        waiting = [each for each in held if self._opener.is_waiting(each)]
        take_up = partial(self._opener.take_up, now_ms=now_ms)
        is_look, url = self._directory.read_only, self._store.url if self._store is not None else ""
        found = look_up_all(take_up, waiting, url) if is_look else take_up_all(take_up, waiting)
        for each, error in zip(waiting, found, strict=True):
            if error is not None:
                self._note(each.name, error)
            else:
                self._forget(each.name)
        return [error for error in found if error is not None]

    def own_again(self, names: Iterable[TopicPartition], *, now_ms: int) -> None:
        """Ask the store once more for the writer role of partitions without it. Raises what keeps the first from it."""
        raise_first(self._take_up([self._partition(name) for name in names], now_ms))

    def _leave_unopened(self, names: Iterable[TopicPartition], error: LogError) -> None:
        for name in names:
            self._unopened[name] = error
            self._note(name, error)

    def _partition(self, name: TopicPartition) -> Partition:
        """Raises NotFound, and the reason for a partition that could not be opened or whose disk is gone."""
        self._directory.check_online(name)
        held = self._partitions.get(name)
        if held is None:
            if name in self._unopened:
                raise self._unopened[name]
            count = self._registry.get(name.topic).partition_count
            raise NotFound("finding a partition", partition=name, partition_count=count)
        return held

    def _lose(self, root: str, error: LogError) -> None:
        """A log directory went offline. Called from wherever its disk failed, so this only takes notes."""
        for name in [name for name in self._directory.partitions_of(root) if name in self._partitions]:
            self._note(name, offline(root, error, partition=name))

    def local_reader(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> TieredReader:
        """Of this disk alone, also where the tiers do not agree: for the records that only this disk holds."""
        from tiered.read.reader import TieredReader

        def source(name: TopicPartition) -> PartitionSource:
            return PartitionSource(name, self._partition(name).log, is_disk_alone=True)

        return TieredReader(source, isolation)

    def _source(self, name: TopicPartition) -> PartitionSource:
        return self._partition(name).source()

    def _note(self, name: TopicPartition, error: LogError) -> None:
        if isinstance(error, Conflict) and (held := self._partitions.get(name)) is not None:
            held.stopped, held.is_owned = error, False
            self._opener.remember_fencing(held, error)
        with self._problems_lock:
            if name not in self._partitions and name not in self._unopened:
                return  # its topic was deleted
            known, others = self.problems.get(name), self.problems
            self.problems = {**others, name: forget_locals(error)}
            if not is_alike(known, error):  # facts change every round
                # One line for one cause, however many partitions have it (`tiered.service.problem_watch` counts them).
                level = logging.DEBUG if any(is_alike(each, error) for each in others.values()) else logging.ERROR
                _log.log(level, "partition in trouble: partition=%s error=%s", name, error)

    def _forget(self, name: TopicPartition) -> None:
        with self._problems_lock:
            if name in self.problems and self._directory.is_online(name):
                self.problems = {each: error for each, error in self.problems.items() if each != name}

    def _check_writable(self) -> None:
        if self._directory.read_only:
            raise InvalidRequest("changing a directory that was opened read-only", directory=self._directory.roots[0])
