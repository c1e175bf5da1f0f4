"""Delete pending deletes of a partition after their grace period, in one order for every writer.

| step | effect | a crash after it leaves |
|---|---|---|
| 0 | the caller committed a manifest that lists the object as unlinked; the grace period is over | a pending delete |
| 1 | read the pins (`remote.gc.pin_watch`); skip each object that a pin holds | the same |
| 2 | prove from the store that the epoch is still ours; no entry of that manifest's pages names an object | the same |
| 3 | ask the forks, then delete the objects; of a page, first the objects of its entries | a list of deleted objects |
| 4 | commit a manifest that no longer lists them | nothing |

This writer or the next may repeat each step. A writer that is replaced between steps 2 and 3 still deletes objects
that its manifest listed as unlinked. No later manifest names these objects. The old writer is fenced in step 4, and
the next writer removes them from the list.
"""

from __future__ import annotations

from collections.abc import Collection

from local.errors import Corrupt
from remote.gc.fork_references import delete_objects
from remote.gc.page_removal import delete_pages
from remote.gc.pin_watch import PinWatch, Unlinking
from remote.keys import parse_data_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import remove_pending_deletes
from remote.manifest.manifest_lookup import MetadataIndex
from remote.store import ObjectStore


def unlinkings(log: MetadataLog, keys: Collection[str]) -> dict[str, Unlinking]:
    """When each of `keys` (objects, pages) was unlinked, for keys that the newest known manifest lists."""
    manifest = log.cached
    if manifest is None:
        return {}
    since = {
        each.key: Unlinking(sequence=each.unlinked_sequence, at_ms=each.unlinked_ms)
        for each in manifest.pending_deletes
    }
    for page in manifest.pending_page_deletes:
        since[page.page.key] = Unlinking(sequence=page.unlinked_sequence, at_ms=page.unlinked_ms)
    return {key: since[key] for key in keys if key in since}


def unpinned(log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int) -> set[str]:
    """Step 1: the `keys` that the newest known manifest lists and that no pin holds.

    Raises as `PinWatch.free`.
    """
    due, manifest = unlinkings(log, keys), log.cached
    return pins.free(due, sequence=manifest.sequence, now_ms=now_ms) if manifest is not None and due else set()


def delete_due_objects(
    store: ObjectStore, prefix: str, log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int
) -> set[str]:
    """Steps 1 to 4 for objects whose grace period is over. Returns the deleted keys.

    Raises Fenced, Unavailable, and Corrupt if a pin or a fork's manifest cannot be read.
    """
    free = unpinned(log, pins, keys, now_ms)
    if not free:
        return free
    # The last check before a permanent deletion reads the store, not memory (DESIGN, commit protocol 5).
    newest = log.check_still_writer()
    due = [key for key in keys if key in free]
    check_unnamed(log.index(newest), due)
    delete_objects(store, prefix, due, has_forks=pins.has_forks)
    log.commit(remove_pending_deletes(due), now_ms)
    return free


def check_unnamed(index: MetadataIndex, keys: Collection[str]) -> None:
    """Raise Corrupt if an entry of a page names one of `keys`, pending deletes of this manifest.

    The validation of a manifest covers only its own entries. A key contains its base offset, so each key needs at most
    the page that holds this offset. Pages never change and are cached.
    """
    for key in keys:
        name = parse_data_key(key)
        if name is None:
            continue
        for entry in index.entries_with_dead(name.base_offset, name.base_offset + 1):
            if key in (entry.data_key, entry.indexes_key):
                facts = {"object": key, "base_offset": entry.base_offset, "next_offset": entry.next_offset}
                raise Corrupt(
                    ("cannot delete an object, a segment entry of the same manifest names it; nothing was deleted"),
                    **facts,
                )


def delete_due_pages(
    store: ObjectStore, prefix: str, log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int
) -> set[str]:
    """Steps 1 to 4 for pages that were unlinked as a whole, with the objects of all their entries."""
    free = unpinned(log, pins, keys, now_ms)
    if not free:
        return free
    listed = {page.page.key: page for page in (log.cached.pending_page_deletes if log.cached is not None else ())}
    newest = log.check_still_writer()
    pages = [listed[key] for key in keys if key in free]
    delete_pages(store, prefix, log, newest, pages, now_ms, has_forks=pins.has_forks)
    return free
