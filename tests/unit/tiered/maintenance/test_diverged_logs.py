"""Local logs that hold records which the bucket lacks: kept, whatever the remote log start says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import product

import pytest
from disk_model import ModelDisk, PowerCut
from manager_world import NAME, NOW, TIERED, SwitchableStore, World, send, settle, values

from local.errors import Conflict, DiskFailed, Diverged, Fenced
from local.log import Log
from policies.decisions import DropLocal
from remote.manifest.commit_protocol import MetadataLog
from tiered.maintenance.apply import apply_on_disk, apply_partition
from tiered.manager.manager import LogManager
from tiered.node.writer_ids import DELETION
from tiered.stores.store_check import StoreCheck

COPIED, ONLY_HERE = 20, 80
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture
def world() -> World:
    return World()


def _fork_history(world: World, *, first_upto: int = COPIED + ONLY_HERE) -> ModelDisk:
    """A holds records from COPIED on that only its disk has; the other disk's manager is the writer. Its disk."""
    with world.open() as first:
        first.create_topic("t", 1, {**TIERED, "local.retention.ms": "-1"}, now_ms=NOW)
        send(first, COPIED)
        first.roll("t", now_ms=NOW)
        settle(first)
        send(first, first_upto - COPIED, start=COPIED)
    other = world.other_disk()
    with world.open(disk=other) as second:
        assert second.reader().offsets(NAME) == (0, COPIED)
    return other


def _log_files(disk: ModelDisk) -> dict[str, bytes]:
    return {name: bytes(inode.data) for name, inode in disk.names.items() if name.endswith(".log")}


def _heads(world: World) -> list[str]:
    return [info.key for info in world.store.list("") if "/head/" in info.key]


def _raise_log_start(manager: LogManager, how: str, upto: int) -> None:
    if how == "delete-records":
        manager.delete_records({NAME: upto}, now_ms=NOW)
        return
    manager.roll("t", now_ms=NOW)
    manager.tick(NOW)
    if how == "retention":
        manager.alter_topic("t", {"retention.bytes": "0"}, now_ms=NOW)
    elif how == "copied, then delete-records":
        manager.delete_records({NAME: upto}, now_ms=NOW)
    settle(manager)


HOW = ("delete-records", "copied, then delete-records", "retention")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("written", [40, 80, 200])  # the other writer ends below, at and above this log's end
def test_a_log_below_the_remote_log_start_keeps_what_only_it_holds(world: World, how: str, written: int) -> None:
    other = _fork_history(world)
    with world.open(disk=other) as second:
        send(second, written, start=5000)
        _raise_log_start(second, how, COPIED + written)
    files, heads = _log_files(world.disk), _heads(world)
    with world.open() as manager:
        problem = manager.problems[NAME]
        assert isinstance(problem, Diverged)
        assert (problem.facts["local_next_offset"], problem.facts["remote_next_offset"]) == (100, COPIED + written)
        with pytest.raises(Conflict):
            send(manager, 1)
        manager.tick(NOW)
        assert [record.value for record in manager.partition(NAME).log.records(99)] == [b"value 99"]
    assert _log_files(world.disk) == files
    assert _heads(world) == heads, "the refused log took the writer role"
    with world.open(disk=other) as second:
        assert second.problems == {}


def test_a_log_with_uncopied_records_does_not_take_the_writer_role_back(world: World) -> None:
    """The other writer has committed its epoch and nothing else: no offset contradicts this log yet."""
    other = _fork_history(world)
    heads = _heads(world)
    with world.open() as manager:
        assert isinstance(manager.problems[NAME], Diverged)
        settle_quietly(manager)
    assert _heads(world) == heads
    with world.open(disk=other) as second:
        assert second.problems == {}
        send(second, 10, start=7000)


def test_a_job_that_took_the_epoch_since_hides_no_other_writer(world: World) -> None:
    """A job keeps no log: the manifest still names the last writer that does."""
    _fork_history(world)
    with world.open(read_only=True) as seen:
        topic = seen.topic("t")
    job = MetadataLog(world.store, f"t-{topic.topic_id}/0/")
    job.become_writer("deletion-of-garbage", NOW, topic="t", topic_id=topic.topic_id, partition=0)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"


def test_a_job_that_took_the_epoch_stops_no_log_of_its_own_node(world: World) -> None:
    with world.open() as first:
        first.create_topic("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
        topic_id = first.topic("t").topic_id
    job = MetadataLog(world.store, f"t-{topic_id}/0/")
    job.become_writer("deletion-of-garbage", NOW, topic="t", topic_id=topic_id, partition=0)
    with world.open() as manager:
        assert manager.problems == {}
        settle(manager)


def test_another_writer_that_comes_while_a_log_is_opened_keeps_its_role(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open() as first:
        first.create_topic("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
    real, taken = StoreCheck.ensure, []

    def overtaken(self: StoreCheck, *args: object) -> None:
        real(self, *args)  # type: ignore[arg-type]
        if not taken:
            taken.append(self)
            world.open(disk=world.other_disk()).close()

    monkeypatch.setattr(StoreCheck, "ensure", overtaken)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
    assert len(_heads(world)) == 2, "the refused log took the writer role"


@pytest.mark.parametrize("stopped", [Diverged("another history"), Fenced("another writer")])
def test_nothing_leaves_the_disk_of_a_log_that_was_stopped(world: World, stopped: Conflict) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, "local.retention.ms": "-1"}, now_ms=NOW)
        send(manager, 300)
        manager.roll("t", now_ms=NOW)
        settle(manager)
        held, files = manager.partition(NAME), _log_files(world.disk)
        drops = [
            DropLocal(base_offset=each.base_offset, next_offset=each.next_offset, size_bytes=each.size_bytes, reason="")
            for each in held.log.segments()[:-1]
        ]
        assert drops
        held.stopped = stopped
        (directory,) = manager._directory.online
        with pytest.raises(type(stopped)):
            apply_on_disk(
                held,
                lambda snapshot: [],
                directory=directory,
                now_ms=NOW,
                clean=lambda *more: None,
                should_stop=lambda: False,
            )
        with pytest.raises(type(stopped)):
            apply_partition(held, drops, directory=directory, store=world.store, now_ms=NOW, clean=lambda *more: None)
        assert _log_files(world.disk) == files


def test_a_person_makes_a_fenced_log_the_writer_again(world: World) -> None:
    other = _fork_history(world)
    with world.open(takes_over=True) as manager:
        assert manager.problems == {}
        settle(manager)
        assert [value for _, value in values(manager.reader())] == [b"value %d" % at for at in range(100)]
    with world.open(disk=other) as second:
        assert second.problems == {}, "it held no record: nothing of it is at stake"


@pytest.mark.parametrize("how", HOW)
def test_taking_over_is_refused_where_offsets_contradict(world: World, how: str) -> None:
    other = _fork_history(world)
    with world.open(disk=other) as second:
        send(second, 200, start=5000)
        _raise_log_start(second, how, 220)
    files, heads = _log_files(world.disk), _heads(world)
    with world.open(takes_over=True) as manager:
        assert isinstance(manager.problems[NAME], Diverged)
    assert (_log_files(world.disk), _heads(world)) == (files, heads)


def test_a_log_whose_records_were_all_copied_starts_over_above_the_remote_log_start(world: World) -> None:
    """The other writer expired everything that both had: nothing is lost by starting over."""
    other = _fork_history(world, first_upto=COPIED)
    with world.open(disk=other) as second:
        send(second, 200, start=5000)
        _raise_log_start(second, "retention", 220)
    with world.open() as manager:
        assert manager.problems == {}
        assert manager.partition(NAME).log.next_offset >= 220


def test_an_old_copy_of_a_disk_below_the_remote_log_start_is_kept(world: World) -> None:
    """It may have taken records later, in the same epoch; the bucket's own have expired: nothing can be compared."""
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 20)
        old = deepcopy(world.disk)
        send(manager, 300, start=20)
        _raise_log_start(manager, "retention", 320)
    old.locks.clear()
    files, heads = _log_files(old), _heads(world)
    with world.open(disk=old) as manager:
        assert isinstance(manager.problems[NAME], Diverged)
        settle_quietly(manager)
    assert (_log_files(old), _heads(world)) == (files, heads)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_old_copy_that_took_records_beyond_an_expired_end_is_kept(world: World, restarts: bool) -> None:
    """It took them while the bucket was away, in the epoch of the records that the bucket had and expired."""
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
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
        assert [record.value for record in manager.partition(NAME).log.records(20)][:1] == [b"value 1000"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("taken", [1, 50, 400])
def test_an_old_copy_of_a_compacted_log_that_took_records_offline_is_kept(
    world: World, taken: int, restarts: bool
) -> None:
    """Cleaned batches cannot be compared with the bucket's, and both took their records in one leader epoch."""
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, **COMPACTED}, now_ms=NOW)
        send(manager, 20)
        old = deepcopy(world.disk)
        send(manager, 300, start=20)
        manager.roll("t", now_ms=NOW)
        settle(manager)
        assert manager.partition(NAME).head().taken_upto == 320  # type: ignore[union-attr]
    old.locks.clear()
    heads = _heads(world)
    away = SwitchableStore(world.store)
    manager = world.open(disk=old, store=away)  # type: ignore[arg-type]
    send(manager, taken, start=1000, keys=1000)
    if restarts:
        manager.close()
        manager = world.open(disk=old)
    away.is_down = False
    with manager:
        manager.tick(NOW)
        found = [record.value for record in manager.partition(NAME).log.records(20)]
        assert found == [b"value %d" % (1000 + at) for at in range(taken)]
        assert isinstance(manager.problems[NAME], Diverged)
    assert _heads(world) == heads


def test_a_compacted_log_that_took_records_offline_goes_on_where_it_is_the_writer(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, **COMPACTED, "local.retention.ms": "-1"}, now_ms=NOW)
        send(manager, 300)
        manager.roll("t", now_ms=NOW)
        settle(manager)
    for restarts in (False, True, False):
        away = SwitchableStore(world.store)
        manager = world.open(store=away)  # type: ignore[arg-type]
        send(manager, 50, start=manager.partition(NAME).log.next_offset)
        if restarts:
            manager.close()
            manager = world.open()
        away.is_down = False
        with manager:
            settle(manager)
            manager.roll("t", now_ms=NOW)
            settle(manager)
            assert manager.partition(NAME).is_owned
            assert not manager.partition(NAME).log.has_unconfirmed_appends


def test_records_taken_while_the_bucket_is_away_are_noted_until_they_are_compared(world: World) -> None:
    marker = "./data/t-0/unconfirmed-appends"
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        send(manager, 10, start=100)
        assert marker not in world.disk.names, "its own writer needs no note"
    away = SwitchableStore(world.store)
    with world.open(store=away) as manager:  # type: ignore[arg-type]
        assert marker not in world.disk.names, "nothing was taken yet"
        send(manager, 10, start=110)
        send(manager, 10, start=120)
        assert world.disk.read(marker) == b"110\n", "the first of them"
    with world.open(store=away) as manager:  # type: ignore[arg-type]
        send(manager, 10, start=130)
        assert world.disk.read(marker) == b"110\n", "still the first of them"
    with world.open() as manager:
        assert manager.problems == {}
        assert marker not in world.disk.names


def test_a_read_only_open_of_a_diverged_log_says_so_and_reads_the_disk_when_asked(world: World) -> None:
    other = _fork_history(world)
    with world.open(disk=other) as second:
        send(second, 200, start=5000)
        _raise_log_start(second, "retention", 220)
    with world.open(read_only=True) as seen:
        problem = seen.problems[NAME]
        assert isinstance(problem, Diverged)
        with pytest.raises(Diverged):
            values(seen.reader())
        assert seen.local_reader().offsets(NAME) == (0, 100)
        found = list(seen.local_reader().records(NAME, COPIED))
        assert [record.value for record in found] == [b"value %d" % at for at in range(COPIED, 100)]


def test_a_fenced_manager_at_work_neither_drops_nor_cleans(world: World) -> None:
    with world.open() as first:
        first.create_topic("t", 1, {**TIERED, "cleanup.policy": "compact"}, now_ms=NOW)
        send(first, 100)
        with world.open(disk=world.other_disk()):
            held = first.partition(NAME)
            files = _log_files(world.disk)
            assert held.metadata is not None
            with pytest.raises(Fenced):
                held.metadata.load()
            first.tick(NOW)
            assert isinstance(first.problems[NAME], Fenced)
            assert _log_files(world.disk) == files


def settle_quietly(manager: LogManager) -> None:
    """Rounds of a manager that has a problem."""
    for _ in range(3):
        manager.tick(NOW)


# --- fenced, restarted, and the bucket is away ------------------------------------------------------------------------

NOTE = "./data/t-0/fenced-by"


def _fenced_at_work(world: World) -> ModelDisk:
    """A manager that was fenced while it worked, with a record that only its disk has. The other writer's disk."""
    with world.open() as first:
        first.create_topic("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
        settle(first)
        other = world.other_disk()
        with world.open(disk=other) as second:
            send(second, 1, start=9000)
            send(first, 1, start=100)
            first.roll("t", now_ms=NOW)
            first.tick(NOW)
        assert isinstance(first.problems[NAME], Fenced | Diverged)
    return other


def _without_bucket(world: World, disk: ModelDisk | None = None) -> LogManager:
    return world.open(disk=disk, store=SwitchableStore(world.store))  # type: ignore[arg-type]


def test_a_fenced_log_acknowledges_no_append_after_a_restart_without_the_bucket(world: World) -> None:
    _fenced_at_work(world)
    assert world.disk.read(NOTE).endswith(b"\n")
    files = _log_files(world.disk)
    for takes_over in (False, True):
        with world.open(store=SwitchableStore(world.store), takes_over=takes_over) as manager:  # type: ignore[arg-type]
            for _ in range(2):
                with pytest.raises(Diverged, match="took over before the restart"):
                    send(manager, 1)
                manager.tick(NOW)
            rescued = [record.value for record in manager.local_reader().records(NAME, 100)]
            assert rescued == [b"value 100"]
    seen = world.open(store=SwitchableStore(world.store), read_only=True)  # type: ignore[arg-type]
    with seen, pytest.raises(Diverged):
        values(seen.reader())
    assert _log_files(world.disk) == files
    assert NOTE in world.disk.names


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_take_over_with_the_bucket_removes_the_note(world: World, comes_back: bool) -> None:
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


def test_a_refused_log_keeps_its_note_where_the_bucket_answers(world: World) -> None:
    _fork_history(world)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
    assert NOTE in world.disk.names
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
    with _without_bucket(world) as manager, pytest.raises(Diverged):
        send(manager, 1)


def test_a_read_only_open_writes_no_note(world: World) -> None:
    _fork_history(world)
    with world.open(read_only=True) as seen:
        assert isinstance(seen.problems[NAME], Diverged)
    assert NOTE not in world.disk.names


def test_a_damaged_note_still_refuses_appends(world: World) -> None:
    _fenced_at_work(world)
    world.disk.unlink(NOTE)
    world.disk.create(NOTE).append(b"\xff\0")
    with _without_bucket(world) as manager, pytest.raises(Diverged):
        send(manager, 1)


def _survivors(world: World, *, takes_over: bool) -> Iterator[ModelDisk]:
    """The disk as a power cut at each of its calls may leave it while a manager is opened; the bucket as it is then."""
    kept, objects = world.disk, dict(world.store._objects)
    for seed, cut in product(range(4), range(1, 400)):
        disk, world.store._objects = deepcopy(kept), dict(objects)
        disk.locks.clear()
        disk.cut_at, disk.cut_before = disk.effects + cut, bool(seed % 2)
        try:
            world.open(disk=disk, takes_over=takes_over).close()
        except PowerCut:
            yield disk.crash(random.Random(seed * 1000 + cut))


def test_a_power_cut_at_any_call_of_a_take_over_leaves_a_log_that_refuses_or_is_the_writer(world: World) -> None:
    """Between the commit of the new epoch and the removal of the note the log refuses too much, never too little."""
    _fenced_at_work(world)
    (topic,) = {key.partition("/0/")[0] for key in _heads(world)}
    seen = set()
    for survived in _survivors(world, takes_over=True):
        is_ours, is_noted = MetadataLog(world.store, f"{topic}/0/").refresh().epoch == 3, NOTE in survived.names
        seen.add((is_ours, is_noted))
        survived.locks.clear()
        with _without_bucket(world, survived) as manager, pytest.raises(Diverged) if is_noted else nullcontext():
            send(manager, 1, start=400)
    assert seen == {(False, True), (True, True), (True, False)}, "the note goes after the writer role is this log's"


def test_a_power_cut_while_the_note_is_written_leaves_it_whole_or_not_at_all(world: World) -> None:
    _fork_history(world)
    found = [each.read(NOTE) for each in _survivors(world, takes_over=False) if NOTE in each.names]
    assert len(set(found)) == 1
    assert found[0].count(b"\n") == 1


def test_a_moved_log_keeps_the_note(world: World) -> None:
    _fenced_at_work(world)
    world.config = replace(world.config, more_data_dirs=("./second",))
    world.disk.make_directory("./second")
    with _without_bucket(world) as manager:
        manager.move(NAME, "./second", now_ms=NOW)
    assert "./second/t-0/fenced-by" in world.disk.names
    with _without_bucket(world) as manager, pytest.raises(Diverged):
        send(manager, 1)


def test_a_disk_that_refuses_the_note_ends_no_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _fork_history(world)

    def full(self: Log, by: str) -> None:
        raise DiskFailed("writing a file", cause="enospc")

    monkeypatch.setattr(Log, "mark_fenced", full)
    with world.open() as manager:
        assert manager.problems[NAME].facts["relation"] == "fenced"
        with pytest.raises(Diverged):
            send(manager, 1)


def test_a_fenced_log_acknowledges_no_append_where_no_store_is_configured(world: World) -> None:
    _fenced_at_work(world)
    with LogManager.open(replace(world.config, remote_url=None), now_ms=NOW, storage=world.disk) as manager:
        for _ in range(2):
            with pytest.raises(Diverged, match="took over before the restart"):
                send(manager, 1)
            manager.tick(NOW)
    assert NOTE in world.disk.names


def test_a_fenced_manager_keeps_the_note_however_often_it_asks_the_bucket(world: World) -> None:
    with world.open() as first:
        first.create_topic("t", 1, TIERED, now_ms=NOW)
        send(first, 100)
        settle(first)
        with world.open(disk=world.other_disk()) as second:
            send(second, 1, start=9000)
            send(first, 1, start=100)
            first.roll("t", now_ms=NOW)
            for _ in range(4):
                first.tick(NOW)
                with pytest.raises(Conflict):
                    send(first, 1, start=101)
            assert NOTE in world.disk.names


def test_a_deletion_that_took_the_epoch_leaves_no_note(world: World) -> None:
    """The deletion gives no offset and holds no record: this log is still the last one that does."""
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
        (topic,) = {key.partition("/0/")[0] for key in _heads(world)}
        other = MetadataLog(world.store, f"{topic}/0/")
        held = manager.partition(NAME)
        other.become_writer(
            f"{DELETION}x", NOW, topic="t", topic_id=held.topic.topic_id, partition=0, properties=held.topic.properties
        )
        send(manager, 1, start=100)
        manager.roll("t", now_ms=NOW)
        manager.tick(NOW)
        assert isinstance(manager.problems[NAME], Fenced)
    assert NOTE not in world.disk.names
    with _without_bucket(world) as manager:
        send(manager, 1, start=101)
