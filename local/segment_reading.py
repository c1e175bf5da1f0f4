"""Finding whole batches inside one segment: the read path below `local.log`."""

from __future__ import annotations

from collections.abc import Iterator

from local import kernels, offset_index
from local.batch import read_header
from local.errors import Corrupt
from local.names import LOG
from local.segment import RELATIVE_OFFSET_MAX, Segment

SLICE_BYTES = 16 << 20
_PROBE_BYTES = 4096


def read_segment(segment: Segment, offset: int, bytes_max: int) -> memoryview:
    """Whole batches from the one that holds `offset` (or follows it); empty when the segment has none.

    Raises Corrupt where the bytes end inside a batch: a segment's known size always ends at a batch's end.
    """
    position = segment.position_of(offset)
    want = max(bytes_max, _PROBE_BYTES)
    while True:
        data = memoryview(segment.read(position, want))
        skipped = _bytes_before(data, offset)
        whole = _whole_batches(data[skipped:], bytes_max)
        at_end = position + len(data) >= segment.size_bytes
        if whole or (at_end and skipped == len(data)):
            return data[skipped : skipped + whole]
        if at_end:
            raise Corrupt("reading a segment, it ends inside a batch", path=segment.path(LOG), at=position + skipped)
        position += skipped
        header = read_header(data, skipped)
        want = max(want, header.size_bytes if header else 0)


def end_of(segment: Segment) -> int:
    """One past the last offset of a sealed segment, from the last index entry on; its base when it is empty."""
    position = segment.position_of(segment.base_offset + RELATIVE_OFFSET_MAX)
    data = memoryview(segment.read(position, segment.size_bytes))
    at, found = 0, segment.base_offset
    while header := read_header(data, at):
        at, found = at + header.size_bytes, header.next_offset
    return found


def trim_to_whole_batches(segment: Segment) -> int:
    """Set the size of a segment that another process may be writing to its good batches; one past its last offset."""
    position = segment.position_of(segment.base_offset + RELATIVE_OFFSET_MAX)
    for start in (position, 0):
        # From the last index entry on; from the beginning when the batch it names is the torn one.
        table = kernels.scan_batches(segment.read(start, segment.size_bytes))
        if len(table):
            segment.size_bytes = start + table.valid_bytes
            latest = int(table.max_timestamps.max())
            if latest >= 0:
                segment.max_timestamp_ms = max(segment.max_timestamp_ms or 0, latest)
            return int(table.last_offsets[-1]) + 1
    segment.size_bytes = 0
    return segment.base_offset


def batch_slices(segment: Segment, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, memoryview]]:
    """All of a sealed segment as (position, whole batches), about `slice_bytes` each, so that memory stays bounded.

    Cuts lie at batch starts that the offset index knows.
    """
    start = 0
    for _, position in offset_index.entries(segment.offset_index(), segment.base_offset):
        if position - start >= slice_bytes:
            yield start, memoryview(segment.read(start, position - start))
            start = position
    if start < segment.size_bytes:
        yield start, memoryview(segment.read(start, segment.size_bytes - start))


def _bytes_before(data: memoryview, offset: int) -> int:
    """Length of the leading whole batches that end at or below `offset`."""
    at = 0
    while (header := read_header(data, at)) and header.next_offset <= offset and at + header.size_bytes <= len(data):
        at += header.size_bytes
    return at


def _whole_batches(data: memoryview, bytes_max: int) -> int:
    """Length of the leading whole batches within `bytes_max`, or of the first batch alone; 0 when it is torn."""
    at = 0
    while (header := read_header(data, at)) and at + header.size_bytes <= len(data):
        if at and at + header.size_bytes > bytes_max:
            break
        at += header.size_bytes
    return at
