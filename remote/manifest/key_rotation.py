"""Rotate the keys of a topic's index: wrap the data keys again, seal manifests and pages.

Reads no data object.

The objects keep their data keys. So this covers a change of the key ring's key (its owner, its age, its storage). If an
attacker has data keys, only new objects help.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | a commit for each page of older entries: entries wrapped again, in a new, sealed page | both forms in use |
| 2 | the same for the newest entries, and for the entries of views | all is done |

Each of these commits seals its manifest by the key, so the first commit already requires that readers have the ring. A
repeated run does the remaining steps. Memory and manifests stay bounded. Each wrapped key gets the current form
(`remote.segments.encryption`), which binds it to topic, partition and entry. Old manifests and old pages keep the old
form until `tiered gc` deletes them. After that the old key can be removed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from remote.keys import object_identity
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import Change, settle
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import KeyRing, is_current


def rewrap_keys(metadata: MetadataLog, keys: KeyRing, key_id: str, now_ms: int) -> int:
    """Wrap every data key by `key_id`, and seal manifest and pages by it.

    Returns how many data keys changed. Raises AccessDenied if `keys` lacks a key, before the page concerned is
    committed, and the errors of `commit`.
    """
    if metadata.has_commit_in_doubt:
        metadata.commit(settle(), now_ms)  # a commit in doubt could add entries with the former wrapping
    manifest = metadata.refresh()
    change, changed = rewrap(keys, key_id, metadata.prefix), 0
    for start, end, is_unsealed in _stretches(manifest, key_id):
        entries = metadata.ask(manifest, lambda index, start=start, end=end: tuple(index.entries_with_dead(start, end)))  # type: ignore[misc]
        old = sum(is_due(entry, key_id) for entry in entries)
        if old or is_unsealed:
            metadata.commit(change, now_ms, touches=(start, end))
        changed += old
    of_views = sum(is_due(entry, key_id) for view in manifest.views for entry in view.entries)
    if of_views or metadata.refresh().seal_key_id != key_id:
        metadata.commit(change, now_ms)
    return changed + of_views


def rewrap(keys: KeyRing, key_id: str, prefix: str) -> Change:
    """The change for the manifest's own entries, its views' included. It always makes a new manifest."""
    rewrapped = partial(rewrapped_entry, keys, key_id, prefix)

    def change(manifest: Manifest) -> Manifest:
        views = tuple(replace(view, entries=tuple(map(rewrapped, view.entries))) for view in manifest.views)
        return replace(manifest, segments=tuple(map(rewrapped, manifest.segments)), views=views, seal_key_id=key_id)

    return change


def rewrapped_entry(keys: KeyRing, key_id: str, prefix: str, entry: SegmentEntry) -> SegmentEntry:
    """The entry with its data key wrapped by `key_id`, in the current form. `prefix` is its partition's.

    Returns `entry` itself if it is current or not encrypted. Raises AccessDenied.
    """
    if entry.key_id is None or not is_due(entry, key_id):
        return entry
    name = object_identity(prefix, entry.data_key)
    wrapped = keys.rewrapped(entry.key_id, entry.wrapped_key or "", name, key_id)
    return replace(entry, key_id=key_id, wrapped_key=wrapped)


def is_due(entry: SegmentEntry, key_id: str) -> bool:
    """Whether the entry's data key is wrapped by another key than `key_id`, or in an older form."""
    return entry.key_id is not None and (entry.key_id != key_id or not is_current(entry.wrapped_key))


def seals_due(manifest: Manifest, key_id: str) -> int:
    """How many objects of the index are not sealed by `key_id`: the manifest, and the pages that it names."""
    return (manifest.seal_key_id != key_id) + sum(page.seal_key_id != key_id for page in manifest.pages)


def _stretches(manifest: Manifest, key_id: str) -> list[tuple[int, int, bool]]:
    """Offset ranges of the pages, each with whether `key_id` does not seal it; then of the newest entries."""
    pages = [(page.base_offset, page.next_offset, page.seal_key_id != key_id) for page in manifest.pages]
    newest = [(manifest.segments[0].base_offset, manifest.segments[-1].next_offset, False)] if manifest.segments else []
    return pages + newest
