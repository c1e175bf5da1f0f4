"""Copy one closed segment into the store: data object, indexes object, verification.

Order of effects:

1. Upload the data object, and ask the store for its size.
2. Compare the facts found in the bytes with the facts for the entry.
3. Upload the indexes object, and ask the store for its size.
4. Return the entry, which the caller commits with `MetadataLog.commit`. Before the commit no reader sees the objects.

A crash before the commit leaves objects that no manifest names, under names that are never used again. Nothing is read
back: the store checks the bits during the upload as far as it can (docs/reference/formats.md), and the first read finds
changed bits by the chunk checksums; the local copy may be dropped before that.

**The stream** of the stored bytes: read, inspect, cut into chunks, encode, cut into parts.

| chunks are | cut |
|---|---|
| compressed or encrypted | at batch starts: as many whole batches as fit into `chunk_bytes`, or one larger batch |
| stored unchanged | at exactly `chunk_bytes` |

A new try (the store lost the first one) must find the same bytes, which is checked before they are encoded. So the same
name never gets other content, and no nonce is used for two contents. Memory: one part, and the chunks being encoded.

`FileAhead` reads the next block of a local file while the last one is processed. It bypasses `local.storage.storage`,
so after an error the caller's `read` reads through the storage. The caller checks the bytes of both paths.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from local.format.crc32c import crc32c
from remote.gc.object_deletion import DeleteReason, delete_objects, deletions
from remote.keys import data_key, indexes_key, new_ulid, object_identity
from remote.segment_entry import PART_BYTES, IndexRange, SegmentEntry, part_step
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
from remote.store import Body, ObjectStore, UploadSource, parts_of

log = logging.getLogger(__name__)
SEAL_THREADS = 3  # chunks of one segment that are compressed or encrypted concurrently
SEAL_AHEAD = 2 * SEAL_THREADS
_GROWTH = 1.05  # maximal growth by encoding, for the size of parts; zstd and a tag add far less
LOOK_BYTES = 4 << 20  # checksummed and inspected together: less costs more calls, more does not fit the caches
BLOCK_BYTES = PART_BYTES  # of a local file, read ahead at once
_JOINED_BYTES = 64 << 10  # of the next part, to complete a batch that crosses the end of a part


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Facts found in the bytes of a segment. Offsets are of its batches, both inclusive; None without batches.

    An index is None where the segment's own index file agrees with the bytes.
    """

    record_count: int
    first_offset: int | None = None
    last_offset: int | None = None
    max_timestamp_ms: int | None
    min_timestamp_ms: int | None
    offset_index: bytes | None = None
    time_index: bytes | None = None
    txn_index: bytes | None = None


class Inspector(Protocol):
    """Inspects a segment's bytes as they stream. One for each try; used by one thread at a time."""

    def take(self, data: memoryview) -> int:
        """The number of bytes of `data` in whole batches. `data` starts where the last batches ended.

        Raises Corrupt and InvalidRequest; their fact `at` is a position in `data`.
        """

    def facts(self) -> SegmentFacts | None:
        """The facts, after it saw the whole segment; None if it does not parse the bytes."""


class _TakesAll:
    def take(self, data: memoryview) -> int:
        return len(data)

    def facts(self) -> None:
        return None


class SegmentUploadStream:
    """Upload of one segment of `size_bytes`. `read(start, length)` returns exactly these bytes.

    `inspect` makes an inspector for each try. `progress` receives the number of bytes read for the first time. An
    abandoned try may still run concurrently with its successor.
    """

    def __init__(
        self,
        size_bytes: int,
        read: Callable[[int, int], Body],
        *,
        seal: Seal,
        chunk_bytes: int,
        inspect: Callable[[], Inspector] | None = None,
        progress: Callable[[int], None] = lambda read_bytes: None,
    ) -> None:
        self.size_bytes = size_bytes
        self.seal = seal
        self.chunk_bytes = chunk_bytes
        self._read = read
        self._inspect = inspect or _TakesAll
        self._progress = progress
        self._lock = threading.Lock()
        self._known: list[tuple[int, int | bytes]] = []  # per chunk of any try: length, and CRC or digest of its bytes
        self._reported_bytes = 0  # to `progress`
        self._last: _Try | None = None

    def source(self) -> UploadSource:
        return UploadSource(parts=self._parts)

    @property
    def inspector(self) -> Inspector:
        assert self._last is not None, "asked after the upload"
        return self._last.inspector

    def table(self) -> ChunkTable:
        """The chunk table of the sent bytes. Raises Unavailable if the store did not read all of them."""
        sent = self._last.sent if self._last is not None else []
        if sum(length for length, _ in sent) != self.size_bytes:
            facts = {"expected_bytes": self.size_bytes, "sent_bytes": sum(length for length, _ in sent)}
            raise Unavailable("cannot copy a segment, the store did not accept all bytes", **facts)
        assert self._last is not None, "something was sent"
        stored = self._last.stored
        is_sealed = not self.seal.is_nothing
        return ChunkTable(
            lengths=tuple(length for length, _ in sent),
            crcs=tuple(crc for _, crc in sent),
            stored_lengths=tuple(length for length, _ in stored) if is_sealed else None,
            stored_crcs=tuple(crc for _, crc in stored) if is_sealed else None,
            codec=self.seal.codec,
            cipher=self.seal.cipher_code,
        )

    def _parts(self) -> Iterator[Body]:
        self._last = _Try(self, self._inspect())
        return self._last.parts_as_they_are() if self.seal.is_nothing else self._last.sealed_parts()

    def read(self, start: int, length: int) -> Body:
        """Read a range. Raises Corrupt if the segment is shorter than `size_bytes`."""
        body = self._read(start, length)
        if len(body) != length:
            facts = {"start": start, "length": length, "found": len(body)}
            raise Corrupt("cannot copy a segment, its file is too short", **facts)
        return body

    def note(self, number: int, start: int, chunk: memoryview, crc: int) -> None:
        """Record that chunk `number` was read. Raises Corrupt if its bytes differ from an earlier try.

        For a chunk to encrypt, SHA-256 is compared: two contents under one nonce would reveal both.
        """
        length = len(chunk)
        digest = crc if self.seal.cipher is None else hashlib.sha256(chunk).digest()
        with self._lock:
            if number == len(self._known):
                self._known.append((length, digest))
            if self._known[number] != (length, digest):
                raise Corrupt("cannot copy a segment, its file changed", start=start, length=length)
            fresh = max(0, start + length - self._reported_bytes)
            self._reported_bytes += fresh
            if fresh:
                self._progress(fresh)


class _Try:
    def __init__(self, segment: SegmentUploadStream, inspector: Inspector) -> None:
        self.inspector = inspector
        self.sent: list[tuple[int, int]] = []  # (length, CRC) of each chunk of the segment
        self.stored: list[tuple[int, int]] = []  # (length, CRC) of their stored forms
        self._segment = segment

    def parts_as_they_are(self) -> Iterator[Body]:
        tail, chunk_bytes = b"", self._segment.chunk_bytes
        step = chunk_bytes * max(1, LOOK_BYTES // chunk_bytes)
        for start, length in parts_of(self._segment.size_bytes):
            part = self._segment.read(start, length)
            view, seen = memoryview(part), 0
            for end in range(step, length + step, step):
                for at in range(end - step, min(end, length), chunk_bytes):
                    self._note(start + at, view[at : at + chunk_bytes])
                tail, taken = self._inspected(tail, view[seen:end], start + seen)
                seen += taken
            tail += view[seen:]
            yield part
        self._check_end(tail)

    def sealed_parts(self) -> Iterator[Body]:
        step = part_step(int(self._segment.size_bytes * _GROWTH))
        held: list[bytes] = []
        for body in self._sealed():
            held.append(body)
            if sum(map(len, held)) >= step:
                joined = b"".join(held)
                parts_end = len(joined) - len(joined) % step
                yield from (joined[at : at + step] for at in range(0, parts_end, step))
                held = [joined[parts_end:]]
        if rest := b"".join(held):
            yield rest

    def _sealed(self) -> Iterator[bytes]:
        ahead: deque[Future[tuple[bytes, int]]] = deque()

        def sealed(number: int, chunk: Body) -> tuple[bytes, int]:
            body = self._segment.seal.close(number, chunk)
            return body, crc32c(body)

        with ThreadPoolExecutor(SEAL_THREADS, thread_name_prefix="tiered-seal") as pool:
            try:
                for number, chunk in enumerate(self._chunks()):
                    ahead.append(pool.submit(sealed, number, chunk))
                    if len(ahead) >= SEAL_AHEAD:
                        yield self._next_of(ahead)
                while ahead:
                    yield self._next_of(ahead)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _next_of(self, ahead: deque[Future[tuple[bytes, int]]]) -> bytes:
        body, crc = ahead.popleft().result()
        self.stored.append((len(body), crc))
        return body

    def _chunks(self) -> Iterator[Body]:
        position, want = 0, self._segment.chunk_bytes
        while position < self._segment.size_bytes:
            length = min(want, self._segment.size_bytes - position)
            data = memoryview(self._segment.read(position, length))
            taken = self._taken(data, position)
            if taken == 0 and position + length == self._segment.size_bytes:
                self._check_end(data)
            if taken == 0:
                want *= 2  # a batch that is larger than a chunk
                continue
            chunk = data[:taken]
            self._note(position, chunk)
            position, want = position + taken, self._segment.chunk_bytes
            yield chunk

    def _note(self, start: int, chunk: memoryview) -> None:
        length, crc = len(chunk), crc32c(chunk)
        self._segment.note(len(self.sent), start, chunk, crc)
        self.sent.append((length, crc))

    def _inspected(self, tail: bytes, data: memoryview, start: int) -> tuple[bytes, int]:
        """Inspect `data` after the batch begun in `tail`; return (rest of an incomplete tail, bytes taken)."""
        at, more = 0, _JOINED_BYTES
        while tail:
            taken = self._taken(memoryview(tail + data[:more]), start - len(tail))
            if taken:
                at, tail = taken - len(tail), b""
            elif more >= len(data):
                return tail, 0
            more *= 2
        return b"", at + self._taken(data[at:], start + at)

    def _taken(self, data: memoryview, start: int) -> int:
        try:
            return self.inspector.take(data)
        except (Corrupt, InvalidRequest) as error:
            at = error.facts.get("at")
            facts = {**error.facts, "at": start + (at if isinstance(at, int) else 0)}
            raise error.restated(error.attempt, **facts) from error

    def _check_end(self, tail: Body) -> None:
        if len(tail):
            at = self._segment.size_bytes - len(tail)
            raise Corrupt("cannot copy a segment, it ends inside a batch", at=at, left_bytes=len(tail))


class _Loop:
    """An event loop in a thread of its own, created at first use, once in each process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, work: Any) -> Future[Any]:  # noqa: ANN401  # a coroutine
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # a forked child has neither the thread nor the lock's holder
            self._loop, self._pid = None, os.getpid()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="tiered-file-ahead", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


_LOOP = _Loop()


class FileAhead:
    """A file of `size_bytes`, read ahead for one reader; `read` is the path through the storage. Thread safe."""

    def __init__(self, path: str, size_bytes: int, read: Callable[[int, int], Body]) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._read = read
        self._lock = threading.Lock()
        self._at = -1  # number of the block in memory
        self._block: Body = b""
        self._ahead: Future[bytes] | None = None  # the block after it
        self._turn = asyncio.Lock()
        self._file: Any = None
        self._has_failed = False

    def read(self, start: int, length: int) -> Body:
        """Bytes ``[start, start + length)``. Raises the errors of the caller's `read`."""
        end = start + length
        if self._has_failed or not 0 <= start < end <= self._size_bytes:
            return self._read(start, length)
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        with self._lock:
            pieces = [self._piece(number, start, end) for number in range(first, last + 1)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file. Idempotent; later reads use the storage."""
        with self._lock:
            self._has_failed = True
            ahead, self._ahead, self._block, self._at = self._ahead, None, b"", -1
        if ahead is not None or self._file is not None:
            _LOOP.run(self._end())

    def _piece(self, number: int, start: int, end: int) -> Body:
        at, block = number * BLOCK_BYTES, self._take(number)
        if start <= at and at + len(block) <= end:
            return block
        return memoryview(block)[max(0, start - at) : end - at]

    def _take(self, number: int) -> Body:
        if number == self._at:
            return self._block
        ahead, self._ahead = self._ahead, None
        expected = min(BLOCK_BYTES, self._size_bytes - number * BLOCK_BYTES)
        block: Body | None = None
        if ahead is not None and number == self._at + 1:
            block = self._landed(ahead, expected)
        self._block = self._read(number * BLOCK_BYTES, expected) if block is None else block
        self._at = number
        if (number + 1) * BLOCK_BYTES < self._size_bytes and not self._has_failed:
            self._ahead = _LOOP.run(self._fetch(number + 1))
        return self._block

    def _landed(self, ahead: Future[bytes], expected: int) -> bytes | None:
        """The block that was read ahead; None if it is incomplete, which also stops reading ahead."""
        try:
            block = ahead.result()
        except OSError as error:
            what = "cannot read ahead directly, reading through the storage layer: path=%s cause=%s"
            log.debug(what, self._path, type(error).__name__)
            block = b""
        self._has_failed = len(block) != expected
        return None if self._has_failed else block

    async def _end(self) -> None:
        """Close the file after the pending read: its descriptor number must not be reused before."""
        async with self._turn:
            file, self._file = self._file, None
            if file is not None:
                await file.close()

    async def _fetch(self, number: int) -> bytes:
        import aiofiles

        wanted = min(BLOCK_BYTES, self._size_bytes - number * BLOCK_BYTES)
        async with self._turn:  # an unused block may still be read, and the file has one position
            if self._file is None:
                self._file = await aiofiles.open(self._path, "rb", buffering=0)
            await self._file.seek(number * BLOCK_BYTES)
            return bytes(await self._file.read(wanted))


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
