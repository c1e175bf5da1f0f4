"""Copy one closed segment into the store: data object, indexes object, verification.

Order of effects:

1. Upload the data object, and ask the store for its size.
2. Compare the facts found in the bytes with the facts for the entry.
3. Upload the indexes object, and ask the store for its size.
4. Return the entry, which the caller commits with `MetadataLog.commit`. Before the commit no reader sees the objects.

A crash before the commit leaves objects that no manifest names, under names that are never used again. Nothing is read
back: the store checks the bits during the upload as far as it can (docs/reference/formats.md), and the first read finds
changed bits by the chunk checksums; the local copy may be dropped before that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from remote.gc.object_deletion import DeleteReason, delete_objects, deletions
from remote.keys import data_key, indexes_key, new_ulid, object_identity
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.encryption import ObjectCipher
from remote.segments.stored_segment import (
    CHUNK_BYTES,
    CODECS,
    PLAIN_ENCODING,
    RAW,
    SEALED_CHUNK_BYTES,
    ZSTD,
    ChunkTable,
    IndexBundle,
    ObjectEncoding,
    Seal,
    encode_bundle,
)
from remote.store import Body, ObjectStore
from remote.upload.segment_upload_stream import FileAhead, Inspector, SegmentFacts, SegmentUploadStream


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCopy:
    """A closed local segment. Its bytes must agree with all given facts."""

    base_offset: int
    next_offset: int  # the next segment's base offset
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]  # pairs (leader epoch, start offset), ascending, the first at `base_offset`
    offset_index: bytes
    time_index: bytes
    record_count: int | None = None
    max_timestamp_ms: int | None = None
    min_timestamp_ms: int | None = None
    txn_index: bytes = b""
    producer_snapshot: bytes = b""
    leader_epochs: bytes = b""  # the bytes for the indexes object
    cleaned_through: int | None = None
    read: Callable[[int, int], Body]  # read(start, length): exactly these bytes; may be called again
    path: str | None = None  # the local ``.log`` file, to read it ahead (`FileAhead`); None if not on this machine
    inspect: Callable[[], Inspector] | None = None  # makes an inspector; it or `record_count` is required


def copy_segment(
    store: ObjectStore,
    prefix: str,
    segment: SegmentToCopy,
    *,
    epoch: int,
    now_ms: int,
    view: str | None = None,
    object_encoding: ObjectEncoding = PLAIN_ENCODING,
    chunk_bytes: int | None = None,
    progress: Callable[[int], None] = lambda read_bytes: None,
) -> SegmentEntry:
    """Upload and verify a segment; return the entry to commit. Memory is bounded for any segment size.

    With `view` the segment is a part of that compacted view. `progress` receives the number of bytes read for the first
    time, serially. After an error the objects of this attempt are deleted if possible. Raises Unavailable if the store
    lacks the sent objects, Corrupt if the segment changed or contradicts its place, AccessDenied without the key.
    """
    if segment.size_bytes <= 0 or segment.base_offset >= segment.next_offset:
        facts = {"base_offset": segment.base_offset, "next_offset": segment.next_offset}
        raise InvalidRequest("cannot copy a segment, it is empty", **facts, size_bytes=segment.size_bytes)
    names = segment.base_offset, segment.next_offset - 1, epoch, new_ulid(now_ms)
    copy = _Copy(store, prefix, segment, names, view, object_encoding, chunk_bytes, progress)
    try:
        entry = copy.entry()
    except LogError as error:
        copy.remove()
        if isinstance(error, Corrupt):
            raise Corrupt(error.attempt, **{"base_offset": segment.base_offset, **error.facts}) from error
        raise
    deletions(store).end_outage()
    return entry


class _Copy:
    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        segment: SegmentToCopy,
        names: tuple[int, int, int, str],
        view: str | None,
        object_encoding: ObjectEncoding,
        chunk_bytes: int | None,
        progress: Callable[[int], None],
    ) -> None:
        self._store, self._prefix, self._segment = store, prefix, segment
        self._object_encoding, self._ulid = object_encoding, names[-1]
        codec = self._codec(chunk_bytes or SEALED_CHUNK_BYTES)
        self._indexes_key = indexes_key(*names, view=view)
        key_id = object_encoding.key_id
        self._data_key = data_key(*names, view=view, is_zstd=codec == ZSTD, is_encrypted=key_id is not None)
        self._cipher: ObjectCipher | None = None
        self._wrapped_key: str | None = None
        self._may_be: list[str] = []  # keys under which an object may exist now
        if key_id is not None:
            name = object_identity(prefix, self._data_key)
            self._cipher, self._wrapped_key = object_encoding.keys.new_object(key_id, name)
        self._ahead = FileAhead(segment.path, segment.size_bytes, segment.read) if segment.path is not None else None
        seal = Seal(codec=codec, level=object_encoding.level, cipher=self._cipher)
        self._upload_stream = SegmentUploadStream(
            segment.size_bytes,
            segment.read if self._ahead is None else self._ahead.read,
            seal=seal,
            chunk_bytes=chunk_bytes or (CHUNK_BYTES if seal.is_nothing else SEALED_CHUNK_BYTES),
            inspect=segment.inspect,
            progress=progress,
            read_again=segment.read if segment.path is not None else None,
        )

    def entry(self) -> SegmentEntry:
        segment = self._segment
        try:
            self._send(self._data_key, lambda key: self._store.upload(key, self._upload_stream.source()))
        finally:
            if self._ahead is not None:
                self._ahead.close()
        chunks = self._upload_stream.table()
        self._verify(self._data_key, chunks.stored_bytes)
        facts = self._facts()
        indexes_bytes, ranges = self._upload_indexes(chunks, facts)
        return SegmentEntry(
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
            storage_class=self._object_encoding.storage_class,
            key_id=self._object_encoding.key_id,
            wrapped_key=self._wrapped_key,
            cleaned_through=segment.cleaned_through,
        )

    def remove(self) -> None:
        try:
            keys = self._data_key, self._indexes_key
            delete_objects(self._store, self._prefix, keys, DeleteReason.OWN_UPLOAD)
        except LogError as error:
            if self._may_be:
                deletions(self._store).note_left(self._may_be, error)
        else:
            deletions(self._store).end_outage()

    def _send(self, key: str, act: Callable[[str], object]) -> None:
        """Run `act`, and record that an object may exist under `key`; after AccessDenied none does."""
        key = self._prefix + key
        self._may_be.append(key)
        try:
            act(key)
        except AccessDenied:
            self._may_be.remove(key)
            raise

    def _codec(self, chunk_bytes: int) -> int:
        if self._object_encoding.codec == RAW:
            return RAW
        first = self._segment.read(0, min(chunk_bytes, self._segment.size_bytes))
        return self._object_encoding.codec if self._object_encoding.pays(first) else RAW

    def _facts(self) -> SegmentFacts:
        """The facts found in the bytes, else the given facts. Raises Corrupt if found facts contradict given facts."""
        segment, facts = self._segment, self._upload_stream.inspector.facts()
        known = (segment.record_count, segment.max_timestamp_ms, segment.min_timestamp_ms)
        if facts is None:
            assert segment.record_count is not None, "one of both is needed"
            newest, oldest = segment.max_timestamp_ms, segment.min_timestamp_ms
            return SegmentFacts(record_count=segment.record_count, max_timestamp_ms=newest, min_timestamp_ms=oldest)
        found = (facts.record_count, facts.max_timestamp_ms, facts.min_timestamp_ms)
        if any(say is not None and say != see for say, see in zip(known, found, strict=True)):
            raise Corrupt("cannot copy a segment, its bytes contradict its segment entry", entry=known, bytes=found)
        first, last = facts.first_offset, facts.last_offset
        if (first is not None and first < segment.base_offset) or (last is not None and last >= segment.next_offset):
            where = {"first_offset": first, "last_offset": last, "next_offset": segment.next_offset}
            raise Corrupt("cannot copy a segment, it exceeds its offset range in the log", **where)
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
        key = self._prefix + key
        try:
            found = self._store.head(key).size_bytes
        except NotFound as error:
            raise Unavailable("the uploaded object does not exist", store=self._store.url, key=key) from error
        if found != size_bytes:
            facts = {"store": self._store.url, "key": key, "expected_bytes": size_bytes, "found_bytes": found}
            raise Unavailable("the uploaded object is damaged, its size differs", **facts)
