"""What partitions a store holds, learned from its names alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from local.names import TopicPartition
from remote.keys import parse_partition, parse_topic_directory, partition_prefix, topic_directory
from remote.store import ObjectStore


@dataclass(frozen=True, slots=True, order=True)
class RemotePartitionName:
    """A partition as the bucket names it. Two topics of one name and different ids are different topics."""

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def prefix(self) -> str:
        return partition_prefix(self.topic, self.topic_id, self.partition)


def list_partitions(store: ObjectStore) -> list[RemotePartitionName]:
    """All partitions, ordered by topic, topic id and number. One listing, and one more for each topic.

    Names that are not ours are passed over. Whether a partition has a head is not looked at. Raises NotFound when the
    store's root does not exist.
    """
    found = []
    for name in store.list_prefixes(""):
        parsed = parse_topic_directory(name)
        if parsed is None:
            continue
        topic, topic_id = parsed
        below = store.list_prefixes(topic_directory(topic, topic_id) + "/")
        numbers = [number for each in below if (number := parse_partition(each)) is not None]
        found += [RemotePartitionName(topic, topic_id, number) for number in numbers]
    return sorted(found)


def chosen_partitions(
    store: ObjectStore, wanted: Iterable[tuple[str, int | None]] = (), *, topic_ids: Mapping[str, str] | None = None
) -> list[RemotePartitionName]:
    """The partitions of a bucket that (topic, partition or None for all of them) mean; every one where nothing is said.

    `topic_ids` leaves only that one of several topics of a name.
    """
    asked, ids = list(wanted), topic_ids or {}
    return [
        name
        for name in list_partitions(store)
        if ids.get(name.topic, name.topic_id) == name.topic_id
        and (not asked or any(name.topic == topic and number in (None, name.partition) for topic, number in asked))
    ]
