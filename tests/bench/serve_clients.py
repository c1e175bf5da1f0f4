"""Raw Kafka clients for `bench_serve.py`: requests as bytes, responses counted. They cost the same for every server.

All batches of the topic have BATCH_RECORDS records and one size, so the next offset follows from the number of bytes.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BATCH_RECORDS = 16
PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
FETCH_VERSION, PRODUCE_VERSION = 11, 7
_WAIT_MS = 10_000
_CLIENT = b"\x00\x05bench"


class RawClient:
    """One connection."""

    def __init__(self, address: str, *, buffer_bytes: int = 64 << 20) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(buffer_bytes)
        self._view = memoryview(self._buffer)

    def close(self) -> None:
        self.socket.close()

    def versions(self) -> None:
        self._send(API_VERSIONS, 0, b"")
        self._receive()

    def fetch(self, topic: bytes, offset: int, *, partition_bytes: int, wait_ms: int = _WAIT_MS) -> memoryview:
        """The records of one response from partition 0. Raises AssertionError for an error code."""
        head = struct.pack(">iiiibiii", -1, wait_ms, 1, 50 << 20, 0, 0, -1, 1)
        partition = struct.pack(">iiiqqi", 1, 0, -1, offset, -1, partition_bytes)
        self._send(FETCH, FETCH_VERSION, head + _text(topic) + partition + struct.pack(">ih", 0, 0))
        response = self._receive()
        at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4  # up to the error code of the partition
        (error,) = struct.unpack_from(">h", response, at)
        assert error == 0, f"the fetch at offset {offset} has the error {error}"
        at += 2 + 8 + 8 + 8
        (aborted,) = struct.unpack_from(">i", response, at)
        at += 4 + 16 * max(aborted, 0) + 4
        (length,) = struct.unpack_from(">i", response, at)
        return response[at + 4 : at + 4 + length]

    def read_all(self, topic: bytes, start: int, end: int, batch_bytes: int, *, partition_bytes: int) -> int:
        """Read whole batches of ``[start, end)``, and return their bytes."""
        offset, size_bytes = start, 0
        while offset < end:
            whole = len(self.fetch(topic, offset, partition_bytes=partition_bytes)) // batch_bytes
            offset, size_bytes = offset + whole * BATCH_RECORDS, size_bytes + whole * batch_bytes
        return size_bytes

    def produce(self, topic: bytes, batch: bytes, acks: int = -1) -> None:
        self.send_produce(topic, batch, acks)
        self.receive_produce(topic)

    def send_produce(self, topic: bytes, batch: bytes, acks: int = -1) -> None:
        head = struct.pack(">hhii", -1, acks, 30_000, 1)
        self._send(PRODUCE, PRODUCE_VERSION, head + _text(topic) + struct.pack(">iii", 1, 0, len(batch)) + batch)

    def receive_produce(self, topic: bytes) -> None:
        (error,) = struct.unpack_from(">h", self._receive(), 4 + 4 + 2 + len(topic) + 4 + 4)
        assert error == 0, f"produce has the error {error}"

    def _send(self, api: int, version: int, body: bytes) -> None:
        self.socket.sendall(struct.pack(">ihhi", 8 + len(_CLIENT) + len(body), api, version, 7) + _CLIENT + body)

    def _receive(self) -> memoryview:
        self._fill(4)
        (length,) = struct.unpack_from(">i", self._buffer)
        self._fill(length)
        return self._view[:length]

    def _fill(self, length: int) -> None:
        at = 0
        while at < length:
            count = self.socket.recv_into(self._view[at:length])
            assert count, "the server closed the connection"
            at += count


def _text(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


@contextmanager
def connected(address: str) -> Iterator[RawClient]:
    client = RawClient(address)
    try:
        yield client
    finally:
        client.close()


def throughput(address: str, topic: bytes, batch: bytes, total_bytes: int, in_flight: int = 5) -> int:
    """Produce `total_bytes` with acks=all and as many requests in flight as Kafka's producer has; the bytes sent."""
    count = max(in_flight, total_bytes // len(batch))
    with connected(address) as client:
        for sent in range(count + in_flight):
            if sent >= in_flight:
                client.receive_produce(topic)
            if sent < count:
                client.send_produce(topic, batch)
    return count * len(batch)


def tail_latencies(address: str, topic: bytes, batch: bytes, start: int, *, count: int, pause_s: float) -> list[float]:
    """Seconds from the produce request to its record in a waiting consumer's hands, for `count` single batches."""
    sent: list[float] = []
    found: list[float] = []

    def consume() -> None:
        with connected(address) as client:
            offset = start
            while len(found) < count:
                whole = len(client.fetch(topic, offset, partition_bytes=1 << 20, wait_ms=500)) // len(batch)
                found.extend([time.perf_counter()] * whole)
                offset += whole * BATCH_RECORDS

    consumer = threading.Thread(target=consume)
    consumer.start()
    with connected(address) as producer:
        for _ in range(count):
            time.sleep(pause_s)
            sent.append(time.perf_counter())
            producer.produce(topic, batch)
    consumer.join()
    return [after - before for before, after in zip(sent, found, strict=True)]
