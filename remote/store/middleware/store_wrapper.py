"""The base of the wrappers around an object store, and the small wrappers: observe, immutable, throttle, meter."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from local.errors import AlreadyExists
from local.storage.throttle import Throttle
from remote.keys import INDEXES_SUFFIX, is_metadata, is_segment_object, parse_topic_directory
from remote.store.protocol import DELETE_PAGE, LIST_PAGE, Body, GetRange, ObjectInfo, ObjectStore, UploadSource

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
    """Runs a context manager around each call, retries included; around a listing until its first entry."""

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

    GC runs as usual, but the delete itself is skipped and logged; `spared` counts these objects, which are orphans from
    then on. A `put` creates: the same bytes again are no error (a lost answer), other bytes raise AlreadyExists.
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
        wanted = list(keys)
        self.spared += len(wanted)
        if wanted:
            what = "the lifecycle of the immutable bucket will delete these objects: objects=%d first=%s"
            _log.info(what, len(wanted), wanted[0])


class ThrottledStore(StoreWrapper):
    """A store with limits in bytes per second for each direction, shared by all threads; None: no limit.

    It belongs around a `RetryingStore`: its waits are no failures. Written bytes count before they are sent, part by
    part; read bytes on arrival, because their size is not known earlier. Metadata (`remote.keys.is_metadata`) is sent
    at once: a commit blocks its partition; later writes wait for it. Listings, deletes and HEADs never count. Source:
    Kafka's `remote.log.manager.copy` and `fetch` `.max.bytes.per.second` (KIP-956).
    """

    def __init__(
        self, inner: ObjectStore, copy: Throttle | float | None = None, fetch: Throttle | float | None = None
    ) -> None:
        super().__init__(inner)
        self._copy, self._fetch = (each if isinstance(each, Throttle) else Throttle(each) for each in (copy, fetch))

    def _around(self, call: Callable[[], T], operation: str, key: str | None, size_bytes: int = 0) -> T:
        if operation.startswith("put"):
            (self._copy.count if is_metadata(key or "") else self._copy.take)(size_bytes)
        found = call()
        if operation.startswith("get"):
            self._fetch.take(received_bytes(found))
        return found

    def upload(self, key: str, source: UploadSource) -> None:
        self._inner.upload(key, replace(source, parts=lambda: self._paid(source)))

    def _paid(self, source: UploadSource) -> Iterator[Body]:
        for part in source.parts():
            self._copy.take(len(part))
            yield part


def received_bytes(answer: Any) -> int:  # noqa: ANN401 - a body, or several of which some may be None
    bodies = answer if isinstance(answer, Sequence) and not isinstance(answer, Body) else [answer]
    return sum(0 if body is None else len(body) for body in bodies)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    puts: int = 0  # PUT class; a multipart upload counts its begin, each part and its completion
    posts: int = 0  # the part of `puts` that begins and completes multipart uploads
    gets: int = 0  # GET class, with HEAD as S3 bills it
    heads: int = 0  # the part of `gets` without a body
    lists: int = 0
    deletes: int = 0  # requests; free at S3
    bytes_in: int = 0
    bytes_out: int = 0
    data_puts: int = 0  # this and the next: of segment data, which may have a storage class of its own
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
        self._inner.upload(key, replace(source, parts=lambda: self._counted(key, source)))

    def _counted(self, key: str, source: UploadSource) -> Iterator[Body]:
        """Yield the parts; the second part adds the begin and the completion of a multipart upload."""
        sent_bytes = parts = 0
        for part in source.parts():
            sent_bytes += len(part)
            is_new = source.read_again is None or sent_bytes > parts * source.part_bytes
            parts += is_new
            extra = 2 if is_new and parts == 2 else 0
            self._count(key, puts=is_new + extra, posts=extra, bytes_in=len(part))
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
