"""A log looked at, and failing, between two effects of one change."""

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
from local.index.index_building import build_indexes
from local.log import Durability, Log
from local.log.leader_epochs import LeaderEpochs
from local.log.log_reading import READ_BYTES
from local.log.producer_state import Producer
from local.logdirs.log_dir import LogDirectory
from local.records.isolation import Isolation
from local.segment import swap
from local.settings import LogSettings

COMMITTED = Isolation.READ_COMMITTED


def send(log: Log, sequence: int = 0, *, transactional: bool = False, number: int = 1) -> None:
    who = Producer(producer_id=number, producer_epoch=0, base_sequence=sequence, is_transactional=transactional)
    log.append([Record(b"k", b"v", 500)] * 3, now_ms=1000, producer=who)


def test_committed_readers_see_nothing_of_an_aborted_transaction_while_its_marker_is_written() -> None:
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
    """An abort's marker is in the log when there turns out to be no room for its entry."""

    meanwhile: Callable[[], object] | None = None

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        if self.meanwhile is not None and what.startswith("append") and names.TXN_INDEX in what:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            raise DiskFailed("injected", path=what, cause="enospc")
        super()._effect(what, act)


def test_nobody_reads_a_batch_that_is_taken_back_for_want_of_room() -> None:
    """Who has read it goes on behind it, and misses the record that comes in its place."""
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


def test_an_append_that_is_interrupted_half_way_loses_no_other_record() -> None:
    """Its batch may be in the file although the log does not know: what is appended behind it would lie at offsets that
    were given already, and a start cuts that off."""
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
                pass  # reopen it
        disk.watch = None
        log.release()
        again = open_log(disk.crash(random.Random(at)), recovery_point=95)
        assert again.next_offset >= acknowledged
        assert [record.offset for record in read_all(again)] == list(range(again.next_offset))
    assert interrupts == 7


def test_a_committed_stream_that_a_truncation_overtakes_shows_no_undecided_records() -> None:
    log = open_log(ModelDisk(), LogSettings(index_interval_bytes=4096))
    for _ in range(12):
        log.append([Record(b"k", bytes(READ_BYTES // 4), 500)], now_ms=1000)
    stream = log.records(0, isolation=COMMITTED)
    next(stream)
    log.truncate_to(0, now_ms=1000)
    for sequence in range(0, 12, 3):
        send(log, sequence, transactional=True)
    assert all(record.value != b"v" for record in stream)


def test_a_stream_that_a_truncation_overtakes_gives_no_offset_twice() -> None:
    log = open_log(ModelDisk(), LogSettings(index_interval_bytes=4096))
    for _ in range(12):
        log.append([Record(b"k", bytes(READ_BYTES // 4), 500)], now_ms=1000)
    stream = log.records(0)
    offsets = [next(stream).offset]
    log.truncate_to(0, now_ms=1000)
    log.append([Record(b"other", b"v", 500)] * 20, now_ms=1000)  # one batch, from below where the stream goes on
    offsets += [record.offset for record in stream]
    assert offsets == list(range(20))


def test_a_clean_shutdown_right_after_a_roll_forgets_no_producer() -> None:
    """The roll has written the very snapshot that the close would write, but not made it durable."""
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
def test_a_log_that_is_only_looked_at_refuses_every_change(change: str) -> None:
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


def test_a_drop_that_fails_half_way_never_leaves_a_hole() -> None:
    """The oldest file kept its name: were younger ones to follow, a tiered log would begin below what is missing."""
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


def test_a_drop_that_is_interrupted_before_the_first_name_changes_is_followed_by_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its segments are in no list any more, and have their names: a drop of younger ones would leave a hole."""
    disk = ModelDisk()
    log = open_log(disk, is_tiered=True)
    fill(log, 400)
    infos = log.segments()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(log, "_forget_old_epochs", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.drop_before(infos[2].base_offset, now_ms=0, delay_ms=0, raises_log_start=False)
    with suppress(DiskFailed):
        log.drop_before(infos[4].base_offset, now_ms=0, delay_ms=0, raises_log_start=False)
    log.release()
    again = open_log(disk, is_tiered=True, recovery_point=0)
    assert [record.offset for record in read_all(again)] == list(range(again.local_log_start_offset, 400))


@pytest.mark.parametrize("change", ["restart", "truncate"])
def test_a_change_that_fails_half_way_leaves_a_log_that_refuses_or_works(change: str) -> None:
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


def test_a_truncation_whose_checkpoint_failed_lowers_it_when_it_is_tried_again() -> None:
    """Were it left, records appended there and torn by a power cut would pass for damage of what was durable."""
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
def test_a_cleaned_segment_whose_originals_went_meanwhile_brings_nothing_back(change: str) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 200)
    first, second = log.sources()[:2]
    for doomed in (first, second):
        body = doomed.read(0, doomed.size_bytes)
        table = kernels.scan_batches(body)
        indexes = build_indexes(table, doomed.base_offset, 200)
        swap.write_cleaned(disk, log.directory, doomed.base_offset, [body])
        swap.write_cleaned_indexes(disk, log.directory, doomed.base_offset, indexes)
    at = second.base_offset
    if change == "drop":
        log.drop_before(at, now_ms=0, delay_ms=0, raises_log_start=True)
        gone, left = first, (at, 200)
    else:
        log.truncate_to(at + 1, now_ms=0)
        gone, left = second, (0, at + 1)  # the end is where the log was truncated
    with pytest.raises(Conflict):
        log.swap_in([gone], gone.base_offset, now_ms=0, delay_ms=0)
    log.flush()
    log.release()
    again = open_log(disk)
    assert (again.log_start_offset, again.next_offset) == left
    kept = range(at) if change == "truncate" else range(at, 200)
    assert [record.offset for record in read_all(again)] == list(kept)


def test_a_segment_that_outgrew_a_failed_roll_is_recovered_although_an_empty_one_follows_it() -> None:
    """What a roll left behind when the disk failed may come back with the power: it is no end to trust."""
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
