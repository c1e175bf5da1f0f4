"""Durable appends from many threads: shared fsyncs, and waiters during a roll, a failure or a close."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from disk_model import ModelDisk, ModelFile
from log_world import NAME, fill, open_log, read_all
from test_group_commit import PATIENCE_S, waiting

from local.errors import DiskFailed
from local.format.record import Record
from local.log import AppendResult, Durability, Log
from local.log.producer_state import Producer
from local.settings import LogSettings

ONE = [Record(b"k", b"v", 5000)]


class GatedDisk(ModelDisk):
    """A disk where syncs of ``.log`` files block until `finish`, except in the test's own thread.
    `log_syncs` counts them. If `error` is set, the sync raises it."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Semaphore(0)
        self.finish = threading.Semaphore(0)
        self.error: DiskFailed | None = None
        self.log_syncs = 0
        self.is_gated = True
        self.syncing: GatedFile | None = None
        self.has_injected = threading.Event()
        self._mine = threading.get_ident()

    def create(self, path: str) -> ModelFile:
        made = super().create(path)
        return GatedFile(self, path, made._inode)

    def open(self, path: str) -> ModelFile:
        return GatedFile(self, path, self._inode(path))

    open_reader = open

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        try:
            super()._effect(what, act)
        except DiskFailed:
            self.has_injected.set()
            raise


class GatedFile(ModelFile):
    def close(self) -> None:
        disk = self._disk
        assert isinstance(disk, GatedDisk)
        assert disk.syncing is not self, "a file must not be closed during its fsync"

    def sync(self) -> None:
        disk = self._disk
        assert isinstance(disk, GatedDisk)
        if self._path.endswith(".log"):
            disk.log_syncs += 1
        if not self._path.endswith(".log") or threading.get_ident() == disk._mine or not disk.is_gated:
            super().sync()
            return
        seen = bytes(self._inode.data)
        disk.syncing = self
        disk.began.release()
        assert disk.finish.acquire(timeout=PATIENCE_S)
        disk.syncing = None
        if disk.error is not None:
            raise disk.error
        # As on a real disk: bytes written during the sync may be missing from it.
        self._inode.synced = seen if len(seen) > len(self._inode.synced) else self._inode.synced


class Appender:
    """A thread that appends one record with FLUSHED durability."""

    def __init__(self, log: Log, producer: Producer | None = None) -> None:
        self.outcome: AppendResult | DiskFailed | None = None
        self._thread = threading.Thread(target=self._run, args=(log, producer))
        self._thread.start()

    def _run(self, log: Log, producer: Producer | None) -> None:
        try:
            self.outcome = log.append(ONE, now_ms=1000, durability=Durability.FLUSHED, producer=producer)
        except DiskFailed as error:
            self.outcome = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> AppendResult | DiskFailed | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the append still waits"
        return self.outcome


def synced_records(disk: ModelDisk) -> int:
    """Number of records that are left after a power cut that keeps only synced bytes."""
    survivor = ModelDisk()
    survivor.make_directory("./t-0")
    for name, inode in disk.names.items():
        survivor.create(name).append(inode.synced)
    return open_log(survivor).next_offset


def test_concurrent_durable_appends_share_fsyncs_and_each_is_synced_when_it_returns() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    first = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    others = [Appender(log) for _ in range(20)]
    waiting(log.commit, 20)
    assert log.next_offset == 21, "an append must not wait for the fsync of another append before it writes"
    assert log.recovery_point == 0
    disk.finish.release()
    assert first.join() == AppendResult(0, 1)
    assert log.recovery_point == 1
    assert disk.began.acquire(timeout=PATIENCE_S)
    assert all(each.is_waiting for each in others)
    assert synced_records(disk) == 1
    disk.finish.release()
    assert sorted(each.join() for each in others) == [AppendResult(at, at + 1) for at in range(1, 21)]  # type: ignore[type-var]
    assert disk.log_syncs == 2
    assert (log.recovery_point, synced_records(disk)) == (21, 21)


def test_reads_and_unflushed_appends_proceed_during_an_fsync() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    waiter = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    assert log.append(ONE, now_ms=1000) == AppendResult(1, 2)
    assert [record.offset for record in read_all(log)] == [0, 1]
    assert log.recovery_point == 0
    disk.finish.release()
    waiter.join()
    assert log.recovery_point == 1, "the sync must not cover a record that was written after the sync began"


def test_a_roll_waits_for_a_running_fsync_and_releases_all_waiters() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    leader = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    followers = [Appender(log) for _ in range(5)]
    waiting(log.commit, 5)
    roller = threading.Thread(target=log.roll, kwargs={"now_ms": 1000})
    roller.start()
    assert roller.is_alive(), "a roll must not close the file during its fsync"
    disk.is_gated = False
    disk.finish.release()
    for each in (leader, *followers):
        assert isinstance(each.join(), AppendResult)
    roller.join(PATIENCE_S)
    assert not roller.is_alive()
    assert (log.recovery_point, synced_records(disk)) == (6, 6)
    assert [info.base_offset for info in log.segments()] == [0, 6]
    assert disk.log_syncs == 2, "no waiter may sync again after the roll made its record durable"
    log.append(ONE, now_ms=1000)
    log.roll(now_ms=1000)
    assert log.recovery_point == 7


def test_a_failed_fsync_fails_all_waiters_and_is_not_retried_by_a_roll_or_close() -> None:
    for then in ("roll", "append", "close", "full"):
        disk = GatedDisk()
        log = open_log(disk, LogSettings())
        leader = Appender(log)
        assert disk.began.acquire(timeout=PATIENCE_S)
        followers = [Appender(log) for _ in range(5)]
        waiting(log.commit, 5)
        disk.error = DiskFailed("cannot sync a file", path="x", cause="eio")
        if then == "roll":
            late = threading.Thread(target=lambda log=log: _ignoring(lambda: log.roll(now_ms=1000)))
            late.start()
        disk.finish.release()
        assert leader.join() is disk.error
        assert [type(each.join()) for each in followers] == [DiskFailed] * 5
        disk.error, disk.is_gated = None, False
        if then == "roll":
            late.join(PATIENCE_S)
        if then == "append":
            with pytest.raises(DiskFailed, match="reopen"):
                log.append(ONE, now_ms=1000)
        assert log.close() is False
        assert disk.log_syncs == 1, f"a failed fsync was tried again: {then}"
        assert log.recovery_point == 0


def _ignoring(call: object) -> None:
    try:
        call()  # type: ignore[operator]
    except DiskFailed:
        return


def test_a_write_that_fails_during_a_failing_fsync_makes_nothing_durable() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    leader = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    disk.error = DiskFailed("cannot sync a file", path="x", cause="eio")
    disk.fail_at, disk.cut_before = disk.effects + 1, True
    writer = Appender(log)
    assert disk.has_injected.wait(PATIENCE_S)
    disk.finish.release()
    assert isinstance(leader.join(), DiskFailed)
    assert isinstance(writer.join(), DiskFailed)
    assert log.recovery_point == 0
    with pytest.raises(DiskFailed, match="reopen"):
        log.append(ONE, now_ms=1000)


def test_a_failed_write_during_a_successful_fsync_is_cut_and_the_waiters_return() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    leader = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    follower = Appender(log)
    waiting(log.commit, 1)
    disk.fail_at, disk.cut_before = disk.effects + 1, True
    writer = Appender(log)
    assert disk.has_injected.wait(PATIENCE_S)
    disk.is_gated = False
    disk.finish.release()
    assert leader.join() == AppendResult(0, 1)
    assert isinstance(writer.join(), DiskFailed)
    assert follower.join() == AppendResult(1, 2)
    assert (log.next_offset, log.recovery_point, synced_records(disk)) == (2, 2, 2)
    assert log.append(ONE, now_ms=1000) == AppendResult(2, 3)


def test_waiters_fail_if_recovery_finds_fewer_bytes_than_were_written() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    leader = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    follower = Appender(log)
    waiting(log.commit, 1)
    del disk.names["./t-0/00000000000000000000.log"].data[-10:]
    disk.fail_at, disk.cut_before, disk.is_gated = disk.effects + 1, True, False
    writer = Appender(log)
    assert disk.has_injected.wait(PATIENCE_S)
    disk.finish.release()
    leader.join()
    assert isinstance(writer.join(), DiskFailed)
    assert isinstance(follower.join(), DiskFailed)


@pytest.mark.parametrize("how", ["close", "release"])
def test_close_and_release_wake_every_waiter_and_acknowledge_only_synced_records(how: str) -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    leader = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    followers = [Appender(log) for _ in range(3)]
    waiting(log.commit, 3)
    disk.is_gated = False
    closer = threading.Thread(target=getattr(log, how))
    closer.start()
    disk.finish.release()
    closer.join(PATIENCE_S)
    done = [isinstance(each.join(), AppendResult) for each in (leader, *followers)]
    if how == "close":
        assert all(done)
    assert sum(done) <= synced_records(disk)
    assert how == "close" or not any(done[1:])


def test_a_durable_retry_is_acknowledged_only_after_the_first_append_is_synced() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    producer = Producer(producer_id=7, producer_epoch=0, base_sequence=0)
    log.append(ONE, now_ms=1000, producer=producer)
    retry = Appender(log, producer)
    assert disk.began.acquire(timeout=PATIENCE_S)
    again = Appender(log, producer)
    waiting(log.commit, 1)
    disk.finish.release()
    assert retry.join() == again.join() == AppendResult(0, 1, is_duplicate=True)
    assert (disk.log_syncs, synced_records(disk)) == (1, 1)


def test_the_recovery_point_does_not_rise_if_the_log_was_truncated_during_the_fsync() -> None:
    disk = GatedDisk()
    log = open_log(disk, LogSettings())
    leader = Appender(log)
    assert disk.began.acquire(timeout=PATIENCE_S)
    with log.lock:
        log.publish(None, next_offset=0)
    disk.finish.release()
    leader.join()
    assert log.recovery_point == 0


def test_flush_messages_counts_from_the_recovery_point_and_the_append_syncs() -> None:
    disk = ModelDisk()
    log = open_log(disk, LogSettings(flush_messages=5))
    for expected in (0, 0, 0, 0, 5, 5):
        log.append(ONE, now_ms=1000)
        assert log.recovery_point == expected
    log.flush()
    log.append(ONE * 5, now_ms=1000)
    assert log.recovery_point == 11


@pytest.mark.parametrize(("now_ms", "is_due"), [(1099, False), (1100, True)])
def test_flush_ms_counts_from_the_oldest_unflushed_record(now_ms: int, is_due: bool) -> None:
    log = open_log(ModelDisk(), LogSettings(flush_ms=100))
    assert not log.flush_if_due(10**12), "an empty log needs no flush"
    log.append(ONE, now_ms=1000)
    log.append(ONE, now_ms=1090)
    assert log.flush_if_due(now_ms) is is_due
    assert log.recovery_point == (2 if is_due else 0)
    assert log.flush_if_due(10**12) is not is_due


def test_a_flush_without_new_records_costs_no_fsync() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 30)
    log.flush()
    before = disk.effects
    log.flush()
    assert disk.effects == before
    assert log.partition == NAME


def test_appends_of_16_threads_on_a_real_disk_are_all_durable_with_shared_fsyncs(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from local.storage import DiskFile, DiskStorage

    syncs = [0]
    real = DiskFile.sync
    arrived = threading.Barrier(16)

    def sync(self: DiskFile) -> None:
        if self._path.endswith(".log"):
            syncs[0] += 1
        real(self)

    monkeypatch.setattr(DiskFile, "sync", sync)
    log = open_log(DiskStorage(), LogSettings(), root=f"{tmp_path}/t-0")

    def work() -> None:
        arrived.wait(PATIENCE_S)
        for _ in range(20):
            log.append(ONE, now_ms=1000, durability=Durability.FLUSHED)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (log.next_offset, log.recovery_point) == (320, 320)
    assert syncs[0] <= 320
