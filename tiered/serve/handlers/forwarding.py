"""Group requests at a replica, which forwards them to the node that coordinates the groups (`Service.group_node`).

FindCoordinator names a replica, so clients see one cluster: the replicas. Any replica forwards any group request. The
state of the groups is in the node: replicas may disagree which of them a client should ask, and may end.

A request goes to the node in the client's version and with its client id, after the replica's own authorization. The
topics of ids are the replica's: an id that it does not serve is refused, since no rule has permitted its topic.

| failure | response, in each place that has an error code |
|---|---|
| the node cannot be reached, or does not answer | COORDINATOR_NOT_AVAILABLE; of OffsetFetch NOT_COORDINATOR |
| the node does not serve the version | UNSUPPORTED_VERSION |

Clients try again after both errors of the first row. After COORDINATOR_NOT_AVAILABLE of an OffsetFetch aiokafka 0.14
ends its consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from tiered.serve.groups.consumer.regexes import Resolution, regex_error
from tiered.serve.groups.group_node import RESPONSE_S, NodeUnavailable, UnsupportedByNode
from tiered.serve.handlers.repeated_errors import RepeatedErrors
from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.consumer_groups import (
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
    OffsetDeleteResponse,
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
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupResponse,
)
from tiered.serve.peers import Member
from tiered.serve.security.acl import Kind, Operation

_GROUP = 0  # kafka `CoordinatorType`
_KEYS_SINCE = 4  # version of FindCoordinator
_IDS_SINCE = 10  # version of OffsetCommit and OffsetFetch
_WAIT_FOR_MEMBERS = (Api.JOIN_GROUP, Api.SYNC_GROUP)  # the response may wait for other members of the group
_log = logging.getLogger(__name__)
_errors = RepeatedErrors(_log, attempt="cannot forward a group request", place="node")


async def _find_coordinator(service: Service, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if call.version >= _KEYS_SINCE else (request.key,)
    found = [_coordinator(service, each, request.key_type, call) for each in keys]
    if call.version >= _KEYS_SINCE:
        return FindCoordinatorResponse(coordinators=tuple(found))
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


def _coordinator(service: Service, key: str, key_type: int, call: Call) -> Coordinator:
    """The replica that clients ask for a group, by the id and the address that it has in Metadata."""
    if key_type != _GROUP:
        message = f"coordinators of type {key_type} are not served"
        return Coordinator(key=key, error_code=Error.INVALID_REQUEST, error_message=message)
    here = Member(broker_id=service.broker_id, endpoint=call.endpoint)
    found = service.peers.coordinator_of(key) if service.peers is not None else here
    return Coordinator(
        key=key,
        node_id=found.broker_id,
        host=found.endpoint.host,
        port=found.endpoint.port,
        error_message="" if call.version >= _KEYS_SINCE else "NONE",  # as Kafka's
    )


Refusal = Callable[[Any, Error], object]  # the response to a request that fails as a whole


async def _forward(service: Service, api: int, request: Any, call: Call, refusal: Refusal) -> Any:  # noqa: ANN401 - by the API
    node, to = call.node, service.group_node
    assert node is not None, "a replica with a node has a connection for each client"
    assert to is not None, "the handlers of this module are used with a node"
    if isinstance(request, JoinGroupRequest):
        node.rebalance_s = max(0, request.rebalance_timeout_ms, request.session_timeout_ms) / 1000
    limit_s = RESPONSE_S + (node.rebalance_s if api in _WAIT_FOR_MEMBERS else 0.0)
    try:
        return await node.call(api, call.version, request, call.client_id, limit_s=limit_s)
    except UnsupportedByNode:
        return refusal(request, Error.UNSUPPORTED_VERSION)
    except NodeUnavailable as error:
        _errors.warn(to.endpoint, error)
        is_fetch = api == Api.OFFSET_FETCH
        return refusal(request, Error.NOT_COORDINATOR if is_fetch else Error.COORDINATOR_NOT_AVAILABLE)


def _forwarding(api: Api, refusal: Refusal) -> Handler:
    async def forward(service: Service, request: object, call: Call) -> object:
        return await _forward(service, api, request, call, refusal)

    return forward


async def _list_groups(service: Service, request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    """The groups for which clients ask this replica, as a broker does: admin clients add the lists of all replicas."""
    response: ListGroupsResponse = await _forward(service, Api.LIST_GROUPS, request, call, _unlisted)
    peers = service.peers
    if peers is None:
        return response
    own = [each for each in response.groups if peers.coordinator_of(each.group_id) == peers.own]
    return replace(response, groups=tuple(own))


async def _heartbeat(service: Service, request: ConsumerGroupHeartbeatRequest, call: Call) -> object:
    """Refuse an expression that matches a topic that the client may not describe: the node sees another principal."""
    regex = request.subscribed_topic_regex
    if regex and service.security is not None:
        if (reason := regex_error(regex)) is not None:  # also without RE2
            message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}."
            return ConsumerGroupHeartbeatResponse(error_code=Error.INVALID_REGULAR_EXPRESSION, error_message=message)
        topics = await service.latest_topics()
        if topics is None:
            return ConsumerGroupHeartbeatResponse(error_code=Error.COORDINATOR_NOT_AVAILABLE)
        hidden = [each for each in topics if not service.may(call, Operation.DESCRIBE, Kind.TOPIC, each, logs=False)]
        if await _matches(service, regex, hidden):
            return ConsumerGroupHeartbeatResponse(error_code=Error.TOPIC_AUTHORIZATION_FAILED)
    return await _forward(service, Api.CONSUMER_GROUP_HEARTBEAT, request, call, _unbeaten)


async def _matches(service: Service, regex: str, names: list[str]) -> bool:
    def resolve() -> bool:
        resolution = Resolution([regex], names)
        while (found := resolution.step()) is None:
            pass
        return any(found.values())

    return bool(names) and await service.offload(resolve)


async def _offset_commit(service: Service, request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    if call.version < _IDS_SINCE:
        found: OffsetCommitResponse = await _forward(service, Api.OFFSET_COMMIT, request, call, _uncommitted)
        return found
    ids = await _ids(service)
    known = tuple(each for each in request.topics if each.topic_id in ids)
    unknown = tuple(each for each in request.topics if each.topic_id not in ids)
    response = OffsetCommitResponse()
    if known or not unknown:
        response = await _forward(service, Api.OFFSET_COMMIT, replace(request, topics=known), call, _uncommitted)
    return replace(response, topics=(*response.topics, *_failed_commits(unknown, Error.UNKNOWN_TOPIC_ID)))


async def _offset_fetch(service: Service, request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    if call.version < _IDS_SINCE:
        found: OffsetFetchResponse = await _forward(service, Api.OFFSET_FETCH, request, call, _unfetched)
        return found
    ids = await _ids(service)

    def known(group: OffsetFetchRequestGroup) -> OffsetFetchRequestGroup:
        if group.topics is None:
            return group
        return replace(group, topics=tuple(each for each in group.topics if each.topic_id in ids))

    asked = replace(request, groups=tuple(map(known, request.groups)))
    response: OffsetFetchResponse = await _forward(service, Api.OFFSET_FETCH, asked, call, _unfetched)
    unknown = {
        each.group_id: _failed_fetches(
            [topic for topic in each.topics or () if topic.topic_id not in ids], Error.UNKNOWN_TOPIC_ID
        )
        for each in request.groups
    }
    return replace(
        response,
        groups=tuple(
            replace(
                each,
                topics=(
                    *(topic for topic in each.topics if topic.topic_id in ids),
                    *unknown.get(each.group_id, ()),
                ),
            )
            if each.error_code is Error.NONE
            else each
            for each in response.groups
        ),
    )


async def _ids(service: Service) -> Container[UUID | None]:
    await service.latest_topics()
    return service.names_by_id.keys()


def _unlisted(request: object, error: Error) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error)


def _unbeaten(request: object, error: Error) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error)


def _uncommitted(request: OffsetCommitRequest, error: Error) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=_failed_commits(request.topics, error))


def _failed_commits(
    topics: tuple[OffsetCommitRequestTopic, ...], error: Error
) -> tuple[OffsetCommitResponseTopic, ...]:
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


def _unfetched(request: OffsetFetchRequest, error: Error) -> OffsetFetchResponse:
    """The error in each place that a version may have. Source: kafka `OffsetFetchRequest.getErrorResponse`."""
    return OffsetFetchResponse(
        error_code=error,
        topics=_failed_fetches(request.topics or (), error),
        groups=tuple(OffsetFetchResponseGroup(group_id=each.group_id, error_code=error) for each in request.groups),
    )


def _failed_fetches(
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics], error: Error
) -> tuple[OffsetFetchResponseTopic, ...]:
    return tuple(
        OffsetFetchResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id if isinstance(topic, OffsetFetchRequestTopics) else None,
            partitions=tuple(
                OffsetFetchResponsePartition(partition_index=each, error_code=error) for each in topic.partition_indexes
            ),
        )
        for topic in topics
    )


_REFUSALS: Mapping[Api, Refusal] = {
    Api.JOIN_GROUP: lambda asked, error: JoinGroupResponse(error_code=error, member_id=asked.member_id),
    Api.SYNC_GROUP: lambda asked, error: SyncGroupResponse(error_code=error),
    Api.HEARTBEAT: lambda asked, error: HeartbeatResponse(error_code=error),
    Api.LEAVE_GROUP: lambda asked, error: LeaveGroupResponse(error_code=error),
    Api.DESCRIBE_GROUPS: lambda asked, error: DescribeGroupsResponse(
        groups=tuple(DescribedGroup(group_id=each, error_code=error) for each in dict.fromkeys(asked.groups))
    ),
    Api.DELETE_GROUPS: lambda asked, error: DeleteGroupsResponse(
        results=tuple(
            DeletableGroupResult(group_id=each, error_code=error) for each in dict.fromkeys(asked.groups_names)
        )
    ),
    Api.CONSUMER_GROUP_DESCRIBE: lambda asked, error: ConsumerGroupDescribeResponse(
        groups=tuple(DescribedConsumerGroup(group_id=each, error_code=error) for each in dict.fromkeys(asked.group_ids))
    ),
    Api.OFFSET_DELETE: lambda asked, error: OffsetDeleteResponse(error_code=error),
}

HANDLERS: Mapping[int, Handler] = MappingProxyType(
    dict[int, Handler]()
    | {api: _forwarding(api, refusal) for api, refusal in _REFUSALS.items()}
    | {
        Api.FIND_COORDINATOR: _find_coordinator,
        Api.LIST_GROUPS: _list_groups,
        Api.CONSUMER_GROUP_HEARTBEAT: _heartbeat,
        Api.OFFSET_COMMIT: _offset_commit,
        Api.OFFSET_FETCH: _offset_fetch,
    }
)
