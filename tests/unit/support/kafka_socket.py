"""A Kafka endpoint over a fake source, and requests to it by bare sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from fake_source import FakeSource

from tiered.serve.connection import Limits
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Api
from tiered.serve.server import KafkaServer

VERSIONS = struct.pack(">hhih", Api.API_VERSIONS, 0, 7, -1)
METADATA = struct.pack(">hhihi", Api.METADATA, 1, 8, -1, -1)


@contextmanager
def served(source: FakeSource | None = None, **limits: object) -> Iterator[KafkaServer]:
    server = KafkaServer("127.0.0.1", 0, Service(source=source or FakeSource(orders=50)), limits=Limits(**limits))  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.close()


def connect(server: KafkaServer) -> socket.socket:
    client = socket.create_connection(server.address, timeout=30)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def send(client: socket.socket, *requests: bytes) -> None:
    client.sendall(b"".join(struct.pack(">i", len(each)) + each for each in requests))


def receive(client: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _exactly(client, 4))
    return _exactly(client, length)


def _exactly(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = client.recv(length - len(data))
        assert piece, "the server closed the connection"
        data += piece
    return data


def is_closed(client: socket.socket) -> bool:
    """Whether the server closed the connection; waits for that."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def correlation(response: bytes) -> int:
    return int.from_bytes(response[:4], "big")


def fetch(topic: str, offset: int, *, max_wait_ms: int = 0, limit: int = 1 << 20, correlation_id: int = 9) -> bytes:
    name = topic.encode()
    head = struct.pack(">hhih", Api.FETCH, 4, correlation_id, -1)
    body = struct.pack(">iiiibi", -1, max_wait_ms, 1, limit, 0, 1)
    return head + body + struct.pack(">h", len(name)) + name + struct.pack(">iiqi", 1, 0, offset, limit)
