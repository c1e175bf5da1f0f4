"""Reads of a log: limits, streams, named offsets, and time lookups compared with a plain list."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk
from hypothesis import given, settings
from hypothesis import strategies as st
from log_world import fill, open_log
from run_profile import examples

from local import kernels
from local.errors import OffsetOutOfRange
from local.format.compression import Codec
from local.format.record import Record, TimestampType
from local.log import Log
from local.log.producer_state import Producer
from local.records.batch import encode_batch, read_header
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset
from local.settings import LogSettings
from local.storage import StorageFile


def test_a_batch_above_the_limit_is_returned_whole() -> None:
    log = open_log(ModelDisk())
    fill(log, 50)
    size = len(log.read(0, 1))
    assert len(log.read(0, size - 1)) == size
    assert len(log.read(0, size)) == size


def test_a_batch_larger_than_the_read_buffers_is_read_whole() -> None:
    log = open_log(ModelDisk(), LogSettings(max_message_bytes=1 << 20))
    log.append([Record(b"k", b"small", 1)], now_ms=0)
    log.append([Record(b"k", b"v" * 300_000, 1)], now_ms=0)
    assert [len(columns) for columns in log.columns(1)] == [1]
    assert kernels.scan_batches(log.read(1, 1)).problem is None


def test_facts_of_segments_are_read_again_only_after_a_change() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=2000))
    fill(log, 300)
    before = log.segments()
    assert log.segments() is before
    assert log.segments(with_times=False)[0].max_timestamp_ms is None
    log.append([Record(b"k", b"newest", 10**12)], now_ms=10**12)
    appended = log.segments()
    assert (appended[-1].next_offset, appended[-1].max_timestamp_ms) == (301, 10**12)
    log.set_cleaner_offset(before[1].base_offset)
    assert [each.is_clean for each in log.segments()[:2]] == [True, False]
    log.roll(now_ms=10**12)
    assert len(log.segments()) == len(appended) + 1
    log.raise_log_start(before[2].base_offset)
    log.drop_before(before[2].base_offset, now_ms=10**12, delay_ms=0, raises_log_start=False)
    assert log.segments()[0].base_offset == before[2].base_offset


@pytest.mark.parametrize("start", [0, 1, 5, 10, 137, 299, 300])
def test_a_stream_returns_every_record_from_its_start_once(start: int) -> None:
    log = open_log(ModelDisk())
    sent = fill(log, 300)
    assert [record.offset for record in log.records(start)] == list(range(start, 300))
    assert [record.value for record in log.records(start)] == [record.value for record in sent[start:]]


def test_a_stream_ends_at_the_log_end_offset_of_its_start() -> None:
    log = open_log(ModelDisk())
    fill(log, 30)
    stream = log.records(0)
    first = next(stream)
    fill(log, 30, start=30)
    assert [first.offset, *(record.offset for record in stream)] == list(range(30))


@pytest.mark.parametrize("offset", [9, 301, -1])
def test_every_read_outside_the_log_raises_with_the_valid_range(offset: int) -> None:
    log = open_log(ModelDisk())
    fill(log, 300)
    log.raise_log_start(10)
    told = rf"offset={offset} first_offset=10 next_offset=300"
    for attempt in (
        lambda: log.read(offset),
        lambda: log.read(offset, 1, isolation=Isolation.READ_COMMITTED),
        lambda: next(log.columns(offset)),
        lambda: next(log.records(offset)),
    ):
        with pytest.raises(OffsetOutOfRange, match=told):
            attempt()
    with pytest.raises(OffsetOutOfRange, match=r"offset=301 first_offset=10 next_offset=300"):
        log.raise_log_start(301)


def test_a_stream_below_a_raised_log_start_raises_with_the_valid_range() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=900_000, max_message_bytes=1 << 20))
    for at in range(6):
        log.append([Record(b"k", b"v" * 600_000, at)], now_ms=0)
    stream = log.columns(0)
    next(stream)
    log.drop_before(5, now_ms=0, delay_ms=0, raises_log_start=True)
    with pytest.raises(OffsetOutOfRange, match=r"offset=1 first_offset=5 next_offset=6"):
        next(stream)


def test_read_committed_shows_nothing_of_an_undecided_batch_at_the_log_start() -> None:
    log = open_log(ModelDisk())
    producer = Producer(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"v", at) for at in range(4)], now_ms=0, producer=producer)
    log.raise_log_start(2)
    assert log.last_stable_offset == 2
    assert list(log.records(2, isolation=Isolation.READ_COMMITTED)) == []
    assert log.read(2, isolation=Isolation.READ_COMMITTED) == b""
    assert [each.offset for each in log.records(2)] == [2, 3]


def test_a_record_found_by_time_has_its_leader_epoch() -> None:
    log = open_log(ModelDisk(), is_tiered=True)
    log.begin_epoch(3)
    fill(log, 200)
    log.begin_epoch(5)
    fill(log, 100, start=200)
    assert log.newest() == FoundOffset(299, 5299, 5)
    assert log.view.search(5250) == FoundOffset(250, 5250, 5)
    assert log.view.search(5150) == FoundOffset(150, 5150, 3)


def test_an_empty_log_has_no_records_by_time() -> None:
    log = open_log(ModelDisk(), log_start_offset=7)
    assert log.newest() is None
    assert log.offset_for_timestamp(0) is None


def test_the_largest_timestamp_below_the_log_start_is_not_found() -> None:
    log = open_log(ModelDisk(), LogSettings(batch_bytes=1 << 16))
    log.append([Record(b"k", b"v", each) for each in (50, 900, 30, 60, 60, 10)], now_ms=0)
    assert log.newest() == FoundOffset(1, 900, 0)
    log.raise_log_start(2)
    assert log.newest() == FoundOffset(3, 60, 0)


def test_a_max_timestamp_lookup_ignores_a_batch_that_is_still_being_written() -> None:
    log = open_log(ModelDisk())
    fill(log, 30)
    log.view.segments[-1]._latest = (1 << 40, 29)
    assert log.newest() == FoundOffset(29, 5029, 0)
    assert log.offset_for_timestamp(6000) is None


APPENDS = st.lists(
    st.tuples(
        st.lists(st.one_of(st.integers(0, 60), st.just(-1)), min_size=1, max_size=6),
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD]),
        st.one_of(st.none(), st.integers(0, 60)),
    ),
    max_size=25,
)


def _append_at(log: Log, times: list[int], codec: Codec, append_ms: int | None) -> list[int]:
    kind = TimestampType.CREATE_TIME if append_ms is None else TimestampType.LOG_APPEND_TIME
    records = [Record(b"k", b"v" * 20, each) for each in times]
    batch = encode_batch(records, codec=codec, timestamp_type=kind, append_time_ms=append_ms)
    log.append_encoded([bytearray(batch)], now_ms=append_ms or 0)
    return times if append_ms is None else [append_ms] * len(times)


@settings(max_examples=examples(60), deadline=None)
@given(APPENDS, st.integers(0, 150), st.integers(0, 400), st.booleans())
def test_a_time_lookup_returns_the_first_record_at_or_after_it_for_any_time_order(
    appends: list[tuple[list[int], Codec, int | None]], start: int, interval: int, reopen: bool
) -> None:
    disk = ModelDisk()
    small = LogSettings(segment_bytes=700, index_interval_bytes=interval, max_message_bytes=600)
    log = open_log(disk, small)
    times: list[int] = []
    for batch, codec, append_ms in appends:
        times += _append_at(log, batch, codec, append_ms)
    log.raise_log_start(min(start, len(times)))
    first = log.log_start_offset
    if reopen:
        log.close()
        log = open_log(disk, small, was_clean=True, log_start_offset=first)
    for target in range(62):
        expected = next((at for at in range(first, len(times)) if times[at] >= target), None)
        found = log.view.search(target)
        assert (None if found is None else found[:2]) == (None if expected is None else (expected, times[expected]))
        assert log.offset_for_timestamp(target) == expected
    newest = log.newest()
    largest = max(times[first:], default=-1)
    assert (None if newest is None else newest[:2]) == (None if largest < 0 else (times.index(largest, first), largest))


def test_first_timestamps_are_read_once_and_only_for_dirty_closed_segments() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 900)
    opened: list[str] = []
    real = disk.open_reader

    def note(path: str) -> StorageFile:
        opened.append(path)
        return real(path)

    disk.open_reader = note  # type: ignore[method-assign]
    plain = log.segments()
    assert opened == []
    assert {each.first_timestamp_ms for each in plain} == {None}
    dirty_from = plain[2].base_offset
    told = [each.first_timestamp_ms for each in log.segments(first_times_from=dirty_from)]
    log.segments(first_times_from=dirty_from)
    assert len(opened) == len(plain) - 3
    assert [*told[:2], told[-1]] == [None, None, None]
    assert len(told) > 4
    firsts = [read_header(log.read(each.base_offset)) for each in plain[2:-1]]
    assert told[2:-1] == [header.max_timestamp_ms for header in firsts if header is not None]
