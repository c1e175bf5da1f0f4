"""kill -9 of a node while several clients produce: no acknowledged record is lost, none is there twice or out of order.

The clients are idempotent. They go on after each restart, on the same port. tests/unit/tiered/serve/node proves on a
model of the disk that acknowledged records are durable: a killed process loses nothing of the page cache.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from run_profile import KILLS
from running_node import running

from local.names import TopicPartition
from tiered.config.config import Config
from tiered.manager.manager import LogManager

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
LIMIT_S = 120
IN_FLIGHT = 100
CONFIG = """[local]
dir = "data"
[defaults]
"segment.bytes" = "20000"
"""


def now_ms() -> int:
    return time.time_ns() // 10**6


class Client:
    """A producer in its own thread: sends numbers until `stop`, and waits for the acknowledgement of each.

    `acked` is the number of acknowledged values, which are acknowledged in order.
    """

    def __init__(self, name: str, produce: Callable[[Client, str], None], address: str) -> None:
        self.name, self.acked, self.sent = name, 0, 0
        self.is_stopping = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(produce, address), daemon=True)
        self._thread.start()

    def values(self) -> Iterator[bytes]:
        while not self.is_stopping.is_set():
            self.sent += 1
            yield b"%d" % (self.sent - 1)

    def end(self) -> None:
        self.is_stopping.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self.name}: acked {self.acked} of {self.sent}"
        assert self.error is None, (self.name, self.error)
        assert self.acked == self.sent

    def _run(self, produce: Callable[[Client, str], None], address: str) -> None:
        try:
            produce(self, address)
        except BaseException as error:  # noqa: BLE001 - `end` reports it
            self.error = error


def by_librdkafka(client: Client, address: str) -> None:
    def reported(error: object, message: object) -> None:
        assert error is None, error
        client.acked += 1

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "message.timeout.ms": LIMIT_S * 1000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
            "linger.ms": 1,
        }
    )
    for value in client.values():
        producer.produce(client.name, value, partition=0, on_delivery=reported)
        while client.sent - client.acked > IN_FLIGHT:
            producer.poll(0.01)
    assert producer.flush(LIMIT_S) == 0


def by_kafka_python(client: Client, address: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=200,
        retry_backoff_ms=50,
        request_timeout_ms=20_000,
        delivery_timeout_ms=LIMIT_S * 1000,
        max_block_ms=LIMIT_S * 1000,
    )
    waiting = []
    for value in client.values():
        waiting.append(producer.send(client.name, value, partition=0))
        while len(waiting) > IN_FLIGHT:
            waiting.pop(0).get(LIMIT_S)
            client.acked += 1
    for each in waiting:
        each.get(LIMIT_S)
        client.acked += 1
    producer.close()


def by_aiokafka(client: Client, address: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, retry_backoff_ms=50, request_timeout_ms=20_000
        )
        await producer.start()
        waiting = []
        for value in client.values():
            waiting.append(await producer.send(client.name, value, partition=0))
            while len(waiting) > IN_FLIGHT:
                await asyncio.wait_for(waiting.pop(0), LIMIT_S)
                client.acked += 1
        for each in waiting:
            await asyncio.wait_for(each, LIMIT_S)
            client.acked += 1
        await producer.stop()

    asyncio.run(produce())


CLIENTS = {"librdkafka": by_librdkafka, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka}


@pytest.fixture
def closed_sockets() -> Iterator[None]:
    """Close the sockets of failed connections, which kafka-python leaves open."""
    before = {id(each) for each in open_sockets()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        for each in open_sockets():
            if id(each) not in before:
                each.close()


def open_sockets() -> list[socket.socket]:
    # By `type`: `isinstance` asks a weak proxy for the class of its object, and fails if that object is gone.
    found = [each for each in gc.get_objects() if issubclass(type(each), socket.socket)]
    return [each for each in found if each.fileno() >= 0]


@pytest.mark.usefixtures("closed_sockets")
def test_killed_nodes_keep_every_acknowledged_record_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "tiered.toml").write_text(CONFIG)
    config = Config.load(str(tmp_path / "tiered.toml"), {}, {})
    with LogManager.open(config, now_ms=now_ms()) as manager:
        for name in CLIENTS:
            manager.topics.create(name, 1, {}, now_ms=now_ms())
    rng, port, clients = random.Random(5), 0, list[Client]()
    for _ in range(KILLS):
        with running(tmp_path, port) as (process, port):
            clients = clients or [Client(name, work, f"127.0.0.1:{port}") for name, work in CLIENTS.items()]
            before = [each.acked for each in clients]
            due = time.monotonic() + LIMIT_S
            while any(each.acked < 200 + old for each, old in zip(clients, before, strict=True)):
                assert time.monotonic() < due, [(each.name, each.acked, each.error) for each in clients]
                time.sleep(0.01)
            time.sleep(rng.random() * 0.2)
            process.send_signal(signal.SIGKILL)
            process.wait()
    with running(tmp_path, port) as (process, _):
        for each in clients:
            each.end()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    with LogManager.open(config, now_ms=now_ms()) as manager:
        for each in clients:
            found = [record.value for record in manager.reader().records(TopicPartition(each.name, 0), 0)]
            assert found == [b"%d" % number for number in range(each.sent)], each.name
