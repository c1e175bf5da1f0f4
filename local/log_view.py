"""What a reader of a log sees: its segments and offsets at one moment, copied on every change and never changed.

Readers never wait: they work on a view, and when a segment of it was replaced or dropped meanwhile (NotFound) they ask
the log for the next one.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from local import kernels
from local.errors import OffsetOutOfRange
from local.names import TopicPartition
from local.segment import Segment
from local.segment_info import SegmentInfo
from local.segment_reading import read_segment

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogView:
    """Segments ascending, `bases` their base offsets; `next_offset` is the log end."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    log_start_offset: int
    next_offset: int

    @property
    def local_log_start_offset(self) -> int:
        return max(self.log_start_offset, self.bases[0])

    def infos(self, cleaner_offset: int | None) -> tuple[SegmentInfo, ...]:
        """Facts about every segment; the last is the active one."""
        ends = (*self.bases[1:], self.next_offset)
        return tuple(
            segment.info(next_offset=end, cleaner_offset=cleaner_offset)
            for segment, end in zip(self.segments, ends, strict=True)
        )

    def segment(self, base_offset: int) -> Segment | None:
        """The segment with exactly this base."""
        at = bisect.bisect_left(self.bases, base_offset)
        return self.segments[at] if at < len(self.bases) and self.bases[at] == base_offset else None

    def sealed_below(self, offset: int) -> list[Segment]:
        """The sealed segments wholly below `offset`, oldest first."""
        return [each for each, end in zip(self.segments, self.bases[1:], strict=False) if end <= offset]

    def check_inside(self, partition: TopicPartition, offset: int) -> None:
        """Raises OffsetOutOfRange, with the valid range, outside ``[local_log_start_offset, next_offset]``."""
        first = self.local_log_start_offset
        if not first <= offset <= self.next_offset:
            facts = {"offset": offset, "first_offset": first, "next_offset": self.next_offset}
            raise OffsetOutOfRange("reading the local log", partition=partition, **facts)

    def read(self, offset: int, bytes_max: int = READ_BYTES) -> memoryview:
        """Whole batches from the one that holds `offset` or follows it; empty at the end. Raises NotFound, Corrupt."""
        at = max(bisect.bisect_right(self.bases, offset) - 1, 0)
        for segment in self.segments[at:]:
            found = read_segment(segment, offset, bytes_max)
            if found:
                return found
        return memoryview(b"")

    def search(self, timestamp_ms: int) -> int | None:
        """Offset of the first record at or after `timestamp_ms` and the start. Raises NotFound, Corrupt."""
        start = self.local_log_start_offset
        for segment in self.segments:
            if segment.max_timestamp_ms is None or segment.max_timestamp_ms < timestamp_ms:
                continue
            offset = max(segment.offset_before(timestamp_ms), start)
            while data := self.read(offset):
                for columns in kernels.decode_in_steps(data):
                    hits = (columns.timestamps >= timestamp_ms) & (columns.offsets >= start)
                    if hits.any():
                        return int(columns.offsets[hits.argmax()])
                    offset = columns.next_offset
        return None
