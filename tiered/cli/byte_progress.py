"""Progress of long work over a known number of bytes, as ``--progress`` asks: bar, lines, events or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tiered.config.units import format_bytes

if TYPE_CHECKING:
    from tiered.cli.session import Session

_LINE_EVERY_S = 10.0


@contextmanager
def byte_progress(
    session: Session, verb: str, size_bytes: int, *, bar_least_bytes: int = 1
) -> Iterator[Callable[[int], None]]:
    """Return a callback for finished bytes, callable from any thread. `verb` as in "scrubbed 3 of 5 GiB".

    Work of less than `bar_least_bytes` shows no bar.
    """
    progress = session.progress
    if progress.meter is not None:
        progress.meter.expect(size_bytes)
        yield progress.meter.advance
    elif size_bytes and progress.way == "plain" and not session.is_quiet:
        yield _Lines(session, verb, size_bytes).tell
    elif size_bytes >= bar_least_bytes and progress.has_bars and not session.is_quiet:
        with _bar(verb, size_bytes) as advance:
            yield advance
    else:
        yield lambda done_bytes: None


@contextmanager
def _bar(verb: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=size_bytes)
        yield lambda done_bytes: progress.advance(task, done_bytes)


class _Lines:
    def __init__(
        self, session: Session, verb: str, size_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session, self._verb, self._size_bytes, self._clock = session, verb, size_bytes, clock
        self._lock = threading.Lock()
        self._done = 0
        self._begun_s = clock()
        self._due_s = self._begun_s + _LINE_EVERY_S

    def tell(self, done_bytes: int) -> None:
        with self._lock:
            self._done += done_bytes
            now = self._clock()
            if now < self._due_s:
                return
            self._due_s = now + _LINE_EVERY_S
            rate = self._done / (now - self._begun_s)
        left = f", {round((self._size_bytes - self._done) / rate)} s left" if rate else ""
        told = f"{format_bytes(self._done)} of {format_bytes(self._size_bytes)}, {format_bytes(round(rate))}/s{left}"
        self._session.say(f"{self._verb} {told}")
