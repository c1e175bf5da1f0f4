"""A file to inspect, on disk or in a bucket: name, size, byte ranges, neighbouring files.

The name determines the kind of a file, as in Kafka's own tool. A bucket's objects are read in the requested ranges, so
a segment of any size takes one chunk of memory.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum

from local import names
from local.errors import InvalidRequest, NotFound
from local.names import LOG, OFFSET_INDEX, TopicPartition, parse_partition_directory, segment_file
from local.storage import DiskStorage, Storage, StorageFile, join, parent
from remote.keys import (
    DATA_SUFFIX,
    ENCRYPTED_SUFFIX,
    INDEXES_SUFFIX,
    ZSTD_SUFFIX,
    parse_manifest_key,
    parse_partition,
    parse_topic_directory,
)
from remote.store import ObjectStore
from tiered.read.partition_source import PartitionSource, out_of_range

_SEGMENT_NAME = re.compile(r"([0-9]{20})(?:-[0-9A-Za-z-]+)?\.")
_ON_ITS_WAY = (names.DELETED, names.CLEANED, names.SWAP)
_ROOMS = ("data", "meta", "view")  # below a partition's prefix
_IN_BUCKET = re.compile(r"(.*)/([^/]+/[0-9]+/(?:data|view/[^/]+)/[^/]+)")
_KRAFT_SNAPSHOT = ".checkpoint"
_OFFSET_CHECKPOINT = "-offset-checkpoint"
_STORED = (".log.zst.enc", ".log.zst", ".log.enc", ".log")
SECTION = "offset"  # of an indexes object


class Kind(Enum):
    """Content type of a file."""

    LOG = names.LOG
    STORED_LOG = "a segment as it is stored in the bucket"
    OFFSET_INDEX = names.OFFSET_INDEX
    TIME_INDEX = names.TIME_INDEX
    TXN_INDEX = names.TXN_INDEX
    PRODUCER_SNAPSHOT = names.PRODUCER_SNAPSHOT
    INDEXES = INDEXES_SUFFIX
    MANIFEST = "head"
    LEADER_EPOCHS = names.LEADER_EPOCHS
    OFFSET_CHECKPOINT = _OFFSET_CHECKPOINT
    PARTITION_METADATA = names.PARTITION_METADATA
    META_PROPERTIES = names.META_PROPERTIES
    CLEAN_SHUTDOWN = names.CLEAN_SHUTDOWN


_BY_SUFFIX = (Kind.LOG, Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TXN_INDEX, Kind.PRODUCER_SNAPSHOT, Kind.INDEXES)
_BY_NAME = (Kind.LEADER_EPOCHS, Kind.PARTITION_METADATA, Kind.META_PROPERTIES, Kind.CLEAN_SHUTDOWN)


def kind_of(path: str) -> Kind | None:
    """Return the kind of a file by its name; None for an unknown file.

    The suffixes ``.deleted``, ``.swap`` and ``.cleaned`` are ignored.
    """
    name = path.rpartition("/")[2]
    for suffix in _ON_ITS_WAY:
        name = name.removesuffix(suffix)
    if parse_manifest_key("/".join(path.split("/")[-3:])) is not None:
        return Kind.MANIFEST
    for kind in _BY_NAME:
        if name == kind.value:
            return kind
    if name.endswith(_OFFSET_CHECKPOINT):
        return Kind.OFFSET_CHECKPOINT
    if name.endswith(_KRAFT_SNAPSHOT):
        return Kind.LOG
    if _is_stored(name):
        return Kind.STORED_LOG
    return next((kind for kind in _BY_SUFFIX if name.endswith(kind.value)), None)


def _is_stored(name: str) -> bool:
    """Return whether the segment is compressed, encrypted, or both."""
    plain = name.removesuffix(ENCRYPTED_SUFFIX).removesuffix(ZSTD_SUFFIX)
    return plain != name and plain.endswith(DATA_SUFFIX)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file or an object. `place` names it in messages.

    `is_object` also means that the upload was complete: objects are never partial.
    """

    place: str
    size_bytes: int
    store: ObjectStore | None
    key: str
    _file: StorageFile | None = None
    _storage: Storage | None = None

    @property
    def is_object(self) -> bool:
        return self.store is not None

    @property
    def kind(self) -> Kind | None:
        return kind_of(self.place)

    @property
    def base_offset(self) -> int | None:
        """The first offset, by the name."""
        found = _SEGMENT_NAME.match(self.place.rpartition("/")[2])
        return int(found[1]) if found else None

    @property
    def partition(self) -> TopicPartition | None:
        """The partition, by the directory; None for a file elsewhere."""
        parts = self.place.split("/")
        if self.store is None:
            return parse_partition_directory(parts[-2]) if len(parts) > 1 else None
        at = next((at for at in (len(parts) - 3, len(parts) - 4) if at > 0 and parts[at + 1] in _ROOMS), None)
        topic = parse_topic_directory(parts[at - 1]) if at else None
        number = parse_partition(parts[at]) if at else None
        return TopicPartition(topic[0], number) if topic is not None and number is not None else None

    def read(self, start: int, length: int) -> bytes:
        """Read bytes ``[start, start + length)``, fewer at the end of the file."""
        if self._file is not None:
            return self._file.read(start, length)
        assert self.store is not None, "a source is a file or an object"
        return self.store.get_range(self.key, start, length) if length else b""

    def read_all(self) -> bytes:
        return self.read(0, self.size_bytes)

    def sibling(self, suffix: str) -> FileSource | None:
        """Open the file of the same segment with another suffix; None if missing, or for an object."""
        if self._storage is None:
            return None
        stem = self.place
        for each in _ON_ITS_WAY:
            stem = stem.removesuffix(each)
        path = stem.rpartition(".")[0] + suffix
        return open_file(path, self._storage) if self._storage.exists(path) else None

    def beside(self, name: str) -> bytes | None:
        """Read the whole file or object `name` in the same directory; None if there is none."""
        if self.store is not None:
            try:
                return self.store.get(self.key.rpartition("/")[0] + "/" + name if "/" in self.key else name)
            except NotFound:
                return None
        assert self._storage is not None, "a source is a file or an object"
        path = self.place.rpartition("/")[0] + "/" + name if "/" in self.place else name
        return self._storage.read(path) if self._storage.exists(path) else None

    def neighbours(self) -> list[int]:
        """Return the base offsets of all segments in the same directory, including this one."""
        if self._storage is None:
            return []
        found = (names.parse_segment_file(name) for name in self._storage.list(parent(self.place)))
        return sorted(base for base, suffix in filter(None, found) if suffix == names.LOG)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def open_file(path: str, storage: Storage | None = None) -> FileSource:
    """Open a file on disk; the caller closes it. Raises NotFound."""
    disk = storage or DiskStorage()
    if disk.is_directory(path) or not disk.exists(path):
        raise NotFound("the file to dump does not exist", path=path)
    file = disk.open_reader(path)
    return FileSource(path, file.size(), None, "", file, disk)


def open_object(store: ObjectStore, key: str) -> FileSource:
    """Open an object; the store still belongs to the caller. Raises NotFound."""
    return FileSource(f"{store.url.rstrip('/')}/{key}", store.head(key).size_bytes, store, key)


def url_in_bucket(path: str) -> str | None:
    """Return the ``file://`` url of a file in a directory that is a bucket or its copy; None elsewhere."""
    whole = os.path.abspath(path)
    return f"file://{whole}" if _root_of(whole) is not None else None


def _root_of(path: str) -> tuple[str, str] | None:
    """Return (bucket, key) of an object's path, by the topic's directory in it."""
    found = _IN_BUCKET.fullmatch(path)
    if found is None or parse_topic_directory(found[2].partition("/")[0]) is None:
        return None
    return found[1] or "/", found[2]


def split_object_url(url: str) -> tuple[str, str]:
    """Split an object's url into the store's url and the key.

    The store is a bucket for ``s3://`` and ``memory://`` and a directory for ``file://``. For ``file://`` it is the
    bucket if the path is a segment's path in a bucket, else the file's directory.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if (found := _root_of(rest)) is not None:
            return f"{scheme}://{found[0]}", found[1]
        directory, _, key = rest.rpartition("/")
        return f"{scheme}://{directory or '/'}", key
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """A path or a url, and a section of the file; None: the whole file."""

    target: str
    section: str | None = None


def index_of_segment(target: str) -> IndexPlace:
    """Return the index of a ``.log`` on disk or in a bucket; an index is its own.

    Raises InvalidRequest for a file without an index.
    """
    suffix = next((each for each in _STORED if target.endswith(each)), None)
    if suffix is not None and ("://" in target or suffix != LOG):
        return IndexPlace(target=target.removesuffix(suffix) + INDEXES_SUFFIX, section=SECTION)
    if suffix is not None:
        return IndexPlace(target=target.removesuffix(LOG) + OFFSET_INDEX)
    if target.endswith(INDEXES_SUFFIX):
        return IndexPlace(target=target, section=SECTION)
    if target.endswith(OFFSET_INDEX):
        return IndexPlace(target=target)
    raise InvalidRequest("cannot find an index, the file is not a segment", path=target)


def index_of_offset(source: PartitionSource, url: str | None, offset: int | None) -> IndexPlace:
    """Return the index of the segment with `offset` (None: the first segment).

    A local segment is preferred to a remote one in the bucket at `url`. Raises OffsetOutOfRange, Unavailable, and
    InvalidRequest for an external layout.
    """
    first, following = source.start_offset(), source.next_offset()
    wanted = first if offset is None else offset
    if not first <= wanted < following:
        raise out_of_range(source.partition, wanted, first, following)
    if source.is_local(wanted) and source.log is not None:
        bases = [each.base_offset for each in source.log.segments()]
        base = max((each for each in bases if each <= wanted), default=bases[0])
        return IndexPlace(target=join(source.log.directory, segment_file(base, OFFSET_INDEX)))
    row, _ = source.entry_at(wanted)
    if row is None or source.remote is None or url is None or not row.indexes_key.endswith(INDEXES_SUFFIX):
        raise InvalidRequest("cannot find an index, the bucket has no separate index file", partition=source.partition)
    prefix = "" if row.indexes_key.startswith("/") else source.remote.prefix
    key = f"{prefix}{row.indexes_key.removeprefix('/')}"
    return IndexPlace(target=f"{url.rstrip('/')}/{key}", section=SECTION)
