"""Move entries from a manifest into pages, and back into the manifest for changes. Uses no store.

A manifest holds its newest entries itself. When its size exceeds `PageRule.manifest_bytes_max`, the oldest of them move
into a page (`remote.manifest.manifest_page`), and one `PageEntry` stands for them. Pages never change.

To change entries in a page:

1. The page is opened: its entries return to the manifest, and the page is unlinked.
2. The change is made.
3. Surplus entries are written to a new page.

So a change (`remote.manifest.manifest_changes`) only ever sees entries, and stays a pure function of a manifest.

`remote.manifest.commit_protocol` defines the order of effects: a page is written before the manifest that names it. It
is deleted like every object, as a pending delete after the grace period. A page without a committed manifest is an
orphan.

An opened manifest may hold entries below a spill; an encoded manifest never does (`move_to_page` ensures this).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter

from local.errors import NotFound
from remote.manifest.manifest import Head, PageEntry, PendingDelete
from remote.manifest.manifest_page import Rows
from remote.segment_entry import SegmentEntry

EntriesOf = Callable[[PageEntry], Rows]
NewPage = Callable[[Rows], PageEntry]

_next_offset = attrgetter("next_offset")
_base_offset = attrgetter("base_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRule:
    """Limits for the sizes of manifests and pages.

    | field | meaning |
    |---|---|
    | `manifest_bytes_max` | size of the manifest object above which entries move to pages |
    | `page_rows_max` | entries in one page |
    | `page_rows_min` | fewer surplus entries are not worth a page |
    | `kept_rows_min` | newest entries that always stay: a commit repeated after a lost reply finds its entry there |
    | `gaps_max`, `epochs_max` | gaps and leader epochs of one `PageEntry`; one more starts another page |

    A manifest that is large for another reason (pending deletes) stays large.

    With these numbers a manifest has room for some 2,600 entries. A page takes 2,300 of them and 310 kB, and a million
    segments are some 400 pages (docs/reference/benchmarks.md).
    """

    manifest_bytes_max: int = 256 << 10
    page_rows_max: int = 4096
    page_rows_min: int = 256
    kept_rows_min: int = 256
    gaps_max: int = 64
    epochs_max: int = 64


def opened(head: Head, start: int, end: int, entries_of: EntriesOf) -> Head:
    """`head` with the entries of every page that overlaps ``[start, end)``; `head` itself without one.

    The pages become pending deletes, as of `head.committed_ms`.
    """
    pages = [spill for spill in head.spills if spill.base_offset < end and start < spill.next_offset]
    if not pages:
        return head
    rows = sorted([*head.segments, *(row for page in pages for row in entries_of(page))], key=_base_offset)
    unlinked = tuple(
        PendingDelete(key=page.key, size_bytes=page.page_bytes, unlinked_ms=head.committed_ms, epoch=head.epoch)
        for page in pages
    )
    kept = tuple(spill for spill in head.spills if spill not in pages)
    return replace(head, segments=tuple(rows), spills=kept, unlinked=head.unlinked + unlinked)


def move_to_page(head: Head, rule: PageRule, new_page: NewPage) -> Head:
    """`head` with all entries below its last spill moved to pages again; `head` itself if there are none."""
    if not head.spills or not head.segments or head.segments[0].base_offset >= head.spills[-1].next_offset:
        return head
    at = bisect_right(head.segments, head.spills[-1].base_offset, key=_base_offset)
    below, above = head.segments[:at], head.segments[at:]
    # Opened pages are one range of offsets, so all of `below` is between two neighbouring spills.
    made = _pages(below, rule, new_page)
    spills = sorted((*head.spills, *made), key=_base_offset)
    return replace(head, spills=tuple(spills), segments=above)


def move_oldest_to_page(head: Head, rule: PageRule, new_page: NewPage) -> Head:
    """`head` with its oldest entries moved to one more page; `head` itself if it has too few entries."""
    spare = len(head.segments) - rule.kept_rows_min
    if spare < rule.page_rows_min:
        return head
    (page,) = _pages(head.segments[: _page_end(head.segments[:spare], rule)], rule, new_page)
    return replace(head, spills=(*head.spills, page), segments=head.segments[page.segment_count :])


def lost_object(old: Head, new: Head, entries_of: EntriesOf) -> str | None:
    """The key of an object that `old` names and `new` does not; None if there is none.

    A manifest names the objects of its entries and of its pages' entries, its pages, and its pending deletes. The
    pending deletes of `old` do not count here, because removing them is the purpose of the lists. Pages that both
    manifests name are equal and are not read.
    """
    before, after = set(old.spills), {*new.spills, *(each.spill for each in new.unlinked_pages)}
    after -= {each.spill for each in old.unlinked_pages}
    named = {each.key for each in new.unlinked} | {spill.key for spill in after}
    named.update(keys_of(_own_rows(new)))
    for spill in after - before:
        named.update(keys_of(entries_of(spill)))
    gone = before - after
    held = [*keys_of(_own_rows(old)), *(spill.key for spill in gone)]
    for spill in gone:
        held += keys_of(entries_of(spill))
    return next((key for key in held if key not in named), None)


def named_keys(head: Head, entries_of: EntriesOf) -> set[str]:
    """The objects of a manifest's entries, of its views, of its pages' entries, and the pages.

    Reads every page.
    """
    named = {*keys_of(_own_rows(head)), *(spill.key for spill in head.spills)}
    for spill in head.spills:
        named.update(keys_of(entries_of(spill)))
    return named


def waiting_keys(head: Head, entries_of: EntriesOf) -> Iterator[str]:
    """The pending deletes: objects, pages, and the objects of these pages' entries."""
    for each in head.unlinked:
        yield each.key
    for page in head.unlinked_pages:
        with suppress(NotFound):  # a page is deleted last, so its objects are deleted too
            yield from keys_of(entries_of(page.spill))
        yield page.spill.key


def named_by(head: Head, entries_of: EntriesOf) -> set[str]:
    """Every key that a manifest names: of entries, pages, pages' and views' entries, pending deletes.

    Raises the errors of `entries_of` for a page that cannot be read: then no object may be called an orphan.
    """
    return named_keys(head, entries_of) | set(waiting_keys(head, entries_of))


def entries_unless_deleted(newest: Head, entries_of: EntriesOf) -> EntriesOf:
    """Read pages of older manifests.

    A deleted page has no entries; a lost page raises the error of `entries_of`.

    1. A page leaves the pending deletes only after its deletion. So a missing page was deleted if `newest` neither
       names nor lists it, and was lost otherwise.
    2. A page is deleted only when no pin holds it. So a pin of the older manifest has expired, or was too late.
    3. No reader relies on such a pin, and `newest` names or lists every needed object of the page's entries.
    """
    expected = {spill.key for spill in newest.spills} | {each.key for each in newest.unlinked}
    expected |= {page.spill.key for page in newest.unlinked_pages}

    def rows(spill: PageEntry) -> Rows:
        try:
            return entries_of(spill)
        except NotFound:
            if spill.key in expected:
                raise
            return ()

    return rows


def _own_rows(head: Head) -> Iterator[SegmentEntry]:
    """The entries with objects that the manifest holds itself: its newest entries and the views' entries."""
    yield from head.segments
    for view in head.views:
        yield from view.rows


def keys_of(rows: Iterable[SegmentEntry]) -> list[str]:
    """The objects of entries: two for each."""
    return [key for row in rows for key in (row.data_key, row.indexes_key)]


def _pages(rows: tuple[SegmentEntry, ...], rule: PageRule, new_page: NewPage) -> list[PageEntry]:
    made = []
    while rows:
        count = _page_end(rows, rule)
        made.append(new_page(rows[:count]))
        rows = rows[count:]
    return made


def _page_end(rows: tuple[SegmentEntry, ...], rule: PageRule) -> int:
    """The number of `rows` for one page: up to the first excess gap or leader epoch. At least one."""
    gaps, epochs = 0, {epoch for epoch, _ in rows[0].epochs}
    for count in range(1, min(len(rows), rule.page_rows_max)):
        gaps += rows[count - 1].next_offset < rows[count].base_offset
        epochs.update(epoch for epoch, _ in rows[count].epochs)
        if gaps > rule.gaps_max or len(epochs) > rule.epochs_max:
            return count
    return min(len(rows), rule.page_rows_max)
