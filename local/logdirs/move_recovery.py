"""Finish or undo, at the start, the moves between log directories that a crash interrupted.

The table of crash states is in `local.logdirs.log_moves`.
"""

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
class IncompleteMove:
    """A ``-future`` or ``-delete`` directory.

    Of a ``-delete`` with a shortened topic name, only `mark` identifies the move that it belongs to.
    """

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
        """Whether the directory may hold records of that topic. A ``-future`` gets its topic id last."""
        try:
            return checkpoints.read_topic_id(self.storage, self.path) == topic_id
        except Corrupt:
            return not self.is_future

    def is_deleted_topics(self, topic: str, topic_id: str) -> bool:
        """Whether the directory remains from the deletion of that topic. Without a topic id, its name decides."""
        if self.is_future or not self.storage.is_directory(self.path):
            return False
        try:
            found = checkpoints.read_topic_id(self.storage, self.path)
        except Corrupt:
            return False
        return found == topic_id or (found is None and self.partition.topic == topic)


def find_incomplete_moves(storage: Storage, root: str) -> list[IncompleteMove]:
    """The leftovers of one directory, ordered by name."""
    found = []
    for name in storage.list(root):
        parsed = parse_marked_directory(name)
        if parsed is not None and storage.is_directory(join(root, name)):
            partition, mark, suffix = parsed
            is_future = suffix == names.FUTURE_DIRECTORY
            found.append(
                IncompleteMove(
                    storage=storage, root=root, name=name, partition=partition, mark=mark, is_future=is_future
                )
            )
    return found


def resolve(
    incomplete_moves: Sequence[IncompleteMove],
    where: dict[TopicPartition, tuple[str, ...]],
    storages: Mapping[str, Storage],
) -> list[IncompleteMove]:
    """Finish or undo moves; return the leftovers that stay.

    `where` maps each log to its roots; a log whose move is finished here is added. If a disk fails, its leftovers stay.
    """
    sources = {each.mark: each for each in incomplete_moves if not each.is_future}
    alone = []
    for each in sorted(incomplete_moves, key=lambda each: not each.is_future):
        try:
            source = sources.get(each.mark) if each.is_future else None
            if source is not None and each.partition not in where:
                _finish_switch(source, each)
                where[each.partition] = (each.root,)
            elif not _discard(each, where, storages):
                alone.append(each)
        except DiskFailed as error:
            _log.warning("cannot delete a leftover directory of a move: path=%s error=%s", each.path, error)
            alone.append(each)
    return alone


def _finish_switch(source: IncompleteMove, future: IncompleteMove) -> None:
    """Step 5 of a move.

    The ``-delete`` name is made durable first: otherwise a power failure could restore the old name as a second live
    copy.
    """
    source.storage.sync_directory(source.root)
    future.storage.rename(future.path, join(future.root, future.partition.directory))
    future.storage.sync_directory(future.root)
    _log.info("finished a move: partition=%s from=%s to=%s", future.partition, source.root, future.root)


def _discard(
    move: IncompleteMove, where: Mapping[TopicPartition, Sequence[str]], storages: Mapping[str, Storage]
) -> bool:
    """Delete a leftover if the log itself is in exactly one directory. Returns False if it stays.

    The log's own name is made durable before the deletion.
    """
    roots = where.get(move.partition, ())
    if len(roots) != 1:
        return False
    (root,) = roots
    if not move.is_future and not _is_copy_of(move, storages[root], join(root, move.partition.directory)):
        return False
    storages[root].sync_directory(root)
    remove_tree(move.storage, move.root, move.path)
    _log.info("deleted a leftover directory of a move: path=%s", move.path)
    return True


def _is_copy_of(move: IncompleteMove, storage: Storage, path: str) -> bool:
    """Whether both hold the same topic id.

    A leftover without a topic id is partly deleted and counts as a copy.
    """
    try:
        mine = checkpoints.read_topic_id(move.storage, move.path)
        return mine is None or mine == checkpoints.read_topic_id(storage, path)
    except Corrupt:
        return False
