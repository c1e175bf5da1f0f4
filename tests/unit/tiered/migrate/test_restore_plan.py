"""Restore of topics from the bucket alone: every record, up to an exact offset, with a takeover, after
interruptions."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from disk_model import ModelDisk, PowerCut
from manager_world import COMPACTED, DAY, NAME, NOW, TIERED, World, send, settle

from local.errors import Conflict, Corrupt, DiskFailed, Fenced, InvalidRequest, NotFound
from local.format.record import Record, StoredRecord
from local.log import checkpoints
from local.log.producer_state import Producer
from local.logdirs.log_dir import LogDirectory
from local.names import new_topic_id
from local.records.isolation import Isolation
from local.settings import LogSettings
from local.verify.directories import verify
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import expire_segments
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager
from tiered.migrate.restore_plan import LocalSegments, RestoreWish, TopicRestore, plan_restore
from tiered.migrate.restore_running import RestoreOutcome, run_restore
from tiered.read.bucket_reader import RemoteLog

ROOT = "./restored"
COMMITTED = Isolation.READ_COMMITTED


def _world(kind: str = "plain", count: int = 500) -> World:
    """A topic with all its closed segments in the bucket. The manager is closed."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, COMPACTED if kind == "compacted" else TIERED, now_ms=NOW)
        if kind == "transactions":
            _transactions(manager)
        else:
            send(manager, count, keys=9)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        if kind == "compacted":
            send(manager, 60, start=count, keys=5)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
        assert manager.partitions.find(NAME).manifest().has_entries
    return world


def _transactions(manager: LogManager) -> None:
    """Two producers interleaved over several segments, with committed and aborted transactions."""
    log = manager.partitions.find(NAME).log
    sequences = {7: 0, 8: 0}
    for turn in range(8):
        for producer_id, sequence in list(sequences.items()):
            producer = Producer(
                producer_id=producer_id, producer_epoch=1, base_sequence=sequence, is_transactional=True
            )
            records = [Record(b"k", b"turn %d of %d" % (turn, producer_id), NOW - DAY) for _ in range(6)]
            log.append(records, now_ms=NOW, producer=producer)
            sequences[producer_id] += 6
        send(manager, 5, start=turn * 5)
        log.append_marker(7, 1, commit=turn % 2 == 0, coordinator_epoch=0, now_ms=NOW)
        log.append_marker(8, 1, commit=turn % 3 == 0, coordinator_epoch=0, now_ms=NOW)


def _plan(store: MemoryStore, **wish: object) -> list[TopicRestore]:
    return plan_restore(store, list_partitions(store), RestoreWish(**wish), now_ms=NOW)  # type: ignore[arg-type]


def _restore(store: MemoryStore, disk: ModelDisk, **wish: object) -> RestoreOutcome:
    return run_restore(store, _plan(store, **wish), disk, ROOT, now_ms=lambda: NOW)


def _in_bucket(store: MemoryStore, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[StoredRecord]:
    reader = RemoteLog(store).reader(isolation=isolation)
    return list(reader.records(NAME, reader.offsets(NAME)[0]))


def _on_disk(disk: ModelDisk, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[StoredRecord]:
    """The records that a log reads without a bucket."""
    directory = LogDirectory(disk, ROOT, read_only=True)
    log = directory.open_log(NAME, LogSettings(), now_ms=NOW)
    return list(log.records(log.log_start_offset, isolation=isolation))


def _manager(world: World, disk: ModelDisk) -> LogManager:
    """A manager on a restored directory."""
    return LogManager.open(replace(world.config, data_dir=ROOT), now_ms=NOW, storage=disk, store=world.store)


def _manifest(world: World) -> Manifest:
    return MetadataLog(world.store, list_partitions(world.store)[0].prefix).refresh(exact=True)


@pytest.mark.parametrize("kind", ["plain", "compacted", "transactions"])
def test_restored_log_has_every_record_of_its_source(kind: str) -> None:
    world, disk = _world(kind), ModelDisk()
    outcome = _restore(world.store, disk)
    assert outcome.is_complete
    assert _on_disk(disk) == _in_bucket(world.store)
    assert _on_disk(disk, COMMITTED) == _in_bucket(world.store, COMMITTED)
    assert disk.exists(f"{ROOT}/.kafka_cleanshutdown")
    assert outcome.partitions[0].next_offset == _manifest(world).allocated_end_offset
    assert [each for each in verify(disk, ROOT) if not each.where.endswith("topics.json")] == []


def test_restored_files_equal_those_of_the_source() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    disk = ModelDisk()
    _restore(world.store, disk)
    names = [name for name in world.disk.list("./data/t-0") if name.endswith((".log", ".index", ".timeindex"))]
    assert len(names) > 9
    for name in (*names, "leader-epoch-checkpoint", "partition.metadata"):
        assert disk.read(f"{ROOT}/t-0/{name}") == world.disk.read(f"./data/t-0/{name}"), name


@pytest.mark.parametrize("kind", ["plain", "transactions"])
def test_restore_to_an_offset_ends_at_exactly_this_record(kind: str) -> None:
    world = _world(kind)
    whole = _in_bucket(world.store)
    end = _manifest(world).allocated_end_offset
    for cut in range(1, end, 17):
        disk = ModelDisk()
        (done,) = _restore(world.store, disk, to_offset=cut).partitions
        assert done.next_offset == cut
        assert _on_disk(disk) == [record for record in whole if record.offset < cut]
    if kind == "transactions":
        (done,) = _restore(world.store, ModelDisk(), to_offset=5).partitions
        assert done.open_transactions == 1


def test_restore_to_a_time_ends_before_the_first_record_at_or_after_it() -> None:
    world, disk = _world(), ModelDisk()
    whole = _in_bucket(world.store)
    _restore(world.store, disk, to_time_ms=whole[37].timestamp_ms)
    assert _on_disk(disk) == whole[:37]
    later = ModelDisk()
    _restore(world.store, later, to_time_ms=NOW + DAY)
    assert _on_disk(later) == whole


def test_restore_of_a_cleaned_topic_to_an_offset_needs_acceptance_of_missing_keys() -> None:
    world = _world("compacted")
    with pytest.raises(InvalidRequest, match="keys whose older records were replaced") as refused:
        _plan(world.store, to_offset=200)
    exact_from = refused.value.facts["exact_from"]
    assert _plan(world.store, to_offset=exact_from)[0].partitions[0].exact_from is None
    disk = ModelDisk()
    (done,) = _restore(world.store, disk, to_offset=200, accepts_missing_keys=True).partitions
    assert done.exact_from == exact_from
    assert _on_disk(disk) == [record for record in _in_bucket(world.store) if record.offset < 200]


@pytest.mark.parametrize("wish", [
    {"to_offset": 5, "to_time_ms": 5},
    {"to_offset": 5, "takes_over": True},
    {"kept": LocalSegments.NONE},
    {"kept": LocalSegments.RECENT},
])  # fmt: skip
def test_contradictory_restore_options_are_refused(wish: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="cannot restore"):
        _plan(MemoryStore("memory://b"), **wish)


def test_takeover_of_some_partitions_of_a_topic_is_refused() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 3, TIERED, now_ms=NOW)
        for partition in range(3):
            manager.append("t", [Record(b"k", b"v", NOW)] * 50, partition, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    names = list_partitions(world.store)
    before = dict(world.store._objects)
    for some in (names[1:2], names[:2]):
        with pytest.raises(InvalidRequest, match="a part of a topic"):
            plan_restore(world.store, some, RestoreWish(takes_over=True), now_ms=NOW)
        assert plan_restore(world.store, some, RestoreWish(), now_ms=NOW)
    assert len(plan_restore(world.store, names, RestoreWish(takes_over=True), now_ms=NOW)[0].partitions) == 3
    assert world.store._objects == before


@pytest.mark.parametrize("kept", LocalSegments)
@pytest.mark.parametrize("kind", ["plain", "compacted", "transactions"])
def test_restore_with_takeover_continues_the_topic_and_fences_the_former_writer(kept: LocalSegments, kind: str) -> None:
    world, disk = _world(kind), ModelDisk()
    before = _in_bucket(world.store)
    with world.open() as former:
        entries = _manifest(world).segments
        (done,) = _restore(world.store, disk, kept=kept, takes_over=True).partitions
        assert (done.size_bytes > 0) == (kept is LocalSegments.ALL)
        held = former.partitions.find(NAME)
        assert held.metadata is not None
        with pytest.raises(Fenced):
            held.metadata.commit(expire_segments([], now_ms=NOW, log_start_offset=1), NOW)
    with _manager(world, disk) as manager:
        assert manager.problems == {}
        reader = manager.reader()
        assert list(reader.records(NAME, reader.offsets(NAME)[0])) == before
        send(manager, 40, start=500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        again = [record.value for record in reader.records(NAME, done.next_offset)]
        assert again == [b"value %d" % at for at in range(500, 540)][-len(again) :]
        assert len(again) == (40 if kind != "compacted" else len(again)) > 0
        if kind != "compacted":
            assert _manifest(world).segments[: len(entries)] == entries  # no segment was copied again


def test_restore_of_recent_segments_keeps_those_of_local_retention() -> None:
    world = World()
    with world.open() as manager:
        settings = {**TIERED, "local.retention.ms": "-1", "local.retention.bytes": "5000"}
        manager.topics.create("t", 1, settings, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    disk = ModelDisk()
    (planned,) = _plan(world.store, kept=LocalSegments.RECENT, takes_over=True)[0].partitions
    assert 5000 <= planned.size_bytes < 7000
    assert planned.remote_bytes > 4000
    _restore(world.store, disk, kept=LocalSegments.RECENT, takes_over=True)
    with _manager(world, disk) as manager:
        assert [record.value for record in manager.reader().records(NAME, 0)] == [b"value %d" % at for at in range(500)]


def test_one_of_two_concurrent_takeovers_becomes_the_writer() -> None:
    """The second machine takes over while the first one has its files but no topic list yet."""
    world, one, other = _world(), ModelDisk(), ModelDisk()

    def second(size_bytes: int) -> None:
        if not other.is_directory(ROOT):
            _restore(world.store, other, takes_over=True)

    plan = _plan(world.store, takes_over=True)
    with pytest.raises(Fenced):
        run_restore(world.store, plan, one, ROOT, now_ms=lambda: NOW, progress=second)
    assert not one.exists(f"{ROOT}/topics.json")
    with _manager(world, other) as manager:
        assert manager.problems == {}
        send(manager, 10, start=700)


def test_restore_without_takeover_leaves_the_bucket_unchanged() -> None:
    world, disk = _world(), ModelDisk()
    before = dict(world.store._objects)
    _restore(world.store, disk)
    with _manager(world, disk) as manager:
        send(manager, 10, start=700)
        settle(manager)
        assert not manager.partitions.find(NAME).is_tiered
    assert world.store._objects == before


@pytest.mark.parametrize("takes_over", [False, True])
def test_restore_after_a_power_cut_at_any_effect_is_completed_by_a_second_run(takes_over: bool) -> None:
    """The power cut happens after each effect. The second run starts with the durable part of the disk."""
    world = _world(count=100)
    whole, rng = _in_bucket(world.store), random.Random(5)
    counted = ModelDisk()
    _restore(world.store, counted, takes_over=takes_over)
    assert counted.effects > 60
    for cut_at in range(1, counted.effects, 2):
        disk = ModelDisk()
        disk.cut_at = cut_at
        with pytest.raises(PowerCut):
            _restore(world.store, disk, takes_over=takes_over)
        found = disk.crash(rng)
        if found.exists(f"{ROOT}/topics.json") and b'"t"' in found.read(f"{ROOT}/topics.json"):
            with _manager(world, found) as manager:
                assert [*manager.reader().records(NAME, 0)] == whole, cut_at
            continue
        _restore(world.store, found, takes_over=takes_over)
        assert _on_disk(found) == whole, cut_at
        assert not [name for name in found.list(ROOT) if "restoring" in name]


def test_cancelled_restore_does_not_fetch_complete_segments_again() -> None:
    world, disk = _world(), ModelDisk()
    plan, seen = _plan(world.store), []
    stopped = run_restore(
        world.store, plan, disk, ROOT, now_ms=lambda: NOW, should_stop=lambda: len(seen) > 2, progress=seen.append
    )
    assert not stopped.is_complete
    data = [key for key in world.store._objects if key.endswith(".log")]
    asked: list[str] = []
    real = world.store.get_ranges
    world.store.get_ranges = lambda key, ranges: (asked.append(key), real(key, ranges))[1]  # type: ignore[method-assign]
    assert _restore(world.store, disk).is_complete
    assert 0 < len(set(asked)) <= len(data) - 3
    assert _on_disk(disk) == _in_bucket(world.store)


@pytest.mark.damages_bucket
def test_segment_with_a_flipped_bit_is_never_restored() -> None:
    world = _world()
    key = next(key for key in world.store._objects if key.endswith(".log"))
    body, modified_ms = world.store._objects[key]
    damaged = bytearray(body)
    damaged[len(damaged) // 2] ^= 1
    world.store._objects[key] = bytes(damaged), modified_ms
    disk = ModelDisk()
    with pytest.raises(Corrupt):
        _restore(world.store, disk)
    assert not disk.is_directory(f"{ROOT}/t-0")


def test_disk_error_ends_a_restore_before_it_takes_over_the_next_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    world, disk = World(), ModelDisk()
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.topics.create(topic, 1, TIERED, now_ms=NOW)
            send(manager, 100, topic=topic)
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager)
    logs = [MetadataLog(world.store, name.prefix) for name in list_partitions(world.store)]
    epochs = [log.refresh(exact=True).epoch for log in logs]

    def full(*_: object) -> None:
        raise DiskFailed("no space left on the disk")

    monkeypatch.setattr("tiered.migrate.restore_running._PartitionFiles.write", full)
    with pytest.raises(DiskFailed):
        _restore(world.store, disk, takes_over=True)
    assert [log.refresh(exact=True).epoch for log in logs] == [epochs[0] + 1, epochs[1]]


def test_restore_over_existing_files_is_refused() -> None:
    world, disk = _world(), ModelDisk()
    _restore(world.store, disk)
    with pytest.raises(InvalidRequest, match="the directory already has it"):
        _restore(world.store, disk)
    disk.unlink(f"{ROOT}/topics.json")
    with _manager(world, disk) as manager:  # another topic with this name
        manager.topics.create("u", 1, {}, now_ms=NOW)
    disk.rename(f"{ROOT}/u-0", f"{ROOT}/t-0.moved")
    disk.unlink(f"{ROOT}/topics.json")
    disk.unlink(f"{ROOT}/t-0/partition.metadata")
    with pytest.raises(Conflict, match="its directory contains other files"):
        _restore(world.store, disk)


def test_restore_never_replaces_records_that_only_the_disk_has() -> None:
    """The directory is a broker's or has lost its topic list. Its newest records are nowhere else."""
    world = _world()
    with world.open() as manager:
        send(manager, 7, start=500)
    disk = world.disk
    disk.unlink("./data/topics.json")
    before = {name: disk.read(f"./data/t-0/{name}") for name in disk.list("./data/t-0")}
    plan = _plan(world.store, takes_over=True)
    epoch = _manifest(world).epoch
    with pytest.raises(Conflict, match="its directory contains other files"):
        run_restore(world.store, plan, disk, "./data", now_ms=lambda: NOW)
    assert {name: disk.read(f"./data/t-0/{name}") for name in disk.list("./data/t-0")} == before
    assert _manifest(world).epoch == epoch, "no writer may be fenced by a refused restore"


def test_files_of_an_unfinished_restore_are_replaced_with_other_options() -> None:
    """The restore was interrupted before its topic list was written. All its files are in the bucket too."""
    world, disk = _world(), ModelDisk()
    for kept in (LocalSegments.ALL, LocalSegments.RECENT, LocalSegments.NONE, LocalSegments.ALL):
        _restore(world.store, disk, kept=kept, takes_over=True)
        disk.unlink(f"{ROOT}/topics.json")
    assert _on_disk(disk) == _in_bucket(world.store)


def test_unfinished_restore_never_replaces_a_complete_one() -> None:
    world, disk = _world(), ModelDisk()
    _restore(world.store, disk, takes_over=True)
    disk.unlink(f"{ROOT}/topics.json")
    disk.make_directory(f"{ROOT}/t-0.restoring")
    disk.create(f"{ROOT}/t-0.restoring/{0:020d}.log").append(b"half of it")
    _restore(world.store, disk, takes_over=True)
    assert _on_disk(disk) == _in_bucket(world.store)
    assert not [name for name in disk.list(ROOT) if "restoring" in name or "-delete" in name]


def test_empty_partition_keeps_its_topic_id_after_a_power_cut_at_any_effect() -> None:
    world, rng = _world(count=100), random.Random(8)
    whole, theirs = _in_bucket(world.store), new_topic_id()

    def begun() -> ModelDisk:
        disk = ModelDisk()
        disk.make_directory(f"{ROOT}/t-0")
        disk.create(f"{ROOT}/t-0/{0:020d}.log").sync()
        checkpoints.write_topic_id(disk, f"{ROOT}/t-0", theirs)
        disk.sync_directory(f"{ROOT}/t-0")
        disk.sync_directory(ROOT)
        return disk

    counted = begun()
    first = counted.effects
    _restore(world.store, counted)
    last = counted.effects
    for cut_at in (*range(first + 1, last - 30, 7), *range(last - 30, last)):  # the renames are among the last effects
        disk = begun()
        disk.cut_at = cut_at
        with pytest.raises(PowerCut):
            _restore(world.store, disk)
        found = disk.crash(rng)
        if not (found.exists(f"{ROOT}/topics.json") and b'"t"' in found.read(f"{ROOT}/topics.json")):
            _restore(world.store, found)
        assert checkpoints.read_topic_id(found, f"{ROOT}/t-0") == theirs, cut_at
        assert _on_disk(found) == whole, cut_at


def _recreated(world: World) -> None:
    """Deletes the topic and creates another one with its name in the bucket."""
    with world.open() as manager:
        manager.topics.delete("t", now_ms=NOW)
        settle(manager)
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 40, keys=3)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)


def test_topic_created_again_is_restored_instead_of_the_deleted_one() -> None:
    world, disk = _world(), ModelDisk()
    _recreated(world)
    (found,) = plan_restore(world.store, list_partitions(world.store), RestoreWish(), now_ms=NOW)
    assert {each.manifest.deleted_ms for each in found.partitions} == {None}
    run_restore(world.store, [found], disk, ROOT, now_ms=lambda: NOW)
    assert len(_on_disk(disk)) == 40


def test_restore_of_two_topics_with_one_name_is_refused_with_their_ids() -> None:
    world, other = _world(), _world()
    for key in list(other.store.list("")):
        world.store.put(key.key, bytes(other.store.get(key.key)))
    names = list_partitions(world.store)
    with pytest.raises(InvalidRequest, match="choose one by its id") as caught:
        plan_restore(world.store, names, RestoreWish(), now_ms=NOW)
    assert all(name.topic_id in str(caught.value) for name in names)


def test_deleted_topic_is_not_restored() -> None:
    world = _world()
    plan = _plan(world.store)
    with world.open() as manager:
        manager.topics.delete("t", now_ms=NOW)
        settle(manager)
    with pytest.raises(NotFound, match="was deleted"):
        _plan(world.store)
    assert plan[0].partitions[0].cost().dollars > 0


@pytest.mark.parametrize("cleaned", [False, True])
def test_restored_segments_that_were_never_cleaned_are_dirty(cleaned: bool) -> None:
    """Otherwise a compacted log would keep several records of a key for ever."""
    world, disk = _world("compacted" if cleaned else "plain"), ModelDisk()
    plan = [replace(each, properties={**each.properties, "cleanup.policy": "compact"}) for each in _plan(world.store)]
    run_restore(world.store, plan, disk, ROOT, now_ms=lambda: NOW)
    entries = plan[0].partitions[0].entries
    expected = min(entry.cleaned_through or 0 for entry in entries)
    assert (expected > 0) is cleaned
    assert f"t 0 {expected}\n" in disk.read(f"{ROOT}/cleaner-offset-checkpoint").decode()


def test_program_of_the_page_about_restores_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/restore-from-the-bucket.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for written, replaced in ('"orders"', '"t"'), ("/tmp/looked-at", str(tmp_path / "restored")):
        assert written in program
        program = program.replace(written, replaced)
    names = {"store": _world(count=600).store, "now": NOW, "clock": lambda: NOW}
    exec(program, names)
    assert float(capsys.readouterr().out) > 0
    assert (tmp_path / "restored" / "t-0").is_dir()
