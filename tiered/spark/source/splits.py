"""The tasks of a read: ranges of offsets, cut by arithmetic over manifests, without a request.

A record belongs to the task whose offsets ``[start, next)`` hold its offset. A task finds the batches with such offsets
by the indexes of its segments, and drops their other records. The ranges join without an overlap, so no record is lost
or repeated, wherever a cut lies: in a batch, in a gap of compaction, or in a segment that was rewritten since the plan.

| parts of the manifest | tasks |
|---|---|
| neighbouring segments and pages of up to `split_bytes` together | the offsets from the first base to the last end |
| a larger segment | equal shares of its offsets |
| a larger page | share n of m of its segments, which the task computes from the page (`share_offsets`) |
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from operator import attrgetter
from struct import Struct

from local.index.txn_index import AbortedTransaction
from remote.external.external_layout import OURS
from remote.gc.pins import Pin
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry

SPLIT_BYTES = 64 << 20
TASKS_MAX = 100_000  # without `splitBytes`: a larger read has larger tasks; Spark's driver schedules no more well
OTHERS = 8  # pins; of a thousand partitions, each is checked by one task in 125
Part = PageEntry | SegmentEntry
Given = tuple[tuple[Part, ...], tuple[AbortedTransaction, ...]]
Cut = tuple[int, int, int, int, int]  # start offset, next offset, bytes, share, shares
# What a task carries: number of the task, of its range, start and next offset, bytes, share, number of shares.
_HEAD = Struct("<IIqqqII")
_base_offset, _next_offset = attrgetter("base_offset"), attrgetter("next_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Offsets ``[start_offset, next_offset)`` of one partition to read, by one manifest.

    `view` names the compacted view to read, None the log. `is_committed`: without the records of aborted transactions.
    `layout` is the bucket's (`remote.external.external_layout`).
    """

    topic: str
    partition: int
    prefix: str
    head_sequence: int
    commit_id: str
    start_offset: int
    next_offset: int
    view: str | None = None
    is_committed: bool = False
    pin: Pin | None = None
    layout: str = OURS.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """One partition's part of a read; `parts` are the manifest's, ascending. `aborted` is for an external layout."""

    read: ReadRange
    parts: tuple[Part, ...]
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(ReadRange):
    """One task: `share` of `shares` of the offsets. It renews the pins of `others`, partitions of the same read.

    `size_bytes` of batches are expected. An external layout has no manifest in the bucket: `given` are the segments
    and aborted transactions of the task.
    """

    size_bytes: int
    share: int = 0
    shares: int = 1
    others: tuple[tuple[str, Pin], ...] = ()
    given: Given = ((), ())


class ReadPlan(Sequence[Split]):
    """The tasks of a read, 40 bytes each. They share the ranges, which `common` sends to a worker once.

    `parts` are the values that tasks carry; in a worker `split` makes the task of such a value.
    """

    def __init__(self, ranges: Sequence[ReadRange] = (), heads: bytes = b"", given: Sequence[Given] = ()) -> None:
        self._ranges, self._heads, self._given = tuple(ranges), heads, given
        self._pins = list(dict.fromkeys((each.prefix, each.pin) for each in ranges if each.pin is not None))

    def __len__(self) -> int:
        return len(self._heads) // _HEAD.size

    def __getitem__(self, index: int) -> Split:  # type: ignore[override]
        return self.split(self.part(range(len(self))[index]))

    def common(self) -> ReadPlan:
        return ReadPlan(self._ranges)

    def parts(self) -> Iterator[tuple[bytes, Given]]:
        return map(self.part, range(len(self)))

    def part(self, number: int) -> tuple[bytes, Given]:
        head = self._heads[number * _HEAD.size : (number + 1) * _HEAD.size]
        return head, self._given[number] if self._given else ((), ())

    def split(self, part: tuple[bytes, Given]) -> Split:
        number, at, start, end, size_bytes, share, shares = _HEAD.unpack(part[0])
        facts = {field.name: getattr(self._ranges[at], field.name) for field in fields(ReadRange)}
        facts |= {"start_offset": start, "next_offset": end, "size_bytes": size_bytes, "given": part[1]}
        # Up to OTHERS pins of other partitions, in rotation: their tasks may wait for hours.
        count = min(OTHERS, len(self._pins))
        turn = (self._pins[(number * count + step) % len(self._pins)] for step in range(count))
        others = tuple(each for each in turn if each[0] != facts["prefix"])
        return Split(**facts, share=share, shares=shares, others=others)

    def tasks(self) -> Iterator[tuple[ReadRange, int, int, int]]:
        """The range, start offset, next offset and bytes of each task, without the task itself."""
        return ((self._ranges[at], start, end, size) for _, at, start, end, size, *_ in _HEAD.iter_unpack(self._heads))

    def pins(self) -> list[tuple[str, Pin]]:
        """The pins of the ranges, each with its partition's prefix."""
        return list(self._pins)


def plan_splits(
    ranges: Sequence[PartitionRange],
    *,
    split_bytes: int | None = None,
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> ReadPlan:
    """Tasks that together hold every offset of `ranges` with a segment, in the order of the ranges and their offsets.

    A task reads one partition. `split_bytes` None: SPLIT_BYTES, or more for a read of more than TASKS_MAX such tasks.
    `partitions_min` makes smaller splits, as far as there are offsets. `records_max` limits the offsets of a split.
    """
    total = sum(
        bytes_between(part, each.read.start_offset, each.read.next_offset) for each in ranges for part in each.parts
    )
    size_max = max(SPLIT_BYTES, -(-total // TASKS_MAX)) if split_bytes is None else split_bytes
    if partitions_min is not None:
        size_max = max(1, min(size_max, -(-total // partitions_min)))
    heads, given, count = bytearray(), list[Given](), 0
    for at, each in enumerate(ranges):
        start, end = each.read.start_offset, each.read.next_offset
        pieces = 1 if records_max is None else max(1, -(-(end - start) // records_max))
        for bounds in pairwise(_at(start, end, piece, pieces) for piece in range(pieces + 1)):
            for cut in _tasks(_touching(each.parts, *bounds), *bounds, size_max):
                heads += _HEAD.pack(count, at, *cut)
                count += 1
                if each.read.layout != OURS.layout:
                    aborted = (one for one in each.aborted if one.first_offset < cut[1] and one.last_offset >= cut[0])
                    given.append((_touching(each.parts, cut[0], cut[1]), tuple(aborted)))
    return ReadPlan([each.read for each in ranges], bytes(heads), given)


def share_offsets(rows: Sequence[SegmentEntry], first: int, count: int, split: Split) -> tuple[int, int]:
    """The offsets of `split`, whose segments are `rows` from `first` on. Neighbouring shares join."""
    start, end = split.start_offset, split.next_offset

    def cut(share: int) -> int:
        row, rest = divmod(share * count, split.shares)
        if not 0 < share < split.shares or not count:
            return end if share else start
        entry = rows[first + row]
        return min(max(_at(entry.base_offset, entry.next_offset, rest, split.shares), start), end)

    return cut(split.share), cut(split.share + 1)


def bytes_between(part: Part, start: int, end: int) -> int:
    """Bytes by the manifest alone; a part that is only partly inside counts by its share of offsets."""
    inside = max(0, min(part.next_offset, end) - max(part.base_offset, start))
    return part.size_bytes * inside // (part.next_offset - part.base_offset)


def _at(start: int, end: int, share: int, shares: int) -> int:
    return start + (end - start) * share // shares


def _touching(parts: tuple[Part, ...], start: int, end: int) -> tuple[Part, ...]:
    return parts[bisect_right(parts, start, key=_next_offset) : bisect_left(parts, end, key=_base_offset)]


def _tasks(parts: Sequence[Part], start: int, end: int, split_bytes: int) -> Iterator[Cut]:
    """(start offset, next offset, bytes, share, shares) of each task."""
    first = after = size = 0
    for cut in chain.from_iterable(_cut(part, start, end, split_bytes) for part in parts):
        if size and (cut[4] > 1 or size + cut[2] > split_bytes):
            yield first, after, size, 0, 1
            size = 0
        if cut[4] > 1:
            yield cut
            continue
        first, after, size = cut[0] if size == 0 else first, cut[1], size + cut[2]
    if size:
        yield first, after, size, 0, 1


def _cut(part: Part, start: int, end: int, split_bytes: int) -> Iterator[Cut]:
    first, after = max(part.base_offset, start), min(part.next_offset, end)
    if first >= after or not part.size_bytes:
        return
    size = max(1, bytes_between(part, start, end))
    shares = -(-size // split_bytes)
    for share in range(shares):
        size_bytes = max(1, _at(0, size, share + 1, shares) - _at(0, size, share, shares))
        if isinstance(part, PageEntry) and shares > 1:
            yield first, after, size_bytes, share, shares
        elif (cut := _at(first, after, share, shares)) < (following := _at(first, after, share + 1, shares)):
            yield cut, following, size_bytes, 0, 1
