"""The messages of the served APIs, one class for all versions. Values are Kafka's own, -1 included.

A field has the name that `kio` gives it; a field with a duration has the suffix ``_ms``. A version of an API that lacks
a field leaves its default in a request and omits it from a response (`tiered.serve.codec`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

Piece = bytes | bytearray | memoryview  # bytes to send
NO_OPERATIONS = -(2**31)  # Kafka's value for "authorized operations were not requested"


class Api(IntEnum):
    """The keys of the served APIs."""

    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CLUSTER = 60


class Error(IntEnum):
    """The error codes that this endpoint sends. Source: kafka `Errors`."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_TOPIC_EXCEPTION = 17
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNKNOWN_TOPIC_ID = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    error_code: Error = Error.NONE
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic:
    name: str | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """`topics` None: all topics. An empty tuple means all topics in version 0, none in later versions."""

    topics: tuple[MetadataRequestTopic, ...] | None = None
    include_topic_authorized_operations: bool = False
    include_cluster_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseBroker:
    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponsePartition:
    error_code: Error = Error.NONE
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseTopic:
    error_code: Error = Error.NONE
    name: str | None = None
    topic_id: UUID | None = None
    is_internal: bool = False
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    throttle_time_ms: int = 0
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None
    controller_id: int
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: int = NO_OPERATIONS
    error_code: Error = Error.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterBroker:
    broker_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse:
    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    partition_index: int
    current_leader_epoch: int = -1
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    replica_id: int
    isolation_level: int = 0
    topics: tuple[ListOffsetsTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    partition_index: int
    error_code: Error = Error.NONE
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    throttle_time_ms: int = 0
    topics: tuple[ListOffsetsTopicResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderPartition:
    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    topics: tuple[OffsetForLeaderTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    error_code: Error = Error.NONE
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[EpochEndOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]


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
class FetchRequest:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: tuple[FetchTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    """`records` are runs of whole batches. `aborted_transactions` is None under read_uncommitted."""

    partition_index: int
    error_code: Error = Error.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    records: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse:
    topic: str | None = None
    topic_id: UUID | None = None
    partitions: tuple[PartitionData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    session_id: int = 0
    responses: tuple[FetchableTopicResponse, ...] = ()


Request = (
    ApiVersionsRequest
    | MetadataRequest
    | DescribeClusterRequest
    | ListOffsetsRequest
    | OffsetForLeaderEpochRequest
    | FetchRequest
)
Response = (
    ApiVersionsResponse
    | MetadataResponse
    | DescribeClusterResponse
    | ListOffsetsResponse
    | OffsetForLeaderEpochResponse
    | FetchResponse
)
