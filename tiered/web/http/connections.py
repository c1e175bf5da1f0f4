"""Limits on slow, silent and too many connections, which uvicorn does not have.

Each connection waits for one thing at a time, and each wait has a limit:

| it waits for | limit |
|---|---|
| the whole head of a request, from its first byte or from the start of the connection | HEAD_S |
| the rest of the request, its response, and the client that reads it | EXCHANGE_S |
| another request | IDLE_S |

Bytes that trickle in extend no limit. At most CONNECTIONS_MAX connections are open. One more closes the connection
that has waited longest for its client, so idle clients cannot block others. A server listens with a `Listener`, which
counts sockets from `accept` on, before the TLS handshake, and closes new ones above SOCKETS_MAX. Only for the loop's
thread.
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
    """The connections of one server; connections that wait for their client are in order of waiting."""

    def __init__(self, count_max: int = CONNECTIONS_MAX) -> None:
        self._count_max = count_max
        self._busy: set[BoundConnection] = set()
        self._waiting: dict[BoundConnection, None] = {}

    def __len__(self) -> int:
        return len(self._busy) + len(self._waiting)

    def enter(self, connection: BoundConnection) -> None:
        """Add a waiting connection.

        If there is no room, the longest-waiting connection is closed, or this one if all others are being answered.
        """
        self.wait(connection)
        if len(self) > self._count_max:
            longest = next(iter(self._waiting))
            self.leave(longest)
            longest.release()

    def wait(self, connection: BoundConnection) -> None:
        """Mark the connection as waiting for its client from now on."""
        self.leave(connection)
        self._waiting[connection] = None

    def work(self, connection: BoundConnection) -> None:
        """Mark the connection as being answered."""
        self._waiting.pop(connection, None)
        self._busy.add(connection)

    def leave(self, connection: BoundConnection) -> None:
        self._busy.discard(connection)
        self._waiting.pop(connection, None)


class BoundConnection(H11Protocol):
    """A connection within the limits of this module. Each server has a subclass with its own `places`."""

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
        self._answered: RequestResponseCycle | None = None  # the request whose limit is running

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
        except h11.LocalProtocolError:  # invalid bytes after a request that is being answered: a 400 cannot be sent
            self.release()
            return
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # starts the next request if it has already arrived
        if not self._look() and not self.transport.is_closing():
            self._is_idle = True
            self._answered = None
            self._within(self.idle_s)
            self.places.wait(self)

    def release(self) -> None:
        """Close the connection now and discard unsent data."""
        self.transport.abort()

    def _look(self) -> bool:
        """Update whether a request is being answered. Waiting for the client ends when the whole body has arrived."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type is not Optional, its value is
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
        self._limit = self.loop.call_later(limit_s, self.release)


class Listener(socket.socket):
    """A listening socket that holds at most `count_max` client sockets open and closes further ones."""

    count_max = SOCKETS_MAX

    def __init__(self, family: socket.AddressFamily) -> None:
        # Without the protocol number asyncio leaves Nagle's algorithm on, and each response waits 40 ms for an ACK.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._held: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises ConnectionAbortedError for a socket above the limit, as the kernel does for a disconnected client."""
        client, address = super().accept()
        self._held = self.open_clients()
        if len(self._held) >= self.count_max:
            client.close()
            raise ConnectionAbortedError("too many connections")
        self._held.append(client)
        return client, address

    def open_clients(self) -> list[socket.socket]:
        return [each for each in self._held if each.fileno() != -1]
