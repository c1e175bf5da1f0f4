"""Transitions of a partition that the commit protocol causes: `TierMachine.seen` derives them, without an event."""

from __future__ import annotations

from tiered.partition.tier_state import TRANSITIONS, WRITING, TierState

DERIVED: dict[str, dict[TierState, TierState]] = {
    "a commit was sent": dict.fromkeys(WRITING, TierState.IN_DOUBT),
    "the outcome of the commit is known": {TierState.IN_DOUBT: TierState.WRITER},
    # The resolved commit is the one that disabled it.
    "a commit disabled the tier": dict.fromkeys((TierState.WRITER, TierState.IN_DOUBT), TierState.DISABLED),
    "the disabled tier is empty, and the settings enable it again": {TierState.DISABLED: TierState.WRITER},
}


def reachable(states: set[TierState]) -> set[TierState]:
    """The states that the table and the commit protocol reach from these, and these."""
    steps = [(state, after) for (state, _), after in TRANSITIONS.items()]
    steps += [step for derived in DERIVED.values() for step in derived.items()]
    reached = set(states)
    while more := {after for state, after in steps if state in reached} - reached:
        reached |= more
    return reached
