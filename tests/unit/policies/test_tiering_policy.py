"""Tiering: which closed segments are copied, and when the active segment rolls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.copy_lag import copy_due_since_ms, without_copy_lag
from policies.decisions import RollActive
from policies.invariants import violations
from policies.plan import plan_partition
from policies.rules import DailyWindow, PartitionRules
from policies.snapshot import PartitionSnapshot
from policies.tiering import copies
from remote.segment_entry import SegmentEntry, SegmentState

NOW = 1_000_000


def local(base: int, following: int, *, size: int = 100, age: int = 0, active: bool = False) -> SegmentInfo:
    return SegmentInfo(
        base_offset=base, next_offset=following, size_bytes=size, max_timestamp_ms=NOW - age, is_active=active
    )


def entry(base: int, following: int, state: SegmentState = SegmentState.COPY_FINISHED) -> SegmentEntry:
    return SegmentEntry(
        ulid=f"u{base}",
        base_offset=base,
        next_offset=following,
        size_bytes=100,
        stored_bytes=100,
        record_count=following - base,
        max_timestamp_ms=NOW,
        min_timestamp_ms=NOW,
        epochs=((0, base),),
        data_crc32c=0,
        data_key=f"data/{base}.log",
        indexes_key=f"data/{base}.indexes",
        indexes_bytes=10,
        indexes={},
        state=state,
    )


def snapshot(
    *segments: SegmentInfo,
    remote: tuple[SegmentEntry, ...] = (),
    rules: PartitionRules | None = None,
    start: int = 0,
    stable: int | None = None,
    cleaner: int | None = None,
    copying: frozenset[int] = frozenset(),
    is_tiered: bool = True,
) -> PartitionSnapshot:
    end = segments[-1].next_offset
    return PartitionSnapshot(
        partition=TopicPartition("orders", 0),
        rules=rules or PartitionRules(),
        now_ms=NOW,
        log_start_offset=start,
        next_offset=end,
        stable_offset=end if stable is None else stable,
        segments=segments,
        is_tiered=is_tiered,
        remote=remote,
        cleaner_offset=cleaner,
        copying=copying,
    )


THREE = (local(0, 2), local(2, 4), local(4, 5, active=True))


def bases(taken: PartitionSnapshot) -> list[int]:
    decided = copies(taken)
    assert violations(taken, decided) == []
    return [decision.base_offset for decision in decided]


def rolled(taken: PartitionSnapshot) -> list[RollActive]:
    return [decision for decision in plan_partition(taken) if isinstance(decision, RollActive)]


def test_every_closed_segment_is_copied_and_the_active_segment_is_not() -> None:
    assert bases(snapshot(*THREE)) == [0, 2]


def test_a_copy_decision_states_its_range_size_and_reason() -> None:
    (decision,) = copies(snapshot(local(0, 2, size=77), local(2, 3, active=True)))
    assert (decision.next_offset, decision.size_bytes) == (2, 77)
    assert decision.reason == "closed, not in the store yet"


def test_copying_resumes_above_the_highest_committed_offset() -> None:
    assert bases(snapshot(*THREE, remote=(entry(0, 2),))) == [2]


def test_copying_resumes_at_a_log_start_above_segments_that_were_never_copied() -> None:
    assert bases(snapshot(*THREE, start=2)) == [2]
    assert bases(snapshot(*THREE, start=3)) == [2], "the segment that contains the log start is copied whole"


@pytest.mark.parametrize("state", [SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED])
def test_an_unfinished_entry_does_not_count_as_a_copy(state: SegmentState) -> None:
    assert bases(snapshot(*THREE, remote=(entry(0, 2, state),))) == [0, 2]


def test_only_segments_wholly_below_the_last_stable_offset_are_copied() -> None:
    assert bases(snapshot(*THREE, stable=4)) == [0, 2]
    assert bases(snapshot(*THREE, stable=3)) == [0]
    assert bases(snapshot(*THREE, stable=0)) == []


def test_segments_behind_a_running_copy_wait_so_that_commits_are_in_order() -> None:
    assert bases(snapshot(*THREE, copying=frozenset({0}))) == []
    assert bases(snapshot(*THREE, copying=frozenset({2}))) == [0]


def test_a_segment_that_overlaps_a_committed_entry_is_not_copied() -> None:
    assert bases(snapshot(local(0, 4), local(4, 6), local(6, 7, active=True), remote=(entry(0, 2),))) == []


@pytest.mark.parametrize("is_tiered", [True, False])
def test_nothing_is_copied_without_tiering_or_with_copying_disabled(is_tiered: bool) -> None:
    assert bases(snapshot(*THREE, is_tiered=is_tiered, rules=PartitionRules(copy_disabled=is_tiered))) == []


def test_an_empty_segment_is_not_copied() -> None:
    assert bases(snapshot(local(0, 2, size=0), *THREE[1:])) == [2]


@pytest.mark.parametrize(
    ("cleaner", "expected"), [(None, []), (0, []), (1, []), (2, [0]), (3, [0]), (4, [0, 2]), (5, [0, 2])]
)
def test_a_compacted_topic_copies_only_segments_below_the_cleaner_checkpoint(
    cleaner: int | None, expected: list[int]
) -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True)
    assert bases(snapshot(*THREE, cleaner=cleaner, rules=rules)) == expected


@pytest.mark.parametrize(
    ("lag_ms", "lag_bytes", "expected"),
    [
        (0, None, [0, 2, 4]),
        (None, 0, [0, 2, 4]),
        (50, None, [0, 2]),
        (51, None, [0]),
        (101, None, []),
        (None, 250, [0]),
        (None, 150, [0, 2]),
        (None, 50, [0, 2, 4]),
        (51, 150, [0, 2]),
        (None, None, []),
    ],
)
def test_the_copy_lag_defers_a_copy_until_its_time_or_its_size_is_exceeded(
    lag_ms: int | None, lag_bytes: int | None, expected: list[int]
) -> None:
    segments = (local(0, 2, age=100), local(2, 4, age=50), local(4, 6, age=10), local(6, 7, size=50, active=True))
    assert bases(snapshot(*segments, rules=PartitionRules(copy_lag_ms=lag_ms, copy_lag_bytes=lag_bytes))) == expected


@pytest.mark.parametrize(
    ("start", "end", "lag_ms", "expected"),
    [
        (-1, 1, 0, [0, 2]),
        (0, 1, 0, [0, 2]),
        (-1, 0, 0, []),
        (1, 2, 0, []),
        (1, -1, 0, []),
        (-2, 1, 50, [0]),
        (-2, 0, 50, []),
    ],
    ids=["in it", "at its start", "at its end", "before it", "past midnight", "lag too", "lag, but outside"],
)
def test_the_copy_window_defers_copies_outside_it(start: int, end: int, lag_ms: int, expected: list[int]) -> None:
    window = DailyWindow(start_ms=NOW + start, end_ms=NOW + end)
    rules = PartitionRules(copy_lag_ms=lag_ms, copy_window=window)
    taken = snapshot(local(0, 2, age=50), local(2, 4, age=10), local(4, 5, active=True), rules=rules)
    assert bases(taken) == expected
    at_once = copies(without_copy_lag(taken))
    assert [each.base_offset for each in at_once] == [0, 2], "an acknowledgement does not wait for it"


def test_a_file_time_in_the_future_does_not_defer_a_copy_to_the_next_window() -> None:
    rules = PartitionRules(copy_window=DailyWindow(start_ms=NOW - 5, end_ms=NOW + 5))
    taken = snapshot(replace(local(0, 2), modified_ms=NOW + 99), local(2, 3, active=True), rules=rules)
    assert bases(taken) == [0]


def test_a_copy_is_late_since_its_first_copy_window_also_after_the_window_ended() -> None:
    def since(start: int, end: int) -> int | None:
        window = DailyWindow(start_ms=NOW + start, end_ms=NOW + end)
        segments = (replace(local(0, 2), modified_ms=NOW - 30), local(2, 3, active=True))
        return copy_due_since_ms(snapshot(*segments, rules=PartitionRules(copy_window=window)))

    assert since(-50, 50) == NOW - 30
    assert since(-20, 50) == NOW - 20
    assert since(-50, -10) == NOW - 30
    assert since(-50, -31) is None
    assert since(10, 50) is None


def test_a_future_timestamp_does_not_defer_a_copy() -> None:
    taken = snapshot(local(0, 2, age=-99), local(2, 3, active=True), rules=PartitionRules(copy_lag_ms=50))
    assert bases(taken) == [0]


def test_the_first_segment_within_the_copy_lag_defers_all_later_ones() -> None:
    segments = (local(0, 2, age=10), local(2, 4, age=100), local(4, 5, active=True))
    assert bases(snapshot(*segments, rules=PartitionRules(copy_lag_ms=50))) == []


@pytest.mark.parametrize(("age", "goes"), [(99, False), (100, False), (101, True)])
def test_an_idle_active_segment_rolls_after_segment_ms(age: int, goes: bool) -> None:
    rules = PartitionRules(segment_ms=100, local_retention_ms=None)
    assert bool(rolled(snapshot(local(0, 2, age=age, active=True), rules=rules))) is goes


def test_an_empty_active_segment_never_rolls() -> None:
    rules = PartitionRules(segment_ms=1, local_retention_ms=1)
    assert rolled(snapshot(local(0, 0, size=0, age=500, active=True), rules=rules)) == []


def test_an_idle_active_segment_past_local_retention_rolls_so_that_it_is_copied() -> None:
    rules = PartitionRules(local_retention_ms=1)
    segments = (local(0, 2, age=10), local(2, 4, age=10, active=True))
    assert rolled(snapshot(*segments, rules=rules, remote=())) == [], (
        "an older segment without a copy prevents the roll"
    )
    (roll,) = rolled(snapshot(*segments, rules=rules, remote=(entry(0, 2),)))
    assert (roll.base_offset, roll.reason) == (2, "newest record 10ms old, retention 1ms")


def test_without_remote_tier_an_active_segment_past_retention_rolls_first() -> None:
    rules = PartitionRules(retention_ms=5, local_retention_ms=None)
    taken = snapshot(local(0, 2, age=10), local(2, 4, age=10, active=True), rules=rules, is_tiered=False)
    kinds = [type(decision).__name__ for decision in plan_partition(taken)]
    assert kinds == ["RollActive", "AdvanceLogStart", "DropLocal"]


def test_a_size_limit_of_zero_rolls_the_active_segment() -> None:
    rules = PartitionRules(local_retention_bytes=0, local_retention_ms=None)
    assert len(rolled(snapshot(local(0, 2, active=True), rules=rules))) == 1


def test_clean_segments_are_copied_all_together_or_not_at_all() -> None:
    """A remote tier that ended inside the clean part would miss removed records and the newer records that supersede
    them."""
    rules = PartitionRules(cleanup_compact=True)
    clean = snapshot(*THREE, rules=rules, cleaner=4)
    assert bases(clean) == [0, 2]
    assert bases(replace(clean, cleaner_reach=4)) == [0, 2]
    assert bases(replace(clean, cleaner_reach=5)) == [], "an unfinished pass has looked above the checkpoint"
    assert bases(replace(clean, stable_offset=3)) == bases(replace(clean, copying=frozenset({2}))) == []
    assert bases(replace(clean, cleaner_offset=2)) == [0], "the copy ends at the checkpoint"


def test_the_copy_lag_of_clean_segments_counts_from_the_oldest() -> None:
    rules = PartitionRules(cleanup_compact=True, copy_lag_ms=150, local_retention_ms=None)
    old, young = replace(local(0, 2), max_timestamp_ms=NOW - 200), replace(local(2, 4), max_timestamp_ms=NOW)
    assert bases(snapshot(old, young, THREE[2], rules=rules, cleaner=4)) == [0, 2]
    assert bases(snapshot(young, THREE[2], rules=rules, cleaner=4, start=2)) == []
