"""A persistent cache on disk: a chunk or a segment's indexes is fetched once.

A piece is a file, ``<root>/<2 hex digits>/<32 hex digits of the object's name>-<number>``, with the bytes as the store
has them. Object names are never reused, so a piece is never stale. Nothing is synced or checksummed here: the reader
checks each piece as it checks a GET, and calls `forget` for a wrong one. A disk error turns the cache off. Other files
in the directory are not touched. One process at a time uses the directory (`LOCK`).
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from contextlib import suppress
from itertools import count

from local.errors import AccessDenied, Conflict, DiskFailed, LogError, NotFound
from local.storage import Storage, StorageFile, join
from remote.store import Body

LOCK = ".lock"
WHOLE = -1  # in place of a piece's number: the whole object
_PART = ".part"  # suffix of a piece that is being written
_PIECE = re.compile(r"([0-9a-f]{2})/\1[0-9a-f]{30}-(?:-1|[0-9]+)(\.[0-9]+\.part)?", re.ASCII)

_log = logging.getLogger(__name__)


class DiskCache:
    """A disk cache in `root`. Thread safe."""

    def __init__(self, storage: Storage, root: str, bytes_max: int, lock: StorageFile | None = None) -> None:
        """`root` must exist; `close` releases `lock`. Raises AccessDenied, DiskFailed."""
        self._storage = storage
        self._root = root
        self._bytes_max = bytes_max
        self._held = lock
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._numbers = count()
        self._lacked_room = False
        self._is_off = False
        self._know()

    @classmethod
    def open(cls, storage: Storage, root: str, bytes_max: int) -> DiskCache | None:
        """The cache in `root`, created if absent; None, with a log line, if it cannot be used."""
        try:
            storage.make_directory(root)
            lock = storage.lock(join(root, LOCK))
        except Conflict:
            _log.info("the disk cache is disabled, another process uses it: directory=%s", root)
            return None
        except LogError as error:
            _log.warning("the disk cache is disabled: directory=%s cause=%s", root, error)
            return None
        try:
            return cls(storage, root, bytes_max, lock)
        except LogError as error:
            lock.close()
            _log.warning("the disk cache is disabled: directory=%s cause=%s", root, error)
            return None

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def get(self, name: str, number: int) -> bytes | None:
        piece = _file_of(name, number)
        with self._lock:
            if self._is_off or piece not in self._sizes:
                return None
            self._sizes.move_to_end(piece)
        try:
            return self._storage.read(join(self._root, piece))
        except NotFound:
            self._strike(piece)
        except (AccessDenied, DiskFailed) as error:
            self._turn_off(error)
        return None

    def keep(self, name: str, number: int, body: Body) -> None:
        """Store a piece, and evict the least recently used ones to make room."""
        piece, size = _file_of(name, number), len(body)
        with self._lock:
            if self._is_off or piece in self._sizes or size > self._bytes_max:
                return
            aside = f"{join(self._root, piece)}.{next(self._numbers)}{_PART}"
        try:
            self._storage.make_directory(join(self._root, piece[:2]))
            file = self._storage.create(aside)
            try:
                file.append(body)
            finally:
                file.close()
            self._storage.rename(aside, join(self._root, piece))
        except NotFound:
            return  # another program emptied the directory at this moment
        except (AccessDenied, DiskFailed) as error:
            self._not_kept(aside, error)
            return
        self._lacked_room = False
        with self._lock:
            self._bytes += size - self._sizes.pop(piece, 0)
            self._sizes[piece] = size
        self._make_room()

    def forget(self, name: str, number: int) -> None:
        """Remove a piece that does not match its index."""
        piece = _file_of(name, number)
        _log.warning("a cached chunk was damaged and is read again: file=%s object=%s", join(self._root, piece), name)
        self._strike(piece)
        self._remove(piece)

    def close(self) -> None:
        """Release the directory for another process. Idempotent."""
        with self._lock:
            self._is_off = True
            held, self._held = self._held, None
        if held is not None:
            held.close()

    def _know(self) -> None:
        """Load the pieces of an earlier process, oldest first; remove its unfinished ones."""
        found: list[tuple[int, str, int]] = []
        for directory in self._storage.list(self._root):
            if len(directory) != 2 or not self._storage.is_directory(join(self._root, directory)):
                continue
            for name, facts in self._storage.list_files(join(self._root, directory)).items():
                parsed = _PIECE.fullmatch(f"{directory}/{name}")
                if parsed is not None and parsed[2]:
                    self._remove(parsed[0])
                elif parsed is not None:
                    found.append((facts.modified_ms, parsed[0], facts.size_bytes))
        for _, piece, size in sorted(found):
            self._sizes[piece] = size
            self._bytes += size
        self._make_room()

    def _make_room(self) -> None:
        evicted = []
        with self._lock:
            while self._bytes > self._bytes_max:
                piece, size = self._sizes.popitem(last=False)
                self._bytes -= size
                evicted.append(piece)
        for piece in evicted:
            self._remove(piece)

    def _strike(self, piece: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(piece, 0)

    def _remove(self, piece: str) -> None:
        try:
            self._storage.unlink(join(self._root, piece))
        except LogError as error:
            self._turn_off(error)

    def _not_kept(self, aside: str, error: LogError) -> None:
        """Skip a piece that a full disk has no room for. Every other error turns the cache off."""
        if not (isinstance(error, DiskFailed) and error.lacks_room):
            self._turn_off(error)
            return
        with suppress(LogError):
            self._storage.unlink(aside)
        if not self._lacked_room:
            _log.warning("the disk cache has no space, caching resumes when there is space: directory=%s", self._root)
        self._lacked_room = True

    def _turn_off(self, error: LogError) -> None:
        with self._lock:
            was_off, self._is_off = self._is_off, True
        if not was_off:
            _log.warning("the disk cache is disabled after an error: directory=%s cause=%s", self._root, error)


def _file_of(name: str, number: int) -> str:
    import hashlib

    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{digest[:2]}/{digest}-{number}"
