"""What an append refuses and what it rewrites: a table for each rule, for records and for ready-made batches alike."""

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
from tiered.config.topic_settings import log_settings

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
def test_a_time_at_either_limit_is_allowed_one_past_it_is_not_and_no_time_always_is(
    time_ms: int, allowed: bool, ready_made: bool
) -> None:
    log = open_log(ModelDisk(), LogSettings(timestamp_before_max_ms=100, timestamp_after_max_ms=50))
    if allowed:
        append(log, [NOW_MS, time_ms], ready_made=ready_made)
        return
    with pytest.raises(InvalidRequest, match=r"record times.* records=\[1\] count=1"):
        append(log, [NOW_MS, time_ms], ready_made=ready_made)
    assert log.next_offset == 0


@pytest.mark.parametrize("ready_made", [False, True], ids=["records", "batch"])
def test_the_wrong_records_are_named_over_all_batches_of_the_call(ready_made: bool) -> None:
    settings = LogSettings(batch_bytes=1 if not ready_made else 1 << 20, timestamp_after_max_ms=0)
    log = open_log(ModelDisk(), settings)
    times = [NOW_MS + (at in (3, 17)) for at in range(20)]
    with pytest.raises(InvalidRequest, match=rf"records=\[3, 17\] count=2 .*latest_ms={NOW_MS}"):
        append(log, times, ready_made=ready_made)
    assert log.next_offset == 0


def test_by_default_a_topic_takes_times_up_to_an_hour_ahead_and_any_past() -> None:
    log = open_log(ModelDisk(), log_settings({}))
    append(log, [0, NOW_MS + 3_600_000], ready_made=True)
    with pytest.raises(InvalidRequest, match="record times"):
        append(log, [NOW_MS + 3_600_001], ready_made=True)


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_written_into_a_ready_made_batch_with_its_checksum(codec: Codec) -> None:
    log = open_log(ModelDisk(), LogSettings(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_after_max_ms=0))
    append(log, [5, NOW_MS * 10], ready_made=True, codec=codec)
    stored = log.read(0)
    header = check_batch(stored)
    assert (header.timestamp_type, header.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, NOW_MS)
    assert (header.codec, header.base_timestamp_ms) == (codec, 5), "the rest of the batch stays as it came"
    assert kernels.scan_batches(stored).problem is None
    assert [record.timestamp_ms for record in read_all(log)] == [NOW_MS, NOW_MS]
    assert log.segments()[0].max_timestamp_ms == NOW_MS


@pytest.mark.parametrize("kind", list(TimestampType))
def test_a_batch_that_brings_the_logs_time_along_is_refused(kind: TimestampType) -> None:
    batch = encode_batch([Record(b"k", b"v", 5)], timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW_MS)
    with pytest.raises(InvalidRequest, match="claim to be the log's"):
        open_log(ModelDisk(), LogSettings(timestamp_type=kind)).append_batch(batch, now_ms=NOW_MS)


@pytest.mark.parametrize("claimed", [-1, 7, NOW_MS * 1000])
def test_a_batch_that_lies_about_its_largest_time_is_put_right(claimed: int) -> None:
    batch = bytearray(encode_batch([Record(b"k", b"v", 9), Record(b"k", b"v", 8)]))
    batch[35:43] = claimed.to_bytes(8, "big", signed=True)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    log = open_log(ModelDisk())
    log.append_batch(bytes(batch), now_ms=NOW_MS)
    assert check_batch(log.read(0)).max_timestamp_ms == 9
    assert log.segments()[0].max_timestamp_ms == 9


def test_a_good_batch_is_stored_byte_for_byte() -> None:
    batch = encode_batch([Record(b"k", b"v", 9), Record(b"k", b"v", 8)], codec=Codec.ZSTD)
    log = open_log(ModelDisk())
    log.append_batch(batch, now_ms=NOW_MS)
    assert bytes(log.read(0)) == batch


@pytest.mark.parametrize(("name", "slack"), [("max_message_bytes", 0), ("segment_bytes", 0), ("segment_bytes", 1)])
def test_a_batch_as_stored_has_to_fit_in_the_limit_and_in_a_segment(name: str, slack: int) -> None:
    batch = encode_batch([Record(b"k", bytes(100_000), 9)], codec=Codec.ZSTD)
    fits = LogSettings(**{name: len(batch) + slack})  # type: ignore[arg-type]
    assert open_log(ModelDisk(), fits).append_batch(batch, now_ms=NOW_MS).next_offset == 1
    tight = LogSettings(**{name: len(batch) - 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"above {name.replace('_', '.')}"):
        open_log(ModelDisk(), tight).append_batch(batch, now_ms=NOW_MS)


def test_records_are_split_into_batches_that_fit_in_a_segment() -> None:
    log = open_log(ModelDisk(), LogSettings(segment_bytes=1000, batch_bytes=1 << 20))
    log.append([Record(b"k", b"v" * 90, 9)] * 50, now_ms=NOW_MS)
    assert all(0 < info.size_bytes <= 1000 for info in log.segments())
    with pytest.raises(InvalidRequest, match=r"above segment\.bytes"):
        log.append([Record(b"k", b"v" * 1000, 9)], now_ms=NOW_MS)


def test_a_compacted_topic_names_the_keyless_records_of_a_batch() -> None:
    log = open_log(ModelDisk(), LogSettings(is_compacted=True))
    batch = encode_batch([Record(b"k", b"v", 1), Record(None, b"v", 1), Record(None, b"v", 1)])
    with pytest.raises(InvalidRequest, match=r"without key: .*records=\[1, 2\]"):
        log.append_batch(batch, now_ms=NOW_MS)


def test_a_compacted_topic_that_drops_keyless_records_takes_them_and_a_transaction_marker_is_none() -> None:
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


def test_columns_are_held_to_the_same_times_and_sizes() -> None:
    source = open_log(ModelDisk(), LogSettings())
    source.append([Record(b"k", b"v" * 90, NOW_MS + (at == 7)) for at in range(20)], now_ms=NOW_MS)
    columns = kernels.decode_columns(source.read(0))
    log = open_log(ModelDisk(), LogSettings(timestamp_after_max_ms=0))
    with pytest.raises(InvalidRequest, match=r"record times.* records=\[7\] count=1"):
        log.append_columns(columns, now_ms=NOW_MS)
    assert log.next_offset == 0
    log = open_log(ModelDisk(), LogSettings(segment_bytes=500))
    assert log.append_columns(columns, now_ms=NOW_MS).next_offset == 20
    assert all(0 < info.size_bytes <= 500 for info in log.segments())
