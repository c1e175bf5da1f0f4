"""The ``.txnindex`` file: the aborted transactions of a segment.

| off | size | field                | note                                                                       |
|-----|------|----------------------|----------------------------------------------------------------------------|
| 0   | 2    | int16 version        | 0                                                                          |
| 2   | 8    | producerId           |                                                                            |
| 10  | 8    | firstOffset          | of the transaction's first batch, perhaps in an earlier segment            |
| 18  | 8    | lastOffset           | of its abort marker, inclusive; strictly increases, never below the base   |
| 26  | 8    | lastStableOffset     | the LSO once the marker is in the log: the transaction is decided          |

Big-endian, 34 bytes an entry, no header, no checksum. The file is created with a segment's first aborted transaction. A
tail shorter than an entry is a torn write and is ignored. Source: kafka `TransactionIndex`, `AbortedTxn`.

**Comparison with the log.** The markers in the log are authoritative: a transactional batch belongs to an aborted
transaction if the next marker of its producer is an abort. The index has no checksum and may be missing, so it is used
only if it agrees with the batches:

1. An abort marker after records of its transaction in this segment has an entry with that producer and marker. The
   entry begins at or below the first of these records and above the producer's previous marker.
2. An abort marker without such records may have an entry: the cleaner removed the records, they are in an earlier
   segment, or there were none.
3. No entry ends at an offset without an abort marker of its producer.
4. The last stable offset of an entry is not above the first record of a transaction that is open at its marker.

The entries of a cleaned segment agree too. Source: kafka `ProducerAppendInfo.appendEndTxnMarker`,
`Cleaner.CleanedTransactionMetadata`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt
from local.format.batch_header import CONTROL, HEADER_BYTES, TRANSACTIONAL
from local.index.index_files import slices_of
from local.records.batch import read_marker

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from local.format.columns import BatchTable

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_PLAIN_MARKER = bytes.fromhex("2000000008")  # start of a marker's record up to its key, the usual encoding
_KIND_AT = HEADER_BYTES + 8  # low byte of the marker's type


class AbortedTransaction(NamedTuple):
    """An entry: data in ``[first_offset, last_offset)``, its marker at `last_offset`. Fields in file order."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def pack(self) -> bytes:
        return _ENTRY.pack(VERSION, *self)


def entries(data: Buffer, *, path: str = "") -> list[AbortedTransaction]:
    """Return all whole entries in file order. Raises Corrupt for a version other than 0."""
    view = memoryview(data).cast("B")
    found = []
    for at in range(0, len(view) - ENTRY_BYTES + 1, ENTRY_BYTES):
        version, *fields = _ENTRY.unpack_from(view, at)
        if version != VERSION:
            raise Corrupt("cannot read a transaction index, its version is unknown", path=path, at=at, version=version)
        found.append(AbortedTransaction._make(fields))
    return found


def encode(aborted: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(each.pack() for each in aborted)


def check(data: Buffer, base_offset: int, *, path: str) -> None:
    """Raise Corrupt unless the last offsets rise from `base_offset` on, none below the first offset of its entry."""
    before = base_offset - 1
    for at, each in enumerate(entries(data, path=path)):
        if each.last_offset <= before or each.first_offset > each.last_offset:
            where = {"path": path, "at": at * ENTRY_BYTES}
            raise Corrupt("cannot read a transaction index, its offsets are out of order", **where)
        before = each.last_offset


def overlapping(
    aborted: Iterable[AbortedTransaction], from_offset: int, upper_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Return the entries for reading ``[from_offset, upper_offset)``, and whether the search is complete.

    It is complete if an entry's last stable offset is at or above `upper_offset`; else the next segment has more.
    """
    found = []
    for each in aborted:
        if each.last_offset >= from_offset and each.first_offset < upper_offset:
            found.append(each)
        if each.last_stable_offset >= upper_offset:
            return found, True
    return found, False


def truncate(data: Buffer, offset: int) -> bytes:
    """Return the bytes up to, not including, the first entry with its marker at or above `offset`."""
    remaining = []
    for each in entries(data):
        if each.last_offset >= offset:
            break
        remaining.append(each)
    return encode(remaining)


class Ended(NamedTuple):
    """A transaction marker: its offset, and whether it aborts."""

    offset: int
    is_abort: bool


class _Abort(NamedTuple):
    """The facts that an entry must cover; `stable_max` is its highest legal last stable offset."""

    first_record: int | None
    marker_before: int | None
    stable_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTransactions:
    """The transactions of a segment, by producer."""

    next_offset: int  # one past the last scanned batch
    first_ended: Mapping[int, Ended]
    last_ended: Mapping[int, int]
    open_from: Mapping[int, int]  # the first record of an open transaction
    aborts: Mapping[tuple[int, int], _Abort]  # by (producer, offset of the marker)

    def problem(self, entries: Iterable[AbortedTransaction]) -> str | None:
        """Return why `entries` cannot be the segment's, or None if they agree with its batches."""
        known = {(each.producer_id, each.last_offset): each for each in entries}
        for place, each in known.items():
            if place not in self.aborts:
                return f"the log has no aborted transaction for this entry: producer_id={place[0]} marker_at={place[1]}"
            if each.last_stable_offset > self.aborts[place].stable_max:
                return f"the last stable offset of an entry is too high: producer_id={place[0]} marker_at={place[1]}"
        for place, abort in self.aborts.items():
            where = f"producer_id={place[0]} marker_at={place[1]}"
            entry = known.get(place)
            if entry is None:
                if abort.first_record is not None:
                    return f"the index lacks an aborted transaction: {where}"
                continue
            is_late = abort.first_record is not None and entry.first_offset > abort.first_record
            is_early = abort.marker_before is not None and entry.first_offset <= abort.marker_before
            if is_late or is_early:
                return f"an entry has a wrong first offset: {where} first_offset={entry.first_offset}"
        return None


class TransactionScan:
    """Collects the transactions of a segment that may grow. Reads every byte once. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._position = 0
        self._next_offset = 0
        self._said: SegmentTransactions | None = None
        self._first: dict[int, Ended] = {}
        self._last: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._aborts: dict[tuple[int, int], _Abort] = {}

    def upto(self, size_bytes: int, read: Callable[[int, int], bytes]) -> SegmentTransactions:
        """Return the transactions of the first `size_bytes` or more, up to a damaged header. Raises as `take`."""
        with self._lock:
            start = self._position
            if self._said is not None and start >= size_bytes:
                return self._said
            for at, data, table in slices_of(lambda at, length: read(start + at, min(length, size_bytes - start - at))):
                self.take(data, table)
                self._position = start + at + table.valid_bytes
            self._said = self.found()
            return self._said

    def take(self, data: memoryview, table: BatchTable) -> None:
        """Add the transactions of the batches in `data`. Raises Corrupt for an invalid marker."""
        import numpy as np

        if len(table):
            self._next_offset = int(table.last_offsets[-1]) + 1
        rows = np.flatnonzero((table.attributes & TRANSACTIONAL) != 0)
        if not len(rows):
            return
        columns = (table.producer_ids, table.base_offsets, table.attributes, table.record_counts, table.positions)
        for producer, offset, attributes, count, position in zip(*(c[rows].tolist() for c in columns), strict=True):
            if not count:
                continue  # emptied by the cleaner: neither a record nor a marker
            if attributes & CONTROL:
                is_abort = _is_abort(data, position)
                if is_abort is not None:
                    self._end(producer, offset, is_abort=is_abort)
            else:
                self._open.setdefault(producer, offset)

    def found(self) -> SegmentTransactions:
        return SegmentTransactions(
            next_offset=self._next_offset,
            first_ended=dict(self._first),
            last_ended=dict(self._last),
            open_from=dict(self._open),
            aborts=dict(self._aborts),
        )

    def _end(self, producer: int, offset: int, *, is_abort: bool) -> None:
        first = self._open.pop(producer, None)
        if is_abort:
            stable_max = min(self._open.values(), default=offset + 1)
            self._aborts[producer, offset] = _Abort(first, self._last.get(producer), stable_max)
        self._first.setdefault(producer, Ended(offset, is_abort))
        self._last[producer] = offset


@dataclass(slots=True)
class CarriedTransactions:
    """The transactions of the segments so far, by producer: first records of the open ones, last markers."""

    open_from: dict[int, int]
    ended: dict[int, int] = field(default_factory=dict)

    def problem(self, entries: Iterable[AbortedTransaction], scanned: SegmentTransactions) -> str | None:
        """Return why the entries of the next segment contradict the segments so far, or None if they agree."""
        known = {(each.producer_id, each.last_offset): each for each in entries}
        for producer, first in self.open_from.items():
            marker = scanned.first_ended.get(producer)
            if marker is not None and marker.is_abort:
                entry = known.get((producer, marker.offset))
                if entry is None or entry.first_offset > first:
                    return f"the index lacks an aborted transaction: producer_id={producer} marker_at={marker.offset}"
        for (producer, offset), each in known.items():
            if each.first_offset <= self.ended.get(producer, -1):
                return f"an entry has a wrong first offset: producer_id={producer} marker_at={offset}"
        return None

    def add(self, scanned: SegmentTransactions, below: int | None = None) -> None:
        """Add a segment; transactions that begin at or above `below` are left out."""
        for producer in scanned.last_ended:
            self.open_from.pop(producer, None)
        for producer, first in scanned.open_from.items():
            if below is None or first < below:
                self.open_from.setdefault(producer, first)
        self.ended.update(scanned.last_ended)


def _is_abort(data: memoryview, position: int) -> bool | None:
    at = position + HEADER_BYTES
    if data[at : at + len(_PLAIN_MARKER)] == _PLAIN_MARKER and data[position + _KIND_AT] in (0, 1):
        return data[position + _KIND_AT] == 0
    marker = read_marker(data, position)
    return None if marker is None else not marker.is_commit
