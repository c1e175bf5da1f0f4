"""Changes of a writer: pure functions from a manifest to the next, for `MetadataLog.commit`.

A commit with a lost reply may be repeated on a manifest that already has the change: each change returns such a
manifest unmodified (the same object). A change sees only the manifest's own entries: `commit` opens the pages first.

**Jobs** replace entries by others, and append entries. Each change records a note, and does not modify a manifest that
already has the note. A replacement is judged group by group against the manifest it is applied to (P11: the new
entries tile exactly the entries that they replace):

| the group's entries in that manifest | the group is | its new entries |
|---|---|---|
| all exist | `IN_PLACE` | replace the old entries |
| the oldest expired, the others exist | `IN_PLACE` | replace the remaining entries |
| none exists, the new entries do | `COMMITTED` | no change: this commit was made before |
| all expired | `EXPIRED` | their objects become pending deletes |
| some replaced by another writer or job | `LOST` | their objects become pending deletes |

A new entry that replaces the rest after an expiry begins below the log start offset, as after DeleteRecords.

Groups are independent, which is sound for a compaction: it removes a record only because a newer record of its key
exists, which leaves the bucket only for an even newer one, or by retention, which expires older records first. This
does not hold for tombstones: see `remote.manifest.view.tombstone_bound`. A job that lost a group gets no note, so the
job stays due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from local.errors import Conflict, InvalidRequest
from local.log.leader_epochs import EpochRange, joined_ranges, ranges_outside
from remote.keys import parse_epoch
from remote.manifest.manifest import AppliedJob, Manifest, PendingDelete, PendingPageDelete
from remote.manifest.manifest_page import Rows
from remote.manifest.page_out import EntriesOf, lost_object
from remote.manifest.view import tombstone_bound
from remote.segment_entry import SegmentEntry

if TYPE_CHECKING:
    from remote.manifest.view_changes import ViewCatalog

Change = Callable[[Manifest], Manifest]
P = ParamSpec("P")
Holder = TypeVar("Holder", Manifest, "ViewCatalog")
Pending = TypeVar("Pending", PendingDelete, PendingPageDelete)
EXPIRED_EPOCHS_MAX = 1000  # per manifest; of more ranges the oldest are removed, and no longer prove an expiry
JOBS_MAX = 64  # notes in a manifest; a job that is repeated after this many others is not recognised


def as_change(apply: Callable[Concatenate[Manifest, P], Manifest]) -> Callable[P, Change]:

    @wraps(apply)
    def with_parameters(*args: P.args, **named: P.kwargs) -> Change:
        return lambda manifest: apply(manifest, *args, **named)

    return with_parameters


def unlinked(manifest: Holder, entries: Iterable[SegmentEntry], now_ms: int) -> Holder:
    """`manifest` with the objects of `entries`, which it does not name any more, as pending deletes."""
    objects: list[PendingDelete] = [each for entry in entries for each in objects_of(entry, now_ms, manifest.epoch)]
    return replace(manifest, pending_deletes=(*manifest.pending_deletes, *objects))


@as_change
def add_segments(manifest: Manifest, entries: Sequence[SegmentEntry]) -> Manifest:
    """Make uploaded segments visible, in offset order. Raises InvalidRequest if their offsets are taken.

    A segment that exists under another name (an earlier commit of it with a lost reply) stays as it is. A segment
    wholly below the log start offset is too late. In both cases the objects of the upload become pending deletes.
    """
    if manifest.tier_disabled:
        raise InvalidRequest("cannot add a remote segment, the remote tier is being disabled", topic=manifest.topic)
    known = _known_names(manifest)
    reached = manifest.entries_end_offset
    added: list[SegmentEntry] = []
    doubled: list[SegmentEntry] = []
    for entry in entries:
        if entry.ulid in known or entry.data_key in known:
            continue
        if entry.next_offset <= manifest.log_start_offset:
            doubled.append(entry)
        elif entry.base_offset >= reached:
            added.append(replace(entry, committed_ms=manifest.committed_ms))
            reached = entry.next_offset
        elif any(_is_same_segment(entry, each) for each in (*manifest.segments, *added)):
            doubled.append(entry)
        else:
            facts = {"base_offset": entry.base_offset, "next_offset": entry.next_offset, "reached": reached}
            raise InvalidRequest("cannot add a remote segment, its offsets are already covered", **facts)
    if not added and not doubled:
        return manifest
    return unlinked(replace(manifest, segments=(*manifest.segments, *added)), doubled, manifest.committed_ms)


@as_change
def replace_segments(manifest: Manifest, entry: SegmentEntry, ulids: Sequence[str]) -> Manifest:
    """Replace the entries that a segment tiles exactly (P11), unless some of them have expired since.

    The objects of the loser become pending deletes. Raises InvalidRequest if it does not tile, or its name is known.
    """
    known = _known_names(manifest)
    if entry.ulid in known or entry.data_key in known:
        return manifest
    old = [each for each in manifest.segments if each.ulid in ulids]
    if len(old) < len(ulids):
        return unlinked(manifest, [entry], manifest.committed_ms)
    first = manifest.segments.index(old[0])
    bounds = [entry.base_offset, *(each.next_offset for each in old)]
    tiles = [each.base_offset for each in old] == bounds[:-1] and bounds[-1] == entry.next_offset
    if not tiles or manifest.segments[first : first + len(old)] != tuple(old):
        facts = {"base_offset": entry.base_offset, "next_offset": entry.next_offset}
        raise InvalidRequest("cannot replace remote segments, the new segment does not cover their offsets", **facts)
    if any(entry.data_key == each.data_key for each in manifest.segments):
        wrong = "cannot replace remote segments, the new segment has a name that is already in use"
        raise InvalidRequest(wrong, key=entry.data_key)
    fresh = replace(entry, committed_ms=max(each.committed_ms for each in old))
    segments = (*manifest.segments[:first], fresh, *manifest.segments[first + len(old) :])
    return unlinked(replace(manifest, segments=segments), old, manifest.committed_ms)


@as_change
def advance_cleaned_offset(manifest: Manifest, ulids: Collection[str], cleaned_through: int) -> Manifest:
    """Record that entries are clean through at least an offset. Missing entries are ignored."""
    names = frozenset(ulids)
    segments = tuple(
        _raised(each, cleaned_through) if each.ulid in names and (each.cleaned_through or 0) < cleaned_through else each
        for each in manifest.segments
    )
    return manifest if segments == manifest.segments else replace(manifest, segments=segments)


@as_change
def unlink_uploads(manifest: Manifest, entries: Collection[SegmentEntry]) -> Manifest:
    """Make uploads pending deletes, unless they were committed or only a page knows their offsets."""
    known = _known_names(manifest)
    paged = manifest.pages[-1].next_offset if manifest.pages else 0
    lost = [entry for entry in entries if not {entry.ulid, entry.data_key} & known and entry.base_offset >= paged]
    return unlinked(manifest, lost, manifest.committed_ms) if lost else manifest


@as_change
def expire_segments(
    manifest: Manifest, ulids: Collection[str], *, now_ms: int, log_start_offset: int | None = None
) -> Manifest:
    """Unlink entries, and raise the log start offset to at least `log_start_offset`."""
    names = frozenset(ulids)
    expired = [entry for entry in manifest.segments if entry.ulid in names]
    start = max(manifest.log_start_offset, log_start_offset or 0)
    if not expired and start == manifest.log_start_offset:
        return manifest
    remaining = tuple(entry for entry in manifest.segments if entry.ulid not in names)
    after = replace(manifest, segments=remaining, log_start_offset=start)
    return _without_rows(unlinked(after, expired, now_ms))


@as_change
def expire_pages(manifest: Manifest, keys: Collection[str], *, now_ms: int) -> Manifest:
    """Unlink whole pages below the log start offset: one pending delete stands for all their objects."""
    names = frozenset(keys)
    expired = [page for page in manifest.pages if page.key in names]
    if not expired:
        return manifest
    if expired[-1].next_offset > manifest.min_readable_offset:
        facts = {"next_offset": expired[-1].next_offset, "log_start_offset": manifest.log_start_offset}
        wrong = "cannot remove a manifest page, its segments are retained"
        raise InvalidRequest(wrong, key=expired[-1].key, **facts)
    pages = [PendingPageDelete(page=page, unlinked_ms=now_ms, epoch=manifest.epoch) for page in expired]
    remaining = tuple(page for page in manifest.pages if page.key not in names)
    pending = (*manifest.pending_page_deletes, *pages)
    return _without_rows(replace(manifest, pages=remaining, pending_page_deletes=pending))


@as_change
def disable_tier(manifest: Manifest, *, log_start_offset: int, now_ms: int) -> Manifest:
    """Start the log where the disk starts; unlink views now, and invalidate entries, which expire later."""
    start = max(manifest.log_start_offset, log_start_offset)
    disabled = replace(manifest, log_start_offset=start, views=(), tier_disabled=manifest.has_entries)
    disabled = unlinked(disabled, manifest.view_entries, now_ms)
    return manifest if disabled == manifest else disabled


@as_change
def delete_partition(manifest: Manifest, *, now_ms: int) -> Manifest:
    """Mark the partition as deleted: nothing is readable from now on. A removal unlinks the rest."""
    if manifest.deleted_ms is not None:
        return manifest
    return replace(manifest, deleted_ms=now_ms, log_start_offset=manifest.next_offset)


@as_change
def remove_pending_deletes(manifest: Manifest, keys: Collection[str]) -> Manifest:
    deleted = frozenset(keys)
    if not any(each.key in deleted for each in manifest.pending):
        return manifest
    return replace(
        manifest,
        pending_deletes=tuple(each for each in manifest.pending_deletes if each.key not in deleted),
        pending_page_deletes=tuple(each for each in manifest.pending_page_deletes if each.key not in deleted),
    )


@as_change
def set_properties(manifest: Manifest, properties: dict[str, str]) -> Manifest:
    return manifest if manifest.properties == properties else replace(manifest, properties=dict(properties))


def settle() -> Change:
    """A change that modifies nothing and is committed nevertheless: it resolves a commit in doubt before it."""
    return lambda manifest: replace(manifest)


def loses_objects(old: Manifest, new: Manifest, entries_of: EntriesOf) -> str | None:
    """The first fact of `old` that `new` wrongly lacks; None without one. Reads pages that one of them names."""
    if (key := lost_object(old, new, entries_of)) is not None:
        return f"an object is neither in a segment entry nor a pending delete, key={key}"
    if old.deleted_ms is not None and new.deleted_ms != old.deleted_ms:
        return f"a deleted partition would be undeleted, deleted_ms={old.deleted_ms}"
    if new.max_end_offset < old.max_end_offset:
        return f"the highest tiered offset would decrease from {old.max_end_offset} to {new.max_end_offset}"
    if new.log_start_offset < old.log_start_offset:
        return f"the log start offset would decrease from {old.log_start_offset} to {new.log_start_offset}"
    return None


def stamped(base: Manifest, changed: Manifest) -> Manifest:
    """`changed` with its sequence in newly unlinked objects, and `expired_end_offset`, `expired_epochs` set."""
    if changed.max_end_offset < base.max_end_offset:
        changed = replace(changed, expired_end_offset=base.max_end_offset)
    if (expired := expired_after(base, changed)) != changed.expired_epochs:
        changed = replace(changed, expired_epochs=expired)
    known = {each.key for each in base.pending}

    def with_sequence(pending: Iterable[Pending]) -> tuple[Pending, ...]:
        return tuple(
            each if each.key in known else replace(each, unlinked_sequence=changed.sequence) for each in pending
        )

    objects, pages = with_sequence(changed.pending_deletes), with_sequence(changed.pending_page_deletes)
    return replace(changed, pending_deletes=objects, pending_page_deletes=pages)


def expired_after(base: Manifest, changed: Manifest) -> tuple[EpochRange, ...]:
    """`expired_epochs` of `changed`, the successor of `base`: with the ranges of every entry that it lost."""
    if base.pages == changed.pages and base.segments == changed.segments[: len(base.segments)]:
        return base.expired_epochs  # no entry was removed; a commit that only adds entries stays cheap
    expired = ranges_outside(base.epoch_ranges, changed.epoch_ranges)
    if not expired:
        return base.expired_epochs
    # A tier that was disabled and enabled again copies the same offsets again: the range that expired last counts.
    before = ranges_outside(base.expired_epochs, expired)
    merged = joined_ranges(sorted((*before, *expired), key=lambda each: each.base_offset))
    return tuple(merged[-EXPIRED_EPOCHS_MAX:])


def names_older_objects(draft: Manifest, changed: Manifest) -> str | None:
    """The first new object of another epoch, or None: any process may delete it (`remote.gc.orphan_search`)."""
    known = {entry.data_key for entry in (*draft.segments, *draft.view_entries)}
    for entry in (*changed.segments, *changed.view_entries):
        made_in = parse_epoch(entry.data_key) if entry.data_key not in known else None
        if made_in is not None and made_in != changed.epoch:
            return f"it names an object of another epoch, key={entry.data_key} epoch={changed.epoch}"
    return None


def objects_of(entry: SegmentEntry, unlinked_ms: int, epoch: int) -> tuple[PendingDelete, ...]:
    objects = ((entry.data_key, entry.stored_bytes), (entry.indexes_key, entry.indexes_bytes))
    return tuple(PendingDelete(key=key, size_bytes=size, unlinked_ms=unlinked_ms, epoch=epoch) for key, size in objects)


def _known_names(manifest: Manifest) -> set[str]:
    """The ULIDs of the entries, and the keys of the pending deletes: names that an upload may have already."""
    return {entry.ulid for entry in manifest.segments} | {each.key for each in manifest.pending_deletes}


def _without_rows(manifest: Manifest) -> Manifest:
    return replace(manifest, tier_disabled=False) if manifest.tier_disabled and not manifest.has_entries else manifest


def _is_same_segment(one: SegmentEntry, other: SegmentEntry) -> bool:
    names = ("base_offset", "next_offset", "size_bytes", "content_crc32c")
    return all(getattr(one, name) == getattr(other, name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """`entries` that tile exactly the entries named `ulids`; both are contiguous."""

    ulids: tuple[str, ...]
    entries: tuple[SegmentEntry, ...]


class GroupOutcome(Enum):
    IN_PLACE = "in place"
    COMMITTED = "committed"
    EXPIRED = "expired"
    LOST = "lost"


def find_job(manifest: Manifest, job_id: str) -> AppliedJob | None:
    return next((note for note in manifest.jobs if note.job_id == job_id), None)


def is_done(manifest: Manifest, note: AppliedJob) -> bool:
    """Whether the manifest has this turn of a job, or a later one."""
    known = find_job(manifest, note.job_id)
    return known is not None and known.turn >= note.turn


@as_change
def append_entries(manifest: Manifest, entries: Rows, *, start_offset: int, note: AppliedJob) -> Manifest:
    """Append all of a job's segments to a partition that ends at `start_offset`, or none.

    Raises Conflict for another end or pending deletes, InvalidRequest while the tier is being disabled.
    """
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


@as_change
def replace_tiled(
    manifest: Manifest,
    replacements: Sequence[Replacement],
    *,
    vouched: Sequence[SegmentEntry] = (),
    cleaned_through: int,
    bound: int | None,
    note: AppliedJob,
    keeps_maker: bool = False,
    is_whole: bool = True,
) -> Manifest:
    """Replace the entries that each group tiles, and record that the `vouched` entries are clean.

    - `note` is recorded unless a group or a vouched entry was lost, or the replacements are not the `is_whole` job.
    - `bound` is the offset below which the job removed tombstones and markers, or set their delete horizon (I5; None:
      the bucket had no entry, so there was nothing to remove). The changed manifest must still allow it.
    - With `keeps_maker` the new entries have the very same records as the old ones, and keep their `made_by`. So does
      an entry in place of a redacted one: its records must not come back from a disk (`policies.compaction`).

    Raises Conflict if an entry or a view below `bound` may hold older records again. Raises InvalidRequest if a group
    does not tile, or its objects have the names of others.
    """
    for group in replacements:
        ends = [entry.next_offset for entry in group.entries[:-1]]
        if not group.entries or ends != [entry.base_offset for entry in group.entries[1:]]:
            wrong = "cannot replace segments, the segments of a group are not adjacent"
            raise InvalidRequest(wrong, entries=len(group.entries))
    if is_done(manifest, note):
        return manifest
    found = tombstone_bound(manifest.parts, manifest.views, manifest.log_start_offset)
    if found is not None and bound is not None and found < bound:
        facts = {"job": note.job_id, "below": bound, "now": found}
        raise Conflict("cannot replace segments, older records below its tombstones may have been added", **facts)
    outcomes = [outcome_of_group(manifest.segments, manifest.log_start_offset, group) for group in replacements]
    segments, pending_deletes = _replaced(manifest, replacements, outcomes, note, keeps_maker=keeps_maker)
    names = frozenset(entry.ulid for entry in vouched)
    segments = [_raised(entry, cleaned_through) if entry.ulid in names else entry for entry in segments]
    is_lost = GroupOutcome.LOST in outcomes or lost_entries(manifest, vouched, manifest.segments)
    jobs = _noted(manifest, note) if is_whole and not is_lost else manifest.jobs
    pending = (*manifest.pending_deletes, *pending_deletes)
    after = replace(manifest, segments=tuple(segments), pending_deletes=pending, jobs=jobs)
    return manifest if after == manifest else after


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


def lost_entries(manifest: Manifest, planned: Rows, entries: Rows) -> list[SegmentEntry]:
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
    at = {entry.ulid: number for number, entry in enumerate(manifest.segments)}
    known = {key for entry in manifest.segments for key in (entry.data_key, entry.indexes_key)}
    listed = {each.key for each in manifest.pending_deletes}
    put: dict[int, tuple[SegmentEntry, ...]] = {}  # position of a removed entry -> the entries in its place
    removed: list[SegmentEntry] = []
    for group, outcome in zip(replacements, outcomes, strict=True):
        if outcome is GroupOutcome.COMMITTED:
            continue
        named = known | listed if outcome is GroupOutcome.IN_PLACE else known
        if not named.isdisjoint(entry.data_key for entry in group.entries):
            raise InvalidRequest("cannot replace segments, an object name is already in use", job=note.job_id)
        if outcome is not GroupOutcome.IN_PLACE:
            removed += group.entries
            continue
        places = [at[ulid] for ulid in group.ulids if ulid in at]
        old = manifest.segments[places[0] : places[-1] + 1]
        _check_tiled(old, group, note)
        entries = [entry for entry in group.entries if entry.next_offset > old[0].base_offset]
        removed += group.entries[: len(group.entries) - len(entries)]
        put |= dict.fromkeys(places, ()) | {places[0]: _in_place(entries, old, note, keeps_maker=keeps_maker)}
        removed += old
    entries_after = [entry for number, one in enumerate(manifest.segments) for entry in put.get(number, (one,))]
    objects = [each for entry in removed for each in objects_of(entry, manifest.committed_ms, manifest.epoch)]
    return entries_after, [each for each in objects if each.key not in listed]


def _in_place(entries: Rows, old: Rows, note: AppliedJob, *, keeps_maker: bool) -> tuple[SegmentEntry, ...]:
    makers = {entry.made_by for entry in old}
    redaction = next((entry.made_by for entry in old if entry.is_redacted), None)
    made_by = redaction or (makers.pop() if keeps_maker and len(makers) == 1 else note.job_id)
    committed_ms = max(entry.committed_ms for entry in old)
    return tuple(replace(entry, committed_ms=committed_ms, made_by=made_by) for entry in entries)


def _check_tiled(old: Sequence[SegmentEntry], group: Replacement, note: AppliedJob) -> None:
    is_same = tuple(entry.ulid for entry in old) == group.ulids[-len(old) :]
    is_neighbours = [entry.next_offset for entry in old[:-1]] == [entry.base_offset for entry in old[1:]]
    base = group.entries[0].base_offset
    begins = base == old[0].base_offset if len(old) == len(group.ulids) else base < old[0].base_offset
    if not (is_same and is_neighbours and begins and old[-1].next_offset == group.entries[-1].next_offset):
        facts = {"job": note.job_id, "base_offset": base, "next_offset": group.entries[-1].next_offset}
        wrong = "cannot replace segments, the new segments do not cover the offsets of the old ones"
        raise InvalidRequest(wrong, **facts)


def _raised(entry: SegmentEntry, cleaned_through: int) -> SegmentEntry:
    return replace(entry, cleaned_through=max(entry.cleaned_through or 0, cleaned_through))


def _noted(manifest: Manifest, note: AppliedJob) -> tuple[AppliedJob, ...]:
    others = [each for each in manifest.jobs if each.job_id != note.job_id]
    return (*others[-(JOBS_MAX - 1) :], replace(note, committed_ms=manifest.committed_ms))
