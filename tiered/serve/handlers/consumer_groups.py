"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from local.errors import LogError
from tiered.serve.groups.consumer.group import ConsumerGroup
from tiered.serve.handlers.groups import GROUP_OPERATIONS, TOO_LARGE, client_of
from tiered.serve.handlers.service import RESPONSE_BYTES_MAX, Call, Service, error_of
from tiered.serve.messages.base import NO_OPERATIONS, Error
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from tiered.serve.record_source import ServedTopic
from tiered.serve.security.acl import Kind, Operation


async def consumer_group_heartbeat(
    service: Service, request: ConsumerGroupHeartbeatRequest, call: Call
) -> ConsumerGroupHeartbeatResponse:
    topics = await _topics(service)
    if topics is None:
        return ConsumerGroupHeartbeatResponse(error_code=Error.COORDINATOR_NOT_AVAILABLE)

    def may_match(topic: str) -> bool:
        return service.may(call, Operation.DESCRIBE, Kind.TOPIC, topic, logs=False)

    consumers = service.coordinator.consumers
    return await consumers.heartbeat(request, client_of(call), call.version, topics, may_match)


async def consumer_group_describe(
    service: Service, request: ConsumerGroupDescribeRequest, call: Call
) -> ConsumerGroupDescribeResponse:
    """Each group once, as DescribeGroups."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    topics, groups = await _topics(service), service.coordinator
    found: list[DescribedConsumerGroup] = []
    size_bytes = 0
    for name in dict.fromkeys(request.group_ids):
        group = groups.groups().get(name)
        size_bytes += group.described_bytes if isinstance(group, ConsumerGroup) else 0
        error = groups.loading() or (Error.COORDINATOR_NOT_AVAILABLE if topics is None else Error.NONE)
        if error or topics is None:
            found.append(DescribedConsumerGroup(group_id=name, error_code=error))
        elif size_bytes > RESPONSE_BYTES_MAX:
            refused = DescribedConsumerGroup(group_id=name, error_code=Error.POLICY_VIOLATION, error_message=TOO_LARGE)
            found.append(refused)
        else:
            described = groups.consumers.described(name, service.names_by_id)
            found.append(described if described.error_code else replace(described, authorized_operations=operations))
    return ConsumerGroupDescribeResponse(groups=tuple(found))


async def _topics(service: Service) -> Mapping[str, ServedTopic] | None:
    try:
        return await service.topics()
    except LogError as error:
        error_of(error, "all")
        return None
