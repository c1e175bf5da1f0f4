"""The ranks of the locks that one thread may hold together, declared once for all packages.

A thread takes locks in ascending rank, never two of the same rank. No two threads can then wait for each other. Locks
without a rank are leaves: their holder takes no other lock. docs/explanation/locks.md names the state that each guards.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from types import TracebackType
from typing import cast


class LockRank(IntEnum):
    """Ascending: a thread that holds a lock takes only locks of higher ranks."""

    TOPICS = 1  # the topics and partitions of a manager
    MAINTENANCE = 2  # one maintenance run at a time
    TIER = 3  # the remote state of a partition
    PARTITION = 4  # the local state of a partition
    LOG = 5  # one log


_is_checking = False
_held = threading.local()


def check_ranks(is_checking: bool = True) -> None:
    """Set whether locks made from now on assert their rank at every acquisition (tests, ``--debug``)."""
    global _is_checking
    _is_checking = is_checking


def ranked_lock(rank: LockRank) -> threading.RLock:
    """A reentrant lock of this rank."""
    return cast(threading.RLock, _CheckedLock(rank)) if _is_checking else threading.RLock()


class _CheckedLock:
    def __init__(self, rank: LockRank) -> None:
        self.rank = rank
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        locks = _locks()
        if self not in locks:
            highest = max((each.rank for each in locks), default=0)
            assert self.rank > highest, f"a lock of rank {self.rank.name} is taken under {LockRank(highest).name}"
        is_taken = self._lock.acquire(blocking, timeout)
        if is_taken:
            locks.append(self)
        return is_taken

    def release(self) -> None:
        self._lock.release()
        locks = _locks()
        del locks[len(locks) - 1 - locks[::-1].index(self)]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _locks() -> list[_CheckedLock]:
    found: list[_CheckedLock] = _held.__dict__.setdefault("locks", [])
    return found
