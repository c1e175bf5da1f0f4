"""Objects that left the index at a time which is still to come: whoever unlinked them had a clock that was ahead.

They would lie in the bucket, and be paid for, until that time, be it a month or ten years from now. So one whose stamp
is ahead by more than `JUMP_MS` waits its grace time from the moment this process first sees it so. That is counted by
the clock that nobody sets, and by nothing else:

| the stamp of an object | its grace time is over |
|---|---|
| not ahead of the time gone by, or by JUMP_MS at most | the grace time after the stamp |
| ahead | when it was counted once, whole, in this process since it was first seen ahead |
| ahead, and later the time gone by reaches it | the grace time after the stamp |

A reader may need an object for the grace time after the head that unlinked it, and an object is first seen after that
head was there: so it never goes early, whichever clock was wrong. That is why heads are not stamped anew. Were it the
present clock that is wrong, and behind, the stamp would be right: brought down to the present time, it would have the
object deleted the moment that the clock is put right. Nothing is written, so a start counts from the beginning, and
commands and processes that end sooner leave such objects to the stamp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from remote.manifest.manifest import Head, UnlinkedObject, UnlinkedPage
from tiered.config.clock_guard import JUMP_MS, counted_ms


class AheadStamps:
    """What was seen of one partition. Threads may look at once: one that overtakes another makes it wait longer."""

    def __init__(self, counted: Callable[[], int] = counted_ms) -> None:
        self._counted = counted
        self._seen: dict[str, int] = {}  # key: what was counted when it was first seen ahead

    def judged(self, head: Head, now_ms: int) -> tuple[tuple[UnlinkedObject, ...], tuple[UnlinkedPage, ...]]:
        """The head's unlinked objects and pages; those ahead of `now_ms` stamped with when they were first seen so."""
        latest_ms = now_ms + JUMP_MS
        ahead = {each.key for each in head.unlinked if each.unlinked_ms > latest_ms}
        ahead |= {each.spill.key for each in head.unlinked_pages if each.unlinked_ms > latest_ms}
        if not ahead and not self._seen:
            return head.unlinked, head.unlinked_pages
        counted, before = self._counted(), self._seen
        listed = {each.key for each in head.unlinked} | {each.spill.key for each in head.unlinked_pages}
        seen = {key: at for key, at in before.items() if key in listed}
        self._seen = seen | {key: counted for key in ahead if key not in seen}
        since = {key: now_ms - (counted - self._seen.get(key, counted)) for key in ahead}
        return (
            tuple(replace(each, unlinked_ms=since[each.key]) if each.key in since else each for each in head.unlinked),
            tuple(
                replace(each, unlinked_ms=since[each.spill.key]) if each.spill.key in since else each
                for each in head.unlinked_pages
            ),
        )
