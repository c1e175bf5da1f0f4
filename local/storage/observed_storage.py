"""A `Storage` that reports appended bytes and the duration of syncs to an observer.

The calling thread reports two events: bytes appended to a file, and each sync of a file with its seconds and its error.
All other calls pass through unchanged. This storage stores no figures itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from local.errors import LogError
from local.storage.storage import Body, FileFacts, Space, Storage, StorageFile


class DiskObserver(Protocol):
    """Receives the events. Must be quick and thread safe, and must never raise."""

    def appended(self, path: str, size_bytes: int) -> None: ...

    def synced(self, path: str, seconds: float, error: LogError | None) -> None: ...


class ObservedStorage:
    """See the module text. As thread safe as the storage below it."""

    def __init__(self, inner: Storage, observer: DiskObserver) -> None:
        self._inner = inner
        self._observer = observer

    def create(self, path: str) -> StorageFile:
        return _ObservedFile(self._inner.create(path), path, self._observer)

    def open(self, path: str) -> StorageFile:
        return _ObservedFile(self._inner.open(path), path, self._observer)

    def open_reader(self, path: str) -> StorageFile:
        return self._inner.open_reader(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._inner.read(path, start, length)

    def map(self, path: str) -> memoryview:
        return self._inner.map(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def modified_ms(self, path: str) -> int:
        return self._inner.modified_ms(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._inner.set_modified_ms(path, modified_ms)

    def space(self, path: str) -> Space | None:
        return self._inner.space(path)

    def list(self, path: str) -> list[str]:
        return self._inner.list(path)

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        return self._inner.list_files(path, endings)

    def is_directory(self, path: str) -> bool:
        return self._inner.is_directory(path)

    def make_directory(self, path: str) -> None:
        self._inner.make_directory(path)

    def make_directories(self, paths: Sequence[str]) -> None:
        self._inner.make_directories(paths)

    def rename(self, source: str, target: str) -> None:
        self._inner.rename(source, target)

    def unlink(self, path: str) -> None:
        self._inner.unlink(path)

    def remove_directory(self, path: str) -> None:
        self._inner.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._inner.sync_directory(path)

    def lock(self, path: str) -> StorageFile:
        return self._inner.lock(path)


class _ObservedFile:
    """An open file of an observed storage."""

    __slots__ = ("_inner", "_observer", "_path")

    def __init__(self, inner: StorageFile, path: str, observer: DiskObserver) -> None:
        self._inner, self._path, self._observer = inner, path, observer

    def append(self, data: Body) -> None:
        self._inner.append(data)
        self._observer.appended(self._path, len(data))

    def read(self, start: int, length: int) -> bytes:
        return self._inner.read(start, length)

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def sync(self) -> None:
        begun, failure = time.perf_counter(), None
        try:
            self._inner.sync()
        except LogError as error:
            failure = error
            raise
        finally:
            self._observer.synced(self._path, time.perf_counter() - begun, failure)

    def close(self) -> None:
        self._inner.close()
