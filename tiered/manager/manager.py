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
from typing import TYPE_CHECKING

from local.errors import DiskFailed, InvalidRequest, LogError
from local.format.record import Record
from local.lock_ranks import LockRank, ranked_lock
from local.log import AppendResult, Durability, Log
from local.logdirs.log_dirs import LogDirectories
from local.logdirs.log_moves import Progress
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset, OffsetSpec
from local.storage import DiskStorage, Storage
from policies.rules import Pause
from remote.manifest.manifest_memory_cache import ManifestMemoryCache
from remote.store import ObjectStore
from remote.store.middleware.metered_store import RequestCounts
from tiered.config.config import Config
from tiered.maintenance.cleaning import CleanerSettings, Cleaning
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.node.upload_pause import pause_uploads, paused_topics, resume_uploads
from tiered.partition.appending import Partitioner, append_shares, flush_all, raise_first
from tiered.partition.log_loading import OnProgress
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener, with_key_ring
from tiered.partition.partition_table import PartitionTable
from tiered.read.partition_source import PartitionSource, Readable
from tiered.stores.configured_store import configured_store, release
from tiered.stores.persistent_meter import PersistentMeter, RequestHistory, persistent_meter
from tiered.topics.topic_admin import DeletedPartition, Reloaded, TopicAdmin
from tiered.topics.topic_creation import AskedTopic
from tiered.topics.topic_dry_run import AlteredTopic, NewTopic, TopicLoss

if TYPE_CHECKING:
    from policies.decisions import Plan
    from policies.snapshot import PartitionFigures, PartitionSnapshot
    from tiered.maintenance.apply import Applied
    from tiered.maintenance.delete_records import DeletedRecords
    from tiered.maintenance.maintenance import ApplyProgress, Maintenance, ShouldStop
    from tiered.read.reader import TieredReader

_log = logging.getLogger(__name__)

DRAIN_S = 10.0  # for running tasks when a manager closes, as in Kafka's pools


class LogManager(Readable):
    """A manager of all topics of one directory. Open it with `LogManager.open`. Thread safe.

    A context manager that closes cleanly. Its components, for the other packages of `tiered`:

    | attribute | component |
    |---|---|
    | `directories`, `store` | the log directories; the metered store, None without one |
    | `registry`, `topic_admin` | the list of topics; their creation, change and deletion |
    | `opener`, `table` | opens partitions; finds and acquires them, and has their problems |
    | `cleaning`, `maintenance` | the cleaner; the background work, None in a read-only open |
    """

    def __init__(
        self,
        config: Config,
        directories: LogDirectories,
        store: PersistentMeter | None,
        storage: Storage,
        known: ManifestMemoryCache | None = None,
        *,
        takes_over: bool = False,
        may_be_refused: bool = False,
    ) -> None:
        lock = ranked_lock(LockRank.MAINTENANCE)
        self.directories = directories
        self.store = store
        self.registry = TopicRegistry(directories.places())
        self.opener = Opener(
            config, directories, store, storage, known, takes_over=takes_over, may_be_refused=may_be_refused
        )
        self.table = PartitionTable(
            directories, self.registry, self.opener, store_url=store.url if store is not None else ""
        )
        self.topic_admin = TopicAdmin(self.registry, self.opener, directories, store, self.table, lock)
        self.cleaning = Cleaning(CleanerSettings.of(config))
        self.maintenance = self._new_maintenance(lock) if not directories.read_only else None
        self._partitioner = Partitioner()

    def _new_maintenance(self, lock: threading.RLock) -> Maintenance:
        from tiered.maintenance.maintenance import Maintenance  # a read-only open does not need its modules

        return Maintenance(
            lock=lock,
            table=self.table,
            directories=self.directories,
            registry=self.registry,
            opener=self.opener,
            store=self.store,
            deletion=self.topic_admin.deletion,
            cleaning=self.cleaning,
            threads=self.config.tier_threads,
        )

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
            manager = cls(
                config,
                directory,
                meter,
                disk,
                known if read_only else None,
                takes_over=takes_over,
                may_be_refused=may_be_refused,
            )
        except BaseException:
            release(directory, store)
            raise
        try:
            manager._load(now_ms, progress)
        except BaseException:
            manager.abandon()
            raise
        return manager

    def _load(self, now_ms: int, progress: OnProgress) -> None:
        if not self.directories.read_only:
            self.registry.heal()
            self.topic_admin.deletion.resume(now_ms)
        for directory in self.directories.online:
            self.cleaning.load(directory)
        # A read-only open recovers nothing: short reads only, and threads would contend for the interpreter.
        threads = 1 if self.directories.read_only else self.config.int_of("num.recovery.threads.per.data.dir")
        self.table.load(now_ms, threads=threads, progress=progress)

    @property
    def config(self) -> Config:
        """The present configuration (`reload`)."""
        return self.opener.config

    @property
    def problems(self) -> dict[TopicPartition, LogError]:
        """The errors of partitions. Replaced whole on every change, so an iteration sees one state."""
        return self.table.problems

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        return self.registry.all()

    def topic(self, name: str) -> Topic:
        """The topic. Raises NotFound, naming the topics that exist."""
        return self.registry.get(name)

    def create_topic(
        self, name: str, partitions: int = 1, properties: dict[str, str] | None = None, *, now_ms: int
    ) -> Topic:
        """Create a topic; its settings and access to the bucket are checked before anything is written.

        Raises InvalidRequest. After any other error later than the registration (the bucket became unavailable) the
        topic exists, and a later `tick` acquires it.
        """
        requested = AskedTopic(name=name, partitions=partitions, properties=properties or {})
        (made,) = self.create_topics([requested], now_ms=now_ms)
        return made

    def create_topics(self, asked: Sequence[AskedTopic], *, now_ms: int) -> list[Topic]:
        """As `create_topic`, for several topics: all of them, or none if one is refused.

        Two syncs for all and two for each partition; one by one, each topic costs four more.
        """
        self._check_writable()
        return self.topic_admin.creation.create(asked, now_ms=now_ms)

    def alter_topic(self, name: str, properties: dict[str, str], *, now_ms: int) -> Topic:
        """Change a topic's own settings (an empty value removes one); effective at once.

        Raises InvalidRequest, and Unavailable for a topic that becomes tiered while the bucket is unavailable.
        """
        self._check_writable()
        return self.topic_admin.alter(name, properties, now_ms=now_ms)

    def delete_topic(self, name: str, *, now_ms: int) -> None:
        """Delete a topic: invisible on return; files and objects follow (`tiered.topics.topic_deletion`).

        Raises NotFound, and Diverged for a log with records that only this disk holds: they stay, and so does the topic
        in the bucket.
        """
        self._check_writable()
        self.topic_admin.delete(name, now_ms=now_ms)

    def plan_new_topic(self, name: str, partitions: int = 1, properties: Mapping[str, str] | None = None) -> NewTopic:
        """The topic that `create_topic` would make, with the same errors."""
        return self.topic_admin.dry_run.new_topic(name, partitions, properties)

    def plan_altered_topic(self, name: str, properties: Mapping[str, str], *, now_ms: int) -> AlteredTopic:
        """The changes that `alter_topic` would make, with the same errors."""
        return self.topic_admin.dry_run.altered_topic(name, properties, now_ms=now_ms)

    def plan_deleted_topic(self, name: str, *, now_ms: int) -> TopicLoss:
        """The loss that `delete_topic` would cause, and the pins and forks that delay it. Raises NotFound.

        If the bucket does not answer, its figures are unknown.
        """
        return self.topic_admin.dry_run.deleted_topic(name, now_ms=now_ms)

    def deleted_topics(self) -> list[Topic]:
        """Deleted topics that may still have objects in the bucket, by deletion time; sends no request."""
        return self.topic_admin.deleted()

    def deleted_partitions(self) -> Sequence[DeletedPartition]:
        """The partitions of deleted topics, by deletion time; reads the manifest of each from the store."""
        return self.topic_admin.deleted_partitions()

    def reload(self, config: Config, *, now_ms: int) -> Reloaded:
        """Apply another configuration: settings of topics at once, others at the next start.

        Raises InvalidRequest, with nothing changed, for settings that contradict some topic's own.
        """
        self._check_writable()
        return self.topic_admin.reload(config, now_ms=now_ms)

    def pause_uploads(self, topics: Iterable[str] | None = None, *, now_ms: int, reason: str = "") -> dict[str, Pause]:
        """Pause the uploads of some topics, or of all (`tiered.node.upload_pause`); a running upload is committed."""
        self._check_writable()
        return pause_uploads(self.directories.places(), topics, now_ms=now_ms, reason=reason)

    def resume_uploads(self, topics: Iterable[str] | None = None) -> dict[str, Pause]:
        """Resume them; the next maintenance continues the uploads."""
        self._check_writable()
        return resume_uploads(self.directories.places(), topics)

    def paused_topics(self) -> dict[str, Pause]:
        """The topics with paused uploads, by name."""
        return paused_topics(self.directories.places())

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
            held = self.table.find(name)
            held.check_appendable()
            encoded[name] = (held.log, held.log.encode(share, now_ms=now_ms))
        for name in encoded:
            self.table.find(name).note_append()
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
        count = self.registry.get(topic).partition_count
        shares = self._partitioner.split_columns(chunks, count) if partition is None else {partition: chunks}
        encoded: dict[TopicPartition, tuple[Log, Iterable[bytearray | memoryview]]] = {}
        for number, share in sorted(shares.items()):
            held = self.table.find(TopicPartition(topic, number))
            held.check_appendable()
            encoded[held.name] = (held.log, held.log.encode_columns(share, now_ms=now_ms))
        for name in encoded:
            self.table.find(name).note_append()
        return append_shares(encoded, now_ms, durability)

    def split(self, topic: str, records: Sequence[Record]) -> dict[TopicPartition, list[Record]]:
        """The split of records by key, as Kafka's default partitioner does it; nothing is appended."""
        shares = self._partitioner.split(records, self.registry.get(topic).partition_count)
        return {TopicPartition(topic, number): share for number, share in sorted(shares.items())}

    def flush(self) -> None:
        """Flush all logs: every record appended so far is durable on return.

        Raises the first error, after trying all.
        """
        found = flush_all([each.log for each in self.table.opened(self.table.names())])
        raise_first([error for error in found if error is not None])

    def roll(self, topic: str, *, now_ms: int) -> int:
        """Close the active segment of every partition of a topic; returns how many (empty ones never are)."""
        self._check_writable()
        return sum(self.table.find(p).log.roll(now_ms=now_ms) for p in self.registry.get(topic).partitions())

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
        held = {self.table.find(name): offset for name, offset in offsets.items()}
        return delete_records(held, self.directories.of, now_ms=now_ms, maintenance_lock=self._writer.lock)

    def plan_deletion(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
        """The result that `delete_records` would have, with the same refusals; changes nothing."""
        from tiered.maintenance.delete_records import plan_deletion

        return {name: plan_deletion(self.table.find(name), offset) for name, offset in offsets.items()}

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
        return {name: find_offset(self.table.source(name), reader, spec, isolation) for name, spec in specs.items()}

    def move(
        self, partition: TopicPartition, directory: str, *, now_ms: int, progress: Progress = lambda done, all_: None
    ) -> None:
        """Move a partition to another log directory during writes and reads; maintenance waits.

        Its old files are deleted ``file.delete.delay.ms`` later. Raises InvalidRequest, NotFound, and DiskFailed (no
        room, a failing disk): then it is in its old place, or the next start finishes the move.
        """
        self._check_writable()
        # A pass over this log is cancelled first, because the maintenance run around it is waited for next.
        with self.table.find(partition).log.cleaning.paused(), self._writer.lock:
            held = self.table.find(partition)
            with held.lock:
                unconfirmed_from = held.log.notes.unconfirmed_from
                self.directories.move(
                    partition, directory, now_ms=now_ms, delay_ms=held.rules.file_delete_delay_ms, progress=progress
                )
                if unconfirmed_from is not None:
                    held.log.notes.mark_unconfirmed(unconfirmed_from)
            self.directories.remove_deleted(now_ms)

    def local_reader(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> TieredReader:
        """A reader of this disk alone, even if the tiers diverged: for records that only this disk holds."""
        from tiered.read.reader import TieredReader

        def source(name: TopicPartition) -> PartitionSource:
            return PartitionSource(name, self.table.find(name).log, is_disk_alone=True)

        return TieredReader(source, isolation)

    # -- background work -----------------------------------------------------------------------------------------

    def partition(self, name: TopicPartition) -> Partition:
        """The partition. Raises NotFound, or the reason if it could not be opened or its disk is offline."""
        return self.table.find(name)

    def partitions(self, topics: Iterable[str] | None = None) -> list[Partition]:
        """The open partitions with an online disk, by name."""
        return self.table.all(topics)

    def snapshots(self, now_ms: int, topics: Iterable[str] | None = None) -> list[PartitionSnapshot]:
        """Both tiers of every partition (or of some topics') at this moment.

        Partitions that could not be opened or read (an index that the disk does not return) are left out and in
        `problems`.
        """
        return self._snapshots(self.table.all(topics), now_ms)

    def figures(self, now_ms: int, topics: Iterable[str] | None = None) -> list[PartitionFigures]:
        """The same without reading the logs, for figures alone (`Partition.figures`)."""
        return self.table.figures(now_ms, self.table.all(topics))

    def plan(self, now_ms: int, topics: Iterable[str] | None = None) -> Plan:
        """The decisions of the policies now.

        Changes nothing; skips tiered partitions without a known manifest.
        """
        from policies.plan import plan as plan_snapshots

        return plan_snapshots(self._snapshots(self.table.known(topics), now_ms), now_ms)

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
        return self._writer.apply(plan, progress=progress, should_stop=should_stop)

    def tick(self, now_ms: int, *, should_stop: ShouldStop = lambda: False, waits: bool = True) -> bool:
        """One maintenance run: flush and forget due work, plan, apply, checkpoint. True if more is due.

        Raises only errors of the whole directory; a partition's error is in `problems`. Disk work comes first. With
        `waits` all work is done on return, in order, by the caller's thread. Without it, threads do the store requests
        in parallel to the caller (`tiered.maintenance.maintenance`).
        """
        maintenance = self._writer
        self.table.open_late(now_ms)
        return maintenance.round(now_ms, should_stop=should_stop, waits=waits)

    def wait_for_tasks(self, timeout_s: float | None = None) -> bool:
        """Wait until no task of non-waiting maintenance is running; False if the timeout ends first."""
        return self.maintenance is None or self.maintenance.tasks.wait_idle(timeout_s)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Close and checkpoint the logs, mark the directory clean, close the store.

        Running uploads have `drain_s` to end and be committed; a cut upload is an orphan. A partition that could not be
        opened was not recovered either, so its directory is not marked clean.
        """
        try:
            tasks = self.maintenance.tasks if self.maintenance is not None else None
            if tasks is not None and not tasks.stop(drain_s):
                _log.warning("closing before the store replied: tasks=%d", len(tasks.states))
        finally:
            self.opener.keep_counts()
            try:
                self.directories.close(unrecovered=self.table.unopened())
            finally:
                self.opener.close()

    @property
    def refused_checkpoints(self) -> DiskFailed | None:
        """Why the checkpoints of a directory wait for room; None if none do."""
        return self.maintenance.refused if self.maintenance is not None else None

    def offline_directories(self) -> Mapping[str, LogError]:
        """The log directories that are offline until the next start, and why. The others stay in use."""
        return self.directories.offline

    def request_counts(self) -> RequestCounts | None:
        """Requests sent to the store since it was opened; None without a store."""
        return self.store.counts() if self.store is not None else None

    def request_history(self) -> RequestHistory | None:
        """Requests of this and earlier managers of the directory, by month and topic; None without a store."""
        return self.store.history() if self.store is not None else None

    def abandon(self) -> None:
        """Release everything without writing, as after a crash."""
        if self.maintenance is not None:
            self.maintenance.tasks.stop(0.0)
        self.opener.close()
        release(self.directories, self.store)

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        is_cut = kind is not None and not issubclass(kind, Exception)  # interrupted a second time
        self.close(drain_s=0.0 if is_cut else DRAIN_S)

    # -- inside --------------------------------------------------------------------------------------------------

    def _source(self, name: TopicPartition) -> PartitionSource:
        return self.table.source(name)

    def _snapshots(self, partitions: Iterable[Partition], now_ms: int) -> list[PartitionSnapshot]:
        return self.table.snapshots(now_ms, partitions, uncleanable=self.cleaning.waiting(now_ms))

    @property
    def _writer(self) -> Maintenance:
        """The background work. Raises InvalidRequest in a read-only open."""
        self._check_writable()
        assert self.maintenance is not None, "an open for writing has it"
        return self.maintenance

    def _check_writable(self) -> None:
        if self.directories.read_only:
            raise InvalidRequest(
                "cannot change a directory that is open read-only", directory=self.directories.roots[0]
            )
