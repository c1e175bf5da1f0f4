"""Maintenance with tasks: while an upload hangs, everything else continues and no record is lost.
No test sleeps. The store blocks an upload until the test releases it, and the test waits only for events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from checked_bucket import check_bucket
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send

from local.errors import DiskFailed, Fenced, Unavailable
from local.names import TopicPartition
from local.storage import Space
from policies.decisions import CleanLog
from remote.check.partition_check import ObjectKind
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.store import UploadSource
from remote.store.memory_store import MemoryStore
from tiered.maintenance.apply import apply_on_disk
from tiered.maintenance.maintenance import Maintenance
from tiered.maintenance.remote_tasks import Due
from tiered.maintenance.upload_and_commit import Application
from tiered.manager.manager import LogManager
from tiered.service.worker import Worker

LIMIT_S = 60.0  # far more than anything needs: a test that hangs fails
OTHER = TopicPartition("o", 0)
GRACE = {**TIERED, "remote.log.delete.grace.ms": "1h"}


class HangingStore:
    """A store that blocks the uploads of some topics until they are released."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.hanging: set[str] = set()
        self.uploads: list[str] = []
        self.at_once_max = 0
        self.at_once = 0
        self._changed = threading.Condition()

    def upload(self, key: str, source: UploadSource) -> None:
        with self._changed:
            self.uploads.append(key)
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: not any(key.startswith(f"{t}-") for t in self.hanging), LIMIT_S)
        try:
            self.inner.upload(key, source)
        finally:
            with self._changed:
                self.at_once -= 1

    def wait_for(self, uploads: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.uploads) >= uploads, LIMIT_S), self.uploads

    def let_go(self) -> None:
        with self._changed:
            self.hanging.clear()
            self._changed.notify_all()

    def __getattr__(self, verb: str) -> Callable[..., object]:
        found: Callable[..., object] = getattr(self.inner, verb)
        return found


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(world: World) -> Iterator[HangingStore]:
    hanging = HangingStore(world.store)
    yield hanging
    hanging.let_go()


def _started(world: World, store: HangingStore, *topics: str, **properties: str) -> LogManager:
    """Creates topics with closed segments. The copies of "t" hang."""
    manager = world.open(store=store)  # type: ignore[arg-type]
    for topic in ("t", *topics):
        own = {key.replace("_", "."): value for key, value in properties.items()}
        manager.topics.create(topic, 1, {**GRACE, **own}, now_ms=NOW)
        for at in range(3):
            send(manager, 20, topic=topic, start=20 * at)
            manager.partitions.roll(topic, now_ms=NOW)
    store.hanging.add("t")
    while manager.tick(NOW, waits=False):
        pass  # compacted topics are cleaned first
    store.wait_for(1)
    return manager


def _finish(manager: LogManager, store: HangingStore, now_ms: int = NOW) -> None:
    store.let_go()
    assert manager.maintenance.tasks.wait_idle(LIMIT_S)
    for _ in range(20):
        is_busy = manager.tick(now_ms, waits=False)
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        if not is_busy:
            break


def _manifest(manager: LogManager, name: TopicPartition = NAME) -> Manifest:
    manifest = manager.partitions.find(name).manifest()
    assert manifest is not None
    return manifest


def _segments(manager: LogManager, name: TopicPartition = NAME) -> int:
    return len(manager.partitions.find(name).log.segments())


def _offsets(manager: LogManager, name: TopicPartition = NAME) -> list[int]:
    start, end = manager.reader().offsets(name)
    return [record.offset for record in manager.reader().records(name, start, end)]


def test_everything_else_continues_while_an_upload_hangs(world: World, store: HangingStore) -> None:
    with _started(world, store, "o") as manager:
        manager.topics.create("plain", 1, {"retention.ms": "1h", "flush.ms": "1s"}, now_ms=NOW)
        manager.topics.create("compacted", 1, {"cleanup.policy": "compact"}, now_ms=NOW)
        plain, compacted = TopicPartition("plain", 0), TopicPartition("compacted", 0)
        for topic in ("plain", "compacted"):
            send(manager, 300, topic=topic)
        manager.topics.alter("t", {"flush.ms": "1s"}, now_ms=NOW)
        send(manager, 10, start=60)
        for name in (plain, NAME):
            held = manager.partitions.find(name).log
            assert held.recovery_point < held.next_offset
        before = _segments(manager, compacted)
        _drain(manager, {NAME})
        for _ in range(5):
            manager.tick(NOW + 2000, waits=False)
        for name in (plain, NAME):
            held = manager.partitions.find(name).log
            assert held.recovery_point == held.next_offset, "the flush after flush.ms must be done"
        assert _offsets(manager, plain) == [], "retention must be done"
        assert _segments(manager, compacted) < before, "cleaning must be done"
        assert (_segments(manager, OTHER), len(_manifest(manager, OTHER).segments)) == (1, 3), (
            "the segments of the other topic must be copied and dropped"
        )
        done = manager.maintenance.delete_records({OTHER: 25, NAME: 5}, now_ms=NOW)
        assert {name: each.low_watermark for name, each in done.items()} == {OTHER: 25, NAME: 5}
        assert manager.partitions.roll("t", now_ms=NOW) == 1
        manager.topics.create("new", 1, GRACE, now_ms=NOW)
        assert _manifest(manager).segments == ()
        _finish(manager, store)
        assert len(_manifest(manager).segments) == 4
        assert _offsets(manager) == list(range(5, 70))
        assert manager.problems == {}


def test_full_disk_is_relieved_while_an_upload_hangs(world: World, store: HangingStore) -> None:
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, {**GRACE, "local.retention.ms": "-2"}, now_ms=NOW)
        for at in range(4):
            send(manager, 20, start=20 * at)
            manager.partitions.roll("t", now_ms=NOW)
            if at == 2:
                while manager.tick(NOW):
                    pass
        store.hanging.add("t")
        manager.tick(NOW, waits=False)
        store.wait_for(4)
        worker = Worker(manager, now_ms=NOW, interval_ms=1000, waits=False)
        world.disk.space = lambda path: Space(96 << 20, 1 << 40)  # type: ignore[method-assign]
        turn = threading.Thread(target=worker.round, args=(NOW,), daemon=True)
        turn.start()
        turn.join(LIMIT_S / 3)
        is_hanging = turn.is_alive()
        store.let_go()
        assert not is_hanging, "the maintenance must not wait for the upload"
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert manager.problems == {}
        assert [each.base_offset for each in manager.partitions.find(NAME).log.segments()] == [60, 80]
        assert _offsets(manager) == list(range(80))


def test_maintenance_continues_while_apply_waits_for_a_hanging_upload(
    world: World, store: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller of `LogManager.apply` runs at the same time as a daemon's maintenance.
    Its whole plan is applied in the end."""
    waits, real = threading.Event(), Maintenance._wait_for_task

    def wait_for_task(*given: Any) -> bool:
        waits.set()
        return real(*given)

    monkeypatch.setattr(Maintenance, "_wait_for_task", wait_for_task)
    with _started(world, store, "o") as manager:
        _drain(manager, {NAME})
        send(manager, 5, start=60)
        send(manager, 5, topic="o", start=60)
        plan = manager.plan(NOW + 8 * DAY)
        assert {NAME, OTHER} <= set(plan.decisions), "segment.ms must have passed"
        done: list[object] = []
        caller = threading.Thread(target=lambda: done.append(manager.apply(plan)), daemon=True)
        caller.start()
        assert waits.wait(LIMIT_S)
        turn = threading.Thread(target=lambda: manager.tick(NOW, waits=False), daemon=True)
        turn.start()
        turn.join(LIMIT_S / 3)
        is_hanging = turn.is_alive()
        is_waiting = caller.is_alive()
        store.let_go()
        caller.join(LIMIT_S)
        assert not is_hanging, "the maintenance must not wait for the upload"
        assert is_waiting, "the caller of apply must wait for the upload"
        assert len(done) == 1
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        for name in (NAME, OTHER):
            assert manager.partitions.find(name).log.segments()[-1].base_offset == 65
        assert manager.problems == {}


def test_failed_task_is_a_problem_of_its_partition_until_a_task_succeeds(
    world: World, store: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any exception counts.
    Otherwise an unexpected error in a thread would end all copies of a partition silently."""
    with _started(world, store) as manager:
        with monkeypatch.context() as broken:
            broken.setattr(MemoryStore, "upload", lambda *_: 1 // 0)
            store.let_go()
            assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert "ZeroDivisionError" in str(manager.problems[NAME])
        assert manager.partitions.find(NAME).tier.error is None
        _finish(manager, store)
        assert manager.problems == {}
        assert len(_manifest(manager).segments) == 3


def test_resolved_problem_is_removed_by_a_task_without_work(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, GRACE, now_ms=NOW)
        manager.partitions.note(NAME, Unavailable("asking for the pins, the store is down"))
        manager.maintenance.tasks.submit(NAME, Due(copies=False, rest=True))
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert manager.problems == {}


def test_copied_segments_are_dropped_in_the_same_task(world: World, store: HangingStore) -> None:
    with _started(world, store) as manager:
        assert _segments(manager) == 4
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert (len(_manifest(manager).segments), _segments(manager)) == (3, 1)
        assert _offsets(manager) == list(range(60))


def test_expiry_after_a_hanging_upload_uses_the_newest_settings(world: World, store: HangingStore) -> None:
    """The task decides before the upload.
    Retention that is raised during the upload must keep the records."""
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, GRACE, now_ms=NOW)
        for at in range(3):
            send(manager, 20, start=20 * at)
            manager.partitions.roll("t", now_ms=NOW)
        while manager.tick(NOW):
            pass
        send(manager, 20, start=60)
        manager.partitions.roll("t", now_ms=NOW)
        manager.topics.alter("t", {"retention.ms": "1h"}, now_ms=NOW)
        store.hanging.add("t")
        manager.maintenance.tasks.submit(
            NAME, Due(copies=True, rest=False)
        )  # a task without copies would finish at once
        store.wait_for(4)
        manager.topics.alter("t", {"retention.ms": "-1"}, now_ms=NOW)
        _finish(manager, store)
        assert manager.problems == {}
        assert len(_manifest(manager).segments) == 4
        assert _offsets(manager) == list(range(80))
        manager.topics.alter("t", {"retention.ms": "1h"}, now_ms=NOW)
        _finish(manager, store)
        assert _offsets(manager) == [], "the present settings must expire all records"


def test_maintenance_that_waits_drops_copied_segments(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 40)
        manager.partitions.roll("t", now_ms=NOW)
        manager.tick(NOW)
        assert (len(_manifest(manager).segments), _segments(manager)) == (1, 1)


def test_partition_has_only_one_task_at_a_time(world: World, store: HangingStore) -> None:
    with _started(world, store) as manager:
        for _ in range(5):
            manager.tick(NOW, waits=False)
        assert len(store.uploads) == 1
        assert set(manager.maintenance.tasks.copier_pool.states) == {NAME}
        _finish(manager, store)
        assert len(store.uploads) == len(_manifest(manager).segments) == 3, "no segment may be uploaded twice"


def test_partitions_are_copied_at_once_by_all_threads_of_the_pool(world: World, store: HangingStore) -> None:
    manager = world.open(store=store, remote_log_manager_copier_thread_pool_size="3")  # type: ignore[arg-type]
    with manager:
        for at in range(6):
            manager.topics.create(f"t-{at}", 1, GRACE, now_ms=NOW)
            send(manager, 20, topic=f"t-{at}")
            manager.partitions.roll(f"t-{at}", now_ms=NOW)
        store.hanging.add("t")
        manager.tick(NOW, waits=False)
        store.wait_for(3)
        assert len(manager.maintenance.tasks.copier_pool.states) >= 6
        _finish(manager, store)
        assert store.at_once_max == 3
        assert all(len(_manifest(manager, TopicPartition(f"t-{at}", 0)).segments) == 1 for at in range(6))


def test_topic_deleted_during_its_copy_leaves_no_objects(world: World, store: HangingStore) -> None:
    with _started(world, store) as manager:
        manager.topics.delete("t", now_ms=NOW)
        assert manager.topics.all() == []
        _finish(manager, store, NOW + 2 * HOUR)
        assert manager.problems == {}
        kinds = {kind for report in check_bucket(world.store) for kind in report.counts()}
        assert kinds <= {ObjectKind.MANIFEST, ObjectKind.BOUNDARY}, kinds
        assert manager.partitions.registry.deleted() == ()


def test_takeover_during_a_copy_fences_the_copy(world: World, store: HangingStore) -> None:
    with _started(world, store) as manager:
        with world.open(disk=world.other_disk()) as second:
            send(second, 20)
            second.partitions.roll("t", now_ms=NOW)
            second.tick(NOW)
            theirs = _manifest(second)
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert isinstance(manager.problems[NAME], Fenced)
        newest = MetadataLog(world.store, manager.partitions.find(NAME).prefix).refresh(exact=True)
        assert newest == theirs
        assert _segments(manager) == 4, "the disk has the only copy of its records"


@pytest.mark.parametrize("waits", [False, True])
def test_manifest_of_another_writer_seen_by_a_reader_deletes_no_local_segment(
    world: World, store: HangingStore, *, waits: bool
) -> None:
    """Its entries have other records at the same offsets, and another log start offset."""
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, GRACE, now_ms=NOW)
        for at in range(3):
            send(manager, 20, start=20 * at)
            manager.partitions.roll("t", now_ms=NOW)
        with world.open(disk=world.other_disk()) as second:
            send(second, 90, start=1000)
            second.partitions.roll("t", now_ms=NOW)
            while second.tick(NOW):
                pass
            second.maintenance.delete_records({NAME: 50}, now_ms=NOW)
        metadata, log = manager.partitions.find(NAME).metadata, manager.partitions.find(NAME).log
        assert metadata is not None
        with pytest.raises(Fenced):
            metadata.refresh(exact=True)  # as a reader does when its objects are missing
        with pytest.raises(Fenced):
            send(manager, 1, start=60)  # an acknowledged record would be only on this disk and never be copied
        for _ in range(3):
            manager.tick(NOW, waits=waits)
            assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert [segment.base_offset for segment in log.segments()] == [0, 20, 40, 60], (
            "the disk has the only copy of its records"
        )
        assert log.log_start_offset == 0
        assert isinstance(manager.problems[NAME], Fenced)


def test_records_deleted_during_their_upload_are_never_committed(world: World, store: HangingStore) -> None:
    with _started(world, store) as manager:
        manager.maintenance.delete_records({NAME: 45}, now_ms=NOW)
        manager.tick(NOW, waits=False)
        assert manager.partitions.find(NAME).log.segments()[0].base_offset == 0, (
            "a segment that is being copied stays on the disk"
        )
        _finish(manager, store)
        assert [entry.base_offset for entry in _manifest(manager).segments] == [40]
        assert _offsets(manager) == list(range(45, 60))
        _finish(manager, store, NOW + 2 * HOUR)
        assert not _manifest(manager).pending_deletes
        assert sum(1 for info in world.store.list("") if "/data/" in info.key) == 2, (
            "only the data and the indexes of one entry remain"
        )


def test_tier_disabled_with_deletion_during_a_copy_is_emptied(world: World, store: HangingStore) -> None:
    with _started(world, store, local_retention_ms="-2") as manager:
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        manager.topics.alter("t", off, now_ms=NOW)
        manager.tick(NOW, waits=False)
        _finish(manager, store)
        _finish(manager, store, NOW + 2 * HOUR)
        assert not _manifest(manager).has_entries
        assert sorted(info.key for info in world.store.list("") if "/data/" in info.key) == []
        assert _offsets(manager) == list(range(60))
        assert manager.problems == {}


def test_copying_disabled_during_a_copy_ends_after_the_started_copies(world: World, store: HangingStore) -> None:
    with _started(world, store, local_retention_ms="-2") as manager:
        manager.topics.alter("t", {"remote.log.copy.disable": "true"}, now_ms=NOW)
        send(manager, 20, start=60)
        manager.partitions.roll("t", now_ms=NOW)
        _finish(manager, store)
        assert len(_manifest(manager).segments) == 3
        assert _offsets(manager) == list(range(80))


def test_compacted_log_is_not_cleaned_while_it_is_copied(world: World, store: HangingStore) -> None:
    with _started(world, store, cleanup_policy="compact") as manager:
        copied = manager.partitions.find(NAME).uploads.copying
        assert copied
        log = manager.partitions.find(NAME).log
        for at in range(3):
            send(manager, 20, start=60 + 20 * at)
            manager.partitions.roll("t", now_ms=NOW)
            manager.tick(NOW, waits=False)
        assert copied <= {each.base_offset for each in log.segments()}
        cleaned = log.cleaner_offset
        assert cleaned is not None
        assert cleaned <= 60
        _finish(manager, store)
        assert log.cleaner_offset == 120
        found = {record.key: record.value for record in manager.reader().records(NAME, 0)}
        assert len(found) == 9
        assert found[b"k%d" % (119 % 9)] == b"value 119"
        entries = _manifest(manager).segments
        assert all(one.next_offset == other.base_offset for one, other in pairwise(entries))


def test_cleaning_planned_before_the_copy_began_is_skipped(world: World, store: HangingStore) -> None:
    with _started(world, store, cleanup_policy="compact") as manager:
        held = manager.partitions.find(NAME)
        end = held.log.segments()[-1].base_offset
        planned = CleanLog(first_dirty_offset=0, upto_offset=end, size_bytes=1, reason="planned a moment ago")
        directory = manager.directories.of(NAME)

        def clean(*rest: object) -> None:
            raise AssertionError("a segment that is being copied must not be cleaned")

        state = Application(partition=held, now_ms=NOW, where=lambda: directory, clean=clean)  # type: ignore[arg-type]
        applied = apply_on_disk(state, lambda seen: [planned])
        assert applied is not None
        assert applied.skipped == (planned,)
        store.let_go()


def test_directory_that_becomes_offline_during_a_copy_keeps_its_uncopied_segments(tmp_path, world: World) -> None:
    store = HangingStore(world.store)
    with _started(world, store) as manager:
        held = manager.partitions.find(NAME)

        def fail(start: int, length: int) -> bytes:
            raise DiskFailed("cannot read a file", path="x")

        held.log.segment(20).read = fail  # type: ignore[method-assign]
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert isinstance(manager.problems[NAME], DiskFailed)
        assert [entry.base_offset for entry in _manifest(manager).segments] == [0], (
            "the first segment was read completely"
        )
        assert held.log.segments()[-1].next_offset == 60


@pytest.mark.parametrize("waits", [False, True])
def test_directory_that_becomes_offline_in_maintenance_does_not_affect_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """The directory becomes offline after the snapshot of the partition and before its first action."""
    with world.open() as manager:
        for topic in ("o", "t"):
            manager.topics.create(topic, 1, GRACE, now_ms=NOW)
            send(manager, 20, topic=topic)
            manager.partitions.roll(topic, now_ms=NOW)
        real = manager.directories.check_online

        def check(name: TopicPartition) -> None:
            if name == NAME:
                raise DiskFailed("using a log directory, it is offline", partition=name)
            real(name)

        monkeypatch.setattr(manager.directories, "check_online", check)
        manager.tick(NOW, waits=waits)
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert len(_manifest(manager, OTHER).segments) == 1
        assert set(manager.problems) <= {NAME}


def test_close_waits_for_the_running_upload_and_commits_it(world: World, store: HangingStore) -> None:
    manager = _started(world, store)
    closing = threading.Thread(target=lambda: manager.close(drain_s=LIMIT_S))
    closing.start()
    copier_pool = manager.maintenance.tasks.copier_pool
    with copier_pool._changed:
        assert copier_pool._changed.wait_for(lambda: copier_pool.is_stopping, LIMIT_S)
    store.let_go()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    manifest = MetadataLog(world.store, manager.partitions.find(NAME).prefix).refresh()
    assert [entry.base_offset for entry in manifest.segments] == [0], "no other upload may begin"
    with world.open() as again:
        assert _offsets(again) == list(range(60))


def test_upload_that_ends_after_a_close_with_deadline_changes_nothing(world: World, store: HangingStore) -> None:
    manager = _started(world, store)
    manager.close(drain_s=0.0)
    with world.open() as again:
        for _ in range(3):
            again.tick(NOW)
        theirs = _manifest(again)
        assert len(theirs.segments) == 3
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert MetadataLog(world.store, again.partitions.find(NAME).prefix).refresh(exact=True) == theirs
        assert _offsets(again) == list(range(60))


def test_keyboard_interrupt_does_not_wait_for_a_hanging_upload(world: World, store: HangingStore) -> None:
    with pytest.raises(KeyboardInterrupt), _started(world, store) as manager:
        raise KeyboardInterrupt
    assert set(manager.maintenance.tasks.copier_pool.states) == {NAME}, "the upload still hangs"
    with world.open() as again:
        assert len(_offsets(again)) == 60


def test_expiry_and_deletion_run_as_tasks(world: World, store: HangingStore) -> None:
    with _started(world, store, "o", retention_ms="2d") as manager:
        deletes: list[list[str]] = []
        real = world.store.delete

        def delete(keys: object) -> None:
            deletes.append([threading.current_thread().name])
            real(keys)  # type: ignore[arg-type]

        world.store.delete = delete  # type: ignore[method-assign]
        manager.maintenance.tasks.wait_idle(0.0)
        for hours in (0, 72, 74):
            manager.tick(NOW + hours * HOUR, waits=False)
            store.wait_for(1)
            _drain(manager, {NAME})
        assert _manifest(manager, OTHER).segments == ()
        assert deletes, "the objects of expired entries must be deleted"
        assert all(name.startswith("remote-log-expiration") for (name,) in deletes)
        assert manager.problems == {}
        _finish(manager, store, NOW + 74 * HOUR)


def _drain(manager: LogManager, but: set[TopicPartition]) -> None:
    tasks = manager.maintenance.tasks
    for pool in (tasks.expirer_pool, tasks.copier_pool, tasks.expirer_pool):
        with pool._changed:
            assert pool._changed.wait_for(lambda pool=pool: set(pool._states) <= but, LIMIT_S)


def test_maintenance_skips_a_partition_with_a_locked_log(world: World, store: HangingStore) -> None:
    with _started(world, store, "o") as manager:
        _drain(manager, {NAME})
        send(manager, 5, topic="o", start=60)
        held, is_held, may_end = manager.partitions.find(OTHER), threading.Event(), threading.Event()

        def hold() -> None:
            with held.lock:
                is_held.set()
                assert may_end.wait(LIMIT_S)

        holder = threading.Thread(target=hold)
        holder.start()
        assert is_held.wait(LIMIT_S)
        manager.tick(NOW + 8 * DAY, waits=False)
        assert held.log.segments()[-1].base_offset == 60, (
            "the locked log must not be rolled although segment.ms has passed"
        )
        assert holder.is_alive()
        may_end.set()
        holder.join(LIMIT_S)
        manager.tick(NOW + 8 * DAY, waits=False)
        assert held.log.segments()[-1].base_offset == 65
        _finish(manager, store)


def test_partitions_opened_without_the_bucket_are_acquired_by_tasks(world: World, store: HangingStore) -> None:
    _started(world, store).close(drain_s=0.0)
    store.let_go()

    class Away:
        is_down = True

        def __getattr__(self, verb: str) -> object:
            if self.is_down and verb not in ("close", "url"):
                from local.errors import Unavailable

                raise Unavailable("the store is down")
            return getattr(world.store, verb)

    away = Away()
    with world.open(store=away) as manager:  # type: ignore[arg-type]
        manager.tick(NOW, waits=False)
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert NAME in manager.problems
        away.is_down = False
        _finish(manager, HangingStore(world.store))
        assert manager.problems == {}
        assert len(_manifest(manager).segments) == 3


def test_failed_copy_stays_a_problem_while_its_log_must_be_cleaned_first(
    world: World, store: HangingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(key: str, source: UploadSource) -> None:
        raise Unavailable("cannot store an object, the store cannot be reached", key=key)

    with _started(world, store, cleanup_policy="compact") as manager:
        monkeypatch.setattr(world.store, "upload", fail)
        send(manager, 100, start=60)
        manager.partitions.roll("t", now_ms=NOW)
        manager.tick(NOW, waits=False)  # another task, which has nothing to copy
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert any(isinstance(each, CleanLog) for each in manager.plan(NOW).decisions[NAME])
        assert NAME in manager.problems
        monkeypatch.undo()
        _finish(manager, store)
        assert not manager.problems
        assert _manifest(manager).allocated_end_offset == 160
