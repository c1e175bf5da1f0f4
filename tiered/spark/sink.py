"""``df.write.format("tiered")``: a DataFrame appended to a topic as closed segments, straight into the bucket.

`tiered.ingest` in Spark's words. The driver takes the topic's partitions over when the write is planned; each task
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
| partition | int | without it, or null: Kafka's partitioner by key, and without a key by turns |
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
from tiered.ingest import Ingested, IngestPlan, abort_ingest, commit_ingest, plan_ingest
from tiered.spark.sink_options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

    from tiered.ingest_task import IngestTask

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
    """What a task's winning attempt uploaded: `tiered.ingest.Ingested`, pickled."""

    ingested: bytes


class _Writing:
    """What both ways of writing share. Travels to the tasks: options and a plan, never a client."""

    def __init__(self, options: WriteOptions, plan: IngestPlan) -> None:
        self._options, self._plan = options, plan

    def write_rows(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        from local.storage import DiskStorage
        from tiered.ingest_task import IngestTask

        context = TaskContext.get()
        assert context is not None, "runs in a task"
        bucket, number = self._options.bucket, context.partitionId()
        with bucket.opened() as store, bucket.scratch() as directory:
            task = IngestTask(store, self._plan, number, storage=DiskStorage(), directory=directory, keys=bucket.keys())
            try:
                router = Router(task, self._plan, number)
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
    and what `tiered.ingest.plan_ingest` raises."""
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


class Router:
    """Sends the rows of one task to their partitions, in order."""

    def __init__(self, task: IngestTask, plan: IngestPlan, number: int) -> None:
        self._task, self._plan, self._turn = task, plan, number

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises InvalidRequest for another topic and for a partition that is none."""
        import numpy as np
        import pyarrow as pa

        from local.record_columns import of_arrow

        if not batch.num_rows:
            return
        names = batch.schema.names
        others = set(batch["topic"].unique().to_pylist()) - {None, self._plan.topic} if "topic" in names else set()
        if others:
            other, expected = others.pop(), self._plan.topic
            raise InvalidRequest("writing with spark, a row of another topic", topic=other, expected=expected)
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
        import numpy as np

        known: Any = batch["partition"] if "partition" in batch.schema.names else None
        if known is not None and not known.null_count:
            return np.asarray(known, np.int64)
        found = self._by_key(batch)
        if known is not None:
            is_there = np.asarray(known.is_valid(), np.bool_)
            found = np.where(is_there, np.asarray(known.fill_null(0), np.int64), found)
        return found

    def _by_key(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """As Kafka's default partitioner has it: murmur2 of the key; rows without one go together, in turns."""
        import numpy as np
        import pyarrow as pa

        from local.kernels import hash_keys
        from local.record_columns import of_arrow

        count = len(self._plan.targets)
        self._turn += 1
        if "key" not in batch.schema.names:
            return np.full(batch.num_rows, self._turn % count, np.int64)
        (columns,) = of_arrow(pa.table({"key": batch["key"]}), now_ms=0)
        hashed = hash_keys(columns.key_data, columns.key_starts, np.maximum(columns.key_lengths, 0))
        found = (hashed.astype(np.int64) & 0x7FFFFFFF) % count
        return np.where(columns.key_lengths < 0, self._turn % count, found)


def _check_columns(schema: StructType) -> None:
    has = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in COLUMNS.items())
    for field in schema.fields:
        if field.dataType.simpleString() not in COLUMNS.get(field.name, ()):
            asked = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidRequest("writing with spark, no such column", asked=asked, has=has)
    if "value" not in schema.fieldNames():
        raise InvalidRequest("writing with spark, the column value is needed", has=", ".join(schema.fieldNames()))


def _in_ms(column: pa.Array[Any]) -> pa.Array[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    return column.cast(pa.int64())


def _parts(messages: list[WriterCommitMessage | None]) -> list[Ingested]:
    return [pickle.loads(each.ingested) for each in messages if isinstance(each, Written)]  # noqa: S301 - our own


def _now_ms() -> int:
    return int(time.time() * 1000)
