"""Membership and administration of groups: FindCoordinator, JoinGroup to LeaveGroup, List-, Describe-, DeleteGroups.

This server coordinates every group and every transactional id: a coordinator is always the endpoint of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiered.serve.groups.consumer.group import ConsumerGroup
from tiered.serve.groups.consumer.membership import AnyGroup
from tiered.serve.groups.members import Client
from tiered.serve.handlers.service import RESPONSE_BYTES_MAX, Call, Service
from tiered.serve.messages.base import NO_OPERATIONS, Error
from tiered.serve.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

_GROUP, _TRANSACTION = 0, 1  # kafka `CoordinatorType`
_KEYS_SINCE = 4  # version of FindCoordinator
_PROTOCOL_SINCE = 5  # version of SyncGroup
_MEMBERS_SINCE = 3  # version of LeaveGroup
_NOT_FOUND_SINCE = 6  # version of DescribeGroups
_CLASSIC, _CONSUMER = "classic", "consumer"
TOO_LARGE = "The response would be too large: request fewer groups."
# Bits of kafka's `AclOperation`: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


async def find_coordinator(service: Service, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if call.version >= _KEYS_SINCE else (request.key,)
    error, message = await _coordinator_error(service, request.key_type)
    found = [_coordinator(service, each, call, error, message) for each in keys]
    if call.version >= _KEYS_SINCE:
        return FindCoordinatorResponse(coordinators=tuple(found))
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


async def join_group(service: Service, request: JoinGroupRequest, call: Call) -> JoinGroupResponse:
    return await service.coordinator.join(request, client_of(call), call.version)


async def sync_group(service: Service, request: SyncGroupRequest, call: Call) -> SyncGroupResponse:
    if call.version >= _PROTOCOL_SINCE and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=Error.INCONSISTENT_GROUP_PROTOCOL)
    return await service.coordinator.sync(request)


async def heartbeat(service: Service, request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=service.coordinator.heartbeat(request))


async def leave_group(service: Service, request: LeaveGroupRequest, call: Call) -> LeaveGroupResponse:
    if call.version >= _MEMBERS_SINCE:
        return await service.coordinator.leave(request)
    one = MemberIdentity(member_id=request.member_id)
    found = await service.coordinator.leave(LeaveGroupRequest(group_id=request.group_id, members=(one,)))
    return LeaveGroupResponse(error_code=found.error_code or found.members[0].error_code)


async def list_groups(service: Service, request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    groups = service.coordinator
    if error := groups.loading():
        return ListGroupsResponse(error_code=error)
    states, types = _lower(request.states_filter), _lower(request.types_filter)
    found = [
        ListedGroup(
            group_id=name,
            protocol_type=each.protocol_type or "",
            group_state=each.state.value,
            group_type=_type(each),
        )
        for name, each in groups.groups().items()
        if (not states or each.state.value.lower() in states) and (not types or _type(each) in types)
    ]
    return ListGroupsResponse(groups=tuple(found))


async def describe_groups(service: Service, request: DescribeGroupsRequest, call: Call) -> DescribeGroupsResponse:
    """Each group once: Kafka describes a group as often as the request names it."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    found: list[DescribedGroup] = []
    size_bytes = 0
    for name in dict.fromkeys(request.groups):
        group = service.coordinator.groups().get(name)
        size_bytes += group.size_bytes if group is not None else 0
        if size_bytes > RESPONSE_BYTES_MAX:
            message = TOO_LARGE if call.version >= _NOT_FOUND_SINCE else None
            found.append(DescribedGroup(group_id=name, error_code=Error.POLICY_VIOLATION, error_message=message))
        else:
            found.append(_described(service, name, call.version, operations))
    return DescribeGroupsResponse(groups=tuple(found))


async def delete_groups(service: Service, request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    names = tuple(dict.fromkeys(request.groups_names))
    errors = await service.coordinator.delete_groups(names)
    found = [DeletableGroupResult(group_id=name, error_code=error) for name, error in zip(names, errors, strict=True)]
    return DeleteGroupsResponse(results=tuple(found))


async def _coordinator_error(service: Service, key_type: int) -> tuple[Error, str | None]:
    if key_type == _GROUP:
        error = await service.coordinator.prepare()
        return (Error.NONE if error is Error.COORDINATOR_LOAD_IN_PROGRESS else error), None
    if key_type == _TRANSACTION and service.transactions is not None:
        return Error.NONE, None
    return Error.INVALID_REQUEST, f"coordinators of type {key_type} are not served"


def _coordinator(service: Service, key: str, call: Call, error: Error, message: str | None) -> Coordinator:
    if error:
        return Coordinator(key=key, error_code=error, error_message=message)
    return Coordinator(
        key=key,
        node_id=service.broker_id,
        host=call.endpoint.host,
        port=call.endpoint.port,
        error_message="" if call.version >= _KEYS_SINCE else "NONE",  # as Kafka's
    )


def client_of(call: Call) -> Client:
    return Client(client_id=call.client_id or "", host=f"/{call.client_host}")


def _lower(names: Sequence[str]) -> set[str]:
    return {each.lower() for each in names}


def _type(group: AnyGroup) -> str:
    return _CONSUMER if isinstance(group, ConsumerGroup) else _CLASSIC


def _missing(service: Service, name: str) -> str:
    return (
        f"Group {name} is not a classic group." if name in service.coordinator.groups() else f"Group {name} not found."
    )


def _described(service: Service, name: str, version: int, operations: int) -> DescribedGroup:
    if error := service.coordinator.loading():
        return DescribedGroup(group_id=name, error_code=error)
    found = service.coordinator.described(name)
    if found is None:
        is_known = version >= _NOT_FOUND_SINCE
        return DescribedGroup(
            group_id=name,
            group_state="Dead",
            error_code=Error.GROUP_ID_NOT_FOUND if is_known else Error.NONE,
            error_message=_missing(service, name) if is_known else None,
            authorized_operations=NO_OPERATIONS if is_known else operations,
        )
    return replace(found, authorized_operations=operations)
