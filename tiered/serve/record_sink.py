"""What the handlers need to append to a log: `RecordSink`. A node implements it (`tiered.serve.node.node_sink`).

An append returns when its batches are written. `RecordSink.flush` makes everything written before its call durable; a
caller repeats it until the returned offset covers its own batches. So any number of appends share one fsync.

| error of an append | Kafka's code |
|---|---|
| RefusedBatch | its own |
| OutOfOrderSequence | OUT_OF_ORDER_SEQUENCE_NUMBER |
| ProducerFenced | INVALID_PRODUCER_EPOCH |
| InvalidRequest with TRANSACTION_OPEN | INVALID_TXN_STATE |
| Fenced | NOT_LEADER_OR_FOLLOWER: the client looks for another leader |
| NotFound | UNKNOWN_TOPIC_OR_PARTITION |
| another LogError: a full disk, an offline directory, a diverged log | KAFKA_STORAGE_ERROR: the client tries again |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from local.errors import InvalidRequest
from local.format.batch_header import (
    CODEC_BITS,
    LENGTH_MIN,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_END,
    BatchHeader,
    read_header,
)
from local.format.compression import Codec
from tiered.serve.messages.base import Error

if TYPE_CHECKING:
    from local.log.producer_state import ProducerEntry
    from local.names import TopicPartition

_ENTRY_BYTES_MIN = 14  # kafka LegacyRecord.RECORD_OVERHEAD_V0: no size field is smaller
_ZSTD_SINCE = 7  # the first version of Produce with zstd


class RecordError(NamedTuple):
    """A record that is the reason to refuse its batch (KIP-467)."""

    position: int  # in the batch, from 0
    message: str


class RefusedBatch(InvalidRequest):
    """A batch that Kafka refuses with its fact `error`; `records` are the refused records, if single ones are."""

    @property
    def error(self) -> Error:
        found = self.facts["error"]
        assert isinstance(found, Error)
        return found

    @property
    def message(self) -> str | None:
        """Kafka's message for the client, where Kafka sends one."""
        found = self.facts.get("message")
        return found if isinstance(found, str) else None

    @property
    def records(self) -> Sequence[RecordError]:
        found = self.facts.get("records", ())
        assert isinstance(found, Sequence)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The appended offsets ``[base_offset, next_offset)``; with `is_duplicate` those of the first append.

    `log_append_time_ms` is -1 unless the log sets the times; a duplicate has the time of its batch, as Kafka's.
    """

    base_offset: int
    next_offset: int
    log_start_offset: int
    log_append_time_ms: int = -1
    is_duplicate: bool = False


class RecordSink(Protocol):
    """Logs to append to. Thread safe. Every verb may wait for a disk. Raises as the module's table says."""

    def append(
        self, partition: TopicPartition, batches: memoryview, *, topic_id: UUID | None = None, is_client: bool = True
    ) -> Appended:
        """Append whole batches of format 2, which may be changed in place. The batches are written on return.

        Not `is_client`: the batches of a coordinator, which need neither base offset 0 nor a sequence. With a
        `topic_id` the topic must have this id, else NotFound is raised.
        """

    def append_marker(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
    ) -> Appended:
        """End the transaction of a producer. The marker is written on return."""

    def flush(self, partition: TopicPartition) -> int:
        """Make everything written before the call durable on the disk; return the log end offset at the call."""

    def is_acked_by_bucket(self, partition: TopicPartition) -> bool:
        """Whether the topic has ``append.acks=remote``. Waits for nothing."""

    def check_acks(self, partition: TopicPartition) -> None:
        """Raise RefusedBatch if the bucket cannot acknowledge an append now. Other topics pass."""

    def when_in_bucket(
        self, partition: TopicPartition, next_offset: int, notify: Callable[[Exception | None], None]
    ) -> Callable[[], None]:
        """Call `notify`, from any thread, once the bucket holds all records below `next_offset`, or with an error.

        The result cancels the wait.
        """

    def producers(self, partition: TopicPartition) -> Sequence[ProducerEntry]:
        """The producers that the log knows, by producer id."""

    def new_producer_id(self) -> int:
        """An id that no producer of this node has or had. The reservation is durable."""


class PromptSink(Protocol):
    """Appends that wait neither for another thread nor for a disk, in the event loop."""

    def append_now(
        self, partition: TopicPartition, batches: memoryview, *, topic_id: UUID | None = None, waits: bool = False
    ) -> Appended | None:
        """As `RecordSink.append` for a client; None, with `batches` unchanged: the `RecordSink` appends.

        `waits`: the client waits until the records are durable.
        """


def whole_batches(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """(position, bytes, magic) of each batch in `data`; a batch that is cut off at the end is left out.

    Raises RefusedBatch, with Kafka's message, for a size or a magic that no batch has. Source: kafka
    `ByteBufferLogInputStream`.
    """
    at = 0
    while len(data) - at >= LENGTH_OVERHEAD:
        length = int.from_bytes(data[at + 8 : at + LENGTH_OVERHEAD], "big", signed=True)
        if length < _ENTRY_BYTES_MIN:
            told = f"Record size {length} is less than the minimum record overhead ({_ENTRY_BYTES_MIN})"
            raise RefusedBatch("cannot append, a batch is too short", error=Error.CORRUPT_MESSAGE, message=told)
        if len(data) - at < MAGIC_END:
            return
        magic = data[at + MAGIC_END - 1]
        if magic > MAGIC:
            told = f"Invalid magic found in record: {magic}"
            raise RefusedBatch("cannot append, a batch is of no format", error=Error.CORRUPT_MESSAGE, message=told)
        size = length + LENGTH_OVERHEAD
        if len(data) - at < size:
            return
        yield at, size, magic
        at += size


def check_produced(data: memoryview, version: int) -> BatchHeader:
    """The header of the only batch that a partition of a Produce request may have. Raises RefusedBatch.

    Source: kafka `ProduceRequest.validateRecords`.
    """
    batches = whole_batches(data)
    first = next(batches, None)
    if first is None:
        raise RefusedBatch("cannot append, the request has no whole batch", error=Error.INVALID_RECORD)
    at, size, magic = first
    if magic != MAGIC:
        raise RefusedBatch("cannot append, a batch has format 0 or 1", error=Error.INVALID_RECORD, magic=magic)
    if size < LENGTH_MIN + LENGTH_OVERHEAD:
        raise RefusedBatch("cannot append, a batch is too short", error=Error.CORRUPT_MESSAGE, size_bytes=size)
    header = read_header(data, at)
    assert header is not None, "a whole batch"
    if version < _ZSTD_SINCE and header.attributes & CODEC_BITS == Codec.ZSTD:
        wrong = "cannot append, this version of Produce has no zstd"
        raise RefusedBatch(wrong, error=Error.UNSUPPORTED_COMPRESSION_TYPE, version=version)
    if next(batches, None) is not None:
        raise RefusedBatch("cannot append, the request has more than one batch", error=Error.INVALID_RECORD)
    return header
