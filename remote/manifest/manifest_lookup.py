"""Lookups in a manifest and its pages: the segment that holds an offset, or that may hold a timestamp.

An entry in a page costs one GET the first time. NotFound for a page: it was replaced; read the newest manifest.
"""

from __future__ import annotations

import itertools
import logging
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TypeVar

from local.errors import AccessDenied, Corrupt
from local.storage import DiskStorage, Storage, join
from remote.cache.chunk_cache import ChunkCache
from remote.cache.disk_cache import CachedFiles
from remote.keys import parse_page_key
from remote.manifest.manifest import Manifest, PageEntry, decode_manifest
from remote.manifest.manifest_page import DecodedPage, Rows, decode_page
from remote.manifest.sealing import Sealer, sealer_of
from remote.segment_entry import SegmentEntry
from remote.store import Body, ObjectStore, read_named

CACHED_ENTRIES_MAX = 32 * 4096  # of cached pages in the process: 1.2 kB each once decoded, some 150 MB at most

P = TypeVar("P", PageEntry, SegmentEntry)

_next_offset = attrgetter("next_offset")
_base_offset = attrgetter("base_offset")
# Owner, key, size and checksum of a page: an entry that states other values for the same object does not match.
PageName = tuple[int, str, int, int]
PROCESS_PAGES = ChunkCache(CACHED_ENTRIES_MAX)
_owners = itertools.count()
_log = logging.getLogger(__name__)
MANIFEST, PAGE = ".head", ".page"
INDEX_SHARE = 8  # an eighth of the cache directory is for the index; a million segments need 130 MB
_COPY = re.compile(
    r".+-[A-Za-z0-9_-]{22}-[0-9]+(?:-[0-9A-Z]{26})?\.(?:head|page)(?P<unfinished>\.aside|\.[0-9]+\.part)?", re.ASCII
)


class ManifestDiskCache:
    """Disk cache of the last manifest and the pages of one store's partitions, over restarts. Never a source of truth.

    Files in ``index/`` of the cache directory, as in the bucket: ``orders-<topic id>-3.head`` is the manifest of the
    partition ``orders-<topic id>/3/``, ``orders-<topic id>-3-<page's ulid>.page`` a page that was read.

    A copy of a manifest counts only if the bucket has the very same first line, with the CRC32C of the rest, under the
    same name (one small GET). Even then the search for newer manifests only starts from it. A page's bytes are compared
    with the size and CRC32C in the manifest that names it. Torn, stale and foreign copies, and a failing disk, are
    ignored. Thread safe for different partitions.
    """

    def __init__(
        self, storage: Storage, directory: str, bytes_max: int = sys.maxsize, *, is_writer: bool = True
    ) -> None:
        self._files = CachedFiles(storage, directory, bytes_max, _COPY, is_writer=is_writer, ends_with_error=False)
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
        return self._files.get(_page_name(prefix, key))

    def keep_page(self, prefix: str, key: str, body: Body) -> None:
        self._files.put(_page_name(prefix, key), body)


def manifest_disk_cache(
    cache_dir: str | None, bytes_max: int = sys.maxsize, *, is_writer: bool = True
) -> ManifestDiskCache | None:
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


def new_owner() -> int:
    """A new owner id for pages. Pages of another store, or of a restored one, have another owner."""
    return next(_owners)


class Pages:
    """The pages of one partition, read on first use, checked and cached. Thread safe."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        cache: ChunkCache = PROCESS_PAGES,
        copies: ManifestDiskCache | None = None,
    ) -> None:
        self._copies = copies
        self._store = store
        self._prefix = prefix
        self.sealer = sealer_of(store, prefix)
        self._cache = cache
        self.owner = new_owner()

    def entries(self, page: PageEntry) -> Rows:
        """All entries of a page. Raises NotFound without it, Corrupt if two reads differ from `page`."""
        return self._cache.fetch([self._name(page)], lambda names: {names[0]: self._read(page)})[0]

    def keep(self, page: PageEntry, entries: Rows) -> None:
        self._cache.keep({self._name(page): entries})

    def _name(self, page: PageEntry) -> PageName:
        return self.owner, page.key, page.page_bytes, page.page_crc32c

    def _read(self, page: PageEntry) -> Rows:
        copy = self._copies.page(self._prefix, page.key) if self._copies is not None else None
        if copy is not None:
            with suppress(Corrupt):
                return decode_page(page, copy, self.sealer)
        with suppress(Corrupt):  # possibly damaged in transit: read again
            return self._fetch(page)
        try:
            return self._fetch(page)
        except Corrupt as error:
            facts = {**error.facts, "key": self._prefix + page.key}
            raise Corrupt(error.attempt, store=self._store.url, **facts) from error

    def _fetch(self, page: PageEntry) -> Rows:
        body = read_named(lambda: self._store.get(self._prefix + page.key))
        entries = decode_page(page, body, self.sealer)
        if self._copies is not None:
            self._copies.keep_page(self._prefix, page.key, body)
        return entries


class MetadataIndex:
    """One manifest with the entries of its pages, without dead ones: below the log start, or of a disabled tier."""

    def __init__(self, manifest: Manifest, entries_of: Callable[[PageEntry], Rows]) -> None:
        self.manifest = manifest
        self.page = entries_of  # all entries of a page, dead or not

    def find_by_offset(self, offset: int) -> SegmentEntry | None:
        """The entry that holds `offset`, or the first after it; None past the last. Reads at most one page."""
        return next(self.entries(offset), None)

    def find_by_timestamp(self, timestamp_ms: int, start: int = 0, end: int | None = None) -> SegmentEntry | None:
        """The first entry of ``[start, end)`` with a record at or after `timestamp_ms`; None if there is none.

        Checks entries in order, since timestamps need not ascend; skips unknown largest timestamps.
        """
        for part in self.parts(start, end):
            if part.max_timestamp_ms is None or part.max_timestamp_ms < timestamp_ms:
                continue
            if isinstance(part, SegmentEntry):
                return part
            if (entry := self._first_inside(part, timestamp_ms, start, end)) is not None:
                return entry
        return None

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[SegmentEntry]:
        """The entries with offsets in ``[start, end)``, ascending; reads a page when the iteration reaches it."""
        for part in self.parts(start, end):
            if isinstance(part, SegmentEntry):
                yield part
            else:
                yield from self._inside(part, start, end)

    def parts(self, start: int = 0, end: int | None = None) -> Iterator[PageEntry | SegmentEntry]:
        """As `entries`, from the manifest alone: an overlapping page stands for its entries, dead ones included."""
        wanted = max(start, self.manifest.min_readable_offset)
        yield from _touching(self.manifest.pages, wanted, end)
        yield from _touching(self.manifest.segments, wanted, end)

    def last_entry(self) -> SegmentEntry | None:
        """The entry with the highest offsets, dead or not; None without entries. May read the last page."""
        if self.manifest.segments:
            return self.manifest.segments[-1]
        return self.page(self.manifest.pages[-1])[-1] if self.manifest.pages else None

    def holds(self, entry: SegmentEntry) -> bool:
        """Whether this very entry still exists, dead or not. Reads at most one page."""
        return any(each.ulid == entry.ulid for each in self.entries_with_dead(entry.base_offset, entry.next_offset))

    def entries_with_dead(self, start: int, end: int) -> Iterator[SegmentEntry]:
        for page in self.manifest.pages:
            if page.base_offset < end and start < page.next_offset:
                yield from _touching(self.page(page), start, end)
        yield from _touching(self.manifest.segments, start, end)

    def _inside(self, page: PageEntry, start: int, end: int | None) -> Iterable[SegmentEntry]:
        return _touching(self.page(page), max(start, self.manifest.min_readable_offset), end)

    def _first_inside(self, page: PageEntry, timestamp_ms: int, start: int, end: int | None) -> SegmentEntry | None:
        entries = self.page(page)
        if isinstance(entries, DecodedPage):
            return entries.first_at(timestamp_ms, max(start, self.manifest.min_readable_offset), end)
        stamped = (entry for entry in self._inside(page, start, end) if entry.max_timestamp_ms is not None)
        return next((entry for entry in stamped if (entry.max_timestamp_ms or 0) >= timestamp_ms), None)


def _touching(parts: Sequence[P], start: int, end: int | None) -> Iterable[P]:
    """The parts with offsets in ``[start, end)``. Parts never overlap, so their ends ascend too."""
    if isinstance(parts, DecodedPage):
        return parts.touching(start, end)
    first = bisect_right(parts, start, key=_next_offset)
    last = len(parts) if end is None else bisect_right(parts, end - 1, key=_base_offset)
    return parts[first:last]
