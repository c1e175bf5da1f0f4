"""The data behind the pages: the manager to read, and loads of page data in threads.

`ManagerCache` has the running manager of this process, or renewed read-only opens, which show both tiers as opened.

| state of the newest open | a page request |
|---|---|
| up to FRESH_MS old | uses it |
| older than FRESH_MS | starts a new open in a thread, and uses the old one until the new one is ready |
| older than AGE_MAX_MS (after an idle time) | also waits up to FIRST_S for the new one |
| none, because the store hangs for minutes | after FIRST_S opens the disk alone, and every page says so |

A manager is closed when no page uses it any more.

`DataLoader` waits at most DEADLINE_S for page data. Concurrent requests for the same data share one load. A load that
misses the deadline continues, and its result serves later requests. Until then requests get the last result, however
old, or `Unavailable`. At most THREADS_MAX loads run at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar, cast

from local.errors import LogError, Unavailable
from remote.store import ObjectStore
from tiered.config.config import Config
from tiered.config.units import format_lasted
from tiered.manager.manager import LogManager
from tiered.web.html import DataAge, stamp

_log = logging.getLogger(__name__)
T = TypeVar("T")

FRESH_MS = 15_000
AGE_MAX_MS = 30_000  # older data is read again before it is shown, or marked as old
STALE_MS = 10_000  # how long a newer open may take before pages say so
FIRST_S = 2.0  # how long the first request waits for the first manager
DEADLINE_S = 3.0
THREADS_MAX = 6
RESULTS_MAX = 32


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A result of a load that started at `at_ms`. `read_ms` is when the tiers were read, None for `at_ms`.

    `late_since_ms`: start of a newer load that has not ended.
    """

    value: T
    at_ms: int
    late_since_ms: int | None = None
    read_ms: int | None = None

    @property
    def data_ms(self) -> int:
        return self.at_ms if self.read_ms is None else min(self.at_ms, self.read_ms)


class DataLoader:
    """Loads data by key. Thread safe."""

    def __init__(self, now_ms: Callable[[], int], *, deadline_s: float = DEADLINE_S) -> None:
        self._now_ms, self._deadline_s = now_ms, deadline_s
        self._lock = threading.Lock()
        self._found: OrderedDict[str, Loaded[object]] = OrderedDict()
        self._running: dict[str, _Load] = {}

    def deadline(self) -> float:
        """Return a full deadline in monotonic seconds, for the consecutive loads of one page."""
        return time.monotonic() + self._deadline_s

    def get(self, key: str, make: Callable[[], T], *, keep_ms: int = 0, deadline: float | None = None) -> Loaded[T]:
        """Return the result of `make`, or its result under this key that is less than `keep_ms` old.

        With `keep_ms` 0 a result serves only the requests that waited for it. Raises the exceptions of `make`, and
        Unavailable without any result by `deadline` (None: a full one).
        """
        now = self._now_ms()
        with self._lock:
            known = cast("Loaded[T] | None", self._found.get(key))
            if known is not None and 0 <= now - known.at_ms < keep_ms:
                return known
            load = self._running.get(key) or self._begin(key, make, now)
        wait_s = self._deadline_s if deadline is None else max(0.0, deadline - time.monotonic())
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
        except Exception as error:  # noqa: BLE001 - the waiting requests raise it
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
    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.done = threading.Event()
        self.value: object = None
        self.error: Exception | None = None


class ManagerCache:
    """The manager to read. Thread safe."""

    def __init__(
        self,
        config: Config,
        open_manager: Callable[[], LogManager],
        now_ms: Callable[[], int],
        open_alone: Callable[[], LogManager] | None = None,
    ) -> None:
        """`open_alone` opens a manager that sends no store request."""
        self.config = config
        self._open, self._open_alone, self._now_ms = open_manager, open_alone, now_ms
        self._lock = threading.Lock()
        self._is_there = threading.Event()
        self._held: _Held | None = None
        self._opening_since_ms: int | None = None
        self._error: Exception | None = None
        self._is_closed = self._is_alone = False

    @classmethod
    def of(cls, manager: LogManager) -> ManagerCache:
        """Return a cache that always uses the given manager. The caller closes the manager."""
        cache = cls(manager.config, lambda: manager, lambda: 0)
        cache._held = _Held(manager, 0, is_ours=False)
        return cache

    @contextmanager
    def seen(self) -> Iterator[tuple[LogManager, int | None]]:
        """Yield the manager to read, and when it read the tiers (None: a running manager), for the block.

        Raises Unavailable while there is no manager yet, and the error of the first open if it failed.
        """
        held = self._take()
        try:
            yield held.manager, held.at_ms if held.is_ours else None
        finally:
            self._give_back(held)

    def load(
        self,
        loader: DataLoader,
        key: str,
        make: Callable[[LogManager], T],
        *,
        keep_ms: int = 0,
        deadline: float | None = None,
    ) -> Loaded[T]:
        """As `DataLoader.get`, where `make` gets the manager to read; sets `read_ms`."""

        def read() -> tuple[T, int | None]:
            with self.seen() as (manager, read_ms):
                return make(manager), read_ms

        loaded = loader.get(key, read, keep_ms=keep_ms, deadline=deadline)
        value, read_ms = loaded.value
        return Loaded(value, loaded.at_ms, loaded.late_since_ms, read_ms)

    def stale(self) -> str | None:
        now = self._now_ms()
        with self._lock:
            held, since, error = self._held, self._opening_since_ms, self._error
        if held is None or not held.is_ours:
            return None
        if held.is_alone:
            waits = f"since {(now - since) // 1000} s" if since is not None else "at the time of the request"
            return f"local tier only: the store has not replied {waits}"
        if since is not None and now - since >= STALE_MS:
            return f"refreshing for {(now - since) // 1000} s"
        if error is not None:
            return f"refresh failed: {' '.join(str(error).split())}"
        return None

    def close(self) -> None:
        """Close the manager as soon as no page uses it."""
        with self._lock:
            self._is_closed = True
            held, self._held = self._held, None
        if held is not None:
            self._give_back(held)

    def _take(self) -> _Held:
        now = self._now_ms()
        with self._lock:
            if self._is_due(now):
                self._begin(now)
            is_first = self._held is None
            since = self._opening_since_ms
            is_old = self._held is not None and self._held.is_ours and now - self._held.at_ms > AGE_MAX_MS
        if is_old and since is not None:
            self._is_there.wait(max(0.0, FIRST_S - (now - since) / 1000))
        if is_first and not self._is_there.wait(FIRST_S):
            self._open_local_tier(now)
        with self._lock:
            if self._held is not None:
                self._held.users += 1
                return self._held
            if self._error is not None:
                raise self._error
            since = self._opening_since_ms
        waited = self._now_ms() - since if since is not None else 0
        raise Unavailable("cannot open the logs yet, the disk or the store has not replied", waited_ms=waited)

    def _begin(self, now_ms: int) -> None:
        """Start a new open. The caller holds the lock."""
        try:
            threading.Thread(target=self._reopen, args=(now_ms,), name="tiered-look", daemon=True).start()
        except RuntimeError as error:
            self._error = Unavailable("cannot refresh, there is no free thread", cause=str(error))
            self._is_there.set()
        else:
            self._opening_since_ms = now_ms
            self._is_there.clear()

    def _is_due(self, now_ms: int) -> bool:
        if self._is_closed or self._opening_since_ms is not None:
            return False
        return self._held is None or (self._held.is_ours and not 0 <= now_ms - self._held.at_ms < FRESH_MS)

    def _reopen(self, now_ms: int) -> None:
        new: _Held | None = None
        error: Exception | None = None
        try:
            new = _Held(self._open(), now_ms)
        except Exception as found:  # noqa: BLE001 - the next request raises it
            _log.warning("refresh failed: error=%s", found)
            error = found
        with self._lock:
            before = self._held if new is not None else None
            unwanted = new if self._is_closed else None
            if new is not None and not self._is_closed:
                self._held = new
            self._error, self._opening_since_ms = error, None
        self._is_there.set()
        for each in (before, unwanted):
            if each is not None:
                self._give_back(each)

    def _open_local_tier(self, now_ms: int) -> None:
        with self._lock:
            if self._open_alone is None or self._held is not None or self._is_alone or self._is_closed:
                return
            self._is_alone = True
        try:
            new = _Held(self._open_alone(), now_ms, is_alone=True)
        except LogError as error:
            _log.warning("cannot read the disk: error=%s", error)
            return  # the full open fails with the same error
        finally:
            self._is_alone = False
        if not self._make_current(new):
            self._give_back(new)

    def _make_current(self, new: _Held) -> bool:
        with self._lock:
            if self._held is not None or self._is_closed:
                return False
            self._held = new
            return True

    def _give_back(self, held: _Held) -> None:
        """End one use; the last use closes the manager."""
        with self._lock:
            held.users -= 1
            is_over = held.users == 0 and held.is_ours
        if is_over:
            held.manager.close()


class _Held:
    """`users` counts the current uses, plus one while the manager is the newest."""

    def __init__(self, manager: LogManager, at_ms: int, *, is_ours: bool = True, is_alone: bool = False) -> None:
        self.manager, self.at_ms, self.is_ours, self.is_alone = manager, at_ms, is_ours, is_alone
        self.users = 1


def data_age(cache: ManagerCache, loaded: Loaded[Any], now_ms: int, *, cache_ms: int = 0) -> DataAge:
    """Return the age of a page's data, `stale` if it is older than AGE_MAX_MS and `cache_ms` allow."""
    why, shown = None, f"The data shown is of {stamp(loaded.data_ms)}"
    if (reason := cache.stale()) is not None:
        why = f"{shown}; {reason}."
    elif loaded.late_since_ms is not None:
        lasted = format_lasted(now_ms - loaded.late_since_ms)
        why = f"Refreshing for {lasted}: the disk does not reply, or this machine is busy. {shown}."
    elif now_ms - loaded.data_ms > AGE_MAX_MS + cache_ms:
        why = f"{shown}, {format_lasted(now_ms - loaded.data_ms)} ago; a refresh is in progress."
    return DataAge(data_ms=loaded.data_ms, age_ms=max(0, now_ms - loaded.data_ms), stale=why)


def silent_store(url: str) -> ObjectStore:
    return cast(ObjectStore, _Silent(url))


class _Silent:
    def __init__(self, url: str) -> None:
        self.url = url

    def close(self) -> None:
        """Do nothing: there is no resource to release."""

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        def refuse(*args: object, **more: object) -> NoReturn:
            raise Unavailable("the store has not replied yet", store=self.url, verb=verb)

        return refuse
