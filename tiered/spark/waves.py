"""Work with effects as Spark tasks: each piece runs in one task, and its result comes from the attempt that won.

The work goes out in waves, one action each. A second action over the same rows would repeat the effects, so a wave is
collected once and nothing of it is cached. Between waves the driver can note how far it is: whoever resumes a job loses
one wave at most. A wave is large enough that its tasks are started once for many, and ends when its slowest task does.

Pieces travel inside the function that the tasks run, pickled; neither they nor what they carry stand in Spark's UI.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 8  # of a wave: enough that one slow task leaves few cores idle, few enough that little is done twice
W = TypeVar("W")
R = TypeVar("R")


def packed(work: Sequence[W], size_of: Callable[[W], int], task_bytes: int) -> list[tuple[W, ...]]:
    """Runs of `work`, in order, each of up to `task_bytes` or of one piece: a task costs some 30 ms by itself."""
    packs: list[list[W]] = []
    size = 0
    for each in work:
        if not packs or size + size_of(each) > task_bytes:
            packs.append([])
            size = 0
        packs[-1].append(each)
        size += size_of(each)
    return [tuple(pack) for pack in packs]


def tasks_of_a_wave(spark: SparkSession) -> int:
    return max(1, spark.sparkContext.defaultParallelism * TASKS_PER_CORE)


def in_waves(
    spark: SparkSession,
    description: str,
    work: Sequence[W],
    do: Callable[[W], R],
    *,
    wave_tasks: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[R]]:
    """What `do` gave for each piece of `work`, in order, a list for each wave; ends early when it `should_stop`.

    `description` is what Spark's UI shows, with how far the work is. Results are to be small, the driver holds them.
    Raises what Spark raises when a task has failed for good; what earlier waves gave has been given.
    """
    step = wave_tasks or tasks_of_a_wave(spark)
    for start in range(0, len(work), step):
        if should_stop():
            return
        pieces = [pickle.dumps(each) for each in work[start : start + step]]
        yield _wave(spark, f"{description}: {start + 1} to {start + len(pieces)} of {len(work)}", pieces, do)


def _wave(spark: SparkSession, description: str, pieces: list[bytes], do: Callable[[W], R]) -> list[R]:
    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in numbers:
            for number in batch.column(0).to_numpy().tolist():
                result = do(pickle.loads(pieces[number]))  # noqa: S301 - our own driver's
                columns: list[Any] = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])

    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(description)
    try:
        rows = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(task, "number long, result binary").collect()
    finally:
        context.setLocalProperty("spark.job.description", cast(str, before))  # None takes it away
    results = {row["number"]: pickle.loads(bytes(row["result"])) for row in rows}  # noqa: S301 - our own task's
    return [results[number] for number in range(len(pieces))]
