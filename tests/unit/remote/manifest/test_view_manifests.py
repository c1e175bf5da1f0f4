"""Compacted views in a manifest: their names, their changes, and the views that a manifest refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_samples import NOW, local, snapshot
from remote_samples import manifest
from remote_samples import stored_row as entry
from view_samples import RUN, view, view_row

from local.errors import Conflict, InvalidRequest
from policies.decisions import DeletePending
from policies.invariants import violations
from policies.retention import deletions
from policies.rules import DAY_MS
from remote import keys
from remote.manifest.manifest import PendingDelete, decode_manifest, encode_manifest
from remote.manifest.manifest_changes import loses_objects
from remote.manifest.view import VIEW_ROWS_MAX, VIEWS_MAX, CompactedView, ViewFailure, ViewStart, ViewState, find_view
from remote.manifest.view_changes import begin_view, drop_view, fail_view, switch_view
from remote.segment_entry import SegmentState

ULID = keys.new_ulid(5)
LOG = (entry("U1", 0, 10), entry("U2", 10, 20))


def no_pages(page):
    raise AssertionError("no manifest here has pages")


def test_names_of_view_objects_have_an_inverse_and_are_not_names_of_segments():
    data = keys.data_key(7, 9, 3, ULID, view="compacted")
    assert data == f"view/compacted/{7:020d}-{9:020d}-{3:010d}-{ULID}.log"
    found = keys.parse_view_key(data)
    assert found == keys.DataKey(base_offset=7, last_offset=9, epoch=3, ulid=ULID, suffix=".log", view="compacted")
    assert keys.parse_view_key(keys.indexes_key(7, 9, 3, ULID, view="a.b-c_D")).view == "a.b-c_D"
    assert keys.parse_data_key(data) is None
    assert keys.parse_view_key(keys.data_key(7, 9, 3, ULID)) is None
    for other in (data.upper(), data + "x", data.replace("view/", "views/"), data.replace("compacted", "a/b"), ""):
        assert keys.parse_view_key(other) is None


@pytest.mark.parametrize("name", ["", ".", "-a", "a/b", "a b", "ä", "a" * 65, "a\n"])
def test_a_view_name_that_cannot_be_part_of_a_key_is_refused(name):
    with pytest.raises(InvalidRequest, match="invalid view name"):
        keys.data_key(0, 1, 1, ULID, view=name)
    with pytest.raises(InvalidRequest, match="invalid view name"):
        begin_view(name, now_ms=1)(manifest(*LOG))


def test_a_manifest_with_views_decodes_to_itself():
    failed = CompactedView(
        name="b", failure=ViewFailure(failed_ms=3, error="caching resumes when there is space"), lost=((1, 2),)
    )
    running = CompactedView(name="c", under_way=ViewStart(started_ms=1, epoch=3))
    whole = manifest(*LOG, views=(view(view_row()), failed, running))
    assert decode_manifest(encode_manifest(whole)) == whole


@pytest.mark.parametrize(
    "views",
    [
        (view(), view()),
        tuple(view(name=f"v{number}") for number in range(VIEWS_MAX + 1)),
        (view(horizon_offset=21),),
        (view(start_offset=21),),
        (view(view_row(next_offset=21)),),
        (view(view_row("V1", 0, 10), view_row("V2", 9, 12)),),
        (view(view_row(size_bytes=0)),),
        (view(view_row(state=SegmentState.COPY_STARTED)),),
        (view(view_row(), last_run=None),),
        (view(*(view_row(f"V{at}", at, at + 1) for at in range(VIEW_ROWS_MAX + 1)), horizon_offset=600),),
    ],
)
def test_a_manifest_with_contradictory_views_is_not_written(views):
    with pytest.raises(InvalidRequest, match=r"invalid manifest, .*view|readers would refuse .*views\["):
        encode_manifest(manifest(*LOG, views=views))


def test_a_view_horizon_may_be_the_logs_end_even_when_all_entries_have_expired():
    encode_manifest(manifest(log_start_offset=20, views=(view(view_row()),)))


def test_a_view_is_replaced_whole_and_its_old_objects_are_unlinked():
    old = view(view_row("V1", 0, 10), view_row("V2", 10, 15), horizon_offset=15)
    new = view(view_row("V2", 10, 15), view_row("V3", 15, 20), last_run=replace(RUN, started_ms=RUN.started_ms + 1))
    change = switch_view(new, replaces=old, now_ms=99)
    before = manifest(*LOG, views=(old, view(name="other")))
    after = change(before)
    assert find_view(after.views, "compacted") == new
    assert find_view(after.views, "other") == view(name="other")
    assert [(each.key, each.unlinked_ms, each.epoch) for each in after.pending_deletes] == [
        (view_row("V1").data_key, 99, 3),
        (view_row("V1").indexes_key, 99, 3),
    ]
    assert loses_objects(before, after, no_pages) is None
    assert change(after) is after


def test_the_first_view_is_added_next_to_the_log():
    new = view(view_row())
    after = switch_view(new, replaces=None, now_ms=99)(manifest(*LOG))
    assert after.views == (new,)
    assert after.pending_deletes == ()


def test_a_view_built_from_another_version_is_not_committed():
    new = view(view_row("V3"))
    for there in (view(view_row("V9")), view(view_row("V1"), view_row("V2", 10, 12))):
        with pytest.raises(Conflict, match="the view was replaced"):
            switch_view(new, replaces=view(view_row("V1")), now_ms=1)(manifest(*LOG, views=(there,)))


def test_committing_a_view_clears_its_running_and_failed_states():
    before = manifest(*LOG, views=(CompactedView(name="compacted"),))
    running = begin_view("compacted", now_ms=5)(before)
    failed = fail_view("compacted", "the store is away", now_ms=6)(running)
    states = [find_view(each.views, "compacted").state(each.epoch) for each in (before, running, failed)]
    assert states == [ViewState.NEVER_RUN, ViewState.RUNNING, ViewState.ERROR]
    assert find_view(failed.views, "compacted").failure == ViewFailure(failed_ms=6, error="the store is away")
    assert fail_view("compacted", "the store is away", now_ms=6)(failed) is failed
    again = begin_view("compacted", now_ms=7)(failed)
    assert find_view(again.views, "compacted").state(again.epoch + 1) is ViewState.INTERRUPTED
    after = switch_view(view(view_row()), replaces=find_view(failed.views, "compacted"), now_ms=8)(again)
    assert find_view(after.views, "compacted").state(after.epoch) is ViewState.SUCCESS


def test_a_failed_build_leaves_the_readable_view_unchanged():
    before = manifest(*LOG, views=(view(view_row()),))
    after = fail_view("compacted", "no", now_ms=6)(before)
    assert replace(after.views[0], failure=None) == before.views[0]


def test_a_dropped_view_leaves_the_manifest_and_its_objects_are_unlinked():
    before = manifest(*LOG, views=(view(view_row()), view(view_row("W1", view="b"), name="b")))
    after = drop_view("compacted", now_ms=9)(before)
    assert [each.name for each in after.views] == ["b"]
    assert [each.key for each in after.pending_deletes] == [view_row().data_key, view_row().indexes_key]
    assert loses_objects(before, after, no_pages) is None
    assert drop_view("compacted", now_ms=9)(after) is after


def test_dropping_a_view_entry_without_unlinking_its_objects_is_found():
    before = manifest(*LOG, views=(view(view_row()),))
    assert f"key={view_row().data_key}" in (loses_objects(before, replace(before, views=()), no_pages) or "")


def test_the_gap_between_a_view_and_its_log_is_named():
    assert view(horizon_offset=20).gap(20) is None
    assert view(horizon_offset=20).gap(25) == (20, 25)


def test_an_object_that_a_view_names_is_never_deleted():
    key = view_row().data_key
    listed = PendingDelete(key=key, size_bytes=1, unlinked_ms=NOW - DAY_MS, epoch=1)
    with_view = snapshot(local(0, 1, active=True), pending_deletes=(listed,), views=(view(view_row()),))
    assert deletions(with_view) == []
    forced = [DeletePending(key=key, size_bytes=1, reason="")]
    assert violations(with_view, forced) == [f"DeletePending {key}: a segment entry still names it"]
    assert [each.key for each in deletions(snapshot(local(0, 1, active=True), pending_deletes=(listed,)))] == [key]
