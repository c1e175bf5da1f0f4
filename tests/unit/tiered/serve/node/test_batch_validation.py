"""Checks of ready-made batches: Kafka's rules in Kafka's order, the rewritten fields, and the bounds of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from log_world import header_of

from local import kernels
from local.format.batch_header import HEADER_BYTES, read_header, seal
from local.format.compression import Codec, compress
from local.format.crc32c import crc32c
from local.format.record import Record, TimestampType
from local.names import TopicPartition
from local.records.batch import encode_batch, encode_marker
from local.settings import LogSettings
from tiered.serve.messages.base import Error
from tiered.serve.node import batch_validation
from tiered.serve.node.batch_validation import checked_batches
from tiered.serve.record_sink import RefusedBatch

NOW = 1_000_000
HERE = TopicPartition("orders", 0)
RECORDS = [Record(b"k%d" % at, b"v" * at, 900 + at) for at in (1, 5, 3)]
ONE = encode_batch(RECORDS)
BY_LOG = LogSettings(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_after_max_ms=0)


def checked(data: bytes, settings: LogSettings | None = None, *, is_client: bool = True) -> bytes:
    batches = checked_batches(
        memoryview(bytearray(data)), settings or LogSettings(), partition=HERE, now_ms=NOW, is_client=is_client
    )
    stored = b"".join(map(bytes, batches))
    assert kernels.scan_batches(stored[: len(batches[0])]).problem is None
    return stored


def refusal(data: bytes, settings: LogSettings | None = None, *, is_client: bool = True) -> RefusedBatch:
    with pytest.raises(RefusedBatch) as caught:
        checked(data, settings, is_client=is_client)
    return caught.value


def changed(data: bytes, section: bytes | None = None, **fields: int) -> bytes:
    header = read_header(data)
    assert header is not None
    return seal(header._replace(**fields), data[HEADER_BYTES:] if section is None else section)


def times(data: bytes) -> list[int]:
    return kernels.decode_columns(data).timestamps.tolist()


@pytest.mark.parametrize("codec", list(Codec))
def test_a_sound_batch_is_not_changed_and_not_copied(codec: Codec) -> None:
    data = memoryview(bytearray(encode_batch(RECORDS, codec=codec)))
    before = bytes(data)
    (batch,) = checked_batches(data, LogSettings(), partition=HERE, now_ms=NOW)
    assert batch.obj is data.obj
    assert bytes(batch) == before


def test_a_read_only_buffer_is_copied() -> None:
    (batch,) = checked_batches(memoryview(ONE), LogSettings(), partition=HERE, now_ms=NOW)
    assert not batch.readonly
    assert bytes(batch) == ONE


def test_several_batches_are_checked_and_bytes_of_a_cut_off_one_are_left_out() -> None:
    assert checked(ONE + ONE + ONE[:50]) == ONE + ONE
    assert refusal(ONE[:50]).error is Error.INVALID_RECORD


FAULTS: list[tuple[str, bytes, Error]] = [
    ("base offset", changed(ONE, base_offset=7), Error.INVALID_RECORD),
    ("checksum", ONE[:-1] + b"?", Error.CORRUPT_MESSAGE),
    ("too short", ONE[:8] + b"\0\0\0\x20" + ONE[12:], Error.CORRUPT_MESSAGE),
    ("format 1", ONE[:16] + b"\1" + ONE[17:], Error.INVALID_RECORD),
    ("no records", changed(ONE, b"", record_count=0, last_offset_delta=-1), Error.INVALID_RECORD),
    ("negative count", changed(ONE, record_count=-1), Error.INVALID_RECORD),
    ("gap", changed(ONE, last_offset_delta=3), Error.INVALID_RECORD),
    ("count above the records", changed(ONE, record_count=4, last_offset_delta=3), Error.INVALID_RECORD),
    ("count below the records", changed(ONE, record_count=2, last_offset_delta=1), Error.INVALID_RECORD),
    ("bytes left over", changed(ONE, ONE[HEADER_BYTES:] + b"x"), Error.INVALID_RECORD),
    ("unknown codec", changed(ONE, attributes=6), Error.UNSUPPORTED_COMPRESSION_TYPE),
    ("not gzip", changed(ONE, attributes=1), Error.INVALID_RECORD),
    (
        "a marker",
        encode_marker(base_offset=0, is_commit=True, timestamp_ms=1, producer_id=1, producer_epoch=0),
        Error.INVALID_RECORD,
    ),
    ("no sequence", encode_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=-1), Error.INVALID_RECORD),
    ("no epoch", encode_batch(RECORDS, producer_id=1, producer_epoch=-1, base_sequence=0), Error.INVALID_RECORD),
    ("a transaction without producer", encode_batch(RECORDS, is_transactional=True), Error.INVALID_RECORD),
]


@pytest.mark.parametrize(("batch", "error"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS])
def test_a_faulty_batch_has_kafkas_error(batch: bytes, error: Error) -> None:
    found = refusal(batch)
    assert (found.error, list(found.records)) == (error, [])


def test_a_coordinator_may_append_markers_and_batches_without_a_sequence() -> None:
    marker = encode_marker(base_offset=0, is_commit=True, timestamp_ms=1, producer_id=1, producer_epoch=0)
    assert checked(marker, LogSettings(is_compacted=True), is_client=False) == marker
    offsets = encode_batch(RECORDS, producer_id=1, producer_epoch=0, is_transactional=True)
    assert checked(offsets, is_client=False) == offsets


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_without_a_key_are_listed_in_a_compacted_topic(codec: Codec) -> None:
    batch = encode_batch(
        [Record(b"k", b"", 1), Record(None, b"", 1), Record(b"", b"", 1), Record(None, b"", 1)], codec=codec
    )
    found = refusal(batch, LogSettings(is_compacted=True))
    message = "Compacted topic cannot accept message without key in topic partition orders-0"
    assert (found.error, list(found.records)) == (Error.INVALID_RECORD, [(1, message), (3, message)])
    shown = f"[RecordError(batchIndex=1, message='{message}'), RecordError(batchIndex=3, message='{message}')]"
    total = "2 record errors in total, and only showing the first three errors at most"
    assert found.message == f"One or more records have been rejected due to {total}: {shown}"
    assert checked(batch, LogSettings(is_compacted=True, drops_keyless=True)) == batch


@pytest.mark.parametrize(
    ("time_ms", "is_allowed"), [(NOW - 101, False), (NOW - 100, True), (NOW + 50, True), (NOW + 51, False), (-1, True)]
)
def test_times_have_limits_and_no_time_is_allowed(time_ms: int, is_allowed: bool) -> None:
    settings = LogSettings(timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    batch = encode_batch([Record(b"k", b"v", NOW), Record(b"k", b"v", time_ms)])
    if is_allowed:
        assert checked(batch, settings) == batch
        return
    found = refusal(batch, settings)
    allowed = f"The timestamp should be within [{NOW - 100}, {NOW + 50}]"
    message = f"Timestamp {time_ms} of message with offset 1 is out of range. {allowed}"
    assert (found.error, list(found.records)) == (Error.INVALID_TIMESTAMP, [(1, message)])


@pytest.mark.parametrize(
    "settings", [LogSettings(timestamp_before_max_ms=2**62), LogSettings(timestamp_after_max_ms=2**63 - 1)]
)
def test_limits_beyond_all_times_allow_every_time(settings: LogSettings) -> None:
    batch = encode_batch([Record(b"k", b"v", 0), Record(b"k", b"v", 2**62)])
    assert checked(batch, settings) == batch


def test_the_list_of_record_errors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_validation, "ERRORS_MAX", 2)
    found = refusal(encode_batch([Record(None, b"", 1)] * 5), LogSettings(is_compacted=True))
    assert [each.position for each in found.records] == [0, 1]
    assert "due to 5 record errors" in str(found.message)


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_written_with_a_new_checksum(codec: Codec) -> None:
    stored = checked(encode_batch([Record(b"k", b"v", 5), Record(b"k", b"v", NOW * 10)], codec=codec), BY_LOG)
    header = header_of(stored)
    assert (header.timestamp_type, header.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, NOW)
    assert (header.codec, header.base_timestamp_ms) == (codec, 5)
    assert times(stored) == [NOW, NOW]


def test_a_client_cannot_claim_log_append_time() -> None:
    batch = encode_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=77)
    found = refusal(batch, BY_LOG)
    assert (found.error, [each.position for each in found.records]) == (Error.INVALID_TIMESTAMP, [0, 1, 2])
    stored = checked(batch)
    assert header_of(stored).timestamp_type is TimestampType.CREATE_TIME
    assert times(stored) == [901, 905, 903]
    assert header_of(stored).max_timestamp_ms == 905


@pytest.mark.parametrize("claimed", [-1, 7, NOW * 1000])
def test_a_wrong_largest_time_is_corrected(claimed: int) -> None:
    assert checked(changed(ONE, max_timestamp_ms=claimed)) == ONE


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_the_topics_codec_replaces_another_one(source: Codec, target: Codec) -> None:
    batch = encode_batch(RECORDS, codec=source, producer_id=5, producer_epoch=1, base_sequence=9)
    stored = checked(batch, LogSettings(compression=target, recompresses=True))
    header = header_of(stored)
    assert (header.codec, header.producer_id, header.base_sequence) == (target, 5, 9)
    assert list(kernels.decode_columns(stored).records()) == list(kernels.decode_columns(batch).records())
    assert (stored == batch) is (source is target)
    assert checked(batch, LogSettings(compression=target)) == batch, "producer: the codec of the batch stays"


def test_a_new_codec_and_log_append_time_are_written_together() -> None:
    stored = checked(ONE, replace(BY_LOG, compression=Codec.GZIP, recompresses=True))
    assert (header_of(stored).codec, times(stored)) == (Codec.GZIP, [NOW] * 3)


def test_the_size_limits_apply_to_the_stored_batch() -> None:
    large = encode_batch([Record(b"k", bytes(100_000), 9)])
    small = encode_batch([Record(b"k", bytes(100_000), 9)], codec=Codec.ZSTD)
    assert refusal(large, LogSettings(max_message_bytes=len(large) - 1)).error is Error.MESSAGE_TOO_LARGE
    assert checked(large, LogSettings(max_message_bytes=len(large))) == large
    plain = LogSettings(max_message_bytes=len(large) - 1, recompresses=True)
    assert refusal(small, plain).error is Error.MESSAGE_TOO_LARGE
    assert checked(large, LogSettings(segment_bytes=len(large))) == large
    assert refusal(large, LogSettings(segment_bytes=len(large) - 1)).error is Error.RECORD_LIST_TOO_LARGE
    assert refusal(ONE + ONE, LogSettings(segment_bytes=len(ONE) + 1)).error is Error.RECORD_LIST_TOO_LARGE


def test_a_batch_that_decompresses_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_validation, "INFLATED_BYTES_MAX", 1 << 20)
    bomb = encode_batch([Record(b"k", bytes(2 << 20), 1)], codec=Codec.GZIP)
    assert len(bomb) < 1 << 16
    assert refusal(bomb).error is Error.INVALID_RECORD


def test_a_batch_with_too_many_records_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_validation, "RECORDS_MAX", 2)
    assert refusal(ONE).error is Error.INVALID_RECORD


@pytest.mark.parametrize(
    "make",
    [
        lambda: encode_batch([Record(b"", b"", 1)] * 100),
        lambda: encode_batch([Record(b"", bytes(9000), 1)], codec=Codec.ZSTD),
    ],
)
def test_large_batches_are_checked_one_at_a_time(make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_validation, "LARGE_BYTES", 1000)
    batch, done = make(), threading.Event()

    def check() -> None:
        checked(batch)
        done.set()

    thread = threading.Thread(target=check, daemon=True)
    with batch_validation._LargeTurn() as turn:
        turn.take()
        thread.start()
        checked(ONE), "a small batch does not wait"
        assert not done.is_set()
    thread.join(60)
    assert done.is_set()


def test_every_changed_byte_is_refused_or_stored_as_a_readable_batch() -> None:
    for codec in (Codec.NONE, Codec.LZ4):
        batch = encode_batch(RECORDS, codec=codec)
        for at in range(HEADER_BYTES, len(batch)):
            for bit in (1, 0x80):
                damaged = bytearray(batch)
                damaged[at] ^= bit
                damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
                try:
                    stored = checked(bytes(damaged))
                except RefusedBatch:
                    continue
                assert len(list(kernels.decode_columns(stored).records())) == 3


def test_compressed_records_with_bytes_after_them_are_refused() -> None:
    section = compress(Codec.ZSTD, ONE[HEADER_BYTES:] + b"x")
    assert refusal(changed(ONE, section, attributes=int(Codec.ZSTD))).error is Error.INVALID_RECORD
