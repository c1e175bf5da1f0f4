"""Recover a log directory: finish or undo swaps, cut torn tails, rebuild indexes.

States of the files of one swap (the cleaner's, see `local.segment.swap`) and the result of start-up:

| found | meaning | result |
|---|---|---|
| originals, ``.cleaned`` | the new segment was being written | originals; ``.cleaned`` removed |
| originals, ``.swap`` (and a lower ``.cleaned``) | not all renamed | originals; both removed |
| originals, ``.swap``, no ``.cleaned`` | complete | new; originals in its range removed |
| ``.deleted``, ``.swap`` | old ones marked | new |
| the log final, an index ``.swap`` | being put in place | new; that index removed and rebuilt |

Start-up cannot notice a missing ``.txnindex``, because most segments have none. A swap therefore renames it to its
final name first, durably:

- Next to a final log, a ``.txnindex.swap`` never counts.
- Next to a ``.log.swap``, a final ``.txnindex`` without a ``.txnindex.swap`` is the new one. A merged segment has all
  entries of the segments it replaces.

A log file's bytes are trusted up to the recovery point. Beyond it every batch's CRC is checked, and the first torn or
wrong batch ends the log.

Order of effects: truncate, sync the file, rebuild the indexes, sync them, sync the directory. Appends start only then,
else new records would follow torn bytes. A crash inside recovery is recovered in the same way. Source: kafka
`LogLoader`, `LogSegment.recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from local import kernels
from local.errors import Corrupt
from local.format.columns import BatchTable
from local.index import index_files, txn_index
from local.index.index_files import INDEXES, OutsideSegment, build_indexes, headers_of, slices_of
from local.index.txn_index import AbortedTransaction, TransactionScan
from local.log.producer_state import ProducerFiles, ProducerState
from local.names import CLEANED, DELETED, LOG, SEGMENT_SUFFIXES, SWAP, TEMPORARY, TXN_INDEX, parse_segment_file
from local.segment import swap
from local.segment.segment import RELATIVE_OFFSET_MAX, Segment
from local.storage import SegmentFiles, Storage, join, replace_file, sync_file, write_file

_log = logging.getLogger(__name__)
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredSegment:
    """The end of the segment, whether its tail was cut, and its leader epochs with their start offsets."""

    next_offset: int
    is_cut: bool
    epochs: tuple[tuple[int, int], ...]


def finish_swaps(storage: Storage, directory: str) -> None:
    """Remove deleted and half-written files and put complete swaps in place (see the table).

    Durable on return. A swap is complete if its ``.log.swap`` exists and no ``.cleaned`` has a base at or below it. An
    index with a ``.swap`` name without its ``.log.swap`` is removed: it is unknown whether it belongs to the final log.
    """
    there = storage.list(directory)
    if not any(name.endswith((CLEANED, SWAP, DELETED)) for name in there):
        return
    files = [(name, *parsed) for name in there if (parsed := parse_segment_file(name))]
    first_cleaned = min((base for _, base, suffix in files if suffix.endswith(CLEANED)), default=None)
    swapped = {base for _, base, suffix in files if suffix == LOG + SWAP}
    complete = {base for base in swapped if first_cleaned is None or base < first_cleaned}

    def is_doomed(base: int, suffix: str) -> bool:
        return suffix.endswith((DELETED, CLEANED)) or (suffix.endswith(SWAP) and base not in complete)

    _remove(storage, directory, [name for name, base, suffix in files if is_doomed(base, suffix)])
    ranges = [(base, _end_of_swap(SegmentFiles(storage, directory, base))) for base in sorted(complete)]

    def is_replaced(base: int, suffix: str) -> bool:
        if suffix not in SEGMENT_SUFFIXES or (suffix == TXN_INDEX and base in complete):
            return False
        return any(start <= base < end for start, end in ranges)

    # The originals are removed first, durably. A crash here leaves every .log.swap, and so the same outcome.
    _remove(storage, directory, [name for name, base, suffix in files if is_replaced(base, suffix)])
    swaps = [name for name, base, suffix in files if suffix.endswith(SWAP) and base in complete]
    firsts = [name for name in swaps if name.endswith(TXN_INDEX + SWAP)]
    for names in (firsts, [name for name in swaps if name not in firsts]):
        for name in names:
            storage.rename(join(directory, name), join(directory, name.removesuffix(SWAP)))
        if names:
            storage.sync_directory(directory)


def segment_bases(storage: Storage, directory: str, there: Collection[str]) -> list[int]:
    """Return the base offsets among the names, ascending; remove temporary files and indexes without a log."""
    parsed = {name: found for name in there if (found := parse_segment_file(name))}
    bases = sorted(base for base, suffix in parsed.values() if suffix == LOG)
    known = set(bases)
    stray = [n for n, (base, suffix) in parsed.items() if suffix in SEGMENT_SUFFIXES and base not in known]
    stray += [name for name in there if name.endswith(TEMPORARY)]
    _remove(storage, directory, stray)
    return bases


def recover_segment(
    files: SegmentFiles,
    producers: ProducerState,
    *,
    interval_bytes: int,
    trusted_to: int = 0,
    may_begin_below: bool = False,
) -> RecoveredSegment:
    """Check every batch, cut at the first bad one, rebuild the indexes. All is durable on return.

    `producers` must be the state before the segment, and become the state after it. A batch with a valid checksum is
    never cut. Raises, with nothing changed:

    - Corrupt if the first bad batch is below `trusted_to`: damage of durable bytes, not a torn write.
    - OutsideSegment if the indexes cannot hold sound batches, or if the first batch begins below the base, unless
      `may_begin_below`.
    """
    path, base_offset = files.path(LOG), files.base_offset
    with files.mapped(LOG) as data:
        table = kernels.scan_batches(data)
        size, valid, cause = len(data), table.valid_bytes, table.problem
        if len(table) and not _fits(table, base_offset, may_begin_below=may_begin_below):
            facts = {"path": path, "base_offset": base_offset, "first_offset": int(table.base_offsets[0])}
            raise OutsideSegment("cannot recover a segment, its offsets do not fit its file name", **facts)
        next_offset = int(table.last_offsets[-1]) + 1 if len(table) else base_offset
        if valid < size and next_offset < trusted_to:
            attempt = f"cannot recover a segment, {cause} below the recovery point"
            raise Corrupt(attempt, path=path, at=valid, durable=trusted_to)
        aborted = replay(producers, data, table, path)
    # Synced even without a cut: the bytes may be in the page cache only, and count as durable from now on.
    sync_file(files.storage, path, truncate_to=valid if valid < size else None)
    if valid < size:
        _log.warning("cut the tail of a segment: path=%s at=%d bytes=%d cause=%s", path, valid, size - valid, cause)
    _write_txn_index(files, txn_index.encode(aborted))
    _write_indexes(files, table, interval_bytes)
    firsts = np.flatnonzero(np.diff(np.maximum.accumulate(np.maximum(table.leader_epochs, -1)), prepend=-1))
    epochs = tuple((int(table.leader_epochs[row]), int(table.base_offsets[row])) for row in firsts)
    return RecoveredSegment(next_offset=next_offset, is_cut=valid < size, epochs=epochs)


def cut_segment(
    files: SegmentFiles, size_bytes: int, remaining: BatchTable, aborted: bytes, interval_bytes: int
) -> None:
    """Truncate the log file to its `remaining` batches, then its indexes; `aborted` is the new ``.txnindex``."""
    sync_file(files.storage, files.path(LOG), truncate_to=size_bytes)
    _write_txn_index(files, aborted)
    _write_indexes(files, remaining, interval_bytes)


def replay(
    producers: ProducerState, data: memoryview, table: BatchTable, path: str, from_offset: int = 0
) -> list[AbortedTransaction]:
    """Do `ProducerState.replay` for a segment. Raises Corrupt, naming the file, for an unreadable marker."""
    try:
        return producers.replay(data, table, from_offset)
    except Corrupt as error:
        raise Corrupt(
            f"cannot read the producers of a segment: {error.attempt}", **{**error.facts, "path": path}
        ) from error


def check_txn_index(files: SegmentFiles) -> str | None:
    """Return why a segment's transaction index is unusable, or None. Reads it whole."""
    path = files.path(TXN_INDEX)
    try:
        txn_index.check(files.storage.read(path), files.base_offset, path=path)
    except Corrupt as error:
        return str(error)
    return None


def rebuild_txn_index(files: SegmentFiles, producers: ProducerState) -> None:
    """Rebuild the transaction index atomically. `producers` must be the state before the segment."""
    path = files.path(LOG)
    with files.mapped(LOG) as data:
        aborted = replay(producers, data, kernels.scan_batches(data, verify=False), path)
    replace_file(files.storage, files.path(TXN_INDEX), txn_index.encode(aborted))
    _log.warning("rebuilt the transaction index of a segment: path=%s", path)


def rebuild_indexes(files: SegmentFiles, *, interval_bytes: int) -> None:
    """Rebuild both indexes from the headers; a crash leaves each file old or new. Raises Corrupt."""
    path, storage = files.path(LOG), files.storage
    table = headers_of(lambda at, length: storage.read(path, at, length), storage.size(path), path=path)
    index_files.write_aside(files, build_indexes(table, files.base_offset, interval_bytes))
    index_files.put_in_place(files)
    _log.warning("rebuilt the indexes of a segment: path=%s", path)


def _write_indexes(files: SegmentFiles, table: BatchTable, interval_bytes: int) -> None:
    """Create new files: the old ones may be mapped into memory, and truncating a mapped file ends the process."""
    indexes = build_indexes(table, files.base_offset, interval_bytes)
    for suffix, body in zip(INDEXES, indexes, strict=True):
        files.storage.unlink(files.path(suffix))
        write_file(files.storage, files.path(suffix), body)
    files.sync_names()


def _write_txn_index(files: SegmentFiles, entries: bytes) -> None:
    if entries:
        write_file(files.storage, files.path(TXN_INDEX), entries)
    else:
        files.storage.unlink(files.path(TXN_INDEX))


def _end_of_swap(files: SegmentFiles) -> int:
    """Return one past the last offset of a ``.log.swap``, which replaces all segments in its range."""
    with files.mapped(LOG + SWAP) as data:
        table = kernels.scan_batches(data, verify=False)
        return int(table.last_offsets[-1]) + 1 if len(table) else files.base_offset + 1


def _fits(table: BatchTable, base_offset: int, *, may_begin_below: bool) -> bool:
    first = int(table.last_offsets[0] if may_begin_below else table.base_offsets[0])
    return base_offset <= first and int(table.last_offsets[-1]) - base_offset <= RELATIVE_OFFSET_MAX


def _remove(storage: Storage, directory: str, names: list[str]) -> None:
    for name in names:
        storage.unlink(join(directory, name))
    if names:
        storage.sync_directory(directory)


# Rebuild the entries of a ``.txnindex`` from the log, if the index is missing or contradicts the log.
#
# 1. Load the producers before the segment: the newest snapshot, and the batches from there on.
# 2. Replay the segment's batches. Each abort marker that ends an open transaction gives an entry.
# 3. Keep an entry of the old file if the log has its abort marker and the replay gives no entry. The cleaner has
#    removed the records of such a transaction, or they are only in the remote tier.


def entries_again(segment: Segment, bases: Sequence[int]) -> list[AbortedTransaction]:
    """Return the entries of `segment`; `bases` are those before it. Raises NotFound, Corrupt."""
    snapshots = ProducerFiles(segment.files.storage, segment.files.directory, is_onlooker=True)
    producers = snapshots.state_at(segment.base_offset, bases)
    found: dict[tuple[int, int], AbortedTransaction] = {}
    scan, path = TransactionScan(), segment.path(LOG)
    for _, data, table in slices_of(segment.read):
        scan.take(data, table)
        for each in replay(producers, data, table, path):
            found[each.producer_id, each.last_offset] = each
    aborts = scan.found().aborts
    with suppress(Corrupt):
        for each in segment.aborted():
            place = each.producer_id, each.last_offset
            if place in aborts and aborts[place].first_record is None and place not in found:
                found[place] = each
    return sorted(found.values(), key=lambda each: each.last_offset)


# Split or rename segments that no index can describe, at start-up. A sound batch is never cut.
#
# An index counts offsets from the segment's base in 31 bits. Older brokers' cleaners left longer segments (KAFKA-6264),
# and a file may have a wrong name.
#
# | the segment | start-up |
# |---|---|
# | spans more than 2^31-1 offsets | splits it; each part is named after its first batch, the first keeps its name |
# | its first batch is below its name, at or above the end of the previous segment | renames the file to that batch |
# | its first batch ends below its name, inside the previous segment | Corrupt: both stay unchanged |
# | its first batch begins below its name and ends above, inside the previous segment | accepts it, as Kafka does |
# | its first batch is more than 2^31-1 above its name | renames the file to that batch |
# | its last batch reaches into the next segment | Corrupt: both stay unchanged |
#
# A clean start reads no batch of a trusted segment between the first and the last one. Such a segment may begin below
# its name. `local.verify` warns of it, and a recovery renames it.
#
# Order of effects of a split, and the result of `finish_swaps` after a crash:
#
# 1. Write each part and its ``.txnindex`` as ``.cleaned`` and sync them. After a crash: parts removed, the segment
#    stays.
# 2. Rename them to ``.swap``, except the log of the lowest base, and sync the directory. While the lowest base has a
#    ``.cleaned`` file, a crash has the same result.
# 3. Rename that log to ``.swap`` and sync the directory. The parts are complete. Without the sync of step 2 this rename
#    alone could survive a power cut. The other parts would then count as half written, and their records would be lost.
# 4. Remove the segment, then rename each ``.swap`` to its final name, durably. After a crash: step 4 is repeated.
#
# The same start then builds the missing indexes. A rename is one effect: the old indexes have no log and are removed.
# Source: kafka `LogLoader.retryOnOffsetOverflow`, `LocalLog.splitOverflowedSegment`.


def put_right(files: SegmentFiles, *, end_before: int | None, next_base: int | None, verify: bool) -> bool:
    """Split or rename the segment as the table above says. Return False if it stays as it is.

    `end_before` is the end of the previous segment, `next_base` the base of the next one; None without one. With
    `verify` only the batches before the first wrong checksum count; the bytes after them stay in the last part. Durable
    on return. Raises Corrupt, with nothing changed.
    """
    path, base_offset = files.path(LOG), files.base_offset
    with files.mapped(LOG) as data:
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
                facts = {**where, "end_before": end_before}
                raise Corrupt("cannot load the log, a segment overlaps the previous segment", **facts)
        elif not 0 <= first - base_offset <= RELATIVE_OFFSET_MAX:
            files.storage.rename(path, files._replace(base_offset=first).path(LOG))
            files.sync_names()
            _log.warning(
                "renamed a segment to the base offset of its first batch: path=%s first_offset=%d", path, first
            )
            return True
        if last - base_offset <= RELATIVE_OFFSET_MAX:
            return False
        _split(files, data, table)
        return True


def _split(files: SegmentFiles, data: memoryview, table: BatchTable) -> None:
    storage, path = files.storage, files.path(LOG)
    modified_ms = storage.modified_ms(path)
    starts = _first_rows(table, files.base_offset)
    bases = [files.base_offset, *(int(table.base_offsets[row]) for row in starts[1:])]
    cuts = [*(int(table.positions[row]) for row in starts), len(data)]
    aborted = _aborted(files)
    ends = [*bases[1:], None]
    for base, end, start, stop in zip(bases, ends, cuts, cuts[1:], strict=False):
        part = files._replace(base_offset=base)
        pieces = (data[at : min(at + _PIECE_BYTES, stop)] for at in range(start, stop, _PIECE_BYTES))
        swap.write_cleaned(part, pieces, modified_ms=modified_ms)
        if aborted is not None:
            mine = [each for each in aborted if base <= each.last_offset and (end is None or each.last_offset < end)]
            write_file(storage, part.path(TXN_INDEX) + CLEANED, txn_index.encode(mine))
    files.sync_names()
    for base in reversed(bases):
        for suffix in (TXN_INDEX, LOG) if aborted is not None else (LOG,):
            if (base, suffix) == (files.base_offset, LOG):
                files.sync_names()
            final = files._replace(base_offset=base).path(suffix)
            storage.rename(final + CLEANED, final + SWAP)
    files.sync_names()
    finish_swaps(storage, files.directory)
    _log.warning("split a segment that spans too many offsets: path=%s bases=%s", path, bases)


def _first_rows(table: BatchTable, base_offset: int) -> list[int]:
    rows, base = [0], base_offset
    while (row := int(np.searchsorted(table.last_offsets, base + RELATIVE_OFFSET_MAX, "right"))) < len(table):
        rows.append(row)
        base = int(table.base_offsets[row])
    return rows


def _aborted(files: SegmentFiles) -> list[AbortedTransaction] | None:
    path = files.path(TXN_INDEX)
    if not files.storage.exists(path):
        return None
    try:
        return txn_index.entries(files.storage.read(path), path=path)
    except Corrupt as error:
        _log.warning("a transaction index was not split: path=%s cause=%s", path, error)
        return []
