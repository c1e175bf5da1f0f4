"""The time of a manager while the machine's clock jumps, or was wrong at the start.

A clock set a month ahead would expire everything. So every maintenance run compares the wall clock with a monotonic one
that counts suspended time. A start compares it with the time in the last process's report. If the two differ, a store
with its own clock is asked for the time (`tiered.stores.configured_store`).

| the wall clock | the time used |
|---|---|
| agrees within JUMP_MS | its own: slow corrections are followed |
| has jumped, ahead or back, less than the hold (`hold_ms`) ago | the time before, counted on; reported as a problem |
| comes back during the hold | its own |
| jumps once more | as before; the hold starts over |
| has jumped, and was not corrected during the hold | its own: it is believed |
| has jumped, and the store has the same time | its own, at once: it was corrected |
| has jumped, and the store has another time | the earlier of both, not below the time before; as long as they differ |

| at a start, the wall clock | the time used |
|---|---|
| agrees with the recorded time | its own |
| differs; the store has not answered yet | the recorded time, counted on, as after a jump |
| is ahead by LONG_STOP_MS at most, and there is no store to ask | its own: the node was stopped for so long |
| is ahead by more, or back, and there is no store to ask | as after a jump |
| was in doubt already when the time was recorded | as after a jump; the hold began with that doubt |
| no time is recorded | its own, until the store has another time |

The store never makes the time later than the wall clock: a store with a wrong clock expires nothing early.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from local.errors import ErrorCode, LogError, Unavailable
from tiered.config.units import format_ms

_JUMPED = "the system clock has jumped"
JUMP_MS = 10 * 60_000  # a run reads both clocks within milliseconds; time servers correct less, or slowly
LONG_STOP_MS = 31 * 86_400_000  # wrong clocks at a start are off by years: an empty battery, a firmware's date
ASK_INTERVAL_MS = 60_000
COUNTED, STORES = "the monotonic clock", "the clock of the store"


def counted_ms() -> int:
    """Milliseconds of a monotonic clock, including suspended time where the system supports it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.clock_gettime_ns(clock) if clock is not None else time.monotonic_ns()) // 1_000_000


@dataclass(frozen=True, slots=True)
class _Jump:
    """The offset of the wall clock from the counted time, or the store's, and when it was first seen."""

    off_ms: int
    seen_ms: int
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSuspicion:
    """A wall clock that is not trusted since `since_ms`; it was `seen_ms` at the last check."""

    since_ms: int
    seen_ms: int


class ClockGuard:
    """The clock of a manager. Not thread safe (maintenance runs one at a time), except `set_store_time`."""

    def __init__(
        self,
        hold_ms: int,
        counted: Callable[[], int] = counted_ms,
        *,
        last_ms: int | None = None,
        has_store: bool = False,
        suspicion: ClockSuspicion | None = None,
    ) -> None:
        """`last_ms` and `suspicion` are the last process's. With `has_store` the caller polls `is_asking`."""
        self.hold_ms = hold_ms
        self.suspect_reason: LogError | None = None
        self.off_ms = 0  # how far the wall clock was ahead of the time used (below 0: behind) at the last check
        self._counted = counted
        self._has_store = has_store and hold_ms > 0
        self._is_start = True  # no time was confirmed so far in this process
        self._is_unknown = last_ms is None  # there is no time to compare the wall clock with
        self._agreed = (last_ms, counted()) if last_ms is not None else None  # a time used, the counted time then
        self._jump: _Jump | None = None
        self._earlier_suspicion = suspicion
        self._asked_ms: int | None = None
        self._store: tuple[int, int] | None = None  # its time, and the counted time then

    def is_asking(self) -> bool:
        """Whether the caller must request the store's time now and call `set_store_time`."""
        is_wanted = self._has_store and (self._jump is not None or (self._is_start and self._is_unknown))
        if not is_wanted or (self._asked_ms is not None and self._counted() - self._asked_ms < ASK_INTERVAL_MS):
            return False
        self._asked_ms = self._counted()
        return True

    def set_store_time(self, store_ms: int) -> None:
        """Set the store's present time. Thread safe."""
        self._store = (store_ms, self._counted())

    def now_ms(self, wall_ms: int) -> int:
        """The time to use while the machine's clock says `wall_ms`."""
        found = self._decided(wall_ms, self._counted())
        self.off_ms = wall_ms - found
        return found

    def _decided(self, wall_ms: int, counted: int) -> int:
        if self._agreed is None:
            self._agreed = (wall_ms, counted)
        expected = self._agreed[0] + counted - self._agreed[1]
        off_ms, store = wall_ms - expected, self._store
        if store is not None:
            return self._compared_with_store(wall_ms, expected, store[0] + counted - store[1], counted)
        may_stop = self._is_start and not self._has_store and self.hold_ms > 0
        if abs(off_ms) <= JUMP_MS or (may_stop and 0 < off_ms <= LONG_STOP_MS):
            return self._believe(wall_ms, counted, is_sure=not (self._is_unknown and self._has_store))
        began = self._current_jump(off_ms, counted, COUNTED, lasted_ms=self._doubted_before_ms(wall_ms))
        if self._has_store and self._is_start and self._asked_ms is None:
            return expected  # the doubt of an earlier process is over, but this process has not asked the store
        return self._believe(wall_ms, counted) if counted - began.seen_ms >= self.hold_ms else expected

    def suspicion(self, wall_ms: int) -> ClockSuspicion | None:
        """The suspicion to record for the next process; None if a store confirmed or refuted the clock."""
        if self._jump is None or self._jump.of != COUNTED:
            return None
        return ClockSuspicion(since_ms=wall_ms - (self._counted() - self._jump.seen_ms), seen_ms=wall_ms)

    def _doubted_before_ms(self, wall_ms: int) -> int:
        """How long the last process had doubted this clock; 0 for another clock, or in a second call."""
        before, self._earlier_suspicion = self._earlier_suspicion, None
        if before is None or not 0 <= wall_ms - before.seen_ms <= LONG_STOP_MS:
            return 0
        return wall_ms - before.since_ms

    def _compared_with_store(self, wall_ms: int, expected: int, store_ms: int, counted: int) -> int:
        is_alone = abs(wall_ms - expected) <= JUMP_MS and not self._is_unknown  # only the store has a different time
        if abs(wall_ms - store_ms) <= JUMP_MS or is_alone:
            return self._believe(wall_ms, counted)
        earlier = min(wall_ms, store_ms)
        found = earlier if self._is_unknown else max(expected, earlier)
        if self._is_unknown:
            self._agreed, self._is_unknown = (found, counted), False
        self._current_jump(wall_ms - store_ms, counted, STORES)
        return found

    def _current_jump(self, off_ms: int, counted: int, of: str, *, lasted_ms: int = 0) -> _Jump:
        if self._jump is None or self._jump.of != of or abs(off_ms - self._jump.off_ms) > JUMP_MS:
            self._jump = _Jump(off_ms, counted - lasted_ms, of)
            self.suspect_reason = self._suspect_reason(off_ms, of)
        return self._jump

    def _believe(self, wall_ms: int, counted: int, *, is_sure: bool = True) -> int:
        self._agreed, self._jump, self.suspect_reason = (wall_ms, counted), None, None
        if is_sure:
            self._is_start = self._is_unknown = False
            self._store = self._asked_ms = None
        return wall_ms

    def _suspect_reason(self, off_ms: int, of: str) -> LogError:
        facts = {"ahead" if off_ms > 0 else "back": format_ms(abs(off_ms) // 1000 * 1000)}
        until = "while the clock of the store has another time"
        if of == COUNTED:
            until = "until the clock is corrected, the store confirms it, or it is trusted after a while"
            facts["believed_after"] = format_ms(self.hold_ms)
        return Unavailable(f"{_JUMPED}: no record expires by it {until}", **facts).with_code(ErrorCode.CLOCK_JUMPED)
