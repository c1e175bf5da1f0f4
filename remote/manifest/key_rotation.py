"""Changing the keys of a topic's index: data keys are wrapped anew, manifests and pages are sealed. No object is read.

The objects keep their data keys. So this is for a change of the key that people hold (its owner, its age, where it is
kept); against somebody who got hold of data keys only new objects help.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | for each page of older entries a commit: entries wrapped anew, in a new, sealed page | both forms in use |
| 2 | the same for the newest entries, and for those of views | all is done |

Each of these commits seals its manifest by the key, so the manifest is sealed from the first one on. Readers need the
ring by then. A repeated run does what is left. Memory and manifests stay bounded. An entry's wrapped key is brought
into the form of today (`remote.segments.encryption`), which binds it to topic, partition and entry. Old manifests and
old pages keep the old form, until they are collected; `tiered gc` collects them. The old key can go when nothing of
them is left.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from remote.keys import object_identity
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.manifest.manifest_changes import Change, settle
from remote.segment_entry import RemoteSegment
from remote.segments.encryption import KeyRing, is_current


def rewrap_keys(metadata: MetadataLog, keys: KeyRing, key_id: str, now_ms: int) -> int:
    """Wrap every data key by `key_id`, and seal manifest and pages by it; how many data keys were not so before.

    Raises AccessDenied, before anything of a page is committed, where `keys` lacks a key, and what `commit` raises.
    """
    if metadata.is_unsettled:
        metadata.commit(settle(), now_ms)  # what may happen yet would bring rows as they were wrapped then
    head = metadata.refresh()
    change, changed = rewrap(keys, key_id, metadata.prefix), 0
    for start, end, is_unsealed in _stretches(head, key_id):
        rows = metadata.ask(head, lambda index, start=start, end=end: tuple(index.rows_with_dead(start, end)))  # type: ignore[misc]
        old = sum(is_due(row, key_id) for row in rows)
        if old or is_unsealed:
            metadata.commit(change, now_ms, touches=(start, end))
        changed += old
    of_views = sum(is_due(row, key_id) for view in head.views for row in view.rows)
    if of_views or metadata.refresh().seal_key_id != key_id:
        metadata.commit(change, now_ms)
    return changed + of_views


def rewrap(keys: KeyRing, key_id: str, prefix: str) -> Change:
    """The change for the entries that a manifest holds itself, its views' too. It always makes a new manifest."""
    rewrapped = partial(rewrapped_row, keys, key_id, prefix)

    def change(head: Head) -> Head:
        views = tuple(replace(view, rows=tuple(map(rewrapped, view.rows))) for view in head.views)
        return replace(head, segments=tuple(map(rewrapped, head.segments)), views=views, seal_key_id=key_id)

    return change


def rewrapped_row(keys: KeyRing, key_id: str, prefix: str, row: RemoteSegment) -> RemoteSegment:
    """The entry of the partition at `prefix` with its data key wrapped by `key_id`, in the form of today.

    The same where it is, or is not encrypted. Raises AccessDenied.
    """
    if row.key_id is None or not is_due(row, key_id):
        return row
    name = object_identity(prefix, row.data_key)
    wrapped = keys.rewrapped(row.key_id, row.wrapped_key or "", name, key_id)
    return replace(row, key_id=key_id, wrapped_key=wrapped)


def is_due(row: RemoteSegment, key_id: str) -> bool:
    """Whether the entry's data key is wrapped by another key than `key_id`, or in the form of before."""
    return row.key_id is not None and (row.key_id != key_id or not is_current(row.wrapped_key))


def seals_due(head: Head, key_id: str) -> int:
    """How many objects of the index are not sealed by `key_id`: the manifest, and pages that it names."""
    return (head.seal_key_id != key_id) + sum(page.seal_key_id != key_id for page in head.spills)


def _stretches(head: Head, key_id: str) -> list[tuple[int, int, bool]]:
    """Offsets page by page, and whether the page is not sealed by the key; then those of the newest entries."""
    pages = [(page.base_offset, page.next_offset, page.seal_key_id != key_id) for page in head.spills]
    newest = [(head.segments[0].base_offset, head.segments[-1].next_offset, False)] if head.segments else []
    return pages + newest
