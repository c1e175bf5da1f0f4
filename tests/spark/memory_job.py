"""Ingest, read and compact many times the memory of an executor, with limited Python workers. Prints JSON.

    python memory_job.py URL [ROWS [VALUE_BYTES [KEYS [WORKER_MIB [BUFFER_MIB]]]]]

One executor of one core has a JVM of HEAP_MIB and a Python worker with an address space of WORKER_MIB, of which the
libraries map 340 MiB. A step whose memory grows with the data, or with the keys, ends in an error. Values are long and
alike, so that gigabytes of them are a few megabytes in the bucket. One task decodes all of them.
"""

from __future__ import annotations

import json
import sys
import time

from tiered.spark import compact, read_arrow, spark_session

HEAP_MIB = 455  # Spark needs at least 450
OPTIONS = {"topic": "t", "createPartitions": "1", "cleanup.policy": "compact", "jobId": "in"}
COLUMNS, SCHEMA = ("offset", "value"), "records long, bytes long, offsets long, newest string"
TOPIC = {"compression.type": "zstd", "segment.bytes": "512KiB", "remote.compression": "zstd"}


def main(
    url: str,
    rows: int = 120_000,
    value_bytes: int = 16_000,
    keys: int = 50_000,
    worker_mib: int = 1024,
    buffer_mib: int = 1,
) -> None:
    limits = {"spark__executor__memory": f"{HEAP_MIB}m", "spark__executor__pyspark__memory": f"{worker_mib}m"}
    limits["spark__executor__extraJavaOptions"] = "-XX:+UseG1GC"  # Java's default; the serial collector needs more heap
    spark = spark_session("memory", master=f"local-cluster[1,1,{HEAP_MIB}]", **limits)
    began, found = time.monotonic(), {"heap_bytes": HEAP_MIB << 20}

    def told(name, value):
        found[name] = value
        print(f"{name}: {value}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    try:
        frame = spark.range(0, rows, 1, 1).selectExpr(
            f"cast(id % {keys} as string) as key",
            f"concat(lpad(id, 12, '0'), repeat('x', {value_bytes - 12})) as value",
        )
        frame.write.format("tiered").mode("append").options(**OPTIONS, **TOPIC).save(url)
        told("ingested", True)
        told("source", sums(spark.read.format("tiered").option("subscribe", "t").load(url)))
        arrow = read_arrow(spark, url, columns=COLUMNS, function=in_task, schema=SCHEMA, subscribe="t")
        told("arrow", list(arrow.selectExpr("sum(records)", "sum(bytes)", "sum(offsets)", "max(newest)").first()))
        (outcome,) = compact(spark, url, ["t"], group_bytes=4 << 20, buffer_bytes=buffer_mib << 20)
        told("compacted", [outcome.records_before, outcome.records_after])
        told("stored", outcome.bytes_before)
        told("left", sums(spark.read.format("tiered").option("subscribe", "t").load(url)))
        print(json.dumps(found))
    finally:
        spark.stop()


def in_task(batches):
    """The same sums for each batch, before data enters the JVM."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        lengths, offsets = pc.binary_length(batch["value"]), batch["offset"]
        row = batch.num_rows, pc.sum(lengths).as_py(), pc.sum(offsets).as_py(), batch["value"][-1].as_py()[:12].decode()
        yield pa.RecordBatch.from_pylist([dict(zip(("records", "bytes", "offsets", "newest"), row, strict=True))])


def sums(frame):
    """(records, bytes of values, sum of offsets, start of the newest value)"""
    row = frame.selectExpr("count(*)", "sum(length(value))", "sum(offset)", "max(left(cast(value as string), 12))")
    return list(row.first())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
