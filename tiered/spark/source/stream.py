"""The adapter between Spark's streaming engine and `tiered.spark.source.stream_planning`.

Spark creates this reader twice. One instance lives in a Python process next to the driver for the whole query and
returns offsets and batches. The other is pickled once, and the workers call its `read`: it has only options.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tiered.spark.options import StreamOptions
from tiered.spark.source.stream_planning import StreamPosition

if TYPE_CHECKING:
    import pyarrow as pa

    from remote.store import ObjectStore
    from tiered.spark.source.stream_planning import StreamPlanner

Offset = dict[str, Any]


class BucketStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of the module text."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._store: ObjectStore | None = None
        self._planner: StreamPlanner | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.offsets_max is not None:
            return ReadMaxRows(self._options.offsets_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        if self._options.offsets_min:
            return ReadMinRows(self._options.offsets_min)
        return ReadAllAvailable()

    def initialOffset(self) -> Offset:  # noqa: N802
        return self._plan().initial().encode()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """`limit` is the result of `getDefaultReadLimit`, or unlimited if the trigger takes everything."""
        is_unlimited = isinstance(limit, ReadAllAvailable)
        begin = StreamPosition.decode(start)
        end = self._plan().next_end(
            begin,
            offsets_max=None if is_unlimited else self._options.offsets_max,
            bytes_max=None if is_unlimited else self._options.bytes_max,
            may_wait=not is_unlimited,
        )
        return start if end is begin else end.encode()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._plan().newest().encode()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().freeze()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        begin, after = StreamPosition.decode(start), StreamPosition.decode(end)
        return [InputPartition(split) for split in self._plan().splits(begin, after)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from tiered.spark.source.task import read_split

        split: Any = partition.value
        if split is not None:
            yield from read_split(split, self._options.read, self._names)

    def commit(self, end: Offset) -> None:
        """Do nothing: Spark's checkpoint has the position, and nothing in the bucket depends on it."""

    def stop(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._planner = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            from tiered.spark.source.stream_planning import StreamPlanner

            self._store = self._options.read.bucket.open_store()
            self._planner = StreamPlanner(self._store, self._options)
        return self._planner
