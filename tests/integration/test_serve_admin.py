"""Independent admin clients change a node: topics, partitions, settings, records and log directories."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import confluent_kafka
import confluent_kafka.admin as librdkafka
import pytest
from manager_world import NOW, TIERED, World, send, settle

from local.format.record import Record
from local.names import TopicPartition
from tiered.manager.manager import LogManager
from tiered.serve.node.endpoint import serving_node

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka
    import kafka.admin
    import kafka.errors

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SECONDS_MAX = 60


class Node:
    """A node with two log directories, and its address."""

    def __init__(self, world: World, manager: LogManager, address: str) -> None:
        self.world, self.manager, self.address = world, manager, address

    def settings(self, topic: str) -> dict[str, str]:
        return dict(self.manager.topics.get(topic).properties)


@pytest.fixture
def node() -> Iterator[Node]:
    world = World()
    world.config = replace(world.config, more_data_dirs=("./second",))
    with world.open() as manager, serving_node(manager, "127.0.0.1", 0, now_ms=lambda: NOW) as server:
        yield Node(world, manager, "{}:{}".format(*server.address))


@pytest.fixture
def python(node: Node) -> Iterator[kafka.admin.KafkaAdminClient]:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=node.address)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def confluent(node: Node) -> librdkafka.AdminClient:
    return librdkafka.AdminClient({"bootstrap.servers": node.address, "log_level": 0})  # it outlives the node


def result(futures: Any) -> Any:
    """The results of confluent's futures by name, or their error codes."""

    def of(future: Any) -> Any:
        try:
            return future.result(SECONDS_MAX)
        except confluent_kafka.KafkaException as error:
            return error.args[0].name()

    return {getattr(key, "name", key): of(future) for key, future in futures.items()}


def test_kafka_python_creates_grows_and_deletes_topics(node: Node, python: Any) -> None:
    new = kafka.admin.NewTopic("orders", num_partitions=2, replication_factor=1, topic_configs={"retention.ms": "5000"})
    python.create_topics([new])
    assert node.settings("orders") == {"retention.ms": "5000"}
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        python.create_topics([new])
    python.create_partitions({"orders": kafka.admin.NewPartitions(4)})
    (described,) = python.describe_topics(["orders"])
    assert len(described["partitions"]) == node.manager.topics.get("orders").partition_count == 4
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        python.create_partitions({"orders": kafka.admin.NewPartitions(3)})
    python.delete_topics(["orders"])
    assert node.manager.topics.all() == []
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        python.delete_topics(["orders"])


def test_kafka_python_alters_and_describes_settings(node: Node, python: Any) -> None:
    node.manager.topics.create("orders", 1, {"segment.ms": "60000"}, now_ms=NOW)
    resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "orders", configs={"retention.ms": "7"})
    python.alter_configs([resource])
    assert node.settings("orders") == {"segment.ms": "60000", "retention.ms": "7"}
    wanted = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "orders")
    described = python.describe_configs([wanted], config_filter="all")
    assert "retention.ms" in str(described)


def test_kafka_python_deletes_records_and_lists_directories(node: Node, python: Any) -> None:
    node.manager.topics.create("t", 1, now_ms=NOW)
    send(node.manager, 40)
    python.delete_records({kafka.TopicPartition("t", 0): 25})
    assert node.manager.reader().offsets(TopicPartition("t", 0)) == (25, 40)
    assert "./second" in str(python.describe_log_dirs())


def test_confluent_creates_grows_and_deletes_topics(node: Node, confluent: librdkafka.AdminClient) -> None:
    new = [
        librdkafka.NewTopic("orders", 2, 1, config={"retention.ms": "5000"}),
        librdkafka.NewTopic("wrong", 2, 1, config={"retenton.ms": "5000"}),
        librdkafka.NewTopic("three", 2, 3),
    ]
    assert result(confluent.create_topics(new)) == {
        "orders": None,
        "wrong": "INVALID_CONFIG",
        "three": "INVALID_REPLICATION_FACTOR",
    }
    assert result(confluent.create_topics(new[:1], validate_only=True)) == {"orders": "TOPIC_ALREADY_EXISTS"}
    assert result(confluent.create_partitions([librdkafka.NewPartitions("orders", 4)])) == {"orders": None}
    assert len(confluent.list_topics(timeout=SECONDS_MAX).topics["orders"].partitions) == 4
    described = result(confluent.describe_topics(confluent_kafka.TopicCollection(["orders"])))
    assert len(described["orders"].partitions) == 4
    assert result(confluent.delete_topics(["orders", "nope"])) == {"orders": None, "nope": "UNKNOWN_TOPIC_OR_PART"}
    assert node.manager.topics.all() == []


def test_confluent_alters_settings_one_by_one(node: Node, confluent: librdkafka.AdminClient) -> None:
    node.manager.topics.create("orders", 1, {"segment.ms": "60000", "cleanup.policy": "compact"}, now_ms=NOW)
    verbs = librdkafka.AlterConfigOpType
    changes = [
        librdkafka.ConfigEntry("retention.ms", "7", incremental_operation=verbs.SET),
        librdkafka.ConfigEntry("segment.ms", None, incremental_operation=verbs.DELETE),
        librdkafka.ConfigEntry("cleanup.policy", "delete", incremental_operation=verbs.APPEND),
    ]
    topic = librdkafka.ConfigResource(librdkafka.ConfigResource.Type.TOPIC, "orders", incremental_configs=changes)
    assert result(confluent.incremental_alter_configs([topic])) == {"orders": None}
    assert node.settings("orders") == {"retention.ms": "7", "cleanup.policy": "compact,delete"}
    (found,) = result(confluent.describe_configs([topic])).values()
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("7", False)
    broker_id = next(iter(confluent.list_topics(timeout=SECONDS_MAX).brokers))
    broker = librdkafka.ConfigResource(librdkafka.ConfigResource.Type.BROKER, str(broker_id))
    (settings,) = result(confluent.describe_configs([broker])).values()
    assert (settings["log.dirs"].value, settings["log.dirs"].is_read_only) == ("./data,./second", True)


def test_confluent_deletes_records(node: Node, confluent: librdkafka.AdminClient) -> None:
    node.manager.topics.create("t", 1, now_ms=NOW)
    send(node.manager, 40)
    wanted = confluent_kafka.TopicPartition("t", 0, 25)
    (deleted,) = [each.result(SECONDS_MAX) for each in confluent.delete_records([wanted]).values()]
    assert deleted.low_watermark == 25
    assert node.manager.reader().offsets(TopicPartition("t", 0)) == (25, 40)


def test_changes_are_made_while_clients_append_and_read(node: Node, confluent: librdkafka.AdminClient) -> None:
    """Records are appended by key and read all the time; what clients changed is there after a restart."""
    manager = node.manager
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    failures, stop, sent = list[BaseException](), threading.Event(), [0]

    def append() -> None:
        try:
            while not stop.is_set():
                records = [Record(b"k%d" % at, b"v", NOW) for at in range(10)]
                manager.append("t", records, now_ms=NOW)
                sent[0] += len(records)
                for name in manager.topics.get("t").partitions():
                    manager.reader().offsets(name)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    worker = threading.Thread(target=append)
    worker.start()
    try:
        for count in range(2, 7):
            assert result(confluent.create_partitions([librdkafka.NewPartitions("t", count)])) == {"t": None}
            new = librdkafka.NewTopic(f"other{count}", 2, 1)
            assert result(confluent.create_topics([new])) == {f"other{count}": None}
            if count % 2:
                assert result(confluent.delete_topics([f"other{count}"])) == {f"other{count}": None}
    finally:
        stop.set()
        worker.join()
    assert failures == []
    settle(manager)
    ends = [manager.reader().offsets(name)[1] for name in manager.topics.get("t").partitions()]
    assert (len(ends), sum(ends)) == (6, sent[0])
    with node.world.open(read_only=True) as again:
        assert [each.name for each in again.topics.all()] == ["other2", "other4", "other6", "t"]
        assert again.topics.get("t").partition_count == 6


def test_a_move_is_seen_by_an_admin_client(node: Node, python: Any) -> None:
    node.manager.topics.create("t", 1, now_ms=NOW)
    send(node.manager, 40)
    name = TopicPartition("t", 0)
    source = node.manager.directories.of(name).root
    target = {"./data": "./second", "./second": "./data"}[source]
    broker = python.describe_cluster()["brokers"][0]["broker_id"]
    python.alter_replica_log_dirs({kafka.TopicPartitionReplica("t", 0, broker): target})
    due = time.monotonic() + SECONDS_MAX
    while node.manager.directories.of(name).root != target:
        assert time.monotonic() < due, "the partition was not moved"
        time.sleep(0.01)
    assert len(list(node.manager.reader().records(name, 0))) == 40
