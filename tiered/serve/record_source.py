"""What the handlers need of a log: `RecordSource`.

A bucket implements it (`tiered.serve.bucket_source`), and a node (`tiered.serve.node.node_source`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tiered.serve.file_range import FileRange

if TYPE_CHECKING:
    from local.errors import LogError
    from local.index.txn_index import AbortedTransaction
    from local.names import TopicPartition
    from local.records.isolation import Isolation
    from local.records.offset_spec import FoundOffset


INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")  # those of the coordinators


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTopic:
    """`partitions` are numbers, ascending."""

    name: str
    topic_id: UUID | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """What Metadata states of a partition. Epoch None: unknown. With `error` the partition has no leader here.

    `is_offline`: its log directory failed.
    """

    epoch: int | None = None
    error: LogError | None = None
    is_offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Offsets of a partition at one moment: log start <= last stable <= high watermark, where the readable log ends.

    `leader_epoch` is that of the next record on a node, of the newest record in a bucket; None if it is unknown.
    """

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatches:
    """`runs` of whole batches from the one that holds the offset, or the next one after it; bytes that do not change.

    `aborted` are the aborted transactions among them; None under read_uncommitted. `is_remote`: the runs are from the
    bucket or its cache.
    """

    bounds: Bounds
    runs: Sequence[memoryview | FileRange] = ()
    aborted: Sequence[AbortedTransaction] | None = None
    is_remote: bool = False

    @property
    def size_bytes(self) -> int:
        return sum([run.nbytes for run in self.runs])


class RecordSource(Protocol):
    """Topics to read. Thread safe. All verbs but `watch` and `leaders` may wait for a disk or a store.

    Verbs on a partition raise NotFound if it does not exist, Unavailable, Corrupt and AccessDenied.
    """

    @property
    def cluster_id(self) -> str:
        """The same text for all processes that serve the same topics."""

    def topics(self) -> Mapping[str, ServedTopic]:
        """All topics by name. Raises Unavailable, AccessDenied."""

    def leaders(self, topic: ServedTopic) -> Mapping[int, Leader]:
        """The leaders of a topic's partitions as known now; a missing one is this server, its epoch unknown."""

    def bounds(self, partition: TopicPartition) -> Bounds: ...

    def read(self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int) -> ReadBatches:
        """At most `bytes_max` bytes, but at least one batch unless the log ends. Raises OffsetOutOfRange."""

    def find_offset(self, partition: TopicPartition, spec: int, isolation: Isolation) -> FoundOffset | None:
        """The offset of a timestamp in ms, or of a code of ListOffsets. Raises InvalidRequest for another code."""

    def epochs(self, partition: TopicPartition) -> Sequence[tuple[int, int]]:
        """(leader epoch, start offset), both strictly ascending."""

    def watch(
        self, partitions: Collection[TopicPartition], notify: Callable[[TopicPartition], None]
    ) -> AbstractContextManager[None]:
        """Within the block call `notify`, from any thread, after the bounds of one of `partitions` changed."""


class PromptSource(Protocol):
    """Answers of a source without a wait for a disk or a store, in the event loop. None: the `RecordSource` answers."""

    def topics_now(self) -> Mapping[str, ServedTopic] | None: ...

    def read_now(
        self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int
    ) -> ReadBatches | None: ...


def uuid_of(topic_id: str) -> UUID | None:
    """The topic id as Kafka's protocol has it; None for the zero id of a topic without one."""
    found = UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))
    return found if found.int else None
