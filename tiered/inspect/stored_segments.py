"""A stored segment (``.log.zst``, ``.log.enc``, ``.log.zst.enc``), opened chunk by chunk.

Readers of a partition use segment entries. This module uses one object's name, damaged or not, whether or not a
manifest still names it. The chunk borders come from the object's ``.indexes`` object or, for zstd without encryption,
from its frames. An encrypted object also needs its wrapped data key, which is in its segment entry. So the manifests
are searched for the entry, newest first.

A chunk that cannot be opened is left out and noted in `damage` (the first one only). Reading continues with the next
chunk, because chunks of compressed or encrypted objects have whole batches. Positions are bytes of the segment. Memory:
one chunk.

Find where the frames of a zstd file start and end, without decompression.

For an object without its chunk table.

| of a frame | bytes |
|---|---|
| magic | 4, 28 B5 2F FD |
| descriptor | 1: bits 7-6 size of the content size, 5 single segment, 2 checksum, 1-0 size of the dictionary id |
| window | 1, absent with a single segment |
| dictionary id | 0, 1, 2, 4 |
| content size | 0 (1 with a single segment), 2 (and 256 more), 4, 8; little-endian |
| blocks | 3 each, little-endian: bit 0 last, 2-1 kind (1 repeats one byte), the rest its size; then its bytes |
| checksum | 4, if the descriptor says so |

Source: RFC 8878, section 3.1.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from local import kernels
from local.errors import Corrupt, InvalidRequest, NotFound
from local.format.compression import Codec, decompress_into
from local.format.crc32c import crc32c
from local.records.batch_runs import BatchRuns
from remote.keys import ENCRYPTED_SUFFIX, INDEXES_SUFFIX, parse_data_key, parse_view_key, stem_of
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import MetadataIndex, Pages
from remote.manifest.sealing import keyed
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import KeyRing, ObjectCipher
from remote.segments.index_bundle import ChunkTable, decode_bundle
from remote.segments.object_encoding import open_chunk, open_ring
from remote.store import ObjectStore
from tiered.inspect.dump_sources import FileSource

FRAME_BYTES_MAX = 256 << 20  # no chunk is larger: one batch at most, and a damaged frame may claim any size
MANIFESTS_READ = 400  # searched from the newest, for the entry of an object that left the index
_OBJECT = re.compile(r"(?:.*/)?(?=(?:data|view/[^/]+)/[^/]+\Z)")
MAGIC = bytes.fromhex("28b52ffd")
HEADER_BYTES_MAX = 18
_DICTIONARY_BYTES = (0, 1, 2, 4)
_CONTENT_BYTES = (0, 2, 4, 8)
_REPEATED, _RESERVED = 1, 3


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk's position in the object and in the segment.

    `open` converts the stored bytes; it raises Corrupt.
    """

    stored_start: int
    stored_length: int
    start: int
    open: Callable[[bytes], bytes]


class StoredSegment:
    """A stored segment. Iterate `walks` once; `damage` is the first chunk that did not open, or None."""

    def __init__(self, source: FileSource, chunks: Iterator[_Chunk]) -> None:
        self._source = source
        self._chunks = chunks
        self._next_offset = source.base_offset
        self.damage: Corrupt | None = None

    def walks(self) -> Iterator[BatchRuns]:
        """Yield the batches, a chunk at a time."""
        stored_end = 0
        try:
            for chunk in self._chunks:
                stored_end = chunk.stored_start + chunk.stored_length
                body = self._opened(chunk)
                if body is not None:
                    yield BatchRuns(_ranges_of(body, chunk.start), chunk.start + len(body), start=chunk.start)
                    self._advance(body)
        except Corrupt as error:  # damage of the frames themselves
            self._note(error, stored_end, self._source.size_bytes - stored_end)

    def _opened(self, chunk: _Chunk) -> bytes | None:
        stored = b""
        try:
            stored = self._source.read(chunk.stored_start, chunk.stored_length)
            if len(stored) != chunk.stored_length:
                raise Corrupt("the object ends before the range", found_bytes=len(stored))
            return chunk.open(stored)
        except Corrupt as error:
            self._note(error, chunk.stored_start, chunk.stored_length)
            return None

    def _note(self, error: Corrupt, start: int, length: int) -> None:
        if self.damage is None:
            facts = {"object": self._source.place, "start": start, "length": length, "from_offset": self._next_offset}
            more = {name: value for name, value in error.facts.items() if name not in facts}
            self.damage = Corrupt(f"cannot dump a stored segment: {error.attempt}", **facts, **more)

    def _advance(self, body: bytes) -> None:
        with suppress(Corrupt):
            table = kernels.scan_batches(body, verify=False)
            self._next_offset = int(table.last_offsets[-1]) + 1 if len(table) else self._next_offset


def is_encrypted(path: str) -> bool:
    """Return whether the name is an encrypted object's."""
    return path.endswith(ENCRYPTED_SUFFIX)


def open_stored(source: FileSource, keys: KeyRing) -> StoredSegment:
    """Open an object of the bucket, or a file copied from there.

    Raises AccessDenied for a missing key, NotFound for an encrypted object that no manifest names, Corrupt for damaged
    indexes.
    """
    cipher = _cipher(source, keys) if is_encrypted(source.place) else None
    name = stem_of(source.place) + INDEXES_SUFFIX
    body = source.beside(name)
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

        yield _Chunk(start, length, table.chunk_range(number)[0], opened)


def _by_frames(source: FileSource) -> Iterator[_Chunk]:
    start = 0
    for frame in frames(source.read, source.size_bytes):
        if frame.content_bytes > FRAME_BYTES_MAX:
            raise Corrupt(
                "a zstd frame declares too large a size", content_bytes=frame.content_bytes, limit=FRAME_BYTES_MAX
            )

        def opened(stored: bytes, content_bytes: int = frame.content_bytes) -> bytes:
            out = np.empty(content_bytes, np.uint8).data
            size = decompress_into(Codec.ZSTD, memoryview(stored), out)
            if size != content_bytes:
                raise Corrupt("a zstd frame is shorter than declared", expected_bytes=content_bytes, found_bytes=size)
            return bytes(out)

        yield _Chunk(frame.start, frame.length, start, opened)
        start += frame.content_bytes


def _cipher(source: FileSource, keys: KeyRing) -> ObjectCipher | None:
    prefix, row = _row_of(source, keys)
    if row.key_id is None:
        raise Corrupt("cannot dump an encrypted segment, its entry has no key", object=source.place)
    return open_ring(row, prefix, keys)


def _row_of(source: FileSource, keys: KeyRing) -> tuple[str, SegmentEntry]:
    """Return the partition's prefix, and the entry that names the object."""
    if source.store is None or (found := _OBJECT.match(source.key)) is None:
        hint = "its key is in a manifest: name the object by its url, or the file in a copy of the bucket"
        raise InvalidRequest(f"cannot dump an encrypted segment, {hint}", path=source.place)
    prefix, key = found[0], source.key[found.end() :]
    store = keyed(source.store, keys)
    for manifest in _manifests(store, prefix):
        with suppress(NotFound):  # a page of an older manifest, already deleted
            row = _named(store, prefix, manifest, key)
            if row is not None:
                return prefix, row
    raise NotFound("cannot dump an encrypted segment, no manifest names it, so its key is lost", object=source.place)


def _manifests(store: ObjectStore, prefix: str) -> Iterator[Manifest]:
    """Yield manifests, newest first, until the first deleted one."""
    chain = ManifestChain(store, prefix)
    manifest = chain.newest(None)
    for _ in range(MANIFESTS_READ):
        if manifest is None:
            return
        yield manifest
        manifest = chain.read(manifest.sequence - 1) if manifest.sequence > 1 else None


def _named(store: ObjectStore, prefix: str, manifest: Manifest, key: str) -> SegmentEntry | None:
    says = parse_data_key(key) or parse_view_key(key)
    if says is None:
        return None
    index = MetadataIndex(manifest, Pages(store, prefix).entries)
    rows = (
        manifest.view_entries
        if says.view is not None
        else index.entries_with_dead(says.base_offset, says.last_offset + 1)
    )
    return next((row for row in rows if row.data_key == key), None)


def _ranges_of(body: bytes, start: int) -> Callable[[int, int], memoryview]:
    view = memoryview(body)
    return lambda at, length: view[at - start : at - start + length]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """`start` and `length` in the file, `content_bytes` as stated by the frame."""

    start: int
    length: int
    content_bytes: int


def frames(read: Callable[[int, int], bytes], size_bytes: int) -> Iterator[Frame]:
    """The frames of a file of `size_bytes`, in order.

    Raises Corrupt if no frame starts at a position, a frame does not state its content size, or the file ends inside a
    frame. The frames before the damage are yielded first.
    """
    at = 0
    while at < size_bytes:
        header = read(at, min(HEADER_BYTES_MAX, size_bytes - at))
        blocks, content_bytes, checksum_bytes = _parsed(header, at)
        end = _end_of_blocks(read, at + blocks, size_bytes, at) + checksum_bytes
        if end > size_bytes:
            raise Corrupt("cannot read zstd frames, the file ends inside a frame", start=at, size_bytes=size_bytes)
        yield Frame(start=at, length=end - at, content_bytes=content_bytes)
        at = end


def _parsed(header: bytes, at: int) -> tuple[int, int, int]:
    """(bytes before the first block, content size, bytes of the checksum)."""
    if header[:4] != MAGIC or len(header) < 5:
        raise Corrupt("cannot read zstd frames, the position is not the start of a frame", start=at)
    descriptor = header[4]
    is_single = bool(descriptor & 0x20)
    where = 5 + (0 if is_single else 1) + _DICTIONARY_BYTES[descriptor & 3]
    length = _CONTENT_BYTES[descriptor >> 6] or int(is_single)
    if not length or len(header) < where + length:
        raise Corrupt("cannot read zstd frames, a frame has no content size", start=at)
    content_bytes = int.from_bytes(header[where : where + length], "little") + (256 if length == 2 else 0)
    return where + length, content_bytes, 4 if descriptor & 4 else 0


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
