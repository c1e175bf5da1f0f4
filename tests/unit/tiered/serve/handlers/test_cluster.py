"""Metadata and DescribeCluster: one broker, which leads every partition."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from uuid import UUID

import pytest
from fake_admin import FakeAdmin
from fake_source import IDS, SLOW, FakeSource, run

from local.errors import Unavailable
from local.names import TopicPartition
from tiered.serve.handlers import service as services
from tiered.serve.handlers.cluster import describe_cluster, metadata
from tiered.serve.handlers.service import Call, Endpoint, Service
from tiered.serve.messages.base import NO_OPERATIONS, Error
from tiered.serve.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tiered.serve.peers import FAILURES_MAX, Peers
from tiered.serve.record_source import Leader

HERE = Call(version=13, endpoint=Endpoint(host="replica", port=9092))


def described(source: FakeSource, version: int = 13, **fields: object) -> MetadataResponse:
    return run(source, lambda service: metadata(service, MetadataRequest(**fields), replace(HERE, version=version)))


def names(response: MetadataResponse) -> list[str | None]:
    return [each.name for each in response.topics]


def test_all_topics_with_this_server_as_leader() -> None:
    found = described(FakeSource(orders=1, slow=2))
    assert [(each.node_id, each.host, each.port) for each in found.brokers] == [(0, "replica", 9092)]
    assert (found.cluster_id, found.controller_id) == ("fake-cluster", 0)
    assert names(found) == ["orders", "slow"]
    assert found.topics[0].topic_id == IDS["orders"]
    (partition,) = found.topics[0].partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, (0,), (0,))
    assert partition.leader_epoch == -1, "replicas must not fence each other's clients"


def test_a_node_states_its_epochs_and_the_partitions_without_a_leader() -> None:
    source = FakeSource(orders=1, slow=2)
    source.led["orders"] = Leader(epoch=7)
    found = described(source).topics[0].partitions[0]
    assert (found.leader_id, found.leader_epoch, found.offline_replicas) == (0, 7, ())
    for is_offline, replicas in ((True, (0,)), (False, ())):
        source.led["orders"] = Leader(error=Unavailable("out of reach"), is_offline=is_offline)
        found = described(source).topics[0].partitions[0]
        assert (found.error_code, found.leader_id) == (Error.LEADER_NOT_AVAILABLE, -1)
        assert (found.replica_nodes, found.offline_replicas) == ((0,), replicas)


def test_an_empty_list_means_all_topics_in_version_0_only() -> None:
    assert names(described(FakeSource(orders=1), 0, topics=())) == ["orders"]
    assert names(described(FakeSource(orders=1), 1, topics=())) == []


def test_topics_are_found_by_name_or_id_and_missing_ones_have_their_error() -> None:
    wanted = (
        MetadataRequestTopic(name="orders"),
        MetadataRequestTopic(topic_id=IDS["orders"]),
        MetadataRequestTopic(name="nope"),
        MetadataRequestTopic(name="../nope"),
        MetadataRequestTopic(topic_id=UUID(int=99)),
    )
    found = described(FakeSource(orders=1), topics=wanted)
    assert [(each.error_code, each.name) for each in found.topics] == [
        (Error.NONE, "orders"),
        (Error.NONE, "orders"),
        (Error.UNKNOWN_TOPIC_OR_PARTITION, "nope"),
        (Error.INVALID_TOPIC_EXCEPTION, "../nope"),
        (Error.UNKNOWN_TOPIC_ID, None),
    ]


def test_operations_are_stated_only_on_request() -> None:
    found = described(FakeSource(orders=1))
    assert found.topics[0].topic_authorized_operations == found.cluster_authorized_operations == NO_OPERATIONS
    found = described(
        FakeSource(orders=1), include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    assert found.topics[0].topic_authorized_operations == 1 << 3 | 1 << 8
    assert found.cluster_authorized_operations == 1 << 8


def test_topics_of_a_node_offer_every_operation_and_missing_topics_too() -> None:
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=each) for each in ("orders", "nope")),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )

    async def asked() -> MetadataResponse:
        source = FakeAdmin(orders=1)
        service = Service(source=source, admin=source)
        try:
            return await metadata(service, request, HERE)
        finally:
            service.close()

    found = asyncio.run(asked())
    # READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS; and those of a cluster
    assert [each.topic_authorized_operations for each in found.topics] == [0b1101_1111_1000] * 2
    assert found.cluster_authorized_operations == 0b1_1111_1010_0000


def test_an_unavailable_bucket_is_an_error_and_not_an_empty_cluster() -> None:
    source = FakeSource(orders=1)
    source.topics_error = Unavailable("down")
    found = described(source, topics=(MetadataRequestTopic(name="orders"),))
    assert [each.error_code for each in found.topics] == [Error.KAFKA_STORAGE_ERROR]
    assert described(source).error_code is Error.KAFKA_STORAGE_ERROR


def test_the_cluster_has_this_server_as_its_broker() -> None:
    async def work(service, **fields: object) -> DescribeClusterResponse:
        return await describe_cluster(service, DescribeClusterRequest(**fields), HERE)

    found = run(FakeSource(), work)
    assert [(each.broker_id, each.host, each.port) for each in found.brokers] == [(0, "replica", 9092)]
    assert found.cluster_id == "fake-cluster"
    refused = run(FakeSource(), lambda service: work(service, endpoint_type=2))
    assert (refused.error_code, refused.endpoint_type) == (Error.INVALID_REQUEST, 2)


def test_known_topics_are_used_while_a_new_list_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "READ_WAIT_S", 0)
    source, gate = FakeSource(orders=1), threading.Event()
    list_topics = source.topics

    async def work(service: services.Service) -> list[list[str]]:
        before = list(await service.topics())
        monkeypatch.setattr(source, "topics", lambda: gate.wait(60) and list_topics())
        source.counts[SLOW] = 1
        during = list(await service.topics())
        gate.set()
        while (after := list(await service.topics())) == before:
            await asyncio.sleep(0)
        return [before, during, after]

    assert run(source, work) == [["orders"], ["orders"], ["orders", "slow"]]


def test_replicas_with_peers_name_the_live_ones_and_their_partitions() -> None:
    one, two = (Endpoint(host=f"replica-{number}", port=9092) for number in (1, 2))
    down = set[Endpoint]()
    peers = Peers(two, [one], lambda endpoint: endpoint not in down)

    async def work(service: Service) -> tuple[MetadataResponse, DescribeClusterResponse]:
        service.peers, service.broker_id = peers, peers.own.broker_id
        request = MetadataRequest(topics=None)
        return await metadata(service, request, HERE), await describe_cluster(service, DescribeClusterRequest(), HERE)

    for brokers in ([(0, "replica-1"), (1, "replica-2")], [(1, "replica-2")]):
        found, cluster = run(FakeSource(orders=1, slow=2), work)
        assert [(each.node_id, each.host) for each in found.brokers] == brokers
        assert [(each.broker_id, each.host) for each in cluster.brokers] == brokers
        assert found.controller_id == cluster.controller_id == 1
        leaders = {topic.name: topic.partitions[0].leader_id for topic in found.topics}
        expected = {name: peers.leader_of(TopicPartition(name, 0)).broker_id for name in ("orders", "slow")}
        assert leaders == expected
        down.add(one)
        for _ in range(FAILURES_MAX):
            peers.check()


def test_a_repeated_topic_is_described_once() -> None:
    by_name = [MetadataRequestTopic(name="orders", topic_id=each) for each in (None, IDS["orders"], UUID(int=99))]
    by_id = MetadataRequestTopic(topic_id=IDS["orders"])
    found = described(FakeSource(orders=1), topics=(*by_name, by_id, *by_name, by_id))
    assert names(found) == ["orders", "orders"], "one by its name, one by its id"
