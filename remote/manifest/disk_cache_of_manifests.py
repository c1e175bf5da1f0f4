"""Disk cache of the last manifest and the pages of each partition, over restarts. Never a source of truth.

Files in ``index/`` of the cache directory, for a partition with the prefix ``orders-<topic id>/3/``:

| file | content |
|---|---|
| ``orders-<topic id>-3.manifest`` | the manifest object's bytes as in the bucket |
| ``orders-<topic id>-3-<page's ulid>.page`` | a manifest page that was read |

- A manifest's first line has the CRC32C of the rest. The copy counts only if the bucket has the very same line under
  the very same name (one small GET). Even then the search for newer manifests only starts from it.
- A page's bytes are compared with the size and CRC32C in the manifest that names it.
- A torn or stale copy, a copy of another bucket, and a failing disk are ignored. Writes: a temporary name, then a
  rename; no fsync.
- The least recently used copies of all partitions are deleted first. Only the process that holds the cache directory
  writes.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Collection

from local.errors import AccessDenied, Corrupt, LogError, NotFound
from local.storage import DiskStorage, Storage, join
from remote.keys import parse_page_key
from remote.manifest.manifest import Manifest, decode_manifest
from remote.manifest.sealing import Sealer
from remote.store import Body

_log = logging.getLogger(__name__)

MANIFEST, PAGE, ASIDE = ".head", ".page", ".aside"
INDEX_SHARE = 8  # an eighth of the cache directory is for the index; a million segments need 130 MB
_COPY = re.compile(r".+-[A-Za-z0-9_-]{22}-[0-9]+(-[0-9A-Z]{26})?\.(head|page)(\.aside)?", re.ASCII)


class ManifestDiskCache:
    """Copies for the partitions of one store. Thread safe for different partitions."""

    def __init__(
        self, storage: Storage, directory: str, bytes_max: int | None = None, *, is_writer: bool = True
    ) -> None:
        """`bytes_max` limits the size of all copies; None for no limit."""
        self._storage = storage
        self._directory = directory
        self._bytes_max = bytes_max
        self._is_writer = is_writer
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] | None = None  # of the existing copies, least recently used first
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def manifest(self, prefix: str, sealer: Sealer | None = None) -> tuple[Manifest, bytes] | None:
        """The stored manifest and its bytes; None without a sound copy, or without its key."""
        body = self._read(_name(prefix) + MANIFEST)
        if body is None:
            return None
        try:
            return decode_manifest(body, prefix, sealer=sealer), body
        except (Corrupt, AccessDenied) as error:
            _log.warning("a local copy of a manifest is ignored: prefix=%s %s", prefix, error)
            return None

    def keep_manifest(self, prefix: str, body: bytes, page_keys: Collection[str]) -> None:
        """Store this manifest in place of the former one; delete copies of pages that it does not name."""
        if not self._is_writer:
            return
        self._write(_name(prefix) + MANIFEST, body)
        named = {_page_name(prefix, key) for key in page_keys}
        begins = _name(prefix) + "-"
        try:
            for name in self._storage.list(self._directory):
                if name.startswith(begins) and name.endswith(PAGE) and name not in named:
                    with self._lock:
                        self._forget(name)
        except (LogError, OSError) as error:
            _log.warning("cannot delete old local copies of manifest pages: directory=%s %s", self._directory, error)

    def page(self, prefix: str, key: str) -> bytes | None:
        """The stored bytes of a page, unchecked; None if there is no copy."""
        return self._read(_page_name(prefix, key))

    def keep_page(self, prefix: str, key: str, body: Body) -> None:
        if self._is_writer:
            self._write(_page_name(prefix, key), body)

    def _read(self, name: str) -> bytes | None:
        try:
            body = self._storage.read(join(self._directory, name))
            with self._lock:
                if self._sizes is not None and name in self._sizes:
                    self._sizes.move_to_end(name)
            return body
        except NotFound:
            return None
        except (LogError, OSError) as error:
            _log.warning("cannot read a local copy of the index: directory=%s %s", self._directory, error)
            return None

    def _write(self, name: str, body: Body) -> None:
        path = join(self._directory, name)
        try:
            self._storage.make_directory(self._directory)
            if not self._has_room(name, len(body)):
                return
            aside = self._storage.create(path + ASIDE)
            try:
                aside.append(body)
            finally:
                aside.close()
            self._storage.rename(path + ASIDE, path)
            self._note(name, len(body))
        except (LogError, OSError) as error:
            _log.warning("cannot write a local copy of the index: directory=%s %s", self._directory, error)

    def _has_room(self, name: str, size_bytes: int) -> bool:
        """Delete the least recently used copies to make room; False if that is not enough."""
        if self._bytes_max is None:
            return True
        with self._lock:
            self._know()
            assert self._sizes is not None
            if size_bytes > self._bytes_max:
                return False
            while self._bytes - self._sizes.get(name, 0) + size_bytes > self._bytes_max:
                self._forget(next(each for each in self._sizes if each != name))
            return True

    def _note(self, name: str, size_bytes: int) -> None:
        with self._lock:
            if self._sizes is not None:
                self._bytes += size_bytes - self._sizes.pop(name, 0)
                self._sizes[name] = size_bytes

    def _forget(self, name: str) -> None:
        self._storage.unlink(join(self._directory, name))
        if self._sizes is not None:
            self._bytes -= self._sizes.pop(name, 0)

    def _know(self) -> None:
        """Load names and sizes of existing copies, ordered by modification time; ignores other files."""
        if self._sizes is not None:
            return
        found = []
        for name in filter(_COPY.fullmatch, self._storage.list(self._directory)):
            path = join(self._directory, name)
            if name.endswith(ASIDE):
                self._storage.unlink(path)  # left by a crash
            else:
                found.append((self._storage.modified_ms(path), name, self._storage.size(path)))
        self._sizes = OrderedDict((name, size_bytes) for _, name, size_bytes in sorted(found))
        self._bytes = sum(self._sizes.values())


def manifest_disk_cache(
    cache_dir: str | None, bytes_max: int | None = None, *, is_writer: bool = True
) -> ManifestDiskCache | None:
    """The disk cache of manifests in `cache_dir`; None without such a directory."""
    if not cache_dir:
        return None
    return ManifestDiskCache(DiskStorage(), join(cache_dir, "index"), bytes_max, is_writer=is_writer)


def shares(cache_dir_bytes: int) -> tuple[int, int]:
    """Split a cache directory's bytes: (for chunks of objects (`remote.fetch.disk_cache`), for the index)."""
    index_bytes = cache_dir_bytes // INDEX_SHARE
    return cache_dir_bytes - index_bytes, index_bytes


def _name(prefix: str) -> str:
    """File name stem of a partition. Unique: a topic name holds no slash, and its id has a fixed width."""
    return prefix.strip("/").replace("/", "-")


def _page_name(prefix: str, key: str) -> str:
    parsed = parse_page_key(key)
    assert parsed is not None, "a head names pages by their keys"
    return f"{_name(prefix)}-{parsed.ulid}{PAGE}"
