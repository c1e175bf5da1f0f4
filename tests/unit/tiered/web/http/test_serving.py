"""Web server and its threads: start, shutdown, compression, caching headers, TLS."""

from __future__ import annotations

import datetime
import gc
import gzip
import logging
import re
import signal
import socket
import ssl
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
from raw_clients import LIMIT_S, SECRET, Raw, ask, echo, served

from local.errors import InvalidRequest
from tiered.serve.security.addresses import LOOPBACK
from tiered.service.observations import JsonFormatter
from tiered.web.http.server import Gate, MetricsServer, WebServer
from tiered.web.http.serving import END_S, Listener, ServerInThread, Tls

TOKEN = "a token of some length"
ROWS = "".join(f"<tr><td>orders/{number}</td></tr>" for number in range(2000))


def pages(target: str) -> tuple[HTTPStatus, str, str]:
    kinds = {"/page.css": "text/css; charset=utf-8", "/lab.js": "text/javascript; charset=utf-8"}
    return HTTPStatus.OK, kinds.get(target, "text/html; charset=utf-8"), ROWS if target == "/large" else target


def told(server: WebServer, target: str, verb: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
    connection = HTTPConnection(*server.address, timeout=LIMIT_S)
    connection.request(verb, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def test_large_answers_are_compressed_for_clients_that_accept_gzip() -> None:
    with served(pages=pages) as server:
        _, headers, body = told(server, "/large", Accept_Encoding="gzip, deflate")
        assert (headers["Content-Encoding"], headers["Vary"]) == ("gzip", "Accept-Encoding")
        assert gzip.decompress(body).decode() == ROWS
        assert len(body) * 5 < len(ROWS)
        _, headers, body = told(server, "/large")
        assert (headers["Content-Encoding"], body.decode()) == (None, ROWS)
        _, headers, body = told(server, "/small", Accept_Encoding="gzip")
        assert (headers["Content-Encoding"], body) == (None, b"/small")
        _, headers, body = told(server, "/large", "HEAD")
        assert (int(headers["Content-Length"]), body) == (len(ROWS), b"")


def test_pages_are_not_cached_and_static_files_are_revalidated() -> None:
    with served(pages=pages) as server:
        _, headers, _ = told(server, "/")
        assert (headers["Cache-Control"], headers["ETag"]) == ("no-store", None)
        for path in ("/page.css", "/lab.js"):
            _, headers, _ = told(server, path)
            mark = headers["ETag"]
            assert (headers["Cache-Control"], mark[:3]) == ("no-cache", 'W/"')
            for known in (mark, f'"x", {mark}'):
                status, headers, body = told(server, path, If_None_Match=known)
                assert (status, headers["ETag"], body) == (304, mark, b"")
                assert headers["Content-Security-Policy"].startswith("default-src 'self'")
            assert told(server, path, If_None_Match='W/"other"')[0] == 200


def test_connections_use_tcp_nodelay() -> None:
    with served() as server, Raw(server) as client:
        client.get().answer()
        (connection,) = server._server.server_state.connections
        taken = connection.transport.get_extra_info("socket")
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_shutdown_waits_for_an_answer_in_progress() -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def slow(target: str) -> tuple[HTTPStatus, str, str]:
        reached.set()
        goes_on.wait(LIMIT_S)
        return HTTPStatus.OK, "text/plain", SECRET

    with served(pages=slow) as server, Raw(server) as client, Raw(server) as idle:
        server._server.config.timeout_graceful_shutdown = int(LIMIT_S)
        client.get()
        assert reached.wait(LIMIT_S)
        closing = threading.Thread(target=server.close)
        closing.start()
        assert idle.rest() == b"", "an idle connection must be closed by the shutdown"
        threading.Event().wait(0.5)  # longer than the wait for other connections
        goes_on.set()
        assert client.answer() == (200, SECRET)
        closing.join(LIMIT_S)
        with pytest.raises(ConnectionError):
            Raw(server)


def test_hanging_answer_does_not_prevent_the_shutdown(monkeypatch) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def hanging(target: str) -> tuple[HTTPStatus, str, str]:
        reached.set()
        goes_on.wait(LIMIT_S)
        return HTTPStatus.OK, "text/plain", SECRET

    server = WebServer(LOOPBACK, 0, hanging, Gate())
    server._server.config.timeout_graceful_shutdown = 0
    server.start()
    with Raw(server) as client:
        client.get()
        assert reached.wait(LIMIT_S)
        server.close()
        assert not server._thread.is_alive()
        assert SECRET.encode() not in client.rest()
    answers = [each for each in threading.enumerate() if each.name == "tiered-answer"]
    assert [each.daemon for each in answers] == [True], (
        "the answer thread must be a daemon, so that the process can exit"
    )
    goes_on.set()
    for each in answers:
        each.join(LIMIT_S)
    assert END_S < 10


def test_client_that_does_not_read_does_not_prevent_the_shutdown() -> None:
    with served(pages=lambda target: (HTTPStatus.OK, "text/plain", "x" * 20_000_000)) as server:
        server._server.config.timeout_graceful_shutdown = 0
        with Raw(server, receives_bytes=4096) as client:
            client.get()
            client._more()
            server.close()
            assert not server._thread.is_alive()
            gc.collect()  # an unclosed transport would warn now
            assert len(client.rest()) < 20_000_000


def test_close_ends_a_client_that_was_accepted_just_before_the_loop_ended(monkeypatch) -> None:
    def accept_and_end(server: ServerInThread) -> None:
        server._listener.accept()

    monkeypatch.setattr(ServerInThread, "_run", accept_and_end)
    server = ServerInThread(LOOPBACK, 0, echo, name="test", option="--metrics")
    server.start()
    with socket.create_connection(server.address, timeout=LIMIT_S) as client:
        server._thread.join(LIMIT_S)
        server.close()
        assert client.recv(1) == b"", "the client must not wait for the end of the process"


def test_close_of_a_server_that_never_started_frees_its_port() -> None:
    server = WebServer(LOOPBACK, 0, echo, Gate())
    server.close()
    server.close()
    WebServer(*server.address, echo, Gate()).close()  # its port is free


def test_server_handles_no_signals_and_ignores_proxy_headers(monkeypatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setenv("WEB_CONCURRENCY", "7")
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with served(Gate(token=TOKEN)) as server, Raw(server) as client:
        lines = ("Host: localhost", "X-Forwarded-Proto: https", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: x")
        assert client.get("/", *lines).answer()[0] == 401
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
        form = f"token={TOKEN}".replace(" ", "+")
        lines = ("Host: localhost", "X-Forwarded-Proto: https", f"Content-Length: {len(form)}")
        client.get("/login", *lines, verb="POST").send(form.encode())
        while b"\r\n\r\n" not in client._come:
            client._more()
        assert b"Secure" not in client._come
        assert b"server:" not in client._come.lower(), "no answer may name the server software"


def test_server_errors_are_logged_and_requests_are_not(caplog) -> None:
    with served() as server:
        ask(server)
        for line in ("error", "access", "asgi"):
            logger = logging.getLogger(f"uvicorn.{line}")
            assert logger.handlers == []
            assert logger.isEnabledFor(logging.ERROR)
        assert caplog.records == []
        logging.getLogger("uvicorn.error").error("trouble of %s", "its own")
    (record,) = caplog.records
    assert '"message": "trouble of its own"' in JsonFormatter().format(record)


def test_address_in_use_error_names_the_option() -> None:
    with served() as server:
        for made, option in ((lambda: WebServer(*server.address, echo, Gate()), "--listen"),
                             (lambda: WebServer(*server.address, echo, Gate(), option="--ui"), "--ui"),
                             (lambda: MetricsServer(*server.address, {}), "--metrics")):  # fmt: skip
            with pytest.raises(InvalidRequest, match="address already in use") as refused:
                made()
            assert refused.value.facts["port"] == server.address[1]
            assert refused.value.facts["option"] == option


def test_listener_closes_connections_above_its_limit(monkeypatch) -> None:
    monkeypatch.setattr(Listener, "count_max", 3)
    with Listener(socket.AF_INET) as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(10)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        taken = [listener.accept()[0] for _ in range(3)]
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        taken.pop().close()
        taken.append(listener.accept()[0])
        assert clients[3].recv(1) == b"", "the connection above the limit must be closed"
        for each in (*clients, *taken):
            each.close()


def test_late_metrics_are_an_error_instead_of_old_values(monkeypatch) -> None:
    hangs = threading.Event()
    goes_on = threading.Event()

    def figures(accept: str) -> tuple[HTTPStatus, str, str]:
        if hangs.is_set():
            goes_on.wait(LIMIT_S)
        return HTTPStatus.OK, "text/plain", "tiered_halted 0\n"

    monkeypatch.setattr("tiered.web.http.server.FIGURES_S", 0.1)
    server = MetricsServer(LOOPBACK, 0, {"/metrics": figures})
    server.start()
    try:
        assert figures_at_last(server) == "tiered_halted 0\n"
        hangs.set()
        assert [ask(server, "/metrics")[0] for _ in range(3)] == [503] * 3
        looking = [each for each in threading.enumerate() if each.name.startswith("tiered-page /metrics")]
        assert len(looking) == 1, "all requests must share one read"
        hangs.clear()
        goes_on.set()
        looking[0].join(LIMIT_S)
        assert figures_at_last(server) == "tiered_halted 0\n"
    finally:
        goes_on.set()
        server.close()


def figures_at_last(server: MetricsServer) -> str:
    """The metrics, with retries, because a busy machine may miss the short deadline."""
    for _ in range(100):
        status, figures = ask(server, "/metrics")
        if status == 200:
            return figures
    raise AssertionError("no metrics were returned")


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Tls:
    """A self-signed certificate for localhost, valid for one hour before and after now."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder: Path = tmp_path_factory.mktemp("tls")
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "cert.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(private)
    (folder / "both.pem").write_bytes(private + pem)
    return Tls(certificate=str(folder / "cert.pem"), key=str(folder / "key.pem"))


def test_token_is_accepted_over_tls_only(certificate: Tls) -> None:
    trusting = ssl.create_default_context(cafile=certificate.certificate)
    both = Tls(certificate=certificate.certificate.replace("cert.pem", "both.pem"))
    for tls in (certificate, both):
        with served(Gate(token=TOKEN), tls=tls) as server:
            assert server.root == f"https://127.0.0.1:{server.address[1]}/"
            connection = HTTPSConnection("localhost", server.address[1], timeout=LIMIT_S, context=trusting)
            connection.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
            assert connection.getresponse().read() == f"{SECRET} /".encode()
            form = f"token={TOKEN}".replace(" ", "+")
            connection.request("POST", "/login", form, {"Origin": f"https://localhost:{server.address[1]}"})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (303, b"")
            assert answer.headers["Set-Cookie"].endswith("; HttpOnly; SameSite=Strict; Path=/; Secure")
            assert connection.sock.version() in ("TLSv1.2", "TLSv1.3")
            connection.close()
            with Raw(server) as plain:
                plain.get()
                assert SECRET.encode() not in plain.rest()


def test_tls_options_of_the_command_enable_tls_and_report_it(certificate: Tls, tmp_path: Path, capfd) -> None:
    from tiered.cli.node.run import AccessControl, serving_pages
    from tiered.cli.session import Session

    (tmp_path / "token").write_text(TOKEN)
    session = Session(directory=str(tmp_path))
    token = str(tmp_path / "token")
    guard = AccessControl(token_file=token, hosts=(), tls_cert=certificate.certificate, tls_key=certificate.key)
    with serving_pages(session, "--listen", "0.0.0.0:0", echo, guard):
        (line,) = capfd.readouterr().err.splitlines()
        assert re.fullmatch(r"pages at https://0\.0\.0\.0:[0-9]+/ until Ctrl-C", line), (
            "the line must have no hint about a proxy"
        )
    without_tls = AccessControl(token_file=token, hosts=(), tls_cert=None, tls_key=None)
    with serving_pages(session, "--ui", "0.0.0.0:0", echo, without_tls):
        assert "the connection is not encrypted" in capfd.readouterr().err


def test_old_tls_is_refused(certificate: Tls) -> None:
    old = ssl.create_default_context(cafile=certificate.certificate)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with served(tls=certificate) as server:
        connection = HTTPSConnection("localhost", server.address[1], timeout=LIMIT_S, context=old)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connection.request("GET", "/")
        connection.close()


def test_unfinished_tls_handshakes_are_closed_by_timeout_and_shutdown(certificate: Tls, monkeypatch, caplog) -> None:
    monkeypatch.setattr("tiered.web.http.serving.HEAD_S", 0.2)
    with served(tls=certificate) as server, Raw(server) as silent, Raw(server) as begun:
        begun.send(b"\x16\x03\x01")
        assert (silent.rest(), begun.rest()) == (b"", b"")
    monkeypatch.setattr("tiered.web.http.serving.HEAD_S", 1000.0)
    with served(tls=certificate) as server, Raw(server) as silent:
        until_taken(server)
        server.close()
        assert silent.rest() == b""
    gc.collect()  # an unclosed transport would warn now
    assert caplog.records == []


def until_taken(server: WebServer) -> None:
    pause = threading.Event()
    while not server._listener.open_clients():
        pause.wait(0.02)


def test_unusable_certificate_is_reported_in_one_line(certificate: Tls, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "words").write_text("no certificate at all")
    cases = [
        (str(tmp_path / "none"), certificate.key, "no such file or directory"),
        (certificate.certificate, str(tmp_path / "none"), "no such file or directory"),
        (str(tmp_path), certificate.key, ""),
        (str(tmp_path / "empty"), certificate.key, ""),
        (str(tmp_path / "words"), certificate.key, ""),
        (certificate.certificate, None, ""),
        (certificate.certificate, certificate.certificate, ""),
        (certificate.key or "", certificate.key, ""),
    ]
    for file, key, cause in cases:
        with pytest.raises(InvalidRequest, match="cannot read the certificate and its key") as refused:
            WebServer(LOOPBACK, 0, echo, Gate(), tls=Tls(certificate=file, key=key))
        assert cause in str(refused.value.facts["cause"])
        assert "PRIVATE KEY" not in str(refused.value)
