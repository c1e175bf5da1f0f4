"""The byte rate limit, with a clock that advances only during sleeps."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.storage.throttle import BURST_SECONDS, Throttle


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self._lock = threading.Lock()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        with self._lock:
            self.slept.append(seconds)
            self.now += seconds


def throttle(rate: float | None) -> tuple[Throttle, FakeTime]:
    at = FakeTime()
    return Throttle(rate, clock=at.clock, sleep=at.sleep), at


def test_without_a_limit_no_call_sleeps() -> None:
    limit, at = throttle(None)
    limit.take(1 << 40)
    assert at.slept == []


def test_a_thousand_bytes_at_a_hundred_per_second_take_ten_seconds_less_the_burst() -> None:
    limit, at = throttle(100)
    limit.take(1000)
    assert at.now == pytest.approx(110 - BURST_SECONDS)


@given(
    rate=st.integers(1, 1000),
    moves=st.lists(st.tuples(st.integers(0, 3000), st.floats(0, 20)), min_size=1, max_size=30),
)
def test_no_interval_gets_more_bytes_than_the_rate_the_burst_and_one_call(
    rate: int, moves: list[tuple[int, float]]
) -> None:
    limit, at = throttle(rate)
    taken: list[tuple[float, int]] = []
    for size, rest in moves:
        taken.append((at.now, size))
        limit.take(size)
        at.now += rest
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            seconds = taken[last][0] - taken[first][0]
            moved = sum(size for _, size in taken[first : last + 1])
            largest = taken[last][1]
            assert moved <= rate * (seconds + BURST_SECONDS) + largest + 1e-3
    assert all(one[0] <= two[0] for one, two in pairwise(taken))


def test_the_debt_of_one_thread_delays_all_threads() -> None:
    limit, at = throttle(100)
    threads = [threading.Thread(target=limit.take, args=(500,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 2000 bytes, 30 of them from the burst. Sleeps overlap on the fake clock: time may run ahead but never behind.
    assert at.now - 100 >= 19.7 - 1e-6


def test_a_cancelled_call_does_not_wait_for_its_debt() -> None:
    limit, at = throttle(1)
    asked = iter([False, False, True])
    limit.take(10_000, lambda: next(asked))
    assert at.slept == [BURST_SECONDS] * 2
