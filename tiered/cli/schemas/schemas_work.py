"""JSON of commands that work on whole topics and buckets: copies, repairs, jobs. See `tiered.cli.schemas.schemas`."""

from __future__ import annotations

from tiered.cli.schemas.schemas_base import Done, Priced, Strict, Versioned, Where


class PlannedCopy(Where):
    """Segments that would be read and written, in requests and dollars."""

    segments: int
    groups: int
    read_bytes: int
    write_bytes: int
    gets: int
    puts: int
    dollars: float


class RewritePlanned(Priced):
    """``tiered rewrite merge|recode|copy --dry-run``."""

    partitions: list[PlannedCopy]


class RewrittenPartition(Where):
    """Segments and bytes before and after, of what was committed. `given_up` groups were replaced by others meanwhile,
    those `expired` are no longer there; not `is_complete`: groups are left to do."""

    groups: int
    unchanged: int
    given_up: int
    expired: int
    is_complete: bool
    rows_before: int
    rows_after: int
    stored_before: int
    stored_after: int


class Rewritten(Done):
    """``tiered rewrite merge|recode``."""

    partitions: list[RewrittenPartition]


class CopiedPartition(Where):
    """`behind` segments came to the source meanwhile."""

    segments: int
    size_bytes: int
    behind: int
    differences: int
    is_complete: bool


class Copied(Done):
    """``tiered rewrite copy``."""

    partitions: list[CopiedPartition]


class PlannedImport(Where):
    """Segments that would be read there and written here, in requests and dollars."""

    segments: int
    read_bytes: int
    write_bytes: int
    gets: int
    puts: int
    dollars: float


class ImportPlanned(Priced):
    """``tiered import --dry-run``, and where there is nothing to import."""

    partitions: list[PlannedImport]


class ImportedPartition(Where):
    """What came."""

    topic_id: str
    segments: int
    records: int
    size_bytes: int
    next_offset: int
    is_complete: bool


class Imported(Done):
    """``tiered import``."""

    partitions: list[ImportedPartition]


class _Restore(Where):
    log_start_offset: int
    next_offset: int
    size_bytes: int
    remote_bytes: int
    exact_from: int | None


class PlannedRestore(_Restore):
    """`size_bytes` on the disk, `remote_bytes` in the bucket alone; below `exact_from` keys may miss, null: none."""

    segments: int
    read_bytes: int
    gets: int
    dollars: float


class RestorePlanned(Priced):
    """``tiered restore --dry-run``."""

    partitions: list[PlannedRestore]


class RestoredPartition(_Restore):
    """As planned; `epoch` null where the present writer was not fenced."""

    epoch: int | None
    open_transactions: int


class Restored(Done):
    """``tiered restore``."""

    partitions: list[RestoredPartition]


class ForkedPartition(Where):
    """A partition of the fork."""

    topic_id: str
    log_start_offset: int
    next_offset: int
    segments: int
    size_bytes: int


class Forked(Priced):
    """``tiered fork``."""

    partitions: list[ForkedPartition]


class RepairRow(Where):
    """`state` is to do, repaired, hopeless, needless or failed; `source` and `relative` say whose copy is good."""

    state: str
    topic_id: str
    object: str
    source: str | None
    relative: str | None
    base_offset: int | None
    next_offset: int | None
    why: str | None


class Repaired(Done):
    """``tiered repair``."""

    size_bytes: int
    repairs: list[RepairRow]


class AdoptedPartition(Where):
    """What the bucket has of a broker's partition; `ahead` offsets lie above the broker's high watermark.

    Null is a figure that is not known: the partition stopped before the end of the bucket was read."""

    tiered_upto: int | None
    copied: int
    copied_bytes: int
    lag_segments: int | None
    lag_bytes: int | None
    ahead: int | None
    at_risk_bytes: int | None


class Adopted(Versioned):
    """``tiered adopt``."""

    partitions: list[AdoptedPartition]


class RemotePartition(Where):
    """`missing_offsets` are held by no segment; `topic_id` null where the layout has none.

    Of a partition that cannot be read `error` says why, and the figures are null."""

    topic_id: str | None
    log_start_offset: int | None
    next_offset: int | None
    segments: int | None
    size_bytes: int | None
    missing_offsets: int | None
    error: str | None


class RemoteListed(Versioned):
    """``tiered remote ls``."""

    partitions: list[RemotePartition]


class PipelineUnit(Strict):
    """A node's directory or a partition's work in a stage; null is not known yet."""

    stage: str
    node: str | None
    topic: str | None
    partition: int | None
    state: str
    segments_before: int
    segments_after: int | None
    bytes_before: int
    bytes_after: int | None
    dollars: float
    why: str


class PipelinePlan(Versioned):
    """``tiered pipeline plan``."""

    is_complete: bool
    dollars: float
    units: list[PipelineUnit]


class PipelineRun(Versioned):
    """``tiered pipeline run``."""

    job: str
    is_complete: bool
    units: list[PipelineUnit]


class PlannedExport(Where):
    """What would be read of a partition, in so many tasks."""

    start_offset: int
    next_offset: int
    size_bytes: int
    tasks: int


class BackfillPlan(Done):
    """``tiered backfill --dry-run``."""

    target: str
    ranges: list[PlannedExport]


class ExportedFile(Where):
    """A Parquet file."""

    key: str
    base_offset: int
    next_offset: int
    records: int
    size_bytes: int


class Backfilled(Versioned):
    """``tiered backfill``."""

    job: str
    is_complete: bool
    records: int
    files: list[ExportedFile]


class WrappedKeys(Strict):
    """`keys` are those that wrap the segments' and how many, `key_id` the one that does from now on. `sealed`
    are manifests and pages."""

    where: str
    keys: str
    key_id: str
    rewrapped: int
    sealed: int


class KeysRotated(Versioned):
    """``tiered rotate-keys``."""

    keys: list[WrappedKeys]
