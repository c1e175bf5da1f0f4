"""`RemoteTables.scan` into DuckDB beside DuckDB's own reading of the same rows from Parquet.

    .ci/with python tests/bench/bench_scan.py [--records 2000000] [--pairs 5] [--threads 2]

Values of 100 bytes and of 1 KB (a tenth of the records), incompressible, in a bucket and in Parquet files
(uncompressed, one a partition) on one disk. Each query is a DuckDB query over both, in turn. The figure is the median
of the ratios of the pairs. A ratio above 1 means that the scan is faster. The CPU is that of the process.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "support"))

import duckdb
import pyarrow.parquet as pq
from bucket_samples import SampleBucket

from local.records.batch import assign_offset, encode_batch
from remote.store.open_store import open_store
from tiered.tables.remote_tables import RemoteTables, open_remote

NOW_MS, TOPIC, PARTITIONS = 1_700_000_000_000, "orders", 2
BATCH_RECORDS, SEGMENT_BYTES = 1000, 64 << 20
QUERIES = {
    "all columns": (
        ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
        'SELECT count(key), sum(octet_length(value)), max("offset"), max(timestamp), max(topic), sum(partition), '
        "max(timestampType) FROM records",
    ),
    "key and value": (["key", "value"], "SELECT count(DISTINCT key), sum(octet_length(value)) FROM records"),
    "offset and timestamp": (["offset", "timestamp"], 'SELECT max("offset"), min(timestamp) FROM records'),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--codec", type=int, default=0, help="Kafka's number of the codec of the batches")
    given = parser.parse_args()
    duckdb.sql(f"SET threads = {given.threads}")
    print(
        "| values | query | scan, s | Parquet, s | Parquet / scan: wall | CPU |\n|---|---|---|---|---|---|", flush=True
    )
    for size_bytes, records in ((100, given.records), (1000, given.records // 10)):
        with tempfile.TemporaryDirectory() as work:
            fill(work, records, size_bytes, given.codec)
            with open_remote((Path(work) / "bucket").as_uri()) as tables:
                for number in range(PARTITIONS):
                    pq.write_table(
                        tables.scan(TOPIC, partitions=[number]).read_all(), f"{work}/{number}.parquet", compression=None
                    )
                for name, (columns, query) in QUERIES.items():
                    print(row(f"{size_bytes} B", name, *compared(tables, work, columns, query, given)), flush=True)


def compared(
    tables: RemoteTables, work: str, columns: list[str], query: str, given: argparse.Namespace
) -> tuple[list[float], list[float], list[float], list[float]]:
    def scan() -> object:
        records = tables.scan(TOPIC, columns=columns, threads=given.threads)  # noqa: F841 - DuckDB finds it by name
        return duckdb.sql(query).fetchall()

    def parquet() -> object:
        records = duckdb.read_parquet(f"{work}/*.parquet")  # noqa: F841
        return duckdb.sql(query).fetchall()

    assert scan() == parquet()
    found = [(measured(scan), measured(parquet)) for _ in range(given.pairs)]
    ours, theirs = zip(*found, strict=True)
    return (
        [each[0] for each in ours],
        [each[0] for each in theirs],
        [each[1] for each in ours],
        [each[1] for each in theirs],
    )


def row(
    size: str, name: str, ours: list[float], theirs: list[float], cpu_ours: list[float], cpu_theirs: list[float]
) -> str:
    wall = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
    cpu = statistics.median(their / our for our, their in zip(cpu_ours, cpu_theirs, strict=True))
    times = f"{statistics.median(ours):.2f} | {statistics.median(theirs):.2f}"
    return f"| {size} | {name} | {times} | {wall:.2f} | {cpu:.2f} |"


def measured(run: Callable[[], object]) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def fill(work: str, records: int, size_bytes: int, codec: int) -> None:
    rng = random.Random(7)
    Path(work, "bucket").mkdir()
    bucket = SampleBucket(open_store((Path(work) / "bucket").as_uri()))
    samples = [
        encode_batch(
            [(rng.randbytes(16), rng.randbytes(size_bytes), NOW_MS + at) for at in range(BATCH_RECORDS)], codec=codec
        )
        for _ in range(20)
    ]
    for number in range(PARTITIONS):
        offset, total = 0, records // PARTITIONS
        while offset < total:
            segment, size = [], 0
            while offset < total and size < SEGMENT_BYTES:
                batch = bytearray(samples[offset // BATCH_RECORDS % 20])
                assign_offset(batch, offset, 0)
                segment.append(bytes(batch))
                size += len(segment[-1])
                offset += BATCH_RECORDS
            bucket.add(TOPIC, number, segment, chunk_bytes=256 << 10, index_bytes=4096, keep_rows=False)


if __name__ == "__main__":
    main()
