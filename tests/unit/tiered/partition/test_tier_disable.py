"""A tier that is switched off with `remote.log.delete.on.disable`: what is given up, what stays, whatever fails."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from disk_model import PowerCut
from fault_store import Fault, FaultStore, Killed
from manager_world import COMPACTED, HOUR, NAME, NOW, TIERED, MuteStore, World, send, settle, values

from local.errors import InvalidRequest, LogError, OffsetOutOfRange, Unavailable
from local.format.record import Record
from local.records.offset_spec import OffsetSpec
from policies.decisions import DropLocal, Plan
from remote.manifest import commit_protocol
from remote.manifest.manifest import Head
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.page_spill import SpillRule
from remote.store import ObjectStore
from tiered.cli.main import invoke
from tiered.manager.manager import LogManager
from tiered.partition import tier_disable
from tiered.partition.partition import Partition
from tiered.partition.tier_disable import give_up
from tiered.read.bucket_reader import RemoteLog
from tiered.read.offset_listing import LATEST_TIERED

GRACE = {**TIERED, "remote.log.delete.grace.ms": "2h"}
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
ON = {"remote.storage.enable": "true"}


@pytest.fixture
def world() -> World:
    return World()


def filled(world: World, properties: dict[str, str] = GRACE) -> LogManager:
    """300 records, most of them in the bucket alone, and 20 that are only on the disk."""
    manager = world.open()
    manager.create_topic("t", 1, properties, now_ms=NOW)
    send(manager, 300)
    settle(manager)
    send(manager, 20, start=300)
    return manager


def head_of(manager: LogManager) -> Head:
    head = manager.partitions()[0].head()
    assert head is not None
    return head


def data_objects(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("") if "/data/" in info.key or "/view/" in info.key}


def read(manager: LogManager) -> list[int]:
    return [offset for offset, _ in values(manager.reader(), manager.reader().offsets(NAME)[0])]


def test_the_log_begins_where_the_disk_does_and_the_bytes_go_after_the_grace_time(world: World) -> None:
    with filled(world) as manager:
        first = manager.partitions()[0].log.local_log_start_offset
        assert 0 < first <= 300
        manager.alter_topic("t", OFF, now_ms=NOW)
        settle(manager)
        assert manager.reader().offsets(NAME) == (first, 320)
        assert read(manager) == list(range(first, 320))
        with pytest.raises(OffsetOutOfRange):
            values(manager.reader(), first - 1)
        assert data_objects(world.store), "readers have their grace time"
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        send(manager, 200, start=320)
        manager.roll("t", now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set(), "nothing is copied any more"
        assert read(manager) == list(range(first, 520))
    with world.open() as manager:
        assert read(manager) == list(range(first, 520))


def test_what_both_tiers_hold_stays_on_the_disk(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        assert head_of(manager).has_rows
        manager.alter_topic("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        assert read(manager) == list(range(320))


def test_then_retention_is_that_of_a_log_on_the_disk_alone(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        manager.alter_topic("t", {**OFF, "retention.bytes": "4000"}, now_ms=NOW)
        for _ in range(3):
            settle(manager, NOW + 3 * HOUR)
        log = manager.partitions()[0].log
        assert manager.reader().offsets(NAME)[0] == log.local_log_start_offset > 0
        assert sum(each.size_bytes for each in log.segments()) < 6500
        assert read(manager) == list(range(log.log_start_offset, 320))


@pytest.mark.parametrize("how", ["not allowed", "by a default", "by an override"])
def test_it_takes_an_altered_topic_and_the_word_that_allows_it(world: World, how: str) -> None:
    with filled(world) as manager:
        before = data_objects(world.store)
        with pytest.raises(InvalidRequest, match=r"delete\.on\.disable"):
            manager.alter_topic("t", {"remote.storage.enable": "false"}, now_ms=NOW)
    if how == "by an override":
        settings = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
        with world.open(**settings) as manager:
            settle(manager, NOW + 9 * HOUR)
    elif how == "by a default":
        with world.open() as manager:
            manager.alter_topic("t", {"remote.log.delete.on.disable": "true"}, now_ms=NOW)
            with pytest.raises(InvalidRequest, match="on the topic itself"):
                manager.alter_topic("t", {"remote.storage.enable": ""}, now_ms=NOW)
    with world.open() as manager:
        settle(manager)
        assert before <= data_objects(world.store)
        assert read(manager) == list(range(320))


def test_switched_on_again_it_copies_everything_anew_from_the_log_start(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        old = data_objects(world.store)
        manager.alter_topic("t", OFF, now_ms=NOW)
        manager.tick(NOW)
        assert head_of(manager).given_up, "in the middle of it"
        manager.alter_topic("t", ON, now_ms=NOW)
        settle(manager)
        assert not head_of(manager).given_up
        assert head_of(manager).segments[0].base_offset == 0
        manager.alter_topic("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        new = data_objects(world.store)
        assert new
        assert not new & old
        assert read(manager) == list(range(320))
    with world.open(disk=world.other_disk()) as manager:
        assert read(manager) == list(range(manager.reader().offsets(NAME)[1]))


def test_a_reader_with_an_older_head_reads_on_and_a_new_one_finds_an_empty_tier(world: World) -> None:
    with filled(world) as manager:
        view = RemoteLog(world.store)
        start, end = view.reader().offsets(NAME)
        manager.alter_topic("t", OFF, now_ms=NOW)
        settle(manager, NOW + HOUR)
        assert len(values(view.reader(), start, end)) == end
        fresh = RemoteLog(world.store)
        first = manager.partitions()[0].log.local_log_start_offset
        assert fresh.reader().offsets(NAME) == (first, first)
        assert values(fresh.reader(), first) == []


def test_rows_that_were_given_up_are_found_by_nobody_though_they_are_still_there(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        manager.alter_topic("t", OFF, now_ms=NOW)
        manager.tick(NOW)
        assert head_of(manager).given_up
        assert head_of(manager).log_start_offset == 0
        bucket = RemoteLog(world.store).reader()
        assert bucket.offsets(NAME) == (0, 0)
        assert bucket.offset_for_timestamp(NAME, 0) is None
        index = MetadataIndex(head_of(manager), lambda spill: ())
        assert list(index.rows()) == []
        assert index.find_by_offset(0) is None
        assert read(manager) == list(range(320))


def test_offsets_that_were_in_the_bucket_are_given_to_nothing_else_even_on_a_new_disk(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        reached = head_of(manager).next_offset
        manager.alter_topic("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert manager.list_offsets({NAME: LATEST_TIERED})[NAME].offset == reached - 1  # type: ignore[union-attr]
    lost = world.other_disk()
    for _ in range(2):
        with world.open(disk=lost) as manager:
            assert manager.problems == {}
            assert manager.partitions()[0].log.next_offset >= reached
            settle(manager)
            assert manager.reader().offsets(NAME) == (reached, reached)
    with world.open(disk=lost) as manager:
        manager.append("t", [Record(b"k", b"v", NOW)], 0, now_ms=NOW)
        assert read(manager) == [reached]
        earliest = manager.list_offsets({NAME: OffsetSpec.EARLIEST})[NAME]
        assert earliest is not None
        assert earliest.offset == reached


def test_a_compacted_topic_loses_its_tier_and_its_view_and_is_still_cleaned(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, {**COMPACTED, "remote.log.delete.grace.ms": "2h"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 100, start=300)
        manager.alter_topic("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        send(manager, 100, start=400)
        manager.roll("t", now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        newest = {b"k%d" % (at % 9): b"value %d" % at for at in range(500)}
        found = values(manager.reader(), manager.reader().offsets(NAME)[0])
        assert {value for _, value in found} >= set(newest.values())
        assert len(found) < 100


# --- every effect and every call is the last one ----------------------------------------------------------------------


def _switch_off(world: World, store: object) -> None:
    manager = world.open(store=store)  # type: ignore[arg-type]
    manager.alter_topic("t", OFF, now_ms=NOW)
    for hours in (0, 3):
        for _ in range(8):
            manager.tick(NOW + hours * HOUR)
    manager.close()


def _prepared() -> tuple[World, int]:
    world = World()
    with filled(world) as manager:
        manager.roll("t", now_ms=NOW)
        return world, manager.partitions()[0].log.local_log_start_offset


def _check_after(world: World, first: int) -> None:
    """Either it was never wished for, or the next start finishes what was begun; what the disk had is there."""
    world.disk.locks.clear()
    with world.open() as manager:
        assert manager.problems == {}
        found = read(manager)
        assert found in (list(range(320)), list(range(first, 320)))
        if manager.topic("t").properties.get("remote.storage.enable") == "true":
            assert found[0] == 0, "given up without the wish"
            manager.alter_topic("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 9 * HOUR)
        assert read(manager) == list(range(first, 320))
        head = head_of(manager)
        assert (head.parts, head.unlinked, head.unlinked_pages, head.given_up) == ((), (), (), False)


def test_a_power_cut_at_any_effect_leaves_what_the_next_start_finishes() -> None:
    whole, _ = _prepared()
    begun = whole.disk.effects
    _switch_off(whole, whole.store)
    effects = whole.disk.effects - begun
    assert effects > 10
    for at in range(1, effects + 1):
        world, first = _prepared()
        world.disk.cut_at, world.disk.cut_before = world.disk.effects + at, at % 2 == 0
        with suppress(PowerCut):
            _switch_off(world, world.store)
        world.disk = world.disk.crash(random.Random(at))
        _check_after(world, first)


@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE_3, Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_any_call_to_the_store_may_fail(monkeypatch: pytest.MonkeyPatch, fault: Fault, in_pages: bool) -> None:
    if in_pages:
        rule = SpillRule(head_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_rows_min=1)
        monkeypatch.setattr(commit_protocol, "SPILL_RULE", rule)
    whole, _ = _prepared()
    rehearsal = FaultStore(whole.store)
    _switch_off(whole, rehearsal)
    for at in range(len(rehearsal.calls)):
        world, first = _prepared()
        store = FaultStore(world.store, at, fault)
        with suppress(Killed, LogError):
            _switch_off(world, store)
        store.deliver(1 << 60)
        _check_after(world, first)


def test_the_command_asks_before_it_gives_a_tier_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n')
    (tmp_path / "bucket").mkdir()
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-X", "remote.storage.enable=true"]) == 0
    off = [*words, "topic", "alter", "t", *(word for name, value in OFF.items() for word in ("-X", f"{name}={value}"))]
    assert invoke([*off]) == 2
    assert "for good? say --yes" in capfd.readouterr().err
    assert invoke([*words, "topic", "alter", "t", "-X", "retention.ms=1d"]) == 0, "nothing else is asked about"
    assert invoke([*off, "--yes"]) == 0


def test_nothing_leaves_the_disk_while_it_is_not_known_whether_the_tier_was_given_up(world: World) -> None:
    """It was, the answer was lost, and the topic is switched on again: what the bucket had counts for nothing."""
    store = MuteStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.create_topic("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        held, topic = manager.partition(NAME), manager.topic("t")
        store.is_armed = True
        with suppress(Unavailable):
            give_up(replace_rules(held), lambda: manager._directory.of(NAME), 0, now_ms=NOW)
        assert store.is_mute
        manager.alter_topic("t", {**topic.properties, "local.retention.ms": "1ms"}, now_ms=NOW)
        manager.tick(NOW)
        assert held.log.segments()[0].base_offset == 0
        store.is_armed = store.is_mute = False
        settle(manager)
        assert len(values(manager.reader())) == 300


def test_nothing_leaves_the_disk_between_the_look_and_the_commit_that_gives_the_tier_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is free by then, for nobody is to wait for the store at it."""
    with world.open() as manager:
        manager.create_topic("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        held = manager.partition(NAME)
        plan = Plan(now_ms=NOW, decisions={NAME: drops_of(held)})
        real, dropped = tier_disable.give_up_tier, []

        def overtaken(**facts: int) -> object:
            turn = threading.Thread(target=lambda: dropped.append(manager.drop_early(plan)))
            turn.start()
            turn.join()
            return real(**facts)

        monkeypatch.setattr(tier_disable, "give_up_tier", overtaken)
        manager.alter_topic("t", OFF, now_ms=NOW)
        manager.tick(NOW, waits=False)
        assert manager.wait_for_tasks(30.0)
        assert [each.done for each in dropped[0].values()] == [()]
        assert head_of(manager).log_start_offset == 0
        assert read(manager) == list(range(300))


@pytest.mark.parametrize("settled_after", [1, 2, 3])
def test_nothing_leaves_the_disk_by_a_look_from_before_it_was_known_that_the_tier_was_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch, settled_after: int
) -> None:
    """The answer of that commit was lost, and it is settled between a look at the head and the drop that it is for."""
    real, store, looks = Partition.snapshot, MuteStore(world.store), 0
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.create_topic("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        held = manager.partition(NAME)
        plan = Plan(now_ms=NOW, decisions={NAME: drops_of(held)})
        store.is_armed = True
        with suppress(Unavailable):
            give_up(replace_rules(held), lambda: manager._directory.of(NAME), 0, now_ms=NOW)
        store.is_armed = store.is_mute = False

        def look(asked: Partition, *args: object, **more: object) -> object:
            nonlocal looks
            found = real(asked, *args, **more)  # type: ignore[arg-type]
            looks += 1
            if looks == settled_after:
                turn = threading.Thread(target=manager._opener.take_up, args=(held, NOW))
                turn.start()
                turn.join()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Partition, "snapshot", look)
            manager.drop_early(plan)
        manager._opener.take_up(held, NOW)
        assert looks > 0
        assert head_of(manager).given_up
        assert len(values(manager.reader())) == 300


def test_switched_on_again_it_takes_no_upload_for_whole_that_went_with_the_tier(world: World) -> None:
    """Its commit had no answer, so it was kept in mind for another try; it was a row by then, and was given up."""
    store = MuteStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.create_topic("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        store.is_armed = True
        manager.tick(NOW)
        assert store.is_mute
        store.is_armed = store.is_mute = False
        settle(manager)
        assert head_of(manager).has_rows
        manager.alter_topic("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        manager.alter_topic("t", ON, now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        upto = head_of(manager).next_offset
        assert upto > 200
        assert [offset for offset, _ in values(RemoteLog(world.store).reader(), 0, upto)] == list(range(upto))


def test_a_wish_that_is_taken_back_while_its_commit_waits_is_not_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most records are in the bucket alone. Another commit may hold this one up for as long as a store hangs."""
    with filled(world) as manager:
        real, back = tier_disable.give_up_tier, []

        def held_up(**facts: int) -> object:
            turn = threading.Thread(target=lambda: back.append(manager.alter_topic("t", ON, now_ms=NOW)))
            turn.start()
            turn.join()
            return real(**facts)

        monkeypatch.setattr(tier_disable, "give_up_tier", held_up)
        manager.alter_topic("t", OFF, now_ms=NOW)
        manager.tick(NOW, waits=False)
        assert manager.wait_for_tasks(60.0)
        assert len(back) == 1, "it was altered while the commit waited"
        settle(manager)
        assert head_of(manager).has_rows
        assert read(manager) == list(range(320))


def drops_of(held: Partition) -> list[DropLocal]:
    """Of all its sealed segments."""
    return [
        DropLocal(base_offset=each.base_offset, next_offset=each.next_offset, size_bytes=each.size_bytes, reason="")
        for each in held.log.segments()
        if not each.is_active
    ]


def replace_rules(held: Partition) -> Partition:
    """As while its topic is switched off."""
    held.rules = replace(held.rules, gives_up_remote=True)
    return held
