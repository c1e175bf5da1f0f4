"""Remote storage of a manager's partitions and its price (`policies.cost.storage_usage`)."""

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
    """Return dollars a month of every open partition with remote objects, without a request.

    Always for all topics, because they fill the price bands together.
    """
    found = all_lying(manager, prices)
    return dict(zip(found, keeping_dollars(list(found.values()), prices), strict=True))


def all_lying(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, Lying]:
    """Return the remote storage of every open partition with objects there, without a request."""
    return {each.name: lying_for(each, prices) for each in manager.partitions() if each.head() is not None}


def lying_for(held: Partition, prices: PriceTable, rows: Iterable[RemoteSegment] | None = None) -> Lying:
    """Return the remote storage of one partition; empty without a manifest.

    `rows` as in `policies.cost.storage_usage.lying_of`.
    """
    head = held.head()
    return Lying() if head is None else lying_of(head, prices, head_bytes=size_of(head), rows=rows)
