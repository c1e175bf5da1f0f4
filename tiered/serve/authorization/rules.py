"""What a principal may do with each API, in front of its handler. Source: kafka `KafkaApis`, each `handle*Request`.

A rule passes the permitted part of a request to the handler and adds the refused part to its response. A handler so
never sees a resource that its caller may not use, and a refusal does not say whether the resource exists. Fields with
authorized operations lose the operations that the caller may not do.

Every handler has a rule here. `ANYONE` states that an API needs no permission.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tiered.serve.authorization import admin_rules, group_rules, produce_rules, read_rules
from tiered.serve.authorization.permissions import ANYONE, COMMANDS, AuthorizationRule
from tiered.serve.handlers import forwarding
from tiered.serve.handlers.dispatch import HANDLERS
from tiered.serve.handlers.service import Call, Service
from tiered.serve.messages.base import Api, OwnApi

RULES: Mapping[int, AuthorizationRule] = MappingProxyType(
    {
        Api.API_VERSIONS: ANYONE,
        Api.SASL_HANDSHAKE: ANYONE,
        Api.SASL_AUTHENTICATE: ANYONE,
        Api.METADATA: read_rules.metadata,
        Api.DESCRIBE_CLUSTER: read_rules.describe_cluster,
        Api.LIST_OFFSETS: read_rules.list_offsets,
        Api.OFFSET_FOR_LEADER_EPOCH: read_rules.offset_for_leader_epoch,
        Api.FETCH: read_rules.fetch,
        Api.PRODUCE: produce_rules.produce,
        Api.INIT_PRODUCER_ID: produce_rules.init_producer_id,
        Api.ADD_PARTITIONS_TO_TXN: produce_rules.add_partitions_to_txn,
        Api.ADD_OFFSETS_TO_TXN: produce_rules.add_offsets_to_txn,
        Api.TXN_OFFSET_COMMIT: produce_rules.txn_offset_commit,
        Api.END_TXN: produce_rules.end_txn,
        Api.WRITE_TXN_MARKERS: produce_rules.write_txn_markers,
        Api.DESCRIBE_PRODUCERS: produce_rules.describe_producers,
        Api.DESCRIBE_TRANSACTIONS: produce_rules.describe_transactions,
        Api.LIST_TRANSACTIONS: produce_rules.list_transactions,
        Api.CREATE_TOPICS: admin_rules.create_topics,
        Api.DELETE_TOPICS: admin_rules.delete_topics,
        Api.CREATE_PARTITIONS: admin_rules.create_partitions,
        Api.DESCRIBE_TOPIC_PARTITIONS: admin_rules.describe_topic_partitions,
        Api.DESCRIBE_CONFIGS: admin_rules.describe_configs,
        Api.ALTER_CONFIGS: admin_rules.alter_configs,
        Api.INCREMENTAL_ALTER_CONFIGS: admin_rules.alter_configs,
        Api.DELETE_RECORDS: admin_rules.delete_records,
        Api.DESCRIBE_LOG_DIRS: admin_rules.describe_log_dirs,
        Api.ALTER_REPLICA_LOG_DIRS: admin_rules.alter_replica_log_dirs,
        Api.ALTER_PARTITION_REASSIGNMENTS: admin_rules.alter_partition_reassignments,
        Api.LIST_PARTITION_REASSIGNMENTS: admin_rules.list_partition_reassignments,
        Api.ELECT_LEADERS: admin_rules.elect_leaders,
        Api.FIND_COORDINATOR: group_rules.find_coordinator,
        Api.JOIN_GROUP: group_rules.join_group,
        Api.SYNC_GROUP: group_rules.sync_group,
        Api.HEARTBEAT: group_rules.heartbeat,
        Api.LEAVE_GROUP: group_rules.leave_group,
        Api.LIST_GROUPS: group_rules.list_groups,
        Api.DESCRIBE_GROUPS: group_rules.describe_groups,
        Api.DELETE_GROUPS: group_rules.delete_groups,
        Api.CONSUMER_GROUP_HEARTBEAT: group_rules.consumer_group_heartbeat,
        Api.CONSUMER_GROUP_DESCRIBE: group_rules.consumer_group_describe,
        Api.OFFSET_COMMIT: group_rules.offset_commit,
        Api.OFFSET_FETCH: group_rules.offset_fetch,
        Api.OFFSET_DELETE: group_rules.offset_delete,
        OwnApi.START_OPERATION: COMMANDS,
        OwnApi.AWAIT_OPERATION: COMMANDS,
    }
)


async def answer(service: Service, api: int, request: object, call: Call) -> object:
    """The response to a request of a served API; None for a request without a response."""
    handler = HANDLERS[api]
    if service.group_node is not None:
        handler = forwarding.HANDLERS.get(api, handler)
    if service.security is None:
        return await handler(service, request, call)
    return await RULES[api](service, request, call, handler)
