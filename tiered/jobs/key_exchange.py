"""Exchange between the two passes of a distributed compaction: find the newest record of each key.

1. Pass one yields digests of keys with offsets (`KeyRun`).
2. The task combines its records (`Combiner`), so a key with a hundred records is sent once.
3. `parted` divides the records by digest into **buckets**: all records of one key are in one bucket.
4. For each bucket `newest` finds the largest offset of each digest.
5. `by_group` sends these offsets back to the group of segments that has them. Pass two needs offsets only
   (`offsets_of`).

The data is sent as byte strings:

| of a bucket | bytes | | of a group | bytes |
|---|---|---|---|---|
| records | 4 | | offsets | 4 |
| smallest offset | 8 | | first offset | 8 |
| bytes of an offset, w | 1 | | bytes of a difference, w | 1 |
| lower halves of the digests | 8 each | | from each offset to the next, the first from itself | w each |
| upper halves | 8 each | | | |
| offsets above the smallest | w each | | | |

Numbers are little-endian. A record costs about 19 bytes on its way to a bucket, and 1 to 3 on its way back.

Memory does not depend on the number of keys. A combiner holds as many records as `records_held` allows for a buffer,
and a bucket about as many (digests are spread evenly). A record takes 24 bytes, about 90 while it is sorted. A group
takes eight bytes for each surviving record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from local.errors import Corrupt

STRING_RECORDS = 1 << 17  # in one byte string, about 2.5 MB: one row of a Spark table
_MANIFEST = struct.Struct("<IqB")

Numbers = NDArray[np.int64]


class KeyRun(NamedTuple):
    """Records that may be the newest of their keys: both halves of each key's digest, and the offset."""

    low: Numbers
    high: Numbers
    offsets: Numbers


class Combiner:
    """Holds records of one partition, removes superseded ones, and yields records when it is full."""

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._held: list[KeyRun] = []
        self._count = 0

    def add(self, run: KeyRun) -> Iterator[KeyRun]:
        """Add records; yield nothing, or all held records if combining does not halve them."""
        self._held.append(run)
        self._count += len(run.offsets)
        if self._count > self._records_max:
            combined = _newest_of(_joined(self._held))
            self._held, self._count = [combined], len(combined.offsets)
            if self._count > self._records_max // 2:
                self._held, self._count = [], 0
                yield combined

    def rest(self) -> Iterator[KeyRun]:
        """Yield all held records; the combiner is empty afterwards."""
        held, self._held, self._count = self._held, [], 0
        if held:
            yield _newest_of(_joined(held))


def records_held(buffer_bytes: int) -> int:
    """Return how many records are compared with each other at a time; at least one."""
    return max(1, buffer_bytes // 32)


def bucket_count(records: int, buffer_bytes: int) -> int:
    """Return the number of buckets for `records`; at least one."""
    return max(1, -(-records // records_held(buffer_bytes)))


def parted(run: KeyRun, buckets: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records by bucket, as byte strings; a bucket number may occur more than once."""
    numbers = _bucket_of(run.high, buckets)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(buckets + 1))
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        for at in range(int(bounds[number]), int(bounds[number + 1]), STRING_RECORDS):
            entries = order[at : min(at + STRING_RECORDS, int(bounds[number + 1]))]
            yield number, _encoded(KeyRun(run.low[entries], run.high[entries], run.offsets[entries]))


def newest(strings: Iterable[bytes]) -> Numbers:
    """Return the largest offset of each digest of a bucket, ascending.

    Raises Corrupt for bytes that `parted` did not make.
    """
    return newest_offsets(_decoded(each) for each in strings)


def newest_offsets(runs: Iterable[KeyRun]) -> Numbers:
    """Return the same for records that are in this process."""
    return np.sort(_newest_of(_joined(list(runs))).offsets)


def by_group(offsets: Numbers, bases: Numbers) -> Iterator[tuple[int, bytes]]:
    """Yield `offsets` (ascending) by group, as byte strings. `bases` are the groups' base offsets."""
    bounds = np.append(np.searchsorted(offsets, bases), len(offsets))
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        mine = offsets[bounds[number] : bounds[number + 1]]
        for at in range(0, len(mine), STRING_RECORDS):
            first = int(mine[at])
            width, packed = _packed(np.diff(mine[at : at + STRING_RECORDS], prepend=first))
            yield number, _MANIFEST.pack(min(STRING_RECORDS, len(mine) - at), first, width) + packed


def offsets_of(strings: Iterable[bytes]) -> Numbers:
    """Return the offsets of a group, ascending. Raises Corrupt for bytes that `by_group` did not make."""
    parts = [np.empty(0, np.int64)]
    for each in strings:
        count, first, width = _manifest(each)
        parts.append(first + np.cumsum(_unpacked(memoryview(each)[_MANIFEST.size :], count, width)))
    return np.sort(np.concatenate(parts))


def _newest_of(run: KeyRun) -> KeyRun:
    """Return the newest record of each digest, in the order of the upper half.

    Almost all digests differ in the upper half.
    """
    order = np.argsort(run.high)
    high, low = run.high[order], run.low[order]
    again = high[1:] == high[:-1]
    if (again & (low[1:] != low[:-1])).any():  # some keys share half a digest: records of one key may be apart
        order = np.lexsort((run.low, run.high))
        high, low = run.high[order], run.low[order]
        again = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    if not again.any():
        return KeyRun(low, high, run.offsets[order])
    starts = np.flatnonzero(np.concatenate(([True], ~again)))
    return KeyRun(low[starts], high[starts], np.maximum.reduceat(run.offsets[order], starts))


def _joined(runs: list[KeyRun]) -> KeyRun:
    if len(runs) == 1:
        return runs[0]
    empty = np.empty(0, np.int64)
    low, high, offsets = (np.concatenate([empty, *(run[at] for run in runs)]) for at in range(3))
    return KeyRun(low, high, offsets)


def _bucket_of(high: Numbers, buckets: int) -> Numbers:
    """Return the bucket by 32 bits of the digest, which are spread evenly over the buckets."""
    return (((high.view(np.uint64) >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)).view(np.int64)


def _encoded(run: KeyRun) -> bytes:
    smallest = int(run.offsets.min())
    width, packed = _packed(run.offsets - smallest)
    manifest = _MANIFEST.pack(len(run.offsets), smallest, width)
    return b"".join((manifest, run.low.tobytes(), run.high.tobytes(), packed))


def _decoded(string: bytes) -> KeyRun:
    count, smallest, width = _manifest(string)
    digests = memoryview(string)[_MANIFEST.size : _MANIFEST.size + 16 * count]
    if len(digests) != 16 * count:
        raise Corrupt("cannot read key digests, their end is missing", records=count, bytes=len(string))
    low, high = np.frombuffer(digests, np.int64).reshape(2, count)
    return KeyRun(low, high, _unpacked(memoryview(string)[_MANIFEST.size + 16 * count :], count, width) + smallest)


def _packed(numbers: Numbers) -> tuple[int, bytes]:
    """Return (bytes w that the largest number needs, w bytes of each number). No number is negative."""
    width = (int(numbers.max()).bit_length() + 7) // 8
    return width, numbers.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _unpacked(data: memoryview, count: int, width: int) -> Numbers:
    if width > 8 or len(data) != count * width:
        raise Corrupt("cannot read offsets, the number of bytes is wrong", offsets=count, width=width, bytes=len(data))
    numbers = np.zeros((count, 8), np.uint8)
    numbers[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    return numbers.view(np.int64).reshape(count)


def _manifest(string: bytes) -> tuple[int, int, int]:
    if len(string) < _MANIFEST.size:
        raise Corrupt("cannot read the keys of a compaction, their beginning is missing", bytes=len(string))
    count, smallest, width = _MANIFEST.unpack_from(string)
    return count, smallest, width
