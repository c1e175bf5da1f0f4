"""Copy of a topic to another bucket, complete and verified, resumable after any interruption.

The copy has the same topic ids, offsets, batches, indexes and leader epochs. The source is only read, while its manager
runs. Views are not copied. Data is encrypted again, under the key ids of the entries or a requested one.

1. `plan_copy` lists the entries that the copy lacks.
2. `copy_entry` copies one of them, in any process.
3. `commit_entries` adds entries in the order of offsets. Those of a cleaned partition are committed all at once: the
   cleaner removed older records in favour of newer ones, so a part of the copy would lack keys.
4. `finish_copy` sets the log start offset, and `compare` lists the differences.

The copy has one writer: each run raises its epoch, and refuses a partition that another writer wrote to.

| a crash or an error after | leaves in the copy | outcome |
|---|---|---|
| the new epoch | a manifest without entries, or with the entries of earlier runs | the next run continues there |
| some uploads | objects that no manifest names | orphans once the next run has taken over |
| a commit, its reply lost | the new manifest | the next plan finds the entries there |
| all entries, no log start offset | perhaps entries that have expired in the source | the next run finishes |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

from local.errors import Conflict, InvalidRequest, LogError, NotFound
from policies.cost.prices import BUILT_IN, PriceTable
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import add_segments, expire_segments
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.upload.segment_upload import copy_segment
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.joined_segments import check_same_bytes, joined
from tiered.jobs.rewriting import RewriteCost, cost_of
from tiered.jobs.runner import BucketJob, Clock, Failures
from tiered.node.writer_ids import COPY
from tiered.stores.object_encoding import EncodingChoice, SettingsOf, encoding_of_entry, own_settings

ENTRIES_A_MANIFEST = 64
EPOCHS_APART = 1 << 20  # writer changes that the source may make before its leader epochs reach the copy's
_SAME = ("base_offset", "next_offset", "size_bytes", "record_count", "content_crc32c", "epochs",
         "max_timestamp_ms", "min_timestamp_ms")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEntry:
    """One segment to copy, and its object encoding in the target. Can be pickled."""

    entry: SegmentEntry
    encoding: EncodingChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """The entries that one partition's copy lacks; `at_once`: they are committed together."""

    name: RemotePartitionName
    now_ms: int
    entries: tuple[CopyEntry, ...]
    log_start_offset: int
    properties: dict[str, str]
    at_once: bool
    cost: RewriteCost

    @property
    def size_bytes(self) -> int:
        return sum(each.entry.size_bytes for each in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """The source got `behind` entries since the plan; each of `differences` is a fault."""

    name: RemotePartitionName
    entries: int
    size_bytes: int
    behind: int = 0
    differences: tuple[str, ...] = ()
    is_complete: bool = True


def plan_copy(
    source: ObjectStore,
    target: ObjectStore,
    name: RemotePartitionName,
    *,
    now_ms: int,
    codec: str | None = None,
    key_id: str | None = None,
    storage_class: str | None = None,
    prices: PriceTable = BUILT_IN,
    settings: SettingsOf = own_settings,
) -> CopyPlan:
    """Plan the copy of one partition.

    None keeps codec and key, and selects the target's default storage class. A plaintext entry is encrypted if
    `settings` of the topic name a key. Raises NotFound without a manifest, InvalidRequest if both stores are the same,
    Conflict if another writer writes to the target or the target has other ranges than the source.
    """
    if source.url == target.url:
        raise InvalidRequest("cannot copy to another bucket, source and target are the same", store=source.url)
    manifest, entries = _entries(source, name)
    reached = _reached(source, target, name, entries)
    known = settings(name.topic, manifest.properties)
    due = []
    for entry in (each for each in entries if each.base_offset >= reached):
        now = encoding_of_entry(entry, known)
        encoding = replace(
            now,
            codec=now.codec if codec is None else codec,
            key_id=now.key_id if key_id is None else key_id,
            storage_class=storage_class,
        )
        due.append(CopyEntry(entry=entry, encoding=encoding))
    at_once = any(each.entry.cleaned_through is not None for each in due)
    costs = [cost_of([each.entry], each.encoding, prices) for each in due]
    commits = 1 if at_once else -(-len(costs) // ENTRIES_A_MANIFEST)
    return CopyPlan(
        name=name,
        now_ms=now_ms,
        entries=tuple(due),
        log_start_offset=manifest.log_start_offset,
        properties=dict(manifest.properties),
        at_once=at_once,
        cost=RewriteCost.total(costs, 2 + commits, prices),
    )


def begin_copy(source: ObjectStore, target: ObjectStore, plan: CopyPlan) -> MetadataLog:
    """Become the writer of the copy; return its metadata log. Raises Conflict if the partition has another writer."""
    log = MetadataLog(target, plan.name.prefix)
    _check_ours(source, target, plan.name, log.load(exact=True))
    newest = MetadataLog(source, plan.name.prefix).refresh(exact=True)
    key_ids = (each.encoding.key_id for each in plan.entries if each.encoding.key_id is not None)
    first, key, writer = newest.epoch + EPOCHS_APART, next(key_ids, newest.seal_key_id), _writer(source)
    log.become_writer(
        writer, plan.now_ms, **plan.name.identity, properties=plan.properties, first_epoch=first, seal_key_id=key
    )
    return log


def copy_entry(
    source: ObjectStore, target: ObjectStore, plan: CopyPlan, each: CopyEntry, *, epoch: int, keys: KeyRing = NO_KEYS
) -> SegmentEntry:
    """Copy and verify one segment; return its new entry. Raises NotFound if it expired, Corrupt if it is damaged."""
    remote = RemotePartition(source, plan.name.prefix, ChunkCache(), keys=keys)
    segment, encoding = joined(remote, [each.entry]), each.encoding.object_encoding(keys)
    entry = copy_segment(target, plan.name.prefix, segment, epoch=epoch, now_ms=plan.now_ms, object_encoding=encoding)
    check_same_bytes(entry, [each.entry])
    return replace(entry, made_by=each.entry.made_by)


def commit_entries(
    target: ObjectStore, plan: CopyPlan, entries: Sequence[SegmentEntry], *, epoch: int, now_ms: int
) -> None:
    """Add copied entries, ascending. May be repeated. Raises Fenced if another run has taken over."""
    if not entries:
        return
    log = MetadataLog(target, plan.name.prefix)
    log.join(epoch=epoch)
    log.commit(add_segments(entries), now_ms)


def finish_copy(target: ObjectStore, plan: CopyPlan, *, epoch: int, now_ms: int) -> None:
    """Set the copy's log start offset to the source's, after all entries are committed."""
    log = MetadataLog(target, plan.name.prefix)
    log.join(epoch=epoch)
    log.commit(expire_segments([], now_ms=now_ms, log_start_offset=plan.log_start_offset), now_ms)


class CopyUnit(NamedTuple):
    """One entry to copy, the writer epoch of the copy, and the plan without its entries."""

    number: int
    plan: CopyPlan
    epoch: int
    entry: CopyEntry


@dataclass(kw_only=True)
class CopyJob(BucketJob[CopyUnit, SegmentEntry, CopyOutcome]):
    """Copies of any number of partitions; a unit is an entry. A partition ends with its first failed entry."""

    source: Bucket
    target: Bucket
    plans: Sequence[CopyPlan]
    now_ms: Clock
    batch_size: int = ENTRIES_A_MANIFEST

    def __post_init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._waiting: list[list[SegmentEntry]] = [[] for _ in self.plans]
        self._committed: list[list[SegmentEntry]] = [[] for _ in self.plans]
        self._ended: set[int] = set()
        self.failures = Failures([plan.name for plan in self.plans])
        count = sum(len(plan.entries) for plan in self.plans)
        self.description = f"copying {count} segments of {len(self.plans)} partitions to {self.target.url}"

    @property
    def buckets(self) -> tuple[Bucket, Bucket]:
        return self.source, self.target

    def begin(self, opened: ExitStack) -> None:
        super().begin(opened)
        self._from, self._to = self._stores
        for number, plan in enumerate(self.plans):
            with self.failures.noted(number):
                self._epochs[number] = begin_copy(self._from, self._to, plan).epoch

    def units(self) -> Iterator[CopyUnit]:
        for number, plan in enumerate(self.plans):
            bare = replace(plan, entries=())
            for entry in plan.entries if number in self._epochs else ():
                yield CopyUnit(number, bare, self._epochs[number], entry)

    def size_of(self, unit: CopyUnit) -> int:
        return unit.entry.entry.size_bytes

    def task(self) -> Callable[..., SegmentEntry]:
        keys = self.source.keys
        return lambda unit, store, to: copy_entry(store, to, unit.plan, unit.entry, epoch=unit.epoch, keys=keys())

    def commit(self, results: Sequence[tuple[CopyUnit, SegmentEntry | LogError]]) -> None:
        for unit, result in results:
            if isinstance(result, LogError):
                self._ended.add(unit.number)
            elif unit.number not in self._ended:
                self._waiting[unit.number].append(result)
        for number, plan in enumerate(self.plans):
            waiting, committed = self._waiting[number], self._committed[number]
            if waiting and (not plan.at_once or len(committed) + len(waiting) == len(plan.entries)):
                with self.failures.noted(number):
                    self._commit(number, plan)
        self._ended |= self.failures.first.keys()  # entries above a failed commit are not committed

    def _commit(self, number: int, plan: CopyPlan) -> None:
        waiting, self._waiting[number] = self._waiting[number], []
        step = len(waiting) if plan.at_once else self.batch_size
        for at in range(0, len(waiting), step):
            entries = waiting[at : at + step]
            commit_entries(self._to, plan, entries, epoch=self._epochs[number], now_ms=self.now_ms())
            self._committed[number] += entries

    def outcomes(self) -> list[CopyOutcome]:
        found: list[CopyOutcome] = []
        for number, plan in enumerate(self.plans):
            if number not in self.failures.first:
                with self.failures.noted(number):
                    found.append(self._finished(number, plan))
        return found

    def _finished(self, number: int, plan: CopyPlan) -> CopyOutcome:
        entries = self._committed[number]
        size_bytes, is_complete = sum(entry.size_bytes for entry in entries), len(entries) == len(plan.entries)
        outcome = CopyOutcome(name=plan.name, entries=len(entries), size_bytes=size_bytes, is_complete=is_complete)
        if not is_complete:
            return outcome
        finish_copy(self._to, plan, epoch=self._epochs[number], now_ms=self.now_ms())
        behind, differences = compare(self._from, self._to, plan.name)
        return replace(outcome, behind=behind, differences=tuple(differences))


def compare(source: ObjectStore, target: ObjectStore, name: RemotePartitionName) -> tuple[int, list[str]]:
    """Return (number of entries missing at the copy's end, a sentence for each other difference)."""
    manifest, entries = _entries(source, name)
    copied, copied_entries = _entries(target, name)
    found = []
    by_base = {entry.base_offset: entry for entry in copied_entries}
    end = copied.entries_end_offset
    for entry in entries:
        if entry.base_offset >= end:
            continue
        copy = by_base.pop(entry.base_offset, None)
        where = f"offsets {entry.base_offset} to {entry.next_offset - 1}"
        if copy is None:
            found.append(f"{where} are missing in the copy")
            continue
        other = [name for name in _SAME if getattr(entry, name) != getattr(copy, name)]
        found += [f"{where}: {field}={getattr(entry, field)} in the copy {getattr(copy, field)}" for field in other]
        if (copy.cleaned_through or 0) > (entry.cleaned_through or 0):
            found.append(f"{where}: the copy claims a cleaner state than the source")
    alive = [entry for entry in by_base.values() if entry.next_offset > manifest.log_start_offset]
    found += [f"offsets {entry.base_offset} to {entry.next_offset - 1} are only in the copy" for entry in alive]
    return sum(entry.base_offset >= end for entry in entries), found


def _entries(store: ObjectStore, name: RemotePartitionName) -> tuple[Manifest, list[SegmentEntry]]:
    log = MetadataLog(store, name.prefix)
    manifest = log.refresh(exact=True)
    if manifest.deleted_ms is not None:
        raise NotFound("cannot copy the topic, it was deleted", topic=name.topic, deleted_ms=manifest.deleted_ms)
    return manifest, log.ask(manifest, lambda index: list(index.entries()))


def _reached(
    source: ObjectStore, target: ObjectStore, name: RemotePartitionName, entries: Sequence[SegmentEntry]
) -> int:
    manifest = MetadataLog(target, name.prefix).load(exact=True)
    _check_ours(source, target, name, manifest)
    if manifest is None:
        return 0
    reached = manifest.entries_end_offset
    if any(entry.base_offset < reached < entry.next_offset for entry in entries):
        facts = {"topic": name.topic, "partition": name.partition, "reached": reached}
        wrong = "cannot resume the copy, the source has other segments for offsets that were copied"
        raise Conflict(f"{wrong}: copy to a new place", **facts)
    return reached


def _check_ours(source: ObjectStore, target: ObjectStore, name: RemotePartitionName, manifest: Manifest | None) -> None:
    if manifest is not None and manifest.writer_id != _writer(source):
        facts = {"store": target.url, "topic": name.topic, "partition": name.partition, "writer": manifest.writer_id}
        raise Conflict("cannot copy to another bucket, another writer writes to the target", **facts)


def _writer(source: ObjectStore) -> str:
    return f"{COPY}{source.url}"
