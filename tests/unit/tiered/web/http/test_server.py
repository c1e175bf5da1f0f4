"""Access to the pages: host names that mean this server, forms from this server, and a token on other addresses."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from web_pages import Sound

from local.errors import InvalidRequest
from tiered.cli.main import invoke
from tiered.web.http.server import COOKIE, FORM_MAX, Gate, WebServer, host_name

TOKEN = "a token of some length"
SECRET = "what only those see who may"


@contextmanager
def served(gate: Gate, host: str = "127.0.0.1") -> Iterator[WebServer]:
    server = WebServer(host, 0, lambda target: (HTTPStatus.OK, "text/plain", f"{SECRET} {target}"), gate)
    server.start()
    try:
        yield server
    finally:
        server.close()


def ask(server: WebServer, path: str = "/", verb: str = "GET", body: str | None = None, **headers: str):
    """(status, headers, body) of one request. Header names are given with underscores."""
    connection = HTTPConnection("127.0.0.1", server.address[1], timeout=30)
    connection.request(verb, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer: HTTPResponse = connection.getresponse()
    found = HTTPStatus(answer.status), answer.headers, answer.read().decode()
    connection.close()
    return found


def test_loopback_server_answers_only_local_and_configured_host_names() -> None:
    with served(Gate(hosts=["Logs.example"])) as server:
        for host in ("localhost", "127.0.0.1:80", "[::1]:1", "127.0.0.2", "logs.example:8080", "LOCALHOST"):
            assert ask(server, "/x?y", Host=host)[2] == f"{SECRET} /x?y"
        for host in ("evil.example", "", "127.0.0.1.evil.example", "10.0.0.7", "localhost.evil.example", "a b"):
            status, _, body = ask(server, Host=host)
            assert (status, SECRET in body) == (HTTPStatus.MISDIRECTED_REQUEST, False)
            assert Sound.problems(body) == []


def test_methods_other_than_get_and_head_are_refused() -> None:
    for gate in (Gate(), Gate(token=TOKEN)):
        with served(gate) as server:
            for verb in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
                status, headers, body = ask(server, "/", verb, Authorization=f"Bearer {TOKEN}")
                assert (status, SECRET in body) == (HTTPStatus.METHOD_NOT_ALLOWED, False)
                assert headers["Allow"] in ("GET, HEAD", "HEAD, GET")
            for path in ("/", "/plan", "/apply"):
                status, headers, body = ask(server, path, "POST", "x=1", Authorization=f"Bearer {TOKEN}")
                assert (status, SECRET in body) == (HTTPStatus.METHOD_NOT_ALLOWED, False)
                assert "GET" in headers["Allow"]
        with served(Gate()) as server:
            status, headers, _ = ask(server, "/login", "POST", f"token={TOKEN}")
            assert (status, "GET" in headers["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, True)


def test_request_without_the_token_sees_only_the_login_page() -> None:
    with served(Gate(token=TOKEN)) as server:
        wrong = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}]
        wrong += [{"Cookie": f"{COOKIE}={TOKEN}"}, {"Cookie": f"{COOKIE}="}, {"Cookie": "\x7f=;;="}, {"Cookie": "a=b"}]
        wrong += [{"Authorization": "Bearer \u00e9".encode().decode("latin-1")}]
        for headers in wrong:
            for path in (
                "/",
                "/?format=json",
                "/lab.js",
                "/nothing",
                "/?token=" + TOKEN.replace(" ", "+"),
                "/page.css?x",
            ):
                status, told, body = ask(server, path, **headers)
                assert (status, SECRET in body) == (HTTPStatus.UNAUTHORIZED, False)
                assert told["WWW-Authenticate"] == "Bearer"
                assert Sound.problems(body) == []
        for path in ("/page.css", "/favicon.svg", "/favicon.ico"):
            assert ask(server, path)[0] == HTTPStatus.OK, "the files of the login page must be served"
        assert SECRET in ask(server, Authorization=f"Bearer {TOKEN}")[2]
        assert SECRET in ask(server, Authorization=f"bearer  {TOKEN}")[2]
        status, headers, body = ask(server, "/", "HEAD")
        assert (status, body, int(headers["Content-Length"]) > 0) == (HTTPStatus.UNAUTHORIZED, "", True)


def test_login_form_sets_a_cookie_that_is_valid_until_the_server_stops() -> None:
    form = "token=" + TOKEN.replace(" ", "+")
    with served(Gate(token=TOKEN)) as server:
        host = f"127.0.0.1:{server.address[1]}"
        status, headers, _ = ask(server, "/login", "POST", form, Origin=f"http://{host}")
        assert (status, headers["Location"]) == (HTTPStatus.SEE_OTHER, "/")
        cookie = headers["Set-Cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        assert TOKEN not in cookie
        pair = cookie.partition(";")[0]
        assert SECRET in ask(server, Cookie=f"other=1; {pair}")[2]
        for body in ("token=wrong", "", "token=" + "x" * FORM_MAX, "\x00", "token=" + form):
            status, headers, _ = ask(server, "/login", "POST", body)
            assert status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.BAD_REQUEST)
            assert "Set-Cookie" not in headers
        for origin in ("http://evil.example", "null", f"http://evil.example/{host}", f"https://{host}.evil.example"):
            status, headers, _ = ask(server, "/login", "POST", form, Origin=origin)
            assert (status, headers["Set-Cookie"]) == (HTTPStatus.FORBIDDEN, None)
    with served(Gate(token=TOKEN)) as server:
        assert ask(server, Cookie=pair)[0] == HTTPStatus.UNAUTHORIZED


def test_every_answer_forbids_other_origins_framing_and_caching() -> None:
    with served(Gate(token=TOKEN)) as server:
        for path, headers in (("/", {}), ("/", {"Authorization": f"Bearer {TOKEN}"}), ("/", {"Host": "evil.example"})):
            found = ask(server, path, **headers)[1]
            policy = found["Content-Security-Policy"]
            assert policy.startswith("default-src 'self'")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert found["Cross-Origin-Resource-Policy"] == "same-origin"
            assert found["Cache-Control"] == "no-store"
            assert found["X-Content-Type-Options"] == "nosniff"
            assert found["Referrer-Policy"] == "same-origin"
            assert "Access-Control-Allow-Origin" not in found


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "with a \n in its middle", "\u00e9" * 20])
def test_short_or_unsendable_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest):
        Gate(token=token)


def test_ip_addresses_are_valid_hosts_of_a_server_with_a_token() -> None:
    gate = Gate(token=TOKEN, hosts=["logs.example"])
    assert all(map(gate.is_host, ("10.0.0.7:80", "[2001:db8::1]:80", "logs.example", "localhost")))
    assert not any(map(gate.is_host, ("evil.example", "", "10.0.0.7.evil.example", "10.0.0")))


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:80", "a"), ("a", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("", ""), (":80", ""), ("a:b:c", "a:b")],
)
def test_host_name_is_parsed_from_the_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


def run_web(directory: Path, *words: str) -> tuple[int, str]:
    """Run `tiered web` until it listens, then interrupt it. Returns the exit code and the body of a page."""
    seen: list[str] = []
    from tiered.web.http import server as module

    class Told(module.WebServer):
        def start(self) -> None:
            super().start()
            seen.append(ask(self, "/plan")[2])
            threading.Timer(0, os.kill, (os.getpid(), signal.SIGINT)).start()

    before = module.WebServer
    module.WebServer = Told  # type: ignore[misc]
    try:
        code = invoke(["-C", str(directory), "web", *words])
    finally:
        module.WebServer = before  # type: ignore[misc]
    return code, seen[0] if seen else ""


def test_web_command_serves_a_directory_until_ctrl_c(tmp_path: Path, capfd) -> None:
    assert invoke(["-C", str(tmp_path), "init"]) == 0
    assert invoke(["-C", str(tmp_path), "topic", "create", "orders"]) == 0
    capfd.readouterr()
    code, body = run_web(tmp_path, "--listen", ":0")
    assert code == 0
    assert "Nothing to do" in body
    told = capfd.readouterr()
    assert told.out == ""
    assert "pages at http://127.0.0.1:" in told.err
    assert "token" not in told.err


def test_web_command_on_another_address_creates_a_token_unless_given(tmp_path: Path, capfd) -> None:
    assert invoke(["-C", str(tmp_path), "init"]) == 0
    capfd.readouterr()
    code, body = run_web(tmp_path, "--listen", "0.0.0.0:0")
    told = capfd.readouterr().err
    assert code == 0
    assert "Token" in body
    assert "Nothing to do" not in body
    assert len(told.partition("token: ")[2].splitlines()[0]) >= 32
    (tmp_path / "token").write_text(TOKEN + "\n")
    for listen in (":0", "0.0.0.0:0"):
        code, body = run_web(tmp_path, "--listen", listen, "--token-file", str(tmp_path / "token"))
        assert (code, "Open the pages" in body) == (0, True)
        assert "token: " not in capfd.readouterr().err


def test_web_command_reports_a_missing_directory_and_invalid_options(tmp_path: Path, capfd) -> None:
    assert run_web(tmp_path)[0] == 1, "there is no tiered.toml"
    assert invoke(["-C", str(tmp_path), "init"]) == 0
    (tmp_path / "token").write_text("short")
    for words in (
        ["--listen", "often"],
        ["--token-file", str(tmp_path / "none")],
        ["--token-file", str(tmp_path / "token")],
        ["--token-file", str(tmp_path)],
    ):
        capfd.readouterr()
        assert run_web(tmp_path, *words)[0] in (1, 2)
        assert len(capfd.readouterr().err.splitlines()) == 1
