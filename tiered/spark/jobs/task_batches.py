"""Run work with effects as Spark tasks.

One task for each piece, with the result of its successful attempt. The work runs in waves of one action each. A second
action over the same rows would repeat the effects. A wave is therefore collected once and never cached. Between waves
the driver can record its progress, so that a resumed job loses at most one wave. A wave has many tasks for each core,
and ends with its slowest task.

Pieces are pickled into the function that the tasks run, so neither they nor their content appear in Spark's UI.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from local.errors import LogError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 8  # of a wave: enough that one slow task leaves few cores idle, few enough that little is repeated
W = TypeVar("W")
R = TypeVar("R")


def packed(work: Sequence[W], size_of: Callable[[W], int], task_bytes: int) -> list[tuple[W, ...]]:
    """Runs of `work`, in order, each of up to `task_bytes` or of one piece.

    A task itself costs some 30 ms.
    """
    packs: list[list[W]] = []
    size = 0
    for each in work:
        if not packs or size + size_of(each) > task_bytes:
            packs.append([])
            size = 0
        packs[-1].append(each)
        size += size_of(each)
    return [tuple(pack) for pack in packs]


def or_error(do: Callable[[], R]) -> R | LogError:
    """The result of `do`, or its error: a failed piece does not affect the others.

    Raises Unavailable, so that Spark retries the task.
    """
    try:
        return do()
    except Unavailable:
        raise
    except LogError as error:
        return error


def tasks_of_a_batch(spark: SparkSession) -> int:
    return max(1, spark.sparkContext.defaultParallelism * TASKS_PER_CORE)


def in_task_batches(
    spark: SparkSession,
    description: str,
    work: Iterable[W],
    do: Callable[[W], R],
    *,
    wave_tasks: int | None = None,
    total: int | None = None,
    group: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[R]]:
    """The results of `do` for each piece of `work`, in order, one list for each wave.

    Ends early if `should_stop`. `work` is read one wave at a time, after the previous one, and may skip pieces that are
    no longer wanted. `total` is its length if it is not a sequence. `description` is shown in Spark's UI, with the
    progress, and `group` is the id of the job group there. The driver holds the results: they should be small.
    Raises Spark's error if a task has failed for good; earlier waves have been returned by that time.
    """
    step = wave_tasks or tasks_of_a_batch(spark)
    everything = len(work) if isinstance(work, Sequence) else total
    done, left = 0, iter(work)
    while wave := list(islice(left, step)):
        if should_stop():
            return
        of = f" of {everything}" if everything is not None else ""
        told = f"{description}: {done + 1} to {done + len(wave)}{of}"
        with named_job(spark, told, group):
            results = _wave(spark, [pickle.dumps(each) for each in wave], do)
        done += len(wave)
        yield results


_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


@contextmanager
def named_job(spark: SparkSession, description: str, group: str | None = None) -> Iterator[None]:
    """Set the description, and the job group if given, of all Spark jobs inside the block."""
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    if group is not None:
        context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_DESCRIPTION, description)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, cast(str, value))  # None removes it


def _wave(spark: SparkSession, pieces: list[bytes], do: Callable[[W], R]) -> list[R]:
    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in numbers:
            for number in batch.column(0).to_numpy().tolist():
                result = do(pickle.loads(pieces[number]))  # noqa: S301 - our own driver's
                columns: list[Any] = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])

    rows = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(task, "number long, result binary").collect()
    results = {row["number"]: pickle.loads(bytes(row["result"])) for row in rows}  # noqa: S301 - our own task's
    return [results[number] for number in range(len(pieces))]
