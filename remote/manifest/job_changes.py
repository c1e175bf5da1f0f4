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
from remote.manifest.manifest import AppliedJob, Manifest, PendingDelete
from remote.manifest.manifest_changes import Change, objects_of
from remote.manifest.tombstone_bound import tombstone_bound
from remote.segment_entry import SegmentEntry

JOBS_MAX = 64  # notes in a manifest; a job that is repeated after this many others is not recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """`entries` that tile exactly the entries named `ulids`; both are contiguous."""

    ulids: tuple[str, ...]
    entries: tuple[SegmentEntry, ...]


class GroupOutcome(Enum):
    """Outcome for a group of a replacement; see the table above."""

    IN_PLACE = "in place"
    COMMITTED = "committed"
    EXPIRED = "expired"
    LOST = "lost"


def find_job(manifest: Manifest, job_id: str) -> AppliedJob | None:
    """The note of a job; None if there is none or it was removed (`JOBS_MAX`)."""
    return next((note for note in manifest.jobs if note.job_id == job_id), None)


def is_done(manifest: Manifest, note: AppliedJob) -> bool:
    """Whether the manifest records this turn of the job or a later one."""
    known = find_job(manifest, note.job_id)
    return known is not None and known.turn >= note.turn


def append_entries(entries: Sequence[SegmentEntry], *, start_offset: int, note: AppliedJob) -> Change:
    """Append all of a job's segments to a partition that ends at `start_offset`, or none.

    Raises Conflict if the partition ends elsewhere (another commit took the offsets), or if the objects are pending
    deletes. Raises InvalidRequest while the tier is being given up, because then all entries expire.
    """

    def change(manifest: Manifest) -> Manifest:
        if is_done(manifest, note):
            return manifest
        if manifest.tier_disabled:
            raise InvalidRequest("cannot add segments of a job, the remote tier is being disabled", job=note.job_id)
        reached = max(manifest.next_offset, manifest.max_end_offset)
        if reached != start_offset:
            facts = {"job": note.job_id, "expected": start_offset, "found": reached}
            raise Conflict("cannot add segments of a job, the log end offset of the partition changed", **facts)
        if not {each.key for each in manifest.pending_deletes}.isdisjoint(entry.data_key for entry in entries):
            raise Conflict("cannot add segments of a job, they were unlinked", job=note.job_id)
        fresh = [replace(entry, committed_ms=manifest.committed_ms, made_by=note.job_id) for entry in entries]
        return replace(manifest, segments=(*manifest.segments, *fresh), jobs=_noted(manifest, note))

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

    With `keeps_maker` the new entries have the very same records as the old ones, and keep their `made_by`. So does an
    entry in place of a redacted one: its records must not come back from a disk (`policies.recompaction`).

    Raises Conflict if an entry or a view below `bound` may hold older records again. Raises InvalidRequest if a group
    does not tile, or its objects have the names of others.
    """
    for each in replacements:
        _check_neighbours(each.entries)
    names = frozenset(entry.ulid for entry in vouched)

    def change(manifest: Manifest) -> Manifest:
        if is_done(manifest, note):
            return manifest
        found = tombstone_bound(manifest.parts, manifest.views, manifest.log_start_offset)
        if found is not None and bound is not None and found < bound:
            facts = {"job": note.job_id, "below": bound, "now": found}
            raise Conflict("cannot replace segments, older records below its tombstones may have been added", **facts)
        outcomes = [outcome_of_group(manifest.segments, manifest.log_start_offset, group) for group in replacements]
        segments, pending_deletes = _replaced(manifest, replacements, outcomes, note, keeps_maker=keeps_maker)
        segments = [_raised(entry, cleaned_through) if entry.ulid in names else entry for entry in segments]
        is_done_now = (
            is_whole and GroupOutcome.LOST not in outcomes and not lost_entries(manifest, vouched, manifest.segments)
        )
        jobs = _noted(manifest, note) if is_done_now else manifest.jobs
        after = replace(
            manifest, segments=tuple(segments), pending_deletes=(*manifest.pending_deletes, *pending_deletes), jobs=jobs
        )
        return manifest if after == manifest else after

    return change


def outcome_of_group(entries: Sequence[SegmentEntry], log_start_offset: int, group: Replacement) -> GroupOutcome:
    """The outcome for a group in a manifest with these `entries` (all that overlap the group's offsets)."""
    there = {entry.ulid: entry for entry in entries}
    remaining = [there[ulid] for ulid in group.ulids if ulid in there]
    if not remaining:
        if any(entry.ulid in there for entry in group.entries):
            return GroupOutcome.COMMITTED
        return GroupOutcome.EXPIRED if group.entries[-1].next_offset <= log_start_offset else GroupOutcome.LOST
    if len(remaining) == len(group.ulids):
        return GroupOutcome.IN_PLACE
    is_rest = tuple(entry.ulid for entry in remaining) == group.ulids[-len(remaining) :]
    return GroupOutcome.IN_PLACE if is_rest and remaining[0].base_offset <= log_start_offset else GroupOutcome.LOST


def lost_entries(
    manifest: Manifest, planned: Sequence[SegmentEntry], entries: Sequence[SegmentEntry]
) -> list[SegmentEntry]:
    """The `planned` entries that are not in `entries` and did not expire: another process replaced them."""
    there = {entry.ulid for entry in entries}
    return [entry for entry in planned if entry.ulid not in there and entry.next_offset > manifest.log_start_offset]


def _replaced(
    manifest: Manifest,
    replacements: Sequence[Replacement],
    outcomes: Sequence[GroupOutcome],
    note: AppliedJob,
    *,
    keeps_maker: bool,
) -> tuple[list[SegmentEntry], list[PendingDelete]]:
    """(the manifest's entries after the replacement, the new pending deletes)."""
    at = {entry.ulid: number for number, entry in enumerate(manifest.segments)}
    known = {key for entry in manifest.segments for key in (entry.data_key, entry.indexes_key)}
    listed = {each.key for each in manifest.pending_deletes}
    put: dict[int, tuple[SegmentEntry, ...]] = {}  # position of a removed entry -> the entries in its place
    pending_deletes: list[PendingDelete] = []

    def unlink(entries: Sequence[SegmentEntry]) -> None:
        objects = [each for entry in entries for each in objects_of(entry, manifest.committed_ms, manifest.epoch)]
        pending_deletes.extend(each for each in objects if each.key not in listed)

    for group, outcome in zip(replacements, outcomes, strict=True):
        if outcome is GroupOutcome.COMMITTED:
            continue
        named = known | listed if outcome is GroupOutcome.IN_PLACE else known
        if not named.isdisjoint(entry.data_key for entry in group.entries):
            raise InvalidRequest("cannot replace segments, an object name is already in use", job=note.job_id)
        if outcome is not GroupOutcome.IN_PLACE:
            unlink(group.entries)
            continue
        places = [at[ulid] for ulid in group.ulids if ulid in at]
        old = manifest.segments[places[0] : places[-1] + 1]
        _check_tiled(old, group, note)
        entries = [entry for entry in group.entries if entry.next_offset > old[0].base_offset]
        unlink(group.entries[: len(group.entries) - len(entries)])
        put |= dict.fromkeys(places, ()) | {places[0]: _in_place(entries, old, note, keeps_maker=keeps_maker)}
        unlink(old)
    entries_after = [entry for number, one in enumerate(manifest.segments) for entry in put.get(number, (one,))]
    return entries_after, pending_deletes


def _in_place(
    entries: Sequence[SegmentEntry], old: Sequence[SegmentEntry], note: AppliedJob, *, keeps_maker: bool
) -> tuple[SegmentEntry, ...]:
    makers = {entry.made_by for entry in old}
    redaction = next((entry.made_by for entry in old if entry.is_redacted), None)
    made_by = redaction or (makers.pop() if keeps_maker and len(makers) == 1 else note.job_id)
    committed_ms = max(entry.committed_ms for entry in old)
    return tuple(replace(entry, committed_ms=committed_ms, made_by=made_by) for entry in entries)


def _check_neighbours(entries: Sequence[SegmentEntry]) -> None:
    ends = [entry.next_offset for entry in entries[:-1]]
    if not entries or ends != [entry.base_offset for entry in entries[1:]]:
        raise InvalidRequest("cannot replace segments, the segments of a group are not adjacent", entries=len(entries))


def _check_tiled(old: Sequence[SegmentEntry], group: Replacement, note: AppliedJob) -> None:
    """Raise InvalidRequest unless the group covers exactly the offsets of `old`.

    `old` are the entries that the group replaces, without those that expired since.
    """
    is_same = tuple(entry.ulid for entry in old) == group.ulids[-len(old) :]
    is_neighbours = [entry.next_offset for entry in old[:-1]] == [entry.base_offset for entry in old[1:]]
    base = group.entries[0].base_offset
    begins = base == old[0].base_offset if len(old) == len(group.ulids) else base < old[0].base_offset
    if not (is_same and is_neighbours and begins and old[-1].next_offset == group.entries[-1].next_offset):
        facts = {"job": note.job_id, "base_offset": base, "next_offset": group.entries[-1].next_offset}
        raise InvalidRequest(
            "cannot replace segments, the new segments do not cover the offsets of the old ones", **facts
        )


def _raised(entry: SegmentEntry, cleaned_through: int) -> SegmentEntry:
    return replace(entry, cleaned_through=max(entry.cleaned_through or 0, cleaned_through))


def _noted(manifest: Manifest, note: AppliedJob) -> tuple[AppliedJob, ...]:
    others = [each for each in manifest.jobs if each.job_id != note.job_id]
    return (*others[-(JOBS_MAX - 1) :], replace(note, committed_ms=manifest.committed_ms))
