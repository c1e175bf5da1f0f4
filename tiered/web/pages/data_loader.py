"""Load page data in threads: a reader waits at most DEADLINE_S, however long the manager blocks.

Concurrent requests for the same data share one load. A load that misses the deadline continues, and its result serves
later requests. Until then requests get the last result, however old, or `Unavailable`. At most THREADS_MAX loads run
at a time: a load that hangs for ever costs a thread, not the page.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from local.errors import Unavailable

DEADLINE_S = 3.0
THREADS_MAX = 6
RESULTS_MAX = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A result of a load that started at `at_ms`. `late_since_ms`: start of a newer load that has not ended.

    `read_ms` is when the tiers were read, None for `at_ms`.
    """

    value: T
    at_ms: int
    late_since_ms: int | None = None
    read_ms: int | None = None

    @property
    def data_ms(self) -> int:
        """The time of the data."""
        return self.at_ms if self.read_ms is None else min(self.at_ms, self.read_ms)


class PageDeadline:
    """The total wait of one reader over all loads of a page."""

    def __init__(self, deadline_s: float, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self._elapsed_s = elapsed_s
        self._until_s = elapsed_s() + deadline_s

    def remaining_s(self) -> float:
        return max(0.0, self._until_s - self._elapsed_s())


class DataLoader:
    """Loads data by key. Thread safe."""

    def __init__(self, now_ms: Callable[[], int], *, deadline_s: float = DEADLINE_S) -> None:
        self._now_ms, self._deadline_s = now_ms, deadline_s
        self._lock = threading.Lock()
        self._found: OrderedDict[str, Loaded[object]] = OrderedDict()
        self._running: dict[str, _Load] = {}

    def deadline(self) -> PageDeadline:
        """Return a full deadline, shared by the consecutive loads of one page."""
        return PageDeadline(self._deadline_s)

    def get(
        self, key: str, make: Callable[[], T], *, keep_ms: int = 0, deadline: PageDeadline | None = None
    ) -> Loaded[T]:
        """Return the result of `make`, or its result under this key that is less than `keep_ms` old.

        With `keep_ms` 0 a result serves only the requests that waited for it. Waits for its own deadline, or for the
        rest of
        `deadline`. Raises the exceptions of `make`, and Unavailable if there is no result by the deadline and no
        earlier one.
        """
        now = self._now_ms()
        with self._lock:
            known = cast("Loaded[T] | None", self._found.get(key))
            if known is not None and 0 <= now - known.at_ms < keep_ms:
                return known
            load = self._running.get(key) or self._begin(key, make, now)
        wait_s = self._deadline_s if deadline is None else deadline.remaining_s()
        if load is not None and load.done.wait(wait_s):
            if load.error is not None:
                raise load.error
            return Loaded(cast(T, load.value), load.since_ms)
        since = load.since_ms if load is not None else now
        if known is not None:
            return Loaded(known.value, known.at_ms, since)
        why = (
            "too many other requests are in progress"
            if load is None
            else "the disk does not reply, or this machine is busy"
        )
        raise Unavailable(f"the logs are not read yet, the read continues: {why}", waited_ms=self._now_ms() - since)

    def _begin(self, key: str, make: Callable[[], object], now_ms: int) -> _Load | None:
        if len(self._running) >= THREADS_MAX:
            return None
        load = _Load(now_ms)
        try:
            threading.Thread(target=self._run, args=(key, load, make), name=f"tiered-page {key}", daemon=True).start()
        except RuntimeError:
            return None  # no thread can start now; the next request tries again
        self._running[key] = load  # under the lock, which the load needs to end
        return load

    def _run(self, key: str, load: _Load, make: Callable[[], object]) -> None:
        try:
            load.value = make()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            load.error = error
        with self._lock:
            del self._running[key]
            if load.error is None:
                self._found[key] = Loaded(load.value, load.since_ms)
                self._found.move_to_end(key)
                while len(self._found) > RESULTS_MAX:
                    self._found.popitem(last=False)
        load.done.set()


class _Load:
    """A running load."""

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.done = threading.Event()
        self.value: object = None
        self.error: Exception | None = None
