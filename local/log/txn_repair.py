"""Rebuild the entries of a ``.txnindex`` from the log, if the index is missing or contradicts the log.

1. Load the producers before the segment: the newest snapshot, and the batches from there on.
2. Replay the segment's batches. Each abort marker that ends an open transaction gives an entry.
3. Keep an entry of the old file if the log has its abort marker and the replay gives no entry. The cleaner has removed
   the records of such a transaction, or they are only in the remote tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from local.errors import Corrupt
from local.index.index_files import slices_of
from local.index.txn_index import AbortedTransaction
from local.index.txn_scan import TransactionScan
from local.log.producer_files import ProducerFiles
from local.log.recovery import replay
from local.names import LOG
from local.segment.segment import Segment
from local.storage import Storage


def entries_again(storage: Storage, directory: str, segment: Segment, bases: Sequence[int]) -> list[AbortedTransaction]:
    """Return the entries of `segment`; `bases` are those of the segments before.

    Raises NotFound, and Corrupt if the log cannot be replayed.
    """
    producers = ProducerFiles(storage, directory, is_onlooker=True).state_at(segment.base_offset, bases)
    found: dict[tuple[int, int], AbortedTransaction] = {}
    scan, path = TransactionScan(), segment.path(LOG)
    for _, data, table in slices_of(segment.read):
        scan.take(data, table)
        for each in replay(producers, data, table, path):
            found[each.producer_id, each.last_offset] = each
    said = scan.found()
    with suppress(Corrupt):
        for each in segment.aborted():
            place = each.producer_id, each.last_offset
            abort = said.aborts.get(place)
            if abort is not None and abort.first_record is None and place not in found:
                found[place] = each
    return sorted(found.values(), key=lambda each: each.last_offset)
