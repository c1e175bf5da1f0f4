"""A store whose operations end by a deadline, even if the client hangs.

The mechanism is `remote.store.middleware.watchdog`.

| operation | time limit |
|---|---|
| put, put_if_absent, get_range, get_ranges, get_each | `call_s`, plus the time of its bytes at RATE_MIN |
| get, head, list_prefixes, delete, a page of a listing | `call_s` |
| upload | `upload_stall_s` since the store last requested a part, without the time to make parts |

A part of a large upload has a shorter deadline of its own (`remote.store.s3_store`) and is retried alone.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from local.errors import Unavailable
from remote.store.middleware.watchdog import ProgressSignal, Watchdog
from remote.store.protocol import Asked, Body, ObjectInfo, ObjectStore, UploadSource

T = TypeVar("T")
log = logging.getLogger(__name__)

RATE_MIN = 128 << 10  # bytes per second: a slower transfer counts as a hang
LIST_PAGE = 1000  # keys in one LIST response of S3


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Time limits in seconds.

    `call_s` is above the client's own timeouts for one request, so that the client's timeouts fire first.
    """

    call_s: float = 60.0
    upload_stall_s: float = 300.0
    close_s: float = 10.0

    def of(self, size_bytes: int) -> float:
        """Return the limit of a call that transfers this many bytes."""
        return self.call_s + size_bytes / RATE_MIN


class WatchedStore:
    """See `remote.store.protocol.ObjectStore`."""

    def __init__(
        self,
        inner: ObjectStore,
        watchdog: Watchdog | None = None,
        deadlines: Deadlines | None = None,
        *,
        uploads_max: int | None = None,
    ) -> None:
        """At most `uploads_max` uploads run at once, None for any number.

        The next upload waits for a slot. This wait has no deadline, because nothing hangs.
        """
        self._inner = inner
        self._watchdog = watchdog or Watchdog()
        self._deadlines = deadlines or Deadlines()
        self._places = threading.BoundedSemaphore(uploads_max) if uploads_max is not None else nullcontext()

    def __repr__(self) -> str:
        return f"WatchedStore({self._inner!r})"

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, body: Body) -> None:
        self._run(lambda: self._inner.put(key, body), "cannot store an object", key, len(body))

    def put_if_absent(self, key: str, body: Body) -> None:
        self._run(lambda: self._inner.put_if_absent(key, body), "cannot create an object", key, len(body))

    def upload(self, key: str, source: UploadSource) -> None:
        with self._places:
            self._upload(key, source)

    def get(self, key: str) -> bytes:
        return self._run(lambda: self._inner.get(key), "cannot read an object", key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        attempt = "cannot read a range of an object"
        return self._run(lambda: self._inner.get_range(key, start, length), attempt, key, max(0, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        attempt, size_bytes = "cannot read a range of an object", sum(max(0, length) for _, length in ranges)
        return self._run(lambda: self._inner.get_ranges(key, ranges), attempt, key, size_bytes)

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        key, size_bytes = asked[0][0] if asked else None, sum(length or 0 for _, _, length in asked)
        return self._run(lambda: self._inner.get_each(asked), "cannot read several objects", key, size_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._run(lambda: self._inner.head(key), "cannot read the size of an object", key)

    def list_prefixes(self, prefix: str) -> list[str]:
        return self._run(lambda: self._inner.list_prefixes(prefix), "cannot list objects", prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        infos: Iterator[ObjectInfo] | None = None

        def page() -> list[ObjectInfo]:
            nonlocal infos
            if infos is None:
                infos = self._inner.list(prefix, start_after=start_after)
            return list(itertools.islice(infos, LIST_PAGE))

        found: list[ObjectInfo] | None = None
        while found is None or len(found) == LIST_PAGE:  # a shorter page is the last
            found = self._run(page, "cannot list objects", prefix)
            yield from found

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        self._run(lambda: self._inner.delete(wanted), "cannot delete objects", wanted[0] if wanted else None)

    def close(self) -> None:
        """Close the client, or abandon it if it does not close in time."""
        try:
            self._watchdog.run(self._inner.close, self._deadlines.close_s, "cannot close a store", store=self.url)
        except Unavailable as error:
            log.warning("%s", error)

    def _upload(self, key: str, source: UploadSource) -> None:
        progress_signal = ProgressSignal(self._deadlines.upload_stall_s)
        parts = _Parts(source, progress_signal)
        facts = {"store": self.url, "key": key}
        try:
            upload = partial(self._inner.upload, key, UploadSource(parts=parts.begin))
            self._watchdog.run(upload, progress_signal, "cannot upload an object", **facts)
        finally:
            parts.is_over = True

    def _run(self, call: Callable[[], T], attempt: str, key: str | None, size_bytes: int = 0) -> T:
        limit_s = self._deadlines.of(size_bytes)
        return self._watchdog.run(call, limit_s, attempt, store=self.url, key=key)


class _Parts:
    """The parts of a source; each request for a part resets the deadline.

    After the deadline no further part is given.
    """

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
