"""The changes that concern a compacted view: begun, switched, failed, dropped. As in
`remote.manifest.manifest_changes`.

Each is a change of a manifest, and of the catalog of a partition whose views lie beside its log
(`remote.manifest.view_catalog`).

`switch_view` is the one that readers see: horizon, rows and figures change together, and the objects of rows that the
new view does not take over go on the list of those to delete. They stay for the grace time, for whoever reads by an
older head.
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
from remote.segment_entry import RemoteSegment

Holder = TypeVar("Holder", Head, ViewCatalog)


def announce_views(names: Sequence[str]) -> Callable[[Holder], Holder]:
    """Note views that are to be built here and lie elsewhere until then: tombstones wait for them from now on."""

    def change(head: Holder) -> Holder:
        for name in names:
            head = _altered(head, name, _as_it_is)
        return head

    return change


def begin_view(name: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Note that a run of this view is under way, so that everybody sees it; what there is stays readable."""
    check_view(name)

    def change(head: Holder) -> Holder:
        start = ViewStart(started_ms=now_ms, epoch=head.epoch)
        return _altered(head, name, lambda view: replace(view, under_way=start))

    return change


def fail_view(name: str, error: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Keep why a run came to nothing; the view stays what it was."""
    failure = ViewFailure(failed_ms=now_ms, error=error)

    def change(head: Holder) -> Holder:
        return _altered(head, name, lambda view: replace(view, under_way=None, failure=failure))

    return change


def switch_view(built: CompactedView, *, replaces: CompactedView | None, now_ms: int) -> Callable[[Holder], Holder]:
    """Put a new view in the place of the one that it was made of. Raises Conflict where that one is gone."""

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
    """Take a view out of the head; its objects go after the grace time."""

    def change(head: Holder) -> Holder:
        view = find_view(head.views, name)
        if view is None:
            return head
        kept = tuple(each for each in head.views if each is not view)
        return _with_unlinked(replace(head, views=kept), view.rows, now_ms)

    return change


def cut_views(offset: int, *, now_ms: int) -> Callable[[Holder], Holder]:
    """The log ends at `offset` again: views that know records from there on are void, and say why."""

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
    """The head with the view as `alter` makes it, a new one where there is none; the same head if nothing changes."""
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


def _with_unlinked(head: Holder, rows: Sequence[RemoteSegment], now_ms: int) -> Holder:
    objects = tuple(each for row in rows for each in objects_of(row, now_ms, head.epoch))
    return replace(head, unlinked=head.unlinked + objects)


def _ulids(view: CompactedView | None) -> set[str]:
    return {row.ulid for row in view.rows} if view is not None else set()
