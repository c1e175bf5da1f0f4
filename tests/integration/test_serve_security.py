"""Kafka clients over TLS with each mechanism, and those that guess, wait, never read, or come after a reload."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import ssl
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import fake_source
import pytest
from bucket_samples import SampleBucket, batch_at
from confluent_kafka.admin import AdminClient
from fake_source import FakeSource
from kafka_security import PASSWORDS, SASL, TLS, Authority, Place, secured, token
from kafka_socket import METADATA, VERSIONS, connect, fetch, is_closed, receive, send

from remote.store.memory_store import MemoryStore
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.bucket_source import BucketSource
from tiered.serve.messages.base import Api
from tiered.serve.peers import Endpoint, answers
from tiered.serve.server import KafkaServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka
    import kafka.errors
    from kafka.net.sasl.oauth import AbstractTokenProvider

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # aiokafka and kafka-python leave the sockets of refused connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
COUNT, LIMIT_S = 20, 30.0
BOOTSTRAP_S = {"kafka-python": LIMIT_S}  # a refused client uses all of it
ACL = """
[[acl]]
principal = ["User:alice", "User:CN=reader,O=tests"]
operations = "Read"
topic_prefix = "ord"
"""
Consume = Callable[[str, Path, str, str, str], list[int]]


@pytest.fixture(scope="module")
def bucket() -> Iterator[RemoteLog]:
    sample = SampleBucket(MemoryStore("memory://secured"))
    sample.add("orders", 0, [batch_at(0, COUNT)])
    sample.add("hidden", 0, [batch_at(0, COUNT)], topic_id="BAAAAAAAAAAAAAAAAAAAAA")
    with RemoteLog(sample.store) as bucket:
        yield bucket


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place.new(tmp_path / "secured")
    made.write(SASL, TLS, ACL)
    return made


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what clients left, so that its warnings belong to the test."""
    yield
    gc.collect()


@contextmanager
def serving(place: Place, bucket: RemoteLog) -> Iterator[KafkaServer]:
    with closing(BucketSource(bucket, lambda: 0.0)) as source, secured(place, source) as server:
        yield server


def address(server: KafkaServer) -> str:
    return f"localhost:{server.address[1]}"


def by_kafka_python(address: str, ca: Path, mechanism: str, user: str, secret: str) -> list[int]:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return secret

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        security_protocol="SASL_SSL",
        ssl_cafile=str(ca),
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=secret,
        sasl_oauth_token_provider=Tokens(),
        fetch_max_wait_ms=50,
        bootstrap_timeout_ms=int(BOOTSTRAP_S["kafka-python"] * 1000),
    )
    try:
        here = kafka.TopicPartition("orders", 0)
        consumer.assign([here])
        consumer.seek(here, 0)
        return _until_all(lambda: [each.offset for each in consumer.poll(timeout_ms=200).get(here, [])])
    finally:
        consumer.close()


def by_aiokafka(address: str, ca: Path, mechanism: str, user: str, secret: str) -> list[int]:
    return asyncio.run(_by_aiokafka(address, ca, mechanism, user, secret))


async def _by_aiokafka(address: str, ca: Path, mechanism: str, user: str, secret: str) -> list[int]:
    class Tokens(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return secret

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address,
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=str(ca)),
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=secret,
        sasl_oauth_token_provider=Tokens(),
    )
    here = aiokafka.TopicPartition("orders", 0)
    found: list[int] = []
    try:
        await consumer.start()
        consumer.assign([here])
        consumer.seek(here, 0)
        while len(found) < COUNT:
            found += [each.offset for each in (await consumer.getmany(here, timeout_ms=200)).get(here, [])]
    finally:
        await consumer.stop()
    return found


def by_confluent(address: str, ca: Path, mechanism: str, user: str, secret: str) -> list[int]:
    errors: list[confluent_kafka.KafkaError] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca),
        "sasl.mechanisms": mechanism,
        "group.id": "unused",
        "enable.auto.commit": False,  # its end would wait for a coordinator
        "error_cb": errors.append,
        "broker.address.family": "v4",
    }
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _: (secret, time.time() + 300)
    else:
        settings |= {"sasl.username": user, "sasl.password": secret}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])

        def poll() -> list[int]:
            message = consumer.poll(0.2)
            for error in (*errors, *([message.error()] if message is not None and message.error() else [])):
                if error.code() != confluent_kafka.KafkaError._ALL_BROKERS_DOWN:
                    raise confluent_kafka.KafkaException(error)
            return [] if message is None else [message.offset()]

        return _until_all(poll)
    finally:
        consumer.close()


def _until_all(poll: Callable[[], list[int]]) -> list[int]:
    found: list[int] = []
    deadline_s = time.monotonic() + LIMIT_S
    while len(found) < COUNT and time.monotonic() < deadline_s:
        found += poll()
    return found


CLIENTS: list[Consume] = [by_kafka_python, by_aiokafka, by_confluent]
REFUSED = (kafka.errors.KafkaError, aiokafka.errors.KafkaError, confluent_kafka.KafkaException)


@pytest.mark.parametrize("consume", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_reads_over_tls_with_each_mechanism(
    place: Place, bucket: RemoteLog, mechanism: str, consume: Consume, caplog: pytest.LogCaptureFixture
) -> None:
    secret = token() if mechanism == "OAUTHBEARER" else PASSWORDS["alice"]
    with serving(place, bucket) as server:
        assert consume(address(server), place.authority.file, mechanism, "alice", secret) == list(range(COUNT))
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


# aiokafka takes the status of a refused token for a success, and connects again without an end.
REFUSALS = [(m, c) for m in MECHANISMS for c in CLIENTS if (m, c) != ("OAUTHBEARER", by_aiokafka)]


@pytest.mark.parametrize(("mechanism", "consume"), REFUSALS)
def test_a_wrong_password_and_an_expired_token_are_refused(
    place: Place,
    bucket: RemoteLog,
    mechanism: str,
    consume: Consume,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BOOTSTRAP_S, "kafka-python", 5.0)
    secret = token(exp=int(time.time()) - 60) if mechanism == "OAUTHBEARER" else "wrong-secret"
    with serving(place, bucket) as server, pytest.raises(REFUSED):
        consume(address(server), place.authority.file, mechanism, "alice", secret)
    failures = [each for each in caplog.messages if "authentication failed" in each]
    assert f"address=127.0.0.1 mechanism={mechanism}" in failures[0]
    assert secret not in caplog.text
    assert "alice" not in "".join(failures)


def test_a_list_of_topics_has_the_permitted_ones_and_another_name_is_refused(place: Place, bucket: RemoteLog) -> None:
    found, refused = {}, {}
    with serving(place, bucket) as server:
        for user, secret in PASSWORDS.items():
            admin = AdminClient(
                {
                    "bootstrap.servers": address(server),
                    "security.protocol": "SASL_SSL",
                    "ssl.ca.location": str(place.authority.file),
                    "sasl.mechanisms": "SCRAM-SHA-512",
                    "sasl.username": user,
                    "sasl.password": secret,
                    "broker.address.family": "v4",
                }
            )
            found[user] = set(admin.list_topics(timeout=LIMIT_S).topics)
            named = {name: admin.list_topics(name, timeout=LIMIT_S).topics[name].error for name in ("orders", "hidden")}
            refused[user] = {name: error and error.code() for name, error in named.items()}
    code = confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert found == {"alice": {"orders"}, "bob": set()}
    assert refused == {"alice": {"orders": None, "hidden": code}, "bob": {"orders": code, "hidden": code}}


def test_certificates_change_while_clients_are_connected(place: Place, tmp_path: Path) -> None:
    def connected(server: KafkaServer, ca: Path) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(ca))
        return context.wrap_socket(connect(server), server_hostname="localhost")

    newer = Authority.new(tmp_path / "newer")
    place.write(TLS)
    with secured(place) as server, connected(server, place.authority.file) as old:
        security = server._service.security
        assert security is not None
        send(old, VERSIONS)
        receive(old)
        certificate = place.folder / "server.pem"
        certificate.write_bytes(newer.issue("server").read_bytes())
        security.refresh()  # the key is still the old one
        with connected(server, place.authority.file) as other:
            send(other, VERSIONS)
            receive(other)
        certificate.with_suffix(".key").write_bytes((newer.folder / "server.key").read_bytes())
        security.refresh()
        with connected(server, newer.file) as other:
            send(other, VERSIONS)
            receive(other)
        with pytest.raises(ssl.SSLCertVerificationError):
            connected(server, place.authority.file)
        send(old, METADATA)
        assert b"orders" in receive(old)


def test_a_client_certificate_names_the_principal(place: Place, bucket: RemoteLog) -> None:
    place.authority.issue("reader", common_name="reader")
    place.write('ssl.client.auth = "required"\nssl.client.ca.file = "ca.pem"', TLS, ACL)
    context = ssl.create_default_context(cafile=str(place.authority.file))
    with serving(place, bucket) as server:
        with context.wrap_socket(connect(server), server_hostname="localhost") as client:
            try:
                send(client, METADATA)
                assert is_closed(client)
            except (ssl.SSLError, ConnectionError):
                pass  # refused, as it must be
        context.load_cert_chain(place.folder / "reader.pem", place.folder / "reader.key")
        with context.wrap_socket(connect(server), server_hostname="localhost") as client:
            send(client, METADATA)
            topics = receive(client)
    assert b"orders" in topics
    assert b"hidden" not in topics


def test_replicas_that_require_client_certificates_probe_each_other_with_their_own(
    place: Place, bucket: RemoteLog, caplog: pytest.LogCaptureFixture
) -> None:
    place.write('ssl.client.auth = "required"\nssl.client.ca.file = "ca.pem"', TLS, ACL)
    with serving(place, bucket) as server:
        tls = server._service.security.settings.tls
        where = Endpoint(host="127.0.0.1", port=server.address[1])
        for _ in range(3):
            assert answers(where, LIMIT_S, tls=lambda: tls)
        server.close()
        assert "no TLS handshake" not in caplog.text
        assert not answers(where, LIMIT_S, tls=lambda: tls)


def test_many_tls_clients_at_once_are_all_served(place: Place) -> None:
    place.write(TLS)

    async def one(port: int, context: ssl.SSLContext) -> bytes:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context, family=socket.AF_INET)
        writer.write(struct.pack(">i", len(METADATA)) + METADATA)
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        writer.close()
        await writer.wait_closed()  # else its transport may outlive the event loop
        return data

    async def all_of_them(port: int) -> list[bytes]:
        context = ssl.create_default_context(cafile=str(place.authority.file))
        return await asyncio.gather(*(one(port, context) for _ in range(60)))

    with secured(place) as server:
        assert all(b"orders" in each for each in asyncio.run(all_of_them(server.address[1])))


def test_plain_bytes_at_a_tls_port_are_logged_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.write(TLS)
    with secured(place) as server:
        for _ in range(5):
            with connect(server) as client:
                send(client, METADATA)
                try:
                    while client.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
    assert len([each for each in caplog.messages if "no TLS handshake" in each]) == 1


def handshake(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    name = mechanism.encode()
    return struct.pack(">hhihh", Api.SASL_HANDSHAKE, version, 1, -1, len(name)) + name


def authenticate(data: bytes) -> bytes:
    return struct.pack(">hhihi", Api.SASL_AUTHENTICATE, 1, 2, -1, len(data)) + data


def test_guesses_of_one_address_wait_for_each_other_and_are_logged_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.write(SASL.replace("delay.ms = 1", "delay.ms = 50"))
    count = 8
    with secured(place) as server:
        guesses = [connect(server) for _ in range(count)]
        began_s = time.monotonic()
        for at, client in enumerate(guesses):
            send(client, handshake())
            receive(client)
            send(client, authenticate(b"\0alice\0guess %d" % at))
        with connect(server) as client:  # another user of the same address does not wait
            send(client, handshake())
            receive(client)
            send(client, authenticate(b"\0bob\0" + PASSWORDS["bob"].encode()))
            assert receive(client)[4:6] == b"\0\0"
        for client in guesses:
            assert int.from_bytes(receive(client)[4:6]) == 58
            assert is_closed(client)
            client.close()
        assert time.monotonic() - began_s >= count * 0.05
    assert len([each for each in caplog.messages if "authentication failed" in each]) == 1


@pytest.mark.parametrize("request_bytes", [METADATA, authenticate(b"\0alice\0alice-secret"), fetch("orders", 0)])
def test_a_request_before_the_authentication_ends_the_connection(place: Place, request_bytes: bytes) -> None:
    place.write(SASL)
    with secured(place) as server, connect(server) as client:
        send(client, VERSIONS)
        receive(client)
        send(client, request_bytes)
        assert is_closed(client)


def test_a_client_that_does_not_authenticate_is_closed(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.write(SASL, "authentication.timeout.ms = 20")
    with secured(place) as server, connect(server) as client:
        assert is_closed(client)
    assert "did not authenticate" in caplog.text


def test_messages_without_a_head_follow_a_handshake_of_version_0(place: Place) -> None:
    place.write(SASL)
    with secured(place) as server, connect(server) as client:
        send(client, handshake(version=0))
        assert receive(client)[4:6] == b"\0\0"
        send(client, b"\0alice\0alice-secret")
        assert receive(client) == b""
        send(client, METADATA)
        assert b"orders" in receive(client)
    with secured(place) as server, connect(server) as client:
        send(client, handshake(version=0))
        receive(client)
        send(client, b"\0alice\0wrong")
        assert is_closed(client)


def test_a_client_that_never_reads_is_closed_and_others_are_served(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_source, "BATCH", 100_000)
    place.write(TLS)
    context = ssl.create_default_context(cafile=str(place.authority.file))
    with secured(place, FakeSource(orders=1000), send_s=0.3) as server, connect(server) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client = context.wrap_socket(raw, server_hostname="localhost")
        send(client, *[fetch("orders", 0, limit=16 << 20)] * 4)
        with context.wrap_socket(connect(server), server_hostname="localhost") as other:
            send(other, METADATA)
            assert b"orders" in receive(other)
        poll = select.poll()
        poll.register(client, select.POLLHUP | select.POLLERR)
        assert poll.poll(30_000), "the connection must be reset"
        client.close()


def test_connections_above_the_limit_of_an_address_are_refused(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.write("max.connections.per.ip = 2")
    with secured(place) as server:
        with connect(server) as first, connect(server) as second:
            for client in (first, second):
                send(client, VERSIONS)
                receive(client)
            for _ in range(3):
                with connect(server) as third:
                    assert is_closed(third)
        while server._tasks:
            pass
        with connect(server) as client:
            send(client, VERSIONS)
            receive(client)
    assert [each for each in caplog.messages if "refused" in each] == [
        "connection refused: address=127.0.0.1 limit=max.connections.per.ip=2 times=1"
    ]


def test_a_quota_throttles_the_response_and_the_connection(place: Place) -> None:
    place.write('[[quota]]\nprincipal = "User:*"\nconsumer_byte_rate = 1000')
    with secured(place, FakeSource(orders=50_000)) as server, connect(server) as client:
        send(client, fetch("orders", 0, limit=9_900), fetch("orders", 0, limit=300), METADATA)
        throttles = [int.from_bytes(receive(client)[4:8]) for _ in range(2)]
        assert throttles[0] == 0
        assert 0 < throttles[1] <= 1000
        began_s = time.monotonic()
        receive(client)
        assert time.monotonic() - began_s >= throttles[1] / 1000 * 0.5
