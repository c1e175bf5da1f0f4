"""The segments of both tiers as strips over offsets and over time, with their state.

| word | above, on the disk | below, in the bucket | bar |
|---|---|---|---|
| local | only this disk has it | | whole |
| both | the bucket has it, too | | two thirds |
| remote | | readers find it there | whole |
| compacted | | the same, after a cleaner pass | 18 to 10 of 24: the lower, the fewer records remain |
| expired | below the log start offset: its files or its entry are about to be deleted | the same | a fifth |
| hole | | a gap between two segments: no record remains of these offsets | a line |

Bars too close to be distinguished are drawn as one bar of their most important kind. A hole of one unit stays visible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from local.facts import SegmentInfo
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry
from tiered.config.units import counted
from tiered.web.html import Html, component, stamp

WIDTH = 1000  # of a strip, in its own units
STRIP = 24
TOPS = {"local": 8, "remote": 52}
HEIGHTS = {"local": STRIP, "both": 16, "remote": STRIP, "compacted": 18, "expired": 5, "hole": 2}
COMPACTED_LEAST = 10  # the height of a segment with almost no records left
KINDS = tuple(HEIGHTS)
_WEIGHTS = {"local": 4, "expired": 3, "compacted": 2, "both": 1, "remote": 1, "hole": 0}
Segment: TypeAlias = SegmentInfo | SegmentEntry | PageEntry


@dataclass(frozen=True, slots=True)
class Piece:
    """A half-open range of an axis, its kind, and the share of its offsets that still have a record."""

    start: int
    stop: int
    kind: str
    left: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The visible offsets, half open, within all offsets from `begin` to `end`."""

    begin: int
    end: int
    start: int
    stop: int

    @classmethod
    def of(cls, snapshot: PartitionSnapshot, query: Mapping[str, str]) -> Window:
        """Return the window of ``from`` and ``to``, clamped to the log; the whole log without them."""
        bases = [each.base_offset for each in (*snapshot.segments, *snapshot.committed_parts)]
        begin = min([snapshot.log_start_offset, *bases])
        end = max(snapshot.next_offset, begin + 1)
        start = min(max(_number(query.get("from", ""), begin), begin), end - 1)
        stop = min(max(_number(query.get("to", ""), end), start + 1), end)
        return cls(begin=begin, end=end, start=start, stop=stop)

    @property
    def is_all(self) -> bool:
        return (self.start, self.stop) == (self.begin, self.end)

    @property
    def query(self) -> dict[str, str]:
        return {} if self.is_all else {"from": str(self.start), "to": str(self.stop)}

    def holds(self, base_offset: int, next_offset: int) -> bool:
        """Whether the range overlaps the window. An empty segment counts at its base offset."""
        return base_offset < self.stop and max(next_offset, base_offset + 1) > self.start

    def steps(self) -> dict[str, tuple[int, int]]:
        size = self.stop - self.start
        found = {}
        if size > 1:
            start = self.start + (size - size // 2) // 2
            found["Closer"] = (start, start + size // 2)
        if not self.is_all:
            half = max(1, size // 2)
            found["Wider"] = (max(self.begin, self.start - half), min(self.end, self.stop + half))
        if self.start > self.begin:
            found["Earlier"] = (max(self.begin, self.start - size), max(self.begin, self.start - size) + size)
        if self.stop < self.end:
            found["Later"] = (min(self.end, self.stop + size) - size, min(self.end, self.stop + size))
        return found


def segment_map(snapshot: PartitionSnapshot, window: Window, here: str) -> Html:
    """Return both drawings, the key, and a description of their ranges; `here` is the page's path."""
    local, rows = local_pieces(snapshot), remote_pieces(snapshot)
    stored = sorted([*rows, *holes(rows)], key=lambda each: each.start)
    pieces = [each for each in (*local, *stored) if window.holds(each.start, each.stop)]
    visible = [each for each in local if window.holds(each.start, each.stop)]
    parts = [each for each in snapshot.committed_parts if window.holds(each.base_offset, each.next_offset)]
    count = sum(each.segment_count if isinstance(each, PageEntry) else 1 for each in parts)
    segments = f"{counted(len(visible), 'local segment')}, {count:,} remote"
    return component("section", "segment_map.html")(
        window=window,
        here=here,
        words=f"Offsets {window.start:,} to {window.stop:,}: {segments}",
        offsets=_tiers(local, stored, window.start, window.stop),
        times=_over_time(snapshot, window),
        kinds=[(kind, HEIGHTS[kind]) for kind in KINDS if any(each.kind == kind for each in pieces)],
    )


def local_pieces(snapshot: PartitionSnapshot) -> list[Piece]:
    return [Piece(each.base_offset, each.next_offset, _local_kind(snapshot, each)) for each in snapshot.segments]


def remote_pieces(snapshot: PartitionSnapshot) -> list[Piece]:
    found = []
    for row in snapshot.committed_parts:
        ranges = row.ranges() if isinstance(row, PageEntry) else [(row.base_offset, row.next_offset)]
        found += [Piece(start, stop, remote_kind(snapshot, row), records_left(row)) for start, stop in ranges]
    return sorted(found, key=lambda each: each.start)


def holes(stored: Sequence[Piece]) -> list[Piece]:
    found, reached = [], stored[0].stop if stored else 0
    for piece in stored:
        if piece.start > reached:
            found.append(Piece(reached, piece.start, "hole"))
        reached = max(reached, piece.stop)
    return found


def remote_kind(snapshot: PartitionSnapshot, row: SegmentEntry | PageEntry) -> str:
    if row.next_offset <= snapshot.log_start_offset:
        return "expired"
    return "compacted" if row.cleaned_through is not None else "remote"


def records_left(row: SegmentEntry | PageEntry) -> float:
    """Return the share of its offsets that still have a record, 0..1."""
    ranges = row.ranges() if isinstance(row, PageEntry) else [(row.base_offset, row.next_offset)]
    offsets = sum(stop - start for start, stop in ranges)
    return min(1.0, row.record_count / offsets) if offsets else 1.0


@dataclass(frozen=True, slots=True)
class Bar:
    left: float
    right: float
    kind: str
    records_left: float

    @property
    def x(self) -> float:
        return round(self.left, 2)

    @property
    def width(self) -> float:
        width = self.right - self.left
        return round(width - 1 if width >= 2 else max(0.7, width), 2)

    @property
    def height(self) -> float:
        height = HEIGHTS[self.kind]
        if self.kind != "compacted":
            return height
        return round(COMPACTED_LEAST + (height - COMPACTED_LEAST) * self.records_left, 1)

    def is_one_with(self, later: Bar) -> bool:
        """Whether two bars cannot be distinguished. A gap of one unit, or a hole that wide, separates them."""
        hole = self if self.kind == "hole" else later
        if (self.kind == "hole") != (later.kind == "hole") and hole.right - hole.left >= 1:
            return False
        return later.left < self.right or (later.left - self.right < 1 and later.right - self.left < 2)

    def joined(self, later: Bar) -> Bar:
        kind = max(self.kind, later.kind, key=_WEIGHTS.__getitem__)
        return Bar(self.left, max(self.right, later.right), kind, min(self.records_left, later.records_left))


def bars(pieces: Iterable[Piece], begin: int, end: int) -> list[Bar]:
    """Return at most WIDTH bars; neighbours narrower than two units together are one."""
    scale = WIDTH / (end - begin)
    drawn: list[Bar] = []
    for each in pieces:
        left, right = max(0.0, (each.start - begin) * scale), min(float(WIDTH), (each.stop - begin) * scale)
        if right <= left:
            continue
        bar = Bar(left, right, each.kind, each.left)
        if drawn and drawn[-1].is_one_with(bar):
            drawn[-1] = drawn[-1].joined(bar)
        else:
            drawn.append(bar)
    return drawn


def _tiers(local: Sequence[Piece], stored: Sequence[Piece], begin: int, end: int) -> list[tuple[int, list[Bar]]]:
    return [(TOPS["local"], bars(local, begin, end)), (TOPS["remote"], bars(stored, begin, end))]


def _over_time(snapshot: PartitionSnapshot, window: Window) -> dict[str, object] | None:
    """Each segment from the newest record before it to its own newest; None without two different times."""
    parts = snapshot.committed_parts
    first_ms = min((each.min_timestamp_ms for each in parts if each.min_timestamp_ms is not None), default=None)
    reached = _reached((*snapshot.segments, *parts))
    seen = (
        [each for each in some if window.holds(each.base_offset, each.next_offset)]
        for some in (snapshot.segments, parts)
    )
    local, stored = (_timed(snapshot, some, reached, first_ms) for some in seen)
    times = [at for piece in [*local, *stored] for at in (piece.start, piece.stop)]
    if not times or min(times) == max(times):
        return None
    begin, end = min(times), max(times)
    return {
        "words": f"Records from {stamp(begin)} to {stamp(end)}",
        "tiers": _tiers(local, stored, begin, end),
        "ends": (stamp(begin), stamp(end)),
    }


def _reached(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """(next offset, the newest time of all records before it), ascending."""
    found: list[tuple[int, int]] = []
    for each in sorted(segments, key=lambda each: each.next_offset):
        if (newest := each.max_timestamp_ms) is not None:
            found.append((each.next_offset, max(newest, found[-1][1]) if found else newest))
    return found


def _timed(
    snapshot: PartitionSnapshot, segments: Iterable[Segment], reached: Sequence[tuple[int, int]], first_ms: int | None
) -> list[Piece]:
    """Time ranges in offset order; empty for a segment that is not newer than all records before it."""
    found: list[Piece] = []
    for each in sorted(segments, key=lambda each: each.base_offset):
        if (newest := each.max_timestamp_ms) is not None:
            at = bisect_right(reached, each.base_offset, key=lambda each: each[0]) - 1
            start = reached[at][1] if at >= 0 else min(newest, first_ms if first_ms is not None else newest)
            found.append(Piece(start, max(start, newest), *_kind_of(snapshot, each)))
    return found


def _kind_of(snapshot: PartitionSnapshot, segment: Segment) -> tuple[str, float]:
    """Return the KINDS value of a segment, and the share of its offsets that still have a record."""
    if isinstance(segment, SegmentInfo):
        return _local_kind(snapshot, segment), 1.0
    return remote_kind(snapshot, segment), records_left(segment)


def _local_kind(snapshot: PartitionSnapshot, segment: SegmentInfo) -> str:
    if segment.base_offset < segment.next_offset <= snapshot.log_start_offset:
        return "expired"
    is_held = segment.next_offset > segment.base_offset
    return "both" if is_held and snapshot.is_committed(segment.base_offset, segment.next_offset) else "local"


def _number(text: str, default: int) -> int:
    digits = text.replace(",", "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else default
