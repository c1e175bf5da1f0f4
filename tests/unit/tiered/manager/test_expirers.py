"""Two task pools wait for the store.
A hanging upload does not delay deletions, and a hanging deletion no uploads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle

from local.errors import Unavailable
from local.names import TopicPartition
from remote.store import UploadSource
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager
from tiered.observe.metrics import Metrics
from tiered.service.observations import Observations

LIMIT_S = 60.0  # far more than anything needs: a test that hangs fails
OTHER = TopicPartition("o", 0)
GRACE = {**TIERED, "remote.log.delete.grace.ms": "1h"}


class Selective:
    """A store that blocks some calls of some topics until they are released, and refuses others."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.hanging: set[tuple[str, str]] = set()
        self.refused: set[tuple[str, str]] = set()
        self.begun: list[tuple[str, str]] = []
        self.ended: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def _call(self, verb: str, key: str, *given: object, **more: object) -> object:
        call = verb, key.split("-")[0]
        with self._changed:
            self.begun.append(call)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: call not in self.hanging, LIMIT_S)
            if call in self.refused:
                raise Unavailable("the store refuses it", verb=verb)
        found = getattr(self.inner, verb)(*given, **more)
        with self._changed:
            self.ended.append(call)
            self._changed.notify_all()
        return found

    def upload(self, key: str, source: UploadSource) -> None:
        self._call("upload", key, key, source)

    def delete(self, keys: object) -> None:
        wanted = list(keys)  # type: ignore[call-overload]
        self._call("delete", next((key for key in wanted if "/data/" in key), ""), wanted)

    def put_if_absent(self, key: str, body: bytes) -> None:
        self._call("put_if_absent", key, key, body)

    def close(self) -> None:
        """The store is used by several managers, so it is not closed."""

    def __getattr__(self, verb: str) -> object:
        return getattr(self.inner, verb)

    def has(self, calls: list[tuple[str, str]], call: tuple[str, str], count: int = 1) -> bool:
        """True if `calls` has the call `count` times, now or soon."""
        with self._changed:
            return self._changed.wait_for(lambda: calls.count(call) >= count, LIMIT_S / 2)

    def let_go(self) -> None:
        with self._changed:
            self.hanging.clear()
            self.refused.clear()
            self._changed.notify_all()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(world: World) -> Iterator[Selective]:
    made = Selective(world.store)
    yield made
    made.let_go()


def opened(world: World, store: Selective) -> LogManager:
    """A manager with one thread in each pool.
    The first half of "o" is deleted, and its objects are due at NOW + 1 h."""
    one = {f"remote_log_manager_{kind}_thread_pool_size": "1" for kind in ("copier", "expiration")}
    manager = world.open(store=store, **one)  # type: ignore[arg-type]
    for topic in ("t", "o"):
        manager.topics.create(topic, 1, GRACE, now_ms=NOW)
        add(manager, topic, 2)
    settle(manager)
    for name in (OTHER, NAME):
        manager.maintenance.delete_records({name: 20}, now_ms=NOW)
    settle(manager)
    store.begun.clear()
    store.ended.clear()
    return manager


def add(manager: LogManager, topic: str, segments: int) -> None:
    for _ in range(segments):
        start = manager.partitions.find(TopicPartition(topic, 0)).log.next_offset
        send(manager, 20, topic=topic, start=start)
        manager.partitions.roll(topic, now_ms=NOW)


def entries(manager: LogManager, name: TopicPartition) -> int:
    manifest = manager.partitions.find(name).manifest()
    assert manifest is not None
    return len(manifest.segments)


def pending_deletes(manager: LogManager, name: TopicPartition) -> int:
    manifest = manager.partitions.find(name).manifest()
    assert manifest is not None
    return len(manifest.pending_deletes)


@pytest.mark.parametrize("has_copies", [False, True])
def test_deletions_continue_while_every_copier_hangs(world: World, store: Selective, *, has_copies: bool) -> None:
    with opened(world, store) as manager:
        store.hanging.add(("upload", "t"))
        add(manager, "t", 1)
        manager.tick(NOW, waits=False)
        assert store.has(store.begun, ("upload", "t"))
        if has_copies:
            add(manager, "o", 1)
        manager.tick(NOW + HOUR, waits=False)
        is_deleted = store.has(store.ended, ("delete", "o"))
        store.let_go()
        assert is_deleted
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        settle(manager, NOW + HOUR)
        assert (entries(manager, NAME), entries(manager, OTHER)) == (2, 1 + has_copies)


def test_copies_continue_while_every_deletion_hangs(world: World, store: Selective) -> None:
    with opened(world, store) as manager:
        store.hanging.add(("delete", "o"))
        manager.tick(NOW + HOUR, waits=False)
        assert store.has(store.begun, ("delete", "o"))
        for turn in (1, 2):
            add(manager, "t", 1)
            manager.tick(NOW + HOUR, waits=False)
            is_copied = store.has(store.ended, ("upload", "t"), turn)
            if not is_copied:
                store.let_go()
            assert is_copied
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        settle(manager, NOW + HOUR)


def test_partition_with_failed_uploads_still_deletes_and_keeps_its_problem(world: World, store: Selective) -> None:
    with opened(world, store) as manager:
        store.refused.add(("upload", "o"))
        add(manager, "o", 1)
        manager.tick(NOW + HOUR, waits=False)
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert pending_deletes(manager, OTHER) == 0, "the due objects must be deleted"
        for _ in range(3):
            manager.tick(NOW + HOUR, waits=False)
            assert manager.maintenance.tasks.wait_idle(LIMIT_S)
            assert isinstance(manager.problems[OTHER], Unavailable)
        manager.maintenance.delete_records({OTHER: 40}, now_ms=NOW + HOUR)
        for _ in range(3):
            manager.tick(NOW + HOUR, waits=False)
            assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert entries(manager, OTHER) == 0, "the entries must expire too"
        assert isinstance(manager.problems[OTHER], Unavailable)
        store.let_go()
        settle(manager, NOW + HOUR)
        assert entries(manager, OTHER) == 1


def test_partition_is_acquired_and_then_copied_while_every_copier_hangs(world: World, store: Selective) -> None:
    with opened(world, store) as manager:
        for topic in ("t", "o"):
            add(manager, topic, 1)
    store.refused.add(("put_if_absent", "o"))
    one = {"remote_log_manager_copier_thread_pool_size": "1"}
    with world.open(store=store, **one) as manager:  # type: ignore[arg-type]
        assert not manager.partitions.find(OTHER).is_writer
        store.hanging.add(("upload", "t"))
        manager.tick(NOW, waits=False)
        assert store.has(store.begun, ("upload", "t"))
        store.refused.clear()
        store.ended.clear()
        manager.tick(NOW, waits=False)
        is_taken = store.has(store.ended, ("put_if_absent", "o"))
        store.let_go()
        assert is_taken
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert manager.partitions.find(OTHER).is_writer
        assert entries(manager, OTHER) == 2, "the copies must follow without another maintenance"
        settle(manager)


def test_copier_that_finds_its_partition_busy_runs_later(world: World, store: Selective) -> None:
    """The expirer works on the partition. The copier runs when the expirer has finished."""
    with opened(world, store) as manager:
        store.hanging.add(("delete", "o"))
        manager.tick(NOW + HOUR, waits=False)
        assert store.has(store.begun, ("delete", "o"))
        add(manager, "o", 1)
        manager.tick(NOW + HOUR, waits=False)
        manager.maintenance.tasks.wait_idle(0.2)  # the copier finds the partition busy
        assert ("upload", "o") not in store.begun
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert entries(manager, OTHER) == 2
        assert manager.problems == {}


def gauges(manager: LogManager, kind: str) -> dict[str, float]:
    """The metrics of one task pool, by name or state label."""
    found: dict[str, float] = {}
    for each in Metrics(manager, Observations()).samples(NOW):
        labels = dict(each.labels)
        if each.name.startswith(f"tiered_{kind}_") or labels.get("pool") == kind:
            assert isinstance(each.value, (int, float))
            found[labels.get("state") or each.name.rpartition(f"{kind}_")[2]] = each.value
    return found


def test_hanging_pool_is_visible_only_in_its_own_metrics(world: World, store: Selective) -> None:
    with opened(world, store) as manager:
        idle_gauges = {"queued": 0, "running": 0, "threads": 1, "oldest_wait_seconds": 0, "oldest_turn_seconds": 0}
        idle_gauges["tiered_remote_log_manager_tasks_idle_ratio"] = 1
        assert gauges(manager, "expirer") == gauges(manager, "copier") == idle_gauges
        store.hanging |= {("delete", "o"), ("delete", "t")}
        manager.tick(NOW + HOUR, waits=False)  # two partitions for one thread
        assert store.has(store.begun, ("delete", "o")) or store.has(store.begun, ("delete", "t"))
        busy = gauges(manager, "expirer")
        assert (busy["queued"], busy["running"], busy["threads"]) == (1, 1, 1)
        assert busy["oldest_wait_seconds"] > 0
        assert busy["oldest_turn_seconds"] > 0
        assert busy["tiered_remote_log_manager_tasks_idle_ratio"] == 0
        assert gauges(manager, "copier") == idle_gauges
        store.let_go()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert gauges(manager, "expirer") == idle_gauges
