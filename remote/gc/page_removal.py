"""Deleting pages that left the index whole, with the objects of all their rows.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | the objects of the page's rows are deleted | the page, and the entry that lists it: again from here |
| 2 | the page is deleted | an entry that lists what is gone: nothing of it is left |
| 3 | a head without that entry | nothing |

A page that is damaged (read twice, and not what its entry says) names nothing. It goes alone: step 1 is left out, and
a line in the log tells what stays. Nothing that somebody needs is lost, for all its rows are below the log start, their
grace time is over and no pin holds them; and nothing is deleted that nobody named. What stays are objects that no head
names, so they are found like all others of that kind, by their epoch, once another one has begun (`remote.gc.orphans`,
``tiered gc``). To keep the entry instead would keep the bytes for ever and save nothing, and nobody could tell what is
an orphan where the lists hold a page that cannot be read. What the store cannot give at the moment is no damage.

The page is the only list of those objects, so it goes after them. What a fork needs stays
(`remote.gc.fork_references`). Before step 1 comes what comes before every deletion: the grace time, the pins, the proof
that this writer is the last (`remote.gc.delayed_delete`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from local.errors import Corrupt, NotFound, describe
from remote.gc.fork_references import delete_objects
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head, UnlinkedPage
from remote.manifest.manifest_changes import forget_pages
from remote.manifest.page_spill import keys_of
from remote.store import ObjectStore

_log = logging.getLogger(__name__)


def delete_pages(
    store: ObjectStore,
    prefix: str,
    log: MetadataLog,
    head: Head,
    pages: Sequence[UnlinkedPage],
    now_ms: int,
    *,
    has_forks: bool = True,
) -> None:
    """Steps 1 to 3, for `pages` that `head`, the newest, lists; the caller has proved that they may go.

    `has_forks` as of `remote.gc.fork_references.delete_objects`.

    Raises what the store raises. Of a damaged page the objects of its rows stay; that is told in the log.
    """
    named = {*keys_of(head.segments), *keys_of(head.view_rows), *(spill.key for spill in head.spills)}
    for page in pages:
        living = set(keys_of(log.index(head).rows_with_dead(page.spill.base_offset, page.spill.next_offset)))
        keys = [key for key in _objects_of(prefix, log, page) if key not in named and key not in living]
        delete_objects(store, prefix, keys, has_forks=has_forks)
        store.delete([prefix + page.spill.key])
    log.commit(forget_pages([page.spill.key for page in pages]), now_ms)


def _objects_of(prefix: str, log: MetadataLog, page: UnlinkedPage) -> list[str]:
    """The objects of the page's rows, as far as that can be known."""
    try:
        return keys_of(log.page_rows(page.spill))
    except NotFound:
        return []  # it goes last, so nothing of it is left
    except Corrupt as error:
        spill = page.spill
        facts = {"base_offset": spill.base_offset, "next_offset": spill.next_offset, "segments": spill.segment_count}
        told = {"prefix": prefix, "key": spill.key, **facts, "size_bytes": spill.stored_bytes, "cause": error}
        _log.error(
            "%s",
            describe("a page that is deleted is damaged: its rows' objects stay until 'tiered gc' finds them", told),
        )
        return []
