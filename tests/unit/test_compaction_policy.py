"""When a compacted log is cleaned, and which part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from local.names import TopicPartition
from local.segment_info import SegmentInfo
from policies.compaction import cleanings, first_dirty_offset, first_uncleanable_offset
from policies.invariants import violations
from policies.plan import plan_partition
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from policies.tiering import copies

NOW = 1_000_000
COMPACT = PartitionRules(cleanup_delete=False, cleanup_compact=True)


def local(base: int, following: int, *, size: int = 100, age: int = 100, active: bool = False) -> SegmentInfo:
    return SegmentInfo(
        base_offset=base, next_offset=following, size_bytes=size, max_timestamp_ms=NOW - age, is_active=active
    )


FOUR = (local(0, 10), local(10, 20), local(20, 30), local(30, 35, active=True))


def snapshot(
    *segments: SegmentInfo,
    rules: PartitionRules = COMPACT,
    cleaner: int | None = None,
    start: int = 0,
    stable: int | None = None,
    copying: frozenset[int] = frozenset(),
) -> PartitionSnapshot:
    end = segments[-1].next_offset
    return PartitionSnapshot(
        partition=TopicPartition("orders", 0),
        rules=rules,
        now_ms=NOW,
        log_start_offset=start,
        next_offset=end,
        stable_offset=end if stable is None else stable,
        segments=segments,
        is_tiered=True,
        cleaner_offset=cleaner,
        copying=copying,
    )


def ranges(taken: PartitionSnapshot) -> list[tuple[int, int]]:
    decided = cleanings(taken)
    assert violations(taken, decided) == []
    return [(decision.first_dirty_offset, decision.upto_offset) for decision in decided]


def test_everything_below_the_active_segment_is_cleaned_the_first_time() -> None:
    assert ranges(snapshot(*FOUR)) == [(0, 30)]


def test_a_pass_says_how_much_is_dirty() -> None:
    (decision,) = cleanings(snapshot(*FOUR, cleaner=10))
    assert decision.size_bytes == 200
    assert decision.reason == "dirty share 0.67, min.cleanable.dirty.ratio=0.5"


def test_a_topic_without_compaction_is_never_cleaned() -> None:
    assert ranges(snapshot(*FOUR, rules=PartitionRules())) == []


@pytest.mark.parametrize(
    ("cleaner", "ratio", "expected"),
    [
        (10, 0.66, [(10, 30)]),
        (10, 2 / 3, []),
        (20, 0.5, []),
        (20, 0.33, [(20, 30)]),
        (30, 0.0, []),
        (None, 1.0, []),
    ],
)
def test_the_dirty_share_must_exceed_the_ratio(
    cleaner: int | None, ratio: float, expected: list[tuple[int, int]]
) -> None:
    rules = PartitionRules(cleanup_compact=True, min_cleanable_dirty_ratio=ratio)
    assert ranges(snapshot(*FOUR, cleaner=cleaner, rules=rules)) == expected


@pytest.mark.parametrize(
    ("cleaner", "start", "expected"), [(None, 5, 5), (4, 5, 5), (5, 5, 5), (12, 5, 12), (35, 5, 35), (36, 5, 5)]
)
def test_a_checkpoint_outside_the_log_falls_back_to_the_log_start(
    cleaner: int | None, start: int, expected: int
) -> None:
    assert first_dirty_offset(snapshot(*FOUR, cleaner=cleaner, start=start)) == expected


@pytest.mark.parametrize(("stable", "expected"), [(35, 30), (30, 30), (29, 20), (10, 10), (9, 0)])
def test_cleaning_stops_at_a_segment_that_reaches_above_the_stable_offset(stable: int, expected: int) -> None:
    assert first_uncleanable_offset(snapshot(*FOUR, stable=stable)) == expected


def test_a_checkpoint_inside_a_segment_cleans_from_there_to_the_segments_end() -> None:
    assert ranges(snapshot(*FOUR, cleaner=15, stable=20)) == []
    assert ranges(snapshot(*FOUR, cleaner=5, stable=20)) == [(5, 20)]


def test_a_record_younger_than_the_compaction_lag_ends_the_cleanable_part() -> None:
    segments = (local(0, 10, age=100), local(10, 20, age=49), local(20, 30, age=100), local(30, 35, active=True))
    rules = PartitionRules(cleanup_compact=True, min_compaction_lag_ms=50)
    assert ranges(snapshot(*segments, rules=rules)) == [(0, 10)]


def test_no_pass_begins_while_a_copy_of_the_partition_is_under_way() -> None:
    assert ranges(snapshot(*FOUR, copying=frozenset({0}))) == []


def test_cleaning_comes_before_copying_and_what_it_cleans_is_copied_in_the_next_round() -> None:
    first = [type(decision).__name__ for decision in plan_partition(snapshot(*FOUR))]
    assert first == ["CleanLog"]
    second = [type(decision).__name__ for decision in plan_partition(snapshot(*FOUR, cleaner=30))]
    assert second == ["CopySegment"] * 3


def test_a_plan_that_cleans_copies_nothing_although_something_is_due() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, segment_ms=1, local_retention_ms=None)
    taken = snapshot(*FOUR, rules=rules, cleaner=10)
    assert [copy.base_offset for copy in copies(taken)] == [0]
    assert [type(decision).__name__ for decision in plan_partition(taken)] == ["RollActive", "CleanLog"]
    cleaned = replace(taken, cleaner_offset=30)
    assert [type(decision).__name__ for decision in plan_partition(cleaned)] == ["RollActive"] + ["CopySegment"] * 3


def test_a_compacted_topic_without_the_delete_policy_keeps_everything_for_ever() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, retention_ms=1, local_retention_ms=None)
    assert [type(decision).__name__ for decision in plan_partition(snapshot(*FOUR, rules=rules, cleaner=0))] == [
        "CleanLog"
    ]
