"""The base of the wrappers around an object store, and a wrapper that runs a context manager around each call.

`ObservedStore` is for timing, counting and tracing. The calls are the user's: retries, and the requests of a multipart
upload, are inside one call. Of a listing only the time before its first entry is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import TypeVar

from remote.store.protocol import Body, GetRange, ObjectInfo, ObjectStore, UploadSource

T = TypeVar("T")
# Arguments: an operation and its key. A delete passes its first key, a read of several objects the last one (data is
# after its indexes), a listing the prefix. An exception from the block is the call's error, and the context must let it
# pass.
Around = Callable[[str, str], AbstractContextManager[object]]


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
    """See `remote.store.protocol.ObjectStore`. As thread safe as the inner store and `around`."""

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
