"""Compression framing: Kafka's readers accept our output at every level, and we read every framing of other clients."""

from __future__ import annotations

import gzip
import struct

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard

from local import kernels
from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import HEADER_BYTES, seal
from local.format.compression import LEVELS, Codec, compress, decompress
from local.records.batch import encode_batch, read_header

TEXT = b"".join(b"%d fox %d " % (at * at % 977, at % 13) for at in range(20_000))
NOISE = b"".join(struct.pack("<I", at * 2654435761 % 2**32) for at in range(40_000))
SAMPLES = {
    "text": TEXT,
    "noise": NOISE,
    "both": NOISE[:70_000] + TEXT,
    "one block": TEXT[:65536],
    "few": b"x",
    "none": b"",
}
RANGES = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}
LEVELS_TRIED = [
    (codec, level)
    for codec, (lowest, highest) in RANGES.items()
    for level in sorted({None, lowest, highest, -7, 1, 3, 4, 8, 9, 10, 12, 13} - {0}, key=lambda level: level or 0)
    if level is None or lowest <= level <= highest
]


def kafka_lz4(frame: bytes) -> bytes:
    """Decode as Kafka's `Lz4BlockInputStream` does, and refuse the frames that it refuses."""
    magic, flags, size_code = struct.unpack_from("<IBB", frame)
    assert magic == 0x184D2204
    assert flags >> 6 == 1, "the frame version must be 1"
    assert flags & 0x20, "blocks must be independent"
    assert flags & 0x03 == 0, "reserved flag bits must be zero"
    assert size_code & 0x8F == 0, "reserved flag bits must be zero"
    assert 4 <= size_code >> 4 <= 7, "the block size code must be in 4..7"
    at = 6 + (8 if flags & 0x08 else 0)
    assert frame[at] == 0x82 or size_code != 0x40 or flags != 0x60, "the header checksum must match"
    at, out, largest = at + 1, b"", 1 << 8 + 2 * (size_code >> 4)
    while True:
        (word,) = struct.unpack_from("<I", frame, at)
        at += 4
        if word == 0:
            break
        length = word & 0x7FFFFFFF
        assert length <= largest, "a block must not exceed the block size"
        block = frame[at : at + length]
        out += block if word >> 31 else lz4.block.decompress(block, uncompressed_size=largest)
        at += length + (4 if flags & 0x10 else 0)
    assert at + (4 if flags & 0x04 else 0) == len(frame), "no bytes may follow the frame"
    return out


OTHERS = {
    Codec.GZIP: gzip.decompress,
    Codec.LZ4: kafka_lz4,
    Codec.ZSTD: lambda frame: zstandard.ZstdDecompressor().decompressobj().decompress(frame),
}


def test_the_ranges_of_compression_levels_equal_kafkas() -> None:
    assert {codec: (lowest, highest) for codec, (_, lowest, highest) in LEVELS.items()} == RANGES


@pytest.mark.parametrize(("codec", "level"), LEVELS_TRIED)
@pytest.mark.parametrize("sample", SAMPLES)
def test_data_compressed_at_every_level_is_read_by_other_libraries_and_by_us(
    codec: Codec, level: int | None, sample: str
) -> None:
    packed = compress(codec, SAMPLES[sample], level)
    assert OTHERS[codec](packed) == SAMPLES[sample]
    assert bytes(decompress(codec, packed, 1 << 20)) == SAMPLES[sample]


@pytest.mark.parametrize("codec", RANGES)
def test_levels_outside_the_range_are_refused(codec: Codec) -> None:
    lowest, highest = RANGES[codec]
    for level in (lowest - 1, highest + 1, *([0] if codec is not Codec.ZSTD else [])):
        with pytest.raises(InvalidRequest, match="level"):
            compress(codec, b"x", level)


def xerial(*pieces: bytes, version: int = 1) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(piece)) for piece in pieces]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\0" + struct.pack(">ii", version, version) + framed


FRAMINGS = {
    "raw snappy": (Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial, one block": (Codec.SNAPPY, xerial),
    "xerial, uneven blocks": (Codec.SNAPPY, lambda data: xerial(data[:5], b"", data[5:])),
    "several zstd frames": (
        Codec.ZSTD,
        lambda data: b"".join(compress(Codec.ZSTD, part) for part in (data[:9], data[9:])),
    ),
    "zstd with a checksum and no size": (
        Codec.ZSTD,
        lambda data: zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(data),
    ),
    "a zstd frame to be skipped": (
        Codec.ZSTD,
        lambda data: struct.pack("<II", 0x184D2A53, 3) + b"abc" + compress(Codec.ZSTD, data),
    ),
    "several gzip members": (Codec.GZIP, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "gzip with a name": (
        Codec.GZIP,
        lambda data: (
            gzip.compress(data)[:3] + b"\x08" + gzip.compress(data)[4:10] + b"name\0" + gzip.compress(data)[10:]
        ),
    ),
    "lz4 of 4 MiB blocks": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_size=7, block_linked=False)),
    "lz4, linked blocks": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_linked=True)),
    "lz4, all checksums": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, block_checksum=True, content_checksum=True),
    ),
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_batches_framed_by_other_clients_are_read(framing: str) -> None:
    codec, frame = FRAMINGS[framing]
    records = [(b"key %d" % at, TEXT[: 40 * at], 1000 + at) for at in range(100)]
    plain = encode_batch(records)
    header = read_header(plain)
    assert header is not None
    batch = seal(header._replace(attributes=int(codec)), frame(plain[HEADER_BYTES:]))
    for columns in (kernels.decode_columns(batch), next(kernels.decode_in_steps(batch))):
        assert [(r.key, r.value, r.timestamp_ms) for r in columns.records()] == records


@pytest.mark.parametrize("framing", FRAMINGS)
def test_bytes_behind_the_last_record_are_corrupt_in_every_framing(framing: str) -> None:
    codec, frame = FRAMINGS[framing]
    plain = encode_batch([(b"k", b"v", 1)] * 3)
    header = read_header(plain)
    assert header is not None
    for wrong in (b"\0", b"\x0c\x00\x00\x06\x01\x01\x00"):
        batch = seal(header._replace(attributes=int(codec)), frame(plain[HEADER_BYTES:] + wrong))
        with pytest.raises(Corrupt, match="bytes left over"):
            kernels.decode_columns(batch)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_without_records_but_with_a_payload_is_corrupt(codec: Codec) -> None:
    header = read_header(encode_batch([(b"k", b"v", 1)]))
    assert header is not None
    batch = seal(
        header._replace(attributes=int(codec), record_count=0), compress(codec, b"\x0c\x00\x00\x00\x01\x01\x00")
    )
    with pytest.raises(Corrupt, match="bytes left over"):
        kernels.decode_columns(batch)


@pytest.mark.parametrize("bits", [0x80, 0x100, 0x7F80, -0x8000])
def test_undefined_attribute_bits_are_ignored(bits: int) -> None:
    records = [(b"k", b"v", 5), (b"l", b"w", 3)]
    header = read_header(encode_batch(records))
    assert header is not None
    section = encode_batch(records)[HEADER_BYTES:]
    batch = seal(header._replace(attributes=header.attributes | bits), section)
    assert [(r.key, r.value, r.timestamp_ms) for r in kernels.decode_columns(batch).records()] == records
    read = read_header(batch)
    assert read is not None
    assert (read.codec, read.is_control, read.is_transactional, read.has_delete_horizon) == (
        Codec.NONE,
        False,
        False,
        False,
    )
