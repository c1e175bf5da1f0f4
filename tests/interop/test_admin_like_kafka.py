"""A script of administrative calls to a real broker and to a node: the same fields, errors included.

Not compared: topic ids, the wording of messages (the node has one for every error), and the values of settings that
the topic has not set.

A broker answers a read from its metadata cache, which follows the controller's log: a read may be older than the change
that the controller acknowledged before. The broker is asked again until it answers as the node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_requests import KafkaSocket

from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.messages.base import Api
from tiered.serve.node.endpoint import serving_node

pytestmark = pytest.mark.kafka
NODE = 1  # the id of both
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
SECONDS_MAX = 60
Fields = dict[str, Any]


class Ask(NamedTuple):
    api: Api
    request: Fields


class Place(NamedTuple):
    address: str
    first: Path  # its two log directories
    second: Path


def _topic(name: str, partitions: int = 1, replicas: int = 1, assigned: Any = (), configs: Any = ()) -> Fields:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": number, "broker_ids": brokers} for number, brokers in assigned],
        "configs": [{"name": key, "value": value} for key, value in configs],
    }


def _create(*topics: Fields, **more: object) -> Ask:
    return Ask(Api.CREATE_TOPICS, {"timeout": 30_000, "topics": topics, **more})


def _more(*topics: tuple[str, int], assigned: Any = None, **more: object) -> Ask:
    assignments = None if assigned is None else [{"broker_ids": each} for each in assigned]
    wanted = [{"name": name, "count": count, "assignments": assignments} for name, count in topics]
    return Ask(Api.CREATE_PARTITIONS, {"timeout": 30_000, "topics": wanted, **more})


def _alter(name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, **more: object) -> Ask:
    configs = [{"name": key, "config_operation": verb, "value": value} for key, verb, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return Ask(Api.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], **more})


def _configs(name: str, *keys: str, kind: int = TOPIC, **more: object) -> Ask:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    return Ask(Api.DESCRIBE_CONFIGS, {"resources": [resource], **more})


def _delete_records(*offsets: tuple[str, int, int]) -> Ask:
    topics = [{"name": name, "partitions": [{"partition_index": at, "offset": to}]} for name, at, to in offsets]
    return Ask(Api.DELETE_RECORDS, {"timeout": 10_000, "topics": topics})


def _describe(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Ask:
    after = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    topics = [{"name": name} for name in names]
    return Ask(Api.DESCRIBE_TOPIC_PARTITIONS, {"topics": topics, "response_partition_limit": limit, "cursor": after})


def _elect(kind: int, *topics: tuple[str, tuple[int, ...]]) -> Ask:
    wanted = [{"topic": name, "partitions": numbers} for name, numbers in topics]
    return Ask(Api.ELECT_LEADERS, {"election_type": kind, "topic_partitions": wanted})


def _delete(*topics: Fields) -> Ask:
    return Ask(Api.DELETE_TOPICS, {"timeout": 30_000, "topics": topics})


SCRIPT: Mapping[str, Ask] = {
    "create": _create(_topic("a"), _topic("b", 3), _topic("c", -1, -1), _topic("d", configs=[("retention.ms", "9")])),
    "create compacted": _create(_topic("keyed", 1, 1, (), [("cleanup.policy", "compact")])),
    "create an existing topic": _create(_topic("a")),
    "validate": _create(_topic("v", 2, 1, (), [("segment.bytes", "1048576")]), _topic("a"), validate_only=True),
    "bad numbers": _create(_topic("w", 0), _topic("x", -5), _topic("y", 1, 3), _topic("z", 1, 0)),
    "bad names": _create(_topic("bad name"), _topic(""), _topic("."), _topic("x" * 250)),
    "internal": _create(_topic("__cluster_metadata")),
    "bad settings": _create(
        _topic("w", configs=[("retention.ms", "abc")]),
        _topic("x", configs=[("nope", "1")]),
        _topic("y", configs=[("retention.ms", None)]),
        _topic("z", configs=[("remote.storage.enable", "true")]),
    ),
    "assigned": _create(
        _topic("assigned", -1, -1, [(0, [NODE]), (1, [NODE])]),
        _topic("p", 2, -1, [(0, [NODE])]),
        _topic("q", -1, 1, [(0, [NODE])]),
        _topic("r", -1, -1, [(1, [NODE])]),
        _topic("s", -1, -1, [(0, [NODE]), (0, [NODE])]),
        _topic("t", -1, -1, [(0, [9])]),
        _topic("u", -1, -1, [(0, [NODE, NODE])]),
        _topic("v", -1, -1, [(0, [])]),
    ),
    "duplicates": _create(_topic("e"), _topic("e"), _topic("f")),
    "no topics": _create(),
    "too many partitions": _create(_topic("w", 6000), _topic("x", 6000)),
    "no time": _create(_topic("w"), timeout=0),
    "more partitions": _more(("a", 3), ("b", 3), ("c", 0), ("nope", 3), ("d", -2)),
    "fewer partitions": _more(("a", 2)),
    "validate more partitions": _more(("b", 9), validate_only=True),
    "duplicate partitions": _more(("a", 5), ("a", 6)),
    "assigned partitions": _more(("c", 2), assigned=[[NODE]]),
    "too few assignments": _more(("c", 5), assigned=[[NODE]]),
    "unknown brokers": _more(("c", 3), assigned=[[9]]),
    "bad names of topics with more partitions": _more(("bad name", 4)),
    "settings": _configs("d", include_synonyms=False),
    "some settings": _configs("d", "retention.ms", "nope"),
    "settings of an unknown topic": _configs("nope"),
    "settings of a bad name": _configs("bad name"),
    "settings of no name": _configs(""),
    "settings of another broker": _configs("7", kind=BROKER),
    "settings of a text": _configs("x", kind=BROKER),
    "set": _alter("a", ("retention.ms", SET, "7000"), ("segment.ms", SET, "8000")),
    "append": _alter("keyed", ("cleanup.policy", APPEND, "delete")),
    "append what is there": _alter("keyed", ("cleanup.policy", APPEND, "delete")),
    "subtract": _alter("keyed", ("cleanup.policy", SUBTRACT, "compact")),
    "subtract what is missing": _alter("keyed", ("cleanup.policy", SUBTRACT, "compact")),
    "append to a default": _alter("b", ("cleanup.policy", APPEND, "compact")),
    "remove": _alter("a", ("segment.ms", DELETE, None), ("segment.bytes", DELETE, None), ("nope", DELETE, None)),
    "only validate": _alter("a", ("retention.ms", SET, "9000"), validate_only=True),
    "settings after the changes": Ask(
        Api.DESCRIBE_CONFIGS,
        {
            "resources": [
                {
                    "resource_type": TOPIC,
                    "resource_name": name,
                    "configuration_keys": ["retention.ms", "cleanup.policy"],
                }
                for name in ("a", "b", "keyed")
            ]
        },
    ),
    "set of an unknown topic": _alter("nope", ("retention.ms", SET, "1")),
    "set of a bad name": _alter("bad name", ("retention.ms", SET, "1")),
    "set of no name": _alter("", ("retention.ms", SET, "1")),
    "unknown setting": _alter("a", ("nope", SET, "1")),
    "bad value": _alter("a", ("retention.ms", SET, "x")),
    "empty value": _alter("a", ("retention.ms", SET, "")),
    "no value": _alter("a", ("retention.ms", SET, None)),
    "append to a number": _alter("a", ("retention.ms", APPEND, "1")),
    "bad word of a list": _alter("a", ("cleanup.policy", APPEND, "wrong")),
    "setting twice": _alter("a", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
    "set of another broker": _alter("7", ("log.retention.ms", SET, "7"), kind=BROKER),
    "set of a fixed setting": _alter(str(NODE), ("log.dirs", SET, "/x"), kind=BROKER),
    "set of an unknown type": _alter("x", ("retention.ms", SET, "7"), kind=9),
    "replace settings": Ask(
        Api.ALTER_CONFIGS,
        {
            "resources": [
                {"resource_type": TOPIC, "resource_name": "a", "configs": [{"name": "segment.ms", "value": "999999"}]},
                {"resource_type": TOPIC, "resource_name": "nope", "configs": []},
                {"resource_type": TOPIC, "resource_name": "b", "configs": [{"name": "segment.ms", "value": None}]},
            ]
        },
    ),
    "settings after the replacement": _configs("a", "segment.ms", "retention.ms"),
    "delete records": _delete_records(("a", 0, 0), ("b", 0, 5), ("c", 0, -1), ("nope", 0, 0), ("d", 0, -2)),
    "delete records of an unknown partition": _delete_records(("a", 90, 0)),
    "describe": _describe("b", "a"),
    "describe up to the limit": _describe("b", "a", limit=4),
    "describe from the cursor": _describe("b", "a", limit=2, cursor=("b", 1)),
    "describe from a name between": _describe(limit=2, cursor=("aa", 1)),
    "describe from a negative cursor": _describe("b", cursor=("b", -1)),
    "describe no partition": _describe("b", limit=0),
    "describe twice": _describe("b", "b", limit=1),
    "describe an unknown topic": _describe("a", "nope"),
    "elect": _elect(0, ("b", (0, 2, 3)), ("nope", (0,)), ("a", ())),
    "elect any live replica": _elect(1, ("a", (0,))),
    "elect by an unknown rule": _elect(7, ("a", (0,))),
    "elect by an unknown rule for all": Ask(Api.ELECT_LEADERS, {"election_type": 9, "topic_partitions": None}),
    "elect for all": Ask(Api.ELECT_LEADERS, {"election_type": 0, "topic_partitions": None}),
    "directories of nothing": Ask(Api.DESCRIBE_LOG_DIRS, {"topics": []}),
    "move to nowhere": Ask(
        Api.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"path": "/nope", "topics": [{"name": "a", "partitions": [0]}]}]}
    ),
    "delete": _delete(
        {"name": "c"}, {"name": "nope"}, {"topic_id": UUID(int=99)}, {}, {"name": "d", "topic_id": UUID(int=5)}
    ),
    "delete twice": _delete({"name": "d"}, {"name": "d"}, {"name": "f"}),
    "delete without time": Ask(Api.DELETE_TOPICS, {"timeout": 0, "topics": [{"name": "d"}]}),
    "topics at the end": _describe(),
}
# The broker gives an id to a topic that it only checks.
WITHOUT_ID = ("validate",)
READS = (Api.DESCRIBE_CONFIGS, Api.DESCRIBE_LOG_DIRS, Api.DESCRIBE_TOPIC_PARTITIONS)


@pytest.fixture(scope="module")
def broker(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("broker")
    broker = KafkaBroker(kafka, home, log_dirs=("first", "second"))
    broker.format()
    broker.start()
    try:
        yield Place(broker.address, *broker.log_dirs)
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("node")
    first, second = home / "first", home / "second"
    config = Config.load(None, {"file.delete.delay.ms": "0"}, {}, local_dir=str(first))
    config = replace(config, more_data_dirs=(str(second),))
    with (
        LogManager.open(config, now_ms=_now_ms()) as manager,
        serving_node(manager, "127.0.0.1", 0, now_ms=_now_ms) as server,
    ):
        yield Place("{}:{}".format(*server.address), first, second)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_node_answers_a_script_of_calls_as_a_broker(broker: Place, node: Place) -> None:
    with closing(KafkaSocket(broker.address)) as theirs, closing(KafkaSocket(node.address)) as ours:
        for step, (api, request) in SCRIPT.items():
            found = ours.ask(api, _NEWEST[api], request)
            _assert_explained(found, step)
            real = _comparable(_asked(theirs, step))
            due_s = time.monotonic() + SECONDS_MAX
            while api in READS and real != _comparable(found) and time.monotonic() < due_s:
                time.sleep(0.05)
                real = _comparable(_asked(theirs, step))
            assert _comparable(found) == real, step


def _asked(broker: KafkaSocket, step: str) -> Fields:
    """The broker's answer to a step of the script."""
    api, request = SCRIPT[step]
    real = broker.ask(api, _NEWEST[api], request)
    if step in WITHOUT_ID:
        real["topics"] = [{**each, "topic_id": None} for each in real["topics"]]
    return real


def test_a_partition_moves_to_the_other_directory(broker: Place, node: Place) -> None:
    for place in (broker, node):
        with closing(KafkaSocket(place.address)) as client:
            client.ask(Api.CREATE_TOPICS, 7, _create(_topic("moving")).request)
            due = time.monotonic() + SECONDS_MAX
            while (source := _directory(client, "moving")) is None:
                assert time.monotonic() < due, "the partition was not created"
                time.sleep(0.05)
            target = place.second if source == str(place.first) else place.first
            topics = [{"name": "moving", "partitions": [0]}]
            moved = client.ask(Api.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [{"path": str(target), "topics": topics}]})
            assert [each["error_code"] for each in moved["results"][0]["partitions"]] == [0]
            due = time.monotonic() + SECONDS_MAX
            while _directory(client, "moving") != str(target):
                assert time.monotonic() < due, "the partition was not moved"
                time.sleep(0.05)


def _directory(client: KafkaSocket, topic: str) -> str | None:
    """The directory that holds partition 0, without the copy of a move."""
    found = client.ask(Api.DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": topic, "partitions": [0]}]})
    for each in found["results"]:
        for one in each["topics"]:
            if any(not partition["is_future_key"] for partition in one["partitions"]):
                return str(each["log_dir"])
    return None


_NEWEST = {
    Api.CREATE_TOPICS: 7,
    Api.DELETE_TOPICS: 6,
    Api.CREATE_PARTITIONS: 3,
    Api.DESCRIBE_CONFIGS: 4,
    Api.INCREMENTAL_ALTER_CONFIGS: 1,
    Api.ALTER_CONFIGS: 2,
    Api.DELETE_RECORDS: 2,
    Api.ELECT_LEADERS: 2,
    Api.DESCRIBE_LOG_DIRS: 4,
    Api.ALTER_REPLICA_LOG_DIRS: 2,
    Api.DESCRIBE_TOPIC_PARTITIONS: 0,
}


def _assert_explained(value: Any, step: str) -> None:
    """Every error has a message, in the responses that have a field for it."""
    if isinstance(value, Mapping):
        if value.get("error_code"):
            assert value.get("error_message", "none") not in ("", None), (step, value)
        for each in value.values():
            _assert_explained(each, step)
    elif isinstance(value, list):
        for each in value:
            _assert_explained(each, step)


def _comparable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _comparable_fields(value)
    if isinstance(value, list):
        return sorted((each for each in map(_comparable, value) if each is not None), key=repr)
    return value


def _comparable_fields(value: Mapping[str, Any]) -> Any:
    if "config_source" in value:
        own = {key: value[key] for key in ("name", "value", "config_source", "is_sensitive")}
        if value["config_source"] != 1:
            own = {"name": value["name"], "config_source": "not the topic's"}
        return {**own, "config_type": value.get("config_type")} if value["name"] in _KAFKAS else None
    skipped = {
        "error_message",
        "throttle_time",
        "log_dir",
        "total_bytes",
        "usable_bytes",
    }
    found = {name: _comparable(each) for name, each in value.items() if name not in skipped}
    if found.get("topic_id") is not None:
        found["topic_id"] = "an id"
    if "leader_epoch" in found:
        found["leader_epoch"] = "an epoch"
    return found


_KAFKAS = frozenset(
    (
        *("cleanup.policy", "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms"),
        *(f"compression.{name}" for name in ("gzip.level", "lz4.level", "type", "zstd.level")),
        *(f"{name}.replication.throttled.replicas" for name in ("follower", "leader")),
        *("index.interval.bytes", "local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms"),
        *(f"message.timestamp.{name}" for name in ("after.max.ms", "before.max.ms", "type")),
        *("max.message.bytes", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas"),
        *("remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable", "preallocate"),
        *("retention.bytes", "retention.ms", "unclean.leader.election.enable"),
        *(f"segment.{name}" for name in ("bytes", "index.bytes", "jitter.ms", "ms")),
    )
)
