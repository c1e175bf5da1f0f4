"""A store that never overwrites or deletes objects: for buckets under object lock, or by choice.

GC runs as usual: objects are unlinked, wait for the grace period and the pins, and leave the list of pending deletes.
Only the delete itself is skipped and logged. The objects are orphans from then on. `tiered gc` lists them with their
price, for a lifecycle rule or a person to delete. Manifests below the GC boundary are void whether they exist or not.
Probes and expired pins stay.

A `put` creates. The same bytes again are no error (a lost answer); other bytes raise AlreadyExists. So a pin cannot be
renewed, and a long read must request a long enough pin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from local.errors import AlreadyExists
from remote.store.protocol import Asked, Body, ObjectInfo, ObjectStore, UploadSource

_log = logging.getLogger(__name__)


class ImmutableStore:
    """See the module text. `spared` is the number of objects that were not deleted."""

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
                raise AlreadyExists("cannot overwrite an object, the bucket is immutable", key=key) from None

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
        """Log the request; delete nothing."""
        wanted = list(keys)
        self.spared += len(wanted)
        if wanted:
            _log.info(
                "the lifecycle of the immutable bucket will delete these objects: objects=%d first=%s",
                len(wanted),
                wanted[0],
            )

    def close(self) -> None:
        self._inner.close()
