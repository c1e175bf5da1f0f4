"""The stored bytes of one segment, made while they are sent: read, looked at, cut into chunks, sealed, cut into parts.

Every byte is read once, and what is known of a segment is taken from the very bytes that go into the requests: the
checksum of each chunk here, offsets, counts and times by the `Inspector` that the room above lends, for only that one
knows batches. What is sealed is cut at batch starts: a chunk has as many whole batches as fit into `chunk_bytes`, or
one that is larger; what goes up as it is has chunks of just that size.

A try that begins anew (the store lost the first one) reads and looks again, and must meet the same bytes, before they
are sealed: no other content ever goes under the same name, so a request of the first try that arrives late does no
harm, and no nonce is used for two contents. In memory: one part, and the chunks that are being sealed side by side.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from local.errors import Corrupt, InvalidRequest, Unavailable
from local.format.crc32c import crc32c
from remote.segment_entry import part_step
from remote.segments.chunk_table import ChunkTable
from remote.segments.object_encoding import Seal
from remote.store import Body, UploadSource, parts_of

SEAL_THREADS = 3  # chunks of one segment that are compressed or encrypted at once
SEAL_AHEAD = 2 * SEAL_THREADS
_GROWTH = 1.05  # what sealing can add at most, for the size of parts; zstd and a tag add far less
LOOK_BYTES = 4 << 20  # checksummed and looked at together: less were more calls, more leaves the caches
_JOINED_BYTES = 64 << 10  # of the next part, to complete a batch that a part ends in


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What the bytes of a segment said. Offsets are those of its batches, both in; None without any.

    `offset_index`, `time_index` and `txn_index` take the place of those that came with the segment, where these
    contradict the bytes; None where they agree.
    """

    record_count: int
    first_offset: int | None
    last_offset: int | None
    max_timestamp_ms: int | None
    min_timestamp_ms: int | None
    offset_index: bytes | None = None
    time_index: bytes | None = None
    txn_index: bytes | None = None


class Inspector(Protocol):
    """Looks at a segment's bytes while they stream. One for each try; used by one thread at a time."""

    def take(self, data: memoryview) -> int:
        """How many bytes of `data` are whole batches, which begin where the last call's ended.

        Raises Corrupt and InvalidRequest, `at` a position in `data`.
        """
        ...

    def facts(self) -> SegmentFacts | None:
        """What it saw, once it saw all of the segment; None when it knows nothing of it."""
        ...


class _TakesAll:
    """For bytes that nobody knows anything of."""

    def take(self, data: memoryview) -> int:
        return len(data)

    def facts(self) -> None:
        return None


class Outgoing:
    """One segment on its way. `read(start, length)` gives exactly those of `size_bytes` bytes.

    `inspect` makes an inspector for each try. `progress` is told the bytes read for the first time. A try that nobody
    waits for any more may still be at work beside the one that followed it.
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
        self._known: list[tuple[int, int | bytes]] = []  # length and what tells its bytes from others, of any try
        self._told = 0
        self._last: _Try | None = None

    def source(self) -> UploadSource:
        return UploadSource(parts=self._parts)

    @property
    def inspector(self) -> Inspector:
        """The one that saw the last try."""
        assert self._last is not None, "asked after the upload"
        return self._last.inspector

    def table(self) -> ChunkTable:
        """What was sent. Raises Unavailable when the store did not take all of it."""
        sent = self._last.sent if self._last is not None else []
        if sum(length for length, _ in sent) != self.size_bytes:
            facts = {"expected_bytes": self.size_bytes, "sent_bytes": sum(length for length, _ in sent)}
            raise Unavailable("copying a segment, the store did not take all of it", **facts)
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
        return self._last.parts()

    def read(self, start: int, length: int) -> Body:
        """Raises Corrupt when the segment is shorter than told."""
        body = self._read(start, length)
        if len(body) != length:
            facts = {"start": start, "length": length, "found": len(body)}
            raise Corrupt("reading a segment to copy, it is short", **facts)
        return body

    def note(self, number: int, start: int, chunk: memoryview, crc: int) -> None:
        """Chunk `number` was read. Raises Corrupt when it is not what it was in an earlier try.

        Of a chunk to encrypt SHA-256 is compared: two contents under one nonce would give both away.
        """
        length = len(chunk)
        told = crc if self.seal.cipher is None else hashlib.sha256(chunk).digest()
        with self._lock:
            if number == len(self._known):
                self._known.append((length, told))
            if self._known[number] != (length, told):
                raise Corrupt("reading a segment to copy, it changed", start=start, length=length)
            fresh = max(0, start + length - self._told)
            self._told += fresh
            if fresh:
                self._progress(fresh)


class _Try:
    """One reading of the segment from its beginning."""

    def __init__(self, segment: Outgoing, inspector: Inspector) -> None:
        self.inspector = inspector
        self.sent: list[tuple[int, int]] = []  # (length, CRC) of each chunk of the segment
        self.stored: list[tuple[int, int]] = []  # the same of their stored forms
        self._segment = segment

    def parts(self) -> Iterator[Body]:
        return self._parts_as_they_are() if self._segment.seal.is_nothing else self._sealed_parts()

    def _parts_as_they_are(self) -> Iterator[Body]:
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

    def _sealed_parts(self) -> Iterator[Body]:
        step = part_step(int(self._segment.size_bytes * _GROWTH))
        held: list[bytes] = []
        for body in self._sealed():
            held.append(body)
            if sum(map(len, held)) >= step:
                joined = b"".join(held)
                whole = len(joined) - len(joined) % step
                yield from (joined[at : at + step] for at in range(0, whole, step))
                held = [joined[whole:]]
        rest = b"".join(held)
        if rest:
            yield rest

    def _sealed(self) -> Iterator[bytes]:
        """Stored chunks in order; a few of them are made side by side."""
        ahead: deque[Future[tuple[bytes, int]]] = deque()
        with ThreadPoolExecutor(SEAL_THREADS, thread_name_prefix="tiered-seal") as pool:
            try:
                for number, chunk in enumerate(self._chunks()):
                    ahead.append(pool.submit(self._sealed_chunk, number, chunk))
                    if len(ahead) >= SEAL_AHEAD:
                        yield self._next_of(ahead)
                while ahead:
                    yield self._next_of(ahead)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _sealed_chunk(self, number: int, chunk: Body) -> tuple[bytes, int]:
        body = self._segment.seal.close(number, chunk)
        return body, crc32c(body)

    def _next_of(self, ahead: deque[Future[tuple[bytes, int]]]) -> bytes:
        body, crc = ahead.popleft().result()
        self.stored.append((len(body), crc))
        return body

    def _chunks(self) -> Iterator[Body]:
        """Chunks of whole batches."""
        position, want = 0, self._segment.chunk_bytes
        while position < self._segment.size_bytes:
            length = min(want, self._segment.size_bytes - position)
            data = memoryview(self._segment.read(position, length))
            whole = self._taken(data, position)
            if whole == 0 and position + length == self._segment.size_bytes:
                self._check_end(data)
            if whole == 0:
                want *= 2  # a batch that is larger than a chunk
                continue
            chunk = data[:whole]
            self._note(position, chunk)
            position, want = position + whole, self._segment.chunk_bytes
            yield chunk

    # --- looking -----------------------------------------------------------------------------------------------------

    def _note(self, start: int, chunk: memoryview) -> None:
        length, crc = len(chunk), crc32c(chunk)
        self._segment.note(len(self.sent), start, chunk, crc)
        self.sent.append((length, crc))

    def _inspected(self, tail: bytes, data: memoryview, start: int) -> tuple[bytes, int]:
        """Show `data` to the inspector, a batch that began in `tail` first: (what is still open, how much was seen)."""
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
            raise Corrupt("reading a segment to copy, it ends inside a batch", at=at, left_bytes=len(tail))
