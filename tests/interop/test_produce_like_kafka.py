"""Produce requests, most of them bad, get the same response from a node as from a Kafka broker, field by field."""

from __future__ import annotations

import dataclasses
import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import pytest
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_clients import create_topics, wait_for_leaders

from local.format.batch_header import HEADER_BYTES, read_header, seal
from local.format.compression import Codec, compress
from local.format.crc32c import crc32c
from local.format.record import Record, TimestampType
from local.records.batch import encode_batch, encode_marker
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered.serve.node.endpoint import serving_node
from tiered.serve.protocol import Header, encode_request, read_response

pytestmark = pytest.mark.kafka
COORDINATOR_LOAD_IN_PROGRESS = 14  # the broker requests its first block of ids from the controller
NOW = time.time_ns() // 10**6
RECORDS = [Record(b"k%d" % at, b"v" * at, NOW + at) for at in (1, 5, 3)]
ONE = encode_batch(RECORDS)
ZSTD = encode_batch(RECORDS, codec=Codec.ZSTD)
MARKER = encode_marker(base_offset=0, is_commit=True, timestamp_ms=NOW, producer_id=1, producer_epoch=0)
LARGE = encode_batch([Record(b"k", bytes(1_200_000), NOW)])
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "timed": {"message.timestamp.type": "LogAppendTime"},
    "recent": {"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"},
    "small": {"max.message.bytes": "1000"},
    "short": {"segment.bytes": "1048576", "max.message.bytes": "5000000"},
    "gzipped": {"compression.type": "gzip", "max.message.bytes": "100000"},
    "unpacked": {"compression.type": "uncompressed", "max.message.bytes": "100000"},
    "producers": {},
}


def changed(data: bytes, section: bytes | None = None, **fields: int) -> bytes:
    header = read_header(data)
    assert header is not None
    return seal(header._replace(**fields), data[HEADER_BYTES:] if section is None else section)


def resealed(data: bytes) -> bytes:
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def by(sequence: int, *, epoch: int = 0, count: int = 1, producer_id: int = 77) -> bytes:
    records = [Record(b"k", b"v", NOW)] * count
    return encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


@dataclass(frozen=True)
class Case:
    topic: str
    batch: bytes | None
    version: int = 12
    acks: int = -1
    partition: int = 0
    transactional_id: str | None = None
    ours: Error | None = None  # where the node differs on purpose


OLD = [Record(b"a", b"", 1), Record(b"b", b"", NOW), Record(b"c", b"", NOW + 10**8)]
CLAIMED = encode_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW)
CASES = {
    "a sound batch": Case("plain", ONE),
    "acks 1": Case("plain", ONE, acks=1),
    "the oldest version": Case("plain", ONE, version=3),
    "acks 2": Case("plain", ONE, acks=2),
    "acks -2": Case("plain", ONE, acks=-2),
    "acks 2 for an unknown partition": Case("plain", ONE, acks=2, partition=9),
    "an unknown topic": Case("nope", ONE),
    "an unknown partition": Case("plain", ONE, partition=1),
    "a negative partition": Case("plain", ONE, partition=-1),
    "no batch": Case("plain", b""),
    "a cut batch": Case("plain", ONE[:-1]),
    "a cut header": Case("plain", ONE[:14]),
    "bytes after the batch": Case("plain", ONE + b"x" * 11),
    "a cut second batch": Case("plain", ONE + ONE[:30]),
    "two batches": Case("plain", ONE + ONE),
    "a size of 0": Case("plain", ONE[:8] + bytes(4) + ONE[12:]),
    "a size below a header": Case("plain", ONE[:8] + b"\0\0\0\x20" + ONE[12:]),
    "format 1": Case("plain", ONE[:16] + b"\1" + ONE[17:]),
    "format 3": Case("plain", ONE[:16] + b"\3" + ONE[17:]),
    "a wrong checksum": Case("plain", ONE[:-1] + b"?"),
    "a base offset": Case("plain", changed(ONE, base_offset=7)),
    "a leader epoch": Case("plain", changed(ONE, leader_epoch=50)),
    "a gap after the records": Case("plain", changed(ONE, last_offset_delta=3)),
    "no records": Case("plain", changed(ONE, b"", record_count=0, last_offset_delta=0)),
    "a negative last offset": Case("plain", changed(ONE, last_offset_delta=-1)),
    "a negative count": Case("plain", changed(ONE, record_count=-1)),
    "a count above the records": Case("plain", changed(ONE, record_count=4, last_offset_delta=3)),
    "a count below the records": Case("plain", changed(ONE, record_count=2, last_offset_delta=1)),
    "bytes after the records": Case("plain", changed(ONE, ONE[HEADER_BYTES:] + b"x")),
    "an invalid record": Case("plain", resealed(ONE[:HEADER_BYTES] + b"\x7f" + ONE[HEADER_BYTES + 1 :])),
    "a record with a size of 0": Case("plain", resealed(ONE[:HEADER_BYTES] + b"\0" + ONE[HEADER_BYTES + 1 :])),
    "a wrong largest time": Case("plain", changed(ONE, max_timestamp_ms=5)),
    "zstd in an old version": Case("plain", ZSTD, version=6),
    "zstd": Case("plain", ZSTD, version=7),
    "bytes that are not gzip": Case("plain", changed(ONE, attributes=1), ours=Error.INVALID_RECORD),
    "bytes that are not zstd": Case("plain", changed(ONE, attributes=4), ours=Error.INVALID_RECORD),
    "compressed bytes after the records": Case(
        "plain", changed(ONE, compress(Codec.ZSTD, ONE[HEADER_BYTES:] + b"x"), attributes=4)
    ),
    "a transaction without an id": Case("plain", MARKER),
    "a producer without a sequence": Case("plain", by(-1)),
    "no key in a compacted topic": Case(
        "compacted", encode_batch([Record(b"k", b"", NOW), Record(None, b"", NOW), Record(None, b"", NOW)])
    ),
    "five keys are missing": Case("compacted", encode_batch([Record(None, b"", NOW)] * 5, codec=Codec.LZ4)),
    "a compacted topic": Case("compacted", ONE),
    "times out of range": Case("recent", encode_batch(OLD)),
    "compressed times out of range": Case("recent", encode_batch(OLD, codec=Codec.GZIP)),
    "no time": Case("recent", encode_batch([Record(b"k", b"", -1)])),
    "a time before 1970": Case("recent", changed(encode_batch([Record(b"k", b"", 0)]), base_timestamp_ms=-2)),
    "log append time": Case("timed", ONE),
    "the client claims log append time": Case("timed", CLAIMED),
    "log append time in a topic with create time": Case("plain", CLAIMED),
    "a batch above the limit": Case("small", encode_batch([Record(b"k", bytes(1000), NOW)])),
    "a batch above a segment": Case("short", LARGE),
    "a compressed batch above a segment": Case(
        "short", encode_batch([Record(b"k", bytes(1_200_000), NOW)], codec=Codec.LZ4)
    ),
    "another codec": Case("gzipped", ZSTD),
    "no codec": Case("unpacked", ZSTD),
    "above the limit without its codec": Case(
        "unpacked", encode_batch([Record(b"k", bytes(200_000), NOW)], codec=Codec.ZSTD)
    ),
}
# One after the other in the topic `producers`.
STEPS = {
    "first": by(0),
    "second": by(1, count=3),
    "the second again": by(1, count=3),
    "third": by(4),
    "the first again": by(0),
    "another length": by(1, count=2),
    "a gap": by(9),
    "the last again": by(4),
    "a new epoch with a sequence": by(5, epoch=1),
    "a new epoch": by(0, epoch=1),
    "the old epoch": by(5),
    "the old epoch again": by(4),
    "an unknown producer with a sequence": by(500, producer_id=78),
    "it goes on": by(501, producer_id=78),
    "the end of the sequences": by(2**31 - 1, producer_id=80),
    "they begin again": by(0, producer_id=80),
    "six more": by(1, producer_id=80),
    "5": by(2, producer_id=80),
    "4": by(3, producer_id=80),
    "3": by(4, producer_id=80),
    "2": by(5, producer_id=80),
    "five ago": by(1, producer_id=80),
    "six ago": by(0, producer_id=80),
}


@dataclass(frozen=True)
class Pair:
    broker: str
    node: str


@pytest.fixture(scope="module")
def pair(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    broker = KafkaBroker(kafka, tmp_path_factory.mktemp("broker"))
    broker.format()
    broker.start()
    home = str(tmp_path_factory.mktemp("node"))
    try:
        create_topics(broker.address, TOPICS)
        wait_for_leaders(broker.address, TOPICS)
        with LogManager.open(Config.load(None, {}, {}, local_dir=home), now_ms=NOW) as manager:
            for name, settings in TOPICS.items():
                manager.topics.create(name, 1, settings, now_ms=NOW)
            with serving_node(manager, "127.0.0.1", 0, now_ms=lambda: time.time_ns() // 10**6) as server:
                yield Pair(broker.address, "{}:{}".format(*server.address))
    finally:
        broker.stop()


def exchange(address: str, key: Api, version: int, request: object) -> object:
    """The response; None if the server closes the connection."""
    header = Header(api_key=key, api_version=version, correlation_id=5, client_id="tester")
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as client:
        client.sendall(b"".join(map(bytes, encode_request(header, request))))  # type: ignore[arg-type]
        head = _exactly(client, 4)
        if head is None:
            return None
        data = _exactly(client, struct.unpack(">i", head)[0])
    assert data is not None
    return read_response(header, memoryview(data))


def _exactly(client: socket.socket, length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        piece = client.recv(length - len(data))
        if not piece:
            assert not data
            return None
        data += piece
    return data


def produced(address: str, case: Case) -> PartitionProduceResponse | None:
    data = PartitionProduceData(index=case.partition, records=None if case.batch is None else (memoryview(case.batch),))
    request = ProduceRequest(
        transactional_id=case.transactional_id,
        acks=case.acks,
        timeout_ms=30_000,
        topic_data=(TopicProduceData(name=case.topic, partition_data=(data,)),),
    )
    response = exchange(address, Api.PRODUCE, case.version, request)
    if response is None:
        return None
    assert isinstance(response, ProduceResponse)
    ((found,),) = [each.partition_responses for each in response.responses]
    return found


def comparable(found: PartitionProduceResponse | None) -> object:
    """The response without its offsets and with the clock's values replaced."""
    if found is None:
        return None
    time_ms = found.log_append_time
    fields = dataclasses.asdict(found) | {"log_append_time": "now" if time_ms > NOW - 60_000 else time_ms}
    fields["base_offset"] = min(found.base_offset, 0)
    fields["error_message"] = _plain(found.error_message)
    fields["record_errors"] = [
        (each.batch_index, _plain(each.batch_index_error_message)) for each in found.record_errors
    ]
    return fields


def _plain(text: str | None) -> str | None:
    """A message without clock values, and without Kafka's rendering of a record."""
    text = text and re.sub(r"\[\d+, \d+\]", "[range]", text)
    return text and re.sub(r"in message .*?\. Producer", "in message. Producer", text)


@pytest.mark.parametrize("name", CASES)
def test_a_produce_request_is_answered_as_kafka_answers_it(name: str, pair: Pair) -> None:
    case = CASES[name]
    theirs, ours = produced(pair.broker, case), produced(pair.node, case)
    if case.ours is not None:
        assert ours is not None
        assert theirs is None or theirs.error_code != case.ours, "a difference that no longer exists"
        assert ours.error_code is case.ours
        return
    assert comparable(ours) == comparable(theirs)


def test_the_sequences_of_producers_are_checked_as_kafka_checks_them(pair: Pair) -> None:
    found: dict[str, Sequence[object]] = {}
    for name, batch in STEPS.items():
        case = Case("producers", batch)
        theirs, ours = produced(pair.broker, case), produced(pair.node, case)
        assert theirs is not None
        assert ours is not None
        found[name] = [(each.error_code, each.base_offset, each.log_append_time) for each in (ours, theirs)]
    assert {name: ours for name, (ours, _) in found.items()} == {name: theirs for name, (_, theirs) in found.items()}


@pytest.mark.parametrize("acks", [0, 1])
def test_an_unknown_topic_id_is_answered_as_kafka_answers_it(acks: int, pair: Pair) -> None:
    data = PartitionProduceData(index=0, records=(memoryview(ONE),))
    topic = TopicProduceData(topic_id=UUID(int=12345), partition_data=(data,))
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(topic,))
    theirs, ours = (exchange(each, Api.PRODUCE, 13, request) for each in (pair.broker, pair.node))
    assert ours == theirs
    assert (ours is None) is (acks == 0)


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_answered_as_kafka_answers_them(version: int, pair: Pair) -> None:
    asked = [InitProducerIdRequest()]
    if version >= 3:
        asked += [InitProducerIdRequest(producer_id=5), InitProducerIdRequest(producer_id=5, producer_epoch=3)]
    for request in asked:
        theirs, ours = (exchange(each, Api.INIT_PRODUCER_ID, version, request) for each in (pair.broker, pair.node))
        while isinstance(theirs, InitProducerIdResponse) and theirs.error_code == COORDINATOR_LOAD_IN_PROGRESS:
            theirs = exchange(pair.broker, Api.INIT_PRODUCER_ID, version, request)
        assert isinstance(theirs, InitProducerIdResponse)
        assert isinstance(ours, InitProducerIdResponse)
        assert (ours.error_code, ours.producer_epoch) == (theirs.error_code, theirs.producer_epoch)
        assert (ours.producer_id < 0) is (theirs.producer_id < 0)
