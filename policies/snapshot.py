"""The input of the policies: one partition at one moment, frozen, both tiers.

`PartitionFigures` need no read of the log, and serve the status alone: the segments have no largest timestamps.
`PartitionSnapshot` adds the times of the segments and the last stable offset, for plans.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.rules import PartitionRules, Pause
from remote.segment_entry import SegmentEntry, SegmentState

if TYPE_CHECKING:
    from remote.manifest.manifest import PageEntry, PendingDelete, PendingPageDelete
    from remote.manifest.view import CompactedView


@dataclass(frozen=True, kw_only=True)  # without slots: cached properties need the instance's dict
class PartitionFigures:
    """One partition, for figures alone. Offsets are half open and ascending, times in ms."""

    partition: TopicPartition
    rules: PartitionRules
    now_ms: int
    log_start_offset: int  # of the whole log, remote tier included
    next_offset: int
    segments: tuple[SegmentInfo, ...]  # local segments; the last one is active
    is_tiered: bool = False
    remote: tuple[SegmentEntry, ...] = ()  # the entries known one by one: the newest always, older ones if requested
    pages: tuple[PageEntry, ...] = ()  # for all other entries; they may be between entries of `remote`
    known_pages: tuple[PageEntry, ...] = ()  # the pages whose entries are in `remote`
    pending_deletes: tuple[PendingDelete, ...] = ()
    pending_page_deletes: tuple[PendingPageDelete, ...] = ()
    views: tuple[CompactedView, ...] = ()  # in the manifest
    local_views: tuple[CompactedView, ...] = ()  # next to the local log
    keeps_views_on_disk: bool = False  # the next run of a view writes to the disk; otherwise to the bucket
    # pages and entries of a disabled tier: they count for nothing and are in no other field
    tier_disabled: tuple[PageEntry | SegmentEntry, ...] = ()
    cleaner_offset: int | None = None  # the cleaner's checkpoint, None if it never ran
    cleaner_reach: int = 0  # end of the newer records because of which a pass may have removed older ones
    copying: frozenset[int] = field(default_factory=frozenset)  # base offsets of the segments being copied now
    head_sequence: int = 0
    manifests_gc_boundary: int = 0
    # base offsets of segments with fewer records than their entries
    shrunk: frozenset[int] = field(default_factory=frozenset)
    paused: Pause | None = None

    @property
    def is_remote_unknown(self) -> bool:
        return self.is_tiered and self.head_sequence == 0

    @property
    def is_copying_on(self) -> bool:
        """Whether segments are copied: copying is enabled (KIP-950), and no part of a disabled tier remains."""
        return self.is_tiered and not self.rules.copy_disabled and not self.tier_disabled

    @property
    def builds_views(self) -> bool:
        """Whether maintenance may build views: on disk, or in a bucket that receives copies."""
        return self.keeps_views_on_disk or self.is_copying_on

    @property
    def all_views(self) -> tuple[CompactedView, ...]:
        """The views that readers find, by name: the manifest's if it was built or is the only one, else the local."""
        found = {view.name: view for view in self.views}
        found |= {
            view.name: view for view in self.local_views if view.name not in found or not found[view.name].is_built
        }
        return tuple(found[name] for name in sorted(found))

    @property
    def active(self) -> SegmentInfo | None:
        return self.segments[-1] if self.segments else None

    @property
    def closed(self) -> tuple[SegmentInfo, ...]:
        return self.segments[:-1]

    @cached_property
    def committed(self) -> tuple[SegmentEntry, ...]:
        """The known entries that readers see. Half-copied and half-deleted entries count nowhere (KIP-405)."""
        return tuple(entry for entry in self.remote if entry.state is SegmentState.COPY_FINISHED)

    @property
    def committed_parts(self) -> tuple[PageEntry | SegmentEntry, ...]:
        """All entries that readers see, in no order; entries that are not known are given as pages."""
        return (*self.pages, *self.committed)

    @property
    def committed_count(self) -> int:
        return len(self.committed) + sum(page.segment_count for page in self.pages)

    @property
    def committed_bytes(self) -> int:
        return sum(each.size_bytes for each in self.committed_parts)

    @property
    def dead_pages(self) -> tuple[PageEntry, ...]:
        """The pages of `pages` wholly below the log start: none of their entries needs to be read."""
        return tuple(page for page in self.pages if page.next_offset <= self.log_start_offset)

    @property
    def oldest_unknown(self) -> PageEntry | None:
        """The first page that reaches above the log start and whose entries are not known."""
        return next((page for page in self.pages if page.next_offset > self.log_start_offset), None)

    def known_oldest(self) -> tuple[SegmentEntry, ...]:
        """The committed entries below the first unknown page above the log start, ascending."""
        unknown = self.oldest_unknown
        if unknown is None:
            return self.committed
        return tuple(entry for entry in self.committed if entry.base_offset < unknown.base_offset)

    @property
    def unlinked_bytes(self) -> int:
        objects, pages = self.pending_deletes, self.pending_page_deletes
        return sum(each.size_bytes for each in objects) + sum(each.size_bytes for each in pages)

    @cached_property
    def coverage(self) -> Coverage:
        entries = [(entry.base_offset, entry.next_offset) for entry in self.committed]
        return Coverage.of([*entries, *(each for page in self.pages for each in page.ranges())])

    @cached_property
    def named_keys(self) -> frozenset[str]:
        """The names of all objects of known entries, in any state, and of the views."""
        entries = (*self.remote, *(entry for view in self.views for entry in view.entries))
        return frozenset(key for entry in entries for key in (entry.data_key, entry.indexes_key))

    @property
    def remote_next_offset(self) -> int | None:
        """The offset after the highest one in the store; None while the store holds nothing."""
        return self.coverage.next_offset

    @property
    def clean_cut(self) -> int:
        """The offset up to which each removed record was removed because of a newer record below that offset.

        0 while an unfinished pass has removed records because of newer ones above the checkpoint.
        """
        checkpoint = self.cleaner_offset or 0
        return checkpoint if self.cleaner_reach <= checkpoint else 0

    def is_committed(self, base_offset: int, next_offset: int) -> bool:
        return self.coverage.holds(base_offset, next_offset)

    def has_safe_copy(self, segment: SegmentInfo) -> bool:
        """Whether the disk may lose `segment`: its retained records are all committed, or it has none."""
        retained_from = max(segment.base_offset, self.log_start_offset)
        return segment.is_empty or self.is_committed(retained_from, segment.next_offset)


_FIGURES = tuple(each.name for each in fields(PartitionFigures))


@dataclass(frozen=True, kw_only=True)
class PartitionSnapshot(PartitionFigures):
    """One partition, as plans need it. `stable_offset` (LSO) bounds copying and cleaning."""

    stable_offset: int
    may_clean: bool = True

    @classmethod
    def of(cls, figures: PartitionFigures, *, stable_offset: int, may_clean: bool = True) -> PartitionSnapshot:
        known = vars(figures)
        return cls(**{name: known[name] for name in _FIGURES}, stable_offset=stable_offset, may_clean=may_clean)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Ascending half-open ranges ``[base_offsets[i], next_offsets[i])``. No two overlap or touch."""

    base_offsets: tuple[int, ...]
    next_offsets: tuple[int, ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Coverage:
        """Merge half-open ranges, given in any order."""
        bases: list[int] = []
        nexts: list[int] = []
        for base_offset, next_offset in sorted(ranges):
            if nexts and base_offset <= nexts[-1]:
                nexts[-1] = max(nexts[-1], next_offset)
            else:
                bases.append(base_offset)
                nexts.append(next_offset)
        return cls(tuple(bases), tuple(nexts))

    @property
    def next_offset(self) -> int | None:
        return self.next_offsets[-1] if self.next_offsets else None

    def holds(self, base_offset: int, next_offset: int) -> bool:
        """Whether every offset of ``[base_offset, next_offset)`` is held; true for an empty range."""
        at = bisect_right(self.base_offsets, base_offset) - 1
        reached = max(base_offset, self.next_offsets[at]) if at >= 0 else base_offset
        return reached >= next_offset

    def missing(self, base_offset: int, next_offset: int) -> list[tuple[int, int]]:
        """Return the parts of ``[base_offset, next_offset)`` that are not held, ascending."""
        at = max(0, bisect_right(self.base_offsets, base_offset) - 1)
        found: list[tuple[int, int]] = []
        reached = base_offset
        while at < len(self.base_offsets) and self.base_offsets[at] < next_offset:
            if self.base_offsets[at] > reached:
                found.append((reached, self.base_offsets[at]))
            reached = max(reached, self.next_offsets[at])
            at += 1
        if reached < next_offset:
            found.append((reached, next_offset))
        return found
