"""JSON of everyday commands: topics, offsets, settings, disks, checks, garbage. See `tiered.cli.schemas.schemas`."""

from __future__ import annotations

import msgspec

from tiered.cli.schemas.schemas_base import Strict, Versioned, Where
from tiered.status.unknown_figures import UnreadPartitions


class ListedTopic(Strict):
    """A topic; `settings` are its own."""

    topic: str
    partitions: int
    topic_id: str
    settings: dict[str, str]


class Topics(Versioned):
    """``tiered topic list``, and what ``create``, ``alter`` and ``delete`` did."""

    topics: list[ListedTopic]


class EffectiveSetting(Strict):
    """A setting as it holds, and where that comes from."""

    property: str
    value: str
    origin: str


class TopicSettings(Versioned):
    """``tiered topic describe --settings``."""

    topic: str
    settings: list[EffectiveSetting]


class NewTopic(Versioned):
    """``tiered topic create --dry-run``; `namesakes` are ids of topics of this name in the bucket."""

    dry_run: bool
    topic: str
    partitions: int
    is_tiered: bool
    namesakes: list[str]
    settings: list[EffectiveSetting]


class DescribedPartition(Strict):
    """A partition in both tiers; bytes are of ``.log`` data. Null of a tier that could not be read."""

    partition: int
    log_start_offset: int | None
    local_start_offset: int | None
    next_offset: int | None
    local_segments: int | None
    local_bytes: int | None
    remote_segments: int | None
    remote_bytes: int | None


class DescribedTopic(Versioned):
    """``tiered topic describe``."""

    topic: str
    topic_id: str
    unread: list[UnreadPartitions]
    partitions: list[DescribedPartition]


class ChangedSetting(Strict):
    """A setting that would be another."""

    property: str
    before: str
    before_origin: str
    after: str
    after_origin: str


class PartitionLost(Strict):
    """What a partition would lose; null is not known, `trouble` says why. `offsets` are as many records at most."""

    partition: int
    log_start_offset: int | None
    next_offset: int | None
    offsets: int | None
    local_bytes: int | None
    remote_bytes: int | None
    only_local_bytes: int | None
    pins: int | None
    pinned_until_ms: int | None
    forks: list[str]
    trouble: str | None


class AlteredTopic(Versioned):
    """``tiered topic alter --dry-run``; `lost` where it would give its remote tier up."""

    dry_run: bool
    topic: str
    own: dict[str, str]
    begins_tiering: bool
    gives_up_tier: bool
    lost: list[PartitionLost]
    settings: list[ChangedSetting]


class DeletedTopic(Versioned):
    """``tiered topic delete --dry-run``."""

    dry_run: bool
    topic: str
    topic_id: str
    file_delete_delay_ms: int
    delete_grace_ms: int
    offsets: int | None
    local_bytes: int | None
    remote_bytes: int | None
    partitions: list[PartitionLost]


class OffsetFound(Where):
    """The offset that was asked for; null where there is none."""

    offset: int | None
    timestamp: int | None
    leader_epoch: int | None


class Offsets(Versioned):
    """``tiered get-offsets``."""

    unread: list[UnreadPartitions]
    offsets: list[OffsetFound]


class VerifyFinding(Strict):
    """`at` is a byte of the file, ``[base_offset, next_offset)`` what it concerns. Info, warning or corrupt."""

    severity: str
    path: str
    at: int | None
    what: str
    base_offset: int | None
    next_offset: int | None


class Verified(Versioned):
    """``tiered verify``."""

    findings: list[VerifyFinding]


class VerifiedRemote(Versioned):
    """``tiered verify --remote``; `sample_share` and `seed` null without ``--sample``.

    `lost` are partitions whose records the bucket lacks although this disk has dropped them.
    """

    store: str
    partitions: int
    segments: int
    read_segments: int
    read_bytes: int
    unread_segments: int
    unread_partitions: int
    sample_share: float | None
    seed: int | None
    lost: list[str]
    findings: list[VerifyFinding]


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


class ExplainedSetting(Strict):
    """A setting: what it is, what it does, how it is written."""

    setting: str
    value: str
    origin: str
    default: str
    expected: str
    example: str
    variable: str
    kafka: str
    of: str
    meaning: str


class ConfigExplained(Versioned):
    """``tiered config explain``; one of them."""

    settings: list[ExplainedSetting]


class LintFinding(Strict):
    """`where` is a line of a file or another place; `topics` those that it concerns, none for all."""

    severity: str
    where: str
    key: str
    what: str
    next_step: str
    topics: list[str]


class ConfigLinted(Versioned):
    """``tiered config lint``."""

    findings: list[LintFinding]


class TopicConfigs(Strict):
    """What Kafka is told of a topic."""

    topic: str
    configs: dict[str, str]


class ConfigExported(Versioned):
    """``tiered config export --format json``."""

    topics: list[TopicConfigs]


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
