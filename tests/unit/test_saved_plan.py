"""A plan in a file: read back as it was, applied while its state holds, refused once it has moved."""

from __future__ import annotations

import json

import pytest
from manager_world import DAY, NAME, NOW, TIERED, World, send, settle, values

from local.errors import Conflict, InvalidRequest, NotFound
from policies.decisions import CopySegment
from remote import metadata_log
from remote.spilling import SpillRule
from tiered.planning import priced_plan
from tiered.saved_plan import (
    apply_saved,
    changed_partitions,
    decode_plan,
    encode_plan,
    fingerprint,
    read_plan,
    save_plan,
    write_plan,
)


def saved_of(manager, at_ms=NOW, made_ms=NOW):
    priced = priced_plan(manager, at_ms)
    return save_plan(priced.plan, priced.snapshots, made_ms=made_ms, settings={})


@pytest.fixture
def world():
    world = World()
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, "local.retention.ms": "-2", "retention.ms": "3d"}, now_ms=NOW)
        send(manager, 400)
        manager.roll("t", now_ms=NOW)
    return world


def test_a_plan_read_back_is_the_same(world, tmp_path):
    with world.open(read_only=True) as manager:
        saved = saved_of(manager)
    assert not saved.plan.is_empty
    write_plan(saved, str(tmp_path / "plan.json"))
    again = read_plan(str(tmp_path / "plan.json"))
    assert again.fingerprint == saved.fingerprint
    assert {name: list(each) for name, each in again.plan.decisions.items()} == dict(saved.plan.decisions)
    assert json.loads(encode_plan(saved))["schema_version"] == 1


def test_a_plan_made_by_a_looker_is_applied_by_a_writer_that_takes_over(world):
    with world.open(read_only=True) as manager:
        saved = saved_of(manager)
    with world.open() as manager:
        applied = apply_saved(manager, decode_plan(encode_plan(saved)), now_ms=NOW + 1000)
        assert [each.skipped for each in applied.values()] == [()]
        done = [each for each in applied[NAME].done if isinstance(each, CopySegment)]
        assert done == [each for each in saved.plan.decisions[NAME] if isinstance(each, CopySegment)]
        assert manager.partition(NAME).head().segment_count == len(done) > 2


def test_records_that_came_meanwhile_do_not_matter(world):
    with world.open() as manager:
        saved = saved_of(manager)
        send(manager, 3, start=400)
        assert changed_partitions(saved, manager.snapshots(NOW)) == []
        apply_saved(manager, saved, now_ms=NOW)
        assert len(values(manager.reader())) == 403


@pytest.mark.parametrize("what", ["copied", "rolled", "raised", "gone"])
def test_a_state_that_moved_is_refused_and_nothing_is_done(world, what):
    with world.open() as manager:
        saved = saved_of(manager)
        match what:
            case "copied":
                manager.apply(priced_plan(manager, NOW).plan)
            case "rolled":
                send(manager, 3, start=400)
                manager.roll("t", now_ms=NOW)
            case "raised":
                manager.delete_records({NAME: 10}, now_ms=NOW)
            case "gone":
                manager.delete_topic("t", now_ms=NOW)
        before = {info.key for info in world.store.list("")}
        with pytest.raises(Conflict, match="the state has changed"):
            apply_saved(manager, saved, now_ms=NOW)
        assert {info.key for info in world.store.list("")} == before


@pytest.mark.parametrize("setting", [{"retention.ms": "-1"}, {"local.retention.ms": "2d"}])
def test_a_topic_whose_settings_were_altered_meanwhile_loses_nothing_by_the_old_plan(world, setting):
    later = NOW + 5 * DAY
    with world.open() as manager:
        settle(manager)
        saved = saved_of(manager, later, later)
        assert {"DropLocal", "ExpireRemote"} <= {type(each).__name__ for each in saved.plan.decisions[NAME]}
        manager.alter_topic("t", setting, now_ms=later)
        with pytest.raises(Conflict, match="the state has changed"):
            apply_saved(manager, saved, now_ms=later)
        assert len(values(manager.reader())) == 400
    with world.open(read_only=True) as manager:
        again = decode_plan(encode_plan(saved_of(manager, later, later)))
        assert changed_partitions(again, manager.snapshots(later)) == []


def test_a_plan_for_later_is_to_look_at(world):
    with world.open() as manager:
        settle(manager)
        later = saved_of(manager, at_ms=NOW + 7 * DAY)
        assert "ExpireRemote" in later.plan.totals()
        with pytest.raises(InvalidRequest, match="a later moment"):
            apply_saved(manager, later, now_ms=NOW)


def test_a_fingerprint_does_not_depend_on_which_rows_of_a_page_were_looked_at(world, monkeypatch):
    rule = SpillRule(head_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_rows_min=1)
    monkeypatch.setattr(metadata_log, "SPILL_RULE", rule)
    with world.open() as manager:
        settle(manager)
        (now,), (later,) = manager.snapshots(NOW), manager.snapshots(NOW + 30 * DAY)
        assert len(now.remote) < len(later.remote)
        assert fingerprint(now) == fingerprint(later)
        manager.delete_records({NAME: 100}, now_ms=NOW)
        assert fingerprint(manager.snapshots(NOW)[0]) != fingerprint(now)


def holding(decision: str) -> dict[str, object]:
    one = {"topic": "t", "partition": 0, "fingerprint": "", "decisions": [{"decision": decision}]}
    return {"partitions": [one]}


def edited(body: bytes, **changes: object) -> bytes:
    return json.dumps({**json.loads(body), **changes}).encode()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "other"}, "another kind"),
        ({"schema_version": 9}, "another kind"),
        ({"fingerprint": "0" * 16}, "do not belong together"),
        ({"made_ms": "yesterday"}, "made_ms"),
        (holding("Burn"), "Burn"),
        (holding("DropLocal"), "missing required"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(world, change, told):
    with world.open(read_only=True) as manager:
        body = encode_plan(saved_of(manager))
    with pytest.raises(InvalidRequest, match=told):
        decode_plan(edited(body, **change))


def test_a_file_that_is_not_there_or_not_json_is_told(tmp_path):
    with pytest.raises(NotFound, match="no such file"):
        read_plan(str(tmp_path / "none.json"))
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"{")
    with pytest.raises(InvalidRequest) as error:
        read_plan(str(bad))
    assert error.value.facts["file"] == str(bad)
