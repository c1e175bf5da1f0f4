"""Copying one closed segment into the store: data object, indexes object, verification. Not visible until committed.

Order of effects: data up, its size asked for, indexes up, their size asked for. Only then is there a row, which the
caller hands to `MetadataLog.commit`. A crash before that leaves objects which no head names; their names are never
used again, for each attempt has a ulid of its own.

Every byte is read once, checksummed and sent: the chunk checksums are those of the very bytes that went into the
requests. A part that is sent again is read and checksummed again, and must not have changed in between.

What "verified" means here: the store says that the object is there and has the right size; nothing is read back. That
its bits are right is seen to on the way in, as far as the store offers it:

| store | bits on the way in |
|---|---|
| ``s3://`` | every body and part carries the CRC32 that botocore computes; S3 refuses what differs: sent again |
| ``file://`` | written, synced, renamed, the directory synced; no checksum of the file system's own is assumed |
| ``memory://`` | the very bytes |

Not every server that speaks S3 compares the CRC32, and the client's option ``request_checksum_calculation =
"when_required"`` leaves it out. The chunk checksums go into the indexes object, so bits that changed all the same are
found by the first read of them and never given out; the local copy may be gone by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from local.crc32c import crc32c
from local.errors import Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from remote.chunks import CHUNK_BYTES, ChunkTable, chunk_count
from remote.index_bundle import IndexBundle, encode_bundle
from remote.keys import data_key, indexes_key, new_ulid
from remote.segment import IndexRange, RemoteSegment
from remote.store import Body, ObjectStore, ranged_source

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCopy:
    """A closed local segment: its facts, the contents of its index files, and a way to read its ``.log``.

    `next_offset` is the next segment's base. `epochs` are pairs (leader epoch, start offset), ascending, the first
    starting at `base_offset`. `leader_epochs` are the bytes kept in the indexes object. `read(start, length)` gives
    exactly those bytes; it may be called from several threads and again for the same range.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    record_count: int
    max_timestamp_ms: int | None
    min_timestamp_ms: int | None
    epochs: tuple[tuple[int, int], ...]
    offset_index: bytes
    time_index: bytes
    txn_index: bytes = b""
    producer_snapshot: bytes = b""
    leader_epochs: bytes = b""
    cleaned_through: int | None = None
    read: Callable[[int, int], Body]


def copy_segment(
    store: ObjectStore,
    prefix: str,
    segment: SegmentToCopy,
    *,
    epoch: int,
    now_ms: int,
    view: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Callable[[int], None] = lambda read_bytes: None,
) -> RemoteSegment:
    """Upload and verify a segment; the row to commit. Memory stays bounded whatever the segment's size.

    With `view` it is a part of the compacted view of that name, and its objects lie among that view's.
    `progress` is told the bytes read for the first time, one call at a time, in sum the segment's size. On an error
    the objects of this attempt are deleted as well as it can be done, and the error goes on. Raises Unavailable when
    the store does not have what was sent, Corrupt when the segment changed while it was read.
    """
    if segment.size_bytes <= 0 or segment.base_offset >= segment.next_offset:
        facts = {"base_offset": segment.base_offset, "next_offset": segment.next_offset}
        raise InvalidRequest("copying a segment, it is empty", **facts, size_bytes=segment.size_bytes)
    ulid = new_ulid(now_ms)
    names = segment.base_offset, segment.next_offset - 1, epoch, ulid
    data, indexes = data_key(*names, view=view), indexes_key(*names, view=view)
    try:
        chunks = _upload_data(store, prefix + data, segment, chunk_bytes, progress)
        size_bytes, ranges = _upload_indexes(store, prefix + indexes, segment, chunks)
    except LogError:
        _remove(store, [prefix + data, prefix + indexes])
        raise
    return RemoteSegment(
        ulid=ulid,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
        stored_bytes=segment.size_bytes,
        record_count=segment.record_count,
        max_timestamp_ms=segment.max_timestamp_ms,
        min_timestamp_ms=segment.min_timestamp_ms,
        epochs=segment.epochs,
        data_crc32c=chunks.whole_crc,
        data_key=data,
        indexes_key=indexes,
        indexes_bytes=size_bytes,
        indexes=ranges,
        cleaned_through=segment.cleaned_through,
    )


def _upload_data(
    store: ObjectStore, key: str, segment: SegmentToCopy, chunk_bytes: int, progress: Callable[[int], None]
) -> ChunkTable:
    reading = ChecksummedReading(segment, chunk_bytes, progress)
    store.upload(key, ranged_source(segment.size_bytes, reading.read))
    _verify(store, key, segment.size_bytes)
    return reading.table()


def _upload_indexes(
    store: ObjectStore, key: str, segment: SegmentToCopy, chunks: ChunkTable
) -> tuple[int, dict[str, IndexRange]]:
    body, ranges = encode_bundle(
        IndexBundle(
            offset=segment.offset_index,
            time=segment.time_index,
            txn=segment.txn_index,
            producers=segment.producer_snapshot,
            epochs=segment.leader_epochs,
            chunks=chunks,
        )
    )
    store.put(key, body)
    _verify(store, key, len(body))
    return len(body), ranges


def _verify(store: ObjectStore, key: str, size_bytes: int) -> None:
    """The store says it has all of it, by size; see the module text for its bits."""
    try:
        found = store.head(key).size_bytes
    except NotFound as error:
        raise Unavailable("verifying an upload, it is not there", store=store.url, key=key) from error
    if found != size_bytes:
        facts = {"expected_bytes": size_bytes, "found_bytes": found}
        raise Unavailable("verifying an upload, its size differs", store=store.url, key=key, **facts)


def _remove(store: ObjectStore, keys: list[str]) -> None:
    try:
        store.delete(keys)
    except LogError as error:
        log.warning("leaving objects of a failed upload behind: keys=%s cause=%s", ",".join(keys), error)


class ChecksummedReading:
    """Reads a segment in parts that begin at chunk boundaries, from any thread, and keeps each chunk's CRC32C."""

    def __init__(self, segment: SegmentToCopy, chunk_bytes: int, progress: Callable[[int], None]) -> None:
        self._segment = segment
        self._chunk_bytes = chunk_bytes
        self._progress = progress
        self._lock = threading.Lock()
        self._crcs: list[int | None] = [None] * chunk_count(segment.size_bytes, chunk_bytes)

    def read(self, start: int, length: int) -> Body:
        """Exactly those bytes of the segment. Raises Corrupt when it gives other than before."""
        assert start % self._chunk_bytes == 0, "stores read parts, and parts are made of whole chunks"
        body = self._segment.read(start, length)
        if len(body) != length:
            facts = {"start": start, "length": length, "found": len(body)}
            raise Corrupt("reading a segment to copy, it is short", base_offset=self._segment.base_offset, **facts)
        view = memoryview(body)
        crcs = [crc32c(view[at : at + self._chunk_bytes]) for at in range(0, length, self._chunk_bytes)]
        with self._lock:
            first = start // self._chunk_bytes
            known = self._crcs[first : first + len(crcs)]
            if known != crcs and any(crc is not None for crc in known):
                facts = {"start": start, "length": length}
                raise Corrupt("reading a segment to copy, it changed", base_offset=self._segment.base_offset, **facts)
            self._crcs[first : first + len(crcs)] = crcs
            if known != crcs:
                self._progress(length)
        return body

    def table(self) -> ChunkTable:
        """The checksums of what was read, which must be all."""
        crcs = tuple(crc for crc in self._crcs if crc is not None)
        if len(crcs) != len(self._crcs):
            facts = {"chunks": len(self._crcs), "read": len(crcs)}
            raise Unavailable("copying a segment, the store did not take all of it", **facts)
        return ChunkTable(chunk_bytes=self._chunk_bytes, size_bytes=self._segment.size_bytes, crcs=crcs)
