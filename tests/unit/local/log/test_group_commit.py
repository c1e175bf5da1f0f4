"""Group commit: threads that wait for a shared fsync.
Each test is one line of the table in the docstring of the tested module. Semaphores order the threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from local.errors import DiskFailed
from local.log.log_state import GroupCommit

PATIENCE_S = 60


class Disk:
    """A file whose sync blocks until `finish`. A sync covers the bytes in `written` when the sync began."""

    def __init__(self) -> None:
        self.written = 0
        self.syncs = 0
        self.began = threading.Semaphore(0)
        self.finish = threading.Semaphore(0)
        self.error: BaseException | None = None

    def sync(self) -> int:
        reached = self.written
        self.syncs += 1
        self.began.release()
        assert self.finish.acquire(timeout=PATIENCE_S)
        if self.error is not None:
            raise self.error
        return reached


class Waiter:
    """A thread that waits until `position` is durable, and the outcome of its wait."""

    def __init__(self, commit: GroupCommit, position: int) -> None:
        self.outcome: object = None
        self._thread = threading.Thread(target=self._run, args=(commit.wait_for, position))
        self._thread.start()

    def _run(self, wait_for: Callable[[int], None], position: int) -> None:
        try:
            wait_for(position)
            self.outcome = "done"
        except (DiskFailed, KeyboardInterrupt) as error:
            self.outcome = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> object:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the thread still waits for its position"
        return self.outcome


def waiting(commit: GroupCommit, count: int) -> None:
    """Return when `count` threads wait on the condition of `commit`."""
    while True:
        with commit._changed:
            if len(commit._changed._waiters) >= count:  # type: ignore[attr-defined]
                return


def test_a_position_that_is_already_durable_costs_no_sync() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    commit.wait_for(0)
    commit.cover(7)
    commit.wait_for(7)
    assert disk.syncs == 0


def test_waiters_older_than_a_sync_return_after_it_and_later_waiters_share_the_next() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    disk.written = 1
    leader = Waiter(commit, 1)
    assert disk.began.acquire(timeout=PATIENCE_S)
    later = []
    for position in range(2, 12):
        disk.written = position
        later.append(Waiter(commit, position))
    waiting(commit, 10)
    disk.finish.release()
    assert leader.join() == "done"
    assert disk.began.acquire(timeout=PATIENCE_S)
    assert all(each.is_waiting for each in later), "a sync must not release a waiter that wrote after the sync began"
    disk.finish.release()
    assert [each.join() for each in later] == ["done"] * 10
    assert disk.syncs == 2


def test_a_failed_sync_fails_every_present_and_later_waiter_and_is_not_retried() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    commit.cover(3)
    disk.written, disk.error = 5, DiskFailed("cannot sync a file", path="x")
    leader = Waiter(commit, 4)
    assert disk.began.acquire(timeout=PATIENCE_S)
    followers = [Waiter(commit, position) for position in (5, 6)]
    waiting(commit, 2)
    disk.finish.release()
    assert leader.join() is disk.error
    for each in (*followers, Waiter(commit, 4), Waiter(commit, 9)):
        outcome = each.join()
        assert isinstance(outcome, DiskFailed)
        assert "an fsync failed" in str(outcome)
    assert Waiter(commit, 3).join() == "done"
    commit.cover(100)
    assert isinstance(Waiter(commit, 9).join(), DiskFailed), "after a failed sync no later position counts as durable"
    assert disk.syncs == 1


def test_an_interrupted_leader_fails_the_threads_that_wait_for_its_sync() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    disk.written, disk.error = 1, KeyboardInterrupt()
    leader = Waiter(commit, 1)
    assert disk.began.acquire(timeout=PATIENCE_S)
    follower = Waiter(commit, 1)
    waiting(commit, 1)
    disk.finish.release()
    assert isinstance(leader.join(), KeyboardInterrupt)
    assert isinstance(follower.join(), DiskFailed)


def test_a_roll_during_a_sync_releases_the_waiters_whose_position_it_made_durable() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    disk.written = 1
    leader = Waiter(commit, 1)
    assert disk.began.acquire(timeout=PATIENCE_S)
    sealed, later = Waiter(commit, 5), Waiter(commit, 6)
    waiting(commit, 2)
    commit.cover(5)
    assert sealed.join() == "done"
    assert leader.is_waiting
    assert later.is_waiting
    disk.written = 6
    disk.finish.release()
    disk.finish.release()
    assert (leader.join(), later.join()) == ("done", "done")


def test_a_close_during_a_sync_fails_all_waiters_even_if_the_sync_then_succeeds() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    disk.written = 2
    leader = Waiter(commit, 1)
    assert disk.began.acquire(timeout=PATIENCE_S)
    follower = Waiter(commit, 2)
    waiting(commit, 1)
    reason = DiskFailed("letting go of a log")
    commit.fail(reason)
    assert "letting go" in str(follower.join())
    disk.finish.release()
    assert isinstance(leader.join(), DiskFailed)
    with pytest.raises(DiskFailed, match="letting go"):
        commit.wait_for(1)
    assert disk.syncs == 1
