"""The Spark data source ``tiered``: batch and streaming reads of the bucket without a broker.

`partitions` runs once for each ``load()``, so a DataFrame is a snapshot: call ``load()`` again to see newer segments.
Spark does not prune columns of a Python source by itself. An explicit schema does:
``.schema("offset long, key binary")`` transfers only these two columns.

There is no `pushFilters` and must be none: Spark 4.x keeps pushed filters in the relation that all uses of a DataFrame
share, so one query's filter leaks into the next (tests/spark/test_filter_leak.py shows it). Ranges are options instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from tiered.spark.source.options import ReadOptions, includes_headers, parse_options, parse_stream_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

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
    """The data source. Its options are in `tiered.spark.source.options`.

    An unknown option and a wrong choice of topics raise InvalidRequest at ``load()``. A wrong value raises it when the
    read is planned.
    """

    @classmethod
    def name(cls) -> str:
        return "tiered"

    def schema(self) -> str:
        with_headers = includes_headers(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "headers" or with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BucketReader(parse_options(self.options), chosen_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            from tiered.spark.source.stream import BucketStreamReader
        except ImportError as error:
            raise InvalidRequest(
                "cannot read a stream with Spark, Spark 4.2 or later is required", cause=error
            ) from error
        return BucketStreamReader(parse_stream_options(self.options), chosen_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tiered.spark.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        del overwrite  # "complete" and "update" set it; the sink appends in any case
        from tiered.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema)


class BucketReader(DataSourceReader):
    """Plans in one process and reads in others. Only options and splits are sent, never a client."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        from remote.store.open_store import open_store
        from tiered.config.key_rings import keyed_store
        from tiered.spark.source.planning import plan_read

        store = keyed_store(open_store(self._options.url, self._options.store_options), self._options.key_ring)
        try:
            return [InputPartition(split) for split in plan_read(store, self._options)]
        finally:
            store.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from tiered.spark.source.task import read_split

        split: Any = partition.value
        if split is not None:  # Spark passes None for an empty list of partitions
            yield from read_split(split, self._options, self._names)


def chosen_columns(schema: StructType, columns: Mapping[str, str] = COLUMNS) -> tuple[str, ...]:
    """The names in `schema`.

    Raises InvalidRequest unless they are columns of this source with their own types.
    """
    for field in schema.fields:
        if columns.get(field.name) != field.dataType.simpleString():
            asked = f"{field.name} {field.dataType.simpleString()}"
            has = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            raise InvalidRequest("cannot read with Spark, unknown column", asked=asked, has=has)
    return tuple(field.name for field in schema.fields)
