"""Scrub of a bucket: checks that every named object exists and has the stored bytes. Changes nothing.

| depth | checks | reads |
|---|---|---|
| shallow | manifests and their chain, pages, tiling, names, existence, sizes, unnamed objects | metadata, one listing |
| deep | also each chunk's and batch's CRC, the facts of entries, indexes against data | every readable byte |

1. `plan_scrub` surveys each partition, which **is** the shallow scrub, and lists a `SegmentJob` for every segment.
2. `scrub_segment` does one job, in a thread or a task of a cluster. It writes nothing and may be repeated.
3. `report_of` removes findings about entries that expired or were replaced since, and searches good copies.

`read_segments` does step 2 by an executor and records finished jobs in a file, so a deep scrub can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from local import kernels
from local.errors import Corrupt, LogError, Unavailable
from local.format.columns import BatchTable, joined_tables
from local.format.crc32c import crc32c
from local.index import txn_index
from local.log.checkpoints import parse_entries
from local.log.producer_state import decode_snapshot
from local.records.batch_runs import BatchRuns, Run
from local.verify.findings import CODES, Finding, Severity, damaged, finding
from local.verify.segment_checks import check_offset_index, check_time_index
from remote.cache.chunk_cache import ChunkCache
from remote.check.partition_check import BucketReport, can_list, is_still_named, survey_partition
from remote.fetch.range_reader import RemotePartition
from remote.fetch.segment_check import ReadRange, check_segment, unreadable
from remote.keys import full_key, parse_data_key, parse_view_key
from remote.manifest.catalog import RemotePartitionName
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.stored_segment import IndexBundle
from remote.store import ObjectStore
from tiered.config.config import KEY_ID
from tiered.health.scrub_report import Found, PartitionScrub, ScrubReport, ScrubState, SegmentResult
from tiered.jobs.job_bucket import Bucket, OpenBucket
from tiered.jobs.runner import TASK_BYTES, Executor, Here, packed
from tiered.stores.object_encoding import SettingsOf, own_settings

THREADS = 4
LocalCopy = Callable[[RemotePartitionName, SegmentEntry], bool]  # whether this machine's disk has the same bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentJob:
    prefix: str
    entry: SegmentEntry

    @property
    def name(self) -> str:
        return full_key(self.prefix, self.entry.data_key)

    @property
    def identity(self) -> str:
        """The key of a result, by partition and entry: a fork and its source share objects, but not entries."""
        checksum = crc32c(msgspec.json.encode(self.entry))
        return f"{self.name} of {self.prefix} {self.entry.base_offset} {checksum:08x}"

    @property
    def read_bytes(self) -> int:
        return self.entry.stored_bytes + self.entry.indexes_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPlan:
    store_url: str
    is_deep: bool
    surveys: Mapping[RemotePartitionName, BucketReport]
    jobs: tuple[SegmentJob, ...]

    @property
    def size_bytes(self) -> int:
        return sum(job.read_bytes for job in self.jobs)


def plan_scrub(
    store: ObjectStore,
    names: Sequence[RemotePartitionName],
    *,
    deep: bool,
    settings: SettingsOf = own_settings,
    missing: Sequence[RemotePartitionName] = (),
) -> ScrubPlan:
    """Run the shallow scrub, and list the jobs of a deep one. `settings` returns a topic's effective ones.

    A partition that cannot be surveyed becomes a finding, as does each of `missing` (without objects) unless its topic
    was deleted. Raises the store's error if it is unreachable, or refuses every partition.
    """
    surveys: dict[RemotePartitionName, BucketReport] = {}
    refused: list[LogError] = []
    for name in names:
        try:
            surveys[name] = survey_partition(store, name.prefix)
        except Unavailable:
            raise
        except LogError as error:
            refused.append(error)
            surveys[name] = BucketReport(prefix=name.prefix, findings=[unreadable(error, name.prefix)])
    if refused and len(refused) == len(surveys):
        raise refused[0]
    deleted = {
        name.topic_id for name, each in surveys.items() if each.manifest and each.manifest.deleted_ms is not None
    }
    for name in missing:
        if name.topic_id not in deleted:
            found = [finding("manifest.absent", name.prefix, is_unread=True)]
            surveys[name] = BucketReport(prefix=name.prefix, findings=found, is_unread=True)
    for name, survey in surveys.items():
        survey.findings += _plaintext(name, survey, settings)
    read = surveys.items() if deep else ()
    jobs = tuple(SegmentJob(prefix=name.prefix, entry=entry) for name, survey in read for entry in survey.entries)
    return ScrubPlan(store_url=store.url, is_deep=deep, surveys=surveys, jobs=jobs)


def scrub_segment(job: SegmentJob, store: ObjectStore, keys: KeyRing = NO_KEYS) -> SegmentResult:
    """Check one segment; return its findings. Raises Unavailable if the store serves no request."""
    remote = RemotePartition(store, job.prefix, ChunkCache(0), keys=keys)
    try:
        found = check_segment(store, remote, job.entry, check_contents)
    except LogError as error:
        if isinstance(error, Unavailable) and not can_list(store, job.prefix):
            raise
        indexes = full_key(job.prefix, job.entry.indexes_key)
        found = [unreadable(error, indexes if error.facts.get("key") == indexes else job.name, job.entry)]
    return SegmentResult(name=job.identity, read_bytes=job.read_bytes, findings=tuple(found))


def run_scrub(
    store: ObjectStore,
    plan: ScrubPlan,
    *,
    keys: KeyRing = NO_KEYS,
    state: ScrubState | None = None,
    threads: int = THREADS,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda read_bytes: None,
) -> list[SegmentResult] | None:
    executor = Here(should_stop, threads=threads)
    return read_segments(executor, OpenBucket.of(store, keys), plan, state=state, progress=progress)


def read_segments(
    executor: Executor,
    bucket: Bucket,
    plan: ScrubPlan,
    *,
    state: ScrubState | None = None,
    task_bytes: int = TASK_BYTES,
    progress: Callable[[int], None] = lambda read_bytes: None,
) -> list[SegmentResult] | None:
    """Return the results of all jobs, also those in `state`; None if stopped early. Raises Unavailable."""
    done = state.results(job.identity for job in plan.jobs) if state is not None else {}
    for result in done.values():
        progress(result.read_bytes)
    due = [job for job in plan.jobs if job.identity not in done]
    packs = packed(due, lambda job: job.read_bytes, task_bytes if executor.is_parallel else 0)

    def read(jobs: Sequence[SegmentJob]) -> list[SegmentResult]:
        with bucket.opened() as store:
            return [scrub_segment(job, store, bucket.keys()) for job in jobs]

    for finished in executor.run(f"scrubbing {len(plan.jobs)} segments", packs, read):
        for result in (result for _, results in finished for result in results):
            done[result.name] = result
            if state is not None:
                state.append(result)
            progress(result.read_bytes)
    return [done[job.identity] for job in plan.jobs] if all(job.identity in done for job in plan.jobs) else None


def report_of(
    store: ObjectStore,
    plan: ScrubPlan,
    results: Sequence[SegmentResult],
    *,
    started_ms: int,
    now_ms: int,
    local_copy: LocalCopy = lambda name, entry: False,
) -> ScrubReport:
    """Build the report, worst finding first. `local_copy`: a disk has the bytes of a damaged segment."""
    jobs = {job.identity: job for job in plan.jobs}
    by_prefix = {name.prefix: name for name in plan.surveys}
    found = []
    for name, survey in plan.surveys.items():
        # Damaged entries may name one object twice: the offsets identify the entry.
        by_place = {
            (full_key(name.prefix, key), entry.offsets): entry
            for entry in (*survey.entries, *survey.suspects)
            for key in (entry.data_key, entry.indexes_key)
        }
        for each in survey.findings:
            entry = by_place.get((each.where, each.offsets)) if each.offsets is not None else None
            found.append(_found(name, each, entry, local_copy))
    for result in results:
        job = jobs[result.name]
        if result.findings and is_still_named(store, job.prefix, job.entry):
            found += [_found(by_prefix[job.prefix], each, job.entry, local_copy) for each in result.findings]
    found.sort(key=lambda each: (-Severity[each.severity.upper()], each.topic, each.partition, each.object))
    return ScrubReport(
        store=plan.store_url,
        is_deep=plan.is_deep,
        started_ms=started_ms,
        finished_ms=now_ms,
        read_bytes=sum(result.read_bytes for result in results if not result.is_unread),
        unread_segments=sum(result.is_unread for result in results),
        unread_bytes=sum(result.read_bytes for result in results if result.is_unread),
        unread_partitions=sum(survey.is_unread for survey in plan.surveys.values()),
        partitions=[_partition(name, survey) for name, survey in plan.surveys.items()],
        findings=found,
    )


def _found(name: RemotePartitionName, found: Finding, entry: SegmentEntry | None, local_copy: LocalCopy) -> Found:
    is_of_log = entry is not None and parse_data_key(entry.data_key) is not None
    is_bad = found.severity is Severity.CORRUPT and is_of_log
    has_copy = is_bad and entry is not None and local_copy(name, entry)
    key = found.where.removeprefix(name.prefix)
    says = parse_data_key(key) or parse_view_key(key)
    return Found(
        code=found.code,
        severity=found.state,
        **name.identity,
        object=key,
        what=found.line,
        at=found.at,
        length=found.length,
        base_offset=found.offsets[0] if found.offsets else None,
        next_offset=found.offsets[1] if found.offsets else None,
        ulid=entry.ulid if entry is not None else says.ulid if says is not None else None,
        good_copy="local" if has_copy else None,
    )


def _plaintext(name: RemotePartitionName, survey: BucketReport, settings: SettingsOf) -> list[Finding]:
    key = None if survey.manifest is None else settings(name.topic, survey.manifest.properties).get(KEY_ID)
    entries = sorted((entry for entry in survey.entries if entry.key_id is None), key=lambda entry: entry.base_offset)
    if not key or not entries:
        return []
    plaintext = finding(
        "segment.plaintext",
        name.prefix,
        offsets=(entries[0].base_offset, max(entry.next_offset for entry in entries)),
        next_step=f"encrypt them: tiered rewrite recode {name.topic} --key-id {key}",
        setting=KEY_ID,
        key_id=key,
        segments=len(entries),
        bytes=sum(entry.stored_bytes for entry in entries),
    )
    return [plaintext]


def _partition(name: RemotePartitionName, survey: BucketReport) -> PartitionScrub:
    manifest = survey.manifest
    return PartitionScrub(
        **name.identity,
        sequence=manifest.sequence if manifest is not None else None,
        epoch=manifest.epoch if manifest is not None else None,
        segments=None if survey.is_unread else manifest.segment_count if manifest is not None else 0,
        size_bytes=survey.size_bytes,
        objects={kind.value: count for kind, count in survey.counts().items()},
    )


@dataclass(slots=True)
class _Seen:
    records: int = 0
    timestamps: list[int] = field(default_factory=list)
    tables: list[BatchTable] = field(default_factory=list)
    transactions: txn_index.TransactionScan = field(default_factory=txn_index.TransactionScan)


def check_contents(path: str, entry: SegmentEntry, bundle: IndexBundle, read: ReadRange) -> Iterator[Finding]:
    """Yield the damage inside one segment. Raises Corrupt if its bytes contradict their checksums.

    - The segment consists of whole batches with the right CRC and offsets inside ``[base, next)``.
    - The entry has the number of records, the smallest and the largest timestamp, and every batch's leader epoch.
    - The indexes point at these batches.
    - In a segment that was never cleaned the transaction index names exactly the transactions aborted in it.
    """
    seen = _Seen()
    walk = BatchRuns(read, entry.size_bytes)
    for run in walk:
        if run.damage is not None:
            yield finding("bytes.damaged", path, what=run.damage, at=run.position, offsets=entry.offsets)
        else:
            seen.tables.append(run.table.moved(run.position))
            yield from _of_run(path, entry, run, seen)
            seen.transactions.take(run.data, run.table)
    if walk.problem is not None:
        what = f"{walk.problem}: bytes={entry.size_bytes - walk.position}"
        yield finding("bytes.damaged", path, what=what, at=walk.position, offsets=entry.offsets)
    yield from _of_facts(path, entry, seen)
    yield from _of_indexes(path, entry, bundle, seen)


def _of_run(path: str, entry: SegmentEntry, run: Run, seen: _Seen) -> Iterator[Finding]:
    table = run.table
    first, last = int(table.base_offsets.min()), int(table.last_offsets.max())
    if first < entry.base_offset or last >= entry.next_offset:
        yield finding("segment.outside", path, at=run.position, offsets=entry.offsets, first=first, last=last)
    epochs = dict(zip(table.base_offsets.tolist(), table.leader_epochs.tolist(), strict=True))
    for offset, epoch in epochs.items():
        expected = [each for each, start in entry.epochs if start <= offset]
        if epoch >= 0 and (not expected or expected[-1] != epoch):  # -1 is Kafka's "unknown"
            yield finding("segment.epoch", path, offsets=entry.offsets, offset=offset, epoch=epoch)
            break
    try:
        for columns in kernels.decode_in_steps(run.data, verify=False, table=table):
            seen.records += len(columns)
            known = columns.timestamps[columns.timestamps >= 0]
            seen.timestamps += [int(known.min()), int(known.max())] if len(known) else []
    except Corrupt as error:
        yield damaged(error, path)


def _of_transactions(path: str, entry: SegmentEntry, bundle: IndexBundle, seen: _Seen) -> Iterator[Finding]:
    if entry.cleaned_through is not None or entry.made_by is not None:
        return  # a cleaner pass removes markers and entries by rules of its own
    known = {(each.producer_id, each.last_offset) for each in txn_index.entries(bundle.txn, path=path)}
    aborts = seen.transactions.found().aborts
    with_records = {marker for marker, abort in aborts.items() if abort.first_record is not None}
    for producer, offset in sorted(with_records - known):
        yield finding("segment.txn-missing", path, offsets=entry.offsets, producer_id=producer, marker_at=offset)
    for producer, offset in sorted(known - aborts.keys()):
        yield finding("segment.txn-unknown", path, offsets=entry.offsets, producer_id=producer, marker_at=offset)


def _of_facts(path: str, entry: SegmentEntry, seen: _Seen) -> Iterator[Finding]:
    facts = {
        "record_count": seen.records,
        "min_timestamp_ms": min(seen.timestamps, default=None),
        "max_timestamp_ms": max(seen.timestamps, default=None),
    }
    for name, found in facts.items():
        if (says := getattr(entry, name)) != found:
            what = f"{CODES['segment.facts'].text}: {name}={says} found={found}"
            yield finding("segment.facts", path, what=what, offsets=entry.offsets)


def _of_indexes(path: str, entry: SegmentEntry, bundle: IndexBundle, seen: _Seen) -> Iterator[Finding]:
    places, base = replace(joined_tables(seen.tables), valid_bytes=entry.size_bytes), entry.base_offset
    where = path.removesuffix(entry.data_key) + entry.indexes_key
    yield from check_offset_index(bytes(bundle.offset), base, places, path=where)
    yield from check_time_index(bytes(bundle.time), base, places, path=where)
    try:
        txn_index.check(bundle.txn, base, path=where)
        yield from _of_transactions(where, entry, bundle, seen)
        if len(bundle.producers):
            decode_snapshot(bundle.producers, path=where)
        if len(bundle.epochs):
            parse_entries(bytes(bundle.epochs), where, 2)
    except Corrupt as error:
        yield damaged(error, where)
