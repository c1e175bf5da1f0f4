"""A separate driver whose tasks die at their first attempts, and which is killed between two effects.

    python faulty_job.py URL N
    python faulty_job.py URL ingest

The first attempt of every task ends after its first upload, by an error or by the death of the worker process. The
driver is killed (SIGKILL) before its effect N (from 0) on the bucket. The first attempts of an ingest end when all of
their rows are written and some of their segments are uploaded. Run by tests, which check the remaining state.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from local.errors import Unavailable
from tiered.jobs.job_bucket import Bucket
from tiered.spark.jobs.runner import compact
from tiered.spark.session import spark_session

EFFECTS = ("put", "put_if_absent", "upload", "delete")
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "4096"}


class Faulty:
    """A store with counted effects. It calls `strikes` before and after each effect."""

    def __init__(self, inner: Any, strikes: Any) -> None:
        self._inner, self._strikes, self._effects = inner, strikes, 0

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._inner, verb)
        if verb not in EFFECTS:
            return real

        def call(*words: Any, **more: Any) -> Any:
            number, self._effects = self._effects, self._effects + 1
            self._strikes(number, verb, False)
            done = real(*words, **more)
            self._strikes(number, verb, True)
            return done

        return call


@dataclass(frozen=True)
class Strikes:
    """Which process dies at which effect. `driver` is the number of the effect before which the driver dies."""

    driver: int

    def __call__(self, number: int, verb: str, is_after: bool) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None and number == self.driver and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if context is None or context.attemptNumber() > 0 or not is_after or verb != "upload":
            return
        if context.partitionId() % 2:
            raise Unavailable("injected fault", number=number)
        os._exit(1)


@dataclass(frozen=True, kw_only=True)
class FaultyBucket(Bucket):
    strikes: Any = None

    def open_store(self) -> Any:
        return Faulty(super().open_store(), self.strikes)


def ingest(spark: Any, url: str) -> None:
    def dies_in_the_end(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("injected fault")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    rows = spark.range(0, 2000, 1, 2).selectExpr("cast(id % 2 as int) as partition", "lpad(id, 4000, ' ') as value")
    writer = rows.mapInArrow(dies_in_the_end, rows.schema).write.format("tiered").mode("append")
    writer = writer.options(topic="t", createPartitions=2, jobId="nightly").option("segment.bytes", 1 << 20)
    writer.save(url)


def main() -> None:
    url, effect = sys.argv[1:]
    spark = spark_session("faulty", master="local[2,4]")
    if effect == "ingest":
        ingest(spark, url)
        return
    bucket = FaultyBucket(url=url, strikes=Strikes(int(effect)))
    compact(spark, url, ["t"], settings=SETTINGS, group_bytes=3000, job_id="nightly", bucket=bucket)


if __name__ == "__main__":
    main()
