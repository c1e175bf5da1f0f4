"""How far long work over known bytes is: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tiered.units import format_bytes

if TYPE_CHECKING:
    from tiered.cli.session import Session

_LINE_EVERY_S = 10.0


@contextmanager
def byte_progress(session: Session, verb: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Something to be told of bytes as they are done, on stderr. `verb` as in "scrubbed 3 of 5 GiB"."""
    if session.is_quiet or size_bytes == 0:
        yield lambda done_bytes: None
        return
    if not sys.stderr.isatty():
        yield _Lines(session, verb, size_bytes).tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=size_bytes)
        yield lambda done_bytes: progress.advance(task, done_bytes)


class _Lines:
    def __init__(self, session: Session, verb: str, size_bytes: int) -> None:
        self._session, self._verb, self._size_bytes = session, verb, size_bytes
        self._done = 0
        self._due_s = time.monotonic() + _LINE_EVERY_S

    def tell(self, done_bytes: int) -> None:
        self._done += done_bytes
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _LINE_EVERY_S
            self._session.say(f"{self._verb} {format_bytes(self._done)} of {format_bytes(self._size_bytes)}")
