"""``df.write.format("tiered")``: a DataFrame appended to a topic as closed segments, straight into the bucket.

`tiered.jobs.ingest` in Spark's words. The driver takes the topic's partitions over when the write is planned; each task
spools and uploads; one commit for each partition names what the winning attempts uploaded. Rows have the columns of
Spark's Kafka sink.

| option | value |
|---|---|
| ``path`` or ``url`` | the bucket; required (``save(url)`` gives it) |
| ``topic`` | the topic; a column ``topic``, where there is one, must say the same or nothing |
| ``createPartitions`` | create the topic with so many partitions if it is not there |
| ``topicId`` | which topic, where the bucket holds two of one name |
| ``jobId`` | a name by which a job that is run again is recognised; needed for a stream |
| ``takeLeadership`` | ``false`` refuses partitions that a manager wrote before; ``true`` is the default |
| ``offsets`` | ``ranges`` (default): each task has its own; ``dense``: no gaps, a partition comes from one task |
| ``offsetsPerTask`` | how long such a range is (2^31) |
| ``storeOptions``, ``keyRing`` | as of the source |
| ``workDirectory`` | where tasks put one segment for each partition they write; the system's place otherwise |
| any property of a topic | ``segment.bytes``, ``compression.type``, ``remote.compression`` … outweigh the topic's own |

| column | type | |
|---|---|---|
| value | string or binary | required; null is a tombstone |
| key | string or binary | |
| partition | int | without it, or null: Kafka's partitioner by key, and without a key by what the row says |
| headers | array of struct of key string, value binary | |
| timestamp | timestamp, or long in ms | without it, or null: the time of the job |
| topic | string | |

A stream (``writeStream``) commits each batch once, told by `jobId` and the batch's id in the head; keep the `jobId`
with the checkpoint. A batch that Spark runs again after a crash is found to be in already.
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
    """What a task's winning attempt uploaded: `tiered.jobs.ingest.Ingested`, pickled."""

    ingested: bytes


class _Writing:
    """What both ways of writing share. Travels to the tasks: options and a plan, never a client."""

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
    """The writer of one write, its partitions taken over. Raises InvalidRequest for columns or options that are wrong,
    and what `tiered.jobs.ingest.plan_ingest` raises."""
    options = parse_write_options(given)
    if overwrite:
        raise InvalidRequest("writing with spark, a log is appended to", mode="overwrite", fix='mode("append")')
    return BatchWriter(options, _planned(options, schema))


def stream_writer(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The same for one batch of a stream: Spark asks for each. The epoch is begun by the first one. Raises likewise."""
    options = parse_write_options(given)
    if options.job_id is None:
        raise InvalidRequest("writing a stream, the option jobId is needed: it names the stream over restarts")
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
            raise InvalidRequest("writing with spark, no such column", asked=asked, has=has)
    if "value" not in schema.fieldNames():
        raise InvalidRequest("writing with spark, the column value is needed", has=", ".join(schema.fieldNames()))


def _parts(messages: list[WriterCommitMessage | None]) -> list[Ingested]:
    return [pickle.loads(each.ingested) for each in messages if isinstance(each, Written)]  # noqa: S301 - our own


def _now_ms() -> int:
    return int(time.time() * 1000)
