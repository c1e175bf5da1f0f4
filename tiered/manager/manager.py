"""The log manager: every topic of one directory, both tiers, one process.

It composes components and decides nothing: `policies` decide on snapshots, `tiered.maintenance.apply` carries out, and
only the caller knows the time (`tick(now_ms)`). Partitions are independent. An error of one (its store unavailable, its
bytes damaged, another writer) is recorded in `problems`, and the others continue, at open and later. A damaged or
contested partition raises its error to its readers and writers. An error of the whole directory or bucket (the lock,
the checkpoints, no such bucket, no access) is raised by the method that meets it.

Threads:

- Every method may be called from any thread.
- Topics are created and altered one at a time. Maintenance (`tick`, `apply`) runs one at a time. Both run in parallel.
- Appends, reads, `snapshots` and `plan` wait for neither.
- A `progress` callable must not create or alter topics.
- `close` and `abandon` come last, with no other call running.

A manager opened with ``read_only=True`` takes no lock, writes nothing anywhere and sees the directory and the bucket as
of its open. It may run in parallel to a writing manager.
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
from remote.manifest.manifest_memory_cache import ManifestMemoryCache
from remote.store import ObjectStore
from tiered.config.config import Config
from tiered.maintenance.cleaning import CleanerSettings, Cleaning
from tiered.maintenance.snapshots import Snapshots
from tiered.manager.deferred_open import DeferredOpen
from tiered.manager.directories import OverDirectories
from tiered.manager.reloading import Reloadable
from tiered.node.problems import is_same_problem
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.node.upload_pause import PausesUploads
from tiered.partition.acquisition import acquire_all, open_read_only_all
from tiered.partition.appending import append_shares, flush_all, raise_first
from tiered.partition.log_loading import Loaded, OnProgress, load_logs
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener, with_key_ring
from tiered.read.partition_source import PartitionSource, Readable
from tiered.stores.configured_store import configured_store, release
from tiered.stores.persistent_meter import Metered, PersistentMeter, persistent_meter
from tiered.topics.deleted_topic_usage import DeletedTopicUsage
from tiered.topics.partitioner import Partitioner
from tiered.topics.topic_creation import CreatesTopics
from tiered.topics.topic_deletion import TopicDeletion
from tiered.topics.topic_dry_run import TopicDryRun

if TYPE_CHECKING:
    from policies.decisions import Plan
    from tiered.maintenance.apply import Applied
    from tiered.maintenance.delete_records import DeletedRecords
    from tiered.maintenance.maintenance import ApplyProgress, Maintenance, ShouldStop
    from tiered.maintenance.task_pool import Load
    from tiered.read.reader import TieredReader

_log = logging.getLogger(__name__)

DRAIN_S = 10.0  # for running tasks when a manager closes, as in Kafka's pools


class LogManager(
    Snapshots,
    Readable,
    Metered,
    OverDirectories,
    Reloadable,
    PausesUploads,
    CreatesTopics,
    DeletedTopicUsage,
    TopicDryRun,
    DeferredOpen,
):
    """A manager of all topics of one directory. Open it with `LogManager.open`. Thread safe.

    A context manager that closes cleanly.
    """

    def __init__(
        self,
        config: Config,
        directory: LogDirectories,
        store: PersistentMeter | None,
        storage: Storage,
        known: ManifestMemoryCache | None = None,
        *,
        takes_over: bool = False,
        may_be_refused: bool = False,
    ) -> None:
        self.config = config
        # Replaced whole on every change, so an iteration sees one state.
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
        # `_topics_lock` guards the topics and their partitions; the lock of `_own_rounds` lets a single maintenance
        # run. A thread that holds the second one, or a partition's own lock, never takes `_topics_lock`. No thread
        # waits for the store under `_topics_lock`.
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
        known: ManifestMemoryCache | None = None,
        takes_over: bool = False,
        may_be_refused: bool = False,
    ) -> LogManager:
        """Open every topic of the directory, recover damaged logs, and acquire its partitions in the bucket.

        | parameter | meaning |
        |---|---|
        | `store` | overrides the configured store; it is closed with the manager |
        | `progress` | gets the progress of the loading |
        | `known` | pass the same object to repeated read-only opens: only newer manifests are fetched |
        | `takes_over` | an operator asked to take fenced partitions over (docs/explanation/diverged-logs.md) |
        | `may_be_refused` | a bucket that refuses as a whole is a problem of each partition; the disk stays in use |

        Raises Conflict if another manager has the directory open. Unless `read_only`, raises AccessDenied and NotFound
        if the bucket as a whole refuses access or does not exist. Errors of partitions are in `problems`.
        """
        disk = storage or DiskStorage()
        directory = LogDirectories(disk, config.data_dirs, read_only=read_only, cordoned=config.cordoned_dirs)
        try:
            store = store if store is not None else configured_store(config)
            store = with_key_ring(store, config) if store is not None else None
            meter = persistent_meter(store, directory, now_ms)
            asked = {"takes_over": takes_over, "may_be_refused": may_be_refused}
            manager = cls(config, directory, meter, disk, known if read_only else None, **asked)
        except BaseException:
            release(directory, store)
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
        """The topic. Raises NotFound, naming the topics that exist."""
        return self._registry.get(name)

    def alter_topic(self, name: str, properties: dict[str, str], *, now_ms: int) -> Topic:
        """Change a topic's own settings (an empty value removes one); effective at once.

        Raises InvalidRequest, and Unavailable for a topic that becomes tiered while the bucket is unavailable.
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
                self._forget(each.name)  # problems of the old settings do not apply to the next plan
        new = [each for each in held if self._directory.is_online(each.name) and not each.is_writer]
        failures = self._acquire(new, now_ms)  # the next maintenance commits the settings of owned partitions
        raise_first(failures if is_new else [])
        return altered

    def delete_topic(self, name: str, *, now_ms: int) -> None:
        """Delete a topic: invisible on return; files and objects follow (`tiered.topics.topic_deletion`).

        Raises NotFound, and Diverged for a log with records that only this disk holds: they stay, and so does the topic
        in the bucket.
        """
        self._check_writable()
        with self._topics_lock:
            raise_first([each.fatal_error for each in self._held([name]) if isinstance(each.fatal_error, Diverged)])
            gone = self._deletion.delete(name, self._partitions, self._rounds.lock, now_ms=now_ms)
            for each in gone.partitions():
                self._unopened.pop(each, None)
                self._forget(each)
        self._deletion.step(now_ms)  # if the bucket is available, its grace period counts from now

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
        """Append records, to one partition or split by key as Kafka does; returns the offsets by partition.

        Each partition's share is acknowledged on its own; there is no atomicity over partitions.

        Raises Fenced or Conflict for a partition that another writer took over: new records would contradict its
        records. Raises Unavailable for an empty log whose end only the unavailable bucket knows. Invalid records are
        refused before any is appended. If the disk fails half way, the facts of the error name the appended shares.
        """
        self._check_writable()
        chosen: Mapping[TopicPartition, Sequence[Record]]
        chosen = self.split(topic, records) if partition is None else {TopicPartition(topic, partition): records}
        encoded: dict[TopicPartition, tuple[Log, Iterable[bytearray | memoryview]]] = {}
        for name, share in chosen.items():
            # Every check that can refuse comes before the first append.
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
        """Append records in columns: an Arrow table or record batch, or `Columns` read from a log.

        An Arrow table has the columns key and value (binary or string of any kind), and may have timestamp (an Arrow
        timestamp, or milliseconds; `now_ms` without it) and headers (a list of structs key, value). Partitions are
        chosen as in `append`. Raises as `append`, and InvalidRequest for other columns.
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
        """The split of records by key, as Kafka's default partitioner does it; nothing is appended."""
        shares = self._partitioner.split(records, self._registry.get(topic).partition_count)
        return {TopicPartition(topic, number): share for number, share in sorted(shares.items())}

    def flush(self) -> None:
        """Flush all logs: every record appended so far is durable on return.

        Raises the first error, after trying all.
        """
        found = flush_all([held.log for held in list(self._partitions.values())])
        raise_first([error for error in found if error is not None])

    def roll(self, topic: str, *, now_ms: int) -> int:
        """Close the active segment of every partition of a topic; returns how many (empty ones never are)."""
        self._check_writable()
        return sum(self._partition(p).log.roll(now_ms=now_ms) for p in self._registry.get(topic).partitions())

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, now_ms: int
    ) -> dict[TopicPartition, DeletedRecords]:
        """Delete the records below each offset (-1: all): readers lose them at once, files follow later.

        All checks come before any deletion. Raises OffsetOutOfRange above a log's end, and InvalidRequest for a topic
        that only compacts. Raises an error if this manager may not write to a partition.
        `tiered.maintenance.delete_records` has order and crashes.
        """
        from tiered.maintenance.delete_records import delete_records

        self._check_writable()
        held = {self._partition(name): offset for name, offset in offsets.items()}
        return delete_records(held, self._directory.of, now_ms=now_ms, rounds=self._rounds.lock)

    def plan_deletion(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
        """The result that `delete_records` would have, with the same refusals; changes nothing."""
        from tiered.maintenance.delete_records import plan_deletion

        return {name: plan_deletion(self._partition(name), offset) for name, offset in offsets.items()}

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec | int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, FoundOffset | None]:
        """The offset of each spec (a name, or a timestamp in ms) over both tiers; None if there is none.

        `tiered.read.offset_listing` has the names. Raises as reading a partition does.
        """
        from tiered.read.offset_listing import find_offset

        reader = self.reader()
        return {name: find_offset(self._source(name), reader, spec, isolation) for name, spec in specs.items()}

    def move(
        self, partition: TopicPartition, directory: str, *, now_ms: int, progress: Progress = lambda done, all_: None
    ) -> None:
        """Move a partition to another log directory during writes and reads; maintenance waits.

        Its old files are deleted ``file.delete.delay.ms`` later. Raises InvalidRequest, NotFound, and DiskFailed (no
        room, a failing disk): then it is in its old place, or the next start finishes the move.
        """
        self._check_writable()
        # A pass over this log is cancelled first, because the maintenance run around it is waited for next.
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
        """The partition. Raises NotFound, or the reason if it could not be opened or its disk is offline."""
        return self._partition(name)

    def plan(self, now_ms: int, topics: Iterable[str] | None = None) -> Plan:
        """The decisions of the policies now.

        Changes nothing; skips tiered partitions without a known manifest.
        """
        from policies.plan import plan as plan_snapshots

        known = [held for held in self._held(topics) if held.reconciled_manifest() is not None or not held.is_tiered]
        return plan_snapshots(self._looked_at(known, now_ms), now_ms)

    def apply(
        self,
        plan: Plan,
        *,
        progress: ApplyProgress = lambda partition, decision: None,
        should_stop: ShouldStop = lambda: False,
    ) -> dict[TopicPartition, Applied]:
        """Apply a plan. A partition's error ends its part of the plan and is recorded in `problems`.

        `should_stop` is called before each decision and during a cleaning; any prefix of a plan is safe. After the
        store did not answer for one partition, the other tiered ones are left for the next maintenance: each would wait
        as long. With several cleaner threads, both callables are called from all of them.
        """
        self._check_writable()
        return self._rounds.apply(plan, progress=progress, should_stop=should_stop)

    def tick(self, now_ms: int, *, should_stop: ShouldStop = lambda: False, waits: bool = True) -> bool:
        """One maintenance run: flush and forget due work, plan, apply, checkpoint. True if more is due.

        Raises only errors of the whole directory; a partition's error is in `problems`. Disk work comes first. With
        `waits` all work is done on return, in order, by the caller's thread. Without it, threads do the store requests
        in parallel to the caller (`tiered.maintenance.maintenance`).
        """
        self._check_writable()
        self._open_late(now_ms)
        return self._rounds.round(now_ms, should_stop=should_stop, waits=waits)

    def wait_for_tasks(self, timeout_s: float | None = None) -> bool:
        """Wait until no task of non-waiting maintenance is running; False if the timeout ends first."""
        return self._own_rounds is None or self._own_rounds.tasks.wait_idle(timeout_s)

    def task_loads(self) -> dict[str, Load]:
        """The load of the task pools, by kind; empty for a read-only open."""
        return self._own_rounds.tasks.loads if self._own_rounds is not None else {}

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Close and checkpoint the logs, mark the directory clean, close the store.

        Running uploads have `drain_s` to end and be committed; a cut upload is an orphan. A partition that could not be
        opened was not recovered either, so its directory is not marked clean.
        """
        try:
            tasks = self._own_rounds.tasks if self._own_rounds is not None else None
            if tasks is not None and not tasks.stop(drain_s):
                _log.warning("closing before the store replied: tasks=%d", len(tasks.states))
        finally:
            self._opener.keep_counts()
            try:
                self._directory.close(unrecovered=list(self._unopened))
            finally:
                self._opener.close()

    @property
    def refused_checkpoints(self) -> DiskFailed | None:
        """Why the checkpoints of a directory wait for room; None if none do."""
        return self._own_rounds.refused if self._own_rounds is not None else None

    def abandon(self) -> None:
        """Release everything without writing, as after a crash."""
        if self._own_rounds is not None:
            self._own_rounds.tasks.stop(0.0)
        self._opener.close()
        release(self._directory, self._store)

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        is_cut = kind is not None and not issubclass(kind, Exception)  # interrupted a second time
        self.close(drain_s=0.0 if is_cut else DRAIN_S)

    # -- inside --------------------------------------------------------------------------------------------------

    def _new_rounds(self) -> Maintenance:
        from tiered.maintenance.maintenance import Maintenance
        from tiered.maintenance.remote_tasks import ManagerServices

        services = ManagerServices(
            directories=self._directory,
            store=self._store,
            opener=self._opener,
            cleaning=lambda: self.cleaning,
            deletion=self._deletion,
            held=self._held,
            find=self._partition,
            acquire=self._acquire,
            note=self._note,
            forget=self._forget,
            heal_topics=self._registry.heal,
        )
        snapshots_of = partial(self._looked_at, may_ask=False)
        return Maintenance(
            services,
            threads=self.config.tier_threads,
            take_snapshots=lambda at: snapshots_of(self._held(), at),
            plan=self.plan,
        )

    def _open_all(self, now_ms: int, progress: OnProgress) -> None:
        """Open every log, then load their manifests in parallel (they wait for the network)."""
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
                # Each placement depends on the one before, so these are opened one after the other.
                homeless.append(name)
            else:
                jobs.setdefault(root, []).append(name)

        def open_log(name: TopicPartition) -> Partition:
            return self._opener.open_log(name, topics[name.topic], now_ms)

        # A read-only open recovers nothing: short reads only, and threads would contend for the interpreter.
        threads = 1 if self._directory.read_only else self.config.int_of("num.recovery.threads.per.data.dir")
        loaded = load_logs(jobs, open_log, threads_per_directory=threads, progress=progress)
        held = self._keep(loaded | load_logs({"": homeless}, open_log, threads_per_directory=1))
        held.sort(key=lambda each: each.name)
        if self._directory.read_only:
            self._acquire(held, now_ms)
            return
        for _, of_topic in groupby(held, key=lambda each: each.name.topic):
            self._acquire(list(of_topic), now_ms)

    def _as_tiered(self, topic: Topic) -> Topic | None:
        """The topic, registered as tiered if it becomes so now; None for one with invalid settings."""
        try:
            begins = not self._directory.read_only and self._opener.begins_tiering(topic)
        except InvalidRequest as error:
            self._leave_unopened(topic.partitions(), error)
            return None
        return self._registry.alter(topic.name, topic.properties, is_tiered=True) if begins else topic

    def _keep(self, loaded: Loaded) -> list[Partition]:
        """The logs that could be opened; errors of the others are noted."""
        held = []
        for name, found in loaded.items():
            if isinstance(found, LogError):
                self._leave_unopened([name], found)
            else:
                held.append(found)
        self._partitions.update({each.name: each for each in held})
        return held

    def _acquire(self, held: Sequence[Partition], now_ms: int) -> list[LogError]:
        """Acquire tiered partitions not yet owned, commit altered settings; notes and returns the errors."""
        waiting = [each for each in held if self._opener.is_waiting(each)]
        acquire = partial(self._opener.acquire, now_ms=now_ms)
        is_look, url = self._directory.read_only, self._store.url if self._store is not None else ""
        found = open_read_only_all(acquire, waiting, url) if is_look else acquire_all(acquire, waiting)
        for each, error in zip(waiting, found, strict=True):
            if error is not None:
                self._note(each.name, error)
            else:
                self._forget(each.name)
        return [error for error in found if error is not None]

    def own_again(self, names: Iterable[TopicPartition], *, now_ms: int) -> None:
        """Retry the acquisition of partitions without the writer role. Raises the first error."""
        raise_first(self._acquire([self._partition(name) for name in names], now_ms))

    def _leave_unopened(self, names: Iterable[TopicPartition], error: LogError) -> None:
        for name in names:
            self._unopened[name] = error
            self._note(name, error)

    def _partition(self, name: TopicPartition) -> Partition:
        """The partition. Raises NotFound, or the reason if it could not be opened or its disk is offline."""
        self._directory.check_online(name)
        held = self._partitions.get(name)
        if held is None:
            if name in self._unopened:
                raise self._unopened[name]
            count = self._registry.get(name.topic).partition_count
            raise NotFound("partition not found", partition=name, partition_count=count)
        return held

    def _lose(self, root: str, error: LogError) -> None:
        """Note that a log directory went offline. Called at any failure of its disk, so it only takes notes."""
        for name in [name for name in self._directory.partitions_of(root) if name in self._partitions]:
            self._note(name, offline(root, error, partition=name))

    def local_reader(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> TieredReader:
        """A reader of this disk alone, even if the tiers diverged: for records that only this disk holds."""
        from tiered.read.reader import TieredReader

        def source(name: TopicPartition) -> PartitionSource:
            return PartitionSource(name, self._partition(name).log, is_disk_alone=True)

        return TieredReader(source, isolation)

    def _source(self, name: TopicPartition) -> PartitionSource:
        return self._partition(name).source()

    def _note(self, name: TopicPartition, error: LogError) -> None:
        if isinstance(error, Conflict) and (held := self._partitions.get(name)) is not None:
            held.fatal_error, held.is_writer = error, False
            self._opener.remember_fencing(held, error)
        with self._problems_lock:
            if name not in self._partitions and name not in self._unopened:
                return  # its topic was deleted
            known, others = self.problems.get(name), self.problems
            self.problems = {**others, name: forget_locals(error)}
            if not is_same_problem(known, error):  # facts change every time
                # One line for one cause, however many partitions have it (`tiered.service.worker` counts them).
                level = (
                    logging.DEBUG if any(is_same_problem(each, error) for each in others.values()) else logging.ERROR
                )
                _log.log(level, "a partition has a problem: partition=%s error=%s", name, error)

    def _forget(self, name: TopicPartition) -> None:
        with self._problems_lock:
            if name in self.problems and self._directory.is_online(name):
                self.problems = {each: error for each, error in self.problems.items() if each != name}

    def _check_writable(self) -> None:
        if self._directory.read_only:
            raise InvalidRequest("cannot change a directory that is open read-only", directory=self._directory.roots[0])
