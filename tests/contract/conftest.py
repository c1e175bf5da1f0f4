"""A real S3 API over HTTP on loopback, once per test run, and canned answers for errors that it cannot produce."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tiered.demo.s3_endpoint import S3Endpoint

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def s3_bucket(s3_endpoint: S3Endpoint) -> str:
    """The name of a new bucket."""
    name = f"bucket-{next(_numbers)}"
    s3_endpoint.create_bucket(name)
    return name


class CannedServer:
    """A server that returns the next of `answers` (status, S3 error code) for every request, and the last one
    repeatedly."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.requests: list[str] = []
        left = list(answers)
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                requests.append(f"{self.command} {self.path}")
                status, code = left.pop(0) if len(left) > 1 else left[0]
                body = f"<Error><Code>{code}</Code><Message>secret text</Message></Error>".encode() if code else b"ok"
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def options(self) -> dict[str, object]:
        return {
            "endpoint_url": self.url,
            "key": "the-access-key",
            "secret": "the-secret-key",
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"proxies": {}},
        }

    def __enter__(self) -> CannedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def canned() -> type[CannedServer]:
    return CannedServer
