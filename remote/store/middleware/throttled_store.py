"""A store with limits in bytes per second, one for what goes in and one for what comes out, shared by all threads.

What goes in is paid for before it is sent, part by part; what comes out once it is here, for its size is not known
before. What a partition's index is made of (heads, pages, boundaries, pins: `remote.keys.is_metadata`) goes at once and
is paid for by those after it: a commit holds its partition up, and would queue behind the segments of all others.
Listings, deletions and heads of objects cost nothing. Source: Kafka's `remote.log.manager.copy` and `fetch`
`.max.bytes.per.second` (KIP-956).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from local.storage.throttle import Throttle
from remote.keys import is_metadata
from remote.store.protocol import Asked, Body, ObjectInfo, ObjectStore, UploadSource


class ThrottledStore:
    """See `remote.store.protocol.ObjectStore`. Rates in bytes per second, None without limit.

    Belongs around a `RetryingStore`, not into it: waiting for one's turn is no failure and must not look like a hang.
    """

    def __init__(
        self,
        inner: ObjectStore,
        copy_rate: float | None = None,
        fetch_rate: float | None = None,
        *,
        copy: Throttle | None = None,
        fetch: Throttle | None = None,
    ) -> None:
        self._inner = inner
        self._copy = copy or Throttle(copy_rate)
        self._fetch = fetch or Throttle(fetch_rate)

    def __repr__(self) -> str:
        return f"ThrottledStore({self._inner!r})"

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, body: Body) -> None:
        self._pay(key, body)
        self._inner.put(key, body)

    def put_if_absent(self, key: str, body: Body) -> None:
        self._pay(key, body)
        self._inner.put_if_absent(key, body)

    def upload(self, key: str, source: UploadSource) -> None:
        self._inner.upload(key, UploadSource(parts=lambda: self._paid(source)))

    def get(self, key: str) -> bytes:
        return self._arrived(self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._arrived(self._inner.get_range(key, start, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        bodies = self._inner.get_ranges(key, ranges)
        self._fetch.take(sum(map(len, bodies)))
        return bodies

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        bodies = self._inner.get_each(asked)
        self._fetch.take(sum(len(body) for body in bodies if body is not None))
        return bodies

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list_prefixes(self, prefix: str) -> list[str]:
        return self._inner.list_prefixes(prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        self._inner.delete(keys)

    def close(self) -> None:
        self._inner.close()

    def _pay(self, key: str, body: Body) -> None:
        if is_metadata(key):
            self._copy.count(len(body))
        else:
            self._copy.take(len(body))

    def _paid(self, source: UploadSource) -> Iterator[Body]:
        for part in source.parts():
            self._copy.take(len(part))
            yield part

    def _arrived(self, body: bytes) -> bytes:
        self._fetch.take(len(body))
        return body
