"""A node that coordinates groups, on loopback, whose answers the test writes; and a replica that forwards to it."""

from __future__ import annotations

import queue
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from fake_source import FakeSource

from tiered.serve.groups.group_node import GroupNode
from tiered.serve.handlers.service import Endpoint, Service
from tiered.serve.messages.base import Api, Piece
from tiered.serve.messages.cluster import ApiVersionsResponse
from tiered.serve.protocol import SERVED, Header, Received, encode, encode_request, parse, read_response, supported
from tiered.serve.security.client_settings import ClientSettings
from tiered.serve.security.security import Security
from tiered.serve.server import KafkaServer

LIMIT_S = 60.0
CLIENT_ID = "a client"
# The response to a request, or bytes to send in its place; None: no answer.
Answer = Callable[[Header, object], object]


class FakeNode:
    """`frames` has each request that a test asks about; `ended` gets an item at each end of a connection."""

    def __init__(self, answer: Answer = lambda header, request: None, *, lacks: dict[int, int] | None = None) -> None:
        """`lacks`: the newest version that the node serves of some APIs; -1 for none."""
        self.answer, self.lacks = answer, lacks or {}
        self.frames: queue.Queue[bytes] = queue.Queue()
        self.ended: queue.Queue[None] = queue.Queue()
        self.opened = 0
        self.context: ssl.SSLContext | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.endpoint = Endpoint(host="127.0.0.1", port=self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_S)
        self.end_connections()

    def end_connections(self) -> None:
        """Close all of them, and wait until each has ended."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            self.ended.get(timeout=LIMIT_S)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.opened += 1
                self._open.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        client = plain
        try:
            if self.context is not None:
                client = self.context.wrap_socket(plain, server_side=True)
            with client, client.makefile("rb") as reader:
                while len(head := reader.read(4)) == 4:
                    frame = reader.read(struct.unpack(">i", head)[0])
                    if (found := self._answered(frame)) is None:
                        continue
                    client.sendall(found)
                    if found == b"":  # the end of the connection in place of an answer
                        return
        except (OSError, ValueError):
            pass
        finally:
            plain.close()
            self._open.discard(plain)
            self.ended.put(None)

    def _answered(self, frame: bytes) -> bytes | None:
        received = parse(frame)
        assert isinstance(received, Received)
        header = received.header
        if header.api_key == Api.API_VERSIONS:
            response: object = self._versions()
        else:
            self.frames.put(frame)
            response = self.answer(header, received.request)
        return response if response is None or isinstance(response, bytes) else _joined(encode(header, response))

    def _versions(self) -> ApiVersionsResponse:
        found = supported(SERVED)
        keys = [replace(each, max_version=self.lacks.get(each.api_key, each.max_version)) for each in found.api_keys]
        return replace(found, api_keys=tuple(each for each in keys if each.max_version >= each.min_version))


@contextmanager
def fake_node(answer: Answer = lambda header, request: None, **lacks: object) -> Iterator[FakeNode]:
    found = FakeNode(answer, **lacks)  # type: ignore[arg-type]
    try:
        yield found
    finally:
        found.close()


@contextmanager
def forwarding_to(
    endpoint: Endpoint,
    settings: ClientSettings | None = None,
    *,
    security: Security | None = None,
    source: FakeSource | None = None,
) -> Iterator[KafkaServer]:
    """A replica of a bucket with the topic `orders`, whose groups the node coordinates."""
    node = GroupNode(endpoint=endpoint, settings=settings or ClientSettings())
    service = Service(source=source or FakeSource(orders=5), group_node=node, security=security)
    server = KafkaServer("127.0.0.1", 0, service)
    server.start()
    try:
        yield server
    finally:
        server.close()


class Client:
    """A client of the replica, which sends one request after the other."""

    def __init__(self, server: KafkaServer) -> None:
        self.socket = socket.create_connection(server.address, timeout=LIMIT_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, api: int, version: int, request: object) -> bytes:
        """The frame that was sent, without its length."""
        header = Header(api_key=api, api_version=version, correlation_id=77, client_id=CLIENT_ID)
        data = _joined(encode_request(header, request))
        self.socket.sendall(data)
        return data[4:]

    def receive(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def ask(self, api: int, version: int, request: object) -> object:
        self.send(api, version, request)
        return read_response(Header(api_key=api, api_version=version, correlation_id=77), memoryview(self.receive()))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the replica closed the connection"
            data += piece
        return data


def _joined(pieces: list[Piece]) -> bytes:
    return b"".join(bytes(each) for each in pieces)  # type: ignore[arg-type]  # no file ranges
