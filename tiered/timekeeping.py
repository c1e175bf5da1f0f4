"""What time it is for a manager at work while the machine's clock jumps.

Retention and grace times go by the wall clock. One that is set a month ahead (a dead battery, a typing error, a wrong
time server) would have everything expire, and be deleted before anybody looks. So between two rounds the wall clock is
held against one that only counts on, over a suspended machine too.

| the wall clock | what time it is |
|---|---|
| agrees within JUMP_MS | its own: slow corrections are followed |
| has jumped, ahead or back, less than the hold ago | the time before, counted on; told as a trouble |
| comes back meanwhile | its own |
| jumps once more | as before; the hold begins anew |
| has jumped, and nobody put it right for so long | its own: it is believed |

A process knows nothing of the time before it started, so a restart believes the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from local.errors import LogError, Unavailable
from tiered.units import format_ms

JUMPED = "going by the clock, it has jumped"
JUMP_MS = 10 * 60_000  # two looks of one round lie milliseconds apart; time servers correct less, or slowly


def counted_ms() -> int:
    """Milliseconds since some moment, which nobody sets; where the system can tell, with those spent suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.clock_gettime_ns(clock) if clock is not None else time.monotonic_ns()) // 1_000_000


@dataclass(frozen=True, slots=True)
class _Jump:
    """By how much the wall clock is off what was counted, and when that was first seen, as counted."""

    off_ms: int
    seen_ms: int


class Timekeeper:
    """See the module text. Not thread safe: rounds come one after the other."""

    def __init__(self, hold_ms: int, counted: Callable[[], int] = counted_ms) -> None:
        self.hold_ms = hold_ms
        self.trouble: LogError | None = None
        self._counted = counted
        self._agreed: tuple[int, int] | None = None  # a wall time that was believed, and what was counted then
        self._jump: _Jump | None = None

    @property
    def off_ms(self) -> int:
        """How far the wall clock is ahead of the time that is gone by (below 0: behind); 0 while it is believed."""
        return self._jump.off_ms if self._jump is not None else 0

    def now_ms(self, wall_ms: int) -> int:
        """The time to go by, at a moment when the machine's clock says `wall_ms`."""
        counted = self._counted()
        if self._agreed is None:
            return self._believe(wall_ms, counted)
        expected = self._agreed[0] + counted - self._agreed[1]
        off_ms = wall_ms - expected
        if abs(off_ms) <= JUMP_MS:
            return self._believe(wall_ms, counted)
        if self._jump is None or abs(off_ms - self._jump.off_ms) > JUMP_MS:
            self._jump = _Jump(off_ms, counted)
            self.trouble = self._told(off_ms)
        if counted - self._jump.seen_ms >= self.hold_ms:
            return self._believe(wall_ms, counted)
        return expected

    def _believe(self, wall_ms: int, counted: int) -> int:
        self._agreed, self._jump, self.trouble = (wall_ms, counted), None, None
        return wall_ms

    def _told(self, off_ms: int) -> LogError:
        way = "ahead" if off_ms > 0 else "back"
        return Unavailable(
            f"{JUMPED}: nothing expires by it until it is put right, or believed after a while or a restart",
            **{way: format_ms(abs(off_ms) // 1000 * 1000)},
            believed_after=format_ms(self.hold_ms),
        )
