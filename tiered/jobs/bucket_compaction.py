"""Compaction of a partition in the bucket by a co-writer: plan, two passes over groups, one commit.

1. `plan_compaction` joins the newest epoch and divides a range of segment entries into **groups** of neighbours.
2. Pass one (`compaction_passes`), for each group by itself: the digest of each key with the offset of its newest
   record. Only these leave a task. A Spark shuffle, or `newest_by_group`, finds the largest offset of each digest.
3. Pass two, for each group by itself: the cleaner decides, rebuilds and merges segments, and uploads them. Attempts may
   repeat and run in parallel: object names are never used twice.
4. `commit_compaction` commits all groups in one manifest, but not those whose task found other entries than the plan.

The rules are the local cleaner's (`local.cleaner.record_retention`), with the same gates:

- Nothing at or above the last stable offset, nothing younger than `min.compaction.lag.ms`.
- Tombstones and markers only below the tombstone bound (I5) of the planned manifest, after their delete horizon.
- A transaction that extends into the next group keeps its marker: the group cannot see the rest of its data.

| a crash or an error after | leaves | outcome |
|---|---|---|
| plan, pass one | nothing | |
| some of pass two | objects of the newest epoch that no manifest names | orphans once the next epoch begins |
| the commit, its reply lost | the new manifest | the same job finds its note there |
| the commit | pending deletes of the replaced objects | the writer deletes them after the grace period |

**Rounds.** A job over more than `ROWS_MAX` entries runs in rounds, as long as manifests have room for its pending
deletes. Each round takes the entries above the previous one's; once the remaining entries fit one plan, a last round
compares all of them. If they never fit, entries are clean through the end of their round only. The job's note holds its
progress, as a number below zero until the job is done. Memory: the entries of a plan, and one group in each pass.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypedDict, Unpack

from local.cleaner.offset_map import SECRET_BYTES
from local.errors import Conflict, InvalidRequest, LogError
from local.log.producer_state import ProducerEntry
from local.names import TopicPartition
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob
from remote.manifest.manifest_changes import (
    GroupOutcome,
    Replacement,
    find_job,
    is_done,
    lost_entries,
    outcome_of_group,
    replace_tiled,
    unlink_uploads,
)
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.view import tombstone_bound
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.config import resolve_rules
from tiered.config.properties import DEFAULTS
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.runner import Executor
from tiered.read.partition_source import PartitionSource

_log = logging.getLogger(__name__)

GROUP_BYTES = 256 << 20  # of input; the work of one task, and the most that can become one segment
ROWS_MAX = 16_384  # entries in one plan
_ROUNDS_LISTED = 4  # no round begins once a manifest lists the objects of so many full rounds, two for each entry
_ROUNDS = -(1 << 62)  # a note's turn is this plus the offset that the rounds have reached; 0 when the job is done


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Neighbouring entries of one task, which finds them in the newest manifest and so needs only their offsets."""

    number: int
    base_offset: int
    next_offset: int
    entries: tuple[SegmentEntry, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """One partition's compaction: groups and rules. Times in ms, offsets half open. Can be pickled.

    `producers`: state at the bucket's end. `is_done`: the manifest has the job's note. `is_cut`: one round of several.
    """

    job_id: str
    name: RemotePartitionName
    epoch: int
    head_sequence: int
    now_ms: int
    start_offset: int
    upto_offset: int
    tombstones_below: int | None
    settings: Mapping[str, str]
    groups: tuple[RowGroup, ...]
    producers: tuple[ProducerEntry, ...] = ()
    secret: bytes = field(repr=False)
    is_done: bool = False
    is_cut: bool = False
    is_first: bool = False  # the bucket had no entry below the groups

    @property
    def size_bytes(self) -> int:
        return sum(group.size_bytes for group in self.groups)

    @property
    def note(self) -> AppliedJob:
        return AppliedJob(job_id=self.job_id, turn=_ROUNDS + self.upto_offset if self.is_cut else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """New entries in place of `replaced` ones; `vouched` are ULIDs of unchanged entries that are now clean."""

    number: int
    replaced: tuple[Replacement, ...] = ()
    vouched: tuple[str, ...] = ()

    def is_of(self, group: RowGroup, log_start_offset: int) -> bool:
        """Whether the task found the planned entries in the newest manifest, apart from expired ones."""
        named = {*self.vouched, *(ulid for each in self.replaced for ulid in each.ulids)}
        living = {entry.ulid for entry in group.entries if entry.next_offset > log_start_offset}
        return living <= named <= {entry.ulid for entry in group.entries}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """Counts of the committed groups of all rounds; `given_up` groups lost segments to another writer or job.

    `is_cut`: too many entries or pending deletes; a later job continues. `is_stopped`: before another round.
    """

    name: RemotePartitionName
    job_id: str
    head_sequence: int
    upto_offset: int
    was_done: bool = False
    is_cut: bool = False
    is_stopped: bool = False
    rows_before: int = 0
    rows_after: int = 0
    given_up: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def then(self, other: CompactionOutcome) -> CompactionOutcome:
        names = ("rows_before", "rows_after", "given_up", "records_before", "records_after")
        both = {name: getattr(self, name) + getattr(other, name) for name in (*names, "bytes_before", "bytes_after")}
        upto = max(self.upto_offset, other.upto_offset)
        return replace(other, was_done=self.was_done and other.was_done, upto_offset=upto, **both)


def plan_compaction(
    store: ObjectStore,
    name: RemotePartitionName,
    *,
    now_ms: int,
    start_offset: int = 0,
    upto_offset: int | None = None,
    job_id: str | None = None,
    group_bytes: int = GROUP_BYTES,
    rows_max: int = ROWS_MAX,
    settings: Mapping[str, str] | None = None,
    keys: KeyRing = NO_KEYS,
) -> CompactionPlan:
    """Plan the compaction of the entries that are wholly inside ``[start_offset, upto_offset)``.

    `upto_offset` None: as far as may be cleaned. Raises NotFound without a manifest, Conflict for a deleted topic,
    InvalidRequest for a topic that is not compacted.
    """
    log = MetadataLog(store, name.prefix)
    manifest = log.join()
    values = {**DEFAULTS, **manifest.properties, **(settings or {})}
    rules = resolve_rules(values)
    if not rules.cleanup_compact:
        facts = {"topic": name.topic, "cleanup.policy": values["cleanup.policy"]}
        wrong = "cannot compact the topic in the bucket, its cleanup.policy does not include compact"
        raise InvalidRequest(wrong, **facts)
    job_id = job_id or f"compact-{new_ulid(now_ms)}"
    remote = RemotePartition(store, name.prefix, ChunkCache(), metadata=log, keys=keys)
    source = PartitionSource(name.topic_partition, None, remote, log)
    known = find_job(manifest, job_id)
    was_done = known is not None and known.turn >= 0
    end = source.stable_end() if upto_offset is None else min(upto_offset, source.stable_end())
    young_ms = now_ms - rules.min_compaction_lag_ms if rules.min_compaction_lag_ms > 0 else None

    def first_from(start: int, count: int) -> list[SegmentEntry]:
        return log.ask(manifest, lambda index: list(islice(_entries(index, start, end, young_ms), count)))

    entries = [] if was_done else first_from(start_offset, rows_max + 1)  # the page of the last one is the last read
    if is_cut := len(entries) > rows_max:
        entries = first_from(max(start_offset, known.turn - _ROUNDS if known is not None else 0), rows_max)
    upto = entries[-1].next_offset if entries else start_offset
    return CompactionPlan(
        job_id=job_id,
        name=name,
        epoch=manifest.epoch,
        head_sequence=manifest.sequence,
        now_ms=now_ms,
        start_offset=entries[0].base_offset if entries else start_offset,
        upto_offset=upto,
        tombstones_below=tombstone_bound(manifest.parts, manifest.views, manifest.log_start_offset),
        settings={key: value for key, value in values.items() if value != DEFAULTS[key]},
        groups=tuple(_groups(entries, group_bytes)),
        producers=tuple(source.producers_in_bucket().entries()) if entries else (),
        secret=secrets.token_bytes(SECRET_BYTES),
        is_done=was_done,
        is_cut=is_cut,
        is_first=bool(entries) and manifest.parts[0].base_offset == entries[0].base_offset,
    )


class PlanOptions(TypedDict, total=False):
    start_offset: int
    upto_offset: int | None
    group_bytes: int
    rows_max: int
    settings: Mapping[str, str] | None


def compact_partitions(
    executor: Executor,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    *,
    now_ms: int,
    job_id: str | None = None,
    errors: dict[TopicPartition, LogError] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_done: Callable[[CompactionOutcome], None] = lambda outcome: None,
    **options: Unpack[PlanOptions],
) -> list[CompactionOutcome]:
    """Compact partitions, in as many rounds as needed; return an outcome for each one without an error.

    Partitions with the note of `job_id` are skipped. `should_stop` ends the job before the next partition and after a
    round. Errors of commits (Fenced, Conflict) are added to `errors`, or the first one is raised at the end. An error
    of the work itself ends the job of a parallel executor at once.
    """
    failed: dict[TopicPartition, LogError] = {}
    outcomes: list[CompactionOutcome] = []
    with bucket.opened() as store:
        keys = bucket.keys()
        rounds = partial(
            compact_in_rounds, store, now_ms=now_ms, job_id=job_id, keys=keys, should_stop=should_stop, **options
        )
        for some in [names] if executor.is_parallel else [[name] for name in names]:
            if not executor.is_parallel and should_stop():
                break
            try:
                found = rounds(some, partial(executor.compacted, bucket), failed)
            except LogError as error:
                if executor.is_parallel or errors is None:
                    raise
                failed[some[0].topic_partition] = error
                continue
            outcomes += found
            for each in found:
                on_done(each)
    if errors is not None:
        errors.update(failed)
    elif failed:
        raise next(iter(failed.values()))
    return outcomes


def compact_in_rounds(
    store: ObjectStore,
    names: Sequence[RemotePartitionName],
    compacted: Callable[[Sequence[CompactionPlan]], Mapping[int, Sequence[GroupResult]]],
    errors: dict[TopicPartition, LogError],
    *,
    now_ms: int,
    job_id: str | None = None,
    keys: KeyRing = NO_KEYS,
    should_stop: Callable[[], bool] = lambda: False,
    **options: Unpack[PlanOptions],
) -> list[CompactionOutcome]:
    """Plan, run both passes by `compacted`, commit, repeat; return the outcomes. Adds errors of commits to `errors`."""
    job_id = job_id or f"compact-{new_ulid(now_ms)}"
    outcomes: dict[RemotePartitionName, CompactionOutcome] = {}
    remaining = list(names)
    while remaining and not (outcomes and should_stop()):
        plans = [plan_compaction(store, name, now_ms=now_ms, job_id=job_id, keys=keys, **options) for name in remaining]
        results, remaining = compacted(plans), []
        for number, plan in enumerate(plans):
            try:
                outcome = commit_compaction(store, plan, results.get(number, ()), now_ms=now_ms)
            except LogError as error:
                _log.error("compaction not committed: partition=%s error=%s", plan.name.topic_partition, error)
                errors[plan.name.topic_partition] = error
                continue
            _log.info("compaction committed: partition=%s outcome=%s", plan.name.topic_partition, outcome)
            earlier = outcomes.get(plan.name)
            outcomes[plan.name] = outcome if earlier is None else earlier.then(outcome)
            if _wants_another(store, plan, outcome, options.get("rows_max", ROWS_MAX)):
                remaining.append(plan.name)
    return [replace(outcomes[name], is_stopped=name in remaining) for name in names if name in outcomes]


def _wants_another(store: ObjectStore, plan: CompactionPlan, outcome: CompactionOutcome, rows_max: int) -> bool:
    if not plan.is_cut or not plan.groups or outcome.given_up:
        return False
    return len(MetadataLog(store, plan.name.prefix).refresh(exact=True).pending_deletes) < 2 * _ROUNDS_LISTED * rows_max


def commit_compaction(
    store: ObjectStore, plan: CompactionPlan, results: Iterable[GroupResult], *, now_ms: int
) -> CompactionOutcome:
    """Commit the new entries of all groups in one manifest. After Unavailable the commit is in doubt: repeat it.

    A missing or lost group stays as it is, holds the tombstone bound down, and keeps the job from being noted as done.
    A group loses the entries that expired since the plan. Raises Fenced after a takeover, Conflict if the topic was
    deleted or the tombstone bound no longer holds: then nothing of the job is visible.
    """
    note = plan.note
    log = MetadataLog(store, plan.name.prefix)
    joined = log.join(epoch=plan.epoch)
    found = sorted(results, key=lambda each: each.number)
    results = [each for each in found if each.is_of(plan.groups[each.number], joined.log_start_offset)]
    strange = [each for one in found if one not in results for each in one.replaced]
    planned = {entry.ulid: entry for group in plan.groups for entry in group.entries}
    replaced = [each for one in results for each in one.replaced]
    vouched = [planned[ulid] for one in results for ulid in one.vouched]
    missing = len(plan.groups) - len(results)
    upto, bound = plan.upto_offset, plan.tombstones_below
    change = replace_tiled(
        replaced, vouched=vouched, cleaned_through=upto, bound=bound, note=note, is_whole=not missing
    )
    touches = (plan.start_offset, upto)
    made = [entry for each in (*replaced, *strange) for entry in each.entries]
    was_done = plan.is_done or is_done(joined, note)
    try:
        manifest = log.commit(change, now_ms, touches=touches) if replaced or vouched else joined
    except (Conflict, InvalidRequest):
        _give_up(log, made, touches, now_ms)
        raise
    named = log.ask(manifest, lambda index: list(index.entries_with_dead(*touches)))
    start = manifest.log_start_offset
    done = [each for each in replaced if outcome_of_group(named, start, each) is GroupOutcome.COMMITTED]
    lost = [each for each in replaced if each not in done]
    _give_up(log, [entry for each in (*lost, *strange) for entry in each.entries], touches, now_ms)
    replaced_by_others = [each for each in lost if each.entries[-1].next_offset > start]
    given_up = missing + len(replaced_by_others) + len(lost_entries(manifest, vouched, named))
    if given_up and is_done(manifest, note):  # another run of this job committed first
        was_done, given_up = True, 0
    same = [entry for entry in vouched if entry.ulid in {each.ulid for each in named}]
    before = [*(planned[ulid] for each in done for ulid in each.ulids), *same]
    after = [*(entry for each in done for entry in each.entries), *same]
    return CompactionOutcome(
        name=plan.name,
        job_id=plan.job_id,
        head_sequence=manifest.sequence,
        upto_offset=plan.upto_offset,
        was_done=was_done,
        is_cut=plan.is_cut,
        given_up=given_up,
        rows_before=len(before),
        rows_after=len(after),
        records_before=sum(entry.record_count for entry in before),
        records_after=sum(entry.record_count for entry in after),
        bytes_before=sum(entry.size_bytes for entry in before),
        bytes_after=sum(entry.size_bytes for entry in after),
    )


def _give_up(log: MetadataLog, entries: Sequence[SegmentEntry], touches: tuple[int, int], now_ms: int) -> None:
    if entries:
        log.commit(unlink_uploads(entries), now_ms, touches=touches)


def _entries(index: MetadataIndex, start: int, end: int, young_ms: int | None) -> Iterator[SegmentEntry]:
    """Yield the entries wholly inside ``[start, end)``, up to the first dirty one with a record after `young_ms`."""
    for entry in index.entries(start, end):
        is_dirty = (entry.cleaned_through or 0) < entry.next_offset
        if young_ms is not None and is_dirty and (entry.max_timestamp_ms or 0) > young_ms:
            return
        if start <= entry.base_offset and entry.next_offset <= end:
            yield entry


def _groups(entries: Sequence[SegmentEntry], group_bytes: int) -> Iterator[RowGroup]:
    runs: list[list[SegmentEntry]] = []
    for entry in entries:
        is_next = runs and runs[-1][-1].next_offset == entry.base_offset
        if is_next and sum(each.size_bytes for each in runs[-1]) + entry.size_bytes <= group_bytes:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    for number, run in enumerate(runs):
        ends = {"base_offset": run[0].base_offset, "next_offset": run[-1].next_offset}
        yield RowGroup(number=number, entries=tuple(run), **ends)
