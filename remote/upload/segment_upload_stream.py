"""Stream the stored bytes of one segment: read, inspect, cut into chunks, encode, cut into parts.

| chunks are | cut |
|---|---|
| compressed or encrypted | at batch starts: as many whole batches as fit into `chunk_bytes`, or one larger batch |
| stored unchanged | at exactly `chunk_bytes` |

A new try (the store lost the first one) must find the same bytes, which is checked before they are encoded. So the same
name never gets other content, and no nonce is used for two contents. Memory: one part, and the chunks being encoded.

The parts of a local file that is stored unchanged are read again to send them, so no memory holds a part, and parts
grow with the segment. All else is held in parts of PART_BYTES.

| event during an upload in parts | effect |
|---|---|
| a part fails | it is read again and sent again; each of its chunks must have the checksum of the first read |
| the file changed, is short, or fails to be read | the part raises Corrupt or the disk's error; the upload is aborted |
| the upload is abandoned at its deadline | a running part gets no further bytes, so it never completes |
| the process is killed | parts that no listing shows (`remote.store.unfinished_uploads`); the segment gets a new name |

`FileAhead` reads the next block of a local file while the last one is processed. It bypasses `local.storage.storage`,
so after an error the caller's `read` reads through the storage. The caller checks the bytes of both paths.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from local.errors import Corrupt, InvalidRequest, Unavailable
from local.format.crc32c import crc32c
from remote.segment_entry import PART_BYTES, part_step
from remote.segments.stored_segment import ChunkTable, Seal
from remote.store import Body, UploadSource, parts_of

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
        read_again: Callable[[int, int], Body] | None = None,
    ) -> None:
        """`read_again` is as `read`, but takes any order and concurrent calls; None: the parts are held in memory."""
        self.size_bytes = size_bytes
        self._read_again = read_again if seal.is_nothing and PART_BYTES % chunk_bytes == 0 else None
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
        if self._read_again is None:
            return UploadSource(parts=self._parts)
        return UploadSource(
            parts=self._parts,
            part_bytes=part_step(self.size_bytes, None),
            read_again=partial(self._checked, self._read_again),
        )

    def _checked(self, read: Callable[[int, int], Body], start: int, length: int) -> memoryview:
        """Bytes ``[start, start + length)`` in chunks with the checksums of the first read. Raises Corrupt."""
        first, end = start // self.chunk_bytes * self.chunk_bytes, start + length
        end = min(-(-end // self.chunk_bytes) * self.chunk_bytes, self.size_bytes)
        body = memoryview(read(first, end - first))
        for at in range(0, end - first, self.chunk_bytes):
            chunk = body[at : at + self.chunk_bytes]
            self._check_known((first + at) // self.chunk_bytes, first + at, (len(chunk), crc32c(chunk)))
        return body[start - first : start - first + length]

    def _check_known(self, number: int, start: int, found: tuple[int, int | bytes]) -> None:
        if self._known[number] != found:
            raise Corrupt("cannot copy a segment, its file changed", start=start, length=found[0])

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
            self._check_known(number, start, (length, digest))
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
            _run(self._end())

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
            self._ahead = _run(self._fetch(number + 1))
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


def _run(work: Any) -> Future[Any]:  # noqa: ANN401  # a coroutine
    """Begin `work` in fsspec's event loop, which each process has for itself."""
    from fsspec.asyn import get_loop

    return asyncio.run_coroutine_threadsafe(work, get_loop())
