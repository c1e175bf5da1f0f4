"""The partition of each row of a bulk ingest.

It is the row's column ``partition``, or follows from the key as in Kafka's default partitioner, or from value and
timestamp. It depends on the row alone, never on the task or the batch.

A second run of a job finds some partitions committed, and its tasks may differ (Spark cuts files by its cores). With
round-robin for rows without a key, some rows would move to a partition that was committed without them. Others would be
written a second time to a partition that was not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from local.errors import InvalidRequest
from local.kernels import hash_keys
from local.records.record_columns import of_arrow
from tiered.jobs.ingest import IngestPlan
from tiered.jobs.ingest_task import IngestTask

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: spreads times of whole seconds like other times


class Router:
    """Routes the rows of one task to their partitions, in order."""

    def __init__(self, task: IngestTask, plan: IngestPlan) -> None:
        self._task, self._plan = task, plan

    def add(self, batch: pa.RecordBatch) -> None:
        """Route a batch. Raises InvalidRequest for another topic and for an unknown partition."""
        if not batch.num_rows:
            return
        names = batch.schema.names
        others = set(batch["topic"].unique().to_pylist()) - {None, self._plan.topic} if "topic" in names else set()
        if others:
            other, expected = others.pop(), self._plan.topic
            raise InvalidRequest(
                "cannot write with Spark, a row belongs to another topic", topic=other, expected=expected
            )
        columns: dict[str, Any] = {name: batch[name] for name in ("key", "value", "headers") if name in names}
        if "timestamp" in names:
            columns["timestamp"] = _in_ms(batch["timestamp"]).fill_null(self._plan.now_ms)
        table = pa.table(columns)
        partitions = self._partitions(batch)
        for number in np.unique(partitions).tolist():
            mine = table if (partitions == number).all() else table.filter(pa.array(partitions == number))
            for chunk in of_arrow(mine, now_ms=self._plan.now_ms):
                self._task.add(number, chunk)

    def _partitions(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The partition of each row."""
        known: Any = batch["partition"] if "partition" in batch.schema.names else None
        if known is not None and not known.null_count:
            return np.asarray(known, np.int64)
        found = self._by_key(batch)
        if known is not None:
            is_there = np.asarray(known.is_valid(), np.bool_)
            found = np.where(is_there, np.asarray(known.fill_null(0), np.int64), found)
        return found

    def _by_key(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Partitions as by Kafka's default partitioner: murmur2 of the key.

        A row without a key is hashed by its value and timestamp.
        """
        found = _hashed(batch["key"]) if "key" in batch.schema.names else None
        has_key = np.zeros(batch.num_rows, np.bool_) if found is None else np.asarray(batch["key"].is_valid(), np.bool_)
        if not has_key.all():
            by_row = _hashed(batch["value"])
            if "timestamp" in batch.schema.names:
                given = np.asarray(_in_ms(batch["timestamp"]).fill_null(-1), np.int64)
                by_row = by_row ^ ((given.view(np.uint64) * _SPREAD) >> np.uint64(33)).view(np.int64)
            found = by_row if found is None else np.where(has_key, found, by_row)
        assert found is not None, "of the keys, or of the rows"
        return (found & 0x7FFFFFFF) % len(self._plan.targets)


def _hashed(column: pa.Array[Any]) -> NDArray[np.int64]:
    """murmur2 of each value; a null hashes as empty."""
    (columns,) = of_arrow(pa.table({"key": column}), now_ms=0)
    return hash_keys(columns.key_data, columns.key_starts, np.maximum(columns.key_lengths, 0)).astype(np.int64)


def _in_ms(column: pa.Array[Any]) -> pa.Array[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    return column.cast(pa.int64())
