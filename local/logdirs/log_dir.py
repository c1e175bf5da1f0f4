"""A directory of logs, held by one process: lock, identity, checkpoints, clean-shutdown marker, the open logs.

Order of effects at open: lock → read the marker → remove it, durably → read checkpoints → load the logs (trusting
them only if the marker was there). At close: seal every log → write the checkpoints → write the marker → unlock. The
marker vouches for bytes that are already durable, and never outlives the first write (O8). A crash at any point
leaves no marker, and the next open recovers from the recovery points, which are only ever written after the bytes
below them were synced.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from local import names
from local.errors import Conflict, DiskFailed, ErrorCode, InvalidRequest, NotFound
from local.log import Log, checkpoints
from local.log.checkpoints import MetaProperties
from local.names import TopicPartition, parse_marked_directory, parse_partition_directory
from local.settings import LogSettings
from local.storage import Storage, StorageFile, join, replace_file

_log = logging.getLogger(__name__)

_CLEAN_MARKER = b'{"version":0,"brokerEpoch":-1}'


class LogDirectory:
    """The logs below one root. One process at a time: a second one gets Conflict."""

    def __init__(
        self, storage: Storage, root: str, *, read_only: bool = False, like: MetaProperties | None = None
    ) -> None:
        """Take the directory; logs are opened with `open_log`. Raises Conflict, AccessDenied, DiskFailed, Corrupt.

        With `read_only` nothing is locked or written, and logs are seen as they are now. `like` is whose directory a
        new one becomes (`local.logdirs.log_dirs`).
        """
        self.storage = storage
        self.root = root
        self.read_only = read_only
        self.logs: dict[TopicPartition, Log] = {}
        self.was_clean = False
        self.identity = like
        self._lock: StorageFile | None = None
        self._files = threading.Lock()
        self._is_refused = False  # checkpoints are due that the disk had no room for
        self._raised: dict[TopicPartition, int] = {}
        try:
            if not read_only:
                self._take()
            self._recovery_points = self._read(names.RECOVERY_POINTS)
            self._log_starts = self._read(names.LOG_START_OFFSETS)
            self._cleaner_offsets = self._read(names.CLEANER_OFFSETS)
            self._cleaner_reaches = self._read(names.CLEANER_REACHES)
        except BaseException:
            self._unlock()
            raise

    def path(self, partition: TopicPartition) -> str:
        return join(self.root, partition.directory)

    def partitions(self) -> list[TopicPartition]:
        """Every partition that has a directory here, sorted."""
        found = (parse_partition_directory(name) for name in self.storage.list(self.root))
        return sorted(p for p in found if p and self.storage.is_directory(self.path(p)))

    def topic_id(self, partition: TopicPartition) -> str:
        """Raises NotFound for a partition that is not here."""
        found = checkpoints.read_topic_id(self.storage, self.path(partition))
        if found is None:
            raise NotFound("finding a partition", partition=partition, directory=self.root)
        return found

    def create(self, partition: TopicPartition, topic_id: str, *, is_opened_next: bool = False) -> None:
        """An empty directory for a new partition; durable on return. Raises InvalidRequest when it is another's.

        With `is_opened_next` it is durable, name and all, once its log was opened: the log's first segment syncs the
        names in the directory anyway. A crash before that leaves an empty partition, or no id, which is written anew.
        """
        directory = self.path(partition)
        self.storage.make_directory(directory)
        existing = checkpoints.read_topic_id(self.storage, directory)
        if existing not in (None, topic_id):
            raise InvalidRequest("creating a partition, it exists", partition=partition, topic_id=existing)
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
        """The log of `partition`, loaded and recovered as its checkpoints say; the same object on a second call.

        One that `is_new` came after the last shutdown, which vouches for nothing in it.
        """
        if partition in self.logs:
            return self.logs[partition]
        log = Log.open(
            self.storage,
            self.path(partition),
            partition,
            settings,
            now_ms=now_ms,
            was_clean=self.was_clean and not is_new,
            recovery_point=self._recovery_points.get(partition, 0),
            log_start_offset=self._log_starts.get(partition),
            is_tiered=is_tiered,
            read_only=self.read_only,
        )
        if settings.is_compacted:
            # A checkpoint past the log's end (the log is not the one it was written for) vouches for nothing.
            known = self._cleaner_offsets.get(partition, 0)
            log.cleaner_offset = known if known <= log.next_offset else 0
        # Whatever the policy is now: what a pass has taken stays gone.
        log.cleaner_reach = min(self._cleaner_reaches.get(partition, 0), log.next_offset)
        log.write_checkpoints = self.write_checkpoints
        self.logs[partition] = log
        return log

    def take_in(
        self,
        partition: TopicPartition,
        settings: LogSettings,
        *,
        now_ms: int,
        recovery_point: int,
        log_start_offset: int,
        is_tiered: bool = False,
        cleaner_offset: int = 0,
        cleaner_reach: int = 0,
    ) -> Log:
        """The log of files that were put here whole and durably up to `recovery_point`, as if they always had been.

        What is above it is recovered. The checkpoints are written by `close`. Raises as `open_log`.
        """
        self.forget(partition)
        self._recovery_points[partition], self._log_starts[partition] = recovery_point, log_start_offset
        self._cleaner_offsets[partition], self._cleaner_reaches[partition] = cleaner_offset, cleaner_reach
        return self.open_log(partition, settings, now_ms=now_ms, is_tiered=is_tiered, is_new=True)

    def forget(self, partition: TopicPartition) -> None:
        """What the checkpoints say of a partition that was here and moved, or went, holds for no other one."""
        self.logs.pop(partition, None)
        for known in (
            self._recovery_points,
            self._log_starts,
            self._cleaner_offsets,
            self._cleaner_reaches,
            self._raised,
        ):
            known.pop(partition, None)

    def write_checkpoints(self) -> None:
        """Recovery points, log starts, cleaner offsets and reaches of all open logs; each file replaced whole."""
        with self._files:
            points = self._told(self._recovery_points, lambda name, log: log.recovery_point)
            self._write(names.RECOVERY_POINTS, points)
        self.write_log_starts()
        self.write_cleaner_reaches()
        self.write_cleaner_offsets()

    def try_checkpoints(self) -> DiskFailed | None:
        """As `write_checkpoints`, after an effect that stands without them. A disk without room is no error of that
        effect: what it said is returned, and the checkpoints are due until they are written."""
        try:
            self.write_checkpoints()
        except DiskFailed as error:
            if not error.lacks_room:
                raise
            if not self._is_refused:
                _log.warning("checkpoints wait for room: directory=%s error=%s", self.root, error)
            self._is_refused = True
            return error
        self._is_refused = False
        return None

    def write_cleaner_offsets(self) -> None:
        """After a cleaning, once its swaps are durable."""
        with self._files:
            self._write(names.CLEANER_OFFSETS, self._told(self._cleaner_offsets, lambda name, log: log.cleaner_offset))

    def write_cleaner_reaches(self) -> None:
        """Before the first swap of a cleaning."""
        with self._files:
            known = self._told(self._cleaner_reaches, lambda name, log: log.cleaner_reach or None)
            if known or self.storage.exists(join(self.root, names.CLEANER_REACHES)):
                self._write(names.CLEANER_REACHES, known)

    def write_log_starts(self, raised: Mapping[TopicPartition, int] | None = None) -> None:
        """The log starts, those in `raised` as they are about to be: written down before readers are told."""
        with self._files:
            for name, offset in (raised or {}).items():
                self._raised[name] = max(offset, self._raised.get(name, 0))
            starts = self._told(self._log_starts, self._start_of)
            starts |= {name: self._raised[name] for name in raised or {} if name not in self.logs}
            self._write(names.LOG_START_OFFSETS, starts)

    def close(self, *, is_clean: bool = True) -> None:
        """Seal, checkpoint, mark clean, unlock. Raises DiskFailed when records of a log may not be durable.

        Without room to seal a log, for the checkpoints, or for the marker, the marker is left out: the records are
        durable, and the next start recovers. `is_clean` False: a partition here was not opened, so the next start has
        to recover. Nothing happens to one that was let go of: it may be another's by now.
        """
        if self.read_only:
            self.abandon()
        if self._lock is None:
            return
        try:
            unsealed = [log for _, log in self._open_logs() if not log.close()]
            is_refused = self.try_checkpoints() is not None
            if unwritten := [log.partition for log in unsealed if log.has_unwritten]:
                attempt = "closing logs, not sealed and not durable; the next start recovers them"
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
            _log.warning("not marked clean, the next start recovers: directory=%s error=%s", self.root, error)

    def abandon(self) -> None:
        """Let go of files and the lock without writing anything, as a crash would."""
        for _, log in self._open_logs():
            log.release()
        self._unlock()

    def _open_logs(self) -> list[tuple[TopicPartition, Log]]:
        """A copy: logs are opened while checkpoints are written."""
        return list(self.logs.items())

    def _start_of(self, name: TopicPartition, log: Log) -> int:
        """Whoever writes between a raise that was noted and the log's own must not take it back. A note above the log's
        end is of a log that was truncated since: a start that finds it would throw away what came there."""
        if self._raised.get(name, 0) > log.next_offset:
            self._raised.pop(name, None)  # whoever forgets the log may have been faster
        return max(log.log_start_offset, self._raised.get(name, 0))

    def _told(
        self, read: Mapping[TopicPartition, int], of: Callable[[TopicPartition, Log], int | None]
    ) -> dict[TopicPartition, int]:
        """Of open logs what they say now, of others what was `read`, and that first: a log that is opened meanwhile
        would be neither, and what is written knew nothing of it."""
        known = self._unopened(read)
        for name, log in self._open_logs():
            if (offset := of(name, log)) is not None:
                known[name] = offset
        return known

    def _unopened(self, read: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """What was read at the start of partitions that are here and not open: it holds until they are opened.

        One that is here only under the name of a move (`local.logdirs.log_moves`) may get its own back.
        """
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
                "opening a log directory, another manager has it open: stop it, or wait for it",
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

    def _read(self, name: str) -> dict[TopicPartition, int]:
        return checkpoints.read_offsets(self.storage, join(self.root, name))

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self._lock is None:  # a task that waited for something while it was closed: it may be another's by now
            raise DiskFailed("writing checkpoints, the directory was let go of", directory=self.root)
        checkpoints.write_offsets(self.storage, join(self.root, name), offsets)
