"""A partition moves during the copy of its segments: nothing is lost or copied twice.

1. The copy is stopped before and after every call that it sends and at every part that it reads, in turn.
2. The partition moves, once or there and back, and its old files are deleted.
3. The copy continues.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk

from local.errors import LogError
from local.format.record import Record
from local.names import TopicPartition
from local.segment.segment import Segment
from remote.manifest.manifest_changes import Change, objects_of
from remote.segment_entry import SegmentEntry
from remote.store import Body, UploadSource
from remote.store.memory_store import MemoryStore
from tiered.config.config import Config
from tiered.maintenance import upload_and_commit
from tiered.maintenance.maintenance import Maintenance
from tiered.manager.manager import LogManager

NOW = 1_800_000_000_000
HOUR = 3_600_000
LIMIT_S = 60.0  # nothing takes so long; a test that would hang fails
NAME = TopicPartition("t", 0)
A, B = "./a", "./b"
COUNT = 90
TOPIC = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1ms",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
    "segment.bytes": "2000",
    "index.interval.bytes": "200",
    "remote.log.delete.grace.ms": "1h",
}


class Steps:
    """Counts the store calls of tasks, and holds one of them at one step until it is released."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            return
        self.count += 1
        if self.count == self.at:
            self.reached.set()
            assert self.opened.wait(LIMIT_S)


class Stepping:
    """A store in which the start and the end of every verb, and every part of an upload, is a step."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner, self.step = inner, Steps(0)

    def upload(self, key: str, source: UploadSource) -> None:
        def parts() -> Iterator[Body]:
            for part in source.parts():
                self.step()
                yield part

        self.step()
        self.inner.upload(key, UploadSource(parts=parts))
        self.step()

    def __getattr__(self, verb: str) -> object:
        real = getattr(self.inner, verb)
        if not callable(real):
            return real

        def call(*given: object, **more: object) -> object:
            self.step()
            found = real(*given, **more)
            self.step()
            return found

        return call


class World:
    """Two log directories and a bucket; three closed segments that are not copied yet."""

    def __init__(self, own: dict[str, str]) -> None:
        self.disk, self.inner = ModelDisk(), MemoryStore("memory://bucket")
        self.store = Stepping(self.inner)
        self.manager = self.open()
        self.manager.topics.create("t", 1, {**TOPIC, **own}, now_ms=NOW)
        for start in range(0, COUNT, 30):
            records = [Record(b"k%d" % at, b"value %d" % at, NOW - HOUR) for at in range(start, start + 30)]
            self.manager.append("t", records, 0, now_ms=NOW)
            self.manager.partitions.roll("t", now_ms=NOW)
        if "compact" in own.values():
            off = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}
            self.manager.topics.alter("t", off, now_ms=NOW)
            self.settle()
            on = {"remote.log.copy.disable": "", "local.retention.ms": "1ms"}
            self.manager.topics.alter("t", on, now_ms=NOW)

    def open(self) -> LogManager:
        loaded = Config.load(None, {"num.recovery.threads.per.data.dir": "1"}, {}, local_dir="data")
        config = replace(loaded, data_dir=A, more_data_dirs=(B,), remote_url="memory://b")
        return LogManager.open(config, now_ms=NOW, storage=self.disk, store=self.store)  # type: ignore[arg-type]

    def settle(self, now_ms: int = NOW) -> None:
        for _ in range(20):
            is_busy = self.manager.tick(now_ms, waits=False)
            assert self.manager.maintenance.tasks.wait_idle(LIMIT_S)
            if not is_busy:
                break

    def move(self) -> str:
        root = self.manager.directories.root_of(NAME)
        to = B if root == A else A
        turn = threading.Thread(target=lambda: self.manager.maintenance.move(NAME, to, now_ms=NOW), daemon=True)
        turn.start()
        turn.join(LIMIT_S / 3)
        assert not turn.is_alive(), "the move waits for the store"
        assert self.manager.directories.root_of(NAME) == to
        return to

    def check(self, root: str) -> None:
        """Every segment is in the bucket once, dropped from the disk, and no file is left over."""
        manager = self.manager
        assert manager.problems == {}
        manifest = manager.partitions.find(NAME).manifest()
        assert manifest is not None
        entries = list(manager.partitions.find(NAME).metadata.index(manifest).entries())  # type: ignore[union-attr]
        assert [0, *(entry.next_offset for entry in entries)] == [*(entry.base_offset for entry in entries), COUNT]
        assert [info.base_offset for info in manager.partitions.find(NAME).log.segments()] == [COUNT]
        start, end = manager.reader().offsets(NAME)
        found = [(each.offset, each.value) for each in manager.reader().records(NAME, start, end)]
        assert found == [(at, b"value %d" % at) for at in range(COUNT)]
        held = [name for name in self.disk.names if "/t-0" in name]
        assert held
        assert all(name.startswith(f"{root}/t-0/") for name in held)
        self.settle(NOW + 3 * HOUR)
        data = {info.key.rsplit("/", 1)[-1] for info in self.inner.list("") if "/data/" in info.key}
        assert data == {key.rsplit("/", 1)[-1] for entry in entries for key in (entry.data_key, entry.indexes_key)}
        assert_sound(self.inner)


def story(at: int, moves: int, own: dict[str, str]) -> bool:
    """Run the story with the copy held at its step `at`; False when the copy has fewer steps."""
    world = World(own)
    step = world.store.step = Steps(at)
    world.manager.tick(NOW, waits=False)
    while not step.reached.wait(0.02):
        if world.manager.maintenance.tasks.wait_idle(0.0):
            break
    is_held = step.reached.is_set()
    try:
        for _ in range(moves if is_held else 0):
            root = world.move()
    finally:
        step.opened.set()
    if is_held:
        assert world.manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert world.manager.problems == {}, "a move caused a problem"
        world.settle()
        world.check(root)
    world.manager.close()
    return is_held


COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


@pytest.mark.parametrize("moves", [1, 2])
@pytest.mark.parametrize("own", [{}, COMPACT], ids=["delete", "compact"])
def test_a_partition_moves_at_any_step_of_its_copies(moves: int, own: dict[str, str]) -> None:
    at = 1
    while story(at, moves, own):
        at += 1
    assert at > 15


def _what_is_committed_is_listed_for_deletion(patch: pytest.MonkeyPatch) -> None:
    """As if lost, because the copied segment is retired."""

    def unlink(entries: list[SegmentEntry]) -> Change:
        return lambda manifest: replace(
            manifest,
            pending_deletes=manifest.pending_deletes
            + tuple(each for entry in entries for each in objects_of(entry, NOW, manifest.epoch)),
        )

    patch.setattr(upload_and_commit, "unlink_uploads", unlink)


def _a_segment_that_moved_is_a_trouble(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "is_retired", property(lambda self: False, lambda self, value: None), raising=False)


def _a_move_waits_for_the_copy(patch: pytest.MonkeyPatch) -> None:
    real = Maintenance.move

    def move(self: Maintenance, name: TopicPartition, to: str, *, now_ms: int) -> None:
        with self._table.find(name).tier_lock:
            real(self, name, to, now_ms=now_ms)

    patch.setattr(Maintenance, "move", move)
    patch.setattr(sys.modules[__name__], "LIMIT_S", 3.0)


@pytest.mark.deep("planted bugs of moves with uploads")
@pytest.mark.damages_bucket
@pytest.mark.parametrize(
    "plant",
    [
        _what_is_committed_is_listed_for_deletion,
        _a_segment_that_moved_is_a_trouble,
        _a_move_waits_for_the_copy,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_detected(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, LogError)):
        all(story(at, 1, {}) for at in range(1, 60))
