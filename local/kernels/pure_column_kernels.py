"""Columns to batches, and the hash of keys, in plain Python: the counterpart of `_kernels_columns.pxi`.

Raises only InvalidRequest: the caller supplies the columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import BATCH_BYTES_MAX, HEADER_BYTES, LOG_APPEND_TIME, plain_header, seal
from local.format.record import append_record, read_varint

OUTSIDE_DATA, WRONG_TIME, WRONG_HEADERS, LARGE_BATCH, CHANGED = 1, 2, 3, 4, 5
_REASONS = {
    OUTSIDE_DATA: "cannot encode columns, a key or value is outside the data",
    WRONG_HEADERS: "cannot encode columns, the headers are invalid",
    LARGE_BATCH: "cannot encode a batch, it is larger than 2^31 bytes",
    CHANGED: "cannot encode columns, the columns changed while they were encoded",
}
_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_MASK = 0xFFFFFFFF

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
# The fields of `local.records.record_columns.RecordColumns` in their order.
Source = tuple[memoryview, Longs, Ints, memoryview, Longs, Ints, Longs, memoryview, Longs, Ints]


def cut_columns(columns: Source, batch_bytes: int) -> tuple[Longs, Longs]:
    rows = _row_count(columns)
    ends: list[int] = []
    sizes: list[int] = []
    first, total = 0, HEADER_BYTES
    for row in range(rows):
        size = len(_record(columns, row, first))
        if row > first and total + size > batch_bytes:
            ends.append(row)
            sizes.append(total)
            first, total = row, HEADER_BYTES
            size = len(_record(columns, row, first))
        total += size
        if total > BATCH_BYTES_MAX:
            raise wrong_column(LARGE_BATCH, row, columns[6])
    if rows:
        ends.append(rows)
        sizes.append(total)
    return np.array(ends, np.int64), np.array(sizes, np.int64)


def encode_columns(
    columns: Source, first_row: int, batch_ends: Longs, size_bytes: int, attributes: int, append_time_ms: int
) -> NDArray[np.uint8]:
    """The kernel of `dispatch.encode_columns`. The base offset of a batch is its first row.

    Batch i ends before row ``batch_ends[i]``. No producer, leader epoch 0.
    """
    rows, first = _row_count(columns), first_row
    for index, stop in enumerate(batch_ends.tolist()):
        if not 0 <= first < stop <= rows:
            attempt = "cannot encode columns, the batch ends do not ascend within the rows"
            raise InvalidRequest(attempt, batch=index, rows=rows)
        first = stop
    if not len(batch_ends) or size_bytes <= 0:
        raise InvalidRequest(
            "cannot encode columns, there are no batches", batches=len(batch_ends), size_bytes=size_bytes
        )
    made, first = bytearray(), first_row
    for stop in batch_ends.tolist():
        if size_bytes - len(made) < HEADER_BYTES:
            raise wrong_column(CHANGED, first, columns[6])
        section = bytearray()
        for row in range(first, stop):
            section += _record(columns, row, first)
            if len(made) + HEADER_BYTES + len(section) > size_bytes:
                raise wrong_column(CHANGED, row, columns[6])
        times = columns[6][first:stop]
        largest_ms = append_time_ms if attributes & LOG_APPEND_TIME else int(times.max())
        made += seal(plain_header(first, attributes, (int(times[0]), largest_ms), len(times)), section)
        first = stop
    if len(made) != size_bytes:
        raise wrong_column(CHANGED, first, columns[6])
    return np.frombuffer(made, np.uint8)


def wrong_column(reason: int, row: int, timestamps: Longs) -> InvalidRequest:
    if reason == WRONG_TIME:
        timestamp_ms = int(timestamps[row])
        return InvalidRequest(
            "cannot encode a record, its time is outside -1..2^63-1", row=row, timestamp_ms=timestamp_ms
        )
    return InvalidRequest(_REASONS[reason], row=row)


def _row_count(columns: Source) -> int:
    _keys, key_starts, key_lengths, _values, value_starts, value_lengths, times, _headers, starts, counts = columns
    rows = len(times)
    for column in (key_starts, key_lengths, value_starts, value_lengths):
        if len(column) != rows:
            raise InvalidRequest("cannot encode columns, they differ in length", rows=rows, found=len(column))
    for column in (starts, counts):
        if len(column) != rows and not len(starts) == len(counts) == 0:
            raise InvalidRequest("cannot encode columns, they differ in length", rows=rows, found=len(column))
    return rows


def _record(columns: Source, row: int, first: int) -> bytearray:
    keys, key_starts, key_lengths, values, value_starts, value_lengths, times, header_data, starts, counts = columns
    key_range = int(key_starts[row]), int(key_lengths[row])
    value_range = int(value_starts[row]), int(value_lengths[row])
    if not (_is_inside(keys, *key_range) and _is_inside(values, *value_range)):
        raise wrong_column(OUTSIDE_DATA, row, times)
    if times[row] < -1:
        raise wrong_column(WRONG_TIME, row, times)
    headers: bytes | None = b"\0"
    if len(counts) and counts[row] > 0:
        headers = _headers_at(header_data, int(starts[row]), int(counts[row]))
    if headers is None:
        raise wrong_column(WRONG_HEADERS, row, times)
    record = bytearray()
    key, value = (
        data[start : start + length] if length > 0 else b"" if length == 0 else None
        for data, (start, length) in ((keys, key_range), (values, value_range))
    )
    append_record(record, int(times[row]) - int(times[first]), row - first, key, value, headers)
    return record


def _is_inside(data: memoryview, start: int, length: int) -> bool:
    return length <= 0 or 0 <= start <= len(data) - length


def _headers_at(data: memoryview, start: int, count: int) -> bytes | None:
    at, end = start, len(data)
    if not 0 <= start < end:
        return None
    try:
        declared, at = read_varint(data, at, end)
        if declared != count or count > (end - at) // 2:
            return None
        for _ in range(count):
            for least in (0, -1):
                length, at = read_varint(data, at, end)
                if not least <= length <= end - at:
                    return None
                at += max(length, 0)
    except Corrupt:
        return None
    return bytes(data[start:at])


# -- hashing


def hash_keys(data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.uint32]:
    if len(starts) != len(lengths):
        raise InvalidRequest("hashing keys, starts and lengths differ", starts=len(starts), lengths=len(lengths))
    hashes = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if length > 0 and not 0 <= start <= len(data) - length:
            raise InvalidRequest("cannot hash keys, a range is outside the data", start=start, length=length)
        hashes.append(murmur2(bytes(data[start : start + length]) if length > 0 else b""))
    return np.array(hashes, np.uint32)


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit key hash of Kafka's default partitioner. Source: kafka `Utils.murmur2`."""
    length = len(data)
    h = _SEED ^ length
    whole = length - length % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> _R)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)
