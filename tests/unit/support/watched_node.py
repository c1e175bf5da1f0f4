"""A node on a real disk with a virtual clock, and the samples that Prometheus would scrape each minute.

The disk and the bucket can be made to fail. Commands run in this process, on the same clock and the same directory.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from promql import Labels, evaluate

from local.errors import AccessDenied, DiskFailed, Fenced, LogError, NotFound
from local.format.record import Record
from local.names import TopicPartition
from local.storage import Body, DiskStorage, FileFacts, Space, StorageFile
from remote.store.file_store import FileStore
from tiered.cli.main import invoke
from tiered.config.clock_guard import ClockGuard
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.observe.metrics import Metrics
from tiered.observe.monitoring_files import ALERTS, Alert, Limits
from tiered.serve.endpoint_metrics import EndpointMetrics, Figure
from tiered.serve.groups.lag import SeenGroup, lag_figures
from tiered.service.observations import Observations, open_observed
from tiered.service.worker import Worker
from tiered.status.status_report import snapshots_at_hand

NOON = 1_795_176_000_000  # 2026-11-20T12:00:00Z
MINUTE = 60_000
DAY = 86_400_000
ROOM = 8 << 30
HISTORY_S = 6 * 3600  # the longest range of an alert expression
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SPANS = {"m": 60, "h": 3600}


class Disk(DiskStorage):
    """A real disk of ROOM bytes that can be full, fail or be unreadable below a path. `weight` multiplies its used
    bytes."""

    is_full = False
    failed = forbidden = ""
    weight = 1

    def __init__(self, home: Path, clock: Callable[[], int]) -> None:
        self._home, self.clock_ms = home, clock

    def check(self, what: str, path: str) -> None:
        if self.failed and path.startswith(self.failed):
            raise DiskFailed(f"{what}", path=path, cause="eio")
        if self.is_full:
            raise DiskFailed(f"{what}", path=path, cause="enospc")

    def create(self, path: str) -> StorageFile:
        self.check("creating a file", path)
        return _File(self, path, super().create(path))

    def open(self, path: str) -> StorageFile:
        return _File(self, path, super().open(path))

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        if self.forbidden and path.startswith(self.forbidden):
            raise AccessDenied("cannot list a directory, no permission", path=path)
        return super().list_files(path, endings)

    def space(self, path: str) -> Space | None:
        taken = 0
        for each in self._home.glob("disk*/*/*"):
            with contextlib.suppress(FileNotFoundError):
                taken += each.stat().st_size
        return Space(0 if self.is_full else max(0, ROOM - taken * self.weight), ROOM)


class _File:
    def __init__(self, disk: Disk, path: str, inner: StorageFile) -> None:
        self._disk, self._path, self._inner = disk, path, inner

    def append(self, data: Body) -> None:
        self._disk.check("cannot write to a file", self._path)
        self._inner.append(data)
        self._disk.set_modified_ms(self._path, self._disk.clock_ms())  # read-only opens use the modification time

    def sync(self) -> None:
        if self._disk.failed:
            self._disk.check("cannot sync a file", self._path)
        self._inner.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one scrape, by name and labels."""

    at_s: float
    values: dict[tuple[str, Labels], float]


class _Screen(io.BytesIO):
    """An output stream that stays open after the command closed it."""

    def close(self) -> None:
        pass


class Door:
    """The connection to the bucket. It fails the verbs of `refused` by `refusal`, and blocks the verbs of `held`."""

    def __init__(self, inner: FileStore) -> None:
        self.inner = inner
        self.refused: tuple[str, ...] = ()
        self.refusal: Callable[[str], LogError] = lambda verb: NotFound(verb)
        self.held: tuple[str, ...] = ()
        self.opened = threading.Event()

    @property
    def url(self) -> str:
        return self.inner.url

    def __getattr__(self, verb: str) -> Callable[..., object]:
        act = getattr(self.inner, verb)

        def call(*args: object, **more: object) -> object:
            if verb in self.held:
                self.opened.wait(250)
            if verb in self.refused:
                raise self.refusal(verb)
            result: object = act(*args, **more)
            return result

        return call


class WatchedNode:
    """A node whose clock is moved by `pass_`. `fires` evaluates an alert."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self.skew_ms, self.passed_ms = home, 0, 0
        self.counts: dict[TopicPartition, int] = {}
        self.committed: dict[str, dict[TopicPartition, int]] = {}  # offsets of consumer groups
        (home / "bucket").mkdir(parents=True)
        self.configure()
        self.disk, self.door = Disk(home, lambda: self.clock_ms), Door(FileStore(str(home / "bucket")))
        self.scrapes: list[Scrape] = []
        patch.setattr(os, "fsync", lambda number: None)
        patch.setattr(time, "time_ns", lambda: self.clock_ms * 1_000_000)
        self.has_ended = False
        self.start()

    def configure(self, **settings: str) -> None:
        """Write the configuration with the given settings added. Underscores stand for dots."""
        small = {"segment.bytes": "2KiB", "append.batch.bytes": "300", "local.retention.ms": "2h"}
        small |= {"remote.storage.enable": "true", "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "0"}
        small |= {name.replace("_", "."): value for name, value in settings.items()}
        lines = ["[local]", 'dirs = ["disk1", "disk2"]', "[remote]", f'url = "{(self.home / "bucket").as_uri()}"']
        lines += ["[defaults]", *(f'"{name}" = "{value}"' for name, value in small.items())]
        (self.home / "tiered.toml").write_text("\n".join([*lines, ""]))

    @property
    def clock_ms(self) -> int:
        """The time of the machine's clock."""
        return NOON + self.passed_ms + self.skew_ms

    def start(self, *, takes_over: bool = False) -> None:
        """Start the daemon. `takes_over` is `tiered run --take-over`."""
        self.seen = Observations()
        config = Config.load(str(self.home / "tiered.toml"), {}, {})
        self.manager: LogManager = open_observed(
            config,
            self.seen,
            now_ms=self.clock_ms,
            storage=self.disk,
            store=self.door,  # type: ignore[arg-type]
            takes_over=takes_over,
        )
        clock_guard = ClockGuard(DAY, counted=lambda: self.passed_ms)
        self.worker = Worker(
            self.manager,
            now_ms=self.clock_ms,
            interval_ms=30_000,
            waits=False,
            observations=self.seen,
            clock_guard=clock_guard,
            counted=lambda: self.passed_ms,
        )
        endpoint = EndpointMetrics()
        endpoint.group_figures = self._group_figures
        self.metrics = Metrics(self.manager, self.seen, self.worker, endpoint=endpoint)
        for pool in (self.manager.maintenance.tasks.copier_pool, self.manager.maintenance.tasks.expirer_pool):
            pool._clock = lambda: self.passed_ms / 1000

    def _group_figures(self) -> Iterator[Figure]:
        seen = [
            SeenGroup(group=name, state="Empty", members=0, committed=offsets)
            for name, offsets in self.committed.items()
        ]
        snapshots = {each.partition: each for each in snapshots_at_hand(self.manager, self.clock_ms)}
        return lag_figures(seen, snapshots)

    def reload(self) -> None:
        self.manager.topics.reload(Config.load(str(self.home / "tiered.toml"), {}, {}), now_ms=self.clock_ms)

    def restart(self, *, takes_over: bool = False) -> None:
        self.manager.close()
        self.has_ended = False
        self.start(takes_over=takes_over)

    def append(self, topic: str, count: int, partition: int = 0) -> None:
        """Append records. Refused records are lost."""
        at = self.counts.get(name := TopicPartition(topic, partition), 0)
        self.counts[name] = at + count
        records = [
            Record(b"k%d" % (n % 7), b"a value of some length, %d" % n, self.clock_ms) for n in range(at, at + count)
        ]
        with contextlib.suppress(LogError):
            for each in range(0, count, 10):
                self.manager.append(topic, records[each : each + 10], partition, now_ms=self.clock_ms)

    def pass_(self, minutes: int, every: int = 1, *, works: bool = True, feeds: tuple[str, ...] = ()) -> None:
        """Let `minutes` pass. Every `every` minutes there is a scrape and, unless the daemon hangs, maintenance."""
        for _ in range(0, minutes, every):
            self.passed_ms += every * MINUTE
            for topic in feeds:
                self.append(topic, 10)
            if works and not self.has_ended:
                self.work()
                self.has_ended = any(isinstance(each, Fenced) for each in self.manager.problems.values())
            self.scrape()

    def work(self) -> None:
        """Run maintenance until only hanging work is left, and once more to report the results of tasks."""
        is_busy = True
        while is_busy:
            is_busy = self.worker.round(self.clock_ms)
            is_busy = self.manager.maintenance.tasks.wait_idle(0.01 if self.door.held else 60) and is_busy
        self.worker.round(self.clock_ms)
        self.manager.maintenance.tasks.wait_idle(0.01 if self.door.held else 60)

    def scrape(self) -> None:
        """Take a scrape. A daemon that has ended gives no samples."""
        found = {}
        text = "" if self.has_ended else self.metrics.text(self.clock_ms)
        for line in text.splitlines():
            told = _SAMPLE.fullmatch(line)
            if told is not None and told["name"].startswith("tiered_"):
                labels = frozenset(_LABEL.findall(told["labels"] or ""))
                found[told["name"], labels] = float(told["value"])
        self.scrapes.append(Scrape((NOON + self.passed_ms) / 1000, found))

    def since(self, span_s: float) -> list[Scrape]:
        """The scrapes of the last `span_s`."""
        return [each for each in self.scrapes if each.at_s >= self.scrapes[-1].at_s - span_s]

    def fires(self, alert: Alert, limits: Limits) -> bool:
        """Whether the expression of an alert was true for its whole duration, up to the newest scrape."""
        lasts_s = int(alert.lasts[:-1]) * _SPANS[alert.lasts[-1]]
        times = [each.at_s for each in self.since(lasts_s)]
        series: dict[str, dict[Labels, list[tuple[float, float]]]] = {}
        for each in self.since(lasts_s + HISTORY_S):
            for (name, labels), value in each.values.items():
                series.setdefault(name, {}).setdefault(labels, []).append((each.at_s, value))
        expr = alert.expr.format(**asdict(limits))
        return times[0] <= times[-1] - lasts_s and all(evaluate(expr, series, at_s) for at_s in reversed(times))

    def firing(self, limits: Limits) -> set[str]:
        return {alert.name for alert in ALERTS if self.fires(alert, limits)}

    def tiered(self, line: str) -> tuple[int, str]:
        """The exit code of a command and its output."""
        words = shlex.split(line)
        assert words[0] == "tiered"
        screen = _Screen()
        told = io.TextIOWrapper(screen, "utf-8", write_through=True)
        with contextlib.chdir(self.home), contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            code = invoke(words[1:])
        return code, screen.getvalue().decode()

    def close(self) -> None:
        self.door.opened.set()
        self.door.held = ()
        self.manager.close()


@contextlib.contextmanager
def watched_node(home: Path, patch: pytest.MonkeyPatch) -> Iterator[WatchedNode]:
    """A running node with two partitions of orders and a compacted topic, both fully copied to the bucket."""
    node = WatchedNode(home, patch)
    try:
        node.manager.topics.create("orders", 2, {}, now_ms=node.clock_ms)
        node.manager.topics.create("prices", 1, {"cleanup.policy": "compact"}, now_ms=node.clock_ms)
        for topic in ("orders", "prices"):
            node.append(topic, 200)
        node.pass_(2)
        node.append("orders", 100, 1)
        node.pass_(3)
        yield node
    finally:
        node.close()
