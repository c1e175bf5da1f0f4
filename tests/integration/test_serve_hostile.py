"""Bytes that are no requests, clients that never read, too many clients: each is closed, and the others are served."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_source import ORDERS, SLOW, FakeSource
from kafka_socket import METADATA, VERSIONS, connect, correlation, fetch, is_closed, receive, send, served

from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve import connection
from tiered.serve.commands.operation_jobs import Jobs
from tiered.serve.connection import Limits
from tiered.serve.endpoint_metrics import EndpointEnded, EndpointMetrics
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Api
from tiered.serve.node.endpoint import serving_node
from tiered.serve.server import KafkaServer
from tiered.service.worker import Worker
from tiered.status.status_report import status_report

pytestmark = pytest.mark.server
NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">i", 2**31 - 1), "invalid length"),
        (struct.pack(">i", -1), "invalid length"),
        (struct.pack(">i", 0), "invalid length"),
        (b"GET / HTTP/1.1\r\n\r\n", "without TLS"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "without TLS"),
        (struct.pack(">ihhi", 8, 999, 0, 1), "unsupported request"),
        (struct.pack(">ihhi", 8, Api.METADATA, 1, 1), "ends inside a field"),
        (struct.pack(">ihhihi", 14, Api.METADATA, 1, 1, -1, 2**31 - 1), "too many items"),
        (struct.pack(">ihhi", 8, 0, 9, 1), "unsupported request"),
    ],
)
def test_bytes_that_are_no_request_close_the_connection_with_a_reason(
    data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with served() as server, connect(server) as client, connect(server) as other:
        client.sendall(data)
        assert is_closed(client)
        send(other, VERSIONS)
        assert correlation(receive(other)) == 7
    (line,) = [each.getMessage() for each in caplog.records]
    assert reason in line
    assert "client=127.0.0.1:" in line


def test_a_frame_that_ends_early_closes_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with served() as server, connect(server) as other:
        for data in (b"\0", struct.pack(">i", 100), struct.pack(">i", 100) + b"x" * 99):
            with connect(server) as client:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                assert is_closed(client)
        send(other, VERSIONS)
        assert correlation(receive(other)) == 7
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_frame_in_single_bytes_is_a_request() -> None:
    with served() as server, connect(server) as client:
        for byte in struct.pack(">i", len(VERSIONS)) + VERSIONS:
            client.sendall(bytes((byte,)))
        assert correlation(receive(client)) == 7


def test_pipelined_requests_are_answered_in_their_order() -> None:
    source = FakeSource(orders=50, slow=50)
    source.gates[SLOW] = threading.Event()
    with served(source) as server, connect(server) as client, connect(server) as other:
        send(client, fetch("slow", 0, max_wait_ms=60_000, correlation_id=1), VERSIONS, METADATA)
        send(other, fetch("orders", 0), METADATA)
        assert [correlation(receive(other)) for _ in range(2)] == [9, 8], "another client must not wait"
        source.gates[SLOW].set()
        assert [correlation(receive(client)) for _ in range(3)] == [1, 7, 8]


def test_a_client_that_never_reads_is_closed_and_its_bytes_are_given_back(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource(orders=1 << 20)
    with served(source, send_s=0.05) as server, connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send(client, *[fetch("orders", 0, limit=16 << 20)] * 8)
        assert _is_reset(client)
        assert server._service.load.unsent_bytes == 0
    assert "the client neither sends nor reads" in caplog.text


def _is_reset(client: socket.socket) -> bool:
    """Wait without reading until the server resets the connection."""
    poll = select.poll()
    poll.register(client, select.POLLHUP | select.POLLERR)
    return bool(poll.poll(30_000))


def test_a_large_response_is_encoded_by_the_pool_and_one_beyond_the_limit_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads: list[str] = []
    encode = connection.encode

    def recorded(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(*arguments)

    monkeypatch.setattr(connection, "encode", recorded)
    monkeypatch.setattr(connection, "LOOP_BYTES_MAX", 40)
    with served() as server, connect(server) as client, connect(server) as other:
        send(client, METADATA)
        assert correlation(receive(client)) == 8
        assert threads[0] == "tiered-kafka"
        assert threads[1].startswith("tiered-serve-")
        monkeypatch.setattr(connection, "RESPONSE_BYTES_MAX", 41)
        send(client, METADATA)
        assert is_closed(client)
        monkeypatch.setattr(connection, "LOOP_BYTES_MAX", 1 << 20)
        send(other, METADATA)
        assert correlation(receive(other)) == 8
    assert "the message is too large" in caplog.text


def test_a_rest_of_a_frame_that_never_comes_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with served(frame_s=0.02) as server, connect(server) as client:
        client.sendall(struct.pack(">i", 100) + b"x")
        assert is_closed(client)
    assert "the client neither sends nor reads" in caplog.text


def test_an_idle_connection_is_closed_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with served(idle_s=0.02) as server, connect(server) as client:
        assert is_closed(client)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_clients_of_the_network_leave_the_connections_of_the_unix_socket_free(tmp_path: Path) -> None:
    path = str(tmp_path / "node.sock")

    def local() -> socket.socket:
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.settimeout(30)
        client.connect(path)
        return client

    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen()
        jobs = Jobs(lambda operation, parameters, work: b"", lambda: 0)
        server = KafkaServer(
            "127.0.0.1",
            0,
            Service(source=FakeSource(orders=1)),
            limits=Limits(connections_max=2, local_connections_max=1),
            local=(listener, jobs),
        )
        stack.callback(server.close)
        server.start()
        for _ in range(2):
            client = stack.enter_context(connect(server))
            send(client, VERSIONS)
            receive(client)
        assert is_closed(stack.enter_context(connect(server)))
        command = local()
        send(command, VERSIONS)
        assert correlation(receive(command)) == 7
        assert is_closed(local())


def test_the_end_of_background_work_is_an_error_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Service, "background", lambda self: [fail()])
    with served() as server, connect(server) as client:
        send(client, VERSIONS)
        assert correlation(receive(client)) == 7
        assert isinstance(server._service.metrics.failure, EndpointEnded)
    (line,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "background work of the Kafka endpoint ended" in line.getMessage()


def test_an_endpoint_that_ends_is_a_problem_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: KafkaServer) -> list[asyncio.Server]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(KafkaServer, "_servers", fail)
    config = Config.load(None, {}, {}, local_dir=str(tmp_path))
    metrics = EndpointMetrics()
    with (
        LogManager.open(config, now_ms=NOW) as manager,
        serving_node(manager, "127.0.0.1", 0, now_ms=lambda: NOW, metrics=metrics) as server,
    ):
        server._thread.join(60)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000, endpoint_error=lambda: metrics.failure)
        (line,) = worker.problem_lines()
        assert line.startswith("node: the Kafka endpoint ended: cause=")
        worker.round(NOW)
        (problem,) = status_report(manager, NOW).problems
        assert (problem.kind, problem.next_step) == (
            "EndpointEnded",
            "restart the node, and report the traceback of its log",
        )
    assert "the Kafka endpoint ended" in caplog.text


def test_connections_above_the_limit_are_refused_and_later_ones_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with served(connections_max=3) as server:
        with ExitStack() as stack:
            clients = [stack.enter_context(connect(server)) for _ in range(3)]
            for client in clients:
                send(client, VERSIONS)
                receive(client)
            for _ in range(12):
                with connect(server) as refused:
                    assert is_closed(refused)
            send(clients[0], METADATA)
            assert correlation(receive(clients[0])) == 8
        while server._tasks:
            pass
        with connect(server) as client:
            send(client, VERSIONS)
            assert correlation(receive(client)) == 7
    lines = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert [line.rpartition("times=")[2] for line in lines] == ["1", "10"]


def test_close_ends_long_polls_and_connections() -> None:
    source = FakeSource(orders=0)
    with served(source) as server, connect(server) as client:
        send(client, fetch("orders", 0, max_wait_ms=60_000))
        while not source.reads:
            pass
        server.close()
        assert is_closed(client)
        assert not server._thread.is_alive()


def test_an_error_of_ours_closes_one_connection_with_a_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with served() as server, connect(server) as other:
        send(other, VERSIONS)
        receive(other)
        with monkeypatch.context() as patch, connect(server) as client:
            patch.setattr(connection, "answer", broken)
            send(client, METADATA)
            assert is_closed(client)
        send(other, METADATA)
        assert correlation(receive(other)) == 8
    assert "internal error" in caplog.text
    assert ORDERS.topic not in caplog.text


def test_the_command_serves_a_bucket_until_a_signal(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("init", "topic create orders -p 2 -X remote.storage.enable=true", "run --once"):
        assert invoke(["-q", *words.split()]) == 0
    words = ["--log-format", "json", "serve", "--remote", (tmp_path / "bucket").as_uri(), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tiered", *words, "--cache-dir", "cache"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "serving 1 topic" in line, line
        port = int(line.partition("127.0.0.1:")[2].split()[0])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            send(client, METADATA)
            assert b"orders" in receive(client)
            client.sendall(b"\xff" * 8)
            assert is_closed(client)
        assert "connection closed" in json.loads(process.stderr.readline())["message"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_close_ends_a_client_whose_connection_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = threading.Event()

    async def never_begins(connection: object) -> None:
        accepted.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(connection.Connection, "serve", never_begins)
    with served() as server, connect(server) as client:
        assert accepted.wait(60)
        server.close()
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            return


def test_a_request_of_another_version_closes_or_refuses_and_keeps_the_other_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kafka answers an unknown version of ApiVersions; of other APIs it closes the connection or says so."""
    with served() as server, connect(server) as other:
        for api in (Api.API_VERSIONS, Api.METADATA, Api.FETCH, Api.LIST_OFFSETS, Api.OFFSET_FOR_LEADER_EPOCH):
            for version in (-1, 99, 2**15 - 1):
                with connect(server) as client:
                    send(client, struct.pack(">hhih", api, version, 7, -1) + bytes(20))
                    head = client.recv(4)
                    assert not head or int.from_bytes(head, "big") < 1 << 20, "a short refusal, or the end"
        send(other, VERSIONS)
        assert correlation(receive(other)) == 7
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("length", [2**31 - 1, 2**31 - 4, (2 << 20) + 1])
def test_a_frame_that_is_too_long_takes_no_memory(length: int) -> None:
    """A read-only server takes 2 MiB at most."""
    clients_count = 64
    with served() as server, ExitStack() as stack, connect(server) as other:
        before = resident_bytes()
        for _ in range(clients_count):
            stack.enter_context(connect(server)).sendall(struct.pack(">i", length) + b"x")
        send(other, VERSIONS)
        assert correlation(receive(other)) == 7
        assert resident_bytes() - before < 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


TEN_THOUSAND = """
import socket, sys
address, count = ("127.0.0.1", int(sys.argv[1])), int(sys.argv[2])
held, closed = [], 0
for number in range(count):
    client = socket.create_connection(address, timeout=60)
    # Closed at once: above the limit. Served: the answer to ApiVersions.
    try:
        client.sendall(bytes.fromhex("0000000a0012000000000007ffff"))
        is_served = bool(client.recv(4))
    except ConnectionError:
        is_served = False
    if is_served:
        held.append(client)
    else:
        client.close()
        closed += 1
print(len(held), closed, flush=True)
sys.stdin.read()
"""


def test_ten_thousand_connections_are_bounded_and_a_client_that_was_there_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The limit is `connections_max`. Its memory is bounded, and each refused connection costs no log line."""
    count, most = 10_000, Limits().connections_max
    with served() as server, connect(server) as other:
        send(other, VERSIONS)
        receive(other)
        before = resident_bytes()
        words = [sys.executable, "-c", TEN_THOUSAND, str(server.address[1]), str(count)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            held, closed = map(int, process.stdout.readline().split())
            assert (held, closed) == (most - 1, count - most + 1)
            assert resident_bytes() - before < 256 << 20
            send(other, METADATA)
            assert correlation(receive(other)) == 8
        finally:
            process.kill()
            process.communicate()
    lines = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert len(lines) <= 5, "the 1st, 10th, 100th and so on"
