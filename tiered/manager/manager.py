"""The log manager: every topic of one directory, both tiers, one process.

Partitions are independent: an error of one is recorded in `problems`, raised to its readers and writers if the
partition is damaged or contested, and the others continue. An error of the whole directory or bucket is raised by the
method that meets it. The caller gives the time (`tick(now_ms)`).

Every method may be called from any thread, `close` and `abandon` last, with no other call running. Topics are created
and altered one at a time, and maintenance (`tick`, `apply`) runs one at a time, both in parallel. Appends, reads,
`snapshots` and `plan` wait for neither. A `progress` callable must not create or alter topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from local.errors import LogError
from local.format.record import Record
from local.log import AppendResult, Durability, Log
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from local.storage import DiskStorage
from tiered.config.secrets import keyed_store
from tiered.maintenance.cleaning import CleanerSettings, Cleaning
from tiered.partition.partition_opening import Opener
from tiered.partition.partition_table import PartitionTable, flush_all
from tiered.read.partition_source import PartitionSource, Readable
from tiered.stores.configured_store import configured_store, release
from tiered.stores.persistent_meter import PersistentMeter
from tiered.topics.topic_admin import TopicAdmin

if TYPE_CHECKING:
    from local.records.record_columns import RecordColumns
    from local.storage import Storage
    from policies.decisions import Plan
    from policies.snapshot import PartitionSnapshot
    from remote.manifest.manifest_memory_cache import ManifestMemoryCache
    from remote.store import ObjectStore
    from tiered.config.config import Config
    from tiered.maintenance.maintenance import ApplyProgress, Maintenance, ShouldStop
    from tiered.maintenance.upload_and_commit import Applied
    from tiered.partition.partition import Partition
    from tiered.partition.partition_table import OnProgress

_log = logging.getLogger(__name__)

DRAIN_S = 10.0  # for running tasks when a manager closes, as in Kafka's pools
Batches = Iterable[bytearray | memoryview]
T = TypeVar("T")


class LogManager(Readable):
    """All topics of one directory (docs/reference/python-api.md). Thread safe; closes as a context manager."""

    def __init__(self, directories: LogDirectories, opener: Opener) -> None:
        self.directories, self.opener = directories, opener
        self.store, self.pauses = opener.store, opener.pauses
        self.partitions = PartitionTable(directories, opener)
        self.topics = TopicAdmin(self.partitions)
        self.cleaning = Cleaning(CleanerSettings.of(opener.config))
        self.appender = Appender(self.partitions)
        self.append, self.append_columns = self.appender.append, self.appender.append_columns
        self._maintenance: Maintenance | None = None
        if not directories.read_only:
            from tiered.maintenance.maintenance import Maintenance  # a read-only open does not need its modules

            self._maintenance = Maintenance(self.partitions, self.topics.deletion, self.cleaning)

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        now_ms: int,
        read_only: bool = False,
        storage: Storage | None = None,
        store: ObjectStore | None = None,
        progress: OnProgress = lambda progress: None,
        known: ManifestMemoryCache | None = None,
        takes_over: bool = False,
        may_be_refused: bool = False,
    ) -> LogManager:
        """Open every topic of the directory, recover damaged logs, and acquire its partitions in the bucket.

        | parameter | meaning |
        |---|---|
        | `read_only` | take no lock, write nothing, in parallel to a writing manager; both tiers are as of the open |
        | `store` | overrides the configured store; it is closed with the manager |
        | `known` | pass the same object to repeated read-only opens: only newer manifests are fetched |
        | `takes_over` | an operator asked to take fenced partitions over (docs/explanation/diverged-logs.md) |
        | `may_be_refused` | a bucket that refuses as a whole is a problem of each partition; the disk stays in use |

        Raises Conflict if another manager has the directory open. Unless `read_only`, raises AccessDenied and NotFound
        if the bucket as a whole refuses access or does not exist. Errors of partitions are in `problems`.
        """
        disk = storage or DiskStorage()
        directories = LogDirectories(disk, config.data_dirs, read_only=read_only, cordoned=config.cordoned_dirs)
        try:
            store = store if store is not None else configured_store(config)
            store = keyed_store(store, config.key_ring) if store is not None else None
            place = directories.first_online
            meter = PersistentMeter(store, place, now_ms, read_only=read_only) if store is not None else None
            known = known if read_only else None
            opener = Opener(
                config, directories, meter, disk, known, takes_over=takes_over, may_be_refused=may_be_refused
            )
            manager = cls(directories, opener)
        except BaseException:
            release(directories, store)
            raise
        try:
            manager._load(now_ms, progress)
        except BaseException:
            manager.abandon()
            raise
        return manager

    def _load(self, now_ms: int, progress: OnProgress) -> None:
        if not self.directories.read_only:
            self.partitions.registry.heal()
            self.topics.deletion.resume(now_ms)
        for directory in self.directories.online:
            self.cleaning.load(directory)
        # A read-only open recovers nothing: short reads only, and threads would contend for the interpreter.
        threads = 1 if self.directories.read_only else self.config.int_of("num.recovery.threads.per.data.dir")
        self.partitions.load(now_ms, threads=threads, progress=progress)

    @property
    def config(self) -> Config:
        return self.opener.config

    @property
    def problems(self) -> dict[TopicPartition, LogError]:
        """The errors of partitions. Replaced whole on every change, so an iteration sees one state."""
        return self.partitions.problems

    def flush(self) -> None:
        """Make every record appended so far durable. Raises the first error, after trying all logs."""
        self.partitions.flush()

    def snapshots(self, now_ms: int, topics: Iterable[str] | None = None) -> list[PartitionSnapshot]:
        """Both tiers of every partition (or of some topics') now, without unreadable ones (see `problems`)."""
        return self._snapshots(self.partitions.all(topics), now_ms)

    def plan(self, now_ms: int, topics: Iterable[str] | None = None) -> Plan:
        """The decisions of the policies now. Skips tiered partitions without a known manifest."""
        from policies.plan import plan as plan_snapshots

        return plan_snapshots(self._snapshots(self.partitions.known(topics), now_ms), now_ms)

    def apply(
        self,
        plan: Plan,
        *,
        progress: ApplyProgress = lambda partition, decision: None,
        should_stop: ShouldStop = lambda: False,
    ) -> dict[TopicPartition, Applied]:
        """Apply a plan and return the effects. A partition's error ends its part and is recorded in `problems`.

        `should_stop` is called before each decision and during cleanings; cleaner threads call it and `progress` too.
        After the store did not answer for one partition, the other tiered ones are left for the next maintenance.
        """
        return self.maintenance.apply(plan, progress=progress, should_stop=should_stop)

    @property
    def maintenance(self) -> Maintenance:
        """The background work. Raises InvalidRequest in a read-only open."""
        self.directories.check_writable()
        assert self._maintenance is not None, "an open for writing has it"
        return self._maintenance

    def tick(self, now_ms: int, *, should_stop: ShouldStop = lambda: False, waits: bool = True) -> bool:
        """One maintenance run (`tiered.maintenance.maintenance`). True if more is due.

        Raises only errors of the whole directory; a partition's error is in `problems`. With `waits` the caller's
        thread does all work before the return, else other threads do the store requests.
        """
        maintenance = self.maintenance
        self.partitions.open_late(now_ms)
        return maintenance.round(now_ms, should_stop=should_stop, waits=waits)

    def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Close and checkpoint the logs, mark the directory clean, close the store.

        Running uploads have `drain_s` to end and be committed. A log that could not be opened prevents the clean mark.
        """
        try:
            tasks = self._maintenance.tasks if self._maintenance is not None else None
            if tasks is not None and not tasks.stop(drain_s):
                _log.warning("closing before the store replied: tasks=%d", len(tasks.states))
        finally:
            self.opener.keep_counts()
            try:
                self.directories.close(unrecovered=self.partitions.unopened())
            finally:
                self.opener.close()

    def abandon(self) -> None:
        """Release everything without writing, as after a crash."""
        if self._maintenance is not None:
            self._maintenance.tasks.stop(0.0)
        self.opener.close()
        release(self.directories, self.store)

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        is_cut = kind is not None and not issubclass(kind, Exception)  # interrupted a second time
        self.close(drain_s=0.0 if is_cut else DRAIN_S)

    def _source(self, name: TopicPartition) -> PartitionSource:
        return self.partitions.source(name)

    def _snapshots(self, partitions: Iterable[Partition], now_ms: int) -> list[PartitionSnapshot]:
        return self.partitions.snapshots(now_ms, partitions, uncleanable=self.cleaning.waiting(now_ms))


class Appender:
    """Appends to the partitions of a manager. Thread safe.

    Records are split by Kafka's default partitioner: murmur2 of the key, sign bit cleared, modulo the number of
    partitions. Each call gives its records without a key to the next partition. Source: kafka `Utils.murmur2`,
    `BuiltInPartitioner`.

    Order of effects of an append: every share is written → all logs are synced in parallel → the call returns. A crash
    in between leaves any subset of the shares, none acknowledged. After the failed write of one share, the earlier
    shares are still flushed, because the error names them. The later shares are not written.
    """

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._partitioner = Partitioner()

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

        Each partition's share is acknowledged on its own. Invalid records are refused before any append. Raises Fenced
        or Conflict for a partition that another writer took over, and Unavailable for an empty log whose end only the
        unavailable bucket knows. If the disk fails half way, the facts of the error name the appended shares.
        """
        self._table.directories.check_writable()
        shares: Mapping[TopicPartition, Sequence[Record]]
        shares = self.split(topic, records) if partition is None else {TopicPartition(topic, partition): records}
        return self._append(shares, lambda log, share: log.encode(share, now_ms=now_ms), now_ms, durability)

    def append_columns(
        self,
        topic: str,
        columns: object,
        partition: int | None = None,
        *,
        now_ms: int,
        durability: Durability = Durability.MEMORY,
    ) -> dict[TopicPartition, AppendResult]:
        """As `append`, for an Arrow table or record batch (docs/reference/python-api.md), or `Columns` read from a log.

        Raises as `append`, and InvalidRequest for other columns.
        """
        from local.records.record_columns import record_columns

        self._table.directories.check_writable()
        chunks = record_columns(columns, now_ms=now_ms)
        count = self._table.registry.get(topic).partition_count
        numbered = self._partitioner.split_columns(chunks, count) if partition is None else {partition: chunks}
        shares = {TopicPartition(topic, number): share for number, share in sorted(numbered.items())}
        return self._append(shares, lambda log, share: log.encode_columns(share, now_ms=now_ms), now_ms, durability)

    def split(self, topic: str, records: Sequence[Record]) -> dict[TopicPartition, list[Record]]:
        """The split of records by key, as Kafka's default partitioner does it; nothing is appended."""
        shares = self._partitioner.split(records, self._table.registry.get(topic).partition_count)
        return {TopicPartition(topic, number): share for number, share in sorted(shares.items())}

    def _append(
        self,
        shares: Mapping[TopicPartition, T],
        encode: Callable[[Log, T], Batches],
        now_ms: int,
        durability: Durability,
    ) -> dict[TopicPartition, AppendResult]:
        encoded: dict[TopicPartition, tuple[Log, Batches]] = {}
        for name, share in shares.items():
            # Every check that can refuse comes before the first append.
            held = self._table.find(name)
            held.check_appendable()
            encoded[name] = (held.log, encode(held.log, share))
        for name in encoded:
            self._table.find(name).note_append()
        return append_shares(encoded, now_ms, durability)


class Partitioner:
    """Splits records over the partitions of topics; remembers the next partition of keyless records."""

    def __init__(self) -> None:
        self._turn = count()

    def split(self, records: Sequence[Record], partition_count: int) -> dict[int, list[Record]]:
        """Records by partition number, in their order within each."""
        if partition_count == 1:
            return {0: list(records)}
        import numpy as np

        from local import kernels

        keyless, keys = next(self._turn) % partition_count, [record[0] or b"" for record in records]
        lengths = np.fromiter(map(len, keys), np.int32, len(keys))
        hashes = kernels.hash_keys(b"".join(keys), np.cumsum(lengths, dtype=np.int64) - lengths, lengths)
        shares: dict[int, list[Record]] = {}
        for record, number in zip(records, ((hashes & 0x7FFFFFFF) % partition_count).tolist(), strict=True):
            shares.setdefault(keyless if record[0] is None else number, []).append(record)
        return shares

    def split_columns(self, chunks: Sequence[RecordColumns], partition_count: int) -> dict[int, list[RecordColumns]]:
        if partition_count == 1:
            return {0: list(chunks)}
        import numpy as np

        from local import kernels

        keyless = next(self._turn) % partition_count
        shares: dict[int, list[RecordColumns]] = {}
        for chunk in chunks:
            hashes = kernels.hash_keys(chunk.key_data, chunk.key_starts, chunk.key_lengths)
            numbers = (hashes & 0x7FFFFFFF) % partition_count
            numbers[chunk.key_lengths < 0] = keyless
            for number in np.unique(numbers).tolist():
                shares.setdefault(number, []).append(chunk.select(np.flatnonzero(numbers == number)))
        return shares


def append_shares(
    shares: Mapping[TopicPartition, tuple[Log, Batches]], now_ms: int, durability: Durability
) -> dict[TopicPartition, AppendResult]:
    """Append each partition's batches, durable on return if `durability` asks for it. Returns the results.

    Raises the first failure. Its fact `appended` names the shares in their logs, with the durability asked for.
    """
    results: dict[TopicPartition, AppendResult] = {}
    failures: list[LogError] = []
    for name, (log, batches) in shares.items():
        try:
            # A single share is synced by its own append. Several shares are all written before the first sync.
            own = durability if len(shares) == 1 else Durability.MEMORY
            results[name] = log.append_encoded(batches, now_ms=now_ms, durability=own)
        except LogError as error:
            failures.append(error)
            break
    if durability is Durability.FLUSHED and len(shares) > 1:
        written = list(results)
        for name, problem in zip(written, flush_all([shares[name][0] for name in written]), strict=True):
            if problem is not None:
                failures.append(problem)
                del results[name]
    if failures and results:
        first = failures[0]
        appended = ",".join(f"{name}:{given.base_offset}-{given.next_offset - 1}" for name, given in results.items())
        raise first.restated(first.attempt, **{**first.facts, "appended": appended}) from first
    if failures:
        raise failures[0]
    return results
