"""Compressed batches read by the kernels' own codecs, compared with cramjam, on frames of any client and hostile bytes.

A batch that the kernels refuse is read by cramjam, so the results may never differ, whatever the bytes are.
"""

from __future__ import annotations

import gzip
import struct
import threading

import cramjam
import lz4.block
import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from log_world import opened_batches

from local.errors import Corrupt, InvalidRequest
from local.format import compression
from local.format.batch_header import HEADER_BYTES, seal
from local.format.columns import COLUMN_DTYPES
from local.format.compression import LEVELS, Codec, compress, decompress
from local.format.record import Record
from local.kernels import dispatch as kernels
from local.records.batch import encode_batch, read_header

compiled = pytest.importorskip("local.kernels._kernels", reason="the extension was not built")

FOUND = {Codec[name.upper()] for name in compiled.load_codecs()}
PACKED = list(Codec)[1:]
LIMIT = 1 << 22
MAGIC_ZSTD, MAGIC_LZ4 = bytes.fromhex("28b52ffd"), bytes.fromhex("04224d18604082")


def xerial(data: bytes, step: int = 50) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + step])) for at in range(0, len(data), step)]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(one)) + one for one in blocks)


def zstd_stream(data: bytes) -> bytes:
    """As zstd-jni writes it: no content size, no checksum."""
    writer = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False).compressobj()
    return writer.compress(data) + writer.flush()


FRAMES = {
    "gzip": (Codec.GZIP, gzip.compress),
    "two gzip members": (Codec.GZIP, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "raw snappy": (Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial": (Codec.SNAPPY, xerial),
    "lz4 of Kafka": (Codec.LZ4, lambda data: compress(Codec.LZ4, data)),
    "lz4, other flags": (Codec.LZ4, lambda data: lz4.frame.compress(data, content_checksum=True)),
    "zstd": (Codec.ZSTD, lambda data: zstandard.ZstdCompressor(level=19, write_checksum=True).compress(data)),
    "zstd without a size": (Codec.ZSTD, zstd_stream),
    "two zstd frames": (Codec.ZSTD, lambda data: zstd_stream(data[:9]) + compress(Codec.ZSTD, data[9:])),
    "zstd, a frame to be skipped": (
        Codec.ZSTD,
        lambda data: struct.pack("<II", 0x184D2A53, 1) + b"x" + zstd_stream(data),
    ),
}
TEXTS = st.builds(
    lambda word, count, noise: word * count + noise, st.binary(max_size=40), st.integers(0, 90), st.binary(max_size=70)
)
RECORDS = st.lists(
    st.builds(Record, st.none() | st.binary(max_size=9), TEXTS, st.integers(0, 2**41)), min_size=1, max_size=9
)


def batch_of(codec: Codec, section: bytes, like: bytes, base_offset: int = 0) -> bytes:
    """A batch with a sound checksum whose compressed records are `section`."""
    header = read_header(like)
    assert header is not None
    bits = header.attributes | int(codec)
    return bytes(seal(header._replace(attributes=bits, base_offset=base_offset), section))


def outcome(data: bytes, *, by_kernels: bool, step_bytes: int = 1 << 20) -> object:
    """The columns and bytes that a reader gets, or its error."""
    compiled.load_codecs(by_kernels)
    try:
        steps = list(kernels.decode_in_steps(data, include_control=True, step_bytes=step_bytes))
        whole = kernels.decode_columns(data)
        columns = [getattr(each, name).tolist() for each in (*steps, whole) for name in COLUMN_DTYPES]
        return columns, [bytes(each.data) for each in (*steps, whole)]
    except (Corrupt, InvalidRequest) as error:
        return type(error), error.attempt, {k: v for k, v in error.facts.items() if k != "room"}
    finally:
        compiled.load_codecs()


def same(data: bytes, **options: int) -> object:
    ours, oracle = outcome(data, by_kernels=True, **options), outcome(data, by_kernels=False, **options)
    assert ours == oracle
    return ours


@pytest.fixture(autouse=True, scope="module")
def _few_decompressed_bytes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "DECOMPRESSED_BYTES_MAX", LIMIT)
        patch.setattr(kernels, "INFLATED_BYTES_MAX", LIMIT)
        yield


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(FRAMES)), RECORDS), min_size=1, max_size=5), st.integers(0, 3000))
def test_batches_of_every_framing_decode_as_with_cramjam(drawn, step_bytes):
    data, expected, at = b"", [], 0
    for name, records in drawn:
        plain = encode_batch(records)
        codec, frame = FRAMES[name]
        data += batch_of(codec, frame(plain[HEADER_BYTES:]), plain, at)
        at += len(records)
        expected += [(each.key, each.value, each.timestamp_ms) for each in records]
    same(data, step_bytes=step_bytes)
    assert [(r.key, r.value, r.timestamp_ms) for r in kernels.decode_columns(data).records()] == expected


CHANGES = st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), max_size=3)
PIECES = st.sampled_from(
    [b"", b"\0", MAGIC_ZSTD, MAGIC_LZ4, b"\xff" * 4, bytes(9), gzip.compress(b"x"), zstd_stream(b"x")]
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(FRAMES)), RECORDS, CHANGES, PIECES, st.integers(0, 60))
@example("zstd", [Record(b"k", b"v" * 300, 1)], [(4, 1)], b"", 0)  # claims a dictionary
@example("gzip", [Record(b"k", b"v" * 300, 1)], [], b"garbage", 0)
@example("raw snappy", [Record(b"k", b"v" * 300, 1)], [(0, 0x80)], b"", 0)
def test_hostile_frames_have_the_outcome_of_cramjam(name, records, changes, tail, cut):
    plain = encode_batch(records)
    codec, frame = FRAMES[name]
    section = bytearray(frame(plain[HEADER_BYTES:]))
    for place, bits in changes:
        section[place % len(section)] ^= bits
    section = bytes(section[: len(section) - cut] + tail)
    ours, oracle = (outcome(batch_of(codec, section, plain), by_kernels=each) for each in (True, False))
    assert ours == oracle


@given(st.sampled_from(PACKED), st.binary(max_size=200))
def test_any_bytes_as_a_frame_have_the_outcome_of_cramjam(codec, section):
    same(batch_of(codec, section, encode_batch([(b"k", b"v", 1)])))


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_cut_at_any_byte_is_corrupt(name):
    codec, frame = FRAMES[name]
    plain = encode_batch([(b"key", b"some text " * 30, 1)])
    section = frame(plain[HEADER_BYTES:])
    for cut in range(1, len(section)):
        assert same(batch_of(codec, section[:cut], plain))[0] is Corrupt


def called(monkeypatch: pytest.MonkeyPatch) -> list[Codec]:
    """The codecs of the batches that cramjam reads from now on."""
    asked: list[Codec] = []
    real = kernels.decompress
    monkeypatch.setattr(kernels, "decompress", lambda codec, *rest: asked.append(codec) or real(codec, *rest))
    return asked


READ_HERE = ["gzip", "raw snappy", "xerial", "lz4 of Kafka", "zstd", "zstd without a size", "two zstd frames"]


@pytest.mark.parametrize("name", READ_HERE)
def test_frames_of_kafkas_clients_are_read_without_cramjam(name, monkeypatch):
    codec, frame = FRAMES[name]
    if codec not in FOUND:
        pytest.skip(f"this machine has no library for {codec.name.lower()}")
    plain = encode_batch([(b"key", b"some text " * 3000, 1)])
    asked = called(monkeypatch)
    assert kernels.decode_columns(batch_of(codec, frame(plain[HEADER_BYTES:]), plain)).data == plain[HEADER_BYTES:]
    assert asked == []


def window_of_zstd(bits: int) -> bytes:
    """A frame with one raw block whose header asks for a window of ``2**bits`` bytes."""
    return MAGIC_ZSTD + bytes([0, bits - 10 << 3]) + b"\x09\0\0" + b"x"


def large_block_of_lz4() -> bytes:
    """A block of 64 KiB that compression made larger than 64 KiB: legal as a block, not in a frame of 64 KiB blocks."""
    noise = bytes(np.random.default_rng(4).integers(0, 256, 65_536, np.uint8))
    block = lz4.block.compress(noise, store_size=False)
    assert len(block) > 65_536
    return MAGIC_LZ4 + struct.pack("<I", len(block)) + block + bytes(4)


def gzip_with_header_checksum(checksum: int) -> bytes:
    made = gzip.compress(b"x")
    return made[:3] + b"\x02" + made[4:10] + struct.pack("<H", checksum) + made[10:]


def zstd_of_small_window(data: bytes) -> bytes:
    """A frame that claims a window of 1 KiB, with a block that decompresses to more."""
    made = bytearray(zstd_stream(data))
    assert not made[4] & 0x20
    made[5] = 0
    return bytes(made)


REFUSED = {
    "an lz4 block above 64 KiB": (Codec.LZ4, large_block_of_lz4()),
    "gzip with a wrong header checksum": (Codec.GZIP, gzip_with_header_checksum(77)),
    "a zstd block larger than its window": (Codec.ZSTD, zstd_of_small_window(bytes(100_000))),
    "a raw zstd block larger than its window": (
        Codec.ZSTD,
        MAGIC_ZSTD + b"\0\0" + (2000 << 3 | 1).to_bytes(3, "little") + bytes(2000),
    ),
    "a window of 128 MiB": (Codec.ZSTD, window_of_zstd(27)),
    "a window of 2 TiB": (Codec.ZSTD, window_of_zstd(41)),
    "a dictionary": (Codec.ZSTD, MAGIC_ZSTD + bytes([0x21, 7, 1]) + b"\x09\0\0" + b"x"),
    "a content size of 1 EiB": (Codec.ZSTD, MAGIC_ZSTD + b"\xe0" + b"\xff" * 8 + b"\x01\0\0"),
    "zstd's reserved bit": (Codec.ZSTD, MAGIC_ZSTD + bytes([0x28, 1]) + b"\x09\0\0" + b"x"),
    "a second gzip member": (Codec.GZIP, gzip.compress(b"x") * 2),
    "gzip that claims 4 GiB": (Codec.GZIP, gzip.compress(b"x")[:-4] + b"\xff" * 4),
    "an lz4 block behind the end": (Codec.LZ4, MAGIC_LZ4 + b"\xff\xff\xff\x7f" + b"x"),
    "an lz4 block of nothing": (Codec.LZ4, MAGIC_LZ4 + b"\0\0\0\x80" + bytes(4)),
    "bytes behind the lz4 frame": (Codec.LZ4, compress(Codec.LZ4, b"x") + b"x"),
    "a copy from before the block": (Codec.SNAPPY, b"\x05\x00x\x05\x02"),
    "a snappy block that ends early": (Codec.SNAPPY, b"\x05\x00x"),
    "snappy that claims 2 GiB": (Codec.SNAPPY, b"\xff\xff\xff\xff\x07\x00x"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusual_and_wrong_frames_are_left_to_cramjam(name, monkeypatch):
    codec, section = REFUSED[name]
    asked = called(monkeypatch)
    same(batch_of(codec, section, encode_batch([(b"k", b"v", 1)])))
    assert asked.count(codec) >= 2 - (codec in FOUND)
    compiled.load_codecs()
    table = kernels.scan_batches(data := batch_of(codec, section, encode_batch([(b"k", b"v", 1)])))
    arena, ends, one = np.full(1 << 18, 0xEE, np.uint8), np.zeros(1, np.int64), np.ones(1, np.uint8)
    assert compiled.inflate_batches(memoryview(data), table, one, 0, arena, 0, 99, ends, LIMIT, 9) == (0, 0)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("room", [0, 1, 200, 299, 300, 4000])
def test_nothing_is_written_outside_the_room(codec, room):
    plain = encode_batch([(b"k", b"abc" * 90, 1)])
    data = memoryview(batch_of(codec, compress(codec, plain[HEADER_BYTES:]), plain))
    arena, ends = np.full(room + 64, 0xEE, np.uint8), np.zeros(1, np.int64)
    kind = np.ones(1, np.uint8)
    row, used = compiled.inflate_batches(
        data, kernels.scan_batches(data), kind, 0, arena[:room], 0, 1 << 20, ends, LIMIT, 100
    )
    assert (arena[room:] == 0xEE).all()
    assert (row, used) in ((0, 0), (1, len(plain) - HEADER_BYTES))
    assert row == 0 or bytes(arena[:used]) == plain[HEADER_BYTES:]


@pytest.mark.parametrize("codec", PACKED)
def test_threads_use_contexts_of_their_own(codec):
    batches = [
        encode_batch([(b"k%d" % at, b"text %d " % at * 200, 1)], base_offset=at, codec=codec) for at in range(40)
    ]
    data, expected = b"".join(batches), [b"text %d " % at * 200 for at in range(40)]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(20):
            found = [record.value for record in kernels.decode_columns(data).records()]
            if found != expected:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


# -- rebuilding


def rebuilt(data: bytes, keep: np.ndarray, *, by_kernels: bool) -> list[object]:
    """Headers and records of the filtered batches, or the error."""
    compiled.load_codecs(by_kernels)
    try:
        return opened_batches(kernels.filter_batches(data, keep, keep_last_batch=True))
    except (Corrupt, InvalidRequest) as error:
        return [type(error), error.attempt, {k: v for k, v in error.facts.items() if k != "room"}]
    finally:
        compiled.load_codecs()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(sorted(FRAMES)), RECORDS), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from([0.1, 0.5, 0.9]),
)
def test_rebuilt_batches_of_every_framing_hold_what_cramjam_makes_of_them(drawn, random, share):
    data, at = b"", 0
    for name, records in drawn:
        plain = encode_batch(records)
        codec, frame = FRAMES[name]
        data += batch_of(codec, frame(plain[HEADER_BYTES:]), plain, at)
        at += len(records)
    keep = np.array([random.random() < share for _ in range(at)], bool)
    ours = rebuilt(data, keep, by_kernels=True)
    assert ours == rebuilt(data, keep, by_kernels=False)
    assert all(header.record_count == 0 or header.codec is not Codec.NONE for header, _ in ours)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(FRAMES)), RECORDS, CHANGES, PIECES, st.integers(0, 60))
def test_a_rebuilt_hostile_frame_has_the_outcome_of_cramjam(name, records, changes, tail, cut):
    plain = encode_batch(records)
    codec, frame = FRAMES[name]
    section = bytearray(frame(plain[HEADER_BYTES:]))
    for place, bits in changes:
        section[place % len(section)] ^= bits
    data = batch_of(codec, bytes(section[: len(section) - cut] + tail), plain)
    keep = np.arange(len(records)) % 2 == 0
    assert rebuilt(data, keep, by_kernels=True) == rebuilt(data, keep, by_kernels=False)


SAMPLES = st.builds(
    lambda parts: b"".join(part * count for part, count in parts),
    st.lists(st.tuples(st.binary(max_size=300), st.sampled_from([1, 1, 2, 7, 100, 900])), max_size=9),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PACKED), SAMPLES)
@example(Codec.SNAPPY, bytes(70_000))
@example(Codec.LZ4, bytes(65_536 - 9))
@example(Codec.SNAPPY, bytes(np.random.default_rng(1).integers(0, 256, 40_000, np.uint8)))
@example(Codec.LZ4, bytes(np.random.default_rng(1).integers(0, 256, 140_000, np.uint8)))
@example(Codec.ZSTD, bytes(np.random.default_rng(1).integers(0, 256, 300_000, np.uint8)))
@example(Codec.GZIP, bytes(np.random.default_rng(1).integers(0, 256, 300_000, np.uint8)))
def test_other_libraries_read_the_frames_that_the_kernels_write(codec, value):
    plain = encode_batch([(b"dead", b"", 1), (b"k", value, 2)])
    data = batch_of(codec, compress(codec, plain[HEADER_BYTES:]), plain)
    made = kernels.filter_batches(data, np.array([False, True]))
    section = made[HEADER_BYTES:]
    if codec is Codec.ZSTD:
        records = zstandard.ZstdDecompressor().decompress(section)
    elif codec is Codec.GZIP:
        records = gzip.decompress(section)
    elif codec is Codec.LZ4:
        assert section[:7] == MAGIC_LZ4
        records = lz4.frame.decompress(section)
    else:
        assert section[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
        records, at = b"", 16
        while at < len(section):
            (length,) = struct.unpack_from(">i", section, at)
            block = bytes(cramjam.snappy.decompress_raw(section[at + 4 : at + 4 + length]))
            assert len(block) <= 32 << 10
            records, at = records + block, at + 4 + length
    header = read_header(made)
    assert header is not None
    (found,) = kernels.decode_columns(seal(header._replace(attributes=0), records)).records()
    assert (found.offset, found.key, found.value, found.timestamp_ms) == (1, b"k", value, 2)


@pytest.mark.parametrize("codec", PACKED)
def test_ordinary_batches_are_rebuilt_without_cramjam(codec, monkeypatch):
    if codec not in FOUND:
        pytest.skip(f"this machine has no library for {codec.name.lower()}")
    batches = [encode_batch([(b"k", b"text" * 99, 1)] * 3, base_offset=3 * at, codec=codec) for at in range(9)]
    asked = called(monkeypatch)
    monkeypatch.setattr(kernels, "compress", lambda codec, data: asked.append(codec))
    made = kernels.filter_batches(b"".join(batches), np.arange(27) % 3 == 1)
    assert [record.offset for record in kernels.decode_columns(made).records()] == list(range(1, 27, 3))
    assert asked == []


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("room", [0, 61, 300, 70_000, 200_000])
def test_a_rebuilt_batch_stays_inside_its_room(codec, room):
    noise = bytes(np.random.default_rng(2).integers(0, 256, 100_000, np.uint8))
    data = memoryview(encode_batch([(b"dead", b"", 1), (b"k", noise, 1)], codec=codec))
    out = np.full(room + 64, 0xEE, np.uint8)
    keep, action, first = np.array([2], np.uint8), np.full(1, 2, np.uint8), np.zeros(1, np.int64)
    row, size = compiled.rebuild_batches(data, kernels.scan_batches(data), action, keep, first, 0, out[:room], 0, 1)
    assert (out[room:] == 0xEE).all()
    assert (row, size > 0) in ((0, False), (1, True))


@pytest.mark.parametrize("codec", PACKED)
def test_appended_batches_are_compressed_without_cramjam_at_the_default_level_alone(codec, monkeypatch):
    if codec not in FOUND:
        pytest.skip(f"this machine has no library for {codec.name.lower()}")
    asked: list[int | None] = []
    real = kernels.compress
    monkeypatch.setattr(kernels, "compress", lambda codec, data, level: asked.append(level) or real(codec, data, level))
    data = b"some text " * 9000
    default = LEVELS[codec][0] if codec in LEVELS else None
    for level in (None, default):
        assert bytes(decompress(codec, kernels.compress_section(codec, data, level), len(data))) == data
    assert asked == []
    if codec in LEVELS:
        assert bytes(decompress(codec, kernels.compress_section(codec, data, 4), len(data))) == data
        assert asked == [4]
        with pytest.raises(InvalidRequest, match="level"):
            kernels.compress_section(codec, data, 99)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size_bytes", [0, 1, 15, 32_767, 32_769, 65_536, 200_000])
def test_sections_of_every_size_are_compressed_and_read_again(codec, size_bytes):
    noise = bytes(np.random.default_rng(3).integers(0, 256, size_bytes, np.uint8))
    for data in (noise, bytes(size_bytes)):
        assert bytes(decompress(codec, kernels.compress_section(codec, data), size_bytes)) == data


def test_more_than_the_limit_of_a_batch_is_refused_when_it_is_compressed(monkeypatch):
    monkeypatch.setattr(kernels, "INFLATED_BYTES_MAX", 1000)
    monkeypatch.setattr(compression, "INFLATED_BYTES_MAX", 1000)
    with pytest.raises(InvalidRequest, match="inflated_bytes_max=1000"):
        kernels.compress_section(Codec.ZSTD, bytes(1001))
