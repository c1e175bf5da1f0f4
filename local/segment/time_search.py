"""Find records by time inside one segment, exactly, with the time index and the batches' headers.

A time index entry ``(t, o)`` states that no record before the batch that ends at `o` is newer than `t`. The search
starts at the entry before the last one below the target, so one wrong entry hides no record. A batch that contradicts
the last entry proves that the index is wrong.

Only batches with a late enough largest timestamp are decoded. As in Kafka every record counts, transaction markers
included. Under log append time a record has the time of its batch. Source: kafka `LogSegment.findOffsetByTimestamp`,
`FileRecords.searchForTimestamp`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from local.errors import Corrupt
from local.records.offset_spec import FoundOffset
from local.segment.segment import Segment
from local.segment.segment_reading import ReadLimits, read_segment

if TYPE_CHECKING:
    from local.format.columns import BatchTable, Columns

_SEARCH = ReadLimits(bytes_max=1 << 20)


def first_at_or_after(segment: Segment, timestamp_ms: int, start: int) -> FoundOffset | None:
    """Return the first record by offset at or above `start` and at or after `timestamp_ms`.

    Raises NotFound, Corrupt.
    """
    import numpy as np

    offset, claimed = segment.time_start(timestamp_ms)
    offset = max(offset, start)
    while run := read_segment(segment, offset, _SEARCH):
        table = run.table()
        if ((table.max_timestamps >= timestamp_ms) & (table.last_offsets < claimed)).any():
            _report(segment, timestamp_ms, claimed)
        for row in np.flatnonzero(table.max_timestamps >= timestamp_ms).tolist():
            found = _first_in_batch(run.data, table.select(slice(row, row + 1)), timestamp_ms, start)
            if found is not None:
                return found
        offset = run.next_offset
    return None


def _report(segment: Segment, timestamp_ms: int, claimed: int) -> None:
    """Rebuild the indexes: a late batch is below the offset `claimed`, and the time index denies it."""
    problem = f"a time index entry skips records: timestamp_ms={timestamp_ms} offset={claimed}"
    with suppress(Corrupt):
        segment.rebuild_indexes(problem, lambda: segment.time_start(timestamp_ms).claimed_offset == claimed)


def largest_timestamp(segment: Segment, start: int) -> int | None:
    """Return the largest timestamp of the records at or above `start`, None without one.

    Reads all batches from `start` on.
    """
    largest = -1
    offset = start
    while run := read_segment(segment, offset, _SEARCH):
        table = run.table()
        # A batch that the cleaner retained empty keeps its largest timestamp, but has no record.
        whole = table.max_timestamps[(table.base_offsets >= start) & (table.record_counts > 0)]
        largest = max(largest, int(whole.max(initial=-1)))
        if table.base_offsets[0] < start:
            columns = _decoded(run.data, table.select(slice(1)))
            largest = max(largest, int(columns.timestamps[columns.offsets >= start].max(initial=-1)))
        offset = run.next_offset
    return largest if largest >= 0 else None


def _first_in_batch(data: memoryview, batch: BatchTable, timestamp_ms: int, start: int) -> FoundOffset | None:
    columns = _decoded(data, batch)
    hits = (columns.timestamps >= timestamp_ms) & (columns.offsets >= start)
    if not hits.any():
        return None
    at, epoch = int(hits.argmax()), int(batch.leader_epochs[0])
    return FoundOffset(int(columns.offsets[at]), int(columns.timestamps[at]), epoch if epoch >= 0 else None)


def _decoded(data: memoryview, batch: BatchTable) -> Columns:
    from local import kernels

    return kernels.decode_columns(data, include_control=True, table=batch)
