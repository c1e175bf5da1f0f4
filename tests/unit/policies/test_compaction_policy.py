"""When a compacted log is cleaned, and which part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_samples import entry

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.compaction import (
    AGING_ROUNDS,
    LogToClean,
    by_priority,
    cleanings,
    first_dirty_offset,
    first_uncleanable_offset,
    is_dirty_enough,
    log_to_clean,
    tombstones_below,
)
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


def test_the_first_pass_cleans_everything_below_the_active_segment() -> None:
    assert ranges(snapshot(*FOUR)) == [(0, 30)]


def test_a_clean_decision_states_the_dirty_bytes_and_the_ratio() -> None:
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
def test_a_log_is_cleaned_only_if_its_dirty_ratio_exceeds_the_limit(
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
def test_a_segment_that_ends_above_the_last_stable_offset_is_not_cleaned(stable: int, expected: int) -> None:
    assert first_uncleanable_offset(snapshot(*FOUR, stable=stable)) == expected


def test_a_pass_from_a_checkpoint_inside_a_segment_ends_at_a_segment_boundary() -> None:
    assert ranges(snapshot(*FOUR, cleaner=15, stable=20)) == []
    assert ranges(snapshot(*FOUR, cleaner=5, stable=20)) == [(5, 20)]


def test_a_record_younger_than_the_compaction_lag_ends_the_cleanable_part() -> None:
    segments = (local(0, 10, age=100), local(10, 20, age=49), local(20, 30, age=100), local(30, 35, active=True))
    rules = PartitionRules(cleanup_compact=True, min_compaction_lag_ms=50)
    assert ranges(snapshot(*segments, rules=rules)) == [(0, 10)]


def test_no_pass_begins_during_a_copy_of_the_partition() -> None:
    assert ranges(snapshot(*FOUR, copying=frozenset({0}))) == []


def test_a_plan_cleans_first_and_the_next_plan_copies() -> None:
    first = [type(decision).__name__ for decision in plan_partition(snapshot(*FOUR))]
    assert first == ["CleanLog"]
    second = [type(decision).__name__ for decision in plan_partition(snapshot(*FOUR, cleaner=30))]
    assert second == ["CopySegment"] * 3


def test_a_plan_that_cleans_copies_no_segment() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, segment_ms=1, local_retention_ms=None)
    taken = snapshot(*FOUR, rules=rules, cleaner=10)
    assert [copy.base_offset for copy in copies(taken)] == [0]
    assert [type(decision).__name__ for decision in plan_partition(taken)] == ["RollActive", "CleanLog"]
    cleaned = replace(taken, cleaner_offset=30)
    assert [type(decision).__name__ for decision in plan_partition(cleaned)] == ["RollActive"] + ["CopySegment"] * 3


def test_a_compacted_topic_without_the_delete_policy_expires_nothing() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, retention_ms=1, local_retention_ms=None)
    assert [type(decision).__name__ for decision in plan_partition(snapshot(*FOUR, rules=rules, cleaner=0))] == [
        "CleanLog"
    ]


def timed(base: int, following: int, first_age: int | None) -> SegmentInfo:
    first = None if first_age is None else NOW - first_age
    return replace(local(base, following), first_timestamp_ms=first)


@pytest.mark.parametrize(
    ("first_ages", "cleaner", "delay"),
    [
        ((51, 10), 0, 1),
        ((50, 10), 0, 0),
        ((10, 70), 0, 20),
        ((90, 10), 10, 0),
        ((90, 10), 5, 40),
        ((NOW, 60), 0, 10),  # a timestamp of 0 does not count
        ((NOW + 1, None), 0, 0),
    ],
)
def test_the_delay_counts_from_the_oldest_first_batch_of_the_dirty_closed_segments(
    first_ages: tuple[int | None, int | None], cleaner: int, delay: int
) -> None:
    one, two = first_ages
    segments = (timed(0, 10, one), timed(10, 20, two), replace(timed(20, 25, NOW - 1), is_active=True))
    rules = PartitionRules(cleanup_compact=True, max_compaction_lag_ms=50)
    assert log_to_clean(snapshot(*segments, rules=rules, cleaner=cleaner)).delay_ms == delay


def test_max_compaction_lag_forces_a_pass_below_the_dirty_ratio() -> None:
    segments = (timed(0, 90, 100), timed(90, 100, 60), local(100, 105, active=True))
    rules = PartitionRules(cleanup_compact=True, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=59)
    (decision,) = cleanings(snapshot(*segments, rules=rules, cleaner=90))
    assert decision.reason == "dirty share 0.50, 1ms past max.compaction.lag.ms=59ms"
    assert cleanings(snapshot(*segments, rules=replace(rules, max_compaction_lag_ms=60), cleaner=90)) == []


def test_max_compaction_lag_forces_no_pass_if_nothing_can_be_cleaned() -> None:
    segments = (timed(0, 10, 100), local(10, 15, active=True))
    rules = PartitionRules(cleanup_compact=True, max_compaction_lag_ms=10)
    assert ranges(snapshot(*segments, rules=rules, stable=5)) == []


def test_every_byte_is_clean_cleanable_or_uncleanable() -> None:
    found = log_to_clean(snapshot(*FOUR, cleaner=10, stable=25))
    assert (found.clean_bytes, found.cleanable_bytes, found.uncleanable_bytes) == (100, 100, 200)


@pytest.mark.parametrize(("cleaner", "expected"), [(None, 5), (4, 5), (5, 5), (6, 6), (36, 5)])
def test_a_checkpoint_outside_the_log_counts_as_the_log_start(cleaner: int | None, expected: int) -> None:
    assert log_to_clean(snapshot(*FOUR, cleaner=cleaner, start=5)).first_dirty_offset == expected


def test_no_log_is_cleaned_while_cleaning_is_not_allowed() -> None:
    assert ranges(replace(snapshot(*FOUR), may_clean=False)) == []


def candidate(number: int, ratio: float) -> LogToClean:
    dirty = max(1, round(ratio * 1000))
    return LogToClean(
        partition=TopicPartition("t", number),
        first_dirty_offset=0,
        first_uncleanable_offset=10,
        clean_bytes=1000 - dirty,
        cleanable_bytes=dirty,
        uncleanable_bytes=0,
        min_dirty_ratio=0.0,
        delay_ms=0,
    )


def test_the_log_with_the_highest_dirty_ratio_is_cleaned_first() -> None:
    logs = [candidate(number, ratio) for number, ratio in enumerate((0.6, 0.9, 0.7))]
    assert [log.partition.partition for log in by_priority(logs, {})] == [1, 2, 0]


@given(data=st.data(), count=st.integers(1, 12), at_once=st.integers(1, 4))
def test_every_log_is_cleaned_within_the_stated_number_of_rounds(data: st.DataObject, count: int, at_once: int) -> None:
    waited = {TopicPartition("t", number): 0 for number in range(count)}
    bound = AGING_ROUNDS + (count - 1) // at_once
    victim = TopicPartition("t", data.draw(st.integers(0, count - 1)))
    is_hostile = data.draw(st.booleans())
    for _ in range(bound):
        # In the hostile case all other logs are completely dirty; otherwise any ratio is drawn.
        logs = [
            candidate(name.partition, (0.001 if name == victim else 1.0) if is_hostile else data.draw(st.floats(0, 1)))
            for name in waited
        ]
        chosen = {log.partition for log in by_priority(logs, waited)[:at_once]}
        if victim in chosen:
            return
        waited = {name: 0 if name in chosen else rounds + 1 for name, rounds in waited.items()}
    raise AssertionError(f"{victim} starves")


@pytest.mark.parametrize(
    ("cleaned", "start", "known", "expected"),
    [
        ([], 0, True, None),
        ([], 0, False, 0),
        ([20, 20], 0, True, 20),
        ([20, 30], 0, True, 20),
        ([20, 30], 10, True, 30),  # records below the log start are not readable
        # copied before the topic was compacted: it does not prove anything for older offsets
        ([20, None], 0, True, 10),
        ([None, 20], 0, True, 0),
    ],
)
def test_the_tombstone_bound_is_the_lowest_cleaned_offset_of_all_entries(
    cleaned: list[int | None], start: int, known: bool, expected: int | None
) -> None:
    entries = tuple(
        replace(entry(base=10 * at, following=10 * at + 10), cleaned_through=each) for at, each in enumerate(cleaned)
    )
    taken = replace(snapshot(*FOUR, start=start), remote=entries)
    assert tombstones_below(taken, is_bucket_known=known) == expected


def test_without_a_remote_tier_there_is_no_tombstone_bound() -> None:
    assert tombstones_below(replace(snapshot(*FOUR), is_tiered=False), is_bucket_known=False) is None


@pytest.mark.parametrize(
    ("compacts", "deletes", "expected"),
    [
        (False, True, ["DropLocal", "AdvanceLogStart", "DropLocal", "DropLocal"]),
        (True, True, ["CleanLog", "DropLocal", "AdvanceLogStart", "DropLocal", "DropLocal"]),
        (True, False, ["CleanLog", "DropLocal"]),
    ],
)
def test_delete_expires_by_age_and_compact_alone_only_drops_below_the_log_start(
    compacts: bool, deletes: bool, expected: list[str]
) -> None:
    rules = PartitionRules(cleanup_compact=compacts, cleanup_delete=deletes, retention_ms=50, local_retention_ms=None)
    taken = replace(snapshot(*FOUR[:3], replace(FOUR[3], max_timestamp_ms=NOW), rules=rules, start=10), is_tiered=False)
    assert [type(decision).__name__ for decision in plan_partition(taken)] == expected


@pytest.mark.parametrize(
    ("dirty", "clean", "ratio", "expected"),
    [(50, 50, 0.5, False), (51, 49, 0.5, True), (1, 99, 0.0, True), (0, 0, 0.0, False), (0, 9, 0.0, False)],
)
def test_a_log_is_dirty_enough_only_above_the_ratio(dirty: int, clean: int, ratio: float, expected: bool) -> None:
    assert is_dirty_enough(dirty, clean, ratio) is expected
