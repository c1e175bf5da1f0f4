"""Splits: tasks made of segment entries, as pure functions without Spark or a store.

A `Split` is a run of neighbouring pieces of one partition, packed up to `split_bytes`. Larger segments are cut at batch
starts, which their offset index names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from local.index.txn_index import AbortedTransaction
from remote.external.external_layout import OURS
from remote.gc.pins import Pin
from remote.segment_entry import SegmentEntry

Entries = Sequence[tuple[int, int]]  # an offset index: (last offset of a batch, its position), ascending
OFFSET_MAX = 2**63 - 1
OTHERS = 8  # pins; of a thousand partitions, each is checked by one task in 125
THREADS = 16  # requests in parallel; the driver waits for nothing else, and a store's client has 32 connections
INDEX_THREADS = 8  # indexes of cut segments in parallel; a large segment's decoded index has tens of megabytes
T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], of: Iterable[T], threads_max: int = THREADS) -> list[R]:
    """The results of `work`, computed in parallel, in order. Raises the first failure in that order."""
    with ThreadPoolExecutor(threads_max, "tiered-plan") as threads:
        return list(threads.map(work, of))  # after an error, map cancels the work that has not begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole batches of one segment: the batches with last offsets in ``[from_last, upto_last)``.

    By the offset index they are in the bytes ``[position, end_position)``. The offsets define the piece: a task
    compares both positions with the batches there, so a wrong index entry cannot change it.
    """

    segment: SegmentEntry
    position: int
    end_position: int
    from_last: int = 0
    upto_last: int = OFFSET_MAX

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """Offsets ``[start_offset, next_offset)`` of one partition to read, by the manifest `head_sequence`.

    Records of the `aborted` transactions are left out. `layout` is the bucket's (`remote.external.external_layout`).
    """

    topic: str
    partition: int
    prefix: str
    head_sequence: int
    start_offset: int
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    pin: Pin | None = None
    layout: str = OURS.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange(ReadRange):
    """One partition's part of a read; `segments` are the manifest's entries, ascending."""

    segments: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(ReadRange):
    """One task; drops records outside its offsets. It renews the pins of `others`, partitions of the same read."""

    pieces: tuple[Piece, ...]
    others: tuple[tuple[str, Pin], ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


def plan_splits(
    ranges: Sequence[PartitionRange],
    index_of: Callable[[PartitionRange, SegmentEntry], Entries],
    *,
    split_bytes: int,
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> list[Split]:
    """Tasks that together hold every batch of `ranges` once, in the order of the ranges and their offsets.

    `index_of` returns a segment's offset index; it is called only for segments to cut, in parallel. `partitions_min`
    makes smaller splits, as far as batches can be separated. `records_max` limits the offsets of a split.
    """
    ranges = [replace(each, segments=wanted_segments(each)) for each in ranges]
    if partitions_min is not None:
        total = sum(segment.size_bytes for each in ranges for segment in each.segments)
        split_bytes = max(1, min(split_bytes, -(-total // partitions_min)))
    if records_max is not None:
        ranges = [part for each in ranges for part in _of_records(each, records_max)]
    large = [(each, segment) for each in ranges for segment in each.segments if segment.size_bytes > split_bytes]

    def cut_at_index(pair: tuple[PartitionRange, SegmentEntry]) -> list[Piece]:
        (each, segment), entries = pair, index_of(*pair)
        return list(_cut(trimmed(entries, segment, each.start_offset, each.next_offset), entries, split_bytes))

    cut = iter(side_by_side(cut_at_index, large, INDEX_THREADS))
    splits = []
    for each in ranges:
        pieces = [
            piece
            for segment in each.segments
            for piece in (
                next(cut)
                if segment.size_bytes > split_bytes
                else [Piece(segment=segment, position=0, end_position=segment.size_bytes)]
            )
        ]
        splits += [_split(each, run) for run in _packed(pieces, split_bytes)]
    return splits


def wanted_segments(each: PartitionRange) -> tuple[SegmentEntry, ...]:
    return tuple(
        segment
        for segment in each.segments
        if segment.size_bytes
        and max(segment.base_offset, each.start_offset) < min(segment.next_offset, each.next_offset)
    )


def _of_records(each: PartitionRange, records_max: int) -> Iterator[PartitionRange]:
    span = each.next_offset - each.start_offset
    shares = -(-span // records_max)
    bounds = [each.start_offset + share * span // shares for share in range(shares + 1)] if span else []
    for start, end in pairwise(bounds):
        first = bisect_right(each.segments, start, key=lambda segment: segment.next_offset)
        past = bisect_left(each.segments, end, key=lambda segment: segment.base_offset)
        if first < past:
            yield replace(each, start_offset=start, next_offset=end, segments=each.segments[first:past])


def trimmed(entries: Entries, segment: SegmentEntry, start_offset: int, next_offset: int) -> Piece:
    """The segment without leading and trailing batches that are outside the offsets by the index.

    An entry names the last offset of the batch at its position: everything from the **following** entry on is above it.
    An entry outside the segment, or before the other cut, cuts nothing.
    """
    first = bisect_right(entries, start_offset, key=itemgetter(0)) - 1
    past = bisect_left(entries, next_offset - 1, key=itemgetter(0)) + 1
    position = entries[first][1] if first >= 0 else 0
    end_position = entries[past][1] if past < len(entries) else segment.size_bytes
    if not 0 <= position < segment.size_bytes:
        position = 0
    if not position < end_position <= segment.size_bytes:
        end_position = segment.size_bytes
    return Piece(segment=segment, position=position, end_position=end_position)


def is_partial(segment: SegmentEntry, start_offset: int, next_offset: int) -> bool:
    return segment.base_offset < start_offset or segment.next_offset > next_offset


def with_others(splits: Sequence[Split]) -> list[Split]:
    """Add to each split up to OTHERS pins of other partitions, in rotation: their tasks may wait for hours."""
    pins = list(dict.fromkeys((split.prefix, split.pin) for split in splits if split.pin is not None))
    found, at = [], 0
    for split in splits:
        turn = [pins[(at + step) % len(pins)] for step in range(min(OTHERS, len(pins)))]
        at += len(turn)
        found.append(replace(split, others=tuple(each for each in turn if each[0] != split.prefix)))
    return found


def _cut(piece: Piece, entries: Entries, split_bytes: int) -> Iterator[Piece]:
    """Equal shares up to `split_bytes`, as nearly as the index allows; an entry that does not ascend cuts nothing."""
    shares = -(-piece.size_bytes // split_bytes)
    inside = [entry for entry in entries if piece.position < entry[1] < piece.end_position]
    starts = [position for _, position in inside]
    position, from_last = piece.position, piece.from_last
    for share in range(1, shares):
        ideal = piece.position + share * piece.size_bytes // shares
        at = bisect_left(starts, ideal)
        if at == len(starts):
            break
        if starts[at] > position and inside[at][0] > from_last:
            last = inside[at][0]
            yield replace(piece, position=position, end_position=starts[at], from_last=from_last, upto_last=last)
            position, from_last = starts[at], last
    if position < piece.end_position:
        yield replace(piece, position=position, from_last=from_last)


def _packed(pieces: Sequence[Piece], split_bytes: int) -> Iterator[list[Piece]]:
    run: list[Piece] = []
    size_bytes = 0
    for piece in pieces:
        if run and size_bytes + piece.size_bytes > split_bytes:
            yield run
            run, size_bytes = [], 0
        run.append(piece)
        size_bytes += piece.size_bytes
    if run:
        yield run


def _split(each: PartitionRange, pieces: Sequence[Piece]) -> Split:
    shared = {field.name: getattr(each, field.name) for field in fields(ReadRange)}
    start, end = pieces[0].segment.base_offset, pieces[-1].segment.next_offset
    shared["aborted"] = tuple(one for one in each.aborted if one.first_offset < end and one.last_offset >= start)
    return Split(**shared, pieces=tuple(pieces))
