"""Bounded daemon threads for reads that wait for a disk or a store. A slow partition does not delay the others.

At most THREADS calls run at once, at most PARTITION_MAX of them for one partition. Calls with the same key share one
result. Threads are daemons: a store that hangs does not delay the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

THREADS = 16
PARTITION_MAX = 4


class ReadPool:
    """Runs blocking calls for one event loop, whose thread alone calls `run`. Threads start on demand."""

    def __init__(self, threads: int = THREADS, *, partition_max: int = PARTITION_MAX) -> None:
        self._threads_max, self._partition_max = threads, partition_max
        self._waiting: deque[tuple[Hashable, Callable[[], None]]] = deque()
        self._active: Counter[Hashable] = Counter()
        self._has_work = threading.Condition()
        self._idle = self._started = 0
        self._is_closed = False
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}

    def run(self, partition: Hashable, key: Hashable, call: Callable[[], T]) -> asyncio.Future[T]:
        """The result of `call`, or of a running call with the same key. Do not cancel it: it may be shared."""
        shared = self._shared.get(key)
        if shared is not None and not shared.done():  # a result must not be older than the call
            return shared
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._shared[key] = future
        future.add_done_callback(lambda done: self._forget(key, done))

        def work() -> None:
            try:
                done = partial(_finish, future, call())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                done = partial(_fail, future, error)
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(done)

        with self._has_work:
            self._waiting.append((partition, work))
            if len(self._waiting) > self._idle and self._started < self._threads_max:
                self._started += 1
                threading.Thread(target=self._serve, name=f"tiered-serve-{self._started}", daemon=True).start()
            self._has_work.notify()
        return future

    def close(self) -> None:
        """End idle threads. Running calls end by themselves, waiting ones never run."""
        with self._has_work:
            self._is_closed = True
            self._waiting.clear()
            self._has_work.notify_all()

    def _forget(self, key: Hashable, future: asyncio.Future[Any]) -> None:
        if self._shared.get(key) is future:
            del self._shared[key]
        if not future.cancelled():
            future.exception()  # an error without a reader left is no "exception never retrieved"

    def _serve(self) -> None:
        while True:
            with self._has_work:
                self._idle += 1
                while (found := self._next()) is None and not self._is_closed:
                    self._has_work.wait()
                self._idle -= 1
                if found is None:
                    return
                self._active[found[0]] += 1
            partition, work = found
            found = None
            try:
                work()
            finally:
                del work  # an idle thread holds no result, such as the descriptor of a range
                with self._has_work:
                    self._active[partition] -= 1
                    if not self._active[partition]:
                        del self._active[partition]
                    self._has_work.notify()

    def _next(self) -> tuple[Hashable, Callable[[], None]] | None:
        """Take the first waiting call whose partition may have another thread."""
        for at, (partition, _) in enumerate(self._waiting):
            if self._active[partition] < self._partition_max:
                found = self._waiting[at]
                del self._waiting[at]
                return found
        return None


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
