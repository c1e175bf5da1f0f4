"""The ``.timeindex`` file: largest timestamp so far to offset, sparse.

| off | size | field |
|---|---|---|
| 0 | 8 | int64 timestamp, ms |
| 8 | 4 | int32 relative offset = offset - segment base |

Big-endian, 12 bytes an entry. An entry ``(t, o)`` says that no record before the batch ending at `o` is newer than
`t`, so a search for a timestamp starts at the greatest entry **below** it and scans forward. An entry is
written only when its timestamp exceeds the last one; offsets never fall. Source: kafka `TimeIndex`.
"""

from __future__ import annotations

import struct

from local.errors import Corrupt

ENTRY_BYTES = 12
_ENTRY = struct.Struct(">qi")
Buffer = bytes | bytearray | memoryview


def pack(base_offset: int, timestamp_ms: int, offset: int) -> bytes:
    return _ENTRY.pack(timestamp_ms, offset - base_offset)


def lookup(data: Buffer, base_offset: int, timestamp_ms: int) -> tuple[int, int]:
    """The (timestamp, offset) of the greatest entry with timestamp <= `timestamp_ms`; ``(-1, base_offset)`` if none."""
    low, high = 0, len(data) // ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if _ENTRY.unpack_from(data, middle * ENTRY_BYTES)[0] <= timestamp_ms:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return -1, base_offset
    found, relative = _ENTRY.unpack_from(data, (low - 1) * ENTRY_BYTES)
    return found, base_offset + relative


def entries(data: Buffer, base_offset: int) -> list[tuple[int, int]]:
    """All (timestamp, offset) pairs in file order."""
    whole = memoryview(data)[: len(data) - len(data) % ENTRY_BYTES]
    return [(timestamp, base_offset + relative) for timestamp, relative in _ENTRY.iter_unpack(whole)]


def check(data: Buffer, *, path: str) -> None:
    """Raises Corrupt unless it holds whole entries, timestamps rising and offsets never falling."""
    if len(data) % ENTRY_BYTES:
        raise Corrupt("reading a time index, not a multiple of 12 bytes", path=path, size_bytes=len(data))
    last = (-(1 << 63), -1)
    for at, entry in enumerate(_ENTRY.iter_unpack(data)):
        if entry[0] <= last[0] or entry[1] < last[1] or entry[1] < 0:
            raise Corrupt("reading a time index, entry out of order", path=path, entry=at)
        last = entry
