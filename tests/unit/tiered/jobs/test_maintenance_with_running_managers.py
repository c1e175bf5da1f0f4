"""Rewrite, scrub and GC of a bucket while a manager works on it: neither undoes the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import COMPACTED, DAY, NAME, NOW, TIERED, World, send, settle

from local.errors import Fenced, NotFound
from remote.manifest.catalog import RemotePartitionName, chosen_partitions
from remote.manifest.commit_protocol import MetadataLog
from tiered.health.repair_sources import LocalCopies
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.jobs.orphan_deletion import delete_garbage, list_garbage
from tiered.jobs.rewriting import commit_groups, plan_merge, plan_recode, rewrite_group, run_rewrite
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog


def _name(world: World) -> RemotePartitionName:
    (name,) = chosen_partitions(world.store)
    return name


def _merge(world: World) -> int:
    plan = plan_merge(world.store, _name(world), now_ms=NOW, target_bytes=7000)
    return run_rewrite(world.store, plan, now_ms=lambda: NOW).rows_before


def _newest(reader) -> dict[bytes | None, bytes | None]:
    start, end = reader.offsets(NAME)
    return {record.key: record.value for record in reader.records(NAME, start, end)}


def _entries(world: World) -> int:
    return MetadataLog(world.store, _name(world).prefix).refresh().segment_count


@pytest.mark.parametrize("settings", [TIERED, COMPACTED], ids=["deleted", "compacted"])
def test_maintenance_and_rewrites_in_turn_lose_no_record(settings: dict[str, str]) -> None:
    """Copies, cleaning and retention alternate with merges and recodes.
    All expected records stay readable."""
    world = World()
    sent: dict[bytes | None, bytes | None] = {}
    with world.open() as manager:
        manager.topics.create("t", 1, settings, now_ms=NOW)
        merged = 0
        for turn in range(4):
            sent |= {record.key: record.value for record in send(manager, 200, start=200 * turn)}
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
            merged += _merge(world)
            settle(manager)
            codec = ("zstd", "none")[turn % 2]
            plan = plan_recode(world.store, _name(world), now_ms=NOW, codec=codec)
            run_rewrite(world.store, plan, now_ms=lambda: NOW)
            settle(manager, NOW + turn)
            assert _newest(manager.reader()) == sent
            assert _newest(RemoteLog(world.store).reader()) == sent
        assert merged > 4 or settings is COMPACTED
    with world.open(disk=world.other_disk()) as other:
        assert _newest(other.reader()) == sent


def test_retention_and_deletion_work_on_merged_segments() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
        send(manager, 400)
        settle(manager)
        before = _entries(world)
        assert _merge(world) > 2
        assert _entries(world) < before
        manager.maintenance.delete_records({NAME: 150}, now_ms=NOW)
        settle(manager)
        settle(manager, NOW + DAY)
        manifest = manager.partitions.all()[0].manifest()
        assert manifest is not None
        assert manifest.pending_deletes == ()
        start, end = RemoteLog(world.store).reader().offsets(NAME)
        assert start == 150
        found = [record.offset for record in RemoteLog(world.store).reader().records(NAME, start)]
        assert found == list(range(start, end))


def test_rewrite_is_fenced_by_a_starting_manager_and_its_objects_become_orphans() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    plan = plan_merge(world.store, _name(world), now_ms=NOW, target_bytes=7000)
    done = [rewrite_group(plan, group, world.store) for group in plan.groups]
    with world.open() as manager:
        with pytest.raises(Fenced):
            commit_groups(world.store, plan, done, turn=1, now_ms=NOW)
        made = {entry.data_key for each in done if each.replacement is not None for entry in each.replacement.entries}
        later = NOW + 400 * DAY * 100
        listed = list_garbage(world.store, [_name(world)], now_ms=later)
        assert made <= {each.key for each in listed.entries}
        assert len(listed.entries) == 2 * len(made)
        assert len(delete_garbage(world.store, listed, now_ms=later).entries) == len(listed.entries)
        send(manager, 100, start=300)
        settle(manager)
        assert _merge(world) > 0
        settle(manager)


def test_scrub_during_maintenance_reports_no_damage() -> None:
    """Segments expire, are merged and deleted between the plan, the reads and the report of the scrub."""
    world = World()

    def work(manager: LogManager, turn: int) -> None:
        send(manager, 60, start=300 + 60 * turn)
        manager.maintenance.delete_records({NAME: 40 * (turn + 1)}, now_ms=NOW)
        settle(manager)
        _merge(world)
        settle(manager, NOW + turn * DAY)

    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.log.delete.grace.ms": "0"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        for turn in range(5):
            plan = plan_scrub(world.store, [_name(world)], deep=True)
            work(manager, turn)
            results = run_scrub(world.store, plan, threads=1)
            assert results is not None
            report = report_of(world.store, plan, results, started_ms=NOW, now_ms=NOW)
            assert report.of("corrupt") == []


def test_local_copies_open_the_directory_on_first_use_and_ignore_its_errors() -> None:
    world, opened = World(), []
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    entries = list(MetadataLog(world.store, _name(world).prefix).refresh().segments)

    def open_manager() -> LogManager:
        opened.append(1)
        return world.open(read_only=True)

    def fails() -> LogManager:
        raise NotFound("cannot open a directory, it does not exist")

    with LocalCopies(open_manager) as copies:
        assert opened == []
        assert copies(_name(world), entries[0])
        assert not copies(_name(world), replace(entries[0], data_crc32c=1))
        assert not copies(replace(_name(world), topic_id="Z" * 22), entries[0])
        assert opened == [1]
    with LocalCopies(fails) as copies:
        assert not copies(_name(world), entries[0])
