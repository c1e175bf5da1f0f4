"""Timing and telling: each step of the demo is shown while it runs and remembered for the table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Tell = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step handled, and how long it took."""

    name: str
    seconds: float
    records: int | None = None
    size_bytes: int | None = None
    note: str = ""


@dataclass(slots=True)
class Measured:
    """Filled in by the step while it runs."""

    records: int | None = None
    size_bytes: int | None = None
    note: str = ""
    total: int | None = None
    tell: Callable[[float], None] = field(default=lambda share: None)

    def progress(self, done: int) -> None:
        """How far the step is, in records of `total`."""
        self.records = done
        if self.total:
            self.tell(min(1.0, done / self.total))


class Steps:
    """Runs steps in order; `tell(name, share done)` is called as they go."""

    def __init__(self, tell: Tell) -> None:
        self.results: list[StepResult] = []
        self._tell = tell

    @contextmanager
    def step(self, name: str, *, total: int | None = None) -> Iterator[Measured]:
        """One step, timed. It counts only if it ends well."""
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
