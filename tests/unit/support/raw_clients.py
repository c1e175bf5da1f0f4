"""Clients of a server that keep no rule: they speak over bare sockets, and a server is what they speak to."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from tiered.web.http.gate import Gate
from tiered.web.http.server import WebServer
from tiered.web.http.serving import ServerInThread, Tls

SECRET = "what only those see who may"
LIMIT_S = 60.0  # on a busy machine; nothing waits so long


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
        head = "".join(f"{line}\r\n" for line in (f"{verb} {target} HTTP/{version}", *(lines or ("Host: localhost",))))
        return self.send(f"{head}\r\n".encode("latin-1"))

    def answer(self) -> tuple[int, str]:
        """The next answer's status and body, by its Content-Length."""
        while b"\r\n\r\n" not in self._come:
            self._more()
        head, _, self._come = self._come.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(self._come) < size:
            self._more()
        body, self._come = self._come[:size], self._come[size:]
        return int(head.split()[1]), body.decode("utf-8", "replace")

    def rest(self) -> bytes:
        """All that comes until the server hangs up."""
        try:
            while piece := self.socket.recv(65536):
                self._come += piece
        except ConnectionError:
            pass  # hung up on with something unread
        return self._come

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        assert piece, "hung up on"
        self._come += piece


def ask(server: ServerInThread, target: str = "/") -> tuple[int, str]:
    """What somebody who keeps the rules is answered."""
    with Raw(server) as client:
        return client.get(target, "Host: localhost", "Connection: close").answer()
