"""Copies of a backlog share commits: few manifests, entries in order, no loss after an interruption."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from fault_store import Fault, FaultStore, Killed
from manager_world import NAME, NOW, TIERED, World, send, settle, values

from local.errors import Unavailable
from policies.cost.plan_cost import plan_cost
from policies.cost.prices import BUILT_IN
from policies.decisions import CopySegment, Decision
from policies.tiering import COMMIT_BYTES, COMMIT_SEGMENTS_MAX, commits_of
from remote.keys import MANIFESTS
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.store import UploadSource
from remote.store.memory_store import MemoryStore
from tiered.jobs.key_rotation import rotate_keys
from tiered.maintenance.upload_and_commit import Application, copy_in_groups, copy_in_one_commit
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

KEPT = {**TIERED, "local.retention.ms": "-2"}
KEY = "remote.encryption.key.id"
RING = ";".join(f"{name} {base64.b64encode(name.encode() * 16).decode()}" for name in ("k1", "k2"))


@pytest.fixture
def world() -> World:
    return World()


def _backlog(world: World, segments: int, store: object = None) -> LogManager:
    """Creates `segments` closed segments with ten records each."""
    manager = world.open(store=store)  # type: ignore[arg-type]
    manager.topics.create("t", 1, KEPT, now_ms=NOW)
    for at in range(segments):
        send(manager, 10, start=10 * at)
        manager.partitions.roll("t", now_ms=NOW)
    return manager


def _copies(manager: LogManager) -> list[CopySegment]:
    return [each for each in manager.plan(NOW).decisions[NAME] if isinstance(each, CopySegment)]


def _manifest(manager: LogManager) -> Manifest:
    manifest = manager.partitions.find(NAME).manifest()
    assert manifest is not None
    return manifest


def test_backlog_of_a_hundred_segments_needs_at_most_two_commits(world: World) -> None:
    with _backlog(world, 105) as manager:
        copies, before = _copies(manager), _manifest(manager).sequence
        assert len(copies) == 105
        was = manager.store.counts()
        manager.tick(NOW)
        counts = manager.store.counts()
        assert counts is not None
        assert was is not None
        manifests = _manifest(manager).sequence - before
        assert manifests == commits_of(each.size_bytes for each in copies) <= 2
        assert (counts - was).puts == 2 * len(copies) + manifests, (
            "one data and one index object per segment, and the manifests"
        )
        entries = _manifest(manager).segments
        assert [entry.base_offset for entry in entries] == [each.base_offset for each in copies]
        assert all(one.next_offset == other.base_offset for one, other in pairwise(entries))
        assert len(values(RemoteLog(world.store).reader(), 0, entries[-1].next_offset)) == entries[-1].next_offset


@pytest.mark.parametrize(
    ("sizes", "commits"),
    [
        ([], 0),
        ([1], 1),
        ([1] * COMMIT_SEGMENTS_MAX, 1),
        ([1] * (COMMIT_SEGMENTS_MAX + 1), 2),
        ([COMMIT_BYTES] * 3, 3),
        ([COMMIT_BYTES - 1, 1, COMMIT_BYTES], 2),
        ([1 << 30] * 8, 8),
    ],
)
def test_commit_is_due_after_a_number_of_segments_or_bytes(sizes: list[int], commits: int) -> None:
    assert commits_of(sizes) == commits


def test_plan_cost_counts_shared_commits(world: World) -> None:
    with _backlog(world, 105) as manager:
        plan = manager.plan(NOW)
        cost = plan_cost(plan, manager.snapshots(NOW), BUILT_IN)
        was = manager.store.counts()
        manager.apply(plan)
        counts = manager.store.counts()
        assert counts is not None
        assert was is not None
        sent = counts - was
        assert (cost.sum_of("puts"), cost.sum_of("gets")) == (sent.puts, sent.gets)


class _Groups(Application):
    """Notes the size of each group of copies."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.groups: list[int] = []

    def record(self, run: Sequence[Decision], done: Sequence[Decision]) -> None:
        self.groups.append(len(done))
        super().record(run, done)


def test_upload_waits_at_most_a_second_for_a_shared_commit(world: World) -> None:
    with _backlog(world, 10) as manager:
        copies, held, seconds = _copies(manager), manager.partitions.find(NAME), [0.0]

        def clock() -> float:
            seconds[0] += 0.15  # the clock is read twice per segment
            return seconds[0]

        state = _Groups(partition=held, now_ms=NOW, where=lambda: manager.directories.of(NAME), clock=clock)
        copy_in_groups(state, copies)
        assert state.done == copies
        assert state.applied().done == tuple(copies)
        assert 1 < max(state.groups) <= 7


def test_uploaded_segments_are_committed_when_the_copy_is_cancelled(world: World) -> None:
    with _backlog(world, 10) as manager:
        before, copies = _manifest(manager).sequence, _copies(manager)
        asked = iter(range(1 << 30))
        manager.apply(manager.plan(NOW), should_stop=lambda: next(asked) > 5)
        assert _manifest(manager).sequence == before + 1
        assert 2 <= len(_manifest(manager).segments) < len(copies)
        settle(manager)
        assert len(values(manager.reader())) == 100


class _Failing:
    """A store that counts uploads. While `is_failing`, uploads from the fourth on fail."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner, self.is_failing, self.uploads = inner, True, 0

    def upload(self, key: str, source: UploadSource) -> None:
        self.uploads += 1
        if self.is_failing and self.uploads > 3:
            raise Unavailable("lost on the way", key=key)
        self.inner.upload(key, source)

    def __getattr__(self, verb: str) -> Callable[..., object]:
        found: Callable[..., object] = getattr(self.inner, verb)
        return found


def test_failed_upload_does_not_delay_the_commit_of_earlier_uploads(world: World) -> None:
    store = _Failing(world.store)
    with _backlog(world, 10, store=store) as manager:
        manager.tick(NOW)
        assert isinstance(manager.problems[NAME], Unavailable)
        assert len(_manifest(manager).segments) == 3
        store.is_failing, done = False, store.uploads
        settle(manager)
        assert store.uploads - done == len(_manifest(manager).segments) - 3, "no segment may be uploaded twice"


class _Uncommitting:
    """A store that accepts uploads. While it `refuses`, it accepts no manifest."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner, self.refuses = inner, False

    def put_if_absent(self, key: str, body: bytes) -> None:
        if self.refuses:
            raise Unavailable("no head today", key=key)
        self.inner.put_if_absent(key, body)

    def __getattr__(self, verb: str) -> Callable[..., object]:
        found: Callable[..., object] = getattr(self.inner, verb)
        return found


def test_uncommitted_uploads_are_committed_with_the_new_key_after_a_rotation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERED_KEYS", RING)
    World.made.remove(world)  # the check of encrypted buckets needs the key ring
    store = _Uncommitting(world.store)
    with _backlog(world, 3, store=store) as manager:
        manager.topics.alter("t", {KEY: "k1"}, now_ms=NOW)
        store.refuses = True
        manager.tick(NOW)
        assert len(manager.partitions.find(NAME).uploads.items()) == 3
        store.refuses = False
        manager.topics.alter("t", {KEY: "k2"}, now_ms=NOW)
        (rotated,) = rotate_keys(manager, now_ms=NOW)
        assert rotated.rewrapped == 3
        settle(manager)
        assert [entry.key_id for entry in _manifest(manager).segments] == ["k2"] * 3
        assert len(values(manager.reader())) == 30


class _Mute:
    """A store that creates the first manifest after it is armed, and then answers no call."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner, self.is_armed, self.is_mute, self.uploads = inner, False, False, 0

    def put_if_absent(self, key: str, body: bytes) -> None:
        self._answer()
        self.inner.put_if_absent(key, body)
        self.is_mute = self.is_armed
        self._answer()

    def upload(self, key: str, source: UploadSource) -> None:
        self._answer()
        self.uploads += 1
        self.inner.upload(key, source)

    def _answer(self) -> None:
        if self.is_mute:
            raise Unavailable("no reply")

    def __getattr__(self, verb: str) -> Callable[..., object]:
        self._answer()
        found: Callable[..., object] = getattr(self.inner, verb)
        return found


def test_commit_in_doubt_is_repeated_with_the_same_objects(world: World) -> None:
    store = _Mute(world.store)
    with _backlog(world, 10, store=store) as manager:
        store.is_armed = True
        manager.tick(NOW)
        assert isinstance(manager.problems.get(NAME), Unavailable)
        assert not _manifest(manager).segments, "the writer does not know that its commit has succeeded"
        store.is_armed = store.is_mute = False
        settle(manager)
        assert store.uploads == len(_manifest(manager).segments) == 10
        assert not _manifest(manager).pending_deletes


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_objects_of_a_commit_in_doubt_are_kept_when_the_topic_is_deleted(world: World, policy: str) -> None:
    """Readers and pins may use the manifest of that commit. Its objects are deleted with the topic."""
    store = _Mute(world.store)
    with _backlog(world, 10, store=store) as manager:
        manager.topics.alter("t", {"cleanup.policy": policy, "remote.log.copy.disable": "true"}, now_ms=NOW)
        settle(manager)
        manager.topics.alter("t", {"remote.log.copy.disable": "false"}, now_ms=NOW)
        copies, held = _copies(manager), manager.partitions.find(NAME)
        asked = iter(range(1 << 30))

        def copy(is_deleted_at: int) -> None:
            def ask() -> bool:
                if next(asked) >= is_deleted_at:
                    held.tier.delete()
                return False

            state = Application(partition=held, now_ms=NOW, where=lambda: manager.directories.of(NAME), should_stop=ask)
            if policy == "compact":
                copy_in_one_commit(state, copies)
            else:
                copy_in_groups(state, copies)

        store.is_armed = True
        with pytest.raises(Unavailable):
            copy(1 << 30)
        store.is_armed = store.is_mute = False
        copy(2 * len(copies) - 1)
        assert held.is_deleted
        newest = MetadataLog(world.store, held.prefix).refresh()
        assert newest.segments, "the commit in doubt must have succeeded"
        there = {info.key for info in world.store.list(held.prefix)}
        assert all(
            {held.prefix + entry.data_key, held.prefix + entry.indexes_key} <= there for entry in newest.segments
        )


def test_crash_at_any_call_of_a_group_commit_leaves_at_most_orphans(world: World) -> None:
    rehearsal = FaultStore(MemoryStore("memory://bucket"))
    whole = World()
    whole.store = rehearsal.inner
    with _backlog(whole, 3, store=rehearsal) as manager:
        first = len(rehearsal.calls)
        settle(manager)
    calls = len(rehearsal.calls) - first
    assert calls > 10
    for at in range(first, first + calls):
        for fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER):
            once = World()
            manager = _backlog(once, 3, store=FaultStore(once.store, at, fault))
            with suppress(Killed):
                settle(manager)
            manager.abandon()
            once.disk.locks.clear()
            named = [info.key for info in once.store.list("") if MANIFESTS in info.key]
            assert named
            with once.open() as again:
                settle(again)
                assert len(values(again.reader())) == 30
                entries = _manifest(again).segments
                assert all(one.next_offset == other.base_offset for one, other in pairwise(entries))
