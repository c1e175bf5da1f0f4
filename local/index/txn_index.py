"""The ``.txnindex`` file: the aborted transactions of a segment.

| off | size | field                | note                                                                       |
|-----|------|----------------------|----------------------------------------------------------------------------|
| 0   | 2    | int16 version        | 0                                                                          |
| 2   | 8    | producerId           |                                                                            |
| 10  | 8    | firstOffset          | of the transaction's first batch, perhaps in an earlier segment            |
| 18  | 8    | lastOffset           | of its abort marker, inclusive; strictly increases, never below the base   |
| 26  | 8    | lastStableOffset     | the LSO once the marker is in the log, its transaction decided             |

Big-endian, 34 bytes an entry, no header, no checksum. The file is created with a segment's first aborted transaction.
A tail shorter than an entry is a torn write and is ignored. Source: kafka `TransactionIndex`, `AbortedTxn`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from local.errors import Corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """One aborted transaction: data in ``[first_offset, last_offset)``, the marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def pack(self) -> bytes:
        return _ENTRY.pack(VERSION, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


def entries(data: Buffer, *, path: str = "") -> list[AbortedTransaction]:
    """Return all whole entries in file order. Raises Corrupt for a version other than 0."""
    view = memoryview(data).cast("B")
    found = []
    for at in range(0, len(view) - ENTRY_BYTES + 1, ENTRY_BYTES):
        version, producer, first, last, stable = _ENTRY.unpack_from(view, at)
        if version != VERSION:
            raise Corrupt("cannot read a transaction index, its version is unknown", path=path, at=at, version=version)
        found.append(
            AbortedTransaction(producer_id=producer, first_offset=first, last_offset=last, last_stable_offset=stable)
        )
    return found


def encode(aborted: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(each.pack() for each in aborted)


def check(data: Buffer, base_offset: int, *, path: str) -> None:
    """Check the order of the entries.

    Raises Corrupt unless the last offsets rise from `base_offset` on and no last offset is below its first offset.
    """
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

    The search is complete if an entry's last stable offset is at or above `upper_offset`. Otherwise the caller
    continues in the next segment.
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
    kept = []
    for each in entries(data):
        if each.last_offset >= offset:
            break
        kept.append(each)
    return encode(kept)
