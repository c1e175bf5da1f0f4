"""Figures of a running manager as samples of the metrics in `tiered.observe.metric_table`.

The figures are gathered on request from the manager's memory, without requests to the store. The only file read is a
segment's time index that was not needed before. Labels are topics. Partitions are labels only on request, because there
may be many thousands.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from local.errors import Conflict, LogError, RemoteLost
from local.kernels import implementation
from local.names import TopicPartition
from policies.cost.prices import PriceTable
from policies.cost.storage_cost import GIB
from policies.plan import plan
from policies.snapshot import PartitionSnapshot
from remote.fetch.read_ahead import reader_load
from remote.gc.object_deletion import DeleteReason, deletions
from remote.keys import parse_topic_directory
from remote.store.middleware.metered_store import RequestCounts
from tiered import __version__
from tiered.config.price_file import configured_prices
from tiered.manager.manager import LogManager
from tiered.observe.metric_table import Form, Sample, exposition
from tiered.partition.partition_status import PartitionStatus, partition_status
from tiered.service.observations import HistogramCounts, Observations
from tiered.service.worker import Worker
from tiered.status.compaction_status import cleaner_metrics
from tiered.status.status_report import is_unseen, snapshots_at_hand, storage_costs

_log = logging.getLogger(__name__)
CACHE_MS = 1000  # a text is reused for so long, for any number of requests
_GAUGES = {
    "tiered_local_log_bytes": "local_bytes",
    "tiered_local_log_segments": "local_segments",
    "tiered_remote_log_bytes": "remote_bytes",
    "tiered_remote_log_segments": "remote_segments",
    "tiered_unreplicated_bytes": "at_risk_bytes",
    "tiered_remote_copy_lag_bytes": "lag_bytes",
    "tiered_remote_copy_lag_segments": "lag_segments",
    "tiered_remote_delete_lag_bytes": "unlinked_bytes",
    "tiered_remote_delete_overdue_bytes": "overdue_bytes",
}
_OF_DISK = {"local_bytes", "local_segments", "paused_since_ms"}  # the other figures depend on the bucket
_LOCAL_ACTIONS = {"CleanLog", "RollActive"}  # maintenance actions that need no bucket
_AGES = {
    "tiered_remote_copy_lag_seconds": "lag_since_ms",
    "tiered_remote_copy_paused_seconds": "paused_since_ms",
    "tiered_remote_delete_overdue_seconds": "overdue_since_ms",
}
_KINDS = ("storage", "index", "waiting", "disk")
_OFFSETS = {"tiered_log_start_offset": "log_start_offset", "tiered_log_end_offset": "next_offset"}
_BY_TOPIC = {
    "tiered_append_bytes_total": "appended_bytes",
    "tiered_remote_copy_requests_total": "copy_requests",
    "tiered_remote_copy_errors_total": "copy_errors",
    "tiered_remote_fetch_requests_total": "fetch_requests",
    "tiered_remote_fetch_errors_total": "fetch_errors",
    "tiered_remote_delete_requests_total": "delete_requests",
    "tiered_remote_delete_errors_total": "delete_errors",
}


class Metrics:
    """The metrics of one manager. Thread safe: concurrent requests share one text."""

    def __init__(
        self,
        manager: LogManager,
        observations: Observations,
        worker: Worker | None = None,
        *,
        by_partition: bool = False,
    ) -> None:
        self._manager, self._observations, self._worker = manager, observations, worker
        self._by_partition = by_partition
        self._prices = _prices(manager)
        self._lock = threading.Lock()
        self._texts: dict[Form, str] = {}
        self._text_ms = -CACHE_MS
        # Log end offsets at the start of counting, and the partitions that existed but could not be opened yet.
        self._begun = {held.name: held.log.next_offset for held in manager.partitions.all()}
        self._unopened = {
            name
            for topic in manager.topics.all()
            for number in range(topic.partition_count)
            if (name := TopicPartition(topic.name, number)) not in self._begun
        }

    def text(self, now_ms: int, form: Form = Form.PROMETHEUS) -> str:
        """Return the text that Prometheus reads."""
        with self._lock:
            if not 0 <= now_ms - self._text_ms < CACHE_MS:
                self._texts, self._text_ms = {}, now_ms
            if form not in self._texts:
                self._texts[form] = exposition(self.samples(now_ms), form)
            return self._texts[form]

    def samples(self, now_ms: int) -> Iterator[Sample]:
        """Yield every sample at this moment."""
        snapshots = snapshots_at_hand(self._manager, now_ms)
        yield from self._tiers([partition_status(each) for each in snapshots], now_ms)
        yield from self._appends()
        yield from self._seen()
        yield from self._store()
        yield from self._work(snapshots, now_ms)
        if any(each.rules.cleanup_compact for each in snapshots):
            yield from self._cleaner(now_ms)
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
            for metric, field in _GAUGES.items():
                if is_known or field in _OF_DISK:
                    yield Sample(metric, sum(getattr(each, field) for each in group), labels)
            for metric, field in _AGES.items():
                if not is_known and field not in _OF_DISK:
                    continue
                since = min((at for each in group if (at := getattr(each, field)) is not None), default=now_ms)
                yield Sample(metric, max(0, now_ms - since) / 1000, labels)
            yield Sample("tiered_remote_copy_paused", int(any(each.paused is not None for each in group)), labels)
            for metric, field in _OFFSETS.items() if self._by_partition else ():
                yield Sample(metric, getattr(group[0], field), labels)
        yield from self._dollars(found, {name.topic for name in unseen})

    def _dollars(self, found: Sequence[PartitionStatus], unseen: Collection[str]) -> Iterator[Sample]:
        if self._prices is None:
            return
        dollars = {(each.partition.topic, kind): 0.0 for each in found for kind in _KINDS}
        for name, kept in storage_costs(self._manager, self._prices).items():
            for kind in ("storage", "index", "waiting"):
                dollars[name.topic, kind] = dollars.get((name.topic, kind), 0.0) + getattr(kept, kind)
        for each in found:
            dollars[each.partition.topic, "disk"] += each.local_bytes / GIB * self._prices.disk_per_gb_month
        for (topic, kind), value in sorted(dollars.items()):
            if kind != "disk" and topic in unseen:
                continue
            yield Sample("tiered_cost_dollars_per_month", value, (("topic", topic), ("kind", kind)))

    def _appends(self) -> Iterator[Sample]:
        records = Counter[str]()
        for held in self._manager.partitions.all():
            begun = self._begun.setdefault(held.name, held.log.next_offset if held.name in self._unopened else 0)
            records[held.name.topic] += max(0, held.log.next_offset - begun)
        for topic, count in sorted(records.items()):
            yield Sample("tiered_append_records_total", count, (("topic", topic),))

    def _seen(self) -> Iterator[Sample]:
        seen = self._observations
        topics = [topic.name for topic in self._manager.topics.all()]
        for metric, name in _BY_TOPIC.items():
            counts = seen.of(name)
            for topic in topics:
                yield Sample(metric, counts.get((topic,), 0), (("topic", topic),))
        yield Sample("tiered_fsync_duration_seconds", seen.fsyncs.counts())
        yield Sample("tiered_fsync_failures_total", sum(seen.of("fsync_failures").values()))
        yield Sample("tiered_round_duration_seconds", seen.rounds.counts())
        for (op,), count in sorted(seen.of("operations").items()):
            yield Sample("tiered_objstore_operations_total", count, (("op", op),))
            yield Sample("tiered_objstore_duration_seconds", _counts(seen, op), (("op", op),))
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
            yield Sample("tiered_remote_copy_bytes_total", each.data_bytes_in, (("topic", topic),))
            yield Sample("tiered_remote_fetch_bytes_total", each.data_bytes_out, (("topic", topic),))
        deleted = deletions(store)
        yield Sample("tiered_remote_left_objects_total", deleted.left_objects)
        for reason in DeleteReason:
            count = deleted.by_reason.get(reason, 0)
            yield Sample("tiered_remote_deleted_objects_total", count, (("reason", reason.value),))
        cache = self._manager.opener.cache
        yield Sample("tiered_cache_hits_total", cache.hits)
        yield Sample("tiered_cache_misses_total", cache.misses)
        yield Sample("tiered_cache_bytes", cache.size_bytes)

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
            labels = (("directory", facts.path),)
            yield Sample("tiered_log_dir_offline", int(facts.is_offline), labels)
            if facts.free_bytes is not None and facts.total_bytes is not None:
                yield Sample("tiered_log_dir_free_bytes", facts.free_bytes, labels)
                yield Sample("tiered_log_dir_total_bytes", facts.total_bytes, labels)
        if self._worker is not None:
            yield Sample("tiered_rounds_total", self._worker.rounds)
            yield Sample("tiered_round_failures_total", self._worker.failures)
            yield Sample("tiered_last_round_timestamp_seconds", self._worker.report.seen_ms / 1000)
            yield Sample("tiered_last_round_age_seconds", self._worker.round_age_ms / 1000)
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
            yield Sample(f"tiered_{kind}_threads", load.threads)
            yield Sample(f"tiered_{kind}_oldest_wait_seconds", load.oldest_wait_s)
            yield Sample(f"tiered_{kind}_oldest_turn_seconds", load.oldest_turn_s)
            yield Sample("tiered_remote_log_manager_tasks_idle_ratio", load.idle_share, (("pool", kind),))
        reader = reader_load()
        yield Sample("tiered_remote_log_reader_task_queue_size", reader.queued)
        yield Sample("tiered_remote_log_reader_idle_ratio", reader.idle_share)

    def _cleaner(self, now_ms: int) -> Iterator[Sample]:
        figures = cleaner_metrics(self._manager, now_ms)
        yield Sample("tiered_cleaner_max_dirty_percent", figures.max_dirty_percent)
        yield Sample("tiered_cleaner_max_buffer_utilization_percent", figures.max_buffer_utilization_percent)
        yield Sample("tiered_cleaner_max_clean_time_seconds", figures.max_clean_time_secs)
        yield Sample("tiered_cleaner_max_compaction_delay_seconds", figures.max_compaction_delay_secs)
        yield Sample("tiered_cleaner_uncleanable_partitions", figures.uncleanable_partitions_count)
        yield Sample("tiered_cleaner_uncleanable_bytes", figures.uncleanable_bytes)
        if figures.time_since_last_run_ms is not None:
            yield Sample("tiered_cleaner_since_last_run_seconds", figures.time_since_last_run_ms / 1000)


def _prices(manager: LogManager) -> PriceTable | None:
    """Return None if the prices cannot be read: a manager works without them."""
    try:
        return configured_prices(manager.config)
    except LogError as error:
        _log.warning("dollars are not shown: error=%s", error)
        return None


def _counts(seen: Observations, op: str) -> HistogramCounts:
    return seen.calls[op].counts()


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
