"""The log of one partition: append, roll, read, drop."""

from __future__ import annotations

import itertools
import threading

import pytest
from disk_model import ModelDisk
from log_world import fill, open_log, read_all

from local import kernels
from local.errors import InvalidRequest, NotFound, OffsetOutOfRange
from local.format.compression import Codec
from local.format.record import Record, TimestampType
from local.index import offset_index, time_index
from local.names import OFFSET_INDEX, TIME_INDEX
from local.records.batch import encode_batch, read_header
from local.segment.segment import Segment
from local.settings import LogSettings
from local.storage import DiskStorage


@pytest.mark.parametrize("codec", list(Codec))
def test_appended_records_are_read_back_from_any_offset(codec: Codec) -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=2000, batch_bytes=300, compression=codec))
    sent = fill(log, 200)
    for start in (0, 1, 9, 10, 57, 199):
        found = read_all(log, start)
        assert [record.offset for record in found] == list(range(start, 200))
        assert [(r.key, r.value, r.timestamp_ms) for r in found] == [record[:3] for record in sent[start:]]
    assert read_all(log, 200) == []


def test_a_read_returns_whole_batches_within_the_limit_and_at_least_one() -> None:
    log = open_log(ModelDisk())
    fill(log, 50)
    for limit in (1, 200, 500, 10_000):
        data = log.read(0, limit)
        table = kernels.scan_batches(data)
        assert table.problem is None
        assert len(table) == 1 or len(data) <= limit


def test_an_offset_outside_the_log_is_refused_with_the_valid_range() -> None:
    log = open_log(ModelDisk())
    fill(log, 20)
    for offset in (-1, 21):
        with pytest.raises(OffsetOutOfRange, match=f"offset={offset} first_offset=0 next_offset=20"):
            log.read(offset)


def test_a_segment_rolls_by_size_and_is_never_empty() -> None:
    log = open_log(ModelDisk())
    fill(log, 300)
    infos = log.segments()
    assert len(infos) > 3
    assert all(0 < info.size_bytes <= 2000 for info in infos)
    assert all(a.next_offset == b.base_offset for a, b in itertools.pairwise(infos))
    assert [info.is_active for info in infos] == [False] * (len(infos) - 1) + [True]


def test_a_segment_rolls_when_record_times_span_more_than_segment_ms() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_ms=100))
    for timestamp in (1000, 1100, 1101):
        log.append([Record(None, b"v", timestamp)], now_ms=0)
    assert [info.base_offset for info in log.segments()] == [0, 2]


def test_a_segment_rolls_when_an_index_is_full() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_index_bytes=24, index_interval_bytes=1))
    fill(log, 100)
    assert len(log.segments()) > 2


def test_offset_index_entries_name_the_last_offset_of_the_batch_at_their_position() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    for info in log.segments()[:-1]:
        segment = log.segment(info.base_offset)
        data = segment.read(0, segment.size_bytes)
        entries = offset_index.entries(segment.index(OFFSET_INDEX), info.base_offset)
        assert entries
        for offset, position in entries:
            header = read_header(data, position)
            assert header is not None
            assert header.next_offset - 1 == offset
        times = time_index.entries(segment.index(TIME_INDEX), info.base_offset)
        assert times[-1][0] == info.max_timestamp_ms


def test_a_drop_raises_the_log_start_and_deletes_the_files_after_the_delay() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    boundary = log.segments()[2].base_offset
    assert log.drop_before(boundary + 1, now_ms=0, delay_ms=50, raises_log_start=True) == 2
    assert log.log_start_offset == log.local_log_start_offset == boundary
    with pytest.raises(OffsetOutOfRange):
        log.read(boundary - 1)
    # Three files per segment, and the producer snapshot at the base of the second segment.
    assert sum(name.endswith(".deleted") for name in disk.names) == 7
    assert log.remove_deleted(49) == 0
    assert log.remove_deleted(50) == 7
    assert not any(name.endswith(".deleted") for name in disk.names)


def test_dropped_files_are_deleted_after_their_delay_even_if_the_clock_jumps() -> None:
    """The clock is years ahead at the time of the drop in the first case, and moves backwards after it in the
    second."""
    year = 365 * 86_400_000
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    log.drop_before(log.segments()[2].base_offset, now_ms=10 * year, delay_ms=50, raises_log_start=True)
    assert [log.remove_deleted(now_ms) for now_ms in (1000, 1049)] == [0, 0]
    assert log.remove_deleted(1050) == 7
    fill(log, 100, start=300)
    log.drop_before(log.segments()[2].base_offset, now_ms=2000, delay_ms=50, raises_log_start=True)
    assert [log.remove_deleted(now_ms) for now_ms in (2049, 1500, 1549)] == [0, 0, 0]
    assert log.remove_deleted(1550) > 0


def test_a_drop_in_a_tiered_log_does_not_raise_the_log_start() -> None:
    log = open_log(ModelDisk(), is_tiered=True)
    fill(log, 300)
    boundary = log.segments()[2].base_offset
    log.drop_before(boundary, now_ms=0, delay_ms=0, raises_log_start=False)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, boundary)


def test_the_active_segment_is_never_dropped() -> None:
    log = open_log(ModelDisk())
    fill(log, 30)
    log.drop_before(1 << 40, now_ms=0, delay_ms=0, raises_log_start=True)
    assert log.segments()[-1].is_active


def test_a_read_of_a_dropped_segment_raises_not_found() -> None:
    log = open_log(ModelDisk())
    fill(log, 300)
    segment = log.segment(0)
    assert segment.read(0, 10)
    log.drop_before(log.segments()[1].base_offset, now_ms=0, delay_ms=0, raises_log_start=True)
    with pytest.raises(NotFound, match="replaced or deleted"):
        segment.read(0, 10)


def test_a_time_lookup_returns_the_first_record_at_or_after_the_time() -> None:
    log = open_log(ModelDisk())
    sent = fill(log, 300, step_ms=10)
    for target in (0, 5000, 5001, 5010, 6500, 7985, 7990):
        expected = next((at for at, record in enumerate(sent) if record.timestamp_ms >= target), None)
        assert log.offset_for_timestamp(target) == expected
    assert log.offset_for_timestamp(8000) is None


def test_a_time_lookup_finds_a_record_before_a_later_but_smaller_timestamp() -> None:
    log = open_log(ModelDisk(), LogSettings(index_interval_bytes=1, batch_bytes=1))
    times = [100, 500, 200, 300, 600, 50]
    for timestamp in times:
        log.append([Record(None, b"v" * 50, timestamp)], now_ms=0)
    for target in (50, 100, 101, 400, 500, 550, 600):
        assert log.offset_for_timestamp(target) == next(at for at, t in enumerate(times) if t >= target)


def test_a_time_lookup_halves_the_list_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=200))
    for at in range(100):
        log.append([Record(None, b"v" * 100, 1000 + at)], now_ms=0)
    assert len(log.segments()) > 60
    assert log.offset_for_timestamp(1050) == 50
    asked, real = [], Segment.max_timestamp_ms
    counting = property(lambda segment: (asked.append(segment.base_offset), real.fget(segment))[1])
    monkeypatch.setattr(Segment, "max_timestamp_ms", counting)
    for at in (10, 50, 98):
        assert log.offset_for_timestamp(1000 + at) == at
    assert len(asked) <= 12, "the segments below the time must not be asked one by one"


def test_a_compacted_topic_refuses_records_without_key_and_names_their_indexes() -> None:
    log = open_log(ModelDisk(), LogSettings(is_compacted=True))
    with pytest.raises(InvalidRequest, match=r"records=\[1\]"):
        log.append([Record(b"k", b"v", 0), Record(None, b"v", 0)], now_ms=0)
    assert log.next_offset == 0


def test_a_record_above_the_limit_is_refused_and_smaller_records_are_split() -> None:
    log = open_log(ModelDisk(), LogSettings(max_message_bytes=500, batch_bytes=400))
    with pytest.raises(InvalidRequest, match=r"max\.message\.bytes"):
        log.append([Record(None, b"v" * 600, 0)], now_ms=0)
    log.append([Record(None, b"x", 0)] * 63 + [Record(None, b"v" * 400, 0)], now_ms=0)
    assert len(read_all(log)) == 64


def test_an_append_without_records_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no records"):
        open_log(ModelDisk()).append([], now_ms=0)


def test_log_append_time_replaces_the_timestamps_of_the_records() -> None:
    log = open_log(ModelDisk(), LogSettings(timestamp_type=TimestampType.LOG_APPEND_TIME))
    log.append([Record(None, b"v", 5), Record(None, b"w", 6)], now_ms=777)
    assert [(r.timestamp_ms, r.timestamp_type) for r in read_all(log)] == [(777, TimestampType.LOG_APPEND_TIME)] * 2


def test_an_append_assigns_offsets_to_an_encoded_batch() -> None:
    log = open_log(ModelDisk())
    fill(log, 10)
    batch = encode_batch([Record(b"a", b"b", 1), Record(b"c", b"d", 2)], codec=Codec.ZSTD)
    assert log.append_encoded([bytearray(batch)], now_ms=0) == (10, 12, False)
    assert read_all(log)[-1][:2] == (11, 2)


def test_readers_never_see_an_offset_gap_while_segments_are_dropped(tmp_path: object) -> None:
    log = open_log(DiskStorage(), root=f"{tmp_path}/t-0", is_tiered=False)
    fill(log, 2000)
    failures: list[str] = []
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            at = log.local_log_start_offset
            try:
                while data := log.read(at, 700):
                    header = read_header(data)
                    assert header is not None
                    if not header.base_offset <= at < header.next_offset:
                        failures.append(f"asked {at}, got {header.base_offset}")
                    at = kernels.decode_columns(data).next_offset
            except OffsetOutOfRange:
                continue

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for info in log.segments()[1:-1]:
        log.drop_before(info.base_offset, now_ms=0, delay_ms=0, raises_log_start=True)
        log.remove_deleted(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_records_without_timestamp_set_no_max_timestamp_and_cause_no_roll() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    for _ in range(5):
        log.append([Record(b"k", b"v", -1)], now_ms=5000)
    (info,) = log.segments()
    assert info.max_timestamp_ms is None
    log.append([Record(b"k", b"v", 10**6)], now_ms=5000)
    assert len(log.segments()) == 1
    log.close()
    effects = disk.effects
    reopened = open_log(disk, was_clean=True)
    assert reopened.segments()[0].max_timestamp_ms == 10**6
    assert not any("index" in what and what.startswith("create") for what in disk.journal[effects:])


def test_a_time_lookup_continues_after_a_concurrent_drop_of_its_segment() -> None:
    log = open_log(ModelDisk())
    fill(log, 300)
    view = log.view
    boundary = log.segments()[1].base_offset
    real = type(view).search

    def drop_then_search(self: object, timestamp_ms: int) -> int | None:
        if log.log_start_offset == 0:
            log.drop_before(boundary, now_ms=0, delay_ms=0, raises_log_start=True)
        return real(self, timestamp_ms)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(view), "search", drop_then_search)
        assert log.offset_for_timestamp(5000) == boundary


def test_a_segment_without_record_times_has_the_age_of_its_last_write() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_ms=100))
    log.append([Record(b"k", b"v", -1)], now_ms=1000)
    log.append([Record(b"k", b"v", -1)], now_ms=1100)
    assert [info.age_timestamp_ms for info in log.segments()] == [1100]
    log.append([Record(b"k", b"v", -1)], now_ms=1101)
    assert [(info.base_offset, info.age_timestamp_ms) for info in log.segments()] == [(0, 1100), (2, 1101)]
