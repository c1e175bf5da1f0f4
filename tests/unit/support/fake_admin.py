"""An `Admin` in memory over topics that a `FakeSource` lists. A test can hold a change back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from fake_source import FakeSource

from local.errors import LogError, NotFound
from local.names import TopicPartition
from tiered.serve.admin import (
    Change,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    CreatedTopic,
    LogDir,
    NewTopic,
    Synonym,
)
from tiered.serve.handlers.service import Service
from tiered.serve.record_source import ServedTopic

T = TypeVar("T")
WAIT_S = 60.0


class FakeAdmin(FakeSource):
    """Both parts of a service: the topics to read, and their changes. `calls` are the changes in order."""

    default_partitions = 1

    def __init__(self, **counts: int) -> None:
        super().__init__()
        self.counts_by_topic = dict(counts)
        self.calls: list[tuple[object, ...]] = []
        self.errors_of: dict[str, Exception] = {}  # by topic
        self.dirs: Sequence[LogDir] = ()
        self.must_move = True
        self.gate: threading.Event | None = None  # holds changes back
        self.has_begun = threading.Event()
        self.moved = threading.Event()

    def topics(self) -> Mapping[str, ServedTopic]:
        return {
            name: ServedTopic(name=name, topic_id=self.id_of(name), partitions=tuple(range(count)))
            for name, count in self.counts_by_topic.items()
        }

    @staticmethod
    def id_of(name: str) -> UUID:
        return UUID(bytes=name.encode()[:16].ljust(16, b"."))

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool) -> Sequence[CreatedTopic | Exception]:
        self._change("create", [(each.name, each.partitions, dict(each.settings)) for each in topics], validate_only)
        entry = ConfigEntry(name="retention.ms", value="5", source=ConfigSource.TOPIC, type=ConfigType.LONG)
        return [
            self.errors_of.get(each.name)
            or CreatedTopic(topic_id=self.id_of(each.name), partition_count=each.partitions or 1, settings=(entry,))
            for each in topics
        ]

    def delete_topic(self, topic: str, topic_id: UUID | None) -> UUID:
        self._change("delete", topic, topic_id)
        self._raise(topic)
        return self.id_of(topic)

    def add_partitions(self, topic: str, count: int, *, validate_only: bool) -> None:
        self._change("add", topic, count, validate_only)
        self._raise(topic)

    def topic_configs(self, topic: str) -> Sequence[ConfigEntry]:
        self._raise(topic)
        if topic not in self.counts_by_topic:
            raise NotFound("no such topic", topic=topic)
        synonyms = (Synonym(name="log.retention.ms", value="7", source=ConfigSource.STATIC_BROKER),)
        return [
            ConfigEntry(
                name="retention.ms",
                value="7",
                source=ConfigSource.STATIC_BROKER,
                type=ConfigType.LONG,
                synonyms=synonyms,
                documentation="how long",
            ),
            ConfigEntry(name="cleanup.policy", value="delete", source=ConfigSource.DEFAULT, type=ConfigType.LIST),
        ]

    def broker_configs(self) -> Sequence[ConfigEntry]:
        return [
            ConfigEntry(
                name="log.dirs",
                value="/data",
                source=ConfigSource.STATIC_BROKER,
                type=ConfigType.STRING,
                is_read_only=True,
            )
        ]

    def alter_topic(self, topic: str, changes: Sequence[Change], *, validate_only: bool) -> None:
        self._change("alter", topic, [(each.name, each.operation.name, each.value) for each in changes], validate_only)
        self._raise(topic)

    def replace_settings(self, topic: str, settings: Mapping[str, str], *, validate_only: bool) -> None:
        self._change("replace", topic, dict(settings), validate_only)
        self._raise(topic)

    def delete_records(self, partition: TopicPartition, offset: int) -> int:
        self._change("delete records", str(partition), offset)
        self._raise(partition.topic)
        return max(offset, 0)

    def log_dirs(self) -> Sequence[LogDir]:
        return self.dirs

    def check_move(self, partition: TopicPartition, directory: str) -> bool:
        self._raise(partition.topic)
        return self.must_move

    def move(self, partition: TopicPartition, directory: str) -> None:
        self.calls.append(("move", str(partition), directory))
        self.moved.set()

    def _change(self, *call: object) -> None:
        self.has_begun.set()
        if self.gate is not None:
            assert self.gate.wait(WAIT_S), "the test must open the gate"
        self.calls.append(call)

    def _raise(self, topic: str) -> None:
        if topic in self.errors_of:
            raise self.errors_of[topic]


def refusing(topic: str, error: Exception | LogError, **counts: int) -> FakeAdmin:
    """An admin whose calls for one topic fail."""
    admin = FakeAdmin(**counts)
    admin.errors_of[topic] = error
    return admin


def run(admin: FakeAdmin, work: Callable[[Service], Coroutine[object, object, T]]) -> T:
    """The result of a handler that gets a service of its own."""
    service = Service(source=admin, admin=admin, configs=admin)
    try:
        return asyncio.run(work(service))
    finally:
        service.close()
