"""What the handlers need to change a node: `Admin`. A running `LogManager` implements it (`tiered.serve.node`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tiered.serve.messages.base import Error

if TYPE_CHECKING:
    from local.names import TopicPartition


class Refused(Exception):
    """A request that breaks a rule of Kafka: its error code, and a message for the user of the client."""

    def __init__(self, error: Error, message: str | None = None) -> None:
        super().__init__(error, message)
        self.error, self.message = error, message


class ConfigSource(IntEnum):
    """Where a value is set. Source: kafka `DescribeConfigsResponse.ConfigSource`."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """The type of a value. Source: kafka `DescribeConfigsResponse.ConfigType`."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Operation(IntEnum):
    """A change of one setting. Source: kafka `AlterConfigOp.OpType`."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """An effective setting. `synonyms` are all its values, the effective one first."""

    name: str
    value: str
    source: ConfigSource
    type: ConfigType
    is_read_only: bool = False
    synonyms: tuple[Synonym, ...] = ()
    documentation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """`partitions` None: the default of the node."""

    name: str
    partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    topic_id: UUID | None  # None: it was only checked
    partition_count: int
    settings: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`value` is None for DELETE only."""

    name: str
    operation: Operation
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Bytes of ``.log`` files. `is_future`: a copy that a move has begun."""

    partition: TopicPartition
    size_bytes: int
    is_future: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """`free_bytes` and `total_bytes` None: unknown. An offline directory has no replicas."""

    path: str
    replicas: tuple[Replica, ...] = ()
    free_bytes: int | None = None
    total_bytes: int | None = None
    is_offline: bool = False
    is_cordoned: bool = False


class Configs(Protocol):
    """Effective settings to read. Thread safe."""

    def topic_configs(self, topic: str) -> Sequence[ConfigEntry]:
        """Raises NotFound."""

    def broker_configs(self) -> Sequence[ConfigEntry]: ...


class Admin(Configs, Protocol):
    """Changes of a node. Thread safe; one change runs at a time, reads continue. All verbs may wait.

    They raise `Refused` for a broken rule of Kafka, and LogError for everything else. `validate_only` checks all that
    the change would check, and changes nothing.
    """

    @property
    def default_partitions(self) -> int: ...

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool) -> Sequence[CreatedTopic | Exception]:
        """The created topics in order, or why each was not created. A failure does not affect the other topics."""

    def delete_topic(self, topic: str, topic_id: UUID | None) -> UUID | None:
        """Delete a topic, with this id unless None; return its id. Raises NotFound."""

    def add_partitions(self, topic: str, count: int, *, validate_only: bool) -> None:
        """Raise the number of partitions to `count`. Raises NotFound."""

    def alter_topic(self, topic: str, changes: Sequence[Change], *, validate_only: bool) -> None:
        """Apply all changes or none. Raises NotFound."""

    def replace_settings(self, topic: str, settings: Mapping[str, str], *, validate_only: bool) -> None:
        """Make `settings` the topic's only own ones. Raises NotFound."""

    def delete_records(self, partition: TopicPartition, offset: int) -> int:
        """Delete the records below an offset (-1: all); return the log start offset. Raises OffsetOutOfRange."""

    def log_dirs(self) -> Sequence[LogDir]: ...

    def check_move(self, partition: TopicPartition, directory: str) -> bool:
        """Whether the partition has to move to be in `directory`. Raises Refused if it cannot."""

    def move(self, partition: TopicPartition, directory: str) -> None:
        """Move a partition to another log directory; returns at the end of the move."""
