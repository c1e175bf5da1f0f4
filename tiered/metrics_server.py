"""An HTTP endpoint beside a manager at work: ``/metrics`` for Prometheus, ``/health`` for whoever restarts things, and
pages for people (`tiered.web`).

Reads alone, no authentication: it listens on the loopback address unless told otherwise, and has its pages only there.
A browser that was led here under another machine's name (DNS rebinding) gets none of them, and none may load or send
anything elsewhere. A request that does not come
to its end within REQUEST_S is let go of, and of those that come at the same time REQUESTS_MAX are answered.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from local.errors import InvalidRequest
from tiered.exposition import Form, form_of
from tiered.web.gate import host_name

LOOPBACK = "127.0.0.1"
REQUEST_S = 10
REQUESTS_MAX = 32  # browsers open connections ahead of need, and each keeps its place until REQUEST_S is over

Answer = Callable[[str], tuple[HTTPStatus, str, str]]  # of an Accept header: status, content type, body
Pages = Callable[[str], tuple[HTTPStatus, str, str]]  # of a path with its query
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all a browser sends our own form without its origin
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ServerInThreads:
    """Serves from threads of its own between `start` and `close`."""

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], *, name: str) -> None:
        """Port 0 takes any free one. Raises InvalidRequest for an address that cannot be had."""
        self._server = listening(host, port, handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsServer(ServerInThreads):
    """``/metrics``, ``/health``, and pages."""

    def __init__(self, host: str, port: int, answers: dict[str, Answer], pages: Pages | None = None) -> None:
        """`answers` by path; `pages` answers all others, on a loopback address alone. Port 0 takes any free one.

        Raises InvalidRequest for an address that cannot be had.
        """

        class Handler(_Handler):
            known = answers
            others = (pages,) if pages is not None and is_loopback(host) else ()

        super().__init__(host, port, Handler, name="tiered-metrics")


_PORT_DIGITS = 5


def parse_address(text: str) -> tuple[str, int]:
    """``:9464`` is the loopback address; ``0.0.0.0:9464`` is everybody; ``[::1]:9464``. Raises InvalidRequest."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS
    if not colon or not is_number or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise InvalidRequest("reading an address", text=repr(text), expected="[HOST]:PORT, such as :9464")
    return host.strip("[]") or LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """A server that listens there, bounded as the module says. Raises InvalidRequest where it cannot."""
    try:
        return _Server((host, port), handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest("listening for requests", host=host, port=port, cause=why.lower()) from None


class BoundHandler(BaseHTTPRequestHandler):
    """Answers with the headers that keep a browser from loading or sending anything elsewhere."""

    timeout = REQUEST_S
    server_version, sys_version = "tiered", ""

    def do_GET(self) -> None:
        self.reply("GET")

    def do_HEAD(self) -> None:
        self.reply("HEAD")

    def do_POST(self) -> None:
        self.reply("POST")

    def reply(self, verb: str) -> None:
        """Answer the request that was read. A HEAD is answered without a body."""
        raise NotImplementedError

    def send_page(
        self,
        status: HTTPStatus,
        kind: str,
        text: str,
        *,
        headers: Mapping[str, str] | None = None,
        with_body: bool = True,
    ) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**_HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is theirs
        """Not a word for each request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(REQUESTS_MAX)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: object, client_address: object) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nobody's trouble."""


class _Handler(BoundHandler):
    known: ClassVar[dict[str, Answer]] = {}
    others: ClassVar[tuple[Pages, ...]] = ()  # at most one

    def reply(self, verb: str) -> None:
        answer = self.known.get(self.path.partition("?")[0])
        status, kind, text = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "\n".join([*self.known, ""])
        if verb == "POST":
            status = HTTPStatus.METHOD_NOT_ALLOWED
        elif answer is not None:
            status, kind, text = answer(self.headers.get("Accept", ""))
        elif self.others and is_loopback(host_name(self.headers.get("Host", ""))):
            status, kind, text = self.others[0](self.path)
        self.send_page(status, kind, text, with_body=verb != "HEAD")


def metrics_answer(text: Callable[[Form], str]) -> Answer:
    """What ``/metrics`` says, in the form that is asked for."""

    def answer(accept: str) -> tuple[HTTPStatus, str, str]:
        form = form_of(accept)
        return HTTPStatus.OK, form.value, text(form)

    return answer


def health_answer(troubles: Callable[[], list[str]]) -> Answer:
    """What ``/health`` says: 200 while there is no trouble, 503 and the troubles otherwise."""

    def answer(accept: str = "") -> tuple[HTTPStatus, str, str]:
        found = troubles()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return status, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in found or ["ok"])

    return answer
