"""The hot loops in plain Python: reference of the compiled kernels, fallback without a compiler.

Functions, arguments and results equal those of `local.kernels._kernels`; `local.kernels.dispatch` documents them. All
functions raise only Corrupt (the bytes contradict the format) and InvalidRequest (a wrong call).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import (
    BATCH_BYTES_MAX,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    INT_MAX,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    LONG_MAX,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    batch_problem,
    plain_header,
    seal,
    size_problem,
)
from local.format.columns import COLUMN_DTYPES, TABLE_DTYPES, BatchTable, Columns, Ints, Longs, Octets, arrays_of
from local.format.crc32c import crc32c
from local.format.record import (
    append_record,
    append_varint,
    header_bytes,
    read_varint,
    read_varlong,
    varint_bytes,
    wrapped,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

REBUILT_GROWTH_MAX = 12  # maximum growth of a re-based record: time delta 1 to 10 bytes, and its length field

PLAIN, PACKED, MESSAGE = range(3)  # kinds of batches: uncompressed, compressed, a message of format 0 or 1
DROP, VERBATIM, REBUILD, EMPTY, REBASE = range(5)  # actions of `rebuild_batches` on a batch
OUTSIDE_DATA, WRONG_TIME, WRONG_HEADERS, LARGE_BATCH, CHANGED = 1, 2, 3, 4, 5
_REASONS = {
    OUTSIDE_DATA: "cannot encode columns, a key or value is outside the data",
    WRONG_HEADERS: "cannot encode columns, the headers are invalid",
    LARGE_BATCH: "cannot encode a batch, it is larger than 2^31 bytes",
    CHANGED: "cannot encode columns, the columns changed while they were encoded",
}
_SEED, _M, _R, _MASK = 0x9747B28C, 0x5BD1E995, 24, 0xFFFFFFFF  # of murmur2
# The fields of `local.records.record_columns.RecordColumns` in their order.
Source = tuple[memoryview, Longs, Ints, memoryview, Longs, Ints, Longs, memoryview, Longs, Ints]


class PlainRecord(NamedTuple):
    """One record: its bytes end at `end`. `places`: starts of key, value, headers; their lengths and number."""

    end: int
    timestamp: int
    offset_delta: int
    places: tuple[int, int, int, int, int, int]


# -- scanning


def scan_batches(data: Buffer, *, verify: bool = True, position: int = 0) -> BatchTable:
    """The kernel of `dispatch.scan_batches`; stops at a message of format 0 or 1 too."""
    view = memoryview(data).cast("B")
    if not 0 <= position <= len(view):
        attempt = "cannot scan batches, the position is outside the data"
        raise InvalidRequest(attempt, position=position, bytes=len(view))
    rows: list[tuple[int, ...]] = []
    at, last_offset, problem = position, -1, None
    while at < len(view) and problem is None:
        problem = size_problem(view, at)
        if problem is None:
            fields = HEADER.unpack_from(view, at)
            size = fields[1] + LENGTH_OVERHEAD
            problem = batch_problem(view[at : at + size], fields, last_offset, verify=verify)
        if problem is None:
            base, _length, epoch, _magic, crc, bits, delta, *rest, count = fields
            rows.append((at, size, base, base + delta, epoch, bits, *rest, count, crc, MAGIC))
            at, last_offset = at + size, base + delta
    return BatchTable(**arrays_of(TABLE_DTYPES, rows), valid_bytes=at, problem=problem)


# -- decoding


def decode_batches(
    data: memoryview, table: BatchTable, starts: Longs, ends: Longs, *, verify: bool, include_control: bool
) -> Columns:
    """Decode the records of every batch of `table`. Raises Corrupt; its facts name the batch.

    The uncompressed records of row i are in ``data[starts[i]:ends[i]]``. With `verify`, `table` must be of `data`.
    """
    rows: list[tuple[int, ...]] = []
    for ordinal in range(len(table)):
        header, position = table.row(ordinal), int(table.positions[ordinal])
        if verify:
            check_crc(data, header, position)
        if header.is_control and not include_control:
            continue
        for record in walk_records(data, header, int(starts[ordinal]), int(ends[ordinal]), position):
            offset = header.base_offset + record.offset_delta
            rows.append((offset, record.timestamp, *record.places, ordinal))
    return Columns(data=data, table=table, **arrays_of(COLUMN_DTYPES, rows))


def check_crc(data: memoryview, header: BatchHeader, position: int) -> None:
    """Raises Corrupt if the batch at byte `position` does not match its checksum or exceeds `data`."""
    end = position + header.size_bytes
    if position < 0 or end > len(data):
        raise wrong_batch("it extends beyond the data", header, position)
    found = crc32c(data[position + CRC_START : end])
    if found != header.crc:
        facts = {"expected": f"{header.crc:08x}", "found": f"{found:08x}"}
        raise Corrupt("cannot decode a batch, crc differs", at=position, base_offset=header.base_offset, **facts)


def walk_records(data: memoryview, header: BatchHeader, at: int, end: int, position: int) -> list[PlainRecord]:
    """The records in ``data[at:end]``, fully checked. Raises Corrupt; its facts name the batch."""
    if not 0 <= at <= end <= len(data):
        raise wrong_batch("it extends beyond the data", header, position)
    if header.record_count * RECORD_BYTES_MIN > end - at:
        raise wrong_batch("record count above its bytes", header, position)
    records: list[PlainRecord] = []
    last_delta = -1
    for _ in range(header.record_count):
        try:
            record = _read_record(data, header, at, end)
        except Corrupt as error:
            raise wrong_batch("a record exceeds its bounds", header, position) from error
        if not last_delta < record.offset_delta <= header.last_offset_delta:
            raise wrong_batch("offsets do not ascend within the batch", header, position)
        records.append(record)
        at, last_delta = record.end, record.offset_delta
    if at != end:
        raise wrong_batch("bytes left over", header, position)
    return records


def wrong_batch(found: str, header: BatchHeader, position: int) -> Corrupt:
    return Corrupt(f"cannot decode a batch, {found}", at=position, base_offset=header.base_offset)


def _read_record(data: memoryview, header: BatchHeader, at: int, end: int) -> PlainRecord:
    length, at = read_varint(data, at, end)
    if not 0 < length <= end - at:
        raise Corrupt("cannot read a record, its length is wrong", at=at)
    end = at + length
    delta, at = read_varlong(data, at + 1, end)  # the attributes byte of a record has no meaning so far
    offset_delta, at = read_varint(data, at, end)
    key_length, key_start = read_varint(data, at, end)
    at = _skip(key_start, key_length, end)
    value_length, value_start = read_varint(data, at, end)
    header_start = _skip(value_start, value_length, end)
    count, at = read_varint(data, header_start, end)
    if count < 0 or 2 * count > end - at:
        raise Corrupt("cannot read a record, its header count is wrong", at=at)
    for _ in range(count):
        header_length, at = read_varint(data, at, end)
        if header_length < 0:
            raise Corrupt("cannot read a record, a header key has no length", at=at)
        header_length, at = read_varint(data, _skip(at, header_length, end), end)
        at = _skip(at, header_length, end)
    if at != end:
        raise Corrupt("cannot read a record, bytes remain after its last field", at=at)
    is_append_time = header.attributes & LOG_APPEND_TIME
    timestamp = header.max_timestamp_ms if is_append_time else wrapped(header.base_timestamp_ms + delta)
    places = key_start, value_start, header_start, key_length, value_length, count
    return PlainRecord(end, timestamp, offset_delta, places)


def _skip(at: int, length: int, end: int) -> int:
    if not -1 <= length <= end - at:
        raise Corrupt("cannot read a record, the length of a field is wrong", at=at, length=length)
    return at + max(length, 0)


# -- gathering


def gather(data: memoryview, starts: Longs, lengths: Ints) -> tuple[Ints, Octets]:
    if len(starts) != len(lengths):
        attempt = "cannot gather bytes, starts and lengths differ in number"
        raise InvalidRequest(attempt, starts=len(starts), lengths=len(lengths))
    offsets, parts = [0], []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if length > 0:
            if start < 0 or start > len(data) - length:
                raise InvalidRequest("cannot gather bytes, a range is outside the data", start=start, length=length)
            parts.append(data[start : start + length])
        offsets.append(offsets[-1] + max(length, 0))
    if offsets[-1] > INT_MAX:
        raise InvalidRequest("cannot gather bytes, they exceed 32-bit offsets", bytes=offsets[-1])
    return np.array(offsets, np.int32), np.frombuffer(b"".join(parts), np.uint8)


# -- encoding


def encode_records(records: Sequence[tuple[object, ...]]) -> tuple[bytes, int, int]:
    """(section of the records, base timestamp, largest timestamp). Raises InvalidRequest, also above 2^31 bytes."""
    if not records:
        raise InvalidRequest("cannot encode a batch, it has no records")
    section = bytearray()
    base = largest = timestamp_of(records[0])
    for offset_delta, record in enumerate(records):
        key, value, timestamp, headers = normal_record(record)
        largest = max(largest, timestamp)
        append_record(section, timestamp - base, offset_delta, key, value, header_bytes(headers))
        if len(section) > BATCH_BYTES_MAX - HEADER_BYTES:
            raise InvalidRequest("cannot encode a batch, it is larger than 2^31 bytes", bytes=len(section))
    return bytes(section), base, largest


def encode_batch(
    records: Sequence[tuple[object, ...]],
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    append_time_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """Encode a whole uncompressed batch. Under log append time `append_time_ms` is its largest timestamp."""
    section, base_ms, largest_ms = encode_records(records)
    times_ms = base_ms, append_time_ms if attributes & LOG_APPEND_TIME else largest_ms
    producer = producer_id, producer_epoch, base_sequence
    header = plain_header(base_offset, attributes, times_ms, len(records), leader_epoch=leader_epoch, producer=producer)
    return seal(header, section)


def normal_record(record: object) -> tuple[bytes | None, bytes | None, int, list[tuple[bytes, bytes | None]]]:
    """(key, value, timestamp_ms, headers as bytes) of a record. Raises InvalidRequest for any other value."""
    if not isinstance(record, tuple) or not 3 <= len(record) <= 4:
        attempt = "cannot encode a record, it is not (key, value, timestamp_ms[, headers])"
        raise InvalidRequest(attempt, got=type(record).__name__)
    timestamp, headers = timestamp_of(record), []
    given = record[3] if len(record) == 4 else ()
    if not isinstance(given, tuple | list):
        raise InvalidRequest("cannot encode a record, its headers are not a sequence", got=type(given).__name__)
    for header in given:
        if not isinstance(header, tuple) or len(header) != 2 or not isinstance(header[0], str):
            attempt = "cannot encode a record header, it is not (str, bytes or None)"
            raise InvalidRequest(attempt, got=type(header).__name__)
        try:
            headers.append((header[0].encode(), _field(header[1])))
        except UnicodeEncodeError as error:
            attempt = "cannot encode a record header, its key is not valid UTF-8"
            raise InvalidRequest(attempt, key=ascii(header[0])) from error
    return _field(record[0]), _field(record[1]), timestamp, headers


def timestamp_of(record: object) -> int:
    """The record's timestamp. Raises InvalidRequest unless it is -1 (none) or 0..2^63-1."""
    try:
        timestamp = operator.index(record[2])  # type: ignore[index]
    except (TypeError, IndexError, KeyError) as error:
        attempt = "cannot encode a record, its timestamp is not an integer"
        raise InvalidRequest(attempt, record=type(record).__name__) from error
    if not -1 <= timestamp <= LONG_MAX:
        raise InvalidRequest("cannot encode a record, its time is outside -1..2^63-1", timestamp_ms=timestamp)
    return timestamp


def _field(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest("cannot encode a record, a field is neither bytes nor None", got=type(value).__name__)


# -- rebuilding


def rebuild_batches(
    data: memoryview,
    table: BatchTable,
    actions: Octets,
    keep: Octets,
    keep_starts: Longs,
    horizon_ms: int,
    out: Octets,
    first_row: int,
    stop_row: int,
) -> tuple[int, int]:
    """Apply the `actions` to rows of `table` from `first_row` on; write the batches to `out`.

    Returns (next row, bytes written): as many rows below `stop_row` as certainly fit. Rows to rebuild are uncompressed.
    `keep` is as in `dispatch.rebuilt_batches`; the bits of row i start at `keep_starts[i]`. A row for REBUILD or REBASE
    has at least one set bit. REBASE sets `horizon_ms` as the delete horizon. Checksums are checked; of removed records
    only the lengths are read. Raises Corrupt, and InvalidRequest for arrays that do not fit.
    """
    if len(actions) != len(table) or len(keep_starts) != len(table) or not 0 <= first_row <= stop_row <= len(table):
        attempt = "cannot rebuild batches, actions and batches differ in number"
        raise InvalidRequest(attempt, actions=len(actions), rows=len(table))
    at = 0
    for row in range(first_row, stop_row):
        header, position, action = table.row(row), int(table.positions[row]), int(actions[row])
        first, is_rebuilt = int(keep_starts[row]), action in (REBUILD, REBASE)
        if not 0 <= first <= len(keep) * 8 - header.record_count or header.record_count < 0:
            raise InvalidRequest("cannot rebuild batches, flags and records differ in number", row=row)
        growth = header.record_count * REBUILT_GROWTH_MAX if is_rebuilt else 0
        if action != DROP and header.size_bytes + growth > len(out) - at:
            return row, at
        check_crc(data, header, position)
        made: bytes | memoryview = b""
        if action == VERBATIM:
            made = data[position : position + header.size_bytes]
        elif action == EMPTY:
            made = emptied(header)
        elif is_rebuilt:
            flags = [bool(keep[at >> 3] >> (at & 7) & 1) for at in range(first, first + header.record_count)]
            made = _rebuilt(data, header, position, flags, horizon_ms if action == REBASE else None)
        out[at : at + len(made)] = np.frombuffer(made, np.uint8)
        at += len(made)
    return stop_row, at


def kept_bytes(data: memoryview, table: BatchTable, keep: Octets, keep_starts: Longs) -> Longs:
    """The bytes of the flagged records of each uncompressed batch; all bytes if its records are invalid."""
    sizes = np.zeros(len(table), np.int64)
    for row, first in enumerate(keep_starts.tolist()):
        header, position = table.row(row), int(table.positions[row])
        at, end, remaining_bytes = position + HEADER_BYTES, position + header.size_bytes, 0
        if position < 0 or end > len(data) or header.size_bytes < HEADER_BYTES:
            raise InvalidRequest("measuring records, the table is of other data", row=row)
        if not 0 <= first <= len(keep) * 8 - header.record_count or header.record_count < 0:
            raise InvalidRequest("measuring records, not one flag per record", row=row)
        try:
            for record in range(first, first + header.record_count):
                length, body = read_varint(data, at, end)
                if not 0 < length <= end - body:
                    raise Corrupt("measuring records, one leaves its batch", at=at)
                remaining_bytes += (body + length - at) * int(keep[record >> 3] >> (record & 7) & 1)
                at = body + length
        except Corrupt:
            remaining_bytes = header.size_bytes - HEADER_BYTES
        sizes[row] = remaining_bytes
    return sizes


def count_bits(bits: Octets, starts: Longs, counts: Ints) -> Longs:
    """The number of set bits in each range of `counts[i]` bits from `starts[i]` on."""
    if len(starts) != len(counts):
        attempt = "cannot count bits, starts and counts differ in number"
        raise InvalidRequest(attempt, starts=len(starts), counts=len(counts))
    flags = np.unpackbits(bits, bitorder="little")
    found = np.zeros(len(starts), np.int64)
    for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        if count < 0 or not 0 <= start <= len(flags) - count:
            raise InvalidRequest("cannot count bits, a range is outside the bits", row=row)
        found[row] = int(flags[start : start + count].sum())
    return found


class _KeptRecord(NamedTuple):
    """A record that a filter keeps. The bytes from `rest` on, the start of the offset delta, are copied."""

    start: int
    rest: int
    end: int
    timestamp: int


def _kept_records(data: memoryview, header: BatchHeader, position: int, flags: list[bool]) -> list[_KeptRecord]:
    """The flagged records of a batch. Raises Corrupt if a record or its timestamp leaves its bounds."""
    at, end = position + HEADER_BYTES, position + header.size_bytes
    if header.record_count * RECORD_BYTES_MIN > end - at:
        raise wrong_batch("record count above its bytes", header, position)
    remaining: list[_KeptRecord] = []
    for flag in flags:
        start = at
        try:
            length, body = read_varint(data, at, end)
            if not 0 < length <= end - body:
                raise Corrupt("cannot read a record, its length is wrong", at=at)
            at = body + length
            if flag:
                delta, rest = read_varlong(data, body + 1, at)
                timestamp = header.max_timestamp_ms
                if not header.attributes & LOG_APPEND_TIME:
                    timestamp = wrapped(header.base_timestamp_ms + delta)
                remaining.append(_KeptRecord(start, rest, at, timestamp))
        except Corrupt as error:
            raise wrong_batch("a record exceeds its bounds", header, position) from error
    if at != end:
        raise wrong_batch("bytes left over", header, position)
    return remaining


def emptied(header: BatchHeader) -> bytes:
    """The batch in format 2 without records. Source: kafka `DefaultRecordBatch.writeEmptyHeader`."""
    bits = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return seal(header._replace(magic=MAGIC, attributes=bits, base_timestamp_ms=-1, record_count=0), b"")


def _rebuilt(data: memoryview, header: BatchHeader, position: int, flags: list[bool], horizon_ms: int | None) -> bytes:
    """Rebuild a batch with the flagged records. A new `horizon_ms` also sets the attribute bit.

    The base timestamp is the delete horizon, else the timestamp of the first flagged record (`MemoryRecordsBuilder`).
    Records with earlier timestamps get a negative delta.
    """
    remaining = _kept_records(data, header, position, flags)
    bits = header.attributes
    if horizon_ms is not None:
        base_ms, bits = horizon_ms, bits | DELETE_HORIZON
    else:
        base_ms = header.base_timestamp_ms if header.has_delete_horizon else remaining[0].timestamp
    is_same = base_ms == header.base_timestamp_ms and not header.attributes & LOG_APPEND_TIME
    section = bytearray()
    for record in remaining:
        if is_same:
            section += data[record.start : record.end]
            continue
        delta = wrapped(record.timestamp - base_ms)
        append_varint(section, 1 + varint_bytes(delta) + record.end - record.rest)
        section.append(0)
        append_varint(section, delta)
        section += data[record.rest : record.end]
    largest_ms = max(record.timestamp for record in remaining)
    changed = header._replace(
        attributes=bits, base_timestamp_ms=base_ms, max_timestamp_ms=largest_ms, record_count=len(remaining)
    )
    return seal(changed, section)


# -- columns to batches


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
) -> Octets:
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
    headers = (starts, counts) if len(starts) or len(counts) else ()
    for column in (key_starts, key_lengths, value_starts, value_lengths, *headers):
        if len(column) != rows:
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


def hash_keys(data: memoryview, starts: Longs, lengths: Ints) -> NDArray[np.uint32]:
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
    h, whole = _SEED ^ len(data), len(data) - len(data) % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> _R)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)
