"""Spark's own Kafka connector reads topics of an endpoint, in batches and as a stream, and writes to one.

python kafka_connector_job.py FOLDER_OF_JARS DIRECTORY ADDRESS_OF_A_NODE ADDRESS_OF_A_BUCKET TOPIC...

Prints as JSON the rows of the topics at each address, those of a stream, and the number of batches of the stream.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tiered.spark.session import spark_session

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "unix_millis(timestamp) AS ms",
    "base64(key) AS key",
    "base64(value) AS value",
    "transform(headers, each -> struct(each.key AS key, base64(each.value) AS value)) AS headers",
)


def rows(frame: DataFrame) -> list[Any]:
    found = frame.selectExpr(*COLUMNS).orderBy("topic", "partition", "offset").collect()
    return [[*row[:6], [list(each) for each in row.headers or ()]] for row in found]


def options(address: str, topics: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": address,
        "subscribe": topics,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }


def stream(spark: SparkSession, folder: Path, address: str, topics: str) -> tuple[list[Any], int]:
    """The rows of a stream that ends at the end of the log, and the number of its batches."""
    source = spark.readStream.format("kafka").options(**options(address, topics)).option("maxOffsetsPerTrigger", "800")
    target = source.load().writeStream.format("parquet").trigger(availableNow=True)
    query = target.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "rows"))
    query.awaitTermination()
    batches = len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))
    return rows(spark.read.parquet(str(folder / "rows"))), batches


def main(jars: str, directory: str, node: str, bucket: str, *topics: str) -> None:
    joined = ",".join(map(str, sorted(Path(jars).glob("*.jar"))))
    spark = spark_session("connector", spark__jars=joined)
    folder = Path(directory)
    try:
        found: dict[str, Any] = {}
        for place, address in {"node": node, "bucket": bucket}.items():
            subscribed = ",".join(topics)
            found[place] = rows(spark.read.format("kafka").options(**options(address, subscribed)).load())
            found[f"{place} stream"] = stream(spark, folder / place, address, subscribed)
        frame = spark.read.format("kafka").options(**options(bucket, topics[0])).load()
        written = frame.select("key", "value", "headers")
        sink = written.write.format("kafka").option("kafka.bootstrap.servers", node).option("includeHeaders", "true")
        sink.option("topic", "written").save()
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
