"""Progress of segment copies on stderr; quick copies show nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tiered.cli.session import Session
from tiered.config.units import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from local.names import TopicPartition
    from tiered.cli.progress import Meter
    from tiered.manager.manager import LogManager

PATIENCE_S = 1.0
LINE_EVERY_S = 10.0
Tell = Callable[["TopicPartition", int, int, int], None]  # partition, base offset, bytes done, bytes in total


@contextmanager
def copy_progress(session: Session, manager: LogManager) -> Iterator[None]:
    """As `copy_progress_of`, for all partitions of a manager."""
    with copy_progress_of(session) as tell:
        if tell is not None:
            for held in manager.partitions():
                held.on_copied = _of(tell, held.name)
        yield


@contextmanager
def copy_progress_of(session: Session) -> Iterator[Tell | None]:
    """Report copies as ``--progress`` asks: a bar for each on a terminal, a line every ten seconds, events, or nothing.

    Quick copies show nothing. Returns None if no report is wanted.
    """
    progress = session.progress
    if progress.meter is not None:
        yield _Events(progress.meter).tell
    elif progress.has_bars and not session.is_quiet:
        with _Bars() as bars:
            yield bars.tell
    elif progress.way == "plain" and not session.is_quiet:
        yield _Lines(session).tell
    else:
        yield None


def _of(tell: Tell, name: TopicPartition) -> Callable[[int, int, int], None]:
    return lambda base_offset, done, size_bytes: tell(name, base_offset, done, size_bytes)


class _Events:
    """Events of copies: a copy adds to the expected total at its first report.

    Maintenance decides how many copies will come. A restarted copy counts up from its earlier progress.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._told: dict[tuple[str, int], int] = {}

    def tell(self, name: TopicPartition, base_offset: int, done: int, size_bytes: int) -> None:
        copy = (str(name), base_offset)
        with self._lock:
            if copy not in self._told:
                self._told[copy] = 0
                self._meter.expect(size_bytes)
            more = min(done, size_bytes) - self._told[copy]
            if more > 0:
                self._told[copy] += more
                self._meter.advance(more)


class _Lines:
    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._due_s = clock() + LINE_EVERY_S

    def tell(self, name: TopicPartition, base_offset: int, done: int, size_bytes: int) -> None:
        if self._clock() >= self._due_s:
            self._due_s = self._clock() + LINE_EVERY_S
            self._session.say(in_words(name, base_offset, done, size_bytes))


class _Bars:
    """Bars: one appears when a copy has run for a while, and disappears when the copy ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun_s: dict[tuple[str, int], float] = {}
        self._tasks: dict[tuple[str, int], TaskID] = {}
        self._bars: Progress | None = None
        self._open = ExitStack()

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *rest: object) -> None:
        self._open.close()

    def tell(self, name: TopicPartition, base_offset: int, done: int, size_bytes: int) -> None:
        copy, now = (str(name), base_offset), time.monotonic()
        with self._lock:
            if done >= size_bytes:
                self._end(copy)
            elif now - self._begun_s.setdefault(copy, now) >= PATIENCE_S:
                bars = self._bars or self._show()
                if copy not in self._tasks:
                    self._tasks[copy] = bars.add_task(f"{name} from {base_offset}", total=size_bytes)
                bars.update(self._tasks[copy], completed=done)

    def _end(self, copy: tuple[str, int]) -> None:
        self._begun_s.pop(copy, None)
        task = self._tasks.pop(copy, None)
        if task is not None and self._bars is not None:
            self._bars.remove_task(task)

    def _show(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("copying {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bars = self._open.enter_context(Progress(*columns, console=Console(stderr=True)))
        return self._bars


def in_words(name: TopicPartition, base_offset: int, done: int, size_bytes: int) -> str:
    return f"copying {name} from {base_offset}: {format_bytes(done)} of {format_bytes(size_bytes)}"
