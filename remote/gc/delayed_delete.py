"""Deleting what left a partition's index and whose grace time is over: one order, whoever is the writer.

| step | effect | a crash after it leaves |
|---|---|---|
| 0 | a head lists it as unlinked, and is committed; the grace time is over (the caller's) | objects on a list |
| 1 | the pins are looked at (`remote.gc.pin_watch`): what one holds stays | the same |
| 2 | the epoch is proved to be ours, from the store; no row of a page of that head names an object | the same |
| 3 | the forks are asked, then the objects deleted, of a page its rows' first | a list of what is gone |
| 4 | a head without them | nothing |

Each step may be done again by this writer or the next. One that was replaced between 2 and 3 deletes what the list of
the head named before, which no later head names again; it is fenced in step 4, and the next writer strikes it off.
"""

from __future__ import annotations

from collections.abc import Collection

from local.errors import Corrupt
from remote.gc.fork_references import delete_objects
from remote.gc.page_removal import delete_pages
from remote.gc.pin_watch import PinWatch, Unlinking
from remote.keys import parse_data_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import forget_unlinked
from remote.manifest.manifest_lookup import MetadataIndex
from remote.store import ObjectStore


def unlinkings(log: MetadataLog, keys: Collection[str]) -> dict[str, Unlinking]:
    """When each of `keys`, objects and pages, left the index; those that the newest known head lists."""
    head = log.cached
    if head is None:
        return {}
    since = {each.key: Unlinking(sequence=each.unlinked_sequence, at_ms=each.unlinked_ms) for each in head.unlinked}
    for page in head.unlinked_pages:
        since[page.spill.key] = Unlinking(sequence=page.unlinked_sequence, at_ms=page.unlinked_ms)
    return {key: since[key] for key in keys if key in since}


def free_of_pins(log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int) -> set[str]:
    """Step 1: those of `keys` that the newest known head lists and that no pin holds. Raises as `PinWatch.free`."""
    due, head = unlinkings(log, keys), log.cached
    return pins.free(due, sequence=head.sequence, now_ms=now_ms) if head is not None and due else set()


def delete_due_objects(
    store: ObjectStore, prefix: str, log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int
) -> set[str]:
    """Steps 1 to 4 for objects whose grace time is over; those that went. Raises Fenced, Unavailable, and Corrupt for a
    pin or a fork's head that cannot be read."""
    free = free_of_pins(log, pins, keys, now_ms)
    if not free:
        return free
    # The last look before bytes go for good: from the store, not from memory (DESIGN, commit protocol 5).
    newest = log.check_still_writer()
    due = [key for key in keys if key in free]
    check_unnamed(log.index(newest), due)
    delete_objects(store, prefix, due, has_forks=pins.has_forks)
    log.commit(forget_unlinked(due), now_ms)
    return free


def check_unnamed(index: MetadataIndex, keys: Collection[str]) -> None:
    """Raises Corrupt where a row of a page names one of `keys`, pending deletes of this head.

    The validation of the head sees the rows of the head alone. A key says its base offset, so at most the page that
    holds this offset is read. Pages never change and are kept.
    """
    for key in keys:
        name = parse_data_key(key)
        if name is None:
            continue
        for row in index.rows_with_dead(name.base_offset, name.base_offset + 1):
            if key in (row.data_key, row.indexes_key):
                facts = {"object": key, "base_offset": row.base_offset, "next_offset": row.next_offset}
                raise Corrupt("deleting an object, a row of the same head names it; nothing was deleted", **facts)


def delete_due_pages(
    store: ObjectStore, prefix: str, log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int
) -> set[str]:
    """The same for pages that left whole, with the objects of all their rows."""
    free = free_of_pins(log, pins, keys, now_ms)
    if not free:
        return free
    listed = {page.spill.key: page for page in (log.cached.unlinked_pages if log.cached is not None else ())}
    newest = log.check_still_writer()
    pages = [listed[key] for key in keys if key in free]
    delete_pages(store, prefix, log, newest, pages, now_ms, has_forks=pins.has_forks)
    return free
