"""From a topic's line in the registry to partitions in use: their settings, their logs, their place in the bucket.

A partition is *tiered* when its topic is set so, or ever was: what went into the bucket is read, expired and owned
although the setting says false meanwhile, only nothing more is copied. Order of effects for one: the registry says
`was_tiered` → the log is opened → the newest head is read and agrees with the log → the head is ours
(`become_writer`) → the log takes over what the head says. A crash after any step is repeated from the first one.

A tiered partition whose bucket is out of reach is opened without being owned: `LogManager.tick` tries again, and
until then `Partition.check_appendable` refuses what could contradict the bucket.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
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
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.disk_cache import DiskCache
from remote.fetch.range_prediction import Guesses
from remote.fetch.range_reader import RemotePartition
from remote.gc.pin_watch import PinWatch
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import LogState, MetadataLog
from remote.manifest.disk_cache_of_manifests import index_copies, shares
from remote.manifest.manifest import Head
from remote.manifest.manifest_changes import delete_partition, expire_segments, set_properties, settle
from remote.manifest.manifest_memory_cache import KnownHeads
from remote.manifest.seal_memory import SealMemory
from remote.manifest.sealing import keyed
from remote.manifest.view_changes import announce_views
from remote.store import ObjectStore
from tiered.config.config import Config, log_settings, resolve_rules
from tiered.config.disk_properties import APPEND_FREE_MIN
from tiered.config.key_rings import load_key_ring
from tiered.node.topic_registry import Topic
from tiered.node.upload_pause import Pauses
from tiered.node.writer_ids import new_writer_id, node_mark
from tiered.partition.disk_room import check_room
from tiered.partition.partition import Partition
from tiered.partition.reconciliation import check_agreement, check_same_records, emptied, fenced_before, reconcile
from tiered.partition.tier_disable import ENABLE, is_given_up
from tiered.read.local_views import LocalViews
from tiered.read.partition_source import PartitionSource
from tiered.read.read_committed import producers_in_bucket
from tiered.read.view_places import unannounced
from tiered.stores.configured_store import store_options
from tiered.stores.object_encoding import encoding_of
from tiered.stores.persistent_meter import KeptMeter
from tiered.stores.store_check import StoreCheck

_log = logging.getLogger(__name__)

_NO_STORE = "no store to tier to: set url in [remote] of tiered.toml"


def with_key_ring(store: ObjectStore, config: Config) -> ObjectStore:
    """The store with the configured key ring: manifests of encrypted topics are sealed and opened with it."""
    return keyed(store, load_key_ring(config.key_ring, os.environ))


class Opener:
    """What it takes to open the partitions of a node. Thread safe for different partitions."""

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
        """`known` are heads that an earlier look found, for another one. `takes_over`: a person asked for the writer
        role of partitions that another writer fenced. `may_be_refused`: see `LogManager.open`."""
        self._config, self._known = config, known
        self._directory = directory
        self._store = store
        self.cache = ChunkCache(config.fetch_cache_bytes)
        self._disk_cache: DiskCache | None = None
        piece_bytes, index_bytes = shares(config.fetch_cache_dir_bytes)
        if store is not None and config.fetch_cache_dir:
            self._disk_cache = DiskCache.open(storage, config.fetch_cache_dir, piece_bytes)
        self._keys = load_key_ring(config.key_ring, os.environ)
        self.pauses = Pauses(directory.places())
        self._check = StoreCheck(
            directory.first_online, is_single_writer=config.is_single_writer, options=store_options(config)
        )
        self._seals = SealMemory(directory.places(), directory.first_online, is_writer=not directory.read_only)
        self._copies = index_copies(config.fetch_cache_dir, index_bytes, is_writer=self._disk_cache is not None)
        self._choose = partial(
            choose_log_dir,
            free_bytes_min=config.dir_free_bytes_min,
            free_share_min=config.dir_free_share_min,
        )
        # What heads are signed with; who only looks signs none.
        self.writer_id = "" if directory.read_only else new_writer_id(storage, config.data_dirs)
        self._mark = node_mark(storage, config.data_dirs)
        self._takes_over = takes_over
        self._may_be_refused = may_be_refused

    def keep_counts(self, now_ms: int | None = None) -> None:
        """Write down what was sent to the store (`tiered.stores.persistent_meter`)."""
        self._seals.keep(now_ms)
        if self._store is not None:
            self._store.keep(now_ms)

    def check_store(self, now_ms: int) -> None:
        """Ask the store again what it guarantees, when that is due. Raises InvalidRequest for one that has lost it."""
        if self._store is not None:
            self._check.renew(self._store, now_ms)

    def close(self) -> None:
        """Let another process have the cache on the disk, and let go of the store. Idempotent."""
        if self._disk_cache is not None:
            self._disk_cache.close()
        if self._store is not None:
            self._store.close()

    # -- settings ------------------------------------------------------------------------------------------------

    def begins_tiering(self, topic: Topic) -> bool:
        """Whether this topic, never tiered so far, is from now on. Raises InvalidRequest for an unknown setting."""
        return not topic.was_tiered and self._store is not None and wants_tier(self._values(topic))

    def check_settings(self, topic: Topic) -> None:
        """Raises InvalidRequest for settings that contradict each other, or that this manager cannot serve."""
        values = self._values(topic)
        resolve_rules(values), log_settings(values), encoding_of(values, self._keys)
        if wants_tier(values) and self._store is None:
            raise InvalidRequest(f"setting up a tiered topic, {_NO_STORE}", topic=topic.name)

    def reconfigure(self, config: Config, topics: Iterable[Topic]) -> None:
        """Settings are taken from `config` from now on. Raises InvalidRequest, and nothing has changed, where those of
        a topic cannot be."""
        before, self._config = self._config, config
        try:
            for topic in topics:
                self.check_settings(topic)
        except BaseException:
            self._config = before
            raise

    def altered(self, before: Topic, properties: Mapping[str, str]) -> tuple[Topic, bool]:
        """The topic with these own settings beside its others (an empty value takes one back), and whether it is tiered
        from then on. Raises InvalidRequest for settings that do not hold. Changes nothing."""
        merged = {**before.properties, **properties}
        after = replace(before, properties={key: value for key, value in merged.items() if value})
        self.check_settings(after)
        self._check_not_switched_off(before, after)
        return after, self.begins_tiering(after)

    def _check_not_switched_off(self, before: Topic, after: Topic) -> None:
        """Raises InvalidRequest where `after` takes its tier from a topic that has records in the bucket."""
        values = self._values(after)
        if not before.was_tiered or wants_tier(values) or is_given_up(after, values):
            return
        if wants_tier(self._values(before)) or before.properties.get(ENABLE) != after.properties.get(ENABLE):
            raise InvalidRequest(
                "switching the remote tier of a topic off, which would forget what is in the bucket; to copy nothing "
                "more, set remote.log.copy.disable=true; to delete what is there, remote.log.delete.on.disable=true, "
                "with remote.storage.enable=false on the topic itself",
                topic=before.name,
            )

    def check_reachable(self, topic: Topic) -> None:
        """Raises what keeps us from the bucket before a topic that needs it is written down."""
        if self._store is not None:
            MetadataLog(self._store, partition_prefix(topic.name, topic.topic_id, 0)).load()

    def apply_settings(self, held: Partition, topic: Topic) -> None:
        """The topic's settings hold for this partition from now on; owning it is another step.

        Another cleanup policy first calls off a pass that is under way.
        """
        values = self._values(topic)
        rules, settings = _rules(topic, values), log_settings(values)
        is_other_policy = rules.cleanup_compact != held.rules.cleanup_compact
        with held.log.cleaning.paused() if is_other_policy else nullcontext(), held.lock:
            held.topic, held.rules, held.log.settings = topic, rules, settings
            held.at_rest = encoding_of(values, self._keys)
            held.is_tiered = topic.was_tiered or wants_tier(values)

    def rules(self, topic: Topic) -> PartitionRules:
        return _rules(topic, self._values(topic))

    def _values(self, topic: Topic) -> dict[str, str]:
        return self._config.topic_properties(topic.name, topic.properties)

    # -- logs ----------------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """Raises DiskFailed when no log directory can take a new partition."""
        self._choose(self._directory.facts())

    def place(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, LogError]:
        """Directories for partitions of new topics (`LogDirectories.place`)."""
        return self._directory.place(names, self._choose)

    def open_log(self, name: TopicPartition, topic: Topic, now_ms: int, *, is_new: bool = False) -> Partition:
        """The partition with its local log, recovered; one that is in no directory is begun in one. Raises what is
        wrong with it. `is_new`: the topic was created just now, so no disk that is away can hold it."""
        values = self._values(topic)
        rules, settings = _rules(topic, values), log_settings(values)
        known = self._directory.topic_id(name)
        if known is None and not self._directory.read_only:
            self._directory.create(name, topic.topic_id, self._choose, is_new=is_new)
        elif known not in (None, topic.topic_id):
            raise InvalidRequest("opening a partition, its topic id differs", partition=name, topic_id=known)
        is_tiered = topic.was_tiered or wants_tier(values)
        log = self._directory.open_log(name, settings, now_ms=now_ms, is_tiered=is_tiered)
        kept = encoding_of(values, self._keys)
        held = Partition(
            name=name, topic=topic, rules=rules, log=log, is_tiered=is_tiered, at_rest=kept, pauses=self.pauses
        )
        held.local_views = LocalViews(log, self.cache)
        held.local_views.open(now_ms)
        if not log.is_read_only:
            log.before_cut = held.local_views.cut
        held.opened_upto = log.next_offset if log.size_bytes else None
        if is_tiered and (fenced_by := log.fenced_by) is not None:
            held.stopped = fenced_before(log, fenced_by)  # until the bucket was asked
        if not self._directory.read_only:
            held.check_room = partial(check_room, self._directory, name, self._config.bytes_of(APPEND_FREE_MIN))
        return held

    # -- the bucket ----------------------------------------------------------------------------------------------

    def is_waiting(self, held: Partition) -> bool:
        """Whether a tiered partition is not ours in the bucket yet, the bucket has other settings of its topic or does
        not know of views beside the log, or a commit was never answered."""
        head = held.head()
        if not held.is_tiered or held.metadata is None or not held.is_owned or head is None:
            return held.is_tiered
        is_told = head.properties == held.topic.properties and not unannounced(held)
        return held.metadata.is_unsettled or not is_told

    def take_up(self, held: Partition, now_ms: int) -> LogError | None:
        """Own a tiered partition in the bucket unless we do already, and tell the bucket the topic's settings; what is
        in the way, None when nothing is.

        Sets `stopped` for whatever is not just the bucket being out of reach. Raises AccessDenied and NotFound, which
        say that the bucket as a whole refuses us or is not there, unless the directory is only looked at. Waits for the
        store, and for a task, with `tier_lock` alone: its topic may be deleted meanwhile.
        """
        with held.tier_lock:
            if held.is_owned:
                return self._tell_settings(held, now_ms)
            try:
                self._own(held, now_ms)
            except LogError as error:
                return self._in_the_way(held, error)
            return None

    def _in_the_way(self, held: Partition, error: LogError) -> LogError | None:
        if held.is_deleted:
            return None  # nobody is left who would want to know
        is_writer = held.metadata is not None and held.metadata.state is LogState.WRITER
        match error:
            case AccessDenied(facts={"key_id": _}):
                held.stopped = error  # the key ring lacks a key of this topic: the bucket refuses nothing
            case AccessDenied() | NotFound() if self._directory.read_only or self._may_be_refused:
                pass  # a read-only open, and one that needs the disk alone, go on with the disk
            case AccessDenied() | NotFound() if not is_writer:
                raise error
            case AccessDenied() | NotFound():
                held.stopped = error  # the bucket takes what we write: it is this partition's trouble
            case Unavailable():
                pass
            case _:
                held.stopped = error if self._store is not None else None
        return error

    def remember_fencing(self, held: Partition, error: LogError) -> None:
        """Note on the disk that another writer took over, for a restart while the bucket is out of reach. A disk that
        refuses is a line in the log: the partition is stopped all the same while this process lives."""
        if self._directory.read_only or not held.is_tiered or not isinstance(error, Diverged | Fenced):
            return
        head = held.head()
        try:
            held.log.mark_fenced("unknown" if head is None else head.writer_id)
        except LogError as failed:
            _log.warning("a fenced log is not noted: partition=%s cause=%s", held.name, failed)

    def _tell_settings(self, held: Partition, now_ms: int) -> LogError | None:
        """The topic was altered: who reads the bucket alone (a job, another machine) goes by what the head says.

        It stays ours whatever is in the way.
        """
        if held.metadata is not None and self.is_waiting(held):
            try:
                held.metadata.commit(set_properties(dict(held.topic.properties)), now_ms)
                _announce_views(held, held.metadata, now_ms)
                if held.metadata.is_unsettled:
                    held.metadata.commit(settle(), now_ms)
            except LogError as error:
                return None if held.is_deleted else error
        return None

    def _own(self, held: Partition, now_ms: int) -> None:
        if not self.is_waiting(held):
            return
        if self._store is None:
            raise InvalidRequest(f"taking up a tiered partition, {_NO_STORE}", partition=held.name)
        if held.metadata is None:
            held.metadata = MetadataLog(
                self._store, held.prefix, copies=self._copies, known=self._known, memory=self._seals
            )
            held.pins = PinWatch(self._store, held.prefix)
            held.remote = RemotePartition(
                self._store,
                held.prefix,
                self.cache,
                metadata=held.metadata,
                keys=self._keys,
                disk=self._disk_cache,
                guesses=Guesses(),
            )
        known = held.metadata.load()
        if known is not None and known.deleted_ms is not None:
            self._refuse_deleted(held, known)
            return
        if known is not None and held.metadata.lacks_first_heads():
            raise emptied(held.log, known)
        if self._directory.read_only:
            self._look(held, known)
            held.stopped = None
            return
        with held.lock:
            if _is_gone(held):
                return
            # Before the epoch is raised: a refused log changes nothing in the bucket.
            check_agreement(held.log, known, self._mark, takes_over=self._takes_over)
        self._check.ensure(self._store, now_ms)
        with held.lock:
            if _is_gone(held):
                return
            if known is not None:
                _warn_of_older_bucket(held, known)
        bucket = PartitionSource(held.name, None, held.remote, held.metadata)
        is_unconfirmed = held.log.has_unconfirmed_appends
        was_behind = known is not None and held.opened_upto is not None and held.opened_upto < known.taken_upto
        if known is not None and (was_behind or is_unconfirmed):
            check_same_records(held, bucket, known, is_unconfirmed=is_unconfirmed)
        head = self._become_writer(held, held.metadata, known, now_ms)
        head = _announce_views(held, held.metadata, now_ms) or head
        is_behind = held.log.next_offset < head.taken_upto
        producers = producers_in_bucket(bucket) if is_behind else ProducerState()
        with held.lock:
            if not _is_gone(held):
                # The newest head is ours by now: what it says of the writer before was judged above.
                reconcile(held.log, head, now_ms=now_ms, producers=lambda: producers)
                held.log.confirm_appends()  # before a copy is allowed: see there
                held.log.clear_fenced()  # before an append is allowed: a crash leaves the note, which refuses too much
                held.is_owned, held.has_agreed, held.stopped = True, True, None
                held.is_noted = False
                return
        # Whoever deletes the topic may have found no head yet, and be through: nobody else would ever mark this one.
        held.metadata.commit(delete_partition(now_ms=now_ms), now_ms)

    def _refuse_deleted(self, held: Partition, head: Head) -> None:
        """Raises Conflict unless the directory is only looked at: the topic was deleted, and no writer follows."""
        if not self._directory.read_only:
            facts = {"partition": held.name, "deleted_ms": head.deleted_ms}
            raise Conflict("taking the writer role, the topic was deleted", **facts)

    def _look(self, held: Partition, known: Head | None) -> None:
        """Raises as `check_agreement` where a read-only open sees that the tiers do not agree. The disk was looked at
        first, and its writer may be at work: a verdict against it is judged once more, by what both are now."""
        assert held.metadata is not None, "the store was asked"
        try:
            check_agreement(held.log, known, self._mark)
        except Conflict:
            held.log.look_again()
            check_agreement(held.log, held.metadata.load(exact=True), self._mark)

    def _become_writer(self, held: Partition, metadata: MetadataLog, known: Head | None, now_ms: int) -> Head:
        def judge(latest: Head | None) -> None:
            """By the very manifest that ours follows: another writer may have come since `known`."""
            verdict = check_agreement(held.log, latest, self._mark, takes_over=self._takes_over)
            is_other = latest is not None and (known is None or latest.commit_id != known.commit_id)
            if is_other and verdict.relation is Relation.BEHIND:
                raise Unavailable("taking the writer role, a newer manifest came meanwhile", partition=held.name)

        if metadata.state is LogState.READER:
            metadata.become_writer(
                self.writer_id,
                now_ms,
                topic=held.topic.name,
                topic_id=held.topic.topic_id,
                partition=held.name.partition,
                properties=held.topic.properties,
                # A broker's log has had many: the next machine begins with the head's alone, and must not go back.
                first_epoch=(held.log.epochs.latest or 0) + 1,
                appends=True,
                judge=judge,
                seal_key_id=held.at_rest.key_id,
            )
        head = metadata.cached
        assert head is not None, "a writer has a head"
        if head.has_rows or head.log_start_offset >= held.log.log_start_offset:
            return head
        # A topic that becomes tiered brings its log start along; from here on the head's is the truth.
        return metadata.commit(expire_segments([], now_ms=now_ms, log_start_offset=held.log.log_start_offset), now_ms)


def _announce_views(held: Partition, metadata: MetadataLog, now_ms: int) -> Head | None:
    """Before the first copy: the manifest names the views that lie beside the log. None where there are none."""
    names = unannounced(held)
    return metadata.commit(announce_views(names), now_ms) if names else None


def _warn_of_older_bucket(held: Partition, head: Head) -> None:
    """A head's epoch is never below that of records which were appended under it, but where a backup came back."""
    latest = held.log.epochs.latest
    if latest is not None and latest > head.epoch:
        _log.warning(
            "an older state of the bucket has come back: what it lacks is on this disk and goes up again, in epochs"
            " given before; no other disk that holds records of that time may be opened, they have to come back"
            " empty: partition=%s head_epoch=%d disk_epoch=%d",
            held.name,
            head.epoch,
            latest,
        )


def _is_gone(held: Partition) -> bool:
    """Whether its topic was deleted; to be asked inside `lock`, and again after each wait."""
    return held.is_deleted


def wants_tier(values: Mapping[str, str]) -> bool:
    """What the effective settings say."""
    return values[ENABLE] == "true"


def _rules(topic: Topic, values: Mapping[str, str]) -> PartitionRules:
    rules = resolve_rules(values)
    if wants_tier(values) or not topic.was_tiered:
        return rules
    if is_given_up(topic, values):
        return replace(rules, copy_disabled=True, gives_up_remote=True)
    _log.warning(
        "the remote tier of a topic that was tiered stays: nothing more is copied, as with "
        "remote.log.copy.disable=true: topic=%s remote.storage.enable=false",
        topic.name,
    )
    return replace(rules, copy_disabled=True)
