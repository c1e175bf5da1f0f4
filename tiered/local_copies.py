"""Segments of the bucket whose bytes lie on this machine's disk as well: the good copy that a damaged one is made from.

Not every local segment will do: a cleaning may have taken records out of it since, so that it holds less than the row
says. Only the very same bytes count, by the range, the size and the CRC32C that the row has.
"""

from __future__ import annotations

from local.crc32c import crc32c
from local.errors import LogError, NotFound
from local.log import Log
from remote.catalog import RemotePartitionName
from remote.segment import RemoteSegment
from tiered.manager import LogManager

_READ_BYTES = 8 << 20


class LocalCopies:
    """What the logs of a manager hold; a read-only one will do. Reads a segment whole, each time it is asked for."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager

    def __call__(self, name: RemotePartitionName, row: RemoteSegment) -> bool:
        log = self.log(name)
        return log is not None and has_same_bytes(log, row)

    def log(self, name: RemotePartitionName) -> Log | None:
        """The partition's log; None where this machine has none, or another topic of that name."""
        try:
            if self._manager.topic(name.topic).topic_id != name.topic_id:
                return None
            return self._manager.partition(name.topic_partition).log
        except LogError:
            return None


def has_same_bytes(log: Log, row: RemoteSegment) -> bool:
    """Whether a sealed local segment is the row's, byte for byte. One that vanishes or cannot be read is none."""
    try:
        infos = [info for info in log.segments()[:-1] if info.base_offset == row.base_offset]
        if not infos or infos[0].next_offset != row.next_offset or infos[0].size_bytes != row.size_bytes:
            return False
        segment = log.segment(row.base_offset)
        checksum = 0
        for at in range(0, row.size_bytes, _READ_BYTES):
            checksum = crc32c(segment.read(at, min(_READ_BYTES, row.size_bytes - at)), checksum)
        return checksum == row.content_crc32c
    except (NotFound, LogError):
        return False
