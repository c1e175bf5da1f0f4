"""Encode columns as batches of about the configured size, mostly before the log's lock is taken.

`local.log.encoding` does the same for tuples, with the same checks and errors. Without a codec, all checks come first,
and the bytes are encoded during the append in runs of a few MiB. The memory of a run is then reused and stays in the
cache; encoding whole tables at once halves the speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.errors import InvalidRequest
from local.format.batch_header import HEADER_BYTES, LOG_APPEND_TIME, read_header, seal
from local.format.compression import Codec, compress
from local.format.record import TimestampType
from local.log.append_validation import check_size, check_times, refuse_keyless
from local.names import TopicPartition
from local.records.record_columns import RecordColumns
from local.settings import LogSettings

_RUN_BYTES = 2 << 20

Cut = tuple[RecordColumns, NDArray[np.int64], NDArray[np.int64]]


def encode_column_batches(
    chunks: Sequence[RecordColumns], settings: LogSettings, *, partition: TopicPartition, now_ms: int
) -> Iterable[memoryview]:
    """Return the records as batches without offsets, in order, to iterate once.

    A batch never spans two chunks. The call itself, not the iteration, raises InvalidRequest for:

    - no records, or malformed columns;
    - a single record above `max_message_bytes` or a segment;
    - records without key in a compacted topic;
    - times outside the topic's limits.

    The columns must not change before the last batch was taken.
    """
    if not sum(map(len, chunks)):
        raise InvalidRequest("cannot append, there are no records", partition=partition)
    if settings.refuses_keyless:
        _check_keys(chunks, partition)
    times = [chunk.timestamps for chunk in chunks]
    check_times(times[0] if len(times) == 1 else np.concatenate(times), settings, partition=partition, now_ms=now_ms)
    limit = min(settings.batch_bytes, settings.max_message_bytes, settings.segment_bytes)
    cuts: list[Cut] = [(chunk, *kernels.cut_columns(chunk, limit)) for chunk in chunks if len(chunk)]
    if settings.compression is Codec.NONE:
        for _, _, sizes in cuts:
            check_size(int(sizes.max()), settings, partition=partition)
        return _encoded(cuts, settings, now_ms)
    # The size of a batch is known only after compression, so all batches are compressed before the first append.
    batches = []
    for cut in cuts:
        for batch in _compressed(cut, settings, now_ms):
            check_size(len(batch), settings, partition=partition)
            batches.append(batch)
    return batches


def _check_keys(chunks: Sequence[RecordColumns], partition: TopicPartition) -> None:
    missing: list[int] = []
    first = 0
    for chunk in chunks:
        missing += (first + np.flatnonzero(chunk.key_lengths < 0)[:10]).tolist()
        first += len(chunk)
    refuse_keyless(missing, partition)


def _encoded(cuts: Sequence[Cut], settings: LogSettings, now_ms: int) -> Iterator[memoryview]:
    """Yield the uncompressed batches, with at most one run in memory unless the caller keeps batches."""
    at_append = settings.timestamp_type is TimestampType.LOG_APPEND_TIME
    attributes, append_ms = (LOG_APPEND_TIME, now_ms) if at_append else (0, -1)
    for columns, ends, sizes in cuts:
        first, row = 0, 0
        before = np.concatenate(([0], np.cumsum(sizes)))
        while first < len(ends):
            stop = max(first + 1, int(np.searchsorted(before, before[first] + _RUN_BYTES, "right")) - 1)
            size = int(before[stop] - before[first])
            made = kernels.encode_columns(columns, row, ends[first:stop], size, attributes, append_ms)
            at = 0
            for length in sizes[first:stop].tolist():
                yield made[at : at + length]
                at += length
            row, first = int(ends[stop - 1]), stop
            del made


def _compressed(cut: Cut, settings: LogSettings, now_ms: int) -> Iterator[memoryview]:
    """Yield the compressed batches of a cut; a batch above the limit (incompressible) is split in halves."""
    columns, ends, _sizes = cut
    first = 0
    for end, plain in zip(ends.tolist(), _encoded([cut], settings, now_ms), strict=True):
        header = read_header(plain)
        assert header is not None, "just encoded"
        header = replace(header, attributes=header.attributes | settings.compression)
        section = compress(settings.compression, plain[HEADER_BYTES:], settings.compression_level)
        batch = memoryview(bytearray(seal(header, section)))
        if len(batch) <= min(settings.max_message_bytes, settings.segment_bytes) or end - first == 1:
            yield batch
        else:
            for half in (slice(first, (first + end) // 2), slice((first + end) // 2, end)):
                rows = columns.select(half)
                yield from _compressed((rows, *kernels.cut_columns(rows, len(plain))), settings, now_ms)
        first = end
