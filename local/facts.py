"""Frozen facts about segments and log directories, for the policies and the remote tier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """Facts about one segment. Offsets are half open: `next_offset` is the base of the next segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int | None  # the largest record timestamp, None without one
    is_active: bool
    is_clean: bool = False  # the cleaner has processed every record; always False for a topic that is not compacted
    modified_ms: int = 0
    first_timestamp_ms: int | None = None  # the first batch's largest, if it was requested from `LogReader.segments`

    @property
    def is_empty(self) -> bool:
        return self.size_bytes == 0

    @property
    def age_timestamp_ms(self) -> int:
        """The time for retention: the largest record timestamp, or the file's mtime without one (Kafka)."""
        return self.modified_ms if self.max_timestamp_ms is None else self.max_timestamp_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirFacts:
    """Facts about one log directory."""

    path: str
    partition_count: int  # with the moves into it
    free_bytes: int | None = None  # of the file system; None: unknown
    total_bytes: int | None = None
    is_offline: bool = False
    is_cordoned: bool = False  # it gets no new partitions (KIP-1066)
