"""JSON of the commands that compact topics and buckets and build views of them. See `tiered.cli.schemas.schemas`."""

from __future__ import annotations

from tiered.cli.schemas.schemas_base import Done, Strict, Versioned, Where
from tiered.status.unknown_figures import UnreadPartitions


class CompactedPartition(Where):
    """Null where there was nothing to clean."""

    is_cleaned: bool
    bytes_before: int | None
    bytes_after: int | None
    size_reduction: float | None
    records_before: int | None
    records_after: int | None
    invalid_records: int | None
    cleaner_offset: int | None


class Compacted(Done):
    """``tiered compact``."""

    partitions: list[CompactedPartition]


class EstimatedPartition(Where):
    """About what a pass would gain; `basis` says how much of it was counted."""

    first_dirty_offset: int
    upto_offset: int
    bytes_before: int
    bytes_after: int
    size_reduction: float
    distinct_keys: int
    invalid_records: int
    dirty_records: int
    sampled_bytes: int
    tiered_bytes: int
    basis: str


class CompactEstimated(Done):
    """``tiered compact --dry-run``."""

    partitions: list[EstimatedPartition]


class BucketCompactedPartition(Where):
    """Figures are of what was committed. `was_done` by an earlier run of the job; `is_cut`: one job does not compare
    all of it; `given_up` groups were replaced by others meanwhile: the job is not `is_done`, and due again."""

    was_done: bool
    is_cut: bool
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    size_reduction: float
    records_before: int
    records_after: int
    given_up: int
    is_done: bool
    cleaner_offset: int


class BucketCompacted(Done):
    """``tiered compact --bucket``."""

    job: str
    partitions: list[BucketCompactedPartition]


class BucketCompactionPlan(Where):
    """What a job would rewrite."""

    segments: int
    size_bytes: int
    dirty_bytes: int
    upto_offset: int
    is_cut: bool
    was_done: bool
    dollars: float


class BucketCompactPlanned(Done):
    """``tiered compact --bucket --dry-run``."""

    job: str
    partitions: list[BucketCompactionPlan]


class CleaningState(Where):
    """A compacted partition and its last pass; null where there was none, and where the log could not be read."""

    state: str | None
    dirty_ratio: float | None
    clean_bytes: int | None
    cleanable_bytes: int | None
    uncleanable_bytes: int | None
    first_dirty_offset: int | None
    first_uncleanable_offset: int | None
    delay_ms: int | None
    last_run_ms: int | None
    ago_ms: int | None
    size_reduction: float | None
    invalid_records: int | None
    buffer_utilization: float | None
    uncleanable_reason: str | None
    retry_ms: int | None


class CompactionStatus(Versioned):
    """``tiered compaction status``."""

    unread: list[UnreadPartitions]
    partitions: list[CleaningState]


class CleaningRun(Where):
    """A pass; `error` null where it came to its end."""

    at_ms: int
    first_dirty_offset: int
    cleaner_offset: int
    thread: int
    delay_ms: int
    indexed_bytes: int
    bytes_read: int
    bytes_written: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    distinct_keys: int
    invalid_records: int
    index_seconds: float
    clean_seconds: float
    buffer_utilization: float
    buffer_bytes: int
    is_cut: bool
    error: str | None


class CompactionRuns(Versioned):
    """``tiered compaction status --runs N``."""

    runs: list[CleaningRun]


class CleanerGauge(Strict):
    """By Kafka's name."""

    name: str
    value: float


class CompactionMetrics(Versioned):
    """``tiered compaction status --metrics``."""

    unread: list[UnreadPartitions]
    metrics: list[CleanerGauge]


class CleaningAdvice(Strict):
    """`topic` and `partition` null for the cleaner as a whole, `setting` null where none would help."""

    rule: str
    topic: str | None
    partition: int | None
    setting: str | None
    text: str


class CompactionAdvice(Versioned):
    """``tiered compaction advise``."""

    advice: list[CleaningAdvice]


class View(Where):
    """A view of a partition and its last run; `gap` was lost before it was taken up, `lost` are all such ranges.
    `is_local`: the view lies beside the log, not in the bucket."""

    view: str
    state: str
    start_offset: int
    horizon_offset: int | None
    backlog_bytes: int
    record_count: int
    key_count: int
    size_bytes: int
    parts: int
    last_run_ms: int | None
    ago_ms: int | None
    took_ms: int | None
    records_in: int | None
    records_out: int | None
    bytes_in: int | None
    bytes_out: int | None
    key_ranges: int | None
    source_sequence: int | None
    started_ms: int | None
    failed_ms: int | None
    error: str | None
    gap: list[int] | None
    lost: list[list[int]]
    is_local: bool


class Views(Versioned):
    """``tiered view status``."""

    unread: list[UnreadPartitions]
    views: list[View]


class ViewsToDrop(Done):
    """``tiered view drop --dry-run``."""

    views: list[View]


class ViewsBuilt(Done):
    """``tiered view build``."""

    partitions: list[View]


class PlannedView(Where):
    """What a view would take up."""

    view: str
    from_offset: int
    upto_offset: int
    size_bytes: int


class ViewsPlanned(Done):
    """``tiered view build --dry-run``."""

    partitions: list[PlannedView]
