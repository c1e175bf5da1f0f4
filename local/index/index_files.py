"""The sparse index files of a segment, ``.index`` and ``.timeindex``: format, build, check, replace.

Big-endian, no header, no checksum:

| file | off | size | field |
|---|---|---|---|
| ``.index``, 8 bytes an entry | 0 | 4 | int32 relative offset = offset - segment base |
| | 4 | 4 | int32 position of a batch in the ``.log`` |
| ``.timeindex``, 12 bytes an entry | 0 | 8 | int64 timestamp, ms |
| | 8 | 4 | int32 relative offset = offset - segment base |

- An entry of the offset index names the **last** offset of the batch that starts at the position. Both columns strictly
  increase. A lookup takes the greatest entry at or below the target; the caller scans forward from its position.
- An entry ``(t, o)`` of the time index states that no record before the batch that ends at `o` is newer than `t`. A
  search for a timestamp therefore starts at the greatest entry **below** it and scans forward. Offsets never fall.
- A batch gets an offset entry when more than an interval of bytes precedes it since the last entry. It also gets a time
  entry if the largest timestamp has grown. The last batch gets a final time entry.

The check requires whole entries, each column in order, no position past the log, and an empty time index only if the
log has no timestamps. It cannot detect the loss of the last entries: files are therefore replaced whole or not at all.
Source: kafka `OffsetIndex`, `TimeIndex`.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from local.errors import Corrupt, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.names import LOG, OFFSET_INDEX, TEMPORARY, TIME_INDEX
from local.storage import Body, SegmentFiles, write_file

if TYPE_CHECKING:
    from local.format.columns import BatchTable, Ints, Longs

_SLICE_BYTES = 16 << 20
_RELATIVE_MAX = 2**31 - 1  # int32 in both files
FEW = 64  # up to this many entries are checked without numpy, which takes long to load
_UNBOUNDED = 1 << 63
Buffer = bytes | bytearray | memoryview
Entry = tuple[int, int]


class SparseIndex:
    """The format of one of the files. A raw entry has a relative offset; all other offsets are absolute."""

    INTERVAL_BYTES = 4096  # Kafka's default of `index.interval.bytes`

    def __init__(self, name: str, layout: str, *, is_offset_first: bool, below_all: Entry, disorder: str) -> None:
        """`below_all`: the raw result for a target below the first entry; `disorder`: the text of a fault."""
        self.ENTRY = struct.Struct(layout)
        self.ENTRY_BYTES = self.ENTRY.size
        self._name, self._disorder = name, disorder
        self._is_offset_first = is_offset_first
        self._below_all = below_all
        self._columns = [(field, {"i": ">i4", "q": ">i8"}[code]) for field, code in zip("ab", layout[1:], strict=True)]

    def pack(self, base_offset: int, first: int, second: int) -> bytes:
        return self.ENTRY.pack(*self._shifted((first, second), -base_offset))

    def encode(self, first: Longs, second: Longs) -> bytearray:
        """Return the bytes of a whole file from raw columns, which must fit their fields."""
        import numpy as np

        made = np.empty(len(first), self._columns)
        made["a"], made["b"] = first, second
        return bytearray(made.tobytes())

    def columns(self, data: Buffer) -> tuple[Longs, Longs]:
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
        return self.find(*self.slots(data), base_offset, target)

    def slots(self, data: Buffer) -> tuple[int, Callable[[int], Any]]:
        """Return (number of whole entries, function from slot to raw entry)."""
        return len(data) // self.ENTRY_BYTES, lambda slot: self.ENTRY.unpack_from(data, slot * self.ENTRY_BYTES)

    def find(self, count: int, entry: Callable[[int], Any], base_offset: int, target: int) -> Entry:
        """Do `lookup` with a binary search among `count` entries; `entry` returns the raw entry in a slot."""
        wanted = target - base_offset if self._is_offset_first else target
        after = bisect.bisect_right(range(count), wanted, key=lambda slot: entry(slot)[0])
        return self._shifted(entry(after - 1) if after else self._below_all, base_offset)

    def find_start(self, count: int, entry: Callable[[int], Any], base_offset: int, timestamp_ms: int) -> int:
        """Return, from a time index, where to start a search for the first record at or after `timestamp_ms`.

        The start is safe even if one entry is wrong:

        1. A sound entry before the target is a safe start: no earlier batch reaches the target.
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
INDEXES = {OFFSET_INDEX: offset_index, TIME_INDEX: time_index}


class Judged(NamedTuple):
    """The number of sound leading entries by suffix; `problem` is None if both files are sound to the end."""

    entries: dict[str, int]
    problem: str | None


def time_entry(index: bytearray, base_offset: int, timestamp_ms: int | None, offset: int) -> bytes:
    """Pack the entry for the largest timestamp so far; no bytes if it is not later than the last entry."""
    if timestamp_ms is None:
        return b""
    if index and time_index.entries(index[-time_index.ENTRY_BYTES :], base_offset)[0][0] >= timestamp_ms:
        return b""
    return time_index.pack(base_offset, timestamp_ms, offset)


def check_indexes(
    offsets: Body | None, times: Body | None, log_bytes: int, first_timestamp_ms: Callable[[], int]
) -> Judged:
    """Return how much of both files is usable for a log of `log_bytes`. None stands for a missing file.

    `first_timestamp_ms` returns the first batch's largest timestamp (-1: none), called only if needed.
    """
    if offsets is None or times is None:
        problem: str | None = "an index is missing"
        offsets, times = offsets or b"", times or b""
    else:
        problem = None
    good_offsets = offset_index.sound_entries(offsets, log_bytes)
    good_times = time_index.sound_entries(times)
    if good_offsets * offset_index.ENTRY_BYTES < len(offsets):
        problem = "the offset index is torn, out of order or points past the end of the log"
    elif good_times * time_index.ENTRY_BYTES < len(times):
        problem = "the time index is torn or out of order"
    elif len(times) <= time_index.ENTRY_BYTES and log_bytes:
        indexed = time_index.entries(times, 0)[0][0] if times else -1
        if first_timestamp_ms() > indexed:
            problem = "the time index lacks the first batch's timestamp"
    return Judged({OFFSET_INDEX: good_offsets, TIME_INDEX: good_times}, problem)


def check(files: SegmentFiles, log_bytes: int) -> str | None:
    """Return why a segment's indexes are unusable, or None if they are usable. Reads both files whole."""
    offsets, times = (_read(files, each) for each in INDEXES)
    path, read = files.path(LOG), files.storage.read
    first = partial(first_timestamp, lambda start, length: read(path, start, length))
    return check_indexes(offsets, times, log_bytes, first).problem


def first_timestamp(read: Callable[[int, int], bytes]) -> int:
    """Return the first batch's largest timestamp, or -1 without one (such a segment has no time entries)."""
    try:
        header = read_header(read(0, HEADER_BYTES))
    except Corrupt:
        return -1  # the read of this batch reports the damage
    return header.max_timestamp_ms if header is not None else -1


def scan_times(read: Callable[[int, int], bytes], base_offset: int) -> tuple[int | None, int]:
    """Scan headers for (largest timestamp, last offset of its first batch); without one (None, `base_offset`)."""
    latest, offset = -1, base_offset
    for _, _, table in slices_of(read):
        at = int(table.max_timestamps.argmax())
        if int(table.max_timestamps[at]) > latest:
            latest, offset = int(table.max_timestamps[at]), int(table.last_offsets[at])
    return (latest, offset) if latest >= 0 else (None, base_offset)


def slices_of(read: Callable[[int, int], bytes]) -> Iterator[tuple[int, memoryview, BatchTable]]:
    """Yield (position, bytes, headers) of a log's whole batches in slices, up to the first unsound header.

    `read` returns the bytes at (position, length). A map would end the process if the file shrinks during the scan.
    """
    from local import kernels

    position, want = 0, _SLICE_BYTES
    while data := read(position, want):
        table = kernels.scan_batches(data, verify=False)
        if len(table):
            yield position, memoryview(data), table
            position += table.valid_bytes
        elif table.is_corrupt or len(data) < want:
            return
        else:
            want *= 2


def headers_of(
    read: Callable[[int, int], bytes], size_bytes: int, *, path: str, may_be_torn: bool = False
) -> BatchTable:
    """Return the headers of all batches, read in slices. Raises Corrupt if they end early, unless `may_be_torn`."""
    from local import kernels
    from local.format.columns import joined_tables

    found = joined_tables([table.moved(position) for position, _, table in slices_of(read)])
    end = found.valid_bytes
    if end < size_bytes and not may_be_torn:
        problem = kernels.scan_batches(read(end, HEADER_BYTES), verify=False).problem
        raise Corrupt(f"cannot rebuild indexes, {problem}", path=path, at=end)
    return found


def write_aside(files: SegmentFiles, indexes: Indexes) -> None:
    """Write and sync both files under temporary names. The next start removes them after a crash."""
    for suffix, body in zip(INDEXES, indexes, strict=True):
        write_file(files.storage, files.path(suffix) + TEMPORARY, body)


def put_in_place(files: SegmentFiles) -> None:
    """Rename the files of `write_aside` over the old ones, durably. A crash leaves each file old or new."""
    for suffix in INDEXES:
        files.storage.rename(files.path(suffix) + TEMPORARY, files.path(suffix))
    files.sync_names()


def discard_aside(files: SegmentFiles) -> None:
    for suffix in INDEXES:
        files.storage.unlink(files.path(suffix) + TEMPORARY)


def _read(files: SegmentFiles, suffix: str) -> bytes | None:
    try:
        return files.storage.read(files.path(suffix))
    except NotFound:
        return None


class OutsideSegment(Corrupt):
    """Offsets that no index of the segment can hold. `local.log.recovery` repairs such a segment."""


class Indexes(NamedTuple):
    """The bytes of both files, in the order of `INDEXES`."""

    offset: bytearray
    time: bytearray


def build_indexes(table: BatchTable, base_offset: int, interval_bytes: int) -> Indexes:
    """Build both indexes of a segment, with the final time entry (KAFKA-806). Raises OutsideSegment."""
    rows = IndexRows()
    rows.add(table)
    return rows.indexes(base_offset, interval_bytes)


class IndexRows:
    """The batches of a segment in write order, added one table after another."""

    def __init__(self) -> None:
        self._sizes: list[Ints] = []
        self._last_offsets: list[Longs] = []
        self._times: list[Longs] = []

    def add(self, table: BatchTable) -> None:
        self._sizes.append(table.sizes)
        self._last_offsets.append(table.last_offsets)
        self._times.append(table.max_timestamps)

    def indexes(self, base_offset: int, interval_bytes: int) -> Indexes:
        """Return the indexes of all added batches, as `build_indexes` does."""
        import numpy as np

        sizes = np.concatenate((np.empty(0, np.int32), *self._sizes))
        relative = np.concatenate((np.empty(0, np.int64), *self._last_offsets)) - base_offset
        times = np.maximum.accumulate(np.maximum(np.concatenate((np.empty(0, np.int64), *self._times)), -1))
        if len(sizes) and (relative[-1] > _RELATIVE_MAX or relative[0] < 0):
            raise OutsideSegment("cannot build indexes, an offset is outside the segment", base_offset=base_offset)
        positions = np.cumsum(sizes, dtype=np.int64) - sizes
        rows = _entry_rows(positions, interval_bytes)
        is_later = np.concatenate((times[:1] >= 0, times[1:] > times[:-1]))
        found_at = np.maximum.accumulate(np.where(is_later, np.arange(len(sizes)), 0))
        with_last = [*rows, len(sizes) - 1] if len(sizes) else []
        entries = times[with_last]
        is_entry = np.concatenate((entries[:1] >= 0, entries[1:] > entries[:-1]))
        offsets = offset_index.encode(relative[rows], positions[rows])
        time_entries = time_index.encode(entries[is_entry], relative[found_at[with_last]][is_entry])
        return Indexes(offsets, time_entries)


def _entry_rows(before: Longs, interval_bytes: int) -> list[int]:
    """Return the rows that get an entry: more than `interval_bytes` after the last batch with an entry."""
    import numpy as np

    following = np.searchsorted(before, before + interval_bytes, "right").tolist()
    rows: list[int] = []
    at = following[0] if following else 0
    while at < len(following):
        rows.append(at)
        at = following[at]
    return rows
