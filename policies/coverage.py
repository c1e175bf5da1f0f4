"""Which offsets the store holds: entries merged into ranges once, then looked up by bisection.

Only offsets matter here. The entries may overlap, touch or leave holes, and may come in any order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coverage:
    """Ascending half-open ranges: range i is ``[base_offsets[i], next_offsets[i])``.

    No two ranges overlap or touch.
    """

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
        """The offset after the highest held one; None without ranges."""
        return self.next_offsets[-1] if self.next_offsets else None

    def holds(self, base_offset: int, next_offset: int) -> bool:
        """Whether every offset of ``[base_offset, next_offset)`` is held; true for an empty range."""
        at = bisect_right(self.base_offsets, base_offset) - 1
        reached = max(base_offset, self.next_offsets[at]) if at >= 0 else base_offset
        return reached >= next_offset

    def missing(self, base_offset: int, next_offset: int) -> list[tuple[int, int]]:
        """Return the parts of ``[base_offset, next_offset)`` that are not held, ascending.

        An empty range has none.
        """
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
