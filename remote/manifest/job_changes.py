"""Changes that jobs commit: replace entries by others, and append entries.

Pure functions, as in `remote.manifest.manifest_changes`. Each records a note in the manifest. A manifest that has the
note already is returned unmodified.

A replacement is judged group by group against the manifest it is applied to (P11: the new entries tile exactly the
entries that they replace):

| the group's entries in that manifest | the group is | its new entries |
|---|---|---|
| all exist | `IN_PLACE` | replace the old entries |
| the oldest expired, the others exist | `IN_PLACE` | replace the remaining entries |
| none exists, the new entries do | `COMMITTED` | no change: this commit was made before |
| all expired | `EXPIRED` | their objects become pending deletes |
| some replaced by another writer or job | `LOST` | their objects become pending deletes |

A new entry that replaces the rest after an expiry begins below the log start offset, as an entry does after
DeleteRecords. Readers never see its expired records, and no expiry is undone.

Groups are independent, which is sound for a compaction: it removes a record only because a newer record of its key
exists. The newer record leaves the bucket only for an even newer one, or by retention, which expires older records
first. This does not hold for tombstones: see `remote.manifest.tombstone_bound`.

A job that lost a group gets no note, so the job stays due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from local.errors import Conflict, InvalidRequest
from remote.manifest.manifest import AppliedJob, Head, PendingDelete
from remote.manifest.manifest_changes import Change, objects_of
from remote.manifest.tombstone_bound import tombstone_bound
from remote.segment_entry import SegmentEntry

JOBS_KEPT = 64  # notes in a manifest; a job that is repeated after this many others is not recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """`rows` that tile exactly the entries named `ulids`; both are contiguous."""

    ulids: tuple[str, ...]
    rows: tuple[SegmentEntry, ...]


class Fate(Enum):
    """Outcome for a group of a replacement; see the table above."""

    IN_PLACE = "in place"
    COMMITTED = "committed"
    EXPIRED = "expired"
    LOST = "lost"


def find_job(head: Head, job_id: str) -> AppliedJob | None:
    """The note of a job; None if there is none or it was removed (`JOBS_KEPT`)."""
    return next((note for note in head.jobs if note.job_id == job_id), None)


def is_done(head: Head, note: AppliedJob) -> bool:
    """Whether the manifest has this turn of a job, or a later one."""
    known = find_job(head, note.job_id)
    return known is not None and known.turn >= note.turn


def append_entries(rows: Sequence[SegmentEntry], *, start_offset: int, note: AppliedJob) -> Change:
    """Append all of a job's segments to a partition that ends at `start_offset`, or none.

    Raises Conflict if the partition ends elsewhere (another commit took the offsets), or if the objects are pending
    deletes. Raises InvalidRequest while the tier is being given up, because then all entries expire.
    """

    def change(head: Head) -> Head:
        if is_done(head, note):
            return head
        if head.given_up:
            raise InvalidRequest("adding a job's segments, what the tier held is being given up", job=note.job_id)
        reached = max(head.next_offset, head.max_end_offset)
        if reached != start_offset:
            facts = {"job": note.job_id, "expected": start_offset, "found": reached}
            raise Conflict("adding a job's segments, the partition does not end where it did", **facts)
        if not {each.key for each in head.unlinked}.isdisjoint(row.data_key for row in rows):
            raise Conflict("adding a job's segments, they were given up for deletion", job=note.job_id)
        fresh = [replace(row, committed_ms=head.committed_ms, made_by=note.job_id) for row in rows]
        return replace(head, segments=(*head.segments, *fresh), jobs=_noted(head, note))

    return change


def replace_tiled(
    replacements: Sequence[Replacement],
    *,
    vouched: Sequence[SegmentEntry] = (),
    cleaned_through: int,
    bound: int | None,
    note: AppliedJob,
    keeps_maker: bool = False,
    is_whole: bool = True,
) -> Change:
    """Replace the entries that each group tiles, and record that the `vouched` entries are clean.

    `note` is recorded unless a group or a vouched entry was lost, or the replacements are not the `is_whole` job.

    `bound` is the offset below which the job removed tombstones and markers, or set their delete horizon (I5; None: the
    bucket had no entry, so there was nothing to remove). The changed manifest must still allow it.

    With `keeps_maker` the new entries have the very same records as the old ones, and keep their `made_by`.

    Raises Conflict if an entry or a view below `bound` may hold older records again. Raises InvalidRequest if a group
    does not tile, or its objects have the names of others.
    """
    for each in replacements:
        _check_neighbours(each.rows)
    names = frozenset(row.ulid for row in vouched)

    def change(head: Head) -> Head:
        if is_done(head, note):
            return head
        found = tombstone_bound(head.parts, head.views, head.log_start_offset)
        if found is not None and bound is not None and found < bound:
            facts = {"job": note.job_id, "below": bound, "now": found}
            raise Conflict("replacing a job's rows, older records may be back below its tombstones", **facts)
        fates = [fate_of(head.segments, head.log_start_offset, group) for group in replacements]
        segments, unlinked = _replaced(head, replacements, fates, note, keeps_maker=keeps_maker)
        segments = [_raised(row, cleaned_through) if row.ulid in names else row for row in segments]
        is_done_now = is_whole and Fate.LOST not in fates and not lost_entries(head, vouched, head.segments)
        jobs = _noted(head, note) if is_done_now else head.jobs
        after = replace(head, segments=tuple(segments), unlinked=(*head.unlinked, *unlinked), jobs=jobs)
        return head if after == head else after

    return change


def fate_of(rows: Sequence[SegmentEntry], log_start_offset: int, group: Replacement) -> Fate:
    """The outcome for a group in a manifest with these `rows` (all that overlap the group's offsets)."""
    there = {row.ulid: row for row in rows}
    left = [there[ulid] for ulid in group.ulids if ulid in there]
    if not left:
        if any(row.ulid in there for row in group.rows):
            return Fate.COMMITTED
        return Fate.EXPIRED if group.rows[-1].next_offset <= log_start_offset else Fate.LOST
    if len(left) == len(group.ulids):
        return Fate.IN_PLACE
    is_rest = tuple(row.ulid for row in left) == group.ulids[-len(left) :]
    return Fate.IN_PLACE if is_rest and left[0].base_offset <= log_start_offset else Fate.LOST


def lost_entries(head: Head, planned: Sequence[SegmentEntry], rows: Sequence[SegmentEntry]) -> list[SegmentEntry]:
    """The `planned` entries that are not in `rows` and did not expire: another process replaced them."""
    there = {row.ulid for row in rows}
    return [row for row in planned if row.ulid not in there and row.next_offset > head.log_start_offset]


def _replaced(
    head: Head, replacements: Sequence[Replacement], fates: Sequence[Fate], note: AppliedJob, *, keeps_maker: bool
) -> tuple[list[SegmentEntry], list[PendingDelete]]:
    """(the manifest's entries after the replacement, the new pending deletes)."""
    at = {row.ulid: number for number, row in enumerate(head.segments)}
    known = {key for row in head.segments for key in (row.data_key, row.indexes_key)}
    listed = {each.key for each in head.unlinked}
    put: dict[int, tuple[SegmentEntry, ...]] = {}  # position of a removed entry -> the entries in its place
    unlinked: list[PendingDelete] = []

    def unlink(rows: Sequence[SegmentEntry]) -> None:
        objects = [each for row in rows for each in objects_of(row, head.committed_ms, head.epoch)]
        unlinked.extend(each for each in objects if each.key not in listed)

    for group, fate in zip(replacements, fates, strict=True):
        if fate is Fate.COMMITTED:
            continue
        named = known | listed if fate is Fate.IN_PLACE else known
        if not named.isdisjoint(row.data_key for row in group.rows):
            raise InvalidRequest("replacing a job's rows, an object has the name of another", job=note.job_id)
        if fate is not Fate.IN_PLACE:
            unlink(group.rows)
            continue
        places = [at[ulid] for ulid in group.ulids if ulid in at]
        old = head.segments[places[0] : places[-1] + 1]
        _check_tiled(old, group, note)
        rows = [row for row in group.rows if row.next_offset > old[0].base_offset]
        unlink(group.rows[: len(group.rows) - len(rows)])
        put |= dict.fromkeys(places, ()) | {places[0]: _in_place(rows, old, note, keeps_maker=keeps_maker)}
        unlink(old)
    kept = [row for number, one in enumerate(head.segments) for row in put.get(number, (one,))]
    return kept, unlinked


def _in_place(
    rows: Sequence[SegmentEntry], old: Sequence[SegmentEntry], note: AppliedJob, *, keeps_maker: bool
) -> tuple[SegmentEntry, ...]:
    makers = {row.made_by for row in old}
    made_by = makers.pop() if keeps_maker and len(makers) == 1 else note.job_id
    committed_ms = max(row.committed_ms for row in old)
    return tuple(replace(row, committed_ms=committed_ms, made_by=made_by) for row in rows)


def _check_neighbours(rows: Sequence[SegmentEntry]) -> None:
    ends = [row.next_offset for row in rows[:-1]]
    if not rows or ends != [row.base_offset for row in rows[1:]]:
        raise InvalidRequest("replacing a job's rows, those of a group are no neighbours", rows=len(rows))


def _check_tiled(old: Sequence[SegmentEntry], group: Replacement, note: AppliedJob) -> None:
    """Raise InvalidRequest unless the group tiles `old`: its entries, or the unexpired rest of them."""
    is_same = tuple(row.ulid for row in old) == group.ulids[-len(old) :]
    is_neighbours = [row.next_offset for row in old[:-1]] == [row.base_offset for row in old[1:]]
    base = group.rows[0].base_offset
    begins = base == old[0].base_offset if len(old) == len(group.ulids) else base < old[0].base_offset
    if not (is_same and is_neighbours and begins and old[-1].next_offset == group.rows[-1].next_offset):
        facts = {"job": note.job_id, "base_offset": base, "next_offset": group.rows[-1].next_offset}
        raise InvalidRequest("replacing a job's rows, they do not tile those they are for", **facts)


def _raised(row: SegmentEntry, cleaned_through: int) -> SegmentEntry:
    return replace(row, cleaned_through=max(row.cleaned_through or 0, cleaned_through))


def _noted(head: Head, note: AppliedJob) -> tuple[AppliedJob, ...]:
    others = [each for each in head.jobs if each.job_id != note.job_id]
    return (*others[-(JOBS_KEPT - 1) :], replace(note, committed_ms=head.committed_ms))
