"""Grace period of pending deletes with an unlink time in the future.

The clock of the writer that unlinked them was ahead.

Without this rule the objects stay in the bucket, and cost money, until the stamped time: a month or ten years ahead.
A stamp ahead by more than `JUMP_MS` is therefore replaced: the grace period runs from the moment at which this process
first saw the object. Only a monotonic clock counts it:

| stamp of an object | end of its grace period |
|---|---|
| not ahead of the present time, or by JUMP_MS at most | stamp + grace period |
| ahead | once this process has counted one whole grace period since it first saw the stamp ahead |
| ahead, and the present time later reaches it | stamp + grace period |

A reader may need an object for the grace period after the manifest that unlinked it. This process sees an object first
after that manifest exists. So the object is never deleted early, whichever clock was wrong.

Stamps in manifests are never rewritten for this reason. If the present clock is the wrong one and behind, the stamp is
right. A stamp lowered to the present time would delete the object the moment the clock is corrected.

Nothing is written: a restart counts from the beginning. Commands and processes that end sooner rely on the stamp alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from remote.manifest.manifest import Manifest, PendingDelete, PendingPageDelete
from tiered.config.clock_guard import JUMP_MS, counted_ms


class SkewedDeleteTimer:
    """The future stamps seen in one partition. Thread safe: a race only lengthens the wait."""

    def __init__(self, counted: Callable[[], int] = counted_ms) -> None:
        self._counted = counted
        self._seen: dict[str, int] = {}  # key: counted time at which it was first seen ahead

    def judged(
        self, manifest: Manifest, now_ms: int
    ) -> tuple[tuple[PendingDelete, ...], tuple[PendingPageDelete, ...]]:
        """The unlinked objects and pages of the manifest, with future stamps replaced.

        A stamp ahead of `now_ms` by more than JUMP_MS becomes the time at which this process first saw it.
        """
        latest_ms = now_ms + JUMP_MS
        ahead = {each.key for each in manifest.pending_deletes if each.unlinked_ms > latest_ms}
        ahead |= {each.page.key for each in manifest.pending_page_deletes if each.unlinked_ms > latest_ms}
        if not ahead and not self._seen:
            return manifest.pending_deletes, manifest.pending_page_deletes
        counted, before = self._counted(), self._seen
        listed = {each.key for each in manifest.pending_deletes} | {
            each.page.key for each in manifest.pending_page_deletes
        }
        seen = {key: at for key, at in before.items() if key in listed}
        self._seen = seen | {key: counted for key in ahead if key not in seen}
        since = {key: now_ms - (counted - self._seen.get(key, counted)) for key in ahead}
        return (
            tuple(
                replace(each, unlinked_ms=since[each.key]) if each.key in since else each
                for each in manifest.pending_deletes
            ),
            tuple(
                replace(each, unlinked_ms=since[each.page.key]) if each.page.key in since else each
                for each in manifest.pending_page_deletes
            ),
        )
