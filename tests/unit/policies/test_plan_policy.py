"""The plan: its order, its totals, and the second check that refuses unsafe decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_samples import KEEP, LOCAL, NOW, REMOTE, entry, local, planned, snapshot

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.decisions import (
    AdvanceLogStart,
    CleanLog,
    CopySegment,
    Decision,
    DeletePending,
    DropLocal,
    ExpireRemote,
    RollActive,
    Total,
)
from policies.invariants import violations
from policies.plan import plan, plan_partition
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PendingDelete
from remote.segment_entry import SegmentEntry


def test_a_plan_copies_drops_raises_the_log_start_expires_and_deletes_in_this_order() -> None:
    pending_deletes = PendingDelete(key="data/x.log", size_bytes=7, unlinked_ms=0, epoch=1)
    rules = PartitionRules(retention_ms=90, local_retention_ms=50, delete_grace_ms=1)
    segments = (local(2, 4, age=60), local(4, 6, age=10), local(6, 7, age=0, active=True))
    remote = (entry(0, 2), entry(2, 4, age=60))
    decided = planned(snapshot(*segments, remote=remote, rules=rules, pending_deletes=(pending_deletes,)))
    assert [type(decision).__name__ for decision in decided] == [
        "CopySegment",
        "DropLocal",
        "AdvanceLogStart",
        "ExpireRemote",
        "DeletePending",
    ]


def test_a_plan_omits_partitions_without_work_and_totals_the_others() -> None:
    busy = snapshot(*LOCAL)
    idle = snapshot(local(0, 1, age=0, active=True))
    assert plan([idle], NOW).decisions == {}
    assert plan([idle], NOW).is_empty, "a deferral is not work"
    decided = plan([busy], NOW)
    assert list(decided.decisions) == [TopicPartition("orders", 0)]
    assert decided.totals() == {"CopySegment": Total(count=2, size_bytes=200)}


@pytest.mark.parametrize(
    ("decision", "sentence"),
    [
        (DropLocal(base_offset=2, next_offset=4, size_bytes=1, reason=""), "not the oldest local segment"),
        (DropLocal(base_offset=0, next_offset=3, size_bytes=1, reason=""), "not a closed local segment"),
        (DropLocal(base_offset=4, next_offset=5, size_bytes=1, reason=""), "not a closed local segment"),
        (DropLocal(base_offset=0, next_offset=2, size_bytes=0, reason=""), "the only copy of retained records (I2)"),
        (CopySegment(base_offset=4, next_offset=5, size_bytes=1, reason=""), "not a closed local segment"),
        (AdvanceLogStart(offset=6, reason=""), "above the log end offset 5"),
        (AdvanceLogStart(offset=0, reason=""), "not above the log start 0"),
        (
            ExpireRemote(ulid="u2", base_offset=2, next_offset=4, size_bytes=1, data_key="", indexes_key="", reason=""),
            "holds records at or above the log start 0",
        ),
    ],
)
def test_violations_name_the_broken_invariant(decision: Decision, sentence: str) -> None:
    taken = snapshot(*LOCAL, remote=(entry(2, 4),))
    assert any(sentence in broken for broken in violations(taken, [decision]))


UNLINKED = (
    PendingDelete(key="data/young.log", size_bytes=7, unlinked_ms=NOW - 1, epoch=1),
    PendingDelete(key="data/0.log", size_bytes=7, unlinked_ms=0, epoch=1),
)
COMPACTED = PartitionRules(cleanup_delete=False, cleanup_compact=True)


@pytest.mark.parametrize(
    ("decision", "rules", "sentence"),
    [
        (DeletePending(key="data/young.log", size_bytes=7, reason=""), KEEP, "within the grace period"),
        (DeletePending(key="data/0.log", size_bytes=7, reason=""), KEEP, "a segment entry still names it"),
        (DeletePending(key="data/stranger", size_bytes=7, reason=""), KEEP, "not a pending delete"),
        (AdvanceLogStart(offset=2, reason=""), COMPACTED, "the topic has no delete policy"),
        (CleanLog(first_dirty_offset=0, upto_offset=4, size_bytes=1, reason=""), KEEP, "the topic is not compacted"),
        (
            CleanLog(first_dirty_offset=0, upto_offset=5, size_bytes=1, reason=""),
            COMPACTED,
            "ends in the active segment",
        ),
        (
            CleanLog(first_dirty_offset=0, upto_offset=4, size_bytes=1, reason=""),
            COMPACTED,
            "ends above the stable offset 3",
        ),
        (
            CleanLog(first_dirty_offset=2, upto_offset=2, size_bytes=1, reason=""),
            COMPACTED,
            "has nothing to clean",
        ),
        (
            CopySegment(base_offset=2, next_offset=4, size_bytes=1, reason=""),
            COMPACTED,
            "not entirely below the cleaner checkpoint 0 (I6)",
        ),
        (
            CopySegment(base_offset=2, next_offset=4, size_bytes=1, reason=""),
            KEEP,
            "ends above the stable offset 3",
        ),
        (
            CopySegment(base_offset=0, next_offset=2, size_bytes=1, reason=""),
            KEEP,
            "overlaps the offsets that are copied up to 2",
        ),
        (
            CopySegment(base_offset=2, next_offset=4, size_bytes=1, reason=""),
            PartitionRules(copy_disabled=True),
            "copying is disabled for this topic",
        ),
        (RollActive(base_offset=2, size_bytes=1, reason=""), KEEP, "not the active segment"),
    ],
)
def test_violations_name_the_broken_rule_or_grace_period(
    decision: Decision, rules: PartitionRules, sentence: str
) -> None:
    taken = replace(snapshot(*LOCAL, remote=REMOTE[:1], rules=rules, pending_deletes=UNLINKED), stable_offset=3)
    assert any(sentence in broken for broken in violations(taken, [decision]))


def test_a_roll_of_an_empty_active_segment_is_a_violation() -> None:
    taken = snapshot(local(0, 0, size=0, active=True))
    roll = RollActive(base_offset=0, size_bytes=0, reason="")
    assert violations(taken, [roll]) == ["RollActive [0, ...): the active segment is empty"]


# -- copies leave no gap


def copy(base: int, following: int) -> CopySegment:
    return CopySegment(base_offset=base, next_offset=following, size_bytes=100, reason="")


FOUR = (local(0, 2), local(2, 4), local(4, 6), local(6, 7, active=True))
CLEAN = CleanLog(first_dirty_offset=0, upto_offset=4, size_bytes=1, reason="")


@pytest.mark.parametrize(
    ("taken", "decided", "hole"),
    [
        (snapshot(*FOUR), [copy(0, 2), copy(2, 4), copy(4, 6)], None),
        (snapshot(*FOUR), [copy(2, 4)], "[0, 2)"),
        (snapshot(*FOUR), [copy(0, 2), copy(4, 6)], "[2, 4)"),
        (snapshot(*FOUR, remote=(entry(0, 2),)), [copy(2, 4)], None),
        (snapshot(*FOUR, remote=(entry(0, 2),)), [copy(4, 6)], "[2, 4)"),
        (snapshot(*FOUR, start=2), [copy(2, 4)], None),
        (snapshot(*FOUR, start=3), [copy(4, 6)], "[2, 4)"),
        (snapshot(*FOUR, start=4), [copy(4, 6)], None),
        (snapshot(local(0, 2, size=0), *FOUR[1:]), [copy(2, 4)], None),
        (snapshot(FOUR[0], local(2, 4, size=0), *FOUR[2:]), [copy(0, 2), copy(4, 6)], None),
        (snapshot(*FOUR[2:], remote=(entry(0, 2),)), [copy(4, 6)], None),
    ],
)
def test_a_copy_that_would_leave_an_offset_gap_in_the_remote_tier_is_a_violation(
    taken: PartitionSnapshot, decided: list[CopySegment], hole: str | None
) -> None:
    broken = violations(taken, decided)
    assert broken == (
        [] if hole is None else [f"{_name(decided[-1])}: leaves a gap, {hole} is neither copied nor empty"]
    )


def _name(decision: CopySegment) -> str:
    return f"CopySegment [{decision.base_offset}, {decision.next_offset})"


def test_a_copy_after_a_clean_in_the_same_plan_is_a_violation() -> None:
    taken = snapshot(*LOCAL, rules=COMPACTED, cleaner=4)
    assert violations(taken, [copy(0, 2), copy(2, 4), CLEAN]) == []
    assert violations(taken, [CLEAN, copy(0, 2)]) == [
        "CopySegment [0, 2): follows a cleaning that may replace the segment",
        "CopySegment [0, 2): does not include [2, 4), which is also clean (I4)",
    ]


def test_a_drop_after_the_expiry_of_its_entry_is_a_violation() -> None:
    taken = snapshot(*LOCAL, remote=REMOTE)
    expire = ExpireRemote(
        ulid="u2", base_offset=2, next_offset=4, size_bytes=1, data_key="", indexes_key="", reason="by hand"
    )
    drops = [DropLocal(base_offset=at, next_offset=at + 2, size_bytes=1, reason="by hand") for at in (0, 2)]
    assert violations(taken, drops) == []
    assert violations(taken, [drops[0], expire, drops[1]]) == [
        "ExpireRemote [2, 4): not the oldest segment entry",
        "ExpireRemote [2, 4): holds records at or above the log start 0",
        "DropLocal [2, 4): the only copy of retained records (I2)",
    ]


# -- the amount of work


LOCAL_GOES = PartitionRules(retention_ms=None, local_retention_ms=50, delete_grace_ms=1)
EVERYTHING_GOES = PartitionRules(retention_ms=50, local_retention_ms=50, delete_grace_ms=1)
WORK = {
    "copies": (LOCAL_GOES, 0),
    "drops": (LOCAL_GOES, 1),
    "ends both tiers": (EVERYTHING_GOES, 1),
    "ends a read-only tier": (replace(EVERYTHING_GOES, copy_disabled=True), 0),
}


def partition_of(count: int, rules: PartitionRules, shared: int) -> PartitionSnapshot:
    """`count` entries, closed segments and pending deletes. The segments are above the entries unless `shared`."""
    first = 0 if shared else 2 * count
    segments = [local(first + 2 * at, first + 2 * at + 2) for at in range(count)]
    end = first + 2 * count
    pending_deletes = [
        PendingDelete(key=f"data/gone-{at}", size_bytes=1, unlinked_ms=0, epoch=1) for at in range(count)
    ]
    entries = tuple(entry(2 * at, 2 * at + 2) for at in range(count))
    return snapshot(
        *segments, local(end, end + 1, active=True), remote=entries, rules=rules, pending_deletes=tuple(pending_deletes)
    )


@pytest.mark.parametrize("case", WORK)
def test_planning_and_checking_take_time_linear_in_the_number_of_facts(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(self: object, name: str) -> object:
        nonlocal looks
        looks += 1
        return object.__getattribute__(self, name)

    def looks_for(count: int) -> int:
        nonlocal looks
        taken = partition_of(count, *WORK[case])
        looks = 0
        decided = plan_partition(taken)
        assert len(decided) >= 2 * count
        assert violations(taken, decided) == []
        return looks

    for kind in (SegmentEntry, SegmentInfo, PendingDelete, DropLocal, ExpireRemote):
        monkeypatch.setattr(kind, "__getattribute__", counted)
    assert looks_for(400) < 5 * looks_for(100), "four times the facts must cause about four times the accesses"
