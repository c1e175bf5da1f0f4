"""Several log directories of one node, usually one disk each: placement and offline directories.

With one directory this class adds nothing to `LogDirectory`: its errors are raised unchanged. With several:

- A failed disk takes only its own directory **offline** (`local.storage.storage.WatchedStorage`), until the next start.
  Calls that need it raise DiskFailed with the cause; all other directories stay usable. A directory is also offline if
  it cannot be opened at the start: it is missing, not writable, or does not answer.
- All directories belong to one node. Two cluster ids or node ids, one directory id used twice, or a directory held by
  another process are errors for all of them, raised before anything is written.
- A partition found in two directories is refused, and both copies stay unchanged (Kafka stops the process). The
  ``-future`` copy of a move is not a duplicate.
- A partition found nowhere while a directory is offline is assumed to be in the offline directory. It is refused, and
  not created elsewhere.

The first start creates missing directories. At a later start a missing directory is offline, because its disk may not
be mounted: the operator creates a new directory by hand.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from local.errors import AccessDenied, Conflict, Corrupt, DiskFailed, ErrorCode, InvalidRequest, LogError, NotFound
from local.facts import LogDirFacts
from local.log import Log, checkpoints
from local.log.checkpoints import MetaProperties
from local.logdirs.log_dir import LogDirectory
from local.logdirs.log_moves import (
    IncompleteMove,
    Progress,
    find_incomplete_moves,
    move_log,
    remove_tree,
    rename_deleted,
    resolve,
)
from local.names import TopicPartition
from local.settings import LogSettings
from local.storage import Space, Storage
from local.storage.storage import WatchedStorage, offline

_log = logging.getLogger(__name__)

_AGAIN_MS = 60_000
_SCANS_MAX = 10

_T = TypeVar("_T")
Choose = Callable[[Sequence[LogDirFacts]], LogDirFacts]
OnOffline = Callable[[str, LogError], None]


class _Doomed(NamedTuple):
    """A directory that waits to be deleted. Once partly deleted it no longer contains its `topic_id`."""

    since_ms: int
    delay_ms: int
    directory: LogDirectory
    path: str
    topic_id: str | None


class LogDirectories:
    """The log directories of a node. Thread safe for different partitions."""

    def __init__(
        self, storage: Storage, roots: Sequence[str], *, read_only: bool = False, cordoned: Collection[str] = ()
    ) -> None:
        """Lock and load every directory. Raises Conflict, InvalidRequest, Corrupt if any directory has the error.

        Any other error takes its directory offline, and is raised only if no directory is left.
        """
        assert roots, "at least one directory"
        self.roots = tuple(roots)
        self.read_only = read_only
        self.cordoned = frozenset(cordoned)
        self.on_offline: OnOffline = lambda root, error: None
        self._is_closed = False
        self._incomplete_moves: list[IncompleteMove] = []
        self._doomed: list[_Doomed] = []
        self._changing = threading.Lock()
        self._offline: dict[str, LogError] = {}
        self._storages: dict[str, Storage] = {}
        for root in self.roots:
            self._storages[root] = self._watched(storage, root) if len(self.roots) > 1 else storage
        self._directories: dict[str, LogDirectory] = {}
        self._where: dict[TopicPartition, tuple[str, ...]] = {}
        try:
            self._take_all()
        except BaseException:
            self.abandon()
            raise

    # -- the directories and their partitions ----------------------------------------------------------------------

    @property
    def offline(self) -> Mapping[str, LogError]:
        """Offline directories, each with its cause."""
        return self._offline

    @property
    def online(self) -> list[LogDirectory]:
        return [each for root, each in self._directories.items() if root not in self._offline]

    def check_writable(self) -> None:
        """Raise InvalidRequest in a read-only open."""
        if self.read_only:
            raise InvalidRequest("cannot change a directory that is open read-only", directory=self.roots[0])

    def places(self) -> list[tuple[Storage, str]]:
        """Every root with its storage. The storage of an offline root refuses every call."""
        return [(self._storages[root], root) for root in self.roots]

    def first_online(self) -> tuple[Storage, str]:
        """The first online root: the place for data that the node needs once and can rebuild."""
        root = next((root for root in self.roots if root not in self._offline), self.roots[0])
        return self._storages[root], root

    def root_of(self, partition: TopicPartition) -> str | None:
        """The directory that holds the partition, online or not; None if unknown. Raises Corrupt for two."""
        roots = self._where.get(partition, ())
        if len(roots) > 1:
            attempt = "the partition is in more than one log directory; keep one copy, move the others away"
            raise Corrupt(attempt, partition=partition, directories=",".join(roots))
        return roots[0] if roots else None

    def of(self, partition: TopicPartition) -> LogDirectory:
        """The directory of a partition. Raises NotFound, DiskFailed if it is offline, Corrupt if two have it."""
        self.check_online(partition)
        root = self.root_of(partition)
        if root is None:
            raise NotFound("partition not found", partition=partition, directories=",".join(self.roots))
        return self._directories[root]

    def is_online(self, partition: TopicPartition) -> bool:
        """False only for a partition whose directory is known to be offline."""
        return not self._offline or not any(root in self._offline for root in self._where.get(partition, ()))

    def check_online(self, partition: TopicPartition) -> None:
        """Raises DiskFailed if the partition's directory is offline."""
        root = None if self.is_online(partition) else self.root_of(partition)
        if root is not None:
            raise offline(root, self._offline[root], partition=partition)

    def partitions_of(self, root: str) -> list[TopicPartition]:
        return sorted(name for name, roots in list(self._where.items()) if root in roots)

    def facts(self) -> list[LogDirFacts]:
        """All directories in the configured order. `free_bytes` is read once for each file system."""
        spaces: dict[int, Space] = {}
        return [self._facts(root, spaces) for root in self.roots]

    def topic_id(self, partition: TopicPartition) -> str | None:
        """The topic id in the partition's directory; None if no directory has the partition. Raises as `of`."""
        return None if self.root_of(partition) is None else self.of(partition).topic_id(partition)

    # -- partitions ----------------------------------------------------------------------------------------------

    def place(self, partitions: Sequence[TopicPartition], choose: Choose) -> dict[TopicPartition, LogError]:
        """Create the directories of partitions of new topics in the roots that `choose` returns.

        Durable on return; each root is synced once. A partition that already has a directory stays there. Returns the
        partitions without a usable directory, each with its error; the caller must not open their logs. If the disk
        refused, the partition belongs to that directory all the same, and `create` raises the error.
        """
        facts = {each.path: each for each in self.facts()}
        created: dict[str, list[TopicPartition]] = {}
        refused: dict[TopicPartition, LogError] = {}
        for name in partitions:
            try:
                root = self.root_of(name) or choose(list(facts.values())).path
            except LogError as error:
                refused[name] = error
                continue
            if name not in self._where:
                facts[root] = replace(facts[root], partition_count=facts[root].partition_count + 1)
                created.setdefault(root, []).append(name)
        for root, names in created.items():
            with self._changing:
                self._where.update(dict.fromkeys(names, (root,)))
            directory = self._directories[root]
            try:
                directory.storage.make_directories([directory.path(name) for name in names])
            except LogError as error:
                refused.update(dict.fromkeys(names, error))
        return refused

    def create(self, partition: TopicPartition, topic_id: str, choose: Choose, *, is_new: bool = True) -> None:
        """Create an empty directory for a partition in the root that `choose` returns.

        It is durable once its log was opened. If the disk fails during the call, the partition belongs to that
        directory all the same: a second directory elsewhere could become a duplicate. Raises DiskFailed if no directory
        is suitable, or if a directory is offline and the partition is not `is_new`: it may have records there. Raises
        Conflict if a leftover of a move is the only copy of such a partition.
        """
        self.check_online(partition)
        root = self.root_of(partition)
        if root is None and not is_new:
            self._check_not_away(partition)
            self._check_no_incomplete_move(partition, topic_id)
        if root is None:
            root = choose(self.facts()).path
            if not is_new:
                _log.warning(
                    "found no data of a partition, created it empty: partition=%s directory=%s", partition, root
                )
            with self._changing:
                self._where[partition] = (root,)
        self._directories[root].create(partition, topic_id, is_opened_next=True)

    def open_log(
        self, partition: TopicPartition, settings: LogSettings, *, now_ms: int, is_tiered: bool = False
    ) -> Log:
        """Like `LogDirectory.open_log`. A read-only open sees a partition that is in no directory as empty."""
        if self.read_only and self.root_of(partition) is None:
            self._check_not_away(partition)
            directory = self.online[0]
        else:
            directory = self.of(partition)
        return directory.open_log(partition, settings, now_ms=now_ms, is_tiered=is_tiered)

    def move(
        self,
        partition: TopicPartition,
        root: str,
        *,
        now_ms: int,
        delay_ms: int,
        progress: Progress = lambda done, all_: None,
    ) -> None:
        """Move an open log to another directory while it accepts appends (`local.logdirs.log_moves`).

        The old files are deleted `delay_ms` later. No other task may change the log's directory during the move. Raises
        InvalidRequest for a wrong `root`, DiskFailed if `root` has no room or is offline.
        """
        source = self.of(partition)
        if root not in self.roots or root == source.root:
            what = "the log directory is not configured"
            if root == source.root:
                what = "the partition is already in this log directory"
            facts = {"partition": partition, "to": root, "known": ",".join(self.roots)}
            raise InvalidRequest(f"cannot move the partition, {what}", **facts)
        if root in self._offline:
            raise offline(root, self._offline[root])
        target = self._directories[root]
        log = source.logs.get(partition)
        if log is None:
            raise NotFound("cannot move the partition, its log is not open", partition=partition)
        space = target.storage.space(root)
        if space is not None and space.free_bytes < log.size_bytes:
            attempt = "cannot move the partition, the target directory has too little free space"
            raise DiskFailed(attempt, to=root, size_bytes=log.size_bytes, free_bytes=space.free_bytes)
        topic_id = source.topic_id(partition)
        doomed = move_log(log, source, target, progress=progress)
        with self._changing:
            self._where[partition] = (root,)
            self._doomed.append(_Doomed(now_ms, delay_ms, source, doomed, topic_id))
        _log.info("moved a partition: partition=%s from=%s to=%s", partition, source.root, root)
        source.try_checkpoints()

    def delete(self, partition: TopicPartition, *, now_ms: int, delay_ms: int) -> None:
        """Rename the directory, if any, to ``-delete``, durably; delete it `delay_ms` later. Raises as `of`."""
        if self._is_closed or self.root_of(partition) is None:
            return
        directory = self.of(partition)
        topic_id = directory.topic_id(partition)
        doomed = rename_deleted(directory, partition)
        with self._changing:
            self._where.pop(partition, None)
            self._doomed.append(_Doomed(now_ms, delay_ms, directory, doomed, topic_id))
        directory.try_checkpoints()

    def remove_incomplete_moves(self, topic: str, topic_id: str) -> None:
        """At the start: delete the ``-delete`` directories of a deleted topic. Other topics' directories stay."""
        for each in [each for each in self._incomplete_moves if each.is_deleted_topics(topic, topic_id)]:
            remove_tree(each.storage, each.root, each.path)
            self._incomplete_moves.remove(each)

    def has_no_files(self, partition: TopicPartition, topic_id: str) -> bool:
        """Whether no directory has files of a topic's partition, even to delete; False if one is offline or closed."""
        waiting = any(each.topic_id == topic_id for each in self._doomed)
        return not (self._is_closed or self._offline or waiting or self.topic_id(partition) == topic_id)

    def remove_deleted(self, now_ms: int) -> None:
        """Delete the ``-delete`` directories after their delay; retry later if the disk refuses."""
        with self._changing:
            waiting = [each._replace(since_ms=min(each.since_ms, now_ms)) for each in self._doomed]
            self._doomed = waiting
        for due in [each for each in waiting if now_ms - each.since_ms >= each.delay_ms]:
            still: list[_Doomed] = []
            try:
                remove_tree(due.directory.storage, due.directory.root, due.path)
            except LogError as error:
                still.append(due._replace(since_ms=now_ms, delay_ms=max(due.delay_ms, _AGAIN_MS)))
                _log.warning("cannot delete a leftover directory of a move: path=%s error=%s", due.path, error)
            with self._changing:  # only after the deletion: `has_no_files` needs the topic id until then
                self._doomed = [each for each in self._doomed if each is not due] + still

    # -- checkpoints and close -------------------------------------------------------------------------------------

    def try_checkpoints(self) -> DiskFailed | None:
        """Write the checkpoints of every online directory; return the first DiskFailed for a lack of room.

        Other errors are raised after all directories were tried.
        """
        return next((error for error in self._for_each(LogDirectory.try_checkpoints) if error is not None), None)

    def close(self, unrecovered: Collection[TopicPartition] = ()) -> None:
        """Close each directory; raise the first error after all. One with an `unrecovered` partition gets no marker."""
        self._is_closed = True
        held = {root for name in unrecovered for root in self._where.get(name, ())}
        try:
            self._for_each(lambda each: each.close(is_clean=each.root not in held))
        finally:
            for root in self._offline:
                if root in self._directories:
                    self._directories[root].abandon()

    def abandon(self) -> None:
        """Release files and locks without writing anything, as a crash would."""
        self._is_closed = True
        for directory in self._directories.values():
            directory.abandon()

    # -- private ---------------------------------------------------------------------------------------------------

    def _watched(self, storage: Storage, root: str) -> WatchedStorage:
        def on_failure(error: LogError) -> None:
            _log.error("a log directory is offline: directory=%s error=%s", root, error)
            with self._changing:
                self._offline = {**self._offline, root: error}
            self.on_offline(root, error)

        return WatchedStorage(storage, root, on_failure)

    def _check_not_away(self, partition: TopicPartition) -> None:
        if self._offline:
            facts = {"partition": partition, "offline": ",".join(self._offline)}
            error = DiskFailed("the partition is in no log directory that is online", **facts)
            raise error.with_code(ErrorCode.DIRECTORY_OFFLINE)

    def _check_no_incomplete_move(self, partition: TopicPartition, topic_id: str) -> None:
        for each in self._incomplete_moves:
            if each.partition == partition and each.is_of(topic_id):
                attempt = "cannot create the partition, a move left a copy of it; rename the copy to the name of "
                attempt += "the partition to keep it, or move it away"
                raise Conflict(attempt, partition=partition, path=each.path)

    def _take_all(self) -> None:
        is_one_of_several = len(self.roots) > 1
        known: dict[str, MetaProperties] = {}
        for root in self.roots if is_one_of_several else ():
            identity = self._try(root, lambda root: checkpoints.read_meta_properties(self._storages[root], root))
            if identity is not None:
                known[root] = identity
        like = _agreed(known)
        if like is None and self._offline:
            # Only the offline directory could name the cluster and the node of the others.
            raise next(iter(self._offline.values()))
        for root in self.roots:
            if root not in self._offline:
                if is_one_of_several and known and not self._try(root, self._is_there):
                    self._lose(root, NotFound("the log directory does not exist; create it if it is new", path=root))
                    continue
                like = self._take_one(root, like) or like
        if len(self._offline) == len(self.roots):
            raise next(iter(self._offline.values()))
        if self.read_only and is_one_of_several:
            self._scan_until_stable()
        self._resolve_moves()

    def _resolve_moves(self) -> None:
        """Finish or undo moves. A leftover stays if no other complete copy is proven."""
        moves: list[IncompleteMove] = []
        for root in [each.root for each in self.online]:
            if self._try(root, self._is_there):
                moves += self._try(root, lambda root: find_incomplete_moves(self._storages[root], root)) or []
        self._incomplete_moves = moves if self.read_only else resolve(moves, self._where, self._storages)

    def _take_one(self, root: str, like: MetaProperties | None) -> MetaProperties | None:
        storage, read_only = self._storages[root], self.read_only
        taken = self._try(root, lambda root: LogDirectory(storage, root, read_only=read_only, like=like))
        if taken is None:
            return None
        self._directories[root] = taken
        self._where = self._found_in(root, self._where)
        return taken.identity

    def _found_in(
        self, root: str, where: Mapping[TopicPartition, tuple[str, ...]]
    ) -> dict[TopicPartition, tuple[str, ...]]:
        return {**where, **{name: (*where.get(name, ()), root) for name in self._try(root, self._list) or ()}}

    def _scan_until_stable(self) -> None:
        """Find the partitions of a read-only open: repeat until two passes agree, because of moves."""
        for _ in range(_SCANS_MAX):
            found: dict[TopicPartition, tuple[str, ...]] = {}
            for each in self.online:
                found = self._found_in(each.root, found)
            before, self._where = self._where, found
            if before == found:
                return

    def _try(self, root: str, act: Callable[[str], _T]) -> _T | None:
        try:
            return act(root)
        except (NotFound, AccessDenied, DiskFailed) as error:
            if len(self.roots) == 1:
                raise
            self._lose(root, error)
            return None

    def _lose(self, root: str, error: LogError) -> None:
        watched = self._storages[root]
        assert isinstance(watched, WatchedStorage), "a single directory is never offline"
        watched.fail(error)

    def _is_there(self, root: str) -> bool:
        return self._storages[root].is_directory(root)

    def _list(self, root: str) -> list[TopicPartition]:
        if self.read_only and len(self.roots) == 1 and not self._is_there(root):
            return []
        return self._directories[root].partitions()

    def _facts(self, root: str, spaces: dict[int, Space]) -> LogDirFacts:
        space: Space | None = None
        if root not in self._offline and self._try(root, self._is_there):
            space = self._try(root, lambda root: self._storages[root].space(root))
            if space is not None and space.device is not None:
                space = spaces.setdefault(space.device, space)
        return LogDirFacts(
            path=root,
            partition_count=len(self.partitions_of(root)),
            free_bytes=space.free_bytes if space else None,
            total_bytes=space.total_bytes if space else None,
            is_offline=root in self._offline,
            is_cordoned=root in self.cordoned,
        )

    def _for_each(self, act: Callable[[LogDirectory], _T]) -> list[_T]:
        """The results of `act`; the first error of a directory that stays online is raised after all were tried."""
        done, first = list[_T](), None
        for directory in self.online:
            try:
                done.append(act(directory))
            except LogError as error:
                if directory.root not in self._offline:
                    first = first or error
        if first is not None:
            raise first
        return done


def _agreed(known: Mapping[str, MetaProperties]) -> MetaProperties | None:
    like: MetaProperties | None = None
    ids: dict[str, str] = {}
    for root, found in known.items():
        if like is None:
            like, first = found, root
        for what in ("cluster_id", "node_id"):
            mine, other = getattr(found, what), getattr(like, what)
            if mine != other:
                attempt = f"the log directories have different values of {what.replace('_', '.')}"
                raise InvalidRequest(attempt, **{first: other, root: mine})
        if found.directory_id and found.directory_id in ids:
            attempt = "two log directories have the same directory.id; one may be a copy of the other"
            facts = {"directories": f"{ids[found.directory_id]},{root}", "directory_id": found.directory_id}
            raise InvalidRequest(attempt, **facts)
        ids[found.directory_id] = root
    return like
