"""Persistent caches on a disk: files of which the least recently used are deleted first. Never a source of truth.

Nothing is synced or checksummed here: the reader checks each file like the body of a GET, and removes a wrong file. A
disk error is logged. Files of other names are not touched. Writes: a temporary name, then a rename.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from contextlib import suppress
from itertools import count

from local.errors import Conflict, DiskFailed, LogError, NotFound
from local.storage import Storage, StorageFile, join
from remote.store import Body

LOCK = ".lock"
WHOLE = -1  # in place of a chunk's number: the whole object
FOLDER_LETTERS = 2  # a cache has files in its directory, or in folders whose names have this length
_PIECE = re.compile(r"([0-9a-f]{2})/\1[0-9a-f]{30}-(?:-1|[0-9]+)(?P<unfinished>\.[0-9]+\.part)?", re.ASCII)

_log = logging.getLogger(__name__)


class CachedFiles:
    """Files below `root` of at most `bytes_max` in all, by path. Thread safe."""

    def __init__(
        self,
        storage: Storage,
        root: str,
        bytes_max: int,
        paths: re.Pattern[str],
        *,
        is_writer: bool = True,
        ends_with_error: bool = True,
    ) -> None:
        """`paths` matches files, and its group ``unfinished`` interrupted writes. At most one writer at a time.

        `ends_with_error`: a disk error turns the cache off; else the next call tries again.
        """
        self._storage, self._root = storage, root
        self._bytes_max, self._paths = bytes_max, paths
        self._is_writer, self._is_off = is_writer, False
        self._ends_with_error = ends_with_error
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first; empty unless a writer
        self.size_bytes = 0
        self._numbers = count()
        self._lacked_room = False

    def load(self) -> None:
        """Find the files of an earlier process, oldest first; remove its unfinished ones. Raises AccessDenied."""
        found: list[tuple[int, str, int]] = []
        names = [each for each in self._storage.list(self._root) if len(each) == FOLDER_LETTERS]
        folders = [each for each in names if self._storage.is_directory(join(self._root, each))]
        for folder in ("", *folders):
            for name, facts in self._storage.list_files(join(self._root, folder) if folder else self._root).items():
                parsed = self._paths.fullmatch(f"{folder}/{name}" if folder else name)
                if parsed is not None and parsed["unfinished"]:
                    self._unlink(parsed[0])
                elif parsed is not None:
                    found.append((facts.modified_ms, parsed[0], facts.size_bytes))
        for _, path, size in sorted(found):
            self._sizes[path] = size
            self.size_bytes += size
        self._make_room()

    def load_or_turn_off(self) -> None:
        try:
            self._storage.make_directory(self._root)
            self.load()
        except (LogError, OSError) as error:
            self._on_error(error)

    def __contains__(self, path: str) -> bool:
        return path in self._sizes

    def paths(self) -> list[str]:
        with self._lock:
            return list(self._sizes)

    def get(self, path: str) -> bytes | None:
        with self._lock:
            if self._is_off or (self._is_writer and path not in self._sizes):
                return None
            if self._is_writer:
                self._sizes.move_to_end(path)
        try:
            return self._storage.read(join(self._root, path))
        except NotFound:
            self._strike(path)
        except (LogError, OSError) as error:
            self._on_error(error)
        return None

    def put(self, path: str, body: Body) -> None:
        """Store a file, also in place of an older one; evict the least recently used ones to make room."""
        size = len(body)
        with self._lock:
            if self._is_off or not self._is_writer or size > self._bytes_max:
                return
            aside = f"{join(self._root, path)}.{next(self._numbers)}.part"
        try:
            self._storage.make_directory(aside.rpartition("/")[0])
            file = self._storage.create(aside)
            try:
                file.append(body)
            finally:
                file.close()
            self._storage.rename(aside, join(self._root, path))
        except NotFound:
            return  # another program emptied the directory at this moment
        except (LogError, OSError) as error:
            self._not_stored(aside, error)
            return
        self._lacked_room = False
        with self._lock:
            self.size_bytes += size - self._sizes.pop(path, 0)
            self._sizes[path] = size
        self._make_room()

    def remove(self, path: str) -> None:
        self._strike(path)
        self._unlink(path)

    def close(self) -> None:
        with self._lock:
            self._is_off = True

    def _make_room(self) -> None:
        evicted = []
        with self._lock:
            while self.size_bytes > self._bytes_max:
                path, size = self._sizes.popitem(last=False)
                self.size_bytes -= size
                evicted.append(path)
        for path in evicted:
            self._unlink(path)

    def _strike(self, path: str) -> None:
        with self._lock:
            self.size_bytes -= self._sizes.pop(path, 0)

    def _unlink(self, path: str) -> None:
        try:
            self._storage.unlink(join(self._root, path))
        except (LogError, OSError) as error:
            self._on_error(error)

    def _not_stored(self, aside: str, error: Exception) -> None:
        """Skip a file that a full disk has no room for; handle every other error."""
        if not (isinstance(error, DiskFailed) and error.lacks_room):
            self._on_error(error)
            return
        with suppress(LogError):
            self._storage.unlink(aside)
        if not self._lacked_room:
            _log.warning("the disk cache has no space, caching resumes when there is space: directory=%s", self._root)
        self._lacked_room = True

    def _on_error(self, error: Exception) -> None:
        if not self._ends_with_error:
            _log.warning("cannot use the disk cache: directory=%s cause=%s", self._root, error)
            return
        with self._lock:
            was_off, self._is_off = self._is_off, True
        if not was_off:
            _log.warning("the disk cache is disabled after an error: directory=%s cause=%s", self._root, error)


class DiskCache:
    """Chunks and indexes of segments in ``<root>/<2 hex digits>/<32 hex digits of the object's name>-<number>``.

    The bytes are as in the store. Object names are never reused, so a file is never stale. One process at a time uses
    the directory (`LOCK`). Thread safe.
    """

    def __init__(self, storage: Storage, root: str, bytes_max: int, lock: StorageFile | None = None) -> None:
        """`root` must exist; `close` releases `lock`. Raises AccessDenied, DiskFailed."""
        self._files = CachedFiles(storage, root, bytes_max, _PIECE)
        self._root, self._held = root, lock
        self._files.load()

    @classmethod
    def open(cls, storage: Storage, root: str, bytes_max: int) -> DiskCache | None:
        """The cache in `root`, created if absent; None, with a log line, if it cannot be used."""
        lock = None
        try:
            storage.make_directory(root)
            lock = storage.lock(join(root, LOCK))
            return cls(storage, root, bytes_max, lock)
        except Conflict:
            _log.info("the disk cache is disabled, another process uses it: directory=%s", root)
        except LogError as error:
            _log.warning("the disk cache is disabled: directory=%s cause=%s", root, error)
            if lock is not None:
                lock.close()
        return None

    @property
    def size_bytes(self) -> int:
        return self._files.size_bytes

    def get(self, name: str, number: int) -> bytes | None:
        return self._files.get(_path_of(name, number))

    def keep(self, name: str, number: int, body: Body) -> None:
        path = _path_of(name, number)
        if path not in self._files:
            self._files.put(path, body)

    def forget(self, name: str, number: int) -> None:
        path = _path_of(name, number)
        _log.warning("a cached chunk was damaged and is read again: file=%s object=%s", join(self._root, path), name)
        self._files.remove(path)

    def close(self) -> None:
        """Release the directory for another process. Idempotent."""
        self._files.close()
        held, self._held = self._held, None
        if held is not None:
            held.close()


def _path_of(name: str, number: int) -> str:
    import hashlib

    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{digest[:2]}/{digest}-{number}"
