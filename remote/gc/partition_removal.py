"""Removing a partition from the store, for a topic that was deleted: mark, wait, then rows before bytes, page by page.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | epoch + 1: whoever wrote it is fenced | the partition as it was; again from here |
| 2 | a head that says `deleted_ms` and a log start at the end | a deleted partition, readable for nobody |
| 3 | the grace time passes, counted from `deleted_ms` | the same |
| 4 | pages or rows out of the head, on its lists | objects on a list |
| 5 | no pin, epoch still ours: listed objects deleted, or a page with its rows' | a list of what is gone |
| 6 | a head without them; 5 again for the next page, 4 for what is left | 4, 5, or the end |
| 7 | nothing is left: the heads before the last are collected (`remote.gc.old_manifests`) | one head, and void ones |

The last head stays: it tells "deleted" from "lost", to readers and to a machine that comes back. Nothing but heads and
what a head names is deleted. The grace time is for readers with an older head; as nobody begins to read a deleted
partition, nor pins it (`remote.gc.pins`), it is waited for once, not for every page.

Two machines that delete the same topic must not fence each other for ever. Who is fenced by another removal gives way:
it only looks, until the grace time is over and nothing was committed for `PATIENCE_MS`; then the other one is gone, and
it takes over. Who comes new (a start) takes over at once, so each start costs the others one fence at most.
"""

from __future__ import annotations

from enum import Enum

from local.errors import Fenced, LogError
from remote.gc.fork_references import delete_objects
from remote.gc.old_manifests import collect_heads
from remote.gc.page_removal import delete_pages
from remote.gc.pin_watch import PinWatch, Unlinking
from remote.keys import HEADS, head_key
from remote.manifest.commit_protocol import LogState, MetadataLog
from remote.manifest.manifest import Head, UnlinkedObject, UnlinkedPage
from remote.manifest.manifest_changes import delete_partition, expire_pages, expire_segments, forget_unlinked
from remote.manifest.view_changes import drop_view
from remote.store import ObjectStore

ROWS_AT_ONCE = 2048  # whose objects a head lists one by one
PATIENCE_MS = 3_600_000  # a removal commits with every step; one that is silent for so long has died


class Removal(Enum):
    """How far a removal is: something was done; it waits for the grace time or a reader's pin; nothing is left."""

    UNDER_WAY = "under way"
    WAITING = "waiting"
    DONE = "done"


class PartitionRemoval:
    """One partition's way out. `step` is called until it says DONE; every step may be repeated by another process."""

    def __init__(
        self, store: ObjectStore, prefix: str, writer_id: str, *, topic: str, topic_id: str, partition: int
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._writer_id = writer_id
        self._topic, self._topic_id, self._partition = topic, topic_id, partition
        self._log, self._pins = MetadataLog(store, prefix), PinWatch(store, prefix)
        self._gives_way = False

    def step(self, now_ms: int, *, grace_ms: int) -> Removal:
        """The next step. Raises Unavailable, and Corrupt for a damaged head; the step after an error begins with what
        the bucket says then. Where another machine took over it is waited for: its step is ours."""
        try:
            return self._step(now_ms, grace_ms)
        except LogError as error:
            self._log, self._pins = MetadataLog(self._store, self._prefix), PinWatch(self._store, self._prefix)
            if not isinstance(error, Fenced):
                raise
            self._gives_way = True
            return Removal.WAITING

    def _step(self, now_ms: int, grace_ms: int) -> Removal:
        if self._log.state is LogState.READER:
            head = self._log.load()
            if head is not None and self._gives_way and _is_at_work(head, now_ms, grace_ms):
                return Removal.WAITING
            if head is None or (_is_empty(head) and not self._has_old_heads(head)):
                return Removal.DONE
            self._log.become_writer(
                self._writer_id,
                now_ms,
                topic=self._topic,
                topic_id=self._topic_id,
                partition=self._partition,
                removes=True,
            )
            self._gives_way = False
        head = self._log.commit(delete_partition(now_ms=now_ms), now_ms)
        assert head.deleted_ms is not None
        if _is_empty(head):
            return self._collect(head, now_ms)
        if now_ms - head.deleted_ms < grace_ms:
            return Removal.WAITING
        if head.unlinked or head.unlinked_pages:
            return self._delete(head, now_ms)
        self._unlink(head, head.deleted_ms, now_ms)
        return Removal.UNDER_WAY

    def _collect(self, head: Head, now_ms: int) -> Removal:
        """Step 7. While a known pin keeps an old head it alone is asked: a pin of hours makes nobody list."""
        if self._pins.keeps_before(head.sequence, now_ms):
            return Removal.WAITING
        if not self._has_old_heads(head):
            return Removal.DONE
        collect_heads(self._store, self._prefix, self._log, head.sequence - 1, now_ms=now_ms)
        if not self._has_old_heads(head):
            return Removal.DONE
        self._pins.look(sequence=head.sequence, now_ms=now_ms)
        return Removal.WAITING

    def _has_old_heads(self, head: Head) -> bool:
        """Whether a head below `head`, the last one, is still there: not collected yet, or pinned. One listing."""
        first = next(iter(self._store.list(self._prefix + HEADS)), None)
        return first is not None and first.key != self._prefix + head_key(head.sequence)

    def _unlink(self, head: Head, deleted_ms: int, now_ms: int) -> None:
        """The views, all pages (unread, an entry each), or some of the head's own rows: one of them, so that no head
        grows large."""
        if head.views:
            for view in head.views:
                self._log.commit(drop_view(view.name, now_ms=deleted_ms), now_ms)
        elif head.spills:
            self._log.commit(expire_pages([spill.key for spill in head.spills], now_ms=deleted_ms), now_ms)
        else:
            ulids = [row.ulid for row in head.segments[:ROWS_AT_ONCE]]
            self._log.commit(expire_segments(ulids, now_ms=deleted_ms), now_ms)

    def _delete(self, head: Head, now_ms: int) -> Removal:
        since = {each.key: _left(each) for each in head.unlinked} | {
            each.spill.key: _left(each) for each in head.unlinked_pages
        }
        free = self._pins.free(since, sequence=head.sequence, now_ms=now_ms)
        keys = [each.key for each in head.unlinked if each.key in free]
        pages = [each for each in head.unlinked_pages if each.spill.key in free]
        if not keys and not pages:
            return Removal.WAITING
        newest = self._log.check_still_writer()
        if keys:
            delete_objects(self._store, self._prefix, keys, has_forks=self._pins.has_forks)
            self._log.commit(forget_unlinked(keys), now_ms)
        else:
            has_forks = self._pins.has_forks
            delete_pages(self._store, self._prefix, self._log, newest, pages[:1], now_ms, has_forks=has_forks)
        return Removal.UNDER_WAY


def _left(each: UnlinkedObject | UnlinkedPage) -> Unlinking:
    return Unlinking(sequence=each.unlinked_sequence, at_ms=each.unlinked_ms)


def _is_at_work(head: Head, now_ms: int, grace_ms: int) -> bool:
    """Whether the removal that wrote `head` may still be alive. One that was never marked has to be ours."""
    if head.deleted_ms is None:
        return False
    return now_ms - max(head.deleted_ms + grace_ms, head.committed_ms) < PATIENCE_MS


def _is_empty(head: Head) -> bool:
    return head.deleted_ms is not None and not (head.has_rows or head.views or head.unlinked or head.unlinked_pages)
