"""Bulk ingest: records become closed segments in the bucket, without a manager or a local log.

1. `plan_ingest`, in one process: the job takes over the epoch of every partition of the topic (P1: before any upload).
   Only one writer may give the offsets after the bucket's end.
2. `tiered.jobs.ingest_task.IngestTask`, in any number of processes: batches are encoded as by an append, given offsets,
   and uploaded segment by segment. Attempts may fail and run twice: object names are never reused.
3. `commit_ingest`, in one process: one manifest for each partition, which names the segments of the winning attempts.

**Offsets.** Task t of a partition gives offsets from ``start + t * span``; `start` is the bucket's end. A repeated
attempt gives the same offsets, and only one attempt is committed, so no offset is given twice. The unused end of a
range is a gap, as in a compacted log: the entry before it reaches up to the next entry's base offset. With a span of
None there are no gaps; then one task must have all records of a partition.

**Exactly once.** A partition whose manifest has the job's note (`remote.manifest.manifest_changes`) is skipped. The
`turn` of a stream is its batch number: a turn at or below the noted one is already committed.

**Old manifests.** A stream commits a manifest with every batch. So the commit deletes as many old ones as a manager
would (`policies.retention`). An error there does not fail the ingest.

| a crash or an error after | leaves | outcome |
|---|---|---|
| some takeovers | partitions without a running writer | the repeated job joins its own epochs |
| some uploads | objects that no manifest names | orphans once the next epoch begins |
| some commits | some partitions complete, the others unchanged | the repeated job does the others |
| `abort_ingest` | the winners' uploads as pending deletes | the next writer, or `jobs.bucket_deletion`, deletes them |
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from local.errors import Conflict, InvalidRequest, LogError, NotFound
from local.log.checkpoints import parse_entries
from local.names import new_topic_id
from policies.retention import collectable_upto
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.gc.delayed_delete import collect_manifests
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob, Manifest
from remote.manifest.manifest_changes import append_entries, is_done, unlink_uploads
from remote.manifest.manifest_lookup import MetadataIndex
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.config import log_settings
from tiered.config.properties import DEFAULTS
from tiered.node.writer_ids import INGEST
from tiered.read.partition_source import PartitionSource
from tiered.stores.object_encoding import with_key_of

_log = logging.getLogger(__name__)

SPAN = 1 << 31  # offsets of one task in one partition; 2^32 such ranges fit the 63 bits of an offset


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestTarget:
    """A partition at a job's start; `start_offset` None: each turn reads the end. `epochs`: leader epochs so far."""

    name: RemotePartitionName
    epoch: int
    start_offset: int | None
    producers: bytes = b""
    epochs: tuple[tuple[int, int], ...] = ()
    is_done: bool = False
    last: SegmentEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """A job's settings and offset ranges (`span`, see the module), and all partitions of the topic, by number."""

    job_id: str
    topic: str
    topic_id: str
    now_ms: int
    settings: Mapping[str, str]
    targets: tuple[IngestTarget, ...]
    span: int | None = SPAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """The uploads of one attempt of a task, in order; its offsets begin at the partition ends `starts`."""

    task: int
    entries: Mapping[int, tuple[SegmentEntry, ...]]
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOutcome:
    """`was_done`: an earlier run had committed the partition."""

    name: RemotePartitionName
    head_sequence: int
    base_offset: int
    next_offset: int
    record_count: int = 0
    segment_count: int = 0
    size_bytes: int = 0
    was_done: bool = False


def plan_ingest(
    store: ObjectStore,
    topic: str,
    *,
    now_ms: int,
    job_id: str | None = None,
    topic_id: str | None = None,
    create_partitions: int | None = None,
    takes_leadership: bool = True,
    settings: Mapping[str, str] | None = None,
    span: int | None = SPAN,
    is_stream: bool = False,
    keys: KeyRing = NO_KEYS,
) -> IngestPlan:
    """Take over all partitions of a topic; return the plan. A missing topic is created with `create_partitions`.

    `settings` override the topic's own; a new topic gets them as its own. Partitions with an epoch of this job are
    joined. Raises NotFound for an unknown topic, InvalidRequest for two topics of one name, another number of
    partitions, or an open transaction, Conflict if another writer wrote the partition and `takes_leadership` is False.
    """
    if span is not None and span < 1:
        raise InvalidRequest("cannot ingest, the offset span is below 1", span=span)
    log_settings({**DEFAULTS, **(settings or {})})  # rejects unknown and contradicting settings
    job_id = job_id or f"job-{new_ulid(now_ms)}"
    names = _partitions(store, topic, topic_id, create_partitions)
    manifests = {name: MetadataLog(store, name.prefix).load(exact=True) for name in names}
    note = AppliedJob(job_id=job_id)
    known = {name: manifest for name, manifest in manifests.items() if manifest is not None}
    done = set() if is_stream else {name for name, manifest in known.items() if is_done(manifest, note)}
    joined = {name for name, manifest in known.items() if manifest.writer_id == INGEST + job_id}
    for name, manifest in known.items():
        if name not in done | joined:
            _check_free(store, name, manifest, takes_leadership=takes_leadership, keys=keys)
    own = next((manifest.properties for manifest in known.values()), dict(settings or {}))
    targets = []
    for name in names:
        if name in done:
            end = end_of(known[name])
            targets.append(IngestTarget(name=name, epoch=known[name].epoch, start_offset=end, is_done=True))
            continue
        manifest = known[name] if name in joined else _taken(store, name, job_id, own, now_ms)
        targets.append(_target(store, name, manifest, keys, is_stream=is_stream))
    return IngestPlan(
        job_id=job_id,
        topic=topic,
        topic_id=names[0].topic_id,
        now_ms=now_ms,
        # After encrypted entries the job encrypts in any case.
        settings=with_key_of({**own, **(settings or {})}, [each.last for each in targets if each.last is not None]),
        targets=tuple(targets),
        span=span,
    )


def commit_ingest(
    store: ObjectStore, plan: IngestPlan, parts: Iterable[Ingested], *, now_ms: int, turn: int = 0
) -> list[IngestOutcome]:
    """Commit the winning attempts' uploads, one manifest and outcome for each partition. May be repeated.

    An error in one partition does not stop the others; the first one is raised at the end: Fenced after a takeover,
    Conflict if offsets of tasks overlap or the partition's end has moved.
    """
    parts = sorted(parts, key=lambda each: each.task)
    outcomes, errors = [], []
    for target in plan.targets:
        try:
            outcomes.append(_committed(store, plan, target, parts, now_ms, turn))
        except LogError as error:
            _log.error("ingest not committed: partition=%s error=%s", target.name.topic_partition, error)
            errors.append(error)
    if errors:
        raise errors[0]
    return outcomes


def abort_ingest(store: ObjectStore, plan: IngestPlan, parts: Iterable[Ingested], *, now_ms: int) -> None:
    """Make the reported uploads pending deletes, unless a manifest names them: a commit may be in doubt.

    The new manifest settles the doubt: either the entries are already there, or they can never be committed.
    """
    parts = list(parts)
    for target in plan.targets:
        entries = [entry for part in parts for entry in part.entries.get(target.name.partition, ())]
        if not entries:
            continue
        try:
            log = MetadataLog(store, target.name.prefix)
            log.join(epoch=target.epoch)
            log.commit(unlink_uploads(entries), now_ms)
        except LogError as error:
            name = target.name.topic_partition
            _log.warning("cannot delete the objects of an ingest: partition=%s cause=%s", name, error)


def end_of(manifest: Manifest) -> int:
    """Return the offset above every offset that the bucket has ever assigned."""
    return max(manifest.next_offset, manifest.max_end_offset)


def _partitions(
    store: ObjectStore, topic: str, topic_id: str | None, create_partitions: int | None
) -> list[RemotePartitionName]:
    known = [name for name in list_partitions(store, [topic]) if topic_id in (None, name.topic_id)]
    deleted = {name.topic_id for name in known if (h := MetadataLog(store, name.prefix).load()) and h.deleted_ms}
    known = [name for name in known if name.topic_id not in deleted]
    ids = sorted({name.topic_id for name in known})
    if len(ids) > 1:
        wrong = "cannot ingest, the bucket has several topics of this name"
        raise InvalidRequest(wrong, topic=topic, ids=",".join(ids))
    if not known and create_partitions is None:
        wrong = "cannot ingest, the topic is not in the bucket; the option createPartitions creates it"
        raise NotFound(wrong, topic=topic)
    count = create_partitions if create_partitions is not None else 1 + max(name.partition for name in known)
    if count < 1 or any(name.partition >= count for name in known):
        found = 1 + max((name.partition for name in known), default=-1)
        wrong = "cannot ingest, the topic has another number of partitions"
        raise InvalidRequest(wrong, topic=topic, asked=count, there_are=found)
    identity = ids[0] if ids else topic_id or new_topic_id()
    return [RemotePartitionName(topic, identity, number) for number in range(count)]


def _check_free(
    store: ObjectStore, name: RemotePartitionName, manifest: Manifest, *, takes_leadership: bool, keys: KeyRing
) -> None:
    facts = {"partition": name.topic_partition, "writer": manifest.writer_id}
    if manifest.tier_disabled:
        raise InvalidRequest("cannot ingest, the remote tier of the topic is being disabled", **facts)
    if not takes_leadership and not manifest.writer_id.startswith(INGEST):
        wrong = "cannot ingest, another writer owns the partition (takeLeadership=false)"
        raise Conflict(wrong, **facts, epoch=manifest.epoch)
    open_offset = _source(store, name, keys).producers_in_bucket().first_unstable_offset
    if open_offset is not None:
        wrong = "cannot ingest, a transaction is open at the end of the partition"
        raise InvalidRequest(wrong, partition=name.topic_partition, offset=open_offset)


def _taken(store: ObjectStore, name: RemotePartitionName, job_id: str, own: Mapping[str, str], now_ms: int) -> Manifest:
    log = MetadataLog(store, name.prefix)
    properties = None if log.load() is not None else own
    return log.become_writer(INGEST + job_id, now_ms, **name.identity, properties=properties)


def _target(
    store: ObjectStore, name: RemotePartitionName, manifest: Manifest, keys: KeyRing, *, is_stream: bool
) -> IngestTarget:
    source = _source(store, name, keys)
    last = source.ask_of(manifest, MetadataIndex.last_entry)
    bundle = source.remote.indexes(last) if last is not None and source.remote is not None else None
    entries = parse_entries(bytes(bundle.epochs), last.indexes_key, 2) if bundle is not None and last else []
    return IngestTarget(
        name=name,
        epoch=manifest.epoch,
        start_offset=None if is_stream else end_of(manifest),
        producers=bytes(bundle.producers) if bundle is not None else b"",
        epochs=tuple((int(epoch), int(start)) for _, (epoch, start) in entries),
        last=last,
    )


def _source(store: ObjectStore, name: RemotePartitionName, keys: KeyRing) -> PartitionSource:
    metadata = MetadataLog(store, name.prefix)
    remote = RemotePartition(store, name.prefix, ChunkCache(), metadata=metadata, keys=keys)
    return PartitionSource(name.topic_partition, None, remote, metadata)


def _committed(
    store: ObjectStore, plan: IngestPlan, target: IngestTarget, parts: Sequence[Ingested], now_ms: int, turn: int
) -> IngestOutcome:
    number = target.name.partition
    if target.is_done:
        manifest = MetadataLog(store, target.name.prefix).refresh(exact=True)
        return _outcome(target, manifest, [], was_done=True)
    entries = _in_order([entry for part in parts for entry in part.entries.get(number, ())], target.name)
    starts = {part.starts[number] for part in parts if number in part.starts}
    if target.start_offset is not None:
        starts.add(target.start_offset)
    log = MetadataLog(store, target.name.prefix)
    manifest = log.join(epoch=target.epoch)
    note = AppliedJob(job_id=plan.job_id, turn=turn)
    was_done = is_done(manifest, note)
    if not was_done:
        if len(starts) > 1:
            facts = {"partition": target.name.topic_partition, "ends": ",".join(map(str, sorted(starts)))}
            raise Conflict("cannot ingest, the log end offset of the partition changed during the job", **facts)
        start = starts.pop() if starts else end_of(manifest)
        manifest = log.commit(append_entries(entries, start_offset=start, note=note), now_ms)
        was_done = bool(entries) and not log.index(manifest).holds(entries[0])
    if was_done and entries:
        log.commit(unlink_uploads(entries), now_ms)
    _collect_manifests(store, plan, target, collectable_upto(manifest.sequence, log.gc_boundary), now_ms)
    return _outcome(target, manifest, [] if was_done else entries, was_done=was_done)


def _collect_manifests(store: ObjectStore, plan: IngestPlan, target: IngestTarget, upto: int, now_ms: int) -> None:
    if not upto:
        return
    name, log = target.name, MetadataLog(store, target.name.prefix)
    try:
        log.resume(epoch=target.epoch, writer_id=INGEST + plan.job_id)
        collected = collect_manifests(store, name.prefix, log, upto, now_ms=now_ms)
    except LogError as error:
        _log.warning("cannot collect old manifests: partition=%s cause=%s", name.topic_partition, error)
        return
    _log.info("collected old manifests: partition=%s heads=%d", name.topic_partition, collected.manifests)


def _outcome(
    target: IngestTarget, manifest: Manifest, entries: Sequence[SegmentEntry], *, was_done: bool
) -> IngestOutcome:
    return IngestOutcome(
        name=target.name,
        head_sequence=manifest.sequence,
        base_offset=entries[0].base_offset if entries else end_of(manifest),
        next_offset=entries[-1].next_offset if entries else end_of(manifest),
        record_count=sum(entry.record_count for entry in entries),
        segment_count=len(entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        was_done=was_done,
    )


def _in_order(entries: Iterable[SegmentEntry], name: RemotePartitionName) -> list[SegmentEntry]:
    found = sorted(entries, key=lambda entry: entry.base_offset)
    for at, (one, other) in enumerate(pairwise(found)):
        if one.next_offset > other.base_offset:
            facts = {"partition": name.topic_partition, "offset": other.base_offset}
            wrong = "cannot ingest without gaps, two tasks have records of one partition"
            raise Conflict(f"{wrong}: repartition the data by partition first", **facts)
        found[at] = replace(one, next_offset=other.base_offset)
    return found
