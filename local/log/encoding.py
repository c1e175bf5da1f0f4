"""Check and encode records as batches, mostly before the log's lock is taken.

| rule | refused with |
|---|---|
| a batch, as it is stored, fits in `max_message_bytes` and in a segment | InvalidRequest |
| a compacted topic's records have keys, unless `drops_keyless` | InvalidRequest, the records' indexes in `records` |
| CreateTime: now - before <= time <= now + after, each record; -1 is "no time" and always allowed | the same |

Columns without a codec are encoded during the append, in runs of a few MiB that stay in the cache: twice as fast.
Source: kafka `LogValidator`, `UnifiedLog.analyzeAndValidateRecords`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from local import kernels
from local.errors import InvalidRequest
from local.format.batch_header import HEADER_BYTES, LOG_APPEND_TIME, read_header, seal
from local.format.columns import Longs
from local.format.compression import Codec
from local.format.record import Record, TimestampType
from local.log.producer_state import Producer
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.record_columns import RecordColumns
from local.settings import LogSettings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_RECORD_OVERHEAD_BYTES = 12  # about: length, attributes, deltas, key and value length, header count of one record
_SAMPLES = 64
_RUN_BYTES = 2 << 20
_NO_TIMESTAMP = -1
_NAMED_MAX = 10
_INT64_MAX = 2**63 - 1

Cut = tuple[RecordColumns, Longs, Longs]


@dataclass(frozen=True, slots=True)
class _Append:
    settings: LogSettings
    partition: TopicPartition
    now_ms: int

    @property
    def limit(self) -> int:
        return min(self.settings.max_message_bytes, self.settings.segment_bytes)

    @property
    def is_timed_by_log(self) -> bool:
        return self.settings.timestamp_type is TimestampType.LOG_APPEND_TIME

    def check_size(self, size: int) -> None:
        """Check an encoded batch against `max_message_bytes` and against a whole segment."""
        limits = {"max.message.bytes": self.settings.max_message_bytes, "segment.bytes": self.settings.segment_bytes}
        for name, limit in limits.items():
            if size > limit:
                facts = {"size_bytes": size, name.replace(".", "_"): limit}
                raise InvalidRequest(f"cannot append, a batch is larger than {name}", partition=self.partition, **facts)

    def check_keys(self, missing: Iterable[int]) -> None:
        """Refuse (Kafka's INVALID_RECORD) the records without a key, `missing`, where the topic needs keys."""
        needs_keys = self.settings.is_compacted and not self.settings.drops_keyless
        if needs_keys and (named := list(missing)[:_NAMED_MAX]):
            attempt = "cannot append to a compacted topic, a record has no key"
            raise InvalidRequest(attempt, partition=self.partition, records=named)

    def check_times(self, times: ArrayLike) -> None:
        """Check the records' times (ms, in order) against the topic's limits."""
        before, after = self.settings.timestamp_before_max_ms, self.settings.timestamp_after_max_ms
        if self.is_timed_by_log or (before is None and after is None):
            return
        found = np.asarray(times, np.int64)
        outside = np.zeros(len(found), bool)
        if before is not None:
            outside |= found < max(self.now_ms - before, -_INT64_MAX)
        if after is not None:
            outside |= found > min(self.now_ms + after, _INT64_MAX)
        wrong = np.flatnonzero(outside & (found != _NO_TIMESTAMP))
        if len(wrong):
            raise InvalidRequest(
                "cannot append, a record time is outside the range that the topic allows",
                partition=self.partition,
                records=wrong[:_NAMED_MAX].tolist(),
                count=len(wrong),
                first_timestamp_ms=int(found[wrong[0]]),
                earliest_ms=None if before is None else self.now_ms - before,
                latest_ms=None if after is None else self.now_ms + after,
            )


# -- records


def encode_batches(
    records: Sequence[Record],
    settings: LogSettings,
    *,
    partition: TopicPartition,
    now_ms: int,
    producer: Producer | None = None,
) -> list[bytearray]:
    """Return the records as batches at offset 0, with a `producer` as one batch. Raises as the module's table says."""
    append = _Append(settings, partition, now_ms)
    if not records:
        raise InvalidRequest("cannot append, there are no records", partition=partition)
    append.check_keys(at for at, record in enumerate(records) if record[0] is None)
    if producer is not None:
        encoded: Iterable[bytes] = [_encode(append, records, producer)]
    else:
        ranges = _ranges(records, min(settings.batch_bytes, append.limit))
        encoded = (batch for start, end in ranges for batch in _encode_within_limit(append, records[start:end]))
    batches = []
    for batch in encoded:
        append.check_size(len(batch))
        batches.append(bytearray(batch))
    if _may_be_out_of_time(append, batches):
        append.check_times([record[2] for record in records])
    return batches


def _may_be_out_of_time(append: _Append, batches: Iterable[bytearray]) -> bool:
    latest = append.settings.timestamp_after_max_ms
    if append.is_timed_by_log:
        return False
    if append.settings.timestamp_before_max_ms is not None:
        return True
    if latest is None:
        return False
    headers = (read_header(batch) for batch in batches)
    return any(header is not None and header.max_timestamp_ms > append.now_ms + latest for header in headers)


def _encode_within_limit(append: _Append, records: Sequence[Record]) -> Iterator[bytes]:
    """Yield one batch, or those of both halves if it is above the limit: the sample was not typical."""
    batch = _encode(append, records, None)
    if len(batch) <= append.limit or len(records) == 1:
        yield batch
        return
    middle = len(records) // 2
    yield from _encode_within_limit(append, records[:middle])
    yield from _encode_within_limit(append, records[middle:])


def _encode(append: _Append, records: Sequence[Record], producer: Producer | None) -> bytes:
    settings = append.settings
    return encode_batch(
        records,
        codec=settings.compression,
        level=settings.compression_level,
        timestamp_type=settings.timestamp_type,
        append_time_ms=append.now_ms if append.is_timed_by_log else None,
        producer_id=producer.producer_id if producer else -1,
        producer_epoch=producer.producer_epoch if producer else -1,
        base_sequence=producer.base_sequence if producer else -1,
        is_transactional=producer.is_transactional if producer else False,
    )


def _ranges(records: Sequence[Record], batch_bytes: int) -> Iterator[tuple[int, int]]:
    sample = records[:: max(1, len(records) // _SAMPLES)]
    total = sum(len(record[0] or b"") + len(record[1] or b"") + _RECORD_OVERHEAD_BYTES for record in sample)
    each = max(1, batch_bytes * len(sample) // total)
    for start in range(0, len(records), each):
        yield start, min(start + each, len(records))


# -- columns


def encode_column_batches(
    chunks: Sequence[RecordColumns], settings: LogSettings, *, partition: TopicPartition, now_ms: int
) -> Iterable[memoryview]:
    """Return the records as batches without offsets, to iterate once. A batch never spans two chunks.

    The call itself raises InvalidRequest. The columns must not change before the last batch was taken.
    """
    append = _Append(settings, partition, now_ms)
    if not sum(map(len, chunks)):
        raise InvalidRequest("cannot append, there are no records", partition=partition)
    missing, first = list[int](), 0
    for chunk in chunks:
        missing += (first + np.flatnonzero(chunk.key_lengths < 0)[:_NAMED_MAX]).tolist()
        first += len(chunk)
    append.check_keys(missing)
    times = [chunk.timestamps for chunk in chunks]
    append.check_times(times[0] if len(times) == 1 else np.concatenate(times))
    limit = min(settings.batch_bytes, append.limit)
    cuts: list[Cut] = [(chunk, *kernels.cut_columns(chunk, limit)) for chunk in chunks if len(chunk)]
    if settings.compression is Codec.NONE:
        for _, _, sizes in cuts:
            append.check_size(int(sizes.max()))
        return _encoded(append, cuts)
    # The size of a batch is known only after compression, so all batches are compressed before the first append.
    batches = []
    for cut in cuts:
        for batch in _compressed(append, cut):
            append.check_size(len(batch))
            batches.append(batch)
    return batches


def _encoded(append: _Append, cuts: Sequence[Cut]) -> Iterator[memoryview]:
    """Yield the uncompressed batches, with at most one run in memory unless the caller keeps batches."""
    attributes, append_ms = (LOG_APPEND_TIME, append.now_ms) if append.is_timed_by_log else (0, -1)
    for columns, ends, sizes in cuts:
        first, row = 0, 0
        before = np.concatenate(([0], np.cumsum(sizes)))
        while first < len(ends):
            stop = max(first + 1, int(np.searchsorted(before, before[first] + _RUN_BYTES, "right")) - 1)
            size = int(before[stop] - before[first])
            encoded = kernels.encode_columns(columns, row, ends[first:stop], size, attributes, append_ms)
            at = 0
            for length in sizes[first:stop].tolist():
                yield encoded[at : at + length]
                at += length
            row, first = int(ends[stop - 1]), stop
            del encoded


def _compressed(append: _Append, cut: Cut) -> Iterator[memoryview]:
    """Yield the compressed batches of a cut; a batch above the limit (incompressible) is split in halves."""
    columns, ends, _sizes = cut
    settings, first = append.settings, 0
    for end, plain in zip(ends.tolist(), _encoded(append, [cut]), strict=True):
        header = read_header(plain)
        assert header is not None, "just encoded"
        header = header._replace(attributes=header.attributes | settings.compression)
        section = kernels.compress_section(settings.compression, plain[HEADER_BYTES:], settings.compression_level)
        batch = memoryview(bytearray(seal(header, section)))
        if len(batch) <= append.limit or end - first == 1:
            yield batch
        else:
            for half in (slice(first, (first + end) // 2), slice((first + end) // 2, end)):
                rows = columns.select(half)
                yield from _compressed(append, (rows, *kernels.cut_columns(rows, len(plain))))
        first = end
