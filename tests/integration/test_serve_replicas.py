"""Replicas that share the partitions of a bucket, and processes that share a port."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka_security import Place
from kafka_socket import METADATA, is_closed, receive, send
from served_bucket import filled_store

from local.names import TopicPartition
from remote.store.file_store import FileStore
from tiered.cli.main import invoke
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.bucket_source import BucketSource
from tiered.serve.handlers.service import Service
from tiered.serve.peers import FAILURES_MAX, Endpoint, Peers, answers
from tiered.serve.server import KafkaServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # kafka-python leaves a socket open
]
PARTITION = TopicPartition("plain", 0)


class Replica:
    """A running replica, which knows its peers once all are bound."""

    def __init__(self, bucket: RemoteLog) -> None:
        self.source = BucketSource(bucket, lambda: 0.0)
        self.service = Service(source=self.source)
        self.server = KafkaServer("127.0.0.1", 0, self.service)
        self.endpoint = Endpoint(host="127.0.0.1", port=self.server.address[1])

    def start(self, others: list[Endpoint]) -> None:
        self.service.peers = Peers(self.endpoint, others, answers)
        self.service.broker_id = self.service.peers.own.broker_id
        self.server.start()

    def close(self) -> None:
        self.server.close()
        self.source.close()


@contextmanager
def replicas(count: int) -> Iterator[list[Replica]]:
    with RemoteLog(filled_store()) as bucket, ExitStack() as stack:
        found = [Replica(bucket) for _ in range(count)]
        for each in found:
            stack.callback(each.close)
        for each in found:
            each.start([other.endpoint for other in found])
        yield found


def peers_of(replica: Replica) -> Peers:
    assert replica.service.peers is not None
    return replica.service.peers


def test_a_consumer_reads_on_when_the_replica_that_leads_its_partition_dies(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # its lines hold its connections
    with replicas(3) as found, RemoteLog(filled_store()) as bucket:
        expected = [each.offset for each in bucket.reader().records(PARTITION, 0)]
        assert _offsets_across_a_death(found, len(expected)) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _offsets_across_a_death(found: list[Replica], count: int) -> list[int]:
    """The offsets that a consumer reads while the replica from which it reads ends."""
    leader = peers_of(found[0]).leader_of(PARTITION)
    dying = next(each for each in found if each.endpoint == leader.endpoint)
    living = [each for each in found if each is not dying]
    here = kafka.TopicPartition(PARTITION.topic, PARTITION.partition)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=str(living[0].endpoint), fetch_max_wait_ms=50, max_partition_fetch_bytes=3000
    )
    try:
        consumer.assign([here])
        consumer.seek(here, 0)
        seen = [each.offset for each in _poll(consumer, here)]
        assert len(seen) < count
        dying.close()
        for replica in living:
            for _ in range(FAILURES_MAX):
                peers_of(replica).check()
            assert leader not in peers_of(replica).alive
        while len(seen) < count:
            seen += [each.offset for each in _poll(consumer, here)]
        return seen
    finally:
        consumer.close()


def _poll(consumer: kafka.KafkaConsumer, here: kafka.TopicPartition) -> list[Any]:
    return consumer.poll(timeout_ms=20_000, max_records=50).get(here, [])


def test_a_replica_that_does_not_lead_a_partition_serves_it() -> None:
    with replicas(2) as found, RemoteLog(filled_store()) as bucket:
        leader = peers_of(found[0]).leader_of(PARTITION)
        other = next(each for each in found if each.endpoint != leader.endpoint)
        expected = next(bucket.reader().records(PARTITION, 0)).value
        peers_of(other)._alive = (peers_of(other).own,)  # it took the others for dead
        here = kafka.TopicPartition(PARTITION.topic, PARTITION.partition)
        consumer = kafka.KafkaConsumer(bootstrap_servers=str(other.endpoint), fetch_max_wait_ms=50)
        try:
            consumer.assign([here])
            consumer.seek(here, 0)
            assert _poll(consumer, here)[0].value == expected
        finally:
            consumer.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for words in ("init", "topic create orders -p 2 -X remote.storage.enable=true", "run --once"):
        assert invoke(["-q", *words.split()]) == 0
    return tmp_path


@contextmanager
def serving(home: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command, and the port at which it serves."""
    command = [sys.executable, "-m", "tiered", "serve", "--remote", (home / "bucket").as_uri(), "--port", "0", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"Kafka clients at 127.0.0.1:(\d+) ", line)
        assert found is not None, line
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()  # until the last worker closed its end


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def replica(url: str, own: int, other: int) -> Iterator[subprocess.Popen[str]]:
    """A process at its port, which serves; killed at the end."""
    words = ["serve", "--remote", url, "--port", str(own), "--peers", f"127.0.0.1:{other}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tiered", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert any("Kafka clients at" in each for each in process.stderr)
        yield process
    finally:
        process.kill()
        process.communicate()


def by_librdkafka(address: str, count: int, reached: Callable[[int], None]) -> list[int]:
    settings = {"bootstrap.servers": address, "group.id": "none", "reconnect.backoff.max.ms": 200, "log_level": 0}
    small = {"fetch.message.max.bytes": 3000, "queued.min.messages": 1, "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**settings, **small})
    seen: list[int] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(PARTITION.topic, PARTITION.partition, 0)])
        while len(seen) < count:
            for each in consumer.consume(20, 1.0):
                if each.error() is None:
                    seen.append(each.offset())
            reached(len(seen))
        return seen
    finally:
        consumer.close()


def test_a_consumer_reads_on_when_the_process_of_its_replica_is_killed(tmp_path: Path) -> None:
    """kafka-python asks none but the brokers of its last Metadata, which may lack a replica that has just started."""
    url = (tmp_path / "bucket").as_uri()
    (tmp_path / "bucket").mkdir()
    filled, store = filled_store(), FileStore(str(tmp_path / "bucket"))
    for each in filled.list(""):
        store.put(each.key, filled.get(each.key))
    with RemoteLog(store) as bucket:
        expected = [each.offset for each in bucket.reader().records(PARTITION, 0)]
    ports = sorted((free_port(), free_port()))
    members = [Endpoint(host="127.0.0.1", port=each) for each in ports]
    leader = Peers(members[0], members, lambda address: True).leader_of(PARTITION).endpoint.port
    with ExitStack() as stack:
        running = {each: stack.enter_context(replica(url, each, sum(ports) - each)) for each in ports}

        def reached(count: int) -> None:
            if count and leader in running:
                running.pop(leader).kill()

        assert by_librdkafka(",".join(f"127.0.0.1:{each}" for each in ports), len(expected), reached) == expected
    assert leader not in running, "it must have been killed"


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_processes_serve_one_port_and_end_with_a_signal(home: Path, number: signal.Signals) -> None:
    with serving(home, "--processes", "3", "--cache-dir", "cache") as (process, port):
        assert len(workers_of(process)) == 3
        for _ in range(6):
            with connect(port) as client:
                send(client, METADATA)
                assert b"orders" in receive(client)
        process.send_signal(number)
        assert process.wait(60) == 0
        assert sorted(each.name for each in (home / "cache").iterdir()) == ["worker-0", "worker-1", "worker-2"]


def test_one_process_that_dies_ends_all(home: Path) -> None:
    with serving(home, "--processes", "2") as (process, _):
        os.kill(workers_of(process)[0], signal.SIGKILL)
        assert process.wait(60) == 128 + signal.SIGKILL
        assert process.stderr is not None
        assert "a serving process ended, exit code 137" in process.stderr.read()


def test_a_sighup_reloads_the_security_of_each_process(home: Path) -> None:
    place = Place.new(home / "secured")
    place.write("max.connections = 10")
    with serving(home, "--processes", "2", "--security", str(place.file)) as (process, port):
        assert process.stderr is not None
        place.file.write_text("max.connections = 20")
        process.send_signal(signal.SIGHUP)
        lines = [next(each for each in process.stderr if "security settings applied" in each) for _ in range(2)]
        assert len(lines) == 2
        assert len(workers_of(process)) == 2
        with connect(port) as client:
            send(client, METADATA)
            assert b"orders" in receive(client)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_processes_end_when_the_one_that_started_them_is_killed(home: Path) -> None:
    with serving(home, "--processes", "2") as (process, port), connect(port) as client:
        send(client, METADATA)
        assert b"orders" in receive(client)
        process.kill()
        assert is_closed(client)


def test_processes_that_cannot_start_end_with_the_cause(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tiered", "serve", "--remote", (home / "nothing").as_uri(), "--processes", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, "--port", "0"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "nothing" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--peers", "replica-2"], "invalid --peers"),
        (["--peers", "replica-2:9092"], "add --advertise"),
    ],
)
def test_peers_need_addresses(home: Path, capfd: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    assert invoke(["serve", "--remote", (home / "bucket").as_uri(), "--port", "0", *words]) == 2
    assert reason in capfd.readouterr().err
