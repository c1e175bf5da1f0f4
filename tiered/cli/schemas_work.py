"""JSON of commands that work on whole topics and buckets: compaction, copies, jobs. See `tiered.cli.schemas`."""

from __future__ import annotations

from tiered.cli.schemas_base import Strict, UnreadPartitions, Versioned, Where


class PlannedCopy(Where):
    """Segments that would be read and written, in requests and dollars."""

    segments: int
    groups: int
    read_bytes: int
    write_bytes: int
    gets: int
    puts: int
    dollars: float


class _Priced(Versioned):
    dry_run: bool
    dollars: float


class _Done(Versioned):
    dry_run: bool


class RewritePlanned(_Priced):
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


class Rewritten(_Done):
    """``tiered rewrite merge|recode``."""

    partitions: list[RewrittenPartition]


class CopiedPartition(Where):
    """`behind` segments came to the source meanwhile."""

    segments: int
    size_bytes: int
    behind: int
    differences: int
    is_complete: bool


class Copied(_Done):
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


class ImportPlanned(_Priced):
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


class Imported(_Done):
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


class RestorePlanned(_Priced):
    """``tiered restore --dry-run``."""

    partitions: list[PlannedRestore]


class RestoredPartition(_Restore):
    """As planned; `epoch` null where the present writer was not fenced."""

    epoch: int | None
    open_transactions: int


class Restored(_Done):
    """``tiered restore``."""

    partitions: list[RestoredPartition]


class ForkedPartition(Where):
    """A partition of the fork."""

    topic_id: str
    log_start_offset: int
    next_offset: int
    segments: int
    size_bytes: int


class Forked(_Priced):
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


class Repaired(_Done):
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


class Compacted(_Done):
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


class CompactEstimated(_Done):
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


class BucketCompacted(_Done):
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


class BucketCompactPlanned(_Done):
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
    """A view of a partition and its last run; `gap` was lost before it was taken up, `lost` are all such ranges."""

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


class Views(Versioned):
    """``tiered view status``."""

    unread: list[UnreadPartitions]
    views: list[View]


class ViewsToDrop(_Done):
    """``tiered view drop --dry-run``."""

    views: list[View]


class ViewsBuilt(_Done):
    """``tiered view build``."""

    partitions: list[View]


class PlannedView(Where):
    """What a view would take up."""

    view: str
    from_offset: int
    upto_offset: int
    size_bytes: int


class ViewsPlanned(_Done):
    """``tiered view build --dry-run``."""

    partitions: list[PlannedView]


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


class BackfillPlan(_Done):
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


class BenchRequests(Strict):
    """What would be sent to the bucket."""

    puts: int
    gets: int
    lists: int
    deletes: int
    bytes_in: int
    bytes_out: int
    dollars: float


class BenchPlanned(_Done):
    """``tiered bench --dry-run``."""

    bucket: str
    requests: list[BenchRequests]


class Replicas(Where):
    """The brokers of a partition, the preferred leader first."""

    replicas: list[int]


class Placement(Strict):
    """``tiered placement``: what ``kafka-reassign-partitions`` reads, and so without `schema_version`."""

    version: int
    partitions: list[Replicas]


class DemoStep(Strict):
    """What a step handled."""

    step: str
    seconds: float
    records: int | None
    size_bytes: int | None
    records_per_second: int | None
    bytes_per_second: int | None
    note: str


class DemoTier(Strict):
    """What a tier holds of a topic."""

    topic: str
    partitions: int
    tier: str
    records: int
    segments: int
    size_bytes: int


class DemoBill(Strict):
    """What S3 would charge."""

    storage_per_month: float
    requests_once: float
    puts: int
    gets: int
    lists: int
    bucket_bytes: int
    prices_as_of: str
    region: str


class Demo(Versioned):
    """``tiered demo``."""

    tiers: list[DemoTier]
    bill: DemoBill
    steps: list[DemoStep]


WORK: dict[str, type[Strict]] = {
    "adopt": Adopted,
    "backfill": Backfilled,
    "backfill-dry-run": BackfillPlan,
    "bench-dry-run": BenchPlanned,
    "compact": Compacted,
    "compact-dry-run": CompactEstimated,
    "compact-bucket": BucketCompacted,
    "compact-bucket-dry-run": BucketCompactPlanned,
    "compaction-advise": CompactionAdvice,
    "compaction-metrics": CompactionMetrics,
    "compaction-runs": CompactionRuns,
    "compaction-status": CompactionStatus,
    "demo": Demo,
    "fork": Forked,
    "import": Imported,
    "import-dry-run": ImportPlanned,
    "pipeline-plan": PipelinePlan,
    "pipeline-run": PipelineRun,
    "placement": Placement,
    "remote-ls": RemoteListed,
    "repair": Repaired,
    "restore": Restored,
    "restore-dry-run": RestorePlanned,
    "rewrite": Rewritten,
    "rewrite-copy": Copied,
    "rewrite-dry-run": RewritePlanned,
    "rotate-keys": KeysRotated,
    "view-build": ViewsBuilt,
    "view-build-dry-run": ViewsPlanned,
    "view-drop-dry-run": ViewsToDrop,
    "view-status": Views,
}
WORK_COMMANDS: dict[str, tuple[str, ...]] = {
    "adopt": ("adopt",),
    "backfill": ("backfill", "backfill-dry-run"),
    "bench": ("bench", "bench-dry-run"),
    "compact": ("compact", "compact-dry-run", "compact-bucket", "compact-bucket-dry-run"),
    "compaction advise": ("compaction-advise",),
    "compaction status": ("compaction-status", "compaction-runs", "compaction-metrics"),
    "demo": ("demo",),
    "fork": ("fork",),
    "import": ("import", "import-dry-run"),
    "pipeline plan": ("pipeline-plan",),
    "pipeline run": ("pipeline-run", "pipeline-plan"),
    "placement": ("placement",),
    "remote ls": ("remote-ls",),
    "repair": ("repair",),
    "restore": ("restore", "restore-dry-run"),
    "rewrite copy": ("rewrite-copy", "rewrite-dry-run"),
    "rewrite merge": ("rewrite", "rewrite-dry-run"),
    "rewrite recode": ("rewrite", "rewrite-dry-run"),
    "rotate-keys": ("rotate-keys",),
    "view build": ("view-build", "view-build-dry-run"),
    "view drop": ("view-drop-dry-run",),
    "view status": ("view-status",),
}
