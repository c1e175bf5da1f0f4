"""Pass one of the cleaner: which records of the dirty segments are the newest of their keys.

The answer is two bits for each record, that it stays as far as its key goes and that it is a tombstone, and the keys
(`kernels.KeyMap`), by which records of clean segments are judged, all of which are older. Skipped, and no key's newest:
control records and those of aborted transactions (the latter go). A record without a key goes, and is counted.

Memory: what is allocated for keys never exceeds `buffer_bytes` (Kafka's ``log.cleaner.dedupe.buffer.size``, filled to
``log.cleaner.io.buffer.load.factor``). Beside it two bits a dirty record and one step of inflated records
(`kernels.STEP_BYTES`). Three ways to hold keys, in the order in which they are tried:

| way | for | bytes a key |
|---|---|---|
| `Keys.IN_PLACE` | segments without a compressed batch: a key is compared in the mapped segment | a slot, 12 |
| `Keys.COPIED` | others, where at most half of the buffer is slots: a key is copied | 12, the key, its length |
| `Keys.DIGESTED` | others: of a key of 12 bytes or more a digest is kept, 96 bits of a keyed SipHash | 12, at most 13 |

Digests of two keys are equal with a chance of 1e-14 in a pass over 50 million keys, whatever the keys are: each pass
draws a secret. Kafka holds 24 bytes a key and takes equal MD5 digests for equal keys. A pass that meets a compressed
batch, or has no room for copies, begins again in the next way.

When the next segment does not fit, the pass ends before it. Records that lost their bit to a record of that segment
stay without it: that record is newer, decided and not cleaned in this round, so the key's newest record remains (I4).
Where the first segment does not fit, `find_newest_in_part` takes its records in order up to the first that has no room,
as Kafka does; all records from there on stay.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.cleaner_io import Pace
from local.cleaner.key_digests import SECRET_BYTES, digest_keys
from local.cleaner.record_bits import Bits, joined, packed
from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import CODEC_BITS, CONTROL
from local.format.columns import BatchTable, Columns
from local.index.txn_index import AbortedTransaction
from local.kernels.pure_key_map import LET_GO, PASS_BY, SLOT_BYTES, TAKE
from local.names import LOG
from local.records.isolation import aborted_batches
from local.segment.segment import Segment
from local.segment.segment_reading import slice_bounds
from local.storage import Storage

SEGMENTS_MAX = 1000  # of one round: each may hold a mapping, and a descriptor before Python 3.13
_SPARE = 32  # a plain log needs copies only of keys whose length is written in too many bytes: a 32nd of the buffer
_DIGEST_BYTES = 12  # of a key that is as long or longer; a shorter key is held as it is, and its length tells
_CELL_BYTES = _DIGEST_BYTES + 1  # with its length before it
Flags = NDArray[np.bool_]


class Keys(Enum):
    """How keys are held; see the module text."""

    IN_PLACE = "in place"
    COPIED = "copied"
    DIGESTED = "digested"


class Added(Enum):
    """What became of a segment: entered whole, not entered for want of room, or not to be entered in this way."""

    WHOLE = "whole"
    NO_ROOM = "no room"
    PACKED = "packed"


class Step(NamedTuple):
    """Consecutive records: `rows` of them from ordinal `first`, a multiple of 8, on."""

    first: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """What pass one may allocate for keys, and how full the slots may get (0..1)."""

    size_bytes: int = 128 << 20
    load_factor: float = 0.9


class NewestRecords:
    """See the module text. Made by `find_newest`; not thread safe."""

    def __init__(self, keys: Keys, records: int, buffer: Buffer, *, from_offset: int = 0) -> None:
        """`records` are as many as there may be. Those below `from_offset` are no key's newest and are not entered."""
        capacity = _capacity(keys, buffer)
        slots = max(2, min(capacity, int(records / buffer.load_factor) + 2))
        entries = max(1, min(slots - 1, int(slots * buffer.load_factor)))
        spare = max(0, buffer.size_bytes - slots * SLOT_BYTES)
        draw = random.SystemRandom()
        self.keys = kernels.KeyMap(slots, entries, arena_bytes_max=spare, seed=draw.getrandbits(63))
        self.invalid_records = 0
        self.end_offset: int | None = None
        self._capacity, self._from = capacity, from_offset
        self._way, self._secret = keys, draw.randbytes(SECRET_BYTES)
        self._is_in_part = False
        self._steps: dict[int, list[list[Step]]] = {}
        self._mapped: dict[int, memoryview] = {}
        self._held = -1
        self._keep = np.full(1024, 0xFF, np.uint8)
        self._tombstones = np.zeros(1024, np.uint8)
        self._next = 0

    @property
    def utilization(self) -> float:
        """Keys by slots of a buffer full of them, 0..1: the load factor where no key fits any more, as in Kafka."""
        return float(min(1.0, len(self.keys) / self._capacity))

    def bits(self, base_offset: int, slice_number: int) -> tuple[Bits, Bits] | None:
        """(stays, is a tombstone) of each record of a slice, control records included; None where it is clean."""
        slices = self._steps.get(base_offset)
        if slices is None:
            return None
        steps = slices[slice_number]
        return joined(self._keep, steps), joined(self._tombstones, steps)

    def superseded(self, columns: Columns) -> Flags:
        """Whether a newer record of each one's key was entered; columns of older records."""
        data, starts, lengths = self._as_held(columns)
        return self.keys.find(data, starts, lengths)

    def mapped(self, base_offset: int) -> memoryview | None:
        """The bytes of a segment whose keys were entered; None of any other."""
        return self._mapped.get(base_offset)

    def add(self, storage: Storage, segment: Segment, aborted: Sequence[AbortedTransaction], pace: Pace) -> Added:
        """Enter all of a segment, or nothing that counts. Raises Corrupt, InvalidRequest, CleaningAborted."""
        mapped = pace.mapped(storage, segment)
        self._held = self.keys.hold(mapped)
        first_invalid, slices = self.invalid_records, []
        for start, end in slice_bounds(segment):
            pace.read(end - start)
            data = mapped[start:end]
            table = kernels.scan_batches(data, verify=False)
            is_plain = table.problem is None and not table.has_legacy and not (table.attributes & CODEC_BITS).any()
            if self._way is Keys.IN_PLACE and not is_plain:
                return Added.PACKED
            is_old = segment.base_offset < self._from
            in_one = is_plain and not is_old and not self._is_in_part and self._way is not Keys.DIGESTED
            add = self._add_plain if in_one else self._add_inflated
            steps = add(segment, start, data, table, aborted)
            if steps is None:
                self.invalid_records = first_invalid
                return Added.NO_ROOM
            slices.append(steps)
        self._steps[segment.base_offset] = slices
        self._mapped[segment.base_offset] = mapped
        return Added.WHOLE

    def add_in_part(
        self, storage: Storage, segment: Segment, aborted: Sequence[AbortedTransaction], pace: Pace
    ) -> Added:
        """Enter a segment up to the first record without room (`end_offset`); all from there on keep their bits."""
        self._is_in_part = True
        return self.add(storage, segment, aborted, pace)

    def _add_plain(
        self, segment: Segment, start: int, data: memoryview, table: BatchTable, aborted: Sequence[AbortedTransaction]
    ) -> list[Step] | None:
        """All batches of a slice, none compressed, in one go; None when their keys do not fit."""
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
        return [Step(first, rows)]

    def _add_inflated(
        self, segment: Segment, start: int, data: memoryview, table: BatchTable, aborted: Sequence[AbortedTransaction]
    ) -> list[Step] | None:
        """The same of batches some of which are compressed, a step at a time."""
        steps: list[Step] = []
        whole = 0
        for columns in kernels.decode_in_steps(data, include_control=True):
            is_held = columns.data.obj is data.obj and self._way is not Keys.DIGESTED
            step = self._add(columns, aborted, self._held if is_held else -1, start)
            if step is None:
                return None
            steps.append(step)
            whole = columns.table.valid_bytes
            del columns  # before the next step is inflated
        check_whole(segment, start, whole, len(data))
        return steps

    def _add(self, columns: Columns, aborted: Sequence[AbortedTransaction], held: int, position: int) -> Step | None:
        rows, first = len(columns), self._next
        self._reserve(first + rows)
        gone, skip = _skipped(columns, aborted)
        is_old = columns.offsets < self._from
        gone, skip = gone & ~is_old, skip | is_old
        is_keyless = (columns.key_lengths < 0) & ~skip
        done = self._enter(columns, skip, first, held, position)
        if done < rows:
            if not self._is_in_part:
                return None
            if self.end_offset is None:
                self.end_offset = int(columns.offsets[done])
            is_left = np.arange(rows) >= done
            gone, skip, is_keyless = gone & ~is_left, skip | is_left, is_keyless & ~is_left
        bits = slice(first >> 3, (first + rows + 7) >> 3)
        self._keep[bits] &= ~packed(gone | is_keyless)
        self._tombstones[bits] |= packed((columns.value_lengths < 0) & ~skip & ~is_keyless)
        self._next = (first + rows + 7) & ~7
        self.invalid_records += int(is_keyless.sum())
        return Step(first, rows)

    def _enter(self, columns: Columns, skip: Flags, first: int, held: int, position: int) -> int:
        """How many rows were entered before one had no room."""
        if self.end_offset is not None:
            return 0
        where = {"buffer": held, "position": position if held >= 0 else 0}
        data, starts, lengths = self._as_held(columns)
        return self.keys.add(data, starts, lengths, skip, first, self._keep, **where)

    def _as_held(self, columns: Columns) -> tuple[memoryview, NDArray[np.int64], NDArray[np.int32]]:
        """The keys as they are compared: themselves, or a cell for each with a digest or a short key in it."""
        starts, lengths = columns.key_starts, columns.key_lengths
        if self._way is not Keys.DIGESTED:
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


def find_newest(
    storage: Storage,
    segments: Sequence[Segment],
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    buffer: Buffer,
    pace: Pace,
    *,
    from_offset: int = 0,
) -> tuple[NewestRecords, int]:
    """Pass one over dirty `segments` up to `next_offset`, none of them empty; how many of them fitted, perhaps none.

    Records below `from_offset` are clean and are not entered. Raises Corrupt, CleaningAborted.
    """
    records = _records(storage, segments, next_offset, buffer)
    for keys in _ways(records, buffer):
        newest = NewestRecords(keys, records, buffer, from_offset=from_offset)
        done, added = 0, Added.WHOLE
        for segment in segments[:SEGMENTS_MAX]:
            added = newest.add(storage, segment, aborted, pace)
            if added is not Added.WHOLE:
                break
            done += 1
        if added is Added.PACKED or (added is Added.NO_ROOM and keys is Keys.COPIED):
            continue
        break
    return newest, done


def find_newest_in_part(
    storage: Storage,
    segment: Segment,
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    buffer: Buffer,
    pace: Pace,
    *,
    from_offset: int = 0,
) -> tuple[NewestRecords, int]:
    """Pass one over as many records of one segment as fit; the offset of the first that was not entered.

    Raises Corrupt, CleaningAborted, and InvalidRequest for a buffer in which not one key fits.
    """
    for keys in (Keys.IN_PLACE, Keys.DIGESTED):
        newest = NewestRecords(keys, next_offset - segment.base_offset, buffer, from_offset=from_offset)
        if newest.add_in_part(storage, segment, aborted, pace) is not Added.PACKED:
            break
    end = next_offset if newest.end_offset is None else newest.end_offset
    if not len(newest.keys) and newest.end_offset is not None:
        facts = {"path": segment.path(LOG), "offset": end, "dedupe_buffer_bytes": buffer.size_bytes}
        raise InvalidRequest("cleaning a log, one key does not fit the dedupe buffer", **facts)
    return newest, end


def _capacity(keys: Keys, buffer: Buffer) -> int:
    """Slots of a buffer full of keys. Without compression few keys are copied, so nearly all of it is slots."""
    if keys is Keys.IN_PLACE:
        slots_max = buffer.size_bytes // SLOT_BYTES
        return slots_max - slots_max // _SPARE
    return int(buffer.size_bytes / (SLOT_BYTES + _CELL_BYTES * buffer.load_factor))


def _ways(records: int, buffer: Buffer) -> list[Keys]:
    """Copies only where half of the buffer or more is left for them, whatever is in the segments."""
    is_roomy = records / buffer.load_factor + 2 <= buffer.size_bytes // SLOT_BYTES // 2
    return [Keys.IN_PLACE, *([Keys.COPIED] if is_roomy else []), Keys.DIGESTED]


def _records(storage: Storage, segments: Sequence[Segment], next_offset: int, buffer: Buffer) -> int:
    """As many records as there can be; they are counted where their offsets would take half of the buffer or more."""
    offsets = next_offset - segments[0].base_offset
    enough = int(buffer.size_bytes // SLOT_BYTES * buffer.load_factor)
    if offsets <= enough // 2:
        return offsets
    records = 0
    for segment in segments:
        mapped = storage.map(segment.path(LOG))
        for start, end in slice_bounds(segment):
            table = kernels.scan_batches(mapped[start:end], verify=False)
            records += int(table.record_counts.sum(dtype=np.int64))
            if records >= enough:
                return enough
    return records


def check_whole(segment: Segment, start: int, whole: int, expected: int) -> None:
    """Raises Corrupt unless a slice was whole batches to its end."""
    if whole < expected:
        raise Corrupt("cleaning a segment, it ends inside a batch", path=segment.path(LOG), at=start + whole)


def _skipped(columns: Columns, aborted: Sequence[AbortedTransaction]) -> tuple[Flags, Flags]:
    """(records of aborted transactions, those and control records)."""
    table, ordinals = columns.table, columns.batch_ordinals
    gone = aborted_batches(table, aborted)
    control = (table.attributes & CONTROL) != 0
    if not gone.any() and not control.any():
        none = np.zeros(len(columns), np.bool_)
        return none, none
    return gone[ordinals], (gone | control)[ordinals]
