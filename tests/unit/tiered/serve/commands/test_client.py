"""The client of the Kafka protocol against a server of our own, and against servers that break the protocol."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from fake_source import FakeSource

from local.errors import InvalidRequest
from tiered.serve.commands.client import Client, NoResponse
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Api, Error, OwnApi
from tiered.serve.messages.cluster import MetadataRequest, MetadataRequestTopic
from tiered.serve.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tiered.serve.messages.operations import OperationRequest
from tiered.serve.protocol import Header, encode, supported
from tiered.serve.server import KafkaServer

LIMIT_S = 60.0


@pytest.fixture
def client() -> Iterator[Client]:
    service = Service(source=FakeSource(orders=3))
    with closing(KafkaServer("127.0.0.1", 0, service)) as server:
        server.start()
        with Client(socket.create_connection(server.address, LIMIT_S)) as client:
            yield client


def test_requests_are_answered_in_the_newest_version_of_both(client: Client) -> None:
    assert client.version(Api.METADATA) == 13
    found = client.call(Api.METADATA, MetadataRequest(topics=(MetadataRequestTopic(name="orders"),)))
    (topic,) = found.topics
    assert (topic.name, topic.error_code, len(topic.partitions)) == ("orders", Error.NONE, 1)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=(FetchTopic(topic_id=topic.topic_id, topic="orders", partitions=(wanted,)),),
    )
    (partition,) = client.call(Api.FETCH, request).responses[0].partitions
    assert (partition.error_code, partition.high_watermark) == (Error.NONE, 3)
    assert sum(len(each) for each in partition.records) > 0


def test_an_api_that_the_server_lacks_is_refused_before_it_is_sent(client: Client) -> None:
    assert not client.serves(OwnApi.START_OPERATION)
    with pytest.raises(InvalidRequest, match="does not answer this request"):
        client.call(OwnApi.START_OPERATION, OperationRequest(body=b"{}"))
    client.call(Api.METADATA, MetadataRequest())


@contextmanager
def server_that(answers: Callable[[socket.socket, int], None]) -> Iterator[socket.socket]:
    """A connection to a server that answers the versions, and then as `answers` (connection, correlation id)."""
    ours, theirs = socket.socketpair()

    def receive() -> int:
        (length,) = struct.unpack(">i", theirs.recv(4, socket.MSG_WAITALL))
        frame = theirs.recv(length, socket.MSG_WAITALL)
        return int(struct.unpack_from(">hhi", frame)[2])

    def serve() -> None:
        with theirs:
            header = Header(api_key=Api.API_VERSIONS, api_version=0, correlation_id=receive())
            service = Service(source=FakeSource())
            theirs.sendall(b"".join(bytes(each) for each in encode(header, supported(service.apis))))  # type: ignore[arg-type]
            answers(theirs, receive())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with ours:
        yield ours
    thread.join(LIMIT_S)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (lambda number: b"", NoResponse, "closed the connection"),
        (lambda number: b"\0\0", NoResponse, "closed the connection"),
        (lambda number: struct.pack(">i", 100) + b"abc", NoResponse, "closed the connection"),
        (lambda number: struct.pack(">i", -5), InvalidRequest, "length is not acceptable"),
        (lambda number: struct.pack(">i", 2**31 - 1), InvalidRequest, "length is not acceptable"),
        (lambda number: struct.pack(">ii", 4, number + 1), InvalidRequest, "another request"),
        (lambda number: struct.pack(">ii", 4, number), InvalidRequest, "ends inside a field"),
    ],
)
def test_a_response_that_is_none_is_an_error(
    answer: Callable[[int], bytes], kind: type[Exception], message: str
) -> None:
    with (
        server_that(lambda peer, number: peer.sendall(answer(number))) as connection,
        Client(connection) as client,
        pytest.raises(kind, match=message),
    ):
        client.call(Api.METADATA, MetadataRequest())


def test_a_server_that_does_not_answer_leaves_the_request_in_doubt() -> None:
    may_end = threading.Event()
    with server_that(lambda peer, number: may_end.wait(LIMIT_S) and None) as connection, Client(connection) as client:
        with pytest.raises(NoResponse, match="did not answer in time") as caught:
            client.call(Api.METADATA, MetadataRequest(), timeout_s=0.01)
        may_end.set()
    assert caught.value.is_in_doubt


def test_a_request_that_could_not_be_sent_is_not_in_doubt(client: Client) -> None:
    client.close()
    with pytest.raises(NoResponse) as caught:
        client.call(Api.METADATA, MetadataRequest())
    assert not caught.value.is_in_doubt
