"""Plans for restoring topics of a bucket to a disk: entries that become files, ends and prices.

The result is a Kafka log directory that a broker and `LogManager` open.

| `LocalSegments` | files on the disk | afterwards |
|---|---|---|
| ALL | every segment | an independent topic without a remote tier; or, with `takes_over`, the tiered topic |
| RECENT | the segments that `local.retention.*` would not drop | with `takes_over` only: older ones stay in the tier |
| NONE | an empty active segment | with `takes_over` only: everything is read from the tier |

A cut (`to_offset`, `to_time_ms`) ends the log exactly there: a batch that contains the cut keeps its records below it.
The bucket has the records above the cut, so a cut topic cannot take over; a fork can (`tiered.migrate.fork`). In a
cleaned topic a cut may lack keys, because newer records above it replaced older ones: the caller must accept that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from local.errors import Corrupt, InvalidRequest, LogError, NotFound
from local.names import TopicPartition
from policies.cost.prices import BUILT_IN, PriceTable
from policies.cost.storage_cost import request_cost
from policies.rules import Limits
from remote.manifest.catalog import RemotePartitionName, partitions_of
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.config import resolve_rules
from tiered.config.properties import DEFAULTS
from tiered.jobs.rewriting import RewriteCost, read_cost
from tiered.read.bucket_reader import RemoteLog, without_deleted

ENABLE = "remote.storage.enable"


class LocalSegments(Enum):
    ALL = "all"
    RECENT = "recent"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreWish:
    """The caller's options; `takes_over`: the restored directory becomes the topic's writer, fencing the former."""

    kept: LocalSegments = LocalSegments.ALL
    to_offset: int | None = None
    to_time_ms: int | None = None
    takes_over: bool = False
    accepts_missing_keys: bool = False

    def check(self) -> None:
        is_cut = self.to_offset is not None or self.to_time_ms is not None
        if self.to_offset is not None and self.to_time_ms is not None:
            raise InvalidRequest("cannot restore, an end offset and an end time exclude each other")
        if is_cut and self.takes_over:
            raise InvalidRequest("cannot restore a part and take over, the bucket holds more records: fork the topic")
        if self.kept is not LocalSegments.ALL and not self.takes_over:
            hint = "without local files a writer must serve the tier: take over, or restore all"
            raise InvalidRequest(f"cannot restore, {hint}", kept=self.kept.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRestore:
    """The plan of one partition. `entries` become files, ascending; the log ends at `next_offset`.

    `next_offset` may be inside the last entry. The older `remote_only_entries` stay in the tier alone. `last_entry` is
    the newest entry of both. A cut below `exact_from` may lack keys; None: no key is missing.
    """

    name: RemotePartitionName
    manifest: Manifest
    entries: tuple[SegmentEntry, ...]
    next_offset: int
    cleaned_reach: int
    remote_only_entries: tuple[SegmentEntry, ...] = ()
    exact_from: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def last_entry(self) -> SegmentEntry | None:
        return next(iter((*self.entries[-1:], *self.remote_only_entries[-1:])), None)

    @property
    def whole_upto(self) -> int:
        """The offset below which the files equal the bucket's segments: all of `entries`, without one that was cut."""
        is_cut = self.entries and self.entries[-1].next_offset > self.next_offset
        return self.entries[-1].base_offset if is_cut else self.next_offset

    @property
    def clean_upto(self) -> int:
        """The offset below which every entry on the disk is clean; 0 if one was never cleaned."""
        return min([*(entry.cleaned_through or 0 for entry in self.entries), self.next_offset])

    @property
    def remote_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.remote_only_entries)

    def cost(self, prices: PriceTable = BUILT_IN) -> RewriteCost:
        """The requests and bytes of the reads, and their price without traffic out of a region."""
        manifest = RewriteCost(gets=2, dollars=request_cost(gets=2, prices=prices.of(None)))
        return RewriteCost.total([manifest, *(read_cost(entry, prices) for entry in self.entries)], 0, prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRestore:
    topic: str
    topic_id: str
    properties: dict[str, str]
    wish: RestoreWish
    partitions: tuple[PartitionRestore, ...]

    @property
    def partition_count(self) -> int:
        return 1 + max(each.name.partition for each in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedPartition:
    """A partition that prevents the restore of its topic."""

    name: RemotePartitionName
    error: LogError


def plan_restore(
    store: ObjectStore,
    names: Sequence[RemotePartitionName],
    wish: RestoreWish,
    *,
    now_ms: int,
    keys: KeyRing = NO_KEYS,
    skipped: list[SkippedPartition] | None = None,
    missing: Sequence[RemotePartitionName] = (),
) -> list[TopicRestore]:
    """Plan the restore of these partitions, by topic; writes nothing.

    A deleted topic does not block a living topic of its name. Raises InvalidRequest for an impossible wish, and for a
    takeover of a part of a topic. Raises NotFound for a deleted topic or one without a manifest. With `skipped`, a
    topic with a corrupt or `missing` partition is left out and noted there, if another topic can be restored.
    """
    wish.check()
    topics: dict[tuple[str, str], list[PartitionRestore]] = {}
    broken: list[SkippedPartition] = []
    living = without_deleted(store, names)
    for name in living:
        try:
            planned = plan_partition(MetadataLog(store, name.prefix), store, name, wish, now_ms=now_ms, keys=keys)
        except Corrupt as error:
            broken.append(SkippedPartition(name=name, error=error))
            continue
        topics.setdefault((name.topic, name.topic_id), []).append(planned)
    ids = {name.topic_id for name in living}
    for name in (name for name in missing if name.topic_id in ids):
        attempt = "cannot restore the topic, the bucket has no manifest of this partition: its records may be lost"
        absent = NotFound(attempt, topic=name.topic, partition=name.partition, store=store.url)
        broken.append(SkippedPartition(name=name, error=absent))
    for each in broken:
        topics.pop((each.name.topic, each.name.topic_id), None)
    if broken and (skipped is None or not topics):
        raise broken[0].error
    if skipped is not None:
        skipped += broken
    if wish.takes_over:
        for (topic, topic_id), found in topics.items():
            _check_whole(store, topic, topic_id, {each.name for each in found})
    if len({topic for topic, _ in topics}) < len(topics):
        twice = sorted(f"{topic}-{topic_id}" for topic, topic_id in topics)
        raise InvalidRequest("cannot restore, two topics have this name: choose one by its id", topics=",".join(twice))
    return [
        TopicRestore(
            topic=topic,
            topic_id=topic_id,
            # Not tiered without a takeover: the topic would fence the writer of this bucket.
            properties={**found[0].manifest.properties, ENABLE: "true" if wish.takes_over else "false"},
            wish=wish,
            partitions=tuple(found),
        )
        for (topic, topic_id), found in topics.items()
    ]


def _check_whole(store: ObjectStore, topic: str, topic_id: str, taken: Collection[RemotePartitionName]) -> None:
    """Raises InvalidRequest if the bucket has further partitions: a manager would take them from their writer."""
    missing = [name.partition for name in partitions_of(store, topic, topic_id) if name not in taken]
    if missing:
        wrong = "cannot take over a part of a topic, a writer owns all of its partitions: name the topic alone"
        raise InvalidRequest(wrong, topic=topic, skipped=",".join(map(str, missing)))


def plan_partition(
    log: MetadataLog,
    store: ObjectStore,
    name: RemotePartitionName,
    wish: RestoreWish,
    *,
    now_ms: int,
    keys: KeyRing = NO_KEYS,
) -> PartitionRestore:
    """Plan by the newest manifest. Raises as `plan_restore`."""
    manifest = log.cached or log.refresh(exact=True)
    readable = readable_entries(log, manifest, "restore")
    end = _end(store, name, manifest, wish, keys)
    entries = [entry for entry in readable if entry.base_offset < end]
    reach = cleaned_reach(entries)
    if reach > end and not wish.accepts_missing_keys:
        raise missing_keys("restore", manifest, "; accept that, or choose a later end", cut=end, exact_from=reach)
    match wish.kept:
        case LocalSegments.ALL:
            on_disk = entries
        case LocalSegments.NONE:
            on_disk = []
        case LocalSegments.RECENT:
            on_disk = _recent(entries, resolve_rules({**DEFAULTS, **manifest.properties}).local_limits, now_ms)
    return PartitionRestore(
        name=name,
        manifest=manifest,
        entries=tuple(on_disk),
        next_offset=end,
        cleaned_reach=min(reach, end),
        remote_only_entries=tuple(entries[: len(entries) - len(on_disk)]),
        exact_from=reach if reach > end else None,
    )


def readable_entries(log: MetadataLog, manifest: Manifest, doing: str) -> list[SegmentEntry]:
    """The entries with readable records, ascending. Raises NotFound for a deleted topic or a disabled tier."""
    facts = {"topic": manifest.topic, "partition": manifest.partition}
    if manifest.deleted_ms is not None:
        raise NotFound(f"cannot {doing} the topic, it was deleted", deleted_ms=manifest.deleted_ms, **facts)
    if manifest.tier_disabled:
        wrong = f"cannot {doing} the topic, its remote tier was disabled: only its disk has its records"
        raise NotFound(wrong, **facts)
    start = manifest.log_start_offset
    return log.ask(manifest, lambda index: [each for each in index.entries() if each.next_offset > start])


def cleaned_reach(entries: Sequence[SegmentEntry]) -> int:
    """The offset up to which cleaner passes of `entries` have read: a log that ends below it may lack keys."""
    return max((entry.cleaned_through or 0 for entry in entries), default=0)


def missing_keys(doing: str, manifest: Manifest, advice: str = "", **facts: object) -> InvalidRequest:
    why = "the topic was compacted: keys whose older records were replaced by newer ones above the end would be missing"
    where = {"topic": manifest.topic, "partition": manifest.partition}
    return InvalidRequest(f"cannot {doing} a part of the topic, {why}{advice}", **facts, **where)


def _end(store: ObjectStore, name: RemotePartitionName, manifest: Manifest, wish: RestoreWish, keys: KeyRing) -> int:
    end = wish.to_offset
    if wish.to_time_ms is not None:
        reader = RemoteLog(store, topic_ids={name.topic: name.topic_id}, keys=keys).reader()
        end = reader.offset_for_timestamp(TopicPartition(name.topic, name.partition), wish.to_time_ms)
    last = manifest.allocated_end_offset
    return last if end is None else max(manifest.log_start_offset, min(end, last))


def _recent(entries: Sequence[SegmentEntry], limits: Limits, now_ms: int) -> list[SegmentEntry]:
    recent: list[SegmentEntry] = []
    size = 0
    for entry in reversed(entries):
        newest_ms = entry.max_timestamp_ms if entry.max_timestamp_ms is not None else entry.committed_ms
        is_old = limits.ms is not None and now_ms - newest_ms > limits.ms
        if is_old or (limits.bytes is not None and size >= limits.bytes):
            break
        recent.append(entry)
        size += entry.size_bytes
    return recent[::-1]
