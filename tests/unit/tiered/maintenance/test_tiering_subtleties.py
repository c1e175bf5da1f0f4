"""The subtle cases e to h of Kafka's tiering: swap files, and the fields of cleaned batches.
Cases a to d, i and j need a whole manager and are in `test_tiering_scenarios`."""

from __future__ import annotations

import pytest
from cleaner_oracle import Batch
from disk_model import ModelDisk
from test_cleaner_scenarios import NOW, Story

from local.format.compression import Codec
from local.format.record import Record
from local.log import Log
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.settings import DAY_MS, LogSettings

NAME = TopicPartition("t", 0)


def segment(first: int, count: int, value: bytes) -> bytes:
    return encode_batch([(b"%d" % at, value, NOW) for at in range(first, first + count)], base_offset=first)


def directory(files: dict[str, bytes]) -> ModelDisk:
    disk = ModelDisk()
    disk.make_directory("./t-0")
    for name, body in files.items():
        file = disk.create(f"./t-0/{name}")
        file.append(body)
        file.sync()
    disk.sync_directory("./t-0")
    return disk


@pytest.mark.parametrize(
    ("swap", "cleaned", "wins"),
    [(0, 10, True), (10, 10, False), (10, 0, False), (0, None, True), (10, None, True)],
    ids=["below the cleaned one", "at it", "above it", "nothing cleaned", "nothing cleaned, the second"],
)
def test_subtle_e_swap_file_is_used_only_below_the_smallest_cleaned_file(
    swap: int, cleaned: int | None, wins: bool
) -> None:
    files = {f"{base:020d}.log": segment(base, 10, b"old") for base in (0, 10, 20)}
    files[f"{swap:020d}.log.swap"] = segment(swap, 10, b"new")
    if cleaned is not None:
        files[f"{cleaned:020d}.log.cleaned"] = segment(cleaned, 10, b"half")[:-3]
    disk = directory(files)
    for _ in range(2):  # a second open must find the same
        log = Log.open(disk, "./t-0", NAME, LogSettings(), now_ms=0)
        found = {record.offset: record.value for record in log.records(0)}
        assert list(found) == list(range(30))
        assert [found[base] for base in (0, 10, 20)] == [
            b"new" if wins and base == swap else b"old" for base in (0, 10, 20)
        ]
        assert not [name for name in disk.list("./t-0") if name.endswith((".swap", ".cleaned"))]
        log.close()


def entry_filter(batches: list[Batch], base_offset: int) -> Batch:
    (found,) = [batch for batch in batches if batch.base_offset == base_offset]
    return found


def test_subtle_f_empty_retained_batch_keeps_its_times_and_end_offset() -> None:
    story = Story()
    story.write(7, 1, is_transactional=False)  # the last batch of its producer, retained only for its sequence number
    story.put(1, 2)
    story.round()
    kept = entry_filter(story.batches, 0)
    assert (kept.records, kept.last_offset) == ((), 0)
    assert (kept.base_timestamp_ms, kept.max_timestamp_ms) == (-1, NOW)
    assert [record.offset for record in story.log.records(0)] == [1, 2], "an empty batch must give no record"
    assert story.log.next_offset == story.log.last_stable_offset == 3
    again = Log.open(story.disk, "./t-0", NAME, LogSettings(), now_ms=0)
    assert (again.next_offset, again.last_stable_offset) == (3, 3)


def test_subtle_g_delete_horizon_is_no_record_time_and_is_not_moved_by_a_second_pass() -> None:
    story = Story()
    story.put(1, timestamp_ms=NOW + 5)
    story.log.append([Record(b"1", None, NOW - 7), Record(b"2", b"v", NOW - 9)], now_ms=NOW)
    story.round()
    kept = entry_filter(story.batches, 1)
    assert kept.horizon_ms == NOW + DAY_MS
    assert [record.timestamp_ms for record in kept.records] == [NOW - 7, NOW - 9], (
        "the time deltas of the records are negative now"
    )
    assert kept.max_timestamp_ms == NOW - 7
    assert story.log.offset_for_timestamp(NOW - 8) == 1
    assert story.log.offset_for_timestamp(NOW) is None
    story.put(3)
    story.round(NOW + 1000)
    assert entry_filter(story.batches, 1).horizon_ms == NOW + DAY_MS
    assert [record.timestamp_ms for record in entry_filter(story.batches, 1).records] == [NOW - 7, NOW - 9]
    story.round(NOW + DAY_MS)
    assert story.offsets == [2, 3], "the tombstone must be removed at the first horizon"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_subtle_h_user_key_equal_to_a_commit_marker_key_is_compacted_separately(
    codec: Codec,
) -> None:
    story = Story(compression=codec)
    looks = b"\x00\x00\x00\x01"
    story.log.append([Record(looks, b"a", NOW)], now_ms=NOW)
    story.write(1, 1)
    story.end(1, commit=True)
    story.round()
    assert story.offsets == [0, 1, 2], "the marker must not remove the record with the same key bytes"
    story.log.append([Record(looks, b"b", NOW)], now_ms=NOW)
    story.round()
    assert story.offsets == [1, 2, 3], "a record must not remove the marker with the same key bytes"
    assert entry_filter(story.batches, 2).is_control
