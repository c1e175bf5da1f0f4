"""The demo's checks through Spark, from the bucket alone: no manager, no local directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiered.demo.checks import Digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_topic(spark: SparkSession, url: str, options: Mapping[str, object], topic: str) -> DataFrame:
    """The topic in the form of Spark's Kafka source."""
    reader = spark.read.format("tiered").option("subscribe", topic)
    return reader.option("storeOptions", json.dumps(dict(options))).load(url)


def digests(frame: DataFrame) -> dict[int, Digest]:
    """By partition: counts, offsets and sums, computed in Spark."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

    distance = F.get_json_object(F.col("value").cast("string"), "$.distance").cast("long")
    rows = (
        frame.groupBy("partition")
        .agg(
            F.count("*").alias("records"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.sum("offset").alias("offsets"),
            F.sum(F.crc32("value")).alias("crcs"),
            F.sum(distance).alias("distance"),
        )
        .collect()
    )
    return {
        row["partition"]: Digest(
            records=row["records"],
            first_offset=row["first"],
            last_offset=row["last"],
            offset_sum=row["offsets"],
            value_crcs=row["crcs"],
            distance=row["distance"],
        )
        for row in rows
    }


def newest_by_key(frame: DataFrame) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """(partition, key) to the newest (offset, value), computed in Spark."""
    from pyspark.sql import functions as F  # noqa: N812

    newest = frame.groupBy("partition", "key").agg(F.max(F.struct("offset", "value")).alias("newest"))
    return {
        (row["partition"], bytes(row["key"])): (row["newest"]["offset"], bytes(row["newest"]["value"]))
        for row in newest.collect()
    }
