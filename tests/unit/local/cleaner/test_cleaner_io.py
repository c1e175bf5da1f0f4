"""A cleaner pass that is aborted at any step, and one that a throttle delays."""

from __future__ import annotations

import random

import pytest
from disk_model import ModelDisk
from test_cleaner import append, open_log, read_all

from local import kernels
from local.cleaner import cleaner
from local.errors import CleaningAborted
from local.format.record import Record
from local.log import Log
from local.records.batch import HEADER_BYTES


def filled() -> tuple[ModelDisk, Log]:
    disk = ModelDisk()
    log = open_log(disk)
    append(log, random.Random(7), 400, 40)
    log.roll(now_ms=0)
    return disk, log


def newest_values(log: Log) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_all(log)}


def steps_of_a_pass() -> int:
    disk, log = filled()
    asked = 0

    def count() -> bool:
        nonlocal asked
        asked += 1
        return False

    cleaner.clean(log, disk, clean_from=0, now_ms=0, should_stop=count)
    return asked


STEPS = steps_of_a_pass()


@pytest.mark.parametrize("step", range(0, STEPS, 3))
def test_a_pass_aborted_at_any_step_changes_nothing_and_the_next_pass_completes(step: int) -> None:
    disk, log = filled()
    expected = newest_values(log)
    asked = iter([False] * step + [True])
    with pytest.raises(CleaningAborted):
        cleaner.clean(log, disk, clean_from=0, now_ms=0, should_stop=lambda: next(asked))
    assert log.cleaner_offset == 0
    assert not [name for name in disk.list("./t-0") if name.endswith((".cleaned", ".swap"))]
    assert newest_values(log) == expected
    assert cleaner.clean(log, disk, clean_from=0, now_ms=0) is not None
    whole_disk, whole = filled()
    cleaner.clean(whole, whole_disk, clean_from=0, now_ms=0)
    assert read_all(log) == read_all(whole)
    assert log.cleaner_offset == whole.cleaner_offset


def test_the_throttle_counts_every_byte_read_and_written() -> None:
    disk, log = filled()
    told: list[int] = []
    clock = iter(float(at) for at in range(100))
    done = cleaner.clean(log, disk, clean_from=0, now_ms=0, throttle=told.append, clock=lambda: next(clock))
    assert done is not None
    assert sum(told) == done.bytes_read + done.bytes_written
    assert done.indexed_bytes == done.bytes_before
    assert done.bytes_written == done.bytes_after
    assert (done.index_seconds, done.clean_seconds) == (1.0, 1.0)


def test_a_pass_reads_its_input_twice_as_kafka_does() -> None:
    """The first read is for the offset map, the second for the remaining records. Between them only batch headers are
    read."""
    disk = ModelDisk()
    log = open_log(disk)
    draw = random.Random(7)
    for _ in range(40):
        log.append([Record(b"k%d" % draw.randrange(30), draw.randbytes(200), 5000) for _ in range(20)], now_ms=1000)
    log.roll(now_ms=0)
    dirty = [info for info in log.segments() if not info.is_active]
    size = sum(info.size_bytes for info in dirty)
    bodies = [log.segment(info.base_offset).read(0, info.size_bytes) for info in dirty]
    batches = sum(len(kernels.scan_batches(body)) for body in bodies)
    told: list[int] = []
    done = cleaner.clean(log, disk, clean_from=0, now_ms=0, throttle=told.append)
    assert done is not None
    assert 2 * size < done.bytes_read <= 2 * size + HEADER_BYTES * batches
    assert sum(told) == done.bytes_read + done.bytes_written
