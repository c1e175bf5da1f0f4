"""``spark.read.format("tiered")`` compared with a plain Python read of the same records."""

from __future__ import annotations

import json

import pytest
from bucket_samples import NOW_MS, Row, batch_at

from local.format.compression import Codec
from local.records.batch import encode_batch, encode_marker
from remote.manifest.manifest_changes import expire_segments
from tiered.spark import read_arrow

pytestmark = pytest.mark.spark


def found_rows(frame):
    """The rows of Spark in the order of topic, partition and offset."""
    rows = []
    for row in frame.selectExpr("*", "unix_millis(timestamp) as ms").collect():
        headers = row["headers"] if "headers" in frame.columns else None
        rows.append(
            Row(
                row["topic"],
                row["partition"],
                row["offset"],
                row["key"] if row["key"] is None else bytes(row["key"]),
                row["value"] if row["value"] is None else bytes(row["value"]),
                row["ms"],
                row["timestampType"],
                headers and tuple((each["key"], each["value"] and bytes(each["value"])) for each in headers),
            )
        )
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


def without_headers(rows):
    return [Row(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp_ms, r.timestamp_type) for r in rows]


def offsets(frame):
    return sorted(row["offset"] for row in frame.select("offset").collect())


def fill(bucket, topic="orders", partition=0, segments=4, batches=3, records=10):
    """Equal segments. Segment n holds the offsets from n * batches * records."""
    at = 0
    for _ in range(segments):
        parts = []
        for _ in range(batches):
            parts.append(batch_at(at, records))
            at += records
        bucket.add(topic, partition, parts)
    return at


def lose(bucket, *numbers, topic="orders", partition=0):
    """Delete data objects, so that a read of them fails."""
    rows = bucket.segments[topic, partition]
    bucket.store.delete([bucket.data_object(rows[number], topic, partition) for number in numbers])


def test_schema_equals_that_of_the_kafka_source(load, file_bucket):
    fill(file_bucket)
    schema = load(file_bucket, subscribe="orders", includeHeaders="true").schema
    assert schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert "headers" not in load(file_bucket, subscribe="orders").columns


def test_every_record_of_several_partitions_is_read_with_headers_and_nulls(load, bucket):
    fill(bucket, "orders", 0)
    fill(bucket, "orders", 1, segments=2)
    fill(bucket, "other", 0, segments=1)
    found = found_rows(load(bucket, subscribe="orders", includeHeaders="true"))
    assert found == [row for row in bucket.rows if row.topic == "orders"]
    assert any(row.key is None for row in found)
    assert any(row.value is None for row in found)
    assert any(row.headers for row in found)


def test_every_codec_and_both_timestamp_types_are_read(load, file_bucket):
    batches = [batch_at(number * 10, 10, codec=codec) for number, codec in enumerate(Codec)]
    batches.append(batch_at(50, 10, log_append=True))
    file_bucket.add("orders", 0, batches)
    found = found_rows(load(file_bucket, subscribe="orders"))
    assert found == without_headers(file_bucket.rows)
    assert {row.timestamp_type for row in found} == {0, 1}
    assert {row.timestamp_ms for row in found if row.timestamp_type} == {NOW_MS}


@pytest.mark.damages_bucket
def test_offsets_select_records_and_only_their_segments_are_fetched(load, bucket):
    fill(bucket)  # segments of 30 records
    lose(bucket, 0, 3)
    chosen = {"startingOffsets": '{"orders":{"0":35}}', "endingOffsets": '{"orders":{"0":85}}'}
    assert offsets(load(bucket, subscribe="orders", **chosen)) == list(range(35, 85))


@pytest.mark.damages_bucket
def test_timestamps_select_like_in_the_kafka_source_and_prune_segments(load, file_bucket):
    fill(file_bucket)  # one record each 10 ms
    lose(file_bucket, 0, 3)
    between = {"startingTimestamp": str(NOW_MS + 345), "endingTimestamp": str(NOW_MS + 800)}
    assert offsets(load(file_bucket, subscribe="orders", **between)) == list(range(35, 80))
    each = {
        "startingOffsetsByTimestamp": json.dumps({"orders": {"0": NOW_MS + 500}}),
        "endingTimestamp": str(NOW_MS + 800),
    }
    assert offsets(load(file_bucket, subscribe="orders", **each)) == list(range(50, 80))


def test_late_record_after_the_starting_timestamp_is_included(load, file_bucket):
    # Kafka's source converts the timestamp to one offset and does not filter rows.
    times = [NOW_MS, NOW_MS + 100, NOW_MS + 50, NOW_MS + 200]
    file_bucket.add("orders", 0, [encode_batch([(b"k", b"v", time) for time in times])])
    assert offsets(load(file_bucket, subscribe="orders", startingTimestamp=str(NOW_MS + 60))) == [1, 2, 3]


def test_starting_timestamp_after_all_records_is_an_error_unless_latest_is_set(load, file_bucket):
    fill(file_bucket)
    late = {"startingTimestamp": str(NOW_MS + 10**9)}
    with pytest.raises(Exception, match="no record at or after the starting timestamp"):
        load(file_bucket, subscribe="orders", **late).count()
    latest = load(file_bucket, subscribe="orders", startingOffsetsByTimestampStrategy="latest", **late)
    assert latest.count() == 0


def test_read_crosses_offset_gaps_of_compaction(load, file_bucket):
    file_bucket.add("orders", 0, [batch_at(0, 5), batch_at(20, 5)], next_offset=40)
    file_bucket.add(
        "orders",
        0,
        [
            encode_marker(
                base_offset=40,
                is_commit=True,
                timestamp_ms=NOW_MS,
                producer_id=1,
                producer_epoch=0,
                coordinator_epoch=0,
            ),
            batch_at(60, 5),
        ],
        next_offset=100,
    )
    file_bucket.add("orders", 0, [batch_at(100, 5)])
    everything = [*range(5), *range(20, 25), *range(60, 65), *range(100, 105)]
    assert offsets(load(file_bucket, subscribe="orders")) == everything
    ranged = load(
        file_bucket, subscribe="orders", startingOffsets='{"orders":{"0":7}}', endingOffsets='{"orders":{"0":61}}'
    )
    assert offsets(ranged) == [*range(20, 25), 60]


def test_records_below_the_log_start_are_not_read(load, file_bucket):
    fill(file_bucket)
    _, log = file_bucket.log("orders", 0)
    gone = file_bucket.segments["orders", 0][0]
    log.commit(expire_segments([gone.ulid], now_ms=NOW_MS, log_start_offset=42), NOW_MS)
    assert offsets(load(file_bucket, subscribe="orders")) == list(range(42, 120))
    with pytest.raises(Exception, match="the offset is outside the log"):
        load(file_bucket, subscribe="orders", startingOffsets='{"orders":{"0":3}}').count()
    moved = load(file_bucket, subscribe="orders", startingOffsets='{"orders":{"0":3}}', failOnDataLoss="false")
    assert offsets(moved) == list(range(42, 120))


def test_an_empty_topic_gives_no_rows(load, file_bucket):
    file_bucket.log("orders", 0)
    frame = load(file_bucket, subscribe="orders")
    assert frame.count() == 0
    assert frame.collect() == []


def test_patterns_and_assignments_select_topics_and_partitions(load, file_bucket):
    for topic, partition in (("orders.eu", 0), ("orders.us", 0), ("orders.us", 1), ("x-orders.us", 0)):
        fill(file_bucket, topic, partition, segments=1)

    def read(**options):
        rows = load(file_bucket, **options).select("topic", "partition").distinct().collect()
        return {(row["topic"], row["partition"]) for row in rows}

    assert read(subscribePattern=r"orders\..*") == {("orders.eu", 0), ("orders.us", 0), ("orders.us", 1)}
    assert read(assign='{"orders.us":[1]}') == {("orders.us", 1)}
    assert read(subscribe="orders.eu, x-orders.us") == {("orders.eu", 0), ("x-orders.us", 0)}
    assert read(subscribePattern="nothing.*") == set()


def test_explicit_schema_reads_only_its_columns(load, file_bucket):
    fill(file_bucket)
    frame = load(file_bucket, columns="offset long, key binary", subscribe="orders")
    assert frame.columns == ["offset", "key"]
    found = sorted((row["offset"], row["key"] and bytes(row["key"])) for row in frame.collect())
    assert found == [(row.offset, row.key) for row in file_bucket.rows]
    with pytest.raises(Exception, match="unknown column: asked=offset int"):
        load(file_bucket, columns="offset int", subscribe="orders").count()


def test_split_size_and_task_count_do_not_change_the_result(load, file_bucket):
    fill(file_bucket, segments=3, batches=20)
    frame = load(file_bucket, subscribe="orders", splitBytes="2KiB", includeHeaders="true")
    assert frame.rdd.getNumPartitions() > 6
    assert found_rows(frame) == file_bucket.rows
    assert load(file_bucket, subscribe="orders", minPartitions="5").rdd.getNumPartitions() >= 5


def test_dataframe_is_a_snapshot_and_a_new_load_sees_newer_segments(load, file_bucket):
    fill(file_bucket, segments=1)
    frame = load(file_bucket, subscribe="orders")
    assert frame.count() == 30
    file_bucket.add("orders", 0, [batch_at(30, 5)])
    assert frame.count() == 30
    assert load(file_bucket, subscribe="orders").count() == 35


@pytest.mark.damages_bucket
def test_missing_segment_is_named_in_the_error(load, file_bucket):
    fill(file_bucket)
    lose(file_bucket, 2)
    with pytest.raises(Exception, match=r"NotFound: cannot read a segment.*topic=orders"):
        load(file_bucket, subscribe="orders").count()


def test_segment_deleted_during_a_job_is_replaced_if_data_loss_is_no_failure(load, spark, file_bucket):
    fill(file_bucket)
    expired, merged = file_bucket.segments["orders", 0][0], file_bucket.segments["orders", 0][2]
    asked = {"subscribe": "orders", "pin": "none", "failOnDataLoss": "false"}
    frame = load(file_bucket, **asked)
    assert frame.count() == 120, "the plan must be based on the current manifests"
    fast = read_arrow(spark, file_bucket.url, columns=["offset"], **asked)
    data = file_bucket.store.get(file_bucket.data_object(merged, "orders", 0))
    file_bucket.add("orders", 0, [data], replaces=[merged], keep_rows=False, base_offset=merged.base_offset)
    _, log = file_bucket.log("orders", 0)
    log.commit(expire_segments([expired.ulid], now_ms=NOW_MS, log_start_offset=30), NOW_MS)
    lose(file_bucket, 0, 2)
    assert offsets(frame) == offsets(fast) == list(range(30, 120))


@pytest.mark.damages_bucket
def test_damaged_bytes_are_an_error_with_their_object_and_never_returned(load, file_bucket):
    fill(file_bucket)
    row = file_bucket.segments["orders", 0][1]
    key = file_bucket.data_object(row, "orders", 0)
    body = bytearray(file_bucket.store.get(key))
    body[200] ^= 1
    file_bucket.store.put(key, bytes(body))
    with pytest.raises(Exception, match=rf"Corrupt: .*object=.*{row.ulid}"):
        load(file_bucket, subscribe="orders").count()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "exactly one of subscribe"),
        ({"subscribe": "orders", "assign": "{}"}, "exactly one of subscribe"),
        ({"subscribe": "nope"}, "not in the bucket: topic=nope there_are=orders"),
        ({"subscribe": "orders", "startingOffset": "earliest"}, "did_you_mean=startingOffsets"),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"1":0}}'},
            "values must name every partition that is read",
        ),
    ],
)
def test_invalid_options_are_named_in_one_line(load, file_bucket, options, problem):
    fill(file_bucket, segments=1)
    with pytest.raises(Exception, match=problem):
        load(file_bucket, **options).count()


def test_a_bucket_that_does_not_exist_is_named(load, s3_bucket):
    s3_bucket.url = "s3://no-such-bucket/logs"
    with pytest.raises(Exception, match=r"NotFound: .*no-such-bucket"):
        load(s3_bucket, subscribe="orders").count()
