"""Transactions over both tiers: the last stable offset, and the aborted transactions of a range.

A segment is copied once it is below the last stable offset, so every transaction with records in it is decided. The
deciding marker may be in a later segment, on either tier. So the aborted transactions of a range are searched in its
entry, in the following entries, and then in the local log. The search ends when an index entry shows that all of the
range was decided. A segment entry records that it has no aborted transactions: nothing is fetched for it.

In the bucket alone, the last stable offset is the start of the earliest transaction that was open at the end of the
last entry. The producer snapshot of that entry has it. Its marker was not copied yet.
Source: kafka `RemoteLogManager.collectAbortedTransactions`, KIP-405.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from local.errors import Corrupt, NotFound
from local.index.txn_index import AbortedTransaction, entries, overlapping
from local.log import producer_snapshot
from local.log.producer_state import ProducerState
from remote.fetch.range_reader import RemotePartition
from remote.manifest.manifest_lookup import MetadataIndex
from remote.segment_entry import SegmentEntry
from tiered.read.partition_source import PartitionSource

_Answer = TypeVar("_Answer")


def stable_end(source: PartitionSource) -> int:
    """The last stable offset: below it every transaction is decided. Raises Unavailable, Corrupt."""
    end = source.next_offset()
    if source.log is not None:
        return min(end, source.log.last_stable_offset)
    begun = producers_in_bucket(source).first_unstable_offset
    return end if begun is None else min(end, begun)


def producers_in_bucket(source: PartitionSource) -> ProducerState:
    """The producer state at the end of the last entry; empty without one. Raises Unavailable, Corrupt."""
    try:
        found = source.ask(partial(_last_producers, source.remote))
    except NotFound as error:
        raise Corrupt(
            "cannot read the producers at the end of the bucket, an object is missing", **error.facts
        ) from error
    return ProducerState() if found is None else found


def _last_producers(remote: RemotePartition | None, index: MetadataIndex) -> ProducerState:
    last = index.last_entry()
    if last is None or remote is None:
        return ProducerState()
    snapshot = remote.producer_snapshot(last)
    return ProducerState(producer_snapshot.decode(snapshot, path=last.indexes_key) if snapshot else ())


def aborted_transactions(source: PartitionSource, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
    """The aborted transactions that concern ``[from_offset, upper_offset)``, by their marker's offset.

    `upper_offset` is at most the stable end. Raises Unavailable, Corrupt, NotFound as reading does.
    """
    found = _settled(source, lambda index, start: _aborted(source, index, start, from_offset, upper_offset))
    if found is None:
        return source.log.aborted_transactions(from_offset, upper_offset) if source.log is not None else []
    return found


def entry_with_aborted(
    source: PartitionSource, offset: int, upper_offset: int
) -> tuple[SegmentEntry | None, int, list[AbortedTransaction]]:
    """As `PartitionSource.row_at`, with the entry's aborted transactions below `upper_offset`.

    Entry and transactions come from one manifest: a later manifest may name a cleaned replacement without both.
    """

    def look(index: MetadataIndex, start: int | None) -> tuple[SegmentEntry | None, int, list[AbortedTransaction]]:
        entry, at = source.row_in(index, offset, start)
        if entry is None:
            return None, at, []
        return entry, at, _aborted(source, index, start, at, min(entry.next_offset, upper_offset))

    found = _settled(source, look)
    if found is None:
        raise source.unseen(offset)
    return found


def _settled(source: PartitionSource, look: Callable[[MetadataIndex, int | None], _Answer]) -> _Answer | None:
    """The result of `look` on both tiers at one moment; None without a manifest.

    Repeated with the newest manifest if an entry's objects are deleted, or if the disk dropped a segment during the
    call.
    """
    log = source.log
    while True:
        local_start = log.local_log_start_offset if log is not None else None
        manifest = source.manifest_below(local_start)  # the disk first, then the manifest (I2)
        if manifest is None:
            return None
        found = source.ask_of(manifest, partial(_look_with, look, local_start))
        if log is None or log.local_log_start_offset == local_start:
            return found


def _look_with(
    look: Callable[[MetadataIndex, int | None], _Answer], local_start: int | None, index: MetadataIndex
) -> _Answer:
    return look(index, local_start)


def _aborted(
    source: PartitionSource, index: MetadataIndex, local_start: int | None, from_offset: int, upper_offset: int
) -> list[AbortedTransaction]:
    found, is_complete = _in_rows(index, source.remote, from_offset, upper_offset, local_start)
    if source.log is not None and local_start is not None and not is_complete:
        found += source.log.aborted_transactions(max(from_offset, local_start), upper_offset)
    return sorted(set(found), key=lambda each: each.last_offset)


def _in_rows(
    index: MetadataIndex,
    remote: RemotePartition | None,
    from_offset: int,
    upper_offset: int,
    local_start: int | None,
) -> tuple[list[AbortedTransaction], bool]:
    """The aborted transactions in the entries from `from_offset` to the log; whether they are complete."""
    found: list[AbortedTransaction] = []
    if remote is None:
        return found, False
    for entry in _rows_with_aborted(index, from_offset, local_start):
        try:
            told = entries(remote.txn_index(entry), path=entry.indexes_key)
        except Corrupt as error:
            raise Corrupt(f"cannot read committed records: {error.attempt}", **error.facts) from error
        some, is_complete = overlapping(told, from_offset, upper_offset)
        found += some
        if is_complete:
            return found, True
    return found, False


def _rows_with_aborted(index: MetadataIndex, start: int, end: int | None) -> Iterator[SegmentEntry]:
    """The entries with aborted transactions; a page without such an entry is not read."""
    for part in index.parts(start, end):
        if part.aborted_bytes == 0:
            continue
        for entry in index.entries(max(start, part.base_offset), part.next_offset):
            if entry.aborted_bytes:
                yield entry
