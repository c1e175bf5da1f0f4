"""``df.write.format("tiered")``: append a DataFrame to a topic as closed segments in the bucket.

It runs `tiered.jobs.ingest`. The columns are those of Spark's Kafka sink:

| column | |
|---|---|
| value | required; null is a tombstone |
| partition | if missing or null: Kafka's partitioner by key, and without a key by value and timestamp |
| timestamp | if missing or null: the time of the job |

A stream commits each batch once, by `jobId` and the batch's id in the manifest. Use one `jobId` with one checkpoint.

The partition of a row depends on the row alone, never on the task or the batch: a second run of a job finds some
partitions committed, and its tasks may differ. With round-robin, rows would be lost or written twice.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from local.errors import InvalidRequest, LogError
from local.kernels import hash_keys
from local.records.record_columns import of_arrow
from local.storage import DiskStorage
from tiered.jobs.ingest import Ingested, IngestPlan, abort_ingest, commit_ingest, plan_ingest
from tiered.jobs.ingest_task import IngestTask
from tiered.spark.options import WriteOptions, parse_write_options

COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp", "bigint"),
}
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: spreads times of whole seconds like other times


@dataclass
class Written(WriterCommitMessage):
    """The uploads of a task's successful attempt: `tiered.jobs.ingest.Ingested`, pickled."""

    ingested: bytes


class _Writing:
    """The common part of both writers. It is sent to the tasks: options and a plan, never a client."""

    def __init__(self, options: WriteOptions, plan: IngestPlan) -> None:
        self._options, self._plan = options, plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        bucket, number = self._options.bucket, context.partitionId()
        with bucket.opened() as store, bucket.scratch() as directory:
            task = IngestTask(store, self._plan, number, storage=DiskStorage(), directory=directory, keys=bucket.keys())
            try:
                router = Router(task, self._plan)
                for batch in iterator:
                    router.add(batch)
                return Written(pickle.dumps(task.end()))
            except LogError:
                task.discard()
                raise

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        with self._options.bucket.opened() as store:
            commit_ingest(store, self._plan, _parts(messages), now_ms=_now_ms(), turn=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        del batchId
        with self._options.bucket.opened() as store:
            abort_ingest(store, self._plan, _parts(messages), now_ms=_now_ms())


class BatchWriter(_Writing, DataSourceArrowWriter):
    """The writer of a batch."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The writer of one micro-batch of a stream."""


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer of one write; takes the partitions over. Raises InvalidRequest, and as `plan_ingest`."""
    options = parse_write_options(given)
    if overwrite:
        wrong = "cannot write with Spark, the save mode must be append"
        raise InvalidRequest(wrong, mode="overwrite", fix='mode("append")')
    return BatchWriter(options, _planned(options, schema))


def stream_writer(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer of one batch of a stream; the first batch takes the partitions over. Raises as `batch_writer`."""
    options = parse_write_options(given)
    if options.job_id is None:
        wrong = "cannot write a stream, the option jobId is required: it identifies the stream across restarts"
        raise InvalidRequest(wrong)
    return StreamWriter(options, _planned(options, schema, is_stream=True))


def _planned(options: WriteOptions, schema: StructType, *, is_stream: bool = False) -> IngestPlan:
    _check_columns(schema)
    bucket = options.bucket
    with bucket.opened() as store:
        return plan_ingest(
            store,
            options.topic,
            now_ms=_now_ms(),
            job_id=options.job_id,
            topic_id=options.topic_id,
            create_partitions=options.create_partitions,
            takes_leadership=options.takes_leadership,
            settings=options.settings,
            span=options.span,
            is_stream=is_stream,
            keys=bucket.keys(),
        )


def _check_columns(schema: StructType) -> None:
    has = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in COLUMNS.items())
    for field in schema.fields:
        if field.dataType.simpleString() not in COLUMNS.get(field.name, ()):
            asked = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidRequest("cannot write with Spark, unknown column", asked=asked, has=has)
    if "value" not in schema.fieldNames():
        wrong = "cannot write with Spark, the column value is required"
        raise InvalidRequest(wrong, has=", ".join(schema.fieldNames()))


def _parts(messages: list[WriterCommitMessage | None]) -> list[Ingested]:
    return [pickle.loads(each.ingested) for each in messages if isinstance(each, Written)]  # noqa: S301 - our own


def _now_ms() -> int:
    return int(time.time() * 1000)


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
            wrong = "cannot write with Spark, a row belongs to another topic"
            raise InvalidRequest(wrong, topic=other, expected=expected)
        columns: dict[str, Any] = {name: batch[name] for name in ("key", "value", "headers") if name in names}
        if "timestamp" in names:
            columns["timestamp"] = _in_ms(batch["timestamp"]).fill_null(self._plan.now_ms)
        table = pa.table(columns)
        partitions = self._partitions(batch)
        for number in np.unique(partitions).tolist():
            rows = table if (partitions == number).all() else table.filter(pa.array(partitions == number))
            for chunk in of_arrow(rows, now_ms=self._plan.now_ms):
                self._task.add(number, chunk)

    def _partitions(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        known: Any = batch["partition"] if "partition" in batch.schema.names else None
        if known is not None and not known.null_count:
            return np.asarray(known, np.int64)
        found = self._by_key(batch)
        if known is not None:
            is_there = np.asarray(known.is_valid(), np.bool_)
            found = np.where(is_there, np.asarray(known.fill_null(0), np.int64), found)
        return found

    def _by_key(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Partitions as by Kafka's partitioner: murmur2 of the key, or of value and timestamp without a key."""
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
