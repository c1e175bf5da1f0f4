"""Which time is gone by while the machine's clock jumps: a table of days, in minutes."""

from __future__ import annotations

import pytest

from local.errors import AccessDenied
from remote.store import Body
from remote.store.memory_store import MemoryStore
from tiered.config.clock_guard import JUMP_MS, Doubt, Timekeeper, counted_ms
from tiered.stores.store_clock import StoreClock, has_own_clock

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


YEAR = 365 * 1440
HOLIDAY, LONG = 20 * 1440, 40 * 1440  # minutes
NEVER = None
LAST = 10 * YEAR  # when the process before was last seen, where it was
BACK, LATE, AHEAD = LAST + HOLIDAY, LAST + LONG, LAST + YEAR
# name: is there a store with a clock, what was written down, and looks: (minutes passed, wall, store or NEVER, gone by)
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
def test_a_start_goes_by_no_clock_that_its_witnesses_know_to_be_wrong(name: str) -> None:
    passed = 0
    has_store, last, looks = STARTS[name]
    keeper = Timekeeper(
        HOLD * MINUTE,
        counted=lambda: passed * MINUTE,
        last_ms=last * MINUTE if last is not None else None,
        has_store=has_store,
    )
    for passed, wall, store, gone_by in looks:
        found = keeper.now_ms(wall * MINUTE)
        if keeper.is_asking() and store is not None:
            keeper.tell(store * MINUTE)
            found = keeper.now_ms(wall * MINUTE)
        assert found == gone_by * MINUTE, passed
        assert keeper.off_ms == (wall - gone_by) * MINUTE
        is_told = wall != gone_by or (store is not None and abs(wall - store) > LEAST)
        assert (keeper.trouble is not None) == is_told, passed


@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("off", [LONG, -LONG], ids=["ahead", "back"])
def test_processes_that_end_soon_believe_a_clock_that_nobody_puts_right_after_the_same_hold(
    off: int, has_store: bool
) -> None:
    """As cron starts them: each counts only minutes."""
    passed, last, doubt, gone_by = 0, LAST * MINUTE, None, []

    def counted() -> int:
        return passed * MINUTE

    for begin in range(0, 2 * HOLD, 10):
        passed = begin
        keeper = Timekeeper(HOLD * MINUTE, counted, last_ms=last, has_store=has_store, doubt=doubt)
        for passed in (begin, begin + 1):
            wall = (LAST + off + passed) * MINUTE
            last = keeper.now_ms(wall)
            if keeper.is_asking():  # it does not answer
                last = keeper.now_ms(wall)
            doubt = keeper.doubt(wall)
        gone_by.append(last == wall)
        assert (keeper.trouble is None) == gone_by[-1]
    assert gone_by == [begin + 1 >= HOLD for begin in range(0, 2 * HOLD, 10)]


def test_a_doubt_of_another_clock_counts_for_nothing() -> None:
    doubt = Doubt(since_ms=LAST * MINUTE, seen_ms=(LAST + 5 * YEAR) * MINUTE)
    for wall in (LAST + 3 * YEAR, LAST + 7 * YEAR):  # set back since, or far ahead once more
        keeper = Timekeeper(HOLD * MINUTE, counted=lambda: 0, last_ms=LAST * MINUTE, doubt=doubt)
        assert keeper.now_ms(wall * MINUTE) == LAST * MINUTE


def test_a_store_that_was_not_asked_yet_is_asked_before_an_old_doubt_is_over() -> None:
    wall = (LAST + YEAR) * MINUTE
    doubt = Doubt(since_ms=wall - 2 * HOLD * MINUTE, seen_ms=wall - MINUTE)
    keeper = Timekeeper(HOLD * MINUTE, counted=lambda: 0, last_ms=LAST * MINUTE, has_store=True, doubt=doubt)
    assert keeper.now_ms(wall) == LAST * MINUTE
    assert keeper.is_asking()
    keeper.tell((LAST + 1) * MINUTE)
    assert keeper.now_ms(wall) == (LAST + 1) * MINUTE


# (minutes passed, how far the wall clock is off then, the store's time off then) and how far what is gone by is off
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
def test_a_jump_is_held_against_the_stores_clock(name: str) -> None:
    passed, base = 0, 10 * YEAR
    keeper = Timekeeper(HOLD * MINUTE, counted=lambda: passed * MINUTE, has_store=True)
    for passed, wall, store, gone_by in WITNESSED[name]:
        found = keeper.now_ms((base + passed + wall) * MINUTE)
        if keeper.is_asking() and store is not None:
            keeper.tell((base + passed + store) * MINUTE)
            found = keeper.now_ms((base + passed + wall) * MINUTE)
        assert found == (base + passed + gone_by) * MINUTE, passed


def test_the_store_is_asked_in_doubt_alone_and_once_a_minute() -> None:
    passed = 0
    keeper = Timekeeper(HOLD * MINUTE, counted=lambda: passed * 1000, last_ms=LAST * MINUTE, has_store=True)
    assert not keeper.is_asking()
    keeper.now_ms(LAST * MINUTE)
    assert not keeper.is_asking(), "who is sure asks nobody"
    keeper.now_ms((LAST + 5000) * MINUTE)
    asked = []
    for passed in range(0, 180, 10):
        keeper.now_ms((LAST + 5000) * MINUTE)
        asked += [passed] * keeper.is_asking()
    assert asked == [0, 60, 120]


class Stamping(MemoryStore):
    """Or not: S3 answers nobody whose clock is far off."""

    refuses = False

    def put_if_absent(self, key: str, body: Body) -> None:
        if self.refuses:
            raise AccessDenied("creating an object, refused", cause="RequestTimeTooSkewed")
        super().put_if_absent(key, body)


def test_a_store_says_its_time_and_keeps_nothing_of_the_question() -> None:
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
def test_a_store_on_this_machine_is_no_witness(url: str, has: bool) -> None:
    assert has_own_clock(url) is has
