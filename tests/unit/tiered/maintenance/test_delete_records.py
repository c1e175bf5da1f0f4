"""Deletion of records: the log start offset rises durably, and segments below it are deleted later."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock

import pytest
from manager_world import COMPACTED, DAY, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import Conflict, DiskFailed, InvalidRequest, NotFound, OffsetOutOfRange, Unavailable
from local.log.checkpoints import read_offsets
from local.names import TopicPartition
from tiered.cli.main import invoke
from tiered.maintenance.delete_records import DeletedRecords, delete_records, plan_deletion


@pytest.fixture(params=[{}, TIERED], ids=["on disk", "tiered"])
def world(request) -> World:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {"retention.ms": "-1", **request.param}, now_ms=NOW)
        send(manager, 200)
        settle(manager)
    return world


def start_on_disk(world: World) -> int:
    return read_offsets(world.disk, "./data/log-start-offset-checkpoint").get(NAME, 0)


def test_deleted_records_are_unreadable_at_once_and_after_a_restart(world: World) -> None:
    manager = world.open()
    assert manager.maintenance.delete_records({NAME: 75}, now_ms=NOW) == {
        NAME: DeletedRecords(before=0, low_watermark=75)
    }
    assert manager.reader().offsets(NAME) == (75, 200)
    assert [offset for offset, _ in values(manager.reader(), 75)] == list(range(75, 200))
    for below in (0, 74):
        with pytest.raises(OffsetOutOfRange):
            next(manager.reader().batches(NAME, below))
    assert start_on_disk(world) == 75
    manager.abandon()
    with world.open() as again:
        assert again.reader().offsets(NAME) == (75, 200)


def test_maintenance_deletes_segments_entirely_below_the_log_start_offset(world: World) -> None:
    with world.open() as manager:
        before = len(manager.partitions.find(NAME).log.segments())
        manifest = manager.partitions.find(NAME).manifest()
        entries = len(manifest.segments) if manifest is not None else 0
        manager.maintenance.delete_records({NAME: 150}, now_ms=NOW)
        settle(manager, NOW + 1)
        settle(manager, NOW + 2 * DAY)
        held = manager.partitions.find(NAME)
        assert held.log.segments()[0].next_offset > 150
        if held.manifest() is not None:
            assert 0 < len(held.manifest().segments) < entries
            assert held.manifest().segments[0].next_offset > 150
            assert held.manifest().pending_deletes == ()
        else:
            assert len(held.log.segments()) < before
        assert [offset for offset, _ in values(manager.reader(), 150)] == list(range(150, 200))


def test_delete_records_before_minus_one_deletes_all_and_appends_continue(world: World) -> None:
    with world.open() as manager:
        send(manager, 10, start=200)
        assert manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)[NAME].low_watermark == 210
        assert manager.reader().offsets(NAME) == (210, 210)
        send(manager, 10, start=210)
        settle(manager)
        assert [offset for offset, _ in values(manager.reader(), 210)] == list(range(210, 220))
    with world.open() as manager:
        assert manager.reader().offsets(NAME) == (210, 220)


def test_delete_records_below_the_log_start_offset_changes_nothing(world: World) -> None:
    with world.open() as manager:
        manager.maintenance.delete_records({NAME: 75}, now_ms=NOW)
        effects = world.disk.effects
        assert manager.maintenance.delete_records({NAME: 10}, now_ms=NOW)[NAME] == DeletedRecords(
            before=75, low_watermark=75
        )
        assert world.disk.effects == effects


@pytest.mark.parametrize("offset", [201, -2, 2**62])
def test_delete_records_outside_the_log_is_refused_before_any_deletion(world: World, offset: int) -> None:
    with world.open() as manager:
        manager.topics.create("other", 1, {}, now_ms=NOW)
        other = manager.topics.get("other").partitions()[0]
        send(manager, 10, topic="other")
        with pytest.raises(OffsetOutOfRange, match="next_offset=200"):
            manager.maintenance.delete_records({other: 5, NAME: offset}, now_ms=NOW)
        assert manager.reader().offsets(other) == (0, 10)
        with pytest.raises(OffsetOutOfRange):
            plan_deletion(manager.partitions.find(NAME), offset)


def test_raised_log_start_offset_is_durable_before_readers_see_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open() as manager:
        log = manager.partitions.find(NAME).log
        told: list[int] = []
        real = log.raise_log_start

        def raise_log_start(offset: int) -> None:
            told.append(start_on_disk(world))
            manifest = manager.partitions.find(NAME).manifest()
            assert manifest is None or manifest.log_start_offset == offset
            real(offset)

        monkeypatch.setattr(log, "raise_log_start", raise_log_start)
        manager.maintenance.delete_records({NAME: 33}, now_ms=NOW)
        assert told == [33]


def test_delete_records_can_be_repeated_after_a_disk_error(world: World) -> None:
    with world.open() as manager:
        world.disk.fail_at = world.disk.effects + 1
        with pytest.raises(DiskFailed):
            manager.maintenance.delete_records({NAME: 60}, now_ms=NOW)
        world.disk.fail_at = None
        manager.maintenance.delete_records({NAME: 60}, now_ms=NOW)
        assert start_on_disk(world) == manager.partitions.find(NAME).log.log_start_offset == 60


def test_delete_records_of_a_topic_that_only_compacts_is_refused() -> None:
    with World().open() as manager:
        manager.topics.create("t", 1, COMPACTED, now_ms=NOW)
        send(manager, 10)
        with pytest.raises(InvalidRequest, match=r"cleanup\.policy of the topic does not include delete"):
            manager.maintenance.delete_records({NAME: 5}, now_ms=NOW)
        manager.topics.alter("t", {"cleanup.policy": "compact,delete"}, now_ms=NOW)
        assert manager.maintenance.delete_records({NAME: 5}, now_ms=NOW)[NAME].low_watermark == 5


def test_delete_records_during_a_topic_deletion_names_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    with World().open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        send(manager, 10)
        held = manager.partitions.find(NAME)
        held.tier.delete()  # the topic is deleted after the partition was looked up
        with pytest.raises(NotFound, match="the topic was deleted"):
            delete_records({held: 5}, lambda name: pytest.fail(f"{name} changed"), now_ms=NOW, maintenance_lock=Lock())


def test_delete_records_of_a_partition_without_the_writer_role_is_refused() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
    with (
        world.open(store=SwitchableStore(world.store)) as manager,  # type: ignore[arg-type]
        pytest.raises(Unavailable, match="this process does not own the manifest of the partition yet"),
    ):
        manager.maintenance.delete_records({NAME: 5}, now_ms=NOW)
    first, second = world.open(disk=world.other_disk()), world.open(disk=world.other_disk())
    with pytest.raises(Conflict):
        first.maintenance.delete_records({NAME: 5}, now_ms=NOW)
    assert second.maintenance.delete_records({NAME: 5}, now_ms=NOW)[NAME].low_watermark == 5
    with world.open(read_only=True) as manager:
        with pytest.raises(InvalidRequest, match="read-only"):
            manager.maintenance.delete_records({NAME: 7}, now_ms=NOW)
        with pytest.raises(NotFound):
            manager.partitions.find(TopicPartition("t", 9))


# -- the command


@pytest.fixture
def home(tmp_path: Path, monkeypatch, capfd) -> Path:
    monkeypatch.chdir(tmp_path)
    assert invoke(["init"]) == 0
    assert invoke(["topic", "create", "orders", "-p", "2"]) == 0
    (tmp_path / "lines").write_text("".join(f"{at}\n" for at in range(20)))
    for name in ("orders/0", "orders/1"):
        assert invoke(["append", name, "lines"]) == 0
    capfd.readouterr()
    return tmp_path


def printed(capfd, *words: str, code: int = 0) -> str:
    capfd.readouterr()
    got = invoke(list(words))
    out, err = capfd.readouterr()
    assert got == code, err
    return out + (err if code else "")


def starts(capfd) -> list[int]:
    out = printed(capfd, "get-offsets", "orders", "--time", "earliest", "-o", "jsonl")
    return [json.loads(line)["offset"] for line in out.splitlines()]


def test_delete_records_command_deletes_and_prints_the_offsets(home: Path, capfd) -> None:
    entry = json.loads(printed(capfd, "delete-records", "orders/0", "--before", "5", "--yes", "-o", "jsonl"))
    assert entry == {"topic": "orders", "partition": 0, "before": 0, "low_watermark": 5, "offsets": 5}
    assert starts(capfd) == [5, 0]
    assert printed(capfd, "consume", "orders/0").startswith("5\n")
    assert "out of range" in printed(capfd, "consume", "orders/0", "--from", "4", code=1)


def test_delete_records_reads_kafkas_offsets_file(home: Path, capfd) -> None:
    body = {
        "partitions": [
            {"topic": "orders", "partition": 0, "offset": 3},
            {"topic": "orders", "partition": 1, "offset": -1},
        ],
        "version": 1,
    }
    (home / "offsets.json").write_text(json.dumps(body))
    dry = json.loads(printed(capfd, "delete-records", "--file", "offsets.json", "--dry-run", "-o", "json"))
    assert (dry["dry_run"], [entry["low_watermark"] for entry in dry["partitions"]]) == (True, [3, 20])
    assert starts(capfd) == [0, 0]
    printed(capfd, "delete-records", "--file", "offsets.json", "--yes")
    assert starts(capfd) == [3, 20]


def test_delete_records_command_needs_yes(home: Path, capfd, monkeypatch) -> None:
    assert "--yes" in printed(capfd, "delete-records", "orders/0", "--before", "5", code=2)
    assert starts(capfd) == [0, 0]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["orders", "--before", "5"], 2),
        (["orders/0"], 2),
        (["orders/0", "--before", "-2"], 2),
        (["orders/0", "--before", "21", "--yes"], 1),
        (["orders/9", "--before", "1", "--yes"], 1),
        (["orders/0", "--before", "1", "--file", "lines"], 2),
        (["--file", "lines", "--yes"], 2),
        (["--file", "nowhere", "--yes"], 2),
    ],
)
def test_invalid_delete_records_arguments_are_one_error_line(home: Path, capfd, words: list[str], code: int) -> None:
    err = printed(capfd, "delete-records", *words, code=code)
    assert err.count("\n") == 1
    assert starts(capfd) == [0, 0]


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "{}",
        '{"partitions": 1}',
        '{"partitions": [], "version": 2}',
        '{"partitions": [{"topic": "orders"}]}',
        '{"partitions": [{"topic": "orders", "partition": 0, "offset": "5"}]}',
        '{"partitions": [{"topic": "orders", "partition": true, "offset": 5}]}',
        '{"partitions": [%s, %s]}' % (('{"topic": "orders", "partition": 0, "offset": 1}',) * 2),
    ],
)
def test_invalid_offsets_file_is_refused(home: Path, capfd, body: str) -> None:
    (home / "offsets.json").write_text(body)
    printed(capfd, "delete-records", "--file", "offsets.json", "--yes", code=2)
