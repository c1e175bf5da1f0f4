"""A proxy in front of a real server: it forwards requests, answers them itself, or lets the client wait."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_HOP = {"connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"}
Asked = Callable[["Request"], tuple[int, str] | None]


class Request:
    """One request of the client. `what` is its verb and the query names that identify the S3 operation."""

    def __init__(self, verb: str, path: str, headers: dict[str, str]) -> None:
        self.verb, self.path, self.headers = verb, path, headers

    @property
    def what(self) -> str:
        names = [each.partition("=")[0] for each in urlsplit(self.path).query.split("&")]
        told = [name for name in ("uploads", "uploadId", "partNumber", "delete", "list-type") if name in names]
        return " ".join([self.verb, *told])


class BetweenServer:
    """A proxy in front of the server at `url`.
    `answer(request)` returns the answer (status, S3 error code), or None to forward the request. It may block, which
    simulates a server that does not respond. `requests` has all requests in order. A request that its client cut short
    is not forwarded."""

    def __init__(self, url: str, answer: Asked) -> None:
        self.requests: list[Request] = []
        self._host = urlsplit(url).netloc
        self._unanswered = 0
        self._answered = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _take(self) -> None:
                outer._count(1)
                try:
                    self._handle()
                finally:
                    outer._count(-1)

            def _handle(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                try:
                    body = self.rfile.read(length)
                except ConnectionResetError:
                    body = b""
                if len(body) < length:
                    self.close_connection = True
                    return
                names = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, names)
                outer.requests.append(request)
                refused = answer(request)
                try:
                    if refused is None:
                        self._pass_on(request, body)
                    else:
                        self._say(refused[0], f"<Error><Code>{refused[1]}</Code></Error>".encode(), {})
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client closed the connection

            def _pass_on(self, request: Request, body: bytes) -> None:
                connection = http.client.HTTPConnection(outer._host, timeout=60)
                try:
                    headers = {name: value for name, value in request.headers.items() if name not in _HOP}
                    connection.request(request.verb, request.path, body or None, headers)
                    found = connection.getresponse()
                    passed = {name: value for name, value in found.getheaders() if name.lower() not in _HOP}
                    passed["x-length"] = found.getheader("Content-Length") or "0"
                    self._say(found.status, found.read(), passed)
                finally:
                    connection.close()

            def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                length = headers.pop("x-length", "0")
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _take  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def options(self) -> dict[str, object]:
        return {
            "endpoint_url": self.url,
            "key": "loopback",
            "secret": "loopback",
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"proxies": {}},
        }

    def _count(self, change: int) -> None:
        with self._answered:
            self._unanswered += change
            self._answered.notify_all()

    def wait_until_all_are_answered(self) -> None:
        """Wait until no request is at the server: a client may have abandoned some."""
        with self._answered:
            assert self._answered.wait_for(lambda: self._unanswered == 0, timeout=60)

    def upload_ids(self, what: str) -> list[str]:
        """The multipart uploads that the requests with this `Request.what` name, in order."""
        paths = [urlsplit(request.path).query for request in self.requests if request.what == what]
        return [parse_qs(query)["uploadId"][0] for query in paths]

    def times(self, what: str) -> int:
        """Number of requests with this `Request.what`."""
        return sum(request.what == what for request in self.requests)

    def __enter__(self) -> BetweenServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
