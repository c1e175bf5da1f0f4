"""Table of all metrics: name, meaning, and Kafka's name. No other metric is exported.

Names have the prefix ``tiered_``, except metrics of the process, which have Prometheus' names. Units are base units,
and counters end in ``_total``. ``docs/reference/metrics.md`` is generated from this table. The dashboard and the alerts
may name no other metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Prometheus' metric types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `kafka` is the equal JMX name, empty if Kafka has none.

    `by_partition`: the metric has the label `partition` on request. `is_of_sidecar`: only `tiered adopt` has the
    metric.
    """

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    kafka: str = ""
    by_partition: bool = False
    is_of_sidecar: bool = False


_BROKER = "kafka.server:type=BrokerTopicMetrics,name="
_LOG = "kafka.log:type=Log,name="
_CLEANER = "kafka.log:type=LogCleaner,name="
_CLEANER_MANAGER = "kafka.log:type=LogCleanerManager,name="
_TOPIC = ("topic",)


def _pool(name: str, does: str) -> tuple[Metric, ...]:
    """Return the metrics of one pool of remote task threads (`tiered.maintenance.remote_tasks`)."""
    asked = "remote.log.manager.copier" if name == "copier" else "remote.log.manager.expiration"
    of = f" ({does})"
    return (
        Metric(
            name=f"tiered_{name}_tasks",
            kind=Kind.GAUGE,
            doc=f"Partitions whose turn at the store{of} has come (`running`) or is waited for (`queued`).",
            labels=("state",),
        ),
        Metric(
            name=f"tiered_{name}_threads",
            kind=Kind.GAUGE,
            doc=f"How many such turns there may be at once (`{asked}.thread.pool.size`).",
        ),
        Metric(
            name=f"tiered_{name}_oldest_wait_seconds",
            kind=Kind.GAUGE,
            doc="How long the partition that has waited longest for such a turn has waited; 0 while none does.",
        ),
        Metric(
            name=f"tiered_{name}_oldest_turn_seconds",
            kind=Kind.GAUGE,
            doc="How long the longest such turn that is under way has lasted; 0 while there is none.",
        ),
    )


METRICS: tuple[Metric, ...] = (
    # -- appends
    Metric(
        name="tiered_append_records_total",
        kind=Kind.COUNTER,
        doc="Offsets given to appended records since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "MessagesInPerSec",
    ),
    Metric(
        name="tiered_append_bytes_total",
        kind=Kind.COUNTER,
        doc="Bytes appended to logs since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "BytesInPerSec",
    ),
    Metric(
        name="tiered_fsync_duration_seconds",
        kind=Kind.HISTOGRAM,
        doc="How long the disk takes to make a file durable.",
        kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    ),
    Metric(name="tiered_fsync_failures_total", kind=Kind.COUNTER, doc="Syncs that failed; none is ever repeated."),
    # -- content of each tier
    Metric(
        name="tiered_local_log_bytes",
        kind=Kind.GAUGE,
        doc="Bytes of segments on the disk.",
        labels=_TOPIC,
        kafka=_LOG + "Size",
        by_partition=True,
    ),
    Metric(
        name="tiered_local_log_segments",
        kind=Kind.GAUGE,
        doc="Segments on the disk, the active ones too.",
        labels=_TOPIC,
        kafka=_LOG + "NumLogSegments",
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_log_bytes",
        kind=Kind.GAUGE,
        doc="Bytes of the segments that the bucket holds, as they were on the disk.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteLogSizeBytes",
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_log_segments",
        kind=Kind.GAUGE,
        doc="Segments that the bucket holds.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteLogMetadataCount",
        by_partition=True,
    ),
    Metric(
        name="tiered_log_start_offset",
        kind=Kind.GAUGE,
        doc="The first offset that can be read, over both tiers. Only with partitions.",
        labels=_TOPIC,
        kafka=_LOG + "LogStartOffset",
        by_partition=True,
    ),
    Metric(
        name="tiered_log_end_offset",
        kind=Kind.GAUGE,
        doc="The offset that the next record gets. Only with partitions.",
        labels=_TOPIC,
        kafka=_LOG + "LogEndOffset",
        by_partition=True,
    ),
    Metric(
        name="tiered_unreplicated_bytes",
        kind=Kind.GAUGE,
        doc="At risk: bytes that only this disk has.",
        labels=_TOPIC,
        by_partition=True,
    ),
    # -- transfer between the tiers
    Metric(
        name="tiered_remote_copy_bytes_total",
        kind=Kind.COUNTER,
        doc="Bytes of segments sent to the store since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteCopyBytesPerSec",
    ),
    Metric(
        name="tiered_remote_copy_requests_total",
        kind=Kind.COUNTER,
        doc="Copies of segments begun since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteCopyRequestsPerSec",
    ),
    Metric(
        name="tiered_remote_copy_errors_total",
        kind=Kind.COUNTER,
        doc="Copies of segments that failed since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteCopyErrorsPerSec",
    ),
    Metric(
        name="tiered_remote_copy_lag_bytes",
        kind=Kind.GAUGE,
        doc="Bytes of closed segments that are not in the bucket yet.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteCopyLagBytes",
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_copy_lag_segments",
        kind=Kind.GAUGE,
        doc="Closed segments that are not in the bucket yet.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteCopyLagSegments",
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_copy_lag_seconds",
        kind=Kind.GAUGE,
        doc="How long the oldest segment has been due for copying; 0 when none is.",
        labels=_TOPIC,
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_copy_paused",
        kind=Kind.GAUGE,
        doc="1 while uploads are paused (`tiered pause`), else 0.",
        labels=_TOPIC,
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_copy_paused_seconds",
        kind=Kind.GAUGE,
        doc="How long uploads have been paused; 0 while they are not.",
        labels=_TOPIC,
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_fetch_bytes_total",
        kind=Kind.COUNTER,
        doc="Bytes of segments that came from the store since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteFetchBytesPerSec",
    ),
    Metric(
        name="tiered_remote_fetch_requests_total",
        kind=Kind.COUNTER,
        doc="Fetches of segments' bytes begun since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteFetchRequestsPerSec",
    ),
    Metric(
        name="tiered_remote_fetch_errors_total",
        kind=Kind.COUNTER,
        doc="Fetches of segments' bytes that failed since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteFetchErrorsPerSec",
    ),
    Metric(
        name="tiered_remote_delete_requests_total",
        kind=Kind.COUNTER,
        doc="Deletions sent to the store since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteDeleteRequestsPerSec",
    ),
    Metric(
        name="tiered_remote_delete_errors_total",
        kind=Kind.COUNTER,
        doc="Deletions that failed since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteDeleteErrorsPerSec",
    ),
    Metric(
        name="tiered_remote_delete_lag_bytes",
        kind=Kind.GAUGE,
        doc="Bytes that left the index and are still in the bucket, the grace time included.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteDeleteLagBytes",
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_delete_overdue_bytes",
        kind=Kind.GAUGE,
        doc="Those of them whose grace time is over.",
        labels=_TOPIC,
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_delete_overdue_seconds",
        kind=Kind.GAUGE,
        doc="How long the grace time of the oldest of them has been over; 0 when none is.",
        labels=_TOPIC,
        by_partition=True,
    ),
    # -- the store
    Metric(
        name="tiered_objstore_operations_total",
        kind=Kind.COUNTER,
        doc="Calls to the store since the start; tries again lie inside one.",
        labels=("op",),
    ),
    Metric(
        name="tiered_objstore_failures_total",
        kind=Kind.COUNTER,
        doc="Calls to the store that failed, by the class of the error. NotFound and AlreadyExists are answers.",
        labels=("op", "class"),
    ),
    Metric(
        name="tiered_objstore_duration_seconds",
        kind=Kind.HISTOGRAM,
        doc="How long calls to the store take, tries again included.",
        labels=("op",),
        kafka="kafka.log.remote:type=RemoteLogManager,name=RemoteLogReaderFetchRateAndTimeMs",
    ),
    Metric(
        name="tiered_objstore_billed_requests_total",
        kind=Kind.COUNTER,
        doc="Requests as S3 bills them, since the start.",
        labels=("class",),
    ),
    Metric(
        name="tiered_objstore_bytes_total",
        kind=Kind.COUNTER,
        doc="Bytes into and out of the store since the start.",
        labels=("direction",),
    ),
    Metric(
        name="tiered_remote_left_objects_total",
        kind=Kind.COUNTER,
        doc="Objects that failed uploads may have left, at most: the store answered neither them nor their removal. "
        "What is there `tiered gc` finds.",
    ),
    Metric(name="tiered_cache_hits_total", kind=Kind.COUNTER, doc="Pieces of remote segments found in memory."),
    Metric(
        name="tiered_cache_misses_total", kind=Kind.COUNTER, doc="Pieces of remote segments that had to be fetched."
    ),
    Metric(name="tiered_cache_bytes", kind=Kind.GAUGE, doc="What the cache in memory holds."),
    # -- the cleaner
    Metric(
        name="tiered_cleaner_max_dirty_percent",
        kind=Kind.GAUGE,
        doc="The largest dirty share of a compacted log.",
        kafka=_CLEANER_MANAGER + "max-dirty-percent",
    ),
    Metric(
        name="tiered_cleaner_max_buffer_utilization_percent",
        kind=Kind.GAUGE,
        doc="How full the key map of the last passes was.",
        kafka=_CLEANER + "max-buffer-utilization-percent",
    ),
    Metric(
        name="tiered_cleaner_max_clean_time_seconds",
        kind=Kind.GAUGE,
        doc="How long the longest of the last passes took.",
        kafka=_CLEANER + "max-clean-time-secs",
    ),
    Metric(
        name="tiered_cleaner_max_compaction_delay_seconds",
        kind=Kind.GAUGE,
        doc="How much later than max.compaction.lag.ms a pass came.",
        kafka=_CLEANER + "max-compaction-delay-secs",
    ),
    Metric(
        name="tiered_cleaner_uncleanable_partitions",
        kind=Kind.GAUGE,
        doc="Compacted logs that are left alone after an error.",
        kafka=_CLEANER_MANAGER + "uncleanable-partitions-count",
    ),
    Metric(
        name="tiered_cleaner_uncleanable_bytes",
        kind=Kind.GAUGE,
        doc="Their bytes that could be cleaned.",
        kafka=_CLEANER_MANAGER + "uncleanable-bytes",
    ),
    Metric(
        name="tiered_cleaner_since_last_run_seconds",
        kind=Kind.GAUGE,
        doc="How long ago the last pass was; absent before the first.",
        kafka=_CLEANER_MANAGER + "time-since-last-run-ms",
    ),
    # -- the running manager
    Metric(
        name="tiered_todo_segments",
        kind=Kind.GAUGE,
        doc="What a round would do now, by the kind of decision; what hangs on the bucket is absent while a manifest "
        "could not be read.",
        labels=("action",),
    ),
    Metric(name="tiered_partitions", kind=Kind.GAUGE, doc="Partitions, open or not.", labels=("state",)),
    Metric(
        name="tiered_problems_begun_total",
        kind=Kind.COUNTER,
        doc="Problems of partitions, and of the node, that rounds of work met for the first time.",
        labels=("class",),
    ),
    Metric(
        name="tiered_problems_ended_total",
        kind=Kind.COUNTER,
        doc="Problems that were over after a round of work; the log has a line for each cause.",
        labels=("class",),
    ),
    Metric(
        name="tiered_oldest_problem_seconds",
        kind=Kind.GAUGE,
        doc="For how long the problem that lasts longest has been known; 0 without one.",
    ),
    Metric(
        name="tiered_partition_problems",
        kind=Kind.GAUGE,
        doc="Partitions in trouble, by the class of the error.",
        labels=("class",),
    ),
    Metric(
        name="tiered_halted",
        kind=Kind.GAUGE,
        doc="Partitions that are stopped on purpose: another writer took over, or the tiers contradict each other.",
    ),
    Metric(
        name="tiered_remote_lost",
        kind=Kind.GAUGE,
        doc="Partitions whose bucket lacks records that this disk has dropped: the bucket is lost or wrong.",
    ),
    Metric(name="tiered_rounds_total", kind=Kind.COUNTER, doc="Rounds of background work since the start."),
    Metric(
        name="tiered_round_failures_total",
        kind=Kind.COUNTER,
        doc="Rounds that the disk or the store broke off as a whole.",
    ),
    Metric(name="tiered_round_duration_seconds", kind=Kind.HISTOGRAM, doc="How long a round takes."),
    Metric(
        name="tiered_last_round_timestamp_seconds",
        kind=Kind.GAUGE,
        doc="When the last round ended, by the machine's clock.",
    ),
    Metric(
        name="tiered_last_round_age_seconds",
        kind=Kind.GAUGE,
        doc="How long ago the last round ended (before the first: the start), whatever the clock was set to.",
    ),
    Metric(
        name="tiered_clock_jump_seconds",
        kind=Kind.GAUGE,
        doc="How far the machine's clock has jumped ahead (below 0: back) of the time that rounds go by; 0 while it is "
        "believed.",
    ),
    *_pool("copier", "all that waits for the store, uploads first"),
    *_pool("expirer", "expiry, deletions, what is left of deleted topics"),
    Metric(
        name="tiered_remote_log_manager_tasks_idle_ratio",
        kind=Kind.GAUGE,
        doc="Of the turns that there may be at once those that nobody has, 0 to 1.",
        labels=("pool",),
        kafka="kafka.log.remote:type=RemoteLogManager,name=RemoteLogManagerTasksAvgIdlePercent",
    ),
    Metric(
        name="tiered_remote_log_reader_task_queue_size",
        kind=Kind.GAUGE,
        doc="Ranges that wait for a thread which fetches ahead of a reader of this process.",
        kafka="org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name=RemoteLogReaderTaskQueueSize",
    ),
    Metric(
        name="tiered_remote_log_reader_idle_ratio",
        kind=Kind.GAUGE,
        doc="Of the threads that fetch ahead those that have nothing to do, 0 to 1.",
        kafka="org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name=RemoteLogReaderAvgIdlePercent",
    ),
    Metric(
        name="tiered_log_dir_free_bytes",
        kind=Kind.GAUGE,
        doc="Room left on the file system of a log directory.",
        labels=("directory",),
    ),
    Metric(
        name="tiered_log_dir_total_bytes",
        kind=Kind.GAUGE,
        doc="Size of the file system of a log directory.",
        labels=("directory",),
    ),
    Metric(
        name="tiered_log_dir_offline",
        kind=Kind.GAUGE,
        doc="1 for a log directory that failed.",
        labels=("directory",),
        kafka="kafka.log:type=LogManager,name=LogDirectoryOffline",
    ),
    # -- cost and the process
    Metric(
        name="tiered_cost_dollars_per_month",
        kind=Kind.GAUGE,
        doc="List price of what is stored now: storage, index and waiting for deletion in the bucket, disk. "
        "Requests are in `tiered cost show`.",
        labels=("topic", "kind"),
    ),
    Metric(
        name="tiered_adopt_lost_offsets_total",
        kind=Kind.COUNTER,
        doc="Offsets that a broker deleted before `tiered adopt` had copied them.",
        labels=_TOPIC,
        is_of_sidecar=True,
    ),
    Metric(
        name="tiered_adopt_ahead_offsets",
        kind=Kind.GAUGE,
        doc="Offsets that the bucket has above the broker's high watermark: it lost them, or is catching up.",
        labels=_TOPIC,
        is_of_sidecar=True,
    ),
    Metric(name="tiered_build_info", kind=Kind.GAUGE, doc="Always 1.", labels=("version", "python", "kernels")),
    Metric(name="process_resident_memory_bytes", kind=Kind.GAUGE, doc="Memory of the process."),
    Metric(name="process_cpu_seconds_total", kind=Kind.COUNTER, doc="CPU time of the process."),
    Metric(name="process_open_fds", kind=Kind.GAUGE, doc="Open files of the process."),
)

BY_NAME = {each.name: each for each in METRICS}
