"""Changes of a writer: pure functions from a manifest to the next, for `MetadataLog.commit`.

A commit with a lost reply may be repeated on a manifest that already has the change. So each change returns such a
manifest unmodified (the same object: nothing to commit).

A change sees only the manifest's own entries. Older entries are in pages. A caller that changes these passes their
offsets to `commit` (`touches`), which opens the pages first (`remote.manifest.page_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from local.errors import InvalidRequest
from local.log.leader_epochs import EpochRange, joined_ranges, ranges_outside
from remote.keys import parse_epoch
from remote.manifest.manifest import Manifest, PendingDelete, PendingPageDelete
from remote.manifest.page_out import EntriesOf, lost_object
from remote.segment_entry import SegmentEntry

Change = Callable[[Manifest], Manifest]
EXPIRED_EPOCHS_MAX = 1000  # per manifest; the oldest ranges are removed first and prove nothing from then on


def add_segments(entries: Sequence[SegmentEntry]) -> Change:
    """Make uploaded segments visible, in offset order. Raises InvalidRequest if their offsets are taken.

    A segment that exists under another name (an earlier commit of it with a lost reply) stays as it is. A segment
    wholly below the log start offset is too late: it may have been here, expired and deleted. In both cases the objects
    of the upload become pending deletes.
    """

    def change(manifest: Manifest) -> Manifest:
        if manifest.tier_disabled:
            raise InvalidRequest("cannot add a remote segment, the remote tier is being disabled", topic=manifest.topic)
        known = {entry.ulid for entry in manifest.segments} | {each.key for each in manifest.pending_deletes}
        reached = manifest.entries_end_offset
        added: list[SegmentEntry] = []
        doubled: list[PendingDelete] = []
        for entry in entries:
            if entry.ulid in known or entry.data_key in known:
                continue
            if entry.next_offset <= manifest.log_start_offset:
                doubled += objects_of(entry, manifest.committed_ms, manifest.epoch)
            elif entry.base_offset >= reached:
                added.append(replace(entry, committed_ms=manifest.committed_ms))
                reached = entry.next_offset
            elif any(_is_same_segment(entry, each) for each in (*manifest.segments, *added)):
                doubled += objects_of(entry, manifest.committed_ms, manifest.epoch)
            else:
                facts = {"base_offset": entry.base_offset, "next_offset": entry.next_offset, "reached": reached}
                raise InvalidRequest("cannot add a remote segment, its offsets are already covered", **facts)
        if not added and not doubled:
            return manifest
        return replace(
            manifest, segments=(*manifest.segments, *added), pending_deletes=(*manifest.pending_deletes, *doubled)
        )

    return change


def replace_segments(entry: SegmentEntry, ulids: Sequence[str]) -> Change:
    """Replace the entries that an uploaded segment tiles exactly; their objects become pending deletes.

    Raises InvalidRequest if the segment does not tile the entries, or if its object name is known already. If entries
    are missing (they expired since), the manifest keeps the rest, and the objects of the new segment become pending
    deletes. Source: rule P11 of the commit protocol (docs/explanation/commit-protocol.md).
    """

    def change(manifest: Manifest) -> Manifest:
        known = {each.ulid for each in manifest.segments} | {each.key for each in manifest.pending_deletes}
        if entry.ulid in known or entry.data_key in known:
            return manifest
        old = [each for each in manifest.segments if each.ulid in ulids]
        if len(old) < len(ulids):
            return replace(
                manifest,
                pending_deletes=manifest.pending_deletes + objects_of(entry, manifest.committed_ms, manifest.epoch),
            )
        first = manifest.segments.index(old[0])
        bounds = [entry.base_offset, *(each.next_offset for each in old)]
        tiles = [each.base_offset for each in old] == bounds[:-1] and bounds[-1] == entry.next_offset
        if not tiles or manifest.segments[first : first + len(old)] != tuple(old):
            facts = {"base_offset": entry.base_offset, "next_offset": entry.next_offset}
            raise InvalidRequest(
                "cannot replace remote segments, the new segment does not cover their offsets", **facts
            )
        if any(entry.data_key == each.data_key for each in manifest.segments):
            raise InvalidRequest(
                "cannot replace remote segments, the new segment has a name that is already in use", key=entry.data_key
            )
        fresh = replace(entry, committed_ms=max(each.committed_ms for each in old))
        segments = (*manifest.segments[:first], fresh, *manifest.segments[first + len(old) :])
        unlinked = tuple(each for one in old for each in objects_of(one, manifest.committed_ms, manifest.epoch))
        return replace(manifest, segments=segments, pending_deletes=manifest.pending_deletes + unlinked)

    return change


def advance_cleaned_offset(ulids: Collection[str], cleaned_through: int) -> Change:
    """Record that entries are clean through at least an offset. Missing entries are ignored."""
    names = frozenset(ulids)

    def change(manifest: Manifest) -> Manifest:
        low = [
            entry
            for entry in manifest.segments
            if entry.ulid in names and (entry.cleaned_through or 0) < cleaned_through
        ]
        if not low:
            return manifest
        raised = {entry.ulid: replace(entry, cleaned_through=cleaned_through) for entry in low}
        return replace(manifest, segments=tuple(raised.get(entry.ulid, entry) for entry in manifest.segments))

    return change


def unlink_uploads(entries: Collection[SegmentEntry]) -> Change:
    """Make objects of uploads that were never committed pending deletes.

    Skips an upload that was committed after all (its reply was lost). Skips an upload with offsets that only a page
    knows: its objects may be in use.
    """

    def change(manifest: Manifest) -> Manifest:
        named = {entry.ulid for entry in manifest.segments} | {each.key for each in manifest.pending_deletes}
        paged = manifest.pages[-1].next_offset if manifest.pages else 0
        lost = [entry for entry in entries if not {entry.ulid, entry.data_key} & named and entry.base_offset >= paged]
        unlinked = tuple(each for entry in lost for each in objects_of(entry, manifest.committed_ms, manifest.epoch))
        return replace(manifest, pending_deletes=manifest.pending_deletes + unlinked) if unlinked else manifest

    return change


def expire_segments(ulids: Collection[str], *, now_ms: int, log_start_offset: int | None = None) -> Change:
    """Unlink entries, and raise the log start offset to at least `log_start_offset`."""
    names = frozenset(ulids)

    def change(manifest: Manifest) -> Manifest:
        expired = [entry for entry in manifest.segments if entry.ulid in names]
        pending_deletes = tuple(each for entry in expired for each in objects_of(entry, now_ms, manifest.epoch))
        start = max(manifest.log_start_offset, log_start_offset or 0)
        if not pending_deletes and start == manifest.log_start_offset:
            return manifest
        remaining = tuple(entry for entry in manifest.segments if entry.ulid not in names)
        gone_from = replace(
            manifest,
            segments=remaining,
            pending_deletes=manifest.pending_deletes + pending_deletes,
            log_start_offset=start,
        )
        return _without_rows(gone_from)

    return change


def expire_pages(keys: Collection[str], *, now_ms: int) -> Change:
    """Unlink whole pages below the log start offset: one pending delete stands for all their objects."""
    names = frozenset(keys)

    def change(manifest: Manifest) -> Manifest:
        expired = [page for page in manifest.pages if page.key in names]
        if not expired:
            return manifest
        if expired[-1].next_offset > manifest.min_readable_offset:
            facts = {"next_offset": expired[-1].next_offset, "log_start_offset": manifest.log_start_offset}
            raise InvalidRequest(
                "cannot remove a manifest page, its segments are retained", key=expired[-1].key, **facts
            )
        pages = tuple(PendingPageDelete(page=page, unlinked_ms=now_ms, epoch=manifest.epoch) for page in expired)
        remaining = tuple(page for page in manifest.pages if page.key not in names)
        return _without_rows(
            replace(manifest, pages=remaining, pending_page_deletes=manifest.pending_page_deletes + pages)
        )

    return change


def disable_tier(*, log_start_offset: int, now_ms: int) -> Change:
    """Start the log where the disk starts; unlink views now, and invalidate entries, which expire later."""

    def change(manifest: Manifest) -> Manifest:
        start = max(manifest.log_start_offset, log_start_offset)
        unlinked = tuple(each for entry in manifest.view_entries for each in objects_of(entry, now_ms, manifest.epoch))
        tier_disabled = replace(
            manifest,
            log_start_offset=start,
            views=(),
            pending_deletes=manifest.pending_deletes + unlinked,
            tier_disabled=manifest.has_entries,
        )
        return manifest if tier_disabled == manifest else tier_disabled

    return change


def delete_partition(*, now_ms: int) -> Change:
    """Mark the partition as deleted: nothing is readable from now on. A removal unlinks the rest."""

    def change(manifest: Manifest) -> Manifest:
        if manifest.deleted_ms is not None:
            return manifest
        return replace(manifest, deleted_ms=now_ms, log_start_offset=manifest.next_offset)

    return change


def remove_pending_deletes(keys: Collection[str]) -> Change:
    """Remove pending deletes, objects and pages, after the deletion of the objects."""
    deleted = frozenset(keys)

    def change(manifest: Manifest) -> Manifest:
        objects = tuple(each for each in manifest.pending_deletes if each.key not in deleted)
        pages = tuple(each for each in manifest.pending_page_deletes if each.page.key not in deleted)
        if (len(objects), len(pages)) == (len(manifest.pending_deletes), len(manifest.pending_page_deletes)):
            return manifest
        return replace(manifest, pending_deletes=objects, pending_page_deletes=pages)

    return change


def set_properties(properties: dict[str, str]) -> Change:
    """Record the topic's settings."""
    return lambda manifest: (
        manifest if manifest.properties == properties else replace(manifest, properties=dict(properties))
    )


def settle() -> Change:
    """Commit a manifest without a change: resolves a commit in doubt before it."""
    return lambda manifest: replace(manifest)


def loses_objects(old: Manifest, new: Manifest, entries_of: EntriesOf) -> str | None:
    """The first fact of `old` that `new` wrongly lacks: an object, a mark or an offset; None without one.

    `entries_of` returns the entries of a page; it is called only for pages that one of the two manifests does not name.
    """
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
    """Set the sequence of newly unlinked objects, and the highest offset and epochs held before."""
    if changed.max_end_offset < base.max_end_offset:
        changed = replace(changed, expired_end_offset=base.max_end_offset)
    if (expired := expired_after(base, changed)) != changed.expired_epochs:
        changed = replace(changed, expired_epochs=expired)
    known = {each.key for each in base.pending_deletes} | {each.page.key for each in base.pending_page_deletes}
    pending_deletes = tuple(
        each if each.key in known else replace(each, unlinked_sequence=changed.sequence)
        for each in changed.pending_deletes
    )
    pages = tuple(
        each if each.page.key in known else replace(each, unlinked_sequence=changed.sequence)
        for each in changed.pending_page_deletes
    )
    is_same = pending_deletes == changed.pending_deletes and pages == changed.pending_page_deletes
    return changed if is_same else replace(changed, pending_deletes=pending_deletes, pending_page_deletes=pages)


def expired_after(base: Manifest, changed: Manifest) -> tuple[EpochRange, ...]:
    """`expired_epochs` of `changed`, the successor of `base`: with the ranges of every entry that it lost."""
    if base.pages == changed.pages and base.segments == changed.segments[: len(base.segments)]:
        return base.expired_epochs  # no entry left; a commit that only adds entries stays cheap
    expired = ranges_outside(base.epoch_ranges, changed.epoch_ranges)
    if not expired:
        return base.expired_epochs
    # A tier that was disabled and enabled again copies the same offsets again: the range that left last counts.
    before = ranges_outside(base.expired_epochs, expired)
    merged = joined_ranges(sorted((*before, *expired), key=lambda each: each.base_offset))
    return tuple(merged[-EXPIRED_EPOCHS_MAX:])


def names_older_objects(draft: Manifest, changed: Manifest) -> str | None:
    """The first newly named object of another epoch: any process may delete it (`remote.gc.orphan_search`)."""
    known = {entry.data_key for entry in (*draft.segments, *draft.view_entries)}
    for entry in (*changed.segments, *changed.view_entries):
        made_in = parse_epoch(entry.data_key) if entry.data_key not in known else None
        if made_in is not None and made_in != changed.epoch:
            return f"it names an object of another epoch, key={entry.data_key} epoch={changed.epoch}"
    return None


def objects_of(entry: SegmentEntry, unlinked_ms: int, epoch: int) -> tuple[PendingDelete, ...]:
    objects = ((entry.data_key, entry.stored_bytes), (entry.indexes_key, entry.indexes_bytes))
    return tuple(PendingDelete(key=key, size_bytes=size, unlinked_ms=unlinked_ms, epoch=epoch) for key, size in objects)


def _without_rows(manifest: Manifest) -> Manifest:
    """Reset `tier_disabled` when the last entry has left."""
    return replace(manifest, tier_disabled=False) if manifest.tier_disabled and not manifest.has_entries else manifest


def _is_same_segment(one: SegmentEntry, other: SegmentEntry) -> bool:
    names = ("base_offset", "next_offset", "size_bytes", "content_crc32c")
    return all(getattr(one, name) == getattr(other, name) for name in names)
