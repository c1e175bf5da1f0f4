"""Plan in a file: equal when read back, applied while its state is unchanged, refused after the state changed."""

from __future__ import annotations

import base64
import json
import signal
from dataclasses import replace

import pytest
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle, values

from local.errors import Conflict, InvalidRequest, NotFound
from policies.decisions import CopySegment, DeletePending
from remote.gc.pins import pin_newest
from remote.manifest import commit_protocol
from remote.manifest.catalog import list_partitions
from remote.manifest.page_out import PageRule
from tiered.config.properties import PROPERTIES, Kind
from tiered.migrate.fork import plan_fork, run_fork
from tiered.plans.planning import WITHOUT_EFFECT, priced_plan
from tiered.plans.saved_plan import (
    apply_saved,
    changed_partitions,
    check_unchanged,
    decode_plan,
    encode_plan,
    fingerprint,
    read_plan,
    save_plan,
    write_plan,
)


def saved_of(manager, at_ms=NOW, made_ms=NOW):
    priced = priced_plan(manager, at_ms)
    return save_plan(priced, made_ms=made_ms, settings={})


@pytest.fixture
def world():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2", "retention.ms": "3d"}, now_ms=NOW)
        send(manager, 400)
        manager.partitions.roll("t", now_ms=NOW)
    return world


def test_plan_read_back_equals_the_saved_plan(world, tmp_path):
    with world.open(read_only=True) as manager:
        saved = saved_of(manager)
    assert not saved.plan.is_empty
    write_plan(saved, str(tmp_path / "plan.json"))
    again = read_plan(str(tmp_path / "plan.json"))
    assert again.fingerprint == saved.fingerprint
    assert {name: list(each) for name, each in again.plan.decisions.items()} == dict(saved.plan.decisions)
    assert json.loads(encode_plan(saved))["schema_version"] == 1


def test_plan_of_a_read_only_open_is_applied_by_a_writer_after_its_takeover(world):
    with world.open(read_only=True) as manager:
        saved = saved_of(manager)
    with world.open() as manager:
        applied = apply_saved(manager, decode_plan(encode_plan(saved)), now_ms=NOW + 1000)
        assert [each.skipped for each in applied.values()] == [()]
        done = [each for each in applied[NAME].done if isinstance(each, CopySegment)]
        assert done == [each for each in saved.plan.decisions[NAME] if isinstance(each, CopySegment)]
        assert manager.partitions.find(NAME).manifest().segment_count == len(done) > 2


def test_records_appended_since_the_plan_do_not_invalidate_it(world):
    with world.open() as manager:
        saved = saved_of(manager)
        send(manager, 3, start=400)
        assert changed_partitions(saved, manager.snapshots(NOW)) == []
        apply_saved(manager, saved, now_ms=NOW)
        assert len(values(manager.reader())) == 403


@pytest.mark.parametrize("what", ["copied", "rolled", "raised", "gone"])
def test_plan_of_a_changed_state_is_refused_without_effect(world, what):
    with world.open() as manager:
        saved = saved_of(manager)
        match what:
            case "copied":
                manager.apply(priced_plan(manager, NOW).plan)
            case "rolled":
                send(manager, 3, start=400)
                manager.partitions.roll("t", now_ms=NOW)
            case "raised":
                manager.maintenance.delete_records({NAME: 10}, now_ms=NOW)
            case "gone":
                manager.topics.delete("t", now_ms=NOW)
        before = {info.key for info in world.store.list("")}
        with pytest.raises(Conflict, match="the state has changed"):
            apply_saved(manager, saved, now_ms=NOW)
        assert {info.key for info in world.store.list("")} == before


@pytest.mark.parametrize("setting", [{"retention.ms": "-1"}, {"local.retention.ms": "2d"}])
def test_plan_from_before_a_settings_change_deletes_nothing(world, setting):
    later = NOW + 5 * DAY
    with world.open() as manager:
        settle(manager)
        saved = saved_of(manager, later, later)
        assert {"DropLocal", "ExpireRemote"} <= {type(each).__name__ for each in saved.plan.decisions[NAME]}
        manager.topics.alter("t", setting, now_ms=later)
        with pytest.raises(Conflict, match="the state has changed"):
            apply_saved(manager, saved, now_ms=later)
        assert len(values(manager.reader())) == 400
    with world.open(read_only=True) as manager:
        again = decode_plan(encode_plan(saved_of(manager, later, later)))
        assert changed_partitions(again, manager.snapshots(later)) == []


def test_plan_for_a_later_moment_is_not_applied(world):
    with world.open() as manager:
        settle(manager)
        later = saved_of(manager, at_ms=NOW + 7 * DAY)
        assert "ExpireRemote" in later.plan.totals()
        with pytest.raises(InvalidRequest, match="it was made for a later time"):
            apply_saved(manager, later, now_ms=NOW)


def test_fingerprint_does_not_depend_on_which_entries_of_a_page_were_read(world, monkeypatch):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    with world.open() as manager:
        settle(manager)
        (now,), (later,) = manager.snapshots(NOW), manager.snapshots(NOW + 30 * DAY)
        assert len(now.remote) < len(later.remote)
        assert fingerprint(now) == fingerprint(later)
        manager.maintenance.delete_records({NAME: 100}, now_ms=NOW)
        assert fingerprint(manager.snapshots(NOW)[0]) != fingerprint(now)


# -- state that a plan depends on --------------------------------------------------------------------------------------

OTHER = {  # for each setting a value that is not the default and is valid with the others
    "append.acks": "remote",
    "cleanup.policy": "compact,delete",
    "retention.ms": "4d",
    "retention.bytes": "1GiB",
    "local.retention.ms": "2d",
    "local.retention.bytes": "1MiB",
    "segment.bytes": "3000",
    "message.timestamp.type": "LogAppendTime",
    "compression.type": "zstd",
    "remote.compression": "zstd",
    "remote.compression.zstd.level": "9",
    "remote.storage.class": "GLACIER_IR",
    "remote.sse": "aws:kms",
    "remote.s3.client": "obstore",
    "remote.log.copy.disable": "true",
    "remote.copy.window": "00:00-12:00",
    "compaction.records.without.key": "drop",
    "max.compaction.lag.ms": "6d",
    "log.cleaner.io.buffer.load.factor": "0.5",
    "min.cleanable.dirty.ratio": "0.3",
    "remote.recompaction.min.reduction.ratio": "0.3",
    "remote.fetch.cache.dir": "/tmp/cache",
    "log.dir.free.share.min": "0.2",
}
NOT_BY_ITSELF = {"remote.encryption.key.id", "remote.storage.enable", "cost.prices", "remote.sse.kms.key.id"}


def other(each) -> str:
    if each.name in OTHER:
        return OTHER[each.name]
    match each.kind:
        case Kind.BOOL:
            return "false" if each.default == "true" else "true"
        case Kind.MS:
            return "77m"
        case Kind.BYTES:
            return "77MiB"
        case _:
            return "77"


def refusal(saved, manager):
    """The settings that a refusal names, or None."""
    try:
        check_unchanged(saved, manager, NOW)
    except Conflict as error:
        return str(error.facts["settings"])
    return None


def test_changed_setting_is_named_in_the_refusal_unless_it_has_no_effect(world):
    """Covers every setting, one by one."""
    with world.open(read_only=True) as manager:
        saved = decode_plan(encode_plan(saved_of(manager)))
    refused, held = set(), set()
    for each in PROPERTIES.values():
        if each.name in NOT_BY_ITSELF:
            continue
        changed = {each.name.replace(".", "_"): other(each)}
        with world.open(read_only=True, **changed) as manager:
            told = refusal(saved, manager)
        assert told is None or f"t {each.name} " in told, each.name
        (held if told is None else refused).add(each.name)
    assert held == set(WITHOUT_EFFECT) - NOT_BY_ITSELF
    assert refused | held | NOT_BY_ITSELF == set(PROPERTIES)
    assert {"remote.compression", "remote.storage.class", "remote.sse", "segment.bytes"} <= refused


def test_setting_written_in_another_form_is_no_change(world):
    with world.open(read_only=True, retention_ms="3d", remote_compression="none") as manager:
        saved = saved_of(manager)
    with world.open(read_only=True, retention_ms=str(3 * DAY), flush_ms="10") as manager:
        check_unchanged(saved, manager, NOW)


@pytest.mark.parametrize("what", ["prices", "remote.url", "key", "anew", "-X"])
def test_plan_is_refused_after_a_change_of_prices_bucket_key_or_topic_id(world, tmp_path, what):
    with world.open() as manager:
        saved = saved_of(manager)
        if what == "anew":
            properties = manager.topics.get("t").properties
            manager.topics.delete("t", now_ms=NOW)
            manager.topics.create("t", 1, properties, now_ms=NOW)
            send(manager, 400)
            manager.partitions.roll("t", now_ms=NOW)
    match what:
        case "prices":
            (tmp_path / "p.json").write_text(json.dumps({"classes": {"STANDARD": {"put_per_1000": 0.0051}}}))
            told, world.config = (
                "prices 2026-06 us-east-1",
                with_override(world, "cost.prices", str(tmp_path / "p.json")),
            )
        case "remote.url":
            told, world.config = "remote.url memory://b -> memory://c", replace(world.config, remote_url="memory://c")
        case "key":
            (tmp_path / "ring").write_text(f"a {base64.b64encode(b'k' * 32).decode()}\n")
            (tmp_path / "ring").chmod(0o600)
            told, config = (
                "t remote.encryption.key.id built in -> a",
                replace(world.config, key_ring=str(tmp_path / "ring")),
            )
            world.config = replace(config, overrides={**config.overrides, "remote.encryption.key.id": "a"})
        case "anew":
            told = "t topic id"
        case "-X":
            told, world.config = "t retention.bytes built in -> 9", with_override(world, "retention.bytes", "9")
    with world.open() as manager:
        before = {info.key for info in world.store.list("")}
        with pytest.raises(Conflict) as error:
            apply_saved(manager, decode_plan(encode_plan(saved)), now_ms=NOW)
        assert told in str(error.value.facts["settings"])
        assert {info.key for info in world.store.list("")} == before


def with_override(world, name, value):
    return replace(world.config, overrides={**world.config.overrides, name: value})


def expired_of(world, later):
    """A plan that only deletes the objects of expired records."""
    with world.open(now_ms=NOW) as manager:
        settle(manager)
        manager.maintenance.delete_records({NAME: 200}, now_ms=NOW)
        settle(manager)
        due = {each.key for each in manager.partitions.find(NAME).manifest().pending_deletes}
        saved = saved_of(manager, later, later)
        assert due == {each.key for each in saved.plan.decisions[NAME] if isinstance(each, DeletePending)}
        return saved, due


@pytest.mark.parametrize("what", ["pinned before it expired", "pinned since", "forked before it expired", "nothing"])
def test_objects_of_a_pin_or_fork_are_skipped_without_a_refusal(world, what):
    """The fingerprint has no pins or forks. Each deletion checks them, and a new pin needs no expired object."""
    later = NOW + 2 * DAY
    with world.open() as manager:
        settle(manager)
        held = manager.partitions.find(NAME)
        if what == "pinned before it expired":
            pin_newest(world.store, held.prefix, held.metadata, now_ms=NOW, expires_ms=later + DAY, holder="reader")
        if what == "forked before it expired":
            names = [each for each in list_partitions(world.store) if each.topic == "t"]
            run_fork(world.store, plan_fork(world.store, names, "f", known=[]), now_ms=lambda: NOW)
    saved, due = expired_of(world, later)
    with world.open(now_ms=later) as manager:
        held = manager.partitions.find(NAME)
        if what == "pinned since":
            pin_newest(world.store, held.prefix, held.metadata, now_ms=later, expires_ms=later + DAY, holder="reader")
        applied = apply_saved(manager, saved, now_ms=later)[NAME]
        left = {key for key in due if list(world.store.list(held.prefix + key))}
        assert left == (due if what.endswith("before it expired") else set())
        assert bool(applied.skipped) == (what == "pinned before it expired")


@pytest.mark.parametrize("hours", [-30, -1, 0, 24 * 30])
def test_another_clock_at_apply_time_adds_no_decision(world, hours):
    later = NOW + 2 * DAY
    saved, due = expired_of(world, later)
    with world.open(now_ms=later) as manager:
        applied = apply_saved(manager, saved, now_ms=later + hours * HOUR)[NAME]
        assert {type(each) for each in applied.done} <= {type(each) for each in saved.plan.decisions[NAME]}
        assert {each.key for each in applied.done if isinstance(each, DeletePending)} == due


def test_paused_uploads_are_skipped_without_a_refusal(world):
    with world.open() as manager:
        saved = saved_of(manager)
        manager.pauses.pause(["t"], now_ms=NOW)
        applied = apply_saved(manager, saved, now_ms=NOW)[NAME]
        assert not any(isinstance(each, CopySegment) for each in applied.done)
        assert any(isinstance(each, CopySegment) for each in applied.skipped)


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
        ({"fingerprint": "0" * 16}, "its fingerprint contradicts its content"),
        ({"made_ms": "yesterday"}, "made_ms"),
        (holding("Burn"), "Burn"),
        (holding("DropLocal"), "missing required"),
    ],
)
def test_file_without_a_valid_plan_is_refused(world, change, told):
    with world.open(read_only=True) as manager:
        body = encode_plan(saved_of(manager))
    with pytest.raises(InvalidRequest, match=told):
        decode_plan(edited(body, **change))


def test_missing_or_invalid_json_file_is_reported(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        read_plan(str(tmp_path / "none.json"))
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"{")
    with pytest.raises(InvalidRequest) as error:
        read_plan(str(bad))
    assert error.value.facts["file"] == str(bad)


def test_saved_plan_for_a_later_moment_is_not_offered_as_the_next_step(tmp_path, monkeypatch, capfd):
    from tiered.cli.main import invoke

    monkeypatch.chdir(tmp_path)
    assert invoke(["init", "."]) == 0
    assert invoke(["topic", "create", "t"]) == 0
    for words, told in (
        (["--at", "+7d"], "a plan for a later time cannot be applied"),
        ([], "next: tiered apply p.json"),
    ):
        capfd.readouterr()
        assert invoke(["plan", *words, "--out", "p.json"]) == 0
        said = capfd.readouterr().err
        assert told in said
        assert ("tiered apply" in said) == (not words)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_interrupted_apply_exits_with_the_signal_and_says_not_done(tmp_path, monkeypatch, capfd, number, code):
    from tiered.cli.main import invoke
    from tiered.plans import saved_plan

    monkeypatch.chdir(tmp_path)
    (tmp_path / "r").write_text("one\n" * 400)
    small = ["-X", "segment.bytes=2KiB", "-X", "append.batch.bytes=512"]
    for words in (["init", "."], ["topic", "create", "t", *small], ["append", "t", "r"], ["plan", "--out", "p.json"]):
        assert invoke(words) == 0
    apply = saved_plan.apply_saved

    def broken_off(*args, **more):
        signal.raise_signal(number)
        return apply(*args, **more)

    monkeypatch.setattr(saved_plan, "apply_saved", broken_off)
    capfd.readouterr()
    assert invoke(["apply", "p.json", "--yes"]) == code
    assert "not applied" in capfd.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert invoke(["plan", "--out", "p.json"]) == 0
    assert invoke(["apply", "p.json", "--yes"]) == 0
    assert "not applied" not in capfd.readouterr().err
