"""The local log with a power cut at every effect of fixed and drawn programs.

After each cut: recover, append, reopen, compare.

Each test is a share of the states, so that they spread over cores. The long run is ``tests/crash/campaign.py``.
"""

from __future__ import annotations

import pytest
from log_explorer import Tally, explore
from log_programs import CASES, Case, drawn
from run_profile import CRASH_STATES, CRASH_STATES_OWN, deep_only

DRAWN = 12


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("share", [0, *deep_only(1)])
def test_a_crash_after_any_effect_of_a_fixed_program_breaks_no_promise(case: Case, share: int) -> None:
    tally = Tally()
    # A cleaner pass has many effects. Few states of each leave time for states inside the recoveries.
    draws = 1 if case.settings.is_compacted else 8
    for seed in range(share, 40, 2):
        explore(case, draws=draws, seed=seed, tally=tally, states_max=CRASH_STATES, own_max=CRASH_STATES_OWN)
        if tally.distinct >= CRASH_STATES:
            break
    assert tally.distinct >= CRASH_STATES
    assert tally.nested > CRASH_STATES // 20, "too few crashes inside recoveries"


@pytest.mark.parametrize("share", range(DRAWN))
def test_a_crash_after_any_effect_of_a_drawn_program_breaks_no_promise(share: int) -> None:
    tally = Tally()
    for at in range(200):
        explore(drawn(share + DRAWN * at), draws=3, tally=tally, states_max=CRASH_STATES, own_max=CRASH_STATES_OWN)
        if tally.distinct >= CRASH_STATES:
            return
    pytest.fail("too few states")
