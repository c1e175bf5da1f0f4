"""Hostile clients: the server closes their connections and continues to answer all others."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from urllib.parse import quote

import pytest
from manager_world import NOW, World
from raw_clients import LIMIT_S, SECRET, Raw, ask, echo, served

from local.errors import Unavailable
from tiered.web.http.server import COOKIE, FORM_MAX, Answering, Gate, WebServer
from tiered.web.http.serving import CONNECTIONS_MAX, MANIFEST_BYTES_MAX, BoundConnection
from tiered.web.pages.site import Site

TOKEN = "a token of some length"
SOON_S = 0.2


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Timeouts short enough for a test."""
    for name in ("head_s", "exchange_s", "idle_s"):
        monkeypatch.setattr(BoundConnection, name, SOON_S)


def held(server: WebServer) -> int:
    return len(server._server.server_state.connections)


def until(claim: Callable[[], bool]) -> None:
    """Wait until another thread has made the claim true."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / 0.02)):
        if claim():
            return
        pause.wait(0.02)
    raise AssertionError("the claim did not become true")


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\ntok",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nto",
    ],
)
def test_slow_request_bytes_do_not_extend_the_timeout(impatient: None, begun: bytes) -> None:
    with served(Gate(token=TOKEN)) as server, Raw(server) as slow:
        slow.send(begun)
        slow.socket.settimeout(SOON_S / 10)
        for _ in range(int(LIMIT_S / SOON_S * 10)):
            try:
                if not slow.socket.recv(1):
                    return
            except TimeoutError:
                pass
            except ConnectionError:
                return
            try:
                if begun:
                    slow.send(b"x")
            except ConnectionError:
                return
        raise AssertionError("the connection was not closed at its timeout")


def test_idle_connection_is_closed_after_its_timeout(monkeypatch) -> None:
    monkeypatch.setattr(BoundConnection, "idle_s", SOON_S)
    with served() as server, Raw(server) as client:
        both = (f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n" for target in ("/", "/again"))
        # in one send, because between two sends the connection could be idle for too long
        client.send("".join(both).encode())
        assert client.answer() == (200, f"{SECRET} /")
        assert client.answer() == (200, f"{SECRET} /again"), "a connection must serve more than one request"
        assert client.rest() == b""


def test_answer_may_take_longer_than_the_request_timeout(monkeypatch) -> None:
    monkeypatch.setattr(BoundConnection, "exchange_s", LIMIT_S)
    goes_on = threading.Event()

    def pages(target: str) -> tuple[HTTPStatus, str, str]:
        goes_on.wait(LIMIT_S)
        return echo(target)

    with served(pages=pages) as server, Raw(server) as client:
        client.get()
        until(lambda: bool(server._server.server_state.tasks))
        monkeypatch.setattr(BoundConnection, "head_s", SOON_S)
        for _ in range(2):
            with Raw(server) as clock:
                assert clock.rest() == b"", "a connection without a request is closed after this time"
        goes_on.set()
        assert client.answer() == (200, f"{SECRET} /")


def test_client_that_does_not_read_its_answer_is_disconnected(monkeypatch) -> None:
    # the whole answer is buffered, so the server waits for the next request
    monkeypatch.setattr(BoundConnection, "idle_s", SOON_S)
    answered = threading.Event()

    def pages(target: str) -> tuple[HTTPStatus, str, str]:
        answered.set()
        return HTTPStatus.OK, "text/plain", "x" * 20_000_000

    with served(pages=pages) as server, Raw(server, receives_bytes=4096) as client:
        client.get()
        assert answered.wait(LIMIT_S)
        until(lambda: held(server) == 0)


RUBBISH = {
    "nothing of HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",
    "no verb": b"\r\n/ HTTP/1.1\r\n\r\n\r\n",
    "a verb of none": b"G@T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version of none": b"GET / HTTP/one\r\nHost: localhost\r\n\r\n",
    "a target with a space": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
    "a header with a zero": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "a length below zero": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    "a length of letters": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
    "two lengths": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "an encoding of none": b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: rot13\r\n\r\nab",
    "a long line": b"GET /" + b"x" * 4 * MANIFEST_BYTES_MAX + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 4 * MANIFEST_BYTES_MAX + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * MANIFEST_BYTES_MAX + b"\r\n",
    "a line without end": b"x" * 4 * MANIFEST_BYTES_MAX,
}


def test_malformed_request_is_refused_and_closed_without_a_log_line(caplog) -> None:
    with served() as server:
        for name, data in RUBBISH.items():
            with Raw(server) as client:
                try:
                    client.send(data)
                except ConnectionError:
                    continue  # refused before all bytes were sent
                told = client.rest()
                assert SECRET.encode() not in told, name
                assert told.startswith(b"HTTP/1.1 4") or not told, (name, told)
        assert ask(server)[0] == 200
    assert caplog.records == []


def test_malformed_bytes_after_a_request_do_not_change_its_answer(caplog) -> None:
    with served() as server:
        for rubbish in (b"\x00" * 100, b"nonsense\r\n\r\n", b"GET / HTTP/one\r\n\r\n"):
            with Raw(server) as client:
                client.send(b"GET /first HTTP/1.1\r\nHost: localhost\r\n\r\n" + rubbish)
                assert client.answer() == (200, f"{SECRET} /first")
                assert SECRET.encode() not in client.rest()
        for several in (2, 50):
            with Raw(server) as client:
                client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % at for at in range(several)))
                for at in range(several):
                    assert client.answer() == (200, f"{SECRET} /{at}")
        assert ask(server)[0] == 200
    assert caplog.records == []


def test_malformed_body_during_an_answer_closes_the_connection(caplog) -> None:
    goes_on, reached = threading.Event(), threading.Event()

    def pages(target: str) -> tuple[HTTPStatus, str, str]:
        reached.set()
        goes_on.wait(LIMIT_S)
        return HTTPStatus.OK, "text/plain", SECRET

    with served(pages=pages) as server, Raw(server) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert reached.wait(LIMIT_S)
        client.send(b"no length of a chunk\r\n\r\n")
        assert SECRET.encode() not in client.rest()
        goes_on.set()
        assert ask(server)[0] == 200
        with Raw(server) as client:
            client.get("/", "Host: localhost", "Transfer-Encoding: chunked")
            assert client.answer() == (200, SECRET), "the answer must not wait for an unexpected body"
            assert client.send(b"no length of a chunk\r\n\r\n").rest() == b""
        assert ask(server)[0] == 200
    assert caplog.records == []


def test_path_traversal_reaches_no_file() -> None:
    paths = ["/../../etc/passwd", "//etc/passwd", "/topics/../../../etc/passwd", "/page.css/../../site.py", "/./x", "*"]
    paths += [f"/{quote(each, safe='')}" for each in ("../../etc/passwd", "\0", "\n", "/etc/passwd", "..", "\u202e")]
    paths += [
        "http://evil.example/",
        "http://127.0.0.1/topics",
        "/%ff%fe",
        "/%",
        "/topics/%2e%2e/%2e%2e",
        "/" + "a/" * 5000,
    ]
    world = World()
    with world.open() as manager, served(pages=Site(manager, lambda: NOW).answer) as server:
        for path in paths:
            with Raw(server) as client:
                status, body = client.get(path).answer()
            assert status in (400, 404), path
            assert "root:" not in body
        assert ask(server)[0] == 200


def test_other_methods_are_refused_with_405() -> None:
    with served() as server:
        for verb in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "X" * 1000):
            with Raw(server) as client:
                status, body = client.get(verb=verb).answer()
            assert (status, SECRET in body) == (405, False), verb
        with Raw(server) as client:
            assert client.get("127.0.0.1:22", verb="CONNECT").answer()[0] in (404, 405)
        with Raw(server) as client:
            client.get("/", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
            assert client.answer() == (200, f"{SECRET} /"), "no connection may be upgraded"


def test_two_hundred_held_connections_do_not_block_other_clients() -> None:
    with served() as server, ExitStack() as clients:
        for number in range(200):
            client = clients.enter_context(Raw(server))
            if number % 2:
                client.send(b"GET / HTTP/1.1\r\n")
        assert ask(server, "/a") == (200, f"{SECRET} /a")
        assert held(server) <= CONNECTIONS_MAX
        for _ in range(200):
            clients.enter_context(Raw(server)).get()  # and stays open after the answer
        assert ask(server, "/b") == (200, f"{SECRET} /b")


def test_a_burst_while_the_server_is_busy_is_served_in_place_of_waiting_connections() -> None:
    """The loop accepts the burst at once, before it has closed the connections in whose place they come."""
    goes_on, is_busy = threading.Event(), threading.Event()

    def block() -> None:
        is_busy.set()
        assert goes_on.wait(LIMIT_S)

    with served() as server, ExitStack() as clients:
        for _ in range(CONNECTIONS_MAX):
            clients.enter_context(Raw(server))
        assert ask(server) == (200, f"{SECRET} /")
        woken = server._server._woken
        assert woken is not None
        woken[0].call_soon_threadsafe(block)
        assert is_busy.wait(LIMIT_S)
        burst = [clients.enter_context(Raw(server)) for _ in range(CONNECTIONS_MAX)]
        goes_on.set()
        for number, client in enumerate(burst):
            assert client.get(f"/{number}").answer() == (200, f"{SECRET} /{number}")


def test_waiting_clients_do_not_cancel_an_answer_in_progress() -> None:
    goes_on, reached = threading.Event(), threading.Event()

    def pages(target: str) -> tuple[HTTPStatus, str, str]:
        if target == "/slow":
            reached.set()
            goes_on.wait(LIMIT_S)
        return HTTPStatus.OK, "text/plain", SECRET

    with served(pages=pages) as server, Raw(server) as client, ExitStack() as idle:
        client.get("/slow")
        assert reached.wait(LIMIT_S)
        for _ in range(CONNECTIONS_MAX + 50):
            idle.enter_context(Raw(server))
        assert ask(server)[0] == 200
        goes_on.set()
        assert client.answer() == (200, SECRET)


def test_clients_that_disconnect_during_an_answer_leak_nothing(caplog) -> None:
    with served(pages=lambda target: (HTTPStatus.OK, "text/plain", "x" * 5_000_000)) as server:
        for number in range(30):
            with Raw(server, receives_bytes=4096) as client:
                client.get()
                if number % 3:
                    client.socket.recv(number * 10)
        until(lambda: held(server) == 0)
        until(lambda: not server._server.server_state.tasks)
        assert ask(server)[1] == "x" * 5_000_000
    assert caplog.records == []


def test_http_1_0_client_is_answered_and_closed() -> None:
    with served() as server:
        with Raw(server) as client:
            told = client.get("/old", "Host: localhost", version="1.0").rest()
            assert told.endswith(f"{SECRET} /old".encode())
        with Raw(server) as client:
            told = client.send(b"GET / HTTP/1.0\r\n\r\n").rest()
            assert told.startswith(b"HTTP/1.1 421 "), "a request without a host header must be refused"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost@evil.example", "localhost.evil.example", "evil.example:80", "127.0.0.1.evil.example",
     "localhost,evil.example", "[::1", "::ffff:10.0.0.7", "0x7f.1", "2130706433", "local\thost", "\u00e9.example"],
)  # fmt: skip
def test_unknown_host_name_gets_no_content(host: str) -> None:
    with served() as server, Raw(server) as client:
        status, body = client.get("/", f"Host: {host}").answer()
        assert (status in (400, 421), SECRET in body) == (True, False)


def test_wrong_tokens_are_refused_and_logged_at_growing_intervals(caplog) -> None:
    near = [TOKEN[:-1], TOKEN + "x", TOKEN.upper(), TOKEN[::-1], "", "*", TOKEN.replace(" ", "  "), f"{TOKEN}\t{TOKEN}"]
    guesses = [*near, *(f"guess number {number} of many" for number in range(120 - len(near)))]
    with served(Gate(token=TOKEN)) as server, Raw(server) as client:
        for guess in guesses:
            form = f"token={quote(guess)}".encode()
            manifest = f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(form)}\r\n\r\n"
            told = client.send(manifest.encode() + form).answer()
            assert (told[0], SECRET in told[1]) == (401, False), guess
        for guess in guesses[:20]:
            lines = ("Host: localhost", f"Authorization: Bearer x{guess}", f"Cookie: {COOKIE}={quote(guess)}")
            told = client.get("/", *lines).answer()
            assert (told[0], SECRET in told[1]) == (401, False), guess
        assert client.get("/", "Host: localhost", f"Authorization: Bearer {TOKEN}").answer()[0] == 200
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.split("times=")[1] for each in said] == [
        "1 client=127.0.0.1",
        "10 client=127.0.0.1",
        "100 client=127.0.0.1",
    ]
    assert TOKEN not in caplog.text


def test_oversized_form_is_refused_before_it_is_read() -> None:
    with served(Gate(token=TOKEN)) as server, Raw(server) as client:
        client.send(
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * (FORM_MAX + 1)
        )
        assert client.answer()[0] == 400


def test_hanging_answers_cost_waiting_clients_at_most_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def hanging() -> tuple[HTTPStatus, str, str]:
        goes_on.wait(LIMIT_S)
        return HTTPStatus.OK, "text/plain", "late"

    async def scene() -> None:
        answering = Answering(limit_s=SOON_S, count_max=2)
        told = await asyncio.gather(*(answering.of(hanging) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in told] == [Unavailable] * 5
        assert sorted(str(each).partition(":")[0] for each in told) == [
            *["cannot reply, it was not finished in time"] * 2,
            *["cannot reply, too many other replies are in progress"] * 3,
        ]
        goes_on.set()
        monkeypatch.setattr(answering, "_limit_s", LIMIT_S)
        while (await asyncio.gather(answering.of(lambda: echo("/")), return_exceptions=True)) != [echo("/")]:
            pass  # until the two hanging answers have ended
        assert await asyncio.gather(*(answering.of(lambda: echo("/x")) for _ in range(100))) == [echo("/x")] * 100

    asyncio.run(scene())


def test_failed_answer_is_a_500_and_logged_without_its_text(caplog) -> None:
    def pages(target: str) -> tuple[HTTPStatus, str, str]:
        if target.startswith("/bad"):
            raise ValueError("with a secret in it")
        return echo(target)

    with served(pages=pages) as server:
        status, body = ask(server, "/bad?password=x")
        assert (status, "secret" in body) == (500, False)
        assert ask(server)[0] == 200
    (said,) = caplog.records
    assert "path=/bad kind=ValueError at=test_web_hostile.py:" in said.getMessage()
    assert "secret" not in caplog.text
