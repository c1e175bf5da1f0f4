"""Store calls are made without the locks that other callers need. No test sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle
from other_thread import as_other_thread

from local import lock_ranks
from local.errors import Unavailable
from local.names import TopicPartition
from policies.retention import log_bytes
from policies.snapshot import PartitionSnapshot
from remote.keys import PAGES
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from tiered.maintenance.apply import apply_in_task
from tiered.maintenance.upload_and_commit import Application

LIMIT_S = 60.0  # far more than anything needs: a test that hangs fails


class Hooked:
    """A store that calls `before(verb, key)` before every call."""

    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.before: Callable[[str, str], None] = lambda verb, key: None

    def __getattr__(self, verb: str) -> object:
        real = getattr(self.inner, verb)
        if not callable(real):
            return real

        def call(*given: object, **more: object) -> object:
            self.before(verb, str(given[0]) if given else "")
            return real(*given, **more)

        return call


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("is_away", [False, True])
def test_task_fetches_manifest_pages_before_it_takes_the_lock(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_away: bool
) -> None:
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 1500)
        settle(manager)
        all_bytes = log_bytes(manager.snapshots(NOW)[0])
        # expires a part of the first page
        manager.topics.alter("t", {"retention.bytes": str(all_bytes - 1500)}, now_ms=NOW)
    store = Hooked(world.store)
    asked: list[bool] = []
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        held = manager.partitions.find(NAME)

        def before(verb: str, key: str) -> None:
            if PAGES in key:
                asked.append(held.lock in lock_ranks._locks())
                if is_away:
                    raise Unavailable("the store is down", key=key)

        store.before = before
        seen: list[PartitionSnapshot] = []
        with held.tier_lock:
            state = Application(partition=held, now_ms=NOW, where=lambda: manager.directories.of(NAME))
            apply_in_task(state, lambda snapshot: seen.append(snapshot) or [])  # type: ignore[func-returns-value]
        assert asked, "pages must be fetched"
        assert not any(asked), "no page may be fetched under the lock"
        assert bool(seen[0].known_pages) is not is_away


class Gate:
    """Blocks the first call for which `is_it` is true, until the gate is opened."""

    def __init__(self, is_it: Callable[[str, str], bool]) -> None:
        self._is_it, self._lock, self._is_taken = is_it, threading.Lock(), False
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, verb: str, key: str) -> None:
        with self._lock:
            is_mine = not self._is_taken and self._is_it(verb, key)
            self._is_taken = self._is_taken or is_mine
        if is_mine:
            self.reached.set()
            assert self.opened.wait(LIMIT_S)


def returns(deed: Callable[[], object]) -> bool:
    """True if `deed` returns while the store hangs."""
    turn = threading.Thread(target=deed, daemon=True)
    turn.start()
    turn.join(LIMIT_S / 3)
    return not turn.is_alive()


@pytest.mark.parametrize("verb", ["list", "put_if_absent"])
def test_topic_and_records_are_deleted_while_the_acquire_hangs(world: World, verb: str) -> None:
    store = Hooked(world.store)
    with world.open() as manager:
        for topic in ("t", "o"):
            manager.topics.create(topic, 1, {**TIERED, "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
            send(manager, 40, topic=topic)
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager)

    def away(verb: str, key: str) -> None:
        if key.startswith("t-"):
            raise Unavailable("the store is down", key=key)

    store.before = away
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        gate = Gate(lambda asked, key: asked == verb and key.startswith("t-"))
        store.before = gate
        manager.tick(NOW, waits=False)
        assert gate.reached.wait(LIMIT_S)
        other = {TopicPartition("o", 0): 15}
        try:
            assert returns(lambda: manager.topics.delete("t", now_ms=NOW))
            assert returns(lambda: manager.maintenance.delete_records(other, now_ms=NOW))
        finally:
            gate.opened.set()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        for hour in (0, 2, 4, 6):
            while manager.tick(NOW + hour * HOUR):
                pass
        assert manager.problems == {}
        assert manager.partitions.registry.deleted() == ()
        assert not [info for info in world.store.list("t-") if "/data/" in info.key]


def test_first_manifest_after_the_deletion_of_its_topic_marks_the_deletion(world: World) -> None:
    """The deletion finds nothing in the bucket and ends. Then the first manifest of the acquire arrives."""
    store = Hooked(world.store)
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    for info in list(world.store.list("t-")):
        world.store.delete([info.key])

    def away(verb: str, key: str) -> None:
        if key.startswith("t-"):
            raise Unavailable("the store is down", key=key)

    store.before = away
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        held = manager.partitions.find(NAME)
        gate = Gate(lambda asked, key: asked == "put_if_absent" and key.startswith("t-"))
        store.before = gate
        manager.tick(NOW, waits=False)
        assert gate.reached.wait(LIMIT_S)
        try:
            assert returns(lambda: manager.topics.delete("t", now_ms=NOW))
        finally:
            gate.opened.set()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        manifest = commit_protocol.MetadataLog(world.store, held.prefix).load()
        assert manifest is not None
        assert manifest.deleted_ms == NOW
        assert manager.problems == {}


def test_planned_expiry_is_skipped_when_retention_was_raised_before_it(world: World) -> None:
    """Maintenance plans all topics first.
    The retention of one topic is raised during the uploads of another."""
    store = Hooked(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        for topic, properties in (("t", TIERED), ("u", {"retention.ms": "1h"})):
            manager.topics.create(topic, 1, properties, now_ms=NOW)
            send(manager, 100, topic=topic)
        altered: list[object] = []

        def before(verb: str, key: str) -> None:
            if verb == "upload" and not altered:
                with as_other_thread():
                    altered.append(manager.topics.alter("u", {"retention.ms": "-1"}, now_ms=NOW))

        store.before = before
        manager.tick(NOW)
        assert altered, "an upload must have started"
        settle(manager)
        assert manager.reader().offsets(TopicPartition("u", 0)) == (0, 100)


def test_task_that_ends_after_its_manager_changes_no_topic_list(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task finds that nothing of a deleted topic remains.
    It must not write the topic list, which belongs to the next manager."""
    first = world.open()
    first.topics.create("t", 1, {}, now_ms=NOW)
    first.topics.delete("t", now_ms=NOW)
    reached, opened, removed = threading.Event(), threading.Event(), first.topics.deletion._removed

    def late(*given: object) -> object:
        reached.set()
        assert opened.wait(LIMIT_S)
        return removed(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(first.topics.deletion, "_removed", late)
    first.tick(NOW, waits=False)
    assert reached.wait(LIMIT_S)
    first.close(drain_s=0.0)
    with world.open() as second:
        second.topics.create("new", 1, {}, now_ms=NOW)
        opened.set()
        assert first.maintenance.tasks.wait_idle(LIMIT_S)
    with world.open() as third:
        assert [topic.name for topic in third.topics.all()] == ["new"]
        settle(third)
        assert third.partitions.registry.deleted() == ()
