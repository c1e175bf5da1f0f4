"""List the topics and partitions of a store by its object names alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from local.names import TopicPartition, check_topic
from remote.keys import parse_partition, parse_topic_directory, partition_prefix, topic_directory
from remote.store import ObjectStore


@dataclass(frozen=True, slots=True, order=True)
class RemotePartitionName:
    """A partition as named in the bucket. Two topics with one name and different ids are different topics."""

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def prefix(self) -> str:
        return partition_prefix(self.topic, self.topic_id, self.partition)

    @property
    def identity(self) -> Identity:
        return Identity(topic=self.topic, topic_id=self.topic_id, partition=self.partition)


class Identity(TypedDict):
    topic: str
    topic_id: str
    partition: int


def list_topics(store: ObjectStore, topic: str | None = None) -> list[tuple[str, str]]:
    """(topic, topic id) of all topics, or of those named `topic`, in order. One listing. Raises NotFound."""
    names = store.list_prefixes("" if topic is None else f"{check_topic(topic)}-")
    found = [parsed for name in names if (parsed := parse_topic_directory(name)) is not None]
    return sorted(each for each in found if topic in (None, each[0]))


def partitions_of(store: ObjectStore, topic: str, topic_id: str) -> list[RemotePartitionName]:
    """The partitions of one topic, by number, with a manifest or not. One listing."""
    below = store.list_prefixes(topic_directory(topic, topic_id) + "/")
    numbers = [number for each in below if (number := parse_partition(each)) is not None]
    return sorted(RemotePartitionName(topic, topic_id, number) for number in numbers)


def missing_between(names: Iterable[RemotePartitionName]) -> list[RemotePartitionName]:
    """For each topic, the partitions below its highest one that are not in `names`: never copied, or lost."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for name in names:
        numbers.setdefault((name.topic, name.topic_id), set()).add(name.partition)
    return sorted(
        RemotePartitionName(topic, topic_id, number)
        for (topic, topic_id), found in numbers.items()
        for number in set(range(max(found))) - found
    )


def list_partitions(store: ObjectStore, topics: Collection[str] | None = None) -> list[RemotePartitionName]:
    """All partitions, or those of `topics`, in order. One listing, and one for each topic. Raises as `list_topics`."""
    topic_names = [None] if topics is None else sorted(set(topics))
    found = [each for topic in topic_names for each in list_topics(store, topic)]
    return sorted(name for topic, topic_id in found for name in partitions_of(store, topic, topic_id))


def chosen_partitions(
    store: ObjectStore, wanted: Iterable[tuple[str, int | None]] = (), *, topic_ids: Mapping[str, str] | None = None
) -> list[RemotePartitionName]:
    """The partitions that match `wanted`: pairs (topic, partition or None for all); all if it is empty."""
    pairs, ids = list(wanted), topic_ids or {}
    return [
        name
        for name in list_partitions(store, {topic for topic, _ in pairs} or None)
        if ids.get(name.topic, name.topic_id) == name.topic_id
        and (not pairs or any(name.topic == topic and number in (None, name.partition) for topic, number in pairs))
    ]
