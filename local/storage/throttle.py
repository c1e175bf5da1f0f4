"""A limit in bytes per second that several threads share: a token bucket that may run into debt.

Whoever moved bytes takes them from the bucket and sleeps until the debt, its own and everybody's before it, is paid
back. So over any time the total is at most the rate times that time, plus one bucket, plus what each thread took last.
The bucket holds what `BURST_SECONDS` allow: after a rest nobody may make up for all of it at once. Kafka's `Throttler`
measures windows of 300 ms instead and forgets the excess of a window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST_SECONDS = 0.3


class Throttle:
    """`rate` in bytes per second, None for no limit. Thread safe. `clock` and `sleep` are in seconds."""

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
        """`size_bytes` were moved: return when that is paid for, or soon after `should_stop` says so."""
        if self._rate is None:
            return
        due = self._due(size_bytes, self._rate)
        while (left := due - self._clock()) > 0 and not should_stop():
            self._sleep(min(left, BURST_SECONDS))

    def count(self, size_bytes: int) -> None:
        """`size_bytes` are moved out of turn: whoever takes next pays for them."""
        if self._rate is not None:
            self._due(size_bytes, self._rate)

    def _due(self, size_bytes: int, rate: float) -> float:
        """Take the tokens; when the debt will be paid back."""
        with self._lock:
            now = self._clock()
            filled = self._tokens + (now - self._filled_at) * rate
            self._tokens = min(filled, rate * BURST_SECONDS) - size_bytes
            self._filled_at = now
            return now - min(0.0, self._tokens) / rate
