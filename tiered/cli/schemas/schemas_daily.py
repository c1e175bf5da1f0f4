"""JSON of everyday commands: topics, offsets, settings, disks, checks, garbage. See `tiered.cli.schemas.schemas`."""

from __future__ import annotations

import msgspec

from tiered.cli.schemas.schemas_base import Strict, Versioned, Where
from tiered.status.unknown_figures import UnreadPartitions


class OffsetFound(Where):
    """The offset that was asked for; null where there is none."""

    offset: int | None
    timestamp: int | None
    leader_epoch: int | None


class Offsets(Versioned):
    """``tiered get-offsets``."""

    unread: list[UnreadPartitions]
    offsets: list[OffsetFound]


class LogDirectory(Strict):
    """A log directory; null where it cannot be read, `error` says why."""

    path: str
    state: str
    partitions: int | None
    size_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None
    error: str | None


class LogDirs(Versioned):
    """``tiered log-dirs``."""

    directories: list[LogDirectory]


class PlacedPartition(Where):
    """A partition's directory: `is_future` is on its way in, `is_deleted` on its way out."""

    path: str
    size_bytes: int
    is_future: bool
    is_deleted: bool


class LogDirsPartitions(Versioned):
    """``tiered log-dirs -p``."""

    partitions: list[PlacedPartition]


class Move(Where):
    """`free_bytes` null: the file system does not tell."""

    from_: str = msgspec.field(name="from")
    to: str
    size_bytes: int
    free_bytes: int | None


class LogDirsMove(Versioned):
    """``tiered log-dirs move --dry-run``."""

    moves: list[Move]
