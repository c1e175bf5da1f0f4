"""Time and show the demo's steps, and record them for the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Tell = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The amount of data that one step handled, and its time."""

    name: str
    seconds: float
    records: int | None = None
    size_bytes: int | None = None
    note: str = ""


@dataclass(slots=True)
class Measured:
    """The figures of a running step, filled in by the step."""

    records: int | None = None
    size_bytes: int | None = None
    note: str = ""
    total: int | None = None
    tell: Callable[[float], None] = field(default=lambda share: None)

    def progress(self, done: int) -> None:
        """Report the progress of the step, in records of `total`."""
        self.records = done
        if self.total:
            self.tell(min(1.0, done / self.total))


class Steps:
    """Runs steps in order and calls `tell(name, share done)` during each."""

    def __init__(self, tell: Tell) -> None:
        self.results: list[StepResult] = []
        self._tell = tell

    @contextmanager
    def step(self, name: str, *, total: int | None = None) -> Iterator[Measured]:
        """Run and time one step. A failed step is not recorded."""
        measured = Measured(total=total, tell=lambda share: self._tell(name, share))
        self._tell(name, 0.0)
        start = time.perf_counter()
        yield measured
        seconds = time.perf_counter() - start
        self._tell(name, 1.0)
        self.results.append(
            StepResult(
                name=name,
                seconds=seconds,
                records=measured.records,
                size_bytes=measured.size_bytes,
                note=measured.note,
            )
        )
