"""The boundaries of a piece, held against the batches there: an entry of an offset index is a hint and no proof.

An index bundle has a checksum, but the index in it may have been wrong when it was copied. So the offsets of a piece
decide which batches are its own, and the bytes at both positions of the piece are compared with these offsets:

| the bytes there | what a task does |
|---|---|
| at the first position: a batch that does not begin behind the piece's first offsets | it reads from there |
| anything else | it reads from the segment's start, and leaves out the batches of other pieces |
| at the last position: a batch that belongs to another piece or follows the split | it is done |
| anything else | it reads on until there is such a batch, or the segment ends |

Kafka's own entries may name a batch some way behind their position; the second half of the table reads up to that one.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from local.errors import Corrupt
from local.format.columns import Columns
from local.records.batch import BatchHeader, read_header
from tiered.read.view_rows import leads_astray, report_wrong_index
from tiered.spark.source.splits import OFFSET_MAX, Piece, Split

BEYOND_BYTES = 256 << 10  # that are read at once behind the position where the index says that a piece ends


def of_piece(columns: Columns, piece: Piece) -> Columns:
    """The records of the piece's own batches."""
    if piece.from_last <= 0 and piece.upto_last == OFFSET_MAX:
        return columns
    last_offsets = columns.table.last_offsets
    own = np.logical_and(last_offsets >= piece.from_last, last_offsets < piece.upto_last)
    return columns if own.all() else columns.select(own[columns.batch_ordinals])


def starts_astray(piece: Piece, split: Split, data: memoryview) -> bool:
    """Whether batches of the piece may lie before its first position, where `data` begins; this is reported then."""
    return leads_astray(piece.segment, data, max(piece.from_last, split.start_offset), piece.position)


def end_of_piece(piece: Piece, split: Split, data: memoryview, position: int, end_position: int) -> int:
    """Up to where to read, of a piece that was read up to the batch at `position`: `position` when it is done.

    `data` begins at `position`, which lies before `end_position` where that is inside a batch.
    """
    header = _header(data)
    if header is not None and (header.last_offset >= piece.upto_last or header.base_offset >= split.next_offset):
        return position
    if position < end_position or piece.upto_last == OFFSET_MAX:
        report_wrong_index(piece.segment, min(piece.upto_last, split.next_offset), end_position)
    size_bytes = BEYOND_BYTES if header is None else max(BEYOND_BYTES, header.size_bytes)
    return min(position + size_bytes, piece.segment.size_bytes)


def _header(data: memoryview) -> BatchHeader | None:
    """None for damage, too: the one who reads on finds it and can say more."""
    with suppress(Corrupt):
        return read_header(data)
    return None
