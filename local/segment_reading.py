"""Finding whole batches inside one segment: the read path below `local.log`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from local import offset_index
from local.batch import read_header
from local.errors import Corrupt, NotFound
from local.names import LOG
from local.segment import RELATIVE_OFFSET_MAX, Segment

if TYPE_CHECKING:
    from local.columns import BatchTable

SLICE_BYTES = 16 << 20
_PROBE_BYTES = 4096


class BatchRun(NamedTuple):
    """Consecutive whole batches, perhaps none. Checksums are not looked at yet: `kernels.decode_columns` does that.

    `scan` is of the bytes that were read, `rows` of it are these batches, `start` is where `data` begins in them.
    """

    data: memoryview
    scan: BatchTable
    rows: slice
    start: int

    @property
    def is_empty(self) -> bool:
        return not self.data

    @property
    def base_offset(self) -> int:
        """Of the first batch; only of a run that is not empty."""
        return int(self.scan.base_offsets[self.rows.start])

    @property
    def next_offset(self) -> int:
        """One past the last offset; only of a run that is not empty."""
        return int(self.scan.last_offsets[self.rows.stop - 1]) + 1

    def table(self) -> BatchTable:
        """The headers, their positions counting from the start of `data`."""
        rows = self.scan.select(self.rows)
        return replace(rows, positions=rows.positions - self.start, valid_bytes=len(self.data), problem=None)


@cache
def no_run() -> BatchRun:
    """The empty one."""
    from local import kernels

    return BatchRun(memoryview(b""), kernels.scan_batches(b""), slice(0, 0), 0)


class ReadLimits(NamedTuple):
    """`bytes_max` bounds a run; with `min_one` its first batch is given however large. Batches that begin at or above
    `upper_offset` are out of reach."""

    bytes_max: int
    min_one: bool = True
    upper_offset: int | None = None


def read_segment(segment: Segment, offset: int, limits: ReadLimits) -> BatchRun | None:
    """Whole batches from the one that holds `offset` (or follows it); None when the segment has none of them.

    An empty run when there is one and the limits do not let it through. Raises NotFound once the segment was replaced,
    Corrupt where the bytes make no sense or end inside a batch: a segment's known size always ends at a batch's end.
    """
    import numpy as np

    from local import kernels

    last_offset, position = entry = segment.entry_before(offset)
    want = max(limits.bytes_max, _PROBE_BYTES)
    while True:
        data = memoryview(segment.read(position, want))
        table = kernels.scan_batches(data, verify=False)
        if segment.is_shared and 0 < position == entry[1] and _passes_over(table, last_offset):
            raise NotFound("reading a segment, its owner replaced it", path=segment.path(LOG))
        first = int(np.searchsorted(table.last_offsets, offset))
        if first < len(table):
            return _cut(data, table, first, limits)
        at = position + table.valid_bytes
        if table.is_corrupt:
            raise Corrupt(f"reading a segment, {table.problem}", path=segment.path(LOG), at=at)
        if position + len(data) >= segment.size_bytes:
            if table.problem is None:
                return None
            raise Corrupt("reading a segment, it ends inside a batch", path=segment.path(LOG), at=at)
        header = read_header(data, table.valid_bytes)
        want = max(want, header.size_bytes if header else 0)
        position = at


def _passes_over(table: BatchTable, last_offset: int) -> bool:
    """Whether no batch ends with an offset that the index promised from there on: then it is of another file. Kafka's
    own entries may name a batch some way behind the position."""
    import numpy as np

    at = int(np.searchsorted(table.last_offsets, last_offset))
    return at < len(table) and table.last_offsets[at] != last_offset


def _cut(data: memoryview, table: BatchTable, first: int, limits: ReadLimits) -> BatchRun:
    """The batches from row `first` on that the limits let through."""
    import numpy as np

    start = int(table.positions[first])
    ends = table.positions[first:] + table.sizes[first:]
    count = max(int(np.searchsorted(ends, start + limits.bytes_max, "right")), int(limits.min_one))
    if limits.upper_offset is not None:
        count = min(count, int(np.searchsorted(table.base_offsets[first:], limits.upper_offset)))
    if count == 0:
        return no_run()
    return BatchRun(data[start : int(ends[count - 1])], table, slice(first, first + count), start)


def end_of(segment: Segment) -> int:
    """One past the last offset of a sealed segment, from the last index entry on; its base when it is empty."""
    position = segment.position_of(segment.base_offset + RELATIVE_OFFSET_MAX)
    data = memoryview(segment.read(position, segment.size_bytes))
    at, found = 0, segment.base_offset
    while header := read_header(data, at):
        at, found = at + header.size_bytes, header.next_offset
    return found


def batch_slices(segment: Segment, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, memoryview]]:
    """All of a sealed segment as (position, whole batches), about `slice_bytes` each, so that memory stays bounded."""
    for start, end in slice_bounds(segment, slice_bytes):
        yield start, memoryview(segment.read(start, end - start))


def slice_bounds(segment: Segment, slice_bytes: int = SLICE_BYTES) -> list[tuple[int, int]]:
    """Where `batch_slices` cuts: at batch starts that the offset index knows."""
    import numpy as np

    positions = offset_index.positions(segment.offset_index())
    cuts = [0]
    while (slot := int(np.searchsorted(positions, cuts[-1] + slice_bytes))) < len(positions):
        cuts.append(int(positions[slot]))
    return list(pairwise((*cuts, segment.size_bytes))) if segment.size_bytes else []
