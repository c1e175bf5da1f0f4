"""``--progress``: how a long command reports its progress on stderr.

| mode | on stderr |
|---|---|
| auto | a bar on a terminal (of copies and loading after one second), else only messages |
| plain | a line every ten seconds, on a terminal too |
| json | an event a line (``docs/reference/schemas/progress.json``); each write to `sys.stderr` is a ``message`` event |
| none | only messages |

Work in units other than bytes has events only. The error that ends a command is the last line and no event.
"""

from __future__ import annotations

import functools
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

from tiered.config.units import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, TaskID

    from local.names import TopicPartition
    from tiered.cli.session import Session
    from tiered.manager.manager import LogManager
    from tiered.partition.partition_table import LoadProgress, OnProgress

MODES = ("auto", "plain", "json", "none")
EVENT_EVERY_S = 0.25  # at most four events a second, plus messages and the last one
LINE_EVERY_S = 10.0
PATIENCE_S = 1.0  # delay of a bar

Clock = Callable[[], float]
Advance = Callable[[int], None]
OnCopy = Callable[["TopicPartition", int, int, int], None]  # partition, base offset, bytes done, bytes in total
Columns = Callable[[], Sequence["ProgressColumn"]]


class Progress:
    """Counts the finished and the expected work of one command; events under ``json``. Thread safe."""

    def __init__(
        self, operation: str = "", write: Callable[[str], object] | None = None, clock: Clock = time.monotonic
    ) -> None:
        """`write` gets each event as a line, if it is not None."""
        self.mode = "auto"
        self._operation, self._write, self._clock = operation, write, clock
        self._lock = threading.RLock()  # writing may warn, and a warning is a message
        self._due_s = self._started_s = clock()
        self._done, self._total, self._unit = 0, 0, "bytes"
        self._tracked: dict[object, int] = {}
        self._waits_for: str | None = None

    @property
    def sends_events(self) -> bool:
        return self._write is not None

    @property
    def has_bars(self) -> bool:
        return self.mode == "auto" and sys.stderr.isatty()

    def expect(self, count: int, unit: str = "bytes") -> None:
        with self._lock:
            self._total += count
            self._unit = unit
            self._send_progress()

    def advance(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            self._total = max(self._total, self._done)  # the expectation may be too low
            self._send_progress()

    def reach(self, done: int) -> None:
        """Set the finished work; a lower value than before has no effect."""
        with self._lock:
            self.advance(max(0, done - self._done))

    def count(self, unit: str) -> Callable[[int, int], None]:
        """Return a callback for (done, total), starting at zero."""

        def report(done: int, total: int) -> None:
            self.expect(total if not done else 0, unit)
            self.reach(done)

        return report

    def track(self, work: object, done: int, total: int) -> None:
        """Set the finished part of one piece of work; its first report adds `total` to the expected work."""
        with self._lock:
            if work not in self._tracked:
                self._tracked[work] = 0
                self.expect(total)
            more = min(done, total) - self._tracked[work]
            if more > 0:
                self._tracked[work] += more
                self.advance(more)

    def wait_for(self, step: str | None) -> None:
        """Name the step that the work waits for; None when the work continues."""
        with self._lock:
            self._waits_for = step
            self._send_progress()

    def say(self, text: str) -> None:
        with self._lock:
            self._send("message", message=text)

    def end(self) -> None:
        with self._lock:
            self._waits_for = None
            self._send("progress", is_last=True)

    @contextmanager
    def use(self, mode: str, operation: str) -> Iterator[None]:
        """Use this mode inside the block. Under ``json`` events replace `sys.stderr` until the last event."""
        if self.sends_events:  # a command inside another, `run` in `apply --auto`, uses the outer mode
            yield
            return
        self.mode = mode
        if mode != "json":
            yield
            return
        stderr = sys.stderr
        self._operation, self._write = operation, functools.partial(_write_line, stderr)
        self._due_s = self._started_s = self._clock()
        sys.stderr = messages = _Messages(self, stderr)
        try:
            yield
        finally:
            messages.flush()
            sys.stderr = stderr
            self.end()
            self._write = None

    def _send_progress(self) -> None:
        if self._write is not None and (now := self._clock()) >= self._due_s:
            self._due_s = now + EVENT_EVERY_S
            self._send("progress")

    def _send(self, kind: Literal["progress", "message"], *, is_last: bool = False, message: str | None = None) -> None:
        if self._write is None:
            return
        import json

        import msgspec

        from tiered.cli.render import ProgressEvent

        rate = self._done / took if (took := self._clock() - self._started_s) > 0 else 0.0
        event = ProgressEvent(
            kind=kind,
            operation=self._operation,
            done=self._done,
            total=self._total,
            unit=self._unit,
            rate_per_second=round(rate, 3),
            eta_ms=round(1000 * (self._total - self._done) / rate) if rate else None,
            waits_for=_readable(self._waits_for),
            is_last=is_last,
            message=_readable(message),
        )
        self._write(json.dumps(msgspec.to_builtins(event)) + "\n")


def _readable(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _write_line(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


class _Messages(io.TextIOBase):
    """A stderr that turns lines into messages; a flush ends a partial line, such as a question."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        self._progress, self._stream, self._rest = progress, stream, ""

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            self._progress.say(line)
        return len(text)

    def flush(self) -> None:
        rest, self._rest = self._rest, ""
        if rest.strip():
            self._progress.say(rest)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()


class Lines:
    """A line at most every ten seconds. Thread safe."""

    def __init__(
        self, say: Callable[[str], None], clock: Clock | None = None, *, every_s: float = LINE_EVERY_S
    ) -> None:
        self._say, self._clock, self._every_s = say, clock or time.monotonic, every_s
        self._lock = threading.Lock()
        self._due_s = self._clock() + every_s

    def report(self, line: Callable[[], str], *, is_last: bool = False) -> None:
        with self._lock:
            if not is_last and self._clock() < self._due_s:
                return
            self._due_s = self._clock() + self._every_s
        self._say(line())


class Bars:
    """A bar for each task, from `patience_s` after its first report until its end. Thread safe."""

    def __init__(self, columns: Columns, *, patience_s: float = PATIENCE_S, is_transient: bool = False) -> None:
        self._columns, self._patience_s, self._is_transient = columns, patience_s, is_transient
        self._lock = threading.Lock()
        self._started_s: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars: RichProgress | None = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *rest: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def report(self, task: str, done: float, total: int | None, segments: int | None = None) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._started_s.setdefault(task, now) < self._patience_s:
                return
            bars = self._bars or self._show()
            if task not in self._tasks:
                self._tasks[task] = bars.add_task(task, total=total, segments=segments)
            bars.update(self._tasks[task], completed=done, total=total, segments=segments)

    def end(self, task: str) -> None:
        with self._lock:
            self._started_s.pop(task, None)
            if (bar := self._tasks.pop(task, None)) is not None and self._bars is not None:
                self._bars.remove_task(bar)

    def _show(self) -> RichProgress:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(*self._columns(), console=Console(stderr=True), transient=self._is_transient)
        self._bars.start()
        return self._bars


@contextmanager
def byte_progress(session: Session, verb: str, size_bytes: int, *, bar_least_bytes: int = 1) -> Iterator[Advance]:
    """Yield a thread-safe callback for finished bytes, without a bar below `bar_least_bytes`."""
    progress = session.progress
    if progress.sends_events:
        progress.expect(size_bytes)
        yield progress.advance
    elif size_bytes and progress.mode == "plain" and not session.is_quiet:
        yield byte_lines(session.say, verb, size_bytes)
    elif size_bytes >= bar_least_bytes and progress.has_bars and not session.is_quiet:
        with Bars(_byte_columns, patience_s=0, is_transient=True) as bars:
            bars.report(verb, 0, size_bytes)
            yield _summed(lambda done: bars.report(verb, done, size_bytes))
    else:
        yield lambda done_bytes: None


def byte_lines(say: Callable[[str], None], verb: str, size_bytes: int, clock: Clock = time.monotonic) -> Advance:
    lines, started_s = Lines(say, clock), clock()

    def line(done: int) -> str:
        rate = done / (clock() - started_s)
        time_left = f", {round((size_bytes - done) / rate)} s left" if rate else ""
        return f"{verb} {format_bytes(done)} of {format_bytes(size_bytes)}, {format_bytes(round(rate))}/s{time_left}"

    return _summed(lambda done: lines.report(lambda: line(done)))


def _summed(report: Callable[[int], None]) -> Advance:
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
def copy_progress(session: Session, manager: LogManager | None) -> Iterator[None]:
    with copy_progress_of(session) as report:
        if report is not None and manager is not None:
            for held in manager.partitions.all():
                held.on_copied = functools.partial(report, held.name)
        yield


@contextmanager
def copy_progress_of(session: Session) -> Iterator[OnCopy | None]:
    """Yield a callback for copies, with a bar for each on a terminal; None if no report is wanted."""
    progress = session.progress
    if progress.sends_events:
        yield lambda name, base_offset, done, size_bytes: progress.track((name, base_offset), done, size_bytes)
    elif progress.has_bars and not session.is_quiet:
        with Bars(_copy_columns) as bars:

            def report(name: TopicPartition, base_offset: int, done: int, size_bytes: int) -> None:
                task = f"{name} from {base_offset}"
                if done >= size_bytes:
                    bars.end(task)
                else:
                    bars.report(task, done, size_bytes)

            yield report
    elif progress.mode == "plain" and not session.is_quiet:
        lines = Lines(session.say)
        yield lambda name, base_offset, done, size_bytes: lines.report(
            lambda: f"copying {name} from {base_offset}: {format_bytes(done)} of {format_bytes(size_bytes)}"
        )
    else:
        yield None


def _copy_columns() -> Sequence[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    return TextColumn("copying {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()


@contextmanager
def load_progress(session: Session) -> Iterator[OnProgress]:
    """Yield a callback for the loading of logs, which under ``json`` is a step to wait for."""
    progress = session.progress
    if progress.sends_events:
        yield lambda loaded: progress.wait_for(_loading(loaded))
        progress.wait_for(None)
    elif session.is_quiet or progress.mode == "none":
        yield lambda loaded: None
    elif progress.has_bars:
        with Bars(_load_columns) as bars:
            yield lambda loaded: bars.report(
                loaded.directory, loaded.done, loaded.total, segments=loaded.recovered_segments
            )
    else:
        lines = Lines(session.say)
        yield lambda loaded: lines.report(lambda: _loading(loaded))


def _loading(loaded: LoadProgress) -> str:
    logs = f"{loaded.done} of {loaded.total} logs"
    return f"loading {loaded.directory}: {logs}, {loaded.recovered_segments} segments recovered"


def _load_columns() -> Sequence[ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    segments = TextColumn("logs, {task.fields[segments]} segments recovered")
    return TextColumn("loading {task.description}"), BarColumn(), MofNCompleteColumn(), segments, TimeElapsedColumn()
