"""Replacing neighbouring sealed segments by one new segment, so that a crash leaves all old or all new.

| step | effect | after a crash here, start-up finds and makes of it |
|---|---|---|
| 1 | write ``<base>.log.cleaned`` and indexes, sync each, sync the directory | ``.cleaned``: thrown away, old |
| 2 | rename ``.cleaned`` to ``.swap``: indexes, then the log; sync the directory | a ``.cleaned`` left: old; else new |
| 3 | old segments retired; old files renamed ``.deleted``; sync the directory | ``.swap``: new |
| 4 | rename ``.txnindex.swap`` to final, if there is one; sync the directory | ``.log.swap``: new |
| 5 | rename ``.swap`` to final: the log last; sync the directory; only then the new list for readers | new |
| 6 | producer snapshots at bases that are gone, and ``.deleted`` files after the delay, go | new |

The log is renamed last in step 2, so a ``.log.swap`` without any ``.cleaned`` always has its indexes, and last in
step 5, so an index with its final name and a ``.log.swap`` still count as one unfinished swap. The directory sync of
step 3 matters: without it a renamed ``.log`` could become durable while an original of its range comes back, and two
segments would hold the same offsets. Readers: an old segment object answers NotFound from step 3 on; they ask the
log again until step 5 has published the new list.

The ``.txnindex`` has step 4 for itself: the other indexes are rebuilt when they are missing, but most segments have no
``.txnindex``, so one that is missing is not missed. It has to hold all entries of the segments that it stands for:
start-up takes a final one beside a ``.log.swap`` for the new one (`local.log.recovery`).
Source: kafka `LocalLog.replaceSegments`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from local.errors import DiskFailed
from local.index import txn_index
from local.index.txn_index import AbortedTransaction
from local.names import CLEANED, LOG, OFFSET_INDEX, SWAP, TIME_INDEX, TXN_INDEX, segment_file
from local.storage import Body, Storage, join

if TYPE_CHECKING:
    from local.index.index_building import Indexes

_INDEXES_THEN_LOG = (OFFSET_INDEX, TIME_INDEX, LOG)
_ALL_THEN_LOG = (TXN_INDEX, *_INDEXES_THEN_LOG)


def write_cleaned(
    storage: Storage, directory: str, base_offset: int, body: Iterable[Body], *, modified_ms: int | None = None
) -> str:
    """Step 1 for the log file: its path, durable. Without record times a segment is as old as `modified_ms`."""
    path = join(directory, segment_file(base_offset, LOG) + CLEANED)
    file = storage.create(path)
    try:
        for part in body:
            file.append(part)
        if modified_ms is not None:
            storage.set_modified_ms(path, modified_ms)
        file.sync()
    finally:
        file.close()
    return path


def write_cleaned_indexes(
    storage: Storage, directory: str, base_offset: int, indexes: Indexes, aborted: Iterable[AbortedTransaction] = ()
) -> None:
    """Step 1 for the indexes, and the directory. There is a ``.txnindex`` only when a transaction was `aborted`."""
    bodies: list[tuple[str, Body]] = [(OFFSET_INDEX, indexes.offset), (TIME_INDEX, indexes.time)]
    transactions = txn_index.encode(aborted)
    if transactions:
        bodies.append((TXN_INDEX, transactions))
    for suffix, data in bodies:
        file = storage.create(join(directory, segment_file(base_offset, suffix) + CLEANED))
        try:
            file.append(data)
            file.sync()
        finally:
            file.close()
    storage.sync_directory(directory)


def discard(storage: Storage, directory: str, base_offset: int) -> None:
    """Undo step 1; a crash leaves ``.cleaned`` files, which mean nothing."""
    for suffix in reversed(_ALL_THEN_LOG):
        storage.unlink(join(directory, segment_file(base_offset, suffix) + CLEANED))


def announce(storage: Storage, directory: str, base_offset: int) -> None:
    """Step 2, but for its sync: from there on the new segment wins. The caller holds the log's lock: what it stands for
    is still there. Without room for a name nothing is announced, step 1 is undone, and DiskFailed says so.
    """
    paths = {suffix: join(directory, segment_file(base_offset, suffix)) for suffix in _ALL_THEN_LOG}
    storage.unlink(paths[TXN_INDEX] + SWAP)  # one of an undoing that failed would pass for this one's
    try:
        for suffix, path in paths.items():
            if suffix != TXN_INDEX or storage.exists(path + CLEANED):
                storage.rename(path + CLEANED, path + SWAP)
    except DiskFailed as error:
        if error.lacks_room:
            for path in paths.values():  # the log's never got that name: it is the last
                storage.unlink(path + SWAP)
            discard(storage, directory, base_offset)
        raise


def put_in_place(storage: Storage, directory: str, base_offset: int) -> None:
    """Steps 4 and 5; the old files must have other names already."""
    transactions = join(directory, segment_file(base_offset, TXN_INDEX))
    if storage.exists(transactions + SWAP):
        storage.rename(transactions + SWAP, transactions)
        storage.sync_directory(directory)
    for suffix in _INDEXES_THEN_LOG:
        path = join(directory, segment_file(base_offset, suffix))
        storage.rename(path + SWAP, path)
    storage.sync_directory(directory)
