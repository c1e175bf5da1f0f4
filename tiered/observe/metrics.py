"""Metrics of a running manager: values of the table ``metrics.toml``, and text for Prometheus.

Figures come from the manager's memory, without requests to the store; only unread time indexes are read from the disk.
Labels are topics, partitions only on request. The text is Prometheus' exposition format 0.0.4 or OpenMetrics 1.0, which
names a counter's family without ``_total``, escapes quotes in HELP, writes bounds as floats and ends with ``# EOF``.
"""

from __future__ import annotations

import os
import platform
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from local.errors import Conflict, RemoteLost
from local.kernels import implementation
from policies.cost.storage_cost import GIB
from policies.plan import plan
from policies.snapshot import PartitionSnapshot
from remote.fetch.read_ahead import reader_load
from remote.gc.object_deletion import DeleteReason, deletions
from remote.keys import parse_topic_directory
from remote.store.middleware.store_wrapper import RequestCounts
from tiered import __version__
from tiered.config.price_file import prices_or_none
from tiered.manager.manager import LogManager
from tiered.observe.monitoring_files import read_table
from tiered.partition.partition_status import PartitionStatus, partition_status
from tiered.service.observations import HistogramCounts, Observations
from tiered.service.worker import Worker
from tiered.status.compaction_status import cleaner_metrics
from tiered.status.status_report import is_unseen, snapshots_at_hand, storage_costs

if TYPE_CHECKING:
    from tiered.serve.endpoint_metrics import EndpointMetrics

CACHE_MS = 1000  # a text is reused for so long, for any number of requests
_OF_DISK = {"local_bytes", "local_segments", "paused", "paused_since_ms"}  # other figures depend on the bucket
_OFFSETS = {"log_start_offset", "next_offset"}  # only with partitions
_LOCAL_ACTIONS = {"CleanLog", "RollActive"}  # maintenance actions that need no bucket
_KINDS = ("storage", "index", "waiting", "disk")


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric of ``metrics.toml``. `kafka` is the equal JMX name, empty if Kafka has none.

    `of` is the attribute that holds the value, such as ``cleaner.max_dirty_percent``; else empty. Times in ms become
    seconds (`_from`). `by_partition`: labels partitions on request. `is_of_sidecar`: only `tiered adopt` has it,
    `is_of_endpoint`: only a Kafka endpoint.
    """

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    of: str = ""
    kafka: str = ""
    by_partition: bool = False
    is_of_sidecar: bool = False
    is_of_endpoint: bool = False


METRICS = tuple(read_table("metrics.toml", "metric", Metric))
_BY_SOURCE: dict[str, list[tuple[str, str]]] = {}  # metrics and attributes, by object
for _each in METRICS:
    _source, _, _attribute = _each.of.partition(".")
    _BY_SOURCE.setdefault(_source, []).append((_each.name, _attribute))


class Form(Enum):
    """A text format of metrics; the value is its content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    value: float | HistogramCounts
    labels: tuple[tuple[str, str], ...] = ()


def form_of(accept: str) -> Form:
    """Return the form that an Accept header prefers, by default Prometheus'."""
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
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        own = found.pop(metric.name, [])
        if own:
            is_short = form is Form.OPEN_METRICS and metric.kind is Kind.COUNTER
            family = metric.name.removesuffix("_total") if is_short else metric.name
            doc = metric.doc.replace("\\", r"\\").replace("\n", r"\n")
            lines.append(f"# HELP {family} {_escaped(metric.doc) if form is Form.OPEN_METRICS else doc}")
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


def _lines(sample: Sample, form: Form) -> Iterable[str]:
    if not isinstance(sample.value, HistogramCounts):
        yield f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}"
        return
    for bound, count in sample.value.buckets:
        is_float = form is Form.OPEN_METRICS and bound != float("inf")
        labels = _labels((*sample.labels, ("le", repr(float(bound)) if is_float else _number(bound))))
        yield f"{sample.name}_bucket{labels} {count}"
    yield f"{sample.name}_sum{_labels(sample.labels)} {_number(sample.value.total)}"
    yield f"{sample.name}_count{_labels(sample.labels)} {sample.value.count}"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


# -- the figures -------------------------------------------------------------------------------------------------------


class Metrics:
    """The metrics of one manager. Thread safe: concurrent requests share one text."""

    def __init__(
        self,
        manager: LogManager,
        observations: Observations,
        worker: Worker | None = None,
        *,
        by_partition: bool = False,
        endpoint: EndpointMetrics | None = None,
    ) -> None:
        self._manager, self._observations, self._worker = manager, observations, worker
        self._endpoint, self._by_partition = endpoint, by_partition
        self._prices = prices_or_none(manager.config)
        self._lock = threading.Lock()
        self._texts: dict[Form, str] = {}
        self._text_ms = -CACHE_MS
        self._first_offsets = {held.name: held.log.next_offset for held in manager.partitions.all()}
        names = {name for topic in manager.topics.all() for name in topic.partitions()}
        self._unopened = names - self._first_offsets.keys()

    def text(self, now_ms: int, form: Form = Form.PROMETHEUS) -> str:
        with self._lock:
            if not 0 <= now_ms - self._text_ms < CACHE_MS:
                self._texts, self._text_ms = {}, now_ms
            if form not in self._texts:
                self._texts[form] = exposition(self.samples(now_ms), form)
            return self._texts[form]

    def samples(self, now_ms: int) -> Iterator[Sample]:
        snapshots = snapshots_at_hand(self._manager, now_ms)
        yield from self._tiers([partition_status(each) for each in snapshots], now_ms)
        yield from self._appends()
        yield from self._seen()
        yield from self._store()
        yield from self._work(snapshots, now_ms)
        if any(each.rules.cleanup_compact for each in snapshots):
            yield from _from("cleaner", cleaner_metrics(self._manager, now_ms, may_ask=False))
        if self._endpoint is not None:
            yield from endpoint_samples(self._endpoint)
        yield from _process()

    def _tiers(self, found: Sequence[PartitionStatus], now_ms: int) -> Iterator[Sample]:
        groups: dict[tuple[tuple[str, str], ...], list[PartitionStatus]] = {}
        for status in found:
            name = status.partition
            more = (("partition", str(name.partition)),) if self._by_partition else ()
            groups.setdefault((("topic", name.topic), *more), []).append(status)
        unseen = {each.name for each in self._manager.partitions.all() if is_unseen(self._manager, each)}
        for labels, group in groups.items():
            is_known = unseen.isdisjoint(each.partition for each in group)
            for metric, figure in _BY_SOURCE["partition"]:
                is_shown = self._by_partition if figure in _OFFSETS else is_known or figure in _OF_DISK
                if is_shown:
                    yield Sample(metric, _figure(figure, group, now_ms), labels)
        yield from self._dollars(found, {name.topic for name in unseen})

    def _dollars(self, found: Sequence[PartitionStatus], unseen: Collection[str]) -> Iterator[Sample]:
        if self._prices is None:
            return
        dollars = {(each.partition.topic, kind): 0.0 for each in found for kind in _KINDS}
        for name, cost in storage_costs(self._manager, self._prices).items():
            for kind in ("storage", "index", "waiting"):
                dollars[name.topic, kind] = dollars.get((name.topic, kind), 0.0) + getattr(cost, kind)
        for each in found:
            dollars[each.partition.topic, "disk"] += each.local_bytes / GIB * self._prices.disk_per_gb_month
        for (topic, kind), value in sorted(dollars.items()):
            if kind != "disk" and topic in unseen:
                continue
            yield Sample("tiered_cost_dollars_per_month", value, (("topic", topic), ("kind", kind)))

    def _appends(self) -> Iterator[Sample]:
        records = Counter[str]()
        for held in self._manager.partitions.all():
            first = self._first_offsets.setdefault(
                held.name, held.log.next_offset if held.name in self._unopened else 0
            )
            records[held.name.topic] += max(0, held.log.next_offset - first)
        for topic, count in sorted(records.items()):
            yield Sample("tiered_append_records_total", count, (("topic", topic),))

    def _seen(self) -> Iterator[Sample]:
        seen = self._observations
        topics = [topic.name for topic in self._manager.topics.all()]
        for metric, name in _BY_SOURCE["counts"]:
            counts = seen.of(name)
            for topic in topics:
                yield Sample(metric, counts.get((topic,), 0), (("topic", topic),))
        yield Sample("tiered_fsync_duration_seconds", seen.fsyncs.counts())
        yield Sample("tiered_fsync_failures_total", sum(seen.of("fsync_failures").values()))
        yield Sample("tiered_round_duration_seconds", seen.rounds.counts())
        for (op,), count in sorted(seen.of("operations").items()):
            yield Sample("tiered_objstore_operations_total", count, (("op", op),))
            yield Sample("tiered_objstore_duration_seconds", seen.calls[op].counts(), (("op", op),))
        for (op, kind), count in sorted(seen.of("failures").items()):
            yield Sample("tiered_objstore_failures_total", count, (("op", op), ("class", kind)))

    def _store(self) -> Iterator[Sample]:
        store = self._manager.store
        if store is None:
            return
        counts = store.counts()
        for kind in ("puts", "gets", "lists", "deletes"):
            yield Sample("tiered_objstore_billed_requests_total", getattr(counts, kind), (("class", kind),))
        yield Sample("tiered_objstore_bytes_total", counts.bytes_in, (("direction", "in"),))
        yield Sample("tiered_objstore_bytes_total", counts.bytes_out, (("direction", "out"),))
        by_topic: dict[str, RequestCounts] = {}
        for directory, each in store.counts_by_topic().items():
            parsed = parse_topic_directory(directory)
            if parsed is not None:
                by_topic[parsed[0]] = by_topic.get(parsed[0], RequestCounts()) + each
        for topic, each in sorted(by_topic.items()):
            yield from _from("requests", each, ("topic", topic))
        deleted = deletions(store)
        yield Sample("tiered_remote_left_objects_total", deleted.left_objects)
        for reason in DeleteReason:
            count = deleted.by_reason.get(reason, 0)
            yield Sample("tiered_remote_deleted_objects_total", count, (("reason", reason.value),))
        yield from _from("cache", self._manager.opener.cache)

    def _work(self, snapshots: Sequence[PartitionSnapshot], now_ms: int) -> Iterator[Sample]:
        todo = {name: each.count for name, each in plan(snapshots, now_ms).totals().items()}
        actions = {"CopySegment", "DropLocal", "ExpireRemote", "DeletePending", "CleanLog", *todo}
        if any(is_unseen(self._manager, each) for each in self._manager.partitions.all()):
            actions &= _LOCAL_ACTIONS  # the number of other due actions is unknown
        for action in sorted(actions):
            yield Sample("tiered_todo_segments", todo.get(action, 0), (("action", action),))
        problems = dict(self._manager.problems)
        count = sum(topic.partition_count for topic in self._manager.topics.all())
        is_open = len(self._manager.partitions.all())
        yield Sample("tiered_partitions", is_open, (("state", "open"),))
        yield Sample("tiered_partitions", max(0, count - is_open), (("state", "unopened"),))
        kinds = Counter(type(error).__name__ for error in problems.values())
        for kind in sorted({"Corrupt", "Unavailable", "Fenced", *kinds}):
            yield Sample("tiered_partition_problems", kinds[kind], (("class", kind),))
        lost = sum(isinstance(error, RemoteLost) for error in problems.values())
        yield Sample("tiered_halted", sum(isinstance(error, Conflict) for error in problems.values()) - lost)
        yield Sample("tiered_remote_lost", lost)
        for facts in self._manager.directories.facts():
            yield from _from("directory", facts, ("directory", facts.path))
        if self._worker is not None:
            yield from _from("worker", self._worker)
            watch = self._worker.problems
            for kind in sorted({"Corrupt", "Unavailable", "Fenced", *watch.begun}):
                yield Sample("tiered_problems_begun_total", watch.begun[kind], (("class", kind),))
                yield Sample("tiered_problems_ended_total", watch.ended[kind], (("class", kind),))
            since_ms = watch.oldest_since_ms
            age_s = 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000
            yield Sample("tiered_oldest_problem_seconds", age_s)
            clock_guard = self._worker.clock_guard
            yield Sample("tiered_clock_jump_seconds", clock_guard.off_ms / 1000 if clock_guard is not None else 0)
        yield from self._pools()

    def _pools(self) -> Iterator[Sample]:
        is_read_only = self._manager.directories.read_only
        for kind, load in ({} if is_read_only else self._manager.maintenance.tasks.loads).items():
            yield Sample(f"tiered_{kind}_tasks", load.queued, (("state", "queued"),))
            yield Sample(f"tiered_{kind}_tasks", load.running, (("state", "running"),))
            yield from _from(kind, load)
            yield Sample("tiered_remote_log_manager_tasks_idle_ratio", load.idle_share, (("pool", kind),))
        yield from _from("reader", reader_load())


def endpoint_samples(endpoint: EndpointMetrics) -> Iterator[Sample]:
    return (Sample(*figure) for figure in endpoint.figures())


def endpoint_text(endpoint: EndpointMetrics, form: Form) -> str:
    """The metrics of a process that is a Kafka endpoint alone."""
    return exposition([*endpoint_samples(endpoint), *_process()], form)


def _from(source: str, found: object, *labels: tuple[str, str]) -> Iterator[Sample]:
    for metric, attribute in _BY_SOURCE[source]:
        value = attrgetter(attribute)(found)
        if value is not None:
            yield Sample(metric, value / 1000 if attribute.endswith("_ms") else value, labels)


def _figure(name: str, group: Sequence[PartitionStatus], now_ms: int) -> float:
    """Return a group's figure: 1 if a partition is paused, the age in s of the oldest time, or the sum."""
    values: list[Any] = [getattr(each, name) for each in group]
    if name == "paused":
        return int(any(each is not None for each in values))
    if name.endswith("_since_ms"):
        return max(0, now_ms - min((each for each in values if each is not None), default=now_ms)) / 1000
    total: float = sum(values)
    return total


def _process() -> Iterator[Sample]:
    labels = (("version", __version__), ("python", platform.python_version()), ("kernels", implementation()))
    yield Sample("tiered_build_info", 1, labels)
    times = os.times()
    yield Sample("process_cpu_seconds_total", times.user + times.system)
    try:
        with open("/proc/self/statm", encoding="ascii") as pages:
            resident = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        open_files = len(os.listdir("/proc/self/fd"))
    except OSError:
        return  # only on Linux
    yield Sample("process_resident_memory_bytes", resident)
    yield Sample("process_open_fds", open_files)
