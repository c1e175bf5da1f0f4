"""Produce requests of one connection: appended and answered in order, durable together, within a bound of memory."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_sink import FakeSink
from fake_source import ORDERS, SLOW, FakeSource
from kafka_socket import METADATA, VERSIONS, connect, is_closed, receive, send

from local.format.record import Record
from local.records.batch import encode_batch
from tiered.serve.connection import IN_FLIGHT_MAX, Limits
from tiered.serve.handlers import service as services
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Api, Error
from tiered.serve.server import KafkaServer

pytestmark = pytest.mark.server
LIMIT_S = 60


@contextmanager
def served(sink: FakeSink, **limits: object) -> Iterator[KafkaServer]:
    service = Service(source=FakeSource(orders=0, slow=0), sink=sink)
    server = KafkaServer("127.0.0.1", 0, service, limits=Limits(**limits))  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        for gate in (*sink.gates.values(), *sink.append_gates.values()):
            gate.set()
        server.close()


def produce(topic: str, correlation_id: int, *, acks: int = -1, value: bytes = b"v") -> bytes:
    """A Produce of version 3 with one record."""
    batch = encode_batch([Record(b"k", value, 1)])
    head = struct.pack(">hhihh", Api.PRODUCE, 3, correlation_id, -1, -1)
    body = struct.pack(">hii", acks, 60_000, 1) + struct.pack(">h", len(topic)) + topic.encode()
    return head + body + struct.pack(">iii", 1, 0, len(batch)) + batch


def answer(client: socket.socket) -> tuple[int, Error, int]:
    """(correlation id, error, base offset) of a response to `produce`."""
    response = receive(client)
    (correlation_id, _, length) = struct.unpack_from(">iih", response)
    error, base_offset = struct.unpack_from(">hq", response, 10 + length + 8)
    return correlation_id, Error(error), base_offset


def wait_for_appends(sink: FakeSink, count: int) -> None:
    with sink.changed:
        assert sink.changed.wait_for(lambda: len(sink.appends) >= count, LIMIT_S), sink.appends


def test_requests_of_a_connection_are_appended_while_earlier_ones_wait_for_the_disk() -> None:
    sink = FakeSink()
    sink.gates[ORDERS] = threading.Event()
    with served(sink) as server, connect(server) as client:
        send(client, *(produce("orders", at) for at in range(5)), METADATA)
        wait_for_appends(sink, 5)
        sink.gates[ORDERS].set()
        assert [answer(client) for _ in range(5)] == [(at, Error.NONE, at) for at in range(5)]
        assert struct.unpack_from(">i", receive(client)) == (8,)
        assert len(sink.flushes) <= 3


def test_responses_keep_their_order_although_a_later_one_is_ready() -> None:
    sink = FakeSink()
    sink.gates[SLOW] = threading.Event()
    with served(sink) as server, connect(server) as client, connect(server) as other:
        send(client, produce("slow", 1), produce("orders", 2), VERSIONS)
        wait_for_appends(sink, 2)
        send(other, produce("orders", 3))
        assert answer(other) == (3, Error.NONE, 1), "another connection does not wait"
        sink.gates[SLOW].set()
        assert [answer(client)[0], answer(client)[0]] == [1, 2]
        assert struct.unpack_from(">i", receive(client)) == (7,)


def test_a_connection_has_a_bounded_number_of_requests_in_flight() -> None:
    sink = FakeSink()
    sink.gates[ORDERS] = threading.Event()
    with served(sink) as server, connect(server) as client, connect(server) as other:
        send(client, *(produce("orders", at) for at in range(IN_FLIGHT_MAX + 5)))
        wait_for_appends(sink, IN_FLIGHT_MAX)
        send(other, produce("slow", 99))
        assert answer(other)[:2] == (99, Error.NONE)
        assert len([each for each in sink.appends if each[0] == ORDERS]) == IN_FLIGHT_MAX
        sink.gates[ORDERS].set()
        assert [answer(client)[0] for _ in range(IN_FLIGHT_MAX + 5)] == list(range(IN_FLIGHT_MAX + 5))


def test_an_error_without_acknowledgement_closes_the_connection_after_the_earlier_responses() -> None:
    sink = FakeSink()
    sink.gates[ORDERS] = threading.Event()
    with served(sink) as server, connect(server) as client:
        send(client, produce("orders", 1, acks=0), produce("orders", 2), produce("nope", 3, acks=0), VERSIONS)
        wait_for_appends(sink, 2)
        sink.gates[ORDERS].set()
        assert answer(client) == (2, Error.NONE, 1)
        assert is_closed(client)


@pytest.mark.parametrize("size_bytes", [300_000, 3 << 20, 20 << 20])
def test_requests_of_any_size_are_read_and_their_memory_is_given_back(size_bytes: int) -> None:
    sink = FakeSink()
    with served(sink) as server, connect(server) as client:
        for at in range(3):
            send(client, produce("orders", at, value=bytes(size_bytes)))
            assert answer(client) == (at, Error.NONE, at)
        send(client, VERSIONS)
        receive(client)
        assert server._service.load.request_bytes == 0


def test_a_frame_above_the_limit_closes_the_connection_before_it_is_read() -> None:
    with served(FakeSink()) as server, connect(server) as client:
        client.sendall(struct.pack(">i", (100 << 20) + 1))
        assert is_closed(client)


def test_large_requests_wait_for_memory_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "LARGE_BYTES_MAX", 4 << 20)
    sink = FakeSink()
    with served(sink) as server, connect(server) as holder, connect(server) as waiting, connect(server) as other:
        holder.sendall(struct.pack(">i", 3 << 20))
        while server._service.load.request_bytes == 0:
            send(other, produce("orders", 1))
            assert answer(other)[:2] == (1, Error.NONE)
        large = threading.Thread(target=send, args=(waiting, produce("slow", 2, value=bytes(3 << 20))), daemon=True)
        large.start()
        for at in range(20):
            send(other, produce("orders", at, value=bytes(200_000)))
            assert answer(other)[:2] == (at, Error.NONE)
        assert not [each for each in sink.appends if each[0] == SLOW], "the memory belongs to another request"
        holder.close()
        assert answer(waiting)[:2] == (2, Error.NONE)
        large.join(LIMIT_S)
