"""Rewriting of segments in the bucket: merge small neighbours, or change the object encoding.

| kind | change | segment entries |
|---|---|---|
| merge | many small segments become one | neighbours without a gap, of one object encoding, all clean or none |
| recode | object codec, encryption key, storage class | entries with another encoding than the wanted one |

Steps, as for every co-writer (`remote.manifest.writer_roles`): 1. `plan_merge` or `plan_recode` joins the newest epoch;
2. `rewrite_group` does one group, in any process, any number of times; 3. `commit_groups` commits some groups in one
manifest.

A new segment covers exactly the offsets of the entries that it replaces and has their bytes, by checksum. It is as
clean as the least clean of them. So a reader finds the same records before, during and after; with an older manifest it
reads the old objects, which stay for the grace period.

| a crash or an error after | leaves | outcome |
|---|---|---|
| plan | nothing | |
| some uploads | objects of the newest epoch that no manifest names | orphans once the next epoch begins |
| a commit, its reply lost | the new manifest | these entries are not due in the next plan |
| a commit | pending deletes of the replaced objects | the writer deletes them after the grace period |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Protocol, TypeVar

from local.errors import InvalidRequest, LogError, NotFound, Unavailable
from policies.cost.prices import BUILT_IN, PriceTable
from policies.cost.storage_cost import GIB, early_deletion, request_cost, retrieval_cost, upload_requests
from policies.retention import UNLINKED_MAX
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition, why_missing
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob
from remote.manifest.manifest_changes import GroupOutcome, Replacement, outcome_of_group, replace_tiled
from remote.segment_entry import PART_BYTES, SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.stored_segment import RAW, SEALED_CHUNK_BYTES, ObjectEncoding
from remote.store import ObjectStore
from remote.upload.segment_upload import copy_segment
from tiered.jobs.job_bucket import Bucket, OpenBucket
from tiered.jobs.joined_segments import check_same_bytes, joined
from tiered.jobs.runner import BucketJob, Clock, Failures, Here, run_job
from tiered.stores.object_encoding import EncodingChoice, SettingsOf, encoding_of_entry, own_settings

R = TypeVar("R")
TARGET_BYTES = 256 << 20  # of a merged segment
SMALL_RATIO = 0.5  # a segment below this share of the target is small
GROUPS_A_MANIFEST = 64  # each commit that touches a page writes it again
DAY_MS = 86_400_000
OFFSETS_MAX = 2**31 - 1  # the largest relative offset, and position, in an index


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFilter:
    """By stored bytes, and by the newest record's time in ``[since_ms, until_ms)``; None is no bound."""

    min_bytes: int = 0
    since_ms: int | None = None
    until_ms: int | None = None

    def __call__(self, entry: SegmentEntry) -> bool:
        newest = entry.committed_ms if entry.max_timestamp_ms is None else entry.max_timestamp_ms
        is_late = self.since_ms is None or newest >= self.since_ms
        return entry.stored_bytes >= self.min_bytes and is_late and (self.until_ms is None or newest < self.until_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteGroup:
    """Entries that become one segment. `must_follow`: committed only after all earlier groups. Can be pickled."""

    number: int
    entries: tuple[SegmentEntry, ...]
    encoding: EncodingChoice
    must_follow: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def stored_bytes(self) -> int:
        return sum(entry.stored_bytes + entry.indexes_bytes for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteCost:
    """Requests and bytes of a plan. `dollars` include bytes and early deletion where a class bills them."""

    gets: int = 0
    puts: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    dollars: float = 0.0

    @staticmethod
    def total(costs: Sequence[RewriteCost], manifests: int, prices: PriceTable) -> RewriteCost:
        sums = {each.name: sum(getattr(cost, each.name) for cost in costs) for each in fields(RewriteCost)}
        sums["puts"] += manifests
        sums["dollars"] += request_cost(puts=manifests, prices=prices.of(None))
        return RewriteCost(**sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """The rewriting of one partition; `cost` assumes objects as large as their segments."""

    job_id: str
    name: RemotePartitionName
    epoch: int
    now_ms: int
    groups: tuple[RewriteGroup, ...]
    cost: RewriteCost


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenGroup:
    """Result of one group; `replacement` None: the entry would not change, or all entries expired."""

    number: int
    replacement: Replacement | None = None
    stored_before: int = 0
    stored_after: int = 0
    is_expired: bool = False

    @staticmethod
    def of(group: RewriteGroup, entry: SegmentEntry | None) -> RewrittenGroup:
        before = group.stored_bytes
        if entry is None:
            return RewrittenGroup(number=group.number, stored_before=before, stored_after=before)
        replacement = Replacement(ulids=tuple(each.ulid for each in group.entries), entries=(entry,))
        after = entry.stored_bytes + entry.indexes_bytes
        return RewrittenGroup(number=group.number, replacement=replacement, stored_before=before, stored_after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOutcome:
    """Counts of committed groups. Other work replaced entries of `given_up` groups; `expired` ones have none left."""

    groups: int = 0
    unchanged: int = 0
    given_up: int = 0
    expired: int = 0
    rows_before: int = 0
    rows_after: int = 0
    stored_before: int = 0
    stored_after: int = 0
    is_complete: bool = True

    def plus(self, other: RewriteOutcome) -> RewriteOutcome:
        names = [each.name for each in fields(self) if each.name != "is_complete"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return RewriteOutcome(**sums, is_complete=self.is_complete and other.is_complete)


def plan_merge(
    store: ObjectStore,
    name: RemotePartitionName,
    *,
    now_ms: int,
    target_bytes: int = TARGET_BYTES,
    prices: PriceTable = BUILT_IN,
    settings: SettingsOf = own_settings,
) -> RewritePlan:
    """Plan to merge runs of small neighbours. Raises NotFound without a manifest, Conflict for a deleted topic."""
    log, runs, own = _joined_rows(store, name, lambda entries: small_runs(entries, target_bytes))
    known = settings(name.topic, own)
    groups = [
        RewriteGroup(number=number, entries=tuple(run), encoding=encoding_of_entry(run[0], known))
        for number, run in enumerate(runs)
    ]
    return _plan("merge", log, name, groups, now_ms, prices)


def plan_recode(
    store: ObjectStore,
    name: RemotePartitionName,
    *,
    now_ms: int,
    codec: str | None = None,
    key_id: str | None = None,
    decrypts: bool = False,
    storage_class: str | None = None,
    prices: PriceTable = BUILT_IN,
    entry_filter: Callable[[SegmentEntry], bool] | None = None,
    settings: SettingsOf = own_settings,
) -> RewritePlan:
    """Plan to rewrite each entry that has another object encoding than the requested one. Raises as `plan_merge`.

    None leaves a value as it is. Without `decrypts` a rewritten entry is encrypted if `settings` name a key.
    """
    if decrypts and key_id is not None:
        raise InvalidRequest("cannot rewrite, a key and no encryption exclude each other", key_id=key_id)
    log, entries, own = _joined_rows(store, name, lambda entries: filter(entry_filter or EntryFilter(), entries))
    known = settings(name.topic, own)
    groups: list[RewriteGroup] = []
    for entry in entries:
        now, configured = encoding_of_entry(entry), encoding_of_entry(entry, known)
        wanted = EncodingChoice(
            codec=now.codec if codec is None else codec,
            key_id=None if decrypts else now.key_id if key_id is None else key_id,
            storage_class=now.storage_class if storage_class is None else storage_class,
        )
        if wanted != now:
            key = wanted.key_id if decrypts or wanted.key_id is not None else configured.key_id
            target_class = configured.storage_class if storage_class is None else storage_class
            encoding = replace(wanted, key_id=key, level=configured.level, storage_class=target_class)
            groups.append(RewriteGroup(number=len(groups), entries=(entry,), encoding=encoding))
    return _plan("recode", log, name, groups, now_ms, prices)


def small_runs(entries: Iterable[SegmentEntry], target_bytes: int) -> Iterator[list[SegmentEntry]]:
    """Yield runs of at least two neighbours without a gap, of one object encoding, all cleaned or none."""
    run: list[SegmentEntry] = []
    for entry in entries:
        if run and not (_fits(run, entry, target_bytes) and entry.size_bytes < SMALL_RATIO * target_bytes):
            if len(run) > 1:
                yield run
            run = []
        if entry.size_bytes < SMALL_RATIO * target_bytes:
            run.append(entry)
    if len(run) > 1:
        yield run


def _fits(run: Sequence[SegmentEntry], entry: SegmentEntry, target_bytes: int) -> bool:
    last = run[-1]
    size = sum(each.size_bytes for each in run) + entry.size_bytes
    is_next = last.next_offset == entry.base_offset and entry.next_offset - run[0].base_offset <= OFFSETS_MAX
    is_coded_alike = encoding_of_entry(last) == encoding_of_entry(entry)
    is_alike = is_coded_alike and (last.cleaned_through is None) == (entry.cleaned_through is None)
    return is_next and is_alike and size <= min(target_bytes, OFFSETS_MAX)


def _joined_rows(
    store: ObjectStore, name: RemotePartitionName, chosen: Callable[[Iterable[SegmentEntry]], Iterable[R]]
) -> tuple[MetadataLog, list[R], Mapping[str, str]]:
    """Join the newest epoch; return what `chosen` selects of the readable entries, which are read page by page."""
    log = MetadataLog(store, name.prefix)
    manifest = log.join()
    start = manifest.min_readable_offset
    found = log.ask(manifest, lambda index: list(chosen(each for each in index.entries() if each.base_offset >= start)))
    return log, found, manifest.properties


def _plan(
    kind: str,
    log: MetadataLog,
    name: RemotePartitionName,
    groups: Sequence[RewriteGroup],
    now_ms: int,
    prices: PriceTable,
) -> RewritePlan:
    costs = [cost_of(group.entries, group.encoding, prices, replaced_ms=now_ms) for group in groups]
    total = RewriteCost.total(costs, -(-len(groups) // GROUPS_A_MANIFEST), prices)
    job_id = f"{kind}-{new_ulid(now_ms)}"
    return RewritePlan(job_id=job_id, name=name, epoch=log.epoch, now_ms=now_ms, groups=tuple(groups), cost=total)


def cost_of(
    entries: Iterable[SegmentEntry],
    encoding: EncodingChoice,
    prices: PriceTable = BUILT_IN,
    *,
    replaced_ms: int | None = None,
) -> RewriteCost:
    """Return the cost to read `entries` and write them as one segment, assumed as large as its records.

    Indexes are in STANDARD, for any class of the data. With `replaced_ms` the old objects are deleted at this time: a
    class still bills the rest of its minimum storage time.
    """
    size, gets, read_bytes, dollars = 0, 2, 0, 0.0
    for entry in entries:
        read = read_cost(entry, prices)
        size, gets, read_bytes = size + entry.size_bytes, gets + read.gets, read_bytes + read.read_bytes
        dollars += read.dollars
        if replaced_ms is not None and entry.committed_ms:
            age_days = max(0, replaced_ms - entry.committed_ms) / DAY_MS
            dollars += early_deletion(entry.stored_bytes, age_days, prices.of(entry.storage_class))
    puts, to = upload_requests(size, PART_BYTES), prices.of(encoding.storage_class)
    dollars += request_cost(puts=puts, gets=1, prices=to) + size / GIB * to.write_per_gb
    dollars += request_cost(puts=1, gets=1, prices=prices.of(None))
    return RewriteCost(gets=gets, puts=puts + 1, read_bytes=read_bytes, write_bytes=size, dollars=dollars)


def read_cost(entry: SegmentEntry, prices: PriceTable) -> RewriteCost:
    here, ranges = prices.of(entry.storage_class), -(-entry.stored_bytes // RANGE_BYTES)
    dollars = request_cost(gets=ranges, prices=here) + retrieval_cost(entry.stored_bytes, here)
    dollars += request_cost(gets=1, prices=prices.of(None))
    return RewriteCost(gets=1 + ranges, read_bytes=entry.stored_bytes + entry.indexes_bytes, dollars=dollars)


def rewrite_group(
    plan: RewritePlan,
    group: RewriteGroup,
    store: ObjectStore,
    *,
    keys: KeyRing = NO_KEYS,
    target: ObjectStore | None = None,
) -> RewrittenGroup:
    """Read a group's segments, upload and verify the new one; nothing is visible yet.

    `target` is the same bucket opened with another storage class. Expired entries are skipped. Raises NotFound if
    others left the bucket since the plan, Corrupt for a damaged segment or a lost object, AccessDenied without a key.
    """
    return unless_expired(plan, group, store, lambda due: _rewritten(plan, due, store, keys, target or store))


def unless_expired(
    plan: RewritePlan, group: RewriteGroup, store: ObjectStore, rewritten: Callable[[RewriteGroup], RewrittenGroup]
) -> RewrittenGroup:
    """Return `rewritten` of the group, without the entries that expired since the plan. Raises as `rewrite_group`."""
    try:
        return rewritten(group)
    except NotFound as error:
        log = MetadataLog(store, plan.name.prefix)
        start = log.refresh().log_start_offset
        remaining = replace(group, entries=tuple(entry for entry in group.entries if entry.next_offset > start))
        if remaining.entries == group.entries:
            raise why_missing(log, group.entries, error) from error
    if not remaining.entries:
        return RewrittenGroup(number=group.number, is_expired=True)
    return rewritten(remaining)


def _rewritten(
    plan: RewritePlan, group: RewriteGroup, store: ObjectStore, keys: KeyRing, target: ObjectStore
) -> RewrittenGroup:
    remote = RemotePartition(store, plan.name.prefix, ChunkCache(), keys=keys)
    object_encoding = group.encoding.object_encoding(keys)
    if len(group.entries) == 1 and (
        encoding_of_entry(group.entries[0]) == group.encoding or _would_stay(remote, group, object_encoding)
    ):
        return RewrittenGroup.of(group, None)
    prefix, segment = plan.name.prefix, joined(remote, group.entries)
    entry = copy_segment(target, prefix, segment, epoch=plan.epoch, now_ms=plan.now_ms, object_encoding=object_encoding)
    check_same_bytes(entry, group.entries)
    return RewrittenGroup.of(group, entry)


def _would_stay(remote: RemotePartition, group: RewriteGroup, object_encoding: ObjectEncoding) -> bool:
    (entry,) = group.entries
    if replace(group.encoding, codec=entry.codec) != encoding_of_entry(entry) or object_encoding.codec == RAW:
        return False
    return not object_encoding.pays(remote.read(entry, 0, min(SEALED_CHUNK_BYTES, entry.size_bytes)))


def commit_groups(
    store: ObjectStore,
    plan: RewritePlan,
    done: Sequence[RewrittenGroup],
    *,
    turn: int,
    now_ms: int,
    keeps_maker: bool = True,
) -> RewriteOutcome:
    """Replace the old entries by the new ones, in one manifest (`remote.manifest.manifest_changes`).

    The objects of a group that is not committed become pending deletes. May be repeated with the same `turn`, which
    rises from commit to commit. `keeps_maker` is for groups with the very same records. Raises Fenced.
    """
    replaced = {each.number: each.replacement for each in done if each.replacement is not None}
    expired = sum(each.is_expired for each in done)
    outcome = RewriteOutcome(groups=len(done), unchanged=len(done) - len(replaced) - expired, expired=expired)
    if not replaced:
        return outcome
    log = MetadataLog(store, plan.name.prefix)
    log.join(epoch=plan.epoch)
    entries = [entry for each in replaced.values() for entry in each.entries]
    touches = (min(entry.base_offset for entry in entries), max(entry.next_offset for entry in entries))
    note = AppliedJob(job_id=plan.job_id, turn=turn)
    change = replace_tiled([*replaced.values()], cleaned_through=0, bound=None, note=note, keeps_maker=keeps_maker)
    manifest = log.commit(change, now_ms, touches=touches)
    named = log.ask(manifest, lambda index: list(index.entries_with_dead(*touches)))
    outcomes = {at: outcome_of_group(named, manifest.log_start_offset, each) for at, each in replaced.items()}
    put = [each for each in done if outcomes.get(each.number) is GroupOutcome.COMMITTED]
    counts = Counter(outcomes.values())
    return replace(
        outcome,
        given_up=counts[GroupOutcome.LOST],
        expired=expired + counts[GroupOutcome.EXPIRED],
        rows_before=sum(len(replaced[each.number].ulids) for each in put),
        rows_after=len(put),
        stored_before=sum(each.stored_before for each in put),
        stored_after=sum(each.stored_after for each in put),
    )


class GroupRewriter(Protocol):
    """Makes the segment of a group; can be pickled. See `rewrite_group`."""

    def __call__(
        self, plan: RewritePlan, group: RewriteGroup, store: ObjectStore, *, keys: KeyRing, target: ObjectStore
    ) -> RewrittenGroup: ...


class RewriteUnit(NamedTuple):
    number: int
    plan: RewritePlan
    group: RewriteGroup


@dataclass(kw_only=True)
class RewriteJob(BucketJob[RewriteUnit, RewrittenGroup, RewriteOutcome]):
    """The rewriting of any number of partitions; a unit is a group, which `rewrite` makes as `rewrite_group` does.

    Each manifest has at most `batch_size` groups. A partition ends with the first failed commit (Fenced, Conflict), and
    is done as far as its manifest can list pending deletes. A group that `must_follow` is committed after all earlier
    groups, but never after a failed or lost group, nor in the `incomplete` plans, whose earlier work failed.
    """

    bucket: Bucket
    plans: Sequence[RewritePlan]
    now_ms: Clock
    target: Bucket | None = None
    batch_size: int = GROUPS_A_MANIFEST
    rewrite: GroupRewriter = rewrite_group
    keeps_maker: bool = True
    incomplete: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._outcomes = [RewriteOutcome() for _ in self.plans]
        self._turns = [0] * len(self.plans)
        self._ended: set[int] = set()
        self._incomplete = set(self.incomplete)  # plus plans with a group that failed or was given up
        self.failures = Failures([plan.name for plan in self.plans])
        groups = sum(len(plan.groups) for plan in self.plans)
        self.description = f"rewriting {groups} groups of segments in {len(self.plans)} partitions"

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return self.bucket, self.target or self.bucket

    def units(self) -> Iterator[RewriteUnit]:
        for number, plan in enumerate(self.plans):
            log = MetadataLog(self._stores[0], plan.name.prefix)
            room = UNLINKED_MAX - len(log.refresh().pending_deletes) if plan.groups else 0
            bare = replace(plan, groups=())
            for group in plan.groups:
                if room <= 0:
                    break
                room -= 2 * len(group.entries)
                yield RewriteUnit(number, bare, group)

    def size_of(self, unit: RewriteUnit) -> int:
        return unit.group.size_bytes

    def is_wanted(self, unit: RewriteUnit) -> bool:
        return unit.number not in self._ended

    def task(self) -> Callable[..., RewrittenGroup]:
        keys, rewrite = self.bucket.keys, self.rewrite
        return lambda unit, store, target: rewrite(unit.plan, unit.group, store, keys=keys(), target=target)

    def commit(self, results: Sequence[tuple[RewriteUnit, RewrittenGroup | LogError]]) -> None:
        done: dict[int, list[RewrittenGroup]] = {}
        for unit, result in results:
            groups = done.setdefault(unit.number, [])
            if isinstance(result, LogError):
                self._incomplete.add(unit.number)
                continue
            if unit.group.must_follow:
                self._commit_all(unit.number, groups)
                groups.clear()
                if unit.number in self._incomplete:
                    continue
            groups.append(result)
        for number, groups in done.items():
            self._commit_all(number, groups)

    def _commit_all(self, number: int, groups: Sequence[RewrittenGroup]) -> None:
        for at in range(0, len(groups), self.batch_size):
            if number not in self._ended:
                self._commit(number, groups[at : at + self.batch_size])

    def _commit(self, number: int, groups: Sequence[RewrittenGroup]) -> None:
        plan = self.plans[number]
        self._turns[number] += 1
        try:
            turn = {"turn": self._turns[number], "now_ms": self.now_ms()}
            outcome = commit_groups(self._stores[0], plan, groups, **turn, keeps_maker=self.keeps_maker)
        except Unavailable:
            raise
        except LogError as error:
            self._ended.add(number)
            self.failures.note(number, error)
        else:
            self._outcomes[number] = self._outcomes[number].plus(outcome)
            if outcome.given_up:
                self._incomplete.add(number)

    def outcomes(self) -> list[RewriteOutcome]:
        return [
            replace(outcome, is_complete=outcome.groups == len(plan.groups))
            for plan, outcome in zip(self.plans, self._outcomes, strict=True)
        ]


def run_rewrite(
    store: ObjectStore,
    plan: RewritePlan,
    *,
    now_ms: Callable[[], int],
    keys: KeyRing = NO_KEYS,
    target: ObjectStore | None = None,
    groups_a_manifest: int = GROUPS_A_MANIFEST,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> RewriteOutcome:
    """Carry out one plan in this process. Raises the error of a group after the commits of the others."""
    bucket, other = OpenBucket.of(store, keys), OpenBucket.of(target, keys) if target is not None else None
    job = RewriteJob(bucket=bucket, plans=[plan], now_ms=now_ms, target=other, batch_size=groups_a_manifest)
    (outcome,) = run_job(job, Here(should_stop), progress=progress)
    return outcome
