"""Ranges of open files, which a response holds in place of their bytes.

A descriptor stands for the bytes of its file even after the file was renamed or deleted. It is closed when the last
range of it is dropped: a read may be shared by several requests, each of which may be cut or cancelled. An event loop
keeps it KEPT_S longer, for the next fetch of a consumer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

FILES_MAX = 256  # descriptors of one source: most are of segments that several consumers read
KEPT_MAX = FILES_MAX // 2  # no descriptor is kept above it
KEPT_S = 1.0  # so long a deleted file may use its disk space after the last read


class OpenFile:
    """A descriptor that is closed with its last reference."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes ``[position, position + nbytes)`` of a file. They must not change."""

    file: OpenFile
    position: int
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes

    def after(self, size_bytes: int) -> FileRange:
        """The range without its first bytes."""
        return FileRange(self.file, self.position + size_bytes, self.nbytes - size_bytes)

    def slices(self, size_bytes: int) -> Iterator[FileRange]:
        """The range in parts of at most `size_bytes`."""
        end = self.position + self.nbytes
        for at in range(self.position, end, size_bytes):
            yield FileRange(self.file, at, min(size_bytes, end - at))

    def read(self) -> bytes:
        """The bytes; fewer if the file became shorter."""
        return os.pread(self.file.fd, self.nbytes, self.position)

    def read_cached(self) -> memoryview | None:
        """The bytes if a read needs no disk."""
        data = bytearray(self.nbytes)
        try:
            count = os.preadv(self.file.fd, [data], self.position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            count = os.preadv(self.file.fd, [data], self.position)
        return memoryview(data).toreadonly() if count == self.nbytes else None

    def is_cached(self) -> bool:
        """Whether a read most likely needs no disk: the page cache has the first and the last byte."""
        byte = bytearray(1)
        try:
            for at in (self.position, self.position + self.nbytes - 1):
                os.preadv(self.file.fd, [byte], at, os.RWF_NOWAIT)
        except OSError as error:
            # A file system without this question has no answer: its reads are taken for fast ones.
            return error.errno != errno.EAGAIN
        return True


class OpenFiles:
    """The descriptors of one source, at most FILES_MAX at a time, one for each key. Thread safe."""

    def __init__(self, files_max: int = FILES_MAX) -> None:
        self._files_max = files_max
        self._files: WeakValueDictionary[Hashable, OpenFile] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, key: Hashable, open_file: Callable[[], int]) -> OpenFile | None:
        """The open file of `key`, opened if it is not yet open; None if too many are. Raises as `open_file`."""
        with self._lock:
            found = self._files.get(key)
            if found is None and len(self._files) < self._files_max:
                found = self._files[key] = OpenFile(open_file())
                self._keep(found)
            return found

    def _keep(self, file: OpenFile) -> None:
        if len(self._files) <= KEPT_MAX:
            with suppress(RuntimeError):  # no event loop runs in this thread
                asyncio.get_running_loop().call_later(KEPT_S, _forget, file)


def _forget(file: OpenFile) -> None:
    """Drop the reference of the timer."""
