"""Create topics: check, register, make directories and logs, acquire their partitions in the bucket.

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
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from local.errors import InvalidRequest, LogError
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.partition.acquisition import OPENERS
from tiered.partition.appending import raise_first
from tiered.partition.log_loading import Loaded, load_logs
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener
from tiered.stores.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTopic:
    """A requested topic; `properties` are its own settings, as text under Kafka's names."""

    name: str
    partitions: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)


class CreatesTopics:
    """The part of a manager that creates topics."""

    config: Config
    _opener: Opener
    _registry: TopicRegistry
    _directory: LogDirectories
    _topics_lock: threading.RLock
    if TYPE_CHECKING:
        _check_writable: Callable[[], None]
        _settled_new: Callable[..., Topic]
        _keep: Callable[[Loaded], list[Partition]]
        _acquire: Callable[[Sequence[Partition], int], list[LogError]]

    def create_topic(
        self, name: str, partitions: int = 1, properties: dict[str, str] | None = None, *, now_ms: int
    ) -> Topic:
        """Create a topic; its settings and access to the bucket are checked before anything is written.

        Raises InvalidRequest. After any other error later than the registration (the bucket became unavailable) the
        topic exists, and a later `tick` acquires it.
        """
        (made,) = self.create_topics(
            [AskedTopic(name=name, partitions=partitions, properties=properties or {})], now_ms=now_ms
        )
        return made

    def create_topics(self, asked: Sequence[AskedTopic], *, now_ms: int) -> list[Topic]:
        """As `create_topic`, for several topics: all of them, or none if one is refused.

        Two syncs for all and two for each partition; one by one, each topic costs four more.
        """
        self._check_writable()
        names = [each.name for each in asked]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest("cannot create topics, a name is repeated", topic=twice)
        topics = [self._settled_new(each.name, each.partitions, each.properties) for each in asked]
        tiered = [each for each in topics if each.was_tiered]
        if len(tiered) == 1:
            self._opener.check_reachable(tiered[0])
        else:
            side_by_side(self._opener.check_reachable, tiered, threads=OPENERS, name="new-topic")
        with self._topics_lock:
            self._opener.check_room()
            self._registry.add(*topics)
            loaded = self._begin(topics, now_ms)
            held = self._keep(loaded)
        failures = [each for each in loaded.values() if isinstance(each, LogError)]
        raise_first(failures + self._acquire(held, now_ms))
        return topics

    def _begin(self, topics: Sequence[Topic], now_ms: int) -> Loaded:
        """The partitions of new topics, each with its log or its error."""
        of = {name: topic for topic in topics for name in topic.partitions()}
        refused = self._opener.place(list(of))

        def open_log(name: TopicPartition) -> Partition:
            if name in refused:
                raise refused[name]
            return self._opener.open_log(name, of[name], now_ms, is_new=True)

        return load_logs(
            {"": list(of)}, open_log, threads_per_directory=self.config.int_of("num.recovery.threads.per.data.dir")
        )
