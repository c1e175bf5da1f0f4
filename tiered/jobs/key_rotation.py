"""Key rotation in a manager: data keys are wrapped by the key that each topic's settings name now.

`remote.manifest.key_rotation` describes the cost and the effects. The job holds a partition's `tier_lock`, so no task
of the tier runs in it. It does not hold `lock`: appends and all other disk work continue while the store is slow.
Uploads that wait for their commit (`tiered.maintenance.upload_and_commit`) are wrapped again too: otherwise their
commit would bring the old key back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from local.names import TopicPartition
from remote.manifest.key_rotation import is_due, rewrap_keys, rewrapped_entry, seals_due
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedPartition:
    """Result for one partition.

    `used` counts its segments by the key that wrapped their data keys before. `key_id` is the topic's key, None if the
    topic is no longer encrypted. `rewrapped` segments were wrapped by it, or would be in a dry run. `sealed` index
    objects, manifest and pages, were or would be sealed by it (`remote.manifest.sealing`).
    """

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

    `progress` is called with (partitions done, all partitions), at first with 0 done. Raises NotFound for an unknown
    topic before any change. Raises the errors of `rewrap_keys`; the partitions before the failed one are done.
    """
    chosen = None if topics is None else [manager.topic(name).name for name in topics]
    partitions = manager.partitions(chosen)
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
    entries = held.metadata.ask(
        manifest, lambda index: [entry for entry in index.entries() if entry.key_id is not None]
    )
    used = Counter(entry.key_id for entry in entries if entry.key_id is not None)
    rewrapped = sum(is_due(entry, key_id) for entry in entries) if key_id else 0
    sealed = seals_due(manifest, key_id) if key_id else 0
    if not dry_run and key_id is not None:
        with held.tier_lock:
            rewrapped = rewrap_keys(held.metadata, held.object_encoding.keys, key_id, now_ms) + _rewrap_waiting(
                held, key_id
            )
    return RotatedPartition(partition=held.name, used=dict(used), key_id=key_id, rewrapped=rewrapped, sealed=sealed)


def _rewrap_waiting(held: Partition, key_id: str) -> int:
    """Wrap the keys of waiting uploads that the newest manifest does not name; return their count.

    The caller holds `tier_lock`.
    """
    manifest, changed = held.manifest(), 0
    known = {entry.ulid for entry in manifest.segments} if manifest is not None else set()
    for segment, upload in list(held.uploaded.items()):
        entry = rewrapped_entry(held.object_encoding.keys, key_id, held.prefix, upload.entry)
        if entry is not upload.entry and entry.ulid not in known:
            held.uploaded[segment] = replace(upload, entry=entry)
            changed += 1
    return changed
