"""Directories written by this project and loaded by a real broker: its readings, and the records it appends.

1. The broker creates the topics and stops.
2. `LogDirectory` opens the broker's log directory and fills its partitions (`kept`), one kind of log for each topic.
3. Two copies are loaded by the broker. `clean` has this project's clean-shutdown marker, which Kafka trusts.
   `recovered` has no marker, recovery point and indexes, so that Kafka checks every batch and rebuilds every index.
4. In both copies a producer appends to every topic, and the broker stops.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import kafka_clients as clients
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_dump import DUMP_TOOL, Dumped, dump
from written_by_kafka import DUMPED, T0, sample_records

from local.cleaner.cleaner import clean
from local.format.compression import LEVELS, Codec
from local.format.record import Record, StoredRecord, TimestampType
from local.log import Log
from local.log.producer_state import Producer
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.isolation import Isolation
from local.settings import LogSettings
from local.storage import DiskStorage

NOW_MS = T0 + 1_000_000
APPENDED = [Record(b"by kafka %d" % at, b"after ours", NOW_MS + at, (("h", b"1"),)) for at in range(3)]
CONTINUED = [Record(b"continued %d" % at, b"by its producer", NOW_MS + at) for at in range(5)]
SETTINGS = LogSettings(segment_bytes=12_000, index_interval_bytes=700, batch_bytes=2_000)
IDEMPOTENT, TRANSACTIONAL = 900_000, 900_010  # producer ids that the broker does not assign
_READERS_STATE = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")


def _levels() -> dict[str, LogSettings]:
    """Every codec at its default level and at both ends of its range."""
    made = {"none": SETTINGS, "snappy": replace(SETTINGS, compression=Codec.SNAPPY)}
    for codec, (default, lowest, highest) in LEVELS.items():
        for level in (default, lowest, highest):
            made[f"{codec.name.lower()}{level}"] = replace(SETTINGS, compression=codec, compression_level=level)
    return made


Fill = Callable[[Log], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of log: the settings here, a function that fills it, and the settings of its topic at the broker."""

    fill: Fill
    settings: LogSettings = SETTINGS
    topic: Mapping[str, str] | None = None


def _append_samples(log: Log, *, keyed: bool = False, count: int = 300, start: int = 0) -> None:
    # A record without key and value is legal, though some clients refuse to send it.
    records = [*sample_records(count, keyed=keyed, start=start), *([] if keyed else [Record(None, None, T0)])]
    for at in range(0, len(records), 30):
        log.append(records[at : at + 30], now_ms=NOW_MS)


def _fill_mixed(log: Log) -> None:
    for at, codec in enumerate([*Codec] * 3):
        batch = bytearray(encode_batch(sample_records(20, start=at * 20), codec=codec))
        log.append_encoded([batch], now_ms=NOW_MS)


def _fill_compacted(log: Log) -> None:
    """A log cleaned in two passes: gaps, empty batches that preserve their range, merged segments, and a dirty end."""
    for start in (0, 300):
        _append_samples(log, keyed=True, start=start)
        log.roll(now_ms=NOW_MS)
        assert clean(log, clean_from=0, now_ms=NOW_MS) is not None
    _append_samples(log, keyed=True, count=30, start=600)


def _fill_and_raise_start(log: Log) -> None:
    _append_samples(log)
    log.raise_log_start(110)


def _fill_and_drop(log: Log) -> None:
    _append_samples(log)
    assert log.drop_before(200, now_ms=NOW_MS, delay_ms=0, raises_log_start=True)
    log.remove_deleted(NOW_MS)


def _fill_large(log: Log) -> None:
    log.append([Record(b"large", bytes(range(256)) * 4000, T0)], now_ms=NOW_MS)
    _append_samples(log, count=30)


def _fill_epochs(log: Log) -> None:
    _append_samples(log, count=60)
    log.begin_epoch(1)
    _append_samples(log, count=60, start=60)


def _fill_idempotent(log: Log) -> None:
    """Two producers with four batches of five records each."""
    for at in range(8):
        records = sample_records(5, start=at * 5)
        log.append(records, now_ms=NOW_MS, producer=idempotent(at % 2, at // 2 * 5))


def idempotent(which: int, base_sequence: int) -> Producer:
    return Producer(producer_id=IDEMPOTENT + which, producer_epoch=3, base_sequence=base_sequence)


def _fill_transactions(log: Log) -> None:
    """Three interleaved producers over several segments: committed, aborted, and one left open at the end."""
    sequences = dict.fromkeys(range(TRANSACTIONAL, TRANSACTIONAL + 3), 0)

    def send(producer_id: int, count: int, start: int) -> None:
        producer = Producer(
            producer_id=producer_id, producer_epoch=1, base_sequence=sequences[producer_id], is_transactional=True
        )
        log.append(sample_records(count, start=start), now_ms=NOW_MS, producer=producer)
        sequences[producer_id] += count

    one, two, three = sequences
    for turn in range(6):
        send(one, 10, turn * 40)
        send(two, 10, turn * 40 + 10)
        log.append(sample_records(3, start=turn * 40 + 20), now_ms=NOW_MS)
        send(one, 10, turn * 40 + 25)
        log.append_marker(two, 1, commit=turn % 2 == 0, coordinator_epoch=4, now_ms=NOW_MS)
        log.append_marker(one, 1, commit=turn % 3 == 0, coordinator_epoch=4, now_ms=NOW_MS)
    send(three, 10, 9_000)
    log.append(sample_records(3, start=9_100), now_ms=NOW_MS)


# Batches that the first producer sends to the broker: the next one, a repetition, one after a gap, one of an older
# epoch.
CLAIMS = {
    "next": idempotent(0, 20),
    "next again": idempotent(0, 20),
    "gap": idempotent(0, 99),
    "old epoch": replace(idempotent(0, 25), producer_epoch=2),
}


KINDS: dict[str, Kind] = {
    **{f"our-{name}": Kind(fill=_append_samples, settings=settings) for name, settings in _levels().items()},
    "our-mixed": Kind(fill=_fill_mixed),
    "our-append-time": Kind(
        fill=_append_samples,
        settings=replace(SETTINGS, timestamp_type=TimestampType.LOG_APPEND_TIME),
        topic={"message.timestamp.type": "LogAppendTime"},
    ),
    "our-compacted": Kind(
        fill=_fill_compacted,
        settings=replace(SETTINGS, is_compacted=True),
        topic={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"},
    ),
    "our-log-start": Kind(fill=_fill_and_raise_start),
    "our-dropped": Kind(fill=_fill_and_drop),
    "our-large": Kind(fill=_fill_large, settings=replace(SETTINGS, segment_bytes=2 << 20)),
    "our-epochs": Kind(fill=_fill_epochs),
    "our-idempotent": Kind(fill=_fill_idempotent),
    "our-transactions": Kind(fill=_fill_transactions),
    "our-one-batch": Kind(fill=partial(_append_samples, count=5)),
    "our-empty": Kind(fill=lambda log: None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The readings of each topic. `stable` is the last stable offset, `bounds` are log start and log end offset."""

    records: dict[str, list[StoredRecord]]
    committed: dict[str, list[StoredRecord]]
    bounds: dict[str, tuple[int, int]]
    stable: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One run of the broker on the directory: its readings before and after appends, and the resulting directory.

    `console` is the output of Kafka's console consumer. `warnings` are log lines of the broker. `answers` are its
    (error
    code, base offset) for batches of a producer that is known from the files only.
    """

    root: Path
    found: Seen
    after: Seen
    console: str
    answers: dict[str, tuple[int, int]]
    warnings: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedByKafka:
    """The readings of this project and of the broker.

    `kept`: readings of this project. `dumps`: the dump tool's output for the files in `root`, before any broker run.
    `index_checks`: the tool's comparison of the indexes with the logs.
    """

    root: Path
    kept: Seen
    dumps: dict[Path, Dumped]
    index_checks: str
    clean: Loaded
    recovered: Loaded


def load(kafka: Kafka, home: Path) -> LoadedByKafka:
    broker = KafkaBroker(kafka, home / "ours")
    broker.format()
    broker.start()
    try:
        topics = {name: {"index.interval.bytes": "700", **(kind.topic or {})} for name, kind in KINDS.items()}
        clients.create_topics(broker.address, topics)
    finally:
        broker.stop()
    kept = fill(broker.log_dirs[0])
    shutil.copytree(broker.home, home / "clean")
    shutil.copytree(broker.home, home / "recovered")
    forget(home / "recovered" / "data")
    files = sorted(path for path in broker.log_dirs[0].glob("our-*/*") if path.suffix in DUMPED)
    indexes = ",".join(str(path) for path in files if path.suffix in (".index", ".timeindex"))
    with ThreadPoolExecutor(2) as together:
        lives = list(together.map(partial(_life, kafka), (home / "clean", home / "recovered")))
    return LoadedByKafka(
        root=broker.log_dirs[0],
        kept=kept,
        dumps=dump(broker, files),
        index_checks=broker.tool(DUMP_TOOL, "--verify-index-only", "--files", indexes)
        + broker.tool(DUMP_TOOL, "--index-sanity-check", "--files", indexes),
        clean=lives[0],
        recovered=lives[1],
    )


def fill(root: Path) -> Seen:
    """Fill every partition of the broker's directory with this project's library, and close it cleanly."""
    directory = LogDirectory(DiskStorage(), str(root))
    assert directory.was_clean, "the broker must have stopped cleanly"
    logs = {}
    for name, kind in KINDS.items():
        logs[name] = directory.open_log(TopicPartition(name, 0), kind.settings, now_ms=NOW_MS)
        kind.fill(logs[name])
    seen = look(logs)
    directory.close()
    return seen


def look(logs: Mapping[str, Log]) -> Seen:
    """The readings of this project."""
    committed = Isolation.READ_COMMITTED
    return Seen(
        records={name: list(log.records(log.log_start_offset)) for name, log in logs.items()},
        committed={name: list(log.records(log.log_start_offset, isolation=committed)) for name, log in logs.items()},
        bounds={name: (log.log_start_offset, log.next_offset) for name, log in logs.items()},
        stable={name: log.last_stable_offset for name, log in logs.items()},
    )


def forget(root: Path) -> None:
    """Delete everything that a recovery can rebuild, so that Kafka reads every batch."""
    (root / ".kafka_cleanshutdown").unlink()
    (root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for pattern in _READERS_STATE:
        for path in root.glob(f"our-*/{pattern}"):
            path.unlink()


def _life(kafka: Kafka, home: Path) -> Loaded:
    broker = KafkaBroker(kafka, home)
    broker.log_path.unlink(missing_ok=True)
    broker.start()
    try:
        clients.wait_for_leaders(broker.address, KINDS)
        found = _ask(broker)
        console = console_consumer(broker, sum(map(len, found.committed.values())))
        warnings = broker.warnings()  # before it gets batches that it must refuse
        answers = {name: _send_as(broker, producer) for name, producer in CLAIMS.items()}
        for topic in KINDS:
            clients.produce(broker.address, topic, APPENDED)
        after = _ask(broker)
    finally:
        broker.stop()
    root = broker.log_dirs[0]
    return Loaded(root=root, found=found, after=after, console=console, answers=answers, warnings=warnings)


def _send_as(broker: KafkaBroker, producer: Producer) -> tuple[int, int]:
    fields = {name: getattr(producer, name) for name in ("producer_id", "producer_epoch", "base_sequence")}
    return clients.send_batch(broker.address, "our-idempotent", bytes(encode_batch(CONTINUED, **fields)))


def _ask(broker: KafkaBroker) -> Seen:
    topics, address = list(KINDS), broker.address
    stable = clients.bounds(address, topics, committed=True)
    return Seen(
        records=clients.read(address, topics),
        committed=clients.read(address, topics, committed=True),
        bounds=clients.bounds(address, topics),
        stable={topic: end for topic, (_, end) in stable.items()},
    )


def console_consumer(broker: KafkaBroker, count: int) -> str:
    """Every committed record of every topic, printed by Kafka's console consumer, one line for each record."""
    wanted = ("timestamp", "partition", "offset", "headers", "key", "value")
    formatted = [word for name in wanted for word in ("--property", f"print.{name}=true")]
    separators = {
        "key.separator": "<|>",
        "headers.separator": "<,>",
        "null.literal": "<null>",
        "line.separator": "<.>\n",
    }
    formatted += [word for name, text in separators.items() for word in ("--property", f"{name}={text}")]
    source = ["--bootstrap-server", broker.address, "--include", "our-.*", "--from-beginning"]
    limits = ["--isolation-level", "read_committed", "--max-messages", str(count), "--timeout-ms", "20000"]
    return broker.tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *source, *limits, *formatted)
