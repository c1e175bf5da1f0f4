"""Run uvicorn in its own thread with its own event loop, from `start` to `close`.

It installs no signal handlers (only the main thread could), trusts no proxy headers and logs no requests. Its errors
use the application's logging. `tiered.web.http.connections` limits connections; the application makes the responses.

`close` works in this order:

1. Accept no new connection.
2. Wait up to DRAIN_S for responses in progress.
3. Close all other connections.

It always returns: a loop that does not end stays in its daemon thread, which keeps no process alive.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import Server

from local.errors import InvalidRequest
from tiered.web.http.application import MANIFEST_BYTES_MAX
from tiered.web.http.connections import HEAD_S, IDLE_S, BoundConnection, Listener, Places

DRAIN_S = 2
END_S = DRAIN_S + 3.0  # limit for the end of the thread
BACKLOG = 128

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files: the certificate with its chain, and its key (None: in the same file)."""

    certificate: str
    key: str | None = None


class ServerInThread:
    """Serves an application between `start` and `close`. Its address is known from construction on."""

    def __init__(
        self, host: str, port: int, application: ASGIApp, *, name: str, option: str, tls: Tls | None = None
    ) -> None:
        """Port 0 takes any free port. `option` names the source of the address for the error message.

        Raises InvalidRequest for an address or a certificate that cannot be used.
        """

        class Connection(BoundConnection):
            places = Places()

        self._server = _Server(_config(application, Connection, tls))
        self._listener = _listening(host, port, option)
        at, taken = self._listener.getsockname()[:2]
        self.address: tuple[str, int] = at, taken  # listening address
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def root(self) -> str:
        """The URL of the server, with the final slash."""
        host, port = self.address
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join(END_S)
        self._listener.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.run(self._serve())
        except Exception:  # noqa: BLE001 - whatever it was, the process goes on
            _log.exception("the server of pages and metrics ended")

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._listener])
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop processes their end; handshakes are tasks, which the runner cancels


class _Server(Server):
    """A server that ticks once a second (for the Date header), not ten times: an idle daemon sleeps."""

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
    """Return uvicorn's configuration. Raises InvalidRequest for a certificate that cannot be used."""
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
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
        raise InvalidRequest(
            "cannot read the certificate and its key",
            certificate=tls.certificate,
            key=tls.key or tls.certificate,
            cause=str(why).replace("_", " ").lower(),
        ) from None
    return config


def _listening(host: str, port: int, option: str) -> Listener:
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        facts = {"host": host, "port": port, "option": option, "cause": why.lower()}
        raise InvalidRequest("cannot listen for requests", **facts) from None
    return listener
