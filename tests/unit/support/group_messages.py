"""A request and a response of each API of groups, with every field set to a value of its own."""

from __future__ import annotations

from fake_source import IDS

from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.consumer_groups import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
    TopicPartitions,
)
from tiered.serve.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
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
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

ORDERS = IDS["orders"]
REQUESTS: dict[int, object] = {
    Api.JOIN_GROUP: JoinGroupRequest(
        group_id="g",
        session_timeout_ms=9000,
        rebalance_timeout_ms=8000,
        member_id="m",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b"\0\1"),),
        reason="why",
    ),
    Api.SYNC_GROUP: SyncGroupRequest(
        group_id="g",
        generation_id=4,
        member_id="m",
        group_instance_id="i",
        protocol_type="consumer",
        protocol_name="range",
        assignments=(SyncGroupRequestAssignment(member_id="m", assignment=b"\2"),),
    ),
    Api.HEARTBEAT: HeartbeatRequest(group_id="g", generation_id=4, member_id="m", group_instance_id="i"),
    Api.LEAVE_GROUP: LeaveGroupRequest(
        group_id="g", member_id="m", members=(MemberIdentity(member_id="m", group_instance_id="i", reason="why"),)
    ),
    Api.LIST_GROUPS: ListGroupsRequest(states_filter=("Stable",), types_filter=("classic",)),
    Api.DESCRIBE_GROUPS: DescribeGroupsRequest(groups=("g", "h"), include_authorized_operations=True),
    Api.DELETE_GROUPS: DeleteGroupsRequest(groups_names=("g", "h")),
    Api.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=4,
        instance_id="i",
        rack_id="r",
        rebalance_timeout_ms=8000,
        subscribed_topic_names=("orders",),
        subscribed_topic_regex="o.*",
        server_assignor="range",
        topic_partitions=(TopicPartitions(topic_id=ORDERS, partitions=(0, 1)),),
    ),
    Api.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeRequest(group_ids=("g", "h"), include_authorized_operations=True),
    Api.OFFSET_COMMIT: OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=4,
        member_id="m",
        group_instance_id="i",
        retention_time_ms=7,
        topics=(
            OffsetCommitRequestTopic(
                name="orders",
                topic_id=ORDERS,
                partitions=(
                    OffsetCommitRequestPartition(
                        partition_index=1, committed_offset=5, committed_leader_epoch=6, committed_metadata="meta"
                    ),
                ),
            ),
        ),
    ),
    Api.OFFSET_FETCH: OffsetFetchRequest(
        group_id="g",
        topics=(OffsetFetchRequestTopic(name="orders", partition_indexes=(1,)),),
        groups=(
            OffsetFetchRequestGroup(
                group_id="g",
                member_id="m",
                member_epoch=4,
                topics=(OffsetFetchRequestTopics(name="orders", topic_id=ORDERS, partition_indexes=(1,)),),
            ),
        ),
        require_stable=True,
    ),
    Api.OFFSET_DELETE: OffsetDeleteRequest(
        group_id="g",
        topics=(
            OffsetDeleteRequestTopic(name="orders", partitions=(OffsetDeleteRequestPartition(partition_index=1),)),
        ),
    ),
}
_FETCHED = OffsetFetchResponseTopic(
    name="orders",
    topic_id=ORDERS,
    partitions=(
        OffsetFetchResponsePartition(
            partition_index=1,
            committed_offset=5,
            committed_leader_epoch=6,
            metadata="meta",
            error_code=Error.UNSTABLE_OFFSET_COMMIT,
        ),
    ),
)
_ASSIGNED = DescribedAssignment(
    topic_partitions=(DescribedTopicPartitions(topic_id=ORDERS, topic_name="orders", partitions=(0, 1)),)
)
RESPONSES: dict[int, object] = {
    Api.JOIN_GROUP: JoinGroupResponse(
        throttle_time_ms=3,
        error_code=Error.MEMBER_ID_REQUIRED,
        generation_id=4,
        protocol_type="consumer",
        protocol_name="range",
        leader="l",
        skip_assignment=True,
        member_id="m",
        members=(JoinGroupResponseMember(member_id="m", group_instance_id="i", metadata=b"\0\1"),),
    ),
    Api.SYNC_GROUP: SyncGroupResponse(
        throttle_time_ms=3,
        error_code=Error.REBALANCE_IN_PROGRESS,
        protocol_type="consumer",
        protocol_name="range",
        assignment=b"\2",
    ),
    Api.HEARTBEAT: HeartbeatResponse(throttle_time_ms=3, error_code=Error.REBALANCE_IN_PROGRESS),
    Api.LEAVE_GROUP: LeaveGroupResponse(
        throttle_time_ms=3,
        error_code=Error.UNKNOWN_MEMBER_ID,
        members=(MemberResponse(member_id="m", group_instance_id="i", error_code=Error.FENCED_INSTANCE_ID),),
    ),
    Api.LIST_GROUPS: ListGroupsResponse(
        throttle_time_ms=3,
        error_code=Error.COORDINATOR_LOAD_IN_PROGRESS,
        groups=(ListedGroup(group_id="g", protocol_type="consumer", group_state="Stable", group_type="classic"),),
    ),
    Api.DESCRIBE_GROUPS: DescribeGroupsResponse(
        throttle_time_ms=3,
        groups=(
            DescribedGroup(
                error_code=Error.GROUP_ID_NOT_FOUND,
                error_message="why",
                group_id="g",
                group_state="Stable",
                protocol_type="consumer",
                protocol_data="range",
                members=(
                    DescribedGroupMember(
                        member_id="m",
                        group_instance_id="i",
                        client_id="c",
                        client_host="/h",
                        member_metadata=b"\0",
                        member_assignment=b"\1",
                    ),
                ),
                authorized_operations=328,
            ),
        ),
    ),
    Api.DELETE_GROUPS: DeleteGroupsResponse(
        throttle_time_ms=3, results=(DeletableGroupResult(group_id="g", error_code=Error.NON_EMPTY_GROUP),)
    ),
    Api.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatResponse(
        throttle_time_ms=3,
        error_code=Error.UNRELEASED_INSTANCE_ID,
        error_message="why",
        member_id="m",
        member_epoch=4,
        heartbeat_interval_ms=5,
        assignment=Assignment(topic_partitions=(TopicPartitions(topic_id=ORDERS, partitions=(0,)),)),
    ),
    Api.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeResponse(
        throttle_time_ms=3,
        groups=(
            DescribedConsumerGroup(
                error_code=Error.COORDINATOR_LOAD_IN_PROGRESS,
                error_message="why",
                group_id="g",
                group_state="Stable",
                group_epoch=4,
                assignment_epoch=3,
                assignor_name="range",
                members=(
                    DescribedConsumer(
                        member_id="m",
                        instance_id="i",
                        rack_id="r",
                        member_epoch=4,
                        client_id="c",
                        client_host="/h",
                        subscribed_topic_names=("orders",),
                        subscribed_topic_regex="o.*",
                        assignment=_ASSIGNED,
                        target_assignment=_ASSIGNED,
                        member_type=1,
                    ),
                ),
                authorized_operations=328,
            ),
        ),
    ),
    Api.OFFSET_COMMIT: OffsetCommitResponse(
        throttle_time_ms=3,
        topics=(
            OffsetCommitResponseTopic(
                name="orders",
                topic_id=ORDERS,
                partitions=(
                    OffsetCommitResponsePartition(partition_index=1, error_code=Error.OFFSET_METADATA_TOO_LARGE),
                ),
            ),
        ),
    ),
    Api.OFFSET_FETCH: OffsetFetchResponse(
        throttle_time_ms=3,
        topics=(_FETCHED,),
        error_code=Error.NONE,
        groups=(OffsetFetchResponseGroup(group_id="g", topics=(_FETCHED,)),),
    ),
    Api.OFFSET_DELETE: OffsetDeleteResponse(
        error_code=Error.NON_EMPTY_GROUP,
        throttle_time_ms=3,
        topics=(
            OffsetDeleteResponseTopic(
                name="orders",
                partitions=(
                    OffsetDeleteResponsePartition(partition_index=1, error_code=Error.GROUP_SUBSCRIBED_TO_TOPIC),
                ),
            ),
        ),
    ),
}
