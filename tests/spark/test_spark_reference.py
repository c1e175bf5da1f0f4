"""Spark reads equal plain Python reads: generated logs of every kind, and the flights from New York."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from local.format.record import Record
from local.log.producer_state import Producer
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.gc.pins import list_pins
from remote.manifest import commit_protocol
from remote.manifest.catalog import list_partitions
from remote.manifest.page_out import PageRule
from remote.store.open_store import open_store
from tiered.config.config import Config
from tiered.jobs.rewriting import plan_merge, plan_recode, run_rewrite
from tiered.manager.manager import LogManager
from tiered.spark import read_arrow
from tiered.spark.source.pinned_snapshots import pinned
from tiered.tables.remote_tables import open_remote

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
FOREVER = "5000d"  # pins use the wall clock, and the managers of this module live in 2023
SMALL = {
    "remote.storage.enable": "true",
    "segment.bytes": "3000",
    "index.interval.bytes": "300",
    "append.batch.bytes": "500",
    "min.cleanable.dirty.ratio": "0",
    "local.retention.ms": "1",
    "retention.ms": "-1",
}
SMALL_PAGES = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)


@dataclass
class Bucket:
    """A bucket written by a manager, and the appended (key, value, timestamp) by partition, from offset 0."""

    url: str
    key_ring: str | None
    manager: LogManager
    appended: dict[TopicPartition, list] = field(default_factory=dict)

    @property
    def options(self):
        return {"keyRing": self.key_ring, "pin": FOREVER} if self.key_ring else {"pin": FOREVER}

    def append(self, topic, records, partition=0):
        self.manager.append(topic, records, partition, now_ms=NOW)
        name = TopicPartition(topic, partition)
        self.appended.setdefault(name, []).extend((each.key, each.value, each.timestamp_ms) for each in records)

    def settle(self, now_ms=NOW):
        for topic in self.manager.topics.all():
            self.manager.partitions.roll(topic.name, now_ms=now_ms)
        while self.manager.tick(now_ms):
            pass
        assert self.manager.problems == {}

    def told(self, topic, **choices):
        """The records of a topic from the plain reader."""
        found = []
        with open_remote(self.url, key_ring=self.key_ring) as log:
            reader = log.reader(**choices)
            for name in log.partitions(topic):
                start, end = reader.offsets(name)
                for each in reader.records(name, start, end) if start < end else ():
                    headers = tuple((key, value) for key, value in each.headers) or None
                    facts = (each.key, each.value, each.timestamp_ms, int(each.timestamp_type), headers)
                    found.append((topic, name.partition, each.offset, *facts))
        return found


def open_bucket(home: Path, **settings) -> Bucket:
    home.mkdir()
    (home / "bucket").mkdir()
    (home / "keys").write_text(f"one {base64.b64encode(bytes(range(32))).decode()}\n")
    (home / "keys").chmod(0o600)
    defaults = "".join(f'"{name}" = "{value}"\n' for name, value in {**SMALL, **settings}.items())
    (home / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{home}/bucket"\nkey_ring = "keys"\n[defaults]\n{defaults}'
    )
    manager = LogManager.open(Config.load(str(home / "tiered.toml")), now_ms=NOW)
    return Bucket(f"file://{home}/bucket", str(home / "keys"), manager)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Topics of every kind, with entries in manifest pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_protocol, "PAGE_RULE", SMALL_PAGES)
        bucket = open_bucket(tmp_path_factory.mktemp("everything") / "home")
        source = random.Random(5)
        for topic, properties in {
            "plain": {},
            "zstd": {"remote.compression": "zstd"},
            "sealed": {"remote.compression": "zstd", "remote.encryption.key.id": "one"},
        }.items():
            bucket.manager.topics.create(topic, 3, properties, now_ms=NOW)
            for partition in (0, 1):  # the third partition stays empty
                for _ in range(12):
                    bucket.append(topic, drawn(source, 30), partition)
        fill_others(bucket, source)
        bucket.settle()
        bucket.manager.maintenance.delete_records({TopicPartition("zstd", 1): 101}, now_ms=NOW)
        bucket.settle()
        manifests = [held.manifest() for held in bucket.manager.partitions.all()]
        assert sum(len(manifest.pages) for manifest in manifests if manifest is not None) > 10
        yield bucket
        bucket.manager.close()


def fill_others(bucket, source):
    bucket.manager.topics.create("compacted", 1, {"cleanup.policy": "compact"}, now_ms=NOW)
    for _ in range(20):
        bucket.append("compacted", [each for each in drawn(source, 30) if each.key is not None])
    bucket.manager.topics.create("single", 1, now_ms=NOW)  # one record in each segment
    for record in drawn(source, 12):
        bucket.append("single", [record])
        bucket.manager.partitions.roll("single", now_ms=NOW)
    bucket.manager.topics.create("nothing", 2, now_ms=NOW)
    bucket.manager.topics.create("transactions", 1, now_ms=NOW)
    log = bucket.manager._source(TopicPartition("transactions", 0)).log
    for number in range(60):
        who = Producer(producer_id=number, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append([Record(b"k", b"of %d" % number, NOW)] * 5, now_ms=NOW, producer=who)
        if number:  # two transactions are open at a time
            log.append_marker(number - 1, 0, commit=number % 3 != 0, coordinator_epoch=0, now_ms=NOW)
    log.append_marker(59, 0, commit=True, coordinator_epoch=0, now_ms=NOW)


def drawn(source, count):
    """Random records of a few keys. Some have no key, no value, headers, or a timestamp out of order."""
    records = []
    for at in range(count):
        key = None if source.random() < 0.1 else b"key-%d" % source.randrange(40)
        value = None if source.random() < 0.1 else source.randbytes(source.randrange(60))
        headers = (("kind", b"\x00\xff"), ("żaden", None)) if source.random() < 0.2 else ()
        records.append(Record(key, value, NOW + at + source.randrange(-500, 500), headers))
    return records


def entries_of(frame):
    """The rows in the form of `Bucket.told`."""
    found = []
    for row in frame.selectExpr("*", "unix_millis(timestamp) as ms").collect():
        headers = row["headers"] and tuple((each["key"], _bytes(each["value"])) for each in row["headers"])
        facts = (_bytes(row["key"]), _bytes(row["value"]), row["ms"], row["timestampType"], headers)
        found.append((row["topic"], row["partition"], row["offset"], *facts))
    return sorted(found, key=lambda row: row[:3])


def _bytes(value):
    return None if value is None else bytes(value)


TOPICS = ("compacted", "nothing", "plain", "sealed", "single", "transactions", "zstd")


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_every_kind_of_topic_is_read_like_by_the_plain_reader(spark, everything, level):
    isolation = Isolation[level.upper()]
    want = sorted((row for topic in TOPICS for row in everything.told(topic, isolation=isolation)), key=lambda r: r[:3])
    options = {"subscribePattern": ".*", "kafka.isolation.level": level, "splitBytes": "20KiB", **everything.options}
    source = spark.read.format("tiered").options(includeHeaders="true", **options).load(everything.url)
    assert entries_of(source) == want
    fast = read_arrow(spark, everything.url, columns=source.columns, **options)
    assert entries_of(fast) == want
    for topic, partition, offset, key, value, ms, *_ in want:
        sent = everything.appended.get(TopicPartition(topic, partition))
        assert sent is None or sent[offset] == (key, value, ms)
    counts = {topic: sum(row[0] == topic for row in want) for topic in TOPICS}
    assert counts["plain"] == counts["sealed"] == 720
    assert (counts["single"], counts["nothing"]) == (12, 0)
    assert 619 <= counts["zstd"] < 720
    assert 0 < counts["compacted"] < 540
    assert counts["transactions"] == (300 if level == "read_uncommitted" else 300 - 19 * 5)


def test_ranges_by_offset_and_timestamp_equal_those_of_the_plain_reader(spark, everything):
    source = random.Random(7)
    name = TopicPartition("plain", 0)
    everything_told = [row for row in everything.told("plain") if row[1] == 0]
    with open_remote(everything.url) as log:
        for _ in range(2):
            start, end = sorted((source.randrange(361), source.randrange(361)))
            since = NOW + source.randrange(-400, 400)
            options = {"assign": '{"plain":[0]}', "splitBytes": "8KiB", **everything.options}
            offsets = {"startingOffsets": _json(start), "endingOffsets": _json(end)}
            frame = spark.read.format("tiered").options(includeHeaders="true", **options, **offsets)
            assert entries_of(frame.load(everything.url)) == everything_told[start:end]
            first = log.reader().offset_for_timestamp(name, since)
            later = spark.read.format("tiered").options(includeHeaders="true", startingTimestamp=str(since), **options)
            assert entries_of(later.load(everything.url)) == everything_told[first:]


def _json(offset):
    return json.dumps({"plain": {"0": offset}})


def test_offsets_deleted_during_a_job_are_read_from_the_pinned_manifest(spark, tmp_path):
    grace = {"remote.log.delete.grace.ms": str(HOUR), "retention.ms": str(2 * DAY)}
    bucket = open_bucket(tmp_path / "home", **grace)
    bucket.manager.topics.create("orders", 1, now_ms=NOW)
    bucket.append("orders", drawn(random.Random(3), 200))
    bucket.settle()
    source = spark.read.format("tiered").options(subscribe="orders", splitBytes="4KiB", **bucket.options)
    frame = source.load(bucket.url).select("offset")
    assert frame.count() == 200
    with pinned(bucket.url, subscribe="orders", **bucket.options) as manifests:
        for now_ms in (NOW + 3 * DAY, NOW + 3 * DAY + 2 * HOUR):
            bucket.settle(now_ms)
        assert source.load(bucket.url).count() == 0, "a new read must find no records"
        assert sorted(row["offset"] for row in frame.collect()) == list(range(200))
        assert source.options(**manifests.options).load(bucket.url).count() == 200
    (held,) = bucket.manager.partitions.all()
    store = open_store(bucket.url)
    for pin in list_pins(store, held.prefix):
        store.delete([held.prefix + pin.key])
    bucket.settle(NOW + 4 * DAY)
    with pytest.raises(Exception, match="call load"):
        frame.collect()
    bucket.manager.close()


REWRITINGS = {
    "merge": lambda store, name: plan_merge(store, name, now_ms=NOW, target_bytes=20_000),
    "recode": lambda store, name: plan_recode(store, name, now_ms=NOW, codec="zstd"),
}


@pytest.mark.parametrize("kind", sorted(REWRITINGS))
def test_job_and_reader_see_every_record_once_during_a_rewrite(spark, tmp_path, kind):
    """A running manager deletes replaced objects during both reads. The job has a pin, the reader has none."""
    bucket = open_bucket(tmp_path / "home", **{"remote.log.delete.grace.ms": str(HOUR)})
    bucket.manager.topics.create("orders", 1, now_ms=NOW)
    bucket.append("orders", drawn(random.Random(3), 300))
    bucket.settle()
    everything = list(range(300))
    source = spark.read.format("tiered").options(subscribe="orders", splitBytes="4KiB", **bucket.options)
    planned = source.load(bucket.url).select("offset")
    assert planned.count() == 300
    (held,) = bucket.manager.partitions.all()
    store = open_store(bucket.url)
    replaced = {row.data_key for row in held.manifest().segments}
    with open_remote(bucket.url) as remote:
        records = remote.reader().records(held.name, 0, 300)
        read = [next(records).offset for _ in range(40)]
        (name,) = list_partitions(store)
        run_rewrite(store, REWRITINGS[kind](store, name), now_ms=lambda: NOW)
        half = [row["offset"] for row in planned.collect()]
        bucket.append("orders", drawn(random.Random(4), 1))  # this commit shows the manager the commit of the job
        bucket.settle()
        bucket.settle(NOW + 2 * HOUR)
        there = {info.key.removeprefix(held.prefix) for info in store.list(held.prefix)}
        assert there >= replaced, "the pin of the job must hold the objects of its manifest"
        assert sorted(half) == sorted(row["offset"] for row in planned.collect()) == everything
        for pin in list_pins(store, held.prefix):
            store.delete([held.prefix + pin.key])
        bucket.settle(NOW + 4 * HOUR)
        there = {info.key.removeprefix(held.prefix) for info in store.list(held.prefix)}
        assert len(replaced & there) < len(replaced), "the replaced objects must have been deleted during the read"
        assert read + [record.offset for record in records] == everything
    assert sorted(row["offset"] for row in source.load(bucket.url).select("offset").collect()) == [*everything, 300]
    bucket.manager.close()


@pytest.mark.deep("all flights of a year")
def test_flights_of_a_year_are_equal_in_spark(spark, tmp_path):
    from tiered.demo.main_job import load_flights, newest_by_key, sums

    flights = load_flights(20_000)
    bucket = open_bucket(
        tmp_path / "home", **{"segment.bytes": "1MiB", "append.batch.bytes": "16KiB", "remote.compression": "zstd"}
    )
    bucket.manager.topics.create("flights", 2, now_ms=NOW)
    for partition in (0, 1):
        bucket.append("flights", flights.events[partition::2], partition)
    bucket.settle()
    bucket.manager.close()
    options = {"subscribe": "flights", "splitBytes": "1MiB"}
    frame = spark.read.format("tiered").options(**options).load(bucket.url)
    for partition, found in sums(frame).items():
        sent = flights.events[partition::2]
        assert (found.records, found.first_offset, found.last_offset) == (len(sent), 0, len(sent) - 1)
        assert found.distance == sum(int(json.loads(each.value)["distance"]) for each in sent)
    newest = newest_by_key(frame.where("key is not null"))
    for partition in (0, 1):
        want = {each.key: at for at, each in enumerate(flights.events[partition::2]) if each.key is not None}
        assert {key: at for (of, key), (at, _) in newest.items() if of == partition} == want

    def counted(batches):
        import pyarrow as pa

        yield pa.record_batch({"records": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})

    per_task = read_arrow(
        spark, bucket.url, columns=["value"], function=counted, schema="records long", **options
    ).collect()
    assert sum(row["records"] for row in per_task) == 20_000
    assert len(per_task) > 2


@pytest.mark.deep("a cluster of two executors")
def test_cluster_of_two_executors_reads_the_same_records(everything):
    job = Path(__file__).with_name("cluster_job.py")
    done = subprocess.run(
        [sys.executable, str(job), everything.url, everything.key_ring],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["executors"] == 2
    want = {}
    for topic in TOPICS:
        for row in everything.told(topic):
            want.setdefault(topic, [0, 0])
            want[topic] = [want[topic][0] + 1, want[topic][1] + row[2]]
    assert found["source"] == found["arrow"] == want
