"""Agreement of disk and bucket: every state, produced by real operations, and ``tiered status --section sync``."""

from __future__ import annotations

import io
import json
import re
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest
from json_schemas import SCHEMAS
from manager_world import NAME, NOW, TIERED, SwitchableStore, World, send, settle

from local.errors import NotFound
from remote.store.memory_store import MemoryStore
from tiered.cli.main import invoke
from tiered.cli.node.status import sync_columns
from tiered.cli.render import print_table
from tiered.manager.manager import LogManager
from tiered.status.sync_status import SyncState, TierSync, tier_sync

KEPT = {**TIERED, "local.retention.ms": "-2"}


@pytest.fixture
def world() -> World:
    return World()


def fill(world: World, count: int = 70, settings: dict[str, str] = KEPT) -> None:
    """Write `count` records to both tiers, or with TIERED to the bucket only."""
    with world.open() as manager:
        manager.topics.create("t", 1, settings, now_ms=NOW)
        send(manager, count)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)


def entry_filter(manager: LogManager, world: World) -> TierSync:
    (found,) = tier_sync(manager, ["t"], storage=world.disk)
    return found


def test_tiers_with_the_same_records_are_in_sync(world: World) -> None:
    fill(world)
    with world.open(read_only=True) as looker:
        found = entry_filter(looker, world)
    assert (found.state, found.lag_offsets) == (SyncState.IN_SYNC, 0)
    assert (found.local_start_offset, found.local_next_offset) == (0, 70)
    assert (found.remote_start_offset, found.remote_next_offset) == (0, 70)
    assert found.is_own_writer
    assert found.head_sequence == found.seen_sequence
    assert found.epoch == found.local_epoch
    with world.open() as manager:
        send(manager, 5, start=70)
        found = entry_filter(manager, world)
        assert (found.state, found.lag_offsets, found.local_next_offset) == (SyncState.BEHIND, 5, 75)


def test_sync_shows_the_manifest_read_and_the_newest_manifest(world: World) -> None:
    fill(world)
    with world.open() as manager, world.open(read_only=True) as looker:
        before = looker.partitions.find(NAME).manifest()
        assert before is not None
        send(manager, 30, start=70)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        found = entry_filter(looker, world)
        assert found.head_sequence is not None
        assert found.seen_sequence == before.sequence < found.head_sequence
        assert found.remote_next_offset == found.local_next_offset == 100
        assert found.state is SyncState.IN_SYNC, "the manager must have continued after the disk was read"


def test_old_copy_of_the_disk_is_behind_the_bucket(world: World) -> None:
    fill(world, 30)
    old = deepcopy(world.disk)
    with world.open() as manager:
        send(manager, 40, start=30)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(disk=old, read_only=True) as looker:
        found = entry_filter(looker, world)
    assert (found.state, found.local_next_offset, found.remote_next_offset) == (SyncState.AHEAD, 30, 70)


@pytest.mark.damages_bucket
def test_old_copy_of_the_bucket_is_lost_if_the_disk_dropped_newer_records(world: World) -> None:
    fill(world, 30, TIERED)
    old = MemoryStore("memory://old")
    old._objects = dict(world.store._objects)
    with world.open() as manager:
        send(manager, 400, start=30)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        settle(manager)
        start = manager.partitions.find(NAME).log.local_log_start_offset
        assert start > 30
    with world.open(store=old, read_only=True) as looker:
        found = entry_filter(looker, world)
    assert (found.state, found.remote_next_offset, found.local_start_offset) == (SyncState.LOST, 30, start)


def test_sync_names_the_node_that_took_over(world: World) -> None:
    fill(world)
    other = world.other_disk()
    with world.open(disk=other) as manager:
        assert manager.partitions.find(NAME).is_writer
        name = manager.partitions.find(NAME).manifest()
        assert name is not None
        with world.open(read_only=True) as looker:
            found = entry_filter(looker, world)
            assert found.state is SyncState.OTHER_WRITER
            assert not found.is_own_writer
            assert found.writer_id == name.writer_id
            assert found.epoch is not None
            assert found.local_epoch is not None
            assert found.epoch > found.local_epoch


def test_sync_of_an_empty_bucket_a_dead_store_and_an_untiered_topic(world: World) -> None:
    fill(world)
    with world.open(read_only=True, store=MemoryStore("memory://new")) as looker:
        found = entry_filter(looker, world)
        assert (found.state, found.head_sequence, found.lag_offsets) == (SyncState.NO_MANIFEST, None, None)
    store = SwitchableStore(world.store, is_down=False)
    with world.open(read_only=True, store=store) as looker:  # type: ignore[arg-type]
        store.is_down = True
        found = entry_filter(looker, world)
        assert found.state is SyncState.UNKNOWN
        assert "the store is down" in str(found.problem)
        assert found.head_sequence == found.seen_sequence, "the last known manifest must stay in the status"
    with world.open() as manager:
        manager.topics.create("u", 1, {"remote.storage.enable": "false"}, now_ms=NOW)
        assert [each.state for each in tier_sync(manager, ["u"], storage=world.disk)] == [SyncState.NOT_TIERED]
        with pytest.raises(NotFound):
            tier_sync(manager, ["nosuch"], storage=world.disk)


def test_settings_not_yet_in_the_manifest_are_reported(world: World) -> None:
    fill(world)
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        assert entry_filter(manager, world).has_new_settings is False
        store.is_down = True
        manager.topics.alter("t", {"retention.ms": "9d"}, now_ms=NOW)
        store.is_down = False
        assert entry_filter(manager, world).has_new_settings is True
        settle(manager)
        assert entry_filter(manager, world).has_new_settings is False


@pytest.mark.parametrize(("width", "is_table"), [(80, False), (120, True), (200, True)])
def test_sync_of_a_large_topic_is_complete_on_every_terminal_width(
    width: int, is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    one = TierSync(
        topic=NAME.topic,
        partition=NAME.partition,
        state=SyncState.BEHIND,
        local_start_offset=91_000_000,
        local_next_offset=91_204_118,
        local_epoch=3,
        remote_start_offset=5_000_000,
        remote_next_offset=91_100_000,
        head_sequence=71_120,
        seen_sequence=71_117,
        epoch=3,
        writer_id="machine-6db0e982-1c8211f8",
        is_own_writer=True,
        committed_ms=NOW - 90_000,
        lag_offsets=104_118,
        has_new_settings=True,
        problem=None,
    )
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"COLUMNS": str(width), "LINES": "20", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    print_table([one], sync_columns(NOW))
    lines = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    assert lines[0].startswith("TOPIC  PART") == is_table
    text = " ".join(" ".join(lines).split())
    for told in ("91,000,000..91,204,118", "5,000,000..91,100,000", "71120 (+3)", "1m 30s ago", "104,118"):
        assert told in text


def test_sync_section_has_its_own_rows_alone_and_with_other_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("".join(f"{at}\n" for at in range(20)))
    for words in (["init"], ["topic", "create", "orders", "-p", "2"], ["append", "orders/1", "lines"]):
        assert invoke(["-q", *words]) == 0
    capfd.readouterr()
    assert invoke(["status", "--section", "sync"]) == 0
    header, *rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert header == ["TOPIC", "PART", "DISK", "BUCKET", "HEAD", "EPOCH", "COMMITTED", "SYNC"]
    assert [row[:4] for row in rows] == [["orders", "0", "0..0", "0..0"], ["orders", "1", "0..20", "0..0"]]
    assert rows[1][-2:] == ["behind", "20"]
    assert invoke(["status", "--section", "lag,sync"]) == 0
    out = capfd.readouterr().out
    assert "UPLOAD LAG" in out
    assert "LOCAL" not in out
    assert "behind 20" in out
    for words, schema in ((["status"], "status"), (["status", "-p"], "status-partitions")):
        assert invoke([*words, "--section", "sync", "-o", "json"]) == 0
        told = msgspec.json.decode(capfd.readouterr().out, type=SCHEMAS[schema])
        assert [each.state.value for each in told.sync] == ["in sync", "behind"]  # type: ignore[attr-defined]
        assert invoke([*words, "-o", "json"]) == 0
        assert json.loads(capfd.readouterr().out)["sync"] is None
    assert invoke(["status", "--section", "sync", "-o", "jsonl"]) == 0
    assert [json.loads(line)["lag_offsets"] for line in capfd.readouterr().out.splitlines()] == [0, 20]
    assert invoke(["status", "--section", "sync,lag", "-o", "csv"]) == 2
    assert "one kind of rows" in capfd.readouterr().err
