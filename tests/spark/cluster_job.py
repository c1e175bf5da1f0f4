"""A job on a cluster of two executors, each with its own JVM: counts and sums of offsets by topic, as JSON.

python cluster_job.py <url> <file of keys>
"""

from __future__ import annotations

import json
import sys

from tiered.spark import read_arrow, spark_session


def sums(batches):
    import pyarrow.compute as pc
    from pyarrow import Table

    for batch in batches:
        table = Table.from_batches([batch]).group_by("topic").aggregate([("offset", "count"), ("offset", "sum")])
        counts, totals = table.column("offset_count"), table.column("offset_sum")
        columns = [table.column("topic"), pc.cast(counts, "int64"), pc.cast(totals, "int64")]
        yield from Table.from_arrays(columns, names=["topic", "records", "offsets"]).to_batches()


def main(url, key_ring):
    spark = spark_session("cluster", master="local-cluster[2,2,700]", spark__executor__memory="700m")
    try:
        options = {"subscribePattern": ".*", "keyRing": key_ring, "pin": "none"}
        frame = spark.read.format("tiered").options(**options).schema("topic string, offset bigint").load(url)
        source = frame.selectExpr("topic", "1L as records", "offset as offsets")
        schema = "topic string, records long, offsets long"
        arrow = read_arrow(spark, url, columns=["topic", "offset"], function=sums, schema=schema, **options)
        found = {"source": totals(source), "arrow": totals(arrow)}
        # the driver counts as one
        found["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        print(json.dumps(found))
    finally:
        spark.stop()


def totals(frame):
    rows = frame.groupBy("topic").sum("records", "offsets").collect()
    return {row[0]: [row[1], row[2]] for row in rows}


if __name__ == "__main__":
    main(*sys.argv[1:])
