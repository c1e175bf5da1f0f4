"""Open the partitions of a registered topic: their settings, their logs, their place in the bucket.

A partition is *tiered* when its topic is set so, or ever was. If the setting is false now, only copying stops. Order of
effects for one partition:

1. The registry records `was_tiered`.
2. The log is opened.
3. The newest manifest is read and compared with the log.
4. This process commits the takeover (`become_writer`).
5. The log adopts the log start and the epoch of the manifest.

After a crash the next open repeats all steps. If the bucket is unavailable, the partition is opened without the writer
role, `LogManager.tick` tries again, and `Partition.check_appendable` refuses appends that could contradict the bucket.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from local.errors import AccessDenied, Conflict, Diverged, Fenced, InvalidRequest, LogError, NotFound, Unavailable
from local.log.producer_state import ProducerState
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from local.storage import Storage
from policies.placement import choose_log_dir
from policies.rules import PartitionRules
from policies.tier_relation import Relation
from remote.cache.chunk_cache import ChunkCache
from remote.cache.disk_cache import DiskCache
from remote.fetch.range_reader import RangePredictor, RemotePartition
from remote.gc.pins import PinWatch
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import delete_partition, expire_segments, set_properties, settle
from remote.manifest.manifest_lookup import manifest_disk_cache, shares
from remote.manifest.manifest_memory_cache import ManifestMemoryCache, SealMemory
from remote.manifest.view_changes import announce_views
from remote.manifest.writer_roles import WriterState
from remote.store import ObjectStore
from tiered.config.config import Config, log_settings, resolve_rules
from tiered.config.properties import APPEND_FREE_MIN
from tiered.config.secrets import load_key_ring
from tiered.node.topic_registry import Topic
from tiered.node.upload_pause import UploadPauses
from tiered.node.writer_ids import DELETION, new_writer_id, node_mark
from tiered.partition.partition import ENABLE, Partition, check_room, is_tier_disabled
from tiered.partition.reconciliation import check_agreement, check_same_records, emptied, fenced_before, reconcile
from tiered.partition.tier_state import TierMachine
from tiered.read.partition_source import PartitionSource
from tiered.read.view_places import LocalViews, unannounced
from tiered.stores.configured_store import StoreCheck, store_options
from tiered.stores.object_encoding import encoding_of
from tiered.stores.persistent_meter import PersistentMeter

_log = logging.getLogger(__name__)

_NO_STORE = "no store is configured: set url in [remote] of tiered.toml"


class Opener:
    """Opens the partitions of a node. Thread safe for different partitions."""

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
        """`known`: manifests of an earlier read-only open. For the flags see `LogManager.open`."""
        self.config, self._known = config, known
        self._directories, self.store = directories, store
        self.cache = ChunkCache(config.int_of("remote.fetch.cache.bytes"))
        self._disk_cache: DiskCache | None = None
        piece_bytes, index_bytes = shares(config.int_of("remote.fetch.cache.dir.max.bytes"))
        if store is not None and config.fetch_cache_dir:
            self._disk_cache = DiskCache.open(storage, config.fetch_cache_dir, piece_bytes)
        self._keys = load_key_ring(config.key_ring, os.environ)
        self.pauses = UploadPauses(directories)
        options, is_single_writer = store_options(config), config.is_single_writer
        self._check = StoreCheck(directories.first_online, is_single_writer=is_single_writer, options=options)
        self._seals = SealMemory(directories.places(), directories.first_online, is_writer=not directories.read_only)
        self._copies = manifest_disk_cache(config.fetch_cache_dir, index_bytes, is_writer=self._disk_cache is not None)
        free_bytes_min, free_share_min = config.int_of("log.dir.free.bytes.min"), config.dir_free_share_min
        self._choose = partial(choose_log_dir, free_bytes_min=free_bytes_min, free_share_min=free_share_min)
        # The name in this process's manifests; a read-only open commits none.
        self.writer_id = "" if directories.read_only else new_writer_id(storage, config.data_dirs)
        self._mark = node_mark(storage, config.data_dirs)
        self._takes_over, self._may_be_refused = takes_over, may_be_refused

    def keep_counts(self, now_ms: int | None = None) -> None:
        """Persist the counts of requests sent to the store (`tiered.stores.persistent_meter`)."""
        self._seals.keep(now_ms)
        if self.store is not None:
            self.store.keep(now_ms)

    def check_store(self, now_ms: int) -> None:
        """Check the guarantees of the store again when that is due. Raises InvalidRequest if it lost one."""
        if self.store is not None:
            self._check.renew(self.store, now_ms)

    def close(self) -> None:
        """Release the disk cache for other processes, and close the store. Idempotent."""
        if self._disk_cache is not None:
            self._disk_cache.close()
        if self.store is not None:
            self.store.close()

    def begins_tiering(self, topic: Topic) -> bool:
        """Whether this topic, never tiered so far, becomes tiered now. Raises InvalidRequest."""
        return not topic.was_tiered and self.store is not None and wants_tier(self._values(topic))

    def check_settings(self, topic: Topic) -> None:
        """Raise InvalidRequest for settings that contradict each other, or that this manager cannot serve."""
        values = self._values(topic)
        resolve_rules(values), log_settings(values), encoding_of(values, self._keys)
        if wants_tier(values) and self.store is None:
            raise InvalidRequest(f"cannot set up a tiered topic, {_NO_STORE}", topic=topic.name)

    def reconfigure(self, config: Config, topics: Iterable[Topic]) -> None:
        """Use the settings of `config`. Raises InvalidRequest, with nothing changed, for an invalid topic."""
        before, self.config = self.config, config
        try:
            for topic in topics:
                self.check_settings(topic)
        except BaseException:
            self.config = before
            raise

    def altered(self, before: Topic, properties: Mapping[str, str]) -> tuple[Topic, bool]:
        """The topic with these settings (empty: removed), and whether it becomes tiered. Raises InvalidRequest."""
        merged = {**before.properties, **properties}
        after = replace(before, properties={key: value for key, value in merged.items() if value})
        self.check_settings(after)
        self._check_not_switched_off(before, after)
        return after, self.begins_tiering(after)

    def _check_not_switched_off(self, before: Topic, after: Topic) -> None:
        values = self._values(after)
        if not before.was_tiered or wants_tier(values) or is_tier_disabled(after, values):
            return
        if wants_tier(self._values(before)) or before.properties.get(ENABLE) != after.properties.get(ENABLE):
            raise InvalidRequest(
                "cannot disable the remote tier of a topic while the bucket has its data; set "
                "remote.log.copy.disable=true to stop copying, or remote.log.delete.on.disable=true with "
                "remote.storage.enable=false on the topic to delete the data",
                topic=before.name,
            )

    def check_reachable(self, topic: Topic) -> None:
        if self.store is not None:
            MetadataLog(self.store, partition_prefix(topic.name, topic.topic_id, 0)).load()

    def apply_settings(self, held: Partition, topic: Topic) -> None:
        """Apply the topic's settings, without the writer role. A changed policy first cancels a cleaner pass."""
        values = self._values(topic)
        rules, settings = _rules(topic, values), log_settings(values)
        is_other_policy = rules.cleanup_compact != held.rules.cleanup_compact
        with held.log.cleaning.paused() if is_other_policy else nullcontext(), held.lock:
            held.log.change_settings(settings)
            held.change_topic(topic, rules, encoding_of(values, self._keys))
            held.tier.set_tiered(topic.was_tiered or wants_tier(values))

    def rules(self, topic: Topic) -> PartitionRules:
        return _rules(topic, self._values(topic))

    def _values(self, topic: Topic) -> dict[str, str]:
        return self.config.topic_properties(topic.name, topic.properties)

    def check_room(self) -> None:
        """Check that a log directory can take a new partition. Raises DiskFailed if none can."""
        self._choose(self._directories.facts())

    def place(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, LogError]:
        return self._directories.place(names, self._choose)

    def open_log(self, name: TopicPartition, topic: Topic, now_ms: int, *, is_new: bool = False) -> Partition:
        """The partition with its recovered local log, created in a directory if none has it.

        Raises InvalidRequest if the topic id on the disk differs. `is_new`: no offline directory can hold it.
        """
        values = self._values(topic)
        rules, settings = _rules(topic, values), log_settings(values)
        known = self._directories.topic_id(name)
        if known is None and not self._directories.read_only:
            self._directories.create(name, topic.topic_id, self._choose, is_new=is_new)
        elif known not in (None, topic.topic_id):
            raise InvalidRequest("cannot open the partition, its topic id differs", partition=name, topic_id=known)
        is_tiered = topic.was_tiered or wants_tier(values)
        log = self._directories.open_log(name, settings, now_ms=now_ms, is_tiered=is_tiered)
        tier, encoding = TierMachine(is_tiered=is_tiered), encoding_of(values, self._keys)
        local_views = LocalViews(log, self.cache)
        local_views.open(now_ms)
        if not log.is_read_only:
            log.before_each_cut(local_views.cut)
        held = Partition(
            name=name,
            topic=topic,
            rules=rules,
            log=log,
            tier=tier,
            object_encoding=encoding,
            pauses=self.pauses,
            end_offset_at_open=log.next_offset if log.size_bytes else None,
            local_views=local_views,
            check_room=self._room_check(name),
        )
        if is_tiered and (fenced_by := log.notes.fenced_by) is not None:
            held.tier.stop(fenced_before(log, fenced_by))  # until the bucket has been asked
        return held

    def _room_check(self, name: TopicPartition) -> Callable[[], None]:
        if self._directories.read_only:
            return lambda: None
        return partial(check_room, self._directories, name, self.config.int_of(APPEND_FREE_MIN))

    def is_waiting(self, held: Partition) -> bool:
        """Whether a tiered partition lacks the writer role, has a commit in doubt, or an outdated manifest."""
        manifest = held.manifest()
        if not held.is_tiered or held.metadata is None or not held.is_writer or manifest is None:
            return held.is_tiered
        is_told = manifest.properties == held.topic.properties and not unannounced(held)
        return held.metadata.has_commit_in_doubt or not is_told

    def acquire(self, held: Partition, now_ms: int) -> LogError | None:
        """Take the writer role of a tiered partition if not held, and commit the topic's settings.

        Returns the error that prevents it, else None. Every error except an unavailable bucket stops the tier
        (`TierMachine.stop`). Unless read-only, raises AccessDenied and NotFound for the bucket as a whole. During the
        waits for a task and for the store it holds at most `tier_lock`, so the topic may be deleted concurrently.
        """
        with held.tier_lock:
            if held.is_writer:
                return self._commit_settings(held, now_ms)
            try:
                self._own(held, now_ms)
            except LogError as error:
                return self._in_the_way(held, error)
            return None

    def _in_the_way(self, held: Partition, error: LogError) -> LogError | None:
        if held.is_deleted:
            return None  # a deleted topic needs no error
        is_writer = held.metadata is not None and held.metadata.state is WriterState.WRITER
        match error:
            case AccessDenied(facts={"key_id": _}):
                held.tier.stop(error)  # the key ring lacks a key of this topic; the bucket refuses nothing
            case AccessDenied() | NotFound() if self._directories.read_only or self._may_be_refused:
                pass  # a read-only open, and an open that needs the disk alone, continue with the disk
            case AccessDenied() | NotFound() if not is_writer:
                raise error
            case AccessDenied() | NotFound():
                held.tier.stop(error)  # the bucket accepts this writer's commits: a problem of this partition
            case Unavailable():
                pass
            case _ if self.store is not None:  # without one the disk serves on, unless it notes that its log is fenced
                held.tier.stop(error)
        return error

    def remember_fencing(self, held: Partition, error: LogError) -> None:
        """Record on the disk that another writer took over, for a restart while the bucket is unavailable."""
        if self._directories.read_only or not held.is_tiered or not isinstance(error, Diverged | Fenced):
            return
        manifest = held.manifest()
        if manifest is not None and isinstance(error, Fenced) and _is_deletion_alone(manifest, error):
            return
        try:
            held.log.notes.mark_fenced("unknown" if manifest is None else manifest.writer_id)
        except LogError as failed:
            _log.warning("cannot record that a log is fenced: partition=%s cause=%s", held.name, failed)

    def _commit_settings(self, held: Partition, now_ms: int) -> LogError | None:
        """Commit changed topic settings for readers of the bucket. Returns the error; the writer role stays."""
        if held.metadata is not None and self.is_waiting(held):
            try:
                held.metadata.commit(set_properties(dict(held.topic.properties)), now_ms)
                _announce_views(held, held.metadata, now_ms)
                if held.metadata.has_commit_in_doubt:
                    held.metadata.commit(settle(), now_ms)
            except LogError as error:
                return None if held.is_deleted else error
        return None

    def _connect(self, held: Partition, store: ObjectStore) -> None:
        metadata = MetadataLog(store, held.prefix, copies=self._copies, known=self._known, memory=self._seals)
        remote = RemotePartition(
            store,
            held.prefix,
            self.cache,
            metadata=metadata,
            keys=self._keys,
            disk=self._disk_cache,
            guesses=RangePredictor(),
        )
        held.connect(metadata, PinWatch(store, held.prefix), remote)

    def _own(self, held: Partition, now_ms: int) -> None:
        if not self.is_waiting(held):
            return
        if self.store is None:
            raise InvalidRequest(f"cannot open the tiered partition, {_NO_STORE}", partition=held.name)
        if held.metadata is None:
            self._connect(held, self.store)
        assert held.metadata is not None
        known = held.metadata.load()
        if known is not None and known.deleted_ms is not None:
            if self._directories.read_only:
                return
            facts = {"partition": held.name, "deleted_ms": known.deleted_ms}
            raise Conflict("cannot take the writer role, the topic was deleted", **facts)
        if known is not None and held.metadata.lacks_first_manifests():
            raise emptied(held.log, known)
        if self._directories.read_only:
            self._look(held, known)
            held.tier.agree()
            return
        with held.lock:
            if _is_deleted(held):
                return
            # Before the epoch is raised: a refused log changes nothing in the bucket.
            check_agreement(held.log, known, self._mark, takes_over=self._takes_over)
        self._check.ensure(self.store, now_ms)
        with held.lock:
            if _is_deleted(held):
                return
            if known is not None:
                _warn_of_older_bucket(held, known)
        bucket = PartitionSource(held.name, None, held.remote, held.metadata)
        is_unconfirmed = held.log.notes.unconfirmed_from is not None
        ended_at = held.end_offset_at_open
        was_behind = known is not None and ended_at is not None and ended_at < known.allocated_end_offset
        if known is not None and (was_behind or is_unconfirmed):
            check_same_records(held, bucket, known, is_unconfirmed=is_unconfirmed)
        manifest = self._become_writer(held, held.metadata, known, now_ms)
        manifest = _announce_views(held, held.metadata, now_ms) or manifest
        is_behind = held.log.next_offset < manifest.allocated_end_offset
        producers = bucket.producers_in_bucket() if is_behind else ProducerState()
        with held.lock:
            if not _is_deleted(held):
                # The newest manifest is this writer's now. Its predecessor was checked above.
                reconcile(held.log, manifest, now_ms=now_ms, producers=producers)
                held.log.notes.confirm_appends()  # before a copy is allowed: see `confirm_appends`
                # Before an append is allowed: a note that a crash leaves only refuses more than necessary.
                held.log.notes.clear_fenced()
                if not held.is_tiered:
                    return  # the settings changed during the takeover
                held.tier.acquire()
                # An append that began before `acquire` may have written the note again. Later appends do not.
                held.log.notes.confirm_appends()
                return
        # The deletion of the topic may have ended without finding this manifest.
        held.metadata.commit(delete_partition(now_ms=now_ms), now_ms)

    def _look(self, held: Partition, known: Manifest | None) -> None:
        """Compare the tiers, again after a Conflict: another process may be writing. Raises as `check_agreement`."""
        assert held.metadata is not None, "the store was asked"
        try:
            check_agreement(held.log, known, self._mark)
        except Conflict:
            held.log.reload_files()
            check_agreement(held.log, held.metadata.load(exact=True), self._mark)

    def _become_writer(self, held: Partition, metadata: MetadataLog, known: Manifest | None, now_ms: int) -> Manifest:
        def check_newest(latest: Manifest | None) -> None:
            verdict = check_agreement(held.log, latest, self._mark, takes_over=self._takes_over)
            is_other = latest is not None and (known is None or latest.commit_id != known.commit_id)
            if is_other and verdict.relation is Relation.BEHIND:
                raise Unavailable("cannot take the writer role, a newer manifest was committed", partition=held.name)

        if metadata.state is WriterState.READER:
            metadata.become_writer(
                self.writer_id,
                now_ms,
                topic=held.topic.name,
                topic_id=held.topic.topic_id,
                partition=held.name.partition,
                properties=held.topic.properties,
                # The log of a broker already has leader epochs: the first manifest continues above them.
                first_epoch=(held.log.epochs.latest or 0) + 1,
                appends=True,
                check_newest=check_newest,
                seal_key_id=held.object_encoding.key_id,
            )
        manifest = metadata.cached
        assert manifest is not None, "a writer has a head"
        if manifest.has_entries or manifest.log_start_offset >= held.log.log_start_offset:
            return manifest
        # A topic that becomes tiered brings its log start offset. From here on the manifest's is authoritative.
        return metadata.commit(expire_segments([], now_ms=now_ms, log_start_offset=held.log.log_start_offset), now_ms)


def _is_deletion_alone(manifest: Manifest, error: Fenced) -> bool:
    """Whether the only later writer is a job that deletes objects: it has no log and gives no offset."""
    ours = error.facts.get("ours")
    return manifest.writer_id.startswith(DELETION) and isinstance(ours, int) and error.facts.get("epoch") == ours + 1


def _announce_views(held: Partition, metadata: MetadataLog, now_ms: int) -> Manifest | None:
    names = unannounced(held)
    return metadata.commit(announce_views(names), now_ms) if names else None


def _warn_of_older_bucket(held: Partition, manifest: Manifest) -> None:
    latest = held.log.epochs.latest
    if latest is not None and latest > manifest.epoch:
        what = (
            "the bucket was restored to an older state; this disk copies the missing records again, in writer epochs "
            "that were already used; every other disk with records of that time must be emptied before it is opened"
        )
        _log.warning("%s: partition=%s head_epoch=%d disk_epoch=%d", what, held.name, manifest.epoch, latest)


def _is_deleted(held: Partition) -> bool:
    """As `Partition.is_deleted`; a function, because mypy assumes that a property does not change."""
    return held.is_deleted


def wants_tier(values: Mapping[str, str]) -> bool:
    return values[ENABLE] == "true"


def _rules(topic: Topic, values: Mapping[str, str]) -> PartitionRules:
    rules = resolve_rules(values)
    if wants_tier(values) or not topic.was_tiered:
        return rules
    if is_tier_disabled(topic, values):
        return replace(rules, copy_disabled=True, gives_up_remote=True)
    what = "the remote tier of a topic stays enabled, copying stops as with remote.log.copy.disable=true"
    _log.warning("%s: topic=%s remote.storage.enable=false", what, topic.name)
    return replace(rules, copy_disabled=True)
