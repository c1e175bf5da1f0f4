"""One damaged byte in an index: every record is found by offset and by time, and the index is rebuilt."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterator

import pytest
from disk_model import ModelDisk
from log_world import SMALL, open_log
from run_profile import CALL_STRIDE

from local import kernels
from local.errors import Corrupt
from local.format.record import Record, StoredRecord
from local.log import Log
from local.names import OFFSET_INDEX
from local.segment.segment_reading import batch_slices

FLIPS = (0x04, 0xFF)
# Times that fall and rise: the largest timestamp stays the same over many batches.
TIMES = [5000 + (at * 37) % 50 + at // 4 for at in range(120)]


def _closed_log() -> tuple[ModelDisk, list[Record]]:
    disk = ModelDisk()
    log = open_log(disk)
    sent = [Record(b"k%d" % (at % 9), b"value %d" % at, time_ms) for at, time_ms in enumerate(TIMES)]
    for at in range(0, len(sent), 4):
        log.append(sent[at : at + 4], now_ms=1000)
    log.close()
    return disk, sent


DISK, SENT = _closed_log()


def _damaged(suffix: str) -> Iterator[tuple[str, int, int, ModelDisk]]:
    """Every byte of every index with `suffix`, changed in several ways, each on a separate disk."""
    for name in sorted(DISK.names):
        if not name.endswith(suffix):
            continue
        for at, flip in itertools.product(range(0, len(DISK.names[name].data), CALL_STRIDE), FLIPS):
            disk = copy.deepcopy(DISK)
            disk.names[name].data[at] ^= flip
            disk.names[name].sync()
            yield name, at, flip, disk


def _answers(log: Log) -> list[tuple[int, ...]]:
    """The offsets of the first batch that a read returns, for every offset of the log."""
    return [tuple(kernels.decode_columns(log.read(at, 1)).offsets.tolist()) for at in range(log.next_offset)]


def _first_at_or_after(time_ms: int) -> int | None:
    return next((at for at, each in enumerate(TIMES) if each >= time_ms), None)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_wrong_byte_in_an_offset_index_hides_no_record(read_only: bool) -> None:
    expected = _answers(open_log(copy.deepcopy(DISK), was_clean=True))
    for name, at, flip, disk in _damaged(".index"):
        log = open_log(disk, was_clean=True, read_only=read_only)
        assert _answers(log) == expected, (name, at, flip)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_wrong_byte_in_a_time_index_hides_no_record(read_only: bool) -> None:
    asked = sorted({*TIMES, min(TIMES) - 1, max(TIMES) + 1})
    expected = [_first_at_or_after(time_ms) for time_ms in asked]
    for name, at, flip, disk in _damaged(".timeindex"):
        log = open_log(disk, was_clean=True, read_only=read_only)
        assert [log.offset_for_timestamp(time_ms) for time_ms in asked] == expected, (name, at, flip)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_wrong_byte_in_a_time_index_makes_no_segment_look_older(read_only: bool) -> None:
    whole = [info.max_timestamp_ms for info in open_log(copy.deepcopy(DISK), was_clean=True).segments()]
    for name, at, flip, disk in _damaged(".timeindex"):
        log = open_log(disk, was_clean=True, read_only=read_only)
        assert [info.max_timestamp_ms for info in log.segments()] == whole, (name, at, flip)


def test_a_wrong_offset_index_is_logged_and_rebuilt_on_disk(caplog: pytest.LogCaptureFixture) -> None:
    good = {name: bytes(inode.data) for name, inode in DISK.names.items()}
    for name, at, flip, disk in _damaged(".index"):
        caplog.clear()
        log = open_log(disk, was_clean=True)
        _answers(log)
        log.close()
        if not caplog.records:
            # The entry names the last offset of a later batch: a lookup then starts at an earlier, safe position.
            assert at % 8 < 4, (name, at, flip)
            continue
        assert bytes(disk.names[name].data) == good[name], (name, at, flip)
        assert caplog.records[0].levelno == logging.WARNING, (name, at, flip)
        assert name.removesuffix(".index") in caplog.text


@pytest.mark.parametrize("read_only", [False, True])
def test_batch_slices_end_at_batches_despite_a_wrong_offset_index(read_only: bool) -> None:
    for name, at, flip, disk in _damaged(".index"):
        log = open_log(disk, was_clean=True, read_only=read_only)
        if not read_only:
            log.roll(now_ms=1000)
        for segment in log.view.segments[: 2 if read_only else -1]:
            slices = [data for _, data in batch_slices(segment, 300)]
            assert all(kernels.scan_batches(data).valid_bytes == len(data) for data in slices), (name, at, flip)
            assert sum(map(len, slices)) == segment.size_bytes


def test_a_log_with_a_wrong_index_serves_old_and_newly_appended_records() -> None:
    for name, at, flip, disk in _damaged(".index"):
        log = open_log(disk, was_clean=True)
        if log.view.segments[-1].path(".index") != name:
            continue
        for value in range(12):
            log.append([Record(b"k", b"more %d" % value, 9000 + value)] * 4, now_ms=1000)
        expected = list(range(log.next_offset))
        assert [record.offset for each in expected[::3] for record in _first(log, each)] == expected[::3], (at, flip)
        log.close()
        again = open_log(disk, was_clean=True)
        assert [record.offset for each in expected for record in _first(again, each)] == expected, (at, flip)
        sealed = again.view.segments[0]
        assert bytes(sealed.index(OFFSET_INDEX)) == bytes(disk.names[sealed.path(".index")].data)


def test_a_wrong_index_of_a_damaged_log_hides_no_record_before_the_damage() -> None:
    """Two faults: the log's headers are damaged too, so the index cannot be rebuilt."""
    disk = copy.deepcopy(DISK)
    log = next(name for name in sorted(disk.names) if name.endswith(".log"))
    index = log.replace(".log", ".index")
    table = kernels.scan_batches(bytes(disk.names[log].data))
    broken = len(table) - 2
    disk.names[log].data[int(table.positions[broken]) + 16] = 9
    entry = disk.names[index].data[:8]
    entry[7] ^= 0x55
    disk.names[index].data[:8] = entry
    opened = open_log(disk, was_clean=True)
    for at in range(int(table.base_offsets[broken])):
        assert at in kernels.decode_columns(opened.read(at, 1)).offsets
    with pytest.raises(Corrupt, match="magic 9"):
        opened.read(int(table.base_offsets[broken]), 1)


def _first(log: Log, offset: int) -> list[StoredRecord]:
    columns = kernels.decode_columns(log.read(offset, 1))
    return [record for record in columns.records() if record.offset == offset]


assert SMALL.index_interval_bytes < 300, "each segment must have several index entries"
