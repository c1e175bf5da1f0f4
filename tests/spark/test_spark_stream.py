"""``spark.readStream.format("tiered")`` with Spark's own engine, checkpoint and restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bucket_samples import batch_at

pytestmark = pytest.mark.spark


@pytest.fixture
def query(spark, file_bucket, tmp_path_factory):
    """``query(maxOffsetsPerTrigger=…)`` runs all available batches and returns their progress."""
    home = tmp_path_factory.mktemp("stream")

    def run(columns="partition int, offset long", **options):
        reader = spark.readStream.format("tiered").options(subscribe="orders", **options).schema(columns)
        writer = reader.load(file_bucket.url).writeStream.format("parquet").option("path", str(home / "out"))
        running = writer.option("checkpointLocation", str(home / "log")).trigger(availableNow=True).start()
        running.awaitTermination(120)
        assert running.exception() is None
        return [each for each in running.recentProgress if each["numInputRows"]]

    run.home = home
    run.rows = lambda: sorted(
        (row["partition"], row["offset"]) for row in spark.read.parquet(str(home / "out")).collect()
    )
    return run


def add(bucket, start, count, partition=0):
    bucket.add("orders", partition, [batch_at(at, 10) for at in range(start, start + count, 10)])


def uncommit(home: Path, batch: int) -> None:
    """Remove the commit of a batch, as if the driver had been killed after it planned the batch."""
    for folder in ("log/commits", "out/_spark_metadata"):
        (home / folder / str(batch)).unlink()
        (home / folder / f".{batch}.crc").unlink(missing_ok=True)


def test_stream_restarted_between_any_steps_returns_every_record_once(query, file_bucket):
    add(file_bucket, 0, 100)
    add(file_bucket, 0, 50, partition=1)
    first = query(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    assert [each["numInputRows"] for each in first] == [60, 60, 30]
    end = json.loads((query.home / "log/offsets/2").read_text().splitlines()[-1])
    assert end["orders"] == {"0": 100, "1": 50}
    uncommit(query.home, 2)
    add(file_bucket, 100, 40)
    again = query(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    assert [each["numInputRows"] for each in again] == [30, 40]
    assert query.rows() == [(0, offset) for offset in range(140)] + [(1, offset) for offset in range(50)]
    assert query(startingOffsets="earliest") == [], "without new records there must be no batch"


def test_running_stream_reads_new_records_and_reports_the_end_of_the_log(spark, file_bucket, tmp_path_factory):
    add(file_bucket, 0, 20)
    found = []
    reader = spark.readStream.format("tiered").options(subscribe="orders", startingOffsets="earliest")
    frame = reader.schema("offset long").load(file_bucket.url)
    writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(row["offset"] for row in batch.collect()))
    running = writer.option("checkpointLocation", str(tmp_path_factory.mktemp("log"))).start()
    try:
        running.processAllAvailable()
        add(file_bucket, 20, 20)
        while len(found) < 40 and running.isActive:
            running.processAllAvailable()
        assert found == list(range(40))
        source = [each for each in running.recentProgress if each["numInputRows"]][-1]["sources"][0]
        assert json.loads(source["latestOffset"])["orders"] == {"0": 40}
    finally:
        running.stop()


def test_invalid_option_of_a_stream_is_named(query, file_bucket):
    add(file_bucket, 0, 10)
    with pytest.raises(Exception, match="streams do not support this option: option=endingOffsets"):
        query(endingOffsets="latest")
