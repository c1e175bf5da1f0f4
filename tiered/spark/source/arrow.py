"""Arrow batches of records in the workers, before Spark makes rows of them: a fast path for jobs.

A data source passes every record to the JVM, at about a third of a microsecond each. With this module a task decodes
its split and returns either the result of `function` (a filter, an aggregate, or nothing because it wrote a file) or
the requested columns only. Options, splits and pins are those of the data source.

The DataFrame is planned when it is created. It has one partition for each split. The function that the tasks run
contains the splits and options, so they do not appear in a plan that the UI shows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from local.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def read_arrow(
    spark: SparkSession,
    url: str,
    *,
    columns: Sequence[str] | None = None,
    function: BatchFunction | None = None,
    schema: str | None = None,
    **options: str,
) -> DataFrame:
    """Decode the records that `options` select, in the workers.

    Options are as in ``spark.read.format("tiered")``. `columns` are the columns to decode, None for all but headers.
    `function` receives a task's batches and returns batches of `schema` (DDL), which it requires. It runs once for each
    split and must be picklable. Raises the errors of planning a read, and InvalidRequest for an unknown column or a
    function without a schema.
    """
    from remote.store.open_store import open_store
    from tiered.config.key_rings import keyed_store
    from tiered.spark.source.options import parse_options
    from tiered.spark.source.planning import plan_read
    from tiered.spark.source.rows import TYPES
    from tiered.spark.source.source import COLUMNS

    asked = parse_options({"path": url, **options})
    names = tuple(columns if columns is not None else (name for name in TYPES if name != "headers"))
    if unknown := [name for name in names if name not in TYPES]:
        raise InvalidRequest("cannot read with Spark, unknown column", asked=unknown[0], has=", ".join(TYPES))
    if (function is None) != (schema is None):
        raise InvalidRequest("cannot read with Spark, a function and the schema of its result require each other")
    store = keyed_store(open_store(asked.url, asked.store_options), asked.key_ring)
    try:
        splits = [pickle.dumps(split) for split in plan_read(store, asked)]
    finally:
        store.close()

    def decode(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tiered.spark.source.task import read_split

        for batch in numbers:
            for number in batch.column(0):
                yield from read_split(pickle.loads(splits[int(number.as_py())]), asked, names)  # noqa: S301 - our own

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(function(decode(numbers))) if function is not None else decode(numbers)

    ddl = schema if schema is not None else ", ".join(f"{name} {COLUMNS[name]}" for name in names)
    return spark.range(0, len(splits), 1, max(1, len(splits))).mapInArrow(work, ddl)
