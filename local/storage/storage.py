"""All access to the local disk: the `Storage` interface, and its implementation for a real disk.

The order of these calls is the crash safety of the log. Guarantees of every implementation:

- The effect of `append` and `truncate` is durable only after `sync` of the file. A created, renamed or unlinked name
  is durable only after `sync_directory` of its directory.
- A failed `sync` is never retried: the file's state is unknown, because the kernel may have dropped the pages.
- All errors are `NotFound`, `AccessDenied`, `Conflict` (the lock is held) or `DiskFailed`, each with the path.

Files have mode 0600 and directories 0700. Paths are plain strings.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from local.errors import AccessDenied, Conflict, DiskFailed, ErrorCode, LogError, NotFound
from local.names import TEMPORARY, segment_file

Body = bytes | bytearray | memoryview
_POPULATE_READ = 22  # MADV_POPULATE_READ: Python's mmap does not define it
# Causes (errno names) that do not indicate a failed disk.
PASSING = frozenset({"enospc", "edquot", "emfile", "enfile", "enomem", "eintr", "eagain", "efbig", "enametoolong"})
_P = ParamSpec("_P")
_T = TypeVar("_T")
OnFailure = Callable[[LogError], None]


class FileFacts(NamedTuple):
    """File metadata from a directory listing."""

    size_bytes: int
    modified_ms: int


class Space(NamedTuple):
    """Bytes of a file system: free for this process, and total. Paths with the same `device` share them."""

    free_bytes: int
    total_bytes: int
    device: int | None = None


class StorageFile(Protocol):
    """An open file that grows at its end. Only `read` is thread safe."""

    def append(self, data: Body) -> None:
        """Write all of `data` at the end. After an error, any prefix of `data` may be in the file."""

    def read(self, start: int, length: int) -> bytes:
        """Bytes ``[start, start + length)``; fewer at the end of the file."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Shorten the file to `size` bytes. Not durable before `sync`."""

    def sync(self) -> None:
        """Make contents and length durable."""

    def close(self) -> None: ...


class Storage(Protocol):
    """The disk operations of the local tier. The module text lists their guarantees."""

    def create(self, path: str) -> StorageFile:
        """Create an empty file, or empty the existing one."""

    def open(self, path: str) -> StorageFile:
        """Open an existing file to read and append. Raises NotFound if it does not exist."""

    def open_reader(self, path: str) -> StorageFile:
        """Open an existing file to read. Raises NotFound if it does not exist."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Read from `start`, fewer bytes at the end; `length` None reads to the end. Raises NotFound."""

    def map(self, path: str) -> memoryview:
        """Map all of a file, read-only; release the map before the file shrinks. Raises NotFound, DiskFailed."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the time that `modified_ms` returns. It need not survive a crash."""

    def space(self, path: str) -> Space | None:
        """The space of the file system of `path`; None if it is unknown."""

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted. Raises NotFound if the directory does not exist."""

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        """The files of a directory in one pass, unordered, with the given endings. Raises NotFound.

        A file deleted during the pass may be missing or present.
        """

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create the directory and its missing parents, durably. No error if it exists."""

    def make_directories(self, paths: Sequence[str]) -> None:
        """Like `make_directory` for each path, but each parent is synced once, after all its children exist."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically; replaces an existing target."""

    def unlink(self, path: str) -> None:
        """Delete a file. No error if it does not exist."""

    def remove_directory(self, path: str) -> None:
        """Delete an empty directory. No error if it does not exist."""

    def sync_directory(self, path: str) -> None: ...

    def lock(self, path: str) -> StorageFile:
        """Lock `path` until the returned file is closed. Raises Conflict if another process holds it."""


def replace_file(storage: Storage, path: str, body: Body, *, syncs_name: bool = True) -> None:
    """Replace the content of `path`: a crash leaves the whole old content or the whole new content.

    Order of effects: write a temporary file, sync it, rename it, sync the directory (the caller unless `syncs_name`).
    """
    write_file(storage, path + TEMPORARY, body)
    storage.rename(path + TEMPORARY, path)
    if syncs_name:
        storage.sync_directory(parent(path))


def write_file(storage: Storage, path: str, *parts: Body) -> None:
    """Create a file with these contents and sync it. The caller syncs its name."""
    with closing(storage.create(path)) as file:
        for part in parts:
            file.append(part)
        file.sync()


def sync_file(storage: Storage, path: str, *, truncate_to: int | None = None) -> None:
    """Make an existing file durable, shortened to `truncate_to` bytes if that is given."""
    with closing(storage.open(path)) as file:
        if truncate_to is not None:
            file.truncate(truncate_to)
        file.sync()


def join(*parts: str) -> str:
    return "/".join(parts)


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


class SegmentFiles(NamedTuple):
    """The files of the segment at `base_offset` in a partition's directory."""

    storage: Storage
    directory: str
    base_offset: int

    def path(self, suffix: str) -> str:
        return join(self.directory, segment_file(self.base_offset, suffix))

    def sync_names(self) -> None:
        self.storage.sync_directory(self.directory)

    @contextmanager
    def mapped(self, suffix: str) -> Iterator[memoryview]:
        """Map a file inside the context."""
        with self.storage.map(self.path(suffix)) as data:
            yield data


class DiskFile:
    """One file descriptor, opened with `O_APPEND`: every write lands at the end."""

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        with _translated("cannot open a file", path):
            self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def append(self, data: Body) -> None:
        rest = memoryview(data)
        with _translated("cannot write to a file", self._path):
            while rest:
                written = os.write(self._fd, rest)
                if not written:  # some file systems return 0 instead of ENOSPC: a retry would loop for ever
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]

    def read(self, start: int, length: int) -> bytes:
        with _translated("cannot read a file", self._path):
            return _read_fully(self._fd, start, length)

    def size(self) -> int:
        with _translated("cannot read the size of a file", self._path):
            return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        with _translated("cannot truncate a file", self._path):
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        with _translated("cannot sync a file", self._path):
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskStorage:
    """The `Storage` of a real disk."""

    def create(self, path: str) -> StorageFile:
        return DiskFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW)

    def open(self, path: str) -> StorageFile:
        return DiskFile(path, os.O_RDWR | os.O_APPEND)

    def open_reader(self, path: str) -> StorageFile:
        return DiskFile(path, os.O_RDONLY)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with _translated("cannot read a file", path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_fully(fd, start, os.fstat(fd).st_size - start if length is None else length)
            finally:
                os.close(fd)

    def map(self, path: str) -> memoryview:
        with _translated("cannot map a file", path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                if not size:
                    return memoryview(b"")
                mapped = _mapped(fd, size)
                _fault_in(mapped)
                return memoryview(mapped)
            finally:
                os.close(fd)

    def exists(self, path: str) -> bool:
        return _mode(path) is not None

    def size(self, path: str) -> int:
        with _translated("cannot read the size of a file", path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _translated("cannot read the time of a file", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with _translated("cannot set the time of a file", path):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def space(self, path: str) -> Space | None:
        with _translated("cannot determine the free space of the disk", path):
            found = os.statvfs(path)
            device = os.stat(path).st_dev
            return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, device)

    def list(self, path: str) -> list[str]:
        with _translated("cannot list a directory", path):
            return sorted(os.listdir(path))

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        found: dict[str, FileFacts] = {}
        with _translated("cannot list a directory", path), os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.endswith(endings):
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno == errno.ELOOP:  # a link to itself is not a file
                        continue
                    raise
                if stat.S_ISREG(status.st_mode):
                    found[entry.name] = FileFacts(status.st_size, status.st_mtime_ns // 1_000_000)
        return found

    def is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(_mode(path) or 0)

    def make_directory(self, path: str) -> None:
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = parent(path) if "/" in path else ""
        for each in reversed(missing):
            _make(each)
            self.sync_directory(parent(each))

    def make_directories(self, paths: Sequence[str]) -> None:
        missing = [path for path in paths if not os.path.isdir(path)]
        above = dict.fromkeys(map(parent, missing))
        for each in above:
            self.make_directory(each)
        for each in missing:
            _make(each)
        for each in above:
            self.sync_directory(each)

    def rename(self, source: str, target: str) -> None:
        with _translated("cannot rename a file", source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        with _translated("cannot remove a file", path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        with _translated("cannot remove a directory", path), suppress(FileNotFoundError):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with _translated("cannot sync a directory", path):
            fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def lock(self, path: str) -> StorageFile:
        file = DiskFile(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise Conflict("another process holds the lock of the directory", path=path) from None
        return file


class DiskObserver(Protocol):
    """Receives the events of an `ObservedStorage`. Must be quick and thread safe, and must never raise."""

    def appended(self, path: str, size_bytes: int) -> None: ...

    def synced(self, path: str, seconds: float, error: LogError | None) -> None: ...


class ObservedStorage:
    """A storage that reports appended bytes and syncs (seconds, error), in the calling thread."""

    def __init__(self, inner: Storage, observer: DiskObserver) -> None:
        self._inner, self._observer = inner, observer
        self.open_reader, self.read, self.map, self.lock = inner.open_reader, inner.read, inner.map, inner.lock
        self.exists, self.size, self.space = inner.exists, inner.size, inner.space
        self.modified_ms, self.set_modified_ms = inner.modified_ms, inner.set_modified_ms
        self.list, self.list_files = inner.list, inner.list_files
        self.make_directory, self.make_directories = inner.make_directory, inner.make_directories
        self.rename, self.unlink, self.remove_directory = inner.rename, inner.unlink, inner.remove_directory
        self.is_directory, self.sync_directory = inner.is_directory, inner.sync_directory

    def create(self, path: str) -> StorageFile:
        return _ObservedFile(self._inner.create(path), path, self._observer)

    def open(self, path: str) -> StorageFile:
        return _ObservedFile(self._inner.open(path), path, self._observer)


class _ObservedFile:
    def __init__(self, inner: StorageFile, path: str, observer: DiskObserver) -> None:
        self._inner, self._path, self._observer = inner, path, observer
        self.read, self.size, self.truncate, self.close = inner.read, inner.size, inner.truncate, inner.close

    def append(self, data: Body) -> None:
        self._inner.append(data)
        self._observer.appended(self._path, len(data))

    def sync(self) -> None:
        started, failure = time.perf_counter(), None
        try:
            self._inner.sync()
        except LogError as error:
            failure = error
            raise
        finally:
            self._observer.synced(self._path, time.perf_counter() - started, failure)


def _make(path: str) -> None:
    with _translated("cannot create a directory", path):
        os.makedirs(path, 0o700, exist_ok=True)


def _mode(path: str) -> int | None:
    with _translated("cannot read the status of a file", path):
        try:
            return os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None


@contextmanager
def _translated(attempt: str, path: str) -> Iterator[None]:
    """Translate OSErrors into the project's errors. No other place translates disk errors."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"{attempt}, it does not exist", path=path) from None
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise AccessDenied(attempt, path=path, cause=_cause(error)) from error
    except OSError as error:
        raise DiskFailed(attempt, path=path, cause=_cause(error)) from error


def _cause(error: OSError) -> str:
    return (errno.errorcode.get(error.errno, str(error.errno)) if error.errno else type(error).__name__).lower()


if sys.version_info >= (3, 13):

    def _mapped(fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ, trackfd=False)

else:

    def _mapped(fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ)  # holds a duplicate of the descriptor until it is unmapped


def _fault_in(mapped: mmap.mmap) -> None:
    """Read every page now: a bad sector raises here, later it would end the process with SIGBUS.

    An evicted page still can. Linux before 5.14 lacks the advice.
    """
    try:
        mapped.madvise(_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _read_fully(fd: int, start: int, length: int) -> bytes:
    first = os.pread(fd, length, start)
    if len(first) in (0, length):
        return first
    parts = [first]
    have = len(first)
    while have < length and (part := os.pread(fd, length - have, start + have)):
        parts.append(part)
        have += len(part)
    return b"".join(parts)


class WatchedStorage:
    """A storage of one of several log directories that takes itself offline when its disk fails.

    The first `DiskFailed` with a cause in the disk itself is passed to `on_failure`, once, from any thread. From then
    on every call raises DiskFailed with that cause. A full disk, or a lack of descriptors or memory, is no such
    failure. Source: kafka `LogDirFailureChannel` (any IOException).
    """

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
