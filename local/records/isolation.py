"""Kafka's two isolation levels, and the rule that finds aborted batches.

A transactional batch is aborted if an entry of the transaction index has its producer id and encloses its base offset
between first offset and abort marker: the transactions of one producer never overlap. Source: kafka `IsolationLevel`,
`CompletedFetch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from local.format.columns import BatchTable, Columns, Flags
    from local.index.txn_index import AbortedTransaction


class Isolation(Enum):
    """Kafka's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


def aborted_batches(table: BatchTable, aborted: Sequence[AbortedTransaction]) -> Flags:
    """Whether each batch of `table` holds records of an aborted transaction. Base offsets must ascend."""
    import numpy as np

    from local.format.batch_header import CONTROL, TRANSACTIONAL

    found = np.zeros(len(table), np.bool_)
    for each in aborted:
        first, end = np.searchsorted(table.base_offsets, (each.first_offset, each.last_offset))
        found[first:end] |= table.producer_ids[first:end] == each.producer_id
    of_a_transaction: Flags = (table.attributes & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL
    return found & of_a_transaction


def without_aborted(columns: Columns, aborted: Sequence[AbortedTransaction]) -> Columns:
    """`columns` without the records of aborted transactions. The table is unchanged."""
    if not aborted:
        return columns
    flags = aborted_batches(columns.table, aborted)
    return columns.select(~flags[columns.batch_ordinals]) if flags.any() else columns
