"""Local logs with records that the bucket lacks keep them at any remote log start offset."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import pytest
from disk_model import ModelDisk, PowerCut
from manager_world import NAME, NOW, TIERED, SwitchableStore, World, send, settle, values
from other_thread import as_other_thread

from local.errors import Conflict, DiskFailed, Diverged, Fenced
from local.log.log import LogNotes
from policies.decisions import DropLocal
from remote.manifest.commit_protocol import MetadataLog
from tiered.maintenance.apply import apply_on_disk, apply_partition
from tiered.maintenance.upload_and_commit import Application
from tiered.manager.manager import LogManager
from tiered.node.writer_ids import DELETION
from tiered.stores.configured_store import StoreCheck

COPIED, ONLY_HERE = 20, 80
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def world() -> World:
    return World()


def _fork_history(world: World, *, first_upto: int = COPIED + ONLY_HERE) -> ModelDisk:
    """Only the first disk has the records from COPIED on. The manager of the second disk is the writer.
    Returns the second disk."""
    with world.open() as first:
        first.topics.create("t", 1, {**TIERED, "local.retention.ms": "-1"}, now_ms=NOW)
        send(first, COPIED)
        first.partitions.roll("t", now_ms=NOW)
        settle(first)
        send(first, first_upto - COPIED, start=COPIED)
    other = world.other_disk()
    with world.open(disk=other) as second:
        assert second.reader().offsets(NAME) == (0, COPIED)
    return other


def _log_files(disk: ModelDisk) -> dict[str, bytes]:
    return {name: bytes(inode.data) for name, inode in disk.names.items() if name.endswith(".log")}


def _manifests(world: World) -> list[str]:
    return [info.key for info in world.store.list("") if "/head/" in info.key]


def _raise_log_start(manager: LogManager, how: str, upto: int) -> None:
    if how == "delete-records":
        manager.maintenance.delete_records({NAME: upto}, now_ms=NOW)
        return
    manager.partitions.roll("t", now_ms=NOW)
    manager.tick(NOW)
    if how == "retention":
        manager.topics.alter("t", {"retention.bytes": "0"}, now_ms=NOW)
    elif how == "copied, then delete-records":
        manager.maintenance.delete_records({NAME: upto}, now_ms=NOW)
    settle(manager)


HOW = ("delete-records", "copied, then delete-records", "retention")


@pytest.mark.parametrize("how", HOW)
# the other writer's log ends below, at and above the end of this log
@pytest.mark.parametrize("written", [40, 80, 200])
def test_log_below_the_remote_log_start_offset_keeps_its_uncopied_records(world: World, how: str, written: int) -> None:
    other = _fork_history(world)
    with world.open(disk=other) as second:
        send(second, written, start=5000)
        _raise_log_start(second, how, COPIED + written)
    files, manifests = _log_files(world.disk), _manifests(world)
    with world.open() as manager:
        problem = manager.problems[NAME]
        assert isinstance(problem, Diverged)
        assert (problem.facts["local_next_offset"], problem.facts["remote_next_offset"]) == (100, COPIED + written)
        with pytest.raises(Conflict):
            send(manager, 1)
        manager.tick(NOW)
        assert [record.value for record in manager.partitions.find(NAME).log.records(99)] == [b"value 99"]
    assert _log_files(world.disk) == files
    assert _manifests(world) == manifests, "the refused log must not become the writer"
    with world.open(disk=other) as second:
        assert second.problems == {}


def test_log_with_uncopied_records_does_not_become_the_writer_again(world: World) -> None:
    """The other writer has committed only its epoch. No offset contradicts this log yet."""
    other = _fork_history(world)
    manifests = _manifests(world)
    with world.open() as manager:
        assert isinstance(manager.problems[NAME], Diverged)
        settle_quietly(manager)
    assert _manifests(world) == manifests
    with world.open(disk=other) as second:
        assert second.problems == {}
        send(second, 10, start=7000)


def test_log_is_fenced_by_another_writer_although_a_job_took_the_epoch_later(world: World) -> None:
    """A job has no log. The manifest still names the last writer that has one."""
    _fork_history(world)
    with world.open(read_only=True) as seen:
        topic = seen.topics.get("t")
    job = MetadataLog(world.store, f"t-{topic.topic_id}/0/")
    job.become_writer("deletion-of-garbage", NOW, topic="t", topic_id=topic.topic_id, partition=0)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"


def test_log_opens_after_a_job_took_the_epoch_from_its_own_node(world: World) -> None:
    with world.open() as first:
        first.topics.create("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
        topic_id = first.topics.get("t").topic_id
    job = MetadataLog(world.store, f"t-{topic_id}/0/")
    job.become_writer("deletion-of-garbage", NOW, topic="t", topic_id=topic_id, partition=0)
    with world.open() as manager:
        assert manager.problems == {}
        settle(manager)


def test_writer_that_took_over_while_a_log_is_opened_stays_the_writer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open() as first:
        first.topics.create("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
    real, taken = StoreCheck.ensure, []

    def overtaken(self: StoreCheck, *args: object) -> None:
        real(self, *args)  # type: ignore[arg-type]
        if not taken:
            taken.append(self)
            with as_other_thread():
                world.open(disk=world.other_disk()).close()

    monkeypatch.setattr(StoreCheck, "ensure", overtaken)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
    assert len(_manifests(world)) == 2, "the refused log must not become the writer"


@pytest.mark.parametrize("stopped", [Diverged("another history"), Fenced("another writer")])
def test_stopped_log_deletes_nothing_from_its_disk(world: World, stopped: Conflict) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-1"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        held, files = manager.partitions.find(NAME), _log_files(world.disk)
        drops = [
            DropLocal(base_offset=each.base_offset, next_offset=each.next_offset, size_bytes=each.size_bytes, reason="")
            for each in held.log.segments()[:-1]
        ]
        assert drops
        held.tier.stop(stopped)
        (directory,) = manager.directories.online
        state = Application(partition=held, now_ms=NOW, where=lambda: directory)
        with pytest.raises(type(stopped)):
            apply_on_disk(state, lambda snapshot: [])
        with pytest.raises(type(stopped)):
            apply_partition(state, drops)
        assert _log_files(world.disk) == files


def test_fenced_log_becomes_the_writer_again_by_an_explicit_takeover(world: World) -> None:
    other = _fork_history(world)
    with world.open(takes_over=True) as manager:
        assert manager.problems == {}
        settle(manager)
        assert [value for _, value in values(manager.reader())] == [b"value %d" % at for at in range(100)]
    with world.open(disk=other) as second:
        assert second.problems == {}, "the second log had no records, so it starts over"


@pytest.mark.parametrize("how", HOW)
def test_takeover_of_a_diverged_log_is_refused(world: World, how: str) -> None:
    other = _fork_history(world)
    with world.open(disk=other) as second:
        send(second, 200, start=5000)
        _raise_log_start(second, how, 220)
    files, manifests = _log_files(world.disk), _manifests(world)
    with world.open(takes_over=True) as manager:
        assert isinstance(manager.problems[NAME], Diverged)
    assert (_log_files(world.disk), _manifests(world)) == (files, manifests)


def test_completely_copied_log_starts_over_above_the_remote_log_start_offset(world: World) -> None:
    """The other writer expired all common records, so starting over loses nothing."""
    other = _fork_history(world, first_upto=COPIED)
    with world.open(disk=other) as second:
        send(second, 200, start=5000)
        _raise_log_start(second, "retention", 220)
    with world.open() as manager:
        assert manager.problems == {}
        assert manager.partitions.find(NAME).log.next_offset >= 220


def test_old_copy_of_a_disk_below_the_remote_log_start_offset_is_kept(world: World) -> None:
    """It may have appended later in the same epoch.
    The records in the bucket have expired, so nothing can be compared."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 20)
        old = deepcopy(world.disk)
        send(manager, 300, start=20)
        _raise_log_start(manager, "retention", 320)
    old.locks.clear()
    files, manifests = _log_files(old), _manifests(world)
    with world.open(disk=old) as manager:
        assert isinstance(manager.problems[NAME], Diverged)
        settle_quietly(manager)
    assert (_log_files(old), _manifests(world)) == (files, manifests)


@pytest.mark.parametrize("restarts", [False, True])
def test_old_copy_with_records_beyond_an_expired_end_is_kept(world: World, restarts: bool) -> None:
    """It appended while the bucket was away, in the epoch of the records that the bucket had and expired."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 20)
        old = deepcopy(world.disk)
        send(manager, 300, start=20)
        _raise_log_start(manager, "retention", 320)
    old.locks.clear()
    away = SwitchableStore(world.store)
    manager = world.open(disk=old, store=away)  # type: ignore[arg-type]
    send(manager, 400, start=1000)
    if restarts:
        manager.close()
        manager = world.open(disk=old)
    away.is_down = False
    with manager:
        manager.tick(NOW)
        assert isinstance(manager.problems[NAME], Diverged)
        assert [record.value for record in manager.partitions.find(NAME).log.records(20)][:1] == [b"value 1000"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("taken", [1, 50, 400])
def test_old_copy_of_a_compacted_log_with_offline_appends_is_kept(world: World, taken: int, restarts: bool) -> None:
    """Cleaned batches cannot be compared with the bucket. Both logs appended in the same leader epoch."""
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, **COMPACTED}, now_ms=NOW)
        send(manager, 20)
        old = deepcopy(world.disk)
        send(manager, 300, start=20)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert manager.partitions.find(NAME).manifest().allocated_end_offset == 320  # type: ignore[union-attr]
    old.locks.clear()
    manifests = _manifests(world)
    away = SwitchableStore(world.store)
    manager = world.open(disk=old, store=away)  # type: ignore[arg-type]
    send(manager, taken, start=1000, keys=1000)
    if restarts:
        manager.close()
        manager = world.open(disk=old)
    away.is_down = False
    with manager:
        manager.tick(NOW)
        found = [record.value for record in manager.partitions.find(NAME).log.records(20)]
        assert found == [b"value %d" % (1000 + at) for at in range(taken)]
        assert isinstance(manager.problems[NAME], Diverged)
    assert _manifests(world) == manifests


def test_compacted_log_of_the_writer_continues_after_offline_appends(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, **COMPACTED, "local.retention.ms": "-1"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    for restarts in (False, True, False):
        away = SwitchableStore(world.store)
        manager = world.open(store=away)  # type: ignore[arg-type]
        send(manager, 50, start=manager.partitions.find(NAME).log.next_offset)
        if restarts:
            manager.close()
            manager = world.open()
        away.is_down = False
        with manager:
            settle(manager)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager)
            assert manager.partitions.find(NAME).is_writer
            assert manager.partitions.find(NAME).log.notes.unconfirmed_from is None


def test_offline_appends_are_marked_until_they_are_compared_with_the_bucket(world: World) -> None:
    marker = "./data/t-0/unconfirmed-appends"
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        send(manager, 10, start=100)
        assert marker not in world.disk.names, "appends of the writer need no mark"
    away = SwitchableStore(world.store)
    with world.open(store=away) as manager:  # type: ignore[arg-type]
        assert marker not in world.disk.names, "nothing was appended yet"
        send(manager, 10, start=110)
        send(manager, 10, start=120)
        assert world.disk.read(marker) == b"110\n", "the mark must hold the first offset"
    with world.open(store=away) as manager:  # type: ignore[arg-type]
        send(manager, 10, start=130)
        assert world.disk.read(marker) == b"110\n", "the mark must still hold the first offset"
    with world.open() as manager:
        assert manager.problems == {}
        assert marker not in world.disk.names


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_append_during_a_takeover_leaves_no_note_about_offline_appends(
    world: World, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """An append that began before the role was taken may write the note again after it was removed."""
    store = SwitchableStore(world.store, is_down=False)
    properties = {**TIERED, "local.retention.ms": "-1", "cleanup.policy": policy}
    with world.open(store=store) as manager:
        manager.topics.create("t", 1, properties, now_ms=NOW)
        send(manager, 40)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    store.is_down = True
    confirm, first_calls = LogNotes.confirm_appends, iter([True])
    with world.open(store=store) as manager:
        send(manager, 40, start=40)
        notes = manager.partitions.find(NAME).log.notes
        assert notes.unconfirmed_from == 40

        def append_after(self: LogNotes) -> None:
            confirm(self)
            if next(first_calls, False):
                with as_other_thread():
                    send(manager, 10, start=80)
                assert notes.unconfirmed_from == 80

        monkeypatch.setattr(LogNotes, "confirm_appends", append_after)
        store.is_down = False
        settle(manager)
        assert notes.unconfirmed_from is None
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(store=store) as manager:
        settle(manager)
        assert (manager.partitions.find(NAME).is_writer, manager.problems) == (True, {})


def test_read_only_open_of_a_diverged_log_reports_it_and_reads_the_disk(world: World) -> None:
    other = _fork_history(world)
    with world.open(disk=other) as second:
        send(second, 200, start=5000)
        _raise_log_start(second, "retention", 220)
    with world.open(read_only=True) as seen:
        problem = seen.problems[NAME]
        assert isinstance(problem, Diverged)
        with pytest.raises(Diverged):
            values(seen.reader())
        assert seen.partitions.local_reader().offsets(NAME) == (0, 100)
        found = list(seen.partitions.local_reader().records(NAME, COPIED))
        assert [record.value for record in found] == [b"value %d" % at for at in range(COPIED, 100)]


def test_fenced_manager_neither_drops_nor_cleans(world: World) -> None:
    with world.open() as first:
        first.topics.create("t", 1, {**TIERED, "cleanup.policy": "compact"}, now_ms=NOW)
        send(first, 100)
        with world.open(disk=world.other_disk()):
            held = first.partitions.find(NAME)
            files = _log_files(world.disk)
            assert held.metadata is not None
            with pytest.raises(Fenced):
                held.metadata.load()
            first.tick(NOW)
            assert isinstance(first.problems[NAME], Fenced)
            assert _log_files(world.disk) == files


def settle_quietly(manager: LogManager) -> None:
    """Runs maintenance of a manager that has a problem."""
    for _ in range(3):
        manager.tick(NOW)


# --- fenced, then restarted without the bucket -----------------------------------------------------------------------

NOTE = "./data/t-0/fenced-by"


def _fenced_at_work(world: World) -> ModelDisk:
    """A manager is fenced while it works, and its disk has one uncopied record.
    Returns the other writer's disk."""
    with world.open() as first:
        first.topics.create("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
        settle(first)
        other = world.other_disk()
        with world.open(disk=other) as second:
            send(second, 1, start=9000)
            send(first, 1, start=100)
            first.partitions.roll("t", now_ms=NOW)
            first.tick(NOW)
        assert isinstance(first.problems[NAME], Fenced | Diverged)
    return other


def _without_bucket(world: World, disk: ModelDisk | None = None) -> LogManager:
    return world.open(disk=disk, store=SwitchableStore(world.store))  # type: ignore[arg-type]


def test_fenced_log_acknowledges_no_append_after_a_restart_without_the_bucket(world: World) -> None:
    _fenced_at_work(world)
    assert world.disk.read(NOTE).endswith(b"\n")
    files = _log_files(world.disk)
    for takes_over in (False, True):
        with world.open(store=SwitchableStore(world.store), takes_over=takes_over) as manager:  # type: ignore[arg-type]
            for _ in range(2):
                with pytest.raises(Diverged, match="took over before the restart"):
                    send(manager, 1)
                manager.tick(NOW)
            rescued = [record.value for record in manager.partitions.local_reader().records(NAME, 100)]
            assert rescued == [b"value 100"]
    seen = world.open(store=SwitchableStore(world.store), read_only=True)  # type: ignore[arg-type]
    with seen, pytest.raises(Diverged):
        values(seen.reader())
    assert _log_files(world.disk) == files
    assert NOTE in world.disk.names


@pytest.mark.parametrize("comes_back", [False, True])
def test_takeover_with_the_bucket_removes_the_fencing_note(world: World, comes_back: bool) -> None:
    _fenced_at_work(world)
    store = SwitchableStore(world.store, is_down=comes_back)
    with world.open(store=store, takes_over=True) as manager:  # type: ignore[arg-type]
        store.is_down = False
        manager.tick(NOW)
        assert manager.problems == {}
        assert NOTE not in world.disk.names
        send(manager, 1, start=200)
    with world.open(store=SwitchableStore(world.store)) as manager:  # type: ignore[arg-type]
        send(manager, 1, start=300)


def test_refused_log_keeps_its_fencing_note_when_the_bucket_answers(world: World) -> None:
    _fork_history(world)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
    assert NOTE in world.disk.names
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
    with _without_bucket(world) as manager, pytest.raises(Diverged):
        send(manager, 1)


def test_read_only_open_writes_no_fencing_note(world: World) -> None:
    _fork_history(world)
    with world.open(read_only=True) as seen:
        assert isinstance(seen.problems[NAME], Diverged)
    assert NOTE not in world.disk.names


def test_damaged_fencing_note_still_refuses_appends(world: World) -> None:
    _fenced_at_work(world)
    world.disk.unlink(NOTE)
    world.disk.create(NOTE).append(b"\xff\0")
    with _without_bucket(world) as manager, pytest.raises(Diverged):
        send(manager, 1)


def _survivors(world: World, *, takes_over: bool) -> Iterator[ModelDisk]:
    """The possible disks after a power cut at each call of an open.
    The bucket is in the state of the power cut."""
    kept, objects = world.disk, dict(world.store._objects)
    for seed in range(4):
        for cut in range(1, 400):
            disk, world.store._objects = deepcopy(kept), dict(objects)
            disk.locks.clear()
            disk.cut_at, disk.cut_before = disk.effects + cut, bool(seed % 2)
            try:
                world.open(disk=disk, takes_over=takes_over).close()
                break  # the open has fewer effects
            except PowerCut:
                yield disk.crash(random.Random(seed * 1000 + cut))


def test_log_after_a_power_cut_in_a_takeover_refuses_appends_or_is_the_writer(world: World) -> None:
    """Order of a takeover:
    1. Commit the new epoch.
    2. Remove the fencing note.
    A power cut between the two leaves a log that refuses appends although it is the writer. That is safe."""
    _fenced_at_work(world)
    (topic,) = {key.partition("/0/")[0] for key in _manifests(world)}
    seen = set()
    for survived in _survivors(world, takes_over=True):
        is_ours, is_noted = MetadataLog(world.store, f"{topic}/0/").refresh().epoch == 3, NOTE in survived.names
        seen.add((is_ours, is_noted))
        survived.locks.clear()
        with _without_bucket(world, survived) as manager, pytest.raises(Diverged) if is_noted else nullcontext():
            send(manager, 1, start=400)
    assert seen == {(False, True), (True, True), (True, False)}, (
        "the note must be removed after the takeover is committed"
    )


def test_power_cut_during_the_write_of_the_note_leaves_it_complete_or_absent(world: World) -> None:
    _fork_history(world)
    found = [each.read(NOTE) for each in _survivors(world, takes_over=False) if NOTE in each.names]
    assert len(set(found)) == 1
    assert found[0].count(b"\n") == 1


def test_moved_log_keeps_its_fencing_note(world: World) -> None:
    _fenced_at_work(world)
    world.config = replace(world.config, more_data_dirs=("./second",))
    world.disk.make_directory("./second")
    with _without_bucket(world) as manager:
        manager.maintenance.move(NAME, "./second", now_ms=NOW)
    assert "./second/t-0/fenced-by" in world.disk.names
    with _without_bucket(world) as manager, pytest.raises(Diverged):
        send(manager, 1)


def test_failed_write_of_the_fencing_note_does_not_stop_the_manager(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fork_history(world)

    def full(self: LogNotes, by: str) -> None:
        raise DiskFailed("writing a file", cause="enospc")

    monkeypatch.setattr(LogNotes, "mark_fenced", full)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
        with pytest.raises(Diverged):
            send(manager, 1)


def test_fenced_log_acknowledges_no_append_without_a_configured_store(world: World) -> None:
    _fenced_at_work(world)
    with LogManager.open(replace(world.config, remote_url=None), now_ms=NOW, storage=world.disk) as manager:
        for _ in range(2):
            with pytest.raises(Diverged, match="took over before the restart"):
                send(manager, 1)
            manager.tick(NOW)
    assert NOTE in world.disk.names


def test_fenced_manager_keeps_its_note_after_repeated_requests_to_the_bucket(world: World) -> None:
    with world.open() as first:
        first.topics.create("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
        settle(first)
        with world.open(disk=world.other_disk()) as second:
            send(second, 1, start=9000)
            send(first, 1, start=100)
            first.partitions.roll("t", now_ms=NOW)
            for _ in range(4):
                first.tick(NOW)
                with pytest.raises(Conflict):
                    send(first, 1, start=101)
            assert NOTE in world.disk.names


def test_deletion_that_took_the_epoch_leaves_no_fencing_note(world: World) -> None:
    """The deletion job gives no offsets and has no records. This log is still the last one with records."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        (topic,) = {key.partition("/0/")[0] for key in _manifests(world)}
        other = MetadataLog(world.store, f"{topic}/0/")
        held = manager.partitions.find(NAME)
        other.become_writer(
            f"{DELETION}x", NOW, topic="t", topic_id=held.topic.topic_id, partition=0, properties=held.topic.properties
        )
        send(manager, 1, start=100)
        manager.partitions.roll("t", now_ms=NOW)
        manager.tick(NOW)
        assert isinstance(manager.problems[NAME], Fenced)
    assert NOTE not in world.disk.names
    with _without_bucket(world) as manager:
        send(manager, 1, start=101)
