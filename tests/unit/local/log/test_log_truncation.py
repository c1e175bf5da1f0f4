"""Truncation: removes the records from an offset on, and their producer, transaction and epoch entries."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk
from log_world import NAME, SMALL, fill, open_log, read_all
from test_producer_state_files import COMPACTED, end, facts, names_of, put, story

from local.cleaner import cleaner
from local.errors import Corrupt, DiskFailed
from local.format.record import Record
from local.index.index_files import build_indexes
from local.kernels import scan_batches
from local.log import Durability, checkpoints
from local.logdirs.log_dir import LogDirectory
from local.names import LOG, OFFSET_INDEX, PRODUCER_SNAPSHOT, RECOVERY_POINTS, TIME_INDEX, TXN_INDEX, segment_file
from local.records.batch import read_header


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 55, 60, 99, 100])
@pytest.mark.parametrize("reopens", [True, False])
def test_truncation_keeps_exactly_the_whole_batches_below_the_offset(offset: int, reopens: bool) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 100)
    before = read_all(log)
    ends = [0]
    for base in [info.base_offset for info in log.segments()]:
        table = scan_batches(disk.read(f"./t-0/{segment_file(base, LOG)}"))
        ends += [last + 1 for last in table.last_offsets.tolist()]
    expected = max(each for each in ends if each <= offset)
    assert log.truncate_to(offset, now_ms=0) == log.next_offset == offset
    assert log.recovery_point == offset or offset == 100
    if reopens:
        log.release()
        log = open_log(disk, recovery_point=log.recovery_point)
    assert log.next_offset == offset
    assert read_all(log) == before[:expected]
    log.append([Record(b"new", b"", 9000)], now_ms=0)
    assert read_all(log)[-1].offset == offset
    assert log.offset_for_timestamp(9000) == offset


def test_truncation_leaves_indexes_equal_to_indexes_built_from_the_shorter_log() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 100)
    base = log.segments()[-2].base_offset
    batches = scan_batches(disk.read(f"./t-0/{segment_file(base, LOG)}"))
    log.truncate_to(int(batches.base_offsets[-1]), now_ms=0)
    path = f"./t-0/{segment_file(base, '')}"
    indexes = build_indexes(scan_batches(disk.read(path + LOG)), base, SMALL.index_interval_bytes)
    assert disk.read(path + OFFSET_INDEX) == indexes.offset
    assert disk.read(path + TIME_INDEX) == indexes.time
    assert [info.base_offset for info in log.segments()][-1] == base


@pytest.mark.parametrize("reopens", [True, False])
def test_a_truncation_inside_a_cleaned_batch_ends_the_log_at_the_offset(reopens: bool) -> None:
    disk = ModelDisk()
    log = open_log(disk, COMPACTED)
    for at in range(20):
        log.append([Record(b"k%d" % key, b"v%d" % at, 5000) for key in range(10)], now_ms=1000)
    log.roll(now_ms=1000)
    cleaner.clean(log, now_ms=1000, tombstones_below=None)
    assert [record.offset for record in read_all(log)] == list(range(190, 200))
    assert log.truncate_to(195, now_ms=1000) == 195
    if reopens:
        log.release()
        log = open_log(disk, COMPACTED, recovery_point=log.recovery_point)
    assert (log.next_offset, log.epochs.latest) == (195, 0)
    assert log.log_start_offset == log.local_log_start_offset == 195, "no record below the truncation is left to read"
    assert list(log.records(log.log_start_offset)) == []
    assert log.append([Record(b"k", b"new", 9000)], now_ms=1000).base_offset == 195
    assert [record.offset for record in log.records(log.log_start_offset)] == [195]
    log.close()
    assert [record.offset for record in read_all(open_log(disk, COMPACTED, was_clean=True), 195)] == [195]


@pytest.mark.parametrize("offset", range(11))
def test_after_a_truncation_producer_state_equals_a_replay_of_the_remaining_batches(offset: int) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    story(log)
    log.truncate_to(offset, now_ms=0)
    assert log.next_offset == offset
    live = facts(log)
    assert all(at <= offset for at in names_of(disk, PRODUCER_SNAPSHOT))
    assert all(each.last_offset < offset for each in log.aborted_transactions(0, offset))
    log.flush()
    log.release()
    for at in names_of(disk, PRODUCER_SNAPSHOT):
        del disk.names["./t-0/" + segment_file(at, PRODUCER_SNAPSHOT)]
    assert facts(open_log(disk)) == live, "the producer state must equal a replay of the remaining batches"


def test_a_truncated_transaction_index_keeps_the_entries_below_the_offset() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    for number in (1, 2):
        put(log, number)
        end(log, number, commit=False)
    log.truncate_to(3, now_ms=0)
    assert [each.last_offset for each in log.aborted_transactions(0, 3)] == [1]
    log.truncate_to(1, now_ms=0)
    assert names_of(disk, TXN_INDEX) == []
    assert log.last_stable_offset == 0
    end(log, 1, commit=False)
    assert [each.last_offset for each in log.aborted_transactions(0, 2)] == [1]


def test_truncation_removes_the_epochs_that_begin_above_the_offset() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 10)
    log.begin_epoch(3)
    fill(log, 10)
    log.truncate_to(10, now_ms=0)
    assert log.epochs.entries == ((0, 0),)
    assert checkpoints.read_epochs(disk, "./t-0/leader-epoch-checkpoint") == [(0, 0)]


def test_a_truncation_below_the_log_start_lowers_the_log_start_durably() -> None:
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    directory.create(NAME, "A" * 22)
    log = directory.open_log(NAME, SMALL, now_ms=0)
    fill(log, 100)
    log.raise_log_start(70)
    directory.write_checkpoints()
    assert log.truncate_to(50, now_ms=0) == 50
    assert (log.log_start_offset, log.next_offset) == (50, 50)
    log.append([Record(b"k", b"acknowledged", 1)], now_ms=0, durability=Durability.FLUSHED)
    directory.abandon()
    disk.locks.clear()
    again = LogDirectory(disk, "./data").open_log(NAME, SMALL, now_ms=0)
    assert (again.log_start_offset, again.next_offset) == (50, 51)


def test_a_truncation_below_a_noted_log_start_lowers_the_note_durably() -> None:
    """The directory notes a log start that DeleteRecords raised.
    If the note stayed above the log's end, the next open would delete the records appended since the truncation."""
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    directory.create(NAME, "A" * 22)
    log = directory.open_log(NAME, SMALL, now_ms=0)
    fill(log, 100)
    directory.write_log_starts({NAME: 70})
    log.raise_log_start(70)
    assert log.truncate_to(50, now_ms=0) == 50
    log.append([Record(b"k", b"acknowledged", 1)], now_ms=0, durability=Durability.FLUSHED)
    directory.abandon()
    disk.locks.clear()
    again = LogDirectory(disk, "./data").open_log(NAME, SMALL, now_ms=0)
    assert (again.log_start_offset, again.next_offset) == (50, 51)


def test_the_recovery_point_checkpoint_is_lowered_before_any_byte_is_removed() -> None:
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    directory.create(NAME, "A" * 22)
    log = directory.open_log(NAME, SMALL, now_ms=0)
    fill(log, 100)
    log.flush()
    directory.write_checkpoints()
    disk.journal.clear()
    log.truncate_to(45, now_ms=0)
    # the end of the last remaining batch
    assert checkpoints.read_offsets(disk, f"./data/{RECOVERY_POINTS}") == {NAME: 40}
    written = disk.journal.index(f"rename ./data/{RECOVERY_POINTS}.tmp ./data/{RECOVERY_POINTS}")
    synced = disk.journal.index("sync ./data/", written)
    assert synced < min(at for at, what in enumerate(disk.journal) if what.startswith(("unlink", "truncate")))


def test_a_torn_append_after_a_truncation_is_truncated_and_not_reported_as_damage() -> None:
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    directory.create(NAME, "A" * 22)
    log = directory.open_log(NAME, SMALL, now_ms=0)
    fill(log, 40)
    log.flush()
    directory.write_checkpoints()
    kept = log.truncate_to(15, now_ms=0)
    fill(log, 10)
    path = f"./data/{NAME.directory}/{segment_file(kept, LOG)}"
    directory.abandon()
    disk.locks.clear()
    del disk.names[path].data[-1:]
    again = LogDirectory(disk, "./data").open_log(NAME, SMALL, now_ms=0)
    assert kept <= again.next_offset < 25


def test_a_truncation_lowers_a_cleaner_offset_above_it() -> None:
    disk = ModelDisk()
    log = open_log(disk, COMPACTED)
    fill(log, 100)
    log.roll(now_ms=0)
    cleaner.clean(log, clean_from=0, now_ms=0)
    assert log.cleaner_offset == 100
    log.truncate_to(95, now_ms=0)
    assert log.cleaner_offset is not None
    assert log.cleaner_offset <= log.next_offset == 95


def test_a_read_after_a_truncation_returns_only_whole_batches_below_it() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 100)
    view = log.view
    log.truncate_to(15, now_ms=0)
    data = log.read(0, 100_000)
    header = read_header(data)
    assert header is not None
    assert header.size_bytes == len(data)
    assert (header.next_offset, log.next_offset) == (10, 15)
    with pytest.raises(Exception, match="replaced or deleted"):
        view.segments[-1].read(0, 100)


def test_after_a_disk_failure_in_a_truncation_the_log_refuses_appends_until_reopened() -> None:
    rehearsal = ModelDisk()
    log = open_log(rehearsal)
    story(log)
    log.flush()
    effects = rehearsal.effects
    log.truncate_to(4, now_ms=0)
    for at in range(effects + 1, rehearsal.effects + 1):
        for before in (True, False):
            disk = ModelDisk()
            log = open_log(disk)
            story(log)
            log.flush()
            whole = read_all(log)
            disk.fail_at, disk.cut_before = at, before
            with pytest.raises(DiskFailed):
                log.truncate_to(4, now_ms=0)
            with pytest.raises(DiskFailed, match="reopen"):
                log.append([Record(b"k", b"v", 1)], now_ms=0)
            disk.fail_at = None
            log.release()
            again = open_log(disk)
            assert again.next_offset in (4, 5, 7, 10)
            assert read_all(again) == [record for record in whole if record.offset < again.next_offset]


def test_a_truncation_does_not_hide_a_damaged_batch_below_it() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 40)
    path = f"./t-0/{segment_file(0, LOG)}"
    disk.names[path].data[100] ^= 1
    log.truncate_to(30, now_ms=0)
    with pytest.raises(Corrupt):
        read_all(log)
    disk.names[path].data[16] = 9  # magic of the first batch: the boundaries of later batches are unknown
    with pytest.raises(Corrupt, match="cannot truncate"):
        log.truncate_to(20, now_ms=0)
    assert log.next_offset == 30
