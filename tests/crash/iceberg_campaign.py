"""Kill syncs into an Iceberg table with SIGKILL at drawn points, go on, and compare the table with the topic.

    .ci/with python tests/crash/iceberg_campaign.py [--records 5000000] [--kills 20] [--seed 1] [--folder DIR]

A point is the number of data files or of metadata files that the sync has begun, so no point depends on time. Before
each sync the topic grows by an equal share. At the end each record of the topic is in the table once.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "support"))

import duckdb
from bucket_samples import SampleBucket
from pyiceberg.catalog.sql import SqlCatalog

from local.records.batch import encode_batch
from remote.store.open_store import open_store
from tiered.tables.remote_tables import open_remote

NOW_MS, TOPIC, TABLE, PARTITIONS = 1_700_000_000_000, "orders", "lake.orders", 3
BATCH_RECORDS, SEGMENT_RECORDS, DAY_MS = 500, 20_000, 86_400_000
LIMIT_S = 600.0
# Files that a sync has begun when it is killed. A sync often ends before the third one.
POINTS = ((".parquet", 1), (".parquet", 9), (".parquet", 60), (".avro", 1), (".avro", 2), (".metadata.json", 1))
_PROGRAM = """
import sys
from pyiceberg.catalog.sql import SqlCatalog
from tiered import open_remote
from tiered.tables.iceberg import sync
bucket, uri, warehouse = sys.argv[1:]
with open_remote(bucket) as tables:
    sync(tables, "orders", SqlCatalog("lake", uri=uri, warehouse=warehouse), "lake.orders")
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    records: int
    syncs_killed: int
    syncs_done: int
    snapshots: int
    left_files: int
    differences: list[str]


class Campaign:
    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._warehouse, self._uri = folder / "warehouse", f"sqlite:///{folder}/catalog.db"
        (folder / "bucket").mkdir(parents=True)
        self._bucket_url = (folder / "bucket").as_uri()
        self._bucket = SampleBucket(open_store(self._bucket_url))
        self._next = [0] * PARTITIONS

    def run(self, records: int, kills: int) -> Outcome:
        killed = done = 0
        for _ in range(kills):
            self._grow(records // kills)
            if self._sync(kill=True):
                killed += 1
            else:
                done += 1
        self._sync(kill=False)
        return self._outcome(killed, done + 1)

    def _grow(self, records: int) -> None:
        for partition in range(PARTITIONS):
            remaining = records // PARTITIONS
            while remaining > 0:
                batches = []
                for _ in range(SEGMENT_RECORDS // BATCH_RECORDS):
                    if remaining <= 0:
                        break
                    batches.append(self._batch(partition))
                    remaining -= BATCH_RECORDS
                self._bucket.add(TOPIC, partition, batches, index_bytes=4096, chunk_bytes=64 << 10, keep_rows=False)

    def _batch(self, partition: int) -> bytes:
        base = self._next[partition]
        self._next[partition] = base + BATCH_RECORDS
        rows = [
            (b"key-%d" % (at % 1000), self._random.randbytes(60), NOW_MS + at * (DAY_MS // 100_000))
            for at in range(base, base + BATCH_RECORDS)
        ]
        return encode_batch(rows, base_offset=base)

    def _sync(self, *, kill: bool) -> bool:
        """Run a sync; True if it was killed at its drawn point."""
        suffix, count = self._random.choice(POINTS)
        goal = self._files(suffix) + count
        words = [sys.executable, "-c", _PROGRAM, self._bucket_url, self._uri, self._warehouse.as_uri()]
        process, due_s = subprocess.Popen(words), time.monotonic() + LIMIT_S
        while process.poll() is None:
            assert time.monotonic() < due_s, "a sync does not end"
            if kill and self._files(suffix) >= goal:
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.005)
        if process.returncode not in (0, -signal.SIGKILL):
            raise AssertionError(f"a sync ended with exit code {process.returncode}")
        return process.returncode != 0

    def _files(self, suffix: str) -> int:
        return sum(1 for _ in self._warehouse.rglob("*" + suffix))

    def _outcome(self, killed: int, done: int) -> Outcome:
        table = SqlCatalog("lake", uri=self._uri, warehouse=self._warehouse.as_uri()).load_table(TABLE)
        named = [each.file.file_path.removeprefix("file://") for each in table.scan().plan_files()]
        query = (
            'SELECT partition, count(*), count(DISTINCT "offset"), max("offset") + 1, '
            'sum(hash("offset", key, value, timestamp)) FROM {} GROUP BY 1 ORDER BY 1'
        )
        found = duckdb.sql(query.format(f"read_parquet({named})")).fetchall()
        with open_remote(self._bucket_url) as tables:
            topic = tables.scan(TOPIC)  # noqa: F841 - DuckDB finds it by name
            wanted = duckdb.sql(query.format("topic")).fetchall()
        differences = [
            f"table: {one}, topic: {other}" for one, other in zip(found, wanted, strict=False) if one != other
        ]
        if len(found) != len(wanted):
            differences.append(f"{len(found)} partitions in the table, {len(wanted)} in the topic")
        left = self._files(".parquet") - len(named)
        return Outcome(sum(self._next), killed, done, len(table.snapshots()), left, differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        outcome = Campaign(Path(folder), given.seed).run(given.records, given.kills)
    print(outcome)
    sys.exit(bool(outcome.differences))


if __name__ == "__main__":
    main()
