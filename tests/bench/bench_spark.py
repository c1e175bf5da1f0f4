"""Spark reading the bucket, beside the same records in Parquet and beside `binaryFile` with the same decoder.

    .ci/with python tests/bench/bench_spark.py [records]

Every case writes the same rows to Spark's `noop` sink, best of three, in one session and one run; the ratio is to
Parquet. CPU is that of this process's descendants (JVM, Python workers): steadier than the clock on a busy machine.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))

from bucket_samples import SampleBucket

from local.batch import assign_offset, encode_batch
from local.kernels import implementation
from remote.fsspec_store import open_store
from tiered.spark.rows import TYPES
from tiered.spark.session import QUIET_JAVA, spark_session

RECORDS = 3_000_000
PER_BATCH, BATCHES_PER_SEGMENT = 1000, 250
COLUMNS = tuple(name for name in TYPES if name != "headers")
TRIES = 3


def main(records):
    with tempfile.TemporaryDirectory() as work:
        url, segments = fill(f"{work}/bucket", records)
        stored = sum(row.size_bytes for row in segments)
        # Whole files in one row each, as binaryFile has them, need the memory.
        spark = spark_session("bench", spark__driver__memory="2g", spark__driver__extraJavaOptions=QUIET_JAVA)
        try:
            source = spark.read.format("tiered").option("subscribe", "bench")
            load = source.load
            load(url).write.option("compression", "none").parquet(f"{work}/parquet")
            cases = {
                "parquet, 7 columns": lambda: noop(spark.read.parquet(f"{work}/parquet")),
                "tiered, 7 columns": lambda: noop(load(url)),
                "tiered, offset and key": lambda: noop(pruned(spark).load(url)),
                "tiered, one hundredth by offset": lambda: noop(hundredth(spark, records).load(url)),
                "binaryFile + mapInArrow, 7 columns": lambda: noop(binary_files(spark, f"{work}/bucket")),
            }
            report(cases, records, stored)
        finally:
            spark.stop()


def fill(directory, records):
    """`records` of 16-byte keys and 100 incompressible bytes, in one partition."""
    Path(directory).mkdir()
    source = random.Random(7)
    samples = [
        encode_batch([(source.randbytes(16), source.randbytes(100), 1_700_000_000_000 + n) for n in range(PER_BATCH)])
        for _ in range(20)
    ]
    bucket = SampleBucket(open_store(f"file://{directory}"))
    batches = []
    for number in range(records // PER_BATCH):
        batch = bytearray(samples[number % len(samples)])
        assign_offset(batch, number * PER_BATCH, 0)
        batches.append(bytes(batch))
    for at in range(0, len(batches), BATCHES_PER_SEGMENT):
        bucket.add("bench", 0, batches[at : at + BATCHES_PER_SEGMENT], chunk_bytes=1 << 20, keep_rows=False)
    return f"file://{directory}", bucket.segments["bench", 0]


def noop(frame):
    frame.write.format("noop").mode("overwrite").save()


def pruned(spark):
    return spark.read.format("tiered").option("subscribe", "bench").schema("offset long, key binary")


def hundredth(spark, records):
    start = records // 2
    return spark.read.format("tiered").options(
        subscribe="bench",
        startingOffsets=f'{{"bench":{{"0":{start}}}}}',
        endingOffsets=f'{{"bench":{{"0":{start + records // 100}}}}}',
    )


def binary_files(spark, directory):
    def decode(batches):
        from local.kernels import decode_columns
        from tiered.spark.rows import record_batches

        for batch in batches:
            for content in batch.column(0):
                yield from record_batches(decode_columns(content.as_buffer()), COLUMNS, "bench", 0)

    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").option("pathGlobFilter", "*.log")
    schema = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    )
    return files.load(directory).select("content").mapInArrow(decode, schema)


def report(cases, records, stored):
    print(f"{records:,} records, {stored / 1e6:.0f} MB of segments, {implementation()} kernels, best of {TRIES}")
    print(f"{'case':36} {'wall s':>7} {'cpu s':>7} {'M rows/s':>9} {'MB/s':>6} {'x parquet':>10}")
    reference = None
    for name, run in cases.items():
        run()
        wall, cpu = min(measured(run) for _ in range(TRIES))
        reference = reference or wall
        rows = records / 100 if "hundredth" in name else records
        speed = f"{rows / wall / 1e6:9.2f} {stored * rows / records / wall / 1e6:6.0f}"
        print(f"{name:36} {wall:7.2f} {cpu:7.2f} {speed} {wall / reference:10.2f}", flush=True)


def measured(run):
    cpu, start = cpu_seconds(), time.perf_counter()
    run()
    return time.perf_counter() - start, cpu_seconds() - cpu


def cpu_seconds():
    """User and system time of all descendants that live, and of their ended children."""
    parents, spent = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
            spent[int(name)] = sum(map(int, fields[11:15]))
    family, known = {os.getpid()}, 0
    while len(family) != known:
        known = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sum(spent.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS)
