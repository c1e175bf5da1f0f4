"""Named offsets and timestamps over both tiers, and the command that prints them."""

from __future__ import annotations

import json

import pytest
from manager_world import DAY, NAME, NOW, TIERED, World, send, settle

from local.errors import InvalidRequest, Unavailable
from local.format.record import Record
from local.log.producer_state import Producer
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset, OffsetSpec
from tiered.cli.data.offsets import parse_spec
from tiered.manager.manager import LogManager
from tiered.read.offset_listing import LATEST_TIERED


def ask(manager: LogManager, spec: int) -> FoundOffset | None:
    return manager.list_offsets({NAME: spec})[NAME]


@pytest.fixture
def world() -> World:
    return World()


def test_offsets_of_a_log_without_a_bucket(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        assert ask(manager, OffsetSpec.LATEST) == FoundOffset(0, None, None)
        assert ask(manager, OffsetSpec.MAX_TIMESTAMP) is None
        send(manager, 100)
        assert ask(manager, OffsetSpec.LATEST).offset == 100
        assert ask(manager, OffsetSpec.EARLIEST).offset == 0
        assert ask(manager, OffsetSpec.EARLIEST_LOCAL).offset == 0
        assert ask(manager, LATEST_TIERED) is None
        assert ask(manager, OffsetSpec.MAX_TIMESTAMP)[:2] == (99, NOW - DAY + 99)
        assert ask(manager, NOW - DAY + 40)[:2] == (40, NOW - DAY + 40)
        assert ask(manager, NOW) is None
        with pytest.raises(InvalidRequest, match="invalid offset specification"):
            ask(manager, -9)


@pytest.fixture
def tiered(world: World) -> LogManager:
    """A topic with all records but the newest in the bucket only."""
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 200)
    settle(manager)
    return manager


def test_offsets_over_both_tiers(tiered: LogManager) -> None:
    local_start = ask(tiered, OffsetSpec.EARLIEST_LOCAL).offset
    assert local_start > 0
    send(tiered, 10, start=200)
    assert ask(tiered, OffsetSpec.EARLIEST) == FoundOffset(0, None, 1)
    assert ask(tiered, OffsetSpec.LATEST).offset == 210
    assert ask(tiered, LATEST_TIERED).offset == local_start - 1
    assert ask(tiered, NOW - DAY + 3)[:2] == (3, NOW - DAY + 3)
    assert ask(tiered, NOW - DAY + 205)[:2] == (205, NOW - DAY + 205)


def test_largest_timestamp_is_found_in_either_tier_above_the_log_start(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        early = [Record(b"k", b"v" * 60, time) for time in [NOW - 5, NOW - 9, NOW - 7, NOW - 7, NOW - 8, NOW - 8]]
        for record in early:
            manager.append("t", [record], 0, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        send(manager, 5)
        assert ask(manager, OffsetSpec.MAX_TIMESTAMP)[:2] == (0, NOW - 5)
        manager.maintenance.delete_records({NAME: 1}, now_ms=NOW)
        assert ask(manager, OffsetSpec.MAX_TIMESTAMP)[:2] == (2, NOW - 7)
        assert ask(manager, OffsetSpec.EARLIEST).offset == 1
        manager.maintenance.delete_records({NAME: 5}, now_ms=NOW)
        manager.append("t", [Record(b"k", b"v", NOW - 1)], 0, now_ms=NOW)
        assert ask(manager, OffsetSpec.MAX_TIMESTAMP)[:2] == (111, NOW - 1)


def test_committed_offsets_end_below_an_open_transaction(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        send(manager, 10)
        log = manager.partitions.find(NAME).log
        producer = Producer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer)
        found = manager.list_offsets({NAME: OffsetSpec.LATEST}, isolation=Isolation.READ_COMMITTED)[NAME]
        assert found.offset == 10
        assert manager.list_offsets({NAME: NOW}, isolation=Isolation.READ_COMMITTED)[NAME] is None
        assert ask(manager, OffsetSpec.LATEST).offset == 11


def test_a_marker_is_found_by_time_with_its_own_time_as_in_kafka(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        log = manager.partitions.find(NAME).log
        producer = Producer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer)
        log.append_marker(7, 0, commit=True, now_ms=NOW + 50)
        for spec in (NOW + 1, OffsetSpec.MAX_TIMESTAMP):
            assert manager.list_offsets({NAME: spec})[NAME] == FoundOffset(1, NOW + 50, log.leader_epoch)


def test_unreachable_bucket_raises_for_offsets_of_the_remote_tier(world: World, tiered: LogManager) -> None:
    from manager_world import SwitchableStore

    tiered.close()
    with world.open(store=SwitchableStore(world.store), read_only=True) as manager, pytest.raises(Unavailable):
        ask(manager, LATEST_TIERED)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("latest", -1),
        ("end", -1),
        ("-1", -1),
        ("earliest", -2),
        ("start", -2),
        ("max-timestamp", -3),
        ("earliest-local", -4),
        ("latest-tiered", -5),
        ("-5", -5),
        ("5", 5),
        ("@5", 5),
        ("@-2h", NOW - 7_200_000),
        ("2026-11-20T12:00:00Z", 1_795_176_000_000),
    ],
)
def test_every_spelling_of_an_offset_is_parsed(text: str, spec: int) -> None:
    assert parse_spec(text, NOW) == spec


@pytest.mark.parametrize("text", ["", "newest", "-9", "@", "1.5", "--5", "-", "²", "+5", "9" * 5000])
def test_text_that_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid --time"):
        parse_spec(text, NOW)


def test_get_offsets_prints_all_partitions_or_the_named_ones(tmp_path, monkeypatch, capfd) -> None:
    from tiered.cli.main import invoke

    monkeypatch.chdir(tmp_path)
    assert invoke(["init"]) == 0
    assert invoke(["topic", "create", "a", "-p", "2"]) == 0
    assert invoke(["topic", "create", "b"]) == 0
    (tmp_path / "lines").write_text("".join(f"{at}\n" for at in range(10)))
    assert invoke(["append", "a/1", "lines"]) == 0

    def entries(*words: str) -> list[tuple[str, int, int | None]]:
        capfd.readouterr()
        assert invoke(["get-offsets", *words, "-o", "jsonl"]) == 0
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        return [(entry["topic"], entry["partition"], entry["offset"]) for entry in found]

    assert entries() == [("a", 0, 0), ("a", 1, 10), ("b", 0, 0)]
    assert entries("a/1", "b", "a/1", "--time", "earliest") == [("a", 1, 0), ("b", 0, 0)]
    assert entries("a", "--time", "@-1h") == [("a", 0, None), ("a", 1, 0)]
    assert entries("a/1", "--committed") == [("a", 1, 10)]
    assert invoke(["get-offsets", "a"]) == 0
    assert invoke(["get-offsets", "nope"]) == 1
    assert invoke(["get-offsets", "a", "--time", "soon"]) == 2
