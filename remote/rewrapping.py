"""Changing the keys under which data keys are wrapped: rows are rewritten, no object is read or written.

The objects keep their data keys. So this is for a change of the key that people hold (its owner, its age, where it is
kept); against somebody who got hold of data keys only new objects help.

A commit for each page of older rows and one for the newest, so memory and heads stay bounded; a crash between two
leaves both keys in use, and running it again finishes. Pages of former heads keep the old wrappings until they are
collected: the old key can go when nothing of them is left.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from remote.encryption import KeyRing
from remote.head import Head
from remote.head_changes import Change, settle
from remote.keys import stem_of
from remote.metadata_log import MetadataLog
from remote.segment import RemoteSegment


def rewrap_keys(metadata: MetadataLog, keys: KeyRing, key_id: str, now_ms: int) -> int:
    """Every encrypted row of a partition is wrapped by `key_id` afterwards; how many were not before.

    Raises AccessDenied, before anything of a page is committed, where `keys` lacks a key, and what `commit` raises.
    """
    if metadata.is_unsettled:
        metadata.commit(settle(), now_ms)  # what may happen yet would bring rows as they were wrapped then
    head = metadata.refresh()
    changed = 0
    for start, end in _stretches(head):
        rows = metadata.ask(head, lambda index, start=start, end=end: tuple(index.rows_with_dead(start, end)))  # type: ignore[misc]
        old = sum(_is_due(row, key_id) for row in rows)
        if old:
            metadata.commit(rewrap(keys, key_id), now_ms, touches=(start, end))
        changed += old
    of_views = sum(_is_due(row, key_id) for view in head.views for row in view.rows)
    if of_views:
        metadata.commit(rewrap(keys, key_id), now_ms)
    return changed + of_views


def rewrap(keys: KeyRing, key_id: str) -> Change:
    """The change for the rows that a head holds itself, its views' among them."""
    rewrapped = partial(rewrapped_row, keys, key_id)

    def change(head: Head) -> Head:
        segments = tuple(map(rewrapped, head.segments))
        views = tuple(replace(view, rows=tuple(map(rewrapped, view.rows))) for view in head.views)
        is_same = (segments, views) == (head.segments, head.views)
        return head if is_same else replace(head, segments=segments, views=views)

    return change


def rewrapped_row(keys: KeyRing, key_id: str, row: RemoteSegment) -> RemoteSegment:
    """The row with its data key wrapped by `key_id`; the same where it is, or is not encrypted. Raises AccessDenied."""
    if row.key_id is None or not _is_due(row, key_id):
        return row
    wrapped = keys.rewrapped(row.key_id, row.wrapped_key or "", stem_of(row.data_key), key_id)
    return replace(row, key_id=key_id, wrapped_key=wrapped)


def _stretches(head: Head) -> list[tuple[int, int]]:
    """Offsets page by page, and those of the newest rows."""
    pages = [(page.base_offset, page.next_offset) for page in head.spills]
    newest = [(head.segments[0].base_offset, head.segments[-1].next_offset)] if head.segments else []
    return pages + newest


def _is_due(row: RemoteSegment, key_id: str) -> bool:
    return row.key_id not in (None, key_id)
