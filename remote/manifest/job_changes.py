"""The changes that jobs commit: rows in the place of others, and rows at the end. Pure functions, as in
`remote.manifest.manifest_changes`; each leaves a note in the head, and a head that has the note already is given back
as it is.

A replacement is judged group by group, against the head it lands on (P11: what comes in tiles exactly what leaves):

| the group's entries in that head | the group is | what becomes of its new entries |
|---|---|---|
| all there | `IN_PLACE` | they replace the old entries |
| the oldest expired, the others there | `IN_PLACE` | they replace the entries that are left |
| none there, the new entries are | `COMMITTED` | nothing: this commit was made before |
| all expired | `EXPIRED` | their objects are listed for deletion |
| some replaced by another writer or job | `LOST` | their objects are listed for deletion |

A new entry that replaces what an expiry left begins below the log start, as an entry does after DeleteRecords: readers
never see its expired records, and no expiry is undone. Groups are independent, which is sound for a compaction: a
record is removed only because a newer one of its key is there, and the newer one leaves the bucket only for one that is
newer still, or by retention, which takes the older ones first. Not so for tombstones: see
`remote.manifest.tombstone_bound`.

The note of a job that lost a group is not written: the job stays due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from local.errors import Conflict, InvalidRequest
from remote.manifest.manifest import Head, JobNote, UnlinkedObject
from remote.manifest.manifest_changes import Change, objects_of
from remote.manifest.tombstone_bound import tombstone_bound
from remote.segment_entry import RemoteSegment

JOBS_KEPT = 64  # notes in a head; a job that is run again after so many others is not recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """`rows` that tile exactly the rows named `ulids`, neighbours both."""

    ulids: tuple[str, ...]
    rows: tuple[RemoteSegment, ...]


class Fate(Enum):
    """What becomes of a group of a replacement; see the table above."""

    IN_PLACE = "in place"
    COMMITTED = "committed"
    EXPIRED = "expired"
    LOST = "lost"


def find_job(head: Head, job_id: str) -> JobNote | None:
    """What a job has committed here, as far as it is still known."""
    return next((note for note in head.jobs if note.job_id == job_id), None)


def is_done(head: Head, note: JobNote) -> bool:
    """Whether the head has this turn of a job, or a later one."""
    known = find_job(head, note.job_id)
    return known is not None and known.turn >= note.turn


def append_rows(rows: Sequence[RemoteSegment], *, start_offset: int, note: JobNote) -> Change:
    """Add a job's segments at the end of a partition that ends at `start_offset`, all of them or none.

    Raises Conflict when it ends elsewhere (the offsets were given to others meanwhile), and for objects that were given
    up for deletion; InvalidRequest while the tier is being given up: all rows leave then, those as well.
    """

    def change(head: Head) -> Head:
        if is_done(head, note):
            return head
        if head.given_up:
            raise InvalidRequest("adding a job's segments, what the tier held is being given up", job=note.job_id)
        reached = max(head.next_offset, head.highest_next_offset)
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
    vouched: Sequence[RemoteSegment] = (),
    cleaned_through: int,
    bound: int | None,
    note: JobNote,
    keeps_maker: bool = False,
    is_whole: bool = True,
) -> Change:
    """Put the rows of each group in the place of those it tiles, and note that the `vouched` ones are clean as well.

    `note` is written unless a group or a vouched row was lost, or the replacements are not the `is_whole` job.

    `bound` is the offset below which the job took tombstones and markers away, or gave them the time after which they
    go (I5; None: the bucket held no row, so there was nothing to take). Whether it still holds is looked at in the head
    that is changed: raises Conflict when a row below it, or a view, may hold older records again. With `keeps_maker`
    the rows have the very same records as those they replace, and whoever made those still did (`made_by`). Raises
    InvalidRequest for groups that do not tile, or whose objects have the name of others.
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
        is_done_now = is_whole and Fate.LOST not in fates and not lost_rows(head, vouched, head.segments)
        jobs = _noted(head, note) if is_done_now else head.jobs
        after = replace(head, segments=tuple(segments), unlinked=(*head.unlinked, *unlinked), jobs=jobs)
        return head if after == head else after

    return change


def fate_of(rows: Sequence[RemoteSegment], log_start_offset: int, group: Replacement) -> Fate:
    """What a head with these `rows` (all that touch the group's offsets) makes of a group."""
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


def lost_rows(head: Head, planned: Sequence[RemoteSegment], rows: Sequence[RemoteSegment]) -> list[RemoteSegment]:
    """Those of the `planned` that are not among `rows` and did not expire: another writer or job replaced them."""
    there = {row.ulid for row in rows}
    return [row for row in planned if row.ulid not in there and row.next_offset > head.log_start_offset]


def _replaced(
    head: Head, replacements: Sequence[Replacement], fates: Sequence[Fate], note: JobNote, *, keeps_maker: bool
) -> tuple[list[RemoteSegment], list[UnlinkedObject]]:
    """(the head's rows with those of the groups, what is to be deleted for it)."""
    at = {row.ulid: number for number, row in enumerate(head.segments)}
    known = {key for row in head.segments for key in (row.data_key, row.indexes_key)}
    listed = {each.key for each in head.unlinked}
    put: dict[int, tuple[RemoteSegment, ...]] = {}  # where rows are taken out, what is put there
    unlinked: list[UnlinkedObject] = []

    def unlink(rows: Sequence[RemoteSegment]) -> None:
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
    rows: Sequence[RemoteSegment], old: Sequence[RemoteSegment], note: JobNote, *, keeps_maker: bool
) -> tuple[RemoteSegment, ...]:
    makers = {row.made_by for row in old}
    made_by = makers.pop() if keeps_maker and len(makers) == 1 else note.job_id
    committed_ms = max(row.committed_ms for row in old)
    return tuple(replace(row, committed_ms=committed_ms, made_by=made_by) for row in rows)


def _check_neighbours(rows: Sequence[RemoteSegment]) -> None:
    ends = [row.next_offset for row in rows[:-1]]
    if not rows or ends != [row.base_offset for row in rows[1:]]:
        raise InvalidRequest("replacing a job's rows, those of a group are no neighbours", rows=len(rows))


def _check_tiled(old: Sequence[RemoteSegment], group: Replacement, note: JobNote) -> None:
    """`old` are the group's rows, or the last of them where the others expired."""
    is_same = tuple(row.ulid for row in old) == group.ulids[-len(old) :]
    is_neighbours = [row.next_offset for row in old[:-1]] == [row.base_offset for row in old[1:]]
    base = group.rows[0].base_offset
    begins = base == old[0].base_offset if len(old) == len(group.ulids) else base < old[0].base_offset
    if not (is_same and is_neighbours and begins and old[-1].next_offset == group.rows[-1].next_offset):
        facts = {"job": note.job_id, "base_offset": base, "next_offset": group.rows[-1].next_offset}
        raise InvalidRequest("replacing a job's rows, they do not tile those they are for", **facts)


def _raised(row: RemoteSegment, cleaned_through: int) -> RemoteSegment:
    return replace(row, cleaned_through=max(row.cleaned_through or 0, cleaned_through))


def _noted(head: Head, note: JobNote) -> tuple[JobNote, ...]:
    others = [each for each in head.jobs if each.job_id != note.job_id]
    return (*others[-(JOBS_KEPT - 1) :], replace(note, committed_ms=head.committed_ms))
