"""The Spark data source ``tiered-segments``: a bucket's segment entries as a table for SQL.

`tiered.inspect.segment_table` describes its columns.

| option | value |
|---|---|
| ``path`` or ``url``, ``storeOptions``, ``topicId`` | as of the source ``tiered`` |
| ``layout``, ``layoutPrefixes``, ``layoutKeys`` | the same: an external bucket has a row for each readable segment |
| ``subscribe``, ``subscribePattern``, ``assign`` | the topics; default: all |
| ``prices`` | a file of prices on the driver, as of the setting ``cost.prices`` |

Each task reads the newest manifests of its partitions when it runs: cache the table to keep one state. Deleted topics
are included as long as they have objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from local.errors import InvalidRequest
from policies.cost.prices import BUILT_IN, PriceTable
from remote.manifest.catalog import RemotePartitionName
from tiered.inspect.segment_table import COLUMNS, Row, TableOptions
from tiered.spark.source.options import ReadOptions, parse_options
from tiered.spark.source.source import chosen_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from remote.external.external_layout import ExternalFormat
    from remote.store import ObjectStore

PARTITIONS_PER_TASK = 16  # their manifests are read in parallel
_WAYS = ("subscribe", "subscribepattern", "assign")
_NAMES = ("path", "url", "storeoptions", "topicid", "prices", "layout", "layoutprefixes", "layoutkeys", *_WAYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsOptions:
    """The options of one ``load()``."""

    read: ReadOptions
    prices: PriceTable = field(default=BUILT_IN, repr=False)


def parse_segments_options(given: Mapping[str, str]) -> SegmentsOptions:
    """Raises InvalidRequest with the name of a wrong option, and the errors of reading the file of prices."""
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name not in _NAMES:
            raise InvalidRequest(
                "cannot read segments with Spark, unknown option", option=name, there_are=",".join(_NAMES)
            )
    prices = options.pop("prices", None)
    if not any(name in options for name in _WAYS):
        options["subscribepattern"] = ".*"
    if prices is None:
        return SegmentsOptions(read=parse_options(options))
    from tiered.config.price_file import load_prices

    return SegmentsOptions(read=parse_options(options), prices=load_prices(prices))


class SegmentsSource(DataSource):
    """The data source of the module text."""

    @classmethod
    def name(cls) -> str:
        return "tiered-segments"

    def schema(self) -> str:
        parse_segments_options(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentsReader(parse_segments_options(self.options), chosen_columns(schema, COLUMNS))


class SegmentsReader(DataSourceReader):
    """Lists partitions in one process and reads their manifests in others."""

    def __init__(self, options: SegmentsOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        from remote.store.open_store import open_store
        from tiered.config.key_rings import keyed_store
        from tiered.spark.source.planning import format_of, listed_partitions, named_partitions

        store = keyed_store(
            open_store(self._options.read.url, self._options.read.store_options), self._options.read.key_ring
        )
        try:
            layout = format_of(store, self._options.read)
            found = named_partitions(listed_partitions(store, layout, self._options.read), self._options.read)
        finally:
            store.close()
        runs = [found[at : at + PARTITIONS_PER_TASK] for at in range(0, len(found), PARTITIONS_PER_TASK)]
        return [InputPartition(run) for run in runs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from remote.store.open_store import open_store
        from tiered.config.key_rings import keyed_store
        from tiered.inspect.segment_table import record_batches
        from tiered.spark.source.pinning import wall_ms
        from tiered.spark.source.planning import format_of, side_by_side

        run: list[RemotePartitionName] | Any = partition.value
        if run is None:  # Spark passes None for an empty list of partitions
            return
        table = TableOptions(prices=self._options.prices, now_ms=wall_ms())
        store = keyed_store(
            open_store(self._options.read.url, self._options.read.store_options), self._options.read.key_ring
        )
        try:
            layout = format_of(store, self._options.read)
            found = side_by_side(lambda name: list(partition_rows(store, layout, name, table)), run)
            yield from record_batches((row for rows in found for row in rows), self._names)
        finally:
            store.close()


def partition_rows(
    store: ObjectStore, layout: ExternalFormat | None, name: RemotePartitionName, table: TableOptions
) -> Iterator[Row]:
    """The rows of one partition; `layout` None is our own."""
    from remote.external.external_layout import ExternalName
    from remote.fetch.chunk_cache import ChunkCache
    from tiered.inspect.segment_table import rows_in, segment_rows
    from tiered.read.external_partition import external_source

    if layout is None:
        return segment_rows(store, name, table)
    assert isinstance(name, ExternalName), "a layout gives names of its own"
    source = external_source(store, layout, name, ChunkCache(0))
    assert source.metadata is not None, "a source of a bucket has a chain"
    return rows_in(source.metadata, name, table)
