"""Delete pages that were unlinked as a whole, with the objects of all their entries.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | delete the objects of the page's entries | the page, and the manifest's pending delete: repeat from here |
| 2 | delete the page object | a pending delete without any object left |
| 3 | commit a manifest without the pending delete | nothing |

Before step 1 come the conditions of every deletion (`remote.gc.delayed_delete`): the grace period is over, no pin holds
the page, and this process is proved to be the writer. The page is the only list of its objects, so it is deleted after
them. Objects that a fork needs stay (`remote.gc.fork_references`).

A damaged page (read twice, and not as its pending delete describes it) names nothing. Step 1 is left out for it, and a
log line says which objects stay. This is safe:

- No reader loses data: all its entries are below the log start offset, their grace period is over, no pin holds them.
- No unnamed object is deleted.
- The remaining objects are named by no manifest. They become orphans with the next epoch (`remote.gc.orphans`), and
  ``tiered gc`` finds them.
- A pending delete that stayed listed would keep the bytes for ever and save nothing. Orphans cannot be determined while
  a listed page cannot be read.

A page that the store cannot serve at the moment is not damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from local.errors import Corrupt, NotFound, describe
from remote.gc.fork_references import delete_objects
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, PendingPageDelete
from remote.manifest.manifest_changes import remove_pending_page_deletes
from remote.manifest.page_out import keys_of
from remote.store import ObjectStore

_log = logging.getLogger(__name__)


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
    """Steps 1 to 3, for `pages` that the newest manifest `manifest` lists.

    The caller has proved that they may be deleted. `has_forks` as in `remote.gc.fork_references.delete_objects`.

    Raises the store's errors. The objects of a damaged page's entries stay; a log line says so.
    """
    named = {*keys_of(manifest.segments), *keys_of(manifest.view_entries), *(page.key for page in manifest.pages)}
    for pending in pages:
        living = set(keys_of(log.index(manifest).entries_with_dead(pending.page.base_offset, pending.page.next_offset)))
        keys = [key for key in _objects_of(prefix, log, pending) if key not in named and key not in living]
        delete_objects(store, prefix, keys, has_forks=has_forks)
        store.delete([prefix + pending.page.key])
    log.commit(remove_pending_page_deletes([pending.page.key for pending in pages]), now_ms)


def _objects_of(prefix: str, log: MetadataLog, pending: PendingPageDelete) -> list[str]:
    """The objects of the page's entries; empty if the page is deleted already or damaged."""
    try:
        return keys_of(log.page_entries(pending.page))
    except NotFound:
        return []  # the page is deleted last, so its objects are deleted too
    except Corrupt as error:
        page = pending.page
        facts = {"base_offset": page.base_offset, "next_offset": page.next_offset, "segments": page.segment_count}
        told = {"prefix": prefix, "key": page.key, **facts, "size_bytes": page.stored_bytes, "cause": error}
        _log.error(
            "%s",
            describe(
                ("a manifest page of the deleted partition is damaged; 'tiered gc' finds the objects of its entries"),
                told,
            ),
        )
        return []
