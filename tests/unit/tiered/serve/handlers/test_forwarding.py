"""A replica forwards the requests of groups to the node that coordinates them, and names a replica as coordinator."""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_group_node import LIMIT_S, Client, FakeNode, fake_node, forwarding_to
from fake_source import CALL, IDS, FakeSource
from group_messages import REQUESTS, RESPONSES
from kafka_socket import METADATA, receive, send

from local.errors import AccessDenied
from tiered.serve import connection
from tiered.serve.authorization.rules import answer
from tiered.serve.endpoint_metrics import error_codes
from tiered.serve.groups import group_node
from tiered.serve.groups.group_node import GroupNode
from tiered.serve.handlers import forwarding
from tiered.serve.handlers.forwarding import HANDLERS
from tiered.serve.handlers.repeated_errors import RepeatedErrors
from tiered.serve.handlers.service import GROUP_APIS, Endpoint, Service
from tiered.serve.messages import consumer_groups, group_offsets, groups
from tiered.serve.messages.base import Api, Error
from tiered.serve.peers import Peers
from tiered.serve.protocol import SERVED, Header, read_response
from tiered.serve.security.security import Security

pytestmark = pytest.mark.server
NODE = GroupNode(endpoint=Endpoint(host="node", port=9093))
EVERY = [
    (api, version)
    for api in sorted(REQUESTS)
    for version in range(SERVED[api].min_version, SERVED[api].max_version + 1)
]
HEARTBEAT = (Api.HEARTBEAT, 4, REQUESTS[Api.HEARTBEAT])


@pytest.fixture(autouse=True)
def own_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of other tests must not silence those of this one."""
    errors = RepeatedErrors(forwarding._log, attempt="cannot forward a group request", place="node")
    monkeypatch.setattr(forwarding, "_errors", errors)


@contextmanager
def forwarded(node: FakeNode, **settings: Any) -> Iterator[Client]:
    with forwarding_to(node.endpoint, **settings) as server, Client(server) as client:
        yield client


def test_every_group_request_is_offered_and_handled() -> None:
    assert HANDLERS.keys() == GROUP_APIS == REQUESTS.keys() | {Api.FIND_COORDINATOR}
    with_node = Service(source=FakeSource(), group_node=NODE).apis.keys()
    assert with_node - Service(source=FakeSource()).apis.keys() == GROUP_APIS


def test_requests_and_responses_of_every_version_pass_byte_by_byte() -> None:
    """But for the correlation ids, which are those of each connection."""
    with fake_node(lambda header, request: RESPONSES[header.api_key]) as node, forwarded(node) as client:
        sent: list[bytes] = []
        encoded = node._answered

        def noted(frame: bytes) -> bytes | None:
            found = encoded(frame)
            sent.append((found or b"")[4:])
            return found

        node._answered = noted  # type: ignore[method-assign]
        for api, version in EVERY:
            asked = client.send(api, version, REQUESTS[api])
            answered = client.receive()
            seen = node.frames.get(timeout=LIMIT_S)
            assert (asked[:4], asked[8:]) == (seen[:4], seen[8:]), (api, version)
            assert answered[4:] == sent[-1][4:], (api, version)
        assert node.opened == 1, "one connection for all requests of a client"


def test_each_client_has_a_connection_of_its_own_that_ends_with_it() -> None:
    answers = lambda header, request: RESPONSES[header.api_key]  # noqa: E731
    with fake_node(answers) as node, forwarding_to(node.endpoint) as server:
        with Client(server) as first, Client(server) as second, Client(server) as third:
            first.ask(*HEARTBEAT)
            second.ask(*HEARTBEAT)
            send(third.socket, METADATA)
            receive(third.socket)
            assert node.opened == 2, "a client without groups needs none"
        for _ in range(2):
            node.ended.get(timeout=LIMIT_S)


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_without_a_node_every_place_has_the_error_that_clients_retry(api: int, version: int) -> None:
    with fake_node() as node:
        pass
    with forwarding_to(node.endpoint) as server, Client(server) as client:
        response = client.ask(api, version, REQUESTS[api])
        expected = Error.NOT_COORDINATOR if api == Api.OFFSET_FETCH else Error.COORDINATOR_NOT_AVAILABLE
        assert set(error_codes(response)) == {expected}
        assert places(response) == {expected}
        client.ask(api, version, REQUESTS[api])


def places(response: Any) -> set[Error]:
    """The error codes of the parts of a response that name a group or a partition; its own without parts."""
    parts = [
        part
        for name in ("groups", "results", "topics")
        for each in getattr(response, name, ())
        for part in (getattr(each, "partitions", None) or [each])
    ]
    return {each.error_code for each in parts} or {response.error_code}


def test_a_group_named_twice_fails_once() -> None:
    with fake_node() as node:
        pass
    with forwarding_to(node.endpoint) as server, Client(server) as client:
        for api, request in (
            (Api.DESCRIBE_GROUPS, groups.DescribeGroupsRequest(groups=("g", "g"))),
            (Api.DELETE_GROUPS, groups.DeleteGroupsRequest(groups_names=("g", "g"))),
            (Api.CONSUMER_GROUP_DESCRIBE, consumer_groups.ConsumerGroupDescribeRequest(group_ids=("g", "g"))),
        ):
            assert len(list(error_codes(client.ask(api, 0, request)))) == 1


def test_an_unreachable_node_makes_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with fake_node() as node:
        pass
    with caplog.at_level(logging.WARNING), forwarding_to(node.endpoint) as server:
        for _ in range(3):
            with Client(server) as client:
                client.ask(*HEARTBEAT)
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.startswith(f"cannot forward a group request: node={node.endpoint} error=")
    assert "cause=connection refused" in line


@pytest.mark.parametrize(
    "wrong",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", (33 << 20)),
        struct.pack(">ii", 4, 123456),  # another correlation id
        struct.pack(">i", 60) + b"\xff" * 60,
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
        b"",
    ],
    ids=["negative", "empty", "too long", "another request's", "garbage", "HTTP", "the end"],
)
def test_a_node_that_breaks_the_protocol_is_asked_again_on_a_new_connection(wrong: bytes) -> None:
    answers: list[object] = [wrong, RESPONSES[Api.HEARTBEAT]]
    with fake_node(lambda header, request: answers.pop(0)) as node, forwarded(node) as client:
        assert set(error_codes(client.ask(*HEARTBEAT))) == {Error.COORDINATOR_NOT_AVAILABLE}
        assert client.ask(*HEARTBEAT) == RESPONSES[Api.HEARTBEAT]
        assert node.opened == 2


def test_bytes_after_a_response_are_no_part_of_it() -> None:
    long = struct.pack(">iibih", 4 + 1 + 4 + 2 + 1 + 1, 2, 0, 0, 0) + b"\0\0"
    answers: list[object] = [long, RESPONSES[Api.HEARTBEAT]]
    with fake_node(lambda header, request: answers.pop(0)) as node, forwarded(node) as client:
        assert set(error_codes(client.ask(*HEARTBEAT))) == {Error.COORDINATOR_NOT_AVAILABLE}
        assert client.ask(*HEARTBEAT) == RESPONSES[Api.HEARTBEAT]


def test_a_response_cut_in_its_middle_is_no_response() -> None:
    with fake_node() as node, forwarded(node) as client:
        client.send(*HEARTBEAT)
        node.frames.get(timeout=LIMIT_S)
        (connection,) = node._open
        connection.sendall(struct.pack(">ii", 100, 2))
        node.end_connections()
        response = read_response(
            Header(api_key=Api.HEARTBEAT, api_version=4, correlation_id=77), memoryview(client.receive())
        )
        assert set(error_codes(response)) == {Error.COORDINATOR_NOT_AVAILABLE}


def test_a_node_that_does_not_answer_in_time_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "RESPONSE_S", 0.0)
    with fake_node() as node, forwarded(node) as client:
        assert set(error_codes(client.ask(*HEARTBEAT))) == {Error.COORDINATOR_NOT_AVAILABLE}
        node.ended.get(timeout=LIMIT_S)


def test_a_node_that_accepts_and_says_nothing_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_node, "CONNECT_S", 0.05)
    with fake_node() as node, forwarded(node) as client:
        node._answered = lambda frame: None  # type: ignore[method-assign]
        assert set(error_codes(client.ask(*HEARTBEAT))) == {Error.COORDINATOR_NOT_AVAILABLE}


def test_joins_and_syncs_may_wait_for_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, float]] = []

    class Node:
        rebalance_s = 0.0

        async def call(self, api: int, version: int, request: object, client_id: str | None, *, limit_s: float) -> Any:
            limits.append((api, limit_s))
            return RESPONSES[api]

    service, call = Service(source=FakeSource(), group_node=NODE), replace(CALL, version=4, node=Node())  # type: ignore[arg-type]
    for api in (Api.SYNC_GROUP, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT):
        asyncio.run(answer(service, api, REQUESTS[api], call))
    oldest = groups.JoinGroupRequest(group_id="g", session_timeout_ms=6000, protocol_type="consumer", protocols=())
    asyncio.run(answer(service, Api.JOIN_GROUP, oldest, call))
    assert limits == [
        (Api.SYNC_GROUP, 30.0),
        (Api.JOIN_GROUP, 39.0),
        (Api.SYNC_GROUP, 39.0),
        (Api.HEARTBEAT, 30.0),
        (Api.JOIN_GROUP, 36.0),
    ]


def test_a_client_that_ends_while_its_join_waits_ends_the_connection_to_the_node() -> None:
    with fake_node() as node, forwarding_to(node.endpoint) as server:
        with Client(server) as client:
            client.send(Api.JOIN_GROUP, 9, REQUESTS[Api.JOIN_GROUP])
            node.frames.get(timeout=LIMIT_S)
            assert node.ended.empty()
        node.ended.get(timeout=LIMIT_S)


def test_a_leave_behind_a_join_that_waits_is_forwarded_although_its_client_ended() -> None:
    """librdkafka ends so. Lost, the group waits for the session timeout of the member."""
    with fake_node() as node, forwarding_to(node.endpoint) as server:
        with Client(server) as client:
            client.send(Api.JOIN_GROUP, 9, REQUESTS[Api.JOIN_GROUP])
            node.frames.get(timeout=LIMIT_S)
            leave = client.send(Api.LEAVE_GROUP, 5, REQUESTS[Api.LEAVE_GROUP])
        assert node.frames.get(timeout=LIMIT_S)[8:] == leave[8:]


def test_a_commit_whose_client_ended_is_forwarded_as_a_broker_would_take_it() -> None:
    with fake_node() as node, forwarding_to(node.endpoint) as server:
        with Client(server) as client:
            commit = client.send(Api.OFFSET_COMMIT, 9, REQUESTS[Api.OFFSET_COMMIT])
        assert node.frames.get(timeout=LIMIT_S)[8:] == commit[8:]


def test_the_end_of_the_replica_ends_a_join_that_waits() -> None:
    with fake_node() as node:
        with forwarding_to(node.endpoint) as server:
            client = Client(server)
            client.send(Api.JOIN_GROUP, 9, REQUESTS[Api.JOIN_GROUP])
            node.frames.get(timeout=LIMIT_S)
        node.ended.get(timeout=LIMIT_S)
        client.socket.close()


def test_requests_that_arrive_while_another_waits_are_answered_in_order() -> None:
    with fake_node(lambda header, request: RESPONSES[header.api_key]) as node, forwarded(node) as client:
        for number in range(100):
            client.send(*(HEARTBEAT if number % 2 else (Api.OFFSET_COMMIT, 9, REQUESTS[Api.OFFSET_COMMIT])))
        lengths = [len(client.receive()) for _ in range(100)]
        assert lengths == lengths[:2] * 50
        assert lengths[0] != lengths[1]


def test_a_large_request_and_a_large_response_pass() -> None:
    names = tuple(f"group-{at:06d}" for at in range(20_000))
    results = tuple(groups.DeletableGroupResult(group_id=each) for each in names)
    response = groups.DeleteGroupsResponse(results=results)
    with fake_node(lambda header, request: response) as node, forwarded(node) as client:
        asked = client.send(Api.DELETE_GROUPS, 2, groups.DeleteGroupsRequest(groups_names=names))
        assert len(asked) > group_node.LOOP_BYTES_MAX
        assert len(client.receive()) > group_node.LOOP_BYTES_MAX
        assert node.frames.get(timeout=LIMIT_S)[8:] == asked[8:]


def test_a_response_that_arrives_counts_as_memory_of_responses() -> None:
    counts: list[int] = []
    with fake_node() as node, forwarding_to(node.endpoint) as server, Client(server) as client:
        load = server._service.load
        sending = load.sending

        def noted(size_bytes: int) -> Any:
            counts.append(size_bytes)
            return sending(size_bytes)

        load.sending = noted  # type: ignore[method-assign]
        node.answer = lambda header, request: RESPONSES[header.api_key]
        client.ask(*HEARTBEAT)
    sizes = [each for each in counts if each]
    assert sizes[-2] == sizes[-1] - 4, "the frame from the node, then the one to the client"


def test_a_response_counts_as_memory_until_it_is_encoded_for_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are there until then, and may wait for a thread that encodes them."""
    held: list[int] = []
    encode = connection.encode
    answers: list[object] = [RESPONSES[Api.HEARTBEAT], b"", RESPONSES[Api.HEARTBEAT]]
    with (
        fake_node(lambda header, request: answers.pop(0)) as node,
        forwarding_to(node.endpoint) as server,
        Client(server) as client,
    ):
        load = server._service.load

        def noted(*args: Any) -> Any:
            held.append(load.unsent_bytes)
            return encode(*args)

        monkeypatch.setattr(connection, "encode", noted)
        sizes: list[int] = []
        for _ in range(3):
            client.send(*HEARTBEAT)
            sizes.append(len(client.receive()))
        client.ask(Api.FIND_COORDINATOR, 4, groups.FindCoordinatorRequest(coordinator_keys=("g",)))
        assert held == [sizes[0], 0, sizes[2], 0], "the second response failed, and the fourth needs no node"


def test_a_response_beyond_the_memory_of_responses_is_not_read() -> None:
    answers: list[object] = [struct.pack(">i", (1 << 20) + 1), RESPONSES[Api.HEARTBEAT]]
    with (
        fake_node(lambda header, request: answers.pop(0)) as node,
        forwarding_to(node.endpoint) as server,
        Client(server) as client,
    ):
        server._service.load.unsent_bytes = 1 << 30  # of slow clients
        assert set(error_codes(client.ask(*HEARTBEAT))) == {Error.COORDINATOR_NOT_AVAILABLE}
        assert client.ask(*HEARTBEAT) == RESPONSES[Api.HEARTBEAT]


def test_a_node_that_restarts_while_no_request_waits_fails_none() -> None:
    with fake_node(lambda header, request: RESPONSES[header.api_key]) as node, forwarded(node) as client:
        client.ask(*HEARTBEAT)
        node.end_connections()
        assert client.ask(*HEARTBEAT) == RESPONSES[Api.HEARTBEAT]
        assert node.opened == 2


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_version_that_the_node_lacks_is_unsupported(api: int, version: int) -> None:
    lacks = {api: version - 1}
    with fake_node(lambda header, request: RESPONSES[header.api_key], lacks=lacks) as node, forwarded(node) as client:
        response = client.ask(api, version, REQUESTS[api])
        assert places(response) == {Error.UNSUPPORTED_VERSION}
        other = Api.HEARTBEAT if api != Api.HEARTBEAT else Api.LEAVE_GROUP
        assert client.ask(other, 4, REQUESTS[other]) == RESPONSES[other]
        assert node.opened == 1


def test_an_unknown_error_code_passes() -> None:
    response = groups.HeartbeatResponse(error_code=12345)  # type: ignore[arg-type]
    with fake_node(lambda header, request: response) as node, forwarded(node) as client:
        for _ in range(2):
            assert client.ask(*HEARTBEAT) == response


def ask_here(service: Service, request: groups.FindCoordinatorRequest, version: int) -> list[Any]:
    found: Any = asyncio.run(answer(service, Api.FIND_COORDINATOR, request, replace(CALL, version=version)))
    return list(found.coordinators) if version >= 4 else [found]


def test_a_replica_names_itself_as_the_coordinator_as_in_its_metadata() -> None:
    service = Service(source=FakeSource(), group_node=NODE)
    request = groups.FindCoordinatorRequest(key="g", coordinator_keys=("g", "h"))
    for version in range(7):
        for each in ask_here(service, request, version):
            assert (each.error_code, each.node_id, each.host, each.port) == (0, service.broker_id, "broker", 9092)


def test_all_replicas_name_the_same_alive_replica_for_a_group() -> None:
    addresses = [Endpoint(host=f"replica-{at}", port=9092) for at in range(3)]
    down = set[Endpoint]()
    services = []
    for own in addresses:
        peers = Peers(own, addresses, lambda address: address not in down)
        services.append(Service(source=FakeSource(), group_node=NODE, peers=peers, broker_id=peers.own.broker_id))
    names = tuple(f"group {at}" for at in range(100))
    request = groups.FindCoordinatorRequest(coordinator_keys=names)

    def found() -> list[list[tuple[str, int]]]:
        return [[(each.host, each.node_id) for each in ask_here(service, request, 6)] for service in services]

    first = found()
    assert first[0] == first[1] == first[2]
    assert set(first[0]) == {(f"replica-{at}", at) for at in range(3)}
    down.add(addresses[2])
    for service in services[:2]:
        assert service.peers is not None
        service.peers.check(failures_max=1)
    second = found()[0]
    assert set(second) == {("replica-0", 0), ("replica-1", 1)}
    assert all(after == before for before, after in zip(first[0], second, strict=True) if before[1] != 2)


def test_each_group_is_in_the_list_of_one_replica() -> None:
    addresses = [Endpoint(host=f"replica-{at}", port=9092) for at in range(3)]
    names = [f"group {at}" for at in range(50)]
    everything = groups.ListGroupsResponse(groups=tuple(groups.ListedGroup(group_id=each) for each in names))
    listed: list[str] = []
    with fake_node(lambda header, request: everything) as node:
        for own in addresses:
            with forwarding_to(node.endpoint) as server, Client(server) as client:
                server._service.peers = Peers(own, addresses, lambda address: True)
                found: Any = client.ask(Api.LIST_GROUPS, 5, groups.ListGroupsRequest())
                listed += [each.group_id for each in found.groups]
    assert sorted(listed) == sorted(names)


def test_a_transaction_has_no_coordinator() -> None:
    service = Service(source=FakeSource(), group_node=NODE)
    request = groups.FindCoordinatorRequest(key="t", key_type=1, coordinator_keys=("t",))
    for version in (3, 6):
        assert {each.error_code for each in ask_here(service, request, version)} == {Error.INVALID_REQUEST}
    assert Api.TXN_OFFSET_COMMIT not in service.apis


UNKNOWN = IDS["slow"]  # the replica serves `orders` alone


def test_offsets_of_topic_ids_that_the_replica_does_not_serve_are_refused() -> None:
    """No rule of the replica has permitted such a topic, which the node may have."""
    orders, hidden = IDS["orders"], UNKNOWN
    partition = group_offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    commit = group_offsets.OffsetCommitRequest(
        group_id="g",
        topics=tuple(
            group_offsets.OffsetCommitRequestTopic(topic_id=each, partitions=(partition,)) for each in (orders, hidden)
        ),
    )
    fetch = group_offsets.OffsetFetchRequest(
        groups=(
            group_offsets.OffsetFetchRequestGroup(
                group_id="g",
                topics=tuple(
                    group_offsets.OffsetFetchRequestTopics(topic_id=each, partition_indexes=(0,))
                    for each in (orders, hidden)
                ),
            ),
            group_offsets.OffsetFetchRequestGroup(group_id="all", topics=None),
        )
    )

    def respond(header: Any, request: Any) -> object:
        seen.append(request)
        if header.api_key == Api.OFFSET_COMMIT:
            done = group_offsets.OffsetCommitResponsePartition(partition_index=0)
            return group_offsets.OffsetCommitResponse(
                topics=tuple(
                    group_offsets.OffsetCommitResponseTopic(topic_id=each.topic_id, partitions=(done,))
                    for each in request.topics
                )
            )
        at = group_offsets.OffsetFetchResponsePartition(partition_index=0, committed_offset=7)
        return group_offsets.OffsetFetchResponse(
            groups=tuple(
                group_offsets.OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    topics=tuple(
                        group_offsets.OffsetFetchResponseTopic(topic_id=each, partitions=(at,))
                        for each in ([orders, hidden] if group.topics is None else [t.topic_id for t in group.topics])
                    ),
                )
                for group in request.groups
            )
        )

    seen: list[Any] = []
    with fake_node(respond) as node, forwarded(node) as client:
        done: Any = client.ask(Api.OFFSET_COMMIT, 10, commit)
        assert {each.topic_id: each.partitions[0].error_code for each in done.topics} == {
            orders: Error.NONE,
            hidden: Error.UNKNOWN_TOPIC_ID,
        }
        found: Any = client.ask(Api.OFFSET_FETCH, 10, fetch)
        asked = [
            {
                each.topic_id: (each.partitions[0].committed_offset, each.partitions[0].error_code)
                for each in group.topics
            }
            for group in found.groups
        ]
        assert asked == [{orders: (7, Error.NONE), hidden: (-1, Error.UNKNOWN_TOPIC_ID)}, {orders: (7, Error.NONE)}]
        assert [each.topic_id for each in seen[0].topics] == [orders]
        only_hidden = replace(commit, topics=commit.topics[1:])
        client.ask(Api.OFFSET_COMMIT, 10, only_hidden)
        assert len(seen) == 2, "nothing is left to forward"


ACL = """
super.users = []
[[acl]]
principal = "User:ANONYMOUS"
operations = ["Read", "Describe"]
group = "mine"
[[acl]]
principal = "User:ANONYMOUS"
operations = ["Read", "Describe"]
topic = "orders"
"""


@pytest.fixture
def security(tmp_path: Path) -> Iterator[Security]:
    path = tmp_path / "security.toml"
    path.write_text(ACL)
    with closing(Security(str(path), time.monotonic, time.time)) as found:
        yield found


def test_the_rules_of_the_replica_decide_before_and_after_the_node(security: Security) -> None:
    seen: list[Any] = []
    listed = groups.ListGroupsResponse(groups=tuple(groups.ListedGroup(group_id=each) for each in ("mine", "other")))
    described = groups.DescribeGroupsResponse(
        groups=(groups.DescribedGroup(group_id="mine", authorized_operations=328),)
    )

    def respond(header: Any, request: Any) -> object:
        seen.append((header.api_key, request))
        return {Api.LIST_GROUPS: listed, Api.DESCRIBE_GROUPS: described}.get(header.api_key, RESPONSES[header.api_key])

    with fake_node(respond) as node, forwarded(node, security=security) as client:
        for api in (Api.HEARTBEAT, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.LEAVE_GROUP, Api.OFFSET_DELETE):
            response: Any = client.ask(api, SERVED[api].max_version, REQUESTS[api])  # of the group "g"
            assert response.error_code is Error.GROUP_AUTHORIZATION_FAILED
        assert not seen
        mine: Any = client.ask(Api.HEARTBEAT, 4, replace(REQUESTS[Api.HEARTBEAT], group_id="mine"))  # type: ignore[type-var]
        assert mine == RESPONSES[Api.HEARTBEAT]
        found: Any = client.ask(Api.LIST_GROUPS, 5, groups.ListGroupsRequest())
        assert [each.group_id for each in found.groups] == ["mine"]
        found = client.ask(Api.DESCRIBE_GROUPS, 5, groups.DescribeGroupsRequest(groups=("mine", "other")))
        assert [(each.group_id, each.error_code, each.authorized_operations) for each in found.groups] == [
            ("mine", Error.NONE, 1 << 3 | 1 << 8),  # without DELETE
            ("other", Error.GROUP_AUTHORIZATION_FAILED, -(2**31)),
        ]
        assert seen[-1] == (Api.DESCRIBE_GROUPS, groups.DescribeGroupsRequest(groups=("mine",)))


JOINING = consumer_groups.ConsumerGroupHeartbeatRequest(group_id="mine", member_id="m", member_epoch=0)


def test_an_expression_must_not_match_a_topic_that_the_client_may_not_describe(security: Security) -> None:
    response = RESPONSES[Api.CONSUMER_GROUP_HEARTBEAT]
    source = FakeSource(orders=1, slow=1)
    with (
        fake_node(lambda header, request: response) as node,
        forwarded(node, security=security, source=source) as client,
    ):
        for regex, expected in (
            (".*", Error.TOPIC_AUTHORIZATION_FAILED),
            ("o.*", None),
            ("(", Error.INVALID_REGULAR_EXPRESSION),
            ("", None),
        ):
            found: Any = client.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, replace(JOINING, subscribed_topic_regex=regex))
            assert (found.error_code if expected else found) == (expected or response), regex


@pytest.mark.parametrize("cause", ["without topics", "without RE2"])
def test_an_expression_that_the_replica_cannot_check_is_not_forwarded(
    cause: str, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource(orders=1, slow=1)
    if cause == "without topics":
        source.topics_error = AccessDenied("the bucket refuses")
        expected = Error.COORDINATOR_NOT_AVAILABLE
    else:
        monkeypatch.setitem(sys.modules, "re2", None)
        expected = Error.INVALID_REGULAR_EXPRESSION
    with fake_node() as node, forwarded(node, security=security, source=source) as client:
        found: Any = client.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, replace(JOINING, subscribed_topic_regex="o.*"))
        assert found.error_code is expected
        assert node.frames.empty()


@pytest.mark.parametrize("has_listed", [False, True])
def test_ids_of_topics_are_checked_by_the_last_list_while_the_bucket_refuses(
    security: Security, *, has_listed: bool
) -> None:
    """The connection stays: its other requests need no list."""
    orders, slow = IDS["orders"], IDS["slow"]
    topics = tuple(
        group_offsets.OffsetFetchRequestTopics(topic_id=each, partition_indexes=(0,)) for each in IDS.values()
    )
    fetch = group_offsets.OffsetFetchRequest(
        groups=(group_offsets.OffsetFetchRequestGroup(group_id="mine", topics=topics),)
    )

    def respond(header: Any, request: Any) -> object:
        at = group_offsets.OffsetFetchResponsePartition(partition_index=0, committed_offset=7)
        topics = tuple(
            group_offsets.OffsetFetchResponseTopic(topic_id=each.topic_id, partitions=(at,))
            for each in request.groups[0].topics
        )
        group = group_offsets.OffsetFetchResponseGroup(group_id="mine", topics=topics)
        return group_offsets.OffsetFetchResponse(groups=(group,))

    source = FakeSource(orders=1, slow=1)
    with fake_node(respond) as node, forwarded(node, security=security, source=source) as client:
        if has_listed:
            client.ask(Api.OFFSET_FETCH, 10, fetch)
        source.topics_error = AccessDenied("the bucket refuses")
        found: Any = client.ask(Api.OFFSET_FETCH, 10, fetch)
        assert {each.topic_id: each.partitions[0].error_code for each in found.groups[0].topics} == {
            orders: Error.NONE if has_listed else Error.UNKNOWN_TOPIC_ID,
            slow: Error.TOPIC_AUTHORIZATION_FAILED if has_listed else Error.UNKNOWN_TOPIC_ID,
        }
        committing = group_offsets.OffsetCommitRequest(
            group_id="mine",
            topics=(
                group_offsets.OffsetCommitRequestTopic(
                    topic_id=slow,
                    partitions=(group_offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1),),
                ),
            ),
        )
        done: Any = client.ask(Api.OFFSET_COMMIT, 10, committing)
        expected = Error.TOPIC_AUTHORIZATION_FAILED if has_listed else Error.UNKNOWN_TOPIC_ID
        assert done.topics[0].partitions[0].error_code is expected


@pytest.mark.parametrize(("own_ms", "node_ms", "expected_ms"), [(0, 700, 700), (300, 700, 700), (700, 300, 700)])
def test_a_client_pauses_for_the_longer_throttle_of_replica_and_node(
    own_ms: int, node_ms: int, expected_ms: int, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "charge", lambda *args: own_ms / 1000)
    response = groups.HeartbeatResponse(throttle_time_ms=node_ms)
    with fake_node(lambda header, request: response) as node, forwarded(node, security=security) as client:
        found: Any = client.ask(Api.HEARTBEAT, 4, replace(REQUESTS[Api.HEARTBEAT], group_id="mine"))  # type: ignore[type-var]
        assert found.throttle_time_ms == expected_ms
