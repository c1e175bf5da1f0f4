"""``tiered run --kafka``: independent clients read a node, which ends while they are connected."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import warnings
from pathlib import Path

import aiokafka
import pytest
from kafka_socket import is_closed
from real_daemon import FOR_EVER, Daemon, Node

from tiered.cli.main import invoke
from tiered.serve.messages.base import Api

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
HANGING_MS = 2**31 - 1


def address_of(daemon: Daemon) -> tuple[str, int]:
    def said() -> tuple[str, int] | None:
        found = re.search(r"serving Kafka clients at (\S+):(\d+)", daemon.words)
        return (found[1], int(found[2])) if found else None

    return daemon.wait_for(said, "it serves Kafka clients")


def long_poll(offset: int) -> bytes:
    """A Fetch of version 4 that waits for records as long as the server lets it."""
    topic = struct.pack(">h1sii", 1, b"t", 1, 0) + struct.pack(">qi", offset, 1 << 20)
    head = struct.pack(">hhih", Api.FETCH, 4, 9, -1) + struct.pack(">iiiibi", -1, HANGING_MS, 1, 1 << 20, 0, 1)
    return struct.pack(">i", len(head + topic)) + head + topic


def test_a_signal_ends_a_node_with_connected_clients(tmp_path: Path) -> None:
    """A fetch waits up to a minute; `Daemon.end` waits less."""
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", None)
    node.fill("t")
    with Daemon(node, (*FOR_EVER, "--kafka", ":0")) as daemon:
        host, port = address_of(daemon)
        consumer = kafka.KafkaConsumer(bootstrap_servers=f"{host}:{port}")
        here = kafka.TopicPartition("t", 0)
        consumer.assign([here])
        consumer.seek_to_beginning(here)
        found = []
        while len(found) < len(node.sent["t"]):
            found += [each.value for each in consumer.poll(timeout_ms=1000).get(here, [])]
        consumer.close()
        assert found == [each.value for each in node.sent["t"]]
        with socket.create_connection((host, port), 30) as idle, socket.create_connection((host, port), 30) as waiting:
            waiting.sendall(long_poll(len(found)))
            assert daemon.end() == 0
            assert is_closed(idle)
            assert is_closed(waiting)
        assert "Traceback" not in daemon.words
    with node.manager() as manager:
        node.check_read(manager)


def test_clients_get_the_advertised_address(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", None)
    node.fill("t")
    words = (*FOR_EVER, "--kafka", ":0", "--kafka-advertise", "node-1.example:19092")
    with Daemon(node, words) as daemon:
        host, port = address_of(daemon)

        async def brokers() -> list[tuple[str, int]]:
            client = aiokafka.client.AIOKafkaClient(bootstrap_servers=f"{host}:{port}")
            await client.bootstrap()
            try:
                return [(each.host, each.port) for each in client.cluster.brokers()]
            finally:
                await client.close()

        assert asyncio.run(brokers()) == [("node-1.example", 19092)]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--kafka 0.0.0.0:0", 2, "add --kafka-without-authentication"),
        ("--kafka 192.0.2.1:0 --kafka-without-authentication", 2, "cannot listen for Kafka clients: host=192.0.2.1"),
        ("--kafka nonsense", 2, "invalid address"),
        ("--kafka :0 --kafka-advertise node", 2, "invalid --kafka-advertise"),
        ("--kafka :{taken}", 2, "address already in use"),
    ],
)
def test_an_address_that_cannot_be_served_ends_the_start(
    words: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Node(tmp_path, None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = words.format(taken=taken.getsockname()[1]).split()
        assert invoke(["-C", str(tmp_path), "run", *options]) == code
    assert message in capsys.readouterr().err
