"""Replace neighbouring closed segments by one new segment; a crash leaves all old segments or the new one.

| step | effect | after a crash here, start-up finds and makes of it |
|---|---|---|
| 1 | write ``<base>.log.cleaned`` and indexes, sync each, sync the directory | ``.cleaned``: deleted; old |
| 2 | rename ``.cleaned`` to ``.swap``: indexes, then the log; sync the directory | a ``.cleaned`` left: old; else new |
| 3 | old segments retired; old files renamed ``.deleted``; sync the directory | ``.swap``: new |
| 4 | rename ``.txnindex.swap`` to final, if there is one; sync the directory | ``.log.swap``: new |
| 5 | rename ``.swap`` to final: the log last; sync the directory; only then the new list for readers | new |
| 6 | delete producer snapshots at the bases of replaced segments, and ``.deleted`` files after the delay | new |

- Step 2 renames the log last. A ``.log.swap`` without any ``.cleaned`` therefore always has its indexes.
- Step 5 renames the log last. An index with its final name and a ``.log.swap`` are therefore one unfinished swap.
- Step 3 needs its directory sync. Without it the final name of the new ``.log`` could become durable while a replaced
  ``.log`` of its range reappears after a crash. Two segments would then hold the same offsets.
- Readers: an old segment object raises NotFound from step 3 on. They ask the log again until step 5 is done.
- Step 4 is separate for the ``.txnindex``: start-up cannot notice a missing one. The file must hold all entries of the
  replaced segments: next to a ``.log.swap``, start-up takes a final ``.txnindex`` for the new one
  (`local.log.recovery`).

Source: kafka `LocalLog.replaceSegments`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from local.errors import DiskFailed
from local.index import txn_index
from local.index.txn_index import AbortedTransaction
from local.names import CLEANED, LOG, OFFSET_INDEX, SWAP, TIME_INDEX, TXN_INDEX
from local.storage import Body, SegmentFiles, write_file

if TYPE_CHECKING:
    from local.index.index_files import Indexes

_INDEXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
_INDEXES_THEN_LOG = (OFFSET_INDEX, TIME_INDEX, LOG)
_ALL_THEN_LOG = (TXN_INDEX, *_INDEXES_THEN_LOG)


def write_cleaned(files: SegmentFiles, body: Iterable[Body], *, modified_ms: int | None = None) -> int:
    """Do step 1 for the log file, durably; return its size. `modified_ms` becomes its mtime."""
    path = files.path(LOG) + CLEANED
    with closing(files.storage.create(path)) as file:
        for part in body:
            file.append(part)
        if modified_ms is not None:
            files.storage.set_modified_ms(path, modified_ms)
        file.sync()
        return file.size()


def write_cleaned_indexes(files: SegmentFiles, indexes: Indexes, aborted: Iterable[AbortedTransaction] = ()) -> None:
    """Do step 1 for the indexes and the directory; a ``.txnindex`` only for `aborted` transactions."""
    bodies: tuple[Body, ...] = (indexes.offset, indexes.time, txn_index.encode(aborted))
    for suffix, data in zip(_INDEXES, bodies, strict=True):
        if data or suffix != TXN_INDEX:
            write_file(files.storage, files.path(suffix) + CLEANED, data)
    files.sync_names()


def discard(files: SegmentFiles) -> None:
    """Undo step 1. A crash leaves ``.cleaned`` files, which start-up deletes."""
    for suffix in reversed(_ALL_THEN_LOG):
        files.storage.unlink(files.path(suffix) + CLEANED)


def announce(files: SegmentFiles) -> None:
    """Do step 2 without its sync. From here on the new segment wins. The caller holds the log's lock.

    If the disk has no room for a name, this function undoes step 1 and its own renames and raises DiskFailed.
    """
    storage, paths = files.storage, {suffix: files.path(suffix) for suffix in _ALL_THEN_LOG}
    storage.unlink(paths[TXN_INDEX] + SWAP)  # left from a failed undo, it would pass for the new segment's
    try:
        for suffix, path in paths.items():
            if suffix != TXN_INDEX or storage.exists(path + CLEANED):
                storage.rename(path + CLEANED, path + SWAP)
    except DiskFailed as error:
        if error.lacks_room:
            for path in paths.values():  # the log is renamed last, so it has no ``.swap`` name yet
                storage.unlink(path + SWAP)
            discard(files)
        raise


def put_in_place(files: SegmentFiles) -> None:
    """Do steps 4 and 5. The old files must have other names already."""
    storage, transactions = files.storage, files.path(TXN_INDEX)
    if storage.exists(transactions + SWAP):
        storage.rename(transactions + SWAP, transactions)
        files.sync_names()
    for suffix in _INDEXES_THEN_LOG:
        storage.rename(files.path(suffix) + SWAP, files.path(suffix))
    files.sync_names()
