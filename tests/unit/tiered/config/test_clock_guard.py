"""The clock guard: which time the process uses while the wall clock of the machine jumps.
The tables are in minutes."""

from __future__ import annotations

import pytest

from local.errors import AccessDenied
from remote.store import Body
from remote.store.memory_store import MemoryStore
from tiered.config.clock_guard import JUMP_MS, ClockGuard, ClockSuspicion, counted_ms
from tiered.stores.configured_store import StoreClock, has_own_clock

MINUTE = 60_000
HOLD = 60  # minutes
LEAST = JUMP_MS // MINUTE

# Each entry: (minutes passed, error of the wall clock, error of the time in use).
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
def test_clock_jump_is_accepted_only_after_the_hold_time(name: str) -> None:
    passed = 0
    clock_guard = ClockGuard(HOLD * MINUTE, counted=lambda: passed * MINUTE)
    for passed, wall, gone_by in DAYS[name]:
        assert clock_guard.now_ms((passed + wall) * MINUTE) == (passed + gone_by) * MINUTE, passed
        assert clock_guard.off_ms == (wall - gone_by) * MINUTE
        assert (clock_guard.suspect_reason is None) == (wall == gone_by)


def test_clock_without_a_hold_time_is_accepted_at_once() -> None:
    clock_guard = ClockGuard(0, counted=lambda: 0)
    assert [clock_guard.now_ms(at) for at in (0, 10**12, 5)] == [0, 10**12, 5]
    assert clock_guard.suspect_reason is None


def test_counted_time_never_decreases() -> None:
    assert counted_ms() <= counted_ms()


YEAR = 365 * 1440
HOLIDAY, LONG = 20 * 1440, 40 * 1440  # minutes
NEVER = None
LAST = 10 * YEAR  # last time that the previous process recorded
BACK, LATE, AHEAD = LAST + HOLIDAY, LAST + LONG, LAST + YEAR
# name: (the store has a clock, recorded last time, entries (minutes passed, wall clock, store time or NEVER, time in
# use))
STARTS: dict[str, tuple[bool, int | None, list[tuple[int, int, int | None, int]]]] = {
    "right, and shortly after": (True, LAST, [(0, LAST + 5, NEVER, LAST + 5), (1, LAST + 6, NEVER, LAST + 6)]),
    "right, after a holiday, the store says so": (True, LAST, [(0, LAST + 9999, LAST + 9999, LAST + 9999)]),
    "right, after a holiday, no store": (False, LAST, [(0, BACK, NEVER, BACK)]),
    "right, after a holiday, the store is silent, then answers": (
        True,
        LAST,
        [(0, BACK, NEVER, LAST), (30, BACK + 30, NEVER, LAST + 30), (31, BACK + 31, BACK + 31, BACK + 31)],
    ),
    "the store is silent for good": (
        True,
        LAST,
        [(0, BACK, NEVER, LAST), (59, BACK + 59, NEVER, LAST + 59), (60, BACK + 60, NEVER, BACK + 60)],
    ),
    "long after, no store": (
        False,
        LAST,
        [(0, LATE, NEVER, LAST), (60, LATE + 60, NEVER, LATE + 60)],
    ),
    "back, no store": (False, LAST, [(0, 5, NEVER, LAST), (59, 64, NEVER, LAST + 59), (60, 65, NEVER, 65)]),
    "ahead, the store says so, for ever": (
        True,
        LAST,
        [
            (0, AHEAD, LAST + 99, LAST + 99),
            (5000, AHEAD + 5000, LAST + 5099, LAST + 5099),
            (5001, LAST + 5100, LAST + 5100, LAST + 5100),
        ],
    ),
    "back to the beginning, the store says so": (
        True,
        LAST,
        [(0, 1, LAST + 99, LAST), (300, 301, LAST + 399, LAST + 300), (301, LAST + 400, LAST + 400, LAST + 400)],
    ),
    "the store's clock is ahead": (
        True,
        LAST,
        [(0, LAST + 99, AHEAD, LAST + 99), (300, LAST + 399, AHEAD + 300, LAST + 399)],
    ),
    "the store's clock is back": (True, LAST, [(0, LAST + 99, 7, LAST), (300, LAST + 399, 307, LAST + 300)]),
    "both are back": (True, LAST, [(0, 7, 8, 7)]),
    "nothing known, ahead": (
        True,
        None,
        [(0, AHEAD, NEVER, AHEAD), (1, AHEAD + 1, LAST + 1, LAST + 1)],
    ),
    "nothing known, back": (True, None, [(0, 3, LAST, 3), (5, LAST + 5, LAST + 5, LAST + 5)]),
    "nothing known, right": (True, None, [(0, LAST, LAST, LAST), (3, LAST + 3, NEVER, LAST + 3)]),
    "nothing known, nobody to ask": (False, None, [(0, AHEAD, NEVER, AHEAD)]),
}


@pytest.mark.parametrize("name", STARTS)
def test_clock_at_start_is_checked_against_the_recorded_time_and_the_store(name: str) -> None:
    passed = 0
    has_store, last, looks = STARTS[name]
    clock_guard = ClockGuard(
        HOLD * MINUTE,
        counted=lambda: passed * MINUTE,
        last_ms=last * MINUTE if last is not None else None,
        has_store=has_store,
    )
    for passed, wall, store, gone_by in looks:
        found = clock_guard.now_ms(wall * MINUTE)
        if clock_guard.is_asking() and store is not None:
            clock_guard.set_store_time(store * MINUTE)
            found = clock_guard.now_ms(wall * MINUTE)
        assert found == gone_by * MINUTE, passed
        assert clock_guard.off_ms == (wall - gone_by) * MINUTE
        is_told = wall != gone_by or (store is not None and abs(wall - store) > LEAST)
        assert (clock_guard.suspect_reason is not None) == is_told, passed


@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("off", [LONG, -LONG], ids=["ahead", "back"])
def test_short_processes_accept_a_wrong_clock_after_the_same_hold_time(off: int, has_store: bool) -> None:
    """Processes that cron starts: each of them counts only a few minutes."""
    passed, last, suspicion, gone_by = 0, LAST * MINUTE, None, []

    def counted() -> int:
        return passed * MINUTE

    for begin in range(0, 2 * HOLD, 10):
        passed = begin
        clock_guard = ClockGuard(HOLD * MINUTE, counted, last_ms=last, has_store=has_store, suspicion=suspicion)
        for passed in (begin, begin + 1):
            wall = (LAST + off + passed) * MINUTE
            last = clock_guard.now_ms(wall)
            if clock_guard.is_asking():  # the store does not answer
                last = clock_guard.now_ms(wall)
            suspicion = clock_guard.suspicion(wall)
        gone_by.append(last == wall)
        assert (clock_guard.suspect_reason is None) == gone_by[-1]
    assert gone_by == [begin + 1 >= HOLD for begin in range(0, 2 * HOLD, 10)]


def test_doubt_about_a_different_wall_clock_time_is_ignored() -> None:
    suspicion = ClockSuspicion(since_ms=LAST * MINUTE, seen_ms=(LAST + 5 * YEAR) * MINUTE)
    for wall in (LAST + 3 * YEAR, LAST + 7 * YEAR):  # the clock was set back, or jumped far ahead again
        clock_guard = ClockGuard(HOLD * MINUTE, counted=lambda: 0, last_ms=LAST * MINUTE, suspicion=suspicion)
        assert clock_guard.now_ms(wall * MINUTE) == LAST * MINUTE


def test_store_that_was_not_asked_is_asked_before_a_recorded_doubt_ends() -> None:
    wall = (LAST + YEAR) * MINUTE
    suspicion = ClockSuspicion(since_ms=wall - 2 * HOLD * MINUTE, seen_ms=wall - MINUTE)
    clock_guard = ClockGuard(
        HOLD * MINUTE, counted=lambda: 0, last_ms=LAST * MINUTE, has_store=True, suspicion=suspicion
    )
    assert clock_guard.now_ms(wall) == LAST * MINUTE
    assert clock_guard.is_asking()
    clock_guard.set_store_time((LAST + 1) * MINUTE)
    assert clock_guard.now_ms(wall) == (LAST + 1) * MINUTE


# Each entry: (minutes passed, error of the wall clock, error of the store's clock, error of the time in use).
WITNESSED: dict[str, list[tuple[int, int, int | None, int]]] = {
    "ahead, the store says so, for long": [
        (0, 0, 0, 0),
        (1, 5000, 0, 0),
        (500, 5000, 0, 0),
        (501, 0, 0, 0),
    ],
    "back, the store says so": [(0, 0, 0, 0), (1, -5000, 0, 0), (500, -5000, 0, 0), (501, 0, 0, 0)],
    "put right: the store says the new time": [(0, 0, 0, 0), (1, 5000, 5000, 5000), (2, 5000, 5000, 5000)],
    "set back where it should be": [(0, 0, 0, 0), (1, -5000, -5000, -5000)],
    "nobody answers": [(0, 0, None, 0), (1, 5000, None, 0), (60, 5000, None, 0), (61, 5000, None, 5000)],
    "the store is wrong in its own way": [
        (0, 0, 0, 0),
        (1, 5000, 9000, 5000),
        (2, -5000, 9000, 0),
        (3, 0, 9000, 0),
    ],
}


@pytest.mark.parametrize("name", WITNESSED)
def test_clock_jump_is_compared_with_the_clock_of_the_store(name: str) -> None:
    passed, base = 0, 10 * YEAR
    clock_guard = ClockGuard(HOLD * MINUTE, counted=lambda: passed * MINUTE, has_store=True)
    for passed, wall, store, gone_by in WITNESSED[name]:
        found = clock_guard.now_ms((base + passed + wall) * MINUTE)
        if clock_guard.is_asking() and store is not None:
            clock_guard.set_store_time((base + passed + store) * MINUTE)
            found = clock_guard.now_ms((base + passed + wall) * MINUTE)
        assert found == (base + passed + gone_by) * MINUTE, passed


def test_store_is_asked_for_its_time_only_in_doubt_and_once_a_minute() -> None:
    passed = 0
    clock_guard = ClockGuard(HOLD * MINUTE, counted=lambda: passed * 1000, last_ms=LAST * MINUTE, has_store=True)
    assert not clock_guard.is_asking()
    clock_guard.now_ms(LAST * MINUTE)
    assert not clock_guard.is_asking(), "a clock without a jump needs no question to the store"
    clock_guard.now_ms((LAST + 5000) * MINUTE)
    asked = []
    for passed in range(0, 180, 10):
        clock_guard.now_ms((LAST + 5000) * MINUTE)
        asked += [passed] * clock_guard.is_asking()
    assert asked == [0, 60, 120]


class Stamping(MemoryStore):
    """A store with a clock.
    With `refuses` it rejects requests, as S3 does when the client's clock is far off."""

    refuses = False

    def put_if_absent(self, key: str, body: Body) -> None:
        if self.refuses:
            raise AccessDenied("cannot create an object, refused", cause="RequestTimeTooSkewed")
        super().put_if_absent(key, body)


def test_store_clock_reads_the_time_of_the_store_and_deletes_its_probe_object() -> None:
    store = Stamping(now_ms=lambda: 1234)
    told: list[int] = []
    StoreClock(store, lambda: 0).ask(told.append, wait_s=60)
    assert told == [1234]
    assert [*store.list("")] == []
    store.refuses = True
    StoreClock(store, lambda: 0).ask(told.append, wait_s=60)
    assert told == [1234]


@pytest.mark.parametrize(
    ("url", "has"), [("s3://b/p", True), ("hdfs://n/p", True), ("file:///p", False), ("memory://", False)]
)
def test_store_on_the_same_machine_has_no_clock_of_its_own(url: str, has: bool) -> None:
    assert has_own_clock(url) is has
