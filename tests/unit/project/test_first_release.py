"""Bucket of the first release: it opens, reads, checks and is continued. A newer format is refused by version."""

from __future__ import annotations

import struct
from dataclasses import replace

import first_release
import msgspec
import pytest
from checked_bucket import check_bucket, damage
from disk_model import ModelDisk
from manager_world import NOW, World, send, settle

from local.errors import Corrupt
from local.format.crc32c import crc32c
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.manifest import manifest as manifest_module
from remote.manifest import manifest_page
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.segments import stored_segment
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager
from tiered.migrate.restore_plan import LocalSegments, RestoreWish, plan_restore
from tiered.migrate.restore_running import run_restore
from tiered.read.bucket_reader import RemoteLog

KINDS = {"all": Isolation.READ_UNCOMMITTED, "committed": Isolation.READ_COMMITTED}


@pytest.fixture
def world() -> World:
    world = World()
    objects, _ = first_release.load()
    world.store._objects = {key: (body, NOW) for key, body in objects.items()}
    return world


def _read(store: MemoryStore, topic: str, isolation: Isolation) -> list[list[object]]:
    reader = RemoteLog(store, keys=first_release.KEYS).reader(isolation)
    return [first_release.told(record) for record in reader.records(TopicPartition(topic, 0), 0)]


@pytest.mark.parametrize("topic", first_release.TOPICS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_record_of_the_first_release_is_read(world: World, topic: str, kind: str) -> None:
    _, expected = first_release.load()
    assert expected[topic][kind]
    assert _read(world.store, topic, KINDS[kind]) == expected[topic][kind]


def test_deep_check_finds_nothing_and_covers_every_kind_of_object(world: World) -> None:
    assert damage(check_bucket(world.store, keys=first_release.KEYS)) == []
    names = " ".join(world.store._objects)
    for kind in (".log ", ".log.zst ", ".log.zst.enc ", ".indexes ", "meta/head/", "meta/spill/"):
        assert kind in names, kind


def test_manager_takes_over_the_bucket_and_continues_it(world: World) -> None:
    _, expected = first_release.load()
    disk = ModelDisk()
    wish = RestoreWish(kept=LocalSegments.NONE, takes_over=True)
    plan = plan_restore(world.store, list_partitions(world.store), wish, now_ms=NOW, keys=first_release.KEYS)
    run_restore(world.store, plan, disk, "./new", now_ms=lambda: NOW, keys=first_release.KEYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiered.partition.partition_opening.load_key_ring", lambda path, environ: first_release.KEYS)
        manager = LogManager.open(replace(world.config, data_dir="./new"), now_ms=NOW, storage=disk, store=world.store)
    with manager:
        assert manager.problems == {}
        for topic in first_release.TOPICS:
            send(manager, 30, topic=topic)
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager)
    for topic in first_release.TOPICS:
        found = _read(world.store, topic, Isolation.READ_UNCOMMITTED)
        if topic != "compacted":
            assert found[: len(expected[topic]["all"])] == expected[topic]["all"]
        assert len(found) > 20


def test_formats_of_a_later_version_are_refused_as_newer(world: World, monkeypatch) -> None:
    objects, _ = first_release.load()
    manifests = [body for key, body in objects.items() if "meta/head/" in key]
    with pytest.raises(Corrupt, match="newer format: version=2 known=1"):
        manifest_module.decode_manifest(manifests[0].replace(b"tiered-head 1 ", b"tiered-head 2 "))
    body = next(body for key, body in objects.items() if key.endswith(".indexes") and key.startswith("plain"))
    before = body[:-14] + struct.pack(">H", 2)
    with pytest.raises(Corrupt, match="newer format: version=2 known=1"):
        stored_segment.decode_bundle(before + struct.pack(">I8s", crc32c(before), stored_segment.MAGIC))
    table = stored_segment.decode_bundle(body).chunks
    encoded = stored_segment.encode_chunks(table)
    with pytest.raises(Corrupt, match="newer format: version=3 known=2"):
        stored_segment.decode_chunks(
            struct.pack(">H", 3) + encoded[2:] if encoded[:2] == b"\0\2" else b"\3" + encoded[1:]
        )
    name = next(name for name in list_partitions(world.store) if name.topic == "paged")
    (page, *_) = MetadataLog(world.store, name.prefix).refresh().pages
    body = world.store.get(name.prefix + page.key)
    rows = tuple(manifest_page.decode_page(page, body))
    monkeypatch.setattr(manifest_page, "_FORMAT", {b"tiered.spill": b"2"})
    manifest_page._schema.cache_clear()
    later, newer = manifest_page.encode_page(rows, 1, "A" * 26)
    with pytest.raises(Corrupt, match="newer format"):
        manifest_page.decode_page(later, newer)
    manifest_page._schema.cache_clear()


def test_manifest_with_an_unknown_field_is_read() -> None:
    objects, _ = first_release.load()
    body = next(body for key, body in objects.items() if "meta/head/" in key)
    known = manifest_module.decode_manifest(body)
    fields = msgspec.json.decode(manifest_module.decode_line(body))
    assert (
        manifest_module.decode_manifest(
            manifest_module.encode_line(msgspec.json.encode({**fields, "of_a_later_version": [1]}))
        )
        == known
    )
