"""An S3 server on loopback for the demo and the tests: moto, in a process of its own.

The child prints its port on stdout, and ends when its stdin ends or its parent process changes. Objects are in memory.
Changes run one at a time, so throughput cannot be measured with it.
"""

from __future__ import annotations

import http.client
import importlib.util
import io
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from typing import Any

from local.errors import InvalidRequest, Unavailable

HOST = "127.0.0.1"
START_TIMEOUT_S = 60  # imports alone can take several seconds on a busy machine
STOP_TIMEOUT_S = 10
WATCH_S = 1.0  # how often the child checks for its parent
_INSTALL = "pip install 'tiered[demo]'"


class S3Endpoint:
    """A running server, as a context manager; accepts any credentials. Raises InvalidRequest without moto."""

    def __init__(self) -> None:
        for library in ("moto", "flask"):
            if importlib.util.find_spec(library) is None:
                raise InvalidRequest(
                    "cannot start an S3 server, a library is missing", library=library, install=_INSTALL
                )
        self._child: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> S3Endpoint:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``"""
        return f"http://{HOST}:{self._port}"

    def options(self) -> dict[str, object]:
        """The options of `remote.store.open_store.open_store` for a bucket ``s3://<bucket>`` of this server."""
        return {
            "endpoint_url": self.url,
            "key": "loopback",
            "secret": "loopback",
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"proxies": {}},  # a proxy for the internet cannot reach loopback
        }

    def create_bucket(self, name: str) -> None:
        """Create a bucket, if it does not exist. Names have 3 characters or more."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=STOP_TIMEOUT_S)
        try:
            connection.request("PUT", f"/{name}")
            status = connection.getresponse().status
        except OSError as error:
            raise Unavailable("cannot create a bucket, there is no reply", bucket=name, endpoint=self.url) from error
        finally:
            connection.close()
        if status not in (200, 409):
            raise InvalidRequest(
                "cannot create a bucket, the request was refused", bucket=name, endpoint=self.url, status=status
            )

    def start(self) -> None:
        """Start the server and wait for its port. Raises Unavailable if it does not start."""
        assert self._child is None
        with tempfile.TemporaryFile() as words:
            child = self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", __name__ if __name__ != "__main__" else "tiered.demo.s3_endpoint"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,  # ctrl-c interrupts only the parent, which then ends the child in order
            )
            assert child.stdout is not None
            ready, _, _ = select.select([child.stdout], [], [], START_TIMEOUT_S)
            line = child.stdout.readline() if ready else b""
            if not line:
                self.stop()
                words.seek(0)
                last = words.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise Unavailable("cannot start an S3 server, it does not respond", cause=last or "timeout")
        self._port = int(json.loads(line)["port"])

    def stop(self) -> None:
        """End the server and wait for it. Idempotent."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            child.communicate(timeout=STOP_TIMEOUT_S)  # ends its stdin
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()


class OneChangeAtATime:
    """A WSGI application that runs one request at a time, except GET and HEAD.

    moto compares If-None-Match with the object and stores the new one in two steps, so two concurrent creations could
    both succeed. The body of a request is read before its turn: a stopped client does not block the others.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self.lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start_response)
        if size := environ.get("CONTENT_LENGTH"):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(size)))
        with self.lock:
            return self._application(environ, start_response)


def serve() -> None:
    """Serve until stdin ends or the parent changes, in the child."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    parent = os.getppid()
    application = OneChangeAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(HOST, 0, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_port}), flush=True)  # noqa: T201 - how the parent learns it
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], WATCH_S)
        if ready and not os.read(sys.stdin.fileno(), 1):
            break
    os._exit(0)  # there is no state to save, and a normal exit would wait for the server's threads


def _python_path() -> str:
    """A path with this package's location first, so that the child imports the same package."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))


if __name__ == "__main__":
    serve()
