"""A store in which nothing is ever overwritten or deleted: for buckets under object lock, and whoever wants it so.

Whoever deletes goes on as always: objects leave the index, wait for the grace time and the pins, and are struck off the
list. Only the deed is left out, and told in the log; what was let go of is nobody's from then on, so `tiered gc` lists
it, with its price, for a lifecycle rule or a person to delete. Heads below a boundary count for nothing whether they
are there or not; probes and pins that have ended stay.

A `put` creates. The same bytes once more are no error (a lost answer); others are AlreadyExists: a pin cannot be
renewed, so a long read asks for a pin that is long enough.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from local.errors import AlreadyExists
from remote.store.protocol import Asked, Body, ObjectInfo, ObjectStore, UploadSource

_log = logging.getLogger(__name__)


class ImmutableStore:
    """See the module text. `spared` is how many objects were not deleted."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.spared = 0

    def __repr__(self) -> str:
        return f"ImmutableStore({self._inner!r})"

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, body: Body) -> None:
        try:
            self._inner.put_if_absent(key, body)
        except AlreadyExists:
            if self._inner.get(key) != bytes(body):
                raise AlreadyExists("overwriting an object, the bucket is immutable", key=key) from None

    def put_if_absent(self, key: str, body: Body) -> None:
        self._inner.put_if_absent(key, body)

    def upload(self, key: str, source: UploadSource) -> None:
        self._inner.upload(key, source)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._inner.get_range(key, start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        return self._inner.get_ranges(key, ranges)

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        return self._inner.get_each(asked)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list_prefixes(self, prefix: str) -> list[str]:
        return self._inner.list_prefixes(prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Nothing is deleted."""
        wanted = list(keys)
        self.spared += len(wanted)
        if wanted:
            _log.info("left to the lifecycle of an immutable bucket: objects=%d first=%s", len(wanted), wanted[0])

    def close(self) -> None:
        self._inner.close()
