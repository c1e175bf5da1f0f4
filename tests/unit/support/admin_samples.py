"""A response of each API that changes or describes a node, with a value in every field."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.configs import (
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tiered.serve.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tiered.serve.messages.reassignments import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from tiered.serve.messages.topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
    Cursor,
    DeletableTopicResult,
    DeleteTopicsResponse,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

_ALTERED = AlterConfigsResponse(
    responses=(
        AlterConfigsResourceResponse(
            error_code=Error.INVALID_CONFIG, error_message="wrong", resource_type=2, resource_name="orders"
        ),
        AlterConfigsResourceResponse(resource_type=4, resource_name=""),
    )
)
ADMIN_RESPONSES: Mapping[Api, object] = {
    Api.CREATE_TOPICS: CreateTopicsResponse(
        topics=(
            CreatableTopicResult(
                name="orders",
                topic_id=UUID(int=7),
                num_partitions=3,
                replication_factor=1,
                configs=(CreatableTopicConfigs(name="retention.ms", value="7", config_source=1, read_only=True),),
            ),
            CreatableTopicResult(name="nope", error_code=Error.INVALID_CONFIG, error_message="wrong"),
        )
    ),
    Api.DELETE_TOPICS: DeleteTopicsResponse(
        responses=(
            DeletableTopicResult(name="orders", topic_id=UUID(int=7)),
            DeletableTopicResult(name="nope", error_code=Error.UNKNOWN_TOPIC_OR_PARTITION, error_message="wrong"),
        )
    ),
    Api.CREATE_PARTITIONS: CreatePartitionsResponse(
        results=(CreatePartitionsTopicResult(name="orders", error_code=Error.INVALID_PARTITIONS, error_message="few"),)
    ),
    Api.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitionsResponse(
        topics=(
            DescribeTopicPartitionsResponseTopic(
                name="orders",
                topic_id=UUID(int=7),
                partitions=(
                    DescribeTopicPartitionsResponsePartition(
                        partition_index=1, leader_id=0, leader_epoch=5, replica_nodes=(0,), isr_nodes=(0,)
                    ),
                ),
                topic_authorized_operations=8,
            ),
            DescribeTopicPartitionsResponseTopic(name="nope", error_code=Error.UNKNOWN_TOPIC_OR_PARTITION),
        ),
        next_cursor=Cursor(topic_name="orders", partition_index=2),
    ),
    Api.DESCRIBE_CONFIGS: DescribeConfigsResponse(
        results=(
            DescribeConfigsResult(
                resource_type=2,
                resource_name="orders",
                configs=(
                    DescribeConfigsResourceResult(
                        name="retention.ms",
                        value="7",
                        read_only=True,
                        config_source=1,
                        synonyms=(DescribeConfigsSynonym(name="log.retention.ms", value="8", source=4),),
                        config_type=5,
                        documentation="how long",
                    ),
                ),
            ),
            DescribeConfigsResult(
                error_code=Error.INVALID_REQUEST, error_message="wrong", resource_type=9, resource_name="x"
            ),
        )
    ),
    Api.ALTER_CONFIGS: _ALTERED,
    Api.INCREMENTAL_ALTER_CONFIGS: _ALTERED,
    Api.DELETE_RECORDS: DeleteRecordsResponse(
        topics=(
            DeleteRecordsTopicResult(
                name="orders",
                partitions=(
                    DeleteRecordsPartitionResult(partition_index=1, low_watermark=5),
                    DeleteRecordsPartitionResult(partition_index=2, error_code=Error.OFFSET_OUT_OF_RANGE),
                ),
            ),
        )
    ),
    Api.DESCRIBE_LOG_DIRS: DescribeLogDirsResponse(
        results=(
            DescribeLogDirsResult(
                log_dir="/disk1",
                topics=(
                    DescribeLogDirsTopic(
                        name="orders",
                        partitions=(
                            DescribeLogDirsPartition(
                                partition_index=1, partition_size=5, offset_lag=-1, is_future_key=True
                            ),
                        ),
                    ),
                ),
                total_bytes=10,
                usable_bytes=5,
                is_cordoned=True,
            ),
        )
    ),
    Api.ALTER_PARTITION_REASSIGNMENTS: AlterPartitionReassignmentsResponse(
        responses=(
            ReassignableTopicResponse(
                name="orders",
                partitions=(
                    ReassignablePartitionResponse(
                        partition_index=1, error_code=Error.NO_REASSIGNMENT_IN_PROGRESS, error_message="none"
                    ),
                ),
            ),
        )
    ),
    Api.LIST_PARTITION_REASSIGNMENTS: ListPartitionReassignmentsResponse(),
    Api.ELECT_LEADERS: ElectLeadersResponse(
        replica_election_results=(
            ReplicaElectionResult(
                topic="orders",
                partition_result=(
                    PartitionResult(partition_id=1, error_code=Error.ELECTION_NOT_NEEDED, error_message="not needed"),
                ),
            ),
        )
    ),
    Api.ALTER_REPLICA_LOG_DIRS: AlterReplicaLogDirsResponse(
        results=(
            AlterReplicaLogDirTopicResult(
                topic_name="orders",
                partitions=(AlterReplicaLogDirPartitionResult(partition_index=1, error_code=Error.LOG_DIR_NOT_FOUND),),
            ),
        )
    ),
}
