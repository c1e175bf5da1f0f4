"""Hanging transactions, whose producer or marker was lost: list them, and end one by hand.

They stop `read_committed` readers, compaction and copies. Source: kafka ``kafka-transactions.sh``.
"""

from __future__ import annotations

from local.errors import NotFound
from local.log.log_appender import Durability
from local.log.producer_state import ProducerEntry
from tiered.partition.partition import Partition


def open_transactions(held: Partition) -> list[ProducerEntry]:
    """Return the producers with an open transaction, in the order of its first offset."""
    found = [each for each in held.log.producers() if each.transaction_first_offset >= 0]
    return sorted(found, key=lambda each: each.transaction_first_offset)


def find_open(held: Partition, producer_id: int) -> ProducerEntry:
    """The entry of this producer. Raises NotFound without an open transaction, naming the producers with one."""
    known = open_transactions(held)
    found = next((each for each in known if each.producer_id == producer_id), None)
    if found is None:
        others = ",".join(str(each.producer_id) for each in known) or "none"
        wrong = "cannot end the transaction, the producer has no open transaction"
        raise NotFound(wrong, partition=held.name, producer_id=producer_id, open=others)
    return found


def end_transaction(held: Partition, producer_id: int, *, commit: bool, now_ms: int) -> ProducerEntry:
    """Append the marker that ends this producer's open transaction, durable on return.

    Returns the producer's entry before the marker. Raises NotFound, also if the transaction ended concurrently, and
    the errors of `Partition.check_appendable`.
    """
    held.check_appendable()
    found = find_open(held, producer_id)
    held.log.append_marker(
        producer_id,
        found.producer_epoch,
        commit=commit,
        coordinator_epoch=max(found.coordinator_epoch, 0),
        first_offset=found.transaction_first_offset,
        now_ms=now_ms,
        durability=Durability.FLUSHED,
    )
    return found
