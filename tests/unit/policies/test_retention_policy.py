"""Retention: which local segments and entries expire or are dropped. The only copy of a retained record always
stays."""

from __future__ import annotations

import pytest
from policy_samples import LOCAL, NOW, REMOTE, entry, local, planned, snapshot

from policies.decisions import AdvanceLogStart, CopySegment, DropLocal, ExpireRemote
from policies.retention import deletions, expirations, local_drops, local_expirations, log_bytes
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PendingDelete
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


# -- local tier


def test_local_segments_past_local_retention_are_dropped_once_they_are_committed() -> None:
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=OLD_GOES)) == [0, 2]
    assert dropped(snapshot(*LOCAL, remote=REMOTE[:1], rules=OLD_GOES)) == [0]
    assert dropped(snapshot(*LOCAL, rules=OLD_GOES)) == []


def test_a_segment_copied_by_the_same_plan_is_not_dropped() -> None:
    decided = planned(snapshot(*LOCAL, rules=OLD_GOES))
    assert [type(decision) for decision in decided] == [CopySegment, CopySegment]


@pytest.mark.parametrize("state", [state for state in SegmentState if state is not SegmentState.COPY_FINISHED])
def test_an_unfinished_entry_allows_no_drop(state: SegmentState) -> None:
    assert dropped(snapshot(*LOCAL, remote=(entry(0, 2, state=state),), rules=OLD_GOES)) == []


@pytest.mark.parametrize(("age", "goes"), [(49, False), (50, False), (51, True)])
def test_a_segment_is_dropped_only_if_it_is_older_than_local_retention(age: int, goes: bool) -> None:
    taken = snapshot(local(0, 2, age=age), local(2, 3, active=True), remote=(entry(0, 2),), rules=OLD_GOES)
    assert bool(dropped(taken)) is goes


def test_an_offset_gap_at_the_end_of_a_segment_does_not_prevent_its_drop() -> None:
    taken = snapshot(local(0, 10), local(10, 11, active=True), remote=(entry(0, 10),), rules=OLD_GOES)
    assert dropped(taken) == [0], "an entry ends at the next base offset, not behind its last record"


def test_a_segment_whose_last_offset_is_not_committed_is_not_dropped() -> None:
    assert dropped(snapshot(local(0, 10), local(10, 11, active=True), remote=(entry(0, 9),), rules=OLD_GOES)) == []


def test_a_gap_between_entries_prevents_drops_of_the_segments_in_it() -> None:
    segments = (local(0, 2), local(2, 4), local(4, 6), local(6, 7, active=True))
    assert dropped(snapshot(*segments, remote=(entry(0, 2), entry(4, 6)), rules=OLD_GOES)) == [0]


def test_the_first_segment_that_cannot_be_dropped_protects_all_later_ones() -> None:
    segments = (local(0, 2, age=10), local(2, 4), local(4, 5, active=True))
    assert dropped(snapshot(*segments, remote=REMOTE, rules=OLD_GOES)) == []


def test_a_segment_below_the_log_start_is_dropped_without_a_copy() -> None:
    assert dropped(snapshot(*LOCAL, start=2)) == [0]
    assert dropped(snapshot(*LOCAL, start=3)) == [0], "the segment that contains the log start stays"
    assert dropped(snapshot(*LOCAL, start=4)) == [0, 2]


def test_only_the_retained_part_of_a_segment_needs_a_copy() -> None:
    taken = snapshot(local(0, 4), local(4, 5, active=True), remote=(entry(2, 4),), start=2, rules=OLD_GOES)
    assert dropped(taken) == [0]


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, [0, 2]), (100, [0, 2]), (101, [0]), (200, [0]), (201, []), (300, []), (None, [])]
)
def test_a_segment_is_dropped_by_size_only_if_the_rest_reaches_the_limit(
    limit: int | None, expected: list[int]
) -> None:
    rules = PartitionRules(retention_ms=None, local_retention_ms=None, local_retention_bytes=limit)
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=rules)) == expected


def test_a_segment_that_is_being_copied_is_not_dropped() -> None:
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=OLD_GOES, copying=frozenset({0}))) == []


def test_the_active_segment_is_never_dropped() -> None:
    taken = snapshot(local(0, 5, age=9_999, active=True), remote=(entry(0, 5, age=1),), rules=OLD_GOES, start=5)
    assert dropped(taken) == []


def test_a_segment_without_record_times_has_the_age_of_its_file() -> None:
    old, young = local(0, 2, age=None, modified_age=51), local(0, 2, age=None, modified_age=50)
    for segment, expected in ((old, [0]), (young, [])):
        assert dropped(snapshot(segment, local(2, 4, age=0), LOCAL[2], remote=REMOTE, rules=OLD_GOES)) == expected


def test_a_segment_with_a_future_timestamp_is_not_dropped_before_that_time() -> None:
    assert dropped(snapshot(local(0, 2, age=-1), *LOCAL[1:], remote=REMOTE, rules=OLD_GOES)) == []


def test_local_retention_drops_segments_of_compacted_topics() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, local_retention_ms=50)
    assert dropped(snapshot(*LOCAL, remote=REMOTE, rules=rules)) == [0, 2]


def test_an_empty_segment_is_dropped_without_a_copy() -> None:
    assert dropped(snapshot(local(0, 2, size=0), *LOCAL[1:], rules=OLD_GOES)) == [0]


def test_retention_does_not_expire_local_segments_that_wait_for_their_copy() -> None:
    rules = PartitionRules(retention_ms=50, retention_bytes=1, local_retention_ms=50, copy_lag_ms=1_000)
    taken = snapshot(*LOCAL, rules=rules)
    assert (planned(taken), ended(taken)) == ([], [])


# -- without a remote tier, and with a read-only remote tier


UNTIERED = PartitionRules(retention_ms=50, local_retention_ms=1)


def test_without_a_remote_tier_the_log_start_is_raised_before_the_drop() -> None:
    decided = planned(snapshot(*LOCAL[:2], local(4, 5, age=0, active=True), rules=UNTIERED, is_tiered=False))
    assert [type(decision) for decision in decided] == [AdvanceLogStart, DropLocal, DropLocal]
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 4
    assert decided[0].reason == "retention, newest record 100ms old, limit 50ms"


def test_a_topic_without_remote_tier_follows_retention_and_not_local_retention() -> None:
    rules = PartitionRules(retention_ms=None, local_retention_ms=1)
    assert planned(snapshot(*LOCAL, rules=rules, is_tiered=False)) == []


def test_an_empty_cleanup_policy_expires_nothing_in_a_topic_without_remote_tier() -> None:
    rules = PartitionRules(cleanup_delete=False, retention_ms=1, retention_bytes=1)
    assert planned(snapshot(*LOCAL, rules=rules, is_tiered=False)) == []


@pytest.mark.parametrize(("limit", "expected"), [(100, [0, 2]), (101, [0]), (200, [0]), (201, [])])
def test_a_topic_without_remote_tier_expires_by_size(limit: int, expected: list[int]) -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=limit)
    taken = snapshot(*LOCAL, rules=rules, is_tiered=False)
    assert ended(taken) == expected


def test_segments_below_the_log_start_do_not_count_towards_the_size_limit() -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=200)
    taken = snapshot(*LOCAL, rules=rules, start=2, is_tiered=False)
    assert (dropped(taken), ended(taken)) == ([0], [])


def test_with_copies_disabled_committed_segments_are_dropped_by_retention() -> None:
    rules = PartitionRules(copy_disabled=True, retention_ms=None, retention_bytes=100, local_retention_ms=1)
    young = (entry(0, 2, size=1), entry(2, 4, size=1))
    assert [type(one) for one in planned(snapshot(*LOCAL, remote=young, rules=rules))] == [
        DropLocal,
        DropLocal,
        AdvanceLogStart,
        ExpireRemote,
        ExpireRemote,
    ]
    assert dropped(snapshot(*LOCAL, remote=young[:1], rules=rules)) == [0]


def test_with_copies_disabled_no_segment_is_dropped_while_an_older_entry_stays() -> None:
    rules = PartitionRules(copy_disabled=True, retention_ms=50)
    taken = snapshot(local(2, 4), local(4, 5, active=True), remote=(entry(0, 2, age=1),), rules=rules)
    assert [decision for decision in planned(taken) if isinstance(decision, DropLocal)] == []


def test_with_copies_disabled_local_segments_expire_by_size_after_all_entries() -> None:
    rules = PartitionRules(copy_disabled=True, retention_ms=None, retention_bytes=200)
    segments = (local(4, 6), local(6, 8), local(8, 9, active=True))
    for start in (0, 2):  # segments below the log start do not count
        decided = planned(snapshot(*segments, remote=REMOTE, rules=rules, start=start))
        assert [one.base_offset for one in decided if isinstance(one, DropLocal)] == [4]


# -- remote tier


LIMIT_50 = PartitionRules(retention_ms=50, local_retention_ms=None)


@pytest.mark.parametrize(("age", "goes"), [(49, False), (50, True), (51, True)])
def test_an_entry_expires_when_its_age_reaches_retention(age: int, goes: bool) -> None:
    assert bool(expired(snapshot(local(2, 3, active=True), remote=(entry(0, 2, age=age),), rules=LIMIT_50))) is goes


def test_the_log_start_is_raised_to_the_end_of_the_expired_entries_first() -> None:
    decided = planned(snapshot(local(4, 5, age=0, active=True), remote=REMOTE, rules=LIMIT_50))
    assert [type(decision) for decision in decided] == [AdvanceLogStart, ExpireRemote, ExpireRemote]
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 4
    assert isinstance(decided[1], ExpireRemote)
    assert (decided[1].data_key, decided[1].reason) == (
        "data/0.log",
        "newest record 100ms old, retention.ms=50ms",
    )


def test_an_active_segment_with_future_time_survives_when_size_expires_all_entries() -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=1)
    entries = (entry(0, 1), entry(1, 2), entry(2, 3))
    decided = planned(snapshot(local(3, 4, age=-86_400_000, active=True), remote=entries, rules=rules))
    assert [type(decision) for decision in decided] == [AdvanceLogStart] + [ExpireRemote] * 3
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 3


def test_entries_below_a_raised_log_start_expire_without_raising_it_again() -> None:
    decided = planned(snapshot(local(4, 5, active=True), remote=REMOTE, start=3))
    assert [type(decision) for decision in decided] == [ExpireRemote]
    assert expired(snapshot(local(4, 5, active=True), remote=REMOTE, start=4)) == [0, 2]


def test_entries_below_the_log_start_expire_without_the_delete_policy_too() -> None:
    rules = PartitionRules(cleanup_delete=False, cleanup_compact=True, retention_ms=1, retention_bytes=1)
    assert expired(snapshot(local(4, 5, active=True), remote=REMOTE, rules=rules, start=2)) == [0]


def test_entries_below_the_log_start_do_not_reduce_the_excess_of_size_retention() -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=150)
    entries = (entry(0, 2), entry(2, 4), entry(4, 6))
    assert expired(snapshot(local(6, 7, size=50, active=True), remote=entries, rules=rules, start=2)) == [0, 2]


@pytest.mark.parametrize(("limit", "expected"), [(150, [0, 2]), (151, [0]), (250, [0]), (251, []), (None, [])])
def test_remote_size_counts_entries_and_segments_that_are_only_local(limit: int | None, expected: list[int]) -> None:
    rules = PartitionRules(retention_ms=None, retention_bytes=limit)
    segments = (local(2, 4), local(4, 6), local(6, 7, size=50, active=True))
    taken = snapshot(*segments, remote=REMOTE, rules=rules)
    assert log_bytes(taken) == 350, "a segment on both tiers counts once"
    assert expired(taken) == expected


def test_only_finished_entries_count_towards_the_size_limit() -> None:
    limit = PartitionRules(retention_ms=None, retention_bytes=1_000)
    stuck = [
        entry(at, at + 1, state=state, ulid=f"s{at}")
        for at, state in enumerate(
            (SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED)
        )
    ]
    finished = [entry(at, at + 1) for at in range(3, 14)]
    active = local(14, 14, size=0, active=True)
    assert expired(snapshot(active, remote=(*stuck, *finished[:10]), rules=limit, start=3)) == []
    assert expired(snapshot(active, remote=(*stuck, *finished), rules=limit, start=3)) == [3]


def test_an_entry_expired_by_time_reduces_the_excess_of_size_retention() -> None:
    rules = PartitionRules(retention_ms=50, retention_bytes=150)
    entries = (entry(0, 2, age=60), entry(2, 4, age=10), entry(4, 6, age=10))
    assert expired(snapshot(local(6, 7, size=0, active=True), remote=entries, rules=rules)) == [0]


def test_the_first_entry_that_cannot_expire_protects_all_later_ones() -> None:
    assert expired(snapshot(local(4, 5, active=True), remote=(entry(0, 2, age=1), entry(2, 4)), rules=LIMIT_50)) == []


def test_no_entry_at_or_after_a_segment_that_is_being_copied_expires() -> None:
    taken = snapshot(*LOCAL, remote=REMOTE, rules=LIMIT_50, copying=frozenset({2}))
    assert expired(taken) == [0]


def test_overlapping_expired_entries_raise_the_log_start_to_their_largest_end() -> None:
    entries = (entry(0, 100), entry(0, 105, ulid="longer"))
    decided = planned(snapshot(local(105, 106, age=0, active=True), remote=entries, rules=LIMIT_50))
    assert [type(decision) for decision in decided] == [AdvanceLogStart, ExpireRemote, ExpireRemote]
    assert isinstance(decided[0], AdvanceLogStart)
    assert decided[0].offset == 105


@pytest.mark.parametrize(("committed_age", "goes"), [(0, False), (49, False), (50, True), (51, True)])
def test_an_entry_without_a_timestamp_has_the_age_of_its_commit(committed_age: int, goes: bool) -> None:
    entries = (entry(0, 2, age=None, committed_age=committed_age), entry(2, 4))
    assert expired(snapshot(local(4, 5, active=True), remote=entries, rules=LIMIT_50)) == ([0, 2] if goes else [])


def test_an_entry_with_a_timestamp_does_not_use_the_age_of_its_commit() -> None:
    entries = (entry(0, 2, age=10, committed_age=900), entry(2, 4, age=100, committed_age=0))
    assert expired(snapshot(local(4, 5, active=True), remote=entries, rules=LIMIT_50)) == []
    assert expired(snapshot(local(4, 5, active=True), remote=entries[1:], rules=LIMIT_50)) == [2]


def test_the_reason_to_expire_an_entry_without_a_timestamp_names_its_commit_age() -> None:
    entries = (entry(0, 2, age=None, committed_age=70),)
    (decision,) = expirations(snapshot(local(2, 3, active=True), remote=entries, rules=LIMIT_50))
    assert decision.reason == "no timestamp, committed 70ms ago, retention.ms=50ms"


def test_an_entry_without_a_timestamp_expires_by_size_and_below_the_log_start() -> None:
    entries = (entry(0, 2, age=None), entry(2, 4, age=None))
    active = local(4, 5, active=True)
    assert expired(snapshot(active, remote=entries, rules=LIMIT_50, start=2)) == [0]
    by_size = PartitionRules(retention_ms=None, retention_bytes=200, local_retention_ms=None)
    assert expired(snapshot(active, remote=entries, rules=by_size)) == [0]


# -- deletes after the grace period


@pytest.mark.parametrize(("ago", "goes"), [(99, False), (100, True), (-5, False)])
def test_a_pending_delete_is_deleted_after_the_grace_period(ago: int, goes: bool) -> None:
    pending_deletes = PendingDelete(key="data/x.log", size_bytes=7, unlinked_ms=NOW - ago, epoch=1)
    taken = snapshot(
        local(0, 1, active=True), pending_deletes=(pending_deletes,), rules=PartitionRules(delete_grace_ms=100)
    )
    planned(taken)
    assert [decision.key for decision in deletions(taken)] == (["data/x.log"] if goes else [])


def test_an_object_that_an_entry_names_is_never_deleted() -> None:
    pending_deletes = PendingDelete(key="data/0.log", size_bytes=7, unlinked_ms=0, epoch=1)
    assert deletions(snapshot(local(2, 3, active=True), remote=REMOTE, pending_deletes=(pending_deletes,))) == []


def test_sums_and_key_sets_are_not_computed_unless_a_limit_or_an_object_needs_them() -> None:
    """A maintenance run plans many partitions, so unneeded work per partition counts."""
    waiting = PendingDelete(key="data/x.log", size_bytes=1, unlinked_ms=NOW, epoch=1)
    taken = snapshot(local(2, 3, active=True), remote=REMOTE, pending_deletes=(waiting,), rules=OLD_GOES)
    assert not expirations(taken)
    assert not deletions(taken)
    assert vars(taken).keys().isdisjoint({"coverage", "named_keys"})
