"""Counters, histograms and trace spans of disk, store and maintenance since the start of the process; log lines.

Spans are OpenTelemetry's, exported by the surrounding program; without that package there are none.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from local.errors import AlreadyExists, LogError, NotFound
from local.names import LOG, parse_partition_directory
from local.storage import DiskStorage, Storage
from local.storage.storage import ObservedStorage
from remote.keys import INDEXES_SUFFIX, is_segment_object, parse_topic_directory
from remote.store import ObjectStore
from remote.store.middleware.store_wrapper import Around, ObservedStore
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.partition.partition_table import OnProgress
from tiered.stores.configured_store import configured_store

FSYNC_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STORE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROUND_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

Span: TypeAlias = Callable[..., AbstractContextManager[object]]  # of a name and attributes
_FACT = re.compile(r"(?:[:,;]?\s*)([A-Za-z_][A-Za-z0-9_.]*)=%[-+0-9.]*[sdrfx]")
_SLOT = re.compile(r"%[-+0-9.]*[sdrfx]")
_OURS = ("time", "level", "logger", "message", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramCounts:
    """Counts of a histogram. `buckets` are cumulative: (upper bound in s, count), the last bound infinity."""

    buckets: tuple[tuple[float, int], ...]
    count: int
    total: float


class Histogram:
    """Durations in seconds. Thread safe."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self._total += seconds

    def counts(self) -> HistogramCounts:
        with self._lock:
            counts, total = list(self._counts), self._total
        running, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            running += count
            buckets.append((bound, running))
        return HistogramCounts(buckets=tuple(buckets), count=running, total=total)


class Observations:
    """All counters and histograms of one process. Thread safe."""

    def __init__(self) -> None:
        self.fsyncs = Histogram(FSYNC_BUCKETS)
        self.rounds = Histogram(ROUND_BUCKETS)
        self.calls: dict[str, Histogram] = {}
        self.last_seen_s = time.monotonic()  # time of the last activity, by the monotonic clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def of(self, name: str) -> Mapping[tuple[str, ...], int]:
        with self._lock:
            return {
                labels: count for (each, *rest), count in self._counts.items() if each == name for labels in [(*rest,)]
            }

    def appended(self, path: str, size_bytes: int) -> None:
        directory, _, name = path.rpartition("/")
        partition = parse_partition_directory(directory.rpartition("/")[2]) if name.endswith(LOG) else None
        if partition is not None:
            self._count("appended_bytes", partition.topic, by=size_bytes)

    def synced(self, path: str, seconds: float, error: LogError | None) -> None:
        self.fsyncs.observe(seconds)
        if error is not None:
            self._count("fsync_failures")

    @contextmanager
    def around(self, op: str, key: str) -> Iterator[None]:
        started = time.perf_counter()
        kind = _request_kind(op, key)
        if kind is not None:
            self._count(f"{kind}_requests", _topic(key))
        try:
            yield
        except (NotFound, AlreadyExists):
            raise  # both are answers
        except LogError as error:
            self._count("failures", op, type(error).__name__)
            if kind is not None:
                self._count(f"{kind}_errors", _topic(key))
            raise
        finally:
            self._count("operations", op)
            with self._lock:
                histogram = self.calls.setdefault(op, Histogram(STORE_BUCKETS))
            histogram.observe(time.perf_counter() - started)

    @contextmanager
    def round(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.rounds.observe(time.perf_counter() - started)

    def _count(self, name: str, *labels: str, by: int = 1) -> None:
        self.last_seen_s = time.monotonic()
        with self._lock:
            self._counts[name, *labels] += by


def open_observed(
    config: Config,
    observations: Observations,
    *,
    now_ms: int,
    storage: Storage | None = None,
    store: ObjectStore | None = None,
    around: Around | None = None,
    progress: OnProgress = lambda progress: None,
    takes_over: bool = False,
) -> LogManager:
    """Open a manager as `LogManager.open`, disk and store observed; `around` wraps each store call too."""
    inner = store if store is not None else configured_store(config)

    def both(op: str, key: str) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(around(op, key) if around is not None else nullcontext())
        stack.enter_context(observations.around(op, key))
        return stack

    return LogManager.open(
        config,
        now_ms=now_ms,
        storage=ObservedStorage(storage or DiskStorage(), observations),
        store=ObservedStore(inner, both) if inner is not None else None,
        progress=progress,
        takes_over=takes_over,
    )


def _request_kind(op: str, key: str) -> str | None:
    if op == "delete":
        return "delete"
    if not is_segment_object(key) or key.endswith(INDEXES_SUFFIX):
        return None
    return {"put": "copy", "upload": "copy", "get": "fetch"}.get(op)


def _topic(key: str) -> str:
    parsed = parse_topic_directory(key.partition("/")[0])
    return parsed[0] if parsed is not None else ""


def tracer(provider: object | None = None) -> Span:
    """Return spans of `provider`, or of the global one; without the package, spans that do nothing."""
    try:
        from opentelemetry import trace
    except ImportError:
        return lambda name, **attributes: nullcontext()
    opened: Any = trace.get_tracer("tiered", tracer_provider=provider)  # type: ignore[arg-type,unused-ignore]

    @contextmanager
    def span(name: str, **attributes: str | int) -> Iterator[object]:
        named = {f"tiered.{key}": value for key, value in attributes.items()}
        with opened.start_as_current_span(
            name, attributes=named, record_exception=False, set_status_on_exception=False
        ) as current:
            try:
                yield current
            except (NotFound, AlreadyExists) as answer:
                current.set_attribute("tiered.answer", type(answer).__name__)
                raise
            except Exception as error:
                # The class only: a message may have keys of a customer's topics.
                current.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
                raise

    return span


def store_spans(span: Span) -> Around:
    return lambda op, key: span(f"tiered.store.{op}", key=key)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with the message's facts as fields; never raises for its content.

    A message is a constant text followed by ``name=%s`` for each fact; `message` is the text alone, so lines of one
    kind can be counted. A fact named as a standard field (`time`, `level` and so on) gets an underscore.
    """

    def format(self, record: logging.LogRecord) -> str:
        text, facts = split_facts(record)
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        body: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": text,
        }
        if record.exc_info and record.exc_info[0] is not None:
            body["error"] = self.formatException(record.exc_info)
        body |= {f"{name}_" if name in _OURS else name: value for name, value in facts.items()}
        return json.dumps(body, ensure_ascii=False, default=str)


def split_facts(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """Return (constant text, facts) of a record; (whole message, no facts) for another form."""
    template = record.msg if isinstance(record.msg, str) else str(record.msg)
    values = record.args if isinstance(record.args, tuple) else ()
    slots = list(_SLOT.finditer(template))
    names = {match.end(): match[1] for match in _FACT.finditer(template)}
    if not names or len(slots) != len(values) or "%%" in template:
        return record.getMessage(), {}
    facts = {names[slot.end()]: _plain(value) for slot, value in zip(slots, values, strict=True) if slot.end() in names}
    others = tuple(value for slot, value in zip(slots, values, strict=True) if slot.end() not in names)
    return _FACT.sub("", template) % others, facts


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
