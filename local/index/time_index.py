"""The ``.timeindex`` file: largest timestamp so far to offset, sparse.

| off | size | field |
|---|---|---|
| 0 | 8 | int64 timestamp, ms |
| 8 | 4 | int32 relative offset = offset - segment base |

Big-endian, 12 bytes an entry. An entry ``(t, o)`` states that no record before the batch that ends at `o` is newer
than `t`. A search for a timestamp therefore starts at the greatest entry **below** it and scans forward. An entry is
written only when its timestamp exceeds the last one. Offsets never fall. Source: kafka `TimeIndex`.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from local.errors import Corrupt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENTRY_BYTES = 12
ENTRY = struct.Struct(">qi")
FEW = 64  # up to this many entries are checked without numpy, which takes long to load
_COLUMNS = [("timestamp", ">i8"), ("relative", ">i4")]
Buffer = bytes | bytearray | memoryview


def pack(base_offset: int, timestamp_ms: int, offset: int) -> bytes:
    return ENTRY.pack(timestamp_ms, offset - base_offset)


def encode(timestamps_ms: NDArray[np.int64], relative_offsets: NDArray[np.int64]) -> bytearray:
    """Return the bytes of a whole file. The caller ensures that the offsets fit 31 bits."""
    import numpy as np

    made = np.empty(len(timestamps_ms), _COLUMNS)
    made["timestamp"], made["relative"] = timestamps_ms, relative_offsets
    return bytearray(made.tobytes())


def lookup(data: Buffer, base_offset: int, timestamp_ms: int) -> tuple[int, int]:
    """Return the entry (timestamp, offset) with the greatest timestamp <= `timestamp_ms`.

    Without such an entry the result is ``(-1, base_offset)``.
    """
    count = len(data) // ENTRY_BYTES
    return find(count, lambda slot: ENTRY.unpack_from(data, slot * ENTRY_BYTES), base_offset, timestamp_ms)


def find(count: int, entry: Callable[[int], tuple[int, int]], base_offset: int, timestamp_ms: int) -> tuple[int, int]:
    """Do `lookup` among `count` entries, of which a binary search reads a few.

    `entry` returns the entry in a slot as it is in the file: (timestamp, relative offset).
    """
    after = bisect.bisect_right(range(count), timestamp_ms, key=lambda slot: entry(slot)[0])
    if after == 0:
        return -1, base_offset
    found, relative = entry(after - 1)
    return found, base_offset + relative


def find_start(count: int, entry: Callable[[int], tuple[int, int]], base_offset: int, timestamp_ms: int) -> int:
    """Return where to start a search for the first record at or after `timestamp_ms`.

    The start is safe even if one entry is wrong:

    1. A sound entry before the target is a safe start: no older batch reaches the target.
    2. Of the last two entries before the target at most one is wrong, so the lower of both offsets is safe.
    3. With fewer than two such entries, or with two that contradict each other, the base offset is the start.
    """
    after = bisect.bisect_left(range(count), timestamp_ms, key=lambda slot: entry(slot)[0])
    if after < 2:
        return base_offset
    (earlier, lower), (_, upper) = entry(after - 2), entry(after - 1)
    return base_offset + max(min(lower, upper), 0) if earlier < timestamp_ms else base_offset


def entries(data: Buffer, base_offset: int) -> list[tuple[int, int]]:
    """Return all (timestamp, offset) pairs in file order."""
    whole = memoryview(data)[: len(data) - len(data) % ENTRY_BYTES]
    return [(timestamp, base_offset + relative) for timestamp, relative in ENTRY.iter_unpack(whole)]


def check(data: Buffer, *, path: str) -> None:
    """Raise Corrupt unless the file holds only whole entries, timestamps rising and offsets never falling."""
    if len(data) % ENTRY_BYTES:
        raise Corrupt(
            "cannot read a time index, its size is not a multiple of 12 bytes", path=path, size_bytes=len(data)
        )
    sound = sound_entries(data)
    if sound * ENTRY_BYTES < len(data):
        raise Corrupt("cannot read a time index, an entry is out of order", path=path, entry=sound)


def sound_entries(data: Buffer) -> int:
    """Count the leading entries that are in order: timestamps rising, offsets never falling."""
    if len(data) <= FEW * ENTRY_BYTES:
        return _sound_few(entries(data, 0))
    import numpy as np

    columns = np.frombuffer(data, _COLUMNS, len(data) // ENTRY_BYTES)
    times, offsets = columns["timestamp"], columns["relative"]
    wrong = offsets < 0
    wrong[1:] |= (times[1:] <= times[:-1]) | (offsets[1:] < offsets[:-1])
    return int(wrong.argmax()) if wrong.any() else len(columns)


def _sound_few(pairs: list[tuple[int, int]]) -> int:
    before: tuple[int, int] | None = None
    for slot, (timestamp, relative) in enumerate(pairs):
        if relative < 0 or (before is not None and (timestamp <= before[0] or relative < before[1])):
            return slot
        before = (timestamp, relative)
    return len(pairs)
