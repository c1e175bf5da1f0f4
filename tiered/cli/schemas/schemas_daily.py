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


class ScrubFinding(Where):
    """`object` is relative to the partition's prefix, `at` and `length` bytes of it; `good_copy` says where one is."""

    severity: str
    topic_id: str
    object: str
    what: str
    at: int | None
    length: int | None
    base_offset: int | None
    next_offset: int | None
    ulid: str | None
    good_copy: str | None


class Scrubbed(Versioned):
    """``tiered scrub``; `report` is the file that it wrote. `unread_segments` could not be opened,
    and of `unread_partitions` not even the sealed heads.

    `lost` are partitions whose records the bucket lacks although this disk has dropped them.
    """

    store: str
    is_deep: bool
    started_ms: int
    finished_ms: int
    read_bytes: int
    unread_segments: int
    unread_bytes: int
    unread_partitions: int
    report: str | None
    lost: list[str]
    findings: list[ScrubFinding]


class Orphan(Where):
    """What is nobody's; `age_ms` null where the store does not tell, `upload_id` of an unfinished upload."""

    kind: str
    topic_id: str
    key: str
    size_bytes: int
    age_ms: int | None
    upload_id: str | None


class GarbageListed(Versioned):
    """``tiered gc``; `more` were found than the list holds."""

    list_: str = msgspec.field(name="list")
    more: int
    store: str
    size_bytes: int
    dollars_per_month: float
    orphans: list[Orphan]


class GarbageDeleted(Versioned):
    """``tiered gc --delete``."""

    deleted: list[Orphan]


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
