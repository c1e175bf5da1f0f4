"""The messages of AlterPartitionReassignments and ListPartitionReassignments."""

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


# The oldest versions are those of Apache Kafka 4 (KIP-896), the newest those of kio 0.6.
APIS: Mapping[int, Versions] = MappingProxyType(
    {
        Api.ALTER_PARTITION_REASSIGNMENTS: Versions(
            0, 1, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
        ),
        Api.LIST_PARTITION_REASSIGNMENTS: Versions(
            0, 0, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
        ),
    }
)
