"""Many who wait for the disk share one fsync: the group commit of a log.

Whoever wrote under the log's lock lets go of it and waits here for its **position**, a number that grows with every
written byte and never falls. One of those who wait leads: it syncs for all, and everybody whose bytes were written
before it began is done. Those who came during its sync have the next leader among them. Nobody waits for a clock.

| state | event | next state, and what becomes of those who wait |
|---|---|---|
| idle | `wait_for`, position covered | idle; returns |
| idle | `wait_for`, position not covered | syncing; the caller leads |
| syncing | `wait_for`, position not covered | syncing; waits |
| syncing | the sync ends, everything up to p was in it | idle; those up to p return, one of the others leads |
| syncing | the sync fails, or is interrupted | failed; the leader gets its error, all not covered get DiskFailed |
| idle, syncing | `cover(p)`: a sealed or recovered segment is durable up to p | unchanged; those up to p return |
| idle, syncing | `fail` | failed; all not covered get DiskFailed |
| failed | anything | failed; only what was covered before returns, and nothing is covered any more |

A sync that failed is never tried again: the kernel may have dropped the pages and forgotten, and a second fsync would
say yes. So `failed` is for good, and a sync that ends well after it covers nothing.

Order of effects: write, then sync, then cover, then return to the caller. A crash before the cover loses what nobody
was promised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from local.errors import DiskFailed


class GroupCommit:
    """See the module text. Thread safe; `sync` is called by one thread at a time, holding nothing of this class.

    `sync` makes durable what is written when it is called, or more, and returns the position that this reaches.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._changed = threading.Condition()
        self._covered = 0
        self._is_syncing = False
        self._failure: BaseException | None = None

    def wait_for(self, position: int) -> None:
        """Return once everything up to `position` is durable. The caller must not hold what `sync` needs.

        Raises DiskFailed (the leader: whatever `sync` raised) when that will never be known.
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
                        raise DiskFailed("waiting for an fsync, it failed; reopen the log", cause=self._failure)
                    leads = self._is_syncing = True
                reached = self._sync()
            except BaseException as error:
                if leads:
                    self._end(failure=error)
                raise
            self._end(reached=reached)

    def cover(self, position: int) -> None:
        """Everything up to `position` became durable by another way than this class's `sync`."""
        with self._changed:
            if self._failure is None:
                self._covered = max(self._covered, position)
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more will be covered; the first reason stays."""
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
