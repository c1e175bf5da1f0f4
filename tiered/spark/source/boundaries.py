"""The boundaries of a piece, compared with the batches there: an offset index is only a hint.

An index bundle has a checksum, but its index may already have been wrong when it was copied. The offsets of a piece
therefore decide which batches belong to it. The bytes at both positions of the piece are compared with these offsets:

| the bytes there | the task |
|---|---|
| at the first position: a batch that begins at or below the piece's first offset | reads from there |
| anything else | reads from the segment's start, and skips the batches of other pieces |
| at the last position: a batch that belongs to another piece or follows the split | stops |
| anything else | reads on until such a batch, or the segment's end |

Kafka's entries may name a batch some way behind their position. The last row of the table reads up to that batch.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from local.errors import Corrupt
from local.format.columns import Columns
from local.records.batch import BatchHeader, read_header
from tiered.read.view_entries import leads_astray, report_wrong_index
from tiered.spark.source.splits import OFFSET_MAX, Piece, Split

BEYOND_BYTES = 256 << 10  # read at once behind the position where a piece ends by the index


def of_piece(columns: Columns, piece: Piece) -> Columns:
    """The records of the piece's own batches."""
    if piece.from_last <= 0 and piece.upto_last == OFFSET_MAX:
        return columns
    last_offsets = columns.table.last_offsets
    own = np.logical_and(last_offsets >= piece.from_last, last_offsets < piece.upto_last)
    return columns if own.all() else columns.select(own[columns.batch_ordinals])


def starts_astray(piece: Piece, split: Split, data: memoryview) -> bool:
    """Whether batches of the piece may precede its first position, where `data` begins; reports it if so."""
    return leads_astray(piece.segment, data, max(piece.from_last, split.start_offset), piece.position)


def end_of_piece(piece: Piece, split: Split, data: memoryview, position: int, end_position: int) -> int:
    """The position up to which to read a piece further; `position` if it is complete.

    The piece was read up to the batch at `position`, where `data` begins. `position` is below `end_position` if
    `end_position` is inside a batch.
    """
    header = _header(data)
    if header is not None and (header.last_offset >= piece.upto_last or header.base_offset >= split.next_offset):
        return position
    if position < end_position or piece.upto_last == OFFSET_MAX:
        report_wrong_index(piece.segment, min(piece.upto_last, split.next_offset), end_position)
    size_bytes = BEYOND_BYTES if header is None else max(BEYOND_BYTES, header.size_bytes)
    return min(position + size_bytes, piece.segment.size_bytes)


def _header(data: memoryview) -> BatchHeader | None:
    """The header of a batch; None for damage too, which the reading of the batch reports in detail."""
    with suppress(Corrupt):
        return read_header(data)
    return None
