"""Encode records as batches of about the configured size, before the log's lock is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from local.errors import InvalidRequest
from local.format.record import Record, TimestampType
from local.log.append_validation import check_keys, check_size, check_times
from local.log.producer_state import Producer
from local.names import TopicPartition
from local.records.batch import encode_batch, read_header
from local.settings import LogSettings

# The approximate bytes of length, attributes, deltas, key and value length and header count of one record.
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
    """Return the records as batches at offset 0, ready to get their offsets.

    With a `producer` the records become one batch, because a retry repeats a batch. Raises InvalidRequest for:

    - no records;
    - a single record (with a producer: the one batch) above `max_message_bytes` or a segment;
    - records without key in a compacted topic;
    - record times outside the topic's limits.
    """
    if not records:
        raise InvalidRequest("cannot append, there are no records", partition=partition)
    if settings.refuses_keyless:
        check_keys(records, partition=partition)
    if producer is not None:
        encoded: Iterable[bytes] = [_encode(records, settings, now_ms, producer)]
    else:
        encoded = _encode_in_batches(records, settings, now_ms)
    batches = []
    for batch in encoded:
        check_size(len(batch), settings, partition=partition)
        batches.append(bytearray(batch))
    if _may_be_out_of_time(batches, settings, now_ms):
        check_times([record[2] for record in records], settings, partition=partition, now_ms=now_ms)
    return batches


def _may_be_out_of_time(batches: Iterable[bytearray], settings: LogSettings, now_ms: int) -> bool:
    """Whether each record's time must be checked: headers hold the largest time, but not the smallest."""
    if settings.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return False
    if settings.timestamp_before_max_ms is not None:
        return True
    latest = settings.timestamp_after_max_ms
    headers = (read_header(batch) for batch in batches) if latest is not None else ()
    return any(header is not None and header.max_timestamp_ms > now_ms + (latest or 0) for header in headers)


def _encode_in_batches(records: Sequence[Record], settings: LogSettings, now_ms: int) -> Iterator[bytes]:
    limit = min(settings.max_message_bytes, settings.segment_bytes)
    for start, end in _chunks(records, min(settings.batch_bytes, limit)):
        yield from _encode_within_limit(records[start:end], settings, now_ms, limit)


def _encode_within_limit(records: Sequence[Record], settings: LogSettings, now_ms: int, limit: int) -> Iterator[bytes]:
    """Yield one batch, or the batches of both halves if it is above the limit (atypical sample)."""
    batch = _encode(records, settings, now_ms, None)
    if len(batch) <= limit or len(records) == 1:
        yield batch
        return
    middle = len(records) // 2
    yield from _encode_within_limit(records[:middle], settings, now_ms, limit)
    yield from _encode_within_limit(records[middle:], settings, now_ms, limit)


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
    """Yield ranges of equal numbers of records, for batches of about `batch_bytes`, judged by a sample."""
    sample = records[:: max(1, len(records) // _SAMPLES)]
    total = sum(len(record[0] or b"") + len(record[1] or b"") + _RECORD_OVERHEAD_BYTES for record in sample)
    each = max(1, batch_bytes * len(sample) // total)
    for start in range(0, len(records), each):
        yield start, min(start + each, len(records))
