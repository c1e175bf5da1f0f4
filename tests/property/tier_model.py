"""A small model of a compacted, tiered partition of a few records, whose every history can be searched.

The real policies decide on real snapshots: `policies` (cleanings, tombstones_below, copies, replacements, local_drops,
expirations, deletions). The real `remote.manifest.manifest_changes` change real manifests. Modelled are the state
(`World`) and the cleaner's rule for which records stay;
`test_the_models_cleaner_keeps_the_same_records_as_the_real_cleaner` compares this rule with the real cleaner.
docs/explanation/compaction-across-tiers.md has the table of states, steps and crashes.

Time is counted in ticks. `delete.retention.ms` is RETENTION_TICKS, the grace period GRACE_TICKS. There is at most one
reader:

* It uses the manifest of the moment at which it began, until the store answers 404 or the first local offset is above
  that manifest's end.
* A reader of ``both`` reads locally if the disk has the offset, and otherwise remotely, like `tiered.read.reader`. A
  reader of the ``bucket`` uses only its manifest's entries, like a job on another machine.
* It makes one step at a time and may pause between any two, for less than RETENTION_TICKS in total. Kafka promises
  this to a consumer that builds a table, and so does this project, counted from the reader's first manifest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.compaction import cleanings, replacements, tombstones_below
from policies.decisions import ReplaceRemote
from policies.retention import deletions, expirations, local_drops
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from policies.tiering import copies
from remote.manifest.manifest import Manifest, PendingDelete, contradiction
from remote.manifest.manifest_changes import add_segments, advance_cleaned_offset, expire_segments, replace_segments
from remote.segment_entry import SegmentEntry

NOW = 1_000_000
TICK_MS = 1000
RETENTION_TICKS = 2
GRACE_TICKS = 1
RECORD_BYTES, EMPTY_BYTES = 100, 10
NO_HORIZON = -1
MERGE_RECORDS_MAX = 2  # of a cleaned segment that replaces several
LIMITS = PartitionRules(
    cleanup_compact=True,
    retention_ms=None,
    local_retention_ms=None,
    local_retention_bytes=0,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=RETENTION_TICKS * TICK_MS,
    delete_grace_ms=GRACE_TICKS * TICK_MS,
    recompaction_min_reduction=0.0,
    recompaction_min_saved_bytes=1,
)


class Record(NamedTuple):
    key: int
    is_tombstone: bool


class Segment(NamedTuple):
    """A local segment. `records` are pairs (offset, ticks until the delete horizon; NO_HORIZON without one)."""

    base: int
    next: int
    records: tuple[tuple[int, int], ...]


class Row(NamedTuple):
    """A segment entry, in a manifest or in a reader's copy of one. `object` identifies the bytes; 0: deleted."""

    base: int
    next: int
    offsets: tuple[int, ...]
    cleaned: int
    object: int


class Reader(NamedTuple):
    """A reader. `table` has, by key, the offset of its present value, -1 without one. `age` is in ticks."""

    is_bucket_only: bool
    at: int
    table: tuple[int, ...]
    entries: tuple[Row, ...]
    start: int
    end: int
    age: int


class World(NamedTuple):
    """The state of the model. `log` has the appended records that were not lost with a disk.
    The last segment of `local` is active. `pending_deletes` are pairs (object, age in ticks) that the reader may still
    request."""

    log: tuple[Record, ...] = ()
    local: tuple[Segment, ...] = (Segment(0, 0, ()),)
    checkpoint: int = 0
    reach: int = 0
    start: int = 0
    entries: tuple[Row, ...] = ()
    pending_deletes: tuple[tuple[int, int], ...] = ()
    reader: Reader | None = None
    losses: int = 0

    @property
    def end(self) -> int:
        return len(self.log)

    @property
    def bucket_end(self) -> int:
        return max(self.entries[-1].next if self.entries else 0, self.start)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The limits of the searched worlds."""

    offsets: int = 4
    keys: int = 2
    segment_records: int = 1
    readers: tuple[bool, ...] = ()  # is_bucket_only of readers that may start
    losses: int = 0
    has_retention: bool = False


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rule that a test breaks on purpose. The product breaks none."""

    drops_by_time_alone: bool = False
    horizon_at_first_sight: bool = False
    uploads_dirty: bool = False
    commits_one_by_one: bool = False
    drops_before_commit: bool = False
    removes_before_adding: bool = False
    deletes_without_grace: bool = False
    raises_cleaned_too_far: bool = False
    checkpoint_ahead: bool = False
    forgets_reach: bool = False
    replaces_early: bool = False
    vouches_unseen: bool = False


Step = tuple[str, "World | str"]  # the step, and the world after it or the violation


def steps(world: World, scope: Scope, rules: Rules) -> list[Step]:
    """Every possible next step."""
    taken = snapshot(world)
    found = [*_appends(world, scope), *_passes(world, taken, rules), *_copies(world, taken, rules)]
    found += [*_replacements(world, taken, rules), *_drops(world, taken, rules), *_deletions(world, taken, rules)]
    found += [*_losses(world, scope), *_reader_steps(world, scope), *_ticks(world)]
    if scope.has_retention:
        found += [*_advances(world), *_expirations(world, taken)]
    return [(label, _canonical(after) if isinstance(after, World) else after) for label, after in found]


def wrong(world: World) -> str | None:
    """The violation that a reader of the whole world would see now, or None."""
    if any(entry.object == 0 for entry in world.entries):
        return "a row names an object that is gone"
    first_local = world.local[0].base
    both = [at for entry in world.entries for at in entry.offsets if world.start <= at < first_local]
    both += [at for each in world.local for at, _ in each.records if at >= world.start]
    bucket = [at for entry in world.entries for at in entry.offsets if at >= world.start]
    for name, offsets, end in (("both tiers", both, world.end), ("the bucket", bucket, world.bucket_end)):
        if offsets != sorted(set(offsets)):
            return f"{name}: read twice or out of order, {offsets}"
        if said := wrong_table(world, _table_of(world, offsets), end, world.start):
            return f"{name}, read from the start: {said}"
    said = contradiction(manifest(world))
    return f"the head contradicts itself: {said}" if said else None


def wrong_table(world: World, table: tuple[int, ...], end: int, start: int) -> str | None:
    """The error in a reader's table of the log below `end`, or None. A value below `start` may be missing."""
    for key, value in enumerate(table):
        newest = max((at for at, record in enumerate(world.log[:end]) if record.key == key), default=-1)
        expected = -1 if newest < 0 or world.log[newest].is_tombstone else newest
        if value == expected or (value == -1 and 0 <= expected < start):
            continue
        if expected == -1:
            return f"key {_KEYS[key]} came back with the value of offset {value}"
        was = "nothing" if value == -1 else f"the value of offset {value}"
        return f"key {_KEYS[key]} has {was}, its newest is at offset {expected}"
    return None


_KEYS = "abcdefgh"


# -- the inputs of the policies -----------------------------------------------------------------------------------


def snapshot(world: World) -> PartitionSnapshot:
    last = len(world.local) - 1
    return PartitionSnapshot(
        partition=TopicPartition("t", 0),
        rules=LIMITS,
        now_ms=NOW,
        log_start_offset=world.start,
        next_offset=world.end,
        stable_offset=world.end,
        segments=tuple(_info(each, at == last) for at, each in enumerate(world.local)),
        is_tiered=True,
        remote=tuple(map(_remote, world.entries)),
        pending_deletes=_unlinked(world),
        cleaner_offset=world.checkpoint,
        cleaner_reach=world.reach,
    )


def manifest(world: World) -> Manifest:
    return Manifest(
        sequence=1,
        epoch=1,
        commit_id="C",
        parent_id=None,
        writer_id="w",
        topic="t",
        topic_id="A" * 22,
        partition=0,
        log_start_offset=world.start,
        committed_ms=NOW,
        segments=tuple(map(_remote, world.entries)),
        pending_deletes=_unlinked(world),
        properties={},
    )


@lru_cache(maxsize=100_000)
def _info(segment: Segment, is_active: bool) -> SegmentInfo:
    empty = segment.base == segment.next
    return SegmentInfo(
        base_offset=segment.base,
        next_offset=segment.next,
        size_bytes=0 if empty else EMPTY_BYTES + RECORD_BYTES * len(segment.records),
        max_timestamp_ms=NOW,
        is_active=is_active,
    )


@lru_cache(maxsize=100_000)
def _remote(entry: Row) -> SegmentEntry:
    return SegmentEntry(
        ulid=str(entry.object),
        base_offset=entry.base,
        next_offset=entry.next,
        size_bytes=EMPTY_BYTES + RECORD_BYTES * len(entry.offsets),
        stored_bytes=1,
        record_count=len(entry.offsets),
        max_timestamp_ms=NOW,
        min_timestamp_ms=NOW,
        epochs=((0, entry.base),),
        data_crc32c=0,
        data_key=str(entry.object),
        indexes_key=f"{entry.object}.indexes",
        indexes_bytes=1,
        indexes={},
        cleaned_through=entry.cleaned,
    )


def _unlinked(world: World) -> tuple[PendingDelete, ...]:
    return tuple(
        PendingDelete(key=str(name), size_bytes=1, unlinked_ms=NOW - age * TICK_MS, epoch=1)
        for name, age in world.pending_deletes
    )


# -- the possible steps -------------------------------------------------------------------------------------------


def _appends(world: World, scope: Scope) -> list[Step]:
    if world.end == scope.offsets:
        return []
    seen = {record.key for record in world.log}
    found: list[Step] = []
    # keys in the order of first use, because their names do not matter
    for key in range(min(scope.keys, len(seen) + 1)):
        values = [record for record in world.log if record.key == key]
        for is_tombstone in (False, True):
            if is_tombstone and (not values or values[-1].is_tombstone):
                continue  # no value to delete
            active = world.local[-1]
            grown = Segment(active.base, world.end + 1, (*active.records, (world.end, NO_HORIZON)))
            local = (*world.local[:-1], grown)
            if len(grown.records) == scope.segment_records:
                local += (Segment(grown.next, grown.next, ()),)
            name = f"append {_KEYS[key]} {'tombstone' if is_tombstone else 'value'} at offset {world.end}"
            found.append((name, world._replace(log=(*world.log, Record(key, is_tombstone)), local=local)))
    return found


def _passes(world: World, taken: PartitionSnapshot, rules: Rules) -> list[Step]:
    """Cleaner passes: completed, aborted after any swap, or with a buffer for only the first dirty segments."""
    found: list[Step] = []
    for decision in cleanings(taken):
        bound = None if rules.drops_by_time_alone else tombstones_below(taken, is_bucket_known=True)
        closed = [each for each in world.local[:-1] if each.base < each.next]
        dirty = [each for each in closed if decision.first_dirty_offset < each.next <= decision.upto_offset]
        for fitting in range(1, len(dirty) + 1):
            is_all = fitting == len(dirty)
            upto = decision.upto_offset if is_all else dirty[fitting].base
            reach = max(world.reach, decision.upto_offset if is_all else dirty[fitting].next)
            mapped = {world.log[at].key: at for each in dirty[: fitting + 1] for at, _ in each.records}
            judged = [
                Segment(each.base, each.next, kept_records(world, each, mapped, bound, rules))
                for each in closed
                if each.next <= upto
            ]
            for groups, swapped in _swaps(judged, merged(judged, world.bucket_end), is_all):
                is_done = swapped == len(groups)
                checkpoint = upto if is_done or rules.checkpoint_ahead else world.checkpoint
                after = world._replace(
                    local=_swapped(world.local, groups[:swapped]),
                    checkpoint=checkpoint,
                    reach=checkpoint if rules.forgets_reach or rules.checkpoint_ahead else reach,
                )
                how = "" if is_done else f", called off after {swapped} of {len(groups)} swaps"
                how += "" if is_all else f", with room for {fitting} of {len(dirty)} dirty segments"
                found.append((f"clean [{decision.first_dirty_offset}, {upto}){how}", after))
    return found


def kept_records(
    world: World, segment: Segment, mapped: dict[int, int], bound: int | None, rules: Rules
) -> tuple[tuple[int, int], ...]:
    """Kafka's rule. `mapped` has the newest offset per key in the pass; `bound` is `tombstones_below`."""
    return tuple(
        (at, after)
        for at, horizon in segment.records
        if mapped.get(world.log[at].key, -1) <= at
        and (after := _horizon(world.log[at], at, horizon, bound, rules)) is not None
    )


def merged(judged: list[Segment], bucket_end: int) -> list[Segment]:
    """Merge small neighbouring segments. Copied segments are not merged with segments without a copy."""
    groups: list[Segment] = []
    for each in judged:
        before = groups[-1] if groups else None
        if before is None or before.next == bucket_end or len(before.records + each.records) > MERGE_RECORDS_MAX:
            groups.append(each)
        else:
            groups[-1] = Segment(before.base, each.next, before.records + each.records)
    return groups


def _swaps(judged: list[Segment], groups: list[Segment], may_end: bool) -> list[tuple[list[Segment], int]]:
    """Segments unmerged (as if too large) or merged, and the number of them swapped in, lowest first."""
    found = []
    for chosen in [judged] if groups == judged else [judged, groups]:
        found += [(chosen, swapped) for swapped in range(1 if may_end else len(chosen), len(chosen) + 1)]
    return found


def _horizon(record: Record, at: int, horizon: int, bound: int | None, rules: Rules) -> int | None:
    """The delete horizon of a newest record after a pass; None: the record is removed."""
    if not record.is_tombstone:
        return NO_HORIZON
    may_leave = bound is None or at < bound
    if horizon == NO_HORIZON:
        return RETENTION_TICKS if may_leave or rules.horizon_at_first_sight else NO_HORIZON
    return None if horizon == 0 and may_leave else horizon


def _swapped(local: tuple[Segment, ...], groups: list[Segment]) -> tuple[Segment, ...]:
    """Replace the segments in the range of each group by the group."""
    reached = groups[-1].next if groups else 0
    return (*groups, *(each for each in local if each.base >= reached))


def _copies(world: World, taken: PartitionSnapshot, rules: Rules) -> list[Step]:
    decided = [(one.base_offset, one.next_offset) for one in copies(taken)]
    if rules.uploads_dirty:
        closed = [(each.base, each.next) for each in world.local[:-1] if each.base >= world.bucket_end]
        decided = closed[:1]
    if rules.commits_one_by_one:
        decided = decided[:1]
    if not decided:
        return []
    end = decided[-1][1]
    cleaned = world.checkpoint if rules.commits_one_by_one else min(world.checkpoint, end)
    entries = [_entry(world, base, following, cleaned, number) for number, (base, following) in enumerate(decided)]
    after = add_segments([_remote(entry) for entry in entries])(manifest(world))
    return [(f"upload and commit [{decided[0][0]}, {end})", _committed(world, after, entries))]


def _replacements(world: World, taken: PartitionSnapshot, rules: Rules) -> list[Step]:
    if rules.vouches_unseen:
        taken = replace(taken, rules=replace(LIMITS, recompaction_min_reduction=1.0))
    if rules.replaces_early:
        whole = taken.committed[-1].next_offset if taken.committed else 0
        taken = _as_if_all_were_up(taken, whole)
    found: list[Step] = []
    for decision in replacements(taken):
        place = f"[{decision.base_offset}, {decision.next_offset})"
        if isinstance(decision, ReplaceRemote):
            if rules.removes_before_adding:
                gone = expire_segments(decision.ulids, now_ms=NOW)(manifest(world))
                found.append((f"take the rows of {place} out, to add theirs later", _committed(world, gone, [])))
                continue
            cleaned = world.end if rules.raises_cleaned_too_far else world.checkpoint
            entry = _entry(world, decision.base_offset, decision.next_offset, cleaned, 0)
            after = replace_segments(_remote(entry), decision.ulids)(manifest(world))
            found.append((f"replace the rows of {place}", _committed(world, after, [entry])))
            continue
        local = next(each for each in world.local if each.base == decision.base_offset)
        entries = [entry for entry in world.entries if str(entry.object) in decision.ulids]
        if rules.vouches_unseen or sum(len(entry.offsets) for entry in entries) == len(local.records):
            through = world.end if rules.raises_cleaned_too_far else decision.cleaned_through
            after = advance_cleaned_offset(decision.ulids, through)(manifest(world))
            found.append((f"note that {place} is clean through {through}", _committed(world, after, [])))
    return found


def _as_if_all_were_up(taken: PartitionSnapshot, end: int) -> PartitionSnapshot:
    """Hide the segments without a copy, and keep the checkpoint."""
    inside = tuple(each for each in taken.segments if each.next_offset <= end)
    active = replace(taken.segments[-1], base_offset=end)
    return replace(taken, segments=(*inside, active), cleaner_reach=0)


def _drops(world: World, taken: PartitionSnapshot, rules: Rules) -> list[Step]:
    count = len(local_drops(taken)[:1]) or int(rules.drops_before_commit and len(world.local) > 1)
    if not count:
        return []
    gone = world.local[0]
    return [(f"drop the disk's [{gone.base}, {gone.next})", world._replace(local=world.local[1:]))]


def _advances(world: World) -> list[Step]:
    following = next((entry.next for entry in world.entries if entry.next > world.start), None)
    if following is None:
        return []
    return [(f"raise the log start to {following}", world._replace(start=following))]


def _expirations(world: World, taken: PartitionSnapshot) -> list[Step]:
    ulids = [one.ulid for one in expirations(taken)]
    if not ulids:
        return []
    after = expire_segments(ulids, now_ms=NOW)(manifest(world))
    return [(f"expire {len(ulids)} rows", _committed(world, after, []))]


def _deletions(world: World, taken: PartitionSnapshot, rules: Rules) -> list[Step]:
    """Delete objects. Deleting an object that a reader within the grace period may request is a violation."""
    due = {one.key for one in deletions(taken)}
    if rules.deletes_without_grace:
        due = {str(name) for name, _ in world.pending_deletes}
    found: list[Step] = []
    for name, age in world.pending_deletes:
        if str(name) in due:
            rest = tuple(each for each in world.pending_deletes if each[0] != name)
            label = f"delete an object unlinked {age} ticks ago"
            if age < GRACE_TICKS:
                found.append((label, "a reader within the grace time meets a missing object"))
            else:
                found.append((label, world._replace(pending_deletes=rest)))
    return found


def _losses(world: World, scope: Scope) -> list[Step]:
    """Lose the disk. The new log begins at the end of the remote tier; higher records never existed."""
    if world.losses == scope.losses:
        return []
    end = world.bucket_end
    reader = world.reader if world.reader is not None and world.reader.is_bucket_only else None
    fresh = World(
        log=world.log[:end],
        local=(Segment(end, end, ()),),
        start=world.start,
        entries=world.entries,
        pending_deletes=world.pending_deletes,
        reader=reader,
        losses=world.losses + 1,
    )
    return [(f"lose the disk, begin anew at {end}", fresh)]


def _ticks(world: World) -> list[Step]:
    reader = world.reader
    if reader is not None:
        reader = reader._replace(age=reader.age + 1) if reader.age + 1 < RETENTION_TICKS else None
    local = tuple(
        each._replace(records=tuple((at, horizon - 1 if horizon > 0 else horizon) for at, horizon in each.records))
        for each in world.local
    )
    pending_deletes = tuple((name, min(age + 1, GRACE_TICKS)) for name, age in world.pending_deletes)
    after = world._replace(local=local, pending_deletes=pending_deletes, reader=reader)
    return [] if after == world else [("half of delete.retention.ms goes by", after)]


# -- the reader ---------------------------------------------------------------------------------------------------


def _reader_steps(world: World, scope: Scope) -> list[Step]:
    reader = world.reader
    if reader is None:
        empty = (-1,) * scope.keys
        return [
            (
                f"a reader of {'the bucket' if alone else 'both tiers'} begins at {world.start}",
                world._replace(
                    reader=Reader(alone, world.start, empty, world.entries, world.start, world.bucket_end, 0)
                ),
            )
            for alone in scope.readers
            if world.entries
        ]
    if reader.is_bucket_only:
        return _remote_step(world, reader)
    if reader.at >= world.local[0].base:
        return _local_step(world, reader)
    return _remote_step(world, reader)


def _local_step(world: World, reader: Reader) -> list[Step]:
    if reader.at < world.start:
        return [("the reader is told that its offset is out of range", world._replace(reader=None))]
    found = next((at for each in world.local for at, _ in each.records if at >= reader.at), None)
    label = "the reader reads to the end" if found is None else f"the reader reads offset {found} from the disk"
    return [_read(world, reader, label, found, world.end)]


def _remote_step(world: World, reader: Reader) -> list[Step]:
    label = ""
    local_start = None if reader.is_bucket_only else world.local[0].base
    if local_start is not None and reader.end < local_start:
        reader, label = _with_newest_head(world, reader), "with the newest head "
    entry = _row_at(reader)
    if entry is not None and not _is_there(world, entry):
        reader, label = _with_newest_head(world, reader), "after a 404, with the newest head, "
        if reader.at < world.start:
            return [("the reader is told that its offset is out of range", world._replace(reader=None))]
        entry = _row_at(reader)
        if entry is not None and not _is_there(world, entry):
            return [("the reader asks again", "an object that the newest head names is gone")]
    if entry is None or (local_start is not None and reader.at < local_start <= entry.base):
        if reader.at < reader.start:
            return [("the reader is told that its offset is out of range", world._replace(reader=None))]
        return [_read(world, reader, f"{label}the reader passes over to the disk", None, local_start or reader.end)]
    found = next((at for at in entry.offsets if at >= reader.at), None)
    what = "to the end of a row" if found is None else f"offset {found} from the bucket"
    return [_read(world, reader, f"{label}the reader reads {what}", found, entry.next)]


def _row_at(reader: Reader) -> Row | None:
    wanted = max(reader.at, reader.start)
    return next((entry for entry in reader.entries if entry.next > wanted), None)


def _with_newest_head(world: World, reader: Reader) -> Reader:
    return reader._replace(entries=world.entries, start=world.start, end=world.bucket_end)


def _is_there(world: World, entry: Row) -> bool:
    names = {each.object for each in world.entries} | {name for name, _ in world.pending_deletes}
    return entry.object in names


def _read(world: World, reader: Reader, label: str, found: int | None, following: int) -> Step:
    """The reader after one record, or at `following` without one. At its end the reader is checked and removed."""
    table = reader.table
    if found is not None:
        record = world.log[found]
        table = (*table[: record.key], -1 if record.is_tombstone else found, *table[record.key + 1 :])
    at = following if found is None else found + 1
    end = reader.end if reader.is_bucket_only else world.end
    if at < end:
        return label, world._replace(reader=reader._replace(at=at, table=table))
    said = wrong_table(world, table, end, max(world.start, reader.start))
    return label, f"the reader is done: {said}" if said else world._replace(reader=None)


# -- helpers ------------------------------------------------------------------------------------------------------


def _entry(world: World, base: int, following: int, cleaned: int, number: int) -> Row:
    """The entry of a local segment, with an object name that was never used."""
    local = next(each for each in world.local if each.base == base)
    used = [entry.object for entry in world.entries] + [name for name, _ in world.pending_deletes]
    used += [entry.object for entry in world.reader.entries] if world.reader is not None else []
    return Row(base, following, tuple(at for at, _ in local.records), cleaned, max(used, default=0) + 1 + number)


def _committed(world: World, after: Manifest, fresh: list[Row]) -> World:
    """The world with that manifest. Objects that this commit unlinked have age 0."""
    known = {entry.object: entry for entry in (*world.entries, *fresh)}
    entries = tuple(known[int(each.ulid)]._replace(cleaned=each.cleaned_through or 0) for each in after.segments)
    ages = dict(world.pending_deletes)
    names = [int(each.key) for each in after.pending_deletes if each.key.isdigit()]
    return world._replace(entries=entries, pending_deletes=tuple((name, ages.get(name, 0)) for name in names))


def _table_of(world: World, offsets: list[int]) -> tuple[int, ...]:
    keys = max((record.key for record in world.log), default=-1) + 1
    table = [-1] * keys
    for at in offsets:
        record = world.log[at]
        table[record.key] = -1 if record.is_tombstone else at
    return tuple(table)


def _canonical(world: World) -> World:
    """Rename objects in the order of their first use, and keep only pending deletes that the reader may request."""
    reader = world.reader
    asked = {entry.object for entry in reader.entries if entry.next > reader.at} if reader is not None else set()
    names: dict[int, int] = {0: 0}
    alive = {entry.object for entry in world.entries} | {name for name, _ in world.pending_deletes}
    for entry in world.entries:
        names.setdefault(entry.object, len(names))
    if reader is not None:
        entries = []
        for entry in reader.entries:
            if entry.next > reader.at:
                name = names.setdefault(entry.object, len(names)) if entry.object in alive else 0
                entries.append(entry._replace(object=name, cleaned=0))
        reader = reader._replace(entries=tuple(entries))
    pending_deletes = tuple(sorted((names[name], age) for name, age in world.pending_deletes if name in asked))
    rows_now = tuple(entry._replace(object=names[entry.object]) for entry in world.entries)
    return world._replace(entries=rows_now, pending_deletes=pending_deletes, reader=reader)
