"""Orphans are deleted in two steps: first listed, then checked again and deleted if old enough."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from bucket_truth import assert_sound
from care_world import NOW, SMALL_PAGES, TOPIC_ID, CareWorld, batches, fill, named

from local.errors import Corrupt, InvalidRequest
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.segments.stored_segment import PLAIN_ENCODING
from remote.store.memory_store import MemoryStore
from remote.store.unfinished_uploads import UnfinishedUpload, orphaned_uploads
from tiered.jobs.orphan_deletion import (
    Garbage,
    GarbageList,
    decode_garbage,
    delete_garbage,
    encode_garbage,
    list_garbage,
)

DAY = 86_400_000
LATER = NOW + 4 * DAY


class FakeUploads:
    """The unfinished uploads of an S3 bucket."""

    def __init__(self, *uploads: UnfinishedUpload) -> None:
        self.there = list(uploads)
        self.aborted: list[UnfinishedUpload] = []

    def list(self, prefix: str = "") -> list[UnfinishedUpload]:
        return [each for each in self.there if each.key.startswith(prefix)]

    def size_bytes(self, upload: UnfinishedUpload) -> int:
        return 5

    def abort(self, upload: UnfinishedUpload) -> None:
        self.aborted.append(upload)
        self.there = [each for each in self.there if each.upload_id != upload.upload_id]


@pytest.fixture
def world() -> CareWorld:
    """A topic with entries in pages, an upload that was never committed, and a later writer."""
    world = CareWorld.empty()
    fill(world, "t", PLAIN_ENCODING, 9, SMALL_PAGES)
    world.add("t", batches(5000, (4,))[0], 5010, commit=False)
    reopen(world)
    return world


def reopen(world: CareWorld) -> MetadataLog:
    world.logs.clear()
    return world.writer("t", SMALL_PAGES)


def listed(world: CareWorld, now_ms: int = LATER, **more: object) -> GarbageList:
    return list_garbage(world.store, [named("t")], now_ms=now_ms, **more)  # type: ignore[arg-type]


def objects(world: CareWorld) -> dict[str, tuple[bytes, int]]:
    assert isinstance(world.store, MemoryStore)
    return dict(world.store._objects)


def test_gc_deletes_exactly_the_listed_orphans(world: CareWorld) -> None:
    found, before = listed(world), objects(world)
    names = {each.name.prefix + each.key for each in found.entries}
    assert {name.rpartition(".")[2] for name in names} == {"log", "indexes"}
    assert found.size_bytes == sum(len(before[name][0]) for name in names)
    assert found.dollars_per_month() > 0
    foretold = delete_garbage(world.store, found, now_ms=LATER, dry_run=True)
    assert objects(world) == before
    done = delete_garbage(world.store, found, now_ms=LATER)
    assert done == foretold
    assert set(before) - set(objects(world)) == names
    assert (len(done.entries), done.young, done.named) == (2, 0, 0)
    again = delete_garbage(world.store, found, now_ms=LATER)
    assert (again.entries, again.named) == ((), 2)
    assert_sound(world.store)
    assert listed(world).entries == []


@pytest.mark.parametrize(("now_ms", "count"), [(NOW, 0), (NOW + 3 * DAY - 1, 0), (NOW + 3 * DAY, 2)])
def test_gc_keeps_orphans_within_the_grace_period(world: CareWorld, now_ms: int, count: int) -> None:
    done = delete_garbage(world.store, listed(world), now_ms=now_ms)
    assert (len(done.entries), done.young) == (count, 2 - count)


def test_gc_with_a_list_of_every_object_deletes_only_orphans(world: CareWorld) -> None:
    """The list names every object: live segments, manifests, pages and objects of other programs."""
    world.store.put(f"{named('t').prefix}data/notes.txt", b"mine")
    entry, before = listed(world).entries[0], objects(world)
    orphans = {each.key for each in listed(world).entries}
    everything = [
        msgspec.structs.replace(entry, key=key.removeprefix(named("t").prefix), modified_ms=0) for key in before
    ]
    done = delete_garbage(world.store, msgspec.structs.replace(listed(world), entries=everything), now_ms=LATER)
    assert {each.key for each in done.entries} == orphans
    assert len(done.entries) == 2
    assert len(objects(world)) == len(before) - 2
    assert_sound_but_for_notes(world)


def assert_sound_but_for_notes(world: CareWorld) -> None:
    world.store.delete([f"{named('t').prefix}data/notes.txt"])
    assert_sound(world.store)


def test_gc_never_lists_uploads_of_the_current_writer(world: CareWorld) -> None:
    entry = world.add("t", batches(6000, (4,))[0], 6010, commit=False)
    found = listed(world)
    assert not {entry.data_key, entry.indexes_key} & {each.key for each in found.entries}
    delete_garbage(world.store, found, now_ms=LATER)
    world.commit("t", add_segments([entry]))
    assert_sound(world.store)


def test_gc_keeps_an_orphan_that_is_not_listed(world: CareWorld) -> None:
    found = listed(world)
    done = delete_garbage(world.store, msgspec.structs.replace(found, entries=found.entries[:1]), now_ms=LATER)
    assert [each.key for each in done.entries] == [found.entries[0].key]
    assert [each.key for each in listed(world).entries] == [found.entries[1].key]


def test_gc_skips_a_listed_object_that_does_not_exist_any_more(world: CareWorld) -> None:
    found = listed(world)
    world.store.delete([found.entries[0].name.prefix + found.entries[0].key])
    done = delete_garbage(world.store, found, now_ms=LATER)
    assert (len(done.entries), done.named) == (1, 1)


def test_gc_skips_and_reports_a_partition_with_a_damaged_page(world: CareWorld) -> None:
    found, newest = listed(world), MetadataLog(world.store, named("t").prefix).refresh()
    page = named("t").prefix + newest.pages[0].key
    body = world.store.get(page)
    for damage in (lambda: world.store.put(page, body[:-1] + b"x"), lambda: world.store.delete([page])):
        damage()
        before = objects(world)
        told = listed(world)
        assert (told.entries, list(told.left_out)) == ([], [named("t").prefix])
        assert delete_garbage(world.store, found, now_ms=LATER).entries == ()
        assert objects(world) == before


def test_gc_refuses_a_list_of_another_store_or_version(world: CareWorld) -> None:
    found = listed(world)
    assert decode_garbage(encode_garbage(found), "f") == found
    with pytest.raises(InvalidRequest, match="another store"):
        delete_garbage(MemoryStore("memory://other"), found, now_ms=LATER)
    with pytest.raises(InvalidRequest, match="another version"):
        decode_garbage(encode_garbage(msgspec.structs.replace(found, schema_version=2)), "f")
    with pytest.raises(Corrupt, match="the file has another format"):
        decode_garbage(b"[]", "f")


# --- unfinished uploads ----------------------------------------------------------------------------------------------


def test_gc_aborts_only_old_unfinished_uploads_of_older_epochs(world: CareWorld) -> None:
    prefix = named("t").prefix
    entry = listed(world).entries[1]
    old = UnfinishedUpload(key=prefix + entry.key, upload_id="old", begun_ms=NOW)
    young = replace(old, upload_id="young", begun_ms=LATER - 1)
    present = replace(old, key=old.key.replace("-0000000001-", "-0000000002-"), upload_id="present")
    unknown = replace(old, key=prefix + "data/backup.tar", upload_id="unknown")
    uploads = FakeUploads(old, young, present, unknown)
    found = listed(world, uploads=uploads)
    assert [each.upload_id for each in found.entries if each.kind == "upload"] == ["old", "young"]
    assert {each.size_bytes for each in found.entries if each.kind == "upload"} == {5}
    done = delete_garbage(world.store, found, now_ms=LATER, uploads=uploads)  # type: ignore[arg-type]
    assert [each.upload_id for each in uploads.aborted] == ["old"]
    assert {each.upload_id for each in uploads.there} == {"young", "present", "unknown"}
    assert done.young == 1


def test_only_unfinished_uploads_of_the_partition_and_older_epochs_are_orphans() -> None:
    prefix = f"t-{TOPIC_ID}/0/"
    key = f"data/{0:020d}-{9:020d}-{3:010d}-01ARZ3NDEKTSV4RRFFQ69G5FAV.log"
    one = UnfinishedUpload(key=prefix + key, upload_id="u", begun_ms=NOW)
    assert [len(orphaned_uploads([one], prefix, epoch=epoch)) for epoch in (2, 3, 4)] == [0, 0, 1]
    assert orphaned_uploads([one], f"t-{TOPIC_ID}/1/", epoch=9) == []


def test_an_orphan_of_unknown_age_is_never_due() -> None:
    orphan = Garbage(kind="object", topic="t", topic_id=TOPIC_ID, partition=0, key="k", size_bytes=1, modified_ms=NOW)
    assert [orphan.is_due(NOW + age, 10) for age in (0, 9, 10)] == [False, False, True]
    assert not msgspec.structs.replace(orphan, modified_ms=None).is_due(NOW + 100, 10)
