"""Read a bucket without a manager or a local directory. Nothing is written except pins.

Topics of one name (deleted and created again, or of two directories) are never mixed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from local.errors import AccessDenied, Corrupt, InvalidRequest, NotFound
from local.names import TopicPartition, check_topic
from local.verify.findings import Finding
from remote.cache.chunk_cache import ChunkCache
from remote.cache.disk_cache import DiskCache
from remote.external.external_layout import OURS, ExternalFormat, LayoutOptions, external_manifests
from remote.fetch.range_reader import RangePredictor, RemotePartition
from remote.gc.pins import Pin, pin_newest, release_all
from remote.keys import partition_prefix
from remote.manifest.catalog import RemotePartitionName, list_partitions, list_topics, partitions_of
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, check_says_something
from remote.manifest.manifest_lookup import ManifestDiskCache
from remote.manifest.sealing import keyed
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.properties import nearest
from tiered.read.external_partition import external_source
from tiered.read.partition_source import PartitionSource, Readable
from tiered.stores.parallel import side_by_side

CACHE_BYTES, CACHE_DIR_BYTES = 256 << 20, 10 << 30
AT_ONCE = 8  # topics checked for deletion in parallel
LOADS_MAX = 3  # of a partition, if refreshes overtake them


class RemoteLog(Readable, AbstractContextManager["RemoteLog"]):
    """Read-only view of a bucket. Thread safe; a context manager that closes the store.

    `topic_ids` maps an ambiguous name to the id of the topic to read. Manifests are cached until `refresh`.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        cache_bytes: int = CACHE_BYTES,
        topic_ids: Mapping[str, str] | None = None,
        keys: KeyRing = NO_KEYS,
        disk: DiskCache | None = None,
        copies: ManifestDiskCache | None = None,
        layout: LayoutOptions = OURS,
    ) -> None:
        """An external `layout` only supports reads: it has no pins and no views."""
        self.store = keyed(store, keys)
        self._layout = layout
        self._foreign: ExternalFormat | None = None
        self._disk = disk
        self._copies = copies
        self._pins: list[tuple[str, Pin]] = []
        self._selected = dict(topic_ids or {})
        self._cache = ChunkCache(cache_bytes)
        self._keys = keys
        self._lock = threading.RLock()
        self._names: list[RemotePartitionName] | None = None
        self._ids: dict[str, list[str]] = {}  # of the topics asked for
        self._partitions: dict[tuple[str, str], list[RemotePartitionName]] = {}
        self._sources: dict[TopicPartition, PartitionSource] = {}
        self._generation = 0  # of the sources; a load that began in an older generation may be stale
        self._deleted: set[str] = set()  # ids of topics

    def topics(self) -> list[str]:
        """Names of the topics in the bucket, sorted, without deleted ones. Raises NotFound without a bucket."""
        return sorted({name.topic for name in self.living_partitions()})

    def living_partitions(self) -> list[RemotePartitionName]:
        """The partitions of all topics that are not deleted, in order. Raises NotFound without a bucket."""
        known = self._known()
        firsts: dict[tuple[str, str], RemotePartitionName] = {}
        for name in known:
            firsts.setdefault((name.topic, name.topic_id), name)
        flags = side_by_side(self._is_known_deleted, list(firsts.values()), threads=AT_ONCE, name="tiered-topics")
        deleted = {key for key, is_deleted in zip(firsts, flags, strict=True) if is_deleted}
        return [name for name in known if (name.topic, name.topic_id) not in deleted]

    def topic_ids(self, topic: str) -> list[str]:
        """The ids of the topics of that name, sorted. Raises NotFound, naming the topics that exist."""
        check_topic(topic)
        with self._lock:
            if self._format() is not None:
                found = sorted({name.topic_id for name in self._known() if name.topic == topic})
            else:
                if topic not in self._ids:
                    self._ids[topic] = topic_ids(self.store, topic)
                found = list(self._ids[topic])
        if not found:
            topics = {name for name, _ in list_topics(self.store)} if self._layout.is_ours else self.topics()
            there_are = ", ".join(sorted(topics)[:10]) or "none"
            facts = {"there_are": there_are, "did_you_mean": nearest(topic, topics)}
            raise NotFound("topic not found in the bucket", topic=topic, store=self.store.url, **facts)
        return found

    def each_of(self, topic: str) -> list[RemoteLog]:
        """A `RemoteLog` for each living topic of that name; close this object only. Raises as `topic_ids`."""
        ids = self._living_ids(topic)
        if topic in self._selected or len(ids) < 2:
            return [self]
        choices = [{**self._selected, topic: each} for each in ids]
        return [RemoteLog(self.store, topic_ids=each, keys=self._keys, layout=self._layout) for each in choices]

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic, sorted. Raises NotFound, and InvalidRequest for a name of several topics."""
        return sorted(name.topic_partition for name in self._named(topic, self._meant(topic)))

    def manifest(self, partition: TopicPartition) -> Manifest:
        """The partition's newest manifest as of the last refresh. Raises NotFound."""
        manifest = self._source(partition).manifest()
        if manifest is None:
            raise NotFound("the partition has no manifest", partition=partition, store=self.store.url)
        return manifest

    def refresh(self) -> None:
        with self._lock:
            self._generation += 1
            self.refresh_names()
            for source in self._sources.values():
                if source.metadata is not None:
                    source.metadata.load()

    def refresh_names(self) -> None:
        """Forget the names of topics and partitions: the next call lists them. Manifests stay cached."""
        with self._lock:
            self._names = None
            self._ids.clear()
            self._partitions.clear()

    def refresh_partition(self, partition: TopicPartition) -> Manifest:
        """The partition's newest manifest, requested now. Raises NotFound, also after the topic was deleted.

        A deleted topic is forgotten, so that the next call finds a new topic of its name.
        """
        metadata = self._source(partition).metadata
        if metadata is None:
            raise NotFound("the partition has no manifest", partition=partition, store=self.store.url)
        manifest = metadata.refresh()
        if manifest.deleted_ms is None:
            return manifest
        with self._lock:
            self._generation += 1
            self._sources.pop(partition, None)
            self.refresh_names()
        wrong = "partition not found in the bucket, its topic was deleted"
        raise NotFound(wrong, partition=partition, deleted_ms=manifest.deleted_ms)

    def gaps(self, partition: TopicPartition) -> list[tuple[int, int]]:
        """Offsets ``[start, end)`` missing between two segments of an external layout. Raises NotFound."""
        self.manifest(partition)
        external = external_manifests(self._source(partition).metadata)
        return external.gaps if external is not None else []

    def findings(self, partition: TopicPartition) -> list[Finding]:
        """Findings of an external layout, by offsets; empty in this project's layout. Raises NotFound."""
        self.manifest(partition)
        external = external_manifests(self._source(partition).metadata)
        return external.findings if external is not None else []

    def pin(self, partition: TopicPartition, *, now_ms: int, expires_ms: int, holder: str) -> Manifest:
        """Pin the partition's newest manifest until `expires_ms` or `close`; returns the manifest.

        The objects that this and later manifests name are not deleted. Raises as `remote.gc.pins.pin_newest`.
        """
        metadata, remote = self._source(partition).metadata, self._source(partition).remote
        if not self._layout.is_ours:
            raise InvalidRequest("cannot pin a manifest, this bucket is read-only", store=self.store.url)
        assert remote is not None and metadata is not None  # noqa: PT018 - a source of a bucket has both
        pin, manifest = pin_newest(
            self.store, remote.prefix, metadata, now_ms=now_ms, expires_ms=expires_ms, holder=holder
        )
        with self._lock:
            self._pins.append((remote.prefix, pin))
        return manifest

    def close(self) -> None:
        """Release all pins and close the store. A pin that cannot be deleted expires by itself."""
        with self._lock:
            pins, self._pins = self._pins, []
        release_all(self.store, pins)
        if self._disk is not None:
            self._disk.close()
        self.store.close()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _known(self) -> list[RemotePartitionName]:
        with self._lock:
            if self._names is None:
                layout = self._format()
                self._names = list_partitions(self.store) if layout is None else list(layout.partitions(self.store))
            return self._names

    def _named(self, topic: str, topic_id: str) -> list[RemotePartitionName]:
        with self._lock:
            if self._format() is not None:
                return [name for name in self._known() if (name.topic, name.topic_id) == (topic, topic_id)]
            if (topic, topic_id) not in self._partitions:
                self._partitions[topic, topic_id] = partitions_of(self.store, topic, topic_id)
            return self._partitions[topic, topic_id]

    def _format(self) -> ExternalFormat | None:
        if self._foreign is None and not self._layout.is_ours:
            from remote.external.external_formats import external_format

            self._foreign = external_format(self.store, self._layout)
            if self._foreign is None:
                self._layout = OURS
        return self._foreign

    def _meant(self, topic: str) -> str:
        ids = self.topic_ids(topic) if topic in self._selected else self._living_ids(topic)
        selected = self._selected.get(topic, ids[0])
        if topic not in self._selected and len(ids) > 1:
            wrong = "several topics in the bucket have this name: choose one with --topic-id or topic_ids"
            raise InvalidRequest(wrong, topic=topic, topic_ids=",".join(ids))
        if selected not in ids:
            wrong = "no topic in the bucket has this id"
            raise NotFound(wrong, topic=topic, topic_id=selected, there_are=",".join(ids))
        return selected

    def _living_ids(self, topic: str) -> list[str]:
        ids = self.topic_ids(topic)
        if len(ids) < 2:
            return ids
        firsts = {each: next(iter(self._named(topic, each)), None) for each in ids}
        return [each for each, first in firsts.items() if first is None or not self._is_deleted(first)] or ids

    def _is_known_deleted(self, first: RemotePartitionName) -> bool:
        """As `_is_deleted`; False if that manifest is damaged or refused, which must not hide other topics."""
        try:
            return self._is_deleted(first)
        except (AccessDenied, Corrupt, InvalidRequest):
            return False

    def _is_deleted(self, first: RemotePartitionName) -> bool:
        """Whether the newest manifest of this partition marks its topic deleted. Only a yes is cached."""
        if not self._layout.is_ours:
            return False
        if first.topic_id not in self._deleted:
            if not _is_deleted(self.store, first):
                return False
            self._deleted.add(first.topic_id)
        return True

    def _source(self, partition: TopicPartition) -> PartitionSource:
        for _ in range(LOADS_MAX):
            with self._lock:
                found, generation = self._sources.get(partition), self._generation
            if found is not None:
                return found
            made = self._made_source(partition)  # not under the lock: other partitions do not wait for this manifest
            with self._lock:
                if generation == self._generation:
                    return self._sources.setdefault(partition, made)
        return made  # for this call alone: it began before the last refresh

    def _made_source(self, partition: TopicPartition) -> PartitionSource:
        topic_id = self._meant(partition.topic)
        layout = self._format()
        if layout is None:
            return self._own_source(partition, topic_id)
        named = {each.topic_partition: each for each in self._named(partition.topic, topic_id)}
        if (name := named.get(partition)) is None:
            raise NotFound("partition not found in the bucket", partition=partition, store=self.store.url)
        return external_source(self.store, layout, name, self._cache)

    def _own_source(self, partition: TopicPartition, topic_id: str) -> PartitionSource:
        prefix = partition_prefix(partition.topic, topic_id, partition.partition)
        metadata = MetadataLog(self.store, prefix, copies=self._copies)
        manifest = metadata.load()
        if manifest is None and partition not in self.partitions(partition.topic):
            raise NotFound("partition not found in the bucket", partition=partition, store=self.store.url)
        if manifest is None:
            manifest = metadata.refresh()
        if manifest.deleted_ms is not None:
            wrong = "partition not found in the bucket, its topic was deleted"
            raise NotFound(wrong, partition=partition, deleted_ms=manifest.deleted_ms)
        check_says_something(manifest)
        remote = RemotePartition(
            self.store,
            prefix,
            self._cache,
            metadata=metadata,
            keys=self._keys,
            disk=self._disk,
            guesses=RangePredictor(),
        )
        return PartitionSource(partition, None, remote, metadata)


def topic_ids(store: ObjectStore, topic: str) -> list[str]:
    return [topic_id for _, topic_id in list_topics(store, topic)]


def without_deleted(store: ObjectStore, names: Sequence[RemotePartitionName]) -> list[RemotePartitionName]:
    """`names` without deleted topics that share a name with a living one. Only shared names cost requests."""
    firsts: dict[str, dict[str, RemotePartitionName]] = defaultdict(dict)
    for name in names:
        firsts[name.topic].setdefault(name.topic_id, name)
    dead: set[str] = set()
    for of_the_name in firsts.values():
        if len(of_the_name) > 1:
            deleted = {topic_id for topic_id, first in of_the_name.items() if _is_deleted(store, first)}
            dead |= deleted if len(deleted) < len(of_the_name) else set()
    return [name for name in names if name.topic_id not in dead]


def living_ids(store: ObjectStore, topic: str, topic_ids: Iterable[str]) -> list[str]:
    firsts = ((each, partitions_of(store, topic, each)[:1]) for each in topic_ids)
    return [each for each, first in firsts if not any(_is_deleted(store, name) for name in first)]


def _is_deleted(store: ObjectStore, name: RemotePartitionName) -> bool:
    manifest = MetadataLog(store, name.prefix).load()
    return manifest is not None and manifest.deleted_ms is not None
