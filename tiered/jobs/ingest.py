"""Bulk ingest: records become closed segments in the bucket, with no manager and no disk's log in between.

1. `plan_ingest`, in one place: every partition of the topic gets a new epoch, that of this job (P1: before any upload).
   Whoever wrote it before is fenced: the offsets behind the bucket's end are one writer's to give.
2. `tiered.jobs.ingest_task.IngestTask`, in any number of places: batches are encoded as an append would, given offsets,
   spooled, and uploaded segment by segment. Attempts may fail and run twice: names are never used again.
3. `commit_ingest`, in one place again: for each partition one head that names the segments of the attempts that won.

**Offsets.** A batch in an object can't be given other offsets afterwards, and a task does not know how many records the
others have. So each task has a range of its own: task t of a partition gives ``start + t * span`` and following, where
`start` is the bucket's end. An attempt that is run again gives the same offsets, and only one is committed, so no
offset is ever given twice; records of a task keep their order, and tasks follow one another by number. What a range has
left over is a gap, as in a compacted log: the row before it reaches up to the next one's base. With a span of None
there are no gaps; then all records of a partition have to come from one task.

**Once.** A head remembers the jobs that are in it (`remote.manifest.job_changes`). A partition that has the job's note
is passed over, whoever runs the job again. A stream's `turn` is its batch: a turn that is not above the noted one is in
already.

**Old heads.** A stream commits one with every batch, for years, and no manager is there to collect them. So whoever
commits does, once so many are there that a manager would (`policies.manifest_collection`); what goes wrong there is no
trouble of the ingest's.

| a crash, or an error, after | leaves | what becomes of it |
|---|---|---|
| some epochs begun | partitions without a writer at work | the job, run again, joins the epochs that it began |
| some uploads | objects that no head names | nobody's, once the next epoch begins |
| some commits | those partitions whole, the others as they were | the job, run again, does the others |
| `abort_ingest` | what the winners had uploaded, on the list to delete | the next writer, or `jobs.bucket_deletion` |
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from local.errors import Conflict, InvalidRequest, LogError, NotFound
from local.log.checkpoints import parse_entries
from local.names import new_topic_id
from policies.manifest_collection import collectable_upto
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.gc.old_manifests import collect_heads
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.co_writer import GuestLog
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.conditional_takeover import ResumedLog
from remote.manifest.job_changes import append_rows, is_done
from remote.manifest.manifest import Head, JobNote
from remote.manifest.manifest_changes import unlink_uploads
from remote.manifest.manifest_lookup import MetadataIndex
from remote.segment_entry import RemoteSegment
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.properties import DEFAULTS
from tiered.config.topic_settings import log_settings
from tiered.node.writer_ids import INGEST
from tiered.read.partition_source import PartitionSource
from tiered.read.read_committed import producers_in_bucket
from tiered.stores.object_encoding import with_key_of

_log = logging.getLogger(__name__)

SPAN = 1 << 31  # offsets of one task in one partition; 2^32 such ranges fit the 63 bits of an offset


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestTarget:
    """One partition as a job begins to write it. `start_offset` is None where each turn of a stream asks anew.

    `producers` and `epochs` are what the indexes of its `last` row say: a segment of this job says the same, and
    itself.
    """

    name: RemotePartitionName
    epoch: int
    start_offset: int | None
    producers: bytes = b""
    epochs: tuple[tuple[int, int], ...] = ()
    is_done: bool = False
    last: RemoteSegment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What a job writes where. `targets` are all partitions of the topic, by number; `span`: see the module text."""

    job_id: str
    topic: str
    topic_id: str
    now_ms: int
    settings: Mapping[str, str]
    targets: tuple[IngestTarget, ...]
    span: int | None = SPAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What one attempt of a task has uploaded, by partition, in order; the offsets where it took the end to be."""

    task: int
    rows: Mapping[int, tuple[RemoteSegment, ...]]
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOutcome:
    """What a partition came to. `was_done`: an earlier run had committed it, and this one changed nothing."""

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
    """Make all partitions of a topic this job's. One that the bucket lacks is created with `create_partitions`.

    `settings` outweigh the topic's own; a topic that is created has them as its own. A partition that has the job is
    left alone, unless it is a stream; one whose epoch this job began is joined. Raises NotFound for a topic that is not
    there, InvalidRequest for two topics of one name, another number of partitions, or an open transaction; Conflict
    where others wrote and `takes_leadership` is False.
    """
    if span is not None and span < 1:
        raise InvalidRequest("ingesting, a span of offsets below one", span=span)
    log_settings({**DEFAULTS, **(settings or {})})  # refuses what is unknown or contradicts itself
    job_id = job_id or f"job-{new_ulid(now_ms)}"
    names = _partitions(store, topic, topic_id, create_partitions)
    heads = {name: MetadataLog(store, name.prefix).load(exact=True) for name in names}
    note = JobNote(job_id=job_id)
    done = {name for name, head in heads.items() if head is not None and is_done(head, note) and not is_stream}
    for name, head in heads.items():
        if head is not None and name not in done and head.writer_id != INGEST + job_id:
            _check_free(store, name, head, takes_leadership=takes_leadership, keys=keys)
    own = next((head.properties for head in heads.values() if head is not None), dict(settings or {}))
    targets = []
    for name, head in heads.items():
        if head is not None and name in done:
            targets.append(IngestTarget(name=name, epoch=head.epoch, start_offset=end_of(head), is_done=True))
            continue
        if head is None or head.writer_id != INGEST + job_id:
            head = _taken(store, name, job_id, own, now_ms)
        targets.append(_target(store, name, head, keys, is_stream=is_stream))
    return IngestPlan(
        job_id=job_id,
        topic=topic,
        topic_id=names[0].topic_id,
        now_ms=now_ms,
        settings=_with_key({**own, **(settings or {})}, targets),
        targets=tuple(targets),
        span=span,
    )


def commit_ingest(
    store: ObjectStore, plan: IngestPlan, parts: Iterable[Ingested], *, now_ms: int, turn: int = 0
) -> list[IngestOutcome]:
    """Make what the winning attempts uploaded the truth, a head for each partition; what came of each.

    May be repeated. A partition that cannot be committed holds none of the others back; its error is raised in the end:
    Fenced when another writer came, Conflict when tasks gave offsets of each other's or the end has moved.
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
    """Have deleted what the attempts uploaded, as far as they told and no head names it.

    Nothing is deleted here: a commit may have been sent whose answer was lost. So a head is committed that lists the
    objects, which settles that: either the rows are there already, and are passed over, or they can never be.
    """
    parts = list(parts)
    for target in plan.targets:
        rows = [row for part in parts for row in part.rows.get(target.name.partition, ())]
        if not rows:
            continue
        try:
            log = GuestLog(store, target.name.prefix)
            log.join(epoch=target.epoch)
            log.commit(unlink_uploads(rows), now_ms)
        except LogError as error:
            _log.warning("leaving objects of an ingest: partition=%s cause=%s", target.name.topic_partition, error)


def end_of(head: Head) -> int:
    """Where a job's first record goes: above all offsets that were ever given in the bucket."""
    return max(head.next_offset, head.highest_next_offset)


def _partitions(
    store: ObjectStore, topic: str, topic_id: str | None, create_partitions: int | None
) -> list[RemotePartitionName]:
    """The topic's partitions by number, those that are to be created too."""
    there = [name for name in list_partitions(store, [topic]) if topic_id in (None, name.topic_id)]
    deleted = {name.topic_id for name in there if (h := MetadataLog(store, name.prefix).load()) and h.deleted_ms}
    there = [name for name in there if name.topic_id not in deleted]
    ids = sorted({name.topic_id for name in there})
    if len(ids) > 1:
        raise InvalidRequest("ingesting, the bucket holds several topics of one name", topic=topic, ids=",".join(ids))
    if not there and create_partitions is None:
        raise NotFound("ingesting, no such topic in the bucket; it can be created (createPartitions)", topic=topic)
    count = create_partitions if create_partitions is not None else 1 + max(name.partition for name in there)
    if count < 1 or any(name.partition >= count for name in there):
        found = 1 + max((name.partition for name in there), default=-1)
        raise InvalidRequest("ingesting, another number of partitions", topic=topic, asked=count, there_are=found)
    identity = ids[0] if ids else topic_id or new_topic_id()
    return [RemotePartitionName(topic, identity, number) for number in range(count)]


def _check_free(
    store: ObjectStore, name: RemotePartitionName, head: Head, *, takes_leadership: bool, keys: KeyRing
) -> None:
    """Raises Conflict and InvalidRequest for a partition that must not be taken over."""
    if head.given_up:
        facts = {"partition": name.topic_partition, "writer": head.writer_id}
        raise InvalidRequest("ingesting, what the tier held is being given up: its rows leave first", **facts)
    if not takes_leadership and not head.writer_id.startswith(INGEST):
        facts = {"partition": name.topic_partition, "writer": head.writer_id, "epoch": head.epoch}
        raise Conflict("ingesting, somebody writes this partition (takeLeadership=false)", **facts)
    begun = producers_in_bucket(_source(store, name, keys)).first_unstable_offset
    if begun is not None:
        facts = {"partition": name.topic_partition, "offset": begun}
        raise InvalidRequest("ingesting, a transaction is open at the partition's end", **facts)


def _taken(store: ObjectStore, name: RemotePartitionName, job_id: str, own: Mapping[str, str], now_ms: int) -> Head:
    """The head by which the partition's new epoch is this job's."""
    log = MetadataLog(store, name.prefix)
    return log.become_writer(
        INGEST + job_id,
        now_ms,
        topic=name.topic,
        topic_id=name.topic_id,
        partition=name.partition,
        properties=None if log.load() is not None else own,
    )


def _target(
    store: ObjectStore, name: RemotePartitionName, head: Head, keys: KeyRing, *, is_stream: bool
) -> IngestTarget:
    source = _source(store, name, keys)
    last = source.ask_of(head, MetadataIndex.last_row)
    bundle = source.remote.indexes(last) if last is not None and source.remote is not None else None
    entries = parse_entries(bytes(bundle.epochs), last.indexes_key, 2) if bundle is not None and last else []
    return IngestTarget(
        name=name,
        epoch=head.epoch,
        start_offset=None if is_stream else end_of(head),
        producers=bytes(bundle.producers) if bundle is not None else b"",
        epochs=tuple((int(epoch), int(start)) for _, (epoch, start) in entries),
        last=last,
    )


def _with_key(settings: Mapping[str, str], targets: Sequence[IngestTarget]) -> dict[str, str]:
    """The settings of the job: behind encrypted entries it encrypts, also where no setting says so."""
    return with_key_of(settings, [each.last for each in targets if each.last is not None])


def _source(store: ObjectStore, name: RemotePartitionName, keys: KeyRing) -> PartitionSource:
    metadata = MetadataLog(store, name.prefix)
    remote = RemotePartition(store, name.prefix, ChunkCache(), metadata=metadata, read_ahead_chunks=0, keys=keys)
    return PartitionSource(name.topic_partition, None, remote, metadata)


def _committed(
    store: ObjectStore, plan: IngestPlan, target: IngestTarget, parts: Sequence[Ingested], now_ms: int, turn: int
) -> IngestOutcome:
    number = target.name.partition
    if target.is_done:
        head = MetadataLog(store, target.name.prefix).refresh(exact=True)
        return _outcome(target, head, [], was_done=True)
    rows = _in_order([row for part in parts for row in part.rows.get(number, ())], target.name)
    starts = {part.starts[number] for part in parts if number in part.starts}
    if target.start_offset is not None:
        starts.add(target.start_offset)
    log = GuestLog(store, target.name.prefix)
    head = log.join(epoch=target.epoch)
    note = JobNote(job_id=plan.job_id, turn=turn)
    was_done = is_done(head, note)
    if not was_done:
        if len(starts) > 1:
            facts = {"partition": target.name.topic_partition, "ends": ",".join(map(str, sorted(starts)))}
            raise Conflict("ingesting, the partition's end moved while tasks wrote", **facts)
        start = starts.pop() if starts else end_of(head)
        head = log.commit(append_rows(rows, start_offset=start, note=note), now_ms)
        was_done = bool(rows) and not log.index(head).holds(rows[0])
    if was_done and rows:
        log.commit(unlink_uploads(rows), now_ms)
    _collect_heads(store, plan, target, collectable_upto(head.sequence, log.void_upto), now_ms)
    return _outcome(target, head, [] if was_done else rows, was_done=was_done)


def _collect_heads(store: ObjectStore, plan: IngestPlan, target: IngestTarget, upto: int, now_ms: int) -> None:
    if not upto:
        return
    name, log = target.name, ResumedLog(store, target.name.prefix)
    try:
        log.resume(epoch=target.epoch, writer_id=INGEST + plan.job_id)
        collected = collect_heads(store, name.prefix, log, upto, now_ms=now_ms)
    except LogError as error:
        _log.warning("old heads not collected: partition=%s cause=%s", name.topic_partition, error)
        return
    _log.info("old heads collected: partition=%s heads=%d", name.topic_partition, collected.heads)


def _outcome(target: IngestTarget, head: Head, rows: Sequence[RemoteSegment], *, was_done: bool) -> IngestOutcome:
    return IngestOutcome(
        name=target.name,
        head_sequence=head.sequence,
        base_offset=rows[0].base_offset if rows else end_of(head),
        next_offset=rows[-1].next_offset if rows else end_of(head),
        record_count=sum(row.record_count for row in rows),
        segment_count=len(rows),
        size_bytes=sum(row.size_bytes for row in rows),
        was_done=was_done,
    )


def _in_order(rows: Iterable[RemoteSegment], name: RemotePartitionName) -> list[RemoteSegment]:
    """By offset, each reaching up to the next one's base. Raises Conflict where tasks gave the same offsets."""
    found = sorted(rows, key=lambda row: row.base_offset)
    for at, (one, other) in enumerate(pairwise(found)):
        if one.next_offset > other.base_offset:
            facts = {"partition": name.topic_partition, "offset": other.base_offset}
            needed = "ingesting without gaps, two tasks have records of one partition: repartition by it first"
            raise Conflict(needed, **facts)
        found[at] = replace(one, next_offset=other.base_offset)
    return found
