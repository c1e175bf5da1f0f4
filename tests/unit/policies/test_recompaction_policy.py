"""Recompaction: which entries a later cleaning replaces, which only advance their cleaned offset, and which stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_samples import entry, local, snapshot

from local.facts import SegmentInfo
from policies.compaction import replacements, tiled
from policies.decisions import AdvanceCleanedOffset, ExpireRemote, ReplaceRemote
from policies.invariants import violations
from policies.plan import plan_partition
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import SegmentEntry

RULES = PartitionRules(
    cleanup_compact=True,
    cleanup_delete=False,
    retention_ms=None,
    local_retention_ms=None,
    recompaction_min_saved_bytes=10,
    min_cleanable_dirty_ratio=1.0,
)


def cleaned(base: int, following: int, size: int, through: int | None) -> SegmentEntry:
    return replace(entry(base, following, size=size), cleaned_through=through)


def taken(*segments: SegmentInfo, remote: tuple[SegmentEntry, ...], **changes: object) -> PartitionSnapshot:
    end = segments[-1].next_offset
    active = local(end, end + 1, active=True)
    made = snapshot(*segments, active, remote=remote, rules=RULES, cleaner=end)
    return replace(made, **changes)  # type: ignore[arg-type]


ROWS = (cleaned(0, 2, 100, 2), cleaned(2, 4, 100, 4))
SHRUNK = (local(0, 2, size=40), local(2, 4, size=100))


def said(snapshot: PartitionSnapshot) -> list[tuple[str, int, int]]:
    found = replacements(snapshot)
    assert violations(snapshot, found) == []
    return [(type(one).__name__, one.base_offset, one.next_offset) for one in found]


def test_an_entry_is_replaced_if_the_cleaned_segment_is_smaller_by_the_given_share() -> None:
    assert said(taken(*SHRUNK, remote=ROWS)) == [("ReplaceRemote", 0, 2)]
    (decision,) = replacements(taken(*SHRUNK, remote=ROWS))
    assert isinstance(decision, ReplaceRemote)
    assert (decision.ulids, decision.size_bytes, decision.remote_bytes) == (("u0",), 40, 100)
    assert decision.reason == "cleaned again, 60 of 100 bytes less"


def test_an_entry_from_which_a_job_erased_records_is_neither_replaced_nor_verified() -> None:
    redacted = replace(ROWS[0], made_by="redact-1")
    for segments in (SHRUNK, (local(0, 2), local(2, 4))):
        assert ("ReplaceRemote", 0, 2) not in said(taken(*segments, remote=(redacted, ROWS[1])))
        assert said(taken(*segments, remote=(redacted, ROWS[1]))) == []
    (decision,) = replacements(taken(*SHRUNK, remote=ROWS))
    found = violations(taken(*SHRUNK, remote=(redacted, ROWS[1])), [decision])
    assert any("erased records" in each for each in found), found


@pytest.mark.parametrize(
    ("size", "ratio", "saved", "replaced"),
    [(50, 0.5, 10, True), (51, 0.5, 10, False), (91, 0.0, 10, False), (90, 0.0, 10, True), (1, 1.0, 0, False)],
)
def test_an_entry_is_replaced_only_if_both_limits_are_reached(
    size: int, ratio: float, saved: int, replaced: bool
) -> None:
    rules = replace(RULES, recompaction_min_reduction=ratio, recompaction_min_saved_bytes=saved)
    world = taken(local(0, 2, size=size), local(2, 4), remote=ROWS, rules=rules)
    assert ("ReplaceRemote", 0, 2) in said(world) if replaced else ("ReplaceRemote", 0, 2) not in said(world)


def test_an_entry_without_removed_records_advances_its_cleaned_offset() -> None:
    world = taken(local(0, 2), local(2, 4), remote=ROWS)
    assert said(world) == [("AdvanceCleanedOffset", 0, 2)]
    (decision,) = replacements(world)
    assert isinstance(decision, AdvanceCleanedOffset)
    assert decision.cleaned_through == 4
    assert said(replace(world, shrunk=frozenset({0}))) == []


@pytest.mark.parametrize(
    ("segments", "entries", "expected"),
    [
        pytest.param([(0, 4, 50)], [(0, 2), (2, 4)], [("ReplaceRemote", 0, 4)], id="one for two"),
        pytest.param([(0, 4, 50)], [(2, 4)], [], id="the first row has expired"),
        pytest.param([(0, 4, 50)], [(0, 1), (2, 4)], [], id="a gap between the rows"),
        pytest.param([(0, 2, 50), (2, 4, 50)], [(0, 4)], [], id="a row of two segments"),
        pytest.param([(0, 3, 50), (3, 4, 50)], [(0, 2), (2, 4)], [], id="across a row"),
    ],
)
def test_only_entries_that_exactly_tile_a_segment_are_replaced(
    segments: list[tuple[int, int, int]], entries: list[tuple[int, int]], expected: list[tuple[str, int, int]]
) -> None:
    remote = tuple(cleaned(base, following, 200, 1) for base, following in entries)
    assert said(taken(*(local(a, b, size=size) for a, b, size in segments), remote=remote)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"cleaner_reach": 5}, id="a pass was called off"),
        pytest.param({"cleaner_offset": None}, id="never cleaned"),
        pytest.param({"is_tiered": False}, id="not tiered"),
        pytest.param({"rules": replace(RULES, copy_disabled=True)}, id="copying is off"),
        pytest.param({"rules": replace(RULES, cleanup_compact=False)}, id="not compacted"),
        pytest.param({"remote": ROWS[:1]}, id="the bucket lacks what is clean"),
        pytest.param({"log_start_offset": 4}, id="below the log start"),
        pytest.param({"copying": frozenset({0})}, id="being copied"),
    ],
)
def test_no_entry_is_replaced_in_these_states(changes: dict[str, object]) -> None:
    assert said(taken(*SHRUNK, **{"remote": ROWS, **changes})) == []  # type: ignore[arg-type]


def test_an_entry_that_is_as_clean_as_the_log_is_not_replaced() -> None:
    assert said(taken(*SHRUNK, remote=tuple(replace(each, cleaned_through=4) for each in ROWS))) == []


def test_an_entry_that_the_same_plan_expires_is_not_replaced() -> None:
    limits = replace(RULES, cleanup_delete=True, retention_ms=50)
    kinds = [type(each) for each in plan_partition(taken(*SHRUNK, remote=ROWS, rules=limits))]
    assert ExpireRemote in kinds
    assert ReplaceRemote not in kinds


def test_entries_are_replaced_before_the_local_segments_are_dropped() -> None:
    rules = replace(RULES, local_retention_bytes=0)
    kinds = [type(each).__name__ for each in plan_partition(taken(*SHRUNK, remote=ROWS, rules=rules))]
    assert [kind for kind in kinds if kind != "RollActive"] == ["ReplaceRemote", "DropLocal", "DropLocal"]


def by_hand(base: int, following: int, *ulids: str) -> ReplaceRemote:
    return ReplaceRemote(
        base_offset=base, next_offset=following, ulids=ulids, size_bytes=1, remote_bytes=9, reason="by hand"
    )


@pytest.mark.parametrize(
    ("decision", "changes", "sentence"),
    [
        (by_hand(0, 2, "u2"), {}, "its segment entries do not cover the segment exactly"),
        (by_hand(0, 2, "u0", "u2"), {}, "its segment entries do not cover the segment exactly"),
        (by_hand(0, 2, "gone"), {}, "its segment entries do not cover the segment exactly"),
        (by_hand(0, 4, "u0", "u2"), {}, "not a closed local segment"),
        (by_hand(2, 4, "u2"), {"cleaner_offset": 2}, "not entirely below the cleaner checkpoint 2 (I5)"),
        (by_hand(0, 2, "u0"), {"cleaner_reach": 5}, "not entirely below the cleaner checkpoint 0 (I5)"),
        (by_hand(0, 2, "u0"), {"remote": ROWS[:1]}, "the store lacks a part of the clean prefix"),
        (by_hand(0, 2, "u0"), {"is_tiered": False}, "or copying is disabled"),
    ],
)
def test_violations_name_an_unsafe_replacement(
    decision: ReplaceRemote, changes: dict[str, object], sentence: str
) -> None:
    world = taken(*SHRUNK, **{"remote": ROWS, **changes})  # type: ignore[arg-type]
    assert sentence in " ".join(violations(world, [decision]))


def test_a_second_replacement_of_an_entry_is_a_violation() -> None:
    world = taken(*SHRUNK, remote=ROWS)
    once = by_hand(0, 2, "u0")
    assert "its segment entries do not cover the segment exactly" in violations(world, [once, once])[0]


def test_entries_tile_a_range_only_if_they_cover_it_exactly() -> None:
    entries = (entry(0, 2), entry(2, 5), entry(7, 9))
    assert [each.base_offset for each in tiled(entries, 0, 5)] == [0, 2]
    assert [each.base_offset for each in tiled(entries, 7, 9)] == [7]
    assert (
        tiled(entries, 0, 4)
        == tiled(entries, 1, 5)
        == tiled(entries, 2, 9)
        == tiled(entries, 5, 7)
        == tiled((), 0, 1)
        == ()
    )


def test_an_entry_written_by_a_job_is_replaced_but_never_advances_its_cleaned_offset() -> None:
    """Entry and segment may have lost the same number of different records: one a tombstone, the other a value."""
    plain = (cleaned(0, 2, 100, 2), cleaned(2, 4, 100, 4))
    by_job = (replace(plain[0], made_by="job"), plain[1])
    whole = (local(0, 2, size=100), local(2, 4, size=100))
    assert said(taken(*whole, remote=plain)) == [("AdvanceCleanedOffset", 0, 2)]
    assert said(taken(*whole, remote=by_job)) == []
    assert said(taken(*SHRUNK, remote=by_job)) == [("ReplaceRemote", 0, 2)]
    certify = AdvanceCleanedOffset(base_offset=0, next_offset=2, ulids=("u0",), cleaned_through=4, reason="")
    assert violations(taken(*whole, remote=by_job), [certify]) != []
