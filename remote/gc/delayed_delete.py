"""Delete pending deletes of a partition after their grace period, in one order for every writer.

| step | effect | a crash after it leaves |
|---|---|---|
| 0 | the caller committed a manifest that lists the object as unlinked; the grace period is over | a pending delete |
| 1 | read the pins (`remote.gc.pins`); skip each object that a pin holds | the same |
| 2 | prove from the store that the epoch is still ours; no entry of that manifest names the object | the same |
| 3 | ask the forks, then delete the objects; of a page, first the objects of its entries | a list of deleted objects |
| 4 | commit a manifest that no longer lists them | nothing |

This writer or the next may repeat each step. A writer that is replaced between steps 2 and 3 still deletes objects that
its manifest listed as unlinked: no later manifest names them. It is fenced in step 4, and the next writer removes them
from the list.

Of a page that was unlinked as a whole, step 3 deletes the page last: only the page lists the objects. A damaged page
(read twice, and not as its pending delete describes it) names nothing. Its entries' objects stay, with a log line:

- No reader loses data: all its entries are below the log start offset, their grace period is over, no pin holds them.
- The remaining objects become orphans with the next epoch (`remote.gc.orphan_search`). A pending delete that stayed
  listed would keep the bytes for ever, and no search finds orphans while a listed page cannot be read.

**Old manifests** are deleted except pinned ones: only the newest counts, and readers may be about to read an old one.

1. Prove from the store that this process is still the writer. A crash leaves nothing.
2. Create the GC boundary (`remote.manifest.manifest_chain`). A crash leaves void manifests, which the next run deletes.
3. Delete the void manifests except pinned ones. Delete pins that expired RENEWAL_LAG_MS ago, because until then a
   holder may be renewing a pin to rely on it. Delete a fork's pin only once the fork names nothing and never will. A
   crash leaves some of them; the next run lists the rest.

A stall of any length between two steps is harmless. The boundary is KEPT manifests below a manifest that was the
newest, so every later manifest is above it, regardless of its writer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from local.errors import Corrupt, NotFound, describe
from remote.gc.fork_references import delete_unlinked, is_over
from remote.gc.object_deletion import DeleteReason, Evidence, delete_objects
from remote.gc.pins import RENEWAL_LAG_MS, PinWatch, Unlinking, list_pins, release
from remote.keys import MANIFESTS, parse_data_key, parse_manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, PendingPageDelete
from remote.manifest.manifest_changes import remove_pending_deletes
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.page_out import keys_of
from remote.store import ObjectStore

_log = logging.getLogger(__name__)


def unlinkings_of(manifest: Manifest) -> dict[str, Unlinking]:
    pending = manifest.pending
    return {each.key: Unlinking(sequence=each.unlinked_sequence, at_ms=each.unlinked_ms) for each in pending}


def unpinned(log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int) -> set[str]:
    """Step 1: the `keys` that the newest known manifest lists and no pin holds. Raises as `PinWatch.free`."""
    manifest = log.cached
    since = unlinkings_of(manifest) if manifest is not None else {}
    due = {key: since[key] for key in keys if key in since}
    return pins.free(due, sequence=manifest.sequence, now_ms=now_ms) if manifest is not None and due else set()


def delete_due_objects(
    store: ObjectStore, prefix: str, log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int
) -> set[str]:
    """Steps 1 to 4 for due objects; return the keys no longer pending. Raises Fenced, Unavailable, Corrupt."""
    free = unpinned(log, pins, keys, now_ms)
    if not free:
        return free
    # The last check before a permanent deletion reads the store, not memory.
    newest = log.check_still_writer()
    listed = unlinkings_of(newest)  # without objects that another process of this epoch deleted since
    due = [key for key in keys if key in free and key in listed]
    check_unnamed(log.index(newest), due)
    delete_unlinked(store, prefix, due, DeleteReason.PENDING_DELETE, newest, has_forks=pins.has_forks)
    log.commit(remove_pending_deletes(due), now_ms)
    return free


def check_unnamed(index: MetadataIndex, keys: Collection[str]) -> None:
    """Raise Corrupt if an entry names one of `keys`, which are pending deletes of the same manifest."""
    for key in keys:
        name = parse_data_key(key)
        if name is None:
            continue
        for entry in index.entries_with_dead(name.base_offset, name.base_offset + 1):
            if key in (entry.data_key, entry.indexes_key):
                facts = {"object": key, "base_offset": entry.base_offset, "next_offset": entry.next_offset}
                wrong = "cannot delete an object, a segment entry of the same manifest names it; nothing was deleted"
                raise Corrupt(wrong, **facts)


def delete_due_pages(
    store: ObjectStore, prefix: str, log: MetadataLog, pins: PinWatch, keys: Collection[str], now_ms: int
) -> set[str]:
    """As `delete_due_objects`, for whole unlinked pages with the objects of all their entries."""
    free = unpinned(log, pins, keys, now_ms)
    if not free:
        return free
    newest = log.check_still_writer()
    pages = [page for page in newest.pending_page_deletes if page.page.key in free]
    delete_pages(store, prefix, log, newest, pages, now_ms, has_forks=pins.has_forks)
    return free


def delete_pages(
    store: ObjectStore,
    prefix: str,
    log: MetadataLog,
    manifest: Manifest,
    pages: Sequence[PendingPageDelete],
    now_ms: int,
    *,
    has_forks: bool = True,
) -> None:
    """Steps 3 and 4 for `pages` after steps 1 and 2; `manifest` and `has_forks` as in `delete_unlinked`."""
    named = {*keys_of(manifest.segments), *keys_of(manifest.view_entries), *(page.key for page in manifest.pages)}
    for pending in pages:
        living = set(keys_of(log.index(manifest).entries_with_dead(pending.page.base_offset, pending.page.next_offset)))
        keys = [key for key in _objects_of(prefix, log, pending) if key not in named and key not in living]
        delete_unlinked(store, prefix, keys, DeleteReason.PENDING_PAGE, manifest, has_forks=has_forks)
        delete_objects(store, prefix, [pending.page.key], DeleteReason.PENDING_PAGE, Evidence(manifest=manifest))
    log.commit(remove_pending_deletes([pending.page.key for pending in pages]), now_ms)


def _objects_of(prefix: str, log: MetadataLog, pending: PendingPageDelete) -> list[str]:
    """The objects of the page's entries; empty if the page is deleted already or damaged."""
    try:
        return keys_of(log.page_entries(pending.page))
    except NotFound:
        return []  # the page is deleted last, so its objects are deleted too
    except Corrupt as error:
        page = pending.page
        offsets = {"base_offset": page.base_offset, "next_offset": page.next_offset, "segments": page.segment_count}
        facts = {"prefix": prefix, "key": page.key, **offsets, "size_bytes": page.stored_bytes, "cause": error}
        what = "a manifest page of the deleted partition is damaged; 'tiered gc' finds the objects of its entries"
        _log.error("%s", describe(what, facts))
        return []


class Collected(NamedTuple):
    manifests: int
    pins: int


def collect_manifests(store: ObjectStore, prefix: str, log: MetadataLog, upto: int, *, now_ms: int) -> Collected:
    """Delete expired pins, and unpinned manifests up to `upto`, never the newest; return counts. Raises Fenced."""
    manifest = log.check_still_writer()
    upto = min(upto, manifest.sequence - 1)
    if upto < 1:
        return Collected(manifests=0, pins=0)
    log.set_gc_boundary(upto)
    pins = list_pins(store, prefix)
    lapsed_ms = now_ms if manifest.deleted_ms is not None else now_ms - RENEWAL_LAG_MS  # no renewal after a deletion
    expired = [pin for pin in pins if pin.expires_ms <= lapsed_ms and (pin.fork is None or is_over(store, pin.fork))]
    held = {pin.sequence for pin in pins if pin.expires_ms > now_ms}
    void = []
    for info in store.list(prefix + MANIFESTS):
        key = info.key.removeprefix(prefix)
        if (sequence := parse_manifest_key(key)) is None:
            continue
        if sequence > log.gc_boundary:
            break
        if sequence not in held:
            void.append(key)
    delete_objects(store, prefix, void, DeleteReason.OLD_MANIFEST, Evidence(gc_boundary=log.gc_boundary))
    release(store, prefix, expired)
    return Collected(manifests=len(void), pins=len(expired))
