"""``tiered-segments`` queried with SQL, and records as Arrow batches before they become Spark rows."""

from __future__ import annotations

import json

import pytest
from bucket_samples import NOW_MS, batch_at

from local.errors import InvalidRequest
from remote.manifest.manifest_changes import expire_segments
from tiered.spark import read_arrow

pytestmark = pytest.mark.spark


def fill(bucket, topic="orders", partition=0, segments=4):
    for number in range(segments):
        bucket.add(topic, partition, [batch_at(number * 30 + at, 10) for at in (0, 10, 20)])


def test_segments_are_a_table_for_sql(spark, bucket):
    fill(bucket)
    fill(bucket, partition=1, segments=2)
    fill(bucket, "other", segments=1)
    _, log = bucket.log("orders", 0)
    gone = bucket.segments["orders", 0][0]
    log.commit(expire_segments([gone.ulid], now_ms=NOW_MS, log_start_offset=30), NOW_MS)
    reader = spark.read.format("tiered-segments").option("storeOptions", json.dumps(bucket.options))
    reader.load(bucket.url).createOrReplaceTempView("segments")
    found = spark.sql(
        """select topic, kind, count(*) as objects, sum(record_count) as records, sum(stored_bytes) as bytes,
        sum(dollars_per_month) as dollars from segments group by topic, kind order by topic, kind"""
    ).collect()
    assert [(row["topic"], row["kind"], row["objects"], row["records"]) for row in found] == [
        ("orders", "log", 5, 150),
        ("orders", "waiting", 2, None),
        ("other", "log", 1, 30),
    ]
    assert found[1]["bytes"] == gone.stored_bytes + gone.indexes_bytes
    assert all(row["dollars"] > 0 for row in found)
    some = reader.option("subscribe", "other").schema("topic string, base_offset bigint").load(bucket.url)
    assert [tuple(row) for row in some.collect()] == [("other", 0)]
    with pytest.raises(Exception, match="unknown option: option=startingoffsets"):
        reader.option("startingOffsets", "earliest").load(bucket.url).count()


def test_an_empty_bucket_is_an_empty_table(spark, file_bucket):
    assert spark.read.format("tiered-segments").load(file_bucket.url).count() == 0


def test_arrow_batches_equal_the_records_of_the_data_source(spark, load, file_bucket):
    fill(file_bucket)
    options = {"subscribe": "orders", "splitBytes": "1KiB", "startingOffsets": '{"orders":{"0":15}}'}
    fast = read_arrow(spark, file_bucket.url, columns=["offset", "key", "headers"], **options)
    slow = load(file_bucket, includeHeaders="true", **options).select("offset", "key", "headers")
    assert fast.schema == slow.schema
    assert sorted(fast.collect()) == sorted(slow.collect())
    assert fast.rdd.getNumPartitions() > 4
    assert (
        read_arrow(spark, file_bucket.url, subscribe="orders").columns
        == slow.sparkSession.read.format("tiered").option("subscribe", "orders").load(file_bucket.url).columns
    )


def test_function_gets_the_batches_in_the_decoding_task(spark, file_bucket):
    fill(file_bucket)

    def largest(batches):
        import pyarrow as pa

        offsets = [value for batch in batches for value in batch.column("offset").to_pylist()]
        yield pa.record_batch({"records": pa.array([len(offsets)], pa.int64()), "last": [max(offsets)]})

    schema = "records long, last long"
    options = {"subscribe": "orders", "splitBytes": "4KiB"}
    found = read_arrow(spark, file_bucket.url, columns=["offset"], function=largest, schema=schema, **options)
    rows = found.collect()
    assert sum(row["records"] for row in rows) == 120
    assert max(row["last"] for row in rows) == 119
    assert len(rows) == found.rdd.getNumPartitions() > 1


def test_empty_range_is_an_empty_frame_and_invalid_columns_are_named(spark, file_bucket):
    fill(file_bucket)
    none = read_arrow(spark, file_bucket.url, subscribe="orders", endingOffsets='{"orders":{"0":0}}')
    assert none.count() == 0
    with pytest.raises(Exception, match="unknown column: asked=nope"):
        read_arrow(spark, file_bucket.url, columns=["nope"], subscribe="orders")
    with pytest.raises(Exception, match="a function and the schema of its result require each other"):
        read_arrow(spark, file_bucket.url, function=iter, subscribe="orders")


def test_query_plan_contains_no_secret(spark, file_bucket):
    fill(file_bucket)
    secret = {"storeOptions": json.dumps({"auto_mkdir": True, "nobody_reads": "hunter2-secret"}), "subscribe": "orders"}
    frames = [
        spark.read.format("tiered").options(**secret).load(file_bucket.url),
        spark.read.format("tiered-segments").options(**secret).load(file_bucket.url),
    ]
    for frame in frames:
        assert "hunter2" not in frame._jdf.queryExecution().toString()


@pytest.mark.parametrize("columns", ["", "(offset bigint)"])
def test_catalog_table_is_refused_in_one_line_that_names_a_temporary_view(spark, file_bucket, columns):
    fill(file_bucket)
    options = f"OPTIONS (path '{file_bucket.url}', subscribe 'orders')"

    def made_and_read():  # with columns given Spark makes it without asking the source
        spark.sql(f"CREATE TABLE refused {columns} USING tiered {options}")
        spark.sql("SELECT count(*) FROM refused").collect()

    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING tiered"):
            made_and_read()
    finally:
        spark.sql("DROP TABLE IF EXISTS refused")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING tiered {options}")
    assert spark.sql("SELECT count(*) FROM records").first()[0] == 120


def test_start_above_the_end_and_whole_topic_offsets_work_in_spark(load, file_bucket):
    fill(file_bucket)
    fill(file_bucket, partition=1, segments=2)
    assert load(file_bucket, subscribe="orders", startingOffsets='{"orders":"earliest"}').count() == 180
    above = {"startingOffsets": '{"orders":{"0":40,"1":-2}}', "endingOffsets": '{"orders":{"0":7,"1":-1}}'}
    with pytest.raises(Exception, match="the start is above the end"):
        load(file_bucket, subscribe="orders", **above).count()
    assert load(file_bucket, subscribe="orders", failOnDataLoss="false", **above).count() == 60


def test_session_without_an_interpreter_setting_uses_that_of_the_caller(spark, load, file_bucket, monkeypatch):
    from tiered.spark.session import register

    fill(file_bucket)
    monkeypatch.delenv("PYSPARK_PYTHON")
    chosen = spark.sparkContext.pythonExec
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    try:
        register(spark)
        assert load(file_bucket, subscribe="orders").count() == 120
        monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python3")
        with pytest.raises(InvalidRequest, match="the interpreter of its workers does not exist"):
            register(spark)
    finally:
        monkeypatch.undo()
        spark.sparkContext.pythonExec = chosen
        register(spark)
