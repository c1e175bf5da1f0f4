"""Transactions that nobody ends: found, and ended by hand.

A transaction is ended by its coordinator's marker. Where that never comes (a producer that is gone for good, or a
marker that was lost with a machine's disk), committed readers stop at the transaction, and nothing behind it is
compacted or goes to the bucket. Somebody has to say what became of it. Source: kafka ``kafka-transactions.sh``.
"""

from __future__ import annotations

from dataclasses import dataclass

from local.errors import NotFound
from local.log.append_result import Durability
from local.names import TopicPartition
from tiered.partition.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction without its marker. `first_offset` is its first record's, -1 stands for none as in Kafka."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_offset: int
    last_timestamp_ms: int


def open_transactions(held: Partition) -> list[OpenTransaction]:
    """Those of one partition, the one that began first first: it is the one that others wait for."""
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
    """This producer's open transaction. Raises NotFound when it has none, naming those that have."""
    known = open_transactions(held)
    found = next((each for each in known if each.producer_id == producer_id), None)
    if found is None:
        raise NotFound(
            "ending a transaction, the producer has none open",
            partition=held.name,
            producer_id=producer_id,
            open=",".join(str(each.producer_id) for each in known) or "none",
        )
    return found


def end_transaction(held: Partition, producer_id: int, *, commit: bool, now_ms: int) -> OpenTransaction:
    """Append the marker that ends this producer's open transaction, durable on return; the transaction as it was.

    Raises NotFound when it has none open, naming those that have, or that one ended meanwhile, and what keeps us from
    appending.
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
