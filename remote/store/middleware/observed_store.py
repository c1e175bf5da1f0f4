"""A store that runs a context manager around each call: for timing, counting, tracing.

The calls are the user's. Retries, and the requests of a multipart upload, are inside one call. Of a listing only the
time before its first entry is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain

from remote.store.protocol import Asked, Body, ObjectInfo, ObjectStore, UploadSource

OPERATIONS = ("put", "upload", "get", "head", "list", "delete")
# Arguments: an operation and its key. A delete passes its first key, a read of several objects the last one (data is
# after its indexes), a listing the prefix. An exception from the block is the call's error, and the context must let it
# pass.
Around = Callable[[str, str], AbstractContextManager[object]]


class ObservedStore:
    """See `remote.store.protocol.ObjectStore`. As thread safe as the inner store and `around`."""

    def __init__(self, inner: ObjectStore, around: Around) -> None:
        self._inner = inner
        self._around = around

    def __repr__(self) -> str:
        return f"ObservedStore({self._inner!r})"

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, body: Body) -> None:
        with self._around("put", key):
            self._inner.put(key, body)

    def put_if_absent(self, key: str, body: Body) -> None:
        with self._around("put", key):
            self._inner.put_if_absent(key, body)

    def upload(self, key: str, source: UploadSource) -> None:
        with self._around("upload", key):
            self._inner.upload(key, source)

    def get(self, key: str) -> bytes:
        with self._around("get", key):
            return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._around("get", key):
            return self._inner.get_range(key, start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        with self._around("get", key):
            return self._inner.get_ranges(key, ranges)

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        with self._around("get", asked[-1][0] if asked else ""):
            return self._inner.get_each(asked)

    def head(self, key: str) -> ObjectInfo:
        with self._around("head", key):
            return self._inner.head(key)

    def list_prefixes(self, prefix: str) -> list[str]:
        with self._around("list", prefix):
            return self._inner.list_prefixes(prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._around("list", prefix):
            rest = self._inner.list(prefix, start_after=start_after)
            first = next(rest, None)
        yield from () if first is None else chain((first,), rest)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        with self._around("delete", wanted[0] if wanted else ""):
            self._inner.delete(wanted)

    def close(self) -> None:
        self._inner.close()
