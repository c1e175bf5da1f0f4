"""A file to inspect, on disk or in a bucket. The name determines its kind, as in Kafka's own tool."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial

from local import kernels, names
from local.errors import Corrupt, InvalidRequest, NotFound
from local.format.compression import zstd_frame_header
from local.format.crc32c import crc32c
from local.names import LOG, OFFSET_INDEX, TopicPartition, parse_partition_directory, segment_file
from local.records.batch_runs import BatchRuns
from local.storage import DiskStorage, StorageFile, join, parent
from remote.keys import (
    ENCRYPTED_SUFFIX,
    INDEXES_SUFFIX,
    full_key,
    parse_data_key,
    parse_manifest_key,
    parse_partition,
    parse_topic_directory,
    parse_view_key,
    stem_of,
)
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import MetadataIndex, Pages
from remote.manifest.sealing import keyed
from remote.segments.encryption import KeyRing, ObjectCipher
from remote.segments.stored_segment import ChunkTable, decode_bundle, inflated, open_chunk, open_ring
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
FRAME_BYTES_MAX = 256 << 20  # no chunk is larger: one batch at most, and a damaged frame may claim any size
MANIFESTS_READ = 400  # searched from the newest, for the entry of an object that left the index
_OBJECT = re.compile(r"(?:.*/)?(?=(?:data|view/[^/]+)/[^/]+\Z)")
HEADER_BYTES_MAX = 18
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_REPEATED, _RESERVED = 1, 3
_DISK = DiskStorage()


class Kind(Enum):
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


_BY_NAME = {kind.value: kind for kind in (Kind.LEADER_EPOCHS, Kind.PARTITION_METADATA, Kind.META_PROPERTIES)}
_BY_NAME[Kind.CLEAN_SHUTDOWN.value] = Kind.CLEAN_SHUTDOWN
_BY_SUFFIX = {_OFFSET_CHECKPOINT: Kind.OFFSET_CHECKPOINT, _KRAFT_SNAPSHOT: Kind.LOG}
_BY_SUFFIX |= {suffix: Kind.LOG if suffix == LOG else Kind.STORED_LOG for suffix in _STORED}
_BY_SUFFIX |= {
    kind.value: kind
    for kind in (Kind.OFFSET_INDEX, Kind.TIME_INDEX, Kind.TXN_INDEX, Kind.PRODUCER_SNAPSHOT, Kind.INDEXES)
}


def kind_of(path: str) -> Kind | None:
    if parse_manifest_key("/".join(path.split("/")[-3:])) is not None:
        return Kind.MANIFEST
    name = path.rpartition("/")[2]
    for suffix in _ON_ITS_WAY:
        name = name.removesuffix(suffix)
    return _BY_NAME.get(name) or next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), None)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file, or an object, which is always whole. `place` names it in messages."""

    place: str
    size_bytes: int
    store: ObjectStore | None
    key: str
    _file: StorageFile | None = None

    @property
    def kind(self) -> Kind | None:
        return kind_of(self.place)

    @property
    def base_offset(self) -> int | None:
        found = _SEGMENT_NAME.match(self.place.rpartition("/")[2])
        return int(found[1]) if found else None

    @property
    def partition(self) -> TopicPartition | None:
        parts = self.place.split("/")
        if self.store is None:
            return parse_partition_directory(parts[-2]) if len(parts) > 1 else None
        at = next((at for at in (len(parts) - 3, len(parts) - 4) if at > 0 and parts[at + 1] in _ROOMS), None)
        topic = parse_topic_directory(parts[at - 1]) if at else None
        number = parse_partition(parts[at]) if at else None
        return TopicPartition(topic[0], number) if topic is not None and number is not None else None

    def walks(self) -> Iterable[BatchRuns]:
        return [BatchRuns(self.read, self.size_bytes)]

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
        if self.store is not None:
            return None
        stem = self.place
        for each in _ON_ITS_WAY:
            stem = stem.removesuffix(each)
        path = stem.rpartition(".")[0] + suffix
        return open_file(path) if _DISK.exists(path) else None

    def read_other(self, name: str) -> bytes | None:
        directory, slash, _ = (self.place if self.store is None else self.key).rpartition("/")
        with suppress(NotFound):
            return (_DISK.read if self.store is None else self.store.get)(f"{directory}{slash}{name}")
        return None

    def neighbours(self) -> list[int]:
        if self.store is not None:
            return []
        found = (names.parse_segment_file(name) for name in _DISK.list(parent(self.place)))
        return sorted(base for base, suffix in filter(None, found) if suffix == names.LOG)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def open_file(path: str) -> FileSource:
    """Open a file on disk; the caller closes it. Raises NotFound."""
    if _DISK.is_directory(path) or not _DISK.exists(path):
        raise NotFound("the file to dump does not exist", path=path)
    file = _DISK.open_reader(path)
    return FileSource(path, file.size(), None, "", file)


def open_object(store: ObjectStore, key: str) -> FileSource:
    """Open an object; the caller closes the store. Raises NotFound."""
    return FileSource(f"{store.url.rstrip('/')}/{key}", store.head(key).size_bytes, store, key)


def url_in_bucket(path: str) -> str | None:
    """Return the ``file://`` url of a file in a bucket's directory, or in a copy of one; None elsewhere."""
    whole = os.path.abspath(path)
    return f"file://{whole}" if _root_of(whole) is not None else None


def _root_of(path: str) -> tuple[str, str] | None:
    found = _IN_BUCKET.fullmatch(path)
    if found is None or parse_topic_directory(found[2].partition("/")[0]) is None:
        return None
    return found[1] or "/", found[2]


def split_object_url(url: str) -> tuple[str, str]:
    """(the store's url, the key) of an object; a ``file://`` store is the bucket, else the file's directory."""
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if (found := _root_of(rest)) is not None:
            return f"{scheme}://{found[0]}", found[1]
        directory, _, key = rest.rpartition("/")
        return f"{scheme}://{directory or '/'}", key
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


Index = tuple[str, str | None]  # a path or a url, and a section of the file; None: the whole file


def index_of_segment(target: str) -> Index:
    """Return the index of a ``.log`` on disk or in a bucket, or of an index itself. Raises InvalidRequest."""
    suffix = next((each for each in (*_STORED, INDEXES_SUFFIX, OFFSET_INDEX) if target.endswith(each)), None)
    if suffix is None:
        raise InvalidRequest("cannot find an index, the file is not a segment", path=target)
    stem = target.removesuffix(suffix)
    is_plain = suffix == OFFSET_INDEX or (suffix == LOG and "://" not in target)
    return (stem + OFFSET_INDEX, None) if is_plain else (stem + INDEXES_SUFFIX, SECTION)


def index_of_offset(source: PartitionSource, url: str | None, offset: int | None) -> Index:
    """Return the index of the segment with `offset` (None: the first segment), a local one if possible.

    `url` is the bucket's. Raises OffsetOutOfRange, Unavailable, and InvalidRequest for an external layout.
    """
    first, following = source.start_offset(), source.next_offset()
    wanted = first if offset is None else offset
    if not first <= wanted < following:
        raise out_of_range(source.partition, wanted, first, following)
    if source.is_local(wanted) and source.log is not None:
        bases = [each.base_offset for each in source.log.segments()]
        base = max((each for each in bases if each <= wanted), default=bases[0])
        return join(source.log.directory, segment_file(base, OFFSET_INDEX)), None
    row, _ = source.entry_at(wanted)
    if row is None or source.remote is None or url is None or not row.indexes_key.endswith(INDEXES_SUFFIX):
        raise InvalidRequest("cannot find an index, the bucket has no separate index file", partition=source.partition)
    return f"{url.rstrip('/')}/{full_key(source.remote.prefix, row.indexes_key)}", SECTION


# Stored segments (``.log.zst``, ``.log.enc``, ``.log.zst.enc``) are opened by name, chunk by chunk. The chunk borders
# come from the object's ``.indexes`` object or, for zstd without encryption, from its frames. The wrapped data key of
# an encrypted object is in its segment entry, for which the manifests are searched, newest first. A chunk that cannot
# be opened is omitted, and `damage` has the first one. The next chunk is read, because chunks of compressed or
# encrypted objects have whole batches. Positions are bytes of the segment. Memory: one chunk.


# A chunk: its position and length in the object, its position in the segment, and what converts stored bytes.
_Chunk = tuple[int, int, int, Callable[[bytes], bytes]]


class StoredSegment:
    """A stored segment. Iterate `walks` once; `damage` is the first chunk that did not open, or None."""

    def __init__(self, source: FileSource, chunks: Iterator[_Chunk]) -> None:
        self.partition = source.partition
        self._source, self._chunks = source, chunks
        self._next_offset = source.base_offset
        self.damage: Corrupt | None = None

    def walks(self) -> Iterator[BatchRuns]:
        stored_end = 0
        try:
            for stored_start, length, start, opened in self._chunks:
                stored_end = stored_start + length
                try:
                    stored = self._source.read(stored_start, length)
                    if len(stored) != length:
                        raise Corrupt("the object ends before the range", found_bytes=len(stored))
                    body = opened(stored)
                except Corrupt as error:
                    self._note(error, stored_start, length)
                    continue
                yield BatchRuns(partial(_range_of, memoryview(body), start), start + len(body), start=start)
                with suppress(Corrupt):
                    table = kernels.scan_batches(body, verify=False)
                    self._next_offset = int(table.last_offsets[-1]) + 1 if len(table) else self._next_offset
        except Corrupt as error:  # damage of the frames themselves
            self._note(error, stored_end, self._source.size_bytes - stored_end)

    def _note(self, error: Corrupt, start: int, length: int) -> None:
        if self.damage is None:
            facts = {"object": self._source.place, "start": start, "length": length, "from_offset": self._next_offset}
            more = {name: value for name, value in error.facts.items() if name not in facts}
            self.damage = Corrupt(f"cannot dump a stored segment: {error.attempt}", **facts, **more)


def is_encrypted(path: str) -> bool:
    return path.endswith(ENCRYPTED_SUFFIX)


def open_stored(source: FileSource, keys: KeyRing) -> StoredSegment:
    """Open an object of the bucket, or a file copied from there. Raises AccessDenied, NotFound, Corrupt."""
    cipher = _cipher(source, keys) if is_encrypted(source.place) else None
    name = stem_of(source.place) + INDEXES_SUFFIX
    body = source.read_other(name)
    if body is None and cipher is not None:
        raise NotFound(
            "cannot dump an encrypted segment, its index bundle is not in the same directory", object=source.place
        )
    if body is None:
        return StoredSegment(source, _by_frames(source))
    try:
        table = decode_bundle(body if cipher is None else cipher.open_indexes(body)).chunks
    except Corrupt as error:
        place = source.place.rpartition("/")[0] + "/" + name
        raise Corrupt(f"cannot dump a stored segment: {error.attempt}", object=place, **error.facts) from error
    if table.is_as_it_is:
        raise Corrupt("cannot dump a stored segment, its index bundle belongs to a plain segment", object=source.place)
    return StoredSegment(source, _by_table(table, cipher))


def _by_table(table: ChunkTable, cipher: ObjectCipher | None) -> Iterator[_Chunk]:
    for number in range(len(table)):
        start, length = table.stored_range(number)

        def opened(stored: bytes, number: int = number) -> bytes:
            if (found := crc32c(stored)) != (expected := table.stored_crc(number)):
                raise Corrupt(
                    "a chunk is damaged, its checksum differs", expected=f"{expected:08x}", found=f"{found:08x}"
                )
            return open_chunk(table, number, stored, cipher)

        yield start, length, table.chunk_range(number)[0], opened


def _by_frames(source: FileSource) -> Iterator[_Chunk]:
    start = 0
    for stored_start, length, content_bytes in frames(source.read, source.size_bytes):
        if content_bytes > FRAME_BYTES_MAX:
            raise Corrupt("a zstd frame declares too large a size", content_bytes=content_bytes, limit=FRAME_BYTES_MAX)

        def opened(stored: bytes, content_bytes: int = content_bytes) -> bytes:
            body = inflated(memoryview(stored), content_bytes)
            if len(body) != content_bytes:
                facts = {"expected_bytes": content_bytes, "found_bytes": len(body)}
                raise Corrupt("a zstd frame is shorter than declared", **facts)
            return bytes(body)

        yield stored_start, length, start, opened
        start += content_bytes


def _cipher(source: FileSource, keys: KeyRing) -> ObjectCipher | None:
    if source.store is None or (found := _OBJECT.match(source.key)) is None:
        hint = "its key is in a manifest: name the object by its url, or the file in a copy of the bucket"
        raise InvalidRequest(f"cannot dump an encrypted segment, {hint}", path=source.place)
    prefix, key = found[0], source.key[found.end() :]
    store, name = keyed(source.store, keys), parse_data_key(key) or parse_view_key(key)
    chain, pages = ManifestChain(store, prefix), Pages(store, prefix)
    manifest = chain.newest(None) if name is not None else None
    for _ in range(MANIFESTS_READ):
        if manifest is None or name is None:
            break
        entry = None
        with suppress(NotFound):  # a page of an older manifest, already deleted
            rows = MetadataIndex(manifest, pages.entries).entries_with_dead(name.base_offset, name.last_offset + 1)
            of_views = name.view is not None
            entry = next((each for each in (manifest.view_entries if of_views else rows) if each.data_key == key), None)
        if entry is not None and entry.key_id is None:
            raise Corrupt("cannot dump an encrypted segment, its entry has no key", object=source.place)
        if entry is not None:
            return open_ring(entry, prefix, keys)
        manifest = chain.read(manifest.sequence - 1) if manifest.sequence > 1 else None
    raise NotFound("cannot dump an encrypted segment, no manifest names it, so its key is lost", object=source.place)


def _range_of(body: memoryview, start: int, at: int, length: int) -> memoryview:
    return body[at - start : at - start + length]


def frames(read: Callable[[int, int], bytes], size_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (position, length, content bytes) of the zstd frames of a file, then raise Corrupt at damage.

    Damage: no frame starts at a position, a frame does not state its content size, or the file ends inside a frame.
    """
    at = 0
    while at < size_bytes:
        header = read(at, min(HEADER_BYTES_MAX, size_bytes - at))
        if header[:4] != _ZSTD_MAGIC or len(header) < 5:
            raise Corrupt("cannot read zstd frames, the position is not the start of a frame", start=at)
        header_bytes, content_bytes, checksum_bytes = zstd_frame_header(header)
        if content_bytes is None or len(header) < header_bytes:
            raise Corrupt("cannot read zstd frames, a frame has no content size", start=at)
        end = _end_of_blocks(read, at + header_bytes, size_bytes, at) + checksum_bytes
        if end > size_bytes:
            raise Corrupt("cannot read zstd frames, the file ends inside a frame", start=at, size_bytes=size_bytes)
        yield at, end - at, content_bytes
        at = end


def _end_of_blocks(read: Callable[[int, int], bytes], at: int, size_bytes: int, start: int) -> int:
    is_last = False
    while not is_last:
        header = int.from_bytes(read(at, 3), "little") if at + 3 <= size_bytes else None
        if header is None or header >> 1 & 3 == _RESERVED:
            raise Corrupt(
                "cannot read zstd frames, the file ends inside a frame, or the frame is damaged", start=start, block=at
            )
        is_last = bool(header & 1)
        at += 3 + (1 if header >> 1 & 3 == _REPEATED else header >> 3)
    return at
