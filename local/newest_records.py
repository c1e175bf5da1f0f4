"""Pass one of the cleaner: which records of the dirty segments are the newest of their keys.

The answer is two bits for each record, that it stays as far as its key goes and that it is a tombstone, and the keys
(`kernels.KeyMap`), by which records of clean segments are judged, all of which are older. Skipped, and no key's newest:
control records and those of aborted transactions (the latter go). A record without a key goes, and is counted.

Memory: keys are compared where they lie, in the mapped segment; what is allocated for them never exceeds `buffer_bytes`
(Kafka's ``log.cleaner.dedupe.buffer.size``, filled to ``log.cleaner.io.buffer.load.factor``): 12 bytes a slot, and for
keys that had to be inflated also the key and its length, up to half of the buffer. Beside it two bits a dirty record
and one step of inflated records (`kernels.STEP_BYTES`).

When the next segment does not fit, the pass ends before it. Records that lost their bit to a record of that segment
stay without it: that record is newer, decided and not cleaned in this round, so the key's newest record remains (I4).
One segment fits at least, or there is an error that names a buffer which would do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.batch_header import CODEC_BITS, CONTROL
from local.cleaning_pace import Pace
from local.columns import BatchTable, Columns
from local.errors import Corrupt, InvalidRequest
from local.isolation import aborted_batches
from local.names import LOG
from local.pure_key_map import LET_GO, PASS_BY, SLOT_BYTES, TAKE
from local.record_bits import Bits, joined, packed
from local.segment import Segment
from local.segment_reading import slice_bounds
from local.storage import Storage
from local.txn_index import AbortedTransaction

SEGMENTS_MAX = 1000  # of one round: each may hold a mapping, and a descriptor before Python 3.13
_SPARE = 32  # a plain log needs copies only of keys whose length is written in too many bytes: a 32nd of the buffer
Flags = NDArray[np.bool_]


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

    def __init__(self, slots: int, buffer: Buffer, *, arena_bytes_max: int) -> None:
        entries = min(slots - 1, int(slots * buffer.load_factor))
        seed = random.SystemRandom().getrandbits(63)
        self.keys = kernels.KeyMap(slots, max(1, entries), arena_bytes_max=arena_bytes_max, seed=seed)
        self.invalid_records = 0
        self._buffer = buffer
        self._steps: dict[int, list[list[Step]]] = {}
        self._mapped: dict[int, memoryview] = {}
        self._held = -1
        self._keep = np.full(1024, 0xFF, np.uint8)
        self._tombstones = np.zeros(1024, np.uint8)
        self._next = 0

    @property
    def utilization(self) -> float:
        """The share of the buffer that is in use, 0..1."""
        slots = len(self.keys) * SLOT_BYTES / self._buffer.load_factor
        return float(min(1.0, (slots + self.keys.arena_bytes) / self._buffer.size_bytes))

    def bits(self, base_offset: int, slice_number: int) -> tuple[Bits, Bits] | None:
        """(stays, is a tombstone) of each record of a slice, control records included; None where it is clean."""
        slices = self._steps.get(base_offset)
        if slices is None:
            return None
        steps = slices[slice_number]
        return joined(self._keep, steps), joined(self._tombstones, steps)

    def superseded(self, columns: Columns) -> Flags:
        """Whether a newer record of each one's key was entered; columns of clean segments, all of them older."""
        return self.keys.find(columns.data, columns.key_starts, columns.key_lengths)

    def mapped(self, base_offset: int) -> memoryview | None:
        """The bytes of a segment whose keys were entered; None of any other."""
        return self._mapped.get(base_offset)

    def add(self, storage: Storage, segment: Segment, aborted: Sequence[AbortedTransaction], pace: Pace) -> bool:
        """Enter all of a segment; False when its keys do not fit. Raises Corrupt, InvalidRequest, CleaningAborted."""
        mapped = pace.mapped(storage, segment)
        self._held = self.keys.hold(mapped)
        first_invalid, slices = self.invalid_records, []
        for start, end in slice_bounds(segment):
            pace.read(end - start)
            data = mapped[start:end]
            table = kernels.scan_batches(data, verify=False)
            is_plain = table.problem is None and not table.has_legacy and not (table.attributes & CODEC_BITS).any()
            add = self._add_plain if is_plain else self._add_inflated
            steps = add(segment, start, data, table, aborted)
            if steps is None:
                self.invalid_records = first_invalid
                return False
            slices.append(steps)
        self._steps[segment.base_offset] = slices
        self._mapped[segment.base_offset] = mapped
        return True

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
            held = self._held if columns.data.obj is data.obj else -1
            step = self._add(columns, aborted, held, start)
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
        is_keyless = (columns.key_lengths < 0) & ~skip
        where = {"buffer": held, "position": position if held >= 0 else 0}
        starts, lengths = columns.key_starts, columns.key_lengths
        if self.keys.add(columns.data, starts, lengths, skip, first, self._keep, **where) < rows:
            return None
        bits = slice(first >> 3, (first + rows + 7) >> 3)
        self._keep[bits] &= ~packed(gone | is_keyless)
        self._tombstones[bits] |= packed((columns.value_lengths < 0) & ~skip & ~is_keyless)
        self._next = (first + rows + 7) & ~7
        self.invalid_records += int(is_keyless.sum())
        return Step(first, rows)

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
) -> tuple[NewestRecords, int]:
    """Pass one over dirty `segments` up to `next_offset`, none of them empty; how many of them fitted, one at least.

    Raises Corrupt, CleaningAborted, and InvalidRequest for a buffer that cannot take the first segment.
    """
    slots = _slots(storage, segments, next_offset, buffer)
    spare = max(0, buffer.size_bytes - slots * SLOT_BYTES)
    newest = NewestRecords(slots, buffer, arena_bytes_max=spare)
    for done, segment in enumerate(segments[:SEGMENTS_MAX]):
        if not newest.add(storage, segment, aborted, pace):
            if done:
                return newest, done
            raise InvalidRequest(
                "cleaning a log, the keys of one segment do not fit the dedupe buffer",
                path=segment.path(LOG),
                dedupe_buffer_bytes=buffer.size_bytes,
                would_do_bytes=_bytes_for(storage, segment, aborted, buffer.load_factor),
            )
    return newest, min(len(segments), SEGMENTS_MAX)


def _slots(storage: Storage, segments: Sequence[Segment], next_offset: int, buffer: Buffer) -> int:
    """As many as there can be keys, and no more than leave room for copies of those that have to be inflated."""
    slots_max = buffer.size_bytes // SLOT_BYTES
    slots = int((next_offset - segments[0].base_offset) / buffer.load_factor) + 2
    if slots > slots_max // 2:  # else half of the buffer is left for copies, whatever is in the segments
        records, has_packed = _counted(storage, segments, int(slots_max * buffer.load_factor))
        slots_max = slots_max // 2 if has_packed else slots_max - slots_max // _SPARE
        slots = min(slots_max, int(records / buffer.load_factor) + 2)
    return max(2, slots)


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


def _counted(storage: Storage, segments: Sequence[Segment], enough: int) -> tuple[int, bool]:
    """(records that the headers tell of, `enough` ends the count; whether keys of any have to be copied)."""
    records, has_packed = 0, False
    for segment in segments:
        mapped = storage.map(segment.path(LOG))
        for start, end in slice_bounds(segment):
            table = kernels.scan_batches(mapped[start:end], verify=False)
            records += int(table.record_counts.sum(dtype=np.int64))
            has_packed |= table.has_legacy or bool((table.attributes & CODEC_BITS).any())
            if records >= enough:
                return enough, has_packed
    return records, has_packed


def _bytes_for(storage: Storage, segment: Segment, aborted: Sequence[AbortedTransaction], load_factor: float) -> int:
    """A dedupe buffer that takes all keys of a segment, were none of them equal."""
    mapped = storage.map(segment.path(LOG))[: segment.size_bytes]
    rows = copied = 0
    for start, end in slice_bounds(segment):
        for columns in kernels.decode_in_steps(mapped[start:end], include_control=True):
            _, skip = _skipped(columns, aborted)
            lengths = columns.key_lengths[(columns.key_lengths >= 0) & ~skip]
            rows += len(lengths)
            copied += int((lengths.astype(np.int64) + 5).sum())
            del columns
    return 2 * max(int(rows / load_factor + 3) * SLOT_BYTES, copied)
