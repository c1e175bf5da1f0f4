"""Hanging transactions: list them, and end one by hand.

The coordinator's marker ends a transaction. The marker never comes if the producer is lost for good, or if the marker
was lost with the disk of a machine. Then `read_committed` readers stop at the transaction, and no record behind it is
compacted or copied. An operator has to commit or abort it. Source: kafka ``kafka-transactions.sh``.
"""

from __future__ import annotations

from dataclasses import dataclass

from local.errors import NotFound
from local.log.log_appender import Durability
from local.names import TopicPartition
from tiered.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction without its marker. A field of -1 means none, as in Kafka.

    `first_offset` is the offset of its first record.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_offset: int
    last_timestamp_ms: int


def open_transactions(held: Partition) -> list[OpenTransaction]:
    """The open transactions of one partition by first offset; the first holds back the stable offset."""
    found = [
        OpenTransaction(
            partition=held.name,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            coordinator_epoch=each.coordinator_epoch,
            first_offset=each.transaction_first_offset,
            last_offset=each.last_offset,
            last_timestamp_ms=each.timestamp_ms,
        )
        for each in held.log.producers()
        if each.transaction_first_offset >= 0
    ]
    return sorted(found, key=lambda each: each.first_offset)


def find_open(held: Partition, producer_id: int) -> OpenTransaction:
    """This producer's open transaction. Raises NotFound, naming the producers that have one."""
    known = open_transactions(held)
    found = next((each for each in known if each.producer_id == producer_id), None)
    if found is None:
        raise NotFound(
            "cannot end the transaction, the producer has no open transaction",
            partition=held.name,
            producer_id=producer_id,
            open=",".join(str(each.producer_id) for each in known) or "none",
        )
    return found


def end_transaction(held: Partition, producer_id: int, *, commit: bool, now_ms: int) -> OpenTransaction:
    """Append the marker that ends this producer's open transaction, durable on return.

    Returns the transaction as it was before. Raises NotFound if the producer has none open or it ended concurrently;
    the error names the producers that have one. Raises the errors of `Partition.check_appendable`.
    """
    held.check_appendable()
    found = find_open(held, producer_id)
    held.log.append_marker(
        producer_id,
        found.producer_epoch,
        commit=commit,
        coordinator_epoch=max(found.coordinator_epoch, 0),
        first_offset=found.first_offset,
        now_ms=now_ms,
        durability=Durability.FLUSHED,
    )
    return found
