"""Read whole batches from one segment: the read path below `local.log.log`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import offset_index
from local.names import LOG, OFFSET_INDEX
from local.segment.segment import RELATIVE_OFFSET_MAX, Segment

if TYPE_CHECKING:
    from local.format.columns import BatchTable

SLICE_BYTES = 16 << 20
_PROBE_BYTES = 4096


class BatchRun(NamedTuple):
    """Consecutive whole batches, perhaps none, with unchecked checksums."""

    data: memoryview
    scan: BatchTable  # the headers of all bytes that were read
    rows: slice  # of this run
    start: int  # the position of `data`

    @property
    def is_empty(self) -> bool:
        return not self.data

    @property
    def base_offset(self) -> int:
        """The first batch's base offset. The run must not be empty."""
        return int(self.scan.base_offsets[self.rows.start])

    @property
    def next_offset(self) -> int:
        """One past the last offset. The run must not be empty."""
        return int(self.scan.last_offsets[self.rows.stop - 1]) + 1

    def table(self) -> BatchTable:
        """The headers of the run, with positions relative to the start of `data`."""
        rows = self.scan.select(self.rows)
        return replace(rows, positions=rows.positions - self.start, valid_bytes=len(self.data), problem=None)


@cache
def no_run() -> BatchRun:
    from local import kernels

    return BatchRun(memoryview(b""), kernels.scan_batches(b""), slice(0, 0), 0)


class ReadLimits(NamedTuple):
    """The limits of one read. The first batch may be larger than `bytes_max`. `upper_offset` bounds base offsets."""

    bytes_max: int
    upper_offset: int | None = None


def read_segment(segment: Segment, offset: int, limits: ReadLimits) -> BatchRun | None:
    """Return whole batches, the first one holding `offset` or following it; None if there is none.

    The run is empty if the limits exclude the first batch. Raises NotFound once the segment was replaced, Corrupt if
    the bytes are unsound or end inside a batch.
    """
    import numpy as np

    want = max(limits.bytes_max, _PROBE_BYTES)
    entry = segment.entry_before(offset)
    position = entry[1]
    data, table = _scanned(segment, position, want)
    if position and (problem := _contradiction(segment, entry, data, table)) is not None:
        position = _position_again(segment, entry, offset, problem)
        data, table = _scanned(segment, position, want)
    while True:
        first = int(np.searchsorted(table.last_offsets, offset))
        if first < len(table):
            return _cut(data, table, first, limits)
        at = position + table.valid_bytes
        if table.is_corrupt:
            raise Corrupt(f"cannot read a segment, {table.problem}", path=segment.path(LOG), at=at)
        if position + len(data) >= segment.size_bytes:
            if table.problem is None:
                return None
            raise Corrupt("cannot read a segment, it ends inside a batch", path=segment.path(LOG), at=at)
        header = read_header(data, table.valid_bytes)
        want = max(want, header.size_bytes if header else 0)
        position = at
        data, table = _scanned(segment, position, want)


def _scanned(segment: Segment, position: int, want: int) -> tuple[memoryview, BatchTable]:
    from local import kernels

    data = memoryview(segment.read(position, want) if position >= 0 else b"")
    return data, kernels.scan_batches(data, verify=False)


def _contradiction(segment: Segment, entry: tuple[int, int], data: memoryview, table: BatchTable) -> str | None:
    """Return how the bytes at an entry's position contradict the entry; None for a safe start.

    1. A batch must start at the position, with a base offset not above the entry's offset. All batches before it then
       end below that offset, which is not above the target.
    2. A batch must end with the entry's offset, as far as `table` reaches: Kafka's entries may name a later batch.
    """
    last_offset, position = entry
    where = f"entry offset={last_offset} position={position}"
    if not 0 <= position < segment.size_bytes:
        return f"an offset index entry points past the end of the log: {where}"
    header = None
    with suppress(Corrupt):
        header = read_header(data)
    is_whole = header is not None and header.size_bytes <= segment.size_bytes - position
    if header is None or not is_whole or (table.is_corrupt and not len(table)):
        return f"an offset index entry points to no batch: {where}"
    begins_at = int(table.base_offsets[0]) if len(table) else header.base_offset
    if begins_at > last_offset or _passes_over(table, last_offset):
        return f"an offset index entry points to another batch: {where} base_offset={begins_at}"
    return None


def _passes_over(table: BatchTable, last_offset: int) -> bool:
    """Return whether a batch reaches beyond `last_offset` and none ends with it: the index is wrong."""
    import numpy as np

    at = int(np.searchsorted(table.last_offsets, last_offset))
    return at < len(table) and bool(table.last_offsets[at] != last_offset)


def _position_again(segment: Segment, entry: tuple[int, int], offset: int, problem: str) -> int:
    """Rebuild the index and return where to start scanning for `offset`; 0 if the rebuild changes nothing."""
    with suppress(Corrupt):
        segment.rebuild_indexes(problem, lambda: segment.entry_before(offset) == entry)
    again = segment.entry_before(offset)
    return again[1] if again != entry else 0


def _cut(data: memoryview, table: BatchTable, first: int, limits: ReadLimits) -> BatchRun:
    import numpy as np

    start = int(table.positions[first])
    ends = table.positions[first:] + table.sizes[first:]
    count = max(int(np.searchsorted(ends, start + limits.bytes_max, "right")), 1)
    if limits.upper_offset is not None:
        count = min(count, int(np.searchsorted(table.base_offsets[first:], limits.upper_offset)))
    if count == 0:
        return no_run()
    return BatchRun(data[start : int(ends[count - 1])], table, slice(first, first + count), start)


def end_of(segment: Segment) -> int:
    """Return one past the last offset of a closed segment; its base offset if it is empty. Raises Corrupt."""
    last = segment.base_offset + RELATIVE_OFFSET_MAX
    entry = segment.entry_before(last)
    position = entry[1]
    data, table = _scanned(segment, position, segment.size_bytes)
    problem = _contradiction(segment, entry, data, table) if position else None
    if problem is None:
        at, found = 0, segment.base_offset
        while header := read_header(data, at):
            at, found = at + header.size_bytes, header.next_offset
        return found
    segment.rebuild_indexes(problem, lambda: segment.entry_before(last) == entry)
    data, table = _scanned(segment, segment.entry_before(last)[1], segment.size_bytes)
    return int(table.last_offsets[-1]) + 1 if len(table) else segment.base_offset


def batch_slices(segment: Segment, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, memoryview]]:
    """Yield a closed segment as (position, whole batches), in parts of about `slice_bytes`."""
    for start, end in slice_bounds(segment, slice_bytes):
        yield start, memoryview(segment.read(start, end - start))


def slice_bounds(segment: Segment, slice_bytes: int = SLICE_BYTES) -> list[tuple[int, int]]:
    """Return the (start, end) positions of `batch_slices`, cut at checked index entries. Raises Corrupt."""
    cuts = _cuts(segment, slice_bytes)
    for wrong in cuts:
        if _contradiction(segment, wrong, *_scanned(segment, wrong[1], HEADER_BYTES)) is not None:
            problem = f"an offset index entry points to no batch: offset={wrong[0]} position={wrong[1]}"
            segment.rebuild_indexes(problem, lambda wrong=wrong: wrong in _cuts(segment, slice_bytes))  # type: ignore[misc]
            cuts = _cuts(segment, slice_bytes)
            break
    bounds = [0, *(position for _, position in cuts), segment.size_bytes]
    return list(pairwise(bounds)) if segment.size_bytes else []


def _cuts(segment: Segment, slice_bytes: int) -> list[tuple[int, int]]:
    import numpy as np

    index = segment.index(OFFSET_INDEX)
    positions = offset_index.columns(index)[1]
    slots, reached = list[int](), 0
    while (slot := int(np.searchsorted(positions, reached + slice_bytes))) < len(positions):
        slots.append(slot)
        reached = int(positions[slot])
    width = offset_index.ENTRY_BYTES
    return [offset_index.entries(index[at * width : (at + 1) * width], segment.base_offset)[0] for at in slots]
