"""Compacted views: when a view is built automatically, and how retention waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_samples import KEEP, NOW, entry, local, snapshot
from view_samples import view

from policies.compacted_view import RETRY_MS, view_backlog
from policies.compaction import tombstones_below
from policies.decisions import AdvanceLogStart, BuildView, CopySegment, DropLocal, ExpireRemote
from policies.invariants import violations
from policies.plan import plan_partition
from remote.manifest.view import ViewFailure

ROWS = (entry(0, 10), entry(10, 20), entry(20, 30))
ACTIVE = local(30, 35, active=True)
BY_THRESHOLD = replace(KEEP, view_threshold_bytes=150)
EXPIRING = replace(BY_THRESHOLD, retention_ms=50, view_threshold_bytes=1000)


def built(horizon=20, **changes):
    return view(horizon_offset=horizon, **changes)


def of(*kinds, **facts):
    given = {"remote": ROWS, "rules": BY_THRESHOLD, **facts}
    return [each for each in plan_partition(snapshot(ACTIVE, **given)) if isinstance(each, kinds)]


def test_a_view_is_built_when_the_bytes_above_its_horizon_exceed_the_threshold():
    (decided,) = of(BuildView)
    assert (decided.view, decided.from_offset, decided.upto_offset, decided.size_bytes) == ("compacted", 0, 30, 300)
    assert decided.reason == "300 bytes above the end of the view, compaction.view.threshold=150"
    assert of(BuildView, views=(built(10),)) != []
    assert of(BuildView, views=(built(20),)) == []  # 100 bytes
    assert of(BuildView, views=(built(30),)) == []
    assert of(BuildView, rules=replace(BY_THRESHOLD, view_threshold_bytes=300)) == []  # strictly above, as in Pulsar


def test_without_a_threshold_or_a_remote_tier_no_view_is_built():
    assert of(BuildView, rules=KEEP) == []
    assert of(BuildView, is_tiered=False, remote=()) == []


def test_a_view_is_built_before_retention_expires_records_above_its_horizon():
    decided = of(BuildView, AdvanceLogStart, ExpireRemote, rules=EXPIRING, views=(built(20),))
    assert [type(each) for each in decided] == [BuildView, AdvanceLogStart, *[ExpireRemote] * 3]
    assert decided[0].reason == "retention would expire records that the view has not included, from offset 20"
    assert violations(snapshot(ACTIVE, remote=ROWS, rules=EXPIRING, views=(built(20),)), decided) == []


def test_a_log_start_above_the_view_horizon_is_a_violation():
    given = snapshot(ACTIVE, remote=ROWS, rules=EXPIRING, views=(built(20),))
    plan = [each for each in plan_partition(given) if not isinstance(each, BuildView)]
    assert (
        violations(given, plan)[0] == "AdvanceLogStart to 30: passes the offsets that the compacted view includes, 20"
    )


def test_after_a_failed_build_retention_stops_at_the_view_horizon():
    failed = built(20, failure=ViewFailure(failed_ms=NOW - RETRY_MS + 1, error="no"))
    decided = of(BuildView, AdvanceLogStart, ExpireRemote, rules=EXPIRING, views=(failed,))
    assert [type(each) for each in decided] == [AdvanceLogStart, *[ExpireRemote] * 2]
    assert decided[0].offset == 20
    due = built(20, failure=ViewFailure(failed_ms=NOW - RETRY_MS, error="no"))
    assert len(of(BuildView, rules=EXPIRING, views=(due,))) == 1


def test_a_gap_between_view_and_log_start_stops_builds_and_not_retention():
    facts = {"rules": EXPIRING, "views": (built(5),), "start": 10, "remote": ROWS[1:]}
    assert of(BuildView, **facts) == []
    assert len(of(ExpireRemote, **facts)) == 2
    assert view_backlog(snapshot(ACTIVE, remote=ROWS[1:], views=(built(5),), start=10)).gap == (5, 10)


@pytest.mark.parametrize("rules", [replace(EXPIRING, view_threshold_bytes=None), replace(EXPIRING, copy_disabled=True)])
def test_views_without_threshold_and_disabled_copies_do_not_block_retention(rules):
    assert len(of(ExpireRemote, rules=rules, views=(built(20, failure=ViewFailure(failed_ms=NOW, error="no")),))) == 3


def test_a_view_that_was_never_built_begins_at_the_log_start():
    backlog = view_backlog(snapshot(ACTIVE, remote=ROWS, start=10))
    assert (backlog.is_built, backlog.from_offset, backlog.upto_offset, backlog.size_bytes) == (False, 10, 30, 200)


def test_a_build_does_not_include_segments_copied_by_the_same_plan():
    given = {"remote": ROWS, "rules": BY_THRESHOLD}
    decided = plan_partition(snapshot(local(30, 40), local(40, 41, active=True), **given))
    assert [type(each) for each in decided] == [CopySegment, BuildView]
    assert decided[1].upto_offset == 30


def test_the_tombstone_bound_does_not_exceed_the_view_horizon():
    entries = tuple(replace(each, cleaned_through=30) for each in ROWS)
    assert tombstones_below(snapshot(ACTIVE, remote=entries), is_bucket_known=True) == 30
    assert tombstones_below(snapshot(ACTIVE, remote=entries, views=(built(20),)), is_bucket_known=True) == 20
    assert tombstones_below(snapshot(ACTIVE, remote=entries, views=(built(40),)), is_bucket_known=True) == 30
    never = built(0, last_run=None)
    # The first run may read a manifest from before the entries were cleaned.
    assert tombstones_below(snapshot(ACTIVE, remote=entries, views=(never,)), is_bucket_known=True) == 0


# -- local views of a topic without a remote tier

SEGMENTS = (local(0, 10), local(10, 20), local(20, 30), ACTIVE)
LIMITED = replace(EXPIRING, local_retention_ms=50)


def on_disk(rules=BY_THRESHOLD, **facts):
    bare = snapshot(*SEGMENTS, rules=rules, is_tiered=False)
    return replace(bare, keeps_views_on_disk=True, **facts)


def test_for_a_local_view_the_threshold_counts_local_bytes_above_its_horizon():
    (decided,) = [each for each in plan_partition(on_disk()) if isinstance(each, BuildView)]
    assert (decided.from_offset, decided.upto_offset, decided.size_bytes) == (0, 35, 400)
    assert view_backlog(on_disk(local_views=(built(20),))).size_bytes == 200
    within = view_backlog(on_disk(local_views=(built(32),)))  # the active segment counts whole or not at all
    assert (within.from_offset, within.upto_offset, within.size_bytes) == (32, 35, 0)
    assert not within.is_empty


def test_a_local_view_is_built_before_retention_expires_records_above_its_horizon():
    given = on_disk(LIMITED, local_views=(built(20),))
    decided = plan_partition(given)
    kinds = [type(each) for each in decided if isinstance(each, (BuildView, AdvanceLogStart, DropLocal))]
    assert kinds == [BuildView, AdvanceLogStart, *[DropLocal] * 3]
    assert violations(given, decided) == []
    without = [each for each in decided if not isinstance(each, BuildView)]
    assert (
        violations(given, without)[0]
        == "AdvanceLogStart to 30: passes the offsets that the compacted view includes, 20"
    )


def test_retention_stops_at_the_horizon_of_a_local_view_whose_last_build_failed():
    failed = built(20, failure=ViewFailure(failed_ms=NOW - 1, error="full"))
    given = on_disk(LIMITED, local_views=(failed,))
    decided = plan_partition(given)
    assert [(type(each), each.next_offset) for each in decided if isinstance(each, (BuildView, DropLocal))] == [
        (DropLocal, 10),
        (DropLocal, 20),
    ]
    assert violations(given, decided) == []


def test_a_built_remote_view_takes_precedence_over_a_local_view():
    bare = snapshot(ACTIVE, remote=ROWS, views=(built(20),))
    assert replace(bare, local_views=(built(30),)).all_views == (built(20),)
    never = replace(built(20), last_run=None, entries=(), horizon_offset=0)
    assert replace(bare, views=(never,), local_views=(built(30),)).all_views == (built(30),)
    assert tombstones_below(replace(bare, views=(), local_views=(built(10),)), is_bucket_known=True) == 0
    assert tombstones_below(on_disk(local_views=(built(10),)), is_bucket_known=True) == 10
