"""The chunk table: position, length and checksum of each chunk of a segment in its data object.

No client checks the length or the bits of a ranged GET. So a data object consists of chunks with a CRC32C each in the
``.indexes`` object, and reads fetch whole chunks. A chunk is stored unchanged, compressed by itself
(`remote.segments.object_encoding`), encrypted (`remote.segments.encryption`), or both. A compressed or encrypted chunk
also has a stored position, length and CRC32C.

| off | size | field |
|---|---|---|
| 0 | 2 | format version, 2 |
| 2 | 1 | codec: 0 none, 1 zstd with a frame for each chunk |
| 3 | 1 | cipher: 0 none, 1 AES-256-GCM |
| 4 | 4 | number of chunks n |
| 8 | 8 | the segment's size in bytes |
| 16 | 8 | the data object's size in bytes |
| 24 | 4 n | length of each chunk of the segment, in order |
| | 4 n | CRC32C of each |
| | 4 n | stored length of each; this and the next only if codec or cipher is not 0 |
| | 4 n | CRC32C of the stored form of each |

Big-endian, written to the bucket. A position is the sum of the lengths before it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from local.errors import Corrupt
from local.format.crc32c import crc32c
from remote.segment_entry import PART_BYTES
from remote.store import Body

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK_BYTES = 256 << 10  # if stored unchanged; reading one record fetches one chunk; divides PART_BYTES
SEALED_CHUNK_BYTES = 1 << 20  # if compressed (larger chunks compress better) or encrypted
VERSION = 2
RAW, ZSTD = 0, 1
PLAIN, AES_256_GCM = 0, 1
_HEADER = struct.Struct(">HBBIQQ")
_POLYNOMIAL = 0x82F63B78  # CRC32C, reflected

_Map = tuple[tuple[int, ...], ...]

assert PART_BYTES % CHUNK_BYTES == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """A segment's chunks, in order. `stored_lengths`, `stored_crcs`: None if stored unchanged (`is_as_it_is`)."""

    lengths: tuple[int, ...]
    crcs: tuple[int, ...]
    stored_lengths: tuple[int, ...] | None = None
    stored_crcs: tuple[int, ...] | None = None
    codec: int = RAW
    cipher: int = PLAIN
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _stored_starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = tuple(accumulate(self.lengths, initial=0))
        object.__setattr__(self, "_starts", starts)
        stored = self.stored_lengths
        object.__setattr__(self, "_stored_starts", starts if stored is None else tuple(accumulate(stored, initial=0)))

    def __len__(self) -> int:
        """The number of chunks."""
        return len(self.lengths)

    @property
    def is_as_it_is(self) -> bool:
        return self.stored_lengths is None

    @property
    def size_bytes(self) -> int:
        """Size of the segment."""
        return self._starts[-1]

    @property
    def stored_bytes(self) -> int:
        """Size of the data object."""
        return self._stored_starts[-1]

    def chunk_range(self, index: int) -> tuple[int, int]:
        """(start, length) of chunk `index` in the segment."""
        return self._starts[index], self.lengths[index]

    def stored_range(self, index: int) -> tuple[int, int]:
        """(start, length) of chunk `index` in the data object."""
        start = self._stored_starts[index]
        return start, self._stored_starts[index + 1] - start

    def stored_crc(self, index: int) -> int:
        return (self.crcs if self.stored_crcs is None else self.stored_crcs)[index]

    def chunks_of(self, position: int, length: int) -> range:
        """Indexes of the chunks with bytes ``[position, position + length)`` of the segment, clipped to it."""
        end = min(position + length, self.size_bytes)
        if end <= position:
            return range(0)
        return range(bisect_right(self._starts, position) - 1, bisect_right(self._starts, end - 1))

    @property
    def segment_crc(self) -> int:
        """CRC32C of the whole segment, combined from the chunks' CRCs."""
        return combine(self.crcs, self.lengths)

    @property
    def whole_crc(self) -> int:
        """CRC32C of the whole data object, combined from the chunks' CRCs."""
        if self.stored_crcs is None or self.stored_lengths is None:
            return self.segment_crc
        return combine(self.stored_crcs, self.stored_lengths)


def table_of(data: Body, chunk_bytes: int = CHUNK_BYTES) -> ChunkTable:
    """The chunk table of bytes in memory that are stored unchanged."""
    view = memoryview(data)
    chunks = [view[at : at + chunk_bytes] for at in range(0, len(view), chunk_bytes)]
    return ChunkTable(lengths=tuple(map(len, chunks)), crcs=tuple(map(crc32c, chunks)))


def encode_chunks(table: ChunkTable) -> bytes:
    columns = [table.lengths, table.crcs]
    if table.stored_lengths is not None and table.stored_crcs is not None:
        columns += [table.stored_lengths, table.stored_crcs]
    count = len(table)
    assert all(len(column) == count for column in columns)
    header = _HEADER.pack(VERSION, table.codec, table.cipher, count, table.size_bytes, table.stored_bytes)
    return b"".join((header, *(struct.pack(f">{count}I", *column) for column in columns)))


def decode_chunks(data: Body) -> ChunkTable:
    """Decode an encoded chunk table. Raises Corrupt for an unknown version or code, and for contradictory numbers."""
    if len(data) < _HEADER.size:
        raise Corrupt("a chunk table is too short", size_bytes=len(data))
    version, codec, cipher, count, size_bytes, stored_bytes = _HEADER.unpack_from(data)
    if version != VERSION or codec not in (RAW, ZSTD) or cipher not in (PLAIN, AES_256_GCM):
        facts = {"version": version, "known": VERSION, "codec": codec, "cipher": cipher}
        raise Corrupt("cannot read a chunk table, it is damaged or of a newer format", **facts)
    width = 2 if (codec, cipher) == (RAW, PLAIN) else 4
    facts = {"size_bytes": size_bytes, "stored_bytes": stored_bytes, "chunks": count, "table_bytes": len(data)}
    if len(data) != _HEADER.size + 4 * width * count:
        raise Corrupt("a chunk table is damaged, its length differs", **facts)
    columns = [struct.unpack_from(f">{count}I", data, _HEADER.size + 4 * count * at) for at in range(width)]
    table = ChunkTable(
        lengths=columns[0],
        crcs=columns[1],
        stored_lengths=columns[2] if width == 4 else None,
        stored_crcs=columns[3] if width == 4 else None,
        codec=codec,
        cipher=cipher,
    )
    is_whole = all(columns[0]) and all(table.stored_lengths or (1,))
    if not is_whole or (table.size_bytes, table.stored_bytes) != (size_bytes, stored_bytes):
        raise Corrupt("the numbers of a chunk table contradict each other", **facts)
    return table


def combine(crcs: Sequence[int], lengths: Sequence[int]) -> int:
    """CRC32C of a concatenation of chunks, computed from their checksums and lengths alone.

    So parts can be read and sent separately, each once. Appending n zero bytes to a message is a linear map of its CRC
    over GF(2); crc(a + b) = zeros(len(b)) crc(a) xor crc(b). Source: zlib, crc32_combine.
    """
    assert len(crcs) == len(lengths)
    alike = next((at for at, length in enumerate(lengths) if length != lengths[0]), len(lengths))
    whole = _combined_equal_chunks(crcs[:alike], lengths[0]) if alike else 0
    for crc, length in zip(crcs[alike:], lengths[alike:], strict=True):
        whole = _appended_zeros(whole, length) ^ crc
    return whole


def _combined_equal_chunks(crcs: Sequence[int], length: int) -> int:
    """As `combine` for chunks of one length: each pass joins all neighbouring pairs at once."""
    import numpy as np

    # Leading zeros change nothing: the map of zero is zero.
    whole = np.zeros(1 << (len(crcs) - 1).bit_length(), np.uint32)
    whole[len(whole) - len(crcs) :] = crcs
    while len(whole) > 1:
        moved = whole[0::2]
        for bit in _bits(length):
            tables = _zeros_arrays(bit)
            pieces = [table[moved >> np.uint32(8 * at) & np.uint32(255)] for at, table in enumerate(tables)]
            moved = pieces[0] ^ pieces[1] ^ pieces[2] ^ pieces[3]
        whole, length = moved ^ whole[1::2], 2 * length
    return int(whole[0])


def _appended_zeros(crc: int, length: int) -> int:
    for bit in _bits(length):
        crc = _apply(_zeros(bit), crc)
    return crc


def _bits(number: int) -> list[int]:
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


@cache
def _zeros_arrays(power: int) -> list[NDArray[np.uint32]]:
    import numpy as np

    return [np.array(table, np.uint32) for table in _zeros(power)]


@cache
def _zeros(power: int) -> _Map:
    """The linear map that appends 2^`power` zero bytes."""
    if power > 0:
        return _squared(_zeros(power - 1))
    one_bit = _map_of((_POLYNOMIAL, *(1 << bit for bit in range(31))))
    return _squared(_squared(_squared(one_bit)))


def _squared(linear: _Map) -> _Map:
    return _map_of(tuple(_apply(linear, _apply(linear, 1 << bit)) for bit in range(32)))


def _map_of(columns: Sequence[int]) -> _Map:
    """A linear map as a table for each byte. `columns` are the images of the 32 unit vectors."""
    tables = []
    for first in range(0, 32, 8):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ columns[first + lowest.bit_length() - 1]
        tables.append(tuple(table))
    return tuple(tables)


def _apply(linear: _Map, vector: int) -> int:
    low, second, third, high = linear
    return low[vector & 255] ^ second[vector >> 8 & 255] ^ third[vector >> 16 & 255] ^ high[vector >> 24]
