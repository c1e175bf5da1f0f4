"""Group commit: threads that wait for durable appends share one fsync.

A thread appends under the log's lock, releases the lock and waits here for its **position**. A position is a number
that grows with every written byte and never falls. One waiting thread leads and syncs for all. A sync covers all bytes
written before it began. Threads that arrive during the sync elect the next leader among them. There is no timer.

| state | event | next state, and the effect on waiting threads |
|---|---|---|
| idle | `wait_for`, position covered | idle; returns |
| idle | `wait_for`, position not covered | syncing; the caller leads |
| syncing | `wait_for`, position not covered | syncing; waits |
| syncing | the sync ends and covers up to p | idle; threads up to p return, one of the others leads |
| syncing | the sync fails, or is interrupted | failed; the leader gets its error, all not covered get DiskFailed |
| idle, syncing | `cover(p)`: a closed or recovered segment is durable up to p | unchanged; threads up to p return |
| idle, syncing | `fail` | failed; all not covered get DiskFailed |
| failed | any | failed; only positions covered before return, and nothing more is covered |

A failed sync is never retried: the kernel may have dropped the pages and cleared the error, and a second fsync would
succeed. `failed` is therefore final, and a sync that ends well after it covers nothing.

Order of effects: write, sync, cover, return to the caller. A crash before the cover loses only unacknowledged records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from local.errors import DiskFailed


class GroupCommit:
    """See the module. Thread safe. One thread at a time calls `sync`, without holding this class's lock.

    `sync` makes at least all bytes durable that were written before its call, and returns the position it reached.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._changed = threading.Condition()
        self._covered = 0
        self._is_syncing = False
        self._failure: BaseException | None = None

    def wait_for(self, position: int) -> None:
        """Return once everything up to `position` is durable.

        The caller must not hold a lock that `sync` needs. Raises DiskFailed after a failure; the leader raises the
        error of `sync` itself.
        """
        while True:
            leads = False
            try:
                with self._changed:
                    while self._is_syncing and self._covered < position and self._failure is None:
                        self._changed.wait()
                    if self._covered >= position:
                        return
                    if self._failure is not None:
                        raise DiskFailed("an fsync failed; reopen the log", cause=self._failure)
                    leads = self._is_syncing = True
                reached = self._sync()
            except BaseException as error:
                if leads:
                    self._end(failure=error)
                raise
            self._end(reached=reached)

    def cover(self, position: int) -> None:
        """Record that everything up to `position` became durable without this class's `sync`."""
        with self._changed:
            if self._failure is None:
                self._covered = max(self._covered, position)
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Stop covering positions for good. The first error is kept."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _end(self, *, reached: int = 0, failure: BaseException | None = None) -> None:
        with self._changed:
            self._is_syncing = False
            if failure is not None:
                self.fail(failure)
            self.cover(reached)
            self._changed.notify_all()
