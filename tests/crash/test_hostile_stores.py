"""The attacks of the hostile campaign work: replies change, and lost records are complaints."""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hostile_stores import Lie, LyingGate, unread
from hostile_world import Answer

BODY = bytes(range(256)) * 4
REQUESTS = 60


class _Sound(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def gate() -> Iterator[LyingGate]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sound)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with LyingGate(server.server_address[1]) as found:
        yield found
    server.shutdown()
    server.server_close()


def _told(gate: LyingGate) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        body = answer.read()
        return "sound" if (answer.status, body) == (200, BODY) else f"{answer.status} {len(body)} bytes"
    except (OSError, http.client.HTTPException):
        return "cut"
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("lie", "changed"), [(Lie.LOST, {"cut"}), (Lie.FLIP, {"200 1024 bytes"}), (Lie.MISSING, {"404 1024 bytes"})]
)
def test_a_lying_gate_changes_some_replies_and_only_while_it_lies(gate: LyingGate, lie: Lie, changed: set[str]) -> None:
    with gate.lying(lie, random.Random(1)):
        found = {_told(gate) for _ in range(REQUESTS)}
    assert found == {"sound", *changed}
    assert {_told(gate) for _ in range(REQUESTS)} == {"sound"}


def test_an_acknowledged_record_that_is_not_read_gives_a_complaint() -> None:
    answer = Answer(words=("consume", "kept/0"), code=0, out='{"value": "a"}\n{"value": "b"}\n', err="")
    assert unread(answer, ["a", "b"]) == []
    (told,) = unread(answer, ["a", "c"])
    assert "1 acknowledged records lost, first 'c'" in told
