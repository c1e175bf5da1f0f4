"""Build the offset index and the time index of a segment from the headers of its batches.

The entries are Kafka's. A batch gets an offset entry when more than an interval of bytes precedes it since the last
entry. A time entry is written at the same batches, only if the largest timestamp has grown, and once more at the last
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from local.errors import Corrupt
from local.index import offset_index, time_index

if TYPE_CHECKING:
    from local.format.columns import BatchTable

_RELATIVE_MAX = 2**31 - 1  # int32 in both files


class OutsideSegment(Corrupt):
    """Offsets that no index of the segment can hold. `local.log.splitting` repairs such a segment."""


class Indexes(NamedTuple):
    """The bytes of both index files, and the largest timestamp.

    `max_timestamp_offset` is the last offset of the first batch with that timestamp; the base offset without one.
    """

    offset: bytearray
    time: bytearray
    max_timestamp_ms: int | None
    max_timestamp_offset: int


def build_indexes(table: BatchTable, base_offset: int, interval_bytes: int) -> Indexes:
    """Build both indexes of a segment as an uninterrupted write leaves them.

    The final time entry is included (KAFKA-806 form). `table` holds all batches of the segment. Raises OutsideSegment
    if an offset is below `base_offset` or more than 2**31 - 1 above it.
    """
    rows = IndexRows()
    rows.add(table)
    return rows.indexes(base_offset, interval_bytes)


class IndexRows:
    """The batches of a segment in write order, added one table after another."""

    def __init__(self) -> None:
        self._sizes: list[NDArray[np.int32]] = []
        self._last_offsets: list[NDArray[np.int64]] = []
        self._times: list[NDArray[np.int64]] = []

    def add(self, table: BatchTable) -> None:
        self._sizes.append(table.sizes)
        self._last_offsets.append(table.last_offsets)
        self._times.append(table.max_timestamps)

    def indexes(self, base_offset: int, interval_bytes: int) -> Indexes:
        """Return the indexes of all added batches, as `build_indexes` does."""
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
        if not len(sizes) or times[-1] < 0:
            return Indexes(offsets, time_entries, None, base_offset)
        return Indexes(offsets, time_entries, int(times[-1]), base_offset + int(relative[found_at[-1]]))


def _entry_rows(before: NDArray[np.int64], interval_bytes: int) -> list[int]:
    """Return the rows of the batches that get an entry.

    A batch gets one when more than `interval_bytes` precede it, counted from the start of the last batch with an
    entry.
    """
    following = np.searchsorted(before, before + interval_bytes, "right").tolist()
    rows: list[int] = []
    at = following[0] if following else 0
    while at < len(following):
        rows.append(at)
        at = following[at]
    return rows
