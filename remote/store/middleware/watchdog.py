"""No call to a store waits for ever: each runs in a thread of its own, and whoever asked is let go at its deadline.

Clients have timeouts, and yet hang: in a DNS look-up, in a lock of a library, in a mounted file system that went away.
What has not returned by its deadline is **abandoned**: the caller gets `Unavailable`, the thread stays with the call.
Abandoned calls are counted, and beyond `abandoned_max` of them none is begun any more, so a store that hangs for good
costs a bounded number of threads. One that returns after all gives its thread back. The threads are daemons: they do
not keep the process from ending.

**An abandoned call may still take effect, at any later time.** That is what every answer that was lost may do as well,
and it is settled the same way: a create is recognised by the commit id inside, everything else goes under names that
are used once and always gets the same bytes (`remote.segments.segment_upload_stream`), deleting twice is deleting. An
upload that was abandoned is given no further part.

What a caller pays for it is two changes of threads, some 50 microseconds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from local.errors import Unavailable, forget_locals

log = logging.getLogger(__name__)
T = TypeVar("T")

ABANDONED_MAX = 64  # threads that hang calls may hold; each has its stack, and what it was sending
IDLE_MAX = 16  # threads that are kept for the next call


class Pulse:
    """The time a call may take: until `limit_s` after its last sign of life. Thread safe.

    The first beat is its beginning. While it is paused (the caller's own work is being done) no time counts.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._last: float | None = clock()

    def beat(self) -> None:
        self._last = self._clock()

    def pause(self) -> None:
        self._last = None

    def left_s(self) -> float:
        """Not above 0 when it is over."""
        last = self._last
        return self._limit_s if last is None else last + self._limit_s - self._clock()


class Watchdog:
    """Thread safe; one for a store. Works in a forked child, which has none of its parent's threads."""

    def __init__(self, *, abandoned_max: int = ABANDONED_MAX) -> None:
        self._abandoned_max = abandoned_max
        self._begin()

    @property
    def abandoned(self) -> int:
        """How many calls hang at this moment that nobody waits for any more."""
        return self._abandoned

    def run(self, call: Callable[[], T], limit: float | Pulse, attempt: str, **facts: object) -> T:
        """What `call` gives or raises. Raises Unavailable, told as `attempt` with `facts`, when its time is over."""
        if self._pid != os.getpid():
            self._begin()
        pulse = limit if isinstance(limit, Pulse) else Pulse(limit)
        job = _Job(call)
        with self._lock:
            if self._abandoned >= self._abandoned_max:
                raise Unavailable(f"{attempt}, too many calls to the store hang", **facts, hanging=self._abandoned)
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker(self._returned)
            worker.start()
        worker.jobs.put(job)
        try:
            while not job.is_done.wait(max(0.0, pulse.left_s())) and pulse.left_s() > 0:
                pass
        finally:
            is_abandoned = self._abandon(job)
        if is_abandoned:
            log.warning("a call to the store hangs and is left to itself: %s abandoned=%d", attempt, self._abandoned)
            raise Unavailable(f"{attempt}, no answer by the deadline", **facts)
        return job.outcome()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._abandoned = 0
        self._pid = os.getpid()

    def _abandon(self, job: _Job[T]) -> bool:
        with self._lock:
            if not job.is_done.is_set():
                job.is_abandoned = True
                self._abandoned += 1
            return job.is_abandoned

    def _returned(self, worker: _Worker, job: _Job[Any]) -> bool:
        """The worker's call is over; whether the worker is kept."""
        with self._lock:
            job.is_done.set()
            self._abandoned -= job.is_abandoned
            is_kept = len(self._idle) < IDLE_MAX
            if is_kept:
                self._idle.append(worker)
            return is_kept


class _Job(Generic[T]):
    """A call, and what came of it."""

    __slots__ = ("_call", "_error", "_value", "is_abandoned", "is_done")

    def __init__(self, call: Callable[[], T]) -> None:
        self.is_done = threading.Event()
        self.is_abandoned = False
        self._call: Callable[[], T] | None = call
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._call is not None, "run once"
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001  # it is the caller's
            forget_locals(error)
            self._error = error
        self._call = None

    def outcome(self) -> T:
        """Once: an error that was raised here and is kept here would keep itself."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._value  # type: ignore[return-value]


class _Worker(threading.Thread):
    def __init__(self, returned: Callable[[_Worker, _Job[Any]], bool]) -> None:
        super().__init__(name="tiered-store-call", daemon=True)
        self.jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._returned = returned

    def run(self) -> None:
        is_kept = True
        while is_kept:
            job = self.jobs.get()
            job.run()
            is_kept = self._returned(self, job)
            del job
