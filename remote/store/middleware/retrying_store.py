"""The one retry layer: a store that retries `Unavailable` until a deadline.

The clients' own retries are disabled (`remote.store.s3_store`), because two layers would multiply. Only `Unavailable`
is retried, with exponential backoff and full jitter, so that many clients do not return at once. The final error has
the number of tries. An outer layer never retries such an error, so nesting is harmless.

All calls share a **budget** of retries: successes earn them, failures spend them. A store that is down soon gets one
try per call, so an outage does not multiply the load that may have caused it.

A retried create may find the object of its own first try and raise AlreadyExists: see `ObjectStore.put_if_absent`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from local.errors import Unavailable
from remote.store.protocol import Asked, Body, ObjectInfo, ObjectStore, UploadSource

T = TypeVar("T")
LIST_PAGE = 1000  # keys in one LIST response of S3: one page here is one request there
DELETE_PAGE = 1000  # keys of one try, with a deadline of its own: one DeleteObjects of S3


class RetryBudget:
    """The shared budget of retries. Thread safe.

    It begins with `capacity`, and every successful call adds `earned`. Source: the retry quotas of gRPC (A6) and of the
    AWS SDKs.
    """

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
        """Take one retry from the budget, if there is one."""
        with self._lock:
            if self._left < 1 or self._is_closed:
                return False
            self._left -= 1
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of retries and waits, in seconds.

    No try begins later than `deadline_s` after the first; a running try ends by its own deadline
    (`remote.store.middleware.deadline_store`). A call that has taken `warn_after_s`, the next wait included, logs once
    why it waits. `sleep` is replaceable for tests.
    """

    attempts_max: int = 8
    deadline_s: float = 30.0
    wait_first_s: float = 0.1
    wait_max_s: float = 5.0
    warn_after_s: float = 2.0  # about as long as a person waits without a sign of progress
    sleep: Callable[[float], None] = time.sleep
    budget: RetryBudget = field(default_factory=RetryBudget, repr=False, compare=False)

    def call(self, attempt: Callable[[], T], *, verb: str | None = None, key: str | None = None) -> T:
        """Return the result of the first successful `attempt`.

        Raises the last Unavailable, with the number of tries. `verb` and `key` describe the call in the log.
        """
        begun_s = time.monotonic()
        try:
            found = attempt()
        except Unavailable as error:
            if "attempts" in error.facts:
                raise
            from remote.store.middleware.retry import (
                retry_call,  # imported on demand: nearly all calls succeed, and many commands have no others
            )

            return retry_call(self, attempt, error, begun_s, {"verb": verb, "key": key})
        self.budget.earn()
        return found


class RetryingStore:
    """See `remote.store.protocol.ObjectStore`; every operation runs under one `RetryPolicy`."""

    def __init__(self, inner: ObjectStore, policy: RetryPolicy | None = None) -> None:
        self._inner = inner
        self._policy = policy or RetryPolicy()

    def __repr__(self) -> str:
        return f"RetryingStore({self._inner!r})"

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, body: Body) -> None:
        self._policy.call(lambda: self._inner.put(key, body), verb="put", key=key)

    def put_if_absent(self, key: str, body: Body) -> None:
        self._policy.call(lambda: self._inner.put_if_absent(key, body), verb="put_if_absent", key=key)

    def upload(self, key: str, source: UploadSource) -> None:
        self._policy.call(lambda: self._inner.upload(key, source), verb="upload", key=key)

    def get(self, key: str) -> bytes:
        return self._policy.call(lambda: self._inner.get(key), verb="get", key=key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._policy.call(lambda: self._inner.get_range(key, start, length), verb="get_range", key=key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        return self._policy.call(lambda: self._inner.get_ranges(key, ranges), verb="get_ranges", key=key)

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        key = asked[0][0] if asked else None
        return self._policy.call(lambda: self._inner.get_each(asked), verb="get_each", key=key)

    def head(self, key: str) -> ObjectInfo:
        return self._policy.call(lambda: self._inner.head(key), verb="head", key=key)

    def list_prefixes(self, prefix: str) -> list[str]:
        return self._policy.call(lambda: self._inner.list_prefixes(prefix), verb="list_prefixes", key=prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        listing = _Listing(self._inner, prefix, start_after)
        page = None
        while page is None or len(page) == LIST_PAGE:  # a shorter page is the last
            page = self._policy.call(listing.page, verb="list", key=prefix)
            yield from page

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        for at in range(0, len(wanted), DELETE_PAGE):
            page = wanted[at : at + DELETE_PAGE]
            self._policy.call(partial(self._inner.delete, page), verb="delete", key=page[0])

    def close(self) -> None:
        self._inner.close()


class _Listing:
    """A listing in pages. After an error it restarts after the last page it returned."""

    def __init__(self, store: ObjectStore, prefix: str, start_after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._last = start_after
        self._infos: Iterator[ObjectInfo] | None = None

    def page(self) -> list[ObjectInfo]:
        """Return the next page, empty at the end.

        Raises the store's errors; another call retries the same page.
        """
        infos, self._infos = self._infos, None  # an iterator that raised is unusable
        if infos is None:
            infos = self._store.list(self._prefix, start_after=self._last)
        page = list(itertools.islice(infos, LIST_PAGE))
        if page:
            self._infos, self._last = infos, page[-1].key
        return page
