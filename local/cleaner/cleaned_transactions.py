"""Decide which transaction markers a cleaner pass still needs, from a replay of the pass's batches.

A marker stays if the pass meets a batch with data of its transaction. Otherwise it gets a delete horizon like a
tombstone, and is removed after the horizon. Batches that the cleaner retained empty count as met. The state carries
over from segment to segment of one pass.

The pass reads no remote data. The remote tier may hold data below the first batch of the pass, and records of the same
offsets that the local tier no longer has:

| remote tier at the marker | aborted records there | marker of an abort |
|---|---|---|
| cleaned past the marker | none | removed as above |
| not cleaned past it (`tombstones_below`) | possible | stays with its transaction index entry, met or not |

Without the entry, a reader would take the aborted records for committed ones.
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
    """Takes every transactional batch of a pass in log order.

    `kept` are the entries of the markers that stay.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction], *, tombstones_below: int | None) -> None:
        self.kept: list[AbortedTransaction] = []
        self._tombstones_below = tombstones_below
        unique = {(each.producer_id, each.first_offset): each for each in aborted}
        self._ahead = deque(sorted(unique.values(), key=lambda each: each.first_offset))
        self._aborting: dict[int, _Ongoing] = {}
        self._committing: set[int] = set()

    def meet(self, producer_id: int, last_offset: int) -> None:
        """Add a batch of a transaction. Its data may have been removed."""
        self._begin_upto(last_offset)
        ongoing = self._aborting.get(producer_id)
        if ongoing is None:
            self._committing.add(producer_id)
        else:
            ongoing.is_met = True

    def end(self, producer_id: int, last_offset: int, marker: Marker | None) -> bool:
        """Whether a marker is no longer needed: no batch of its transaction was met.

        False if `marker` is None: the control batch marks something else.
        """
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
