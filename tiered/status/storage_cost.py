"""What the partitions of a manager have in the bucket, and what keeping it costs (`policies.cost.storage_usage`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from policies.cost.storage_usage import KeepingDollars, Lying, keeping_dollars, lying_of
from remote.manifest.manifest_sizes import size_of

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.cost.prices import PriceTable
    from remote.segment_entry import RemoteSegment
    from tiered.manager.manager import LogManager
    from tiered.partition.partition import Partition


def keeping_costs(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, KeepingDollars]:
    """Dollars a month of every open partition with objects in the bucket, from what is known: no request is sent.

    Always of all topics, because they fill the bands of the price together.
    """
    found = all_lying(manager, prices)
    return dict(zip(found, keeping_dollars(list(found.values()), prices), strict=True))


def all_lying(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, Lying]:
    """What every open partition with objects in the bucket has there, from what is known."""
    return {each.name: lying_for(each, prices) for each in manager.partitions() if each.head() is not None}


def lying_for(held: Partition, prices: PriceTable, rows: Iterable[RemoteSegment] | None = None) -> Lying:
    """What one partition has there; nothing without a head. `rows` as `policies.cost.storage_usage.lying_of` has
    them."""
    head = held.head()
    return Lying() if head is None else lying_of(head, prices, head_bytes=size_of(head), rows=rows)
