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
from local.columns import Columns
from local.errors import Corrupt, InvalidRequest
from local.isolation import aborted_batches
from local.names import LOG
from local.pure_key_map import SLOT_BYTES
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
        self._keep = np.full(1024, 0xFF, np.uint8)
        self._tombstones = np.zeros(1024, np.uint8)
        self._next = 0

    @property
    def utilization(self) -> float:
        """The share of the buffer that is in use, 0..1."""
        slots = len(self.keys) * SLOT_BYTES / self._buffer.load_factor
        return float(min(1.0, (slots + self.keys.arena_bytes) / self._buffer.size_bytes))

    def flags(self, base_offset: int, slice_number: int) -> tuple[Flags, Flags] | None:
        """(stays, is a tombstone) of each record of a slice, control records included; None where it is clean."""
        slices = self._steps.get(base_offset)
        if slices is None:
            return None
        steps = slices[slice_number]
        return self._unpacked(self._keep, steps), self._unpacked(self._tombstones, steps)

    def add(self, storage: Storage, segment: Segment, aborted: Sequence[AbortedTransaction], pace: Pace) -> bool:
        """Enter all of a segment; False when its keys do not fit. Raises Corrupt, InvalidRequest, CleaningAborted."""
        mapped = storage.map(segment.path(LOG))[: segment.size_bytes]
        invalid, held, slices = 0, -1, []
        for start, end in slice_bounds(segment):
            data, steps, whole = mapped[start:end], [], 0
            pace.read(end - start)
            for columns in kernels.decode_in_steps(data, include_control=True):
                check_format(columns, segment)
                is_in_place = columns.data.obj is mapped.obj
                if is_in_place and held < 0:
                    held = self.keys.hold(mapped)
                step, keyless = self._add(columns, aborted, held if is_in_place else -1, start)
                if step is None:
                    return False
                invalid += keyless
                steps.append(step)
                whole = columns.table.valid_bytes
                del columns  # before the next step is inflated
            check_whole(segment, start, whole, end - start)
            slices.append(steps)
        self._steps[segment.base_offset] = slices
        self.invalid_records += invalid
        return True

    def _add(
        self, columns: Columns, aborted: Sequence[AbortedTransaction], held: int, position: int
    ) -> tuple[Step | None, int]:
        rows, first = len(columns), self._next
        self._reserve(first + rows)
        gone, skip = _skipped(columns, aborted)
        is_keyless = (columns.key_lengths < 0) & ~skip
        where = {"buffer": held, "position": position if held >= 0 else 0}
        starts, lengths = columns.key_starts, columns.key_lengths
        if self.keys.add(columns.data, starts, lengths, skip, first, self._keep, **where) < rows:
            return None, 0
        bits = slice(first >> 3, (first + rows + 7) >> 3)
        self._keep[bits] &= ~np.packbits(gone | is_keyless, bitorder="little")
        self._tombstones[bits] |= np.packbits((columns.value_lengths < 0) & ~skip & ~is_keyless, bitorder="little")
        self._next = (first + rows + 7) & ~7
        return Step(first, rows), int(is_keyless.sum())

    def _reserve(self, ordinals: int) -> None:
        need = (ordinals + 7) >> 3
        if need > len(self._keep):
            more = max(need, 2 * len(self._keep)) - len(self._keep)
            self._keep = np.concatenate((self._keep, np.full(more, 0xFF, np.uint8)))
            self._tombstones = np.concatenate((self._tombstones, np.zeros(more, np.uint8)))

    @staticmethod
    def _unpacked(bits: NDArray[np.uint8], steps: Sequence[Step]) -> Flags:
        parts = [
            np.unpackbits(bits[step.first >> 3 : (step.first + step.rows + 7) >> 3], count=step.rows, bitorder="little")
            for step in steps
        ]
        return np.concatenate(parts).view(np.bool_) if parts else np.empty(0, np.bool_)


def find_newest(
    storage: Storage,
    segments: Sequence[Segment],
    aborted: Sequence[AbortedTransaction],
    buffer: Buffer,
    pace: Pace,
) -> tuple[NewestRecords, int]:
    """Pass one over dirty `segments`, none of them empty; and how many of them fitted, one at least.

    Raises Corrupt, CleaningAborted, and InvalidRequest for messages of format 0 or 1 and for a buffer that cannot take
    the first segment.
    """
    slots_max = buffer.size_bytes // SLOT_BYTES
    records, has_packed = _counted(storage, segments, int(slots_max * buffer.load_factor))
    slots_max = slots_max // 2 if has_packed else slots_max - slots_max // _SPARE
    slots = max(2, min(slots_max, int(records / buffer.load_factor) + 2))
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


def check_format(columns: Columns, segment: Segment) -> None:
    """Raises InvalidRequest for messages of format 0 or 1: they have tombstone rules of their own."""
    if columns.table.has_legacy:
        attempt = "cleaning a segment, messages of format 0 or 1 are not rewritten"
        raise InvalidRequest(attempt, path=segment.path(LOG))


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
    """(records that the headers tell of, `enough` ends the count; whether any batch is compressed)."""
    records, has_packed = 0, False
    for segment in segments:
        mapped = storage.map(segment.path(LOG))
        for start, end in slice_bounds(segment):
            table = kernels.scan_batches(mapped[start:end], verify=False)
            records += int(table.record_counts.sum(dtype=np.int64))
            has_packed |= bool((table.attributes & CODEC_BITS).any())
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
