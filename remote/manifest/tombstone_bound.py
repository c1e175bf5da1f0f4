"""The offset below which tombstones may be removed: one rule (I5) for the local cleaner and for jobs.

A tombstone at offset T may be removed when no reader can reach an older record of its key. Two places can hold one:

| place | may hold an older record of T's key |
|---|---|
| a segment entry that begins below T | yes, unless it is clean through T: its records were compared with T |
| a segment entry that begins at T or above | no: its records are newer |
| an entry wholly below the log start offset | no: no reader reaches it |
| a compacted view that was built | yes, unless T is below its horizon: the view includes T already |
| a compacted view that was never built | yes: its first run may be reading an older manifest now |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from remote.segment_entry import SegmentEntry

if TYPE_CHECKING:
    from remote.manifest.manifest import PageEntry
    from remote.manifest.view import CompactedView


def clean_upto(parts: Iterable[PageEntry | SegmentEntry], min_readable_offset: int = 0) -> int | None:
    """The offset below which every readable record was compared with all newer ones below it.

    None without parts. `parts` may be in any order. The `cleaned_through` of a page is the least of its entries, so the
    result is at most the result for the entries themselves.
    """
    readable = (part for part in parts if part.next_offset > min_readable_offset)
    return min((max(part.cleaned_through or 0, part.base_offset) for part in readable), default=None)


def tombstone_bound(
    parts: Iterable[PageEntry | SegmentEntry], views: Iterable[CompactedView], min_readable_offset: int
) -> int | None:
    """The offset below which tombstones and markers may be removed; None: no bound, 0: no removal."""
    bounds = [view.horizon_offset if view.is_built else 0 for view in views]
    cleaned = clean_upto(parts, min_readable_offset)
    return min(bounds if cleaned is None else [*bounds, cleaned], default=None)
