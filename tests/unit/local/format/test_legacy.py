"""Message formats 0 and 1: read like batches, cleaned into batches, and refused by appends and copies."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from disk_model import ModelDisk
from legacy_samples import APPEND, many, message, wrapper
from log_world import SMALL, fill, header_of, open_log, read_all

from local.cleaner import cleaner
from local.errors import Corrupt, InvalidRequest
from local.format.columns import TORN
from local.format.compression import Codec, compress, mended_lz4
from local.format.record import StoredRecord, TimestampType
from local.kernels import dispatch as kernels
from local.kernels.pure_kernels import DROP, REBUILD
from local.log import Log
from local.log.leader_epochs import LeaderEpochs
from local.records.batch import assign_offset, encode_batch, read_header
from local.settings import LogSettings
from tiered.partition.segment_inspection import segment_to_copy

LOG = "./t-0/00000000000000000000.log"
# Golden bytes of kafka-python's builder: offset 7, key "k", value "old", format 0; and format 1 at 1700000000000.
V0 = bytes.fromhex("0000000000000007 00000012 99e87370 00 00 00000001 6b 00000003 6f6c64".replace(" ", ""))
V1 = bytes.fromhex(
    "0000000000000007 0000001a 6bd5507c 01 00 0000018bcfe56800 00000001 6b 00000003 6f6c64".replace(" ", "")
)


def read(data: bytes, **options: object) -> list[StoredRecord]:
    return list(kernels.decode_columns(data, **options).records())  # type: ignore[arg-type]


def short(record: StoredRecord) -> tuple[int, int, bytes | None, bytes | None]:
    return record.offset, record.timestamp_ms, record.key, record.value


def on_disk(data: bytes) -> ModelDisk:
    disk = ModelDisk()
    disk.make_directory("./t-0")
    disk.create(LOG).append(data)
    return disk


# -- one message


@pytest.mark.parametrize(("golden", "magic", "time"), [(V0, 0, -1), (V1, 1, 1_700_000_000_000)])
def test_the_golden_messages_of_formats_0_and_1_are_decoded(golden: bytes, magic: int, time: int) -> None:
    assert message(magic, 7, b"k", b"old", timestamp_ms=time) == golden
    assert [short(record) for record in read(golden)] == [(7, time, b"k", b"old")]
    header = header_of(golden)
    assert (header.magic, header.base_offset, header.next_offset, header.record_count) == (magic, 7, 8, 1)
    assert (header.size_bytes, header.max_timestamp_ms) == (len(golden), time)
    assert (header.leader_epoch, header.producer_id, header.is_control, header.is_transactional) == (
        -1,
        -1,
        False,
        False,
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_null_and_empty_keys_and_values_differ(magic: int) -> None:
    data = message(magic, 0, None, None) + message(magic, 1, b"", b"")
    assert [record[3:5] for record in read(data)] == [(None, None), (b"", b"")]


def test_attribute_bits_of_format_2_are_ignored_in_formats_0_and_1() -> None:
    header = read_header(message(1, 0, b"k", b"v", timestamp_ms=5, attributes=0x70))
    assert header is not None
    assert (header.attributes, header.is_control, header.is_transactional) == (0, False, False)
    assert read_header(message(0, 0, b"k", b"v", attributes=APPEND)).attributes == 0  # type: ignore[union-attr]


def test_an_uncompressed_message_has_its_own_log_append_time() -> None:
    (record,) = read(message(1, 0, b"k", b"v", timestamp_ms=77, attributes=APPEND))
    assert (record.timestamp_ms, record.timestamp_type) == (77, TimestampType.LOG_APPEND_TIME)


# -- a wrapper (a compressed set of messages)


def test_offsets_inside_a_wrapper_are_absolute_in_format_0() -> None:
    data = wrapper(0, [message(0, at, b"k", b"%d" % at) for at in (10, 12, 15)], 15)
    assert [short(record)[:2] for record in read(data)] == [(10, -1), (12, -1), (15, -1)]
    table = kernels.scan_batches(data)
    assert (table.base_offsets.tolist(), table.last_offsets.tolist(), table.record_counts.tolist()) == ([10], [15], [3])


def test_offsets_inside_a_wrapper_of_format_1_are_relative_and_times_are_per_message() -> None:
    inner = [message(1, at, b"k", b"v", timestamp_ms=100 - at) for at in (0, 2, 5)]
    data = wrapper(1, inner, 1005, timestamp_ms=100)
    assert [short(record)[:2] for record in read(data)] == [(1000, 100), (1002, 98), (1005, 95)]
    assert kernels.scan_batches(data).max_timestamps.tolist() == [100]


def test_relative_offsets_in_a_wrapper_may_begin_above_0_after_compaction() -> None:
    data = wrapper(1, [message(1, at, b"k", b"v", timestamp_ms=1) for at in (3, 4)], 1004, timestamp_ms=1)
    assert [record.offset for record in read(data)] == [1003, 1004]


def test_log_append_time_of_a_wrapper_applies_to_all_its_messages() -> None:
    inner = [message(1, at, b"k", b"v", timestamp_ms=at) for at in range(3)]
    records = read(wrapper(1, inner, 2, timestamp_ms=777, attributes=APPEND))
    assert [(r.timestamp_ms, r.timestamp_type) for r in records] == [(777, TimestampType.LOG_APPEND_TIME)] * 3


GOOD = [message(1, 0, b"k", b"v", timestamp_ms=1), message(1, 1, b"k", b"w", timestamp_ms=2)]
BAD_SETS = {
    "formats mixed": [GOOD[0], message(0, 1, b"k", b"a value that makes it long enough for either")],
    "ends inside a message": [GOOD[0], GOOD[1][:-1]],
    "ends inside a header": [GOOD[0], GOOD[1][:20]],
    "an empty set": [],
    "its offsets decrease": [GOOD[1], GOOD[0]],
    "offsets repeat": [GOOD[0], GOOD[0]],
    "a set within a set": [wrapper(1, GOOD, 1)],
    "crc of an inner message differs": [GOOD[0], GOOD[1][:-1] + b"x"],
    "inner size below its least": [GOOD[0], GOOD[1][:8] + b"\0\0\0\x15" + GOOD[1][12:]],
    "inner size far away": [GOOD[0], GOOD[1][:8] + b"\x7f\xff\xff\xff" + GOOD[1][12:]],
    "inner key leaves the message": [GOOD[0], GOOD[1][:26] + b"\0\0\0\x7f" + GOOD[1][30:]],
    "inner key length below -1": [GOOD[0], GOOD[1][:26] + b"\xff\xff\xff\xfe" + GOOD[1][30:]],
}


@pytest.mark.parametrize("case", BAD_SETS)
def test_an_invalid_message_set_is_corrupt_and_the_error_names_its_position(case: str) -> None:
    before = message(1, 5, b"k", b"v", timestamp_ms=1)
    bad = wrapper(1, BAD_SETS[case], 9, timestamp_ms=2)
    with pytest.raises(Corrupt) as caught:
        read(before + bad)
    assert (caught.value.facts["at"], caught.value.facts["base_offset"]) in {(len(before), 9), (len(before), 8)}


def test_a_wrapper_without_value_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="has no value"):
        read(message(1, 3, None, None, timestamp_ms=1, attributes=1))


@pytest.mark.parametrize("codec", [4, 5, 7])
def test_codecs_that_formats_0_and_1_never_had_are_corrupt(codec: int) -> None:
    data = message(1, 3, None, b"x", timestamp_ms=1, attributes=codec)
    assert kernels.scan_batches(data).problem == "no such codec"
    with pytest.raises(Corrupt, match="no such codec"):
        read(data)


def test_a_decompression_bomb_in_a_wrapper_is_stopped_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INFLATED_BYTES_MAX", 1 << 20)
    data = wrapper(1, [message(1, 0, b"k", bytes(32 << 20), timestamp_ms=1)], 0, timestamp_ms=1)
    tracemalloc.start()
    with pytest.raises(Corrupt, match="cannot decompress"):
        read(data)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


# -- damage


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrong_checksum_is_found_by_the_scan_and_by_the_decoding(magic: int) -> None:
    data = bytearray(many(magic, 3))
    at = 2 * len(data) // 3
    data[-1] ^= 1
    table = kernels.scan_batches(data)
    assert (len(table), table.valid_bytes, table.problem) == (2, at, "crc differs")
    for call in (lambda: read(bytes(data)), lambda: list(kernels.decode_in_steps(data))):
        with pytest.raises(Corrupt, match="crc differs") as caught:
            call()
        assert caught.value.facts["at"] == at
    with pytest.raises(Corrupt, match="crc differs"):
        kernels.decode_columns(data, table=kernels.scan_batches(data, verify=False))
    assert len(read(bytes(data), verify=False)) == 3


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_cut_at_any_byte_are_a_torn_tail_and_whole_ones_are_read(magic: int) -> None:
    data = many(magic, 2)
    size = len(data) // 2
    for cut in range(1, len(data)):
        table = kernels.scan_batches(data[:cut])
        assert (len(table), table.problem) == (cut // size, None if cut % size == 0 else TORN)


SIZES = {"below the least": -1, "none": 0, "negative": -(2**31), "above 2^31-13": 2**31 - 1}


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("magic", [0, 1])
def test_impossible_message_sizes_are_corrupt_and_not_a_torn_tail(magic: int, case: str) -> None:
    length = SIZES[case] if case != "below the least" else (13, 21)[magic]
    data = bytearray(many(magic, 1))
    struct.pack_into(">i", data, 8, length)
    assert kernels.scan_batches(data).is_corrupt
    if case != "above 2^31-13":
        with pytest.raises(Corrupt, match="length is below"):
            read_header(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_size_past_the_end_is_a_torn_tail(magic: int) -> None:
    data = bytearray(many(magic, 2))
    struct.pack_into(">i", data, len(data) // 2 + 8, 2**30)
    assert (len(kernels.scan_batches(data)), kernels.scan_batches(data).problem) == (1, TORN)


def test_an_offset_that_decreases_ends_the_scan() -> None:
    for data in (
        many(1, 2, start=5) + many(1, 1, start=6),
        many(1, 2, start=5) + encode_batch([(b"k", b"v", 1)], base_offset=6),
        many(1, 2, start=5) + wrapper(1, GOOD, 7),
    ):
        table = kernels.scan_batches(data)
        assert (len(table), table.problem) == (2, "offset goes back")
    assert kernels.scan_batches(message(0, -1, None, None)).problem == "offset outside 0..2^63"


# -- mixed with batches


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_and_batches_are_read_as_one_stream(magic: int) -> None:
    new = encode_batch([(b"a", b"new", 7), (None, None, 8)], base_offset=10, leader_epoch=3)
    data = many(magic, 4) + new + many(1, 2, start=12) + encode_batch([(b"z", b"z", 9)], base_offset=14)
    assert [record.offset for record in read(data)] == [0, 1, 2, 3, 10, 11, 12, 13, 14]
    steps = list(kernels.decode_in_steps(data, step_bytes=1))
    assert [r for step in steps for r in step.records()] == read(data)
    table = kernels.scan_batches(data)
    assert table.magics.tolist() == [magic] * 4 + [2, 1, 1, 2]
    assert [table.row(at) for at in range(8)] == [read_header(data, int(at)) for at in table.positions]
    assert kernels.scan_batches(data, position=int(table.positions[4])).magics.tolist() == [2, 1, 1, 2]


def test_bytes_of_an_unknown_format_behind_an_old_message_end_the_scan() -> None:
    data = many(0, 1)
    assert kernels.scan_batches(data + b"\x03" * 40).problem == "magic 3"
    assert kernels.scan_batches(data + bytes(100)).problem == "length below 14"


# -- refused by appends


def test_old_messages_are_refused_by_offset_assignment_and_by_appends() -> None:
    data = many(1, 2)
    with pytest.raises(InvalidRequest, match="the batch is not of format 2"):
        assign_offset(bytearray(data), 5, 0)
    log = open_log(ModelDisk())
    with pytest.raises(InvalidRequest, match="not of format 2"):
        log.append_encoded([bytearray(many(1, 1))], now_ms=1)
    assert log.next_offset == 0


# -- in a log


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_of_an_old_broker_is_opened_read_and_appended_to(magic: int, clean: bool) -> None:
    disk = on_disk(many(magic, 50) + b"".join(wrapped(magic, start) for start in range(50, 80, 3)))
    log = open_log(disk, was_clean=clean)
    assert log.next_offset == 80
    fill(log, 20, start=80)
    assert [record.value for record in read_all(log)] == [b"value %d" % at for at in range(100)]
    for offset in range(100):
        assert read_all(log, offset)[0].offset == offset
    if magic:
        assert log.offset_for_timestamp(5030) == 30
    log.close()
    again = open_log(disk, was_clean=clean)
    assert [record.offset for record in read_all(again)] == list(range(100))
    seen = open_log(disk, read_only=True)
    assert [record.offset for record in read_all(seen)] == list(range(100))


def wrapped(magic: int, start: int) -> bytes:
    inner = [many(magic, 1, start=at) for at in range(start, start + 3)]
    if magic:
        inner = [struct.pack(">q", at) + each[8:] for at, each in enumerate(inner)]
    return wrapper(magic, inner, start + 2, timestamp_ms=5000 + start + 2)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_torn_old_message_is_truncated_only_above_the_recovery_point(magic: int) -> None:
    data = many(magic, 20)
    assert open_log(on_disk(data[:-3])).next_offset == 19
    disk = on_disk(data[:-3])
    with pytest.raises(Corrupt, match="below the recovery point"):
        open_log(disk, recovery_point=20)
    assert bytes(disk.names[LOG].data) == data[:-3]


def test_the_age_of_an_old_segment_counts_from_its_first_message() -> None:
    log = open_log(on_disk(many(1, 3)), LogSettings(segment_ms=1000))
    log.append([(b"k", b"v", 5999)], now_ms=1)  # type: ignore[list-item]
    assert len(log.segments()) == 1
    log.append([(b"k", b"v", 6001)], now_ms=1)  # type: ignore[list-item]
    assert len(log.segments()) == 2


def sealed(data: bytes, settings: LogSettings = SMALL) -> tuple[ModelDisk, Log]:
    disk = on_disk(data)
    log = open_log(disk, settings)
    log.roll(now_ms=1)
    fill(log, 10, start=log.next_offset)
    return disk, log


def test_a_segment_with_old_messages_is_not_copied_and_the_error_names_it() -> None:
    disk, log = sealed(encode_batch([(b"a", b"b", 1)]) + many(1, 2, start=1))
    with pytest.raises(
        InvalidRequest, match=r"format 0 or 1 cannot be tiered: path=\./t-0/0{20}\.log at=\d+"
    ) as caught:
        segment_to_copy(log, log.segments()[0]).inspect().take(memoryview(disk.read(LOG)))
    assert caught.value.facts["at"] == len(encode_batch([(b"a", b"b", 1)]))
    assert [record.offset for record in read_all(log)] == list(range(13))


# -- cleaned


def filtered(data: bytes, keep: list[bool], **options: object) -> bytes:
    return kernels.filter_batches(data, np.array(keep, np.bool_), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("magic", [0, 1])
def test_each_remaining_uncompressed_message_becomes_one_batch(magic: int) -> None:
    data = many(magic, 3)
    left = filtered(data, [True, False, True], actions=np.array([REBUILD, DROP, REBUILD], np.uint8))
    table = kernels.scan_batches(left)
    assert (table.problem, table.magics.tolist(), table.base_offsets.tolist()) == (None, [2, 2], [0, 2])
    assert [short(record) for record in read(left)] == [short(record) for record in read(data)][::2]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("keep", ["1110", "0111", "0100", "1111", "1001"])
def test_remaining_messages_of_a_wrapper_become_one_batch_with_its_range_and_codec(
    magic: int, codec: Codec, keep: str
) -> None:
    times = (70, 90, 80, 60)
    inner = [
        message(magic, at if magic else 40 + 2 * at, b"k%d" % at, b"v" * at or None, timestamp_ms=time)
        for at, time in enumerate(times)
    ]
    packed = compress(codec, b"".join(inner))
    data = message(magic, 43 if magic else 46, None, packed, timestamp_ms=90, attributes=codec)
    flags = [each == "1" for each in keep]
    left = filtered(data, flags, actions=np.array([REBUILD], np.uint8))
    assert [short(r) for r in read(left)] == [short(r) for r, kept in zip(read(data), flags, strict=True) if kept]
    (header,) = map(read_header, [left])
    assert header is not None
    assert (header.magic, header.codec, header.base_offset, header.last_offset) == (2, codec, 40, 43 if magic else 46)
    assert (header.producer_id, header.leader_epoch, header.size_bytes) == (-1, -1, len(left))
    assert header.max_timestamp_ms == (max(t for t, kept in zip(times, flags, strict=True) if kept) if magic else -1)


def test_a_wrapper_with_log_append_time_keeps_its_time_and_its_offset_gaps() -> None:
    inner = [message(1, at, b"k", b"v", timestamp_ms=5) for at in (3, 5, 9)]
    data = wrapper(1, inner, 109, timestamp_ms=77, attributes=APPEND)
    left = filtered(data, [True, True, False])
    assert [(record.offset, record.timestamp_ms, record.timestamp_type) for record in read(left)] == [
        (103, 77, TimestampType.LOG_APPEND_TIME),
        (105, 77, TimestampType.LOG_APPEND_TIME),
    ]


def test_a_wrapper_without_remaining_messages_becomes_an_empty_batch_of_its_range() -> None:
    data = many(1, 3) + wrapped(1, 3)
    left = filtered(data, [False] * 6, keep_last_batch=True)
    table = kernels.scan_batches(left)
    assert (table.problem, table.magics.tolist(), table.record_counts.tolist()) == (None, [2], [0])
    assert (table.base_offsets[0], table.last_offsets[0], table.leader_epochs[0]) == (3, 5, -1)
    assert kernels.scan_batches(many(0, 3) + left + many(1, 2, start=6)).problem is None


def test_a_damaged_wrapper_aborts_the_pass_and_is_not_changed() -> None:
    bad = wrapper(1, [b"not a message at all"], 20, timestamp_ms=1)
    disk, log = sealed(many(1, 20) + bad, LogSettings(segment_bytes=2000, is_compacted=True))
    before = {name: bytes(file.data) for name, file in disk.names.items()}
    with pytest.raises(Corrupt, match="format 0 or 1"):
        cleaner.clean(log, clean_from=0, now_ms=1)
    assert {name: bytes(file.data) for name, file in disk.names.items()} == before


@pytest.mark.parametrize("magic", [0, 1])
def test_a_segment_of_tiny_messages_may_exceed_its_limit_but_is_not_merged(magic: int) -> None:
    body = b"".join(message(magic, at, b"%d" % at, b"", timestamp_ms=at) for at in range(60))
    disk, log = sealed(body, LogSettings(segment_bytes=len(body), index_interval_bytes=100, is_compacted=True))
    log.roll(now_ms=1)
    done = cleaner.clean(log, clean_from=0, now_ms=1)
    assert done is not None
    assert done.bytes_after > done.bytes_before
    assert [info.base_offset for info in log.segments()] == [0, 60, 70]
    assert not kernels.scan_batches(disk.read(LOG)).has_legacy
    for offset in range(60):
        assert read_all(log, offset)[0].offset == offset


@pytest.mark.parametrize(
    ("modified_ms", "clean_to", "tombstones_below", "stays"),
    [
        (5000, 12, None, False),
        (5001, 12, None, True),
        (5000, 2, None, True),  # it is in the last clean segment itself
        (5000, 0, None, True),  # nothing is clean yet
        (5000, 12, 0, True),  # the remote tier may hold an older record of the key
        (5000, 12, 1, False),
    ],
)
def test_a_tombstone_of_an_old_format_is_removed_by_segment_age_or_gets_a_horizon(
    modified_ms: int, clean_to: int, tombstones_below: int | None, stays: bool
) -> None:
    """Kafka's rule: the segment must be older than the last clean segment by more than `delete.retention.ms`, here 4
    s."""
    _disk, log = sealed(message(1, 0, b"dead", None, timestamp_ms=1) + message(0, 1, b"alive", b"v"))
    log.roll(now_ms=1)
    fill(log, 1, start=12)
    log.roll(now_ms=1)
    log.segment(0).modified_ms, log.segment(2).modified_ms = modified_ms, 9000
    log.cleaner_offset = clean_to
    rules = {"delete_retention_ms": 4000, "tombstones_below": tombstones_below}
    cleaner.clean(log, clean_from=0, now_ms=1 << 50, **rules)  # type: ignore[arg-type]
    found = read_all(log, bytes_max=1 << 20)
    assert [record.key for record in found if record.offset < 2] == ([b"dead"] if stays else []) + [b"alive"]
    table = kernels.scan_batches(log.read(0))
    assert not table.has_legacy
    # Above the tombstone bound the tombstone stays for that reason alone, and gets its horizon later.
    assert table.attributes[0] == (0x40 if stays and tombstones_below is None else 0)


@pytest.mark.parametrize(
    ("known", "covering"),
    [
        ((), ((0, 5),)),
        (((0, 9),), ((0, 5),)),
        (((0, 9), (2, 12)), ((0, 5), (2, 12))),
        (((3, 9),), ((0, 5), (3, 9))),
        (((3, 5),), ((3, 5),)),
        (((1, 2), (3, 9)), ((1, 2), (3, 9))),
    ],
)
def test_records_before_the_first_known_leader_epoch_have_epoch_0(
    known: tuple[tuple[int, int], ...], covering: tuple[tuple[int, int], ...]
) -> None:
    assert LeaderEpochs(known).covering(5).entries == covering


# -- the LZ4 frame of format 0


def test_a_repaired_lz4_header_checksum_equals_the_librarys() -> None:
    import lz4.frame

    for options in ({}, {"store_size": False}, {"block_linked": True}, {"content_checksum": True}, {"block_size": 7}):
        frame = lz4.frame.compress(b"text " * 100, **options)
        assert bytes(mended_lz4(memoryview(frame))) == frame
        at = 6 if options.get("store_size") is False else 14
        broken = frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]
        assert bytes(mended_lz4(memoryview(broken))) == frame
    for cut in (b"", b"\x04\x22\x4d\x18", frame[:9]):
        assert bytes(mended_lz4(memoryview(cut))) == cut


def test_only_format_0_accepts_a_wrong_lz4_header_checksum() -> None:
    import lz4.frame

    for magic in (0, 1):
        inner = many(magic, 2) if magic == 0 else many(1, 1) + struct.pack(">q", 1) + many(1, 1, start=1)[8:]
        frame = bytearray(lz4.frame.compress(inner, store_size=False))
        frame[6] ^= 0xFF
        data = message(magic, 1, None, bytes(frame), timestamp_ms=1, attributes=3)
        if magic == 0:
            assert len(read(data)) == 2
        else:
            with pytest.raises(Corrupt, match="lz4"):
                read(data)
