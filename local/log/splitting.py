"""Segments whose name or length no index can describe, put right at a start: nothing with a valid checksum is cut.

An index counts offsets from the segment's base in 31 bits. Older brokers' cleaners left segments that span more
(KAFKA-6264), and a file may have come under a wrong name.

| the segment | what a start does |
|---|---|
| spans more than 2^31-1 offsets | it is split, each part named after its first batch, the first part as before |
| its first batch lies below its name, behind the segment before | the file is renamed to that batch |
| its first batch ends below its name, inside the segment before | Corrupt: both stay as they are |
| its first batch begins below its name and ends above, inside the segment before | it is taken, as Kafka does |
| its first batch lies more than 2^31-1 above its name | the file is renamed to that batch |
| its last batch reaches into the next segment | Corrupt: both stay as they are |

A clean start reads no batch of a trusted segment between the first and the last one. Where such a segment begins below
its name, its records are served at their offsets under this name, `verify` warns of it, and a recovery renames it.

Order of effects of a split, and what `recovery.finish_swaps` makes of a crash after each of them:

1. Each part and its ``.txnindex`` written as ``.cleaned``, synced: the parts are removed, the segment stays.
2. Renamed to ``.swap``, the log of the lowest base excepted; the directory synced. Any ``.cleaned`` file of the lowest
   base means that the parts are removed.
3. That log renamed to ``.swap``; the directory synced. The parts are complete. Without the sync of step 2 this rename
   alone could survive a power cut: then the other parts would count as half made, and their records would be lost.
4. The segment removed, then each ``.swap`` renamed to its final name, durably: what is missing of it is done again.

The indexes are missing then, and made by the start that goes on. A rename is one effect: the old indexes are strays.
Source: kafka `LogLoader.retryOnOffsetOverflow`, `LocalLog.splitOverflowedSegment`.
"""

from __future__ import annotations

import logging

import numpy as np

from local import kernels
from local.errors import Corrupt
from local.format.columns import BatchTable
from local.index import txn_index
from local.log import recovery
from local.names import CLEANED, LOG, SWAP, TXN_INDEX, segment_file
from local.segment import swap
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import Storage, join

_log = logging.getLogger(__name__)
_PIECE_BYTES = 8 << 20


def put_right(
    storage: Storage, directory: str, base_offset: int, *, end_before: int | None, next_base: int | None, verify: bool
) -> bool:
    """Split or rename the segment where the table above says so; False where it is taken as it is.

    `end_before` is where the segment before ends, `next_base` the base of the one behind it; None without one. With
    `verify` the batches up to the first wrong checksum count, and what follows stays behind the last one. Durable on
    return. Raises Corrupt, with nothing changed.
    """
    path = join(directory, segment_file(base_offset, LOG))
    data = storage.map(path)
    try:
        table = kernels.scan_batches(data, verify=verify)
        if not len(table):
            return False
        first, last = int(table.base_offsets[0]), int(table.last_offsets[-1])
        where = {"path": path, "base_offset": base_offset, "first_offset": first, "last_offset": last}
        if next_base is not None and last >= next_base:
            facts = {**where, "next_base_offset": next_base}
            raise Corrupt("loading a log, a segment reaches into the next one", **facts)
        if first < base_offset and end_before is not None and end_before > first:
            if table.last_offsets[0] < base_offset:
                raise Corrupt("loading a log, a segment reaches into the one before", **where, end_before=end_before)
        elif not 0 <= first - base_offset <= RELATIVE_OFFSET_MAX:
            _rename(storage, directory, base_offset, first)
            return True
        if last - base_offset <= RELATIVE_OFFSET_MAX:
            return False
        _split(storage, directory, base_offset, data, table)
        return True
    finally:
        data.release()


def _rename(storage: Storage, directory: str, base_offset: int, first_offset: int) -> None:
    """The log alone: what is left of its indexes has no log, and the start removes it."""
    path = join(directory, segment_file(base_offset, LOG))
    storage.rename(path, join(directory, segment_file(first_offset, LOG)))
    storage.sync_directory(directory)
    _log.warning("renamed a segment after its first batch: path=%s first_offset=%d", path, first_offset)


def _split(storage: Storage, directory: str, base_offset: int, data: memoryview, table: BatchTable) -> None:
    path = join(directory, segment_file(base_offset, LOG))
    modified_ms = storage.modified_ms(path)
    starts = _first_rows(table, base_offset)
    bases = [base_offset, *(int(table.base_offsets[row]) for row in starts[1:])]
    cuts = [*(int(table.positions[row]) for row in starts), len(data)]
    aborted = _aborted(storage, directory, base_offset)
    ends = [*bases[1:], None]
    for base, end, start, stop in zip(bases, ends, cuts, cuts[1:], strict=False):
        pieces = (data[at : min(at + _PIECE_BYTES, stop)] for at in range(start, stop, _PIECE_BYTES))
        swap.write_cleaned(storage, directory, base, pieces, modified_ms=modified_ms)
        if aborted is not None:
            mine = [each for each in aborted if base <= each.last_offset and (end is None or each.last_offset < end)]
            _write(storage, join(directory, segment_file(base, TXN_INDEX) + CLEANED), txn_index.encode(mine))
    storage.sync_directory(directory)
    for base in reversed(bases):
        for suffix in (TXN_INDEX, LOG) if aborted is not None else (LOG,):
            if (base, suffix) == (base_offset, LOG):
                storage.sync_directory(directory)
            part = join(directory, segment_file(base, suffix))
            storage.rename(part + CLEANED, part + SWAP)
    storage.sync_directory(directory)
    recovery.finish_swaps(storage, directory)
    _log.warning("split a segment of too many offsets: path=%s bases=%s", path, bases)


def _first_rows(table: BatchTable, base_offset: int) -> list[int]:
    """The row that each part begins with: as many batches as 31 bits reach from its base."""
    rows, base = [0], base_offset
    while (row := int(np.searchsorted(table.last_offsets, base + RELATIVE_OFFSET_MAX, "right"))) < len(table):
        rows.append(row)
        base = int(table.base_offsets[row])
    return rows


def _aborted(storage: Storage, directory: str, base_offset: int) -> list[txn_index.AbortedTransaction] | None:
    """The entries of the segment's transaction index; None where there is none, or none that can be read."""
    path = join(directory, segment_file(base_offset, TXN_INDEX))
    if not storage.exists(path):
        return None
    try:
        return txn_index.entries(storage.read(path), path=path)
    except Corrupt as error:
        _log.warning("a transaction index is left out of a split: path=%s cause=%s", path, error)
        return []


def _write(storage: Storage, path: str, body: bytes) -> None:
    file = storage.create(path)
    try:
        file.append(body)
        file.sync()
    finally:
        file.close()
