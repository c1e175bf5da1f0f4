"""History notes of a running manager on both tiers: correct, durable over restarts and crashes, absent if unknown."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from pathlib import Path

import msgspec
import pytest
from disk_model import ModelDisk, PowerCut
from json_schemas import SCHEMAS
from manager_world import COMPACTED, DAY, HOUR, NOW, TIERED, SwitchableStore, World, send, settle

from local.errors import AccessDenied, Corrupt, DiskFailed, LogError, NotFound
from local.names import TopicPartition
from local.storage import replace_file
from remote.keys import new_ulid, ulid_ms
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from tiered.cli.main import invoke
from tiered.service.worker import Worker
from tiered.status.status_report import status_report, topic_row
from tiered.status.tier_history import (
    FILE,
    TierHistory,
    TierJournal,
    TierPoint,
    TierSeries,
    history_of,
    points_now,
    read_series,
    still_there,
    tier_history,
)

FIVE = 5 * 60_000


@pytest.fixture
def world() -> World:
    return World()


def noted(world: World, now_ms: int, topic: str | None = None) -> TierHistory:
    (found,) = tier_history(world.config, now_ms, topics=[topic] if topic else [], storage=world.disk)
    return found


def test_note_equals_the_status_of_each_topic_and_of_all(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        manager.topics.create("c", 1, COMPACTED, now_ms=NOW)
        manager.topics.create("plain", 1, {}, now_ms=NOW)
        for topic in ("t", "c", "plain"):
            send(manager, 300, topic=topic)
        settle(manager)
        send(manager, 50, start=300)
        report = status_report(manager, NOW, storage=world.disk)
        total, topics = points_now(manager, NOW)
        assert topics.keys() == {"t", "c", "plain"}
        for topic in report.topics:
            row, point = topic_row(report, topic), topics[topic.name]
            assert {name: row[name] for name in ("local_bytes", "remote_bytes", "lag_bytes", "at_risk_bytes")} == {
                "local_bytes": point.local_bytes,
                "remote_bytes": point.remote_bytes,
                "lag_bytes": point.lag_bytes,
                "at_risk_bytes": point.at_risk_bytes,
            }
            assert point.dollars_per_month == pytest.approx(row["dollars_per_month"], abs=1e-6)
        assert total.remote_bytes == sum(each.remote_bytes or 0 for each in topics.values()) > 0
        assert total.at_risk_bytes == sum(each.at_risk_bytes or 0 for each in topics.values()) > 0
        assert (total.missing_partitions, total.at_ms) == (0, NOW)


def test_maintenance_takes_a_note_every_five_minutes_across_restarts(world: World) -> None:
    for start in (NOW, NOW + HOUR):
        with world.open(now_ms=start) as manager:
            if start == NOW:
                manager.topics.create("t", 1, TIERED, now_ms=NOW)
            worker = Worker(manager, now_ms=start, interval_ms=30_000)
            for at in range(start, start + 4 * FIVE, 30_000):
                worker.round(at)
    until = NOW + HOUR + 4 * FIVE
    found = noted(world, until)
    assert [each.at_ms for each in found.points] == [NOW + at * FIVE for at in (0, 1, 2, 3, 12, 13, 14, 15)]
    assert (found.begun_ms, found.step_ms) == (NOW, FIVE)
    assert noted(world, until, "t").points == found.points
    with pytest.raises(NotFound):
        noted(world, until, "none")
    assert [each.at_ms for each in noted(world, NOW + FIVE).points] == [NOW, NOW + FIVE], (
        "no note may be later than the given time"
    )
    assert noted(world, NOW - DAY).begun_ms is None


def test_shutdown_notes_the_final_figures(world: World) -> None:
    """A run shorter than five minutes, for example from cron, does its work after the first note."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        first = None
        while worker.round(NOW):
            first = first or noted(world, NOW).points[0]
        worker.end(NOW + 2000)
        total, _ = points_now(manager, NOW)
    (point,) = noted(world, NOW + FIVE).points
    assert first is not None
    assert (point.at_ms, point.local_bytes, point.remote_bytes) == (NOW + 2000, total.local_bytes, total.remote_bytes)
    assert (point.remote_bytes or 0) > (first.remote_bytes or 0)
    assert point.at_risk_bytes == first.at_risk_bytes, "the note must have the maximum of the five minutes"


def test_several_starts_within_five_minutes_take_one_note(world: World) -> None:
    for start in (NOW, NOW + 1000, NOW + FIVE - 1000):
        with world.open(now_ms=start) as manager:
            effects = world.disk.effects
            TierJournal(manager).note(start)
            assert (world.disk.effects > effects) == (start == NOW)
    assert len(noted(world, NOW + HOUR).points) == 1


def test_unread_bucket_is_noted_as_unknown_not_as_empty(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.topics.create("plain", 1, {}, now_ms=NOW)
        send(manager, 200)
        send(manager, 200, topic="plain")
        settle(manager)
        TierJournal(manager).note(NOW)
    with world.open(store=SwitchableStore(world.store), now_ms=NOW + FIVE) as manager:
        assert manager.problems
        TierJournal(manager).note(NOW + FIVE)
    first, second = noted(world, NOW + HOUR).points
    assert first.remote_bytes
    assert (second.remote_bytes, second.lag_bytes, second.at_risk_bytes, second.dollars_per_month) == (None,) * 4
    assert second.local_bytes > 0
    assert noted(world, NOW + HOUR, "plain").points[1].remote_bytes == 0


def test_partitions_that_failed_to_open_are_left_out_and_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open() as manager:
        manager.topics.create("t", 3, {}, now_ms=NOW)
        send(manager, 100)
        whole, _ = points_now(manager, NOW)
        one = [each for each in manager.snapshots(NOW) if each.partition == TopicPartition("t", 0)]
        monkeypatch.setattr("tiered.status.tier_history.snapshots_at_hand", lambda manager, now_ms: one)
        total, topics = points_now(manager, NOW)
        assert (total.missing_partitions, topics["t"].missing_partitions) == (2, 2)
        assert total.local_bytes == whole.local_bytes > 0


def test_unreadable_prices_leave_only_the_dollars_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with world.open(cost_prices="./none.json") as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        assert points_now(manager, NOW)[0].dollars_per_month is None
    assert "dollars are not recorded" in caplog.text


def test_manager_without_topics_notes_zeros(world: World) -> None:
    with world.open() as manager:
        total, topics = points_now(manager, NOW)
        assert (total.local_bytes, total.remote_bytes, total.dollars_per_month, topics) == (0, 0, 0.0, {})


def test_power_cut_leaves_the_old_notes_or_the_new_ones() -> None:
    for cut in range(12):
        world = World()
        with contextlib.suppress(PowerCut), world.open() as manager:
            manager.topics.create("t", 1, {}, now_ms=NOW)
            journal = TierJournal(manager)
            journal.note(NOW)
            world.disk.cut_at, world.disk.cut_before = world.disk.effects + 1 + cut // 2, cut % 2 == 0
            journal.note(NOW + FIVE)
            world.disk.cut_at = None
        for seed in range(4):
            disk = world.disk.crash(random.Random(seed))
            found = read_series([(disk, "./data")])
            assert [each.at_ms for each in found.total.points(FIVE, 0, NOW + DAY)] in ([NOW], [NOW, NOW + FIVE])
            with world.open(disk=disk) as manager:
                TierJournal(manager).note(NOW + HOUR)
            after = read_series([(disk, "./data")]).total.points(FIVE, 0, NOW + DAY)
            assert after[-1].at_ms == NOW + HOUR


def test_disk_that_refuses_a_note_is_logged_once_and_retried(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuses = [True]

    def refusing(*given: object) -> None:
        if refuses[0]:
            raise DiskFailed("cannot write to a file", cause="enospc")
        replace_file(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("tiered.status.tier_history.replace_file", refusing)
    with world.open() as manager:
        journal = TierJournal(manager)
        for at in (NOW, NOW + 1000, NOW + FIVE):
            journal.note(at)
        assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1
        refuses[0] = False
        journal.note(NOW + FIVE + 1000)
    assert [each.at_ms for each in noted(world, NOW + HOUR).points] == [NOW, NOW + FIVE]


def test_damaged_notes_are_restarted_and_those_of_a_newer_version_untouched(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with world.open() as manager:
        TierJournal(manager).note(NOW)
        whole = world.disk.read(f"./data/{FILE}")
        replace_file(world.disk, f"./data/{FILE}", whole[:-3])
        assert noted(world, NOW).points == ()
        TierJournal(manager).note(NOW + FIVE)
        assert [each.at_ms for each in noted(world, NOW + HOUR).points] == [NOW + FIVE]
        monkeypatch.setattr("tiered.status.tier_history.VERSION", 2)
        newer = TierSeries().encoded()
        monkeypatch.undo()
        replace_file(world.disk, f"./data/{FILE}", newer)
        journal = TierJournal(manager)
        for at in (NOW + HOUR, NOW + 2 * HOUR):
            journal.note(at)
        assert world.disk.read(f"./data/{FILE}") == newer
        assert caplog.text.count("the history of the tiers is disabled") == 1
        assert noted(world, NOW + DAY).points == (), "a read-only open must ignore notes of a newer version"


@pytest.mark.parametrize("error", [DiskFailed, AccessDenied])
def test_unreadable_notes_are_not_overwritten(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[LogError]
) -> None:
    with world.open() as manager:
        TierJournal(manager).note(NOW)
        read = world.disk.read

        def refuse(path: str, *rest: int) -> bytes:
            if path.endswith(FILE):
                raise error("cannot read a file", path=path)
            return read(path, *rest)

        journal = TierJournal(manager)
        with monkeypatch.context() as patch:
            patch.setattr(world.disk, "read", refuse)
            for at in (FIVE, 2 * FIVE):
                journal.note(NOW + at)
        assert [each.at_ms for each in noted(world, NOW + HOUR).points] == [NOW]
        journal.note(NOW + 3 * FIVE)
        assert [each.at_ms for each in noted(world, NOW + HOUR).points] == [NOW, NOW + 3 * FIVE]


def test_notes_of_all_directories_are_merged_into_one_history(world: World) -> None:
    disk = ModelDisk()
    for root, at in (("./a", NOW), ("./b", NOW + FIVE), ("./c", NOW)):
        disk.make_directory(root)
        series = TierSeries()
        series.add(
            TierPoint(at_ms=at, local_bytes=1, remote_bytes=2, lag_bytes=3, at_risk_bytes=4, dollars_per_month=5), {}
        )
        replace_file(disk, f"{root}/{FILE}", series.encoded())
    found = read_series([(disk, root) for root in ("./a", "./b", "./c", "./none")])
    assert [each.at_ms for each in found.total.points(FIVE, 0, NOW + DAY)] == [NOW, NOW + FIVE]


def test_bytes_reconstructed_for_the_past_never_exceed_the_noted_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the lower bound for times before the first note, while pages are written and entries expire."""
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    was: list[tuple[int, int]] = []
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.bytes": "20000"}, now_ms=NOW)
        assert still_there(manager) == []
        for turn in range(8):
            at = NOW + turn * HOUR
            send(manager, 300, start=turn * 300)
            settle(manager, at)
            total, _ = points_now(manager, at)
            was.append((at, total.remote_bytes or 0))
        found = still_there(manager)
        manifests = [held.manifest() for held in manager.partitions.all()]
        assert any(each.pages for each in manifests), "manifest pages must be part of this test"  # type: ignore[union-attr]
        assert found == sorted(found)
        assert [size for _, size in found] == sorted(size for _, size in found)
        for at, size in was:
            assert max((each for when, each in found if when <= at), default=0) <= size
        assert found[-1][1] == was[-1][1], "at the time of the last note all bytes must be present"
        assert still_there(manager, ["t"]) == found


def test_timestamp_of_a_ulid_is_recovered() -> None:
    for ms in (0, NOW, 2**48 - 1):
        assert ulid_ms(new_ulid(ms)) == ms


def test_history_converts_to_a_data_frame(world: World) -> None:
    pandas = pytest.importorskip("pandas")
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        TierJournal(manager).note(NOW)
    frame = noted(world, NOW, "t").to_frame()
    assert list(frame["topic"]) == ["t"]
    assert frame["at"][0] == pandas.Timestamp(NOW, unit="ms", tz="UTC")
    empty = history_of(TierSeries(), None, NOW, DAY).to_frame()
    assert list(empty.columns) == list(frame.columns)


def test_decoding_corrupt_notes_raises() -> None:
    with pytest.raises(Corrupt):
        TierSeries.decoded(b"")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    """A directory with two maintenance runs, an hour apart."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "tiered.toml").write_text(f'[remote]\nurl = "file://{tmp_path}/bucket"\n')
    clock = {"now": NOW}
    monkeypatch.setattr("time.time_ns", lambda: clock["now"] * 1_000_000)
    assert invoke(["topic", "create", "orders", "-X", "remote.storage.enable=true"]) == 0
    (tmp_path / "lines").write_text("one\ntwo\n")
    assert invoke(["append", "orders", "lines"]) == 0
    for hour in range(2):
        clock["now"] = NOW + hour * HOUR
        assert invoke(["-q", "run", "--once"]) == 0
    capfd.readouterr()
    return tmp_path


def test_history_command_prints_notes_as_table_json_and_csv(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["status", "--history", "2d", "-o", "json"]) == 0
    told = capfd.readouterr()
    found = msgspec.json.decode(told.out, type=SCHEMAS["status-history"])
    assert [(each.topic, each.at_ms) for each in found.notes] == [(None, NOW), (None, NOW + HOUR)]
    assert found.notes[0].local_bytes > 0
    assert json.loads(told.out).keys() == {"schema_version", *SCHEMAS["status-history"].__struct_fields__}
    assert invoke(["status", "orders", "--history", "30d", "-o", "csv"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("topic,at_ms,local_bytes,remote_bytes,lag_bytes")
    assert [line.partition(",")[0] for line in lines[1:]] == ["orders", "orders"]
    assert invoke(["status", "--history", "1h"]) == 0
    told = capfd.readouterr()
    assert "2027-01-15 08:00:00" in told.out
    assert "2 points, one for each 5m in which a manager ran" in told.err
    assert invoke(["status", "none", "--history", "1h"]) == 1
    assert "cannot read the history of a topic: topic=none" in capfd.readouterr().err
    for wrong in (
        ["--history", "long"],
        ["--history", "1h", "-p"],
        ["--history", "1h", "--check"],
        ["--history", "-1"],
    ):
        assert invoke(["status", *wrong]) in (1, 2)


def test_history_command_without_notes_names_the_process_that_takes_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["-C", str(tmp_path), "init"]) == 0
    capfd.readouterr()
    assert invoke(["-C", str(tmp_path), "status", "--history", "2d"]) == 0
    assert "tiered run records a point every five minutes" in capfd.readouterr().err


def test_files_of_a_running_manager_are_no_verify_findings(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["pause", "orders"]) == 0
    capfd.readouterr()
    assert invoke(["verify", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["findings"] == []
