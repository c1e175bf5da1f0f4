"""A repair replaces a damaged object in every partition that names it.
A fork is repaired from its source, and a source from its fork."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from checked_bucket import check_bucket, damage
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle

from local.format.record import StoredRecord
from local.log import Log
from local.names import TopicPartition
from remote.keys import full_key
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment
from tiered.health.repair import RepairPlan, plan_repair, put_in_place, run_repair
from tiered.health.repair_sources import LocalCopies, Relatives, from_bucket
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.health.scrub_report import ScrubReport
from tiered.manager.manager import LogManager
from tiered.migrate.fork import plan_fork, run_fork
from tiered.read.bucket_reader import RemoteLog

FORK, SECOND = TopicPartition("f", 0), TopicPartition("g", 0)


def _fork(store: ObjectStore, source: str, fork: str) -> None:
    there = list_partitions(store)
    names = [name for name in there if name.topic == source]
    run_fork(store, plan_fork(store, names, fork, known=[]), now_ms=lambda: NOW)


def _read(store: ObjectStore, partition: TopicPartition) -> list[StoredRecord]:
    bucket = RemoteLog(store).reader()
    return list(bucket.records(partition, bucket.offsets(partition)[0]))


def _world(**settings: str) -> World:
    """A topic, its fork `f`, and the fork `g` of `f`. The local tier has all copied segments."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-1", **settings}, now_ms=NOW)
        send(manager, 200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    _fork(world.store, "t", "f")
    _fork(world.store, "f", "g")
    return world


def _name(store: ObjectStore, topic: str) -> RemotePartitionName:
    return next(name for name in list_partitions(store) if name.topic == topic)


def _entry(store: ObjectStore, topic: str, at: int = 0) -> SegmentEntry:
    log = MetadataLog(store, _name(store, topic).prefix)
    return log.ask(log.refresh(), lambda index: list(index.entries()))[at]


def _spoil(
    store: MemoryStore, topic: str, *, key: Callable[[SegmentEntry], str] = lambda entry: entry.data_key
) -> None:
    full = full_key(_name(store, topic).prefix, key(_entry(store, topic)))
    body, modified_ms = store._objects[full]
    store._objects[full] = (body[:100] + b"\xff" + body[101:], modified_ms)


class NoCopies:
    """The local copies of a machine without a log."""

    def __call__(self, name: RemotePartitionName, entry: SegmentEntry) -> bool:
        return False

    def log(self, name: RemotePartitionName) -> Log | None:
        return None


def _scrubbed(store: MemoryStore, topic: str) -> ScrubReport:
    plan = plan_scrub(store, [_name(store, topic)], deep=True)
    results = run_scrub(store, plan, threads=1)
    assert results is not None
    return report_of(store, plan, results, started_ms=NOW, now_ms=NOW)


def _heal(store: MemoryStore, topic: str, copies: LocalCopies | NoCopies) -> RepairPlan:
    """Repairs what the scrub report of one topic names."""
    plan = plan_repair(store, _scrubbed(store, topic), copies=copies)
    assert run_repair(store, plan, now_ms=lambda: NOW + 1, copies=copies).failed == ()
    return plan


def _copies(world: World) -> LocalCopies:
    def open_manager() -> LogManager:
        return world.open(read_only=True)

    return LocalCopies(open_manager)


@pytest.mark.parametrize("told_of", ["t", "f", "g"])
def test_repair_of_one_topic_repairs_all_topics_that_name_the_object(told_of: str) -> None:
    world = _world()
    truth = _read(world.store, NAME)
    _spoil(world.store, "t")
    with _copies(world) as copies:
        plan = _heal(world.store, told_of, copies)
    of = {each.name.topic: each.relative.topic if each.relative else None for each in plan.segments}
    assert of == {"t": None, "f": "t", "g": "t"}
    assert {each.source for each in plan.segments} == {"local"}
    keys = {full_key(_name(world.store, topic).prefix, _entry(world.store, topic).data_key) for topic in "tfg"}
    assert len(keys) == 3, "each topic must have an object of its own"
    for partition in (NAME, FORK, SECOND):
        assert _read(world.store, partition) == truth
    assert damage(check_bucket(world.store)) == []


@pytest.mark.parametrize("healed", ["t", "f"])
def test_fork_is_repaired_from_its_source_and_the_source_from_its_fork(healed: str) -> None:
    """One of the two was repaired without its relatives, and no local copy exists any more."""
    world = _world()
    truth = _read(world.store, NAME)
    sound = dict(world.store._objects)
    _spoil(world.store, "t")
    bad = dict(world.store._objects)
    world.store._objects = sound
    _rewritten_alone(world.store, healed)
    for key, body in bad.items():
        if sound[key] != body:
            world.store._objects[key] = body
    other = {"t": "f", "f": "t"}[healed]
    plan = _heal(world.store, other, NoCopies())
    assert {(each.name.topic, each.source, each.relative and each.relative.topic) for each in plan.segments} == {
        (other, "bucket", healed),
        ("g", "bucket", healed),
    }
    assert plan.hopeless == ()
    for partition in (NAME, FORK, SECOND):
        assert _read(world.store, partition) == truth
    assert damage(check_bucket(world.store)) == []


def _rewritten_alone(store: MemoryStore, topic: str) -> None:
    """Copies the bytes of one entry to a new object and replaces the entry in this partition only."""
    prefix, old = _name(store, topic).prefix, _entry(store, topic)
    log = MetadataLog(store, prefix)
    log.join()
    source = from_bucket(store, prefix, old, NO_KEYS, is_last=False)
    entry = copy_segment(store, prefix, source, epoch=log.epoch, now_ms=NOW)
    log.commit(put_in_place(old, entry), NOW, touches=(old.base_offset, old.next_offset))


@pytest.mark.damages_bucket
def test_damage_without_any_good_copy_is_hopeless_for_all_relatives() -> None:
    world = _world()
    _rewritten_alone(world.store, "t")
    _spoil(world.store, "t")
    _spoil(world.store, "f")
    plan = _heal(world.store, "f", NoCopies())
    assert plan.segments == ()
    assert {each.name.topic for each in plan.hopeless} == {"f", "g"}, (
        "the source names another object, which is damaged too"
    )


def test_entry_of_a_relative_with_other_bytes_is_no_good_copy() -> None:
    """The relative may have been compacted since the fork."""
    world = _world()
    name, other, entry = _name(world.store, "f"), _name(world.store, "t"), _entry(world.store, "f")
    fresh = replace(_entry(world.store, "t"), data_key="data/new.log", indexes_key="data/new.indexes")
    for same, found in ((fresh, True), (replace(fresh, size_bytes=7), False), (replace(fresh, data_crc32c=7), False)):
        relatives = Relatives(world.store)
        relatives._entries[other] = (same,)
        assert (relatives.same_bytes(name, entry, lambda name, entry: True) is not None) is found
    assert Relatives(world.store).same_bytes(name, entry, lambda name, entry: True) is None, (
        "both partitions name the same object"
    )


def test_scrub_does_not_count_objects_named_only_by_a_fork_as_orphans() -> None:
    world = _world()
    with world.open() as manager:
        manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)
        for at in range(4):
            settle(manager, NOW + at * 2 * DAY + HOUR)
    with world.open(now_ms=NOW + 9 * DAY):
        pass
    of_home = next(each for each in check_bucket(world.store) if each.prefix == _name(world.store, "t").prefix)
    kinds = {kind.value: count for kind, count in of_home.counts().items()}
    assert kinds["let go of, and named by a fork"] == 2 * len(
        MetadataLog(world.store, _name(world.store, "f").prefix).refresh().segments
    )
    assert "orphan of an older epoch" not in kinds
