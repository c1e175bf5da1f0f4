"""What a member or an administrator of consumer groups may do: the rules of groups and committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tiered.serve.authorization.permissions import DENIED, AuthorizationRule, may_cluster, operations, split
from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from tiered.serve.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
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
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupResponse,
)
from tiered.serve.security.acl import Kind, Operation

AskedTopic = TypeVar("AskedTopic", OffsetFetchRequestTopic, OffsetFetchRequestTopics)
_DENIED_GROUP = Error.GROUP_AUTHORIZATION_FAILED
_DENIED_TOPICS = "The group has described topic(s) that the client is not authorized to describe."
# The types of a coordinator's key: what its error is.
_KINDS: Mapping[int, tuple[Kind, Error]] = {
    0: (Kind.GROUP, _DENIED_GROUP),
    1: (Kind.TRANSACTIONAL_ID, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}
_LISTS_SINCE = 4  # FindCoordinator: versions with several keys
_GROUP_ERROR_SINCE = 2  # OffsetFetch: versions with an error of the group


async def find_coordinator(
    service: Service, request: FindCoordinatorRequest, call: Call, handler: Handler
) -> FindCoordinatorResponse:
    """DESCRIBE of each group or transactional id. The handler refuses another type of key."""
    kind, error = _KINDS.get(request.key_type, (None, Error.NONE))
    refused: tuple[str, ...] = ()
    if kind is not None and call.version < _LISTS_SINCE:
        if not service.may(call, Operation.DESCRIBE, kind, request.key):
            return FindCoordinatorResponse(error_code=error)
    elif kind is not None:
        keys, refused = split(service, call, Operation.DESCRIBE, kind, request.coordinator_keys, str)
        request = replace(request, coordinator_keys=keys)
    response = await handler(service, request, call)
    assert isinstance(response, FindCoordinatorResponse)
    added = [Coordinator(key=each, error_code=error) for each in refused]
    return replace(response, coordinators=(*response.coordinators, *added))


def _member_rule(response_type: Callable[..., object]) -> AuthorizationRule:
    """READ of the request's group."""

    async def rule(service: Service, request: Any, call: Call, handler: Handler) -> object:  # noqa: ANN401 - of a member
        if not service.may(call, Operation.READ, Kind.GROUP, request.group_id):
            return response_type(error_code=_DENIED_GROUP)
        return await handler(service, request, call)

    return rule


join_group, sync_group = _member_rule(JoinGroupResponse), _member_rule(SyncGroupResponse)
heartbeat, leave_group = _member_rule(HeartbeatResponse), _member_rule(LeaveGroupResponse)


async def consumer_group_heartbeat(
    service: Service, request: ConsumerGroupHeartbeatRequest, call: Call, handler: Handler
) -> object:
    """READ of the group and DESCRIBE of each topic. A regular expression matches topics with DESCRIBE only."""
    if not service.may(call, Operation.READ, Kind.GROUP, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=_DENIED_GROUP)
    _, refused = split(service, call, Operation.DESCRIBE, Kind.TOPIC, set(request.subscribed_topic_names or ()), str)
    return ConsumerGroupHeartbeatResponse(error_code=DENIED) if refused else await handler(service, request, call)


async def consumer_group_describe(
    service: Service, request: ConsumerGroupDescribeRequest, call: Call, handler: Handler
) -> ConsumerGroupDescribeResponse:
    """DESCRIBE of the group and of each topic of its members."""
    permitted, refused = split(service, call, Operation.DESCRIBE, Kind.GROUP, request.group_ids, str)
    response = await handler(service, replace(request, group_ids=permitted), call)
    assert isinstance(response, ConsumerGroupDescribeResponse)
    shown = [
        replace(
            each, authorized_operations=operations(service, call, Kind.GROUP, each.group_id, each.authorized_operations)
        )
        if all(service.may(call, Operation.DESCRIBE, Kind.TOPIC, name) for name in _topics_of(each))
        else DescribedConsumerGroup(group_id=each.group_id, error_code=DENIED, error_message=_DENIED_TOPICS)
        for each in response.groups
    ]
    added = [DescribedConsumerGroup(group_id=each, error_code=_DENIED_GROUP) for each in refused]
    return replace(response, groups=(*shown, *added))


def _topics_of(group: DescribedConsumerGroup) -> set[str]:
    found: set[str] = set()
    for each in group.members:
        assigned = (*each.assignment.topic_partitions, *each.target_assignment.topic_partitions)
        found.update(each.subscribed_topic_names, (topic.topic_name for topic in assigned))
    return found


async def list_groups(service: Service, request: ListGroupsRequest, call: Call, handler: Handler) -> ListGroupsResponse:
    """DESCRIBE of the cluster for all groups; otherwise those with DESCRIBE."""
    response = await handler(service, request, call)
    assert isinstance(response, ListGroupsResponse)
    if may_cluster(service, call, Operation.DESCRIBE, logs=False):
        return response
    shown = [
        each for each in response.groups if service.may(call, Operation.DESCRIBE, Kind.GROUP, each.group_id, logs=False)
    ]
    return replace(response, groups=tuple(shown))


async def describe_groups(
    service: Service, request: DescribeGroupsRequest, call: Call, handler: Handler
) -> DescribeGroupsResponse:
    permitted, refused = split(service, call, Operation.DESCRIBE, Kind.GROUP, request.groups, str)
    response = await handler(service, replace(request, groups=permitted), call)
    assert isinstance(response, DescribeGroupsResponse)
    shown = [
        replace(
            each,
            authorized_operations=operations(service, call, Kind.GROUP, each.group_id, each.authorized_operations),
        )
        for each in response.groups
    ]
    added = [DescribedGroup(group_id=each, error_code=_DENIED_GROUP) for each in refused]
    return replace(response, groups=(*shown, *added))


async def delete_groups(
    service: Service, request: DeleteGroupsRequest, call: Call, handler: Handler
) -> DeleteGroupsResponse:
    permitted, refused = split(service, call, Operation.DELETE, Kind.GROUP, request.groups_names, str)
    response = await handler(service, replace(request, groups_names=permitted), call)
    assert isinstance(response, DeleteGroupsResponse)
    added = [DeletableGroupResult(group_id=each, error_code=_DENIED_GROUP) for each in refused]
    return replace(response, results=(*response.results, *added))


async def offset_commit(
    service: Service, request: OffsetCommitRequest, call: Call, handler: Handler
) -> OffsetCommitResponse:
    """READ of the group and of each topic. An unknown id is refused here: the handler may know it from a newer list."""
    if not service.may(call, Operation.READ, Kind.GROUP, request.group_id):
        return OffsetCommitResponse(topics=_uncommitted(request.topics, _DENIED_GROUP))
    if any(each.name is None for each in request.topics):
        await service.latest_topics()  # the names of ids
    permitted: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for each in request.topics:
        if (error := _refusal(service, call, Operation.READ, each)) is Error.NONE:
            permitted.append(each)
        else:
            refused += _uncommitted([each], error)
    response = OffsetCommitResponse()
    if permitted or not refused:
        found = await handler(service, replace(request, topics=tuple(permitted)), call)
        assert isinstance(found, OffsetCommitResponse)
        response = found
    return replace(response, topics=(*response.topics, *refused))


def _refusal(
    service: Service,
    call: Call,
    operation: Operation,
    topic: OffsetCommitRequestTopic | OffsetFetchRequestTopics | OffsetFetchRequestTopic | OffsetFetchResponseTopic,
    *,
    logs: bool = True,
) -> Error:
    """Why the caller must not use the topic: DENIED, or UNKNOWN_TOPIC_ID, since no rule names a topic of that id."""
    name = topic.name
    if name is None and not isinstance(topic, OffsetFetchRequestTopic) and topic.topic_id is not None:
        name = service.names_by_id.get(topic.topic_id)
        if name is None:
            return Error.UNKNOWN_TOPIC_ID
    return Error.NONE if name is None or service.may(call, operation, Kind.TOPIC, name, logs=logs) else DENIED


def _uncommitted(topics: Iterable[OffsetCommitRequestTopic], error: Error) -> tuple[OffsetCommitResponseTopic, ...]:
    return tuple(
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ),
        )
        for topic in topics
    )


async def offset_fetch(
    service: Service, request: OffsetFetchRequest, call: Call, handler: Handler
) -> OffsetFetchResponse:
    """DESCRIBE of each group, and of each topic. Topics without it are left out of a list of all.

    An unknown id is refused here: the handler may know it from a newer list.
    """
    topics_of_groups = [topic for group in request.groups for topic in group.topics or ()]
    if any(each.name is None for each in topics_of_groups):
        await service.latest_topics()  # the names of ids
    if not request.groups:
        return await _offset_fetch_of_one(service, request, call, handler)
    permitted, refused = split(
        service, call, Operation.DESCRIBE, Kind.GROUP, request.groups, lambda each: each.group_id
    )
    response = OffsetFetchResponse()
    topics_refused: dict[str, list[OffsetFetchResponseTopic]] = {}
    if permitted:
        groups = tuple(_permitted_group(service, call, each, topics_refused) for each in permitted)
        found = await handler(service, replace(request, groups=groups), call)
        assert isinstance(found, OffsetFetchResponse)
        response = found
    shown = [
        replace(group, topics=_shown(service, call, group.topics, topics_refused[group.group_id]))
        if group.error_code is Error.NONE and group.group_id in topics_refused
        else group
        for group in response.groups
    ]
    added = [OffsetFetchResponseGroup(group_id=each.group_id, error_code=_DENIED_GROUP) for each in refused]
    return replace(response, groups=(*shown, *added))


def _permitted_group(
    service: Service, call: Call, group: OffsetFetchRequestGroup, refused: dict[str, list[OffsetFetchResponseTopic]]
) -> OffsetFetchRequestGroup:
    """The group with the topics that the caller may describe. The others are added to `refused`."""
    if group.topics is None:
        refused[group.group_id] = []
        return group
    topics, refused[group.group_id] = _permitted_topics(service, call, group.topics)
    return replace(group, topics=topics)


def _permitted_topics(
    service: Service, call: Call, topics: Iterable[AskedTopic]
) -> tuple[tuple[AskedTopic, ...], list[OffsetFetchResponseTopic]]:
    permitted: list[AskedTopic] = []
    refused: list[OffsetFetchResponseTopic] = []
    for each in topics:
        if (error := _refusal(service, call, Operation.DESCRIBE, each)) is Error.NONE:
            permitted.append(each)
        else:
            refused.append(_unfetched(each, error))
    return tuple(permitted), refused


async def _offset_fetch_of_one(
    service: Service, request: OffsetFetchRequest, call: Call, handler: Handler
) -> OffsetFetchResponse:
    if not service.may(call, Operation.DESCRIBE, Kind.GROUP, request.group_id):
        if call.version >= _GROUP_ERROR_SINCE:
            return OffsetFetchResponse(error_code=_DENIED_GROUP)
        topics = tuple(_unfetched(each, _DENIED_GROUP) for each in request.topics or ())
        return OffsetFetchResponse(topics=topics)
    refused: list[OffsetFetchResponseTopic] = []
    if request.topics is not None:
        permitted, refused = _permitted_topics(service, call, request.topics)
        request = replace(request, topics=permitted)
    response = await handler(service, request, call)
    assert isinstance(response, OffsetFetchResponse)
    if response.error_code is not Error.NONE:
        return response
    return replace(response, topics=_shown(service, call, response.topics, refused))


def _shown(
    service: Service,
    call: Call,
    found: Iterable[OffsetFetchResponseTopic],
    refused: Iterable[OffsetFetchResponseTopic],
) -> tuple[OffsetFetchResponseTopic, ...]:
    """The found topics that the caller may describe, and the `refused` ones."""
    shown = [each for each in found if _refusal(service, call, Operation.DESCRIBE, each, logs=False) is Error.NONE]
    return (*shown, *refused)


def _unfetched(topic: OffsetFetchRequestTopic | OffsetFetchRequestTopics, error: Error) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id if isinstance(topic, OffsetFetchRequestTopics) else None,
        partitions=tuple(
            OffsetFetchResponsePartition(partition_index=each, error_code=error) for each in topic.partition_indexes
        ),
    )


async def offset_delete(
    service: Service, request: OffsetDeleteRequest, call: Call, handler: Handler
) -> OffsetDeleteResponse:
    """DELETE of the group, and READ of each topic."""
    if not service.may(call, Operation.DELETE, Kind.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=_DENIED_GROUP)
    topics, refused = split(service, call, Operation.READ, Kind.TOPIC, request.topics, lambda each: each.name)
    response = await handler(service, replace(request, topics=topics), call)
    assert isinstance(response, OffsetDeleteResponse)
    if response.error_code is not Error.NONE:
        return response
    added = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=DENIED)
                for each in topic.partitions
            ),
        )
        for topic in refused
    ]
    return replace(response, topics=(*response.topics, *added))
