"""What deleted topics still have in the bucket: all of it until the grace time is over, and it is paid for until then.

Their heads are read anew each time, by a LIST and a GET for each partition; without deleted topics nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_sizes import size_of
from tiered.stores.parallel import side_by_side

if TYPE_CHECKING:
    from policies.cost.prices import PriceTable
    from policies.cost.storage_usage import Lying
    from remote.manifest.manifest import Head
    from remote.store import ObjectStore
    from tiered.node.topic_registry import Topic, TopicRegistry

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedPartition:
    """One partition of a deleted topic: its newest head, None where there is none, or why it cannot be read."""

    name: TopicPartition
    head: Head | None = None
    error: LogError | None = None


class KnowsDeleted:
    """The part of a manager that tells of its deleted topics."""

    _registry: TopicRegistry

    def deleted_topics(self) -> list[Topic]:
        """Those that may have objects in the bucket still, in the order of their deletion; nobody is asked."""
        return [each.topic for each in self._registry.deleted() if each.topic.was_tiered]

    def deleted_partitions(self) -> list[DeletedPartition]:
        """Those that may have objects in the bucket, in the order of their deletion; asks the store about each."""
        store: ObjectStore | None = getattr(self, "_store", None)
        if store is None:
            return []

        def look(of: tuple[Topic, TopicPartition]) -> DeletedPartition:
            topic, name = of
            try:
                head = MetadataLog(store, partition_prefix(topic.name, topic.topic_id, name.partition)).load()
            except LogError as error:
                return DeletedPartition(name=name, error=error)
            return DeletedPartition(name=name, head=head)

        partitions = [(topic, name) for topic in self.deleted_topics() for name in topic.partitions()]
        return side_by_side(look, partitions, threads=_THREADS, name="tiered-deleted")


def lying_of_deleted(head: Head, prices: PriceTable) -> Lying:
    """All but its heads and pages waits for its deletion, also what the head still has rows of."""
    from policies.cost.storage_usage import Lying, lying_of

    found = lying_of(head, prices, head_bytes=size_of(head))
    data = sum(each.size_bytes for each in found.data.values())
    return Lying(index_bytes=found.index_bytes, waiting_bytes=data + found.small_bytes + found.waiting_bytes)
