"""What goes from a head into pages beside it, and back into the head to be changed. No store is known here.

A head keeps its newest rows itself. When its bytes pass `SpillRule.head_bytes_max`, the oldest of them go into a page
(`remote.manifest.manifest_page`), and one `SpillRow` stands for them. Pages never change. To change rows inside one,
the page is opened: its rows come back into the head, the page is listed as unlinked, the change is made, and what must
not stay is spilled anew. So a change (`remote.manifest.manifest_changes`) only ever sees rows, and stays a pure
function of a head.

The order of effects is the caller's (`remote.manifest.commit_protocol`): a page is written before the head that names
it, and it leaves the store like every object, by `unlinked` and the grace time. A page whose head never came is named
by nobody.

An opened head may hold rows below a spill; no encoded one does (`spill_between` sees to that).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter

from local.errors import NotFound
from remote.manifest.manifest import Head, SpillRow, UnlinkedObject
from remote.manifest.manifest_page import Rows
from remote.segment_entry import RemoteSegment

RowsOf = Callable[[SpillRow], Rows]
NewPage = Callable[[Rows], SpillRow]

_next_offset = attrgetter("next_offset")
_base_offset = attrgetter("base_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillRule:
    """`head_bytes_max` is what a head may take as an object before rows leave it; `page_rows_max` go into one page.

    `kept_rows_min` newest rows stay in any case: a commit that is tried again after its answer was lost finds its own
    row among them. Fewer than `page_rows_min` rows beyond those are not worth a page: a head that is large for another
    reason (objects that wait for deletion) is left so. `gaps_max` and `epochs_max` bound what a `SpillRow` says about
    holes and about leader epochs: one more begins another page.

    With these numbers a head has room for some 2,600 rows; a page takes 2,300 of them and 310 kB, a million segments
    are some 400 pages (docs/reference/benchmarks.md).
    """

    head_bytes_max: int = 256 << 10
    page_rows_max: int = 4096
    page_rows_min: int = 256
    kept_rows_min: int = 256
    gaps_max: int = 64
    epochs_max: int = 64


def opened(head: Head, start: int, end: int, rows_of: RowsOf) -> Head:
    """`head` with the rows of every page that touches ``[start, end)`` in its own rows; `head` itself where none does.

    The pages go on the list of unlinked objects, as of `head.committed_ms`.
    """
    pages = [spill for spill in head.spills if spill.base_offset < end and start < spill.next_offset]
    if not pages:
        return head
    rows = sorted([*head.segments, *(row for page in pages for row in rows_of(page))], key=_base_offset)
    unlinked = tuple(
        UnlinkedObject(key=page.key, size_bytes=page.page_bytes, unlinked_ms=head.committed_ms, epoch=head.epoch)
        for page in pages
    )
    kept = tuple(spill for spill in head.spills if spill not in pages)
    return replace(head, segments=tuple(rows), spills=kept, unlinked=head.unlinked + unlinked)


def spill_between(head: Head, rule: SpillRule, new_page: NewPage) -> Head:
    """`head` with all rows below its last spill in pages again; `head` itself where none is there."""
    if not head.spills or not head.segments or head.segments[0].base_offset >= head.spills[-1].next_offset:
        return head
    at = bisect_right(head.segments, head.spills[-1].base_offset, key=_base_offset)
    below, above = head.segments[:at], head.segments[at:]
    # What was opened is one range of offsets, so all of `below` lies between two neighbouring spills.
    made = _pages(below, rule, new_page)
    spills = sorted((*head.spills, *made), key=_base_offset)
    return replace(head, spills=tuple(spills), segments=above)


def spill_oldest(head: Head, rule: SpillRule, new_page: NewPage) -> Head:
    """`head` with its oldest rows in one more page; `head` itself when it has none to spare."""
    spare = len(head.segments) - rule.kept_rows_min
    if spare < rule.page_rows_min:
        return head
    (page,) = _pages(head.segments[: _page_end(head.segments[:spare], rule)], rule, new_page)
    return replace(head, spills=(*head.spills, page), segments=head.segments[page.segment_count :])


def lost_object(old: Head, new: Head, rows_of: RowsOf) -> str | None:
    """The key of an object that `old` answers for and `new` does not; None when there is none.

    A head answers for what its rows, the rows of its pages, its pages and its lists of unlinked objects and pages name;
    of what waits on a list in `old` nothing counts here, for striking off is what the lists are for. Pages that both
    name are the same and are not read.
    """
    before, after = set(old.spills), {*new.spills, *(each.spill for each in new.unlinked_pages)}
    after -= {each.spill for each in old.unlinked_pages}
    named = {each.key for each in new.unlinked} | {spill.key for spill in after}
    named.update(keys_of(_own_rows(new)))
    for spill in after - before:
        named.update(keys_of(rows_of(spill)))
    gone = before - after
    held = [*keys_of(_own_rows(old)), *(spill.key for spill in gone)]
    for spill in gone:
        held += keys_of(rows_of(spill))
    return next((key for key in held if key not in named), None)


def named_keys(head: Head, rows_of: RowsOf) -> set[str]:
    """The objects of a head's rows, of its views, of its pages' rows, and the pages. Reads every page."""
    named = {*keys_of(_own_rows(head)), *(spill.key for spill in head.spills)}
    for spill in head.spills:
        named.update(keys_of(rows_of(spill)))
    return named


def waiting_keys(head: Head, rows_of: RowsOf) -> Iterator[str]:
    """What left the index and waits for its deletion: objects, pages, and the objects of the rows of those."""
    for each in head.unlinked:
        yield each.key
    for page in head.unlinked_pages:
        with suppress(NotFound):  # it goes last, so nothing of it is left
            yield from keys_of(rows_of(page.spill))
        yield page.spill.key


def named_by(head: Head, rows_of: RowsOf) -> set[str]:
    """Every key that a head names: rows, those of its pages and views, pages, all that waits for its deletion.

    Raises what `rows_of` raises for a page that cannot be read: then nothing may be called nobody's.
    """
    return named_keys(head, rows_of) | set(waiting_keys(head, rows_of))


def rows_unless_deleted(newest: Head, rows_of: RowsOf) -> RowsOf:
    """Read pages of older manifests. A deleted page has no rows; a lost one raises what `rows_of` raises.

    1. A page leaves the lists of pending deletes only after it was deleted. So a page that is not there was deleted if
       `newest` neither names nor lists it, and was lost otherwise.
    2. A page is deleted only when no pin holds it. So a pin of the older manifest has lapsed, or came too late.
    3. No reader relies on such a pin, and `newest` names or lists every object of the page's rows that is needed.
    """
    expected = {spill.key for spill in newest.spills} | {each.key for each in newest.unlinked}
    expected |= {page.spill.key for page in newest.unlinked_pages}

    def rows(spill: SpillRow) -> Rows:
        try:
            return rows_of(spill)
        except NotFound:
            if spill.key in expected:
                raise
            return ()

    return rows


def _own_rows(head: Head) -> Iterator[RemoteSegment]:
    """Everything with objects that the head names itself: the newest rows and the views'."""
    yield from head.segments
    for view in head.views:
        yield from view.rows


def keys_of(rows: Iterable[RemoteSegment]) -> list[str]:
    """The objects of rows: two of each."""
    return [key for row in rows for key in (row.data_key, row.indexes_key)]


def _pages(rows: tuple[RemoteSegment, ...], rule: SpillRule, new_page: NewPage) -> list[SpillRow]:
    made = []
    while rows:
        count = _page_end(rows, rule)
        made.append(new_page(rows[:count]))
        rows = rows[count:]
    return made


def _page_end(rows: tuple[RemoteSegment, ...], rule: SpillRule) -> int:
    """How many of `rows` one page takes: up to the first gap, or leader epoch, too many. Never none."""
    gaps, epochs = 0, {epoch for epoch, _ in rows[0].epochs}
    for count in range(1, min(len(rows), rule.page_rows_max)):
        gaps += rows[count - 1].next_offset < rows[count].base_offset
        epochs.update(epoch for epoch, _ in rows[count].epochs)
        if gaps > rule.gaps_max or len(epochs) > rule.epochs_max:
            return count
    return min(len(rows), rule.page_rows_max)
