"""The cases of Kafka's `LogCleanerTest`, and the limits of the dedupe buffer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cleaner_oracle import Batch, batches_of
from disk_model import ModelDisk

from local.cleaner import cleaner
from local.cleaner.cleaner_history import CleaningFigures
from local.cleaner.offset_map import Buffer
from local.errors import InvalidRequest
from local.format.compression import Codec
from local.format.record import Record
from local.log import Log
from local.log.producer_state import Producer
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.settings import DAY_MS, LogSettings
from local.storage import DiskStorage

NAME = TopicPartition("t", 0)
NOW = 1_700_000_000_000
END_OF_TIME = 2**62


class Story:
    """A log on a model disk. `round` rolls, marks the whole log dirty and cleans it."""

    def __init__(self, **limits: int) -> None:
        self.disk = ModelDisk()
        self.log = Log.open(self.disk, "./t-0", NAME, LogSettings(**limits), now_ms=0)  # type: ignore[arg-type]
        self.log.cleaner_offset = 0
        self.sequences: dict[int, int] = {}

    def put(self, *keys: int, value: bytes | None = b"v", timestamp_ms: int = NOW) -> None:
        self.log.append([Record(b"%d" % key, value, timestamp_ms) for key in keys], now_ms=NOW)

    def write(self, producer: int, *keys: int, is_transactional: bool = True) -> None:
        first = self.sequences.get(producer, 0)
        self.sequences[producer] = first + len(keys)
        who = Producer(producer_id=producer, producer_epoch=0, base_sequence=first, is_transactional=is_transactional)
        self.log.append([Record(b"%d" % key, b"v", NOW) for key in keys], now_ms=NOW, producer=who)

    def end(self, producer: int, *, commit: bool) -> None:
        self.log.append_marker(producer, 0, commit=commit, now_ms=NOW)

    def round(
        self,
        now_ms: int = NOW,
        *,
        buffer_bytes: int = 1 << 20,
        is_dirty: bool = True,
        delete_retention_ms: int = DAY_MS,
        tombstones_below: int | None = None,
    ) -> CleaningFigures | None:
        self.log.roll(now_ms=NOW)
        if is_dirty:
            self.log.cleaner_offset = 0
        done = cleaner.clean(
            self.log,
            clean_from=0,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
            tombstones_below=tombstones_below,
            buffer=Buffer(size_bytes=buffer_bytes),
        )
        self.log.remove_deleted(now_ms)
        return done

    @property
    def batches(self) -> list[Batch]:
        return [batch for segment in batches_of(self.log) for batch in segment]

    @property
    def offsets(self) -> list[int]:
        return [record.offset for batch in self.batches for record in batch.records]


def test_a_tombstone_with_an_old_time_stays_until_the_horizon_set_by_its_first_pass() -> None:
    story = Story()
    story.put(1)
    story.round()
    story.put(1, value=None, timestamp_ms=1)
    story.round()
    assert story.batches[-1].horizon_ms == NOW + DAY_MS
    for now_ms in (NOW, NOW + 1, NOW + DAY_MS - 1):
        story.round(now_ms)
        assert story.offsets == [1]
        assert story.batches[-1].horizon_ms == NOW + DAY_MS
        assert story.batches[-1].records[0].timestamp_ms == 1
    story.round(NOW + DAY_MS)
    assert story.offsets == []
    assert story.log.next_offset == 2


@pytest.mark.parametrize("delete_retention_ms", [2**63 - 1, 2**62, 2**63 - 1 - NOW])
def test_a_tombstone_with_the_largest_delete_retention_stays_forever(delete_retention_ms: int) -> None:
    story = Story()
    story.put(1)
    story.put(1, 2, value=None)
    for now_ms in (NOW, NOW + DAY_MS, 2**62):
        story.round(now_ms, delete_retention_ms=delete_retention_ms)
        assert story.offsets == [1, 2]
        assert [record.timestamp_ms for batch in story.batches for record in batch.records] == [NOW, NOW]
    assert story.batches[-1].horizon_ms == min(NOW + delete_retention_ms, 2**63 - 1)


def test_a_commit_marker_is_removed_after_its_data_and_after_its_horizon() -> None:
    story = Story()
    story.write(1, 1)
    story.write(1, 2, 3)
    story.end(1, commit=True)
    story.write(1, 2)
    story.end(1, commit=True)
    story.round()
    assert story.offsets == [0, 2, 3, 4, 5]
    story.write(1, 1, 3)
    story.end(1, commit=True)
    story.round()
    assert story.offsets == [3, 4, 5, 6, 7, 8]
    story.round()
    assert story.offsets == [3, 4, 5, 6, 7, 8]
    story.round(END_OF_TIME)
    assert story.offsets == [4, 5, 6, 7, 8]


def test_an_abort_marker_stays_two_passes_after_its_data_and_its_entry_one() -> None:
    story = Story()
    story.write(1, 1)
    story.write(1, 2, 3)
    story.end(1, commit=False)
    story.write(1, 3)
    story.end(1, commit=True)
    story.round()
    assert story.offsets == [3, 4, 5]
    assert [each.last_offset for each in story.log.aborted_transactions(0, 6)] == [3]
    story.round()
    assert story.offsets == [3, 4, 5]
    assert story.log.aborted_transactions(0, 6) == []
    story.round(NOW + DAY_MS - 1)
    assert story.offsets == [3, 4, 5]
    story.round(NOW + DAY_MS)
    assert story.offsets == [4, 5]


def test_an_aborted_index_entry_stays_while_the_remote_tier_may_hold_its_data() -> None:
    story = Story()
    story.write(1, 1)
    story.log.roll(now_ms=NOW)  # by now on both tiers; the remote copy contains the aborted data
    story.end(1, commit=False)
    story.write(1, 3)
    story.end(1, commit=True)
    for now_ms in (NOW, NOW, NOW, END_OF_TIME):
        story.put(3)  # so that the segment is rewritten
        story.round(now_ms, tombstones_below=0)
        assert [each.first_offset for each in story.log.aborted_transactions(0, 4)] == [0]
        assert story.offsets[0] == 1
        assert story.batches[0].horizon_ms is None
    story.round(NOW, tombstones_below=4)
    assert story.log.aborted_transactions(0, 4) == []


def test_cleaning_keeps_the_last_batch_of_every_producer() -> None:
    story = Story()
    story.put(0)
    for producer in (1, 2, 3):
        story.write(producer, 0, is_transactional=False)
    story.write(2, 1, is_transactional=False)
    story.round()
    assert [batch.last_offset for batch in story.batches] == [1, 3, 4]
    assert story.offsets == [3, 4]
    assert {batch.producer[0]: batch.producer[2] for batch in story.batches} == {1: 0, 3: 0, 2: 1}


def test_a_marker_that_alone_holds_a_producers_epoch_is_kept() -> None:
    story = Story()
    story.write(1, 1)
    story.end(1, commit=True)
    story.log.append_marker(1, 1, commit=False, now_ms=NOW)  # a newer epoch fences the old one
    story.put(1)
    for now_ms in (NOW, NOW, END_OF_TIME, END_OF_TIME):
        story.round(now_ms)
    assert [(batch.last_offset, batch.is_control, len(batch.records)) for batch in story.batches] == [
        (2, True, 0),
        (3, False, 1),
    ]


def test_an_empty_last_batch_of_a_pass_keeps_the_log_end_offset() -> None:
    story = Story()
    story.put(1)
    story.log.append([Record(None, b"without a key", NOW)], now_ms=NOW)
    done = story.round()
    assert done is not None
    assert done.invalid_records == 1
    assert [(batch.last_offset, len(batch.records)) for batch in story.batches] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("following", [10, 11, 15, 30])
def test_an_offset_gap_before_the_active_segment_does_not_hold_the_checkpoint_back(following: int) -> None:
    disk = ModelDisk()
    disk.make_directory("./t-0")
    batch = encode_batch([(b"%d" % (at % 3), b"", NOW) for at in range(10)])
    disk.create(f"./t-0/{0:020}.log").append(batch)
    disk.create(f"./t-0/{following:020}.log").append(encode_batch([(b"x", b"", NOW)], base_offset=following))
    log = Log.open(disk, "./t-0", NAME, LogSettings(), now_ms=0)
    cleaner.clean(log, clean_from=0, now_ms=NOW)
    assert log.cleaner_offset == following
    assert [record.offset for record in log.records(0)] == [7, 8, 9, following]


def test_user_keys_with_the_bytes_of_a_marker_key_do_not_supersede_markers() -> None:
    story = Story()
    looks = b"\x00\x00\x00\x01"
    story.write(1, 1)
    story.end(1, commit=True)
    story.log.append([Record(looks, b"a", NOW)], now_ms=NOW)
    story.log.append([Record(looks, b"b", NOW)], now_ms=NOW)
    story.round()
    assert story.offsets == [0, 1, 3]


def test_keyless_records_are_removed_and_counted_in_the_dirty_and_in_the_clean_part() -> None:
    story = Story()
    story.put(1, 2)
    story.log.append(
        [Record(None, b"v", NOW), Record(b"", b"empty is a key", NOW), Record(None, None, NOW)], now_ms=NOW
    )
    story.log.roll(now_ms=NOW)
    story.log.cleaner_offset = 5  # as after a retention policy without a cleaner
    story.put(2)
    story.log.append([Record(None, b"v", NOW)], now_ms=NOW)
    done = story.round(is_dirty=False)
    assert done is not None
    assert (done.invalid_records, done.records_before, done.records_after) == (3, 7, 3)
    assert story.offsets == [0, 3, 5]
    again = story.round()
    assert again is not None
    assert again.invalid_records == 0


def test_an_empty_batch_that_no_producer_needs_is_removed_by_the_next_pass() -> None:
    story = Story()
    story.write(1, 1, is_transactional=False)
    story.put(1)
    story.round()
    assert [len(batch.records) for batch in story.batches] == [0, 1]
    story.write(1, 2, is_transactional=False)
    story.round()
    assert [(batch.last_offset, len(batch.records)) for batch in story.batches] == [(1, 1), (2, 1)]


# -- log messages


def test_the_log_message_before_a_pass_equals_kafkas(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(segment_bytes=300)
    for _ in range(3):
        story.put(*range(10))
    with caplog.at_level("INFO", logger="local.cleaner.cleaner"):
        story.round()
        story.round(now_ms=NOW + DAY_MS, tombstones_below=7)
    lines = [each for each in caplog.messages if each.startswith("Cleaning log ")]
    known = r"Cleaning log t-0 \(cleaning prior to [0-9: -]+ UTC, discarding tombstones prior to upper bound deletion "
    assert re.fullmatch(rf"{known}horizon none\)\.\.\.", lines[0])
    assert re.fullmatch(rf"{known}horizon none, none at or above offset 7\)\.\.\.", lines[1])


# -- the buffer


def test_a_log_with_more_keys_than_the_buffer_is_cleaned_in_passes_of_whole_segments() -> None:
    story = Story(segment_bytes=1500)
    for at in range(0, 400, 4):
        story.put(*range(at, at + 4))
    story.put(*range(0, 400, 3))
    story.log.roll(now_ms=NOW)
    story.log.cleaner_offset = 0
    bases = {info.base_offset for info in story.log.segments()}
    at, rounds = 0, 0
    while done := story.round(buffer_bytes=1500, is_dirty=False):
        assert at < done.cleaner_offset in bases
        assert done.buffer_utilization <= 1
        at, rounds = done.cleaner_offset, rounds + 1
    assert rounds > 3
    assert at == story.log.next_offset
    newest = {b"%d" % key: key for key in range(400)} | {b"%d" % (3 * n): 400 + n for n in range(134)}
    assert sorted((record.offset, record.key) for record in story.log.records(0)) == sorted(
        (offset, key) for key, offset in newest.items()
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_a_segment_with_more_keys_than_the_buffer_is_cleaned_in_several_passes(codec: Codec) -> None:
    story = Story(segment_bytes=1 << 20)
    batch = encode_batch([(b"a key of some length %4d" % at, b"v", NOW) for at in range(500)], codec=codec)
    for _ in range(2):
        story.log.append_encoded([bytearray(batch)], now_ms=NOW)
    story.log.roll(now_ms=NOW)
    assert len(story.log.segments()) == 2, "the log must have one closed segment and the active one"
    ends = [0]
    while done := story.round(buffer_bytes=3000, is_dirty=False):
        assert ends[-1] < done.cleaner_offset, "each pass must raise the checkpoint"
        assert done.is_cut == (done.cleaner_offset < 1000)
        ends.append(done.cleaner_offset)
        assert story.log.cleaner_reach <= done.cleaner_offset, "the log below the checkpoint must contain each key once"
    assert len(ends) > 4
    assert [record.offset for record in story.log.records(0)] == list(range(500, 1000))


def test_a_buffer_too_small_for_one_key_is_refused_and_nothing_changes() -> None:
    story = Story()
    story.log.append_encoded([bytearray(encode_batch([(b"k" * 40, b"v", NOW)] * 3, codec=Codec.ZSTD))], now_ms=NOW)
    story.log.roll(now_ms=NOW)
    effects = story.disk.effects
    with pytest.raises(InvalidRequest, match="one key does not fit in the dedupe buffer"):
        story.round(buffer_bytes=24)
    assert story.disk.effects == effects


# Kafka uses 24 bytes per key and fills 90 % of the buffer: 39,321 keys per MiB.
@pytest.mark.parametrize(("codec", "keys_min"), [(each, 39_300) for each in Codec if each] + [(Codec.NONE, 76_000)])
def test_a_mebibyte_of_buffer_holds_at_least_as_many_keys_as_kafkas(codec: Codec, keys_min: int) -> None:
    story = Story(segment_bytes=64 << 20)
    for first in range(0, 80_000, 5000):
        keys = [(b"%036d" % at, b"v", NOW) for at in range(first, first + 5000)]
        story.log.append_encoded([bytearray(encode_batch(keys, codec=codec))], now_ms=NOW)
    done = story.round(buffer_bytes=1 << 20)
    assert done is not None
    assert done.distinct_keys >= keys_min
    assert done.is_cut
    assert done.buffer_utilization == pytest.approx(0.9, abs=0.001), "the pass must stop at Kafka's load factor"


def test_buffer_utilization_of_a_small_pass_counts_only_its_keys() -> None:
    story = Story(segment_bytes=1 << 20)
    story.put(*range(1000))
    done = story.round(buffer_bytes=1 << 20)
    assert done is not None
    assert done.buffer_utilization == pytest.approx(1000 / (31 / 32 * (1 << 20) / 12), abs=0.001)
    assert not done.is_cut


def test_a_key_in_compressed_and_uncompressed_segments_is_one_key_at_any_length() -> None:
    for size in (1, 8, 11, 12, 13, 40):
        story = Story(segment_bytes=1 << 20)
        for codec in (Codec.NONE, Codec.ZSTD, Codec.NONE):
            keys = [(b"%0*d" % (size, at % 10), b"v", NOW) for at in range(10)]
            story.log.append_encoded([bytearray(encode_batch(keys, codec=codec))], now_ms=NOW)
            story.log.roll(now_ms=NOW)
        while story.round(buffer_bytes=400, is_dirty=False):
            pass
        assert [record.offset for record in story.log.records(0)] == list(range(20, 30)), size


def test_a_merged_segment_without_record_times_keeps_the_newest_modification_time(tmp_path: Path) -> None:
    disk = DiskStorage()
    log = Log.open(disk, str(tmp_path / "t-0"), NAME, LogSettings(), now_ms=0)
    for _ in range(2):
        log.append([Record(b"a", b"v", -1)], now_ms=NOW)
        log.roll(now_ms=NOW)
    log.segment(1).modified_ms = 1_500_000_000_000  # the last of the merged segments
    cleaner.clean(log, clean_from=0, now_ms=NOW)
    assert [record.offset for record in log.records(0)] == [1]
    assert log.segments()[0].age_timestamp_ms == log.segment(0).modified_ms == 1_500_000_000_000
    log.close()
