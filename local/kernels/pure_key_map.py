"""Which record of each key is the newest, in bounded memory: the twin of the compiled `KeyMap`, and its description.

The cleaner's first pass. The answer is not a map of offsets but one bit a record: set while no newer record of its key
has come. Keys are compared where they lie, so a slot needs no copy of them: 12 bytes, 13.4 a key at nine tenths full.
(Kafka's `SkimpyOffsetMap` holds 16 bytes of MD5 and 8 of offset, 26.7 a key, and takes equal hashes for equal keys.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from local.errors import InvalidRequest
from local.format.batch_header import HEADER_BYTES
from local.format.columns import BatchTable
from local.format.varint import varint_bytes
from local.kernels import pure_kernels

SLOT_BYTES = 12
BUFFERS_MAX = 1 << 14
ORDINAL_MAX = (1 << 36) - 1
TAKE, PASS_BY, LET_GO = range(3)  # what `add_batches` does with a batch


class KeyMap:
    """The newest record of every key, exact: keys are compared, never only their hashes. Not thread safe.

    `slots` bound the memory, `entries_max` how many keys go in; there must be fewer of them than slots. What `hold` was
    given must stay as it is for as long as the map is used; keys that lie in no held buffer (they were inflated) are
    copied, up to `arena_bytes_max` bytes. `seed` is chance against keys made to collide; `hash_mask` weakens the hash,
    for tests: collisions cost time and change no answer. Raises InvalidRequest where arguments make no sense.
    """

    def __init__(
        self, slots: int, entries_max: int, *, arena_bytes_max: int = 0, seed: int = 0, hash_mask: int = 2**64 - 1
    ) -> None:
        if not 0 < entries_max < slots:
            raise InvalidRequest("making a key map, not 0 < entries < slots", slots=slots, entries=entries_max)
        self.entries_max = entries_max
        self.arena_bytes_max = arena_bytes_max
        self.arena_bytes = 0
        self._slots = slots
        self._newest: dict[bytes, int] = {}
        self._held: list[memoryview] = []
        self._ordinals_end = 0

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def memory_bytes(self) -> int:
        """Of slots and arena; held buffers are the caller's."""
        return self._slots * SLOT_BYTES + self.arena_bytes

    def hold(self, data: memoryview) -> int:
        """A buffer in which keys will be found later (a segment, mapped); its number for `add`."""
        self._held.append(data)
        return len(self._held) - 1

    def add(
        self,
        data: memoryview,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int32],
        skip: NDArray[np.bool_],
        first_ordinal: int,
        keep: NDArray[np.uint8],
        *,
        buffer: int = -1,
        position: int = 0,
    ) -> int:
        """Enter the keys of consecutive records; how many rows were done before the map or its arena was full.

        Row r is the record with ordinal ``first_ordinal + r``. A record whose key comes again loses its bit in `keep`
        (one bit a record, ordinal o is bit ``o & 7`` of byte ``o >> 3``). Rows with a null key, or a flag in `skip`,
        do nothing. With `buffer` the bytes of `data` begin at `position` in what `hold` was given.
        """
        rows, flags = len(starts), min(len(keep) * 8, ORDINAL_MAX)
        if rows != len(lengths) or rows != len(skip) or buffer >= len(self._held):
            raise InvalidRequest("adding keys, columns differ or no such buffer", rows=rows, buffer=buffer)
        if not 0 <= first_ordinal <= flags - rows or self._ordinals_end > flags:
            raise InvalidRequest("adding keys, ordinals outside the flags", first=first_ordinal, rows=rows)
        if not _are_inside(data, starts, lengths) or (
            buffer >= 0 and not 0 <= position <= len(self._held[buffer]) - len(data)
        ):
            raise InvalidRequest("adding keys, a key leaves the data", rows=rows)
        self._ordinals_end = max(self._ordinals_end, first_ordinal + rows)
        for row, (start, length, is_skipped) in enumerate(
            zip(starts.tolist(), lengths.tolist(), skip.tolist(), strict=True)
        ):
            if length < 0 or is_skipped:
                continue
            key = bytes(data[start : start + length])
            older = self._newest.get(key)
            if older is not None:
                keep[older >> 3] &= 0xFF ^ (1 << (older & 7))
            elif len(self._newest) >= self.entries_max:
                return row
            elif buffer < 0:
                if self.arena_bytes + length + varint_bytes(length) > self.arena_bytes_max:
                    return row
                self.arena_bytes += length + varint_bytes(length)
            self._newest[key] = first_ordinal + row
        return len(starts)

    def add_batches(
        self,
        data: memoryview,
        table: BatchTable,
        roles: NDArray[np.uint8],
        first_ordinal: int,
        keep: NDArray[np.uint8],
        tombstones: NDArray[np.uint8],
        *,
        buffer: int,
        position: int,
    ) -> int | None:
        """Enter the records of whole plain batches; how many have no key, None when the map was full before the end.

        `roles` says of each batch of `table` whether its keys count: TAKE; PASS_BY, they do not; LET_GO, they do not
        and its records lose their bits in `keep`, as do records without a key. Records with a key and no value get a
        bit in `tombstones`. Ordinals count all records, and the rest is as in `add`, of a held buffer. Every checksum
        is checked, and everything about each record. Raises Corrupt; bits of what lies before it may be set by then.
        """
        total = int(table.record_counts.sum(dtype=np.int64))
        flags = min(len(keep) * 8, len(tombstones) * 8, ORDINAL_MAX)
        if len(roles) != len(table) or not 0 <= buffer < len(self._held) or (table.record_counts < 0).any():
            raise InvalidRequest("adding batches, not a role for each or no such buffer", buffer=buffer)
        if not 0 <= first_ordinal <= flags - total or self._ordinals_end > flags:
            raise InvalidRequest("adding keys, ordinals outside the flags", first=first_ordinal, rows=total)
        if not 0 <= position <= len(self._held[buffer]) - len(data):
            raise InvalidRequest("adding keys, a key leaves the data", rows=total)
        keyless, ordinal = 0, first_ordinal
        for row, role in enumerate(roles.tolist()):
            one = table.select(slice(row, row + 1))
            starts, ends = one.positions + HEADER_BYTES, one.positions + one.sizes
            columns = pure_kernels.decode_batches(data, one, starts, ends, verify=True, include_control=True)
            has_key = columns.key_lengths >= 0
            skip = np.full(len(columns), role != TAKE)
            where = {"buffer": buffer, "position": position}
            done = self.add(data, columns.key_starts, columns.key_lengths, skip, ordinal, keep, **where)
            if done < len(columns):
                return None
            goes = np.flatnonzero((role == LET_GO) | (~has_key & (role == TAKE)))
            _flip(keep, ordinal + goes, False)
            _flip(tombstones, ordinal + np.flatnonzero(has_key & (columns.value_lengths < 0) & (role == TAKE)), True)
            keyless += int((~has_key).sum()) if role == TAKE else 0
            ordinal += len(columns)
        self._ordinals_end = max(self._ordinals_end, ordinal)
        return keyless

    def find(self, data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of these keys are in the map; a null key never is."""
        if len(starts) != len(lengths) or not _are_inside(data, starts, lengths):
            raise InvalidRequest("finding keys, columns differ or a key leaves the data", rows=len(starts))
        sizes = lengths.tolist()
        keys = (bytes(data[at : at + max(size, 0)]) for at, size in zip(starts.tolist(), sizes, strict=True))
        return np.array([size >= 0 and key in self._newest for key, size in zip(keys, sizes, strict=True)], np.bool_)


def _flip(bits: NDArray[np.uint8], ordinals: NDArray[np.int64], is_set: bool) -> None:
    for ordinal in ordinals.tolist():
        if is_set:
            bits[ordinal >> 3] |= 1 << (ordinal & 7)
        else:
            bits[ordinal >> 3] &= 0xFF ^ (1 << (ordinal & 7))


def _are_inside(data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> bool:
    """Each key and, before it, at least as many bytes as its length takes."""
    return all(
        size < 0 or varint_bytes(size) <= at <= len(data) - size
        for at, size in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
