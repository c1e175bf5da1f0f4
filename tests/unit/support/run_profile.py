"""The profile of a test run: how many cases the sweeps, the races and the drawn examples take.

`pytest` runs the plain profile. `pytest --deep`, or the environment variable `TIERED_TEST_PROFILE=deep`, runs the deep
profile. Both profiles run every test function, every kind of fault and every planted bug. The plain profile takes each
n-th case of a long sweep and fewer seeds; the deep profile takes all of them. Both are the same on every run.

tests/conftest.py turns the option into the variable before any test module is imported: workers of pytest-xdist and
commands inherit the variable.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

VARIABLE, DEEP = "TIERED_TEST_PROFILE", "deep"
IS_DEEP = os.environ.get(VARIABLE) == DEEP


def by_profile(*, plain: int, deep: int) -> int:
    return deep if IS_DEEP else plain


def sampled(cases: Sequence[T], stride: int, first: int = 0) -> Sequence[T]:
    """Return each `stride`-th case, from number `first` modulo `stride`: with a stride of 1 all cases.

    Tests that share a sweep pass different `first`, so that together they take different cases.
    """
    return cases[first % stride :: stride]


def examples(deep: int) -> int:
    """Return `max_examples` of a Hypothesis test that draws `deep` examples in the deep profile."""
    return deep if IS_DEEP else max(10, deep // EXAMPLES_DIVISOR)


# --- Hypothesis -------------------------------------------------------------------------------------------------------

EXAMPLES_DIVISOR = 3
EXAMPLES = examples(100)  # of a test without settings of its own
