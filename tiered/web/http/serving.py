"""Run uvicorn in its own thread with its own event loop, from `start` to `close`.

It installs no signal handlers, trusts no proxy headers and logs no requests. Its errors use the application's logging.

`close` works in this order, and always returns: a loop that does not end stays in its daemon thread.

1. Accept no new connection.
2. Wait up to DRAIN_S for responses in progress.
3. Close all other connections.

Each connection waits for one thing at a time, within a limit that uvicorn does not have. Bytes that trickle in extend
no limit.

| it waits for | limit |
|---|---|
| the whole head of a request, from its first byte or from the start of the connection | HEAD_S |
| the rest of the request, its response, and the client that reads it | EXCHANGE_S |
| another request | IDLE_S |

At most CONNECTIONS_MAX connections are open. One more closes the connection that has waited longest for its client. A
`Listener` counts sockets from `accept` on, before the TLS handshake, and closes new ones above SOCKETS_MAX.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from typing import Any, ClassVar

import h11
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

from local.errors import InvalidRequest
from tiered.serve.security.tls import Tls, unusable_tls

DRAIN_S = 2
END_S = DRAIN_S + 3.0  # limit for the end of the thread
BACKLOG = 2048  # uvicorn's
# Accepted in one step of the loop. The connections in whose place they come are closed three steps later.
ACCEPTS_MAX = 32
HEAD_S = 10.0
EXCHANGE_S = 30.0
IDLE_S = 15.0
CONNECTIONS_MAX = 256
SOCKETS_MAX = CONNECTIONS_MAX + 4 * ACCEPTS_MAX
MANIFEST_BYTES_MAX = 16 * 1024  # of a request's target and headers

_log = logging.getLogger(__name__)


class Places:
    """The connections of one server; connections that wait for their client are in order of waiting."""

    def __init__(self) -> None:
        self._busy: set[BoundConnection] = set()
        self._waiting: dict[BoundConnection, None] = {}

    def __len__(self) -> int:
        return len(self._busy) + len(self._waiting)

    def enter(self, connection: BoundConnection) -> None:
        """Add a waiting connection. Above the limit close the longest-waiting one, or this one if none waits."""
        self.wait(connection)
        if len(self) > CONNECTIONS_MAX:
            longest = next(iter(self._waiting))
            self.leave(longest)
            longest.release()

    def wait(self, connection: BoundConnection) -> None:
        self.leave(connection)
        self._waiting[connection] = None

    def work(self, connection: BoundConnection) -> None:
        self._waiting.pop(connection, None)
        self._busy.add(connection)

    def leave(self, connection: BoundConnection) -> None:
        self._busy.discard(connection)
        self._waiting.pop(connection, None)


class BoundConnection(H11Protocol):
    """A connection with limits of time. Each server has a subclass with its own `places`."""

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
        self._is_answering()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # starts the next request if it has already arrived
        if not self._is_answering() and not self.transport.is_closing():
            self._is_idle = True
            self._answered = None
            self._within(self.idle_s)
            self.places.wait(self)

    def release(self) -> None:
        self.transport.abort()

    def _is_answering(self) -> bool:
        """Whether a request is open; starts its limit. With the whole body the connection counts as busy."""
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
    count_max = SOCKETS_MAX

    def __init__(self, family: socket.AddressFamily) -> None:
        # Without the protocol number asyncio leaves Nagle's algorithm on: each response waits 40 ms for an ACK.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._held: list[socket.socket] = []

    def listen(self, backlog: int = BACKLOG) -> None:
        """Listen with BACKLOG: asyncio's own `backlog` is also the number of accepts in one step."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a client. Raises ConnectionAbortedError above the limit, as the kernel does for a lost client."""
        client, address = super().accept()
        self._held = self.open_clients()
        if len(self._held) >= self.count_max:
            client.close()
            raise ConnectionAbortedError("too many connections")
        self._held.append(client)
        return client, address

    def open_clients(self) -> list[socket.socket]:
        return [each for each in self._held if each.fileno() != -1]


class ServerInThread:
    """Serves an application between `start` and `close`. Its address is known from construction on."""

    def __init__(
        self, host: str, port: int, application: ASGIApp, *, name: str, option: str, tls: Tls | None = None
    ) -> None:
        """Port 0: any free port. Raises InvalidRequest for an unusable certificate, or address (of `option`)."""

        class Connection(BoundConnection):
            places = Places()

        self._server = _Server(_config(application, Connection, tls))
        self._listener = _listening(host, port, option)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def root(self) -> str:
        host, port = self.address
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join(END_S)
        self._listener.close()
        if not self._thread.is_alive():
            for client in self._listener.open_clients():
                client.close()  # accepted just before the loop ended, so no connection of the loop has it

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.run(self._serve())
        except Exception:  # noqa: BLE001 - the process continues without this server
            _log.exception("the server of pages and metrics ended")

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._listener])
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop processes the aborts; handshakes are tasks, which the runner cancels


class _Server(Server):
    """A server that ticks once a second, not ten times, so that an idle daemon sleeps."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._woken: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        event = asyncio.Event()
        self._woken = asyncio.get_running_loop(), event
        while not await self.on_tick(0):
            try:
                async with asyncio.timeout(1.0):
                    await event.wait()
            except TimeoutError:
                continue

    def end(self) -> None:
        """Stop the server. Thread safe."""
        self.should_exit = True
        if self._woken is not None:
            loop, event = self._woken
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                return  # already ended


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with a limit on TLS handshakes, for which uvicorn has no setting."""

    async def create_server(self, *given: Any, **options: Any) -> asyncio.Server:  # noqa: ANN401 - as asyncio's
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEAD_S
        return await super().create_server(*given, **options)


def _config(application: ASGIApp, connection: type[BoundConnection], tls: Tls | None) -> Config:
    config = Config(
        application,
        http=connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=logging.ERROR,  # warnings only report invalid bytes from clients
        access_log=False,
        proxy_headers=False,
        server_header=False,
        workers=1,
        backlog=ACCEPTS_MAX,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=DRAIN_S,
        h11_max_incomplete_event_size=MANIFEST_BYTES_MAX,
        ssl_certfile=tls.certificate if tls is not None else None,
        ssl_keyfile=tls.key if tls is not None else None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        assert tls is not None
        raise unusable_tls(tls, error) from None
    return config


def _listening(host: str, port: int, option: str) -> Listener:
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        facts = {"host": host, "port": port, "option": option, "cause": why.lower()}
        raise InvalidRequest("cannot listen for requests", **facts) from None
    return listener
