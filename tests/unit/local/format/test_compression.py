"""Codecs: output in Kafka's framing, and decompression within its limit for any input bytes."""

import struct
import tracemalloc

import cramjam
import lz4.frame
import numpy as np
import pytest

from local.errors import Corrupt, InvalidRequest
from local.format import compression
from local.format.batch_header import seal
from local.format.compression import Codec, compress, decompress, size_guesses
from local.format.crc32c import crc32c
from local.kernels import dispatch as kernels
from local.records.batch import assign_offset, encode_batch, encode_marker, read_header

PACKED = [codec for codec in Codec if codec is not Codec.NONE]
MIB = 1 << 20
SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "text": b"the quick brown fox " * 20_000,
    "block sized": bytes(65536),
    "just over a block": bytes(65537),
    "incompressible": b"".join(struct.pack("<I", i * 2654435761 % 2**32) for i in range(50_000)),
}


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("sample", SAMPLES)
def test_decompression_returns_the_compressed_data(codec, sample):
    data = SAMPLES[sample]
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data


@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 1), (Codec.LZ4, 4), (Codec.LZ4, 17), (Codec.ZSTD, -7), (Codec.ZSTD, 19)]
)
def test_the_level_changes_only_the_compressed_size(codec, level):
    data = b"".join(b"%d fox %d " % (i * i % 977, i % 13) for i in range(20_000))
    packed = compress(codec, data, level)
    assert packed != compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.LZ4, 18), (Codec.ZSTD, 23)])
def test_a_level_outside_the_range_of_the_codec_is_refused(codec, level):
    with pytest.raises(InvalidRequest, match="level"):
        compress(codec, b"x", level)


@pytest.mark.parametrize("level", [None, 4])
def test_lz4_frames_equal_kafkas(level):
    frame = compress(Codec.LZ4, SAMPLES["text"], level)
    assert frame[:7].hex() == "04224d18604082"  # 64 KiB blocks, independent, no checksums, no content size
    assert frame[-4:] == bytes(4)
    told = lz4.frame.get_frame_info(frame)
    assert (told["block_size"], told["block_linked"], told["block_checksum"]) == (65536, False, False)
    assert (told["content_checksum"], told["content_size"]) == (False, 0)
    assert lz4.frame.decompress(frame) == SAMPLES["text"]


def test_snappy_is_written_as_xerial_blocks_of_32_kib():
    packed = compress(Codec.SNAPPY, SAMPLES["block sized"])
    assert packed[:16].hex() == "82534e4150505900" + "00000001" * 2
    (length,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + length])) == bytes(32768)


def test_snappy_without_xerial_framing_is_read():
    raw = bytes(cramjam.snappy.compress_raw(SAMPLES["text"]))
    assert bytes(decompress(Codec.SNAPPY, raw, MIB)) == SAMPLES["text"]


@pytest.mark.parametrize("library", [cramjam.gzip, cramjam.lz4, cramjam.zstd])
def test_concatenated_frames_are_read_as_one_stream(library):
    codec = Codec[library.__name__.rpartition(".")[2].upper()]
    frame = bytes(library.compress(SAMPLES["text"]))
    assert bytes(decompress(codec, frame + frame, MIB)) == SAMPLES["text"] * 2


@pytest.mark.parametrize(
    "options", [{"block_linked": True}, {"block_checksum": True}, {"content_checksum": True}, {"store_size": True}]
)
def test_lz4_frames_with_optional_flags_are_read(options):
    frame = lz4.frame.compress(SAMPLES["text"], **{"store_size": False, **options})
    assert bytes(decompress(Codec.LZ4, frame, MIB)) == SAMPLES["text"]


def test_zstd_frames_without_content_size_are_read():
    compressor = cramjam.zstd.Compressor()
    compressor.compress(SAMPLES["text"])
    frame = bytes(compressor.finish())
    assert bytes(decompress(Codec.ZSTD, frame, MIB)) == SAMPLES["text"]


@pytest.mark.parametrize("codec", PACKED)
def test_data_one_byte_above_the_limit_is_refused(codec):
    packed = compress(codec, bytes(100_000))
    assert len(decompress(codec, packed, 100_000)) == 100_000
    with pytest.raises(Corrupt):
        decompress(codec, packed, 99_999)


def bomb(codec, size_bytes=64 * MIB):
    return compress(codec, bytes(size_bytes))


@pytest.mark.parametrize("codec", PACKED)
def test_a_decompression_bomb_is_stopped_at_the_limit(codec):
    packed = bomb(codec)
    tracemalloc.start()
    with pytest.raises(Corrupt):
        decompress(codec, packed, MIB)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * MIB


def test_batches_above_the_limit_of_one_call_are_an_invalid_request_and_not_corrupt(monkeypatch):
    monkeypatch.setattr(kernels, "DECOMPRESSED_BYTES_MAX", MIB)
    batches = [encode_batch([(b"k", bytes(600_000), 1)], base_offset=i, codec=Codec.ZSTD) for i in range(2)]
    assert len(kernels.decode_columns(batches[0])) == 1
    with pytest.raises(InvalidRequest, match="in steps") as caught:
        kernels.decode_columns(b"".join(batches))
    facts = caught.value.facts
    assert (facts["at"], facts["base_offset"], facts["limit"]) == (len(batches[0]), 1, MIB)


LIES = {
    "zstd claims 1 TB": (Codec.ZSTD, bytes.fromhex("28b52ffd e0 0000000000010000 010000".replace(" ", ""))),
    "gzip claims 4 GB": (Codec.GZIP, compress(Codec.GZIP, b"x")[:-4] + b"\xff" * 4),
    "snappy claims 2 GB": (Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + b"\x00x"),
    "xerial block leaves the frame": (Codec.SNAPPY, compress(Codec.SNAPPY, b"x")[:16] + b"\x7f\xff\xff\xff"),
    "xerial block is negative": (Codec.SNAPPY, compress(Codec.SNAPPY, b"x")[:16] + b"\xff\xff\xff\xf0" + b"x" * 9),
    "lz4 block leaves the frame": (Codec.LZ4, compress(Codec.LZ4, b"x")[:7] + b"\xff\xff\xff\x7f" + b"x"),
    "lz4 of nothing": (Codec.LZ4, b""),
    "no frame at all": (Codec.ZSTD, b"plain text"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_false_size_in_a_frame_is_corrupt_and_reserves_no_memory(lie):
    codec, data = LIES[lie]
    tracemalloc.start()
    with pytest.raises(Corrupt):
        decompress(codec, data, 1 << 30)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB


def test_the_reserved_size_follows_the_blocks_and_not_the_declared_size():
    claims = LIES["zstd claims 1 TB"][1]
    assert size_guesses(Codec.ZSTD, memoryview(claims), 1 << 40) == (0,)


@pytest.mark.parametrize("codec", PACKED)
def test_a_frame_truncated_at_any_byte_is_corrupt(codec):
    packed = compress(codec, b"some text " * 30)
    for cut in range(1, len(packed)):
        if codec is Codec.SNAPPY and cut == 16:
            continue  # xerial's header alone is an empty stream
        with pytest.raises(Corrupt):
            decompress(codec, packed[:cut], MIB)


def test_the_checksum_is_crc32c_and_can_be_chained():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"6789"), crc32c(bytearray(b"12345"))) == 0xE3069283


# -- highly compressed data


def zeros(count, size_bytes, codec=Codec.ZSTD):
    """`count` batches of one record of zeros each, with almost no bytes on disk."""
    batch = bytearray(encode_batch([(b"k", bytes(size_bytes), 1)], codec=codec))
    parts = []
    for offset in range(count):
        assign_offset(batch, offset, 0)
        parts.append(bytes(batch))
    return b"".join(parts)


def test_data_that_inflates_to_a_gibibyte_is_decoded_in_steps_of_bounded_memory():
    data = zeros(1100, MIB)
    tracemalloc.start()
    offsets, steps = [], 0
    for columns in kernels.decode_in_steps(data):
        assert columns.value_lengths.tolist() == [MIB] * len(columns)
        offsets += columns.offsets.tolist()
        steps += 1
        del columns
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert offsets == list(range(1100))
    assert steps == pytest.approx(1100 * MIB / kernels.STEP_BYTES, abs=2)
    assert peak < 2.5 * kernels.STEP_BYTES


@pytest.mark.parametrize("codec", Codec)
def test_the_steps_together_equal_one_decoding(codec):
    batches = [encode_batch([(b"k", bytes(i), 1)] * 3, base_offset=3 * i, codec=codec) for i in range(40)]
    batches[20] = encode_batch([(b"k", b"plain", 1)] * 3, base_offset=60)
    data = b"".join(batches)
    whole = kernels.decode_columns(data + b"torn")
    for step_bytes in (0, 1, 100, 1000, 1 << 40):
        steps = list(kernels.decode_in_steps(data + b"torn", step_bytes=step_bytes))
        assert [r for step in steps for r in step.records()] == list(whole.records())
        assert [n for step in steps for n in step.table.positions.tolist()] == whole.table.positions.tolist()
        assert {step.table.valid_bytes for step in steps} == {len(data)}
        assert all(len(step.table) >= 1 for step in steps)
        if step_bytes == 0:
            assert len(steps) == 40
    assert len(steps) == 1


def test_the_overhead_of_small_records_counts_towards_the_size_of_a_step():
    data = encode_batch([(None, None, 1)] * 1000) + encode_batch([(None, None, 1)] * 1000, base_offset=1000)
    assert [len(step) for step in kernels.decode_in_steps(data, step_bytes=60_000)] == [1000, 1000]
    assert [len(step) for step in kernels.decode_in_steps(data, step_bytes=200_000)] == [2000]


def test_data_without_a_whole_batch_gives_no_step():
    assert list(kernels.decode_in_steps(b"")) == []
    assert list(kernels.decode_in_steps(zeros(1, 10)[:-1])) == []


def test_steps_omit_control_records_unless_include_control_is_set():
    marker = encode_marker(base_offset=1, is_commit=True, timestamp_ms=5, producer_id=1, producer_epoch=0)
    data = zeros(1, 10) + marker
    assert [len(step) for step in kernels.decode_in_steps(data)] == [1]
    assert [len(step) for step in kernels.decode_in_steps(data, include_control=True)] == [2]


def test_a_damaged_batch_stops_the_steps_and_the_error_names_its_offset():
    data = bytearray(zeros(3, 100))
    at = 2 * len(data) // 3
    data[-1] ^= 1
    with pytest.raises(Corrupt, match="crc differs") as caught:
        list(kernels.decode_in_steps(data, step_bytes=1))
    assert (caught.value.facts["at"], caught.value.facts["base_offset"]) == (at, 2)


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_for_one_batch_holds_in_every_way_to_read_it(codec, monkeypatch):
    header = read_header(encode_batch([(b"k", b"v", 1)], base_offset=77, codec=codec))
    assert header is not None
    small = encode_batch([(b"k", b"v", 1)], codec=codec)
    data = small + seal(header, bomb(codec))
    monkeypatch.setattr(kernels, "INFLATED_BYTES_MAX", MIB)
    for read in (
        lambda: kernels.decode_columns(data),
        lambda: list(kernels.decode_in_steps(data)),
        lambda: kernels.filter_batches(
            small + seal(header._replace(record_count=2, last_offset_delta=1), bomb(codec)),
            np.array([True, True, False]),
            keep_last_batch=True,
        ),
    ):
        with pytest.raises(Corrupt, match="cannot decompress a batch") as caught:
            read()
        facts = caught.value.facts
        assert (facts["at"], facts["base_offset"], facts["limit"]) == (len(small), 77, MIB)


@pytest.mark.parametrize("codec", PACKED)
def test_the_record_count_of_a_compressed_batch_is_limited_before_decompression(codec, monkeypatch):
    monkeypatch.setattr(kernels, "PACKED_RECORDS_MAX", 100)
    good = encode_batch([(None, None, 1)] * 100, codec=codec)
    bad = encode_batch([(None, None, 1)] * 101, base_offset=100, codec=codec)
    assert len(kernels.decode_columns(good)) == 100
    for read in (lambda: kernels.decode_columns(good + bad), lambda: list(kernels.decode_in_steps(good + bad))):
        with pytest.raises(Corrupt, match="more records than a batch may have") as caught:
            read()
        facts = caught.value.facts
        assert (facts["at"], facts["base_offset"], facts["records"], facts["limit"]) == (len(good), 100, 101, 100)
    assert len(kernels.decode_columns(encode_batch([(None, None, 1)] * 101))) == 101


def test_the_size_of_columns_counts_towards_the_limit_of_one_call(monkeypatch):
    data = b"".join(
        encode_batch([(None, None, 1)] * 50_000, base_offset=50_000 * at, codec=Codec.ZSTD) for at in (0, 1)
    )
    monkeypatch.setattr(kernels, "DECOMPRESSED_BYTES_MAX", 6 * MIB)
    assert len(kernels.decode_columns(data)) == 100_000
    monkeypatch.setattr(kernels, "DECOMPRESSED_BYTES_MAX", 5 * MIB)
    with pytest.raises(InvalidRequest, match="in steps"):
        kernels.decode_columns(data)


@pytest.mark.parametrize("codec", PACKED)
def test_data_above_the_decompression_limit_is_refused_when_it_is_compressed(codec, monkeypatch):
    monkeypatch.setattr(compression, "INFLATED_BYTES_MAX", 1000)
    assert len(decompress(codec, compress(codec, bytes(1000)), 1000)) == 1000
    with pytest.raises(InvalidRequest, match="inflated_bytes_max=1000"):
        compress(codec, bytes(1001))


def test_a_filter_decompresses_one_batch_at_a_time():
    one = bytearray(encode_batch([(b"k", bytes(MIB), 1), (b"k", b"v", 1)], codec=Codec.ZSTD))
    parts = []
    for at in range(200):
        assign_offset(one, 2 * at, 0)
        parts.append(bytes(one))
    tracemalloc.start()
    made = kernels.filter_batches(b"".join(parts), np.arange(400) % 2 == 0, keep_last_batch=True)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * MIB
    assert sum(len(step) for step in kernels.decode_in_steps(made)) == 200
