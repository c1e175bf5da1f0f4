"""A sample response of each group API."""

from __future__ import annotations

from uuid import UUID

from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.consumer_groups import (
    Assignment,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
    TopicPartitions,
)
from tiered.serve.messages.group_offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
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
    DescribedGroupMember,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupResponse,
)

_ASSIGNED = DescribedAssignment(
    topic_partitions=(DescribedTopicPartitions(topic_id=UUID(int=7), topic_name="orders", partitions=(1, 2)),)
)
_FETCHED = OffsetFetchResponseTopic(
    name="orders",
    topic_id=UUID(int=7),
    partitions=(
        OffsetFetchResponsePartition(
            partition_index=3, committed_offset=5, committed_leader_epoch=2, metadata="note", error_code=Error.NONE
        ),
    ),
)
GROUP_RESPONSES: dict[Api, object] = {
    Api.FIND_COORDINATOR: FindCoordinatorResponse(
        error_code=Error.COORDINATOR_NOT_AVAILABLE,
        error_message="why",
        node_id=7,
        host="broker",
        port=9092,
        coordinators=(Coordinator(key="group", node_id=7, host="broker", port=9092, error_message=""),),
    ),
    Api.JOIN_GROUP: JoinGroupResponse(
        error_code=Error.MEMBER_ID_REQUIRED,
        generation_id=5,
        protocol_type="consumer",
        protocol_name="range",
        leader="one",
        skip_assignment=True,
        member_id="two",
        members=(
            JoinGroupResponseMember(member_id="one", metadata=b"topics"),
            JoinGroupResponseMember(member_id="two", group_instance_id="static", metadata=b""),
        ),
    ),
    Api.SYNC_GROUP: SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=b"partitions"),
    Api.HEARTBEAT: HeartbeatResponse(error_code=Error.REBALANCE_IN_PROGRESS),
    Api.LEAVE_GROUP: LeaveGroupResponse(
        members=(MemberResponse(member_id="one", group_instance_id="static", error_code=Error.UNKNOWN_MEMBER_ID),)
    ),
    Api.LIST_GROUPS: ListGroupsResponse(
        groups=(ListedGroup(group_id="g", protocol_type="consumer", group_state="Stable", group_type="classic"),)
    ),
    Api.DESCRIBE_GROUPS: DescribeGroupsResponse(
        groups=(
            DescribedGroup(
                group_id="g",
                group_state="Stable",
                protocol_type="consumer",
                protocol_data="range",
                members=(
                    DescribedGroupMember(
                        member_id="one",
                        group_instance_id="static",
                        client_id="tester",
                        client_host="/10.0.0.1",
                        member_metadata=b"topics",
                        member_assignment=b"partitions",
                    ),
                ),
                authorized_operations=7,
            ),
            DescribedGroup(group_id="h", error_code=Error.GROUP_ID_NOT_FOUND, error_message="why"),
        )
    ),
    Api.DELETE_GROUPS: DeleteGroupsResponse(
        results=(DeletableGroupResult(group_id="g", error_code=Error.NON_EMPTY_GROUP),)
    ),
    Api.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatResponse(
        error_message="why",
        member_id="one",
        member_epoch=7,
        heartbeat_interval_ms=5000,
        assignment=Assignment(topic_partitions=(TopicPartitions(topic_id=UUID(int=7), partitions=(1, 2)),)),
    ),
    Api.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeResponse(
        groups=(
            DescribedConsumerGroup(
                group_id="g",
                group_state="Stable",
                group_epoch=3,
                assignment_epoch=3,
                assignor_name="uniform",
                members=(
                    DescribedConsumer(
                        member_id="one",
                        instance_id="static",
                        rack_id="rack",
                        member_epoch=3,
                        client_id="tester",
                        client_host="/10.0.0.1",
                        subscribed_topic_names=("orders",),
                        subscribed_topic_regex="or.*",
                        assignment=_ASSIGNED,
                        target_assignment=_ASSIGNED,
                        member_type=1,
                    ),
                ),
                authorized_operations=7,
            ),
        )
    ),
    Api.OFFSET_COMMIT: OffsetCommitResponse(
        topics=(
            OffsetCommitResponseTopic(
                name="orders",
                topic_id=UUID(int=7),
                partitions=(OffsetCommitResponsePartition(partition_index=3, error_code=Error.ILLEGAL_GENERATION),),
            ),
        )
    ),
    Api.OFFSET_FETCH: OffsetFetchResponse(
        error_code=Error.NOT_COORDINATOR,
        topics=(_FETCHED,),
        groups=(OffsetFetchResponseGroup(group_id="g", topics=(_FETCHED,), error_code=Error.NOT_COORDINATOR),),
    ),
    Api.OFFSET_DELETE: OffsetDeleteResponse(
        topics=(
            OffsetDeleteResponseTopic(
                name="orders",
                partitions=(
                    OffsetDeleteResponsePartition(partition_index=3, error_code=Error.GROUP_SUBSCRIBED_TO_TOPIC),
                ),
            ),
        )
    ),
}
