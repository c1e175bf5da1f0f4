"""Redaction: erase all records of given keys from a bucket, as erasure requests of data protection law demand.

1. `tiered.jobs.key_search` counts the records of the keys in each segment and each part of a compacted view.
2. `plan_redaction` makes a `Redaction` of the counts: the segments and the view parts to rewrite, with their price.
3. `ViewRedactionJob` rewrites view parts, one commit for each view.
4. `tiered.jobs.rewriting.RewriteJob` rewrites the segments with `Redactor`, up to 64 in a commit.
5. The proof is a second scan of all that is readable now, except segments that the first scan proved free of the keys.

A rewritten segment keeps base and next offset, the offsets and order of all other records, leader epochs, producer
snapshot, transaction index, `cleaned_through`. A batch without a record of the keys is copied byte for byte, markers
too. A batch that loses all its records is removed, as by Kafka's cleaner, or stays empty:

| batch that stays | reason |
|---|---|
| the last data batch of a producer in the segment's producer snapshot | it has the producer's last sequence |
| the last batch of the segment | no segment is empty, and offsets do not fall |

A tombstone of a key is erased too: it contains the key. It must not leave before the older records that it hides. In
a compacted topic a newer value hides older ones too. So views are committed before segments, segments in the order of
their offsets, and a segment with such a tombstone, or any segment of a compacted topic, only after every segment below
it was committed (`RewriteGroup.must_follow`). A segment that could not be read holds back those segments above it.

A redacted entry is never replaced by a local copy of its segment, which may have the records
(`SegmentEntry.is_redacted`).

| a crash or an error after | leaves | outcome |
|---|---|---|
| the scan of some segments | lines of the state file | ``--resume`` skips them; otherwise they are read again |
| some uploads | objects of the newest epoch that no manifest names | orphans once the next epoch begins |
| the commit of a view | the redacted view; pending deletes of its old parts | the segments are due in the next run |
| some commits of segments | the lowest segments are redacted | the next run finds only the others |
| a commit, its reply lost | the new manifest | these segments have none of the keys in the next scan |
| all commits, before the proof | all is redacted | the next run finds nothing to do, which is the proof |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.offset_map import packed
from local.errors import Conflict, LogError
from local.format.columns import BatchTable, Flags
from local.index.index_files import IndexRows
from local.kernels.pure_kernels import DROP, EMPTY, REBUILD, VERBATIM
from local.log.producer_state import decode_snapshot
from local.names import CLEANED, LOG, segment_file
from local.storage import DiskStorage, Storage, join
from local.verify.segment_checks import INTERVAL_BYTES
from policies.cost.prices import BUILT_IN, PriceTable
from policies.cost.storage_cost import DAYS_PER_MONTH, monthly_storage
from policies.rules import deletion_due_ms
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.gc.fork_references import forks_of
from remote.gc.pins import list_pins
from remote.keys import home_of, is_in_other_topic, new_ulid
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.view import ViewState, find_view
from remote.manifest.view_changes import switch_view
from remote.segment_entry import REDACTION, SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.config.config import resolve_rules
from tiered.config.properties import DEFAULTS, IMMUTABLE, parse
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.key_search import KeyDigests, Scan, Survey, read_runs
from tiered.jobs.rewriting import (
    DAY_MS,
    GROUPS_A_MANIFEST,
    RewriteCost,
    RewriteGroup,
    RewriteJob,
    RewriteOutcome,
    RewritePlan,
    RewrittenGroup,
    cost_of,
    read_cost,
    unless_expired,
)
from tiered.jobs.runner import BucketJob, Clock, Executor, Failures, run_job
from tiered.partition.segment_inspection import SegmentInspector
from tiered.stores.object_encoding import EncodingChoice, encoding_of_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """The plan of one partition: `rewrite` has a group for each segment with a record of the keys.

    `parts_by_view` are the parts to rewrite. `held_back` segments hide older records of the keys in an unread
    segment, and stay. `scan_*` are the price of both scans, of which the second reads only unread segments and those
    with keys; dollars are None if a class has no price. `storage_dollars`: of the old objects until their deletion.
    """

    rewrite: RewritePlan
    parts_by_view: Mapping[str, tuple[SegmentEntry, ...]]
    settings: Mapping[str, str]
    segments: int
    records: int
    record_bytes: int
    unread: int
    held_back: int
    scan_gets: int
    scan_bytes: int
    scan_dollars: float | None
    storage_dollars: float

    @property
    def name(self) -> RemotePartitionName:
        return self.rewrite.name

    @property
    def matched(self) -> int:
        return len(self.rewrite.groups)

    @property
    def view_parts(self) -> int:
        return sum(map(len, self.parts_by_view.values()))

    @property
    def due(self) -> list[SegmentEntry]:
        parts = [each for parts in self.parts_by_view.values() for each in parts]
        return parts + [entry for group in self.rewrite.groups for entry in group.entries]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.due)


def plan_redaction(scan: Scan, *, now_ms: int, prices: PriceTable = BUILT_IN) -> Redaction:
    """Return the plan for a whole scan. It assumes new objects as large as the old ones."""
    found, entries = scan.survey, scan.matched(scan.survey.entries)
    settings = found.settings
    unread = [entry.base_offset for entry in found.scanned if entry.ulid in scan.unread]
    rules = resolve_rules({**DEFAULTS, **settings})

    def hides_older(entry: SegmentEntry) -> bool:
        return rules.cleanup_compact or scan.counts[entry.ulid].tombstones > 0

    due = [entry for entry in entries if not hides_older(entry) or not any(base < entry.next_offset for base in unread)]
    groups = tuple(
        RewriteGroup(
            number=number, entries=(entry,), encoding=encoding_of_entry(entry, settings), must_follow=hides_older(entry)
        )
        for number, entry in enumerate(due)
    )
    parts = {view.name: tuple(some) for view in found.views if (some := scan.matched(view.entries))}
    matched = [*due, *(each for some in parts.values() for each in some)]
    costs = [cost_of([each], encoding_of_entry(each, settings), prices, replaced_ms=now_ms) for each in matched]
    job_id, cost = f"{REDACTION}{new_ulid(now_ms)}", RewriteCost.total(costs, len(parts) + _commits(groups), prices)
    rewrite = RewritePlan(job_id=job_id, name=found.name, epoch=found.epoch, now_ms=now_ms, groups=groups, cost=cost)
    grace_days = rules.delete_grace_ms / DAY_MS
    stored = sum(each.stored_bytes + each.indexes_bytes for each in matched)
    new_classes = {each.ulid: encoding_of_entry(each, settings).storage_class for each in matched}
    clean = scan.clean
    proved = [
        replace(each, storage_class=new_classes.get(each.ulid, each.storage_class))
        for each in found.scanned
        if matched and each.ulid not in clean
    ]
    scanned = [*found.scanned, *proved]
    scan_cost = RewriteCost.total([read_cost(each, prices) for each in scanned], 0, prices)
    is_priced = all(each.storage_class is None or each.storage_class in prices.classes for each in scanned)
    return Redaction(
        rewrite=rewrite,
        parts_by_view=parts,
        settings=settings,
        segments=len(list(found.scanned)),
        records=scan.records,
        record_bytes=sum(count.size_bytes for count in scan.counts.values()),
        unread=len(scan.unread),
        held_back=len(entries) - len(due),
        scan_gets=scan_cost.gets,
        scan_bytes=scan_cost.read_bytes,
        scan_dollars=scan_cost.dollars if is_priced else None,
        storage_dollars=monthly_storage(stored, prices.of(None)) * grace_days / DAYS_PER_MONTH,
    )


def _commits(groups: Sequence[RewriteGroup]) -> int:
    runs: list[int] = []
    for group in groups:
        if not runs or group.must_follow or runs[-1] == GROUPS_A_MANIFEST:
            runs.append(0)
        runs[-1] += 1
    return len(runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """A `RewriteJob.rewrite` that erases records of the keys. Needs scratch disk for one segment."""

    bucket: Bucket
    erased: KeyDigests

    def __call__(
        self, plan: RewritePlan, group: RewriteGroup, store: ObjectStore, *, keys: KeyRing, target: ObjectStore
    ) -> RewrittenGroup:
        def redacted(due: RewriteGroup) -> RewrittenGroup:
            (entry,) = due.entries
            return RewrittenGroup.of(due, self.redacted(target, plan, entry, due.encoding, keys=keys))

        return unless_expired(plan, group, store, redacted)

    def redacted(
        self,
        store: ObjectStore,
        plan: RewritePlan,
        entry: SegmentEntry,
        encoding: EncodingChoice,
        *,
        view: str | None = None,
        keys: KeyRing = NO_KEYS,
    ) -> SegmentEntry | None:
        """Upload a segment or part of `view`; return its entry. None: a segment has no such key, a part no others."""
        remote = RemotePartition(store, plan.name.prefix, ChunkCache(), keys=keys)
        storage = DiskStorage()
        with self.bucket.scratch() as directory:
            path = join(directory, segment_file(entry.base_offset, LOG) + CLEANED)
            rows, size, erased = self._written(storage, path, remote, entry, is_view=view is not None)
            if not size or (not erased and view is None):
                return None
            indexes = rows.indexes(entry.base_offset, INTERVAL_BYTES)
            both, bundle = (bytes(indexes.offset), bytes(indexes.time)), remote.indexes(entry)
            segment = SegmentToCopy(
                base_offset=entry.base_offset,
                next_offset=entry.next_offset,
                size_bytes=size,
                epochs=entry.epochs,
                offset_index=both[0],
                time_index=both[1],
                txn_index=bytes(bundle.txn),
                producer_snapshot=bytes(bundle.producers),
                leader_epochs=bytes(bundle.epochs),
                cleaned_through=entry.cleaned_through,
                read=partial(storage.read, path),
                inspect=partial(SegmentInspector, path, entry.base_offset, entry.next_offset, entry.epochs, both),
            )
            place, coded = plan.name.prefix, encoding.object_encoding(keys)
            return copy_segment(
                store, place, segment, epoch=plan.epoch, now_ms=plan.now_ms, view=view, object_encoding=coded
            )

    def _written(
        self, storage: Storage, path: str, remote: RemotePartition, entry: SegmentEntry, *, is_view: bool
    ) -> tuple[IndexRows, int, int]:
        lasts = _last_data_offsets(remote, entry)
        rows, out = IndexRows(), np.empty(kernels.REBUILT_PART_BYTES, np.uint8)
        size, erased, at = 0, 0, 0
        file = storage.create(path)
        try:
            for data, table in read_runs(remote, entry):
                steps = kernels.decode_in_steps(data, verify=False, include_control=True, table=table)
                keep = ~np.concatenate([np.empty(0, np.bool_), *map(self.erased.found_in, steps)])
                erased += int((~keep).sum())
                at += len(data)
                stays = np.isin(table.last_offsets, lasts)
                stays[-1] |= at == entry.size_bytes
                actions = _actions(table, keep, stays & (not is_view))
                for part in kernels.rebuilt_batches(data, packed(keep), actions, 0, out):
                    rows.add(kernels.scan_batches(part, verify=False))
                    file.append(part)
                    size += len(part)
        finally:
            file.close()
        return rows, size, erased


def _last_data_offsets(remote: RemotePartition, entry: SegmentEntry) -> NDArray[np.int64]:
    snapshot = remote.indexes(entry).producers
    known = decode_snapshot(snapshot, path=entry.indexes_key) if len(snapshot) else []
    return np.array(sorted(each.last_offset for each in known if each.last_offset >= 0), np.int64)


def _actions(table: BatchTable, keep: Flags, stays: Flags) -> NDArray[np.uint8]:
    counts = table.record_counts
    remaining = kernels.count_bits(packed(keep), counts)
    actions = np.full(len(table), REBUILD, np.uint8)
    actions[remaining == 0] = np.where(stays, EMPTY, DROP)[remaining == 0]
    actions[remaining == counts] = VERBATIM
    return actions


def run_redaction(
    executor: Executor,
    bucket: Bucket,
    plans: Sequence[Redaction],
    keys: KeyDigests,
    *,
    now_ms: Clock,
    progress: Callable[[int], None] = lambda size_bytes: None,
    errors: dict[int, LogError] | None = None,
) -> list[RewriteOutcome]:
    """Rewrite views, then segments; return the outcome of each plan. `errors` as in `tiered.jobs.runner.run_job`."""
    found: dict[int, LogError] = {}
    views = ViewRedactionJob(bucket=bucket, plans=plans, keys=keys, now_ms=now_ms)
    are_done = run_job(views, executor, progress=progress, errors=found)
    segments = RewriteJob(
        bucket=bucket,
        plans=[each.rewrite for each in plans],
        now_ms=now_ms,
        rewrite=Redactor(bucket=bucket, erased=keys),
        keeps_maker=False,
        incomplete=frozenset(number for number, is_done in enumerate(are_done) if not is_done),
    )
    outcomes = run_job(segments, executor, progress=progress, errors=found)
    if errors is not None:
        errors.update(found)
    elif found:
        raise found[min(found)]
    return outcomes


class ViewUnit(NamedTuple):
    number: int
    plan: RewritePlan
    settings: Mapping[str, str]
    view: str
    parts: tuple[SegmentEntry, ...]


NewParts = Mapping[str, SegmentEntry | None]  # by the ulid of the old part; None: no record is left


@dataclass(kw_only=True)
class ViewRedactionJob(BucketJob[ViewUnit, "NewParts", bool]):
    """Rewrites views, one commit each; the outcome is whether all were committed."""

    plan_ends_with_error = False  # views do not depend on each other
    bucket: Bucket
    plans: Sequence[Redaction]
    keys: KeyDigests
    now_ms: Clock

    def __post_init__(self) -> None:
        self.description = f"rewriting {sum(len(each.parts_by_view) for each in self.plans)} compacted views"
        self.failures = Failures([each.name for each in self.plans])
        self._committed = [0] * len(self.plans)

    def units(self) -> Iterator[ViewUnit]:
        for number, each in enumerate(self.plans):
            for view, parts in each.parts_by_view.items():
                yield ViewUnit(number, replace(each.rewrite, groups=()), each.settings, view, parts)

    def size_of(self, unit: ViewUnit) -> int:
        return sum(entry.size_bytes for entry in unit.parts)

    def task(self) -> Callable[..., NewParts]:
        redacted, keys = Redactor(bucket=self.bucket, erased=self.keys).redacted, self.bucket.keys

        def parts_of(unit: ViewUnit, store: ObjectStore) -> NewParts:
            part = partial(redacted, store, unit.plan, view=unit.view, keys=keys())
            return {each.ulid: part(each, encoding_of_entry(each, unit.settings)) for each in unit.parts}

        return parts_of

    def commit(self, results: Sequence[tuple[ViewUnit, NewParts | LogError]]) -> None:
        for unit, result in results:
            if isinstance(result, LogError):
                continue
            with self.failures.noted(unit.number):
                commit_view(self._stores[0], unit, result, now_ms=self.now_ms())
                self._committed[unit.number] += 1

    def outcomes(self) -> list[bool]:
        return [done == len(each.parts_by_view) for done, each in zip(self._committed, self.plans, strict=True)]


def commit_view(store: ObjectStore, unit: ViewUnit, parts: NewParts, *, now_ms: int) -> None:
    """Replace parts of a view in one manifest. Raises Fenced, and Conflict if a part was replaced since the plan."""
    log = MetadataLog(store, unit.plan.name.prefix)
    view = find_view(log.join(epoch=unit.plan.epoch).views, unit.view)
    if view is None or not {entry.ulid for entry in unit.parts} <= {entry.ulid for entry in view.entries}:
        raise Conflict("cannot redact a view, its parts were replaced: run the same command again", view=unit.view)
    entries = []
    for entry in view.entries:
        new = parts.get(entry.ulid, entry)
        entries += [] if new is None else [replace(new, committed_ms=entry.committed_ms)]
    record_count = sum(entry.record_count for entry in entries)
    key_count = max(0, view.key_count - (view.record_count - record_count))
    built = replace(view, entries=tuple(entries), record_count=record_count, key_count=key_count)
    log.commit(switch_view(built, replaces=view, now_ms=now_ms), now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What keeps erased records readable after the commit. `until_ms` is None without an end that is known here."""

    name: RemotePartitionName
    holder: str
    until_ms: int | None
    detail: str


def holders_of(store: ObjectStore, plan: Redaction, *, committed_ms: int) -> list[Holder]:
    """Return what still holds the old objects of a partition, or copies of their records. Lists the pins."""
    if not plan.due:
        return []
    name = plan.name
    found: list[tuple[str, int | None, str]] = []
    rules = resolve_rules({**DEFAULTS, **plan.settings})
    if parse(IMMUTABLE, {**DEFAULTS, **plan.settings}[IMMUTABLE]):
        found.append(("immutable bucket", None, f"{IMMUTABLE}=true: old objects are never deleted"))
    else:
        detail = "readers of older manifests; the manager deletes the objects in a round after this time"
        found.append(("grace period", deletion_due_ms(committed_ms, rules), detail))
    pins = list_pins(store, name.prefix)
    found += [("pin", pin.expires_ms, pin.holder) for pin in pins if pin.fork is None and pin.expires_ms > committed_ms]
    for fork in sorted(forks_of(pins)):
        found.append(("fork", None, f"{fork.rstrip('/')}: redact the fork too, or delete it"))
    for home in sorted({home_of(entry.data_key) for entry in plan.due if is_in_other_topic(entry.data_key)}):
        found.append(("source of the fork", None, f"{home.rstrip('/')}: redact the source too"))
    detail = "not touched: segments on the manager's disk, until retention, tiered delete-records or compaction"
    found.append(("local disk", None, detail))
    return [Holder(name=name, holder=holder, until_ms=until_ms, detail=detail) for holder, until_ms, detail in found]


def view_builds_of(found: Survey) -> list[Holder]:
    """Return the builds of views in progress: what they read before the redaction, they may commit after it."""
    detail = "run the same command with --verify when the build of the view {} has ended"
    running = [view.name for view in found.views if view.state(found.epoch) is ViewState.RUNNING]
    return [Holder(name=found.name, holder="view build", until_ms=None, detail=detail.format(view)) for view in running]
