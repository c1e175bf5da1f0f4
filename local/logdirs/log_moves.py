"""Move a log to another log directory while it accepts appends, with Kafka's ``-future`` directories.

`S` is the source directory, `T` the target, `h` 32 hex digits drawn for this move. Order of effects:

1. Create ``T/<topic>-<p>.<h>-future``. Copy and sync segment by segment until few bytes are missing. Then copy the
   parts of compacted views.
2. Appends wait from here on. Close the active segment, copy the rest, and make all of it durable, names included.
3. Write the log's checkpoints in `T` (recovery point, log start, cleaner offset).
4. Rename ``S/<topic>-<p>`` to ``S/<topic>-<p>.<h>-delete``, durably.
5. Rename ``T/<topic>-<p>.<h>-future`` to ``T/<topic>-<p>``, durably. Appends continue in `T`.
6. After a delay for readers, delete the ``-delete`` directory. Remove the log from the checkpoints of `S`.

| a crash after | found at the start | effect |
|---|---|---|
| 1, 2, 3 | the log in `S`, a ``-future`` | delete the ``-future``; the next write omits stale checkpoint lines in `T` |
| 4 | no log, a ``-delete`` and a ``-future`` with the same `h` | finish the switch: step 5 |
| 5 | the log in `T`, a ``-delete`` | delete the ``-delete`` |
| part of 6 | the log in `T`, part of a ``-delete`` | delete the rest |

At every point exactly one directory is valid. A ``-future`` or ``-delete`` is deleted only if the log itself is found
in an online directory, and after that name was made durable. Any other leftover stays unchanged.

| error | effect |
|---|---|
| before step 4, including a batch with a wrong checksum | the move ends, the log continues in `S` |
| in step 4 or 5 | the log is unusable until the next start, which reads the names |

Source: kafka `ReplicaAlterLogDirsThread`, `LogManager.replaceCurrentWithFutureLog`. Kafka renames in the other order: a
crash between its renames leaves two live copies.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from local import names
from local.errors import Corrupt, DiskFailed, LogError, NotFound
from local.index.index_files import INDEXES
from local.log import Log, checkpoints
from local.logdirs.log_dir import LogDirectory
from local.names import LOG, SEGMENT_SUFFIXES, TXN_INDEX, VIEW_PARTS, TopicPartition, parse_marked_directory
from local.segment.segment import Segment
from local.storage import Body, FileFacts, Storage, StorageFile, join, write_file

CHUNK_BYTES = 4 << 20
# Below LITTLE_BYTES missing bytes, or after ROUNDS_MAX passes, appends wait for the rest.
LITTLE_BYTES = 1 << 20
ROUNDS_MAX = 20
_NOT_COPIED = (names.DELETED, names.CLEANED, names.SWAP, names.TEMPORARY, names.VIEW_PARTS)

# Bytes copied so far, bytes of the log. The callback may be slow, but must not move or close the log.
Progress = Callable[[int, int], None]
_log = logging.getLogger(__name__)
ASIDE = "~aside"  # suffix for parts being written; no view's name holds a tilde


def move_log(
    log: Log, source: LogDirectory, target: LogDirectory, *, progress: Progress = lambda done, all_: None
) -> str:
    """Steps 1 to 5; the caller deletes the returned ``-delete`` directory. Raises DiskFailed, Corrupt."""
    partition = log.partition
    mark = uuid.uuid4().hex
    future = join(target.root, names.future_directory(partition, mark))
    doomed = join(source.root, names.deleted_directory(partition, mark))
    copy = _Copy(log, target.storage, future)
    is_switching = False

    def bring_the_rest(segments: Sequence[Segment]) -> None:
        copy.catch_up(segments, lambda done, all_: None)  # no callback of the caller while appends wait
        copy.side_files(source.storage)
        target.write_checkpoints()

    def switch() -> None:
        nonlocal is_switching
        is_switching = True
        source.storage.rename(source.path(partition), doomed)
        source.storage.sync_directory(source.root)
        target.storage.rename(future, target.path(partition))
        target.storage.sync_directory(target.root)
        log.use_checkpoints(target.write_checkpoints)  # a truncation lowers the checkpoints of the new directory

    try:
        target.storage.make_directory(future)
        for _ in range(ROUNDS_MAX):
            if copy.catch_up(log.view.segments, progress) < LITTLE_BYTES:
                break
        copy_view_files(source.storage, source.path(partition), target.storage, future)
        target.logs[partition] = log
        log.relocate(target.storage, target.path(partition), bring_the_rest, switch)
    except BaseException:
        if not is_switching:
            target.logs.pop(partition, None)
            with suppress(LogError):
                remove_tree(target.storage, target.root, future)
        raise
    source.forget(partition)
    return doomed


def rename_deleted(directory: LogDirectory, partition: TopicPartition) -> str:
    """Release a log, rename its directory to ``-delete``, durably; remove its checkpoints. Return the new path."""
    log = directory.logs.get(partition)
    if log is not None:
        log.release()
    doomed = join(directory.root, names.deleted_directory(partition, uuid.uuid4().hex))
    directory.storage.rename(directory.path(partition), doomed)
    directory.storage.sync_directory(directory.root)
    directory.forget(partition)
    return doomed


def remove_tree(storage: Storage, root: str, path: str) -> None:
    """Delete a partition's directory, durably. No error if it does not exist."""
    if storage.is_directory(path):
        remove_view_files(storage, path)
        for name in storage.list(path):
            storage.unlink(join(path, name))
        storage.remove_directory(path)
    storage.sync_directory(root)


@dataclass(slots=True)
class _Copied:
    """The copied part of a segment. A cleaning can create another segment with the same base."""

    segment: Segment
    size_bytes: int = 0
    has_indexes: bool = False


class _Copy:
    """The ``-future`` directory during the copy, without files of dropped or replaced segments."""

    def __init__(self, log: Log, storage: Storage, directory: str) -> None:
        self._log = log
        self._storage = storage
        self._directory = directory
        self._copied: dict[int, _Copied] = {}
        self._cuts = log.cuts

    def catch_up(self, segments: Sequence[Segment], progress: Progress) -> int:
        """Copy and sync the missing bytes of `segments`; return the number of bytes copied."""
        self._forget_what_changed(segments)
        total = sum(segment.size_bytes for segment in segments)
        done = before = sum(each.size_bytes for each in self._copied.values())
        for segment in segments:
            try:
                self._copy_segment(segment)
            except NotFound:
                # The segment was dropped or replaced. A later pass reads the current segments.
                break
            done = sum(each.size_bytes for each in self._copied.values())
            progress(done, total)
        return done - before

    def side_files(self, source: Storage) -> None:
        """Copy the other files and the view parts created since step 1, then make all names durable."""
        copy_view_files(source, self._log.directory, self._storage, self._directory)
        for name in source.list(self._log.directory):
            parsed = names.parse_segment_file(name)
            is_copied = parsed is not None and parsed[1] in SEGMENT_SUFFIXES
            if not is_copied and not name.endswith(_NOT_COPIED):
                self._write(name, source.read(join(self._log.directory, name)))
        self._storage.sync_directory(self._directory)

    def _forget_what_changed(self, segments: Sequence[Segment]) -> None:
        there = {segment.base_offset: segment for segment in segments}
        was_cut = self._cuts != self._log.cuts
        self._cuts = self._log.cuts
        for base, known in list(self._copied.items()):
            if was_cut or there.get(base) is not known.segment or known.size_bytes > known.segment.size_bytes:
                del self._copied[base]
                for suffix in SEGMENT_SUFFIXES:
                    self._storage.unlink(self._path(base, suffix))

    def _copy_segment(self, segment: Segment) -> None:
        known = self._copied.setdefault(segment.base_offset, _Copied(segment))
        size_bytes, is_sealed = segment.size_bytes, not segment.is_active
        path = self._path(segment.base_offset, LOG)
        is_there = self._storage.exists(path)
        if known.size_bytes < size_bytes or not is_there:
            known.has_indexes = False  # a failed roll reactivates the segment, so its indexes grow again
            with closing(self._storage.open(path) if is_there else self._storage.create(path)) as file:
                self._append(file, segment, known, size_bytes)
                file.sync()
        if is_sealed and not known.has_indexes:
            for suffix in INDEXES:
                self._write(names.segment_file(segment.base_offset, suffix), segment.index(suffix))
            if aborted := segment.txn_index():
                self._write(names.segment_file(segment.base_offset, TXN_INDEX), aborted)
            known.has_indexes = True

    def _append(self, file: StorageFile, segment: Segment, known: _Copied, size_bytes: int) -> None:
        """Append checked batches: the source is deleted later, and a wrong byte would become the only copy."""
        from local.records.batch_runs import BatchRuns

        walk = BatchRuns(segment.read, size_bytes, start=known.size_bytes, chunk_bytes=CHUNK_BYTES)
        for run in walk:
            if run.damage is not None:
                raise Corrupt(f"cannot move the log, {run.damage}", path=segment.path(LOG), at=run.position)
            file.append(run.data)
            known.size_bytes += len(run.data)
        if walk.size_bytes < size_bytes:
            raise NotFound("cannot copy a segment, its file became shorter", path=segment.path(LOG))
        if walk.problem is not None:
            raise Corrupt(f"cannot move the log, {walk.problem}", path=segment.path(LOG), at=walk.position)

    def _path(self, base_offset: int, suffix: str) -> str:
        return join(self._directory, names.segment_file(base_offset, suffix))

    def _write(self, name: str, body: Body) -> None:
        write_file(self._storage, join(self._directory, name), body)


class IncompleteMove(NamedTuple):
    """A ``-future`` or ``-delete`` directory, the latter perhaps with a shortened topic: `mark` names its move."""

    storage: Storage
    root: str
    path: str
    partition: TopicPartition
    mark: str
    suffix: str

    @property
    def is_future(self) -> bool:
        return self.suffix == names.FUTURE_DIRECTORY

    def is_of(self, topic_id: str) -> bool:
        """Whether the directory has that topic id; with a damaged id, whether it is a ``-delete``."""
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
    found = ((join(root, name), parse_marked_directory(name)) for name in storage.list(root))
    marked = [(path, parsed) for path, parsed in found if parsed is not None and storage.is_directory(path)]
    return [IncompleteMove(storage, root, path, *parsed) for path, parsed in marked]


def resolve(
    incomplete_moves: Sequence[IncompleteMove],
    where: dict[TopicPartition, tuple[str, ...]],
    storages: Mapping[str, Storage],
) -> list[IncompleteMove]:
    """Finish or undo moves; return the leftovers that stay. Adds each finished move's log to `where`."""
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
    """Step 5 of a move, with the ``-delete`` name durable first: no power cut restores a second live copy."""
    source.storage.sync_directory(source.root)
    future.storage.rename(future.path, join(future.root, future.partition.directory))
    future.storage.sync_directory(future.root)
    _log.info("finished a move: partition=%s from=%s to=%s", future.partition, source.root, future.root)


def _discard(
    move: IncompleteMove, where: Mapping[TopicPartition, Sequence[str]], storages: Mapping[str, Storage]
) -> bool:
    """Delete a leftover if its log is in exactly one directory, after that name is durable; else False."""
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
    """Whether both hold the same topic id. A leftover without one is partly deleted and counts as a copy."""
    try:
        mine = checkpoints.read_topic_id(move.storage, move.path)
        return mine is None or mine == checkpoints.read_topic_id(storage, path)
    except Corrupt:
        return False


# -- compacted views: files in ``<partition>/view/<view>/`` that never change once they have their names


def view_files(storage: Storage, directory: str) -> dict[str, FileFacts]:
    """List the files of compacted views as ``view/<view>/<file>``, in order, unfinished ones too."""
    found: dict[str, FileFacts] = {}
    for place in _places(storage, directory):
        with suppress(NotFound):  # removed since the listing
            files = storage.list_files(join(directory, place))
            found |= {join(place, name): files[name] for name in sorted(files)}
    return found


def copy_view_files(source: Storage, old: str, target: Storage, new: str) -> None:
    """Copy the finished parts from the partition directory `old` to `new`, durably. Existing copies stay."""
    there = view_files(target, new)
    for path, facts in view_files(source, old).items():
        place = path.rpartition("/")[0]
        if place.endswith(ASIDE) or (path in there and there[path].size_bytes == facts.size_bytes):
            continue
        target.make_directory(join(new, place))
        with closing(target.create(join(new, path))) as file:
            for at in range(0, facts.size_bytes, CHUNK_BYTES):
                file.append(source.read(join(old, path), at, min(CHUNK_BYTES, facts.size_bytes - at)))
            file.sync()
        target.sync_directory(join(new, place))


def remove_view_files(storage: Storage, directory: str) -> None:
    """Remove the parts and their directories; durable once the partition's directory is removed durably."""
    root = join(directory, VIEW_PARTS)
    if not storage.is_directory(root):
        return
    for place in _places(storage, directory):
        for name in storage.list(join(directory, place)):
            storage.unlink(join(directory, place, name))
        storage.remove_directory(join(directory, place))
    storage.remove_directory(root)


def _places(storage: Storage, directory: str) -> list[str]:
    root = join(directory, VIEW_PARTS)
    if not storage.is_directory(root):
        return []
    names = storage.list(root)
    return [join(VIEW_PARTS, name) for name in names if storage.is_directory(join(root, name))]
