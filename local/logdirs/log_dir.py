"""One log directory, held by one process: lock, identity, checkpoints, clean marker, open logs.

Order of effects at open: lock; read the clean-shutdown marker, then delete it durably; read the checkpoints; load the
logs, trusting their files only if the marker existed. At close: close every log, write the checkpoints, write the
marker, unlock.

The marker is written only for bytes that are already durable, and is deleted before the first write (O8). A crash at
any point leaves no marker: the next open recovers every log from its recovery point. A recovery point is written only
after the bytes below it were synced.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from local import names
from local.errors import Conflict, DiskFailed, ErrorCode, InvalidRequest
from local.log import Log, checkpoints
from local.log.checkpoints import MetaProperties
from local.names import TopicPartition, parse_marked_directory, parse_partition_directory
from local.settings import LogSettings
from local.storage import Storage, StorageFile, join, replace_file

_log = logging.getLogger(__name__)

_CLEAN_MARKER = b'{"version":0,"brokerEpoch":-1}'
# The checkpoints, except that of the log starts, with the offset of an open log; None is not written.
_OFFSETS: dict[str, Callable[[Log], int | None]] = {
    names.RECOVERY_POINTS: lambda log: log.recovery_point,
    names.CLEANER_REACHES: lambda log: log.cleaner_reach or None,
    names.CLEANER_OFFSETS: lambda log: log.cleaner_offset,
}


class LogDirectory:
    """The logs below one root. Only one process may hold it: a second process gets Conflict."""

    def __init__(
        self, storage: Storage, root: str, *, read_only: bool = False, like: MetaProperties | None = None
    ) -> None:
        """Lock the directory and read its checkpoints. Raises Conflict, AccessDenied, DiskFailed, Corrupt.

        With `read_only` nothing is locked or written, and logs are seen as they are now. A new directory gets the
        cluster id and node id of `like`.
        """
        self.storage = storage
        self.root = root
        self.read_only = read_only
        self.logs: dict[TopicPartition, Log] = {}
        self.was_clean = False
        self.identity = like
        self._lock: StorageFile | None = None
        self._files = threading.Lock()
        self._is_refused = False  # checkpoints are due because the disk had no room for them
        self._raised: dict[TopicPartition, int] = {}
        try:
            if not read_only:
                self._take()
            self._known = {
                name: checkpoints.read_offsets(storage, join(root, name))
                for name in (*_OFFSETS, names.LOG_START_OFFSETS)
            }
        except BaseException:
            self._unlock()
            raise

    def path(self, partition: TopicPartition) -> str:
        return join(self.root, partition.directory)

    def partitions(self) -> list[TopicPartition]:
        """Every partition that has a directory here, sorted."""
        found = (parse_partition_directory(name) for name in self.storage.list(self.root))
        return sorted(p for p in found if p and self.storage.is_directory(self.path(p)))

    def topic_id(self, partition: TopicPartition) -> str | None:
        """The topic id in the partition's directory, None without one. Raises Corrupt."""
        return checkpoints.read_topic_id(self.storage, self.path(partition))

    def create(self, partition: TopicPartition, topic_id: str, *, is_opened_next: bool = False) -> None:
        """Create an empty directory for a new partition, durable on return.

        With `is_opened_next` it is durable only after its log was opened: a crash before that leaves an empty
        partition, perhaps without a topic id. Raises InvalidRequest if the directory belongs to another topic id.
        """
        directory = self.path(partition)
        self.storage.make_directory(directory)
        existing = self.topic_id(partition)
        if existing not in (None, topic_id):
            raise InvalidRequest(
                "cannot create the partition, it already exists", partition=partition, topic_id=existing
            )
        if existing is None:
            self.forget(partition)
        checkpoints.write_topic_id(self.storage, directory, topic_id, syncs_name=not is_opened_next)

    def open_log(
        self,
        partition: TopicPartition,
        settings: LogSettings,
        *,
        now_ms: int,
        is_tiered: bool = False,
        is_new: bool = False,
    ) -> Log:
        """Load and recover the log. A second call returns the same object. `is_new`: ignore the clean marker."""
        if partition in self.logs:
            return self.logs[partition]
        log = Log.open(
            self.storage,
            self.path(partition),
            partition,
            settings,
            now_ms=now_ms,
            was_clean=self.was_clean and not is_new,
            recovery_point=self._known[names.RECOVERY_POINTS].get(partition, 0),
            log_start_offset=self._known[names.LOG_START_OFFSETS].get(partition),
            is_tiered=is_tiered,
            read_only=self.read_only,
        )
        if settings.is_compacted:
            # A checkpoint past the log end was written for another log and is not trusted.
            known = self._known[names.CLEANER_OFFSETS].get(partition, 0)
            log.set_cleaner_offset(known if known <= log.next_offset else 0)
        # Under every policy: an earlier cleaner pass may have removed records below the reach.
        log.set_cleaner_reach(min(self._known[names.CLEANER_REACHES].get(partition, 0), log.next_offset))
        log.use_checkpoints(self.write_checkpoints)
        self.logs[partition] = log
        return log

    def take_in(
        self,
        partition: TopicPartition,
        settings: LogSettings,
        known: Mapping[str, int],
        *,
        now_ms: int,
        is_tiered: bool = False,
    ) -> Log:
        """Open a log whose files were put here, complete and durable up to its recovery point.

        `known` are its offsets by the names of the checkpoints. Raises as `open_log`.
        """
        self.forget(partition)
        for name, offset in known.items():
            self._known[name][partition] = offset
        return self.open_log(partition, settings, now_ms=now_ms, is_tiered=is_tiered, is_new=True)

    def forget(self, partition: TopicPartition) -> None:
        """Remove the checkpoints of a moved or deleted partition: they do not apply to a later one."""
        self.logs.pop(partition, None)
        for known in (*self._known.values(), self._raised):
            known.pop(partition, None)

    def write_checkpoints(self) -> None:
        """Write recovery points, log starts, cleaner offsets and reaches; each file is replaced whole."""
        self.write(names.RECOVERY_POINTS)
        self.write_log_starts()
        self.write(names.CLEANER_REACHES)
        self.write(names.CLEANER_OFFSETS)

    def try_checkpoints(self) -> DiskFailed | None:
        """Like `write_checkpoints`, but return a DiskFailed for a lack of room: the checkpoints are then due."""
        try:
            self.write_checkpoints()
        except DiskFailed as error:
            if not error.lacks_room:
                raise
            if not self._is_refused:
                attempt = "cannot write checkpoints, the disk is full; the next round retries"
                _log.warning("%s: directory=%s error=%s", attempt, self.root, error)
            self._is_refused = True
            return error
        self._is_refused = False
        return None

    def write(self, file: str) -> None:
        """Write a checkpoint except the log starts: reaches before the first swap of a pass, offsets after the last."""
        with self._files:
            offsets = self._offsets(file, _OFFSETS[file])
            if offsets or file != names.CLEANER_REACHES or self.storage.exists(join(self.root, file)):
                self._replace(file, offsets)

    def write_log_starts(self, raised: Mapping[TopicPartition, int] | None = None) -> None:
        """Write the log starts; `raised` holds new log starts that are written before readers see them."""
        with self._files:
            for name, offset in (raised or {}).items():
                self._raised[name] = max(offset, self._raised.get(name, 0))
            starts = self._offsets(names.LOG_START_OFFSETS, self._start_of)
            starts |= {name: self._raised[name] for name in raised or {} if name not in self.logs}
            self._replace(names.LOG_START_OFFSETS, starts)

    def close(self, *, is_clean: bool = True) -> None:
        """Close every log, write the checkpoints, mark the directory clean, unlock it.

        | state | effect |
        |---|---|
        | no room to close a log, for checkpoints or marker | no marker: records are durable, the next open recovers |
        | `is_clean` False: a partition here was not opened | no marker: the next open recovers |
        | the lock was released before | nothing: another process may hold the directory |

        Raises DiskFailed if records of a log may not be durable.
        """
        if self.read_only:
            self.abandon()
        if self._lock is None:
            return
        try:
            unsealed = [log for _, log in self._open_logs() if not log.close()]
            is_refused = self.try_checkpoints() is not None
            if unwritten := [log.partition for log in unsealed if log.has_unwritten]:
                attempt = "cannot close the logs durably; the next start recovers them"
                raise DiskFailed(attempt, partitions=unwritten)
            if is_clean and not is_refused and not unsealed:
                self._mark_clean()
        finally:
            self._unlock()

    def _mark_clean(self) -> None:
        try:
            replace_file(self.storage, join(self.root, names.CLEAN_SHUTDOWN), _CLEAN_MARKER)
        except DiskFailed as error:
            if not error.lacks_room:
                raise
            problem = "the log directory was not marked as cleanly closed, the next start recovers it"
            _log.warning("%s: directory=%s error=%s", problem, self.root, error)

    def abandon(self) -> None:
        """Release files and lock without writing anything, as a crash would."""
        for _, log in self._open_logs():
            log.release()
        self._unlock()

    def _open_logs(self) -> list[tuple[TopicPartition, Log]]:
        """A copy of `logs`, because logs are opened while checkpoints are written."""
        return list(self.logs.items())

    def _start_of(self, log: Log) -> int:
        """The log start to write: the larger of the log's own and the noted raise.

        A noted raise above the log end is void: the log was truncated, and the next open would delete new records.
        """
        if self._raised.get(log.partition, 0) > log.next_offset:
            self._raised.pop(log.partition, None)  # `forget` may have removed it in another thread
        return max(log.log_start_offset, self._raised.get(log.partition, 0))

    def _offsets(self, file: str, of: Callable[[Log], int | None]) -> dict[TopicPartition, int]:
        """The offsets of all logs. Unopened logs are read first: a log may be opened during the call."""
        offsets = self._unopened(self._known[file])
        for name, log in self._open_logs():
            if (offset := of(log)) is not None:
                offsets[name] = offset
        return offsets

    def _unopened(self, read: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The checkpointed offsets of logs here that are not open, ``-future`` and ``-delete`` included."""
        absent = {name: offset for name, offset in list(read.items()) if name not in self.logs}
        if not absent:
            return {}
        inside = self.storage.list(self.root)
        here = {parse_partition_directory(name) for name in inside}
        here |= {parsed[0] for name in inside if (parsed := parse_marked_directory(name))}
        return {name: at for name, at in absent.items() if name in here}

    def _take(self) -> None:
        self.storage.make_directory(self.root)
        try:
            self._lock = self.storage.lock(join(self.root, names.LOCK))
        except Conflict:
            raise Conflict(
                "another manager has the log directory open; stop that manager, or wait until it ends",
                directory=self.root,
            ).with_code(ErrorCode.DIRECTORY_HELD) from None
        self.identity = checkpoints.ensure_meta_properties(self.storage, self.root, self.identity)
        marker = join(self.root, names.CLEAN_SHUTDOWN)
        self.was_clean = self.storage.exists(marker)
        self.storage.unlink(marker)
        self.storage.sync_directory(self.root)

    def _unlock(self) -> None:
        with self._files:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _replace(self, file: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self._lock is None:  # a late task after `close`: another process may hold the directory
            raise DiskFailed("cannot write checkpoints, the log directory was closed", directory=self.root)
        checkpoints.write_offsets(self.storage, join(self.root, file), offsets)
