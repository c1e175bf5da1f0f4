"""The topics of one log directory: their ids, partition counts and own settings, in one small file.

``topics.json`` lies at the directory's root beside Kafka's checkpoints (a broker looks at directories there, not at
files it does not know) and is replaced whole. The settings are the topic's own, as text under Kafka's names; defaults
and overrides are layered on top by `tiered.config`. A file without `was_tiered` (it came later) is read as false.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from local.errors import Corrupt, InvalidRequest, NotFound
from local.names import TopicPartition, check_topic, check_topic_id
from local.storage import Storage, join, replace_file

FILE = "topics.json"
FORMAT_VERSION = 1
PARTITIONS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """`properties` are the topic's own settings, unparsed. Partitions are numbered from 0.

    `was_tiered`: something of it may be in the bucket. True from before the first head is written, and for good.
    """

    name: str
    topic_id: str
    partition_count: int
    properties: dict[str, str] = field(default_factory=dict)
    was_tiered: bool = False

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partition_count)]


class TopicRegistry:
    """Reads the file once, writes it on every change, and knows a change only once it is written.

    Looking is safe from any thread; changes come one at a time.
    """

    def __init__(self, storage: Storage, root: str) -> None:
        """Raises Corrupt when the file does not hold topics."""
        self._storage = storage
        self._path = join(root, FILE)
        self._topics = {topic.name: topic for topic in self._read()}

    def all(self) -> list[Topic]:
        topics = self._topics
        return [topics[name] for name in sorted(topics)]

    def get(self, name: str) -> Topic:
        """Raises NotFound, naming the topics there are."""
        check_topic(name)
        if name not in self._topics:
            there_are = ", ".join(sorted(self._topics)[:10]) or "none"
            raise NotFound("finding a topic", topic=name, there_are=there_are)
        return self._topics[name]

    def add(self, topic: Topic) -> None:
        """Durable on return. Raises InvalidRequest when the name is taken or the partition count is off."""
        check_topic(topic.name)
        if topic.name in self._topics:
            raise InvalidRequest("creating a topic, it exists", topic=topic.name)
        if not 1 <= topic.partition_count <= PARTITIONS_MAX:
            raise InvalidRequest(
                f"creating a topic, partitions not in 1..{PARTITIONS_MAX}",
                topic=topic.name,
                partitions=topic.partition_count,
            )
        self._write({**self._topics, topic.name: topic})

    def alter(self, name: str, properties: dict[str, str], *, is_tiered: bool = False) -> Topic:
        """The topic with these own settings instead of its present ones. Durable on return.

        With `is_tiered` it is one that `was_tiered` from now on; nothing takes that back.
        """
        known = self.get(name)
        altered = replace(known, properties=properties, was_tiered=known.was_tiered or is_tiered)
        self._write({**self._topics, name: altered})
        return altered

    def _read(self) -> list[Topic]:
        try:
            body = msgspec.json.decode(self._storage.read(self._path), type=_File)
        except NotFound:
            return []
        except msgspec.MsgspecError as error:
            raise Corrupt("reading the topics", path=self._path, cause=str(error)) from None
        if body.format_version != FORMAT_VERSION:
            raise Corrupt("reading the topics, unknown format", path=self._path, format_version=body.format_version)
        for topic in body.topics:
            check_topic(topic.name)
            check_topic_id(topic.topic_id)
        return body.topics

    def _write(self, topics: dict[str, Topic]) -> None:
        body = _File(format_version=FORMAT_VERSION, topics=[topics[name] for name in sorted(topics)])
        replace_file(self._storage, self._path, msgspec.json.format(msgspec.json.encode(body), indent=1))
        self._topics = topics


class _File(msgspec.Struct):
    format_version: int
    topics: list[Topic]
