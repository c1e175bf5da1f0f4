"""Removing a partition from the store, for a topic that was deleted: mark, wait, then rows before bytes, page by page.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | epoch + 1: whoever wrote it is fenced | the partition as it was; again from here |
| 2 | a head that says `deleted_ms` and a log start at the end | a deleted partition, readable for nobody |
| 3 | the grace time passes, counted from `deleted_ms` | the same |
| 4 | rows out of the head, their objects on its list | objects on the list |
| 5 | no pin in the way, this writer proved to be the last, the listed objects deleted | a list of what is gone |
| 6 | a head without that list; 4 again for the next page | 4, or the end |

The heads stay: the last one tells "deleted" from "lost", to readers and to a machine that comes back. Nothing but what
a head names is deleted. The grace time is for readers with an older head; as nobody begins to read a deleted partition,
it is waited for once, not for every page.
"""

from __future__ import annotations

from enum import Enum

from remote.head import Head
from remote.head_changes import delete_partition, expire_segments, forget_unlinked
from remote.metadata_log import LogState, MetadataLog
from remote.pins import list_pins, lowest_pinned
from remote.store import ObjectStore
from remote.view_changes import drop_view


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
        self._log = MetadataLog(store, prefix)

    def step(self, now_ms: int, *, grace_ms: int) -> Removal:
        """The next step. Raises Fenced when another machine removes it, Unavailable, and Corrupt for a damaged head."""
        if self._log.state is LogState.READER:
            head = self._log.load()
            if head is None or _is_empty(head):
                return Removal.DONE
            self._log.become_writer(
                self._writer_id,
                now_ms,
                topic=self._topic,
                topic_id=self._topic_id,
                partition=self._partition,
                removes=True,
            )
        head = self._log.commit(delete_partition(now_ms=now_ms), now_ms)
        assert head.deleted_ms is not None
        if _is_empty(head):
            return Removal.DONE
        if now_ms - head.deleted_ms < grace_ms:
            return Removal.WAITING
        if head.unlinked:
            return self._delete(head, now_ms)
        self._unlink(head, head.deleted_ms, now_ms)
        return Removal.UNDER_WAY

    def _unlink(self, head: Head, deleted_ms: int, now_ms: int) -> None:
        """The views, the oldest page, or the head's own rows: one of them, so that no head grows large."""
        if head.views:
            for view in head.views:
                self._log.commit(drop_view(view.name, now_ms=deleted_ms), now_ms)
            return
        index = self._log.index(head)
        oldest = head.parts[0]
        end = oldest.next_offset if head.spills else head.rows_next_offset
        ulids = [row.ulid for row in index.rows_with_dead(oldest.base_offset, end)]
        touches = (oldest.base_offset, end)
        self._log.commit(expire_segments(ulids, now_ms=deleted_ms), now_ms, touches=touches)

    def _delete(self, head: Head, now_ms: int) -> Removal:
        held = lowest_pinned(list_pins(self._store, self._prefix), now_ms)
        keys = [each.key for each in head.unlinked if held is None or each.unlinked_sequence <= held]
        if not keys:
            return Removal.WAITING
        self._log.check_still_writer()
        self._store.delete([self._prefix + key for key in keys])
        self._log.commit(forget_unlinked(keys), now_ms)
        return Removal.UNDER_WAY


def _is_empty(head: Head) -> bool:
    return head.deleted_ms is not None and not (head.has_rows or head.views or head.unlinked)
