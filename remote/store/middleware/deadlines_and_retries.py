"""Deadlines and retries: stores whose operations end in time, even if the client hangs, and are tried again.

**Deadlines.**

| operation | time limit |
|---|---|
| put, put_if_absent, get_range, get_ranges, get_each | `call_s`, plus the time of its bytes at RATE_MIN |
| get, head, list_prefixes, delete, a page of a listing | `call_s` |
| upload | `upload_stall_s` since the store last requested a part or its bytes, without the time to make parts |

Clients have timeouts and still hang: in a DNS look-up, a library's lock, an unreachable mounted file system. So the
`Watchdog` runs each call in a daemon thread. A call that has not returned by its deadline is **abandoned**: the caller
gets `Unavailable`, and the thread stays with the call until it returns. Beyond ABANDONED_MAX abandoned calls no new
call starts. Cost per call: two thread switches, about 50 microseconds.

**An abandoned call may still take effect, at any later time.** So may every call with a lost answer:

| call | why a late effect is safe |
|---|---|
| create | the commit id inside identifies it |
| other writes | names are used once and always get the same bytes (`remote.upload.segment_upload_stream`) |
| delete | it may repeat |
| upload | an abandoned upload gets no further part |

**Retries.** The one retry layer retries `Unavailable` until a deadline, with exponential backoff and full jitter. An
outer layer never retries the final error, so nesting is harmless. The clients' own retries are disabled, because two
layers would multiply. All calls share a **budget** of retries: successes earn them, failures spend them. So an outage
does not multiply the load that may have caused it.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from local.errors import Unavailable, describe, forget_locals
from remote.store.middleware.store_wrapper import StoreWrapper
from remote.store.protocol import DELETE_PAGE, LIST_PAGE, Body, ObjectInfo, ObjectStore, UploadSource

if TYPE_CHECKING:
    import tenacity

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
        self.is_over = False  # the call has returned or was abandoned

    def beat(self) -> None:
        self._last = self._clock()

    def pause(self) -> None:
        self._last = None

    def left_s(self) -> float:
        last = self._last
        return self._limit_s if last is None else last + self._limit_s - self._clock()


class Watchdog:
    """The watchdog of one store. Thread safe. Works in a forked child, which has no threads."""

    def __init__(self) -> None:
        self._begin()

    def run(self, call: Callable[[], T], limit: float | ProgressSignal, attempt: str, **facts: object) -> T:
        """Return or raise the result of `call`. Raises Unavailable, with `attempt`, after the limit."""
        if self._pid != os.getpid():
            self._begin()
        progress_signal = limit if isinstance(limit, ProgressSignal) else ProgressSignal(limit)
        job = _Job(call)
        with self._lock:
            if self.abandoned >= ABANDONED_MAX:
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
            parts = partial(_watched_parts, source, progress_signal)
            read_again = partial(_watched_read, source.read_again, progress_signal) if source.read_again else None
            upload = partial(self._inner.upload, key, replace(source, parts=parts, read_again=read_again))
            try:
                self._watchdog.run(upload, progress_signal, _ATTEMPTS["upload"], store=self.url, key=key)
            finally:
                progress_signal.is_over = True

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


def _watched_parts(source: UploadSource, progress_signal: ProgressSignal) -> Iterator[Body]:
    """The parts of a source, none once the upload is over; each request for a part resets the deadline."""
    parts = source.parts()
    while True:
        progress_signal.pause()
        try:
            part = next(parts, None)
        finally:
            progress_signal.beat()
        _check_not_over(progress_signal)
        if part is None:
            return
        yield part


def _watched_read(
    read_again: Callable[[int, int], Body], progress_signal: ProgressSignal, start: int, length: int
) -> Body:
    """Bytes of a part; each request for bytes resets the deadline of the upload."""
    progress_signal.beat()
    _check_not_over(progress_signal)
    return read_again(start, length)


def _check_not_over(progress_signal: ProgressSignal) -> None:
    if progress_signal.is_over:
        raise Unavailable("cannot upload an object, the upload was stopped at its deadline")


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


class RetryBudget:
    """The retries left: `capacity` at first, plus `earned` for a success. Thread safe. Source: gRPC (A6), AWS SDKs."""

    def __init__(self, capacity: float = 64.0, earned: float = 0.5) -> None:
        self._capacity = capacity
        self._earned = earned
        self._left = capacity
        self._is_closed = False
        self._lock = threading.Lock()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Within this context every call is tried once. For one thread."""
        self._is_closed = True
        try:
            yield
        finally:
            self._is_closed = False

    def earn(self) -> None:
        with self._lock:
            self._left = min(self._capacity, self._left + self._earned)

    def spend(self) -> bool:
        with self._lock:
            if self._left < 1 or self._is_closed:
                return False
            self._left -= 1
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of retries and waits, in seconds.

    No try begins later than `deadline_s` after the first; a running try ends by its own deadline. A call that has taken
    `warn_after_s`, the next wait included, logs once why it waits.
    """

    attempts_max: int = 8
    deadline_s: float = 30.0
    wait_first_s: float = 0.1
    wait_max_s: float = 5.0
    warn_after_s: float = 2.0  # about as long as a person waits without a sign of progress
    sleep: Callable[[float], None] = time.sleep
    budget: RetryBudget = field(default_factory=RetryBudget, repr=False, compare=False)

    def call(self, attempt: Callable[[], T], *, verb: str | None = None, key: str | None = None) -> T:
        """Return the first successful result, or raise the last Unavailable with the number of tries."""
        begun_s = time.monotonic()
        try:
            found = attempt()
        except Unavailable as first:
            if "attempts" in first.facts:
                raise
            try:
                found = _next_tries(self, attempt, first, time.monotonic() - begun_s, {"verb": verb, "key": key})
            except Unavailable as error:
                forget_locals(error)  # tenacity stores every error where the error's own frames refer to it
                raise
        self.budget.earn()
        return found


class RetryingStore(StoreWrapper):
    """A store with retries. A page of a listing, and DELETE_PAGE keys of a delete, are one operation."""

    def __init__(self, inner: ObjectStore, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self._policy = policy or RetryPolicy()

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        return self._policy.call(call, verb=operation, key=key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """A listing in pages. After an error it restarts after the last page it returned."""
        rest: Iterator[ObjectInfo] | None = None
        last = start_after

        def next_page() -> list[ObjectInfo]:
            nonlocal rest, last
            infos, rest = rest, None  # an iterator that raised is unusable
            infos = self._inner.list(prefix, start_after=last) if infos is None else infos
            found = list(itertools.islice(infos, LIST_PAGE))
            if found:
                rest, last = infos, found[-1].key
            return found

        page = None
        while page is None or len(page) == LIST_PAGE:  # a shorter page is the last
            page = self._policy.call(next_page, verb="list", key=prefix)
            yield from page

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        for at in range(0, len(wanted), DELETE_PAGE):
            page = wanted[at : at + DELETE_PAGE]
            self._policy.call(partial(self._inner.delete, page), verb="delete", key=page[0])


def _next_tries(
    policy: RetryPolicy, attempt: Callable[[], T], first: Unavailable, spent_s: float, facts: dict[str, object]
) -> T:
    """The next successful result after `first`; raises the last Unavailable. `facts` are for the log."""
    import tenacity  # here, because nearly all calls succeed at once, and many commands have no others

    is_logged = False

    def warn(state: tenacity.RetryCallState) -> None:
        nonlocal is_logged
        error = state.outcome.exception() if state.outcome is not None else None
        if is_logged or spent_s + (state.seconds_since_start or 0.0) + state.upcoming_sleep < policy.warn_after_s:
            return
        assert isinstance(error, Unavailable)
        is_logged = True
        cause = error.facts.get("cause") or error.attempt
        what = {**facts, "attempts": state.attempt_number, "cause": cause}
        log.warning("%s", describe("retrying a call to the store", what))

    is_over = tenacity.stop_after_attempt(policy.attempts_max) | tenacity.stop_before_delay(policy.deadline_s - spent_s)
    retrying = tenacity.Retrying(
        stop=lambda state: is_over(state) or not policy.budget.spend(),  # asked last, because asking spends it
        wait=tenacity.wait_random_exponential(multiplier=policy.wait_first_s, max=policy.wait_max_s),
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, Unavailable) and "attempts" not in error.facts
        ),
        sleep=policy.sleep,
        before_sleep=warn,
        reraise=True,
    )
    failed = [first]

    def next_try() -> T:
        if failed:
            raise failed.pop()
        return attempt()

    try:
        return retrying(next_try)
    except Unavailable as error:
        if "attempts" in error.facts:
            raise
        tries = retrying.statistics.get("attempt_number", 1)
        raise error.restated(error.attempt, **error.facts, attempts=tries) from error
