"""Dry runs of creating, altering and deleting a topic: the report matches the real effect, and nothing is changed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from manager_world import HOUR, NOW, TIERED, SwitchableStore, World, send, settle

from local.errors import InvalidRequest, NotFound
from remote.gc.pins import pin_newest
from remote.keys import partition_prefix
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from tiered.cli.main import invoke
from tiered.config.properties import DEFAULTS
from tiered.migrate.fork import plan_fork, run_fork

DISABLE = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}


@pytest.fixture
def world() -> World:
    """300 records in the bucket, and 20 more on the disk only."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.log.delete.grace.ms": "2h"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 20, start=300)
    return world


def test_dry_run_of_a_new_topic_shows_the_origin_of_each_setting(world: World) -> None:
    own = {**TIERED, "segment.ms": "1h"}
    with world.open(read_only=True, segment_ms="2h") as manager:
        planned = manager.topics.dry_run.new_topic("new", 3, own)
    origins = {each.name: each.origin for each in planned.settings}
    assert set(origins) == set(DEFAULTS)
    assert (origins["retention.ms"], origins["segment.ms"], origins["flush.ms"]) == ("topic new", "-X", "default")
    assert [(each.name, each.value) for each in planned.outranked] == [("segment.ms", "2h")]
    with world.open(segment_ms="2h") as manager:
        made = manager.topics.create("new", 3, own, now_ms=NOW)
        assert (made.partition_count, made.properties, made.was_tiered) == (3, own, planned.topic.was_tiered)
        effective = manager.config.explain("new", made.properties)
        manager.topics.delete("new", now_ms=NOW)
    assert tuple(effective) == planned.settings
    with world.open(read_only=True) as manager:
        assert manager.topics.dry_run.new_topic("new", 3, own).namesakes == (made.topic_id,)


@pytest.mark.parametrize(
    ("name", "partitions", "own"),
    [
        ("t", 1, {}),
        ("..", 1, {}),
        ("new", 0, {}),
        ("new", 10_001, {}),
        ("new", 1, {"retenton.ms": "1d"}),
        ("new", 1, {"retention.ms": "1day"}),
        ("new", 1, {"remote.storage.enable": "true", "local.retention.ms": "9d", "retention.ms": "1d"}),
        ("new", 1, {"remote.encryption.key.id": "nobody"}),
        ("new", 1, {"log.cleaner.threads": "3"}),
    ],
)
def test_dry_run_refuses_an_invalid_topic_with_the_same_message(
    world: World, name: str, partitions: int, own: dict[str, str]
) -> None:
    told = []
    for read_only in (True, False):
        with world.open(read_only=read_only) as manager:
            do = manager.topics.dry_run.new_topic if read_only else partial(manager.topics.create, now_ms=NOW)
            with pytest.raises(InvalidRequest) as refused:
                do(name, partitions, own)
        told.append(str(refused.value))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"retention.ms": "9d"}, {"retention.ms"}),
        ({"retention.ms": ""}, {"retention.ms"}),
        ({"segment.bytes": "5000"}, set()),  # overridden by -X
        ({"flush.ms": DEFAULTS["flush.ms"]}, {"flush.ms"}),  # the value is unchanged, its origin changes
        (DISABLE, set(DISABLE)),
    ],
)
def test_dry_run_of_an_alter_shows_the_changed_settings(world: World, changes: dict[str, str], names: set[str]) -> None:
    with world.open(read_only=True) as manager:
        planned = manager.topics.dry_run.altered_topic("t", changes, now_ms=NOW)
        before = manager.config.explain("t", manager.topics.get("t").properties)
    with world.open() as manager:
        altered = manager.topics.alter("t", changes, now_ms=NOW)
        after = manager.config.explain("t", altered.properties)
    assert planned.own == altered.properties
    assert [(each.before, each.after) for each in planned.changes] == [
        (one, two) for one, two in zip(before, after, strict=True) if one != two
    ]
    assert {each.after.name for each in planned.changes} == names
    assert [each.name for each in planned.outranked] == (["segment.bytes"] if "segment.bytes" in changes else [])


def test_dry_run_of_a_disable_shows_the_records_only_in_the_bucket(world: World) -> None:
    with world.open(read_only=True) as manager:
        with pytest.raises(InvalidRequest, match="cannot disable the remote tier"):
            manager.topics.dry_run.altered_topic("t", {"remote.storage.enable": "false"}, now_ms=NOW)
        planned = manager.topics.dry_run.altered_topic("t", DISABLE, now_ms=NOW)
        (snapshot,) = manager.snapshots(NOW)
        first = snapshot.segments[0].base_offset
    (lost,) = planned.lost
    assert planned.gives_up_tier
    assert (lost.log_start_offset, lost.next_offset, lost.offsets) == (0, first, first)
    assert first > 0
    with world.open() as manager:
        manager.topics.alter("t", DISABLE, now_ms=NOW)
        settle(manager)
        (snapshot,) = manager.snapshots(NOW)
    assert snapshot.log_start_offset == first


def test_dry_run_of_a_deletion_shows_the_loss_in_both_tiers(world: World) -> None:
    with world.open(read_only=True) as manager:
        planned = manager.topics.dry_run.deleted_topic("t", now_ms=NOW)
    (loss,) = planned.partitions
    assert (loss.log_start_offset, loss.next_offset, loss.offsets) == (0, 320, 320)
    prefix = partition_prefix("t", planned.topic.topic_id, 0)
    data = sum(info.size_bytes for info in world.store.list(prefix + "data/"))
    logs = sum(facts.size_bytes for name, facts in world.disk.list_files("./data/t-0").items() if name.endswith(".log"))
    assert (loss.remote_bytes, loss.local_bytes) == (data, logs)
    assert 0 < (loss.only_local_bytes or 0) <= logs
    assert (loss.pins, loss.forks, loss.trouble) == (0, (), None)
    assert (planned.grace_ms, planned.file_delay_ms) == (2 * HOUR, 0)
    with pytest.raises(NotFound), world.open(read_only=True) as manager:
        manager.topics.dry_run.deleted_topic("tt", now_ms=NOW)


def test_dry_run_of_a_deletion_shows_active_pins_and_forks(world: World) -> None:
    (name,) = list_partitions(world.store, ["t"])
    log = MetadataLog(world.store, name.prefix)
    for ends in (NOW - 1, NOW + HOUR, NOW + 2 * HOUR):
        pin_newest(world.store, name.prefix, log, now_ms=NOW, expires_ms=ends, holder="a reader")
    run_fork(world.store, plan_fork(world.store, [name], "branch", known=[]), now_ms=lambda: NOW)
    with world.open(read_only=True) as manager:
        (loss,) = manager.topics.dry_run.deleted_topic("t", now_ms=NOW).partitions
    assert (loss.pins, loss.pinned_until_ms, loss.forks) == (2, NOW + 2 * HOUR, ("branch/0",))


def test_dry_run_with_an_unreachable_bucket_reports_pins_as_unknown(world: World) -> None:
    with world.open(read_only=True, store=SwitchableStore(world.store)) as manager:
        (loss,) = manager.topics.dry_run.deleted_topic("t", now_ms=NOW).partitions
    assert loss.pins is None
    assert loss.trouble is not None


def test_dry_run_changes_no_byte_of_either_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["-q", "init"]) == 0
    assert invoke(["-q", "topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB"]) == 0
    (tmp_path / "lines").write_text("".join(f"line {number}\n" for number in range(200)))
    assert invoke(["-q", "append", "orders", "lines", "--batch", "10"]) == 0
    assert invoke(["-q", "run", "--once"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    lines = {
        "topic create new -p 3 -X retention.ms=1d": 0,
        "topic create orders": 2,
        "topic alter orders -X retention.ms=1d": 0,
        "topic alter orders -X remote.storage.enable=false -X remote.log.delete.on.disable=true": 0,
        "topic alter orders -X local.retention.ms=90d": 2,
        "topic delete orders": 0,
        "topic delete ordres": 1,
    }
    for line, code in lines.items():
        for output in ("table", "json"):
            capfd.readouterr()
            assert invoke([*line.split(), "--dry-run", "-o", output]) == code, line
            printed = capfd.readouterr()
            assert (code != 0) or "nothing changed" in printed.err
            if output == "json" and not code:
                assert json.loads(printed.out)["dry_run"] is True
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
