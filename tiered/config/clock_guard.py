"""What time it is for a manager at work while the machine's clock jumps, or was wrong when it started.

Retention and grace times go by the wall clock. One that is set a month ahead (a dead battery, a typing error, a wrong
time server) would have everything expire, and be deleted before anybody looks. So between two rounds the wall clock is
held against one that only counts on, over a suspended machine too; at a start against the time that the last process
wrote down (`tiered.node.work_report`). Where the two differ the store, if there is one with a clock of its own
(`tiered.stores.store_clock`), is asked what time it is.

| the wall clock | what time it is |
|---|---|
| agrees within JUMP_MS | its own: slow corrections are followed |
| has jumped, ahead or back, less than the hold ago | the time before, counted on; told as a trouble |
| comes back meanwhile | its own |
| jumps once more | as before; the hold begins anew |
| has jumped, and nobody put it right for so long | its own: it is believed |
| has jumped, and the store says the same time | its own, at once: it was put right |
| has jumped, and the store says another time | the earlier of both, not below the time before; as long as they differ |

| at a start, the wall clock | what time it is |
|---|---|
| agrees with the time written down | its own |
| is off it; the store has not answered yet | the time written down, counted on, as after a jump |
| is ahead of it by LONG_STOP_MS at most, and there is no store to ask | its own: the node stood still for so long |
| is ahead of it by more, or back, and there is no store to ask | as after a jump |
| was in doubt already when that was written down | the same; the hold began then, for processes that end soon, too |
| nothing is written down | its own, until the store says another time |

The store never makes it later than the wall clock: a store whose clock is wrong has nothing expire early.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from local.errors import ErrorCode, LogError, Unavailable
from tiered.config.units import format_ms

_JUMPED = "going by the clock, it has jumped"
JUMP_MS = 10 * 60_000  # two looks of one round lie milliseconds apart; time servers correct less, or slowly
LONG_STOP_MS = 31 * 86_400_000  # clocks that are wrong at a start are off by years: an empty battery, a firmware's date
ASK_INTERVAL_MS = 60_000
COUNTED, STORES = "what was counted", "the store's time"


def counted_ms() -> int:
    """Milliseconds since some moment, which nobody sets; where the system can tell, with those spent suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.clock_gettime_ns(clock) if clock is not None else time.monotonic_ns()) // 1_000_000


@dataclass(frozen=True, slots=True)
class _Jump:
    """By how much the wall clock is off what was counted, or off the store's, and when that was first seen."""

    off_ms: int
    seen_ms: int
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """The wall clock said `seen_ms` when it was last held against what was counted, and had been in doubt since it said
    `since_ms`."""

    since_ms: int
    seen_ms: int


class Timekeeper:
    """See the module text. Not thread safe (rounds come one after the other), but for `tell`."""

    def __init__(
        self,
        hold_ms: int,
        counted: Callable[[], int] = counted_ms,
        *,
        last_ms: int | None = None,
        has_store: bool = False,
        doubt: Doubt | None = None,
    ) -> None:
        """`last_ms` is the time that the last process wrote down, `doubt` the one it ended in; with `has_store`
        somebody asks when `is_asking`."""
        self.hold_ms = hold_ms
        self.trouble: LogError | None = None
        self.off_ms = 0  # how far the wall clock was ahead of the time gone by (below 0: behind) at the last look
        self._counted = counted
        self._has_store = has_store and hold_ms > 0
        self._is_start = True  # nothing was believed so far in this process
        self._is_unknown = last_ms is None  # there is nothing to hold the wall clock against
        # A time that was gone by, and what was counted then.
        self._agreed = (last_ms, counted()) if last_ms is not None else None
        self._jump: _Jump | None = None
        self._doubt_before = doubt
        self._asked_ms: int | None = None
        self._store: tuple[int, int] | None = None  # its time, and what was counted then

    def is_asking(self) -> bool:
        """Whether the store's time is wanted now: once for each time this says so, `tell` what it said."""
        is_wanted = self._has_store and (self._jump is not None or (self._is_start and self._is_unknown))
        if not is_wanted or (self._asked_ms is not None and self._counted() - self._asked_ms < ASK_INTERVAL_MS):
            return False
        self._asked_ms = self._counted()
        return True

    def tell(self, store_ms: int) -> None:
        """The store says that it is this time, at this moment. Any thread may tell."""
        self._store = (store_ms, self._counted())

    def now_ms(self, wall_ms: int) -> int:
        """The time to go by, at a moment when the machine's clock says `wall_ms`."""
        found = self._decided(wall_ms, self._counted())
        self.off_ms = wall_ms - found
        return found

    def _decided(self, wall_ms: int, counted: int) -> int:
        if self._agreed is None:
            self._agreed = (wall_ms, counted)
        expected = self._agreed[0] + counted - self._agreed[1]
        off_ms, store = wall_ms - expected, self._store
        if store is not None:
            return self._beside_store(wall_ms, expected, store[0] + counted - store[1], counted)
        if abs(off_ms) <= JUMP_MS or self._stood_still(off_ms):
            return self._believe(wall_ms, counted, is_sure=not (self._is_unknown and self._has_store))
        began = self._begun(off_ms, counted, COUNTED, lasted_ms=self._doubted_before_ms(wall_ms))
        if self._has_store and self._is_start and self._asked_ms is None:
            return expected  # another process's doubt is over, but the store has not been asked by this one
        return self._believe(wall_ms, counted) if counted - began.seen_ms >= self.hold_ms else expected

    def doubt(self, wall_ms: int) -> Doubt | None:
        """For the next process: the doubt at this moment, which no store has ended or made a certainty."""
        if self._jump is None or self._jump.of != COUNTED:
            return None
        return Doubt(since_ms=wall_ms - (self._counted() - self._jump.seen_ms), seen_ms=wall_ms)

    def _doubted_before_ms(self, wall_ms: int) -> int:
        """How long the last process and the time since had been in doubt of this clock, once; 0 where it is another."""
        before, self._doubt_before = self._doubt_before, None
        if before is None or not 0 <= wall_ms - before.seen_ms <= LONG_STOP_MS:
            return 0
        return wall_ms - before.since_ms

    def _beside_store(self, wall_ms: int, expected: int, store_ms: int, counted: int) -> int:
        is_alone = abs(wall_ms - expected) <= JUMP_MS and not self._is_unknown  # the store is, with its time
        if abs(wall_ms - store_ms) <= JUMP_MS or is_alone:
            return self._believe(wall_ms, counted)
        earlier = min(wall_ms, store_ms)
        found = earlier if self._is_unknown else max(expected, earlier)
        if self._is_unknown:
            self._agreed, self._is_unknown = (found, counted), False
        self._begun(wall_ms - store_ms, counted, STORES)
        return found

    def _stood_still(self, off_ms: int) -> bool:
        return self._is_start and not self._has_store and 0 < off_ms <= LONG_STOP_MS and self.hold_ms > 0

    def _begun(self, off_ms: int, counted: int, of: str, *, lasted_ms: int = 0) -> _Jump:
        """The jump that this is; a new one, of which others know for `lasted_ms`, where it is another."""
        if self._jump is None or self._jump.of != of or abs(off_ms - self._jump.off_ms) > JUMP_MS:
            self._jump = _Jump(off_ms, counted - lasted_ms, of)
            self.trouble = self._told(off_ms, of)
        return self._jump

    def _believe(self, wall_ms: int, counted: int, *, is_sure: bool = True) -> int:
        self._agreed, self._jump, self.trouble = (wall_ms, counted), None, None
        if is_sure:
            self._is_start = self._is_unknown = False
            self._store = self._asked_ms = None
        return wall_ms

    def _told(self, off_ms: int, of: str) -> LogError:
        way = "ahead" if off_ms > 0 else "back"
        facts = {way: format_ms(abs(off_ms) // 1000 * 1000)}
        if of == STORES:
            text = f"{_JUMPED}: nothing expires by it while the store's clock says another time"
            return Unavailable(text, **facts).with_code(ErrorCode.CLOCK_JUMPED)
        return Unavailable(
            f"{_JUMPED}: nothing expires by it until it is put right, or the store says so, or believed after a while",
            **facts,
            believed_after=format_ms(self.hold_ms),
        ).with_code(ErrorCode.CLOCK_JUMPED)
