"""A `Storage` of one of several log directories that takes itself offline when its disk fails.

The first `DiskFailed` with a cause in the disk itself is passed to `on_failure` and takes the storage offline.
From then on every call raises DiskFailed with that cause: a disk in an unknown state is neither read nor written.
A full disk, or a lack of descriptors or memory, is not such a failure: the call fails and the disk stays usable.
Source: kafka `LogDirFailureChannel`, which takes a directory offline at any IOException.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from local.errors import DiskFailed, ErrorCode, LogError
from local.storage import Body, FileFacts, Space, Storage, StorageFile

# Causes (errno names) that do not indicate a failed disk.
PASSING = frozenset({"enospc", "edquot", "emfile", "enfile", "enomem", "eintr", "eagain", "efbig", "enametoolong"})

_P = ParamSpec("_P")
_T = TypeVar("_T")
OnFailure = Callable[[LogError], None]


class WatchedStorage:
    """See the module text.

    As thread safe as the storage below it; `on_failure` is called once, from any thread.
    """

    def __init__(self, inner: Storage, root: str, on_failure: OnFailure) -> None:
        self.failure: LogError | None = None
        self._inner = inner
        self._root = root
        self._on_failure = on_failure
        self._failing = threading.Lock()

    def fail(self, error: LogError) -> None:
        """Take the storage offline because of `error`. Only the first call reports to `on_failure`."""
        with self._failing:
            is_first = self.failure is None
            self.failure = self.failure or error
        if is_first:
            self._on_failure(error)

    def call(self, act: Callable[_P, _T], *args: _P.args, **more: _P.kwargs) -> _T:
        """Call `act` and watch for a disk failure.

        Raises DiskFailed if the storage is offline, or the error of `act`.
        """
        if self.failure is not None:
            raise offline(self._root, self.failure)
        try:
            return act(*args, **more)
        except DiskFailed as error:
            if error.facts.get("cause") not in PASSING:
                self.fail(error)
            raise

    # -- Storage -------------------------------------------------------------------------------------------------

    def create(self, path: str) -> StorageFile:
        return _WatchedFile(self, self.call(self._inner.create, path))

    def open(self, path: str) -> StorageFile:
        return _WatchedFile(self, self.call(self._inner.open, path))

    def open_reader(self, path: str) -> StorageFile:
        return _WatchedFile(self, self.call(self._inner.open_reader, path))

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.call(self._inner.read, path, start, length)

    def map(self, path: str) -> memoryview:
        return self.call(self._inner.map, path)

    def exists(self, path: str) -> bool:
        return self.call(self._inner.exists, path)

    def size(self, path: str) -> int:
        return self.call(self._inner.size, path)

    def modified_ms(self, path: str) -> int:
        return self.call(self._inner.modified_ms, path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.call(self._inner.set_modified_ms, path, modified_ms)

    def space(self, path: str) -> Space | None:
        return self.call(self._inner.space, path)

    def list(self, path: str) -> list[str]:
        return self.call(self._inner.list, path)

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        return self.call(self._inner.list_files, path, endings)

    def is_directory(self, path: str) -> bool:
        return self.call(self._inner.is_directory, path)

    def make_directory(self, path: str) -> None:
        self.call(self._inner.make_directory, path)

    def make_directories(self, paths: Sequence[str]) -> None:
        self.call(self._inner.make_directories, paths)

    def rename(self, source: str, target: str) -> None:
        self.call(self._inner.rename, source, target)

    def unlink(self, path: str) -> None:
        self.call(self._inner.unlink, path)

    def remove_directory(self, path: str) -> None:
        self.call(self._inner.remove_directory, path)

    def sync_directory(self, path: str) -> None:
        self.call(self._inner.sync_directory, path)

    def lock(self, path: str) -> StorageFile:
        return _WatchedFile(self, self.call(self._inner.lock, path))


class _WatchedFile:
    """An open file of a watched storage. Closing is always allowed."""

    def __init__(self, storage: WatchedStorage, inner: StorageFile) -> None:
        self._storage = storage
        self._inner = inner

    def append(self, data: Body) -> None:
        self._storage.call(self._inner.append, data)

    def read(self, start: int, length: int) -> bytes:
        return self._storage.call(self._inner.read, start, length)

    def size(self) -> int:
        return self._storage.call(self._inner.size)

    def truncate(self, size: int) -> None:
        self._storage.call(self._inner.truncate, size)

    def sync(self) -> None:
        self._storage.call(self._inner.sync)

    def close(self) -> None:
        self._inner.close()


def offline(directory: str, why: LogError, **facts: object) -> DiskFailed:
    """The error for a call that needs an offline directory."""
    error = DiskFailed("the log directory is offline", **facts, directory=directory, because=repr(str(why)))
    return error.with_code(ErrorCode.DIRECTORY_OFFLINE)
