"""Import an external bucket: same records, same offsets, our layout; verified and resumable.

Each segment is read once, to a temporary file. Counts, times, indexes, leader epochs and checksums are computed from
its bytes. Only the facts about transactions that began before the first segment come from the source. No entry names an
object of the source, whose retention could delete it (decision 0020).

1. `plan_import` lists the source and the target: the entries that are due, with requests and dollars.
2. `ImportJob` becomes the target's writer, copies entry by entry and commits each in offset order.

| a crash, or an error, after | leaves in the target | afterwards |
|---|---|---|
| the new epoch | a manifest without entries, or with those of earlier runs | the next run continues there |
| an upload | objects that no manifest names | orphans, as soon as the next run has become the writer |
| a commit in doubt | the new manifest | the next plan finds the entry |

The target partition has one writer, this import: it never takes over from another writer. A manager that takes the
topic over afterwards appends at its end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import BinaryIO, NamedTuple

import numpy as np

from local.errors import Conflict, Corrupt, InvalidRequest, LogError
from local.format.columns import BatchTable
from local.format.crc32c import crc32c_of
from local.index import txn_index
from local.index.index_files import IndexRows, slices_of
from local.log.checkpoints import encode_epochs
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import ProducerState, decode_snapshot, encode_snapshot
from local.names import new_topic_id
from local.verify.findings import Finding, Severity
from policies.cost.prices import BUILT_IN, PriceTable
from remote.cache.chunk_cache import ChunkCache
from remote.external.external_layout import ExternalFormat, ExternalName, ExternalObject, ExternalParts
from remote.fetch.range_reader import RemotePartition
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import add_segments, expire_segments
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.manifest_page import gaps_between
from remote.manifest.sealing import keyed
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.stored_segment import combine
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.jobs.bucket_copying import EPOCHS_APART
from tiered.jobs.rewriting import RewriteCost, cost_of
from tiered.jobs.runner import Clock, Failures, Here, LocalJob, run_job
from tiered.partition.segment_inspection import SegmentInspector
from tiered.read.external_partition import INTERVAL_BYTES, has_known_transactions, list_entries, parse_lineage
from tiered.stores.object_encoding import EncodingChoice

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyImported:
    """The rest of a segment that has grown since an import took its first part.

    `entry` begins at the offset reached so far. Its first `skipped_bytes` are in the target, as entries that tile the
    segment from its base offset; `check` compares their checksums.
    """

    entry: SegmentEntry
    skipped_bytes: int
    skipped_crc32c: int

    def check(self, read: Callable[[int, int], bytes]) -> None:
        """Check that the segment still begins with the imported bytes. Raises Conflict if it does not."""
        if crc32c_of(read, self.skipped_bytes) != self.skipped_crc32c:
            raise _other(self.entry)


def partly_imported(
    entries: Sequence[SegmentEntry], log: MetadataLog, manifest: Manifest, reached: int
) -> PartlyImported | None:
    """The rest of the source segment in which the target ends, or None. Raises Conflict if its first part differs."""
    inside = next((entry for entry in entries if entry.base_offset < reached < entry.next_offset), None)
    if inside is None:
        return None
    known = log.ask(manifest, lambda index: list(index.entries_with_dead(inside.base_offset, reached)))
    bounds = [inside.base_offset, *(entry.next_offset for entry in known)]
    size = sum(entry.size_bytes for entry in known)
    if [entry.base_offset for entry in known] != bounds[:-1] or bounds[-1] != reached or size >= inside.size_bytes:
        raise _other(inside)
    return PartlyImported(
        entry=replace(inside, base_offset=reached, size_bytes=inside.size_bytes - size),
        skipped_bytes=size,
        skipped_crc32c=combine([entry.content_crc32c for entry in known], [entry.size_bytes for entry in known]),
    )


def _other(entry: SegmentEntry) -> Conflict:
    wrong = "cannot resume the import, the source has other segments for offsets that were imported"
    return Conflict(f"{wrong}: import to a new topic", object=entry.data_key, base_offset=entry.base_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """The plan of one partition's import: the entries that are not imported yet.

    `gaps` are offsets that the source lacks between two segments. The first of `entries` may be `partly_imported`.
    `findings` are contradictions in the source. The import ends at `blocked_from`, before an unreadable segment.
    """

    source: ExternalName
    name: RemotePartitionName
    layout: str
    now_ms: int
    entries: tuple[SegmentEntry, ...]
    log_start_offset: int
    encoding: EncodingChoice
    properties: dict[str, str]
    gaps: tuple[tuple[int, int], ...]
    cost: RewriteCost
    partly_imported: PartlyImported | None = None
    findings: tuple[Finding, ...] = ()
    blocked_from: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    name: RemotePartitionName
    entries: int
    size_bytes: int
    record_count: int
    next_offset: int
    is_complete: bool = True


def plan_import(
    source: ObjectStore,
    layout: ExternalFormat,
    name: ExternalName,
    target: ObjectStore,
    *,
    topic_id: str,
    now_ms: int,
    encoding: EncodingChoice | None = None,
    properties: dict[str, str] | None = None,
    prices: PriceTable = BUILT_IN,
) -> ImportPlan:
    """Plan the import of a partition into the topic of that id. Changes nothing.

    Raises InvalidRequest if source and target are the same store, Conflict if another writer writes to the target or
    the target has other offsets than the source.
    """
    if source.url == target.url:
        raise InvalidRequest("cannot import the bucket, source and target are the same", store=source.url)
    imported = RemotePartitionName(name.topic, topic_id, name.partition)
    found: dict[str, Finding] = {}
    entries = list_entries(source, layout, name, found)
    log = MetadataLog(target, imported.prefix)
    manifest = log.load(exact=True)
    _check_ours(source, target, imported, manifest)
    reached = 0 if manifest is None else manifest.allocated_end_offset
    rest = None if manifest is None else partly_imported(entries, log, manifest, reached)
    due = tuple(entry for entry in entries if entry.base_offset >= reached)
    due = due if rest is None else (rest.entry, *due)
    blocked = [each.offsets[0] for each in found.values() if each.severity is Severity.CORRUPT and each.offsets]
    blocked_from = min((base for base in blocked if base >= reached), default=None)
    if blocked_from is not None:
        due = tuple(entry for entry in due if entry.base_offset < blocked_from)
    encoding = encoding or EncodingChoice()
    costs = [cost_of([entry], encoding, prices) for entry in due]
    return ImportPlan(
        source=name,
        name=imported,
        layout=layout.layout.value,
        now_ms=now_ms,
        entries=due,
        log_start_offset=entries[0].base_offset if entries else 0,
        encoding=encoding,
        properties=dict(properties or {}),
        gaps=tuple(gaps_between(entries)),
        cost=RewriteCost.total(costs, len(costs) + 2 if costs else 0, prices),
        partly_imported=rest,
        findings=tuple(found.values()),
        blocked_from=blocked_from,
    )


def topic_id_for(
    source: ObjectStore, target: ObjectStore, topic: str, source_id: str, *, requested: str | None = None
) -> str:
    """The id to import a topic under. Raises Conflict, unless `requested`, for a living topic of another origin."""
    others = set()
    for name in list_partitions(target):
        if name.topic != topic or requested not in (None, name.topic_id):
            continue
        manifest = MetadataLog(target, name.prefix).load(exact=True)
        if manifest is not None and manifest.deleted_ms is None:
            if manifest.writer_id == _writer(source):
                return name.topic_id
            others.add(name.topic_id)
    if others:
        facts = {"topic": topic, "topic_ids": ",".join(sorted(others)), "store": target.url}
        raise Conflict("cannot import the topic, the target has a topic of this name", **facts)
    return requested or source_id or new_topic_id()


def run_import(
    source: ObjectStore,
    layout: ExternalFormat,
    target: ObjectStore,
    plan: ImportPlan,
    *,
    now_ms: Clock,
    keys: KeyRing = NO_KEYS,
    scratch: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> ImportOutcome:
    """Carry out one plan; the arguments are those of `ImportJob`. Earlier commits stay after an error.

    Raises Corrupt, with the object, for a segment that does not decode or contradicts its place. Raises InvalidRequest
    for messages of format 0 or 1, which the remote tier does not hold. Raises Conflict and Fenced as `plan_import`.
    """
    job = ImportJob(
        source=source, layout=layout, target=target, plans=[plan], now_ms=now_ms, keys=keys, scratch=scratch
    )
    (outcome,) = run_job(job, Here(should_stop), progress=progress)
    return outcome


class ImportUnit(NamedTuple):
    number: int
    entry: SegmentEntry
    following: SegmentEntry | None


@dataclass(kw_only=True)
class ImportJob(LocalJob[ImportUnit, SegmentEntry, ImportOutcome]):
    """A unit is a segment, in order. `scratch` has room for one segment."""

    source: ObjectStore
    layout: ExternalFormat
    target: ObjectStore
    plans: Sequence[ImportPlan]
    now_ms: Clock
    keys: KeyRing = NO_KEYS
    scratch: str | None = None

    def __post_init__(self) -> None:
        self.target = keyed(self.target, self.keys)
        self.failures = Failures([plan.name for plan in self.plans])
        self.description = f"importing {len(self.plans)} partitions from {self.source.url}"
        self._partitions: dict[int, _Partition] = {}
        self._done: list[list[SegmentEntry]] = [[] for _ in self.plans]

    def units(self) -> Iterator[ImportUnit]:
        for number, plan in enumerate(self.plans):
            if not plan.entries:
                continue
            with self.failures.noted(number):
                self._partitions[number] = _Partition(self, plan, _begin(self.source, self.target, plan).epoch)
                for entry, following in zip_longest(plan.entries, plan.entries[1:]):
                    yield ImportUnit(number, entry, following)

    def size_of(self, unit: ImportUnit) -> int:
        return unit.entry.size_bytes

    def do(self, unit: ImportUnit) -> SegmentEntry:
        return self._partitions[unit.number].copied(unit.entry, unit.following)

    def commit(self, results: Sequence[tuple[ImportUnit, SegmentEntry | LogError]]) -> None:
        for unit, result in results:
            if not isinstance(result, LogError):
                with self.failures.noted(unit.number):
                    log = MetadataLog(self.target, self.plans[unit.number].name.prefix)
                    log.join(epoch=self._partitions[unit.number].epoch)
                    log.commit(add_segments([result]), self.now_ms())
                    self._done[unit.number].append(result)

    def outcomes(self) -> list[ImportOutcome]:
        manifests = [MetadataLog(self.target, plan.name.prefix).load(exact=True) for plan in self.plans]
        return [
            ImportOutcome(
                name=plan.name,
                entries=len(done),
                size_bytes=sum(entry.size_bytes for entry in done),
                record_count=sum(entry.record_count for entry in done),
                next_offset=0 if manifest is None else manifest.next_offset,
                is_complete=len(done) == len(plan.entries) and plan.blocked_from is None,
            )
            for plan, done, manifest in zip(self.plans, self._done, manifests, strict=True)
        ]


class _Partition:
    def __init__(self, job: ImportJob, plan: ImportPlan, epoch: int) -> None:
        self.epoch = epoch
        self._job, self._source, self._layout, self._plan = job, job.source, job.layout, plan
        self._producers, self._epochs = _state(job.target, plan, job.keys)
        self._is_cleaned = False  # a batch of this run lacks records: a cleaner has processed the topic

    def copied(self, entry: SegmentEntry, following: SegmentEntry | None) -> SegmentEntry:
        if following is not None and entry.next_offset < following.base_offset:
            self._is_cleaned = self._is_cleaned or self._is_cleaned_behind(entry)
        job, parts, rest = self._job, self._layout.parts(self._source, entry), self._plan.partly_imported
        rest = rest if rest is not None and rest.entry == entry else None
        skipped = 0 if rest is None else rest.skipped_bytes
        with tempfile.TemporaryFile(dir=job.scratch) as file:
            _fetch(ExternalObject(self._source, entry.data_key, parts), skipped + entry.size_bytes, file)
            if rest is not None:
                rest.check(partial(_read, file, 0))
            return copy_segment(
                job.target,
                self._plan.name.prefix,
                self._segment(entry, following, parts, partial(_read, file, skipped)),
                epoch=self.epoch,
                now_ms=job.now_ms(),
                object_encoding=self._plan.encoding.object_encoding(job.keys),
            )

    def _is_cleaned_behind(self, entry: SegmentEntry) -> bool:
        """Whether a later segment lacks records: then the cleaner has processed all segments before it."""
        for later in self._plan.entries:
            if later.base_offset >= entry.next_offset:
                body = ExternalObject(self._source, later.data_key, self._layout.parts(self._source, later))
                reached = later.base_offset
                for _, _, table in slices_of(body.read):
                    if lacks_records(table, reached):
                        return True
                    reached = int(table.last_offsets[-1]) + 1
        return False

    def _segment(
        self,
        entry: SegmentEntry,
        following: SegmentEntry | None,
        parts: ExternalParts,
        read: Callable[[int, int], bytes],
    ) -> SegmentToCopy:
        indexes, epochs, aborted, seen, reached = IndexRows(), LeaderEpochs(), [], 0, entry.base_offset
        for at, data, table in slices_of(read):
            self._is_cleaned = self._is_cleaned or lacks_records(table, reached)
            reached = int(table.last_offsets[-1]) + 1
            indexes.add(table)
            epochs = epochs.with_batches(table)
            aborted += self._producers.replay(data, table)
            seen = at + table.valid_bytes
        if seen != entry.size_bytes:
            facts = {"object": entry.data_key, "at": seen, "size_bytes": entry.size_bytes}
            raise Corrupt("cannot import a segment, it is not whole batches", **facts)
        if has_known_transactions(entry) and entry.size_bytes == parts.chunks.size_bytes:
            aborted = txn_index.entries(parts.txn or b"", path=entry.data_key)
            if parts.producers:
                self._producers = ProducerState(decode_snapshot(parts.producers, path=entry.data_key))
        made = indexes.indexes(entry.base_offset, INTERVAL_BYTES)
        own = self._own_epochs(entry, epochs)
        files = bytes(made.offset), bytes(made.time)
        # In a cleaned topic the offsets up to the next segment belong to removed records.
        next_offset = entry.next_offset
        if following is not None and self._is_cleaned:
            next_offset = max(next_offset, following.base_offset)
        place = entry.data_key, entry.base_offset, next_offset
        return SegmentToCopy(
            base_offset=entry.base_offset,
            next_offset=next_offset,
            size_bytes=entry.size_bytes,
            epochs=own,
            offset_index=files[0],
            time_index=files[1],
            txn_index=txn_index.encode(aborted),
            producer_snapshot=encode_snapshot(self._producers.entries()),
            leader_epochs=encode_epochs(self._epochs.entries),
            read=read,
            inspect=partial(SegmentInspector, *place, own, files),
        )

    def _own_epochs(self, entry: SegmentEntry, epochs: LeaderEpochs) -> tuple[tuple[int, int], ...]:
        """The epochs of a segment by its batches; without any, the latest one of earlier segments, or 0."""
        entries = epochs.entries or ((self._epochs.latest or 0, entry.base_offset),)
        own = ((entries[0][0], entry.base_offset), *entries[1:])
        for epoch, start in own:
            self._epochs = self._epochs.assign(epoch, start)
        return own


def _begin(source: ObjectStore, target: ObjectStore, plan: ImportPlan) -> MetadataLog:
    """Become the target's writer; return its log. The epoch is far above the source's, for later appends."""
    log = MetadataLog(target, plan.name.prefix)
    known = log.load(exact=True)
    _check_ours(source, target, plan.name, known)
    log.become_writer(
        _writer(source),
        plan.now_ms,
        **plan.name.identity,
        properties=plan.properties if known is None else None,
        first_epoch=max((epoch for entry in plan.entries for epoch, _ in entry.epochs), default=0) + EPOCHS_APART,
        seal_key_id=plan.encoding.key_id,
    )
    manifest = log.refresh()
    if not manifest.has_entries and manifest.log_start_offset < plan.log_start_offset:
        log.commit(expire_segments([], now_ms=plan.now_ms, log_start_offset=plan.log_start_offset), plan.now_ms)
    return log


def _state(target: ObjectStore, plan: ImportPlan, keys: KeyRing) -> tuple[ProducerState, LeaderEpochs]:
    log = MetadataLog(target, plan.name.prefix)
    last = log.ask(log.refresh(exact=True), MetadataIndex.last_entry)
    if last is None:
        return ProducerState(), LeaderEpochs()
    bundle = RemotePartition(target, plan.name.prefix, ChunkCache(), metadata=log, keys=keys).indexes(last)
    entries = decode_snapshot(bundle.producers, path=last.indexes_key)
    return ProducerState(entries), LeaderEpochs(parse_lineage(bytes(bundle.epochs), last.indexes_key))


def lacks_records(table: BatchTable, from_offset: int) -> bool:
    """Whether records are missing from `from_offset` on: only a cleaner leaves a hole inside a segment."""
    starts = np.concatenate(([from_offset], table.last_offsets[:-1] + 1))
    spans = table.last_offsets - table.base_offsets + 1
    return bool((table.base_offsets > starts).any() or (table.record_counts < spans).any())


def _fetch(body: ExternalObject, size_bytes: int, file: BinaryIO) -> None:
    at = 0
    while at < size_bytes:
        piece = body.read(at, min(PIECE_BYTES, size_bytes - at))
        if not piece:
            raise Corrupt("cannot import a segment, its object is too short", object=body.key, at=at)
        file.write(piece)
        at += len(piece)
    file.flush()


def _read(file: BinaryIO, start: int, position: int, length: int) -> bytes:
    file.seek(start + position)
    return file.read(length)


def _check_ours(source: ObjectStore, target: ObjectStore, name: RemotePartitionName, manifest: Manifest | None) -> None:
    if manifest is None or (manifest.writer_id == _writer(source) and manifest.deleted_ms is None):
        return
    facts = {"store": target.url, "topic": name.topic, "partition": name.partition, "writer": manifest.writer_id}
    raise Conflict("cannot import the bucket, another writer writes to the target, or the topic was deleted", **facts)


def _writer(source: ObjectStore) -> str:
    return f"import of {source.url}"
