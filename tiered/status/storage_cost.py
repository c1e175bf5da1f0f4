"""Remote storage of a manager's partitions and its price (`policies.cost.storage_cost`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from policies.cost.storage_cost import StorageDollars, StorageUsage, storage_dollars, usage_of
from remote.manifest.manifest import size_of

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.cost.prices import PriceTable
    from remote.segment_entry import SegmentEntry
    from tiered.manager.manager import LogManager
    from tiered.partition.partition import Partition


def storage_costs(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, StorageDollars]:
    """Return dollars a month of every open partition with remote objects, without a request.

    Always for all topics, because they fill the price bands together.
    """
    found = all_usage(manager, prices)
    return dict(zip(found, storage_dollars(list(found.values()), prices), strict=True))


def all_usage(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, StorageUsage]:
    """Return the remote storage of every open partition with objects there, without a request."""
    return {each.name: usage_for(each, prices) for each in manager.partitions() if each.manifest() is not None}


def usage_for(held: Partition, prices: PriceTable, rows: Iterable[SegmentEntry] | None = None) -> StorageUsage:
    """Return the remote storage of one partition; empty without a manifest.

    `rows` as in `policies.cost.storage_cost.usage_of`.
    """
    manifest = held.manifest()
    return (
        StorageUsage()
        if manifest is None
        else usage_of(manifest, prices, manifest_bytes=size_of(manifest), entries=rows)
    )
