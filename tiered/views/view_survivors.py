"""Pass one of a view: the exact set of records that stay, for any number of keys. Writes nothing.

There are two input streams: the *new* records, the log from the old view's horizon up to the new one, and the *old*
records of the old view. The result is a bit for each record of either, in the order of the streams.

| record, the first line that holds | stays |
|---|---|
| a transaction marker, or of an aborted transaction, or outside the range | no |
| without a key | as `compaction.view.retain.null.key` says (Pulsar) |
| a newer record of its key is among the new ones | no |
| a null value: the key was deleted, and no older record is left for it to hide | no |
| an empty value, where `compaction.view.empty.value.deletes` says that it deletes (Pulsar) | no |
| any other | yes |

Only keys of new records are held in memory (`kernels.KeyMap`; it compares keys, not only their hashes). If they do not
fit the buffer, their hash splits them into halves, again and again, each with its own pass over both streams. A bit
that an abandoned pass cleared stays cleared: it was cleared for a newer record of that very key. So every buffer size
gives the same result.

Memory: the buffer, two bits a record, one run of the stream and one step of it inflated (`kernels.STEP_BYTES`). The
content of the streams must not change between two passes. Their batches are compared; a difference is a Conflict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.offset_map import Buffer
from local.errors import Conflict, Corrupt, InvalidRequest
from local.format.batch_header import CONTROL
from local.format.columns import Columns
from local.format.crc32c import crc32c
from local.index.txn_index import AbortedTransaction
from local.kernels.pure_key_map import SLOT_BYTES
from local.records.isolation import aborted_batches

KEY_RANGES_MAX = 1 << 16  # with this many parts, any useful buffer holds the keys of one
_HASH_SPREAD = 0x9E3779B1  # odd; Kafka's partitioner used the hash's low bits: within a partition they hardly differ

Runs = Callable[[], Iterable[memoryview]]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecords:
    """The records in ``[start, upto)``. `runs` yields the same whole batches each time; `count_max` bounds the keys."""

    runs: Runs
    start: int
    upto: int
    aborted: Sequence[AbortedTransaction] = ()
    count_max: int | None = None


@dataclass(slots=True)
class Stream:
    """The state of one stream: a bit for each record, and the fingerprint of its batches."""

    bits: NDArray[np.uint8] = field(default_factory=lambda: np.full(1024, 0xFF, np.uint8))
    record_count: int = 0
    size_bytes: int = 0
    fingerprint: tuple[int, int] | None = None

    def flags(self, first: int, count: int) -> Flags:
        lo, skipped = first >> 3, first & 7
        window = np.unpackbits(self.bits[lo : (first + count + 7) >> 3], bitorder="little")
        return window[skipped : skipped + count].view(np.bool_)

    def clear(self, first: int, removed: Flags) -> None:
        if not removed.any():
            return
        lo, hi, skipped = first >> 3, (first + len(removed) + 7) >> 3, first & 7
        window = np.unpackbits(self.bits[lo:hi], bitorder="little")
        window[skipped : skipped + len(removed)][removed] = 0
        self.bits[lo:hi] = np.packbits(window, bitorder="little")

    def reserve(self, records: int) -> None:
        need = (records + 7) >> 3
        if need > len(self.bits):
            more = max(need, 2 * len(self.bits)) - len(self.bits)
            self.bits = np.concatenate((self.bits, np.full(more, 0xFF, np.uint8)))


class Survivors:
    """Decides which records stay. `keyless_count` of them have no key. The keys took `key_ranges` passes."""

    def __init__(
        self,
        old: Runs,
        new: NewRecords,
        buffer: Buffer,
        *,
        retain_null_key: bool,
        empty_deletes: bool,
        check: Callable[[], None],
    ) -> None:
        """`check` is called between steps and may raise."""
        self._least_bytes = 1 if empty_deletes else 0  # of a value that does not delete its key
        self.old, self.new = Stream(), Stream()
        self.keyless_count = self.key_ranges = 0
        self._old_runs, self._source, self._retain_null_key, self._check = old, new, retain_null_key, check
        self._buffer_bytes = buffer.size_bytes
        # Half of the buffer for slots, at most for all records; the rest for copies of keys.
        slots = max(2, buffer.size_bytes // 2 // SLOT_BYTES)
        if new.count_max is not None:
            slots = max(2, min(slots, int(new.count_max / buffer.load_factor) + 2))
        self._slots, self._arena_bytes = slots, max(0, buffer.size_bytes - slots * SLOT_BYTES)
        self._entries = max(1, min(self._slots - 1, int(self._slots * buffer.load_factor)))

    def find(self) -> None:
        """Decide all records. Raises Corrupt, Conflict for a changed stream, InvalidRequest for too small a buffer."""
        pending = [(1, 0)]
        while pending:
            modulus, residue = pending.pop()
            if self._settle(modulus, residue):
                self.key_ranges += 1
            elif modulus >= KEY_RANGES_MAX:
                wrong = "cannot build the view, its keys do not fit in the buffer: raise log.cleaner.dedupe.buffer.size"
                raise InvalidRequest(wrong, dedupe_buffer_bytes=self._buffer_bytes)
            else:
                pending += [(2 * modulus, residue + modulus), (2 * modulus, residue)]

    def _settle(self, modulus: int, residue: int) -> bool:
        seed = random.SystemRandom().getrandbits(63)
        keys = kernels.KeyMap(self._slots, self._entries, arena_bytes_max=self._arena_bytes, seed=seed)
        keyless = 0
        passing = _Passing(self.new)
        for columns in passing.steps(self._source.runs, self._check):
            mapped, without_key = self._enter(keys, columns, passing.first, modulus, residue)
            if not mapped:
                return False
            keyless += without_key
        passing.end()
        passing = _Passing(self.old)
        for columns in passing.steps(self._old_runs, self._check):
            keyless += self._look_up(keys, columns, passing.first)
        passing.end()
        self.keyless_count = keyless
        return True

    def _enter(
        self, keys: kernels.KeyMap, columns: Columns, first: int, modulus: int, residue: int
    ) -> tuple[bool, int]:
        """(whether the keys of these new records fit; number of surviving records without a key)."""
        table, ordinals = columns.table, columns.batch_ordinals
        removed = (aborted_batches(table, self._source.aborted) | ((table.attributes & CONTROL) != 0))[ordinals]
        removed |= (columns.offsets < self._source.start) | (columns.offsets >= self._source.upto)
        has_key = columns.key_lengths >= 0
        skip = removed if modulus == 1 else removed | ~_is_in(columns, modulus, residue)
        starts, lengths = columns.key_starts, columns.key_lengths
        if keys.add(columns.data, starts, lengths, skip, first, self.new.bits) < len(columns):
            return False, 0
        deleted = has_key & (columns.value_lengths < self._least_bytes)
        keyless = ~removed & ~has_key
        self.new.clear(first, removed | deleted | (~has_key & (not self._retain_null_key)))
        return True, int(keyless.sum()) if self._retain_null_key else 0

    def _look_up(self, keys: kernels.KeyMap, columns: Columns, first: int) -> int:
        is_older = keys.find(columns.data, columns.key_starts, columns.key_lengths)
        keyless = columns.key_lengths < 0
        deleted = ~keyless & (columns.value_lengths < self._least_bytes)
        self.old.clear(first, is_older | deleted | (keyless & (not self._retain_null_key)))
        return int(keyless.sum()) if self._retain_null_key else 0


class _Passing:
    def __init__(self, stream: Stream) -> None:
        self.first = 0
        self._stream = stream
        self._next = 0
        self._bytes = 0
        self._offsets_crc = self._counts_crc = 0

    def steps(self, runs: Runs, check: Callable[[], None]) -> Iterable[Columns]:
        for data in runs():
            check()
            table = kernels.scan_batches(data, verify=False)
            if table.problem is not None or table.has_legacy:
                raise Corrupt("cannot build the view, a run is not whole batches of format 2", at=table.valid_bytes)
            self._offsets_crc = crc32c(table.base_offsets.tobytes(), self._offsets_crc)
            self._counts_crc = crc32c(table.record_counts.tobytes(), self._counts_crc)
            self._bytes += len(data)
            for columns in kernels.decode_in_steps(data, include_control=True, table=table):
                self.first, self._next = self._next, self._next + len(columns)
                self._stream.reserve(self._next)
                yield columns
                del columns  # before the next step is inflated
                check()

    def end(self) -> None:
        """End the pass. Raises Conflict if another pass over this stream read other batches."""
        stream, met = self._stream, (self._offsets_crc, self._counts_crc)
        if stream.fingerprint not in (None, met):
            raise Conflict("cannot build the view, the log changed during the build", records=self._next)
        stream.fingerprint, stream.record_count, stream.size_bytes = met, self._next, self._bytes


def _is_in(columns: Columns, modulus: int, residue: int) -> Flags:
    hashes = kernels.hash_keys(columns.data, columns.key_starts, columns.key_lengths).astype(np.uint64)
    spread = ((hashes * np.uint64(_HASH_SPREAD)) & np.uint64(0xFFFFFFFF)) >> np.uint64(8)
    found: Flags = spread % np.uint64(modulus) == residue
    return found
