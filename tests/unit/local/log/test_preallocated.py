"""Files of a killed broker: preallocated, with tails of zeros that are neither damage nor records."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk
from log_world import fill, open_log, read_all

from local.log import Log

ZEROS = {".log": 4096, ".index": 1 << 16, ".timeindex": 12 * 5000}


def killed(suffixes: tuple[str, ...], count: int = 55) -> tuple[ModelDisk, Log]:
    """Files of a log whose active segment was preallocated: `suffixes` end in zeros."""
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
def test_zeros_behind_the_last_batch_are_truncated_at_the_start_and_appends_succeed(
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
def test_a_read_only_open_does_not_show_zeros_behind_the_last_batch(suffixes: tuple[str, ...]) -> None:
    disk, _ = killed(suffixes)
    log = open_log(disk, read_only=True)
    assert log.next_offset == 55
    for start in (0, 1, 30, 54):
        assert [record.offset for record in read_all(log, start)] == list(range(start, 55))
    assert log.offset_for_timestamp(5054) == 54
    assert log.segments()[-1].max_timestamp_ms == 5054


@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")], ids=" ".join)
def test_indexes_that_end_in_zeros_are_rebuilt_even_after_a_clean_shutdown(suffixes: tuple[str, ...]) -> None:
    disk, _ = killed(suffixes)
    log = open_log(disk, was_clean=True)
    for start in (0, 1, 30, 54):
        assert [record.offset for record in read_all(log, start)] == list(range(start, 55))
    assert log.offset_for_timestamp(5054) == 54


def test_a_segment_of_zeros_only_is_empty() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    log.release()
    disk.names["./t-0/00000000000000000000.log"].data += bytes(100_000)
    log = open_log(disk)
    assert (log.next_offset, log.size_bytes) == (0, 0)
    fill(log, 10)
    assert len(read_all(open_log(disk))) == 10
