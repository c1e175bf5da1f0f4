"""Selection among several copies of the same offsets: leader epochs decide, as in Kafka.

A bucket filled by brokers may hold the same offsets more than once: a retried copy, two leaders that each copied their
own segments, or the records of a leader that lost an unclean election. A topic of the cluster held the metadata that
selected among them, and is not available. The segments alone are enough: each leader epoch has one leader, and begins
where that leader's log ended.

1. The **lineage** has all (epoch, start) pairs, including the checkpoint stored with the newest segment. Each epoch has
   its lowest known start. Pairs are applied in epoch order: a later epoch that begins at or below an earlier epoch's
   start replaces it.
2. Of a segment these records count: the ones in an epoch of the lineage, before the lineage's next epoch begins.
3. Of the remaining ranges, a segment wholly inside another is not needed. Where two overlap, the later one is read from
   its base on.

Offsets between two segments that no segment holds are gaps, and are reported. Pure functions. Source: kafka
`LeaderEpochFileCache.assign`, `RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest

from local.log.leader_epochs import LeaderEpochs
from remote.segment_entry import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A segment that holds ``[base_offset, next_offset)``.

    `epochs` are pairs (epoch, start), the first at the base; empty if unknown. Of two otherwise equal copies the one
    with the larger `stamp_ms` is newer.
    """

    number: int
    base_offset: int
    next_offset: int
    epochs: tuple[tuple[int, int], ...] = ()
    stamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReadRangeOfCopy:
    """Copy `number` is read from its base up to `next_offset`."""

    number: int
    next_offset: int


def lineage_of(copies: Iterable[Copy], known: Iterable[tuple[int, int]] = ()) -> LeaderEpochs:
    """Return the epochs of the last leader's log. `known` is a checkpoint of that leader."""
    starts: dict[int, int] = {}
    for epoch, start in chain(known, *(copy.epochs for copy in copies)):
        starts[epoch] = min(start, starts.get(epoch, start))
    lineage = LeaderEpochs()
    for epoch, start in sorted(starts.items()):
        lineage = lineage.assign(epoch, start)
    return lineage


def choose(copies: Sequence[Copy], known: Iterable[tuple[int, int]] = ()) -> list[ReadRangeOfCopy]:
    """Return the ranges to read, ascending, without overlaps. `known` is as in `lineage_of`."""
    ends = _ends(lineage_of(copies, known))
    found: list[tuple[Copy, int]] = []
    valid = ((copy, _valid_end(copy, ends)) for copy in copies)
    for copy, end in sorted(valid, key=lambda each: (each[0].base_offset, each[1], each[0].stamp_ms)):
        if end <= copy.base_offset:
            continue
        while found and found[-1][0].base_offset == copy.base_offset:
            found.pop()  # it ends earlier, or is older
        if found and end <= found[-1][1]:
            continue
        if found:
            before, reached = found[-1]
            found[-1] = before, min(reached, copy.base_offset)
        found.append((copy, end))
    return [ReadRangeOfCopy(copy.number, end) for copy, end in found]


def gaps(entries: Iterable[SegmentEntry]) -> list[tuple[int, int]]:
    """Return the offset ranges ``[start, end)`` between entries that no entry holds."""
    return [(one.next_offset, two.base_offset) for one, two in pairwise(entries) if one.next_offset < two.base_offset]


def _ends(lineage: LeaderEpochs) -> dict[int, int | None]:
    """Return for each epoch of the lineage the start of the next one; None for the last."""
    following = zip_longest(lineage.entries, lineage.entries[1:])
    return {epoch: None if after is None else after[1] for (epoch, _), after in following}


def _valid_end(copy: Copy, ends: dict[int, int | None]) -> int:
    """Return the end of the copy's records of the lineage, from its base on; its base if none."""
    reached = copy.base_offset
    for at, (epoch, _) in enumerate(copy.epochs):
        its_end = copy.epochs[at + 1][1] if at + 1 < len(copy.epochs) else copy.next_offset
        if epoch not in ends:
            if its_end == reached:
                continue
            return reached
        end = ends[epoch]
        if end is not None and end < its_end:
            return max(reached, end)
        reached = its_end
    return reached if copy.epochs else copy.next_offset
