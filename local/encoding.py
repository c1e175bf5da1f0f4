"""From many records to batches of a sensible size: what an append does before it takes the log's lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from local import kernels
from local.batch import BatchHeader, check_batch, encode_batch
from local.errors import Corrupt, InvalidRequest
from local.names import TopicPartition
from local.producer_state import Producer
from local.record import Record, TimestampType
from local.settings import LogSettings

# Length, attributes, deltas, key and value length, header count of one record, about.
_RECORD_OVERHEAD_BYTES = 12
_SAMPLES = 64


def encode_batches(
    records: Sequence[Record],
    settings: LogSettings,
    *,
    partition: TopicPartition,
    now_ms: int,
    producer: Producer | None = None,
) -> list[bytearray]:
    """The records as batches at offset 0, ready to be given their offsets.

    With a `producer` they are one batch, for a batch is what a retry repeats. Raises InvalidRequest for no records, for
    a single record (with a producer: the one batch) above `max_message_bytes`, and for records without key in a
    compacted topic.
    """
    if not records:
        raise InvalidRequest("appending, no records", partition=partition)
    if settings.is_compacted:
        _check_keys(records, partition)
    if producer is not None:
        batch = _encode(records, settings, now_ms, producer)
        check_size(len(batch), settings, partition=partition)
        return [bytearray(batch)]
    batches = []
    for start, end in _chunks(records, min(settings.batch_bytes, settings.max_message_bytes)):
        for batch in _encode_within_limit(records[start:end], settings, now_ms):
            check_size(len(batch), settings, partition=partition)
            batches.append(bytearray(batch))
    return batches


def check_size(size: int, settings: LogSettings, *, partition: TopicPartition) -> None:
    """Raises InvalidRequest for an encoded batch above `max_message_bytes`."""
    if size > settings.max_message_bytes:
        limit = settings.max_message_bytes
        raise InvalidRequest(
            "appending, batch above max.message.bytes", partition=partition, size_bytes=size, max_message_bytes=limit
        )


def check_ready_made(batch: bytes, settings: LogSettings, *, partition: TopicPartition) -> None:
    """One whole batch of dense user records, decodable to the last byte, as a producer sends it.

    Raises Corrupt when a recovery or a reader would refuse it (everything after it would be cut), InvalidRequest for a
    control batch, gaps in the offsets, half a producer, a record without key in a compacted topic, or a batch above
    the limit.
    """
    header = check_batch(batch)
    if header.is_legacy:
        raise InvalidRequest("appending a batch, not of format 2", partition=partition, magic=header.magic)
    if header.size_bytes != len(batch):
        raise Corrupt("appending a batch, bytes after its end", partition=partition, size_bytes=len(batch))
    if header.is_control or header.record_count != header.last_offset_delta + 1:
        raise InvalidRequest("appending a batch, offsets not dense or a control batch", partition=partition)
    _check_producer(header, partition)
    check_size(len(batch), settings, partition=partition)
    problem = kernels.scan_batches(batch).problem
    if problem is not None or header.record_count < 1:
        raise Corrupt(f"appending a batch, {problem or 'no records'}", partition=partition)
    columns = kernels.decode_columns(batch)
    if settings.is_compacted and (columns.key_lengths < 0).any():
        raise InvalidRequest("appending to a compacted topic, records without key", partition=partition)


def _check_producer(header: BatchHeader, partition: TopicPartition) -> None:
    """A producer comes with an epoch and a sequence, and a transaction with a producer."""
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRequest(
            "appending a producer's batch without epoch or sequence",
            partition=partition,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRequest("appending a transactional batch without a producer", partition=partition)


def _check_keys(records: Sequence[Record], partition: TopicPartition) -> None:
    missing = [at for at, record in enumerate(records) if record[0] is None]
    if missing:
        raise InvalidRequest(
            "appending to a compacted topic, records without key", partition=partition, records=missing[:10]
        )


def _encode_within_limit(records: Sequence[Record], settings: LogSettings, now_ms: int) -> Iterator[bytes]:
    """One batch, or the batches of both halves when it came out too large (the sample misjudged the sizes)."""
    batch = _encode(records, settings, now_ms, None)
    if len(batch) <= settings.max_message_bytes or len(records) == 1:
        yield batch
        return
    middle = len(records) // 2
    yield from _encode_within_limit(records[:middle], settings, now_ms)
    yield from _encode_within_limit(records[middle:], settings, now_ms)


def _encode(records: Sequence[Record], settings: LogSettings, now_ms: int, producer: Producer | None) -> bytes:
    at_append = settings.timestamp_type is TimestampType.LOG_APPEND_TIME
    return encode_batch(
        records,
        codec=settings.compression,
        level=settings.compression_level,
        timestamp_type=settings.timestamp_type,
        append_time_ms=now_ms if at_append else None,
        producer_id=producer.producer_id if producer else -1,
        producer_epoch=producer.producer_epoch if producer else -1,
        base_sequence=producer.base_sequence if producer else -1,
        is_transactional=producer.is_transactional if producer else False,
    )


def _chunks(records: Sequence[Record], batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of equal numbers of records, the number judged by a sample, so that a batch is about `batch_bytes`."""
    sample = records[:: max(1, len(records) // _SAMPLES)]
    total = sum(len(record[0] or b"") + len(record[1] or b"") + _RECORD_OVERHEAD_BYTES for record in sample)
    each = max(1, batch_bytes * len(sample) // total)
    for start in range(0, len(records), each):
        yield start, min(start + each, len(records))
