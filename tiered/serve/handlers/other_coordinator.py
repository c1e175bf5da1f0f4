"""Group requests at a server whose groups another node coordinates (`Service.group_node`).

FindCoordinator names that node. Clients connect to it for all requests of their group, with the security of their other
connections. Any other group request gets NOT_COORDINATOR here, as from a broker that does not coordinate the group, and
its client asks for the coordinator again.

The node id of the response is FIRST_NODE_ID: never that of a broker in this server's Metadata. Clients such as
librdkafka take a coordinator's id for a broker of the cluster, and would send the fetches of that broker to the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from tiered.serve.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
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
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupResponse,
)

FIRST_NODE_ID = 1 << 20
_GROUP = 0  # kafka `CoordinatorType`
_KEYS_SINCE = 4  # version of FindCoordinator
_HERE = Error.NOT_COORDINATOR


async def _find_coordinator(service: Service, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    node = service.group_node
    assert node is not None, "the handlers of this module are used with a node"
    keys = request.coordinator_keys if call.version >= _KEYS_SINCE else (request.key,)
    if request.key_type != _GROUP:
        message = f"coordinators of type {request.key_type} are not served"
        found = [Coordinator(key=each, error_code=Error.INVALID_REQUEST, error_message=message) for each in keys]
    else:
        words = "" if call.version >= _KEYS_SINCE else "NONE"  # as Kafka's
        found = [
            Coordinator(key=each, node_id=FIRST_NODE_ID, host=node.host, port=node.port, error_message=words)
            for each in keys
        ]
    if call.version >= _KEYS_SINCE:
        return FindCoordinatorResponse(coordinators=tuple(found))
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


def _uncommitted(request: OffsetCommitRequest) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=_HERE)
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _unfetched(request: OffsetFetchRequest) -> OffsetFetchResponse:
    """The error in each place that a version may have. Source: kafka `OffsetFetchRequest.getErrorResponse`."""
    return OffsetFetchResponse(
        error_code=_HERE,
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetFetchResponsePartition(partition_index=each, error_code=_HERE)
                    for each in topic.partition_indexes
                ),
            )
            for topic in request.topics or ()
        ),
        groups=tuple(OffsetFetchResponseGroup(group_id=each.group_id, error_code=_HERE) for each in request.groups),
    )


def _refusing(response: Callable[[Any], object]) -> Handler:
    async def refuse(service: Service, request: object, call: Call) -> object:
        return response(request)

    return refuse


HANDLERS: Mapping[int, Handler] = MappingProxyType(
    {
        Api.FIND_COORDINATOR: _find_coordinator,
        Api.JOIN_GROUP: _refusing(lambda asked: JoinGroupResponse(error_code=_HERE, member_id=asked.member_id)),
        Api.SYNC_GROUP: _refusing(lambda asked: SyncGroupResponse(error_code=_HERE)),
        Api.HEARTBEAT: _refusing(lambda asked: HeartbeatResponse(error_code=_HERE)),
        Api.LEAVE_GROUP: _refusing(lambda asked: LeaveGroupResponse(error_code=_HERE)),
        Api.LIST_GROUPS: _refusing(lambda asked: ListGroupsResponse()),  # this server coordinates none
        Api.DESCRIBE_GROUPS: _refusing(
            lambda asked: DescribeGroupsResponse(
                groups=tuple(DescribedGroup(group_id=each, error_code=_HERE) for each in dict.fromkeys(asked.groups))
            )
        ),
        Api.DELETE_GROUPS: _refusing(
            lambda asked: DeleteGroupsResponse(
                results=tuple(
                    DeletableGroupResult(group_id=each, error_code=_HERE) for each in dict.fromkeys(asked.groups_names)
                )
            )
        ),
        Api.CONSUMER_GROUP_HEARTBEAT: _refusing(lambda asked: ConsumerGroupHeartbeatResponse(error_code=_HERE)),
        Api.CONSUMER_GROUP_DESCRIBE: _refusing(
            lambda asked: ConsumerGroupDescribeResponse(
                groups=tuple(
                    DescribedConsumerGroup(group_id=each, error_code=_HERE) for each in dict.fromkeys(asked.group_ids)
                )
            )
        ),
        Api.OFFSET_COMMIT: _refusing(_uncommitted),
        Api.OFFSET_FETCH: _refusing(_unfetched),
        Api.OFFSET_DELETE: _refusing(lambda asked: OffsetDeleteResponse(error_code=_HERE)),
    }
)
