"""The offset map of the cleaner's first pass; it also documents the compiled `KeyMap`.

The result is one bit per record: set until a newer record of its key is added. Keys are compared in their own buffer,
so a slot takes 12 bytes (Kafka's `SkimpyOffsetMap`: 24).
"""

from __future__ import annotations

import numpy as np

from local.errors import InvalidRequest
from local.format.batch_header import HEADER_BYTES
from local.format.columns import BatchTable, Flags, Ints, Longs, Octets
from local.format.record import varint_bytes
from local.kernels import pure_kernels

SLOT_BYTES = 12
ORDINAL_MAX = (1 << 36) - 1
TAKE, PASS_BY, LET_GO = range(3)  # what `add_batches` does with a batch


class KeyMap:
    """The newest record of every key, exactly: keys are compared, not only their hashes. Not thread safe.

    `slots` bounds the memory. `entries_max` is the maximum number of keys, below `slots`. A buffer given to `hold` must
    not change while the map is used. Keys outside the held buffers are copied, up to `arena_bytes_max` bytes. A random
    `seed` protects against keys chosen to collide. `hash_mask` weakens the hash for tests. Raises InvalidRequest for
    invalid arguments.
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
        """Bytes of slots and copied keys. The caller owns the held buffers."""
        return self._slots * SLOT_BYTES + self.arena_bytes

    def hold(self, data: memoryview) -> int:
        """Register a buffer with keys (a mapped segment); returns its number for `add`."""
        self._held.append(data)
        return len(self._held) - 1

    def add(
        self,
        data: memoryview,
        starts: Longs,
        lengths: Ints,
        skip: Flags,
        first_ordinal: int,
        keep: Octets,
        *,
        buffer: int = -1,
        position: int = 0,
    ) -> int:
        """Add the keys of consecutive records; returns the number of rows done before map or arena was full.

        Row r is the record with ordinal ``first_ordinal + r``. If its key is added again, the record loses its bit in
        `keep` (one bit per record: ordinal o is bit ``o & 7`` of byte ``o >> 3``). Rows with a null key or a flag in
        `skip` are skipped. With `buffer`, the bytes of `data` start at `position` of that held buffer.
        """
        rows, flags = len(starts), min(len(keep) * 8, ORDINAL_MAX)
        if rows != len(lengths) or rows != len(skip) or buffer >= len(self._held):
            raise InvalidRequest(
                "cannot add keys, columns differ in length or the buffer is unknown", rows=rows, buffer=buffer
            )
        if not 0 <= first_ordinal <= flags - rows or self._ordinals_end > flags:
            raise InvalidRequest("cannot add keys, ordinals are outside the flags", first=first_ordinal, rows=rows)
        if not _are_inside(data, starts, lengths) or (
            buffer >= 0 and not 0 <= position <= len(self._held[buffer]) - len(data)
        ):
            raise InvalidRequest("cannot add keys, a key is outside the data", rows=rows)
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
        roles: Octets,
        first_ordinal: int,
        keep: Octets,
        tombstones: Octets,
        *,
        buffer: int,
        position: int,
    ) -> int | None:
        """Add whole uncompressed batches; return the number of records without a key, None if the map was full.

        `roles` has the role of each batch of `table`:

        | role | keys are added | bits in `keep` |
        |---|---|---|
        | TAKE | yes | cleared for records without a key |
        | PASS_BY | no | unchanged |
        | LET_GO | no | cleared for all records |

        Under TAKE, records with a key and no value get a bit in `tombstones`. Ordinals count all records. Otherwise as
        `add`, with a held buffer. Every checksum and every record is checked. Raises Corrupt, perhaps after some bits
        changed.
        """
        total = int(table.record_counts.sum(dtype=np.int64))
        flags = min(len(keep) * 8, len(tombstones) * 8, ORDINAL_MAX)
        if len(roles) != len(table) or not 0 <= buffer < len(self._held) or (table.record_counts < 0).any():
            raise InvalidRequest("cannot add batches, a role is missing or the buffer is unknown", buffer=buffer)
        if not 0 <= first_ordinal <= flags - total or self._ordinals_end > flags:
            raise InvalidRequest("cannot add keys, ordinals are outside the flags", first=first_ordinal, rows=total)
        if not 0 <= position <= len(self._held[buffer]) - len(data):
            raise InvalidRequest("cannot add keys, a key is outside the data", rows=total)
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
            removed = ordinal + np.flatnonzero((role == LET_GO) | (~has_key & (role == TAKE)))
            dead = ordinal + np.flatnonzero(has_key & (columns.value_lengths < 0) & (role == TAKE))
            np.bitwise_and.at(keep, removed >> 3, ~(1 << (removed & 7)).astype(np.uint8))
            np.bitwise_or.at(tombstones, dead >> 3, (1 << (dead & 7)).astype(np.uint8))
            keyless += int((~has_key).sum()) if role == TAKE else 0
            ordinal += len(columns)
        self._ordinals_end = max(self._ordinals_end, ordinal)
        return keyless

    def find(self, data: memoryview, starts: Longs, lengths: Ints) -> Flags:
        """Which of these keys are in the map; a null key never is."""
        if len(starts) != len(lengths) or not _are_inside(data, starts, lengths):
            raise InvalidRequest("cannot find keys, columns differ or a key is outside the data", rows=len(starts))
        sizes = lengths.tolist()
        keys = (bytes(data[at : at + max(size, 0)]) for at, size in zip(starts.tolist(), sizes, strict=True))
        return np.array([size >= 0 and key in self._newest for key, size in zip(keys, sizes, strict=True)], np.bool_)


def _are_inside(data: memoryview, starts: Longs, lengths: Ints) -> bool:
    """Whether each key is inside `data`, with at least the bytes of its length varint before it."""
    return all(
        size < 0 or varint_bytes(size) <= at <= len(data) - size
        for at, size in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
