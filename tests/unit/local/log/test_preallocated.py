"""What a broker that was killed leaves behind: files allocated ahead, their tails zeros. No damage, and no records."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk
from log_world import fill, open_log, read_all

from local.log import Log

ZEROS = {".log": 4096, ".index": 1 << 16, ".timeindex": 12 * 5000}


def killed(suffixes: tuple[str, ...], count: int = 55) -> tuple[ModelDisk, Log]:
    """A log's files as the active segment's are with `preallocate` and indexes of segment.index.bytes."""
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, count)
    for suffix in suffixes:
        inode = disk.names[f"./t-0/{log.segments()[-1].base_offset:020d}{suffix}"]
        inode.data += bytes(ZEROS[suffix])
    return disk, log


CASES = [(".index", ".timeindex"), (".log",), (".log", ".index", ".timeindex")]


@pytest.mark.parametrize("suffixes", CASES, ids=" ".join)
@pytest.mark.parametrize("point", [0, 30, 55])
def test_zeros_behind_the_last_batch_are_cut_at_the_start_and_the_log_goes_on(
    suffixes: tuple[str, ...], point: int
) -> None:
    disk, before = killed(suffixes)
    size = before.size_bytes
    log = open_log(disk, recovery_point=point)
    assert (log.next_offset, log.size_bytes) == (55, size)
    fill(log, 40, start=55)
    log.close()
    for clean in (True, False):
        assert [record.offset for record in read_all(open_log(disk, was_clean=clean))] == list(range(95))


@pytest.mark.parametrize("suffixes", CASES, ids=" ".join)
def test_zeros_behind_the_last_batch_are_not_shown_read_only(suffixes: tuple[str, ...]) -> None:
    disk, _ = killed(suffixes)
    log = open_log(disk, read_only=True)
    assert log.next_offset == 55
    for start in (0, 1, 30, 54):
        assert [record.offset for record in read_all(log, start)] == list(range(start, 55))
    assert log.offset_for_timestamp(5054) == 54
    assert log.segments()[-1].max_timestamp_ms == 5054


@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")], ids=" ".join)
def test_index_zeros_are_rebuilt_away_even_when_the_shutdown_is_said_to_be_clean(suffixes: tuple[str, ...]) -> None:
    disk, _ = killed(suffixes)
    log = open_log(disk, was_clean=True)
    for start in (0, 1, 30, 54):
        assert [record.offset for record in read_all(log, start)] == list(range(start, 55))
    assert log.offset_for_timestamp(5054) == 54


def test_a_segment_of_zeros_alone_is_an_empty_one() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    log.release()
    disk.names["./t-0/00000000000000000000.log"].data += bytes(100_000)
    log = open_log(disk)
    assert (log.next_offset, log.size_bytes) == (0, 0)
    fill(log, 10)
    assert len(read_all(open_log(disk))) == 10
