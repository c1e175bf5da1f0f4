"""Changes of a log that are observed, fail or are interrupted between two disk effects."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from disk_model import ModelDisk
from log_world import NAME, fill, open_log, read_all

from local import kernels, names
from local.errors import Conflict, DiskFailed, LogError
from local.format.record import Record
from local.index.index_files import build_indexes
from local.log import Durability, Log
from local.log.leader_epochs import LeaderEpochs
from local.log.log_reader import READ_BYTES
from local.log.producer_state import Producer
from local.logdirs.log_dir import LogDirectory
from local.records.isolation import Isolation
from local.segment import swap
from local.settings import LogSettings

COMMITTED = Isolation.READ_COMMITTED


def send(log: Log, sequence: int = 0, *, transactional: bool = False, number: int = 1) -> None:
    who = Producer(producer_id=number, producer_epoch=0, base_sequence=sequence, is_transactional=transactional)
    log.append([Record(b"k", b"v", 500)] * 3, now_ms=1000, producer=who)


def test_read_committed_returns_no_aborted_record_while_the_abort_marker_is_written() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 10)
    send(log, transactional=True)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        shown = [record.offset for record in log.records(0, isolation=COMMITTED)]
        seen.append((log.last_stable_offset, len(shown)))

    disk.watch = look
    log.append_marker(1, 0, commit=False, now_ms=1000)
    disk.watch = None
    look()
    assert len(seen) > 3
    assert set(seen[:-1]) == {(10, 10)}
    assert seen[-1] == (14, 10)


class NoRoomForAborts(ModelDisk):
    """A disk that fails an append to a transaction index with ENOSPC, after the abort marker was appended."""

    meanwhile: Callable[[], object] | None = None

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        if self.meanwhile is not None and what.startswith("append") and names.TXN_INDEX in what:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            raise DiskFailed("injected", path=what, cause="enospc")
        super()._effect(what, act)


def test_no_reader_sees_a_marker_that_is_removed_after_a_full_disk() -> None:
    """A reader that had seen the marker would continue behind it and miss the record that then gets the same offset."""
    disk = NoRoomForAborts()
    log = open_log(disk)
    send(log, transactional=True)
    seen: list[bytes] = []
    disk.meanwhile = lambda: seen.append(bytes(log.read(3)))
    with pytest.raises(DiskFailed):
        log.append_marker(1, 0, commit=False, now_ms=1000)
    fill(log, 10)
    assert seen == [b""]
    assert [record.offset for record in read_all(log, 3)] == list(range(3, 13))


def test_an_interrupted_append_loses_no_other_record() -> None:
    """The interrupted batch may be in the file although the log does not count it.
    Later batches would then get offsets that the file already holds, and recovery would truncate them."""
    interrupts = 0
    for at in range(1, 8):
        disk = ModelDisk()
        log = open_log(disk)
        fill(log, 95)
        log.flush()
        last = disk.effects + at

        def interrupt(disk: ModelDisk = disk, last: int = last) -> None:
            if disk.effects == last:
                raise KeyboardInterrupt

        disk.watch = interrupt
        acknowledged = 95
        for number in range(8):
            try:
                log.append([Record(b"k", b"%d" % number, 9000)] * 3, now_ms=0, durability=Durability.FLUSHED)
                acknowledged = log.next_offset
            except KeyboardInterrupt:
                interrupts += 1
            except DiskFailed:
                pass  # the log must be reopened
        disk.watch = None
        log.release()
        again = open_log(disk.crash(random.Random(at)), recovery_point=95)
        assert again.next_offset >= acknowledged
        assert [record.offset for record in read_all(again)] == list(range(again.next_offset))
    assert interrupts == 7


def test_a_read_committed_stream_shows_no_undecided_record_after_a_truncation() -> None:
    log = open_log(ModelDisk(), LogSettings(index_interval_bytes=4096))
    for _ in range(12):
        log.append([Record(b"k", bytes(READ_BYTES // 4), 500)], now_ms=1000)
    stream = log.records(0, isolation=COMMITTED)
    next(stream)
    log.truncate_to(0, now_ms=1000)
    for sequence in range(0, 12, 3):
        send(log, sequence, transactional=True)
    assert all(record.value != b"v" for record in stream)


def test_a_stream_returns_no_offset_twice_after_a_truncation() -> None:
    log = open_log(ModelDisk(), LogSettings(index_interval_bytes=4096))
    for _ in range(12):
        log.append([Record(b"k", bytes(READ_BYTES // 4), 500)], now_ms=1000)
    stream = log.records(0)
    offsets = [next(stream).offset]
    log.truncate_to(0, now_ms=1000)
    # one batch, its base offset below the stream's position
    log.append([Record(b"other", b"v", 500)] * 20, now_ms=1000)
    offsets += [record.offset for record in stream]
    assert offsets == list(range(20))


def test_a_clean_shutdown_right_after_a_roll_keeps_every_producer() -> None:
    """The roll wrote the same snapshot that the close needs, but did not sync it."""
    for seed in range(20):
        disk = ModelDisk()
        directory = LogDirectory(disk, "./data")
        directory.create(NAME, "A" * 22)
        log = directory.open_log(NAME, open_log(ModelDisk()).settings, now_ms=0)
        send(log)
        log.roll(now_ms=0)
        directory.close()
        found = LogDirectory(disk.crash(random.Random(seed)), "./data")
        assert found.was_clean
        again = found.open_log(NAME, log.settings, now_ms=0)
        who = Producer(producer_id=1, producer_epoch=0, base_sequence=0)
        result = again.append([Record(b"k", b"v", 500)] * 3, now_ms=1000, producer=who)
        assert result == (0, 3, True), f"seed {seed}"


CHANGES = {
    "drop": lambda log: log.drop_before(60, now_ms=0, delay_ms=0, raises_log_start=True),
    "log start": lambda log: log.raise_log_start(50),
    "restart": lambda log: log.restart_at(500, LeaderEpochs(), now_ms=0),
    "truncate": lambda log: log.truncate_to(50, now_ms=0),
    "append": lambda log: log.append([Record(b"k", b"v", 1)], now_ms=0),
    "columns": lambda log: log.append_encoded(log.encode([Record(b"k", b"v", 1)], now_ms=0), now_ms=0),
    "roll": lambda log: log.roll(now_ms=0),
    "marker": lambda log: log.append_marker(1, 0, commit=True, now_ms=0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_read_only_log_refuses_every_change(change: str) -> None:
    disk = ModelDisk()
    fill(open_log(disk), 100)
    onlooker = open_log(disk, read_only=True)
    before = disk.effects
    with pytest.raises(LogError):
        CHANGES[change](onlooker)
    assert disk.effects == before
    assert onlooker.log_start_offset == 0


@pytest.mark.parametrize("change", CHANGES)
def test_a_closed_log_refuses_every_change(change: str) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 100)
    assert log.close()
    before = disk.effects
    with pytest.raises(LogError):
        CHANGES[change](log)
    assert disk.effects == before
    assert len(read_all(log)) == 100


def test_a_drop_that_fails_part_way_leaves_no_gap_in_the_log() -> None:
    """Scenario: the rename of the oldest file failed. Renames of later files would then leave a gap behind the oldest
    file."""
    for at in range(1, 40):
        disk = ModelDisk()
        log = open_log(disk, is_tiered=True)
        fill(log, 400)
        infos = log.segments()
        disk.fail_at = disk.effects + at
        try:
            log.drop_before(infos[2].base_offset, now_ms=0, delay_ms=0, raises_log_start=False)
        except DiskFailed:
            pass
        else:
            break
        disk.fail_at = None
        with suppress(DiskFailed):
            log.drop_before(infos[4].base_offset, now_ms=0, delay_ms=0, raises_log_start=False)
        log.release()
        again = open_log(disk, is_tiered=True, recovery_point=0)
        files = sorted(n for n in disk.list("./t-0") if n.endswith(names.LOG))
        bases = [int(n[:20]) for n in files]
        wanted = [info.base_offset for info in infos]
        assert bases == wanted[len(wanted) - len(bases) :], f"a hole after a failure at {at}: {bases}"
        assert [record.offset for record in read_all(again)] == list(range(bases[0], 400))
    else:
        raise AssertionError("never succeeded")


def test_after_an_interrupted_drop_no_later_segment_is_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interrupt happens before the first rename.
    1. The log no longer lists the segments of the interrupted drop, but their files still have their names.
    2. A drop of later segments would leave a gap behind these files."""
    disk = ModelDisk()
    log = open_log(disk, is_tiered=True)
    fill(log, 400)
    infos = log.segments()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(log, "forget_old_epochs", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.drop_before(infos[2].base_offset, now_ms=0, delay_ms=0, raises_log_start=False)
    with suppress(DiskFailed):
        log.drop_before(infos[4].base_offset, now_ms=0, delay_ms=0, raises_log_start=False)
    log.release()
    again = open_log(disk, is_tiered=True, recovery_point=0)
    assert [record.offset for record in read_all(again)] == list(range(again.local_log_start_offset, 400))


@pytest.mark.parametrize("change", ["restart", "truncate"])
def test_after_a_change_that_fails_part_way_the_log_works_or_refuses_appends(change: str) -> None:
    for at in range(1, 60):
        disk = ModelDisk()
        log = open_log(disk)
        fill(log, 100)
        disk.fail_at = disk.effects + at
        try:
            CHANGES[change](log)
        except DiskFailed:
            pass
        else:
            break
        disk.fail_at = None
        try:
            fill(log, 10)
            assert log.read(log.next_offset - 1)
        except DiskFailed:
            pass
    else:
        raise AssertionError("never succeeded")


def test_a_truncation_repeated_after_a_failed_checkpoint_lowers_the_recovery_point() -> None:
    """With a recovery point above the end, recovery would report a torn new append as damage of durable records."""
    for at in range(1, 12):
        disk = ModelDisk()
        directory = LogDirectory(disk, "./data")
        directory.create(NAME, "A" * 22)
        log = directory.open_log(NAME, open_log(ModelDisk()).settings, now_ms=0)
        fill(log, 100)
        log.flush()
        directory.write_checkpoints()
        disk.fail_at = disk.effects + at
        with suppress(DiskFailed):
            log.truncate_to(50, now_ms=0)
        disk.fail_at = None
        with suppress(DiskFailed):
            log.truncate_to(50, now_ms=0)
            fill(log, 10)
        found = disk.crash(random.Random(at))
        again = LogDirectory(found, "./data").open_log(NAME, log.settings, now_ms=0)
        assert again.next_offset >= 50


@pytest.mark.parametrize("change", ["drop", "truncate"])
def test_a_swap_fails_and_restores_nothing_if_its_sources_were_dropped_or_truncated(change: str) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 200)
    first, second = log.view.segments[:2]
    for doomed in (first, second):
        body = doomed.read(0, doomed.size_bytes)
        table = kernels.scan_batches(body)
        indexes = build_indexes(table, doomed.base_offset, 200)
        swap.write_cleaned(doomed.files, [body])
        swap.write_cleaned_indexes(doomed.files, indexes)
    at = second.base_offset
    if change == "drop":
        log.drop_before(at, now_ms=0, delay_ms=0, raises_log_start=True)
        gone, left = first, (at, 200)
    else:
        log.truncate_to(at + 1, now_ms=0)
        gone, left = second, (0, at + 1)  # a truncated log ends at the offset of the truncation
    with pytest.raises(Conflict):
        log.swap_in([gone], gone.base_offset, now_ms=0, delay_ms=0)
    log.flush()
    log.release()
    again = open_log(disk)
    assert (again.log_start_offset, again.next_offset) == left
    kept = range(at) if change == "truncate" else range(at, 200)
    assert [record.offset for record in read_all(again)] == list(kept)


def test_recovery_truncates_a_torn_segment_although_an_empty_segment_follows_it() -> None:
    """A failed roll can leave an empty file that a power cut makes visible again.
    Its base offset does not prove that the segment before it is whole."""
    for torn in range(1, 60, 7):
        disk = ModelDisk()
        log = open_log(disk, LogSettings())
        fill(log, 20)
        disk.create(f"./t-0/{log.next_offset:020d}{names.LOG}").sync()
        fill(log, 10)
        log.flush()
        durable = log.next_offset
        size = log.size_bytes
        fill(log, 10)
        log.release()
        disk.names["./t-0/" + names.segment_file(0, names.LOG)].data[size + torn :] = bytes(40)
        again = open_log(disk, LogSettings(), recovery_point=durable)
        assert again.next_offset == durable
        assert [record.offset for record in read_all(again)] == list(range(durable))
        fill(again, 10)
        again.close()
        assert len(read_all(open_log(disk, LogSettings(), recovery_point=0))) == durable + 10
