"""Consumer groups of replicas: clients that reach nothing but replicas consume, commit, and outlive faults."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from group_consumers import CONSUMERS, GROUP, AioKafka, Confluent, Member, have_committed
from kafka_security import PASSWORDS, SASL, TLS, Place
from polled_group import COUNT, LIMIT_S, PARTITIONS, expected, poll_until, share_all, value
from running_node import running

from tiered.cli.main import invoke
from tiered.serve.peers import Endpoint, Peers

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # kafka-python leaves a socket open
]
ROUNDS = 3  # of records


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with the topic t, whose records are in the bucket."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERED_GROUP_INITIAL_REBALANCE_DELAY_MS", "100")
    for words in ("init", f"topic create t -p {PARTITIONS} -X remote.storage.enable=true"):
        assert invoke(["-q", *words.split()]) == 0
    for partition in range(PARTITIONS):
        for at in range(ROUNDS):
            lines = b"".join(value(partition, each) + b"\n" for each in range(at * COUNT, (at + 1) * COUNT))
            (tmp_path / f"lines-{partition}-{at}").write_bytes(lines)
    append(0)
    return tmp_path


def append(at: int) -> None:
    """Append a round of records, from the directory of the node, and wait until the bucket has them."""
    for partition in range(PARTITIONS):
        assert invoke(["-q", "append", f"t/{partition}", f"lines-{partition}-{at}", "--acks", "remote"]) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def replica(home: Path, port: int, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that serves at the port, killed at the end, and the lines that it writes."""
    bucket = (home / "bucket").as_uri()
    command = ["-m", "tiered", "serve", "--remote", bucket, "--port", str(port), "--refresh", "100ms", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, *command], env=environment, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    try:
        assert process.stderr is not None
        stream = iter(process.stderr.readline, "")
        assert any("Kafka clients at" in each for each in stream)
        drain = threading.Thread(target=lambda: lines.extend(stream), daemon=True)
        drain.start()
        yield process, lines
    finally:
        process.kill()
        process.wait()
        drain.join(LIMIT_S)
        process.stderr.close()  # type: ignore[union-attr]


@contextmanager
def cluster(home: Path, node_port: int) -> Iterator[tuple[str, dict[int, subprocess.Popen[str]]]]:
    """Two replicas with peers, which see each other: the addresses for clients, and the processes by port."""
    ports = (free_port(), free_port())
    with ExitStack() as stack:
        processes = {
            own: stack.enter_context(
                replica(home, own, "--peers", f"127.0.0.1:{sum(ports) - own}", "--groups", f"127.0.0.1:{node_port}")
            )[0]
            for own in ports
        }
        due_s = time.monotonic() + LIMIT_S
        while not all(brokers_at(each) == set(ports) for each in ports):
            assert time.monotonic() < due_s, "the replicas do not see each other"
        yield ",".join(f"127.0.0.1:{each}" for each in ports), processes


def brokers_at(port: int) -> set[int]:
    """The ports of the brokers that a replica names."""
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    return {each.port for each in client.list_topics(timeout=LIMIT_S).brokers.values()}


def coordinator(processes: dict[int, subprocess.Popen[str]]) -> int:
    """The port of the replica that clients ask for the group."""
    members = [Endpoint(host="127.0.0.1", port=each) for each in processes]
    return Peers(members[0], members, lambda address: True).coordinator_of(GROUP).endpoint.port


@contextmanager
def sharing(address: str) -> Iterator[tuple[list[Member], set[bytes]]]:
    """Members of the group by each client, which share it and have read and committed the first round."""
    with ExitStack() as stack, closing(Confluent(address, is_member=False)) as reader:
        members: list[Member] = []
        received: set[bytes] = set()
        for each in CONSUMERS:
            members.append(stack.enter_context(closing(each(address))))
            received |= set(poll_until(members, lambda seen: share_all(members)))
        received |= set(poll_until(members, lambda seen: expected() <= received | set(seen)))
        poll_until(members, lambda seen: have_committed(members, reader, COUNT))
        for member in members:
            member.drained()  # what it read again after a rebalance, before its commit
        yield members, received


def test_three_kinds_of_clients_share_one_group_through_replicas(home: Path) -> None:
    """All with their default refresh of metadata: they see one cluster, which consists of the replicas."""
    with running(home, 0) as (_, node_port), cluster(home, node_port) as (address, processes):
        with sharing(address) as (members, received):
            assert received == expected()
            by_librdkafka = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
            seen = by_librdkafka.list_topics(timeout=LIMIT_S).brokers.values()
            assert {each.port for each in seen} == set(processes), "the node is no broker of the cluster"
            listed = by_librdkafka.list_consumer_groups(request_timeout=LIMIT_S).result()
            assert [(each.group_id, each.state.name) for each in listed.valid] == [(GROUP, "STABLE")]
            assert not listed.errors
            (found,) = by_librdkafka.describe_consumer_groups([GROUP], request_timeout=LIMIT_S).values()
            assert len(found.result().members) == len(members)
            assert coordinator(processes) == found.result().coordinator.port
        with closing(kafka.KafkaAdminClient(bootstrap_servers=address)) as by_kafka_python:
            assert [each["group_id"] for each in by_kafka_python.list_groups()] == [GROUP]
        (done,) = by_librdkafka.delete_consumer_groups([GROUP], request_timeout=LIMIT_S).values()
        assert done.result() is None
        assert not by_librdkafka.list_consumer_groups(request_timeout=LIMIT_S).result().valid


def test_a_group_continues_when_the_replica_that_coordinates_it_is_killed(home: Path) -> None:
    with (
        running(home, 0) as (_, node_port),
        cluster(home, node_port) as (address, processes),
        sharing(address) as (members, _),
    ):
        # aiokafka asks no address again that its newest metadata does not name.
        (aiokafka,) = (each for each in members if each.client is AioKafka)
        poll_until(members, lambda seen: aiokafka.call(lambda consumer: consumer.knows(processes)))
        processes[coordinator(processes)].kill()
        continues(members, address)


def test_a_group_continues_when_its_node_restarts(home: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        node = stack.enter_context(ExitStack())
        node.enter_context(running(home, port))
        address, _ = stack.enter_context(cluster(home, port))
        members, _ = stack.enter_context(sharing(address))
        node.close()
        node.enter_context(running(home, port))
        continues(members, address)


def continues(members: list[Member], address: str) -> None:
    """The members read and commit new records, and none whose offset they had committed."""
    append(1)
    fresh = expected(COUNT, 2 * COUNT)
    found = poll_until(members, lambda seen: fresh <= set(seen))
    assert set(found) == fresh, "a committed offset was lost"
    with closing(Confluent(address, is_member=False)) as reader:
        poll_until(members, lambda seen: have_committed(members, reader, 2 * COUNT))


def test_members_of_the_consumer_protocol_join_through_replicas(home: Path) -> None:
    with running(home, 0) as (_, node_port), cluster(home, node_port) as (address, _), ExitStack() as stack:
        settings = {"group.protocol": "consumer"}
        members = [stack.enter_context(closing(ConsumerProtocol(address, **settings))) for _ in range(2)]
        found = poll_until(members, lambda seen: share_all(members) and expected() <= set(seen))
        assert set(found) == expected()


class ConsumerProtocol(Confluent):
    """A member whose partitions the node assigns: it has no strategy of its own."""

    def __init__(self, address: str, **settings: Any) -> None:
        common = {"bootstrap.servers": address, "group.id": "modern", "auto.offset.reset": "earliest"}
        self._consumer = confluent_kafka.Consumer({**common, "enable.auto.commit": False, **settings})
        self._consumer.subscribe(["t"])


NODE_RULES = """
[[acl]]
principal = "User:alice"
operations = ["Read", "Describe"]
group = "readers"
[[acl]]
principal = "User:alice"
operations = ["Read", "Describe"]
topic = "t"
"""


def test_a_replica_authenticates_at_a_secured_node(home: Path) -> None:
    """The replica's clients need no password; the node sees the principal of the replica, and applies its rules."""
    place = Place.new(home / "secured")
    place.write(SASL, TLS, NODE_RULES)
    config = home / "replica.properties"

    def write(password: str) -> None:
        config.touch(0o600)
        config.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\n"
            f"sasl.password={password}\nssl.ca.location={place.authority.file}\n"
        )

    write(PASSWORDS["alice"])
    with running(home, 0, "--security", str(place.file)) as (_, node_port):
        words = ("--groups", f"localhost:{node_port}", "--groups-config", str(config))
        port = free_port()
        with replica(home, port, *words), closing(Confluent(f"127.0.0.1:{port}")) as consumer:
            poll_until([consumer], lambda seen: expected() <= set(seen))
            poll_until([consumer], lambda seen: have_committed([consumer], consumer, COUNT))
            other = confluent_kafka.Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "others"})
            try:
                with pytest.raises(confluent_kafka.KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
                    other.committed([confluent_kafka.TopicPartition("t", 0)], LIMIT_S)
            finally:
                other.close()
        write("never shown")
        with replica(home, port, *words) as (process, lines):
            with closing(Confluent(f"127.0.0.1:{port}")) as consumer:
                until(consumer, lambda: any("authentication failed" in each for each in lines))
            process.kill()
            process.wait()
            assert not any("never shown" in each or "Traceback" in each for each in lines)


def until(consumer: Confluent, claim: Callable[[], bool]) -> None:
    due_s = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < due_s
        consumer.poll()


def test_processes_of_one_port_forward_to_the_node(home: Path) -> None:
    with running(home, 0) as (_, node_port):
        words = [sys.executable, "-m", "tiered", "serve", "--remote", (home / "bucket").as_uri(), "--port", "0"]
        words += ["--groups", f"127.0.0.1:{node_port}", "--processes", "2"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert process.stderr is not None
            found = re.search(r"Kafka clients at (127.0.0.1:\d+) ", process.stderr.readline())
            assert found is not None
            with closing(Confluent(found[1])) as consumer:
                poll_until([consumer], lambda seen: expected() <= set(seen))
                poll_until([consumer], lambda seen: have_committed([consumer], consumer, COUNT))
        finally:
            process.kill()
            process.communicate()


def test_the_file_of_the_node_s_security_is_read_at_the_start(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = home / "replica.properties"
    config.write_text("security.protocol=SASL_SSL\n")
    config.chmod(0o644)
    start = ["serve", "--remote", (home / "bucket").as_uri(), "--port", "0"]
    for words, reason in (
        (["--groups-config", str(config)], "add --groups"),
        (["--groups", "localhost:1", "--groups-config", str(config)], "run chmod 600"),
        (["--groups", "localhost:1", "--groups-config", "none"], "does not exist"),
    ):
        assert invoke([*start, *words]) == 2 if "exist" not in reason else invoke([*start, *words]) != 0
        assert reason in capfd.readouterr().err
