"""The chunk table: a checksum for every stretch of a data object, so that a ranged read can be checked.

No client checks a ranged GET: not its length, not its bits. So each fixed-size chunk of a data object has its CRC32C
in the ``.indexes`` object, and reads are made of whole chunks.

| off | size | field |
|---|---|---|
| 0 | 2 | format version, 1 |
| 2 | 2 | codec at rest, 0 = as it is |
| 4 | 4 | chunk size in bytes; every chunk but the last has exactly this |
| 8 | 8 | data object's size in bytes |
| 16 | 4 | number of chunks n |
| 20 | 4 n | CRC32C of each chunk, in order |

Big-endian, written to the bucket. Compressed or encrypted chunks (other codecs) have stored positions of their own and
will come as another version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from local.crc32c import crc32c
from local.errors import Corrupt
from remote.segment import PART_BYTES
from remote.store import Body

CHUNK_BYTES = 1 << 20  # divides PART_BYTES, so every part of an upload is made of whole chunks
VERSION, RAW = 1, 0
_HEADER = struct.Struct(">HHIQI")
_POLYNOMIAL = 0x82F63B78  # CRC32C, reflected

assert PART_BYTES % CHUNK_BYTES == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Checksums of a data object of `size_bytes`, cut into chunks of `chunk_bytes`."""

    chunk_bytes: int
    size_bytes: int
    crcs: tuple[int, ...]

    def chunk_range(self, index: int) -> tuple[int, int]:
        """(start, length) of chunk `index` in the data object."""
        start = index * self.chunk_bytes
        return start, min(self.chunk_bytes, self.size_bytes - start)

    def chunks_of(self, position: int, length: int) -> range:
        """Indexes of the chunks that hold bytes ``[position, position + length)``, clipped to the object."""
        end = min(position + length, self.size_bytes)
        return range(position // self.chunk_bytes, -(-end // self.chunk_bytes)) if end > position else range(0)

    @property
    def whole_crc(self) -> int:
        """CRC32C of the whole data object, from those of the chunks."""
        return combine(self.crcs, self.chunk_bytes, self.size_bytes)


def chunk_count(size_bytes: int, chunk_bytes: int) -> int:
    return -(-size_bytes // chunk_bytes)


def table_of(data: Body, chunk_bytes: int = CHUNK_BYTES) -> ChunkTable:
    """The chunk table of bytes in memory."""
    view = memoryview(data)
    crcs = tuple(crc32c(view[at : at + chunk_bytes]) for at in range(0, len(view), chunk_bytes))
    return ChunkTable(chunk_bytes=chunk_bytes, size_bytes=len(view), crcs=crcs)


def encode_chunks(table: ChunkTable) -> bytes:
    assert len(table.crcs) == chunk_count(table.size_bytes, table.chunk_bytes)
    header = _HEADER.pack(VERSION, RAW, table.chunk_bytes, table.size_bytes, len(table.crcs))
    return header + struct.pack(f">{len(table.crcs)}I", *table.crcs)


def decode_chunks(data: Body) -> ChunkTable:
    """The inverse. Raises Corrupt for another version or codec, or when the numbers do not fit together."""
    if len(data) < _HEADER.size:
        raise Corrupt("reading a chunk table, too short", size_bytes=len(data))
    version, codec, chunk_bytes, size_bytes, count = _HEADER.unpack_from(data)
    if (version, codec) != (VERSION, RAW):
        raise Corrupt("reading a chunk table, unknown version or codec", version=version, codec=codec)
    fits = chunk_bytes > 0 and count == chunk_count(size_bytes, chunk_bytes)
    if not fits or len(data) != _HEADER.size + 4 * count:
        facts = {"chunk_bytes": chunk_bytes, "size_bytes": size_bytes, "chunks": count, "table_bytes": len(data)}
        raise Corrupt("reading a chunk table, its numbers do not fit together", **facts)
    crcs = struct.unpack_from(f">{count}I", data, _HEADER.size)
    return ChunkTable(chunk_bytes=chunk_bytes, size_bytes=size_bytes, crcs=crcs)


def combine(crcs: Sequence[int], chunk_bytes: int, size_bytes: int) -> int:
    """CRC32C of the concatenation of chunks whose CRCs are known; all but the last have `chunk_bytes` bytes.

    So parts may be read in any order and once. Appending n zero bytes to a message is a linear map of its CRC over
    GF(2); crc(a + b) = zeros(len(b)) crc(a) xor crc(b). Source: zlib, crc32_combine.
    """
    whole = 0
    for index, crc in enumerate(crcs):
        length = min(chunk_bytes, size_bytes - index * chunk_bytes)
        whole = _apply(_zeros(length), whole) ^ crc
    return whole


@lru_cache(maxsize=64)
def _zeros(length_bytes: int) -> tuple[int, ...]:
    """The map for `length_bytes` zero bytes, as the images of the 32 unit vectors."""
    one_bit = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    power = one_bit
    for _ in range(3):  # 1 bit, squared three times: 1 byte
        power = _compose(power, power)
    total = tuple(1 << bit for bit in range(32))
    while length_bytes:
        if length_bytes & 1:
            total = _compose(power, total)
        power = _compose(power, power)
        length_bytes >>= 1
    return total


def _compose(outer: tuple[int, ...], inner: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_apply(outer, column) for column in inner)


def _apply(matrix: tuple[int, ...], vector: int) -> int:
    image, bit = 0, 0
    while vector:
        if vector & 1:
            image ^= matrix[bit]
        vector >>= 1
        bit += 1
    return image
