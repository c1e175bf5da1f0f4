"""The base of the wrappers around an object store, and the small wrappers: observe, immutable, throttle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, TypeVar

from local.errors import AlreadyExists
from local.storage.throttle import Throttle
from remote.keys import is_metadata
from remote.store.protocol import Body, GetRange, ObjectInfo, ObjectStore, UploadSource

T = TypeVar("T")
# Arguments: an operation and its key. A delete passes its first key, a read of several objects the last one (data is
# after its indexes), a listing the prefix. An exception from the block is the call's error, and the context must let it
# pass.
Around = Callable[[str, str], AbstractContextManager[object]]
_log = logging.getLogger(__name__)


class StoreWrapper:
    """Passes every operation to the inner store. A wrapper overrides `_around`, or the operations it changes."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        """Run one call. `key` is its first key or its prefix, `size_bytes` the bytes that it transfers, if known."""
        return call()

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, body: Body) -> None:
        self._around(lambda: self._inner.put(key, body), "put", key, len(body))

    def put_if_absent(self, key: str, body: Body) -> None:
        self._around(lambda: self._inner.put_if_absent(key, body), "put_if_absent", key, len(body))

    def upload(self, key: str, source: UploadSource) -> None:
        self._around(lambda: self._inner.upload(key, source), "upload", key)

    def get(self, key: str) -> bytes:
        return self._around(lambda: self._inner.get(key), "get", key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._around(lambda: self._inner.get_range(key, start, length), "get_range", key, max(0, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        size_bytes = sum(max(0, length) for _, length in ranges)
        return self._around(lambda: self._inner.get_ranges(key, ranges), "get_ranges", key, size_bytes)

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        key, size_bytes = ranges[0][0] if ranges else None, sum(length or 0 for _, _, length in ranges)
        return self._around(lambda: self._inner.get_each(ranges), "get_each", key, size_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._around(lambda: self._inner.head(key), "head", key)

    def list_prefixes(self, prefix: str) -> list[str]:
        return self._around(lambda: self._inner.list_prefixes(prefix), "list_prefixes", prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        self._around(lambda: self._inner.delete(wanted), "delete", wanted[0] if wanted else None)

    def close(self) -> None:
        self._inner.close()


class ObservedStore(StoreWrapper):
    """Runs a context manager around each call, retries included; of a listing until its first entry."""

    def __init__(self, inner: ObjectStore, around: Around) -> None:
        super().__init__(inner)
        self._context = around

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        with self._context(operation.partition("_")[0], key or ""):
            return call()

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        return self._around(lambda: self._inner.get_each(ranges), "get", ranges[-1][0] if ranges else None)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._context("list", prefix):
            rest = self._inner.list(prefix, start_after=start_after)
            first = next(rest, None)
        yield from () if first is None else chain((first,), rest)


class ImmutableStore(StoreWrapper):
    """A store that never overwrites or deletes objects: for buckets under object lock, or by choice.

    GC runs as usual. Only the delete itself is skipped and logged; `spared` counts these objects, which are orphans
    from then on (`tiered gc` lists them). Manifests below the GC boundary are void whether they exist or not. A `put`
    creates. The same bytes again are no error (a lost answer); other bytes raise AlreadyExists: no pin can be renewed.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.spared = 0

    def put(self, key: str, body: Body) -> None:
        try:
            self._inner.put_if_absent(key, body)
        except AlreadyExists:
            if self._inner.get(key) != bytes(body):
                raise AlreadyExists("cannot overwrite an object, the bucket is immutable", key=key) from None

    def delete(self, keys: Iterable[str]) -> None:
        """Log the request; delete nothing."""
        wanted = list(keys)
        self.spared += len(wanted)
        if wanted:
            what = "the lifecycle of the immutable bucket will delete these objects: objects=%d first=%s"
            _log.info(what, len(wanted), wanted[0])


class ThrottledStore(StoreWrapper):
    """A store with limits in bytes per second, one for each direction, shared by all threads.

    It belongs around a `RetryingStore`: its waits are no failures.

    | bytes | when they count |
    |---|---|
    | written | before they are sent, part by part |
    | read | on arrival, because their size is not known earlier |
    | metadata (`remote.keys.is_metadata`) | sent at once: a commit blocks its partition; later writes wait for it |
    | listings, deletes, HEADs | never |

    Source: Kafka's `remote.log.manager.copy` and `fetch` `.max.bytes.per.second` (KIP-956).
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
        super().__init__(inner)
        self._copy = copy or Throttle(copy_rate)
        self._fetch = fetch or Throttle(fetch_rate)

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        if operation.startswith("put"):
            (self._copy.count if is_metadata(key or "") else self._copy.take)(size_bytes)
        found = call()
        if operation.startswith("get"):
            self._fetch.take(received_bytes(found))
        return found

    def upload(self, key: str, source: UploadSource) -> None:
        self._inner.upload(key, UploadSource(parts=lambda: self._paid(source)))

    def _paid(self, source: UploadSource) -> Iterator[Body]:
        for part in source.parts():
            self._copy.take(len(part))
            yield part


def received_bytes(answer: Any) -> int:  # noqa: ANN401 - a body, or several of which some may be None
    """The size of the bodies that a read returned."""
    bodies = answer if isinstance(answer, Sequence) and not isinstance(answer, Body) else [answer]
    return sum(0 if body is None else len(body) for body in bodies)
