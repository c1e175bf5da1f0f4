"""``--progress``: how a long command reports its progress on stderr. One option, one implementation.

| mode | on stderr |
|---|---|
| auto | a bar on a terminal, else only messages |
| plain | a line every ten seconds, on a terminal too |
| json | one object a line, as in ``docs/reference/schemas/progress.json``: events, and all messages as events |
| none | only messages |

Under ``json`` every write to ``sys.stderr``, log lines included, becomes an event of kind ``message``. The error that
ends a command is no event: it is the last line, as in the other modes. A meter only counts up, and its last event is
always written.
"""

from __future__ import annotations

import functools
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, ParamSpec, TextIO, TypeVar

import click

if TYPE_CHECKING:
    from tiered.cli.session import Session

WAYS = ("auto", "plain", "json", "none")
EVENT_EVERY_S = 0.25  # at most four events a second, plus messages and the last one

Clock = Callable[[], float]
P = ParamSpec("P")
R = TypeVar("R")


class Meter:
    """Counts the finished and the expected work of one command, as events to `write`. Thread safe."""

    def __init__(self, operation: str, write: Callable[[str], object], clock: Clock = time.monotonic) -> None:
        self._operation, self._write, self._clock = operation, write, clock
        self._lock = threading.RLock()  # writing may warn, and a warning is a message
        self._begun_s = clock()
        self._due_s = self._begun_s
        self._done, self._total, self._unit = 0, 0, "bytes"
        self._waits_for: str | None = None

    def expect(self, count: int, unit: str = "bytes") -> None:
        """Add to the expected work."""
        with self._lock:
            self._total += count
            self._unit = unit
            self._print_progress()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._total = max(self._total, self._done)  # the expectation may be too low
            self._print_progress()

    def reach(self, done: int) -> None:
        """Set the finished work; a lower value than before has no effect."""
        with self._lock:
            self.advance(max(0, done - self._done))

    def wait_for(self, what: str | None) -> None:
        """Name the step that the work waits for; None when the work continues."""
        with self._lock:
            self._waits_for = what
            self._print_progress()

    def say(self, text: str) -> None:
        """Write a message as an event, without delay."""
        with self._lock:
            self._event("message", message=text)

    def end(self) -> None:
        """Write the last event, whatever the outcome."""
        with self._lock:
            self._waits_for = None
            self._event("progress", is_last=True)

    def _print_progress(self) -> None:
        if (now := self._clock()) >= self._due_s:
            self._due_s = now + EVENT_EVERY_S
            self._event("progress")

    def _event(
        self, kind: Literal["progress", "message"], *, is_last: bool = False, message: str | None = None
    ) -> None:
        import json

        import msgspec

        from tiered.cli.progress_event import ProgressEvent

        rate = self._done / took if (took := self._clock() - self._begun_s) > 0 else 0.0
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


class Progress:
    """The progress of one invocation: the requested mode, and under ``json`` the meter."""

    def __init__(self) -> None:
        self.way = "auto"
        self.meter: Meter | None = None

    def expect(self, count: int, unit: str) -> None:
        """Add to the expected work, if events are wanted."""
        if self.meter is not None:
            self.meter.expect(count, unit)

    def advance(self, count: int = 1) -> None:
        if self.meter is not None:
            self.meter.advance(count)

    def reach(self, done: int) -> None:
        """Set the finished work, for callers that count totals."""
        if self.meter is not None:
            self.meter.reach(done)

    def count(self, unit: str) -> Callable[[int, int], None]:
        """Return a callback for (done, total), starting at zero."""

        def report(done: int, everything: int) -> None:
            if self.meter is not None:
                self.meter.expect(everything if not done else 0, unit)
                self.meter.reach(done)

        return report

    def wait_for(self, what: str | None) -> None:
        if self.meter is not None:
            self.meter.wait_for(what)

    @property
    def has_bars(self) -> bool:
        return self.way == "auto" and sys.stderr.isatty()

    @contextmanager
    def told(self, way: str, operation: str) -> Iterator[None]:
        """Use this mode inside the block; ``json`` holds `sys.stderr` for events until the last one is written."""
        if self.meter is not None:  # a command inside another, `run` in `apply --auto`, uses the outer mode
            yield
            return
        self.way = way
        if way != "json":
            yield
            return
        stderr = sys.stderr
        self.meter = Meter(operation, functools.partial(_line, stderr))
        sys.stderr = words = _Words(self.meter, stderr)
        try:
            yield
        finally:
            words.flush()
            sys.stderr = stderr
            self.meter.end()
            self.meter = None


def progress_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add ``--progress`` to a command whose object is a Session."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        context = click.get_current_context()
        session: Session = context.obj
        way = str(kwargs.pop("progress"))
        with session.progress.told(way, context.command_path.partition(" ")[2]):
            return command(*args, **kwargs)

    return click.option(
        "--progress",
        type=click.Choice(WAYS),
        default="auto",
        show_default=True,
        help="Choose the progress display: a bar on a terminal; lines; JSON events; or none.",
    )(told)


def _readable(text: str | None) -> str | None:
    """Return a path as valid Unicode: paths may not be UTF-8, JSON must be."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _line(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


class _Words(io.TextIOBase):
    """A replacement of stderr that turns lines into messages; a flush ends a partial line, such as a question."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, meter: Meter, stream: TextIO) -> None:
        self._meter, self._stream, self._rest = meter, stream, ""

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            self._meter.say(line)
        return len(text)

    def flush(self) -> None:
        rest, self._rest = self._rest, ""
        if rest.strip():
            self._meter.say(rest)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()
