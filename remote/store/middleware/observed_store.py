"""A store that runs a context manager around each call: for timing, counting, tracing.

The calls are the user's. Retries, and the requests of a multipart upload, are inside one call. Of a listing only the
time before its first entry is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import TypeVar

from remote.store.middleware.store_wrapper import StoreWrapper
from remote.store.protocol import Asked, Body, ObjectInfo, ObjectStore

T = TypeVar("T")
# Arguments: an operation and its key. A delete passes its first key, a read of several objects the last one (data is
# after its indexes), a listing the prefix. An exception from the block is the call's error, and the context must let it
# pass.
Around = Callable[[str, str], AbstractContextManager[object]]


class ObservedStore(StoreWrapper):
    """See `remote.store.protocol.ObjectStore`. As thread safe as the inner store and `around`."""

    def __init__(self, inner: ObjectStore, around: Around) -> None:
        super().__init__(inner)
        self._context = around

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        with self._context(operation.partition("_")[0], key or ""):
            return call()

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        return self._around(lambda: self._inner.get_each(asked), "get", asked[-1][0] if asked else None)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._context("list", prefix):
            rest = self._inner.list(prefix, start_after=start_after)
            first = next(rest, None)
        yield from () if first is None else chain((first,), rest)
