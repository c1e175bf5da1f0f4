"""The segments of both tiers as strips over offsets and over time; colours tell what is where, what became of it.

| word | above, on the disk | below, in the bucket |
|---|---|---|
| local | only this disk has it | |
| both | the bucket has it, too | |
| remote | | readers find it there |
| compacted | | the same, and the cleaner has been through it |
| expired | below the log start: its files or its row are about to go | the same |

What lies too close together to be told apart is drawn as one. The table on the same page says the same in words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from local.segment_info import SegmentInfo
from policies.snapshot import PartitionSnapshot
from remote.head import SpillRow
from remote.segment import RemoteSegment
from tiered.units import counted
from tiered.web.html import Html, tag
from tiered.web.parts import stamp

WIDTH = 1000  # of a strip, in its own units
STRIP = 25
TOPS = {"local": 10, "remote": 55}
Row: TypeAlias = tuple[int, int, int | None, str]  # base offset, next offset, newest record, kind
KINDS = ("local", "both", "remote", "compacted", "expired")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an axis, half open, and what lies there."""

    start: int
    stop: int
    kind: str


def segment_map(snapshot: PartitionSnapshot) -> Html:
    """Both drawings, the key, and in words what they span."""
    local, stored = local_pieces(snapshot), remote_pieces(snapshot)
    begin = min([snapshot.log_start_offset, *(each.start for each in [*local, *stored])])
    end = max(snapshot.next_offset, begin + 1)
    words = f"Offsets {begin:,} to {end:,}: {counted(len(local), 'local segment')}, {snapshot.committed_count:,} remote"
    used = [kind for kind in KINDS if any(each.kind == kind for each in [*local, *stored])]
    return tag(
        "section",
        tag("h2", "Segments"),
        _strips("map-offsets", words, local, stored, begin, end),
        tag("p", f"{words}. Above the disk, below the bucket.", _key(used)),
        _over_time(snapshot),
    )


def local_pieces(snapshot: PartitionSnapshot) -> list[Piece]:
    """The disk's segments, by offset."""
    return [Piece(each.base_offset, each.next_offset, _local_kind(snapshot, each)) for each in snapshot.segments]


def remote_pieces(snapshot: PartitionSnapshot) -> list[Piece]:
    """What the bucket's rows and pages of rows hold, by offset."""
    found = []
    for row in snapshot.committed_parts:
        ranges = row.ranges() if isinstance(row, SpillRow) else [(row.base_offset, row.next_offset)]
        found += [Piece(start, stop, remote_kind(snapshot, row)) for start, stop in ranges]
    return sorted(found, key=lambda each: each.start)


def remote_kind(snapshot: PartitionSnapshot, row: RemoteSegment | SpillRow) -> str:
    """Which of KINDS a row is."""
    if row.next_offset <= snapshot.log_start_offset:
        return "expired"
    return "compacted" if row.cleaned_through is not None else "remote"


def bars(pieces: Iterable[Piece], begin: int, end: int, top: int) -> list[Html]:
    """The ground, and at most WIDTH bars: neighbours of one kind that are narrower than two units together are one."""
    scale = WIDTH / (end - begin)
    drawn: list[tuple[float, float, str]] = []
    for each in pieces:
        left, right = (each.start - begin) * scale, (each.stop - begin) * scale
        if right <= left:
            continue
        before = drawn[-1] if drawn else None
        if before is not None and (left < before[1] or right - before[0] < 2):
            kind = before[2] if before[1] - before[0] >= right - left else each.kind
            drawn[-1] = (before[0], max(before[1], right), kind)
        else:
            drawn.append((left, right, each.kind))
    back = tag("rect", class_="back", x=0, y=top, width=WIDTH, height=STRIP)
    return [back, *(_bar(left, right, kind, top) for left, right, kind in drawn)]


def _bar(left: float, right: float, kind: str, top: int) -> Html:
    """Expired ones are low: what differs by colour alone some do not tell apart."""
    height = STRIP // 3 if kind == "expired" else STRIP
    width = round(max(0.7, right - left - 1), 2)
    return tag("rect", class_=kind, x=round(left, 2), y=top + STRIP - height, width=width, height=height)


def _strips(id_: str, words: str, local: Sequence[Piece], stored: Sequence[Piece], begin: int, end: int) -> Html:
    return tag(
        "svg",
        tag("title", words),
        bars(local, begin, end, TOPS["local"]),
        bars(stored, begin, end, TOPS["remote"]),
        id=id_,
        viewBox=f"0 0 {WIDTH} 90",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )


def _over_time(snapshot: PartitionSnapshot) -> Html | None:
    """Each segment from the newest record before it to its own newest; None without two different times."""
    here = [
        (each.base_offset, each.next_offset, each.max_timestamp_ms, _local_kind(snapshot, each))
        for each in snapshot.segments
    ]
    there = [
        (each.base_offset, each.next_offset, each.max_timestamp_ms, remote_kind(snapshot, each))
        for each in snapshot.committed_parts
    ]
    first = [each.min_timestamp_ms for each in snapshot.committed_parts if each.min_timestamp_ms is not None]
    reached = _reached([*here, *there])
    local, stored = (_timed(rows, reached, min(first, default=None)) for rows in (here, there))
    times = [at for piece in [*local, *stored] for at in (piece.start, piece.stop)]
    if not times or min(times) == max(times):
        return None
    words = f"Records from {stamp(min(times))} to {stamp(max(times))}"
    return tag("div", _strips("map-times", words, local, stored, min(times), max(times)), tag("p", f"{words}."))


def _reached(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """(next offset, the newest time of all records before it), ascending."""
    found: list[tuple[int, int]] = []
    for _, next_offset, newest, _ in sorted(rows, key=lambda row: row[1]):
        if newest is not None:
            found.append((next_offset, max(newest, found[-1][1]) if found else newest))
    return found


def _timed(rows: Iterable[Row], reached: Sequence[tuple[int, int]], first_ms: int | None) -> list[Piece]:
    """Stretches of time in the order of offsets; a time before those of older records moves nothing."""
    found: list[Piece] = []
    for base_offset, _, newest, kind in sorted(rows, key=lambda row: row[0]):
        if newest is not None:
            at = bisect_right(reached, base_offset, key=lambda each: each[0]) - 1
            start = reached[at][1] if at >= 0 else min(newest, first_ms if first_ms is not None else newest)
            found.append(Piece(start, max(start, newest), kind))
    return found


def _local_kind(snapshot: PartitionSnapshot, segment: SegmentInfo) -> str:
    if segment.base_offset < segment.next_offset <= snapshot.log_start_offset:
        return "expired"
    is_held = segment.next_offset > segment.base_offset
    return "both" if is_held and snapshot.is_committed(segment.base_offset, segment.next_offset) else "local"


def _key(kinds: Sequence[str]) -> list[Html]:
    return [
        tag("span", " ", tag("span", "■", class_=f"key {kind}", aria_hidden="true"), f" {kind}", class_="short")
        for kind in kinds
    ]
