"""The five codecs of a record batch. No input decompresses beyond the caller's limit.

| id | codec  | framing                                                                                           |
|----|--------|---------------------------------------------------------------------------------------------------|
| 0  | none   | the bytes themselves                                                                              |
| 1  | gzip   | gzip members                                                                                      |
| 2  | snappy | read: raw snappy and xerial; written: xerial, ``82 "SNAPPY" 00``, int32 1, int32 1, then blocks   |
|    |        | of int32 length + raw snappy, 32 KiB of input each                                                |
| 3  | lz4    | LZ4 frame; written with independent 64 KiB blocks, no checksum and no content size, as Kafka does |
| 4  | zstd   | zstd frames                                                                                       |

The size that a frame declares is never trusted. The buffer size comes from the frame's blocks, and the format bounds
the output of each block. The decoder cannot write outside its buffer. Only this module uses cramjam. Sources: kafka
`CompressionType`, `Lz4BlockOutputStream`; snappy-java `SnappyOutputStream`; RFC 1952, RFC 8878; the LZ4 frame format
1.6; the snappy format description.

All functions are thread safe. The codecs release the GIL while they work.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

import cramjam

from local.errors import Corrupt, InvalidRequest

if TYPE_CHECKING:
    from typing_extensions import Buffer


# Decompressed bytes of one batch, when writing and when reading. Kafka has no such limit, but its clients' buffers end
# at 2^31.
INFLATED_BYTES_MAX = 1 << 30


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# (default, lowest, highest) level as in Kafka: GzipCompression, Lz4Compression, ZstdCompression.
LEVELS: dict[Codec, tuple[int, int, int]] = {Codec.GZIP: (6, 1, 9), Codec.LZ4: (9, 1, 17), Codec.ZSTD: (3, -131072, 22)}

_GZIP_RATIO = 1032  # maximum of deflate: a match of 258 bytes in two bits
_SNAPPY_RATIO = 22  # a copy of 64 bytes takes three bytes
_ZEROED_BYTES_MAX = 1 << 20
_ZSTD_BLOCK = 128 << 10  # RFC 8878, Block_Maximum_Size
_ZSTD_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50  # first of sixteen magics; the same in zstd and lz4
_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK = 64 << 10
_LZ4_HEADER = bytes.fromhex("04224d18604082")  # version 1, independent blocks of 64 KiB, header checksum
_LZ4_FAST_LEVEL = 9  # Kafka's default level selects its fast compressor, every other level the thorough one
_LZ4_LEVEL_MAX = 12  # the maximum of the C library; Java's levels 13..17 are the same search
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's framing. Raises InvalidRequest above INFLATED_BYTES_MAX or for a wrong `level`."""
    view = memoryview(data).cast("B")
    level = check_level(codec, level)
    if codec is not Codec.NONE and len(view) > INFLATED_BYTES_MAX:
        raise InvalidRequest("cannot compress a batch", bytes=len(view), inflated_bytes_max=INFLATED_BYTES_MAX)
    match codec:
        case Codec.NONE:
            return bytes(view)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(view, level))
        case Codec.SNAPPY:
            return _compress_xerial(view)
        case Codec.LZ4:
            return _compress_lz4(view, level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(view, level))


def _new_room(size_bytes: int) -> memoryview:
    if size_bytes <= _ZEROED_BYTES_MAX:
        return memoryview(bytearray(size_bytes))
    import numpy as np

    return np.empty(size_bytes, np.uint8).data


def decompress(codec: Codec, data: Buffer, limit: int, room: Callable[[int], memoryview] = _new_room) -> memoryview:
    """The decompressed bytes, in a buffer that `room` returns for a number of bytes.

    Raises Corrupt if `data` is damaged or the result exceeds `limit`.
    """
    view = memoryview(data).cast("B")
    damage: Corrupt | None = None
    for size in size_guesses(codec, view, limit):
        out = room(size)
        try:
            return out[: decompress_into(codec, view, out)]
        except Corrupt as error:
            damage = error
    assert damage is not None
    raise damage


def decompress_into(codec: Codec, data: memoryview, out: memoryview) -> int:
    """Decompress to the start of `out`, never outside it; return the bytes written. Raises Corrupt."""
    try:
        match codec:
            case Codec.NONE:
                out[: len(data)] = data  # raises ValueError if `data` does not fit
                return len(data)
            case Codec.GZIP:
                return int(cramjam.gzip.decompress_into(data, out))
            case Codec.SNAPPY:
                return _decompress_snappy(data, out)
            case Codec.LZ4:
                return int(cramjam.lz4.decompress_into(data, out))
            case Codec.ZSTD:
                return int(cramjam.zstd.decompress_into(data, out))
    except (cramjam.DecompressionError, ValueError) as error:
        raise _damaged(codec, data, str(error), room=len(out)) from error


def mended_lz4(data: memoryview) -> memoryview:
    """The lz4 frame with a corrected header checksum: that of format 0 covers the magic too. Source: KAFKA-3160."""
    if len(data) < 7 or data[:4] != _LZ4_HEADER[:4] or len(data) < (at := _lz4_header_bytes(data[4])):
        return data
    mended = bytearray(data)
    mended[at - 1] = _xxh32_of_few(data[4 : at - 1]) >> 8 & 0xFF
    return memoryview(mended)


def size_guesses(codec: Codec, data: memoryview, limit: int) -> tuple[int, ...]:
    """Buffer sizes to try in order, none above `limit`; the last fits every legal result. Raises Corrupt."""
    bounds: tuple[int, ...]
    try:
        match codec:
            case Codec.NONE:
                bounds = (len(data),)
            case Codec.GZIP:
                bounds = _gzip_guesses(data)
            case Codec.SNAPPY:
                bounds = (sum(_snappy_length(block) for block in _snappy_blocks(data)),)
            case Codec.LZ4:
                bounds = (_lz4_bound(data),)
            case Codec.ZSTD:
                bounds = (_zstd_bound(data),)
    except (struct.error, IndexError) as error:
        raise _damaged(codec, data, "the compressed frame is truncated") from error
    return tuple(sorted({min(bound, limit) for bound in bounds}))


def check_level(codec: Codec, level: int | None) -> int:
    """The level to use, Kafka's default for None. Raises InvalidRequest if the codec does not have it."""
    if codec not in LEVELS:
        return 0
    default, lowest, highest = LEVELS[codec]
    if level is None:
        return default
    if not lowest <= level <= highest:
        allowed = f"{lowest}..{highest}"
        raise InvalidRequest(
            "cannot choose a compression level", codec=codec.name.lower(), level=level, allowed=allowed
        )
    return level


# -- gzip


def _gzip_guesses(data: memoryview) -> tuple[int, ...]:
    """The size in the trailer, only if deflate can reach it; then deflate's maximum."""
    ceiling = len(data) * _GZIP_RATIO
    (declared,) = struct.unpack_from("<I", data, len(data) - 4) if len(data) >= 18 else (0,)
    return (declared, ceiling) if declared <= ceiling else (ceiling,)


# -- snappy


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += struct.pack(">i", len(block)), block
    return b"".join(parts)


def _decompress_snappy(data: memoryview, out: memoryview) -> int:
    at = 0
    for block in _snappy_blocks(data):
        at += int(cramjam.snappy.decompress_raw_into(block, out[at : at + _snappy_length(block)]))
    return at


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    if bytes(data[:8]) != _XERIAL_HEADER[:8]:
        yield data
        return
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise _damaged(Codec.SNAPPY, data, "the compressed frame is truncated")
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at) if at + 4 <= len(data) else (-1,)
        at += 4 + length
        if length < 0 or at > len(data):
            raise _damaged(Codec.SNAPPY, data, "the length of a block exceeds the frame", at=at)
        yield data[at - length : at]


def _snappy_length(block: memoryview) -> int:
    """The size that the block declares. Raises Corrupt if no snappy block of this length can reach it."""
    length = 0
    for index, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if length <= len(block) * _SNAPPY_RATIO:
                return length
            break
    raise _damaged(Codec.SNAPPY, block, "the declared size is impossible")


# -- lz4


def _compress_lz4(data: memoryview, level: int) -> bytes:
    if level != _LZ4_FAST_LEVEL:
        return _compress_lz4_thoroughly(data, min(level, _LZ4_LEVEL_MAX))
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        raw = data[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
        if len(block) < len(raw):
            parts += struct.pack("<I", len(block)), block
        else:  # stored uncompressed: the top bit of the length is set
            parts += struct.pack("<I", len(raw) | 0x80000000), bytes(raw)
    return b"".join((*parts, b"\0\0\0\0"))


def _compress_lz4_thoroughly(data: memoryview, level: int) -> bytes:
    """The library's frame without its block checksums: the library always writes them."""
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    frame = memoryview(bytes(compressor.finish()))
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for start, length, _stored in _lz4_blocks(frame):
        parts.append(frame[start - 4 : start + length])
    return b"".join((*parts, b"\0\0\0\0"))


def _lz4_bound(data: memoryview) -> int:
    at, total = 0, 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic & ~0xF == _SKIPPABLE:
            at += 8 + int(struct.unpack_from("<I", data, at + 4)[0])
        elif magic == _LZ4_MAGIC:
            flags, largest = data[at + 4], 1 << 8 + 2 * (data[at + 5] >> 4 & 7)
            block_checksum, content_checksum = 4 if flags & 0x10 else 0, 4 if flags & 0x04 else 0
            end = at + _lz4_header_bytes(flags)
            for start, length, stored in _lz4_blocks(data, at):
                total += min(length, largest) if stored else largest
                end = start + length + block_checksum
            at = end + 4 + content_checksum
        else:
            raise _damaged(Codec.LZ4, data, "not an lz4 frame", at=at)
    return total


def _lz4_blocks(data: memoryview, at: int = 0) -> Iterator[tuple[int, int, bool]]:
    flags = data[at + 4]
    at += _lz4_header_bytes(flags)
    while True:
        (word,) = struct.unpack_from("<I", data, at)
        if word == 0:
            return
        length = word & 0x7FFFFFFF
        yield at + 4, length, word > 0x7FFFFFFF
        at += 4 + length + (4 if flags & 0x10 else 0)


def _lz4_header_bytes(flags: int) -> int:
    return 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)


def _xxh32_of_few(data: memoryview) -> int:
    """xxHash-32 with seed 0 of fewer than 16 bytes, more than any frame's header has."""
    mask = 0xFFFFFFFF
    h = 0x165667B1 + len(data)
    for at in range(0, len(data) - 3, 4):
        h = (h + int.from_bytes(data[at : at + 4], "little") * 0xC2B2AE3D) & mask
        h = ((h << 17 | h >> 15) & mask) * 0x27D4EB2F & mask
    for byte in data[len(data) // 4 * 4 :]:
        h = (h + byte * 0x165667B1) & mask
        h = ((h << 11 | h >> 21) & mask) * 0x9E3779B1 & mask
    h = (h ^ h >> 15) * 0x85EBCA77 & mask
    h = (h ^ h >> 13) * 0xC2B2AE3D & mask
    return h ^ h >> 16


# -- zstd


def _zstd_bound(data: memoryview) -> int:
    at, total = 0, 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic & ~0xF == _SKIPPABLE:
            at += 8 + int(struct.unpack_from("<I", data, at + 4)[0])
        elif magic == _ZSTD_MAGIC:
            size, at = _zstd_frame(data, at)
            total += size
        else:
            raise _damaged(Codec.ZSTD, data, "not a zstd frame", at=at)
    return total


def zstd_frame_header(data: Buffer, at: int = 0) -> tuple[int, int | None, int]:
    """(bytes before the first block, content size or None, checksum bytes) of a frame. Source: RFC 8878, 3.1.1."""
    view = memoryview(data)
    flags = view[at + 4]
    is_single = flags >> 5 & 1
    start = 5 + (1 - is_single) + (0, 1, 2, 4)[flags & 3]
    width = (is_single, 2, 4, 8)[flags >> 6]
    declared = int.from_bytes(view[at + start : at + start + width], "little") + (256 if width == 2 else 0)
    return start + width, declared if width else None, 4 if flags & 4 else 0


def _zstd_frame(data: memoryview, at: int) -> tuple[int, int]:
    header_bytes, declared, checksum_bytes = zstd_frame_header(data, at)
    at += header_bytes
    total, is_last = 0, 0
    while not is_last:
        word = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last, kind, length = word & 1, word >> 1 & 3, word >> 3
        total += _ZSTD_BLOCK if kind == 2 else min(length, _ZSTD_BLOCK)
        at += 3 + (1 if kind == 1 else length)
    return total if declared is None else min(total, declared), at + checksum_bytes


# -- all


def _damaged(codec: Codec, data: memoryview, found: str, **facts: object) -> Corrupt:
    size = len(data)
    return Corrupt("cannot decompress a batch", codec=codec.name.lower(), found=found, compressed_bytes=size, **facts)
