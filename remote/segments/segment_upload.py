"""Copying one closed segment into the store: data object, indexes object, verification. Not visible until committed.

Order of effects: data up, its size asked for, what its bytes said held against what the row is going to say, indexes
up, their size asked for. Only then is there a row, which the caller hands to `MetadataLog.commit`. A crash before that
leaves objects which no head names; their names are never used again, for each attempt has a ulid of its own.

Every byte is read once, looked at, checksummed, sealed as `remote.segments.object_encoding` says, and sent
(`remote.segments.segment_upload_stream`): the checksums and the facts of the row are those of the very bytes that went
into the requests.

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

from collections.abc import Callable
from dataclasses import dataclass

from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from remote.keys import data_key, indexes_key, new_ulid, object_identity
from remote.segment_entry import IndexRange, RemoteSegment
from remote.segments.chunk_table import CHUNK_BYTES, RAW, SEALED_CHUNK_BYTES, ZSTD, ChunkTable
from remote.segments.cleanup_failures import left_behind
from remote.segments.encryption import ObjectCipher
from remote.segments.file_read_ahead import FileAhead
from remote.segments.index_bundle import IndexBundle, encode_bundle
from remote.segments.object_encoding import AS_IT_IS, CODECS, AtRest, Seal
from remote.segments.segment_upload_stream import Inspector, Outgoing, SegmentFacts
from remote.store import Body, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCopy:
    """A closed local segment: its facts, the contents of its index files, and a way to read its ``.log``.

    `next_offset` is the next segment's base. `epochs` are pairs (leader epoch, start offset), ascending, the first
    starting at `base_offset`. `leader_epochs` are the bytes kept in the indexes object. `read(start, length)` gives
    exactly those bytes; it may be called again for the same range. `path` is where the ``.log`` lies, if that is on
    this machine's disk, to be read ahead from (`remote.segments.file_read_ahead`). `inspect` makes an inspector, which
    sees all of the bytes in order and tells `record_count` and the timestamps; where they are given as well the bytes
    must agree. One of both is needed.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]
    offset_index: bytes
    time_index: bytes
    record_count: int | None = None
    max_timestamp_ms: int | None = None
    min_timestamp_ms: int | None = None
    txn_index: bytes = b""
    producer_snapshot: bytes = b""
    leader_epochs: bytes = b""
    cleaned_through: int | None = None
    read: Callable[[int, int], Body]
    path: str | None = None
    inspect: Callable[[], Inspector] | None = None


def copy_segment(
    store: ObjectStore,
    prefix: str,
    segment: SegmentToCopy,
    *,
    epoch: int,
    now_ms: int,
    view: str | None = None,
    at_rest: AtRest = AS_IT_IS,
    chunk_bytes: int | None = None,
    progress: Callable[[int], None] = lambda read_bytes: None,
) -> RemoteSegment:
    """Upload and verify a segment; the row to commit. Memory stays bounded whatever the segment's size.

    With `view` it is a part of the compacted view of that name, and its objects lie among that view's.
    `chunk_bytes` None takes what `remote.segments.chunk_table` says.
    `progress` is told the bytes read for the first time, one call at a time, in sum the segment's size. On an error
    the objects of this attempt are deleted as well as it can be done, and the error goes on. Raises Unavailable when
    the store does not have what was sent, Corrupt when the segment changed while it was read or its bytes contradict
    its place in the log, AccessDenied when the key to encrypt with is not in its ring.
    """
    if segment.size_bytes <= 0 or segment.base_offset >= segment.next_offset:
        facts = {"base_offset": segment.base_offset, "next_offset": segment.next_offset}
        raise InvalidRequest("copying a segment, it is empty", **facts, size_bytes=segment.size_bytes)
    names = segment.base_offset, segment.next_offset - 1, epoch, new_ulid(now_ms)
    copy = _Copy(store, prefix, segment, names, view, at_rest, chunk_bytes, progress)
    try:
        row = copy.row()
    except LogError as error:
        copy.remove()
        if isinstance(error, Corrupt):
            raise Corrupt(error.attempt, **{"base_offset": segment.base_offset, **error.facts}) from error
        raise
    left_behind(store).end()
    return row


class _Copy:
    """One attempt, under names of its own."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        segment: SegmentToCopy,
        names: tuple[int, int, int, str],
        view: str | None,
        at_rest: AtRest,
        chunk_bytes: int | None,
        progress: Callable[[int], None],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._segment = segment
        self._at_rest = at_rest
        self._ulid = names[-1]
        codec = self._codec(chunk_bytes or SEALED_CHUNK_BYTES)
        self._indexes_key = indexes_key(*names, view=view)
        self._data_key = data_key(*names, view=view, is_zstd=codec == ZSTD, is_encrypted=at_rest.key_id is not None)
        self._cipher: ObjectCipher | None = None
        self._wrapped_key: str | None = None
        self._may_be: list[str] = []  # keys under which an object may lie by now
        if at_rest.key_id is not None:
            self._cipher, self._wrapped_key = at_rest.keys.new_object(
                at_rest.key_id, object_identity(prefix, self._data_key)
            )
        self._ahead = FileAhead(segment.path, segment.size_bytes, segment.read) if segment.path is not None else None
        seal = Seal(codec=codec, level=at_rest.level, cipher=self._cipher)
        self._outgoing = Outgoing(
            segment.size_bytes,
            segment.read if self._ahead is None else self._ahead.read,
            seal=seal,
            chunk_bytes=chunk_bytes or (CHUNK_BYTES if seal.is_nothing else SEALED_CHUNK_BYTES),
            inspect=segment.inspect,
            progress=progress,
        )

    def row(self) -> RemoteSegment:
        segment = self._segment
        try:
            self._send(self._data_key, lambda key: self._store.upload(key, self._outgoing.source()))
        finally:
            if self._ahead is not None:
                self._ahead.close()
        chunks = self._outgoing.table()
        self._verify(self._data_key, chunks.stored_bytes)
        facts = self._facts()
        indexes_bytes, ranges = self._upload_indexes(chunks, facts)
        return RemoteSegment(
            ulid=self._ulid,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            size_bytes=segment.size_bytes,
            stored_bytes=chunks.stored_bytes,
            record_count=facts.record_count,
            max_timestamp_ms=facts.max_timestamp_ms,
            min_timestamp_ms=facts.min_timestamp_ms,
            epochs=segment.epochs,
            data_crc32c=chunks.whole_crc,
            segment_crc32c=None if chunks.is_as_it_is else chunks.segment_crc,
            data_key=self._data_key,
            indexes_key=self._indexes_key,
            indexes_bytes=indexes_bytes,
            indexes=ranges,
            codec=CODECS[chunks.codec],
            storage_class=self._at_rest.storage_class,
            key_id=self._at_rest.key_id,
            wrapped_key=self._wrapped_key,
            cleaned_through=segment.cleaned_through,
        )

    def remove(self) -> None:
        keys = [self._prefix + self._data_key, self._prefix + self._indexes_key]
        try:
            self._store.delete(keys)
        except LogError as error:
            if self._may_be:
                left_behind(self._store).note(self._may_be, error)
        else:
            left_behind(self._store).end()

    def _send(self, key: str, act: Callable[[str], object]) -> None:
        """What the store refuses for good is not there; of what it did not answer nobody knows."""
        key = self._prefix + key
        self._may_be.append(key)
        try:
            act(key)
        except AccessDenied:
            self._may_be.remove(key)
            raise

    def _codec(self, chunk_bytes: int) -> int:
        """Zstd where it is wanted and pays, by the segment's first chunk."""
        if self._at_rest.codec == RAW:
            return RAW
        first = self._segment.read(0, min(chunk_bytes, self._segment.size_bytes))
        return self._at_rest.codec if self._at_rest.pays(first) else RAW

    def _facts(self) -> SegmentFacts:
        """What the bytes said. Raises Corrupt when they contradict what is known of the segment."""
        segment, facts = self._segment, self._outgoing.inspector.facts()
        told = (segment.record_count, segment.max_timestamp_ms, segment.min_timestamp_ms)
        if facts is None:
            assert segment.record_count is not None, "one of both is needed"
            return SegmentFacts(
                record_count=segment.record_count,
                first_offset=None,
                last_offset=None,
                max_timestamp_ms=segment.max_timestamp_ms,
                min_timestamp_ms=segment.min_timestamp_ms,
            )
        found = (facts.record_count, facts.max_timestamp_ms, facts.min_timestamp_ms)
        if any(say is not None and say != see for say, see in zip(told, found, strict=True)):
            raise Corrupt("copying a segment, its bytes say something else than its row", row=told, bytes=found)
        first, last = facts.first_offset, facts.last_offset
        if (first is not None and first < segment.base_offset) or (last is not None and last >= segment.next_offset):
            where = {"first_offset": first, "last_offset": last, "next_offset": segment.next_offset}
            raise Corrupt("copying a segment, it reaches beyond its place in the log", **where)
        return facts

    def _upload_indexes(self, chunks: ChunkTable, facts: SegmentFacts) -> tuple[int, dict[str, IndexRange]]:
        segment = self._segment
        body, ranges = encode_bundle(
            IndexBundle(
                offset=segment.offset_index if facts.offset_index is None else facts.offset_index,
                time=segment.time_index if facts.time_index is None else facts.time_index,
                txn=segment.txn_index if facts.txn_index is None else facts.txn_index,
                producers=segment.producer_snapshot,
                epochs=segment.leader_epochs,
                chunks=chunks,
            )
        )
        if self._cipher is not None:
            body = self._cipher.seal_indexes(body)
        self._send(self._indexes_key, lambda key: self._store.put(key, body))
        self._verify(self._indexes_key, len(body))
        return len(body), ranges

    def _verify(self, key: str, size_bytes: int) -> None:
        """The store says it has all of it, by size; see the module text for its bits."""
        key = self._prefix + key
        try:
            found = self._store.head(key).size_bytes
        except NotFound as error:
            raise Unavailable("verifying an upload, it is not there", store=self._store.url, key=key) from error
        if found != size_bytes:
            facts = {"expected_bytes": size_bytes, "found_bytes": found}
            raise Unavailable("verifying an upload, its size differs", store=self._store.url, key=key, **facts)
