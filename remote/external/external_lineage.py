"""Which of several copies of the same offsets are the log's: leader epochs decide, as in Kafka.

A bucket that brokers filled may hold the same offsets more than once: a copy that was tried again, two leaders that
each copied their own segments, and the records of a leader that lost an unclean election. The metadata that said which
of them counts lay in a topic of the cluster. What the segments themselves say is enough: each leader epoch has one
leader, and begins where that leader's log ended. So

1. the **lineage** is made of all (epoch, start) pairs, those of the checkpoint beside the newest segment included, the
   lowest start known of each, applied in order of epochs: a later epoch that begins at or below an earlier one's start
   takes its place;
2. of a segment those records count that lie in an epoch of the lineage, before the next one of it begins;
3. of what is left, a segment wholly inside another is not needed; where two overlap, the later one is read from its
   base on.

Offsets that no segment holds between two that do are gaps, and are named. Pure functions. Source: kafka
`LeaderEpochFileCache.assign`, `RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest

from local.log.leader_epochs import LeaderEpochs
from remote.segment_entry import RemoteSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A segment that holds ``[base_offset, next_offset)``. `epochs` are pairs (epoch, start), the first at the base;
    none where nobody knows. Of two that say the same the one with the larger `stamp_ms` is newer."""

    number: int
    base_offset: int
    next_offset: int
    epochs: tuple[tuple[int, int], ...] = ()
    stamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """Copy `number` is read from its base up to `next_offset`."""

    number: int
    next_offset: int


def lineage_of(copies: Iterable[Copy], known: Iterable[tuple[int, int]] = ()) -> LeaderEpochs:
    """The epochs of the last leader's log, as far as `copies` tell, and `known`: a checkpoint of that leader's."""
    starts: dict[int, int] = {}
    for epoch, start in chain(known, *(copy.epochs for copy in copies)):
        starts[epoch] = min(start, starts.get(epoch, start))
    lineage = LeaderEpochs()
    for epoch, start in sorted(starts.items()):
        lineage = lineage.assign(epoch, start)
    return lineage


def choose(copies: Sequence[Copy], known: Iterable[tuple[int, int]] = ()) -> list[Chosen]:
    """What is to be read, ascending by base offset, without overlaps. `known` as `lineage_of` takes it."""
    ends = _ends(lineage_of(copies, known))
    found: list[tuple[Copy, int]] = []
    valid = ((copy, _valid_end(copy, ends)) for copy in copies)
    for copy, end in sorted(valid, key=lambda each: (each[0].base_offset, each[1], each[0].stamp_ms)):
        if end <= copy.base_offset:
            continue
        while found and found[-1][0].base_offset == copy.base_offset:
            found.pop()  # it reaches no further, or is older
        if found and end <= found[-1][1]:
            continue
        if found:
            before, reached = found[-1]
            found[-1] = before, min(reached, copy.base_offset)
        found.append((copy, end))
    return [Chosen(copy.number, end) for copy, end in found]


def gaps(rows: Iterable[RemoteSegment]) -> list[tuple[int, int]]:
    """The offsets ``[start, end)`` that lie between rows and in none."""
    return [(one.next_offset, two.base_offset) for one, two in pairwise(rows) if one.next_offset < two.base_offset]


def _ends(lineage: LeaderEpochs) -> dict[int, int | None]:
    """For each epoch of the lineage where the next one begins; None for the last."""
    following = zip_longest(lineage.entries, lineage.entries[1:])
    return {epoch: None if after is None else after[1] for (epoch, _), after in following}


def _valid_end(copy: Copy, ends: dict[int, int | None]) -> int:
    """Up to where it holds records of the lineage, from its base on; its base where none."""
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
