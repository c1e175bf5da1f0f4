"""Deadlines: a store whose operations end in time, even if the client hangs.

| operation | time limit |
|---|---|
| put, put_if_absent, get_range, get_ranges, get_each | `call_s`, plus the time of its bytes at RATE_MIN |
| get, head, list_prefixes, delete, a page of a listing | `call_s` |
| upload | `upload_stall_s` since the store last requested a part, without the time to make parts |

Clients have timeouts and still hang: in a DNS look-up, a library's lock, an unreachable mounted file system. So the
`Watchdog` runs each call in a daemon thread. A call that has not returned by its deadline is **abandoned**: the caller
gets `Unavailable`, and the thread stays with the call until it returns. Beyond `abandoned_max` abandoned calls no new
call starts. Cost per call: two thread switches, about 50 microseconds.

**An abandoned call may still take effect, at any later time.** So may every call with a lost answer:

| call | why a late effect is safe |
|---|---|
| create | the commit id inside identifies it |
| other writes | names are used once and always get the same bytes (`remote.upload.segment_upload_stream`) |
| delete | it may repeat |
| upload | an abandoned upload gets no further part |
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from local.errors import Unavailable, forget_locals
from remote.store.middleware.store_wrapper import StoreWrapper
from remote.store.protocol import LIST_PAGE, Body, ObjectInfo, ObjectStore, UploadSource

T = TypeVar("T")
log = logging.getLogger(__name__)

RATE_MIN = 128 << 10  # bytes per second: a slower transfer counts as a hang
ABANDONED_MAX = 64  # threads that hanging calls may hold; each has its stack and its unsent bytes
IDLE_MAX = 16  # idle threads held for later calls
_ATTEMPTS = {
    "put": "cannot store an object",
    "put_if_absent": "cannot create an object",
    "upload": "cannot upload an object",
    "get": "cannot read an object",
    "get_range": "cannot read a range of an object",
    "get_ranges": "cannot read a range of an object",
    "get_each": "cannot read several objects",
    "head": "cannot read the size of an object",
    "list": "cannot list objects",
    "list_prefixes": "cannot list objects",
    "delete": "cannot delete objects",
}


class ProgressSignal:
    """The time limit of a call: `limit_s` after its last beat; no time counts in a pause. Thread safe."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._last: float | None = clock()

    def beat(self) -> None:
        self._last = self._clock()

    def pause(self) -> None:
        self._last = None

    def left_s(self) -> float:
        last = self._last
        return self._limit_s if last is None else last + self._limit_s - self._clock()


class Watchdog:
    """The watchdog of one store. Thread safe. Works in a forked child, which has no threads."""

    def __init__(self, *, abandoned_max: int = ABANDONED_MAX) -> None:
        self._abandoned_max = abandoned_max
        self._begin()

    def run(self, call: Callable[[], T], limit: float | ProgressSignal, attempt: str, **facts: object) -> T:
        """Return or raise the result of `call`. Raises Unavailable, with `attempt`, after the limit."""
        if self._pid != os.getpid():
            self._begin()
        progress_signal = limit if isinstance(limit, ProgressSignal) else ProgressSignal(limit)
        job = _Job(call)
        with self._lock:
            if self.abandoned >= self._abandoned_max:
                wrong = f"{attempt}, too many calls to the store do not return"
                raise Unavailable(wrong, **facts, hanging=self.abandoned)
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker(self._returned)
            worker.start()
        worker.jobs.put(job)
        try:
            while not job.is_done.wait(max(0.0, progress_signal.left_s())) and progress_signal.left_s() > 0:
                pass
        finally:
            is_abandoned = self._abandon(job)
        if is_abandoned:
            what = "a call to the store does not return and its thread is abandoned: %s abandoned=%d"
            log.warning(what, attempt, self.abandoned)
            raise Unavailable(f"{attempt}, no reply before the deadline", **facts)
        return job.outcome()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self.abandoned = 0  # calls that still hang
        self._pid = os.getpid()

    def _abandon(self, job: _Job[T]) -> bool:
        with self._lock:
            if not job.is_done.is_set():
                job.is_abandoned = True
                self.abandoned += 1
            return job.is_abandoned

    def _returned(self, worker: _Worker, job: _Job[Any]) -> bool:
        with self._lock:
            job.is_done.set()
            self.abandoned -= job.is_abandoned
            is_kept = len(self._idle) < IDLE_MAX
            if is_kept:
                self._idle.append(worker)
            return is_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Time limits in seconds. `call_s` is above the client's own timeouts, so that those fire first."""

    call_s: float = 60.0
    upload_stall_s: float = 300.0
    close_s: float = 10.0

    def of(self, size_bytes: int) -> float:
        return self.call_s + size_bytes / RATE_MIN


class WatchedStore(StoreWrapper):
    def __init__(
        self,
        inner: ObjectStore,
        watchdog: Watchdog | None = None,
        deadlines: Deadlines | None = None,
        *,
        uploads_max: int | None = None,
    ) -> None:
        """At most `uploads_max` uploads run at once; the next one waits for a slot without a deadline."""
        super().__init__(inner)
        self._watchdog = watchdog or Watchdog()
        self._deadlines = deadlines or Deadlines()
        self._places = threading.BoundedSemaphore(uploads_max) if uploads_max is not None else nullcontext()

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        limit_s = self._deadlines.of(size_bytes)
        return self._watchdog.run(call, limit_s, _ATTEMPTS[operation], store=self.url, key=key)

    def upload(self, key: str, source: UploadSource) -> None:
        with self._places:
            progress_signal = ProgressSignal(self._deadlines.upload_stall_s)
            parts = _Parts(source, progress_signal)
            upload = partial(self._inner.upload, key, UploadSource(parts=parts.begin))
            try:
                self._watchdog.run(upload, progress_signal, _ATTEMPTS["upload"], store=self.url, key=key)
            finally:
                parts.is_over = True

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        infos: Iterator[ObjectInfo] | None = None

        def page() -> list[ObjectInfo]:
            nonlocal infos
            if infos is None:
                infos = self._inner.list(prefix, start_after=start_after)
            return list(itertools.islice(infos, LIST_PAGE))

        found: list[ObjectInfo] | None = None
        while found is None or len(found) == LIST_PAGE:  # a shorter page is the last
            found = self._around(page, "list", prefix)
            yield from found

    def close(self) -> None:
        try:
            self._watchdog.run(self._inner.close, self._deadlines.close_s, "cannot close a store", store=self.url)
        except Unavailable as error:
            log.warning("%s", error)


class _Parts:
    """The parts of a source, none after the deadline; each request for a part resets the deadline."""

    def __init__(self, source: UploadSource, progress_signal: ProgressSignal) -> None:
        self.is_over = False
        self._source = source
        self._progress_signal = progress_signal

    def begin(self) -> Iterator[Body]:
        parts = self._source.parts()
        while True:
            self._progress_signal.pause()
            try:
                part = next(parts, None)
            finally:
                self._progress_signal.beat()
            if self.is_over:
                raise Unavailable("cannot upload an object, the upload was stopped at its deadline")
            if part is None:
                return
            yield part


class _Job(Generic[T]):
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
        """Return the result, once: a stored error would hold a reference to itself."""
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
