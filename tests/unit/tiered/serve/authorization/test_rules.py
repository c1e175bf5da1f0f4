"""Each API with the permissions that it needs, and without them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fake_source import CALL, IDS, FakeSource
from kafka_security import Clock

from local.errors import AccessDenied
from tiered.serve.authorization.rules import RULES, answer
from tiered.serve.handlers.dispatch import HANDLERS
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.cluster import DescribeClusterRequest, MetadataRequest, MetadataRequestTopic
from tiered.serve.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tiered.serve.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tiered.serve.read_pool import ReadPool
from tiered.serve.security.principals import Principal
from tiered.serve.security.security import Security

ALICE = replace(CALL, principal=Principal("alice"), client_host="10.0.0.1")
DENIED = Error.TOPIC_AUTHORIZATION_FAILED
Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Ask a server whose ACLs allow alice what `rules` say: (operation, resource) pairs."""

    def asked(api: Api, request: object, *rules: tuple[str, str], call: Any = ALICE, settings: str = "") -> Any:
        path = tmp_path / "security.toml"
        tables = [f'[[acl]]\nprincipal = "User:alice"\noperations = "{each}"\n{on}' for each, on in rules]
        path.write_text("\n".join(["super.users = []", settings, *tables]))
        security = Security(str(path), Clock(), Clock())
        service = Service(source=FakeSource(orders=50, slow=50), pool=ReadPool(), security=security)
        try:
            return asyncio.run(answer(service, api, request, call))  # type: ignore[arg-type]
        finally:
            service.pool.close()

    return asked


def test_every_handler_has_a_rule() -> None:
    assert HANDLERS.keys() <= RULES.keys()


ORDERS = 'topic = "orders"'


def test_metadata_of_all_topics_has_those_with_describe(ask: Ask) -> None:
    assert ask(Api.METADATA, MetadataRequest()).topics == ()
    found = ask(Api.METADATA, MetadataRequest(), ("Read", ORDERS))
    assert [each.name for each in found.topics] == ["orders"]


@pytest.mark.parametrize("version", [0, 1, 12])
def test_metadata_of_named_topics_refuses_without_telling_whether_they_exist(ask: Ask, version: int) -> None:
    names = [MetadataRequestTopic(name=each) for each in ("orders", "slow", "none")]
    call = replace(ALICE, version=version)
    found = ask(Api.METADATA, MetadataRequest(topics=tuple(names)), ("Describe", ORDERS), call=call)
    assert [(each.name, each.error_code, each.topic_id, len(each.partitions)) for each in found.topics] == [
        ("orders", Error.NONE, IDS["orders"], 1),
        ("slow", DENIED, None, 0),
        ("none", DENIED, None, 0),
    ]
    found = ask(Api.METADATA, MetadataRequest(topics=tuple(names[1:])), ("Describe", ORDERS), call=call)
    assert [each.error_code for each in found.topics] == [DENIED, DENIED]


def test_metadata_by_id_refuses_without_the_name(ask: Ask) -> None:
    ids = [MetadataRequestTopic(topic_id=each) for each in (IDS["orders"], IDS["slow"], UUID(int=99))]
    found = ask(Api.METADATA, MetadataRequest(topics=tuple(ids)), ("Describe", ORDERS))
    assert {(each.name, each.topic_id, each.error_code) for each in found.topics} == {
        ("orders", IDS["orders"], Error.NONE),
        (None, IDS["slow"], DENIED),
        (None, UUID(int=99), Error.UNKNOWN_TOPIC_ID),
    }


def test_authorized_operations_are_those_of_the_caller(ask: Ask) -> None:
    request = MetadataRequest(include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
    found = ask(Api.METADATA, request, ("Describe", ORDERS))
    assert found.topics[0].topic_authorized_operations == 1 << 8
    assert found.cluster_authorized_operations == 0
    found = ask(Api.METADATA, request, ("Read", ORDERS), ("Describe", "cluster = true"))
    assert found.topics[0].topic_authorized_operations & 0b1_0000_1000 == 1 << 3 | 1 << 8
    assert found.cluster_authorized_operations & 1 << 8
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert ask(Api.DESCRIBE_CLUSTER, request).cluster_authorized_operations == 0
    assert ask(Api.DESCRIBE_CLUSTER, request, ("Describe", "cluster = true")).cluster_authorized_operations & 1 << 8


def test_offsets_need_describe_of_each_topic(ask: Ask) -> None:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-2)
    topics = tuple(ListOffsetsTopic(name=each, partitions=(asked,)) for each in ("slow", "orders"))
    found = ask(Api.LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=topics), ("Describe", ORDERS))
    assert {each.name: each.partitions[0].error_code for each in found.topics} == {"orders": 0, "slow": DENIED}


def test_ends_of_epochs_need_describe_or_the_cluster(ask: Ask) -> None:
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=2)
    topics = tuple(OffsetForLeaderTopic(topic=each, partitions=(asked,)) for each in ("slow", "orders"))
    request = OffsetForLeaderEpochRequest(topics=topics)
    found = ask(Api.OFFSET_FOR_LEADER_EPOCH, request, ("Describe", ORDERS))
    assert {each.topic: each.partitions[0].error_code for each in found.topics} == {"orders": 0, "slow": DENIED}
    found = ask(Api.OFFSET_FOR_LEADER_EPOCH, request, ("ClusterAction", "cluster = true"))
    assert [each.partitions[0].error_code for each in found.topics] == [Error.NONE, Error.NONE]


def fetch_of(*names: str, by_id: bool = False, **fields: Any) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = tuple(
        FetchTopic(topic=None if by_id else each, topic_id=IDS[each] if by_id else None, partitions=(asked,))
        for each in names
    )
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics, **fields})


@pytest.mark.parametrize("by_id", [False, True])
def test_fetch_needs_read_of_each_topic(ask: Ask, by_id: bool) -> None:
    request = fetch_of("slow", "orders", by_id=by_id)
    found = ask(Api.FETCH, request, ("Read", ORDERS), ("Describe", 'topic = "slow"'))
    results = {each.topic_id or each.topic: each.partitions[0] for each in found.responses}
    orders, slow = (IDS["orders"], IDS["slow"]) if by_id else ("orders", "slow")
    assert results[orders].error_code is Error.NONE
    assert results[orders].records
    assert (results[slow].error_code, results[slow].records, results[slow].high_watermark) == (DENIED, (), -1)


def test_a_fetch_by_id_has_an_error_that_clients_retry_while_no_topics_can_be_listed(tmp_path: Path) -> None:
    """The connection stays. A list that the handler reads after all shows no topic without READ."""
    path = tmp_path / "security.toml"
    path.write_text(f'super.users = []\n[[acl]]\nprincipal = "User:alice"\noperations = "Read"\n{ORDERS}')
    source = FakeSource(orders=50, slow=50)
    service = Service(source=source, pool=ReadPool(), security=Security(str(path), Clock(), Clock()))
    listed = source.topics

    def fetched() -> dict[UUID | None, Error | int]:
        request = fetch_of("orders", "slow", by_id=True)
        response: Any = asyncio.run(answer(service, Api.FETCH, request, ALICE))  # type: ignore[arg-type]
        return {each.topic_id: each.partitions[0].error_code for each in response.responses}

    def fail_once() -> Any:
        source.topics = listed  # type: ignore[method-assign]
        raise AccessDenied("the bucket refuses")

    try:
        source.topics_error = AccessDenied("the bucket refuses")
        assert set(fetched().values()) == {Error.KAFKA_STORAGE_ERROR}
        source.topics_error, source.topics = None, fail_once  # type: ignore[method-assign]
        assert fetched() == {IDS["orders"]: Error.NONE, IDS["slow"]: DENIED}
    finally:
        service.close()


def test_a_quota_bounds_a_response(ask: Ask) -> None:
    settings = '[[quota]]\nprincipal = "User:alice"\nconsumer_byte_rate = 50'
    found = ask(Api.FETCH, fetch_of("orders"), ("Read", ORDERS + "\n" + settings))
    assert sum(each.nbytes for each in found.responses[0].partitions[0].records) == 500


def test_a_throttled_fetch_continues_its_session(tmp_path: Path) -> None:
    path = tmp_path / "security.toml"
    path.write_text('super.users = ["User:alice"]\n[[quota]]\nprincipal = "User:alice"\nconsumer_byte_rate = 50')
    security = Security(str(path), Clock(), Clock())
    service = Service(source=FakeSource(orders=50), pool=ReadPool(), security=security)
    call = replace(ALICE, version=12)

    async def fetched() -> list[tuple[Error | int, int, int]]:
        found = []
        for epoch in range(4):
            session_id = found[0][1] if found else 0
            request = fetch_of(*(() if epoch else ("orders",)), session_id=session_id, session_epoch=epoch)
            response: Any = await answer(service, Api.FETCH, request, call)  # type: ignore[arg-type]
            found.append((response.error_code, response.session_id, len(response.responses)))
            if epoch == 0:
                security.charge(call.principal, Api.FETCH, 0, 10_000)
            if epoch == 2:
                security.quotas.replace({})
        return found

    try:
        first, *others = asyncio.run(fetched())
    finally:
        service.close()
    assert first == (Error.NONE, first[1], 1)
    assert first[1] > 0
    assert others == [(Error.NONE, first[1], 0), (Error.NONE, first[1], 0), (Error.NONE, first[1], 1)]


def test_a_server_without_rules_asks_for_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "security.toml"
    path.write_text("")
    service = Service(source=FakeSource(orders=1), pool=ReadPool(), security=Security(str(path), Clock(), Clock()))
    try:
        found: Any = asyncio.run(answer(service, Api.METADATA, MetadataRequest(), CALL))
    finally:
        service.pool.close()
    assert [each.name for each in found.topics] == ["orders"]
