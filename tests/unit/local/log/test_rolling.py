"""When the active segment is rolled: Kafka's conditions at their boundaries, and the jitter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from disk_model import ModelDisk
from log_world import open_log

from local.format.batch_header import BatchHeader
from local.format.compression import Codec
from local.format.record import Record
from local.log.log_appender import Rolling
from local.names import OFFSET_INDEX, TIME_INDEX
from local.records.batch import encode_batch, read_header
from local.segment.segment import RELATIVE_OFFSET_MAX, Segment
from local.settings import LogSettings
from local.storage import SegmentFiles

CREATED_MS, FIRST_MS = 50_000, 1_000


def header(timestamp_ms: int, records: int = 1) -> BatchHeader:
    found = read_header(encode_batch([Record(b"k", b"v", timestamp_ms)] * records))
    assert found is not None
    return found


def segment(size: int = 600, *, first_ms: int = FIRST_MS, offset_entries: int = 0, time_entries: int = 0) -> Segment:
    """An active segment at base 100 with one batch of `size` bytes. Only the facts that the roll conditions use are
    real."""
    made = Segment.create(SegmentFiles(ModelDisk(), ".", 100), created_ms=CREATED_MS)
    if size:
        made.append(bytes(size), last_offset=100, max_timestamp_ms=first_ms, interval_bytes=1 << 30)
    made._active = {OFFSET_INDEX: bytearray(8 * offset_entries), TIME_INDEX: bytearray(12 * time_entries)}
    return made


def is_due(
    active: Segment, settings: LogSettings, size: int = 100, batch: BatchHeader | None = None, **facts: int
) -> bool:
    facts = {"base_offset": 101, "now_ms": CREATED_MS, **facts}
    return Rolling(lambda below: below - 1).is_due(active, settings, size, batch or header(FIRST_MS), **facts)


@pytest.mark.parametrize(("size", "due"), [(399, False), (400, False), (401, True)])
def test_a_segment_rolls_only_if_the_batch_would_exceed_segment_bytes(size: int, due: bool) -> None:
    assert is_due(segment(600), LogSettings(segment_bytes=1000), size) is due


@pytest.mark.parametrize(("waited", "due"), [(-500, False), (99, False), (100, False), (101, True)])
def test_a_segment_rolls_when_its_record_times_span_more_than_segment_ms(waited: int, due: bool) -> None:
    later = {"now_ms": 10**12}
    assert is_due(segment(), LogSettings(segment_ms=100), batch=header(FIRST_MS + waited), **later) is due


@pytest.mark.parametrize(("waited", "due"), [(100, False), (101, True)])
def test_a_segment_without_record_times_rolls_by_the_clock(waited: int, due: bool) -> None:
    active = segment(first_ms=-1)
    assert is_due(active, LogSettings(segment_ms=100), batch=header(-1), now_ms=CREATED_MS + waited) is due


def test_a_record_without_a_time_does_not_roll_a_segment_with_record_times() -> None:
    assert not is_due(segment(), LogSettings(segment_ms=1), batch=header(-1), now_ms=10**12)


@pytest.mark.parametrize(("waited", "due"), [(60, False), (61, True)])
def test_a_compacted_segment_rolls_at_max_compaction_lag_ms_if_that_is_smaller(waited: int, due: bool) -> None:
    lagging = LogSettings(segment_ms=100, max_compaction_lag_ms=60, is_compacted=True)
    assert is_due(segment(), lagging, batch=header(FIRST_MS + waited)) is due
    assert not is_due(segment(), replace(lagging, is_compacted=False), batch=header(FIRST_MS + waited))
    assert not is_due(segment(), replace(lagging, max_compaction_lag_ms=900), batch=header(FIRST_MS + waited))


@pytest.mark.parametrize(
    ("index_bytes", "entries", "due"), [(48, 5, False), (48, 6, True), (55, 6, True), (56, 6, False)]
)
def test_a_full_offset_index_rolls_the_segment(index_bytes: int, entries: int, due: bool) -> None:
    assert is_due(segment(offset_entries=entries), LogSettings(segment_index_bytes=index_bytes)) is due


@pytest.mark.parametrize(
    ("index_bytes", "entries", "due"), [(48, 2, False), (48, 3, True), (59, 3, True), (60, 3, False)]
)
def test_a_time_index_counts_as_full_when_one_slot_is_left(index_bytes: int, entries: int, due: bool) -> None:
    assert is_due(segment(time_entries=entries), LogSettings(segment_index_bytes=index_bytes)) is due


@pytest.mark.parametrize(("beyond", "due"), [(0, False), (1, True)])
def test_a_relative_offset_above_four_bytes_rolls_the_segment(beyond: int, due: bool) -> None:
    base = 100 + RELATIVE_OFFSET_MAX - 2 + beyond
    assert is_due(segment(), LogSettings(), batch=header(FIRST_MS, records=3), base_offset=base) is due


def test_an_empty_segment_never_rolls() -> None:
    facts = {"base_offset": 1 << 40, "now_ms": 10**12}
    full = LogSettings(segment_bytes=1, segment_ms=1, segment_index_bytes=1)
    assert not is_due(segment(0, offset_entries=9, time_entries=9), full, batch=header(10**12), **facts)


@pytest.mark.parametrize(
    ("jitter_ms", "segment_ms", "below"), [(0, 100, None), (1, 100, 1), (30, 100, 30), (100, 100, 100), (400, 100, 100)]
)
def test_jitter_is_drawn_below_the_smaller_of_jitter_and_segment_ms(
    jitter_ms: int, segment_ms: int, below: int | None
) -> None:
    drawn: list[int] = []

    def draw(below: int) -> int:
        drawn.append(below)
        return below - 1

    rolling, active = Rolling(draw), segment()
    settings = LogSettings(segment_ms=segment_ms, segment_jitter_ms=jitter_ms)
    limit = segment_ms - (below - 1 if below else 0)
    for waited, due in ((limit, False), (limit + 1, True)):
        batch = header(FIRST_MS + waited)
        assert rolling.is_due(active, settings, 100, batch, base_offset=101, now_ms=0) is due
    assert drawn == ([below] if below else []), "the jitter is drawn once per segment, and only if it can be above zero"


def test_each_segment_has_its_own_constant_jitter() -> None:
    drawn = iter([0, 50])
    log = open_log(ModelDisk(), LogSettings(segment_ms=100, segment_jitter_ms=80))
    log._appender._rolling = Rolling(lambda below: next(drawn))
    for timestamp in (1000, 1090, 1100, 1101, 1151, 1152):
        log.append([Record(None, b"v", timestamp)], now_ms=0)
    assert [info.base_offset for info in log.segments()] == [0, 3, 5]
    assert next(drawn, None) is None


def test_the_roll_time_base_is_the_max_timestamp_of_the_first_batch() -> None:
    disk = ModelDisk()
    log = open_log(disk, LogSettings(segment_ms=100))
    log.append([Record(None, b"v", 1500), Record(None, b"v", 1000)], now_ms=0)
    log.append([Record(None, b"v", 1600)], now_ms=0)
    log.close()
    log = open_log(disk, LogSettings(segment_ms=100), was_clean=True)
    log.append([Record(None, b"v", 1600)], now_ms=0)
    assert len(log.segments()) == 1
    log.append([Record(None, b"v", 1601)], now_ms=0)
    assert [info.base_offset for info in log.segments()] == [0, 4]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_no_roll_leaves_an_empty_closed_segment(codec: Codec) -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=90, segment_ms=1, segment_index_bytes=24, compression=codec))
    for at in range(30):
        log.append([Record(b"k", b"v" * (at % 7), 1000 + 5 * (at % 3))], now_ms=at)
        log.roll(now_ms=at)
        assert not log.roll(now_ms=at)
    assert [info.size_bytes > 0 for info in log.segments()] == [True] * 30 + [False]
