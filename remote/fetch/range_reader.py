"""Reads of remote segments: ranges of the data object in whole chunks, each verified before use.

1. A read is widened to chunk boundaries, because no client checks a ranged GET.
2. Each chunk, from the store or a disk, is compared with the length and CRC32C in the segment's ``.indexes`` object.
3. A compressed or encrypted chunk is decoded, and the result is compared too (`remote.segments.stored_segment`).
4. A chunk that differs is fetched once more. If it differs again, the read raises Corrupt with object, range, offsets.

Positions are positions in the segment, independent of the object encoding. Adjacent chunks are fetched by one GET, a
long read by concurrent GETs of RANGE_BYTES. A read inside one GET's body of a plain object is a view of the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from local.errors import Corrupt, LogError, NotFound
from local.format.crc32c import crc32c, crc32c_each
from local.index import offset_index, time_index
from remote.cache.chunk_cache import ChunkCache, Slice
from remote.cache.disk_cache import WHOLE, DiskCache
from remote.keys import full_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.sealing import keyed
from remote.segment_entry import OBJECT_BYTES_MAX, SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing, ObjectCipher
from remote.segments.stored_segment import (
    CHUNK_BYTES,
    CODECS,
    PLAIN,
    RAW,
    ChunkTable,
    IndexBundle,
    decode_bundle,
    open_chunk,
    open_ring,
)
from remote.store import Body, ObjectStore, read_named

RANGE_BYTES = 8 << 20  # the knee of the throughput curve on a fast link
Key = tuple[str, int]  # (full key of an object, number of a chunk or `_INDEXES`)
_Piece = tuple[int, Body]  # (chunk number, stored bytes)
# Decodes a chunk, or raises Corrupt: (number, stored bytes, `is_sound`: whether its checksum was compared already).
Opener = Callable[..., Slice]
_INDEXES = -1  # in place of a chunk's number: the segment's indexes object
GUESS_BYTES = 128 << 10  # expected size of the first read of a segment
SLACK_BYTES = 128 << 10  # added to a guess on either side
WRONG_MAX = 3  # a pause starts when wrong guesses exceed right ones by more than this
REST = 32  # length of a pause: this many segments are read without a guess


def why_missing(log: MetadataLog, entries: Sequence[SegmentEntry], error: NotFound) -> LogError:
    """The error for a 404: Corrupt (a lost object) if the newest manifest names all of `entries`."""
    manifest = log.refresh(exact=True)
    if not log.ask(manifest, lambda index: all(index.holds(entry) for entry in entries)):
        return error
    return Corrupt("the object of a remote segment does not exist and the newest manifest names it", **error.facts)


class RemotePartition:
    """One partition, read-only. Thread safe; partitions of one store may share the cache.

    All methods raise Unavailable, and AccessDenied for a segment whose key `keys` lacks. Methods on a segment raise
    NotFound if it expired after the manifest was read: refresh the manifest once. If `is_checked` is False there are no
    chunk checksums: the caller checks the CRCs of batches.
    """

    is_checked = True

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        cache: ChunkCache | None = None,
        *,
        metadata: MetadataLog | None = None,
        keys: KeyRing = NO_KEYS,
        disk: DiskCache | None = None,
        guesses: RangePredictor | None = None,
    ) -> None:
        self._store = store
        self.prefix = prefix
        self.cache = ChunkCache() if cache is None else cache
        self._keys = keys
        self._disk = disk
        self._log = MetadataLog(keyed(store, keys), prefix) if metadata is None else metadata
        self._guesses = guesses
        self._streams = 0
        self._lock = threading.Lock()

    def manifest(self) -> Manifest:
        """Return the last read manifest; read it now if there is none. Raises NotFound without a manifest."""
        return self._log.cached or self._log.refresh()

    def refresh(self) -> Manifest:
        return self._log.refresh()

    def indexes(self, segment: SegmentEntry) -> IndexBundle:
        """Return the segment's indexes: one GET the first time. Raises Corrupt if they are damaged."""
        key = full_key(self.prefix, segment.indexes_key), _INDEXES
        return self.cache.fetch([key], lambda _: {key: self._checked_indexes(segment)})[0]

    def txn_index(self, segment: SegmentEntry) -> Body:
        """Return the aborted transactions, in the format of a ``.txnindex`` file. Raises as `indexes`."""
        return self.indexes(segment).txn

    def producer_snapshot(self, segment: SegmentEntry) -> Body:
        """Return the producers at the segment's end, as a ``.snapshot`` file. Raises as `indexes`."""
        return self.indexes(segment).producers

    def position_of_offset(self, segment: SegmentEntry, offset: int) -> int:
        """Return the position of a batch at or before that of `offset`; 0 without a lower index entry."""
        key = full_key(self.prefix, segment.indexes_key), _INDEXES
        is_new = self._guesses is not None and self.cache.peek(key) is None
        guess = self._guesses.guess(segment, offset) if self._guesses is not None and is_new else None
        if guess is None:
            return offset_index.lookup(self.indexes(segment).offset, segment.base_offset, offset)[1]
        found = self.cache.fetch([key], lambda _: {key: self._guessed_indexes(segment, guess)})[0]
        position = offset_index.lookup(found.offset, segment.base_offset, offset)[1]
        if guess.body is not None and self._guesses is not None:
            sound = self._sound(segment, found.chunks, guess, guess.body)
            is_right = bool(sound) and guess.holds(position)
            self._guesses.was(right=is_right)
            self.cache.keep(sound)
            for (name, number), chunk in sound.items() if is_right else ():
                self._to_disk(name, number, chunk.view())
        return position

    def place_of_timestamp(self, segment: SegmentEntry, timestamp_ms: int) -> tuple[int, int]:
        """(offset, position of a batch at or before it) from which to search for a timestamp.

        No batch below the offset has a record at or after `timestamp_ms`, even if one time index entry is wrong.
        """
        bundle = self.indexes(segment)
        size_bytes = time_index.ENTRY_BYTES

        def entry(slot: int) -> tuple[int, ...]:
            return time_index.ENTRY.unpack_from(bundle.time, slot * size_bytes)

        count = len(bundle.time) // size_bytes
        offset = time_index.find_start(count, entry, segment.base_offset, timestamp_ms)
        return offset, offset_index.lookup(bundle.offset, segment.base_offset, offset)[1]

    def read(self, segment: SegmentEntry, position: int, length: int, *, in_one_piece: bool = False) -> memoryview:
        """Verified bytes ``[position, position + length)``; fewer at the segment's end. Raises Corrupt.

        `in_one_piece` also returns fewer at the end of one GET's body, so that nothing is copied. The bytes are
        immutable and may be a view of the cache. A view holds the whole body in memory, at most RANGE_BYTES.
        """
        assert position >= 0
        assert length >= 0
        table = self.indexes(segment).chunks
        numbers = table.chunks_of(position, length)
        if not numbers:
            return memoryview(b"")
        skipped = position - table.chunk_range(numbers[0])[0]
        return _cut_out(self._chunks(segment, table, numbers), skipped, length, in_one_piece=in_one_piece)

    def warm(self, segment: SegmentEntry, position: int, length: int) -> None:
        """Load the bytes that a `read` will need into the cache, by one GET. Raises as `read` does."""
        table = self.indexes(segment).chunks
        if numbers := table.chunks_of(position, length):
            self._chunks(segment, table, numbers, ahead_bytes=length)

    def count_streams(self, by: int) -> None:
        with self._lock:
            self._streams += by
        self.cache.count_streams(by)

    def leave_behind(self, segment: SegmentEntry, position: int, end: int) -> None:
        """Mark bytes ``[position, end)`` as passed by the only stream: they are evicted first."""
        bundle = self.cache.peek((full_key(self.prefix, segment.indexes_key), _INDEXES))
        if self._streams == 1 and isinstance(bundle, IndexBundle):
            name = full_key(self.prefix, segment.data_key)
            self.cache.leave_behind((name, each) for each in bundle.chunks.chunks_of(position, end - position))

    def _sound(self, segment: SegmentEntry, table: ChunkTable, guess: PredictedRange, body: Body) -> dict[Key, Slice]:
        run = table.chunks_of(guess.start, guess.length)
        if table.chunk_range(run[0])[0] != guess.start or sum(table.chunk_range(run[-1])) != guess.start + guess.length:
            return {}
        name = full_key(self.prefix, segment.data_key)
        return {(name, number): stored for number, stored, is_sound in _pieces(table, run, body) if is_sound}

    def _chunks(self, segment: SegmentEntry, table: ChunkTable, numbers: range, *, ahead_bytes: int = 0) -> list[Slice]:
        name, fresh = full_key(self.prefix, segment.data_key), list[_Piece]()
        wanted = [(name, number) for number in numbers]
        try:
            load = partial(self._load, segment, table, fresh, OBJECT_BYTES_MAX if ahead_bytes else RANGE_BYTES)
            return self.cache.fetch(wanted, load, reserved_bytes=ahead_bytes)
        finally:
            # After the load: the other readers of these chunks do not wait for the disk.
            for number, body in fresh:
                self._to_disk(name, number, body)

    def _load(
        self, segment: SegmentEntry, table: ChunkTable, fresh: list[_Piece], range_bytes: int, keys: Sequence[Key]
    ) -> Mapping[Key, Slice]:
        """Return sound chunks. Adds bytes from the store to `fresh`."""
        name, opened = keys[0][0], self._opener(segment, table)
        loaded = self._from_disk(table, keys, opened)
        missing = sorted(number for name, number in keys if (name, number) not in loaded)
        runs = list(_runs(table, missing, range_bytes))
        if not runs:
            return loaded
        try:
            bodies = read_named(lambda: self._store.get_ranges(name, [_range_of(table, run) for run in runs]))
        except Corrupt:
            bodies = [b""] * len(runs)  # the object is short: read each chunk alone, to find the damaged one
        for run, body in zip(runs, bodies, strict=True):
            for number, stored, is_sound in _pieces(table, run, body):
                try:
                    loaded[name, number] = opened(number, stored, is_sound=is_sound)
                    if self._disk is not None:
                        fresh.append((number, stored.view()))
                except Corrupt:
                    loaded[name, number] = self._opened_again(segment, table, number, opened)
        return loaded

    def _from_disk(self, table: ChunkTable, keys: Sequence[Key], opened: Opener) -> dict[Key, Slice]:
        found: dict[Key, Slice] = {}
        for name, number in keys if self._disk is not None else ():
            assert self._disk is not None
            body = self._disk.get(name, number)
            if body is None:
                continue
            try:
                if len(body) != table.stored_range(number)[1]:
                    raise Corrupt("a cached chunk is damaged, its length differs")
                found[name, number] = opened(number, Slice(body, 0, len(body)))
            except Corrupt:
                self._disk.forget(name, number)
        return found

    def _to_disk(self, name: str, number: int, body: Body) -> None:
        if self._disk is not None:
            self._disk.keep(name, number, body)

    def _opened_again(self, segment: SegmentEntry, table: ChunkTable, number: int, opened: Opener) -> Slice:
        name, (start, length) = full_key(self.prefix, segment.data_key), table.stored_range(number)
        offsets = {"base_offset": segment.base_offset, "next_offset": segment.next_offset}
        facts = {"object": name, "start": start, "length": length, **offsets}
        try:
            again = Slice(read_named(lambda: self._store.get_range(name, start, length)), 0, length)
        except Corrupt as error:
            raise Corrupt("cannot read a remote segment, its object is too short", **facts) from error
        try:
            return opened(number, again)
        except Corrupt as error:
            raise Corrupt(f"cannot read a remote segment: {error.attempt}", **facts, **error.facts) from error

    def _opener(self, segment: SegmentEntry, table: ChunkTable) -> Opener:
        return partial(_opened, table, open_ring(segment, self.prefix, self._keys))

    def _checked_indexes(self, segment: SegmentEntry) -> IndexBundle:
        name = full_key(self.prefix, segment.indexes_key)
        known = self._disk.get(name, WHOLE) if self._disk is not None else None
        if known is not None and self._disk is not None:
            try:
                return self._opened_indexes(name, segment, known)
            except Corrupt:
                self._disk.forget(name, WHOLE)
        try:
            body = read_named(lambda: self._store.get(name))
            bundle = self._opened_indexes(name, segment, body)
        except Corrupt:
            body = read_named(lambda: self._store.get(name))
            bundle = self._opened_indexes(name, segment, body)
        self._to_disk(name, WHOLE, body)
        return bundle

    def _guessed_indexes(self, segment: SegmentEntry, guess: PredictedRange) -> IndexBundle:
        """As `_checked_indexes`; a request to the store also fetches the bytes of `guess`."""
        name = full_key(self.prefix, segment.indexes_key)
        if self._disk is None or self._disk.get(name, WHOLE) is None:
            data = full_key(self.prefix, segment.data_key), guess.start, guess.length
            body, guess.body = self._store.get_each([(name, 0, None), data])
            with suppress(Corrupt):
                if body is not None:
                    bundle = self._opened_indexes(name, segment, bytes(body))
                    self._to_disk(name, WHOLE, body)
                    return bundle
        return self._checked_indexes(segment)

    def _opened_indexes(self, name: str, segment: SegmentEntry, body: bytes) -> IndexBundle:
        offsets = {"object": name, "base_offset": segment.base_offset, "next_offset": segment.next_offset}
        if len(body) != segment.indexes_bytes:
            facts = {**offsets, "expected_bytes": segment.indexes_bytes, "found_bytes": len(body)}
            raise Corrupt("the indexes of a remote segment are damaged, their size differs", **facts)
        cipher = open_ring(segment, self.prefix, self._keys)
        try:
            bundle = decode_bundle(body if cipher is None else cipher.open_indexes(body))
        except Corrupt as error:
            raise Corrupt(error.attempt, **offsets, **error.facts) from error
        if not _is_of(bundle.chunks, segment):
            raise Corrupt("the indexes belong to another remote segment", **offsets)
        return bundle


def _is_of(table: ChunkTable, segment: SegmentEntry) -> bool:
    sizes = (table.size_bytes, table.stored_bytes) == (segment.size_bytes, segment.stored_bytes)
    kinds = (CODECS[table.codec], table.cipher != PLAIN) == (segment.codec, segment.key_id is not None)
    whole = table.whole_crc
    content = whole if table.is_as_it_is else table.segment_crc
    return sizes and kinds and (whole, content) == (segment.data_crc32c, segment.content_crc32c)


def _pieces(table: ChunkTable, run: range, body: Body) -> Iterator[tuple[int, Slice, bool]]:
    """Yield (number, stored bytes, whether they match) of one GET's chunks; none of a short body matches."""
    first = table.stored_range(run.start)[0]
    places = [table.stored_range(number) for number in run]
    is_whole = sum(length for _, length in places) == len(body)
    sums = crc32c_each(body, [length for _, length in places]) if is_whole else [None] * len(run)
    for number, (start, length), found in zip(run, places, sums, strict=True):
        yield number, Slice(body, start - first, length), found == table.stored_crc(number)


def _opened(
    table: ChunkTable, cipher: ObjectCipher | None, number: int, stored: Slice, *, is_sound: bool = False
) -> Slice:
    """Return a chunk of the segment from its stored bytes. Raises Corrupt. `is_sound`: its checksum was compared."""
    view = stored.view()
    expected = table.stored_crc(number)
    if not is_sound and (len(view) != stored.size_bytes or crc32c(view) != expected):
        facts = {"expected": f"{expected:08x}", "found": f"{crc32c(view):08x}"}
        raise Corrupt("a chunk is damaged, its checksum differs", **facts)
    if table.is_as_it_is:
        return stored
    return Slice(open_chunk(table, number, view, cipher), 0, table.lengths[number])


def _cut_out(chunks: Sequence[Slice], skipped: int, length: int, *, in_one_piece: bool) -> memoryview:
    runs = [list(run) for _, run in groupby(chunks, key=lambda chunk: id(chunk.body))]
    runs = runs[:1] if in_one_piece else runs
    views = [memoryview(run[0].body)[run[0].start : run[-1].start + run[-1].size_bytes] for run in runs]
    views[0] = views[0][skipped:]
    before_last = sum(map(len, views[:-1]))
    views[-1] = views[-1][: length - before_last]
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


def _runs(table: ChunkTable, numbers: Sequence[int], range_bytes: int) -> Iterator[range]:
    """Split ascending numbers into runs of adjacent chunks of at most `range_bytes` as stored."""
    start = 0
    for at in range(1, len(numbers) + 1):
        run = range(numbers[start], numbers[at - 1] + 1)
        is_end = at == len(numbers) or numbers[at] != run.stop
        if is_end or _range_of(table, range(run.start, run.stop + 1))[1] > range_bytes:
            yield run
            start = at


def _range_of(table: ChunkTable, run: range) -> tuple[int, int]:
    start = table.stored_range(run.start)[0]
    last, length = table.stored_range(run.stop - 1)
    return start, last + length - start


@dataclass(slots=True)
class PredictedRange:
    start: int
    length: int
    body: Body | None = None

    def holds(self, position: int) -> bool:
        return self.start <= position < self.start + self.length


class RangePredictor:
    """Predicts the first range that a read of a segment needs, if earlier predictions were right. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong = 0
        self._rest = 0

    def guess(self, segment: SegmentEntry, offset: int) -> PredictedRange | None:
        """Return whole chunks to fetch, None for no guess: only chunks of plain objects have known boundaries."""
        if segment.codec != CODECS[RAW] or segment.key_id is not None or not self._may():
            return None
        reached = min(max(offset, segment.base_offset), segment.next_offset - 1) - segment.base_offset
        middle = segment.size_bytes * reached // (segment.next_offset - segment.base_offset)
        start = max(0, middle - SLACK_BYTES) // CHUNK_BYTES * CHUNK_BYTES
        stop = -(-(middle + GUESS_BYTES + SLACK_BYTES) // CHUNK_BYTES) * CHUNK_BYTES
        return PredictedRange(start, min(stop, segment.size_bytes) - start)

    def was(self, *, right: bool) -> None:
        with self._lock:
            self._wrong = max(0, self._wrong - 1) if right else self._wrong + 1
            if self._wrong > WRONG_MAX:
                self._wrong, self._rest = WRONG_MAX, REST

    def _may(self) -> bool:
        with self._lock:
            is_over, self._rest = self._rest == 0, max(0, self._rest - 1)
            return is_over
