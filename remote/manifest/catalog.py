"""What partitions a store holds, learned from its names alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from local.names import TopicPartition
from remote.keys import parse_partition, parse_topic_directory, partition_prefix, topic_begin, topic_directory
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


def list_topics(store: ObjectStore, topic: str | None = None) -> list[tuple[str, str]]:
    """(topic, topic id) of all topics, or of those of one name, in order. One listing.

    Names that are not ours are passed over. Raises NotFound when the store's root does not exist.
    """
    names = store.list_prefixes("" if topic is None else topic_begin(topic))
    found = [parsed for name in names if (parsed := parse_topic_directory(name)) is not None]
    return sorted(each for each in found if topic in (None, each[0]))


def partitions_of(store: ObjectStore, topic: str, topic_id: str) -> list[RemotePartitionName]:
    """One topic's partitions by number. One listing; whether a partition has a head is not looked at."""
    below = store.list_prefixes(topic_directory(topic, topic_id) + "/")
    numbers = [number for each in below if (number := parse_partition(each)) is not None]
    return sorted(RemotePartitionName(topic, topic_id, number) for number in numbers)


def missing_between(names: Iterable[RemotePartitionName]) -> list[RemotePartitionName]:
    """The partitions below the highest one of each topic that `names` lacks, in order.

    A topic's partitions are numbered without a hole. Such a partition was never copied, or its objects were lost.
    """
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        numbers.setdefault((name.topic, name.topic_id), set()).add(name.partition)
    return sorted(
        RemotePartitionName(topic, topic_id, number)
        for (topic, topic_id), found in numbers.items()
        for number in set(range(max(found))) - found
    )


def list_partitions(store: ObjectStore, topics: Collection[str] | None = None) -> list[RemotePartitionName]:
    """All partitions, or those of these topics, ordered by topic, topic id and number.

    One listing, one for each of `topics` where they are told, and one more for each topic found. As `list_topics`.
    """
    asked = [None] if topics is None else sorted(set(topics))
    found = [each for topic in asked for each in list_topics(store, topic)]
    return sorted(name for topic, topic_id in found for name in partitions_of(store, topic, topic_id))


def chosen_partitions(
    store: ObjectStore, wanted: Iterable[tuple[str, int | None]] = (), *, topic_ids: Mapping[str, str] | None = None
) -> list[RemotePartitionName]:
    """The partitions of a bucket that (topic, partition or None for all of them) mean; every one where nothing is said.

    `topic_ids` leaves only that one of several topics of a name.
    """
    asked, ids = list(wanted), topic_ids or {}
    return [
        name
        for name in list_partitions(store, {topic for topic, _ in asked} or None)
        if ids.get(name.topic, name.topic_id) == name.topic_id
        and (not asked or any(name.topic == topic and number in (None, name.partition) for topic, number in asked))
    ]
