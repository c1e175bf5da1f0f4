"""Batches and records as columns: the output of the kernels.

Keys and values are positions in `Columns.data`: the caller's own buffer, or a new buffer if a batch was decompressed.
The buffer lives as long as the columns. Arrays are never modified after construction, so they may be shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from local.errors import Corrupt, InvalidRequest
from local.format import legacy
from local.format.batch_header import (
    CODEC_BITS,
    INT_MAX,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    LONG_MAX,
    MAGIC,
    MAGIC_END,
    BatchHeader,
)
from local.format.batch_header import TORN as TORN
from local.format.compression import Codec
from local.format.record import Header, StoredRecord, TimestampType, read_varint

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Octets = NDArray[np.uint8]
Flags = NDArray[np.bool_]
_RECORDS_AT_ONCE = 4096
MESSAGE_FOUND = frozenset(f"magic {magic}" for magic in legacy.MAGICS)  # the kernels' `problem` at a legacy message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchTable:
    """One row per whole, sound batch, in the order of the bytes; offsets ascend.

    A message of format 0 or 1 is a row too: `magics` identifies it, and its `crcs` are CRC-32 (`local.format.legacy`).
    """

    positions: Longs  # bytes from the start of the scanned data
    sizes: Ints
    base_offsets: Longs
    last_offsets: Longs  # inclusive
    leader_epochs: Ints
    attributes: NDArray[np.int16]
    base_timestamps: Longs
    max_timestamps: Longs
    producer_ids: Longs
    producer_epochs: NDArray[np.int16]
    base_sequences: Ints
    record_counts: Ints
    crcs: NDArray[np.uint32]
    magics: NDArray[np.int8]
    valid_bytes: int  # the end of the last sound batch
    # None: the data ends at `valid_bytes`. TORN: it ends inside a batch. Else the fault of the bytes at `valid_bytes`.
    problem: str | None

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_corrupt(self) -> bool:
        """Whether the bytes at `valid_bytes` contradict the format. A torn end does not."""
        return self.problem not in (None, TORN)

    def select(self, rows: slice | Flags) -> BatchTable:
        """Some of the batches; `valid_bytes` and `problem` remain the values of the whole scan."""
        return replace(self, **{name: getattr(self, name)[rows] for name in TABLE_DTYPES})

    def moved(self, position: int) -> BatchTable:
        """The same batches in a file that holds the scanned data from `position` on."""
        return replace(self, positions=self.positions + position, valid_bytes=self.valid_bytes + position)

    @property
    def has_legacy(self) -> bool:
        """Whether any row has format 0 or 1."""
        return bool((self.magics != MAGIC).any())

    def row(self, index: int) -> BatchHeader:
        """The header of batch `index`; a negative `index` counts from the end."""
        base_offset = int(self.base_offsets[index])
        return BatchHeader(
            base_offset=base_offset,
            batch_length=int(self.sizes[index]) - LENGTH_OVERHEAD,
            leader_epoch=int(self.leader_epochs[index]),
            magic=int(self.magics[index]),
            crc=int(self.crcs[index]),
            attributes=int(self.attributes[index]),
            last_offset_delta=int(self.last_offsets[index]) - base_offset,
            base_timestamp_ms=int(self.base_timestamps[index]),
            max_timestamp_ms=int(self.max_timestamps[index]),
            producer_id=int(self.producer_ids[index]),
            producer_epoch=int(self.producer_epochs[index]),
            base_sequence=int(self.base_sequences[index]),
            record_count=int(self.record_counts[index]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """One row per record, in offset order. Timestamps are milliseconds; a length of -1 is null."""

    data: memoryview
    table: BatchTable
    # Wide columns first: every column in one slab of memory is then aligned (`empty_columns`).
    offsets: Longs
    timestamps: Longs
    key_starts: Longs
    value_starts: Longs
    header_starts: Longs  # positions in `data` of varints with the values `header_counts`
    key_lengths: Ints
    value_lengths: Ints
    header_counts: Ints
    batch_ordinals: Ints  # rows of `table`

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def next_offset(self) -> int:
        """The offset after the last batch. Raises InvalidRequest without one."""
        if not len(self.table):
            raise InvalidRequest("cannot compute the next offset, the bytes hold no whole batch", bytes=len(self.data))
        return int(self.table.last_offsets[-1]) + 1

    def key(self, index: int) -> bytes | None:
        return self._slice(int(self.key_starts[index]), int(self.key_lengths[index]))

    def value(self, index: int) -> bytes | None:
        return self._slice(int(self.value_starts[index]), int(self.value_lengths[index]))

    def headers(self, index: int) -> tuple[Header, ...]:
        """The record's headers in their order. Invalid UTF-8 in keys becomes U+FFFD, as in Kafka's reader."""
        count = int(self.header_counts[index])
        return self._headers(int(self.header_starts[index]), count) if count else ()

    def select(self, rows: slice | Flags | NDArray[np.integer]) -> Columns:
        """Some of the records, in the order of `rows`; `data` and `table` are shared."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMN_DTYPES})

    def records(self) -> Iterator[StoredRecord]:
        """Every record, with copies of its key, value and headers."""
        kinds = [TimestampType(bool(bits & LOG_APPEND_TIME)) for bits in self.table.attributes.tolist()]
        for start in range(0, len(self), _RECORDS_AT_ONCE):
            part = self.select(slice(start, start + _RECORDS_AT_ONCE))
            for offset, timestamp, key_at, value_at, headers_at, key_length, value_length, count, row in zip(
                *(getattr(part, name).tolist() for name in COLUMN_DTYPES), strict=True
            ):
                key, value = self._slice(key_at, key_length), self._slice(value_at, value_length)
                headers = self._headers(headers_at, count) if count else ()
                yield StoredRecord(offset, timestamp, kinds[row], key, value, headers)

    def _slice(self, start: int, length: int) -> bytes | None:
        return None if length < 0 else bytes(self.data[start : start + length])

    def _headers(self, at: int, count: int) -> tuple[Header, ...]:
        # Checked again after the kernels: the caller could have changed the buffer.
        end = len(self.data)
        _count, at = read_varint(self.data, at, end)
        headers: list[Header] = []
        for _ in range(count):
            length, at = read_varint(self.data, at, end)
            key = self._slice(at, length)
            value_length, at = read_varint(self.data, at + max(length, 0), end)
            if key is None:
                raise Corrupt("cannot read a record header, its key has no length", at=at)
            headers.append((key.decode("utf-8", "replace"), self._slice(at, value_length)))
            at += max(value_length, 0)
        return tuple(headers)


def _dtypes(of: type) -> dict[str, type[np.generic]]:
    """The number type of each array of a class, from its annotations."""
    hints = {name: get_args(hint) for name, hint in get_type_hints(of).items() if get_origin(hint) is np.ndarray}
    return {name: get_args(dtype)[0] for name, (_shape, dtype) in hints.items()}


TABLE_DTYPES, COLUMN_DTYPES = _dtypes(BatchTable), _dtypes(Columns)
COLUMNS_ROW_BYTES = sum(np.dtype(dtype).itemsize for dtype in COLUMN_DTYPES.values())


def joined_tables(parts: Sequence[BatchTable]) -> BatchTable:
    """Join the tables of adjacent scans; `valid_bytes` and `problem` are those of the last."""
    arrays: dict[str, NDArray[Any]] = {
        name: np.concatenate([np.empty(0, dtype), *(getattr(part, name) for part in parts)])
        for name, dtype in TABLE_DTYPES.items()
    }
    if not parts:
        return BatchTable(**arrays, valid_bytes=0, problem=None)
    return BatchTable(**arrays, valid_bytes=parts[-1].valid_bytes, problem=parts[-1].problem)


def arrays_of(dtypes: Mapping[str, type[np.generic]], rows: Sequence[tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """The columns of `rows`, which have one number per column."""
    columns = list(zip(*rows, strict=True)) or [()] * len(dtypes)
    return {name: np.array(column, dtypes[name]) for name, column in zip(dtypes, columns, strict=True)}


def empty_table_arrays(rows: int) -> dict[str, NDArray[np.generic]]:
    """Uninitialised arrays for `rows` batches."""
    return {name: np.empty(rows, dtype) for name, dtype in TABLE_DTYPES.items()}


def empty_columns(rows: int) -> dict[str, NDArray[np.generic]]:
    """Uninitialised arrays for `rows` records, in one slab: with nine arrays a third of the time is page faults."""
    widths = [np.dtype(dtype).itemsize for dtype in COLUMN_DTYPES.values()]
    slab = np.empty(rows * sum(widths), np.uint8)
    columns: dict[str, NDArray[np.generic]] = {}
    at = 0
    for (name, dtype), width in zip(COLUMN_DTYPES.items(), widths, strict=True):
        columns[name] = slab[at : at + rows * width].view(dtype)
        at += rows * width
    return columns


# -- messages of formats 0 and 1: plain Python is fast enough, such logs are read once to convert them


def scan_messages(view: memoryview, at: int, last_offset: int, *, verify: bool, limit: int) -> tuple[BatchTable, bool]:
    """(table of the messages from byte `at` on, whether a batch of another format follows).

    Offsets ascend from `last_offset`. Only the checksum and the outermost fields are checked. A wrapper that does not
    decompress within `limit` bytes gets a row of one record; a later decode raises for it.
    """
    rows: list[tuple[int, ...]] = []
    problem: str | None = None
    is_other = False
    while at < len(view) and problem is None and not is_other:
        if len(view) - at < MAGIC_END:
            problem = TORN
        elif view[at + legacy.MAGIC_AT] not in legacy.MAGICS:
            is_other = True
        else:
            row = _message_row(view, at, last_offset, verify=verify, limit=limit)
            if isinstance(row, str):
                problem = row
            else:
                rows.append(row)
                at, last_offset = at + row[1], row[3]
    return BatchTable(**arrays_of(TABLE_DTYPES, rows), valid_bytes=at, problem=problem), is_other


def without_messages(view: memoryview, table: BatchTable) -> BatchTable:
    """The table without rows of formats 0 and 1. Raises Corrupt for a wrong checksum of such a row."""
    is_legacy = table.magics != MAGIC
    for row in np.flatnonzero(is_legacy).tolist():
        at, size, crc = int(table.positions[row]), int(table.sizes[row]), int(table.crcs[row])
        found = legacy.crc_of(view[at : at + size])
        if found != crc:
            facts = {"expected": f"{crc:08x}", "found": f"{found:08x}"}
            raise Corrupt(
                "cannot decode a batch, crc differs", at=at, base_offset=int(table.base_offsets[row]), **facts
            )
    return table.select(~is_legacy)


def _message_row(view: memoryview, at: int, last_offset: int, *, verify: bool, limit: int) -> tuple[int, ...] | str:
    if problem := legacy.size_problem(view, at):
        return problem
    fields = legacy.header_fields(view, at)
    if fields is None or fields[1] + LENGTH_OVERHEAD > len(view) - at:
        return TORN
    offset, length, epoch, magic, crc, attributes, _delta, *rest, _count = fields
    entry = view[at : at + LENGTH_OVERHEAD + length]
    if verify and legacy.crc_of(entry) != crc:
        return "crc differs"
    if not 0 <= offset <= LONG_MAX - 1 - INT_MAX:
        return "offset outside 0..2^63"
    if attributes & CODEC_BITS > Codec.LZ4:
        return "no such codec"
    try:
        first, count = legacy.inner_range(entry, limit) if attributes & CODEC_BITS else (offset, 1)
    except Corrupt:
        first, count = offset, 1
    if first <= last_offset or not 0 <= offset - first <= INT_MAX or count > offset - first + 1:
        return "offset goes back"
    return (at, len(entry), first, offset, epoch, attributes, *rest, count, crc, magic)
