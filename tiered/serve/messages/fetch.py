"""The messages of Fetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from tiered.serve.messages.base import Api, Error, Piece, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    partition: int
    current_leader_epoch: int = -1
    fetch_offset: int
    partition_max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """Named by `topic` up to version 12, by `topic_id` from version 13."""

    topic: str | None = None
    topic_id: UUID | None = None
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    """Partitions that leave a fetch session; the topic as in `FetchTopic`."""

    topic: str | None = None
    topic_id: UUID | None = None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    """`records` are runs of whole batches. `aborted_transactions` is None under read_uncommitted, or without a read.

    `current_leader` spares a client with an old epoch the request of metadata (KIP-951).
    """

    partition_index: int
    error_code: Error = Error.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    current_leader: LeaderIdAndEpoch | None = None
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    records: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse:
    topic: str | None = None
    topic_id: UUID | None = None
    partitions: tuple[PartitionData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    session_id: int = 0
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()  # of each `current_leader`

    def has_errors(self) -> bool:
        """Whether it has an error code, of the request or of a partition."""
        if self.error_code is not Error.NONE:
            return True
        return any(each.error_code is not Error.NONE for topic in self.responses for each in topic.partitions)


# The oldest versions are those of Apache Kafka 4 (KIP-896), the newest those of kio 0.6.
APIS: Mapping[int, Versions] = MappingProxyType(
    {
        Api.FETCH: Versions(4, 18, FetchRequest, FetchResponse),
    }
)
