"""Changes of a running node by Kafka's clients: `Admin` over one `LogManager`.

The verbs of the command line do the same through the same methods of the manager: its checks are the checks here. Order
of effects and crashes: `tiered.topics.topic_creation`, `TopicDeletion`, `tiered.maintenance.delete_records`,
`local.logdirs.log_moves`. A verb returns after its effect is durable.

`close` ends a running move before its switch and waits for the running change, so that the manager can be closed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from uuid import UUID

from local.errors import DiskFailed, InvalidRequest, LogError, NotFound, OffsetOutOfRange, Unavailable
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.config.properties import PROPERTIES, Kind, find_property
from tiered.maintenance.delete_records import HIGH_WATERMARK
from tiered.manager.manager import LogManager
from tiered.node.topic_registry import PARTITIONS_MAX, Topic
from tiered.serve.admin import Change, ConfigEntry, CreatedTopic, LogDir, NewTopic, Operation, Refused, Replica
from tiered.serve.admin.config_entries import DEFAULT_PARTITIONS, FIXED_OF_TOPICS, TopicEntries, node_entries
from tiered.serve.messages.base import Error
from tiered.serve.record_source import uuid_of
from tiered.topics.topic_creation import AskedTopic

END_S = 10.0  # for the running change when the node ends, as `tiered.manager.manager.DRAIN_S`
_log = logging.getLogger(__name__)


class NodeAdmin:
    """Thread safe. `now_ms` is the clock of the node. Close it before the manager, which the caller closes."""

    default_partitions = DEFAULT_PARTITIONS

    def __init__(self, manager: LogManager, broker_id: int, now_ms: Callable[[], int]) -> None:
        self._manager, self._broker_id, self._now_ms = manager, broker_id, now_ms
        self._changing = threading.Lock()
        self._moving = threading.Lock()
        self._is_closed = False
        self._entries = TopicEntries(manager.config)
        self._future: tuple[TopicPartition, str, int] | None = None  # the running move: target, bytes copied

    def close(self) -> None:
        self._is_closed = True
        for each in (self._moving, self._changing):
            if each.acquire(timeout=END_S):
                each.release()
            else:
                _log.warning("closing before a change has ended")

    # -- topics ------------------------------------------------------------------------------------------------------

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool) -> Sequence[CreatedTopic | Exception]:
        found: dict[str, CreatedTopic | Exception] = {}
        checked: dict[str, AskedTopic] = {}
        with self._turn(self._changing):
            for each in topics:
                try:
                    checked[each.name] = self._checked(each, is_full_check=validate_only)
                except (LogError, Refused) as error:
                    found[each.name] = error
            if validate_only:
                found |= {name: self._planned(each) for name, each in checked.items()}
            else:
                found |= self._create(list(checked.values()))
        return [found[each.name] for each in topics]

    def delete_topic(self, topic: str, topic_id: UUID | None) -> UUID | None:
        with self._turn(self._changing):
            known = self._topic(topic)
            found = uuid_of(known.topic_id)
            if topic_id not in (None, found):
                raise Refused(Error.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            self._manager.topics.delete(topic, now_ms=self._now_ms())
        return found

    def add_partitions(self, topic: str, count: int, *, validate_only: bool) -> None:
        topics = self._manager.topics
        with self._turn(self._changing):
            self._topic(topic)
            try:
                if validate_only:
                    topics.dry_run.grown_topic(topic, count)
                else:
                    topics.add_partitions(topic, count, now_ms=self._now_ms())
            except InvalidRequest as error:
                raise Refused(Error.INVALID_PARTITIONS, str(error)) from error

    def _checked(self, new: NewTopic, *, is_full_check: bool) -> AskedTopic:
        if self._manager.partitions.registry.find(new.name) is not None:
            raise Refused(Error.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
        count = self.default_partitions if new.partitions is None else new.partitions
        if count > PARTITIONS_MAX:
            raise Refused(
                Error.INVALID_PARTITIONS, f"A topic has at most {PARTITIONS_MAX} partitions here, not {count}."
            )
        settings: dict[str, str] = {}
        for name, value in new.settings.items():
            settings |= _set(name, value)
        asked = AskedTopic(name=new.name, partitions=count, properties=settings)
        with _as_invalid_config():
            if is_full_check:
                self._manager.topics.dry_run.new_topic(asked.name, asked.partitions, asked.properties)
            else:
                topic = Topic(name=new.name, topic_id="", partition_count=count, properties=settings)
                self._manager.opener.check_settings(topic)
        return asked

    def _create(self, asked: list[AskedTopic]) -> dict[str, CreatedTopic | Exception]:
        if not asked:
            return {}
        failure: Exception | None = None
        try:
            self._manager.topics.create_all(asked, now_ms=self._now_ms())
        except InvalidRequest as error:
            failure = Refused(Error.INVALID_CONFIG, str(error))
        except LogError as error:
            failure = error
        found: dict[str, CreatedTopic | Exception] = {}
        for each in asked:
            topic = self._manager.partitions.registry.find(each.name)
            if topic is None:
                found[each.name] = failure or NotFound("the topic was deleted", topic=each.name)
                continue
            found[each.name] = self._created(topic)
            if failure is not None:
                # As in Kafka: a topic exists once it is registered. Maintenance makes its partitions usable.
                _log.warning("a topic was created, its partitions may wait: topic=%s error=%s", each.name, failure)
        return found

    def _created(self, topic: Topic) -> CreatedTopic:
        return CreatedTopic(
            topic_id=uuid_of(topic.topic_id),
            partition_count=topic.partition_count,
            settings=self._entries_of(topic.name, topic.properties),
        )

    def _planned(self, asked: AskedTopic) -> CreatedTopic:
        return CreatedTopic(
            topic_id=None,
            partition_count=asked.partitions,
            settings=self._entries_of(asked.name, asked.properties),
        )

    # -- settings ----------------------------------------------------------------------------------------------------

    def topic_configs(self, topic: str) -> Sequence[ConfigEntry]:
        return self._entries_of(topic, self._topic(topic).properties)

    def broker_configs(self) -> Sequence[ConfigEntry]:
        return node_entries(self._config, self._broker_id)

    def alter_topic(self, topic: str, changes: Sequence[Change], *, validate_only: bool) -> None:
        with self._turn(self._changing):
            known, altered = self._topic(topic), dict[str, str]()
            for each in changes:
                altered |= self._altered(known, each)
            self._alter(known, altered, validate_only=validate_only)

    def replace_settings(self, topic: str, settings: Mapping[str, str], *, validate_only: bool) -> None:
        with self._turn(self._changing):
            known = self._topic(topic)
            altered = dict.fromkeys(known.properties, "")
            for name, value in settings.items():
                altered |= _set(name, value)
            self._alter(known, altered, validate_only=validate_only)

    def _altered(self, topic: Topic, change: Change) -> dict[str, str]:
        """The properties to change; an empty value removes one."""
        name, value = change.name, change.value or ""
        match change.operation:
            case Operation.SET:
                return _set(name, value)
            case Operation.DELETE:
                return {name: ""} if name in topic.properties else {}
            case Operation.APPEND | Operation.SUBTRACT as operation:
                return self._listed(topic, name, value, operation)

    def _listed(self, topic: Topic, name: str, value: str, operation: Operation) -> dict[str, str]:
        row = PROPERTIES.get(name)
        if row is not None and row.kind is not Kind.SET:
            wrong = f"Can't {operation.name} to key {name} because its type is not LIST."
            raise Refused(Error.INVALID_CONFIG, wrong)
        effective = self._config.topic_properties(topic.name, topic.properties)
        before = [each.strip() for each in effective.get(name, "").split(",") if each.strip()]
        words = [each.strip() for each in value.split(",") if each.strip()]
        if operation is Operation.APPEND:
            after = [*before, *(each for each in words if each not in before)]
        else:
            after = [each for each in before if each not in words]
        return {} if after == before and row is not None else _set(name, ",".join(after))

    def _alter(self, topic: Topic, altered: Mapping[str, str], *, validate_only: bool) -> None:
        if not altered:
            return
        with _as_invalid_config():
            if validate_only:
                after, begins_tiering = self._manager.opener.altered(topic, altered)
                if begins_tiering:
                    self._manager.opener.check_reachable(after)
            else:
                self._manager.topics.alter(topic.name, altered, now_ms=self._now_ms())

    # -- records and log directories ---------------------------------------------------------------------------------

    def delete_records(self, partition: TopicPartition, offset: int) -> int:
        with self._turn(self._changing):
            if offset < HIGH_WATERMARK:
                raise OffsetOutOfRange("cannot delete records, the offset is negative", offset=offset)
            if not self._manager.partitions.find(partition).rules.cleanup_delete:
                wrong = "cannot delete records, cleanup.policy of the topic does not include delete"
                raise Refused(Error.POLICY_VIOLATION, wrong)
            deleted = self._manager.maintenance.delete_records({partition: offset}, now_ms=self._now_ms())
        return deleted[partition].low_watermark

    def log_dirs(self) -> Sequence[LogDir]:
        directories, future = self._manager.directories, self._future
        replicas: dict[str, list[Replica]] = {root: [] for root in directories.roots}
        for held in self._manager.partitions.all():
            root = directories.root_of(held.name)
            if root is not None:
                replicas[root].append(Replica(partition=held.name, size_bytes=held.log.size_bytes))
        if future is not None:
            partition, root, size_bytes = future
            replicas[root].append(Replica(partition=partition, size_bytes=size_bytes, is_future=True))
        return [
            LogDir(
                path=each.path,
                replicas=() if each.is_offline else tuple(replicas[each.path]),
                free_bytes=each.free_bytes,
                total_bytes=each.total_bytes,
                is_offline=each.is_offline,
                is_cordoned=each.is_cordoned,
            )
            for each in directories.facts()
        ]

    def check_move(self, partition: TopicPartition, directory: str) -> bool:
        directories, root = self._manager.directories, os.path.normpath(directory)
        facts = {os.path.normpath(each.path): each for each in directories.facts()}
        if root not in facts:
            known = ", ".join(directories.roots)
            raise Refused(Error.LOG_DIR_NOT_FOUND, f"The log directory {directory} is not configured ({known} are).")
        held, target = self._manager.partitions.find(partition), facts[root]
        if target.is_offline:
            raise Refused(Error.KAFKA_STORAGE_ERROR, f"The log directory {directory} is offline.")
        if directories.of(partition).root == target.path:
            return False
        if target.free_bytes is not None and target.free_bytes < held.log.size_bytes:
            wrong = "cannot move the partition, the target directory has too little free space"
            raise DiskFailed(wrong, to=root, size_bytes=held.log.size_bytes, free_bytes=target.free_bytes)
        return True

    def move(self, partition: TopicPartition, directory: str) -> None:
        wanted = os.path.normpath(directory)
        root = next(each for each in self._manager.directories.roots if os.path.normpath(each) == wanted)
        with self._turn(self._moving):
            if not self.check_move(partition, directory):
                return
            self._future = partition, root, 0
            try:
                progress = partial(self._note_moved, partition, root)
                self._manager.maintenance.move(partition, root, now_ms=self._now_ms(), progress=progress)
            finally:
                self._future = None

    def _note_moved(self, partition: TopicPartition, root: str, done: int, size_bytes: int) -> None:
        if self._is_closed:
            raise Unavailable("the move of a partition ended, the node is stopping", partition=partition)
        self._future = partition, root, done

    # -- shared ------------------------------------------------------------------------------------------------------

    @property
    def _config(self) -> Config:
        return self._manager.config

    def _entries_of(self, topic: str, own: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
        entries = self._entries
        if entries.config is not self._config:  # it was read again
            entries = self._entries = TopicEntries(self._config)
        return entries.of(topic, own)

    def _topic(self, name: str) -> Topic:
        found = self._manager.partitions.registry.find(name)
        if found is None:
            raise NotFound(f"the topic '{name}' does not exist")
        return found

    @contextmanager
    def _turn(self, lock: threading.Lock) -> Iterator[None]:
        with lock:
            if self._is_closed:
                raise Unavailable("nothing was changed, the node is stopping")
            yield


def _set(name: str, value: str) -> dict[str, str]:
    """The property with this value; none for a setting of Kafka that always has it here. Raises Refused."""
    fixed = FIXED_OF_TOPICS.get(name)
    if fixed is not None:
        if value == fixed.value:
            return {}
        wrong = f"Invalid value {value} for configuration {name}: it is always {fixed.value or 'empty'}, {fixed.why}"
        raise Refused(Error.INVALID_CONFIG, wrong)
    with _as_invalid_config():
        row = find_property(name, per_topic=True)
    if not value.strip() and row.kind is not Kind.TEXT:
        wrong = f"Invalid value '' for configuration {name}: expected {row.expected}; DELETE removes the setting"
        raise Refused(Error.INVALID_CONFIG, wrong)
    return {name: value}


@contextmanager
def _as_invalid_config() -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise Refused(Error.INVALID_CONFIG, str(error)) from error
