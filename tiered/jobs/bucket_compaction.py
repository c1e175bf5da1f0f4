"""Compaction of what is in the bucket, by a job beside the managers: planned, done in parts, committed at once.

A manager cleans what its disk holds. What the disk has let go of is cleaned here, from the bucket alone, however large:

1. `plan_compaction` joins the newest epoch (`remote.manifest.co_writer`), takes the rows of a range, and parts them
   into **groups** of neighbours. A plan is a value that travels.
2. Pass one (`tiered.jobs.compaction_passes`), for each group by itself: a digest of each key with the offset of its
   newest record there. Between the passes somebody (a shuffle of Spark's, or `newest_by_group` in one process) keeps
   the largest offset of each digest. Nothing else of the records travels.
3. Pass two, for each group by itself: the cleaner's verdicts, its rebuilding and merging, uploads. Any number of
   attempts may run, also side by side: names are never used twice.
4. `commit_compaction` puts all of it into one head.

What goes is what the cleaner of a disk takes (`local.cleaner.record_retention`), with the same gates: nothing above the
last stable offset, nothing younger than `min.compaction.lag.ms`, tombstones and markers only below the bound of I5 that
the planned head gives, and only after their horizon. A transaction that reaches from one group into the next keeps its
marker: the group cannot see whether its data is still there.

| a crash, or an error, after | leaves | what becomes of it |
|---|---|---|
| plan, pass one | nothing | |
| some of pass two | objects that no head names, of the newest epoch | nobody's, once the next epoch begins |
| the commit, its answer lost | the new head | the same job finds its note there |
| the commit | objects of gone rows, listed | the writer deletes them after the grace time |

**Rounds.** One plan takes `ROWS_MAX` rows: their objects wait for their deletion in each head of the next day. A job
over more goes on in rounds, as long as heads have room (`wants_another`): each takes the rows above the last one's, and
once so many have been merged that what is left fits one plan, that one compares all of it. The job's note says how far
it is, below zero until it is over; the job that is run again goes on there. Rows that never become few enough are
compared within each round only, and clean through its end only, so tombstones above that may hide something below stay.

Memory: a plan has the rows of the range; passes have what one group takes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from local.cleaner.key_digests import SECRET_BYTES
from local.errors import Conflict, InvalidRequest
from local.index.txn_index import AbortedTransaction
from local.log.producer_snapshot import ProducerEntry
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.co_writer import GuestLog
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.job_changes import Fate, Replacement, fate_of, find_job, lost_rows, replace_tiled
from remote.manifest.job_changes import is_done as is_noted
from remote.manifest.manifest import JobNote
from remote.manifest.manifest_changes import unlink_uploads
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.tombstone_bound import tombstone_bound
from remote.segment_entry import RemoteSegment
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.properties import DEFAULTS
from tiered.config.topic_settings import resolve_rules
from tiered.read.partition_source import PartitionSource
from tiered.read.read_committed import aborted_transactions, producers_in_bucket, stable_end

GROUP_BYTES = 256 << 20  # of input; a task's work, and what can become one segment
ROWS_MAX = 16_384  # of one plan
_ROUNDS_LISTED = 4  # rounds that replaced all of their rows: two objects each, some megabytes of every head
_ROUNDS = -(1 << 62)  # a note's turn is this and the offset that rounds have come to; 0 when the job is over


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Neighbouring rows, without a hole between them, that one task rewrites.

    `before` is the row in front of them, whose index knows the transactions that are open where they begin; `aborted`
    are those that concern their records or have their marker here.
    """

    number: int
    rows: tuple[RemoteSegment, ...]
    before: RemoteSegment | None = None
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def base_offset(self) -> int:
        return self.rows[0].base_offset

    @property
    def next_offset(self) -> int:
        return self.rows[-1].next_offset

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """One partition's compaction: what is rewritten under which rules. Times in ms, offsets half open.

    Records in ``[start_offset, upto_offset)`` are compared with each other. `settings` are the topic's, those that are
    missing have their defaults; `producers` those that the bucket's end knows; `secret` keys the digests. A plan that
    `is_done` has no groups: the head has this job's note. One that `is_cut` is a round of more rows than it takes.
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

    @property
    def size_bytes(self) -> int:
        return sum(group.size_bytes for group in self.groups)

    @property
    def note(self) -> JobNote:
        """What the head says of the job once this plan is committed."""
        return JobNote(job_id=self.job_id, turn=_ROUNDS + self.upto_offset if self.is_cut else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What pass two made of a group: rows for others, and rows that stay as they are and are clean. Of `.log` bytes."""

    number: int
    replaced: tuple[Replacement, ...] = ()
    vouched: tuple[str, ...] = ()
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOutcome:
    """What a job came to. `was_done`: an earlier run had committed it, and this one changed nothing.

    Segments, records and bytes are those of what was committed, in all rounds. `given_up` groups were not, because
    another writer or job replaced some of their segments meanwhile: the job is not done then, and running it again
    under its id does what is left. Rows are clean through `upto_offset`, the bucket's end unless the job was bounded or
    `is_cut`: then the rows were too many to be compared with each other, or too much waits for its deletion; another
    job, later, continues.
    """

    name: RemotePartitionName
    job_id: str
    head_sequence: int
    upto_offset: int
    was_done: bool = False
    is_cut: bool = False
    rows_before: int = 0
    rows_after: int = 0
    given_up: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def then(self, other: CompactionOutcome) -> CompactionOutcome:
        """This round's and the next one's."""
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
    """What to do about the rows wholly inside ``[start_offset, upto_offset)`` (None: as far as may be cleaned), or
    about `rows_max` of them, above those that earlier rounds of this job have done: see the module text.

    A job that is given the `job_id` of one that was committed has nothing to do. `settings` outweigh the topic's own,
    as the head has them. Raises NotFound without a head, Conflict for a deleted topic, InvalidRequest for a topic that
    is not compacted, and what reading the bucket raises.
    """
    log = GuestLog(store, name.prefix)
    head = log.join()
    values = {**DEFAULTS, **head.properties, **(settings or {})}
    rules = resolve_rules(values)
    if not rules.cleanup_compact:
        facts = {"topic": name.topic, "cleanup.policy": values["cleanup.policy"]}
        raise InvalidRequest("compacting what is in the bucket, the topic is not compacted", **facts)
    job_id = job_id or f"compact-{new_ulid(now_ms)}"
    remote = RemotePartition(store, name.prefix, ChunkCache(), metadata=log, read_ahead_chunks=0, keys=keys)
    source = PartitionSource(name.topic_partition, None, remote, log)
    known = find_job(head, job_id)
    is_done = known is not None and known.turn >= 0
    end = stable_end(source) if upto_offset is None else min(upto_offset, stable_end(source))
    young_ms = now_ms - rules.min_compaction_lag_ms if rules.min_compaction_lag_ms > 0 else None
    there = [] if is_done else log.ask(head, lambda index: list(index.rows(start_offset, end)))
    rows = _rows(there, start_offset, end, young_ms)
    is_cut = len(rows) > rows_max
    if is_cut:
        reached = known.turn - _ROUNDS if known is not None else 0
        rows = [row for row in rows if row.base_offset >= reached][:rows_max]
    upto = rows[-1].next_offset if rows else start_offset
    aborted = aborted_transactions(source, rows[0].base_offset, upto) if rows else []
    before = log.ask(head, lambda index: _row_before(index, rows[0])) if rows else None
    return CompactionPlan(
        job_id=job_id,
        name=name,
        epoch=head.epoch,
        head_sequence=head.sequence,
        now_ms=now_ms,
        start_offset=rows[0].base_offset if rows else start_offset,
        upto_offset=upto,
        tombstones_below=tombstone_bound(head.parts, head.views, head.log_start_offset),
        settings={key: value for key, value in values.items() if value != DEFAULTS[key]},
        groups=tuple(_groups(rows, before, aborted, group_bytes)),
        producers=tuple(producers_in_bucket(source).entries()) if rows else (),
        secret=secrets.token_bytes(SECRET_BYTES),
        is_done=is_done,
        is_cut=is_cut,
    )


def wants_another(
    store: ObjectStore, plan: CompactionPlan, outcome: CompactionOutcome, *, rows_max: int = ROWS_MAX
) -> bool:
    """Whether a job continues with another round after `plan` came to `outcome`: no group was lost, more rows are
    there, and the head has room for their objects. Raises NotFound."""
    if not plan.is_cut or not plan.groups or outcome.given_up:
        return False
    return len(MetadataLog(store, plan.name.prefix).refresh(exact=True).unlinked) < 2 * _ROUNDS_LISTED * rows_max


def commit_compaction(
    store: ObjectStore, plan: CompactionPlan, results: Iterable[GroupResult], *, now_ms: int
) -> CompactionOutcome:
    """Make all groups' rows the truth, in one head. A group that is missing or was lost stays as it is, and so do all
    tombstones' gates: rows below that were not cleaned hold the bound down. The job is noted as done only without such
    a group. A group whose oldest entries expired meanwhile is committed without them (`remote.manifest.job_changes`).

    May be repeated: after Unavailable it is unknown whether it happened. Raises Fenced when another writer came since
    the plan, Conflict when the topic was deleted or the bound of tombstones does not hold any more; nothing of it is
    visible then.
    """
    results = sorted(results, key=lambda each: each.number)
    note = plan.note
    log = GuestLog(store, plan.name.prefix)
    log.join(epoch=plan.epoch)
    planned = {row.ulid: row for group in plan.groups for row in group.rows}
    replaced = [each for one in results for each in one.replaced]
    vouched = [planned[ulid] for one in results for ulid in one.vouched]
    missing = len(plan.groups) - len(results)
    change = replace_tiled(
        replaced,
        vouched=vouched,
        cleaned_through=plan.upto_offset,
        bound=plan.tombstones_below,
        note=note,
        is_whole=not missing,
    )
    touches = (plan.start_offset, plan.upto_offset)
    made = [row for each in replaced for row in each.rows]
    known = log.cached
    assert known is not None, "joined"
    was_done = plan.is_done or is_noted(known, note)
    try:
        head = log.commit(change, now_ms, touches=touches) if replaced or vouched else known
    except (Conflict, InvalidRequest):
        _give_up(log, made, touches, now_ms)
        raise
    there = log.ask(head, lambda index: list(index.rows_with_dead(*touches)))
    done = [each for each in replaced if fate_of(there, head.log_start_offset, each) is Fate.COMMITTED]
    lost = [each for each in replaced if each not in done]
    _give_up(log, [row for each in lost for row in each.rows], touches, now_ms)
    replaced_by_others = [each for each in lost if each.rows[-1].next_offset > head.log_start_offset]
    given_up = missing + len(replaced_by_others) + len(lost_rows(head, vouched, there))
    if given_up and is_noted(head, note):  # another run of this job committed first
        was_done, given_up = True, 0
    olds = [planned[ulid] for each in done for ulid in each.ulids]
    news = [row for each in done for row in each.rows]
    same = [row for row in vouched if row.ulid in {each.ulid for each in there}]
    before, after = [*olds, *same], [*news, *same]
    return CompactionOutcome(
        name=plan.name,
        job_id=plan.job_id,
        head_sequence=head.sequence,
        upto_offset=plan.upto_offset,
        was_done=was_done,
        is_cut=plan.is_cut,
        rows_before=len(before),
        rows_after=len(after),
        given_up=given_up,
        records_before=sum(row.record_count for row in before),
        records_after=sum(row.record_count for row in after),
        bytes_before=sum(row.size_bytes for row in before),
        bytes_after=sum(row.size_bytes for row in after),
    )


def _give_up(log: GuestLog, rows: Sequence[RemoteSegment], touches: tuple[int, int], now_ms: int) -> None:
    """Have the objects of rows that nobody names deleted; those that somebody names are passed over."""
    if rows:
        log.commit(unlink_uploads(rows), now_ms, touches=touches)


def _rows(rows: Sequence[RemoteSegment], start: int, end: int, young_ms: int | None) -> list[RemoteSegment]:
    """Those wholly inside ``[start, end)``, up to the first uncleaned one with a record after `young_ms`."""
    found = []
    for row in rows:
        is_dirty = (row.cleaned_through or 0) < row.next_offset
        if young_ms is not None and is_dirty and (row.max_timestamp_ms or 0) > young_ms:
            break
        if start <= row.base_offset and row.next_offset <= end:
            found.append(row)
    return found


def _row_before(index: MetadataIndex, row: RemoteSegment) -> RemoteSegment | None:
    """The row that ends nearest below `row`'s base, dead or not."""
    parts = [part for part in index.head.parts if part.base_offset < row.base_offset]
    if not parts:
        return None
    return list(index.rows_with_dead(parts[-1].base_offset, row.base_offset))[-1]


def _groups(
    rows: Sequence[RemoteSegment],
    before: RemoteSegment | None,
    aborted: Sequence[AbortedTransaction],
    group_bytes: int,
) -> Iterator[RowGroup]:
    """Runs of neighbours up to `group_bytes`, one row at least in each."""
    runs: list[list[RemoteSegment]] = []
    for row in rows:
        is_next = runs and runs[-1][-1].next_offset == row.base_offset
        if is_next and sum(each.size_bytes for each in runs[-1]) + row.size_bytes <= group_bytes:
            runs[-1].append(row)
        else:
            runs.append([row])
    for number, run in enumerate(runs):
        base, following = run[0].base_offset, run[-1].next_offset
        concerns = tuple(each for each in aborted if each.last_offset >= base and each.first_offset < following)
        yield RowGroup(number=number, rows=tuple(run), before=before, aborted=concerns)
        before = run[-1]


def with_groups(plan: CompactionPlan, groups: Sequence[RowGroup]) -> CompactionPlan:
    """The same plan for some of its groups; what travels to a task has no others."""
    return replace(plan, groups=tuple(groups))
