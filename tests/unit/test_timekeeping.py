"""Which time is gone by while the machine's clock jumps: a table of days, in minutes."""

from __future__ import annotations

import pytest

from tiered.timekeeping import JUMP_MS, Timekeeper, counted_ms

MINUTE = 60_000
HOLD = 60  # minutes
LEAST = JUMP_MS // MINUTE

# (minutes passed, how far the wall clock is off then) and how far the time that is gone by is off
DAYS: dict[str, list[tuple[int, int, int]]] = {
    "a clock that is right": [(0, 0, 0), (1, 0, 0), (500, 0, 0)],
    "a slow correction is followed": [(0, 0, 0), (1, LEAST, LEAST), (2, 2 * LEAST, 2 * LEAST), (3, LEAST, LEAST)],
    "ahead and put right": [(0, 0, 0), (1, 5000, 0), (59, 5000, 0), (60, 0, 0), (61, 0, 0)],
    "back and put right": [(0, 0, 0), (1, -5000, 0), (59, -5000, 0), (60, 0, 0)],
    "ahead for good": [(0, 0, 0), (1, 5000, 0), (60, 5000, 0), (61, 5000, 5000), (62, 5000, 5000)],
    "back for good": [(0, 0, 0), (1, -5000, 0), (60, -5000, 0), (61, -5000, -5000), (62, -5000, -5000)],
    "ahead, then further": [(0, 0, 0), (1, 50, 0), (50, 900, 0), (61, 900, 0), (109, 900, 0), (110, 900, 900)],
    "put right, then ahead anew": [(0, 0, 0), (1, 50, 0), (50, 0, 0), (62, 50, 0), (121, 50, 0), (122, 50, 50)],
    "a long rest between rounds is no jump": [(0, 0, 0), (100_000, 0, 0), (100_001, 50, 0)],
}


@pytest.mark.parametrize("name", DAYS)
def test_a_jump_is_gone_by_only_when_nobody_has_put_it_right(name: str) -> None:
    passed = 0
    keeper = Timekeeper(HOLD * MINUTE, counted=lambda: passed * MINUTE)
    for passed, wall, gone_by in DAYS[name]:
        assert keeper.now_ms((passed + wall) * MINUTE) == (passed + gone_by) * MINUTE, passed
        assert keeper.off_ms == (wall - gone_by) * MINUTE
        assert (keeper.trouble is None) == (wall == gone_by)


def test_without_a_hold_the_clock_is_believed_at_once() -> None:
    keeper = Timekeeper(0, counted=lambda: 0)
    assert [keeper.now_ms(at) for at in (0, 10**12, 5)] == [0, 10**12, 5]
    assert keeper.trouble is None


def test_what_is_counted_goes_on() -> None:
    assert counted_ms() <= counted_ms()
