"""The last head and the pages of each partition, kept on a disk over restarts. A cache and nothing else.

In ``index/`` of the cache directory, for a partition with the prefix ``orders-<topic id>/3/``:
``orders-<topic id>-3.head``, the object's bytes as the bucket had them, and ``orders-<topic id>-3-<page's ulid>.page``
for each page of rows that was read.

Nothing is believed because it lies here. A head's first line has the CRC32C of the rest; the copy counts only when the
bucket has the very same line under the very same name (one small GET), and then only as the place from where newer
heads are looked for, the boundary of collected heads included. A page's bytes are compared with the size and CRC32C in
the head that names it. A copy that is torn, stale or another bucket's is as good as none, and so is a disk that fails.

Order of effects: write aside, rename; nothing is synced. A crash leaves the old copy, the new one, or one that is torn.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from local.errors import Corrupt, LogError, NotFound
from local.storage import DiskStorage, Storage, join
from remote.head import Head, decode_head
from remote.keys import parse_spill_key
from remote.store import Body

_log = logging.getLogger(__name__)

HEAD, PAGE, ASIDE = ".head", ".page", ".aside"


class IndexCopies:
    """Copies of any number of partitions of one store, in one directory. Thread safe for different partitions."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory

    def head(self, prefix: str) -> tuple[Head, bytes] | None:
        """The head that was kept last, and its bytes; None without a sound copy."""
        body = self._read(_name(prefix) + HEAD)
        if body is None:
            return None
        try:
            return decode_head(body), body
        except Corrupt as error:
            _log.warning("a local copy of a head is passed over: prefix=%s %s", prefix, error)
            return None

    def keep_head(self, prefix: str, body: bytes, page_keys: Collection[str]) -> None:
        """Keep this head in place of the one before, and of the pages only those that it names."""
        self._write(_name(prefix) + HEAD, body)
        named = {_page_name(prefix, key) for key in page_keys}
        begins = _name(prefix) + "-"
        try:
            there = self._storage.list(self._directory)
            for name in there:
                if name.startswith(begins) and name.endswith(PAGE) and name not in named:
                    self._storage.unlink(join(self._directory, name))
        except (LogError, OSError) as error:
            _log.warning("old copies of pages stay: directory=%s %s", self._directory, error)

    def page(self, prefix: str, key: str) -> bytes | None:
        """The bytes kept for a page, unchecked; None without any."""
        return self._read(_page_name(prefix, key))

    def keep_page(self, prefix: str, key: str, body: Body) -> None:
        self._write(_page_name(prefix, key), body)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._storage.read(join(self._directory, name))
        except NotFound:
            return None
        except (LogError, OSError) as error:
            _log.warning("a local copy of the index cannot be read: directory=%s %s", self._directory, error)
            return None

    def _write(self, name: str, body: Body) -> None:
        path = join(self._directory, name)
        try:
            self._storage.make_directory(self._directory)
            aside = self._storage.create(path + ASIDE)
            try:
                aside.append(body)
            finally:
                aside.close()
            self._storage.rename(path + ASIDE, path)
        except (LogError, OSError) as error:
            _log.warning("a local copy of the index is not kept: directory=%s %s", self._directory, error)


def index_copies(cache_dir: str | None) -> IndexCopies | None:
    """Copies on this machine's disk, beside what else is cached there; None where there is no such place."""
    return IndexCopies(DiskStorage(), join(cache_dir, "index")) if cache_dir else None


def _name(prefix: str) -> str:
    """A topic's name may hold dashes and dots but no slash, and its id has a fixed width, so no two prefixes meet."""
    return prefix.strip("/").replace("/", "-")


def _page_name(prefix: str, key: str) -> str:
    parsed = parse_spill_key(key)
    assert parsed is not None, "a head names pages by their keys"
    return f"{_name(prefix)}-{parsed.ulid}{PAGE}"
