"""``df.write.format("tiered")``: append a DataFrame to a topic as closed segments in the bucket.

It runs `tiered.jobs.ingest` in Spark:

1. The driver takes the topic's partitions over when the write is planned.
2. Each task spools and uploads.
3. One commit for each partition names the uploads of the successful attempts.

Rows have the columns of Spark's Kafka sink.

| option | value |
|---|---|
| ``path`` or ``url`` | the bucket; required (``save(url)`` sets it) |
| ``topic`` | the topic; a column ``topic``, if present, must have the same value or null |
| ``createPartitions`` | create the topic with so many partitions if it does not exist |
| ``topicId`` | selects the topic if the bucket has two of one name |
| ``jobId`` | identifies the job when it is run again; required for a stream |
| ``takeLeadership`` | ``false`` refuses partitions that a manager wrote before; ``true`` is the default |
| ``offsets`` | ``ranges`` (default): each task has its own; ``dense``: no gaps, one task for each partition |
| ``offsetsPerTask`` | the length of such a range (2^31) |
| ``storeOptions``, ``keyRing`` | as of the source |
| ``workDirectory`` | a place for one segment of each partition that a task writes; default: the system's |
| any property of a topic | ``segment.bytes``, ``compression.type``, ``remote.compression`` … override the topic's own |

| column | type | |
|---|---|---|
| value | string or binary | required; null is a tombstone |
| key | string or binary | |
| partition | int | if missing or null: Kafka's partitioner by key, and without a key by value and timestamp |
| headers | array of struct of key string, value binary | |
| timestamp | timestamp, or long in ms | if missing or null: the time of the job |
| topic | string | |

A stream (``writeStream``) commits each batch once, identified by `jobId` and the batch's id in the manifest. Use one
`jobId` with one checkpoint. If Spark repeats a batch after a crash, the sink finds its commit and does nothing.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from local.errors import InvalidRequest, LogError
from tiered.jobs.ingest import Ingested, IngestPlan, abort_ingest, commit_ingest, plan_ingest
from tiered.spark.sink.sink_options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp", "bigint"),
}


@dataclass
class Written(WriterCommitMessage):
    """The uploads of a task's successful attempt: `tiered.jobs.ingest.Ingested`, pickled."""

    ingested: bytes


class _Writing:
    """The common part of both writers. It is sent to the tasks: options and a plan, never a client."""

    def __init__(self, options: WriteOptions, plan: IngestPlan) -> None:
        self._options, self._plan = options, plan

    def write_rows(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        from local.storage import DiskStorage
        from tiered.jobs.ingest_task import IngestTask
        from tiered.spark.sink.routing import Router

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

    def commit_turn(self, messages: list[WriterCommitMessage | None], turn: int) -> None:
        with self._options.bucket.opened() as store:
            commit_ingest(store, self._plan, _parts(messages), now_ms=_now_ms(), turn=turn)

    def abort_all(self, messages: list[WriterCommitMessage | None]) -> None:
        with self._options.bucket.opened() as store:
            abort_ingest(store, self._plan, _parts(messages), now_ms=_now_ms())


class BatchWriter(_Writing, DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.write_rows(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_turn(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.abort_all(messages)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.write_rows(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.commit_turn(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        self.abort_all(messages)


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer of one write, with its partitions taken over.

    Raises InvalidRequest for wrong columns or options, and the errors of `tiered.jobs.ingest.plan_ingest`.
    """
    options = parse_write_options(given)
    if overwrite:
        raise InvalidRequest(
            "cannot write with Spark, the save mode must be append", mode="overwrite", fix='mode("append")'
        )
    return BatchWriter(options, _planned(options, schema))


def stream_writer(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer of one batch of a stream: Spark requests one for each. Raises as `batch_writer`.

    The first batch takes the partitions over.
    """
    options = parse_write_options(given)
    if options.job_id is None:
        raise InvalidRequest(
            "cannot write a stream, the option jobId is required: it identifies the stream across restarts"
        )
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
        raise InvalidRequest(
            "cannot write with Spark, the column value is required", has=", ".join(schema.fieldNames())
        )


def _parts(messages: list[WriterCommitMessage | None]) -> list[Ingested]:
    return [pickle.loads(each.ingested) for each in messages if isinstance(each, Written)]  # noqa: S301 - our own


def _now_ms() -> int:
    return int(time.time() * 1000)
