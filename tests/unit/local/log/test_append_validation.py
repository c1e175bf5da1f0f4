"""Append validation: the limits for timestamps, sizes and keys."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from disk_model import ModelDisk
from log_world import open_log, read_all

from local import kernels
from local.errors import InvalidRequest
from local.format.compression import Codec
from local.format.record import Record, TimestampType
from local.log import Log
from local.log.producer_state import Producer
from local.records.batch import encode_batch
from local.settings import LogSettings
from tiered.config.config import log_settings

NOW_MS = 1_000_000


def append(log: Log, times: list[int]) -> None:
    log.append([Record(b"k", b"v", each) for each in times], now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("time_ms", "allowed"),
    [
        (NOW_MS - 101, False),
        (NOW_MS - 100, True),
        (NOW_MS + 50, True),
        (NOW_MS + 51, False),
        (-1, True),
    ],
)
def test_an_append_accepts_times_within_both_limits_and_records_without_a_time(time_ms: int, allowed: bool) -> None:
    log = open_log(ModelDisk(), LogSettings(timestamp_before_max_ms=100, timestamp_after_max_ms=50))
    if allowed:
        append(log, [NOW_MS, time_ms])
        return
    with pytest.raises(InvalidRequest, match=r"a record time.* records=\[1\] count=1"):
        append(log, [NOW_MS, time_ms])
    assert log.next_offset == 0


def test_the_error_numbers_invalid_records_across_all_batches_of_the_append() -> None:
    settings = LogSettings(batch_bytes=1, timestamp_after_max_ms=0)
    log = open_log(ModelDisk(), settings)
    times = [NOW_MS + (at in (3, 17)) for at in range(20)]
    with pytest.raises(InvalidRequest, match=rf"records=\[3, 17\] count=2 .*latest_ms={NOW_MS}"):
        append(log, times)
    assert log.next_offset == 0


@pytest.mark.parametrize("time_ms", [NOW_MS - 1, NOW_MS + 1])
def test_log_append_time_exempts_records_and_columns_from_the_time_limits(time_ms: int) -> None:
    limits = LogSettings(timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    columns = pa.table({"value": [b"v"], "timestamp": [time_ms]})
    log = open_log(ModelDisk(), limits)
    with pytest.raises(InvalidRequest, match="a record time"):
        append(log, [time_ms])
    with pytest.raises(InvalidRequest, match="a record time"):
        log.append_columns(columns, now_ms=NOW_MS)
    log = open_log(ModelDisk(), replace(limits, timestamp_type=TimestampType.LOG_APPEND_TIME))
    append(log, [time_ms])
    log.append_columns(columns, now_ms=NOW_MS)
    assert [record.timestamp_ms for record in read_all(log)] == [NOW_MS, NOW_MS]


def test_by_default_an_append_accepts_past_times_and_times_up_to_an_hour_ahead() -> None:
    log = open_log(ModelDisk(), log_settings({}))
    append(log, [0, NOW_MS + 3_600_000])
    with pytest.raises(InvalidRequest, match="a record time"):
        append(log, [NOW_MS + 3_600_001])


@pytest.mark.parametrize(("name", "slack"), [("max_message_bytes", 0), ("segment_bytes", 0), ("segment_bytes", 1)])
def test_the_size_limits_apply_to_the_encoded_batch(name: str, slack: int) -> None:
    records, zstd = [Record(b"k", bytes(100_000), 9)], LogSettings(compression=Codec.ZSTD)
    size = len(encode_batch(records, codec=Codec.ZSTD))
    fits = replace(zstd, **{name: size + slack})  # type: ignore[arg-type]
    assert open_log(ModelDisk(), fits).append(records, now_ms=NOW_MS).next_offset == 1
    tight = replace(zstd, **{name: size - 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"larger than {name.replace('_', '.')}"):
        open_log(ModelDisk(), tight).append(records, now_ms=NOW_MS)


def test_records_are_split_into_batches_that_fit_in_a_segment() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=1000, batch_bytes=1 << 20))
    log.append([Record(b"k", b"v" * 90, 9)] * 50, now_ms=NOW_MS)
    assert all(0 < info.size_bytes <= 1000 for info in log.segments())
    with pytest.raises(InvalidRequest, match=r"larger than segment\.bytes"):
        log.append([Record(b"k", b"v" * 1000, 9)], now_ms=NOW_MS)


def test_an_append_to_a_compacted_topic_names_the_records_without_key() -> None:
    log = open_log(ModelDisk(), LogSettings(is_compacted=True))
    records = [Record(b"k", b"v", 1), Record(None, b"v", 1), Record(None, b"v", 1)]
    with pytest.raises(InvalidRequest, match=r"has no key: .*records=\[1, 2\]"):
        log.append(records, now_ms=NOW_MS)


def test_keyless_records_are_appended_if_cleaning_drops_them_and_markers_need_no_key() -> None:
    log = open_log(ModelDisk(), LogSettings(is_compacted=True, drops_keyless=True))
    keyless = Record(None, b"v", 1)
    log.append([Record(b"k", b"v", 1), keyless], now_ms=NOW_MS)
    log.append([keyless], now_ms=NOW_MS)
    log.append_columns(kernels.decode_columns(encode_batch([keyless])), now_ms=NOW_MS)
    assert [record.key for record in log.records(0)] == [b"k", None, None, None]
    strict = open_log(ModelDisk(), LogSettings(is_compacted=True))
    who = Producer(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    strict.append([Record(b"k", b"v", 1)], now_ms=NOW_MS, producer=who)
    assert strict.append_marker(1, 0, commit=True, now_ms=NOW_MS).base_offset == 1


def test_time_and_size_limits_apply_to_columns_too() -> None:
    source = open_log(ModelDisk(), LogSettings())
    source.append([Record(b"k", b"v" * 90, NOW_MS + (at == 7)) for at in range(20)], now_ms=NOW_MS)
    columns = kernels.decode_columns(source.read(0))
    log = open_log(ModelDisk(), LogSettings(timestamp_after_max_ms=0))
    with pytest.raises(InvalidRequest, match=r"a record time.* records=\[7\] count=1"):
        log.append_columns(columns, now_ms=NOW_MS)
    assert log.next_offset == 0
    log = open_log(ModelDisk(), LogSettings(segment_bytes=500))
    assert log.append_columns(columns, now_ms=NOW_MS).next_offset == 20
    assert all(0 < info.size_bytes <= 500 for info in log.segments())
