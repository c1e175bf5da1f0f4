"""Threads for what waits for the store: one task a partition at a time, at most so many at once, in turns.

A task (``work(key)``) does a slice of what is due for its key and says whether there is more; more goes to the end of
the queue, behind everybody who waits, so a long backlog keeps nobody else from his turn.

| state of a key | submitted | its turn | slice over, more | slice over | stopping |
|---|---|---|---|---|---|
| idle | queued | | | | idle |
| queued | queued | running | | | idle |
| running | again | | queued | idle | running |
| again (running, and asked for once more) | again | | queued | queued | running |

Two tasks for one key are impossible: only *queued* has a turn, and a running key is not queued. After `stop` no turn
begins; what is running is told by its own `should_stop` and has a deadline, after which nobody waits for it any more.

Threads are daemons, made when there is work and gone when there is none: one that hangs in the store keeps no process
from ending.
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
    """Of a key that is not idle."""

    QUEUED = "queued"
    RUNNING = "running"
    AGAIN = "again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy they are: keys that wait for a turn, and that have one; for how long the first of each has, in s."""

    threads: int
    queued: int
    running: int
    oldest_wait_s: float
    oldest_turn_s: float

    @property
    def idle_share(self) -> float:
        """Of the turns that there may be at once those that nobody has, 0..1."""
        return max(0.0, 1 - self.running / self.threads)


class Copiers(Generic[K]):
    """See the module text. Thread safe. `work` handles its own errors; one that escapes is logged, and ends a slice."""

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
        self._turns: dict[K, float] = {}  # since when each running key has its turn
        self._queue: deque[tuple[K, float]] = deque()  # and since when each waits
        self._running = 0
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def states(self) -> dict[K, State]:
        """Of every key that is not idle."""
        with self._changed:
            return dict(self._states)

    @property
    def load(self) -> Load:
        """How busy they are at this moment."""
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
        """Give `key` a turn; False when it has one coming already, or nothing is begun any more."""
        with self._changed:
            if self._is_stopping:
                return False
            if self._states.get(key) in (State.QUEUED, State.AGAIN):
                self._hire()  # where there was no thread to be had the last time
                return False
            if key in self._states:
                self._states[key] = State.AGAIN
                return True
            self._enqueue(key)
            self._hire()
            return True

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Until every key is idle; False when the time is over before."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._states, timeout_s)

    def stop(self, deadline_s: float) -> bool:
        """Begin nothing any more, and wait for what is running, so long at most; whether all of it has ended."""
        with self._changed:
            self._is_stopping = True
            for key, _ in self._queue:
                del self._states[key]
            self._queue.clear()
            self._changed.notify_all()
        return self.wait_idle(deadline_s)

    def _hire(self) -> None:
        """One thread more, where there is room and somebody waits. Where the process can have none, those that are
        there take the turns, and whoever submits next asks for one again."""
        if not self._queue or self._running >= self.threads:
            return
        name = f"{self._name}-{self._running + 1}"
        try:
            threading.Thread(target=self._take_turns, name=name, daemon=True).start()
        except RuntimeError as error:
            _log.warning(
                "no thread for what waits: waiting=%d running=%d cause=%s", len(self._queue), self._running, error
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
            _log.exception("a task broke off: key=%s", key)
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
            is_due = has_more or self._states[key] is State.AGAIN
            del self._states[key], self._turns[key]
            if is_due and not self._is_stopping:
                self._enqueue(key)
            self._changed.notify_all()
