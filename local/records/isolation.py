"""Which records a reader may see of transactions: Kafka's two levels, and the rule that tells aborted batches.

Under `READ_COMMITTED` a read ends at the last stable offset, below which every transaction is decided, and the records
of aborted transactions are left out. Which those are is a pure question: a transaction belongs to one producer, the
transactions of a producer never overlap, and an entry of the transaction index says where one began and where its
abort marker lies. So a batch is aborted when it is transactional, of that producer, and lies between the two.
Kafka's consumer, which is not told where the marker lies, finds it in the stream; the outcome is the same.
Source: kafka `IsolationLevel`, `CompletedFetch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from local.format.columns import BatchTable, Columns
    from local.index.txn_index import AbortedTransaction


class Isolation(Enum):
    """Kafka's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


def aborted_batches(table: BatchTable, aborted: Sequence[AbortedTransaction]) -> NDArray[np.bool_]:
    """A flag per batch of `table`: its records belong to one of the `aborted` transactions. Never a control batch.

    `aborted` may be in any order and may hold transactions that lie elsewhere. Base offsets of `table` ascend.
    """
    import numpy as np

    from local.format.batch_header import CONTROL, TRANSACTIONAL

    found = np.zeros(len(table), np.bool_)
    for each in aborted:
        first, end = np.searchsorted(table.base_offsets, (each.first_offset, each.last_offset))
        found[first:end] |= table.producer_ids[first:end] == each.producer_id
    of_a_transaction: NDArray[np.bool_] = (table.attributes & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL
    return found & of_a_transaction


def without_aborted(columns: Columns, aborted: Sequence[AbortedTransaction]) -> Columns:
    """`columns` without the records of aborted transactions; its table stays whole."""
    if not aborted:
        return columns
    flags = aborted_batches(columns.table, aborted)
    return columns.select(~flags[columns.batch_ordinals]) if flags.any() else columns
