"""Rewriting a bucket, interrupted before and after each effect and begun again, under readers."""

from __future__ import annotations

import pytest
from fault_kinds import Kind
from rewrite_flows import FLOWS, WRITES, run_case, small_segments

KINDS = (Kind.ERROR_BEFORE, Kind.ERROR_AFTER, Kind.LATE_EFFECT, Kind.FALSE_CONFLICT, Kind.LOST_PART, Kind.STALE_LIST)


@pytest.mark.parametrize("paged", [False, True], ids=["in the head", "in pages"])
@pytest.mark.parametrize("name", sorted(FLOWS))
def test_every_call_cut_before_and_after_its_effect(name: str, paged: bool) -> None:
    calls = run_case(FLOWS[name], small_segments(paged=paged), None, None)
    assert len([call for call in calls if call in ("put", "upload", "put_if_absent")]) > 4
    for at, verb in enumerate(calls):
        for kind in KINDS if verb in WRITES else (Kind.ERROR_BEFORE,):
            if verb in kind.verbs:
                run_case(FLOWS[name], small_segments(paged=paged), at, kind)
