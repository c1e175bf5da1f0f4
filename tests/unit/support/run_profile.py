"""The profile of a test run: how many cases the sweeps, the races and the drawn examples take.

`pytest` runs the plain profile. `pytest --deep`, or the environment variable `TIERED_TEST_PROFILE=deep`, runs the deep
profile. Both profiles run every kind of fault. The plain profile takes each n-th case of a long sweep and fewer seeds,
and leaves out the tests with the marker `deep`, most planted bugs among them. Both are the same on every run.

tests/conftest.py turns the option into the variable before any test module is imported: workers of pytest-xdist and
commands inherit the variable.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

VARIABLE, DEEP = "TIERED_TEST_PROFILE", "deep"
IS_DEEP = os.environ.get(VARIABLE) == DEEP


def by_profile(*, plain: int, deep: int) -> int:
    return deep if IS_DEEP else plain


def deep_only(*cases: T) -> tuple[T, ...]:
    """Return the cases in the deep profile, and none in the plain profile."""
    return cases if IS_DEEP else ()


def sampled(cases: Sequence[T], stride: int, *names: object) -> Sequence[T]:
    """Return the first case, each `stride`-th case and the last case: with a stride of 1 all cases.

    `names` of a parametrized test shift the cases between, so that its parameters take different cases.
    """
    shift = zlib.crc32(repr(names).encode()) % stride
    numbers = {0, *range(shift, len(cases), stride), len(cases) - 1} if cases else set()
    return [cases[number] for number in sorted(numbers)]


def each_call(cases: Sequence[T], *names: object) -> Sequence[T]:
    """Return the calls or effects of a sweep that a test breaks: all in the deep profile, one of a few in the plain."""
    return sampled(cases, CALL_STRIDE, *names)


def one_of_each(stride: int, cases: Iterable[T], first: int = 0) -> Sequence[T]:
    """All cases in the deep profile; in the plain profile each `stride`-th from number `first % stride` on."""
    return list(cases) if IS_DEEP else list(cases)[first % stride :: stride]


def examples(deep: int) -> int:
    """Return `max_examples` of a Hypothesis test that draws `deep` examples in the deep profile."""
    return deep if IS_DEEP else max(10, deep // DRAWN_DIVISOR)


def seeds(deep: int) -> range:
    """Return the seeds of a test that draws its cases from `deep` seeds in the deep profile."""
    return range(deep if IS_DEEP else max(2, deep // DRAWN_DIVISOR))


# --- drawn cases ------------------------------------------------------------------------------------------------------

DRAWN_DIVISOR = 12  # the plain profile draws a twelfth of the examples and seeds
EXAMPLES = examples(100)  # of a test without a number of its own

# --- tests/crash ------------------------------------------------------------------------------------------------------

CALL_STRIDE = by_profile(plain=61, deep=1)  # of the store calls and disk effects that a sweep breaks, one by one
CRASH_STATES = by_profile(plain=40, deep=600)  # distinct disk states of a share of test_log_crashes.py
CRASH_STATES_OWN = by_profile(plain=16, deep=400)  # at most so many of one program; the others are of its recoveries
CRASH_STATES_SOUND = by_profile(plain=24, deep=200)  # of each program without a planted bug
FAULT_STRIDE = by_profile(plain=151, deep=4)  # of (call, kind of fault) of test_fault_kinds.py
FAULT_STRIDE_ENCRYPTED = by_profile(plain=307, deep=20)
FAULT_SEEDS = by_profile(plain=1, deep=3)  # several faults in one flow
REWRITING_SEEDS = by_profile(plain=1, deep=10)
RACE_SEEDS = range(0, 320, by_profile(plain=16, deep=1))
RACE_SEEDS_OF_FORKS = by_profile(plain=3, deep=8)
ROT_CASES = by_profile(plain=24, deep=360)  # damaged buckets, of all topics together
PAGED_CALL_STRIDE = by_profile(plain=9, deep=1)  # of the calls of the commit protocol with pages
CREATION_STATES = by_profile(plain=1, deep=3)  # crash states at each effect of a topic's creation

# --- tests/unit -------------------------------------------------------------------------------------------------------

BAD_VALUES = by_profile(plain=1, deep=2)  # of each option and argument of each command

# --- tests/property ---------------------------------------------------------------------------------------------------

HOSTILE_STRIDE = by_profile(plain=15, deep=3)  # of the seeds of which every byte is changed

# --- processes --------------------------------------------------------------------------------------------------------

SPARK_HEAPS = by_profile(plain=1, deep=2)  # data of test_spark_memory.py, in heaps of its executor
KILLS = by_profile(plain=3, deep=8)  # of a process that is killed again and again, in test_kill.py
