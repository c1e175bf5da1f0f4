"""At the start: what moves between log directories left behind, finished or undone (table in
`local.logdirs.log_moves`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from local import names
from local.errors import Corrupt, DiskFailed
from local.log import checkpoints
from local.logdirs.log_moves import remove_tree
from local.names import TopicPartition, parse_marked_directory
from local.storage import Storage, join

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A ``-future`` or ``-delete`` directory. Whose it is a ``-delete`` of a long topic tells only by its `mark`."""

    storage: Storage
    root: str
    name: str
    partition: TopicPartition
    mark: str
    is_future: bool

    @property
    def path(self) -> str:
        return join(self.root, self.name)

    def is_of(self, topic_id: str) -> bool:
        """Whether it may hold that topic's records; a ``-future`` gets its topic id last."""
        try:
            return checkpoints.read_topic_id(self.storage, self.path) == topic_id
        except Corrupt:
            return not self.is_future

    def is_deleted_topics(self, topic: str, topic_id: str) -> bool:
        """Whether it is what the deletion of that topic left; half removed, it tells by its name alone."""
        if self.is_future or not self.storage.is_directory(self.path):
            return False
        try:
            found = checkpoints.read_topic_id(self.storage, self.path)
        except Corrupt:
            return False
        return found == topic_id or (found is None and self.partition.topic == topic)


def find_leftovers(storage: Storage, root: str) -> list[Leftover]:
    """Those of one directory, in order of their names."""
    found = []
    for name in storage.list(root):
        parsed = parse_marked_directory(name)
        if parsed is not None and storage.is_directory(join(root, name)):
            partition, mark, suffix = parsed
            is_future = suffix == names.FUTURE_DIRECTORY
            found.append(
                Leftover(storage=storage, root=root, name=name, partition=partition, mark=mark, is_future=is_future)
            )
    return found


def settle(
    leftovers: Sequence[Leftover], where: dict[TopicPartition, tuple[str, ...]], storages: Mapping[str, Storage]
) -> list[Leftover]:
    """Finish or undo; what is left alone. `where` says which roots hold each log, and is told of those come to life.

    A disk that fails here has its leftovers left alone.
    """
    sources = {each.mark: each for each in leftovers if not each.is_future}
    alone = []
    for each in sorted(leftovers, key=lambda each: not each.is_future):
        try:
            source = sources.get(each.mark) if each.is_future else None
            if source is not None and each.partition not in where:
                _finish_switch(source, each)
                where[each.partition] = (each.root,)
            elif not _discard(each, where, storages):
                alone.append(each)
        except DiskFailed as error:
            _log.warning("left what a move left behind: path=%s error=%s", each.path, error)
            alone.append(each)
    return alone


def _finish_switch(source: Leftover, future: Leftover) -> None:
    """Step 5. The ``-delete`` name is made durable first: else a power cut could bring the old name back, beside the
    new one."""
    source.storage.sync_directory(source.root)
    future.storage.rename(future.path, join(future.root, future.partition.directory))
    future.storage.sync_directory(future.root)
    _log.info("finished a move: partition=%s from=%s to=%s", future.partition, source.root, future.root)


def _discard(
    leftover: Leftover, where: Mapping[TopicPartition, Sequence[str]], storages: Mapping[str, Storage]
) -> bool:
    """Remove it if the log itself is there, in one directory; its name is made durable before. False otherwise."""
    roots = where.get(leftover.partition, ())
    if len(roots) != 1:
        return False
    (root,) = roots
    if not leftover.is_future and not _is_copy_of(leftover, storages[root], join(root, leftover.partition.directory)):
        return False
    storages[root].sync_directory(root)
    remove_tree(leftover.storage, leftover.root, leftover.path)
    _log.info("removed what a move left behind: path=%s", leftover.path)
    return True


def _is_copy_of(leftover: Leftover, storage: Storage, path: str) -> bool:
    """By the topic id; one without is half removed."""
    try:
        mine = checkpoints.read_topic_id(leftover.storage, leftover.path)
        return mine is None or mine == checkpoints.read_topic_id(storage, path)
    except Corrupt:
        return False
