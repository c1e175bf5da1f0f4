"""The same principals send the same requests to a node and to a broker with `StandardAuthorizer`: the same refusals.

The rules are written once, and created as ACLs of the broker and as ``[[acl]]`` of the node. Each principal sends each
request in every version that both servers have. Compared are the error codes with the names that they belong to, the
names in lists, and the authorized operations.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_clients import wait_until
from kafka_requests import KafkaSocket

from local.records.batch import encode_batch
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.messages.base import Api
from tiered.serve.node.endpoint import serving_node
from tiered.serve.protocol import SERVED
from tiered.serve.security.acl import Operation
from tiered.serve.security.credentials import Credentials, write_credentials
from tiered.serve.security.security import Security

pytestmark = [pytest.mark.kafka, pytest.mark.deep("a broker with ACLs and 12 principals")]
CREATE_ACLS, DESCRIBE_ACLS = 30, 29
TOPICS = ("t", "other")
GROUP, NAME = "group", "x"  # a consumer group and a transactional id
ADMIN, PASSWORD = "admin", "secret"
UNKNOWN_ID = UUID(int=77)
REFUSALS = (29, 30, 31, 53)  # TOPIC_, GROUP_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED
# What a permitted caller gets differs here: the broker asks itself about a transaction, has settings of groups and
# loggers, and looks for the log directory before the partition.
REFUSALS_ALONE = ("commit in transaction", "describe group configs", "move")
Fields = dict[str, Any]


class Rule(NamedTuple):
    """What a principal may, or may not do. A name that ends with `*` is a prefix; `*` alone is every name."""

    operations: str
    kind: str
    name: str = ""
    is_allowed: bool = True


RULES: Mapping[str, Sequence[Rule]] = {
    "stranger": (),
    "reader": (Rule("Read", "topic", "t"), Rule("Read", "group", "gr*")),
    "writer": (Rule("Write", "topic", "t"), Rule("Write", "transactional_id", "x")),
    "describer": (
        Rule("Describe", "topic", "t"),
        Rule("Describe", "group", "*"),
        Rule("Describe", "transactional_id", "*"),
    ),
    "owner": (
        *(Rule(each, "topic", "t*") for each in ("Create", "Delete", "Alter", "AlterConfigs")),
        Rule("Delete", "group", "group"),
    ),
    "asker": (Rule("DescribeConfigs", "topic", "t"), Rule("Describe", "cluster"), Rule("DescribeConfigs", "cluster")),
    "broker": (Rule("ClusterAction", "cluster"),),
    "operator": (Rule("Alter", "cluster"), Rule("AlterConfigs", "cluster")),
    "creator": (Rule("Create", "cluster"), Rule("Describe", "topic", "*")),
    "idempotent": (Rule("IdempotentWrite", "cluster"),),
    "everything": (
        *(Rule("All", kind, "*") for kind in ("topic", "group", "transactional_id")),
        Rule("All", "cluster"),
    ),
    "denied": (
        *(Rule("All", kind, "*") for kind in ("topic", "group", "transactional_id")),
        *(Rule(each, "topic", "t", False) for each in ("Read", "Describe")),
        Rule("Read", "group", "group", False),
        Rule("Write", "transactional_id", "x", False),
    ),
}
BROKER_SETTINGS = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin
listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="admin" password="secret" {users};
"""
NODE_SETTINGS = """\
"sasl.enabled.mechanisms" = ["PLAIN"]
"sasl.credentials.file" = "users.json"
"super.users" = ["User:admin"]
"""


def requests(ids: Mapping[str, UUID]) -> Mapping[str, tuple[Api, Fields]]:
    """Each request names permitted and other topics. What it would change is impossible, or changes nothing."""
    names = (*ids, "missing")
    both = [{"name": each, "topic": each, "topic_id": ids.get(each, UNKNOWN_ID)} for each in names]

    def topics(**fields: object) -> list[Fields]:
        return [{**each, **fields} for each in both]

    batch = encode_batch([(None, b"value", 1_700_000_000_000)])
    transactional = {"transactional_id": NAME, "producer_id": 4_000_000, "producer_epoch": 0}
    member = {"group_id": GROUP, "member_id": "unknown", "generation_id": 3}
    offsets = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    commit = {"group_id": GROUP, "generation_id_or_member_epoch": 3, "member_id": "unknown", "retention_time": -1}
    numbers = {"partition_indexes": [0], "partitions": [0]}
    all_operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    resources = [*((2, each) for each in names), (4, "1"), (8, "1"), (32, GROUP)]
    configs: list[Fields] = [{"resource_type": kind, "resource_name": name, "configs": ()} for kind, name in resources]
    described = [{**each, "configuration_keys": ["retention.ms"]} for each in configs]
    added = {
        "v3_and_below_transactional_id": NAME,
        "v3_and_below_producer_id": 4_000_000,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": topics(partitions=[0]),
        "transactions": [{**transactional, "verify_only": False, "topics": topics(partitions=[0])}],
    }
    marker = {"producer_id": 4_000_000, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    return {
        "metadata of all": (Api.METADATA, {"topics": None, **all_operations}),
        "metadata by name": (Api.METADATA, {"topics": [{"name": each} for each in names], **all_operations}),
        "describe cluster": (Api.DESCRIBE_CLUSTER, {"endpoint_type": 1, **all_operations}),
        "describe partitions": (
            Api.DESCRIBE_TOPIC_PARTITIONS,
            {"topics": topics(), "response_partition_limit": 99, "cursor": None},
        ),
        "describe all partitions": (
            Api.DESCRIBE_TOPIC_PARTITIONS,
            {"topics": [], "response_partition_limit": 99, "cursor": None},
        ),
        "offsets": (
            Api.LIST_OFFSETS,
            {
                "replica_id": -1,
                "topics": topics(partitions=[{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]),
            },
        ),
        "epochs": (
            Api.OFFSET_FOR_LEADER_EPOCH,
            {
                "replica_id": -2,
                "topics": topics(partitions=[{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]),
            },
        ),
        "fetch": (
            Api.FETCH,
            {
                "replica_id": -1,
                "max_bytes": 9999,
                "session_epoch": -1,
                "topics": topics(
                    partitions=[
                        {
                            "partition": 0,
                            "fetch_offset": 0,
                            "partition_max_bytes": 999,
                            "current_leader_epoch": -1,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                        }
                    ]
                ),
            },
        ),
        "produce": (
            Api.PRODUCE,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": 9000,
                "topic_data": topics(partition_data=[{"index": 0, "records": batch}]),
            },
        ),
        "transactional produce": (
            Api.PRODUCE,
            {
                "transactional_id": NAME,
                "acks": -1,
                "timeout": 9000,
                "topic_data": topics(partition_data=[{"index": 7, "records": batch}]),
            },
        ),
        "idempotent producer id": (
            Api.INIT_PRODUCER_ID,
            {"transactional_id": None, "transaction_timeout": 9000, "producer_id": -1, "producer_epoch": -1},
        ),
        "producer id": (
            Api.INIT_PRODUCER_ID,
            {"transactional_id": NAME, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1},
        ),
        "add partitions": (Api.ADD_PARTITIONS_TO_TXN, added),
        "add offsets": (Api.ADD_OFFSETS_TO_TXN, {**transactional, "group_id": GROUP}),
        "commit in transaction": (
            Api.TXN_OFFSET_COMMIT,
            {
                **transactional,
                "group_id": GROUP,
                "generation_id": 3,
                "member_id": "unknown",
                "topics": topics(partitions=offsets),
            },
        ),
        "end": (Api.END_TXN, {**transactional, "committed": True}),
        "markers": (
            Api.WRITE_TXN_MARKERS,
            {"markers": [{**marker, "topics": [{"name": "missing", "partition_indexes": [0]}]}]},
        ),
        "producers": (Api.DESCRIBE_PRODUCERS, {"topics": topics(**numbers)}),
        "transactions": (Api.DESCRIBE_TRANSACTIONS, {"transactional_ids": ["hidden"]}),
        "all transactions": (Api.LIST_TRANSACTIONS, {"duration_filter": -1, "transactional_id_pattern": None}),
        "group coordinator": (
            Api.FIND_COORDINATOR,
            {"key": GROUP, "key_type": 0, "coordinator_keys": [GROUP, "hidden"]},
        ),
        "transaction coordinator": (
            Api.FIND_COORDINATOR,
            {"key": NAME, "key_type": 1, "coordinator_keys": [NAME, "hidden"]},
        ),
        "join": (
            Api.JOIN_GROUP,
            {
                **member,
                "session_timeout": 1,
                "rebalance_timeout": 1,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        ),
        "sync": (Api.SYNC_GROUP, {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": ()}),
        "heartbeat": (Api.HEARTBEAT, member),
        "leave": (Api.LEAVE_GROUP, {**member, "members": [{"member_id": "unknown"}]}),
        "commit": (
            Api.OFFSET_COMMIT,
            {**commit, "topics": topics(partitions=[{**each, "committed_leader_epoch": -1} for each in offsets])},
        ),
        "committed": (
            Api.OFFSET_FETCH,
            {
                "group_id": GROUP,
                "topics": topics(**numbers),
                "groups": [
                    {"group_id": each, "member_epoch": -1, "topics": topics(**numbers)} for each in (GROUP, "hidden")
                ],
            },
        ),
        "all committed": (
            Api.OFFSET_FETCH,
            {"group_id": GROUP, "topics": None, "groups": [{"group_id": GROUP, "member_epoch": -1, "topics": None}]},
        ),
        "delete offsets": (
            Api.OFFSET_DELETE,
            {"group_id": GROUP, "topics": topics(partitions=[{"partition_index": 5}])},
        ),
        "heartbeat of a consumer": (
            Api.CONSUMER_GROUP_HEARTBEAT,
            {"group_id": GROUP, "member_id": "unknown", "member_epoch": 3, "rebalance_timeout": -1},
        ),
        "join of a consumer": (
            Api.CONSUMER_GROUP_HEARTBEAT,
            {
                "group_id": "hidden",
                "member_id": "new",
                "rebalance_timeout": 0,
                "subscribed_topic_names": ("t", "other", "missing"),
                "topic_partitions": (),
            },
        ),
        "describe consumer groups": (
            Api.CONSUMER_GROUP_DESCRIBE,
            {"group_ids": [GROUP, "hidden"], "include_authorized_operations": True},
        ),
        "groups": (Api.LIST_GROUPS, {}),
        "describe groups": (Api.DESCRIBE_GROUPS, {"groups": [GROUP, "hidden"], "include_authorized_operations": True}),
        "delete groups": (Api.DELETE_GROUPS, {"groups_names": ["groups", "hidden"]}),
        "create": (
            Api.CREATE_TOPICS,
            {
                "timeout": 9000,
                "validate_only": True,
                "topics": [
                    {"name": each, "num_partitions": 1, "replication_factor": 1} for each in (*names, "t-new", "new")
                ],
            },
        ),
        "delete": (
            Api.DELETE_TOPICS,
            {
                "timeout": 9000,
                "topic_names": ["missing", "t-missing"],
                "topics": [{"name": each, "topic_id": None} for each in ("missing", "t-missing")],
            },
        ),
        "delete by id": (
            Api.DELETE_TOPICS,
            {"timeout": 9000, "topic_names": (), "topics": [{"name": None, "topic_id": UNKNOWN_ID}]},
        ),
        "grow": (
            Api.CREATE_PARTITIONS,
            {"timeout": 9000, "validate_only": True, "topics": topics(count=1, assignments=None)},
        ),
        "describe configs": (Api.DESCRIBE_CONFIGS, {"resources": described[:-2]}),
        "describe group configs": (Api.DESCRIBE_CONFIGS, {"resources": described[-2:]}),
        "alter configs": (Api.INCREMENTAL_ALTER_CONFIGS, {"resources": configs[:3], "validate_only": True}),
        "replace configs": (Api.ALTER_CONFIGS, {"resources": configs[:3], "validate_only": True}),
        "delete records": (
            Api.DELETE_RECORDS,
            {"timeout": 9000, "topics": topics(partitions=[{"partition_index": 0, "offset": 0}])},
        ),
        "log directories": (Api.DESCRIBE_LOG_DIRS, {"topics": topics(partitions=[0])}),
        "move": (Api.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"path": "/nowhere", "topics": topics(partitions=[0])}]}),
        "reassign": (
            Api.ALTER_PARTITION_REASSIGNMENTS,
            {"timeout": 9000, "topics": topics(partitions=[{"partition_index": 0, "replicas": None}])},
        ),
        "reassignments": (Api.LIST_PARTITION_REASSIGNMENTS, {"timeout": 9000, "topics": None}),
        "elect": (Api.ELECT_LEADERS, {"timeout": 9000, "election_type": 0, "topic_partitions": topics(partitions=[0])}),
    }


NAMED = (
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "key",
    "resource_name",
    "transactional_id",
    "partition_index",
    "partition",
)


def seen(value: Any, names: Mapping[str, str]) -> Any:
    """The error codes, names and authorized operations of a response, in an order of their own; ids by their topic.

    Without the settings of a topic, and without the coordinators' topics, which a node creates later.
    """
    if isinstance(value, list):
        parts = [seen(each, names) for each in value]
        return sorted((each for each in parts if not str(each and each.get("name")).startswith("__")), key=repr)
    if not isinstance(value, dict):
        return None
    found = {}
    for key in sorted(value, key=lambda key: (key not in NAMED, key)):
        each = value[key]
        if key == "topic_id":
            found[key] = names.get(str(each), "unknown")
        elif key in ("configs", "aborted_transactions", "topic_config_error_code"):
            continue
        elif isinstance(each, list | dict):
            found[key] = seen(each, names)
        elif key in NAMED or "error_code" in key or key.endswith("authorized_operations"):
            found[key] = each
    return found


def refusals(answer: Any) -> Any:
    """An answer without other error codes."""
    if isinstance(answer, list):
        return [refusals(each) for each in answer]
    if isinstance(answer, dict):
        return {key: refusals(each) for key, each in answer.items() if "error_code" not in key or each in REFUSALS}
    return answer


def login(address: str, user: str) -> KafkaSocket:
    client = KafkaSocket(address)
    assert client.ask(Api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"] == 0
    found = client.ask(Api.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0%s\0%s" % (user.encode(), PASSWORD.encode())})
    assert found["error_code"] == 0, found
    return client


def prepare(address: str) -> Mapping[str, UUID]:
    """Create the topics, the coordinators and the offsets of a group; return the ids of the topics."""
    with closing(login(address, ADMIN)) as admin:
        wanted = [{"name": each, "num_partitions": 1, "replication_factor": 1} for each in TOPICS]
        found = admin.ask(Api.CREATE_TOPICS, 7, {"timeout": 30_000, "topics": wanted})
        for key_type in (0, 1):
            for name in (GROUP, NAME, "hidden"):
                ask = {"key": name, "key_type": key_type}
                wait_until(partial(_is_found, admin, ask), f"the coordinator of {name}")
        topics = [
            {"name": each, "partitions": [{"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1}]}
            for each in TOPICS
        ]
        for group in (GROUP, "hidden"):
            commit = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}

            def committed(commit: Fields = commit) -> bool:
                response = admin.ask(Api.OFFSET_COMMIT, 8, commit)
                return not any(each["error_code"] for topic in response["topics"] for each in topic["partitions"])

            wait_until(committed, f"offsets of {group}")
        new_id = {"transactional_id": None, "transaction_timeout": 9000}
        wait_until(lambda: not admin.ask(Api.INIT_PRODUCER_ID, 4, new_id)["error_code"], "producer ids")
        listing = {"transactional_ids": ["hidden"]}
        wait_until(
            lambda: admin.ask(Api.DESCRIBE_TRANSACTIONS, 0, listing)["transaction_states"][0]["error_code"] == 105,
            "transactions",
        )
    return {each["name"]: UUID(each["topic_id"]) for each in found["topics"]}


def _is_found(admin: KafkaSocket, ask: Fields) -> bool:
    return not admin.ask(Api.FIND_COORDINATOR, 3, ask)["error_code"]


def answers(
    address: str, ids: Mapping[str, UUID], versions: Mapping[int, range]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    names = {str(each): name for name, each in ids.items()}
    for user in RULES:
        client = login(address, user)
        for label, (api, fields) in requests(ids).items():
            for version in versions[api]:
                try:
                    found = seen(client.ask(api, version, fields), names)
                except AssertionError as error:
                    found = str(error)
                    client.close()
                    client = login(address, user)
                yield (user, label, f"version {version}"), found
        client.close()


# --- the broker -----------------------------------------------------------------------------------------------------

KINDS = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}
LITERAL, PREFIXED = 3, 4


def operation(rule: Rule) -> Operation:
    return next(each for each in Operation if each.name.replace("_", "").lower() == rule.operations.lower())


def create_acls(address: str) -> None:
    creations = []
    for user, rules in RULES.items():
        for rule in rules:
            is_prefix = rule.name.endswith("*") and rule.name != "*"
            creations.append(
                {
                    "resource_type": KINDS[rule.kind],
                    "resource_name": "kafka-cluster"
                    if rule.kind == "cluster"
                    else rule.name.rstrip("*")
                    if is_prefix
                    else rule.name,
                    "resource_pattern_type": PREFIXED if is_prefix else LITERAL,
                    "principal": f"User:{user}",
                    "host": "*",
                    "operation": int(operation(rule)),
                    "permission_type": 3 if rule.is_allowed else 2,
                }
            )
    everything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    with closing(login(address, ADMIN)) as admin:
        results = admin.ask(CREATE_ACLS, 3, {"creations": creations})["results"]
        assert {each["error_code"] for each in results} == {0}, results

        def count() -> int:
            found = admin.ask(DESCRIBE_ACLS, 3, everything)["resources"]
            return sum(len(each["acls"]) for each in found)

        wait_until(lambda: count() == len(creations), "the ACLs are in force")


# --- the node -------------------------------------------------------------------------------------------------------


def write_security(folder: Path) -> Path:
    credentials = Credentials()
    for user in (ADMIN, *RULES):
        credentials = credentials.with_user(user, PASSWORD, iterations=4096)
    write_credentials(str(folder / "users.json"), credentials)
    tables = [NODE_SETTINGS]
    for user, rules in RULES.items():
        for rule in rules:
            is_prefix = rule.name.endswith("*") and rule.name != "*"
            where = f'{rule.kind}_prefix = "{rule.name[:-1]}"' if is_prefix else f'{rule.kind} = "{rule.name}"'
            where = "cluster = true" if rule.kind == "cluster" else where
            permission = "allow" if rule.is_allowed else "deny"
            what = f'operations = "{rule.operations}"\n{where}\npermission = "{permission}"'
            tables.append(f'[[acl]]\nprincipal = "User:{user}"\n{what}')
    path = folder / "security.toml"
    path.write_text("\n".join(tables))
    return path


def test_every_served_request_is_sent() -> None:
    without_rules = {Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
    assert {api for api, _ in requests({}).values()} == set(Api) - without_rules


def now_ms() -> int:
    return time.time_ns() // 10**6


def test_every_principal_gets_the_refusals_of_a_broker(kafka: Kafka, tmp_path: Path) -> None:
    users = " ".join(f'user_{each}="{PASSWORD}"' for each in (ADMIN, *RULES))
    broker = KafkaBroker(kafka, tmp_path / "kafka", settings=BROKER_SETTINGS.format(users=users))
    broker.format()
    broker.start()
    try:
        with closing(login(broker.address, ADMIN)) as admin:
            theirs_have = admin.versions()
        versions = {
            api: range(max(low, SERVED[api].min_version), min(high, SERVED[api].max_version) + 1)
            for api, (low, high) in theirs_have.items()
            if api in SERVED
        }
        create_acls(broker.address)
        theirs = dict(answers(broker.address, prepare(broker.address), versions))
    finally:
        broker.stop()
    security = Security(str(write_security(tmp_path)), time.monotonic, time.time)
    config = Config.load(None, {"offsets.topic.num.partitions": "1"}, {}, local_dir=str(tmp_path / "node"))
    with (
        closing(security),
        LogManager.open(config, now_ms=now_ms()) as manager,
        serving_node(manager, "127.0.0.1", 0, security=security, now_ms=now_ms) as server,
    ):
        address = "{}:{}".format(*server.address)
        ours = dict(answers(address, prepare(address), versions))
    assert ours.keys() == theirs.keys()
    differ = []
    for key, mine in ours.items():
        pair = mine, theirs[key]
        if key[1] in REFUSALS_ALONE:
            pair = refusals(pair[0]), refusals(pair[1])
        if pair[0] != pair[1]:
            differ.append(f"{' '.join(key)}:\n    ours   {pair[0]}\n    Kafka's {pair[1]}")
    assert not differ, f"{len(differ)} of {len(ours)}\n" + "\n".join(differ)
    assert sum(repr(REFUSALS[0]) in repr(each) for each in theirs.values()) > 500, "principals must be refused"
