"""A compacted view of a topic: built from both tiers, read with the log after it, replaced atomically."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle

from local.errors import Corrupt, InvalidRequest, NotFound, OffsetOutOfRange
from local.format.record import Record
from local.log.producer_state import Producer
from policies import invariants, retention
from remote.manifest.view import ViewState, find_view
from tiered.jobs.view_jobs import build_views, drop_views, plan_views, view_status, views_to_drop
from tiered.maintenance import view_building
from tiered.maintenance.view_building import PART_BYTES_MAX, PARTS_WANTED, part_bytes
from tiered.read.bucket_reader import RemoteLog


@pytest.fixture
def world():
    return World()


def ready(world, count=120, **properties):
    """A manager whose topic is in both tiers."""
    manager = world.open()
    manager.topics.create("t", 1, {**TIERED, **properties}, now_ms=NOW)
    send(manager, count)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    return manager


def build(manager, **choices):
    built = build_views(manager, plan_views(manager, "t", now_ms=NOW, **choices))
    assert manager.problems == {}
    return built


def compacted(manager, start=0, end=None):
    return list(manager.reader(read_compacted=True).records(NAME, start, end))


def newest(records, horizon):
    """The expected view: the newest record of each key below the horizon, without null values."""
    last = {record.key: record for record in records if record.offset < horizon and record.key is not None}
    return sorted((each for each in last.values() if each.value is not None), key=lambda each: each.offset)


def test_view_has_the_newest_value_of_each_key_and_the_log_is_unchanged(world):
    manager = ready(world)
    before = list(manager.reader().records(NAME, 0))
    build(manager)
    view = find_view(manager.partitions.all()[0].manifest().views, "compacted")
    assert view.horizon_offset == 120
    assert view.state(manager.partitions.all()[0].manifest().epoch) is ViewState.SUCCESS
    assert compacted(manager) == newest(before, 120)
    assert list(manager.reader().records(NAME, 0)) == before
    assert (view.record_count, view.key_count) == (9, 9)
    assert (view.last_run.records_in, view.last_run.records_out) == (120, 9)


def test_reader_of_a_view_continues_in_the_log(world):
    manager = ready(world)
    build(manager)
    send(manager, 30, start=120)
    log = list(manager.reader().records(NAME, 0))
    assert compacted(manager) == newest(log, 120) + log[120:]
    assert compacted(manager, 115) == [each for each in newest(log, 120) + log[120:] if each.offset >= 115]
    assert compacted(manager, 118, 125) == [each for each in newest(log, 120) + log[120:] if 118 <= each.offset < 125]
    assert compacted(manager, 130) == log[130:]
    assert manager.reader(read_compacted=True).offsets(NAME) == (0, 150)


def test_second_view_build_reads_only_new_records(world):
    manager = ready(world)
    build(manager)
    send(manager, 30, start=120, keys=4)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    log = list(manager.reader().records(NAME, 0))
    build(manager)
    view = find_view(manager.partitions.all()[0].manifest().views, "compacted")
    assert (view.last_run.from_offset, view.last_run.upto_offset) == (120, 150)
    assert view.last_run.records_in == 9 + 30
    assert compacted(manager) == newest(log, 150)


def test_view_build_without_new_copied_records_commits_nothing(world):
    manager = ready(world)
    build(manager)
    sequence = manager.partitions.all()[0].manifest().sequence
    assert plan_views(manager, "t", now_ms=NOW).is_empty
    assert build(manager).is_empty
    assert manager.partitions.all()[0].manifest().sequence == sequence


def test_read_of_a_missing_view_names_the_command_that_builds_it(world):
    manager = ready(world)
    reader = manager.reader(read_compacted=True)
    for verb in (
        lambda: list(reader.records(NAME, 0)),
        lambda: list(reader.batches(NAME, 0)),
        lambda: reader.offsets(NAME),
        lambda: reader.offset_for_timestamp(NAME, 0),
    ):
        with pytest.raises(NotFound, match=r"build it with 'tiered view build t'"):
            verb()
    build(manager)
    with pytest.raises(NotFound, match="view=other"):
        list(manager.reader(read_compacted=True, view="other").records(NAME, 0))


def test_view_is_readable_from_the_bucket_alone(world):
    manager = ready(world)
    build(manager)
    expected = compacted(manager)
    with RemoteLog(world.store) as bucket:
        assert list(bucket.reader(read_compacted=True).records(NAME, 0)) == expected


# -- contents of a view


def add(manager, *records, roll=True):
    manager.append("t", [Record(key, value, NOW) for key, value in records], 0, now_ms=NOW)
    if roll:
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)


def view_of(manager, name="compacted"):
    return find_view(manager.partitions.all()[0].manifest().views, name)


def test_tombstone_removes_its_key_from_the_view(world):
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    add(manager, (b"a", b"1"), (b"b", b"1"), (b"c", None))
    build(manager)
    assert [(each.key, each.value) for each in compacted(manager)] == [(b"a", b"1"), (b"b", b"1")]
    add(manager, (b"a", None), (b"b", b""))
    build(manager)
    assert [(each.key, each.value) for each in compacted(manager)] == [(b"b", b"")]


def test_view_can_become_empty_and_get_records_again(world):
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    add(manager, (b"a", b"1"))
    build(manager)
    add(manager, (b"a", None))
    build(manager)
    assert view_of(manager).entries == ()
    assert compacted(manager) == []
    add(manager, (b"a", b"2"))
    build(manager)
    assert [each.value for each in compacted(manager)] == [b"2"]


@pytest.mark.parametrize("retained", [False, True])
def test_view_keeps_records_without_a_key_only_with_the_setting(world, retained):
    manager = world.open()
    setting = {"compaction.view.retain.null.key": str(retained).lower()}
    manager.topics.create("t", 1, {**TIERED, **setting}, now_ms=NOW)
    for _ in range(2):
        add(manager, (None, b"1"), (b"a", b"1"), (None, b"2"))
        build(manager)
    kept = [b"1", b"2", b"1", b"1", b"2"] if retained else [b"1"]
    assert [each.value for each in compacted(manager)] == kept
    assert (view_of(manager).record_count, view_of(manager).key_count) == (len(kept), 1)


@pytest.mark.parametrize("deletes", [False, True])
def test_empty_value_removes_its_key_from_the_view_only_with_the_setting(world, deletes):
    manager = world.open()
    setting = {"compaction.view.empty.value.deletes": str(deletes).lower()}
    manager.topics.create("t", 1, {**TIERED, **setting}, now_ms=NOW)
    add(manager, (b"a", b"1"), (b"b", b"1"), (b"c", b""))
    build(manager)
    assert [each.key for each in compacted(manager)] == ([b"a", b"b"] if deletes else [b"a", b"b", b"c"])
    add(manager, (b"a", b""), (b"d", b"1"))
    build(manager)
    assert [each.key for each in compacted(manager)] == ([b"b", b"d"] if deletes else [b"b", b"c", b"a", b"d"])
    assert [each.key for each in manager.reader().records(NAME, 0)] == [b"a", b"b", b"c", b"a", b"d"], (
        "the log must be unchanged"
    )


def test_empty_values_are_removed_from_an_existing_view_after_the_setting_changes(world):
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    add(manager, (b"a", b""), (b"b", b"1"))
    build(manager)
    assert [each.key for each in compacted(manager)] == [b"a", b"b"]
    manager.topics.alter("t", {"compaction.view.empty.value.deletes": "true"}, now_ms=NOW)
    add(manager, (b"c", b"1"))
    build(manager)
    assert [each.key for each in compacted(manager)] == [b"b", b"c"]


def test_view_build_keeps_parts_without_replaced_records(world):
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 400, keys=400)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build(manager)
    before = view_of(manager)
    assert len(before.entries) > 4
    add(manager, (b"k399", b"new"))
    build(manager)
    after = view_of(manager)
    assert after.entries[:4] == before.entries[:4]
    assert {entry.ulid for entry in after.entries} != {entry.ulid for entry in before.entries}
    assert compacted(manager) == newest(manager.reader().records(NAME, 0), 401)
    listed = {each.key for each in manager.partitions.all()[0].manifest().pending_deletes}
    assert listed == {
        key for entry in before.entries if entry not in after.entries for key in (entry.data_key, entry.indexes_key)
    }


def test_horizon_of_a_view_is_limited_by_the_copied_transaction_markers(world):
    """A marker that is only on this disk may be lost with the disk.
    The view would then show uncommitted records."""
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    add(manager, (b"a", b"before"), roll=False)
    log = manager.partitions.all()[0].log
    who = Producer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"a", b"undecided", NOW)], now_ms=NOW, producer=who)
    log.roll(now_ms=NOW)
    log.append_marker(7, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    settle(manager)
    assert manager.partitions.all()[0].manifest().next_offset == 2
    build(manager)
    assert view_of(manager).horizon_offset == 1
    assert [each.value for each in compacted(manager)] == [b"before", b"undecided"]
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build(manager)
    assert view_of(manager).horizon_offset == 3
    assert [each.value for each in compacted(manager)] == [b"undecided"]


def test_view_has_no_records_that_are_only_on_the_local_disk(world):
    manager = ready(world)
    send(manager, 30, start=120)
    build(manager)
    assert view_of(manager).horizon_offset == 120
    manager.abandon()
    with world.open(disk=world.other_disk()) as other:
        send(other, 5, start=500)
        assert [each.value for each in compacted(other, 120)] == [b"value %d" % at for at in range(500, 505)]


def test_view_buffer_too_small_for_one_key_is_an_error_that_names_the_setting(world):
    manager = ready(world)
    held = manager.partitions.all()[0]
    held.rules = replace(held.rules, view_buffer_bytes=24)
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    assert "raise log.cleaner.dedupe.buffer.size" in str(manager.problems[NAME])
    assert view_of(manager).state(held.manifest().epoch) is ViewState.ERROR
    assert "raise log.cleaner.dedupe.buffer.size" in view_of(manager).failure.error
    held.rules = replace(held.rules, view_buffer_bytes=1 << 20)
    build(manager)
    assert view_of(manager).failure is None


def test_small_view_buffer_gives_the_same_view_in_more_passes(world):
    manager = ready(world)
    build(manager)
    held = manager.partitions.all()[0]
    held.rules = replace(held.rules, view_buffer_bytes=80)
    build(manager, name="slowly")
    assert view_of(manager, "slowly").last_run.key_ranges > 2
    slowly = manager.reader(read_compacted=True, view="slowly")
    assert list(slowly.records(NAME, 0)) == compacted(manager)


def test_part_size_grows_with_the_view_up_to_its_maximum():
    assert part_bytes(1 << 30, 1 << 30) == 1 << 30
    assert part_bytes(1000, PARTS_WANTED * 5000) == 5000
    assert part_bytes(1000, 1 << 60) == PART_BYTES_MAX


def test_cancelled_view_build_keeps_the_old_view_and_records_the_cancel(world):
    manager = ready(world)
    build(manager)
    before = compacted(manager)
    add(manager, (b"k1", b"new"))
    asked = iter([False] * 4)
    build_views(manager, plan_views(manager, "t", now_ms=NOW), should_stop=lambda: next(asked, True))
    assert "the build of the view was stopped on request" in view_of(manager).failure.error
    assert [each for each in compacted(manager) if each.offset < 120] == before


# -- the log changes after the view was built


def expired(world, manager, now_ms):
    manager.topics.alter("t", {"retention.ms": "1ms"}, now_ms=now_ms)
    settle(manager, now_ms)
    return manager


def test_view_is_readable_after_its_log_has_expired(world):
    manager = ready(world)
    build(manager)
    expected = compacted(manager)
    expired(world, manager, NOW)
    assert manager.reader().offsets(NAME) == (120, 120)
    assert compacted(manager) == expected
    with pytest.raises(OffsetOutOfRange):
        list(manager.reader().records(NAME, 0))
    send(manager, 10, start=120)
    assert [each.offset for each in compacted(manager)][-10:] == list(range(120, 130))
    with RemoteLog(world.store) as bucket:
        assert list(bucket.reader(read_compacted=True).records(NAME, 0)) == expected


def test_gap_between_view_and_log_is_an_error_until_the_loss_is_accepted(world):
    manager = ready(world)
    build(manager)
    known = compacted(manager)
    send(manager, 30, start=120)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    manager.maintenance.delete_records({NAME: 140}, now_ms=NOW)
    settle(manager)
    (status,) = view_status(manager, NOW)
    assert status.gap == (120, 140)
    assert not status.is_healthy
    reader = manager.reader(read_compacted=True)
    for verb in (lambda: list(reader.records(NAME, 0)), lambda: reader.offset_for_timestamp(NAME, 0)):
        with pytest.raises(
            InvalidRequest, match=r"the log no longer holds the records that follow it.*lost=\[120, 140\)"
        ):
            verb()
    assert list(reader.records(NAME, 0, 120)) == known
    assert [each.offset for each in reader.records(NAME, 140)] == list(range(140, 150))
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    assert "the log no longer holds the records that follow it" in str(manager.problems[NAME])
    assert view_status(manager, NOW)[0].state is ViewState.ERROR
    build(manager, accepts_loss=True)
    assert view_of(manager).lost == ((120, 140),)
    assert view_of(manager).horizon_offset == 150
    log = {each.offset: each for each in manager.reader().records(NAME, 140)}
    assert compacted(manager) == newest([*known, *log.values()], 150)


# -- several readers, several views


def test_reader_finishes_the_replaced_view_within_the_grace_period(world):
    manager = ready(world)
    build(manager)
    expected = compacted(manager)
    begun = manager.reader(read_compacted=True).records(NAME, 0)
    got = [next(begun)]
    add(manager, *((b"k%d" % at, b"new") for at in range(9)))
    build(manager)
    assert view_of(manager).horizon_offset == 129
    rest = list(begun)
    assert got + [each for each in rest if each.offset < 120] == expected
    assert [each.offset for each in rest if each.offset >= 120] == list(range(120, 129))


def gone(world, manager):
    """Deletes the objects of the old view: advances the time past their grace period."""
    settle(manager, NOW + DAY + HOUR)
    assert manager.partitions.all()[0].manifest().pending_deletes == ()


def test_reader_whose_view_was_deleted_before_its_first_batch_reads_the_newest(world):
    manager = ready(world)
    build(manager)
    with RemoteLog(world.store) as bucket:
        assert bucket.manifest(NAME).views
        add(manager, *((b"k%d" % at, b"new") for at in range(9)))
        build(manager)
        gone(world, manager)
        assert list(bucket.reader(read_compacted=True).records(NAME, 0)) == compacted(manager)


def test_reader_whose_view_was_deleted_during_the_read_must_start_again(world):
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(manager, 400, keys=400)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build(manager)
    with RemoteLog(world.store, cache_bytes=0) as bucket:
        begun = bucket.reader(read_compacted=True).records(NAME, 0)
        next(begun)
        add(manager, *((b"k%d" % at, b"new") for at in range(400)))
        build(manager)
        gone(world, manager)
        with pytest.raises(NotFound, match="replaced while it was read; begin again at its start"):
            list(begun)


def test_reader_with_a_collected_manifest_reads_the_newest_view(world, monkeypatch):
    """The manifests after the reader's own are deleted, so the next sequence number is free.
    A free number therefore does not prove that a manifest is the newest."""
    monkeypatch.setattr(retention, "MANIFESTS_RETAINED", 2)
    monkeypatch.setattr(retention, "MANIFESTS_AT_ONCE", 1)
    monkeypatch.setattr(invariants, "MANIFESTS_RETAINED_MIN", 1)
    manager = ready(world)
    build(manager)
    with RemoteLog(world.store) as bucket:
        slept_at = bucket.manifest(NAME).sequence
        for _ in range(4):
            add(manager, *((b"k%d" % at, b"new") for at in range(9)))
            build(manager)
        gone(world, manager)
        assert manager.partitions.all()[0].metadata.gc_boundary > slept_at
        assert list(bucket.reader(read_compacted=True).records(NAME, 0)) == compacted(manager)


@pytest.mark.damages_bucket
def test_lost_object_of_a_view_is_corrupt_and_named(world):
    manager = ready(world)
    build(manager)
    entry = view_of(manager).entries[0]
    world.store.delete([manager.partitions.all()[0].prefix + entry.data_key])
    with RemoteLog(world.store) as bucket, pytest.raises(Corrupt, match=r"an object of it is missing.*view/compacted/"):
        list(bucket.reader(read_compacted=True).records(NAME, 0))


def test_views_of_several_names_coexist_and_are_dropped_separately(world):
    manager = ready(world)
    build(manager)
    build(manager, name="other")
    assert [each.view.name for each in view_status(manager, NOW)] == ["compacted", "other"]
    assert [each.partition for each in views_to_drop(manager, "t", now_ms=NOW)] == [NAME]
    assert drop_views(manager, "t", now_ms=NOW) == [NAME]
    with pytest.raises(NotFound, match="the topic has no compacted view"):
        compacted(manager)
    assert list(manager.reader(read_compacted=True, view="other").records(NAME, 0))
    with pytest.raises(NotFound, match="the topic has no view of this name"):
        drop_views(manager, "t", now_ms=NOW)
    with pytest.raises(NotFound, match="the topic has no view of this name"):
        views_to_drop(manager, "t", now_ms=NOW)
    settle(manager, NOW + DAY + HOUR)
    prefix = manager.partitions.all()[0].prefix
    assert {each.key.split("/")[3] for each in world.store.list(prefix + "view/")} == {"other"}


def test_view_of_a_compacted_topic_has_the_newest_values(world):
    manager = ready(world, **{"cleanup.policy": "compact"})
    log = list(manager.reader().records(NAME, 0))
    build(manager)
    assert compacted(manager) == newest(log, view_of(manager).horizon_offset)


def test_offset_for_a_timestamp_is_found_in_view_and_log(world):
    manager = ready(world)
    build(manager)
    send(manager, 5, start=120)
    reader = manager.reader(read_compacted=True)
    given = list(reader.records(NAME, 0))
    times = sorted({each.timestamp_ms for each in manager.reader().records(NAME, 0)})
    for asked in (0, *times, times[-1] + 1):
        expected = next((each.offset for each in given if each.timestamp_ms >= asked), None)
        assert reader.offset_for_timestamp(NAME, asked) == expected


def test_view_part_left_by_a_crash_is_deleted_at_the_next_start(world):
    manager = ready(world)
    manager.abandon()
    path = "./data/t-0/00000000000000000003.log.cleaned"
    world.disk.create(path).append(b"half a part")
    with world.open() as again:
        assert not world.disk.exists(path)
        build(again)
        assert not [name for name in world.disk.list("./data/t-0") if name.endswith(".cleaned")]


def test_view_parts_have_the_object_encoding_of_the_topic(world):
    manager = ready(world, count=400, **{"remote.compression": "zstd"})
    build(manager)
    (entry,) = view_of(manager).entries
    assert entry.data_key.endswith(".log.zst") == manager.partitions.all()[0].manifest().segments[0].data_key.endswith(
        ".log.zst"
    )
    assert compacted(manager) == newest(manager.reader().records(NAME, 0), 400)


def test_view_of_a_log_that_starts_inside_a_batch_starts_at_its_offset(world):
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    add(manager, *((b"k%d" % at, b"v") for at in range(6)))
    manager.maintenance.delete_records({NAME: 4}, now_ms=NOW)
    build(manager)
    assert [each.offset for each in compacted(manager, 4)] == [4, 5]
    assert manager.reader(read_compacted=True).offsets(NAME) == (4, 6)
    with pytest.raises(OffsetOutOfRange, match="first_offset=4"):
        compacted(manager, 3)


def test_view_with_too_many_parts_is_an_error_and_leaves_no_object(world, monkeypatch):
    monkeypatch.setattr(view_building, "VIEW_ROWS_MAX", 2)
    manager = ready(world, count=400)
    send(manager, 400, start=400, keys=400)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    assert "it would have more parts than a manifest may hold" in view_of(manager).failure.error
    assert not [each.key for each in world.store.list("") if "/view/" in each.key]


def test_view_has_copied_records_that_the_local_cleaner_has_removed(world):
    """The local cleaner removed them because of newer records that are not copied yet.
    The view must keep them."""
    manager = ready(world, **{"cleanup.policy": "compact", "local.retention.ms": "-1"})
    held = manager.partitions.all()[0]
    add(manager, *((b"k%d" % at, b"newer") for at in range(9)), roll=False)
    manager.partitions.roll("t", now_ms=NOW)
    held.rules = replace(held.rules, copy_disabled=True)
    settle(manager)
    assert held.manifest().next_offset == 120
    build(manager)
    manager.abandon()
    with RemoteLog(world.store) as bucket:
        log = list(bucket.reader().records(NAME, 0))
        assert list(bucket.reader(read_compacted=True).records(NAME, 0)) == newest(log, 120)
        assert len(newest(log, 120)) == 9


def test_tombstone_is_kept_beyond_its_retention_until_the_view_has_read_it(world):
    """Otherwise the view would keep the record that the tombstone deletes."""
    soon = {"remote.recompaction.min.saved.bytes": "0", "remote.recompaction.min.reduction.ratio": "0"}
    compact = {"cleanup.policy": "compact", "delete.retention.ms": "0", "local.retention.ms": "-1"}
    manager = ready(world, **soon, **compact)
    build(manager)
    add(manager, (b"k1", None))
    for turn in range(1, 5):
        add(manager, (b"k2", b"%d" % turn))
        settle(manager, NOW + turn * DAY)
    assert view_of(manager).horizon_offset == 120
    assert [each.offset for each in manager.reader().records(NAME, 0) if each.value is None] == [120]
    build(manager)
    assert b"k1" not in {each.key for each in compacted(manager)}
    for turn in range(5, 8):
        add(manager, (b"k2", b"%d" % turn))
        settle(manager, NOW + turn * DAY)
    assert [each.offset for each in manager.reader().records(NAME, 0) if each.value is None] == []
    build(manager)
    assert {each.key for each in compacted(manager)} == {b"k%d" % at for at in range(9)} - {b"k1"}
