"""Kafka's two isolation levels, and the rule that finds aborted batches.

Under `READ_COMMITTED` a read ends at the last stable offset: every transaction below it is committed or aborted. The
records of aborted transactions are left out. A batch is aborted if all of these hold:

1. The batch is transactional.
2. Its producer id is the producer id of an entry of the transaction index.
3. Its base offset is between the transaction's first offset and its abort marker, both from that entry.

The rule is exact: a transaction has one producer, and the transactions of one producer never overlap.
Kafka's consumer does not get the position of the marker and finds it in the stream; the result is the same.
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
    """A flag per batch of `table`: whether its records belong to an aborted transaction.

    False for control batches. `aborted` may be in any order and may hold transactions outside `table`.
    The base offsets of `table` must ascend.
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
    """`columns` without the records of aborted transactions. The table is unchanged."""
    if not aborted:
        return columns
    flags = aborted_batches(columns.table, aborted)
    return columns.select(~flags[columns.batch_ordinals]) if flags.any() else columns
