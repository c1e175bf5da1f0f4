"""The changes of a head that concern a compacted view: begun, switched, failed, dropped. As in `remote.head_changes`.

`switch_view` is the one that readers see: horizon, rows and figures change together, and the objects of rows that the
new view does not take over go on the list of those to delete. They stay for the grace time, for whoever reads by an
older head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from local.errors import Conflict
from remote.head import Head
from remote.head_changes import Change, objects_of
from remote.keys import check_view
from remote.segment import RemoteSegment
from remote.view import CompactedView, ViewFailure, ViewStart, find_view


def begin_view(name: str, *, now_ms: int) -> Change:
    """Note that a run of this view is under way, so that everybody sees it; what there is stays readable."""
    check_view(name)

    def change(head: Head) -> Head:
        start = ViewStart(started_ms=now_ms, epoch=head.epoch)
        return _altered(head, name, lambda view: replace(view, under_way=start))

    return change


def fail_view(name: str, error: str, *, now_ms: int) -> Change:
    """Keep why a run came to nothing; the view stays what it was."""
    failure = ViewFailure(failed_ms=now_ms, error=error)
    return lambda head: _altered(head, name, lambda view: replace(view, under_way=None, failure=failure))


def switch_view(built: CompactedView, *, replaces: CompactedView | None, now_ms: int) -> Change:
    """Put a new view in the place of the one that it was made of. Raises Conflict where that one is gone."""

    def change(head: Head) -> Head:
        known = find_view(head.views, built.name)
        if known is not None and known.last_run == built.last_run and _ulids(known) == _ulids(built):
            return head
        if _ulids(known) != _ulids(replaces):
            raise Conflict("switching a view, it is another one by now", view=built.name)
        gone = [row for row in known.rows if row.ulid not in _ulids(built)] if known is not None else []
        return _with_unlinked(_altered(head, built.name, lambda _: built), gone, now_ms)

    return change


def drop_view(name: str, *, now_ms: int) -> Change:
    """Take a view out of the head; its objects go after the grace time."""

    def change(head: Head) -> Head:
        view = find_view(head.views, name)
        if view is None:
            return head
        kept = tuple(each for each in head.views if each is not view)
        return _with_unlinked(replace(head, views=kept), view.rows, now_ms)

    return change


def _altered(head: Head, name: str, alter: Callable[[CompactedView], CompactedView]) -> Head:
    """The head with the view as `alter` makes it, a new one where there is none; the same head if nothing changes."""
    known = find_view(head.views, name)
    altered = alter(CompactedView(name=name) if known is None else known)
    if altered == known:
        return head
    others = (each for each in head.views if each.name != name)
    return replace(head, views=tuple(sorted((*others, altered), key=lambda view: view.name)))


def _with_unlinked(head: Head, rows: Sequence[RemoteSegment], now_ms: int) -> Head:
    objects = tuple(each for row in rows for each in objects_of(row, now_ms, head.epoch))
    return replace(head, unlinked=head.unlinked + objects)


def _ulids(view: CompactedView | None) -> set[str]:
    return {row.ulid for row in view.rows} if view is not None else set()
