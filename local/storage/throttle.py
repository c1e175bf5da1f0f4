"""A limit in bytes per second, shared by several threads: a token bucket that may run into debt.

A thread takes tokens for the bytes it has moved, and sleeps until the debt of all threads up to then is paid. The total
is at most: rate times interval, plus one bucket (`BURST_SECONDS` of the rate), plus the last take of each thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST_SECONDS = 0.3


class Throttle:
    """`rate` is in bytes per second, None for no limit. Thread safe. `clock` and `sleep` are in seconds."""

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._tokens = 0.0 if rate is None else rate * BURST_SECONDS
        self._filled_at = clock()

    def take(self, size_bytes: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Account for bytes already moved. Return once they are paid for, or soon after `should_stop` is true."""
        if self._rate is None:
            return
        due = self._due(size_bytes, self._rate)
        while (wait := due - self._clock()) > 0 and not should_stop():
            self._sleep(min(wait, BURST_SECONDS))

    def count(self, size_bytes: int) -> None:
        """Account for `size_bytes` moved without waiting: the next `take` pays for them."""
        if self._rate is not None:
            self._due(size_bytes, self._rate)

    def _due(self, size_bytes: int, rate: float) -> float:
        with self._lock:
            now = self._clock()
            filled = self._tokens + (now - self._filled_at) * rate
            self._tokens = min(filled, rate * BURST_SECONDS) - size_bytes
            self._filled_at = now
            return now - min(0.0, self._tokens) / rate
