"""Facts about one local segment, frozen: what the policies are told and the remote tier is handed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """Offsets are half open: `base_offset` is in, `next_offset` (the next segment's base) is out.

    `max_timestamp_ms` is the largest record timestamp, or None in a segment without records; `clean` tells that
    the cleaner has been through every record (always False for a topic that is not compacted). `first_timestamp_ms` is
    the first batch's largest one, known only where somebody asked for it (`ReadableLog.segments`).
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int | None
    is_active: bool
    is_clean: bool = False
    modified_ms: int = 0
    first_timestamp_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.size_bytes == 0

    @property
    def age_timestamp_ms(self) -> int:
        """What retention by time looks at: the largest record timestamp, the file's mtime without one (Kafka)."""
        return self.modified_ms if self.max_timestamp_ms is None else self.max_timestamp_ms
