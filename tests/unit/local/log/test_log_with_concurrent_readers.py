"""Readers, memory maps and read-only opens of a log while the writer truncates, drops, cleans or swaps segments."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from disk_model import ModelDisk
from log_world import SMALL, fill, open_log, read_all

from local.cleaner import cleaner
from local.errors import LogError, NotFound, OffsetOutOfRange, Unavailable
from local.format.record import Record
from local.index import index_files
from local.log import Log
from local.log.producer_state import Producer, ProducerEntry, ProducerState, decode_snapshot
from local.log.read_only_open import PAUSES_S, load_read_only
from local.names import DELETED, LOG, OFFSET_INDEX, PRODUCER_SNAPSHOT, SWAP, TIME_INDEX, segment_file
from local.records.isolation import Isolation
from local.storage import DiskStorage, FileFacts


class NoMaps(DiskStorage):
    """A disk that refuses memory maps, because its files may shrink under a map."""

    def map(self, path: str) -> memoryview:
        raise AssertionError(f"mapped {path}")


def send(log: Log, sequence: int, *, transactional: bool = False) -> None:
    who = Producer(producer_id=1, producer_epoch=0, base_sequence=sequence, is_transactional=transactional)
    log.append([Record(b"k", b"v", 500)] * 3, now_ms=1000, producer=who)


def test_a_truncation_does_not_shrink_the_files_under_mapped_indexes(tmp_path: Path) -> None:
    """An access past the end of a mapped file that shrank kills the process (SIGBUS)."""
    log = open_log(DiskStorage(), root=str(tmp_path))
    fill(log, 300)
    segment = log.view.segments[1]
    log.read(segment.base_offset + 30)  # maps the offset index
    mapped = {suffix: os.open(segment.path(suffix), os.O_RDONLY) for suffix in (OFFSET_INDEX, TIME_INDEX)}
    sizes = {suffix: os.fstat(fd).st_size for suffix, fd in mapped.items()}
    assert all(sizes.values())
    log.truncate_to(segment.base_offset + 11, now_ms=1000)
    assert {suffix: os.fstat(fd).st_size for suffix, fd in mapped.items()} == sizes
    assert os.path.getsize(segment.path(OFFSET_INDEX)) < sizes[OFFSET_INDEX]
    for fd in mapped.values():
        os.close(fd)


def test_read_only_opens_and_snapshot_rebuilds_never_map_a_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_files, "_SLICE_BYTES", 300)
    log = open_log(NoMaps(), root=str(tmp_path))
    send(log, 0)
    fill(log, 100)
    send(log, 3, transactional=True)
    unstable = log.next_offset - 3
    fill(log, 100)
    for name in os.listdir(tmp_path):
        if name.endswith(PRODUCER_SNAPSHOT):
            os.unlink(tmp_path / name)
    onlooker = open_log(NoMaps(), root=str(tmp_path), read_only=True)
    assert onlooker.last_stable_offset == unstable
    entries = decode_snapshot(log.producer_snapshot(log.next_offset))
    assert [(each.last_sequence, each.transaction_first_offset) for each in entries] == [(5, unstable)]


def test_an_index_rebuild_on_first_use_reads_the_log_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    log.close()
    path = "./t-0/" + segment_file(0, OFFSET_INDEX)
    before = disk.read(path)
    disk.names[path].data = bytearray(len(before))
    monkeypatch.setattr(index_files, "_SLICE_BYTES", 300)
    again = open_log(disk, was_clean=True)
    assert len(read_all(again)) == 300
    assert disk.read(path) == before


class Meanwhile(ModelDisk):
    """A disk that calls `act` once, before the next read of a log file returns its bytes."""

    act: Callable[[], object] | None = None

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._now(path)
        return super().read(path, start, length)

    def open_reader(self, path: str):  # type: ignore[no-untyped-def]
        file = super().open_reader(path)
        self._now(path)
        return file

    def _now(self, path: str) -> None:
        if path.endswith(LOG) and self.act is not None:
            act, self.act = self.act, None
            act()


@pytest.mark.parametrize("offset", [10, 95, 130])
def test_a_read_during_a_truncation_returns_whole_batches_of_the_new_records(offset: int) -> None:
    """The open file is truncated and then grows again with batches of other sizes."""
    disk = Meanwhile()
    log = open_log(disk)
    fill(log, 300)

    def act() -> None:
        log.truncate_to(3, now_ms=1000)
        for at in range(200):
            log.append([Record(b"other", b"x" * (at % 7), 700)], now_ms=1000)

    disk.act = act
    found = read_all(log, offset)
    assert [record.offset for record in found] == list(range(offset, 203))
    assert {record.key for record in found} == {b"other"}


def test_a_producer_snapshot_of_a_truncated_offset_raises_not_found() -> None:
    disk = Meanwhile()
    log = open_log(disk)
    for sequence in range(0, 90, 3):
        send(log, sequence)
    log.roll(now_ms=0)
    offset = log.next_offset
    for name in disk.list("./t-0"):
        if name.endswith(PRODUCER_SNAPSHOT):
            disk.unlink("./t-0/" + name)

    def act() -> None:
        log.truncate_to(30, now_ms=1000)
        fill(log, 10)

    disk.act = act
    with pytest.raises(NotFound):
        log.producer_snapshot(offset)


def test_a_read_only_time_lookup_continues_after_the_writer_drops_segments() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    onlooker = open_log(disk, read_only=True)
    at = log.segments()[2].base_offset
    log.drop_before(at, now_ms=0, delay_ms=0, raises_log_start=True)
    log.remove_deleted(0)
    assert onlooker.offset_for_timestamp(5000) == at
    assert next(info.base_offset for info in onlooker.segments()) == at
    other = open_log(disk, read_only=True)
    log.drop_before(log.segments()[1].base_offset, now_ms=0, delay_ms=0, raises_log_start=True)
    with pytest.raises(OffsetOutOfRange):
        other.read(at)
    assert other.read(log.log_start_offset)


def test_a_read_only_open_during_a_swap_never_shows_a_gap() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    log.flush()
    base = log.segments()[1].base_offset
    path = "./t-0/" + segment_file(base, LOG)
    disk.names[path + SWAP] = disk.names[path]
    assert len(read_all(open_log(disk, read_only=True))) == 300
    disk.names[path + DELETED] = disk.names.pop(path)
    with pytest.raises(Unavailable):
        open_log(disk, read_only=True)


class Between(ModelDisk):
    """A disk that calls `act` before its access number `at`."""

    at = -1
    looks = 0
    act: Callable[[], object] = staticmethod(lambda: None)

    def _look(self) -> None:
        self.looks += 1
        if self.looks == self.at:
            self.act()

    def exists(self, path: str) -> bool:
        self._look()
        return super().exists(path)

    def size(self, path: str) -> int:
        self._look()
        return super().size(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self._look()
        return super().read(path, start, length)

    def open_reader(self, path: str):  # type: ignore[no-untyped-def]
        self._look()
        return super().open_reader(path)


def keyed_log(disk: ModelDisk, rng: random.Random, *, transactions: bool) -> Log:
    """A log of batches of one size, so that a cleaned batch can take the place of another. Every third one is
    transactional."""
    log = open_log(disk, replace(SMALL, is_compacted=True, segment_bytes=rng.choice((700, 2000))))
    for at in range(60):
        record = Record(b"k%02d" % rng.randrange(25), b"%06d" % at, 5000)
        if transactions and at % 3 == 0:
            who = Producer(producer_id=at, producer_epoch=0, base_sequence=0, is_transactional=True)
            log.append([record], now_ms=1000, producer=who)
            log.append_marker(at, 0, commit=at % 2 == 0, now_ms=1000)
        else:
            log.append([record], now_ms=1000)
    log.roll(now_ms=0)
    log.flush()
    return log


def seen_beside_a_cleaning(seed: int, isolation: Isolation, at: int) -> int:
    """Read through a read-only open while the writer cleans before access number `at`. Returns the number of
    accesses."""
    rng, disk = random.Random(seed), Between()
    log = keyed_log(disk, rng, transactions=isolation is Isolation.READ_COMMITTED)
    before = {record.offset: record.key for record in log.records(0, isolation=isolation)}
    apart_at, start = rng.choice(log.segments()).base_offset, rng.randrange(log.next_offset)
    newest = {key: offset for offset, key in before.items() if offset >= start}
    onlooker = open_log(disk, read_only=True)
    disk.act = lambda: cleaner.clean(log, now_ms=0, apart_at=apart_at)
    disk.looks, disk.at = 0, at
    seen = [record.offset for record in onlooker.records(start, isolation=isolation)]
    story = f"seed {seed}, before look {at}"
    assert seen == sorted(set(seen)), story
    assert set(seen) <= set(before), f"{story}: what was aborted"
    assert set(newest.values()) <= set(seen), f"{story}: newest records are missing"
    return disk.looks


@pytest.mark.parametrize("isolation", Isolation)
def test_a_read_only_stream_during_a_cleaning_misses_no_newest_record(isolation: Isolation) -> None:
    for seed in (0, 5):  # with the other seeds the cleaned segment has the size of its source
        for at in range(1, seen_beside_a_cleaning(seed, isolation, 0)):
            seen_beside_a_cleaning(seed, isolation, at)


class Rolling(ModelDisk):
    """A disk where the writer appends and rolls during a listing.
    The listing has the old size of the first segment and also the new segment."""

    act: Callable[[], object] | None = None

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        before = super().list_files(path, endings)
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return super().list_files(path, endings) | before


def test_a_read_only_open_misses_no_record_of_a_segment_closed_during_its_listing() -> None:
    disk = Rolling()
    log = open_log(disk)
    sent = fill(log, 20)

    def act() -> None:
        sent.extend(fill(log, 20, start=20))
        log.roll(now_ms=0)
        sent.extend(fill(log, 20, start=40))

    disk.act = act
    onlooker = open_log(disk, read_only=True)
    assert [record.value for record in onlooker.records(0)] == [record.value for record in sent]


class Renaming(ModelDisk):
    """A disk where the writer swaps a segment during a listing: listing `at` shows neither its old name nor its new
    one."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: tuple[str, int] | None = None
        self.listings = 0

    def _seen(self, names: Iterable[str]) -> list[str]:
        self.listings += 1
        return [each for each in names if self.gone is None or (each, self.listings) != self.gone]

    def list(self, path: str) -> list[str]:
        return self._seen(super().list(path))

    def list_files(self, path: str, endings: tuple[str, ...] = ("",)) -> dict[str, FileFacts]:
        found = super().list_files(path, endings)
        return {name: found[name] for name in self._seen(found)}


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_listing_that_missed_a_renamed_segment_is_repeated(at: int, number: int) -> None:
    disk = Renaming()
    log = open_log(disk)
    sent = fill(log, 300)
    log.flush()
    bases = [each.base_offset for each in log.segments()]
    disk.gone, disk.listings = (segment_file(bases[number], LOG), at), 0
    pauses: list[float] = []
    found = load_read_only(disk, "./t-0", 0, pause=pauses.append)
    assert [each.base_offset for each in found.segments] == bases
    assert found.next_offset == len(sent)
    assert len(pauses) == 1


def test_a_new_last_segment_needs_no_second_listing() -> None:
    disk = Renaming()
    log = open_log(disk)
    fill(log, 300)
    log.flush()
    disk.gone, disk.listings = (segment_file(log.segments()[-1].base_offset, LOG), 1), 0
    assert load_read_only(disk, "./t-0", 0, pause=pytest.fail).next_offset == 300


def test_a_read_only_open_waits_for_a_running_swap_and_refuses_an_interrupted_one() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    log.flush()
    path = "./t-0/" + segment_file(log.segments()[1].base_offset, LOG)
    disk.rename(path, path + SWAP)
    pauses: list[float] = []
    with pytest.raises(Unavailable, match="swap"):
        load_read_only(disk, "./t-0", 0, pause=pauses.append)
    assert pauses == list(PAUSES_S)
    assert load_read_only(disk, "./t-0", 0, pause=lambda s: disk.rename(path + SWAP, path)).next_offset == 300


def test_a_snapshot_with_two_open_transactions_at_one_offset_does_not_break_the_log() -> None:
    entry = {"producer_epoch": 0, "last_sequence": 1, "last_offset": 1, "offset_delta": 0, "timestamp_ms": 0}
    entries = [
        ProducerEntry(producer_id=number, coordinator_epoch=0, transaction_first_offset=1, **entry) for number in (1, 2)
    ]
    disk = ModelDisk()
    log = open_log(disk)
    log.producer_state = ProducerState(entries)
    for number in (1, 2):
        log.append_marker(number, 0, commit=True, now_ms=0)
    assert log.last_stable_offset == log.next_offset


def test_a_truncation_does_not_raise_the_recovery_point_after_a_failed_sync() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 50)
    log.view.segments[-1].has_failed_sync = True
    with pytest.raises(LogError):
        log.truncate_to(20, now_ms=0)
    assert log.recovery_point <= 20
    with pytest.raises(LogError):
        fill(log, 10)


@pytest.mark.parametrize("grows_again", [False, True])
def test_a_read_only_log_continues_with_the_remaining_records_after_a_truncation(*, grows_again: bool) -> None:
    disk = ModelDisk()
    log = open_log(disk, replace(SMALL, segment_bytes=1 << 20))
    sent = fill(log, 100)
    onlooker = open_log(disk, replace(SMALL, segment_bytes=1 << 20), read_only=True)
    assert onlooker.next_offset == 100
    log.truncate_to(50, now_ms=0)
    kept = sent[:50] + (fill(log, 20, start=50) if grows_again else [])
    assert [record.value for record in onlooker.records(0)] == [record.value for record in kept]
