"""Maintenance of a manager collects old manifests and keeps pinned ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import COMPACTED, HOUR, NAME, NOW, TIERED, World, send, settle, values

from local.errors import OffsetOutOfRange
from policies import invariants, retention
from policies.decisions import CollectManifests
from policies.invariants import violations
from remote.gc import pins
from remote.gc.delayed_delete import collect_manifests
from remote.gc.pins import list_pins, pin_newest, release
from remote.keys import MANIFESTS
from remote.manifest import commit_protocol
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import set_properties
from remote.manifest.manifest_lookup import manifest_disk_cache
from remote.manifest.page_out import PageRule
from tiered.read.bucket_reader import RemoteLog

DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def few_heads(monkeypatch):
    monkeypatch.setattr(retention, "MANIFESTS_RETAINED", 3)
    monkeypatch.setattr(retention, "MANIFESTS_AT_ONCE", 2)
    monkeypatch.setattr(invariants, "MANIFESTS_RETAINED_MIN", 3)


def manifests(world):
    return [info.key[-20:] for info in world.store.list("") if MANIFESTS in info.key]


@pytest.mark.parametrize("settings", [TIERED, COMPACTED])
def test_maintenance_keeps_few_manifests_and_all_records(settings):
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, settings, now_ms=NOW)
        for turn in range(5):
            send(manager, 300, start=turn * 300)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
        newest = manager.partitions.find(NAME).manifest()
        assert newest.sequence > 3 + 2
        assert len(manifests(world)) <= 3 + 2
        expected = values(manager.reader())
    with world.open() as again, RemoteLog(world.store) as bucket:
        assert values(again.reader()) == expected
        assert values(bucket.reader()) == expected[: len(values(bucket.reader()))]


def test_manifest_collection_has_a_reason_and_never_leaves_too_few_manifests():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 1500)
        settle(manager)
        snapshot = replace(manager.snapshots(NOW)[0], head_sequence=9, manifests_gc_boundary=3)
        (decision,) = retention.manifest_collections(snapshot)
        assert decision == CollectManifests(upto_sequence=6, reason="3 old manifests, the newest 3 are kept")
        assert violations(snapshot, [decision]) == []
        assert retention.manifest_collections(replace(snapshot, manifests_gc_boundary=5)) == []
        assert "fewer than 3" in violations(snapshot, [replace(decision, upto_sequence=7)])[0]


def test_objects_of_a_pinned_manifest_are_kept_beyond_the_grace_period():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        prefix = manager.partitions.find(NAME).prefix
        log = MetadataLog(world.store, prefix)
        pin, manifest = pin_newest(world.store, prefix, log, now_ms=NOW, expires_ms=NOW + 9 * DAY, holder="a job")
        named = {prefix + key for entry in manifest.segments for key in (entry.data_key, entry.indexes_key)}
        settle(manager, NOW + 2 * DAY)
        settle(manager, NOW + 2 * DAY + HOUR)
        assert manager.reader().offsets(NAME) == (300, 300)
        assert named <= {info.key for info in world.store.list("")}
        release(world.store, prefix, [pin])
        settle(manager, NOW + 2 * DAY + HOUR + pins.RECHECK_MS)
        assert not named & {info.key for info in world.store.list("")}


def test_closed_bucket_reader_releases_its_pins():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        prefix, newest = manager.partitions.find(NAME).prefix, manager.partitions.find(NAME).manifest()
    with RemoteLog(world.store) as bucket:
        assert bucket.pin(NAME, now_ms=NOW, expires_ms=NOW + DAY, holder="a job") == newest
        assert [pin.sequence for pin in list_pins(world.store, prefix)] == [newest.sequence]
    assert list_pins(world.store, prefix) == []


def test_cache_directory_keeps_the_manifest_over_a_restart(tmp_path):
    world = World()
    with world.open(remote_fetch_cache_dir=str(tmp_path)) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        newest = manager.partitions.find(NAME).manifest()
    kept = manifest_disk_cache(str(tmp_path)).manifest(manager.partitions.find(NAME).prefix)
    assert kept is not None
    assert kept[0] == newest
    with world.open(remote_fetch_cache_dir=str(tmp_path)) as again:
        assert values(again.reader()) == values(manager.reader())


@pytest.mark.parametrize("in_pages", [False, True], ids=["an object of a segment does not exist", "a page is gone"])
def test_reader_with_a_collected_manifest_gets_out_of_range(monkeypatch: pytest.MonkeyPatch, in_pages: bool) -> None:
    """The manifests after the reader's own are deleted too.
    A 404 of the next manifest therefore does not prove that its own is the newest."""
    world = World()
    if in_pages:
        rule = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=1)
        monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.log.delete.grace.ms": "0"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        asleep = RemoteLog(world.store)
        asleep.reader().offsets(NAME)
        manager.maintenance.delete_records({NAME: 240}, now_ms=NOW)
        settle(manager)
        held = manager.partitions.all()[0]
        assert held.metadata is not None
        manifest = held.metadata.commit(set_properties({"some": "news"}), NOW)
        collect_manifests(world.store, held.prefix, held.metadata, manifest.sequence - 1, now_ms=NOW)
        with pytest.raises(OffsetOutOfRange):
            values(asleep.reader(), 100, 200)
