"""Kafka's conditions for rolling the active segment, checked before each append of a batch.

| condition | detail |
|---|---|
| size | its bytes > `segment_bytes` - the batch's bytes |
| time | waited > `segment_ms` - jitter, both strict; see below |
| offset index | floor(`segment_index_bytes` / 8) entries are there |
| time index | floor(`segment_index_bytes` / 12) - 1 entries are there; the last slot is for the final entry |
| range | last offset of the batch - base offset > 2^31 - 1 |

- **Waited** is the batch's largest timestamp minus that of the first batch of the segment that has one. Without such a
  batch it is the clock minus the segment's creation.
- An empty segment is never closed. Only an append checks the conditions, so a log without traffic does not roll by
  itself (`policies.tiering` can do that).
- **Jitter** is drawn once for each segment, evenly from [0, min(`segment_jitter_ms`, `segment_ms`)), so that logs
  created together do not roll together.
- A compacted log's segment also rolls at `max_compaction_lag_ms`, because the active segment is never compacted. If
  this is less than `segment_ms`, it bounds the jitter too. In Kafka the jitter may exceed it, and every append would
  roll.

Source: kafka `LogSegment.shouldRoll`, `LogConfig.maxSegmentMs`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from local.format.batch_header import BatchHeader
from local.segment.segment import RELATIVE_OFFSET_MAX, Segment
from local.settings import LogSettings

Draw = Callable[[int], int]


class Rolling:
    """The conditions, with the jitter of the last checked segment. The log's lock guards it."""

    def __init__(self, draw: Draw = random.randrange) -> None:
        """Take `draw(n)`, an even choice from [0, n)."""
        self._draw = draw
        self._jittered: tuple[int, int, int] | None = None

    def is_due(
        self, active: Segment, settings: LogSettings, size: int, header: BatchHeader, *, base_offset: int, now_ms: int
    ) -> bool:
        """Return whether `active` must be closed before a batch of `size` bytes is added at `base_offset`."""
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
        """Return the segment's jitter, drawn again when the settings change."""
        below = min(settings.segment_jitter_ms, settings.roll_ms)
        if self._jittered is None or self._jittered[:2] != (active.base_offset, below):
            self._jittered = active.base_offset, below, self._draw(below) if below > 0 else 0
        return self._jittered[2]
