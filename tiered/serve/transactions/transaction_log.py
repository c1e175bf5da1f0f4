"""The storage of the coordinator: the topic ``__transaction_state``, and markers in any partition of the node.

The topic has Kafka's settings: compacted, not compressed, segments of 100 MiB. It is created on first use, by default
with one partition: one log shares its fsyncs among all transactions. A topic that came from a broker has its own number
of partitions. Its other settings are the node's, so it is tiered and restored as the node's other topics are.

Source: kafka `TransactionStateManager`, `TransactionLog`, `TransactionLogConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from local import kernels
from local.errors import Corrupt
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.isolation import Isolation
from tiered.serve.file_range import FileRange
from tiered.serve.groups.loader import partition_of
from tiered.serve.record_sink import RecordSink
from tiered.serve.record_source import RecordSource
from tiered.serve.transactions.coordinator import EndMarker, TransactionSettings
from tiered.serve.transactions.transaction_records import decode_key, decode_value

if TYPE_CHECKING:
    from local.log.producer_state import ProducerEntry

TRANSACTION_TOPIC = "__transaction_state"
READ_BYTES = 4 << 20


class TopicTransactionLog:
    """A `TransactionStorage` over a source and a sink. Thread safe.

    `create_topic` creates a topic with a number of partitions and settings; an existing one is no error.
    """

    def __init__(
        self,
        source: RecordSource,
        sink: RecordSink,
        create_topic: Callable[[str, int, Mapping[str, str]], None],
        clock_ms: Callable[[], int],
        settings: TransactionSettings | None = None,
    ) -> None:
        self._source, self._sink, self._create_topic, self._clock_ms = source, sink, create_topic, clock_ms
        self._settings = settings or TransactionSettings()

    def read_all(self) -> Iterator[tuple[bytes, bytes | None]]:
        topic = self._source.topics().get(TRANSACTION_TOPIC)
        for number in topic.partitions if topic is not None else ():
            yield from self._read(TopicPartition(TRANSACTION_TOPIC, number))

    def highest_producer_id(self) -> int:
        """The highest producer id of all records, -1 without one: an id may have written no batch. Raises LogError."""
        highest = -1
        for key, value in self.read_all():
            name = decode_key(key)
            if name is not None and value is not None:
                found = decode_value(name, value)
                highest = max(highest, found.producer_id, found.next_producer_id)
        return highest

    def append(self, transactional_id: str, key: bytes, value: bytes | None, *, is_durable: bool) -> None:
        where = self._partition_of(transactional_id, creates=True)
        batch = encode_batch([(key, value, self._clock_ms())])
        appended = self._sink.append(where, memoryview(bytearray(batch)), is_client=False)
        while is_durable and self._sink.flush(where) < appended.next_offset:
            pass  # a flush that began before the append

    def write_marker(self, partition: TopicPartition, marker: EndMarker) -> None:
        self._sink.append_marker(
            partition,
            marker.producer_id,
            marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
        )

    def flush(self, partition: TopicPartition) -> None:
        self._sink.flush(partition)

    def producers(self, partition: TopicPartition) -> Sequence[ProducerEntry]:
        return self._sink.producers(partition)

    def coordinator_epoch(self, transactional_id: str) -> int:
        epochs = self._source.epochs(self._partition_of(transactional_id, creates=False))
        return epochs[-1][0] if epochs else 0

    def _partition_of(self, transactional_id: str, *, creates: bool) -> TopicPartition:
        topic = self._source.topics().get(TRANSACTION_TOPIC)
        if topic is None and creates:
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(self._settings.segment_bytes),
            }
            self._create_topic(TRANSACTION_TOPIC, self._settings.partitions, settings)
            topic = self._source.topics().get(TRANSACTION_TOPIC)
        count = self._settings.partitions if topic is None else len(topic.partitions)
        return TopicPartition(TRANSACTION_TOPIC, partition_of(transactional_id, count))

    def _read(self, partition: TopicPartition) -> Iterator[tuple[bytes, bytes | None]]:
        bounds = self._source.bounds(partition)
        offset, end = bounds.log_start_offset, bounds.high_watermark
        while offset < end:
            found = self._source.read(partition, offset, isolation=Isolation.READ_UNCOMMITTED, bytes_max=READ_BYTES)
            before = offset
            for run in found.runs:
                columns = kernels.decode_columns(run.read() if isinstance(run, FileRange) else run)
                for at in range(len(columns)):
                    if (key := columns.key(at)) is not None:
                        yield key, columns.value(at)
                offset = int(columns.table.last_offsets[-1]) + 1
            if offset == before:
                raise Corrupt("cannot read the states of transactions, the log ends early", partition=partition)
