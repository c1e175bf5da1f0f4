"""Which local segments and which rows go, and never the only copy of a retained record."""

from __future__ import annotations

import pytest
from policy_samples import LOCAL, NOW, REMOTE, local, planned, row, snapshot

from policies.decisions import AdvanceLogStart, CopySegment, DropLocal, ExpireRemote
from policies.local_retention import local_drops, local_expirations
from policies.remote_retention import deletions, expirations, log_bytes
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import UnlinkedObject
from remote.segment_entry import SegmentState


def dropped(taken: PartitionSnapshot) -> list[int]:
    planned(taken)
    return [decision.base_offset for decision in local_drops(taken)]


def ended(taken: PartitionSnapshot) -> list[int]:
    planned(taken)
    going = local_expirations(taken, local_drops(taken), expirations(taken))
    return [decision.base_offset for decision in going]


def expired(taken: PartitionSnapshot) -> list[int]:
    planned(taken)
    return [decision.base_offset for decision in expirations(taken)]


OLD_GOES = PartitionRules(retention_ms=None, local_retention_ms=50)


# -- local


def test_local_segments_past_local_retention_go_once_they_are_committed() -> None:
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=OLD_GOES)) == [0, 2]
    assert dropped(snapshot(*LOCAL, remote=REMOTE[:1], rules=OLD_GOES)) == [0]
    assert dropped(snapshot(*LOCAL, rules=OLD_GOES)) == []


def test_what_the_same_plan_copies_is_not_yet_a_copy() -> None:
    decided = planned(snapshot(*LOCAL, rules=OLD_GOES))
    assert [type(decision) for decision in decided] == [CopySegment, CopySegment]


@pytest.mark.parametrize("state", [state for state in SegmentState if state is not SegmentState.COPY_FINISHED])
def test_a_row_that_is_not_finished_frees_nothing(state: SegmentState) -> None:
    assert dropped(snapshot(*LOCAL, remote=(row(0, 2, state=state),), rules=OLD_GOES)) == []


@pytest.mark.parametrize(("age", "goes"), [(49, False), (50, False), (51, True)])
def test_local_time_is_strict(age: int, goes: bool) -> None:
    taken = snapshot(local(0, 2, age=age), local(2, 3, active=True), remote=(row(0, 2),), rules=OLD_GOES)
    assert bool(dropped(taken)) is goes


def test_a_gap_at_the_tail_of_a_segment_does_not_keep_it() -> None:
    taken = snapshot(local(0, 10), local(10, 11, active=True), remote=(row(0, 10),), rules=OLD_GOES)
    assert dropped(taken) == [0], "the row's next offset is the next base, not last record + 1"


def test_a_segment_whose_last_offset_is_not_committed_stays() -> None:
    assert dropped(snapshot(local(0, 10), local(10, 11, active=True), remote=(row(0, 9),), rules=OLD_GOES)) == []


def test_a_hole_in_the_rows_is_no_copy_even_below_the_highest_remote_offset() -> None:
    segments = (local(0, 2), local(2, 4), local(4, 6), local(6, 7, active=True))
    assert dropped(snapshot(*segments, remote=(row(0, 2), row(4, 6)), rules=OLD_GOES)) == [0]


def test_the_first_segment_that_may_not_go_ends_the_scan() -> None:
    segments = (local(0, 2, age=10), local(2, 4), local(4, 5, active=True))
    assert dropped(snapshot(*segments, remote=REMOTE, rules=OLD_GOES)) == []


def test_a_segment_passed_by_the_log_start_may_go_although_it_was_never_uploaded() -> None:
    assert dropped(snapshot(*LOCAL, start=2)) == [0]
    assert dropped(snapshot(*LOCAL, start=3)) == [0], "a straddling segment stays"
    assert dropped(snapshot(*LOCAL, start=4)) == [0, 2]


def test_only_the_retained_part_of_a_straddling_segment_needs_a_copy() -> None:
    taken = snapshot(local(0, 4), local(4, 5, active=True), remote=(row(2, 4),), start=2, rules=OLD_GOES)
    assert dropped(taken) == [0]


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, [0, 2]), (100, [0, 2]), (101, [0]), (200, [0]), (201, []), (300, []), (None, [])]
)
def test_by_size_a_segment_goes_only_if_the_rest_still_reaches_the_limit(
    limit: int | None, expected: list[int]
) -> None:
    rules = PartitionRules(retention_ms=None, local_retention_ms=None, local_retention_bytes=limit)
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=rules)) == expected


def test_a_segment_being_copied_stays() -> None:
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=OLD_GOES, copying=frozenset({0}))) == []


def test_the_active_segment_never_goes_however_old_or_passed() -> None:
    taken = snapshot(local(0, 5, age=9_999, active=True), remote=(row(0, 5, age=1),), rules=OLD_GOES, start=5)
    assert dropped(taken) == []


def test_age_without_records_is_the_files_own() -> None:
    old, young = local(0, 2, age=None, modified_age=51), local(0, 2, age=None, modified_age=50)
    for segment, expected in ((old, [0]), (young, [])):
        assert dropped(snapshot(segment, local(2, 4, age=0), LOCAL[2], remote=REMOTE, rules=OLD_GOES)) == expected


def test_a_future_timestamp_keeps_the_segment_until_then() -> None:
    assert dropped(snapshot(local(0, 2, age=-1), *LOCAL[1:], remote=REMOTE, rules=OLD_GOES)) == []


def test_compacted_topics_are_trimmed_locally_by_local_retention() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, local_retention_ms=50)
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=rules)) == [0, 2]


def test_an_empty_segment_goes_without_any_copy() -> None:
    assert dropped(snapshot(local(0, 2, size=0), *LOCAL[1:], rules=OLD_GOES)) == [0]


def test_retention_of_the_whole_log_gives_up_no_local_segment_that_still_waits_to_be_copied() -> None:
    rules = PartitionRules(retention_ms=50, retention_bytes=1, local_retention_ms=50, copy_lag_ms=1_000)
    taken = snapshot(*LOCAL, rules=rules)
    assert (planned(taken), ended(taken)) == ([], [])


# -- untiered, and the read-only tier


UNTIERED = PartitionRules(retention_ms=50, local_retention_ms=1)


def test_an_untiered_topic_raises_the_log_start_before_it_drops_its_only_copy() -> None:
    decided = planned(snapshot(*LOCAL[:2], local(4, 5, age=0, active=True), rules=UNTIERED, is_tiered=False))
    assert [type(decision) for decision in decided] == [AdvanceLogStart, DropLocal, DropLocal]
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 4
    assert decided[0].reason == "retention, newest record 100ms old, limit 50ms"


def test_an_untiered_topic_follows_retention_and_not_local_retention() -> None:
    rules = PartitionRules(retention_ms=None, local_retention_ms=1)
    assert planned(snapshot(*LOCAL, rules=rules, is_tiered=False)) == []


def test_an_empty_cleanup_policy_keeps_an_untiered_topic_for_ever() -> None:
    rules = PartitionRules(cleanup_delete=False, retention_ms=1, retention_bytes=1)
    assert planned(snapshot(*LOCAL, rules=rules, is_tiered=False)) == []


@pytest.mark.parametrize(("limit", "expected"), [(100, [0, 2]), (101, [0]), (200, [0]), (201, [])])
def test_an_untiered_topic_is_trimmed_by_size(limit: int, expected: list[int]) -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=limit)
    taken = snapshot(*LOCAL, rules=rules, is_tiered=False)
    assert ended(taken) == expected


def test_what_the_log_start_passed_does_not_count_towards_the_size_limit() -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=200)
    taken = snapshot(*LOCAL, rules=rules, start=2, is_tiered=False)
    assert (dropped(taken), ended(taken)) == ([0], [])


def test_a_read_only_tier_drops_committed_segments_by_retention_without_moving_the_log_start() -> None:
    rules = PartitionRules(copy_disabled=True, retention_ms=None, retention_bytes=100, local_retention_ms=1)
    young = (row(0, 2, size=1), row(2, 4, size=1))
    assert [type(one) for one in planned(snapshot(*LOCAL, remote=young, rules=rules))] == [
        DropLocal,
        DropLocal,
        AdvanceLogStart,
        ExpireRemote,
        ExpireRemote,
    ]
    assert dropped(snapshot(*LOCAL, remote=young[:1], rules=rules)) == [0]


def test_a_read_only_tier_keeps_local_segments_while_an_older_row_stays() -> None:
    rules = PartitionRules(copy_disabled=True, retention_ms=50)
    taken = snapshot(local(2, 4), local(4, 5, active=True), remote=(row(0, 2, age=1),), rules=rules)
    assert [decision for decision in planned(taken) if isinstance(decision, DropLocal)] == []


def test_a_read_only_tier_gives_up_local_segments_by_size_once_every_row_goes() -> None:
    rules = PartitionRules(copy_disabled=True, retention_ms=None, retention_bytes=200)
    segments = (local(4, 6), local(6, 8), local(8, 9, active=True))
    for start in (0, 2):  # what the log start passed was never part of the sum
        decided = planned(snapshot(*segments, remote=REMOTE, rules=rules, start=start))
        assert [one.base_offset for one in decided if isinstance(one, DropLocal)] == [4]


# -- remote


LIMIT_50 = PartitionRules(retention_ms=50, local_retention_ms=None)


@pytest.mark.parametrize(("age", "goes"), [(49, False), (50, True), (51, True)])
def test_remote_time_is_not_strict(age: int, goes: bool) -> None:
    assert bool(expired(snapshot(local(2, 3, active=True), remote=(row(0, 2, age=age),), rules=LIMIT_50))) is goes


def test_the_log_start_moves_first_to_the_next_offset_of_the_last_expired_row() -> None:
    decided = planned(snapshot(local(4, 5, age=0, active=True), remote=REMOTE, rules=LIMIT_50))
    assert [type(decision) for decision in decided] == [AdvanceLogStart, ExpireRemote, ExpireRemote]
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 4
    assert isinstance(decided[1], ExpireRemote)
    assert (decided[1].data_key, decided[1].reason) == (
        "data/0.log",
        "newest record 100ms old, retention.ms=50ms",
    )


def test_an_active_segment_from_the_future_survives_size_retention_that_ends_all_others() -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=1)
    rows = (row(0, 1), row(1, 2), row(2, 3))
    decided = planned(snapshot(local(3, 4, age=-86_400_000, active=True), remote=rows, rules=rules))
    assert [type(decision) for decision in decided] == [AdvanceLogStart] + [ExpireRemote] * 3
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 3


def test_rows_below_a_raised_log_start_expire_without_raising_it_again() -> None:
    decided = planned(snapshot(local(4, 5, active=True), remote=REMOTE, start=3))
    assert [type(decision) for decision in decided] == [ExpireRemote]
    assert expired(snapshot(local(4, 5, active=True), remote=REMOTE, start=4)) == [0, 2]


def test_rows_below_the_log_start_expire_even_without_the_delete_policy() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, retention_ms=1, retention_bytes=1)
    assert expired(snapshot(local(4, 5, active=True), remote=REMOTE, rules=rules, start=2)) == [0]


def test_rows_below_the_log_start_take_nothing_off_the_sum_that_size_retention_compares() -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=150)
    rows = (row(0, 2), row(2, 4), row(4, 6))
    assert expired(snapshot(local(6, 7, size=50, active=True), remote=rows, rules=rules, start=2)) == [0, 2]


@pytest.mark.parametrize(("limit", "expected"), [(150, [0, 2]), (151, [0]), (250, [0]), (251, []), (None, [])])
def test_remote_size_counts_rows_and_what_is_only_local(limit: int | None, expected: list[int]) -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=limit)
    segments = (local(2, 4), local(4, 6), local(6, 7, size=50, active=True))
    taken = snapshot(*segments, remote=REMOTE, rules=rules)
    assert log_bytes(taken) == 350, "the segment on both tiers counts once"
    assert expired(taken) == expected


def test_only_finished_rows_count_towards_the_size_limit() -> None:
    limit = PartitionRules(retention_ms=None, retention_bytes=1_000)
    stuck = [
        row(at, at + 1, state=state, ulid=f"s{at}")
        for at, state in enumerate(
            (SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED)
        )
    ]
    finished = [row(at, at + 1) for at in range(3, 14)]
    active = local(14, 14, size=0, active=True)
    assert expired(snapshot(active, remote=(*stuck, *finished[:10]), rules=limit, start=3)) == []
    assert expired(snapshot(active, remote=(*stuck, *finished), rules=limit, start=3)) == [3]


def test_a_time_hit_lowers_the_excess_that_size_still_has_to_take() -> None:
    rules = PartitionRules(retention_ms=50, retention_bytes=150)
    rows = (row(0, 2, age=60), row(2, 4, age=10), row(4, 6, age=10))
    assert expired(snapshot(local(6, 7, size=0, active=True), remote=rows, rules=rules)) == [0]


def test_the_first_row_that_may_not_go_ends_the_scan() -> None:
    assert expired(snapshot(local(4, 5, active=True), remote=(row(0, 2, age=1), row(2, 4)), rules=LIMIT_50)) == []


def test_nothing_at_or_after_a_segment_being_copied_expires() -> None:
    taken = snapshot(*LOCAL, remote=REMOTE, rules=LIMIT_50, copying=frozenset({2}))
    assert expired(taken) == [0]


def test_overlapping_breached_rows_all_go_and_the_log_start_is_their_greatest_end() -> None:
    rows = (row(0, 100), row(0, 105, ulid="longer"))
    decided = planned(snapshot(local(105, 106, age=0, active=True), remote=rows, rules=LIMIT_50))
    assert [type(decision) for decision in decided] == [AdvanceLogStart, ExpireRemote, ExpireRemote]
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 105


@pytest.mark.parametrize(("committed_age", "goes"), [(0, False), (49, False), (50, True), (51, True)])
def test_a_row_without_a_timestamp_is_as_old_as_its_commit(committed_age: int, goes: bool) -> None:
    rows = (row(0, 2, age=None, committed_age=committed_age), row(2, 4))
    assert expired(snapshot(local(4, 5, active=True), remote=rows, rules=LIMIT_50)) == ([0, 2] if goes else [])


def test_a_row_with_a_timestamp_is_as_old_as_that_and_not_as_its_commit() -> None:
    rows = (row(0, 2, age=10, committed_age=900), row(2, 4, age=100, committed_age=0))
    assert expired(snapshot(local(4, 5, active=True), remote=rows, rules=LIMIT_50)) == []
    assert expired(snapshot(local(4, 5, active=True), remote=rows[1:], rules=LIMIT_50)) == [2]


def test_a_row_without_a_timestamp_says_since_when_it_has_been_there() -> None:
    rows = (row(0, 2, age=None, committed_age=70),)
    (decision,) = expirations(snapshot(local(2, 3, active=True), remote=rows, rules=LIMIT_50))
    assert decision.reason == "no timestamp, committed 70ms ago, retention.ms=50ms"


def test_a_row_without_a_timestamp_goes_by_size_and_below_the_log_start_like_any_other() -> None:
    rows = (row(0, 2, age=None), row(2, 4, age=None))
    active = local(4, 5, active=True)
    assert expired(snapshot(active, remote=rows, rules=LIMIT_50, start=2)) == [0]
    by_size = PartitionRules(retention_ms=None, retention_bytes=200, local_retention_ms=None)
    assert expired(snapshot(active, remote=rows, rules=by_size)) == [0]


# -- bytes after the grace time


@pytest.mark.parametrize(("ago", "goes"), [(99, False), (100, True), (-5, False)])
def test_an_unlinked_object_is_deleted_after_the_grace_time(ago: int, goes: bool) -> None:
    unlinked = UnlinkedObject(key="data/x.log", size_bytes=7, unlinked_ms=NOW - ago, epoch=1)
    taken = snapshot(local(0, 1, active=True), unlinked=(unlinked,), rules=PartitionRules(delete_grace_ms=100))
    planned(taken)
    assert [decision.key for decision in deletions(taken)] == (["data/x.log"] if goes else [])


def test_an_object_that_a_row_names_is_never_deleted() -> None:
    unlinked = UnlinkedObject(key="data/0.log", size_bytes=7, unlinked_ms=0, epoch=1)
    assert deletions(snapshot(local(2, 3, active=True), remote=REMOTE, unlinked=(unlinked,))) == []


def test_nothing_is_summed_or_named_that_no_limit_and_no_object_asks_for() -> None:
    """A daemon over many partitions asks this of each, every round."""
    waiting = UnlinkedObject(key="data/x.log", size_bytes=1, unlinked_ms=NOW, epoch=1)
    taken = snapshot(local(2, 3, active=True), remote=REMOTE, unlinked=(waiting,), rules=OLD_GOES)
    assert not expirations(taken)
    assert not deletions(taken)
    assert vars(taken).keys().isdisjoint({"coverage", "named_keys"})
