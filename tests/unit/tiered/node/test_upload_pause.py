"""Paused uploads: no object is uploaded, no local-only record is deleted, and a resume continues without a gap."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from disk_model import ModelDisk, PowerCut
from manager_world import COMPACTED, DAY, NAME, NOW, TIERED, World, send, settle, values
from policy_samples import local
from test_recompaction_policy import RULES, cleaned, taken

from local.errors import Conflict, DiskFailed, InvalidRequest, NotFound
from local.storage import DiskStorage
from policies.decisions import CopySegment, DropLocal, ReplaceRemote
from policies.plan import plan_partition
from policies.rules import Pause
from remote.store import UploadSource
from tiered.cli.main import invoke
from tiered.manager.manager import LogManager
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.node.upload_pause import (
    FILE,
    LOCK,
    UploadPauses,
    dry_run_pause,
    dry_run_resume,
    pause_uploads,
    paused_topics,
    resume_uploads,
)
from tiered.observe.metrics import Metrics
from tiered.partition.partition_status import partition_status
from tiered.service.observations import Observations
from tiered.status.status_report import status_report

LATER = NOW + DAY


def _data_objects(world: World) -> set[str]:
    return {info.key for info in world.store.list("") if "/data/" in info.key}


def _fill(manager: LogManager, turn: int, *, count: int = 60, keys: int = 9) -> None:
    send(manager, count, start=turn * count, keys=keys)
    manager.partitions.roll("t", now_ms=NOW)


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "tasks"])
@pytest.mark.parametrize("names", [None, ["t"]], ids=["all", "topic"])
def test_paused_topic_uploads_nothing_and_resumes_without_a_gap(names: list[str] | None, waits: bool) -> None:
    """Holds across rolls, retention by time and size, and restarts, with maintenance that waits and with tasks."""
    world = World()

    def work(manager: LogManager, now_ms: int) -> None:
        for _ in range(6):
            manager.tick(now_ms, waits=waits)
            assert manager.maintenance.tasks.wait_idle(10)

    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        _fill(manager, 0)
        work(manager, NOW)
        reached, objects = manager.partitions.find(NAME).manifest().next_offset, _data_objects(world)
        assert reached == 60
        manager.pauses.pause(names, now_ms=NOW, reason="the bucket moves")
        _fill(manager, 1)
        work(manager, NOW)
        assert _data_objects(world) == objects
    for turn in (2, 3):
        now = NOW + turn * DAY
        with world.open(now_ms=now) as manager:
            assert manager.pauses.by_topic()["t"].since_ms == NOW
            _fill(manager, turn)
            manager.topics.alter("t", {"retention.ms": "2ms", "retention.bytes": "2000"}, now_ms=now)
            work(manager, now)
            manifest = manager.partitions.find(NAME).manifest()
            assert _data_objects(world) <= objects
            assert manifest.next_offset == reached
            assert manifest.log_start_offset <= reached, "retention must not expire records that were never uploaded"
            status = partition_status(manager.partitions.find(NAME).snapshot(now))
            assert (status.lag_segments > 0, status.at_risk_bytes > status.lag_bytes - 1) == (True, True)
            assert values(manager.reader(), reached) == [(at, b"value %d" % at) for at in range(60, 60 * (turn + 1))]
            manager.topics.alter("t", {"retention.ms": "-1", "retention.bytes": ""}, now_ms=now)
    with world.open(now_ms=NOW + 4 * DAY) as manager:
        assert manager.pauses.resume(names) == {}
        work(manager, NOW + 4 * DAY)
        rows = [row for row in manager.partitions.find(NAME).manifest().segments if row.base_offset >= reached]
        assert [row.base_offset for row in rows] == [reached, *(row.next_offset for row in rows[:-1])]
        assert rows[-1].next_offset == 240
        assert values(manager.reader(), reached) == [(at, b"value %d" % at) for at in range(60, 240)]


class _PausesInTheMiddle:
    """A store where another process pauses uploads during the upload of the second segment of a backlog."""

    def __init__(self, world: World) -> None:
        self._world, self.uploads = world, 0

    def __getattr__(self, verb: str) -> object:
        return getattr(self._world.store, verb)

    def upload(self, key: str, source: UploadSource) -> None:
        self.uploads += 1
        if self.uploads == 2:
            pause_uploads([(self._world.disk, "./data")], None, now_ms=NOW)
        self._world.store.upload(key, source)


def test_pause_during_a_backlog_stops_it_after_the_current_upload() -> None:
    world = World()
    store = _PausesInTheMiddle(world)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        for turn in range(6):
            _fill(manager, turn, count=10)
        manager.tick(NOW)
        assert store.uploads == 2
        assert manager.partitions.find(NAME).manifest().next_offset == 20
        manager.pauses.resume()
        settle(manager)
        assert manager.partitions.find(NAME).manifest().next_offset == 60
        assert values(manager.reader()) == [(at, b"value %d" % at) for at in range(60)]


def test_paused_compacted_topic_replaces_no_remote_segment() -> None:
    world = World()
    replacing = {"remote.recompaction.min.saved.bytes": "1", "remote.recompaction.min.reduction.ratio": "0.01"}
    with world.open() as manager:
        manager.topics.create("t", 1, {**COMPACTED, **replacing, "local.retention.ms": "-2"}, now_ms=NOW)
        for turn in range(3):
            _fill(manager, turn, keys=3 + turn * 20)
            settle(manager)
        objects = _data_objects(world)
        manager.pauses.pause(now_ms=NOW)
        _fill(manager, 3, keys=90)
        settle(manager)
        held = manager.partitions.find(NAME)
        snapshot = held.snapshot(LATER)
        assert snapshot.paused == Pause(since_ms=NOW, is_of_all=True)
        planned = plan_partition(snapshot)
        assert not any(isinstance(each, CopySegment | ReplaceRemote) for each in planned)
        assert _data_objects(world) == objects
        expected = values(manager.reader())
        manager.pauses.resume()
        settle(manager)
        assert _data_objects(world) - objects
        assert values(manager.reader()) == expected


def test_local_segments_needed_for_a_replacement_are_not_dropped_while_paused() -> None:
    rules = replace(RULES, local_retention_ms=0)
    snapshot = taken(
        local(0, 2), local(2, 4, size=40), remote=(cleaned(0, 2, 100, 4), cleaned(2, 4, 100, 2)), rules=rules
    )
    going_on = plan_partition(snapshot)
    assert any(isinstance(each, ReplaceRemote) for each in going_on)
    assert [each.base_offset for each in going_on if isinstance(each, DropLocal)] == [0, 2]
    paused = plan_partition(replace(snapshot, paused=Pause(since_ms=1)))
    assert not any(isinstance(each, ReplaceRemote) for each in paused)
    assert [each.base_offset for each in paused if isinstance(each, DropLocal)] == [0]


def _places(count: int = 2) -> list[tuple[ModelDisk, str]]:
    """The disks of a node that has the topics a and b."""
    disks = [ModelDisk() for _ in range(count)]
    places = [(disk, f"./disk{at}") for at, disk in enumerate(disks)]
    for disk, root in places:
        disk.make_directory(root)
    registry = TopicRegistry(places)
    for name, letter in (("a", "A"), ("b", "B")):
        registry.add(Topic(name=name, topic_id=letter * 21 + "A", partition_count=1))
    return places


def test_pause_and_resume_apply_to_all_topics_or_to_the_named_topics() -> None:
    places = _places()
    assert paused_topics(places) == {}
    assert pause_uploads(places, ["a"], now_ms=1, reason=" so \n it is ") == {"a": Pause(since_ms=1, reason="so it is")}
    assert pause_uploads(places, ["a"], now_ms=2)["a"].since_ms == 1, (
        "a second pause of the same topic must change nothing"
    )
    both = pause_uploads(places, None, now_ms=3, reason="all")
    assert both == {name: Pause(since_ms=3, reason="all", is_of_all=True) for name in "ab"}
    with pytest.raises(InvalidRequest, match="'tiered resume' resumes all"):
        resume_uploads(places, ["a"])
    assert resume_uploads(places, None) == {}
    pause_uploads(places, ["a", "b"], now_ms=4)
    assert set(resume_uploads(places, ["a"])) == {"b"}
    assert set(resume_uploads(places, ["a"])) == {"b"}
    with pytest.raises(NotFound, match="did_you_mean"):
        pause_uploads(places, ["aa"], now_ms=4)
    with pytest.raises(InvalidRequest, match="the reason has more than 200"):
        pause_uploads(places, None, now_ms=4, reason="x" * 201)


def test_dry_run_returns_the_pauses_of_the_real_change() -> None:
    """Holds for a pause of all over a pause of one topic, and for an unreadable file."""
    places = _places()
    for names in (["a"], None, ["b"]):
        expected = dry_run_pause(places, names, now_ms=3, reason="why")
        assert pause_uploads(places, names, now_ms=3, reason="why") == expected
    assert dry_run_resume(places, None) == resume_uploads(places, None) == {}
    pause_uploads(places, ["a", "b"], now_ms=4)
    expected = dry_run_resume(places, ["a"])
    assert resume_uploads(places, ["a"]) == expected
    for disk, root in places:
        disk.unlink(f"{root}/{FILE}")
        disk.create(f"{root}/{FILE}").append(b"{")
    expected = dry_run_pause(places, None, now_ms=5)
    assert pause_uploads(places, None, now_ms=5) == expected


def test_topic_recreated_under_a_paused_name_is_not_paused() -> None:
    places = _places()
    pause_uploads(places, ["a"], now_ms=1)
    registry = TopicRegistry(places)
    registry.delete("a", now_ms=2)
    registry.add(Topic(name="a", topic_id="C" * 21 + "A", partition_count=1))
    assert paused_topics(places) == {}


def test_disk_that_was_offline_does_not_restore_an_old_pause() -> None:
    """Holds for each of the two disks. The next change has a higher version than a change that a crash interrupted."""
    for away in (0, 1):
        places = _places()
        pause_uploads(places, None, now_ms=1)
        there = [place for at, place in enumerate(places) if at != away]
        disk, root = places[away]
        cut = disk.read(f"{root}/{FILE}")
        lost = [(_Refusing(), root), *there] if away == 0 else [*there, (_Refusing(), root)]
        resume_uploads(lost, None)  # type: ignore[arg-type]
        assert disk.read(f"{root}/{FILE}") == cut
        assert paused_topics(places) == {}, away
        # A change that a crash left on one disk only, where that disk was offline at the next change.
        version = json.loads(disk.read(f"{root}/{FILE}"))["version"]
        newest = max(json.loads(d.read(f"{r}/{FILE}"))["version"] for d, r in there)
        assert newest >= version + 2


class _Refusing:
    def __getattr__(self, verb: str) -> object:
        def refuse(*args: object, **more: object) -> None:
            raise DiskFailed("the disk is away", verb=verb)

        return refuse


def test_unreadable_pause_file_pauses_all_topics_until_a_resume_rewrites_it() -> None:
    places = _places()
    for disk, root in places:
        disk.create(f"{root}/{FILE}").append(b"{")
    found = paused_topics(places)
    assert set(found) == {"a", "b"}
    assert found["a"].since_ms is None
    with pytest.raises(InvalidRequest, match="is unreadable"):
        pause_uploads(places, ["a"], now_ms=1)
    with pytest.raises(InvalidRequest):
        resume_uploads(places, ["a"])
    assert resume_uploads(places, None) == {}


def test_valid_copy_wins_over_a_damaged_one_and_pauses_survive_offline_disks() -> None:
    places = _places()
    pause_uploads(places, ["a"], now_ms=1)
    disk, root = places[0]
    disk.unlink(f"{root}/{FILE}")
    disk.create(f"{root}/{FILE}").append(b"\x00")
    assert set(paused_topics(places)) == {"a"}
    shown: list[tuple[object, str]] = list(places)
    pauses = UploadPauses(SimpleNamespace(places=lambda: shown))  # type: ignore[arg-type]
    topic = TopicRegistry(places).get("a")
    shown[:] = [(_Refusing(), "./disk0"), (_Refusing(), "./disk1")]
    pauses.refresh()
    assert pauses.of(topic) == Pause(since_ms=1)


def test_concurrent_change_of_pauses_is_refused_with_a_conflict(tmp_path: Path) -> None:
    disk, root = DiskStorage(), str(tmp_path)
    TopicRegistry([(disk, root)]).add(Topic(name="a", topic_id="A" * 22, partition_count=1))
    lock = disk.lock(f"{root}/{LOCK}")
    with pytest.raises(Conflict, match="run the command again"):
        pause_uploads([(disk, root)], None, now_ms=1)
    lock.close()
    assert set(pause_uploads([(disk, root)], None, now_ms=1)) == {"a"}


def test_crash_during_a_pause_leaves_it_applied_or_not_applied() -> None:
    seen = set()
    for seed in range(60):
        for at in range(1, 12):
            disk = ModelDisk()
            _prepared(disk)
            disk.cut_at, disk.cut_before = disk.effects + at, bool(seed % 2)
            try:
                pause_uploads([(disk, "./d")], None, now_ms=7)
                break
            except PowerCut:
                found = paused_topics([(disk.crash(random.Random(seed)), "./d")])
            assert found in ({}, {"a": Pause(since_ms=7, is_of_all=True)})
            seen.add(bool(found))
    assert seen == {False, True}


def _prepared(disk: ModelDisk) -> None:
    disk.make_directory("./d")
    disk.sync_directory(".")
    TopicRegistry([(disk, "./d")]).add(Topic(name="a", topic_id="A" * 22, partition_count=1))


def test_status_and_metrics_report_time_and_reason_of_a_pause() -> None:
    world = World()
    seen = Observations()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.pauses.pause(["t"], now_ms=NOW, reason="the link is needed")
        _fill(manager, 0)
        manager.tick(LATER)
        report = status_report(manager, LATER, storage=world.disk)
        assert report.is_healthy, "a paused topic must not count as a problem"
        assert report.partitions[NAME].paused == Pause(since_ms=NOW, reason="the link is needed")
        text = Metrics(manager, seen).text(LATER)
        assert 'tiered_remote_copy_paused{topic="t"} 1' in text
        assert f'tiered_remote_copy_paused_seconds{{topic="t"}} {DAY // 1000}' in text
        manager.pauses.resume(["t"])
        manager.tick(LATER)
        text = Metrics(manager, seen).text(LATER)
        assert 'tiered_remote_copy_paused{topic="t"} 0' in text


def test_pause_and_resume_commands_work_while_a_manager_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n')
    directory = ["-C", str(tmp_path)]
    assert invoke([*directory, "pause"]) != 0, "pause must fail while the directory and its topics do not exist"
    assert invoke([*directory, "topic", "create", "orders", "-X", "remote.storage.enable=true"]) == 0
    capfd.readouterr()
    from tiered.config.config import Config

    config = Config.load(str(tmp_path / "tiered.toml"), {}, {})
    with LogManager.open(config, now_ms=NOW) as manager:
        assert invoke([*directory, "pause", "orders", "--reason", "moving", "-o", "json"]) == 0
        shown = json.loads(capfd.readouterr().out)
        assert [(row["topic"], row["reason"], row["is_of_all"]) for row in shown["paused"]] == [
            ("orders", "moving", False)
        ]
        manager.tick(NOW)
        assert manager.partitions.all()[0].pause is not None
        assert invoke([*directory, "status"]) == 0
        told = capfd.readouterr()
        assert "paused, nothing waits" in told.out
        assert "uploads paused" in told.err
        assert "moving" in told.err
        assert invoke([*directory, "plan"]) == 0
        assert "orders: uploads paused" in capfd.readouterr().err
        assert invoke([*directory, "doctor", "--no-probe", "-o", "json"]) == 3
        findings = json.loads(capfd.readouterr().out)["findings"]
        assert any(each["check"] == "pauses" and "moving" in each["what"] for each in findings)
        assert invoke([*directory, "pause", "--list", "orders"]) == 2
        assert invoke([*directory, "pause", "--list"]) == 0
        assert invoke([*directory, "resume", "nobody"]) == 1
        assert invoke([*directory, "resume"]) == 0
        manager.tick(NOW)
        assert manager.partitions.all()[0].pause is None
