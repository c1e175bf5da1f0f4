"""HTTP clients over bare sockets that may break the protocol, and a server for them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from tiered.web.http.server import Gate, WebServer
from tiered.web.http.serving import ServerInThread, Tls

SECRET = "what only those see who may"
LIMIT_S = 60.0  # generous for a busy machine; no test waits this long


def echo(target: str) -> tuple[HTTPStatus, str, str]:
    return HTTPStatus.OK, "text/plain", f"{SECRET} {target}"


@contextmanager
def served(
    gate: Gate | None = None,
    pages: Callable[[str], tuple[HTTPStatus, str, str]] = echo,
    *,
    host: str = "127.0.0.1",
    tls: Tls | None = None,
) -> Iterator[WebServer]:
    server = WebServer(host, 0, pages, gate or Gate(), tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.close()


class Raw:
    """One connection."""

    def __init__(self, server: ServerInThread, *, receives_bytes: int | None = None) -> None:
        self._come = b""
        self.socket = socket.socket()
        if receives_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
        self.socket.settimeout(LIMIT_S)
        try:
            self.socket.connect(("127.0.0.1", server.address[1]))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Raw:
        self.socket.sendall(data)
        return self

    def get(self, target: str = "/", *lines: str, version: str = "1.1", verb: str = "GET") -> Raw:
        manifest = "".join(
            f"{line}\r\n" for line in (f"{verb} {target} HTTP/{version}", *(lines or ("Host: localhost",)))
        )
        return self.send(f"{manifest}\r\n".encode("latin-1"))

    def answer(self) -> tuple[int, str]:
        """Status and body of the next answer, by its Content-Length."""
        while b"\r\n\r\n" not in self._come:
            self._more()
        manifest, _, self._come = self._come.partition(b"\r\n\r\n")
        lengths = [line for line in manifest.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(self._come) < size:
            self._more()
        body, self._come = self._come[:size], self._come[size:]
        return int(manifest.split()[1]), body.decode("utf-8", "replace")

    def rest(self) -> bytes:
        """All bytes until the server closes the connection."""
        try:
            while piece := self.socket.recv(65536):
                self._come += piece
        except ConnectionError:
            pass  # closed with unread data
        return self._come

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        assert piece, "the server closed the connection"
        self._come += piece


def ask(server: ServerInThread, target: str = "/") -> tuple[int, str]:
    """Status and body for a client that follows the protocol."""
    with Raw(server) as client:
        return client.get(target, "Host: localhost", "Connection: close").answer()
