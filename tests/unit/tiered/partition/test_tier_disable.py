"""Tier disabled with `remote.log.delete.on.disable`: which data is deleted, which stays, under every failure."""

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
from run_profile import each_call

from local.errors import InvalidRequest, LogError, OffsetOutOfRange, Unavailable
from local.format.record import Record
from local.records.offset_spec import OffsetSpec
from policies.decisions import DropLocal, Plan
from remote.manifest import commit_protocol
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.page_out import PageRule
from remote.store import ObjectStore
from tiered.cli.main import invoke
from tiered.manager.manager import LogManager
from tiered.partition import partition as partition_module
from tiered.partition.partition import Partition, disable_tier_of
from tiered.read.bucket_reader import RemoteLog
from tiered.read.offset_listing import LATEST_TIERED

GRACE = {**TIERED, "remote.log.delete.grace.ms": "2h"}
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
ON = {"remote.storage.enable": "true"}


@pytest.fixture
def world() -> World:
    return World()


def filled(world: World, properties: dict[str, str] = GRACE) -> LogManager:
    """300 records, most of them in the bucket only, and 20 records on the disk only."""
    manager = world.open()
    manager.topics.create("t", 1, properties, now_ms=NOW)
    send(manager, 300)
    settle(manager)
    send(manager, 20, start=300)
    return manager


def head_of(manager: LogManager) -> Manifest:
    manifest = manager.partitions.all()[0].manifest()
    assert manifest is not None
    return manifest


def data_objects(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("") if "/data/" in info.key or "/view/" in info.key}


def read(manager: LogManager) -> list[int]:
    return [offset for offset, _ in values(manager.reader(), manager.reader().offsets(NAME)[0])]


def test_disabled_tier_raises_the_log_start_and_deletes_after_the_grace_period(world: World) -> None:
    with filled(world) as manager:
        first = manager.partitions.all()[0].log.local_log_start_offset
        assert 0 < first <= 300
        manager.topics.alter("t", OFF, now_ms=NOW)
        settle(manager)
        assert manager.reader().offsets(NAME) == (first, 320)
        assert read(manager) == list(range(first, 320))
        with pytest.raises(OffsetOutOfRange):
            values(manager.reader(), first - 1)
        assert data_objects(world.store), "the objects must stay for readers until the grace period ends"
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        send(manager, 200, start=320)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set(), "no segment may be copied to a disabled tier"
        assert read(manager) == list(range(first, 520))
    with world.open() as manager:
        assert read(manager) == list(range(first, 520))


def test_records_in_both_tiers_stay_on_the_disk(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        assert head_of(manager).has_entries
        manager.topics.alter("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        assert read(manager) == list(range(320))


def test_retention_after_a_disable_is_that_of_a_local_log(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        manager.topics.alter("t", {**OFF, "retention.bytes": "4000"}, now_ms=NOW)
        for _ in range(3):
            settle(manager, NOW + 3 * HOUR)
        log = manager.partitions.all()[0].log
        assert manager.reader().offsets(NAME)[0] == log.local_log_start_offset > 0
        assert sum(each.size_bytes for each in log.segments()) < 6500
        assert read(manager) == list(range(log.log_start_offset, 320))


@pytest.mark.parametrize("how", ["not allowed", "by a default", "by an override"])
def test_disable_needs_an_altered_topic_and_delete_on_disable(world: World, how: str) -> None:
    with filled(world) as manager:
        before = data_objects(world.store)
        with pytest.raises(InvalidRequest, match=r"delete\.on\.disable"):
            manager.topics.alter("t", {"remote.storage.enable": "false"}, now_ms=NOW)
    if how == "by an override":
        settings = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
        with world.open(**settings) as manager:
            settle(manager, NOW + 9 * HOUR)
    elif how == "by a default":
        with world.open() as manager:
            manager.topics.alter("t", {"remote.log.delete.on.disable": "true"}, now_ms=NOW)
            with pytest.raises(InvalidRequest, match="on the topic to delete"):
                manager.topics.alter("t", {"remote.storage.enable": ""}, now_ms=NOW)
    with world.open() as manager:
        settle(manager)
        assert before <= data_objects(world.store)
        assert read(manager) == list(range(320))


def test_reenabled_tier_copies_the_log_again_from_its_start(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        old = data_objects(world.store)
        manager.topics.alter("t", OFF, now_ms=NOW)
        manager.tick(NOW)
        assert head_of(manager).tier_disabled, "the disable must be under way"
        manager.topics.alter("t", ON, now_ms=NOW)
        settle(manager)
        assert not head_of(manager).tier_disabled
        assert head_of(manager).segments[0].base_offset == 0
        manager.topics.alter("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        new = data_objects(world.store)
        assert new
        assert not new & old
        assert read(manager) == list(range(320))
    with world.open(disk=world.other_disk()) as manager:
        assert read(manager) == list(range(manager.reader().offsets(NAME)[1]))


def test_reader_with_an_older_manifest_reads_on_and_a_new_reader_sees_none(world: World) -> None:
    with filled(world) as manager:
        view = RemoteLog(world.store)
        start, end = view.reader().offsets(NAME)
        manager.topics.alter("t", OFF, now_ms=NOW)
        settle(manager, NOW + HOUR)
        assert len(values(view.reader(), start, end)) == end
        fresh = RemoteLog(world.store)
        first = manager.partitions.all()[0].log.local_log_start_offset
        assert fresh.reader().offsets(NAME) == (first, first)
        assert values(fresh.reader(), first) == []


def test_entries_of_a_disabled_tier_are_not_read_before_their_deletion(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        manager.topics.alter("t", OFF, now_ms=NOW)
        manager.tick(NOW)
        assert head_of(manager).tier_disabled
        assert head_of(manager).log_start_offset == 0
        bucket = RemoteLog(world.store).reader()
        assert bucket.offsets(NAME) == (0, 0)
        assert bucket.offset_for_timestamp(NAME, 0) is None
        index = MetadataIndex(head_of(manager), lambda page: ())
        assert list(index.entries()) == []
        assert index.find_by_offset(0) is None
        assert read(manager) == list(range(320))


def test_offsets_of_a_disabled_tier_are_not_reused_even_on_a_new_disk(world: World) -> None:
    with filled(world, {**GRACE, "local.retention.ms": "-2"}) as manager:
        reached = head_of(manager).next_offset
        manager.topics.alter("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert manager.list_offsets({NAME: LATEST_TIERED})[NAME].offset == reached - 1  # type: ignore[union-attr]
    lost = world.other_disk()
    for _ in range(2):
        with world.open(disk=lost) as manager:
            assert manager.problems == {}
            assert manager.partitions.all()[0].log.next_offset >= reached
            settle(manager)
            assert manager.reader().offsets(NAME) == (reached, reached)
    with world.open(disk=lost) as manager:
        manager.append("t", [Record(b"k", b"v", NOW)], 0, now_ms=NOW)
        assert read(manager) == [reached]
        earliest = manager.list_offsets({NAME: OffsetSpec.EARLIEST})[NAME]
        assert earliest is not None
        assert earliest.offset == reached


def test_disable_deletes_tier_and_view_of_a_compacted_topic_that_stays_cleaned(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**COMPACTED, "remote.log.delete.grace.ms": "2h"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 100, start=300)
        manager.topics.alter("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        send(manager, 100, start=400)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        newest = {b"k%d" % (at % 9): b"value %d" % at for at in range(500)}
        found = values(manager.reader(), manager.reader().offsets(NAME)[0])
        assert {value for _, value in found} >= set(newest.values())
        assert len(found) < 100


# --- failures at every disk effect and every store call -------------------------------------------------------------


def _switch_off(world: World, store: object) -> None:
    manager = world.open(store=store)  # type: ignore[arg-type]
    manager.topics.alter("t", OFF, now_ms=NOW)
    for hours in (0, 3):
        for _ in range(8):
            manager.tick(NOW + hours * HOUR)
    manager.close()


def _prepared() -> tuple[World, int]:
    world = World()
    with filled(world) as manager:
        manager.partitions.roll("t", now_ms=NOW)
        return world, manager.partitions.all()[0].log.local_log_start_offset


def _check_after(world: World, first: int) -> None:
    """Check that the disable was not recorded, or that the next start completes it. Local records are unchanged."""
    world.disk.locks.clear()
    with world.open() as manager:
        assert manager.problems == {}
        found = read(manager)
        assert found in (list(range(320)), list(range(first, 320)))
        if manager.topics.get("t").properties.get("remote.storage.enable") == "true":
            assert found[0] == 0, "the tier must not be disabled before the topic is altered"
            manager.topics.alter("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 9 * HOUR)
        assert read(manager) == list(range(first, 320))
        manifest = head_of(manager)
        assert (manifest.parts, manifest.pending_deletes, manifest.pending_page_deletes, manifest.tier_disabled) == (
            (),
            (),
            (),
            False,
        )


def test_power_cut_at_any_disk_effect_is_completed_by_the_next_start() -> None:
    whole, _ = _prepared()
    begun = whole.disk.effects
    _switch_off(whole, whole.store)
    effects = whole.disk.effects - begun
    assert effects > 10
    for at in each_call(range(1, effects + 1)):
        world, first = _prepared()
        world.disk.cut_at, world.disk.cut_before = world.disk.effects + at, at % 2 == 0
        with suppress(PowerCut):
            _switch_off(world, world.store)
        world.disk = world.disk.crash(random.Random(at))
        _check_after(world, first)


@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE_3, Fault.KILL_BEFORE, Fault.KILL_AFTER])
def test_disable_survives_a_failure_of_any_store_call(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, in_pages: bool
) -> None:
    if in_pages:
        rule = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=1)
        monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    whole, _ = _prepared()
    rehearsal = FaultStore(whole.store)
    _switch_off(whole, rehearsal)
    for at in each_call(range(len(rehearsal.calls)), fault, in_pages):
        world, first = _prepared()
        store = FaultStore(world.store, at, fault)
        with suppress(Killed, LogError):
            _switch_off(world, store)
        store.deliver(1 << 60)
        _check_after(world, first)


def test_command_asks_for_confirmation_before_it_disables_a_tier(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n')
    (tmp_path / "bucket").mkdir()
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-X", "remote.storage.enable=true"]) == 0
    off = [*words, "topic", "alter", "t", *(word for name, value in OFF.items() for word in ("-X", f"{name}={value}"))]
    assert invoke([*off]) == 2
    assert "permanently? add --yes" in capfd.readouterr().err
    assert invoke([*words, "topic", "alter", "t", "-X", "retention.ms=1d"]) == 0, (
        "other settings must need no confirmation"
    )
    assert invoke([*off, "--yes"]) == 0


def test_no_segment_is_dropped_while_the_commit_of_a_disable_is_in_doubt(world: World) -> None:
    """A drop needs a manifest that is known to be current:

    1. The disable is committed, and its answer is lost.
    2. The topic is enabled again.
    3. No segment is dropped, because the entries in the bucket no longer count.
    """
    store = MuteStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        held, topic = manager.partitions.find(NAME), manager.topics.get("t")
        store.is_armed = True
        with suppress(Unavailable):
            disable_tier_of(replace_rules(held), lambda: manager.directories.of(NAME), 0, now_ms=NOW)
        assert store.is_mute
        manager.topics.alter("t", {**topic.properties, "local.retention.ms": "1ms"}, now_ms=NOW)
        manager.tick(NOW)
        assert held.log.segments()[0].base_offset == 0
        store.is_armed = store.is_mute = False
        settle(manager)
        assert len(values(manager.reader())) == 300


def test_no_segment_is_dropped_between_the_snapshot_and_the_disable_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition lock is free at this point, because no thread may wait for the store while it holds the lock."""
    with world.open() as manager:
        manager.topics.create("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        held = manager.partitions.find(NAME)
        plan = Plan(now_ms=NOW, decisions={NAME: drops_of(held)})
        real, dropped = partition_module.disable_tier, []

        def overtaken(**facts: int) -> object:
            turn = threading.Thread(target=lambda: dropped.append(manager.maintenance.drop_early(plan)))
            turn.start()
            turn.join()
            return real(**facts)

        monkeypatch.setattr(partition_module, "disable_tier", overtaken)
        manager.topics.alter("t", OFF, now_ms=NOW)
        manager.tick(NOW, waits=False)
        assert manager.maintenance.tasks.wait_idle(30.0)
        assert [each.done for each in dropped[0].values()] == [()]
        assert head_of(manager).log_start_offset == 0
        assert read(manager) == list(range(300))


@pytest.mark.parametrize("settled_after", [1, 2, 3])
def test_no_segment_is_dropped_by_a_snapshot_older_than_the_disable(
    world: World, monkeypatch: pytest.MonkeyPatch, settled_after: int
) -> None:
    """The answer of the disable commit was lost. It is resolved between a snapshot and the drop that the snapshot
    allows."""
    real, store, looks = Partition.snapshot, MuteStore(world.store), 0
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        held = manager.partitions.find(NAME)
        plan = Plan(now_ms=NOW, decisions={NAME: drops_of(held)})
        store.is_armed = True
        with suppress(Unavailable):
            disable_tier_of(replace_rules(held), lambda: manager.directories.of(NAME), 0, now_ms=NOW)
        store.is_armed = store.is_mute = False

        def look(asked: Partition, *args: object, **more: object) -> object:
            nonlocal looks
            found = real(asked, *args, **more)  # type: ignore[arg-type]
            looks += 1
            if looks == settled_after:
                turn = threading.Thread(target=manager.opener.acquire, args=(held, NOW))
                turn.start()
                turn.join()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Partition, "snapshot", look)
            manager.maintenance.drop_early(plan)
        manager.opener.acquire(held, NOW)
        assert looks > 0
        assert head_of(manager).tier_disabled
        assert len(values(manager.reader())) == 300


def test_reenabled_tier_reuses_no_upload_that_the_disable_deleted(world: World) -> None:
    """An upload in doubt must not be reused after a disable:

    1. The commit of an upload has no answer, so the writer remembers the upload for a retry.
    2. The upload is in fact an entry, and the disable deletes it.
    3. The reenabled tier uploads the segment again.
    """
    store = MuteStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        store.is_armed = True
        manager.tick(NOW)
        assert store.is_mute
        store.is_armed = store.is_mute = False
        settle(manager)
        assert head_of(manager).has_entries
        manager.topics.alter("t", OFF, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + 3 * HOUR)
        assert data_objects(world.store) == set()
        manager.topics.alter("t", ON, now_ms=NOW)
        settle(manager, NOW + 3 * HOUR)
        upto = head_of(manager).next_offset
        assert upto > 200
        assert [offset for offset, _ in values(RemoteLog(world.store).reader(), 0, upto)] == list(range(upto))


def test_disable_that_is_reverted_before_its_commit_is_not_applied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most records are in the bucket only. A hanging store delays the commit of the disable behind another commit."""
    with filled(world) as manager:
        real, back = partition_module.disable_tier, []

        def held_up(**facts: int) -> object:
            turn = threading.Thread(target=lambda: back.append(manager.topics.alter("t", ON, now_ms=NOW)))
            turn.start()
            turn.join()
            return real(**facts)

        monkeypatch.setattr(partition_module, "disable_tier", held_up)
        manager.topics.alter("t", OFF, now_ms=NOW)
        manager.tick(NOW, waits=False)
        assert manager.maintenance.tasks.wait_idle(60.0)
        assert len(back) == 1, "the topic must have been altered while the commit waited"
        settle(manager)
        assert head_of(manager).has_entries
        assert read(manager) == list(range(320))


def drops_of(held: Partition) -> list[DropLocal]:
    """A drop of each closed segment."""
    return [
        DropLocal(base_offset=each.base_offset, next_offset=each.next_offset, size_bytes=each.size_bytes, reason="")
        for each in held.log.segments()
        if not each.is_active
    ]


def replace_rules(held: Partition) -> Partition:
    """The partition with the rules of a disabled tier."""
    held.rules = replace(held.rules, gives_up_remote=True)
    return held
