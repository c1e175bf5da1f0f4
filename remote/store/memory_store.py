"""The object store in memory, for tests. Every operation is atomic under one lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from local.errors import AlreadyExists, Corrupt, NotFound
from remote.store.protocol import (
    Body,
    ObjectInfo,
    ObjectStore,
    UploadSource,
    begun_parts,
    check_body,
    check_key,
    check_range,
)


class MemoryStore(ObjectStore):
    """A store in this process. `now_ms` gives the objects' times."""

    def __init__(self, url: str = "memory://x", *, now_ms: Callable[[], int] | None = None) -> None:
        self._url = url
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int]] = {}

    @property
    def url(self) -> str:
        return self._url

    def put(self, key: str, body: Body) -> None:
        check_body(check_key(key), len(body))
        with self._lock:
            self._objects[key] = (bytes(body), self._now_ms())

    def put_if_absent(self, key: str, body: Body) -> None:
        check_body(check_key(key), len(body))
        with self._lock:
            if key in self._objects:
                raise AlreadyExists("cannot create an object, the name already exists", store=self._url, key=key)
            self._objects[key] = (bytes(body), self._now_ms())

    def upload(self, key: str, source: UploadSource) -> None:
        self.put(key, b"".join(begun_parts(check_key(key), source)))

    def get(self, key: str) -> bytes:
        return self._object("cannot read an object", key)[0]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        body = self._object("cannot read a range of an object", key)[0]
        if start + length > len(body):
            facts = {"store": self._url, "key": key, "start": start, "length": length, "size_bytes": len(body)}
            raise Corrupt("cannot read a range of an object, the object ends before the range", **facts)
        return body[start : start + length]

    def head(self, key: str) -> ObjectInfo:
        body, modified_ms = self._object("cannot read the size of an object", key)
        return ObjectInfo(key=key, size_bytes=len(body), modified_ms=modified_ms)

    def list_prefixes(self, prefix: str) -> list[str]:
        above = prefix.rfind("/") + 1
        with self._lock:
            tails = [key[above:] for key in self._objects if key.startswith(prefix)]
        return sorted({tail.partition("/")[0] for tail in tails if "/" in tail})

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            found = [
                ObjectInfo(key=key, size_bytes=len(body), modified_ms=modified_ms)
                for key, (body, modified_ms) in self._objects.items()
                if key.startswith(prefix) and key > start_after
            ]
        return iter(sorted(found, key=lambda info: info.key))

    def delete(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(check_key(key), None)

    def _object(self, attempt: str, key: str) -> tuple[bytes, int]:
        with self._lock:
            try:
                return self._objects[check_key(key)]
            except KeyError:
                raise NotFound(f"{attempt}, it does not exist", store=self._url, key=key) from None
