"""Record batches: golden bytes of Kafka, and every way in which bytes can be invalid."""

import numpy as np
import pytest
from log_world import header_of

from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import HEADER_BYTES, seal
from local.format.columns import TORN
from local.format.compression import Codec
from local.format.crc32c import crc32c
from local.format.record import Record, StoredRecord, TimestampType
from local.kernels import dispatch as kernels
from local.kernels import pure_kernels
from local.records.batch import assign_offset, encode_batch, encode_marker, read_header

T0 = 1_700_000_000_000
CREATE, APPEND = TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME

TWO_RECORDS = bytes.fromhex(
    "0000000000000064 00000049 00000007 02 4109046f 0000 00000001 0000018bcfe56800 0000018bcfe56805"
    "ffffffffffffffff ffff ffffffff 00000002 14000000046b310476310018000a02046b32010202680278"
)
COMMIT_MARKER = bytes.fromhex(
    "0000000000000066 00000042 00000007 02 251815a8 0030 00000000 0000018bcfe5680a 0000018bcfe5680a"
    "0000000000000009 0003 ffffffff 00000001 2000000008000000010c00000000000400"
)
DELETE_HORIZON = bytes.fromhex(
    "0000000000000064 00000041 00000007 02 0c1624eb 0040 00000001 0000018bd50bc400 0000018bcfe56805"
    "ffffffffffffffff ffff ffffffff 00000001 1e00f5efb25202046b32010202680278"
)
RETAINED_EMPTY = bytes.fromhex(
    "0000000000000064 00000031 00000007 02 23e6b845 0000 00000001 ffffffffffffffff 0000018bcfe56805"
    "0000000000000009 0003 00000029 00000000"
)
GOLDEN = (TWO_RECORDS, COMMIT_MARKER, DELETE_HORIZON, RETAINED_EMPTY)
RECORDS = [Record(b"k1", b"v1", T0), Record(b"k2", None, T0 + 5, (("h", b"x"),))]


@pytest.fixture(params=["compiled", "pure"], autouse=True)
def twin(request, monkeypatch):
    """Run every test of this file with both implementations of the kernels."""
    if request.param == "pure":
        monkeypatch.setattr(kernels, "_chosen", pure_kernels)
    elif kernels.implementation() == "pure":
        pytest.skip("the extension was not built")


def decoded(data, **options):
    return list(kernels.decode_columns(data, **options).records())


def test_a_batch_of_two_records_equals_kafkas_bytes():
    assert encode_batch(RECORDS, base_offset=100, leader_epoch=7) == TWO_RECORDS


def test_a_commit_marker_equals_kafkas_bytes():
    made = encode_marker(
        base_offset=102,
        is_commit=True,
        timestamp_ms=T0 + 10,
        producer_id=9,
        producer_epoch=3,
        coordinator_epoch=4,
        leader_epoch=7,
    )
    assert made == COMMIT_MARKER


def test_an_abort_marker_has_another_type_than_a_commit_marker():
    made = encode_marker(base_offset=0, is_commit=False, timestamp_ms=T0, producer_id=1, producer_epoch=0)
    assert decoded(made, include_control=True)[0].key == b"\x00\x00\x00\x00"


@pytest.mark.parametrize("batch", GOLDEN)
def test_kafkas_batches_pass_the_checksum_and_their_headers_pack_to_the_same_bytes(batch):
    header = header_of(batch)
    assert header.size_bytes == len(batch)
    assert header.pack() == batch[:HEADER_BYTES]


def test_record_headers_and_null_values_are_decoded():
    assert decoded(TWO_RECORDS) == [
        StoredRecord(100, T0, CREATE, b"k1", b"v1"),
        StoredRecord(101, T0 + 5, CREATE, b"k2", None, (("h", b"x"),)),
    ]


def test_a_delete_horizon_does_not_change_record_timestamps():
    header = header_of(DELETE_HORIZON)
    assert header.has_delete_horizon
    assert header.base_timestamp_ms == 1_700_086_400_000
    assert decoded(DELETE_HORIZON) == [StoredRecord(101, T0 + 5, CREATE, b"k2", None, (("h", b"x"),))]


def test_control_records_are_decoded_only_with_include_control():
    assert decoded(COMMIT_MARKER) == []
    assert decoded(COMMIT_MARKER, include_control=True)[0].value == b"\x00\x00\x00\x00\x00\x04"
    assert kernels.decode_columns(COMMIT_MARKER).next_offset == 103


def test_a_retained_empty_batch_has_no_record_and_a_next_offset():
    columns = kernels.decode_columns(RETAINED_EMPTY)
    assert (len(columns), len(columns.table), columns.next_offset) == (0, 1, 102)
    assert header_of(RETAINED_EMPTY).base_sequence == 41


def test_bytes_without_a_batch_have_no_next_offset():
    columns = kernels.decode_columns(b"")
    assert len(columns) == 0
    with pytest.raises(InvalidRequest, match="next offset"):
        columns.next_offset  # noqa: B018


def test_with_log_append_time_every_record_has_the_timestamp_of_the_batch():
    batch = encode_batch(RECORDS, timestamp_type=APPEND, append_time_ms=T0 + 999)
    assert header_of(batch).timestamp_type is APPEND
    assert [(r.timestamp_ms, r.timestamp_type) for r in decoded(batch)] == [(T0 + 999, APPEND)] * 2


def test_timestamps_may_decrease_within_a_batch():
    batch = encode_batch([(b"a", b"", T0), (b"b", b"", T0 - 7), (b"c", b"", -1)])
    assert [r.timestamp_ms for r in decoded(batch)] == [T0, T0 - 7, -1]
    assert header_of(batch).max_timestamp_ms == T0


@pytest.mark.parametrize("codec", Codec)
def test_records_encoded_with_every_codec_are_decoded_again(codec):
    records = [Record(b"key-%d" % i, b"value " * i, T0 + i, (("h", None), ("h", b"")) * (i % 2)) for i in range(300)]
    batch = encode_batch(records, base_offset=7, codec=codec, producer_id=5, producer_epoch=1, base_sequence=0)
    header = header_of(batch)
    assert (header.codec, header.record_count, header.next_offset, header.producer_id) == (codec, 300, 307, 5)
    assert decoded(batch) == [
        StoredRecord(7 + i, r.timestamp_ms, CREATE, *r[:2], r.headers) for i, r in enumerate(records)
    ]


def test_batches_of_different_codecs_are_decoded_in_one_call():
    data = b"".join(encode_batch([(b"k", b"v" * 50, T0)] * 3, base_offset=10 * c, codec=c) for c in Codec)
    columns = kernels.decode_columns(data)
    assert columns.offsets.tolist() == [10 * c + i for c in Codec for i in range(3)]
    assert columns.batch_ordinals.tolist() == [c for c in Codec for _ in range(3)]
    assert {columns.value(i) for i in range(15)} == {b"v" * 50}


def test_key_value_and_headers_are_accessed_by_index():
    columns = kernels.decode_columns(TWO_RECORDS)
    assert [columns.key(0), columns.value(0), columns.headers(0)] == [b"k1", b"v1", ()]
    assert [columns.key(-1), columns.value(-1), columns.headers(-1)] == [b"k2", None, (("h", b"x"),)]


def test_columns_are_selected_without_copying_the_data():
    columns = kernels.decode_columns(encode_batch([(b"%d" % i, b"", T0) for i in range(10)]))
    for rows, expected in (
        (slice(2, 5), [2, 3, 4]),
        (columns.offsets % 4 == 0, [0, 4, 8]),
        (np.array([9, 1]), [9, 1]),
    ):
        part = columns.select(rows)
        assert part.offsets.tolist() == expected
        assert part.data.obj is columns.data.obj
        assert [r.key for r in part.records()] == [b"%d" % i for i in expected]


def test_a_partial_batch_at_the_end_is_not_decoded():
    data = TWO_RECORDS + COMMIT_MARKER
    for cut in range(len(TWO_RECORDS), len(data)):
        columns = kernels.decode_columns(data[:cut])
        assert (len(columns), columns.table.valid_bytes) == (2, len(TWO_RECORDS))


def test_a_scan_distinguishes_a_torn_tail_from_damage():
    whole = encode_batch(RECORDS) + encode_batch(RECORDS, base_offset=2)
    assert kernels.scan_batches(whole).problem is None
    assert kernels.scan_batches(whole[:-1]).problem == TORN
    assert kernels.scan_batches(whole[:-1]).valid_bytes == len(whole) // 2
    assert kernels.scan_batches(whole, position=len(whole) // 2).positions.tolist() == [len(whole) // 2]
    assert kernels.scan_batches(b"").problem is None


def damaged(at, patch, *, reseal=True):
    """Two batches; the second one is patched and, unless `reseal` is false, gets a valid checksum."""
    first = encode_batch(RECORDS)
    second = bytearray(encode_batch(RECORDS, base_offset=2))
    second[at : at + len(patch)] = patch
    if reseal:
        second[17:21] = kernels_crc(second[21:])
    return first + bytes(second)


def kernels_crc(data):
    return crc32c(data).to_bytes(4, "big")


DAMAGE = {
    "crc differs": (70, b"!", False),
    "magic 3": (16, b"\x03", True),
    "length below 49": (8, b"\x00\x00\x00\x30", True),
    "length above 2^31-13": (8, b"\x7f\xff\xff\xff", True),
    "last offset delta below 0": (23, b"\xff\xff\xff\xff", True),
    "offset goes back": (0, bytes(7) + b"\x01", True),
    "offset outside 0..2^63": (0, b"\xff" * 8, True),
    "record count outside its offsets": (57, b"\x00\x00\x00\x03", True),
    "no such codec": (22, b"\x05", True),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_a_scan_stops_before_an_invalid_batch_and_names_the_problem(problem):
    at, patch, reseal = DAMAGE[problem]
    data = damaged(at, patch, reseal=reseal)
    table = kernels.scan_batches(data)
    assert (table.problem, len(table), table.valid_bytes) == (problem, 1, 85)
    with pytest.raises(Corrupt, match=problem.replace("^", r"\^")) as caught:
        kernels.decode_columns(data)
    assert caught.value.facts["at"] == 85


def test_a_record_count_above_the_batch_size_is_refused_before_memory_is_reserved():
    huge = 2**31 - 1
    header = read_header(TWO_RECORDS)
    assert header is not None
    for codec, section in ((Codec.NONE, b"x" * 100), (Codec.GZIP, b""), (Codec.GZIP, bytes(range(40)))):
        wrong = header._replace(record_count=huge, last_offset_delta=huge, attributes=int(codec))
        with pytest.raises(Corrupt):
            kernels.decode_columns(seal(wrong, section))


BAD_SECTIONS = {
    "left over": b"\x0c\x00\x00\x00\x01\x01\x00" + b"\x00",
    "too short a record": b"\x0a\x00\x00\x00\x01\x01\x00",
    "record past the end": b"\x7e\x00\x00\x00\x01\x01\x00",
    "negative record": b"\x01\x00\x00\x00\x01\x01\x00",
    "key past the record": b"\x0c\x00\x00\x00\x20\x01\x00",
    "key length -2": b"\x0c\x00\x00\x00\x03\x01\x00",
    "value past the record": b"\x0c\x00\x00\x00\x01\x20\x00",
    "headers past the record": b"\x0c\x00\x00\x00\x01\x01\x20",
    "negative header count": b"\x0c\x00\x00\x00\x01\x01\x01",
    "null header key": b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",
    "endless varint": b"\x80" * 12,
    "varint of six bytes": b"\x8c\x80\x80\x80\x80\x00" + b"\x00\x00\x00\x01\x01\x00",
    "varlong of eleven bytes": b"\x20\x00" + b"\x80" * 10 + b"\x00" + b"\x00\x01\x01\x00",
    "offset beyond the batch's last": b"\x0c\x00\x00\x02\x01\x01\x00",
    "offset below the batch's base": b"\x0c\x00\x00\x01\x01\x01\x00",
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("fault", BAD_SECTIONS)
def test_an_invalid_record_is_corrupt_although_the_checksum_is_valid(fault, codec):
    from local.format.compression import compress

    header = read_header(encode_batch([(None, None, T0)], base_offset=5))
    assert header is not None
    batch = seal(header._replace(attributes=int(codec)), compress(codec, BAD_SECTIONS[fault]))
    header_of(batch)
    with pytest.raises(Corrupt) as caught:
        kernels.decode_columns(batch)
    assert caught.value.facts["base_offset"] == 5


def test_a_record_that_extends_into_the_next_batch_is_corrupt():
    # All lengths agree: the value ends inside the next header, on a zero that would count as "no headers".
    following = encode_batch(RECORDS, base_offset=1)
    header = read_header(encode_batch([(None, None, T0)]))
    assert header is not None
    reaching = seal(header, b"\x18\x00\x00\x00\x01\x0c" + b"abc")
    assert len(reaching) - HEADER_BYTES + 4 == 1 + 12
    with pytest.raises(Corrupt, match="a record exceeds its bounds") as caught:
        kernels.decode_columns(reaching + following)
    assert caught.value.facts["at"] == 0


@pytest.mark.parametrize("codec", Codec)
def test_decoding_verifies_the_checksum_unless_verify_is_false(codec):
    batch = bytearray(encode_batch(RECORDS, codec=codec))
    batch[20] ^= 1
    with pytest.raises(Corrupt, match="crc differs"):
        kernels.decode_columns(bytes(batch))
    assert len(decoded(bytes(batch), verify=False)) == 2


def test_a_header_key_that_is_not_utf_8_gets_replacement_characters():
    batch = encode_batch([(b"k", b"v", T0, (("é", b""),))])
    broken = bytearray(batch)
    broken[broken.index("é".encode())] = 0xFF
    broken[17:21] = kernels_crc(broken[21:])
    assert decoded(bytes(broken))[0].headers[0][0] == "��"


def test_read_header_returns_none_for_a_short_header_and_raises_for_a_wrong_one():
    assert read_header(TWO_RECORDS[:60]) is None
    assert read_header(TWO_RECORDS[:16]) is None
    with pytest.raises(Corrupt, match="magic"):
        read_header(TWO_RECORDS[:16] + b"\x03")
    with pytest.raises(Corrupt, match="length"):
        read_header(bytes(16) + b"\x02")


def test_the_checksum_stays_valid_after_an_offset_is_assigned():
    batch = bytearray(TWO_RECORDS)
    assign_offset(batch, 2**40, 12)
    header = header_of(batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: encode_batch([]),
        lambda: encode_batch([("text", b"v", T0)]),
        lambda: encode_batch([(b"k", b"v")]),
        lambda: encode_batch([b"kv1"]),
        lambda: encode_batch([(b"k", b"v", 1.5)]),
        lambda: encode_batch([(b"k", b"v", None)]),
        lambda: encode_batch([(b"k", b"v", -2)]),
        lambda: encode_batch([(b"k", b"v", 2**63)]),
        lambda: encode_batch([(b"k", b"v", T0, ((b"h", b""),))]),
        lambda: encode_batch([(b"k", b"v", T0, (("h",),))]),
        lambda: encode_batch([(b"k", b"v", T0, (("\ud800", b""),))]),
        lambda: encode_batch([(b"k", b"v", T0, 5)]),
        lambda: encode_batch(RECORDS, base_offset=-1),
        lambda: encode_batch(RECORDS, producer_epoch=2**15),
        lambda: encode_batch(RECORDS, timestamp_type=APPEND),
        lambda: encode_batch(RECORDS, append_time_ms=1),
        lambda: encode_batch(RECORDS, codec=Codec.GZIP, level=12),
        lambda: kernels.scan_batches(b"", position=1),
        lambda: kernels.scan_batches(np.zeros((4, 4), np.uint8)[:, 1]),
        lambda: kernels.filter_batches(TWO_RECORDS, np.ones(3, bool), keep_last_batch=True),
        lambda: kernels.filter_batches(TWO_RECORDS, np.ones(2, int), keep_last_batch=True),
        lambda: kernels.filter_batches(TWO_RECORDS[:-1], np.ones(0, bool), keep_last_batch=True),
        lambda: kernels.gather(b"abc", np.array([1]), np.array([3])),
        lambda: kernels.gather(b"abc", np.array([-1]), np.array([1])),
        lambda: kernels.gather(b"abc", np.array([1, 1]), np.array([1])),
        lambda: kernels.decode_columns(TWO_RECORDS, table=kernels.scan_batches(TWO_RECORDS + COMMIT_MARKER)),
    ],
)
def test_invalid_arguments_raise_invalid_request(call):
    with pytest.raises(InvalidRequest):
        call()


def test_other_buffer_and_integer_types_are_encoded():
    batch = encode_batch([(bytearray(b"k"), memoryview(b"v"), np.int64(T0), [("h", bytearray(b"x"))])])
    assert (
        decoded(memoryview(batch))
        == decoded(bytearray(batch))
        == [StoredRecord(0, T0, CREATE, b"k", b"v", (("h", b"x"),))]
    )


def test_gather_copies_ranges_next_to_each_other():
    offsets, data = kernels.gather(b"abcdef", np.array([4, 0, 2, 6]), np.array([2, -1, 3, 0]))
    assert (offsets.tolist(), data.tobytes()) == ([0, 2, 2, 5, 5], b"efcde")
    assert (offsets.dtype, data.dtype) == (np.int32, np.uint8)


# -- filtering


def kept(data, flags, *, keep_last_batch=True):
    return kernels.filter_batches(data, np.array(flags, bool), keep_last_batch=keep_last_batch)


def test_batches_that_keep_all_records_are_copied_byte_for_byte():
    data = TWO_RECORDS + COMMIT_MARKER
    assert kept(data, [1, 1, 0]) == data


@pytest.mark.parametrize("codec", Codec)
def test_a_filtered_batch_keeps_its_offsets_its_producer_and_its_codec(codec):
    records = [(b"k%d" % i, b"v" * 100, T0 + 10 * i) for i in range(10)]
    data = encode_batch(
        records,
        base_offset=50,
        leader_epoch=3,
        codec=codec,
        producer_id=7,
        producer_epoch=2,
        base_sequence=11,
        is_transactional=True,
    )
    made = kept(data, [0, 0, 1, 0, 1, 0, 0, 0, 0, 0])
    before, after = header_of(data), header_of(made)
    for name in (
        "base_offset",
        "last_offset",
        "leader_epoch",
        "attributes",
        "producer_id",
        "producer_epoch",
        "base_sequence",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert (after.record_count, after.base_timestamp_ms, after.max_timestamp_ms) == (2, T0 + 20, T0 + 40)
    assert [(r.offset, r.timestamp_ms, r.key) for r in decoded(made)] == [(52, T0 + 20, b"k2"), (54, T0 + 40, b"k4")]


def test_a_filtered_batch_with_log_append_time_keeps_its_time():
    data = encode_batch([(b"%d" % i, b"", i) for i in range(4)], timestamp_type=APPEND, append_time_ms=T0)
    made = kept(data, [0, 1, 0, 1])
    assert header_of(made).max_timestamp_ms == T0
    assert [(r.offset, r.timestamp_ms) for r in decoded(made)] == [(1, T0), (3, T0)]
    assert decoded(kept(made, [0, 1]))[0].timestamp_ms == T0


def test_a_filtered_batch_with_a_delete_horizon_keeps_it():
    both = read_header(DELETE_HORIZON)
    assert both is not None
    section = encode_batch([(b"a", b"", 5), (b"b", b"", 9)])[HEADER_BYTES:]
    data = seal(both._replace(record_count=2, base_timestamp_ms=10_000), section)
    made = kept(data, [0, 1])
    assert header_of(made).base_timestamp_ms == 10_000
    assert [(r.offset, r.timestamp_ms) for r in decoded(made)] == [(101, 10_004)]


def test_a_batch_without_remaining_records_is_kept_only_at_the_end():
    first = encode_batch([(b"a", b"", T0)] * 2)
    last = encode_batch(
        RECORDS, base_offset=100, leader_epoch=7, producer_id=9, producer_epoch=3, base_sequence=41, codec=Codec.LZ4
    )
    assert kept(first + last, [0, 0, 0, 0]) == RETAINED_EMPTY
    assert kept(first + last, [0, 0, 0, 0], keep_last_batch=False) == b""
    assert kept(RETAINED_EMPTY, []) == RETAINED_EMPTY


def test_a_filter_refuses_batches_with_a_wrong_checksum():
    first = encode_batch(RECORDS)
    for codec in (Codec.NONE, Codec.ZSTD):
        second = bytearray(encode_batch(RECORDS, base_offset=2, codec=codec))
        second[-3] ^= 1
        for flags in ([1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]):
            with pytest.raises(Corrupt, match="crc differs") as caught:
                kept(first + bytes(second), flags, keep_last_batch=False)
            assert caught.value.facts["at"] == len(first)
