"""Readers of a changing log: they see no gap, no aborted record, and never wait forever.

The first tests make one change at each call of one reader into a segment, which covers every interleaving of the two.
The last test uses threads for interleavings that the first tests do not cover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from disk_model import ModelDisk
from log_world import fill, open_log

from local import kernels
from local.errors import OffsetOutOfRange
from local.format.record import Record, StoredRecord
from local.index.index_files import build_indexes
from local.log import Log
from local.log.log_reader import LogView
from local.log.producer_state import Producer
from local.records.isolation import Isolation
from local.segment import swap
from local.segment.segment import Segment
from local.settings import LogSettings
from local.storage import DiskStorage, Storage

COUNT = 240
CALLS = ("entry_before", "time_start", "read", "aborted", "_newest")


def _drop(log: Log, storage: Storage) -> None:
    if len(log.view.segments) > 2:
        log.drop_before(log.view.bases[2], now_ms=0, delay_ms=0, raises_log_start=True)
        log.remove_deleted(0)


def _drop_one(log: Log, storage: Storage) -> None:
    if len(log.view.segments) > 1:
        log.drop_before(log.view.bases[1], now_ms=0, delay_ms=0, raises_log_start=True)
        log.remove_deleted(0)


def _replace(log: Log, storage: Storage) -> None:
    """Replace the second segment by a copy without its second batch, as a pass does, and delete the old files at
    once."""
    segment = log.view.segments[1]
    if segment.is_active:
        return
    body = storage.read(segment.path(".log"))
    table = kernels.scan_batches(body)
    parts = [body[int(at) : int(at) + int(size)] for at, size in zip(table.positions, table.sizes, strict=True)]
    body = b"".join(parts[:1] + parts[2:])
    base = segment.base_offset
    swap.write_cleaned(segment.files, [body])
    swap.write_cleaned_indexes(segment.files, build_indexes(kernels.scan_batches(body), base, 200))
    log.swap_in([segment], base, now_ms=0, delay_ms=0)
    log.remove_deleted(0)


def _append_and_roll(log: Log, storage: Storage) -> None:
    fill(log, 10, start=COUNT)
    log.roll(now_ms=1000)


CHANGES: list[Callable[[Log, Storage], None]] = [_drop, _drop_one, _replace, _append_and_roll]


@contextmanager
def _change_at_call(number: int, change: Callable[[], None]) -> Iterator[list[int]]:
    """Make `change` before (odd `number`) or after (even) one of the calls into a segment. Yields the call count."""
    made = [0]
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            real = getattr(Segment, name)

            def called(self: Segment, *args: object, real: Callable[..., object] = real, **kw: object) -> object:
                made[0] += 1
                if made[0] * 2 - 1 == number:
                    change()
                answer = real(self, *args, **kw)
                if made[0] * 2 == number:
                    made[0] += 1 << 20
                    change()
                    made[0] -= 1 << 20
                return answer

            patch.setattr(Segment, name, called)
        yield made


def _follow(log: Log, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> tuple[list[StoredRecord], list[int]]:
    """All records, and the offsets to which the reader had to jump because the log start was raised."""
    found: list[StoredRecord] = []
    jumps: list[int] = []
    at = 0
    while True:
        try:
            for record in log.records(at, isolation=isolation):
                found.append(record)
                at = record.offset + 1
            return found, jumps
        except OffsetOutOfRange as error:
            at = int(str(error.facts["first_offset"]))
            jumps.append(at)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_reader_sees_every_remaining_record_at_any_moment_of_a_change(change: Callable[[Log, Storage], None]) -> None:
    number, calls = 1, 1
    while number <= 2 * calls + 2:
        disk = ModelDisk()
        log = open_log(disk)
        fill(log, COUNT)
        log.close()
        log = open_log(disk, was_clean=True)  # so that the indexes are checked during the read
        with _change_at_call(number, lambda log=log, disk=disk: change(log, disk)) as made:
            found, jumps = _follow(log)
        calls = max(calls, min(made[0], 200))
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        surviving = {record.offset for record in log.records(log.local_log_start_offset)}
        missing = {offset for offset in surviving if offset < COUNT} - set(offsets)
        assert not missing, f"change at call {number}"
        assert all(record.value == b"value %d" % record.offset for record in found)
        assert not jumps or jumps == [log.local_log_start_offset]
        number += 1
    assert number > 10


def _first_and_newest(log: Log) -> None:
    first, newest = log.offset_for_timestamp(5000), log.newest()
    assert first in (0, log.local_log_start_offset)
    assert newest is not None
    assert newest.offset >= COUNT - 1


def _facts(log: Log) -> None:
    assert all(info.max_timestamp_ms is not None for info in log.segments() if info.size_bytes)


@pytest.mark.parametrize("lookup", [_first_and_newest, _facts])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_lookups_succeed_at_any_moment_of_a_change(
    change: Callable[[Log, Storage], None], lookup: Callable[[Log], None]
) -> None:
    number, calls = 1, 1
    while number <= 2 * calls + 2:
        disk = ModelDisk()
        log = open_log(disk)
        fill(log, COUNT)
        log.close()
        log = open_log(disk, was_clean=True)
        with _change_at_call(number, lambda log=log, disk=disk: change(log, disk)) as made:
            lookup(log)
        calls = max(calls, min(made[0], 200))
        number += 1


def _transactions(log: Log, turns: int) -> None:
    """Per turn one aborted and one committed transaction of 3 records, interleaved."""
    for turn in range(turns):
        for number, value in ((1, b"gone"), (2, b"kept")):
            who = Producer(producer_id=number, producer_epoch=0, base_sequence=3 * turn, is_transactional=True)
            log.append([Record(b"k", value, 5000)] * 3, now_ms=1000, producer=who)
        for number in (1, 2):
            log.append_marker(number, 0, commit=number == 2, coordinator_epoch=0, now_ms=1000)


@pytest.mark.parametrize("change", [_drop, _drop_one], ids=lambda change: change.__name__.strip("_"))
def test_no_aborted_record_is_read_at_any_moment_of_a_drop(change: Callable[[Log, Storage], None]) -> None:
    number, calls = 1, 1
    while number <= 2 * calls + 2:
        disk = ModelDisk()
        log = open_log(disk, LogSettings(segment_bytes=900, index_interval_bytes=200))
        _transactions(log, 12)
        assert len(log.segments()) > 4
        with _change_at_call(number, lambda log=log, disk=disk: change(log, disk)) as made:
            found, _ = _follow(log, Isolation.READ_COMMITTED)
        calls = max(calls, min(made[0], 200))
        assert {record.value for record in found} == {b"kept"}, f"change at call {number}"
        kept = {record.offset for record in log.records(log.log_start_offset, isolation=Isolation.READ_COMMITTED)}
        assert kept <= {record.offset for record in found}
        number += 1


def test_a_read_committed_stream_ends_before_the_first_open_transaction() -> None:
    log = open_log(ModelDisk())
    _transactions(log, 3)
    end = log.next_offset
    who = Producer(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"open", 9000)] * 2, now_ms=1000, producer=who)
    fill(log, 10)
    committed, everything = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
    assert {record.value for record in log.records(0, isolation=committed)} == {b"kept"}
    assert {b"open", b"gone", b"kept"} < {record.value for record in log.records(0, isolation=everything)}
    assert kernels.decode_columns(log.read(0, 1 << 20, isolation=committed)).next_offset == end
    assert len(log.read(end, isolation=committed)) == 0
    assert log.last_stable_offset == end
    assert log.newest() == (end, 9000, 0)
    log.append_marker(9, 0, commit=True, coordinator_epoch=0, now_ms=1000)
    assert [r.value for r in log.records(end, isolation=committed)][:2] == [b"open"] * 2


@pytest.mark.parametrize("changes", [[_drop_one], [_drop_one, _replace]], ids=["drops", "drops and replacements"])
def test_reading_threads_see_consecutive_remaining_offsets(
    tmp_path: object, changes: list[Callable[[Log, Storage], None]]
) -> None:
    storage = DiskStorage()
    log = open_log(storage, root=f"{tmp_path}/t-0")
    fill(log, COUNT)
    done = threading.Event()
    failures: list[str] = []
    replaced = _replace in changes

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - a failure in a thread is a failure of the test
                failures.append(repr(error))

        return run

    def append() -> None:
        for start in range(COUNT, COUNT + 1500, 10):
            fill(log, 10, start=start)
            if start % 200 == 0:
                log.roll(now_ms=1000)
        done.set()

    def shrink() -> None:
        turn = 0
        while not done.is_set():
            if len(log.view.segments) > 5:
                changes[turn % len(changes)](log, storage)
                turn += 1

    def read() -> None:
        while not done.is_set():
            at = log.local_log_start_offset
            try:
                for columns in log.columns(at):
                    offsets = columns.offsets.tolist()
                    steps = {b - a for a, b in zip([at - 1, *offsets], offsets, strict=False)}
                    if not replaced and steps - {1}:
                        failures.append(f"a hole after {at}: {offsets[:5]}")
                    if any(step < 1 for step in steps):
                        failures.append(f"backwards after {at}: {offsets[:5]}")
                    if any(columns.value(entry) != b"value %d" % offset for entry, offset in enumerate(offsets)):
                        failures.append(f"other values at {offsets[:5]}")
                    at = columns.next_offset
            except OffsetOutOfRange:
                continue

    threads = [threading.Thread(target=guarded(work)) for work in (append, shrink, read, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)
    assert isinstance(log.view, LogView)
