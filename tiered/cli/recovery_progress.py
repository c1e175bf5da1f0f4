"""Progress of loading many logs, on stderr; a quick load shows nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tiered.cli.progress import Meter
    from tiered.partition.log_loading import LoadProgress, OnProgress

PATIENCE_S = 1.0
LINE_EVERY_S = 10.0


@contextmanager
def recovery_progress(
    say: Callable[[str], None], *, is_quiet: bool = False, is_plain: bool = False, meter: Meter | None = None
) -> Iterator[OnProgress]:
    """Show a bar for each directory on a terminal, elsewhere a line to `say` every ten seconds.

    Nothing is shown in the first ten seconds. `is_plain`: lines on a terminal, too. A `meter` names loading as the step
    that the command waits for.
    """
    if meter is not None:
        yield lambda told: meter.wait_for(in_words(told))
        meter.wait_for(None)
    elif is_quiet:
        yield lambda told: None
    elif sys.stderr.isatty() and not is_plain:
        with _Bars() as bars:
            yield bars.tell
    else:
        yield _Lines(say).tell


class _Lines:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._due_s = time.monotonic() + LINE_EVERY_S

    def tell(self, told: LoadProgress) -> None:
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + LINE_EVERY_S
            self._say(in_words(told))


class _Bars:
    """Bars that appear late, so that a quick start shows none."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + PATIENCE_S
        self._known: dict[str, LoadProgress] = {}
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._open = ExitStack()

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *rest: object) -> None:
        self._open.close()

    def tell(self, told: LoadProgress) -> None:
        self._known[told.directory] = told
        if self._bars is None and time.monotonic() >= self._due_s:
            self._show()
        if self._bars is not None:
            self._bars.update(self._tasks[told.directory], completed=told.done, segments=told.recovered_segments)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("loading {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("logs, {task.fields[segments]} segments recovered"),
            TimeElapsedColumn(),
        )
        self._bars = self._open.enter_context(Progress(*columns, console=Console(stderr=True)))
        for root, told in self._known.items():
            self._tasks[root] = self._bars.add_task(root, total=told.total, segments=told.recovered_segments)


def in_words(told: LoadProgress) -> str:
    return f"loading {told.directory}: {told.done} of {told.total} logs, {told.recovered_segments} segments recovered"
