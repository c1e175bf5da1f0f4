"""Progress of bytes, of segment copies and of loading, as ``--progress`` asks: bars, lines, events or nothing.

A bar of a copy or of loading appears after a second, so quick work shows nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tiered.config.units import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

    from local.names import TopicPartition
    from tiered.cli.progress import Meter
    from tiered.cli.session import Session
    from tiered.manager.manager import LogManager
    from tiered.partition.log_loading import LoadProgress, OnProgress

PATIENCE_S = 1.0
LINE_EVERY_S = 10.0
Advance = Callable[[int], None]
OnCopy = Callable[["TopicPartition", int, int, int], None]  # partition, base offset, bytes done, bytes in total


class Lines:
    """A line at most every ten seconds. Thread safe."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] | None = None, *, every_s: float = LINE_EVERY_S
    ) -> None:
        self._say, self._clock, self._every_s = say, clock or time.monotonic, every_s
        self._lock = threading.Lock()
        self._due_s = self._clock() + every_s

    def report(self, words: Callable[[], str], *, is_last: bool = False) -> None:
        with self._lock:
            if not is_last and self._clock() < self._due_s:
                return
            self._due_s = self._clock() + self._every_s
        self._say(words())


class Bars:
    """A bar for each task, from `patience_s` after its first report until its end. Thread safe."""

    def __init__(
        self,
        columns: Callable[[], Sequence[ProgressColumn]],
        *,
        patience_s: float = PATIENCE_S,
        is_transient: bool = False,
    ) -> None:
        self._columns, self._patience_s, self._is_transient = columns, patience_s, is_transient
        self._lock = threading.Lock()
        self._begun_s: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars: Progress | None = None
        self._open = ExitStack()

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *rest: object) -> None:
        self._open.close()

    def report(self, task: str, done: int, total: int, segments: int | None = None) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._begun_s.setdefault(task, now) < self._patience_s:
                return
            bars = self._bars or self._show()
            if task not in self._tasks:
                self._tasks[task] = bars.add_task(task, total=total, segments=segments)
            bars.update(self._tasks[task], completed=done, segments=segments)

    def end(self, task: str) -> None:
        with self._lock:
            self._begun_s.pop(task, None)
            shown = self._tasks.pop(task, None)
            if shown is not None and self._bars is not None:
                self._bars.remove_task(shown)

    def _show(self) -> Progress:
        from rich.console import Console
        from rich.progress import Progress

        bars = Progress(*self._columns(), console=Console(stderr=True), transient=self._is_transient)
        self._bars = self._open.enter_context(bars)
        return self._bars


@contextmanager
def byte_progress(session: Session, verb: str, size_bytes: int, *, bar_least_bytes: int = 1) -> Iterator[Advance]:
    """Return a callback for finished bytes, callable from any thread. `verb` as in "scrubbed 3 of 5 GiB".

    Work of less than `bar_least_bytes` shows no bar.
    """
    progress = session.progress
    if progress.meter is not None:
        progress.meter.expect(size_bytes)
        yield progress.meter.advance
    elif size_bytes and progress.way == "plain" and not session.is_quiet:
        yield byte_lines(session.say, verb, size_bytes)
    elif size_bytes >= bar_least_bytes and progress.has_bars and not session.is_quiet:
        with Bars(_byte_columns, patience_s=0, is_transient=True) as bars:
            bars.report(verb, 0, size_bytes)
            yield _summed(lambda done: bars.report(verb, done, size_bytes))
    else:
        yield lambda done_bytes: None


def byte_lines(
    say: Callable[[str], None], verb: str, size_bytes: int, clock: Callable[[], float] = time.monotonic
) -> Advance:
    """Return a callback for finished bytes that says a line with the rate and the time left."""
    lines, begun_s = Lines(say, clock), clock()

    def words(done: int) -> str:
        rate = done / (clock() - begun_s)
        left = f", {round((size_bytes - done) / rate)} s left" if rate else ""
        return f"{verb} {format_bytes(done)} of {format_bytes(size_bytes)}, {format_bytes(round(rate))}/s{left}"

    return _summed(lambda done: lines.report(lambda: words(done)))


def _summed(report: Callable[[int], None]) -> Advance:
    """Return a callback for increments that passes on the sum."""
    lock, total = threading.Lock(), 0

    def advance(count: int) -> None:
        nonlocal total
        with lock:
            total += count
            done = total
        report(done)

    return advance


def _byte_columns() -> Sequence[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    return BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()


@contextmanager
def copy_progress(session: Session, manager: LogManager) -> Iterator[None]:
    """As `copy_progress_of`, for all partitions of a manager."""
    with copy_progress_of(session) as report:
        if report is not None:
            for held in manager.partitions():
                held.on_copied = _of_partition(report, held.name)
        yield


@contextmanager
def copy_progress_of(session: Session) -> Iterator[OnCopy | None]:
    """Report copies: a bar for each on a terminal, a line every ten seconds, events, or None if no report is wanted."""
    progress = session.progress
    if progress.meter is not None:
        yield CopyEvents(progress.meter).report
    elif progress.has_bars and not session.is_quiet:
        with Bars(_copy_columns) as bars:

            def report(name: TopicPartition, base_offset: int, done: int, size_bytes: int) -> None:
                task = f"{name} from {base_offset}"
                if done >= size_bytes:
                    bars.end(task)
                else:
                    bars.report(task, done, size_bytes)

            yield report
    elif progress.way == "plain" and not session.is_quiet:
        lines = Lines(session.say)
        yield lambda name, base_offset, done, size_bytes: lines.report(
            lambda: f"copying {name} from {base_offset}: {format_bytes(done)} of {format_bytes(size_bytes)}"
        )
    else:
        yield None


def _of_partition(report: OnCopy, name: TopicPartition) -> Callable[[int, int, int], None]:
    return lambda base_offset, done, size_bytes: report(name, base_offset, done, size_bytes)


class CopyEvents:
    """Events of copies: a copy adds to the expected total at its first report.

    Maintenance decides how many copies will come. A restarted copy counts up from its earlier progress.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._reached: dict[tuple[str, int], int] = {}

    def report(self, name: TopicPartition, base_offset: int, done: int, size_bytes: int) -> None:
        copy = (str(name), base_offset)
        with self._lock:
            if copy not in self._reached:
                self._reached[copy] = 0
                self._meter.expect(size_bytes)
            more = min(done, size_bytes) - self._reached[copy]
            if more > 0:
                self._reached[copy] += more
                self._meter.advance(more)


def _copy_columns() -> Sequence[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    return TextColumn("copying {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()


@contextmanager
def load_progress(session: Session) -> Iterator[OnProgress]:
    """Report the loading of logs: a bar for each directory on a terminal, elsewhere a line every ten seconds.

    Under ``json`` loading is the step that the command waits for.
    """
    progress = session.progress
    if (meter := progress.meter) is not None:
        yield lambda told: meter.wait_for(_loading(told))
        meter.wait_for(None)
    elif session.is_quiet or progress.way == "none":
        yield lambda told: None
    elif progress.has_bars:
        with Bars(_load_columns) as bars:
            yield lambda told: bars.report(told.directory, told.done, told.total, segments=told.recovered_segments)
    else:
        lines = Lines(session.say)
        yield lambda told: lines.report(lambda: _loading(told))


def _loading(told: LoadProgress) -> str:
    return f"loading {told.directory}: {told.done} of {told.total} logs, {told.recovered_segments} segments recovered"


def _load_columns() -> Sequence[ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    segments = TextColumn("logs, {task.fields[segments]} segments recovered")
    return TextColumn("loading {task.description}"), BarColumn(), MofNCompleteColumn(), segments, TimeElapsedColumn()
