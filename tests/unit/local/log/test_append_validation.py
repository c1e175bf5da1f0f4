"""Append validation: the limits for timestamps, sizes and keys, and the fields that an append rewrites.
Each rule is tested for records and for batches that the client encoded."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk
from log_world import open_log, read_all

from local import kernels
from local.errors import InvalidRequest
from local.format.compression import Codec
from local.format.crc32c import crc32c
from local.format.record import Record, TimestampType
from local.log import Log
from local.log.producer_state import Producer
from local.records.batch import check_batch, encode_batch
from local.settings import LogSettings
from tiered.config.config import log_settings

NOW_MS = 1_000_000


def append(log: Log, times: list[int], *, ready_made: bool, codec: Codec = Codec.NONE) -> None:
    records = [Record(b"k", b"v", each) for each in times]
    if ready_made:
        log.append_batch(encode_batch(records, codec=codec), now_ms=NOW_MS)
    else:
        log.append(records, now_ms=NOW_MS)


@pytest.mark.parametrize("ready_made", [False, True], ids=["records", "batch"])
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
def test_an_append_accepts_times_within_both_limits_and_records_without_a_time(
    time_ms: int, allowed: bool, ready_made: bool
) -> None:
    log = open_log(ModelDisk(), LogSettings(timestamp_before_max_ms=100, timestamp_after_max_ms=50))
    if allowed:
        append(log, [NOW_MS, time_ms], ready_made=ready_made)
        return
    with pytest.raises(InvalidRequest, match=r"a record time.* records=\[1\] count=1"):
        append(log, [NOW_MS, time_ms], ready_made=ready_made)
    assert log.next_offset == 0


@pytest.mark.parametrize("ready_made", [False, True], ids=["records", "batch"])
def test_the_error_numbers_invalid_records_across_all_batches_of_the_append(ready_made: bool) -> None:
    settings = LogSettings(batch_bytes=1 if not ready_made else 1 << 20, timestamp_after_max_ms=0)
    log = open_log(ModelDisk(), settings)
    times = [NOW_MS + (at in (3, 17)) for at in range(20)]
    with pytest.raises(InvalidRequest, match=rf"records=\[3, 17\] count=2 .*latest_ms={NOW_MS}"):
        append(log, times, ready_made=ready_made)
    assert log.next_offset == 0


def test_by_default_an_append_accepts_past_times_and_times_up_to_an_hour_ahead() -> None:
    log = open_log(ModelDisk(), log_settings({}))
    append(log, [0, NOW_MS + 3_600_000], ready_made=True)
    with pytest.raises(InvalidRequest, match="a record time"):
        append(log, [NOW_MS + 3_600_001], ready_made=True)


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_written_into_an_encoded_batch_with_a_new_checksum(codec: Codec) -> None:
    log = open_log(ModelDisk(), LogSettings(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_after_max_ms=0))
    append(log, [5, NOW_MS * 10], ready_made=True, codec=codec)
    stored = log.read(0)
    header = check_batch(stored)
    assert (header.timestamp_type, header.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, NOW_MS)
    assert (header.codec, header.base_timestamp_ms) == (codec, 5), (
        "LogAppendTime changes neither the codec nor the base timestamp"
    )
    assert kernels.scan_batches(stored).problem is None
    assert [record.timestamp_ms for record in read_all(log)] == [NOW_MS, NOW_MS]
    assert log.segments()[0].max_timestamp_ms == NOW_MS


@pytest.mark.parametrize("kind", list(TimestampType))
def test_an_encoded_batch_that_claims_log_append_time_is_refused(kind: TimestampType) -> None:
    batch = encode_batch([Record(b"k", b"v", 5)], timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW_MS)
    with pytest.raises(InvalidRequest, match="its timestamp type is LogAppendTime"):
        open_log(ModelDisk(), LogSettings(timestamp_type=kind)).append_batch(batch, now_ms=NOW_MS)


@pytest.mark.parametrize("claimed", [-1, 7, NOW_MS * 1000])
def test_an_append_corrects_a_wrong_max_timestamp_in_the_batch_header(claimed: int) -> None:
    batch = bytearray(encode_batch([Record(b"k", b"v", 9), Record(b"k", b"v", 8)]))
    batch[35:43] = claimed.to_bytes(8, "big", signed=True)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    log = open_log(ModelDisk())
    log.append_batch(bytes(batch), now_ms=NOW_MS)
    assert check_batch(log.read(0)).max_timestamp_ms == 9
    assert log.segments()[0].max_timestamp_ms == 9


def test_a_valid_batch_is_stored_byte_for_byte() -> None:
    batch = encode_batch([Record(b"k", b"v", 9), Record(b"k", b"v", 8)], codec=Codec.ZSTD)
    log = open_log(ModelDisk())
    log.append_batch(batch, now_ms=NOW_MS)
    assert bytes(log.read(0)) == batch


@pytest.mark.parametrize(("name", "slack"), [("max_message_bytes", 0), ("segment_bytes", 0), ("segment_bytes", 1)])
def test_the_size_limits_apply_to_the_encoded_batch(name: str, slack: int) -> None:
    batch = encode_batch([Record(b"k", bytes(100_000), 9)], codec=Codec.ZSTD)
    fits = LogSettings(**{name: len(batch) + slack})  # type: ignore[arg-type]
    assert open_log(ModelDisk(), fits).append_batch(batch, now_ms=NOW_MS).next_offset == 1
    tight = LogSettings(**{name: len(batch) - 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"larger than {name.replace('_', '.')}"):
        open_log(ModelDisk(), tight).append_batch(batch, now_ms=NOW_MS)


def test_records_are_split_into_batches_that_fit_in_a_segment() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=1000, batch_bytes=1 << 20))
    log.append([Record(b"k", b"v" * 90, 9)] * 50, now_ms=NOW_MS)
    assert all(0 < info.size_bytes <= 1000 for info in log.segments())
    with pytest.raises(InvalidRequest, match=r"larger than segment\.bytes"):
        log.append([Record(b"k", b"v" * 1000, 9)], now_ms=NOW_MS)


def test_an_append_to_a_compacted_topic_names_the_records_without_key() -> None:
    log = open_log(ModelDisk(), LogSettings(is_compacted=True))
    batch = encode_batch([Record(b"k", b"v", 1), Record(None, b"v", 1), Record(None, b"v", 1)])
    with pytest.raises(InvalidRequest, match=r"has no key: .*records=\[1, 2\]"):
        log.append_batch(batch, now_ms=NOW_MS)


def test_keyless_records_are_appended_if_cleaning_drops_them_and_markers_need_no_key() -> None:
    log = open_log(ModelDisk(), LogSettings(is_compacted=True, drops_keyless=True))
    keyless = Record(None, b"v", 1)
    log.append_batch(encode_batch([Record(b"k", b"v", 1), keyless]), now_ms=NOW_MS)
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
