"""Good copies of remote segments on this machine's disk, as the source of repairs.

A cleaner pass may have removed records from a local segment, which then has less than the entry says. So only identical
bytes count, by range, size and CRC32C of the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from local.errors import LogError, NotFound
from local.format.crc32c import crc32c
from local.log import Log
from remote.manifest.catalog import RemotePartitionName
from remote.segment_entry import SegmentEntry
from tiered.manager.manager import LogManager

_READ_BYTES = 8 << 20
_log = logging.getLogger(__name__)


class LocalCopies:
    """Finds good copies in a manager's logs; a read-only manager is sufficient.

    Reads a whole segment in each call. The manager is opened on the first call, because that reads every log's
    directory. If it cannot be opened, there are no copies and a warning is logged. A context manager that closes the
    manager.
    """

    def __init__(self, open_manager: Callable[[], LogManager]) -> None:
        self._open_manager = open_manager
        self._opened: LogManager | None = None
        self._is_tried = False

    def __enter__(self) -> LocalCopies:
        return self

    def __exit__(self, *rest: object) -> None:
        if self._opened is not None:
            self._opened.close()

    def __call__(self, name: RemotePartitionName, entry: SegmentEntry) -> bool:
        log = self.log(name)
        return log is not None and has_same_bytes(log, entry)

    def log(self, name: RemotePartitionName) -> Log | None:
        """Return the partition's log; None if this machine has none, or another topic of that name."""
        manager = self._manager()
        try:
            if manager is None or manager.topic(name.topic).topic_id != name.topic_id:
                return None
            return manager.partition(name.topic_partition).log
        except LogError:
            return None

    def _manager(self) -> LogManager | None:
        if not self._is_tried:
            self._is_tried = True
            try:
                self._opened = self._open_manager()
            except LogError as error:
                _log.warning("the disk is not searched for good copies: error=%s", error)
        return self._opened


def has_same_bytes(log: Log, entry: SegmentEntry) -> bool:
    """Return whether a closed local segment has the entry's bytes. A missing or unreadable one does not."""
    try:
        infos = [info for info in log.segments()[:-1] if info.base_offset == entry.base_offset]
        if not infos or infos[0].next_offset != entry.next_offset or infos[0].size_bytes != entry.size_bytes:
            return False
        segment = log.segment(entry.base_offset)
        checksum = 0
        for at in range(0, entry.size_bytes, _READ_BYTES):
            checksum = crc32c(segment.read(at, min(_READ_BYTES, entry.size_bytes - at)), checksum)
        return checksum == entry.content_crc32c
    except (NotFound, LogError):
        return False
