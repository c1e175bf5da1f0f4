"""The topics of one manager: create, alter and delete them, apply a changed configuration.

Settings of topics take effect at once. Settings of the manager (directories, the store, threads, caches) change at the
next start, except AT_ONCE.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from local.errors import Diverged, LogError
from local.names import TopicPartition
from remote.keys import partition_prefix
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, size_of
from tiered.config.config import Config
from tiered.config.properties import PROPERTIES, RELIEF_FREE_MIN
from tiered.node.topic_registry import DeletedTopic, Topic
from tiered.partition.partition_table import PartitionTable, raise_first
from tiered.stores.parallel import side_by_side
from tiered.topics.topic_creation import AskedTopic, add_partitions, create_topics
from tiered.topics.topic_dry_run import TopicDryRun

if TYPE_CHECKING:
    from policies.cost.prices import PriceTable
    from policies.cost.storage_cost import StorageUsage
    from remote.gc.partition_removal import PartitionRemoval, Removal

_log = logging.getLogger(__name__)

AT_ONCE = frozenset({RELIEF_FREE_MIN})  # settings of the manager that are read for each maintenance run
_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """`topics` have changed settings, `failed` could not apply them; `at_restart` apply at the next start."""

    topics: tuple[str, ...] = ()
    failed: Mapping[str, str]
    at_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedPartition:
    name: TopicPartition
    manifest: Manifest | None = None
    error: LogError | None = None


class TopicAdmin:
    """Changes topics, one change at a time. Thread safe. Raises InvalidRequest in a read-only open."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._registry = table.registry
        self._opener = table.opener
        self._directories = table.directories
        self.deletion = TopicDeletion(table)
        self.dry_run = TopicDryRun(table)
        self.on_deleted: Callable[[str], None] = lambda name: None  # called with the name of each deleted topic

    def all(self) -> list[Topic]:
        return self._registry.all()

    def get(self, name: str) -> Topic:
        return self._registry.get(name)

    def create(
        self, name: str, partitions: int = 1, properties: Mapping[str, str] | None = None, *, now_ms: int
    ) -> Topic:
        """Create a topic; its settings and access to the bucket are checked before anything is written.

        Raises InvalidRequest. After an error past the registration the topic exists, and maintenance acquires it.
        """
        requested = AskedTopic(name=name, partitions=partitions, properties=properties or {})
        (created,) = self.create_all([requested], now_ms=now_ms)
        return created

    def create_all(self, requested: Sequence[AskedTopic], *, now_ms: int) -> list[Topic]:
        """As `create`, for several topics: all of them, or none if one is refused."""
        self._directories.check_writable()
        return create_topics(self._table, requested, now_ms=now_ms)

    def add_partitions(self, name: str, count: int, *, now_ms: int) -> Topic:
        """Raise the number of partitions of a topic to `count`. Partitions cannot be removed again.

        Raises NotFound, InvalidRequest, and Unavailable for a tiered topic while the bucket is unavailable. After an
        error past the registration the partitions exist, and maintenance acquires them.
        """
        self._directories.check_writable()
        return add_partitions(self._table, name, count, now_ms=now_ms)

    def alter(self, name: str, properties: Mapping[str, str], *, now_ms: int) -> Topic:
        """Change a topic's own settings (an empty value removes one); effective at once.

        Raises InvalidRequest, and Unavailable for a topic that becomes tiered while the bucket is unavailable.
        """
        self._directories.check_writable()
        altered, is_new = self._opener.altered(self._registry.get(name), properties)
        if is_new:
            self._opener.check_reachable(altered)
        with self._table.lock:
            altered, is_new = self._opener.altered(self._registry.get(name), properties)
            altered = self._registry.alter(name, altered.properties, is_tiered=is_new)
            partitions = self._table.opened(altered.partitions())
            for each in partitions:
                self._opener.apply_settings(each, altered)
                self._table.forget(each.name)  # problems of the old settings do not apply to the next plan
        new = [each for each in partitions if self._directories.is_online(each.name) and not each.is_writer]
        failures = self._table.acquire(new, now_ms)  # the next maintenance commits the settings of owned partitions
        raise_first(failures if is_new else [])
        return altered

    def delete(self, name: str, *, now_ms: int) -> None:
        """Delete a topic: invisible on return; files and objects follow (`TopicDeletion`).

        Raises, with nothing done: NotFound, InvalidRequest for a topic of a coordinator, and Diverged for a log with
        records that only this disk holds.
        """
        self._directories.check_writable()
        with self._table.lock:
            errors = [each.tier.error for each in self._table.all([name])]
            raise_first([error for error in errors if isinstance(error, Diverged)])
            self.deletion.delete(name, now_ms=now_ms)
        self.on_deleted(name)
        self.deletion.step(now_ms)  # if the bucket is available, its grace period counts from now

    def reload(self, config: Config, *, now_ms: int) -> Reloaded:
        """Apply another configuration. Raises InvalidRequest, with nothing changed, for contradictions."""
        self._directories.check_writable()
        failed: dict[str, str] = {}
        with self._table.lock:
            before = self._opener.config
            topics = self._registry.all()
            changed = [each for each in topics if _values(before, each) != _values(config, each)]
            self._opener.reconfigure(config, topics)
        for topic in changed:  # outside the lock: topics that become tiered wait for the store
            try:
                self.alter(topic.name, {}, now_ms=now_ms)
            except LogError as error:
                failed[topic.name] = str(error)
                _log.error("cannot apply changed settings of a topic: topic=%s error=%s", topic.name, error)
        at_restart = tuple(_at_restart(before, config))
        names = tuple(each.name for each in changed)
        _log.info("the configuration was read again: topics=%s at_restart=%s", ",".join(names), ",".join(at_restart))
        return Reloaded(topics=names, failed=failed, at_restart=at_restart)

    def deleted(self) -> list[Topic]:
        """Deleted topics that may still have objects in the bucket, by deletion time; sends no request."""
        return [each.topic for each in self._registry.deleted() if each.topic.was_tiered]

    def deleted_partitions(self) -> Sequence[DeletedPartition]:
        """The partitions of deleted topics, by deletion time; each call reads their manifests from the store."""
        store = self._opener.store
        if store is None:
            return []

        def read(of: tuple[Topic, TopicPartition]) -> DeletedPartition:
            topic, name = of
            try:
                manifest = MetadataLog(store, partition_prefix(topic.name, topic.topic_id, name.partition)).load()
            except LogError as error:
                return DeletedPartition(name=name, error=error)
            return DeletedPartition(name=name, manifest=manifest)

        partitions = [(topic, name) for topic in self.deleted() for name in topic.partitions()]
        return side_by_side(read, partitions, threads=_THREADS, name="tiered-deleted")


def usage_of_deleted(manifest: Manifest, prices: PriceTable) -> StorageUsage:
    """The usage of a deleted partition: all but manifests and pages is pending, even named objects."""
    from policies.cost.storage_cost import StorageUsage, usage_of

    found = usage_of(manifest, prices, manifest_bytes=size_of(manifest))
    data = sum(each.size_bytes for each in found.data.values())
    return StorageUsage(index_bytes=found.index_bytes, waiting_bytes=data + found.small_bytes + found.waiting_bytes)


def _values(config: Config, topic: Topic) -> dict[str, str]:
    values = config.topic_properties(topic.name, topic.properties)
    return {name: value for name, value in values.items() if PROPERTIES[name].is_per_topic}


def _at_restart(before: Config, after: Config) -> Iterator[str]:
    if before.data_dirs != after.data_dirs or before.cordoned_dirs != after.cordoned_dirs:
        yield "[local]"
    if (before.remote_url, dict(before.remote_options), before.key_ring) != (
        after.remote_url,
        dict(after.remote_options),
        after.key_ring,
    ):
        yield "[remote]"
    old, new = before.topic_properties(""), after.topic_properties("")
    waiting = (name for name, entry in PROPERTIES.items() if not entry.is_per_topic and name not in AT_ONCE)
    yield from (name for name in waiting if old[name] != new[name])


class TopicDeletion:
    """Deletes topics: invisible at once, deleted from the disks after a delay, from the bucket later.

    | step | effect | a crash after it leaves |
    |---|---|---|
    | 1 | the registry marks the topic deleted, with its id | no topic; the next start continues with step 2 |
    | 2 | cleanings cancelled, logs closed, directories renamed to ``-delete`` | directories that a start deletes |
    | 3 | `file.delete.delay.ms` later the directories are deleted | the same |
    | 4 | the bucket's partitions are deleted (`remote.gc.partition_removal`) | deletion marks, or some objects |
    | 5 | nothing is left anywhere: the registry forgets the topic | nothing |

    Step 4 deletes objects after the grace period. The name is free from step 1 on: a recreated topic has another id,
    and shares nothing with the old one. An offline disk keeps its part until it is back. Source: kafka
    `LogManager.asyncDelete`, `RemoteLogManager.stopPartitions`.
    """

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._registry = table.registry
        self._directories = table.directories
        self._opener = table.opener
        self._removals: dict[tuple[str, int], PartitionRemoval] = {}
        self._done: set[tuple[str, int]] = set()
        self._stepping = threading.Lock()
        self._looking = threading.Lock()  # check of the topic id + deletion: see `_delete_local`

    def delete(self, topic_name: str, *, now_ms: int) -> None:
        """Steps 1 and 2, without a store request. The caller holds the lock of the table.

        Raises NotFound, and DiskFailed if the registry cannot be written, with nothing done.
        """
        topic = self._registry.get(topic_name)
        partitions = self._table.opened(topic.partitions())
        for each in partitions:
            # `maintenance_lock` then waits for the run that contains the pass. These logs are never cleaned again.
            each.log.cleaning.abort_and_pause()
        with self._table.maintenance_lock:
            try:
                self._registry.delete(topic.name, now_ms=now_ms)
            except LogError:
                for each in partitions:
                    each.log.cleaning.resume()
                raise
            for each in partitions:
                with each.lock:
                    each.tier.delete()
            self._table.remove(topic)
            for deleted in self._registry.deleted():
                if deleted.topic.topic_id == topic.topic_id:
                    self._delete_local(deleted, now_ms)

    @property
    def is_done(self) -> bool:
        return not self._registry.deleted()

    def resume(self, now_ms: int) -> None:
        """At a start, before any log is opened: delete leftovers of the last process from the disks."""
        for deleted in self._registry.deleted():
            try:
                self._directories.remove_incomplete_moves(deleted.topic.name, deleted.topic.topic_id)
            except LogError as error:
                _log.warning(
                    "cannot delete leftover files of a deleted topic: topic=%s error=%s", deleted.topic.name, error
                )
            self._delete_local(deleted, now_ms)

    def step(self, now_ms: int) -> bool:
        """Do the next step for each deleted topic; return whether another is due. Errors are retried later."""
        if not self._stepping.acquire(blocking=False):
            return False
        try:
            return self._step(now_ms)
        finally:
            self._stepping.release()

    def _step(self, now_ms: int) -> bool:
        from remote.gc.partition_removal import Removal  # a large import, which a read-only open does not need

        more = False
        for deleted in self._registry.deleted():
            try:
                self._delete_local(deleted, now_ms)
                states = [self._removed(deleted, name, now_ms) for name in deleted.topic.partitions()]
                more = more or Removal.UNDER_WAY in states
                names, topic_id = deleted.topic.partitions(), deleted.topic.topic_id
                is_done = all(each is Removal.DONE for each in states)
                with self._looking:  # a directory being renamed is in none of the places that are checked
                    is_done = is_done and all(self._directories.has_no_files(name, topic_id) for name in names)
                if is_done:
                    self._registry.forget(topic_id)
                    _log.info("the deletion of a topic is finished: topic=%s topic_id=%s", deleted.topic.name, topic_id)
            except LogError as error:
                _log.warning("the deletion of a topic waits: topic=%s error=%s", deleted.topic.name, error)
        return more

    def _delete_local(self, deleted: DeletedTopic, now_ms: int) -> None:
        """Delete a local log by name and id: a new topic may have the name by now."""
        delay_ms = self._opener.rules(deleted.topic).file_delete_delay_ms
        for name in deleted.topic.partitions():
            try:
                with self._looking:
                    if self._directories.topic_id(name) != deleted.topic.topic_id:
                        continue
                    self._directories.delete(name, now_ms=now_ms, delay_ms=delay_ms)
                _log.info("deleted a partition: partition=%s topic_id=%s", name, deleted.topic.topic_id)
            except LogError as error:
                _log.warning("the deletion of a partition waits: partition=%s error=%s", name, error)

    def _removed(self, deleted: DeletedTopic, name: TopicPartition, now_ms: int) -> Removal:
        """Do the next step in the bucket; return its state. After an error, which is logged, WAITING."""
        from remote.gc.partition_removal import PartitionRemoval, Removal

        topic, key = deleted.topic, (deleted.topic.topic_id, name.partition)
        if (store := self._opener.store) is None or not topic.was_tiered or key in self._done:
            return Removal.DONE
        if key not in self._removals:
            remote = RemotePartitionName(topic.name, topic.topic_id, name.partition)
            self._removals[key] = PartitionRemoval(store, remote, self._opener.writer_id)
        try:
            state = self._removals[key].step(now_ms, grace_ms=self._opener.rules(topic).delete_grace_ms)
        except LogError as error:
            _log.warning("the deletion of a partition in the bucket waits: partition=%s error=%s", name, error)
            return Removal.WAITING
        if state is Removal.DONE:
            self._done.add(key)
        return state
