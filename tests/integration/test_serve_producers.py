"""Independent Kafka clients produce to a node, and this project's reader sees their records once and in order."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest

from local import kernels
from local.format.compression import Codec
from local.format.record import StoredRecord
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.node.endpoint import serving_node
from tiered.tables.remote_tables import open_remote

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka
    import kafka.errors

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
COUNT = 300
LIMIT_S = 60
HEADERS = [("source", b"\x00\xff"), ("empty", b"")]
CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
Sent = list[tuple[bytes | None, bytes | None, int]]


def now_ms() -> int:
    return time.time_ns() // 10**6


@contextmanager
def node(home: Path, **topics: dict[str, str]) -> Iterator[tuple[LogManager, str]]:
    with LogManager.open(Config.load(None, {}, {}, local_dir=str(home)), now_ms=now_ms()) as manager:
        for name, settings in topics.items():
            manager.topics.create(name, 1, settings, now_ms=now_ms())
        with serving_node(manager, "127.0.0.1", 0, now_ms=now_ms) as server:
            yield manager, "{}:{}".format(*server.address)


def stored(manager: LogManager, topic: str = "t") -> list[StoredRecord]:
    return list(manager.reader().records(TopicPartition(topic, 0), 0))


def codecs(manager: LogManager, topic: str = "t") -> set[int]:
    data = manager.partitions.find(TopicPartition(topic, 0)).log.read(0, 64 << 20)
    return {int(each) & 7 for each in kernels.scan_batches(data).attributes}


def records() -> Sent:
    base_ms = now_ms() - COUNT
    return [(b"k%d" % at, None if at % 7 == 3 else b"value %d " % at * 9, base_ms + at) for at in range(COUNT)]


def by_kafka_python(address: str, sent: Sent, codec: str, acks: int, *, is_idempotent: bool) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        acks="all" if acks < 0 else acks,
        compression_type=None if codec == "none" else codec,
        linger_ms=2,
        enable_idempotence=is_idempotent,
        max_block_ms=LIMIT_S * 1000,
    )
    try:
        waiting = [
            producer.send("t", value, key, HEADERS, partition=0, timestamp_ms=timestamp)
            for key, value, timestamp in sent
        ]
        producer.flush(LIMIT_S)
        if acks != 0:
            assert [each.get(LIMIT_S).offset for each in waiting] == list(range(len(sent)))
    finally:
        producer.close()


def by_aiokafka(address: str, sent: Sent, codec: str, acks: int, *, is_idempotent: bool) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            acks="all" if acks < 0 else acks,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=is_idempotent,
        )
        await producer.start()
        try:
            waiting = [
                await producer.send("t", value, key, partition=0, timestamp_ms=timestamp, headers=HEADERS)
                for key, value, timestamp in sent
            ]
            found = await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_S)
            if acks != 0:
                assert [each.offset for each in found] == list(range(len(sent)))
        finally:
            await producer.stop()

    asyncio.run(produce())


def by_librdkafka(address: str, sent: Sent, codec: str, acks: int, *, is_idempotent: bool) -> None:
    offsets: list[int] = []

    def reported(error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "acks": acks,
            "compression.type": codec,
            "linger.ms": 2,
            "enable.idempotence": is_idempotent,
        }
    )
    for key, value, timestamp in sent:
        producer.produce("t", value, key, partition=0, timestamp=timestamp, headers=HEADERS, on_delivery=reported)
    assert producer.flush(LIMIT_S) == 0
    if acks != 0:
        assert offsets == list(range(len(sent)))


CLIENTS: Sequence[Callable[..., None]] = (by_kafka_python, by_aiokafka, by_librdkafka)


def names(each: object) -> str | None:
    return each.__name__ if callable(each) else str(each)


# kafka-python's snappy is a package of its own.
PAIRS = [(client, codec) for client in CLIENTS for codec in CODECS if (client, codec) != (by_kafka_python, "snappy")]


@pytest.mark.parametrize(("client", "codec"), PAIRS, ids=names)
def test_clients_produce_with_every_codec(client: Callable[..., None], codec: str, tmp_path: Path) -> None:
    sent = records()
    with node(tmp_path, t={}) as (manager, address):
        client(address, sent, codec, -1, is_idempotent=codec in ("none", "zstd"))
        assert codecs(manager) == {CODECS[codec]}
        found = stored(manager)
        assert [(each.key, each.value, each.timestamp_ms) for each in found] == sent
        assert {tuple(each.headers) for each in found} == {tuple(HEADERS)}
        log = manager.partitions.find(TopicPartition("t", 0)).log
        assert log.recovery_point == COUNT, "every acknowledged record is on the disk"


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("client", CLIENTS, ids=names)
def test_clients_produce_without_waiting_for_the_disk(client: Callable[..., None], acks: int, tmp_path: Path) -> None:
    sent = records()
    with node(tmp_path, t={}) as (manager, address):
        client(address, sent, "none", acks, is_idempotent=False)
        due = time.monotonic() + LIMIT_S
        while len(stored(manager)) < COUNT:
            assert time.monotonic() < due, "records without acknowledgement arrive soon"
            time.sleep(0.01)
        assert [(each.key, each.value, each.timestamp_ms) for each in stored(manager)] == sent


def test_the_log_sets_the_time_and_the_codec_that_the_topic_asks_for(tmp_path: Path) -> None:
    settings = {"message.timestamp.type": "LogAppendTime", "compression.type": "gzip"}
    with node(tmp_path, t=settings) as (manager, address):
        before_ms = now_ms()
        producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type="lz4")
        found = producer.send("t", b"v", b"k", timestamp_ms=5).get(LIMIT_S)
        producer.close()
        assert before_ms <= found.timestamp <= now_ms()
        assert stored(manager)[0].timestamp_ms == found.timestamp
        assert codecs(manager) == {Codec.GZIP}


def test_refused_records_are_errors_of_the_client(tmp_path: Path) -> None:
    with node(tmp_path, t={"cleanup.policy": "compact", "max.message.bytes": "1000"}) as (manager, address):
        producer = kafka.KafkaProducer(bootstrap_servers=address, retries=0)
        try:
            with pytest.raises(kafka.errors.InvalidRecordError):
                producer.send("t", b"no key").get(LIMIT_S)
            with pytest.raises(kafka.errors.MessageSizeTooLargeError):
                producer.send("t", bytes(2000), b"k").get(LIMIT_S)
            assert producer.send("t", b"v", b"k").get(LIMIT_S).offset == 0
        finally:
            producer.close()
        assert [each.value for each in stored(manager)] == [b"v"]


def test_a_client_waits_until_the_bucket_holds_its_records(tmp_path: Path) -> None:
    settings = {
        "remote.storage.enable": "true",
        "append.acks": "remote",
        "remote.copy.lag.ms": "1h",
        "local.retention.ms": "-1",
    }
    (tmp_path / "bucket").mkdir()
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n')
    config = Config.load(str(tmp_path / "tiered.toml"), {}, {})
    sent = records()
    with LogManager.open(config, now_ms=now_ms()) as manager:
        manager.topics.create("t", 1, {**settings, "retention.ms": "-1"}, now_ms=now_ms())
        with serving_node(manager, "127.0.0.1", 0, now_ms=now_ms) as server:
            by_aiokafka("{}:{}".format(*server.address), sent, "zstd", -1, is_idempotent=True)
        with open_remote(f"file://{tmp_path}/bucket") as bucket:
            found = [(each.key, each.value) for each in bucket.reader().records(TopicPartition("t", 0), 0)]
    assert found == [each[:2] for each in sent]
