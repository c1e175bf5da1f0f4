"""Delete a topic: invisible at once, deleted from the disks after a delay, from the bucket later.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | the registry marks the topic deleted, with its id | no topic; the next start continues with step 2 |
| 2 | cleanings cancelled, logs closed, directories renamed to ``-delete`` | such directories, which a start deletes |
| 3 | `file.delete.delay.ms` later the directories are deleted | the same |
| 4 | the bucket's partitions are deleted (`remote.gc.partition_removal`) | a manifest that marks it, or the rest |
| 5 | nothing is left anywhere: the registry forgets the topic | nothing |

Step 4 deletes objects after the grace period. The name is free from step 1 on. A recreated topic has another id, and
shares nothing with the old one, neither in the bucket nor on a disk. An offline disk keeps its part until it is back.
Source: kafka `LogManager.asyncDelete`, `RemoteLogManager.stopPartitions`.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from remote.keys import partition_prefix
from tiered.node.topic_registry import DeletedTopic
from tiered.partition.partition_table import PartitionTable

if TYPE_CHECKING:
    from remote.gc.partition_removal import PartitionRemoval, Removal

_log = logging.getLogger(__name__)


class TopicDeletion:
    """Deletes the topics of a manager. `step` is part of each maintenance run."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._registry = table.registry
        self._directories = table.directories
        self._opener = table.opener
        self._store = table.opener.store
        self._removals: dict[tuple[str, int], PartitionRemoval] = {}
        self._done: set[tuple[str, int]] = set()
        self._stepping = threading.Lock()
        self._looking = threading.Lock()  # check of the topic id + deletion: see `_delete_local`

    def delete(self, topic_name: str, *, now_ms: int) -> None:
        """Steps 1 and 2. Sends no store request: `step` comes next. The caller holds the lock of the table.

        Raises NotFound, and DiskFailed if the registry cannot be written, with nothing done. `step` retries errors of a
        single partition.
        """
        topic = self._registry.get(topic_name)
        partitions = self._table.opened(topic.partitions())
        for each in partitions:
            # The maintenance run around a pass is waited for next. These logs are never cleaned again.
            each.log.cleaning.abort_and_pause()
        with self._table.maintenance_lock:
            try:
                self._registry.delete(topic.name, now_ms=now_ms)
            except LogError:
                for each in partitions:
                    each.log.cleaning.resume()
                raise
            for each in partitions:
                with each.lock:
                    each.tier.delete()
            self._table.remove(topic)
            for deleted in self._registry.deleted():
                if deleted.topic.topic_id == topic.topic_id:
                    self._delete_local(deleted, now_ms)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of any deleted topic."""
        return not self._registry.deleted()

    def resume(self, now_ms: int) -> None:
        """At a start, before any log is opened: delete leftovers of the last process from the disks."""
        for deleted in self._registry.deleted():
            try:
                self._directories.remove_incomplete_moves(deleted.topic.name, deleted.topic.topic_id)
            except LogError as error:
                _log.warning(
                    "cannot delete leftover files of a deleted topic: topic=%s error=%s", deleted.topic.name, error
                )
            self._delete_local(deleted, now_ms)

    def step(self, now_ms: int) -> bool:
        """The next step for each deleted topic; True if another one is due. Errors are retried later.

        One call at a time: a concurrent call does nothing.
        """
        if not self._stepping.acquire(blocking=False):
            return False
        try:
            return self._step(now_ms)
        finally:
            self._stepping.release()

    def _step(self, now_ms: int) -> bool:
        from remote.gc.partition_removal import Removal  # a large import, which a read-only open does not need

        more = False
        for deleted in self._registry.deleted():
            try:
                self._delete_local(deleted, now_ms)
                states = [self._removed(deleted, name, now_ms) for name in deleted.topic.partitions()]
                more = more or Removal.UNDER_WAY in states
                names, topic_id = deleted.topic.partitions(), deleted.topic.topic_id
                is_done = all(each is Removal.DONE for each in states)
                with self._looking:  # a directory being renamed is in none of the places that are checked
                    is_done = is_done and all(self._directories.has_no_files(name, topic_id) for name in names)
                if is_done:
                    self._registry.forget(topic_id)
                    _log.info("the deletion of a topic is finished: topic=%s topic_id=%s", deleted.topic.name, topic_id)
            except LogError as error:
                _log.warning("the deletion of a topic waits: topic=%s error=%s", deleted.topic.name, error)
        return more

    def _removed(self, deleted: DeletedTopic, name: TopicPartition, now_ms: int) -> Removal:
        from remote.gc.partition_removal import Removal

        try:
            return self._remove(deleted, name, now_ms)
        except LogError as error:
            _log.warning("the deletion of a partition in the bucket waits: partition=%s error=%s", name, error)
            return Removal.WAITING

    def _delete_local(self, deleted: DeletedTopic, now_ms: int) -> None:
        """Delete by name and id: after a concurrent deletion the name could be that of a new topic's log."""
        delay_ms = self._opener.rules(deleted.topic).file_delete_delay_ms
        for name in deleted.topic.partitions():
            try:
                with self._looking:
                    if self._directories.topic_id(name) != deleted.topic.topic_id:
                        continue
                    self._directories.delete(name, now_ms=now_ms, delay_ms=delay_ms)
                _log.info("deleted a partition: partition=%s topic_id=%s", name, deleted.topic.topic_id)
            except LogError as error:
                _log.warning("the deletion of a partition waits: partition=%s error=%s", name, error)

    def _remove(self, deleted: DeletedTopic, name: TopicPartition, now_ms: int) -> Removal:
        from remote.gc.partition_removal import PartitionRemoval, Removal

        key = deleted.topic.topic_id, name.partition
        if self._store is None or not deleted.topic.was_tiered or key in self._done:
            return Removal.DONE
        if key not in self._removals:
            topic, number = deleted.topic, name.partition
            prefix = partition_prefix(topic.name, topic.topic_id, number)
            self._removals[key] = PartitionRemoval(
                self._store,
                prefix,
                self._opener.writer_id,
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=number,
            )
        state = self._removals[key].step(now_ms, grace_ms=self._opener.rules(deleted.topic).delete_grace_ms)
        if state is Removal.DONE:
            self._done.add(key)
        return state
