"""Rewriting a bucket: interrupted at each effect and started again, with concurrent readers."""

from __future__ import annotations

import os

import pytest
from fault_kinds import Kind
from rewrite_flows import FLOWS, WRITES, run_case, run_drawn, small_segments
from run_profile import REWRITING_SEEDS, each_call

KINDS = (Kind.ERROR_BEFORE, Kind.ERROR_AFTER, Kind.LATE_EFFECT, Kind.FALSE_CONFLICT, Kind.LOST_PART, Kind.STALE_LIST)


@pytest.mark.parametrize("paged", [False, True], ids=["in the head", "in pages"])
@pytest.mark.parametrize("name", sorted(FLOWS))
def test_a_rewrite_interrupted_at_any_call_is_finished_and_readers_see_every_record(name: str, paged: bool) -> None:
    calls = run_case(FLOWS[name], small_segments(paged=paged), None, None)
    assert len([call for call in calls if call in ("put", "upload", "put_if_absent")]) > 4
    cases = [
        (at, kind)
        for at, verb in enumerate(calls)
        for kind in (KINDS if verb in WRITES else (Kind.ERROR_BEFORE,))
        if verb in kind.verbs
    ]
    for at, kind in each_call(cases, name, paged):
        run_case(FLOWS[name], small_segments(paged=paged), at, kind)


SEEDS = int(os.environ.get("TIERED_FAULT_SEEDS", str(REWRITING_SEEDS)))


@pytest.mark.parametrize("mode", ["raw", "both"])
@pytest.mark.parametrize("name", sorted(FLOWS))
def test_a_rewrite_with_several_drawn_faults_is_finished_by_a_second_run(name: str, mode: str) -> None:
    for seed in range(SEEDS):
        run_drawn(FLOWS[name], small_segments(mode, paged=bool(seed % 2)), f"{name} {seed}")
