"""The leader epochs of a log with their start offsets: they tell two histories apart.

Stored in ``leader-epoch-checkpoint``. Source: kafka `LeaderEpochFileCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from local.format.columns import BatchTable


class EpochRange(NamedTuple):
    """Offsets ``[base_offset, next_offset)`` of one leader epoch. Epoch None: records without an epoch."""

    epoch: int | None
    base_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """Pairs (epoch, start offset), both strictly ascending."""

    entries: tuple[tuple[int, int], ...] = ()

    @property
    def latest(self) -> int | None:
        return self.entries[-1][0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> LeaderEpochs:
        """Return the epochs with `epoch` starting at `start_offset`, without the entries that contradict it."""
        if self.entries and self.entries[-1][0] == epoch and start_offset >= self.entries[-1][1]:
            return self
        before = tuple((e, s) for e, s in self.entries if e < epoch and s < start_offset)
        return LeaderEpochs((*before, (epoch, start_offset)))

    def with_batches(self, table: BatchTable, below: int | None = None) -> LeaderEpochs:
        """Return the epochs after the batches that begin below `below`. Epoch -1 adds nothing."""
        import numpy as np

        found = self
        for batch in np.flatnonzero(np.diff(table.leader_epochs, prepend=-2)).tolist():
            epoch, start = int(table.leader_epochs[batch]), int(table.base_offsets[batch])
            if epoch >= 0 and (below is None or start < below):
                found = found.assign(epoch, start)
        return found

    def covering(self, offset: int) -> LeaderEpochs:
        """Return the epochs extended down to `offset`: epoch 0 holds the records before the first known epoch."""
        if self.entries and self.entries[0][1] <= offset:
            return self
        return LeaderEpochs(((0, offset), *(entry for entry in self.entries if entry[0] > 0)))

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch in which the record at `offset` was or would be written; None if unknown."""
        return next((epoch for epoch, start in reversed(self.entries) if start <= offset), None)

    def truncate_from_end(self, offset: int) -> LeaderEpochs:
        """Return the epochs without those that start at or after `offset`."""
        return LeaderEpochs(tuple((e, s) for e, s in self.entries if s < offset))

    def truncate_from_start(self, offset: int) -> LeaderEpochs:
        """Return the epochs of a log that starts at `offset`: the epoch that holds it starts there."""
        below = [e for e, s in self.entries if s <= offset]
        above = tuple((e, s) for e, s in self.entries if s > offset)
        return LeaderEpochs(((below[-1], offset), *above) if below else above)

    def between(self, base_offset: int, next_offset: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of ``[base_offset, next_offset)``, the first of them starting at `base_offset`."""
        return self.truncate_from_end(next_offset).truncate_from_start(base_offset).entries


def joined_ranges(ranges: Iterable[EpochRange]) -> list[EpochRange]:
    """Merge adjacent ranges of one epoch, without empty ranges. `ranges` must ascend."""
    found: list[EpochRange] = []
    for each in ranges:
        last = found[-1] if found else None
        if last is not None and last.epoch == each.epoch and last.base_offset <= each.base_offset <= last.next_offset:
            found[-1] = last._replace(next_offset=max(last.next_offset, each.next_offset))
        elif each.base_offset < each.next_offset:
            found.append(each)
    return found


def ranges_outside(ranges: Sequence[EpochRange], excluded: Sequence[EpochRange]) -> list[EpochRange]:
    """Return the parts of `ranges` at offsets outside of all `excluded`. Both ascend and are disjoint."""
    outside: list[EpochRange] = []
    first = 0
    for each in ranges:
        while first < len(excluded) and excluded[first].next_offset <= each.base_offset:
            first += 1
        at, number = each.base_offset, first
        while number < len(excluded) and excluded[number].base_offset < each.next_offset:
            if excluded[number].base_offset > at:
                outside.append(each._replace(base_offset=at, next_offset=excluded[number].base_offset))
            at = max(at, excluded[number].next_offset)
            number += 1
        if at < each.next_offset:
            outside.append(each._replace(base_offset=at))
    return outside
