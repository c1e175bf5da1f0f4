"""Carry out a plan of `tiered.migrate.restore_plan`: write log directories, take topics over.

Order of effects, and the state after a crash or an interruption behind each step:

| step | effect | after a crash |
|---|---|---|
| 1 | lock the directory and delete its clean-shutdown mark | its logs are recovered at the next start |
| 2 | with `takes_over`: take over each partition in the bucket | the former writer is fenced; run it again |
| 3 | write files in ``….restoring`` (`tiered.migrate.restore_files`) | whole segments are not fetched again |
| 4 | with `takes_over`: check that this run is still the writer | as 3; after another takeover: Fenced |
| 5 | rename the directories | partitions that no registry names; the next run uses them unchanged |
| 6 | open the logs, recover the cut ones, write checkpoints | as 5 |
| 7 | the registry names the topic | done |

If two machines take over at once, the machine that did step 2 last is the writer. The other one raises Fenced at step
4, or at its next commit. `tiered.migrate.restore_files` decides about files that are already there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from local.errors import Corrupt, NotFound
from local.logdirs.log_dir import LogDirectory
from local.logdirs.log_moves import remove_tree
from local.names import TopicPartition, deleted_directory
from local.storage import Storage, join
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition, why_missing
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.properties import DEFAULTS
from tiered.config.resolve_settings import log_settings
from tiered.migrate.restore_files import (
    STAGING,
    Progress,
    ShouldStop,
    check_restore,
    holds_all,
    lay_down,
    topic_id_for,
    trusted_upto,
)
from tiered.migrate.restore_plan import PartitionRestore, SkippedPartition, TopicRestore, plan_partition
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.node.writer_ids import RESTORE, signed_for

CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition:
    """`size_bytes` are on the disk, `remote_bytes` in the tier alone.

    `open_transactions` began below the end and have no end there: `read_committed` readers stop at the first of them.
    """

    partition: TopicPartition
    log_start_offset: int
    next_offset: int
    size_bytes: int
    remote_bytes: int
    epoch: int | None
    open_transactions: int = 0
    exact_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOutcome:
    """The restored partitions.

    If `should_stop` ended the run, it is not complete: run it again, whole segments stay. `skipped` has the partitions
    that prevented the restore of their topics, with the reasons.
    """

    partitions: tuple[RestoredPartition, ...] = ()
    is_complete: bool = True
    skipped: tuple[SkippedPartition, ...] = ()


def run_restore(
    store: ObjectStore,
    topics: Sequence[TopicRestore],
    storage: Storage,
    root: str,
    *,
    now_ms: Callable[[], int],
    keys: KeyRing = NO_KEYS,
    should_stop: ShouldStop = lambda: False,
    progress: Progress = lambda size_bytes: None,
) -> RestoreOutcome:
    """Restore into the log directory `root`, created if absent. May be repeated.

    A topic with damaged or missing segments is left out if another one is restored. Raises Conflict if another process
    has the directory open or has another partition of the name. Raises Fenced if another machine took over. Raises
    further errors as `restore_files.lay_down`.
    """
    directory = LogDirectory(storage, root)
    is_clean = directory.was_clean or not directory.partitions()
    try:
        check_restore(topics, storage, root)
        registry = TopicRegistry([(storage, root)])
        done: list[RestoredPartition] = []
        skipped: list[SkippedPartition] = []
        is_complete = True
        for topic in topics:
            work = _TopicWork(store, storage, directory, topic, now_ms, keys)
            try:
                is_complete = work.fetch(should_stop, progress)
            except (Corrupt, NotFound) as error:
                skipped.append(SkippedPartition(name=work.current(), error=error))
                continue
            if not is_complete:
                break
            done += work.finish(registry)
        if skipped and not done and is_complete:
            raise skipped[0].error
    except BaseException:
        directory.abandon()
        raise
    directory.close(is_clean=is_clean)
    return RestoreOutcome(partitions=tuple(done), is_complete=is_complete, skipped=tuple(skipped))


class _TopicWork:
    """Steps 2 to 7 of one topic."""

    def __init__(
        self,
        store: ObjectStore,
        storage: Storage,
        directory: LogDirectory,
        topic: TopicRestore,
        now_ms: Callable[[], int],
        keys: KeyRing,
    ) -> None:
        self._store, self._storage, self._directory = store, storage, directory
        self._topic, self._now_ms, self._keys = topic, now_ms, keys
        self._writers: list[MetadataLog] = []
        self._parts: list[PartitionRestore] = []
        self._current = topic.partitions[0].name

    def current(self) -> RemotePartitionName:
        """The partition that was processed last."""
        return self._current

    def fetch(self, should_stop: ShouldStop, progress: Progress) -> bool:
        """Steps 2 and 3; False if `should_stop` ended them."""
        self._parts = [self._taken_over(each) for each in self._topic.partitions]
        for each in self._parts:
            partition, self._current = each.name.topic_partition, each.name
            if self._is_there(each):
                continue
            log = MetadataLog(self._store, each.name.prefix)
            cache = ChunkCache(CACHE_BYTES)
            remote = RemotePartition(self._store, each.name.prefix, cache, metadata=log, keys=self._keys)
            try:
                is_done = lay_down(
                    self._storage,
                    self._staging(partition),
                    remote,
                    each,
                    topic_id=self._topic_id(partition),
                    should_stop=should_stop,
                    progress=progress,
                )
            except NotFound as error:
                raise why_missing(log, each.entries, error) from error
            if not is_done:
                return False
        return True

    def finish(self, registry: TopicRegistry) -> list[RestoredPartition]:
        """Steps 4 to 7."""
        for writer in self._writers:
            writer.check_still_writer()
        for each in self._parts:
            self._put_in_place(each)
        done = [self._opened(each) for each in self._parts]
        self._directory.write_checkpoints()
        topic = Topic(
            name=self._topic.topic,
            topic_id=self._topic_id(self._parts[0].name.topic_partition),
            partition_count=self._topic.partition_count,
            properties=self._topic.properties,
            was_tiered=self._topic.wish.takes_over,
        )
        registry.add(topic)
        return done

    def _taken_over(self, planned: PartitionRestore) -> PartitionRestore:
        """The plan by the manifest of this run's takeover, whose entries no other writer changes any more."""
        if not self._topic.wish.takes_over:
            return planned
        name, now_ms = planned.name, self._now_ms()
        self._current = name
        log = MetadataLog(self._store, name.prefix)
        log.become_writer(
            signed_for(f"{RESTORE}{uuid.uuid4().hex[:8]}", self._storage, self._directory.root),
            now_ms,
            topic=name.topic,
            topic_id=name.topic_id,
            partition=name.partition,
            properties=None,
            appends=True,
        )
        self._writers.append(log)
        return plan_partition(log, self._store, name, self._topic.wish, now_ms=now_ms, keys=self._keys)

    def _is_there(self, planned: PartitionRestore) -> bool:
        place = self._directory.path(planned.name.topic_partition)
        return self._storage.is_directory(place) and holds_all(self._storage, place, planned)

    def _put_in_place(self, planned: PartitionRestore) -> None:
        partition = planned.name.topic_partition
        place, root = self._directory.path(partition), self._directory.root
        if self._is_there(planned):
            if self._storage.is_directory(self._staging(partition)):  # of a run by another plan
                remove_tree(self._storage, root, self._staging(partition))
            return
        if self._storage.is_directory(place):  # holds nothing that the bucket lacks: `check_restore` verified it
            self._storage.rename(place, join(root, deleted_directory(partition, uuid.uuid4().hex)))
        self._storage.rename(self._staging(partition), place)
        self._storage.sync_directory(root)

    def _opened(self, planned: PartitionRestore) -> RestoredPartition:
        wish, partition = self._topic.wish, planned.name.topic_partition
        settings = log_settings({**DEFAULTS, **self._topic.properties})
        log = self._directory.take_in(
            partition,
            settings,
            now_ms=self._now_ms(),
            recovery_point=trusted_upto(planned),
            log_start_offset=planned.manifest.log_start_offset,
            is_tiered=wish.takes_over,
            cleaner_offset=_cleaner_offset(planned) if settings.is_compacted else 0,
            cleaner_reach=planned.cleaned_reach,
        )
        if log.next_offset != planned.next_offset:
            facts = {"expected": planned.next_offset, "found": log.next_offset}
            raise Corrupt("cannot restore the partition, its log ends at another offset", partition=partition, **facts)
        return RestoredPartition(
            partition=partition,
            log_start_offset=log.log_start_offset,
            next_offset=log.next_offset,
            size_bytes=log.size_bytes,
            remote_bytes=planned.remote_bytes,
            epoch=planned.manifest.epoch if wish.takes_over else None,
            open_transactions=sum(each.transaction_first_offset >= 0 for each in log.producers()),
            exact_from=planned.exact_from,
        )

    def _staging(self, partition: TopicPartition) -> str:
        return self._directory.path(partition) + STAGING

    def _topic_id(self, partition: TopicPartition) -> str:
        return topic_id_for(self._storage, self._directory.root, partition, self._topic.topic_id)


def _cleaner_offset(planned: PartitionRestore) -> int:
    """The offset below which every entry on the disk is clean; 0 if one was never cleaned."""
    cleaned = [entry.cleaned_through or 0 for entry in planned.entries]
    return min([*cleaned, planned.next_offset])
