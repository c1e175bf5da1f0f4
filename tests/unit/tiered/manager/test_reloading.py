"""Reload of settings by a running manager: all or none, at once or reported to need a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import DAY, NAME, NOW, TIERED, World, send, settle

from local.errors import InvalidRequest
from local.storage import Space
from policies.decisions import DropLocal
from tiered.service.worker import DiskRelief, Worker
from tiered.status.status_report import status_report


@pytest.fixture
def world() -> World:
    return World()


def test_reloaded_settings_apply_to_topics_at_once(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {"remote.storage.enable": "true"}, now_ms=NOW)
        manager.topics.create("u", 1, {"retention.ms": "1d"}, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        assert manager.plan(NOW).totals().get("DropLocal") is None
        done = manager.topics.reload(replace(manager.config, topics={"*": {"local.retention.ms": "1ms"}}), now_ms=NOW)
        assert (done.topics, done.failed, done.at_restart) == (("t", "u"), {}, ())
        assert any(isinstance(each, DropLocal) for each in manager.plan(NOW).decisions[NAME])
        assert manager.partitions.find(NAME).rules.local_retention_ms == 1
        same = manager.topics.reload(manager.config, now_ms=NOW)
        assert same.topics == ()


def test_reload_that_contradicts_one_topic_changes_no_topic(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.topics.create("u", 1, {"local.retention.ms": "5d", "remote.storage.enable": "true"}, now_ms=NOW)
        before = manager.config
        with pytest.raises(InvalidRequest, match="the disk would retain more than the log"):
            manager.topics.reload(replace(before, topics={"*": {"retention.ms": "1d"}}), now_ms=NOW)
        assert manager.config is before
        assert manager.partitions.find(NAME).rules.retention_ms is None
        manager.topics.alter("t", {"retention.ms": "2d"}, now_ms=NOW)
        assert manager.partitions.find(NAME).rules.retention_ms == 2 * DAY
        manager.topics.alter("u", {"segment.ms": "1d"}, now_ms=NOW)  # the refused reload would contradict this setting


def test_reloaded_disk_relief_threshold_applies_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        monkeypatch.setattr(world.disk, "space", lambda path: Space(1 << 30, 1 << 40), raising=False)
        relief = DiskRelief(manager)
        assert relief.relieve(NOW) == 0
        least = {**manager.config.overrides, "log.dir.relief.free.bytes.min": "2GiB"}
        assert manager.topics.reload(replace(manager.config, overrides=least), now_ms=NOW).at_restart == ()
        assert relief.relieve(NOW) > 0


def test_status_reads_the_directory_of_the_running_manager_after_a_reload(world: World) -> None:
    with world.open() as manager:
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        worker.round(NOW)
        moved = replace(manager.config, data_dir="./elsewhere")
        assert manager.topics.reload(moved, now_ms=NOW).at_restart == ("[local]",)
        report = status_report(manager, NOW, storage=world.disk, holder_of={"./data/.lock": 4711}.get)
        assert (report.work, report.holder) == (worker.report, 4711)


def test_reloaded_manager_settings_are_reported_as_waiting_for_a_restart(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        other = replace(
            manager.config,
            remote_url="memory://elsewhere",
            overrides={**manager.config.overrides, "log.cleaner.threads": "3"},
        )
        done = manager.topics.reload(other, now_ms=NOW)
        assert done.topics == ()
        assert done.at_restart == ("[remote]", "log.cleaner.threads")
        send(manager, 200)
        settle(manager)
    assert world.store.list("t-")


def test_reload_can_make_a_topic_tiered(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        assert list(world.store.list("t-")) == []
        done = manager.topics.reload(replace(manager.config, topics={"t": TIERED}), now_ms=NOW)
        assert done.topics == ("t",)
        settle(manager)
        assert manager.topics.get("t").was_tiered
        assert list(world.store.list("t-")) != []
