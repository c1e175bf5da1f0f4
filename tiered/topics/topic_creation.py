"""Create topics, and partitions of topics: check, register, make directories and logs, acquire them in the bucket.

Order of effects, for any number of topics:

1. All topics are checked.
2. **One** replacement of the list of topics (now they exist, all or none).
3. The partitions' directories are made, each root synced once.
4. For each partition: its id is written aside, synced and renamed; its first segment's files; one sync of its
   directory.
5. The manifests are committed in the bucket.

| a crash after | leaves |
|---|---|
| the checks | nothing |
| the list of topics | the topics; the next open creates their partitions, as any registered one without a directory |
| some directories | the same: an empty directory has no id, and its log is created |
| an id, or some files | a partition that is created or loaded as it is: it holds no record |
| all of it | the topics, whole |

A record is accepted only when all of it is durable. Syncs: 2 for the list and 1 for each root, 2 for each partition.

More partitions of a topic are made by the same steps with the same table. Appends that split records by key see the new
number after step 5: until then a new partition would refuse its share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from local.errors import InvalidRequest, LogError
from local.names import TopicPartition, check_topic, new_topic_id
from tiered.node.topic_registry import Topic
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener
from tiered.partition.partition_table import OPENERS, Loaded, PartitionTable, load_logs, raise_first
from tiered.stores.parallel import side_by_side


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTopic:
    """A requested topic; `properties` are its own settings, as text under Kafka's names."""

    name: str
    partitions: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)


def check_new_topic(table: PartitionTable, requested: AskedTopic) -> Topic:
    """The topic as it would be registered; checks the bucket if tiered. Raises as `create_topics`."""
    topic = _checked(table, requested)
    if topic.was_tiered:
        table.opener.check_reachable(topic)
    table.opener.check_room()
    return topic


def create_topics(table: PartitionTable, requested: Sequence[AskedTopic], *, now_ms: int) -> list[Topic]:
    """Create these topics, or none if one is refused. Thread safe. Raises as `TopicAdmin.create`."""
    names = [each.name for each in requested]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidRequest("cannot create topics, a name is repeated", topic=repeated)
    topics = [_checked(table, each) for each in requested]
    tiered = [each for each in topics if each.was_tiered]
    side_by_side(table.opener.check_reachable, tiered, threads=OPENERS, name="new-topic")
    with table.lock:
        table.opener.check_room()
        table.registry.add(*topics)
        loaded = _make_logs(table.opener, {name: topic for topic in topics for name in topic.partitions()}, now_ms)
        partitions = table.add(loaded)
    raise_first([each for each in loaded.values() if isinstance(each, LogError)] + table.acquire(partitions, now_ms))
    return topics


def add_partitions(table: PartitionTable, name: str, count: int, *, now_ms: int) -> Topic:
    """Raise the number of partitions of a topic to `count`. Thread safe. Raises as `TopicAdmin.add_partitions`."""
    check_more_partitions(table, name, count)
    with table.lock, table.registry.growing(name, count) as topic:
        for each in table.opened(topic.partitions()):
            table.opener.apply_settings(each, topic)
        new = dict.fromkeys(topic.partitions()[table.registry.get(name).partition_count :], topic)
        loaded = _make_logs(table.opener, new, now_ms)
        failures = table.acquire(table.add(loaded), now_ms)
    raise_first([each for each in loaded.values() if isinstance(each, LogError)] + failures)
    return topic


def check_more_partitions(table: PartitionTable, name: str, count: int) -> Topic:
    """The topic as it would be registered; checks the bucket if tiered. Raises as `add_partitions`."""
    topic = table.registry.grown(name, count)
    if topic.was_tiered:
        table.opener.check_reachable(topic)
    table.opener.check_room()
    return topic


def _checked(table: PartitionTable, requested: AskedTopic) -> Topic:
    check_topic(requested.name)
    own = dict(requested.properties)
    topic = Topic(name=requested.name, topic_id=new_topic_id(), partition_count=requested.partitions, properties=own)
    table.opener.check_settings(topic)
    table.registry.check_new(topic)
    return replace(topic, was_tiered=True) if table.opener.begins_tiering(topic) else topic


def _make_logs(opener: Opener, of: Mapping[TopicPartition, Topic], now_ms: int) -> Loaded:
    refused = opener.place(list(of))

    def open_log(name: TopicPartition) -> Partition:
        if name in refused:
            raise refused[name]
        return opener.open_log(name, of[name], now_ms, is_new=True)

    threads = opener.config.int_of("num.recovery.threads.per.data.dir")
    return load_logs({"": list(of)}, open_log, threads_per_directory=threads)
