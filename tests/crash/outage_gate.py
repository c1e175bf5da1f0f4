"""A gate on loopback in front of a server: it passes connections on, or simulates an outage."""

from __future__ import annotations

import random
import re
import socket
import threading
from contextlib import suppress
from enum import Enum, auto

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)  # below the ports that the system assigns: no other process gets a shut one
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
ANSWER = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Way(Enum):
    """The behaviour that a client meets. `OPEN`: the server."""

    OPEN = auto()
    REFUSED = auto()  # no process listens, connections are cut
    HANGS = auto()  # connections are accepted, no request is answered
    BUSY = auto()  # each request is answered with 503, SlowDown


class Gate:
    """A gate in front of the server at `port`; a context manager.

    `met` counts connections while the server hangs, and requests while it is busy.
    """

    def __init__(self, port: int) -> None:
        self._server, self._way, self.met = port, Way.OPEN, 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = self._bound(None)
        self.port = int(self._listener.getsockname()[1])
        self._listen()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def turn(self, way: Way) -> None:
        """Change the behaviour. Open connections are cut, except when the server begins to hang."""
        self._way = way
        if way is not Way.HANGS:
            self._cut()
        if way is Way.REFUSED:
            self._shut()
            self._listener = self._bound(self.port)
        elif self._listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0:
            self._listen()

    def _bound(self, port: int | None) -> socket.socket:
        """Bind the port without listening on it."""
        for each in [port] if port is not None else random.sample(PORTS, 100):
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                listener.bind((HOST, each))
                return listener
            listener.close()
        raise OSError(f"no free port among {PORTS}")

    def _listen(self) -> None:
        self._listener.listen(128)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _shut(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._way is Way.OPEN:
                self._pass(client)
            elif self._way is Way.BUSY:
                self._refuse(client)
            else:
                self.met += 1
                while client.recv(1 << 16):  # until the client closes the connection
                    pass
        except OSError:
            pass  # the connection was cut
        finally:
            self._close(client)

    def _pass(self, client: socket.socket) -> None:
        with socket.create_connection((HOST, self._server)) as server:
            with self._lock:
                self._open.add(server)
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            self._pump(client, server)
            back.join()
            self._close(server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Copy until one side closes; bytes that arrive while the server hangs are discarded."""
        try:
            while data := source.recv(1 << 16):
                if self._way is Way.OPEN:
                    sink.sendall(data)
        except OSError:
            pass
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _refuse(self, client: socket.socket) -> None:
        """Read one request with its body, as a server does that answers before it closes."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := client.recv(1 << 16)):
                return
            data += more
        self.met += 1
        manifest, _, body = data.partition(b"\r\n\r\n")
        said = b"" if manifest.startswith(b"HEAD") else BUSY
        found = LENGTH.search(manifest)
        left = int(found[1]) - len(body) if found and b"100-continue" not in manifest.lower() else 0
        while left > 0 and (more := client.recv(1 << 16)):
            left -= len(more)
        client.sendall(ANSWER % len(BUSY) + said)

    def _close(self, each: socket.socket) -> None:
        with self._lock:
            self._open.discard(each)
        each.close()

    def _cut(self) -> None:
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self._shut()
        self._cut()
