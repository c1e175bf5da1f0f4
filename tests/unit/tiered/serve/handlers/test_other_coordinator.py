"""A server whose groups another node coordinates names that node, and refuses every other group request."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fake_source import CALL, FakeSource

from tiered.serve.authorization.rules import answer
from tiered.serve.endpoint_metrics import error_codes
from tiered.serve.handlers.other_coordinator import FIRST_NODE_ID, HANDLERS
from tiered.serve.handlers.service import GROUP_APIS, Endpoint, Service
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from tiered.serve.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tiered.serve.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from tiered.serve.protocol import SERVED, Header, encode

NODE = Endpoint(host="node", port=9093)
_PARTITION = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
REQUESTS: dict[int, object] = {
    Api.FIND_COORDINATOR: FindCoordinatorRequest(key="g", coordinator_keys=("g",)),
    Api.JOIN_GROUP: JoinGroupRequest(group_id="g", session_timeout_ms=9000, protocol_type="consumer", protocols=()),
    Api.SYNC_GROUP: SyncGroupRequest(group_id="g", generation_id=1, member_id="m"),
    Api.HEARTBEAT: HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
    Api.LEAVE_GROUP: LeaveGroupRequest(group_id="g", member_id="m"),
    Api.LIST_GROUPS: ListGroupsRequest(),
    Api.DESCRIBE_GROUPS: DescribeGroupsRequest(groups=("g", "g")),
    Api.DELETE_GROUPS: DeleteGroupsRequest(groups_names=("g", "g")),
    Api.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0),
    Api.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeRequest(group_ids=("g", "g")),
    Api.OFFSET_COMMIT: OffsetCommitRequest(
        group_id="g", topics=(OffsetCommitRequestTopic(name="orders", partitions=(_PARTITION,)),)
    ),
    Api.OFFSET_FETCH: OffsetFetchRequest(
        group_id="g",
        topics=(OffsetFetchRequestTopic(name="orders", partition_indexes=(0,)),),
        groups=(OffsetFetchRequestGroup(group_id="g"),),
    ),
    Api.OFFSET_DELETE: OffsetDeleteRequest(group_id="g", topics=()),
}


def test_every_group_request_is_offered_and_handled() -> None:
    assert HANDLERS.keys() == GROUP_APIS == REQUESTS.keys()
    with_node = Service(source=FakeSource(), group_node=NODE).apis.keys()
    assert with_node - Service(source=FakeSource()).apis.keys() == GROUP_APIS


@pytest.mark.parametrize("api", sorted(REQUESTS))
def test_the_node_is_named_and_this_server_refuses_in_every_version(api: int) -> None:
    service = Service(source=FakeSource(), group_node=NODE)
    for version in range(SERVED[api].min_version, SERVED[api].max_version + 1):
        response = asyncio.run(answer(service, api, REQUESTS[api], replace(CALL, version=version)))
        encode(Header(api_key=api, api_version=version, correlation_id=1), response)
        if api == Api.FIND_COORDINATOR:
            for each in response.coordinators if version >= 4 else [response]:  # type: ignore[attr-defined]
                assert (each.error_code, each.node_id, each.host, each.port) == (0, FIRST_NODE_ID, "node", 9093)
        else:
            assert set(error_codes(response)) == (set() if api == Api.LIST_GROUPS else {Error.NOT_COORDINATOR})
            assert (
                api not in (Api.DESCRIBE_GROUPS, Api.DELETE_GROUPS, Api.CONSUMER_GROUP_DESCRIBE)
                or len(list(error_codes(response))) == 1
            )


def test_a_transaction_has_no_coordinator() -> None:
    service = Service(source=FakeSource(), group_node=NODE)
    request = FindCoordinatorRequest(key="t", key_type=1, coordinator_keys=("t",))
    for version in (3, 6):
        response = asyncio.run(answer(service, Api.FIND_COORDINATOR, request, replace(CALL, version=version)))
        assert set(error_codes(response)) == {Error.INVALID_REQUEST}
