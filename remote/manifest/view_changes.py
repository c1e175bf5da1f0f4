"""Changes of compacted views: start, switch, fail, drop.

Pure functions, as in `remote.manifest.manifest_changes`.

Each is a change of a manifest, or of the catalog of a partition without a remote tier (`remote.manifest.view_catalog`).

Readers see only `switch_view`: horizon, entries and figures change together. Objects of entries that the new view does
not contain become pending deletes. They stay for the grace period, for readers of an older manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from local.errors import Conflict
from remote.keys import check_view
from remote.manifest.manifest import Head
from remote.manifest.manifest_changes import objects_of
from remote.manifest.view import CompactedView, ViewFailure, ViewStart, find_view
from remote.manifest.view_catalog import ViewCatalog
from remote.segment_entry import SegmentEntry

Holder = TypeVar("Holder", Head, ViewCatalog)


def announce_views(names: Sequence[str]) -> Callable[[Holder], Holder]:
    """Record views that will be built here and exist elsewhere until then.

    From now on tombstones wait for them.
    """

    def change(head: Holder) -> Holder:
        for name in names:
            head = _altered(head, name, _as_it_is)
        return head

    return change


def begin_view(name: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Record that a run of this view is in progress, visible to all readers; the old view stays readable."""
    check_view(name)

    def change(head: Holder) -> Holder:
        start = ViewStart(started_ms=now_ms, epoch=head.epoch)
        return _altered(head, name, lambda view: replace(view, under_way=start))

    return change


def fail_view(name: str, error: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Record why a run failed; the view stays unchanged."""
    failure = ViewFailure(failed_ms=now_ms, error=error)

    def change(head: Holder) -> Holder:
        return _altered(head, name, lambda view: replace(view, under_way=None, failure=failure))

    return change


def switch_view(built: CompactedView, *, replaces: CompactedView | None, now_ms: int) -> Callable[[Holder], Holder]:
    """Replace a view by the one that was built from it. Raises Conflict if the view has changed since."""

    def change(head: Holder) -> Holder:
        known = find_view(head.views, built.name)
        if known is not None and known.last_run == built.last_run and _ulids(known) == _ulids(built):
            return head
        if _ulids(known) != _ulids(replaces):
            raise Conflict("switching a view, it is another one by now", view=built.name)
        gone = [row for row in known.rows if row.ulid not in _ulids(built)] if known is not None else []
        return _with_unlinked(_altered(head, built.name, lambda _: built), gone, now_ms)

    return change


def drop_view(name: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Remove a view from the manifest; its objects become pending deletes."""

    def change(head: Holder) -> Holder:
        view = find_view(head.views, name)
        if view is None:
            return head
        kept = tuple(each for each in head.views if each is not view)
        return _with_unlinked(replace(head, views=kept), view.rows, now_ms)

    return change


def cut_views(offset: int, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Follow a truncation of the log to `offset`: void views with a horizon above it, with the reason."""

    def change(head: Holder) -> Holder:
        void = [each for each in head.views if each.horizon_offset > offset]
        if not void:
            return head
        views = tuple(_voided(each, offset, now_ms) if each in void else each for each in head.views)
        return _with_unlinked(replace(head, views=views), [row for each in void for row in each.rows], now_ms)

    return change


def _voided(view: CompactedView, offset: int, now_ms: int) -> CompactedView:
    why = f"the log ends at offset {offset}, below the view's horizon {view.horizon_offset}: build the view anew"
    return CompactedView(name=view.name, failure=ViewFailure(failed_ms=now_ms, error=why))


def _altered(head: Holder, name: str, alter: Callable[[CompactedView], CompactedView]) -> Holder:
    """The manifest with the altered or new view; the same manifest if nothing changes."""
    known = find_view(head.views, name)
    altered = alter(CompactedView(name=check_view(name)) if known is None else known)
    if altered == known:
        return head
    views = [*(each for each in head.views if each.name != name), altered]
    return replace(head, views=tuple(sorted(views, key=_name)))


def _as_it_is(view: CompactedView) -> CompactedView:
    return view


def _name(view: CompactedView) -> str:
    return view.name


def _with_unlinked(head: Holder, rows: Sequence[SegmentEntry], now_ms: int) -> Holder:
    objects = tuple(each for row in rows for each in objects_of(row, now_ms, head.epoch))
    return replace(head, unlinked=head.unlinked + objects)


def _ulids(view: CompactedView | None) -> set[str]:
    return {row.ulid for row in view.rows} if view is not None else set()
