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
            doc=f"Partitions with a running (`running`) or waiting (`queued`) task at the store{of}.",
            labels=("state",),
        ),
        Metric(
            name=f"tiered_{name}_threads",
            kind=Kind.GAUGE,
            doc=f"Number of threads for such tasks (`{asked}.thread.pool.size`).",
        ),
        Metric(
            name=f"tiered_{name}_oldest_wait_seconds",
            kind=Kind.GAUGE,
            doc="Longest time that a partition has waited for such a thread; 0 when none waits.",
        ),
        Metric(
            name=f"tiered_{name}_oldest_turn_seconds",
            kind=Kind.GAUGE,
            doc="Duration of the longest such task that is running; 0 when none is.",
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
        doc="Duration of an fsync.",
        kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    ),
    Metric(
        name="tiered_fsync_failures_total", kind=Kind.COUNTER, doc="Failed fsyncs; a failed fsync is never repeated."
    ),
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
        doc="Bytes of the segments that the bucket holds, before object encoding.",
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
        doc="At risk: bytes that exist on this disk only.",
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
        doc="Copies of segments started since the start of the process.",
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
        doc="Time that the oldest segment has been due for copying; 0 when none is.",
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
        doc="Time that uploads have been paused; 0 when they are not.",
        labels=_TOPIC,
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_fetch_bytes_total",
        kind=Kind.COUNTER,
        doc="Bytes of segments fetched from the store since the start.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteFetchBytesPerSec",
    ),
    Metric(
        name="tiered_remote_fetch_requests_total",
        kind=Kind.COUNTER,
        doc="Fetches of segments' bytes started since the start of the process.",
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
        doc="Bytes of pending deletes, also within their grace period.",
        labels=_TOPIC,
        kafka=_BROKER + "RemoteDeleteLagBytes",
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_delete_overdue_bytes",
        kind=Kind.GAUGE,
        doc="Bytes of pending deletes after their grace period.",
        labels=_TOPIC,
        by_partition=True,
    ),
    Metric(
        name="tiered_remote_delete_overdue_seconds",
        kind=Kind.GAUGE,
        doc="Time since the grace period of the oldest pending delete ended; 0 when none is overdue.",
        labels=_TOPIC,
        by_partition=True,
    ),
    # -- the store
    Metric(
        name="tiered_objstore_operations_total",
        kind=Kind.COUNTER,
        doc="Calls to the store since the start; a call includes its retries.",
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
        doc="Duration of calls to the store, with retries.",
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
        name="tiered_remote_deleted_objects_total",
        kind=Kind.COUNTER,
        doc="Objects deleted in the bucket by this process since the start, by reason.",
        labels=("reason",),
    ),
    Metric(
        name="tiered_remote_left_objects_total",
        kind=Kind.COUNTER,
        doc="Upper limit of objects left by failed uploads: neither the upload nor the deletion was answered. "
        "`tiered gc` finds the objects that exist.",
    ),
    Metric(
        name="tiered_cache_hits_total", kind=Kind.COUNTER, doc="Ranges of remote segments found in the memory cache."
    ),
    Metric(
        name="tiered_cache_misses_total", kind=Kind.COUNTER, doc="Ranges of remote segments fetched from the store."
    ),
    Metric(name="tiered_cache_bytes", kind=Kind.GAUGE, doc="Bytes in the memory cache."),
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
        doc="Fill level of the offset map in the last passes.",
        kafka=_CLEANER + "max-buffer-utilization-percent",
    ),
    Metric(
        name="tiered_cleaner_max_clean_time_seconds",
        kind=Kind.GAUGE,
        doc="Duration of the longest of the last passes.",
        kafka=_CLEANER + "max-clean-time-secs",
    ),
    Metric(
        name="tiered_cleaner_max_compaction_delay_seconds",
        kind=Kind.GAUGE,
        doc="Time by which a pass was later than max.compaction.lag.ms.",
        kafka=_CLEANER + "max-compaction-delay-secs",
    ),
    Metric(
        name="tiered_cleaner_uncleanable_partitions",
        kind=Kind.GAUGE,
        doc="Compacted logs that are not cleaned after an error.",
        kafka=_CLEANER_MANAGER + "uncleanable-partitions-count",
    ),
    Metric(
        name="tiered_cleaner_uncleanable_bytes",
        kind=Kind.GAUGE,
        doc="Cleanable bytes of uncleanable logs.",
        kafka=_CLEANER_MANAGER + "uncleanable-bytes",
    ),
    Metric(
        name="tiered_cleaner_since_last_run_seconds",
        kind=Kind.GAUGE,
        doc="Time since the last pass; absent before the first.",
        kafka=_CLEANER_MANAGER + "time-since-last-run-ms",
    ),
    # -- the running manager
    Metric(
        name="tiered_todo_segments",
        kind=Kind.GAUGE,
        doc="Decisions of a round at this moment, by kind. Kinds that depend on the bucket are absent while a manifest "
        "cannot be read.",
        labels=("action",),
    ),
    Metric(name="tiered_partitions", kind=Kind.GAUGE, doc="Partitions, open or not.", labels=("state",)),
    Metric(
        name="tiered_problems_begun_total",
        kind=Kind.COUNTER,
        doc="Problems of partitions, and of the node, that a maintenance round met for the first time.",
        labels=("class",),
    ),
    Metric(
        name="tiered_problems_ended_total",
        kind=Kind.COUNTER,
        doc="Problems that had ended after a maintenance round; the log has a line for each cause.",
        labels=("class",),
    ),
    Metric(
        name="tiered_oldest_problem_seconds",
        kind=Kind.GAUGE,
        doc="Age of the oldest current problem; 0 without one.",
    ),
    Metric(
        name="tiered_partition_problems",
        kind=Kind.GAUGE,
        doc="Partitions with a problem, by the class of the error.",
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
    Metric(name="tiered_rounds_total", kind=Kind.COUNTER, doc="Maintenance rounds since the start."),
    Metric(
        name="tiered_round_failures_total",
        kind=Kind.COUNTER,
        doc="Maintenance rounds that failed as a whole because of the disk or the store.",
    ),
    Metric(name="tiered_round_duration_seconds", kind=Kind.HISTOGRAM, doc="Duration of a round."),
    Metric(
        name="tiered_last_round_timestamp_seconds",
        kind=Kind.GAUGE,
        doc="Time at which the last round ended, by the machine's clock.",
    ),
    Metric(
        name="tiered_last_round_age_seconds",
        kind=Kind.GAUGE,
        doc="Time since the last round ended (before the first: since the start), independent of changes of the clock.",
    ),
    Metric(
        name="tiered_clock_jump_seconds",
        kind=Kind.GAUGE,
        doc="Jump of the machine's clock ahead (below 0: back) of the time of rounds; 0 while the clock is trusted.",
    ),
    *_pool("copier", "copies, and all other work but expiry"),
    *_pool("expirer", "expiry, deletions, objects of deleted topics"),
    Metric(
        name="tiered_remote_log_manager_tasks_idle_ratio",
        kind=Kind.GAUGE,
        doc="Share of idle task threads, 0 to 1.",
        labels=("pool",),
        kafka="kafka.log.remote:type=RemoteLogManager,name=RemoteLogManagerTasksAvgIdlePercent",
    ),
    Metric(
        name="tiered_remote_log_reader_task_queue_size",
        kind=Kind.GAUGE,
        doc="Ranges that wait for a read-ahead thread of this process.",
        kafka="org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name=RemoteLogReaderTaskQueueSize",
    ),
    Metric(
        name="tiered_remote_log_reader_idle_ratio",
        kind=Kind.GAUGE,
        doc="Share of idle read-ahead threads, 0 to 1.",
        kafka="org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name=RemoteLogReaderAvgIdlePercent",
    ),
    Metric(
        name="tiered_log_dir_free_bytes",
        kind=Kind.GAUGE,
        doc="Free bytes of the file system of a log directory.",
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
        doc="List price of the bytes stored now: storage, index and pending deletes in the bucket, disk. "
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
        doc="Offsets in the bucket above the broker's high watermark: the broker lost them, or is catching up.",
        labels=_TOPIC,
        is_of_sidecar=True,
    ),
    Metric(name="tiered_build_info", kind=Kind.GAUGE, doc="Always 1.", labels=("version", "python", "kernels")),
    Metric(name="process_resident_memory_bytes", kind=Kind.GAUGE, doc="Memory of the process."),
    Metric(name="process_cpu_seconds_total", kind=Kind.COUNTER, doc="CPU time of the process."),
    Metric(name="process_open_fds", kind=Kind.GAUGE, doc="Open files of the process."),
)

BY_NAME = {each.name: each for each in METRICS}
