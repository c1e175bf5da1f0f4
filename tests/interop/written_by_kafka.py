"""Directories written by a real broker, with their content according to its clients and its dump tool.

1. Produce records of every kind.
2. Kill the broker (kill -9), and copy the directory (`crashed`).
3. Start it again on the original, let it recover, read everything, and stop it (`clean`).

The internal topics are included: the compacted log of the transaction coordinator, and the metadata log with control
records of the controller.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import kafka_clients as clients
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_clients import Step
from kafka_dump import Dumped, dump

from local.format.record import Record, StoredRecord

# One hour ago, because brokers remove producers without a batch for days.
T0 = time.time_ns() // 1_000_000 - 3_600_000
DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_SEGMENTS = {"internal.segment.bytes": "12000", "index.interval.bytes": "700"}
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000000000000"}

# Codecs as written by the broker's libraries: it recompresses batches of another codec.
CODECS: dict[str, Mapping[str, str]] = {
    "none": {"compression.type": "uncompressed"},
    "gzip": {"compression.type": "gzip"},
    "gzip-9": {"compression.type": "gzip", "compression.gzip.level": "9"},
    "snappy": {"compression.type": "snappy"},
    "lz4": {"compression.type": "lz4"},
    "lz4-17": {"compression.type": "lz4", "compression.lz4.level": "17"},
    "zstd": {"compression.type": "zstd"},
    "zstd-19": {"compression.type": "zstd", "compression.zstd.level": "19"},
}
TOPICS: dict[str, Mapping[str, str]] = {
    **{f"codec-{name}": {**_SEGMENTS, **settings} for name, settings in CODECS.items()},
    "from-clients": _SEGMENTS,
    "append-time": {**_SEGMENTS, "message.timestamp.type": "LogAppendTime"},
    "transactions": {**_SEGMENTS, "segment.ms": "1000000000000"},
    "compacted": {**_SEGMENTS, **_COMPACT, "delete.retention.ms": "0"},
    "tombstones": {**_SEGMENTS, **_COMPACT},
    "deleted": _SEGMENTS,
    "console": {},
    "performance": {},
    "empty": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A copy of a log directory, and its content according to the broker's readers, by topic."""

    root: Path
    records: dict[str, list[StoredRecord]]
    committed: dict[str, list[StoredRecord]]
    bounds: dict[str, tuple[int, int]]
    stable: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenByKafka:
    """`crashed`: the state after the kill. `clean`: after a restart and a clean stop, dumped by Kafka."""

    crashed: Written
    clean: Written
    dumps: dict[Path, Dumped]


def sample_records(count: int, *, keyed: bool = False, start: int = 0) -> list[Record]:
    """Records with headers, nulls, empty values, timestamps out of order, compressible and incompressible values."""
    draw = random.Random(start)
    made = []
    for at in range(start, start + count):
        key = b"key-%d" % (at % 17) if keyed or at % 5 else None
        values = [b"", b"value %d " % at * 30, draw.randbytes(120).hex().encode(), "grüße".encode()]
        # aiokafka sends no record without key and value
        value = draw.choice(values if key is None else [None, *values])
        headers = (("trace", b"%d" % at), ("trace", None), ("ä", b"")) if at % 4 == 0 else ()
        made.append(Record(key, value, T0 + at * 10 - (500 if at % 7 == 0 else 0), headers))
    return made


def write(kafka: Kafka, home: Path) -> WrittenByKafka:
    """Run the steps of the module docstring, which takes about ten seconds."""
    broker = KafkaBroker(kafka, home)
    broker.format()
    broker.start()
    try:
        clients.create_topics(broker.address, TOPICS)
        _produce_all(broker)
        _wait_for_cleaner(broker.log_dirs[0])
        before = _look(broker, home / "crashed")
        broker.kill()
        shutil.copytree(broker.log_dirs[0], before.root)
        broker.start()
        clients.wait_for_leaders(broker.address, TOPICS)
        clients.delete_records(broker.address, {"deleted": 150})
        after = _look(broker, broker.log_dirs[0])
    finally:
        broker.stop()
    files = sorted(path for path in after.root.glob("*/*") if path.suffix in DUMPED)
    return WrittenByKafka(crashed=before, clean=after, dumps=dump(broker, files))


def _look(broker: KafkaBroker, root: Path) -> Written:
    topics, address = list(TOPICS), broker.address
    stable = clients.bounds(address, topics, committed=True)
    return Written(
        root=root,
        records=clients.read(address, topics),
        committed=clients.read(address, topics, committed=True),
        bounds=clients.bounds(address, topics),
        stable={topic: end for topic, (_, end) in stable.items()},
    )


def _produce_all(broker: KafkaBroker) -> None:
    address = broker.address
    records = sample_records(300)
    for codec in CODECS:
        clients.produce(address, f"codec-{codec}", records, enable_idempotence=True, max_batch_size=3000)
    for at, codec in enumerate((None, "gzip", "snappy", "lz4", "zstd")):
        part = records[at * 60 : at * 60 + 60]
        clients.produce(address, "from-clients", part, compression_type=codec, enable_idempotence=bool(at % 2))
    clients.produce(address, "append-time", records, max_batch_size=3000)
    clients.produce(address, "deleted", records, max_batch_size=3000)
    clients.transactions(address, _interleaved("transactions"), max_batch_size=2000)
    for topic in ("compacted", "tombstones"):
        keyed = sample_records(300, keyed=True)
        clients.produce(address, topic, keyed, enable_idempotence=True, max_batch_size=3000)
        clients.transactions(address, _interleaved(topic, keyed=True)[:-2], max_batch_size=2000)
        clients.produce(address, topic, keyed, max_batch_size=3000)
    _produce_with_java(broker)


def _interleaved(topic: str, *, keyed: bool = False) -> list[Step]:
    """Transactions of three producers: committed, aborted and overlapping. The last one stays open."""
    steps = []
    for turn in range(4):
        parts = [sample_records(20, keyed=keyed, start=1000 + turn * 60 + at * 20) for at in range(3)]
        a, b = f"{topic}-a", f"{topic}-b"
        steps += [Step(a, "begin"), Step(b, "begin")]
        steps += [Step(a, "send", topic, parts[0]), Step(b, "send", topic, parts[1]), Step(a, "send", topic, parts[2])]
        steps += [Step(b, "abort" if turn % 2 else "commit"), Step(a, "commit" if turn == 3 else "abort")]
    open_one = f"{topic}-open"
    return [*steps, Step(open_one, "begin"), Step(open_one, "send", topic, sample_records(5, keyed=keyed, start=9000))]


def _produce_with_java(broker: KafkaBroker) -> None:
    """Kafka's Java producer: idempotent by default, and transactional."""
    where = ["--bootstrap-server", broker.address, "--topic", "console", "--compression-codec", "zstd"]
    reading = ["parse.key=true", "parse.headers=true", "null.marker=NULL", "key.separator=\t"]
    lines = "".join(f"h:{at},i:NULL\t{'NULL' if at % 3 == 0 else f'key {at}'}\tvalue {at}\n" for at in range(100))
    properties = [word for each in reading for word in ("--property", each)]
    broker.tool("org.apache.kafka.tools.ConsoleProducer", *where, *properties, stdin=lines.encode())
    client = [f"bootstrap.servers={broker.address}", "compression.type=lz4", "batch.size=2000"]
    performance = ["--topic", "performance", "--num-records", "400", "--record-size", "60", "--throughput", "2000"]
    transactional = ["--transactional-id", "performance", "--transaction-duration-ms", "20"]
    broker.tool("org.apache.kafka.tools.ProducerPerformance", *performance, *transactional, "--producer-props", *client)


def _wait_for_cleaner(root: Path) -> None:
    """Wait until the cleaner has cleaned every closed segment of both compacted topics."""
    clients.wait_until(lambda: all(_is_clean(root, topic) for topic in ("compacted", "tombstones")), "a cleaned log")


def _is_clean(root: Path, topic: str) -> bool:
    checkpoint = root / "cleaner-offset-checkpoint"
    rows: Sequence[list[str]] = [line.split() for line in checkpoint.read_text().splitlines()[2:]]
    offset = next((int(row[2]) for row in rows if row[0] == topic), -1)
    return offset >= max(int(path.stem) for path in (root / f"{topic}-0").glob("*.log"))
