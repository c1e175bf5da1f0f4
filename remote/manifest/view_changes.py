"""Changes of compacted views: pure functions of a manifest, or of a `ViewCatalog`.

Readers see only `switch_view`. Unlinked objects stay for the grace period, for readers of an older manifest.

**View catalog.** Without a bucket the file ``view-catalog`` of a partition holds the views and the pending deletes;
keys are relative to the partition's directory. The bytes are a line with format, CRC32C and length, then JSON. Every
process that changes it raises `epoch`: a run of an earlier epoch was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Concatenate, Protocol, cast

import msgspec

from local.errors import Conflict, Corrupt
from local.format.crc32c import crc32c
from remote.keys import check_view, parse_view_key
from remote.manifest.manifest import PendingDelete
from remote.manifest.manifest_changes import Holder, P, as_change, unlinked
from remote.manifest.manifest_validation import entry_contradiction
from remote.manifest.view import (
    STORED_VIEW,
    CompactedView,
    StoredForm,
    ViewFailure,
    ViewStart,
    find_view,
    view_contradiction,
)
from remote.segment_entry import INT64_MAX, WriterEpoch

CATALOG_BYTES_MAX = 64 << 20
_VERSION = 1
_LINE = re.compile(rb"tiered-view-catalog ([0-9]{1,4}) ([0-9a-f]{8}) ([0-9]{1,9})\n")
_LINE_BYTES_MAX = 64


class ViewChange(Protocol):
    def __call__(self, manifest: Holder, /) -> Holder: ...


def as_view_change(apply: Callable[Concatenate[Any, P], Any]) -> Callable[P, ViewChange]:
    return cast("Callable[P, ViewChange]", as_change(apply))


@as_view_change
def announce_views(manifest: Holder, names: Sequence[str]) -> Holder:
    """Record views that exist on a disk and will be built here. From then on they count for the tombstone bound."""
    for name in names:
        manifest = _altered(manifest, name, lambda view: view)
    return manifest


@as_view_change
def begin_view(manifest: Holder, name: str, *, now_ms: int) -> Holder:
    """Record that a run of this view is in progress, visible to all readers; the old view stays readable."""
    start = ViewStart(started_ms=now_ms, epoch=manifest.epoch)
    return _altered(manifest, name, lambda view: replace(view, under_way=start))


@as_view_change
def fail_view(manifest: Holder, name: str, error: str, *, now_ms: int) -> Holder:
    failure = ViewFailure(failed_ms=now_ms, error=error)
    return _altered(manifest, name, lambda view: replace(view, under_way=None, failure=failure))


@as_view_change
def switch_view(manifest: Holder, built: CompactedView, *, replaces: CompactedView | None, now_ms: int) -> Holder:
    """Replace a view by the one that was built from it. Raises Conflict if the view has changed since."""
    known = find_view(manifest.views, built.name)
    if known is not None and known.last_run == built.last_run and _ulids(known) == _ulids(built):
        return manifest
    if _ulids(known) != _ulids(replaces):
        raise Conflict("cannot switch to the new view, the view was replaced", view=built.name)
    removed = [entry for entry in known.entries if entry.ulid not in _ulids(built)] if known is not None else []
    return unlinked(_altered(manifest, built.name, lambda _: built), removed, now_ms)


@as_view_change
def drop_view(manifest: Holder, name: str, *, now_ms: int) -> Holder:
    view = find_view(manifest.views, name)
    if view is None:
        return manifest
    remaining = tuple(each for each in manifest.views if each is not view)
    return unlinked(replace(manifest, views=remaining), view.entries, now_ms)


@as_view_change
def cut_views(manifest: Holder, offset: int, *, now_ms: int) -> Holder:
    """Follow a truncation of the log to `offset`: void views with a horizon above it, with the reason."""
    void = [each for each in manifest.views if each.horizon_offset > offset]
    if not void:
        return manifest
    views = tuple(_voided(each, offset, now_ms) if each in void else each for each in manifest.views)
    return unlinked(replace(manifest, views=views), [entry for each in void for entry in each.entries], now_ms)


def _voided(view: CompactedView, offset: int, now_ms: int) -> CompactedView:
    why = f"the log ends at offset {offset}, below the horizon {view.horizon_offset} of the view: build the view again"
    return CompactedView(name=view.name, failure=ViewFailure(failed_ms=now_ms, error=why))


def _altered(manifest: Holder, name: str, alter: Callable[[CompactedView], CompactedView]) -> Holder:
    known = find_view(manifest.views, name)
    altered = alter(CompactedView(name=check_view(name)) if known is None else known)
    if altered == known:
        return manifest
    views = [*(each for each in manifest.views if each.name != name), altered]
    return replace(manifest, views=tuple(sorted(views, key=attrgetter("name"))))


def _ulids(view: CompactedView | None) -> set[str]:
    return {entry.ulid for entry in view.entries} if view is not None else set()


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCatalog:
    """The views and pending deletes of a partition without a remote tier; `views` are ordered by name."""

    epoch: WriterEpoch = 1
    views: tuple[CompactedView, ...] = ()
    pending_deletes: tuple[PendingDelete, ...] = ()

    @property
    def named_keys(self) -> frozenset[str]:
        entries = (entry for view in self.views for entry in view.entries)
        named = {key for entry in entries for key in (entry.data_key, entry.indexes_key)}
        return frozenset(named | {each.key for each in self.pending_deletes})


_STORED = StoredForm(ViewCatalog, {"pending_deletes": "unlinked"}, views=STORED_VIEW)


def encode_catalog(catalog: ViewCatalog) -> bytes:
    body = _STORED.encode(catalog)
    return b"tiered-view-catalog %d %08x %d\n" % (_VERSION, crc32c(body), len(body)) + body


def decode_catalog(data: bytes, *, path: str) -> ViewCatalog:
    """Decode the file of `encode_catalog`. Raises Corrupt for any defect, naming the file."""
    line = _LINE.match(data[:_LINE_BYTES_MAX])
    if line is None or int(line[1]) != _VERSION:
        raise Corrupt("cannot read a view catalog, it does not start with the format line", path=path)
    body, expected = data[line.end() :], int(line[2], 16)
    if len(body) != int(line[3]) or len(body) > CATALOG_BYTES_MAX:
        lengths = {"expected": int(line[3]), "found": len(body)}
        raise Corrupt("a view catalog is damaged, its length differs", path=path, **lengths)
    if (found := crc32c(body)) != expected:
        facts = {"path": path, "expected": f"{expected:08x}", "found": f"{found:08x}"}
        raise Corrupt("a view catalog is damaged, its checksum differs", **facts)
    try:
        catalog = _STORED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("the body of a view catalog is not a catalog", path=path, cause=str(error)) from error
    if (wrong := next(_contradictions(catalog), None)) is not None:
        raise Corrupt(f"invalid view catalog, {wrong}", path=path)
    return catalog


def _contradictions(catalog: ViewCatalog) -> Iterator[str]:
    if (wrong := view_contradiction(catalog.views, upto_offset=INT64_MAX)) is not None:
        yield wrong
    for view in catalog.views:
        for entry in view.entries:
            if (wrong := entry_contradiction(entry, view=view.name, epoch_max=catalog.epoch)) is not None:
                yield wrong
    for each in catalog.pending_deletes:
        if parse_view_key(each.key) is None:
            yield f"a pending delete is not a part of a view: key={each.key!r}"
