"""When the active segment is sealed and a new one begun: Kafka's conditions, asked before each batch is added.

| condition | detail |
|---|---|
| size | its bytes > `segment_bytes` - the batch's bytes |
| time | waited > `segment_ms` - jitter, both strict; see below |
| offset index | floor(`segment_index_bytes` / 8) entries are there |
| time index | floor(`segment_index_bytes` / 12) - 1 entries are there; the last slot is for the final entry |
| range | last offset of the batch - base offset > 2^31 - 1 |

Waited is the batch's largest timestamp minus that of the segment's first batch that has one; while none has, the
clock minus the segment's creation. An empty segment is never sealed, and nothing but an append asks: a log without
traffic does not roll by itself (who wants that: `policies.tiering`).

Jitter is drawn once for each segment, evenly from [0, min(`segment_jitter_ms`, `segment_ms`)), so that logs which began
together do not roll together. A compacted log's segment also rolls at `max_compaction_lag_ms`, as the active segment is
never compacted; where that is less than `segment_ms` it bounds the jitter too (Kafka's may exceed it there, and every
append would roll). Source: kafka `LogSegment.shouldRoll`, `LogConfig.maxSegmentMs`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from local.format.batch_header import BatchHeader
from local.segment.segment import RELATIVE_OFFSET_MAX, Segment
from local.settings import LogSettings

Draw = Callable[[int], int]


class Rolling:
    """The conditions, and the jitter of the segment they were last asked about. Not thread safe: the log's lock."""

    def __init__(self, draw: Draw = random.randrange) -> None:
        """`draw(n)` is an even choice from [0, n)."""
        self._draw = draw
        self._jittered: tuple[int, int, int] | None = None

    def is_due(
        self, active: Segment, settings: LogSettings, size: int, header: BatchHeader, *, base_offset: int, now_ms: int
    ) -> bool:
        """Whether `active` is sealed before a batch of `size` bytes is added at `base_offset`."""
        if active.size_bytes == 0:
            return False
        began = active.roll_base_ms
        waited = now_ms - active.created_ms if began is None else header.max_timestamp_ms - began
        return (
            active.size_bytes > settings.segment_bytes - size
            or waited > settings.roll_ms - self._jitter_ms(active, settings)
            or active.is_index_full(settings.segment_index_bytes)
            or base_offset + header.last_offset_delta - active.base_offset > RELATIVE_OFFSET_MAX
        )

    def _jitter_ms(self, active: Segment, settings: LogSettings) -> int:
        """Drawn anew when the settings change, as they were for another choice."""
        below = min(settings.segment_jitter_ms, settings.roll_ms)
        if self._jittered is None or self._jittered[:2] != (active.base_offset, below):
            self._jittered = active.base_offset, below, self._draw(below) if below > 0 else 0
        return self._jittered[2]
