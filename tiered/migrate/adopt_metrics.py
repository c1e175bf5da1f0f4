"""Metrics of a sidecar of a broker (`tiered.migrate.adopt`), under the names of a manager's metrics.

Copy lag and bytes at risk are from the last pass, also for a partition with a problem. If the figures of such a
partition are not known, the previous ones stay. Dashboards and alerts for managers work without change.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from local.errors import LogError
from local.names import TopicPartition
from tiered.config.clock_guard import counted_ms
from tiered.observe.metrics import Form, Sample, exposition

_GAUGES = {
    "tiered_unreplicated_bytes": "at_risk_bytes",
    "tiered_remote_copy_lag_bytes": "lag_bytes",
    "tiered_remote_copy_lag_segments": "lag_segments",
    "tiered_adopt_ahead_offsets": "ahead",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedPartition:
    """One partition after a pass. Offset ranges are half open.

    `lag_bytes` are closed and not in the bucket yet. `at_risk_bytes` are only on the broker's disk, including the
    active segment. The broker deleted the ranges in `lost` before they were copied. `lag_since_ms` is the time of the
    last write to the oldest waiting segment. `ahead` is the number of offsets in the bucket at or above the broker's
    high watermark: an unclean election removed them, or the broker's disk is catching up. `problem` is the reason why
    the pass stopped: the figures are then from that moment, and None if the bucket's end is not known.
    """

    partition: TopicPartition
    copied: int = 0
    copied_bytes: int = 0
    tiered_upto: int | None = 0
    log_end: int | None = None
    lag_segments: int | None = 0
    lag_bytes: int | None = 0
    at_risk_bytes: int | None = 0
    lost: tuple[tuple[int, int], ...] = ()
    lag_since_ms: int | None = None
    ahead: int | None = 0
    problem: LogError | None = None


class AdoptMetrics:
    """Metrics of the passes. `text` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, AdoptedPartition] = {}
        self._troubles = Counter[str]()
        self._copied, self._copied_bytes, self._lost = Counter[str](), Counter[str](), Counter[str]()
        self._rounds = self._failures = self._round_ms = 0
        self._ended_at = counted_ms()

    @property
    def is_well(self) -> bool:
        """Whether no partition had a problem in the last pass."""
        with self._lock:
            return not self._troubles

    def note(self, done: Sequence[AdoptedPartition], now_ms: int) -> None:
        """Record the result of a finished pass."""
        with self._lock:
            self._rounds, self._round_ms, self._ended_at = self._rounds + 1, now_ms, counted_ms()
            self._troubles = Counter(type(each.problem).__name__ for each in done if each.problem is not None)
            self._failures += bool(self._troubles)
            there = {each.partition for each in done}
            self._known = {name: each for name, each in self._known.items() if name in there}
            for each in done:
                if each.at_risk_bytes is not None:
                    self._known[each.partition] = each
                topic = each.partition.topic
                self._copied[topic] += each.copied
                self._copied_bytes[topic] += each.copied_bytes
                self._lost[topic] += sum(end - start for start, end in each.lost)

    def text(self, now_ms: int, form: Form = Form.PROMETHEUS) -> str:
        """The metrics page for Prometheus."""
        with self._lock:
            return exposition(list(self._samples(now_ms)), form)

    def _samples(self, now_ms: int) -> Iterator[Sample]:
        by_topic: dict[str, list[AdoptedPartition]] = {}
        for each in self._known.values():
            by_topic.setdefault(each.partition.topic, []).append(each)
        for topic, some in sorted(by_topic.items()):
            labels = (("topic", topic),)
            for metric, field in _GAUGES.items():
                yield Sample(metric, sum(getattr(each, field) for each in some), labels)
            since = min((each.lag_since_ms for each in some if each.lag_since_ms is not None), default=now_ms)
            yield Sample("tiered_remote_copy_lag_seconds", max(0, now_ms - since) / 1000, labels)
            yield Sample("tiered_remote_copy_bytes_total", self._copied_bytes[topic], labels)
            yield Sample("tiered_adopt_lost_offsets_total", self._lost[topic], labels)
        for kind in sorted({"Conflict", "Corrupt", "Fenced", "Unavailable", *self._troubles}):
            yield Sample("tiered_partition_problems", self._troubles[kind], (("class", kind),))
        passing = self._troubles["Unavailable"] + self._troubles["Corrupt"]  # other alerts cover these
        yield Sample("tiered_halted", self._troubles.total() - passing)
        yield Sample("tiered_rounds_total", self._rounds)
        yield Sample("tiered_round_failures_total", self._failures)
        yield Sample("tiered_last_round_timestamp_seconds", self._round_ms / 1000)
        yield Sample("tiered_last_round_age_seconds", (counted_ms() - self._ended_at) / 1000)
