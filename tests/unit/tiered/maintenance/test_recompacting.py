"""A compacted topic in both tiers: which segments the manager copies, replaces and unlinks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from disk_model import ModelDisk
from manager_world import COMPACTED, DAY, HOUR, NAME, NOW, MuteStore, SwitchableStore, World, settle, values

from local.errors import Corrupt
from local.format.record import Record
from policies.decisions import AdvanceCleanedOffset, CopySegment, ReplaceRemote
from policies.tiering import copies
from remote.manifest.manifest import Manifest
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.read.reader import TieredReader

LONG = {  # the disk keeps everything, so that every segment in the bucket can be cleaned again
    **COMPACTED,
    "local.retention.ms": "-1",
    "delete.retention.ms": "1h",
    "remote.log.delete.grace.ms": "1h",
    "remote.recompaction.min.saved.bytes": "0",
}


@pytest.fixture
def world() -> World:
    return World()


def put(manager: LogManager, now_ms: int, **newest: str | None) -> None:
    """Appends one batch per record and closes the segment."""
    for key, value in newest.items():
        record = Record(key.encode(), None if value is None else value.encode() * 100, now_ms)
        manager.append("t", [record], 0, now_ms=now_ms)
    manager.partitions.roll("t", now_ms=now_ms)


def head_of(manager: LogManager) -> Manifest:
    found = manager.partitions.all()[0].manifest()
    assert found is not None
    return found


def ranges(manifest: Manifest) -> list[tuple[int, int]]:
    return [(entry.base_offset, entry.next_offset) for entry in manifest.segments]


def table(records: Iterator[tuple[int, bytes | None, bytes]]) -> dict[bytes, bytes]:
    """The newest value of each key, as a consumer would keep it."""
    found: dict[bytes, bytes] = {}
    for _, value, key in records:
        found.pop(key, None)
        if value is not None:
            found[key] = value[:1]
    return found


def read(reader: TieredReader) -> dict[bytes, bytes]:
    start, end = reader.offsets(NAME)
    if start == end:
        return {}
    return table((each.offset, each.value, each.key or b"") for each in reader.records(NAME, start))


def kinds(manager: LogManager, now_ms: int) -> set[type]:
    return {type(each) for each in manager.plan(now_ms).decisions.get(NAME, ())}


def test_only_clean_segments_are_copied_with_one_commit_and_their_cleaned_offset(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        for at in range(6):
            put(manager, NOW + at, a=str(at), b=str(at), **{f"k{at}": "v" * 9})
        sequences = []
        for _ in range(10):
            before, snapshot = head_of(manager), manager.snapshots(NOW)[0]
            copies = [each for each in manager.plan(NOW).decisions.get(NAME, ()) if isinstance(each, CopySegment)]
            assert all(each.next_offset <= snapshot.clean_cut for each in copies), "dirty segments are never copied"
            if not manager.tick(NOW):
                break
            after = head_of(manager)
            assert len(after.segments) in (len(before.segments), len(before.segments) + len(copies))
            sequences.append(after.sequence - before.sequence)
            assert all(entry.cleaned_through == after.next_offset for entry in after.segments)
        assert len(head_of(manager).segments) > 1
        assert sum(sequences) == 1, "all entries must be in one commit"


def test_cleaned_segment_replaces_its_entry_and_the_old_object_is_deleted_later(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1", b="1")
        settle(manager)
        (old,) = head_of(manager).segments
        put(manager, NOW, a="2", b="2")
        settle(manager)
        manifest = head_of(manager)
        assert old.ulid not in {entry.ulid for entry in manifest.segments}
        assert ranges(manifest) == [(0, 2), (2, 4)]
        assert {entry.cleaned_through for entry in manifest.segments} == {4}
        assert {each.key for each in manifest.pending_deletes} == {old.data_key, old.indexes_key}
        assert manifest.segments[0].size_bytes < old.size_bytes / 2
        prefix = manager.partitions.all()[0].prefix
        assert prefix + old.data_key in {each.key for each in world.store.list("")}
        settle(manager, NOW + HOUR)
        assert head_of(manager).pending_deletes == ()
        assert prefix + old.data_key not in {each.key for each in world.store.list("")}
        assert read(RemoteLog(world.store).reader()) == read(manager.reader()) == {b"a": b"2", b"b": b"2"}


def test_merged_segment_replaces_all_entries_of_its_offsets(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1", b="1", c="1", d="1", e="1", f="1")
        put(manager, NOW, g="1", h="1", i="1", j="1", k="1", l="1")
        settle(manager)
        assert len(ranges(head_of(manager))) > 1
        put(manager, NOW, **dict.fromkeys("abcdefghijk", "2"))
        settle(manager)
        manifest = head_of(manager)
        assert ranges(manifest)[0] == (0, 12), "the remaining records of both segments fit one segment"
        assert manifest.segments[0].record_count == 1
        assert read(RemoteLog(world.store).reader()) == {key.encode(): b"2" for key in "abcdefghijk"} | {b"l": b"1"}


def test_copied_and_uncopied_segments_are_never_merged(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        for at in range(8):
            put(manager, NOW, a=str(at), **{f"once{at}": "v"})
            settle(manager)
            manifest = head_of(manager)
            bounds = {0, *(segment.next_offset for segment in manager.snapshots(NOW)[0].segments)}
            assert manifest.next_offset in bounds
            assert read(RemoteLog(world.store).reader()) == read(manager.reader())


def test_cleaning_waits_while_a_commit_is_in_doubt(world: World) -> None:
    """The commit succeeded, but its reply was lost. A cleaning would do two kinds of damage:
    1. A segment merged with later ones would match no entry and never be copied.
    2. A tombstone would be removed while the bucket has an older record of its key."""
    store = MuteStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1", b="1", c="1", d="1")
        manager.tick(NOW)
        store.is_armed = True
        manager.tick(NOW)
        assert store.is_mute
        assert head_of(manager).segments == ()
        put(manager, NOW, a=None)
        for later in (HOUR, 3 * HOUR, 5 * HOUR):  # new records, so that there is something to clean
            put(manager, NOW + later, clock=str(later))
            manager.tick(NOW + later)
        store.is_armed = store.is_mute = False
        settle(manager, NOW + 6 * HOUR)
        assert head_of(manager).next_offset == manager.partitions.find(NAME).log.segments()[-1].base_offset
        assert read(RemoteLog(world.store).reader()) == read(manager.reader())
        assert read(manager.reader()).keys() == {b"b", b"c", b"d", b"clock"}


def test_cleaning_waits_after_a_cancelled_removal_of_the_tier_with_a_commit_in_doubt(world: World) -> None:
    """The removal of the remote tier got no reply either, and was then cancelled.
    The uploads of the commit in doubt may be entries, and here they are."""
    store = MuteStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, x="1", y="1")
        settle(manager)
        assert head_of(manager).has_entries
        put(manager, NOW, a="1", b="1", c="1", d="1")
        manager.tick(NOW)
        store.is_armed = True
        manager.tick(NOW)
        assert store.is_mute
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        manager.topics.alter("t", off, now_ms=NOW)
        manager.tick(NOW)
        manager.topics.alter("t", {"remote.storage.enable": "true"}, now_ms=NOW)
        put(manager, NOW, a=None)
        for later in (HOUR, 3 * HOUR, 5 * HOUR):
            put(manager, NOW + later, clock=str(later))
            manager.tick(NOW + later)
        store.is_armed = store.is_mute = False
        settle(manager, NOW + 6 * HOUR)
        assert head_of(manager).next_offset == manager.partitions.find(NAME).log.segments()[-1].base_offset
        assert read(RemoteLog(world.store).reader()) == read(manager.reader())


def test_unchanged_segment_advances_its_cleaned_offset_without_an_upload(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1111", b="1111")
        settle(manager)
        (old,) = head_of(manager).segments
        put(manager, NOW, c="1111", d="1111")
        settle(manager)
        entries = head_of(manager).segments
        assert (entries[0].ulid, entries[0].cleaned_through) == (old.ulid, entries[-1].next_offset)


def test_entry_with_too_little_to_save_is_not_replaced(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1", b="1", c="1", d="1")
        settle(manager)
        put(manager, NOW, a="2")
        settle(manager)
        entry = head_of(manager).segments[0]
        assert (entry.record_count, entry.cleaned_through) == (4, 4)
        assert not {AdvanceCleanedOffset, ReplaceRemote} & kinds(manager, NOW)


def test_tombstones_are_removed_over_time_and_the_bucket_stays_small(world: World) -> None:
    sizes, tombstones, now = [], [], NOW
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=now)
        for day in range(12):
            now += DAY
            put(manager, now, **{f"k{day}{at}": "v" for at in range(6)})
            settle(manager, now)
            put(manager, now, **{f"k{day}{at}": None for at in range(6)}, left=str(day % 10))
            settle(manager, now)
            for later in (2 * HOUR, 4 * HOUR, 6 * HOUR):  # new records, so that there is something to clean
                put(manager, now + later, clock=str(later))
                settle(manager, now + later)
            bucket = RemoteLog(world.store)
            records = list(bucket.reader().records(NAME, 0))
            sizes.append(bucket.manifest(NAME).size_bytes)
            tombstones.append(sum(record.value is None for record in records))
            assert read(bucket.reader()) == read(manager.reader())
            assert read(manager.reader()).keys() == {b"left", b"clock"}
    assert max(tombstones) < 30, "of 72 deleted keys fewer than 30 tombstones may remain"
    assert sizes[-1] < 1.5 * sizes[2], f"the bucket must not grow with removed records: {sizes}"


def test_reader_of_an_old_manifest_continues_in_the_new_entry(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1", b="1", c="1")
        settle(manager)
        bucket = RemoteLog(world.store)
        before = bucket.manifest(NAME)
        put(manager, NOW, a="2", b="2")
        settle(manager)
        settle(manager, NOW + HOUR)  # deletes the old object
        assert bucket.manifest(NAME) == before
        assert [offset for offset, _ in values(bucket.reader())] == [2]
        assert bucket.manifest(NAME).segments[0].ulid != before.segments[0].ulid
        # A later read starts with the manifest that was loaded in between, and gets the whole log.
        assert read(bucket.reader()) == {b"a": b"2", b"b": b"2", b"c": b"1"}


def test_missing_object_of_an_entry_in_the_newest_manifest_is_corrupt(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1", b="1", c="1")
        settle(manager)
        bucket = RemoteLog(world.store)
        old = bucket.manifest(NAME)
        put(manager, NOW, a="2", b="2")
        settle(manager)
        settle(manager, NOW + HOUR)
        lost = manager.partitions.all()[0].prefix + head_of(manager).segments[0].data_key
        data = bytes(world.store.get(lost))
        world.store.delete([lost])
        assert bucket.manifest(NAME) == old
        with pytest.raises(Corrupt, match="its object is missing"):
            values(bucket.reader())
        world.store.put_if_absent(lost, data)


def test_cancelled_copies_are_resumed_without_repeated_uploads(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        for at in range(4):
            put(manager, NOW + at, **{f"k{at}{n}": "v" * 10 for n in range(2)})
        manager.tick(NOW)
        asked = iter([False] * 3 + [True] * 99)
        manager.apply(manager.plan(NOW), should_stop=lambda: next(asked))
        assert head_of(manager).segments == ()
        up = {each.key for each in world.store.list("") if "/data/" in each.key}
        assert up, "some segments must be uploaded before the cancel"
        settle(manager)
        manifest, prefix = head_of(manager), manager.partitions.all()[0].prefix
        named = {prefix + key for entry in manifest.segments for key in (entry.data_key, entry.indexes_key)}
        assert up <= named, "uploaded segments must not be uploaded again"
        assert named == {each.key for each in world.store.list("") if "/data/" in each.key}


def test_uploads_of_segments_cleaned_again_before_the_commit_are_deleted(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        for at in range(3):
            put(manager, NOW + at, **{f"k{at}{n}": "v" * 10 for n in range(2)})
        manager.tick(NOW)
        asked = iter([False] * 3 + [True] * 99)
        manager.apply(manager.plan(NOW), should_stop=lambda: next(asked))
        up = {each.key for each in world.store.list("") if "/data/" in each.key}
        assert up
        put(manager, NOW, **{f"k{at}{n}": "w" for at in range(3) for n in range(2)})
        settle(manager)
        prefix = manager.partitions.all()[0].prefix
        assert {prefix + each.key for each in head_of(manager).pending_deletes} >= up
        settle(manager, NOW + HOUR)
        manifest = head_of(manager)
        named = {prefix + key for entry in manifest.segments for key in (entry.data_key, entry.indexes_key)}
        assert named == {each.key for each in world.store.list("") if "/data/" in each.key}


def test_interrupted_cleaning_copies_nothing_after_a_restart_until_it_is_finished(world: World) -> None:
    """A segment below the checkpoint may lack records that a segment above it replaced.
    It must not be copied alone."""
    manager = world.open()
    manager.topics.create("t", 1, {**LONG, "remote.log.copy.disable": "true"}, now_ms=NOW)
    put(manager, NOW, a="1", b="1" * 12)
    settle(manager)
    put(manager, NOW, c="1" * 15, d="1")
    put(manager, NOW, a="2", c="2")
    log = manager.partitions.all()[0].log
    swap_in = log.swap_in

    def once(*args: object, **more: object) -> None:
        swap_in(*args, **more)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    log.swap_in = once  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        manager.tick(NOW)
    manager.abandon()
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        snapshot = manager.snapshots(NOW)[0]
        assert snapshot.cleaner_reach > (snapshot.cleaner_offset or 0) > 0
        assert snapshot.clean_cut == 0
        manager.topics.alter("t", {"remote.log.copy.disable": ""}, now_ms=NOW)
        assert copies(manager.snapshots(NOW)[0]) == []
        assert not any(isinstance(each, CopySegment) for each in manager.plan(NOW).decisions.get(NAME, ()))
        settle(manager)  # finishes the interrupted cleaning at any dirty ratio
        assert head_of(manager).next_offset == 6
        assert read(RemoteLog(world.store).reader()) == {b"a": b"2", b"b": b"1", b"c": b"2", b"d": b"1"}


def test_log_from_the_bucket_after_a_lost_disk_is_that_of_the_last_commit(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, LONG, now_ms=NOW)
        put(manager, NOW, a="1", b="1")
        settle(manager)
        put(manager, NOW, a="2")
        manager.tick(NOW)  # cleaned and not yet copied
        assert read(RemoteLog(world.store).reader()) == {b"a": b"1", b"b": b"1"}
    other: ModelDisk = world.other_disk()
    with world.open(disk=other) as manager:
        assert read(manager.reader()) == {b"a": b"1", b"b": b"1"}
        put(manager, NOW, a=None)
        for later in range(1, 5):
            put(manager, NOW + later * DAY, clock="1")
            settle(manager, NOW + later * DAY)
        assert b"a" not in read(manager.reader())
