"""Reads of segment files at once: equal to reads of the log, or none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from log_world import SMALL, fill, open_log

from local import kernels
from local.cleaner import cleaner
from local.format.record import Record
from local.index import offset_index
from local.log import Log
from local.names import OFFSET_INDEX
from local.settings import LogSettings
from local.storage import DiskStorage
from tiered.serve.file_range import FileRange
from tiered.serve.node import file_reads
from tiered.serve.node.file_reads import FileReads

COUNT = 600
LIMITS = (1, 150, 400, 1000, 5000, 1 << 20)


@pytest.fixture(params=["files", "memory"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every read is a range of a file, or every read is a copy."""
    monkeypatch.setattr(file_reads, "SMALL_BYTES", 0 if request.param == "files" else 1 << 30)
    return str(request.param)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Several closed segments and an active one, index entries after every second batch."""
    with_segments = open_log(DiskStorage(), root=str(tmp_path / "t-0"))
    fill(with_segments, COUNT)
    assert len(with_segments.view.segments) > 5
    map_indexes(with_segments)
    yield with_segments
    with_segments.close()


def map_indexes(log: Log) -> None:
    """Read the log's indexes, as earlier reads of the log do."""
    for segment in log.view.segments:
        segment.entry_before(segment.base_offset)


def data_of(found: FileRange | memoryview | None) -> bytes:
    assert found is not None
    return found.read() if isinstance(found, FileRange) else bytes(found)


def next_of(data: bytes) -> int:
    return int(kernels.scan_batches(data).last_offsets[-1]) + 1


@pytest.mark.parametrize("bytes_max", LIMITS)
def test_a_read_is_the_beginning_of_a_read_of_the_log(log: Log, bytes_max: int, way: str) -> None:
    reads, answered = FileReads(), 0
    for offset in range(COUNT):
        expected = bytes(log.read(offset, 1 << 20))
        found = reads.read(log, offset, bytes_max)
        if found is None:
            continue
        answered += 1
        data = data_of(found)
        table = kernels.scan_batches(data)
        assert expected.startswith(data), offset
        assert table.valid_bytes == len(data), "batches must be whole"
        assert len(data) <= bytes_max or len(table) == 1
        assert isinstance(found, FileRange) == (way == "files")
    assert answered > COUNT * 0.9 if bytes_max in (1, 1 << 20) else answered > COUNT / 4


@pytest.mark.parametrize("bytes_max", LIMITS)
def test_a_consumer_reads_all_records_once(log: Log, bytes_max: int, way: str) -> None:
    reads, offset, found = FileReads(), 0, list[int]()
    while offset < log.next_offset:
        run = reads.read(log, offset, bytes_max)
        data = bytes(log.read(offset, bytes_max)) if run is None else data_of(run)
        found += [int(each) for each in kernels.decode_columns(data).offsets if each >= offset]
        offset = next_of(data)
    assert found == list(range(COUNT))
    assert not reads._places or len(reads._places) < 3, "a place is used once"


def test_a_consumer_that_reads_on_needs_no_index(log: Log, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    reads = FileReads()
    data = data_of(reads.read(log, 0, 800))
    monkeypatch.setattr(type(log.view.segments[0]), "entry_before", None)
    following = reads.read(log, next_of(data), 1 << 20)
    assert bytes(log.view.segments[0].read(len(data), 1 << 20)) == data_of(following)


def test_the_end_of_the_log_is_read_up_to_the_last_append(log: Log) -> None:
    reads = FileReads()
    for count in range(3):
        end = log.next_offset
        assert reads.read(log, end, 1 << 20) is None
        fill(log, 10, start=COUNT + 10 * count)
        data = data_of(reads.read(log, end, 1 << 20))
        assert (next_of(data), data) == (end + 10, bytes(log.read(end, 1 << 20)))


def test_a_large_batch_is_read_alone(tmp_path: Path, way: str) -> None:
    settings = LogSettings(batch_bytes=1 << 20)
    log = open_log(DiskStorage(), settings, root=str(tmp_path / "t-0"))
    for at in range(6):
        log.append([Record(None, b"%d" % at * (20_000 if at % 2 else 10), 5000)], now_ms=1000)
    reads = FileReads()
    for offset in (1, 3, 5):
        assert next_of(data_of(reads.read(log, offset, 100))) == offset + 1
    log.close()


def test_a_log_with_removed_offsets_is_read_from_the_next_batch(tmp_path: Path, way: str) -> None:
    log = open_log(DiskStorage(), replace(SMALL, is_compacted=True), root=str(tmp_path / "t-0"))
    fill(log, 300)
    log.roll(now_ms=1000)
    cleaner.clean(log, now_ms=1000)
    map_indexes(log)
    reads, answered = FileReads(), 0
    for offset in range(300):
        found = reads.read(log, offset, 1 << 20)
        if found is not None:
            answered += 1
            assert bytes(log.read(offset, 1 << 20)).startswith(data_of(found))
    assert answered
    log.close()


def wrong_positions(log: Log, change: Callable[[int], int]) -> None:
    """Write other positions into the offset index of the second segment."""
    path = log.view.segments[1].path(OFFSET_INDEX)
    data = Path(path).read_bytes()
    made = offset_index.encode(*_changed(offset_index.columns(data), change))
    with Path(path).open("r+b") as file:  # in place: the file is mapped
        file.write(made)


def _changed(columns, change):
    return columns[0], [change(int(each)) for each in columns[1]]


@pytest.mark.parametrize("change", [lambda at: at + 1, lambda at: at + 7, lambda at: at * 2, lambda at: 1 << 30])
def test_a_wrong_index_gives_no_other_bytes(log: Log, change: Callable[[int], int], way: str) -> None:
    wrong_positions(log, change)
    reads, segment = FileReads(), log.view.segments[1]
    whole = bytes(segment.read(0, 1 << 20))
    for offset in range(segment.base_offset, log.view.bases[2]):
        found = reads.read(log, offset, 500)
        if found is not None:
            data = data_of(found)
            table = kernels.scan_batches(data)
            assert table.valid_bytes == len(data)
            assert data in whole
            assert table.base_offsets[0] <= offset <= table.last_offsets[0]


@pytest.mark.parametrize("damage", ["none", "missing", "zeros"])
def test_an_index_is_read_and_rebuilt_by_the_log_only(damage: str, tmp_path: Path) -> None:
    log = open_log(DiskStorage(), root=str(tmp_path / "t-0"))
    fill(log, COUNT)
    log.close()
    path = Path(log.view.segments[1].path(OFFSET_INDEX))
    if damage == "missing":
        path.unlink()
    elif damage == "zeros":
        path.write_bytes(bytes(path.stat().st_size))
    log = open_log(DiskStorage(), root=str(tmp_path / "t-0"), was_clean=True)
    reads, offset = FileReads(), log.view.bases[1] + 5
    before = path.read_bytes() if path.exists() else None
    assert reads.read(log, offset, 500) is None, "the index is not checked and mapped"
    assert (path.read_bytes() if path.exists() else None) == before
    expected = bytes(log.read(offset, 1 << 20))
    assert expected.startswith(data_of(reads.read(log, offset, 500)))
    log.close()


def test_a_dropped_segment_is_not_read_and_a_range_of_it_stays_readable(log: Log, way: str) -> None:
    reads = FileReads()
    found = reads.read(log, 0, 500)
    expected = bytes(log.read(0, 1 << 20))
    log.drop_before(log.view.bases[1], now_ms=1000, delay_ms=0, raises_log_start=True)
    assert reads.read(log, 0, 500) is None
    assert expected.startswith(data_of(found))


def test_bytes_outside_the_page_cache_are_not_waited_for(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not cached")

    monkeypatch.setattr(os, "preadv", refuse)
    assert FileReads().read(log, 0, 500) is None


def test_a_disk_that_is_no_disk_is_read_through_the_log() -> None:
    from disk_model import ModelDisk

    log = open_log(ModelDisk())
    fill(log, 50)
    assert FileReads().read(log, 0, 500) is None


def test_too_many_open_files_leave_reads_to_the_log(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reads, "SMALL_BYTES", 0)
    reads = FileReads()
    reads._files._files_max = 1
    first = reads.read(log, 0, 500)
    assert first is not None
    assert reads.read(log, log.view.bases[1], 500) is None
    del first
    assert reads.read(log, log.view.bases[1], 500) is not None
