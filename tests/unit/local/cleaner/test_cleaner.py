"""The cleaner: it keeps the newest record of every key with its offset and leaves segments below `clean_from` alone."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
from disk_model import ModelDisk

from local import kernels
from local.cleaner import cleaner
from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import HEADER_BYTES, seal
from local.format.compression import Codec
from local.format.record import Record, StoredRecord
from local.log import Log
from local.names import TopicPartition
from local.records.batch import encode_batch, read_header
from local.segment.segment import Segment
from local.settings import LogSettings

NAME = TopicPartition("t", 0)


def settings(codec: Codec = Codec.NONE) -> LogSettings:
    return LogSettings(
        segment_bytes=1500, index_interval_bytes=200, batch_bytes=300, is_compacted=True, compression=codec
    )


def open_log(disk: ModelDisk, codec: Codec = Codec.NONE) -> Log:
    log = Log.open(disk, "./t-0", NAME, settings(codec), now_ms=0)
    log.cleaner_offset = log.cleaner_offset or 0
    return log


def append(log: Log, rng: random.Random, count: int, keys: int) -> list[Record]:
    sent = []
    for _ in range(count):
        value = None if rng.random() < 0.1 else b"%d" % rng.randrange(10**6)
        sent.append(Record(b"k%d" % rng.randrange(keys), value, rng.randrange(10**6)))
    for at in range(0, count, 7):
        log.append(sent[at : at + 7], now_ms=0)
    return sent


def read_all(log: Log) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    at = log.local_log_start_offset
    while data := log.read(at, 1000):
        columns = kernels.decode_columns(data)
        found += list(columns.records())
        at = columns.next_offset
    return found


def newest(records: list[tuple[int, bytes | None]]) -> dict[bytes | None, int]:
    return {key: offset for offset, key in records}


@pytest.mark.parametrize("codec", list(Codec))
def test_only_the_newest_record_of_every_key_remains_at_its_offset(codec: Codec) -> None:
    rng = random.Random(3)
    log = open_log(ModelDisk(), codec)
    sent = append(log, rng, 300, 20)
    log.roll(now_ms=0)
    result = cleaner.clean(log, clean_from=0, now_ms=0)
    assert result is not None
    expected = newest([(at, record.key) for at, record in enumerate(sent)])
    found = read_all(log)
    assert {record.key: record.offset for record in found} == expected
    assert len(found) == len(expected) == result.records_after
    assert [(r.key, r.value, r.timestamp_ms) for r in found] == [sent[r.offset][:3] for r in found]
    assert log.next_offset == 300
    assert log.cleaner_offset == 300


def test_a_tombstone_that_is_the_newest_record_of_its_key_remains() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    log.append([Record(b"a", b"1", 0), Record(b"b", b"1", 0), Record(b"a", None, 0)], now_ms=0)
    log.roll(now_ms=0)
    cleaner.clean(log, clean_from=0, now_ms=0)
    assert [(r.offset, r.key, r.value) for r in read_all(log)] == [(1, b"b", b"1"), (2, b"a", None)]


def test_the_active_segment_is_not_cleaned() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    log.append([Record(b"a", b"1", 0)], now_ms=0)
    log.roll(now_ms=0)
    log.append([Record(b"a", b"2", 0)], now_ms=0)
    cleaner.clean(log, clean_from=0, now_ms=0)
    assert [r.offset for r in read_all(log)] == [0, 1]
    assert log.cleaner_offset == 1


def test_a_segment_that_fills_and_rolls_during_a_pass_is_not_cleaned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The active segment is empty at the start of the pass, and the pass ends at its base offset.
    1. While its facts are read, records are appended to the segment.
    2. The pass must not clean it: the offset map does not contain these records."""
    log = open_log(ModelDisk())
    append(log, random.Random(4), 40, 3)
    log.roll(now_ms=0)
    end, grown = log.next_offset, []

    def latest(segment: Segment) -> int | None:
        """Called for each segment while facts are gathered."""
        if segment.base_offset == end and not grown:
            grown.extend(Record(b"late %d" % (number % 2), b"%d" % number, 0) for number in range(6))
            for record in grown:
                log.append([record], now_ms=0)
        return told(segment)

    def roll() -> bool:
        """Called between two steps of the pass. A clean of the segment would lose the records appended here."""
        if len(grown) == 6:
            grown.append(Record(b"last", b"6", 0))
            log.append(grown[-1:], now_ms=0)
            log.roll(now_ms=0)
        return False

    told = Segment.max_timestamp_ms.fget
    assert told is not None
    monkeypatch.setattr(Segment, "max_timestamp_ms", property(latest))
    cleaned = cleaner.clean(log, upto_offset=end, now_ms=0, should_stop=roll)
    assert cleaned is not None
    assert cleaned.cleaner_offset == end
    assert len(grown) == 7, "the test must append and roll during the pass"
    assert [record.value for record in read_all(log) if record.offset >= end] == [record.value for record in grown]


def test_the_facts_of_the_last_segment_in_a_view_are_consistent() -> None:
    """A closed segment with the end offset of its time as active segment would be cleaned or copied only in part."""
    log = open_log(ModelDisk())
    append(log, random.Random(5), 20, 3)
    log.roll(now_ms=0)
    seen = [log.view]
    log.append([Record(b"k", b"v", 0)], now_ms=0)
    seen.append(log.view)
    log.append([Record(b"k", b"w", 0)], now_ms=0)
    log.roll(now_ms=0)
    empty, grown = (view.infos(None)[-1] for view in seen)
    assert (empty.base_offset, empty.next_offset, empty.is_empty, empty.is_active) == (20, 20, True, True)
    assert (grown.base_offset, grown.next_offset, grown.is_active) == (20, 21, True)
    assert 0 < grown.size_bytes < log.segments()[-2].size_bytes


def test_a_later_pass_removes_records_that_an_earlier_pass_kept() -> None:
    rng = random.Random(4)
    disk = ModelDisk()
    log = open_log(disk)
    sent: list[Record] = []
    for _ in range(5):
        sent += append(log, rng, 60, 10)
        log.roll(now_ms=0)
        cleaner.clean(log, clean_from=0, now_ms=0)
        log.remove_deleted(0)
        expected = newest([(at, record.key) for at, record in enumerate(sent)])
        assert {record.key: record.offset for record in read_all(log)} == expected
        assert len(read_all(log)) == len(expected)


def test_segments_below_clean_from_keep_their_bytes() -> None:
    rng = random.Random(5)
    disk = ModelDisk()
    log = open_log(disk)
    append(log, rng, 200, 5)
    log.roll(now_ms=0)
    boundary = log.segments()[2].base_offset
    frozen = {name: bytes(i.data) for name, i in disk.names.items() if name.endswith(".log") and _base(name) < boundary}
    cleaner.clean(log, clean_from=boundary, now_ms=0)
    assert len(frozen) == 2
    assert {name: bytes(disk.names[name].data) for name in frozen} == frozen
    assert [info.base_offset for info in log.segments()][:3] == [*sorted({_base(name) for name in frozen}), boundary]


def test_small_neighbouring_segments_are_merged_and_keep_their_offset_range() -> None:
    rng = random.Random(6)
    disk = ModelDisk()
    log = open_log(disk)
    append(log, rng, 300, 5)
    log.roll(now_ms=0)
    before = len(log.segments())
    cleaner.clean(log, clean_from=0, now_ms=0)
    infos = log.segments()
    assert len(infos) == 2 < before
    assert (infos[0].base_offset, infos[0].next_offset) == (0, 300)
    reopened = open_log(disk)
    assert [(i.base_offset, i.next_offset) for i in reopened.segments()] == [(0, 300), (300, 300)]


def test_a_pass_without_dirty_segments_has_no_effect_on_the_disk() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    append(log, random.Random(7), 50, 5)
    log.roll(now_ms=0)
    assert cleaner.clean(log, clean_from=0, now_ms=0) is not None
    effects = disk.effects
    assert cleaner.clean(log, clean_from=0, now_ms=0) is None
    assert disk.effects == effects


def test_a_corrupt_batch_aborts_the_pass_and_nothing_changes() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    append(log, random.Random(8), 100, 5)
    log.roll(now_ms=0)
    path = log.segment(0).path(".log")
    disk.names[path].data[100] ^= 1
    before = {name: bytes(inode.data) for name, inode in disk.names.items()}
    with pytest.raises(Corrupt):
        cleaner.clean(log, clean_from=0, now_ms=0)
    assert {name: bytes(inode.data) for name, inode in disk.names.items()} == before
    assert not log.cleaner_offset


# -- which segments are merged


def wide(disk: ModelDisk, limits: LogSettings) -> Log:
    return Log.open(disk, "./t-0", NAME, limits, now_ms=0)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("large_bytes", [400, 900])
def test_merged_segments_stay_within_segment_bytes_for_any_size_of_remaining_records(
    codec: Codec, large_bytes: int
) -> None:
    """The few remaining records hold nearly all bytes, so their share of the record count does not predict the size."""
    rng = random.Random(9)
    disk = ModelDisk()
    limits = replace(settings(codec), segment_bytes=5000, batch_bytes=2000)
    log = wide(disk, limits)
    for at in range(40):
        small = [Record(b"hot", b"", 0)] * 50
        log.append([*small, Record(b"cold%d" % at, rng.randbytes(large_bytes), 0), *small], now_ms=0)
    log.roll(now_ms=0)
    before = len(log.segments())
    result = cleaner.clean(log, clean_from=0, now_ms=0)
    assert result is not None
    assert result.records_after == 41
    sizes = [info.size_bytes for info in log.segments()[:-1]]
    assert max(sizes) <= limits.segment_bytes
    assert len(sizes) < before
    assert sum(sizes) == result.bytes_after
    for first, second in pairwise(sizes):
        assert codec is not Codec.NONE or first + second > limits.segment_bytes - large_bytes - 200


def test_headers_count_towards_the_size_of_a_merged_segment() -> None:
    disk = ModelDisk()
    limits = replace(settings(), segment_bytes=5000, batch_bytes=2000)
    log = wide(disk, limits)
    for at in range(30):
        log.append([*[Record(b"hot", b"", 0)] * 50, Record(b"c%d" % at, b"", 0, (("h", bytes(700)),))], now_ms=0)
    log.roll(now_ms=0)
    cleaner.clean(log, clean_from=0, now_ms=0)
    sizes = [info.size_bytes for info in log.segments()[:-1]]
    assert max(sizes) <= limits.segment_bytes
    assert len(sizes) == 5


def test_a_segment_above_the_limit_is_not_merged() -> None:
    disk = ModelDisk()
    log = wide(disk, replace(settings(), segment_bytes=100_000))
    log.append([Record(b"a", b"", 0), Record(b"b", bytes(6000), 0)], now_ms=0)
    log.roll(now_ms=0)
    log.append([Record(b"a", b"", 0)], now_ms=0)
    log.roll(now_ms=0)
    log.settings = replace(log.settings, segment_bytes=2000)
    cleaner.clean(log, clean_from=0, now_ms=0)
    assert [info.base_offset for info in log.segments()] == [0, 2, 3]
    assert [r.offset for r in read_all(log)] == [1, 2]


def tightly_packed(disk: ModelDisk, count: int) -> Log:
    """Closed segments of one batch each, compressed at the highest level, and a last one that supersedes a key in
    each."""
    log = wide(disk, replace(settings(Codec.ZSTD), segment_bytes=1 << 20, max_message_bytes=1 << 20))
    rng = random.Random(1)
    words = [rng.randbytes(5) for _ in range(300)]
    for at in range(count):
        text = b"".join(rng.choice(words) for _ in range(60_000))
        records = [Record(b"hot", b"", 0), Record(b"cold%d" % at, text, 0)]
        log.append_encoded([bytearray(encode_batch(records, codec=Codec.ZSTD, level=19))], now_ms=0)
        log.roll(now_ms=0)
    log.append([Record(b"hot", b"", 0)], now_ms=0)
    log.roll(now_ms=0)
    return log


def test_merged_segments_stay_within_the_limit_if_their_records_compress_worse() -> None:
    """The cleaner compresses at the default level: two segments that fit into one by estimate exceed it."""
    disk = ModelDisk()
    log = tightly_packed(disk, 2)
    limit = sum(info.size_bytes for info in log.segments()[:-1]) + 3 * HEADER_BYTES
    log.settings = replace(log.settings, segment_bytes=limit)
    cleaner.clean(log, clean_from=0, now_ms=0)
    infos = log.segments()[:-1]
    assert len(infos) > 1
    assert max(info.size_bytes for info in infos) <= limit
    assert [r.offset for r in read_all(log)] == [1, 3, 4]
    assert not [name for name in disk.names if name.endswith(".cleaned")]
    reopened = wide(disk, log.settings)
    assert [i.base_offset for i in reopened.segments()[:-1]] == [i.base_offset for i in infos]


def test_a_segment_that_grows_by_cleaning_is_cleaned_and_no_deleted_key_returns() -> None:
    """If the segment were skipped although it is below the checkpoint, its old record would return with the tombstone's
    removal."""
    disk = ModelDisk()
    log = tightly_packed(disk, 1)
    log.append([Record(b"hot", None, 0)], now_ms=0)
    log.roll(now_ms=0)
    log.settings = replace(log.settings, segment_bytes=1000)
    before = log.segments()[0].size_bytes
    for now_ms in range(4):
        result = cleaner.clean(log, now_ms=now_ms, delete_retention_ms=1, tombstones_below=None)
        assert result is not None
        assert log.segments()[0].size_bytes > before > 1000
        assert b"hot" not in {record.key for record in read_all(log) if record.value is not None}
        log.append([Record(b"next", b"", 0)], now_ms=0)
        log.roll(now_ms=0)
    assert b"hot" not in {record.key for record in read_all(log)}
    assert not [name for name in disk.names if name.endswith(".cleaned")]


def test_a_cleaned_segment_above_the_largest_position_is_an_error_and_stays_dirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = ModelDisk()
    log = tightly_packed(disk, 1)
    before = [(info.base_offset, info.size_bytes) for info in log.segments()]
    monkeypatch.setattr(cleaner, "POSITION_MAX", before[0][1])
    with pytest.raises(InvalidRequest, match="larger than the maximum segment size"):
        cleaner.clean(log, now_ms=0)
    assert not log.cleaner_offset
    assert [(info.base_offset, info.size_bytes) for info in log.segments()] == before
    assert not [name for name in disk.names if name.endswith(".cleaned")]


def test_both_indexes_of_a_merged_segment_stay_within_segment_index_bytes() -> None:
    disk = ModelDisk()
    limits = replace(settings(), index_interval_bytes=1, segment_index_bytes=200, segment_bytes=100_000)
    log = wide(disk, limits)
    for at in range(200):
        log.append([Record(b"hot", b"", at), Record(b"cold%d" % at, b"", at)], now_ms=0)
    log.roll(now_ms=0)
    cleaner.clean(log, clean_from=0, now_ms=0)
    files = [name for name in disk.names if name.endswith("index")]
    assert max(len(disk.names[name].data) for name in files) <= 200
    assert len(read_all(log)) == 201


@pytest.mark.parametrize(("next_offset", "are_merged"), [(2**31, True), (2**31 + 1, False), (2**31 + 2**29, False)])
def test_segments_are_merged_only_if_relative_offsets_fit_the_index_entries(next_offset: int, are_merged: bool) -> None:
    second = 2**30
    header = read_header(encode_batch([(b"b", b"", 5)], base_offset=second))
    assert header is not None
    section = encode_batch([(b"b", b"", 5)])[HEADER_BYTES:]
    disk = ModelDisk()
    disk.make_directory("./t-0")
    for base, batch in (
        (0, encode_batch([(b"a", b"", 3), (b"b", b"", 4)])),
        (second, seal(header._replace(last_offset_delta=next_offset - 1 - second), section)),
        (next_offset, encode_batch([(b"c", b"", 6)], base_offset=next_offset)),
    ):
        disk.create(f"./t-0/{base:020}.log").append(batch)
    log = open_log(disk)
    log.roll(now_ms=0)
    cleaner.clean(log, clean_from=0, upto_offset=next_offset, now_ms=0)
    bases = [info.base_offset for info in log.segments()]
    assert bases == ([0, next_offset, next_offset + 1] if are_merged else [0, second, next_offset, next_offset + 1])
    assert [r.offset for r in read_all(log)] == [0, second, next_offset]
    assert log.offset_for_timestamp(5) == second


# -- memory


def test_a_segment_that_inflates_to_over_a_gibibyte_is_cleaned_in_bounded_memory() -> None:
    disk = ModelDisk()
    log = wide(disk, replace(settings(Codec.ZSTD), segment_bytes=1 << 20, max_message_bytes=1 << 20))
    batch = encode_batch([(b"k", bytes(1 << 20), 1), (b"k", b"", 1)], codec=Codec.ZSTD)
    for _ in range(1100):
        log.append_encoded([bytearray(batch)], now_ms=0)
    log.roll(now_ms=0)
    tracemalloc.start()
    result = cleaner.clean(log, clean_from=0, now_ms=0)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result is not None
    assert result.records_after == 1
    assert [r.offset for r in read_all(log)] == [2199]
    assert peak < 2.5 * kernels.STEP_BYTES


@pytest.mark.parametrize("left", [10, 100])
def test_a_closed_segment_that_ends_inside_a_batch_is_corrupt_and_not_changed(left: int) -> None:
    disk = ModelDisk()
    log = wide(disk, replace(settings(), segment_bytes=100_000))
    log.append([Record(b"a", b"", 0)], now_ms=0)
    log.append([Record(b"a", bytes(100), 0)], now_ms=0)
    log.roll(now_ms=0)
    del disk.names[log.segment(0).path(".log")].data[left:]
    with pytest.raises(Corrupt, match="ends inside a batch"):
        cleaner.clean(log, clean_from=0, now_ms=0)
    assert len(log.segments()) == 2


def _base(name: str) -> int:
    return int(name.rpartition("/")[2][:20])
