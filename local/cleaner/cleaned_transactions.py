"""Which transaction markers a pass of the cleaner still needs: the log replayed, from the first batch it looks at on.

A marker stays while any batch with data of its transaction was met in this pass. After that it is of no use: it gets a
delete horizon like a tombstone and goes when that has passed. Batches that the cleaner retained empty count as met.
The state is carried from segment to segment of one pass.

The remote tier's data is not met, be it below the first batch of the pass or beside what the disk has of the same
offsets. It holds no records of aborted transactions where it was cleaned past the marker; where it was not
(`tombstones_below`), an abort keeps its marker and its entry of the transaction index whatever was met, for without the
entry those records would be read as committed.
Source: kafka `Cleaner.CleanedTransactionMetadata`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from local.index.txn_index import AbortedTransaction
from local.records.batch import Marker


@dataclass(slots=True)
class _Ongoing:
    aborted: AbortedTransaction
    is_met: bool = False


class CleanedTransactions:
    """Told of every transactional batch of a pass in the order of the log; `kept` are the entries of kept markers."""

    def __init__(self, aborted: Iterable[AbortedTransaction], *, tombstones_below: int | None) -> None:
        self.kept: list[AbortedTransaction] = []
        self._tombstones_below = tombstones_below
        unique = {(each.producer_id, each.first_offset): each for each in aborted}
        self._ahead = deque(sorted(unique.values(), key=lambda each: each.first_offset))
        self._aborting: dict[int, _Ongoing] = {}
        self._committing: set[int] = set()

    def meet(self, producer_id: int, last_offset: int) -> None:
        """A batch with data, perhaps none any more, of a transaction."""
        self._begin_upto(last_offset)
        ongoing = self._aborting.get(producer_id)
        if ongoing is None:
            self._committing.add(producer_id)
        else:
            ongoing.is_met = True

    def end(self, producer_id: int, last_offset: int, marker: Marker | None) -> bool:
        """Whether a marker is of no use any more: its transaction was not met. None: it marks something else."""
        self._begin_upto(last_offset)
        if marker is None:
            return False
        if marker.is_commit:
            is_met = producer_id in self._committing
            self._committing.discard(producer_id)
            return not is_met
        ongoing = self._aborting.pop(producer_id, None)
        if ongoing is None or (not ongoing.is_met and self.may_leave(ongoing.aborted.last_offset)):
            return True
        self.kept.append(ongoing.aborted)
        return False

    def may_leave(self, offset: int) -> bool:
        """Whether nothing in the remote tier needs a tombstone or marker at `offset` (invariant I5)."""
        return self._tombstones_below is None or offset < self._tombstones_below

    def _begin_upto(self, offset: int) -> None:
        while self._ahead and self._ahead[0].first_offset <= offset:
            begun = self._ahead.popleft()
            self._aborting.setdefault(begun.producer_id, _Ongoing(begun))
