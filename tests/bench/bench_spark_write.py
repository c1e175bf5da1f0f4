"""Spark writes to the bucket: compaction against plain Spark SQL, ingest against Parquet. Prints a Markdown table.

    .ci/with python tests/bench/bench_spark_write.py [records [keys]]

All cases run in one session and one run, in rounds in which each takes its turn. CPU is that of this process's
descendants (JVM and Python workers), which is steadier than wall time on a busy machine. Shuffled bytes are those that
the tasks of all stages report to Spark; the count is first tested with a known number of bytes. The plain queries write
their result as Parquet, because the compaction writes its result too. The compaction gets a new copy of the bucket for
every try, made outside of the measured time.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent))

from bench_spark import cpu_seconds

from local.kernels import implementation
from local.records.record_columns import of_arrow
from local.storage import DiskStorage
from remote.store.open_store import open_store
from tiered.jobs.ingest import commit_ingest, plan_ingest
from tiered.jobs.ingest_task import IngestTask
from tiered.spark.jobs.runner import compact
from tiered.spark.session import QUIET_JAVA, spark_session

RECORDS, KEYS = 10_000_000, 1_000_000
SEGMENTS, CHUNK, VALUE_BYTES = 16, 100_000, 100
TRIES = 3
NOW_MS = 1_700_000_000_000 + 86_400_000  # after every record, because a timestamp in the future is refused
SETTINGS = {"cleanup.policy": "compact"}


class Cost(NamedTuple):
    cpu: float
    wall: float
    shuffled: int


def main(records: int, keys: int) -> None:
    with tempfile.TemporaryDirectory() as work:
        size = fill(f"{work}/bucket", records, keys)
        spark = spark_session("bench", spark__driver__memory="2g", spark__driver__extraJavaOptions=QUIET_JAVA)
        try:
            facts = f"{implementation()} kernels; {check_the_count(spark)}"
            print(f"{records:,} records, {keys:,} keys, {size / 1e6:.0f} MB of segments, {facts}\n")
            print("| case | CPU s | wall s | CPU to the first of its kind | shuffled MB | to the first |")
            print("|---|---|---|---|---|---|")
            table("compaction", compactions(spark, work), spark)
            table("ingest", ingests(spark, work), spark)
        finally:
            spark.stop()


def compactions(spark: Any, work: str) -> dict[str, Callable[[], Callable[[], object]]]:
    """Each prepares its input and returns the measured function."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

    fresh = (f"{work}/try-{number}" for number in itertools.count())
    frame = spark.read.format("tiered").option("subscribe", "bench").load(f"file://{work}/bucket")

    def with_max_by() -> Callable[[], object]:
        newest = frame.groupBy("partition", "key").agg(F.max_by(F.struct("value", "timestamp"), "offset").alias("v"))
        return lambda: newest.write.option("compression", "none").mode("overwrite").parquet(f"{work}/out")

    def with_window() -> Callable[[], object]:
        order = Window.partitionBy("partition", "key").orderBy(F.desc("offset"))
        newest = frame.withColumn("rank", F.row_number().over(order)).where("rank = 1")
        return lambda: newest.write.option("compression", "none").mode("overwrite").parquet(f"{work}/out")

    def with_tiered() -> Callable[[], object]:
        copy = next(fresh)
        shutil.copytree(f"{work}/bucket", copy)
        return lambda: compact(spark, f"file://{copy}", ["bench"], settings=SETTINGS)

    return {
        "compaction: groupBy, max_by, write.parquet": with_max_by,
        "compaction: window, row_number, write.parquet": with_window,
        "compaction: tiered.spark.compact": with_tiered,
    }


def ingests(spark: Any, work: str) -> dict[str, Callable[[], Callable[[], object]]]:
    fresh = (f"{work}/in-{number}" for number in itertools.count())
    source = f"{work}/source"
    columns = ["key", "value", "timestamp", "partition"]
    read = spark.read.format("tiered").option("subscribe", "bench").load(f"file://{work}/bucket").select(*columns)
    read.write.option("compression", "none").mode("overwrite").parquet(source)

    def frame() -> Any:
        return spark.read.parquet(source)

    def parquet(codec: str) -> Callable[[], Callable[[], object]]:
        return lambda: lambda: frame().write.option("compression", codec).mode("overwrite").parquet(f"{work}/out")

    def tiered(codec: str, **options: object) -> Callable[[], Callable[[], object]]:
        def ready() -> Callable[[], object]:
            place = Path(next(fresh))
            place.mkdir()
            writer = frame().write.format("tiered").mode("append").options(topic="b", createPartitions=1, **options)
            return lambda: writer.option("remote.compression", codec).save(f"file://{place}")

        return ready

    return {
        "ingest: write.parquet, uncompressed": parquet("none"),
        "ingest: write.format(tiered), as it is": tiered("none"),
        "ingest: write.parquet, zstd": parquet("zstd"),
        "ingest: write.format(tiered), zstd": tiered("zstd"),
    }


def table(kind: str, cases: dict[str, Callable[[], Callable[[], object]]], spark: Any) -> None:
    """Best of the rounds, in each of which all take a turn. Ratios are those of the rounds: median (least, most)."""
    for ready in cases.values():
        ready()()  # warm-up of the JVM
    rounds = [{name: measured(spark, ready()) for name, ready in cases.items()} for _ in range(TRIES)]
    first = next(iter(cases))
    for name in cases:
        assert name.startswith(kind)
        best = min(each[name] for each in rounds)
        ratios = sorted(each[name].cpu / each[first].cpu for each in rounds)
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f})"
        shuffled = max(each[name].shuffled for each in rounds)
        part = f"{shuffled / rounds[0][first].shuffled:.3f}" if rounds[0][first].shuffled else ""
        print(f"| {name} | {best.cpu:.1f} | {best.wall:.1f} | {ratio} | {shuffled / 1e6:.1f} | {part} |", flush=True)


def measured(spark: Any, run: Callable[[], object]) -> Cost:
    cpu, shuffled, start = cpu_seconds(None)[0], shuffled_bytes(spark), time.perf_counter()
    run()
    wall = time.perf_counter() - start
    return Cost(cpu_seconds(None)[0] - cpu, wall, shuffled_bytes(spark) - shuffled)


def shuffled_bytes(spark: Any) -> int:
    """Bytes written for shuffles by the tasks of all stages so far, as reported at their ends.

    Spark's listeners lag behind, so queued events are awaited. (Sums by executor in the status store are not complete
    at
    the end of a job.)
    """
    context, jvm = spark.sparkContext._jsc.sc(), spark.sparkContext._jvm
    context.listenerBus().waitUntilEmpty()
    quantiles = spark.sparkContext._gateway.new_array(jvm.double, 0)
    stages = context.statusStore().stageList(None, False, False, quantiles, jvm.java.util.ArrayList())
    return sum(stages.apply(at).shuffleWriteBytes() for at in range(stages.size()))


def check_the_count(spark: Any) -> str:
    """Shuffle incompressible bytes: the count must be their number, and little more."""
    sent, before = 20 << 20, shuffled_bytes(spark)

    def noise(batches: Any) -> Any:
        for batch in batches:
            rows = [np.random.default_rng(at).bytes(1 << 10) for at in batch.column(0).to_pylist()]
            yield pa.record_batch({"noise": pa.array(rows, pa.binary())})

    frame = spark.range(0, sent >> 10, 1, 4).mapInArrow(noise, "noise binary").repartition(3)
    frame.write.format("noop").mode("overwrite").save()
    counted = shuffled_bytes(spark) - before
    assert sent <= counted <= 1.1 * sent, f"{sent} bytes were shuffled, {counted} counted"
    return f"of {sent:,} random bytes that are shuffled Spark counts {counted:,}"


def fill(directory: str, records: int, keys: int) -> int:
    """Write `records` with uniform 16-byte keys and 100 incompressible bytes, in one partition of 16 segments. Returns
    bytes."""
    Path(directory).mkdir()
    store, random = open_store(f"file://{directory}"), np.random.default_rng(7)
    segment_bytes = max(1 << 20, -(-records * (VALUE_BYTES + 25) // SEGMENTS))
    settings = {**SETTINGS, "segment.bytes": str(min(segment_bytes, 2**31 - 1))}
    plan = plan_ingest(store, "bench", now_ms=NOW_MS, job_id="fill", create_partitions=1, settings=settings, span=None)
    with tempfile.TemporaryDirectory() as place:
        task = IngestTask(store, plan, 0, storage=DiskStorage(), directory=place)
        for at in range(0, records, CHUNK):
            count = min(CHUNK, records - at)
            names = pa.array([b"%016d" % key for key in random.integers(0, keys, count).tolist()])
            bytes_ = pa.py_buffer(random.bytes(count * VALUE_BYTES))
            bounds = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * VALUE_BYTES)
            values = pa.Array.from_buffers(pa.binary(), count, [None, bounds, bytes_])
            times = pa.array(np.arange(at, at + count) + 1_700_000_000_000)
            for columns in of_arrow(pa.table({"key": names, "value": values, "timestamp": times}), now_ms=NOW_MS):
                task.add(0, columns)
        (outcome,) = commit_ingest(store, plan, [task.end()], now_ms=NOW_MS)
    store.close()
    return outcome.size_bytes


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [RECORDS, KEYS][len(given) :]))
