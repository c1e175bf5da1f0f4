"""Changes of a writer: pure functions from a manifest to the next, for `MetadataLog.commit`.

A commit with a lost reply may be repeated on a manifest that already has the change. So each change returns such a
manifest unmodified (the same object: nothing to commit).

A change sees only the manifest's own entries. Older entries are in pages. A caller that changes these passes their
offsets to `commit` (`touches`), which opens the pages first (`remote.manifest.page_spill`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from local.errors import InvalidRequest
from local.log.leader_epochs import EpochRange, joined_ranges, ranges_outside
from remote.keys import parse_epoch
from remote.manifest.manifest import Head, PendingDelete, PendingPageDelete
from remote.manifest.page_spill import EntriesOf, lost_object
from remote.segment_entry import SegmentEntry

Change = Callable[[Head], Head]
EXPIRED_EPOCHS_MAX = 1000  # per manifest; the oldest ranges are removed first and prove nothing from then on


def add_segments(rows: Sequence[SegmentEntry]) -> Change:
    """Make uploaded segments visible, in offset order. Raises InvalidRequest if their offsets are taken.

    A segment that exists under another name (an earlier commit of it with a lost reply) stays as it is. A segment
    wholly below the log start offset is too late: it may have been here, expired and deleted. In both cases the objects
    of the upload become pending deletes.
    """

    def change(head: Head) -> Head:
        if head.given_up:
            raise InvalidRequest("adding a remote segment, what the tier held is being given up", topic=head.topic)
        known = {row.ulid for row in head.segments} | {each.key for each in head.unlinked}
        reached = head.entries_end_offset
        added: list[SegmentEntry] = []
        doubled: list[PendingDelete] = []
        for row in rows:
            if row.ulid in known or row.data_key in known:
                continue
            if row.next_offset <= head.log_start_offset:
                doubled += objects_of(row, head.committed_ms, head.epoch)
            elif row.base_offset >= reached:
                added.append(replace(row, committed_ms=head.committed_ms))
                reached = row.next_offset
            elif any(_is_same_segment(row, each) for each in (*head.segments, *added)):
                doubled += objects_of(row, head.committed_ms, head.epoch)
            else:
                facts = {"base_offset": row.base_offset, "next_offset": row.next_offset, "reached": reached}
                raise InvalidRequest("adding a remote segment, its offsets are taken", **facts)
        if not added and not doubled:
            return head
        return replace(head, segments=(*head.segments, *added), unlinked=(*head.unlinked, *doubled))

    return change


def replace_segments(row: SegmentEntry, ulids: Sequence[str]) -> Change:
    """Replace the entries that an uploaded segment tiles exactly; their objects become pending deletes.

    Raises InvalidRequest if the segment does not tile the entries, or if its object name is known already. If entries
    are missing (they expired since), the manifest keeps the rest, and the objects of the new segment become pending
    deletes. Source: rule P11 of the commit protocol (docs/explanation/commit-protocol.md).
    """

    def change(head: Head) -> Head:
        known = {each.ulid for each in head.segments} | {each.key for each in head.unlinked}
        if row.ulid in known or row.data_key in known:
            return head
        old = [each for each in head.segments if each.ulid in ulids]
        if len(old) < len(ulids):
            return replace(head, unlinked=head.unlinked + objects_of(row, head.committed_ms, head.epoch))
        first = head.segments.index(old[0])
        bounds = [row.base_offset, *(each.next_offset for each in old)]
        tiles = [each.base_offset for each in old] == bounds[:-1] and bounds[-1] == row.next_offset
        if not tiles or head.segments[first : first + len(old)] != tuple(old):
            facts = {"base_offset": row.base_offset, "next_offset": row.next_offset}
            raise InvalidRequest("replacing remote segments, the new one does not tile them", **facts)
        if any(row.data_key == each.data_key for each in head.segments):
            raise InvalidRequest("replacing remote segments, the new one has an old name", key=row.data_key)
        fresh = replace(row, committed_ms=max(each.committed_ms for each in old))
        segments = (*head.segments[:first], fresh, *head.segments[first + len(old) :])
        gone = tuple(each for one in old for each in objects_of(one, head.committed_ms, head.epoch))
        return replace(head, segments=segments, unlinked=head.unlinked + gone)

    return change


def advance_cleaned_offset(ulids: Collection[str], cleaned_through: int) -> Change:
    """Record that entries are clean through at least an offset; ignores missing entries."""
    names = frozenset(ulids)

    def change(head: Head) -> Head:
        low = [row for row in head.segments if row.ulid in names and (row.cleaned_through or 0) < cleaned_through]
        if not low:
            return head
        raised = {row.ulid: replace(row, cleaned_through=cleaned_through) for row in low}
        return replace(head, segments=tuple(raised.get(row.ulid, row) for row in head.segments))

    return change


def unlink_uploads(rows: Collection[SegmentEntry]) -> Change:
    """Make objects of uploads that were never committed pending deletes.

    Skips an upload that was committed after all (its reply was lost). Skips an upload with offsets that only a page
    knows: its objects may be in use.
    """

    def change(head: Head) -> Head:
        named = {row.ulid for row in head.segments} | {each.key for each in head.unlinked}
        paged = head.spills[-1].next_offset if head.spills else 0
        lost = [row for row in rows if not {row.ulid, row.data_key} & named and row.base_offset >= paged]
        gone = tuple(each for row in lost for each in objects_of(row, head.committed_ms, head.epoch))
        return replace(head, unlinked=head.unlinked + gone) if gone else head

    return change


def expire_segments(ulids: Collection[str], *, now_ms: int, log_start_offset: int | None = None) -> Change:
    """Unlink entries, and raise the log start offset to at least `log_start_offset`.

    The bytes are not deleted now: readers of an older manifest may still read them.
    """
    names = frozenset(ulids)

    def change(head: Head) -> Head:
        gone = [row for row in head.segments if row.ulid in names]
        unlinked = tuple(each for row in gone for each in objects_of(row, now_ms, head.epoch))
        start = max(head.log_start_offset, log_start_offset or 0)
        if not unlinked and start == head.log_start_offset:
            return head
        kept = tuple(row for row in head.segments if row.ulid not in names)
        gone_from = replace(head, segments=kept, unlinked=head.unlinked + unlinked, log_start_offset=start)
        return _without_rows(gone_from)

    return change


def expire_pages(keys: Collection[str], *, now_ms: int) -> Change:
    """Unlink whole pages below the log start offset: one pending delete stands for all their objects."""
    names = frozenset(keys)

    def change(head: Head) -> Head:
        gone = [spill for spill in head.spills if spill.key in names]
        if not gone:
            return head
        if gone[-1].next_offset > head.min_readable_offset:
            facts = {"next_offset": gone[-1].next_offset, "log_start_offset": head.log_start_offset}
            raise InvalidRequest("taking out a page of rows, it is retained", key=gone[-1].key, **facts)
        pages = tuple(PendingPageDelete(spill=spill, unlinked_ms=now_ms, epoch=head.epoch) for spill in gone)
        kept = tuple(spill for spill in head.spills if spill.key not in names)
        return _without_rows(replace(head, spills=kept, unlinked_pages=head.unlinked_pages + pages))

    return change


def disable_tier(*, log_start_offset: int, now_ms: int) -> Change:
    """Start the log where the disk starts, and invalidate all entries.

    Unlinks views now; entries expire later.
    """

    def change(head: Head) -> Head:
        start = max(head.log_start_offset, log_start_offset)
        gone = tuple(each for row in head.view_entries for each in objects_of(row, now_ms, head.epoch))
        given_up = replace(
            head, log_start_offset=start, views=(), unlinked=head.unlinked + gone, given_up=head.has_entries
        )
        return head if given_up == head else given_up

    return change


def delete_partition(*, now_ms: int) -> Change:
    """Mark the partition as deleted: nothing is readable from now on.

    A removal unlinks and deletes the rest.
    """

    def change(head: Head) -> Head:
        if head.deleted_ms is not None:
            return head
        return replace(head, deleted_ms=now_ms, log_start_offset=head.next_offset)

    return change


def remove_pending_deletes(keys: Collection[str]) -> Change:
    """Remove pending deletes after the deletion of their objects."""
    gone = frozenset(keys)

    def change(head: Head) -> Head:
        kept = tuple(each for each in head.unlinked if each.key not in gone)
        return head if len(kept) == len(head.unlinked) else replace(head, unlinked=kept)

    return change


def remove_pending_page_deletes(keys: Collection[str]) -> Change:
    """Remove pages from the pending deletes after the deletion of the pages and of their entries' objects."""
    gone = frozenset(keys)

    def change(head: Head) -> Head:
        kept = tuple(each for each in head.unlinked_pages if each.spill.key not in gone)
        return head if len(kept) == len(head.unlinked_pages) else replace(head, unlinked_pages=kept)

    return change


def set_properties(properties: dict[str, str]) -> Change:
    """Record the topic's settings."""
    return lambda head: head if head.properties == properties else replace(head, properties=dict(properties))


def settle() -> Change:
    """Commit a manifest without a change: resolves a commit in doubt before it."""
    return lambda head: replace(head)


def loses_objects(old: Head, new: Head, entries_of: EntriesOf) -> str | None:
    """The first fact of `old` that `new` must keep and does not: an object, a mark, an offset; else None.

    `entries_of` returns the entries of a page; it is called only for pages that one of the two manifests does not name.
    """
    if (key := lost_object(old, new, entries_of)) is not None:
        return f"an object is neither in a row nor on the list of those to delete, key={key}"
    if old.deleted_ms is not None and new.deleted_ms != old.deleted_ms:
        return f"a partition that was deleted would live again, deleted_ms={old.deleted_ms}"
    if new.max_end_offset < old.max_end_offset:
        return f"the highest tiered offset would go back from {old.max_end_offset} to {new.max_end_offset}"
    if new.log_start_offset < old.log_start_offset:
        return f"the log start would go back from {old.log_start_offset} to {new.log_start_offset}"
    return None


def expired_after(base: Head, changed: Head) -> tuple[EpochRange, ...]:
    """`expired_epochs` of `changed`, the successor of `base`: with the ranges of every entry that it lost."""
    if base.spills == changed.spills and base.segments == changed.segments[: len(base.segments)]:
        return base.expired_epochs  # no entry left; a commit that only adds entries stays cheap
    gone = ranges_outside(base.epoch_ranges, changed.epoch_ranges)
    if not gone:
        return base.expired_epochs
    # A tier that was disabled and enabled again copies the same offsets again: the range that left last counts.
    before = ranges_outside(base.expired_epochs, gone)
    merged = joined_ranges(sorted((*before, *gone), key=lambda each: each.base_offset))
    return tuple(merged[-EXPIRED_EPOCHS_MAX:])


def names_older_objects(draft: Head, changed: Head) -> str | None:
    """The first newly named object of `changed` from another epoch than its own; None if there is none.

    The rule for orphans depends on this: any process may delete unnamed objects of an older epoch
    (`remote.gc.orphans`).
    """
    known = {row.data_key for row in (*draft.segments, *draft.view_entries)}
    for row in (*changed.segments, *changed.view_entries):
        made_in = parse_epoch(row.data_key) if row.data_key not in known else None
        if made_in is not None and made_in != changed.epoch:
            return f"an object of another epoch would be named, key={row.data_key} epoch={changed.epoch}"
    return None


def objects_of(row: SegmentEntry, unlinked_ms: int, epoch: int) -> tuple[PendingDelete, ...]:
    objects = ((row.data_key, row.stored_bytes), (row.indexes_key, row.indexes_bytes))
    return tuple(PendingDelete(key=key, size_bytes=size, unlinked_ms=unlinked_ms, epoch=epoch) for key, size in objects)


def _without_rows(head: Head) -> Head:
    """Reset `given_up` when the last entry has left."""
    return replace(head, given_up=False) if head.given_up and not head.has_entries else head


def _is_same_segment(one: SegmentEntry, other: SegmentEntry) -> bool:
    names = ("base_offset", "next_offset", "size_bytes", "content_crc32c")
    return all(getattr(one, name) == getattr(other, name) for name in names)
