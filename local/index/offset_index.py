"""The ``.index`` file: offset to byte position, sparse.

| off | size | field |
|---|---|---|
| 0 | 4 | int32 relative offset = offset - segment base |
| 4 | 4 | int32 position of a batch in the ``.log`` |

Big-endian, 8 bytes an entry, no header, no checksum. An entry names the **last** offset of the batch that starts at
`position`. Relative offsets strictly increase. A lookup takes the greatest entry at or below the target; the caller
scans forward from its position. Source: kafka `OffsetIndex`.
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

ENTRY_BYTES = 8
INTERVAL_BYTES = 4096  # Kafka's default of `index.interval.bytes`
ENTRY = struct.Struct(">ii")
FEW = 64  # up to this many entries are checked without numpy, which takes long to load
Buffer = bytes | bytearray | memoryview


def pack(base_offset: int, offset: int, position: int) -> bytes:
    return ENTRY.pack(offset - base_offset, position)


def encode(relative_offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> bytearray:
    """Return the bytes of a whole file. The caller ensures that both columns fit 31 bits."""
    import numpy as np

    return bytearray(np.stack((relative_offsets, positions), axis=1).astype(">i4").tobytes())


def positions(data: Buffer) -> NDArray[np.int32]:
    """Return the positions alone, in file order."""
    import numpy as np

    return np.frombuffer(data, ">i4", len(data) // ENTRY_BYTES * 2)[1::2].astype(np.int32)


def lookup(data: Buffer, base_offset: int, offset: int) -> tuple[int, int]:
    """Return the entry (offset, position) with the greatest offset <= `offset`.

    Without such an entry the result is ``(base_offset, 0)``.
    """
    return find(len(data) // ENTRY_BYTES, lambda slot: ENTRY.unpack_from(data, slot * ENTRY_BYTES), base_offset, offset)


def find(count: int, entry: Callable[[int], tuple[int, int]], base_offset: int, offset: int) -> tuple[int, int]:
    """Do `lookup` among `count` entries, of which a binary search reads a few.

    `entry` returns the entry in a slot as it is in the file: (relative offset, position).
    """
    after = bisect.bisect_right(range(count), offset - base_offset, key=lambda slot: entry(slot)[0])
    if after == 0:
        return base_offset, 0
    relative, position = entry(after - 1)
    return base_offset + relative, position


def entries(data: Buffer, base_offset: int) -> list[tuple[int, int]]:
    """Return all (offset, position) pairs in file order."""
    whole = memoryview(data)[: len(data) - len(data) % ENTRY_BYTES]
    return [(base_offset + relative, position) for relative, position in ENTRY.iter_unpack(whole)]


def check(data: Buffer, log_bytes: int, *, path: str) -> None:
    """Check a file against its log of `log_bytes` bytes.

    Raises Corrupt unless the file has only whole entries, both columns rise and all positions are below `log_bytes`.
    """
    if len(data) % ENTRY_BYTES:
        raise Corrupt(
            "cannot read an offset index, its size is not a multiple of 8 bytes", path=path, size_bytes=len(data)
        )
    sound = sound_entries(data, log_bytes)
    if sound * ENTRY_BYTES < len(data):
        raise Corrupt(
            "cannot read an offset index, an entry is out of order or points past the end of the log",
            path=path,
            entry=sound,
        )


def sound_entries(data: Buffer, log_bytes: int) -> int:
    """Count the leading entries that are sound: both columns rising, positions below `log_bytes`."""
    if len(data) <= FEW * ENTRY_BYTES:
        return _sound_few(entries(data, 0), log_bytes)
    import numpy as np

    columns = np.frombuffer(data, ">i4", len(data) // ENTRY_BYTES * 2).reshape(-1, 2)
    wrong = columns[:, 1] >= log_bytes
    wrong[0] |= bool((columns[0] < 0).any())
    wrong[1:] |= (columns[1:] <= columns[:-1]).any(axis=1)
    return int(wrong.argmax()) if wrong.any() else len(columns)


def _sound_few(pairs: list[tuple[int, int]], log_bytes: int) -> int:
    before = (-1, -1)
    for slot, (relative, position) in enumerate(pairs):
        if relative <= before[0] or position <= before[1] or position >= log_bytes:
            return slot
        before = (relative, position)
    return len(pairs)
