"""A store that counts requests and bytes, in the classes that S3 bills, for each topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remote.keys import INDEXES_SUFFIX, is_segment_object, parse_topic_directory
from remote.store.middleware.store_wrapper import StoreWrapper
from remote.store.protocol import DELETE_PAGE, LIST_PAGE, Body, GetRange, ObjectInfo, ObjectStore, UploadSource

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Requests by billing class, and bytes.

    | field | counts |
    |---|---|
    | `puts` | PUT class; a multipart upload counts its begin, each part and its completion |
    | `posts` | the part of `puts` that begins and completes multipart uploads |
    | `gets` | GET class, with HEAD as S3 bills it |
    | `heads` | the part of `gets` without a body |
    | `deletes` | requests; free at S3 |
    | `data_*` | requests and bytes of segment data, which may have a storage class of their own |
    """

    puts: int = 0
    posts: int = 0
    gets: int = 0
    heads: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    data_puts: int = 0
    data_gets: int = 0
    data_bytes_in: int = 0
    data_bytes_out: int = 0

    def __sub__(self, before: RequestCounts) -> RequestCounts:
        return RequestCounts(**{name: getattr(self, name) - getattr(before, name) for name in self.__slots__})

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


# Segment data counts twice: in the total and as data.
_OF_DATA = {"puts": "data_puts", "gets": "data_gets", "bytes_in": "data_bytes_in", "bytes_out": "data_bytes_out"}


class MeteredStore(StoreWrapper):
    """Counts requests when sent, `bytes_out` on arrival. Inside a RetryingStore it counts retries too."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}

    def counts(self) -> RequestCounts:
        with self._lock:
            return sum((RequestCounts(**each) for each in self._counts.values()), RequestCounts())

    def counts_by_topic(self) -> dict[str, RequestCounts]:
        """Return the counts so far by topic directory; the empty name for requests of no topic."""
        with self._lock:
            return {name: RequestCounts(**each) for name, each in self._counts.items()}

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        key = key or ""
        if operation.startswith("put"):
            self._count(key, puts=1, bytes_in=size_bytes)
            return call()
        self._count(key, gets=1, heads=int(operation == "head"))
        found = call()
        if isinstance(found, bytes):
            self._count(key, bytes_out=len(found))
        return found

    def upload(self, key: str, source: UploadSource) -> None:
        self._inner.upload(key, UploadSource(parts=lambda: self._counted(key, source)))

    def _counted(self, key: str, source: UploadSource) -> Iterator[Body]:
        """Yield the parts; the second part adds the begin and the completion of a multipart upload."""
        for number, part in enumerate(source.parts()):
            extra = 2 if number == 1 else 0
            self._count(key, puts=1 + extra, posts=extra, bytes_in=len(part))
            yield part

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        self._count(key, gets=len(ranges))
        bodies = self._inner.get_ranges(key, ranges)
        self._count(key, bytes_out=sum(map(len, bodies)))
        return bodies

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        for key, _, _ in ranges:
            self._count(key, gets=1)
        bodies = self._inner.get_each(ranges)
        for (key, _, _), body in zip(ranges, bodies, strict=True):
            self._count(key, bytes_out=0 if body is None else len(body))
        return bodies

    def list_prefixes(self, prefix: str) -> list[str]:
        names = self._inner.list_prefixes(prefix)
        self._count(prefix, lists=max(1, -(-len(names) // LIST_PAGE)))
        return names

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._count(prefix, lists=1)
        for number, info in enumerate(self._inner.list(prefix, start_after=start_after)):
            if number and number % LIST_PAGE == 0:
                self._count(prefix, lists=1)
            yield info

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        if wanted:
            self._count(wanted[0], deletes=-(-len(wanted) // DELETE_PAGE))
        self._inner.delete(wanted)

    def _count(self, key: str, **more: int) -> None:
        name = key.partition("/")[0]
        if is_segment_object(key) and not key.endswith(INDEXES_SUFFIX):
            more |= {_OF_DATA[what]: count for what, count in more.items() if what in _OF_DATA}
        with self._lock:
            counts = self._counts.get(name)
            if counts is None:
                counts = self._counts.setdefault("" if parse_topic_directory(name) is None else name, {})
            for what, count in more.items():
                counts[what] = counts.get(what, 0) + count
