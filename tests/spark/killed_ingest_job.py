"""A Spark write whose driver is killed, with the committing process, at one of the driver's effects on the bucket.

    python killed_ingest_job.py URL N COUNTER

`COUNTER` is a file with a byte for each effect, because planning and committing are different processes. Run by tests.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faulty_job import FaultyBucket

from tiered.spark.session import spark_session
from tiered.spark.source.source import TieredSource


@dataclass(frozen=True)
class Strikes:
    """Kill the driver before effect `number`, counted over all processes with effects."""

    counter: str
    number: int
    driver: int

    def __call__(self, number, verb, is_after):
        from pyspark import TaskContext

        if is_after or TaskContext.get() is not None:
            return
        with open(self.counter, "ab") as file:
            file.write(b".")
        if os.stat(self.counter).st_size == self.number + 1:
            os.kill(self.driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class KilledSource(TieredSource):
    @classmethod
    def name(cls):
        return "tiered-killed"

    def writer(self, schema, overwrite):
        from tiered.spark import sink

        real = sink.parse_write_options
        strikes = Strikes(os.environ["COUNTER"], int(os.environ["NUMBER"]), int(os.environ["DRIVER"]))

        def parsed(given):
            options = real(given)
            return replace(options, bucket=FaultyBucket(url=options.bucket.url, strikes=strikes))

        sink.parse_write_options = parsed
        return super().writer(schema, overwrite)


def rows(spark):
    return spark.range(0, 400, 1, 2).selectExpr("cast(id % 2 as int) as partition", "lpad(id, 200, ' ') as value")


def main():
    url, number, counter = sys.argv[1:]
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ.update(COUNTER=counter, NUMBER=number, DRIVER=str(os.getpid()), PYTHONPATH=here)
    spark = spark_session("killed")
    spark.dataSource.register(KilledSource)
    writer = rows(spark).write.format("tiered-killed").mode("append").options(topic="t", createPartitions=2)
    writer.option("jobId", "nightly").save(url)


if __name__ == "__main__":
    main()
