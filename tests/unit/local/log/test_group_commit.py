"""Many who wait for one fsync: the table of the module text, line by line, with threads that meet at events."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from local.errors import DiskFailed
from local.log.group_commit import GroupCommit

PATIENCE_S = 60


class Disk:
    """A sync that waits for its `finish` and covers what was written when it began; written by `written`."""

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
    """A thread that waits for a position, and what became of it."""

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
        assert not self._thread.is_alive(), "it still waits"
        return self.outcome


def waiting(commit: GroupCommit, count: int) -> None:
    """Return once `count` threads sleep on the commit's condition."""
    while True:
        with commit._changed:
            if len(commit._changed._waiters) >= count:  # type: ignore[attr-defined]
                return


def test_a_covered_position_costs_no_sync() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    commit.wait_for(0)
    commit.cover(7)
    commit.wait_for(7)
    assert disk.syncs == 0


def test_all_who_came_before_a_sync_are_done_with_it_and_those_after_share_the_next() -> None:
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
    assert all(each.is_waiting for each in later), "somebody was told of a sync that began before it wrote"
    disk.finish.release()
    assert [each.join() for each in later] == ["done"] * 10
    assert disk.syncs == 2


def test_a_failed_sync_fails_its_leader_its_followers_and_all_who_come_later_and_is_not_tried_again() -> None:
    disk = Disk()
    commit = GroupCommit(disk.sync)
    commit.cover(3)
    disk.written, disk.error = 5, DiskFailed("syncing a file", path="x")
    leader = Waiter(commit, 4)
    assert disk.began.acquire(timeout=PATIENCE_S)
    followers = [Waiter(commit, position) for position in (5, 6)]
    waiting(commit, 2)
    disk.finish.release()
    assert leader.join() is disk.error
    for each in (*followers, Waiter(commit, 4), Waiter(commit, 9)):
        outcome = each.join()
        assert isinstance(outcome, DiskFailed)
        assert "it failed" in str(outcome)
    assert Waiter(commit, 3).join() == "done"
    commit.cover(100)
    assert isinstance(Waiter(commit, 9).join(), DiskFailed), "covered after a failure"
    assert disk.syncs == 1


def test_an_interrupted_leader_leaves_nobody_waiting() -> None:
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


def test_what_is_covered_by_a_seal_during_a_sync_returns_at_once() -> None:
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


def test_a_close_that_fails_everything_wakes_all_and_a_sync_that_ends_well_after_it_covers_nothing() -> None:
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
