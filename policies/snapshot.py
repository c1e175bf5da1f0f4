"""What the policies are told: one partition at one moment, frozen, both tiers side by side.

The snapshot is taken by the caller, who alone knows clocks, disks and stores; a plan is about this moment and nothing
else, so whoever applies it looks again before each deed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from local.names import TopicPartition
from local.segment_info import SegmentInfo
from policies.coverage import Coverage
from policies.rules import PartitionRules
from remote.segment import RemoteSegment, SegmentState

if TYPE_CHECKING:
    from remote.head import UnlinkedObject


@dataclass(frozen=True, kw_only=True)  # without slots: what is worked out once needs the instance's dict
class PartitionSnapshot:
    """One partition. Offsets half open, ascending; times in ms.

    `log_start_offset` is the log's, remote tier included. `stable_offset` (the last stable offset) bounds what may be
    copied or cleaned. The last of `segments` is active. `cleaner_offset` is the cleaner's checkpoint, None where it
    never ran; `may_clean` is False while the cleaner has to stay away (paused, or waiting after a failure). `copying`
    holds the base offsets under way this moment.
    """

    partition: TopicPartition
    rules: PartitionRules
    now_ms: int
    log_start_offset: int
    next_offset: int
    stable_offset: int
    segments: tuple[SegmentInfo, ...]
    is_tiered: bool = False
    remote: tuple[RemoteSegment, ...] = ()
    unlinked: tuple[UnlinkedObject, ...] = ()
    cleaner_offset: int | None = None
    copying: frozenset[int] = field(default_factory=frozenset)
    may_clean: bool = True

    @property
    def is_copying_on(self) -> bool:
        """Tiered, and copying not switched off (KIP-950's read-only tier is off)."""
        return self.is_tiered and not self.rules.copy_disabled

    @property
    def active(self) -> SegmentInfo | None:
        """The last segment: the one that appends go to, or will as soon as the log is opened for writing."""
        return self.segments[-1] if self.segments else None

    @property
    def closed(self) -> tuple[SegmentInfo, ...]:
        """The local segments that will not change by appending."""
        return self.segments[:-1]

    @cached_property
    def committed(self) -> tuple[RemoteSegment, ...]:
        """The rows that readers see. Half-copied and half-deleted ones count for nothing, anywhere (KIP-405)."""
        return tuple(row for row in self.remote if row.state is SegmentState.COPY_FINISHED)

    @cached_property
    def coverage(self) -> Coverage:
        """Which offsets the committed rows hold."""
        return Coverage.of((row.base_offset, row.next_offset) for row in self.committed)

    @property
    def remote_next_offset(self) -> int | None:
        """One above the highest offset in the store; None while nothing is there."""
        return self.coverage.next_offset

    def is_committed(self, base_offset: int, next_offset: int) -> bool:
        """Whether committed rows hold every offset of ``[base_offset, next_offset)``; true for an empty range.

        Stricter than Kafka, which looks at the highest remote offset alone: a hole below that is no copy.
        """
        return self.coverage.holds(base_offset, next_offset)

    def has_safe_copy(self, segment: SegmentInfo) -> bool:
        """Whether the disk may lose `segment`: its retained records are all committed, or it has none."""
        retained_from = max(segment.base_offset, self.log_start_offset)
        return segment.is_empty or self.is_committed(retained_from, segment.next_offset)
