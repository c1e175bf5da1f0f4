"""The messages of AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tiered.serve.messages.base import Api, Error, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartition:
    """`replicas` None: cancel a running reassignment."""

    partition_index: int
    replicas: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopic:
    name: str
    partitions: tuple[ReassignablePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    topics: tuple[ReassignableTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartitionResponse:
    partition_index: int
    error_code: Error = Error.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopicResponse:
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    error_message: str | None = None
    responses: tuple[ReassignableTopicResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsRequest:
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    """Without running reassignments."""

    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """`election_type` 0: the preferred replica, 1: any live one. `topic_partitions` None: all."""

    election_type: int = 0
    topic_partitions: tuple[TopicPartitions, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_id: int
    error_code: Error
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaElectionResult:
    topic: str
    partition_result: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse:
    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()


# The oldest versions are those of Apache Kafka 4 (KIP-896), the newest those of kio 0.6.
APIS: Mapping[int, Versions] = MappingProxyType(
    {
        Api.ALTER_PARTITION_REASSIGNMENTS: Versions(
            0, 1, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
        ),
        Api.LIST_PARTITION_REASSIGNMENTS: Versions(
            0, 0, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
        ),
        Api.ELECT_LEADERS: Versions(0, 2, ElectLeadersRequest, ElectLeadersResponse),
    }
)
