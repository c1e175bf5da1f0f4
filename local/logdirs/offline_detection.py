"""A `Storage` of one of several log directories that takes itself offline when its disk fails.

The first `DiskFailed` with a cause in the disk itself is passed to `on_failure` and takes the storage offline.
From then on every call raises DiskFailed with that cause: a disk in an unknown state is neither read nor written.
A full disk, or a lack of descriptors or memory, is not such a failure: the call fails and the disk stays usable.
Source: kafka `LogDirFailureChannel`, which takes a directory offline at any IOException.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from local.errors import DiskFailed, ErrorCode, LogError
from local.storage import Storage, StorageFile

# Causes (errno names) that do not indicate a failed disk.
PASSING = frozenset({"enospc", "edquot", "emfile", "enfile", "enomem", "eintr", "eagain", "efbig", "enametoolong"})

_P = ParamSpec("_P")
_T = TypeVar("_T")
OnFailure = Callable[[LogError], None]


class WatchedStorage:
    """See the module. As thread safe as the storage below; `on_failure` is called once, from any thread."""

    def __init__(self, inner: Storage, root: str, on_failure: OnFailure) -> None:
        self.failure: LogError | None = None
        self._inner = inner
        self._root = root
        self._on_failure = on_failure
        self._failing = threading.Lock()
        watch = self.watched
        self.read, self.map = watch(inner.read), watch(inner.map)
        self.exists, self.size = watch(inner.exists), watch(inner.size)
        self.modified_ms, self.set_modified_ms = watch(inner.modified_ms), watch(inner.set_modified_ms)
        self.space, self.list, self.list_files = watch(inner.space), watch(inner.list), watch(inner.list_files)
        self.is_directory, self.make_directory = watch(inner.is_directory), watch(inner.make_directory)
        self.make_directories, self.remove_directory = watch(inner.make_directories), watch(inner.remove_directory)
        self.rename, self.unlink = watch(inner.rename), watch(inner.unlink)
        self.sync_directory, self.lock = watch(inner.sync_directory), watch(inner.lock)

    def fail(self, error: LogError) -> None:
        """Take the storage offline because of `error`. Only the first call reports to `on_failure`."""
        with self._failing:
            is_first = self.failure is None
            self.failure = self.failure or error
        if is_first:
            self._on_failure(error)

    def watched(self, act: Callable[_P, _T]) -> Callable[_P, _T]:
        """Return `act` with a watch for disk failures; it raises DiskFailed if the storage is offline."""

        def call(*args: _P.args, **more: _P.kwargs) -> _T:
            if self.failure is not None:
                raise offline(self._root, self.failure)
            try:
                return act(*args, **more)
            except DiskFailed as error:
                if error.facts.get("cause") not in PASSING:
                    self.fail(error)
                raise

        return call

    def create(self, path: str) -> StorageFile:
        return _WatchedFile(self, self.watched(self._inner.create)(path))

    def open(self, path: str) -> StorageFile:
        return _WatchedFile(self, self.watched(self._inner.open)(path))

    def open_reader(self, path: str) -> StorageFile:
        return _WatchedFile(self, self.watched(self._inner.open_reader)(path))


class _WatchedFile:
    """An open file of a watched storage. Closing is always allowed."""

    def __init__(self, storage: WatchedStorage, inner: StorageFile) -> None:
        self.append, self.read = storage.watched(inner.append), storage.watched(inner.read)
        self.size, self.truncate = storage.watched(inner.size), storage.watched(inner.truncate)
        self.sync, self.close = storage.watched(inner.sync), inner.close


def offline(directory: str, why: LogError, **facts: object) -> DiskFailed:
    """The error for a call that needs an offline directory."""
    error = DiskFailed("the log directory is offline", **facts, directory=directory, because=repr(str(why)))
    return error.with_code(ErrorCode.DIRECTORY_OFFLINE)
