"""Scan messages of formats 0 and 1: their rows in `kernels.scan_batches`.

A row is one message, or one wrapper with all records inside. Rows have no producer, no leader epoch and no control
records. Plain Python is fast enough: such logs are read once to convert them.
"""

from __future__ import annotations

import numpy as np

from local.errors import Corrupt
from local.format import legacy
from local.format.batch_header import CODEC_BITS, LENGTH_OVERHEAD, MAGIC, MAGIC_END
from local.format.columns import TABLE_DTYPES, TORN, BatchTable
from local.format.compression import Codec
from local.kernels.pure_kernels import INT_MAX, LONG_MAX

FOUND = frozenset(f"magic {magic}" for magic in legacy.MAGICS)  # the kernels' `problem` at such a message


def scan(view: memoryview, at: int, last_offset: int, *, verify: bool, limit: int) -> tuple[BatchTable, bool]:
    """(table of the messages from byte `at` on, whether a batch of another format follows).

    Offsets ascend from `last_offset`. A wrapper that does not decompress within `limit` bytes gets a row of one record;
    a later decode raises for it. As for batches, a scan checks only the checksum and the outermost fields.
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
            row = _row(view, at, last_offset, verify=verify, limit=limit)
            if isinstance(row, str):
                problem = row
            else:
                rows.append(row)
                at, last_offset = at + row[1], row[3]
    columns = list(zip(*rows, strict=True)) or [()] * len(TABLE_DTYPES)
    arrays = {name: np.array(column, TABLE_DTYPES[name]) for name, column in zip(TABLE_DTYPES, columns, strict=True)}
    return BatchTable(**arrays, valid_bytes=at, problem=problem), is_other


def verified(view: memoryview, table: BatchTable) -> BatchTable:
    """The table without its rows of formats 0 and 1. Raises Corrupt if the checksum of such a row is wrong."""
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


def _row(view: memoryview, at: int, last_offset: int, *, verify: bool, limit: int) -> tuple[int, ...] | str:
    """The row of the message at `at`, or the text of its fault."""
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
