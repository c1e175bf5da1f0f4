"""Clients by franz-go (Go) and rskafka (Rust) read both tiers of a node and its bucket, and write to the node."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from manager_world import NOW
from witness_node import Node

from local import kernels
from local.format.batch_header import CODEC_BITS
from local.format.compression import Codec
from local.format.record import Record, StoredRecord
from local.names import TopicPartition
from local.records.isolation import Isolation

pytestmark = pytest.mark.kafka  # the node is shared with the clients in Java
CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED
PLACES = ("node", "bucket")
Seen = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def run(program: Path, *words: object, stdin: bytes = b"") -> list[str]:
    done = subprocess.run([str(program), *map(str, words)], input=stdin, capture_output=True, timeout=150)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode().split("\n")[:-1]


def address_of(node: Node, place: str) -> str:
    return node.address if place == "node" else node.bucket_address


def records_of(node: Node, place: str, topic: str, partition: int, isolation: Isolation) -> list[StoredRecord]:
    return (node.records if place == "node" else node.in_bucket)(topic, partition, isolation)


def codecs(node: Node, topic: str) -> set[int]:
    log = node.manager.partitions.find(TopicPartition(topic, 0)).log
    return {int(each) & CODEC_BITS for each in kernels.scan_batches(log.read(0, 1 << 20)).attributes}


# --- franz-go -------------------------------------------------------------------------------------------------------


def by_go(lines: Iterable[str]) -> list[Seen]:
    found = [json.loads(line) for line in lines]
    return [
        (
            *(each["partition"], each["offset"], each["ms"], decoded(each["key"]), decoded(each["value"])),
            tuple((part["key"], decoded(part["value"])) for part in each["headers"]),
        )
        for each in found
    ]


def decoded(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def seen(partition: int, records: Sequence[StoredRecord]) -> list[Seen]:
    return [(partition, each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in records]


def line(record: Record) -> bytes:
    def text(data: bytes | None) -> str | None:
        return None if data is None else b64encode(data).decode()

    headers: list[Any] = [{"key": name, "value": text(value)} for name, value in record.headers]
    fields = {"key": text(record.key), "value": text(record.value), "ms": record.timestamp_ms, "headers": headers}
    return json.dumps(fields).encode() + b"\n"


@pytest.mark.go
@pytest.mark.deep("a client in Go, built once")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
def test_franz_go_sees_every_record(franz_go: Path, node: Node, place: str, isolation: Isolation) -> None:
    for topic, partitions in {"plain": 2, "packed": 1, "newest": 1, "banking": 1}.items():
        expected = [seen(each, records_of(node, place, topic, each, isolation)) for each in range(partitions)]
        count = sum(map(len, expected))
        found = by_go(run(franz_go, "consume", address_of(node, place), topic, count, isolation.value))
        assert [[each for each in found if each[0] == number] for number in range(partitions)] == expected, topic


@pytest.mark.go
@pytest.mark.deep("a client in Go, built once")
@pytest.mark.parametrize("codec", CODECS)
def test_franz_go_produces_with_each_codec(franz_go: Path, node: Node, codec: str) -> None:
    topic = f"go-{codec}"
    node.create(topic)
    sent = [
        Record(
            b"k%d" % at if at % 5 else None,
            b"value %d " % at * 20 if at % 7 else None,
            NOW + at,
            (("name", b"\x00\xff"), ("empty", b"")) if at % 3 else (),
        )
        for at in range(300)
    ]
    found = by_go(run(franz_go, "produce", node.address, topic, codec, stdin=b"".join(map(line, sent))))
    stored = node.records(topic)
    assert [(each.key, each.value, each.timestamp_ms, each.headers) for each in stored] == [
        (each.key, each.value, each.timestamp_ms, each.headers) for each in sent
    ]
    assert found == seen(0, stored)
    assert codecs(node, topic) == {CODECS[codec]}


@pytest.mark.go
@pytest.mark.deep("a client in Go, built once")
def test_members_by_franz_go_continue_at_the_committed_offsets(franz_go: Path, node: Node) -> None:
    expected = [row for number in (0, 1) for row in seen(number, node.records("plain", number))]
    first = by_go(run(franz_go, "group", node.address, "plain", 200, "gophers"))
    second = by_go(run(franz_go, "group", node.address, "plain", len(expected) - 200, "gophers"))
    assert len(first) == 200
    assert sorted(first + second, key=lambda row: row[:2]) == expected


@pytest.mark.go
@pytest.mark.deep("a client in Go, built once")
def test_franz_go_copies_records_once_in_transactions(franz_go: Path, node: Node) -> None:
    node.create("go-copied", 2)
    expected = [[(each.key, each.value) for each in node.records("plain", number)] for number in (0, 1)]
    count = sum(map(len, expected))
    run(franz_go, "transform", node.address, "plain", count, "copiers", "go-copied")
    copied = [node.records("go-copied", number, COMMITTED) for number in (0, 1)]
    assert [[(each.key, each.value) for each in records] for records in copied] == expected


# --- rskafka --------------------------------------------------------------------------------------------------------


def by_rust(records: Sequence[StoredRecord]) -> list[str]:
    """The lines that the client prints: rskafka sorts headers by name."""
    found = []
    for each in records:
        texts = ("-" if data is None else data.hex() for data in (each.key, each.value))
        headers = [part for name, value in sorted(each.headers) for part in (name, (value or b"").hex())]
        found.append("\t".join((str(each.offset), str(each.timestamp_ms), *texts, *headers)))
    return found


@pytest.mark.rust
@pytest.mark.deep("a client in Rust, built once")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("topic", ["simple", "simple-newest"])
def test_rskafka_sees_every_record(rskafka: Path, node: Node, place: str, topic: str) -> None:
    """The topics have no transactions and no null values of headers.

    rskafka 0.6 cannot read either: it takes the length of a control record for the record's version.
    """
    expected = by_rust(records_of(node, place, topic, 0, UNCOMMITTED))
    assert run(rskafka, "consume", address_of(node, place), topic, 0, len(expected)) == expected
    assert expected


@pytest.mark.rust
@pytest.mark.deep("a client in Rust, built once")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_rskafka_creates_a_topic_and_produces(rskafka: Path, node: Node, codec: str) -> None:
    topic = f"rust-{codec}"
    assert run(rskafka, "produce", node.address, topic, 200, codec) == by_rust(node.records(topic))
    assert len(node.records(topic)) == 200
    assert codecs(node, topic) == {CODECS[codec]}
