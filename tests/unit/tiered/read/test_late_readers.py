"""Readers that return late: GC deleted their manifest, retention expired their entries, their objects are deleted."""

from __future__ import annotations

import base64

import pytest
from manager_world import DAY, NAME, NOW, TIERED, World, send, settle, values

from local.errors import AccessDenied, Corrupt, LogError, NotFound, OffsetOutOfRange
from local.format.record import Record
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import OffsetSpec
from remote.gc.delayed_delete import collect_manifests
from remote.manifest.manifest_changes import set_properties
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.read.deadline_fetch import Fetcher

ENDED = 160


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def manager(world: World):
    """300 records in the bucket, in four entries."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        settle(manager)
        yield manager


def _end_and_delete(manager: LogManager, upto: int) -> None:
    """Expire the records below `upto`, delete their objects and collect all manifests but the newest."""
    manager.maintenance.delete_records({NAME: upto}, now_ms=NOW)
    for days in (0, 2, 4):
        settle(manager, NOW + days * DAY)
    _collect(manager)


def _collect(manager: LogManager) -> None:
    held = manager.partitions.find(NAME)
    assert held.metadata is not None
    for number in range(6):
        held.metadata.commit(set_properties({"step": str(number)}), NOW)
    manifest = held.metadata.cached
    assert manifest is not None
    assert (
        collect_manifests(_store(manager), held.prefix, held.metadata, manifest.sequence - 1, now_ms=NOW).manifests > 5
    )


def _store(manager: LogManager):
    assert manager.store is not None
    return manager.store


@pytest.mark.parametrize("isolation", list(Isolation))
def test_records_expired_under_an_open_reader_are_out_of_range_not_corrupt(
    world: World, manager: LogManager, isolation: Isolation
) -> None:
    view = RemoteLog(world.store)
    assert view.reader(isolation=isolation).offsets(NAME) == (0, 300)
    _end_and_delete(manager, ENDED)
    with pytest.raises(OffsetOutOfRange, match=f"first_offset={ENDED}"):
        list(view.reader(isolation=isolation).records(NAME, 0))
    assert [offset for offset, _ in values(view.reader(isolation=isolation), ENDED)] == list(range(ENDED, 300))


def test_timestamp_lookup_uses_the_remaining_entries(world: World, manager: LogManager) -> None:
    view = RemoteLog(world.store)
    assert view.reader().offset_for_timestamp(NAME, NOW - DAY) == 0
    view = RemoteLog(world.store)  # without cached entries
    view.manifest(NAME)
    _end_and_delete(manager, ENDED)
    assert view.reader().offset_for_timestamp(NAME, NOW - DAY) == ENDED


def test_timestamp_lookup_in_an_entry_with_a_lost_object_is_corrupt(world: World, manager: LogManager) -> None:
    manifest = manager.partitions.find(NAME).manifest()
    assert manifest is not None
    prefix = manager.partitions.find(NAME).prefix
    kept = {
        key: world.store.get(prefix + key) for key in (manifest.segments[1].indexes_key, manifest.segments[2].data_key)
    }
    world.store.delete([prefix + key for key in kept])
    try:
        for entry in manifest.segments[1:3]:
            view = RemoteLog(world.store)
            with pytest.raises(Corrupt, match=entry.data_key):
                view.reader().offset_for_timestamp(NAME, (entry.max_timestamp_ms or 0) - 1)
    finally:
        for key, body in kept.items():
            world.store.put(prefix + key, body)


def test_last_stable_offset_comes_from_the_last_remaining_entry(world: World, manager: LogManager) -> None:
    view = RemoteLog(world.store)
    assert view.manifest(NAME).next_offset == 300
    _end_and_delete(manager, 300)
    committed = view.reader(isolation=Isolation.READ_COMMITTED)
    assert committed.offsets(NAME)[1] == 300
    assert committed.offsets(NAME) == (300, 300), "the reader must know the newest manifest now"


@pytest.mark.parametrize("read", ["records", "committed"])
def test_stream_overtaken_by_deletion_raises_and_skips_no_record_silently(manager: LogManager, read: str) -> None:
    isolation = Isolation.READ_COMMITTED if read == "committed" else Isolation.READ_UNCOMMITTED
    stream = manager.reader(isolation=isolation).records(NAME, 0)
    seen = [next(stream).offset]
    manager.maintenance.delete_records({NAME: 250}, now_ms=NOW)
    with pytest.raises(OffsetOutOfRange, match="first_offset=250"):
        seen.extend(record.offset for record in stream)
    assert seen == list(range(len(seen)))
    assert 0 < len(seen) < 250


def test_suspended_second_process_skips_no_record_that_the_first_dropped(world: World) -> None:
    """The second process reads the disk again. It must also read the manifest again, although its successors were
    collected."""
    with world.open() as first:
        first.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(first, 100)
        first.partitions.roll("t", now_ms=NOW)
        settle(first)
        second = world.open(read_only=True)
        assert len(values(second.reader())) == 100
        expected = [*values(first.reader())]
        send(first, 200, start=100)
        first.partitions.roll("t", now_ms=NOW)
        settle(first)
        first.topics.alter("t", TIERED, now_ms=NOW)
        settle(first)
        settle(first)
        _collect(first)
        expected = values(first.reader())
        second.partitions.find(NAME).log.reload_files()
        assert second.partitions.find(NAME).log.local_log_start_offset > 100
        assert values(second.reader()) == expected
        second.close()


@pytest.mark.parametrize(("trouble", "error"), [("lost", Corrupt), ("no key", AccessDenied)])
def test_unreadable_last_entry_stops_only_its_own_partition(
    world: World, monkeypatch: pytest.MonkeyPatch, trouble: str, error: type[LogError]
) -> None:
    monkeypatch.setenv("TIERED_KEYS", f"k {base64.b64encode(bytes(32)).decode()}")
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.encryption.key.id": "k"}, now_ms=NOW)
        manager.topics.create("u", 1, TIERED, now_ms=NOW)
        for topic in ("t", "u"):
            send(manager, 100, topic=topic)
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager)
        manager.topics.alter("t", {"remote.encryption.key.id": ""}, now_ms=NOW)
        manifest, prefix = manager.partitions.find(NAME).manifest(), manager.partitions.find(NAME).prefix
    assert manifest is not None
    key = prefix + manifest.segments[-1].indexes_key
    kept = world.store.get(key)
    if trouble == "lost":
        world.store.delete([key])
    else:
        monkeypatch.setenv("TIERED_KEYS", "")
    with world.open(disk=world.other_disk()) as other:
        assert {name: type(each) for name, each in other.problems.items()} == {NAME: error}
        assert len(list(other.reader().records(TopicPartition("u", 0), 0))) == 100
        with pytest.raises(error):
            send(other, 1)
        world.store.put(key, kept)
        if trouble == "lost":
            settle(other)
            assert len(values(other.reader())) == 100
    World.made.remove(world)  # this test has no key to check the bucket with


def test_name_of_a_deleted_and_recreated_topic_means_the_new_topic(world: World, manager: LogManager) -> None:
    manager.topics.delete("t", now_ms=NOW)
    settle(manager, NOW)
    with pytest.raises(NotFound, match="deleted"):
        RemoteLog(world.store).manifest(NAME)
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 50)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    view = RemoteLog(world.store)
    assert len(view.topic_ids("t")) == 2, "the deleted topic must stay readable by its topic id"
    assert view.partitions("t") == [NAME]
    assert len(values(view.reader())) == 50


@pytest.mark.parametrize("change", ["another topic of the name", "deleted records"])
def test_fetch_does_not_continue_a_read_of_records_deleted_since(manager: LogManager, change: str) -> None:
    with Fetcher(manager.reader()) as fetcher:
        first = fetcher.fetch(NAME, 0, bytes_max=400, wait_ms=10_000)
        if change == "deleted records":
            manager.maintenance.delete_records({NAME: 250}, now_ms=NOW)
            with pytest.raises(OffsetOutOfRange, match="first_offset=250"):
                fetcher.fetch(NAME, first.next_offset, bytes_max=400, wait_ms=10_000)
            return
        manager.topics.delete("t", now_ms=NOW)
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.append("t", [Record(b"new", b"new", NOW)] * 60, 0, now_ms=NOW)
        again = fetcher.fetch(NAME, first.next_offset, bytes_max=400, wait_ms=10_000)
        assert all(b"new" in bytes(data) for data in again.data)
        assert again.data


def test_largest_timestamp_is_that_of_a_record_left_by_the_cleaner(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "cleanup.policy": "compact", "local.retention.ms": "-2"}, now_ms=NOW)
        for late in (NOW + 5000, NOW - 100):
            others = [Record(b"other %d" % each, b"y" * 60, NOW - DAY) for each in range(30)]
            manager.append("t", [Record(b"k", b"x", late), *others], 0, now_ms=NOW)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
        manager.append("t", [Record(b"last", b"z", NOW - 200)], 0, now_ms=NOW)
        settle(manager, NOW + 1)
        manifest = manager.partitions.find(NAME).manifest()
        assert manifest is not None
        assert manifest.segments[0].max_timestamp_ms == NOW + 5000, "the bucket must still hold the old record"
        found = manager.list_offsets({NAME: OffsetSpec.MAX_TIMESTAMP})[NAME]
        assert found is not None
        assert found.timestamp_ms == NOW - 100
