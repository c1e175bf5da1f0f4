"""Cost of a read-only open of many topics: requests for each topic, threads in total, and a time limit."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from manager_world import DAY, NOW, TIERED, World, send, settle

from local.errors import Corrupt, LogError, Unavailable
from local.names import TopicPartition
from remote.manifest.manifest_memory_cache import ManifestMemoryCache
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore, RequestCounts
from remote.store.open_store import open_store
from tiered.manager.manager import LogManager
from tiered.partition import partition_table
from tiered.partition.partition import Partition
from tiered.status.status_report import status_report

TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture
def world() -> World:
    """Twelve topics with closed segments, some in the bucket and some on the disk only."""
    world = World()
    with world.open() as manager:
        for topic in TOPICS:
            manager.topics.create(topic, 1, TIERED, now_ms=NOW)
            send(manager, 100, topic=topic)
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager)
        for topic in TOPICS:
            send(manager, 20, topic=topic, start=100)
    return world


def test_status_lists_manifests_once_per_topic_and_reads_only_the_newest(world: World) -> None:
    metered = MeteredStore(world.store)
    with world.open(read_only=True, store=metered) as manager:
        report = status_report(manager, NOW + DAY, storage=world.disk)
    assert all(status.remote_segments for status in report.partitions.values())
    assert len(report.partitions) == len(TOPICS)
    counts = metered.counts_by_topic()
    assert len(counts) == len(TOPICS)
    for each in counts.values():
        asked = {name: getattr(each, name) for name in ("lists", "gets", "puts", "deletes", "heads", "data_gets")}
        assert asked == {"lists": 1, "gets": 3, "puts": 0, "deletes": 0, "heads": 0, "data_gets": 0}
    assert metered.counts() == sum(counts.values(), RequestCounts()), "status must send no other requests"


def test_next_status_fetches_only_newer_manifests_and_misses_none(world: World) -> None:
    now_ms = 0
    known = ManifestMemoryCache(lambda: now_ms)

    def look() -> tuple[dict[TopicPartition, int | None], RequestCounts]:
        metered = MeteredStore(world.store)
        with world.open(read_only=True, store=metered, known=known) as manager:
            report = status_report(manager, NOW + DAY, storage=world.disk)
        assert report.errors == {}
        return {name: status.remote_next_offset for name, status in report.partitions.items()}, metered.counts()

    before, _ = look()
    assert set(before.values()) == {100}
    for _ in range(2):
        now_ms += 10_000
        again, asked = look()
        assert again == before
        assert (asked.gets, asked.lists, asked.heads, asked.puts, asked.deletes) == (len(TOPICS), 0, 0, 0, 0)
        assert asked.bytes_out == 0, "a manifest that is already known must not be read again"
    with world.open() as manager:
        for topic in TOPICS:
            manager.partitions.roll(topic, now_ms=NOW)
        manager.topics.delete(TOPICS[-1], now_ms=NOW)
        manager.topics.create(TOPICS[-1], 1, TIERED, now_ms=NOW)
        settle(manager)
    now_ms += 10_000
    found, _ = look()
    assert [found[TopicPartition(topic, 0)] for topic in TOPICS] == [120] * (len(TOPICS) - 1) + [None]


@pytest.mark.parametrize("topics", [4, 12])
def test_thread_count_of_a_status_does_not_grow_with_the_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    (tmp_path / "bucket").mkdir()
    world = World()
    with world.open(store=open_store(f"file://{tmp_path}/bucket")) as manager:
        for topic in TOPICS[:topics]:
            manager.topics.create(topic, 1, TIERED, now_ms=NOW)
    started: list[str] = []
    start = threading.Thread.start

    def told(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", told)
    settings = {"num_recovery_threads_per_data_dir": "7"}
    with world.open(read_only=True, store=open_store(f"file://{tmp_path}/bucket"), **settings) as manager:
        assert len(status_report(manager, NOW, storage=world.disk).partitions) == topics
    calls = [name for name in started if name == "tiered-store-call"]
    assert len(calls) <= partition_table.DISK_LOOKERS + 1, (
        "at most one call thread for each waiting reader, and one that has not ended yet"
    )
    assert len(started) - len(calls) <= partition_table.DISK_LOOKERS


def _partitions(world: World) -> tuple[LogManager, list[Partition]]:
    manager = world.open(read_only=True)
    return manager, manager.partitions.all()


def test_after_the_time_limit_a_store_without_answers_gets_no_more_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, held = _partitions(world)
    now, asked = [0.0], []

    def silent(each: Partition) -> LogError | None:
        asked.append(each.name)
        now[0] += partition_table.WAIT_MAX_S / 3
        return Unavailable("cannot read an object, no answer by the deadline")

    monkeypatch.setattr(partition_table, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with manager:
        found = partition_table.open_read_only_all(silent, held, "file:///b")
    assert len(found) == len(held)
    assert all(isinstance(error, Unavailable) for error in found)
    assert 3 <= len(asked) <= 2 + partition_table.DISK_LOOKERS
    told = [str(error) for each, error in zip(held, found, strict=True) if each.name not in asked]
    assert len(told) == len(held) - len(asked)
    assert all(
        "the store did not reply for other partitions" in each and "no answer by the deadline" in each for each in told
    )


@pytest.mark.parametrize("error", [None, Corrupt("reading a head")], ids=["slow and sound", "slow and damaged"])
def test_slow_store_that_answers_is_asked_about_every_partition(
    world: World, error: LogError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, held = _partitions(world)
    now = [0.0]

    def slow(each: Partition) -> LogError | None:
        now[0] += partition_table.WAIT_MAX_S
        return error

    monkeypatch.setattr(partition_table, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with manager:
        assert partition_table.open_read_only_all(slow, held, "s3://b") == [error] * len(held)


def test_remote_store_is_asked_about_all_topics_in_parallel(world: World) -> None:
    """One thread for each topic at the same time, although each topic has a single partition."""
    manager, held = _partitions(world)
    met = threading.Barrier(len(held))

    def wait(each: Partition) -> LogError | None:
        met.wait(60)
        return None

    with manager:
        assert len(held) == len(TOPICS) <= partition_table.LOOKERS
        assert partition_table.open_read_only_all(wait, held, "s3://b") == [None] * len(held)


def test_status_with_an_unreachable_bucket_has_local_figures_and_the_problem(world: World) -> None:
    class Away(MeteredStore):
        def list(self, prefix: str, *, start_after: str = ""):  # type: ignore[no-untyped-def]
            raise Unavailable("cannot list objects, the store cannot be reached", attempts=1)

    with world.open(read_only=True, store=Away(MemoryStore("memory://b"))) as manager:
        report = status_report(manager, NOW, storage=world.disk)
    names = {TopicPartition(topic, 0) for topic in TOPICS}
    assert set(report.partitions) == set(report.errors) == names
    assert all(status.local_bytes for status in report.partitions.values())
