"""The ``.index`` file: offset to byte position, sparse.

| off | size | field |
|---|---|---|
| 0 | 4 | int32 relative offset = offset - segment base |
| 4 | 4 | int32 position of a batch in the ``.log`` |

Big-endian, 8 bytes an entry, no header, no checksum. An entry names the **last** offset of the batch that starts at
`position`; relative offsets strictly increase. A lookup takes the greatest entry at or below the target and the
caller scans forward from there. Source: kafka `OffsetIndex`.
"""

from __future__ import annotations

import struct

from local.errors import Corrupt

ENTRY_BYTES = 8
_ENTRY = struct.Struct(">ii")
Buffer = bytes | bytearray | memoryview


def pack(base_offset: int, offset: int, position: int) -> bytes:
    return _ENTRY.pack(offset - base_offset, position)


def lookup(data: Buffer, base_offset: int, offset: int) -> tuple[int, int]:
    """The (offset, position) of the greatest entry with offset <= `offset`; ``(base_offset, 0)`` when none is."""
    slot = _floor(data, offset - base_offset)
    if slot < 0:
        return base_offset, 0
    relative, position = _ENTRY.unpack_from(data, slot * ENTRY_BYTES)
    return base_offset + relative, position


def entries(data: Buffer, base_offset: int) -> list[tuple[int, int]]:
    """All (offset, position) pairs in file order."""
    whole = memoryview(data)[: len(data) - len(data) % ENTRY_BYTES]
    return [(base_offset + relative, position) for relative, position in _ENTRY.iter_unpack(whole)]


def check(data: Buffer, log_bytes: int, *, path: str) -> None:
    """Raises Corrupt unless the file could belong to a log of `log_bytes` bytes: whole entries, both columns rising."""
    if len(data) % ENTRY_BYTES:
        raise Corrupt("reading an offset index, not a multiple of 8 bytes", path=path, size_bytes=len(data))
    last_relative, last_position = -1, -1
    for at, (relative, position) in enumerate(_ENTRY.iter_unpack(data)):
        if relative <= last_relative or position <= last_position or position >= log_bytes:
            raise Corrupt("reading an offset index, entry out of order or past the log", path=path, entry=at)
        last_relative, last_position = relative, position


def _floor(data: Buffer, relative: int) -> int:
    low, high = 0, len(data) // ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if _ENTRY.unpack_from(data, middle * ENTRY_BYTES)[0] <= relative:
            low = middle + 1
        else:
            high = middle
    return low - 1
