"""The hot loops in plain Python: the oracle the compiled twin is tested against, and the fallback without a compiler.

Same functions, same arguments, same answers as `local.kernels._kernels`; some hundred times slower. Read this one to
learn what the kernels do. They know plain batches only: `local.kernels.dispatch` inflates and compresses around them.
The file is longer than most because it is read side by side with its twin; what appends from columns is in
`local.kernels.pure_column_kernels`.

Raises, all of them: Corrupt for bytes that contradict the format, InvalidRequest for a wrong call; nothing else.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from local.errors import Corrupt, InvalidRequest
from local.format.batch_checks import INT_MAX as INT_MAX
from local.format.batch_checks import LONG_MAX as LONG_MAX
from local.format.batch_checks import batch_problem, size_problem
from local.format.batch_header import (
    BATCH_BYTES_MAX,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    seal,
)
from local.format.columns import COLUMN_DTYPES, TABLE_DTYPES, BatchTable, Columns
from local.format.crc32c import crc32c
from local.format.varint import append_varint, read_varint, read_varlong, varint_bytes
from local.kernels.pure_column_kernels import Source as Source
from local.kernels.pure_column_kernels import cut_columns as cut_columns
from local.kernels.pure_column_kernels import encode_columns as encode_columns
from local.kernels.pure_column_kernels import hash_keys as hash_keys
from local.kernels.pure_column_kernels import wrong_column as wrong_column

if TYPE_CHECKING:
    from typing_extensions import Buffer

REBUILT_GROWTH_MAX = 12  # bytes by which a re-based record can grow: time delta 1 to 10, its length by what follows

DROP, VERBATIM, REBUILD, EMPTY, REBASE = range(5)  # what `rebuild_batches` does with a batch


class PlainRecord(NamedTuple):
    """One record's place in the data: `rest` is where the offset delta begins, which no rewriting changes."""

    start: int
    rest: int
    end: int
    timestamp: int
    offset_delta: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int
    header_start: int
    header_count: int


def crc32c_of(data: Buffer, seed: int = 0) -> int:
    """`local.format.crc32c.crc32c`, here so that both twins have one to compare."""
    return crc32c(data, seed)


# -- scanning


def scan_batches(data: Buffer, *, verify: bool = True, position: int = 0) -> BatchTable:
    """The consecutive batches from byte `position`; stops at the first that is torn or wrong, without raising.

    With `verify` every batch's CRC is checked. Raises InvalidRequest when `position` lies outside `data`.
    """
    view = memoryview(data).cast("B")
    if not 0 <= position <= len(view):
        raise InvalidRequest("scanning batches, position outside the data", position=position, bytes=len(view))
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
    columns = list(zip(*rows, strict=True)) or [()] * len(TABLE_DTYPES)
    arrays = {name: np.array(column, TABLE_DTYPES[name]) for name, column in zip(TABLE_DTYPES, columns, strict=True)}
    return BatchTable(**arrays, valid_bytes=at, problem=problem)


# -- decoding


def decode_batches(
    data: memoryview,
    table: BatchTable,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    *,
    verify: bool,
    include_control: bool,
) -> Columns:
    """The records of every batch of `table`; row i's lie plain in ``data[starts[i]:ends[i]]``.

    With `verify` `data` is what `table` was scanned from and the CRCs are checked. Raises Corrupt naming the batch.
    """
    rows: list[tuple[int, ...]] = []
    for ordinal in range(len(table)):
        header, position = table.row(ordinal), int(table.positions[ordinal])
        if verify:
            check_crc(data, header, position)
        if header.is_control and not include_control:
            continue
        for record in walk_records(data, header, int(starts[ordinal]), int(ends[ordinal]), position):
            rows.append(
                (
                    header.base_offset + record.offset_delta,
                    record.timestamp,
                    record.key_start,
                    record.value_start,
                    record.header_start,
                    record.key_length,
                    record.value_length,
                    record.header_count,
                    ordinal,
                )
            )
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMN_DTYPES)
    arrays = {name: np.array(column, COLUMN_DTYPES[name]) for name, column in zip(COLUMN_DTYPES, columns, strict=True)}
    return Columns(data=data, table=table, **arrays)


def check_crc(data: memoryview, header: BatchHeader, position: int) -> None:
    """Raises Corrupt when the batch at byte `position` differs from its checksum, or leaves `data`."""
    end = position + header.size_bytes
    if position < 0 or end > len(data):
        raise wrong_batch("it leaves the data", header, position)
    found = crc32c(data[position + CRC_START : end])
    if found != header.crc:
        facts = {"expected": f"{header.crc:08x}", "found": f"{found:08x}"}
        raise Corrupt("decoding a batch, crc differs", at=position, base_offset=header.base_offset, **facts)


def walk_records(data: memoryview, header: BatchHeader, at: int, end: int, position: int) -> list[PlainRecord]:
    """The records in ``data[at:end]``, everything about them checked. Raises Corrupt naming the batch."""
    if not 0 <= at <= end <= len(data):
        raise wrong_batch("it leaves the data", header, position)
    if header.record_count * RECORD_BYTES_MIN > end - at:
        raise wrong_batch("record count above its bytes", header, position)
    records: list[PlainRecord] = []
    last_delta = -1
    for _ in range(header.record_count):
        try:
            record = _read_record(data, header, at, end)
        except Corrupt as error:
            raise wrong_batch("a record leaves its bounds", header, position) from error
        if not last_delta < record.offset_delta <= header.last_offset_delta:
            raise wrong_batch("offsets do not ascend within the batch", header, position)
        records.append(record)
        at, last_delta = record.end, record.offset_delta
    if at != end:
        raise wrong_batch("bytes left over", header, position)
    return records


def wrong_batch(found: str, header: BatchHeader, position: int) -> Corrupt:
    """The one error about a batch's inside."""
    return Corrupt(f"decoding a batch, {found}", at=position, base_offset=header.base_offset)


def _read_record(data: memoryview, header: BatchHeader, at: int, end: int) -> PlainRecord:
    start = at
    length, at = read_varint(data, at, end)
    if not 0 < length <= end - at:
        raise Corrupt("reading a record, length", at=at)
    end = at + length
    delta, rest = read_varlong(data, at + 1, end)  # the record's attributes, one byte, mean nothing so far
    offset_delta, at = read_varint(data, rest, end)
    key_length, key_start = read_varint(data, at, end)
    at = _skip(key_start, key_length, end)
    value_length, value_start = read_varint(data, at, end)
    header_start = _skip(value_start, value_length, end)
    count, at = read_varint(data, header_start, end)
    if count < 0 or 2 * count > end - at:
        raise Corrupt("reading a record, header count", at=at)
    for _ in range(count):
        header_length, at = read_varint(data, at, end)
        if header_length < 0:
            raise Corrupt("reading a record, header key without length", at=at)
        header_length, at = read_varint(data, _skip(at, header_length, end), end)
        at = _skip(at, header_length, end)
    if at != end:
        raise Corrupt("reading a record, bytes left over", at=at)
    is_append_time = header.attributes & LOG_APPEND_TIME
    timestamp = header.max_timestamp_ms if is_append_time else wrapped(header.base_timestamp_ms + delta)
    return PlainRecord(
        start, rest, end, timestamp, offset_delta, key_start, key_length, value_start, value_length, header_start, count
    )


def _skip(at: int, length: int, end: int) -> int:
    if not -1 <= length <= end - at:
        raise Corrupt("reading a record, field length", at=at, length=length)
    return at + max(length, 0)


def wrapped(number: int) -> int:
    """The number in 64 bits, as Java and C add."""
    return (number + 2**63) % 2**64 - 2**63


# -- gathering


def gather(
    data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The named ranges side by side: (n + 1 offsets, bytes), the two buffers of an Arrow binary array; -1 is empty.

    Raises InvalidRequest for a range outside `data`, and above 2^31-1 bytes, which 32-bit offsets cannot address.
    """
    if len(starts) != len(lengths):
        raise InvalidRequest("gathering bytes, starts and lengths differ", starts=len(starts), lengths=len(lengths))
    offsets, parts = [0], []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if length > 0:
            if start < 0 or start > len(data) - length:
                raise InvalidRequest("gathering bytes, a range leaves the data", start=start, length=length)
            parts.append(data[start : start + length])
        offsets.append(offsets[-1] + max(length, 0))
    if offsets[-1] > INT_MAX:
        raise InvalidRequest("gathering bytes, more than 32-bit offsets can address", bytes=offsets[-1])
    return np.array(offsets, np.int32), np.frombuffer(b"".join(parts), np.uint8)


# -- encoding


def encode_records(records: Sequence[tuple[object, ...]]) -> tuple[bytes, int, int]:
    """(the record section with offset deltas 0, 1, ..; base timestamp, the first record's; largest timestamp).

    Raises InvalidRequest for no record, a record that is not (key, value, timestamp_ms[, headers]), or too many bytes.
    """
    if not records:
        raise InvalidRequest("encoding a batch without records")
    section = bytearray()
    base = largest = timestamp_of(records[0])
    for offset_delta, record in enumerate(records):
        key, value, timestamp, headers = normal_record(record)
        largest = max(largest, timestamp)
        body = bytearray(b"\0")
        append_varint(body, wrapped(timestamp - base))
        append_varint(body, offset_delta)
        _append_field(body, key)
        _append_field(body, value)
        append_varint(body, len(headers))
        for header_key, header_value in headers:
            _append_field(body, header_key)
            _append_field(body, header_value)
        append_varint(section, len(body))
        section += body
        if len(section) > BATCH_BYTES_MAX - HEADER_BYTES:
            raise InvalidRequest("encoding a batch, larger than 2^31 bytes", bytes=len(section))
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
    """A whole plain batch; `append_time_ms` is its largest timestamp where the attributes say log append time."""
    section, base_ms, largest_ms = encode_records(records)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=LENGTH_MIN,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=append_time_ms if attributes & LOG_APPEND_TIME else largest_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return seal(header, section)


def normal_record(
    record: object,
) -> tuple[bytes | None, bytes | None, int, list[tuple[bytes, bytes | None]]]:
    """(key, value, timestamp_ms, headers as bytes), whatever buffers and integers the caller used.

    Raises InvalidRequest for anything that is not such a record.
    """
    if not isinstance(record, tuple) or not 3 <= len(record) <= 4:
        raise InvalidRequest("encoding a record, not (key, value, timestamp_ms[, headers])", got=type(record).__name__)
    timestamp, headers = timestamp_of(record), []
    given = record[3] if len(record) == 4 else ()
    if not isinstance(given, tuple | list):
        raise InvalidRequest("encoding a record, its headers are no sequence", got=type(given).__name__)
    for header in given:
        if not isinstance(header, tuple) or len(header) != 2 or not isinstance(header[0], str):
            raise InvalidRequest("encoding a header, not (str, bytes or None)", got=type(header).__name__)
        try:
            headers.append((header[0].encode(), _field(header[1])))
        except UnicodeEncodeError as error:
            raise InvalidRequest("encoding a header, its key is no utf-8", key=ascii(header[0])) from error
    return _field(record[0]), _field(record[1]), timestamp, headers


def timestamp_of(record: object) -> int:
    """The record's timestamp. Raises InvalidRequest unless it is -1 (none) or 0..2^63-1."""
    try:
        timestamp = operator.index(record[2])  # type: ignore[index]
    except (TypeError, IndexError, KeyError) as error:
        raise InvalidRequest("encoding a record, its timestamp is no integer", record=type(record).__name__) from error
    if not -1 <= timestamp <= LONG_MAX:
        raise InvalidRequest("encoding a record, timestamp outside -1..2^63-1", timestamp_ms=timestamp)
    return timestamp


def _field(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidRequest("encoding a record, a field is neither bytes nor None", got=type(value).__name__)


def _append_field(body: bytearray, value: bytes | None) -> None:
    if value is None:
        append_varint(body, -1)
    else:
        append_varint(body, len(value))
        body += value


# -- rebuilding


def rebuild_batches(
    data: memoryview,
    table: BatchTable,
    actions: NDArray[np.uint8],
    keep: NDArray[np.uint8],
    keep_starts: NDArray[np.int64],
    horizon_ms: int,
    out: NDArray[np.uint8],
    first_row: int,
    stop_row: int,
) -> tuple[int, int]:
    """Rows of `table` from `first_row` on after DROP, VERBATIM, REBUILD, EMPTY or REBASE each, put into `out`.

    (The next row, bytes put): as many rows below `stop_row` as are sure to fit. `keep` has a bit a record, r is bit
    ``r & 7`` of byte ``r >> 3``; those of row i's records begin with `keep_starts[i]`, and at least one of a row to
    REBUILD or REBASE is set. These rows are plain; the latter get `horizon_ms` as their delete horizon. Checksums are
    checked; of records that go only the lengths are looked at. Raises Corrupt.
    """
    if len(actions) != len(table) or len(keep_starts) != len(table) or not 0 <= first_row <= stop_row <= len(table):
        raise InvalidRequest("rebuilding batches, not one action per batch", actions=len(actions), rows=len(table))
    at = 0
    for row in range(first_row, stop_row):
        header, position, action = table.row(row), int(table.positions[row]), int(actions[row])
        first, is_rebuilt = int(keep_starts[row]), action in (REBUILD, REBASE)
        if not 0 <= first <= len(keep) * 8 - header.record_count or header.record_count < 0:
            raise InvalidRequest("rebuilding batches, not one flag per record", row=row)
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


def kept_bytes(
    data: memoryview, table: BatchTable, keep: NDArray[np.uint8], keep_starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many bytes the flagged records of each batch take; all of a batch whose records do not make sense.

    Rows are plain. `keep` as in `rebuild_batches`.
    """
    sizes = np.zeros(len(table), np.int64)
    for row, first in enumerate(keep_starts.tolist()):
        header, position = table.row(row), int(table.positions[row])
        at, end, kept = position + HEADER_BYTES, position + header.size_bytes, 0
        if position < 0 or end > len(data) or header.size_bytes < HEADER_BYTES:
            raise InvalidRequest("measuring records, the table is of other data", row=row)
        if not 0 <= first <= len(keep) * 8 - header.record_count or header.record_count < 0:
            raise InvalidRequest("measuring records, not one flag per record", row=row)
        try:
            for record in range(first, first + header.record_count):
                length, body = read_varint(data, at, end)
                if not 0 < length <= end - body:
                    raise Corrupt("measuring records, one leaves its batch", at=at)
                kept += (body + length - at) * int(keep[record >> 3] >> (record & 7) & 1)
                at = body + length
        except Corrupt:
            kept = header.size_bytes - HEADER_BYTES
        sizes[row] = kept
    return sizes


def count_bits(bits: NDArray[np.uint8], starts: NDArray[np.int64], counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many of the `counts[i]` bits from `starts[i]` on are set; bit r is ``r & 7`` of byte ``r >> 3``."""
    if len(starts) != len(counts):
        raise InvalidRequest("counting bits, not one count per start", starts=len(starts), counts=len(counts))
    flags = np.unpackbits(bits, bitorder="little")
    found = np.zeros(len(starts), np.int64)
    for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        if count < 0 or not 0 <= start <= len(flags) - count:
            raise InvalidRequest("counting bits, a range leaves them", row=row)
        found[row] = int(flags[start : start + count].sum())
    return found


class _KeptRecord(NamedTuple):
    """`rest` is where the offset delta begins: from there on nothing changes."""

    start: int
    rest: int
    end: int
    timestamp: int


def _kept_records(data: memoryview, header: BatchHeader, position: int, flags: list[bool]) -> list[_KeptRecord]:
    """Raises Corrupt naming the batch when a record leaves it, or a kept one's time the record."""
    at, end = position + HEADER_BYTES, position + header.size_bytes
    if header.record_count * RECORD_BYTES_MIN > end - at:
        raise wrong_batch("record count above its bytes", header, position)
    kept: list[_KeptRecord] = []
    for flag in flags:
        start = at
        try:
            length, body = read_varint(data, at, end)
            if not 0 < length <= end - body:
                raise Corrupt("reading a record, length", at=at)
            at = body + length
            if flag:
                delta, rest = read_varlong(data, body + 1, at)
                timestamp = header.max_timestamp_ms
                if not header.attributes & LOG_APPEND_TIME:
                    timestamp = wrapped(header.base_timestamp_ms + delta)
                kept.append(_KeptRecord(start, rest, at, timestamp))
        except Corrupt as error:
            raise wrong_batch("a record leaves its bounds", header, position) from error
    if at != end:
        raise wrong_batch("bytes left over", header, position)
    return kept


def emptied(header: BatchHeader) -> bytes:
    """The batch without records, which keeps its offsets and its producer's state alive.

    Codec and delete horizon go, the largest timestamp stays (kafka `DefaultRecordBatch.writeEmptyHeader`). It is of
    format 2 whatever the batch was.
    """
    bits = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return seal(replace(header, magic=MAGIC, attributes=bits, base_timestamp_ms=-1, record_count=0), b"")


def _rebuilt(data: memoryview, header: BatchHeader, position: int, flags: list[bool], horizon_ms: int | None) -> bytes:
    """Base timestamp: the delete horizon where there is one, else the first kept record's (`MemoryRecordsBuilder`).

    A new `horizon_ms` sets the flag as well; what lies before it gets a negative delta.
    """
    kept = _kept_records(data, header, position, flags)
    bits = header.attributes
    if horizon_ms is not None:
        base_ms, bits = horizon_ms, bits | DELETE_HORIZON
    else:
        base_ms = header.base_timestamp_ms if header.has_delete_horizon else kept[0].timestamp
    # Where the deltas still hold the records go over byte for byte, only their neighbours are missing.
    is_same = base_ms == header.base_timestamp_ms and not header.attributes & LOG_APPEND_TIME
    section = bytearray()
    for record in kept:
        if is_same:
            section += data[record.start : record.end]
            continue
        delta = wrapped(record.timestamp - base_ms)
        append_varint(section, 1 + varint_bytes(delta) + record.end - record.rest)
        section.append(0)
        append_varint(section, delta)
        section += data[record.rest : record.end]
    largest_ms = max(record.timestamp for record in kept)
    changed = replace(
        header, attributes=bits, base_timestamp_ms=base_ms, max_timestamp_ms=largest_ms, record_count=len(kept)
    )
    return seal(changed, section)
