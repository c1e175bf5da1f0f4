"""The checks and rewrites of an append, done before the log's lock is taken.

| rule | refused with |
|---|---|
| a batch, as it is stored, fits in `max_message_bytes` and in a segment | InvalidRequest |
| a compacted topic's records have keys, unless `drops_keyless` | InvalidRequest, the records' indexes in `records` |
| CreateTime: now - before <= time <= now + after, each record; -1 is "no time" and free | the same |
| LogAppendTime is assigned by the log: a batch with this type is refused | InvalidRequest |
| format 2, dense offsets, no control batch, a producer with epoch and sequence | InvalidRequest |
| checksum, structure, number of records | Corrupt |

| rewritten in a ready-made batch | when |
|---|---|
| attributes, maxTimestamp = now, CRC | the topic has LogAppendTime |
| maxTimestamp, CRC | it is not the largest of the records (retention and time lookups rely on it) |

The rest of a ready-made batch is stored unchanged, compressed records included. The indexes in `records` count from
the first record of the call. Source: kafka `LogValidator`, `UnifiedLog.analyzeAndValidateRecords`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from local import kernels
from local.errors import Corrupt, InvalidRequest
from local.format.record import Record, TimestampType
from local.names import TopicPartition
from local.records.batch import BatchHeader, assign_timestamp, check_batch
from local.settings import LogSettings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NO_TIMESTAMP = -1
_NAMED_MAX = 10
_INT64_MAX = 2**63 - 1


def validate_batch(batch: bytes, settings: LogSettings, *, partition: TopicPartition, now_ms: int) -> bytearray:
    """Return a checked copy of one ready-made batch, ready to append except for its offsets.

    Raises as the tables of the module say.
    """
    header = check_batch(batch)
    _check_form(header, len(batch), partition)
    check_size(len(batch), settings, partition=partition)
    problem = kernels.scan_batches(batch).problem
    if problem is not None or header.record_count < 1:
        raise Corrupt(f"cannot append a batch, {problem or 'it has no records'}", partition=partition)
    columns = kernels.decode_columns(batch)
    if settings.refuses_keyless:
        refuse_keyless(np.flatnonzero(columns.key_lengths < 0).tolist(), partition)
    accepted = bytearray(batch)
    if settings.timestamp_type is TimestampType.LOG_APPEND_TIME:
        assign_timestamp(accepted, TimestampType.LOG_APPEND_TIME, now_ms)
        return accepted
    check_times(columns.timestamps, settings, partition=partition, now_ms=now_ms)
    latest = int(columns.timestamps.max())
    if latest != header.max_timestamp_ms:
        assign_timestamp(accepted, TimestampType.CREATE_TIME, latest)
    return accepted


def check_size(size: int, settings: LogSettings, *, partition: TopicPartition) -> None:
    """Raise InvalidRequest for an encoded batch above `max_message_bytes` or above a whole segment."""
    for name, limit in (("max.message.bytes", settings.max_message_bytes), ("segment.bytes", settings.segment_bytes)):
        if size > limit:
            facts = {"size_bytes": size, name.replace(".", "_"): limit}
            raise InvalidRequest(f"cannot append, a batch is larger than {name}", partition=partition, **facts)


def check_keys(records: Sequence[Record], *, partition: TopicPartition) -> None:
    """Check that each record has a key, for a compacted topic. Raises InvalidRequest with the indexes."""
    refuse_keyless([at for at, record in enumerate(records) if record[0] is None], partition)


def refuse_keyless(missing: Sequence[int], partition: TopicPartition) -> None:
    """Raise InvalidRequest (Kafka's INVALID_RECORD) if `missing` names records without key."""
    if missing:
        raise InvalidRequest(
            "cannot append to a compacted topic, a record has no key", partition=partition, records=missing[:_NAMED_MAX]
        )


def check_times(times: ArrayLike, settings: LogSettings, *, partition: TopicPartition, now_ms: int) -> None:
    """Check the records' times (ms, in order) against the topic's limits.

    Raises InvalidRequest with the indexes of the records outside.
    """
    before, after = settings.timestamp_before_max_ms, settings.timestamp_after_max_ms
    if settings.timestamp_type is TimestampType.LOG_APPEND_TIME or (before is None and after is None):
        return
    found = np.asarray(times, np.int64)
    outside = np.zeros(len(found), bool)
    if before is not None:
        outside |= found < max(now_ms - before, -_INT64_MAX)
    if after is not None:
        outside |= found > min(now_ms + after, _INT64_MAX)
    wrong = np.flatnonzero(outside & (found != NO_TIMESTAMP))
    if len(wrong):
        raise InvalidRequest(
            "cannot append, a record time is outside the range that the topic allows",
            partition=partition,
            records=wrong[:_NAMED_MAX].tolist(),
            count=len(wrong),
            first_timestamp_ms=int(found[wrong[0]]),
            earliest_ms=None if before is None else now_ms - before,
            latest_ms=None if after is None else now_ms + after,
        )


def _check_form(header: BatchHeader, size: int, partition: TopicPartition) -> None:
    if header.is_legacy:
        raise InvalidRequest("cannot append a batch, it is not of format 2", partition=partition, magic=header.magic)
    if header.size_bytes != size:
        raise Corrupt("cannot append a batch, bytes follow its end", partition=partition, size_bytes=size)
    if header.is_control or header.record_count != header.last_offset_delta + 1:
        raise InvalidRequest(
            "cannot append a batch, its offsets have gaps or it is a control batch", partition=partition
        )
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidRequest("cannot append a batch, its timestamp type is LogAppendTime", partition=partition)
    _check_producer(header, partition)


def _check_producer(header: BatchHeader, partition: TopicPartition) -> None:
    """Check that a producer has an epoch and a sequence, and that a transaction has a producer."""
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRequest(
            "cannot append a batch of a producer, it has no epoch or sequence",
            partition=partition,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRequest("cannot append a transactional batch, it has no producer id", partition=partition)
