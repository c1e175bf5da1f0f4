"""Move entries from a manifest into pages, and back into the manifest for changes. Uses no store.

When a manifest exceeds `PageRule.manifest_bytes_max`, its oldest entries move into a page
(`remote.manifest.manifest_page`), and one `PageEntry` stands for them. Pages never change. To change entries in a page:

1. The page is opened: its entries return to the manifest, and the page is unlinked.
2. The change is made. So a change only ever sees entries (`remote.manifest.manifest_changes`).
3. Surplus entries are written to a new page, before the manifest that names it.

An opened manifest may hold entries below a page; an encoded manifest never does (`move_to_page` ensures this).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter

from local.errors import NotFound
from remote.manifest.manifest import Manifest, PageEntry, PendingDelete
from remote.manifest.manifest_page import Rows
from remote.segment_entry import SegmentEntry

EntriesOf = Callable[[PageEntry], Rows]
NewPage = Callable[[Rows], PageEntry]

_base_offset = attrgetter("base_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRule:
    """Limits for the sizes of manifests and pages: some 2,600 entries in a manifest, 400 pages for a million."""

    manifest_bytes_max: int = 256 << 10  # size of the manifest object above which entries move to pages
    page_rows_max: int = 4096
    page_rows_min: int = 256  # fewer surplus entries are not worth a page
    kept_entries_min: int = 256  # newest entries that stay: a commit repeated after a lost reply finds its entry there
    gaps_max: int = 64  # gaps of one `PageEntry`; one more starts another page
    epochs_max: int = 64  # leader epochs of one `PageEntry`; one more starts another page


def opened(manifest: Manifest, start: int, end: int, entries_of: EntriesOf) -> Manifest:
    """`manifest` with the entries of pages that overlap ``[start, end)``; the pages become pending deletes."""
    pages = [page for page in manifest.pages if page.base_offset < end and start < page.next_offset]
    if not pages:
        return manifest
    entries = sorted([*manifest.segments, *(entry for page in pages for entry in entries_of(page))], key=_base_offset)
    pending_deletes = tuple(
        PendingDelete(key=page.key, size_bytes=page.page_bytes, unlinked_ms=manifest.committed_ms, epoch=manifest.epoch)
        for page in pages
    )
    remaining = tuple(page for page in manifest.pages if page not in pages)
    unlinked = manifest.pending_deletes + pending_deletes
    return replace(manifest, segments=tuple(entries), pages=remaining, pending_deletes=unlinked)


class NewPages:
    """Pages written for one commit; a retry with the same entries uses the existing page."""

    def __init__(self, write: Callable[[Rows, int, str | None], PageEntry], now_ms: int) -> None:
        self.seal_key_id: str | None = None  # of the manifest that will name the pages
        self._write = write
        self._now_ms = now_ms
        self._made: list[tuple[Rows, PageEntry]] = []

    def __call__(self, entries: Rows) -> PageEntry:
        for known, page in self._made:
            if known == entries and page.seal_key_id == self.seal_key_id:
                return page
        page = self._write(entries, self._now_ms, self.seal_key_id)
        self._made.append((entries, page))
        return page


def move_to_page(manifest: Manifest, rule: PageRule, new_page: NewPage) -> Manifest:
    """`manifest` with all entries below its last page moved to pages again; `manifest` itself if there are none."""
    if not manifest.pages or not manifest.segments:
        return manifest
    if manifest.segments[0].base_offset >= manifest.pages[-1].next_offset:
        return manifest
    at = bisect_right(manifest.segments, manifest.pages[-1].base_offset, key=_base_offset)
    below, above = manifest.segments[:at], manifest.segments[at:]
    # Opened pages are one range of offsets, so all of `below` is between two neighbouring pages.
    made = _pages(below, rule, new_page)
    pages = sorted((*manifest.pages, *made), key=_base_offset)
    return replace(manifest, pages=tuple(pages), segments=above)


def move_oldest_to_page(manifest: Manifest, rule: PageRule, new_page: NewPage) -> Manifest:
    """`manifest` with its oldest entries moved to one more page; `manifest` itself if it has too few entries."""
    spare = len(manifest.segments) - rule.kept_entries_min
    if spare < rule.page_rows_min:
        return manifest
    (page,) = _pages(manifest.segments[: _page_end(manifest.segments[:spare], rule)], rule, new_page)
    return replace(manifest, pages=(*manifest.pages, page), segments=manifest.segments[page.segment_count :])


def lost_object(old: Manifest, new: Manifest, entries_of: EntriesOf) -> str | None:
    """The key of an object that `old` names and `new` does not; None if there is none.

    The pending deletes of `old` do not count: removing them is their purpose. Pages that both name are not read.
    """
    before, after = set(old.pages), {*new.pages, *(each.page for each in new.pending_page_deletes)}
    after -= {each.page for each in old.pending_page_deletes}
    named = {each.key for each in new.pending_deletes} | {page.key for page in after}
    named.update(keys_of([*new.segments, *new.view_entries]))
    for page in after - before:
        named.update(keys_of(entries_of(page)))
    removed = before - after
    held = [*keys_of([*old.segments, *old.view_entries]), *(page.key for page in removed)]
    for page in removed:
        held += keys_of(entries_of(page))
    return next((key for key in held if key not in named), None)


def named_keys(manifest: Manifest, entries_of: EntriesOf) -> set[str]:
    """The objects of the entries of a manifest, its views and its pages, and the pages. Reads every page."""
    named = {*keys_of([*manifest.segments, *manifest.view_entries]), *(page.key for page in manifest.pages)}
    for page in manifest.pages:
        named.update(keys_of(entries_of(page)))
    return named


def waiting_keys(manifest: Manifest, entries_of: EntriesOf) -> Iterator[str]:
    """The pending deletes: objects, pages, and the objects of these pages' entries."""
    for each in manifest.pending_deletes:
        yield each.key
    for page in manifest.pending_page_deletes:
        with suppress(NotFound):  # a page is deleted last, so its objects are deleted too
            yield from keys_of(entries_of(page.page))
        yield page.page.key


def named_by(manifest: Manifest, entries_of: EntriesOf) -> set[str]:
    """Every key that a manifest names. Raises the error of a page that cannot be read: it may name any object."""
    return named_keys(manifest, entries_of) | set(waiting_keys(manifest, entries_of))


def entries_unless_deleted(newest: Manifest, entries_of: EntriesOf) -> EntriesOf:
    """A reader of the pages of older manifests. A deleted page has no entries; a lost page raises its error.

    1. A page leaves the pending deletes only after its deletion. So a missing page was deleted if `newest` neither
       names nor lists it, and was lost otherwise.
    2. A page is deleted only when no pin holds it. So a pin of the older manifest has expired, or was too late.
    3. No reader relies on such a pin, and `newest` names or lists every needed object of the page's entries.
    """
    expected = {each.key for each in (*newest.pages, *newest.pending)}

    def entries(page: PageEntry) -> Rows:
        try:
            return entries_of(page)
        except NotFound:
            if page.key in expected:
                raise
            return ()

    return entries


def keys_of(entries: Iterable[SegmentEntry]) -> list[str]:
    return [key for entry in entries for key in (entry.data_key, entry.indexes_key)]


def _pages(entries: tuple[SegmentEntry, ...], rule: PageRule, new_page: NewPage) -> list[PageEntry]:
    made = []
    while entries:
        count = _page_end(entries, rule)
        made.append(new_page(entries[:count]))
        entries = entries[count:]
    return made


def _page_end(entries: tuple[SegmentEntry, ...], rule: PageRule) -> int:
    """The number of `entries` for one page: up to the first excess gap or leader epoch. At least one."""
    gaps, epochs = 0, {epoch for epoch, _ in entries[0].epochs}
    for count in range(1, min(len(entries), rule.page_rows_max)):
        gaps += entries[count - 1].next_offset < entries[count].base_offset
        epochs.update(epoch for epoch, _ in entries[count].epochs)
        if gaps > rule.gaps_max or len(epochs) > rule.epochs_max:
            return count
    return min(len(entries), rule.page_rows_max)
