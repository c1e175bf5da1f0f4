"""Compacted views of a topic without a remote tier: built from the local log, read, retained and invalidated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from disk_model import ModelDisk
from manager_world import DAY, HOUR, NAME, NOW, SwitchableStore, World, send, settle

from local.errors import Corrupt, NotFound, OffsetOutOfRange
from local.format.record import Record
from local.log.producer_state import Producer
from local.verify.findings import Severity
from remote.manifest.manifest import decode_manifest
from remote.manifest.view import ViewState, find_view, tombstone_bound
from remote.manifest.view_changes import ViewCatalog, decode_catalog, encode_catalog
from tiered.health.bucket_verifying import verify_views
from tiered.inspect.log_dir_usage import describe_log_dirs
from tiered.jobs.view_jobs import build_views, drop_views, plan_views, view_status
from tiered.manager.manager import LogManager
from tiered.read.view_places import maintain_views

CATALOG = "./data/t-0/view-catalog"


@pytest.fixture
def world() -> World:
    return World()


def ready(world: World, count: int = 120, *, opened: dict[str, str] | None = None, **properties: str) -> LogManager:
    """A manager with a local-only topic, of which some records are in the active segment.

    `opened` are settings of the manager.
    """
    manager = world.open(**(opened or {}))
    asked = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in properties.items()}}
    manager.topics.create("t", 1, asked, now_ms=NOW)
    send(manager, count)
    return manager


def build(manager: LogManager, **choices: bool) -> None:
    build_views(manager, plan_views(manager, "t", now_ms=NOW, **choices))
    assert manager.problems == {}


def compacted(manager: LogManager, start: int = 0, end: int | None = None) -> list:
    return list(manager.reader(read_compacted=True).records(NAME, start, end))


def newest(records: list, horizon: int) -> list:
    """The oracle: the newest record of each key below the horizon, unless its value is null."""
    last = {record.key: record for record in records if record.offset < horizon and record.key is not None}
    return sorted((each for each in last.values() if each.value is not None), key=lambda each: each.offset)


def log_of(manager: LogManager) -> list:
    return list(manager.reader().records(NAME, 0))


def view_of(manager: LogManager, name: str = "compacted"):
    return find_view(manager.partitions.all()[0].local_views.known(), name)


def parts(world: World) -> set[str]:
    return {path for path in world.disk.names if "/view/" in path}


def add(manager: LogManager, *records: tuple[bytes | None, bytes | None]) -> None:
    manager.append("t", [Record(key, value, NOW) for key, value in records], 0, now_ms=NOW)


# -- build and read


def test_view_covers_all_stable_records_including_the_active_segment(world: World) -> None:
    manager = ready(world)
    before = log_of(manager)
    build(manager)
    assert view_of(manager).horizon_offset == 120
    assert compacted(manager) == newest(before, 120)
    assert log_of(manager) == before
    assert plan_views(manager, "t", now_ms=NOW).is_empty
    (status,) = view_status(manager, NOW, ["t"])
    assert (status.state, status.is_local, status.gap) == (ViewState.SUCCESS, True, None)


def test_reader_continues_in_the_log_and_the_next_run_covers_the_rest(world: World) -> None:
    manager = ready(world)
    build(manager)
    send(manager, 30, start=120, keys=4)
    log = log_of(manager)
    assert compacted(manager) == newest(log, 120) + log[120:]
    assert compacted(manager, 118, 125) == [each for each in newest(log, 120) + log[120:] if 118 <= each.offset < 125]
    build(manager)
    assert view_of(manager).last_run.records_in == 9 + 30
    assert compacted(manager) == newest(log, 150)
    late = next(each.offset for each in newest(log, 150) if each.offset >= 145)
    assert manager.reader(read_compacted=True).offset_for_timestamp(NAME, NOW - DAY + 145) == late


def test_view_is_readable_after_a_restart_and_in_a_read_only_open(world: World) -> None:
    manager = ready(world)
    build(manager)
    log = log_of(manager)
    with world.open(read_only=True) as onlooker:
        assert compacted(onlooker) == newest(log, 120)
        send(manager, 30, start=120, keys=4)
        build(manager)
        settle(manager)
        assert [each.offset for each in compacted(onlooker)][-1] == 119  # it reads the log as of its open
    manager.close()
    with world.open() as again:
        assert compacted(again) == newest(log_of(again), 150)
        assert view_of(again).state(again.partitions.all()[0].local_views.epoch) is ViewState.SUCCESS


def test_read_only_open_reads_the_newer_view_after_deletion_of_old_parts(world: World) -> None:
    manager = ready(world)
    build(manager)
    with world.open(read_only=True) as onlooker:
        reader = onlooker.reader(read_compacted=True)
        send(manager, 30, start=120)
        build(manager)
        settle(manager)
        assert [each.offset for each in reader.records(NAME, 0, 150)] == [each.offset for each in compacted(manager)]


def test_missing_view_error_names_the_build_command(world: World) -> None:
    manager = ready(world)
    with pytest.raises(NotFound, match=r"build it with 'tiered view build t'"):
        compacted(manager)


def test_view_ends_before_an_open_transaction(world: World) -> None:
    manager = ready(world, count=10)
    producer = Producer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    log = manager.partitions.all()[0].log
    log.append([Record(b"k1", b"undecided", NOW)], now_ms=NOW, producer=producer)
    send(manager, 10, start=20)
    build(manager)
    assert view_of(manager).horizon_offset == 10


def test_old_parts_are_deleted_after_the_delay_and_not_before(world: World) -> None:
    manager = ready(world, opened={"file_delete_delay_ms": "1000"})
    build(manager)
    old = parts(world)
    send(manager, 30, start=120)
    build(manager)
    manager.tick(NOW + 999)
    assert old <= parts(world)
    manager.tick(NOW + 1000)
    assert not old & parts(world)
    assert decode_catalog(world.disk.read(CATALOG), path=CATALOG).pending_deletes == ()
    assert compacted(manager) == newest(log_of(manager), 150)


def test_wrong_clock_postpones_the_deletion_by_at_most_the_delay(world: World) -> None:
    manager = ready(world, opened={"file_delete_delay_ms": "1000"})
    build(manager)
    old = parts(world)
    send(manager, 30, start=120)
    build_views(manager, plan_views(manager, "t", now_ms=NOW + DAY))
    manager.tick(NOW)
    manager.tick(NOW + 1000)
    assert not old & parts(world)


def test_views_of_several_names_are_independent_and_dropped_separately(world: World) -> None:
    manager = ready(world)
    build(manager)
    build_views(manager, plan_views(manager, "t", name="other", now_ms=NOW))
    drop_views(manager, "t", now_ms=NOW)
    with pytest.raises(NotFound):
        compacted(manager)
    assert list(manager.reader(read_compacted=True, view="other").records(NAME, 0))
    with pytest.raises(NotFound, match="the topic has no view of this name"):
        drop_views(manager, "t", now_ms=NOW)
    settle(manager)
    assert {path.split("/")[4] for path in parts(world)} == {"other"}


# -- rules shared with remote views


def test_view_keeps_records_that_its_log_deleted(world: World) -> None:
    manager = ready(world)
    build(manager)
    expected = compacted(manager)
    manager.maintenance.delete_records({NAME: 120}, now_ms=NOW)
    settle(manager)
    assert compacted(manager) == expected
    assert manager.reader(read_compacted=True).offsets(NAME) == (0, 120)


def test_records_deleted_beyond_the_horizon_are_a_gap_until_accepted(world: World) -> None:
    manager = ready(world)
    build(manager)
    send(manager, 30, start=120)
    manager.maintenance.delete_records({NAME: 130}, now_ms=NOW)
    (status,) = view_status(manager, NOW, ["t"])
    assert status.gap == (120, 130)
    with pytest.raises(OffsetOutOfRange, match=r"lost=\[120, 130\)"):
        compacted(manager)
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    assert "lost=[120, 130)" in str(manager.problems[NAME])
    build_views(manager, plan_views(manager, "t", accepts_loss=True, now_ms=NOW))
    assert view_of(manager).lost == ((120, 130),)
    assert view_of(manager).horizon_offset == 150


def test_maintenance_builds_the_view_by_threshold_and_before_retention_expires(world: World) -> None:
    manager = ready(world, compaction_view_threshold="1000000", retention_bytes="500", retention_ms="-1")
    log = log_of(manager)
    settle(manager)
    assert manager.partitions.all()[0].log.log_start_offset > 0
    assert view_of(manager).last_run.from_offset == 0
    assert compacted(manager)[: len(newest(log, 120))] == newest(log, 120)
    manager.topics.alter("t", {"compaction.view.threshold": "100", "retention.bytes": "-1"}, now_ms=NOW)
    send(manager, 60, start=120)
    settle(manager)
    assert view_of(manager).horizon_offset == 180
    send(manager, 10, start=180)
    settle(manager)
    assert view_of(manager).horizon_offset == 180  # the bytes of the active segment were processed once


def test_retention_waits_for_a_view_that_cannot_be_built(world: World) -> None:
    manager = ready(world, compaction_view_threshold="1000000", retention_bytes="500")
    held = manager.partitions.all()[0]
    held.rules = replace(held.rules, view_buffer_bytes=24)
    manager.tick(NOW)
    manager.tick(NOW)
    assert view_of(manager).failure is not None
    assert manager.partitions.all()[0].log.log_start_offset == 0
    assert len(log_of(manager)) == 120


def test_tombstone_beyond_the_view_horizon_is_kept_past_its_retention(world: World) -> None:
    manager = ready(world, count=0, cleanup_policy="compact", delete_retention_ms="0")
    add(manager, (b"a", b"1"), (b"b", b"1"))
    build(manager)
    add(manager, (b"a", None), (b"c", b"1"))
    for at in range(3):
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager, NOW + at * DAY)
        add(manager, (b"d%d" % at, b"1"))
    build(manager)
    assert [each.key for each in compacted(manager)] == [b"b", b"c", b"d0", b"d1", b"d2"]


# -- shorter logs, damage, leftover files


def test_view_is_invalid_after_truncation_below_its_horizon(world: World) -> None:
    manager = ready(world)
    build(manager)
    manager.partitions.all()[0].log.truncate_to(100, now_ms=NOW)
    (status,) = view_status(manager, NOW, ["t"])
    assert status.state is ViewState.ERROR
    assert "ends at offset 100, below the horizon 120 of the view" in status.view.failure.error
    with pytest.raises(NotFound):
        compacted(manager)
    add(manager, *[(b"other", b"%d" % at) for at in range(40)])
    build(manager)
    assert compacted(manager) == newest(log_of(manager), 140)
    settle(manager)
    assert len(parts(world)) == 2 * len(view_of(manager).entries)


def test_log_shortened_by_recovery_invalidates_the_view_before_an_append(world: World) -> None:
    manager = ready(world)
    build(manager)
    manager.abandon()
    bases = sorted(path for path in world.disk.names if path.startswith("./data/t-0/0") and path.endswith(".log"))
    del world.disk.names[bases[-1]]
    world.disk.locks.clear()
    with world.open() as again:
        assert again.partitions.all()[0].log.next_offset < 120
        assert view_of(again).failure is not None
        assert decode_catalog(world.disk.read(CATALOG), path=CATALOG).views[0].entries == ()


def test_damaged_catalog_is_an_error_until_the_view_is_dropped(world: World) -> None:
    manager = ready(world)
    build(manager)
    manager.close()
    world.disk.names[CATALOG].data[40] ^= 1
    with world.open() as again:
        with pytest.raises(Corrupt, match="view catalog"):
            compacted(again)
        (status,) = view_status(again, NOW)
        assert status.state is ViewState.ERROR
        assert "tiered view drop t" in status.view.failure.error
        assert len(parts(world)) == 2
        assert len(log_of(again)) == 120
        drop_views(again, "t", now_ms=NOW)
        assert parts(world) == set()
        build(again)
        assert compacted(again) == newest(log_of(again), 120)


def test_malformed_catalog_is_refused() -> None:
    whole = encode_catalog(ViewCatalog(epoch=3))
    assert decode_catalog(whole, path="p").epoch == 3
    for wrong in (whole[:-1], whole + b" ", b"", whole.replace(b"catalog 1", b"catalog 2"), b"x" + whole):
        with pytest.raises(Corrupt, match="path=p"):
            decode_catalog(wrong, path="p")


def test_catalog_with_a_path_outside_its_directory_is_refused(world: World) -> None:
    manager = ready(world)
    build(manager)
    known = decode_catalog(world.disk.read(CATALOG), path=CATALOG)
    (view,) = known.views
    for key in ("/data/t-0/x.log", "view/compacted/../../00000000000000000000.log", "data/x.log"):
        forged = replace(view, entries=(replace(view.entries[0], data_key=key),))
        with pytest.raises(Corrupt):
            decode_catalog(encode_catalog(replace(known, views=(forged,))), path="p")


def test_orphaned_view_files_are_deleted_by_the_next_start(world: World) -> None:
    manager = ready(world)
    build(manager)
    manager.close()
    left = ["./data/t-0/view/compacted/left.log", "./data/t-0/view/~aside/x", "./data/t-0/view-catalog.tmp"]
    world.disk.make_directory("./data/t-0/view/~aside")
    for path in left:
        world.disk.create(path).append(b"left")
    found = {each.where: each.severity for each in verify_views(world.disk, "./data")}
    assert found == {left[0]: Severity.INFO, left[1]: Severity.INFO}
    with world.open() as again:
        assert not set(left) & set(world.disk.names)
        assert compacted(again) == newest(log_of(again), 120)


def test_verify_finds_damaged_and_missing_view_parts(world: World) -> None:
    manager = ready(world)
    build(manager)
    data = next(path for path in parts(world) if path.endswith(".log"))
    assert verify_views(world.disk, "./data") == []
    world.disk.names[data].data[70] ^= 1
    (found,) = verify_views(world.disk, "./data/t-0")
    assert (found.severity, found.where) == (Severity.CORRUPT, data)
    with pytest.raises(Corrupt):
        compacted(manager)
    del world.disk.names[data]
    (found,) = verify_views(world.disk, "./data")
    assert "a view names a file that does not exist" in found.what
    with pytest.raises(Corrupt, match="an object of it is missing"):
        compacted(manager)


# -- partition moves and topic deletion


def test_view_moves_with_its_log_and_counts_in_the_size_of_the_directory(world: World) -> None:
    world.config = replace(world.config, more_data_dirs=("./other",))
    manager = ready(world)
    build(manager)
    (source,) = [each for each in describe_log_dirs(world.config, storage=world.disk) if each.replicas]
    expected, before = (
        compacted(manager),
        sum(len(each.data) for path, each in world.disk.names.items() if "/t-0/" in path),
    )
    assert source.size_bytes == before
    target = next(root for root in world.config.data_dirs if root != source.facts.path)
    stream = manager.reader(read_compacted=True).records(NAME, 0)
    first = next(stream)
    manager.maintenance.move(NAME, target, now_ms=NOW)
    assert [first, *stream] == expected == compacted(manager)
    send(manager, 30, start=120)
    build(manager)
    settle(manager)
    assert not [path for path in world.disk.names if path.startswith(f"{source.facts.path}/t-0")]
    manager.close()
    with world.open() as again:
        assert compacted(again) == newest(log_of(again), 150)


def test_deleting_a_topic_deletes_its_views(world: World) -> None:
    manager = ready(world)
    build(manager)
    manager.topics.delete("t", now_ms=NOW)
    settle(manager)
    assert not [path for path in (*world.disk.names, *world.disk.directories) if "t-0" in path]


# -- remote tier enabled and disabled


def enable(manager: LogManager, **more: str) -> None:
    asked = {"remote.storage.enable": "true", **{key.replace("_", "."): value for key, value in more.items()}}
    manager.topics.alter("t", asked, now_ms=NOW)


def test_view_of_a_topic_is_kept_when_a_remote_tier_is_enabled(world: World) -> None:
    manager = ready(world)
    build(manager)
    manager.maintenance.delete_records({NAME: 115}, now_ms=NOW)
    expected = compacted(manager)
    enable(manager)
    assert compacted(manager) == expected
    assert plan_views(manager, "t", now_ms=NOW).is_empty  # the bucket has no record that the view lacks
    send(manager, 30, start=120, keys=4)
    log = list(manager.reader().records(NAME, 115))
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build(manager)
    manifest = manager.partitions.all()[0].manifest()
    view = find_view(manifest.views, "compacted")
    assert (view.start_offset, view.horizon_offset) == (0, 150)
    assert compacted(manager) == sorted(
        {each.key: each for each in (*expected, *log)}.values(), key=lambda each: each.offset
    )
    (status,) = view_status(manager, NOW, ["t"])
    assert (status.is_local, status.state) == (False, ViewState.SUCCESS)
    settle(manager)
    assert parts(world) == set()
    assert manager.partitions.all()[0].local_views.known() == ()


@pytest.mark.parametrize("is_late", [False, True])
def test_manifest_names_a_local_view_before_the_first_copy(world: World, is_late: bool) -> None:
    """A job that compacts the bucket reads only the manifest, and must keep tombstones for that view.

    If the store returns late, one maintenance round takes the writer role and copies.
    """
    manager = ready(world)
    build(manager)
    manager.partitions.roll("t", now_ms=NOW)
    if is_late:
        manager.close()
        late = SwitchableStore(world.store)
        manager = world.open(store=late, remote_storage_enable="true")
        late.is_down = False
    else:
        enable(manager)
    settle(manager)
    store, prefix = world.store, manager.partitions.all()[0].prefix
    manifests = [decode_manifest(store.get(each.key)) for each in store.list(prefix + "meta/head/")]
    assert any(manifest.segments for manifest in manifests)
    for manifest in manifests:
        if manifest.segments:
            assert [(view.name, view.is_built) for view in manifest.views] == [("compacted", False)]
            assert tombstone_bound(manifest.parts, manifest.views, 0) == 0


def test_reenabled_tier_names_the_local_view_before_the_first_copy(world: World) -> None:
    manager = ready(world)
    enable(manager)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    manager.topics.alter("t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}, now_ms=NOW)
    for at in range(4):
        manager.tick(NOW + at * DAY)
    build(manager)
    expected = compacted(manager)
    enable(manager)
    later = NOW + 5 * DAY
    for _ in range(6):
        manager.tick(later)
        manifest = manager.partitions.all()[0].manifest()
        assert not manifest.segments or find_view(manifest.views, "compacted") is not None
    assert manifest.segments
    assert compacted(manager) == expected


def test_local_view_with_a_remote_twin_is_dropped_by_the_next_maintenance(world: World) -> None:
    """A crash between the commit and the update of the catalog leaves both views."""
    manager = ready(world)
    build(manager)
    kept = world.disk.read(CATALOG)
    enable(manager)
    send(manager, 30, start=120)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build(manager)
    expected = compacted(manager)
    manager.close()
    world.disk.create(CATALOG).append(kept)
    with world.open() as again:
        assert compacted(again) == expected
        maintain_views(again.partitions.all()[0], NOW)
        assert again.partitions.all()[0].local_views.known() == ()


def test_disabled_tier_deletes_its_view_and_the_next_view_is_local(world: World) -> None:
    manager = ready(world)
    enable(manager)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build(manager)
    manager.topics.alter("t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}, now_ms=NOW)
    for _ in range(3):
        manager.tick(NOW)
    with pytest.raises(NotFound):
        compacted(manager)
    build(manager)
    assert view_of(manager).is_built
    assert compacted(manager) == newest(log_of(manager), 120)
    settle(manager, NOW + DAY + HOUR)
    assert compacted(manager) == newest(log_of(manager), 120)


def test_disk_without_views_has_no_view_files(world: World) -> None:
    manager = ready(world)
    settle(manager)
    manager.close()
    assert isinstance(world.disk, ModelDisk)
    assert not [path for path in (*world.disk.names, *world.disk.directories) if "view" in path]
