"""The only door to the disk. Everything else in this project that touches a local file comes through here.

Why a door: the order of these calls is the crash safety of the log. A test hands in another `Storage` that cuts any
one call before or after its effect, forgets what was not synced, and checks what a restart finds.

Promises of every implementation:

* `append` and `replace`d bytes are durable only after `sync` of the file; a name (created, renamed, unlinked) only
  after `sync_directory` of its directory.
* A `sync` that failed is never retried: the file's state is unknown (the kernel may have dropped the pages).
* All errors are `NotFound`, `AccessDenied`, `Conflict` (lock held) or `DiskFailed`, each naming the path.

Files are 0600 and directories 0700. Paths are plain strings.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from local.errors import AccessDenied, Conflict, DiskFailed, NotFound
from local.names import TEMPORARY

Body = bytes | bytearray | memoryview
_POPULATE_READ = 22  # MADV_POPULATE_READ, which Python's mmap has no name for


class FileFacts(NamedTuple):
    """What a directory tells of a file."""

    size_bytes: int
    modified_ms: int


class Space(NamedTuple):
    """Bytes of a file system; `free_bytes` is what is left for us. Paths with the same `device` share them."""

    free_bytes: int
    total_bytes: int
    device: int | None = None


class StorageFile(Protocol):
    """An open file that grows at its end. Not thread safe, but for `read`."""

    def append(self, data: Body) -> None:
        """Write all of `data` at the end. After an error any prefix of it may be there."""
        ...

    def read(self, start: int, length: int) -> bytes:
        """Bytes ``[start, start + length)``, fewer where the file ends."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes; not durable before `sync`."""
        ...

    def sync(self) -> None:
        """Contents and length are on the platter when this returns."""
        ...

    def close(self) -> None: ...


class Storage(Protocol):
    """The calls the local tier needs; see the module text for what they promise."""

    def create(self, path: str) -> StorageFile:
        """A new empty file, or an existing one emptied."""
        ...

    def open(self, path: str) -> StorageFile:
        """An existing file, to read and to append to. Raises NotFound."""
        ...

    def open_reader(self, path: str) -> StorageFile:
        """An existing file, to read only. Raises NotFound."""
        ...

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Part of a file, or all of it; fewer bytes where it ends. Raises NotFound."""
        ...

    def map(self, path: str) -> memoryview:
        """All of a file, read-only, without copying. The caller releases it before the file shrinks.

        Raises NotFound, and DiskFailed when a part of it cannot be read.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """What `modified_ms` will say; nothing that a crash must keep."""
        ...

    def space(self, path: str) -> Space | None:
        """Of the file system that `path` lies on; None where nothing is known about it."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted. Raises NotFound."""
        ...

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        """The files in a directory, one pass over it, in no order; what vanishes meanwhile is left out or not.

        Of files whose names end otherwise than `endings` nothing is asked: each costs a call. Raises NotFound when
        there is no such directory.
        """
        ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create it and its missing parents, durably. No error when it exists."""
        ...

    def make_directories(self, paths: Sequence[str]) -> None:
        """As `make_directory` of each; those above them are synced once, when all of theirs are made."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; an existing target is replaced."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file; no error when it is gone already."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; no error when it is gone already."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def lock(self, path: str) -> StorageFile:
        """Hold `path` against every other process until the file is closed. Raises Conflict when it is held."""
        ...


def replace_file(storage: Storage, path: str, body: Body, *, syncs_name: bool = True) -> None:
    """Put `body` at `path` so that a crash leaves the old content or the new one, whole and durable.

    Order of effects: write aside, sync it, rename over, sync the directory. Only after the last is it durable: without
    `syncs_name` that is left to the caller, who has more names to sync there.
    """
    aside = storage.create(path + TEMPORARY)
    try:
        aside.append(body)
        aside.sync()
    finally:
        aside.close()
    storage.rename(path + TEMPORARY, path)
    if syncs_name:
        storage.sync_directory(parent(path))


def join(*parts: str) -> str:
    return "/".join(parts)


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


class DiskFile:
    """One file descriptor. `O_APPEND`, so that a write can land nowhere else."""

    def __init__(self, path: str, flags: int) -> None:
        self._path = path
        with _translated("opening a file", path):
            self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def append(self, data: Body) -> None:
        rest = memoryview(data)
        with _translated("writing to a file", self._path):
            while rest:
                written = os.write(self._fd, rest)
                if not written:  # a file system may say so instead of ENOSPC: asking again for ever would hold the log
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]

    def read(self, start: int, length: int) -> bytes:
        with _translated("reading a file", self._path):
            return _read_fully(self._fd, start, length)

    def size(self) -> int:
        with _translated("reading a file's size", self._path):
            return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        with _translated("truncating a file", self._path):
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        with _translated("syncing a file", self._path):
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskStorage:
    """The real disk."""

    def create(self, path: str) -> StorageFile:
        return DiskFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW)

    def open(self, path: str) -> StorageFile:
        return DiskFile(path, os.O_RDWR | os.O_APPEND)

    def open_reader(self, path: str) -> StorageFile:
        return DiskFile(path, os.O_RDONLY)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with _translated("reading a file", path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_fully(fd, start, os.fstat(fd).st_size - start if length is None else length)
            finally:
                os.close(fd)

    def map(self, path: str) -> memoryview:
        with _translated("mapping a file", path):
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
        with _translated("reading a file's size", path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _translated("reading a file's time", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with _translated("setting a file's time", path):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def space(self, path: str) -> Space | None:
        with _translated("asking for the free space", path):
            found = os.statvfs(path)
            device = os.stat(path).st_dev
            return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, device)

    def list(self, path: str) -> list[str]:
        with _translated("listing a directory", path):
            return sorted(os.listdir(path))

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        found: dict[str, FileFacts] = {}
        with _translated("listing a directory", path), os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.endswith(endings):
                    continue
                try:
                    told = entry.stat()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno == errno.ELOOP:  # a link to itself is no file
                        continue
                    raise
                if stat.S_ISREG(told.st_mode):
                    found[entry.name] = FileFacts(told.st_size, told.st_mtime_ns // 1_000_000)
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
        with _translated("renaming a file", source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        with _translated("removing a file", path), _ignoring_missing():
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        with _translated("removing a directory", path), _ignoring_missing():
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with _translated("syncing a directory", path):
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
            raise Conflict("locking a directory, another process has it open", path=path) from None
        return file


def _make(path: str) -> None:
    with _translated("making a directory", path):
        os.makedirs(path, 0o700, exist_ok=True)


def _mode(path: str) -> int | None:
    """None only when there is nothing: what a failing disk does not tell is an error, and no absence."""
    with _translated("looking for a file", path):
        try:
            return os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None


@contextmanager
def _translated(attempt: str, path: str) -> Iterator[None]:
    """Foreign errors become ours here and nowhere else."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"{attempt}, there is none", path=path) from None
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise AccessDenied(attempt, path=path, cause=_cause(error)) from error
    except OSError as error:
        raise DiskFailed(attempt, path=path, cause=_cause(error)) from error


@contextmanager
def _ignoring_missing() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        return


def _cause(error: OSError) -> str:
    return (errno.errorcode.get(error.errno, str(error.errno)) if error.errno else type(error).__name__).lower()


if sys.version_info >= (3, 13):

    def _mapped(fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ, trackfd=False)

else:

    def _mapped(fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ)  # holds a copy of the descriptor as long as it lives


def _fault_in(mapped: mmap.mmap) -> None:
    """Read every page now, where a bad sector is an error of this call: met later it would end the process (SIGBUS).

    A page that is dropped from memory and cannot be read again still would. Linux before 5.14 does not know the advice.
    """
    try:
        mapped.madvise(_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _read_fully(fd: int, start: int, length: int) -> bytes:
    """pread until `length` bytes or the end of the file; one read may give less than asked for."""
    first = os.pread(fd, length, start)
    if len(first) in (0, length):
        return first
    parts = [first]
    have = len(first)
    while have < length and (part := os.pread(fd, length - have, start + have)):
        parts.append(part)
        have += len(part)
    return b"".join(parts)
