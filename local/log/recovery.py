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
wrong batch ends the log. `local.log.loading` decides which segments are recovered, and handles later ones.

Order of effects: truncate, sync the file, rebuild the indexes, sync them, sync the directory. Appends start only then,
else new records would follow torn bytes. A crash inside recovery is recovered in the same way. Source: kafka
`LogLoader`, `LogSegment.recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from local import kernels
from local.errors import Corrupt
from local.format.columns import BatchTable
from local.index import index_files, txn_index
from local.index.index_building import OutsideSegment, build_indexes
from local.index.txn_index import AbortedTransaction
from local.log.producer_state import ProducerState
from local.names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    SWAP,
    TEMPORARY,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import Storage, join, replace_file

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredSegment:
    """The result of recovering a segment. `cut` is why its tail was removed, None without a cut."""

    base_offset: int
    next_offset: int
    size_bytes: int
    cut: str | None
    epochs: tuple[tuple[int, int], ...]


def finish_swaps(storage: Storage, directory: str) -> None:
    """Remove deleted and half-written files and put complete swaps in place (see the table).

    Durable on return. A swap is complete if its ``.log.swap`` exists and no ``.cleaned`` has a base at or below it. An
    index with a ``.swap`` name without its ``.log.swap`` is removed and rebuilt: it is unknown whether it belongs to
    the final log.
    """
    there = storage.list(directory)
    if not any(name.endswith((CLEANED, SWAP, DELETED)) for name in there):
        return
    files = [(name, *parsed) for name in there if (parsed := parse_segment_file(name))]
    cleaned = [base for _, base, suffix in files if suffix.endswith(CLEANED)]
    swapped = {base for _, base, suffix in files if suffix == LOG + SWAP}
    complete = {base for base in swapped if not cleaned or base < min(cleaned)}
    _remove(storage, directory, [name for name, base, suffix in files if _is_doomed(base, suffix, complete)])
    ranges = [_range_of(storage, directory, base) for base in sorted(complete)]
    # The originals are removed first, durably. A crash here leaves every .log.swap, and so the same outcome.
    _remove(
        storage,
        directory,
        [
            name
            for name, base, suffix in files
            if suffix in SEGMENT_SUFFIXES
            and any(start <= base < end for start, end in ranges)
            and not (suffix == TXN_INDEX and base in complete)
        ],
    )
    swaps = [name for name, base, suffix in files if suffix.endswith(SWAP) and base in complete]
    firsts = [name for name in swaps if name.endswith(TXN_INDEX + SWAP)]
    for names in (firsts, [name for name in swaps if name not in firsts]):
        for name in names:
            storage.rename(join(directory, name), join(directory, name.removesuffix(SWAP)))
        if names:
            storage.sync_directory(directory)


def segment_bases(storage: Storage, directory: str, there: Collection[str]) -> list[int]:
    """Return the segments' base offsets among the names `there`, ascending.

    Removes indexes without a log, and temporary files.
    """
    parsed = {name: found for name in there if (found := parse_segment_file(name))}
    bases = sorted(base for base, suffix in parsed.values() if suffix == LOG)
    known = set(bases)
    stray = [n for n, (base, suffix) in parsed.items() if suffix in SEGMENT_SUFFIXES and base not in known]
    stray += [name for name in there if name.endswith(TEMPORARY)]
    _remove(storage, directory, stray)
    return bases


def recover_segment(
    storage: Storage,
    directory: str,
    base_offset: int,
    producers: ProducerState,
    *,
    interval_bytes: int,
    trusted_to: int = 0,
    may_begin_below: bool = False,
) -> RecoveredSegment:
    """Check every batch, cut at the first bad one, rebuild the indexes. All is durable on return.

    `producers` must be the state before the segment, and become the state after it. A batch with a valid checksum is
    never cut. Raises, with nothing changed:

    - Corrupt if the first bad batch is below `trusted_to`: these bytes were durable once, so this is damage and not a
      torn write.
    - OutsideSegment if the indexes cannot hold sound batches, or if the first batch begins below the base, unless
      `may_begin_below`.
    """
    path = join(directory, segment_file(base_offset, LOG))
    data = storage.map(path)
    try:
        table = kernels.scan_batches(data)
        size, valid, cut = len(data), table.valid_bytes, table.problem
        if len(table) and not _fits(table, base_offset, may_begin_below=may_begin_below):
            facts = {"path": path, "base_offset": base_offset, "first_offset": int(table.base_offsets[0])}
            raise OutsideSegment("cannot recover a segment, its offsets do not fit its file name", **facts)
        next_offset = int(table.last_offsets[-1]) + 1 if len(table) else base_offset
        if valid < size and next_offset < trusted_to:
            attempt = f"cannot recover a segment, {cut} below the recovery point"
            raise Corrupt(attempt, path=path, at=valid, durable=trusted_to)
        aborted = replay(producers, data, table, path)
    finally:
        data.release()
    # Synced even without a cut: the bytes may be in the page cache only, and they count as durable from now on.
    _truncate_and_sync(storage, path, valid if valid < size else None)
    if valid < size:
        _log.warning("cut the tail of a segment: path=%s at=%d bytes=%d cause=%s", path, valid, size - valid, cut)
    _write_txn_index(storage, directory, base_offset, txn_index.encode(aborted))
    _write_indexes(storage, directory, base_offset, table, interval_bytes)
    return RecoveredSegment(
        base_offset=base_offset,
        next_offset=next_offset,
        size_bytes=valid,
        cut=cut if valid < size else None,
        epochs=_epochs(table.leader_epochs.tolist(), table.base_offsets.tolist()),
    )


def cut_segment(
    storage: Storage,
    directory: str,
    base_offset: int,
    size_bytes: int,
    kept: BatchTable,
    aborted: bytes,
    interval_bytes: int,
) -> None:
    """Cut the log file to `size_bytes`, the batches of `kept`, then its indexes.

    `aborted` is the ``.txnindex``.
    """
    _truncate_and_sync(storage, join(directory, segment_file(base_offset, LOG)), size_bytes)
    _write_txn_index(storage, directory, base_offset, aborted)
    _write_indexes(storage, directory, base_offset, kept, interval_bytes)


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


def check_txn_index(storage: Storage, directory: str, base_offset: int) -> str | None:
    """Return why a segment's transaction index is unusable, or None. Reads it whole."""
    path = join(directory, segment_file(base_offset, TXN_INDEX))
    try:
        txn_index.check(storage.read(path), base_offset, path=path)
    except Corrupt as error:
        return str(error)
    return None


def rebuild_txn_index(storage: Storage, directory: str, base_offset: int, producers: ProducerState) -> None:
    """Rebuild the transaction index from the segment's batches and replace the file atomically.

    `producers` must be the state before the segment.
    """
    path = join(directory, segment_file(base_offset, LOG))
    data = storage.map(path)
    try:
        aborted = replay(producers, data, kernels.scan_batches(data, verify=False), path)
    finally:
        data.release()
    replace_file(storage, join(directory, segment_file(base_offset, TXN_INDEX)), txn_index.encode(aborted))
    _log.warning("rebuilt the transaction index of a segment: path=%s", path)


def rebuild_indexes(storage: Storage, directory: str, base_offset: int, *, interval_bytes: int) -> None:
    """Rebuild both indexes from the batch headers. The log is not changed.

    For a segment that is not recovered again: a crash leaves each file whole, old or new. Raises Corrupt if the
    headers are unsound. Checksums are left to the reads of the batches, so that the rest of the segment stays
    readable.
    """
    path = join(directory, segment_file(base_offset, LOG))
    data = storage.map(path)
    try:
        table = kernels.scan_batches(data, verify=False)
        if table.problem is not None:
            raise Corrupt(f"cannot rebuild indexes, {table.problem}", path=path, at=table.valid_bytes)
    finally:
        data.release()
    indexes = build_indexes(table, base_offset, interval_bytes)
    index_files.write_aside(storage, directory, base_offset, indexes)
    index_files.put_in_place(storage, directory, base_offset)
    _log.warning("rebuilt the indexes of a segment: path=%s", path)


def _write_indexes(storage: Storage, directory: str, base_offset: int, table: BatchTable, interval_bytes: int) -> None:
    """Create new files: a map of the old ones may be in use, and truncating a mapped file is fatal."""
    indexes = build_indexes(table, base_offset, interval_bytes)
    for suffix, body in ((OFFSET_INDEX, indexes.offset), (TIME_INDEX, indexes.time)):
        path = join(directory, segment_file(base_offset, suffix))
        storage.unlink(path)
        _write(storage, path, body)
    storage.sync_directory(directory)


def _write_txn_index(storage: Storage, directory: str, base_offset: int, entries: bytes) -> None:
    """Write the entries, or delete the file if there are none. The caller syncs the directory."""
    path = join(directory, segment_file(base_offset, TXN_INDEX))
    if entries:
        _write(storage, path, bytearray(entries))
    else:
        storage.unlink(path)


def _is_doomed(base: int, suffix: str, complete: set[int]) -> bool:
    return suffix.endswith((DELETED, CLEANED)) or (suffix.endswith(SWAP) and base not in complete)


def _range_of(storage: Storage, directory: str, base: int) -> tuple[int, int]:
    """Return the offsets that a ``.log.swap`` replaces: from its base to one past its last batch.

    The cleaner retains the last batch empty if needed.
    """
    data = storage.map(join(directory, segment_file(base, LOG) + SWAP))
    try:
        table = kernels.scan_batches(data, verify=False)
        return base, int(table.last_offsets[-1]) + 1 if len(table) else base + 1
    finally:
        data.release()


def _fits(table: BatchTable, base_offset: int, *, may_begin_below: bool) -> bool:
    first = int(table.last_offsets[0] if may_begin_below else table.base_offsets[0])
    return base_offset <= first and int(table.last_offsets[-1]) - base_offset <= RELATIVE_OFFSET_MAX


def _epochs(epochs: list[int], offsets: list[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for epoch, offset in zip(epochs, offsets, strict=True):
        if epoch >= 0 and (not found or epoch > found[-1][0]):
            found.append((epoch, offset))
    return tuple(found)


def _truncate_and_sync(storage: Storage, path: str, size: int | None) -> None:
    file = storage.open(path)
    try:
        if size is not None:
            file.truncate(size)
        file.sync()
    finally:
        file.close()


def _write(storage: Storage, path: str, body: bytearray) -> None:
    file = storage.create(path)
    try:
        file.append(body)
        file.sync()
    finally:
        file.close()


def _remove(storage: Storage, directory: str, names: list[str]) -> None:
    for name in names:
        storage.unlink(join(directory, name))
    if names:
        storage.sync_directory(directory)
