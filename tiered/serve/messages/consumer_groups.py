"""The messages of the consumer group protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from tiered.serve.messages.base import NO_OPERATIONS, Api, Error, Versions

JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2  # member epochs of a request
OF_CONSUMER_PROTOCOL = 1  # member type


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic_id: UUID | None = None
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest:
    """A field that is null, or -1, is as in the last heartbeat. `subscribed_topic_regex`: from version 1."""

    group_id: str
    member_id: str = ""
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    """`assignment` None: as before."""

    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTopicPartitions:
    topic_id: UUID | None = None
    topic_name: str = ""
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedAssignment:
    topic_partitions: tuple[DescribedTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    """A member."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    target_assignment: DescribedAssignment = field(default_factory=DescribedAssignment)
    member_type: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    error_code: Error = Error.NONE
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = 0
    groups: tuple[DescribedConsumerGroup, ...] = ()


# The oldest versions are those of Apache Kafka 4 (KIP-896), the newest those of kio 0.6.
APIS: Mapping[int, Versions] = MappingProxyType(
    {
        Api.CONSUMER_GROUP_HEARTBEAT: Versions(0, 1, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
        Api.CONSUMER_GROUP_DESCRIBE: Versions(0, 1, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    }
)
