"""The Spark data sources ``tiered`` (reads, streams, writes) and ``tiered-segments``, and `read_arrow`.

`partitions` runs once for each ``load()``, so a DataFrame is a snapshot. Spark does not prune columns of a Python
source; an explicit schema does: ``.schema("offset long, key binary")`` transfers only these two columns.

There is no `pushFilters` and must be none: Spark 4.x keeps pushed filters in the relation that all uses of a DataFrame
share, so one query's filter leaks into the next (tests/spark/test_filter_leak.py shows it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from local.errors import InvalidRequest
from remote.manifest.catalog import RemotePartitionName
from tiered.inspect.segment_table import COLUMNS as SEGMENT_COLUMNS
from tiered.inspect.segment_table import SCHEMA as SEGMENT_SCHEMA
from tiered.inspect.segment_table import Row, TableOptions, record_batches, segment_rows
from tiered.spark.options import (
    ReadOptions,
    SegmentsOptions,
    includes_headers,
    parse_options,
    parse_segments_options,
    parse_stream_options,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from remote.external.external_layout import ExternalFormat
    from remote.store import ObjectStore
    from tiered.spark.source.splits import ReadPlan

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

PARTITIONS_PER_TASK = 16  # of the table of segments: their manifests are read in parallel
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


class TieredSource(DataSource):
    """The data source ``tiered``. Wrong topics and unknown options fail at ``load()``, wrong values at planning."""

    @classmethod
    def name(cls) -> str:
        return "tiered"

    def schema(self) -> str:
        with_headers = includes_headers(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "headers" or with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from tiered.spark.source.planning import plan_read

        options, names = parse_options(self.options), chosen_columns(schema)
        with options.bucket.opened() as store:
            return BucketReader(options, names, plan_read(store, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            from tiered.spark.source.stream import BucketStreamReader
        except ImportError as error:
            wrong = "cannot read a stream with Spark, Spark 4.2 or later is required"
            raise InvalidRequest(wrong, cause=error) from error
        return BucketStreamReader(parse_stream_options(self.options), chosen_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tiered.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        del overwrite  # "complete" and "update" set it; the sink appends in any case
        from tiered.spark.sink import stream_writer

        return stream_writer(self.options, schema)


class BucketReader(DataSourceReader):
    """Reads a plan. Spark pickles it for the tasks before it asks for `partitions`, so the plan is made before both.

    Only options and the ranges of the plan are sent, never a client.
    """

    def __init__(self, options: ReadOptions, names: tuple[str, ...], plan: ReadPlan) -> None:
        self._options, self._names, self._plan = options, names, plan

    def __reduce__(self) -> tuple[object, ...]:
        return BucketReader, (self._options, self._names, self._plan.common())

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in self._plan.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from tiered.spark.source.task import read_split

        part: Any = partition.value
        if part is not None:  # Spark passes None for an empty list of partitions
            yield from read_split(self._plan.split(part), self._options, self._names)


def chosen_columns(schema: StructType, columns: Mapping[str, str] = COLUMNS) -> tuple[str, ...]:
    """The names in `schema`. Raises InvalidRequest unless they are columns of this source with their types."""
    for field in schema.fields:
        if columns.get(field.name) != field.dataType.simpleString():
            asked = f"{field.name} {field.dataType.simpleString()}"
            has = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            raise InvalidRequest("cannot read with Spark, unknown column", asked=asked, has=has)
    return tuple(field.name for field in schema.fields)


class SegmentsSource(DataSource):
    """A bucket's segment entries as a table (`tiered.inspect.segment_table`), deleted topics included.

    Each task reads the newest manifests of its partitions when it runs: cache the table to keep one state.
    """

    @classmethod
    def name(cls) -> str:
        return "tiered-segments"

    def schema(self) -> str:
        parse_segments_options(self.options)
        return SEGMENT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentsReader(parse_segments_options(self.options), chosen_columns(schema, SEGMENT_COLUMNS))


class SegmentsReader(DataSourceReader):
    def __init__(self, options: SegmentsOptions, names: tuple[str, ...]) -> None:
        self._options, self._names = options, names

    def partitions(self) -> list[InputPartition]:
        from remote.external.external_formats import external_format
        from tiered.spark.source.planning import listed_partitions, named_partitions

        read = self._options.read
        with read.bucket.opened() as store:
            found = named_partitions(listed_partitions(store, external_format(store, read.layout), read), read)
        runs = [found[at : at + PARTITIONS_PER_TASK] for at in range(0, len(found), PARTITIONS_PER_TASK)]
        return [InputPartition(run) for run in runs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from remote.external.external_formats import external_format
        from tiered.spark.source.planning import side_by_side, wall_ms

        run: list[RemotePartitionName] | Any = partition.value
        if run is None:  # Spark passes None for an empty list of partitions
            return
        table = TableOptions(prices=self._options.prices, now_ms=wall_ms())
        with self._options.read.bucket.opened() as store:
            layout = external_format(store, self._options.read.layout)
            found = side_by_side(lambda name: list(partition_rows(store, layout, name, table)), run)
            yield from record_batches((row for rows in found for row in rows), self._names)


def partition_rows(
    store: ObjectStore, layout: ExternalFormat | None, name: RemotePartitionName, table: TableOptions
) -> Iterator[Row]:
    from remote.cache.chunk_cache import ChunkCache
    from remote.manifest.commit_protocol import MetadataLog
    from tiered.read.external_partition import external_source

    source = external_source(store, layout, name, ChunkCache(0)) if layout is not None else None
    log = MetadataLog(store, name.prefix) if source is None else source.metadata
    assert log is not None, "a source of a bucket has a chain"
    return segment_rows(log, name, table)


def read_arrow(
    spark: SparkSession,
    url: str,
    *,
    columns: Sequence[str] | None = None,
    function: BatchFunction | None = None,
    schema: str | None = None,
    **options: str,
) -> DataFrame:
    """Decode the records that `options` select to Arrow batches in the workers: a fast path for jobs.

    A data source passes every record to the JVM, at about a third of a microsecond each. Here a task returns the result
    of `function`, or the requested columns only (None: all but headers). Splits and options do not appear in the UI.

    `function` receives a task's batches and returns batches of `schema` (DDL), which it requires; it must be picklable.
    Raises the errors of planning a read, and InvalidRequest for an unknown column or a function without a schema.
    """
    from tiered.spark.source.planning import plan_read

    selection = parse_options({"path": url, **options})
    names = tuple(columns if columns is not None else (name for name in COLUMNS if name != "headers"))
    if unknown := [name for name in names if name not in COLUMNS]:
        raise InvalidRequest("cannot read with Spark, unknown column", asked=unknown[0], has=", ".join(COLUMNS))
    if (function is None) != (schema is None):
        raise InvalidRequest("cannot read with Spark, a function and the schema of its result require each other")
    with selection.bucket.opened() as store:
        plan = plan_read(store, selection)

    def decode(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tiered.spark.source.task import read_split

        for batch in numbers:
            for number in batch.column(0):
                yield from read_split(plan[int(number.as_py())], selection, names)

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(function(decode(numbers))) if function is not None else decode(numbers)

    ddl = schema if schema is not None else ", ".join(f"{name} {COLUMNS[name]}" for name in names)
    return spark.range(0, len(plan), 1, max(1, len(plan))).mapInArrow(work, ddl)
