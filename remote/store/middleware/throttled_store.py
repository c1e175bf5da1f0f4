"""A store with limits in bytes per second, one for each direction, shared by all threads.

| bytes | when they count |
|---|---|
| written | before they are sent, part by part |
| read | on arrival, because their size is not known earlier |
| metadata (`remote.keys.is_metadata`: manifests, pages, boundaries, pins) | sent at once; later writes wait for it |
| listings, deletes, HEADs | never |

Metadata does not wait because a commit blocks its partition, and would queue behind the segments of all other
partitions.

Source: Kafka's `remote.log.manager.copy` and `fetch` `.max.bytes.per.second` (KIP-956).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from local.storage.throttle import Throttle
from remote.keys import is_metadata
from remote.store.middleware.store_wrapper import StoreWrapper
from remote.store.protocol import Body, GetRange, ObjectStore, UploadSource


class ThrottledStore(StoreWrapper):
    """See `ObjectStore`. Rates in bytes per second. It belongs around a `RetryingStore`: its waits are no failures."""

    def __init__(
        self,
        inner: ObjectStore,
        copy_rate: float | None = None,
        fetch_rate: float | None = None,
        *,
        copy: Throttle | None = None,
        fetch: Throttle | None = None,
    ) -> None:
        super().__init__(inner)
        self._copy = copy or Throttle(copy_rate)
        self._fetch = fetch or Throttle(fetch_rate)

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

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        bodies = self._inner.get_each(ranges)
        self._fetch.take(sum(len(body) for body in bodies if body is not None))
        return bodies

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
