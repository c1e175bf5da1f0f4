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
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import objects_of
from remote.manifest.view import CompactedView, ViewFailure, ViewStart, find_view
from remote.manifest.view_catalog import ViewCatalog
from remote.segment_entry import SegmentEntry

Holder = TypeVar("Holder", Manifest, ViewCatalog)


def announce_views(names: Sequence[str]) -> Callable[[Holder], Holder]:
    """Record views that will be built here and exist elsewhere until then.

    From now on tombstones wait for them.
    """

    def change(manifest: Holder) -> Holder:
        for name in names:
            manifest = _altered(manifest, name, _as_it_is)
        return manifest

    return change


def begin_view(name: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Record that a run of this view is in progress, visible to all readers; the old view stays readable."""
    check_view(name)

    def change(manifest: Holder) -> Holder:
        start = ViewStart(started_ms=now_ms, epoch=manifest.epoch)
        return _altered(manifest, name, lambda view: replace(view, under_way=start))

    return change


def fail_view(name: str, error: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Record why a run failed; the view stays unchanged."""
    failure = ViewFailure(failed_ms=now_ms, error=error)

    def change(manifest: Holder) -> Holder:
        return _altered(manifest, name, lambda view: replace(view, under_way=None, failure=failure))

    return change


def switch_view(built: CompactedView, *, replaces: CompactedView | None, now_ms: int) -> Callable[[Holder], Holder]:
    """Replace a view by the one that was built from it. Raises Conflict if the view has changed since."""

    def change(manifest: Holder) -> Holder:
        known = find_view(manifest.views, built.name)
        if known is not None and known.last_run == built.last_run and _ulids(known) == _ulids(built):
            return manifest
        if _ulids(known) != _ulids(replaces):
            raise Conflict("cannot switch to the new view, the view was replaced", view=built.name)
        gone = [entry for entry in known.entries if entry.ulid not in _ulids(built)] if known is not None else []
        return _with_pending_deletes(_altered(manifest, built.name, lambda _: built), gone, now_ms)

    return change


def drop_view(name: str, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Remove a view from the manifest; its objects become pending deletes."""

    def change(manifest: Holder) -> Holder:
        view = find_view(manifest.views, name)
        if view is None:
            return manifest
        kept = tuple(each for each in manifest.views if each is not view)
        return _with_pending_deletes(replace(manifest, views=kept), view.entries, now_ms)

    return change


def cut_views(offset: int, *, now_ms: int) -> Callable[[Holder], Holder]:
    """Follow a truncation of the log to `offset`: void views with a horizon above it, with the reason."""

    def change(manifest: Holder) -> Holder:
        void = [each for each in manifest.views if each.horizon_offset > offset]
        if not void:
            return manifest
        views = tuple(_voided(each, offset, now_ms) if each in void else each for each in manifest.views)
        return _with_pending_deletes(
            replace(manifest, views=views), [entry for each in void for entry in each.entries], now_ms
        )

    return change


def _voided(view: CompactedView, offset: int, now_ms: int) -> CompactedView:
    why = f"the log ends at offset {offset}, below the horizon {view.horizon_offset} of the view: build the view again"
    return CompactedView(name=view.name, failure=ViewFailure(failed_ms=now_ms, error=why))


def _altered(manifest: Holder, name: str, alter: Callable[[CompactedView], CompactedView]) -> Holder:
    """The manifest with the altered or new view; the same manifest if nothing changes."""
    known = find_view(manifest.views, name)
    altered = alter(CompactedView(name=check_view(name)) if known is None else known)
    if altered == known:
        return manifest
    views = [*(each for each in manifest.views if each.name != name), altered]
    return replace(manifest, views=tuple(sorted(views, key=_name)))


def _as_it_is(view: CompactedView) -> CompactedView:
    return view


def _name(view: CompactedView) -> str:
    return view.name


def _with_pending_deletes(manifest: Holder, entries: Sequence[SegmentEntry], now_ms: int) -> Holder:
    objects = tuple(each for entry in entries for each in objects_of(entry, now_ms, manifest.epoch))
    return replace(manifest, pending_deletes=manifest.pending_deletes + objects)


def _ulids(view: CompactedView | None) -> set[str]:
    return {entry.ulid for entry in view.entries} if view is not None else set()
