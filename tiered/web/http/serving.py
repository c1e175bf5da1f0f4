"""An HTTP server beside threads: uvicorn with a loop in a thread of its own, from `start` to `close`.

It installs no signal handlers (only the main thread could), trusts no proxy's headers and writes no line for a request;
what goes wrong in it is logged by our logging, as everything else. How many connections there may be, and for how long,
is `tiered.web.http.connections`; what is answered is the application's affair.

`close` takes no new connection, lets what is being answered end for DRAIN_S, and hangs up on all others. It returns in
any case: a loop that does not end is left to its thread, which keeps no process alive.
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
from tiered.web.http.application import HEAD_BYTES_MAX
from tiered.web.http.connections import HEAD_S, IDLE_S, BoundConnection, Listener, Places

DRAIN_S = 2
END_S = DRAIN_S + 3.0  # for the thread to end
BACKLOG = 128

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM: the certificate with those that it stands on, and its key (None: in the same file)."""

    certificate: str
    key: str | None = None


class ServerInThread:
    """Serves an application between `start` and `close`. It has its address from the beginning."""

    def __init__(
        self, host: str, port: int, application: ASGIApp, *, name: str, option: str, tls: Tls | None = None
    ) -> None:
        """Port 0 takes any free one. `option` is where the address came from, for the error's line.

        Raises InvalidRequest for an address that cannot be had and for a certificate that cannot be used.
        """

        class Connection(BoundConnection):
            places = Places()

        self._server = _Server(_config(application, Connection, tls))
        self._listener = _listening(host, port, option)
        at, taken = self._listener.getsockname()[:2]
        self.address: tuple[str, int] = at, taken  # where it listens
        self._scheme = "http" if tls is None else "https"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def root(self) -> str:
        """Its address for a browser, with the slash."""
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
        await asyncio.sleep(0)  # for the loop to see them end; handshakes are tasks, which the runner cancels


class _Server(Server):
    """Looks round once a second, for the Date header, not ten times: a daemon that is asked nothing sleeps."""

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
        """From any thread."""
        self.should_exit = True
        if self._woken is not None:
            loop, event = self._woken
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                return  # it has ended already


class _Loop(asyncio.SelectorEventLoop):
    """With a limit on handshakes, for which uvicorn has no setting."""

    async def create_server(self, *given: Any, **options: Any) -> asyncio.Server:  # noqa: ANN401 - as asyncio's
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEAD_S
        return await super().create_server(*given, **options)


def _config(application: ASGIApp, connection: type[BoundConnection], tls: Tls | None) -> Config:
    """Raises InvalidRequest for a certificate that cannot be used."""
    config = Config(
        application,
        http=connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=logging.ERROR,  # warnings are of clients that send rubbish
        access_log=False,
        proxy_headers=False,
        server_header=False,
        workers=1,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=DRAIN_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        ssl_certfile=tls.certificate if tls is not None else None,
        ssl_keyfile=tls.key if tls is not None else None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        assert tls is not None
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
        raise InvalidRequest(
            "reading a certificate and its key",
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
        raise InvalidRequest("listening for requests", **facts) from None
    return listener
