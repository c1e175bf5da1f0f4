"""The handler of each request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tiered.serve.handlers.cluster import api_versions, describe_cluster, metadata
from tiered.serve.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
from tiered.serve.handlers.consumer_groups import consumer_group_describe, consumer_group_heartbeat
from tiered.serve.handlers.fetch import fetch
from tiered.serve.handlers.group_offsets import offset_commit, offset_delete, offset_fetch
from tiered.serve.handlers.groups import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from tiered.serve.handlers.log_dirs import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    delete_records,
    describe_log_dirs,
    elect_leaders,
    list_partition_reassignments,
)
from tiered.serve.handlers.offsets import list_offsets, offset_for_leader_epoch
from tiered.serve.handlers.operations import await_operation, start_operation
from tiered.serve.handlers.produce import init_producer_id, produce
from tiered.serve.handlers.sasl import sasl_authenticate, sasl_handshake
from tiered.serve.handlers.service import Handler
from tiered.serve.handlers.topics import create_partitions, create_topics, delete_topics, describe_topic_partitions
from tiered.serve.handlers.transaction_queries import (
    describe_producers,
    describe_transactions,
    list_transactions,
    write_txn_markers,
)
from tiered.serve.handlers.transactional_offsets import add_offsets_to_txn, txn_offset_commit
from tiered.serve.handlers.transactions import add_partitions_to_txn, end_txn
from tiered.serve.messages.base import Api, OwnApi

HANDLERS: Mapping[int, Handler] = MappingProxyType(
    {
        Api.PRODUCE: produce,
        Api.INIT_PRODUCER_ID: init_producer_id,
        Api.API_VERSIONS: api_versions,
        Api.METADATA: metadata,
        Api.DESCRIBE_CLUSTER: describe_cluster,
        Api.LIST_OFFSETS: list_offsets,
        Api.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
        Api.FETCH: fetch,
        Api.SASL_HANDSHAKE: sasl_handshake,
        Api.SASL_AUTHENTICATE: sasl_authenticate,
        Api.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
        Api.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
        Api.END_TXN: end_txn,
        Api.TXN_OFFSET_COMMIT: txn_offset_commit,
        Api.WRITE_TXN_MARKERS: write_txn_markers,
        Api.DESCRIBE_PRODUCERS: describe_producers,
        Api.DESCRIBE_TRANSACTIONS: describe_transactions,
        Api.LIST_TRANSACTIONS: list_transactions,
        Api.CREATE_TOPICS: create_topics,
        Api.DELETE_TOPICS: delete_topics,
        Api.CREATE_PARTITIONS: create_partitions,
        Api.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
        Api.DESCRIBE_CONFIGS: describe_configs,
        Api.ALTER_CONFIGS: alter_configs,
        Api.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
        Api.DELETE_RECORDS: delete_records,
        Api.DESCRIBE_LOG_DIRS: describe_log_dirs,
        Api.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
        OwnApi.START_OPERATION: start_operation,
        OwnApi.AWAIT_OPERATION: await_operation,
        Api.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
        Api.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
        Api.ELECT_LEADERS: elect_leaders,
        Api.FIND_COORDINATOR: find_coordinator,
        Api.JOIN_GROUP: join_group,
        Api.SYNC_GROUP: sync_group,
        Api.HEARTBEAT: heartbeat,
        Api.LEAVE_GROUP: leave_group,
        Api.LIST_GROUPS: list_groups,
        Api.DESCRIBE_GROUPS: describe_groups,
        Api.DELETE_GROUPS: delete_groups,
        Api.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
        Api.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
        Api.OFFSET_COMMIT: offset_commit,
        Api.OFFSET_FETCH: offset_fetch,
        Api.OFFSET_DELETE: offset_delete,
    }
)
