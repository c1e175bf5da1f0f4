"""Pass one of the cleaner: find the dirty records that are the newest of their keys.

The result is two bits per dirty record (whether its key lets it stay, whether it is a tombstone), and the
keys (`kernels.KeyMap`), for the decisions on records of clean segments, which are all older. Control records and
records of aborted transactions are never the newest of a key; the latter are removed. A record without a key is removed
and counted.

Memory: the allocation for keys never exceeds `buffer_bytes` (Kafka's ``log.cleaner.dedupe.buffer.size``, filled to
``log.cleaner.io.buffer.load.factor``). In addition: two bits per dirty record, and one step of decompressed records
(`kernels.STEP_BYTES`). There are three ways to hold keys, tried in this order. A pass that meets a compressed batch, or
has no room for copies, restarts in the next way:

| way | for | bytes per key |
|---|---|---|
| `Keys.IN_PLACE` | segments without a compressed batch: a key is compared in the mapped segment | a slot, 12 |
| `Keys.COPIED` | others, if slots take at most half of the buffer: a key is copied | 12, the key, its length |
| `Keys.DIGESTED` | others: a key of 12 bytes or more becomes a digest, 96 bits of a keyed SipHash | 12, at most 13 |

Each pass draws a secret: the chance of equal digests is 1e-14 in a pass over 50 million keys, whatever the keys are.

If the next segment does not fit, the pass ends before it. Its records may already have cleared the bits of older
records. The bits stay cleared: the newer record is below the last stable offset and stays, so the newest record of the
key remains (I4). If the first segment does not fit, `build_offset_map_of_part` enters a part of it; all later records
stay.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.errors import CleaningAborted, Corrupt, InvalidRequest
from local.format.batch_header import CODEC_BITS, CONTROL
from local.format.columns import BatchTable, Columns, Flags, Ints, Longs, Octets
from local.index.txn_index import AbortedTransaction
from local.kernels.pure_key_map import LET_GO, PASS_BY, SLOT_BYTES, TAKE
from local.names import LOG, TopicPartition
from local.records.isolation import aborted_batches
from local.segment.segment import Segment
from local.segment.segment_reading import slice_bounds

SEGMENTS_MAX = 1000  # of one pass: each may hold a map, and a descriptor before Python 3.13
_SPARE = 32  # 1/32 of the buffer is for copies: of an uncompressed log only keys with an overlong length varint
_DIGEST_BYTES = 12  # for keys of at least this length; a shorter key is stored itself, and its length distinguishes it
_CELL_BYTES = _DIGEST_BYTES + 1  # with the length before it
SECRET_BYTES = 16
_ROWS = 8192  # rows per call: four states and one word of each stay in the CPU cache
_BLOCK_BYTES = 4 << 20  # of gathered keys per call
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
Words = NDArray[np.uint64]
Bits = Octets  # record r is bit ``r & 7`` of byte ``r >> 3``; bits after the last record are undefined
Step = tuple[int, int]  # consecutive records: the ordinal of the first one, a multiple of 8; their number


@dataclass(slots=True)
class CleanerThrottle:
    """The I/O steps of a pass: slices read and parts written. A step may block and may end the pass."""

    partition: TopicPartition
    should_stop: Callable[[], bool] = lambda: False
    throttle: Callable[[int], None] = lambda size_bytes: None  # gets the bytes just read or written
    clock: Callable[[], float] = time.monotonic  # in seconds
    bytes_read: int = 0
    bytes_written: int = 0

    def check(self) -> None:
        """Raises CleaningAborted if the pass was asked to stop."""
        if self.should_stop():
            raise CleaningAborted("the cleaner was stopped on request", partition=self.partition)

    def mapped(self, segment: Segment) -> memoryview:
        """Map all of a closed segment, without a copy. Raises DiskFailed, Corrupt if the file is too short."""
        mapped = segment.files.storage.map(segment.path(LOG))
        if len(mapped) < segment.size_bytes:
            attempt = "cannot clean a segment, it ends inside a batch"
            raise Corrupt(attempt, path=segment.path(LOG), at=len(mapped))
        return mapped[: segment.size_bytes]

    def slices(
        self, segment: Segment, mapped: memoryview | None = None, *, is_counted: bool = True
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield (position, whole batches). Unless `is_counted`, the caller calls `read`. Raises as `mapped`, `read`."""
        if mapped is None:
            mapped = self.mapped(segment)
        for start, end in slice_bounds(segment):
            if is_counted:
                self.read(end - start)
            yield start, mapped[start:end]

    def read(self, size_bytes: int) -> None:
        """Account for `size_bytes` that were read; may wait for the throttle. Raises CleaningAborted."""
        self.check()
        self.bytes_read += size_bytes
        self.throttle(size_bytes)

    def written(self, parts: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield `parts` for the disk; the throttle counts each. Raises CleaningAborted."""
        for part in parts:
            self.check()
            self.bytes_written += len(part)
            self.throttle(len(part))
            yield part


def packed(flags: Flags) -> Bits:
    return np.packbits(flags, bitorder="little")


def clear(bits: Bits, first: int, count: int) -> None:
    for record in range(first, first + count):
        bits[record >> 3] &= 0xFF ^ (1 << (record & 7))


def joined(bits: Bits, steps: Sequence[Step]) -> Bits:
    """A copy of the bits of some steps, joined."""
    parts = [bits[first >> 3 : (first + count + 7) >> 3] for first, count in steps]
    if len(parts) == 1:
        return parts[0].copy()
    flags = [np.unpackbits(part, count=count, bitorder="little") for part, (_, count) in zip(parts, steps, strict=True)]
    return np.packbits(np.concatenate(flags), bitorder="little") if flags else np.empty(0, np.uint8)


class Keys(Enum):
    """How the offset map stores keys."""

    IN_PLACE = "in place"
    COPIED = "copied"
    DIGESTED = "digested"


class Added(Enum):
    """Result for a segment: entered whole, no room, or not possible in this way (compressed batches)."""

    WHOLE = "whole"
    NO_ROOM = "no room"
    PACKED = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """The bytes that pass one may allocate for keys, and the maximum load of the slots (0..1)."""

    size_bytes: int = 128 << 20
    load_factor: float = 0.9


class OffsetMap:
    """The result of pass one, created by `build_offset_map`. Not thread safe."""

    def __init__(
        self, keys: Keys, records: int, buffer: Buffer, *, from_offset: int = 0, is_in_part: bool = False
    ) -> None:
        """`records` is the maximum number of records. Records below `from_offset` are not entered.

        `is_in_part`: a segment is entered up to the first record without room (`end_offset`).
        """
        capacity = _capacity(keys, buffer)
        slots = max(2, min(capacity, int(records / buffer.load_factor) + 2))
        entries = max(1, min(slots - 1, int(slots * buffer.load_factor)))
        spare = max(0, buffer.size_bytes - slots * SLOT_BYTES)
        draw = random.SystemRandom()
        self.keys = kernels.KeyMap(slots, entries, arena_bytes_max=spare, seed=draw.getrandbits(63))
        self.invalid_records = 0
        self.end_offset: int | None = None
        self._capacity, self._from, self._is_in_part = capacity, from_offset, is_in_part
        self._kind, self._secret = keys, draw.randbytes(SECRET_BYTES)
        self._steps: dict[int, list[list[Step]]] = {}
        self._mapped: dict[int, memoryview] = {}
        self._held = -1
        self._keep = np.full(1024, 0xFF, np.uint8)
        self._tombstones = np.zeros(1024, np.uint8)
        self._next = 0

    @property
    def utilization(self) -> float:
        """Keys per slot of a full buffer, 0..1: the load factor if no further key fits, as in Kafka."""
        return float(min(1.0, len(self.keys) / self._capacity))

    def bits(self, base_offset: int, slice_number: int) -> tuple[Bits, Bits] | None:
        """(stays, is a tombstone) for each record of a slice, control records too; None for a clean slice."""
        slices = self._steps.get(base_offset)
        if slices is None:
            return None
        steps = slices[slice_number]
        return joined(self._keep, steps), joined(self._tombstones, steps)

    def superseded(self, columns: Columns) -> Flags:
        """Whether a newer record of each record's key was entered, for columns of older records."""
        data, starts, lengths = self._as_held(columns)
        return self.keys.find(data, starts, lengths)

    def mapped(self, base_offset: int) -> memoryview | None:
        """The bytes of a segment whose keys were entered; None for any other."""
        return self._mapped.get(base_offset)

    def add(self, segment: Segment, aborted: Sequence[AbortedTransaction], limiter: CleanerThrottle) -> Added:
        """Enter a segment; unless WHOLE, it counts as not entered. Raises Corrupt, InvalidRequest, CleaningAborted."""
        mapped = limiter.mapped(segment)
        self._held = self.keys.hold(mapped)
        first_invalid, slices = self.invalid_records, []
        for start, end in slice_bounds(segment):
            limiter.read(end - start)
            data = mapped[start:end]
            table = kernels.scan_batches(data, verify=False)
            is_plain = table.problem is None and not table.has_legacy and not (table.attributes & CODEC_BITS).any()
            if self._kind is Keys.IN_PLACE and not is_plain:
                return Added.PACKED
            is_old = segment.base_offset < self._from
            in_one = is_plain and not is_old and not self._is_in_part and self._kind is not Keys.DIGESTED
            add = self._add_plain if in_one else self._add_inflated
            steps = add(segment, start, data, table, aborted)
            if steps is None:
                self.invalid_records = first_invalid
                return Added.NO_ROOM
            slices.append(steps)
        self._steps[segment.base_offset] = slices
        self._mapped[segment.base_offset] = mapped
        return Added.WHOLE

    def _add_plain(
        self, segment: Segment, start: int, data: memoryview, table: BatchTable, aborted: Sequence[AbortedTransaction]
    ) -> list[Step] | None:
        rows, first = int(table.record_counts.sum(dtype=np.int64)), self._next
        self._reserve(first + rows)
        roles = np.where((table.attributes & CONTROL) != 0, PASS_BY, TAKE).astype(np.uint8)
        roles[aborted_batches(table, aborted)] = LET_GO
        where = {"buffer": self._held, "position": start}
        keyless = self.keys.add_batches(data, table, roles, first, self._keep, self._tombstones, **where)
        if keyless is None:
            return None
        self.invalid_records += keyless
        self._next = (first + rows + 7) & ~7
        return [(first, rows)]

    def _add_inflated(
        self, segment: Segment, start: int, data: memoryview, table: BatchTable, aborted: Sequence[AbortedTransaction]
    ) -> list[Step] | None:
        steps: list[Step] = []
        whole = 0
        for columns in kernels.decode_in_steps(data, include_control=True):
            is_held = columns.data.obj is data.obj and self._kind is not Keys.DIGESTED
            step = self._add(columns, aborted, self._held if is_held else -1, start)
            if step is None:
                return None
            steps.append(step)
            whole = columns.table.valid_bytes
            del columns  # frees it before the next step is decompressed
        check_whole(segment, start, whole, len(data))
        return steps

    def _add(self, columns: Columns, aborted: Sequence[AbortedTransaction], held: int, position: int) -> Step | None:
        rows, first = len(columns), self._next
        self._reserve(first + rows)
        dropped, skip = _skipped(columns, aborted)
        is_old = columns.offsets < self._from
        dropped, skip = dropped & ~is_old, skip | is_old
        is_keyless = (columns.key_lengths < 0) & ~skip
        done = self._enter(columns, skip, first, held, position)
        if done < rows:
            if not self._is_in_part:
                return None
            if self.end_offset is None:
                self.end_offset = int(columns.offsets[done])
            is_remaining = np.arange(rows) >= done
            dropped, skip, is_keyless = dropped & ~is_remaining, skip | is_remaining, is_keyless & ~is_remaining
        bits = slice(first >> 3, (first + rows + 7) >> 3)
        self._keep[bits] &= ~packed(dropped | is_keyless)
        self._tombstones[bits] |= packed((columns.value_lengths < 0) & ~skip & ~is_keyless)
        self._next = (first + rows + 7) & ~7
        self.invalid_records += int(is_keyless.sum())
        return first, rows

    def _enter(self, columns: Columns, skip: Flags, first: int, held: int, position: int) -> int:
        if self.end_offset is not None:
            return 0
        where = {"buffer": held, "position": position if held >= 0 else 0}
        data, starts, lengths = self._as_held(columns)
        return self.keys.add(data, starts, lengths, skip, first, self._keep, **where)

    def _as_held(self, columns: Columns) -> tuple[memoryview, Longs, Ints]:
        """The keys as they are compared: unchanged, or one cell per key with a digest or a short key."""
        starts, lengths = columns.key_starts, columns.key_lengths
        if self._kind is not Keys.DIGESTED:
            return columns.data, starts, lengths
        cells = np.zeros((len(columns), _CELL_BYTES), np.uint8)
        is_long = lengths >= _DIGEST_BYTES
        low, high = digest_keys(columns.data, starts[is_long], lengths[is_long], self._secret)
        halves = np.stack((low, high), axis=1).view(np.uint8)
        cells[is_long, 1:] = halves[:, :_DIGEST_BYTES]
        for length in np.unique(lengths[(lengths > 0) & ~is_long]).tolist():
            rows = np.flatnonzero(lengths == length)
            _, joined_keys = kernels.gather(columns.data, starts[rows], lengths[rows])
            cells[rows, 1 : 1 + length] = joined_keys.reshape(len(rows), length)
        places = np.arange(len(columns), dtype=np.int64) * _CELL_BYTES + 1
        return cells.reshape(-1).data, places, np.minimum(lengths, _DIGEST_BYTES).astype(np.int32)

    def _reserve(self, ordinals: int) -> None:
        need = (ordinals + 7) >> 3
        if need > len(self._keep):
            more = max(need, 2 * len(self._keep)) - len(self._keep)
            self._keep = np.concatenate((self._keep, np.full(more, 0xFF, np.uint8)))
            self._tombstones = np.concatenate((self._tombstones, np.zeros(more, np.uint8)))


def build_offset_map(
    segments: Sequence[Segment],
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    buffer: Buffer,
    limiter: CleanerThrottle,
    *,
    from_offset: int = 0,
) -> tuple[OffsetMap, int]:
    """Run pass one over the dirty `segments`: (offset map, number of segments that fit, possibly 0).

    No segment may be empty. Records below `from_offset` are not entered. Raises Corrupt, CleaningAborted.
    """
    records = _records(segments, next_offset, buffer)
    for keys in _kinds(records, buffer):
        newest = OffsetMap(keys, records, buffer, from_offset=from_offset)
        done, added = 0, Added.WHOLE
        for segment in segments[:SEGMENTS_MAX]:
            added = newest.add(segment, aborted, limiter)
            if added is not Added.WHOLE:
                break
            done += 1
        if added is Added.PACKED or (added is Added.NO_ROOM and keys is Keys.COPIED):
            continue
        break
    return newest, done


def build_offset_map_of_part(
    segment: Segment,
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    buffer: Buffer,
    limiter: CleanerThrottle,
    *,
    from_offset: int = 0,
) -> tuple[OffsetMap, int]:
    """Run pass one over as many records of one segment as fit: (offset map, first offset not entered).

    Raises Corrupt, CleaningAborted, and InvalidRequest if not one key fits the buffer.
    """
    for keys in (Keys.IN_PLACE, Keys.DIGESTED):
        records = next_offset - segment.base_offset
        newest = OffsetMap(keys, records, buffer, from_offset=from_offset, is_in_part=True)
        if newest.add(segment, aborted, limiter) is not Added.PACKED:
            break
    end = next_offset if newest.end_offset is None else newest.end_offset
    if not len(newest.keys) and newest.end_offset is not None:
        facts = {"path": segment.path(LOG), "offset": end, "dedupe_buffer_bytes": buffer.size_bytes}
        raise InvalidRequest("cannot clean the log, one key does not fit in the dedupe buffer", **facts)
    return newest, end


def _capacity(keys: Keys, buffer: Buffer) -> int:
    if keys is Keys.IN_PLACE:
        slots_max = buffer.size_bytes // SLOT_BYTES
        return slots_max - slots_max // _SPARE
    return int(buffer.size_bytes / (SLOT_BYTES + _CELL_BYTES * buffer.load_factor))


def _kinds(records: int, buffer: Buffer) -> list[Keys]:
    is_roomy = records / buffer.load_factor + 2 <= buffer.size_bytes // SLOT_BYTES // 2
    return [Keys.IN_PLACE, *([Keys.COPIED] if is_roomy else []), Keys.DIGESTED]


def _records(segments: Sequence[Segment], next_offset: int, buffer: Buffer) -> int:
    """The maximum number of records; counted if their offsets would take half of the buffer or more."""
    offsets = next_offset - segments[0].base_offset
    enough = int(buffer.size_bytes // SLOT_BYTES * buffer.load_factor)
    if offsets <= enough // 2:
        return offsets
    records = 0
    for segment in segments:
        mapped = segment.files.storage.map(segment.path(LOG))
        for start, end in slice_bounds(segment):
            table = kernels.scan_batches(mapped[start:end], verify=False)
            records += int(table.record_counts.sum(dtype=np.int64))
            if records >= enough:
                return enough
    return records


def check_whole(segment: Segment, start: int, whole: int, expected: int) -> None:
    """Raises Corrupt unless a slice consists of whole batches to its end."""
    if whole < expected:
        raise Corrupt("cannot clean a segment, it ends inside a batch", path=segment.path(LOG), at=start + whole)


def _skipped(columns: Columns, aborted: Sequence[AbortedTransaction]) -> tuple[Flags, Flags]:
    table, ordinals = columns.table, columns.batch_ordinals
    dropped = aborted_batches(table, aborted)
    control = (table.attributes & CONTROL) != 0
    if not dropped.any() and not control.any():
        none = np.zeros(len(columns), np.bool_)
        return none, none
    return dropped[ordinals], (dropped | control)[ordinals]


# A 128-bit digest per key, for comparisons without the key: SipHash-2-4 with a secret.
#
# SipHash is a pseudorandom function. With a secret drawn per job, the chance that any two of a billion keys collide is
# 2^-69, even if an adversary chose the keys. Equal digests are therefore taken for equal keys; a collision would lose a
# record. Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF"; the 128-bit form of its reference
# implementation.


def digest_keys(data: memoryview, starts: Longs, lengths: Ints, secret: bytes) -> tuple[Longs, Longs]:
    """(low, high) halves of the keys' digests; no key is null. Raises InvalidRequest for a wrong range or secret."""
    if len(secret) != SECRET_BYTES:
        raise InvalidRequest("hashing keys, a secret of another length", bytes=len(secret), expected=SECRET_BYTES)
    low, high = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    if not len(starts):
        return low, high
    ends = starts + lengths
    if int(lengths.min()) < 0 or int(starts.min()) < 0 or int(ends.max()) > len(data):
        raise InvalidRequest("hashing keys, a range outside the data", bytes=len(data))
    for rows, words in _blocks(lengths):
        first, second = _siphash(_words_of(data, starts[rows], lengths[rows], words), secret)
        low[rows], high[rows] = first.view(np.int64), second.view(np.int64)
    return low, high


def _blocks(lengths: Ints) -> Iterator[tuple[Longs, int]]:
    """Bounded groups of keys with the same number of words, as (rows of the keys, number of words)."""
    words = lengths // 8 + 1
    for count in np.unique(words).tolist():
        rows = np.flatnonzero(words == count)
        step = max(1, min(_ROWS, _BLOCK_BYTES // (8 * count)))
        for at in range(0, len(rows), step):
            yield rows[at : at + step], count


def _words_of(data: memoryview, starts: Longs, lengths: Ints, words: int) -> Words:
    """One row per word, one column per key: the bytes of the key, zeros, and its length in the last byte."""
    padded = np.zeros((len(starts), 8 * words), np.uint8)
    for length in np.unique(lengths).tolist():  # at most eight lengths; keys of one length form a rectangle
        rows = np.flatnonzero(lengths == length)
        _, joined = kernels.gather(data, starts[rows], lengths[rows])
        padded[rows, :length] = joined.reshape(len(rows), length)
    padded[:, -1] = lengths & 0xFF
    return np.ascontiguousarray(padded.view("<u8").astype(np.uint64, copy=False).T)


def _siphash(words: Words, secret: bytes) -> tuple[Words, Words]:
    keys = [int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")]
    v = [np.full(words.shape[1], start ^ keys[at & 1], np.uint64) for at, start in enumerate(_START)]
    v[1] ^= np.uint64(0xEE)
    spare = np.empty(words.shape[1], np.uint64)
    for word in words:
        v[3] ^= word
        _rounds(v, 2, spare)
        v[0] ^= word
    v[2] ^= np.uint64(0xEE)
    _rounds(v, 4, spare)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= np.uint64(0xDD)
    _rounds(v, 4, spare)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[Words], count: int, spare: Words) -> None:
    v0, v1, v2, v3 = v
    for _ in range(count):
        v0 += v1
        v2 += v3
        _rotate(v1, 13, spare)
        _rotate(v3, 16, spare)
        v1 ^= v0
        v3 ^= v2
        _rotate(v0, 32, spare)
        v2 += v1
        v0 += v3
        _rotate(v1, 17, spare)
        _rotate(v3, 21, spare)
        v1 ^= v2
        v3 ^= v0
        _rotate(v2, 32, spare)


def _rotate(words: Words, bits: int, spare: Words) -> None:
    np.right_shift(words, np.uint64(64 - bits), out=spare)
    np.left_shift(words, np.uint64(bits), out=words)
    words |= spare
