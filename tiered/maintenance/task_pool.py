"""Bounded threads for work that waits for the store: one task per partition at a time, in turns.

A task (``work(key)``) does a slice of the due work of its key and returns whether there is more. A key with more work
is queued again at the end, so a long backlog does not starve other keys.

| state of a key | submitted | its turn | slice over, more | slice over | stopping |
|---|---|---|---|---|---|
| idle | queued | | | | idle |
| queued | queued | running | | | idle |
| running | again | | queued | idle | running |
| again (running, and submitted once more) | again | | queued | queued | running |

Two tasks for one key are impossible: only *queued* gets a turn, and a running key is not queued. After `stop` no turn
starts. A running task gets the stop through its own `should_stop`, and is not waited for after a deadline.

Threads are daemons, started for work and ended without work. A thread that hangs in the store does not block the end of
the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class State(Enum):
    """The state of a key that is not idle."""

    QUEUED = "queued"
    RUNNING = "running"
    RERUN = "again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load: keys waiting and running; seconds that the oldest of each has waited or run."""

    threads: int
    queued: int
    running: int
    oldest_wait_s: float
    oldest_turn_s: float

    @property
    def idle_share(self) -> float:
        """The share of unused turns, 0..1."""
        return max(0.0, 1 - self.running / self.threads)


class TaskPool(Generic[K]):
    """A pool of task threads. Thread safe.

    `work` handles its own errors; an escaped one ends the slice and is logged.
    """

    def __init__(
        self,
        threads: int,
        work: Callable[[K], bool],
        *,
        name: str = "remote-log-copier",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.threads = threads
        self._work = work
        self._name = name
        self._clock = clock
        self._changed = threading.Condition()
        self._states: dict[K, State] = {}
        self._turns: dict[K, float] = {}  # start of the turn of each running key
        self._queue: deque[tuple[K, float]] = deque()  # and start of its wait
        self._running = 0
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def states(self) -> dict[K, State]:
        """The state of every key that is not idle."""
        with self._changed:
            return dict(self._states)

    @property
    def load(self) -> Load:
        """The load at this moment."""
        with self._changed:
            now_s = self._clock()
            return Load(
                threads=self.threads,
                queued=len(self._queue),
                running=len(self._turns),
                oldest_wait_s=now_s - self._queue[0][1] if self._queue else 0.0,
                oldest_turn_s=now_s - min(self._turns.values(), default=now_s),
            )

    def submit(self, key: K) -> bool:
        """Queue `key`; False if it is queued already, or the pool is stopping."""
        with self._changed:
            if self._is_stopping:
                return False
            if self._states.get(key) in (State.QUEUED, State.RERUN):
                self._hire()  # in case the last attempt got no thread
                return False
            if key in self._states:
                self._states[key] = State.RERUN
                return True
            self._enqueue(key)
            self._hire()
            return True

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until every key is idle; False if the timeout ends first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._states, timeout_s)

    def stop(self, deadline_s: float) -> bool:
        """Start nothing more and wait at most `deadline_s` for running tasks; whether all have ended."""
        with self._changed:
            self._is_stopping = True
            for key, _ in self._queue:
                del self._states[key]
            self._queue.clear()
            self._changed.notify_all()
        return self.wait_idle(deadline_s)

    def _hire(self) -> None:
        """Start one more thread if there is room and a key waits.

        If the process cannot start one, the existing threads take the turns, and the next `submit` tries again.
        """
        if not self._queue or self._running >= self.threads:
            return
        name = f"{self._name}-{self._running + 1}"
        try:
            threading.Thread(target=self._take_turns, name=name, daemon=True).start()
        except RuntimeError as error:
            _log.warning(
                "cannot start a thread for waiting tasks: waiting=%d running=%d cause=%s",
                len(self._queue),
                self._running,
                error,
            )
        else:
            self._running += 1

    def _enqueue(self, key: K) -> None:
        self._states[key] = State.QUEUED
        self._queue.append((key, self._clock()))

    def _take_turns(self) -> None:
        is_out_of_work = False
        try:
            while not (is_out_of_work := (turn := self._next_turn()) is None):
                assert turn is not None
                self._take_turn(turn[0])
        finally:
            if not is_out_of_work:
                with self._changed:
                    self._running -= 1

    def _take_turn(self, key: K) -> None:
        has_more = False
        try:
            has_more = self._work(key)
        except Exception:  # noqa: BLE001 - whatever it is, the others have their turns
            _log.exception("a task failed: key=%s", key)
        finally:
            self._end_turn(key, has_more)

    def _next_turn(self) -> tuple[K] | None:
        with self._changed:
            if not self._queue:
                self._running -= 1
                return None
            key, _ = self._queue.popleft()
            self._states[key], self._turns[key] = State.RUNNING, self._clock()
            return (key,)

    def _end_turn(self, key: K, has_more: bool) -> None:
        with self._changed:
            is_due = has_more or self._states[key] is State.RERUN
            del self._states[key], self._turns[key]
            if is_due and not self._is_stopping:
                self._enqueue(key)
            self._changed.notify_all()
