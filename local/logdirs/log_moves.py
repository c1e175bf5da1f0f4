"""Move a log to another log directory while it accepts appends, with Kafka's ``-future`` directories.

`S` is the source directory, `T` the target, `h` 32 hex digits drawn for this move. Order of effects:

1. Create ``T/<topic>-<p>.<h>-future``. Copy and sync segment by segment until few bytes are missing. Then copy the
   parts of compacted views (`local.log.view_directory`).
2. Appends wait from here on. Close the active segment, copy the rest, and make all of it durable, names included.
3. Write the log's checkpoints in `T` (recovery point, log start, cleaner offset).
4. Rename ``S/<topic>-<p>`` to ``S/<topic>-<p>.<h>-delete``, durably.
5. Rename ``T/<topic>-<p>.<h>-future`` to ``T/<topic>-<p>``, durably. Appends continue in `T`.
6. After a delay for readers, delete the ``-delete`` directory. Remove the log from the checkpoints of `S`.

| a crash after | found at the start | effect |
|---|---|---|
| 1, 2, 3 | the log in `S`, a ``-future`` | delete the ``-future``; the next write drops stale checkpoint lines in `T` |
| 4 | no log, a ``-delete`` and a ``-future`` with the same `h` | finish the switch: step 5 |
| 5 | the log in `T`, a ``-delete`` | delete the ``-delete`` |
| part of 6 | the log in `T`, part of a ``-delete`` | delete the rest |

At every point exactly one directory is valid. A ``-future`` or ``-delete`` is deleted only if the log itself is found
in an online directory, and after that name was made durable. Any other leftover stays unchanged.

| error | effect |
|---|---|
| before step 4, including a batch with a wrong checksum | the move ends, the log continues in `S` |
| in step 4 or 5 | the log is unusable until the next start, which reads the names |

Source: kafka `ReplicaAlterLogDirsThread`, `LogManager.replaceCurrentWithFutureLog`. Kafka renames in the other order:
a crash between its renames leaves two live copies.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from local import names
from local.errors import Corrupt, LogError, NotFound
from local.log import Log
from local.log.producer_files import ProducerFiles
from local.log.view_directory import copy_view_files, remove_view_files
from local.logdirs.log_dir import LogDirectory
from local.names import LOG, OFFSET_INDEX, SEGMENT_SUFFIXES, TIME_INDEX, TXN_INDEX, TopicPartition
from local.segment.segment import Segment
from local.storage import Storage, StorageFile, join

CHUNK_BYTES = 4 << 20
# Below LITTLE_BYTES missing bytes, appends may wait for the rest. After ROUNDS_MAX passes they must wait.
LITTLE_BYTES = 1 << 20
ROUNDS_MAX = 20
_NOT_COPIED = (names.DELETED, names.CLEANED, names.SWAP, names.TEMPORARY, names.VIEW_PARTS)

# Bytes copied so far, bytes of the log. The callback may be slow, but must not move or close the log.
Progress = Callable[[int, int], None]


def move_log(
    log: Log, source: LogDirectory, target: LogDirectory, *, progress: Progress = lambda done, all_: None
) -> str:
    """Steps 1 to 5. Returns the path of the ``-delete`` directory; the caller deletes it.

    Raises DiskFailed, Corrupt.
    """
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
        log.write_checkpoints = target.write_checkpoints  # a truncation lowers the checkpoints of the new directory

    try:
        target.storage.make_directory(future)
        for _ in range(ROUNDS_MAX):
            if copy.catch_up(log.sources(), progress) < LITTLE_BYTES:
                break
        copy_view_files(source.storage, source.path(partition), target.storage, future)
        target.logs[partition] = log
        _relocate(log, target.storage, target.path(partition), bring_the_rest, switch)
    except BaseException:
        if not is_switching:
            target.logs.pop(partition, None)
            with suppress(LogError):
                remove_tree(target.storage, target.root, future)
        raise
    source.forget(partition)
    return doomed


def rename_deleted(directory: LogDirectory, partition: TopicPartition) -> str:
    """Release a log and rename its directory to ``-delete``, durably; return the new path.

    The log is also removed from the checkpoints.
    """
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


def _relocate(
    log: Log,
    storage: Storage,
    directory: str,
    prepare: Callable[[Sequence[Segment]], None],
    switch: Callable[[], None],
) -> None:
    """Steps 2 to 5, under the log's lock.

    It changes private state of `Log`; it is here with the rest of the move. `prepare` copies the missing bytes of the
    segments, which are all closed here. If `prepare` fails, the log continues in its old directory. `switch` renames
    the directories; if `switch` fails, the log is unusable until it is reopened. Readers of the old segments get the
    new view and restart.
    """
    from local.log import loading

    with log._lock:
        log._check_usable()
        old = log.sources()
        log._seal(old[-1])
        try:
            prepare(old)
        except BaseException:
            with log._failing():
                old[-1].activate()
            raise
        with log._failing():
            for segment in old:
                segment.retire()
            switch()
            log._storage, log.directory, log._deleted = storage, directory, []
            log._snapshots = ProducerFiles(storage, directory)
            log._publish(loading.load_moved(storage, directory, old, interval_bytes=log.settings.index_interval_bytes))


@dataclass(slots=True)
class _Copied:
    """The copied part of a segment.

    `segment` identifies it: a cleaning can create another with the same base offset.
    """

    segment: Segment
    size_bytes: int = 0
    has_indexes: bool = False


class _Copy:
    """The ``-future`` directory during the copy.

    Files of segments that were dropped, replaced or truncated are deleted.
    """

    def __init__(self, log: Log, storage: Storage, directory: str) -> None:
        self._log = log
        self._storage = storage
        self._directory = directory
        self._copied: dict[int, _Copied] = {}
        self._cuts = log._cuts

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
        """Copy the other files, then make all names durable.

        Other files: leader epochs, topic id, producer snapshots, the catalog of compacted views, and the view parts
        created since step 1.
        """
        copy_view_files(source, self._log.directory, self._storage, self._directory)
        for name in source.list(self._log.directory):
            parsed = names.parse_segment_file(name)
            is_copied = parsed is not None and parsed[1] in SEGMENT_SUFFIXES
            if not is_copied and not name.endswith(_NOT_COPIED):
                self._write(name, source.read(join(self._log.directory, name)))
        self._storage.sync_directory(self._directory)

    def _forget_what_changed(self, segments: Sequence[Segment]) -> None:
        there = {segment.base_offset: segment for segment in segments}
        was_cut = self._cuts != self._log._cuts
        self._cuts = self._log._cuts
        for base, known in list(self._copied.items()):
            if was_cut or there.get(base) is not known.segment or known.size_bytes > known.segment.size_bytes:
                del self._copied[base]
                for suffix in SEGMENT_SUFFIXES:
                    self._storage.unlink(self._path(base, suffix))

    def _copy_segment(self, segment: Segment) -> None:
        known = self._copied.setdefault(segment.base_offset, _Copied(segment))
        size_bytes, is_sealed = segment.size_bytes, not segment.is_active
        path = self._path(segment.base_offset, LOG)
        is_begun = self._storage.exists(path)
        if known.size_bytes < size_bytes or not is_begun:
            known.has_indexes = False  # a failed roll reactivates the segment, so its indexes grow again
            file = self._storage.open(path) if is_begun else self._storage.create(path)
            try:
                self._append(file, segment, known, size_bytes)
                file.sync()
            finally:
                file.close()
        if is_sealed and not known.has_indexes:
            for suffix, body in (
                (OFFSET_INDEX, segment.offset_index()),
                (TIME_INDEX, segment.time_index()),
                (TXN_INDEX, segment.txn_index()),
            ):
                if body or suffix != TXN_INDEX:
                    self._write(names.segment_file(segment.base_offset, suffix), bytes(body))
            known.has_indexes = True

    def _append(self, file: StorageFile, segment: Segment, known: _Copied, size_bytes: int) -> None:
        """Append checked batches.

        The source is deleted after the move: a wrong byte would become the only copy.
        """
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

    def _write(self, name: str, body: bytes) -> None:
        file = self._storage.create(join(self._directory, name))
        try:
            file.append(body)
            file.sync()
        finally:
            file.close()
