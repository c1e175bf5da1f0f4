"""Frozen facts about segments and log directories, for the policies and the remote tier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """Offsets are half open: `base_offset` is included, `next_offset` (the next segment's base) is not.

    - `max_timestamp_ms`: the largest record timestamp, None without one.
    - `is_clean`: the cleaner has processed every record; always False for a topic that is not compacted.
    - `first_timestamp_ms`: the first batch's largest timestamp; None unless requested from `LogReader.segments`.
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
        """The time for retention: the largest record timestamp, or the file's mtime without one (Kafka)."""
        return self.modified_ms if self.max_timestamp_ms is None else self.max_timestamp_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirFacts:
    """Facts about one log directory. `partition_count` includes the moves into it.

    None: the space of the file system is unknown. A cordoned directory gets no new partitions (KIP-1066).
    """

    path: str
    partition_count: int
    free_bytes: int | None = None
    total_bytes: int | None = None
    is_offline: bool = False
    is_cordoned: bool = False
