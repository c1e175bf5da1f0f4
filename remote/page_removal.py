"""Deleting pages that left the index whole, with the objects of all their rows.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | the objects of the page's rows are deleted | the page, and the entry that lists it: again from here |
| 2 | the page is deleted | an entry that lists what is gone: nothing of it is left |
| 3 | a head without that entry | nothing |

The page is the only list of those objects, so it goes after them. What a fork needs stays (`remote.forks`). Before
step 1 comes what comes before every deletion:
the grace time, the pins, the proof that this writer is the last (`remote.metadata_log`).
"""

from __future__ import annotations

from collections.abc import Sequence

from local.errors import NotFound
from remote.forks import delete_objects
from remote.head import Head, UnlinkedPage
from remote.head_changes import forget_pages
from remote.metadata_log import MetadataLog
from remote.spilling import keys_of
from remote.store import ObjectStore


def delete_pages(
    store: ObjectStore, prefix: str, log: MetadataLog, head: Head, pages: Sequence[UnlinkedPage], now_ms: int
) -> None:
    """Steps 1 to 3, for `pages` that `head`, the newest, lists; the caller has proved that they may go.

    Raises what the store raises, and Corrupt for a page that cannot be read: nothing of it is deleted then.
    """
    named = {*keys_of(head.segments), *keys_of(head.view_rows), *(spill.key for spill in head.spills)}
    for page in pages:
        try:
            keys = [key for key in keys_of(log.page_rows(page.spill)) if key not in named]
        except NotFound:
            keys = []
        delete_objects(store, prefix, keys)
        store.delete([prefix + page.spill.key])
    log.commit(forget_pages([page.spill.key for page in pages]), now_ms)
