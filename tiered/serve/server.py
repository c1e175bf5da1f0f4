"""The listeners of the Kafka endpoint: an event loop in its own thread, from `start` to `close`.

A node also listens on its Unix socket (`tiered.serve.commands.unix_socket`), for processes of its own user and of root.
There the same handlers answer, and the operations of `tiered.serve.commands.operation_jobs` besides.

`close` accepts no new connection, cancels the requests at work and closes all connections. It always returns: a read
that hangs stays in a daemon thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from local.errors import InvalidRequest
from tiered.serve.commands.operation_jobs import Jobs
from tiered.serve.commands.unix_socket import is_admitted, peer_user
from tiered.serve.connection import Connection, Limits
from tiered.serve.handlers.service import Endpoint, Service

BACKLOG = 128
END_S = 5.0  # limit for the end of the thread
_log = logging.getLogger(__name__)


Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class KafkaServer:
    """Serves clients on one address, which is known from construction on, and on the Unix socket of a node."""

    def __init__(
        self,
        host: str | None,
        port: int,
        service: Service,
        *,
        advertised: Endpoint | None = None,
        limits: Limits | None = None,
        is_shared: bool = False,
        local: tuple[socket.socket, Jobs] | None = None,
    ) -> None:
        """Port 0: any free port; host None: `local` alone. `is_shared`: other processes listen at the same address.

        `local` is a listening Unix socket and what runs its operations. Raises InvalidRequest for an unusable address.
        The caller closes the source and the Unix socket.
        """
        self._limits = limits or Limits()
        self._advertised = advertised
        self._service = service
        self._local = local
        self._listener = bound(host, port, is_shared=is_shared) if host is not None else None
        self.address: tuple[str, int] = ("localhost", 0)
        if self._listener is not None:
            self._listener.listen(BACKLOG)
            self.address = self._listener.getsockname()[:2]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._tasks: dict[asyncio.Task[None], asyncio.WriteTransport] = {}  # of the open connections
        self._open = Counter[bool]()  # connections by whether they are of the Unix socket
        service.metrics.connection_count = lambda: len(self._tasks)
        service.metrics.unsent_bytes = lambda: service.load.unsent_bytes
        self._thread = threading.Thread(target=self._run, name="tiered-kafka", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._is_ready.wait()

    def close(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(END_S)
        if self._listener is not None:
            self._listener.close()
        self._service.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - the process ends by its own signal
            _log.exception("the Kafka endpoint ended")
            self._service.metrics.ended("the Kafka endpoint", error)
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(each) for each in await self._servers()]
            background = [asyncio.create_task(each) for each in self._service.background()]
            for each in background:
                each.add_done_callback(self._note_failure)
            self._is_ready.set()
            await self._stop.wait()
            for server in servers:
                server.close()
            for each in background:
                each.cancel()
            for task, transport in self._tasks.items():
                task.cancel()
                transport.abort()  # a task that has not begun would leave its client waiting
            await asyncio.gather(*self._tasks, *background, return_exceptions=True)

    async def _servers(self) -> list[asyncio.Server]:
        servers = []
        if self._listener is not None:
            accept: Accept = partial(self._accept, self._service, self._advertised)
            servers.append(await asyncio.start_server(accept, sock=self._listener, backlog=BACKLOG))
        if self._local is not None:
            listener, jobs = self._local
            own = self._advertised or Endpoint(host=self.address[0], port=self.address[1])
            accept = partial(self._accept_local, replace(self._service, operations=jobs), own)
            # A copy of the descriptor: connections after the end of this server wait for the end of the node.
            servers.append(await asyncio.start_unix_server(accept, sock=listener.dup(), backlog=BACKLOG))
        return servers

    def _accept_local(
        self, service: Service, own: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        user = peer_user(writer.get_extra_info("socket"))
        if is_admitted(user):
            self._accept(service, own, reader, writer)
        else:
            _log.warning("connection refused, the Unix socket is for the user of the node and root: user=%d", user)
            writer.transport.abort()

    def _accept(
        self,
        service: Service,
        advertised: Endpoint | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        connection = Connection(reader, writer, service, self._limits, advertised)
        is_local = connection.is_local
        most = self._limits.local_connections_max if is_local else self._limits.connections_max
        if self._open[is_local] >= most:
            refused = self._service.metrics.refused("limit")
            if str(refused).strip("0") == "1":  # the 1st, 10th, 100th and so on
                facts = (connection.client, most, refused)
                _log.warning("connection refused, too many are open: client=%s limit=%d times=%d", *facts)
            writer.transport.abort()
            return
        security = service.security if not is_local else None
        limit = security.admission.enter(connection.address) if security is not None else None
        if security is not None and limit is not None:
            text = "connection refused: address=%s limit=%s"
            security.tally.warn(_log, ("refused", connection.address), text, connection.address, limit)
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(connection.serve())
        self._tasks[task] = writer.transport
        self._open[is_local] += 1
        task.add_done_callback(partial(self._closed, is_local))
        if security is not None:
            task.add_done_callback(lambda _: security.admission.leave(connection.address))

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work of the Kafka endpoint ended: error=%r", error, exc_info=error)
            self._service.metrics.ended("background work of the Kafka endpoint", error)

    def _closed(self, is_local: bool, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._open[is_local] -= 1


def bound(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket of the address that does not listen yet. Raises InvalidRequest."""
    # The protocol number matters: without it asyncio leaves Nagle's algorithm on.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest("cannot listen for Kafka clients", host=host, port=port, cause=why.lower()) from None
    return listener
