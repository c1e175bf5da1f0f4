"""A bucket that lacks records which this disk dropped is lost or wrong, for every read-only open and every open."""

from __future__ import annotations

import pytest
from manager_world import DAY, NAME, NOW, TIERED, World, send, settle

from local.errors import RemoteLost
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from tiered.observe.metrics import Metrics
from tiered.service.observations import Observations
from tiered.status.status_report import status_report, unread_partitions
from tiered.status.sync_status import SyncState, tier_sync
from tiered.web.pages.site import Site


@pytest.fixture
def world() -> World:
    """A disk that dropped every copied segment."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        manager.topics.alter("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager, NOW + DAY)
        send(manager, 10, start=300)
        assert manager.partitions.find(NAME).log.local_log_start_offset > 0
    return world


def _empty(store: MemoryStore) -> None:
    store._objects.clear()


@pytest.mark.parametrize("read_only", [True, False])
def test_empty_bucket_is_lost_for_every_open(world: World, read_only: bool) -> None:
    _empty(world.store)
    files = {name: bytes(inode.data) for name, inode in world.disk.names.items() if name.endswith(".log")}
    with world.open(read_only=read_only) as manager:
        assert isinstance(manager.problems[NAME], RemoteLost)
        assert manager.plan(NOW).is_empty
        assert list(unread_partitions(manager)) == [NAME]
        report = status_report(manager, NOW, storage=world.disk)
        assert [each.kind for each in report.problems] == ["RemoteLost"]
        assert "bucket-lost" in report.problems[0].next_step
        assert NAME in report.unread, "the remote figures must be unknown"
        assert [each.state for each in tier_sync(manager, storage=world.disk)] == [SyncState.LOST]
        with pytest.raises(RemoteLost):
            list(manager.reader().records(NAME, 0))
        assert [record.offset for record in manager.partitions.local_reader().records(NAME, 300)] == list(
            range(300, 310)
        )
    assert not [info.key for info in world.store.list("") if "/head/" in info.key], (
        "no manifest may be committed to a lost bucket"
    )
    assert {name: bytes(inode.data) for name, inode in world.disk.names.items() if name.endswith(".log")} == files


def test_older_state_of_the_bucket_is_lost_if_the_disk_dropped_newer_records(world: World) -> None:
    world.store._objects = {key: body for key, body in world.store._objects.items() if not key.endswith("2")}
    manifests = sorted(info.key for info in world.store.list("") if "/head/" in info.key)
    for key in manifests[1:]:
        del world.store._objects[key]
    with world.open(read_only=True) as manager:
        assert isinstance(manager.problems[NAME], RemoteLost)


def test_emptied_bucket_is_lost_for_read_only_opens_around_the_next_commit(world: World) -> None:
    with world.open() as writer:
        kept = dict(world.store._objects)
        _empty(world.store)
        with world.open(read_only=True) as seen:
            assert isinstance(seen.problems[NAME], RemoteLost)
        send(writer, 100, start=310)
        writer.partitions.roll("t", now_ms=NOW)
        writer.tick(NOW + DAY)
        assert [info.key for info in world.store.list("") if "/head/" in info.key], (
            "the writer must have committed a manifest"
        )
        with world.open(read_only=True) as seen:
            assert isinstance(seen.problems[NAME], RemoteLost)
    world.store._objects = {**kept, **world.store._objects}
    with world.open(read_only=True) as seen:
        assert seen.problems == {}


def test_manifests_deleted_by_gc_do_not_count_as_a_lost_bucket(world: World) -> None:
    with world.open() as manager:
        held = manager.partitions.find(NAME)
        assert held.metadata is not None
        held.metadata.set_gc_boundary(2)
        for info in list(world.store.list(held.prefix + "meta/head/"))[:2]:
            world.store.delete([info.key])
        looked = MetadataLog(world.store, held.prefix)
        looked.load()
        assert not looked.lacks_first_manifests()
    with world.open(read_only=True) as seen:
        assert seen.problems == {}


def test_metrics_count_a_lost_bucket_separately_from_a_fenced_writer(world: World) -> None:
    _empty(world.store)
    with world.open() as manager:
        told = Metrics(manager, Observations(), None).text(NOW)
        text = told.decode() if isinstance(told, bytes) else str(told)
    assert "tiered_remote_lost 1" in text
    assert "tiered_halted 0" in text


def test_web_pages_name_a_lost_bucket_and_its_runbook(world: World) -> None:
    _empty(world.store)
    with world.open(read_only=True) as manager:
        site = Site(manager, lambda: NOW, deadline_s=60)
        for path in ("/", "/troubles", "/topics/t/0"):
            status, _, body = site.answer(path)[:3]
            text = body.decode() if isinstance(body, bytes) else str(body)
            assert "the bucket is lost or wrong" in text, (path, status)
