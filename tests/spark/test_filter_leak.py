"""Spark's bug that prevents `pushFilters` in the source, reproduced. If this fails, a release has fixed the bug."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark


def test_pushed_filters_of_one_query_leak_into_the_next_on_the_same_dataframe(spark):
    leaky = make_leaky_source()
    spark.dataSource.register(leaky)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("leaky").load()
        counts = [frame.count(), frame.where("offset >= 900").count(), frame.count()]
        fresh = spark.read.format("leaky").load()
        union = fresh.where("offset >= 900").union(fresh.where("offset < 10")).count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert counts == [1000, 100, 100], "a fixed Spark gives 1000, 100, 1000"
    assert union == 20, "a fixed Spark gives 110"


def test_tiered_source_does_not_leak_filters(load, file_bucket):
    from bucket_samples import batch_at

    file_bucket.add("orders", 0, [batch_at(0, 100)])
    frame = load(file_bucket, subscribe="orders")
    assert [frame.count(), frame.where("offset >= 90").count(), frame.count()] == [100, 10, 100]
    assert frame.where("offset >= 90").union(frame.where("offset < 5")).count() == 15


def make_leaky_source():
    """Define the classes inside a function, so that Spark pickles them by value: its workers cannot import a test
    module."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThanOrEqual, InputPartition, LessThan

    class Leaky(DataSourceReader):
        lo, hi = 0, 1000

        def pushFilters(self, filters):  # noqa: N802 - Spark's name
            for each in filters:
                if isinstance(each, GreaterThanOrEqual):
                    self.lo = each.value
                elif isinstance(each, LessThan):
                    self.hi = each.value
                else:
                    yield each

        def partitions(self):
            return [InputPartition(0)]

        def read(self, _):
            import pyarrow as pa

            yield pa.record_batch({"offset": pa.array(range(self.lo, self.hi), pa.int64())})

    class LeakySource(DataSource):
        @classmethod
        def name(cls):
            return "leaky"

        def schema(self):
            return "offset bigint"

        def reader(self, schema):
            return Leaky()

    return LeakySource
