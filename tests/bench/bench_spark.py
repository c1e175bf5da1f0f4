"""Spark reads of the bucket against Parquet, `binaryFile` with this project's decoder, and Kafka's connector.

    .ci/with python tests/bench/bench_spark.py [--records 3000000] [--master 'local[2]']
        [--no-kafka | --scaling | --sizes]

One command, one run, one table in Markdown. Every case writes the same rows to Spark's `noop` sink, best of three after
a warm-up. The ratio is to Parquet, by wall time and by CPU. CPU is that of Spark's JVM and Python workers, which is
steadier than wall time on a busy machine. The CPU of a broker is listed separately. The broker is a real Kafka and
reads the same batches, written into its directory by this program. Broker and connector come from Maven Central, and
without them their rows are left out. `--scaling` compares one task at a time with two: the same reads by `local[1]` and
`local[2]`, in turn. `--sizes` compares values of 100 bytes and of 1 KB, 384 MiB each, in interleaved rounds: the ratio
to Parquet's CPU is the median of the rounds' ratios, and a sum in the task is compared with Spark's sum over Parquet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

import kafka_clients
import kafka_connector
from bucket_samples import SampleBucket
from kafka_artifacts import KAFKA_VERSION, KafkaMissing, find_kafka
from kafka_broker import KafkaBroker

from local.kernels import implementation
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from local.records.batch import assign_offset, encode_batch
from local.settings import LogSettings
from local.storage import DiskStorage
from remote.store.open_store import open_store
from tiered.spark import read_arrow
from tiered.spark.session import QUIET_JAVA, spark_session
from tiered.spark.source.task import TYPES

RECORDS = 3_000_000
PER_BATCH, BATCHES_PER_SEGMENT = 1000, 250
SEGMENT_BYTES = 32 << 20
SIZE_BYTES, SIZE_ROUNDS = 384 << 20, 7  # of `--sizes`
# of one partition each, which is the number of tasks of Kafka's connector
TOPICS = ("bench0", "bench1", "bench2", "bench3")
COLUMNS = tuple(name for name in TYPES if name != "headers")
NOW_MS = 1_700_000_000_000
TRIES = 3


def main(records, master, with_kafka):
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        bucket = fill_bucket(f"{work}/bucket", records)
        broker, connector = stack.enter_context(kafka(Path(work), records)) if with_kafka else (None, "")
        conf = {"spark__driver__extraClassPath": connector} if connector else {}
        # binaryFile reads whole files into one row each, which needs this memory.
        spark = spark_session(
            "bench", master, spark__driver__memory="2g", spark__driver__extraJavaOptions=QUIET_JAVA, **conf
        )
        stack.callback(spark.stop)
        source(spark).load(bucket.url).write.option("compression", "none").parquet(f"{work}/parquet")
        cases = cases_of(spark, bucket.url, work, records)
        if broker is not None:
            cases |= connector_cases(spark, broker, bucket.url)
        stored = sum(row.size_bytes for rows in bucket.segments.values() for row in rows)
        report(cases, records, stored, master, broker)


def scaling(records):
    """Speed-up of two parallel tasks over one, and the cores that one task uses.

    A task is a Python process that decodes and a JVM thread that takes rows, so that it may use more than one core.
    """
    with tempfile.TemporaryDirectory() as work:
        bucket = fill_bucket(f"{work}/bucket", records)
        found = {}
        for turn in range(2 * TRIES):
            master = f"local[{turn % 2 + 1}]"
            spark = spark_session(
                "bench", master, spark__driver__memory="2g", spark__driver__extraJavaOptions=QUIET_JAVA
            )
            try:
                if turn == 0:
                    source(spark).load(bucket.url).write.option("compression", "none").parquet(f"{work}/parquet")
                for name, run in cases_of(spark, bucket.url, work, records).items():
                    run()
                    found.setdefault(name, {}).setdefault(master, []).append(min(measured(run, None) for _ in range(2)))
            finally:
                spark.stop()
        print("| | `local[1]`: wall s, cores in use | `local[2]`: wall s, cores in use | sooner |")
        print("|---|---|---|---|")
        for name, by_master in found.items():
            (wall, cpu, _), (two_wall, two_cpu, _) = (min(by_master[each]) for each in ("local[1]", "local[2]"))
            times = f"{wall:.2f}, {cpu / wall:.2f} | {two_wall:.2f}, {two_cpu / two_wall:.2f} | {wall / two_wall:.2f} x"
            print(f"| {name} | {times} |", flush=True)


def sizes(master):
    print("| | CPU s | of it Python's | x Parquet, CPU, median (min, max) |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        spark = spark_session("bench", master, spark__driver__memory="2g", spark__driver__extraJavaOptions=QUIET_JAVA)
        try:
            for value_bytes in (100, 1000):
                records = SIZE_BYTES // (value_bytes + 30)
                url = fill_bucket(f"{work}/bucket{value_bytes}", records, value_bytes).url
                parquet = f"{work}/parquet{value_bytes}"
                source(spark).load(url).write.option("compression", "none").parquet(parquet)
                report_size(f"{value_bytes}-byte values", size_cases(spark, url, parquet))
        finally:
            spark.stop()


def size_cases(spark, url, parquet):
    """Pairs of a case and its reference, by name."""
    from pyspark.sql import functions

    summed = functions.sum(functions.length("value"))
    in_task = {"columns": ["value"], "function": length_of_values, "schema": "n long", "subscribe": ",".join(TOPICS)}
    whole = lambda: noop(spark.read.parquet(parquet))  # noqa: E731
    return {
        "`tiered`, 7 columns": (lambda: noop(source(spark).load(url)), whole),
        "`read_arrow`, 7 columns": (lambda: noop(read_arrow(spark, url, subscribe=",".join(TOPICS))), whole),
        "values summed in the task": (
            lambda: noop(read_arrow(spark, url, **in_task)),
            lambda: noop(spark.read.parquet(parquet).agg(summed)),
        ),
    }


def report_size(name, cases):
    rounds = {case: [] for case in cases}
    for turn in range(SIZE_ROUNDS + 2):  # two to warm up
        for case, runs in cases.items():
            (_, mine, _), python = measured(runs[0], None), python_seconds.last
            rounds[case].append((mine, python, mine / measured(runs[1], None)[1]))
            if turn == 1:
                rounds[case].clear()
    for case, found in rounds.items():
        cpu, python, ratio = (median(column) for column in zip(*found, strict=True))
        spread = f"{min(each[2] for each in found):.2f}, {max(each[2] for each in found):.2f}"
        print(f"| {name}: {case} | {cpu:.2f} | {python:.2f} | {ratio:.2f} ({spread}) |", flush=True)


def length_of_values(batches):
    import pyarrow as pa
    import pyarrow.compute as pc

    sums = [pc.sum(pc.binary_length(batch.column(0))).as_py() or 0 for batch in batches]
    yield pa.record_batch({"n": pa.array([sum(sums)], pa.int64())})


def cases_of(spark, url, work, records):
    """The measured cases, the reference first."""
    pruned = source(spark).schema("offset long, key binary")
    topics = ",".join(TOPICS)
    return {
        "Parquet, 7 columns": lambda: noop(spark.read.parquet(f"{work}/parquet")),
        "Parquet, offset and key": lambda: noop(spark.read.parquet(f"{work}/parquet").select("offset", "key")),
        "`tiered`, 7 columns": lambda: noop(source(spark).load(url)),
        "`tiered`, offset and key by `.schema`": lambda: noop(pruned.load(url)),
        "`tiered`, one hundredth by offset": lambda: noop(hundredth(spark, records).load(url)),
        "`read_arrow`, 7 columns": lambda: noop(read_arrow(spark, url, subscribe=topics)),
        "`read_arrow`, counted in the task": lambda: noop(
            read_arrow(spark, url, columns=["value"], function=counted, schema="n long", subscribe=topics)
        ),
        "`binaryFile` + mapInArrow, 7 columns": lambda: noop(binary_files(spark, f"{work}/bucket")),
    }


def connector_cases(spark, broker, url):
    def load():
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
        return reader.option("subscribe", ",".join(TOPICS)).load()

    assert load().count() == source(spark).load(url).count(), "both must hold the same number of records"
    return {
        "Kafka's connector, 7 columns": lambda: noop(load()),
        "Kafka's connector, offset and key": lambda: noop(load().select("offset", "key")),
    }


# --- records ---------------------------------------------------------------------------------------------------------


def batches_of(records, value_bytes=100):
    """The batches of one topic: 16-byte keys and incompressible values."""
    rng = random.Random(7)
    samples = [
        encode_batch([(rng.randbytes(16), rng.randbytes(value_bytes), NOW_MS + n) for n in range(PER_BATCH)])
        for _ in range(20)
    ]
    for number in range(records // len(TOPICS) // PER_BATCH):
        batch = bytearray(samples[number % len(samples)])
        assign_offset(batch, number * PER_BATCH, 0)
        yield bytes(batch)


def fill_bucket(directory, records, value_bytes=100):
    Path(directory).mkdir()
    bucket = SampleBucket(open_store(f"file://{directory}"), f"file://{directory}")
    for topic in TOPICS:
        batches = list(batches_of(records, value_bytes))
        a_segment = max(1, BATCHES_PER_SEGMENT * 130 // (value_bytes + 30))
        for at in range(0, len(batches), a_segment):
            bucket.add(topic, 0, batches[at : at + a_segment], chunk_bytes=256 << 10, keep_rows=False)
    return bucket


@contextlib.contextmanager
def kafka(work, records):
    """A running broker with the same batches, and the class path of the connector. Without Kafka: None and an empty
    text."""
    try:
        found, connector = find_kafka(), kafka_connector.class_path(work)
    except KafkaMissing as missing:
        print(f"without Kafka: {missing}", file=sys.stderr)
        yield None, ""
        return
    broker = KafkaBroker(found, work / "broker")
    broker.format()
    broker.start()
    try:
        kafka_clients.create_topics(broker.address, {topic: {"segment.bytes": str(SEGMENT_BYTES)} for topic in TOPICS})
    finally:
        broker.stop()
    directory = LogDirectory(DiskStorage(), str(broker.log_dirs[0]))
    for topic in TOPICS:
        settings = LogSettings(segment_bytes=SEGMENT_BYTES)
        log = directory.open_log(TopicPartition(topic, 0), settings, now_ms=NOW_MS)
        for batch in batches_of(records):
            log.append_encoded([bytearray(batch)], now_ms=NOW_MS)
    directory.close()
    broker.start()
    try:
        kafka_clients.wait_for_leaders(broker.address, TOPICS)
        yield broker, connector
    finally:
        broker.stop()


# --- reads -----------------------------------------------------------------------------------------------------------


def noop(frame):
    frame.write.format("noop").mode("overwrite").save()


def source(spark):
    return spark.read.format("tiered").option("subscribe", ",".join(TOPICS))


def hundredth(spark, records):
    each_has = records // len(TOPICS)
    start, end = each_has // 2, each_has // 2 + each_has // 100
    bounds = {"startingOffsets": start, "endingOffsets": end}
    return source(spark).options(
        **{name: json.dumps({each: {"0": at} for each in TOPICS}) for name, at in bounds.items()}
    )


def counted(batches):
    import pyarrow as pa

    yield pa.record_batch({"n": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})


def binary_files(spark, directory):
    def decode(batches):
        from local.kernels import sections_in_steps
        from tiered.spark.source.task import built_batches

        for batch in batches:
            for content in batch.column(0):
                for step in sections_in_steps(content.as_buffer(), step_bytes=64 << 20):
                    yield from built_batches(step, (), 0, 2**63 - 1, names=COLUMNS, topic="bench", partition=0)

    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").option("pathGlobFilter", "*.log")
    schema = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    )
    return files.load(directory).select("content").mapInArrow(decode, schema)


# --- figures ---------------------------------------------------------------------------------------------------------


def report(cases, records, stored, master, broker):
    facts = f"{implementation()} kernels, {master}, {os.cpu_count()} cores, best of {TRIES}"
    facts += f", Kafka {KAFKA_VERSION}, connector {kafka_connector.VERSION}" if broker is not None else ""
    print(f"{records:,} records, {stored / 1e6:.0f} MB of segments, {facts}\n")
    print("| | wall s | CPU s | broker CPU s | M rows/s | MB/s | x Parquet, wall | x Parquet, CPU |")
    print("|---|---|---|---|---|---|---|---|")
    reference = None
    for name, run in cases.items():
        run()
        wall, cpu, theirs = min(measured(run, broker) for _ in range(TRIES))
        reference = reference or (wall, cpu)
        rows = records / 100 if "hundredth" in name else records
        speed = f"{rows / wall / 1e6:.2f} | {stored * rows / records / wall / 1e6:.0f}"
        served = f"{theirs:.2f}" if "connector" in name else ""
        ratios = f"{wall / reference[0]:.2f} | {cpu / reference[1]:.2f}"
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {served} | {speed} | {ratios} |", flush=True)


python_seconds = SimpleNamespace(now=0.0, last=0.0)  # CPU of the processes that are no JVM: in all, of the last run


def measured(run, broker):
    """(wall, CPU of Spark, CPU of the broker) in seconds."""
    before, start = cpu_seconds(broker), time.perf_counter()
    python = python_seconds.now
    run()
    wall, after = time.perf_counter() - start, cpu_seconds(broker)
    python_seconds.last = python_seconds.now - python
    return wall, after[0] - before[0], after[1] - before[1]


def cpu_seconds(broker):
    """User and system time of living descendants and their ended children: (without the broker, the broker's)."""
    parents, spent, java = {}, {}, set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                program, _, rest = Path(f"/proc/{name}/stat").read_text().rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            java |= {int(name)} if program.endswith("(java") else set()
            parents[int(name)] = int(fields[1])
            spent[int(name)] = sum(map(int, fields[11:15]))
    family, known = {os.getpid()}, 0
    while len(family) != known:
        known = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    python_seconds.now = sum(spent.get(pid, 0) for pid in family - java) / os.sysconf("SC_CLK_TCK")
    theirs = spent.get(broker.pid, 0) if broker is not None else 0
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(spent.get(pid, 0) for pid in family) - theirs) / tick, theirs / tick


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--sizes", action="store_true")
    asked = parser.parse_args()
    if asked.sizes:
        sizes(asked.master)
        sys.exit(0)
    if asked.scaling:
        scaling(asked.records)
        sys.exit(0)
    main(asked.records, asked.master, not asked.no_kafka)
