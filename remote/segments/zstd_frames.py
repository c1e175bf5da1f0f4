"""Find where the frames of a zstd file start and end, without decompression.

For an object without its chunk table.

| of a frame | bytes |
|---|---|
| magic | 4, 28 B5 2F FD |
| descriptor | 1: bits 7-6 size of the content size, 5 single segment, 2 checksum, 1-0 size of the dictionary id |
| window | 1, absent with a single segment |
| dictionary id | 0, 1, 2, 4 |
| content size | 0 (1 with a single segment), 2 (and 256 more), 4, 8; little-endian |
| blocks | 3 each, little-endian: bit 0 last, 2-1 kind (1 repeats one byte), the rest its size; then its bytes |
| checksum | 4, if the descriptor says so |

Source: RFC 8878, section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from local.errors import Corrupt

MAGIC = bytes.fromhex("28b52ffd")
HEADER_BYTES_MAX = 18
_DICTIONARY_BYTES = (0, 1, 2, 4)
_CONTENT_BYTES = (0, 2, 4, 8)
_REPEATED, _RESERVED = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """`start` and `length` in the file, `content_bytes` as stated by the frame."""

    start: int
    length: int
    content_bytes: int


def frames(read: Callable[[int, int], bytes], size_bytes: int) -> Iterator[Frame]:
    """The frames of a file of `size_bytes`, in order.

    Raises Corrupt if no frame starts at a position, a frame does not state its content size, or the file ends inside a
    frame. The frames before the damage are yielded first.
    """
    at = 0
    while at < size_bytes:
        header = read(at, min(HEADER_BYTES_MAX, size_bytes - at))
        blocks, content_bytes, checksum_bytes = _parsed(header, at)
        end = _end_of_blocks(read, at + blocks, size_bytes, at) + checksum_bytes
        if end > size_bytes:
            raise Corrupt("cannot read zstd frames, the file ends inside a frame", start=at, size_bytes=size_bytes)
        yield Frame(start=at, length=end - at, content_bytes=content_bytes)
        at = end


def _parsed(header: bytes, at: int) -> tuple[int, int, int]:
    """(bytes before the first block, content size, bytes of the checksum)."""
    if header[:4] != MAGIC or len(header) < 5:
        raise Corrupt("cannot read zstd frames, the position is not the start of a frame", start=at)
    descriptor = header[4]
    is_single = bool(descriptor & 0x20)
    where = 5 + (0 if is_single else 1) + _DICTIONARY_BYTES[descriptor & 3]
    length = _CONTENT_BYTES[descriptor >> 6] or int(is_single)
    if not length or len(header) < where + length:
        raise Corrupt("cannot read zstd frames, a frame has no content size", start=at)
    content_bytes = int.from_bytes(header[where : where + length], "little") + (256 if length == 2 else 0)
    return where + length, content_bytes, 4 if descriptor & 4 else 0


def _end_of_blocks(read: Callable[[int, int], bytes], at: int, size_bytes: int, start: int) -> int:
    is_last = False
    while not is_last:
        header = int.from_bytes(read(at, 3), "little") if at + 3 <= size_bytes else None
        if header is None or header >> 1 & 3 == _RESERVED:
            raise Corrupt(
                "cannot read zstd frames, the file ends inside a frame, or the frame is damaged", start=start, block=at
            )
        is_last = bool(header & 1)
        at += 3 + (1 if header >> 1 & 3 == _REPEATED else header >> 3)
    return at
