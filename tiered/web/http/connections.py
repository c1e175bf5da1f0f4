"""Connections of clients that are slow, silent, or too many: what uvicorn has no limit for.

Each connection waits for one thing at a time, and no longer than that may take:

| it waits for | limit |
|---|---|
| the whole head of a request, from its first byte or from the connection's beginning | HEAD_S |
| the rest of the request, its answer, and the client that reads it | EXCHANGE_S |
| another request | IDLE_S |

Bytes that trickle in prolong nothing. CONNECTIONS_MAX are held open: when one more comes, the one that has waited the
longest for its client gives way, so that clients which only hold connections keep nobody out. A server listens with a
`Listener`, which counts from `accept` on: what has not even ended its TLS handshake is held, too, and is let go of at
SOCKETS_MAX. Runs in the loop's thread alone.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

HEAD_S = 10.0
EXCHANGE_S = 30.0
IDLE_S = 15.0
CONNECTIONS_MAX = 256
SOCKETS_MAX = CONNECTIONS_MAX + 128


class Places:
    """The connections of one server, those that wait for their client in the order of their waiting."""

    def __init__(self, count_max: int = CONNECTIONS_MAX) -> None:
        self._count_max = count_max
        self._busy: set[BoundConnection] = set()
        self._waiting: dict[BoundConnection, None] = {}

    def __len__(self) -> int:
        return len(self._busy) + len(self._waiting)

    def enter(self, connection: BoundConnection) -> None:
        """Waiting. Another gives way where there is no room, or this one where all others are being answered."""
        self.wait(connection)
        if len(self) > self._count_max:
            longest = next(iter(self._waiting))
            self.leave(longest)
            longest.let_go()

    def wait(self, connection: BoundConnection) -> None:
        """It waits for its client from now on."""
        self.leave(connection)
        self._waiting[connection] = None

    def work(self, connection: BoundConnection) -> None:
        """It is being answered."""
        self._waiting.pop(connection, None)
        self._busy.add(connection)

    def leave(self, connection: BoundConnection) -> None:
        self._busy.discard(connection)
        self._waiting.pop(connection, None)


class BoundConnection(H11Protocol):
    """A connection within the limits above. Each server has a class of its own with its `places`."""

    places: ClassVar[Places]
    head_s: ClassVar[float] = HEAD_S
    exchange_s: ClassVar[float] = EXCHANGE_S
    idle_s: ClassVar[float] = IDLE_S

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limit: asyncio.TimerHandle | None = None
        self._is_idle = False
        self._answered: RequestResponseCycle | None = None  # the request whose limit runs

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._within(self.head_s)
        self.places.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._within(self.head_s)
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # rubbish behind a request that is being answered: there is no room for a 400
            self.let_go()
            return
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # begins the next one, where it has come already
        if not self._look() and not self.transport.is_closing():
            self._is_idle = True
            self._answered = None
            self._within(self.idle_s)
            self.places.wait(self)

    def let_go(self) -> None:
        """End it now, whatever was still to be sent."""
        self.transport.abort()

    def _look(self) -> bool:
        """Whether a request is being answered. From when its whole body is there the client is not waited for."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type has none, its value does
        if cycle is None or cycle.response_complete:
            return False
        if self._answered is not cycle:
            self._answered = cycle
            self._within(self.exchange_s)
        if not cycle.more_body:
            self.places.work(self)
        return True

    def _within(self, limit_s: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(limit_s, self.let_go)


class Listener(socket.socket):
    """Holds no more than `count_max` sockets of clients open; who comes then is hung up on."""

    count_max = SOCKETS_MAX

    def __init__(self, family: socket.AddressFamily) -> None:
        # Without its protocol's number asyncio leaves Nagle's algorithm on, and each answer waits 40 ms for an ACK.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._held: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises ConnectionAbortedError for one too many, as the kernel does for a client that went away."""
        client, address = super().accept()
        self._held = self.open_clients()
        if len(self._held) >= self.count_max:
            client.close()
            raise ConnectionAbortedError("too many connections")
        self._held.append(client)
        return client, address

    def open_clients(self) -> list[socket.socket]:
        return [each for each in self._held if each.fileno() != -1]
