"""Split or rename segments that no index can describe, at start-up. A sound batch is never cut.

An index counts offsets from the segment's base in 31 bits. Older brokers' cleaners left segments with a longer range
(KAFKA-6264), and a file may have a wrong name.

| the segment | start-up |
|---|---|
| spans more than 2^31-1 offsets | splits it; each part is named after its first batch, the first keeps its name |
| its first batch is below its name, at or above the end of the previous segment | renames the file to that batch |
| its first batch ends below its name, inside the previous segment | Corrupt: both stay unchanged |
| its first batch begins below its name and ends above, inside the previous segment | accepts it, as Kafka does |
| its first batch is more than 2^31-1 above its name | renames the file to that batch |
| its last batch reaches into the next segment | Corrupt: both stay unchanged |

A clean start reads no batch of a trusted segment between the first and the last one. If such a segment begins below
its name, its records are served at their offsets under this name. `verify` warns of it, and a recovery renames it.

Order of effects of a split, and the result of `recovery.finish_swaps` after a crash:

1. Write each part and its ``.txnindex`` as ``.cleaned`` and sync them. After a crash: parts removed, the segment
   stays.
2. Rename them to ``.swap``, except the log of the lowest base, and sync the directory. While the lowest base has a
   ``.cleaned`` file, a crash has the same result.
3. Rename that log to ``.swap`` and sync the directory. The parts are complete. Without the sync of step 2 this rename
   alone could survive a power cut. The other parts would then count as half written, and their records would be lost.
4. Remove the segment, then rename each ``.swap`` to its final name, durably. After a crash: step 4 is repeated.

The same start then builds the missing indexes. A rename is one effect: the old indexes have no log and are removed.
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
    """Split or rename the segment as the module's table says. Return False if it stays as it is.

    `end_before` is the end of the previous segment, `next_base` the base of the next one; None without one. With
    `verify` only the batches before the first wrong checksum count; the bytes after them stay in the last part.
    Durable on return. Raises Corrupt, with nothing changed.
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
            raise Corrupt("cannot load the log, a segment overlaps the next segment", **facts)
        if first < base_offset and end_before is not None and end_before > first:
            if table.last_offsets[0] < base_offset:
                raise Corrupt(
                    "cannot load the log, a segment overlaps the previous segment", **where, end_before=end_before
                )
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
    """Rename the log alone. The start removes the old indexes, which have no log then."""
    path = join(directory, segment_file(base_offset, LOG))
    storage.rename(path, join(directory, segment_file(first_offset, LOG)))
    storage.sync_directory(directory)
    _log.warning("renamed a segment to the base offset of its first batch: path=%s first_offset=%d", path, first_offset)


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
    _log.warning("split a segment that spans too many offsets: path=%s bases=%s", path, bases)


def _first_rows(table: BatchTable, base_offset: int) -> list[int]:
    """Return the first row of each part. A part has all batches within 31 bits of its base."""
    rows, base = [0], base_offset
    while (row := int(np.searchsorted(table.last_offsets, base + RELATIVE_OFFSET_MAX, "right"))) < len(table):
        rows.append(row)
        base = int(table.base_offsets[row])
    return rows


def _aborted(storage: Storage, directory: str, base_offset: int) -> list[txn_index.AbortedTransaction] | None:
    """Return the entries of the segment's transaction index; None without the file, none if it is damaged."""
    path = join(directory, segment_file(base_offset, TXN_INDEX))
    if not storage.exists(path):
        return None
    try:
        return txn_index.entries(storage.read(path), path=path)
    except Corrupt as error:
        _log.warning("a transaction index was not split: path=%s cause=%s", path, error)
        return []


def _write(storage: Storage, path: str, body: bytes) -> None:
    file = storage.create(path)
    try:
        file.append(body)
        file.sync()
    finally:
        file.close()
