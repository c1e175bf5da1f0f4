"""Lookups in a head: which segment holds an offset, which may hold a timestamp. Pure; no store is asked."""

from __future__ import annotations

from bisect import bisect_right

from remote.head import Head
from remote.segment import RemoteSegment


def find_by_offset(head: Head, offset: int) -> RemoteSegment | None:
    """The row that holds `offset`, or the first row after it; None past the last.

    Rows wholly below the log start are dead: they are passed over, not given.
    """
    wanted = max(offset, head.log_start_offset)
    # Rows ascend and never overlap, so their ends ascend too: the first whose end lies beyond is the one.
    index = bisect_right(head.segments, wanted, key=_next_offset)
    return head.segments[index] if index < len(head.segments) else None


def find_by_timestamp(head: Head, timestamp_ms: int) -> RemoteSegment | None:
    """The first live row with a record at or after `timestamp_ms`; None without one.

    Timestamps need not ascend from row to row, so this looks at one after another. A row whose largest timestamp is
    unknown is passed over.
    """
    for row in live_rows(head):
        if row.max_timestamp_ms is not None and row.max_timestamp_ms >= timestamp_ms:
            return row
    return None


def live_rows(head: Head, start: int = 0, end: int | None = None) -> tuple[RemoteSegment, ...]:
    """The rows with offsets in ``[start, end)`` at or above the log start, ascending."""
    first = bisect_right(head.segments, max(start, head.log_start_offset), key=_next_offset)
    last = len(head.segments) if end is None else bisect_right(head.segments, end - 1, key=_base_offset)
    return head.segments[first:last]


def _next_offset(row: RemoteSegment) -> int:
    return row.next_offset


def _base_offset(row: RemoteSegment) -> int:
    return row.base_offset
