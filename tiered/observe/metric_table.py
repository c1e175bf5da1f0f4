"""Metrics: the table of their names and meanings, and their text form for Prometheus.

No other metric is exported, and the dashboard and the alerts may name no other metric. Names have the prefix
``tiered_``, except metrics of the process, which have Prometheus' names. Units are base units, and counters end in
``_total``. ``docs/reference/metrics.md`` is generated from the table.

The text is Prometheus' exposition format 0.0.4 or OpenMetrics 1.0. The formats differ little. OpenMetrics names the
family of a counter without its ``_total``, escapes quotes in HELP, and writes the bounds of buckets as floats. It ends
with ``# EOF``, which proves that the text is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from tiered.service.observations import HistogramCounts


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


def _metric(
    kind: Kind,
    name: str,
    doc: str,
    *labels: str,
    kafka: str = "",
    by_partition: bool = False,
    is_of_sidecar: bool = False,
) -> Metric:
    return Metric(
        name=name,
        kind=kind,
        doc=doc,
        labels=labels,
        kafka=kafka,
        by_partition=by_partition,
        is_of_sidecar=is_of_sidecar,
    )


def _tier_gauge(name: str, doc: str, *, kafka: str = "") -> Metric:
    """Return a figure of a topic, or on request of each of its partitions."""
    return _metric(Kind.GAUGE, name, doc, "topic", kafka=kafka, by_partition=True)


_counter = partial(_metric, Kind.COUNTER)
_gauge = partial(_metric, Kind.GAUGE)
_histogram = partial(_metric, Kind.HISTOGRAM)
_BROKER = "kafka.server:type=BrokerTopicMetrics,name="
_LOG = "kafka.log:type=Log,name="
_CLEANER = "kafka.log:type=LogCleaner,name="
_CLEANER_MANAGER = "kafka.log:type=LogCleanerManager,name="
_REMOTE = "kafka.log.remote:type=RemoteLogManager,name="
_READER = "org.apache.kafka.storage.internals.log:type=RemoteStorageThreadPool,name="


def _pool(name: str, does: str, setting: str) -> tuple[Metric, ...]:
    """Return the metrics of one pool of remote task threads (`tiered.maintenance.remote_tasks`)."""
    return (
        _gauge(
            f"tiered_{name}_tasks",
            f"Partitions with a running (`running`) or waiting (`queued`) task at the store ({does}).",
            "state",
        ),
        _gauge(f"tiered_{name}_threads", f"Number of threads for such tasks (`{setting}.thread.pool.size`)."),
        _gauge(
            f"tiered_{name}_oldest_wait_seconds",
            "Longest time that a partition has waited for such a thread; 0 when none waits.",
        ),
        _gauge(
            f"tiered_{name}_oldest_turn_seconds", "Duration of the longest such task that is running; 0 when none is."
        ),
    )


METRICS: tuple[Metric, ...] = (
    # -- appends
    _counter("tiered_append_records_total", "Offsets given to appended records since the start.",
             "topic", kafka=_BROKER + "MessagesInPerSec"),
    _counter("tiered_append_bytes_total", "Bytes appended to logs since the start.",
             "topic", kafka=_BROKER + "BytesInPerSec"),
    _histogram("tiered_fsync_duration_seconds", "Duration of an fsync.",
               kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"),
    _counter("tiered_fsync_failures_total", "Failed fsyncs; a failed fsync is never repeated."),
    # -- content of each tier
    _tier_gauge("tiered_local_log_bytes", "Bytes of segments on the disk.", kafka=_LOG + "Size"),
    _tier_gauge("tiered_local_log_segments", "Segments on the disk, the active ones too.",
                kafka=_LOG + "NumLogSegments"),
    _tier_gauge("tiered_remote_log_bytes", "Bytes of the segments that the bucket holds, before object encoding.",
                kafka=_BROKER + "RemoteLogSizeBytes"),
    _tier_gauge("tiered_remote_log_segments", "Segments that the bucket holds.",
                kafka=_BROKER + "RemoteLogMetadataCount"),
    _tier_gauge("tiered_log_start_offset", "The first offset that can be read, over both tiers. Only with partitions.",
                kafka=_LOG + "LogStartOffset"),
    _tier_gauge("tiered_log_end_offset", "The offset that the next record gets. Only with partitions.",
                kafka=_LOG + "LogEndOffset"),
    _tier_gauge("tiered_unreplicated_bytes", "At risk: bytes that exist on this disk only."),
    # -- transfer between the tiers
    _counter("tiered_remote_copy_bytes_total", "Bytes of segments sent to the store since the start.",
             "topic", kafka=_BROKER + "RemoteCopyBytesPerSec"),
    _counter("tiered_remote_copy_requests_total", "Copies of segments started since the start of the process.",
             "topic", kafka=_BROKER + "RemoteCopyRequestsPerSec"),
    _counter("tiered_remote_copy_errors_total", "Copies of segments that failed since the start.",
             "topic", kafka=_BROKER + "RemoteCopyErrorsPerSec"),
    _tier_gauge("tiered_remote_copy_lag_bytes", "Bytes of closed segments that are not in the bucket yet.",
                kafka=_BROKER + "RemoteCopyLagBytes"),
    _tier_gauge("tiered_remote_copy_lag_segments", "Closed segments that are not in the bucket yet.",
                kafka=_BROKER + "RemoteCopyLagSegments"),
    _tier_gauge("tiered_remote_copy_lag_seconds",
                "Time that the oldest segment has been due for copying; 0 when none is."),
    _tier_gauge("tiered_remote_copy_paused", "1 while uploads are paused (`tiered pause`), else 0."),
    _tier_gauge("tiered_remote_copy_paused_seconds", "Time that uploads have been paused; 0 when they are not."),
    _counter("tiered_remote_fetch_bytes_total", "Bytes of segments fetched from the store since the start.",
             "topic", kafka=_BROKER + "RemoteFetchBytesPerSec"),
    _counter("tiered_remote_fetch_requests_total", "Fetches of segments' bytes started since the start of the process.",
             "topic", kafka=_BROKER + "RemoteFetchRequestsPerSec"),
    _counter("tiered_remote_fetch_errors_total", "Fetches of segments' bytes that failed since the start.",
             "topic", kafka=_BROKER + "RemoteFetchErrorsPerSec"),
    _counter("tiered_remote_delete_requests_total", "Deletions sent to the store since the start.",
             "topic", kafka=_BROKER + "RemoteDeleteRequestsPerSec"),
    _counter("tiered_remote_delete_errors_total", "Deletions that failed since the start.",
             "topic", kafka=_BROKER + "RemoteDeleteErrorsPerSec"),
    _tier_gauge("tiered_remote_delete_lag_bytes", "Bytes of pending deletes, also within their grace period.",
                kafka=_BROKER + "RemoteDeleteLagBytes"),
    _tier_gauge("tiered_remote_delete_overdue_bytes", "Bytes of pending deletes after their grace period."),
    _tier_gauge("tiered_remote_delete_overdue_seconds",
                "Time since the grace period of the oldest pending delete ended; 0 when none is overdue."),
    # -- the store
    _counter("tiered_objstore_operations_total", "Calls to the store since the start; a call includes its retries.",
             "op"),
    _counter("tiered_objstore_failures_total",
             "Calls to the store that failed, by the class of the error. NotFound and AlreadyExists are answers.",
             "op", "class"),
    _histogram("tiered_objstore_duration_seconds", "Duration of calls to the store, with retries.",
               "op", kafka=_REMOTE + "RemoteLogReaderFetchRateAndTimeMs"),
    _counter("tiered_objstore_billed_requests_total", "Requests as S3 bills them, since the start.", "class"),
    _counter("tiered_objstore_bytes_total", "Bytes into and out of the store since the start.", "direction"),
    _counter("tiered_remote_deleted_objects_total",
             "Objects deleted in the bucket by this process since the start, by reason.", "reason"),
    _counter("tiered_remote_left_objects_total",
             "Upper limit of objects left by failed uploads: neither the upload nor the deletion was answered. "
             "`tiered gc` finds the objects that exist."),
    _counter("tiered_cache_hits_total", "Ranges of remote segments found in the memory cache."),
    _counter("tiered_cache_misses_total", "Ranges of remote segments fetched from the store."),
    _gauge("tiered_cache_bytes", "Bytes in the memory cache."),
    # -- the cleaner
    _gauge("tiered_cleaner_max_dirty_percent", "The largest dirty share of a compacted log.",
           kafka=_CLEANER_MANAGER + "max-dirty-percent"),
    _gauge("tiered_cleaner_max_buffer_utilization_percent", "Fill level of the offset map in the last passes.",
           kafka=_CLEANER + "max-buffer-utilization-percent"),
    _gauge("tiered_cleaner_max_clean_time_seconds", "Duration of the longest of the last passes.",
           kafka=_CLEANER + "max-clean-time-secs"),
    _gauge("tiered_cleaner_max_compaction_delay_seconds", "Time by which a pass was later than max.compaction.lag.ms.",
           kafka=_CLEANER + "max-compaction-delay-secs"),
    _gauge("tiered_cleaner_uncleanable_partitions", "Compacted logs that are not cleaned after an error.",
           kafka=_CLEANER_MANAGER + "uncleanable-partitions-count"),
    _gauge("tiered_cleaner_uncleanable_bytes", "Cleanable bytes of uncleanable logs.",
           kafka=_CLEANER_MANAGER + "uncleanable-bytes"),
    _gauge("tiered_cleaner_since_last_run_seconds", "Time since the last pass; absent before the first.",
           kafka=_CLEANER_MANAGER + "time-since-last-run-ms"),
    # -- the running manager
    _gauge("tiered_todo_segments",
           "Decisions of a round at this moment, by kind. Kinds that depend on the bucket are absent while a manifest "
           "cannot be read.", "action"),
    _gauge("tiered_partitions", "Partitions, open or not.", "state"),
    _counter("tiered_problems_begun_total",
             "Problems of partitions, and of the node, that a maintenance round met for the first time.", "class"),
    _counter("tiered_problems_ended_total",
             "Problems that had ended after a maintenance round; the log has a line for each cause.", "class"),
    _gauge("tiered_oldest_problem_seconds", "Age of the oldest current problem; 0 without one."),
    _gauge("tiered_partition_problems", "Partitions with a problem, by the class of the error.", "class"),
    _gauge("tiered_halted",
           "Partitions that are stopped on purpose: another writer took over, or the tiers contradict each other."),
    _gauge("tiered_remote_lost",
           "Partitions whose bucket lacks records that this disk has dropped: the bucket is lost or wrong."),
    _counter("tiered_rounds_total", "Maintenance rounds since the start."),
    _counter("tiered_round_failures_total",
             "Maintenance rounds that failed as a whole because of the disk or the store."),
    _histogram("tiered_round_duration_seconds", "Duration of a round."),
    _gauge("tiered_last_round_timestamp_seconds", "Time at which the last round ended, by the machine's clock."),
    _gauge("tiered_last_round_age_seconds",
           "Time since the last round ended (before the first: since the start), independent of changes of the clock."),
    _gauge("tiered_clock_jump_seconds",
           "Jump of the machine's clock ahead (below 0: back) of the time of rounds; 0 while the clock is trusted."),
    *_pool("copier", "copies, and all other work but expiry", "remote.log.manager.copier"),
    *_pool("expirer", "expiry, deletions, objects of deleted topics", "remote.log.manager.expiration"),
    _gauge("tiered_remote_log_manager_tasks_idle_ratio", "Share of idle task threads, 0 to 1.",
           "pool", kafka=_REMOTE + "RemoteLogManagerTasksAvgIdlePercent"),
    _gauge("tiered_remote_log_reader_task_queue_size", "Ranges that wait for a read-ahead thread of this process.",
           kafka=_READER + "RemoteLogReaderTaskQueueSize"),
    _gauge("tiered_remote_log_reader_idle_ratio", "Share of idle read-ahead threads, 0 to 1.",
           kafka=_READER + "RemoteLogReaderAvgIdlePercent"),
    _gauge("tiered_log_dir_free_bytes", "Free bytes of the file system of a log directory.", "directory"),
    _gauge("tiered_log_dir_total_bytes", "Size of the file system of a log directory.", "directory"),
    _gauge("tiered_log_dir_offline", "1 for a log directory that failed.",
           "directory", kafka="kafka.log:type=LogManager,name=LogDirectoryOffline"),
    # -- cost and the process
    _gauge("tiered_cost_dollars_per_month",
           "List price of the bytes stored now: storage, index and pending deletes in the bucket, disk. Requests are "
           "in `tiered cost show`.", "topic", "kind"),
    _counter("tiered_adopt_lost_offsets_total", "Offsets that a broker deleted before `tiered adopt` had copied them.",
             "topic", is_of_sidecar=True),
    _gauge("tiered_adopt_ahead_offsets",
           "Offsets in the bucket above the broker's high watermark: the broker lost them, or is catching up.",
           "topic", is_of_sidecar=True),
    _gauge("tiered_build_info", "Always 1.", "version", "python", "kernels"),
    _gauge("process_resident_memory_bytes", "Memory of the process."),
    _counter("process_cpu_seconds_total", "CPU time of the process."),
    _gauge("process_open_fds", "Open files of the process."),
)  # fmt: skip

BY_NAME = {each.name: each for each in METRICS}


class Form(Enum):
    """A text format of metrics; the value is its content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric. `labels` are pairs of name and value."""

    name: str
    value: float | HistogramCounts
    labels: tuple[tuple[str, str], ...] = ()


def form_of(accept: str) -> Form:
    """Return the form that an Accept header prefers; Prometheus' for no preference."""
    liked = {Form.PROMETHEUS: 0.0, Form.OPEN_METRICS: 0.0}
    for each in accept.split(","):
        kind, *parameters = (part.strip().casefold() for part in each.split(";"))
        weight = _weight(parameters)
        if kind == "application/openmetrics-text":
            liked[Form.OPEN_METRICS] = max(liked[Form.OPEN_METRICS], weight)
        elif kind in ("text/plain", "text/*", "*/*"):
            liked[Form.PROMETHEUS] = max(liked[Form.PROMETHEUS], weight)
    return Form.OPEN_METRICS if liked[Form.OPEN_METRICS] > liked[Form.PROMETHEUS] else Form.PROMETHEUS


def exposition(samples: Iterable[Sample], form: Form = Form.PROMETHEUS) -> str:
    """Format samples in the order of the table, without metrics that have no sample."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        own = found.pop(metric.name, [])
        if own:
            family = _family(metric, form)
            lines.append(f"# HELP {family} {_help(metric.doc, form)}")
            lines.append(f"# TYPE {family} {metric.kind.value}")
        for sample in own:
            assert isinstance(sample.value, HistogramCounts) == (metric.kind is Kind.HISTOGRAM), metric.name
            lines += _lines(sample, form)
    assert not found, f"metrics that the table does not have: {sorted(found)}"
    if form is Form.OPEN_METRICS:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines)


def _weight(parameters: Iterable[str]) -> float:
    """Return the ``q`` of a type in an Accept header: 1 without one, 0 for an invalid one."""
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def _family(metric: Metric, form: Form) -> str:
    is_short = form is Form.OPEN_METRICS and metric.kind is Kind.COUNTER
    return metric.name.removesuffix("_total") if is_short else metric.name


def _lines(sample: Sample, form: Form) -> Iterable[str]:
    if not isinstance(sample.value, HistogramCounts):
        yield f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}"
        return
    for bound, count in sample.value.buckets:
        yield f"{sample.name}_bucket{_labels((*sample.labels, ('le', _bound(bound, form))))} {count}"
    yield f"{sample.name}_sum{_labels(sample.labels)} {_number(sample.value.total)}"
    yield f"{sample.name}_count{_labels(sample.labels)} {sample.value.count}"


def _bound(value: float, form: Form) -> str:
    is_float = form is Form.OPEN_METRICS and value != float("inf")
    return repr(float(value)) if is_float else _number(value)


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _help(text: str, form: Form) -> str:
    return _escaped(text) if form is Form.OPEN_METRICS else text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
