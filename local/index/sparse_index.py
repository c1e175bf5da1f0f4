"""The two sparse index files of a segment: ``.index`` and ``.timeindex``. Big-endian, no header, no checksum.

| file | off | size | field |
|---|---|---|---|
| ``.index``, 8 bytes an entry | 0 | 4 | int32 relative offset = offset - segment base |
| | 4 | 4 | int32 position of a batch in the ``.log`` |
| ``.timeindex``, 12 bytes an entry | 0 | 8 | int64 timestamp, ms |
| | 8 | 4 | int32 relative offset = offset - segment base |

- An entry of the offset index names the **last** offset of the batch that starts at the position. Both columns strictly
  increase. A lookup takes the greatest entry at or below the target; the caller scans forward from its position.
- An entry ``(t, o)`` of the time index states that no record before the batch that ends at `o` is newer than `t`. A
  search for a timestamp therefore starts at the greatest entry **below** it and scans forward. An entry is written only
  when its timestamp exceeds the last one. Offsets never fall.

`local.index` exports both formats as `offset_index` and `time_index`. Source: kafka `OffsetIndex`, `TimeIndex`.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from local.errors import Corrupt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEW = 64  # up to this many entries are checked without numpy, which takes long to load
_UNBOUNDED = 1 << 63
Buffer = bytes | bytearray | memoryview
Entry = tuple[int, int]


class SparseIndex:
    """The format of one of the two files. An entry is a pair of numbers; one of them is an offset.

    In the file that offset is relative to the segment's base. Raw entries have it relative, all others absolute.
    """

    INTERVAL_BYTES = 4096  # Kafka's default of `index.interval.bytes`

    def __init__(self, name: str, layout: str, *, is_offset_first: bool, below_all: Entry, disorder: str) -> None:
        """`below_all` is the raw entry that a lookup returns below the first one; `disorder` is the text of a fault."""
        self.ENTRY = struct.Struct(layout)
        self.ENTRY_BYTES = self.ENTRY.size
        self._name, self._disorder = name, disorder
        self._is_offset_first = is_offset_first
        self._below_all = below_all
        self._columns = [(field, {"i": ">i4", "q": ">i8"}[code]) for field, code in zip("ab", layout[1:], strict=True)]

    def pack(self, base_offset: int, first: int, second: int) -> bytes:
        return self.ENTRY.pack(*self._shifted((first, second), -base_offset))

    def encode(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> bytearray:
        """Return the bytes of a whole file from raw columns. The caller ensures that they fit their fields."""
        import numpy as np

        made = np.empty(len(first), self._columns)
        made["a"], made["b"] = first, second
        return bytearray(made.tobytes())

    def columns(self, data: Buffer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return both raw columns, in file order."""
        import numpy as np

        found: Any = np.frombuffer(data, self._columns, len(data) // self.ENTRY_BYTES)
        return found["a"].astype(np.int64), found["b"].astype(np.int64)

    def entries(self, data: Buffer, base_offset: int) -> list[Entry]:
        """Return all whole entries in file order."""
        whole = memoryview(data)[: len(data) - len(data) % self.ENTRY_BYTES]
        if self._is_offset_first:
            return [(base_offset + relative, position) for relative, position in self.ENTRY.iter_unpack(whole)]
        return [(timestamp, base_offset + relative) for timestamp, relative in self.ENTRY.iter_unpack(whole)]

    def lookup(self, data: Buffer, base_offset: int, target: int) -> Entry:
        """Return the entry with the greatest first number <= `target`.

        Without such an entry the result is ``(base_offset, 0)`` or, of a time index, ``(-1, base_offset)``.
        """
        count = len(data) // self.ENTRY_BYTES
        return self.find(count, lambda slot: self.ENTRY.unpack_from(data, slot * self.ENTRY_BYTES), base_offset, target)

    def find(self, count: int, entry: Callable[[int], Any], base_offset: int, target: int) -> Entry:
        """Do `lookup` with a binary search among `count` entries; `entry` returns the raw entry in a slot."""
        wanted = target - base_offset if self._is_offset_first else target
        after = bisect.bisect_right(range(count), wanted, key=lambda slot: entry(slot)[0])
        return self._shifted(entry(after - 1) if after else self._below_all, base_offset)

    def find_start(self, count: int, entry: Callable[[int], Any], base_offset: int, timestamp_ms: int) -> int:
        """Return, from a time index, where to start a search for the first record at or after `timestamp_ms`.

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

    def check(self, data: Buffer, log_bytes: int = _UNBOUNDED, *, path: str) -> None:
        """Raise Corrupt unless the file has only whole, sound entries; see `sound_entries`."""
        if len(data) % self.ENTRY_BYTES:
            attempt = f"cannot read {self._name}, its size is not a multiple of {self.ENTRY_BYTES} bytes"
            raise Corrupt(attempt, path=path, size_bytes=len(data))
        sound = self.sound_entries(data, log_bytes)
        if sound * self.ENTRY_BYTES < len(data):
            raise Corrupt(f"cannot read {self._name}, {self._disorder}", path=path, entry=sound)

    def sound_entries(self, data: Buffer, log_bytes: int = _UNBOUNDED) -> int:
        """Count the leading entries that are in order, with positions below `log_bytes` (offset index only)."""
        slack = 0 if self._is_offset_first else 1  # offsets of a time index may repeat
        if len(data) <= FEW * self.ENTRY_BYTES:
            first, second = (-1, -1) if self._is_offset_first else (-_UNBOUNDED - 1, 0)
            for slot, (a, b) in enumerate(self.entries(data, 0)):
                if a <= first or b <= second - slack or b >= log_bytes:
                    return slot
                first, second = a, b
            return len(data) // self.ENTRY_BYTES
        firsts, seconds = self.columns(data)
        wrong = (seconds < 0) | (seconds >= min(log_bytes, _UNBOUNDED - 1))
        wrong[0] |= self._is_offset_first and bool(firsts[0] < 0)
        wrong[1:] |= (firsts[1:] <= firsts[:-1]) | (seconds[1:] <= seconds[:-1] - slack)
        return int(wrong.argmax()) if wrong.any() else len(firsts)

    def _shifted(self, entry: Entry, by: int) -> Entry:
        first, second = entry
        return (first + by, second) if self._is_offset_first else (first, second + by)


offset_index = SparseIndex(
    "an offset index",
    ">ii",
    is_offset_first=True,
    below_all=(0, 0),
    disorder="an entry is out of order or points past the end of the log",
)
time_index = SparseIndex(
    "a time index", ">qi", is_offset_first=False, below_all=(-1, 0), disorder="an entry is out of order"
)
