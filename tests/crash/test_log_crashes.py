"""Every effect of the local log cut, by fixed and by drawn programs; then recover, append, reopen, compare.

Each test is a share of the states, so that they spread over cores. The long run is ``tests/crash/campaign.py``.
"""

from __future__ import annotations

import pytest
from log_explorer import Tally, explore
from log_programs import CASES, Case, drawn

DRAWN = 12
STATES_OF_A_SHARE = 1_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("share", [0, 1])
def test_no_promise_is_broken_whatever_effect_is_the_last(case: Case, share: int) -> None:
    tally = Tally()
    # A pass of the cleaner has many effects: few states of each leave room for those inside the recoveries.
    draws = 1 if case.settings.is_compacted else 8
    for seed in range(share, 40, 2):
        explore(case, draws=draws, seed=seed, tally=tally, states_max=STATES_OF_A_SHARE)
        if tally.distinct >= STATES_OF_A_SHARE:
            break
    assert tally.distinct >= STATES_OF_A_SHARE
    assert tally.nested > 50, "the power has to go in recoveries too"


@pytest.mark.parametrize("share", range(DRAWN))
def test_no_promise_is_broken_in_a_drawn_program(share: int) -> None:
    tally = Tally()
    for at in range(200):
        explore(drawn(share + DRAWN * at), draws=3, tally=tally, states_max=STATES_OF_A_SHARE)
        if tally.distinct >= STATES_OF_A_SHARE:
            return
    pytest.fail("too few states")
