"""What the policies are told: one partition at one moment, frozen, both tiers side by side.

The snapshot is taken by the caller, who alone knows clocks, disks and stores; a plan is about this moment and nothing
else, so whoever applies it looks again before each deed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from local.names import TopicPartition
from local.segment.segment_info import SegmentInfo
from policies.coverage import Coverage
from policies.rules import PartitionRules, Pause
from remote.segment_entry import RemoteSegment, SegmentState

if TYPE_CHECKING:
    from remote.manifest.manifest import SpillRow, UnlinkedObject, UnlinkedPage
    from remote.manifest.view import CompactedView


@dataclass(frozen=True, kw_only=True)  # without slots: what is worked out once needs the instance's dict
class PartitionSnapshot:
    """One partition. Offsets half open, ascending; times in ms.

    `log_start_offset` is the log's, remote tier included. `stable_offset` (the last stable offset) bounds what may be
    copied or cleaned. The last of `segments` is active. `cleaner_offset` is the cleaner's checkpoint, None where it
    never ran; below `cleaner_reach` records may have gone for the sake of newer ones. `may_clean` is False while the
    cleaner has to stay away (paused, or waiting after a failure). `copying` holds the base offsets under way this
    moment. `shrunk` are the base offsets of local segments known to hold fewer records than their rows.

    `remote` holds the rows of the store that are known one by one, ascending: the newest always, older ones as far as
    they were asked for. `spills` stand for all others, a page of rows each, ascending, none of them in `remote`; they
    may lie between its rows. `known_pages` are those whose rows are in `remote`. `head_sequence` is the newest head's,
    0 without one; heads up to `heads_void_upto` were collected. `given_up` are the pages and rows of a tier that was
    given up, ascending: they count for nothing and are not among the others.

    `paused`: somebody paused the uploads, so nothing is sent to the bucket but heads; all else goes on as if copies
    were only late.

    `views` are the compacted views in the manifest, `local_views` those beside the local log. The next run of a view
    writes to the disk where `keeps_views_on_disk`, to the bucket otherwise. `all_views` are those that readers find.
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
    spills: tuple[SpillRow, ...] = ()
    known_pages: tuple[SpillRow, ...] = ()
    unlinked: tuple[UnlinkedObject, ...] = ()
    unlinked_pages: tuple[UnlinkedPage, ...] = ()
    views: tuple[CompactedView, ...] = ()
    local_views: tuple[CompactedView, ...] = ()
    keeps_views_on_disk: bool = False
    given_up: tuple[SpillRow | RemoteSegment, ...] = ()
    cleaner_offset: int | None = None
    cleaner_reach: int = 0
    copying: frozenset[int] = field(default_factory=frozenset)
    may_clean: bool = True
    head_sequence: int = 0
    heads_void_upto: int = 0
    shrunk: frozenset[int] = field(default_factory=frozenset)
    paused: Pause | None = None

    @property
    def is_copying_on(self) -> bool:
        """Tiered, copying not switched off (KIP-950's read-only tier), nothing left of a tier given up before."""
        return self.is_tiered and not self.rules.copy_disabled and not self.given_up

    @property
    def builds_views(self) -> bool:
        """Whether a view may be brought up to the log by itself: on the disk, or in a bucket that takes copies."""
        return self.keeps_views_on_disk or self.is_copying_on

    @property
    def all_views(self) -> tuple[CompactedView, ...]:
        """One view of a name: the manifest's where that was built, else the one beside the log."""
        return merged_views(self.views, self.local_views)

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
        """The known rows that readers see. Half-copied and half-deleted ones count for nothing, anywhere (KIP-405)."""
        return tuple(row for row in self.remote if row.state is SegmentState.COPY_FINISHED)

    @property
    def committed_parts(self) -> tuple[SpillRow | RemoteSegment, ...]:
        """All rows that readers see, those that are not known as pages; in no order."""
        return (*self.spills, *self.committed)

    @property
    def committed_count(self) -> int:
        """How many rows readers see, known or not."""
        return len(self.committed) + sum(spill.segment_count for spill in self.spills)

    @property
    def committed_bytes(self) -> int:
        """What the rows that readers see hold, known or not."""
        return sum(each.size_bytes for each in self.committed_parts)

    @property
    def dead_pages(self) -> tuple[SpillRow, ...]:
        """Those of `spills` that lie wholly below the log start: no row of theirs needs to be known any more."""
        return tuple(spill for spill in self.spills if spill.next_offset <= self.log_start_offset)

    @property
    def oldest_unknown(self) -> SpillRow | None:
        """The first page that reaches above the log start and whose rows are not known."""
        return next((spill for spill in self.spills if spill.next_offset > self.log_start_offset), None)

    def known_oldest(self) -> tuple[RemoteSegment, ...]:
        """The committed rows below which none is unknown but for dead ones, ascending."""
        unknown = self.oldest_unknown
        if unknown is None:
            return self.committed
        return tuple(row for row in self.committed if row.base_offset < unknown.base_offset)

    @property
    def unlinked_bytes(self) -> int:
        """What waits for its deletion."""
        return sum(each.size_bytes for each in self.unlinked) + sum(each.size_bytes for each in self.unlinked_pages)

    @property
    def remote_ranges(self) -> Iterator[tuple[int, int]]:
        """The offset ranges that committed rows hold, known or not, in no order."""
        for row in self.committed:
            yield row.base_offset, row.next_offset
        for spill in self.spills:
            yield from spill.ranges()

    @cached_property
    def coverage(self) -> Coverage:
        """Which offsets the committed rows hold."""
        return Coverage.of(self.remote_ranges)

    @cached_property
    def named_keys(self) -> frozenset[str]:
        """The objects that a row names, of whatever state, the log's or a compacted view's."""
        rows = (*self.remote, *(row for view in self.views for row in view.rows))
        return frozenset(key for row in rows for key in (row.data_key, row.indexes_key))

    @property
    def remote_next_offset(self) -> int | None:
        """One above the highest offset in the store; None while nothing is there."""
        return self.coverage.next_offset

    @property
    def clean_cut(self) -> int:
        """Up to which offset the log is clean in itself: all that went below it went for newer records below it.

        0 while a pass that was called off, or had too small a buffer, has taken records for the sake of some above the
        checkpoint: a bucket that ends between the two would hold neither the older record of a key nor the newer.
        """
        checkpoint = self.cleaner_offset or 0
        return checkpoint if self.cleaner_reach <= checkpoint else 0

    def is_committed(self, base_offset: int, next_offset: int) -> bool:
        """Whether committed rows hold every offset of ``[base_offset, next_offset)``; true for an empty range.

        Stricter than Kafka, which looks at the highest remote offset alone: a hole below that is no copy.
        """
        return self.coverage.holds(base_offset, next_offset)

    def has_safe_copy(self, segment: SegmentInfo) -> bool:
        """Whether the disk may lose `segment`: its retained records are all committed, or it has none."""
        retained_from = max(segment.base_offset, self.log_start_offset)
        return segment.is_empty or self.is_committed(retained_from, segment.next_offset)


def merged_views(remote: Sequence[CompactedView], local: Sequence[CompactedView]) -> tuple[CompactedView, ...]:
    """One view of a name, by name: the manifest's where that was built or no other is there, else the local one."""
    found = {view.name: view for view in remote}
    found |= {view.name: view for view in local if view.name not in found or not found[view.name].is_built}
    return tuple(found[name] for name in sorted(found))
