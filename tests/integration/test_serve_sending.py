"""Responses of file ranges: their bytes, slow and fast clients, files that change, TLS."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
import threading
import warnings
import weakref
from pathlib import Path

import pytest
from fake_source import BATCH, CALL, FakeSource
from kafka_socket import METADATA, connect, correlation, fetch, receive, send, served

from local.format.record import Record
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve import sender
from tiered.serve.file_range import FileRange, OpenFile
from tiered.serve.handlers.fetch import fetch as fetch_handler
from tiered.serve.handlers.service import Service
from tiered.serve.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tiered.serve.node.endpoint import serving_node
from tiered.serve.read_pool import ReadPool
from tiered.serve.record_source import ReadBatches
from tiered.serve.sender import BURST_BYTES, SLICE_BYTES, Sender, memory_bytes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
NOW_MS = 1_750_000_000_000
COUNT = 160_000  # batches, 16 MB: more than the sockets of a connection hold
LIMIT = COUNT * BATCH


class FileSource(FakeSource):
    """A fake source whose batches are in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(orders=COUNT)
        self.path = path
        self.files: list[weakref.ref[OpenFile]] = []
        path.write_bytes(b"".join(b"%0*d" % (BATCH, at) for at in range(COUNT)))

    def read(self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int) -> ReadBatches:
        found = super().read(partition, offset, isolation=isolation, bytes_max=BATCH)
        file = OpenFile(os.open(self.path, os.O_RDONLY))
        self.files.append(weakref.ref(file))
        size = min(bytes_max // BATCH, COUNT - offset) * BATCH
        return ReadBatches(bounds=found.bounds, runs=[FileRange(file, offset * BATCH, size)])


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    return FileSource(tmp_path / "log")


def records_of(response: bytes) -> bytes:
    return response[-LIMIT:]


def test_the_client_gets_the_bytes_of_the_file(source: FileSource) -> None:
    with served(source) as server, connect(server) as client:
        send(client, fetch("orders", 0, limit=LIMIT), METADATA, fetch("orders", COUNT - 3, limit=LIMIT))
        first, second, third = (receive(client) for _ in range(3))
    assert records_of(first) == source.path.read_bytes()
    assert correlation(second) == 8
    assert third.endswith(source.path.read_bytes()[-3 * BATCH :])
    assert third[-4 - 3 * BATCH : -3 * BATCH] == (3 * BATCH).to_bytes(4, "big")
    assert all(each() is None for each in source.files), "the descriptors must be closed"


def test_bytes_outside_the_page_cache_are_loaded_by_a_thread(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[str]()
    read = FileRange.read

    def noted(part: FileRange) -> bytes:
        threads.add(threading.current_thread().name)
        return read(part)

    monkeypatch.setattr(FileRange, "is_cached", lambda part: False)
    monkeypatch.setattr(FileRange, "read", noted)
    with served(source) as server, connect(server) as client:
        send(client, fetch("orders", 0, limit=LIMIT))
        assert records_of(receive(client)) == source.path.read_bytes()
    assert threads
    assert all(each.startswith("tiered-serve") for each in threads)


def test_a_client_that_does_not_read_holds_no_memory_and_delays_no_other(source: FileSource) -> None:
    with served(source) as server, connect(server) as client, connect(server) as other:
        for _ in range(3):
            send(client, fetch("orders", 0, limit=LIMIT))
        client.recv(1, socket.MSG_PEEK)
        for _ in range(3):
            send(other, fetch("orders", 0, limit=LIMIT), METADATA)
            assert records_of(receive(other)) == source.path.read_bytes()
            assert correlation(receive(other)) == 8
            assert server._service.load.unsent_bytes < 1000
        while sum(each() is not None for each in source.files) > 1:  # one response of the client is at work
            pass
        for _ in range(3):
            assert records_of(receive(client)) == source.path.read_bytes()


def test_a_file_that_is_deleted_during_the_send_arrives_whole(source: FileSource) -> None:
    expected = source.path.read_bytes()
    with served(source) as server, connect(server) as client:
        send(client, fetch("orders", 0, limit=LIMIT))
        client.recv(1, socket.MSG_PEEK)
        source.path.unlink()
        assert records_of(receive(client)) == expected


def test_a_file_that_becomes_shorter_during_the_send_ends_the_connection(
    source: FileSource, caplog: pytest.LogCaptureFixture
) -> None:
    with served(source) as server, connect(server) as client:
        send(client, fetch("orders", 0, limit=LIMIT))
        client.recv(1, socket.MSG_PEEK)
        os.truncate(source.path, 1000)
        while client.recv(1 << 20):
            pass
        with connect(server) as other:
            send(other, METADATA)
            assert correlation(receive(other)) == 8
    assert "the file is shorter" in caplog.text
    assert all(each() is None for each in source.files)


def test_a_response_of_file_ranges_counts_no_memory(source: FileSource) -> None:
    async def work() -> list[object]:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=LIMIT)
        asked = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=LIMIT, topics=(FetchTopic(topic="orders", partitions=(partition,)),)
        )
        response = await fetch_handler(Service(source=source), asked, CALL)
        return list(response.responses[0].partitions[0].records)

    runs = asyncio.run(work())
    assert sum(map(len, runs)) == LIMIT  # type: ignore[arg-type]
    assert memory_bytes([b"head", *runs]) == 4  # type: ignore[list-item]


def test_after_each_burst_other_tasks_run(source: FileSource) -> None:
    data, turns = asyncio.run(_sent(source.path))
    assert data == source.path.read_bytes() * 2
    assert turns >= 2 * LIMIT // BURST_BYTES - 1


def test_the_waits_for_a_client_leave_no_descriptor_open(source: FileSource) -> None:
    before = len(os.listdir("/dev/fd"))
    asyncio.run(_sent(source.path))
    assert len(os.listdir("/dev/fd")) == before


def test_a_client_that_keeps_up_costs_one_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it is for a client without room; a burst is no reason for one."""
    monkeypatch.setattr(sender, "BURST_BYTES", 100)

    copies, dup = list[int](), os.dup

    def noted(fd: int) -> int:
        copies.append(dup(fd))
        return copies[-1]

    monkeypatch.setattr(os, "dup", noted)
    with served() as server, connect(server) as client:
        for _ in range(20):
            send(client, METADATA)
            assert correlation(receive(client)) == 8
    assert not copies


def test_a_connection_with_tls_gets_the_same_bytes_in_slices(
    source: FileSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()
    write = asyncio.StreamWriter.write

    def noted(writer: asyncio.StreamWriter, data: memoryview) -> None:
        sizes.append(len(data))
        write(writer, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", noted)
    data, _ = asyncio.run(_sent(source.path, _certificate(tmp_path)))
    assert data == source.path.read_bytes() * 2
    assert max(sizes) <= SLICE_BYTES


async def _sent(path: Path, certificate: str | None = None) -> tuple[bytes, int]:
    """What a client reads of the file, sent as a range and as a buffer; how often another task ran in between."""
    turns, ended = 0, asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other, pool = asyncio.create_task(count()), ReadPool()
        sender = Sender(writer, pool, send_s=60)
        await sender.send([FileRange(OpenFile(os.open(path, os.O_RDONLY)), 0, LIMIT), memoryview(path.read_bytes())])
        other.cancel()
        pool.close()
        writer.close()
        sender.close()
        assert sender.sent_bytes == 2 * LIMIT
        ended.set()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    here = there = None
    if certificate is not None:
        here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        here.load_cert_chain(certificate)
        there = ssl.create_default_context(cafile=certificate)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=here) as server:
        data = await asyncio.to_thread(_read_all, server.sockets[0].getsockname(), there)
        await ended.wait()
        return data, turns


def _read_all(address: tuple[str, int], context: ssl.SSLContext | None) -> bytes:
    client = socket.create_connection(address, timeout=30)
    with client if context is None else context.wrap_socket(client, server_hostname="localhost") as reading:
        parts = list[bytes]()
        while part := reading.recv(1 << 20):
            parts.append(part)
        return b"".join(parts)


def _certificate(folder: Path) -> str:
    """A self-signed certificate for localhost, with its key, in one file."""
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
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "both.pem"
    path.write_bytes(private + made.public_bytes(pem))
    return str(path)


def test_a_kafka_client_reads_a_nodes_segments_by_sendfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_bytes = list[int]()
    sendfile = os.sendfile

    def counted(out: int, file: int, position: int, count: int) -> int:
        sent_bytes.append(sendfile(out, file, position, count))
        return sent_bytes[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    (tmp_path / "tiered.toml").write_text('[local]\ndir = "data"\n')
    config = Config.load(str(tmp_path / "tiered.toml"), {}, {})
    with LogManager.open(config, now_ms=NOW_MS) as manager:
        manager.topics.create("t", 1, {"segment.bytes": "700000"}, now_ms=NOW_MS)
        values = [b"%d " % at * 400 for at in range(2000)]
        for at in range(0, len(values), 20):
            manager.append("t", [Record(None, each, NOW_MS) for each in values[at : at + 20]], 0, now_ms=NOW_MS)
        for segment in manager.partitions.find(TopicPartition("t", 0)).log.view.segments:
            segment.entry_before(segment.base_offset)  # as the first fetch from the segment does
        with serving_node(manager, "127.0.0.1", 0, now_ms=lambda: NOW_MS) as server:
            here = kafka.TopicPartition("t", 0)
            consumer = kafka.KafkaConsumer(bootstrap_servers="{}:{}".format(*server.address), check_crcs=True)
            try:
                consumer.assign([here])
                consumer.seek_to_beginning(here)
                found = list[bytes]()
                while len(found) < len(values):
                    found += [each.value for each in consumer.poll(timeout_ms=20_000).get(here, [])]
            finally:
                consumer.close()
    assert found == values
    assert sum(sent_bytes) > sum(map(len, values)) / 2
