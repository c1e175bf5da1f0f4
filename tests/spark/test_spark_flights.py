"""Every job over real data, the flights from New York, compared with plain Python: the sent records, and a dictionary.

Reads are in test_spark_reference.py, the job of the tutorial in tests/integration.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from bucket_truth import assert_sound

from local.names import TopicPartition
from remote.manifest.catalog import list_partitions
from remote.store.open_store import open_store
from tiered.jobs.bucket_copying import plan_copy
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.orphan_deletion import GarbageList
from tiered.jobs.rewriting import plan_merge, plan_recode
from tiered.read.bucket_reader import RemoteLog
from tiered.spark import compact, copy, export, rewrite, scrub
from tiered.spark.jobs.runner import list_garbage

pytestmark = pytest.mark.spark

COUNT, PARTITIONS = 6_000, 2
SMALL = {"task_bytes": 200_000}


@pytest.fixture(scope="module")
def sent():
    from tiered.demo.main_job import load_flights

    return load_flights(COUNT)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("flights")


@pytest.fixture(scope="module")
def bucket(spark, sent, home):
    """Both topics written by an ingest. The partition of a record is its number modulo PARTITIONS."""
    (home / "bucket").mkdir()
    url = f"file://{home}/bucket"
    for topic, records, policy in (("flights", sent.events, "delete"), ("aircraft", sent.latest, "compact")):
        rows = [(at % PARTITIONS, each.key, each.value, each.timestamp_ms) for at, each in enumerate(records)]
        schema = {"partition": pa.int32(), "key": pa.binary(), "value": pa.binary(), "timestamp": pa.int64()}
        frame = spark.createDataFrame(
            pa.table(dict(zip(schema, zip(*rows, strict=True), strict=True)), pa.schema(schema))
        )
        parted = frame.repartition(PARTITIONS, "partition").sortWithinPartitions("partition", "timestamp")
        writer = parted.write.format("tiered").mode("append").option("offsets", "dense")
        writer = writer.options(topic=topic, createPartitions=PARTITIONS, jobId=topic)
        settings = {"cleanup.policy": policy, "segment.bytes": "100KiB", "append.batch.bytes": "8KiB"}
        writer.options(**settings).save(url)
    return Bucket(url=url)


def by_partition(records):
    """Multisets of (key, value, timestamp). An ingest orders a partition by timestamp, in whole hours."""
    return [sorted((each.key or b"", each.value, each.timestamp_ms) for each in records[at::2]) for at in range(2)]


def read(url, topic):
    store = open_store(url)
    log, found = RemoteLog(store), []
    for partition in range(PARTITIONS):
        name = TopicPartition(topic, partition)
        start, end = log.reader().offsets(name)
        found.append(list(log.reader().records(name, start, end)))
    assert_sound(store)
    store.close()
    return found


def facts(records):
    return [sorted((each.key or b"", each.value, each.timestamp_ms) for each in of) for of in records]


def newest(records):
    """The newest records by log order: the reference of a compaction."""
    return [{each.key: (each.offset, each.value) for each in of} for of in records]


def test_ingested_flights_equal_the_sent_records(bucket, sent):
    assert facts(read(bucket.url, "flights")) == by_partition(sent.events)
    assert facts(read(bucket.url, "aircraft")) == by_partition(sent.latest)


def test_exported_flights_equal_the_sent_records(spark, bucket, sent, home):
    (home / "lake").mkdir()
    result = export(spark, bucket.url, f"file://{home}/lake", subscribe="flights", splitBytes="300KiB")
    rows = [
        row
        for path in Path(home, "lake").rglob("*.parquet")
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()
    ]
    assert result.records == len(rows) == COUNT
    assert sorted(row["value"] for row in rows) == sorted(each.value for each in sent.events)
    miles = sum(int(json.loads(row["value"])["distance"]) for row in rows)
    assert miles == sum(int(json.loads(each.value)["distance"]) for each in sent.events)
    named = {str(path.parent.name) for path in Path(home, "lake").rglob("*.parquet")}
    hours = {each.timestamp_ms // 86_400_000 for each in sent.events}
    assert len(named) == len(hours)


@pytest.mark.deep("four jobs over a year of flights")
def test_copy_merge_recode_and_scrub_leave_the_flights_unchanged(spark, bucket, sent, home):
    (home / "copy").mkdir()
    target = Bucket(url=f"file://{home}/copy")
    before = {topic: read(bucket.url, topic) for topic in ("flights", "aircraft")}
    with bucket.opened() as source, target.opened() as to:
        plans = [plan_copy(source, to, name, now_ms=1) for name in list_partitions(source)]
    outcomes = copy(spark, bucket, target, plans, **SMALL)
    assert [(each.is_complete, each.differences) for each in outcomes] == [(True, ())] * 4
    with target.opened() as to:
        names = list_partitions(to)
        merges = [plan_merge(to, name, now_ms=1, target_bytes=400_000) for name in names]
    done = rewrite(spark, target, merges, **SMALL)
    assert sum(each.rows_after for each in done) < sum(each.rows_before for each in done)
    with target.opened() as to:
        recodes = [plan_recode(to, name, now_ms=1, codec="zstd") for name in names]
    done = rewrite(spark, target, recodes, **SMALL)
    assert sum(each.stored_after for each in done) < sum(each.stored_before for each in done) / 2
    for topic, records in before.items():
        assert read(target.url, topic) == records
    assert facts(before["flights"]) == by_partition(sent.events)
    assert scrub(spark, target.url, task_bytes=200_000).findings == []
    found = list_garbage(spark, target, names)
    assert isinstance(found, GarbageList)
    assert found.entries == []


def test_compaction_of_flights_leaves_the_last_one_of_each_aircraft(spark, bucket, sent, home):
    """Runs on a copy, so that the order of the tests does not matter."""
    (home / "compacted").mkdir()
    target = Bucket(url=f"file://{home}/compacted")
    with bucket.opened() as source, target.opened() as to:
        plans = [plan_copy(source, to, name, now_ms=1) for name in list_partitions(source) if name.topic == "aircraft"]
    copy(spark, bucket, target, plans)
    wanted = newest(read(target.url, "aircraft"))
    outcomes = compact(spark, target.url, ["aircraft"], group_bytes=200_000)
    assert newest(read(target.url, "aircraft")) == wanted
    assert sum(each.records_after for each in outcomes) == sum(map(len, wanted)) < len(sent.latest)
    assert sum(map(len, read(target.url, "aircraft"))) == sum(map(len, wanted))


@pytest.mark.deep("a stream with restarts over a year of flights")
def test_stream_of_flights_returns_each_flight_once_over_restarts(spark, bucket, sent, home):
    for limit in ("2500", "4000", "100000"):
        stream = spark.readStream.format("tiered").options(subscribe="flights", startingOffsets="earliest")
        query = (
            stream.option("maxOffsetsPerTrigger", limit)
            .load(bucket.url)
            .select("value")
            .writeStream.format("parquet")
            .option("path", f"{home}/stream")
            .option("checkpointLocation", f"{home}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    values = [bytes(row["value"]) for row in spark.read.parquet(f"{home}/stream").collect()]
    assert sorted(values) == sorted(each.value for each in sent.events)


def test_record_counts_of_the_segment_table_equal_the_sent_flights(spark, bucket, sent):
    frame = spark.read.format("tiered-segments").load(bucket.url).where("kind = 'log'")
    found = {
        row["topic"]: row["records"]
        for row in frame.groupBy("topic").agg({"record_count": "sum"}).toDF("topic", "records").collect()
    }
    assert found == {"flights": COUNT, "aircraft": len(sent.latest)}
