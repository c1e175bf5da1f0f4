"""Storage of deleted topics in the bucket, which is billed until the grace period is over.

Each call reads their manifests again, with a LIST and a GET for each partition. Without deleted topics no request is
sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import size_of
from tiered.stores.parallel import side_by_side

if TYPE_CHECKING:
    from policies.cost.prices import PriceTable
    from policies.cost.storage_cost import StorageUsage
    from remote.manifest.manifest import Manifest
    from remote.store import ObjectStore
    from tiered.node.topic_registry import Topic, TopicRegistry

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedPartition:
    """One partition of a deleted topic: its newest manifest (None without one), or its read error."""

    name: TopicPartition
    manifest: Manifest | None = None
    error: LogError | None = None


class DeletedTopicUsage:
    """The part of a manager that reports on its deleted topics."""

    _registry: TopicRegistry

    def deleted_topics(self) -> list[Topic]:
        """Deleted topics that may still have objects in the bucket, by deletion time; sends no request."""
        return [each.topic for each in self._registry.deleted() if each.topic.was_tiered]

    def deleted_partitions(self) -> list[DeletedPartition]:
        """The partitions of deleted topics, by deletion time; reads the manifest of each from the store."""
        store: ObjectStore | None = getattr(self, "_store", None)
        if store is None:
            return []

        def look(of: tuple[Topic, TopicPartition]) -> DeletedPartition:
            topic, name = of
            try:
                manifest = MetadataLog(store, partition_prefix(topic.name, topic.topic_id, name.partition)).load()
            except LogError as error:
                return DeletedPartition(name=name, error=error)
            return DeletedPartition(name=name, manifest=manifest)

        partitions = [(topic, name) for topic in self.deleted_topics() for name in topic.partitions()]
        return side_by_side(look, partitions, threads=_THREADS, name="tiered-deleted")


def usage_of_deleted(manifest: Manifest, prices: PriceTable) -> StorageUsage:
    """Everything but manifests and pages is a pending delete, even objects that the manifest still names."""
    from policies.cost.storage_cost import StorageUsage, usage_of

    found = usage_of(manifest, prices, manifest_bytes=size_of(manifest))
    data = sum(each.size_bytes for each in found.data.values())
    return StorageUsage(index_bytes=found.index_bytes, waiting_bytes=data + found.small_bytes + found.waiting_bytes)
