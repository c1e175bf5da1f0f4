"""Read-only open of a log: the end is found from the last index entry and equals the end of a full scan."""

from __future__ import annotations

import random

import pytest
from disk_model import ModelDisk
from log_world import NAME, fill, open_log

from local import kernels, names
from local.errors import Corrupt
from local.format.batch_header import may_have_producers, walk
from local.format.record import Record
from local.index.sealed_indexes import SHARED
from local.log import Log
from local.log.producer_state import Producer
from local.log.read_only_open import found_segment, load_read_only, trim_to_whole_batches
from local.records.batch import encode_batch
from local.records.isolation import Isolation
from local.segment.segment import Segment
from local.settings import LogSettings
from local.storage import FileFacts, SegmentFiles, replace_file

ONE_SEGMENT = LogSettings(segment_bytes=1 << 20, index_interval_bytes=600, batch_bytes=300)
LOG, INDEX, TIMES = (f"./t-0/{names.segment_file(0, suffix)}" for suffix in (".log", ".index", ".timeindex"))
ENTRY = 8
WRITER = Producer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)


def _written(count: int = 200) -> ModelDisk:
    """A disk with one active segment whose writer is still open."""
    disk = ModelDisk()
    fill(open_log(disk, ONE_SEGMENT), count)
    return disk


def _seen(disk: ModelDisk) -> tuple[int, int, int | None]:
    """(next offset, size, largest timestamp) of the only segment, from a read-only open."""
    loaded = load_read_only(disk, "./t-0", 0)
    (segment,) = loaded.segments
    return loaded.next_offset, segment.size_bytes, segment.max_timestamp_ms


def _scanned(disk: ModelDisk) -> tuple[int, int, int | None]:
    """The same from a scan of the whole file."""
    table = kernels.scan_batches(bytes(disk.names[LOG].data))
    if not len(table):
        return 0, 0, None
    return int(table.last_offsets[-1]) + 1, table.valid_bytes, int(table.max_timestamps.max())


def test_a_read_only_open_of_a_log_cut_at_any_byte_ends_at_its_last_whole_batch() -> None:
    disk = _written(60)
    whole = bytes(disk.names[LOG].data)
    for size in range(len(whole) + 1):
        disk.names[LOG].data = bytearray(whole[:size])
        next_offset, size_bytes, _ = _seen(disk)
        assert (next_offset, size_bytes) == _scanned(disk)[:2], size


def test_a_wrong_byte_behind_the_last_index_entry_ends_the_log_there() -> None:
    disk = _written()
    whole = bytes(disk.names[LOG].data)
    last = int.from_bytes(disk.names[INDEX].data[-4:], "big")
    assert 0 < last < len(whole) - 300, "batches must follow the batch of the last index entry"
    for at in range(last, len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        disk.names[LOG].data = damaged
        assert _seen(disk)[:2] == _scanned(disk)[:2], at


def _entry(relative: int, position: int) -> bytes:
    return relative.to_bytes(4, "big", signed=True) + position.to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: bytearray(),
        lambda data: data[:-3],
        lambda data: data + b"\x7f" * 24,
        lambda data: data + bytes(16),
        lambda data: data[:-ENTRY] + _entry(190, 61),
        lambda data: data[:-ENTRY] + _entry(190, 0),
        lambda data: data[:-ENTRY] + _entry(-4, -4),
        lambda data: data + b"".join(_entry(300 + at, (1 << 22) + at) for at in range(100)),
        lambda data: bytearray(random.Random(1).randbytes(40)),
    ],
    ids=["empty", "torn", "garbage", "zeros", "inside a batch", "another batch", "negative", "far ahead", "noise"],
)
def test_a_wrong_index_does_not_change_the_end_of_a_read_only_log(damage: object) -> None:
    disk = _written()
    disk.names[INDEX].data = damage(disk.names[INDEX].data)  # type: ignore[operator]
    assert _seen(disk) == _scanned(disk)


def test_an_index_entry_that_points_into_a_record_does_not_change_the_end() -> None:
    disk = ModelDisk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 100)
    inner = encode_batch([Record(b"k", b"somebody's log", 9)], base_offset=900)
    log.append([Record(b"k", inner + b"!" * 40, 5000)], now_ms=1000)
    fill(log, 50, start=100)
    position = bytes(disk.names[LOG].data).index(inner)
    disk.names[INDEX].data += _entry(3, position)
    assert _seen(disk)[:2] == _scanned(disk)[:2] == (151, len(disk.names[LOG].data))


def test_an_index_that_is_missing_or_newer_than_the_listing_does_not_change_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = _written(100)
    before, size = _scanned(disk), len(disk.names[LOG].data)
    listed = disk.list_files("./t-0")
    disk = _written(200)
    segment = found_segment(SegmentFiles(disk, "./t-0", 0), listed, SHARED)
    assert segment.size_bytes == size < len(disk.names[LOG].data)
    monkeypatch.setattr(segment, "entry_before", None)  # this method validates the whole index and must not be called
    assert (trim_to_whole_batches(segment), segment.size_bytes) == before[:2]
    disk.unlink(INDEX)
    assert _seen(disk)[:2] == _scanned(disk)[:2]


def test_a_read_only_open_reads_only_the_ends_of_the_log_and_of_one_index() -> None:
    read: list[tuple[str, int]] = []

    class Watched(ModelDisk):
        def open_reader(self, path: str):  # type: ignore[no-untyped-def]
            file = super().open_reader(path)
            real = file.read

            def told(start: int, length: int) -> bytes:
                data = real(start, length)
                read.append((path, len(data)))
                return data

            file.read = told  # type: ignore[method-assign]
            return file

        def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
            data = super().read(path, start, length)
            read.append((path, len(data)))
            return data

    disk = Watched()
    fill(open_log(disk, ONE_SEGMENT), 2000)
    read.clear()
    log = Log.open(disk, "./t-0", NAME, ONE_SEGMENT, now_ms=1000, read_only=True)
    assert (log.next_offset, log.log_start_offset) == (2000, 0)
    assert sum(info.size_bytes for info in log.segments(with_times=False)) == len(disk.names[LOG].data)
    by_path = {path: sum(size for each, size in read if each == path) for path, _ in read}
    assert by_path.pop("./t-0/leader-epoch-checkpoint") < 100
    assert by_path.pop(INDEX) <= 64 * ENTRY < len(disk.names[INDEX].data), "only the last index entries may be read"
    assert by_path.pop(LOG) < 2000 < len(disk.names[LOG].data), "only the bytes behind the last index entry may be read"
    assert not by_path, "no other file may be read, such as a time index"


def test_a_read_only_open_asks_for_file_facts_of_log_files_only() -> None:
    told: list[str] = []

    class Watched(ModelDisk):
        def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
            found = super().list_files(path, endings)
            told.extend(found)
            return found

    disk = Watched()
    fill(open_log(disk), 300)
    told.clear()
    bases = [segment.base_offset for segment in load_read_only(disk, "./t-0", 0).segments]
    assert sorted(told) == [names.segment_file(base, names.LOG) for base in bases]
    assert len(disk.list("./t-0")) > 3 * len(told) > 9


def test_the_fast_walk_leaves_message_formats_before_v2_to_the_kernels() -> None:
    batch = encode_batch([Record(b"k", b"v", 5)], base_offset=7)
    old = bytearray(batch)
    old[16] = 1
    assert walk(batch) == (7, 8, 5, len(batch))
    assert walk(bytes(batch) + bytes(old)) is None
    assert walk(bytes(old)) is None
    assert walk(b"") is None


def test_the_fast_walk_of_a_damaged_log_finds_the_same_end_as_a_scan() -> None:
    draw = random.Random(4)
    disk = _written(80)
    whole = bytes(disk.names[LOG].data)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(draw.randrange(3)):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        table, found = kernels.scan_batches(data), walk(data)
        if found is None:
            assert not len(table) or table.has_legacy or table.problem is not None
        else:
            assert found.valid_bytes == table.valid_bytes
            assert found.next_offset == int(table.last_offsets[-1]) + 1
            assert found.last_offset == int(table.last_offsets[0])
            assert found.max_timestamp_ms == int(table.max_timestamps.max())


def test_the_largest_timestamp_of_a_read_only_segment_is_read_on_first_use() -> None:
    disk = _written()
    segment: Segment = load_read_only(disk, "./t-0", 0).segments[-1]
    assert segment.max_timestamp_ms == _scanned(disk)[2] == 5199
    disk.unlink(TIMES)
    assert load_read_only(disk, "./t-0", 0).segments[-1].max_timestamp_ms == 5199


def _producers_seen(disk: ModelDisk, log: Log) -> None:
    looked = Log.open(disk, "./t-0", NAME, ONE_SEGMENT, now_ms=1000, read_only=True)
    assert looked.producers() == log.producers()
    assert looked.last_stable_offset == log.last_stable_offset


@pytest.mark.parametrize("first", [0, 1, 60])
def test_a_read_only_open_finds_open_transactions_at_any_first_offset(first: int) -> None:
    disk = ModelDisk()
    log = open_log(disk, ONE_SEGMENT)
    _producers_seen(disk, log)
    for at in range(first):
        fill(log, 1, start=at)
    _producers_seen(disk, log)
    log.append([Record(b"k", b"v", 5000)], now_ms=1000, producer=WRITER)
    fill(log, 20, start=first)
    assert log.last_stable_offset == first < log.next_offset
    _producers_seen(disk, log)
    log.append_marker(7, 0, commit=True, now_ms=1000)
    _producers_seen(disk, log)


def test_a_failed_reload_shows_no_record_of_an_aborted_transaction() -> None:
    disk = ModelDisk()
    log = open_log(disk, ONE_SEGMENT)
    log.append([Record(b"k", b"v", 5000)], now_ms=1000, producer=WRITER)
    onlooker = Log.open(disk, "./t-0", NAME, ONE_SEGMENT, now_ms=1000, read_only=True)
    log.append_marker(7, 0, commit=False, now_ms=1000)
    replace_file(disk, "./t-0/leader-epoch-checkpoint", b"damaged\n")
    with pytest.raises(Corrupt):
        onlooker.reload_files()
    assert (onlooker.next_offset, onlooker.last_stable_offset) == (1, 0)
    assert list(onlooker.records(0, isolation=Isolation.READ_COMMITTED)) == []


def test_bytes_of_old_formats_or_without_meaning_may_contain_producers() -> None:
    batch = encode_batch([Record(b"k", b"v", 5)], base_offset=7)
    with_producer = encode_batch(
        [Record(b"k", b"v", 5)], base_offset=8, producer_id=3, producer_epoch=0, base_sequence=0
    )
    old = bytearray(batch)
    old[16] = 1
    for data, may in [
        (b"", False),
        (batch, False),
        (batch + batch[:40], False),
        (batch + with_producer, True),
        (batch + bytes(old), True),
        (batch + b"\x7f" * 61, True),
    ]:
        assert may_have_producers(data) is may
