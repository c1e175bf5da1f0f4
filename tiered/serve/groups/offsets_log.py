"""The storage of groups: the topic ``__consumer_offsets`` as an `OffsetsLog`, over a source and a sink of records.

The topic has Kafka's settings: compacted, segments of 100 MiB, the producer's compression. It is created on first use.
Its other settings are the node's, so it is tiered and restored as the node's other topics are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from local import kernels
from local.errors import Corrupt
from local.format.batch_header import CONTROL, TRANSACTIONAL
from local.names import TopicPartition
from local.records.batch import encode_batch, read_marker
from local.records.isolation import Isolation
from tiered.serve.file_range import FileRange
from tiered.serve.record_sink import RecordSink
from tiered.serve.record_source import RecordSource

OFFSETS_TOPIC = "__consumer_offsets"
READ_BYTES = 4 << 20
BATCH_BYTES_MAX = 512 << 10  # of the records of one append; the limit of a topic is 1 MiB

LogRecord = tuple[bytes, bytes | None]  # key, value


class LoadedRecord(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


class Producer(NamedTuple):
    """The transactional producer of an append."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBatch:
    """`producer_id` is None outside a transaction. `is_commit` is None unless the batch is a marker."""

    producer_id: int | None = None
    is_commit: bool | None = None
    records: Sequence[LoadedRecord] = ()


class OffsetsLog(Protocol):
    """Thread safe. Every verb may wait for a disk. Errors are those of `RecordSource` and `RecordSink`."""

    def partition_count(self) -> int | None:
        """None: the topic does not exist."""

    def create(self, partitions: int) -> int:
        """Create the topic unless it exists. Returns its number of partitions."""

    def read(self, partition: int) -> Iterator[LoadedBatch]:
        """All batches of a partition up to its end, aborted transactions and markers included."""

    def append(
        self, partition: int, records: Sequence[LogRecord], *, now_ms: int, producer: Producer | None = None
    ) -> int:
        """Append one batch. It is durable on return, which is its base offset."""


class TopicOffsetsLog:
    """`create_topic` creates a topic with a number of partitions and settings; an existing one is no error."""

    def __init__(
        self,
        source: RecordSource,
        sink: RecordSink,
        create_topic: Callable[[str, int, Mapping[str, str]], None],
        segment_bytes: int,
    ) -> None:
        self._source, self._sink, self._create_topic = source, sink, create_topic
        self._segment_bytes = segment_bytes

    def partition_count(self) -> int | None:
        topic = self._source.topics().get(OFFSETS_TOPIC)
        return len(topic.partitions) if topic is not None else None

    def create(self, partitions: int) -> int:
        count = self.partition_count()
        if count is None:
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(self._segment_bytes),
            }
            self._create_topic(OFFSETS_TOPIC, partitions, settings)
            count = self.partition_count()
        return partitions if count is None else count

    def read(self, partition: int) -> Iterator[LoadedBatch]:
        where = TopicPartition(OFFSETS_TOPIC, partition)
        bounds = self._source.bounds(where)
        offset, end = bounds.log_start_offset, bounds.high_watermark
        while offset < end:
            found = self._source.read(where, offset, isolation=Isolation.READ_UNCOMMITTED, bytes_max=READ_BYTES)
            before = offset
            for run in found.runs:
                for batch, offset in batches_of(memoryview(run.read()) if isinstance(run, FileRange) else run):  # noqa: B007 - the position after the batch
                    yield batch
            if offset == before:
                raise Corrupt("cannot read the offsets of groups, the log ends early", partition=where, offset=offset)

    def append(
        self, partition: int, records: Sequence[LogRecord], *, now_ms: int, producer: Producer | None = None
    ) -> int:
        where = TopicPartition(OFFSETS_TOPIC, partition)
        batch = encode_batch(
            [(key, value, now_ms) for key, value in records],
            producer_id=-1 if producer is None else producer.producer_id,
            producer_epoch=-1 if producer is None else producer.producer_epoch,
            is_transactional=producer is not None,
        )
        appended = self._sink.append(where, memoryview(bytearray(batch)), is_client=False)
        while self._sink.flush(where) < appended.next_offset:
            pass
        return appended.base_offset


def batches_of(run: memoryview) -> Iterator[tuple[LoadedBatch, int]]:
    """Each batch of a run, and the offset after it."""
    columns = kernels.decode_columns(run)
    table = columns.table
    at = 0
    ordinals = columns.batch_ordinals.tolist()
    for row in range(len(table)):
        attributes, producer_id = int(table.attributes[row]), int(table.producer_ids[row])
        next_offset = int(table.last_offsets[row]) + 1
        start = at
        while at < len(ordinals) and ordinals[at] == row:
            at += 1
        if attributes & CONTROL:
            marker = read_marker(run, int(table.positions[row]))
            if marker is not None:
                yield LoadedBatch(producer_id=producer_id, is_commit=marker.is_commit), next_offset
                continue
        records = [LoadedRecord(int(columns.offsets[i]), columns.key(i), columns.value(i)) for i in range(start, at)]
        is_transactional = bool(attributes & TRANSACTIONAL)
        yield LoadedBatch(producer_id=producer_id if is_transactional else None, records=records), next_offset
