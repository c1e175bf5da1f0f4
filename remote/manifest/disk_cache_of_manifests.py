"""Disk cache of the last manifest and the pages of each partition, over restarts. Never a source of truth.

Files in ``index/`` of the cache directory, for a partition with the prefix ``orders-<topic id>/3/``:

| file | content |
|---|---|
| ``orders-<topic id>-3.manifest`` | the manifest object's bytes as in the bucket |
| ``orders-<topic id>-3-<page's ulid>.page`` | a manifest page that was read |

- A manifest's first line has the CRC32C of the rest. The copy counts only if the bucket has the very same line under
  the very same name (one small GET). Even then the search for newer manifests only starts from it.
- A page's bytes are compared with the size and CRC32C in the manifest that names it.
- A torn or stale copy, a copy of another bucket, and a failing disk are ignored (`remote.cache.disk_cache`).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection

from local.errors import AccessDenied, Corrupt
from local.storage import DiskStorage, Storage, join
from remote.cache.disk_cache import CachedFiles
from remote.keys import parse_page_key
from remote.manifest.manifest import Manifest, decode_manifest
from remote.manifest.sealing import Sealer
from remote.store import Body

_log = logging.getLogger(__name__)

MANIFEST, PAGE = ".head", ".page"
INDEX_SHARE = 8  # an eighth of the cache directory is for the index; a million segments need 130 MB
_COPY = re.compile(
    r".+-[A-Za-z0-9_-]{22}-[0-9]+(?:-[0-9A-Z]{26})?\.(?:head|page)(?P<unfinished>\.aside|\.[0-9]+\.part)?", re.ASCII
)


class ManifestDiskCache:
    """Copies for the partitions of one store. Thread safe for different partitions."""

    def __init__(
        self, storage: Storage, directory: str, bytes_max: int = sys.maxsize, *, is_writer: bool = True
    ) -> None:
        self._files = CachedFiles(storage, directory, bytes_max, _COPY, is_writer=is_writer)
        if is_writer:
            self._files.load_or_turn_off()

    @property
    def size_bytes(self) -> int:
        return self._files.size_bytes

    def manifest(self, prefix: str, sealer: Sealer | None = None) -> tuple[Manifest, bytes] | None:
        """The stored manifest and its bytes; None without a sound copy, or without its key."""
        body = self._files.get(_name(prefix) + MANIFEST)
        if body is None:
            return None
        try:
            return decode_manifest(body, prefix, sealer=sealer), body
        except (Corrupt, AccessDenied) as error:
            _log.warning("a local copy of a manifest is ignored: prefix=%s %s", prefix, error)
            return None

    def keep_manifest(self, prefix: str, body: bytes, page_keys: Collection[str]) -> None:
        """Store this manifest in place of the former one; delete copies of pages that it does not name."""
        self._files.put(_name(prefix) + MANIFEST, body)
        named = {_page_name(prefix, key) for key in page_keys}
        for path in self._files.paths():
            if path.startswith(_name(prefix) + "-") and path.endswith(PAGE) and path not in named:
                self._files.remove(path)

    def page(self, prefix: str, key: str) -> bytes | None:
        """The stored bytes of a page, unchecked; None if there is no copy."""
        return self._files.get(_page_name(prefix, key))

    def keep_page(self, prefix: str, key: str, body: Body) -> None:
        self._files.put(_page_name(prefix, key), body)


def manifest_disk_cache(
    cache_dir: str | None, bytes_max: int = sys.maxsize, *, is_writer: bool = True
) -> ManifestDiskCache | None:
    """The disk cache of manifests in `cache_dir`; None without such a directory."""
    if not cache_dir:
        return None
    return ManifestDiskCache(DiskStorage(), join(cache_dir, "index"), bytes_max, is_writer=is_writer)


def shares(cache_dir_bytes: int) -> tuple[int, int]:
    """Split a cache directory's bytes: (for chunks of objects (`remote.cache.disk_cache`), for the index)."""
    index_bytes = cache_dir_bytes // INDEX_SHARE
    return cache_dir_bytes - index_bytes, index_bytes


def _name(prefix: str) -> str:
    """File name stem of a partition. Unique: a topic name holds no slash, and its id has a fixed width."""
    return prefix.strip("/").replace("/", "-")


def _page_name(prefix: str, key: str) -> str:
    parsed = parse_page_key(key)
    assert parsed is not None, "a head names pages by their keys"
    return f"{_name(prefix)}-{parsed.ulid}{PAGE}"
