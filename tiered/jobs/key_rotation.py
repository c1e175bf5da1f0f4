"""Key rotation in a manager: wrap data keys by the key of each topic's settings, and seal the index.

Objects keep their data keys: if an attacker has these, only new objects help.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | a commit for each page of older entries: entries wrapped again, in a new, sealed page | both forms in use |
| 2 | the same for the newest entries, and for the entries of views | all is done |

Each commit seals its manifest by the key: from the first one on readers need the ring. A repeated run does the
remaining steps. The old key can be removed once `tiered gc` has deleted the old manifests and pages.

The job holds a partition's `tier_lock`, not its `lock`: appends continue while the store is slow. Uploads that wait for
their commit are wrapped again too: otherwise their commit would bring the old key back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from local.names import TopicPartition
from remote.keys import object_identity
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import Change, settle
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import KeyRing, is_current
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedPartition:
    """Result for one partition, also of a dry run; `used` counts segments by their former wrapping key."""

    partition: TopicPartition
    used: Mapping[str, int]
    key_id: str | None
    rewrapped: int
    sealed: int = 0


def rotate_keys(
    manager: LogManager,
    topics: Iterable[str] | None = None,
    *,
    now_ms: int,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, everything: None,
) -> list[RotatedPartition]:
    """Return a result for each partition with remote data, by name; with `dry_run` nothing changes.

    `progress` receives (partitions done, all partitions), at first with 0 done. Raises NotFound for an unknown topic
    before any change, and the errors of `rewrap_keys` after the partitions before the failed one.
    """
    names = None if topics is None else [manager.topics.get(name).name for name in topics]
    partitions = manager.partitions.all(names)
    progress(0, len(partitions))
    found = []
    for done, held in enumerate(partitions, 1):
        rotated = _rotated(held, now_ms, dry_run=dry_run)
        if rotated is not None:
            found.append(rotated)
        progress(done, len(partitions))
    return found


def _rotated(held: Partition, now_ms: int, *, dry_run: bool) -> RotatedPartition | None:
    manifest, key_id = held.manifest(), held.object_encoding.key_id
    if manifest is None or held.metadata is None:
        return None
    entries = held.metadata.ask(manifest, lambda index: list(index.entries()))
    used = Counter(entry.key_id for entry in entries if entry.key_id is not None)
    rewrapped = sealed = 0
    if key_id is not None:
        # The index objects that `key_id` does not seal: the manifest, and the pages that it names.
        sealed = (manifest.seal_key_id != key_id) + sum(page.seal_key_id != key_id for page in manifest.pages)
        with held.tier_lock:
            rewrapped = rewrap_keys(held.metadata, held.object_encoding.keys, key_id, now_ms, dry_run=dry_run)
            rewrapped += _rewrap_waiting(held, key_id, dry_run=dry_run)
    return RotatedPartition(partition=held.name, used=dict(used), key_id=key_id, rewrapped=rewrapped, sealed=sealed)


def _rewrap_waiting(held: Partition, key_id: str, *, dry_run: bool) -> int:
    """Wrap the keys of uploads that wait for their commit; return their count. The caller holds `tier_lock`."""
    manifest, changed = held.manifest(), 0
    known = {entry.ulid for entry in manifest.segments} if manifest is not None else set()
    for segment, upload in held.uploads.items().items():
        if not is_due(upload.entry, key_id) or upload.entry.ulid in known:
            continue
        if not dry_run:
            entry = rewrapped_entry(held.object_encoding.keys, key_id, held.prefix, upload.entry)
            held.uploads.replace_entry(segment, entry)
        changed += 1
    return changed


def rewrap_keys(metadata: MetadataLog, keys: KeyRing, key_id: str, now_ms: int, *, dry_run: bool = False) -> int:
    """Wrap every data key, seal manifest and pages; return the number of changed keys. Raises AccessDenied."""
    if metadata.has_commit_in_doubt and not dry_run:
        metadata.commit(settle(), now_ms)  # a commit in doubt could add entries with the former wrapping
    manifest = metadata.refresh()
    change, changed = rewrap(keys, key_id, metadata.prefix), 0
    ranges = [(page.base_offset, page.next_offset, page.seal_key_id != key_id) for page in manifest.pages]
    if manifest.segments:
        ranges.append((manifest.segments[0].base_offset, manifest.segments[-1].next_offset, False))
    for start, end, is_unsealed in ranges:
        entries = metadata.ask(manifest, lambda index, start=start, end=end: tuple(index.entries_with_dead(start, end)))  # type: ignore[misc]
        old = sum(is_due(entry, key_id) for entry in entries)
        if (old or is_unsealed) and not dry_run:
            metadata.commit(change, now_ms, touches=(start, end))
        changed += old
    of_views = sum(is_due(entry, key_id) for view in manifest.views for entry in view.entries)
    if not dry_run and (of_views or metadata.refresh().seal_key_id != key_id):
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
    """The entry, wrapped by `key_id` in the current form; itself if current or plaintext. Raises AccessDenied."""
    if entry.key_id is None or not is_due(entry, key_id):
        return entry
    wrapped = keys.rewrapped(entry.key_id, entry.wrapped_key or "", object_identity(prefix, entry.data_key), key_id)
    return replace(entry, key_id=key_id, wrapped_key=wrapped)


def is_due(entry: SegmentEntry, key_id: str) -> bool:
    """Whether the entry's data key is wrapped by another key than `key_id`, or in an older form."""
    return entry.key_id is not None and (entry.key_id != key_id or not is_current(entry.wrapped_key))
