"""Check that a log directory has room for appends."""

from __future__ import annotations

from local.errors import DiskFailed
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition


def check_room(directories: LogDirectories, partition: TopicPartition, least_bytes: int) -> None:
    """Check the free room of the partition's log directory.

    Raises DiskFailed (enospc) if it has less than `least_bytes` free.
    """
    directory = directories.of(partition)
    space = directory.storage.space(directory.root)
    if space is not None and space.free_bytes < least_bytes:
        raise DiskFailed(
            "cannot append, the disk is nearly full; a retry may succeed",
            partition=partition,
            directory=directory.root,
            free_bytes=space.free_bytes,
            least_bytes=least_bytes,
            cause="enospc",
        )
